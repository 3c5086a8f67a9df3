//! The IP header of a RoCEv2 packet.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Gid;
use crate::packet::ParseError;

/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;
/// Protocol number of UDP.
const UDP: u8 = 17;
const MORE_FRAGMENTS: u16 = 0x2000;
const DONT_FRAGMENT: u16 = 0x4000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The fields of an IP header, except lengths and checksums, which are computed from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RoceNetwork {
    /// IPv4 (RFC 791).
    V4 {
        /// Source.
        source: Ipv4Addr,
        /// Destination.
        destination: Ipv4Addr,
        /// Differentiated services and ECN. Not covered by the ICRC.
        traffic_class: u8,
        /// Time to live. Not covered by the ICRC.
        hop_limit: u8,
        /// Identification; any number if fragmentation is forbidden. Covered by the ICRC.
        identification: u16,
        /// Routers must not fragment the packet. Covered by the ICRC.
        dont_fragment: bool,
    },
    /// IPv6 (RFC 8200).
    V6 {
        /// Source.
        source: Ipv6Addr,
        /// Destination.
        destination: Ipv6Addr,
        /// Differentiated services and ECN. Not covered by the ICRC.
        traffic_class: u8,
        /// Flow label, 20 bits; higher bits are dropped on writing. Not covered by the ICRC.
        flow_label: u32,
        /// Hop limit. Not covered by the ICRC.
        hop_limit: u8,
    },
}

impl RoceNetwork {
    /// The header of packets from one GID to another: IPv4 if both GIDs stand for IPv4 addresses, IPv6
    /// otherwise (IBA annex A17).
    #[must_use]
    pub const fn between(sgid: Gid, dgid: Gid, traffic_class: u8, flow_label: u32, hop_limit: u8) -> Self {
        let (source, destination) = (Ipv6Addr::from_octets(sgid.0), Ipv6Addr::from_octets(dgid.0));
        if let (Some(source), Some(destination)) = (source.to_ipv4_mapped(), destination.to_ipv4_mapped()) {
            return Self::V4 {
                source,
                destination,
                traffic_class,
                hop_limit,
                identification: 0,
                dont_fragment: true,
            };
        }
        Self::V6 { source, destination, traffic_class, flow_label: flow_label & 0xf_ffff, hop_limit }
    }

    /// GID of the sender.
    #[must_use]
    pub const fn sgid(&self) -> Gid {
        match self {
            Self::V4 { source, .. } => Gid(source.to_ipv6_mapped().octets()),
            Self::V6 { source, .. } => Gid(source.octets()),
        }
    }

    /// GID of the receiver.
    #[must_use]
    pub const fn dgid(&self) -> Gid {
        match self {
            Self::V4 { destination, .. } => Gid(destination.to_ipv6_mapped().octets()),
            Self::V6 { destination, .. } => Gid(destination.octets()),
        }
    }

    /// Bytes of the header.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V4 { .. } => IPV4_LEN,
            Self::V6 { .. } => IPV6_LEN,
        }
    }

    /// Reads the header from the 40 bytes before a datagram that a RoCEv2 port has received. They are an IPv6
    /// header, or an IPv4 header in the last 20 (IBA annex A17). The bytes before an IPv4 header are
    /// undefined, so that the header checksum decides whether it is IPv4. Returns `None` if it is neither.
    #[must_use]
    pub fn of_area(area: &[u8; 40]) -> Option<Self> {
        let v4 = area.last_chunk().and_then(|header| Self::parse_v4(header).ok());
        let v6 = (area[0] >> 4 == 6).then(|| Self::parse_v6(area).ok()).flatten();
        v4.or(v6).map(|(network, _)| network)
    }

    /// Traffic class, flow label (0 with IPv4) and hop limit.
    #[must_use]
    pub const fn hints(&self) -> (u8, u32, u8) {
        match *self {
            Self::V4 { traffic_class, hop_limit, .. } => (traffic_class, 0, hop_limit),
            Self::V6 { traffic_class, flow_label, hop_limit, .. } => (traffic_class, flow_label, hop_limit),
        }
    }

    /// Reads the header of a packet that carries UDP, and the length of the packet including the header.
    pub(super) fn parse(ip: &[u8]) -> Result<(Self, usize), ParseError> {
        let too_short = ParseError::TooShort(ip.len());
        match ip.first().ok_or(too_short)? >> 4 {
            4 => Self::parse_v4(ip.first_chunk().ok_or(too_short)?),
            6 => Self::parse_v6(ip.first_chunk().ok_or(too_short)?),
            _ => Err(ParseError::NotRoce("IP version")),
        }
    }

    fn parse_v4(h: &[u8; IPV4_LEN]) -> Result<(Self, usize), ParseError> {
        if h[0] != 0x45 {
            return Err(ParseError::NotRoce("IPv4 options"));
        }
        if h[9] != UDP {
            return Err(ParseError::OtherTraffic);
        }
        let fragment = u16::from_be_bytes([h[6], h[7]]);
        if fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
            return Err(ParseError::NotRoce("IPv4 fragment"));
        }
        if checksum(h) != 0 {
            return Err(ParseError::NotRoce("IPv4 header checksum"));
        }
        let network = Self::V4 {
            source: Ipv4Addr::new(h[12], h[13], h[14], h[15]),
            destination: Ipv4Addr::new(h[16], h[17], h[18], h[19]),
            traffic_class: h[1],
            hop_limit: h[8],
            identification: u16::from_be_bytes([h[4], h[5]]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
        };
        Ok((network, usize::from(u16::from_be_bytes([h[2], h[3]]))))
    }

    fn parse_v6(h: &[u8; IPV6_LEN]) -> Result<(Self, usize), ParseError> {
        if h[6] != UDP {
            return Err(ParseError::OtherTraffic);
        }
        let first = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
        let (mut source, mut destination) = ([0; 16], [0; 16]);
        source.copy_from_slice(&h[8..24]);
        destination.copy_from_slice(&h[24..40]);
        let network = Self::V6 {
            source: source.into(),
            destination: destination.into(),
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: h[7],
        };
        Ok((network, IPV6_LEN + usize::from(u16::from_be_bytes([h[4], h[5]]))))
    }

    /// Writes the header of a packet of `total` bytes to the front of `out`. Returns true if it fits.
    pub(super) fn write(&self, total: usize, out: &mut [u8]) -> bool {
        match *self {
            Self::V4 { source, destination, traffic_class, hop_limit, identification, dont_fragment } => {
                let Some(h) = out.first_chunk_mut::<IPV4_LEN>() else { return false };
                let fragment = if dont_fragment { DONT_FRAGMENT } else { 0 };
                h[0] = 0x45;
                h[1] = traffic_class;
                h[2..4].copy_from_slice(&(total as u16).to_be_bytes());
                h[4..6].copy_from_slice(&identification.to_be_bytes());
                h[6..8].copy_from_slice(&fragment.to_be_bytes());
                h[8] = hop_limit;
                h[9] = UDP;
                h[10..12].fill(0);
                h[12..16].copy_from_slice(&source.octets());
                h[16..20].copy_from_slice(&destination.octets());
                let sum = checksum(h);
                h[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            Self::V6 { source, destination, traffic_class, flow_label, hop_limit } => {
                let Some(h) = out.first_chunk_mut::<IPV6_LEN>() else { return false };
                let first = 6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0xf_ffff;
                h[..4].copy_from_slice(&first.to_be_bytes());
                h[4..6].copy_from_slice(&((total - IPV6_LEN) as u16).to_be_bytes());
                h[6] = UDP;
                h[7] = hop_limit;
                h[8..24].copy_from_slice(&source.octets());
                h[24..40].copy_from_slice(&destination.octets());
            }
        }
        true
    }
}

/// The Internet checksum (RFC 1071); 0 over a header with a correct checksum.
fn checksum(header: &[u8; IPV4_LEN]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
