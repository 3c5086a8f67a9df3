//! The GID tables of a device's ports, and those who write them.
//!
//! Writers of one port wait for each other, for the device may be slow to take or to drop a GID; writers of different ports do
//! not, and readers never: while the device is being told, the entry is invalid to them.

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

/// The device behind the tables of RoCE ports. Both calls may take long and may fail.
pub trait Provider: Send + Sync {
    /// The device shall use this entry.
    fn add_gid(&self, entry: &Entry) -> Result<(), ProviderError>;

    /// The device shall use this entry no more.
    fn del_gid(&self, entry: &Entry) -> Result<(), ProviderError>;
}

/// Why the device refused.
pub type ProviderError = Box<dyn Error + Send + Sync>;

/// A device that needs not be told.
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

/// What a port is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// Its subnet manager makes its GIDs.
    InfiniBand,
    /// Its GIDs follow the addresses of interfaces. The first slots are for the port's own.
    Roce(RoceTypes),
    /// Somebody else keeps its table, as the kernel does that of a RoCE device; ours is a copy.
    Mirror,
}

/// A port and its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortSetup {
    /// The port.
    pub number: PortNumber,
    /// Slots of its table.
    pub len: u16,
    /// What it is.
    pub kind: PortKind,
}

/// Why a table was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// No such port.
    #[error("the device has no port {}", .0.0)]
    NoPort(PortNumber),
    /// The port is of the other kind, or does not speak this type.
    #[error("port {} has no entries of type {gid_type}", port.0)]
    Type {
        /// The port.
        port: PortNumber,
        /// The type.
        gid_type: GidType,
    },
    /// The port's table is a copy of one that somebody else keeps.
    #[error("the GID table of port {} is a copy: whoever keeps the original changes it", .0.0)]
    Mirrored(PortNumber),
    /// The port's table is no copy, or not among those to be written.
    #[error("the GID table of port {} is no copy", .0.0)]
    Managed(PortNumber),
    /// No slot is free.
    #[error("the GID table of port {} is full", .0.0)]
    Full(PortNumber),
    /// The reserved slot holds another GID, or the GID is in a slot of the other sort.
    #[error("the GID or its reserved slot is taken at port {}", .0.0)]
    Taken(PortNumber),
    /// The reserved slot is kept by those who hold the port's former GID.
    #[error("the former own GID of port {} is in use", .0.0)]
    Held(PortNumber),
    /// All-zero and multicast addresses are no GIDs of a port.
    #[error("{0} is no GID of a port")]
    NotAGid(Gid),
    /// More GIDs than slots.
    #[error("{gids} GIDs do not fit {slots} slots")]
    TooMany {
        /// GIDs.
        gids: usize,
        /// Slots.
        slots: u16,
    },
    /// The device refused; the table is as before.
    #[error("the device did not {what} GID {gid}")]
    Provider {
        /// `add` or `delete`.
        what: &'static str,
        /// The GID.
        gid: Gid,
        /// Its reason.
        #[source]
        source: ProviderError,
    },
}

/// What became of an addition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// A new entry, at this index.
    New(u16),
    /// The entry was there already, at this index.
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
    /// Held while the device is told.
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
    /// An entry's slot is free.
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

    /// Copies are written only as a whole.
    fn writable(&self) -> Result<(), TableError> {
        match self.setup.kind {
            PortKind::Mirror => Err(TableError::Mirrored(self.setup.number)),
            PortKind::InfiniBand | PortKind::Roce(_) => Ok(()),
        }
    }
}

impl DeviceTable<Memory> {
    /// Empty tables in memory of this process. `seed` spreads the index.
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

/// Words of memory that the tables of these ports take.
pub fn words_needed(ports: &[PortSetup]) -> Result<usize, LayoutError> {
    geometry(ports).map(|geometry| geometry.words())
}

fn geometry(ports: &[PortSetup]) -> Result<Geometry, LayoutError> {
    let lens: Vec<_> = ports.iter().map(|port| (port.number, port.len)).collect();
    Geometry::new(&lens)
}

impl<M: AsRef<[AtomicU64]>> DeviceTable<M> {
    /// Tables in the memory given, which may be shared with other processes. It is zeroes, or what an earlier maintainer of the same ports
    /// left: its entries stay where they are until they are changed, and its readers go on with ours. Until the first
    /// [`DeviceTable::heartbeat`] these can tell that nobody has looked after the table yet. There must be one maintainer at a time.
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

    /// A reader.
    pub fn reader(&self) -> Result<Reader<M>, LayoutError>
    where
        M: Clone,
    {
        let memory = self.publication.lock().memory().clone();
        Reader::attach(memory)
    }

    /// All valid entries of all ports, of one moment. Waits only for words being written, never for the device.
    pub fn entries(&self) -> Vec<Entry> {
        let publication = self.publication.lock();
        (0..publication.geometry().slots()).filter_map(|slot| publication.record(slot).entry()).collect()
    }

    /// The ports.
    pub fn ports(&self) -> impl Iterator<Item = PortSetup> + '_ {
        self.ports.iter().map(|port| port.setup)
    }

    /// Sign of life for readers in other processes: at this time, nanoseconds of CLOCK_MONOTONIC, the table was as it should be. 0 takes
    /// that back: nobody looks after it.
    pub fn heartbeat(&self, now: u64) {
        self.publication.lock().heartbeat(now);
    }

    /// Adds an entry in the first free slot behind the reserved ones, unless it is there.
    pub fn add(&self, port: PortNumber, attributes: Attributes) -> Result<Added, TableError> {
        let table = self.port(port)?;
        Self::check(table, &attributes)?;
        let mut writer = table.writer.lock();
        if let Some(&index) = writer.by_key.get(&attributes.key) {
            return Ok(Added::Existing(index));
        }
        // Where the device refuses, a slot stays taken.
        let _ = self.reclaim_port(table, &mut writer);
        let index = *writer.free.first().ok_or(TableError::Full(port))?;
        self.tell_add(table, &mut writer, Entry { port, index, attributes, default: false })?;
        writer.free.remove(&index);
        Ok(Added::New(index))
    }

    /// Deletes an entry that is not in a reserved slot; returns where it was, `None` if it was not there.
    pub fn delete(&self, port: PortNumber, key: &Key) -> Result<Option<u16>, TableError> {
        self.delete_if(port, key, false)
    }

    /// Puts a port's own GID into the reserved slot of its type.
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
        self.tell_add(table, &mut writer, Entry { port, index, attributes, default: true })?;
        Ok(Added::New(index))
    }

    /// Empties the reserved slot that holds this GID.
    pub fn delete_default(&self, port: PortNumber, key: &Key) -> Result<Option<u16>, TableError> {
        self.delete_if(port, key, true)
    }

    /// Deletes all entries of an interface, those in reserved slots too. Goes on where the device refuses; the first refusal is returned.
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
            match self.tell_delete(table, &mut writer, &entry) {
                Ok(()) => deleted += 1,
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(deleted), Err)
    }

    fn port(&self, port: PortNumber) -> Result<&PortTable, TableError> {
        self.ports.iter().find(|table| table.setup.number == port).ok_or(TableError::NoPort(port))
    }

    /// The reserved slot of the entry's type, if the port can have the entry at all.
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
        self.tell_delete(table, &mut writer, &entry)?;
        Ok(Some(entry.index))
    }

    fn tell_add(&self, table: &PortTable, writer: &mut Writer, entry: Entry) -> Result<(), TableError> {
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

    fn tell_delete(&self, table: &PortTable, writer: &mut Writer, entry: &Entry) -> Result<(), TableError> {
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

    /// The device forgets an entry, and its slot is empty.
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
