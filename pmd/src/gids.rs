//! Copies of a device's GID table in [`gidcache`].
//!
//! - [`Mirror`] copies the whole table, and copies it again when the device reports a change.
//! - [`Directory`] contains the tables that a process serves to others, which read them through
//!   [`SharedGids`].

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

/// Reason why a device's table could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The query of the device failed.
    #[error(transparent)]
    Device(#[from] HcaError),
    /// The device returned an invalid table.
    #[error("the device's GID table: {0}")]
    Table(TableError),
    /// The device has more ports than a table supports.
    #[error("the device's ports: {0}")]
    Layout(LayoutError),
    /// The memory could not be shared.
    #[error("sharing the GID table: {0}")]
    Shared(ShmError),
}

// The message contains the cause's text, so the cause is not also a `source`.
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

/// A copy of a device's table, in private or shared memory.
#[derive(Debug)]
pub struct Mirror<M = Memory> {
    table: DeviceTable<M>,
    stale: bool,
}

/// True if an event may have changed a device's table. Devices raise the later ones in addition to the first,
/// or instead of it.
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

/// Returns the port kind of a table that another process maintains.
pub(crate) const fn kind_of(link_layer: LinkLayer) -> PortKind {
    match link_layer {
        LinkLayer::InfiniBand => PortKind::InfiniBand,
        LinkLayer::Ethernet => PortKind::Mirror,
    }
}

/// Returns the table layout of a device.
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
    /// Creates a copy for readers within this process. The first [`Mirror::refresh`] fills it.
    pub fn new(device: &impl Control, seed: u64) -> Result<Self, MirrorError> {
        let table = DeviceTable::new(&ports(device)?, NoProvider, seed)?;
        Ok(Self { table, stale: true })
    }
}

impl Mirror<Maintained> {
    /// Creates a copy for readers in any process, in a file that this process maintains.
    pub fn share(device: &impl Control, file: &Path, seed: u64) -> Result<Self, MirrorError> {
        Ok(Self { table: share(&ports(device)?, file, seed)?, stale: true })
    }

    /// Updates the heartbeat that readers check.
    pub fn beat(&self) {
        self.table.heartbeat(crate::shm::monotonic_nanoseconds());
    }
}

/// Opens or creates tables in a file that this process then maintains. Contents left by a former maintainer
/// of the same ports stay until they change.
pub fn share(ports: &[PortSetup], file: &Path, seed: u64) -> Result<DeviceTable<Maintained>, MirrorError> {
    let words = gidcache::table::words_needed(ports)?;
    let memory = Maintained::open(file, words)?;
    let publish = |memory| DeviceTable::publish_in(memory, ports, NoProvider, seed, std::process::id());
    Ok(match publish(memory.clone()) {
        // Equal length but different ports: replace the file.
        Err(_) => publish(memory.renewed(file, words)?)?,
        Ok(table) => table,
    })
}

impl<M: AsRef<[std::sync::atomic::AtomicU64]>> Mirror<M> {
    /// Returns the copy.
    pub const fn table(&self) -> &DeviceTable<M> {
        &self.table
    }

    /// Reports a device event.
    pub const fn handle_event(&mut self, event: &AsyncEvent) {
        self.stale |= concerns_gids(event);
    }

    /// Forces the next [`Mirror::refresh`] to query the device.
    pub const fn invalidate(&mut self) {
        self.stale = true;
    }

    /// Copies the device's table if it may have changed. Returns the differences.
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
    fn a_copy_follows_its_device_after_an_event() {
        let device = soft(2, 16);
        let mut mirror = Mirror::new(&device, 1).unwrap();
        assert_eq!(mirror.refresh(&device).unwrap().len(), 2);
        assert_eq!(mirror.table().entries(), device.gids().unwrap());
        let mut block = GuidBlock::default();
        block.guids[1] = Guid(0x99);
        device.engine().lock().set_guids(PORT, 1, &block).unwrap();
        mirror.handle_event(&AsyncEvent::PKeyChange(PORT));
        assert_eq!(mirror.refresh(&device).unwrap(), [], "the event does not concern GIDs");
        mirror.handle_event(&AsyncEvent::GidChange(PORT));
        let changes = mirror.refresh(&device).unwrap();
        assert_eq!(changes, [Difference::Added(device.gid_entry(PORT, 9).unwrap().unwrap())]);
        assert_eq!(mirror.refresh(&device).unwrap(), []);
        // Another prefix changes the GID in every slot.
        set_prefix(&device, 0xfec0_0000_0000_0001);
        mirror.handle_event(&AsyncEvent::ClientReregister(PORT));
        assert_eq!(mirror.refresh(&device).unwrap().len(), 4);
        assert_eq!(mirror.table().entries(), device.gids().unwrap());
    }

    #[test]
    fn a_shared_copy_is_readable_and_outlives_its_maintainer() {
        // The directory also contains its lock.
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
        // A device with other ports takes the file over, although its table has the same length. Readers of
        // the old one see that it has no maintainer.
        let other = soft(2, 16);
        let mut mirror = Mirror::share(&other, &file, 1).unwrap();
        mirror.refresh(&other).unwrap();
        assert!(!memory.is_maintained().unwrap());
        let reader = Reader::attach(ReadOnly::open(&file).unwrap()).unwrap();
        assert_eq!(reader.ports().count(), 2);
        std::fs::remove_dir_all(&place).unwrap();
    }
}
