//! Views of packet headers: bytes in, checked fields out; payloads are not copied.
//!
//! Each view is made by a `parse` function. Malformed headers yield a [`crate::drop_reason::DropReason`].

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod fragment;
pub mod icmp;
pub mod ipv4;
pub mod probe;

/// Bytes of the IPoIB encapsulation header: ethertype, reserved (RFC 4391 6).
pub const IPOIB_HEADER_LEN: usize = 4;

/// The IPoIB encapsulation header of an IPv4 packet.
pub const IPOIB_IPV4_HEADER: [u8; IPOIB_HEADER_LEN] = [0x08, 0x00, 0, 0];

/// Two bytes in network order at `at`.
#[inline]
pub fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_be_bytes)
}
