//! Second half of a sweep: writes all differences from the desired state, and brings the links up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ib_wire::smp::{
    Capabilities, DirectedPath, LinearForwardingBlock, MFT_PORTS, MulticastForwardingBlock, PKEY_BLOCK_LEN,
    PKeyBlock, PortInfo, PortPhysicalState, PortState, SwitchInfo,
};
use ib_wire::{Guid, Lid, ServiceLevel};

use super::routing;
use super::step::Step;
use super::sweep::{MAX_PKEYS, Phase, Sweep, UNCONFIGURED_TIMEOUT};
use crate::subnet::{Counters, KeyTable, MKeys, Node, Port, PortId, SmConfig, Subnet};

/// Most P_Key blocks that are written to a port.
const PKEY_BLOCKS: u16 = (MAX_PKEYS / PKEY_BLOCK_LEN) as u16;

/// A block of a switch's multicast table: the switch and its path, the block's number and position, the
/// masks.
pub(super) type MulticastBlock = (Guid, DirectedPath, u16, u8, [u16; 32]);

/// Ports that receive each multicast LID.
type Receivers = BTreeMap<Lid, Vec<PortId>>;

impl Sweep {
    /// Writes all differences from the desired state.
    pub(crate) fn configure(&mut self, config: &SmConfig, groups: &Receivers, counters: &mut Counters) {
        self.phase = Phase::Configure;
        self.configure_ports(config, counters);
        let last = self.subnet.last_lid().0;
        let mut wanted = Vec::new();
        for (guid, table) in routing::linear(&self.subnet) {
            let Some(node) = self.subnet.nodes.get(&guid) else { continue };
            let Some(switch) = &node.switch else { continue };
            for (block, ports) in table {
                if switch.linear.get(&block) != Some(&ports) {
                    wanted.push((guid, node.path, block, ports));
                }
            }
        }
        for (guid, path, block, ports) in wanted {
            let value = LinearForwardingBlock { ports };
            self.set(Step::SetLinear(guid, block, ports), u32::from(block), &path, &value);
        }
        let tops: Vec<(Guid, DirectedPath, SwitchInfo)> = self
            .subnet
            .nodes
            .iter()
            .filter_map(|(&g, n)| n.switch.as_ref().map(|s| (g, n.path, s.info)))
            .filter(|(_, _, info)| info.linear_top != last)
            .collect();
        for (guid, path, info) in tops {
            let info = SwitchInfo { linear_top: last, port_state_change: false, ..info };
            self.set(Step::SetSwitchInfo(guid), 0, &path, &info);
        }
        if self.unpruned {
            self.restore_branches();
        } else {
            self.program_multicast(groups, None);
        }
    }

    /// Removes unwanted entries from the multicast tables; [`Sweep::configure`] adds new ones.
    pub(crate) fn prune(&mut self, groups: &Receivers) {
        self.phase = Phase::Prune;
        let mut pruned = Vec::new();
        self.branches = routing::branches(&self.subnet);
        let tables = routing::multicast(&self.subnet, groups);
        for (guid, node) in &self.subnet.nodes {
            let (Some(switch), Some(table)) = (&node.switch, tables.get(guid)) else { continue };
            for (&(block, position), have) in &switch.multicast {
                let mut masks = *have;
                let wanted = table.get(&(block, position));
                for (at, mask) in masks.iter_mut().enumerate() {
                    *mask &= wanted.and_then(|w| w.get(at)).copied().unwrap_or(0);
                }
                pruned.push((*guid, node.path, block, position, masks));
            }
        }
        // The switches keep the old tree until all of them can be written to.
        if pruned.iter().any(|(guid, _, block, position, masks)| {
            self.is_kept(*guid) && self.leaves_stray(*guid, *block, *position, masks)
        }) {
            self.unpruned = true;
            self.incomplete = true;
            for (guid, _, block, position, masks) in &mut pruned {
                *masks = self.with_branches(*guid, *block, *position, masks);
            }
        }
        pruned.retain(|(guid, _, block, position, masks)| {
            self.confirmed(*guid, *block, *position).is_some_and(|have| have != masks)
        });
        let uncut = pruned.iter().map(|&(guid, path, block, position, masks)| {
            (masks, (guid, path, block, position, self.with_branches(guid, block, position, &masks)))
        });
        self.uncut = uncut.collect();
        self.write_multicast(pruned);
    }

    /// A block of a switch's multicast table as it confirmed it.
    fn confirmed(&self, guid: Guid, block: u16, position: u8) -> Option<&[u16; 32]> {
        let switch = self.subnet.nodes.get(&guid)?.switch.as_ref();
        switch?.multicast.get(&(block, position))
    }

    /// Returns these masks of a block, plus the branches of the old tree that it has. A link between switches
    /// that is not active has carried nothing, so it is not part of that tree.
    fn with_branches(&self, guid: Guid, block: u16, position: u8, masks: &[u16; 32]) -> [u16; 32] {
        let mut all = *masks;
        if let Some(have) = self.confirmed(guid, block, position) {
            let hosts = self.ports(guid, position, |port| self.leads_to_host(port));
            let new = self.ports(guid, position, |port| self.is_new_trunk(port));
            for (mask, have) in all.iter_mut().zip(have) {
                *mask = (*mask | have & !hosts) & !new;
            }
        }
        all
    }

    /// True for a port whose link comes up and that does not lead to a host.
    fn is_new_trunk(&self, port: PortId) -> bool {
        let state = self.subnet.port(port).filter(|_| port.1 > 0).map(|port| port.info.state);
        matches!(state, Some(PortState::Init | PortState::Armed)) && !self.leads_to_host(port)
    }

    /// True while the switches keep the old tree and this link is no part of it, but its switch would send
    /// multicasts there: it could close a loop.
    fn may_close_loop(&self, port @ (guid, number): PortId) -> bool {
        let switch = self.subnet.nodes.get(&guid).and_then(|node| node.switch.as_ref());
        let switch = switch.filter(|_| self.unpruned && self.is_new_trunk(port));
        let (position, bit) = (number / MFT_PORTS as u8, 1 << (number % MFT_PORTS as u8));
        let blocks = switch.into_iter().flat_map(|switch| &switch.multicast);
        blocks
            .filter(|((_, at), _)| *at == position)
            .any(|(_, masks)| masks.iter().any(|mask| mask & bit != 0))
    }

    /// Restores the branches that were cut while another switch did not accept its cut, so that all have the
    /// old tree.
    fn restore_branches(&mut self) {
        let uncut =
            std::mem::take(&mut self.uncut).into_iter().filter(|(cut, (guid, _, block, position, _))| {
                self.confirmed(*guid, *block, *position) == Some(cut)
            });
        let uncut = uncut.filter(|(cut, (.., masks))| cut != masks).map(|(_, block)| block).collect();
        self.write_multicast(uncut);
    }

    /// True if a switch that does not accept this block of its multicast table has an unwanted branch there,
    /// which may close a loop: it is not part of the tree.
    pub(super) fn leaves_stray(&self, guid: Guid, block: u16, position: u8, masks: &[u16; 32]) -> bool {
        let Some(have) = self.confirmed(guid, block, position) else { return false };
        let stray = self.ports(guid, position, |port| {
            let is_up =
                |port: &Port| port.peer.and_then(|at| self.subnet.port(at)).is_none_or(Port::is_linked);
            let link = self.subnet.port(port).is_some_and(|port| port.is_linked() && is_up(port));
            link && self.own.may_lead_to_switch(port)
                && port.1 > 0
                && !self.branches.contains(&port)
                && !self.leads_to_host(port)
        });
        have.iter().zip(masks).any(|(have, mask)| have & !mask & stray != 0)
    }

    fn leads_to_host(&self, port: PortId) -> bool {
        let peer = self.subnet.port(port).and_then(|port| port.peer);
        peer.and_then(|peer| self.subnet.nodes.get(&peer.0)).is_some_and(|node| !node.is_switch())
    }

    /// Returns the mask of a switch's ports at this position of its multicast table for which `is_wanted` is
    /// true.
    fn ports(&self, guid: Guid, position: u8, is_wanted: impl Fn(PortId) -> bool) -> u16 {
        let first = u16::from(position) * MFT_PORTS as u16;
        let numbers = (0..MFT_PORTS as u16).filter_map(|at| Some((at, u8::try_from(first + at).ok()?)));
        numbers.filter(|&(_, number)| is_wanted((guid, number))).fold(0, |mask, (at, _)| mask | 1 << at)
    }

    /// Writes the blocks of multicast tables that differ from the desired ones: all blocks, or only those in
    /// `only`, for which `groups` is complete.
    pub(crate) fn program_multicast(&mut self, groups: &Receivers, only: Option<&BTreeSet<u16>>) {
        let mut wanted = Vec::new();
        for (guid, mut table) in routing::multicast(&self.subnet, groups) {
            let Some(node) = self.subnet.nodes.get(&guid) else { continue };
            let Some(switch) = &node.switch else { continue };
            // Written blocks that are no longer wanted are cleared; the state of a fresh switch is unknown.
            for key in
                switch.multicast.keys().filter(|(block, _)| only.is_none_or(|only| only.contains(block)))
            {
                table.entry(*key).or_insert([0; 32]);
            }
            for ((block, position), masks) in table {
                if switch.multicast.get(&(block, position)) != Some(&masks) {
                    wanted.push((guid, node.path, block, position, masks));
                }
            }
        }
        self.write_multicast(wanted);
    }

    fn write_multicast(&mut self, blocks: Vec<MulticastBlock>) {
        for (guid, path, block, position, masks) in blocks {
            let step = Step::SetMulticast(guid, block, position, masks);
            let modifier = MulticastForwardingBlock::modifier(block, position);
            self.set(step, modifier, &path, &MulticastForwardingBlock { masks });
        }
    }

    /// True for the port of a host that does not answer.
    fn is_left_out(&self, node: &Node, port: &Port) -> bool {
        !node.is_switch() && port.peer.is_some_and(|at| self.mute.leaves_out(at))
    }

    fn configure_ports(&mut self, config: &SmConfig, counters: &mut Counters) {
        let mut infos = Vec::new();
        let mut keys = Vec::new();
        for (&guid, node) in &self.subnet.nodes {
            for (&number, port) in &node.ports {
                let id = (guid, number);
                let end = node.is_end_port(number);
                if !end && port.peer.is_none() || end && port.lid == Lid(0) || self.is_left_out(node, port) {
                    continue;
                }
                let peer = guarded(&self.subnet, node, number, port);
                let enforced = peer.filter(|keys| can_enforce(node, keys));
                counters.not_enforced += u64::from(peer.is_some() && enforced.is_none());
                let mut wanted = desired(&self.subnet, node, id, config, port);
                if let (false, Some(switch)) = (end, &node.switch) {
                    enforce(&mut wanted, &switch.info, enforced.is_some());
                }
                if wanted != port.info || port.fresh || port.reregister {
                    // This does not change the state; a fresh port's clients are requested to register again.
                    let can = wanted.capabilities.contains(Capabilities::CLIENT_REREGISTRATION);
                    let info = PortInfo {
                        state: PortState::NoChange,
                        physical_state: PortPhysicalState::NoChange,
                        client_reregister: end && can && (port.fresh || port.reregister),
                        ..wanted
                    };
                    infos.push((id, port.path, info));
                }
                let capacity = match &node.switch {
                    Some(switch) if !end => switch.info.partition_enforcement_cap,
                    _ => port.node.partition_cap.max(1),
                };
                // A switch port has the table of the port at the other end of its link.
                if let Some(table) = if end { Some(&port.pkeys) } else { enforced } {
                    let blocks = capacity.div_ceil(PKEY_BLOCK_LEN as u16).min(PKEY_BLOCKS);
                    keys.extend((0..blocks).filter_map(|block| pkey_block(port, table, id, block)));
                }
            }
        }
        // P_Keys before LIDs: the last setting makes a port usable.
        for (id, path, block, values) in keys {
            let step = Step::SetPKeys(id, block, values);
            let is_switch = self.subnet.nodes.get(&id.0).is_some_and(Node::is_switch);
            let modifier = PKeyBlock::modifier(block, if is_switch { id.1 } else { 0 });
            self.set(step, modifier, &path, &PKeyBlock { keys: values });
        }
        for (id, path, info) in infos {
            self.set(Step::SetPortInfo(id), u32::from(id.1), &path, &info);
        }
    }

    /// Takes down links that carry data although the other end of a switch port does not answer or accept its
    /// settings. They may remain from a previous subnet manager that configured the switch: that end may have
    /// any LID and P_Keys. Such a link comes up again as any other once its end is configured.
    pub(crate) fn take_unconfigured_down(&mut self, now: Instant, counters: &mut Counters) {
        let mut downs = Vec::new();
        let mut unconfigured = BTreeMap::new();
        for (&guid, node) in self.subnet.nodes.iter().filter(|(_, node)| node.is_switch()) {
            for (&number, port) in node.ports.iter().filter(|(number, _)| **number > 0) {
                let carries = matches!(port.info.state, PortState::Armed | PortState::Active);
                let other = port.peer.and_then(|peer| self.subnet.port(peer));
                if !port.is_linked() || !carries || other.is_some_and(|other| !other.fresh) {
                    continue;
                }
                let id = (guid, number);
                let since = self.unconfigured.get(&id).copied().unwrap_or(now);
                // A switch that does not answer is not written to.
                let is_due = !self.is_kept(guid) && now.duration_since(since) >= UNCONFIGURED_TIMEOUT;
                // A switch that refuses is tried again after the same time.
                unconfigured.insert(id, if is_due { now } else { since });
                if is_due {
                    let info = PortInfo {
                        state: PortState::Down,
                        physical_state: PortPhysicalState::NoChange,
                        client_reregister: false,
                        ..port.info
                    };
                    downs.push((id, port.path, info));
                }
            }
        }
        // Sweeps continue until each is configured or down.
        self.incomplete |= !unconfigured.is_empty();
        self.unconfigured = unconfigured;
        for (id, path, info) in downs {
            tracing::warn!(
                "port {} of switch {} is taken down: the node at its other end has not answered or accepted its settings for {} s; the \
                 link comes up again once it does",
                id.1,
                id.0,
                UNCONFIGURED_TIMEOUT.as_secs()
            );
            counters.links_taken_down += 1;
            self.set(Step::SetPortInfo(id), u32::from(id.1), &path, &info);
        }
    }

    /// Moves all links in state `from` to the next state. Port 0 of a switch moves as well if it has a state.
    pub(crate) fn advance_links(&mut self, phase: Phase, from: PortState, to: PortState) {
        self.phase = phase;
        let mut moves = Vec::new();
        for (&guid, node) in &self.subnet.nodes {
            for (&number, port) in &node.ports {
                // A link comes up when both ends have accepted their settings: an adapter that refused its
                // keys stays down.
                let ready = match port.peer {
                    Some(peer) => self.subnet.port(peer).is_some_and(|peer| !peer.fresh),
                    None => node.is_switch() && number == 0,
                };
                let waits = self.is_left_out(node, port) || self.may_close_loop((guid, number));
                if ready && port.info.state == from && !port.fresh && !waits {
                    let info = PortInfo {
                        state: to,
                        physical_state: PortPhysicalState::NoChange,
                        client_reregister: false,
                        ..port.info
                    };
                    moves.push(((guid, number), port.path, info));
                }
            }
        }
        for (id, path, info) in moves {
            self.set(Step::SetPortInfo(id), u32::from(id.1), &path, &info);
        }
    }
}

/// Returns the desired PortInfo of port `id` of `node`.
fn desired(subnet: &Subnet, node: &Node, id: PortId, config: &SmConfig, port: &Port) -> PortInfo {
    let mut info = port.info;
    let peer = port.peer.and_then(|id| subnet.port(id));
    let lanes = peer.map_or(info.vl_cap, |p| p.info.vl_cap.min(info.vl_cap));
    if lanes.get() > 0 {
        info.operational_vls = lanes;
    }
    info.neighbor_mtu = subnet.link_mtu(port).into();
    info.client_reregister = false;
    if node.is_end_port(id.1) {
        if let Some(key) = config.m_keys.and_then(|keys| keys.of_port(node, id.1)) {
            info = MKeys::protect(info, key, config.own.has(id.0));
        }
        info.gid_prefix = config.subnet_prefix;
        info.lid = port.lid;
        info.lmc = port.lmc;
        info.sm_lid = config.first_lid;
        info.sm_sl = ServiceLevel::new(0);
        info.subnet_timeout = config.subnet_timeout;
    }
    info
}

/// Returns the P_Keys that a switch port must pass: those of the channel adapter at its other end. Ports
/// between switches pass all packets, since the first switch checked them.
fn guarded<'a>(subnet: &'a Subnet, node: &Node, number: u8, port: &Port) -> Option<&'a KeyTable> {
    let peer = port.peer.filter(|_| node.is_switch() && number > 0)?;
    let other = subnet.nodes.get(&peer.0).filter(|other| !other.is_switch())?;
    Some(&other.ports.get(&peer.1)?.pkeys)
}

/// True if a switch's ports can check P_Keys in both directions and have room for these.
fn can_enforce(node: &Node, keys: &KeyTable) -> bool {
    let able = node.switch.as_ref().map(|s| s.info).filter(|i| i.enforce_in && i.enforce_out);
    able.is_some_and(|info| usize::from(info.partition_enforcement_cap) >= keys.len())
}

/// Sets partition enforcement of a switch port (IBA 14.2.5.6). It drops raw packets, which have no P_Key.
const fn enforce(info: &mut PortInfo, able: &SwitchInfo, on: bool) {
    info.pkey_enforce_in = on;
    info.pkey_enforce_out = on;
    info.filter_raw_in = on && able.filter_raw_in;
    info.filter_raw_out = on && able.filter_raw_out;
}

/// Returns a block of P_Keys of a port, if the port did not confirm it yet.
fn pkey_block(
    port: &Port,
    table: &KeyTable,
    id: PortId,
    block: u16,
) -> Option<(PortId, DirectedPath, u16, [ib_wire::PKey; PKEY_BLOCK_LEN])> {
    let keys = table.block(block);
    (port.programmed.get(&block) != Some(&keys)).then_some((id, port.path, block, keys))
}
