//! A device's GID table in [`gidcache`]: copied whole, and again when the device tells of a change; and the tables that a process serves to
//! others ([`Directory`]), as these see them ([`SharedGids`]).

mod directory;
mod shared;

use std::path::Path;

use gidcache::layout::LayoutError;
use gidcache::table::Memory;
use gidcache::{DeviceTable, Difference, NoProvider, PortKind, PortSetup, TableError};

use crate::hca::{AsyncEvent, Control, HcaError, LinkLayer, PortNumber};
use crate::shm::{Maintained, ShmError};

pub use self::directory::{
    DEFAULT_DIRECTORY, Directory, DirectoryError, MAX_TABLES, is_table_name, roce_table, tables,
};
pub use self::shared::{SILENCE, SharedError, SharedGids, Standing};

/// Why there is no copy of a device's table.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The device was asked in vain.
    #[error(transparent)]
    Device(#[from] HcaError),
    /// What it said is no table.
    #[error("the device's GID table: {0}")]
    Table(TableError),
    /// Its ports are more than a table can have.
    #[error("the device's ports: {0}")]
    Layout(LayoutError),
    /// The memory could not be shared.
    #[error("sharing the GID table: {0}")]
    Shared(ShmError),
}

// Its text says what its cause says, which is therefore no source that would be told once more.
impl From<TableError> for MirrorError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

impl From<LayoutError> for MirrorError {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}

impl From<ShmError> for MirrorError {
    fn from(error: ShmError) -> Self {
        Self::Shared(error)
    }
}

/// A copy of a device's table, in memory of this process or shared with others.
#[derive(Debug)]
pub struct Mirror<M = Memory> {
    table: DeviceTable<M>,
    stale: bool,
}

/// True if a device's table may be another after this event. Devices raise the last ones beside, or in place of, the first.
#[must_use]
pub const fn concerns_gids(event: &AsyncEvent) -> bool {
    match event {
        AsyncEvent::GidChange(_)
        | AsyncEvent::PortActive(_)
        | AsyncEvent::PortError(_)
        | AsyncEvent::LidChange(_)
        | AsyncEvent::SmChange(_)
        | AsyncEvent::ClientReregister(_)
        | AsyncEvent::Fatal => true,
        AsyncEvent::PKeyChange(_)
        | AsyncEvent::LastWqeReached(_)
        | AsyncEvent::CommunicationEstablished(_)
        | AsyncEvent::QpFatal(_)
        | AsyncEvent::SrqLimitReached(_) => false,
    }
}

/// What the table of a port is, which somebody else keeps.
pub(crate) const fn kind_of(link_layer: LinkLayer) -> PortKind {
    match link_layer {
        LinkLayer::InfiniBand => PortKind::InfiniBand,
        LinkLayer::Ethernet => PortKind::Mirror,
    }
}

/// The tables that a device has.
fn ports(device: &impl Control) -> Result<Vec<PortSetup>, HcaError> {
    (1..=device.device().ports)
        .map(|number| {
            let number = PortNumber(number);
            let port = device.port(number)?;
            Ok(PortSetup { number, len: port.gid_table_len.max(1), kind: kind_of(port.link_layer) })
        })
        .collect()
}

impl Mirror<Memory> {
    /// For readers within this process. Filled by the first [`Mirror::refresh`].
    pub fn new(device: &impl Control, seed: u64) -> Result<Self, MirrorError> {
        let table = DeviceTable::new(&ports(device)?, NoProvider, seed)?;
        Ok(Self { table, stale: true })
    }
}

impl Mirror<Maintained> {
    /// For readers in any process: in a file whose maintainer this process becomes.
    pub fn share(device: &impl Control, file: &Path, seed: u64) -> Result<Self, MirrorError> {
        Ok(Self { table: share(&ports(device)?, file, seed)?, stale: true })
    }

    /// Gives readers a sign of life.
    pub fn beat(&self) {
        self.table.heartbeat(crate::shm::monotonic_nanoseconds());
    }
}

/// Tables in a file whose maintainer this process becomes. What a former one left of the same ports stays until it is changed.
pub fn share(ports: &[PortSetup], file: &Path, seed: u64) -> Result<DeviceTable<Maintained>, MirrorError> {
    let words = gidcache::table::words_needed(ports)?;
    let memory = Maintained::open(file, words)?;
    let publish = |memory| DeviceTable::publish_in(memory, ports, NoProvider, seed, std::process::id());
    Ok(match publish(memory.clone()) {
        // As long as ours, but of other ports: begun anew.
        Err(_) => publish(memory.renewed(file, words)?)?,
        Ok(table) => table,
    })
}

impl<M: AsRef<[std::sync::atomic::AtomicU64]>> Mirror<M> {
    /// The copy.
    pub const fn table(&self) -> &DeviceTable<M> {
        &self.table
    }

    /// Tells of an event of the device.
    pub const fn handle_event(&mut self, event: &AsyncEvent) {
        self.stale |= concerns_gids(event);
    }

    /// Makes the next [`Mirror::refresh`] look.
    pub const fn invalidate(&mut self) {
        self.stale = true;
    }

    /// Copies the device's table if it may have changed; returns what is different.
    pub fn refresh(&mut self, device: &impl Control) -> Result<Vec<Difference>, MirrorError> {
        if !self.stale {
            return Ok(Vec::new());
        }
        let entries = device.gids()?;
        let changes = self.table.mirror(&entries)?;
        self.stale = false;
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use gidcache::{Query, Reader};
    use ib_wire::smp::GuidBlock;
    use ib_wire::{Gid, Guid, Mtu};

    use super::*;
    use crate::shm::ReadOnly;
    use crate::soft::{SoftConfig, SoftHca};

    const PORT: PortNumber = PortNumber(1);

    fn soft(ports: u64, gid_table: u16) -> SoftHca {
        SoftHca::new(&SoftConfig {
            name: "soft0".into(),
            node_guid: Guid(1),
            port_guids: (0..ports).map(|n| Guid(2 + n)).collect(),
            max_mtu: Mtu::B4096,
            gid_table,
            seed: 1,
        })
        .unwrap()
    }

    fn set_prefix(device: &SoftHca, prefix: u64) {
        device.engine().lock().set_gid_prefix(PORT, prefix).unwrap();
    }

    #[test]
    fn a_copy_follows_its_device_when_told_of_an_event() {
        let device = soft(2, 16);
        let mut mirror = Mirror::new(&device, 1).unwrap();
        assert_eq!(mirror.refresh(&device).unwrap().len(), 2);
        assert_eq!(mirror.table().entries(), device.gids().unwrap());
        let mut block = GuidBlock::default();
        block.guids[1] = Guid(0x99);
        device.engine().lock().set_guids(PORT, 1, &block).unwrap();
        mirror.handle_event(&AsyncEvent::PKeyChange(PORT));
        assert_eq!(mirror.refresh(&device).unwrap(), [], "the event says nothing about GIDs");
        mirror.handle_event(&AsyncEvent::GidChange(PORT));
        let changes = mirror.refresh(&device).unwrap();
        assert_eq!(changes, [Difference::Added(device.gid_entry(PORT, 9).unwrap().unwrap())]);
        assert_eq!(mirror.refresh(&device).unwrap(), []);
        // Another prefix is another GID in every slot.
        set_prefix(&device, 0xfec0_0000_0000_0001);
        mirror.handle_event(&AsyncEvent::ClientReregister(PORT));
        assert_eq!(mirror.refresh(&device).unwrap().len(), 4);
        assert_eq!(mirror.table().entries(), device.gids().unwrap());
    }

    #[test]
    fn a_shared_copy_is_read_beside_and_outlives_its_maintainer() {
        // With its lock beside it.
        let place = std::env::temp_dir().join(format!("gid-mirror-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).unwrap();
        let file = place.join("table");
        let device = soft(1, 32);
        let mut mirror = Mirror::share(&device, &file, 1).unwrap();
        mirror.refresh(&device).unwrap();
        let memory = ReadOnly::open(&file).unwrap();
        let reader = Reader::attach(memory.clone()).unwrap();
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(2));
        assert!(reader.find(&Query::new(gid)).unwrap().is_some() && memory.is_maintained().unwrap());
        assert!(matches!(
            Mirror::share(&device, &file, 1),
            Err(MirrorError::Shared(ShmError::Maintained { .. }))
        ));
        drop(mirror);
        assert!(reader.find(&Query::new(gid)).unwrap().is_some() && !memory.is_maintained().unwrap());
        // A device with other ports takes the place over, though its table is as long; who reads the old one finds it without a
        // maintainer.
        let other = soft(2, 16);
        let mut mirror = Mirror::share(&other, &file, 1).unwrap();
        mirror.refresh(&other).unwrap();
        assert!(!memory.is_maintained().unwrap());
        let reader = Reader::attach(ReadOnly::open(&file).unwrap()).unwrap();
        assert_eq!(reader.ports().count(), 2);
        std::fs::remove_dir_all(&place).unwrap();
    }
}
