//! Where a queue lies in memory, as `mlx5dv_init_obj` tells it, how large it is, and what it holds when it is new.
//!
//! This is the part of the library: a provider allocates the memory that the geometries ask for, formats it with the
//! functions here, tells the device, and hands the descriptions to the driver.

mod geometry;
mod memory;
mod sizes;

pub use geometry::{CqGeometry, QpGeometry, QpRequest, SendOperations, SrqGeometry, Transport};
pub use memory::{DoorbellRecord, RingMemory, Slots};
pub use sizes::SharedSizes;

use prm::{CQE_SIZE, NextSegment, WQEBB, cqe_owner};

/// A doorbell register: where the first eight bytes of a send are written to tell the device of it. It has two halves
/// that are written in turn, so that two writes in a row cannot be merged into one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register {
    address: u64,
    half: u32,
    odd: bool,
}

impl Register {
    /// A register at `address` of the bus (on PCI, the address in this process where it is mapped), with halves of
    /// `half` bytes; 0 = it has only one.
    #[must_use]
    pub const fn new(address: u64, half: u32) -> Self {
        Self { address, half, odd: false }
    }

    /// The address to write to now; the next call gives the other half.
    pub const fn turn_over(&mut self) -> u64 {
        let at = self.address + if self.odd { self.half as u64 } else { 0 };
        self.odd = !self.odd;
        at
    }

    /// True if there are two, as of a write-combining register.
    #[must_use]
    pub const fn has_halves(&self) -> bool {
        self.half != 0
    }

    /// The address of the first half.
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
    /// Consumer index and arm word.
    pub dbrec: DoorbellRecord,
    /// Its number.
    pub cqn: u32,
}

impl CqRing {
    /// Makes the ring new: every entry invalid, both records 0.
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
    /// Bytes of a slot, a power of two.
    pub stride: u32,
    /// Slots in the list; one of them always stays free.
    pub slots: u32,
    /// First slot to post to.
    pub head: u16,
    /// Last slot of the list.
    pub tail: u16,
    /// Counts the posts. Only its first word is there.
    pub dbrec: DoorbellRecord,
    /// Its number.
    pub srqn: u32,
}

impl SrqRing {
    /// Makes the ring new: slots 0 to `slots - 1` chained in order, the record 0. What lies behind them (the library's
    /// wait queue, [`SrqGeometry::ring_slots`]) is chained as a list of its own.
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
    /// Its number.
    pub qpn: u32,
    /// Receive and send counters.
    pub dbrec: DoorbellRecord,
    /// The send ring: `sq_wqebbs` blocks of 64 bytes.
    pub sq_buf: RingMemory,
    /// Its WQEBBs, a power of two.
    pub sq_wqebbs: u32,
    /// The receive ring: `rq_slots` slots of `rq_stride` bytes; empty on a shared receive queue.
    pub rq_buf: RingMemory,
    /// Its slots, a power of two; 0 on a shared receive queue.
    pub rq_slots: u32,
    /// Bytes of a slot.
    pub rq_stride: u32,
    /// Where sends ring.
    pub register: Register,
}

impl QpRings {
    /// Makes the queues new: all zeros.
    pub fn format(&self) {
        self.sq_buf.zero(0, self.sq_wqebbs as usize * WQEBB);
        self.rq_buf.zero(0, self.rq_slots as usize * self.rq_stride as usize);
        self.dbrec.clear();
    }
}
