//! IPv4 headers (RFC 791).

use std::net::Ipv4Addr;

use hca::Checksum;

use super::checksum;
use crate::drop_reason::DropReason;

/// Bytes of a header without options.
pub const IPV4_HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const IPV4_HEADER_MAX: usize = 60;
/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;

/// Flag bit: do not fragment.
const DF: u16 = 0x4000;
/// Flag bit: more fragments follow.
const MF: u16 = 0x2000;

/// A checked header at the front of an IPv4 packet, whose payload may be elsewhere in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4View<'p> {
    header: &'p [u8],
    total_len: u16,
    fragment: u16,
    source: Ipv4Addr,
    destination: Ipv4Addr,
}

impl<'p> Ipv4View<'p> {
    /// Checks the header at the front of `head`, which holds the first bytes of a packet of `packet_len`
    /// bytes.
    /// `head` must hold the whole header; `packet_len` may exceed the packet's own length (a frame's
    /// padding).
    #[inline]
    pub fn parse(head: &'p [u8], packet_len: usize) -> Result<Self, DropReason> {
        Self::parse_received(head, packet_len, Checksum::Unknown)
    }

    /// [`Ipv4View::parse`] for a packet whose checksum a device may have verified.
    #[inline(always)]
    pub fn parse_received(head: &'p [u8], packet_len: usize, checksum: Checksum) -> Result<Self, DropReason> {
        let Some(&[version, _, l0, l1, _, _, f0, f1, _, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3]) =
            head.first_chunk::<IPV4_HEADER_LEN>()
        else {
            return Err(DropReason::Truncated);
        };
        if version >> 4 != 4 {
            return Err(DropReason::BadIpv4Version);
        }
        let header_len = usize::from(version & 0xf) * 4;
        let total_len = u16::from_be_bytes([l0, l1]);
        if header_len < IPV4_HEADER_LEN || usize::from(total_len) < header_len {
            return Err(DropReason::BadLength);
        }
        if usize::from(total_len) > packet_len {
            return Err(DropReason::Truncated);
        }
        let header = head.get(..header_len).ok_or(DropReason::Truncated)?;
        let valid = match checksum {
            Checksum::Unknown => match header.as_array::<IPV4_HEADER_LEN>() {
                Some(plain) => checksum::is_valid_20(plain),
                None => checksum::is_valid(header),
            },
            Checksum::Good | Checksum::Missing => true,
        };
        if !valid {
            return Err(DropReason::BadIpv4Checksum);
        }
        let view = Self {
            header,
            total_len,
            fragment: u16::from_be_bytes([f0, f1]),
            source: Ipv4Addr::new(s0, s1, s2, s3),
            destination: Ipv4Addr::new(d0, d1, d2, d3),
        };
        // A fragment that would end beyond 65,535 bytes is an attack on the reassembler (RFC 1858).
        if view.fragment_offset() + (usize::from(total_len) - header_len) > usize::from(u16::MAX) {
            return Err(DropReason::BadLength);
        }
        Ok(view)
    }

    /// The header, options included.
    #[inline]
    #[must_use]
    pub const fn header(&self) -> &'p [u8] {
        self.header
    }

    /// Bytes of the header, 20 to 60.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.header.len()
    }

    /// Bytes of header and payload.
    #[inline]
    #[must_use]
    pub const fn total_len(&self) -> u16 {
        self.total_len
    }

    /// Bytes of the payload.
    #[inline]
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.total_len as usize - self.header.len()
    }

    /// True if the packet may not be fragmented.
    #[inline]
    #[must_use]
    pub const fn dont_fragment(&self) -> bool {
        self.fragment & DF != 0
    }

    /// True if a fragment with a higher offset follows.
    #[inline]
    #[must_use]
    pub const fn more_fragments(&self) -> bool {
        self.fragment & MF != 0
    }

    /// Offset of this payload in the payload of the whole packet, bytes.
    #[inline]
    #[must_use]
    pub const fn fragment_offset(&self) -> usize {
        (self.fragment & 0x1fff) as usize * 8
    }

    /// Time to live.
    #[inline]
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.header.get(8).copied().unwrap_or_default()
    }

    /// Protocol number of the payload.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.header.get(9).copied().unwrap_or_default()
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub const fn source(&self) -> Ipv4Addr {
        self.source
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub const fn destination(&self) -> Ipv4Addr {
        self.destination
    }
}

/// Fills in the checksum of the header at the front of `packet`; does nothing without a whole header.
pub fn complete(packet: &mut [u8]) {
    let len = packet.first().map_or(0, |version| usize::from(version & 0xf) * 4);
    let Some(header) = packet.get_mut(..len).filter(|header| header.len() >= IPV4_HEADER_LEN) else { return };
    let set = |header: &mut [u8], sum: u16| {
        if let Some(field) = header.get_mut(10..12) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
    };
    set(header, 0);
    let sum = checksum::checksum(header);
    set(header, sum);
}

/// True if a packet may come from `source`: neither multicast nor broadcast, loopback or reserved. The caller
/// decides about the unspecified address: DHCP clients use it.
#[inline]
#[must_use]
pub const fn is_possible_source(source: Ipv4Addr) -> bool {
    let [a, ..] = source.octets();
    match a {
        0 => source.is_unspecified(),
        127 => false,
        // Multicast, reserved and limited broadcast.
        224.. => false,
        _ => true,
    }
}

/// True for an address that one host can have.
#[inline]
#[must_use]
pub const fn is_unicast(address: Ipv4Addr) -> bool {
    let [a, ..] = address.octets();
    a != 0 && a != 127 && a < 224
}
