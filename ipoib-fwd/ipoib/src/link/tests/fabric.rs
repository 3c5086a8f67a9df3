//! A small fabric for tests: nodes with a link each, a subnet administration, datagrams that can be lost, and
//! devices that check their requests. Time is simulated, and advances from event to event.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hca::{PortState, UdSource};
use ib_wire::cm::{Message, Reject, RejectReason, Request};
use ib_wire::ipoib::{Arp, HardwareAddress};
use ib_wire::mad::{Mad, MadAddress, MgmtClass, Route};
use ib_wire::sa::LifeTime;
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Qpn, ServiceLevel};

pub(super) use super::node::{Node, OneLink, Qp, Setup};
use crate::link::random::Random;
use crate::link::{
    ArpResponder, ConnKey, LinkIndex, LinkSettings, Neighbours, PortFacts, WorkerIndex, WorkerNote,
    WorkerSettings,
};

pub(super) const SM_LID: Lid = Lid(1);
pub(super) const QKEY: QKey = QKey(0x8000_0b1b);

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A parcel in flight to a node.
#[derive(Debug)]
pub(super) enum Parcel {
    Mad(Mad),
    Arp { worker: WorkerIndex, from: UdSource, arp: Arp },
    Note(Qpn, WorkerNote),
    Quiescent(u64),
    Created(ConnKey, Option<Qpn>),
    Done(ConnKey, bool),
}

/// Decides whether a REQ is rejected in flight, and the reason.
type Refusal = Box<dyn Fn(&Request) -> Option<RejectReason>>;

/// Changes an answer of the subnet administration in flight.
type Forgery = Box<dyn FnMut(&mut [u8; 256])>;

/// The whole fabric.
pub(super) struct Fabric {
    pub(super) now: Instant,
    pub(super) nodes: Vec<Node>,
    pub(super) parcels: BTreeMap<(Instant, u64), (usize, Parcel)>,
    sequence: u64,
    pub(super) random: Random,
    /// Management datagrams lost, of 256.
    pub(super) loss: u64,
    /// The subnet administration answers.
    pub(super) sa_up: bool,
    /// It knows ports by their GUIDs, whatever the prefix.
    pub(super) by_guid: bool,
    /// The packet life time of its paths.
    pub(super) life_time: LifeTime,
    /// It refuses joins of these groups.
    pub(super) refuse_join: HashSet<Gid>,
    /// Class-specific status of refusals to join; of queries of groups, if these are refused, too.
    pub(super) join_status: u8,
    pub(super) query_status: Option<u8>,
    pub(super) members: BTreeSet<(Gid, Gid)>,
    pub(super) next_mlid: u16,
    pub(super) mlids: BTreeMap<Gid, Lid>,
    pub(super) qkey: QKey,
    /// Changes its answers to node 0.
    pub(super) forge: Option<Forgery>,
    /// Requests answered by the subnet administration, by attribute.
    pub(super) requests: BTreeMap<(u16, u8), usize>,
    /// Rejects REQs instead of the peers.
    pub(super) refuse_request: Option<Refusal>,
    /// CM datagrams seen on the wire.
    pub(super) cm_mads: Vec<Mad>,
    /// Datagrams that node 0 sent, as it addressed them, if they are recorded.
    pub(super) sent_by_first: Option<Vec<Mad>>,
}

impl Fabric {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: Instant::now(),
            nodes: Vec::new(),
            parcels: BTreeMap::new(),
            sequence: 0,
            random: Random::new(seed),
            loss: 0,
            sa_up: true,
            by_guid: false,
            life_time: LifeTime::new(14),
            refuse_join: HashSet::new(),
            join_status: 7,
            query_status: None,
            members: BTreeSet::new(),
            next_mlid: 0xc000,
            mlids: BTreeMap::new(),
            qkey: QKEY,
            forge: None,
            requests: BTreeMap::new(),
            refuse_request: None,
            cm_mads: Vec::new(),
            sent_by_first: None,
        }
    }

    /// Adds a node; an active port is reported to its link immediately.
    pub(super) fn add(&mut self, workers: u8, change: impl FnOnce(&mut Setup)) -> usize {
        let n = self.nodes.len();
        let node = self.boot(n, 77 + n as u64, workers, change);
        self.nodes.push(node);
        n
    }

    /// Restarts a node, as after a loss of power: parcels in flight to its link do not arrive.
    pub(super) fn reboot(&mut self, n: usize, seed: u64, workers: u8, change: impl FnOnce(&mut Setup)) {
        self.parcels
            .retain(|_, (to, parcel)| *to != n || matches!(parcel, Parcel::Mad(_) | Parcel::Arp { .. }));
        let gid = self.nodes[n].facts.gid;
        self.members.retain(|(_, port)| *port != gid);
        let ip = self.nodes[n].ip;
        self.nodes[n] = Node {
            ip,
            responder: ArpResponder::new([(ip, WorkerIndex(0))]),
            ..self.boot(n, seed, workers, change)
        };
    }

    fn boot(&self, n: usize, seed: u64, workers: u8, change: impl FnOnce(&mut Setup)) -> Node {
        let guid = Guid(0x1000 + n as u64);
        let ud_qpn = |w: u8| Qpn::new(0x100 + n as u32 * 0x100 + u32::from(w));
        let mut link = LinkSettings::new(PKey::DEFAULT, ud_qpn(0), seed);
        link.workers = (0..workers).map(|w| WorkerSettings { ud_qpn: ud_qpn(w) }).collect();
        let mut setup = Setup { link, slots: 2000 };
        change(&mut setup);
        let facts = PortFacts {
            state: PortState::Active,
            lid: Lid(2 + n as u16),
            lmc: 0,
            gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
            sm_lid: SM_LID,
            sm_sl: ServiceLevel::new(0),
            mtu: Mtu::B4096,
            grh_required: false,
            default_pkey_index: 0,
            pkey_index: Some(0),
            limited: false,
        };
        let ip = Ipv4Addr::new(10, 0, (n >> 8) as u8, n as u8 + 1);
        let mut link = OneLink::new(setup.link, guid, 10, setup.slots, self.now);
        link.handle_port(self.now, facts);
        Node {
            link,
            facts,
            ip,
            alive: true,
            qps: BTreeMap::new(),
            slots: HashMap::new(),
            next_qpn: 0x1_0000 + n as u32 * 0x1_0000,
            opened: BTreeMap::new(),
            attached: BTreeSet::new(),
            attached_beside: BTreeSet::new(),
            table: Neighbours::default(),
            tables: Vec::new(),
            state: None,
            events: Vec::new(),
            responder: ArpResponder::new([(ip, WorkerIndex(0))]),
            created: HashSet::new(),
            destroyed: HashSet::new(),
            refuse_attach: HashSet::new(),
            queue_is_full: false,
            refuse_create: false,
            refuse_receive: false,
            mute: false,
            stuck: false,
            lazy: false,
        }
    }

    pub(super) fn send(&mut self, to: usize, after: Duration, parcel: Parcel) {
        self.sequence += 1;
        self.parcels.insert((self.now + after, self.sequence), (to, parcel));
    }

    /// Delivers a datagram to a node as if it had come from `from`.
    pub(super) fn inject(&mut self, to: usize, from: Lid, bytes: Box<[u8; 256]>) {
        let pkey_index = self.nodes[to].facts.pkey_index.unwrap_or(0);
        let peer = MadAddress { pkey_index, ..MadAddress::gsi(from, ServiceLevel::new(0)) };
        let mad = Mad { peer, bytes };
        self.send(to, ms(0), Parcel::Mad(mad));
    }

    /// The same, by a device that reports the sender's GID instead of its LID.
    pub(super) fn inject_routed(&mut self, to: usize, gid: Gid, bytes: Box<[u8; 256]>) {
        let route = Route { gid, sgid_index: 0, flow_label: 0, hop_limit: 1, traffic_class: 0 };
        let peer = MadAddress { route: Some(route), ..MadAddress::gsi(Lid(0), ServiceLevel::new(0)) };
        self.send(to, ms(0), Parcel::Mad(Mad { peer, bytes }));
    }

    pub(super) fn is_named(&self, port: Gid, queried: Gid) -> bool {
        port == queried || self.by_guid && port.id() == queried.id()
    }

    fn lost(&mut self) -> bool {
        self.random.next() % 256 < self.loss
    }

    pub(super) fn node_at(&self, lid: Lid) -> Option<usize> {
        self.nodes.iter().position(|n| n.alive && n.facts.lid == lid && n.facts.state == PortState::Active)
    }

    fn carry(&mut self, from: usize, mad: Mad) {
        let source = self.nodes[from].facts.lid;
        if let (0, Some(sent)) = (from, &mut self.sent_by_first) {
            sent.push(mad.clone());
        }
        if mad.header().class == MgmtClass::ComMgt {
            self.cm_mads.push(mad.clone());
        }
        if self.lost() {
            return;
        }
        if mad.peer.lid == SM_LID {
            if self.sa_up
                && let Some(mut bytes) = self.administer(&mad)
            {
                if let Some(forge) = self.forge.as_mut().filter(|_| from == 0) {
                    forge(&mut bytes);
                }
                if self.lost() {
                    return;
                }
                let peer = MadAddress::gsi(SM_LID, ServiceLevel::new(0));
                self.send(from, ms(1), Parcel::Mad(Mad { peer, bytes }));
            }
            return;
        }
        if let Some(refuse) = &self.refuse_request
            && let Ok((header, Message::Request(request))) = Message::parse(&mad.bytes)
            && let Some(reason) = refuse(&request)
        {
            let remote_comm_id = request.local_comm_id;
            let reject = Reject { remote_comm_id, reason, ..Reject::default() };
            self.inject(from, mad.peer.lid, Message::from(reject).to_bytes(header.tid));
            return;
        }
        if let Some(to) = self.node_at(mad.peer.lid) {
            // A GRH that was sent arrives, and contains the sender's GID.
            let gid = self.nodes[from].facts.gid;
            let route = mad.peer.route.map(|route| Route { gid, ..route });
            let pkey_index = self.nodes[to].facts.pkey_index.unwrap_or(0);
            let gsi = MadAddress::gsi(source, ServiceLevel::new(0));
            let peer = MadAddress { qkey: QKey(0), pkey_index, route, ..gsi };
            self.send(to, ms(1), Parcel::Mad(Mad { peer, bytes: mad.bytes }));
        }
    }

    fn deliver(&mut self, n: usize, parcel: Parcel) {
        let now = self.now;
        let node = &mut self.nodes[n];
        if !node.alive {
            return;
        }
        match parcel {
            Parcel::Mad(mad) => {
                node.link.0.handle_mad(now, &mad);
            }
            Parcel::Arp { worker, from, arp } => node.link.handle_arp(now, worker, &from, arp),
            Parcel::Note(qpn, note) => node.link.handle_note(now, qpn, note),
            Parcel::Quiescent(generation) => {
                node.tables.retain(|(g, _)| *g >= generation);
                node.link.handle_quiescent(now, generation);
            }
            Parcel::Created(conn, qpn) => node.link.handle_created(now, conn, qpn),
            Parcel::Done(conn, ok) => node.link.handle_done(now, conn, ok),
        }
    }

    /// Executes all pending actions of the links, without advancing the time.
    pub(super) fn settle(&mut self) {
        loop {
            let mut idle = true;
            for n in 0..self.nodes.len() {
                if !self.nodes[n].alive {
                    continue;
                }
                while let Some((link, action)) = self.nodes[n].link.0.poll_action(self.now) {
                    idle = false;
                    if link == LinkIndex(0) {
                        self.perform(n, action);
                    } else {
                        self.perform_beside(n, link, action);
                    }
                }
                while let Some(mad) = self.nodes[n].link.0.poll_transmit(self.now) {
                    idle = false;
                    self.carry(n, mad);
                }
                while let Some((link, event)) = self.nodes[n].link.0.poll_event() {
                    idle = false;
                    if link != LinkIndex(0) {
                        continue;
                    }
                    let node = &mut self.nodes[n];
                    let responder = node.responder.clone();
                    responder.handle_event(self.now, &mut node.link, &event);
                    node.events.push(event);
                }
            }
            while let Some(entry) = self.parcels.first_entry()
                && entry.key().0 <= self.now
            {
                idle = false;
                let (n, parcel) = entry.remove();
                self.deliver(n, parcel);
            }
            if idle {
                return;
            }
        }
    }

    /// Advances the time by `span`, from event to event.
    pub(super) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        let mut iterations = 0u32;
        loop {
            self.settle();
            let due = self.nodes.iter().filter(|n| n.alive).filter_map(|n| n.link.poll_timeout()).min();
            let parcel = self.parcels.first_key_value().map(|((at, _), _)| *at);
            let next = due.into_iter().chain(parcel).min().filter(|at| *at <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            let now = self.now;
            for node in self.nodes.iter_mut().filter(|n| n.alive) {
                if node.link.poll_timeout().is_some_and(|at| at <= now) {
                    node.link.handle_timeout(now);
                }
            }
            iterations += 1;
            assert!(iterations < 2_000_000, "time stands still");
        }
        self.now = end;
        self.settle();
    }

    pub(super) fn resolve(&mut self, from: usize, to: usize) {
        self.resolve_by(from, 0, to);
    }

    pub(super) fn resolve_by(&mut self, from: usize, worker: u8, to: usize) {
        let (source, target, now) = (self.nodes[from].ip, self.nodes[to].ip, self.now);
        self.nodes[from].link.resolve(now, WorkerIndex(worker), source, target);
    }

    /// Reports that a worker sends to another node.
    pub(super) fn use_by(&mut self, from: usize, worker: u8, to: usize) {
        let (target, now) = (self.nodes[to].ip, self.now);
        self.nodes[from].link.handle_used(now, WorkerIndex(worker), &[], &[target.into()]);
    }

    /// Reports for every node's worker that its passive connections have received.
    pub(super) fn receive_all(&mut self) {
        let now = self.now;
        for node in &mut self.nodes {
            let all: Vec<_> = node.qps.iter().filter(|(_, q)| q.passive).map(|(qpn, _)| *qpn).collect();
            node.link.handle_used(now, WorkerIndex(0), &all, &[]);
        }
    }

    /// Changes a node's port, and reports its new state.
    pub(super) fn change_port(&mut self, n: usize, change: impl FnOnce(&mut PortFacts)) {
        change(&mut self.nodes[n].facts);
        let (facts, now) = (self.nodes[n].facts, self.now);
        self.nodes[n].link.each(|link| link.handle_port(now, facts));
    }

    pub(super) fn address(&self, n: usize, worker: u8) -> HardwareAddress {
        self.nodes[n].link.address(WorkerIndex(worker)).expect("worker")
    }
}
