//! Data packets: in by one port, out by others.

use std::time::Instant;

use connectx::cable::Crcs;
use ib_wire::crc::{VCRC_LEN, verify_vcrc};
use ib_wire::packet::{BTH_LEN, Bth, GRH_LEN, LRH_LEN, Lnh, Lrh, Packet, VirtualLane};
use ib_wire::{Mtu, PKey, ServiceLevel};

use super::port::{Blocked, DropReason};
use super::{HEAD_OF_QUEUE_LIFE, STALLED, Switch};

/// Most bytes of a packet beside its payload, LRH to VCRC.
const MAX_OVERHEAD: usize = 126 + VCRC_LEN;

/// The LRH of a packet whose outer lengths are right, and its P_Key; raw packets have none.
fn check(packet: &[u8], crcs: Crcs) -> Result<(Lrh, Option<PKey>), DropReason> {
    let head = packet.first_chunk::<LRH_LEN>().ok_or(DropReason::Malformed)?;
    let (lrh, lnh, words) = Lrh::from_bytes(head);
    let fits = usize::from(words) * 4 + VCRC_LEN == packet.len();
    if packet.len() < Packet::MIN_LEN || head[0] & 0xf != 0 || !fits {
        return Err(DropReason::Malformed);
    }
    if crcs == Crcs::Present && !verify_vcrc(packet) {
        return Err(DropReason::Vcrc);
    }
    let bth = match lnh {
        Lnh::Raw | Lnh::RawIpv6 => return Ok((lrh, None)),
        Lnh::Local => LRH_LEN,
        Lnh::Global => LRH_LEN + GRH_LEN,
    };
    let bth =
        packet.get(bth..).and_then(|rest| rest.first_chunk::<BTH_LEN>()).ok_or(DropReason::Malformed)?;
    Ok((lrh, Some(Bth::from_bytes(bth).0.pkey)))
}

impl Switch {
    /// Takes one packet that came in by port index `at`; false if it has to wait.
    pub(super) fn take(&mut self, at: usize, packet: &[u8], crcs: Crcs, now: Instant) -> bool {
        let outcome = check(packet, crcs).and_then(|(lrh, pkey)| {
            if lrh.vl == VirtualLane::MANAGEMENT {
                self.take_smp(at, packet, crcs);
                return Ok(true);
            }
            let port = self.ports.get_mut(at).filter(|port| port.receives_data());
            port.ok_or(DropReason::PortState)?.lets_in(pkey)?;
            if lrh.dlid.is_multicast() {
                self.spread(at, &lrh, (packet, crcs, pkey), now)
            } else if lrh.dlid == self.lid() {
                self.take_gmp(packet, crcs).map(|()| true)
            } else {
                self.relay(at, &lrh, (packet, crcs, pkey), now)
            }
        });
        outcome.unwrap_or_else(|reason| {
            self.count_drop(at, reason);
            true
        })
    }

    pub(super) fn count_drop(&mut self, at: usize, reason: DropReason) {
        if let Some(port) = self.ports.get_mut(at) {
            port.counters.drop(reason);
        }
    }

    fn count_forwarded(&mut self, at: usize) {
        if let Some(port) = self.ports.get_mut(at) {
            port.counters.forwarded += 1;
        }
    }

    /// Unicast.
    fn relay(
        &mut self,
        at: usize,
        lrh: &Lrh,
        (packet, crcs, pkey): (&[u8], Crcs, Option<PKey>),
        now: Instant,
    ) -> Result<bool, DropReason> {
        let number = self.linear.port(lrh.dlid).ok_or(DropReason::NoRoute)?;
        let egress = usize::from(number).checked_sub(1).ok_or(DropReason::NoRoute)?;
        if egress == at {
            return Err(DropReason::SamePort);
        }
        self.may_leave((at, egress), packet.len(), lrh.sl, pkey)?;
        if !self.has_room(at, number, packet.len(), now)? {
            return Ok(false);
        }
        if self.ports.get_mut(egress).is_some_and(|port| port.send(packet, crcs)) {
            self.count_forwarded(at);
        }
        Ok(true)
    }

    /// Multicast: to all ports of the group but the one that it came in by. It waits until all have room, or leaves those
    /// out that stay full.
    fn spread(
        &mut self,
        at: usize,
        lrh: &Lrh,
        (packet, crcs, pkey): (&[u8], Crcs, Option<PKey>),
        now: Instant,
    ) -> Result<bool, DropReason> {
        let ports = self.multicast.ports(lrh.dlid);
        if ports.is_empty() {
            return Err(DropReason::NoRoute);
        }
        let ways = || ports.iter().filter(move |&n| n != 0 && usize::from(n) != at + 1);
        let mut ready = [false; super::MAX_PORTS + 1];
        for number in ways() {
            let egress = usize::from(number) - 1;
            let room = match self.may_leave((at, egress), packet.len(), lrh.sl, pkey) {
                Ok(()) => self.has_room(at, number, packet.len(), now),
                Err(reason) => Err(reason),
            };
            match room {
                Ok(true) => ready.get_mut(usize::from(number)).into_iter().for_each(|r| *r = true),
                Ok(false) => return Ok(false),
                Err(reason) => self.count_drop(at, reason),
            }
        }
        for number in ways().filter(|&n| ready.get(usize::from(n)) == Some(&true)) {
            if self.ports.get_mut(usize::from(number) - 1).is_some_and(|port| port.send(packet, crcs)) {
                self.count_forwarded(at);
            }
        }
        Ok(true)
    }

    /// Is the way from port index `at` out by `egress` open for a packet of this length, service level and partition?
    fn may_leave(
        &mut self,
        (at, egress): (usize, usize),
        len: usize,
        sl: ServiceLevel,
        pkey: Option<PKey>,
    ) -> Result<(), DropReason> {
        let port = self.ports.get_mut(egress).ok_or(DropReason::NoRoute)?;
        let mtu = port.info.neighbor_mtu.mtu().unwrap_or(Mtu::B256);
        let closed = if !port.sends_data() {
            DropReason::EgressState
        } else if len > mtu.bytes() + MAX_OVERHEAD {
            DropReason::TooLong
        } else if !port.has_lane(at + 1, sl) {
            return Err(DropReason::ServiceLevel);
        } else {
            return port.lets_out(pkey);
        };
        port.discards += 1;
        Err(closed)
    }

    /// True if the way out can take the packet now, false if the packet shall wait.
    fn has_room(&mut self, at: usize, number: u8, len: usize, now: Instant) -> Result<bool, DropReason> {
        let waiting = self.ports.get(at).and_then(|port| port.blocked).filter(|b| b.egress == number);
        let Some(egress) = self.ports.get_mut(usize::from(number).wrapping_sub(1)) else {
            return Err(DropReason::NoRoute);
        };
        if egress.has_room(len) {
            egress.stalled_until = None;
            return Ok(true);
        }
        if egress.stalled_until.is_some_and(|until| now < until) {
            egress.discards += 1;
            return Err(DropReason::HeadOfQueue);
        }
        let since = waiting.map_or(now, |b| b.since);
        if now.saturating_duration_since(since) >= HEAD_OF_QUEUE_LIFE {
            egress.stalled_until = Some(now + STALLED);
            egress.discards += 1;
            return Err(DropReason::HeadOfQueue);
        }
        if let Some(port) = self.ports.get_mut(at) {
            port.blocked = Some(Blocked { egress: number, since });
        }
        Ok(false)
    }

    /// True if the packet at the head of this port's queue would only be refused again.
    pub(super) fn is_still_blocked(&mut self, at: usize, now: Instant) -> bool {
        let Some(blocked) = self.ports.get(at).and_then(|port| port.blocked) else { return false };
        if now.saturating_duration_since(blocked.since) >= HEAD_OF_QUEUE_LIFE {
            return false;
        }
        let egress = self.ports.get_mut(usize::from(blocked.egress).wrapping_sub(1));
        egress.is_some_and(|port| port.sends_data() && !port.has_room(connectx::cable::MAX_PACKET))
    }
}
