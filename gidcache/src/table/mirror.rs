//! Copies of tables that others maintain: the subnet manager for an InfiniBand port, the kernel for its own
//! RoCE device.

use std::collections::BTreeMap;

use ib_wire::{Gid, PortNumber};
use parking_lot::MutexGuard;

use super::{DeviceTable, PortKind, PortTable, TableError, Writer};
use crate::difference::{Difference, differences};
use crate::entry::{Attributes, Entry, GidType, Key};
use crate::sync::AtomicU64;

impl<M: AsRef<[AtomicU64]>> DeviceTable<M> {
    /// Copies the tables of all mirrored ports, index for index. Slots that are not among `entries` become
    /// empty.
    ///
    /// The device is the source and is not notified. Readers see all old tables or all new ones. Returns the
    /// differences.
    pub fn mirror(&self, entries: &[Entry]) -> Result<Vec<Difference>, TableError> {
        let tables: Vec<_> = self.ports.iter().filter(|table| table.is_mirrored()).collect();
        self.write_mirrors(&tables, entries)
    }

    /// Like [`DeviceTable::mirror`], for one port.
    pub fn mirror_port(&self, port: PortNumber, entries: &[Entry]) -> Result<Vec<Difference>, TableError> {
        let table = self.port(port)?;
        if !table.is_mirrored() {
            return Err(TableError::Managed(port));
        }
        self.write_mirrors(&[table], entries)
    }

    /// Copies the table of an InfiniBand port, index for index, with [`Gid::ZERO`] for empty slots.
    pub fn set_infiniband(&self, port: PortNumber, gids: &[Gid]) -> Result<(), TableError> {
        let table = self.port(port)?;
        if table.setup.kind != PortKind::InfiniBand {
            return Err(TableError::Type { port, gid_type: GidType::Ib });
        }
        let slots = table.setup.len;
        if gids.len() > usize::from(slots) {
            return Err(TableError::TooMany { gids: gids.len(), slots });
        }
        let entry = |(index, gid): (u16, &Gid)| {
            let key = Key { gid: *gid, gid_type: GidType::Ib, ifindex: None };
            Entry { port, index, attributes: Attributes { key, vlan: None }, default: index == 0 }
        };
        let entries: Vec<Entry> =
            (0..slots).zip(gids).filter(|(_, gid)| **gid != Gid::ZERO).map(entry).collect();
        self.write_mirrors(&[table], &entries).map(|_| ())
    }

    fn write_mirrors(&self, tables: &[&PortTable], entries: &[Entry]) -> Result<Vec<Difference>, TableError> {
        let mut wanted: BTreeMap<(PortNumber, u16), Entry> = BTreeMap::new();
        for entry in entries {
            let (port, gid_type) = (entry.port, entry.gid_type());
            let table = self.port(port)?;
            if !tables.iter().any(|mirrored| mirrored.setup.number == port) {
                return Err(TableError::Managed(port));
            }
            if entry.index >= table.setup.len {
                return Err(TableError::TooMany {
                    gids: usize::from(entry.index) + 1,
                    slots: table.setup.len,
                });
            }
            if table.setup.kind == PortKind::InfiniBand && gid_type != GidType::Ib {
                return Err(TableError::Type { port, gid_type });
            }
            if entry.gid() == Gid::ZERO || entry.gid().is_multicast() {
                return Err(TableError::NotAGid(entry.gid()));
            }
            // The last one of several entries for an index is the newest.
            wanted.insert((port, entry.index), *entry);
        }
        // Lock in port order, so that concurrent calls cannot deadlock.
        let mut writers: Vec<(&PortTable, MutexGuard<'_, Writer>)> =
            tables.iter().map(|table| (*table, table.writer.lock())).collect();
        let before: Vec<Entry> =
            writers.iter().flat_map(|(_, writer)| writer.entries.values().copied()).collect();
        let after: Vec<Entry> = wanted.into_values().collect();
        let changes = differences(&before, &after);
        let mut publication = self.publication.lock();
        for (table, writer) in &mut writers {
            for change in changes.iter().filter(|change| change.entry().port == table.setup.number) {
                match change {
                    Difference::Removed(entry) => {
                        writer.entries.remove(&entry.index);
                        publication.set(table.slot(entry.index), None);
                    }
                    Difference::Added(entry) => {
                        writer.entries.insert(entry.index, *entry);
                        publication.set(table.slot(entry.index), Some((entry, true)));
                    }
                }
            }
        }
        publication.publish();
        Ok(changes)
    }
}

impl PortTable {
    fn is_mirrored(&self) -> bool {
        matches!(self.setup.kind, PortKind::InfiniBand | PortKind::Mirror)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{IfIndex, RoceTypes, VlanId};
    use crate::table::{NoProvider, PortSetup};

    const IB: PortNumber = PortNumber(1);
    const KERNEL: PortNumber = PortNumber(2);
    const OURS: PortNumber = PortNumber(3);

    fn table() -> DeviceTable {
        let port = |number, kind| PortSetup { number, len: 6, kind };
        let ports = [
            port(IB, PortKind::InfiniBand),
            port(KERNEL, PortKind::Mirror),
            port(OURS, PortKind::Roce(RoceTypes::V2)),
        ];
        DeviceTable::new(&ports, NoProvider, 1).unwrap()
    }

    fn entry(port: PortNumber, index: u16, last: u8, gid_type: GidType, ifindex: u32) -> Entry {
        let gid = crate::gid_of_address([10, 0, 0, last].into());
        let key = Key { gid, gid_type, ifindex: IfIndex::new(ifindex) };
        let vlan = (ifindex > 7).then(|| VlanId::new(100)).flatten();
        Entry { port, index, attributes: Attributes { key, vlan }, default: false }
    }

    #[test]
    fn a_table_is_mirrored_index_for_index() {
        let table = table();
        let reader = table.reader().unwrap();
        let first = [
            entry(IB, 0, 1, GidType::Ib, 0),
            entry(KERNEL, 0, 2, GidType::RoceV1, 7),
            entry(KERNEL, 1, 2, GidType::RoceV2, 7),
            // The kernel reuses slots in its own order and may briefly have the same key twice.
            entry(KERNEL, 5, 2, GidType::RoceV2, 8),
        ];
        assert_eq!(table.mirror(&first).unwrap(), first.map(Difference::Added));
        assert_eq!(table.entries(), first);
        let publication = reader.publication();
        assert_eq!(table.mirror(&first).unwrap(), []);
        assert_eq!(reader.publication(), publication, "nothing changed");
        let second = [first[1], entry(KERNEL, 1, 3, GidType::RoceV2, 7), first[3]];
        let changes = table.mirror(&second).unwrap();
        assert_eq!(
            changes,
            [Difference::Removed(first[0]), Difference::Removed(first[2]), Difference::Added(second[1])]
        );
        assert_eq!(reader.publication(), publication + 1, "all at once");
        let query = crate::Query::new(second[1].gid());
        assert_eq!(reader.find(&query).unwrap(), Some(second[1]));
        assert_eq!(reader.find(&crate::Query::new(first[0].gid())).unwrap(), None);
    }

    #[test]
    fn one_port_is_mirrored_alone() {
        let table = table();
        let (ib, kernel) = (entry(IB, 0, 1, GidType::Ib, 0), entry(KERNEL, 3, 2, GidType::RoceV2, 7));
        table.mirror(&[ib, kernel]).unwrap();
        assert_eq!(table.mirror_port(KERNEL, &[]).unwrap(), [Difference::Removed(kernel)]);
        assert_eq!(table.entries(), [ib]);
        assert!(matches!(table.mirror_port(KERNEL, &[ib]), Err(TableError::Managed(IB))));
        assert!(matches!(table.mirror_port(OURS, &[]), Err(TableError::Managed(OURS))));
    }

    #[test]
    fn what_is_no_copy_changes_nothing() {
        let table = table();
        let good = entry(KERNEL, 0, 1, GidType::RoceV2, 7);
        table.mirror(&[good]).unwrap();
        let mut zero = good;
        zero.attributes.key.gid = Gid::ZERO;
        for bad in [
            entry(KERNEL, 6, 2, GidType::RoceV2, 7),
            entry(IB, 0, 2, GidType::RoceV2, 7),
            entry(OURS, 0, 2, GidType::RoceV2, 7),
            entry(PortNumber(9), 0, 2, GidType::RoceV2, 7),
            zero,
        ] {
            table.mirror(&[bad]).unwrap_err();
        }
        assert_eq!(table.entries(), [good]);
        // A copy cannot be changed directly.
        let key = good.attributes;
        assert!(matches!(table.add(KERNEL, key), Err(TableError::Mirrored(KERNEL))));
        assert!(matches!(table.add_default(KERNEL, key), Err(TableError::Mirrored(KERNEL))));
        assert!(matches!(table.delete(KERNEL, &key.key), Err(TableError::Mirrored(KERNEL))));
        let ifindex = IfIndex::new(7).unwrap();
        assert!(matches!(table.delete_interface(KERNEL, ifindex), Err(TableError::Mirrored(KERNEL))));
        assert_eq!(table.entries(), [good]);
    }
}
