//! The writer side of a device's GID tables.
//!
//! Writers of the same port wait for each other, because the device may be slow to add or remove a GID.
//! Writers of different ports do not, and readers never wait. While the device is being notified, the entry
//! is invalid for readers.

mod adoption;
mod hold;
mod mirror;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use ib_wire::{Gid, PortNumber};
use parking_lot::Mutex;

use self::hold::Holds;
pub use self::hold::{Hold, Reclaimed};
use crate::entry::{Attributes, Entry, GidType, IfIndex, Key, RoceTypes};
use crate::layout::{Geometry, LayoutError};
use crate::lookup::Reader;
use crate::publication::Publication;
use crate::sync::AtomicU64;

/// Memory of a table that only this process reads.
pub type Memory = Arc<[AtomicU64]>;

/// The device behind the tables of RoCE ports. Both calls may be slow and may fail.
pub trait Provider: Send + Sync {
    /// Adds an entry to the device.
    fn add_gid(&self, entry: &Entry) -> Result<(), ProviderError>;

    /// Removes an entry from the device.
    fn del_gid(&self, entry: &Entry) -> Result<(), ProviderError>;
}

/// The device's error.
pub type ProviderError = Box<dyn Error + Send + Sync>;

/// A device that needs no notification.
#[derive(Clone, Copy, Debug)]
pub struct NoProvider;

impl Provider for NoProvider {
    fn add_gid(&self, _: &Entry) -> Result<(), ProviderError> {
        Ok(())
    }

    fn del_gid(&self, _: &Entry) -> Result<(), ProviderError> {
        Ok(())
    }
}

/// Kind of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// The subnet manager assigns its GIDs.
    InfiniBand,
    /// Its GIDs follow the addresses of interfaces. The first slots are reserved for the port's own GIDs.
    Roce(RoceTypes),
    /// Others maintain its table, such as the kernel for a RoCE device. This table is a copy.
    Mirror,
}

/// A port and its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortSetup {
    /// The port.
    pub number: PortNumber,
    /// Slots of its table.
    pub len: u16,
    /// Kind of the port.
    pub kind: PortKind,
}

/// Reason why a table was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The port does not exist.
    #[error("the device has no port {}", .0.0)]
    NoPort(PortNumber),
    /// The port is of another kind, or does not use this type.
    #[error("port {} does not support entries of type {gid_type}", port.0)]
    Type {
        /// The port.
        port: PortNumber,
        /// The type.
        gid_type: GidType,
    },
    /// The port's table is a copy of one that others maintain.
    #[error("the GID table of port {} is a copy and can only be changed by its maintainer", .0.0)]
    Mirrored(PortNumber),
    /// The port's table is not a copy, or not one of those to write.
    #[error("the GID table of port {} is not a copy", .0.0)]
    Managed(PortNumber),
    /// All slots are in use.
    #[error("the GID table of port {} is full", .0.0)]
    Full(PortNumber),
    /// The reserved slot contains another GID, or the GID is in a slot of the other kind.
    #[error("the GID or its reserved slot is already in use at port {}", .0.0)]
    Taken(PortNumber),
    /// The port's former own GID is still held and occupies the reserved slot.
    #[error("the former own GID of port {} is still in use", .0.0)]
    Held(PortNumber),
    /// Zero and multicast addresses cannot be GIDs of a port.
    #[error("{0} is not a valid GID of a port")]
    NotAGid(Gid),
    /// There are more GIDs than slots.
    #[error("{gids} GIDs do not fit {slots} slots")]
    TooMany {
        /// Number of GIDs.
        gids: usize,
        /// Number of slots.
        slots: u16,
    },
    /// The device failed. The table is unchanged.
    #[error("the device did not {what} GID {gid}")]
    Provider {
        /// `add` or `delete`.
        what: &'static str,
        /// The GID.
        gid: Gid,
        /// The device's error.
        #[source]
        source: ProviderError,
    },
}

/// Result of an addition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// A new entry at this index.
    New(u16),
    /// An existing entry at this index.
    Existing(u16),
}

/// The tables of a device.
pub struct DeviceTable<M = Memory> {
    ports: Vec<PortTable>,
    publication: Mutex<Publication<M>>,
    provider: Box<dyn Provider>,
}

impl<M> fmt::Debug for DeviceTable<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTable").field("ports", &self.ports).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct PortTable {
    setup: PortSetup,
    first: usize,
    /// Locked while the device is notified.
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    entries: BTreeMap<u16, Entry>,
    by_key: BTreeMap<Key, u16>,
    free: BTreeSet<u16>,
    holds: Holds,
}

impl Writer {
    /// Frees the slot of an entry.
    fn release(&mut self, entry: &Entry) {
        if !entry.default {
            self.free.insert(entry.index);
        }
    }
}

impl PortTable {
    fn reserved(&self) -> u16 {
        match self.setup.kind {
            PortKind::InfiniBand | PortKind::Mirror => 0,
            PortKind::Roce(types) => types.types().len() as u16,
        }
    }

    fn types(&self) -> &'static [GidType] {
        match self.setup.kind {
            PortKind::InfiniBand | PortKind::Mirror => &[],
            PortKind::Roce(types) => types.types(),
        }
    }

    fn slot(&self, index: u16) -> usize {
        self.first + usize::from(index)
    }

    /// Checks that the table is not a copy, which is only written as a whole.
    fn writable(&self) -> Result<(), TableError> {
        match self.setup.kind {
            PortKind::Mirror => Err(TableError::Mirrored(self.setup.number)),
            PortKind::InfiniBand | PortKind::Roce(_) => Ok(()),
        }
    }
}

impl DeviceTable<Memory> {
    /// Creates empty tables in private memory. `seed` randomizes the index.
    pub fn new(
        ports: &[PortSetup],
        provider: impl Provider + 'static,
        seed: u64,
    ) -> Result<Self, LayoutError> {
        let words = words_needed(ports)?;
        let memory: Memory = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self::publish_in(memory, ports, provider, seed, std::process::id())
    }
}

/// Number of words of memory required by the tables of these ports.
pub fn words_needed(ports: &[PortSetup]) -> Result<usize, LayoutError> {
    geometry(ports).map(|geometry| geometry.words())
}

fn geometry(ports: &[PortSetup]) -> Result<Geometry, LayoutError> {
    let lens: Vec<_> = ports.iter().map(|port| (port.number, port.len)).collect();
    Geometry::new(&lens)
}

impl<M: AsRef<[AtomicU64]>> DeviceTable<M> {
    /// Creates tables in the given memory, which may be shared with other processes. There must be only one
    /// maintainer at a time.
    ///
    /// The memory is zeroed, or contains the table of an earlier maintainer of the same ports. Its entries
    /// then keep their slots until they are changed, and its readers continue. Until the first
    /// [`DeviceTable::heartbeat`] readers see that the table is not confirmed.
    pub fn publish_in(
        memory: M,
        ports: &[PortSetup],
        provider: impl Provider + 'static,
        seed: u64,
        process: u32,
    ) -> Result<Self, LayoutError> {
        let geometry = geometry(ports)?;
        let left = adoption::left_in(&memory, &geometry);
        let publication = Publication::new(memory, geometry, seed, process)?;
        let mut tables = Vec::with_capacity(ports.len());
        for setup in ports {
            let first = publication.geometry().slot(setup.number, 0).unwrap_or_default();
            let writer = Writer {
                entries: BTreeMap::new(),
                by_key: BTreeMap::new(),
                free: BTreeSet::new(),
                holds: Holds::default(),
            };
            let mut table = PortTable { setup: *setup, first, writer: Mutex::new(writer) };
            if table.reserved() > setup.len {
                return Err(LayoutError::Ports("a port's table has no room for its own GIDs"));
            }
            table.writer.get_mut().free = (table.reserved()..setup.len).collect();
            tables.push(table);
        }
        let provider = Box::new(provider);
        let mut this = Self { ports: tables, publication: Mutex::new(publication), provider };
        this.adopt(&left);
        this.publication.get_mut().publish();
        Ok(this)
    }

    /// Creates a reader.
    pub fn reader(&self) -> Result<Reader<M>, LayoutError>
    where
        M: Clone,
    {
        let memory = self.publication.lock().memory().clone();
        Reader::attach(memory)
    }

    /// Returns all valid entries of all ports as a consistent snapshot. Waits only for memory writes, never
    /// for the device.
    pub fn entries(&self) -> Vec<Entry> {
        let publication = self.publication.lock();
        (0..publication.geometry().slots()).filter_map(|slot| publication.record(slot).entry()).collect()
    }

    /// Returns the ports.
    pub fn ports(&self) -> impl Iterator<Item = PortSetup> + '_ {
        self.ports.iter().map(|port| port.setup)
    }

    /// Confirms the table to readers in other processes, at this time in nanoseconds of CLOCK_MONOTONIC. 0
    /// revokes the confirmation.
    pub fn heartbeat(&self, now: u64) {
        self.publication.lock().heartbeat(now);
    }

    /// Adds an entry in the first free slot after the reserved ones, unless it exists.
    pub fn add(&self, port: PortNumber, attributes: Attributes) -> Result<Added, TableError> {
        let table = self.port(port)?;
        Self::check(table, &attributes)?;
        let mut writer = table.writer.lock();
        if let Some(&index) = writer.by_key.get(&attributes.key) {
            return Ok(Added::Existing(index));
        }
        // If the device fails, a slot stays in use.
        let _ = self.reclaim_port(table, &mut writer);
        let index = *writer.free.first().ok_or(TableError::Full(port))?;
        self.device_add(table, &mut writer, Entry { port, index, attributes, default: false })?;
        writer.free.remove(&index);
        Ok(Added::New(index))
    }

    /// Deletes an entry that is not in a reserved slot. Returns its index, or `None` if it did not exist.
    pub fn delete(&self, port: PortNumber, key: &Key) -> Result<Option<u16>, TableError> {
        self.delete_if(port, key, false)
    }

    /// Stores a port's own GID in the reserved slot of its type.
    pub fn add_default(&self, port: PortNumber, attributes: Attributes) -> Result<Added, TableError> {
        let table = self.port(port)?;
        let index = Self::check(table, &attributes)?;
        let mut writer = table.writer.lock();
        if let Some(&at) = writer.by_key.get(&attributes.key) {
            return if at == index { Ok(Added::Existing(at)) } else { Err(TableError::Taken(port)) };
        }
        if writer.entries.contains_key(&index) {
            return Err(TableError::Taken(port));
        }
        let _ = self.reclaim_port(table, &mut writer);
        if writer.holds.is_pending(index) {
            return Err(TableError::Held(port));
        }
        self.device_add(table, &mut writer, Entry { port, index, attributes, default: true })?;
        Ok(Added::New(index))
    }

    /// Clears the reserved slot with this GID.
    pub fn delete_default(&self, port: PortNumber, key: &Key) -> Result<Option<u16>, TableError> {
        self.delete_if(port, key, true)
    }

    /// Deletes all entries of an interface, including those in reserved slots. Continues after errors of the
    /// device and returns the first one.
    pub fn delete_interface(&self, port: PortNumber, ifindex: IfIndex) -> Result<usize, TableError> {
        let table = self.port(port)?;
        table.writable()?;
        let mut writer = table.writer.lock();
        let of_it: Vec<Entry> = writer
            .entries
            .values()
            .filter(|entry| entry.attributes.key.ifindex == Some(ifindex))
            .copied()
            .collect();
        let mut deleted = 0;
        let mut refused = None;
        for entry in of_it {
            match self.device_delete(table, &mut writer, &entry) {
                Ok(()) => deleted += 1,
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(deleted), Err)
    }

    fn port(&self, port: PortNumber) -> Result<&PortTable, TableError> {
        self.ports.iter().find(|table| table.setup.number == port).ok_or(TableError::NoPort(port))
    }

    /// Returns the reserved slot of the entry's type, if the port supports the entry.
    fn check(table: &PortTable, attributes: &Attributes) -> Result<u16, TableError> {
        table.writable()?;
        let Key { gid, gid_type, .. } = attributes.key;
        if gid == Gid::ZERO || gid.is_multicast() {
            return Err(TableError::NotAGid(gid));
        }
        let place = table.types().iter().position(|&of_port| of_port == gid_type);
        place.map(|at| at as u16).ok_or(TableError::Type { port: table.setup.number, gid_type })
    }

    fn delete_if(&self, port: PortNumber, key: &Key, default: bool) -> Result<Option<u16>, TableError> {
        let table = self.port(port)?;
        table.writable()?;
        let mut writer = table.writer.lock();
        let Some(entry) = writer.by_key.get(key).and_then(|index| writer.entries.get(index)).copied() else {
            return Ok(None);
        };
        if entry.default != default {
            return Ok(None);
        }
        self.device_delete(table, &mut writer, &entry)?;
        Ok(Some(entry.index))
    }

    fn device_add(&self, table: &PortTable, writer: &mut Writer, entry: Entry) -> Result<(), TableError> {
        let slot = table.slot(entry.index);
        self.show(slot, Some((&entry, false)));
        if let Err(source) = self.provider.add_gid(&entry) {
            self.show(slot, None);
            return Err(TableError::Provider { what: "add", gid: entry.gid(), source });
        }
        self.show(slot, Some((&entry, true)));
        writer.by_key.insert(entry.attributes.key, entry.index);
        writer.entries.insert(entry.index, entry);
        Ok(())
    }

    fn device_delete(&self, table: &PortTable, writer: &mut Writer, entry: &Entry) -> Result<(), TableError> {
        let slot = table.slot(entry.index);
        self.show(slot, Some((entry, false)));
        let held = writer.holds.keep(entry);
        if !held && let Err(error) = self.forget(table, entry) {
            self.show(slot, Some((entry, true)));
            return Err(error);
        }
        writer.entries.remove(&entry.index);
        writer.by_key.remove(&entry.attributes.key);
        if !held {
            writer.release(entry);
        }
        Ok(())
    }

    /// Removes an entry from the device and clears its slot.
    fn forget(&self, table: &PortTable, entry: &Entry) -> Result<(), TableError> {
        let refused = |source| TableError::Provider { what: "delete", gid: entry.gid(), source };
        self.provider.del_gid(entry).map_err(refused)?;
        self.show(table.slot(entry.index), None);
        Ok(())
    }

    fn show(&self, slot: usize, entry: Option<(&Entry, bool)>) {
        let mut publication = self.publication.lock();
        publication.set(slot, entry);
        publication.publish();
    }
}
