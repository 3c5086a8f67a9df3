//! A segment: one broadcast domain that joins an Ethernet network and an IPoIB link. It knows the hosts of
//! each side, resolves addresses across the gateway and holds the packets that wait for an address.
//!
//! No I/O and no clock. A [`Segment`] takes ARP packets, packets without a path and `now`. It reaches its
//! InfiniBand side through the [`Fabric`] that the caller passes, and returns [`Output`]s for everything
//! else.
//!
//! ```text
//!  ARP of either side ──┐                ┌─> frames, host table, packets to forward again, drops (Output)
//!  packets without path ┼─> Segment ─────┤
//!  what is published ───┘                └─> requests, replies, announcements on InfiniBand (Fabric)
//! ```
//!
//! The owner's loop: feed inputs, take [`Segment::poll_output`] until `None`, in order, and call
//! [`Segment::handle_timeout`] in each iteration.
//!
//! * `hosts` – hosts of the Ethernet side: learning, aging, probing. The link keeps those of the InfiniBand
//!   side.
//! * `ethernet_arp`, `infiniband_arp` – ARP packets of each side; `knowledge` – what is known of their
//!   addresses.
//! * `resolve` – address resolution across the gateway, by ARP only so far.
//! * [`ownership`] – the table of actions for an ARP packet, by what is known of its addresses.
//! * `owners`, `disputes` – one owner per address: claims, moves, addresses that move too often; `defence` –
//!   how often an address is defended.
//! * `names` – the sender address of queries; `introductions` – queries that give InfiniBand hosts the
//!   present address of an Ethernet host.
//! * `discovery` – hosts that a gateway queries when it starts to forward, so that it can announce them.
//! * `kept` – hosts that were known before: discovery queries them first.
//! * `parked` – packets that wait for an address or for a connection.
//! * `role` – what a standby segment does.
//! * `local` – packets of the gateway's own: ping replies, ICMP errors.
//! * [`pair`] – several gateways of one segment: exactly one forwards, and nothing loops.

mod announcements;
mod arp;
mod defence;
mod discovery;
mod disputes;
mod ethernet_arp;
mod fabric;
mod hosts;
mod infiniband_arp;
mod introductions;
mod kept;
mod knowledge;
mod limits;
mod local;
mod machine;
mod meanwhile;
mod names;
mod output;
mod owners;
pub mod ownership;
pub mod pair;
mod parked;
mod pending;
mod reported;
mod requesters;
mod resolve;
mod role;

pub use arp::{ArpMeaning, Own, answer_ethernet, check_ethernet, check_infiniband};
pub use fabric::Fabric;
pub use hosts::{Ageing, HostCounters, HostInfo, worker_of};
pub use machine::{Segment, SegmentCounters, SegmentSettings};
pub use output::{Arrival, Happening, Origin, Output, Packet};

#[cfg(test)]
mod tests;
