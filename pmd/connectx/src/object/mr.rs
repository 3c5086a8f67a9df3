//! Memory regions and their keys.

use crate::memory::HostMemory;
use crate::region::RegionMemory;

/// What a key lets its holder do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The device may write for a receive.
    pub local_write: bool,
    /// The other end may write.
    pub remote_write: bool,
    /// The other end may read.
    pub remote_read: bool,
}

impl Access {
    /// Receives, but nothing from afar.
    pub const LOCAL: Self = Self { local_write: true, remote_write: false, remote_read: false };
}

/// How memory is about to be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    LocalRead,
    LocalWrite,
    RemoteWrite,
    RemoteRead,
}

/// A key does not allow the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Denied;

/// A protection domain: a key serves queues of its own domain only (IBA 10.2.3). What nobody puts into one is in domain 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProtectionDomain(pub u32);

#[derive(Debug)]
struct Mr {
    key: u32,
    /// Address that users of the key name the first byte by.
    start: u64,
    memory: RegionMemory,
    access: Access,
    domain: ProtectionDomain,
}

/// The keys as a queue of some domain sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    table: &'a MrTable,
    domain: ProtectionDomain,
}

/// Index of the first key; a key is its index and an eight-bit tag.
const FIRST_INDEX: u32 = 0x1800;
/// Most keys.
const MAX_KEYS: usize = 1 << 16;

/// All memory regions of a device.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    regions: Vec<Option<Mr>>,
    /// Goes into the tag, so that a key of old does not fit a new region in its place.
    generation: u8,
}

impl MrTable {
    /// Registers memory; users name its first byte by `start`. The result is both lkey and rkey. `None` if the table is
    /// full or the range has no end.
    pub(crate) fn register(&mut self, start: u64, memory: RegionMemory, access: Access) -> Option<u32> {
        self.generation = self.generation.wrapping_add(1);
        self.register_tagged(self.generation, start, memory, access)
    }

    /// As `register`, with a tag of the owner's choice.
    pub(crate) fn register_tagged(
        &mut self,
        tag: u8,
        start: u64,
        memory: RegionMemory,
        access: Access,
    ) -> Option<u32> {
        let index = match self.regions.iter().position(Option::is_none) {
            Some(free) => free,
            None => self.regions.len(),
        };
        let key = (FIRST_INDEX + u32::try_from(index).ok()?) << 8 | u32::from(tag);
        self.register_as(key, start, memory, access).then_some(key)
    }

    /// Gives a region other memory.
    pub(crate) fn replace(&mut self, key: u32, memory: RegionMemory) -> bool {
        let region = Self::index(key).and_then(|i| self.regions.get_mut(i)).and_then(Option::as_mut);
        match region.filter(|mr| mr.key == key && mr.start.checked_add(memory.len()).is_some()) {
            Some(mr) => {
                mr.memory = memory;
                true
            }
            None => false,
        }
    }

    /// Registers memory under a given key.
    pub(crate) fn register_as(&mut self, key: u32, start: u64, memory: RegionMemory, access: Access) -> bool {
        let Some(index) = Self::index(key).filter(|&i| i < MAX_KEYS) else { return false };
        if start.checked_add(memory.len()).is_none() {
            return false;
        }
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        match self.regions.get_mut(index) {
            Some(slot @ None) => {
                *slot = Some(Mr { key, start, memory, access, domain: ProtectionDomain::default() });
                true
            }
            _ => false,
        }
    }

    /// Puts a key into a domain.
    pub(crate) fn set_domain(&mut self, key: u32, domain: ProtectionDomain) -> bool {
        let region = Self::index(key).and_then(|i| self.regions.get_mut(i)).and_then(Option::as_mut);
        let region = region.filter(|mr| mr.key == key);
        region.map(|mr| mr.domain = domain).is_some()
    }

    /// The keys as a queue of a domain sees them.
    #[inline]
    pub(crate) const fn of(&self, domain: ProtectionDomain) -> Keys<'_> {
        Keys { table: self, domain }
    }

    /// Ends a registration.
    pub(crate) fn deregister(&mut self, key: u32) -> bool {
        let slot = Self::index(key).and_then(|i| self.regions.get_mut(i));
        match slot {
            Some(slot) if slot.as_ref().is_some_and(|mr| mr.key == key) => {
                *slot = None;
                true
            }
            _ => false,
        }
    }

    fn index(key: u32) -> Option<usize> {
        (key >> 8).checked_sub(FIRST_INDEX).map(|i| i as usize)
    }
}

impl Keys<'_> {
    /// The memory that `key` calls `address`, if all `len` bytes may be used so: as much of them as lies in one piece, and one
    /// byte at least.
    #[inline]
    pub(crate) fn translate(
        &self,
        key: u32,
        address: u64,
        len: usize,
        how: Use,
    ) -> Result<HostMemory, Denied> {
        let regions = &self.table.regions;
        let mr = MrTable::index(key).and_then(|i| regions.get(i)).and_then(Option::as_ref).ok_or(Denied)?;
        let allowed = match how {
            Use::LocalRead => true,
            Use::LocalWrite => mr.access.local_write,
            Use::RemoteWrite => mr.access.remote_write && mr.access.local_write,
            Use::RemoteRead => mr.access.remote_read,
        };
        if mr.key != key || mr.domain != self.domain || !allowed {
            return Err(Denied);
        }
        let offset = address.checked_sub(mr.start).ok_or(Denied)?;
        mr.memory.first(offset, len).ok_or(Denied)
    }

    /// Writes `bytes` where `key` calls the memory `address`: all, or none if they may not be written so.
    #[inline]
    pub(crate) fn write(&self, key: u32, mut address: u64, mut bytes: &[u8], how: Use) -> Result<(), Denied> {
        while !bytes.is_empty() {
            let memory = self.translate(key, address, bytes.len(), how)?;
            let (head, rest) = bytes.split_at(memory.len());
            memory.write(head);
            address = address.wrapping_add(head.len() as u64);
            bytes = rest;
        }
        Ok(())
    }
}
