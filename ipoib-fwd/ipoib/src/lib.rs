//! IP over InfiniBand without I/O: links with their connections and neighbours, and views of the packets that
//! cross them.
//!
//! Needs no device and no DPDK to build or test.
#![forbid(unsafe_code)]

pub mod bucket;
mod counters;
pub mod drop_reason;
pub mod link;
pub mod neighbour;
pub mod net;
pub mod port;
