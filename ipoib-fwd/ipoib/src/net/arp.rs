//! ARP on Ethernet (RFC 826): hardware type 1, 6-byte addresses. ARP on InfiniBand is in [`crate::link`].

use std::net::Ipv4Addr;

use super::be16;
use super::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, EthernetHeader, MacAddress};
use crate::drop_reason::DropReason;

/// Bytes of an ARP packet on Ethernet.
pub const ETHERNET_ARP_LEN: usize = 28;
/// Bytes of a frame with an ARP packet, padded to Ethernet's minimum.
pub const ETHERNET_ARP_FRAME_LEN: usize = 60;

/// The operation of an ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpOperation {
    /// The sender queries the target's address.
    Request,
    /// The sender reports its own address.
    Reply,
}

/// An ARP packet of IPv4 over Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetArp {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Sender's Ethernet address.
    pub sender_mac: MacAddress,
    /// Sender's IPv4 address; unspecified in a probe (RFC 5227 2.1.1).
    pub sender_ip: Ipv4Addr,
    /// Target's Ethernet address; zero in most requests.
    pub target_mac: MacAddress,
    /// Target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl EthernetArp {
    /// Parses a frame, Ethernet header included. Bytes behind the packet are padding.
    pub fn parse(frame: &[u8]) -> Result<Self, DropReason> {
        if EthernetHeader::parse(frame)?.ethertype != ETHERTYPE_ARP {
            return Err(DropReason::BadArp);
        }
        let arp: &[u8; ETHERNET_ARP_LEN] = frame
            .get(ETHERNET_HEADER_LEN..)
            .and_then(|rest| rest.first_chunk())
            .ok_or(DropReason::Truncated)?;
        let mac = |at: usize| {
            arp.get(at..at + 6).and_then(|b| b.try_into().ok()).map_or(MacAddress::ZERO, MacAddress)
        };
        let ip = |at: usize| {
            arp.get(at..at + 4)
                .and_then(|b| b.first_chunk::<4>())
                .map_or(Ipv4Addr::UNSPECIFIED, |b| Ipv4Addr::from(*b))
        };
        if be16(arp, 0) != Some(1) || be16(arp, 2) != Some(ETHERTYPE_IPV4) || be16(arp, 4) != Some(0x0604) {
            return Err(DropReason::BadArp);
        }
        let operation = match be16(arp, 6) {
            Some(1) => ArpOperation::Request,
            Some(2) => ArpOperation::Reply,
            _ => return Err(DropReason::BadArp),
        };
        Ok(Self { operation, sender_mac: mac(8), sender_ip: ip(14), target_mac: mac(18), target_ip: ip(24) })
    }

    /// True if the sender expects a reply: an announcement of its own address has none.
    #[must_use]
    pub fn is_query(&self) -> bool {
        self.operation == ArpOperation::Request && self.sender_ip != self.target_ip
    }

    /// Builds a frame from the sender to `destination`.
    #[must_use]
    pub fn to_frame(&self, destination: MacAddress) -> [u8; ETHERNET_ARP_FRAME_LEN] {
        let mut f = [0; ETHERNET_ARP_FRAME_LEN];
        let ethernet = EthernetHeader { destination, source: self.sender_mac, ethertype: ETHERTYPE_ARP };
        f[..14].copy_from_slice(&ethernet.to_bytes());
        let operation = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        f[14..22].copy_from_slice(&[0, 1, 0x08, 0x00, 6, 4, 0, operation]);
        f[22..28].copy_from_slice(&self.sender_mac.0);
        f[28..32].copy_from_slice(&self.sender_ip.octets());
        f[32..38].copy_from_slice(&self.target_mac.0);
        f[38..42].copy_from_slice(&self.target_ip.octets());
        f
    }
}
