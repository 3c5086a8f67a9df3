//! Forwarding decisions: pure functions of a packet's header bytes and a table snapshot.
//!
//! * [`FrameHead`] and [`Tables`]: find the segment of a packet.
//! * [`eth_to_ib()`] and [`ib_to_eth()`]: the slow path, which decides on any packet. They use no buffer, no
//!   allocation, no clock.
//! * [`ShortWay`]: the fast path, which reaches the same decision on plain packets in fewer steps.
//! * [`SegmentTable`]: the tables that both look up. It is immutable once published and shared by all
//!   workers.
//! * [`Draft`]: the control lcore's builder of a [`SegmentTable`].
//!
//! Both sides are one IPv4 link, which the gateway joins by proxy ARP (RFC 1027). Each side sees the other's
//! hosts behind the gateway's own link-layer addresses. The gateway does not change the TTL. A packet for a
//! host beyond the link goes to a router on either side ([`Routes`]), which is an ordinary neighbor.

mod draft;
mod eth_to_ib;
mod frame_head;
mod hosts;
mod ib_to_eth;
mod near;
mod neighbours;
mod routes;
mod rules;
mod settings;
mod shards;
mod short;
mod tables;

pub use draft::{Draft, TableFull};
pub use eth_to_ib::{EthVerdict, NextHop, Via, eth_to_ib, own_to_ib};
pub use frame_head::FrameHead;
pub use ib_to_eth::{IbVerdict, ib_to_eth};
pub use neighbours::{EthNeighbour, IbNeighbour, NeighbourIndex, RcPaths};
pub use routes::{Hop, MAX_ROUTES, MAX_SUBNETS, Prefix, Route, Routes, TooManyRoutes};
pub use settings::{GatewayAddress, PeerGateway, Role, Settings, Uplink};
pub use short::{Plain, ShortWay, ToEthernet, ToInfiniBand};
pub use tables::{
    EndpointIndex, EthernetIndex, MAX_NEIGHBOURS, MAX_SEGMENTS, SegmentIndex, SegmentTable, Tables,
};

use std::net::Ipv4Addr;

use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, MacAddress};

/// Ethertype of the messages between gateways, in frames and behind the IPoIB header. It is IEEE 802's first
/// ethertype for local experiments (IEEE 802 9.2.3).
pub const ETHERTYPE_HELLO: u16 = 0x88b5;
/// Ethernet destination of these messages: a locally administered group. On InfiniBand they go to the
/// broadcast group.
pub const PAIR_GROUP: MacAddress = MacAddress([0x03, 0x49, 0x50, 0x47, 0x57, 0x01]);

/// The side that a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A frame from the Ethernet port.
    Ethernet,
    /// A message from the fabric.
    InfiniBand,
}

impl Side {
    /// The other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Ethernet => Self::InfiniBand,
            Self::InfiniBand => Self::Ethernet,
        }
    }

    /// Length of the headers in front of the IP packet, in bytes.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::Ethernet => ETHERNET_HEADER_LEN,
            Self::InfiniBand => IPOIB_HEADER_LEN,
        }
    }
}

/// Why a packet goes to the control lcore (slow path).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punt {
    /// It is ARP.
    Arp,
    /// A hello of another gateway, an own hello that came back ([`ETHERTYPE_HELLO`]), or a probe
    /// ([`ipoib::net::probe`]).
    Hello,
    /// The destination is the gateway's own IPv4 address.
    Local,
    /// The next hop (the destination or a router) is unknown or has no path yet. The control lcore resolves
    /// it and then sends the packet.
    Neighbour(Ipv4Addr),
}

impl Punt {
    /// True if only the forwarding gateway punts such a packet.
    const fn is_of_forwarder(&self) -> bool {
        match self {
            Self::Neighbour(_) => true,
            Self::Arp | Self::Hello | Self::Local => false,
        }
    }
}

#[cfg(test)]
mod tests;
