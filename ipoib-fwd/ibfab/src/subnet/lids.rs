//! Assignment of LIDs to ports.

use std::collections::BTreeSet;

use ib_wire::smp::Lmc;
use ib_wire::{Guid, Lid};

use super::{PortId, Subnet};

/// First and last unicast LID.
const UNICAST: std::ops::RangeInclusive<u16> = 1..=0xbfff;

/// The LIDs of a port: 2^`lmc` consecutive ones, the first a multiple of their number (IBA 4.1.3, 7.11.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LidBlock {
    pub base: Lid,
    pub lmc: Lmc,
}

impl LidBlock {
    const fn offsets(self) -> u16 {
        (1 << self.lmc.get()) - 1
    }

    /// True if the LID is one of the port's. A port without LIDs has the base 0, which is not a valid LID.
    pub(crate) const fn contains(self, lid: Lid) -> bool {
        lid.0 != 0 && self.base.0 == lid.0 & !self.offsets()
    }

    pub(crate) const fn last(self) -> Lid {
        Lid(self.base.0 | self.offsets())
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Lid> {
        (self.base.0..=self.last().0).map(Lid)
    }

    /// True if a port may have these LIDs, given tables with room for LIDs below `limit`.
    fn is_valid(self, limit: u16) -> bool {
        self.base.0 & self.offsets() == 0 && UNICAST.contains(&self.base.0) && self.last().0 < limit
    }
}

impl Subnet {
    /// Assigns LIDs to every end port, 2^`lmc` to an adapter's and one to port 0 of a switch. The subnet
    /// manager's port gets `first`. The others keep the LIDs that they had, or get the lowest free ones, also
    /// if several report the same LID. `limit` is the number of LIDs that the switches' tables can hold.
    pub(crate) fn assign_lids(&mut self, manager: Guid, first: Lid, limit: u16, lmc: Lmc) {
        self.by_guid.clear();
        self.by_lid.clear();
        let mut wanted: Vec<(Guid, PortId, LidBlock)> = Vec::new();
        for (&guid, node) in &self.nodes {
            let lmc = if node.is_switch() { Lmc::new(0) } else { lmc };
            for (&number, port) in &node.ports {
                if node.is_end_port(number) {
                    wanted.push((port.guid, (guid, number), LidBlock { base: port.info.lid, lmc }));
                }
            }
        }
        // The manager first, then known ports, then new ports that report a LID.
        wanted.sort_by_key(|(g, id, had)| (*g != manager, !self.lids.contains_key(g), had.base.0 == 0, *id));
        let of_present = wanted.iter().map(|(_, _, had)| usize::from(had.offsets()) + 1).sum::<usize>();
        let of_known = self.lids.values().map(|lids| usize::from(lids.offsets()) + 1).sum::<usize>();
        if of_present + of_known > usize::from(*UNICAST.end()) {
            let present: Vec<Guid> = wanted.iter().map(|w| w.0).collect();
            self.lids.retain(|guid, _| present.contains(guid));
        }
        self.lids.insert(manager, LidBlock { base: first, lmc: Lmc::new(0) });
        let mut taken: BTreeSet<Lid> = self.lids.values().flat_map(|lids| lids.iter()).collect();
        // LIDs that several new ports report are assigned to none of them: one of the ports may be after
        // packets of another.
        let mut brought = BTreeSet::new();
        for (guid, _, had) in wanted.iter().filter(|(guid, ..)| !self.lids.contains_key(guid)) {
            if had.base.0 != 0 && !brought.insert(had.base) {
                tracing::warn!(
                    "port {guid} and another port both report LID {}: both get a new one",
                    had.base
                );
                taken.extend(had.iter());
            }
        }
        for (guid, id, had) in wanted {
            if self.by_guid.contains_key(&guid) {
                continue; // Two ports with one GUID: the first one wins.
            }
            let is_free = |lids: &LidBlock| lids.iter().all(|lid| !taken.contains(&lid));
            let lids = match self.lids.get(&guid) {
                // A node that changed from an adapter to a switch keeps only its first LID.
                Some(&lids) if lids.lmc == had.lmc || guid == manager => Some(lids),
                _ if had.is_valid(limit) && is_free(&had) => Some(had),
                _ => {
                    let blocks = UNICAST.map(|base| LidBlock { base: Lid(base), lmc: had.lmc });
                    let mut blocks = blocks.take_while(|lids| lids.last().0 < limit);
                    blocks.find(|lids| lids.is_valid(limit) && is_free(lids))
                }
            };
            let Some(lids) = lids else { continue };
            taken.extend(lids.iter());
            self.lids.insert(guid, lids);
            self.by_guid.insert(guid, id);
            self.by_lid.insert(lids.base, id);
            if let Some(port) = self.port_mut(id) {
                port.fresh |= port.info.lid != lids.base || port.info.lmc != lids.lmc;
                port.lid = lids.base;
                port.lmc = lids.lmc;
            }
        }
    }
}
