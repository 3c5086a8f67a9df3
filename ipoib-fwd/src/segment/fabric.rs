//! The interface between a segment and its InfiniBand side.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ib_wire::Qpn;
use pmd::hca::{UdDestination, UdSource};

use ipoib::link::{Arp, Asker, HardwareAddress, Link, WorkerIndex};

/// The worker that queries and answers in the gateway's own name.
pub(super) const FIRST: WorkerIndex = WorkerIndex(0);

/// The InfiniBand side of a segment: a [`Link`], or its substitute in a test. Link-layer addresses of ours
/// are named by the worker that they belong to. Neighbor discovery is not implemented yet: no IPv6 address is
/// known.
pub trait Fabric {
    /// True if packets can be sent.
    fn is_up(&self) -> bool;
    /// The workers' own link-layer addresses.
    fn own_addresses(&self) -> &[HardwareAddress];
    /// The link-layer address of a neighbor that has answered.
    fn hardware(&self, ip: IpAddr) -> Option<HardwareAddress>;
    /// All neighbors that have answered.
    fn hosts(&self, now: Instant) -> Vec<IpAddr>;
    /// The address to believe for a sender, given its link-layer address and the origin of its packet
    /// ([`Link::believed`]).
    fn believed(&self, from: &UdSource, sender: HardwareAddress) -> HardwareAddress;
    /// True if a datagram comes from a neighbor, from the port that the path to it leads to.
    fn is_from(&self, from: &UdSource, ip: IpAddr) -> bool;
    /// True if there is room for neighbors whose reports may be forged.
    fn has_room_for_reports(&self) -> bool;
    /// True if a neighbor is published with its path or a connection.
    fn has_way(&self, ip: IpAddr) -> bool;
    /// Largest message that a worker's connection to a neighbor takes, if there is one.
    fn connection_mtu(&self, ip: IpAddr, worker: WorkerIndex) -> Option<u32>;
    /// True while a worker's connection to a neighbor is being established.
    fn is_dialling(&self, ip: IpAddr, worker: WorkerIndex) -> bool;
    /// The link-layer address at the other end of a connection.
    fn address_behind(&self, qpn: Qpn) -> Option<HardwareAddress>;
    /// A neighbor at the other end of a connection.
    fn neighbour_behind(&self, qpn: Qpn) -> Option<IpAddr>;
    /// The origin of a datagram.
    fn way_back(&self, source: &UdSource) -> Option<UdDestination>;
    /// Starts to look up a neighbor on behalf of `source`. The result is published or reported by an event.
    fn resolve(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr);
    /// Queries all hosts for an address, and keeps nothing. Returns false if the request was not sent.
    fn request(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr) -> bool;
    /// Queries a neighbor that has answered before, by unicast, and keeps nothing.
    fn ask(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr);
    /// Queries one link-layer address for `ip`, and keeps nothing.
    fn ask_at(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr, at: HardwareAddress);
    /// Queries a neighbor three times within a second, and forgets it if it does not answer.
    fn verify(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr);
    /// Names other than this one are used for some seconds only.
    fn set_own_name(&mut self, own: Option<IpAddr>);
    /// True if a neighbor itself was heard within `within` before `now`.
    fn is_confirmed(&self, now: Instant, ip: IpAddr, within: Duration) -> bool;
    /// True while an address without a known neighbor is queried.
    fn is_sought(&self, ip: IpAddr) -> bool;
    /// True while a neighbor that has answered before is being queried again.
    fn is_asked(&self, ip: IpAddr) -> bool;
    /// Answers: `ip` is at a worker's link-layer address. The requester becomes a neighbor.
    fn reply(&mut self, now: Instant, worker: WorkerIndex, ip: IpAddr, to: Asker, to_ip: IpAddr);
    /// Answers: `ip` is at a worker's link-layer address. Learns nothing from the request.
    fn answer(&mut self, now: Instant, worker: WorkerIndex, ip: IpAddr, to: Asker, to_ip: IpAddr);
    /// Announces to all hosts that `ip` is at a worker's link-layer address. Returns false if the
    /// announcement was not sent.
    fn announce(&mut self, now: Instant, worker: WorkerIndex, ip: IpAddr) -> bool;
    /// Passes an ARP packet on, which confirms or answers a query.
    fn hear(&mut self, now: Instant, worker: WorkerIndex, from: &UdSource, packet: Arp);
    /// A host announced its address: it becomes a neighbor without a query.
    fn meet(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, at: HardwareAddress, ip: IpAddr);
    /// Forgets a neighbor: it is no host of this side any more.
    fn forget(&mut self, now: Instant, ip: IpAddr);
}

/// The IPv4 address in an address.
pub(super) const fn v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

impl Fabric for Link {
    fn is_up(&self) -> bool {
        self.state().up
    }

    fn own_addresses(&self) -> &[HardwareAddress] {
        &self.state().addresses
    }

    fn hardware(&self, ip: IpAddr) -> Option<HardwareAddress> {
        self.neighbour_hardware(ip)
    }

    fn hosts(&self, now: Instant) -> Vec<IpAddr> {
        let answered = self.neighbours(now).into_iter().filter(|host| host.hardware.is_some());
        answered.map(|host| host.ip).collect()
    }

    fn believed(&self, from: &UdSource, sender: HardwareAddress) -> HardwareAddress {
        Self::believed(self, from, sender)
    }

    fn is_from(&self, from: &UdSource, ip: IpAddr) -> bool {
        Self::is_from(self, from, ip)
    }

    fn has_room_for_reports(&self) -> bool {
        Self::has_room_for_reports(self)
    }

    fn has_way(&self, ip: IpAddr) -> bool {
        self.table().get(ip).is_some_and(|n| n.ud.is_some() || n.rc.iter().any(Option::is_some))
    }

    fn connection_mtu(&self, ip: IpAddr, worker: WorkerIndex) -> Option<u32> {
        Some(self.table().get(ip)?.rc(worker.0)?.mtu)
    }

    fn is_dialling(&self, ip: IpAddr, worker: WorkerIndex) -> bool {
        Self::is_dialling(self, ip, worker)
    }

    fn address_behind(&self, qpn: Qpn) -> Option<HardwareAddress> {
        Self::address_behind(self, qpn)
    }

    fn neighbour_behind(&self, qpn: Qpn) -> Option<IpAddr> {
        Self::neighbour_behind(self, qpn)
    }

    fn way_back(&self, source: &UdSource) -> Option<UdDestination> {
        Self::way_back(self, source)
    }

    fn resolve(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr) {
        Self::resolve(self, now, worker, source, ip);
    }

    fn request(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr) -> bool {
        Self::request(self, now, worker, source, ip)
    }

    fn ask(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr) {
        self.ask_neighbour(now, worker, source, ip);
    }

    fn ask_at(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr, at: HardwareAddress) {
        self.ask_address(now, worker, source, ip, at);
    }

    fn verify(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, ip: IpAddr) {
        self.verify_neighbour(now, worker, source, ip);
    }

    fn is_confirmed(&self, now: Instant, ip: IpAddr, within: Duration) -> bool {
        Self::is_confirmed(self, now, ip, within)
    }

    fn set_own_name(&mut self, own: Option<IpAddr>) {
        Self::set_own_name(self, own);
    }

    fn is_sought(&self, ip: IpAddr) -> bool {
        Self::is_sought(self, ip)
    }

    fn is_asked(&self, ip: IpAddr) -> bool {
        Self::is_asked(self, ip)
    }

    fn reply(&mut self, now: Instant, worker: WorkerIndex, ip: IpAddr, to: Asker, to_ip: IpAddr) {
        Self::reply(self, now, worker, ip, to, to_ip);
    }

    fn answer(&mut self, now: Instant, worker: WorkerIndex, ip: IpAddr, to: Asker, to_ip: IpAddr) {
        Self::answer(self, now, worker, ip, to, to_ip);
    }

    fn announce(&mut self, now: Instant, worker: WorkerIndex, ip: IpAddr) -> bool {
        Self::announce(self, now, worker, ip)
    }

    fn hear(&mut self, now: Instant, worker: WorkerIndex, from: &UdSource, packet: Arp) {
        self.handle_arp(now, worker, from, packet);
    }

    fn meet(&mut self, now: Instant, worker: WorkerIndex, source: IpAddr, at: HardwareAddress, ip: IpAddr) {
        self.meet_neighbour(now, worker, source, at, ip);
    }

    fn forget(&mut self, now: Instant, ip: IpAddr) {
        self.forget_neighbour(now, ip);
    }
}
