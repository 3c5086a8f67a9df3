//! The segment itself: its parts, its clock and its outputs.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use serde::Serialize;

use super::announcements::{Announcements, PER_TICK};
use super::arp::Own;
use super::defence::Defence;
use super::discovery::Discovery;
use super::fabric::{Fabric, v4};
use super::hosts::{self, Ageing, HostCounters, HostInfo, Hosts, worker_of};
use super::introductions::Introductions;
use super::kept::Kept;
use super::limits::Limits;
use super::meanwhile::Meanwhile;
use super::names::Names;
use super::output::{Arrival, Output, Packet};
use super::owners::{Changes, Owners};
use super::ownership::LATE;
use super::pair::Place;
use super::parked::{Awaited, Parked, Waiting};
use super::pending::{Claim, Lookup};
use super::reported::Reported;
use super::requesters::Requesters;
use crate::forward::{GatewayAddress, Routes, Side};
use ipoib::drop_reason::DropReason;
use ipoib::link::{Asker, Event, WorkerIndex};
use ipoib::neighbour::{Heard, Idle, Info};
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, EthernetHeader, MacAddress};
use ipoib::net::ipv4::Ipv4View;

/// How often requesters and packets that have waited for too long are removed.
pub(super) const SWEEP: Duration = Duration::from_millis(500);

/// Settings of a new segment.
#[derive(Clone, Debug)]
pub struct SegmentSettings {
    /// The addresses and networks that the segment presents to its hosts.
    pub own: Own,
    /// Times of the table of Ethernet hosts.
    pub ageing: Ageing,
    /// Maximum number of packets that wait for a path: each may be a chain of many buffers, and all segments
    /// share the pool.
    pub most_parked: usize,
    /// Drawn at start: the network must not know which addresses collide.
    pub seed: u64,
}

ipoib::counters! {
    /// Events of a segment.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    SegmentCounters {
        /// Addresses that moved to the other side.
        moves =
            "Ordinary when a host is moved to the other side. Repeated moves: two hosts have the address.",
        /// Claims that the owner of the address refused by answering.
        conflicts =
            "Two hosts have the address, on the same side or on both: `disputed` in `ipoib-fwd ctl events address` and in the journal names it and the hardware addresses of both; change the address of one of them.",
        /// Addresses that moved too often and were held down.
        held_down =
            "As for `conflicts`; it stays where it is for `gateway.address-hold-seconds`.",
        /// ARP packets dropped because they claim an address in dispute.
        claims_dropped =
            "As for `conflicts`; it ends with the dispute.",
        /// Addresses that hosts of both sides answered for, so that neither was believed for 10 s.
        answers_withdrawn =
            "A few are ordinary when hosts move. Many: an Ethernet host, or a router with proxy ARP, answers for addresses of InfiniBand hosts; switch that off.",
        /// ARP packets of hosts or other gateways that claim the gateway's own address.
        own_address_claimed =
            "A host or another gateway has `gateway.address`: `own-address-claimed` in `ipoib-fwd ctl events address` and in the journal names its hardware address. Give it another address.",
        /// Hosts known before the gateway started to forward that it has queried since, twice each.
        known_hosts_queried =
            "Ordinary, after a restart and when the gateway takes over.",
        /// Of these, hosts that answered.
        known_hosts_answered =
            "Ordinary. Far fewer than `known_hosts_queried`: many hosts are gone, or a side does not reach its hosts; see `known-hosts` in `ipoib-fwd ctl events address` and in the journal.",
        /// Requests and announcements that were not forwarded, because of the rate limit or because they
        /// could not be sent.
        limited =
            "Ordinary for a moment after a restart. If it continues, a host floods with ARP, and `ipoib-fwd ctl trace proto=arp` names the sender. Or the gateway's own frames find no buffers or no room: see `no-buffers` and `eth-queue-full`.",
        /// Packets held for a connection.
        held_for_connection =
            "Ordinary for the first packets to a host.",
        /// Held packets that the connection took.
        sent_by_connection =
            "Ordinary. Far fewer than `held_for_connection`: connections are not established, see the counters of the link.",
    }
}

/// One broadcast domain. See the [module's documentation](super).
#[derive(Debug)]
pub struct Segment<P> {
    pub(super) own: Own,
    pub(super) hosts: Hosts,
    pub(super) owners: Owners<Claim>,
    pub(super) changes: Changes,
    pub(super) meanwhile: Meanwhile,
    /// Ethernet hosts that have been heard.
    pub(super) heard: Heard,
    pub(super) ethernet_requesters: Requesters<MacAddress>,
    pub(super) infiniband_requesters: Requesters<Asker>,
    /// Addresses that hosts request and for which their own side is queried first.
    pub(super) lookups: HashMap<IpAddr, Lookup, FixedState>,
    /// An ARP packet has come from a station that is not known for the sender, since
    /// [`Self::take_unknown_sender`].
    pub(super) unknown_sender: bool,
    /// Known hosts for whose addresses the other side was not queried, and whether they were proven at
    /// another hardware address before. Bounded by the tables of hosts.
    pub(super) unproven: HashMap<IpAddr, bool, FixedState>,
    /// When silence has proven the addresses of known hosts, kept for [`LATE`]. Bounded in the same way.
    pub(super) proven_at: HashMap<IpAddr, Instant, FixedState>,
    pub(super) reported: Reported,
    pub(super) names: Names,
    pub(super) introductions: Introductions,
    /// The defense of the gateway's own address on each side.
    pub(super) own_defence: [Defence<Place>; 2],
    /// When another gateway with the gateway's own address was reported last on each side.
    pub(super) peer_reported: [Option<Instant>; 2],
    pub(super) parked: Parked<P>,
    pub(super) limits: Limits,
    pub(super) counters: SegmentCounters,
    pub(super) announcements: Announcements,
    /// Announcements of InfiniBand hosts, on Ethernet.
    pub(super) ethernet_announcements: Announcements,
    pub(super) discovery: Discovery,
    pub(super) kept: Kept,
    outputs: VecDeque<Output<P>>,
    sweep: Instant,
}

impl<P: Packet> Segment<P> {
    /// Makes a segment without hosts.
    #[must_use]
    pub fn new(now: Instant, settings: &SegmentSettings) -> Self {
        Self {
            own: settings.own.clone(),
            hosts: hosts::table(settings.seed, settings.ageing),
            owners: Owners::new(settings.seed.rotate_left(8), settings.ageing.hold),
            changes: Changes::new(settings.seed.rotate_left(16)),
            meanwhile: Meanwhile::default(),
            heard: Heard::new(settings.seed.rotate_left(48)),
            ethernet_requesters: Requesters::default(),
            infiniband_requesters: Requesters::default(),
            lookups: HashMap::with_hasher(FixedState::with_seed(settings.seed.rotate_left(24))),
            unknown_sender: false,
            unproven: HashMap::with_hasher(FixedState::with_seed(settings.seed.rotate_left(32))),
            proven_at: HashMap::with_hasher(FixedState::with_seed(settings.seed.rotate_left(40))),
            reported: Reported::new(settings.seed.rotate_left(4)),
            names: Names::new(settings.seed.rotate_left(56)),
            introductions: Introductions::default(),
            own_defence: [Defence::default(); 2],
            peer_reported: [None; 2],
            parked: Parked::new(settings.most_parked),
            limits: Limits::new(now, settings.seed.rotate_left(40)),
            counters: SegmentCounters::default(),
            announcements: Announcements::default(),
            ethernet_announcements: Announcements::default(),
            discovery: Discovery::new(now, settings.seed.rotate_left(12)),
            kept: Kept::new(settings.seed.rotate_left(20)),
            outputs: VecDeque::new(),
            sweep: now,
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output<P>> {
        self.outputs.pop_front()
    }

    /// Counters.
    #[must_use]
    pub const fn counters(&self) -> &SegmentCounters {
        &self.counters
    }

    /// Counters of the table of Ethernet hosts.
    #[must_use]
    pub const fn host_counters(&self) -> &HostCounters {
        self.hosts.counters()
    }

    /// All Ethernet hosts, in no order.
    pub fn hosts(&self) -> impl Iterator<Item = HostInfo> {
        self.hosts.iter().map(|host| self.host_info(&host))
    }

    /// The first `most` Ethernet hosts behind an address, in the order of their addresses.
    #[must_use]
    pub fn hosts_after(&self, after: Option<IpAddr>, most: usize) -> Vec<HostInfo> {
        self.hosts.after(after, most).iter().map(|host| self.host_info(host)).collect()
    }

    fn host_info(&self, host: &Info<MacAddress>) -> HostInfo {
        let waiting = self.parked.waiting_for(Awaited::EthernetHost, host.ip);
        HostInfo { ip: host.ip, mac: host.address, state: host.state, waiting }
    }

    /// The worker whose link-layer address represents an Ethernet host, or the gateway itself, on the
    /// InfiniBand side.
    #[must_use]
    pub fn worker_of(&self, ip: IpAddr) -> WorkerIndex {
        if self.own.owns(ip) { WorkerIndex(0) } else { WorkerIndex(worker_of(ip, self.own.workers)) }
    }

    pub(super) fn output(&mut self, output: Output<P>) {
        self.outputs.push_back(output);
    }

    pub(super) fn drop(&mut self, reason: DropReason, n: usize) {
        if n > 0 {
            self.outputs.push_back(Output::Drop(reason, n as u64));
        }
    }

    /// Handles a packet whose destination has no path. `published`: the tables that workers have by now
    /// contain one, so the packet can be sent at once.
    pub fn handle_unresolved(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        arrival: Arrival,
        packet: P,
        published: bool,
    ) {
        // The packet was in flight when another gateway took over.
        if !self.forwards() {
            return self.drop(DropReason::Standby, 1);
        }
        let Arrival { side, worker, .. } = arrival;
        if published {
            return self.output(Output::Release { side, worker, packet });
        }
        let kind = match side {
            Side::Ethernet => Awaited::InfiniBandHost,
            Side::InfiniBand => Awaited::EthernetHost,
        };
        let source = source_of(&packet, side);
        if self.parked.waiting_for(kind, ip) == 0 {
            let questions = side == Side::Ethernet || hosts::has_room(&self.hosts);
            let room = questions && self.parked.has_room(kind);
            let payer = self.payer(fabric, &arrival, &packet, source);
            if let Err(reason) = self.take_lookup(now, payer, room) {
                return self.drop(reason, 1);
            }
        }
        let awaited = match side {
            // Known but not published: there was no room in the table.
            Side::Ethernet if fabric.has_way(ip) => return self.drop(DropReason::NeighbourTableFull, 1),
            Side::InfiniBand if self.hosts.get(ip).is_some() => {
                return self.drop(DropReason::NeighbourTableFull, 1);
            }
            Side::Ethernet => {
                let mac = ethernet_source_of(&packet).unwrap_or(MacAddress::ZERO);
                self.seek_on_infiniband(now, fabric, ip, Some((source, mac)));
                Awaited::InfiniBandHost
            }
            Side::InfiniBand if self.hosts.resolve(now, ip, Some(source)) => Awaited::EthernetHost,
            Side::InfiniBand => return self.drop(DropReason::NeighbourTableFull, 1),
        };
        for gone in self.parked.park(now, ip, awaited, arrival, packet) {
            self.let_go(now, fabric, gone, DropReason::NeighbourQueueFull);
        }
        self.take_host_events(now, fabric);
    }

    /// Handles InfiniBand hosts that have been published with a path: sends the packets that wait for them,
    /// and answers their requesters.
    pub fn handle_published(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ips: impl IntoIterator<Item = IpAddr>,
    ) {
        for ip in ips {
            // A host that was found before its path keeps its requesters and its packets until then.
            if !fabric.has_way(ip) {
                continue;
            }
            self.introduce_to(now, fabric, ip);
            self.release_to_infiniband(now, fabric, ip);
        }
        self.take_host_events(now, fabric);
        self.release_connected(now, fabric);
    }

    /// Workers have sent to an Ethernet host.
    pub fn handle_used(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        self.hosts.note_used(now, ip);
        self.take_host_events(now, fabric);
    }

    /// Handles an event of the link.
    pub fn handle_link_event(&mut self, now: Instant, fabric: &mut impl Fabric, event: &Event) {
        match event {
            Event::Up | Event::Readdressed { .. } => self.announce_all(now),
            Event::NeighbourResolved { ip, .. } => {
                // Queried on both sides; it is on this one.
                self.hosts.forget(*ip);
                self.take_host_events(now, fabric);
            }
            Event::NeighbourUnreachable { ip } => {
                let waiting = self.parked.take(Awaited::InfiniBandHost, *ip);
                self.discard(waiting, DropReason::NeighbourUnresolved);
                // Its own side requests it: perhaps it is on the other one now.
                if self.forwards()
                    && self.infiniband_requesters.is_requested(*ip)
                    && self.hosts.get(*ip).is_none()
                {
                    self.take(now, fabric, |segment, fabric| {
                        segment.seek_on_ethernet(now, fabric, *ip, None)
                    });
                }
            }
            Event::QueryUnsent { ip } => self.give_up_queried(Side::InfiniBand, *ip),
            _ => {}
        }
    }

    /// Handles new link-layer addresses of ours, or other flags of them: announces all hosts that the gateway
    /// answers for. Hosts in doubt are announced when they have answered.
    pub fn announce_all(&mut self, now: Instant) {
        let doubted = self.meanwhile.doubted();
        let proven = |ip: &IpAddr| !doubted.contains(ip) && !self.unproven.contains_key(ip);
        let known = self.hosts.iter().filter(|h| h.address.is_some() && proven(&h.ip));
        let hosts = known.map(|h| h.ip);
        let own = self.own.address().map(IpAddr::V4);
        self.announcements.start(now, hosts.chain(own));
    }

    /// The latest time of the next [`Self::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lookups = self.lookups.values().map(Lookup::due).min();
        let own_defence = self.own_defence.iter().filter_map(Defence::due).min();
        [
            self.hosts.poll_timeout(),
            self.owners.poll_timeout(),
            self.introductions.poll_timeout(),
            self.discovery.poll_timeout(),
            lookups,
            own_defence,
            Some(self.sweep),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant, fabric: &mut impl Fabric) {
        fabric.set_own_name(self.own.address().map(IpAddr::V4));
        self.hosts.handle_timeout(now);
        self.settle_lookups(now, fabric);
        self.settle_claims(now, fabric);
        self.defend_own_again(now, fabric);
        self.expire_introductions(now, fabric);
        self.take_host_events(now, fabric);
        self.release_connected(now, fabric);
        if self.forwards() {
            self.verify_claimed(now, fabric);
            self.prove_reported(now, fabric);
            self.send_ethernet_announcements(now, fabric, PER_TICK);
            self.send_infiniband_announcements(now, fabric, PER_TICK);
            self.discover(now, fabric);
        }
        if now >= self.sweep || self.changes.is_due(now) {
            self.query_cards(now, fabric);
        }
        if now >= self.sweep {
            self.sweep = now + SWEEP;
            self.ethernet_requesters.expire(now);
            self.infiniband_requesters.expire(now);
            self.discovery.expire(now);
            let hosts = &self.hosts;
            let is_known = |ip: &IpAddr| hosts.get(*ip).is_some() || fabric.hardware(*ip).is_some();
            self.unproven.retain(|ip, _| is_known(ip));
            self.reported.retain(|ip| self.unproven.contains_key(ip));
            if self.forwards() {
                self.reported.prove_all();
            }
            self.proven_at.retain(|ip, at| is_known(ip) && now.saturating_duration_since(*at) < LATE);
            for (ip, waiting) in self.parked.expire(now) {
                if waiting.awaited == Awaited::InfiniBandHost && fabric.has_way(ip) {
                    // Its source is still being introduced; the path is there.
                    let (side, worker) = (waiting.arrival.side, waiting.arrival.worker);
                    self.output(Output::Release { side, worker, packet: waiting.packet });
                } else {
                    self.let_go(now, fabric, waiting, DropReason::NeighbourUnresolved);
                }
            }
        }
    }

    /// Drops a packet that waits no longer. If it waited for a connection, its source gets an ICMP error.
    pub(super) fn let_go(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        waiting: Waiting<P>,
        reason: DropReason,
    ) {
        match waiting.awaited {
            Awaited::Connection { mtu } => {
                self.answer_too_big(now, fabric, &waiting.arrival, mtu, &waiting.packet);
            }
            Awaited::EthernetHost | Awaited::InfiniBandHost => self.discard([waiting], reason),
        }
    }

    /// Drops packets that have waited.
    pub(super) fn discard(&mut self, waiting: impl IntoIterator<Item = Waiting<P>>, reason: DropReason) {
        for Waiting { arrival, packet, .. } in waiting {
            self.outputs.push_back(Output::Discard { side: arrival.side, packet, reason });
        }
    }

    /// Drops all waiting packets, for a reason.
    pub fn clear(&mut self, reason: DropReason) {
        let waiting = self.parked.clear();
        self.discard(waiting.into_iter().map(|(_, waiting)| waiting), reason);
    }

    /// Sets another address, other subnets or routes. The tables have them already, or get them before the
    /// released packets are forwarded. Hosts that are no longer on the segment are forgotten, and waiting
    /// packets are looked up again.
    pub fn set_networks(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        address: Option<GatewayAddress>,
        routes: Routes,
    ) {
        let moved = self.own.settings.address != address;
        (self.own.settings.address, self.own.settings.routes) = (address, routes);
        self.names.clear();
        let off_link = |ip: &IpAddr| v4(*ip).is_some_and(|ip| !self.own.settings.is_on_link(ip));
        let gone: Vec<IpAddr> = self.hosts.iter().map(|host| host.ip).filter(off_link).collect();
        for ip in gone {
            self.hosts.forget(ip);
        }
        for ip in fabric.hosts(now).into_iter().filter(off_link) {
            fabric.forget(now, ip);
        }
        for (_, waiting) in self.parked.clear() {
            let (side, worker) = (waiting.arrival.side, waiting.arrival.worker);
            self.output(Output::Release { side, worker, packet: waiting.packet });
        }
        self.take_host_events(now, fabric);
        if moved {
            (self.own_defence, self.peer_reported) = ([Defence::default(); 2], [None; 2]);
            self.announce_all(now);
        }
    }

    /// Sets the time after which unused hosts are forgotten.
    pub const fn set_idle(&mut self, idle: Duration) {
        self.hosts.rules_mut().idle = Idle::SinceStale(idle);
    }

    /// Sets the maximum number of waiting packets; those that wait already stay.
    pub const fn park_at_most(&mut self, most: usize) {
        self.parked.set_most(most);
    }
}

/// Source address of a packet, or the unspecified one.
pub(super) fn source_of(packet: &impl Packet, side: Side) -> IpAddr {
    let mut head = [0; 60];
    let read = packet.read(side.header_len(), &mut head);
    let length = packet.length().saturating_sub(side.header_len());
    let head = head.get(..read).unwrap_or_default();
    let source = Ipv4View::parse(head, length).map(|v| v.source());
    IpAddr::V4(source.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED))
}

/// Source address of a frame.
fn ethernet_source_of(packet: &impl Packet) -> Option<MacAddress> {
    let mut head = [0; ETHERNET_HEADER_LEN];
    let read = packet.read(0, &mut head);
    EthernetHeader::parse(head.get(..read)?).ok().map(|header| header.source)
}
