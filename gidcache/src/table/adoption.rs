//! Takes over the entries that an earlier maintainer left in shared memory. They keep their indices until
//! they are changed.

use ib_wire::Gid;

use super::{DeviceTable, PortKind, PortTable};
use crate::entry::{Entry, GidType};
use crate::layout::Geometry;
use crate::lookup::Reader;
use crate::sync::AtomicU64;

/// Returns the valid entries of the last complete publication, or none if the memory has no table of these
/// ports.
pub(super) fn left_in<M: AsRef<[AtomicU64]>>(memory: &M, geometry: &Geometry) -> Vec<Entry> {
    let mut entries = Vec::new();
    let Ok(reader) = Reader::attach(memory) else { return entries };
    // If it cannot be read consistently it is not a table, since nobody writes it any more.
    if !reader.ports().eq(geometry.ports()) || reader.entries(&mut entries).is_err() {
        entries.clear();
    }
    entries
}

impl<M: AsRef<[AtomicU64]>> DeviceTable<M> {
    /// Takes over entries if they are valid for these ports, since the memory may contain anything. The
    /// device is notified of each entry, because it now belongs to another process and knows none.
    pub(super) fn adopt(&mut self, left: &[Entry]) {
        let Self { ports, publication, provider } = self;
        let publication = publication.get_mut();
        for entry in left {
            let Some(table) = ports.iter_mut().find(|table| table.setup.number == entry.port) else {
                continue;
            };
            if !table.could_hold(entry) {
                continue;
            }
            let slot = table.slot(entry.index);
            let managed = matches!(table.setup.kind, PortKind::Roce(_));
            let writer = table.writer.get_mut();
            let taken = writer.entries.contains_key(&entry.index)
                || managed && writer.by_key.contains_key(&entry.attributes.key);
            if taken || managed && provider.add_gid(entry).is_err() {
                continue;
            }
            writer.entries.insert(entry.index, *entry);
            if managed {
                writer.by_key.insert(entry.attributes.key, entry.index);
                writer.free.remove(&entry.index);
            }
            publication.set(slot, Some((entry, true)));
        }
    }
}

impl PortTable {
    fn could_hold(&self, entry: &Entry) -> bool {
        let (gid, gid_type) = (entry.gid(), entry.gid_type());
        let own = self.types().iter().position(|&of_port| of_port == gid_type);
        let fits = match self.setup.kind {
            PortKind::InfiniBand => gid_type == GidType::Ib,
            PortKind::Mirror => true,
            PortKind::Roce(_) if entry.default => own == Some(usize::from(entry.index)),
            PortKind::Roce(_) => own.is_some() && entry.index >= self.reserved(),
        };
        fits && entry.index < self.setup.len && gid != Gid::ZERO && !gid.is_multicast()
    }
}
