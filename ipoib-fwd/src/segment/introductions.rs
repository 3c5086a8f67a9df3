//! Introductions of Ethernet hosts to InfiniBand hosts.
//!
//! An InfiniBand host that is looked up on behalf of an Ethernet host may still send to that one at a queue
//! pair that is gone: another gateway's, or one of an earlier run or segment. Its answer to the first packet
//! would be lost until its own entry ages. A query in the name of the Ethernet host corrects the entry, but
//! is sent only once that name is proven. So packets and answers of this pair of hosts wait until the
//! InfiniBand host has answered such a query, or until a timeout.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::arp::check_ethernet;
use super::fabric::{Fabric, v4};
use super::machine::{Segment, source_of};
use super::output::{Output, Packet};
use super::parked::{Awaited, PATIENCE};
use super::pending::Claim;
use crate::forward::Side;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::MacAddress;

/// Maximum number at once. Beyond that the oldest host without a path is looked up without an introduction.
const MOST: usize = 256;
/// How long the InfiniBand host is looked up: no packet waits for longer.
const FOUND: Duration = PATIENCE;
/// How long the Ethernet host's address is being proven.
const PROVEN: Duration = Duration::from_secs(1);
/// How long the InfiniBand host's answer is awaited.
const ANSWERED: Duration = Duration::from_millis(500);

/// The event that an introduction waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// A path to the InfiniBand host.
    Path,
    /// The proof of the Ethernet host's address.
    Proof,
    /// The answer of the InfiniBand host.
    Answer,
}

#[derive(Clone, Copy, Debug)]
struct Introduction {
    stage: Stage,
    until: Instant,
    /// The Ethernet address at which the Ethernet host was heard.
    mac: MacAddress,
}

/// The introductions in progress, by the Ethernet host and the InfiniBand host.
#[derive(Debug, Default)]
pub(super) struct Introductions {
    open: BTreeMap<(IpAddr, IpAddr), Introduction>,
}

impl Introductions {
    /// True while `source` is being introduced to `target`.
    pub(super) fn is_open(&self, source: IpAddr, target: IpAddr) -> bool {
        self.open.contains_key(&(source, target))
    }

    /// True while an Ethernet host is being introduced to any host.
    pub(super) fn is_source(&self, source: IpAddr) -> bool {
        let all =
            (source, IpAddr::V4(Ipv4Addr::UNSPECIFIED))..=(source, IpAddr::V6(Ipv6Addr::from([0xff; 16])));
        self.open.range(all).next().is_some()
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.open.values().map(|introduction| introduction.until).min()
    }

    fn start(&mut self, now: Instant, source: IpAddr, target: IpAddr, mac: MacAddress) {
        if self.open.len() >= MOST && !self.is_open(source, target) {
            // Most hosts that are present have a path soon: the host without a path that has been looked up
            // for the longest makes room.
            let paths = self.open.iter().filter(|(_, introduction)| introduction.stage == Stage::Path);
            let Some((oldest, _)) = paths.min_by_key(|(_, introduction)| introduction.until) else { return };
            let oldest = *oldest;
            self.open.remove(&oldest);
        }
        let new = Introduction { stage: Stage::Path, until: now + FOUND, mac };
        self.open.entry((source, target)).or_insert(new);
    }

    fn advance(&mut self, pair: (IpAddr, IpAddr), stage: Stage, until: Instant) {
        if let Some(introduction) = self.open.get_mut(&pair) {
            (introduction.stage, introduction.until) = (stage, until);
        }
    }

    /// Introductions that are overdue, and those whose Ethernet host cannot be proven.
    fn expire(&mut self, now: Instant, can_be_proven: impl Fn(IpAddr) -> bool) -> Vec<IpAddr> {
        let is_over = |source: IpAddr, introduction: &Introduction| {
            introduction.until <= now || (introduction.stage == Stage::Proof && !can_be_proven(source))
        };
        let over = self.open.extract_if(.., |(source, _), introduction| is_over(*source, introduction));
        over.map(|((_, to), _)| to).collect()
    }

    /// Number of introductions in progress.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

impl<P: Packet> Segment<P> {
    /// An Ethernet host requests an unknown InfiniBand host, or sends to it: introduces it to that host if
    /// possible.
    pub(super) fn introduce(
        &mut self,
        now: Instant,
        fabric: &impl Fabric,
        (source, mac): (IpAddr, MacAddress),
        target: IpAddr,
    ) {
        let is_host =
            v4(source).zip(v4(target)).is_some_and(|(source, target)| self.may_name(source, target));
        if is_host
            && mac.is_unicast()
            && !self.own.owns(source)
            && !self.is_on(fabric, Side::InfiniBand, source)
        {
            self.introductions.start(now, source, target, mac);
        }
    }

    /// There is a path to an InfiniBand host: starts to prove the addresses of the hosts that wait for an
    /// introduction to it.
    pub(super) fn introduce_to(&mut self, now: Instant, fabric: &mut impl Fabric, target: IpAddr) {
        let waiting = |(key, introduction): (&(IpAddr, IpAddr), &Introduction)| {
            (key.1 == target && introduction.stage == Stage::Path).then_some((key.0, introduction.mac))
        };
        let waiting: Vec<_> = self.introductions.open.iter().filter_map(waiting).collect();
        for (source, mac) in waiting {
            self.introductions.advance((source, target), Stage::Proof, now + PROVEN);
            if self.hosts.get(source).is_none() {
                self.prove_source(now, fabric, source, mac);
                if !self.owners.is_queried(source) {
                    // It cannot be proven now.
                    self.introductions.open.remove(&(source, target));
                }
            }
            self.introduce_named(now, fabric, source, target);
        }
    }

    /// More is known of an Ethernet host: if it is proven by now, queries the hosts that wait for its
    /// introduction in its name.
    pub(super) fn introduce_proven(&mut self, now: Instant, fabric: &mut impl Fabric, source: IpAddr) {
        if self.introductions.open.is_empty() {
            return;
        }
        let of_source = self.introductions.open.iter().filter(|((of, _), _)| *of == source);
        let waiting: Vec<_> =
            of_source.filter(|(_, i)| i.stage == Stage::Proof).map(|((_, target), _)| *target).collect();
        for target in waiting {
            self.introduce_named(now, fabric, source, target);
        }
    }

    /// Queries an InfiniBand host in the name of a known Ethernet host, or first proves that one and waits
    /// until it is heard.
    fn introduce_named(&mut self, now: Instant, fabric: &mut impl Fabric, source: IpAddr, target: IpAddr) {
        if self.hosts.get(source).is_none() {
            return;
        }
        if self.name_for(now, fabric, Side::InfiniBand, target, Some(source)) == source {
            self.introductions.advance((source, target), Stage::Answer, now + ANSWERED);
            fabric.ask(now, self.worker_of(source), source, target);
        } else if self.unproven.contains_key(&source) {
            self.query_own_side(now, fabric, Side::InfiniBand, source);
        } else if !self.owners.is_queried(source) {
            self.verify_ethernet(now, source, None);
        }
    }

    /// An InfiniBand host has answered a query in the name of `source`.
    pub(super) fn introduced(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        source: IpAddr,
        target: IpAddr,
    ) {
        if self.introductions.open.remove(&(source, target)).is_some() {
            self.release_to_infiniband(now, fabric, target);
        }
    }

    /// Gives up introductions that are overdue or whose Ethernet host cannot be proven. Packets that waited
    /// for them are sent nevertheless.
    pub(super) fn expire_introductions(&mut self, now: Instant, fabric: &mut impl Fabric) {
        let (hosts, owners) = (&self.hosts, &self.owners);
        let can_be_proven = |source| hosts.get(source).is_some() || owners.is_queried(source);
        for target in self.introductions.expire(now, can_be_proven) {
            self.release_to_infiniband(now, fabric, target);
        }
    }

    /// Answers the requesters of an InfiniBand host and sends the packets that wait for it, except for hosts
    /// that are being introduced to it.
    pub(super) fn release_to_infiniband(&mut self, now: Instant, fabric: &mut impl Fabric, target: IpAddr) {
        if !fabric.has_way(target) {
            return;
        }
        // No answer is sent for an address that is not proven.
        if !self.lookups.contains_key(&target) && !self.unproven.contains_key(&target) {
            self.answer_ethernet_requesters(now, fabric, target);
        }
        let introductions = &self.introductions;
        let may_go = |packet: &P| !introductions.is_open(source_of(packet, Side::Ethernet), target);
        for waiting in self.parked.take_those(Awaited::InfiniBandHost, target, may_go) {
            let (side, worker) = (waiting.arrival.side, waiting.arrival.worker);
            self.output(Output::Release { side, worker, packet: waiting.packet });
        }
    }

    /// Starts to prove the address that an Ethernet host sends from.
    fn prove_source(&mut self, now: Instant, fabric: &mut impl Fabric, source: IpAddr, mac: MacAddress) {
        let Some(sender_ip) = v4(source) else { return };
        let arp = EthernetArp {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_ip,
            target_mac: self.own.mac(),
            target_ip: self.own.asker(),
        };
        if check_ethernet(&arp, mac, &self.own).is_ok() {
            self.prove(now, fabric, source, Claim::Ethernet(arp));
        }
    }
}
