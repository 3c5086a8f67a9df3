//! Data packets: forwarding from one port to others.

use std::time::{Duration, Instant};

use connectx::cable::{Crcs, MAX_PACKET};
use ib_wire::crc::{VCRC_LEN, verify_vcrc};
use ib_wire::packet::{BTH_LEN, Bth, GRH_LEN, LRH_LEN, Lnh, Lrh, Packet, VirtualLane};
use ib_wire::{Mtu, PKey, ServiceLevel};

use super::port::{Blocked, DropReason, Hurry};
use super::tables::PortSet;
use super::{HEAD_OF_QUEUE_LIFE, HURRY, LONG_WAIT, PASSING, Switch};

/// Most bytes of a packet in addition to its payload, LRH to VCRC.
const MAX_OVERHEAD: usize = 126 + VCRC_LEN;

/// Returns the LRH of a packet with valid outer lengths, and its P_Key; raw packets have none.
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

/// True if the header of a packet names the management lane.
pub(super) fn is_management(packet: &[u8]) -> bool {
    packet.first_chunk::<LRH_LEN>().is_some_and(|head| Lrh::from_bytes(head).0.vl == VirtualLane::MANAGEMENT)
}

impl Switch {
    /// Handles one packet that arrived by port index `at`; false if it must wait.
    pub(super) fn take(&mut self, at: usize, packet: &[u8], crcs: Crcs, now: Instant) -> bool {
        let outcome = check(packet, crcs).and_then(|(lrh, pkey)| {
            if lrh.vl == VirtualLane::MANAGEMENT {
                self.take_smp(at, packet, crcs);
                return Ok(true);
            }
            let port = self.ports.get_mut(at).filter(|port| port.receives_data());
            let port = port.ok_or(DropReason::PortState)?;
            port.admits_source(lrh.slid)?;
            port.refuses_elsewhere(lrh.slid)?;
            port.lets_in(pkey)?;
            if lrh.dlid.is_multicast() {
                self.spread(at, &lrh, (packet, crcs, pkey), now)
            } else if lrh.dlid == self.lid() {
                self.take_gmp(at, packet, crcs).map(|()| true)
            } else {
                self.relay(at, &lrh, (packet, crcs, pkey), now)
            }
        });
        let taken = outcome.unwrap_or_else(|reason| {
            self.count_drop(at, reason);
            true
        });
        if let (true, Some(port)) = (taken && !is_management(packet), self.ports.get_mut(at)) {
            // The wait of the next packet starts separately.
            let unicast = port.blocked.take().filter(|blocked| blocked.egress.is_some());
            if let (Some(blocked), Some(budget)) = (unicast, &mut port.wait_budget) {
                budget.spend(blocked.since, now);
            }
        }
        taken
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

    /// Forwards a unicast packet.
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
        let since = self.blocked(at).map_or(now, |blocked| blocked.since);
        let waited = now.saturating_duration_since(since);
        if !self.has_room(egress, packet.len(), waited >= HEAD_OF_QUEUE_LIFE)? {
            if self.is_too_slow(at, number, since, waited) {
                self.discard(egress);
                return Err(DropReason::HeadOfQueue);
            }
            self.block(at, Blocked { egress: Some(number), since, done: PortSet::default() });
            return Ok(false);
        }
        if self.ports.get_mut(egress).is_some_and(|port| port.send(packet, crcs)) {
            self.count_forwarded(at);
        }
        self.note_room(at, number);
        Ok(true)
    }

    /// Forwards a multicast packet to all ports of the group except its ingress. It leaves at once by ports
    /// with room, and waits for the others until one deadline, which is the same for all of them.
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
        let before = self.blocked(at);
        let since = before.map_or(now, |blocked| blocked.since);
        let waited = now.saturating_duration_since(since);
        let hurry = self.ports.get(at).and_then(|port| port.hurry).filter(|hurry| since < hurry.until);
        let mut slow = hurry.map_or_else(PortSet::default, |hurry| hurry.past);
        let mut done = before.map_or_else(PortSet::default, |blocked| blocked.done);
        let mut waits = false;
        for number in ports.iter().filter(|&n| n != 0 && usize::from(n) != at + 1) {
            if done.has(number) {
                continue;
            }
            let egress = usize::from(number) - 1;
            let room = self.may_leave((at, egress), packet.len(), lrh.sl, pkey);
            match room.and_then(|()| self.has_room(egress, packet.len(), waited >= HEAD_OF_QUEUE_LIFE)) {
                Ok(true) => {
                    if self.ports.get_mut(egress).is_some_and(|port| port.send(packet, crcs)) {
                        self.count_forwarded(at);
                    }
                }
                Ok(false) if hurry.is_none_or(|hurry| !hurry.past.has(number)) => {
                    waits = true;
                    continue;
                }
                Ok(false) => {
                    self.discard(egress);
                    self.count_drop(at, DropReason::HeadOfQueue);
                }
                Err(reason) => self.count_drop(at, reason),
            }
            done.insert(number);
            slow.insert(number);
        }
        if waits {
            self.block(at, Blocked { egress: None, since, done });
        } else if let Some(port) = self.ports.get_mut(at)
            && waited >= if port.wait_budget.is_some() { PASSING } else { LONG_WAIT }
        {
            // The others have already been sent the packet.
            let since = hurry.map_or(now, |hurry| hurry.until + waited);
            port.hurry = Some(Hurry { past: slow, until: since + HURRY * waited });
        }
        Ok(!waits)
    }

    /// Checks that a packet of this length, service level and partition may pass from port index `at` to
    /// `egress`.
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

    fn blocked(&self, at: usize) -> Option<Blocked> {
        self.ports.get(at)?.blocked
    }

    fn block(&mut self, at: usize, blocked: Blocked) {
        if let Some(port) = self.ports.get_mut(at) {
            port.blocked = Some(blocked);
        }
    }

    /// True if data that arrived by port index `at` no longer waits for an egress: the link between switches
    /// there has used up its wait budget.
    fn is_too_slow(&mut self, at: usize, egress: u8, since: Instant, waited: Duration) -> bool {
        let Some(port) = self.ports.get_mut(at) else { return false };
        if port.wait_budget.is_some_and(|budget| waited >= budget.limit(since)) {
            port.slow.insert(egress);
        }
        port.slow.has(egress)
    }

    /// Notes that an egress accepted a packet from port index `at`. If it has room for another one, later
    /// packets wait for it again.
    fn note_room(&mut self, at: usize, egress: u8) {
        if self.ports.get(at).is_some_and(|port| port.slow.has(egress)) {
            let out = self.ports.get_mut(usize::from(egress).wrapping_sub(1));
            if out.is_some_and(|out| out.has_room(MAX_PACKET))
                && let Some(port) = self.ports.get_mut(at)
            {
                port.slow.remove(egress);
            }
        }
    }

    /// Counts a packet that the egress did not accept.
    fn discard(&mut self, egress: usize) {
        if let Some(port) = self.ports.get_mut(egress) {
            port.discards += 1;
        }
    }

    /// True if the egress can accept the packet now, false if the packet must wait. An error if it has waited
    /// for too long (`is_overdue`), or the receiver is stalled.
    fn has_room(&mut self, egress: usize, len: usize, is_overdue: bool) -> Result<bool, DropReason> {
        let port = self.ports.get_mut(egress).ok_or(DropReason::NoRoute)?;
        if port.has_room(len) {
            if port.stalled {
                port.stalled = !port.has_room(MAX_PACKET);
            }
            return Ok(true);
        }
        port.stalled |= is_overdue;
        if port.stalled {
            port.discards += 1;
            return Err(DropReason::HeadOfQueue);
        }
        Ok(false)
    }

    /// True if a packet has waited at this port long enough for management packets to pass it.
    pub(super) fn has_waited(&self, at: usize, now: Instant) -> bool {
        self.blocked(at).is_some_and(|blocked| now.saturating_duration_since(blocked.since) >= PASSING)
    }

    /// True if the packet at the head of this port's queue would only be refused again.
    pub(super) fn is_still_blocked(&mut self, at: usize, now: Instant) -> bool {
        let Some(blocked) = self.blocked(at) else { return false };
        let budget =
            self.ports.get(at).and_then(|port| port.wait_budget).filter(|_| blocked.egress.is_some());
        let limit = budget.map_or(HEAD_OF_QUEUE_LIFE, |budget| budget.limit(blocked.since));
        if now.saturating_duration_since(blocked.since) >= limit {
            return false;
        }
        let egress =
            blocked.egress.and_then(|number| self.ports.get_mut(usize::from(number).wrapping_sub(1)));
        egress.is_some_and(|port| port.sends_data() && !port.stalled && !port.has_room(MAX_PACKET))
    }
}
