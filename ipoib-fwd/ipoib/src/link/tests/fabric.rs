//! A small fabric for tests: nodes with a link each, a subnet administration, datagrams that can get lost, and
//! devices that check what is asked of them. Time is a number that goes from event to event.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hca::{PortState, QpState, QpTransition, RcSlot, UdSource};
use ib_wire::cm::{Message, Reject, RejectReason, Request};
use ib_wire::ipoib::{Arp, HardwareAddress, decapsulate};
use ib_wire::mad::{Mad, MadAddress, MgmtClass, Route};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Qpn, ServiceLevel};

use crate::link::random::Random;
use crate::link::{
    Action, ArpResponder, ConnKey, Event, Link, LinkIndex, LinkSettings, LinkState, Neighbours, PortFacts,
    WorkerIndex, WorkerNote, WorkerSettings,
};
use crate::port::{Port, PortSettings, WorkerSlots};

pub(super) const SM_LID: Lid = Lid(1);
pub(super) const QKEY: QKey = QKey(0x8000_0b1b);

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A connected queue pair of a device.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) key: ConnKey,
    pub(super) state: QpState,
    pub(super) passive: bool,
    pub(super) receive: Option<hca::RcToReceive>,
    pub(super) send: Option<hca::RcToSend>,
    inserted: Option<(WorkerIndex, RcSlot)>,
}

/// What is under way to a node.
#[derive(Debug)]
enum Parcel {
    Mad(Mad),
    Arp { worker: WorkerIndex, from: UdSource, arp: Arp },
    Note(Qpn, WorkerNote),
    Quiescent(u64),
    Created(ConnKey, Option<Qpn>),
    Done(ConnKey, bool),
}

/// A port with one link, as a link with a port around it.
#[derive(Debug)]
pub(super) struct OneLink(pub(super) Port);

impl std::ops::Deref for OneLink {
    type Target = Link;
    fn deref(&self) -> &Link {
        self.0.link(LinkIndex(0)).expect("the link")
    }
}

impl std::ops::DerefMut for OneLink {
    fn deref_mut(&mut self) -> &mut Link {
        self.0.link_mut(LinkIndex(0)).expect("the link")
    }
}

impl OneLink {
    pub(super) fn new(settings: LinkSettings, node_guid: Guid, first: u16, count: u16, now: Instant) -> Self {
        let workers = vec![WorkerSlots { first, count }; settings.workers.len()];
        let mut port = Port::new(&PortSettings { node_guid, workers, seed: settings.seed ^ 0x5eed }, now);
        port.add(now, settings).expect("settings");
        Self(port)
    }

    pub(super) fn handle_created(&mut self, now: Instant, conn: ConnKey, qpn: Option<Qpn>) {
        self.0.handle_created(now, conn, qpn);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    pub(super) fn cm_counters(&self) -> &cm::connection::Counters {
        self.0.cm_counters()
    }
}

/// Settings of a node: those of its link, and the connection slots of each worker.
pub(super) struct Setup {
    pub(super) link: LinkSettings,
    pub(super) slots: u16,
}

impl std::ops::Deref for Setup {
    type Target = LinkSettings;
    fn deref(&self) -> &LinkSettings {
        &self.link
    }
}

impl std::ops::DerefMut for Setup {
    fn deref_mut(&mut self) -> &mut LinkSettings {
        &mut self.link
    }
}

/// One node: a link and the device under it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: OneLink,
    pub(super) facts: PortFacts,
    pub(super) ip: Ipv4Addr,
    pub(super) alive: bool,
    pub(super) qps: BTreeMap<Qpn, Qp>,
    pub(super) slots: HashMap<(WorkerIndex, RcSlot), ConnKey>,
    next_qpn: u32,
    pub(super) opened: BTreeMap<WorkerIndex, (u16, QKey)>,
    pub(super) attached: BTreeSet<(Gid, Lid)>,
    pub(super) table: Neighbours,
    /// Tables that workers may still look at.
    tables: Vec<(u64, Neighbours)>,
    pub(super) state: Option<LinkState>,
    pub(super) events: Vec<Event>,
    responder: ArpResponder,
    pub(super) created: HashSet<ConnKey>,
    pub(super) destroyed: HashSet<ConnKey>,
    /// The device refuses to create queue pairs.
    pub(super) refuse_create: bool,
    /// The device refuses this kind of step.
    pub(super) refuse_receive: bool,
    /// Last-WQE events and drains do not come.
    pub(super) mute: bool,
    /// Workers take up no new table.
    pub(super) stuck: bool,
    /// Answers come later instead of at once.
    pub(super) lazy: bool,
}

impl Node {
    /// The queue pair that a worker sends to `ip` by.
    pub(super) fn rc_to(&self, ip: Ipv4Addr, worker: u8) -> Option<&Qp> {
        let path = self.table.get(ip)?.rc(worker)?;
        let key = self.slots.get(&(WorkerIndex(worker), path.slot))?;
        self.qps.values().find(|q| q.key == *key)
    }

    pub(super) fn live(&self, passive: bool) -> usize {
        self.qps.values().filter(|q| q.passive == passive && q.state == QpState::Rts).count()
    }

    /// Connections whose refusal by the device the link has not heard of yet.
    pub(super) fn refused_pending(&self) -> usize {
        self.destroyed.iter().filter(|key| self.link.conns.map.contains_key(key)).count()
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

/// Says whether a REQ is refused on its way, and why.
type Refusal = Box<dyn Fn(&Request) -> Option<RejectReason>>;

/// All of it.
pub(super) struct Fabric {
    pub(super) now: Instant,
    pub(super) nodes: Vec<Node>,
    parcels: BTreeMap<(Instant, u64), (usize, Parcel)>,
    sequence: u64,
    random: Random,
    /// Management datagrams lost, of 256.
    pub(super) loss: u64,
    /// The subnet administration answers.
    pub(super) sa_up: bool,
    /// It knows ports by their GUIDs, whatever the prefix.
    pub(super) by_guid: bool,
    /// It refuses joins of these groups.
    pub(super) refuse_join: HashSet<Gid>,
    pub(super) members: BTreeSet<(Gid, Gid)>,
    pub(super) next_mlid: u16,
    pub(super) mlids: BTreeMap<Gid, Lid>,
    pub(super) qkey: QKey,
    /// Requests answered by the subnet administration, by attribute.
    pub(super) requests: BTreeMap<(u16, u8), usize>,
    /// Refuses REQs in the peers' place.
    pub(super) refuse_request: Option<Refusal>,
    /// CM datagrams seen on the wire.
    pub(super) cm_mads: Vec<Mad>,
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
            refuse_join: HashSet::new(),
            members: BTreeSet::new(),
            next_mlid: 0xc000,
            mlids: BTreeMap::new(),
            qkey: QKEY,
            requests: BTreeMap::new(),
            refuse_request: None,
            cm_mads: Vec::new(),
        }
    }

    /// Adds a node; its link is told of an active port at once.
    pub(super) fn add(&mut self, workers: u8, change: impl FnOnce(&mut Setup)) -> usize {
        let n = self.nodes.len();
        let guid = Guid(0x1000 + n as u64);
        let ud_qpn = |w: u8| Qpn::new(0x100 + n as u32 * 0x100 + u32::from(w));
        let mut link = LinkSettings::new(PKey::DEFAULT, ud_qpn(0), 77 + n as u64);
        link.workers = (0..workers).map(|w| WorkerSettings { ud_qpn: ud_qpn(w) }).collect();
        let mut setup = Setup { link, slots: 2000 };
        change(&mut setup);
        let facts = PortFacts {
            state: PortState::Active,
            lid: Lid(2 + n as u16),
            gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
            sm_lid: SM_LID,
            sm_sl: ServiceLevel::new(0),
            mtu: Mtu::B4096,
            pkey_index: Some(0),
            limited: false,
        };
        let ip = Ipv4Addr::new(10, 0, (n >> 8) as u8, n as u8 + 1);
        let mut link = OneLink::new(setup.link, guid, 10, setup.slots, self.now);
        link.handle_port(self.now, facts);
        self.nodes.push(Node {
            link,
            facts,
            ip,
            alive: true,
            qps: BTreeMap::new(),
            slots: HashMap::new(),
            next_qpn: 0x1_0000 + n as u32 * 0x1_0000,
            opened: BTreeMap::new(),
            attached: BTreeSet::new(),
            table: Neighbours::default(),
            tables: Vec::new(),
            state: None,
            events: Vec::new(),
            responder: ArpResponder::new([(ip, WorkerIndex(0))]),
            created: HashSet::new(),
            destroyed: HashSet::new(),
            refuse_create: false,
            refuse_receive: false,
            mute: false,
            stuck: false,
            lazy: false,
        });
        n
    }

    fn send(&mut self, to: usize, after: Duration, parcel: Parcel) {
        self.sequence += 1;
        self.parcels.insert((self.now + after, self.sequence), (to, parcel));
    }

    /// Gives a node a datagram as if it had come from `from`.
    pub(super) fn inject(&mut self, to: usize, from: Lid, bytes: Box<[u8; 256]>) {
        let mad = Mad { peer: MadAddress::gsi(from, ServiceLevel::new(0)), bytes };
        self.send(to, ms(0), Parcel::Mad(mad));
    }

    /// The same, by a device that tells the sender's GID and not its LID.
    pub(super) fn inject_routed(&mut self, to: usize, gid: Gid, bytes: Box<[u8; 256]>) {
        let route = Route { gid, sgid_index: 0, flow_label: 0, hop_limit: 1, traffic_class: 0 };
        let peer = MadAddress { route: Some(route), ..MadAddress::gsi(Lid(0), ServiceLevel::new(0)) };
        self.send(to, ms(0), Parcel::Mad(Mad { peer, bytes }));
    }

    pub(super) fn is_named(&self, port: Gid, asked: Gid) -> bool {
        port == asked || self.by_guid && port.id() == asked.id()
    }

    fn lost(&mut self) -> bool {
        self.random.next() % 256 < self.loss
    }

    fn node_at(&self, lid: Lid) -> Option<usize> {
        self.nodes.iter().position(|n| n.alive && n.facts.lid == lid && n.facts.state == PortState::Active)
    }

    fn carry(&mut self, from: usize, mad: Mad) {
        let source = self.nodes[from].facts.lid;
        if mad.header().class == MgmtClass::ComMgt {
            self.cm_mads.push(mad.clone());
        }
        if self.lost() {
            return;
        }
        if mad.peer.lid == SM_LID {
            if self.sa_up
                && let Some(bytes) = self.administer(&mad)
            {
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
            let peer = MadAddress { qkey: QKey(0), ..MadAddress::gsi(source, ServiceLevel::new(0)) };
            self.send(to, ms(1), Parcel::Mad(Mad { peer, bytes: mad.bytes }));
        }
    }

    fn reply(&mut self, n: usize, parcel: Parcel) {
        let after = if self.nodes[n].lazy { ms(self.random.next() % 5) } else { ms(0) };
        self.send(n, after, parcel);
    }

    fn perform(&mut self, n: usize, action: Action) {
        let node = &mut self.nodes[n];
        match action {
            Action::OpenUd { worker, pkey_index, qkey } => {
                node.opened.insert(worker, (pkey_index, qkey));
            }
            Action::SetQKey { worker, qkey } => {
                node.opened.get_mut(&worker).expect("Q_Key of a closed queue pair").1 = qkey;
            }
            Action::AttachMulticast { worker, mgid, mlid } => {
                assert_eq!(worker, WorkerIndex(0));
                assert!(node.attached.insert((mgid, mlid)), "attached twice");
            }
            Action::DetachMulticast { worker, mgid, mlid } => {
                assert_eq!(worker, WorkerIndex(0));
                assert!(node.attached.remove(&(mgid, mlid)), "detached what was not attached");
            }
            Action::SendUd { worker, to, bytes } => {
                let (qkey, source) = (node.opened[&worker].1, node.facts.lid);
                let own = node.link.settings().workers[usize::from(worker.0)].ud_qpn;
                assert_eq!(to.qkey, qkey);
                let (_, content) = decapsulate(&bytes[..]).expect("header");
                let arp = Arp::parse(content).expect("ARP");
                let multicast = to.qpn == Qpn::MULTICAST;
                let from = UdSource {
                    qpn: own,
                    slid: source,
                    sl: to.av.sl,
                    pkey_index: 0,
                    has_grh: multicast,
                    multicast,
                };
                if multicast {
                    let mgid = to.av.grh.expect("multicast has a GRH").dgid;
                    let members: Vec<_> = (0..self.nodes.len())
                        .filter(|m| {
                            self.nodes[*m].alive && self.nodes[*m].attached.contains(&(mgid, to.av.dlid))
                        })
                        .collect();
                    for m in members {
                        self.send(m, ms(1), Parcel::Arp { worker: WorkerIndex(0), from, arp });
                    }
                } else if let Some(m) = self.node_at(to.av.dlid)
                    // As a channel adapter does: its own GID, whatever the prefix if that is the default one.
                    && to.av.grh.is_none_or(|grh| {
                        let own = self.nodes[m].facts.gid;
                        grh.dgid == own || grh.dgid == Gid::new(Gid::DEFAULT_PREFIX, own.id())
                    })
                {
                    let workers = &self.nodes[m].link.settings().workers;
                    if let Some(w) = workers.iter().position(|w| w.ud_qpn == to.qpn) {
                        self.send(m, ms(1), Parcel::Arp { worker: WorkerIndex(w as u8), from, arp });
                    }
                }
            }
            Action::CreateRc { conn, passive, .. } => {
                assert!(node.created.insert(conn), "a key is used once");
                if node.refuse_create {
                    node.destroyed.insert(conn);
                    self.reply(n, Parcel::Created(conn, None));
                    return;
                }
                node.next_qpn += 1;
                let qpn = Qpn::new(node.next_qpn);
                let qp = Qp {
                    key: conn,
                    state: QpState::Reset,
                    passive,
                    receive: None,
                    send: None,
                    inserted: None,
                };
                node.qps.insert(qpn, qp);
                self.reply(n, Parcel::Created(conn, Some(qpn)));
            }
            Action::ModifyRc { conn, qpn, to } => {
                let refuse = node.refuse_receive;
                let mute = node.mute;
                let qp = node.qps.get_mut(&qpn).expect("queue pair");
                assert_eq!(qp.key, conn);
                let mut last_wqe = false;
                let mut ok = true;
                qp.state = match (qp.state, to) {
                    (QpState::Reset, QpTransition::RcToInit { .. }) => QpState::Init,
                    (QpState::Init, QpTransition::RcToReceive(_)) if refuse => {
                        ok = false;
                        QpState::Init
                    }
                    (QpState::Init, QpTransition::RcToReceive(r)) => {
                        assert!(qp.inserted.is_some(), "the worker must know it before it can receive");
                        qp.receive = Some(r);
                        QpState::Rtr
                    }
                    (QpState::Rtr, QpTransition::RcToSend(s)) => {
                        qp.send = Some(s);
                        QpState::Rts
                    }
                    (QpState::Rtr | QpState::Rts | QpState::Err, QpTransition::ToError) => {
                        last_wqe = true;
                        QpState::Err
                    }
                    (from, to) => panic!("{to:?} in {from:?}"),
                };
                self.reply(n, Parcel::Done(conn, ok));
                if last_wqe && !mute {
                    self.send(n, ms(2), Parcel::Note(qpn, WorkerNote::LastWqeReached));
                }
            }
            Action::InsertRc { conn, worker, slot } => {
                assert!(node.slots.insert((worker, slot), conn).is_none(), "slot taken");
                let named = |n: &crate::link::Neighbour| n.rc(worker.0).is_some_and(|rc| rc.slot == slot);
                assert!(
                    !node.tables.iter().any(|(_, table)| table.iter().any(named)),
                    "a worker may still send to the slot's last connection"
                );
                let qp = node.qps.values_mut().find(|q| q.key == conn).expect("queue pair");
                qp.inserted = Some((worker, slot));
                self.reply(n, Parcel::Done(conn, true));
            }
            Action::PostDrain { conn, worker, slot } => {
                assert_eq!(node.slots.get(&(worker, slot)), Some(&conn));
                let mute = node.mute;
                let (qpn, qp) = node.qps.iter().find(|(_, q)| q.key == conn).expect("queue pair");
                assert_eq!(qp.state, QpState::Err, "the drain request belongs to a queue pair in error");
                let qpn = *qpn;
                // A full send queue, now and then.
                if self.random.next().is_multiple_of(4) {
                    self.reply(n, Parcel::Done(conn, false));
                } else if !mute {
                    self.send(n, ms(2), Parcel::Note(qpn, WorkerNote::Drained));
                }
            }
            Action::RemoveRc { conn, worker, slot } => {
                assert_eq!(node.slots.remove(&(worker, slot)), Some(conn));
                let qp = node.qps.values_mut().find(|q| q.key == conn).expect("queue pair");
                qp.inserted = None;
                self.reply(n, Parcel::Done(conn, true));
            }
            Action::DestroyRc { conn, qpn } => {
                let qp = node.qps.remove(&qpn).expect("queue pair");
                assert_eq!(qp.key, conn);
                assert_eq!(qp.inserted, None, "the worker still has it");
                assert!(node.destroyed.insert(conn), "destroyed twice");
            }
            Action::Publish(p) => {
                node.table = node.table.with(p.changes);
                node.tables.push((p.generation, node.table.clone()));
                node.state = Some((*p.state).clone());
                for neighbour in node.table.iter() {
                    for (w, rc) in (0..).zip(&neighbour.rc) {
                        if let Some(rc) = rc {
                            let key = node.slots.get(&(WorkerIndex(w), rc.slot)).expect("published slot");
                            let qp = node.qps.values().find(|q| q.key == *key).expect("its queue pair");
                            assert!(!qp.passive, "never send on a connection that the peer opened");
                            assert!(matches!(qp.state, QpState::Rts | QpState::Err));
                        }
                    }
                }
                // Workers take their time over new tables.
                let after = if node.lazy { ms(self.random.next() % 400) } else { ms(0) };
                if !node.stuck {
                    self.send(n, after, Parcel::Quiescent(p.generation));
                }
            }
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

    /// Performs all that the links ask for, at this moment.
    pub(super) fn settle(&mut self) {
        loop {
            let mut idle = true;
            for n in 0..self.nodes.len() {
                if !self.nodes[n].alive {
                    continue;
                }
                while let Some((_, action)) = self.nodes[n].link.0.poll_action(self.now) {
                    idle = false;
                    self.perform(n, action);
                }
                while let Some(mad) = self.nodes[n].link.0.poll_transmit(self.now) {
                    idle = false;
                    self.carry(n, mad);
                }
                while let Some((_, event)) = self.nodes[n].link.0.poll_event() {
                    idle = false;
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

    /// Lets time go on for `span`, from event to event.
    pub(super) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        let mut turns = 0u32;
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
            turns += 1;
            assert!(turns < 2_000_000, "time stands still");
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

    /// A worker sends to another node.
    pub(super) fn use_by(&mut self, from: usize, worker: u8, to: usize) {
        let (target, now) = (self.nodes[to].ip, self.now);
        self.nodes[from].link.handle_used(now, WorkerIndex(worker), &[], &[target.into()]);
    }

    /// Every node's worker tells that its passive connections have received.
    pub(super) fn receive_all(&mut self) {
        let now = self.now;
        for node in &mut self.nodes {
            let all: Vec<_> = node.qps.iter().filter(|(_, q)| q.passive).map(|(qpn, _)| *qpn).collect();
            node.link.handle_used(now, WorkerIndex(0), &all, &[]);
        }
    }

    /// Tells a node of its port's facts after changing them.
    pub(super) fn change_port(&mut self, n: usize, change: impl FnOnce(&mut PortFacts)) {
        change(&mut self.nodes[n].facts);
        let (facts, now) = (self.nodes[n].facts, self.now);
        self.nodes[n].link.handle_port(now, facts);
    }

    pub(super) fn address(&self, n: usize, worker: u8) -> HardwareAddress {
        self.nodes[n].link.address(WorkerIndex(worker)).expect("worker")
    }
}
