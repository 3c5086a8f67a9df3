//! Gateways on two networks that lose, delay and split, under a clock of their own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ib_wire::{Gid, Guid, Lid, Qpn};
use ipoib::net::ethernet::MacAddress;

use crate::segment::pair::message::{Body, Message};
use crate::segment::pair::{
    Event, Hello, Identity, Key, Pair, Role, SegmentId, Settings, Side, Station, Transmit,
};
use ipoib::net::probe::probe_nonce;

pub(super) const HELLO: Duration = Duration::from_millis(300);
pub(super) const KEY: Key = Key::new([7; 16]);

/// Milliseconds.
pub(super) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) struct Gateway {
    pub(super) pair: Option<Pair>,
    pub(super) priority: u8,
    pub(super) up: [bool; 2],
    /// The part of each network that it is in.
    pub(super) part: [u8; 2],
    pub(super) events: Vec<Event>,
    /// Its control core does not run: arrivals wait.
    hangs: bool,
    mail: Vec<(Side, Cargo)>,
}

impl Gateway {
    fn new(priority: u8) -> Self {
        let (up, part) = ([true; 2], [0; 2]);
        Self { pair: None, priority, up, part, events: Vec::new(), hangs: false, mail: Vec::new() }
    }

    /// Its next deadline.
    fn timer(&self) -> Option<Instant> {
        self.pair.as_ref().filter(|_| !self.hangs).map(Pair::poll_timeout)
    }
}

enum Cargo {
    Message { from: usize, bytes: Vec<u8>, sent: Instant },
    Probe(Vec<u8>),
}

pub(super) struct World {
    pub(super) now: Instant,
    began: Instant,
    pub(super) boxes: Vec<Gateway>,
    pub(super) loss: u32,
    pub(super) delay: Duration,
    /// A device that carries broadcasts across.
    pub(super) bridge: bool,
    key: Option<Key>,
    hello: Duration,
    flying: BTreeMap<(Instant, u64), (usize, Side, Cargo)>,
    order: u64,
    random: u64,
    instances: u64,
    /// Since when two forward, and which of them has heard the other do so.
    pairs: BTreeMap<(usize, usize), (Instant, [bool; 2])>,
    /// Since when more than one forwards.
    pub(super) doubled: Option<Instant>,
    pub(super) probes: usize,
}

impl World {
    pub(super) fn new(priorities: &[u8], keyed: bool) -> Self {
        Self::with_hello(priorities, keyed, HELLO)
    }

    pub(super) fn with_hello(priorities: &[u8], keyed: bool, hello: Duration) -> Self {
        let now = Instant::now();
        let boxes = priorities.iter().copied().map(Gateway::new).collect();
        let mut world = Self {
            now,
            began: now,
            boxes,
            loss: 0,
            delay: ms(1),
            bridge: false,
            key: keyed.then_some(KEY),
            hello,
            flying: BTreeMap::new(),
            order: 0,
            random: 1,
            instances: 0,
            pairs: BTreeMap::new(),
            doubled: None,
            probes: 0,
        };
        for index in 0..priorities.len() {
            world.start(index);
        }
        world
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below.max(1)
    }

    pub(super) fn station(index: usize) -> Station {
        let n = index as u8 + 1;
        let qpns = vec![Qpn::new(64), Qpn::new(65)];
        Station {
            mac: MacAddress([2, 0, 0, 0, 0, n]),
            lid: Lid(n.into()),
            gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(n.into())),
            qpns,
        }
    }

    pub(super) fn start(&mut self, index: usize) {
        self.instances += 1;
        self.start_as(index, self.instances);
    }

    /// A reload takes the segment away and makes it again, with the instance that the gateway has drawn.
    pub(super) fn remake(&mut self, index: usize) {
        let instance = self.boxes[index].pair.as_ref().map_or(0, |pair| pair.identity().instance);
        self.start_as(index, instance);
    }

    fn start_as(&mut self, index: usize, instance: u64) {
        let own = Identity { guid: Guid(index as u64 + 1), instance };
        let (priority, up) = (self.boxes[index].priority, self.boxes[index].up);
        let settings = Settings { priority, hello: self.hello, segment: SegmentId(1), key: self.key };
        let pair = Pair::new(self.now, settings, own, Self::station(index));
        let mut pair = pair.numbered_from(self.now - self.began);
        for side in Side::BOTH {
            pair.handle_side(self.now, side, up[side as usize]);
        }
        self.boxes[index].pair = Some(pair);
        self.drain(index);
    }

    pub(super) fn crash(&mut self, index: usize) {
        self.boxes[index].pair = None;
        self.note_roles();
    }

    /// Its control core stops running, or runs again and handles all arrivals of the meantime.
    pub(super) fn hang(&mut self, index: usize, hangs: bool) {
        self.boxes[index].hangs = hangs;
        if !hangs {
            for (side, cargo) in std::mem::take(&mut self.boxes[index].mail) {
                self.arrive(index, side, cargo);
            }
            let now = self.now;
            self.with(index, |pair| pair.handle_timeout(now));
        }
    }

    pub(super) fn set_side(&mut self, index: usize, side: Side, up: bool) {
        self.boxes[index].up[side as usize] = up;
        let now = self.now;
        self.with(index, |pair| pair.handle_side(now, side, up));
    }

    pub(super) fn with(&mut self, index: usize, act: impl FnOnce(&mut Pair)) {
        if let Some(pair) = &mut self.boxes[index].pair {
            act(pair);
        }
        self.drain(index);
    }

    pub(super) fn role(&self, index: usize) -> Option<Role> {
        self.boxes[index].pair.as_ref().map(Pair::role)
    }

    pub(super) fn forwarders(&self) -> Vec<usize> {
        (0..self.boxes.len()).filter(|i| self.role(*i) == Some(Role::Forwarding)).collect()
    }

    /// The gateways whose workers forward: their leases hold.
    pub(super) fn at_work(&self) -> Vec<usize> {
        let holds = |i: &usize| {
            let pair = self.boxes[*i].pair.as_ref();
            pair.and_then(Pair::lease_end).is_none_or(|end| self.now < end)
        };
        self.forwarders().into_iter().filter(holds).collect()
    }

    /// Sends the transmits of a gateway, and keeps its events.
    fn drain(&mut self, index: usize) {
        let Some(pair) = &mut self.boxes[index].pair else { return };
        let sent: Vec<Transmit> = std::iter::from_fn(|| pair.poll_transmit()).collect();
        let events: Vec<Event> = std::iter::from_fn(|| pair.poll_event()).collect();
        self.boxes[index].events.extend(events);
        self.note_roles();
        for transmit in sent {
            let (side, bytes, is_probe) = match transmit {
                Transmit::Message(side, bytes) => (side, bytes, false),
                Transmit::Probe(side, packet) => (side, packet.to_vec(), true),
            };
            self.probes += usize::from(is_probe);
            let cargo = || match is_probe {
                true => Cargo::Probe(bytes.clone()),
                false => Cargo::Message { from: index, bytes: bytes.clone(), sent: self.now },
            };
            let cargos: Vec<_> = (0..self.boxes.len()).map(|_| cargo()).collect();
            for (to, cargo) in cargos.into_iter().enumerate() {
                if to != index {
                    self.fly(index, to, side, cargo);
                }
            }
            if is_probe && self.bridge {
                for to in 0..self.boxes.len() {
                    self.fly(to, to, side.other(), Cargo::Probe(bytes.clone()));
                }
            }
        }
    }

    fn fly(&mut self, from: usize, to: usize, side: Side, cargo: Cargo) {
        let s = side as usize;
        if self.boxes[from].part[s] != self.boxes[to].part[s] || self.random(100) < self.loss.into() {
            return;
        }
        let delay =
            self.delay / 2 + Duration::from_micros(self.random(self.delay.as_micros() as u64 / 2 + 1));
        self.order += 1;
        self.flying.insert((self.now + delay, self.order), (to, side, cargo));
    }

    /// Notes which two forward at the same time.
    fn note_roles(&mut self) {
        let forwarders = self.forwarders();
        self.doubled = if forwarders.len() > 1 { self.doubled.or(Some(self.now)) } else { None };
        self.pairs.retain(|(a, b), _| forwarders.contains(a) && forwarders.contains(b));
        for (n, a) in forwarders.iter().enumerate() {
            for b in &forwarders[n + 1..] {
                self.pairs.entry((*a, *b)).or_insert((self.now, [false; 2]));
            }
        }
    }

    fn arrive(&mut self, to: usize, side: Side, cargo: Cargo) {
        if !self.boxes[to].up[side as usize] || self.boxes[to].pair.is_none() {
            return;
        }
        if self.boxes[to].hangs {
            return self.boxes[to].mail.push((side, cargo));
        }
        let now = self.now;
        match cargo {
            Cargo::Probe(packet) => {
                let nonce = probe_nonce(&packet).unwrap();
                self.with(to, |pair| pair.handle_probe(now, side, nonce));
            }
            Cargo::Message { from, bytes, sent } => {
                self.with(to, |pair| pair.handle_message(now, side, &bytes).unwrap());
                // An echo is no message.
                let Ok(message) = Message::parse(&bytes, self.key) else { return };
                let Some(own) = self.boxes[to].pair.as_ref().map(Pair::identity) else { return };
                // With a key only hellos that name their receiver count.
                let counts = |h: &Hello| self.key.is_none() || !h.hears(own).is_none();
                let says = matches!(message.body, Body::Hello(h) if h.role == Role::Forwarding && counts(&h));
                let names = (from.min(to), from.max(to));
                if let Some((since, heard)) = self.pairs.get_mut(&names)
                    && says
                    && sent >= *since
                {
                    heard[usize::from(to == names.1)] = true;
                    assert_ne!(*heard, [true; 2], "both forward and know it of each other");
                }
            }
        }
    }

    /// Lets time pass, step by step; `look` sees the world after each.
    pub(super) fn run_looking(&mut self, time: Duration, mut look: impl FnMut(&Self)) {
        let end = self.now + time;
        let mut steps = 0;
        loop {
            let timers = self.boxes.iter().filter_map(Gateway::timer).min();
            let flight = self.flying.first_key_value().map(|(key, _)| key.0);
            let Some(next) = timers.into_iter().chain(flight).min().filter(|next| *next <= end) else {
                break;
            };
            steps += 1;
            assert!(steps < 200_000, "it spins");
            self.now = self.now.max(next);
            while let Some(entry) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, side, cargo) = entry.remove();
                self.arrive(to, side, cargo);
            }
            for index in 0..self.boxes.len() {
                let now = self.now;
                if self.boxes[index].timer().is_some_and(|due| due <= now) {
                    self.with(index, |pair| pair.handle_timeout(now));
                }
            }
            look(self);
        }
        self.now = end;
    }

    pub(super) fn run(&mut self, time: Duration) {
        self.run_looking(time, |_| ());
    }

    /// Runs until a gateway forwards.
    pub(super) fn until_forwards(&mut self, index: usize, at_most: Duration) -> Duration {
        let begin = self.now;
        while self.role(index) != Some(Role::Forwarding) {
            assert!(self.now < begin + at_most, "{index} does not forward within {at_most:?}");
            self.run(ms(10));
        }
        self.now - begin
    }
}
