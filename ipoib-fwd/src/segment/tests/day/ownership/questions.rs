//! Queries of the gateways, and further events: hosts that boot with conflict detection, answer late, or
//! answer for all addresses, liars on the owner's own side, and two gateways of which one goes.
//!
//! A query must be one that a Linux host answers with any `rp_filter` and `arp_ignore`: it has no sender
//! address, or an address of the target's subnet. A query without a sender address makes a host that probes
//! for the address at that moment give it up (RFC 5227 2.1.1).

use super::super::gateway::{self, Gateway, Networks};
use super::*;
use crate::segment::pair::election::HANDOVER;

/// A host that probes for an address does so within this time.
const PROBING: Duration = secs(10);
/// How long a host that has become silent is known.
const KNOWN: Duration = secs(120);
/// Probes of a host that boots, and its wait after the last one, before it uses the address (RFC 5227 1.1).
const PROBES: u8 = 3;
const ANNOUNCE_WAIT: Duration = secs(2);
/// Time between two announcements of a host (RFC 5227 1.1).
const ANNOUNCE_INTERVAL: Duration = secs(2);
/// Seeds of each random run, and seconds of each.
const SOME: u64 = 20;
const SPAN: u64 = 180;

/// Packets of hosts that make a difference for queries.
#[derive(Default)]
pub(super) struct Questions {
    /// When each gateway forwarded last.
    forwarded: [Option<Instant>; 3],
    /// Numbers of checked queries: without a sender address, in the gateway's name, in a host's.
    pub(super) checked: [u64; 3],
}

/// True if a Linux host answers a query for `target`, its address in a 24-bit subnet, to which it has its
/// only route.
fn is_answered(rp_filter: u8, arp_ignore: u8, sender: Ipv4Addr, target: Ipv4Addr) -> bool {
    let is_same_subnet = sender.octets()[..3] == target.octets()[..3];
    let is_routed = rp_filter == 0 || is_same_subnet;
    sender.is_unspecified() || is_routed && (arp_ignore != 2 || is_same_subnet)
}

#[test]
fn linux_answers_senders_to_which_it_has_a_route() {
    let [host, near, far] = [[10, 78, 0, 1], [10, 78, 0, 2], [10, 77, 0, 2]].map(Ipv4Addr::from);
    for (rp_filter, arp_ignore) in (0..3).flat_map(|filter| (0..4).map(move |ignore| (filter, ignore))) {
        assert!(is_answered(rp_filter, arp_ignore, NONE, host));
        assert!(is_answered(rp_filter, arp_ignore, near, host));
        assert_eq!(is_answered(rp_filter, arp_ignore, far, host), rp_filter == 0 && arp_ignore != 2);
    }
}

impl World {
    /// Handles a packet, in the order of time. Packets of gateways are checked against the answers of hosts.
    pub(super) fn check_question(&mut self, at: Instant, side: Of, of_gateway: bool, said: Said) {
        let Said { operation, sender, target, .. } = said;
        self.note_forwarders();
        if !of_gateway {
            if operation == ArpOperation::Request && sender.is_unspecified() {
                self.probes.push((at, side, target));
            }
            return;
        }
        if operation != ArpOperation::Request || sender == target {
            return;
        }
        let whose = self.town.slots.iter().position(|slot| slot.networks.address == sender);
        self.questions.checked[match whose {
            _ if sender.is_unspecified() => 0,
            Some(_) => 1,
            None => 2,
        }] += 1;
        for (rp_filter, arp_ignore) in (0..3).flat_map(|filter| (0..4).map(move |ignore| (filter, ignore))) {
            assert!(
                is_answered(rp_filter, arp_ignore, sender, target),
                "{side:?} {:?}: a host with rp_filter {rp_filter} and arp_ignore {arp_ignore} leaves {said:?} unanswered",
                self.net
            );
        }
        if sender.is_unspecified() {
            self.check_query_without_sender(at, side, target);
        } else if whose.is_none() {
            assert!(
                self.town.hosts.iter().any(|host| host.ip == sender),
                "{said:?} names a host that does not exist"
            );
            let of = (0..3).find(|g| said.is_of(town::GATEWAY + *g)).unwrap();
            let last = self.questions.forwarded[usize::from(of)];
            let lately = last.is_some_and(|last| at <= last + HANDOVER + secs(1));
            assert!(lately, "gateway {of} does not forward and sends {said:?}");
        }
    }

    fn note_forwarders(&mut self) {
        for (g, slot) in self.town.slots.iter().enumerate() {
            if slot.life.as_ref().is_some_and(Gateway::forwards) {
                self.questions.forwarded[g] = Some(self.town.now);
            }
        }
    }

    /// The owner of an address that boots is not queried without a sender address, unless another host claims
    /// the address, or probes for it, too.
    fn check_query_without_sender(&self, at: Instant, side: Of, target: Ipv4Addr) {
        let lately = |when: &Instant| at.saturating_duration_since(*when) <= PROBING;
        let boots = |host: &town::Host| {
            host.alive
                && matches!(host.manner, Manner::Booting { .. })
                && host.side == side
                && host.ip == target
        };
        // The link queries a neighbor that it knows by unicast when it ages, whether a host probes or not.
        let is_kept = side == Of::InfiniBand && self.is_known_there(target);
        let mut probes = self.probes.iter();
        let has_probed = probes.any(|(when, of, ip)| (*of, *ip) == (side, target) && lately(when));
        let is_owner = self.town.hosts.iter().any(boots) && has_probed;
        assert!(
            !is_owner || is_kept || self.is_claimed(at - PROBING, target),
            "{side:?} {:?}: {target} is being probed for, and queried without a sender address",
            self.net
        );
    }

    /// True if a gateway knows an address at its host's location.
    fn is_known_there(&self, ip: Ipv4Addr) -> bool {
        let hosts = self.town.hosts.iter().filter(|host| host.ip == ip);
        let places: Vec<_> = hosts.map(|host| gateway::place(host.side, host.n)).collect();
        let lives = self.town.slots.iter().filter_map(|slot| slot.life.as_ref());
        let mut known = lives.flat_map(|life| life.known(self.town.now)).filter(|known| known.ip == ip);
        known.any(|known| places.iter().any(|place| town::is_same(known.place, *place)))
    }

    /// True if another host than the one that boots has claimed an address since, or has probed for it on the
    /// other side. A liar's claim of its own side is known for longer.
    fn is_claimed(&self, since: Instant, ip: Ipv4Addr) -> bool {
        let since = match self.lied_about.contains(&ip) {
            true => since.checked_sub(KNOWN).unwrap_or(since),
            false => since,
        };
        let claims = self.heard.iter().any(|(when, _, sender)| *when >= since && *sender == ip);
        let owner = self.town.hosts.iter().find(|host| host.ip == ip && host.alive);
        let of_others = |(when, side, target): &(Instant, Of, Ipv4Addr)| {
            *when >= since && *target == ip && owner.is_none_or(|owner| owner.side != *side)
        };
        claims || self.probes.iter().any(of_others)
    }
}

/// A host that boots.
struct Boot {
    h: usize,
    since: Instant,
    next: Instant,
    probes: u8,
}

/// A world with more kinds of events.
struct Restless {
    w: World,
    boots: Vec<Boot>,
    /// Hosts that announce themselves again.
    again: Vec<(Instant, usize)>,
    /// Hosts that have got their address, and that have given it up.
    booted: [u64; 2],
}

impl Restless {
    fn new(seed: u64, net: Net, gateways: usize) -> Self {
        let mut w = World::cold(seed, net);
        w.town.slots[1].networks =
            networks_of_second(w.town.slots[0].networks, w.town.slots[1].networks.address);
        (0..gateways).for_each(|g| w.town.start(g));
        w.town.run(START);
        w.town.watched = Some(Vec::new());
        w.since = vec![w.town.now - BOUND * 2; HOSTS + LIARS];
        Self { w, boots: Vec::new(), again: Vec::new(), booted: [0; 2] }
    }

    fn run(&mut self, time: Duration) {
        let end = self.w.town.now + time;
        while self.w.town.now < end {
            let step = ms(100).min(end - self.w.town.now);
            self.w.note_forwarders();
            self.w.run(step);
            self.w.note_forwarders();
            self.boot_on();
            let now = self.w.town.now;
            for (_, h) in self.again.extract_if(.., |(at, _)| *at <= now) {
                self.w.town.announce(h);
            }
        }
    }

    /// A host that was away comes back, and probes for its address.
    fn boot(&mut self, h: usize) {
        let w = &mut self.w;
        w.town.hosts[h].alive = true;
        w.town.hosts[h].manner = Manner::Booting { gave_up: false };
        w.since[h] = w.town.now;
        let ip = w.ip(h);
        w.probe(h, ip);
        self.boots.push(Boot { h, since: w.town.now, next: w.town.now + secs(1), probes: 1 });
    }

    fn boot_on(&mut self) {
        let (w, booted) = (&mut self.w, &mut self.booted);
        self.boots.retain_mut(|boot| {
            let ip = w.ip(boot.h);
            let host = &mut w.town.hosts[boot.h];
            if !host.alive {
                host.manner = Manner::Soon;
                return false;
            }
            if host.manner == (Manner::Booting { gave_up: true }) {
                (host.alive, host.manner) = (false, Manner::Soon);
                assert!(
                    w.is_claimed(boot.since, ip),
                    "{:?} gives up an address that nobody else has",
                    w.town.hosts[boot.h]
                );
                booted[1] += 1;
                return false;
            }
            if w.town.now < boot.next {
                return true;
            }
            if boot.probes < PROBES {
                boot.probes += 1;
                boot.next = w.town.now + if boot.probes < PROBES { secs(1) } else { ANNOUNCE_WAIT };
                w.probe(boot.h, ip);
                return true;
            }
            host.manner = Manner::Soon;
            w.died.remove(&ip);
            w.since[boot.h] = w.town.now;
            w.town.announce(boot.h);
            booted[0] += 1;
            false
        });
    }

    /// An event that the shorter runs do not have.
    fn change_more(&mut self) {
        let h = self.w.town.chance(HOSTS as u64) as usize;
        let alive = self.w.town.hosts[h].alive;
        let boots = self.boots.iter().any(|boot| boot.h == h);
        match self.w.town.chance(6) {
            0 if alive && !boots => self.w.kill(h),
            1..=3 if !alive => self.boot(h),
            // The gateway may believe that an owner that answers late is silent.
            4 | 5 if alive && !boots => {
                let late = self.w.town.chance(2) == 0;
                self.w.town.hosts[h].manner = if late { Manner::Late } else { Manner::Soon };
                self.w.since[h] = self.w.town.now;
            }
            _ => {}
        }
    }

    /// Hosts that have just moved announce that, twice: a gateway that takes over announces known hosts at
    /// their known location.
    fn speak_after_moves(&mut self) {
        let w = &mut self.w;
        for h in (0..HOSTS).filter(|h| w.since[*h] == w.town.now).collect::<Vec<_>>() {
            w.town.announce(h);
            self.again.push((w.town.now + ANNOUNCE_INTERVAL, h));
        }
    }

    /// A host lies, on the owner's side or on the other one, or a host sends a request. All hosts are there
    /// and answer.
    fn lie_more(&mut self) {
        let w = &mut self.w;
        let h = w.town.chance(HOSTS as u64) as usize;
        let target = w.town.chance(HOSTS as u64) as usize;
        let (ip, target) = (w.ip(h), w.ip(target));
        let liar = HOSTS + w.town.chance(LIARS as u64) as usize;
        w.lied_about.extend((0..HOSTS).map(|h| w.town.hosts[h].ip));
        match w.town.chance(12) {
            0..=3 => w.town.lie(liar, ip),
            4 => w.town.hosts[liar].answers_for_all = !w.town.hosts[liar].answers_for_all,
            5 => w.probe(h, target),
            6..=8 => w.town.send(h, target),
            _ => w.town.request(h, target),
        }
    }
}

/// Networks of a second gateway: those of the first one, except for its address.
fn networks_of_second(of_first: Networks, address: Ipv4Addr) -> Networks {
    Networks { address, ..of_first }
}

/// Runs some seeds, and returns the numbers of checks.
fn live(gateways: usize, lies: bool, first: u64) -> ([u64; 3], [u64; 2]) {
    let (mut checked, mut booted) = ([0; 3], [0; 2]);
    for seed in first..first + SOME {
        let net = NETS[seed as usize % NETS.len()];
        let mut all = Restless::new(seed, net, gateways);
        let end = all.w.town.now + secs(SPAN);
        while all.w.town.now < end {
            match all.w.town.chance(3) {
                _ if lies => all.lie_more(),
                0 => all.change_more(),
                _ => change(&mut all.w),
            }
            if gateways > 1 {
                all.speak_after_moves();
            }
            if gateways > 1 && all.w.town.chance(40) == 0 {
                let g = all.w.town.chance(2) as usize;
                let in_order = all.w.town.chance(2) == 0;
                match all.w.town.slots[g].life {
                    Some(_) if in_order => all.w.town.end(g),
                    Some(_) => all.w.town.kill(g),
                    None => all.w.town.start(g),
                }
            }
            let pause = ms(all.w.town.chance(1500));
            all.run(pause);
        }
        (0..3).for_each(|n| checked[n] += all.w.questions.checked[n]);
        (0..2).for_each(|n| booted[n] += all.booted[n]);
    }
    println!(
        "figure: {gateways} gateways, lies {lies}: queries as nobody, gateway, host {checked:?}, booted {booted:?}"
    );
    (checked, booted)
}

#[test]
fn a_host_that_boots_among_others_gives_up_its_address_only_to_another_one() {
    let (checked, booted) = live(1, false, 0);
    assert!(checked.iter().all(|n| *n > 0) && booted[0] > 0, "{checked:?} {booted:?}");
}

#[test]
fn liars_on_both_sides_cause_no_false_arp_of_the_gateway() {
    let (checked, _) = live(1, true, 100);
    assert!(checked.iter().all(|n| *n > 0), "{checked:?}");
}

#[test]
fn two_gateways_of_which_one_goes_send_no_false_arp() {
    let (checked, booted) = live(2, false, 200);
    assert!(checked.iter().all(|n| *n > 0) && booted[0] > 0, "{checked:?} {booted:?}");
}

/// An InfiniBand host of another subnet requests the gateway itself, and ages afterwards while packets are
/// sent to it.
#[test]
fn a_host_of_another_subnet_that_requested_the_gateway_is_queried_in_a_name_with_a_route() {
    let mut w = World::new(1, Net::Second);
    let (far, host) = (w.host(Of::Ethernet, 0), w.host(Of::InfiniBand, 0));
    let (ip, of_gateway) = (w.ip(host), w.town.slots[0].networks.address);
    w.meet(far, host);
    w.meet(host, far);
    w.town.request(host, of_gateway);
    let before = w.questions.checked;
    for _ in 0..60 {
        w.town.send(far, ip);
        w.run(secs(1));
    }
    assert_ne!(w.questions.checked, before, "no query was sent");
}
