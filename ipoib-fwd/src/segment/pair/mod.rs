//! Several gateways between the same two networks: exactly one forwards, the others stand by, and no packet
//! loops.
//!
//! Sans-IO. Inputs: messages, probes, the state of both sides and `now`. Outputs: bytes to send, events and a
//! deadline.
//!
//! ```text
//!                both sides up                listened, none is better
//!   Standby ──────────────────> Listening ─────────────────────────────> Forwarding
//!  (a side is down)                │ listened, one is better or forwards      │
//!                                  v                                          │ a better one forwards or claims,
//!                               Standby <─────────────────────────────────────┘ or is deaf to us; a side is lost
//!                                  │ the forwarder is silent for its lease, or resigned, and no better one is able
//!                                  └──────────────────────────────────────> Forwarding
//!   Forwarding ── its control lcore did not run for a lease ──> Standby
//!   any ── drained by its operator ──> Drained ── put back ──> Standby
//!   Forwarding ── a side is down for a moment, none can have taken over ──> Standby ──> Forwarding
//!   any ── own packets return on the other side ──> Blocked ── hold time over ──> Listening
//! ```
//!
//! *Election.* Gateways send hellos on both sides and hear each other on either. One side is enough to agree,
//! so a network that is split on one side still has one forwarder. The higher priority is better, then the
//! lower GUID, as for subnet managers (IBA 14.4.1). A better gateway that returns takes over only if its
//! *priority* is higher, and in order: it stands by until its tables are warm, then it claims, the old
//! forwarder resigns, and the new one forwards. Equal priorities do not preempt. A forwarder that loses a
//! side resigns at once by a hello on the side that is left. A forwarder that hears a worse forwarder which
//! does not hear it resigns, too: only the better one knows that there are two.
//!
//! *Ordered resignation* (drain, shutdown, or a claim of a better gateway): the gateway forwards hosts' own
//! packets for three seconds more, until all hosts have heard where the other gateway is, so no packet is
//! lost. It forwards no broadcast and multicast packets any more, and does not send for others. In its hellos
//! a drained gateway is a standby that is about to exit, like a gateway that exits. So versions without
//! draining react correctly, too.
//!
//! *Split on both sides:* each part has its own forwarder. When the parts meet again, the worse forwarder
//! resigns with the first hello that it hears. Until then the tables contain every gateway that was heard
//! within an hour ([`Pair::stations`]): the others do not forward again what one of them forwarded, so a
//! broadcast does not loop even at that moment. Without a key any station can name a host's addresses as a
//! gateway's. Then the addresses are remembered only for as long as the gateway had been heard. If networks
//! are split soon after the gateways first heard each other, a broadcast may loop when they meet again, until
//! the first hello.
//!
//! *Gateways that do not believe each other* (another key, version or partition) and join the same two
//! networks detect that by echoes of their probes on both sides. If both forward, the worse one is blocked. A
//! gateway that does not forward yet does not start to. See `echo` and `rivals`. Believed gateways need no
//! such proof: the election decides between them.
//!
//! *Loops* through foreign equipment: [`loops`]. *Warm tables*: [`sync`].
//!
//! *A dishonest neighbor* can forge hellos without a key and so silence a gateway, as it can forge ARP. It
//! cannot block a gateway: without a key a hello on the wrong side only makes the gateway probe, and no
//! station on one side knows the nonces of the other. A forged hello counts for four of our own leases at
//! most, so gateways without a key need similar hello intervals. With a key ([`message::Key`]), which all
//! gateways of a segment share, messages are authenticated. They count only if they name our present instance
//! and their sequence rises, so replayed messages have no effect. A gateway with another key is neither
//! believed nor obeyed, but reported: `strangers`.

mod api;
mod echo;
pub(super) mod election;
pub mod loops;
pub mod message;
mod peers;
mod rivals;
mod siblings;
pub mod storm;
mod strangers;
pub mod sync;

#[cfg(test)]
mod tests;

pub use api::{
    Disbelief, Drain, Event, NoSuccessor, PeerInfo, Settings, Station, Statistics, Transmit, Why, lease,
};
pub use election::Pair;
pub use election::lease::shortest_stall;
pub use loops::Sign;
pub use message::{Hello, Identity, Key, Neighbour, Place, Role, SegmentId, Side, SideSet};
