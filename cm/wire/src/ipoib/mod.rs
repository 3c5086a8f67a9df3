//! IP over InfiniBand: encapsulation, link-layer addresses, ARP, the link-layer address option of neighbor
//! discovery, and the mapping of groups (RFC 4391, RFC 4755).

mod address;
mod arp;
mod group;
mod neighbour;
#[cfg(test)]
mod tests;

pub use address::{AddressFlags, HARDWARE_ADDRESS_LEN, HardwareAddress, interface_id};
pub use arp::{ARP_LEN, Arp, ArpError, ArpOperation};
pub use group::{BROADCAST_SUFFIX, GroupScope, IpoibGroup, broadcast_gid, multicast_gid};
pub use neighbour::{LINK_OPTION_LEN, LinkOption, LinkOptionKind, NdOptions};

/// Bytes of the encapsulation header (RFC 4391 section 6).
pub const ENCAPSULATION_LEN: usize = 4;

/// Largest IP packet in connected mode, bytes; the value of Linux.
pub const CONNECTED_IP_MTU: usize = 65_520;

/// Ethertype of an encapsulated packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EtherType {
    /// 0x0800.
    Ipv4,
    /// 0x0806.
    Arp,
    /// 0x8035.
    Rarp,
    /// 0x86dd.
    Ipv6,
    /// Any other; [`EtherType::from_code`] makes it only for numbers without a variant.
    Other(u16),
}

impl EtherType {
    /// Converts from the number.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        match code {
            0x0800 => Self::Ipv4,
            0x0806 => Self::Arp,
            0x8035 => Self::Rarp,
            0x86dd => Self::Ipv6,
            other => Self::Other(other),
        }
    }

    /// The number.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Ipv4 => 0x0800,
            Self::Arp => 0x0806,
            Self::Rarp => 0x8035,
            Self::Ipv6 => 0x86dd,
            Self::Other(code) => code,
        }
    }
}

/// The encapsulation header: type, then two reserved zero bytes.
#[must_use]
pub const fn encapsulation(ethertype: EtherType) -> [u8; ENCAPSULATION_LEN] {
    let [a, b] = ethertype.code().to_be_bytes();
    [a, b, 0, 0]
}

/// Splits a message into type and content; the reserved bytes are ignored (RFC 4391 section 6). Returns
/// `None` if it is shorter than the header.
#[must_use]
pub const fn decapsulate(message: &[u8]) -> Option<(EtherType, &[u8])> {
    match message.split_first_chunk::<ENCAPSULATION_LEN>() {
        Some((h, content)) => Some((EtherType::from_code(u16::from_be_bytes([h[0], h[1]])), content)),
        None => None,
    }
}
