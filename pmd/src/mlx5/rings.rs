//! Location, size and initial contents of queues, as described by `mlx5dv_init_obj`.
//!
//! This is the library's part of the work. A provider does the following:
//!
//! 1. Allocate the memory that the geometries require.
//! 2. Format it with the functions here.
//! 3. Pass it to the device.
//! 4. Pass the descriptions to the driver.

mod geometry;
mod memory;
mod sizes;

pub use geometry::{CqGeometry, QpGeometry, QpRequest, SendOperations, SrqGeometry, Transport};
pub use memory::{DoorbellRecord, RingMemory, Slots};
pub use sizes::SharedSizes;

use prm::{CQE_SIZE, NextSegment, WQEBB, cqe_owner};

/// A doorbell register: the driver writes the first eight bytes of a send to it. Writes alternate between its
/// two halves, so that two consecutive writes cannot be combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register {
    address: u64,
    half: u32,
    odd: bool,
}

impl Register {
    /// Creates a register at `address` of the bus, with halves of `half` bytes. On PCI the address is where
    /// the register is mapped in this process. If `half` is 0, the register has only one half.
    #[must_use]
    pub const fn new(address: u64, half: u32) -> Self {
        Self { address, half, odd: false }
    }

    /// Returns the address for the next write and switches to the other half.
    pub const fn turn_over(&mut self) -> u64 {
        let at = self.address + if self.odd { self.half as u64 } else { 0 };
        self.odd = !self.odd;
        at
    }

    /// True if it has two halves, as a write-combining register has.
    #[must_use]
    pub const fn has_halves(&self) -> bool {
        self.half != 0
    }

    /// Returns the address of the first half.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }
}

/// A completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqRing {
    /// The ring: `cqe_count` entries of 64 bytes.
    pub buf: RingMemory,
    /// Entries, a power of two.
    pub cqe_count: u32,
    /// Consumer index and arm value.
    pub dbrec: DoorbellRecord,
    /// Completion queue number.
    pub cqn: u32,
}

impl CqRing {
    /// Formats the ring: invalidates all entries and clears both records.
    pub fn format(&self) {
        for slot in 0..self.cqe_count as usize {
            let mut cqe = [0_u8; CQE_SIZE];
            cqe[CQE_SIZE - 1] = cqe_owner::INITIAL;
            self.buf.write(slot * CQE_SIZE, &cqe);
        }
        self.dbrec.clear();
    }
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqRing {
    /// The ring: `slots` entries of `stride` bytes.
    pub buf: RingMemory,
    /// Length of a slot in bytes, a power of two.
    pub stride: u32,
    /// Number of slots in the list. One of them always stays free.
    pub slots: u32,
    /// First slot to post.
    pub head: u16,
    /// Last slot of the list.
    pub tail: u16,
    /// Post counter. Only its first word exists.
    pub dbrec: DoorbellRecord,
    /// Shared receive queue number.
    pub srqn: u32,
}

impl SrqRing {
    /// Formats the ring: chains slots 0 to `slots - 1` in order and clears the record. The slots after these
    /// (the library's wait queue, [`SrqGeometry::ring_slots`]) form a separate list.
    pub fn format(&self) {
        let stride = self.stride as usize;
        if stride == 0 {
            return;
        }
        let all = self.buf.len() / stride;
        let usable = self.slots as usize;
        for slot in 0..all {
            self.buf.zero(slot * stride, stride);
            let last = slot + 1 == usable || slot + 1 == all;
            let mut link = NextSegment::default();
            link.next.set(if last { 0 } else { slot as u16 + 1 });
            self.buf.write(slot * stride, &link);
        }
        self.dbrec.store(prm::DBREC_RECEIVE, 0);
    }
}

/// The queues of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpRings {
    /// Queue pair number.
    pub qpn: u32,
    /// Receive and send counters.
    pub dbrec: DoorbellRecord,
    /// Send ring: `sq_wqebbs` WQEBBs of 64 bytes.
    pub sq_buf: RingMemory,
    /// Number of WQEBBs of the send ring, a power of two.
    pub sq_wqebbs: u32,
    /// Receive ring: `rq_slots` slots of `rq_stride` bytes. Empty with a shared receive queue.
    pub rq_buf: RingMemory,
    /// Number of slots of the receive ring, a power of two. 0 with a shared receive queue.
    pub rq_slots: u32,
    /// Length of a receive slot in bytes.
    pub rq_stride: u32,
    /// Doorbell register for sends.
    pub register: Register,
}

impl QpRings {
    /// Zeroes both rings and the record.
    pub fn format(&self) {
        self.sq_buf.zero(0, self.sq_wqebbs as usize * WQEBB);
        self.rq_buf.zero(0, self.rq_slots as usize * self.rq_stride as usize);
        self.dbrec.clear();
    }
}
