//! A gateway's state machines, driven as its control lcore drives them: port and link, segment, its part in
//! the pair.

use ib_wire::mad::{Mad, MadAddress};
use ib_wire::sa::{LifeTime, McMemberRecord, PathRecord, SaMad, attribute};
use ib_wire::{Guid, Mtu, PKey};
use ipoib::link::{Action, Event as LinkEvent, Link, LinkIndex, LinkSettings, Mode, WorkerSettings};
use ipoib::net::probe::probe_nonce;
use ipoib::port::{Facts, Port, PortSettings, WorkerSlots};
use pmd::hca::PortState;

use super::super::*;
use crate::forward::{MAX_NEIGHBOURS, PeerGateway, Prefix, Role, Route, Routes};
use crate::segment::pair::message::MessageError;
use crate::segment::pair::{
    self, Drain, Identity, Key, Neighbour, Pair, Place, SegmentId, Station, Transmit,
};

const LINK: LinkIndex = LinkIndex(0);
const WORKERS: u8 = 2;
pub(super) const MANAGER: Lid = Lid(1);
pub(super) const GROUP: Lid = Lid(0xc001);
/// Time between two hellos.
pub(super) const HELLO: Duration = Duration::from_secs(1);
/// Time between two records of the hosts that it knows (`gateway::control::kept`).
const REMEMBER: Duration = Duration::from_secs(5);
/// Maximum number of waiting packets.
const PARKED: usize = 64;
/// Period of a gateway's checks of its ports (`gateway::control::pair`) and of its control lcore's
/// iterations.
pub(super) const TURN: Duration = Duration::from_millis(100);

/// The Ethernet card of host or gateway `n`; its InfiniBand port is [`port`].
pub(super) fn mac(n: u16) -> MacAddress {
    let [high, low] = n.to_be_bytes();
    MacAddress([2, 0, 0, 1, high, low])
}

/// The location of card or port `n`.
pub(super) fn place(side: pair::Side, n: u16) -> Place {
    match side {
        pair::Side::Ethernet => Place::Ethernet(mac(n)),
        pair::Side::InfiniBand => Place::InfiniBand(port(n)),
    }
}

/// The networks of a segment's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Networks {
    pub(super) address: Ipv4Addr,
    pub(super) length: u8,
    /// A second subnet, 10.78.0.0/24.
    pub(super) second: bool,
    /// The router to 10.99.0.0/16.
    pub(super) router: Option<Ipv4Addr>,
    /// The gateways' `pair-key`, if they have one: then reports of hosts are authentic.
    pub(super) key: Option<u8>,
    /// Time between two hellos.
    pub(super) hello: Duration,
}

impl Networks {
    fn routes(&self) -> Routes {
        let prefix = |a, b, len| Prefix::of(Ipv4Addr::new(a, b, 0, 0), len).unwrap();
        let second = [prefix(10, 78, 24)];
        let route = self.router.map(|via| Route { to: prefix(10, 99, 16), via });
        Routes::new(if self.second { &second } else { &[] }, route.as_slice()).unwrap()
    }

    fn address(&self) -> Option<GatewayAddress> {
        GatewayAddress::new(self.address, self.length)
    }

    fn id(&self) -> SegmentId {
        SegmentId::of(0xffff, Some((self.address, self.length)))
    }
}

fn pair_settings(priority: u8, networks: &Networks) -> pair::Settings {
    let key = networks.key.map(|key| Key::new([key; 16]));
    pair::Settings { priority, hello: networks.hello, segment: networks.id(), key }
}

/// How long a gateway counts as alive after a hello.
pub(super) const fn lease() -> Duration {
    pair::lease(HELLO)
}

/// The output of a gateway.
pub(super) enum Sent {
    Frame(Vec<u8>),
    Message { worker: WorkerIndex, to: UdDestination, bytes: Vec<u8> },
    Management(Mad),
    Pair(Transmit),
}

/// One run of a gateway.
pub(super) struct Gateway {
    pub(super) n: u16,
    port: Port,
    facts: Facts,
    pub(super) segment: Segment<Vec<u8>>,
    pub(super) pair: Pair,
    peers: Vec<PeerGateway>,
    /// When it records the hosts that it knows.
    remembers: Instant,
    pub(super) sent: Vec<Sent>,
    /// Numbers of packets that were sent, with and without a wait, and of those that waited in vain.
    pub(super) packets: [u64; 3],
}

impl Gateway {
    pub(super) fn new(now: Instant, n: u16, life: u64, priority: u8, networks: &Networks) -> Self {
        let slots = vec![WorkerSlots { first: 0, count: 4 }; WORKERS.into()];
        let seed = life.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut machine = Port::new(&PortSettings { node_guid: Guid(n.into()), workers: slots, seed }, now);
        let mut settings = LinkSettings::new(PKey::DEFAULT, port(n).qpn, seed);
        settings.workers = (0..WORKERS).map(|w| WorkerSettings { ud_qpn: queue_pair(n, w) }).collect();
        settings.mode = Mode::Datagram;
        machine.add(now, settings).unwrap();
        let facts = Facts {
            state: PortState::Down,
            lid: Lid(n),
            lmc: 0,
            gid: port(n).gid,
            sm_lid: MANAGER,
            sm_sl: ServiceLevel::new(0),
            mtu: Mtu::B4096,
            grh_required: false,
            pkeys: vec![PKey::DEFAULT],
        };
        let mut own = Settings::new(mac(n));
        (own.role, own.address, own.routes) = (Role::Standby, networks.address(), networks.routes());
        let settings = SegmentSettings {
            own: Own { settings: own, workers: WORKERS },
            ageing: Ageing::default(),
            most_parked: PARKED,
            seed,
        };
        let own = Identity { guid: Guid(n.into()), instance: life };
        let mut gateway = Self {
            n,
            port: machine,
            facts,
            segment: Segment::new(now, &settings),
            pair: Pair::new(now, pair_settings(priority, networks), own, station(n, port(n).gid)),
            peers: Vec::new(),
            remembers: now,
            sent: Vec::new(),
            packets: [0; 3],
        };
        gateway.link().speak(false);
        gateway
    }

    fn link(&mut self) -> &mut Link {
        self.port.link_mut(LINK).expect("it is not removed")
    }

    fn look(&self) -> &Link {
        self.port.link(LINK).expect("it is not removed")
    }

    /// A description for output.
    pub(super) fn describe(&self, now: Instant) -> String {
        let (role, waits) = (self.pair.role(), self.look().waits_for());
        let peers: Vec<_> = self.pair.peers(now).filter(|peer| peer.alive).collect();
        let since = now - self.pair.since();
        format!("{role:?} for {since:?}, link {:?} {waits:?}, {peers:?}", self.look().state().up)
    }

    pub(super) fn forwards(&self) -> bool {
        self.pair.role() == pair::Role::Forwarding
    }

    /// True if it forwards packets to one host.
    pub(super) fn carries(&self) -> bool {
        self.forwards() || self.pair.hands_over()
    }

    /// True if it knows this card or port as another gateway's.
    pub(super) fn knows_gateway(&self, n: u16) -> bool {
        self.peers.iter().any(|peer| peer.mac == mac(n))
    }

    // -- inputs

    pub(super) fn set_sides(&mut self, now: Instant, up: [bool; 2]) {
        self.pair.handle_side(now, pair::Side::Ethernet, up[0]);
        let state = if up[1] { PortState::Active } else { PortState::Down };
        if self.facts.state != state {
            self.facts.state = state;
            self.port.handle_port(now, self.facts.clone());
        }
        self.settle(now);
    }

    pub(super) fn hear_frame(&mut self, now: Instant, frame: &[u8]) {
        let link = self.port.link_mut(LINK).unwrap();
        self.segment.handle_ethernet_arp(now, link, frame);
        self.greet(now);
        self.settle(now);
    }

    /// A message of the port with `from`; to all, or to one of our queue pairs.
    pub(super) fn hear_message(&mut self, now: Instant, from: &UdSource, to: Option<Qpn>, bytes: &[u8]) {
        let worker = to.map_or(Some(0), |to| (0..WORKERS).find(|w| queue_pair(self.n, *w) == to));
        let Some(worker) = worker.map(WorkerIndex) else { return };
        let from = UdSource { multicast: to.is_none(), ..*from };
        let arrival = Arrival { side: Side::InfiniBand, worker, origin: Some(Origin::Datagram(from)) };
        let link = self.port.link_mut(LINK).unwrap();
        self.segment.handle_infiniband_arp(now, link, &arrival, bytes);
        self.greet(now);
        self.settle(now);
    }

    pub(super) fn hear_management(&mut self, now: Instant, mad: &Mad) {
        self.port.handle_mad(now, mad);
        self.settle(now);
    }

    pub(super) fn hear_gateway(&mut self, now: Instant, transmit: &Transmit) {
        match transmit {
            Transmit::Message(side, bytes) => {
                let heard = self.pair.handle_message(now, *side, bytes);
                assert!(matches!(heard, Ok(()) | Err(MessageError::Key)), "{heard:?}");
            }
            Transmit::Probe(side, packet) => {
                self.pair.handle_probe(now, *side, probe_nonce(packet).unwrap());
            }
        }
        self.report_gateways(now);
        self.settle(now);
    }

    /// Forwards a host's packet: sends it and records the use if there is a path, otherwise lets it wait.
    pub(super) fn forward(&mut self, now: Instant, side: Side, n: u16, [source, destination]: [Ipv4Addr; 2]) {
        let Some(hop) = self.segment.own.settings.next_hop(destination).map(IpAddr::V4) else { return };
        let origin = (side == Side::InfiniBand).then(|| Origin::Datagram(from_port(n)));
        let link = self.port.link_mut(LINK).unwrap();
        let worker = WorkerIndex(n as u8 % WORKERS);
        match side {
            Side::Ethernet if link.has_way(hop) => {
                link.handle_used(now, worker, &[], &[hop]);
                self.packets[0] += 1;
            }
            Side::InfiniBand if self.segment.hosts.get(hop).is_some() => {
                self.segment.handle_used(now, link, hop);
                self.packets[0] += 1;
            }
            _ => {
                let mut packet = packet(side, source, destination, 60);
                if side == Side::Ethernet {
                    packet[6..12].copy_from_slice(&mac(n).0);
                }
                let arrival = Arrival { side, worker, origin };
                self.segment.handle_unresolved(now, link, hop, arrival, packet, false);
            }
        }
        self.settle(now);
    }

    // -- commands of its operator

    pub(super) fn reload(&mut self, now: Instant, networks: &Networks) {
        let link = self.port.link_mut(LINK).unwrap();
        self.segment.set_networks(now, link, networks.address(), networks.routes());
        self.pair.set_segment(networks.id());
        self.settle(now);
    }

    pub(super) fn change_mode(&mut self, now: Instant) {
        let other =
            if self.link().settings().mode == Mode::Datagram { Mode::Connected } else { Mode::Datagram };
        self.link().set_mode(now, other);
        self.segment.announce_all(now);
        self.settle(now);
    }

    /// The subnet manager sets another prefix, so our addresses change.
    pub(super) fn readdress(&mut self, now: Instant, prefix: u64) {
        self.facts.gid = Gid::new(prefix, Guid(self.n.into()));
        self.port.handle_port(now, self.facts.clone());
        self.pair.set_station(station(self.n, self.facts.gid));
        self.settle(now);
    }

    pub(super) fn drain(&mut self, now: Instant, how: Option<Drain>) {
        match how {
            Some(how) => {
                self.pair.drain(now, how);
            }
            None => self.pair.set_drained(now, None),
        }
        self.settle(now);
    }

    pub(super) fn with_pair(&mut self, now: Instant, act: impl FnOnce(&mut Pair)) {
        act(&mut self.pair);
        self.settle(now);
    }

    // -- time

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let pair = Some(self.pair.poll_timeout());
        [self.port.poll_timeout(), self.segment.poll_timeout(), pair].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.report_gateways(now);
        self.port.handle_timeout(now);
        self.settle(now);
        let link = self.port.link_mut(LINK).unwrap();
        self.segment.handle_timeout(now, link);
        if now >= self.pair.poll_timeout() {
            self.pair.handle_timeout(now);
        }
        if self.pair.wants_neighbours(now) {
            let (known, doubted) = (self.known(now), self.segment.doubted());
            self.pair.tell_neighbours(now, known.into_iter().filter(|host| !doubted.contains(&host.ip)));
        }
        if now >= self.remembers {
            self.remembers = now + REMEMBER;
            let known: Vec<_> =
                self.known(now).into_iter().filter(is_infiniband).map(|host| host.ip).collect();
            self.segment.remember(now, known.into_iter());
        }
        self.settle(now);
    }

    fn report_gateways(&mut self, now: Instant) {
        let stations = self.pair.stations(now);
        let gateways = stations.map(|s| PeerGateway { mac: s.mac, lid: s.lid, gid: s.gid, qpns: s.qpns });
        let gateways: Vec<_> = gateways.collect();
        if gateways != self.peers {
            self.peers.clone_from(&gateways);
            self.segment.set_gateways(gateways);
        }
    }

    /// All hosts that it knows, of both sides.
    pub(super) fn known(&self, now: Instant) -> Vec<Neighbour> {
        let ethernet = self
            .segment
            .hosts
            .iter()
            .filter_map(|host| Some(Neighbour { ip: host.ip, place: Place::Ethernet(host.address?) }));
        let infiniband = self
            .look()
            .neighbours(now)
            .into_iter()
            .filter_map(|host| Some(Neighbour { ip: host.ip, place: Place::InfiniBand(host.hardware?) }));
        ethernet.chain(infiniband).collect()
    }

    // -- outputs

    /// Carries out all outputs of the state machines.
    fn settle(&mut self, now: Instant) {
        loop {
            let before = self.sent.len();
            let mut any = false;
            while let Some((_, action)) = self.port.poll_action(now) {
                any = true;
                self.act(now, action);
            }
            while let Some(mad) = self.port.poll_transmit(now) {
                self.sent.push(Sent::Management(mad));
            }
            while let Some((_, event)) = self.port.poll_event() {
                any = true;
                self.take_link_event(now, &event);
            }
            let up = self.look().state().up;
            self.pair.handle_side(now, pair::Side::InfiniBand, up);
            while let Some(event) = self.pair.poll_event() {
                any = true;
                self.take_pair_event(now, event);
            }
            while let Some(transmit) = self.pair.poll_transmit() {
                self.sent.push(Sent::Pair(transmit));
            }
            while let Some(output) = self.segment.poll_output() {
                any = true;
                self.take_output(now, output);
            }
            if !any && self.sent.len() == before {
                return;
            }
        }
    }

    fn act(&mut self, now: Instant, action: Action) {
        match action {
            Action::Publish(publication) => {
                let found: Vec<IpAddr> = publication.changes.iter().map(|change| change.ip()).collect();
                let link = self.port.link_mut(LINK).unwrap();
                link.handle_quiescent(now, publication.generation);
                self.segment.handle_published(now, link, found);
            }
            Action::SendUd { worker, to, bytes } => {
                self.sent.push(Sent::Message { worker, to, bytes: bytes.to_vec() });
            }
            // A gateway that takes another one for a host dials it, in vain.
            Action::CreateRc { conn, .. } => self.port.handle_created(now, conn, None),
            _ => {}
        }
    }

    /// After an ARP packet: a hello is sent before the answer to an unknown station.
    fn greet(&mut self, now: Instant) {
        if self.segment.take_unknown_sender() {
            self.pair.greet(now);
            while let Some(transmit) = self.pair.poll_transmit() {
                self.sent.push(Sent::Pair(transmit));
            }
        }
    }

    fn tell_neighbour(&mut self, now: Instant, host: Neighbour) {
        if !self.segment.is_unproven(host.ip) {
            self.pair.tell_neighbour(now, host);
        }
    }

    fn take_link_event(&mut self, now: Instant, event: &LinkEvent) {
        if let LinkEvent::NeighbourResolved { ip, hardware }
        | LinkEvent::NeighbourChanged { ip, new: hardware, .. } = *event
        {
            self.tell_neighbour(now, Neighbour { ip, place: Place::InfiniBand(hardware) });
        }
        let link = self.port.link_mut(LINK).unwrap();
        self.segment.handle_link_event(now, link, event);
    }

    fn take_pair_event(&mut self, now: Instant, event: pair::Event) {
        match event {
            pair::Event::Neighbours(list) => {
                for host in &list {
                    let link = self.port.link_mut(LINK).unwrap();
                    if let (true, Place::InfiniBand(hardware)) =
                        (self.segment.learn_told(now, link, host, self.pair.is_keyed()), host.place)
                    {
                        link.handle_told(now, host.ip, hardware);
                    }
                }
            }
            pair::Event::AnnounceHosts => {
                let known: Vec<_> = self.known(now).into_iter().filter(is_infiniband).map(|h| h.ip).collect();
                self.segment.announce_hosts(now, known.into_iter());
            }
            pair::Event::Role { .. } | pair::Event::HandedOver => {
                let role = match self.pair.role() {
                    pair::Role::Forwarding => Role::Forwarding,
                    pair::Role::Blocked => Role::Blocked,
                    _ if self.pair.hands_over() => Role::HandingOver,
                    _ => Role::Standby,
                };
                let known: Vec<_> = self.known(now).into_iter().filter(is_infiniband).map(|h| h.ip).collect();
                self.segment.set_role(now, role, known.into_iter());
                self.link().speak(role == Role::Forwarding);
            }
            _ => {}
        }
    }

    fn take_output(&mut self, now: Instant, output: Output<Vec<u8>>) {
        match output {
            Output::Frame { bytes, .. } => self.sent.push(Sent::Frame(bytes)),
            Output::SetHost { ip, mac } => {
                self.tell_neighbour(now, Neighbour { ip, place: Place::Ethernet(mac) });
            }
            Output::Release { .. } => self.packets[1] += 1,
            Output::Discard { .. } => self.packets[2] += 1,
            _ => {}
        }
    }

    // -- checks

    pub(super) fn assert_bounded(&self) {
        let segment = &self.segment;
        assert!(segment.hosts.len() <= MAX_NEIGHBOURS && self.look().neighbour_count() <= 4096);
        assert!(segment.kept.len() <= MAX_NEIGHBOURS * 2);
        assert!(segment.parked.held() <= PARKED, "{} packets wait", segment.parked.held());
        assert!(segment.owners.len() <= 1024 && segment.changes.len() <= 1024);
        assert!(segment.lookups.len() <= 1024 && segment.meanwhile.doubted().len() <= 512);
        assert!(segment.ethernet_requesters.len() <= 1024 && segment.infiniband_requesters.len() <= 1024);
    }

    /// No packets, lookups or disputes are in progress any more.
    pub(super) fn assert_settled(&self) {
        let segment = &self.segment;
        assert!(segment.parked.is_empty() && segment.parked.held() == 0, "packets wait");
        assert!(segment.lookups.is_empty(), "lookups: {:?}", segment.lookups);
        assert_eq!((segment.owners.len(), segment.changes.len()), (0, 0), "disputes of {}", self.n);
        assert_eq!(
            (segment.ethernet_requesters.len(), segment.infiniband_requesters.len()),
            (0, 0),
            "requesters"
        );
        if self.forwards() {
            assert!(segment.meanwhile.doubted().is_empty(), "doubted: {:?}", segment.meanwhile.doubted());
            assert_eq!((segment.announcements.len(), segment.ethernet_announcements.len()), (0, 0));
        }
    }

    pub(super) fn assert_empty(&self, now: Instant) {
        self.assert_settled();
        let hosts: Vec<_> = self.segment.hosts.iter().collect();
        assert!(hosts.is_empty(), "{} knows {hosts:?}", self.n);
        assert_eq!(self.look().neighbour_count(), 0, "{} knows {:?}", self.n, self.known(now));
    }
}

fn is_infiniband(host: &Neighbour) -> bool {
    matches!(host.place, Place::InfiniBand(_))
}

fn station(n: u16, gid: Gid) -> Station {
    let qpns = (0..WORKERS).map(|w| queue_pair(n, w)).collect();
    Station { mac: mac(n), lid: Lid(n), gid, qpns }
}

/// The datagram queue pair of a gateway's worker.
pub(super) fn queue_pair(n: u16, worker: u8) -> Qpn {
    Qpn::new(port(n).qpn.get() + 0x10_0000 * u32::from(worker))
}

/// Subnet administration's answer.
pub(super) fn answer(queried: &Mad) -> Option<Mad> {
    let request = SaMad::parse(&queried.bytes);
    let answer = match request.header.attribute {
        attribute::MC_MEMBER_RECORD => request.record().map(|queried: McMemberRecord| {
            let (mtu, rate) = (Mtu::B4096.into(), Rate::new(3));
            SaMad::answer(&request, &McMemberRecord { qkey: QKey(0xb1b), mlid: GROUP, mtu, rate, ..queried })
        }),
        _ => request.record().map(|queried: PathRecord| {
            let (mtu, rate, life_time) = (Mtu::B4096.into(), Rate::new(3), LifeTime::new(14));
            let lid = super::town::lid;
            let (dlid, slid) = (lid(queried.dgid), lid(queried.sgid));
            SaMad::answer(&request, &PathRecord { dlid, slid, mtu, rate, life_time, ..queried })
        }),
    };
    let bytes = answer?.to_bytes();
    Some(Mad { peer: MadAddress::gsi(MANAGER, ServiceLevel::new(0)), bytes })
}
