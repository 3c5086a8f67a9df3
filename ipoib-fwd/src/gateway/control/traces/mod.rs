//! `ctl trace`: reports the path of packets through the gateway to clients. Workers report through a ring;
//! the control lcore adds the outcome of packets that it processed, and names.

mod order;
mod row;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arrayvec::ArrayVec;
use dataplane::ring::{self, Receiver};
use dataplane::telemetry::{Feed, Reply};
use ipoib::link::WorkerIndex;
use pmd::hca::Backend;
use pmd::mem::Mbuf;
use serde_json::{Value, json};

use super::GatewayControl;
use crate::forward::{EndpointIndex, Punt, SegmentIndex, Side};
use crate::gateway::punts::Cause;
use crate::gateway::sighting::{AllWanted, AnyPort, Front, MAX_WATCHERS, Sighting, Tracer, Wanted};
use crate::gateway::worker::{GatewayCommand, GatewayNote};
use crate::segment::Output;
use ipoib::drop_reason::DropReason;
use order::Order;
use row::Where;

/// Capacity of a worker's ring.
const RING: usize = 512;
/// Most records reported in one iteration.
const PER_TURN: usize = 64;
/// Most waiting rows of the control lcore.
const OWN_ROWS: usize = 1024;
/// Most rings of one worker: those of orders that it has not carried out yet, and the last one.
const RINGS: usize = 2 * MAX_WATCHERS;

/// The clients that trace packets, and the records of workers.
#[derive(Debug)]
pub(in crate::gateway) struct Traces {
    feed: Feed,
    watchers: ArrayVec<Watcher, MAX_WATCHERS>,
    /// Oldest first.
    rings: Vec<Ring>,
    /// The control lcore's own rows, oldest first.
    own: VecDeque<OwnRow>,
    /// Fate of the packet that the control lcore is processing, if it is traced.
    fate: Option<Fate>,
}

/// A client that traces packets.
#[derive(Debug)]
struct Watcher {
    wanted: Wanted,
    until: Instant,
    reported: u32,
    missed: u64,
}

impl Watcher {
    const fn bit(&self) -> u8 {
        1 << self.wanted.number
    }
}

/// Records of a worker for one order.
#[derive(Debug)]
struct Ring {
    worker: WorkerIndex,
    sightings: Receiver<Sighting>,
    next: Option<Sighting>,
    missed: u64,
    /// A reference, so that the worker does not free it.
    _wanted: Arc<AllWanted>,
}

/// A row of the control lcore. It waits for one iteration, so that earlier records of a worker about the
/// packet come first.
#[derive(Debug)]
struct OwnRow {
    time: u64,
    watchers: u8,
    row: Value,
    is_ripe: bool,
}

/// Fate of a packet on the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Nothing yet.
    Open,
    /// A worker forwards it: its path is now known.
    Released,
    /// Something was sent in response to it.
    Answered,
    Dropped(DropReason),
}

fn lost(n: u64) -> Value {
    json!({ "lost": n })
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64)
}

/// The headers of a packet on the control lcore. It is untagged; its segment determines the VLAN.
fn front_of(side: Side, (segment, vlan): (SegmentIndex, u16), head: &[u8], length: usize) -> Front {
    let mut front = Front::new(side, head, length);
    (front.segment, front.vlan) = (Some(segment), vlan);
    front
}

impl Traces {
    pub(in crate::gateway) fn new() -> Self {
        Self {
            feed: Feed::new(lost),
            watchers: ArrayVec::new(),
            rings: Vec::new(),
            own: VecDeque::new(),
            fate: None,
        }
    }

    /// The clients that trace a packet of the control lcore, as a bit mask.
    fn watchers_of(&self, front: &Front, ports: [Option<AnyPort>; 2]) -> u8 {
        let wants = |watcher: &&Watcher| watcher.wanted.wants(front, ports, None);
        self.watchers.iter().filter(wants).fold(0, |bits, watcher| bits | watcher.bit())
    }

    /// Reports a row to some clients, each of which has its own limit.
    fn report(&mut self, bits: u8, row: Value) {
        let mut left = 0;
        for watcher in &mut self.watchers {
            if bits & watcher.bit() != 0 && watcher.reported < watcher.wanted.left {
                watcher.reported += 1;
                left |= watcher.bit();
            }
        }
        if left != 0 {
            self.feed.tell(left.into(), row);
        }
    }

    /// Queues a row of the control lcore.
    fn hold(&mut self, time: u64, watchers: u8, row: Value) {
        if self.own.len() < OWN_ROWS {
            self.own.push_back(OwnRow { time, watchers, row, is_ripe: false });
            return;
        }
        for watcher in self.watchers.iter_mut().filter(|watcher| watchers & watcher.bit() != 0) {
            watcher.missed += 1;
        }
    }

    /// Reports the control lcore's rows that are older than `before`, or all rows that have waited.
    fn report_own(&mut self, before: Option<u64>) {
        while let Some(own) = self.own.front()
            && own.is_ripe
            && before.is_none_or(|time| own.time < time)
            && let Some(OwnRow { watchers, row, .. }) = self.own.pop_front()
        {
            self.report(watchers, row);
        }
    }

    /// The oldest waiting record.
    fn next(&mut self) -> Option<(WorkerIndex, Sighting)> {
        for ring in &mut self.rings {
            if ring.next.is_none() {
                ring.next = ring.sightings.receive();
            }
        }
        let time = |ring: &Ring| ring.next.as_ref().map(|sighting| sighting.time);
        let ring = self.rings.iter_mut().filter(|ring| ring.next.is_some()).min_by_key(|ring| time(ring))?;
        let sighting = ring.next.take()?;
        let missed = sighting.missed - ring.missed;
        ring.missed = sighting.missed;
        for watcher in &mut self.watchers {
            watcher.missed += missed;
        }
        Some((ring.worker, sighting))
    }

    /// Removes clients that are gone or whose trace is complete; true if there were any.
    fn settle(&mut self, now: Instant) -> bool {
        self.feed.settle();
        let Self { feed, watchers, .. } = self;
        let before = watchers.len();
        watchers.retain(|watcher| {
            let bit = u64::from(watcher.bit());
            let why = match () {
                () if !feed.is_followed(bit) => return false,
                () if watcher.reported >= watcher.wanted.left => "the requested number of rows",
                () if now >= watcher.until => "its time is over",
                () => return true,
            };
            feed.finish(bit, json!({"end": why, "told": watcher.reported, "missed": watcher.missed}));
            false
        });
        watchers.len() < before
    }

    /// A segment is removed, and its index becomes free: clients that traced its packets have all of them.
    pub(super) fn forget_segment(&mut self, now: Instant, at: SegmentIndex) {
        for watcher in self.watchers.iter_mut().filter(|watcher| watcher.wanted.segment == Some(at)) {
            watcher.until = now;
        }
    }

    /// Notes an output of a segment that a packet caused.
    pub(super) fn note_output(&mut self, output: &Output<Mbuf>) {
        let Some(fate) = &mut self.fate else { return };
        *fate = match (*fate, output) {
            (Fate::Open | Fate::Answered, Output::Drop(reason, _)) => Fate::Dropped(*reason),
            (Fate::Open | Fate::Answered, Output::Release { .. }) => Fate::Released,
            (Fate::Open, Output::Frame { .. } | Output::Message { .. } | Output::Datagram { .. }) => {
                Fate::Answered
            }
            (fate, _) => fate,
        };
    }

    /// Ends all traces.
    pub(super) fn end(&mut self) {
        self.feed.end();
    }
}

/// Verdict and reason of a packet that was handed over.
fn words(cause: &Cause, fate: Fate) -> (&'static str, String) {
    match (cause, fate) {
        (_, Fate::Dropped(reason)) => ("dropped", reason.name().to_owned()),
        (Cause::Punt(Punt::Neighbour(_)) | Cause::TooBig { .. }, Fate::Released) => {
            ("forwarded again", "its path is now known".to_owned())
        }
        (Cause::Punt(Punt::Neighbour(ip)), _) => ("waits", format!("for the address of {ip}, or its path")),
        (Cause::TooBig { dial: Some(ip), .. }, _) => ("waits", format!("for a connection to {ip}")),
        (_, Fate::Answered) => ("answered", row::why(cause)),
        // An ARP reply releases packets of other hosts.
        (_, Fate::Open | Fate::Released) => ("handled", row::why(cause)),
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Starts a trace for a client.
    pub(super) fn trace(&mut self, now: Instant, words: Option<&str>) -> Result<Reply, String> {
        let order = Order::parse(words)?;
        let segment = order.segment.as_deref().map(|name| self.known_segment(name)).transpose()?;
        let port = order.port.as_deref().map(|name| self.known_port(name)).transpose()?;
        if self.traces.settle(now) {
            self.order_traces();
        }
        let is_free = |number: &u8| !self.traces.watchers.iter().any(|w| w.wanted.number == *number);
        let Some(number) = (0..MAX_WATCHERS as u8).find(is_free) else {
            return Err(format!("{MAX_WATCHERS} clients trace packets already, which is the limit"));
        };
        if self.traces.rings.len() >= RINGS * usize::from(self.maker.workers) {
            return Err("workers have not released the last traces yet; try again in a moment".to_owned());
        }
        let wanted = Wanted { number, filter: order.filter, segment, port, left: order.count };
        let watcher = Watcher { wanted, until: now + order.time, reported: 0, missed: 0 };
        let first = json!({"following": {"count": order.count, "seconds": order.time.as_secs()}});
        let subscription = self.traces.feed.follow(watcher.bit().into(), first);
        self.traces.watchers.push(watcher);
        self.order_traces();
        Ok(Reply::Follow(subscription))
    }

    fn known_port(&mut self, name: &str) -> Result<AnyPort, String> {
        let all = self.port_names();
        all.iter().find(|(_, port)| port == name).map(|(port, _)| *port).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|(_, name)| name.as_str()).collect();
            format!("no port `{name}`; there are {}", names.join(", "))
        })
    }

    /// Sends the list of traces to workers; an empty one stops tracing.
    fn order_traces(&mut self) {
        let wanted =
            |watcher: &Watcher| Wanted { left: watcher.wanted.left - watcher.reported, ..watcher.wanted };
        let wanted: Arc<AllWanted> = Arc::new(self.traces.watchers.iter().map(wanted).collect());
        for worker in (0..self.maker.workers).map(WorkerIndex) {
            let Some(endpoint) = self.endpoints.at(EndpointIndex(0)) else { continue };
            let tracer = (!wanted.is_empty()).then(|| {
                let (sender, sightings) = ring::channel(RING);
                let _wanted = Arc::clone(&wanted);
                self.traces.rings.push(Ring { worker, sightings, next: None, missed: 0, _wanted });
                Tracer::new(Arc::clone(&wanted), sender)
            });
            endpoint.order(worker, GatewayCommand::Trace(tracer));
        }
    }

    /// Reports the records of workers, for a bounded time. True if there were any.
    pub(super) fn drive_traces(&mut self, now: Instant) -> bool {
        if self.traces.rings.is_empty() && self.traces.watchers.is_empty() {
            return false;
        }
        let mut reported = 0;
        while reported < PER_TURN
            && let Some((worker, sighting)) = self.traces.next()
        {
            reported += 1;
            self.traces.report_own(Some(sighting.time));
            // Records for a client that is gone are discarded.
            if self.traces.watchers.iter().any(|watcher| sighting.watchers & watcher.bit() != 0) {
                let row = self.sighting_row(worker, &sighting);
                self.traces.report(sighting.watchers, row);
            }
        }
        if reported < PER_TURN {
            self.traces.report_own(None);
        }
        self.traces.own.iter_mut().for_each(|own| own.is_ripe = true);
        // A worker must not free memory: a ring is freed after the worker has released it.
        self.traces.rings.retain(|ring| {
            ring.next.is_some() || !ring.sightings.is_abandoned() || !ring.sightings.is_empty()
        });
        if self.traces.settle(now) {
            self.order_traces();
        }
        reported > 0
    }

    /// Starts to trace a packet that was handed over: the clients and its headers. `None` while no client
    /// traces it.
    pub(super) fn begin_trace(&mut self, note: &GatewayNote) -> Option<(u8, Front, Cause)> {
        if self.traces.watchers.is_empty() {
            return None;
        }
        let front = self.front(note.side, note.segment, &note.packet);
        let watchers = self.traces.watchers_of(&front, self.ports_of(note.segment));
        self.traces.fate = (watchers != 0).then_some(Fate::Open);
        (watchers != 0).then_some((watchers, front, note.cause))
    }

    /// Reports what was done with the packet.
    pub(super) fn end_trace(&mut self, begun: Option<(u8, Front, Cause)>) {
        let (Some((watchers, front, cause)), Some(fate)) = (begun, self.traces.fate.take()) else { return };
        let (verdict, reason) = words(&cause, fate);
        let explained = if let Fate::Dropped(reason) = fate { Some(reason) } else { None };
        let time = now_ns();
        let row = self.row(time, &Where::Control, &front, Value::Null, verdict, &reason, explained);
        self.traces.hold(time, watchers, row);
    }

    /// Reports a packet that waited for its path in vain.
    pub(super) fn trace_discarded(
        &mut self,
        at: SegmentIndex,
        side: Side,
        packet: &Mbuf,
        reason: DropReason,
    ) {
        if self.traces.watchers.is_empty() {
            return;
        }
        let front = self.front(side, at, packet);
        let watchers = self.traces.watchers_of(&front, self.ports_of(at));
        if watchers != 0 {
            let (time, place) = (now_ns(), Where::Control);
            let row = self.row(time, &place, &front, Value::Null, "dropped", reason.name(), Some(reason));
            self.traces.hold(time, watchers, row);
        }
    }

    fn front(&mut self, side: Side, at: SegmentIndex, packet: &Mbuf) -> Front {
        let vlan = self.board.at(at).and_then(|board| board.settings().vlan).unwrap_or_default();
        front_of(side, (at, vlan), packet.data(), packet.len())
    }

    fn ports_of(&self, at: SegmentIndex) -> [Option<AnyPort>; 2] {
        let Some(duty) = self.segments.at(at) else { return [None; 2] };
        [AnyPort::Ethernet(duty.ethernet), AnyPort::InfiniBand(duty.endpoint)].map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::sighting::{Lookup, Outcome, Step};
    use dataplane::filter::Filter;
    use std::time::Duration;

    fn traces(counts: &[u32], now: Instant) -> (Traces, Vec<dataplane::telemetry::Subscription>) {
        let mut traces = Traces::new();
        let mut clients = Vec::new();
        for (number, left) in (0..).zip(counts) {
            let wanted = Wanted { number, filter: Filter::default(), segment: None, port: None, left: *left };
            let watcher = Watcher { wanted, until: now + Duration::from_secs(10), reported: 0, missed: 0 };
            clients.push(traces.feed.follow(watcher.bit().into(), Value::Null));
            traces.watchers.push(watcher);
        }
        (traces, clients)
    }

    fn sighting(time: u64, missed: u64) -> Sighting {
        let reason = DropReason::VlanUnknown;
        Sighting {
            time,
            watchers: 1,
            step: Step::Arrived,
            front: Front::new(Side::Ethernet, &[0; 60], 60),
            lookup: Lookup::Drop(reason),
            outcome: Outcome::Dropped(reason),
            missed,
        }
    }

    #[test]
    fn each_has_as_many_as_he_ordered_and_goes_then_or_when_his_time_is_over() {
        let now = Instant::now();
        let (mut traces, clients) = traces(&[2, 5], now);
        for n in 0..4 {
            traces.report(0b11, json!(n));
            traces.report(0b01, json!("only the first"));
        }
        assert_eq!(clients.iter().map(|c| c.waiting()).collect::<Vec<_>>(), [2, 4]);
        assert!(traces.settle(now) && !traces.settle(now));
        // The client is notified of the end.
        assert_eq!((clients[0].waiting(), traces.watchers.len()), (3, 1));
        assert!(traces.settle(now + Duration::from_secs(10)));
        assert_eq!((clients[1].waiting(), traces.watchers.len()), (5, 0));
    }

    #[test]
    fn a_client_that_is_gone_is_removed() {
        let now = Instant::now();
        let (mut traces, mut clients) = traces(&[2, 5, 7], now);
        drop(clients.remove(1));
        assert!(traces.settle(now));
        assert_eq!(traces.watchers.iter().map(|w| w.wanted.number).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn sightings_come_in_order_of_time_and_those_that_are_missing_are_counted() {
        let now = Instant::now();
        let (mut traces, _clients) = traces(&[9], now);
        let mut senders = Vec::new();
        for worker in [0, 1].map(WorkerIndex) {
            let (sender, sightings) = ring::channel(4);
            let wanted = Arc::<AllWanted>::default();
            senders.push(Tracer::new(Arc::clone(&wanted), sender));
            traces.rings.push(Ring { worker, sightings, next: None, missed: 0, _wanted: wanted });
        }
        for time in [10, 30, 50, 60, 61, 62] {
            senders[0].report(sighting(time, 0));
        }
        senders[1].report(sighting(20, 0));
        senders[1].report(sighting(40, 0));
        let mut order = Vec::new();
        while let Some((worker, sighting)) = traces.next() {
            order.push((worker.0, sighting.time));
        }
        assert_eq!(order, [(0, 10), (1, 20), (0, 30), (1, 40), (0, 50), (0, 60)]);
        assert_eq!(traces.watchers[0].missed, 0, "nobody has said so yet");
        senders[0].report(sighting(70, 0));
        traces.next().unwrap();
        assert_eq!(traces.watchers[0].missed, 2);
    }

    #[test]
    fn rows_of_the_control_lcore_follow_earlier_ones_of_workers() {
        let now = Instant::now();
        let (mut traces, clients) = traces(&[9], now);
        traces.hold(15, 1, json!("control"));
        traces.report_own(None);
        assert_eq!(clients[0].waiting(), 0, "the worker may not have reported yet");
        traces.own.iter_mut().for_each(|own| own.is_ripe = true);
        traces.report_own(Some(14));
        assert_eq!(clients[0].waiting(), 0);
        traces.report_own(Some(16));
        assert_eq!((clients[0].waiting(), traces.own.len()), (1, 0));
        (0..OWN_ROWS + 3).for_each(|n| traces.hold(n as u64, 1, Value::Null));
        assert_eq!((traces.own.len(), traces.watchers[0].missed), (OWN_ROWS, 3));
    }

    /// Tags are removed before packets reach the control lcore.
    #[test]
    fn a_packet_of_the_control_lcores_is_found_by_its_vlan() {
        let front = |side, vlan| front_of(side, (SegmentIndex(3), vlan), &[0; 60], 60);
        for side in [Side::Ethernet, Side::InfiniBand] {
            let mut filter = Filter::default();
            filter.take("vlan", "100").unwrap();
            let wanted = Wanted { number: 0, filter, segment: Some(SegmentIndex(3)), port: None, left: 1 };
            assert!(wanted.wants(&front(side, 100), [None; 2], None));
            assert!(!wanted.wants(&front(side, 0), [None; 2], None));
            assert_eq!(front(side, 100).vlan, 100);
        }
    }

    /// The worker frees nothing: the control lcore has the last reference to its memory.
    #[test]
    fn a_tracer_that_a_worker_lets_go_of_leaves_its_memory() {
        let now = Instant::now();
        let (mut traces, _clients) = traces(&[9], now);
        let wanted: Arc<AllWanted> = Arc::new(traces.watchers.iter().map(|w| w.wanted).collect());
        let (sender, sightings) = ring::channel(4);
        let mut tracer = Tracer::new(Arc::clone(&wanted), sender);
        let kept = Arc::downgrade(&wanted);
        traces.rings.push(Ring { worker: WorkerIndex(0), sightings, next: None, missed: 0, _wanted: wanted });
        tracer.report(sighting(1, 0));
        drop(tracer);
        assert_eq!(kept.strong_count(), 1, "the ring's");
        assert_eq!(traces.next().map(|(_, sighting)| sighting.time), Some(1));
        assert!(traces.rings[0].sightings.is_abandoned());
        traces.rings.clear();
        assert_eq!(kept.strong_count(), 0);
    }

    #[test]
    fn what_becomes_of_a_packet_is_its_first_end() {
        let (mut traces, _) = traces(&[], Instant::now());
        let neighbour = Cause::Punt(Punt::Neighbour([10, 0, 0, 1].into()));
        let big = Cause::TooBig { mtu: 2044, dial: None };
        let frame = || Output::Frame { worker: WorkerIndex(0), bytes: Vec::new() };
        let dropped = |reason| Output::Drop(reason, 1);
        for (cause, outputs, verdict) in [
            (neighbour, vec![frame()], "waits"),
            (neighbour, vec![frame(), dropped(DropReason::NeighbourTableFull)], "dropped"),
            (big, vec![dropped(DropReason::TooBigAnswered), frame()], "dropped"),
            (Cause::TooBig { mtu: 2044, dial: Some([10, 0, 0, 1].into()) }, vec![], "waits"),
            (Cause::Punt(Punt::Local), vec![frame()], "answered"),
            (Cause::Punt(Punt::Arp), vec![], "handled"),
        ] {
            traces.note_output(&frame());
            assert_eq!(traces.fate, None, "nobody follows");
            traces.fate = Some(Fate::Open);
            outputs.iter().for_each(|output| traces.note_output(output));
            assert_eq!(words(&cause, traces.fate.take().unwrap()).0, verdict, "{cause:?}");
        }
    }
}
