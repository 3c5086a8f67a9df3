//! What the forwarding step looks up: [`Tables`], of which all workers see the same.
//!
//! A directory says which segment a packet is of; a [`SegmentTable`] has its settings and neighbours, with each worker's
//! connections. The control lcore keeps [`Draft`](super::Draft)s, changes them, and publishes; a worker only ever reads.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dataplane::usage::Marks;
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Lid, Qpn};
use pmd::hca::RcSlot;

use super::Side;
use super::hosts::Hosts;
use super::routes::{Hop, Prefix, Routes};
use super::short::Short;
use ipoib::link::{self, RcPath, WorkerIndex};
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::ethernet::MacAddress;

/// Most neighbours of one side of a segment where nothing else is said.
pub const MAX_NEIGHBOURS: usize = 4096;

/// Most workers whose datagram queue pairs a table knows as its own gateway's.
const MAX_WORKERS: usize = 255;

/// Number of a neighbour on its side of its segment, below twice the most that there may be; it stays as long as the neighbour does.
/// Workers mark by it which neighbours they sent to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NeighbourIndex(pub u32);

/// The gateway's own IPv4 address in a segment and the subnet that it lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayAddress {
    address: Ipv4Addr,
    subnet: Prefix,
}

impl GatewayAddress {
    /// An address with the length of its network prefix, 1 to 31; `None` for other lengths.
    #[must_use]
    pub const fn new(address: Ipv4Addr, prefix_len: u8) -> Option<Self> {
        match Prefix::of(address, prefix_len) {
            Some(subnet) if prefix_len >= 1 && prefix_len <= 31 => Some(Self { address, subnet }),
            _ => None,
        }
    }

    /// The gateway's own address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The subnet.
    #[inline]
    #[must_use]
    pub const fn subnet(&self) -> Prefix {
        self.subnet
    }
}

/// What a gateway does with a segment's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// It forwards them.
    #[default]
    Forwarding,
    /// Another gateway does; this one forwards what hosts that have not heard of that yet send to one host.
    HandingOver,
    /// Another gateway does; this one keeps its tables warm.
    Standby,
    /// Nobody may: there is a loop.
    Blocked,
}

/// Workers whose connections an entry has room for; those of more are behind a pointer.
const FEW: usize = 4;

/// The connections to a neighbour, by worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RcPaths {
    few: [Way; FEW],
    more: Option<Arc<[Way]>>,
}

/// A connection, if there is one, in eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Way {
    /// 0: there is none.
    mtu: u32,
    slot: u16,
}

impl From<&Option<RcPath>> for Way {
    fn from(path: &Option<RcPath>) -> Self {
        path.map_or_else(Self::default, |RcPath { slot, mtu }| Self { mtu, slot: slot.0 })
    }
}

impl RcPaths {
    /// Connections in the order of their workers; workers beyond the last have none.
    #[must_use]
    pub fn new(by_worker: &[Option<RcPath>]) -> Self {
        let (few, more) = by_worker.split_at(by_worker.len().min(FEW));
        let more = (!more.is_empty()).then(|| more.iter().map(Way::from).collect());
        let mut paths = Self { few: Default::default(), more };
        for (place, path) in paths.few.iter_mut().zip(few) {
            *place = path.into();
        }
        paths
    }

    /// The connection of a worker, if it is up.
    #[inline]
    #[must_use]
    pub fn of(&self, worker: WorkerIndex) -> Option<RcPath> {
        let worker = usize::from(worker.0);
        let Way { mtu, slot } = match self.few.get(worker) {
            Some(way) => *way,
            None => *self.more.as_ref()?.get(worker - FEW)?,
        };
        (mtu != 0).then_some(RcPath { slot: RcSlot(slot), mtu })
    }
}

/// A host of the InfiniBand side.
// In this order: what packets by connections touch is on one cache line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct IbNeighbour<D> {
    /// The workers' connections to it.
    pub rc: RcPaths,
    /// True if a worker without a connection should tell that it sends to this neighbour, so that one is dialled.
    pub dial: bool,
    /// Where datagrams go; `None` while the path is looked up.
    pub ud: Option<D>,
}

impl<D: Clone> IbNeighbour<D> {
    /// What workers need to know of a neighbour that the link published.
    #[must_use]
    pub fn of(neighbour: &link::Neighbour<D>) -> Self {
        Self { ud: neighbour.ud.clone(), rc: RcPaths::new(&neighbour.rc), dial: neighbour.dial }
    }
}

/// A host of the Ethernet side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthNeighbour {
    /// Its link-layer address.
    pub mac: MacAddress,
}

/// Another gateway of the segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerGateway {
    /// Its Ethernet address.
    pub mac: MacAddress,
    /// Its InfiniBand port.
    pub lid: Lid,
    /// That port's GID.
    pub gid: Gid,
    /// Its datagram queue pairs there.
    pub qpns: Vec<Qpn>,
}

/// What a table knows beside neighbours.
#[derive(Clone, Debug)]
pub struct Settings<D> {
    /// Ethernet address of the gateway.
    pub mac: MacAddress,
    /// Its Ethernet port.
    pub ethernet: EthernetIndex,
    /// The VLAN identifier of its frames; `None` if they carry no tag.
    pub vlan: Option<u16>,
    /// Its InfiniBand port.
    pub endpoint: EndpointIndex,
    /// Its link: the place of its datagram queue pair in each worker's queues on that port.
    pub link: u8,
    /// What the gateway does with packets.
    pub role: Role,
    /// Its IPv4 address, if it has one.
    pub address: Option<GatewayAddress>,
    /// Subnets beside that of the address, and routes. With no subnet at all every host is taken to be on the link, and
    /// subnet broadcasts are not known as such.
    pub routes: Routes,
    /// Largest IPv4 packet in an Ethernet frame, bytes.
    pub eth_mtu: u16,
    /// True if the Ethernet port has a link.
    pub eth_up: bool,
    /// Largest datagram of the InfiniBand side, bytes, encapsulation header included: the broadcast group's MTU.
    pub ud_mtu: u16,
    /// The broadcast group; `None` while the InfiniBand side is down.
    pub broadcast: Option<D>,
    /// Other groups that are joined.
    pub groups: Vec<(Ipv4Addr, D)>,
    /// LID of our port, to know our own multicasts when they come back.
    pub own_lid: Lid,
    /// The datagram queue pairs of all workers on it.
    pub own_qpns: ArrayVec<Qpn, MAX_WORKERS>,
    /// Other gateways of the segment: what they sent to a group was on the other side already.
    pub gateways: Vec<PeerGateway>,
}

impl<D> Settings<D> {
    /// A gateway with this Ethernet address, Ethernet MTU 1500, and the InfiniBand side down.
    #[must_use]
    pub fn new(mac: MacAddress) -> Self {
        Self {
            mac,
            ethernet: EthernetIndex(0),
            vlan: None,
            endpoint: EndpointIndex(0),
            link: 0,
            role: Role::default(),
            address: None,
            routes: Routes::default(),
            eth_mtu: 1500,
            eth_up: true,
            ud_mtu: 2048,
            broadcast: None,
            groups: Vec::new(),
            own_lid: Lid(0),
            own_qpns: ArrayVec::new(),
            gateways: Vec::new(),
        }
    }

    /// True if a frame is from another gateway of the segment.
    #[must_use]
    pub fn is_gateway_mac(&self, source: MacAddress) -> bool {
        self.gateways.iter().any(|g| g.mac == source)
    }

    /// True if it is the link-layer address of another gateway of the segment.
    #[must_use]
    pub fn is_gateway_address(&self, address: HardwareAddress) -> bool {
        self.gateways.iter().any(|g| g.gid == address.gid && g.qpns.contains(&address.qpn))
    }

    /// True if a datagram is from another gateway of the segment.
    #[must_use]
    pub fn is_gateway_port(&self, lid: Lid, qpn: Qpn) -> bool {
        self.gateways.iter().any(|g| g.lid == lid && g.qpns.contains(&qpn))
    }

    /// The subnet in which an address lies, and where packets for it go if it is in none.
    #[inline]
    #[must_use]
    pub fn hop(&self, ip: Ipv4Addr) -> Option<Hop> {
        match &self.address {
            Some(own) if own.subnet.contains(ip) => Some(Hop::OnLink(own.subnet)),
            _ => self.routes.get(ip),
        }
    }

    /// True if the segment has no subnet: then every address is on the link.
    #[inline]
    #[must_use]
    pub const fn knows_no_subnet(&self) -> bool {
        self.address.is_none() && self.routes.is_empty()
    }

    /// The neighbour that a packet for this host goes to: the host itself, or a router; `None` if no route leads there.
    #[must_use]
    pub fn next_hop(&self, host: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.hop(host) {
            Some(Hop::OnLink(_)) => Some(host),
            Some(Hop::Via(router)) => Some(router),
            None => self.knows_no_subnet().then_some(host),
        }
    }

    /// True if a host of this segment can have the address, as far as its subnets tell.
    #[must_use]
    pub fn is_on_link(&self, host: Ipv4Addr) -> bool {
        match self.hop(host) {
            Some(Hop::OnLink(subnet)) => !subnet.is_broadcast(host) && !subnet.is_network(host),
            Some(Hop::Via(_)) => false,
            None => self.knows_no_subnet(),
        }
    }

    /// The addresses of the segment's own subnet; none, if it has none.
    pub(super) fn own_addresses(&self) -> Range<u64> {
        let Some(own) = &self.address else { return 0..0 };
        let (first, last) = own.subnet().hosts();
        first.to_bits().into()..u64::from(last.to_bits()) + 1
    }

    /// Largest IPv4 packet in a datagram.
    #[inline]
    #[must_use]
    pub const fn ud_ip_mtu(&self) -> u16 {
        self.ud_mtu.saturating_sub(IPOIB_HEADER_LEN as u16)
    }
}

/// By worker, what it has sent to lately, by index.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) infiniband: Arc<[Marks]>,
    pub(super) ethernet: Arc<[Marks]>,
}

/// All that a worker looks up of a segment.
#[derive(Clone, Debug)]
pub struct SegmentTable<D> {
    /// Addresses, MTUs, groups, the role.
    pub settings: Settings<D>,
    pub(super) ib: Hosts<IbNeighbour<D>>,
    pub(super) eth: Hosts<EthNeighbour>,
    /// All versions of the table share them.
    used: Used,
}

impl<D: Clone> SegmentTable<D> {
    pub(super) fn new(seed: u64, settings: Settings<D>, most: usize, used: Used) -> Self {
        Self { settings, ib: Hosts::new(seed, most), eth: Hosts::new(seed.rotate_left(32), most), used }
    }

    /// The InfiniBand host with this address.
    #[inline]
    #[must_use]
    pub fn ib(&self, ip: Ipv4Addr) -> Option<(NeighbourIndex, &IbNeighbour<D>)> {
        self.ib.get(ip.to_bits())
    }

    /// True if an InfiniBand host has this address.
    #[inline(always)]
    #[must_use]
    pub fn has_ib(&self, ip: Ipv4Addr) -> bool {
        self.ib.has(ip.to_bits())
    }

    /// True if an Ethernet host has this address.
    #[inline(always)]
    #[must_use]
    pub fn has_eth(&self, ip: Ipv4Addr) -> bool {
        self.eth.has(ip.to_bits())
    }

    /// The Ethernet host with this address.
    #[inline]
    #[must_use]
    pub fn eth(&self, ip: Ipv4Addr) -> Option<(NeighbourIndex, &EthNeighbour)> {
        self.eth.get(ip.to_bits())
    }

    /// Has the processor fetch what is looked up of a packet to an InfiniBand host, from its source and its destination. False if the host is to
    /// be asked for by [`SegmentTable::fetch_far_ib`], a little later.
    #[inline(always)]
    pub fn fetch_ib(&self, [source, destination]: [u32; 2]) -> bool {
        self.ib.fetch_row(source);
        self.ib.fetch(destination)
    }

    /// Has it fetch what is known of an InfiniBand host that has no place in the subnet's list.
    pub fn fetch_far_ib(&self, address: u32) {
        self.ib.fetch_far(address);
    }

    /// As [`SegmentTable::fetch_ib`] of a packet to an Ethernet host.
    #[inline(always)]
    pub fn fetch_eth(&self, [source, destination]: [u32; 2]) -> bool {
        self.eth.fetch_row(source);
        self.eth.fetch(destination)
    }

    /// As [`SegmentTable::fetch_far_ib`] of an Ethernet host.
    pub fn fetch_far_eth(&self, address: u32) {
        self.eth.fetch_far(address);
    }

    /// The marks of a worker for the hosts of one side that it sends to.
    #[inline]
    #[must_use]
    pub fn marks(&self, to: Side, worker: WorkerIndex) -> Option<&Marks> {
        let used = match to {
            Side::InfiniBand => &self.used.infiniband,
            Side::Ethernet => &self.used.ethernet,
        };
        used.get(usize::from(worker.0))
    }

    /// Marks an InfiniBand host as used by a worker; true for the first time since the marks were taken.
    #[inline]
    pub fn mark_ib(&self, worker: WorkerIndex, index: NeighbourIndex) -> bool {
        self.marks(Side::InfiniBand, worker).is_some_and(|marks| marks.mark(index.0 as usize))
    }

    /// The same of an Ethernet host.
    #[inline]
    pub fn mark_eth(&self, worker: WorkerIndex, index: NeighbourIndex) -> bool {
        self.marks(Side::Ethernet, worker).is_some_and(|marks| marks.mark(index.0 as usize))
    }
}

/// Number of an Ethernet port among those of the gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EthernetIndex(pub u8);

/// Number of an InfiniBand port among those of the gateway: of its endpoint, and of each worker's queues there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EndpointIndex(pub u8);

impl EthernetIndex {
    /// To look up by.
    #[inline]
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl EndpointIndex {
    /// To look up by.
    #[inline]
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// Place of a segment in [`Tables`], below [`MAX_SEGMENTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentIndex(pub u8);

/// Most segments of a gateway.
pub const MAX_SEGMENTS: usize = config::MAX_SEGMENTS;

/// Numbers that a VLAN tag can carry.
const VIDS: usize = 4096;
/// Hosts of a side, of all segments together, that near caches hold beside all else: what is looked up of one takes 300 bytes on the
/// InfiniBand side, 60 on the other.
const NEAR_IB: usize = 2048;
const NEAR_ETH: usize = 16_384;
const NO_SEGMENT: SegmentIndex = SegmentIndex(u8::MAX);

/// All that workers look up: published as one, for all of them.
#[derive(Clone, Debug)]
pub struct Tables<D> {
    /// By Ethernet port and VLAN identifier.
    vlans: Vec<Arc<[SegmentIndex; VIDS]>>,
    /// By InfiniBand port and the link's index there.
    links: Vec<SegmentIndex>,
    /// By [`SegmentIndex`].
    segments: Vec<Option<Lane<D>>>,
    /// See [`Tables::are_large`].
    large_ib: bool,
    large_eth: bool,
}

/// A segment that packets go to.
#[derive(Clone, Debug)]
pub(super) struct Lane<D> {
    pub(super) segment: SegmentIndex,
    /// What of the settings the short way asks. Here and not in the table, so that a packet finds it without a look there.
    pub(super) short: Short,
    pub(super) table: Arc<SegmentTable<D>>,
}

impl<D> Default for Tables<D> {
    fn default() -> Self {
        Self { vlans: Vec::new(), links: Vec::new(), segments: Vec::new(), large_ib: false, large_eth: false }
    }
}

impl<D: Clone> Tables<D> {
    /// Puts a segment at its place, or nothing there.
    pub fn set_segment(&mut self, index: SegmentIndex, table: Option<Arc<SegmentTable<D>>>) {
        let at = usize::from(index.0);
        if at >= MAX_SEGMENTS {
            return;
        }
        if at >= self.segments.len() {
            self.segments.resize_with(at + 1, || None);
        }
        if let Some(place) = self.segments.get_mut(at) {
            *place = table.map(|table| Lane { segment: index, short: Short::new(&table.settings), table });
        }
        let lanes = || self.segments.iter().flatten();
        let ib: usize = lanes().map(|lane| lane.table.ib.len()).sum();
        let eth: usize = lanes().map(|lane| lane.table.eth.len()).sum();
        (self.large_ib, self.large_eth) = (ib > NEAR_IB, eth > NEAR_ETH);
    }

    /// True if what packets to this side look up lies in no near cache, so that it is worth being fetched before.
    #[inline]
    #[must_use]
    pub const fn are_large(&self, to: Side) -> bool {
        match to {
            Side::InfiniBand => self.large_ib,
            Side::Ethernet => self.large_eth,
        }
    }

    /// Says which segment the frames of a VLAN are of; `vid` 0 stands for frames without a tag and those that carry a
    /// priority only.
    pub fn join_vlan(&mut self, port: EthernetIndex, vid: u16, segment: Option<SegmentIndex>) {
        if port.at() >= self.vlans.len() {
            self.vlans.resize_with(port.at() + 1, || Arc::new([NO_SEGMENT; VIDS]));
        }
        let vlans = self.vlans.get_mut(port.at());
        if let Some(place) = vlans.and_then(|v| Arc::make_mut(v).get_mut(usize::from(vid))) {
            *place = segment.unwrap_or(NO_SEGMENT);
        }
    }

    /// The number of the segment that the frames of a VLAN are of.
    #[must_use]
    pub fn vlan(&self, port: EthernetIndex, vid: u16) -> Option<SegmentIndex> {
        let index = *self.vlans.get(port.at())?.get(usize::from(vid))?;
        (index != NO_SEGMENT).then_some(index)
    }

    /// Says which segment the messages of a link of an InfiniBand port are of.
    pub fn join_link(&mut self, port: EndpointIndex, link: u8, segment: Option<SegmentIndex>) {
        let Some(at) = place_of_link(port, link) else { return };
        if at >= self.links.len() {
            self.links.resize(at + 1, NO_SEGMENT);
        }
        if let Some(place) = self.links.get_mut(at) {
            *place = segment.unwrap_or(NO_SEGMENT);
        }
    }

    /// A segment.
    #[inline]
    #[must_use]
    pub fn segment(&self, index: SegmentIndex) -> Option<&SegmentTable<D>> {
        Some(&self.lane(index)?.table)
    }

    #[inline(always)]
    fn lane(&self, index: SegmentIndex) -> Option<&Lane<D>> {
        self.segments.get(usize::from(index.0))?.as_ref()
    }

    #[inline(always)]
    pub(super) fn lane_of_vlan(&self, port: EthernetIndex, vid: u16) -> Option<&Lane<D>> {
        self.lane(*self.vlans.get(port.at())?.get(usize::from(vid))?)
    }

    #[inline(always)]
    pub(super) fn lane_of_link(&self, port: EndpointIndex, link: u8) -> Option<&Lane<D>> {
        self.lane(*self.links.get(place_of_link(port, link)?)?)
    }

    /// The segment of a VLAN of an Ethernet port.
    #[inline]
    #[must_use]
    pub fn of_vlan(&self, port: EthernetIndex, vid: u16) -> Option<(SegmentIndex, &SegmentTable<D>)> {
        self.lane_of_vlan(port, vid).map(|lane| (lane.segment, &*lane.table))
    }

    /// The segment of a link of an InfiniBand port.
    #[inline]
    #[must_use]
    pub fn of_link(&self, port: EndpointIndex, link: u8) -> Option<(SegmentIndex, &SegmentTable<D>)> {
        self.lane_of_link(port, link).map(|lane| (lane.segment, &*lane.table))
    }
}

/// A link's place among those of all ports; `None` if a port has no such link.
#[inline]
fn place_of_link(port: EndpointIndex, link: u8) -> Option<usize> {
    (usize::from(link) < MAX_SEGMENTS).then(|| port.at() * MAX_SEGMENTS + usize::from(link))
}
