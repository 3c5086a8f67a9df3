//! The shared receive queue: a linked list of slots that complete in any order.
//!
//! A slot's link is written when the slot is posted. The next slot must be known by then, so one free slot is
//! always reserved. (libmlx5 before release 48 also changed the links of completed slots. A device follows
//! links and cannot see a difference.)

use super::barrier;
use super::rings::{DoorbellRecord, RingMemory, SrqRing};
use prm::{DBREC_RECEIVE, DataSegment, NextSegment};

/// A shared receive queue. It owns the value posted with an entry until a completion names the entry's slot.
#[derive(Debug)]
pub struct SharedReceiveQueue<T> {
    buf: RingMemory,
    stride: usize,
    max_segments: usize,
    dbrec: DoorbellRecord,
    /// Slot of the next post.
    head: u16,
    /// Ring of the other free slots, oldest first. Its length is a power of two. A post takes the slot at
    /// `posts`. A completion appends its slot at `entries + completions`.
    free: Box<[u16]>,
    /// Maximum number of posted entries.
    entries: u32,
    /// Posted values by slot. `Some` where the device owns the slot.
    held: Box<[Option<T>]>,
    /// Number of posts and number of completions so far.
    posts: u32,
    completions: u32,
    published: u32,
    /// True if an entry did not lie within the ring.
    broken: bool,
}

impl<T> SharedReceiveQueue<T> {
    /// Creates the queue on a formatted ring, with slots 0 to `slots - 1` chained in order.
    ///
    /// It holds up to `entries` entries, at most one less than the ring has slots, and uses no more slots
    /// than that requires. A ring can be twice as long as requested, and each used slot keeps the buffers
    /// that its message left.
    #[must_use]
    pub fn new(ring: &SrqRing, entries: u32) -> Self {
        let stride = ring.stride as usize;
        let head = size_of::<NextSegment>();
        let unit = size_of::<DataSegment>();
        let fits = ring.slots <= 1 << 16
            && stride >= head + unit
            && ring.buf.len() >= ring.slots as usize * stride
            && u32::from(ring.head) < ring.slots
            && ring.dbrec.has(DBREC_RECEIVE);
        debug_assert!(fits, "{ring:?}");
        let slots = if fits { ring.slots } else { 0 };
        let entries = entries.min(slots.saturating_sub(1));
        let mut free = vec![0; (entries as usize).next_power_of_two()];
        for (place, behind) in free.iter_mut().zip(1..=entries) {
            *place = ((u32::from(ring.head) + behind) % slots) as u16;
        }
        Self {
            buf: ring.buf,
            stride,
            max_segments: stride.saturating_sub(head) / unit,
            dbrec: ring.dbrec,
            head: ring.head,
            free: free.into(),
            entries,
            held: (0..slots).map(|_| None).collect(),
            posts: 0,
            completions: 0,
            published: 0,
            broken: false,
        }
    }

    /// Maximum number of data segments of an entry.
    #[must_use]
    pub const fn max_segments(&self) -> usize {
        self.max_segments
    }

    /// Number of slots of the ring.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.held.len()
    }

    /// Number of slots that are ever posted: one more than the number of entries.
    #[must_use]
    pub const fn slots_in_use(&self) -> usize {
        if self.entries == 0 { 0 } else { self.entries as usize + 1 }
    }

    /// Number of entries posted and not completed.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        self.posts.wrapping_sub(self.completions)
    }

    /// Number of entries that can be posted now.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.entries.saturating_sub(self.outstanding()) as usize
    }

    /// Slot of the next post, once another slot is free to follow it.
    #[must_use]
    pub const fn head(&self) -> u16 {
        self.head
    }

    /// Returns the slot that the next post fills, or `None` if the queue is full.
    #[inline]
    #[must_use]
    pub fn next_slot(&self) -> Option<usize> {
        (self.outstanding() < self.entries).then_some(usize::from(self.head))
    }

    #[inline]
    fn place(&self, at: u32) -> usize {
        at as usize & (self.free.len() - 1)
    }

    /// Writes data segment `index` of the slot of the next post.
    #[inline]
    pub fn write_segment(&mut self, index: usize, segment: DataSegment) {
        if index < self.max_segments {
            let at = usize::from(self.head) * self.stride
                + size_of::<NextSegment>()
                + index * size_of::<DataSegment>();
            let written = self.buf.write(at, &segment);
            self.check(written);
        }
    }

    /// Terminates the segment list of the next post's slot after `count` segments, if there is room for more.
    #[inline]
    pub fn terminate(&mut self, count: usize) {
        self.write_segment(count, DataSegment::terminator());
    }

    /// Terminates the lists of all slots likewise. None may be posted.
    pub(super) fn terminate_all(&mut self, count: usize) {
        let first = self.head;
        for slot in 0..self.slots() {
            self.head = slot as u16;
            self.terminate(count);
        }
        self.head = first;
    }

    /// Posts the slot whose segments were written, with its value. Returns the slot, or `None` if the queue
    /// is full. The device sees it after the next [`SharedReceiveQueue::publish`].
    #[inline]
    pub fn commit(&mut self, what: T) -> Option<usize> {
        let slot = self.next_slot()?;
        // There is one because the queue is not full.
        let next = *self.free.get(self.place(self.posts))?;
        *self.held.get_mut(slot)? = Some(what);
        self.head = next;
        self.posts = self.posts.wrapping_add(1);
        let written = self.buf.write(slot * self.stride, &link(next));
        self.check(written);
        Some(slot)
    }

    /// Posts values while there are free slots, each with the result of `first` as first data segment.
    /// Returns the number of posts.
    ///
    /// The other segments of a slot stay as they are. Link and first segment are adjacent and are written as
    /// whole words.
    #[inline(always)]
    pub(super) fn commit_firsts(
        &mut self,
        mut what: impl Iterator<Item = T>,
        mut first: impl FnMut(&T) -> DataSegment,
    ) -> usize {
        let ring = self.buf.slots::<[u64; 4]>(self.stride, self.held.len());
        let before = self.posts;
        let (mut head, mut written) = (self.head, true);
        loop {
            // Process contiguous runs of free slots.
            let (from, left) = (self.place(self.posts), self.room());
            let Some((_, free)) = self.free.split_at_checked(from) else { break };
            let run = free.get(..left).unwrap_or(free);
            let mut done = 0;
            for (&next, what) in run.iter().zip(&mut what) {
                let slot = usize::from(head);
                let (link, segment): ([u64; 2], [u64; 2]) =
                    (zerocopy::transmute!(link(next)), zerocopy::transmute!(first(&what)));
                written &= ring.write(slot, [link[0], link[1], segment[0], segment[1]]);
                if let Some(held) = self.held.get_mut(slot) {
                    // The slot was empty, so there is nothing to drop.
                    std::mem::forget(held.replace(what));
                }
                head = next;
                done += 1;
            }
            self.posts = self.posts.wrapping_add(done);
            if done == 0 || (done as usize) < run.len() {
                break;
            }
        }
        self.head = head;
        self.check(written);
        self.posts.wrapping_sub(before) as usize
    }

    /// Posts a receive with these segments, including empty ones. Segments that do not fit are omitted.
    pub fn post(&mut self, segments: &[DataSegment], what: T) -> Option<usize> {
        self.next_slot()?;
        for (index, segment) in segments.iter().enumerate() {
            self.write_segment(index, *segment);
        }
        self.terminate(segments.len());
        self.commit(what)
    }

    /// Marks the queue as broken if a write was outside the ring. A broken queue posts nothing more.
    #[inline(always)]
    const fn check(&mut self, written: bool) {
        if !written {
            self.broken = true;
            self.entries = 0;
        }
    }

    /// Truncates the ring, for tests.
    #[cfg(test)]
    pub(super) fn shorten(&mut self, len: usize) {
        self.buf = self.buf.part(0, len).unwrap();
    }

    /// True if an entry did not lie within the ring.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Leaks the posted values without dropping them.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.held));
    }

    /// Hands all posted entries to the device. Writes no register.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.posts && !self.broken {
            self.published = self.posts;
            barrier::udma_to_device();
            self.dbrec.store(DBREC_RECEIVE, self.posts & 0xffff);
        }
    }

    /// Completes `slot`, which is now free. Returns `None` if the device did not own it.
    #[inline(always)]
    pub fn take(&mut self, slot: u16) -> Option<T> {
        self.completed().take(slot)
    }

    /// Starts a batch of completions.
    #[inline(always)]
    pub(super) fn completed(&mut self) -> Completed<'_, T> {
        let behind = self.entries.wrapping_add(self.completions);
        let Self { free, held, completions, entries, .. } = self;
        Completed { free, held, behind, completions, entries: *entries }
    }
}

/// Encodes a link to a slot.
#[inline(always)]
fn link(next: u16) -> NextSegment {
    let mut link = NextSegment::default();
    link.next.set(next);
    link
}

/// Takes slots back that completions name. It keeps its own counter; the queue's would be loaded and stored
/// for each completion.
#[derive(Debug)]
pub(super) struct Completed<'q, T> {
    free: &'q mut [u16],
    held: &'q mut [Option<T>],
    /// Index of the next entry in the ring of free slots.
    behind: u32,
    completions: &'q mut u32,
    entries: u32,
}

impl<T> Drop for Completed<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.completions = self.behind.wrapping_sub(self.entries);
    }
}

impl<T> Completed<'_, T> {
    /// See [`SharedReceiveQueue::take`].
    #[inline(always)]
    pub(super) fn take(&mut self, slot: u16) -> Option<T> {
        let what = self.held.get_mut(usize::from(slot))?.take()?;
        let at = self.behind as usize & (self.free.len() - 1);
        *self.free.get_mut(at)? = slot;
        self.behind = self.behind.wrapping_add(1);
        Some(what)
    }
}
