//! A segment under a fake clock, between an Ethernet network of frames and a mock InfiniBand side that
//! records its calls.

mod arp;
mod cells;
mod cold;
mod conflicts;
mod day;
mod defence;
mod discovery;
mod floods;
mod hosts;
mod kept;
mod networks;
mod role;
mod said;
mod shares;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation as InfiniBandOperation};
use ib_wire::{Gid, Guid, Lid, QKey, Qpn, Rate, ServiceLevel};
use pmd::hca::{AddressVector, UdDestination, UdSource};

use super::output::{Arrival, Happening, Origin, Output, Packet};
use super::{Ageing, Fabric, Own, Segment, SegmentSettings};
use crate::forward::{GatewayAddress, Settings, Side};
use ipoib::drop_reason::DropReason;
use ipoib::link::{Asker, HardwareAddress, WorkerIndex};
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::MacAddress;

const GATEWAY_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
const E1: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const E2: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const I1: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const I2: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);
const E1_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const E2_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);
const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
/// By then an address that a host claims is proven, if the other side is silent.
const PROVEN: Duration = Duration::from_millis(310);

fn own() -> Own {
    let mut settings = Settings::new(GATEWAY_MAC);
    settings.address = GatewayAddress::new(GATEWAY, 24);
    Own { settings, workers: 2 }
}

/// The link-layer address of an InfiniBand host; 0 is ours.
fn hardware(n: u8) -> HardwareAddress {
    port(n.into())
}

/// The link-layer address of one of more hosts.
fn port(n: u16) -> HardwareAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(n.into()));
    HardwareAddress { flags: AddressFlags::RC, qpn: Qpn::new(0x48 + u32::from(n)), gid }
}

fn from(n: u8) -> UdSource {
    from_port(n.into())
}

fn from_port(n: u16) -> UdSource {
    let (qpn, slid, sl) = (port(n).qpn, Lid(n), ServiceLevel::default());
    UdSource { qpn, slid, sl, dlid_path_bits: 0, pkey_index: 0, has_grh: true, multicast: true }
}

impl Packet for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }

    fn read(&self, skip: usize, to: &mut [u8]) -> usize {
        let from = self.get(skip..).unwrap_or_default();
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        n
    }
}

/// A call of the InfiniBand side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Resolve { source: IpAddr, ip: IpAddr },
    Request { source: IpAddr, ip: IpAddr },
    Ask(IpAddr),
    AskAt(IpAddr, HardwareAddress),
    Verify(IpAddr),
    Reply { ip: IpAddr, to: HardwareAddress, to_ip: IpAddr },
    Announce(IpAddr),
}

/// The InfiniBand side.
#[derive(Default)]
struct Fake {
    own: Vec<HardwareAddress>,
    /// Neighbors that have answered, and whether their paths are published.
    neighbours: HashMap<IpAddr, (HardwareAddress, bool)>,
    connections: HashSet<IpAddr>,
    dialling: HashSet<IpAddr>,
    behind: HashMap<Qpn, IpAddr>,
    /// The link-layer addresses at the other ends of connections.
    connected: HashMap<Qpn, HardwareAddress>,
    /// Neighbors that are being queried again.
    verified: HashSet<IpAddr>,
    /// Neighbors that were not heard for long.
    stale: HashSet<IpAddr>,
    /// Addresses that no neighbor has answered for yet.
    sought: HashSet<IpAddr>,
    /// The link's rate limit drops all requests.
    is_limited: bool,
    /// There is no room for neighbors whose reports may be forged.
    is_full: bool,
    calls: Vec<Call>,
}

impl Fabric for Fake {
    fn is_up(&self) -> bool {
        true
    }

    fn own_addresses(&self) -> &[HardwareAddress] {
        &self.own
    }

    fn hardware(&self, ip: IpAddr) -> Option<HardwareAddress> {
        Some(self.neighbours.get(&ip)?.0)
    }

    fn hosts(&self, _: Instant) -> Vec<IpAddr> {
        self.neighbours.keys().copied().collect()
    }

    fn believed(&self, _: &UdSource, sender: HardwareAddress) -> HardwareAddress {
        sender
    }

    fn is_from(&self, from: &UdSource, ip: IpAddr) -> bool {
        self.neighbours
            .get(&ip)
            .is_some_and(|(at, _)| at.qpn == from.qpn && at.gid.id().0 == u64::from(from.slid.0))
    }

    fn has_room_for_reports(&self) -> bool {
        !self.is_full
    }

    fn has_way(&self, ip: IpAddr) -> bool {
        self.neighbours.get(&ip).is_some_and(|(_, way)| *way)
    }

    fn connection_mtu(&self, ip: IpAddr, _: WorkerIndex) -> Option<u32> {
        self.connections.contains(&ip).then_some(65_524)
    }

    fn is_dialling(&self, ip: IpAddr, _: WorkerIndex) -> bool {
        self.dialling.contains(&ip)
    }

    fn address_behind(&self, qpn: Qpn) -> Option<HardwareAddress> {
        self.connected.get(&qpn).copied()
    }

    fn neighbour_behind(&self, qpn: Qpn) -> Option<IpAddr> {
        self.behind.get(&qpn).copied()
    }

    fn way_back(&self, source: &UdSource) -> Option<UdDestination> {
        let av = AddressVector {
            dlid: source.slid,
            sl: source.sl,
            src_path_bits: 0,
            rate: Rate::default(),
            grh: None,
        };
        Some(UdDestination { av, qpn: source.qpn, qkey: Some(QKey(1)) })
    }

    fn resolve(&mut self, _: Instant, _: WorkerIndex, source: IpAddr, ip: IpAddr) {
        if !self.neighbours.contains_key(&ip) {
            self.sought.insert(ip);
        }
        self.calls.push(Call::Resolve { source, ip });
    }

    fn request(&mut self, _: Instant, _: WorkerIndex, source: IpAddr, ip: IpAddr) -> bool {
        if !self.is_limited {
            self.calls.push(Call::Request { source, ip });
        }
        !self.is_limited
    }

    fn ask(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, ip: IpAddr) {
        self.calls.push(Call::Ask(ip));
    }

    fn ask_at(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, ip: IpAddr, at: HardwareAddress) {
        self.calls.push(Call::AskAt(ip, at));
    }

    fn verify(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, ip: IpAddr) {
        self.calls.push(Call::Verify(ip));
        self.verified.insert(ip);
    }

    fn is_confirmed(&self, _: Instant, ip: IpAddr, _: Duration) -> bool {
        self.neighbours.contains_key(&ip) && !self.stale.contains(&ip)
    }

    fn set_own_name(&mut self, _: Option<IpAddr>) {}

    fn is_sought(&self, ip: IpAddr) -> bool {
        self.sought.contains(&ip)
    }

    fn is_asked(&self, ip: IpAddr) -> bool {
        self.verified.contains(&ip)
    }

    fn reply(&mut self, _: Instant, _: WorkerIndex, ip: IpAddr, to: Asker, to_ip: IpAddr) {
        let to = to.hardware;
        self.calls.push(Call::Reply { ip, to, to_ip });
        if !to_ip.is_unspecified() {
            self.neighbours.entry(to_ip).or_insert((to, false)).0 = to;
        }
    }

    fn answer(&mut self, _: Instant, _: WorkerIndex, ip: IpAddr, to: Asker, to_ip: IpAddr) {
        self.calls.push(Call::Reply { ip, to: to.hardware, to_ip });
    }

    fn announce(&mut self, _: Instant, _: WorkerIndex, ip: IpAddr) -> bool {
        if !self.is_limited {
            self.calls.push(Call::Announce(ip));
        }
        !self.is_limited
    }

    fn hear(&mut self, _: Instant, _: WorkerIndex, _: &UdSource, packet: Arp) {
        let ip = IpAddr::V4(packet.sender_ip);
        self.verified.remove(&ip);
        self.stale.remove(&ip);
        if self.sought.remove(&ip) {
            self.neighbours.entry(ip).or_insert((packet.sender, false));
        }
        if let Some(known) = self.neighbours.get_mut(&ip) {
            known.0 = packet.sender;
        }
    }

    fn meet(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, at: HardwareAddress, ip: IpAddr) {
        self.neighbours.entry(ip).or_insert((at, false)).0 = at;
    }

    fn forget(&mut self, _: Instant, ip: IpAddr) {
        self.neighbours.remove(&ip);
        self.verified.remove(&ip);
        self.sought.remove(&ip);
    }
}

type Outputs = Vec<Output<Vec<u8>>>;

/// A segment, its surroundings, and the clock.
struct World {
    now: Instant,
    segment: Segment<Vec<u8>>,
    fabric: Fake,
}

impl World {
    fn new() -> Self {
        Self::with(Ageing::default())
    }

    fn with(ageing: Ageing) -> Self {
        let now = Instant::now();
        let settings = SegmentSettings { own: own(), ageing, most_parked: 4096, seed: 1 };
        let fabric = Fake { own: vec![hardware(0)], ..Fake::default() };
        Self { now, segment: Segment::new(now, &settings), fabric }
    }

    /// The outputs of the segment since the last call.
    fn outputs(&mut self) -> Outputs {
        std::iter::from_fn(|| self.segment.poll_output()).collect()
    }

    /// The calls of the InfiniBand side since the last call.
    fn calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.fabric.calls)
    }

    /// ARP frames among outputs.
    fn frames(outputs: &Outputs) -> Vec<EthernetArp> {
        let frame = |output: &Output<_>| match output {
            Output::Frame { bytes, .. } => EthernetArp::parse(bytes).ok(),
            _ => None,
        };
        outputs.iter().filter_map(frame).collect()
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + Duration::from_millis(10)).min(end);
            self.segment.handle_timeout(self.now, &mut self.fabric);
        }
    }

    fn ethernet(
        &mut self,
        operation: ArpOperation,
        mac: MacAddress,
        sender_ip: Ipv4Addr,
        target_ip: Ipv4Addr,
    ) {
        let arp =
            EthernetArp { operation, sender_mac: mac, sender_ip, target_mac: MacAddress::ZERO, target_ip };
        self.segment.handle_ethernet_arp(self.now, &mut self.fabric, &arp.to_frame(MacAddress::BROADCAST));
    }

    fn infiniband(&mut self, operation: InfiniBandOperation, n: u8, sender: Ipv4Addr, target: Ipv4Addr) {
        let arp = Arp { operation, ..Arp::request(hardware(n), sender, target) };
        self.infiniband_from(n, &arp);
    }

    /// Host `n` sends a packet in another host's name.
    fn infiniband_from(&mut self, n: u8, arp: &Arp) {
        let message = [&[8, 6, 0, 0][..], &arp.to_bytes()].concat();
        let arrival = arrival(Side::InfiniBand, Some(Origin::Datagram(from(n))));
        self.segment.handle_infiniband_arp(self.now, &mut self.fabric, &arrival, &message);
    }

    /// An Ethernet host becomes known by a request for the gateway, and no host on InfiniBand has its
    /// address. A standby gateway learns it from its peer.
    fn know_ethernet(&mut self, mac: MacAddress, ip: Ipv4Addr) {
        if self.segment.own.settings.role == crate::forward::Role::Forwarding {
            self.ethernet(ArpOperation::Request, mac, ip, GATEWAY);
            self.pass(PROVEN);
        } else {
            self.segment.hosts.learn(self.now, ip.into(), mac, None);
            self.segment.take_host_events(self.now, &mut self.fabric);
        }
        assert!(self.outputs().contains(&Output::SetHost { ip: ip.into(), mac }));
        self.calls();
    }

    /// An InfiniBand host is known and published.
    fn know_infiniband(&mut self, n: u8, ip: Ipv4Addr) {
        self.fabric.neighbours.insert(ip.into(), (hardware(n), true));
    }

    fn publish(&mut self, ip: Ipv4Addr) {
        self.segment.handle_published(self.now, &mut self.fabric, [ip.into()]);
    }
}

const fn arrival(side: Side, origin: Option<Origin>) -> Arrival {
    Arrival { side, worker: WorkerIndex(0), origin }
}

/// A UDP packet in a frame or a message, `len` bytes of IPv4 in all, with "don't fragment".
fn packet(side: Side, source: Ipv4Addr, destination: Ipv4Addr, len: usize) -> Vec<u8> {
    let mut ip = Vec::new();
    etherparse::PacketBuilder::ipv4(source.octets(), destination.octets(), 64)
        .udp(1000, 2000)
        .write(&mut ip, &vec![7; len - 28])
        .unwrap();
    framed(side, &ip)
}

fn framed(side: Side, ip: &[u8]) -> Vec<u8> {
    let head = match side {
        Side::Ethernet => [&GATEWAY_MAC.0[..], &E1_MAC.0, &[8, 0]].concat(),
        Side::InfiniBand => vec![8, 0, 0, 0],
    };
    [&head[..], ip].concat()
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
