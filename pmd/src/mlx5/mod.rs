//! The mlx5 data path: work queues, completion queues and doorbells as a ConnectX reads and writes them.
//!
//! The memory formats are in the crate [`prm`]. That crate is all that this module shares with the software
//! device.
//!
//! * [`rings`] – location, size and initial contents of queues; the library's part of the work.
//! * [`barrier`], [`bus`] – store ordering, and the doorbell path to the device.
//! * [`anchor`] – device objects behind queues, destroyed before the queues free their buffers.
//! * [`sq`], [`send`], [`umr`], [`rq`], [`srq`], [`cq`] – queues over raw memory.
//! * [`av`] – addresses; [`mr`] – keys by address.
//!
//! Sends ring the eight-byte doorbell. libmlx5 can instead copy a whole short entry to the register
//! (BlueFlame), which starts with the same eight bytes. BlueFlame saves the device one read for a single
//! packet but costs CPU time for each packet of a burst. A gateway posts in bursts.

pub mod anchor;
pub mod av;
pub mod barrier;
pub mod bus;
pub mod cq;
mod header;
pub mod mr;
pub mod queues;
pub mod rc;
mod registration;
pub mod rings;
pub mod rq;
pub mod send;
pub mod sq;
pub mod srq;
#[cfg(test)]
mod tests;
pub mod ud;
pub mod umr;
