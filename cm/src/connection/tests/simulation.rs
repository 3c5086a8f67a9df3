//! Two tables on a network that loses, duplicates, delays and reorders datagrams, with thousands of seeded
//! schedules.

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::random::Random;

/// Behavior of the network, in percent and milliseconds.
#[derive(Clone, Copy)]
struct Weather {
    loss: u64,
    repeat: u64,
    delay: u64,
}

/// Events of one connection seen by its owner.
#[derive(Default, Debug)]
struct Seen {
    log: Vec<&'static str>,
    released: bool,
}

/// A table with an owner that performs the required actions, or other allowed ones.
struct Node {
    lid: u16,
    table: ConnectionTable,
    seen: HashMap<ConnId, Seen>,
    /// Connections that the owner may still end.
    live: Vec<ConnId>,
    next_qp: u32,
}

impl Node {
    fn new(lid: u16, seed: u64) -> Self {
        let mut table = table(lid);
        table = ConnectionTable::new(Config { seed: seed ^ u64::from(lid), ..table.config.clone() });
        table.listen(SERVICE).unwrap();
        Self { lid, table, seen: HashMap::new(), live: Vec::new(), next_qp: u32::from(lid) << 16 }
    }

    fn qp(&mut self) -> Qpn {
        self.next_qp += 1;
        qpn(self.next_qp)
    }

    fn dial(&mut self, now: Instant) {
        let to = 3 - self.lid;
        let qp = self.qp();
        let request = ConnectRequest::ipoib(SERVICE, qp, path(self.lid, to), &[]);
        let id = self.table.connect(now, request).unwrap();
        self.seen.insert(id, Seen::default());
        self.live.push(id);
    }

    fn handle_events(&mut self, now: Instant, random: &mut Random, calm: bool) {
        while let Some(event) = self.table.poll_event() {
            let id = event.id();
            let seen = self.seen.entry(id).or_default();
            assert!(!seen.released, "{event:?} after the release, {:?}", seen.log);
            let whim = if calm { 99 } else { random.next_u64() % 100 };
            match event {
                Event::Requested { .. } => {
                    seen.log.push("requested");
                    let qp = self.qp();
                    let table = &mut self.table;
                    match whim {
                        0..10 => table.reject(now, id, ib_wire::cm::RejectReason::Consumer, &[]),
                        10..20 => {
                            table.delay(now, id, ib_wire::TimeoutCode::new(20)).unwrap();
                            table.accept(now, id, &accept(qp.get()))
                        }
                        _ => table.accept(now, id, &accept(qp.get())),
                    }
                    .unwrap();
                }
                Event::Replied { .. } => {
                    seen.log.push("replied");
                    let table = &mut self.table;
                    match whim {
                        0..10 => table.reject(now, id, ib_wire::cm::RejectReason::Consumer, &[]),
                        10..20 => {
                            table.delay(now, id, ib_wire::TimeoutCode::new(18)).unwrap();
                            table.ready(now, id)
                        }
                        _ => table.ready(now, id),
                    }
                    .unwrap();
                }
                Event::Established { .. } => {
                    assert!(!seen.log.contains(&"established"));
                    seen.log.push("established");
                    self.live.push(id);
                }
                Event::Rejected { .. } | Event::TimedOut { .. } | Event::Disconnected { .. } => {
                    assert!(!seen.log.contains(&"ended"), "{:?}", seen.log);
                    seen.log.push("ended");
                    self.live.retain(|l| *l != id);
                }
                Event::Released { .. } => {
                    seen.released = true;
                    self.live.retain(|l| *l != id);
                }
            }
        }
    }

    /// Returns (local ID, peer's ID) of the established connections, as seen from the active side.
    fn in_use(&self, active: bool) -> Vec<(u32, u32)> {
        let mut all: Vec<_> = self
            .table
            .entries
            .iter()
            .filter(|(_, e)| e.state == State::Established && e.active.is_some() == active)
            .map(|(id, e)| if active { (id.0, e.remote_comm_id.0) } else { (e.remote_comm_id.0, id.0) })
            .collect();
        all.sort_unstable();
        all
    }
}

struct World {
    now: Instant,
    random: Random,
    weather: Weather,
    nodes: [Node; 2],
    /// (time, order) → (receiver, datagram).
    network: BTreeMap<(Instant, u64), (usize, Mad)>,
    order: u64,
}

impl World {
    fn new(seed: u64, weather: Weather) -> Self {
        Self {
            now: Instant::now(),
            random: Random::new(seed),
            weather,
            nodes: [Node::new(1, seed), Node::new(2, seed)],
            network: BTreeMap::new(),
            order: 0,
        }
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.random.next_u64() % 100 < chance
    }

    fn carry(&mut self) {
        for from in 0..2 {
            while let Some(mad) = self.nodes[from].table.poll_transmit() {
                let mad = arrived(&mad, self.nodes[from].lid);
                let copies = 1 + usize::from(self.percent(self.weather.repeat));
                for _ in 0..copies {
                    if !self.percent(self.weather.loss) {
                        let delay = self.random.next_u64() % (self.weather.delay + 1);
                        self.order += 1;
                        let at = self.now + Duration::from_millis(delay);
                        self.network.insert((at, self.order), (1 - from, mad.clone()));
                    }
                }
            }
        }
    }

    /// Executes the earliest step that is due. Returns false if there is none.
    fn step(&mut self, calm: bool) -> bool {
        let timers = self.nodes.iter().filter_map(|n| n.table.poll_timeout()).min();
        let datagram = self.network.first_key_value().map(|((at, _), _)| *at);
        let Some(next) = [timers, datagram].into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        if datagram == Some(next) {
            if let Some((_, (to, mad))) = self.network.pop_first() {
                self.nodes[to].table.handle_mad(self.now, &mad);
            }
        } else {
            for node in &mut self.nodes {
                node.table.handle_timeout(self.now);
            }
        }
        for node in &mut self.nodes {
            node.handle_events(self.now, &mut self.random, calm);
        }
        if !calm {
            self.data();
            self.whims();
        }
        self.carry();
        true
    }

    /// Data on an active connection may arrive before the RTU.
    fn data(&mut self) {
        for from in 0..2 {
            let pairs = self.nodes[from].in_use(true);
            for (_, theirs) in pairs {
                if self.percent(10) {
                    let to = &mut self.nodes[1 - from];
                    let qp = to.table.entries.get(&ib_wire::CommId(theirs)).and_then(|e| e.local_qpn);
                    if let Some(qp) = qp {
                        to.table.communication_established(self.now, qp);
                        to.handle_events(self.now, &mut self.random, false);
                    }
                }
            }
        }
    }

    /// Owners end connections at random.
    fn whims(&mut self) {
        for at in 0..2 {
            if self.percent(3) && !self.nodes[at].live.is_empty() {
                let pick = self.random.next_u64() as usize % self.nodes[at].live.len();
                let id = self.nodes[at].live.swap_remove(pick);
                let table = &mut self.nodes[at].table;
                if self.random.next_u64().is_multiple_of(2) {
                    table.disconnect(self.now, id).unwrap();
                } else {
                    table.abandon(self.now, id).unwrap();
                }
                self.nodes[at].handle_events(self.now, &mut self.random, false);
            }
        }
    }

    fn run(&mut self, calm: bool) {
        self.carry();
        let mut steps = 0;
        while self.step(calm) {
            steps += 1;
            assert!(steps < 20_000, "it never becomes idle");
        }
    }

    fn agree(&self, what: &str) {
        let [a, b] = &self.nodes;
        assert_eq!(a.in_use(true), b.in_use(false), "{what}: initiated by 1");
        assert_eq!(b.in_use(true), a.in_use(false), "{what}: initiated by 2");
        for node in &self.nodes {
            for entry in node.table.entries.values() {
                assert_eq!(entry.state, State::Established, "{what}: stuck at node {}", node.lid);
            }
        }
    }
}

fn schedule(seed: u64, weather: Weather, calm: bool) -> usize {
    let mut w = World::new(seed, weather);
    for n in 0..6 {
        let now = w.now;
        w.nodes[n % 2].dial(now);
    }
    w.run(calm);
    w.agree(&format!("seed {seed}"));
    let up = w.nodes[0].in_use(true).len() + w.nodes[1].in_use(true).len();

    for node in &mut w.nodes {
        let mut ids: Vec<_> =
            node.table.entries.iter().filter(|(_, e)| e.active.is_some()).map(|(i, _)| *i).collect();
        ids.sort_unstable();
        for id in ids {
            node.table.disconnect(w.now, ConnId(id)).unwrap();
        }
    }
    w.run(true);
    for node in &w.nodes {
        assert_empty(&node.table);
        for (id, seen) in &node.seen {
            assert!(seen.released, "seed {seed}: {id:?} was never released, {:?}", seen.log);
        }
    }
    up
}

#[test]
fn a_perfect_network_brings_all_up() {
    for seed in 0..50 {
        assert_eq!(schedule(seed, Weather { loss: 0, repeat: 0, delay: 0 }, true), 6);
    }
}

#[test]
fn a_bad_network_brings_all_up_if_nobody_gives_up() {
    for seed in 0..500 {
        let weather = Weather { loss: seed % 30, repeat: seed % 40, delay: [0, 50, 800][seed as usize % 3] };
        assert_eq!(schedule(seed, weather, true), 6, "seed {seed}");
    }
}

#[test]
fn fickle_owners_on_a_bad_network_leave_nothing_behind() {
    for seed in 0..2500 {
        let weather =
            Weather { loss: seed % 25, repeat: seed % 50, delay: [0, 100, 900, 3000][seed as usize % 4] };
        schedule(seed, weather, false);
    }
}
