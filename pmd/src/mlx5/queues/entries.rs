//! A shared receive queue with its buffers.
//!
//! Each entry has as many buffers as the largest message needs, and nearly every message takes the first one alone. So the first ones of
//! all entries lie side by side, 4 KiB for 512 entries (as a part of entries of 17 buffers they were spread over 70), and what a refill
//! writes of such an entry is its link and its first data segment: all else is in the ring since the entry was posted last. Where one region holds the whole
//! pool, its key is asked for once.

use crate::mem::packet::{self, Packet, PacketPool as _, STASH, Stash, top_up};
use crate::mlx5::mr::MrTable;
use crate::mlx5::rings::SrqRing;
use crate::mlx5::srq::SharedReceiveQueue;
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
    queue: SharedReceiveQueue,
    /// The first buffer of each entry. There is one in each that the device has.
    first: Box<[Option<P>]>,
    /// The others of each entry.
    others: Box<[Option<P>]>,
    /// How many of those an entry has.
    others_each: usize,
    /// How many of the first of those may be missing in each entry; none behind them is.
    missing: Box<[u8]>,
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
        let (slots, others_each) = (queue.slots(), per_entry - 1);
        Self {
            queue,
            first: (0..slots).map(|_| None).collect(),
            others: (0..slots * others_each).map(|_| None).collect(),
            others_each,
            missing: vec![others_each as u8; slots].into(),
            front,
            room,
            lkey: regions.of_pool(pool),
        }
    }

    /// Lets go of all buffers without giving them back.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.first));
        std::mem::forget(std::mem::take(&mut self.others));
    }

    /// Entries that the device has.
    pub(super) const fn outstanding(&self) -> u32 {
        self.queue.outstanding()
    }

    /// A receive has failed. The entry keeps its buffers and is posted again as it is.
    pub(super) fn failed(&mut self, slot: u16) -> Result<(), Wrong> {
        self.queue.take(slot).map(|_| ()).ok_or(Wrong::Entry)
    }

    /// Takes the first buffer of the entry that a completion names.
    #[inline(always)]
    pub(super) fn single(&mut self, slot: u16) -> Result<P, Wrong> {
        let slot = self.queue.take(slot).ok_or(Wrong::Entry)?;
        self.first.get_mut(slot).and_then(Option::take).ok_or(Wrong::Entry)
    }

    /// Takes a message of `len` bytes out of the entry that a completion names.
    #[inline(always)]
    pub(super) fn message(&mut self, slot: u16, len: u32) -> Result<P, Wrong> {
        if len > self.room {
            return self.chain(slot, len);
        }
        // An empty message is one buffer, too.
        let mut buf = self.single(slot)?;
        buf.fill(len);
        Ok(buf)
    }

    /// The same of one that is longer than a buffer.
    #[inline(never)]
    fn chain(&mut self, slot: u16, len: u32) -> Result<P, Wrong> {
        let slot = self.queue.take(slot).ok_or(Wrong::Entry)?;
        let start = slot * self.others_each;
        let (Some(first), Some(others), Some(missing)) = (
            self.first.get_mut(slot),
            self.others.get_mut(start..start + self.others_each),
            self.missing.get_mut(slot),
        ) else {
            return Err(Wrong::Entry);
        };
        let (message, used) = packet::message(first, others, len, self.room).ok_or(Wrong::Length)?;
        *missing = (used - 1) as u8;
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
        while let Some(slot) = self.queue.next_slot() {
            let (Some(first), Some(missing)) = (self.first.get_mut(slot), self.missing.get(slot)) else {
                break;
            };
            // As most are: a short message took the first one.
            if first.is_none() && *missing == 0 {
                let Some(buf) = stash.pop() else {
                    if top_up(stash, pool, 1) {
                        continue;
                    }
                    break;
                };
                let data = match self.lkey {
                    Some(lkey) => DataSegment::new(buf.room().0 - u64::from(self.front), self.room, lkey),
                    None => match segment(&buf, self.front, regions) {
                        Some(data) => data,
                        None => break,
                    },
                };
                // There was nothing to drop.
                std::mem::forget(first.replace(buf));
                self.queue.commit_first(slot, data);
            } else if !self.fill(slot, stash, pool, regions) || self.queue.commit().is_none() {
                break;
            }
            posted += 1;
        }
        self.queue.publish();
        posted
    }

    /// Puts buffers wherever the entry that is posted next lacks them. False if there are not enough.
    #[inline(never)]
    fn fill(&mut self, slot: usize, stash: &mut Stash<P>, pool: &mut P::Pool, regions: &mut MrTable) -> bool {
        let start = slot * self.others_each;
        let (Some(first), Some(missing)) = (self.first.get_mut(slot), self.missing.get_mut(slot)) else {
            return false;
        };
        let Some(others) = self.others.get_mut(start..start + usize::from(*missing)) else { return false };
        // None for one whose receive failed: it has them all.
        let needed = usize::from(first.is_none()) + others.len();
        if !top_up(stash, pool, needed) {
            return false;
        }
        for (index, place) in [first].into_iter().chain(others).enumerate() {
            if place.is_none() {
                let Some(buf) = stash.pop() else { return false };
                let Some(data) = segment(&buf, self.front, regions) else { return false };
                self.queue.write_segment(index, data);
                *place = Some(buf);
            }
        }
        *missing = 0;
        true
    }
}

/// What a fresh buffer is in the ring, with the bytes in front of its data; `None` if the device does not know its memory.
#[inline(always)]
fn segment<P: Packet>(buf: &P, front: u32, regions: &mut MrTable) -> Option<DataSegment> {
    let (address, len) = buf.room();
    let (address, len) = (address - u64::from(front), len + front);
    Some(DataSegment::new(address, len, regions.lkey(address, len)?))
}
