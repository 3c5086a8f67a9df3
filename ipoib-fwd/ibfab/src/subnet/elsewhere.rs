//! Source LIDs that a port must not accept. Switches of another owner do not check the sources of packets:
//! behind a port that leads to them, a host could take the LID of any port.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::{Guid, Lid};

use super::{OwnSwitches, PortId, Subnet};

impl Subnet {
    /// Returns, for each port that leads to switches of another owner, the LIDs that no packet may have as
    /// its source there: those of all ports that are not behind it.
    ///
    /// If these switches have several links to our own, packets between our own may pass through them, and no
    /// LID is refused. A port whose other end is unknown is omitted.
    pub(crate) fn elsewhere(&self, own: &OwnSwitches) -> BTreeMap<PortId, BTreeSet<Lid>> {
        let mut elsewhere = BTreeMap::new();
        for &entry in &own.others {
            let Some((first, _)) = self.port(entry).and_then(|port| port.peer) else { continue };
            let (behind, entries) = self.behind(first, own);
            let mut lids = BTreeSet::new();
            if !behind.is_empty() && entries == [entry].into() {
                let homes = self.end_ports().filter_map(|end| {
                    let home = if end.node.is_switch() { end.id.0 } else { end.port.peer?.0 };
                    Some((home, end.port.lids()))
                });
                let homes = homes.filter(|(home, _)| !behind.contains(home));
                lids.extend(homes.flat_map(|(_, block)| block.iter()));
            }
            elsewhere.insert(entry, lids);
        }
        elsewhere
    }

    /// Returns the switches of another owner that are connected with `first`, and the ports of our own
    /// switches that lead to them.
    fn behind(&self, first: Guid, own: &OwnSwitches) -> (BTreeSet<Guid>, BTreeSet<PortId>) {
        let (mut behind, mut entries) = (BTreeSet::new(), BTreeSet::new());
        let mut next = vec![first];
        while let Some(guid) = next.pop() {
            let Some(node) = self.nodes.get(&guid).filter(|node| node.is_switch() && !own.has(guid)) else {
                continue;
            };
            if behind.insert(guid) {
                let peers = node.ports.values().filter_map(|port| port.peer);
                for peer in peers {
                    if own.has(peer.0) {
                        entries.insert(peer);
                    } else {
                        next.push(peer.0);
                    }
                }
            }
        }
        (behind, entries)
    }
}
