//! The receive queue of a single queue pair. Its entries complete in the order of posting.

use super::barrier;
use super::rings::{DoorbellRecord, QpRings, RingMemory};
use prm::{DBREC_RECEIVE, DataSegment};

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    buf: RingMemory,
    slots: u32,
    stride: usize,
    dbrec: DoorbellRecord,
    posted: u32,
    taken: u32,
    published: u32,
}

impl ReceiveQueue {
    /// Creates the receive queue of a new queue pair. A queue without slots, as with a shared receive queue,
    /// is always full.
    #[must_use]
    pub fn new(rings: &QpRings) -> Self {
        let stride = rings.rq_stride as usize;
        let fits = rings.rq_slots.is_power_of_two()
            && rings.rq_slots <= 1 << 15
            && rings.rq_buf.len() >= rings.rq_slots as usize * stride
            && rings.dbrec.has(DBREC_RECEIVE);
        debug_assert!(fits || rings.rq_slots == 0, "{rings:?}");
        Self {
            buf: rings.rq_buf,
            slots: if fits { rings.rq_slots } else { 0 },
            stride,
            dbrec: rings.dbrec,
            posted: 0,
            taken: 0,
            published: 0,
        }
    }

    /// Number of slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Number of entries posted and not completed.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Returns the slot that the next post fills, or `None` if the queue is full.
    #[inline]
    #[must_use]
    pub const fn next_slot(&self) -> Option<usize> {
        if self.outstanding() < self.slots { Some((self.posted & (self.slots - 1)) as usize) } else { None }
    }

    /// Posts a receive. Returns its slot, or `None` if the queue is full.
    ///
    /// Empty segments and segments that do not fit into the stride are omitted. The device sees the entry
    /// after the next [`ReceiveQueue::publish`].
    #[inline]
    pub fn post(&mut self, segments: impl IntoIterator<Item = DataSegment>) -> Option<usize> {
        let slot = self.next_slot()?;
        let unit = size_of::<DataSegment>();
        let mut at = 0;
        for segment in segments {
            if segment.byte_count != 0 && at + unit <= self.stride {
                self.buf.write(slot * self.stride + at, &segment);
                at += unit;
            }
        }
        if at < self.stride {
            self.buf.write(slot * self.stride + at, &DataSegment::terminator());
        }
        self.posted = self.posted.wrapping_add(1);
        Some(slot)
    }

    /// Hands all posted entries to the device. Writes no register.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.posted {
            self.published = self.posted;
            barrier::udma_to_device();
            self.dbrec.store(DBREC_RECEIVE, self.posted & 0xffff);
        }
    }

    /// Restarts at the first slot, as the device does after RESET. Nothing may be outstanding.
    pub fn restart(&mut self) {
        self.posted = 0;
        self.taken = 0;
        self.published = 0;
        self.dbrec.store(DBREC_RECEIVE, 0);
    }

    /// Completes the oldest entry. Returns its slot, which is now free, or `None` if nothing was outstanding.
    #[inline]
    pub fn take(&mut self) -> Option<usize> {
        if self.outstanding() == 0 {
            return None;
        }
        let slot = (self.taken & (self.slots - 1)) as usize;
        self.taken = self.taken.wrapping_add(1);
        Some(slot)
    }
}
