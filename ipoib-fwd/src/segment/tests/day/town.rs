//! The two networks, the hosts on them, honest ones and liars, and the gateways between.

use std::collections::BTreeMap;
use std::fmt;

use ib_wire::mad::Mad;
use ipoib::net::ethernet::EthernetHeader;

use super::super::*;
use super::gateway::{GROUP, Gateway, HELLO, Networks, Sent, TURN, answer, mac, queue_pair};
use crate::segment::pair::{Place, Side as Of, Transmit};

pub(super) const HOSTS: usize = 24;
pub(super) const LIARS: usize = 4;
/// Number of the first gateway's card and port; those of hosts are beyond [`FIRST`].
pub(super) const GATEWAY: u16 = 2;
const FIRST: u16 = 16;
const CARDS: u16 = 0x4000;
/// Addresses of a scan, or of a flood of claims.
const MANY: u64 = 300;

/// How a host answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    Soon,
    Late,
    Never,
    /// It probes for its address (RFC 5227) and does not answer; `gave_up`: it has found that the address is
    /// taken.
    Booting {
        gave_up: bool,
    },
}

/// A host, or a liar.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) ip: Ipv4Addr,
    pub(super) side: Of,
    /// Its card or port.
    pub(super) n: u16,
    /// The part of its side's network that it is in.
    pub(super) part: u8,
    pub(super) alive: bool,
    pub(super) manner: Manner,
    /// It claims every address that is requested.
    pub(super) answers_for_all: bool,
    /// The hosts that have answered it, by the requested address.
    pub(super) answers: HashMap<Ipv4Addr, Vec<Place>>,
}

/// The slot of a gateway: its present run, its sides and its networks.
pub(super) struct Slot {
    pub(super) life: Option<Gateway>,
    pub(super) up: [bool; 2],
    /// The part of each side's network that it is in.
    pub(super) part: [u8; 2],
    pub(super) priority: u8,
    pub(super) networks: Networks,
}

/// An ARP packet of either side, as hosts see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) operation: ArpOperation,
    at: Place,
    pub(super) sender: Ipv4Addr,
    pub(super) target: Ipv4Addr,
}

impl Said {
    /// True if it was sent by host or gateway `n`.
    pub(super) fn is_of(&self, n: u16) -> bool {
        is_of(self.at, n)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Gateway(usize),
    Host(usize),
}

enum Cargo {
    Frame { from: Whose, bytes: Vec<u8> },
    Message { from: (Whose, UdSource), to: Option<(Lid, Qpn)>, bytes: Vec<u8> },
    Management { to: usize, mad: Mad },
    Pair { to: usize, transmit: Transmit },
}

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Counts of the whole run, including gateways that have gone.
#[derive(Clone, Copy, Default)]
pub(super) struct Figures {
    lives: u64,
    arp: u64,
    hellos: u64,
    packets: [u64; 3],
    pub(super) takeovers: u64,
    pub(super) moves: u64,
    pub(super) conflicts: u64,
    held_down: u64,
}

impl Figures {
    fn add(&mut self, gateway: &Gateway) {
        let (counted, pair) = (gateway.segment.counters(), gateway.pair.statistics());
        self.hellos += pair.received;
        self.takeovers += pair.takeovers;
        self.moves += counted.moves;
        self.conflicts += counted.conflicts;
        self.held_down += counted.held_down;
        for (sum, n) in self.packets.iter_mut().zip(gateway.packets) {
            *sum += n;
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lives, arp, hellos, takeovers, moves, conflicts, held_down, packets } = self;
        let [known, waited, lost] = packets;
        write!(
            f,
            "{lives} gateways, {arp} ARP packets, {hellos} hellos, {takeovers} takeovers, {moves} moves, {conflicts} conflicts, \
             {held_down} held down, {known} packets at once, {waited} waited, {lost} in vain"
        )
    }
}

pub(super) struct Town {
    pub(super) now: Instant,
    pub(super) random: Random,
    pub(super) hosts: Vec<Host>,
    pub(super) slots: [Slot; 3],
    /// Loss in percent: of all packets, and of hellos between gateways.
    pub(super) loss: u64,
    pub(super) hello_loss: u64,
    pub(super) hello_delay: Duration,
    /// Subnet administration does not answer.
    pub(super) manager_away: bool,
    flying: BTreeMap<(Instant, u64), Cargo>,
    order: u64,
    /// Time of the next iteration of all control lcores.
    turn: Instant,
    next_card: u16,
    gone: Figures,
    /// The ARP packets of each side, of gateways and hosts, if a test watches them.
    pub(super) watched: Option<Vec<(Instant, Of, bool, Said)>>,
}

/// True if both are the same card, or port and queue pair.
pub(super) fn is_same(a: Place, b: Place) -> bool {
    match (a, b) {
        (Place::InfiniBand(a), Place::InfiniBand(b)) => a.is_same_as(b),
        (a, b) => a == b,
    }
}

/// True if the card or port is that of host or gateway `n`, whatever its queue pair and subnet prefix.
pub(super) fn is_of(at: Place, n: u16) -> bool {
    match at {
        Place::Ethernet(at) => at == mac(n),
        Place::InfiniBand(at) => at.gid.0[8..] == port(n).gid.0[8..],
    }
}

impl Town {
    pub(super) fn new(seed: u64) -> Self {
        let slot = |g: u8| Slot {
            life: None,
            up: [true; 2],
            part: [0; 2],
            priority: 100,
            networks: Networks {
                address: Ipv4Addr::new(10, 77, 0, 250 + g),
                length: 24,
                second: true,
                router: None,
                key: (seed % 2 == 1).then_some(8),
                hello: HELLO,
            },
        };
        let host = |n: usize| {
            let ip = match n {
                0..20 => Ipv4Addr::new(10, 77, 0, 1 + n as u8),
                20..HOSTS => Ipv4Addr::new(10, 78, 0, n as u8),
                _ => Ipv4Addr::new(10, 77, 0, 200 + n as u8),
            };
            Host {
                ip,
                side: Of::BOTH[n % 2],
                n: FIRST + n as u16,
                part: 0,
                alive: true,
                manner: Manner::Soon,
                answers_for_all: false,
                answers: HashMap::new(),
            }
        };
        let now = Instant::now();
        Self {
            now,
            random: Random(seed),
            hosts: (0..HOSTS + LIARS).map(host).collect(),
            slots: [slot(0), slot(1), slot(2)],
            loss: 0,
            hello_loss: 0,
            hello_delay: ms(1),
            manager_away: false,
            flying: BTreeMap::new(),
            order: 0,
            turn: now,
            next_card: FIRST + 100,
            gone: Figures::default(),
            watched: None,
        }
    }

    pub(super) const fn chance(&mut self, of: u64) -> u64 {
        self.random.next() % of
    }

    pub(super) fn figures(&self) -> Figures {
        let mut figures = self.gone;
        self.slots.iter().filter_map(|slot| slot.life.as_ref()).for_each(|gateway| figures.add(gateway));
        figures
    }

    // -- gateways

    pub(super) fn start(&mut self, g: usize) {
        self.gone.lives += 1;
        let (now, life, slot) = (self.now, self.gone.lives, &mut self.slots[g]);
        let mut gateway = Gateway::new(now, GATEWAY + g as u16, life, slot.priority, &slot.networks);
        gateway.set_sides(now, slot.up);
        slot.life = Some(gateway);
        self.send_off(g);
    }

    pub(super) fn kill(&mut self, g: usize) {
        if let Some(gateway) = self.slots[g].life.take() {
            self.gone.add(&gateway);
        }
    }

    /// It exits in order.
    pub(super) fn end(&mut self, g: usize) {
        let now = self.now;
        if let Some(gateway) = &mut self.slots[g].life {
            gateway.with_pair(now, |pair| pair.leave(now));
        }
        self.send_off(g);
        self.kill(g);
    }

    pub(super) fn set_side(&mut self, g: usize, side: usize, up: bool) {
        let (now, slot) = (self.now, &mut self.slots[g]);
        slot.up[side] = up;
        if let Some(gateway) = &mut slot.life {
            gateway.set_sides(now, slot.up);
        }
        self.send_off(g);
    }

    /// Adds or removes the second subnet, changes a route's router or removes it; sometimes a wrong one.
    pub(super) fn reload(&mut self, g: usize) {
        let (second, router, mistake) = (self.chance(4) != 0, self.chance(HOSTS as u64 * 2), self.chance(12));
        let router = self.hosts.get(router as usize).filter(|h| h.ip.octets()[1] == 77).map(|h| h.ip);
        let (now, slot) = (self.now, &mut self.slots[g]);
        slot.networks =
            Networks { second, router, length: if mistake == 0 { 16 } else { 24 }, ..slot.networks };
        if let Some(gateway) = &mut slot.life {
            gateway.reload(now, &slot.networks);
        }
    }

    /// Heals the networks: no packet is lost or late.
    pub(super) fn mend(&mut self) {
        (self.loss, self.hello_loss, self.hello_delay, self.manager_away) = (0, 0, ms(1), false);
    }

    // -- hosts

    fn new_card(&mut self) -> u16 {
        self.next_card = if self.next_card < CARDS { self.next_card + 1 } else { FIRST + 100 };
        self.next_card
    }

    pub(super) fn change_card(&mut self, h: usize) {
        self.hosts[h].n = self.new_card();
    }

    pub(super) fn move_over(&mut self, h: usize) {
        self.change_card(h);
        let side = &mut self.hosts[h].side;
        *side = side.other();
    }

    /// A host that has come announces its address, probes for it, sends a request, or is silent.
    pub(super) fn greet(&mut self, h: usize) {
        let ip = self.hosts[h].ip;
        match self.chance(5) {
            0 => self.say(h, ArpOperation::Request, NONE, ip, None),
            1 => self.say(h, ArpOperation::Reply, ip, ip, None),
            2 => self.announce(h),
            3 => {
                let other = self.chance(HOSTS as u64) as usize;
                self.request(h, self.hosts[other].ip);
            }
            _ => {}
        }
    }

    pub(super) fn probe(&mut self, h: usize, target: Ipv4Addr) {
        self.say(h, ArpOperation::Request, NONE, target, None);
    }

    pub(super) fn announce(&mut self, h: usize) {
        let ip = self.hosts[h].ip;
        self.say(h, ArpOperation::Request, ip, ip, None);
    }

    pub(super) fn request(&mut self, h: usize, target: Ipv4Addr) {
        let ip = self.hosts[h].ip;
        if ip != target {
            self.say(h, ArpOperation::Request, ip, target, None);
        }
    }

    /// A liar claims another host's address.
    pub(super) fn lie(&mut self, liar: usize, victim: Ipv4Addr) {
        let kind = self.chance(4);
        self.lie_as(kind, liar, victim);
    }

    pub(super) fn lie_as(&mut self, kind: u64, liar: usize, victim: Ipv4Addr) {
        let other = self.chance(HOSTS as u64) as usize;
        match kind {
            0 => self.say(liar, ArpOperation::Request, victim, victim, None),
            1 => self.say(liar, ArpOperation::Reply, victim, victim, None),
            2 => self.say(liar, ArpOperation::Request, victim, self.hosts[other].ip, None),
            _ => self.say(liar, ArpOperation::Request, victim, self.slots[0].networks.address, None),
        }
    }

    /// A liar requests many addresses that no host has.
    pub(super) fn scan(&mut self, liar: usize) {
        for n in 0..MANY {
            self.request(liar, Ipv4Addr::new(10, 77, 0, 100 + (n % 140) as u8));
            self.run(ms(1));
        }
    }

    /// A liar claims all addresses, many times.
    pub(super) fn claim_many(&mut self, liar: usize) {
        for n in 0..MANY as usize {
            let victim = self.hosts[n % HOSTS].ip;
            self.lie(liar, victim);
            self.run(ms(1));
        }
    }

    pub(super) fn forget_answers(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.answers.clear());
    }

    /// A host sends a packet to another address: the gateway that forwards handles it, unless a host on the
    /// same side has the address.
    pub(super) fn send(&mut self, from: usize, to: Ipv4Addr) {
        let host = &self.hosts[from];
        let same_side = self.hosts.iter().any(|other| other.ip == to && other.side == host.side);
        let (source, side, n) = (host.ip, host.side, host.n);
        let boots = matches!(host.manner, Manner::Booting { .. });
        if !host.alive || boots || same_side || source == to {
            return;
        }
        let side = if side == Of::Ethernet { Side::Ethernet } else { Side::InfiniBand };
        let now = self.now;
        for g in 0..self.slots.len() {
            if let Some(gateway) = self.slots[g].life.as_mut().filter(|gateway| gateway.forwards()) {
                gateway.forward(now, side, n, [source, to]);
                self.send_off(g);
            }
        }
    }

    /// A host sends an ARP packet: to all, or as an answer to one location.
    fn say(
        &mut self,
        h: usize,
        operation: ArpOperation,
        sender: Ipv4Addr,
        target: Ipv4Addr,
        to: Option<Place>,
    ) {
        let host = &self.hosts[h];
        let boots = matches!(host.manner, Manner::Booting { .. });
        // A host that boots does not use its address yet.
        if !host.alive || (boots && !sender.is_unspecified()) {
            return;
        }
        let late = to.is_some() && host.manner == Manner::Late;
        let after = ms(if late { 1500 } else { 1 } + self.random.next() % 3);
        let host = &self.hosts[h];
        let cargo = match host.side {
            Of::Ethernet => {
                let to = if let Some(Place::Ethernet(to)) = to { to } else { MacAddress::BROADCAST };
                let (sender_mac, target_mac) = (mac(host.n), MacAddress::ZERO);
                let arp =
                    EthernetArp { operation, sender_mac, sender_ip: sender, target_mac, target_ip: target };
                Cargo::Frame { from: Whose::Host(h), bytes: arp.to_frame(to).to_vec() }
            }
            Of::InfiniBand => {
                let operation = match operation {
                    ArpOperation::Request => InfiniBandOperation::Request,
                    ArpOperation::Reply => InfiniBandOperation::Reply,
                };
                let arp = Arp { operation, ..Arp::request(bare(host.n), sender, target) };
                let bytes = [&[8, 6, 0, 0][..], &arp.to_bytes()].concat();
                let to =
                    if let Some(Place::InfiniBand(to)) = to { Some((lid(to.gid), to.qpn)) } else { None };
                Cargo::Message { from: (Whose::Host(h), from_port(host.n)), to, bytes }
            }
        };
        self.fly(after, cargo);
    }

    /// Handles an ARP packet at a host.
    fn hear(&mut self, h: usize, said: Said) {
        let host = &mut self.hosts[h];
        let Said { operation, at, sender, target } = said;
        if !host.alive {
            return;
        }
        let of_gateway = (0..3).any(|g| is_of(at, GATEWAY + g));
        if let Manner::Booting { gave_up } = &mut host.manner {
            *gave_up |= sender == host.ip || (sender.is_unspecified() && target == host.ip);
            return;
        }
        // Reverse path filter, and `arp_ignore` 2: gateways have no other route.
        let reachable = sender.is_unspecified() || sender.octets()[..3] == host.ip.octets()[..3];
        if of_gateway && operation == ArpOperation::Request && !reachable {
            return;
        }
        if operation == ArpOperation::Reply {
            if target == host.ip && sender != host.ip {
                let answers = host.answers.entry(sender).or_default();
                if !answers.iter().any(|known| is_same(*known, at)) {
                    answers.push(at);
                }
            }
            return;
        }
        let ours = target == host.ip && host.manner != Manner::Never;
        if sender != target && (ours || host.answers_for_all) {
            self.say(h, ArpOperation::Reply, target, sender, Some(at));
        }
    }

    // -- the networks

    fn fly(&mut self, after: Duration, cargo: Cargo) {
        self.order += 1;
        self.flying.insert((self.now + after, self.order), cargo);
    }

    /// Sends the transmits of a gateway, if the side is up.
    pub(super) fn send_off(&mut self, g: usize) {
        let Some(gateway) = &mut self.slots[g].life else { return };
        let n = gateway.n;
        for sent in std::mem::take(&mut gateway.sent) {
            let after = ms(1 + self.random.next() % 2);
            let up = self.slots[g].up;
            match sent {
                Sent::Frame(bytes) if up[0] => {
                    self.fly(after, Cargo::Frame { from: Whose::Gateway(g), bytes })
                }
                Sent::Message { worker, to, bytes } if up[1] => {
                    let from = UdSource { qpn: queue_pair(n, worker.0), ..from_port(n) };
                    let to = (to.av.dlid != GROUP).then_some((to.av.dlid, to.qpn));
                    self.fly(after, Cargo::Message { from: (Whose::Gateway(g), from), to, bytes });
                }
                Sent::Management(mad) if up[1] => {
                    if let Some(mad) = answer(&mad).filter(|_| !self.manager_away) {
                        self.fly(after, Cargo::Management { to: g, mad });
                    }
                }
                Sent::Pair(transmit) => {
                    let (Transmit::Message(side, _) | Transmit::Probe(side, _)) = &transmit;
                    let side = *side as usize;
                    let is_reached = |to: &usize| self.slots[*to].part[side] == self.slots[g].part[side];
                    let others = (0..self.slots.len()).filter(|to| *to != g && up[side]);
                    for to in others.filter(is_reached).collect::<Vec<_>>() {
                        let late = self.random.next() % (self.hello_delay.as_micros() as u64 + 1);
                        let after = after + Duration::from_micros(late);
                        if self.chance(100) >= self.hello_loss {
                            self.fly(after, Cargo::Pair { to, transmit: transmit.clone() });
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn arrive(&mut self, cargo: Cargo) {
        match cargo {
            Cargo::Frame { from, bytes } => self.frame(from, &bytes),
            Cargo::Message { from, to, bytes } => self.message(from, to, &bytes),
            Cargo::Management { to, mad } => {
                self.with_gateway(to, Of::InfiniBand, |gateway, now| gateway.hear_management(now, &mad));
            }
            Cargo::Pair { to, transmit } => {
                let (Transmit::Message(side, _) | Transmit::Probe(side, _)) = &transmit;
                self.with_gateway(to, *side, |gateway, now| gateway.hear_gateway(now, &transmit));
            }
        }
    }

    fn with_gateway(&mut self, g: usize, side: Of, act: impl FnOnce(&mut Gateway, Instant)) {
        let lost = self.loss > 0 && self.chance(100) < self.loss;
        let (now, slot) = (self.now, &mut self.slots[g]);
        if let Some(gateway) = slot.life.as_mut().filter(|_| slot.up[side as usize] && !lost) {
            act(gateway, now);
            self.send_off(g);
        }
    }

    fn frame(&mut self, from: Whose, bytes: &[u8]) {
        self.gone.arp += 1;
        let to = EthernetHeader::parse(bytes).unwrap().destination;
        let hears = |n: u16| !to.is_unicast() || to == mac(n);
        for g in 0..self.slots.len() {
            let is_reached = self.slots[g].part[0] == self.part_of(from, Of::Ethernet);
            if from != Whose::Gateway(g) && hears(GATEWAY + g as u16) && is_reached {
                self.with_gateway(g, Of::Ethernet, |gateway, now| gateway.hear_frame(now, bytes));
            }
        }
        let arp = EthernetArp::parse(bytes).unwrap();
        let (at, sender, target) = (Place::Ethernet(arp.sender_mac), arp.sender_ip, arp.target_ip);
        let said = Said { operation: arp.operation, at, sender, target };
        self.watch(from, Of::Ethernet, said);
        self.report_hosts(from, Of::Ethernet, said, hears);
    }

    fn message(&mut self, (from, source): (Whose, UdSource), to: Option<(Lid, Qpn)>, bytes: &[u8]) {
        self.gone.arp += 1;
        for g in 0..self.slots.len() {
            let is_reached = self.slots[g].part[1] == self.part_of(from, Of::InfiniBand);
            let hears = to.is_none_or(|(lid, _)| lid == Lid(GATEWAY + g as u16));
            if from != Whose::Gateway(g) && hears && is_reached {
                let to = to.map(|(_, qpn)| qpn);
                self.with_gateway(g, Of::InfiniBand, |gateway, now| {
                    gateway.hear_message(now, &source, to, bytes);
                });
            }
        }
        let arp = Arp::parse(&bytes[4..]).unwrap();
        let operation = match arp.operation {
            InfiniBandOperation::Request => ArpOperation::Request,
            _ => ArpOperation::Reply,
        };
        let (at, sender, target) = (Place::InfiniBand(arp.sender), arp.sender_ip, arp.target_ip);
        let said = Said { operation, at, sender, target };
        self.watch(from, Of::InfiniBand, said);
        self.report_hosts(from, Of::InfiniBand, said, |n| to.is_none_or(|to| to == (Lid(n), port(n).qpn)));
    }

    /// The part of the side's network in which a card or port is.
    fn part_of(&self, whose: Whose, side: Of) -> u8 {
        match whose {
            Whose::Gateway(g) => self.slots[g].part[side as usize],
            Whose::Host(h) => self.hosts[h].part,
        }
    }

    fn watch(&mut self, from: Whose, side: Of, said: Said) {
        if let Some(watched) = &mut self.watched {
            watched.push((self.now, side, matches!(from, Whose::Gateway(_)), said));
        }
    }

    fn report_hosts(&mut self, from: Whose, side: Of, said: Said, hears: impl Fn(u16) -> bool) {
        for h in 0..self.hosts.len() {
            let host = &self.hosts[h];
            let is_reached = host.side == side && host.part == self.part_of(from, side);
            let is_there = is_reached && from != Whose::Host(h) && hears(host.n);
            if is_there && (self.loss == 0 || self.chance(100) >= self.loss) {
                self.hear(h, said);
            }
        }
    }

    // -- time

    /// Runs from one deadline to the next; a control lcore has at least one iteration in each [`TURN`].
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut stood = 0;
        loop {
            let lives = self.slots.iter().filter_map(|slot| slot.life.as_ref());
            let timers = lives.filter_map(Gateway::poll_timeout).chain([self.turn, end]);
            let next = self.flying.first_key_value().map(|(key, _)| key.0).into_iter().chain(timers).min();
            let next = self.now.max(next.unwrap_or(end));
            stood = if next > self.now { 0 } else { stood + 1 };
            assert!(stood < 10_000, "time stands still");
            self.now = next;
            while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let cargo = entry.remove();
                self.arrive(cargo);
            }
            let now = self.now;
            let all = now >= self.turn;
            for g in 0..self.slots.len() {
                let due = |gateway: &&mut Gateway| all || gateway.poll_timeout().is_some_and(|at| at <= now);
                if let Some(gateway) = self.slots[g].life.as_mut().filter(due) {
                    gateway.handle_timeout(now);
                    self.send_off(g);
                }
            }
            if all {
                self.turn = now + TURN;
            }
            if self.now >= end {
                return;
            }
        }
    }
}

/// The link-layer address of a host that takes no connections.
fn bare(n: u16) -> HardwareAddress {
    HardwareAddress { flags: AddressFlags::NONE, ..port(n) }
}

/// The LID of a port.
pub(super) fn lid(gid: Gid) -> Lid {
    Lid(u16::from_be_bytes([gid.0[14], gid.0[15]]))
}
