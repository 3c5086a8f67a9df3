//! Host discovery by a gateway that starts to forward.
//!
//! Hosts go on sending to the hardware addresses in their neighbor caches. Those may belong to another
//! gateway that is gone or, on InfiniBand, to queue pairs of an earlier run; a host corrects that only when
//! its own entry ages. A gateway that does not know a host cannot announce it. So it queries both sides for
//! each address of the segment's subnets, in two rounds. An answer is a claim like any other
//! ([`ownership`](super::ownership)): the other side is queried, and if it stays silent the host is announced
//! there. The host is not learned thereby, unless a packet or another host waits for it.
//!
//! Addresses of hosts that were known before ([`kept`](super::kept)) come first, the most recent ones first
//! of all. Their second round precedes the first one of the other addresses as soon as it is due. When the time
//! for its last answers is over, the segment reports how many of these hosts answered ([`Census`]).
//!
//! A segment without subnets has no addresses to query. There a gateway that has started to forward also
//! queries the addresses that it hears in requests and announcements, for a time in which hosts' own entries
//! age.
//!
//! Queries and answers have token buckets of their own. While hosts look for many addresses, discovery slows
//! down.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::arp::{ArpMeaning, announcement_ethernet};
use super::fabric::Fabric;
use super::hosts;
use super::limits::By;
use super::machine::Segment;
use super::output::{Happening, Output, Packet};
use super::pending::Claim;
use crate::forward::{Prefix, Settings, Side};
use ipoib::net::ethernet::MacAddress;
use ipoib::net::ipv4::is_unicast;

/// Maximum number of addresses of subnets that are queried: first those of hosts that were heard on Ethernet,
/// then the other ones, the smallest subnets first. Addresses of hosts that were known before are not
/// counted.
pub(super) const MOST: usize = 4096;
/// Larger subnets are left out.
pub(super) const LARGEST: u64 = 1 << 16;
/// The second round starts this long after the first, or at its end: a query or its answer may be lost.
const AGAIN: Duration = Duration::from_secs(1);
/// How long after a query an answer counts as one to it.
const ANSWER: Duration = Duration::from_secs(1);
/// Time between two steps, and the most queries of one: a step may be late.
const PACE: Duration = Duration::from_millis(8);
const STEP: usize = 16;
/// How long heard addresses are queried in a segment without subnets, after the gateway starts to forward.
/// Entries of Linux age in at most 45 s.
const LISTEN: Duration = Duration::from_secs(60);

/// Addresses that are queried from this moment on.
#[derive(Debug)]
struct Round {
    from: Instant,
    addresses: VecDeque<Ipv4Addr>,
    /// The second round of the hosts that were known before.
    ends_census: bool,
}

impl Round {
    const fn new(from: Instant, addresses: VecDeque<Ipv4Addr>) -> Self {
        Self { from, addresses, ends_census: false }
    }
}

/// A count of the hosts that were known before and have answered. It exists from the start of discovery until it is
/// reported.
#[derive(Debug)]
struct Census {
    /// The queried hosts; true for those that have answered.
    hosts: HashMap<IpAddr, bool, FixedState>,
    /// When it is reported; `None` until the second round has ended.
    due: Option<Instant>,
}

impl Census {
    /// A host has answered.
    fn note(&mut self, ip: IpAddr) {
        if let Some(answered) = self.hosts.get_mut(&ip) {
            *answered = true;
        }
    }
}

/// Discovery in progress.
#[derive(Debug)]
pub(super) struct Discovery {
    /// Addresses that are still to be queried: the first round that may start is continued first.
    rounds: Vec<Round>,
    /// Until when addresses that are heard are queried, and which ones were, at most [`MOST`].
    listens: Option<Instant>,
    heard: HashSet<Ipv4Addr, FixedState>,
    /// Until when answers for the queried addresses count.
    queried: HashMap<IpAddr, Instant, FixedState>,
    /// Addresses that were answered for and are being proven.
    found: HashSet<IpAddr, FixedState>,
    census: Option<Census>,
    seed: u64,
    /// Known hosts that are announced without being discovered.
    announced: HashSet<IpAddr, FixedState>,
    next: Instant,
}

impl Discovery {
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        let hasher = || FixedState::with_seed(seed);
        Self {
            rounds: Vec::new(),
            listens: None,
            heard: HashSet::with_hasher(hasher()),
            queried: HashMap::with_hasher(hasher()),
            found: HashSet::with_hasher(hasher()),
            census: None,
            seed,
            announced: HashSet::with_hasher(hasher()),
            next: now,
        }
    }

    /// Queries `first`, each twice, and then the `others`.
    fn start(&mut self, now: Instant, first: VecDeque<Ipv4Addr>, others: impl Iterator<Item = Ipv4Addr>) {
        self.stop();
        if !first.is_empty() {
            let mut hosts = HashMap::with_hasher(FixedState::with_seed(self.seed));
            hosts.extend(first.iter().map(|ip| (IpAddr::V4(*ip), false)));
            self.census = Some(Census { hosts, due: None });
        }
        self.add_rounds(now, first);
        if let Some(round) = self.rounds.last_mut() {
            round.ends_census = true;
        }
        self.add_rounds(now, others.take(MOST).collect());
        self.next = now;
    }

    fn add_rounds(&mut self, now: Instant, addresses: VecDeque<Ipv4Addr>) {
        if !addresses.is_empty() {
            self.rounds.push(Round::new(now, addresses.clone()));
            self.rounds.push(Round::new(now + AGAIN, addresses));
        }
    }

    /// True if an address that is heard should be queried: it was not since the gateway started to forward.
    fn wants(&self, now: Instant, ip: Ipv4Addr) -> bool {
        self.listens.is_some_and(|until| now < until) && self.heard.len() < MOST && !self.heard.contains(&ip)
    }

    /// Queries an address that is heard, twice.
    fn query(&mut self, now: Instant, ip: Ipv4Addr) {
        if self.rounds.is_empty() {
            self.next = self.next.max(now);
        }
        self.heard.insert(ip);
        // Such addresses share rounds, so that there are few.
        match self.rounds.iter_mut().find(|round| round.from <= now && !round.ends_census) {
            Some(round) => round.addresses.push_back(ip),
            None => self.rounds.push(Round::new(now, VecDeque::from([ip]))),
        }
        match self.rounds.iter_mut().find(|round| round.from > now + AGAIN / 2 && !round.ends_census) {
            Some(round) => round.addresses.push_back(ip),
            None => self.rounds.push(Round::new(now + AGAIN, VecDeque::from([ip]))),
        }
    }

    pub(super) fn stop(&mut self) {
        self.rounds.clear();
        self.listens = None;
        self.heard.clear();
        self.queried.clear();
        self.found.clear();
        self.census = None;
        self.announced.clear();
    }

    /// A host that was known before is proven, or heard.
    pub(super) fn note_answer(&mut self, ip: IpAddr) {
        if let Some(census) = &mut self.census {
            census.note(ip);
        }
    }

    /// Takes the census once it is complete.
    fn take_census(&mut self, now: Instant) -> Option<Census> {
        self.census.take_if(|census| census.due.is_some_and(|due| due <= now))
    }

    /// A host is announced for another reason.
    pub(super) fn skip(&mut self, ip: IpAddr) {
        if !self.rounds.is_empty() {
            self.announced.insert(ip);
        }
    }

    /// True if an answer of a host that is not known is one to a query of discovery.
    pub(super) fn expects(&self, now: Instant, ip: IpAddr) -> bool {
        self.queried.get(&ip).is_some_and(|until| now < *until)
    }

    /// An address is proven. Returns true if that was found by discovery.
    pub(super) fn take_found(&mut self, ip: IpAddr) -> bool {
        self.found.remove(&ip)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let from = self.rounds.iter().map(|round| round.from).min();
        let step = from.map(|from| from.max(self.next));
        let census = self.census.as_ref().and_then(|census| census.due);
        step.into_iter().chain(census).min()
    }

    /// The next address to query.
    fn next(&mut self, now: Instant) -> Option<Ipv4Addr> {
        let at = self.rounds.iter().position(|round| round.from <= now)?;
        let round = self.rounds.get_mut(at)?;
        let ip = round.addresses.pop_front();
        if round.addresses.is_empty() {
            let round = self.rounds.remove(at);
            if let Some(census) = self.census.as_mut().filter(|_| round.ends_census) {
                census.due = Some(now + ANSWER);
            }
        }
        ip
    }

    /// Forgets queries for which an answer no longer counts. A proof takes less time than that.
    pub(super) fn expire(&mut self, now: Instant) {
        self.queried.retain(|_, until| now < *until);
        let queried = &self.queried;
        self.found.retain(|ip| queried.contains_key(ip));
    }
}

/// The subnets of a segment, the smallest ones first, without those that are too large.
fn subnets<D>(settings: &Settings<D>) -> Vec<Prefix> {
    let own = settings.address.map(|own| own.subnet());
    let mut subnets: Vec<Prefix> = Vec::new();
    for subnet in own.into_iter().chain(settings.routes.subnets()) {
        if subnet.size() <= LARGEST && !subnets.contains(&subnet) {
            subnets.push(subnet);
        }
    }
    subnets.sort_by_key(Prefix::size);
    subnets
}

/// The first addresses of these subnets, [`LARGEST`] in all.
fn addresses(subnets: &[Prefix]) -> impl Iterator<Item = Ipv4Addr> {
    let hosts = subnets.iter().flat_map(|subnet| {
        let (first, last) = subnet.hosts();
        (first.to_bits()..=last.to_bits()).map(Ipv4Addr::from_bits)
    });
    hosts.take(LARGEST as usize)
}

impl<P: Packet> Segment<P> {
    /// The gateway starts to forward: it queries both sides for all hosts, but for those
    /// that are `announced` in any case.
    pub(super) fn start_discovery(&mut self, now: Instant, announced: &HashSet<IpAddr>) {
        let subnets = subnets(&self.own.settings);
        let own = &self.own;
        let wanted = |ip: &Ipv4Addr| {
            own.settings.is_on_link(*ip)
                && !own.owns(IpAddr::V4(*ip))
                && !announced.contains(&IpAddr::V4(*ip))
        };
        let known: VecDeque<_> = self.kept.newest_first(now).map(|host| host.ip).filter(wanted).collect();
        let all: HashSet<_> = known.iter().copied().collect();
        let heard = |ip: &Ipv4Addr| self.heard.has(IpAddr::V4(*ip));
        let wanted = |ip: &Ipv4Addr| !all.contains(ip) && wanted(ip);
        let first = addresses(&subnets).filter(|ip| heard(ip) && wanted(ip));
        let others = addresses(&subnets).filter(|ip| !heard(ip) && wanted(ip));
        self.discovery.start(now, known, first.chain(others));
        if own.settings.knows_no_subnet() {
            self.discovery.listens = Some(now + LISTEN);
        }
    }

    /// Queries the addresses of a station's ARP packet, in a segment without subnets, like those of a subnet:
    /// hosts of the other side may have them at hardware addresses that are gone.
    pub(super) fn discover_heard(&mut self, now: Instant, sender: Ipv4Addr, meaning: ArpMeaning, by: By) {
        let target = match meaning {
            ArpMeaning::Request { target } | ArpMeaning::Probe { target } => Some(target),
            ArpMeaning::Reply | ArpMeaning::Announcement => None,
        };
        for ip in std::iter::once(sender).chain(target) {
            let is_host = is_unicast(ip) && !self.own.owns(ip.into());
            if is_host && self.discovery.wants(now, ip) && self.limits.take_heard(now, by) {
                self.discovery.query(now, ip);
            }
        }
    }

    /// Continues discovery.
    pub(super) fn discover(&mut self, now: Instant, fabric: &mut impl Fabric) {
        if self.discovery.poll_timeout().is_none_or(|at| now < at) {
            return;
        }
        self.report_census(now, fabric);
        self.discovery.next = now + PACE;
        if !fabric.is_up() {
            return;
        }
        for _ in 0..if self.is_busy() { 1 } else { STEP } {
            if !self.limits.discovery.take(now) {
                return;
            }
            let Some(ip) = self.discovery.next(now) else { return };
            self.discover_address(now, fabric, ip.into());
        }
    }

    /// Reports how many of the hosts that were known before have answered, once all of them were queried twice.
    fn report_census(&mut self, now: Instant, fabric: &impl Fabric) {
        let Some(census) = self.discovery.take_census(now) else { return };
        // Hosts that packets or other hosts wait for are looked up, not discovered.
        let is_known = |ip: IpAddr| {
            [Side::Ethernet, Side::InfiniBand].into_iter().any(|side| self.is_proven(fabric, side, ip))
        };
        let answered = census.hosts.iter().filter(|(ip, answered)| **answered || is_known(**ip)).count();
        let (queried, answered) = (census.hosts.len() as u64, answered as u64);
        self.counters.known_hosts_queried += queried;
        self.counters.known_hosts_answered += answered;
        self.output(Output::Happening(Happening::KnownHosts { queried, answered }));
    }

    /// True while hosts look for many addresses.
    fn is_busy(&self) -> bool {
        !self.ethernet_requesters.has_room()
            || !self.infiniband_requesters.has_room()
            || !hosts::has_room(&self.hosts)
            || !self.has_lookup_room()
    }

    fn discover_address(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        // The networks may have changed since.
        let is_host = matches!(ip, IpAddr::V4(ip) if self.own.settings.is_on_link(ip)) && !self.own.owns(ip);
        let is_sought = self.hosts.contains(ip) || fabric.is_sought(ip);
        let is_open = self.lookups.contains_key(&ip)
            || self.owners.claimed(ip).is_some()
            || self.owners.is_contested(now, ip);
        if !is_host || is_open {
            return;
        }
        for side in [Side::Ethernet, Side::InfiniBand] {
            if self.is_on(fabric, side, ip) {
                // It has become known since the gateway started to forward. One that is
                // verified is announced when it answers.
                let is_doubted =
                    self.hosts.is_asked(ip) || fabric.is_asked(ip) || self.meanwhile.is_doubted(ip);
                let is_new = self.is_proven(fabric, side, ip) && !self.discovery.announced.contains(&ip);
                if is_new && !is_doubted && self.limits.discovered.take(now) {
                    self.announce_discovered(now, fabric, ip, side);
                }
                return;
            }
        }
        if is_sought {
            return;
        }
        let on_infiniband = self.query_infiniband_hosts(now, fabric, ip);
        let on_ethernet = self.query_ethernet_host(now, fabric, ip, None, MacAddress::BROADCAST);
        if on_infiniband || on_ethernet {
            self.discovery.queried.insert(ip, now + ANSWER);
        }
    }

    /// A host that is not known has answered a query of discovery: it is proven, and announced then.
    pub(super) fn prove_discovered(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        claim: Claim,
    ) {
        self.discovery.note_answer(ip);
        if self.owners.claimed(ip).is_some() || self.discovery.found.contains(&ip) {
            return;
        }
        if !self.limits.discovered.take(now) {
            self.counters.limited += 1;
            return;
        }
        self.discovery.found.insert(ip);
        self.discovery.queried.insert(ip, now + ANSWER);
        self.start_proof(now, fabric, ip, claim.announced());
    }

    /// Announces a host of `side` on the other one.
    pub(super) fn announce_discovered(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        side: Side,
    ) {
        match (side, ip) {
            (Side::Ethernet, _) => {
                if !fabric.announce(now, self.worker_of(ip), ip) {
                    self.announce_later(now, ip);
                }
            }
            (Side::InfiniBand, IpAddr::V4(ip)) => {
                self.frame(&announcement_ethernet(ip, self.own.mac()), MacAddress::BROADCAST);
            }
            (Side::InfiniBand, IpAddr::V6(_)) => {}
        }
    }
}
