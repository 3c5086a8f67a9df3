//! Queries of address resolution: ARP for IPv4 (RFC 826), neighbour discovery for IPv6 (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A query for the link-layer address of an IP address, with the source that it is sent from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// An ARP request.
    Arp {
        /// The sender's address; unspecified for a probe (RFC 5227 2.1.1).
        source: Ipv4Addr,
        /// The address to resolve.
        target: Ipv4Addr,
    },
    /// A neighbour solicitation.
    Nd {
        /// The sender's address; unspecified for a probe.
        source: Ipv6Addr,
        /// The address to resolve.
        target: Ipv6Addr,
    },
}

impl Question {
    /// A query for `target` from `source`; from the unspecified address if `source` is of the other family.
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
