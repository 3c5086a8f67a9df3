//! The Ethernet side of a port, in addition to the transports. It has the port's MAC address, the peers' MAC
//! addresses (resolved by ARP and neighbor discovery), and classifies incoming frames. Destinations are on
//! the link: routers and VLANs are not supported.

mod message;
mod neighbour;
mod parked;
#[cfg(test)]
mod tests;

use ib_wire::packet::{ParseError, RoceHeaders, RoceNetwork, RocePacket};
use ib_wire::{Gid, Guid, Mtu};

pub(crate) use message::{handle as handle_message, question as question_frame};
pub(crate) use neighbour::{Neighbours, Resolution};
pub(crate) use parked::{Parked, ParkedDatagram};

use super::counters::DropReason;

/// A MAC address.
pub type MacAddress = [u8; 6];

/// The header of an Ethernet frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EthernetHeader {
    pub(crate) destination: MacAddress,
    pub(crate) source: MacAddress,
    pub(crate) ethertype: u16,
}

impl EthernetHeader {
    pub(crate) const LEN: usize = 14;
    pub(crate) const IPV4: u16 = 0x0800;
    pub(crate) const ARP: u16 = 0x0806;
    pub(crate) const IPV6: u16 = 0x86dd;

    pub(crate) const fn to_bytes(self) -> [u8; Self::LEN] {
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.destination, self.source);
        let [m, n] = self.ethertype.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n]
    }

    /// Creates the header for a network header.
    pub(crate) const fn new(destination: MacAddress, source: MacAddress, network: &RoceNetwork) -> Self {
        let ethertype = match network {
            RoceNetwork::V4 { .. } => Self::IPV4,
            RoceNetwork::V6 { .. } => Self::IPV6,
        };
        Self { destination, source, ethertype }
    }

    fn split(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (&[a, b, c, d, e, f, g, h, i, j, k, l, m, n], rest) =
            frame.split_first_chunk::<{ Self::LEN }>()?;
        let header = Self {
            destination: [a, b, c, d, e, f],
            source: [g, h, i, j, k, l],
            ethertype: u16::from_be_bytes([m, n]),
        };
        Some((header, rest))
    }
}

/// The Ethernet side of a port.
#[derive(Debug)]
pub(crate) struct Ethernet {
    pub(crate) mac: MacAddress,
    pub(crate) neighbours: Neighbours,
    pub(crate) parked: Parked,
}

impl Ethernet {
    /// Creates the Ethernet side of a port whose GUID contains its MAC address.
    pub(crate) fn new(guid: Guid) -> Self {
        Self { mac: mac_of_guid(guid), neighbours: Neighbours::default(), parked: Parked::default() }
    }
}

/// The GUID of a port with this MAC address: the modified EUI-64 of its link-local GID.
#[must_use]
pub const fn guid_of_mac(mac: MacAddress) -> Guid {
    gidcache::link_local_gid(mac).id()
}

const fn mac_of_guid(guid: Guid) -> MacAddress {
    let [a, b, c, _, _, d, e, f] = guid.0.to_be_bytes();
    [a ^ 2, b, c, d, e, f]
}

/// The largest RoCE MTU of an interface that carries IP packets of at most `ip_mtu` bytes, after headers and
/// ICRC. `None` if not even the smallest MTU fits.
#[must_use]
pub fn roce_mtu(ip_mtu: usize) -> Option<Mtu> {
    let room = ip_mtu.checked_sub(RoceHeaders::MAX_LEN + ib_wire::crc::ICRC_LEN)?;
    (1..=5).rev().filter_map(Mtu::from_code).find(|mtu| mtu.bytes() <= room)
}

/// True for a multicast GID: IPv6 multicast, or IPv4 multicast mapped to IPv6.
pub(crate) fn is_group(gid: Gid) -> bool {
    gid.is_multicast() || gidcache::ipv4_of_gid(gid).is_some_and(|address| address.is_multicast())
}

/// The MAC address of a multicast group (RFC 1112, RFC 2464).
pub(crate) fn multicast_mac(group: Gid) -> MacAddress {
    let [.., a, b, c, d] = group.0;
    match gidcache::ipv4_of_gid(group) {
        Some(_) => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
        None => [0x33, 0x33, a, b, c, d],
    }
}

/// Kind of a received frame.
#[derive(Debug)]
pub(crate) enum Incoming<'a> {
    /// A RoCEv2 packet.
    Roce(RocePacket<'a>),
    /// ARP, or ICMPv6 that may be neighbor discovery.
    Neighbour,
}

/// Classifies a frame received by the port with this MAC address.
pub(crate) fn sort(mac: MacAddress, frame: &[u8]) -> Result<Incoming<'_>, DropReason> {
    let (header, rest) = EthernetHeader::split(frame).ok_or(DropReason::Malformed)?;
    let group = header.destination[0] & 1 == 1;
    if !group && header.destination != mac {
        return Err(DropReason::NotOurMac);
    }
    match header.ethertype {
        EthernetHeader::ARP => return Ok(Incoming::Neighbour),
        // Next header 58 is ICMPv6.
        EthernetHeader::IPV6 if rest.get(6) == Some(&58) => return Ok(Incoming::Neighbour),
        EthernetHeader::IPV4 | EthernetHeader::IPV6 => {}
        _ => return Err(DropReason::OtherTraffic),
    }
    let version = if header.ethertype == EthernetHeader::IPV4 { 4 } else { 6 };
    if rest.first().is_some_and(|b| b >> 4 != version) {
        return Err(DropReason::Malformed);
    }
    match RocePacket::parse(rest) {
        Ok(packet) => Ok(Incoming::Roce(packet)),
        Err(ParseError::OtherTraffic) => Err(DropReason::OtherTraffic),
        Err(_) => Err(DropReason::Malformed),
    }
}
