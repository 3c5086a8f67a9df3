//! Events from rtnetlink.
//!
//! [`message`] takes the kernel's messages apart, [`Session`] orders what has to be asked and when, without I/O, and [`Monitor`] is
//! the socket. [`Plugs`] hears of RDMA devices that come and go.

pub mod message;
mod monitor;
mod plugs;
mod session;
#[cfg(test)]
mod tests;

pub use self::monitor::{Audience, Monitor, MonitorError, Turn};
pub use self::plugs::{Plugs, is_of_rdma};
pub use self::session::{Counters, Notice, Session};
