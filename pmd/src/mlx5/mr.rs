//! Local keys by address.

use arrayvec::ArrayVec;

use crate::mem::packet::PacketPool;

/// Most memory regions of one table: zones of hugepage pools are few and large.
pub const MAX_REGIONS: usize = 64;

/// A registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Its local key.
    pub lkey: u32,
}

impl Region {
    /// True if the bytes lie inside.
    #[inline]
    #[must_use]
    pub const fn holds(&self, address: u64, len: u32) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset < self.len && len as u64 <= self.len - offset
    }
}

/// The registered regions that a worker's buffers lie in. Looks at the one found last first, then at all.
#[derive(Clone, Debug)]
pub struct MrTable {
    regions: ArrayVec<Region, MAX_REGIONS>,
    /// A copy of that.
    last: Region,
    /// Where a piece of at most [`SMALL`] bytes may begin in it, by the distance from its beginning.
    small: u64,
}

/// Bytes of a piece that is told to lie in the last region by one comparison: of a packet, whose length has 16 bits, that one is known beforehand. What
/// lies in a region's last bytes, so many of them, is told by more.
const SMALL: u32 = 1 << 17;

impl Default for MrTable {
    fn default() -> Self {
        Self { regions: ArrayVec::new(), last: Region { start: 0, len: 0, lkey: 0 }, small: 0 }
    }
}

impl MrTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region; a full table hands it back.
    pub fn add(&mut self, region: Region) -> Result<(), Region> {
        self.regions.try_push(region).map_err(|full| full.element())
    }

    /// The key of the region that holds all the bytes.
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

    /// The key of the region that holds all buffers of a pool, if one does.
    pub(super) fn of_pool<P>(&self, pool: &impl PacketPool<P>) -> Option<u32> {
        let region = self.regions.iter().find(|region| pool.lies_within(region.start, region.len))?;
        Some(region.lkey)
    }

    /// The regions.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
}
