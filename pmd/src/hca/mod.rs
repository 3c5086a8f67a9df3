//! The device seam: what every host channel adapter offers, whatever drives it.
//!
//! Two faces. [`Control`] is cold and object safe: open, query, modify, destroy, multicast, MADs, asynchronous events;
//! it lives on the control lcore. [`Queues`] is hot and generic: a worker lcore posts, rings once per burst and polls.
//! [`Backend`] ties them together; it is chosen once at start-up and everything behind it is compiled per backend.
//!
//! Ownership of buffers: posting moves a buffer in; an error hands it back; a completion returns or frees it.
//! Destroying a queue pair flushes every outstanding buffer exactly once.

mod control;
mod memory;
mod queues;
mod shared;

pub use ::hca::*;
pub use control::{Backend, Control};
pub use memory::{
    ChainSend, Done, DoneBurst, MemoryWork, Outcome, Registration, RemoteMemory, Returned, WorkError,
};
pub use queues::{Queues, Received, Refused, RxBurst};
pub use shared::Shared;
