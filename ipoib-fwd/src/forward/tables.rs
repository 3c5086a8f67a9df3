//! What the forwarding step looks up: [`Tables`], of which all workers see the same.
//!
//! A directory says which segment a packet is of; a [`SegmentTable`] has its settings and neighbours, with each worker's
//! connections. The control lcore keeps [`Draft`](super::Draft)s, changes them, and publishes; a worker only ever reads.

use std::net::Ipv4Addr;
use std::sync::Arc;

use dataplane::usage::Marks;

use super::Side;
use super::hosts::Hosts;
use super::neighbours::{EthNeighbour, IbNeighbour, NeighbourIndex};
use super::settings::{Settings, Uplink};
use super::short::Short;
use ipoib::link::WorkerIndex;

/// Most neighbours of one side of a segment where nothing else is said.
pub const MAX_NEIGHBOURS: usize = 4096;

/// By worker, what it has sent to lately, by index.
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

/// All that a worker looks up of a segment.
#[derive(Clone, Debug)]
pub struct SegmentTable<D> {
    pub(super) ib: Hosts<IbNeighbour<D>>,
    pub(super) eth: Hosts<EthNeighbour>,
    /// Addresses, MTUs, groups, the role.
    pub settings: Settings<D>,
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
        self.used.of(to).get(usize::from(worker.0))
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
const NEAR_IB: usize = 8192;
const NEAR_ETH: usize = 16_384;
/// The same of InfiniBand hosts that a hash finds, in no order that a processor would guess.
const FAR_IB: usize = 2048;
const NO_SEGMENT: SegmentIndex = SegmentIndex(u8::MAX);

/// Which segments the frames of an Ethernet port are of, by VLAN identifier.
pub(super) type Vlans = [SegmentIndex; VIDS];

/// All that workers look up: published as one, for all of them.
#[derive(Clone, Debug)]
pub struct Tables<D> {
    /// By Ethernet port.
    vlans: Vec<Arc<Vlans>>,
    /// A bit for each Ethernet port that frames of several segments come by.
    several: u64,
    /// By InfiniBand port and the link's index there.
    links: Vec<SegmentIndex>,
    /// By [`SegmentIndex`].
    segments: Vec<Option<Lane<D>>>,
    /// See [`Tables::are_large`].
    large_ib: bool,
    large_eth: bool,
}

/// A segment that packets go to: what of it the short way asks beside hosts, on one cache line, so that a packet finds it without a look
/// into the table.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Lane<D> {
    /// What of the settings is asked.
    pub(super) short: Short,
    pub(super) table: Arc<SegmentTable<D>>,
    /// Of the InfiniBand side, which has more packets of other segments than the one before: links are received from one by one.
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
            *place = table.map(|table| Lane::new(index, table));
        }
        let lanes = || self.segments.iter().flatten();
        let ib: usize = lanes().map(|lane| lane.table.ib.len()).sum();
        let eth: usize = lanes().map(|lane| lane.table.eth.len()).sum();
        let far: usize = lanes().map(|lane| lane.table.ib.far()).sum();
        (self.large_ib, self.large_eth) = (ib > NEAR_IB || far > FAR_IB, eth > NEAR_ETH);
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
        let Some(vlans) = vlans.map(Arc::make_mut) else { return };
        if let Some(place) = vlans.get_mut(usize::from(vid)) {
            *place = segment.unwrap_or(NO_SEGMENT);
        }
        let several = vlans.iter().filter(|segment| **segment != NO_SEGMENT).nth(1).is_some();
        let bit = 1u64.checked_shl(port.0.into()).unwrap_or_default();
        self.several = if several { self.several | bit } else { self.several & !bit };
    }

    /// True if frames of several segments come by an Ethernet port.
    #[inline(always)]
    #[must_use]
    pub const fn has_several_vlans(&self, port: EthernetIndex) -> bool {
        self.several.unbounded_shr(port.0 as u32) & 1 != 0
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
