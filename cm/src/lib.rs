//! Communication management without I/O: a MAD agent with retransmission, the CM's connection state machine, and the port that
//! has one of each for all its links.
//!
//! Every machine here takes datagrams, calls and `now`, and gives datagrams ([`poll_transmit`]), events
//! (`poll_event`) and the time at which it wants to be called again (`poll_timeout`, then `handle_timeout`). The
//! owner calls `poll_*` until they are empty after every input.
//!
//! [`poll_transmit`]: connection::ConnectionTable::poll_transmit
#![forbid(unsafe_code)]

pub mod agent;
pub mod connection;
mod origin;
mod path;
pub mod port;
mod random;
mod timers;

pub use origin::{Origin, Subnet};
pub use path::Path;
