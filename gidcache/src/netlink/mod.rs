//! Events from rtnetlink.
//!
//! [`message`] takes the kernel's messages apart, [`Session`] orders what has to be asked and when, without I/O, and [`Monitor`] is
//! the socket.

pub mod message;
mod monitor;
mod session;
#[cfg(test)]
mod tests;

pub use self::monitor::{Monitor, MonitorError, Turn};
pub use self::session::{Counters, Notice, Session};
