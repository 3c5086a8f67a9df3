//! Memory keys: those of regions, made by the host's commands, and those that work requests give memory to (see
//! [`fast`](super::fast)).

use ib_wire::Qpn;

use super::fast::{Fast, List};
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
    /// The other end may do atomic operations.
    pub remote_atomic: bool,
}

impl Access {
    /// Receives, but nothing from afar.
    pub const LOCAL: Self =
        Self { local_write: true, remote_write: false, remote_read: false, remote_atomic: false };
}

/// How memory is about to be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    LocalRead,
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

impl Use {
    /// What it takes of the keys that a key's list names: they serve the device, whoever asked it.
    const fn underneath(self) -> Self {
        match self {
            Self::LocalRead | Self::RemoteRead => Self::LocalRead,
            Self::LocalWrite | Self::RemoteWrite | Self::RemoteAtomic => Self::LocalWrite,
        }
    }
}

/// A key does not allow the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Denied;

/// A protection domain: a key serves queues of its own domain only (IBA 10.2.3). What nobody puts into one is in domain 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProtectionDomain(pub u32);

/// Who uses keys: a queue of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Member {
    pub(crate) domain: ProtectionDomain,
    /// Keys that are bound to a queue pair serve that one only; a shared receive queue is none.
    pub(crate) queue_pair: Option<Qpn>,
    /// What it may do to keys.
    pub(crate) trust: Trust,
    /// Its work requests may name the host's memory by [`RESERVED_KEY`].
    pub(crate) reserved: bool,
}

/// What a queue pair's work requests may do to keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Trust {
    /// Give those of its domain memory by lists of other keys of it.
    #[default]
    Lists,
    /// By the addresses of pages, too: whatever memory there is.
    Pages,
    /// All that, to keys of every domain, and put them into another.
    Domains,
}

impl From<ProtectionDomain> for Member {
    fn from(domain: ProtectionDomain) -> Self {
        Self { domain, ..Self::default() }
    }
}

/// What a key stands for.
#[derive(Debug)]
pub(super) enum Layout {
    /// Memory, as long as the key lives.
    Direct(RegionMemory),
    /// What a work request said last.
    Fast(Box<Fast>),
}

/// The key that stands for all of the host's memory by its addresses (IBA 10.6.3): for work requests of queue pairs that may use it, and
/// nobody else. No other key is called so.
pub const RESERVED_KEY: u32 = 0x600;
const _: () = assert!(RESERVED_KEY >> 8 < FIRST_INDEX);

/// What opens a key that is free: no key is called so.
const SHUT: u32 = 0;

#[derive(Debug)]
pub(super) struct Mr {
    /// What the host calls it, whatever its tag is by now.
    name: u32,
    /// What work requests and the other end call it; [`SHUT`] while it is free.
    opens: u32,
    pub(super) domain: ProtectionDomain,
    /// The only queue pair that may use it.
    pub(super) bound: Option<Qpn>,
    /// Address that users of the key name the first byte by.
    pub(super) start: u64,
    pub(super) layout: Layout,
    pub(super) access: Access,
}

impl Mr {
    pub(super) const fn is_free(&self) -> bool {
        self.opens == SHUT
    }

    /// True if the host calls it so.
    pub(super) const fn is_named(&self, name: u32) -> bool {
        self.name == name
    }

    /// True if `key` is what it is called now.
    pub(super) const fn is_called(&self, key: u32) -> bool {
        self.opens == key
    }

    /// From now on it is called so.
    pub(super) const fn open(&mut self, tag: u8) {
        self.opens = self.name & !0xff | tag as u32;
    }

    /// The device may write. Of a list it is the keys underneath that say so.
    fn is_writable(&self) -> bool {
        self.access.local_write || matches!(&self.layout, Layout::Fast(fast) if fast.is_list())
    }

    /// Nobody may use it until it is given memory again; it is bound to nobody.
    pub(super) const fn free(&mut self) {
        self.opens = SHUT;
        self.bound = None;
    }
}

/// The keys as a queue of some domain sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    table: &'a MrTable,
    member: Member,
}

/// Index of the first key; a key is its index and an eight-bit tag.
const FIRST_INDEX: u32 = 0x1800;
/// Most keys.
const MAX_KEYS: usize = 1 << 16;

/// All memory keys of a device.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    regions: Vec<Option<Mr>>,
    /// All places before this one are taken: Linux keeps thousands of keys in store.
    taken: usize,
    /// Goes into the tag, so that a key of old does not fit a new region in its place.
    generation: u8,
    /// The host's memory by the addresses that lists of pages name; `None` if there are no such addresses.
    pub(crate) bus: Option<RegionMemory>,
    /// Room for the longest list that any key takes.
    pub(super) staging: Vec<u8>,
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
        let key = self.vacant(tag)?;
        self.register_as(key, start, memory, access).then_some(key)
    }

    /// A key of a tag that nothing is called by.
    fn vacant(&self, tag: u8) -> Option<u32> {
        let free = self.regions.iter().skip(self.taken).position(Option::is_none);
        let index = free.map_or(self.regions.len(), |n| self.taken + n);
        Some((FIRST_INDEX + u32::try_from(index).ok()?) << 8 | u32::from(tag))
    }

    /// Makes a free key that work requests give memory to. `None` if the table is full.
    pub(super) fn insert_fast(
        &mut self,
        tag: u8,
        domain: ProtectionDomain,
        access: Access,
        fast: Fast,
    ) -> Option<u32> {
        let name = self.vacant(tag)?;
        let layout = Layout::Fast(Box::new(fast));
        let key = Mr { name, opens: SHUT, domain, bound: None, start: 0, layout, access };
        self.insert(key).then_some(name)
    }

    pub(super) fn at(&self, key: u32) -> Option<&Mr> {
        self.regions.get(Self::index(key)?)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, key: u32) -> Option<&mut Mr> {
        self.regions.get_mut(Self::index(key)?)?.as_mut()
    }

    fn named(&mut self, name: u32) -> Option<&mut Mr> {
        self.at_mut(name).filter(|mr| mr.name == name)
    }

    /// Gives a region other memory.
    pub(crate) fn replace(&mut self, key: u32, memory: RegionMemory) -> bool {
        match self.named(key) {
            Some(Mr { start, layout: Layout::Direct(old), .. })
                if start.checked_add(memory.len()).is_some() =>
            {
                *old = memory;
                true
            }
            _ => false,
        }
    }

    /// Registers memory under a given key.
    pub(crate) fn register_as(&mut self, key: u32, start: u64, memory: RegionMemory, access: Access) -> bool {
        if start.checked_add(memory.len()).is_none() {
            return false;
        }
        let (domain, layout) = (ProtectionDomain::default(), Layout::Direct(memory));
        self.insert(Mr { name: key, opens: key, domain, bound: None, start, layout, access })
    }

    fn insert(&mut self, key: Mr) -> bool {
        let Some(index) = Self::index(key.name).filter(|&i| i < MAX_KEYS) else { return false };
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        match self.regions.get_mut(index) {
            Some(slot @ None) => {
                *slot = Some(key);
                if index == self.taken {
                    self.taken += 1;
                }
                true
            }
            _ => false,
        }
    }

    /// Puts a key into a domain.
    pub(crate) fn set_domain(&mut self, key: u32, domain: ProtectionDomain) -> bool {
        self.named(key).map(|mr| mr.domain = domain).is_some()
    }

    /// True if there are keys in a domain, free ones among them.
    pub(crate) fn any_in(&self, domain: ProtectionDomain) -> bool {
        self.regions.iter().flatten().any(|mr| mr.domain == domain)
    }

    /// The keys as a queue of a domain sees them.
    #[inline]
    pub(crate) const fn of(&self, member: Member) -> Keys<'_> {
        Keys { table: self, member }
    }

    /// Ends a registration.
    pub(crate) fn deregister(&mut self, key: u32) -> bool {
        let Some(index) = Self::index(key).filter(|_| self.named(key).is_some()) else { return false };
        if let Some(slot) = self.regions.get_mut(index) {
            *slot = None;
        }
        self.taken = self.taken.min(index);
        true
    }

    fn index(key: u32) -> Option<usize> {
        (key >> 8).checked_sub(FIRST_INDEX).map(|i| i as usize)
    }
}

impl Keys<'_> {
    /// The memory that `key` calls `address`, if all `len` bytes may be used so: as much of them as lies in one piece, and one
    /// byte at least.
    // Into whoever asks: what it is used for is known there.
    #[inline(always)]
    pub(crate) fn translate(
        &self,
        key: u32,
        address: u64,
        len: usize,
        how: Use,
    ) -> Result<HostMemory, Denied> {
        let Ok(mr) = self.find(key, how) else { return self.reserved(key, address, len, how) };
        let offset = address.checked_sub(mr.start).ok_or(Denied)?;
        match &mr.layout {
            Layout::Direct(memory) => memory.first(offset, len).ok_or(Denied),
            Layout::Fast(fast) => self.first_of(fast, offset, len, how),
        }
    }

    /// As `translate`, for the reserved key.
    #[cold]
    fn reserved(&self, key: u32, address: u64, len: usize, how: Use) -> Result<HostMemory, Denied> {
        let own = matches!(how, Use::LocalRead | Use::LocalWrite);
        let bus = self.table.bus.as_ref().filter(|_| key == RESERVED_KEY && own && self.member.reserved);
        bus.and_then(|bus| bus.first(address, len)).ok_or(Denied)
    }

    #[inline(always)]
    fn find(&self, key: u32, how: Use) -> Result<&Mr, Denied> {
        let mr = self.table.at(key).ok_or(Denied)?;
        let allowed = match how {
            Use::LocalRead => true,
            Use::LocalWrite => mr.access.local_write,
            Use::RemoteWrite => mr.access.remote_write && mr.is_writable(),
            Use::RemoteRead => mr.access.remote_read,
            Use::RemoteAtomic => mr.access.remote_atomic && mr.is_writable(),
        };
        let bound = mr.bound.is_some() && mr.bound != self.member.queue_pair;
        if mr.opens != key || mr.domain != self.member.domain || bound || !allowed {
            return Err(Denied);
        }
        Ok(mr)
    }

    /// The first piece of the bytes at `offset` of what a work request has put together, if all `len` of them may be used.
    #[inline(never)]
    fn first_of(&self, fast: &Fast, offset: u64, len: usize, how: Use) -> Result<HostMemory, Denied> {
        let end = offset.checked_add(len as u64).filter(|&end| end <= fast.len).ok_or(Denied)?;
        let first = self.piece(fast, offset, len, how)?;
        let mut at = offset + first.len() as u64;
        while at < end {
            at += self.piece(fast, at, (end - at) as usize, how)?.len() as u64;
        }
        Ok(first)
    }

    /// Some of the `len` bytes at `offset` of what a work request has put together: one byte at least.
    fn piece(&self, fast: &Fast, offset: u64, len: usize, how: Use) -> Result<HostMemory, Denied> {
        let memory = match &fast.list {
            List::Pages(pages) => {
                let (address, there) = pages.find(offset).ok_or(Denied)?;
                let bus = self.table.bus.as_ref().ok_or(Denied)?;
                bus.first(address, shorter(len, there)).ok_or(Denied)?
            }
            List::Entries(entries) => {
                let (key, address, there) = entries.find(offset).ok_or(Denied)?;
                self.underneath(key, address, shorter(len, there), how.underneath())?
            }
        };
        if memory.is_empty() { Err(Denied) } else { Ok(memory) }
    }

    /// As `translate`, for a key that a list names, which cannot be a list itself.
    pub(super) fn underneath(
        &self,
        key: u32,
        address: u64,
        len: usize,
        how: Use,
    ) -> Result<HostMemory, Denied> {
        let mr = self.find(key, how)?;
        let offset = address.checked_sub(mr.start).ok_or(Denied)?;
        match &mr.layout {
            Layout::Direct(memory) => memory.first(offset, len).ok_or(Denied),
            Layout::Fast(fast) if !fast.is_list() => self.first_of(fast, offset, len, how),
            Layout::Fast(_) => Err(Denied),
        }
    }

    /// Copies what `key` calls `address` to `out`: all, or an error if it may not be read.
    pub(crate) fn read(&self, key: u32, mut address: u64, mut out: &mut [u8]) -> Result<(), Denied> {
        while !out.is_empty() {
            let memory = self.translate(key, address, out.len(), Use::LocalRead)?;
            let (head, rest) = out.split_at_mut_checked(memory.len()).ok_or(Denied)?;
            memory.read(head);
            address = address.wrapping_add(head.len() as u64);
            out = rest;
        }
        Ok(())
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

/// `len`, or as many bytes as there are if that is less.
fn shorter(len: usize, there: u64) -> usize {
    usize::try_from(there).map_or(len, |there| len.min(there))
}
