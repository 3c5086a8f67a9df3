//! Whether a unicast packet passes a gateway twice: two gateways with their real tables, on networks that are
//! split and joined, between hosts that send packets and requests, die and move.
//!
//! A packet comes back to a gateway if that one has its destination at the other gateway on one side, and the
//! other one has it at the first gateway on the other side. Hosts act as in the worst case: each sends to
//! either gateway. Gateways drop packets from an address that they know as another gateway's.

use super::super::*;
use super::number;
use super::town::{self, GATEWAY, HOSTS, Town};
use crate::segment::pair::{Neighbour, Place, Side as Of};

/// Time between two hellos, as by default.
const HELLO: Duration = ms(300);
/// Default number of seeds (`SIMULATED_SEEDS`). `SIMULATED_SEED` names the first one.
const SEEDS: u64 = 200;
/// Milliseconds between two checks of the tables.
const STEP: u64 = 5;
/// A gateway that is alone forwards by then.
const START: Duration = ms(1300);
/// Number of hosts that died or moved last. They are in more packets than others are.
const NEWS: usize = 6;

/// Gateways with the same key, without one, and with different ones, which do not believe each other.
const KEYS: [[Option<u8>; 2]; 3] = [[Some(8), Some(8)], [None, None], [Some(8), Some(9)]];
/// Maximum time for which two gateways that do not believe each other forward: a hello, one of the probes
/// that follow, and their transit times.
const TOGETHER: u64 = 730;

/// Maximum time for which an address loops between them: their messages and echoes are in transit.
const STRANGERS: u64 = 50;

/// Counts while both gateways forwarded in networks that had met, times in milliseconds.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    meetings: u64,
    /// How long both forwarded and neither knew the other as a gateway.
    together: u64,
    /// Packets that hosts sent after the meeting.
    packets: u64,
    /// Number of those that the other gateway forwarded, too.
    passed_both: u64,
    /// Number of those that came back to the first one.
    twice: u64,
    /// How long a packet to some address would have come back, and in how many meetings.
    circles: u64,
    in_circles: u64,
    /// The longest of these times in one meeting.
    longest: u64,
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.meetings += other.meetings;
        self.together += other.together;
        self.packets += other.packets;
        self.passed_both += other.passed_both;
        self.twice += other.twice;
        self.circles += other.circles;
        self.in_circles += u64::from(other.circles > 0);
        self.longest = self.longest.max(other.circles);
    }
}

struct Meeting {
    town: Town,
    /// Hosts that died or moved recently.
    news: Vec<usize>,
    count: Count,
    met: bool,
}

/// The gateway in this slot.
fn gateway_at(place: Place) -> Option<usize> {
    (0..2).find(|g| town::is_of(place, GATEWAY + *g as u16))
}

const fn side_of(place: Place) -> Of {
    match place {
        Place::Ethernet(_) => Of::Ethernet,
        Place::InfiniBand(_) => Of::InfiniBand,
    }
}

/// A side by its name in the tables.
const fn table_side(side: Of) -> Side {
    match side {
        Of::Ethernet => Side::Ethernet,
        Of::InfiniBand => Side::InfiniBand,
    }
}

impl Meeting {
    fn new(seed: u64) -> Self {
        let mut town = Town::new(seed);
        for (slot, key) in town.slots.iter_mut().zip(KEYS[seed as usize % KEYS.len()]) {
            slot.networks.key = key;
            slot.networks.hello = HELLO;
        }
        town.slots[1].priority = if seed.is_multiple_of(2) { 100 } else { 90 };
        let mut meeting = Self { town, news: Vec::new(), count: Count::default(), met: false };
        meeting.part();
        meeting.town.start(0);
        meeting.town.start(1);
        meeting.live(START);
        meeting
    }

    fn chance(&mut self, of: u64) -> u64 {
        self.town.chance(of)
    }

    /// Splits both networks: one gateway and half of the hosts in each part.
    fn part(&mut self) {
        self.met = false;
        self.town.slots[1].part = [1; 2];
        for h in 0..HOSTS {
            self.town.hosts[h].part = self.town.chance(2) as u8;
        }
    }

    /// Joins one of the networks.
    fn join(&mut self, side: Of) {
        self.town.slots[1].part[side as usize] = 0;
        for host in self.town.hosts.iter_mut().filter(|host| host.side == side) {
            host.part = 0;
        }
        self.met = self.town.slots[1].part == [0; 2];
    }

    /// The location of an address on a side, in a gateway's table.
    fn has(&self, g: usize, side: Of, ip: Ipv4Addr) -> Option<Place> {
        let gateway = self.town.slots[g].life.as_ref()?;
        let known = gateway.known(self.town.now).into_iter().filter(|known| known.ip == IpAddr::V4(ip));
        known.map(|known| known.place).find(|place| side_of(*place) == side)
    }

    /// The next gateway that receives a packet from gateway `g`, if that sends it to `side`.
    fn next(&self, g: usize, side: Of, ip: Ipv4Addr) -> Option<usize> {
        let next = self.has(g, side, ip).and_then(gateway_at)?;
        let is_reached = self.town.slots[next].part[side as usize] == self.town.slots[g].part[side as usize];
        let gateway = self.town.slots[next].life.as_ref()?;
        let takes = gateway.carries() && !gateway.knows_gateway(GATEWAY + g as u16);
        (next != g && is_reached && takes).then_some(next)
    }

    /// Follows a packet that host `h` sends to an address, through gateway `g` first.
    fn send(&mut self, h: usize, g: usize, ip: Ipv4Addr) {
        let (mut n, mut side, source) = {
            let host = &self.town.hosts[h];
            (host.n, host.side, host.ip)
        };
        let (mut g, mut passed) = (g, Vec::new());
        loop {
            let now = self.town.now;
            let next = self.next(g, side.other(), ip);
            let Some(gateway) = self.town.slots[g].life.as_mut().filter(|gateway| gateway.carries()) else {
                return;
            };
            if passed.contains(&g) {
                self.count.twice += 1;
                return;
            }
            passed.push(g);
            gateway.forward(now, table_side(side), n, [source, ip]);
            self.town.send_off(g);
            let Some(next) = next else { return };
            self.count.passed_both += 1;
            (n, side, g) = (GATEWAY + g as u16, side.other(), next);
        }
    }

    /// A host sends a packet, or a request.
    fn act(&mut self) {
        let h = self.chance(HOSTS as u64) as usize;
        let of_news = self.chance(2) == 0;
        let target = match (of_news, self.news.len()) {
            (true, n) if n > 0 => self.news[self.town.chance(n as u64) as usize],
            _ => self.chance(HOSTS as u64) as usize,
        };
        let (host, ip) = (&self.town.hosts[h], self.town.hosts[target].ip);
        if !host.alive || host.ip == ip {
            return;
        }
        let (side, part) = (host.side, host.part);
        match self.town.chance(8) {
            0..3 => self.town.request(h, ip),
            3 => self.town.announce(h),
            _ => {
                for g in
                    (0..2).filter(|g| self.town.slots[*g].part[side as usize] == part).collect::<Vec<_>>()
                {
                    self.count.packets += u64::from(self.met);
                    self.send(h, g, ip);
                }
            }
        }
    }

    /// A host dies, returns, moves to the other part or to the other side.
    fn upset(&mut self) {
        let h = self.chance(HOSTS as u64) as usize;
        let town = &mut self.town;
        match town.chance(6) {
            0..3 => town.hosts[h].alive = false,
            3 => {
                town.hosts[h].alive = true;
                town.greet(h);
            }
            4 => {
                town.move_over(h);
                town.hosts[h].part = if self.met { 0 } else { town.chance(2) as u8 };
                town.greet(h);
            }
            _ if !self.met => {
                town.hosts[h].part ^= 1;
                town.greet(h);
            }
            _ => {}
        }
        self.news.push(h);
        if self.news.len() > NEWS {
            self.news.remove(0);
        }
    }

    /// True if the networks have met, both gateways forward, and neither knows the other.
    fn can_circle(&self) -> bool {
        let takes = |g: usize| {
            let gateway = self.town.slots[g].life.as_ref();
            gateway.is_some_and(|gateway| gateway.carries() && !gateway.knows_gateway(GATEWAY + 1 - g as u16))
        };
        self.met && takes(0) && takes(1)
    }

    /// Counts the time for which an address loops.
    fn look(&mut self) {
        if !self.can_circle() {
            return;
        }
        self.count.together += STEP;
        let goes_on = |(ip, side): (Ipv4Addr, Of)| {
            self.next(0, side, ip) == Some(1) && self.next(1, side.other(), ip) == Some(0)
        };
        let circles = self.at_other(0).into_iter().any(goes_on);
        self.count.circles += u64::from(circles) * STEP;
    }

    /// The addresses that a gateway has at the other one, by the side.
    fn at_other(&self, g: usize) -> Vec<(Ipv4Addr, Of)> {
        let Some(gateway) = &self.town.slots[g].life else { return Vec::new() };
        let at_other = |known: Neighbour| {
            let IpAddr::V4(ip) = known.ip else { return None };
            (gateway_at(known.place) == Some(1 - g)).then_some((ip, side_of(known.place)))
        };
        gateway.known(self.town.now).into_iter().filter_map(at_other).collect()
    }

    /// Lets time pass. Hosts send every few milliseconds.
    fn live(&mut self, time: Duration) {
        let end = self.town.now + time;
        let mut next = self.town.now;
        while self.town.now < end {
            if self.town.now >= next {
                let most = if self.met { 40 } else { 160 };
                next = self.town.now + ms(10 + self.town.chance(most));
                self.act();
                if self.town.chance(3) == 0 {
                    self.upset();
                }
            }
            let step = ms(if self.met { STEP } else { 20 });
            self.town.run(step);
            self.look();
            if self.met && !self.can_circle() {
                return;
            }
        }
    }

    /// Splits the networks for a while, and joins them: one side first, or both at once.
    fn meet(&mut self) {
        self.part();
        let apart = ms(500 + self.chance(3000));
        self.live(apart);
        let first = Of::BOTH[self.chance(2) as usize];
        self.join(first);
        if self.chance(2) == 0 {
            let between = ms(self.chance(1500));
            self.live(between);
        }
        self.join(first.other());
        self.count.meetings += 1;
        self.live(ms(800));
    }
}

/// Runs the requested number of seeds. Returns the counts, by the keys.
fn run() -> [Count; KEYS.len()] {
    let mut counts = [Count::default(); KEYS.len()];
    let first = number("SIMULATED_SEED").unwrap_or(0);
    for seed in first..first + number("SIMULATED_SEEDS").unwrap_or(SEEDS) {
        let mut meeting = Meeting::new(seed);
        meeting.meet();
        let count = &mut counts[seed as usize % KEYS.len()];
        count.add(&meeting.count);
        assert!(meeting.count.together <= TOGETHER, "seed {seed}: {:?}", meeting.count);
    }
    for (keys, count) in KEYS.iter().zip(&counts) {
        println!("figure: keys {keys:?}: {count:?}");
    }
    counts
}

#[test]
fn where_networks_meet_no_packet_to_one_host_comes_back_to_a_gateway_of_a_pair() {
    for (keys, count) in KEYS.iter().zip(run()) {
        assert!(count.packets > 20 && count.together > 50, "{keys:?}: {count:?}");
        if keys[0] == keys[1] {
            assert_eq!((count.circles, count.twice), (0, 0), "{keys:?}: {count:?}");
        } else {
            assert!(count.longest <= STRANGERS, "{keys:?}: {count:?}");
        }
    }
}
