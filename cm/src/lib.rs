//! Communication management without I/O: a MAD agent with retransmission, and the CM's connection state machine.
//!
//! Every machine here takes datagrams, calls and `now`, and gives datagrams ([`poll_transmit`]), events
//! (`poll_event`) and the time at which it wants to be called again (`poll_timeout`, then `handle_timeout`). The
//! owner calls `poll_*` until they are empty after every input.
//!
//! [`poll_transmit`]: connection::ConnectionTable::poll_transmit
#![forbid(unsafe_code)]

pub mod agent;
pub mod connection;
mod path;
mod random;
mod timers;

pub use path::Path;
