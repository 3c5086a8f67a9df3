//! A shared receive queue with its buffers.
//!
//! Each entry has the buffers that the largest message needs, but nearly every message consumes only the
//! first. The first buffers of all entries are therefore contiguous: 512 entries need 4 KiB. (As a part of
//! entries of 17 buffers they would spread over 70 KiB.) A refill of such an entry writes only its link and
//! first data segment; the ring still holds the rest from the last post. If one region contains the whole
//! pool, its key is looked up once.

use crate::mem::packet::{self, Packet, PacketPool as _, STASH, Stash, top_up};
use crate::mlx5::mr::MrTable;
use crate::mlx5::rings::SrqRing;
use crate::mlx5::srq::{Completed, SharedReceiveQueue};
use prm::DataSegment;

/// Invalid device report about an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// The device did not own the entry.
    Entry,
    /// The message is longer than the entry.
    Length,
}

/// A shared receive queue with its buffers. A message takes the first buffers of an entry. The others stay,
/// and so do their data segments in the ring.
#[derive(Debug)]
pub(super) struct SharedEntries<P> {
    /// Ring, with the first buffer of each entry that the device owns.
    queue: SharedReceiveQueue<P>,
    /// Buffers after the first, of all entries.
    others: Box<[Option<P>]>,
    /// Number of those buffers in each entry.
    others_each: usize,
    /// Number of leading buffers in `others` that may be missing, for each entry. None after them is missing,
    /// and none of an entry that the device owns.
    missing: Box<[u8]>,
    /// Number of slots with a nonzero `missing`. Usually 0, which skips the search.
    lacking: usize,
    /// Bytes in front of each buffer's data that the device fills too.
    front: u32,
    /// Capacity of a buffer in bytes, including `front`.
    room: u32,
    /// Local key of all buffers, if one key covers them all.
    lkey: Option<u32>,
}

impl<P: Packet> SharedEntries<P> {
    /// Creates a queue of `entries` on a formatted ring.
    ///
    /// An entry takes a message of `message` bytes in buffers of `pool`, with `front` bytes before their
    /// data.
    pub(super) fn new(
        ring: &SrqRing,
        entries: u32,
        message: usize,
        front: u32,
        pool: &P::Pool,
        regions: &MrTable,
    ) -> Self {
        let mut queue = SharedReceiveQueue::new(ring, entries);
        let room = pool.room() + front;
        let needed = message.div_ceil(room.max(1) as usize).max(1);
        const { assert!(STASH <= u8::MAX as usize) };
        let per_entry = needed.min(queue.max_segments()).clamp(1, STASH);
        debug_assert_eq!(per_entry, needed, "the ring's stride is too small for the largest message");
        queue.terminate_all(per_entry);
        let (slots, used, others_each) = (queue.slots(), queue.slots_in_use(), per_entry - 1);
        Self {
            queue,
            others: (0..slots * others_each).map(|_| None).collect(),
            others_each,
            missing: vec![others_each as u8; slots].into(),
            lacking: if others_each > 0 { used } else { 0 },
            front,
            room,
            lkey: regions.of_pool(pool),
        }
    }

    /// Leaks all buffers instead of returning them to the pool.
    pub(super) fn forget(&mut self) {
        self.queue.forget();
        std::mem::forget(std::mem::take(&mut self.others));
    }

    /// True if an entry did not lie within the ring.
    pub(super) const fn is_broken(&self) -> bool {
        self.queue.is_broken()
    }

    /// Number of entries that the device owns.
    pub(super) const fn outstanding(&self) -> u32 {
        self.queue.outstanding()
    }

    /// Starts taking consecutive single-buffer messages.
    #[inline(always)]
    pub(super) fn completed(&mut self) -> CompletedEntries<'_, P> {
        CompletedEntries { slots: self.queue.completed(), front: self.front, room: self.room }
    }

    /// Takes the first buffer of the entry that a completion names. The entry keeps the others.
    pub(super) fn single(&mut self, slot: u16) -> Result<P, Wrong> {
        self.queue.take(slot).ok_or(Wrong::Entry)
    }

    /// Takes a message of `len` bytes out of the entry that a completion names.
    pub(super) fn message(&mut self, slot: u16, len: u32) -> Result<P, Wrong> {
        let mut first = Some(self.single(slot)?);
        let (slot, start) = (usize::from(slot), usize::from(slot) * self.others_each);
        let (Some(others), Some(missing)) =
            (self.others.get_mut(start..start + self.others_each), self.missing.get_mut(slot))
        else {
            return Err(Wrong::Entry);
        };
        let (message, used) = packet::message(&mut first, others, len, self.room).ok_or(Wrong::Length)?;
        if used > 1 {
            *missing = (used - 1) as u8;
            self.lacking += 1;
        }
        Ok(message)
    }

    /// Posts entries until the queue is full, or `stash` and pool are empty. Returns the number of entries
    /// posted.
    pub(super) fn refill(
        &mut self,
        stash: &mut Stash<P>,
        pool: &mut P::Pool,
        regions: &mut MrTable,
    ) -> usize {
        let mut posted = 0;
        loop {
            if let Some(lkey) = self.lkey
                && self.lacking == 0
            {
                posted += self.refill_firsts(lkey, stash);
                if self.queue.next_slot().is_none() || !top_up(stash, pool, 1) {
                    break;
                }
            } else if self.fill(stash, pool, regions) {
                posted += 1;
            } else {
                break;
            }
        }
        self.queue.publish();
        posted
    }

    /// Posts entries that lack only their first buffer, the common case after short messages. Stops when the
    /// stash is empty.
    #[inline(always)]
    fn refill_firsts(&mut self, lkey: u32, stash: &mut Stash<P>) -> usize {
        let (front, room) = (u64::from(self.front), self.room);
        let count = stash.len().min(self.queue.room());
        let buffers = stash.drain(stash.len() - count..);
        self.queue.commit_firsts(buffers, |buf| DataSegment::new(buf.room().0 - front, room, lkey))
    }

    /// Posts the next entry and fills in missing buffers. Returns false if there are too few buffers or the
    /// queue is full.
    #[inline(never)]
    fn fill(&mut self, stash: &mut Stash<P>, pool: &mut P::Pool, regions: &mut MrTable) -> bool {
        let Some(slot) = self.queue.next_slot() else { return false };
        let start = slot * self.others_each;
        let Some(missing) = self.missing.get_mut(slot) else { return false };
        let Some(others) = self.others.get_mut(start..start + usize::from(*missing)) else { return false };
        if !top_up(stash, pool, 1 + others.len()) {
            return false;
        }
        let Some(first) = stash.pop() else { return false };
        let Some(data) = segment(&first, self.front, regions) else { return false };
        self.queue.write_segment(0, data);
        for (index, place) in (1..).zip(others) {
            if place.is_none() {
                let Some(buf) = stash.pop() else { return false };
                let Some(data) = segment(&buf, self.front, regions) else { return false };
                self.queue.write_segment(index, data);
                *place = Some(buf);
            }
        }
        if std::mem::take(missing) > 0 {
            self.lacking -= 1;
        }
        self.queue.commit(first).is_some()
    }
}

/// Takes single-buffer messages out of the entries that completions name.
#[derive(Debug)]
pub(super) struct CompletedEntries<'q, P> {
    slots: Completed<'q, P>,
    front: u32,
    room: u32,
}

impl<P: Packet> CompletedEntries<'_, P> {
    /// True if a message of `len` bytes fits into one buffer.
    #[inline(always)]
    pub(super) const fn fits(&self, len: u32) -> bool {
        len <= self.room
    }

    /// Takes a message that fits. An empty message takes one buffer too.
    #[inline(always)]
    pub(super) fn message(&mut self, slot: u16, len: u32) -> Result<P, Wrong> {
        let mut buf = self.slots.take(slot).ok_or(Wrong::Entry)?;
        buf.fill(len);
        Ok(buf)
    }

    /// Takes a datagram whose first bytes of `len` lie in front of the buffer's data.
    #[inline(always)]
    pub(super) fn datagram(&mut self, slot: u16, len: u32) -> Result<P, Wrong> {
        let mut buf = self.slots.take(slot).ok_or(Wrong::Entry)?;
        if len < self.front || len > self.room {
            return Err(Wrong::Length);
        }
        buf.fill(len - self.front);
        Ok(buf)
    }
}

/// Returns the data segment of a fresh buffer, with the bytes in front of its data. Returns `None` if its
/// memory is not registered.
#[inline(always)]
fn segment<P: Packet>(buf: &P, front: u32, regions: &mut MrTable) -> Option<DataSegment> {
    let (address, len) = buf.room();
    let (address, len) = (address - u64::from(front), len + front);
    Some(DataSegment::new(address, len, regions.lkey(address, len)?))
}
