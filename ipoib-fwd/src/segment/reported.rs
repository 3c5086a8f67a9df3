//! Hosts that the forwarder reports to a standby gateway.
//!
//! With a key, reports are authentic, and the forwarder reports only hosts that it has proven. Without one,
//! any station can forge a report. Such a report never contradicts this gateway's own knowledge. Its host is
//! proven when this gateway starts to forward, before it is announced.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::fabric::{Fabric, v4};
use super::knowledge::side_of;
use super::machine::Segment;
use super::output::Packet;
use super::pair::{Neighbour, Place};
use crate::forward::Side;

/// Maximum number of lookups of reported hosts in progress: some 400 hosts a second.
const UNDER_WAY: usize = 128;

/// Hosts that are known only from reports that may be forged, and are not proven yet. They are all unproven
/// hosts of the segment.
#[derive(Debug)]
pub(super) struct Reported {
    hosts: HashSet<IpAddr, FixedState>,
    /// Other unproven hosts, which were known already when the gateway started to forward.
    found: HashSet<IpAddr, FixedState>,
    /// Hosts that will be proven next.
    queue: VecDeque<IpAddr>,
}

impl Reported {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = || FixedState::with_seed(seed);
        let (hosts, found) = (HashSet::with_hasher(hasher()), HashSet::with_hasher(hasher()));
        Self { hosts, found, queue: VecDeque::new() }
    }

    /// Removes a host that is proven, or is known otherwise by now. True if it was queued for proof because
    /// this gateway has started to forward.
    pub(super) fn remove(&mut self, ip: IpAddr) -> bool {
        let was_found = self.found.remove(&ip);
        self.hosts.remove(&ip) || was_found
    }

    /// Forgets hosts that are no longer unproven.
    pub(super) fn retain(&mut self, is_unproven: impl Fn(&IpAddr) -> bool) {
        self.hosts.retain(&is_unproven);
        self.found.retain(is_unproven);
    }

    /// This gateway starts to forward: queues all `unproven` hosts for proof.
    pub(super) fn start(&mut self, unproven: impl Iterator<Item = IpAddr>) {
        self.found.clear();
        self.found.extend(unproven.filter(|ip| !self.hosts.contains(ip)));
        self.queue.clear();
        self.prove_all();
    }

    /// Starts to prove all hosts, unless that is in progress.
    pub(super) fn prove_all(&mut self) {
        if self.queue.is_empty() {
            self.queue.extend(self.hosts.iter().chain(&self.found));
        }
    }

    /// True for a host that is queued for proof because this gateway forwards.
    pub(super) fn is_to_be_proven(&self, ip: IpAddr) -> bool {
        self.hosts.contains(&ip) || self.found.contains(&ip)
    }
}

impl<P: Packet> Segment<P> {
    /// Handles the forwarder's report of a host's location; `authentic`: no other station can have sent the
    /// report. True if the InfiniBand side should learn the host.
    pub fn learn_told(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        host: &Neighbour,
        authentic: bool,
    ) -> bool {
        let ip = host.ip;
        if self.forwards() || self.own.owns(ip) || !v4(ip).is_some_and(|ip| self.own.settings.is_on_link(ip))
        {
            return false;
        }
        let settings = &self.own.settings;
        let is_host = match host.place {
            Place::Ethernet(mac) => {
                mac.is_unicast() && mac != self.own.mac() && !settings.is_gateway_mac(mac)
            }
            Place::InfiniBand(hardware) => !settings.is_gateway_address(hardware),
        };
        if !is_host {
            return false;
        }
        if authentic {
            self.reported.remove(ip);
            self.unproven.remove(&ip);
        } else if !self.take_doubtful(fabric, host) {
            return false;
        }
        match host.place {
            Place::Ethernet(mac) => {
                if fabric.hardware(ip).is_some() {
                    fabric.forget(now, ip);
                }
                self.hosts.tell(now, ip, mac, None);
            }
            Place::InfiniBand(_) => self.hosts.forget(ip),
        }
        self.take_host_events(now, fabric);
        side_of(host.place) == Side::InfiniBand
    }

    /// Records a host whose report may be forged. False if there is no room for it, or if this gateway has
    /// better knowledge: then the owner is queried when the gateway starts to forward, as if a host had
    /// claimed the address.
    fn take_doubtful(&mut self, fabric: &impl Fabric, host: &Neighbour) -> bool {
        let known = (self.hosts.get(host.ip), fabric.hardware(host.ip));
        let is_same = match (host.place, known) {
            (_, (None, None)) => None,
            (Place::Ethernet(mac), (at, None)) => Some(at == Some(mac)),
            (Place::InfiniBand(hardware), (None, at)) => Some(at.is_some_and(|at| at.is_same_as(hardware))),
            _ => Some(false),
        };
        let has_room = || match host.place {
            Place::Ethernet(_) => self.hosts.has_room_for_reports(),
            Place::InfiniBand(_) => fabric.has_room_for_reports(),
        };
        match is_same {
            // It has been heard.
            Some(true) => return true,
            // It would take the room of hosts that were heard.
            None if !has_room() => return false,
            Some(false) if !self.reported.hosts.contains(&host.ip) => {
                self.meanwhile.note(host.ip);
                return false;
            }
            Some(false) | None => {}
        }
        self.unproven.insert(host.ip, false);
        self.reported.hosts.insert(host.ip);
        true
    }

    /// Proves hosts that are known from reports: queries the other side for them, at a pace that
    /// leaves room for everything else.
    pub(super) fn prove_reported(&mut self, now: Instant, fabric: &mut impl Fabric) {
        let is_reported = |ip: &&IpAddr| self.reported.is_to_be_proven(**ip);
        let under_way = self.lookups.keys().filter(is_reported).count();
        for _ in under_way..UNDER_WAY {
            let Some(ip) = self.reported.queue.pop_front() else { return };
            let side = match self.hosts.get(ip) {
                _ if !self.reported.is_to_be_proven(ip) => continue,
                Some(_) => Side::Ethernet,
                None if fabric.hardware(ip).is_some() => Side::InfiniBand,
                None => continue,
            };
            if !self.query_own_side(now, fabric, side.other(), ip) {
                // It is queried after the next sweep: it may not be allowed now, and each attempt costs a
                // token.
                return;
            }
        }
    }

    /// A host of `side` claims the address of a host of the other side that is not proven. If that one was
    /// never heard, but only reported by a station that may lie, it is forgotten, and the claim is proven
    /// like one that discovery has found. Returns true then.
    pub(super) fn discard_report(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        side: Side,
        ip: IpAddr,
    ) -> bool {
        let was_heard = match side.other() {
            Side::Ethernet => self.hosts.is_confirmed(now, ip, Duration::MAX),
            Side::InfiniBand => fabric.is_confirmed(now, ip, Duration::MAX),
        };
        let was_heard = was_heard || self.lookups.get(&ip).is_some_and(|lookup| lookup.answer.is_some());
        if !self.forwards() || was_heard || !self.reported.hosts.contains(&ip) {
            return false;
        }
        self.reported.remove(ip);
        self.unproven.remove(&ip);
        self.lookups.remove(&ip);
        self.hosts.forget(ip);
        fabric.forget(now, ip);
        self.take_host_events(now, fabric);
        true
    }
}
