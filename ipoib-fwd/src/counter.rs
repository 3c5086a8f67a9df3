//! What a worker counts: traffic by path, and drops by reason.

use dataplane::counter::{CounterReader, CounterRows, CounterRowsReader, Counters};
use serde_json::{Map, Value, json};

use crate::forward::{MAX_SEGMENTS, SegmentIndex};
use ipoib::drop_reason::DropReason;

hca::counted! {
    /// A path that packets take through a worker.
    Traffic {
        /// Frames from the Ethernet port.
        EthReceive = "eth_receive",
        /// Frames to the Ethernet port.
        EthTransmit = "eth_transmit",
        /// Datagrams to us.
        IbUdUnicastReceive = "ib_ud_unicast_receive",
        /// Datagrams to a group.
        IbUdMulticastReceive = "ib_ud_multicast_receive",
        /// Messages by connections.
        IbRcReceive = "ib_rc_receive",
        /// Datagrams to a host.
        IbUdUnicastTransmit = "ib_ud_unicast_transmit",
        /// Datagrams to a group.
        IbUdMulticastTransmit = "ib_ud_multicast_transmit",
        /// Messages by connections.
        IbRcTransmit = "ib_rc_transmit",
        /// Packets handed to the control lcore.
        Punt = "punt",
        /// Packets that were fragmented.
        Fragmented = "fragmented",
    }
}

hca::counted! {
    /// How a worker spends its time. What is left polls and finds nothing.
    Labour {
        /// Turns in which something was done.
        BusyTurns = "busy_turns",
        /// Nanoseconds that they took.
        Busy = "busy_ns",
        /// Nanoseconds in which it rested, until a port told of something or a nap was over.
        Rest = "rest_ns",
    }
}

const TRAFFIC: usize = Traffic::ALL.len();
/// Where a worker's drops begin, and where its time does.
const DROPS: usize = 2 * TRAFFIC;
const LABOUR: usize = DROPS + DropReason::ALL.len();
/// Counters of one worker.
pub const COUNT: usize = LABOUR + Labour::ALL.len();

hca::counted! {
    /// What is counted for a segment. The ways that packets go by are on one cache line, of which a packet touches no other.
    SegmentTraffic {
        /// Sent to the InfiniBand side.
        ToInfiniBand = "to_infiniband",
        /// Queued for the Ethernet port. Frames that it does not take in the end are counted as drops of the segment, too: `eth-queue-full`.
        ToEthernet = "to_ethernet",
        /// Handed to the control lcore.
        Punt = "punt",
    }
}

/// Where a segment's drops begin: behind its first cache line.
const SEGMENT_DROPS: usize = 8;
/// Counters of a segment.
pub const SEGMENT_COUNT: usize = SEGMENT_DROPS + DropReason::ALL.len();

/// What packets that were forwarded one after the other have in common, as a rule all of a burst, in a number, to be compared at once: the
/// segment in the lowest byte, the way, and the path, [`NO_PATH`] where it is not counted by itself.
#[inline(always)]
const fn kind(segment: SegmentIndex, way: SegmentTraffic, path: Option<Traffic>) -> u32 {
    let path = match path {
        Some(path) => path as u8,
        None => NO_PATH,
    };
    u32::from_le_bytes([segment.0, way as u8, path, 0])
}

const NO_PATH: u8 = u8::MAX;
/// All of a kind but the segment.
const ALIKE: u32 = !0xff;

/// A worker's counters.
#[derive(Debug)]
pub struct WorkerCounters {
    all: Counters<COUNT>,
    segments: CounterRows<SEGMENT_COUNT>,
    /// Packets of one kind that are not in the counters yet, and their bytes: see [`WorkerCounters::settle`].
    kind: u32,
    // Not beside each other: two numbers that are added to at once go through a vector register, which takes longer than two additions.
    packets: u64,
    /// Packets of the path, and their bytes, that are in the counters of their segments and not in those of the path yet.
    path_packets: u64,
    bytes: u64,
    path_bytes: u64,
}

/// A reader of them.
pub type WorkerCounterReader = CounterReader<COUNT>;

/// A reader of those of the segments.
pub type SegmentCounterReader = CounterRowsReader<SEGMENT_COUNT>;

impl Default for WorkerCounters {
    fn default() -> Self {
        let kind = kind(SegmentIndex(0), SegmentTraffic::ToInfiniBand, None);
        let segments = CounterRows::new(MAX_SEGMENTS);
        Self {
            all: Counters::default(),
            segments,
            kind,
            packets: 0,
            bytes: 0,
            path_packets: 0,
            path_bytes: 0,
        }
    }
}

impl WorkerCounters {
    /// Counts one packet of `bytes` on a path.
    pub fn packet(&mut self, path: Traffic, bytes: usize) {
        self.all.add(2 * path as usize, 1);
        self.all.add(2 * path as usize + 1, bytes as u64);
    }

    /// Counts `packets` of `bytes` altogether on a path.
    pub fn packets(&mut self, path: Traffic, packets: u64, bytes: u64) {
        self.all.add(2 * path as usize, packets);
        self.all.add(2 * path as usize + 1, bytes);
    }

    /// Counts a burst of messages from an InfiniBand port with their bytes; of these so many, and their bytes, were datagrams to one and to
    /// many.
    pub fn received(&mut self, messages: usize, bytes: usize, datagrams: [(usize, usize); 2]) {
        let [unicast, multicast] = datagrams;
        let connections = (messages - unicast.0 - multicast.0, bytes - unicast.1 - multicast.1);
        let paths = [Traffic::IbRcReceive, Traffic::IbUdUnicastReceive, Traffic::IbUdMulticastReceive];
        for (path, (messages, bytes)) in paths.into_iter().zip([connections, unicast, multicast]) {
            if messages > 0 {
                self.packets(path, messages as u64, bytes as u64);
            }
        }
    }

    /// Counts one packet of `bytes` of a segment's.
    #[inline]
    pub fn of_segment(&mut self, segment: SegmentIndex, way: SegmentTraffic, bytes: usize) {
        self.segments.add(segment.0.into(), 2 * way as usize, 1);
        self.segments.add(segment.0.into(), 2 * way as usize + 1, bytes as u64);
    }

    /// Counts one packet of `bytes` of a segment's on a path, or on none, once another kind of packet comes or [`WorkerCounters::settle`]
    /// is called: most packets add to two numbers only.
    #[inline(always)]
    pub fn forwarded(
        &mut self,
        segment: SegmentIndex,
        way: SegmentTraffic,
        path: Option<Traffic>,
        bytes: usize,
    ) {
        let (kind, bytes) = (kind(segment, way, path), bytes as u64);
        if kind == self.kind {
            self.packets += 1;
            self.bytes += bytes;
            return;
        }
        // Packets of many segments in turn have the rest in common as a rule.
        if (kind ^ self.kind) & ALIKE == 0 {
            self.settle_segment();
        } else {
            self.settle();
        }
        (self.kind, self.packets, self.bytes) = (kind, 1, bytes);
    }

    /// Counts what was forwarded so far. Once a turn.
    #[inline(never)]
    pub fn settle(&mut self) {
        self.settle_segment();
        (self.packets, self.bytes) = (0, 0);
        let packets = std::mem::take(&mut self.path_packets);
        let bytes = std::mem::take(&mut self.path_bytes);
        let [_, _, path, _] = self.kind.to_le_bytes();
        if packets > 0
            && let Some(path) = Traffic::ALL.get(usize::from(path))
        {
            self.packets(*path, packets, bytes);
        }
    }

    /// Counts for the segment what is counted anew from then on.
    #[inline(always)]
    fn settle_segment(&mut self) {
        let [segment, way, ..] = self.kind.to_le_bytes();
        let (packets, bytes) = (self.packets, self.bytes);
        self.segments.add_both(segment.into(), 2 * usize::from(way), [packets, bytes]);
        self.path_packets += packets;
        self.path_bytes += bytes;
    }

    /// Counts one drop of a packet that is of no segment.
    pub fn drop(&mut self, reason: DropReason) {
        self.drops(reason, 1);
    }

    /// Counts `n` drops of packets that are of no segment.
    pub fn drops(&mut self, reason: DropReason, n: u64) {
        self.all.add(DROPS + reason as usize, n);
    }

    /// Counts a busy turn of so many nanoseconds.
    pub fn busy_turn(&mut self, ns: u64) {
        self.all.add(LABOUR + Labour::BusyTurns as usize, 1);
        self.all.add(LABOUR + Labour::Busy as usize, ns);
    }

    /// Counts a rest of so many nanoseconds.
    pub fn rest(&mut self, ns: u64) {
        self.all.add(LABOUR + Labour::Rest as usize, ns);
    }

    /// Counts `n` drops of a segment's packets.
    pub fn drops_of(&mut self, segment: SegmentIndex, reason: DropReason, n: u64) {
        self.drops(reason, n);
        self.segments.add(segment.0.into(), SEGMENT_DROPS + reason as usize, n);
    }

    /// A reader for the control lcore.
    #[must_use]
    pub fn reader(&self) -> WorkerCounterReader {
        self.all.reader()
    }

    /// A reader of the segments' counters.
    #[must_use]
    pub fn segment_reader(&self) -> SegmentCounterReader {
        self.segments.reader()
    }
}

/// A segment's counters, of a worker or summed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentTotals([u64; SEGMENT_COUNT]);

impl SegmentTotals {
    /// A segment's sums at this moment.
    #[must_use]
    pub fn of<'a>(
        readers: impl IntoIterator<Item = &'a SegmentCounterReader>,
        segment: SegmentIndex,
    ) -> Self {
        let mut sums = [0; SEGMENT_COUNT];
        for reader in readers {
            for (sum, value) in sums.iter_mut().zip(reader.read(segment.0.into())) {
                *sum += value;
            }
        }
        Self(sums)
    }

    /// Several together.
    #[must_use]
    pub fn sum(all: &[Self]) -> Self {
        let mut sums = [0; SEGMENT_COUNT];
        for one in all {
            for (sum, value) in sums.iter_mut().zip(one.0) {
                *sum += value;
            }
        }
        Self(sums)
    }

    /// What has been counted since `before`: a segment's number is used again.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut more = self.clone();
        for (now, before) in more.0.iter_mut().zip(before.0) {
            *now = now.wrapping_sub(before);
        }
        more
    }

    /// Packets on a way.
    #[must_use]
    pub const fn packets(&self, way: SegmentTraffic) -> u64 {
        self.0[2 * way as usize]
    }

    /// Bytes on a way.
    #[must_use]
    pub const fn bytes(&self, way: SegmentTraffic) -> u64 {
        self.0[2 * way as usize + 1]
    }

    /// Drops for a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.0[SEGMENT_DROPS + reason as usize]
    }

    /// One row: packets and bytes by way, and all drops.
    #[must_use]
    pub fn row_json(&self) -> Map<String, Value> {
        let mut row = Map::new();
        for way in SegmentTraffic::ALL {
            row.insert(format!("{}_packets", way.name()), self.packets(way).into());
            row.insert(format!("{}_bytes", way.name()), self.bytes(way).into());
        }
        let drops: u64 = DropReason::ALL.iter().map(|&reason| self.drops(reason)).sum();
        row.insert("drops".to_owned(), drops.into());
        row
    }

    /// Packets and bytes by way.
    #[must_use]
    pub fn traffic_json(&self) -> Value {
        let way = |w: SegmentTraffic| {
            (w.name().to_owned(), json!({"packets": self.packets(w), "bytes": self.bytes(w)}))
        };
        SegmentTraffic::ALL.into_iter().map(way).collect::<Map<_, _>>().into()
    }

    /// Drops by reason, those that happened.
    #[must_use]
    pub fn drops_json(&self) -> Value {
        drops_json(|reason| self.drops(reason))
    }
}

fn drops_json(drops: impl Fn(DropReason) -> u64) -> Value {
    DropReason::ALL
        .iter()
        .map(|&reason| (reason, drops(reason)))
        .filter(|(_, n)| *n > 0)
        .map(|(reason, n)| (reason.name().to_owned(), n.into()))
        .collect::<Map<_, _>>()
        .into()
}

/// Counters summed over workers.
#[derive(Clone, Debug)]
pub struct Totals([u64; COUNT]);

impl Totals {
    /// The sums at this moment, with the control lcore's own drops.
    #[must_use]
    pub fn of<'a>(readers: impl IntoIterator<Item = &'a WorkerCounterReader>) -> Self {
        let mut sums = [0; COUNT];
        for reader in readers {
            for (sum, value) in sums.iter_mut().zip(reader.read()) {
                *sum += value;
            }
        }
        Self(sums)
    }

    /// What has been counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut rest = self.clone();
        rest.0.iter_mut().zip(before.0).for_each(|(now, before)| *now = now.saturating_sub(before));
        rest
    }

    /// Packets on a path.
    #[must_use]
    pub const fn packets(&self, path: Traffic) -> u64 {
        self.0[2 * path as usize]
    }

    /// Bytes on a path.
    #[must_use]
    pub const fn bytes(&self, path: Traffic) -> u64 {
        self.0[2 * path as usize + 1]
    }

    /// Drops for a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.0[DROPS + reason as usize]
    }

    /// How workers spent their time.
    #[must_use]
    pub const fn labour(&self, what: Labour) -> u64 {
        self.0[LABOUR + what as usize]
    }

    /// One row: packets by path, and how the time was spent.
    #[must_use]
    pub fn row_json(&self) -> Map<String, Value> {
        let packets = Traffic::ALL.iter().map(|&p| (format!("{}_packets", p.name()), self.packets(p).into()));
        let labour = Labour::ALL.iter().map(|&what| (what.name().to_owned(), self.labour(what).into()));
        packets.chain(labour).collect()
    }

    /// Packets and bytes by path.
    #[must_use]
    pub fn traffic_json(&self) -> Value {
        Traffic::ALL
            .iter()
            .map(|&p| (p.name().to_owned(), json!({"packets": self.packets(p), "bytes": self.bytes(p)})))
            .collect::<Map<_, _>>()
            .into()
    }

    /// Drops by reason, those that happened.
    #[must_use]
    pub fn drops_json(&self) -> Value {
        drops_json(|reason| self.drops(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forwarded_is_counted_once_whatever_came_in_between() {
        let mut counters = WorkerCounters::default();
        let (reader, segments) = (counters.reader(), counters.segment_reader());
        let (to, back) = (SegmentTraffic::ToInfiniBand, SegmentTraffic::ToEthernet);
        let (rc, ud) = (Some(Traffic::IbRcTransmit), Some(Traffic::IbUdUnicastTransmit));
        let packets = [(1, to, rc, 10), (1, to, rc, 20), (1, to, ud, 40), (2, to, ud, 80), (1, to, rc, 160)];
        for (segment, way, path, bytes) in packets {
            counters.forwarded(SegmentIndex(segment), way, path, bytes);
        }
        counters.forwarded(SegmentIndex(2), back, None, 320);
        counters.settle();
        counters.settle();
        let totals = Totals::of([&reader]);
        let of_path = |path| (totals.packets(path), totals.bytes(path));
        assert_eq!(
            (of_path(Traffic::IbRcTransmit), of_path(Traffic::IbUdUnicastTransmit)),
            ((3, 190), (2, 120))
        );
        let of_segment = |n, way| {
            let totals = SegmentTotals::of([&segments], SegmentIndex(n));
            (totals.packets(way), totals.bytes(way))
        };
        assert_eq!((of_segment(1, to), of_segment(1, back)), ((4, 230), (0, 0)));
        assert_eq!((of_segment(2, to), of_segment(2, back)), ((1, 80), (1, 320)));
    }

    #[test]
    fn segments_are_counted_for_themselves_and_in_all() {
        let (mut a, mut b) = (WorkerCounters::default(), WorkerCounters::default());
        let readers = [a.segment_reader(), b.segment_reader()];
        let (one, last) = (SegmentIndex(1), SegmentIndex(127));
        a.of_segment(one, SegmentTraffic::ToInfiniBand, 100);
        b.of_segment(one, SegmentTraffic::ToInfiniBand, 50);
        b.of_segment(last, SegmentTraffic::ToEthernet, 60);
        b.drops_of(last, DropReason::Shutdown, 3);
        b.drop(DropReason::Storm);
        let before = SegmentTotals::of(&readers, one);
        assert_eq!(
            (before.packets(SegmentTraffic::ToInfiniBand), before.bytes(SegmentTraffic::ToInfiniBand)),
            (2, 150)
        );
        assert_eq!(before.drops_json(), json!({}));
        let of_last = SegmentTotals::of(&readers, last);
        assert_eq!(of_last.drops_json(), json!({"shutdown": 3}));
        assert_eq!(of_last.row_json()["drops"], 3);
        let all = Totals::of(&[a.reader(), b.reader()]);
        assert_eq!((all.drops(DropReason::Shutdown), all.drops(DropReason::Storm)), (3, 1));
        a.busy_turn(700);
        b.busy_turn(300);
        b.rest(5000);
        let all = Totals::of(&[a.reader(), b.reader()]);
        assert_eq!(Labour::ALL.map(|what| all.labour(what)), [2, 1000, 5000]);
        assert_eq!((all.row_json()["rest_ns"].as_u64(), all.drops(DropReason::Shutdown)), (Some(5000), 3));
        // Its number is used again.
        a.of_segment(one, SegmentTraffic::Punt, 9);
        let since = SegmentTotals::of(&readers, one).since(&before);
        assert_eq!((since.packets(SegmentTraffic::ToInfiniBand), since.bytes(SegmentTraffic::Punt)), (0, 9));
        // The last way's bytes are on the first cache line still.
        assert!(2 * SegmentTraffic::ALL.len() <= SEGMENT_DROPS);
    }
}
