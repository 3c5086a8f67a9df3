//! The guest's memory, by the addresses that its drivers give to the device.
//!
//! Every address comes from the guest and is looked up; nothing outside of what the client has handed over is reachable. The
//! guest may change any byte at any time, so what is decided about is copied first.

mod mapping;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use connectx::{HostMemory, MemoryPieces};
use rustix::io::Errno;

use crate::vfio_user::DmaMap;
use mapping::Mapping;

/// Bytes of the smallest page.
pub const PAGE: u64 = 4096;
/// Most pieces of memory that a client hands over.
const MAX_REGIONS: usize = 1024;
/// Most mappings that views of scattered pages take together: a process has some 65,000.
const MAX_VIEWS: usize = 40_000;

/// Keeps memory mapped. Whoever gets memory of the guest for an object of the engine keeps this until that object is gone.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    _mappings: Vec<Arc<Mapping>>,
}

/// Memory for an object of the engine: consecutive, wherever its pages lie.
#[derive(Debug)]
pub struct View {
    /// The memory.
    pub memory: HostMemory,
    /// What keeps it there.
    pub lease: Lease,
}

#[derive(Debug)]
struct Region {
    len: u64,
    /// `None` where the device cannot reach it: ROM, or memory without a file.
    mapping: Option<Arc<Mapping>>,
}

/// The guest's memory.
#[derive(Debug, Default)]
pub struct GuestMemory {
    regions: BTreeMap<u64, Region>,
    views: mapping::Budget,
}

impl GuestMemory {
    /// No memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self { regions: BTreeMap::new(), views: mapping::Budget::new(MAX_VIEWS) }
    }

    /// The client hands memory over.
    pub fn map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno> {
        let end = map.address.checked_add(map.len).ok_or(Errno::INVAL)?;
        let aligned = [map.address, map.len, map.offset].iter().all(|n| n.is_multiple_of(PAGE));
        if map.len == 0 || !aligned || self.overlaps(map.address, end) {
            return Err(Errno::INVAL);
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(Errno::NOSPC);
        }
        let mapping = match file {
            Some(file) if map.writable => Some(Arc::new(Mapping::new(file, map.offset, map.len)?)),
            _ => None,
        };
        self.regions.insert(map.address, Region { len: map.len, mapping });
        Ok(())
    }

    fn overlaps(&self, from: u64, end: u64) -> bool {
        let before = self.regions.range(..end).next_back();
        before.is_some_and(|(at, region)| at + region.len > from)
    }

    /// The client takes back all memory in a range, `None` for all that there is. A region that it would cut is an error.
    pub fn unmap(&mut self, range: Option<(u64, u64)>) -> Result<(), Errno> {
        let Some((from, len)) = range else {
            self.regions.clear();
            return Ok(());
        };
        let end = from.checked_add(len).ok_or(Errno::INVAL)?;
        let cut = |at: &u64, region: &Region| *at < from || at + region.len > end;
        let inside: Vec<u64> = self
            .regions
            .range(..end)
            .rev()
            .take_while(|(at, r)| **at + r.len > from)
            .map(|(at, _)| *at)
            .collect();
        if inside.is_empty() || inside.iter().any(|at| self.regions.get(at).is_some_and(|r| cut(at, r))) {
            return Err(Errno::INVAL);
        }
        for at in inside {
            self.regions.remove(&at);
        }
        Ok(())
    }

    fn find(&self, address: u64, len: u64) -> Option<(&Arc<Mapping>, u64)> {
        let (at, region) = self.regions.range(..=address).next_back()?;
        let offset = address - at;
        (offset.checked_add(len)? <= region.len).then_some((region.mapping.as_ref()?, offset))
    }

    fn part(&self, address: u64, len: usize) -> Option<(HostMemory, &Arc<Mapping>)> {
        let (mapping, offset) = self.find(address, len as u64)?;
        Some((mapping.memory().part(usize::try_from(offset).ok()?, len)?, mapping))
    }

    /// Copies out of the guest's memory; false if it is not all there.
    #[must_use]
    pub fn read(&self, address: u64, out: &mut [u8]) -> bool {
        self.part(address, out.len()).is_some_and(|(memory, _)| memory.read(out))
    }

    /// Copies into the guest's memory; false if it is not all there.
    #[must_use]
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.part(address, bytes.len()).is_some_and(|(memory, _)| memory.write(bytes))
    }

    /// Stores a byte after everything written before.
    pub fn publish(&self, address: u64, byte: u8) {
        if let Some((memory, _)) = self.part(address, 1) {
            memory.publish(0, byte);
        }
    }

    /// A piece of consecutive memory.
    #[must_use]
    pub fn view(&self, address: u64, len: usize) -> Option<View> {
        let (memory, mapping) = self.part(address, len)?;
        Some(View { memory, lease: Lease { _mappings: vec![mapping.clone()] } })
    }

    /// Pages of `page` bytes that lie anywhere, as consecutive memory.
    #[must_use]
    pub fn gather(&self, pages: &[u64], page: u64) -> Option<View> {
        let runs = self.runs(pages, page)?;
        if let [(mapping, offset, len)] = &runs[..] {
            let memory =
                mapping.memory().part(usize::try_from(*offset).ok()?, usize::try_from(*len).ok()?)?;
            return Some(View { memory, lease: Lease { _mappings: vec![(*mapping).clone()] } });
        }
        let mapping = Arc::new(Mapping::gather(&runs, &self.views).ok()?);
        Some(View { memory: mapping.memory(), lease: Lease { _mappings: vec![mapping] } })
    }

    /// Pages as runs of memory that is consecutive in its file.
    fn runs(&self, pages: &[u64], page: u64) -> Option<Vec<(&Arc<Mapping>, u64, u64)>> {
        let mut runs: Vec<(&Arc<Mapping>, u64, u64)> = Vec::new();
        for &address in pages {
            let (mapping, offset) = self.find(address, page).filter(|_| address.is_multiple_of(PAGE))?;
            match runs.last_mut() {
                Some((last, from, len)) if Arc::ptr_eq(last, mapping) && *from + *len == offset => {
                    *len += page
                }
                _ => runs.push((mapping, offset, page)),
            }
        }
        Some(runs)
    }

    /// The memory behind a key: `len` bytes from byte `first` of the first page on, on pages of `page` bytes.
    #[must_use]
    pub fn pieces(&self, pages: &[u64], page: u64, first: u64, len: u64) -> Option<(MemoryPieces, Lease)> {
        let mut lease = Lease::default();
        let mut pieces = Vec::new();
        let mut at = 0u64;
        let mut skip = first;
        for (mapping, offset, run) in self.runs(pages, page)? {
            let skipped = skip.min(run);
            skip -= skipped;
            let n = (run - skipped).min(len - at);
            let memory =
                mapping.memory().part(usize::try_from(offset + skipped).ok()?, usize::try_from(n).ok()?)?;
            pieces.push((at, memory));
            at += n;
            if !lease._mappings.iter().any(|held| Arc::ptr_eq(held, mapping)) {
                lease._mappings.push(mapping.clone());
            }
        }
        (at == len).then_some(())?;
        Some((MemoryPieces::new(pieces)?, lease))
    }

    /// All memory, by its addresses.
    #[must_use]
    pub fn whole(&self) -> Option<(MemoryPieces, Lease)> {
        let reachable =
            || self.regions.iter().filter_map(|(at, region)| Some((*at, region.mapping.as_ref()?)));
        let pieces = MemoryPieces::new(reachable().map(|(at, mapping)| (at, mapping.memory())))?;
        Some((pieces, Lease { _mappings: reachable().map(|(_, mapping)| mapping.clone()).collect() }))
    }
}
