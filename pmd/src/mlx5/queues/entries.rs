//! A shared receive queue with its buffers.
//!
//! Each entry has as many buffers as the largest message needs, and nearly every message takes the first one alone. So the first ones of
//! all entries lie side by side, 4 KiB for 512 entries (as a part of entries of 17 buffers they were spread over 70), and what a refill
//! writes of such an entry is its link and its first data segment: all else is in the ring since the entry was posted last. Where one region holds the whole
//! pool, its key is asked for once.

use crate::mem::packet::{self, Packet, PacketPool as _, STASH, Stash, top_up};
use crate::mlx5::mr::MrTable;
use crate::mlx5::rings::SrqRing;
use crate::mlx5::srq::{Completed, SharedReceiveQueue};
use prm::DataSegment;

/// What a device told of an entry that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// It did not have the entry.
    Entry,
    /// The message is longer than the entry.
    Length,
}

/// A shared receive queue with its buffers: a message takes an entry's first ones away; the rest stays, and with it what the ring
/// says of them.
#[derive(Debug)]
pub(super) struct SharedEntries<P> {
    /// With the first buffer of each entry that the device has.
    queue: SharedReceiveQueue<P>,
    /// The others of each entry.
    others: Box<[Option<P>]>,
    /// How many of those an entry has.
    others_each: usize,
    /// How many of the first of those may be missing in each entry; none behind them is, and none of one that the device has.
    missing: Box<[u8]>,
    /// Slots in use of which any may be missing: as a rule none, and then nobody asks which.
    lacking: usize,
    /// Bytes in front of each buffer's data that the device fills, too.
    front: u32,
    /// Bytes that a buffer takes, those in front included.
    room: u32,
    /// The key of all buffers, where it is one.
    lkey: Option<u32>,
}

impl<P: Packet> SharedEntries<P> {
    /// The queue of `entries` on a new ring for messages of `message` bytes, in buffers of `pool` with `front` bytes before their data.
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

    /// Lets go of all buffers without giving them back.
    pub(super) fn forget(&mut self) {
        self.queue.forget();
        std::mem::forget(std::mem::take(&mut self.others));
    }

    /// True if an entry did not lie within the ring.
    pub(super) const fn is_broken(&self) -> bool {
        self.queue.is_broken()
    }

    /// Entries that the device has.
    pub(super) const fn outstanding(&self) -> u32 {
        self.queue.outstanding()
    }

    /// To take messages out that are no longer than a buffer, one after the other.
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

    /// Posts entries until the queue is full, or `stash` and pool are empty. Returns how many.
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

    /// Posts entries of which the first buffer alone is missing, as in nearly all, since short messages took it; as long as there are buffers at
    /// hand.
    #[inline(always)]
    fn refill_firsts(&mut self, lkey: u32, stash: &mut Stash<P>) -> usize {
        let (front, room) = (u64::from(self.front), self.room);
        let count = stash.len().min(self.queue.room());
        let buffers = stash.drain(stash.len() - count..);
        self.queue.commit_firsts(buffers, |buf| DataSegment::new(buf.room().0 - front, room, lkey))
    }

    /// Posts the next entry, with buffers wherever it lacks them. False if there are not enough, or the queue is full.
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

/// Takes messages out of entries that completions name, each of a buffer alone.
#[derive(Debug)]
pub(super) struct CompletedEntries<'q, P> {
    slots: Completed<'q, P>,
    front: u32,
    room: u32,
}

impl<P: Packet> CompletedEntries<'_, P> {
    /// True if a message of so many bytes takes one buffer.
    #[inline(always)]
    pub(super) const fn fits(&self, len: u32) -> bool {
        len <= self.room
    }

    /// A message that fits. An empty one is one buffer, too.
    #[inline(always)]
    pub(super) fn message(&mut self, slot: u16, len: u32) -> Result<P, Wrong> {
        let mut buf = self.slots.take(slot).ok_or(Wrong::Entry)?;
        buf.fill(len);
        Ok(buf)
    }

    /// A datagram, of whose `len` bytes the first lie in front of the buffer's data.
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

/// What a fresh buffer is in the ring, with the bytes in front of its data; `None` if the device does not know its memory.
#[inline(always)]
fn segment<P: Packet>(buf: &P, front: u32, regions: &mut MrTable) -> Option<DataSegment> {
    let (address, len) = buf.room();
    let (address, len) = (address - u64::from(front), len + front);
    Some(DataSegment::new(address, len, regions.lkey(address, len)?))
}
