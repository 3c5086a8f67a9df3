//! The forwarding step: what to do with one packet, as pure functions of its header bytes and a table snapshot.
//!
//! * [`FrameHead`] and [`Tables`] – which segment a packet is of.
//! * [`eth_to_ib`] and [`ib_to_eth`] – the verdict on a packet of either side. No buffer, no allocation, no clock.
//! * [`ShortWay`] – the same verdict on a plain packet, in fewer steps.
//! * [`SegmentTable`] – what they look up: immutable once published, the same for all workers.
//! * [`Draft`] – the same as the control lcore keeps and changes it.
//!
//! Both sides are one IPv4 link; the gateway joins them as a proxy ARP bridge does (RFC 1027): each side sees the
//! other's hosts behind the gateway's own link-layer addresses, and the time to live is not touched. A packet for a host
//! beyond the link goes to a router on either side ([`Routes`]), which is a neighbour like others.

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

/// Ethertype of what gateways tell each other, in frames and behind the IPoIB header: IEEE 802's first number for local
/// experiments (IEEE 802 9.2.3).
pub const ETHERTYPE_HELLO: u16 = 0x88b5;
/// Where gateways send it on Ethernet: a locally administered group. On InfiniBand
/// it goes to the broadcast group.
pub const PAIR_GROUP: MacAddress = MacAddress([0x03, 0x49, 0x50, 0x47, 0x57, 0x01]);

/// Of which side a packet is.
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

    /// Bytes in front of the IP packet.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::Ethernet => ETHERNET_HEADER_LEN,
            Self::InfiniBand => IPOIB_HEADER_LEN,
        }
    }
}

/// Why a packet goes to the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punt {
    /// It is ARP.
    Arp,
    /// It is of another gateway, or an own one that came back ([`ETHERTYPE_HELLO`]), or a probe ([`ipoib::net::probe`]).
    Hello,
    /// It is for the gateway's own IPv4 address.
    Local,
    /// The neighbour that it goes to, its destination or a router, is not known or has no path yet: resolve it, and send the
    /// packet then.
    Neighbour(Ipv4Addr),
}

impl Punt {
    /// True if only the gateway that forwards hands it over.
    const fn is_of_forwarder(&self) -> bool {
        match self {
            Self::Neighbour(_) => true,
            Self::Arp | Self::Hello | Self::Local => false,
        }
    }
}

#[cfg(test)]
mod tests;
