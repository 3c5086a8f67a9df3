//! Neighbours: who has which link-layer address, whatever the link. Without I/O; keyed by IP address of either family.
//!
//! [`Ageing`] is the life of all neighbours of one link, InfiniBand's and Ethernet's alike. [`Question`] is what resolution asks, by the
//! protocol of the address's family. [`Heard`] knows which addresses there are likely to be.

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
