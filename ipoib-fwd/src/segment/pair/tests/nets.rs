//! Model of two and three gateways between two networks, under a clock of its own. Each gateway has a
//! configuration, networks are split and joined, and a station on one side repeats what it hears there. The
//! model panics when a packet passes a gateway twice.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ib_wire::Guid;

use super::world::{HELLO, World, ms};
use crate::segment::pair::storm::{PERIOD, SharedStorm, StormGuard};
use crate::segment::pair::{Identity, Key, Pair, Role, SegmentId, Settings, Side, Transmit};
use ipoib::net::probe::{Nonce, probe_nonce, probe_packet};

/// Offset of the version in a hello.
const VERSION_AT: usize = 4;
/// Offset of the side in a hello.
const SIDE_AT: usize = 40;
/// The longest transit time of a frame.
const DELAY: u64 = 3;
/// Maximum time for which two that share both networks have forwarded: a hello makes them probe, and with a
/// key two are needed to be believed.
const TOGETHER: Duration = ms(2 * 300 + 100 + 10 * DELAY);

/// How long a side is down in a short outage.
const BLINK: Duration = ms(50);

/// How a gateway is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Setup {
    priority: u8,
    pub(super) segment: SegmentId,
    key: Option<Key>,
    version: u8,
}

/// Configurations of a gateway of the same two networks: alike, without an address, with another subnet, key,
/// version or partition.
pub(super) const SETUPS: usize = 6;

pub(super) fn setup(kind: usize, priority: u8, keyed: bool) -> Setup {
    let subnet = |third| Some((Ipv4Addr::new(10, third, 0, 1), 16));
    let plain = Setup {
        priority,
        segment: SegmentId::of(0x8001, subnet(77)),
        key: keyed.then_some(Key::new([7; 16])),
        version: 1,
    };
    match kind {
        0 => plain,
        1 => Setup { segment: SegmentId::of(0x8001, None), ..plain },
        2 => Setup { segment: SegmentId::of(0x8001, subnet(78)), ..plain },
        3 => Setup { key: Some(Key::new([8; 16])), ..plain },
        4 => Setup { version: 9, ..plain },
        _ => Setup { segment: SegmentId::of(0x8002, subnet(77)), ..plain },
    }
}

/// True if two gateways with these configurations are a pair.
pub(super) fn believe(a: Setup, b: Setup) -> bool {
    a.key == b.key && a.version == b.version && a.segment.is_same_partition(b.segment)
}

pub(super) struct Gateway {
    pub(super) pair: Option<Pair>,
    guard: StormGuard,
    storm: SharedStorm,
    pub(super) setup: Setup,
    pub(super) part: [u8; 2],
    up: [bool; 2],
}

#[derive(Clone)]
pub(super) enum Cargo {
    Message {
        version: u8,
        bytes: Vec<u8>,
    },
    Probe(Vec<u8>),
    /// A packet to all, and the gateway that forwarded it; a host, if none.
    Group {
        number: u64,
        from: Option<usize>,
    },
    /// A packet to one host that is gone, to this gateway's address.
    Unicast {
        number: u64,
        to: usize,
    },
}

pub(super) struct Nets {
    now: Instant,
    pub(super) gateways: Vec<Gateway>,
    flying: BTreeMap<(Instant, u64), (usize, Side, Cargo)>,
    order: u64,
    random: u64,
    instances: u64,
    groups: u64,
    /// The broadcast packets that each gateway has forwarded.
    passed: BTreeSet<(usize, u64)>,
    /// The unicast packets that each gateway has forwarded.
    sent_on: BTreeSet<(usize, u64)>,
    /// Since when two forward that share both networks.
    together: BTreeMap<(usize, usize), Instant>,
    /// When that was the case last.
    together_at: Option<Instant>,
    /// The messages that a station on one side has heard there.
    liar: Side,
    pub(super) recorded: Vec<(u8, Vec<u8>)>,
    pub(super) blocked: bool,
    /// The states of networks, sides and roles over time: 8 bits for each gateway.
    pub(super) states: HashSet<u64>,
}

impl Nets {
    pub(super) fn new(setups: &[Setup], liar: Side, random: u64) -> Self {
        let now = Instant::now();
        let gateways = setups.iter().enumerate().map(|(n, setup)| Gateway {
            pair: None,
            guard: StormGuard::new(n as u64),
            storm: SharedStorm::default(),
            setup: *setup,
            part: [0; 2],
            up: [true; 2],
        });
        let mut nets = Self {
            now,
            gateways: gateways.collect(),
            flying: BTreeMap::new(),
            order: 0,
            random,
            instances: 0,
            groups: 0,
            passed: BTreeSet::new(),
            sent_on: BTreeSet::new(),
            together: BTreeMap::new(),
            together_at: None,
            liar,
            recorded: Vec::new(),
            blocked: false,
            states: HashSet::new(),
        };
        (0..setups.len()).for_each(|n| nets.start(n));
        nets
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below.max(1)
    }

    fn start(&mut self, n: usize) {
        self.instances += 1;
        let Gateway { setup, up, .. } = self.gateways[n];
        let own = Identity { guid: Guid(n as u64 + 1), instance: self.instances };
        let Setup { priority, segment, key, .. } = setup;
        let settings = Settings { priority, hello: HELLO, segment, key };
        let mut pair = Pair::new(self.now, settings, own, World::station(n));
        Side::BOTH.into_iter().for_each(|side| pair.handle_side(self.now, side, up[side as usize]));
        self.gateways[n].pair = Some(pair);
        self.settle(n);
    }

    fn with(&mut self, n: usize, act: impl FnOnce(&mut Pair)) {
        if let Some(pair) = &mut self.gateways[n].pair {
            act(pair);
        }
        self.settle(n);
    }

    pub(super) fn role(&self, n: usize) -> Option<Role> {
        self.gateways[n].pair.as_ref().map(Pair::role)
    }

    pub(super) fn forwarders(&self) -> Vec<usize> {
        (0..self.gateways.len()).filter(|n| self.role(*n) == Some(Role::Forwarding)).collect()
    }

    /// True if it forwards packets to one host.
    fn carries(&self, n: usize) -> bool {
        self.gateways[n].pair.as_ref().is_some_and(|p| p.role() == Role::Forwarding || p.hands_over())
    }

    fn share(&self, a: usize, b: usize) -> bool {
        self.gateways[a].part == self.gateways[b].part
    }

    /// Sends the transmits of a gateway.
    fn settle(&mut self, n: usize) {
        let Some(pair) = &mut self.gateways[n].pair else { return };
        let sent: Vec<Transmit> = std::iter::from_fn(|| pair.poll_transmit()).collect();
        while pair.poll_event().is_some() {}
        self.blocked |= pair.role() == Role::Blocked;
        let version = self.gateways[n].setup.version;
        for transmit in sent {
            let (side, cargo) = match transmit {
                Transmit::Message(side, mut bytes) => {
                    if bytes.starts_with(b"IPGW") {
                        bytes[VERSION_AT] = version;
                    }
                    (side, Cargo::Message { version, bytes })
                }
                Transmit::Probe(side, packet) => (side, Cargo::Probe(packet.to_vec())),
            };
            if let (true, Cargo::Message { version, bytes }) = (side == self.liar, &cargo) {
                self.recorded.push((*version, bytes.clone()));
            }
            let part = self.gateways[n].part[side as usize];
            self.broadcast(side, part, Some(n), &cargo);
        }
        self.note_roles();
    }

    pub(super) fn broadcast(&mut self, side: Side, part: u8, from: Option<usize>, cargo: &Cargo) {
        for to in 0..self.gateways.len() {
            if from != Some(to) && self.gateways[to].part[side as usize] == part {
                let delay = Duration::from_micros(500 + self.random(DELAY * 1000));
                self.order += 1;
                self.flying.insert((self.now + delay, self.order), (to, side, cargo.clone()));
            }
        }
    }

    /// A host sends a packet to one that is gone, to each gateway in turn. Every gateway assumes the worst:
    /// that this host is at another gateway's address on the other side, unless it knows that address as a
    /// gateway's.
    fn host_sends_to_one(&mut self) {
        self.groups += 1;
        let to = self.random(self.gateways.len() as u64) as usize;
        let side = Side::BOTH[self.random(2) as usize];
        self.order += 1;
        let cargo = Cargo::Unicast { number: self.groups, to };
        self.flying.insert((self.now + ms(1), self.order), (to, side, cargo));
    }

    /// Forwards a unicast packet, as far as a gateway's tables may be wrong.
    fn send_on(&mut self, from: usize, side: Side, number: u64) {
        let gateway = &self.gateways[from];
        let Some(pair) = gateway.pair.as_ref().filter(|_| gateway.up == [true; 2]) else { return };
        if !self.carries(from) {
            return;
        }
        let known: Vec<_> = pair.stations(self.now).collect();
        if !self.sent_on.insert((from, number)) {
            let lately = self.together_at.is_some_and(|at| self.now <= at + ms(2 * DELAY));
            assert!(lately, "{number} passes {from} twice, by {:?}", self.roles());
            return;
        }
        let s = side.other() as usize;
        for to in 0..self.gateways.len() {
            let is_there = to != from && self.gateways[to].part[s] == self.gateways[from].part[s];
            if is_there && !known.contains(&World::station(to)) {
                let delay = Duration::from_micros(500 + self.random(DELAY * 1000));
                self.order += 1;
                let cargo = Cargo::Unicast { number, to };
                self.flying.insert((self.now + delay, self.order), (to, side.other(), cargo));
            }
        }
    }

    fn roles(&self) -> Vec<Option<Role>> {
        (0..self.gateways.len()).map(|n| self.role(n)).collect()
    }

    /// A host sends a packet to all.
    fn host_sends(&mut self) {
        self.groups += 1;
        let (side, part) = (Side::BOTH[self.random(2) as usize], self.random(2) as u8);
        let cargo = Cargo::Group { number: self.groups, from: None };
        self.broadcast(side, part, None, &cargo);
    }

    fn arrive(&mut self, to: usize, side: Side, cargo: Cargo) {
        let now = self.now;
        let gateway = &mut self.gateways[to];
        let Some(pair) = gateway.pair.as_mut().filter(|_| gateway.up[side as usize]) else { return };
        match cargo {
            Cargo::Probe(packet) => pair.handle_probe(now, side, probe_nonce(&packet).unwrap()),
            Cargo::Message { version, mut bytes } => {
                if bytes.starts_with(b"IPGW") {
                    // For another one of the same version it is that of the program.
                    bytes[VERSION_AT] = if version == gateway.setup.version { 1 } else { 77 };
                }
                let _ = pair.handle_message(now, side, &bytes);
            }
            Cargo::Unicast { number, to: gateway } => {
                if gateway == to {
                    self.send_on(to, side, number);
                }
                return;
            }
            Cargo::Group { number, from } => {
                let origin = from.map_or(1000 + number, |n| n as u64) | (side as u64) << 32;
                let packet = probe_packet(Nonce(number));
                let known = from.is_some_and(|n| pair.stations(now).any(|s| s == World::station(n)));
                if pair.role() == Role::Forwarding
                    && gateway.up == [true; 2]
                    && !known
                    && gateway.guard.admits(&gateway.storm, 0, &packet, false, origin)
                {
                    assert!(self.passed.insert((to, number)), "{number} passes {to} twice");
                    let part = gateway.part[side.other() as usize];
                    let cargo = Cargo::Group { number, from: Some(to) };
                    return self.broadcast(side.other(), part, Some(to), &cargo);
                }
            }
        }
        self.settle(to);
    }

    /// Two that share both networks and can hear each other do not forward for long.
    fn note_roles(&mut self) {
        let carry: Vec<usize> = (0..self.gateways.len()).filter(|n| self.carries(*n)).collect();
        let mut now_together = BTreeMap::new();
        for (i, a) in carry.iter().enumerate() {
            for b in carry.iter().skip(i + 1).filter(|b| self.share(*a, **b)) {
                // In a pair one hands over to the other, and both know each other's addresses.
                let forward = [*a, *b].iter().all(|n| self.role(*n) == Some(Role::Forwarding));
                if !forward && believe(self.gateways[*a].setup, self.gateways[*b].setup) {
                    continue;
                }
                let since = self.together.get(&(*a, *b)).copied().unwrap_or(self.now);
                assert!(self.now - since <= TOGETHER, "{a} and {b} forward for {:?}", self.now - since);
                now_together.insert((*a, *b), since);
            }
        }
        if !now_together.is_empty() {
            self.together_at = Some(self.now);
        }
        self.together = now_together;
        let bits = |n: usize, gateway: &Gateway| {
            let flags = [gateway.part.map(|part| part == 1), gateway.up];
            let flags = flags.into_iter().flatten().fold(0, |bits, flag| bits << 1 | u64::from(flag));
            flags << 4 | self.role(n).map_or(15, |role| role as u64)
        };
        let states = self.gateways.iter().enumerate().map(|(n, gateway)| bits(n, gateway));
        let state = states.fold(0, |all, bits| all << 8 | bits);
        self.states.insert(state);
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut next_packet = self.now;
        let mut next_period = self.now + PERIOD;
        loop {
            let timers = self.gateways.iter().filter_map(|g| g.pair.as_ref().map(Pair::poll_timeout)).min();
            let flight = self.flying.first_key_value().map(|(key, _)| key.0);
            let events = timers.into_iter().chain(flight).chain([next_packet, next_period]);
            let Some(next) = events.min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            if self.now >= next_period {
                next_period = self.now + PERIOD;
                self.gateways.iter().for_each(|gateway| gateway.storm.begin_period());
            }
            if self.now >= next_packet {
                next_packet = self.now + ms(50);
                self.host_sends();
                self.host_sends_to_one();
            }
            while let Some(entry) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, side, cargo) = entry.remove();
                self.arrive(to, side, cargo);
            }
            for n in 0..self.gateways.len() {
                let now = self.now;
                if self.gateways[n].pair.as_ref().is_some_and(|p| p.poll_timeout() <= now) {
                    self.with(n, |pair| pair.handle_timeout(now));
                }
            }
            self.note_roles();
        }
        self.now = end;
    }

    /// A station on one side repeats what it has heard there, unchanged or with another side in it; the tag
    /// is then wrong, if there is one.
    pub(super) fn replay(&mut self, which: u64, flip: bool) {
        let Some((version, mut bytes)) =
            self.recorded.get(which as usize % self.recorded.len().max(1)).cloned()
        else {
            return;
        };
        if flip && bytes.starts_with(b"IPGW") {
            bytes[SIDE_AT] ^= 1;
        }
        let cargo = Cargo::Message { version, bytes };
        self.broadcast(self.liar, 0, None, &cargo);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Wait(u64),
    Part(usize, usize, u8),
    Side(usize, usize, bool),
    /// A side is down for a moment.
    Blink(usize, usize),
    Crash(usize),
    Start(usize),
    /// The gateway exits without a message and starts with another configuration.
    Restart(usize, Setup),
    Reload(usize, usize),
    Replay(u64, bool),
}

pub(super) fn act(nets: &mut Nets, step: Step) {
    match step {
        Step::Wait(n) => nets.run(ms(n)),
        Step::Part(g, s, part) if g < nets.gateways.len() => nets.gateways[g].part[s] = part,
        Step::Side(g, s, up) if g < nets.gateways.len() => {
            nets.gateways[g].up[s] = up;
            let now = nets.now;
            nets.with(g, |pair| pair.handle_side(now, Side::BOTH[s], up));
        }
        Step::Blink(g, s) if g < nets.gateways.len() && nets.gateways[g].up[s] => {
            act(nets, Step::Side(g, s, false));
            nets.run(BLINK);
            act(nets, Step::Side(g, s, true));
        }
        Step::Crash(g) if g < nets.gateways.len() => nets.gateways[g].pair = None,
        Step::Start(g) if nets.gateways.get(g).is_some_and(|g| g.pair.is_none()) => nets.start(g),
        Step::Restart(g, setup) if g < nets.gateways.len() => {
            let priority = nets.gateways[g].setup.priority;
            nets.gateways[g].setup = Setup { priority, ..setup };
            nets.start(g);
        }
        // The subnets of the file are others.
        Step::Reload(g, kind) if g < nets.gateways.len() => {
            let old = nets.gateways[g].setup;
            let segment = setup(kind, 0, false).segment;
            if segment.is_same_partition(old.segment) {
                nets.gateways[g].setup.segment = segment;
                nets.with(g, |pair| pair.set_segment(segment));
            }
        }
        Step::Replay(which, flip) => nets.replay(which, flip),
        _ => {}
    }
    nets.note_roles();
}

/// Joins the networks, and makes all gateways present.
pub(super) fn mend(nets: &mut Nets) {
    for n in 0..nets.gateways.len() {
        nets.gateways[n].part = [0; 2];
        for side in Side::BOTH {
            nets.gateways[n].up[side as usize] = true;
            let now = nets.now;
            nets.with(n, |pair| pair.handle_side(now, side, true));
        }
        if nets.gateways[n].pair.is_none() {
            nets.start(n);
        }
    }
}
