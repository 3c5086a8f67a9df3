//! Receive queues: a queue pair's own, and shared ones.

use zerocopy::FromBytes;

use super::mr::{Member, ProtectionDomain};
use super::xrc::XrcQueue;
use crate::memory::{HostMemory, HostWord};
use crate::region::RegionMemory;
use prm::{DBREC_RECEIVE, DataSegment, INVALID_LKEY, NextSegment};

/// Largest slot of a receive ring in bytes.
pub(crate) const MAX_STRIDE: usize = 1024;
const MIN_STRIDE: usize = 16;

/// The receive queue of one queue pair: data segments only, consumed in order.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    ring: RegionMemory,
    stride: usize,
    mask: u16,
    /// The host's producer index.
    posted: HostWord,
    taken: u16,
    pub(crate) domain: Member,
}

/// The data segments in the slot of `len` bytes at `at`, from number `from` up to the terminator. The host
/// may write to them meanwhile: each segment is copied once, and only the copy is used.
#[inline]
fn segments(ring: &RegionMemory, (at, len): (usize, usize), from: u16) -> impl Iterator<Item = DataSegment> {
    (from..(len / size_of::<DataSegment>()) as u16).map_while(move |n| segment(ring, (at, len), n))
}

/// Segment number `n`; `None` for the terminator and behind the slot.
#[inline(always)]
fn segment(ring: &RegionMemory, (at, len): (usize, usize), n: u16) -> Option<DataSegment> {
    const SIZE: usize = size_of::<DataSegment>();
    let behind = usize::from(n) * SIZE;
    let bytes = if behind + SIZE <= len { ring.array::<SIZE>(at + behind) } else { None };
    let segment: DataSegment = zerocopy::transmute!(bytes?);
    (segment.lkey.get() != INVALID_LKEY).then_some(segment)
}

/// Mask of the slot index, if the geometry of the ring is valid.
fn slots_mask(ring: &RegionMemory, stride: usize) -> Option<u16> {
    if !(MIN_STRIDE..=MAX_STRIDE).contains(&stride) || !stride.is_power_of_two() {
        return None;
    }
    let len = usize::try_from(ring.len()).ok()?;
    let slots = len / stride;
    let fits = slots.is_power_of_two() && slots <= 1 << 16 && slots * stride == len;
    fits.then_some((slots - 1) as u16)
}

impl ReceiveQueue {
    pub(crate) fn new(ring: RegionMemory, stride: usize, dbrec: HostMemory) -> Option<Self> {
        let mask = slots_mask(&ring, stride)?;
        let posted = dbrec.word_at(DBREC_RECEIVE * 4)?;
        Some(Self { ring, stride, mask, posted, taken: 0, domain: Member::default() })
    }

    /// Entries posted and not consumed. A record that is ahead of the ring is invalid and counts as none.
    pub(crate) fn available(&self) -> u16 {
        let posted = self.posted.load() as u16;
        let available = posted.wrapping_sub(self.taken);
        if available <= self.mask.saturating_add(1) { available } else { 0 }
    }

    /// Consumes the next entry and returns its counter, which wraps modulo 2^16.
    pub(crate) fn take(&mut self) -> Option<u16> {
        if self.available() == 0 {
            return None;
        }
        let counter = self.taken;
        self.taken = self.taken.wrapping_add(1);
        Some(counter)
    }

    /// The entry that [`ReceiveQueue::take`] would consume.
    pub(crate) fn front(&self) -> Option<u16> {
        (self.available() > 0).then_some(self.taken)
    }

    /// The data segments of an entry from number `from` on, each read on demand.
    #[inline]
    pub(crate) fn segments(&self, counter: u16, from: u16) -> impl Iterator<Item = DataSegment> {
        segments(&self.ring, self.place(counter), from)
    }

    /// Data segment `n` of an entry, if it exists. Does not check for a terminator before it.
    #[inline]
    pub(crate) fn segment(&self, counter: u16, n: u16) -> Option<DataSegment> {
        segment(&self.ring, self.place(counter), n)
    }

    fn place(&self, counter: u16) -> (usize, usize) {
        (usize::from(counter & self.mask) * self.stride, self.stride)
    }

    /// Discards the posted entries.
    pub(crate) fn reset(&mut self) {
        self.taken = 0;
    }
}

/// Result of taking an entry from a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// The slot now belongs to the device; true if the queue fell below its limit.
    Slot(u16, bool),
    /// Nothing is posted.
    Empty,
    /// A link leads out of the ring: the queue is broken; true on the first detection.
    Broken(bool),
}

/// A shared receive queue: a linked list of slots.
#[derive(Debug)]
pub(crate) struct Srq {
    ring: RegionMemory,
    stride: usize,
    mask: u16,
    /// The host's producer index.
    posted: HostWord,
    /// The next slot to consume.
    head: u16,
    taken: u16,
    limit: u16,
    armed: bool,
    broken: bool,
    pub(crate) domain: ProtectionDomain,
    /// Attributes of an XRC queue; `None` for an ordinary one.
    pub(crate) xrc: Option<XrcQueue>,
}

impl Srq {
    pub(crate) fn new(ring: RegionMemory, stride: usize, dbrec: HostMemory) -> Option<Self> {
        let mask = slots_mask(&ring, stride)?;
        let posted = dbrec.word_at(DBREC_RECEIVE * 4)?;
        let usable = stride >= 2 * MIN_STRIDE;
        usable.then_some(Self {
            ring,
            stride,
            mask,
            posted,
            head: 0,
            taken: 0,
            limit: 0,
            armed: false,
            broken: false,
            domain: ProtectionDomain::default(),
            xrc: None,
        })
    }

    /// Arms the limit event, which is raised once when fewer than `limit` entries are posted.
    pub(crate) fn arm_limit(&mut self, limit: u16) {
        self.limit = limit;
        self.armed = limit > 0;
    }

    /// Arms the event again with the same limit.
    pub(crate) fn rearm(&mut self) {
        self.armed = self.limit > 0;
    }

    /// Entries posted and not consumed.
    pub(crate) fn available(&self) -> u16 {
        let posted = self.posted.load() as u16;
        let available = posted.wrapping_sub(self.taken);
        if available <= self.mask { available } else { 0 }
    }

    /// The limit if the event is armed; 0 if it is not.
    pub(crate) const fn armed_limit(&self) -> u16 {
        if self.armed { self.limit } else { 0 }
    }

    /// True if it supplies no more receives.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// The slot that [`Srq::take`] would consume.
    pub(crate) fn front(&self) -> Option<u16> {
        (!self.broken && self.available() > 0).then_some(self.head)
    }

    /// Consumes the next entry. Its link is read now, because the host may overwrite it as soon as the entry
    /// has completed.
    pub(crate) fn take(&mut self) -> Taken {
        if self.broken {
            return Taken::Broken(false);
        }
        let available = self.available();
        if available == 0 {
            return Taken::Empty;
        }
        let slot = self.head;
        let link: Option<[u8; size_of::<NextSegment>()]> = self.ring.array(self.at(slot));
        let next = link.and_then(|link| Some(NextSegment::read_from_bytes(&link).ok()?.next.get()));
        let Some(next) = next.filter(|&next| next <= self.mask) else {
            self.broken = true;
            return Taken::Broken(true);
        };
        self.head = next;
        self.taken = self.taken.wrapping_add(1);
        let below = self.armed && available - 1 < self.limit;
        self.armed &= !below;
        Taken::Slot(slot, below)
    }

    fn at(&self, slot: u16) -> usize {
        usize::from(slot & self.mask) * self.stride
    }

    /// The data segments of a slot, behind the link, from number `from` on, each read on demand.
    #[inline]
    pub(crate) fn segments(&self, slot: u16, from: u16) -> impl Iterator<Item = DataSegment> {
        segments(&self.ring, self.place(slot), from)
    }

    /// Data segment `n` of a slot, if it exists. Does not check for a terminator before it.
    #[inline]
    pub(crate) fn segment(&self, slot: u16, n: u16) -> Option<DataSegment> {
        segment(&self.ring, self.place(slot), n)
    }

    fn place(&self, slot: u16) -> (usize, usize) {
        let link = size_of::<NextSegment>();
        (self.at(slot) + link, self.stride - link)
    }
}
