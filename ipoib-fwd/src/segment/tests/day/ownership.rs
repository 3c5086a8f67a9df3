//! Model check of address ownership: hosts that are honest, dead, moved, booting with conflict detection, and
//! lying, on both sides of one gateway. All ARP packets of the gateway are checked against the location of
//! the hosts.

mod questions;

use super::super::*;
use super::number;
use super::town::{self, HOSTS, LIARS, Manner, Said, Town};
use crate::kept::KeptHost;
use crate::segment::pair::{Place, Side as Of};

/// The maximum delay of wrong packets of the gateway after a host has died or moved without an announcement.
const BOUND: Duration = secs(10);
/// A gateway that is alone forwards by then.
const START: Duration = secs(30);
/// Default number of seeds of the random runs (`SIMULATED_SEEDS`), and seconds of each run. `SIMULATED_SEED`
/// names the first seed.
const SEEDS: u64 = 60;
const LENGTH: u64 = 240;

/// The gateway's knowledge of its networks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Net {
    /// It has an address in the hosts' subnet.
    Own,
    /// The hosts are in another subnet.
    Second,
    /// It has no address and knows no subnet.
    None,
}

const NETS: [Net; 3] = [Net::Own, Net::Second, Net::None];

/// The town with one gateway, and since when each host is at its location.
struct World {
    town: Town,
    net: Net,
    since: Vec<Instant>,
    died: HashMap<Ipv4Addr, Instant>,
    /// Probes of hosts: time, side, address.
    probes: Vec<(Instant, Of, Ipv4Addr)>,
    /// Queries of the gateway: time, side, address.
    queried: Vec<(Instant, Of, Ipv4Addr)>,
    /// Packets of hosts: time, side, sender.
    heard: Vec<(Instant, Of, Ipv4Addr)>,
    /// Addresses for which more than one host answers.
    lied_about: HashSet<Ipv4Addr>,
    /// Addresses that the gateway has announced, by the side of the announcement.
    announced: HashSet<(Of, Ipv4Addr)>,
    /// When each address was claimed by a liar last.
    lied: HashMap<Ipv4Addr, Instant>,
    /// Addresses whose hosts died while a liar's claim was open: they belong to the liar until the gateway
    /// knows the hosts again.
    taken: HashSet<Ipv4Addr>,
    questions: questions::Questions,
}

impl World {
    fn new(seed: u64, net: Net) -> Self {
        let mut world = Self::cold(seed, net);
        world.town.start(0);
        world.town.run(START);
        world.town.watched = Some(Vec::new());
        world.since = vec![world.town.now - BOUND * 2; HOSTS + LIARS];
        world
    }

    /// Without a gateway.
    fn cold(seed: u64, net: Net) -> Self {
        let mut town = Town::new(seed);
        match net {
            Net::Own => {}
            Net::Second => {
                for (n, host) in town.hosts.iter_mut().enumerate() {
                    host.ip = Ipv4Addr::new(10, 78, 0, 1 + n as u8);
                }
            }
            Net::None => {
                // A prefix of no length is no address.
                (town.slots[0].networks.length, town.slots[0].networks.second) = (0, false);
                for (n, host) in town.hosts.iter_mut().enumerate() {
                    host.ip = Ipv4Addr::new(10, 77, 0, 1 + n as u8);
                }
            }
        }
        town.watched = Some(Vec::new());
        Self {
            since: vec![town.now - BOUND * 2; HOSTS + LIARS],
            town,
            net,
            died: HashMap::new(),
            probes: Vec::new(),
            queried: Vec::new(),
            heard: Vec::new(),
            lied_about: HashSet::new(),
            announced: HashSet::new(),
            lied: HashMap::new(),
            taken: HashSet::new(),
            questions: questions::Questions::default(),
        }
    }

    fn host(&self, side: Of, nth: usize) -> usize {
        let all = (0..HOSTS).filter(|h| self.town.hosts[*h].side == side);
        all.clone().nth(nth).unwrap()
    }

    fn liar(&self, side: Of) -> usize {
        (HOSTS..HOSTS + LIARS).find(|h| self.town.hosts[*h].side == side).unwrap()
    }

    fn ip(&self, h: usize) -> Ipv4Addr {
        self.town.hosts[h].ip
    }

    fn kill(&mut self, h: usize) {
        self.town.hosts[h].alive = false;
        let (ip, now) = (self.ip(h), self.town.now);
        self.died.insert(ip, now);
        if self.lied.get(&ip).is_some_and(|at| now - *at <= BOUND) {
            self.taken.insert(ip);
        }
    }

    fn move_over(&mut self, h: usize) {
        self.town.move_over(h);
        self.since[h] = self.town.now;
    }

    fn probe(&mut self, h: usize, target: Ipv4Addr) {
        self.town.probe(h, target);
    }

    /// Lets time pass, and checks the gateway's packets against the location of the hosts.
    fn run(&mut self, time: Duration) {
        let end = self.town.now + time;
        while self.town.now < end {
            let step = ms(100).min(end - self.town.now);
            self.town.run(step);
            self.check();
        }
    }

    fn check(&mut self) {
        let gateway = self.town.slots[0].life.as_ref();
        let known = gateway.map(|gateway| gateway.known(self.town.now)).unwrap_or_default();
        let hosts = &self.town.hosts;
        self.taken.retain(|ip| {
            let is_host = |at: Place| hosts.iter().any(|h| h.ip == *ip && h.alive && town::is_of(at, h.n));
            !known.iter().any(|known| known.ip == IpAddr::V4(*ip) && is_host(known.place))
        });
        let said = self.town.watched.replace(Vec::new()).unwrap();
        for (at, side, of_gateway, said) in said {
            let sender = said.sender;
            self.check_question(at, side, of_gateway, said);
            if !of_gateway {
                self.heard.push((at, side, sender));
                continue;
            }
            let owner = (0..HOSTS).find(|h| self.ip(*h) == sender);
            if let Some(h) = owner {
                let host = &self.town.hosts[h];
                let settled = at.saturating_duration_since(self.since[h]) > BOUND;
                // Without a name to query in, a prober's own side cannot be queried again: the prober has
                // done that itself.
                // Without a name to query in, a prober's own side cannot be queried again: the prober has
                // done that itself.
                let to_prober = said.operation == ArpOperation::Reply && said.target.is_unspecified();
                let here = host.alive && host.side == side && settled && host.manner == Manner::Soon;
                // Another exemption: a host of the other side answers each probe that is forwarded there.
                let unanswerable = to_prober && (self.net != Net::Own || self.lied_about.contains(&sender));
                let is_exempt = unanswerable || self.taken.contains(&sender);
                assert!(
                    !here || is_exempt,
                    "{host:?} is on the side where the gateway answers for it: {said:?}"
                );
            }
            if said.operation == ArpOperation::Reply
                && !self.lied_about.contains(&sender)
                && let Some(died) = self.died.get(&sender)
            {
                let late = at.saturating_duration_since(*died);
                assert!(late <= BOUND, "{sender} is answered for {late:?} after its death");
            }
            if said.operation == ArpOperation::Request && sender == said.target {
                self.announced.insert((side, sender));
            }
            if said.operation == ArpOperation::Request {
                self.queried.push((at, side, said.target));
            } else if said.target.is_unspecified() && owner.is_some() {
                let probe = self.probes.iter().rev().find(|(_, of, ip)| (*of, *ip) == (side, sender));
                let probed = probe.expect("only probes name no target").0;
                let mut since = self.queried.iter().chain(&self.heard);
                let queried = since.any(|(when, of, ip)| *when >= probed && *of != side && *ip == sender);
                assert!(queried, "{sender}: a probe was answered, and its owner neither queried nor heard");
            }
        }
    }

    /// Host `h` requests an address, `times` times, a second apart; true if the gateway has answered.
    fn request(&mut self, h: usize, target: Ipv4Addr, times: u32) -> bool {
        self.town.hosts[h].answers.remove(&target);
        for _ in 0..times {
            self.town.request(h, target);
            self.run(secs(1));
            let answers = self.town.hosts[h].answers.get(&target);
            if answers.is_some_and(|all| all.iter().any(|at| town::is_of(*at, town::GATEWAY))) {
                return true;
            }
        }
        false
    }

    /// A host requests another of the other side until it is answered.
    fn meet(&mut self, a: usize, b: usize) {
        let target = self.ip(b);
        assert!(
            self.request(a, target, 3),
            "{:?} has not found {:?}",
            self.town.hosts[a],
            self.town.hosts[b]
        );
    }
}

/// Both sides in all networks.
fn everywhere() -> impl Iterator<Item = (Of, Of, Net)> {
    let sides = [(Of::Ethernet, Of::InfiniBand), (Of::InfiniBand, Of::Ethernet)];
    sides.into_iter().flat_map(|(side, other)| NETS.map(|net| (side, other, net)))
}

#[test]
fn a_gateway_that_starts_cold_announces_every_silent_host_within_three_seconds() {
    for net in NETS {
        for (seed, lies, loss) in [(0, false, 0), (1, true, 0), (2, false, 10)] {
            let mut w = World::cold(seed, net);
            w.town.start(0);
            // Without subnets it queries the hosts that it knew before.
            if net == Net::None {
                let hosts: Vec<_> = (0..HOSTS).map(|h| KeptHost { ip: w.ip(h), age: 0 }).collect();
                w.town.slots[0].life.as_mut().unwrap().segment.restore(w.town.now, &hosts);
            }
            w.town.loss = loss;
            let liar = w.liar(Of::Ethernet);
            w.town.hosts[liar].answers_for_all = lies;
            let end = w.town.now + START;
            while !w.town.slots[0].life.as_ref().unwrap().forwards() {
                assert!(w.town.now < end);
                w.run(ms(100));
            }
            w.run(secs(3));
            let missing: Vec<_> = (0..HOSTS)
                .filter(|h| !w.announced.contains(&(w.town.hosts[*h].side.other(), w.ip(*h))))
                .map(|h| &w.town.hosts[h])
                .collect();
            match (lies, loss) {
                (false, 0) => assert!(missing.is_empty(), "{net:?}: {missing:?}"),
                // Each query, answer and announcement may be lost, twice.
                (false, _) => assert!(missing.len() < 4, "{net:?}: {missing:?}"),
                // `check` fails if the gateway answers for a host on its own side.
                (true, _) => {
                    assert!(missing.iter().all(|host| host.side == Of::InfiniBand), "{net:?}: {missing:?}")
                }
            }
            assert!(
                w.town.slots[0].life.as_ref().unwrap().known(w.town.now).is_empty(),
                "no host needs them"
            );
        }
    }
}

#[test]
fn a_live_host_loses_its_address_to_no_lie_of_the_other_side() {
    for (side, other, net) in everywhere() {
        for known in [false, true] {
            for answers in [false, true] {
                for kind in 0..4 {
                    let mut w = World::new(kind, net);
                    let (victim, peer, near) = (w.host(side, 0), w.host(other, 0), w.host(side, 1));
                    let (liar, ip) = (w.liar(other), w.ip(victim));
                    if known {
                        w.meet(peer, victim);
                        w.meet(victim, peer);
                    }
                    w.lied_about.insert(ip);
                    w.town.hosts[liar].answers_for_all = answers;
                    // Each lie, and all requests of hosts in the meantime.
                    for _ in 0..12 {
                        w.town.lie_as(kind, liar, ip);
                        w.run(ms(700));
                        w.town.request(near, ip);
                        w.town.request(peer, ip);
                        w.run(ms(700));
                        let of_peer = w.ip(peer);
                        w.town.request(victim, of_peer);
                        w.run(ms(300));
                    }
                    // No host lies any more: all hosts find it again.
                    w.town.hosts[liar].answers_for_all = false;
                    w.run(BOUND + secs(8));
                    w.meet(peer, victim);
                }
            }
        }
    }
}

#[test]
fn a_lost_question_or_a_late_answer_leaves_no_address_to_a_liar() {
    for (side, other, net) in everywhere() {
        for manner in [Manner::Soon, Manner::Late] {
            let mut w = World::new(3, net);
            let (owner, near) = (w.host(side, 0), w.host(side, 1));
            let (liar, ip) = (w.liar(other), w.ip(owner));
            w.lied_about.insert(ip);
            w.town.hosts[liar].answers_for_all = true;
            w.town.hosts[owner].manner = manner;
            // `check` fails if the gateway answers for an owner that answers soon. The first query to that
            // one is lost.
            w.town.hosts[owner].alive = manner == Manner::Late;
            w.town.request(near, ip);
            w.run(ms(100));
            w.town.hosts[owner].alive = true;
            w.run(secs(3));
            let found = w.request(near, ip, 6);
            assert!(!found, "{side:?} {net:?} {manner:?}: the liar has the address");
        }
    }
}

#[test]
fn no_host_is_answered_for_long_after_its_death() {
    for (side, other, net) in everywhere() {
        // By requests, by probes, with traffic, and by all of them.
        for (requests, probes, traffic) in
            [(true, false, false), (false, true, false), (false, false, true), (true, true, true)]
        {
            let mut w = World::new(7, net);
            let (victim, peer) = (w.host(side, 0), w.host(other, 0));
            let ip = w.ip(victim);
            w.meet(peer, victim);
            w.run(ms(2300));
            w.kill(victim);
            for _ in 0..100 {
                if requests {
                    w.town.request(peer, ip);
                }
                if probes {
                    w.probe(peer, ip);
                }
                if traffic {
                    w.town.send(peer, ip);
                }
                w.run(ms(900));
            }
        }
    }
}

#[test]
fn an_unproven_host_that_has_died_is_not_answered_for_when_it_is_proven_at_last() {
    for (side, other, net) in everywhere() {
        let mut w = World::new(11, net);
        let (victim, prober, requester) = (w.host(side, 0), w.host(other, 0), w.host(other, 1));
        let ip = w.ip(victim);
        // While a host there probes for the address, that side is not queried for it without a sender
        // address: it stays unproven.
        w.probe(prober, ip);
        w.run(ms(700));
        w.town.send(prober, ip);
        w.run(secs(20));
        w.kill(victim);
        w.run(secs(15));
        // `check` fails if the gateway answers for it.
        w.request(requester, ip, 3);
    }
}

#[test]
fn a_host_that_moves_without_a_word_is_found_within_ten_seconds() {
    for (side, other, net) in everywhere() {
        for after in [0, 1, 3, 7, 20, 45] {
            let mut w = World::new(after, net);
            let (mover, near, far) = (w.host(side, 0), w.host(side, 1), w.host(other, 0));
            let ip = w.ip(mover);
            w.meet(far, mover);
            w.meet(mover, far);
            w.run(secs(after));
            w.move_over(mover);
            // Hosts of the side that it has left send requests as kernels do: once a second, by broadcast.
            let found = w.request(near, ip, BOUND.as_secs() as u32);
            assert!(found, "{side:?} {net:?} {after} s");
            // `check` fails if the gateway answers for it on the side where it is now.
            for _ in 0..15 {
                w.town.request(far, ip);
                w.run(secs(1));
            }
        }
    }
}

#[test]
fn another_card_that_speaks_during_a_dispute_is_not_announced_to_the_claimant() {
    for (side, other, net) in everywhere() {
        for after in [100, 400, 700, 820, 1000] {
            let mut w = World::new(after, net);
            let (mover, near, far) = (w.host(side, 0), w.host(other, 1), w.host(other, 0));
            let (liar, ip) = (w.liar(side), w.ip(mover));
            w.meet(far, mover);
            w.lied_about.insert(ip);
            w.move_over(mover);
            w.run(BOUND + secs(3));
            // Its request claims the address. The owner is queried at its old location, and does not answer;
            // a liar answers there.
            let of_near = w.ip(near);
            w.town.request(mover, of_near);
            w.run(ms(after));
            w.town.lie_as(3, liar, ip);
            // `check` fails if the gateway answers for the host on the side where it is.
            w.run(secs(3));
        }
    }
}

#[test]
fn a_booting_host_gets_its_address_while_others_look_for_it() {
    for (side, other, net) in everywhere() {
        for delay in [0, 300, 700, 1900] {
            let mut w = World::new(delay, net);
            let (booter, peer) = (w.host(side, 0), w.host(other, 0));
            let ip = w.ip(booter);
            w.town.hosts[booter].alive = false;
            // The peer is known, as hosts with traffic are.
            let acquainted = w.host(side, 1);
            w.meet(peer, acquainted);
            w.meet(acquainted, peer);
            let look = |w: &mut World, times| {
                for _ in 0..times {
                    w.town.request(peer, ip);
                    w.town.send(peer, ip);
                    w.run(ms(500));
                }
            };
            look(&mut w, 6);
            w.run(ms(delay));
            w.town.hosts[booter].alive = true;
            w.town.hosts[booter].manner = Manner::Booting { gave_up: false };
            w.since[booter] = w.town.now;
            for _ in 0..3 {
                w.probe(booter, ip);
                look(&mut w, 3);
            }
            look(&mut w, 4);
            assert_eq!(
                w.town.hosts[booter].manner,
                Manner::Booting { gave_up: false },
                "{side:?} {net:?} {delay}"
            );
            w.town.hosts[booter].manner = Manner::Soon;
            w.town.announce(booter);
            w.run(secs(1));
            w.meet(peer, booter);
        }
    }
}

#[test]
fn the_gateway_sends_no_false_arp_in_any_course_of_events() {
    let first = number("SIMULATED_SEED").unwrap_or(0);
    for seed in first..first + number("SIMULATED_SEEDS").unwrap_or(SEEDS) {
        let mut w = World::new(seed, NETS[seed as usize % NETS.len()]);
        let end = w.town.now + secs(LENGTH);
        while w.town.now < end {
            change(&mut w);
            let pause = ms(w.town.chance(1500));
            w.run(pause);
        }
    }
}

/// Changes the state of a host, or makes it send.
fn change(w: &mut World) {
    let h = w.town.chance(HOSTS as u64) as usize;
    let other = w.town.chance(HOSTS as u64) as usize;
    let (now, alive) = (w.town.now, w.town.hosts[h].alive);
    let stable = |w: &World, h: usize| {
        let host = &w.town.hosts[h];
        host.alive && host.manner == Manner::Soon && now - w.since[h] > BOUND
    };
    match w.town.chance(24) {
        0 if alive => w.kill(h),
        1..=3 if !alive => {
            w.town.hosts[h].alive = true;
            w.died.remove(&w.ip(h));
            w.since[h] = now;
            w.town.greet(h);
        }
        4 if stable(w, h) => {
            w.move_over(h);
            if w.town.chance(2) == 0 {
                w.town.announce(h);
            }
        }
        // A host of the other side sends a false announcement for a host that is there.
        5 | 6 if stable(w, h) => {
            let liar =
                w.liar(if w.town.hosts[h].side == Of::Ethernet { Of::InfiniBand } else { Of::Ethernet });
            let victim = w.ip(h);
            w.lied.insert(victim, now);
            w.town.lie(liar, victim);
        }
        7 | 8 if alive => {
            let target = w.ip(other);
            w.probe(h, target);
        }
        9..=16 => {
            let target = w.ip(other);
            w.town.request(h, target);
        }
        _ => {
            let target = w.ip(other);
            w.town.send(h, target);
        }
    }
}
