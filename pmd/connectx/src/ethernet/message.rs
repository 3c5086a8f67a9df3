//! ARP (RFC 826) and neighbor discovery (RFC 4861): requests and replies as frames.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, Icmpv6Header, Icmpv6Type, IpNumber, Ipv6Header, NetSlice, SlicedPacket,
    TransportSlice,
};
use ib_wire::Gid;

use super::neighbour::{Neighbours, Question};
use super::{EthernetHeader, MacAddress, multicast_mac};

const BROADCAST: MacAddress = [0xff; 6];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Hop limit that proves that no router has forwarded the message (RFC 4861, 7.1).
const FROM_THE_LINK: u8 = 255;
/// Source and target link-layer address options.
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;

/// Handles an ARP or ICMPv6 frame. Returns the reply to a request for one of `ours`.
pub(crate) fn handle(
    neighbours: &mut Neighbours,
    mac: MacAddress,
    ours: impl Fn(Gid) -> bool,
    frame: &[u8],
) -> Option<Box<[u8]>> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    match (&sliced.net, &sliced.transport) {
        (Some(NetSlice::Arp(arp)), _) => {
            handle_arp(neighbours, mac, ours, &arp.to_packet().try_eth_ipv4().ok()?)
        }
        (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(message))) => {
            let (source, destination) = (ip.header().source_addr(), ip.header().destination_addr());
            let valid = ip.header().hop_limit() == FROM_THE_LINK
                && message.code_u8() == 0
                && message.is_checksum_valid(source.octets(), destination.octets());
            if !valid {
                return None;
            }
            handle_discovery(neighbours, mac, ours, source, &message.icmp_type(), message.payload())
        }
        _ => None,
    }
}

const fn mapped(address: [u8; 4]) -> Gid {
    gidcache::gid_of_address(std::net::IpAddr::V4(Ipv4Addr::from_octets(address)))
}

fn handle_arp(
    neighbours: &mut Neighbours,
    mac: MacAddress,
    ours: impl Fn(Gid) -> bool,
    arp: &ArpEthIpv4Packet,
) -> Option<Box<[u8]>> {
    let to_us = ours(mapped(arp.target_ipv4));
    // Sender 0.0.0.0 is a probe for an address conflict (RFC 5227).
    if arp.sender_ipv4 != [0; 4] && !ours(mapped(arp.sender_ipv4)) {
        neighbours.handle_address(mapped(arp.sender_ipv4), arp.sender_mac, to_us);
    }
    if !to_us || arp.operation != ArpOperation::REQUEST {
        return None;
    }
    let answer = ArpEthIpv4Packet {
        operation: ArpOperation::REPLY,
        sender_mac: mac,
        sender_ipv4: arp.target_ipv4,
        target_mac: arp.sender_mac,
        target_ipv4: arp.sender_ipv4,
    };
    Some(arp_frame(arp.sender_mac, &answer))
}

fn arp_frame(to: MacAddress, arp: &ArpEthIpv4Packet) -> Box<[u8]> {
    let header = EthernetHeader { destination: to, source: arp.sender_mac, ethertype: EthernetHeader::ARP };
    [&header.to_bytes()[..], &arp.to_bytes()].concat().into()
}

fn handle_discovery(
    neighbours: &mut Neighbours,
    mac: MacAddress,
    ours: impl Fn(Gid) -> bool,
    source: Ipv6Addr,
    kind: &Icmpv6Type,
    payload: &[u8],
) -> Option<Box<[u8]>> {
    let (target, options) = payload.split_first_chunk::<16>()?;
    let target = Gid(*target);
    match kind {
        Icmpv6Type::NeighborSolicitation if ours(target) => {
            if !source.is_unspecified()
                && let Some(theirs) = link_layer_option(options, SOURCE_OPTION)
            {
                neighbours.handle_address(Gid(source.octets()), theirs, true);
                return Some(advertisement(mac, target, theirs, source));
            }
            // A host probes the address for its own use: notify all hosts that it is taken (RFC 4862, 5.4).
            Some(advertisement(mac, target, multicast_mac(Gid(ALL_NODES.octets())), ALL_NODES))
        }
        Icmpv6Type::NeighborAdvertisement(_) if !ours(target) => {
            let theirs = link_layer_option(options, TARGET_OPTION)?;
            neighbours.handle_address(target, theirs, false);
            None
        }
        _ => None,
    }
}

/// The MAC address in an option of this kind. Layout: kind, length in units of eight bytes, address.
fn link_layer_option(mut options: &[u8], kind: u8) -> Option<MacAddress> {
    while let Some((&[this, units], _)) = options.split_first_chunk::<2>() {
        let (option, rest) = options.split_at_checked(usize::from(units).max(1) * 8)?;
        if this == kind && units == 1 {
            return option.get(2..).and_then(|b| b.try_into().ok());
        }
        options = rest;
    }
    None
}

fn advertisement(mac: MacAddress, target: Gid, to: MacAddress, destination: Ipv6Addr) -> Box<[u8]> {
    let solicited = destination != ALL_NODES;
    let kind = Icmpv6Type::NeighborAdvertisement(NeighborAdvertisementHeader {
        router: false,
        solicited,
        r#override: true,
    });
    discovery_frame((mac, target), (to, destination), kind, target, TARGET_OPTION)
}

/// A neighbor discovery message from `from` to `to` about `target`, with our MAC address in an option.
fn discovery_frame(
    from: (MacAddress, Gid),
    to: (MacAddress, Ipv6Addr),
    kind: Icmpv6Type,
    target: Gid,
    option: u8,
) -> Box<[u8]> {
    let body = [&target.0[..], &[option, 1], &from.0].concat();
    let (source, destination) = (from.1.0, to.1.octets());
    let header = EthernetHeader { destination: to.0, source: from.0, ethertype: EthernetHeader::IPV6 };
    // The checksum cannot overflow with a body of 24 bytes.
    let message = Icmpv6Header::with_checksum(kind, source, destination, &body)
        .unwrap_or_else(|_| Icmpv6Header::new(kind));
    let ip = Ipv6Header {
        payload_length: (message.header_len() + body.len()) as u16,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit: FROM_THE_LINK,
        source,
        destination,
        ..Ipv6Header::default()
    };
    [&header.to_bytes()[..], &ip.to_bytes(), &message.to_bytes(), &body].concat().into()
}

/// Builds the frame of a request.
pub(crate) fn question(mac: MacAddress, question: &Question) -> Box<[u8]> {
    let addresses = (gidcache::ipv4_of_gid(question.ours), gidcache::ipv4_of_gid(question.target));
    if let (Some(ours), Some(target)) = addresses {
        let arp = ArpEthIpv4Packet {
            operation: ArpOperation::REQUEST,
            sender_mac: mac,
            sender_ipv4: ours.octets(),
            target_mac: [0; 6],
            target_ipv4: target.octets(),
        };
        return arp_frame(question.mac.unwrap_or(BROADCAST), &arp);
    }
    // The solicited-node group of the target (RFC 4291, 2.7.1).
    let [.., a, b, c] = question.target.0;
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    let to = match question.mac {
        Some(mac) => (mac, Ipv6Addr::from(question.target.0)),
        None => (multicast_mac(Gid(group.octets())), group),
    };
    discovery_frame(
        (mac, question.ours),
        to,
        Icmpv6Type::NeighborSolicitation,
        question.target,
        SOURCE_OPTION,
    )
}
