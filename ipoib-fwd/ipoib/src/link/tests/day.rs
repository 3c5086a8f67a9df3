//! Hours of a fabric on which everything changes: hosts, addresses, ports, the subnet manager, modes,
//! reloaded configurations. At the end of each hour all hosts reach each other, and once all traffic has
//! stopped no state remains.

use std::time::Instant;

use hca::{AsyncEvent, PortNumber, PortState};
use ib_wire::{Gid, Guid, Lid, QKey};

use super::cycles::{NOISE, memory};
use super::fabric::{Fabric, Setup, ms, secs};
use super::node::BESIDE;
use crate::link::{ArpResponder, LinkSettings, MAX_MESSAGE, Mode, PortEvent, WorkerIndex, WorkerNote};

/// Number of hours, if `SIMULATED_HOURS` does not set more (`scripts/soak day`).
const FEW: u64 = 1;
const NODES: u64 = 10;
/// Longest time between one fault and the next, seconds.
const RESTLESS: u64 = 12;
/// Connections that node 0 has room for, on each of two workers: fewer than the other nodes want.
const CROWDED: u16 = 7;
/// Timers that a node without connections may have: the broadcast group's, and a check of each neighbour.
const TIMERS: usize = 8 + 3 * NODES as usize;

/// The state of the simulation, and counts of its events.
struct Day {
    f: Fabric,
    boots: u64,
    upsets: u64,
    reloads: u64,
    /// Links that reloads removed and added again.
    added: u64,
    opened: u64,
    /// By node: a reload has removed its link, and another one adds it again at this time.
    away: [Option<Instant>; NODES as usize],
    /// The subnet manager comes back at this time.
    absent: Option<Instant>,
}

fn setup(n: usize, s: &mut Setup) {
    if n == 0 {
        s.slots = CROWDED;
    }
}

const fn workers(n: usize) -> u8 {
    if n == 0 { 2 } else { 1 }
}

impl Day {
    fn new(seed: u64) -> Self {
        let mut f = Fabric::new(seed);
        for n in 0..NODES as usize {
            f.add(workers(n), |s| setup(n, s));
        }
        f.run(secs(1));
        let away = [None; NODES as usize];
        Self { f, boots: 0, upsets: 0, reloads: 0, added: 0, opened: 0, away, absent: None }
    }

    fn chance(&mut self, of: u64) -> u64 {
        self.f.random.next() % of
    }

    fn any(&mut self) -> usize {
        self.chance(NODES) as usize
    }

    /// Applies the port's present state, and reports it by a device event.
    fn event(&mut self, n: usize, event: AsyncEvent) {
        let (_, event) = PortEvent::from_async(&event).expect("a port's");
        let (facts, now) = (self.f.nodes[n].facts, self.f.now);
        self.f.nodes[n].link.each(|link| link.handle_port_event(now, event, facts));
    }

    /// Announces a node, as it does after a change of its address.
    fn announce(&mut self, n: usize) {
        let (now, ip) = (self.f.now, self.f.nodes[n].ip);
        self.f.nodes[n].responder = ArpResponder::new([(ip, WorkerIndex(0))]);
        self.f.nodes[n].link.announce(now, WorkerIndex(0), ip);
    }

    fn reboot(&mut self, n: usize) {
        self.opened += self.f.nodes[n].link.counters().connections_opened;
        self.boots += 1;
        self.away[n] = None;
        self.f.reboot(n, 1000 + self.boots, workers(n), |s| setup(n, s));
    }

    /// Reloads a node's configuration, with one change in it. The gateway's changes to its segments and
    /// routes are not simulated here.
    fn reload(&mut self, n: usize) {
        self.reloads += 1;
        let (now, what) = (self.f.now, self.chance(5));
        match what {
            // The segment is removed, and added again immediately or after a while.
            0 => {
                let gone = self.chance(60);
                self.f.nodes[n].link.shutdown(now);
                self.away[n].get_or_insert(now + secs(gone));
            }
            1 => self.f.toggle_beside(n),
            // Sizes, retries and idle times of the links.
            2 => {
                let settings = LinkSettings {
                    receive_mtu: MAX_MESSAGE - self.chance(16) as u32 * 4000,
                    retry_count: self.chance(8) as u8,
                    rnr_retry: self.chance(8) as u8,
                    passive_idle: secs(60 + self.chance(452)),
                    neighbour_idle: secs(10 + self.chance(50)),
                    ..self.f.nodes[n].link.settings().clone()
                };
                self.f.nodes[n].link.follow(now, &settings).expect("settings");
            }
            // The mode: a host that knows the address sees in its flags whether to request a connection.
            3 => {
                let link = &mut self.f.nodes[n].link;
                let other =
                    if link.settings().mode == Mode::Connected { Mode::Datagram } else { Mode::Connected };
                link.set_mode(now, other);
                self.announce(n);
            }
            // Address and subnets: hosts outside of them are forgotten.
            _ => {
                let link = &mut self.f.nodes[n].link;
                let known: Vec<_> = link.table().iter().map(|neighbour| neighbour.ip).collect();
                for ip in known.into_iter().step_by(2) {
                    link.forget_neighbour(now, ip);
                }
                self.announce(n);
            }
        }
    }

    /// Adds the links again whose time has come and which have drained. Removes second links that have
    /// drained.
    fn continue_reloads(&mut self) {
        for n in 0..NODES as usize {
            self.f.remove_beside(n);
            let due = self.away[n].is_some_and(|at| at <= self.f.now) && self.f.nodes[n].alive;
            let opened = self.f.nodes[n].link.counters().connections_opened;
            if due && self.f.add_again(n, 1_000_000 + self.added) {
                self.away[n] = None;
                self.added += 1;
                self.opened += opened;
                self.announce(n);
            }
        }
    }

    fn upset(&mut self) {
        self.upsets += 1;
        let (n, now, port) = (self.any(), self.f.now, PortNumber(1));
        match self.chance(18) {
            0 | 1 => {
                let mode = if self.chance(3) == 0 { Mode::Datagram } else { Mode::Connected };
                self.f.nodes[n].link.set_mode(now, mode);
            }
            // Without power, for a while or a moment.
            2 => self.f.nodes[n].alive = false,
            3 => self.reboot(n),
            4 => self.f.change_port(n, |facts| facts.state = PortState::Down),
            5 => self.f.change_port(n, |facts| facts.state = PortState::Active),
            6 => self.absent = Some(now + secs(1 + self.chance(60))),
            // Another subnet manager: it knows no group, has its own LIDs and Q_Key, and announces itself.
            7 => {
                self.f.members.clear();
                self.f.mlids.clear();
                self.f.qkey = QKey(0x0b1b + self.chance(1 << 20) as u32);
                (0..NODES as usize).for_each(|n| self.event(n, AsyncEvent::ClientReregister(port)));
            }
            // Two nodes exchange addresses.
            8 => {
                let other = self.any();
                let ip = self.f.nodes[n].ip;
                self.f.nodes[n].ip = self.f.nodes[other].ip;
                self.f.nodes[other].ip = ip;
                [n, other].into_iter().for_each(|n| self.announce(n));
            }
            9 => {
                let prefix = 0xfec0_0000_0000_0000 + self.chance(4);
                self.f.nodes[n].facts.gid = Gid::new(prefix, Guid(0x1000 + n as u64));
                self.event(n, AsyncEvent::GidChange(port));
                self.announce(n);
            }
            10 => {
                self.f.nodes[n].facts.lid = Lid(2 + n as u16 + 100 * self.chance(5) as u16);
                self.event(n, AsyncEvent::LidChange(port));
            }
            11 => self.f.loss = self.chance(64),
            12 => {
                let index = self.f.nodes[n].facts.pkey_index;
                self.f.nodes[n].facts.pkey_index =
                    if index.is_some() { None } else { Some(self.chance(3) as u16) };
                self.event(n, AsyncEvent::PKeyChange(port));
            }
            13 => {
                let all: Vec<_> = self.f.nodes[n].qps.keys().copied().collect();
                for qpn in all {
                    self.f.nodes[n].link.handle_note(now, qpn, WorkerNote::Fault);
                }
            }
            14..=16 => self.reload(n),
            _ => {
                let node = &mut self.f.nodes[n];
                node.lazy = !node.lazy;
                node.refuse_create = !node.refuse_create && node.lazy;
            }
        }
    }

    /// Some nodes send to some others, for a second.
    fn traffic(&mut self, senders: u64) {
        for _ in 0..senders {
            let (from, to) = (self.any(), self.any());
            let worker = self.chance(workers(from).into()) as u8;
            if from != to && self.f.nodes[from].alive {
                self.f.resolve_by(from, worker, to);
                self.f.use_by(from, worker, to);
            }
        }
        for n in 0..NODES as usize {
            if self.f.nodes[n].alive && self.chance(4) != 0 {
                let (now, node) = (self.f.now, &mut self.f.nodes[n]);
                let all: Vec<_> = node.qps.iter().filter(|(_, q)| q.passive).map(|(qpn, _)| *qpn).collect();
                node.link.handle_used(now, WorkerIndex(0), &all, &[]);
            }
        }
        self.f.run(secs(1));
        self.continue_reloads();
        self.f.sa_up = self.absent.is_none_or(|until| until <= self.f.now);
    }

    /// Ends all faults, and brings every node back.
    fn heal(&mut self) {
        (self.f.loss, self.f.sa_up, self.absent) = (0, true, None);
        for n in 0..NODES as usize {
            if !self.f.nodes[n].alive {
                self.reboot(n);
            }
            (self.f.nodes[n].lazy, self.f.nodes[n].refuse_create) = (false, false);
            self.f.nodes[n].facts.pkey_index = Some(0);
            self.event(n, AsyncEvent::PKeyChange(PortNumber(1)));
            self.f.change_port(n, |facts| facts.state = PortState::Active);
            if self.f.nodes[n].link.0.link(BESIDE).is_some_and(|link| !link.is_stopped()) {
                self.f.toggle_beside(n);
            }
        }
        self.f.run(secs(60));
        self.continue_reloads();
        assert_eq!(self.away, [None; NODES as usize], "each link has closed in a minute");
        (0..NODES as usize).for_each(|n| self.announce(n));
        self.f.run(secs(60));
    }

    /// Each node resolves each other node.
    fn all_nodes_reach_each_other(&mut self) {
        for from in 0..NODES as usize {
            for to in (0..NODES as usize).filter(|to| *to != from) {
                self.f.resolve(from, to);
                self.f.run(ms(100));
            }
        }
        self.f.run(secs(5));
        for from in &self.f.nodes {
            assert!(from.state.as_ref().is_some_and(|s| s.up), "{} is not up", from.ip);
            for to in self.f.nodes.iter().filter(|to| to.ip != from.ip) {
                let known =
                    from.table.get(to.ip).unwrap_or_else(|| panic!("{} does not know {}", from.ip, to.ip));
                let path =
                    known.ud.as_ref().unwrap_or_else(|| panic!("{} has no path to {}", from.ip, to.ip));
                assert_eq!(
                    (known.hardware.gid, path.av.dlid),
                    (to.facts.gid, to.facts.lid),
                    "{} to {}",
                    from.ip,
                    to.ip
                );
            }
        }
    }

    /// If two nodes may have a connection, each has one to the other, and both agree on it.
    fn connections_come_back(&mut self) {
        let now = self.f.now;
        for n in [1, 2] {
            self.f.nodes[n].link.set_mode(now, Mode::Connected);
        }
        self.f.run(secs(90));
        for _ in 0..60 {
            for (from, to) in [(1, 2), (2, 1)] {
                self.f.resolve(from, to);
                self.f.use_by(from, 0, to);
            }
            self.f.run(secs(1));
        }
        for (from, to) in [(1, 2), (2, 1)] {
            let (ip, node) = (self.f.nodes[to].ip, &self.f.nodes[from]);
            let qp = node.rc_to(ip, 0).unwrap_or_else(|| panic!("{from} has no connection to {to}"));
            let (receive, send) = (qp.receive.expect("RTR"), qp.send.expect("RTS"));
            let other = &self.f.nodes[to].qps[&receive.dest_qpn];
            assert_eq!(other.receive.expect("RTR").rq_psn, send.sq_psn);
        }
    }

    /// Stops all traffic and connections: no state remains.
    fn quiet(&mut self) {
        let now = self.f.now;
        for node in &mut self.f.nodes {
            node.link.set_mode(now, Mode::Datagram);
        }
        // Connections that a peer without power had opened end by their idle time.
        let silence = self.f.nodes.iter().map(|n| n.link.settings().passive_idle).max().expect("nodes");
        self.f.run(silence + secs(60));
        for n in 0..NODES as usize {
            self.f.assert_clean(n);
            assert_eq!(self.f.nodes[n].link.0.links().count(), 1, "node {n}");
            let link = &self.f.nodes[n].link;
            assert!(link.conns.map.is_empty() && link.conns.dials.is_empty(), "node {n}");
            assert!(link.conns.by_qpn.is_empty() && link.conns.retiring.is_empty(), "node {n}");
            assert!(link.out.timers.len() <= TIMERS, "node {n}: {} timers", link.out.timers.len());
            self.f.nodes[n].created.clear();
            self.f.nodes[n].destroyed.clear();
            let now = self.f.now;
            self.f.nodes[n].link.set_mode(now, Mode::Connected);
        }
        self.f.forget_past();
        self.f.cm_mads.clear();
    }

    fn hour(&mut self) {
        let end = self.f.now + secs(3600);
        while self.f.now < end {
            self.upset();
            for _ in 0..=self.chance(RESTLESS) {
                self.traffic(NODES);
            }
            // A node without power gets it back at some time.
            let n = self.any();
            if !self.f.nodes[n].alive {
                self.reboot(n);
            }
            self.f.forget_past();
            self.f.cm_mads.clear();
        }
        self.heal();
        self.all_nodes_reach_each_other();
        self.connections_come_back();
        self.quiet();
    }
}

#[test]
fn a_day_on_which_nothing_stays_as_it_is_leaves_nothing() {
    let hours = std::env::var("SIMULATED_HOURS").map_or(FEW, |n| n.parse().unwrap());
    let seed = std::env::var("SIMULATED_SEED").map_or(1, |n| n.parse().unwrap());
    let (mut day, mut base, begin) = (Day::new(seed), 0, Instant::now());
    for hour in 1..=hours {
        day.hour();
        if hour == hours.div_ceil(4) {
            base = memory();
        }
        println!(
            "hour {hour}: {} upsets, {} KiB, {:.0} s",
            day.upsets,
            memory(),
            begin.elapsed().as_secs_f64()
        );
    }
    let opened = day.opened + day.f.nodes.iter().map(|n| n.link.counters().connections_opened).sum::<u64>();
    assert!(opened > hours, "{opened} connections");
    let after = memory();
    println!(
        "figure: {hours} hours, {} upsets, {} reloads, {} links added again, {} boots, {opened} connections, memory {base} KiB then {after} KiB",
        day.upsets, day.reloads, day.added, day.boots
    );
    assert!(after <= base + NOISE, "{base} KiB, then {after} KiB");
}
