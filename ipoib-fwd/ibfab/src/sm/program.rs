//! The sweep's second half: writes what is not as it shall be, and brings the links up.

use std::collections::BTreeMap;

use ib_wire::smp::{
    Capabilities, DirectedPath, LinearForwardingBlock, Lmc, MulticastForwardingBlock, PKEY_BLOCK_LEN,
    PKeyBlock, PortInfo, PortPhysicalState, PortState, SwitchInfo,
};
use ib_wire::{Guid, Lid, PKey, ServiceLevel};

use super::subnet::{Port, PortId, Subnet};
use super::sweep::{Phase, Step, Sweep};
use super::{SmConfig, routing};

/// Most P_Key blocks that are written to a port.
const PKEY_BLOCKS: u16 = 4;

impl Sweep {
    /// Writes everything that is not as it shall be.
    pub(crate) fn configure(&mut self, config: &SmConfig, groups: &BTreeMap<Lid, Vec<PortId>>) {
        self.phase = Phase::Configure;
        self.configure_ports(config);
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
        self.program_multicast(groups);
    }

    /// Writes the blocks of multicast tables that are not as they shall be.
    pub(crate) fn program_multicast(&mut self, groups: &BTreeMap<Lid, Vec<PortId>>) {
        let mut wanted = Vec::new();
        for (guid, mut table) in routing::multicast(&self.subnet, groups) {
            let Some(node) = self.subnet.nodes.get(&guid) else { continue };
            let Some(switch) = &node.switch else { continue };
            // What was written and is not wanted any more is cleared; of a fresh switch nothing is known.
            for key in switch.multicast.keys() {
                table.entry(*key).or_insert([0; 32]);
            }
            for ((block, position), masks) in table {
                if switch.multicast.get(&(block, position)) != Some(&masks) {
                    wanted.push((guid, node.path, block, position, masks));
                }
            }
        }
        for (guid, path, block, position, masks) in wanted {
            let step = Step::SetMulticast(guid, block, position, masks);
            let modifier = MulticastForwardingBlock::modifier(block, position);
            self.set(step, modifier, &path, &MulticastForwardingBlock { masks });
        }
    }

    fn configure_ports(&mut self, config: &SmConfig) {
        let sm_lid = config.first_lid;
        let mut infos = Vec::new();
        let mut keys = Vec::new();
        for (&guid, node) in &self.subnet.nodes {
            for (&number, port) in &node.ports {
                let id = (guid, number);
                let end = node.is_end_port(number);
                if !end && port.peer.is_none() || end && port.lid == Lid(0) {
                    continue;
                }
                let wanted = desired(&self.subnet, port, end, config, sm_lid);
                if wanted != port.info || port.fresh {
                    // The state is not touched here; a fresh port's clients are told to register anew.
                    let can = wanted.capabilities.contains(Capabilities::CLIENT_REREGISTRATION);
                    let info = PortInfo {
                        state: PortState::NoChange,
                        physical_state: PortPhysicalState::NoChange,
                        client_reregister: end && port.fresh && can,
                        ..wanted
                    };
                    infos.push((id, port.path, info));
                }
                if end {
                    let blocks =
                        node.info.partition_cap.div_ceil(PKEY_BLOCK_LEN as u16).clamp(1, PKEY_BLOCKS);
                    keys.extend((0..blocks).filter_map(|block| pkey_block(port, id, block)));
                }
            }
        }
        // Keys before LIDs: what a port is told last makes it usable.
        for (id, path, block, values) in keys {
            let step = Step::SetPKeys(id, block, values);
            self.set(step, PKeyBlock::modifier(block, 0), &path, &PKeyBlock { keys: values });
        }
        for (id, path, info) in infos {
            self.set(Step::SetPortInfo(id), u32::from(id.1), &path, &info);
        }
    }

    /// Moves all links that are in `from` one state on. Port 0 of a switch moves as well where it has a state.
    pub(crate) fn advance_links(&mut self, phase: Phase, from: PortState, to: PortState) {
        self.phase = phase;
        let mut moves = Vec::new();
        for (&guid, node) in &self.subnet.nodes {
            for (&number, port) in &node.ports {
                let has_place = port.peer.is_some() || node.is_switch() && number == 0;
                if has_place && port.info.state == from && !port.fresh {
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

/// What a port's PortInfo shall be.
fn desired(subnet: &Subnet, port: &Port, end: bool, config: &SmConfig, sm_lid: Lid) -> PortInfo {
    let mut info = port.info;
    let peer = port.peer.and_then(|id| subnet.port(id));
    let lanes = peer.map_or(info.vl_cap, |p| p.info.vl_cap.min(info.vl_cap));
    if lanes.get() > 0 {
        info.operational_vls = lanes;
    }
    info.neighbor_mtu = subnet.link_mtu(port).into();
    info.client_reregister = false;
    if end {
        info.gid_prefix = config.subnet_prefix;
        info.lid = port.lid;
        info.lmc = Lmc::new(0);
        info.sm_lid = sm_lid;
        info.sm_sl = ServiceLevel::new(0);
        info.subnet_timeout = config.subnet_timeout;
    }
    info
}

/// A block of P_Keys of a port, if it did not confirm it yet.
fn pkey_block(
    port: &Port,
    id: PortId,
    block: u16,
) -> Option<(PortId, DirectedPath, u16, [PKey; PKEY_BLOCK_LEN])> {
    let mut keys = [PKey(0); PKEY_BLOCK_LEN];
    let from = port.pkeys.iter().skip(usize::from(block) * PKEY_BLOCK_LEN);
    for (to, key) in keys.iter_mut().zip(from) {
        *to = *key;
    }
    (port.programmed.get(&block) != Some(&keys)).then_some((id, port.path, block, keys))
}
