//! The device abstraction: operations of every host channel adapter, independent of the driver.
//!
//! - [`Control`] is the control path and is object safe: open, query, modify, destroy, multicast, MADs,
//!   asynchronous events. It runs on the control lcore.
//! - [`Queues`] is the data path and is generic: a worker lcore posts, rings doorbells once per burst, and
//!   polls.
//! - [`Backend`] connects both. It is chosen once at startup, and all code above it is compiled for each
//!   backend.
//!
//! Buffer ownership: a post takes the buffer, an error returns it, and a completion returns or frees it.
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
