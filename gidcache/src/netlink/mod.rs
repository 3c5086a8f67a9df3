//! Events from rtnetlink.
//!
//! - [`message`] parses the kernel's messages.
//! - [`Session`] decides which requests to send and when, without I/O.
//! - [`Monitor`] is the socket.
//! - [`Plugs`] reports RDMA devices that are added or removed.

pub mod message;
mod monitor;
mod plugs;
mod session;
#[cfg(test)]
mod tests;

pub use self::monitor::{Audience, Monitor, MonitorError, Turn};
pub use self::plugs::{Plugs, is_of_rdma};
pub use self::session::{Counters, Notice, Session};
