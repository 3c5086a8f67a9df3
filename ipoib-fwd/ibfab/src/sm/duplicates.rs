//! Nodes that answer with the GUID of another node: a cloned virtual machine, or a device with a GUID that
//! was set by hand.
//!
//! Both would get one LID, and packets for it would reach only one of them. So the first node keeps its
//! entry, and the switch port that leads to the other stays down until that node has a GUID of its own. A
//! node that moved to another port is not a duplicate: the sweep no longer finds it at its old port.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::Guid;
use ib_wire::smp::{DirectedPath, NodeInfo, NodeType};

use super::sweep::Sweep;
use crate::subnet::{Counters, Node, Port, PortId, SmConfig, Subnet};

/// Known duplicates.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    /// Switch ports that lead to a duplicate, and its GUID, as found in this sweep.
    found: BTreeMap<PortId, Guid>,
    /// The same after the last sweep.
    before: BTreeMap<PortId, Guid>,
    /// Nodes that answer at another port than before: they have moved, unless they are found at the old port,
    /// too.
    moved: Vec<(DirectedPath, PortId, NodeInfo)>,
    /// The same for switches.
    moved_switches: Vec<(DirectedPath, PortId, NodeInfo)>,
    /// Switch ports whose other end had no link when it was read, in this sweep and in the last one.
    early: BTreeSet<PortId>,
    early_before: BTreeSet<PortId>,
    /// Adapters with a GUID of a switch that answers at a port where a switch may be.
    displaced: BTreeSet<Guid>,
    /// Ports where a switch answers and none may be; each is reported once.
    odd_switches: BTreeSet<PortId>,
}

impl Duplicates {
    /// Starts a sweep.
    pub(super) fn start(&mut self) {
        self.before = std::mem::take(&mut self.found);
        self.moved.clear();
        self.moved_switches.clear();
        self.early_before = std::mem::take(&mut self.early);
    }

    /// Ends the discovery of a sweep. Returns the number of new duplicates.
    pub(super) fn end(&self) -> u64 {
        let new = self.found.iter().filter(|(port, guid)| self.before.get(*port) != Some(*guid));
        let mut count = 0;
        for ((switch, port), guid) in new {
            count += 1;
            if guid == switch {
                tracing::warn!(
                    "port {port} of switch {switch} stays down: the switch itself answers there; unplug a cable between two of \
                     its ports, or give the node there a GUID of its own"
                );
            } else {
                tracing::warn!(
                    "port {port} of switch {switch} stays down: another node has the same GUID {guid}; give each node a GUID of its own"
                );
            }
        }
        count
    }
}

impl Sweep {
    /// Decides whether the node that answered behind `from` is taken in now. False for a duplicate, for a
    /// switch where none may be, and for a node at another port than before: [`Sweep::settle_moved`] decides
    /// on that one.
    pub(super) fn admits(
        &mut self,
        path: DirectedPath,
        from: Option<PortId>,
        info: &NodeInfo,
        config: &SmConfig,
        counters: &mut Counters,
    ) -> bool {
        let Some(from) = from else { return true };
        let is_switch = info.node_type == NodeType::Switch;
        if is_switch && !self.admits_switch(from, info.node_guid, config, counters) {
            return false;
        }
        if self.is_of_another_kind(info, config) {
            if !self.displaces_adapters(from, info, config) {
                self.duplicates.found.insert(from, info.node_guid);
            }
            return false;
        }
        // A switch may be found by several of its ports.
        if is_switch {
            if self.is_elsewhere(from, info, config) {
                self.duplicates.moved_switches.push((path, from, *info));
                return false;
            }
            return self.admits_link(from, info, config);
        }
        // A switch that has the same GUIDs may answer later.
        if self.duplicates.before.contains_key(&from) {
            self.duplicates.moved.push((path, from, *info));
            return false;
        }
        for id in self.holders(info) {
            let is_switch = self.subnet.nodes.get(&id.0).is_some_and(Node::is_switch);
            let Some(port) = self.subnet.port(id) else { continue };
            if !is_switch && port.peer.is_none_or(|home| home == from) {
                continue;
            }
            if port.generation == self.generation {
                self.duplicates.found.insert(from, info.node_guid);
            } else {
                self.duplicates.moved.push((path, from, *info));
            }
            return false;
        }
        self.duplicates.odd_switches.remove(&from);
        true
    }

    /// Admits a switch only where one may be: a host must not get the key of a switch by claiming to be one.
    fn admits_switch(
        &mut self,
        from: PortId,
        guid: Guid,
        config: &SmConfig,
        counters: &mut Counters,
    ) -> bool {
        let admitted = config.own.admits(guid, from);
        // A node that is found from a switch of another owner, back at one of our own, is already known.
        if !admitted && config.own.has(from.0) && self.duplicates.odd_switches.insert(from) {
            counters.nodes_ignored += 1;
            tracing::warn!(
                "port {} of switch {} stays down: a switch ({guid}) answers there; to manage it, set trunk = true for this link",
                from.1,
                from.0
            );
        }
        admitted
    }

    /// True for a switch that was reached by another link and that this sweep has not found yet. It may be a
    /// host that answers first, also one that has added a link to the switch. The path up to `from` may have
    /// changed: this sweep has admitted the switch there. The fabric's own switches are believed about their
    /// own ports.
    fn is_elsewhere(&self, from: PortId, info: &NodeInfo, config: &SmConfig) -> bool {
        let known = self.subnet.nodes.get(&info.node_guid);
        let is_there = |node: &Node| node.from == Some(from) && self.is_known_link(from, info);
        let is_moved = known.is_some_and(|node| node.generation != self.generation && !is_there(node));
        is_moved && !config.own.has(from.0)
    }

    /// True if `from` was the other end of this port of a switch when it was last read.
    fn is_known_link(&self, from: PortId, info: &NodeInfo) -> bool {
        let port = self.subnet.port((info.node_guid, info.local_port));
        port.is_some_and(|port| port.peer == Some(from))
    }

    /// Decides on another link of a switch: a host could cut the switch off by naming the port of another
    /// link. A link of the fabric's own switches replaces one between switches of another owner.
    fn admits_link(&mut self, from: PortId, info: &NodeInfo, config: &SmConfig) -> bool {
        let generation = self.generation;
        let is_seen =
            self.subnet.nodes.get(&info.node_guid).is_some_and(|node| node.generation == generation);
        if !is_seen {
            return true;
        }
        let peer = self.subnet.port((info.node_guid, info.local_port)).and_then(|port| port.peer);
        let other = peer.filter(|&peer| peer != from);
        let replaces = config.own.has(from.0) && other.is_some_and(|other| !config.own.has(other.0));
        let admitted = from.0 != info.node_guid && (other.is_none() || replaces);
        let refused = if admitted { other } else { Some(from) };
        // The switch was reached by the link that is replaced: the next sweep reaches it by this one.
        self.wanted |= replaces;
        if let Some(port) = refused {
            self.duplicates.found.insert(port, info.node_guid);
        }
        if let Some(port) = refused.and_then(|port| self.subnet.port_mut(port)) {
            port.peer = None;
        }
        admitted
    }

    /// Drops links between switches, once every node has answered, if the other end reports no link or a
    /// different one: a host behind one of the ports may have answered as the other.
    pub(super) fn drop_false_links(&mut self) {
        let seen = |guid: Guid| {
            self.subnet.nodes.get(&guid).filter(|n| n.is_switch() && n.generation == self.generation)
        };
        let mut dropped = Vec::new();
        for (&guid, node) in self.subnet.nodes.iter().filter(|(guid, _)| seen(**guid).is_some()) {
            for (&number, port) in node.ports.iter().filter(|(_, port)| port.generation == self.generation) {
                let Some(peer) = port.peer else { continue };
                let Some(other) = seen(peer.0).and_then(|node| node.ports.get(&peer.1)) else { continue };
                let agrees = other.is_linked() && other.peer == Some((guid, number));
                // The state of a port that was not read is unknown.
                if !agrees && !self.silent.contains(&peer) {
                    dropped.push(((guid, number), peer));
                }
            }
        }
        for (id, peer) in dropped {
            // The link may have come up between two answers: the next sweep finds it.
            let is_early =
                self.subnet.port(peer).is_some_and(|other| !other.is_linked() && other.peer == Some(id));
            let is_known =
                self.duplicates.early_before.contains(&id) || self.duplicates.before.contains_key(&id);
            if is_early && !is_known {
                self.duplicates.early.insert(id);
                self.wanted = true;
            } else {
                self.duplicates.found.insert(id, peer.0);
            }
            for (end, other) in [(id, peer), (peer, id)] {
                if let Some(port) = self.subnet.port_mut(end).filter(|port| port.peer == Some(other)) {
                    port.peer = None;
                }
            }
        }
    }

    /// True if adapters have the GUIDs of a switch that answers behind a link to switches of another owner.
    /// The next sweep takes the switch in, and not the adapters: [`Self::drop_displaced`].
    fn displaces_adapters(&mut self, from: PortId, info: &NodeInfo, config: &SmConfig) -> bool {
        let is_expected = info.node_type == NodeType::Switch && config.own.others.contains(&from);
        if !is_expected || config.own.has(info.port_guid) {
            return false;
        }
        let is_switch = |guid: &Guid| self.subnet.nodes.get(guid).is_some_and(Node::is_switch);
        let other =
            self.subnet.by_guid(info.port_guid).map(|end| end.id.0).filter(|&id| id != info.node_guid);
        if other.is_some_and(|other| is_switch(&other)) {
            return false;
        }
        let own = Some(info.node_guid).filter(|guid| !is_switch(guid));
        self.duplicates.displaced.extend(own.into_iter().chain(other));
        true
    }

    /// Drops adapters that have the GUIDs of a switch.
    pub(super) fn drop_displaced(&mut self) {
        for guid in std::mem::take(&mut self.duplicates.displaced) {
            self.wanted = true;
            let Some(node) = self.subnet.nodes.get_mut(&guid) else { continue };
            node.generation = 0;
            for port in node.ports.values_mut() {
                let peer = port.peer.take().filter(|_| port.generation == self.generation);
                self.duplicates.found.extend(peer.map(|peer| (peer, guid)));
            }
        }
    }

    /// True if a channel adapter reports a GUID of a switch, or a switch one of a channel adapter, regardless
    /// of the port number.
    fn is_of_another_kind(&self, info: &NodeInfo, config: &SmConfig) -> bool {
        if config.own.has(info.node_guid) {
            return info.node_type != NodeType::Switch;
        }
        let other = self.subnet.by_guid(info.port_guid).filter(|end| end.id.0 != info.node_guid);
        let node = self.subnet.nodes.get(&info.node_guid);
        if info.node_type == NodeType::Switch {
            let is_adapter = node.is_some_and(|node| !node.is_switch());
            is_adapter || other.is_some() || config.own.has(info.port_guid)
        } else {
            node.is_some_and(Node::is_switch) || config.own.has(info.port_guid)
        }
    }

    /// True if a switch, including one that this sweep has found, has a port GUID.
    fn is_port_of_switch(&self, port_guid: Guid) -> bool {
        let mut switches = self.subnet.nodes.values().filter(|node| node.is_switch());
        switches.any(|node| node.ports.get(&0).is_some_and(|port| port.guid == port_guid))
    }

    /// Returns the ports that are known by the GUIDs of a channel adapter: by node GUID and number, and by
    /// port GUID.
    fn holders(&self, info: &NodeInfo) -> impl Iterator<Item = PortId> + use<> {
        let own = (info.node_guid, info.local_port);
        let other = self.subnet.by_guid(info.port_guid).map(|end| end.id).filter(|&id| id != own);
        std::iter::once(own).chain(other)
    }

    /// Takes in nodes that have moved, once every node has answered: those that were not found at their old
    /// ports. False if there were none.
    pub(super) fn settle_moved(&mut self, config: &SmConfig, counters: &mut Counters) -> bool {
        let switches = std::mem::take(&mut self.duplicates.moved_switches);
        if !switches.is_empty() {
            // Adapters wait until the nodes behind these switches have answered.
            self.settle_moved_switches(switches, config, counters);
            return true;
        }
        let moved = std::mem::take(&mut self.duplicates.moved);
        if moved.is_empty() {
            return false;
        }
        let kept = self.kept_subnet(config);
        for (path, from, info) in moved {
            let stays = self.holders(&info).any(|id| {
                let is_there = |port: &Port| port.generation == self.generation;
                [&self.subnet, &kept].iter().any(|subnet| subnet.port(id).is_some_and(is_there))
            });
            if stays || self.is_of_another_kind(&info, config) || self.is_port_of_switch(info.port_guid) {
                self.duplicates.found.insert(from, info.node_guid);
            } else {
                self.found(path, Some(from), &info, config, counters);
            }
        }
        true
    }

    /// Returns the subnet including silent nodes that are kept. A host that has a link, but does not answer
    /// for a moment, is not replaced, nor is one behind a switch that is kept.
    fn kept_subnet(&self, config: &SmConfig) -> Subnet {
        let mut kept = self.subnet.clone();
        kept.keep_silent(&self.silent_and_there(config), self.generation);
        kept
    }

    /// Takes in switches that were known at another port: all links of those that are still found there, and
    /// one link of those that are not. Links that were known come first, ports that led to a duplicate last.
    /// Each waits until the nodes behind those before it have answered, since a switch may be among them.
    fn settle_moved_switches(
        &mut self,
        moved: Vec<(DirectedPath, PortId, NodeInfo)>,
        config: &SmConfig,
        counters: &mut Counters,
    ) {
        let rank = |(_, from, info): &(DirectedPath, PortId, NodeInfo)| {
            (!self.is_known_link(*from, info), self.duplicates.before.contains_key(from))
        };
        let first = moved.iter().map(rank).min();
        let (now, later): (Vec<_>, Vec<_>) = moved.into_iter().partition(|link| Some(rank(link)) == first);
        self.duplicates.moved_switches = later;
        let kept = self.kept_subnet(config);
        for (path, from, info) in now {
            let is_seen = |subnet: &Subnet| {
                subnet.nodes.get(&info.node_guid).is_some_and(|node| node.generation == self.generation)
            };
            let stays = !is_seen(&self.subnet) && is_seen(&kept);
            if stays || self.is_of_another_kind(&info, config) {
                self.duplicates.found.insert(from, info.node_guid);
            } else if self.admits_link(from, &info, config) {
                self.found(path, Some(from), &info, config, counters);
            }
        }
    }
}
