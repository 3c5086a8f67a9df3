//! The sweep: its phases, its packets, and the handling of answers and losses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_wire::mad::Method;
use ib_wire::smp::{DirectedPath, NodeDescription, NodeInfo, PortInfo, Smp, SwitchInfo, attribute};
use ib_wire::{Guid, Tid};

use super::duplicates::Duplicates;
use super::mute::MuteHosts;
use super::program::MulticastBlock;
use super::step::Step;
use super::transaction::Transactions;
use crate::subnet::{Counters, MKeys, Node, OwnSwitches, PortId, SmConfig, Subnet, SwitchState};

/// Most P_Keys of a port.
pub(super) const MAX_PKEYS: usize = 128;
/// Longest time for which a link carries data while one end of it cannot be configured: twice the lease of a
/// predecessor's M_Keys.
pub(super) const UNCONFIGURED_TIMEOUT: Duration = Duration::from_secs(60);

/// Phase of the sweep. Each phase ends when all its packets are answered or given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing is known yet, or the last sweep is over.
    Rest,
    /// Discovers nodes and links.
    Discover,
    /// Cuts branches of multicast trees that are no longer wanted, so that no mixture of an old and a new
    /// tree has a loop.
    Prune,
    /// Writes LIDs, P_Keys, MTUs and forwarding tables.
    Configure,
    /// Moves links from INIT to ARMED.
    Arm,
    /// Moves links from ARMED to ACTIVE.
    Activate,
}

/// The sweep and its state.
#[derive(Debug)]
pub(crate) struct Sweep {
    pub phase: Phase,
    pub subnet: Subnet,
    pub smps: Transactions<Step>,
    pub(super) m_keys: Option<MKeys>,
    /// The fabric's own switches, and the ports that may lead to others.
    pub(super) own: OwnSwitches,
    pub(super) generation: u64,
    /// Switch ports whose other end did not answer, or whose state is unknown.
    pub(super) silent: Vec<PortId>,
    /// Switches that did not answer and are kept. Nothing is sent to them or to hosts at them.
    pub(super) kept: BTreeSet<Guid>,
    /// Switch ports that are part of the multicast tree.
    pub(super) branches: BTreeSet<PortId>,
    /// Masks to which a block was cut in this sweep, and the block with its previous branches.
    pub(super) uncut: Vec<([u16; 32], MulticastBlock)>,
    /// Hosts that do not answer.
    pub(super) mute: MuteHosts,
    /// Nodes with the GUID of another one.
    pub(super) duplicates: Duplicates,
    /// This sweep reads back P_Keys and forwarding tables.
    pub(super) reads_back: bool,
    /// This sweep has reported a difference.
    pub(super) warned: bool,
    /// Ports that did not accept their settings; each is reported once.
    pub(super) refused: BTreeSet<PortId>,
    /// Switch ports that carry data although their other end cannot be configured, and the time since when.
    pub(super) unconfigured: BTreeMap<PortId, Instant>,
    /// A branch that must be cut may still exist, so this sweep adds no branch.
    pub unpruned: bool,
    /// A node did not answer: another sweep follows at the next opportunity.
    pub incomplete: bool,
    /// The same, for a node that only sweeps query.
    pub retry: bool,
    /// A sweep was requested while one was in progress or held off.
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

    /// Starts the discovery; with `reads_back`, also reads back what was written.
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
        self.query_node(DirectedPath::LOCAL, None);
    }

    /// Checks every switch for a port change, and reads back everything that was written.
    pub(crate) fn probe(&mut self) {
        self.reads_back = true;
        self.warned = false;
        let switches = self.subnet.nodes.values().filter(|n| n.is_switch());
        for path in switches.map(|n| n.path).collect::<Vec<_>>() {
            self.get(Step::Probe, attribute::SWITCH_INFO, 0, &path);
        }
        self.read_all_back();
    }

    /// True if a step goes to a silent switch that is kept, or to a host at one.
    fn is_to_kept(&self, step: &Step) -> bool {
        let Some(id) = step.target().filter(|_| !self.kept.is_empty()) else { return false };
        let home = self.subnet.port(id).and_then(|port| port.peer).filter(|_| !self.is_switch(id.0));
        self.kept.contains(&home.map_or(id.0, |home| home.0))
    }

    pub(super) fn is_kept(&self, guid: Guid) -> bool {
        self.kept.contains(&guid)
    }

    pub(super) fn is_switch(&self, guid: Guid) -> bool {
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

    /// Returns the M_Key of the port that a step goes to; 0 if it is unknown, which suffices for discovery.
    fn m_key(&self, step: &Step) -> u64 {
        let is_first = matches!(step, Step::NodeDescription(_) | Step::SwitchInfo(_));
        let Some((guid, number)) = step.target().filter(|_| !is_first) else { return 0 };
        let (Some(keys), Some(node)) = (self.m_keys, self.subnet.nodes.get(&guid)) else { return 0 };
        // The first packets that write use the key that the port shows: that of another subnet manager once
        // its lease is over. Those that follow the Set of PortInfo use our key.
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

    pub(super) fn query_node(&mut self, path: DirectedPath, from: Option<PortId>) {
        self.get(Step::NodeInfo { path, from }, attribute::NODE_INFO, 0, &path);
    }

    /// Handles the answer to a step.
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

    /// Handles a step without an answer.
    pub(crate) fn lost(&mut self, now: Instant, step: Step) {
        match self.host_of(&step) {
            Some((at, path)) => self.mute.strike(now, at, path),
            None => self.retry |= !step.reads_back(),
        }
        self.failed(step);
    }

    /// Notes that the answer to a step came after this number of retransmissions.
    pub(crate) fn waited(&mut self, now: Instant, step: &Step, repeats: u32) {
        if let Some((at, path)) = self.host_of(step).filter(|_| repeats > 0) {
            self.mute.late(now, at, path, repeats);
            if self.phase == Phase::Rest {
                self.mute.leave_out_late(now);
            }
        }
    }

    /// Returns the switch port of the host that a step queries, and the path to the host; `None` if it
    /// queries a switch.
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

    /// Handles a step without an answer, or with an error.
    fn failed(&mut self, step: Step) {
        // The next sweep reads back what was not read back in this one.
        self.incomplete |= !step.reads_back();
        match step {
            Step::Probe => self.wanted = true,
            Step::SetMulticast(guid, block, position, masks) => {
                self.unpruned |=
                    self.phase == Phase::Prune && self.leaves_stray(guid, block, position, &masks);
            }
            Step::NodeInfo { from: Some(port), .. } => self.silent.push(port),
            // The nodes behind these ports are unknown.
            Step::SwitchInfo(guid) => {
                let ports = self.subnet.nodes.get(&guid).into_iter().flat_map(|node| node.ports.keys());
                self.silent.extend(ports.map(|&number| (guid, number)));
            }
            Step::PortInfo(id) if self.is_switch(id.0) => self.silent.push(id),
            Step::SetPortInfo(id) if self.refused.insert(id) => tracing::warn!(
                "port {} of node {} does not accept its settings: it does not answer, or has the M_Key of another subnet manager; \
                 a link that is down stays down until it does; one that is up is taken down after {} s",
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
}
