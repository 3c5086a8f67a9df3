//! Ethernet II headers.

use std::fmt;
use std::net::Ipv4Addr;

use crate::drop_reason::DropReason;

/// Bytes of an Ethernet II header without tags.
pub const ETHERNET_HEADER_LEN: usize = 14;

/// Bytes of a VLAN tag: its ethertype and its control information.
pub const VLAN_TAG_LEN: usize = 4;

/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Ethertype of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Ethertype of an 802.1ad service tag.
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

/// The VLAN identifier in a tag's control information (IEEE 802.1Q 9.6).
#[inline]
#[must_use]
pub const fn vid_of(control: u16) -> u16 {
    control & 0xfff
}

/// A 48-bit Ethernet address, in wire order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// No station: the target of an ARP request.
    pub const ZERO: Self = Self([0; 6]);

    /// True for group addresses, the broadcast address included.
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True if one station can own the address.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::ZERO
    }

    /// The address of an IPv4 multicast group: its low 23 bits behind 01:00:5e (RFC 1112 6.4).
    #[must_use]
    pub const fn of_group(group: Ipv4Addr) -> Self {
        let [_, b, c, d] = group.octets();
        Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddress({self})")
    }
}

/// An Ethernet II header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetHeader {
    /// Destination address.
    pub destination: MacAddress,
    /// Source address.
    pub source: MacAddress,
    /// Type of the payload.
    pub ethertype: u16,
}

impl EthernetHeader {
    /// Parses the header at the front of a frame.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, DropReason> {
        let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) =
            frame.first_chunk::<ETHERNET_HEADER_LEN>()
        else {
            return Err(DropReason::Truncated);
        };
        Ok(Self {
            destination: MacAddress([d0, d1, d2, d3, d4, d5]),
            source: MacAddress([s0, s1, s2, s3, s4, s5]),
            ethertype: u16::from_be_bytes([t0, t1]),
        })
    }

    /// Writes the header to the front of a frame.
    #[inline(always)]
    pub fn write(&self, front: &mut [u8; ETHERNET_HEADER_LEN]) {
        let [destination @ .., _, _, _, _, _, _, _, _] = front;
        *destination = self.destination.0;
        let [_, _, _, _, _, _, source @ .., _, _] = front;
        *source = self.source.0;
        let [.., t, y] = front;
        [*t, *y] = self.ethertype.to_be_bytes();
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; ETHERNET_HEADER_LEN] {
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.destination.0, self.source.0);
        let [t, y] = self.ethertype.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, t, y]
    }
}
