//! The mlx5 data path: work queues, completion queues and doorbells as a ConnectX reads and writes them.
//!
//! The formats in memory are the crate [`prm`]; the software device shares that with this module, and nothing else.
//!
//! * [`rings`] – where a queue lies in memory and how large it is: the library's part of the work.
//! * [`barrier`], [`bus`] – the order of stores, and the way of a doorbell to the device.
//! * [`anchor`] – the device's objects, which queues with buffers outlive.
//! * [`sq`], [`send`], [`umr`], [`rq`], [`srq`], [`cq`] – the queues over raw memory; [`av`] – addresses; [`mr`] – keys by address.
//!
//! Sends ring the eight-byte doorbell. libmlx5 would copy a short entry whole to the register instead (BlueFlame), which
//! begins with the same eight bytes: that saves the device a read for one packet and costs the processor for each of
//! many, and a gateway posts in bursts.

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
