//! A segment: one broadcast domain, joined out of an Ethernet network and an IPoIB link. Who lives in it and on which
//! side, how hosts of one side find those of the other, and the packets that wait meanwhile.
//!
//! No I/O and no clock. A [`Segment`] takes ARP packets, packets without a way and `now`; it speaks to its InfiniBand
//! side by the [`Fabric`] that it is handed, and gives [`Output`]s for everything else.
//!
//! ```text
//!  ARP of either side ──┐                ┌─> frames, host table, packets to forward again, drops (Output)
//!  packets without way ─┼─> Segment ─────┤
//!  what is published ───┘                └─> requests, replies, announcements on InfiniBand (Fabric)
//! ```
//!
//! Owner's loop: feed inputs; take [`Segment::poll_output`] until `None`, in order; call [`Segment::handle_timeout`] each
//! turn of the loop.
//!
//! * `hosts` – hosts of the Ethernet side: learning, ageing, probing. Those of the InfiniBand side are the link's.
//! * `ethernet_arp`, `infiniband_arp` – ARP packets of each side; `knowledge` – what is known of their addresses.
//! * `resolve` – address resolution across the gateway; ARP is its only language so far.
//! * [`ownership`] – the table that says what is done about an ARP packet, by what is known of its addresses.
//! * `owners`, `disputes` – one owner an address: claims, moves, addresses that move too often; `defence` – how often an address is defended.
//! * `names` – in whose name hosts are queried; `introductions` – InfiniBand hosts learn by such a question where an Ethernet host is.
//! * `discovery` – hosts that a gateway queries when it starts to forward, so that it can announce them.
//! * `kept` – hosts that were known before: discovery queries them first.
//! * `parked` – packets that wait: for an address, or for a connection.
//! * `role` – what a segment does that another gateway forwards.
//! * `local` – what the gateway says itself: ping replies, ICMP errors.
//! * [`pair`] – several gateways of one segment: exactly one forwards, and nothing loops.

mod announcements;
mod arp;
mod askers;
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
mod resolve;
mod role;

pub use arp::{ArpMeaning, Own, answer_ethernet, check_ethernet, check_infiniband};
pub use fabric::Fabric;
pub use hosts::{Ageing, HostCounters, HostInfo, worker_of};
pub use machine::{Segment, SegmentCounters, SegmentSettings};
pub use output::{Arrival, Happening, Origin, Output, Packet};

#[cfg(test)]
mod tests;
