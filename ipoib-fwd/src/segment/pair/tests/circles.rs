//! Two and three gateways between two networks, believing each other or not, in any course of cuts, deaths and replays: no packet to a group
//! passes a gateway twice, and nobody on one side alone has a gateway blocked. Two that join the same networks forward at the same time
//! only for a moment, where networks have met again; but for that moment no packet to one host passes a gateway twice, whatever the
//! tables say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_wire::Guid;
use proptest::prelude::*;

use super::world::{HELLO, World, ms};
use crate::segment::pair::rivals::PROOF;
use crate::segment::pair::storm::{PERIOD, SharedStorm, StormGuard};
use crate::segment::pair::{Identity, Key, Pair, Role, SegmentId, Settings, Side, Transmit};
use ipoib::net::probe::{Nonce, probe_nonce, probe_packet};
use std::net::Ipv4Addr;

/// Where the version is in a hello.
const VERSION_AT: usize = 4;
/// Where the side is that a hello was sent on.
const SIDE_AT: usize = 40;
/// The longest way of a frame.
const DELAY: u64 = 3;
/// Two that share both networks have forwarded for so long at most: a hello makes them probe, and with a key two are needed to be believed.
const TOGETHER: Duration = ms(2 * 300 + 100 + 10 * DELAY);

/// How a gateway is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Setup {
    priority: u8,
    segment: SegmentId,
    key: Option<Key>,
    version: u8,
}

/// Ways to configure a gateway of the same two networks: alike, without an address, with another subnet, key, version or partition.
const SETUPS: usize = 6;

fn setup(kind: usize, priority: u8, keyed: bool) -> Setup {
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
fn believe(a: Setup, b: Setup) -> bool {
    a.key == b.key && a.version == b.version && a.segment.is_same_partition(b.segment)
}

struct Gateway {
    pair: Option<Pair>,
    guard: StormGuard,
    storm: SharedStorm,
    setup: Setup,
    part: [u8; 2],
    up: [bool; 2],
}

#[derive(Clone)]
enum Cargo {
    Message {
        version: u8,
        bytes: Vec<u8>,
    },
    Probe(Vec<u8>),
    /// A packet to all, and the gateway that sent it on; a host, if none.
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

struct Nets {
    now: Instant,
    gateways: Vec<Gateway>,
    flying: BTreeMap<(Instant, u64), (usize, Side, Cargo)>,
    order: u64,
    random: u64,
    instances: u64,
    groups: u64,
    /// Which gateway has forwarded which packet to all.
    passed: BTreeSet<(usize, u64)>,
    /// Which gateway has forwarded which packet to one host.
    sent_on: BTreeSet<(usize, u64)>,
    /// Since when two forward that share both networks.
    together: BTreeMap<(usize, usize), Instant>,
    /// When that was so last.
    together_at: Option<Instant>,
    /// What somebody on one side has heard there.
    liar: Side,
    recorded: Vec<(u8, Vec<u8>)>,
    blocked: bool,
}

impl Nets {
    fn new(setups: &[Setup], liar: Side, random: u64) -> Self {
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

    fn role(&self, n: usize) -> Option<Role> {
        self.gateways[n].pair.as_ref().map(Pair::role)
    }

    fn forwarders(&self) -> Vec<usize> {
        (0..self.gateways.len()).filter(|n| self.role(*n) == Some(Role::Forwarding)).collect()
    }

    /// True if it forwards packets to one host.
    fn carries(&self, n: usize) -> bool {
        self.gateways[n].pair.as_ref().is_some_and(|p| p.role() == Role::Forwarding || p.hands_over())
    }

    fn share(&self, a: usize, b: usize) -> bool {
        self.gateways[a].part == self.gateways[b].part
    }

    /// What a gateway wants to send flies.
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

    fn broadcast(&mut self, side: Side, part: u8, from: Option<usize>, cargo: &Cargo) {
        for to in 0..self.gateways.len() {
            if from != Some(to) && self.gateways[to].part[side as usize] == part {
                let delay = Duration::from_micros(500 + self.random(DELAY * 1000));
                self.order += 1;
                self.flying.insert((self.now + delay, self.order), (to, side, cargo.clone()));
            }
        }
    }

    /// A host sends a packet to one that is gone, to each gateway in turn. Every gateway believes the worst: that this host is at another
    /// gateway's address on the other side, unless it knows that for a gateway's.
    fn host_sends_to_one(&mut self) {
        self.groups += 1;
        let to = self.random(self.gateways.len() as u64) as usize;
        let side = Side::BOTH[self.random(2) as usize];
        self.order += 1;
        let cargo = Cargo::Unicast { number: self.groups, to };
        self.flying.insert((self.now + ms(1), self.order), (to, side, cargo));
    }

    /// Sends a packet to one host on, as far as a gateway's beliefs may be wrong.
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
                    // To another one of the same version it is that of the program.
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
    }

    fn run(&mut self, time: Duration) {
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

    /// Somebody on one side repeats what it has heard there, as it was or with another side in it; the tag is then wrong, if there is one.
    fn replay(&mut self, which: u64, flip: bool) {
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
enum Step {
    Wait(u64),
    Part(usize, usize, u8),
    Side(usize, usize, bool),
    Crash(usize),
    Start(usize),
    Reload(usize, usize),
    Replay(u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let (gateway, side) = (0usize..3, 0usize..2);
    prop_oneof![
        5 => (1u64..3000).prop_map(Step::Wait),
        4 => (gateway.clone(), side.clone(), 0u8..2).prop_map(|(g, s, p)| Step::Part(g, s, p)),
        1 => (gateway.clone(), side, any::<bool>()).prop_map(|(g, s, up)| Step::Side(g, s, up)),
        1 => gateway.clone().prop_map(Step::Crash),
        2 => gateway.clone().prop_map(Step::Start),
        1 => (gateway, 0usize..3).prop_map(|(g, kind)| Step::Reload(g, kind)),
        2 => (any::<u64>(), any::<bool>()).prop_map(|(n, flip)| Step::Replay(n, flip)),
    ]
}

fn act(nets: &mut Nets, step: Step) {
    match step {
        Step::Wait(n) => nets.run(ms(n)),
        Step::Part(g, s, part) if g < nets.gateways.len() => nets.gateways[g].part[s] = part,
        Step::Side(g, s, up) if g < nets.gateways.len() => {
            nets.gateways[g].up[s] = up;
            let now = nets.now;
            nets.with(g, |pair| pair.handle_side(now, Side::BOTH[s], up));
        }
        Step::Crash(g) if g < nets.gateways.len() => nets.gateways[g].pair = None,
        Step::Start(g) if nets.gateways.get(g).is_some_and(|g| g.pair.is_none()) => nets.start(g),
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

/// Networks that are whole, and gateways that are all there.
fn mend(nets: &mut Nets) {
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

#[test]
fn two_of_any_configurations_never_forward_together_and_who_is_left_takes_over() {
    for a in 0..SETUPS {
        for b in 0..SETUPS {
            for (priorities, keyed) in [([100, 100], false), ([100, 200], true), ([200, 100], true)] {
                let setups = [setup(a, priorities[0], keyed), setup(b, priorities[1], keyed)];
                let mut nets = Nets::new(&setups, Side::Ethernet, 1);
                nets.run(Duration::from_secs(15));
                let forwarders = nets.forwarders();
                assert_eq!(forwarders.len(), 1, "{setups:?}");
                let other = 1 - forwarders[0];
                let role = if believe(setups[0], setups[1]) { Role::Standby } else { Role::Blocked };
                assert_eq!(nets.role(other), Some(role), "{setups:?}");
                nets.gateways[forwarders[0]].pair = None;
                let pair = believe(setups[0], setups[1]);
                nets.run(if pair { ms(1100) } else { PROOF + HELLO * 4 + ms(500) });
                assert_eq!(nets.forwarders(), [other], "{setups:?}");
            }
        }
    }
}

/// All courses of a few steps: two gateways that are started at the same or another moment, and a network that is cut and joined.
#[test]
fn no_short_course_of_cuts_and_deaths_lets_a_packet_pass_twice() {
    let steps = [
        Step::Part(0, 0, 1),
        Step::Part(0, 0, 0),
        Step::Part(0, 1, 1),
        Step::Part(0, 1, 0),
        Step::Crash(1),
        Step::Start(1),
        Step::Reload(1, 2),
    ];
    let depth = 3;
    for (a, b) in [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)] {
        for course in 0..steps.len().pow(depth) {
            let setups = [setup(a, 100, true), setup(b, 200, true)];
            let mut nets = Nets::new(&setups, Side::InfiniBand, course as u64);
            nets.run(ms(2500));
            let mut rest = course;
            for _ in 0..depth {
                act(&mut nets, steps[rest % steps.len()]);
                rest /= steps.len();
                nets.run(ms(1300));
            }
            mend(&mut nets);
            nets.run(Duration::from_secs(14));
            assert_eq!(nets.forwarders().len(), 1, "{setups:?}, course {course}");
        }
    }
}

/// A liar on one side alone repeats and changes what it hears. With a key nothing comes of it; without one no gateway is blocked.
#[test]
fn nobody_on_one_side_has_a_gateway_blocked() {
    for (keyed, liar) in [(false, Side::Ethernet), (false, Side::InfiniBand), (true, Side::Ethernet)] {
        for kinds in [&[0][..], &[0, 0], &[0, 1]] {
            let setups: Vec<_> = kinds.iter().map(|kind| setup(*kind, 100, keyed)).collect();
            let mut nets = Nets::new(&setups, liar, 5);
            for n in 0..300 {
                nets.run(ms(40));
                nets.replay(n * 7919, n % 2 == 0);
                nets.replay(nets.recorded.len() as u64 - 1, n % 3 == 0);
            }
            assert!(!nets.blocked, "{setups:?}");
            assert!(!keyed || nets.forwarders().len() == 1, "{setups:?}");
        }
    }
}

/// Two that do not believe each other, and somebody on one side who changes each echo: one of them goes on.
#[test]
fn who_changes_echoes_on_one_side_leaves_one_that_forwards() {
    for liar in Side::BOTH {
        let mut nets = Nets::new(&[setup(0, 100, true), setup(3, 200, true)], liar, 5);
        for _ in 0..600 {
            nets.run(ms(20));
            let echoes: Vec<_> =
                nets.recorded.drain(..).filter(|(_, bytes)| bytes.starts_with(b"IPGE")).collect();
            for (version, mut bytes) in echoes {
                // Another gateway of the best rank.
                (bytes[20], bytes[32]) = (bytes[20] ^ 1, 255);
                nets.broadcast(liar, 0, None, &Cargo::Message { version, bytes });
            }
        }
        assert_eq!(nets.forwarders().len(), 1, "{liar:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_course_lets_a_packet_pass_twice_and_in_the_end_one_forwards(
        kinds in prop::collection::vec((0..SETUPS, prop_oneof![Just(100u8), Just(200)]), 2..4),
        keyed: bool,
        ethernet: bool,
        steps in prop::collection::vec(step(), 0..60),
        seed: u64,
    ) {
        let setups: Vec<_> = kinds.iter().map(|(kind, priority)| setup(*kind, *priority, keyed)).collect();
        let liar = if ethernet { Side::Ethernet } else { Side::InfiniBand };
        let mut nets = Nets::new(&setups, liar, seed);
        for step in steps {
            act(&mut nets, step);
        }
        mend(&mut nets);
        nets.run(Duration::from_secs(16));
        prop_assert_eq!(nets.forwarders().len(), 1);
    }
}
