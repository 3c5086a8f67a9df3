//! Nodes that answer with the GUID of another node: a cloned virtual machine, a device that was given the same GUID by hand.
//!
//! Both would get one LID, and packets for it would go to one of them only. So the one that was there first keeps its place, and the switch
//! port that leads to the other stays down until that has a GUID of its own. A node that was moved to another port is no duplicate: it
//! is not found at its old place any more.

use std::collections::BTreeMap;

use ib_wire::Guid;
use ib_wire::smp::{DirectedPath, NodeInfo, NodeType};

use super::sweep::Sweep;
use crate::subnet::{Counters, PortId, SmConfig};

/// What is known of duplicates.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    /// Switch ports that lead to one, and its GUID, as this sweep finds them.
    found: BTreeMap<PortId, Guid>,
    /// The same after the last sweep.
    before: BTreeMap<PortId, Guid>,
    /// Nodes that answer at another place than before: they have moved, unless they are found at the old place as well.
    moved: Vec<(DirectedPath, PortId, NodeInfo)>,
}

impl Duplicates {
    /// A sweep begins.
    pub(super) fn start(&mut self) {
        self.before = std::mem::take(&mut self.found);
        self.moved.clear();
    }

    /// A sweep has seen every node. Returns how many duplicates are new.
    pub(super) fn end(&self) -> u64 {
        let new = self.found.iter().filter(|(port, guid)| self.before.get(*port) != Some(*guid));
        let mut count = 0;
        for ((switch, port), guid) in new {
            count += 1;
            tracing::warn!(
                "port {port} of switch {switch} stays down: another node has the same GUID {guid}; give each node a GUID of its own"
            );
        }
        count
    }
}

impl Sweep {
    /// Decides whether the node that answered behind `from` is taken in now. False for a duplicate, and for one at another place than
    /// before: [`Sweep::settle_moved`] decides about that.
    pub(super) fn admits(&mut self, path: DirectedPath, from: Option<PortId>, info: &NodeInfo) -> bool {
        // A switch may be found by several of its ports.
        let Some(from) = from.filter(|_| info.node_type != NodeType::Switch) else { return true };
        let Some(port) = self.subnet.port((info.node_guid, info.local_port)) else { return true };
        if port.peer.is_none_or(|home| home == from) {
            return true;
        }
        if port.generation == self.generation {
            self.duplicates.found.insert(from, info.node_guid);
        } else {
            self.duplicates.moved.push((path, from, *info));
        }
        false
    }

    /// Takes in the nodes that have moved, once every node has answered: those that were not found at their old places. False if there
    /// was none to look at.
    pub(super) fn settle_moved(&mut self, config: &SmConfig, counters: &mut Counters) -> bool {
        let moved = std::mem::take(&mut self.duplicates.moved);
        let any = !moved.is_empty();
        for (path, from, info) in moved {
            let port = self.subnet.port((info.node_guid, info.local_port));
            let is_there = port.is_some_and(|port| port.generation == self.generation);
            // A host that does not answer for a moment, but has its link, is not replaced.
            let is_silent = port.and_then(|port| port.peer).is_some_and(|home| self.silent.contains(&home));
            if is_there || is_silent {
                self.duplicates.found.insert(from, info.node_guid);
            } else {
                self.found(path, Some(from), &info, config, counters);
            }
        }
        any
    }
}
