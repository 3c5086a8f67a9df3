//! What the control lcore makes of ARP packets: validation, learning, and translation between 6-byte and 20-byte
//! addresses. An Ethernet host sees InfiniBand hosts at the gateway's MAC address; an InfiniBand host sees Ethernet
//! hosts at the link-layer address of one of the gateway's workers.

use std::net::Ipv4Addr;

use super::tables::Settings;
use ib_wire::ipoib::{Arp as InfiniBandArp, ArpOperation as InfiniBandOperation};
use ipoib::drop_reason::DropReason;
use ipoib::link::HardwareAddress;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::MacAddress;
use ipoib::net::ipv4;

/// What an ARP packet is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpMeaning {
    /// The sender, to be learnt, asks for a host.
    Request {
        /// The host asked for.
        target: Ipv4Addr,
    },
    /// Somebody without an address asks whether one is taken (RFC 5227 2.1.1): answer if a host of the other side or
    /// the gateway has it, learn nothing.
    Probe {
        /// The address.
        target: Ipv4Addr,
    },
    /// The sender, to be learnt, answers.
    Reply,
    /// The sender, to be learnt, tells everybody its address (RFC 5227 3).
    Announcement,
}

/// Validates an ARP packet of the Ethernet side. `frame_source` is the source address of its frame.
pub fn check_ethernet<D>(
    arp: &EthernetArp,
    frame_source: MacAddress,
    settings: &Settings<D>,
) -> Result<ArpMeaning, DropReason> {
    if arp.sender_mac == settings.mac || frame_source == settings.mac {
        return Err(DropReason::LoopSelf);
    }
    if !arp.sender_mac.is_unicast() {
        return Err(DropReason::HostileArp);
    }
    meaning(arp.operation, arp.sender_ip, arp.target_ip, settings)
}

/// Validates an ARP packet of the InfiniBand side. `own` are the workers' link-layer addresses.
pub fn check_infiniband<D>(
    arp: &InfiniBandArp,
    own: &[HardwareAddress],
    settings: &Settings<D>,
) -> Result<ArpMeaning, DropReason> {
    if own.iter().any(|own| own.is_same_as(arp.sender)) {
        return Err(DropReason::LoopSelf);
    }
    // Queue pairs 0 and 1 are for management only.
    if arp.sender.is_multicast() || arp.sender.qpn.get() <= 1 || arp.sender.gid.is_multicast() {
        return Err(DropReason::HostileArp);
    }
    meaning(operation(arp.operation).ok_or(DropReason::BadArp)?, arp.sender_ip, arp.target_ip, settings)
}

const fn operation(operation: InfiniBandOperation) -> Option<ArpOperation> {
    match operation {
        InfiniBandOperation::Request => Some(ArpOperation::Request),
        InfiniBandOperation::Reply => Some(ArpOperation::Reply),
        InfiniBandOperation::Other(_) => None,
    }
}

fn meaning<D>(
    operation: ArpOperation,
    sender: Ipv4Addr,
    target: Ipv4Addr,
    settings: &Settings<D>,
) -> Result<ArpMeaning, DropReason> {
    let is_host = |ip: Ipv4Addr| ipv4::is_unicast(ip) && settings.is_on_link(ip);
    // What answers our own probe names no target if we have no address to ask with ([`ask_ethernet`]).
    let answers_probe = matches!(operation, ArpOperation::Reply) && target.is_unspecified();
    let names_target = is_host(target) || (answers_probe && settings.address.is_none());
    if !names_target {
        return Err(DropReason::HostileArp);
    }
    match operation {
        ArpOperation::Request if sender.is_unspecified() => return Ok(ArpMeaning::Probe { target }),
        // Some hosts announce by a reply to their own address.
        _ if !is_host(sender) || settings.address.is_some_and(|own| own.address() == sender) => {
            return Err(DropReason::HostileArp);
        }
        _ if sender == target => return Ok(ArpMeaning::Announcement),
        ArpOperation::Request | ArpOperation::Reply => {}
    }
    Ok(match operation {
        ArpOperation::Request => ArpMeaning::Request { target },
        ArpOperation::Reply => ArpMeaning::Reply,
    })
}

/// The reply to a request of the Ethernet side, in the name of a host of the other side or the gateway itself. Send it
/// to the request's sender.
#[must_use]
pub const fn answer_ethernet(request: &EthernetArp, own: MacAddress) -> EthernetArp {
    EthernetArp {
        operation: ArpOperation::Reply,
        sender_mac: own,
        sender_ip: request.target_ip,
        target_mac: request.sender_mac,
        target_ip: request.sender_ip,
    }
}

/// An ARP request of the gateway to the Ethernet side: who has `ip`? Without an own address it asks as a probe does,
/// which teaches nobody a wrong address.
#[must_use]
pub fn ask_ethernet<D>(ip: Ipv4Addr, settings: &Settings<D>) -> EthernetArp {
    EthernetArp {
        operation: ArpOperation::Request,
        sender_mac: settings.mac,
        sender_ip: settings.address.map_or(Ipv4Addr::UNSPECIFIED, |own| own.address()),
        target_mac: MacAddress::ZERO,
        target_ip: ip,
    }
}
