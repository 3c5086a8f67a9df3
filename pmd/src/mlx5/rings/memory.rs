//! Memory shared by a queue and its device.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::fetch::fetch_at;

/// A range of memory that the driver and a device both access. The queue's protocol defines which side owns
/// each byte.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address and a length; `RingMemory::new` makes its caller answer for every access.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Describes `len` bytes from `base`.
    ///
    /// # Safety
    ///
    /// The bytes are readable and writable for as long as any copy of the result is used, and no Rust
    /// reference to them exists. Two threads touch the same byte only in the order of the queue's protocol.
    /// An entry is written before the doorbell record or owner bit that hands it over (with release
    /// ordering). It is read after that record or bit was seen (with acquire ordering).
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Creates an empty range.
    #[must_use]
    pub const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the range is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the `len` bytes from `offset`, if they lie inside the range.
    #[inline]
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        // Written so that the last valid offset can be computed once for all parts of one length.
        if offset > self.len.checked_sub(len)? {
            return None;
        }
        // SAFETY: `offset` lies within the memory that `new`'s caller described.
        Some(Self { base: unsafe { self.base.add(offset) }, len })
    }

    /// Returns up to `count` slots of `stride` bytes, each of which starts with a `T`. Returns no slots if
    /// one is shorter than a `T`.
    #[inline]
    #[must_use]
    pub fn slots<T>(&self, stride: usize, count: usize) -> Slots<T> {
        let count = if size_of::<T>() <= stride { count.min(self.len / stride) } else { 0 };
        Slots { base: self.base, stride, count, of: PhantomData }
    }

    #[inline]
    fn holds(&self, offset: usize, len: usize) -> bool {
        // For a small constant offset the compiler removes the overflow check.
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Writes a value at `offset`. Returns false, without writing, if it does not lie inside. The queue must
    /// then not hand the entry to the device.
    #[inline]
    pub fn write<T: IntoBytes + Immutable + ?Sized>(&self, offset: usize, value: &T) -> bool {
        let bytes = value.as_bytes();
        let inside = self.holds(offset, bytes.len());
        if inside {
            // SAFETY: inside, as just checked; writable and unshared at this moment by the contract of `new`.
            // A value that the caller holds by reference does not overlap memory that has no references.
            unsafe { self.base.add(offset).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        inside
    }

    /// Prefetches the cache line at `offset`.
    #[inline(always)]
    pub fn fetch(&self, offset: usize) {
        fetch_at(self.base.as_ptr().wrapping_add(offset));
    }

    /// Writes zeros.
    pub fn zero(&self, offset: usize, len: usize) {
        if self.holds(offset, len) {
            // SAFETY: as in `write`.
            unsafe { self.base.add(offset).as_ptr().write_bytes(0, len) };
        }
    }

    /// Reads a value at `offset`. Returns zeros if it does not lie inside.
    #[inline]
    #[must_use]
    pub fn read<T: FromBytes>(&self, offset: usize) -> T {
        if self.holds(offset, size_of::<T>()) {
            // SAFETY: inside, as just checked; readable and unshared at this moment by the contract of `new`.
            // Any bytes are a valid `T`.
            unsafe { self.base.add(offset).cast::<T>().as_ptr().read_unaligned() }
        } else {
            T::new_zeroed()
        }
    }

    /// Reads a byte that the device may write at any time, ordered before all later reads.
    #[inline]
    #[must_use]
    pub fn load_acquire(&self, offset: usize) -> u8 {
        if self.holds(offset, 1) {
            // SAFETY: inside, as just checked. An `AtomicU8` has no alignment, and the other side writes the
            // byte atomically.
            unsafe { std::sync::atomic::AtomicU8::from_ptr(self.base.add(offset).as_ptr()) }
                .load(Ordering::Acquire)
        } else {
            super::cqe_owner::INITIAL
        }
    }
}

/// The slots of a ring, each of which starts with a `T`. The bounds are checked once for all of them.
#[derive(Clone, Copy, Debug)]
pub struct Slots<T> {
    base: NonNull<u8>,
    stride: usize,
    count: usize,
    of: PhantomData<T>,
}

impl<T: IntoBytes + Immutable> Slots<T> {
    /// Writes the start of a slot. Returns false, without writing, if there is no such slot.
    #[inline(always)]
    pub fn write(&self, slot: usize, value: T) -> bool {
        let inside = slot < self.count;
        if inside {
            // SAFETY: `count` slots of `stride` bytes, each at least as long as a `T`, lie in the memory that
            // the caller of `RingMemory::new` described. They are writable and unshared at this moment by
            // that contract.
            unsafe { self.base.add(slot * self.stride).cast::<T>().as_ptr().write_unaligned(value) };
        }
        inside
    }
}

/// A doorbell record: one or two big-endian words of memory that the driver writes and the device reads.
#[derive(Clone, Copy, Debug)]
pub struct DoorbellRecord {
    words: NonNull<AtomicU32>,
    count: usize,
}

// SAFETY: the words are atomic; `DoorbellRecord::new` makes its caller answer for their being there.
unsafe impl Send for DoorbellRecord {}

impl DoorbellRecord {
    /// Describes the record of `count` words (2, or 1 for a shared receive queue) at `words`.
    ///
    /// # Safety
    ///
    /// The words are readable and writable for as long as any copy of the result is used. They are accessed
    /// only by atomic operations.
    #[must_use]
    pub const unsafe fn new(words: NonNull<AtomicU32>, count: usize) -> Self {
        Self { words, count }
    }

    /// True if word `index` exists. Queues check this on creation so that no later store is lost.
    #[must_use]
    pub const fn has(&self, index: usize) -> bool {
        index < self.count
    }

    /// Writes word `index`, ordered after all earlier writes of this thread. Does nothing if the word does
    /// not exist.
    #[inline]
    pub fn store(&self, index: usize, value: u32) {
        if index < self.count {
            // SAFETY: the word exists by the contract of `new`.
            unsafe { self.words.add(index).as_ref() }.store(value.to_be(), Ordering::Release);
        }
    }

    /// Reads word `index`, ordered before all later reads of this thread.
    #[must_use]
    pub fn load(&self, index: usize) -> u32 {
        if index < self.count {
            // SAFETY: the word exists by the contract of `new`.
            u32::from_be(unsafe { self.words.add(index).as_ref() }.load(Ordering::Acquire))
        } else {
            0
        }
    }

    /// Prefetches the record.
    #[inline(always)]
    pub fn fetch(&self) {
        fetch_at(self.words.as_ptr());
    }

    /// Clears all words.
    pub fn clear(&self) {
        for index in 0..self.count {
            self.store(index, 0);
        }
    }
}
