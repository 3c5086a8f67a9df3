//! Neighbour tables: IP addresses and their link-layer addresses, for any link. Without I/O; keyed by IP
//! address of either family.
//!
//! [`Ageing`] is the life cycle of all neighbours of one link, InfiniBand or Ethernet. [`Question`] is a
//! query of address resolution, by the protocol of the address's family. [`Heard`] is a filter of addresses
//! that are likely to exist.

mod ageing;
mod heard;
mod question;
mod rules;
mod shares;

pub use ageing::{Ageing, Event, Gone, Info, Probe};
pub use heard::Heard;
pub use question::Question;
pub use rules::{HostCounters, Idle, Rules};
pub use shares::LinkLayer;
