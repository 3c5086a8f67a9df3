//! One direction of a cable in shared memory: a byte ring with one producer and one consumer.
//!
//! A record is a 32-bit length, the packet, and padding to eight bytes. A record never wraps; a marker sends
//! the reader back to the start. A bit of the length says that the packet has no CRCs, if both ends agreed to
//! that. Indices run freely modulo 2^32.
//!
//! The process at the other end may be broken or hostile. Each index and length read from the memory is
//! checked before use, and packets are copied out before they are parsed. Packets are built and parsed in
//! place only if both ends belong to this process ([`Trust`]).

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Crcs, MAX_PACKET};
use crate::memory::shared;

/// Bytes before a ring's data: producer index, consumer index and the consumer's sleep flag, each on its own
/// cache lines.
pub(super) const RING_HEADER: usize = 256;
const TAIL_OFFSET: usize = 128;
/// Offset of the sleep flag: the consumer sets it to request a wakeup, and the producer clears it.
const SLEEP_FLAG_OFFSET: usize = 192;
/// Offset of the offer by the end that created the memory, in the header of the first ring
/// ([`Place::offer`]).
const OFFER_OFFSET: usize = 64;
/// A length that means "continue at the start".
const WRAP: u32 = u32::MAX;
const ALIGN: u32 = 8;
/// Flag in the length: the packet has no CRCs. No length has this bit, and [`WRAP`] is checked first.
const BARE: u32 = 1 << 31;

/// Memory shared by two ends of a cable; unmapped with the last reference.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory without an owner thread; all access is by atomics or raw copies of
// bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates zeroed private memory.
    pub(super) fn anonymous(len: usize) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice affects no other memory.
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

    /// Maps the first `len` bytes of a memory file, shared with other processes that map it. The file must be
    /// sealed against shrinking; otherwise an access could fault.
    pub(super) fn shared(file: impl AsFd, len: usize) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice affects no other memory.
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
        // SAFETY: the range came from mmap, and no reference into it exists any more. An error leaves it
        // mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Location of one ring in a mapping.
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
        // SAFETY: `new` checked that header and data lie within the mapping, and callers pass a multiple of
        // four below that. The mapping lives as long as `self`, and atomics tolerate concurrent writes by
        // others.
        unsafe { AtomicU32::from_ptr(self.memory.start.as_ptr().add(self.base + offset).cast()) }
    }

    fn head(&self) -> &AtomicU32 {
        self.word(0)
    }

    fn tail(&self) -> &AtomicU32 {
        self.word(TAIL_OFFSET)
    }

    fn sleep_flag(&self) -> &AtomicU32 {
        self.word(SLEEP_FLAG_OFFSET)
    }

    /// The offer to the other end before packets pass. An older version neither writes nor reads it.
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

/// Bytes of a record with a packet of `len` bytes.
const fn record(len: u32) -> u32 {
    (4 + len).next_multiple_of(ALIGN)
}

/// Proof that both ends of a ring belong to this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Trust(());

impl Trust {
    /// # Safety
    /// The ring's memory belongs to this process alone and has one [`Producer`] and one [`Consumer`], which
    /// do not access each other's bytes.
    pub(super) const unsafe fn both_ends_are_ours() -> Self {
        Self(())
    }
}

/// The other end wrote an impossible value to the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

/// The producing end.
#[derive(Debug)]
pub(super) struct Producer {
    place: Place,
    head: u32,
    tail: u32,
    /// A packet was added since the last check of the consumer's sleep flag.
    news: bool,
}

impl Producer {
    /// Creates the producer of the ring at `base`; `None` if the ring does not fit. Only one may exist.
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

    /// Reads the consumer's index.
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

    /// Adds a packet if there is room; otherwise false. `packet` has at most `MAX_PACKET` bytes.
    pub(super) fn push(&mut self, packet: &[u8], crcs: Crcs) -> Result<bool, Broken> {
        let Some(bytes) = self.reserve(packet.len())? else { return Ok(false) };
        // SAFETY: `reserve` found room for the packet. It is not published yet, so a correct consumer does
        // not read it; an incorrect consumer harms only itself.
        unsafe { shared::store(packet, bytes) };
        self.commit(packet.len(), crcs);
        Ok(true)
    }

    /// The buffer for a packet of `len` bytes, at most `MAX_PACKET`, which [`Producer::commit`] then
    /// publishes; `None` if there is no room.
    #[inline(always)]
    pub(super) fn place(&mut self, _: Trust, len: usize) -> Result<Option<&mut [u8]>, Broken> {
        let Some(bytes) = self.reserve(len)? else { return Ok(None) };
        // SAFETY: `reserve` found room for `len` bytes. They are not published, and the memory belongs to
        // this process alone (`Trust`), so nothing else reads or writes them as long as the reference lives.
        Ok(Some(unsafe { std::slice::from_raw_parts_mut(bytes, len) }))
    }

    /// Reserves a record for a packet of `len` bytes and moves `head` to it; `None` if there is no room.
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

    /// Publishes the packet in the buffer from `reserve` or [`Producer::place`], called with the same length.
    #[inline(always)]
    pub(super) fn commit(&mut self, len: usize, crcs: Crcs) {
        let len = len as u32;
        let bare = if crcs == Crcs::Absent { BARE } else { 0 };
        self.place.length(self.head).store(len | bare, Ordering::Relaxed);
        self.head = self.head.wrapping_add(record(len));
        self.place.head().store(self.head, Ordering::Release);
        self.news = true;
    }

    /// Sets whether the other end is offered to omit CRCs. Call it before the other end maps the memory.
    pub(super) fn offer_bare(&self, offered: bool) {
        self.place.offer().store(u32::from(offered), Ordering::Relaxed);
    }

    /// True if the consumer sleeps and packets were added since the last call: the caller must wake it.
    pub(super) fn has_to_wake(&mut self) -> bool {
        if !std::mem::take(&mut self.news) {
            return false;
        }
        // Either a consumer that goes to sleep now sees the packet, or its flag is seen here.
        fence(Ordering::SeqCst);
        let sleeps = self.place.sleep_flag().load(Ordering::Relaxed) != 0;
        if sleeps {
            self.place.sleep_flag().store(0, Ordering::Relaxed);
        }
        sleeps
    }

    /// Counts the packets that the other end has not consumed.
    pub(super) fn left_behind(&self) -> u64 {
        let tail = self.place.tail().load(Ordering::Acquire);
        Consumer { place: self.place.clone(), head: self.head, tail, takes_bare: true }.count_known()
    }
}

/// The consuming end.
#[derive(Debug)]
pub(super) struct Consumer {
    place: Place,
    head: u32,
    tail: u32,
    /// Both ends agreed to packets without CRCs.
    takes_bare: bool,
}

impl Consumer {
    /// Creates the consumer of the ring at `base`; `None` if the ring does not fit. Only one may exist.
    pub(super) fn new(memory: Arc<Mapping>, base: usize, size: u32) -> Option<Self> {
        Some(Self { place: Place::new(memory, base, size)?, head: 0, tail: 0, takes_bare: false })
    }

    /// Accepts packets without CRCs, as both ends agreed. Before this call such a packet violates the
    /// protocol.
    pub(super) const fn take_bare(&mut self) {
        self.takes_bare = true;
    }

    /// True if the end that created the memory offers to omit CRCs.
    pub(super) fn is_offered_bare(&self) -> bool {
        self.place.offer().load(Ordering::Relaxed) == 1
    }

    /// Finds the next record and returns its length, with `tail` at its start.
    #[inline]
    fn next(&mut self) -> Result<Option<(u32, Crcs)>, Broken> {
        if self.head == self.tail {
            self.head = self.place.head().load(Ordering::Acquire);
        }
        self.known()
    }

    /// As [`Consumer::next`], among the records known to exist.
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

    /// Copies the next packet to `into` and returns its length; `None` if there is none.
    /// [`Consumer::release`] returns the room to the producer.
    pub(super) fn pop(&mut self, into: &mut [u8; MAX_PACKET]) -> Result<Option<(usize, Crcs)>, Broken> {
        let Some((len, crcs)) = self.next()? else { return Ok(None) };
        let packet = into.get_mut(..len as usize).ok_or(Broken)?;
        // SAFETY: `next` checked that `len` bytes of the ring follow. If the other end writes during the
        // copy, the bytes are arbitrary, and nothing has trusted them yet.
        unsafe { shared::load(self.place.bytes(self.tail), packet) };
        self.tail = self.tail.wrapping_add(record(len));
        Ok(Some((len as usize, crcs)))
    }

    /// Passes at most `max` packets to `take`, copied to `inn`, and returns the room of those taken to the
    /// producer. Stops at the first packet that is refused. Returns the number of packets taken, and whether
    /// the other end violated the protocol.
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

    /// As [`Consumer::drain`], with packets passed in place.
    pub(super) fn drain_in_place(
        &mut self,
        _: Trust,
        max: usize,
        mut take: impl FnMut(&[u8], Crcs) -> bool,
    ) -> (usize, Result<(), Broken>) {
        self.round(max, |ring| {
            let Some((len, crcs)) = ring.next()? else { return Ok(false) };
            let bytes = ring.place.bytes(ring.tail).cast_const();
            // SAFETY: `next` checked that `len` bytes of the ring follow. The producer has published them
            // and, as the memory belongs to this process alone (`Trust`), nothing writes them before
            // `release`, which comes after this reference.
            let taken = take(unsafe { std::slice::from_raw_parts(bytes, len as usize) }, crcs);
            if taken {
                ring.tail = ring.tail.wrapping_add(record(len));
            }
            Ok(taken)
        })
    }

    /// Consumes at most `max` packets with `one` and returns their room. `one` is false if there is no packet
    /// or it is refused.
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

    /// Requests a wakeup for packets from now on. Earlier packets do not wake: the caller must check for them
    /// after this call.
    pub(super) fn request_wakeup(&self) {
        self.place.sleep_flag().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns the room of all consumed packets.
    pub(super) fn release(&mut self) {
        self.place.tail().store(self.tail, Ordering::Release);
    }

    /// As [`Consumer::count`], for a consumer still in use.
    pub(super) fn waiting(&self) -> u64 {
        Self { place: self.place.clone(), ..*self }.count()
    }

    /// Counts the packets queued at this moment without consuming them. The result is bounded by the ring's
    /// capacity, whatever the other end writes meanwhile.
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
