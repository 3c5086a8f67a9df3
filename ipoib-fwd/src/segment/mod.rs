//! A segment: one broadcast domain, an Ethernet side joined to an InfiniBand side.
//!
//! * [`pair`] – several gateways of one segment: exactly one forwards, and nothing loops.

pub mod pair;
