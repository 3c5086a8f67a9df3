//! First half of a sweep: discovery of nodes and ports. Its end assigns LIDs and P_Keys.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::smp::{DirectedPath, Lmc, NodeInfo, NodeType, PortInfo, PortState, Smp, SwitchInfo, attribute};
use ib_wire::{Guid, Lid, PKey};

use super::step::Step;
use super::sweep::{MAX_PKEYS, Sweep};
use crate::subnet::{Changes, Counters, KeyTable, Node, Port, PortId, SmConfig, SwitchState};

impl Sweep {
    /// Takes in a node that answered; no other node with its GUID is known.
    pub(super) fn found(
        &mut self,
        path: DirectedPath,
        from: Option<PortId>,
        info: &NodeInfo,
        config: &SmConfig,
        counters: &mut Counters,
    ) {
        let guid = info.node_guid;
        let known = self.subnet.nodes.contains_key(&guid);
        if guid.0 == 0 || (!known && self.subnet.nodes.len() >= config.max_nodes) {
            counters.nodes_ignored += 1;
            return;
        }
        let generation = self.generation;
        let is_switch = info.node_type == NodeType::Switch;
        let node = self.subnet.nodes.entry(guid).or_insert_with(|| Node {
            kind: info.node_type,
            description: None,
            path,
            from,
            ports: BTreeMap::new(),
            switch: None,
            generation: 0,
        });
        let first_sight = node.generation != generation;
        if first_sight {
            node.generation = generation;
            node.path = path;
            node.from = from;
            node.kind = info.node_type;
            match (is_switch, &node.switch) {
                (true, None) => node.switch = Some(SwitchState::default()),
                (false, _) => node.switch = None,
                (true, Some(_)) => {}
            }
        }
        let unnamed = node.description.is_none();
        let entry = info.local_port;
        if is_switch && first_sight {
            let ports: Vec<u8> = (0..=info.num_ports).collect();
            for number in ports {
                self.see_port((guid, number), info, path, None);
            }
            self.get(Step::SwitchInfo(guid), attribute::SWITCH_INFO, 0, &path);
        } else if !is_switch {
            self.see_port((guid, entry), info, path, from);
        }
        if first_sight && unnamed {
            self.get(Step::NodeDescription(guid), attribute::NODE_DESCRIPTION, 0, &path);
        }
        if let Some(from) = from {
            if let Some(port) = self.subnet.port_mut(from) {
                port.peer = Some((guid, entry));
            }
            if let Some(port) = self.subnet.port_mut((guid, entry)) {
                port.peer = Some(from);
            }
        }
    }

    /// Registers a port of a node that answered, and queries its state. The ports of a switch are queried
    /// after its SwitchInfo.
    fn see_port(&mut self, id: PortId, info: &NodeInfo, path: DirectedPath, peer: Option<PortId>) {
        let generation = self.generation;
        let Some(node) = self.subnet.nodes.get_mut(&id.0) else { return };
        let is_switch = node.is_switch();
        let port = node.ports.entry(id.1).or_insert_with(|| Port {
            guid: info.port_guid,
            node: *info,
            path,
            info: PortInfo::default(),
            lid: Lid(0),
            lmc: Lmc::new(0),
            peer: None,
            pkeys: KeyTable::default(),
            programmed: BTreeMap::new(),
            fresh: true,
            reregister: false,
            generation: 0,
        });
        if port.generation == generation {
            return;
        }
        port.generation = generation;
        port.path = path;
        port.peer = peer;
        port.node = *info;
        if port.guid != info.port_guid {
            port.guid = info.port_guid;
            port.fresh = true;
        }
        if !is_switch {
            self.get(Step::PortInfo(id), attribute::PORT_INFO, u32::from(id.1), &path);
            self.read_pkeys_back(id);
        }
    }

    pub(super) fn learned_switch(&mut self, guid: Guid, smp: &Smp) {
        let Some(info) = smp.attribute::<SwitchInfo>() else { return };
        let Some(switch) = self.switch_mut(guid) else { return };
        switch.info = info;
        let Some(node) = self.subnet.nodes.get(&guid) else { return };
        let (path, ports) = (node.path, node.ports.keys().copied().collect::<Vec<_>>());
        // The change is acknowledged before the ports are read, so that a change in between is not lost.
        if info.port_state_change {
            self.set(Step::SetSwitchInfo(guid), 0, &path, &info);
        }
        for number in ports {
            self.get(Step::PortInfo((guid, number)), attribute::PORT_INFO, u32::from(number), &path);
            self.read_pkeys_back((guid, number));
        }
        self.read_tables_back(guid);
    }

    pub(super) fn learned_port(&mut self, id: PortId, smp: &Smp) {
        let Some(info) = smp.attribute::<PortInfo>() else { return };
        let Some(node) = self.subnet.nodes.get_mut(&id.0) else { return };
        let is_switch = node.is_switch();
        let Some(port) = node.ports.get_mut(&id.1) else { return };
        // The link went down and came up since the last sweep: there may be another host.
        let came_back =
            info.state == PortState::Init && matches!(port.info.state, PortState::Armed | PortState::Active);
        port.info = info;
        // Back in INIT: the port has lost its settings.
        if info.state == PortState::Init && (!is_switch || id.1 > 0) {
            port.fresh = true;
            port.programmed.clear();
        }
        let (linked, path) = (port.is_linked(), port.path);
        if came_back && is_switch {
            // The adapter at the other end may be a different one: it does not have what was written to the
            // previous adapter.
            let adapters = self.subnet.nodes.values_mut().filter(|node| !node.is_switch());
            for port in adapters.flat_map(|node| node.ports.values_mut()).filter(|p| p.peer == Some(id)) {
                port.fresh = true;
            }
        }
        if !is_switch || id.1 == 0 {
            return;
        }
        if !linked || came_back {
            self.mute.link_changed(id);
        }
        if !linked {
            return;
        }
        if self.mute.leaves_out(id) {
            self.silent.push(id);
            self.incomplete = true;
            if let Some(path) = path.then(id.1) {
                self.mute.pass_by(id, path);
            }
        } else if let Some(path) = path.then(id.1) {
            self.query_node(path, Some(id));
        }
    }

    /// Returns the silent ports whose other end does not count as gone. A switch of our own exists as long as
    /// its cable does.
    pub(super) fn silent_and_there(&self, config: &SmConfig) -> Vec<PortId> {
        let stays = |at: &PortId| config.own.trunks.contains(at) || !self.mute.is_gone(*at);
        self.silent.iter().copied().filter(stays).collect()
    }

    /// Ends the discovery: removes what is gone, assigns LIDs and P_Keys, and returns the changes.
    pub(crate) fn decide(&mut self, config: &SmConfig, counters: &mut Counters) -> Changes {
        let before: BTreeMap<Guid, Vec<PKey>> =
            self.subnet.end_ports().map(|e| (e.port.guid, e.port.pkeys.keys().collect())).collect();
        self.drop_displaced();
        self.drop_false_links();
        counters.duplicate_guids += self.duplicates.end();
        let silent = self.silent_and_there(config);
        self.kept = self.subnet.keep_silent(&silent, self.generation);
        self.subnet.forget_unseen(self.generation);
        self.refused.retain(|&id| self.subnet.port(id).is_some());
        let limit = self.linear_limit();
        self.subnet.assign_lids(config.port_guid, config.first_lid, limit, config.lmc);
        let after: BTreeSet<Guid> = self.subnet.end_ports().map(|e| e.port.guid).collect();
        for node in self.subnet.nodes.values_mut() {
            let is_switch = node.is_switch();
            let mut reset = false;
            for (&number, port) in &mut node.ports {
                if !is_switch || number == 0 {
                    if port.fresh {
                        port.programmed.clear();
                        port.pkeys = KeyTable::default();
                        reset |= is_switch;
                    }
                    let wanted = config.pkeys_of(port.guid, port.peer);
                    let capacity = usize::from(port.node.partition_cap.max(1)).min(MAX_PKEYS);
                    counters.pkeys_left_out += port.pkeys.follow(&wanted, capacity) as u64;
                }
            }
            if let (true, Some(switch)) = (reset, node.switch.as_mut()) {
                switch.linear.clear();
                switch.multicast.clear();
            }
        }
        let restarted = self
            .subnet
            .end_ports()
            .filter(|e| e.port.fresh)
            .map(|e| e.port.guid)
            .filter(|g| before.contains_key(g));
        Changes {
            restarted: restarted.collect(),
            arrived: after.iter().copied().filter(|g| !before.contains_key(g)).collect(),
            departed: before.into_iter().filter(|(g, _)| !after.contains(g)).collect(),
        }
    }

    /// Returns the number of LIDs that every switch's linear table can hold.
    fn linear_limit(&self) -> u16 {
        let caps = self.subnet.nodes.values().filter_map(|n| n.switch.as_ref()).map(|s| s.info.linear_cap);
        caps.filter(|&c| c > 0).min().unwrap_or(0xc000).min(0xc000)
    }

    /// Returns the number of multicast LIDs that every switch's table can hold.
    pub(crate) fn multicast_limit(&self) -> u16 {
        let caps = self.subnet.nodes.values().filter_map(|n| n.switch.as_ref()).map(|s| s.info.multicast_cap);
        caps.filter(|&c| c > 0).min().unwrap_or(0x3fff).min(0x3fff)
    }
}
