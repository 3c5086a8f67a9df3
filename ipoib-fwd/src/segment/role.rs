//! The role of a segment: a standby listens and learns, and sends only for itself. A gateway that takes over
//! announces on both sides that all hosts are behind it now.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Instant;

use super::arp::announcement_ethernet;
use super::fabric::{Fabric, v4};
use super::machine::Segment;
use super::output::{Output, Packet};
use super::requesters::Requesters;
use crate::forward::{PeerGateway, Role};
use ipoib::drop_reason::DropReason;
use ipoib::link::WorkerIndex;
use ipoib::net::ethernet::MacAddress;

impl<P: Packet> Segment<P> {
    /// True if the segment forwards, and so sends for others.
    pub(super) fn forwards(&self) -> bool {
        self.own.settings.role == Role::Forwarding
    }

    /// Sets the role. `infiniband` are the hosts known on that side. When the segment starts to forward, they
    /// are announced on Ethernet, and those of Ethernet on InfiniBand. Hosts whose address was claimed in the
    /// meantime are announced when they have answered.
    pub fn set_role(&mut self, now: Instant, role: Role, infiniband: impl Iterator<Item = IpAddr>) {
        let forwarded = self.forwards();
        self.own.settings.role = role;
        if self.forwards() && !forwarded {
            let infiniband: Vec<_> = infiniband.collect();
            let ethernet = self.hosts.iter().filter(|host| host.address.is_some()).map(|host| host.ip);
            let announced = ethernet.chain(infiniband.iter().copied()).filter(self.is_undoubted()).collect();
            self.announce_hosts(now, infiniband.into_iter());
            self.reported.start(self.unproven.keys().copied());
            self.start_discovery(now, &announced);
        } else if forwarded && !self.forwards() {
            self.lookups.clear();
            self.introductions.clear();
            self.discovery.stop();
            self.ethernet_requesters = Requesters::default();
            self.infiniband_requesters = Requesters::default();
            for ip in self.owners.settle() {
                self.meanwhile.note(ip);
            }
            // Addresses whose owners have not answered come last: they are kept before the others.
            self.meanwhile.resign();
            self.clear(DropReason::Standby);
        }
    }

    /// Announces the hosts of both sides, each on the other side; `infiniband` are those known on that side.
    /// A host in doubt is announced when it has answered.
    pub fn announce_hosts(&mut self, now: Instant, infiniband: impl Iterator<Item = IpAddr>) {
        self.announce_all(now);
        let infiniband: Vec<_> = infiniband.filter(self.is_undoubted()).collect();
        self.ethernet_announcements.start(now, infiniband.into_iter());
    }

    /// Returns a test of known hosts: true for those that are proven and whose addresses were not claimed
    /// while the segment did not forward.
    fn is_undoubted(&self) -> impl Fn(&IpAddr) -> bool {
        let doubted = self.meanwhile.doubted();
        move |ip| !doubted.contains(ip) && !self.unproven.contains_key(ip)
    }

    /// Queries the owners whose addresses were claimed while the segment did not forward, and announces those
    /// that have answered to the other side. The forwarder calls this.
    pub(super) fn verify_claimed(&mut self, now: Instant, fabric: &mut impl Fabric) {
        let mut not_queried = Vec::new();
        for ip in self.meanwhile.start_queries() {
            if self.hosts.get(ip).is_some() {
                self.verify_ethernet(now, ip, None);
            } else if fabric.hardware(ip).is_some() && !self.verify_infiniband(now, fabric, ip, None) {
                not_queried.push(ip);
            }
        }
        self.take_host_events(now, fabric);
        let hosts = &self.hosts;
        for ip in self.meanwhile.settled(|ip| hosts.is_asked(ip) || fabric.is_asked(ip)) {
            if not_queried.contains(&ip) {
                // A host probes for it now: its owner is queried later.
                self.meanwhile.note(ip);
            } else if self.hosts.get(ip).is_some() {
                self.announcements.add(now, ip);
                self.discovery.skip(ip);
            } else if fabric.hardware(ip).is_some() {
                self.ethernet_announcements.add(now, ip);
                self.discovery.skip(ip);
            }
        }
    }

    /// Addresses that are not reported to standby gateways: unproven ones, and those whose owners have not
    /// answered since they were claimed while the segment did not forward.
    #[must_use]
    pub fn doubted(&self) -> HashSet<IpAddr> {
        let unproven = self.unproven.keys().copied();
        self.meanwhile.doubted().into_iter().chain(unproven).collect()
    }

    /// True for a known host for whose address the other side was not queried yet.
    #[must_use]
    pub fn is_unproven(&self, ip: IpAddr) -> bool {
        self.unproven.contains_key(&ip)
    }

    /// Sets the other gateways of the segment: none of them is a host.
    pub fn set_gateways(&mut self, gateways: Vec<PeerGateway>) {
        self.own.settings.gateways = gateways;
    }

    /// Announces InfiniBand hosts on Ethernet, at a pace that leaves room for all other work. Hosts that have
    /// gone since the list was made are left out. Hosts whose owner is being queried, or is not proven, are
    /// put off: they may move.
    pub(super) fn send_ethernet_announcements(&mut self, now: Instant, fabric: &impl Fabric, at_most: usize) {
        for _ in 0..at_most {
            let Some(ip) = self.ethernet_announcements.next(now) else { return };
            let is_there = fabric.hardware(ip).is_some();
            if is_there && (self.owners.is_queried(ip) || self.unproven.contains_key(&ip)) {
                self.ethernet_announcements.put_off(now, ip);
                continue;
            }
            if let Some(ip) = v4(ip).filter(|_| is_there) {
                let bytes =
                    announcement_ethernet(ip, self.own.mac()).to_frame(MacAddress::BROADCAST).to_vec();
                self.output(Output::Frame { worker: WorkerIndex(0), bytes });
            }
        }
    }

    /// Announces Ethernet hosts, and the gateway itself, on InfiniBand in the same way.
    pub(super) fn send_infiniband_announcements(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        at_most: usize,
    ) {
        if !fabric.is_up() {
            return;
        }
        for _ in 0..at_most {
            let Some(ip) = self.announcements.next(now) else { return };
            let is_there = self.hosts.get(ip).is_some();
            if is_there && (self.owners.is_queried(ip) || self.unproven.contains_key(&ip)) {
                self.announcements.put_off(now, ip);
                continue;
            }
            let is_ours = is_there || self.own.owns(ip);
            if is_ours && !fabric.announce(now, self.worker_of(ip), ip) {
                // The link's rate limit drops others, too.
                return self.announcements.put_off(now, ip);
            }
        }
    }
}
