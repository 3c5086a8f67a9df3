//! Reads back what was written. A host that found its port's M_Key, or a device that lost its tables, must
//! not keep what the subnet manager did not write.

use ib_wire::Guid;
use ib_wire::smp::{LinearForwardingBlock, MulticastForwardingBlock, PKeyBlock, PortInfo, Smp, attribute};

use super::step::Step;
use super::sweep::{Phase, Sweep};
use crate::subnet::{Counters, PortId};

impl Sweep {
    /// Reads back everything that was written to all nodes.
    pub(super) fn read_all_back(&mut self) {
        let nodes = &self.subnet.nodes;
        let ports: Vec<PortId> = nodes
            .iter()
            .flat_map(|(&guid, node)| node.ports.keys().map(move |&number| (guid, number)))
            .collect();
        for id in ports {
            if let Some(path) = self.subnet.port(id).filter(|port| !port.fresh).map(|port| port.path) {
                self.get(Step::ReadPort(id), attribute::PORT_INFO, u32::from(id.1), &path);
            }
            self.read_pkeys_back(id);
        }
        let switches = self.subnet.nodes.iter().filter(|(_, node)| node.is_switch());
        for guid in switches.map(|(&guid, _)| guid).collect::<Vec<_>>() {
            self.read_tables_back(guid);
        }
    }

    /// Reads back the P_Keys that were written to a port.
    pub(super) fn read_pkeys_back(&mut self, id: PortId) {
        if !self.reads_back {
            return;
        }
        let Some(port) = self.subnet.port(id) else { return };
        let (path, blocks) = (port.path, port.programmed.keys().copied().collect::<Vec<_>>());
        let is_switch = self.subnet.nodes.get(&id.0).is_some_and(|node| node.is_switch());
        for block in blocks {
            let modifier = PKeyBlock::modifier(block, if is_switch { id.1 } else { 0 });
            self.get(Step::ReadPKeys(id, block), attribute::PKEY_TABLE, modifier, &path);
        }
    }

    /// Reads back the forwarding tables that were written to a switch.
    pub(super) fn read_tables_back(&mut self, guid: Guid) {
        if !self.reads_back {
            return;
        }
        let Some(node) = self.subnet.nodes.get(&guid) else { return };
        let Some(switch) = &node.switch else { return };
        let path = node.path;
        let linear: Vec<u16> = switch.linear.keys().copied().collect();
        let multicast: Vec<(u16, u8)> = switch.multicast.keys().copied().collect();
        for block in linear {
            let id = attribute::LINEAR_FORWARDING;
            self.get(Step::ReadLinear(guid, block), id, u32::from(block), &path);
        }
        for (block, position) in multicast {
            let modifier = MulticastForwardingBlock::modifier(block, position);
            let id = attribute::MULTICAST_FORWARDING;
            self.get(Step::ReadMulticast(guid, block, position), id, modifier, &path);
        }
    }

    /// Compares the read state of a port or table with what was written. It records a difference as the
    /// present state and requests a sweep, which then writes the desired state again.
    pub(super) fn compare(&mut self, step: &Step, smp: &Smp, counters: &mut Counters) {
        let changed = match *step {
            Step::ReadPort(id) => smp.attribute::<PortInfo>().is_some_and(|info| {
                self.subnet.port(id).is_some_and(|port| written(&info) != written(&port.info))
            }),
            Step::ReadPKeys(id, block) => {
                let kept = self.subnet.port_mut(id).and_then(|port| port.programmed.get_mut(&block));
                differs(kept, smp.attribute::<PKeyBlock>().map(|read| read.keys))
            }
            Step::ReadLinear(guid, block) => {
                let kept = self.switch_mut(guid).and_then(|switch| switch.linear.get_mut(&block));
                differs(kept, smp.attribute::<LinearForwardingBlock>().map(|read| read.ports))
            }
            Step::ReadMulticast(guid, block, position) => {
                let kept = self.switch_mut(guid).and_then(|s| s.multicast.get_mut(&(block, position)));
                differs(kept, smp.attribute::<MulticastForwardingBlock>().map(|read| read.masks))
            }
            _ => false,
        };
        if changed {
            counters.found_changed += 1;
            // A full sweep writes it anyway.
            self.wanted |= self.phase == Phase::Rest;
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(
                    ?step,
                    "not as the subnet manager has written it, and perhaps more; it is written again"
                );
            }
        }
    }
}

/// Replaces the recorded value by the read one; true if it differs.
fn differs<T: PartialEq>(kept: Option<&mut T>, read: Option<T>) -> bool {
    let (Some(kept), Some(read)) = (kept, read) else { return false };
    let changed = *kept != read;
    *kept = read;
    changed
}

/// Returns a port without the fields that change on their own: counters.
const fn written(info: &PortInfo) -> PortInfo {
    PortInfo { mkey_violations: 0, pkey_violations: 0, qkey_violations: 0, local_port: 0, ..*info }
}
