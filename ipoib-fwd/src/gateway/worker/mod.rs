//! A worker lcore of the gateway: iterates over its queues on every Ethernet and InfiniBand port.

mod ahead;
mod commands;
mod faces;
mod grouping;
mod hands;
mod held;
mod punt;
mod trace;
mod verdicts;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::latency::Recorder;
use dataplane::table::Reader;
use dataplane::worker::{Turn, Wakes, Worker};
use pmd::eth::{self, Burst, EthQueue};
use pmd::hca::{MemoryWork, Received, RxBurst, Source};
use pmd::mem::{Mbuf, Pool};
use tap::Tap;

use super::leases::{LeaseReader, Leases};
use super::punts::{Cause, HelloGuard};
use super::sighting::Tracer;
use crate::counter::{Traffic, WorkerCounters};
use crate::forward::{EndpointIndex, EthernetIndex, SegmentIndex, ShortWay, Side, Tables};
use crate::segment::Origin;
use crate::segment::pair::storm::{SharedStorm, StormGuard};
use endpoint::LinkWorker;
use faces::{EthernetFace, InfiniBandFace, Rota};
use hands::{Hands, RunEnd};
use ib_wire::Qpn;
use ipoib::drop_reason::DropReason;
use ipoib::link::WorkerIndex;

pub use commands::GatewayCommand;

/// A packet that a worker hands over to the control lcore, in addition to the link's notes.
#[derive(Debug)]
pub struct GatewayNote {
    /// The reason.
    pub cause: Cause,
    /// Its segment.
    pub segment: SegmentIndex,
    /// Its ingress side.
    pub side: Side,
    /// The origin of a message; `None` if it has waited.
    pub origin: Option<Origin>,
    /// The whole message, or the untagged frame.
    pub packet: Mbuf,
}

/// Bursts of received messages taken from a port in one iteration.
const RECEIVE_ROUNDS: usize = 2;

/// The parts of a worker.
#[derive(Debug)]
pub struct WorkerParts<Q: MemoryWork> {
    /// Its queues on each InfiniBand port, indexed by [`EndpointIndex`].
    pub links: Vec<LinkWorker<Q, GatewayCommand, GatewayNote>>,
    /// Its queue on each Ethernet port, indexed by [`EthernetIndex`].
    pub ethernets: Vec<EthQueue>,
    /// Its reader of the tables.
    pub tables: Reader<Tables<Q::Destination>>,
    /// Buffers for fragments.
    pub pool: Pool,
    /// Shared receives of a port below which frames are dropped rather than kept waiting for the Ethernet
    /// port.
    pub srq_low: u32,
    /// Random number of this start: the network must not know which packets collide.
    pub seed: u64,
    /// State that the storm guards of all workers share.
    pub storm: Arc<SharedStorm>,
    /// Leases: how long it forwards without a sign of life from the control lcore.
    pub leases: Arc<Leases>,
    /// The tap that sees its frames.
    pub tap: Option<Tap>,
}

/// A worker.
#[derive(Debug)]
pub struct GatewayWorker<Q: MemoryWork> {
    /// Indexed by [`EndpointIndex`].
    infinibands: Vec<InfiniBandFace<Q>>,
    rota: Rota,
    /// Indexed by [`EthernetIndex`].
    ethernets: Vec<EthernetFace>,
    tables: Reader<Tables<Q::Destination>>,
    pool: Pool,
    service: Recorder,
    /// See [`WorkerParts::srq_low`].
    srq_low: u32,
    /// All InfiniBand ports were armed for a wakeup, and confirmed it.
    all_wake: bool,
    common: Common,
}

/// State that does not depend on the number of ports.
#[derive(Debug)]
struct Common {
    worker: WorkerIndex,
    counters: WorkerCounters,
    storm: StormGuard,
    shared_storm: Arc<SharedStorm>,
    hellos: HelloGuard,
    leases: LeaseReader,
    tap: Option<Tap>,
    /// The active traces. While there are any, all packets take the slow path.
    tracer: Option<Tracer>,
}

impl Common {
    /// True if packets may be traced, or a lease is over: the fast path checks for neither.
    #[inline]
    const fn needs_long_way(&self) -> bool {
        self.tracer.is_some() || self.leases.is_any_over()
    }
}

impl<Q: MemoryWork> GatewayWorker<Q> {
    /// Assembles a worker from its parts.
    #[must_use]
    pub fn new(parts: WorkerParts<Q>) -> Self {
        let WorkerParts { links, ethernets, tables, pool, srq_low, seed, storm, leases, tap } = parts;
        let worker = WorkerIndex(links.first().map_or(0, LinkWorker::index));
        let mut ethernets: Vec<_> = ethernets.into_iter().map(EthernetFace::new).collect();
        ethernets.iter_mut().for_each(|face| face.watch(tap.is_some()));
        Self {
            rota: Rota::new(links.len() as u8),
            infinibands: links.into_iter().map(InfiniBandFace::new).collect(),
            ethernets,
            tables,
            pool,
            service: Recorder::default(),
            srq_low,
            all_wake: false,
            common: Common {
                worker,
                counters: WorkerCounters::default(),
                storm: StormGuard::new(seed),
                shared_storm: storm,
                hellos: HelloGuard::new(),
                leases: LeaseReader::new(leases),
                tap,
                tracer: None,
            },
        }
    }

    /// A reader of the counters.
    #[must_use]
    pub const fn counters(&self) -> &WorkerCounters {
        &self.common.counters
    }

    /// Takes a worker apart after its exit. Returns its queues on the InfiniBand ports, in their order, those
    /// on the Ethernet ports, and the times of its iterations.
    pub fn into_parts(mut self) -> (Vec<Q>, Vec<EthQueue>, Recorder) {
        self.common.counters.settle();
        let tables = self.tables.refresh();
        for (face, port) in self.ethernets.iter_mut().zip(0..) {
            // Frames that the port never accepted.
            face.clear(EthernetIndex(port), DropReason::Shutdown, &mut self.common.counters, tables);
        }
        for face in &self.infinibands {
            self.common.counters.drops(DropReason::Shutdown, face.link.waiting() as u64);
        }
        self.common.counters.settle();
        let queues = self.infinibands.into_iter().map(|face| face.link.into_queues()).collect();
        (queues, self.ethernets.into_iter().map(|face| face.queue).collect(), self.service)
    }

    /// The newest tables, and the context in which verdicts are carried out.
    #[inline]
    fn hands(&mut self) -> (&Tables<Q::Destination>, Hands<'_, Q>) {
        // Flushed before the tables are refreshed: an index may belong to another segment in the new tables.
        self.common.counters.settle();
        let hands = Hands {
            infinibands: &mut self.infinibands,
            ethernets: &mut self.ethernets,
            common: &mut self.common,
            pool: &self.pool,
        };
        (self.tables.refresh(), hands)
    }

    /// Receives from an Ethernet port.
    // A function of its own, so that all registers are available.
    #[inline(never)]
    fn poll_ethernet(&mut self, port: EthernetIndex) -> bool {
        let mut burst = Burst::new();
        let Some(face) = self.ethernets.get_mut(port.at()) else { return false };
        if face.queue.rx_burst(&mut burst) == 0 {
            return false;
        }
        let is_watched = face.is_watched();
        let (tables, mut hands) = self.hands();
        let (frames, bytes) = (burst.len(), burst.iter().map(Mbuf::len).sum::<usize>());
        if is_watched {
            hands.watch(port, &burst, tables);
        }
        let mut short = ShortWay::new(tables, hands.common.worker).unless(hands.common.needs_long_way());
        if tables.has_several_vlans(port) {
            hands.group(port, &mut burst);
        }
        if tables.are_large(Side::InfiniBand) || ahead::have_many(hands.infinibands) {
            ahead::of_frames(&mut short, (port, hands.common.worker), &burst, hands.infinibands);
        }
        let mut rest = burst.drain(..);
        let mut to = EndpointIndex::default();
        while let Some(end) = hands.forward_run(&mut short, (port, to), &mut rest) {
            match end {
                RunEnd::Elsewhere(plain, frame) => {
                    to = plain.uplink.endpoint;
                    hands.forward_single(plain, frame);
                }
                RunEnd::Long(frame) => hands.take_any_frame(port, frame, tables),
            }
        }
        hands.common.counters.packets(Traffic::EthReceive, frames as u64, bytes as u64);
        true
    }

    /// Receives from an InfiniBand port.
    // A function of its own, so that all registers are available.
    #[inline(never)]
    fn poll_infiniband(&mut self, port: EndpointIndex) -> bool {
        let mut burst = RxBurst::new();
        let Some(face) = self.infinibands.get_mut(port.at()) else { return false };
        face.link.receive(&mut burst);
        if burst.is_empty() {
            return false;
        }
        let (tables, mut hands) = self.hands();
        let mut short = ShortWay::new(tables, hands.common.worker).unless(hands.common.needs_long_way());
        if tables.are_large(Side::Ethernet) {
            ahead::of_messages(&mut short, port, &burst);
        }
        let (messages, mut bytes, mut datagrams) = (burst.len(), 0, [(0, 0); 2]);
        let mut burst = burst.into_iter();
        // Each message stays in the burst until its path is known: the fast path takes the buffer alone.
        while let Some(received) = burst.as_slice().first() {
            let Received { buf, source, checksum, .. } = received;
            bytes += buf.len();
            if let Source::Ud(source) = source
                && let Some((count, bytes)) = datagrams.get_mut(usize::from(source.multicast))
            {
                *count += 1;
                *bytes += buf.len();
            }
            let plain = received
                .ud
                .and_then(|link| short.message((port, link.0), buf.data(), buf.len(), source, *checksum));
            let Some(received) = burst.next() else { break };
            match plain {
                Some(plain) => {
                    hands.forward_message(plain, received.buf);
                }
                None => hands.take_any_message(port, received, tables),
            }
        }
        hands.common.counters.received(messages, bytes, datagrams);
        true
    }

    /// True if receiving from a port of the fabric waits for the Ethernet port: hosts are slowed down by
    /// backpressure, and their packets are not dropped. Not if its shared receives run low: a peer whose
    /// message finds none loses its connection. Not with several Ethernet ports, either: a received message
    /// may be for one that is open.
    #[inline]
    fn waits(&mut self, port: EndpointIndex) -> bool {
        let [ethernet] = self.ethernets.as_slice() else { return false };
        ethernet.is_blocked()
            && self
                .infinibands
                .get_mut(port.at())
                .is_some_and(|face| face.link.queues().receives_posted().1 > self.srq_low)
    }

    /// Receives from the InfiniBand ports.
    fn poll_infinibands(&mut self) -> bool {
        let mut busy = false;
        for port in self.rota.turn() {
            // The device may have filled more than one burst meanwhile.
            for _ in 0..RECEIVE_ROUNDS {
                if self.waits(port) || !self.poll_infiniband(port) {
                    break;
                }
                busy = true;
                self.rota.served(port);
                self.flush_ethernet();
            }
        }
        busy
    }

    fn flush_ethernet(&mut self) {
        for face in &mut self.ethernets {
            face.flush(&mut self.common.counters);
        }
    }

    /// The indexes of its InfiniBand ports.
    fn endpoints(&self) -> impl Iterator<Item = EndpointIndex> + use<Q> {
        (0..self.infinibands.len() as u8).map(EndpointIndex)
    }
}

impl<Q: MemoryWork> Worker for GatewayWorker<Q> {
    #[inline]
    fn begin_turn(&mut self, now: Instant) {
        self.common.leases.begin_turn(now);
    }

    fn turn(&mut self) -> Turn {
        let mut busy = false;
        for (face, port) in self.ethernets.iter_mut().zip(0..) {
            busy |= face.begin_turn(EthernetIndex(port), &mut self.common.counters, &mut self.tables);
        }
        if self.ethernets.iter().any(EthernetFace::has_unsent) {
            self.report_unsent();
        }
        for port in self.endpoints() {
            busy |= self.take_commands(port) > 0;
        }
        for face in &mut self.infinibands {
            busy |= face.link.queues().turn();
            busy |= face.retry(&mut self.common.counters);
        }
        for port in (0..self.ethernets.len() as u8).map(EthernetIndex) {
            busy |= self.poll_ethernet(port);
        }
        for face in &mut self.infinibands {
            face.link.queues().ring();
        }
        self.flush_ethernet();
        busy |= self.poll_infinibands();
        for face in &mut self.infinibands {
            busy |= face.link.finish();
        }
        self.common.counters.settle();
        if busy { Turn::Busy } else { Turn::Idle }
    }

    fn record_service_time(&mut self, ns: u64) {
        self.service.record(ns);
        self.common.counters.busy_turn(ns);
    }

    fn record_rest(&mut self, ns: u64) {
        self.common.counters.rest(ns);
    }

    // If one side cannot wake the worker, it sleeps only for as long as a packet from that side may wait.
    fn arm(&mut self) -> Wakes {
        let mut fresh = false;
        let most = eth::MOST_WAITED;
        let mut ethernets_wake = self.ethernets.len() <= most && self.infinibands.len() <= most;
        for face in &mut self.ethernets {
            fresh |= face.queue.arm();
            ethernets_wake &= face.queue.wakes();
        }
        self.all_wake = true;
        for face in &mut self.infinibands {
            self.all_wake &= face.link.queues().arm();
        }
        match (self.all_wake, ethernets_wake, fresh) {
            (true, true, _) => Wakes::All,
            (true, false, _) | (false, _, true) => Wakes::Some,
            (false, _, false) => Wakes::Nobody,
        }
    }

    fn disarm(&mut self) {
        for face in &mut self.ethernets {
            face.queue.disarm();
        }
    }

    fn rest(&mut self, at_most: Duration) -> bool {
        let devices = self.infinibands.iter_mut().filter_map(|face| face.link.queues().events());
        let woken = eth::wait(self.ethernets.iter_mut().map(|face| &mut face.queue), devices, at_most);
        let mut came = woken.interrupt;
        if woken.device {
            for face in &mut self.infinibands {
                came |= face.link.queues().wait(Duration::ZERO);
            }
        }
        if came {
            self.disarm();
        }
        came || !self.all_wake
    }
}

fn origin_of(source: &Source, qpn: Qpn) -> Origin {
    match source {
        Source::Rc | Source::RcInvalidated(_) => Origin::Connection(qpn),
        Source::Ud(source) => Origin::Datagram(*source),
    }
}
