//! Hosts that the forwarder reports to a standby gateway.
//!
//! With a key reports are authentic, and the forwarder reports only hosts that it has proven. Without one
//! anybody can forge a report: it contradicts nothing that this gateway knows by itself, and its host is
//! proven when this gateway begins to forward, before it is announced.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use foldhash::fast::FixedState;

use super::fabric::{Fabric, v4};
use super::knowledge::side_of;
use super::machine::Segment;
use super::output::Packet;
use super::pair::{Neighbour, Place};
use crate::forward::Side;

/// Most lookups under way while reported hosts are proven: some 400 hosts a second.
const UNDER_WAY: usize = 128;

/// Hosts that are known only from reports that may be forged, and are not proven yet. They all are
/// unproven hosts of the segment.
#[derive(Debug)]
pub(super) struct Reported {
    hosts: HashSet<IpAddr, FixedState>,
    /// Hosts that are to be proven next.
    queue: VecDeque<IpAddr>,
}

impl Reported {
    pub(super) fn new(seed: u64) -> Self {
        Self { hosts: HashSet::with_hasher(FixedState::with_seed(seed)), queue: VecDeque::new() }
    }

    /// A host is proven, or is known otherwise by now. True if it was known only from a report.
    pub(super) fn remove(&mut self, ip: IpAddr) -> bool {
        self.hosts.remove(&ip)
    }

    /// Forgets hosts that are no longer unproven.
    pub(super) fn retain(&mut self, is_unproven: impl Fn(&IpAddr) -> bool) {
        self.hosts.retain(is_unproven);
    }

    /// Starts to prove all hosts, unless that is under way.
    pub(super) fn prove_all(&mut self) {
        if self.queue.is_empty() {
            self.queue.extend(&self.hosts);
        }
    }
}

impl<P: Packet> Segment<P> {
    /// The forwarder reports where a host is; `authentic`: no other station can have sent the report. True if
    /// the InfiniBand side should learn the host.
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

    /// Notes a host whose report may be forged. False if this gateway knows better: then the owner is queried
    /// when the gateway starts to forward, as if a host had claimed the address.
    fn take_doubtful(&mut self, fabric: &impl Fabric, host: &Neighbour) -> bool {
        let known = (self.hosts.get(host.ip), fabric.hardware(host.ip));
        let is_same = match (host.place, known) {
            (_, (None, None)) => None,
            (Place::Ethernet(mac), (at, None)) => Some(at == Some(mac)),
            (Place::InfiniBand(hardware), (None, at)) => Some(at.is_some_and(|at| at.is_same_as(hardware))),
            _ => Some(false),
        };
        match is_same {
            // It has been heard.
            Some(true) => return true,
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
        while self.lookups.len() < UNDER_WAY {
            let Some(ip) = self.reported.queue.pop_front() else { return };
            let side = match self.hosts.get(ip) {
                _ if !self.reported.hosts.contains(&ip) => continue,
                Some(_) => Side::Ethernet,
                None if fabric.hardware(ip).is_some() => Side::InfiniBand,
                None => continue,
            };
            if !self.ask_own_side(now, fabric, side.other(), ip) {
                return self.reported.queue.push_back(ip);
            }
        }
    }
}
