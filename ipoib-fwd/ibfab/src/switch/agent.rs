//! The switch's subnet management agent (IBA 14.2.5, 14.3).

use ib_wire::mad::{MadStatus, Method};
use ib_wire::smp::{
    ArbitrationTables, Attribute, Capabilities, GuidBlock, LaneMap, LinearForwardingBlock, MKeyGuard,
    MulticastForwardingBlock, NodeDescription, NodeInfo, NodeType, PKEY_BLOCK_LEN, PKeyBlock, PortInfo,
    PortPhysicalState, PortState, Smp, SwitchInfo, VlArbitrationBlock, attribute,
};
use ib_wire::{Guid, Lid, PKey, Qpn};

use super::port::common_info;
use super::{DropReason, Switch, SwitchConfig};

/// State of port 0 and of the agent behind it.
#[derive(Debug)]
pub(super) struct Agent {
    guid: Guid,
    name: String,
    pub(super) port0: PortInfo,
    pub(super) guard: MKeyGuard,
    pub(super) pkeys: PKeyBlock,
    /// SL to VL mapping of packets to and from port 0; it has one data lane, and no effect on other ports.
    lanes: Vec<LaneMap>,
    arbitration: ArbitrationTables,
}

impl Agent {
    pub(super) fn new(config: &SwitchConfig) -> Self {
        let port0 = PortInfo {
            state: PortState::Init,
            physical_state: PortPhysicalState::LinkUp,
            guid_cap: 1,
            capabilities: Capabilities::TRAP | Capabilities::SL_MAPPING | Capabilities::SYSTEM_IMAGE_GUID,
            ..common_info(config.mtu)
        };
        let mut pkeys = PKeyBlock::default();
        if let Some(first) = pkeys.keys.first_mut() {
            *first = PKey::DEFAULT;
        }
        let guard = MKeyGuard::default();
        Self {
            guid: config.guid,
            name: config.name.clone(),
            port0,
            guard,
            pkeys,
            lanes: vec![LaneMap::default(); usize::from(config.ports) + 1],
            arbitration: ArbitrationTables::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn guid(&self) -> Guid {
        self.guid
    }

    /// Returns the index of the key in port 0's table that matches `pkey`.
    pub(super) fn pkey_index(&self, pkey: PKey) -> Option<u16> {
        self.pkeys.keys.iter().position(|key| key.matches(pkey)).and_then(|at| u16::try_from(at).ok())
    }

    pub(super) fn pkey(&self, index: u16) -> Option<PKey> {
        self.pkeys.keys.get(usize::from(index)).copied().filter(|key| key.base() != 0)
    }

    /// Returns port 0's PortInfo for the answer to `smp`.
    fn port0_for(&self, smp: &Smp) -> PortInfo {
        let mut info = self.port0;
        self.guard.show(smp, &mut info);
        info
    }

    /// Sets the fields of port 0 that a subnet manager may set.
    fn set_port0(&mut self, want: &PortInfo) -> Result<(), MadStatus> {
        let unicast = want.lid.0 != 0 && want.lid < Lid::FIRST_MULTICAST;
        if !unicast || want.lmc.get() != 0 {
            return Err(MadStatus::INVALID_FIELD);
        }
        let state = next_state(self.port0.state, want.state)?;
        let own = &mut self.port0;
        own.state = state;
        own.lid = want.lid;
        own.sm_lid = want.sm_lid;
        own.sm_sl = want.sm_sl;
        own.gid_prefix = want.gid_prefix;
        own.subnet_timeout = want.subnet_timeout;
        self.guard.set(want);
        Ok(())
    }
}

/// Returns the state after a `Set` of the logical state (IBA 7.2.7, 14.2.5.6): one step up at a time, or
/// down. A port whose link is up returns from Down to Init.
fn next_state(now: PortState, want: PortState) -> Result<PortState, MadStatus> {
    match (now, want) {
        (_, PortState::NoChange) => Ok(now),
        (PortState::Down, PortState::Down) => Ok(PortState::Down),
        (_, PortState::Down) => Ok(PortState::Init),
        (PortState::Init | PortState::Armed, PortState::Armed) => Ok(PortState::Armed),
        (PortState::Armed | PortState::Active, PortState::Active) => Ok(PortState::Active),
        _ => Err(MadStatus::INVALID_FIELD),
    }
}

fn index(port: u32) -> Option<usize> {
    usize::try_from(port).ok()?.checked_sub(1)
}

impl Switch {
    /// Returns the answer to a `Get` or `Set` that arrived by port `ingress`, or the reason why there is
    /// none.
    pub(super) fn answer(&mut self, smp: Smp, ingress: u8) -> Result<Smp, DropReason> {
        if !self.agent.guard.admits(&smp) {
            return Err(DropReason::MKey);
        }
        let mut answer = smp;
        let set = smp.header.method == Method::Set;
        let outcome = if set { self.set(&smp) } else { Ok(()) };
        let outcome = outcome.and_then(|()| self.get(&smp, ingress, &mut answer));
        Ok(answer.answer(outcome.err().unwrap_or(MadStatus::OK)))
    }

    /// Fills the data of `answer` with the attribute that `smp` requests.
    fn get(&mut self, smp: &Smp, ingress: u8, answer: &mut Smp) -> Result<(), MadStatus> {
        let modifier = smp.header.modifier;
        let invalid = MadStatus::INVALID_FIELD;
        answer.data = [0; ib_wire::smp::DATA_LEN];
        match smp.header.attribute {
            attribute::NODE_DESCRIPTION => answer.set_attribute(&NodeDescription::new(&self.agent.name)),
            attribute::NODE_INFO => answer.set_attribute(&self.node_info(ingress)),
            attribute::SWITCH_INFO => answer.set_attribute(&self.info),
            attribute::GUID_INFO => {
                let mut block = GuidBlock::default();
                let first = block.guids.first_mut().filter(|_| modifier == 0).ok_or(invalid)?;
                *first = self.agent.guid;
                answer.set_attribute(&block);
            }
            attribute::PORT_INFO => {
                let info = match index(modifier) {
                    None => self.agent.port0_for(smp),
                    Some(at) => self.ports.get(at).ok_or(invalid)?.info,
                };
                answer.set_attribute(&PortInfo { local_port: ingress, ..info });
            }
            attribute::PKEY_TABLE => {
                let (block, port) = PKeyBlock::place(modifier);
                let keys = match index(port.into()) {
                    None => (block == 0).then_some(self.agent.pkeys),
                    Some(at) => self.ports.get(at).and_then(|port| port.partitions.get(block)),
                };
                answer.set_attribute(&keys.ok_or(invalid)?);
            }
            attribute::LINEAR_FORWARDING => {
                answer.set_attribute(&self.linear.get(modifier).ok_or(invalid)?);
            }
            attribute::MULTICAST_FORWARDING => {
                answer.set_attribute(&self.multicast.get(modifier).ok_or(invalid)?);
            }
            attribute::SL_TO_VL => {
                let (from, to) = LaneMap::place(modifier);
                answer.set_attribute(self.lanes(to)?.get(usize::from(from)).ok_or(invalid)?);
            }
            attribute::VL_ARBITRATION => answer.set_attribute(self.arbitration(modifier)?),
            _ => return Err(MadStatus::UNSUPPORTED_ATTRIBUTE),
        }
        Ok(())
    }

    /// Returns the SL to VL mappings of packets that leave by a port, by the port that they arrived by; 0 is
    /// the switch itself.
    fn lanes(&mut self, egress: u8) -> Result<&mut [LaneMap], MadStatus> {
        let maps = match index(egress.into()) {
            None => &mut self.agent.lanes,
            Some(at) => &mut self.ports.get_mut(at).ok_or(MadStatus::INVALID_FIELD)?.lanes,
        };
        Ok(maps)
    }

    /// Returns the block that a modifier names.
    fn arbitration(&mut self, modifier: u32) -> Result<&mut VlArbitrationBlock, MadStatus> {
        let (block, port) = VlArbitrationBlock::place(modifier);
        let tables = match index(port.into()) {
            None => &mut self.agent.arbitration,
            Some(at) => &mut self.ports.get_mut(at).ok_or(MadStatus::INVALID_FIELD)?.arbitration,
        };
        tables.block(block).ok_or(MadStatus::INVALID_FIELD)
    }

    /// Carries out a `Set`.
    fn set(&mut self, smp: &Smp) -> Result<(), MadStatus> {
        let modifier = smp.header.modifier;
        let invalid = MadStatus::INVALID_FIELD;
        if let Some(want) = smp.attribute::<PortInfo>() {
            return match index(modifier) {
                None => self.agent.set_port0(&want),
                Some(at) => self.set_port(at, &want),
            };
        }
        if let Some(want) = smp.attribute::<SwitchInfo>() {
            if want.linear_top >= super::tables::LINEAR_CAP {
                return Err(invalid);
            }
            self.info.linear_top = want.linear_top;
            self.info.multicast_top = want.multicast_top;
            self.info.default_port = want.default_port;
            self.info.default_multicast_primary = want.default_multicast_primary;
            self.info.default_multicast_not_primary = want.default_multicast_not_primary;
            self.info.life_time = want.life_time;
            // Writing 1 clears it.
            self.info.port_state_change &= !want.port_state_change;
            return Ok(());
        }
        if let Some(block) = smp.attribute::<LinearForwardingBlock>() {
            return self.linear.set(modifier, &block).ok_or(invalid);
        }
        if let Some(block) = smp.attribute::<MulticastForwardingBlock>() {
            return self.multicast.set(modifier, &block).ok_or(invalid);
        }
        if let Some(keys) = smp.attribute::<PKeyBlock>() {
            let (block, port) = PKeyBlock::place(modifier);
            return match index(port.into()) {
                None if block == 0 => {
                    self.agent.pkeys = keys;
                    Ok(())
                }
                None => Err(invalid),
                Some(at) => {
                    self.ports.get_mut(at).and_then(|port| port.partitions.set(block, &keys)).ok_or(invalid)
                }
            };
        }
        if let Some(map) = smp.attribute::<LaneMap>() {
            let (from, to) = LaneMap::place(modifier);
            *self.lanes(to)?.get_mut(usize::from(from)).ok_or(invalid)? = map;
            return Ok(());
        }
        if let Some(block) = smp.attribute::<VlArbitrationBlock>() {
            *self.arbitration(modifier)? = block;
            return Ok(());
        }
        if smp.header.attribute == GuidBlock::ID {
            Err(MadStatus::UNSUPPORTED_METHOD)
        } else {
            Err(MadStatus::UNSUPPORTED_ATTRIBUTE)
        }
    }

    /// Sets the fields of an external port that a subnet manager may set.
    fn set_port(&mut self, at: usize, want: &PortInfo) -> Result<(), MadStatus> {
        let invalid = MadStatus::INVALID_FIELD;
        let port = self.ports.get_mut(at).ok_or(invalid)?;
        let physical =
            matches!(want.physical_state, PortPhysicalState::NoChange | PortPhysicalState::Polling);
        let mtu = want.neighbor_mtu.mtu().ok_or(invalid)?;
        if !physical || port.info.mtu_cap.mtu().is_none_or(|cap| mtu > cap) {
            return Err(invalid);
        }
        let state = next_state(port.info.state, want.state)?;
        if state == PortState::Init && port.info.state != state {
            self.port_changed = true;
            self.info.port_state_change = true;
        }
        port.info.state = state;
        port.info.neighbor_mtu = want.neighbor_mtu;
        port.info.hoq_life = want.hoq_life;
        port.info.vl_high_limit = want.vl_high_limit;
        port.info.pkey_enforce_in = want.pkey_enforce_in;
        port.info.pkey_enforce_out = want.pkey_enforce_out;
        port.info.filter_raw_in = want.filter_raw_in;
        port.info.filter_raw_out = want.filter_raw_out;
        // Any write of a violation counter clears it (IBA 14.2.5.6).
        port.info.pkey_violations = want.pkey_violations.min(port.info.pkey_violations);
        port.info.vl_stall_count = want.vl_stall_count;
        Ok(())
    }

    fn node_info(&self, ingress: u8) -> NodeInfo {
        NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: NodeType::Switch,
            num_ports: self.ports.len() as u8,
            system_image_guid: self.agent.guid,
            node_guid: self.agent.guid,
            port_guid: self.agent.guid,
            partition_cap: PKEY_BLOCK_LEN as u16,
            device_id: 0,
            revision: 0,
            local_port: ingress,
            vendor_id: Qpn::new(0),
        }
    }
}
