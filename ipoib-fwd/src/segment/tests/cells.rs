//! Each cell of the table of address ownership, driven through the segment on both sides, for a gateway that
//! forwards and for one that does not. Packets sent, hosts learned and counters must match the action of the
//! cell.

use super::*;
use crate::forward::{PeerGateway, Role};
use crate::segment::ownership::{
    ArpKind, SenderAction, SenderKnowledge, TargetAction, TargetKnowledge, of_sender, of_target,
};
use crate::segment::pair::Place;
use crate::segment::pending::{Claim, Lookup};

/// The address that the cell is about.
const X: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 77);
/// The host that requests it in the lower table, known on its side.
const ASKER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 99);
/// The hardware address that sends, one that had the address before, one of another gateway.
const SENDER: u8 = 7;
const BEFORE: u8 = 8;
const PEER: u8 = 9;
/// Both queries of a proof have stayed unanswered.
const SILENT: Duration = ms(330);

const SIDES: [Side; 2] = [Side::Ethernet, Side::InfiniBand];
const ROLES: [Role; 2] = [Role::Forwarding, Role::Standby];

const fn mac(n: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 7, n])
}

fn place(side: Side, n: u8) -> Place {
    match side {
        Side::Ethernet => Place::Ethernet(mac(n)),
        Side::InfiniBand => Place::InfiniBand(hardware(n)),
    }
}

/// A query: of all hosts of a side, or of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Query {
    of_ethernet: bool,
    of_all: bool,
    ip: Ipv4Addr,
}

impl Query {
    fn all(side: Side, ip: Ipv4Addr) -> Self {
        Self { of_ethernet: side == Side::Ethernet, of_all: true, ip }
    }

    fn one(side: Side, ip: Ipv4Addr) -> Self {
        Self { of_all: false, ..Self::all(side, ip) }
    }
}

/// The immediate result of a packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Done {
    drops: Vec<DropReason>,
    /// The sender of the packet is answered.
    is_answered: bool,
    queries: HashSet<Query>,
    announced: Vec<(Side, Ipv4Addr)>,
    conflicts: u64,
    claims_dropped: u64,
    answers_withdrawn: u64,
    own_address_claimed: u64,
    /// Where the address is known, by side.
    known: [Option<Place>; 2],
    /// It is claimed, and the other side is queried.
    is_claimed: bool,
    is_contested: bool,
    /// Its owner is queried when this gateway starts to forward.
    is_noted: bool,
}

impl Done {
    fn new(w: &World) -> Self {
        let ip = IpAddr::V4(X);
        Self {
            known: [
                w.segment.hosts.get(ip).map(Place::Ethernet),
                w.fabric.hardware(ip).map(Place::InfiniBand),
            ],
            is_claimed: w.segment.owners.is_queried(ip),
            is_contested: w.segment.owners.is_contested(w.now, ip),
            is_noted: w.segment.meanwhile.is_doubted(ip),
            ..Self::default()
        }
    }

    /// The result of a packet that requested `target`.
    fn since(w: &mut World, target: Ipv4Addr) -> Self {
        let mut done = Self::new(w);
        let counted = *w.segment.counters();
        (done.conflicts, done.claims_dropped) = (counted.conflicts, counted.claims_dropped);
        (done.answers_withdrawn, done.own_address_claimed) =
            (counted.answers_withdrawn, counted.own_address_claimed);
        for output in w.outputs() {
            match output {
                Output::Drop(reason, 1) => done.drops.push(reason),
                Output::Frame { bytes, .. } => done.frame(&bytes, target),
                _ => {}
            }
        }
        for queried in w.calls() {
            done.calls(queried, target);
        }
        done
    }

    fn frame(&mut self, bytes: &[u8], target: Ipv4Addr) {
        let arp = EthernetArp::parse(bytes).unwrap();
        let is_to_all = bytes[0] & 1 != 0;
        match arp.operation {
            ArpOperation::Request if arp.sender_ip == arp.target_ip => {
                self.announced.push((Side::Ethernet, arp.sender_ip));
            }
            ArpOperation::Request if is_to_all => {
                self.queries.insert(Query::all(Side::Ethernet, arp.target_ip));
            }
            ArpOperation::Request => {
                self.queries.insert(Query::one(Side::Ethernet, arp.target_ip));
            }
            ArpOperation::Reply => {
                assert_eq!((arp.sender_mac, arp.sender_ip), (GATEWAY_MAC, target), "the answered host");
                self.is_answered |= arp.target_mac == mac(SENDER);
            }
        }
    }

    fn calls(&mut self, queried: Call, target: Ipv4Addr) {
        let v4 = |ip| match ip {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) => panic!("all addresses are IPv4"),
        };
        match queried {
            Call::Announce(ip) => self.announced.push((Side::InfiniBand, v4(ip))),
            Call::Resolve { ip, .. } | Call::Request { ip, .. } => {
                self.queries.insert(Query::all(Side::InfiniBand, v4(ip)));
            }
            Call::Ask(ip) | Call::AskAt(ip, _) | Call::Verify(ip) => {
                self.queries.insert(Query::one(Side::InfiniBand, v4(ip)));
            }
            Call::Reply { ip, to, .. } => {
                assert_eq!(ip, IpAddr::V4(target), "the answered host");
                self.is_answered |= to == hardware(SENDER);
            }
        }
    }
}

impl World {
    /// `X` is known on a side, proven, and was not heard for some time.
    fn known(&mut self, side: Side, ip: Ipv4Addr, n: u8, is_fresh: bool) {
        match side {
            Side::Ethernet => {
                self.segment.hosts.learn(self.now, ip.into(), mac(n), None);
                if !is_fresh {
                    self.segment.hosts.set_confirmed(ip.into(), None);
                }
                self.segment.take_host_events(self.now, &mut self.fabric);
            }
            Side::InfiniBand => {
                self.fabric.neighbours.insert(ip.into(), (hardware(n), true));
                if !is_fresh {
                    self.fabric.stale.insert(ip.into());
                }
            }
        }
    }

    /// Discovery has queried both sides for all addresses.
    fn discover_all(&mut self) {
        self.segment.set_role(self.now, Role::Standby, std::iter::empty());
        self.segment.set_role(self.now, Role::Forwarding, std::iter::empty());
        self.pass(ms(300));
    }

    /// The answer to a query for `X` is awaited.
    fn await_answer(&mut self, side: Side) {
        match side {
            Side::Ethernet => assert!(self.segment.hosts.resolve(self.now, X.into(), None)),
            Side::InfiniBand => {
                self.fabric.sought.insert(X.into());
            }
        }
        self.segment.take_host_events(self.now, &mut self.fabric);
    }

    /// A packet of `SENDER`, or of another hardware address.
    fn say(&mut self, side: Side, n: u8, is_request: bool, sender: Ipv4Addr, target: Ipv4Addr) {
        match (side, is_request) {
            (Side::Ethernet, true) => self.ethernet(ArpOperation::Request, mac(n), sender, target),
            (Side::Ethernet, false) => self.ethernet(ArpOperation::Reply, mac(n), sender, target),
            (Side::InfiniBand, true) => self.infiniband(InfiniBandOperation::Request, n, sender, target),
            (Side::InfiniBand, false) => self.infiniband(InfiniBandOperation::Reply, n, sender, target),
        }
    }

    /// Announcements of `X` while no host answers.
    fn announced_later(&mut self) -> Vec<(Side, Ipv4Addr)> {
        self.pass(SILENT);
        let mut announced = Done::since(self, X).announced;
        announced.retain(|(_, ip)| *ip == X);
        announced
    }
}

/// An announcement of `X` by `n` of a side.
fn claim_of(side: Side, n: u8) -> Claim {
    match side {
        Side::Ethernet => Claim::Ethernet(EthernetArp {
            operation: ArpOperation::Request,
            sender_mac: mac(n),
            sender_ip: X,
            target_mac: MacAddress::ZERO,
            target_ip: X,
        }),
        Side::InfiniBand => {
            Claim::InfiniBand { worker: WorkerIndex(0), from: from(n), arp: Arp::request(hardware(n), X, X) }
        }
    }
}

// -- the sender

/// A world with this knowledge of `X`, as far as `SENDER` of `side` is concerned. An address that is known on
/// the sender's side is claimed by the other side as well if the gateway forwards.
fn world_of_sender(side: Side, known: SenderKnowledge, role: Role) -> World {
    let (mut w, across, ip) = (World::new(), side.other(), IpAddr::V4(X));
    w.segment.set_gateways(vec![PeerGateway {
        mac: mac(PEER),
        lid: Lid(PEER.into()),
        gid: hardware(PEER).gid,
        qpns: vec![hardware(PEER).qpn],
    }]);
    match known {
        SenderKnowledge::Own
        | SenderKnowledge::OwnAtPeer
        | SenderKnowledge::PeerGateway
        | SenderKnowledge::Unknown => {}
        SenderKnowledge::Contested => w.segment.owners.contest(w.now, ip),
        SenderKnowledge::Here => {
            w.known(side, X, SENDER, false);
            if role == Role::Forwarding {
                w.segment.owners.claim(w.now, ip, claim_of(across, BEFORE), false);
            }
        }
        SenderKnowledge::Elsewhere => w.known(side, X, BEFORE, false),
        SenderKnowledge::Across => w.known(across, X, BEFORE, false),
        SenderKnowledge::AcrossLately => {
            w.known(across, X, BEFORE, false);
            w.segment.proven_at.insert(ip, w.now);
        }
        SenderKnowledge::AcrossUnproven => {
            w.known(across, X, BEFORE, false);
            w.segment.unproven.insert(ip, false);
        }
        SenderKnowledge::ClaimedAcross => {
            w.segment.owners.claim(w.now, ip, claim_of(across, BEFORE), true);
        }
        SenderKnowledge::SoughtAcross => {
            w.segment.lookups.insert(ip, Lookup::new(w.now, side));
        }
        SenderKnowledge::Awaited => w.await_answer(side),
        SenderKnowledge::Discovered => w.discover_all(),
        SenderKnowledge::ClaimedHere => {
            w.segment.owners.claim(w.now, ip, claim_of(side, SENDER), true);
        }
    }
    w.segment.own.settings.role = role;
    w.outputs();
    w.calls();
    w
}

/// The result of a packet by the action, starting from `before`.
fn expected_of_sender(action: SenderAction, side: Side, kind: ArpKind, before: &Done, w: &World) -> Done {
    let (across, forwards) = (side.other(), w.segment.forwards());
    let serves = kind == ArpKind::Request;
    // It requests the gateway itself.
    let served = Done { is_answered: serves, ..before.clone() };
    let here = |n| {
        let mut known = before.known;
        known[side as usize] = Some(place(side, n));
        known
    };
    let proof = if before.is_claimed { HashSet::new() } else { HashSet::from([Query::all(across, X)]) };
    match action {
        SenderAction::Report => Done {
            drops: vec![DropReason::HostileArp],
            announced: vec![(side, GATEWAY)],
            own_address_claimed: 1,
            ..before.clone()
        },
        SenderAction::ReportPeer => {
            Done { drops: vec![DropReason::HostileArp], own_address_claimed: 1, ..before.clone() }
        }
        SenderAction::Drop => Done { drops: vec![DropReason::PeerGateway], ..before.clone() },
        SenderAction::Refuse => {
            Done { drops: vec![DropReason::AddressConflict], claims_dropped: 1, ..before.clone() }
        }
        SenderAction::Serve => served,
        SenderAction::Confirm => {
            // A standby has no open claims.
            let carried = usize::from(kind == ArpKind::Announcement && forwards);
            let announced = vec![(across, X); usize::from(before.is_claimed) + carried];
            let conflicts = u64::from(before.is_claimed);
            Done { announced, conflicts, is_claimed: false, ..served }
        }
        SenderAction::Doubt => {
            let old = Query::one(side, X);
            let queries =
                if forwards { HashSet::from([old, Query::all(across, X)]) } else { HashSet::from([old]) };
            Done { queries, known: here(SENDER), ..served }
        }
        SenderAction::AskOwner => {
            Done { queries: HashSet::from([Query::one(across, X)]), is_claimed: true, ..before.clone() }
        }
        SenderAction::Note => Done { is_noted: true, ..served },
        SenderAction::Contest => {
            Done { answers_withdrawn: 1, is_contested: true, known: [None; 2], ..served }
        }
        SenderAction::Refute => Done { conflicts: 1, is_claimed: false, ..served },
        SenderAction::Take => unreachable!("this action has a test of its own"),
        SenderAction::Prove | SenderAction::ProveAndAnnounce | SenderAction::ServeAndProve => {
            Done { queries: proof, is_claimed: true, ..served }
        }
    }
}

#[test]
fn the_action_for_a_sender_is_that_of_the_table() {
    let mut cells = 0;
    for (side, role) in SIDES.into_iter().flat_map(|side| ROLES.map(|role| (side, role))) {
        for known in SenderKnowledge::ALL {
            for kind in ArpKind::ALL {
                // A probe has no sender except the hardware address.
                if *kind == ArpKind::Probe && *known != SenderKnowledge::PeerGateway {
                    continue;
                }
                cells += 1;
                sender_cell(side, *known, *kind, role);
            }
        }
    }
    assert_eq!(cells, 2 * 2 * (15 * 3 + 1));
}

fn sender_cell(side: Side, known: SenderKnowledge, kind: ArpKind, role: Role) {
    let cell = format!("{side:?} {known:?} {kind:?} {role:?}");
    let mut w = world_of_sender(side, known, role);
    let is_peer = matches!(known, SenderKnowledge::OwnAtPeer | SenderKnowledge::PeerGateway);
    let n = if is_peer { PEER } else { SENDER };
    let sender = if known.is_own() { GATEWAY } else { X };
    let is = w.segment.sender_known(w.now, &w.fabric, sender.into(), place(side, n));
    assert_eq!(is, known, "{cell}: the world is not as required");
    let action = of_sender(kind, known, role == Role::Forwarding);
    let before = Done::new(&w);
    let expected =
        (action != SenderAction::Take).then(|| expected_of_sender(action, side, kind, &before, &w));
    match kind {
        ArpKind::Request => w.say(side, n, true, sender, if sender == GATEWAY { X } else { GATEWAY }),
        ArpKind::Probe => w.say(side, n, true, NONE, sender),
        ArpKind::Reply => w.say(side, n, false, sender, if sender == GATEWAY { X } else { GATEWAY }),
        ArpKind::Announcement => w.say(side, n, true, sender, sender),
    }
    let done = Done::since(&mut w, GATEWAY);
    match expected {
        Some(expected) => assert_eq!(done, expected, "{cell}: {action:?}"),
        None => assert_taken(&mut w, side, &done, &cell),
    }
    if action == SenderAction::Confirm {
        assert!(w.segment.is_fresh(w.now, &w.fabric, side, X.into()), "{cell}: it is not refreshed");
    }
    // Announcements that are forwarded once the other side has stayed silent.
    let announces = match action {
        SenderAction::ProveAndAnnounce | SenderAction::Prove => true,
        // InfiniBand hosts may know an Ethernet host at a queue pair that is gone.
        SenderAction::ServeAndProve => side == Side::Ethernet,
        SenderAction::Doubt => kind == ArpKind::Announcement && role == Role::Forwarding,
        _ => return,
    };
    let announced = w.announced_later();
    assert_eq!(announced.contains(&(side.other(), X)), announces, "{cell}: {announced:?} later");
    assert!(!announced.contains(&(side, X)), "{cell}: {announced:?} on its own side");
}

/// An answer is taken: it is proven only when the other side has been queried and stayed silent.
fn assert_taken(w: &mut World, side: Side, done: &Done, cell: &str) {
    let ip = IpAddr::V4(X);
    let is_answer = w.segment.lookups.get(&ip).is_some_and(|lookup| lookup.answer.is_some());
    assert!(is_answer || done.known[side as usize] == Some(place(side, SENDER)), "{cell}: {done:?}");
    assert!(!done.announced.contains(&(side.other(), X)), "{cell}: announced unproven");
    let is_proven =
        |w: &World| w.segment.is_proven(&w.fabric, side, ip) && !w.segment.lookups.contains_key(&ip);
    assert!(!is_proven(w), "{cell}: proven without a query");
    assert_eq!((&done.drops[..], done.known[side.other() as usize]), (&[][..], None), "{cell}");
    if !w.segment.forwards() {
        return;
    }
    let queries = |side| done.queries.contains(&Query::all(side, X));
    assert!(queries(side.other()) || w.segment.lookups.contains_key(&ip), "{cell}: {done:?}");
    w.pass(SILENT);
    let is_learned = is_proven(w) || !w.segment.lookups.contains_key(&ip);
    assert!(is_learned, "{cell}: it is not proven by silence");
}

// -- the target

fn world_of_target(side: Side, known: TargetKnowledge, role: Role) -> World {
    let (mut w, across, ip) = (World::new(), side.other(), IpAddr::V4(X));
    w.known(side, ASKER, SENDER, true);
    match known {
        TargetKnowledge::Own | TargetKnowledge::Unknown => {}
        TargetKnowledge::Disputed => {
            w.known(across, X, BEFORE, false);
            w.segment.owners.claim(w.now, ip, claim_of(side, PEER), false);
        }
        TargetKnowledge::Contested => w.segment.owners.contest(w.now, ip),
        TargetKnowledge::AcrossFresh => w.known(across, X, BEFORE, true),
        TargetKnowledge::Across => w.known(across, X, BEFORE, false),
        TargetKnowledge::AcrossUnproven => {
            w.known(across, X, BEFORE, false);
            w.segment.unproven.insert(ip, false);
        }
        TargetKnowledge::HereFresh => w.known(side, X, BEFORE, true),
        TargetKnowledge::Here => w.known(side, X, BEFORE, false),
    }
    w.segment.own.settings.role = role;
    w.outputs();
    w.calls();
    w
}

/// Queries that the action sends, and whether the requester waits.
fn expected_of_target(action: TargetAction, side: Side) -> (HashSet<Query>, bool) {
    let across = side.other();
    let queries = match action {
        TargetAction::Answer | TargetAction::Ignore => return (HashSet::new(), false),
        TargetAction::Wait => HashSet::new(),
        TargetAction::AskOwner => HashSet::from([Query::one(across, X)]),
        TargetAction::AskOwnSide => HashSet::from([Query::all(side, X)]),
        TargetAction::AskHere => HashSet::from([Query::one(side, X)]),
        // An InfiniBand host's own side is queried at the same time.
        TargetAction::LookUp if side == Side::InfiniBand => {
            HashSet::from([Query::all(across, X), Query::all(side, X)])
        }
        TargetAction::LookUp => HashSet::from([Query::all(across, X)]),
    };
    (queries, true)
}

#[test]
fn the_action_for_a_target_is_that_of_the_table() {
    let mut cells = 0;
    for (side, role) in SIDES.into_iter().flat_map(|side| ROLES.map(|role| (side, role))) {
        for known in TargetKnowledge::ALL {
            // An announcement's target is its sender.
            for kind in [ArpKind::Request, ArpKind::Probe, ArpKind::Reply] {
                cells += 1;
                target_cell(side, *known, kind, role);
            }
        }
    }
    assert_eq!(cells, 2 * 2 * 9 * 3);
}

fn target_cell(side: Side, known: TargetKnowledge, kind: ArpKind, role: Role) {
    let cell = format!("{side:?} {known:?} {kind:?} {role:?}");
    let mut w = world_of_target(side, known, role);
    let target = if known == TargetKnowledge::Own { GATEWAY } else { X };
    let is = w.segment.target_known(w.now, &w.fabric, side, target.into());
    assert_eq!(is, known, "{cell}: the world is not as required");
    let action = of_target(kind, known, role == Role::Forwarding);
    let before = Done::new(&w);
    match kind {
        ArpKind::Probe => w.say(side, SENDER, true, NONE, target),
        _ => w.say(side, SENDER, kind == ArpKind::Request, ASKER, target),
    }
    let done = Done::since(&mut w, target);
    let (queries, waits) = expected_of_target(action, side);
    let is_answered = action == TargetAction::Answer;
    assert_eq!(done, Done { queries, is_answered, ..before }, "{cell}: {action:?}");
    let is_asked = match side {
        Side::Ethernet => w.segment.ethernet_requesters.is_requested(X.into()),
        Side::InfiniBand => w.segment.infiniband_requesters.is_requested(X.into()),
    };
    assert_eq!(is_asked, waits, "{cell}: {action:?}");
    // The owner answers, and so the requester is answered.
    if action == TargetAction::AskOwner {
        w.say(side.other(), BEFORE, false, X, GATEWAY);
        assert!(Done::since(&mut w, target).is_answered, "{cell}: the owner has answered");
    }
}

// -- more than one cell

/// Two hosts of a side have an address one after the other, and the other side claims it. The owner, a third
/// one there, answers.
#[test]
fn a_third_host_of_a_side_that_answers_refuses_the_claim_of_the_other_side() {
    for side in SIDES {
        let (mut w, owner) = (World::new(), 5);
        w.known(side, X, BEFORE, true);
        w.say(side, SENDER, true, X, X);
        w.say(side.other(), PEER, true, X, X);
        assert!(w.segment.owners.is_queried(X.into()), "{side:?}: it is claimed");
        w.outputs();
        w.say(side, owner, false, X, GATEWAY);
        let dropped = Output::Drop(DropReason::AddressConflict, 1);
        assert!(w.outputs().contains(&dropped), "{side:?}: the two before come first");
        assert!(!w.segment.owners.is_queried(X.into()), "{side:?}: the claim is not refused");
        assert_eq!(w.segment.counters().conflicts, 1, "{side:?}");
    }
}

/// A gateway without a name to query in searches for an address, and a host of that side probes for it.
#[test]
fn a_probe_ends_only_a_search_without_a_sender_address() {
    for has_name in [false, true] {
        let mut w = World::new();
        if !has_name {
            w.segment.own.settings.address = None;
        }
        w.await_answer(Side::InfiniBand);
        w.say(Side::InfiniBand, SENDER, true, NONE, X);
        assert_eq!(w.fabric.is_sought(X.into()), has_name);
    }
}
