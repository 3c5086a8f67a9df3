//! The mlx5 driver on real devices: queues that the library creates, and whose rings it then hands over (`mlx5dv_init_obj`).
//!
//! What the library keeps for itself, and why it does no harm:
//!
//! * Its own consumer index of a completion queue stays 0. Destroying a queue pair, and moving one to RESET, would look
//!   from there on for that queue pair's completions and take them out, moving others. It leaves a queue alone whose ring was
//!   handed over (since rdma-core 15), so completion queues are taken before any queue pair is made on them.
//! * Its list of free shared receives is only changed by its own posting and polling, and by that clean-up.
//! * Doorbell registers. It deals them out to queue pairs, and several may get one and the same, under a lock of its own. Only
//!   one thread may write to a register at a time; so each worker has a thread domain, whose register is its own. Where the kernel
//!   found no write-combining (a virtual machine, other processors) there are no such registers, and all ring a single one, which is not
//!   cached: there a doorbell is one store, whole whoever else stores.
//! * Records of a queue pair are set to 0 when it is moved to RESET, when nothing of it is outstanding.
//! * User indices, by which completions of version 1 name queue pairs: the driver goes by their numbers, which both versions have.
//! * Small payloads that completions may carry, signatures, completions of 128 bytes: switched off, or refused.

mod rings;
mod setup;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::object::{ProtectionDomain, QueuePair, SharedReceiveQueue};
use super::{DataPath, Device, remedy};
use crate::hca::{FastRegistration, HcaError, RegisteredBy};
use crate::mlx5::anchor::Anchor;
use crate::mlx5::rc::MAX_SEND_SEGMENTS;

/// By the mlx5 driver, on the rings of the device.
#[derive(Debug, Default)]
pub struct Rings {
    /// Of ports that were used, by number.
    addressing: BTreeMap<u8, PortAddressing>,
}

/// How a port addresses others; neither changes while the device is open.
#[derive(Clone, Copy, Debug)]
struct PortAddressing {
    /// By MAC addresses.
    ethernet: bool,
    /// Never without a GRH.
    grh_required: bool,
}

/// What is known of a worker's queues.
#[derive(Debug)]
pub struct RingWorker {
    /// Where its queue pairs are made.
    domain: Weak<ProtectionDomain>,
    /// What they ring.
    register: WorkerRegister,
}

/// The doorbell register of a worker's queue pairs.
#[derive(Debug)]
enum WorkerRegister {
    /// One that no other worker rings, at this address; `None` before the first queue pair.
    Own(Option<u64>),
    /// One for all, without write-combining.
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
        // SAFETY: the last holder, who drops it.
        unsafe { pair.end() }
    }
}

impl Anchor for Arc<SharedReceiveQueue> {
    fn release(self: Box<Self>) -> Result<(), HcaError> {
        // Queue pairs that still live hold it, and can fill its entries.
        let queue = Self::into_inner(*self).ok_or_else(|| remedy::in_use("shared receive queue"))?;
        // SAFETY: the last holder, who drops it.
        unsafe { queue.end() }
    }
}
