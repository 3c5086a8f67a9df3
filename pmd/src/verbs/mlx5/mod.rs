//! The mlx5 driver on real devices. The library creates the queues and then hands over their rings
//! (`mlx5dv_init_obj`).
//!
//! The library keeps some state of its own, which is harmless for these reasons:
//!
//! * Its consumer index of a completion queue stays 0. When a queue pair is destroyed or moved to RESET, the
//!   library would search from there for that queue pair's completions, remove them and move others. It skips
//!   queues whose rings were handed over (since rdma-core 15). Completion queues are therefore handed over
//!   before any queue pair is created on them.
//! * Its list of free shared receives changes only when it posts or polls, and in the cleanup above.
//! * It assigns doorbell registers to queue pairs. Several queue pairs may share a register, protected by the
//!   library's lock. Only one thread may write to a register at a time, so each worker has a thread domain
//!   with its own register. If the kernel provides no write-combining (a virtual machine, other processors),
//!   there is a single uncached register for all. A doorbell there is one store, which is atomic with respect
//!   to other stores.
//! * It zeroes a queue pair's doorbell records when the queue pair moves to RESET. Nothing is outstanding
//!   then.
//! * It assigns user indices, which identify queue pairs in version 1 completions. The driver uses queue pair
//!   numbers, which both versions contain.
//! * Inline payload in completions, signatures, and 128-byte completions are disabled or rejected.

mod rings;
mod setup;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::object::{ProtectionDomain, QueuePair, SharedReceiveQueue};
use super::{DataPath, Device, remedy};
use crate::hca::{FastRegistration, HcaError, RegisteredBy};
use crate::mlx5::anchor::Anchor;
use crate::mlx5::rc::MAX_SEND_SEGMENTS;

/// Data path through the mlx5 driver on the rings of the device.
#[derive(Debug, Default)]
pub struct Rings {
    /// Addressing of the ports used so far, by port number.
    addressing: BTreeMap<u8, PortAddressing>,
}

/// Addressing mode of a port. It does not change while the device is open.
#[derive(Clone, Copy, Debug)]
struct PortAddressing {
    /// True if the port uses MAC addresses.
    ethernet: bool,
    /// True if every packet needs a GRH.
    grh_required: bool,
}

/// Driver-specific state of a worker's queues.
#[derive(Debug)]
pub struct RingWorker {
    /// Domain of its queue pairs.
    domain: Weak<ProtectionDomain>,
    /// Doorbell register of its queue pairs.
    register: WorkerRegister,
}

/// Doorbell register of a worker's queue pairs.
#[derive(Debug)]
enum WorkerRegister {
    /// A register used only by this worker, at this address; `None` before the first queue pair.
    Own(Option<u64>),
    /// A register shared by all workers, without write-combining.
    Shared,
}

impl DataPath for Rings {
    type Worker = RingWorker;

    const INDIRECT: bool = true;

    fn fast_registration(_has_windows: bool, pieces: Option<u32>) -> Option<FastRegistration> {
        pieces.map(|max_pieces| FastRegistration {
            by: RegisteredBy::Umr,
            max_pieces,
            remote_invalidate: true,
            read_invalidate: false,
        })
    }

    fn check(device: &Device) -> Result<(), HcaError> {
        if device.is_mlx5 { Ok(()) } else { Err(remedy::not_mlx5(&device.name)) }
    }

    // The driver writes the entries itself.
    fn send_segments(_: u32) -> u32 {
        MAX_SEND_SEGMENTS as u32
    }
}

impl Anchor for Arc<QueuePair> {
    fn release(self: Box<Self>) -> Result<(), HcaError> {
        let pair = Self::into_inner(*self).ok_or_else(|| remedy::in_use("queue pair"))?;
        // SAFETY: the last holder, which drops it.
        unsafe { pair.end() }
    }
}

impl Anchor for Arc<SharedReceiveQueue> {
    fn release(self: Box<Self>) -> Result<(), HcaError> {
        // Existing queue pairs hold a reference and may fill its entries.
        let queue = Self::into_inner(*self).ok_or_else(|| remedy::in_use("shared receive queue"))?;
        // SAFETY: the last holder, which drops it.
        unsafe { queue.end() }
    }
}
