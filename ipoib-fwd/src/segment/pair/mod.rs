//! Several gateways between the same two networks: exactly one forwards, the others stand by, nothing loops.
//!
//! Sans-IO: messages, probes, the state of both sides and `now` in; bytes to send, events and a deadline out.
//!
//! ```text
//!                both sides up                listened, nobody better
//!   Standby ──────────────────> Listening ─────────────────────────────> Forwarding
//!  (a side is down)                │ listened, somebody better or forwarding  │
//!                                  v                                          │ a better one forwards or claims,
//!                               Standby <─────────────────────────────────────┘ or is deaf to us; a side is lost
//!                                  │ the forwarder is silent for its lease, or resigned, and nobody better is able
//!                                  └──────────────────────────────────────> Forwarding
//!   Forwarding ── its control lcore did not run for a lease ──> Standby
//!   any ── drained by its operator ──> Drained ── put back ──> Standby
//!   Forwarding ── a side is down for a moment, nobody can have taken over ──> Standby ──> Forwarding
//!   any ── own packets come back in other clothes ──> Blocked ── hold time over ──> Listening
//! ```
//!
//! *Election.* Gateways send hellos on both sides and hear each other on either: one side is enough to agree, so a network that
//! is cut in two on one side has still one forwarder. The higher priority is better, then the lower GUID, as subnet
//! managers have it (IBA 14.4.1). A better one that comes back takes over only if its *priority* is higher, and in order: it
//! stands by until its tables are warm, claims, the old one resigns, then it forwards. Equal priorities do not preempt.
//! Who loses a side resigns at once by a hello on the side that is left. Who forwards and hears from a worse forwarder which does
//! not hear it resigns, too: only it knows that there are two.
//!
//! *Who resigns in order* (drained, asked to end, or for one that claims) forwards hosts' own packets for three seconds more, until all of them
//! have heard where the other one is: so nothing is lost on the way. Packets to all it does not forward any more, nor does it speak for others.
//! A drained gateway tells others that it stands by and is about to end, as one that ends does; so versions that know no draining obey, too.
//!
//! *Cut on both sides*, each part has its own forwarder. When the parts meet again, the worse one resigns with the first hello that
//! it hears, and until then the tables know every gateway that was heard within an hour ([`Pair::stations`]): what one of them forwarded, the others do not
//! forward again, so a broadcast does not circle even in that moment. Without a key, when anybody can name any host's addresses as a gateway's,
//! they are known for as long as the gateway had been heard: of networks that are cut soon after it began, a broadcast may circle where they
//! meet again, until the first hello.
//!
//! *Gateways that do not believe each other* (another key, version or partition) and join the same two networks find that out by echoes of
//! their probes on both sides: of two that forward the worse one is blocked, and a gateway that does not forward yet does not begin
//! to. See `echo` and `rivals`. Believed gateways need no such proof: the election decides between them.
//!
//! *Loops* of foreign making: [`loops`]. *Warm tables*: [`sync`].
//!
//! *A dishonest neighbour* can forge hellos without a key and so silence a gateway, as it can forge ARP. It cannot block a gateway: without a
//! key a hello on the wrong side only makes the gateway probe, and nobody on one side knows the nonces of the other. What it says once counts for four of our own leases at
//! most, so gateways without a key need intervals that are not too far from each other. With a key ([`message::Key`]), which all gateways of a
//! segment share, messages are authenticated; they count only when they name our present instance, so that recorded ones
//! are of no use, and their sequence rises. Who speaks with another key is not believed and not obeyed, but told of: `strangers`.

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
