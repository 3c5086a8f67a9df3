//! Receive path: checks packets from the link layer up and delivers them to their queue pair.

use std::time::Instant;

use ib_wire::packet::{Opcode, Packet, Service, VirtualLane};
use ib_wire::{Gid, Qpn, crc};

use super::cable::Crcs;
use super::config::EngineConfig;
use super::counters::{Activity, DropReason};
use super::device::Device;
use super::ethernet::{self, Incoming};
use super::frame::Arrived;
use super::object::qp::{Qp, QpKind};
use super::object::table::QpTable;
use super::port::Port;
use super::rc::series::Series;
use super::rc::{answer, requester, responder};
use super::{sma, uc, ud};
use hca::{AddressVector, PortState};

/// Where a packet came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Via {
    /// This port.
    Ourselves,
    /// The other end of its cable.
    Cable(Crcs),
}

impl Via {
    /// True if there are CRCs to check. Packets that never left memory cannot have been damaged.
    const fn has_crcs(self) -> bool {
        matches!(self, Self::Cable(Crcs::Present))
    }

    const fn is_ours(self) -> bool {
        matches!(self, Self::Ourselves)
    }
}

/// Receives at most `max` packets from each port. Returns true if there were any.
pub(crate) fn receive(
    qps: &mut QpTable,
    dev: &mut Device,
    config: &EngineConfig,
    now: Instant,
    max: usize,
) -> bool {
    let mut worked = false;
    for index in 0..dev.ports.len() {
        let Some(port) = dev.ports.get_mut(index) else { break };
        // A consumed wakeup must be armed again before sleeping, even if the packet was there before it.
        worked |= port.poll_cable(now, &mut dev.events);
        // Taken out of the port, so that packet handlers can borrow the rest of it.
        let cable = port.cable.take();
        // The headers of Ethernet frames are at another offset.
        let infiniband = port.ethernet.is_none();
        let mut loopback = std::mem::take(&mut port.loopback);
        let index = index as u8;
        worked |= loopback.drain(|bytes| packet(qps, dev, config, index, bytes, Via::Ourselves, now)) > 0;
        let mut cable = cable;
        if let Some(cable) = &mut cable {
            let mut series = None;
            let taken = cable.receive_as_sent(max, |bytes, crcs| {
                let goes_on = Series::take_in(&mut series, qps, dev, (bytes, crcs), now);
                if !goes_on {
                    dev.accepted = None;
                    packet(qps, dev, config, index, bytes, Via::Cable(crcs), now);
                    let accepted = dev.accepted.take().filter(|_| infiniband);
                    series = accepted.and_then(|slot| Series::begin(bytes, slot));
                }
                true
            });
            worked |= taken > 0;
        }
        if let Some(port) = dev.ports.get_mut(usize::from(index)) {
            port.cable = cable;
            port.loopback = loopback;
        }
    }
    worked
}

fn packet(
    qps: &mut QpTable,
    dev: &mut Device,
    config: &EngineConfig,
    port: u8,
    bytes: &[u8],
    via: Via,
    now: Instant,
) {
    dev.counters.count(Activity::Received);
    if let Err(reason) = accept(qps, dev, config, port, bytes, via, now) {
        dev.counters.drop_packet(reason);
    }
}

fn accept(
    qps: &mut QpTable,
    dev: &mut Device,
    config: &EngineConfig,
    index: u8,
    bytes: &[u8],
    via: Via,
    now: Instant,
) -> Result<(), DropReason> {
    let port = dev.ports.get_mut(usize::from(index)).ok_or(DropReason::NotOurLid)?;
    if port.ethernet.is_some() {
        return frame(qps, dev, index, bytes, via, now);
    }
    let parsed = Packet::parse(bytes);
    let Ok(packet) = &parsed else { return Err(DropReason::Malformed) };
    if via.has_crcs() {
        crc::check(bytes).map_err(|wrong| match wrong {
            crc::Wrong::Variant => DropReason::VariantCrc,
            crc::Wrong::Invariant => DropReason::InvariantCrc,
        })?;
    }
    let to_smi = packet.bth().dest_qpn == Qpn::SMI;
    if to_smi != (packet.lrh().vl == VirtualLane::MANAGEMENT) {
        return Err(DropReason::VirtualLane);
    }
    if to_smi {
        return management(qps, dev, config, index, bytes);
    }
    if matches!(port.state, PortState::Down | PortState::Init) {
        return Err(DropReason::PortState);
    }
    let arrived = Arrived::infiniband(packet);
    if packet.lrh().dlid.is_multicast() {
        let group = packet.grh().map(|grh| grh.dgid).filter(|g| g.is_multicast());
        return multicast(qps, dev, index, group.ok_or(DropReason::NotOurGid)?, &arrived, via.is_ours());
    }
    addressed(port, packet)?;
    deliver(qps, dev, index, &arrived, now)
}

/// Handles a frame received on an Ethernet port.
#[inline(never)]
fn frame(
    qps: &mut QpTable,
    dev: &mut Device,
    index: u8,
    bytes: &[u8],
    via: Via,
    now: Instant,
) -> Result<(), DropReason> {
    let port = dev.ports.get_mut(usize::from(index)).ok_or(DropReason::NotOurMac)?;
    let Some(ethernet) = &mut port.ethernet else { return Err(DropReason::NotOurMac) };
    let packet = match ethernet::sort(ethernet.mac, bytes)? {
        Incoming::Roce(packet) => packet,
        Incoming::Neighbour => {
            let gids = &port.gids;
            let ours = |gid| gids.has_rocev2(gid);
            if let Some(answer) =
                ethernet::handle_message(&mut ethernet.neighbours, ethernet.mac, ours, bytes)
            {
                port.answer(answer);
            }
            return Ok(());
        }
    };
    if via.has_crcs() && !packet.icrc_is_right() {
        return Err(DropReason::InvariantCrc);
    }
    if port.state != PortState::Active {
        return Err(DropReason::PortState);
    }
    // An Ethernet port has no subnet management.
    if packet.transport().bth.dest_qpn == Qpn::SMI {
        return Err(DropReason::NoQueuePair);
    }
    let arrived = Arrived::roce(&packet);
    if ethernet::is_group(packet.dgid()) {
        return multicast(qps, dev, index, packet.dgid(), &arrived, via.is_ours());
    }
    if !port.gids.has_rocev2(packet.dgid()) {
        return Err(DropReason::NotOurGid);
    }
    deliver(qps, dev, index, &arrived, now)
}

/// Delivers a packet addressed to this port to its queue pair.
#[inline(always)]
fn deliver(
    qps: &mut QpTable,
    dev: &mut Device,
    index: u8,
    packet: &Arrived<'_>,
    now: Instant,
) -> Result<(), DropReason> {
    let qp = qps.named(index, packet.bth().dest_qpn).ok_or(DropReason::NoQueuePair)?;
    match (qp.kind, packet.bth().opcode.service()) {
        (QpKind::Rc, Service::Rc) | (QpKind::Uc, Service::Uc) => connected(qp, dev, packet, now),
        (QpKind::XrcInitiator | QpKind::XrcTarget, Service::Xrc) => {
            connected(qp, dev, &packet.without_xrc(), now)
        }
        (QpKind::Ud | QpKind::Gsi, Service::Ud) => {
            ud::receive(qp, dev, packet);
            Ok(())
        }
        _ => Err(DropReason::Transport),
    }
}

/// Checks that the destination LID and GID are this port's (IBA 7.7.8, 8.3).
#[inline(always)]
fn addressed(port: &Port, packet: &Packet<'_>) -> Result<(), DropReason> {
    if !port.has_lid(packet.lrh().dlid) {
        return Err(DropReason::NotOurLid);
    }
    match packet.grh() {
        Some(grh) if !port.has_gid(grh.dgid) => Err(DropReason::NotOurGid),
        None if port.grh_required => Err(DropReason::NoGrh),
        _ => Ok(()),
    }
}

#[inline(never)]
fn multicast(
    qps: &mut QpTable,
    dev: &mut Device,
    index: u8,
    group: Gid,
    packet: &Arrived<'_>,
    ours: bool,
) -> Result<(), DropReason> {
    let source = packet.extended().deth().ok_or(DropReason::Transport)?.src_qpn;
    if packet.bth().dest_qpn != Qpn::MULTICAST {
        return Err(DropReason::NoQueuePair);
    }
    let mut n = 0;
    let mut heard = false;
    while let Some(slot) = dev.multicast.member(group, n) {
        n += 1;
        let Some(qp) = qps.at(slot).filter(|qp| qp.port == index) else { continue };
        heard = true;
        // A sender does not receive its own packets unless it requests them.
        if !(ours && qp.wire_qpn() == source && !qp.hears_itself) {
            ud::receive(qp, dev, packet);
        }
    }
    // A packet of our own to a group without members on this port is not an error.
    if !heard && !ours { Err(DropReason::NotAttached) } else { Ok(()) }
}

fn connected(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, now: Instant) -> Result<(), DropReason> {
    if !qp.receives_packets() {
        return Err(DropReason::QueuePairState);
    }
    let port = dev.ports.get_mut(usize::from(qp.port)).ok_or(DropReason::NotOurLid)?;
    if !qp.pkey(&port.pkeys).matches(packet.bth().pkey) {
        port.pkey_violations = port.pkey_violations.saturating_add(1);
        return Err(DropReason::PartitionKey);
    }
    // IBA 9.6.1.5: a packet of a connection comes from the connection's peer.
    let from_there = |av: &AddressVector| match (&port.ethernet, packet.route, av.grh) {
        (None, ..) => av.dlid == packet.slid,
        (Some(_), Some((sgid, _)), Some(route)) => route.dgid == sgid,
        _ => false,
    };
    let av = qp.rc.as_ref().map(|rc| &rc.av).or(qp.uc.as_ref().map(|uc| &uc.av));
    if !av.is_some_and(from_there) {
        return Err(DropReason::WrongSource);
    }
    if qp.uc.is_some() {
        return uc::responder::receive(qp, dev, packet);
    }
    let bth = packet.bth();
    let asks = bth.opcode.is_rc_request();
    if asks && qp.kind == QpKind::XrcInitiator || !asks && qp.kind == QpKind::XrcTarget {
        return Err(DropReason::Unsupported);
    }
    if asks {
        responder::request(qp, dev, packet, now);
        return Ok(());
    }
    match (bth.opcode, packet.extended().aeth()) {
        (Opcode::RcAcknowledge, Some(aeth)) => {
            requester::acknowledge(qp, dev, bth.psn, *aeth, now);
            Ok(())
        }
        (
            Opcode::RcReadResponseFirst
            | Opcode::RcReadResponseMiddle
            | Opcode::RcReadResponseLast
            | Opcode::RcReadResponseOnly
            | Opcode::RcAtomicAcknowledge,
            _,
        ) => {
            answer::take(qp, dev, packet, now);
            Ok(())
        }
        _ => Err(DropReason::Unsupported),
    }
}

/// Handles subnet management packets. The firmware's agent answers requests; everything else goes to queue
/// pair 0, if the host has one.
#[inline(never)]
fn management(
    qps: &mut QpTable,
    dev: &mut Device,
    config: &EngineConfig,
    index: u8,
    bytes: &[u8],
) -> Result<(), DropReason> {
    // Parsed again: keeping the headers of these few packets would force all packets' headers to be built in
    // memory.
    let packet = &Packet::parse(bytes).map_err(|_| DropReason::Malformed)?;
    if packet.bth().opcode != Opcode::UdSendOnly {
        return Err(DropReason::Transport);
    }
    if sma::handle(dev, config, index, packet)? == sma::Handled::NotForAgent {
        let qp = qps.named(index, Qpn::SMI).ok_or(DropReason::NoQueuePair)?;
        ud::receive(qp, dev, &Arrived::infiniband(packet));
    }
    Ok(())
}
