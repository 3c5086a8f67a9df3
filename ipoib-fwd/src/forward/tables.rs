//! The tables that the forwarding decision looks up: [`Tables`], shared by all workers.
//!
//! A directory maps a packet to its segment. A [`SegmentTable`] has the segment's settings and neighbors,
//! with each worker's connections. The control lcore builds [`Draft`](super::Draft)s and publishes their
//! tables. Workers only read them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use dataplane::usage::Marks;

use super::Side;
use super::hosts::Hosts;
use super::neighbours::{EthNeighbour, IbNeighbour, NeighbourIndex};
use super::settings::{Settings, Uplink};
use super::short::Short;
use ipoib::link::WorkerIndex;

/// Default maximum of neighbors on one side of a segment.
pub const MAX_NEIGHBOURS: usize = 4096;

/// The neighbors that each worker has sent to recently, by index.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) infiniband: Arc<[Marks]>,
    pub(super) ethernet: Arc<[Marks]>,
}

impl Used {
    #[inline]
    const fn of(&self, to: Side) -> &Arc<[Marks]> {
        match to {
            Side::InfiniBand => &self.infiniband,
            Side::Ethernet => &self.ethernet,
        }
    }
}

/// The tables of one segment.
#[derive(Clone, Debug)]
pub struct SegmentTable<D> {
    pub(super) ib: Hosts<IbNeighbour<D>>,
    pub(super) eth: Hosts<EthNeighbour>,
    /// Addresses, MTUs, groups and the role.
    pub settings: Settings<D>,
    /// Shared by all versions of the table.
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

    /// Prefetches the entries for a packet to an InfiniBand host, by its source and destination. Returns
    /// false if the caller must call [`SegmentTable::fetch_far_ib`] for the destination a little later.
    #[inline(always)]
    pub fn fetch_ib(&self, [source, destination]: [u32; 2]) -> bool {
        self.ib.fetch_row(source);
        self.ib.fetch(destination)
    }

    /// Prefetches the entry of an InfiniBand host that is not in the directly indexed table.
    pub fn fetch_far_ib(&self, address: u32) {
        self.ib.fetch_far(address);
    }

    /// As [`SegmentTable::fetch_ib`], for a packet to an Ethernet host.
    #[inline(always)]
    pub fn fetch_eth(&self, [source, destination]: [u32; 2]) -> bool {
        self.eth.fetch_row(source);
        self.eth.fetch(destination)
    }

    /// As [`SegmentTable::fetch_far_ib`], for an Ethernet host.
    pub fn fetch_far_eth(&self, address: u32) {
        self.eth.fetch_far(address);
    }

    /// A worker's marks for the hosts of the side `to`.
    #[inline]
    #[must_use]
    pub fn marks(&self, to: Side, worker: WorkerIndex) -> Option<&Marks> {
        self.used.of(to).get(usize::from(worker.0))
    }

    /// Marks an InfiniBand host as used by a worker. Returns true the first time since the marks were taken.
    #[inline]
    pub fn mark_ib(&self, worker: WorkerIndex, index: NeighbourIndex) -> bool {
        self.marks(Side::InfiniBand, worker).is_some_and(|marks| marks.mark(index.0 as usize))
    }

    /// Marks an Ethernet host as used by a worker. Returns true the first time since the marks were taken.
    #[inline]
    pub fn mark_eth(&self, worker: WorkerIndex, index: NeighbourIndex) -> bool {
        self.marks(Side::Ethernet, worker).is_some_and(|marks| marks.mark(index.0 as usize))
    }
}

/// Index of one of the gateway's Ethernet ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EthernetIndex(pub u8);

/// Index of one of the gateway's InfiniBand ports: of its endpoint, and of each worker's queues on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EndpointIndex(pub u8);

impl EthernetIndex {
    /// As an array index.
    #[inline]
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl EndpointIndex {
    /// As an array index.
    #[inline]
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// Index of a segment in [`Tables`], below [`MAX_SEGMENTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentIndex(pub u8);

/// Maximum number of segments of a gateway.
pub const MAX_SEGMENTS: usize = config::MAX_SEGMENTS;

/// Number of VLAN identifiers.
const VIDS: usize = 4096;
/// Number of hosts of one side, in all segments, whose entries fit in the near caches together with all other
/// data. A lookup of one host touches 300 bytes on the InfiniBand side and 60 on the Ethernet side.
const NEAR_IB: usize = 8192;
const NEAR_ETH: usize = 16_384;
/// The same for InfiniBand hosts in the hash map, whose order a hardware prefetcher does not predict.
const FAR_IB: usize = 2048;
const NO_SEGMENT: SegmentIndex = SegmentIndex(u8::MAX);

/// The segments of an Ethernet port by VLAN identifier.
pub(super) type Vlans = [SegmentIndex; VIDS];

/// All tables of the workers, published as one.
#[derive(Clone, Debug)]
pub struct Tables<D> {
    /// By Ethernet port.
    vlans: Vec<Arc<Vlans>>,
    /// A bit for each Ethernet port that has several segments.
    several: u64,
    /// By InfiniBand port and the link's index there.
    links: Vec<SegmentIndex>,
    /// By [`SegmentIndex`].
    segments: Vec<Option<Lane<D>>>,
    /// See [`Tables::are_large`].
    large_ib: bool,
    large_eth: bool,
}

/// The fast-path entry of a segment: everything the fast path needs of it except the hosts. It is one cache
/// line, so that a packet does not touch the table itself.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Lane<D> {
    /// The prepared settings.
    pub(super) short: Short,
    pub(super) table: Arc<SegmentTable<D>>,
    /// The marks of hosts on the InfiniBand side. Packets to that side change segments more often: packets to
    /// the Ethernet side come grouped by segment, since links are polled one by one.
    marks: Arc<[Marks]>,
    pub(super) segment: SegmentIndex,
    pub(super) uplink: Uplink,
}

impl<D: Clone> Lane<D> {
    fn new(segment: SegmentIndex, table: Arc<SegmentTable<D>>) -> Self {
        let marks = Arc::clone(table.used.of(Side::InfiniBand));
        let (short, uplink) = (Short::new(&table.settings), table.settings.uplink());
        Self { short, table, marks, segment, uplink }
    }

    /// As [`SegmentTable::marks`].
    #[inline(always)]
    pub(super) fn marks(&self, to: Side, worker: WorkerIndex) -> Option<&Marks> {
        match to {
            Side::InfiniBand => self.marks.get(usize::from(worker.0)),
            Side::Ethernet => self.table.marks(to, worker),
        }
    }
}

impl<D> Default for Tables<D> {
    fn default() -> Self {
        Self {
            vlans: Vec::new(),
            several: 0,
            links: Vec::new(),
            segments: Vec::new(),
            large_ib: false,
            large_eth: false,
        }
    }
}

impl<D: Clone> Tables<D> {
    /// Sets or removes the segment at an index.
    pub fn set_segment(&mut self, index: SegmentIndex, table: Option<Arc<SegmentTable<D>>>) {
        let at = usize::from(index.0);
        if at >= MAX_SEGMENTS {
            return;
        }
        if at >= self.segments.len() {
            self.segments.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.segments.get_mut(at) {
            *slot = table.map(|table| Lane::new(index, table));
        }
        let lanes = || self.segments.iter().flatten();
        let ib: usize = lanes().map(|lane| lane.table.ib.len()).sum();
        let eth: usize = lanes().map(|lane| lane.table.eth.len()).sum();
        let far: usize = lanes().map(|lane| lane.table.ib.far()).sum();
        (self.large_ib, self.large_eth) = (ib > NEAR_IB || far > FAR_IB, eth > NEAR_ETH);
    }

    /// True if lookups of packets to this side miss the near caches, so that a prefetch pays.
    #[inline]
    #[must_use]
    pub const fn are_large(&self, to: Side) -> bool {
        match to {
            Side::InfiniBand => self.large_ib,
            Side::Ethernet => self.large_eth,
        }
    }

    /// Sets the segment of a VLAN. `vid` 0 is for untagged frames and those with a priority tag.
    pub fn join_vlan(&mut self, port: EthernetIndex, vid: u16, segment: Option<SegmentIndex>) {
        if port.at() >= self.vlans.len() {
            self.vlans.resize_with(port.at() + 1, || Arc::new([NO_SEGMENT; VIDS]));
        }
        let vlans = self.vlans.get_mut(port.at());
        let Some(vlans) = vlans.map(Arc::make_mut) else { return };
        if let Some(slot) = vlans.get_mut(usize::from(vid)) {
            *slot = segment.unwrap_or(NO_SEGMENT);
        }
        let several = vlans.iter().filter(|segment| **segment != NO_SEGMENT).nth(1).is_some();
        let bit = 1u64.checked_shl(port.0.into()).unwrap_or_default();
        self.several = if several { self.several | bit } else { self.several & !bit };
    }

    /// True if an Ethernet port has several segments.
    #[inline(always)]
    #[must_use]
    pub const fn has_several_vlans(&self, port: EthernetIndex) -> bool {
        self.several.unbounded_shr(port.0 as u32) & 1 != 0
    }

    /// The index of a VLAN's segment.
    #[must_use]
    pub fn vlan(&self, port: EthernetIndex, vid: u16) -> Option<SegmentIndex> {
        let index = *self.vlans.get(port.at())?.get(usize::from(vid))?;
        (index != NO_SEGMENT).then_some(index)
    }

    /// Sets the segment of a link of an InfiniBand port.
    pub fn join_link(&mut self, port: EndpointIndex, link: u8, segment: Option<SegmentIndex>) {
        let Some(at) = index_of_link(port, link) else { return };
        if at >= self.links.len() {
            self.links.resize(at + 1, NO_SEGMENT);
        }
        if let Some(slot) = self.links.get_mut(at) {
            *slot = segment.unwrap_or(NO_SEGMENT);
        }
    }

    /// The table of a segment.
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
    pub(super) fn vlans(&self, port: EthernetIndex) -> Option<&Vlans> {
        self.vlans.get(port.at()).map(|vlans| &**vlans)
    }

    #[inline(always)]
    pub(super) fn lane_of(&self, vlans: &Vlans, vid: u16) -> Option<&Lane<D>> {
        self.lane(*vlans.get(usize::from(vid))?)
    }

    #[inline(always)]
    pub(super) fn lane_of_vlan(&self, port: EthernetIndex, vid: u16) -> Option<&Lane<D>> {
        self.lane_of(self.vlans(port)?, vid)
    }

    #[inline(always)]
    pub(super) fn lane_of_link(&self, port: EndpointIndex, link: u8) -> Option<&Lane<D>> {
        self.lane(*self.links.get(index_of_link(port, link)?)?)
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

/// The index of a link among those of all ports; `None` if a port has no such link.
#[inline]
fn index_of_link(port: EndpointIndex, link: u8) -> Option<usize> {
    (usize::from(link) < MAX_SEGMENTS).then(|| port.at() * MAX_SEGMENTS + usize::from(link))
}
