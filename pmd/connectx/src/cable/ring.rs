//! One direction of a cable in shared memory: a byte ring with one producer and one consumer.
//!
//! A record is a 32-bit length, the packet, and padding to eight bytes; a record never wraps, a marker sends the reader
//! back to the start. A bit of the length says that the packet has no CRCs, where both ends agreed to that. Indices run freely
//! modulo 2^32. Whoever sits at the other end may be broken or hostile: each index and length read from the memory is checked
//! before use, and packets are copied out before anyone looks at them. Only where both ends are this process's own
//! ([`Trust`]) are they made and looked at where they lie.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Crcs, MAX_PACKET};
use crate::memory::shared;

/// Bytes before a ring's data: the producer's index, the consumer's and whether that one rests, each on cache lines of its own.
pub(super) const RING_HEADER: usize = 256;
const TAIL_OFFSET: usize = 128;
/// Whether the consumer wants to be woken: a word that it sets and the producer clears.
const RESTS_OFFSET: usize = 192;
/// What the end that made the memory offers, in the header of the first ring ([`Place::offer`]).
const OFFER_OFFSET: usize = 64;
/// A length that says "go on at the start".
const WRAP: u32 = u32::MAX;
const ALIGN: u32 = 8;
/// Beside a length: the packet has no CRCs. No length comes near it, and [`WRAP`] is looked for first.
const BARE: u32 = 1 << 31;

/// Memory that two ends of a cable share; unmapped when the last user is gone.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory with no owner thread; all access goes through atomics or raw copies of bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Fresh zeroed memory of this process.
    pub(super) fn anonymous(len: usize) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        Self::from_start(start.cast(), len)
    }

    /// The first `len` bytes of a memory file, shared with whoever else maps it. The file must be sealed against
    /// shrinking, or an access could fault.
    pub(super) fn shared(file: impl AsFd, len: usize) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        Self::from_start(start.cast(), len)
    }

    fn from_start(start: *mut u8, len: usize) -> rustix::io::Result<Self> {
        NonNull::new(start).map(|start| Self { start, len }).ok_or(rustix::io::Errno::NOMEM)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap and nobody holds a reference into it any more. An error leaves it mapped,
        // which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Where one ring lies in a mapping.
#[derive(Clone, Debug)]
struct Place {
    memory: Arc<Mapping>,
    /// Offset of the ring's header; a multiple of 128.
    base: usize,
    /// Bytes of data, a power of two.
    size: u32,
}

impl Place {
    fn new(memory: Arc<Mapping>, base: usize, size: u32) -> Option<Self> {
        let end = base.checked_add(RING_HEADER)?.checked_add(size as usize)?;
        let big_enough = size as usize >= 4 * MAX_PACKET && size <= 1 << 30;
        (size.is_power_of_two() && big_enough && base.is_multiple_of(128) && end <= memory.len)
            .then_some(Self { memory, base, size })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && self.base + offset + 4 <= self.memory.len);
        // SAFETY: `new` checked that header and data lie within the mapping, callers pass a multiple of four below
        // that; the mapping lives as long as `self`, and atomics tolerate writes from outside.
        unsafe { AtomicU32::from_ptr(self.memory.start.as_ptr().add(self.base + offset).cast()) }
    }

    fn head(&self) -> &AtomicU32 {
        self.word(0)
    }

    fn tail(&self) -> &AtomicU32 {
        self.word(TAIL_OFFSET)
    }

    fn rests(&self) -> &AtomicU32 {
        self.word(RESTS_OFFSET)
    }

    /// What is offered to the other end before packets pass; one that knows nothing of it neither writes nor reads it.
    fn offer(&self) -> &AtomicU32 {
        self.word(OFFER_OFFSET)
    }

    /// The length word of the record at `index`, a multiple of eight.
    fn length(&self, index: u32) -> &AtomicU32 {
        self.word(RING_HEADER + (index & (self.size - 1)) as usize)
    }

    /// Bytes from `index` to the end of the data.
    const fn to_end(&self, index: u32) -> u32 {
        self.size - (index & (self.size - 1))
    }

    /// Start of the packet of the record at `index`.
    fn bytes(&self, index: u32) -> *mut u8 {
        let offset = self.base + RING_HEADER + (index & (self.size - 1)) as usize + 4;
        debug_assert!(offset <= self.memory.len);
        // SAFETY: `index` is a multiple of eight, so at least eight bytes of the data follow it (see `new`).
        unsafe { self.memory.start.as_ptr().add(offset) }
    }
}

/// Bytes that a record with a packet of `len` bytes takes.
const fn record(len: u32) -> u32 {
    (4 + len).next_multiple_of(ALIGN)
}

/// Whose the memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Trust(());

impl Trust {
    /// # Safety
    /// The ring's memory is this process's alone, and has one [`Producer`] and one [`Consumer`], which keep off each other's bytes.
    pub(super) const unsafe fn both_ends_are_ours() -> Self {
        Self(())
    }
}

/// The other end wrote something impossible into the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

/// The end that puts packets in.
#[derive(Debug)]
pub(super) struct Producer {
    place: Place,
    head: u32,
    tail: u32,
    /// Something was put in since the consumer was last looked after.
    news: bool,
}

impl Producer {
    /// A producer of the ring at `base`; `None` if the place does not fit. Only one may exist.
    pub(super) fn new(memory: Arc<Mapping>, base: usize, size: u32) -> Option<Self> {
        Some(Self { place: Place::new(memory, base, size)?, head: 0, tail: 0, news: false })
    }

    /// True if a packet of `len` bytes fits now.
    #[inline]
    pub(super) fn has_room(&mut self, len: usize) -> Result<bool, Broken> {
        let total = record(len.min(MAX_PACKET) as u32);
        let to_end = self.place.to_end(self.head);
        let need = if total > to_end { to_end + total } else { total };
        if self.free() >= need {
            return Ok(true);
        }
        self.look_for_room(need)
    }

    /// Asks the consumer how far it is.
    #[inline(never)]
    fn look_for_room(&mut self, need: u32) -> Result<bool, Broken> {
        self.tail = self.place.tail().load(Ordering::Acquire);
        if self.head.wrapping_sub(self.tail) > self.place.size {
            return Err(Broken);
        }
        Ok(self.free() >= need)
    }

    const fn free(&self) -> u32 {
        self.place.size - self.head.wrapping_sub(self.tail)
    }

    /// Puts a packet in if there is room; false if not. `packet` has at most `MAX_PACKET` bytes.
    pub(super) fn push(&mut self, packet: &[u8], crcs: Crcs) -> Result<bool, Broken> {
        let Some(bytes) = self.reserve(packet.len())? else { return Ok(false) };
        // SAFETY: `reserve` found room for the packet; it is not published yet, so a well-behaved consumer does not read it, and
        // another one only hurts itself.
        unsafe { shared::store(packet, bytes) };
        self.commit(packet.len(), crcs);
        Ok(true)
    }

    /// Where a packet of `len` bytes, `MAX_PACKET` at most, is to be written that [`Producer::commit`] publishes then; `None` if there is
    /// no room.
    #[inline(always)]
    pub(super) fn place(&mut self, _: Trust, len: usize) -> Result<Option<&mut [u8]>, Broken> {
        let Some(bytes) = self.reserve(len)? else { return Ok(None) };
        // SAFETY: `reserve` found room for `len` bytes. They are not published, and the memory is ours alone (`Trust`): nobody else
        // reads or writes them as long as the reference lives.
        Ok(Some(unsafe { std::slice::from_raw_parts_mut(bytes, len) }))
    }

    /// Where a packet of `len` bytes goes, which begins at `head` from now on; `None` if there is no room.
    #[inline(always)]
    fn reserve(&mut self, len: usize) -> Result<Option<*mut u8>, Broken> {
        if len > MAX_PACKET {
            return Err(Broken);
        }
        if !self.has_room(len)? {
            return Ok(None);
        }
        let to_end = self.place.to_end(self.head);
        if record(len as u32) > to_end {
            self.place.length(self.head).store(WRAP, Ordering::Relaxed);
            self.head = self.head.wrapping_add(to_end);
        }
        Ok(Some(self.place.bytes(self.head)))
    }

    /// Publishes the packet that was written where `reserve` or [`Producer::place`] said, which were told the same length.
    #[inline(always)]
    pub(super) fn commit(&mut self, len: usize, crcs: Crcs) {
        let len = len as u32;
        let bare = if crcs == Crcs::Absent { BARE } else { 0 };
        self.place.length(self.head).store(len | bare, Ordering::Relaxed);
        self.head = self.head.wrapping_add(record(len));
        self.place.head().store(self.head, Ordering::Release);
        self.news = true;
    }

    /// Offers the other end to leave CRCs out, or does not; to be said before it maps the memory.
    pub(super) fn offer_bare(&self, offered: bool) {
        self.place.offer().store(u32::from(offered), Ordering::Relaxed);
    }

    /// True if the consumer rests and there is something new for it: who asks has to wake it.
    pub(super) fn has_to_wake(&mut self) -> bool {
        if !std::mem::take(&mut self.news) {
            return false;
        }
        // What was put in is seen by a consumer that rests from now on, or its wish is seen here.
        fence(Ordering::SeqCst);
        let rests = self.place.rests().load(Ordering::Relaxed) != 0;
        if rests {
            self.place.rests().store(0, Ordering::Relaxed);
        }
        rests
    }

    /// Counts what the other end has not taken.
    pub(super) fn left_behind(&self) -> u64 {
        let tail = self.place.tail().load(Ordering::Acquire);
        Consumer { place: self.place.clone(), head: self.head, tail, takes_bare: true }.count_known()
    }
}

/// The end that takes packets out.
#[derive(Debug)]
pub(super) struct Consumer {
    place: Place,
    head: u32,
    tail: u32,
    /// Packets without CRCs were agreed to.
    takes_bare: bool,
}

impl Consumer {
    /// A consumer of the ring at `base`; `None` if the place does not fit. Only one may exist.
    pub(super) fn new(memory: Arc<Mapping>, base: usize, size: u32) -> Option<Self> {
        Some(Self { place: Place::new(memory, base, size)?, head: 0, tail: 0, takes_bare: false })
    }

    /// Both ends agreed that packets may have no CRCs. Until then one without breaks the rules.
    pub(super) const fn take_bare(&mut self) {
        self.takes_bare = true;
    }

    /// True if the end that made the memory offers to leave CRCs out.
    pub(super) fn is_offered_bare(&self) -> bool {
        self.place.offer().load(Ordering::Relaxed) == 1
    }

    /// Finds the next record: its length, with `tail` at its start.
    #[inline]
    fn next(&mut self) -> Result<Option<(u32, Crcs)>, Broken> {
        if self.head == self.tail {
            self.head = self.place.head().load(Ordering::Acquire);
        }
        self.known()
    }

    /// As [`Consumer::next`], among what is known to be there.
    #[inline]
    fn known(&mut self) -> Result<Option<(u32, Crcs)>, Broken> {
        while self.head != self.tail {
            let filled = self.head.wrapping_sub(self.tail);
            if filled > self.place.size || !filled.is_multiple_of(ALIGN) {
                return Err(Broken);
            }
            let to_end = self.place.to_end(self.tail);
            let word = self.place.length(self.tail).load(Ordering::Relaxed);
            if word == WRAP {
                if to_end >= filled {
                    return Err(Broken);
                }
                self.tail = self.tail.wrapping_add(to_end);
                continue;
            }
            let (len, crcs) = if self.takes_bare && word & BARE != 0 {
                (word & !BARE, Crcs::Absent)
            } else {
                (word, Crcs::Present)
            };
            if len == 0 || len as usize > MAX_PACKET || record(len) > filled.min(to_end) {
                return Err(Broken);
            }
            return Ok(Some((len, crcs)));
        }
        Ok(None)
    }

    /// Copies the next packet into `into` and returns its length; `None` if there is none. The room goes back to the
    /// producer at [`Consumer::release`].
    pub(super) fn pop(&mut self, into: &mut [u8; MAX_PACKET]) -> Result<Option<(usize, Crcs)>, Broken> {
        let Some((len, crcs)) = self.next()? else { return Ok(None) };
        let packet = into.get_mut(..len as usize).ok_or(Broken)?;
        // SAFETY: `next` checked that `len` bytes of the ring follow. Should the other end write while we
        // copy, we get odd bytes, which nobody has trusted yet.
        unsafe { shared::load(self.place.bytes(self.tail), packet) };
        self.tail = self.tail.wrapping_add(record(len));
        Ok(Some((len as usize, crcs)))
    }

    /// Shows up to `max` packets to `take` by way of `inn` and gives the room of those that it took back; it ends at
    /// the first that is refused. Returns how many were taken, and whether the other end broke the rules.
    pub(super) fn drain(
        &mut self,
        max: usize,
        inn: &mut [u8; MAX_PACKET],
        mut take: impl FnMut(&[u8], Crcs) -> bool,
    ) -> (usize, Result<(), Broken>) {
        self.round(max, |ring| {
            let Some((len, crcs)) = ring.pop(inn)? else { return Ok(false) };
            let taken = take(inn.get(..len).unwrap_or_default(), crcs);
            if !taken {
                ring.tail = ring.tail.wrapping_sub(record(len as u32));
            }
            Ok(taken)
        })
    }

    /// As [`Consumer::drain`], of packets that are shown where they lie.
    pub(super) fn drain_in_place(
        &mut self,
        _: Trust,
        max: usize,
        mut take: impl FnMut(&[u8], Crcs) -> bool,
    ) -> (usize, Result<(), Broken>) {
        self.round(max, |ring| {
            let Some((len, crcs)) = ring.next()? else { return Ok(false) };
            let bytes = ring.place.bytes(ring.tail).cast_const();
            // SAFETY: `next` checked that `len` bytes of the ring follow. The producer has published them and, as the memory is ours
            // alone (`Trust`), nobody writes them before `release`, which comes after this reference.
            let taken = take(unsafe { std::slice::from_raw_parts(bytes, len as usize) }, crcs);
            if taken {
                ring.tail = ring.tail.wrapping_add(record(len));
            }
            Ok(taken)
        })
    }

    /// Takes up to `max` packets by `one`, which is false if there was none or it is refused, and gives their room back.
    fn round(
        &mut self,
        max: usize,
        mut one: impl FnMut(&mut Self) -> Result<bool, Broken>,
    ) -> (usize, Result<(), Broken>) {
        let mut n = 0;
        let mut verdict = Ok(());
        while n < max {
            match one(self) {
                Ok(true) => n += 1,
                Ok(false) => break,
                Err(Broken) => {
                    verdict = Err(Broken);
                    break;
                }
            }
        }
        if n > 0 {
            self.release();
        }
        (n, verdict)
    }

    /// Asks to be woken by what comes from now on. What came before does not wake: it is to be looked for after this.
    pub(super) fn rest(&self) {
        self.place.rests().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Gives the room of all popped packets back.
    pub(super) fn release(&mut self) {
        self.place.tail().store(self.tail, Ordering::Release);
    }

    /// As [`Consumer::count`], of one that is still used.
    pub(super) fn waiting(&self) -> u64 {
        Self { place: self.place.clone(), ..*self }.count()
    }

    /// Counts what is queued at this moment without taking it out for good. It cannot be more than the ring holds, whatever
    /// the other end writes meanwhile.
    pub(super) fn count(mut self) -> u64 {
        self.head = self.place.head().load(Ordering::Acquire);
        self.count_known()
    }

    fn count_known(mut self) -> u64 {
        let mut n = 0;
        while let Ok(Some((len, _))) = self.known() {
            self.tail = self.tail.wrapping_add(record(len));
            n += 1;
        }
        n
    }
}

#[cfg(test)]
mod tests;
