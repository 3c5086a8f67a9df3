//! The guest's memory, by the addresses that its drivers give to the device.
//!
//! Every address comes from the guest and is looked up; only memory handed over by the client is reachable.
//! The guest may change any byte at any time, so data is copied before it is checked.

mod budget;
mod mapping;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use connectx::{HostMemory, MemoryPieces};
use rustix::io::Errno;

use crate::vfio_user::DmaMap;
use crate::vfio_user::message::MAX_DMA_MAPS;
use budget::{Budget, Taken};
use mapping::Mapping;

/// Size of the smallest page.
pub const PAGE: u64 = 4096;
/// Limit of contiguous ranges that all rings and keys name together: 32 GiB of scattered pages.
const MAX_PIECES: usize = 8 << 20;

/// Keeps memory mapped. The owner of an engine object with guest memory keeps this until the object is
/// destroyed.
#[derive(Debug, Default)]
pub struct Lease {
    _mappings: Vec<Arc<Mapping>>,
    _taken: Option<Taken>,
}

/// Why an object gets no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreachable {
    /// A named address has no memory.
    #[error("a page is not in memory")]
    NoMemory,
    /// All objects together name too many ranges.
    #[error("more than {MAX_PIECES} memory ranges")]
    TooMany,
}

#[derive(Debug)]
struct Region {
    len: u64,
    /// `None` if the device cannot access it: ROM, or memory without a file.
    mapping: Option<Arc<Mapping>>,
}

/// Contiguous memory of a file.
struct Run<'a> {
    mapping: &'a Arc<Mapping>,
    offset: u64,
    len: u64,
}

/// The guest's memory.
#[derive(Debug, Default)]
pub struct GuestMemory {
    regions: BTreeMap<u64, Region>,
    pieces: Budget,
}

impl GuestMemory {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self { regions: BTreeMap::new(), pieces: Budget::new(MAX_PIECES) }
    }

    /// Adds memory handed over by the client.
    pub fn map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno> {
        let end = map.address.checked_add(map.len).ok_or(Errno::INVAL)?;
        let aligned = [map.address, map.len, map.offset].iter().all(|n| n.is_multiple_of(PAGE));
        if map.len == 0 || !aligned || self.overlaps(map.address, end) {
            return Err(Errno::INVAL);
        }
        if self.regions.len() >= MAX_DMA_MAPS {
            return Err(Errno::NOSPC);
        }
        let mapping = match file {
            Some(file) if map.writable => Some(Arc::new(Mapping::new(&file, map.offset, map.len)?)),
            _ => None,
        };
        self.regions.insert(map.address, Region { len: map.len, mapping });
        Ok(())
    }

    /// Number of mapped regions, their bytes, and the memory ranges that rings and keys name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let bytes = self.regions.values().map(|region| region.len).sum();
        let pieces = MAX_PIECES - self.pieces.left();
        [("regions", self.regions.len() as u64), ("bytes", bytes), ("pieces", pieces as u64)].into()
    }

    fn overlaps(&self, from: u64, end: u64) -> bool {
        let before = self.regions.range(..end).next_back();
        before.is_some_and(|(at, region)| at + region.len > from)
    }

    /// Removes memory in a range, or all memory for `None`. A range that would split a region is an error.
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

    /// Location of an address, and the number of contiguous bytes from there on, from 1 to `len`.
    fn find(&self, address: u64, len: u64) -> Option<(&Arc<Mapping>, u64, u64)> {
        let (at, region) = self.regions.range(..=address).next_back()?;
        let offset = address - at;
        let there = region.len.checked_sub(offset).filter(|&there| there > 0)?;
        Some((region.mapping.as_ref()?, offset, there.min(len)))
    }

    fn part(&self, address: u64, len: usize) -> Option<(HostMemory, &Arc<Mapping>)> {
        let (mapping, offset, there) = self.find(address, len as u64)?;
        Some((part(mapping, offset, there).filter(|memory| memory.len() == len)?, mapping))
    }

    /// Copies out of the guest's memory; false if some bytes are missing.
    #[must_use]
    pub fn read(&self, address: u64, out: &mut [u8]) -> bool {
        self.part(address, out.len()).is_some_and(|(memory, _)| memory.read(out))
    }

    /// Copies into the guest's memory; false if some bytes are missing.
    #[must_use]
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.part(address, bytes.len()).is_some_and(|(memory, _)| memory.write(bytes))
    }

    /// Stores a byte after all earlier writes.
    pub fn publish(&self, address: u64, byte: u8) {
        if let Some((memory, _)) = self.part(address, 1) {
            memory.publish(0, byte);
        }
    }

    /// A contiguous memory range.
    #[must_use]
    pub fn view(&self, address: u64, len: usize) -> Option<(HostMemory, Lease)> {
        let (memory, mapping) = self.part(address, len)?;
        Some((memory, Lease { _mappings: vec![mapping.clone()], _taken: None }))
    }

    /// `len` bytes from byte `first` of pages of `page` bytes, as runs that are contiguous in their file.
    fn runs(&self, pages: &[u64], page: u64, first: u64, len: u64) -> Result<Vec<Run<'_>>, Unreachable> {
        let mut runs: Vec<Run<'_>> = Vec::new();
        let (mut skip, mut left) = (first, len);
        for &address in pages {
            let skipped = skip.min(page);
            skip -= skipped;
            let mut missing = (page - skipped).min(left);
            left -= missing;
            // A page may also be spread over several regions handed over by the client.
            let mut address = address.checked_add(skipped).ok_or(Unreachable::NoMemory)?;
            while missing > 0 {
                let (mapping, offset, len) = self.find(address, missing).ok_or(Unreachable::NoMemory)?;
                let full = runs.len() == MAX_PIECES;
                match runs.last_mut() {
                    Some(last) if Arc::ptr_eq(last.mapping, mapping) && last.offset + last.len == offset => {
                        last.len += len
                    }
                    _ if full => return Err(Unreachable::TooMany),
                    _ => runs.push(Run { mapping, offset, len }),
                }
                missing -= len;
                address = address.checked_add(len).ok_or(Unreachable::NoMemory)?;
            }
        }
        if left > 0 { Err(Unreachable::NoMemory) } else { Ok(runs) }
    }

    /// The memory of a key or a ring: `len` bytes from byte `first` of the first page on, on pages of `page`
    /// bytes.
    pub fn pieces(
        &self,
        pages: &[u64],
        page: u64,
        first: u64,
        len: u64,
    ) -> Result<(MemoryPieces, Lease), Unreachable> {
        let mut mappings: Vec<Arc<Mapping>> = Vec::new();
        let mut pieces = Vec::new();
        let mut at = 0u64;
        for Run { mapping, offset, len } in self.runs(pages, page, first, len)? {
            pieces.push((at, part(mapping, offset, len).ok_or(Unreachable::NoMemory)?));
            at += len;
            if !mappings.iter().any(|held| Arc::ptr_eq(held, mapping)) {
                mappings.push(mapping.clone());
            }
        }
        self.leased(pieces, mappings)
    }

    /// All memory, by its addresses.
    pub fn whole(&self) -> Result<(MemoryPieces, Lease), Unreachable> {
        let reachable = self.regions.iter().filter_map(|(at, region)| Some((*at, region.mapping.as_ref()?)));
        let pieces = reachable.clone().filter_map(|(at, mapping)| Some((at, mapping.memory()?)));
        self.leased(pieces, reachable.map(|(_, mapping)| mapping.clone()).collect())
    }

    fn leased(
        &self,
        pieces: impl IntoIterator<Item = (u64, HostMemory)>,
        mappings: Vec<Arc<Mapping>>,
    ) -> Result<(MemoryPieces, Lease), Unreachable> {
        let pieces = MemoryPieces::new(pieces).ok_or(Unreachable::NoMemory)?;
        let taken = self.pieces.take(pieces.count()).ok_or(Unreachable::TooMany)?;
        Ok((pieces, Lease { _mappings: mappings, _taken: Some(taken) }))
    }
}

fn part(mapping: &Mapping, offset: u64, len: u64) -> Option<HostMemory> {
    mapping.memory()?.part(usize::try_from(offset).ok()?, usize::try_from(len).ok()?)
}
