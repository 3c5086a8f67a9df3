//! Ports with several links each, on a fabric whose subnet administration gives each partition its own LIDs
//! and service levels.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hca::{PortState, QpTransition, RcSlot, UdSource};
use ib_wire::ipoib::{Arp, decapsulate};
use ib_wire::mad::{Mad, MadAddress, MadStatus, Method};
use ib_wire::sa::{LifeTime, McMemberRecord, PathRecord, SaMad, attribute};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Qpn, Rate, ServiceLevel};

use crate::link::{
    Action, ArpResponder, ConnKey, Event, LinkIndex, LinkSettings, Neighbours, WorkerIndex, WorkerNote,
    WorkerSettings,
};
use crate::port::{Facts, Port, PortSettings, WorkerSlots};

pub(super) const SM: Lid = Lid(1);
/// A router, and the GID prefix of the subnet behind it, where all GIDs are.
pub(super) const ROUTER: Lid = Lid(90);
pub(super) const FAR: u64 = 7;
/// The partitions, in the order of the P_Key tables.
pub(super) const PKEYS: [PKey; 8] = [
    PKey(0x8001),
    PKey(0x8002),
    PKey(0x8003),
    PKey(0x8004),
    PKey(0x8005),
    PKey(0x8006),
    PKey(0x8007),
    PKey(0x8008),
];

/// Connection slots of each node; those for connections that peers open; and one host's share of the latter.
pub(super) const SLOTS: u16 = 64;
pub(super) const PASSIVE: usize = 32;
pub(super) const SHARE: usize = 8;

/// The service level of a partition's paths.
pub(super) fn sl_of(pkey: PKey) -> u8 {
    (pkey.0 & 15) as u8
}

/// The state of a device and its workers for one link.
#[derive(Debug, Default)]
pub(super) struct Face {
    pub(super) table: Neighbours,
    pub(super) events: Vec<Event>,
    pub(super) opened: Option<(u16, QKey)>,
    pub(super) attached: BTreeSet<(Gid, Lid)>,
}

pub(super) struct Node {
    pub(super) port: Port,
    pub(super) facts: Facts,
    pub(super) faces: BTreeMap<LinkIndex, Face>,
    /// Connected queue pairs: connection, and whether it is in error.
    pub(super) qps: BTreeMap<Qpn, (ConnKey, bool)>,
    pub(super) slots: BTreeMap<RcSlot, ConnKey>,
    pub(super) drained: Vec<Qpn>,
    next_qpn: u32,
}

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) nodes: Vec<Node>,
    mads: VecDeque<(usize, Mad)>,
    pub(super) members: BTreeSet<(Gid, Gid)>,
    pub(super) requests: BTreeMap<(u16, u8), usize>,
    /// Answers are held back.
    pub(super) hold: bool,
    held: Vec<(usize, Mad)>,
    workers: u8,
    /// Datagrams to LIDs that no node has.
    pub(super) strays: Vec<Mad>,
}

pub(super) fn ip(node: usize, link: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, link as u8, 0, node as u8 + 1)
}

pub(super) fn ud_qpn(node: usize, link: u16) -> Qpn {
    Qpn::new(0x100 + node as u32 * 0x100 + u32::from(link))
}

/// The same for another worker than the first.
pub(super) fn ud_qpn_at(node: usize, link: u16, worker: u8) -> Qpn {
    Qpn::new(ud_qpn(node, link).get() + u32::from(worker) * 0x10)
}

impl World {
    /// Creates ports with `links` links each.
    pub(super) fn new(nodes: usize, links: u16) -> Self {
        Self::with_workers(nodes, links, 1)
    }

    /// The same with several workers, each with all its slots.
    pub(super) fn with_workers(nodes: usize, links: u16, workers: u8) -> Self {
        let mut world = Self {
            now: Instant::now(),
            nodes: Vec::new(),
            mads: VecDeque::new(),
            members: BTreeSet::new(),
            requests: BTreeMap::new(),
            hold: false,
            held: Vec::new(),
            workers,
            strays: Vec::new(),
        };
        for n in 0..nodes {
            let guid = Guid(0x1000 + n as u64);
            let slots = |at: u8| WorkerSlots { first: u16::from(at) * SLOTS, count: SLOTS };
            let port = Port::new(
                &PortSettings {
                    node_guid: guid,
                    workers: (0..workers).map(slots).collect(),
                    seed: 0x99 + n as u64,
                },
                world.now,
            );
            let facts = Facts {
                state: PortState::Active,
                lid: Lid(2 + n as u16),
                lmc: 0,
                gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
                sm_lid: SM,
                sm_sl: ServiceLevel::new(0),
                mtu: Mtu::B4096,
                grh_required: false,
                pkeys: PKEYS.to_vec(),
            };
            world.nodes.push(Node {
                port,
                facts,
                faces: BTreeMap::new(),
                qps: BTreeMap::new(),
                slots: BTreeMap::new(),
                drained: Vec::new(),
                next_qpn: 0x1_0000 * (n as u32 + 1),
            });
            for link in 0..links {
                assert_eq!(world.add(n, PKEYS[usize::from(link)]), LinkIndex(link));
            }
            world.change_port(n, |_| {});
        }
        world
    }

    pub(super) fn add(&mut self, n: usize, pkey: PKey) -> LinkIndex {
        let index = self.add_held(n, pkey);
        self.nodes[n].port.release(self.now, index);
        index
    }

    /// Adds a link that does not come up yet.
    pub(super) fn add_held(&mut self, n: usize, pkey: PKey) -> LinkIndex {
        let node = &mut self.nodes[n];
        let index = node.port.vacancy().expect("room");
        let mut settings = LinkSettings::new(pkey, ud_qpn(n, index.0), 7);
        let worker = |at| WorkerSettings { ud_qpn: ud_qpn_at(n, index.0, at) };
        settings.workers = (0..self.workers).map(worker).collect();
        (settings.max_passive, settings.max_passive_from_lid) = (PASSIVE, SHARE * usize::from(self.workers));
        assert_eq!(node.port.add_held(self.now, index, settings), Ok(index));
        node.faces.insert(index, Face::default());
        index
    }

    pub(super) fn change_port(&mut self, n: usize, change: impl FnOnce(&mut Facts)) {
        let node = &mut self.nodes[n];
        change(&mut node.facts);
        node.port.handle_port(self.now, node.facts.clone());
    }

    fn at_lid(&self, lid: Lid) -> Option<usize> {
        self.nodes.iter().position(|n| n.facts.lid == lid)
    }

    fn administer(&mut self, from: usize, mad: &Mad) -> Mad {
        let keys = &self.nodes[from].facts.pkeys;
        let is_default = |key: &PKey| key.base() == PKey::DEFAULT.base();
        let came_by_default = keys.get(usize::from(mad.peer.pkey_index)).is_some_and(is_default);
        assert_eq!(
            came_by_default,
            keys.iter().any(is_default),
            "subnet administration is in the default partition"
        );
        let request = SaMad::parse(&mad.bytes);
        let (what, method) = (request.header.attribute, request.header.method);
        *self.requests.entry((what, method.code())).or_default() += 1;
        let answer = if what == attribute::MC_MEMBER_RECORD {
            let asked: McMemberRecord = request.record().expect("record");
            let member = (asked.mgid, asked.port_gid);
            let there = if method == Method::Delete {
                self.members.remove(&member)
            } else {
                self.members.insert(member);
                true
            };
            assert!(there || method == Method::Delete);
            // The MGID has the P_Key in it (RFC 4391 4).
            let pkey = u16::from_be_bytes([asked.mgid.0[4], asked.mgid.0[5]]);
            let record = McMemberRecord {
                qkey: QKey(u32::from(pkey)),
                mlid: Lid(0xc000 + (pkey & 0xff)),
                mtu: Mtu::B2048.into(),
                rate: Rate::new(3),
                ..asked
            };
            SaMad::answer(&request, &record)
        } else {
            let asked: PathRecord = request.record().expect("record");
            let near = self.nodes.iter().find(|n| n.facts.gid == asked.dgid).map(|n| (n.facts.lid, 0));
            let far = (asked.dgid.prefix() == FAR).then_some((ROUTER, 64));
            match near.or(far) {
                Some((dlid, hop_limit)) => {
                    let record = PathRecord {
                        dlid,
                        hop_limit,
                        slid: self.nodes.iter().find(|n| n.facts.gid == asked.sgid).expect("ours").facts.lid,
                        sl: ServiceLevel::new(sl_of(asked.pkey)),
                        mtu: Mtu::B4096.into(),
                        rate: Rate::new(3),
                        life_time: LifeTime::new(14),
                        ..asked
                    };
                    SaMad::answer(&request, &record)
                }
                None => SaMad::refusal(&request, MadStatus::class_specific(3)),
            }
        };
        Mad { peer: MadAddress::gsi(SM, ServiceLevel::new(0)), bytes: answer.to_bytes() }
    }

    fn send(&mut self, from: usize, mad: Mad) {
        if mad.peer.lid == SM {
            let answer = self.administer(from, &mad);
            if self.hold {
                self.held.push((from, answer));
            } else {
                self.mads.push_back((from, answer));
            }
        } else if let Some(to) = self.at_lid(mad.peer.lid) {
            // It arrives by the same P_Key.
            let key = self.nodes[from].facts.pkeys[usize::from(mad.peer.pkey_index)];
            let pkey_index = self.pkey_index(to, key);
            let peer = MadAddress { pkey_index, ..MadAddress::gsi(self.nodes[from].facts.lid, mad.peer.sl) };
            self.mads.push_back((to, Mad { peer, bytes: mad.bytes }));
        } else {
            self.strays.push(mad);
        }
    }

    /// The index of a P_Key in a node's table.
    pub(super) fn pkey_index(&self, n: usize, key: PKey) -> u16 {
        let at = self.nodes[n].facts.pkeys.iter().position(|k| k.base() == key.base());
        at.and_then(|at| u16::try_from(at).ok()).expect("a partition of both")
    }

    /// Delivers a datagram to a node as if it had come from a LID by a P_Key.
    pub(super) fn inject(&mut self, n: usize, from: Lid, pkey_index: u16, bytes: Box<[u8; 256]>) {
        let peer = MadAddress { pkey_index, ..MadAddress::gsi(from, ServiceLevel::new(0)) };
        let now = self.now;
        self.nodes[n].port.handle_mad(now, &Mad { peer, bytes });
    }

    /// The same with a GRH.
    pub(super) fn inject_by(&mut self, n: usize, (from, gid): (Lid, Gid), pkey: u16, bytes: Box<[u8; 256]>) {
        let peer = MadAddress::gsi(from, ServiceLevel::new(0)).with_gid(gid);
        let mad = Mad { peer: MadAddress { pkey_index: pkey, ..peer }, bytes };
        let now = self.now;
        self.nodes[n].port.handle_mad(now, &mad);
    }

    /// Delivers the answers that were held back, in reverse order.
    pub(super) fn release(&mut self) {
        self.hold = false;
        while let Some(answer) = self.held.pop() {
            self.mads.push_back(answer);
        }
        self.settle();
    }

    fn perform(&mut self, n: usize, link: LinkIndex, action: Action) {
        let now = self.now;
        let node = &mut self.nodes[n];
        let pkey = node.port.link(link).expect("its link").settings().pkey;
        let face = node.faces.entry(link).or_default();
        match action {
            Action::OpenUd { pkey_index, qkey, .. } => {
                assert_eq!(node.facts.pkeys[usize::from(pkey_index)], pkey);
                assert_eq!(qkey.0, u32::from(pkey.0), "another partition's Q_Key");
                face.opened = Some((pkey_index, qkey));
            }
            Action::SetQKey { .. } => panic!("the Q_Key does not change"),
            Action::AttachMulticast { mgid, mlid, .. } => {
                assert_eq!(u16::from_be_bytes([mgid.0[4], mgid.0[5]]), pkey.0, "another partition's group");
                assert!(face.attached.insert((mgid, mlid)));
            }
            Action::DetachMulticast { mgid, mlid, .. } => assert!(face.attached.remove(&(mgid, mlid))),
            Action::SendUd { to, bytes, .. } => {
                assert_eq!(to.qkey, face.opened.map(|(_, qkey)| qkey));
                let arp = Arp::parse(decapsulate(&bytes[..]).expect("header").1).expect("ARP");
                let multicast = to.qpn == Qpn::MULTICAST;
                let from = UdSource {
                    qpn: ud_qpn(n, link.0),
                    slid: node.facts.lid,
                    sl: to.av.sl,
                    dlid_path_bits: 0,
                    pkey_index: 0,
                    has_grh: multicast,
                    multicast,
                };
                let to: Vec<(usize, LinkIndex)> = if multicast {
                    let group = (to.av.grh.expect("GRH").dgid, to.av.dlid);
                    let listens = |face: &Face| face.attached.contains(&group);
                    let of = |(m, node): (usize, &Node)| {
                        node.faces.iter().find(|(_, f)| listens(f)).map(|(l, _)| (m, *l))
                    };
                    self.nodes.iter().enumerate().filter_map(of).collect()
                } else {
                    let m = self.at_lid(to.av.dlid).expect("a node");
                    let owner = self.nodes[m].port.datagram_owner(to.qpn).expect("a queue pair");
                    assert_eq!(to.av.sl.get(), sl_of(pkey), "another partition's path");
                    vec![(m, owner.0)]
                };
                for (m, l) in to {
                    let link = self.nodes[m].port.link_mut(l).expect("its link");
                    assert_eq!(link.settings().pkey, pkey, "partitions do not mix");
                    link.handle_arp(now, WorkerIndex(0), &from, arp);
                }
            }
            Action::CreateRc { conn, .. } => {
                node.next_qpn += 1;
                let qpn = Qpn::new(node.next_qpn);
                node.qps.insert(qpn, (conn, false));
                node.port.handle_created(now, conn, Some(qpn));
                assert_eq!(node.port.owner(qpn), Some(link));
            }
            Action::ModifyRc { conn, qpn, to } => {
                match to {
                    QpTransition::RcToInit { pkey_index } => {
                        assert_eq!(node.facts.pkeys[usize::from(pkey_index)], pkey);
                    }
                    QpTransition::RcToReceive(r) => assert_eq!(r.av.sl.get(), sl_of(pkey), "another's path"),
                    QpTransition::ToError => node.drained.push(qpn),
                    _ => {}
                }
                node.port.handle_done(now, conn, true);
            }
            Action::InsertRc { conn, slot, .. } => {
                assert!(node.slots.insert(slot, conn).is_none(), "two links have one slot");
                node.port.handle_done(now, conn, true);
            }
            Action::PostDrain { .. } => {}
            Action::RemoveRc { conn, slot, .. } => {
                assert_eq!(node.slots.remove(&slot), Some(conn));
                node.port.handle_done(now, conn, true);
            }
            Action::DestroyRc { conn, qpn } => {
                assert_eq!(node.qps.remove(&qpn).map(|(of, _)| of), Some(conn));
            }
            Action::Publish(p) => {
                face.table = face.table.with(p.changes);
                node.port.link_mut(link).expect("its link").handle_quiescent(now, p.generation);
            }
        }
    }

    pub(super) fn settle(&mut self) {
        loop {
            let mut idle = true;
            for n in 0..self.nodes.len() {
                while let Some((link, action)) = self.nodes[n].port.poll_action(self.now) {
                    idle = false;
                    self.perform(n, link, action);
                }
                while let Some(mad) = self.nodes[n].port.poll_transmit(self.now) {
                    idle = false;
                    self.send(n, mad);
                }
                while let Some((link, event)) = self.nodes[n].port.poll_event() {
                    idle = false;
                    let responder = ArpResponder::new([(ip(n, link.0), WorkerIndex(0))]);
                    let node = &mut self.nodes[n];
                    if let Some(machine) = node.port.link_mut(link) {
                        responder.handle_event(self.now, machine, &event);
                    }
                    node.faces.entry(link).or_default().events.push(event);
                }
                for qpn in std::mem::take(&mut self.nodes[n].drained) {
                    idle = false;
                    let now = self.now;
                    for note in [WorkerNote::Drained, WorkerNote::LastWqeReached] {
                        self.nodes[n].port.handle_note(now, qpn, note);
                    }
                }
            }
            if let Some((to, mad)) = self.mads.pop_front() {
                idle = false;
                let now = self.now;
                self.nodes[to].port.handle_mad(now, &mad);
            }
            if idle {
                return;
            }
        }
    }

    pub(super) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.settle();
            let due = self.nodes.iter().filter_map(|n| n.port.poll_timeout()).min().filter(|at| *at <= end);
            let Some(at) = due else { break };
            self.now = self.now.max(at);
            for node in &mut self.nodes {
                node.port.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    /// Opens connections between two nodes in both directions on a link.
    pub(super) fn connect(&mut self, link: u16, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let now = self.now;
            let machine = self.nodes[from].port.link_mut(LinkIndex(link)).expect("link");
            machine.resolve(now, WorkerIndex(0), ip(from, link), ip(to, link));
            self.run(Duration::from_millis(100));
            let machine = self.nodes[from].port.link_mut(LinkIndex(link)).expect("link");
            machine.handle_used(self.now, WorkerIndex(0), &[], &[ip(to, link).into()]);
            self.run(Duration::from_millis(100));
        }
    }

    pub(super) fn is_up(&self, n: usize, link: u16) -> bool {
        self.nodes[n].port.link(LinkIndex(link)).is_some_and(|l| l.state().up)
    }

    /// Live connections of a link.
    pub(super) fn live(&self, n: usize, link: u16) -> Vec<u64> {
        let link = self.nodes[n].port.link(LinkIndex(link)).expect("link");
        link.connections(self.now).iter().filter(|c| c.state == "live").map(|c| c.key.number).collect()
    }
}
