//! Memory keys: keys of regions, which the host creates by command, and keys whose memory is set by work
//! requests (see [`fast`](super::fast)).

use ib_wire::Qpn;

use super::fast::{Fast, List};
use crate::memory::HostMemory;
use crate::region::RegionMemory;

/// Access rights of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The device may write for a receive.
    pub local_write: bool,
    /// The peer may write.
    pub remote_write: bool,
    /// The peer may read.
    pub remote_read: bool,
    /// The peer may execute atomic operations.
    pub remote_atomic: bool,
}

impl Access {
    /// Local write access only; no remote access.
    pub const LOCAL: Self =
        Self { local_write: true, remote_write: false, remote_read: false, remote_atomic: false };
}

/// The kind of an access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    LocalRead,
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

impl Use {
    /// The access required of the keys that a key's list names: local access, because the device itself uses
    /// them.
    const fn underneath(self) -> Self {
        match self {
            Self::LocalRead | Self::RemoteRead => Self::LocalRead,
            Self::LocalWrite | Self::RemoteWrite | Self::RemoteAtomic => Self::LocalWrite,
        }
    }
}

/// A key does not permit the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Denied;

/// A protection domain. A key serves only queues of its own domain (IBA 10.2.3). The default domain is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProtectionDomain(pub u32);

/// The user of keys: a queue of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Member {
    pub(crate) domain: ProtectionDomain,
    /// The queue pair, because a bound key serves only one. `None` for a shared receive queue.
    pub(crate) queue_pair: Option<Qpn>,
    /// The key operations it may post.
    pub(crate) trust: Trust,
    /// Its work requests may name the host's memory with [`RESERVED_KEY`].
    pub(crate) reserved: bool,
}

/// The key operations that a queue pair may post.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Trust {
    /// Set the memory of keys of its domain by lists of other keys of the same domain.
    #[default]
    Lists,
    /// Also by page addresses, which can name any memory.
    Pages,
    /// All of this on keys of every domain, including moving a key to another domain.
    Domains,
}

impl From<ProtectionDomain> for Member {
    fn from(domain: ProtectionDomain) -> Self {
        Self { domain, ..Self::default() }
    }
}

/// The memory behind a key.
#[derive(Debug)]
pub(super) enum Layout {
    /// Fixed memory, for the key's whole life.
    Direct(RegionMemory),
    /// The memory that the last work request set.
    Fast(Box<Fast>),
}

/// The key for all of the host's memory by its addresses (IBA 10.6.3). Only work requests of queue pairs with
/// permission may use it. No other key has this value.
pub const RESERVED_KEY: u32 = 0x600;
const _: () = assert!(RESERVED_KEY >> 8 < FIRST_INDEX);

/// Value of `opens` for a free key. No key has this value.
const SHUT: u32 = 0;

#[derive(Debug)]
pub(super) struct Mr {
    /// The host's name of the key, whatever its current tag.
    name: u32,
    /// The key value in work requests and remote requests; [`SHUT`] while the key is free.
    opens: u32,
    pub(super) domain: ProtectionDomain,
    /// The only queue pair that may use it, if it is bound.
    pub(super) bound: Option<Qpn>,
    /// Address by which users of the key name its first byte.
    pub(super) start: u64,
    pub(super) layout: Layout,
    pub(super) access: Access,
}

impl Mr {
    pub(super) const fn is_free(&self) -> bool {
        self.opens == SHUT
    }

    /// True if this is the host's name of the key.
    pub(super) const fn is_named(&self, name: u32) -> bool {
        self.name == name
    }

    /// True if `key` is its current value.
    pub(super) const fn is_called(&self, key: u32) -> bool {
        self.opens == key
    }

    /// Makes the key usable with a new tag.
    pub(super) const fn open(&mut self, tag: u8) {
        self.opens = self.name & !0xff | tag as u32;
    }

    /// True if the device may write. For a list this is up to the keys that the list names.
    fn is_writable(&self) -> bool {
        self.access.local_write || matches!(&self.layout, Layout::Fast(fast) if fast.is_list())
    }

    /// Frees the key: it grants no access until it is given memory again, and it is not bound.
    pub(super) const fn free(&mut self) {
        self.opens = SHUT;
        self.bound = None;
    }
}

/// The keys as seen by a queue of a domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    table: &'a MrTable,
    member: Member,
}

/// Index of the first key. A key is an index and an eight-bit tag.
const FIRST_INDEX: u32 = 0x1800;
/// Most keys.
const MAX_KEYS: usize = 1 << 16;

/// All memory keys of a device.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    regions: Vec<Option<Mr>>,
    /// All slots before this one are used. It shortens the search, because Linux caches thousands of keys.
    taken: usize,
    /// Becomes the tag of the next key, so that an old key does not match a new region in the same slot.
    generation: u8,
    /// The host's memory by the addresses in lists of pages; `None` if there are no such addresses.
    pub(crate) bus: Option<RegionMemory>,
    /// Room for the longest list that any key accepts.
    pub(super) staging: Vec<u8>,
}

impl MrTable {
    /// Registers memory. Users name its first byte by `start`. The result is both lkey and rkey. `None` if
    /// the table is full or the end of the range overflows.
    pub(crate) fn register(&mut self, start: u64, memory: RegionMemory, access: Access) -> Option<u32> {
        self.generation = self.generation.wrapping_add(1);
        self.register_tagged(self.generation, start, memory, access)
    }

    /// As `register`, with a tag chosen by the owner.
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

    /// An unused key value with this tag.
    fn vacant(&self, tag: u8) -> Option<u32> {
        let free = self.regions.iter().skip(self.taken).position(Option::is_none);
        let index = free.map_or(self.regions.len(), |n| self.taken + n);
        Some((FIRST_INDEX + u32::try_from(index).ok()?) << 8 | u32::from(tag))
    }

    /// Inserts a free key whose memory is set by work requests. `None` if the table is full.
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

    /// Replaces the memory of a region.
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

    /// Moves a key to a domain.
    pub(crate) fn set_domain(&mut self, key: u32, domain: ProtectionDomain) -> bool {
        self.named(key).map(|mr| mr.domain = domain).is_some()
    }

    /// True if there are keys in a domain, including free ones.
    pub(crate) fn any_in(&self, domain: ProtectionDomain) -> bool {
        self.regions.iter().flatten().any(|mr| mr.domain == domain)
    }

    /// The keys as seen by a queue of a domain.
    #[inline]
    pub(crate) const fn of(&self, member: Member) -> Keys<'_> {
        Keys { table: self, member }
    }

    /// Removes a registration.
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
    /// Translates `address` under `key`, if the access `how` to all `len` bytes is permitted. Returns the
    /// contiguous part from `address` on, which has at least one byte.
    // Inlined into the caller, where the kind of access is a constant.
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

    /// The first contiguous range at `offset` of a key set by work requests, if access to all `len` bytes is
    /// permitted.
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

    /// A contiguous part, at least one byte, of the `len` bytes at `offset` of a key set by work requests.
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

    /// As `translate`, for a key named by a list, which cannot have a list itself.
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

    /// Copies the memory at `address` under `key` to `out`; all bytes, or an error if they may not be read.
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

    /// Writes `bytes` to `address` under `key`; all of them, or none if the access is denied.
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

/// The smaller of `len` and `there`.
fn shorter(len: usize, there: u64) -> usize {
    usize::try_from(there).map_or(len, |there| len.min(there))
}
