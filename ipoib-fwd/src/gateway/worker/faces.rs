//! A worker's queues on its ports, with what waits for them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dataplane::table::Reader;
use pmd::eth::{Burst, EthQueue};
use pmd::hca::{BURST, MemoryWork};
use pmd::mem::{FrameFacts, FrameTag, Mbuf};

use super::grouping::Grouping;
use super::{GatewayCommand, GatewayNote};
use crate::counter::{Traffic, WorkerCounters};
use crate::forward::{EndpointIndex, EthernetIndex, FrameHead, SegmentIndex, Tables};
use crate::gateway::frames::head;
use crate::gateway::partial_checksum::SAMPLES;
use crate::gateway::tag;
use endpoint::LinkWorker;
use ipoib::drop_reason::DropReason;
use ipoib::net::arp::EthernetArp;
use ipoib::net::be16;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_ARP, ETHERTYPE_VLAN};

/// How long a port may take nothing before what waits for it is dropped.
const PATIENCE: Duration = Duration::from_millis(20);
/// Frames that wait for a port which takes none.
const WAITING: usize = config::WAITING_FRAMES as usize - BURST;
/// Of these, places for frames of the control lcore's own: a dropped query would count as the host's silence.
const OWN: usize = 32;
/// Queries among them that are reported when they are dropped; of more the last ones count as sent.
const MOST_UNSENT: usize = 2 * OWN;
/// The most frames that a packet is cut into: 65,515 bytes behind a header of 20, in pieces of 552, which is what the smallest MTU of
/// 576 leaves. With options in the header there are a few more.
const PIECES: usize = WAITING / 2;

/// A worker's queues on an InfiniBand port.
#[derive(Debug)]
pub(super) struct InfiniBandFace<Q: MemoryWork> {
    pub(super) link: LinkWorker<Q, GatewayCommand, GatewayNote>,
}

impl<Q: MemoryWork> InfiniBandFace<Q> {
    pub(super) fn new(link: LinkWorker<Q, GatewayCommand, GatewayNote>) -> Self {
        Self { link }
    }
}

/// In which order the InfiniBand ports are received from: first the one behind the last that had anything. Where receiving waits before
/// all had their turn, they have it one after another.
#[derive(Debug)]
pub(super) struct Rota {
    first: u8,
    count: u8,
}

impl Rota {
    pub(super) const fn new(count: u8) -> Self {
        Self { first: 0, count }
    }

    /// The ports of a turn.
    #[inline]
    pub(super) fn turn(&self) -> impl Iterator<Item = EndpointIndex> + use<> {
        (self.first..self.count).chain(0..self.first).map(EndpointIndex)
    }

    /// Something was received from a port.
    #[inline]
    pub(super) const fn served(&mut self, port: EndpointIndex) {
        self.first = if port.0 + 1 < self.count { port.0 + 1 } else { 0 };
    }
}

/// Whether frames may wait for a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    /// It takes frames, as far as one knows.
    Open,
    /// It has refused frames, and has taken none since then.
    Blocked(Instant),
    /// It took nothing for as long as patience lasts: nothing waits for it.
    Stuck,
}

impl Patience {
    /// The port was offered frames, took `taken` of them, and `left` wait on.
    const fn offered(self, taken: usize, left: usize, now: Instant) -> Self {
        match self {
            Self::Stuck | Self::Blocked(_) if taken == 0 => self,
            _ if left > 0 => Self::Blocked(now),
            _ => Self::Open,
        }
    }

    /// What waits is offered once a turn. True if it has waited long enough.
    fn ends(&mut self, now: Instant) -> bool {
        if let Self::Blocked(since) = *self
            && now.saturating_duration_since(since) >= PATIENCE
        {
            *self = Self::Stuck;
        }
        *self == Self::Stuck
    }
}

/// Where a frame of the control lcore's own waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnRoom {
    Burst,
    Behind,
    /// Nowhere, or not for long.
    None,
}

/// Where a frame of the control lcore's own waits for a port; `is_full`: the next burst is full, `behind`:
/// the number of frames after it.
const fn own_room(patience: Patience, is_full: bool, behind: usize) -> OwnRoom {
    match patience {
        Patience::Stuck => OwnRoom::None,
        Patience::Open | Patience::Blocked(_) if !is_full => OwnRoom::Burst,
        Patience::Open | Patience::Blocked(_) if behind < WAITING => OwnRoom::Behind,
        Patience::Open | Patience::Blocked(_) => OwnRoom::None,
    }
}

/// A worker's queue on an Ethernet port.
#[derive(Debug)]
pub(super) struct EthernetFace {
    pub(super) queue: EthQueue,
    pub(super) grouping: Grouping,
    /// What is offered next.
    burst: Burst,
    /// What comes after. Nothing, unless the burst is full.
    behind: VecDeque<Mbuf>,
    patience: Patience,
    /// It has refused frames in this turn, and is not asked again.
    is_blocked: bool,
    /// Frames that it cannot send and has dropped.
    unfit: u64,
    /// Queries of the control lcore's that waited and were dropped, to be reported.
    unsent: Vec<(SegmentIndex, Mbuf)>,
    /// Received frames are looked at before they are forwarded: a tap sees them, or checksums are sampled.
    is_watched: bool,
    has_tap: bool,
    /// Frames that are still to be sampled.
    samples: u8,
}

impl EthernetFace {
    pub(super) fn new(queue: EthQueue) -> Self {
        let behind = VecDeque::with_capacity(WAITING);
        let grouping = Grouping::default();
        Self {
            queue,
            grouping,
            burst: Burst::new(),
            behind,
            patience: Patience::Open,
            is_blocked: false,
            unfit: 0,
            unsent: Vec::with_capacity(MOST_UNSENT),
            is_watched: false,
            has_tap: false,
            samples: 0,
        }
    }

    /// Starts or stops showing received frames to a tap.
    pub(super) const fn watch(&mut self, has_tap: bool) {
        self.has_tap = has_tap;
        self.is_watched = has_tap || self.samples > 0;
    }

    /// Samples the checksums of the next frames.
    pub(super) const fn sample_checksums(&mut self) {
        self.samples = SAMPLES;
        self.is_watched = true;
    }

    /// True if received frames are looked at before they are forwarded.
    #[inline]
    pub(super) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Takes samples for a burst of `frames` frames from those left in this second; returns their number.
    pub(super) fn take_samples(&mut self, frames: usize) -> usize {
        let taken = frames.min(self.samples.into());
        self.samples -= taken as u8;
        self.watch(self.has_tap);
        taken
    }

    /// Ends the sampling of this second.
    pub(super) const fn end_samples(&mut self) {
        self.samples = 0;
        self.watch(self.has_tap);
    }

    /// Has a frame wait for [`EthernetFace::flush`]. False, and the frame is lost, if there is no room.
    #[inline]
    pub(super) fn push(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> bool {
        match self.burst.try_push(frame) {
            Ok(()) => true,
            Err(full) => self.push_full(full.element(), counters),
        }
    }

    fn push_full(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> bool {
        if !self.is_blocked {
            self.offer(counters);
        }
        if !self.burst.is_full() {
            self.burst.push(frame);
            return true;
        }
        let has_room = self.behind.len() < WAITING - OWN;
        if has_room {
            self.behind.push_back(frame);
        }
        has_room
    }

    /// The same for a frame of the control lcore's own, which has places of its own. It
    /// comes back if it would be dropped.
    pub(super) fn push_own(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> Result<(), Mbuf> {
        if self.patience == Patience::Stuck && self.burst.is_empty() {
            return self.offer_one(frame, counters);
        }
        if self.burst.is_full() && !self.is_blocked {
            self.offer(counters);
        }
        match own_room(self.patience, self.burst.is_full(), self.behind.len()) {
            OwnRoom::None => return Err(frame),
            OwnRoom::Burst => self.burst.push(frame),
            OwnRoom::Behind => self.behind.push_back(frame),
        }
        Ok(())
    }

    /// Offers a frame to a port that was stuck: perhaps it takes frames again, and a gateway that forwards
    /// nothing has no other way to find out. The frame comes back if it is not taken.
    #[cold]
    fn offer_one(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> Result<(), Mbuf> {
        self.burst.push(frame);
        self.offer(counters);
        match self.burst.pop() {
            Some(frame) => {
                self.is_blocked = false;
                Err(frame)
            }
            None => Ok(()),
        }
    }

    /// True if there may be no room for all pieces of a packet: of a packet without all its pieces nothing is of use.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.behind.len() > WAITING - OWN - PIECES
    }

    /// True if it is worth waiting for: it has refused frames in this turn, and not for long.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked && self.patience != Patience::Stuck
    }

    /// True if the last frame that was pushed waits still.
    pub(super) const fn holds(&self) -> bool {
        !self.burst.is_empty()
    }

    /// How many frames it could not send, and dropped with [`DropReason::TooManySegments`].
    pub(super) const fn unfit(&self) -> u64 {
        self.unfit
    }

    /// Sends what waits; what the port does not take waits on.
    #[inline]
    pub(super) fn flush(&mut self, counters: &mut WorkerCounters) {
        if !self.burst.is_empty() && !self.is_blocked {
            self.offer(counters);
        }
    }

    /// A turn begins: what waited is offered again, and dropped if the port has taken nothing for too long. True if anything
    /// waits still.
    #[inline]
    pub(super) fn begin_turn<D: Clone>(
        &mut self,
        port: EthernetIndex,
        counters: &mut WorkerCounters,
        tables: &mut Reader<Tables<D>>,
    ) -> bool {
        self.queue.keep_up();
        self.is_blocked && self.retry(port, counters, tables)
    }

    #[cold]
    fn retry<D: Clone>(
        &mut self,
        port: EthernetIndex,
        counters: &mut WorkerCounters,
        tables: &mut Reader<Tables<D>>,
    ) -> bool {
        self.offer(counters);
        if self.is_blocked && self.patience.ends(Instant::now()) {
            // By the older tables: a number may be another segment's in the newer.
            counters.settle();
            self.clear(port, DropReason::EthQueueFull, counters, tables.refresh());
        }
        self.is_blocked
    }

    fn offer(&mut self, counters: &mut WorkerCounters) {
        let mut taken = 0;
        loop {
            // Before they are sent: a driver may put a tag even into a frame that it does not take.
            let (offered, mut lengths) = (self.burst.len(), [0; BURST]);
            for (length, frame) in lengths.iter_mut().zip(&self.burst) {
                *length = frame.len();
            }
            let sent = self.queue.tx_burst(&mut self.burst);
            let bytes: usize = lengths.iter().take(sent).sum();
            counters.packets(Traffic::EthTransmit, sent as u64, bytes as u64);
            let unfit = offered - sent - self.burst.len();
            if unfit > 0 {
                self.unfit += unfit as u64;
                counters.drops(DropReason::TooManySegments, unfit as u64);
            }
            taken += offered - self.burst.len();
            let is_blocked = !self.burst.is_empty();
            let room = self.burst.remaining_capacity().min(self.behind.len());
            if room > 0 {
                self.burst.extend(self.behind.drain(..room));
            }
            if is_blocked || room == 0 {
                self.is_blocked = is_blocked;
                break;
            }
        }
        if self.is_blocked || self.patience != Patience::Open {
            self.patience = self.patience.offered(taken, self.burst.len(), Instant::now());
        }
    }

    /// Drops what waits. Each frame is counted for its segment, in which it has been counted as sent. Queries are kept for
    /// [`EthernetFace::take_unsent`].
    pub(super) fn clear<D: Clone>(
        &mut self,
        port: EthernetIndex,
        reason: DropReason,
        counters: &mut WorkerCounters,
        tables: &Tables<D>,
    ) {
        let Self { burst, behind, unsent, .. } = self;
        for mut frame in burst.drain(..).chain(behind.drain(..)) {
            let front = front_of(&frame);
            let segment = front.as_ref().and_then(|front| tables.vlan(port, front.vid));
            let Some(segment) = segment else {
                counters.drop(reason);
                continue;
            };
            counters.drops_of(segment, reason, 1);
            // No host's ARP is forwarded: all of it is the control lcore's.
            let is_own = front.is_some_and(|front| front.ethertype == ETHERTYPE_ARP);
            let is_kept =
                is_own && unsent.len() < MOST_UNSENT && (!is_tagged(&frame) || tag::remove(&mut frame));
            if is_kept && EthernetArp::parse(head(&frame)).is_ok_and(|arp| arp.is_query()) {
                unsent.push((segment, frame));
            }
        }
        self.is_blocked = false;
    }

    /// True if queries that waited were dropped.
    #[inline]
    pub(super) const fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next query that waited and was dropped, without its tag.
    pub(super) fn take_unsent(&mut self) -> Option<(SegmentIndex, Mbuf)> {
        self.unsent.pop()
    }
}

/// What is in front of the packet of a frame that is to leave by a port: with the tag in it, or the one that the port is to put in.
fn front_of(frame: &Mbuf) -> Option<FrameHead> {
    let read = |tag| FrameHead::parse(head(frame), FrameFacts { tag, ..FrameFacts::default() });
    // A driver may have put it in already.
    let wished = frame.wished_tag().and_then(|control| read(FrameTag::Taken(control)).ok());
    wished.or_else(|| read(FrameTag::InFrame).ok())
}

/// True if the frame has its tag in it.
fn is_tagged(frame: &Mbuf) -> bool {
    be16(head(frame), ETHERNET_HEADER_LEN - 2) == Some(ETHERTYPE_VLAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::Totals;
    use dataplane::table::Publisher;
    use ipoib::net::arp::ArpOperation;
    use ipoib::net::ethernet::MacAddress;
    use pmd::eal::Eal;
    use pmd::eth::{EthConfig, EthPort};
    use pmd::mem::{Pool, PoolConfig};
    use std::net::Ipv4Addr;

    #[test]
    fn frames_that_a_port_does_not_take_are_of_the_segment_of_their_tag() {
        let words = "test --no-huge --no-shconf --no-pci -m 64 --no-telemetry --log-level=error --lcores 0@0";
        let _eal = Eal::init(words.split_whitespace().map(str::to_owned)).expect("EAL");
        let config = PoolConfig { count: 64, data_room: 2048, cache: 0, socket: -1 };
        let pool = Pool::create("faces", &config).expect("a pool");
        let mut tables = Tables::<()>::default();
        tables.join_vlan(EthernetIndex(0), 0, Some(SegmentIndex(0)));
        tables.join_vlan(EthernetIndex(0), 7, Some(SegmentIndex(1)));
        let frame = |vid: Option<u16>, is_wish: bool| {
            let mut frame = pool.copy_from_slice(&[[2; 12].as_slice(), &[8, 0], &[0; 46]].concat()).unwrap();
            match vid {
                Some(vid) if is_wish => frame.wish_tag(vid),
                Some(vid) => assert!(tag::insert(&mut frame, vid)),
                None => {}
            }
            let vid = front_of(&frame).unwrap().vid;
            tables.vlan(EthernetIndex(0), vid).map(|segment| segment.0)
        };
        assert_eq!(frame(None, false), Some(0));
        assert_eq!([true, false].map(|is_wish| frame(Some(7), is_wish)), [Some(1); 2]);
        assert_eq!([true, false].map(|is_wish| frame(Some(8), is_wish)), [None; 2]);
    }

    /// A port whose frames come back to it, as many as its ring has room for, and a pool of this name.
    fn port_on_a_ring(name: &str) -> (Eal, Pool, EthPort, EthernetFace) {
        let words = "test --no-huge --no-shconf --no-pci -m 128 --no-telemetry --log-level=error --lcores 0@0 --vdev net_ring0";
        let eal = Eal::init(words.split_whitespace().map(str::to_owned)).expect("EAL");
        let pool =
            Pool::create(name, &PoolConfig { count: 8192, data_room: 2048, cache: 0, socket: -1 }).unwrap();
        let config = EthConfig {
            queues: 1,
            rx_descriptors: 256,
            tx_descriptors: 256,
            mtu: 1500,
            promiscuous: true,
            offloads: false,
        };
        let (port, mut queues) = EthPort::start(Some("net_ring0"), &config, &pool).expect("a port");
        let face = EthernetFace::new(queues.remove(0));
        (eal, pool, port, face)
    }

    #[test]
    fn a_port_that_was_stuck_is_offered_frames_of_the_gateways_own_alone() {
        let (_eal, pool, _port, mut face) = port_on_a_ring("stuck");
        let mut counters = WorkerCounters::default();
        let frame = || pool.copy_from_slice(&[2; 60]).unwrap();
        // Nobody receives from the port, until it takes nothing any more.
        while !face.is_blocked() {
            assert!(face.push(frame(), &mut counters));
            face.flush(&mut counters);
        }
        face.burst.clear();
        (face.is_blocked, face.patience) = (false, Patience::Stuck);
        for _ in 0..3 {
            assert!(face.push_own(frame(), &mut counters).is_err(), "it takes none");
            assert!(!face.holds() && !face.is_blocked && face.patience == Patience::Stuck);
        }
        let mut received = Burst::new();
        assert!(face.queue.rx_burst(&mut received) > 0);
        assert!(face.push_own(frame(), &mut counters).is_ok(), "it takes frames again");
        assert!(!face.holds() && face.patience == Patience::Open);
    }

    #[test]
    fn queries_that_waited_for_a_stuck_port_are_handed_back_without_their_tag() {
        let (_eal, pool, _port, mut face) = port_on_a_ring("unsent");
        let mut counters = WorkerCounters::default();
        let mut tables = Tables::<()>::default();
        tables.join_vlan(EthernetIndex(0), 0, Some(SegmentIndex(0)));
        tables.join_vlan(EthernetIndex(0), 7, Some(SegmentIndex(1)));
        let mut reader = Publisher::new(tables).reader();
        let arp = |operation, sender_ip| {
            let (mac, target_ip) = (MacAddress([2; 6]), [10, 0, 0, 7].into());
            let sender_ip = Ipv4Addr::from(sender_ip);
            let arp = EthernetArp { operation, sender_mac: mac, sender_ip, target_mac: mac, target_ip };
            arp.to_frame(mac)
        };
        let query = arp(ArpOperation::Request, [10, 0, 0, 1]);
        let others = [arp(ArpOperation::Reply, [10, 0, 0, 1]), arp(ArpOperation::Request, [10, 0, 0, 7])];
        let packet = [[2; 12].as_slice(), &[8, 0], &[0; 46]].concat();
        let frame = |bytes: &[u8]| pool.copy_from_slice(bytes).unwrap();
        while !face.is_blocked() {
            assert!(face.push(frame(&packet), &mut counters));
            face.flush(&mut counters);
        }
        let waiting = face.burst.len();
        // A host has the gateway answer many times, behind which its queries are.
        let behind = MOST_UNSENT.min(WAITING - waiting - 3);
        for other in others.iter().cycle().take(behind) {
            face.push_own(frame(other), &mut counters).unwrap();
        }
        let mut tagged = frame(&query);
        assert!(tag::insert(&mut tagged, 7));
        face.push_own(tagged, &mut counters).unwrap();
        face.push_own(frame(&query), &mut counters).unwrap();
        face.push_own(frame(&packet), &mut counters).unwrap();
        assert!(face.begin_turn(EthernetIndex(0), &mut counters, &mut reader));
        assert!(!face.has_unsent(), "they wait");
        face.patience = Patience::Blocked(Instant::now().checked_sub(PATIENCE).unwrap());
        assert!(!face.begin_turn(EthernetIndex(0), &mut counters, &mut reader));
        assert!(face.has_unsent());
        let unsent: Vec<_> = std::iter::from_fn(|| face.take_unsent()).collect();
        let mut segments: Vec<_> = unsent.iter().map(|(segment, _)| segment.0).collect();
        segments.sort_unstable();
        assert_eq!(segments, [0, 1]);
        assert!(unsent.iter().all(|(_, frame)| frame.data() == query));
        let drops = Totals::of([&counters.reader()]).drops(DropReason::EthQueueFull);
        assert_eq!(drops, (waiting + behind) as u64 + 3, "each is a drop");
    }

    #[test]
    fn a_port_is_waited_for_while_it_takes_something() {
        let began = Instant::now();
        let at = |part: u32| began + PATIENCE * part / 4;
        let mut port = Patience::Open.offered(32, 0, began);
        assert_eq!(port, Patience::Open);
        for part in 0..40 {
            // A frame now and then: slow, but not stuck.
            port = port.offered(usize::from(part % 3 == 0), 31, at(part));
            assert!(!port.ends(at(part)), "{part}");
        }
        port = port.offered(0, 32, at(42));
        assert!(!port.ends(at(42)));
        port = port.offered(0, 32, at(43));
        assert!(port.ends(at(43)), "since 39");
        port = port.offered(0, 1, at(44));
        assert!(port.ends(at(44)), "nothing waits for it any more");
        port = port.offered(1, 1, at(45));
        assert_eq!(port, Patience::Blocked(at(45)));
        assert_eq!(port.offered(1, 0, at(46)), Patience::Open);
        assert_eq!(Patience::Stuck.offered(1, 0, at(46)), Patience::Open);
    }

    #[test]
    fn frames_of_the_gateways_own_have_places_that_traffic_leaves_and_wait_for_no_port_that_is_stuck() {
        let blocked = Patience::Blocked(Instant::now());
        for port in [Patience::Open, blocked] {
            assert_eq!(own_room(port, false, 0), OwnRoom::Burst);
            // All that traffic may take.
            assert_eq!(own_room(port, true, WAITING - OWN), OwnRoom::Behind);
            assert_eq!(own_room(port, true, WAITING), OwnRoom::None);
        }
        assert_eq!(own_room(Patience::Stuck, false, 0), OwnRoom::None);
    }

    /// A port that always has something has kept all others from being received from at all.
    #[test]
    fn ports_have_their_turn_when_there_is_time_for_one_only() {
        let mut rota = Rota::new(3);
        let mut served = Vec::new();
        for busy in
            [&[0, 1, 2][..], &[0, 1, 2], &[0, 1, 2], &[0, 2], &[0, 2], &[0, 2], &[1], &[1], &[0, 1, 2]]
        {
            let port = rota.turn().find(|port| busy.contains(&port.0)).unwrap();
            rota.served(port);
            served.push(port.0);
        }
        assert_eq!(served, [0, 1, 2, 0, 2, 0, 1, 1, 2]);
        assert_eq!(rota.turn().map(|port| port.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn the_pieces_of_the_largest_packet_have_room() {
        let (payload, piece) = (usize::from(u16::MAX) - 20, (576 - 60) / 8 * 8);
        assert!(payload.div_ceil(piece) <= PIECES);
    }
}
