//! Memory that the host lends to the device: rings, doorbell records, registered regions.
//!
//! The host may write at the same time, so no code here ever creates a reference to this memory. Bytes are
//! copied in and out ([`shared`]), and the words that order the two sides are atomics.

pub(crate) mod shared;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A word of the host, such as a doorbell record, whose address was checked once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostWord(NonNull<AtomicU32>);

// SAFETY: as for the memory that contains it.
unsafe impl Send for HostWord {}

impl HostWord {
    /// Loads the big-endian word. Earlier writes of the host are visible afterwards.
    #[inline]
    pub(crate) fn load(self) -> u32 {
        // SAFETY: valid for four bytes for as long as the host lends them (see `HostMemory::new`), aligned,
        // and shared with the host as an atomic.
        u32::from_be(unsafe { self.0.as_ref() }.load(Ordering::Acquire))
    }
}

/// A range of host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address range whose validity `new` was promised for; every access is a copy or an atomic.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// # Safety
    /// The `len` bytes at `base` must stay mapped, readable and writable until every object of the device
    /// that was given this memory is destroyed, and no Rust reference to them may be live while the device
    /// works.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the length is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Start address.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Start address as a pointer, for readers of memory that no other process and no guest can write. The
    /// device itself uses only [`Self::read`] and [`Self::write`].
    #[inline]
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The `len` bytes at `offset`, if they lie within this range.
    #[inline]
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        // The largest offset depends only on the length.
        if offset > self.len.checked_sub(len)? {
            return None;
        }
        // SAFETY: `offset` is at most `self.len`, so the result stays within the range promised to `new`.
        let base = unsafe { self.base.add(offset) };
        Some(Self { base, len })
    }

    /// Both ranges as one, if `next` starts where this one ends.
    pub(crate) fn joined(&self, next: &Self) -> Option<Self> {
        let adjacent = self.base.as_ptr().wrapping_add(self.len) == next.base.as_ptr();
        // Both ranges were promised to `new`, and so is their union.
        adjacent.then(|| Self { base: self.base, len: self.len + next.len })
    }

    /// Copies the first bytes to `out`; false if `out` is longer than this range.
    #[inline]
    pub fn read(&self, out: &mut [u8]) -> bool {
        if out.len() > self.len {
            return false;
        }
        // SAFETY: that many bytes are readable; host memory is never behind a Rust reference (see `new`).
        unsafe { shared::load(self.base.as_ptr(), out) };
        true
    }

    /// Copies `bytes` to the start; false if they are longer than this range.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> bool {
        if bytes.len() > self.len {
            return false;
        }
        // SAFETY: as in `read`.
        unsafe { shared::store(bytes, self.base.as_ptr()) };
        true
    }

    /// Loads the big-endian word at `offset`, which must be aligned. What the host wrote before it is visible
    /// afterwards.
    #[inline]
    #[must_use]
    pub fn load(&self, offset: usize) -> Option<u32> {
        self.word_at(offset).map(HostWord::load)
    }

    /// The word at `offset`, if it lies within this range and is aligned.
    #[inline]
    pub(crate) fn word_at(&self, offset: usize) -> Option<HostWord> {
        let word = self.part(offset, 4)?.base.cast::<AtomicU32>();
        word.is_aligned().then_some(HostWord(word))
    }

    /// Replaces the first eight bytes, a number in the host's byte order, with `swap` if they equal
    /// `compare`. Returns the old value. The operation is atomic against all other accesses, including those
    /// of the host's processors and other devices. `None`, without effect, if the bytes do not exist or are
    /// not aligned.
    pub(crate) fn compare_swap(&self, compare: u64, swap: u64) -> Option<u64> {
        let word = self.word()?;
        Some(match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(was) | Err(was) => was,
        })
    }

    /// Adds to the first eight bytes, modulo 2^64; otherwise as [`HostMemory::compare_swap`].
    pub(crate) fn fetch_add(&self, add: u64) -> Option<u64> {
        Some(self.word()?.fetch_add(add, Ordering::AcqRel))
    }

    fn word(&self) -> Option<&AtomicU64> {
        let ptr = self.part(0, size_of::<u64>())?.base.cast::<AtomicU64>();
        if !ptr.is_aligned() {
            return None;
        }
        // SAFETY: valid for eight bytes for as long as the host lends them (see `new`), aligned, and shared
        // with the host as an atomic.
        Some(unsafe { ptr.as_ref() })
    }

    /// Stores the byte at `offset` after all earlier writes.
    #[inline]
    pub fn publish(&self, offset: usize, value: u8) {
        let Some(byte) = self.part(offset, 1) else { return };
        // SAFETY: valid for one byte, and shared with the host as an atomic.
        let byte = unsafe { byte.base.cast::<AtomicU8>().as_ref() };
        byte.store(value, Ordering::Release);
    }
}
