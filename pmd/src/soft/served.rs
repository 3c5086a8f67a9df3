//! GIDs of an Ethernet port from the table that a service maintains for its interface. They correspond to a
//! real device's GIDs from the kernel.

use std::path::Path;
use std::time::{Duration, Instant};

use gidcache::{Difference, Entry, Provider as _, differences};

use super::roce::PORT;
use super::{SoftHca, roce::RoceError};
use crate::gids::{SharedError, SharedGids, Standing, roce_table};
use connectx::MAX_GIDS;

/// Interval for checking the table's maintainer and file.
const LOOK: Duration = Duration::from_millis(500);

/// The table, and the device's copy of it.
#[derive(Debug)]
pub(super) struct ServedGids {
    shared: SharedGids,
    /// Publication number of the copy.
    publication: Option<u64>,
    held: Vec<Entry>,
    look: Instant,
    standing: Standing,
}

impl ServedGids {
    /// Opens the table of an interface in a service's directory.
    pub(super) fn open(directory: &Path, interface: &str, now: Instant) -> Result<Self, RoceError> {
        let failed = |source| RoceError::Served { interface: interface.to_owned(), source };
        let (_, owner) = crate::gids::tables(directory)?;
        let shared = SharedGids::open_of(&directory.join(roce_table(interface)), owner).map_err(failed)?;
        let standing = shared.standing().map_err(|error| failed(error.into()))?;
        Ok(Self { shared, publication: None, held: Vec::new(), look: now + LOOK, standing })
    }

    /// Number of entries for the device's table.
    pub(super) fn len(&self) -> u16 {
        let port = self.shared.reader().ports().find(|(number, _)| *number == PORT);
        port.map_or(1, |(_, len)| len.clamp(1, MAX_GIDS))
    }

    /// Checks the maintainer if it is due.
    fn look(&mut self, now: Instant) -> Result<(), SharedError> {
        if now < self.look {
            return Ok(());
        }
        self.look = now + LOOK;
        if self.shared.follow()? {
            self.publication = None;
        }
        self.standing = self.shared.standing()?;
        Ok(())
    }

    /// Returns the changes of the table since the last call.
    ///
    /// It returns none while the table cannot be read consistently. It also returns none for a new file that
    /// its maintainer has not confirmed yet, since that may still be empty.
    fn changes(&mut self) -> Vec<Difference> {
        let is_another = self.publication.is_none() && !self.held.is_empty();
        if is_another && matches!(self.standing, Standing::Unsaid(_)) {
            return Vec::new();
        }
        let published = self.shared.reader().publication();
        if self.publication == Some(published) {
            return Vec::new();
        }
        let mut now = Vec::new();
        let Ok(number) = self.shared.reader().entries(&mut now) else { return Vec::new() };
        let changes = differences(&self.held, &now);
        (self.held, self.publication) = (now, Some(number));
        changes
    }
}

impl SoftHca {
    /// Applies changes of the table that a service maintains for this device. Does nothing without such a
    /// table.
    ///
    /// The thread that advances the device calls it periodically;
    /// [`Control::next_event`](crate::hca::Control::next_event) does so. While nobody maintains the table,
    /// the device keeps its GIDs.
    pub fn follow_gids(&mut self, now: Instant) {
        let Some(served) = &mut self.served else { return };
        let before = served.standing;
        if let Err(error) = served.look(now) {
            tracing::debug!("{}: {error}", served.shared.path().display());
        }
        if served.standing != before
            && !matches!((served.standing, before), (Standing::Silent(..), Standing::Silent(..)))
        {
            let path = served.shared.path().display();
            tracing::info!("{path}: {:?}, was {before:?}", served.standing);
        }
        let changes = served.changes();
        let provider = self.gid_provider();
        for change in changes {
            let entry = change.entry();
            let done = if change.is_addition() { provider.add_gid(entry) } else { provider.del_gid(entry) };
            // The device has no such entry if the table is longer than on creation, or has other ports.
            if let Err(error) = done {
                tracing::warn!("GID {} of the served table: {error}", entry.index);
            }
        }
    }

    /// Returns the state of the table that a service maintains for this device, or `None` if its GIDs come
    /// from elsewhere.
    #[must_use]
    pub fn gids_standing(&self) -> Option<Standing> {
        self.served.as_ref().map(|served| served.standing)
    }
}

#[cfg(test)]
mod tests {
    use gidcache::table::words_needed;
    use gidcache::{
        Attributes, DeviceTable, GidType, Key, NoProvider, PortKind, PortSetup, RoceTypes, link_local_gid,
    };
    use ib_wire::Gid;

    use super::*;
    use crate::gids::Directory;
    use crate::hca::{AsyncEvent, Control};
    use crate::shm::{Maintained, monotonic_nanoseconds};
    use crate::soft::roce::tests::{MAC, device_with};

    fn attributes(gid: Gid) -> Attributes {
        Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: None }, vlan: None }
    }

    fn gid(last: u8) -> Gid {
        gidcache::gid_of_address([10, 0, 0, last].into())
    }

    /// Creates an empty table that is not confirmed yet.
    fn unsaid(directory: &Directory, len: u16) -> DeviceTable<Maintained> {
        let setup = [PortSetup { number: PORT, len, kind: PortKind::Roce(RoceTypes::V2) }];
        let path = directory.table(&roce_table("eth7")).unwrap();
        let memory = Maintained::open(&path, words_needed(&setup).unwrap()).unwrap();
        DeviceTable::publish_in(memory, &setup, NoProvider, 5, 42).unwrap()
    }

    fn serve(directory: &Directory, len: u16) -> DeviceTable<Maintained> {
        let table = unsaid(directory, len);
        table.add_default(PORT, attributes(link_local_gid(MAC))).unwrap();
        table.heartbeat(monotonic_nanoseconds());
        table
    }

    fn gids(hca: &SoftHca) -> Vec<(u16, Gid)> {
        hca.gids().unwrap().iter().map(|entry| (entry.index, entry.gid())).collect()
    }

    #[test]
    fn a_port_has_the_gids_that_a_service_keeps_for_it_whatever_becomes_of_that() {
        let place = std::env::temp_dir().join(format!("soft-served-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        let mut now = Instant::now();
        assert!(matches!(ServedGids::open(&place, "eth7", now), Err(RoceError::Directory(_))));
        let directory = Directory::serve(&place).unwrap();
        assert!(matches!(ServedGids::open(&place, "eth7", now), Err(RoceError::Served { .. })));
        let table = serve(&directory, 4);
        table.add(PORT, attributes(gid(1))).unwrap();
        let own = link_local_gid(MAC);
        let served = ServedGids::open(&place, "eth7", now).unwrap();
        assert_eq!(served.len(), 4);
        let mut hca = device_with(4);
        hca.served = Some(served);
        hca.follow_gids(now);
        assert_eq!(gids(&hca), [(0, own), (1, gid(1))]);
        assert_eq!(hca.gids_standing(), Some(Standing::Current));
        // One address is added and one removed. The device notifies its users.
        table.add(PORT, attributes(gid(2))).unwrap();
        table.delete(PORT, &attributes(gid(1)).key).unwrap();
        while hca.next_event().is_some() {}
        assert_eq!(gids(&hca), [(0, own), (2, gid(2))]);
        table.add(PORT, attributes(gid(3))).unwrap();
        assert_eq!(hca.next_event(), Some(AsyncEvent::GidChange(PORT)));
        // The service dies, and the GIDs stay. The next one continues with the same memory.
        drop(table);
        now += LOOK;
        hca.follow_gids(now);
        assert_eq!(hca.gids_standing(), Some(Standing::Dead(42)));
        assert_eq!(gids(&hca), [(0, own), (1, gid(3)), (2, gid(2))]);
        let table = serve(&directory, 4);
        table.delete(PORT, &attributes(gid(2)).key).unwrap();
        hca.follow_gids(now);
        assert_eq!(gids(&hca), [(0, own), (1, gid(3))]);
        drop(table);
        // A maintainer of another version has a longer table, in another file. At first it is empty and not
        // confirmed.
        let table = unsaid(&directory, 9);
        now += LOOK;
        hca.follow_gids(now);
        assert_eq!(hca.gids_standing(), Some(Standing::Unsaid(42)));
        assert_eq!(gids(&hca), [(0, own), (1, gid(3))], "the previous GIDs");
        table.add_default(PORT, attributes(link_local_gid(MAC))).unwrap();
        for last in 1..=8 {
            table.add(PORT, attributes(gid(last))).unwrap();
        }
        table.heartbeat(monotonic_nanoseconds());
        now += LOOK;
        hca.follow_gids(now);
        assert_eq!(
            gids(&hca),
            [(0, own), (1, gid(1)), (2, gid(2)), (3, gid(3))],
            "limited to the device's room"
        );
        assert_eq!(hca.gids_standing(), Some(Standing::Current));
        drop((table, directory));
        std::fs::remove_dir_all(&place).unwrap();
    }
}
