//! Validation of ARP packets, and their translation between 6-byte and 20-byte addresses. An Ethernet host
//! sees InfiniBand hosts at the gateway's MAC address. An InfiniBand host sees Ethernet hosts at the
//! link-layer address of one of the gateway's workers.

use std::net::{IpAddr, Ipv4Addr};

use crate::forward::Settings;
use ib_wire::ipoib::{Arp as InfiniBandArp, ArpOperation as InfiniBandOperation};
use ipoib::drop_reason::DropReason;
use ipoib::link::HardwareAddress;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::MacAddress;
use ipoib::net::ipv4;

/// The meaning of an ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpMeaning {
    /// A request: the sender, which may be learned, queries for a host.
    Request {
        /// The queried host.
        target: Ipv4Addr,
    },
    /// A probe: a host without an address checks whether one is taken (RFC 5227 2.1.1). Answer if a host of
    /// the other side or the gateway has it, and learn nothing.
    Probe {
        /// The address.
        target: Ipv4Addr,
    },
    /// A reply: the sender may be learned.
    Reply,
    /// An announcement: the sender, which may be learned, announces its address to all (RFC 5227 3).
    Announcement,
}

impl ArpMeaning {
    /// True if the packet queries for such a host.
    pub fn asks_for(self, is_it: impl FnOnce(Ipv4Addr) -> bool) -> bool {
        match self {
            Self::Request { target } | Self::Probe { target } => is_it(target),
            Self::Reply | Self::Announcement => false,
        }
    }
}

/// The addresses and networks that a segment presents to its hosts.
#[derive(Clone, Debug)]
pub struct Own {
    /// The gateway's addresses, the segment's subnets and routes, as verdicts use them.
    pub settings: Settings<()>,
    /// Number of workers that represent Ethernet hosts on the InfiniBand side.
    pub workers: u8,
}

impl Own {
    /// The gateway's Ethernet address.
    #[must_use]
    pub const fn mac(&self) -> MacAddress {
        self.settings.mac
    }

    /// The gateway's own IP address, if it has one.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.settings.address.map(|own| own.address())
    }

    /// True for the gateway's own IP address.
    #[must_use]
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.address().map(IpAddr::V4) == Some(ip)
    }

    /// The sender address of the gateway's queries: its own address, or none, so that no host learns a wrong
    /// one (RFC 5227 2.1.1).
    #[must_use]
    pub fn asker(&self) -> Ipv4Addr {
        self.address().unwrap_or(Ipv4Addr::UNSPECIFIED)
    }
}

/// Validates an ARP packet of the Ethernet side. `frame_source` is the source address of its frame.
pub fn check_ethernet(
    arp: &EthernetArp,
    frame_source: MacAddress,
    own: &Own,
) -> Result<ArpMeaning, DropReason> {
    if arp.sender_mac == own.mac() || frame_source == own.mac() {
        return Err(DropReason::LoopSelf);
    }
    if !arp.sender_mac.is_unicast() {
        return Err(DropReason::HostileArp);
    }
    meaning(arp.operation, arp.sender_ip, arp.target_ip, own)
}

/// Validates an ARP packet of the InfiniBand side. `addresses` are the workers' link-layer addresses.
pub fn check_infiniband(
    arp: &InfiniBandArp,
    addresses: &[HardwareAddress],
    own: &Own,
) -> Result<ArpMeaning, DropReason> {
    if addresses.iter().any(|own| own.is_same_as(arp.sender)) {
        return Err(DropReason::LoopSelf);
    }
    // Queue pairs 0 and 1 are for management only.
    if arp.sender.is_multicast() || arp.sender.qpn.get() <= 1 || arp.sender.gid.is_multicast() {
        return Err(DropReason::HostileArp);
    }
    meaning(operation(arp.operation).ok_or(DropReason::BadArp)?, arp.sender_ip, arp.target_ip, own)
}

const fn operation(operation: InfiniBandOperation) -> Option<ArpOperation> {
    match operation {
        InfiniBandOperation::Request => Some(ArpOperation::Request),
        InfiniBandOperation::Reply => Some(ArpOperation::Reply),
        InfiniBandOperation::Other(_) => None,
    }
}

fn meaning(
    operation: ArpOperation,
    sender: Ipv4Addr,
    target: Ipv4Addr,
    own: &Own,
) -> Result<ArpMeaning, DropReason> {
    let is_host = |ip: Ipv4Addr| ipv4::is_unicast(ip) && own.settings.is_on_link(ip);
    let off_subnet = |ip: Ipv4Addr| own.settings.is_off_subnet(ip);
    // The answer to a probe names no target: either a probe of a host that we forwarded, or our own
    // ([`request_ethernet`]).
    let answers_probe = matches!(operation, ArpOperation::Reply) && target.is_unspecified();
    let names_target = is_host(target) || answers_probe;
    let is_probe = matches!(operation, ArpOperation::Request) && sender.is_unspecified();
    let names_sender = is_probe || is_host(sender) && !own.owns(sender.into());
    if !names_target || !names_sender {
        // Hosts of another subnet on the same wire make no false claim.
        let is_harmless = (names_target || off_subnet(target)) && (names_sender || off_subnet(sender));
        return Err(if is_harmless { DropReason::ArpOffSubnet } else { DropReason::HostileArp });
    }
    match operation {
        ArpOperation::Request if is_probe => return Ok(ArpMeaning::Probe { target }),
        // Some hosts announce by a reply to their own address.
        _ if sender == target => return Ok(ArpMeaning::Announcement),
        ArpOperation::Request | ArpOperation::Reply => {}
    }
    Ok(match operation {
        ArpOperation::Request => ArpMeaning::Request { target },
        ArpOperation::Reply => ArpMeaning::Reply,
    })
}

/// Builds the reply to a request of the Ethernet side, in the name of a host of the other side or of the
/// gateway itself. Send it to the sender of the request.
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

/// Builds an ARP request to the Ethernet side for `ip`, in the name of a host of the other side, of the
/// gateway, or with no sender address.
pub(super) const fn request_ethernet(ip: Ipv4Addr, name: Ipv4Addr, own: MacAddress) -> EthernetArp {
    EthernetArp {
        operation: ArpOperation::Request,
        sender_mac: own,
        sender_ip: name,
        target_mac: MacAddress::ZERO,
        target_ip: ip,
    }
}

/// Builds a gratuitous ARP request: `ip` is behind the gateway. Send it to all stations.
pub(super) const fn announcement_ethernet(ip: Ipv4Addr, own: MacAddress) -> EthernetArp {
    EthernetArp {
        operation: ArpOperation::Request,
        sender_mac: own,
        sender_ip: ip,
        target_mac: MacAddress::ZERO,
        target_ip: ip,
    }
}
