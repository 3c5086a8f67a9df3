//! Holds on entries: a user of an entry's index, such as a queue pair, prevents the reuse of the index for
//! another GID.
//!
//! Readers no longer see a deleted entry that is held, but its slot stays in use and the device keeps the
//! GID. After the last hold is dropped, the next change or [`DeviceTable::reclaim`] frees the slot. As in the
//! kernel, a held own GID of a port keeps its successor out of the reserved slot.
//!
//! Holds are for users within the maintainer's process, which are trusted to drop them. Other readers call
//! [`Reader::has`](crate::Reader::has) to check that their entry still exists.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use ib_wire::PortNumber;

use super::{DeviceTable, PortTable, TableError, Writer};
use crate::entry::Entry;
use crate::sync::AtomicU64;

/// Keeps an entry's index in use until it and its clones are dropped. Dropping never waits.
#[derive(Clone, Debug)]
pub struct Hold(Arc<Entry>);

impl Hold {
    /// Returns the entry as it was when the hold was taken.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.0
    }
}

/// Result of [`DeviceTable::reclaim`].
#[derive(Default, Debug)]
pub struct Reclaimed {
    /// Number of freed slots.
    pub freed: usize,
    /// The first error that prevented freeing a slot.
    pub refused: Option<TableError>,
}

/// Holds of a port, and the deleted entries that they keep.
#[derive(Default, Debug)]
pub(super) struct Holds {
    taken: BTreeMap<u16, Weak<Entry>>,
    pending: BTreeMap<u16, Entry>,
}

impl Holds {
    fn is_held(&self, index: u16) -> bool {
        self.taken.get(&index).is_some_and(|hold| hold.strong_count() > 0)
    }

    /// True if the index belongs to a deleted entry that is still held.
    pub(super) fn is_pending(&self, index: u16) -> bool {
        self.pending.contains_key(&index)
    }

    /// Keeps a deleted entry if it is held. Returns false if it is not.
    pub(super) fn keep(&mut self, entry: &Entry) -> bool {
        let held = self.is_held(entry.index);
        if held {
            self.pending.insert(entry.index, *entry);
        }
        held
    }
}

impl<M: AsRef<[AtomicU64]>> DeviceTable<M> {
    /// Takes a hold on the entry in a slot. Returns `None` if the slot is empty. Waits while the device is
    /// notified of another entry of the port.
    pub fn hold(&self, port: PortNumber, index: u16) -> Result<Option<Hold>, TableError> {
        let table = self.port(port)?;
        table.writable()?;
        let mut writer = table.writer.lock();
        let Some(entry) = writer.entries.get(&index).copied() else { return Ok(None) };
        let taken = &mut writer.holds.taken;
        if let Some(hold) = taken.get(&index).and_then(Weak::upgrade) {
            return Ok(Some(Hold(hold)));
        }
        let hold = Arc::new(entry);
        taken.insert(index, Arc::downgrade(&hold));
        Ok(Some(Hold(hold)))
    }

    /// Frees the slots of deleted entries that are no longer held. If the device fails, the next call tries
    /// again.
    pub fn reclaim(&self) -> Reclaimed {
        let mut reclaimed = Reclaimed::default();
        for table in &self.ports {
            let of_port = self.reclaim_port(table, &mut table.writer.lock());
            reclaimed.freed += of_port.freed;
            reclaimed.refused = reclaimed.refused.or(of_port.refused);
        }
        reclaimed
    }

    pub(super) fn reclaim_port(&self, table: &PortTable, writer: &mut Writer) -> Reclaimed {
        let holds = &writer.holds;
        let free: Vec<Entry> =
            holds.pending.values().filter(|entry| !holds.is_held(entry.index)).copied().collect();
        let mut reclaimed = Reclaimed::default();
        for entry in free {
            match self.forget(table, &entry) {
                Ok(()) => {
                    reclaimed.freed += 1;
                    writer.holds.pending.remove(&entry.index);
                    writer.holds.taken.remove(&entry.index);
                    writer.release(&entry);
                }
                Err(error) => reclaimed.refused = reclaimed.refused.or(Some(error)),
            }
        }
        reclaimed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::entry::{Attributes, GidType, IfIndex, Key, RoceTypes, Slot};
    use crate::table::{Added, PortKind, PortSetup, Provider, ProviderError};

    const PORT: PortNumber = PortNumber(1);

    /// A device that can fail to remove entries.
    struct Device(Arc<AtomicBool>);

    impl Provider for Device {
        fn add_gid(&self, _: &Entry) -> Result<(), ProviderError> {
            Ok(())
        }

        fn del_gid(&self, _: &Entry) -> Result<(), ProviderError> {
            if self.0.load(Ordering::Relaxed) { Err("not now".into()) } else { Ok(()) }
        }
    }

    fn table(len: u16) -> (DeviceTable, Arc<AtomicBool>) {
        let stubborn = Arc::new(AtomicBool::new(false));
        let setup = PortSetup { number: PORT, len, kind: PortKind::Roce(RoceTypes::V2) };
        (DeviceTable::new(&[setup], Device(Arc::clone(&stubborn)), 1).unwrap(), stubborn)
    }

    fn entry(last: u8) -> Attributes {
        let gid = crate::gid_of_address([10, 0, 0, last].into());
        Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: IfIndex::new(3) }, vlan: None }
    }

    #[test]
    fn a_held_index_is_not_used_again() {
        let (table, stubborn) = table(3);
        let reader = table.reader().unwrap();
        table.add(PORT, entry(1)).unwrap();
        let hold = table.hold(PORT, 1).unwrap().unwrap();
        assert!(reader.has(hold.entry()).unwrap());
        assert!(table.hold(PORT, 2).unwrap().is_none());
        assert_eq!(table.delete(PORT, &entry(1).key).unwrap(), Some(1));
        assert!(!reader.has(hold.entry()).unwrap());
        assert_eq!(reader.slot(PORT, 1).unwrap(), Some(Slot::Invalid));
        assert_eq!(table.delete(PORT, &entry(1).key).unwrap(), None);
        assert!(table.hold(PORT, 1).unwrap().is_none(), "new users no longer see it");
        // The same GID is now another entry.
        assert_eq!(table.add(PORT, entry(1)).unwrap(), Added::New(2));
        assert!(matches!(table.add(PORT, entry(2)), Err(TableError::Full(PORT))));
        let clone = hold.clone();
        drop(hold);
        assert_eq!(table.reclaim().freed, 0);
        drop(clone);
        stubborn.store(true, Ordering::Relaxed);
        assert!(matches!(
            table.reclaim(),
            Reclaimed { freed: 0, refused: Some(TableError::Provider { .. }) }
        ));
        assert!(matches!(table.add(PORT, entry(2)), Err(TableError::Full(PORT))));
        stubborn.store(false, Ordering::Relaxed);
        assert_eq!(table.reclaim().freed, 1);
        assert_eq!(reader.slot(PORT, 1).unwrap(), Some(Slot::Empty));
        assert_eq!(table.add(PORT, entry(2)).unwrap(), Added::New(1));
    }

    #[test]
    fn a_held_own_gid_keeps_its_successor_out() {
        let (table, _) = table(3);
        table.add_default(PORT, entry(1)).unwrap();
        let hold = table.hold(PORT, 0).unwrap().unwrap();
        table.delete_default(PORT, &entry(1).key).unwrap();
        assert!(matches!(table.add_default(PORT, entry(2)), Err(TableError::Held(PORT))));
        assert_eq!(table.add(PORT, entry(3)).unwrap(), Added::New(1));
        drop(hold);
        assert_eq!(table.add_default(PORT, entry(2)).unwrap(), Added::New(0));
        // A hold that is dropped before the entry is deleted changes nothing.
        drop(table.hold(PORT, 1).unwrap().unwrap());
        table.delete(PORT, &entry(3).key).unwrap();
        assert_eq!(table.add(PORT, entry(4)).unwrap(), Added::New(1));
    }
}
