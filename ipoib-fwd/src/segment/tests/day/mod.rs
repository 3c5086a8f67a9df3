//! Hours of a segment under constant change: two gateways, and for a while three, between hosts that come,
//! go, move, change their cards, send false claims, and answer late or never. Each hour ends in quiet. One
//! gateway forwards and knows the location of every honest host, those hosts find each other, and the next
//! gateway knows them as well. Once the hosts are gone, no state of them is left.

mod checks;
mod gateway;
mod ownership;
mod town;
mod unicast;

use std::collections::BTreeMap;

use gateway::{HELLO, TURN, lease};
use town::{HOSTS, LIARS, Manner, Town};

use super::*;
use crate::segment::machine::SWEEP;
use crate::segment::owners::{AGAIN, ANSWER, QUESTIONS, WINDOW};
use crate::segment::pair::Drain;
use crate::segment::pair::election::{HANDOVER, WARM};
use crate::segment::pair::sync::ROUND;
use crate::segment::parked::PATIENCE;
use crate::segment::pending::OWN_SIDE_ANSWER;
use crate::segment::requesters::PATIENCE as ASKED;

/// Default number of hours (`SIMULATED_HOURS`, see `scripts/soak simulated`) and of seeds (`SIMULATED_SEED`
/// names a single one).
const FEW: u64 = 1;
const SEEDS: u64 = 2;
/// Longest time between one upset and the next, seconds.
const RESTLESS: u64 = 12;
/// Packets of a second.
const TRAFFIC: usize = 8;
/// A known neighbor that does not answer is given up after three queries, a second apart
/// (`ipoib::neighbour`).
const GIVEN_UP: Duration = secs(3);
/// The longest transit time when the churn stopped, and the delay of the latest host's answer.
const ON_ITS_WAY: Duration = secs(3);

/// A link whose subnet administration was away queries again within 16 s, after it has waited for an answer
/// for 20 s at most (`ipoib::link`).
const JOINED: Duration = secs(36);

/// Time in which a gateway listens, finds a worse one, and takes over from it: three hellos, the warm-up, its
/// claim, and twice the lease of a gateway that does not hear the other or has just resigned; then the
/// handover ends.
fn elected() -> Duration {
    HELLO * 3 + HELLO * WARM + HELLO * 2 + lease() * 3 + HANDOVER
}

/// Time after the forwarder has gone, in order or not: its lease, a hello or two. Then a gateway that has
/// handed over is silent, and owners whose addresses were claimed in the meantime have been queried.
fn taken_over() -> Duration {
    lease() + HELLO * 2 + HANDOVER.max(GIVEN_UP)
}

/// Time after which no address is held down, is being queried again, or has moved recently.
fn agreed() -> Duration {
    Ageing::default().hold.max(WINDOW) + AGAIN.iter().sum::<Duration>() + answered() + secs(2)
}

/// Time in which an owner that is gone has answered none of the queries.
fn answered() -> Duration {
    ANSWER * QUESTIONS.into() + TURN * QUESTIONS.into()
}

/// Time after which a host that sends is known: the address has moved if it was another host's, on both
/// sides. Its requests were answered or are not waited for.
fn heard() -> Duration {
    answered() + OWN_SIDE_ANSWER * 2 + PATIENCE.max(ASKED) + SWEEP * 2 + ROUND + HELLO
}

/// Time after which silent hosts are forgotten: by the forwarder, then by the gateways to which it has
/// reported them until then.
fn forgotten() -> Duration {
    let Ageing { reachable, idle, .. } = Ageing::default();
    let forgets = reachable * 2 + idle + GIVEN_UP + SWEEP;
    forgets + ROUND + HELLO + forgets
}

struct Day {
    town: Town,
    /// Number of upsets of each kind.
    upsets: BTreeMap<&'static str, u64>,
}

impl Day {
    fn new(seed: u64) -> Self {
        let mut town = Town::new(seed);
        town.start(0);
        town.start(1);
        town.run(elected());
        Self { town, upsets: BTreeMap::new() }
    }

    fn chance(&mut self, of: u64) -> u64 {
        self.town.chance(of)
    }

    fn upset(&mut self) {
        let what = match self.chance(32) {
            0..=17 => self.upset_host(),
            _ => self.upset_gateway(),
        };
        *self.upsets.entry(what).or_default() += 1;
    }

    fn upset_host(&mut self) -> &'static str {
        let h = self.chance(HOSTS as u64) as usize;
        let liar = HOSTS + self.chance(LIARS as u64) as usize;
        let victim = self.town.hosts[h].ip;
        let town = &mut self.town;
        match town.chance(19) {
            0 | 1 => {
                town.hosts[h].alive = false;
                "hosts that went"
            }
            2..=4 => {
                town.hosts[h].alive = true;
                town.greet(h);
                "hosts that came"
            }
            5 | 6 => {
                town.move_over(h);
                town.greet(h);
                "hosts that moved"
            }
            7 | 8 => {
                town.change_card(h);
                town.greet(h);
                "cards that changed"
            }
            9 => {
                let other = town.chance(HOSTS as u64) as usize;
                (town.hosts[h].ip, town.hosts[other].ip) = (town.hosts[other].ip, town.hosts[h].ip);
                town.greet(h);
                town.greet(other);
                "addresses that changed places"
            }
            10 => {
                town.hosts[h].manner = match town.chance(3) {
                    0 => Manner::Never,
                    1 => Manner::Late,
                    _ => Manner::Soon,
                };
                "hosts that answer otherwise"
            }
            11..=14 => {
                for _ in 0..=town.chance(4) {
                    town.lie(liar, victim);
                    town.run(ms(300));
                }
                "lies"
            }
            15 => {
                town.hosts[liar].answers_for_all ^= true;
                "hosts that answer for others, or do not any more"
            }
            16 => {
                town.scan(liar);
                "scans"
            }
            17 => {
                self.lie_in_calm(h);
                "lies when all else was well"
            }
            _ => {
                town.claim_many(liar);
                "floods of claims"
            }
        }
    }

    fn upset_gateway(&mut self) -> &'static str {
        let town = &mut self.town;
        let g = town.chance(2) as usize;
        let third = town.slots[2].life.is_some();
        let now = town.now;
        match town.chance(17) {
            0 => {
                town.kill(g);
                "gateways killed"
            }
            1 => {
                town.end(g);
                "gateways ended"
            }
            2 | 3 => {
                let how = [Some(Drain::HandOver), Some(Drain::Alone), None][town.chance(3) as usize];
                if let Some(gateway) = &mut town.slots[g].life {
                    gateway.drain(now, how);
                }
                "drained or put back"
            }
            4 | 5 => {
                let side = town.chance(2) as usize;
                let up = town.slots[g].up[side];
                town.set_side(g, side, !up);
                "sides lost or back"
            }
            6 => {
                town.hello_loss = [0, 20, 60, 100][town.chance(4) as usize];
                "hellos that are lost"
            }
            7 => {
                town.hello_delay = [ms(1), ms(500), ms(4000)][town.chance(3) as usize];
                "hellos that are late"
            }
            8 => {
                town.loss = town.chance(40);
                "losses"
            }
            9 | 10 => {
                town.reload(g);
                "reloads"
            }
            11 => {
                let priority = 90 + town.chance(20) as u8;
                town.slots[g].priority = priority;
                if let Some(gateway) = &mut town.slots[g].life {
                    gateway.with_pair(now, |pair| pair.set_priority(now, priority));
                }
                "priorities"
            }
            12 => {
                town.manager_away ^= true;
                "subnet managers gone or back"
            }
            13 => {
                let prefix = 0xfec0_0000_0000_0000 + town.chance(3);
                if let Some(gateway) = &mut town.slots[g].life {
                    gateway.readdress(now, prefix);
                }
                "other subnet prefixes"
            }
            14 => {
                if let Some(gateway) = &mut town.slots[g].life {
                    gateway.change_mode(now);
                }
                "modes"
            }
            15 if third => {
                if town.chance(2) == 0 {
                    town.kill(2);
                } else {
                    town.end(2);
                }
                "third gateways that went"
            }
            _ if !third => {
                town.start(2);
                "third gateways"
            }
            _ => {
                town.kill(g);
                town.start(g);
                "gateways killed and started at once"
            }
        }
    }

    /// Some hosts send to some others, for a second.
    fn traffic(&mut self) {
        for _ in 0..TRAFFIC {
            let (from, to) = (self.chance(HOSTS as u64) as usize, self.chance(HOSTS as u64) as usize);
            let to = match self.chance(12) {
                0 => Ipv4Addr::new(10, 77, 0, 150 + self.chance(50) as u8),
                1 => Ipv4Addr::new(10, 99, 1, 1),
                _ => self.town.hosts[to].ip,
            };
            self.town.send(from, to);
        }
        self.town.run(secs(1));
    }

    /// Heals all faults: absent hosts and gateways are back, and no host lies any more.
    fn heal(&mut self) {
        let second = self.chance(4) != 0;
        let third = self.chance(2) == 0;
        let town = &mut self.town;
        if !third {
            town.end(2);
        }
        for g in 0..3 {
            if town.slots[g].life.is_none() && g < 2 {
                town.start(g);
            }
            town.slots[g].networks.second = second;
        }
        self.town.hosts.iter_mut().for_each(|host| host.manner = Manner::Soon);
        self.town.mend();
        self.town.run(JOINED);
        self.calm();
    }

    /// All honest hosts send to the forwarder.
    fn speak(&mut self, g: usize) {
        let of_gateway = self.town.slots[g].networks.address;
        for h in self.honest() {
            self.town.request(h, of_gateway);
            self.town.run(ms(20));
        }
        self.town.run(heard());
    }

    /// Some hosts move.
    fn some_move(&mut self) -> Vec<usize> {
        let (all, mut moved) = (self.honest(), Vec::new());
        for h in all {
            match self.chance(9) {
                0 | 1 => self.town.move_over(h),
                2 => self.town.change_card(h),
                _ => continue,
            }
            moved.push(h);
        }
        moved
    }

    /// Hosts move while all are known: once they have sent a packet their location is known. A subnet goes,
    /// and its hosts are forgotten.
    fn move_in_calm(&mut self, g: usize) {
        for _ in 0..3 {
            self.some_move();
            self.speak(g);
            self.assert_known(g, "after they moved");
            self.all_hosts_find_each_other(g, 4);
        }
        let (now, slot) = (self.town.now, &mut self.town.slots[g]);
        let (before, gateway) = (slot.networks, slot.life.as_mut().unwrap());
        gateway.reload(now, &gateway::Networks { second: false, ..before });
        let stays = |ip: IpAddr| ip.to_string().starts_with("10.78.");
        assert!(!gateway.known(now).iter().any(|host| stays(host.ip)), "{:?}", gateway.known(now));
        gateway.reload(now, &before);
        self.speak(g);
        self.assert_known(g, "after a subnet had gone and come");
    }

    /// Stops losses and mistakes, puts gateways into service, and liars lie only about themselves.
    fn calm(&mut self) {
        let town = &mut self.town;
        town.mend();
        for g in 0..3 {
            town.slots[g].networks.length = 24;
            let (now, networks) = (town.now, town.slots[g].networks);
            if let Some(gateway) = &mut town.slots[g].life {
                gateway.reload(now, &networks);
                gateway.drain(now, None);
            }
            (0..2).for_each(|side| town.set_side(g, side, true));
        }
        town.hosts.iter_mut().for_each(|host| host.answers_for_all = false);
        town.run(ON_ITS_WAY + elected());
    }

    /// An owner that is known, and answers, keeps its address against all claims.
    fn lie_in_calm(&mut self, h: usize) {
        self.calm();
        // Subnet administration may have been away.
        let [g] = self.forwarders()[..] else { return };
        (self.town.hosts[h].alive, self.town.hosts[h].manner) = (true, Manner::Soon);
        self.town.request(h, self.town.slots[g].networks.address);
        self.town.run(heard());
        let gateway = self.town.slots[g].life.as_ref().unwrap();
        let ip = self.town.hosts[h].ip;
        // Except if the address is held on another side, or is not of the segment by the configuration.
        if gateway.segment.owners.is_held(ip.into()) || !gateway.segment.own.settings.is_on_link(ip) {
            return;
        }
        assert!(self.is_known(g, h), "{:?} has spoken", self.town.hosts[h]);
        for _ in 0..=self.chance(6) {
            let liar = HOSTS + self.chance(LIARS as u64) as usize;
            self.town.lie(liar, self.town.hosts[h].ip);
            let pause = ms(self.chance(700));
            self.town.run(pause);
        }
        self.town.run(answered() + AGAIN.iter().sum::<Duration>());
        assert!(self.is_known(g, h), "a lie was believed: {:?}", self.town.hosts[h]);
    }

    /// All liars claim all addresses while the owners answer.
    fn lie_in_vain(&mut self, g: usize) {
        let honest = self.honest();
        for _ in 0..100 {
            let liar = HOSTS + self.chance(LIARS as u64) as usize;
            if let Some(h) = honest.get(self.chance(HOSTS as u64) as usize) {
                self.town.lie(liar, self.town.hosts[*h].ip);
            }
            let pause = ms(self.chance(300));
            self.town.run(pause);
        }
        self.town.run(answered() + AGAIN.iter().sum::<Duration>());
        self.assert_known(g, "after many lies");
    }

    /// Another gateway takes over: it knows the location of all hosts without a packet of theirs.
    fn another_takes_over(&mut self) {
        let before = self.forwarder();
        let now = self.town.now;
        match self.chance(3) {
            0 => self.town.kill(before),
            1 => self.town.end(before),
            _ => {
                let gateway = self.town.slots[before].life.as_mut().unwrap();
                gateway.drain(now, Some(Drain::HandOver));
            }
        }
        // Some move meanwhile, and announce that once.
        let moved = if self.chance(2) == 0 { self.some_move() } else { Vec::new() };
        moved.iter().for_each(|h| self.town.announce(*h));
        self.town.run(taken_over());
        let after = self.forwarder();
        assert_ne!(before, after);
        // Without a key hosts that were reported are proven first, which a liar's answer prevents for ten
        // seconds.
        if moved.is_empty() && self.town.slots[after].networks.key.is_some() {
            self.assert_known(after, "after a takeover");
        }
        self.all_hosts_find_each_other(after, 5);
        let now = self.town.now;
        match &mut self.town.slots[before].life {
            Some(gateway) => gateway.drain(now, None),
            None => self.town.start(before),
        }
        self.town.run(elected());
    }

    /// All hosts are gone.
    fn all_go(&mut self) {
        let alive: Vec<bool> = self.town.hosts.iter().map(|host| host.alive).collect();
        for host in &mut self.town.hosts {
            host.alive = false;
            host.answers.clear();
        }
        self.town.run(forgotten());
        self.forwarder();
        let now = self.town.now;
        for gateway in self.town.slots.iter().filter_map(|slot| slot.life.as_ref()) {
            gateway.assert_empty(now);
        }
        for (h, alive) in alive.into_iter().enumerate() {
            self.town.hosts[h].alive = alive;
            if alive {
                self.town.greet(h);
            }
        }
    }

    fn hour(&mut self) {
        let end = self.town.now + secs(3600);
        while self.town.now < end {
            self.upset();
            for _ in 0..=self.chance(RESTLESS) {
                self.traffic();
            }
            self.recover();
            for gateway in self.town.slots.iter().filter_map(|slot| slot.life.as_ref()) {
                gateway.assert_bounded();
            }
        }
        self.heal();
        // No earlier entry is forgotten yet.
        let g = self.forwarder();
        self.speak(g);
        self.assert_known(g, "after they spoke soon");
        self.town.run(agreed());
        assert_eq!(g, self.forwarder());
        for gateway in self.town.slots.iter().filter_map(|slot| slot.life.as_ref()) {
            gateway.assert_settled();
        }
        self.speak(g);
        self.assert_known(g, "after they spoke");
        self.assert_no_gateway(g);
        self.all_hosts_find_each_other(g, 1);
        self.lie_in_vain(g);
        self.move_in_calm(g);
        self.another_takes_over();
        self.all_go();
    }

    /// Hosts and gateways that are gone, have lost a side, or were drained come back after some time.
    fn recover(&mut self) {
        let g = self.chance(2) as usize;
        let town = &mut self.town;
        let (now, chance) = (town.now, town.chance(6));
        match &mut town.slots[g].life {
            None if chance < 2 => town.start(g),
            Some(gateway) if gateway.pair.is_drained() && chance == 0 => gateway.drain(now, None),
            _ if chance == 1 => (0..2).for_each(|side| town.set_side(g, side, true)),
            _ => {}
        }
        if town.chance(10) == 0 {
            town.mend();
        }
    }
}

/// Runs a day of one seed, and prints its counts.
fn live(seed: u64, hours: u64) {
    let begin = Instant::now();
    let mut day = Day::new(seed);
    for hour in 1..=hours {
        day.hour();
        println!("seed {seed}, hour {hour}: {:.0} s", begin.elapsed().as_secs_f64());
    }
    let figures = day.town.figures();
    let all: u64 = day.upsets.values().sum();
    let of_each = day.upsets.iter().map(|(what, n)| format!("{n} {what}")).collect::<Vec<_>>().join(", ");
    println!("of each: {of_each}");
    println!("figure: {hours} hours in {} s, {all} upsets, {figures}", begin.elapsed().as_secs());
    assert!(figures.takeovers >= hours && figures.conflicts > hours && figures.moves > hours, "{figures}");
}

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().unwrap())
}

#[test]
fn a_day_of_a_pair_under_constant_change_leaves_no_state() {
    let hours = number("SIMULATED_HOURS").unwrap_or(FEW);
    match number("SIMULATED_SEED") {
        Some(seed) => live(seed, hours),
        None => (1..=SEEDS).for_each(|seed| live(seed, hours)),
    }
}
