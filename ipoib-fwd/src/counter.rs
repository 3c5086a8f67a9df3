//! A worker's counters: traffic by path, and drops by reason.

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
        /// Datagrams to the gateway.
        IbUdUnicastReceive = "ib_ud_unicast_receive",
        /// Datagrams to a group.
        IbUdMulticastReceive = "ib_ud_multicast_receive",
        /// Messages on connections.
        IbRcReceive = "ib_rc_receive",
        /// Datagrams to a host.
        IbUdUnicastTransmit = "ib_ud_unicast_transmit",
        /// Datagrams to a group.
        IbUdMulticastTransmit = "ib_ud_multicast_transmit",
        /// Messages on connections.
        IbRcTransmit = "ib_rc_transmit",
        /// Packets passed to the control lcore.
        Punt = "punt",
        /// Packets that were fragmented.
        Fragmented = "fragmented",
    }
}

hca::counted! {
    /// A worker's use of time. The rest of the time it polls and finds nothing.
    Labour {
        /// Iterations that processed something.
        BusyTurns = "busy_turns",
        /// Nanoseconds spent in them.
        Busy = "busy_ns",
        /// Nanoseconds that it was idle, until a port had an event or the sleep was over.
        Rest = "rest_ns",
    }
}

const TRAFFIC: usize = Traffic::ALL.len();
/// Index of a worker's first drop counter and of its first time counter.
const DROPS: usize = 2 * TRAFFIC;
const LABOUR: usize = DROPS + DropReason::ALL.len();
/// Number of a worker's counters.
pub const COUNT: usize = LABOUR + Labour::ALL.len();

hca::counted! {
    /// Counters of a segment. Those of forwarded packets are on one cache line, and a packet touches no
    /// other.
    SegmentTraffic {
        /// Sent to the InfiniBand side.
        ToInfiniBand = "to_infiniband",
        /// Queued for the Ethernet port. Frames that the port finally refuses are also counted as drops of
        /// the segment: `eth-queue-full`.
        ToEthernet = "to_ethernet",
        /// Passed to the control lcore.
        Punt = "punt",
    }
}

/// Index of a segment's first drop counter, behind its first cache line.
const SEGMENT_DROPS: usize = 8;
/// Number of a segment's counters.
pub const SEGMENT_COUNT: usize = SEGMENT_DROPS + DropReason::ALL.len();

/// The key of consecutive packets that are counted together, usually of a whole burst, as an integer for a
/// single comparison. The lowest byte is the segment, then the counter and the path; [`NO_PATH`] if the path
/// has no counter.
#[inline(always)]
const fn kind(segment: SegmentIndex, way: SegmentTraffic, path: Option<Traffic>) -> u32 {
    let path = match path {
        Some(path) => path as u8,
        None => NO_PATH,
    };
    u32::from_le_bytes([segment.0, way as u8, path, 0])
}

const NO_PATH: u8 = u8::MAX;
/// Mask of the key without the segment.
const ALIKE: u32 = !0xff;

/// A worker's counters.
#[derive(Debug)]
pub struct WorkerCounters {
    all: Counters<COUNT>,
    segments: CounterRows<SEGMENT_COUNT>,
    /// The key of packets that are not in the counters yet, and their numbers below: see
    /// [`WorkerCounters::settle`].
    kind: u32,
    // Not adjacent to `bytes`: the compiler would add two adjacent integers in a vector register, which takes
    // longer.
    packets: u64,
    /// Packets of the path, and their bytes, that are already in the counters of their segments and not in
    /// those of the path.
    path_packets: u64,
    bytes: u64,
    path_bytes: u64,
}

/// A reader of a worker's counters.
pub type WorkerCounterReader = CounterReader<COUNT>;

/// A reader of a worker's counters by segment.
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

    /// Counts `packets` packets with a total of `bytes` on a path.
    pub fn packets(&mut self, path: Traffic, packets: u64, bytes: u64) {
        self.all.add(2 * path as usize, packets);
        self.all.add(2 * path as usize + 1, bytes);
    }

    /// Counts a burst of messages from an InfiniBand port and their bytes. `datagrams` has the numbers of
    /// unicast and multicast datagrams among them, each with its bytes.
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

    /// Counts one packet of `bytes` of a segment.
    #[inline]
    pub fn of_segment(&mut self, segment: SegmentIndex, way: SegmentTraffic, bytes: usize) {
        self.segments.add(segment.0.into(), 2 * way as usize, 1);
        self.segments.add(segment.0.into(), 2 * way as usize + 1, bytes as u64);
    }

    /// Counts one packet of `bytes` of a segment, and of a path if one is given. The counters are updated
    /// when a packet of another kind follows or [`WorkerCounters::settle`] is called: most packets change
    /// only two integers.
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
        // Packets of several segments usually differ only in the segment.
        if (kind ^ self.kind) & ALIKE == 0 {
            self.settle_segment();
        } else {
            self.settle();
        }
        (self.kind, self.packets, self.bytes) = (kind, 1, bytes);
    }

    /// Updates the counters with all packets so far. Call it once per iteration.
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

    /// Updates the segment's counters. The caller then restarts the numbers.
    #[inline(always)]
    fn settle_segment(&mut self) {
        let [segment, way, ..] = self.kind.to_le_bytes();
        let (packets, bytes) = (self.packets, self.bytes);
        self.segments.add_both(segment.into(), 2 * usize::from(way), [packets, bytes]);
        self.path_packets += packets;
        self.path_bytes += bytes;
    }

    /// Counts a drop of a packet without a segment.
    pub fn drop(&mut self, reason: DropReason) {
        self.drops(reason, 1);
    }

    /// Counts `n` drops of packets without a segment.
    pub fn drops(&mut self, reason: DropReason, n: u64) {
        self.all.add(DROPS + reason as usize, n);
    }

    /// Counts a busy iteration of `ns` nanoseconds.
    pub fn busy_turn(&mut self, ns: u64) {
        self.all.add(LABOUR + Labour::BusyTurns as usize, 1);
        self.all.add(LABOUR + Labour::Busy as usize, ns);
    }

    /// Counts `ns` idle nanoseconds.
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

/// A segment's counters, of one worker or the sum of several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentTotals([u64; SEGMENT_COUNT]);

impl SegmentTotals {
    /// The current sums of a segment.
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

    /// The sum of several.
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

    /// The difference from `before`. It is needed because segments' indices are reused.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut more = self.clone();
        for (now, before) in more.0.iter_mut().zip(before.0) {
            *now = now.wrapping_sub(before);
        }
        more
    }

    /// Packets by counter.
    #[must_use]
    pub const fn packets(&self, way: SegmentTraffic) -> u64 {
        self.0[2 * way as usize]
    }

    /// Bytes by counter.
    #[must_use]
    pub const fn bytes(&self, way: SegmentTraffic) -> u64 {
        self.0[2 * way as usize + 1]
    }

    /// Drops with a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.0[SEGMENT_DROPS + reason as usize]
    }

    /// One row: packets and bytes by counter, and the sum of drops.
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

    /// Packets and bytes by counter.
    #[must_use]
    pub fn traffic_json(&self) -> Value {
        let way = |w: SegmentTraffic| {
            (w.name().to_owned(), json!({"packets": self.packets(w), "bytes": self.bytes(w)}))
        };
        SegmentTraffic::ALL.into_iter().map(way).collect::<Map<_, _>>().into()
    }

    /// Drops by reason, without zeros.
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

/// Sums of several workers' counters.
#[derive(Clone, Debug)]
pub struct Totals([u64; COUNT]);

impl Totals {
    /// The current sums, including the control lcore's own drops.
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

    /// The difference from `before`.
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

    /// Drops with a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.0[DROPS + reason as usize]
    }

    /// The workers' use of time.
    #[must_use]
    pub const fn labour(&self, what: Labour) -> u64 {
        self.0[LABOUR + what as usize]
    }

    /// One row: packets by path, and the use of time.
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

    /// Drops by reason, without zeros.
    #[must_use]
    pub fn drops_json(&self) -> Value {
        drops_json(|reason| self.drops(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_packets_are_counted_once_in_any_order() {
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
    fn segments_are_counted_separately_and_in_total() {
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
        // Its index is reused.
        a.of_segment(one, SegmentTraffic::Punt, 9);
        let since = SegmentTotals::of(&readers, one).since(&before);
        assert_eq!((since.packets(SegmentTraffic::ToInfiniBand), since.bytes(SegmentTraffic::Punt)), (0, 9));
        // The last counter's bytes are still on the first cache line.
        assert!(2 * SegmentTraffic::ALL.len() <= SEGMENT_DROPS);
    }
}
