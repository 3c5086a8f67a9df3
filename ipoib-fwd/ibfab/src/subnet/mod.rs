//! The subnet: what was last seen of it, and what it shall be. Subnet manager and subnet administration both stand on it.

mod counters;
mod elsewhere;
mod lids;
mod m_keys;
mod partition;
mod rate;
mod settings;
mod transaction_ids;

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::smp::{
    DirectedPath, Lmc, NodeInfo, NodeType, PortInfo, PortPhysicalState, PortState, SwitchInfo,
};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, Rate};

pub use counters::Counters;
pub(crate) use lids::LidBlock;
pub use m_keys::MKeys;
pub(crate) use partition::KeyTable;
pub use partition::{Member, Members, Membership, Partition};
pub(crate) use rate::{rate_of_gbits, slower, speed};
pub use settings::{OwnSwitches, SmConfig};
pub(crate) use transaction_ids::TransactionIds;

/// Names a port: GUID of its node and its number.
pub type PortId = (Guid, u8);

/// A port of a node.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Its GUID; of a switch's external ports that of port 0.
    pub guid: Guid,
    /// What its node said of itself by this port: who claims to be another port of a node says nothing about this one.
    pub node: NodeInfo,
    /// The way there.
    pub path: DirectedPath,
    /// What it last said.
    pub info: PortInfo,
    /// First of the LIDs that it shall have; 0 for external ports of switches.
    pub lid: Lid,
    /// How many LIDs it shall have: 2^`lmc`.
    pub lmc: Lmc,
    /// The other end of its link.
    pub peer: Option<PortId>,
    /// P_Keys that it shall have.
    pub pkeys: KeyTable,
    /// Blocks of P_Keys that it confirmed.
    pub programmed: BTreeMap<u16, [PKey; 32]>,
    /// Not configured since it was found or came back.
    pub fresh: bool,
    /// To be told to join and subscribe anew.
    pub reregister: bool,
    /// Sweep that last saw it.
    pub generation: u64,
}

impl Port {
    /// The LIDs that it shall have.
    pub(crate) const fn lids(&self) -> LidBlock {
        LidBlock { base: self.lid, lmc: self.lmc }
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.info.physical_state == PortPhysicalState::LinkUp
            && !matches!(self.info.state, PortState::Down | PortState::NoChange)
    }

    /// The keys that this port and another may talk with, as they stand in this port's table.
    pub(crate) fn shared_pkeys<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = PKey> + 'a {
        self.pkeys.keys().filter(|a| other.pkeys.keys().any(|b| a.matches(b)))
    }

    /// True if this port may know of another: they can talk, or they are the same.
    pub(crate) fn may_see(&self, other: &Self) -> bool {
        self.guid == other.guid || self.shared_pkeys(other).next().is_some()
    }

    /// True if the port is a member, full or limited, of the partition of `pkey`.
    pub(crate) fn is_in(&self, pkey: PKey) -> bool {
        self.pkeys.key(pkey).is_some()
    }
}

/// Forwarding tables of a switch as it confirmed them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwitchState {
    pub info: SwitchInfo,
    pub linear: BTreeMap<u16, [u8; 64]>,
    pub multicast: BTreeMap<(u16, u8), [u16; 32]>,
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub kind: NodeType,
    pub description: Option<[u8; 64]>,
    pub path: DirectedPath,
    pub ports: BTreeMap<u8, Port>,
    pub switch: Option<SwitchState>,
    pub generation: u64,
}

impl Node {
    pub(crate) const fn is_switch(&self) -> bool {
        self.switch.is_some()
    }

    /// Ports that have a LID of their own: all of an adapter, port 0 of a switch.
    pub(crate) fn is_end_port(&self, port: u8) -> bool {
        !self.is_switch() || port == 0
    }
}

/// What a finished discovery changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Ports that came.
    pub arrived: Vec<Guid>,
    /// Ports that went, with the P_Keys that they had.
    pub departed: Vec<(Guid, Vec<PKey>)>,
    /// Ports that lost their state: their memberships and subscriptions mean nothing any more.
    pub restarted: Vec<Guid>,
}

/// The nodes and how they are reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subnet {
    pub prefix: u64,
    pub nodes: BTreeMap<Guid, Node>,
    /// First LIDs by port GUID; kept for ports that went away, so that they get the same again.
    lids: BTreeMap<Guid, LidBlock>,
    by_guid: BTreeMap<Guid, PortId>,
    /// By the first LID of each port.
    by_lid: BTreeMap<Lid, PortId>,
}

/// A port with what belongs to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndPort<'a> {
    pub id: PortId,
    pub node: &'a Node,
    pub port: &'a Port,
}

impl EndPort<'_> {
    pub(crate) fn gid(&self, subnet: &Subnet) -> Gid {
        Gid::new(subnet.prefix, self.port.guid)
    }
}

impl Subnet {
    pub(crate) fn new(prefix: u64) -> Self {
        Self { prefix, ..Self::default() }
    }

    pub(crate) fn port(&self, id: PortId) -> Option<&Port> {
        self.nodes.get(&id.0)?.ports.get(&id.1)
    }

    pub(crate) fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.nodes.get_mut(&id.0)?.ports.get_mut(&id.1)
    }

    fn end_port(&self, id: PortId) -> Option<EndPort<'_>> {
        let node = self.nodes.get(&id.0)?;
        Some(EndPort { id, node, port: node.ports.get(&id.1)? })
    }

    /// All ports that have LIDs.
    pub(crate) fn end_ports(&self) -> impl Iterator<Item = EndPort<'_>> {
        self.by_lid.values().filter_map(|&id| self.end_port(id))
    }

    /// By any of a port's LIDs.
    pub(crate) fn by_lid(&self, lid: Lid) -> Option<EndPort<'_>> {
        let (_, &id) = self.by_lid.range(..=lid).next_back()?;
        self.end_port(id).filter(|end| end.port.lids().contains(lid))
    }

    pub(crate) fn by_guid(&self, guid: Guid) -> Option<EndPort<'_>> {
        self.end_port(*self.by_guid.get(&guid)?)
    }

    /// By GID: the subnet's prefix and a port GUID.
    pub(crate) fn by_gid(&self, gid: Gid) -> Option<EndPort<'_>> {
        if gid.prefix() == self.prefix { self.by_guid(gid.id()) } else { None }
    }

    /// Has ports told to join and subscribe anew.
    pub(crate) fn reregister(&mut self, ports: &BTreeSet<Guid>) {
        for port in self.nodes.values_mut().flat_map(|n| n.ports.values_mut()) {
            port.reregister |= ports.contains(&port.guid) && port.lid != Lid(0);
        }
    }

    /// Keeps what did not answer the sweep `generation` though the switch port that leads to it, one of `silent`, has its
    /// link: a host that stands still for a moment shall not lose its groups, nor all those behind a switch whose
    /// answers are late. Returns the switches that are kept.
    pub(crate) fn keep_silent(&mut self, silent: &[PortId], generation: u64) -> BTreeSet<Guid> {
        let mut unseen: BTreeMap<PortId, Vec<PortId>> = BTreeMap::new();
        for (&guid, node) in &self.nodes {
            for (&number, port) in node.ports.iter().filter(|(_, port)| port.generation != generation) {
                if let Some(peer) = port.peer {
                    unseen.entry(peer).or_default().push((guid, number));
                }
            }
        }
        let mut switches = BTreeSet::new();
        let mut silent = silent.to_vec();
        while let Some(at) = silent.pop() {
            for id in unseen.remove(&at).unwrap_or_default() {
                let Some(node) = self.nodes.get(&id.0) else { continue };
                let is_switch = node.is_switch();
                let is_read = is_switch && node.generation == generation;
                // A switch that answered by another path was read by that one.
                if is_read && !switches.contains(&id.0) {
                    continue;
                }
                if let Some(port) = self.port_mut(at) {
                    port.peer = Some(id);
                }
                // It is kept by another port of its own already.
                if is_read {
                    continue;
                }
                let Some(node) = self.nodes.get_mut(&id.0) else { continue };
                node.generation = generation;
                for (&number, port) in node.ports.iter_mut().filter(|(n, _)| is_switch || **n == id.1) {
                    port.generation = generation;
                    if is_switch {
                        silent.push((id.0, number));
                    }
                }
                if is_switch {
                    switches.insert(id.0);
                }
            }
        }
        switches
    }

    /// Removes what the sweep `generation` did not see.
    pub(crate) fn forget_unseen(&mut self, generation: u64) {
        self.nodes.retain(|_, node| node.generation == generation);
        for node in self.nodes.values_mut() {
            node.ports.retain(|_, port| port.generation == generation);
        }
        let alive: Vec<PortId> =
            self.nodes.iter().flat_map(|(&g, n)| n.ports.keys().map(move |&p| (g, p))).collect();
        for node in self.nodes.values_mut() {
            for port in node.ports.values_mut() {
                if port.peer.is_some_and(|peer| !alive.contains(&peer)) {
                    port.peer = None;
                }
            }
        }
    }

    /// Switch ports with a channel adapter at their other end, and its LIDs.
    pub(crate) fn sources(&self) -> BTreeMap<PortId, LidBlock> {
        let adapters = self.end_ports().filter(|end| !end.node.is_switch());
        adapters.filter_map(|end| Some((end.port.peer?, end.port.lids()))).collect()
    }

    /// The highest LID in use.
    pub(crate) fn last_lid(&self) -> Lid {
        self.end_ports().last().map_or(Lid(0), |end| end.port.lids().last())
    }

    /// The MTU that a link's two ends can both do.
    pub(crate) fn link_mtu(&self, port: &Port) -> Mtu {
        let own = port.info.mtu_cap.mtu().unwrap_or(Mtu::B256);
        let other = port.peer.and_then(|peer| self.port(peer));
        own.min(other.map_or(own, |p| p.info.mtu_cap.mtu().unwrap_or(Mtu::B256)))
    }

    /// MTU and rate of a port's link.
    pub(crate) fn abilities(&self, port: &Port) -> (Mtu, Rate) {
        let own = rate::of_port(&port.info);
        let other = port.peer.and_then(|peer| self.port(peer)).map_or(own, |p| rate::of_port(&p.info));
        (self.link_mtu(port), slower(own, other))
    }
}
