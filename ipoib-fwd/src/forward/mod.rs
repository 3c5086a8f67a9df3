//! The forwarding step: what to do with one packet, as pure functions of its header bytes and a table snapshot.
//!
//! * [`eth_to_ib`] and [`ib_to_eth`] – the verdict on a packet of either side. No buffer, no allocation, no clock.
//! * [`Tables`] – what they look up: immutable once published to a worker, copied and changed by the control lcore.
//! * [`fragment`] – cutting an IPv4 packet to an MTU.
//! * [`ethernet_neighbours`] – hosts of the Ethernet side: learning, ageing, probing.
//! * [`arp`] – what the control lcore makes of ARP packets of either side.
//!
//! Both sides are one IPv4 subnet; the gateway joins them as a proxy ARP bridge does (RFC 1027): each side sees the
//! other's hosts behind the gateway's own link-layer addresses, and the time to live is not touched.

pub mod arp;
pub mod ethernet_neighbours;
pub mod fragment;

mod eth_to_ib;
mod ib_to_eth;
mod rules;
mod tables;

pub use eth_to_ib::{EthVerdict, Via, eth_to_ib};
pub use ib_to_eth::{IbVerdict, ib_to_eth};
pub use tables::{
    EthNeighbour, GatewayAddress, IbNeighbour, MAX_NEIGHBOURS, NeighbourIndex, Settings, TableFull, Tables,
};

use std::net::Ipv4Addr;

/// Why a packet goes to the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punt {
    /// It is ARP.
    Arp,
    /// It is for the gateway's own IPv4 address.
    Local,
    /// Its destination is not known, or has no path yet: resolve it, and send the packet then.
    Neighbour(Ipv4Addr),
}

#[cfg(test)]
mod tests;
