//! The sweep's first half: look around, and decide who gets what.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_wire::mad::Method;
use ib_wire::smp::{
    DirectedPath, Lmc, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, Smp, SwitchInfo, attribute,
};
use ib_wire::{Guid, Lid, PKey, Tid};

use super::duplicates::Duplicates;
use super::mute::MuteHosts;
use super::program::MulticastBlock;
use super::step::Step;
use super::transaction::Transactions;
use crate::subnet::{
    Changes, Counters, KeyTable, MKeys, Node, OwnSwitches, Port, PortId, SmConfig, Subnet, SwitchState,
};

/// Most P_Keys that a port is given.
pub(super) const MAX_PKEYS: usize = 128;
/// How long a link that carries data stays up while one end of it cannot be configured: twice the lease of a
/// predecessor's M_Keys.
pub(super) const UNCONFIGURED_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the sweep is. Each phase ends when all its packets are answered or given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing is known yet, or the last sweep is over.
    Rest,
    /// Nodes and links are found.
    Discover,
    /// Branches of multicast trees that are no more are cut, so that no mixture of an old tree and a new one is a loop.
    Prune,
    /// LIDs, P_Keys, MTUs, forwarding tables.
    Configure,
    /// Links from INIT to ARMED.
    Arm,
    /// Links from ARMED to ACTIVE.
    Activate,
}

/// The sweep and what it works on.
#[derive(Debug)]
pub(crate) struct Sweep {
    pub phase: Phase,
    pub subnet: Subnet,
    pub smps: Transactions<Step>,
    pub(super) m_keys: Option<MKeys>,
    /// Where switches may be.
    pub(super) own: OwnSwitches,
    pub(super) generation: u64,
    /// Switch ports whose other end did not answer, or whose state is not known.
    pub(super) silent: Vec<PortId>,
    /// Switches that did not answer and are kept. Nothing is sent to them and to hosts at them.
    kept: BTreeSet<Guid>,
    /// Switch ports that are part of the multicast tree.
    pub(super) branches: BTreeSet<PortId>,
    /// Masks that a block was cut to in this sweep, and the block with the branches that it had before.
    pub(super) uncut: Vec<([u16; 32], MulticastBlock)>,
    /// Hosts that do not answer.
    pub(super) mute: MuteHosts,
    /// Nodes with the GUID of another one.
    pub(super) duplicates: Duplicates,
    /// P_Keys and forwarding tables are read back this time.
    pub(super) reads_back: bool,
    /// A difference was reported this time.
    pub(super) warned: bool,
    /// Ports that did not take their settings, which is reported once.
    refused: BTreeSet<PortId>,
    /// Switch ports that carry data although their other end cannot be configured, and since when.
    pub(super) unconfigured: BTreeMap<PortId, Instant>,
    /// A branch that shall be cut may still be there, so nothing is grafted in this sweep.
    pub unpruned: bool,
    /// Something did not answer: look again at the next occasion.
    pub incomplete: bool,
    /// The same, of something that nobody looks for apart from sweeps.
    pub retry: bool,
    /// A sweep was asked for while one was going on or held off.
    pub wanted: bool,
}

impl Sweep {
    pub(crate) fn new(config: &SmConfig) -> Self {
        Self {
            phase: Phase::Rest,
            subnet: Subnet::new(config.subnet_prefix),
            smps: Transactions::new(config.smp_window, config.smp_timeout, config.smp_tries, config.seed, 0),
            m_keys: config.m_keys,
            own: config.own.clone(),
            generation: 0,
            silent: Vec::new(),
            kept: BTreeSet::new(),
            branches: BTreeSet::new(),
            uncut: Vec::new(),
            mute: MuteHosts::new(config),
            duplicates: Duplicates::default(),
            reads_back: false,
            warned: false,
            refused: BTreeSet::new(),
            unconfigured: BTreeMap::new(),
            unpruned: false,
            incomplete: false,
            retry: false,
            wanted: true,
        }
    }

    /// Begins to look around; `reads_back`: and reads back what was written.
    pub(crate) fn start(&mut self, reads_back: bool) {
        self.reads_back = reads_back;
        self.warned = false;
        self.phase = Phase::Discover;
        self.generation += 1;
        self.wanted = false;
        self.incomplete = false;
        self.retry = false;
        self.unpruned = false;
        self.silent.clear();
        self.kept.clear();
        self.duplicates.start();
        self.ask_node(DirectedPath::LOCAL, None);
    }

    /// Asks every switch whether a port of it changed, and reads everything back that was written.
    pub(crate) fn probe(&mut self) {
        self.reads_back = true;
        self.warned = false;
        let switches = self.subnet.nodes.values().filter(|n| n.is_switch());
        for path in switches.map(|n| n.path).collect::<Vec<_>>() {
            self.get(Step::Probe, attribute::SWITCH_INFO, 0, &path);
        }
        self.read_all_back();
    }

    /// True if a step goes to a switch that did not answer and is kept, or to a host there.
    fn is_to_kept(&self, step: &Step) -> bool {
        let Some(id) = step.target().filter(|_| !self.kept.is_empty()) else { return false };
        let home = self.subnet.port(id).and_then(|port| port.peer).filter(|_| !self.is_switch(id.0));
        self.kept.contains(&home.map_or(id.0, |home| home.0))
    }

    pub(super) fn is_kept(&self, guid: Guid) -> bool {
        self.kept.contains(&guid)
    }

    fn is_switch(&self, guid: Guid) -> bool {
        self.subnet.nodes.get(&guid).is_some_and(Node::is_switch)
    }

    fn push(&mut self, step: Step, smp: Smp) {
        if self.is_to_kept(&step) {
            self.incomplete = true;
        } else {
            self.smps.push(step, smp);
        }
    }

    pub(super) fn get(&mut self, step: Step, id: u16, modifier: u32, path: &DirectedPath) {
        let mkey = self.m_key(&step);
        self.push(step, Smp { mkey, ..Smp::directed(Method::Get, Tid(0), id, modifier, path) });
    }

    /// The M_Key of the port that a step goes to; 0 if it is not known, which does for finding out what is there.
    fn m_key(&self, step: &Step) -> u64 {
        let is_first = matches!(step, Step::NodeDescription(_) | Step::SwitchInfo(_));
        let Some((guid, number)) = step.target().filter(|_| !is_first) else { return 0 };
        let (Some(keys), Some(node)) = (self.m_keys, self.subnet.nodes.get(&guid)) else { return 0 };
        // The first packets that write go with the key that the port shows: when the lease of another subnet manager's key
        // is over, that key. Those that follow the Set of PortInfo go with ours.
        let first = match step {
            Step::SetPKeys(..) => true,
            Step::SetPortInfo((_, number)) => node.is_end_port(*number),
            _ => false,
        };
        let guard = if node.is_switch() { 0 } else { number };
        let shown = node.ports.get(&guard).map(|port| port.info.mkey).filter(|&key| first && key != 0);
        shown.or_else(|| keys.of_port(node, number)).unwrap_or(0)
    }

    pub(super) fn set<A: ib_wire::smp::Attribute>(
        &mut self,
        step: Step,
        modifier: u32,
        path: &DirectedPath,
        value: &A,
    ) {
        let mkey = self.m_key(&step);
        let smp = Smp { mkey, ..Smp::directed(Method::Set, Tid(0), A::ID, modifier, path) };
        self.push(step, smp.with(value));
    }

    fn ask_node(&mut self, path: DirectedPath, from: Option<PortId>) {
        self.get(Step::NodeInfo { path, from }, attribute::NODE_INFO, 0, &path);
    }

    /// Takes the answer to a step.
    pub(crate) fn answered(&mut self, step: Step, smp: &Smp, config: &SmConfig, counters: &mut Counters) {
        if !smp.status().is_ok() {
            counters.smp_refused += 1;
            self.retry |= !step.reads_back();
            self.failed(step);
            return;
        }
        match step {
            Step::NodeInfo { path, from } => {
                if let Some(info) = smp.attribute::<NodeInfo>()
                    && self.admits(path, from, &info, config, counters)
                {
                    self.found(path, from, &info, config, counters);
                }
            }
            Step::NodeDescription(guid) => {
                if let (Some(node), Some(text)) =
                    (self.subnet.nodes.get_mut(&guid), smp.attribute::<NodeDescription>())
                {
                    node.description = Some(text.text);
                }
            }
            Step::SwitchInfo(guid) => self.learned_switch(guid, smp),
            Step::PortInfo(id) => self.learned_port(id, smp),
            Step::SetPKeys(id, block, keys) => {
                if let Some(port) = self.subnet.port_mut(id) {
                    port.programmed.insert(block, keys);
                }
            }
            Step::SetPortInfo(id) => {
                let node = self.subnet.nodes.get(&id.0).filter(|node| node.is_end_port(id.1));
                let own = self.m_keys.and_then(|keys| keys.of_port(node?, id.1));
                if let (Some(port), Some(mut info)) = (self.subnet.port_mut(id), smp.attribute::<PortInfo>())
                {
                    // The answer to a write with an older key does not show the new one.
                    info.mkey = if info.mkey == 0 { own.unwrap_or(0) } else { info.mkey };
                    port.info = info;
                    port.fresh = false;
                    port.reregister = false;
                    self.refused.remove(&id);
                }
            }
            Step::SetSwitchInfo(guid) => {
                if let (Some(switch), Some(info)) = (self.switch_mut(guid), smp.attribute::<SwitchInfo>()) {
                    switch.info = info;
                }
            }
            Step::SetLinear(guid, block, ports) => {
                if let Some(switch) = self.switch_mut(guid) {
                    switch.linear.insert(block, ports);
                }
            }
            Step::SetMulticast(guid, block, position, masks) => {
                if let Some(switch) = self.switch_mut(guid) {
                    switch.multicast.insert((block, position), masks);
                }
            }
            Step::Probe => {
                if smp.attribute::<SwitchInfo>().is_some_and(|info| info.port_state_change) {
                    self.wanted = true;
                }
            }
            Step::ReadPort(_) | Step::ReadPKeys(..) | Step::ReadLinear(..) | Step::ReadMulticast(..) => {
                self.compare(&step, smp, counters);
            }
        }
    }

    /// A step got no answer.
    pub(crate) fn lost(&mut self, now: Instant, step: Step) {
        match self.host_of(&step) {
            Some((at, path)) => self.mute.strike(now, at, path),
            None => self.retry |= !step.reads_back(),
        }
        self.failed(step);
    }

    /// The answer to a step came after this many repetitions.
    pub(crate) fn waited(&mut self, now: Instant, step: &Step, repeats: u32) {
        if let Some((at, path)) = self.host_of(step).filter(|_| repeats > 0) {
            self.mute.late(now, at, path, repeats);
            if self.phase == Phase::Rest {
                self.mute.leave_out_late(now);
            }
        }
    }

    /// The switch port of the host that a step asks, and the path to the host; `None` if a switch is asked.
    fn host_of(&self, step: &Step) -> Option<(PortId, DirectedPath)> {
        match *step {
            Step::NodeInfo { path, from: Some(from) } => Some((from, path)),
            Step::NodeDescription(guid) => {
                let node = self.subnet.nodes.get(&guid).filter(|node| !node.is_switch())?;
                let port = node.ports.values().find(|port| port.path == node.path)?;
                Some((port.peer?, port.path))
            }
            Step::PortInfo(id)
            | Step::SetPKeys(id, ..)
            | Step::SetPortInfo(id)
            | Step::ReadPort(id)
            | Step::ReadPKeys(id, _) => {
                let is_host = self.subnet.nodes.get(&id.0).is_some_and(|node| !node.is_switch());
                let port = self.subnet.port(id).filter(|_| is_host)?;
                Some((port.peer?, port.path))
            }
            _ => None,
        }
    }

    /// A step got no answer, or a bad one.
    fn failed(&mut self, step: Step) {
        // What was not read back this time is read back the next time.
        self.incomplete |= !step.reads_back();
        match step {
            Step::Probe => self.wanted = true,
            Step::SetMulticast(guid, block, position, masks) => {
                self.unpruned |=
                    self.phase == Phase::Prune && self.leaves_stray(guid, block, position, &masks);
            }
            Step::NodeInfo { from: Some(port), .. } => self.silent.push(port),
            // What is behind these ports is not known.
            Step::SwitchInfo(guid) => {
                let ports = self.subnet.nodes.get(&guid).into_iter().flat_map(|node| node.ports.keys());
                self.silent.extend(ports.map(|&number| (guid, number)));
            }
            Step::PortInfo(id) if self.is_switch(id.0) => self.silent.push(id),
            Step::SetPortInfo(id) if self.refused.insert(id) => tracing::warn!(
                "port {} of node {} does not take its settings: it does not answer, or it has an M_Key of somebody else; \
                 a link that is not up stays down until it does, and one that is up is taken down after {} s",
                id.1,
                id.0,
                UNCONFIGURED_TIMEOUT.as_secs()
            ),
            _ => {}
        }
    }

    /// Ends the sweep.
    pub(crate) fn end(&mut self, now: Instant) {
        self.mute.leave_out_late(now);
        let subnet = &self.subnet;
        self.mute.sweep_ended(now, |at| subnet.port(at).is_some());
    }

    pub(super) fn switch_mut(&mut self, guid: Guid) -> Option<&mut SwitchState> {
        self.subnet.nodes.get_mut(&guid)?.switch.as_mut()
    }

    /// A node answered, and no other one with its GUID is known.
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
            ports: BTreeMap::new(),
            switch: None,
            generation: 0,
        });
        let first_sight = node.generation != generation;
        if first_sight {
            node.generation = generation;
            node.path = path;
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

    /// Notes a port of a node that answered, and asks for its state. A switch's ports are asked after its SwitchInfo.
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

    fn learned_switch(&mut self, guid: Guid, smp: &Smp) {
        let Some(info) = smp.attribute::<SwitchInfo>() else { return };
        let Some(switch) = self.switch_mut(guid) else { return };
        switch.info = info;
        let Some(node) = self.subnet.nodes.get(&guid) else { return };
        let (path, ports) = (node.path, node.ports.keys().copied().collect::<Vec<_>>());
        // The change is acknowledged before the ports are read, so that one which comes in between is not lost.
        if info.port_state_change {
            self.set(Step::SetSwitchInfo(guid), 0, &path, &info);
        }
        for number in ports {
            self.get(Step::PortInfo((guid, number)), attribute::PORT_INFO, u32::from(number), &path);
            self.read_pkeys_back((guid, number));
        }
        self.read_tables_back(guid);
    }

    fn learned_port(&mut self, id: PortId, smp: &Smp) {
        let Some(info) = smp.attribute::<PortInfo>() else { return };
        let Some(node) = self.subnet.nodes.get_mut(&id.0) else { return };
        let is_switch = node.is_switch();
        let Some(port) = node.ports.get_mut(&id.1) else { return };
        // The link went down and came up since the last sweep: another host may be there.
        let came_back =
            info.state == PortState::Init && matches!(port.info.state, PortState::Armed | PortState::Active);
        port.info = info;
        // Back in INIT: it lost what it was told.
        if info.state == PortState::Init && (!is_switch || id.1 > 0) {
            port.fresh = true;
            port.programmed.clear();
        }
        let (linked, path) = (port.is_linked(), port.path);
        if came_back && is_switch {
            // Whatever is at the other end now has not got what was written to the adapter that was there.
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
            self.ask_node(path, Some(id));
        }
    }

    /// The silent ports whose other end does not count as gone. A switch of our own is there as long as its cable is.
    pub(super) fn silent_and_there(&self, config: &SmConfig) -> Vec<PortId> {
        let stays = |at: &PortId| config.own.trunks.contains(at) || !self.mute.is_gone(*at);
        self.silent.iter().copied().filter(stays).collect()
    }

    /// Ends the discovery: forgets what is gone, gives LIDs and P_Keys, and says what changed.
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

    /// LIDs that every switch's linear table can hold.
    fn linear_limit(&self) -> u16 {
        let caps = self.subnet.nodes.values().filter_map(|n| n.switch.as_ref()).map(|s| s.info.linear_cap);
        caps.filter(|&c| c > 0).min().unwrap_or(0xc000).min(0xc000)
    }

    /// Multicast LIDs that every switch's table can hold.
    pub(crate) fn multicast_limit(&self) -> u16 {
        let caps = self.subnet.nodes.values().filter_map(|n| n.switch.as_ref()).map(|s| s.info.multicast_cap);
        caps.filter(|&c| c > 0).min().unwrap_or(0x3fff).min(0x3fff)
    }
}
