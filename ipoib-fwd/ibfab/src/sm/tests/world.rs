//! A simulated fabric: nodes with subnet management agents in memory, links, lost packets, a clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    Capabilities, DirectedStep, LinearForwardingBlock, LinkWidth, MKeyGuard, MulticastForwardingBlock,
    NodeDescription, NodeInfo, NodeType, Origin, PKeyBlock, PortInfo, PortPhysicalState, PortState, Smp,
    SwitchInfo, attribute, step,
};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, Qpn, ServiceLevel};

use super::super::SubnetManager;
use crate::subnet::SmConfig;

/// A node and its agent.
#[derive(Debug)]
pub(super) struct SimNode {
    kind: NodeType,
    guid: Guid,
    pub(super) ports: Vec<PortInfo>,
    pub(super) pkeys: Vec<BTreeMap<u16, [PKey; 32]>>,
    pub(super) switch: SwitchInfo,
    pub(super) linear: BTreeMap<u32, [u8; 64]>,
    pub(super) multicast: BTreeMap<(u16, u8), [u16; 32]>,
    /// M_Key protection of each port; a switch has one for all ports.
    pub(super) guards: Vec<MKeyGuard>,
    /// Writes that were refused without the M_Key.
    pub(super) refused: u32,
    /// Keys of the packets that arrived.
    pub(super) keys_seen: BTreeSet<u64>,
    /// Reports other P_Keys than were written.
    pub(super) lies: bool,
    /// Node GUID and type that it claims to have.
    pub(super) claims: Option<(u64, NodeType)>,
    /// Number of the port that it claims its cable is in.
    pub(super) claimed_local_port: Option<u8>,
    /// Size of the P_Key table that it claims to have.
    pub(super) partition_cap: u16,
    /// Port GUID that it claims to have.
    pub(super) claimed_port_guid: Option<Guid>,
    /// Does not answer.
    pub(super) mute: bool,
    /// Time after which it answers.
    pub(super) delay: Duration,
    /// The port by which it does not answer.
    pub(super) mute_port: Option<u8>,
    /// Answers requests of this attribute only.
    pub(super) answers_only: Option<u16>,
    /// Does not answer requests that would move its ports from INIT to ARMED.
    pub(super) never_arms: bool,
    /// Times that the clients of a port were requested to register again.
    pub(super) reregistered: u32,
    /// Values written to any table or port.
    pub(super) sets: u32,
}

impl SimNode {
    fn new(kind: NodeType, guid: u64, ports: u8) -> Self {
        let info = PortInfo {
            state: PortState::Down,
            physical_state: PortPhysicalState::Polling,
            mtu_cap: Mtu::B4096.into(),
            vl_cap: ib_wire::smp::Nibble::new(1),
            width_active: LinkWidth::X4,
            speed_active: ib_wire::smp::Nibble::new(4),
            capabilities: Capabilities::TRAP | Capabilities::CLIENT_REREGISTRATION,
            ..PortInfo::default()
        };
        let switch = SwitchInfo {
            linear_cap: 1024,
            multicast_cap: 64,
            partition_enforcement_cap: 64,
            enforce_in: true,
            enforce_out: true,
            ..SwitchInfo::default()
        };
        let count = usize::from(ports) + 1;
        let mut node = Self {
            kind,
            guid: Guid(guid),
            ports: vec![info; count],
            pkeys: vec![BTreeMap::new(); count],
            switch,
            linear: BTreeMap::new(),
            multicast: BTreeMap::new(),
            guards: vec![MKeyGuard::default(); count],
            refused: 0,
            keys_seen: BTreeSet::new(),
            lies: false,
            claims: None,
            claimed_local_port: None,
            partition_cap: 64,
            claimed_port_guid: None,
            mute: false,
            delay: Duration::ZERO,
            mute_port: None,
            answers_only: None,
            never_arms: false,
            reregistered: 0,
            sets: 0,
        };
        if kind == NodeType::Switch {
            node.ports[0].state = PortState::Active;
            node.ports[0].physical_state = PortPhysicalState::LinkUp;
        }
        node
    }

    pub(super) fn port_guid(&self, port: u8) -> Guid {
        if self.kind == NodeType::Switch { self.guid } else { Guid(self.guid.0 + u64::from(port)) }
    }

    fn set_cable(&mut self, port: u8, up: bool) {
        let info = &mut self.ports[usize::from(port)];
        (info.state, info.physical_state) = if up {
            (PortState::Init, PortPhysicalState::LinkUp)
        } else {
            (PortState::Down, PortPhysicalState::Polling)
        };
        self.switch.port_state_change = self.kind == NodeType::Switch;
        if self.kind != NodeType::Switch && !up {
            self.guards[usize::from(port)] = MKeyGuard::default();
        }
    }

    /// Returns the agent's answer to a packet that arrived by `entry`.
    fn agent(&mut self, smp: &Smp, entry: u8, now: Instant) -> Option<Smp> {
        let mut answer = smp.answer(MadStatus::OK);
        let set = smp.header.method == Method::Set;
        self.sets += u32::from(set);
        self.keys_seen.insert(smp.mkey);
        let port_guid = self.port_guid(entry);
        let guard = &mut self.guards[if self.kind == NodeType::Switch { 0 } else { usize::from(entry) }];
        guard.follow(now);
        if !guard.admits(smp) {
            self.refused += 1;
            guard.follow(now);
            return None;
        }
        let (node_guid, node_type) =
            self.claims.map_or((self.guid, self.kind), |(guid, kind)| (Guid(guid), kind));
        let arms = smp.attribute::<PortInfo>().is_some_and(|info| info.state == PortState::Armed);
        if set && arms && self.never_arms {
            return None;
        }
        let modifier = smp.header.modifier;
        match smp.header.attribute {
            attribute::NODE_INFO => answer.set_attribute(&NodeInfo {
                base_version: 1,
                class_version: 1,
                node_type,
                num_ports: self.ports.len() as u8 - 1,
                system_image_guid: node_guid,
                node_guid,
                port_guid: self.claimed_port_guid.unwrap_or(port_guid),
                partition_cap: self.partition_cap,
                device_id: 1,
                revision: 1,
                local_port: self.claimed_local_port.unwrap_or(entry),
                vendor_id: Qpn::new(0),
            }),
            attribute::NODE_DESCRIPTION => answer.set_attribute(&NodeDescription::new("sim")),
            attribute::SWITCH_INFO => {
                if let (true, Some(wanted)) = (set, smp.attribute::<SwitchInfo>()) {
                    let clear = wanted.port_state_change;
                    self.switch.linear_top = wanted.linear_top;
                    self.switch.port_state_change &= !clear;
                }
                answer.set_attribute(&self.switch);
            }
            attribute::PORT_INFO => {
                let at = if self.kind == NodeType::Switch { modifier as usize } else { usize::from(entry) };
                let info = &mut self.ports[at];
                if let (true, Some(wanted)) = (set, smp.attribute::<PortInfo>()) {
                    self.reregistered += u32::from(wanted.client_reregister);
                    let state = match (wanted.state, info.state) {
                        (PortState::NoChange, now) => now,
                        (PortState::Down, _) => PortState::Init,
                        // A retransmitted packet changes nothing.
                        (PortState::Armed, PortState::Init | PortState::Armed) => PortState::Armed,
                        (PortState::Active, PortState::Armed | PortState::Active) => PortState::Active,
                        (to, from) => panic!("{from:?} to {to:?}"),
                    };
                    let physical_state = info.physical_state;
                    if self.kind != NodeType::Switch || modifier == 0 {
                        guard.set(&wanted);
                    }
                    *info = PortInfo { state, physical_state, client_reregister: false, ..wanted };
                }
                let mut shown = *info;
                if self.kind != NodeType::Switch || modifier == 0 {
                    guard.show(smp, &mut shown);
                }
                answer.set_attribute(&shown);
            }
            attribute::PKEY_TABLE => {
                let (block, port) = PKeyBlock::place(modifier);
                let port = if self.kind == NodeType::Switch { port } else { entry };
                let keys = self.pkeys[usize::from(port)].entry(block).or_default();
                if set {
                    *keys = smp.attribute::<PKeyBlock>().unwrap().keys;
                }
                let mut shown = PKeyBlock { keys: *keys };
                if self.lies && !set {
                    shown.keys[31] = PKey(0x8666);
                }
                answer.set_attribute(&shown);
            }
            attribute::LINEAR_FORWARDING => {
                let ports = self.linear.entry(modifier).or_insert([255; 64]);
                if set {
                    *ports = smp.attribute::<LinearForwardingBlock>().unwrap().ports;
                }
                answer.set_attribute(&LinearForwardingBlock { ports: *ports });
            }
            attribute::MULTICAST_FORWARDING => {
                let place = MulticastForwardingBlock::place(modifier);
                let masks = self.multicast.entry(place).or_insert([0; 32]);
                if set {
                    *masks = smp.attribute::<MulticastForwardingBlock>().unwrap().masks;
                }
                answer.set_attribute(&MulticastForwardingBlock { masks: *masks });
            }
            _ => {
                answer.header.status = MadStatus(answer.header.status.0 | MadStatus::UNSUPPORTED_ATTRIBUTE.0)
            }
        }
        Some(answer)
    }
}

/// Everything outside of the manager, and the manager itself.
#[derive(Debug)]
pub(super) struct World {
    pub(super) nodes: Vec<SimNode>,
    links: BTreeMap<(usize, u8), (usize, u8)>,
    pub(super) sm: SubnetManager,
    pub(super) now: Instant,
    /// Answers in transit, and the times of their arrival.
    late: Vec<(Instant, Mad)>,
    /// Datagrams for clients, by LID.
    pub(super) inbox: VecDeque<Mad>,
    /// One of this number of SMPs is lost; 0 = none.
    lose: u64,
    random: u64,
    /// A multicast LID whose packets must not loop; checked after every packet.
    pub(super) watch: Option<Lid>,
    /// How often a table was written in the meantime.
    pub(super) watched: u32,
}

/// GUID of the manager's switch.
pub(super) const SWITCH: Guid = Guid(0x100);

impl World {
    /// Creates the manager's switch with eight ports, and `adapters` of them with a channel adapter.
    pub(super) fn new(adapters: u8, config: SmConfig) -> Self {
        let now = Instant::now();
        let mut world = Self {
            nodes: vec![SimNode::new(NodeType::Switch, SWITCH.0, 20)],
            links: BTreeMap::new(),
            sm: SubnetManager::new(now, config),
            now,
            late: Vec::new(),
            inbox: VecDeque::new(),
            lose: 0,
            random: 1,
            watch: None,
            watched: 0,
        };
        for i in 1..=adapters {
            let adapter = world.add(NodeType::ChannelAdapter, 0x1000 * u64::from(i), 1);
            world.connect((0, i), (adapter, 1));
        }
        world
    }

    pub(super) fn add(&mut self, kind: NodeType, guid: u64, ports: u8) -> usize {
        self.nodes.push(SimNode::new(kind, guid, ports));
        self.nodes.len() - 1
    }

    pub(super) fn connect(&mut self, a: (usize, u8), b: (usize, u8)) {
        self.links.insert(a, b);
        self.links.insert(b, a);
        self.nodes[a.0].set_cable(a.1, true);
        self.nodes[b.0].set_cable(b.1, true);
    }

    pub(super) fn disconnect(&mut self, a: (usize, u8)) {
        let b = self.links.remove(&a).unwrap();
        self.links.remove(&b);
        self.nodes[a.0].set_cable(a.1, false);
        self.nodes[b.0].set_cable(b.1, false);
    }

    /// Forwards a directed-route packet hop by hop, gets it answered, and returns the answer.
    fn carry(&mut self, mut smp: Smp) {
        let mut at = 0;
        let mut origin = Origin::Local;
        let mut delay = Duration::ZERO;
        loop {
            match step(&mut smp, self.nodes[at].kind, origin) {
                DirectedStep::Send(port) => {
                    let up = self.nodes[at].ports.get(usize::from(port)).is_some();
                    let Some(&(next, entry)) = self.links.get(&(at, port)).filter(|_| up) else { return };
                    (at, origin) = (next, Origin::Port(entry));
                }
                DirectedStep::Deliver if smp.is_returning() => {
                    assert_eq!(at, 0, "only the manager sends requests");
                    let mad = smp.to_mad(Lid::PERMISSIVE);
                    if delay.is_zero() {
                        self.sm.handle_mad(self.now, &mad);
                    } else {
                        self.late.push((self.now + delay, mad));
                    }
                    return;
                }
                DirectedStep::Deliver if self.nodes[at].mute => return,
                DirectedStep::Deliver
                    if self.nodes[at].answers_only.is_some_and(|only| only != smp.header.attribute) =>
                {
                    return;
                }
                DirectedStep::Deliver => {
                    let entry = if let Origin::Port(entry) = origin { entry } else { 0 };
                    if self.nodes[at].mute_port == Some(entry) {
                        return;
                    }
                    let Some(answer) = self.nodes[at].agent(&smp, entry, self.now) else { return };
                    smp = answer;
                    delay = self.nodes[at].delay;
                    if let Some(mlid) = self.watch {
                        self.watched += u32::from(smp.header.attribute == attribute::MULTICAST_FORWARDING);
                        self.assert_tree(mlid);
                    }
                    origin = Origin::Local;
                }
                _ => return,
            }
        }
    }

    /// Delivers a packet that the manager has sent.
    pub(super) fn carry_out(&mut self, smp: Smp) {
        self.carry(smp);
    }

    pub(super) fn lose_one_in(&mut self, lose: u64, seed: u64) {
        (self.lose, self.random) = (lose, seed);
    }

    fn loses(&mut self) -> bool {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.lose > 0 && (self.random >> 33).is_multiple_of(self.lose)
    }

    pub(super) fn adapters(&self) -> impl Iterator<Item = &SimNode> {
        self.nodes.iter().filter(|n| n.kind == NodeType::ChannelAdapter)
    }

    /// Delivers all packets that the manager has to send.
    pub(super) fn pump(&mut self) {
        while let Some(mad) = self.sm.poll_transmit() {
            if mad.header().class == MgmtClass::SubnDirected {
                if !self.loses() {
                    self.carry(Smp::from_mad(&mad.bytes).unwrap());
                }
            } else {
                self.inbox.push_back(mad);
            }
        }
    }

    /// Lets `span` pass, and handles every timeout in it.
    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.pump();
        loop {
            let arrival = self.late.iter().map(|&(at, _)| at).min();
            let Some(at) = self.sm.poll_timeout().into_iter().chain(arrival).min().filter(|&at| at <= end)
            else {
                break;
            };
            self.now = self.now.max(at);
            let now = self.now;
            let arrived: Vec<_> = self.late.extract_if(.., |(at, _)| *at <= now).collect();
            for (_, mad) in arrived {
                self.sm.handle_mad(now, &mad);
            }
            self.sm.handle_timeout(now);
            self.pump();
        }
        self.now = end;
    }

    /// Returns the GID of adapter `i` (from 1).
    pub(super) fn gid(&self, i: usize) -> Gid {
        Gid::new(Gid::DEFAULT_PREFIX, self.nodes[i].port_guid(1))
    }

    pub(super) fn lid(&self, i: usize) -> Lid {
        self.nodes[i].ports[1].lid
    }

    pub(super) fn address(&self, i: usize) -> MadAddress {
        MadAddress::gsi(self.lid(i), ServiceLevel::new(0))
    }

    /// Checks that a multicast that enters a switch by any port does not return there over the links that are
    /// up.
    fn assert_tree(&self, mlid: Lid) {
        let active =
            |end: (usize, u8)| self.nodes[end.0].ports[usize::from(end.1)].state == PortState::Active;
        for &start in self.links.values().filter(|end| self.nodes[end.0].kind == NodeType::Switch) {
            let (mut copies, mut seen) = (vec![start], BTreeSet::new());
            while let Some((at, entry)) = copies.pop() {
                assert!(seen.insert((at, entry)), "{mlid} goes round from {start:?}");
                let ports = self.multicast(at, mlid);
                for port in (1..20u8).filter(|&p| ports >> p & 1 == 1 && p != entry) {
                    let next = self.peer((at, port)).filter(|&next| active((at, port)) && active(next));
                    copies.extend(next.filter(|next| self.nodes[next.0].kind == NodeType::Switch));
                }
            }
        }
    }

    /// Returns the other end of a port.
    pub(super) fn peer(&self, end: (usize, u8)) -> Option<(usize, u8)> {
        self.links.get(&end).copied()
    }

    /// Returns a switch's port for a LID.
    pub(super) fn route(&self, switch: usize, lid: Lid) -> u8 {
        self.nodes[switch].linear[&(u32::from(lid.0) / 64)][usize::from(lid.0) % 64]
    }

    /// Returns a switch's ports for a multicast LID, as a mask.
    pub(super) fn multicast(&self, switch: usize, mlid: Lid) -> u64 {
        let index = usize::from(mlid.0 - 0xc000);
        let of = |position| {
            let block = self.nodes[switch].multicast.get(&((index / 32) as u16, position));
            block.map_or(0, |b| u64::from(b[index % 32]))
        };
        of(0) | of(1) << 16
    }

    /// Returns the total number of values written to nodes.
    pub(super) fn sets(&self) -> u32 {
        self.nodes.iter().map(|n| n.sets).sum()
    }
}
