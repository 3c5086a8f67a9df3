//! State of the subnet, discovered and desired. Subnet manager and subnet administration share it.

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

/// Identifies a port: GUID of its node and its number.
pub type PortId = (Guid, u8);

/// A port of a node.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Its GUID; an external port of a switch has that of port 0.
    pub guid: Guid,
    /// NodeInfo that the node returned by this port. A node that claims to be another port of a node has no
    /// effect on this one.
    pub node: NodeInfo,
    /// The directed path to it.
    pub path: DirectedPath,
    /// PortInfo that it last returned.
    pub info: PortInfo,
    /// First of its desired LIDs; 0 for external ports of switches.
    pub lid: Lid,
    /// Desired number of LIDs: 2^`lmc`.
    pub lmc: Lmc,
    /// The other end of its link.
    pub peer: Option<PortId>,
    /// Desired P_Keys.
    pub pkeys: KeyTable,
    /// Blocks of P_Keys that it confirmed.
    pub programmed: BTreeMap<u16, [PKey; 32]>,
    /// True if it was not configured since it was discovered or came back.
    pub fresh: bool,
    /// True if its clients must be requested to join and subscribe again.
    pub reregister: bool,
    /// The sweep that last saw it.
    pub generation: u64,
}

impl Port {
    /// Returns its desired LIDs.
    pub(crate) const fn lids(&self) -> LidBlock {
        LidBlock { base: self.lid, lmc: self.lmc }
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.info.physical_state == PortPhysicalState::LinkUp
            && !matches!(self.info.state, PortState::Down | PortState::NoChange)
    }

    /// Returns the keys with which this port and another may communicate, as in this port's table.
    pub(crate) fn shared_pkeys<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = PKey> + 'a {
        self.pkeys.keys().filter(|a| other.pkeys.keys().any(|b| a.matches(b)))
    }

    /// True if this port may know of another: they can communicate, or they are the same.
    pub(crate) fn may_see(&self, other: &Self) -> bool {
        self.guid == other.guid || self.shared_pkeys(other).next().is_some()
    }

    /// True if the port is a member, full or limited, of the partition of `pkey`.
    pub(crate) fn is_in(&self, pkey: PKey) -> bool {
        self.pkeys.key(pkey).is_some()
    }
}

/// Forwarding tables of a switch, as it confirmed them.
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
    /// Port that leads to the node by `path`; `None` for the node of the subnet manager.
    pub from: Option<PortId>,
    pub ports: BTreeMap<u8, Port>,
    pub switch: Option<SwitchState>,
    pub generation: u64,
}

impl Node {
    pub(crate) const fn is_switch(&self) -> bool {
        self.switch.is_some()
    }

    /// True for ports with a LID of their own: all of an adapter, port 0 of a switch.
    pub(crate) fn is_end_port(&self, port: u8) -> bool {
        !self.is_switch() || port == 0
    }
}

/// Changes that a discovery found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Ports that appeared.
    pub arrived: Vec<Guid>,
    /// Ports that disappeared, with the P_Keys that they had.
    pub departed: Vec<(Guid, Vec<PKey>)>,
    /// Ports that lost their state: their memberships and subscriptions are void.
    pub restarted: Vec<Guid>,
}

/// The nodes and the paths to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subnet {
    pub prefix: u64,
    pub nodes: BTreeMap<Guid, Node>,
    /// First LIDs by port GUID; kept for ports that disappeared, so that they get the same LIDs again.
    lids: BTreeMap<Guid, LidBlock>,
    by_guid: BTreeMap<Guid, PortId>,
    /// Ports by their first LID.
    by_lid: BTreeMap<Lid, PortId>,
}

/// An end port with its node.
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

    /// Returns all ports that have LIDs.
    pub(crate) fn end_ports(&self) -> impl Iterator<Item = EndPort<'_>> {
        self.by_lid.values().filter_map(|&id| self.end_port(id))
    }

    /// Finds a port by any of its LIDs.
    pub(crate) fn by_lid(&self, lid: Lid) -> Option<EndPort<'_>> {
        let (_, &id) = self.by_lid.range(..=lid).next_back()?;
        self.end_port(id).filter(|end| end.port.lids().contains(lid))
    }

    pub(crate) fn by_guid(&self, guid: Guid) -> Option<EndPort<'_>> {
        self.end_port(*self.by_guid.get(&guid)?)
    }

    /// Finds a port by GID: the subnet's prefix and a port GUID.
    pub(crate) fn by_gid(&self, gid: Gid) -> Option<EndPort<'_>> {
        if gid.prefix() == self.prefix { self.by_guid(gid.id()) } else { None }
    }

    /// Marks ports whose clients must join and subscribe again.
    pub(crate) fn reregister(&mut self, ports: &BTreeSet<Guid>) {
        for port in self.nodes.values_mut().flat_map(|n| n.ports.values_mut()) {
            port.reregister |= ports.contains(&port.guid) && port.lid != Lid(0);
        }
    }

    /// Keeps nodes that did not answer the sweep `generation` although the switch port that leads to them,
    /// one of `silent`, has its link. A host that stalls for a moment must not lose its groups, nor must all
    /// hosts behind a switch whose answers are late. Returns the switches that are kept.
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
                // A switch that answered by another path was read by that path.
                if is_read && !switches.contains(&id.0) {
                    continue;
                }
                if let Some(port) = self.port_mut(at) {
                    port.peer = Some(id);
                }
                // It is already kept by another port of its own.
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

    /// Removes nodes and ports that the sweep `generation` did not see.
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

    /// Returns switch ports with a channel adapter at their other end, and its LIDs.
    pub(crate) fn sources(&self) -> BTreeMap<PortId, LidBlock> {
        let adapters = self.end_ports().filter(|end| !end.node.is_switch());
        adapters.filter_map(|end| Some((end.port.peer?, end.port.lids()))).collect()
    }

    /// Returns the highest LID in use.
    pub(crate) fn last_lid(&self) -> Lid {
        self.end_ports().last().map_or(Lid(0), |end| end.port.lids().last())
    }

    /// Returns the MTU that both ends of a link support.
    pub(crate) fn link_mtu(&self, port: &Port) -> Mtu {
        let own = port.info.mtu_cap.mtu().unwrap_or(Mtu::B256);
        let other = port.peer.and_then(|peer| self.port(peer));
        own.min(other.map_or(own, |p| p.info.mtu_cap.mtu().unwrap_or(Mtu::B256)))
    }

    /// Returns the MTU and rate of a port's link.
    pub(crate) fn abilities(&self, port: &Port) -> (Mtu, Rate) {
        let own = rate::of_port(&port.info);
        let other = port.peer.and_then(|peer| self.port(peer)).map_or(own, |p| rate::of_port(&p.info));
        (self.link_mtu(port), slower(own, other))
    }
}
