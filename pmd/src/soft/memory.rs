//! Memory for rings, allocated as the library would.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use crate::hca::HcaError;
use crate::mlx5::rings::{DoorbellRecord, RingMemory};
use connectx::HostMemory;

/// Alignment of rings and records: a cache line.
const ALIGN: usize = 64;

/// Zeroed memory that never moves.
#[derive(Debug)]
struct Allocation {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for Allocation {}

impl Allocation {
    fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(ALIGN), ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// All ring memory of a device. The device holds it, so it outlives all users of the device.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena(Arc<Mutex<BTreeMap<usize, Allocation>>>);

/// A block of an [`Arena`], by address. It is valid until [`Arena::free`].
#[derive(Debug)]
pub(super) struct Block {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is a name for memory that the arena owns.
unsafe impl Send for Block {}

impl Arena {
    pub(super) fn allocate(&self, len: usize) -> Result<Block, HcaError> {
        let allocation = Allocation::new(len).ok_or(HcaError::Exhausted("memory for rings"))?;
        let block = Block { base: allocation.base, len: allocation.layout.size() };
        self.0.lock().insert(block.base.as_ptr().addr(), allocation);
        Ok(block)
    }

    /// Total length of all blocks in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().values().map(|allocation| allocation.layout.size()).sum()
    }

    /// Frees a block.
    ///
    /// # Safety
    /// Neither the device nor a driver's queue uses its memory any more.
    pub(super) unsafe fn free(&self, block: Block) {
        self.0.lock().remove(&block.base.as_ptr().addr());
    }
}

impl Block {
    /// Returns the driver's view of a range.
    pub(super) fn ring(&self, at: usize, len: usize) -> RingMemory {
        debug_assert!(at + len <= self.len);
        // SAFETY: inside the block, which stays until `Arena::free`; its callers guarantee that nobody uses
        // the block then. Driver and device hand entries over by records and owner bits.
        unsafe { RingMemory::new(self.base.add(at), len) }
    }

    /// Returns the driver's view of a doorbell record.
    pub(super) fn record(&self, at: usize, words: usize) -> DoorbellRecord {
        debug_assert!(at.is_multiple_of(4) && at + words * 4 <= self.len);
        // SAFETY: as in `ring`; blocks are aligned to 64, and both sides use atomics.
        unsafe { DoorbellRecord::new(self.base.add(at).cast::<AtomicU32>(), words) }
    }

    /// Returns the device's view of a range.
    pub(super) fn host(&self, at: usize, len: usize) -> HostMemory {
        debug_assert!(at + len <= self.len);
        // SAFETY: as in `ring`. The device's objects are destroyed before their memory is freed, and the
        // device keeps the arena.
        unsafe { HostMemory::new(self.base.add(at), len) }
    }
}
