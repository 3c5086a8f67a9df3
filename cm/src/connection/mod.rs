//! Connections of one port (IBA 12.9): the state machine of each connection, and the table that matches
//! datagrams with connections.
//!
//! The owner changes the states of queue pairs when this module requires it.
//!
//! Passive connection:
//!
//! 1. [`Event::Requested`] arrives.
//! 2. The owner creates a queue pair and moves it to RTR and RTS with [`RequestInfo::qp_attributes`].
//! 3. The owner calls [`ConnectionTable::accept`]. This must be last, because data may arrive as soon as the
//!    REP is sent.
//! 4. [`Event::Established`] follows.
//!
//! Active connection:
//!
//! 1. The owner calls [`ConnectionTable::connect`].
//! 2. [`Event::Replied`] arrives.
//! 3. The owner moves its queue pair to RTR and RTS with [`ReplyInfo::attributes`] and calls
//!    [`ConnectionTable::ready`].
//!
//! The last event of each connection is [`Event::Released`], exactly once.

mod api;
mod counters;
mod entry;
mod expiry;
mod incoming;
mod outgoing;
mod state;
mod table;

pub use api::{
    AcceptParams, Config, ConnId, ConnectRequest, DisconnectCause, Event, QpAttributes, RejectInfo,
    ReplyInfo, RequestInfo, TableError,
};
pub use counters::{Counters, Dropped};
pub use state::{Input, State};
pub use table::ConnectionTable;

#[cfg(test)]
mod tests;
