//! The control side of one IPoIB link: one port, one P_Key, some workers.
//!
//! No I/O and no clock: a [`Link`] takes ARP packets, events and `now`, and returns actions, events and
//! deadlines. Its [`Port`] owns it, sends and receives its management datagrams, and runs the loop that
//! drives it.
//!
//! ```text
//!  port facts, events ─┐                      ┌─> ARP packets, queue pair changes (Action)
//!  ARP, notes ─────────┼─> Link ─ poll_… ─────┼─> tables for the workers (Action::Publish)
//!  answers to actions ─┘     ↑                └─> results (Event), next deadline
//!                            └─ requests, answers ─> Port: subnet administration, connections
//! ```
//!
//! Each part owns its state: groups, paths, neighbours, connections. All parts read the link's ground
//! (settings, port, own address) and write into its outbox. Each borrows the other parts that it needs for
//! the duration of a call, and leaves messages for the parts above it. A connection's life cycle is a state
//! table (`connections::state`); its documentation draws that table.
//!
//! [`Port`]: crate::port::Port

use ib_wire::ipoib::{ARP_LEN, ENCAPSULATION_LEN};

mod action;
mod calls;
mod connections;
mod ground;
mod groups;
mod hosts;
mod machine;
mod neighbours;
mod outbox;
mod own_address;
mod paths;
mod port;
mod proxy;
mod random;
mod request;
mod responder;
mod settings;
mod statistics;
mod table;
mod timers;
mod waiting;

pub use action::{Action, Asker, ConnKey, Event, LinkState, Publication, ReceivedArp, WorkerNote};
pub use groups::LINK_LOCAL_GROUPS;
pub use hosts::LEFT_GRACE;
pub use ib_wire::ipoib::{Arp, ArpOperation, HardwareAddress};
pub use machine::Link;

pub(crate) use request::Request;
pub use responder::ArpResponder;
pub use settings::{LinkIndex, LinkSettings, Mode, PortEvent, PortFacts, WorkerIndex, WorkerSettings};
pub use statistics::{CloseReason, ConnectionInfo, GroupInfo, LinkCounters, NeighbourInfo, PathInfo};
pub use table::{Neighbour, NeighbourChange, Neighbours, RcPath};
pub use waiting::Waiting;

/// Bytes of an ARP packet with its encapsulation header.
pub const ARP_FRAME_LEN: usize = ENCAPSULATION_LEN + ARP_LEN;

/// Largest message of a connection, encapsulation header included: the size of Linux's buffer.
pub const MAX_MESSAGE: u32 = 65_524;

/// Smallest receive MTU of a peer: an encapsulation header and one byte of payload.
const MIN_MESSAGE: u32 = ENCAPSULATION_LEN as u32 + 1;

/// The reason for which a link cannot be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// A link needs 1 to 255 workers.
    #[error("a link needs 1 to 255 workers, not {0}")]
    Workers(usize),
    /// The receive MTU is out of range.
    #[error("receive MTU {0} is not within 5 and {MAX_MESSAGE}")]
    ReceiveMtu(u32),
    /// A retry count is out of range.
    #[error("retry count {0} is not within 0 and 7")]
    Retry(u8),
    /// A bound is zero.
    #[error("{0} may not be zero")]
    Zero(&'static str),
    /// P_Key 0 or 0x8000.
    #[error("P_Key {0} names no partition")]
    PKey(ib_wire::PKey),
    /// Another link of the port has the partition.
    #[error("another link of this port has P_Key {0}")]
    PKeyTaken(ib_wire::PKey),
    /// The port has the largest number of links already.
    #[error("a port has no more than {0} links")]
    Full(usize),
}

#[cfg(test)]
mod tests;
