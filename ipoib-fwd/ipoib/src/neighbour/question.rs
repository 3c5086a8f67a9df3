//! What resolution asks: by ARP for IPv4 (RFC 826), by neighbour discovery for IPv6 (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Who has an address, and in whose name that is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// An ARP request.
    Arp {
        /// In whose name; unspecified for nobody's (RFC 5227 2.1.1).
        source: Ipv4Addr,
        /// The address that is asked for.
        target: Ipv4Addr,
    },
    /// A neighbour solicitation.
    Nd {
        /// In whose name; unspecified for nobody's.
        source: Ipv6Addr,
        /// The address that is asked for.
        target: Ipv6Addr,
    },
}

impl Question {
    /// Asks for `target` in the name of `source`; in nobody's, if that is of the other family.
    #[must_use]
    pub const fn new(source: IpAddr, target: IpAddr) -> Self {
        match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => Self::Arp { source, target },
            (IpAddr::V6(_), IpAddr::V4(target)) => Self::Arp { source: Ipv4Addr::UNSPECIFIED, target },
            (IpAddr::V6(source), IpAddr::V6(target)) => Self::Nd { source, target },
            (IpAddr::V4(_), IpAddr::V6(target)) => Self::Nd { source: Ipv6Addr::UNSPECIFIED, target },
        }
    }
}
