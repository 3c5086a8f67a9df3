//! Connections of one port (IBA 12.9): the state machine of each, and the table that datagrams are matched against.
//!
//! The owner moves queue pairs; this module says when and to what. A passive connection: [`Event::Requested`], the
//! owner creates a queue pair and moves it to RTR and RTS by [`RequestInfo::qp_attributes`], *then* calls
//! [`ConnectionTable::accept`], because data may come as soon as the REP is out; [`Event::Established`] follows. An
//! active one: [`ConnectionTable::connect`], [`Event::Replied`], the owner moves its queue pair by
//! [`ReplyInfo::attributes`] and calls [`ConnectionTable::ready`]. Each connection ends with exactly one
//! [`Event::Released`], its last event.

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
