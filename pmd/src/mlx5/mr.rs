//! Local key lookup by address.

use arrayvec::ArrayVec;

use crate::mem::packet::PacketPool;

/// Maximum number of memory regions in a table. Memory zones of hugepage pools are few and large.
pub const MAX_REGIONS: usize = 64;

/// A registered memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Start address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Local key.
    pub lkey: u32,
}

impl Region {
    /// True if all `len` bytes at `address` lie in the region.
    #[inline]
    #[must_use]
    pub const fn holds(&self, address: u64, len: u32) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset < self.len && len as u64 <= self.len - offset
    }
}

/// The registered regions that contain a worker's buffers. A lookup tries the last hit first, then all
/// regions.
#[derive(Clone, Debug)]
pub struct MrTable {
    regions: ArrayVec<Region, MAX_REGIONS>,
    /// Copy of the region found last.
    last: Region,
    /// Number of valid start offsets in `last` for a range of at most [`SMALL`] bytes.
    small: u64,
}

/// Ranges up to this length need one comparison to hit the last region.
///
/// A packet's length has 16 bits, so its range always qualifies. A range that starts in the last `SMALL`
/// bytes of a region takes the full check.
const SMALL: u32 = 1 << 17;

impl Default for MrTable {
    fn default() -> Self {
        Self { regions: ArrayVec::new(), last: Region { start: 0, len: 0, lkey: 0 }, small: 0 }
    }
}

impl MrTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region. A full table returns it.
    pub fn add(&mut self, region: Region) -> Result<(), Region> {
        self.regions.try_push(region).map_err(|full| full.element())
    }

    /// Returns the key of the region that contains all the bytes.
    #[inline(always)]
    pub fn lkey(&mut self, address: u64, len: u32) -> Option<u32> {
        if len <= SMALL && address.wrapping_sub(self.last.start) < self.small {
            return Some(self.last.lkey);
        }
        self.find(address, len)
    }

    #[cold]
    fn find(&mut self, address: u64, len: u32) -> Option<u32> {
        if !self.last.holds(address, len) {
            self.last = *self.regions.iter().find(|region| region.holds(address, len))?;
            self.small = self.last.len.saturating_sub(SMALL.into());
        }
        Some(self.last.lkey)
    }

    /// Returns the key of the region that contains all buffers of a pool, if there is one.
    pub(super) fn of_pool<P>(&self, pool: &impl PacketPool<P>) -> Option<u32> {
        let region = self.regions.iter().find(|region| pool.lies_within(region.start, region.len))?;
        Some(region.lkey)
    }

    /// Returns all regions.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
}
