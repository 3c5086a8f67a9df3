//! A search for all hosts by a gateway that begins to forward.
//!
//! Hosts go on to send to the hardware addresses that they know. Those may be another gateway's that is gone, or, on InfiniBand, queue
//! pairs of an earlier run; a host corrects that only when its own entry ages. A forwarder that does not know the hosts cannot announce
//! them. So it asks both sides for each address of the segment's subnets and announces those that answer to the other side.
//!
//! Each address is queried twice on each side before it is decided where it is. An address that both sides speak for is not announced,
//! or not again: a host does not take an address whose owner answers. Hosts that are known already are announced by `role`.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::arp::announcement_ethernet;
use super::fabric::Fabric;
use super::machine::Segment;
use super::output::Packet;
use super::resolve::OWN_SIDE_FIRST;
use crate::forward::{Prefix, Settings, Side};
use ipoib::net::ethernet::MacAddress;

/// Most addresses that are searched; larger subnets are left out.
pub(super) const MOST: u32 = 4096;
/// Addresses of one step, and the time between two: 2,000 a second on each side.
const STEP: usize = 16;
const PACE: Duration = Duration::from_millis(8);
/// Rounds of questions: the first one or its answer may be lost.
const ROUNDS: u8 = 2;
/// A host is announced again after this time, since a broadcast may be lost.
const AGAIN: Duration = Duration::from_secs(1);

/// A search under way.
#[derive(Debug)]
pub(super) struct Search {
    /// Still to be asked for, and in which round.
    waiting: VecDeque<(Ipv4Addr, u8)>,
    /// Asked for, and when it is decided what the answers mean.
    decided_at: VecDeque<(Instant, Ipv4Addr, u8)>,
    /// On which sides they have answered, in any round and until the last announcement.
    answered: HashMap<Ipv4Addr, [bool; 2], FixedState>,
    /// To be announced on the side where the host is not, and whether that is the last time.
    announced_at: VecDeque<(Instant, Ipv4Addr, bool)>,
    next: Instant,
}

impl Search {
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        Self {
            waiting: VecDeque::new(),
            decided_at: VecDeque::new(),
            answered: HashMap::with_hasher(FixedState::with_seed(seed)),
            announced_at: VecDeque::new(),
            next: now,
        }
    }

    fn start(&mut self, now: Instant, addresses: impl Iterator<Item = Ipv4Addr>) {
        self.stop();
        self.waiting.extend(addresses.take(MOST as usize).map(|ip| (ip, 1)));
        self.next = now;
    }

    pub(super) fn stop(&mut self) {
        self.waiting.clear();
        self.decided_at.clear();
        self.answered.clear();
        self.announced_at.clear();
    }

    /// A host has spoken for itself.
    pub(super) fn hear(&mut self, side: Side, ip: Ipv4Addr) {
        if let Some(answered) = self.answered.get_mut(&ip) {
            answered[side as usize] = true;
        }
    }

    /// When there is something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let waits = (!self.waiting.is_empty()).then_some(self.next);
        let decided = self.decided_at.front().map(|(at, ..)| *at);
        let announced = self.announced_at.front().map(|(at, ..)| *at);
        [waits, decided, announced].into_iter().flatten().min()
    }

    /// The next addresses to ask for.
    fn due(&mut self, now: Instant) -> Vec<(Ipv4Addr, u8)> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + PACE;
        self.waiting.drain(..STEP.min(self.waiting.len())).collect()
    }

    fn ask(&mut self, now: Instant, ip: Ipv4Addr, round: u8) {
        self.answered.entry(ip).or_default();
        self.decided_at.push_back((now + OWN_SIDE_FIRST, ip, round));
    }

    /// Decides what the answers mean, after the last round: an owner may have lost one question.
    fn decide(&mut self, now: Instant) {
        while let Some((_, ip, round)) = self.decided_at.pop_front_if(|(at, ..)| *at <= now) {
            if round < ROUNDS {
                self.waiting.push_back((ip, round + 1));
            } else if self.announced_on(ip).is_some() {
                self.announced_at.push_front((now, ip, false));
                self.announced_at.push_back((now + AGAIN, ip, true));
            } else {
                self.answered.remove(&ip);
            }
        }
    }

    /// The side where a host is to be announced: the one that has not answered, if the other has.
    fn announced_on(&self, ip: Ipv4Addr) -> Option<Side> {
        match self.answered.get(&ip)? {
            [true, false] => Some(Side::InfiniBand),
            [false, true] => Some(Side::Ethernet),
            [true, true] | [false, false] => None,
        }
    }
}

/// The subnets of a segment, without those that are too large for a search.
fn subnets<D>(settings: &Settings<D>) -> Vec<Prefix> {
    let own = settings.address.map(|own| own.subnet());
    let mut subnets: Vec<Prefix> = Vec::new();
    for subnet in own.into_iter().chain(settings.routes.subnets()) {
        if subnet.size() <= u64::from(MOST) && !subnets.contains(&subnet) {
            subnets.push(subnet);
        }
    }
    subnets
}

impl<P: Packet> Segment<P> {
    /// It begins to forward, and may not know all hosts: they are searched for on both sides.
    pub fn search_hosts(&mut self, now: Instant) {
        let settings = &self.own.settings;
        let hosts = subnets(settings).into_iter().flat_map(|subnet| {
            let (first, last) = subnet.hosts();
            (first.to_bits()..=last.to_bits()).map(Ipv4Addr::from_bits)
        });
        let own = &self.own;
        let wanted = hosts.filter(|ip| own.settings.is_on_link(*ip) && !own.owns(IpAddr::V4(*ip)));
        let wanted: Vec<_> = wanted.take(MOST as usize).collect();
        self.search.start(now, wanted.into_iter());
    }

    /// Goes on with a search.
    pub(super) fn go_on_searching(&mut self, now: Instant, fabric: &mut impl Fabric) {
        if !fabric.is_up() {
            return;
        }
        for (ip, round) in self.search.due(now) {
            let host = IpAddr::V4(ip);
            let is_known = self.hosts.get(host).is_some() || fabric.hardware(host).is_some();
            if is_known && round > 1 {
                // It has become known since: what it answered is to be announced still.
                self.search.ask(now, ip, round);
            } else if is_known || !self.may_search(now, fabric, host) {
                // A host that probes for an address now announces itself soon.
                self.search.answered.remove(&ip);
            } else if self.ask_infiniband_hosts(now, fabric, host) {
                self.search.ask(now, ip, round);
                self.ask_ethernet_host(now, fabric, host, None, MacAddress::BROADCAST);
            } else {
                // The link's rate limit: silence would prove nothing.
                self.search.waiting.push_back((ip, round));
            }
        }
        self.search.decide(now);
        for _ in 0..STEP {
            let Some((_, ip, last)) = self.search.announced_at.pop_front_if(|(at, ..)| *at <= now) else {
                return;
            };
            if let Some(to) = self.search.announced_on(ip) {
                self.announce_found(now, fabric, ip, to);
            }
            if last {
                self.search.answered.remove(&ip);
            }
        }
    }

    /// True if both sides may be queried for an address: no host there probes for it.
    fn may_search(&self, now: Instant, fabric: &impl Fabric, ip: IpAddr) -> bool {
        [Side::Ethernet, Side::InfiniBand].into_iter().all(|side| {
            let name = self.name_for(now, fabric, side, ip, None);
            self.may_ask_as(now, fabric, side, ip, name)
        })
    }

    /// Announces a host that was found, unless it is known to be elsewhere by now, or its address is not settled.
    fn announce_found(&mut self, now: Instant, fabric: &mut impl Fabric, ip: Ipv4Addr, to: Side) {
        let host = IpAddr::V4(ip);
        let is_open = self.owners.is_contested(now, host) || self.owners.claimed(host).is_some();
        if is_open || self.lookups.contains_key(&host) || self.is_unproven(host) {
            return;
        }
        match to {
            Side::Ethernet if self.hosts.get(host).is_none() => {
                self.frame(&announcement_ethernet(ip, self.own.mac()), MacAddress::BROADCAST);
            }
            Side::InfiniBand if fabric.hardware(host).is_none() => {
                fabric.announce(now, self.worker_of(host), host);
            }
            Side::Ethernet | Side::InfiniBand => {}
        }
    }
}
