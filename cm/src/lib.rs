//! Communication management without I/O: a MAD agent with retransmission, the CM connection state machine,
//! and a port that contains one of each for all its links.
//!
//! All state machines have the same interface. Inputs are datagrams, calls and `now`. Outputs are datagrams
//! ([`poll_transmit`]), events (`poll_event`) and the time of the next call (`poll_timeout`, then
//! `handle_timeout`). After every input the owner calls the `poll_*` functions until they return nothing.
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
