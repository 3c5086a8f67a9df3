//! The control lcore's part of an endpoint: carries a link's actions out on a device and its workers.

mod actions;
mod arrivals;
mod config;
mod datagrams;
mod keys;
mod link;
mod links;
mod outgoing;
mod port;
mod worker_end;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::ring::{self};
use dataplane::usage::Usage;
use ib_wire::Qpn;
use pmd::hca::{Backend, HcaError, PortNumber, Queues, QueuesConfig, QueuesId, RegisteredBy, UdConfig};
use pmd::mem::{Pool, PoolError};

use super::long::{Counters, KeyNote, Long, LongMessages};
use super::message::{Command, Losses};
use super::view::Board;
use super::worker::{LinkWorker, UD};
use config::{max_sends, queues_id, ud_recv_most};
use ipoib::link::{ConnKey, Event, Link, LinkError, LinkIndex, WorkerIndex, WorkerNote, WorkerSettings};
use ipoib::port::{Port, PortSettings, WorkerSlots};
use link::LinkEnd;
use outgoing::Outgoing;
use port::{Gone, Misses};
use worker_end::WorkerEnd;

pub use config::{EndpointConfig, EndpointPlace, WorkerSizes};

/// Items that fit a ring between control and worker.
pub const RING: usize = 4096;
/// How often workers' marks of the connections that messages came by are taken.
const USAGE_PERIOD: Duration = Duration::from_secs(1);
/// How often the port's facts are read without an event while a link waits for them: some devices raise none on INIT → ACTIVE.
const PORT_PERIOD: Duration = Duration::from_millis(50);
/// The same while no link waits: a net for events that got lost.
const PORT_NET: Duration = Duration::from_secs(5);
/// The same after one that failed.
const PORT_RETRY: Duration = Duration::from_secs(1);
/// How often datagram queue pairs that are being closed are looked after.
const CLOSING_PERIOD: Duration = Duration::from_millis(50);

/// Links that a worker can have a datagram queue pair for.
const MAX_LINKS: u16 = 128;
/// Why an endpoint cannot be made or run.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The device refused.
    #[error("the host channel adapter: {0}")]
    Hca(#[from] HcaError),
    /// There is no memory for large buffers.
    #[error("buffers for messages of more pieces than the device sends: {0}")]
    Buffers(#[from] PoolError),
    /// The link's settings are not legal.
    #[error("the IPoIB link: {0}")]
    Link(#[from] LinkError),
}

type Destination<B> = <<B as Backend>::Queues as Queues>::Destination;
type Ud<B> = <<B as Backend>::Queues as Queues>::Ud;
type Rc<B> = <<B as Backend>::Queues as Queues>::Rc;

/// A port's links, their device, and the rings to the workers.
pub struct Endpoint<B: Backend, C, N> {
    hca: B,
    port: Port,
    number: PortNumber,
    place: EndpointPlace,
    /// By link index.
    links: Vec<Option<LinkEnd<Destination<B>>>>,
    /// A link that is over, for those who ask for one where there is none.
    none: Link,
    /// Links that have been removed, and their owner not been told.
    removed: VecDeque<LinkIndex>,
    pool: Pool,
    ud_send_depth: u32,
    rc_send_depth: u32,
    workers: Vec<WorkerEnd<B::Queues, C, N>>,
    /// Hot halves that are not with a worker.
    rcs: HashMap<ConnKey, Rc<B>>,
    app_notes: VecDeque<(WorkerIndex, N)>,
    /// Management datagrams that wait for room on the device.
    mads: Outgoing,
    /// The device told of something that may mean another GID table.
    gid_news: bool,
    port_read: Instant,
    /// Reads of the port's facts that have failed.
    misses: Misses,
    closing_read: Instant,
    /// Which datagram queue pair is looked after next.
    next_look: usize,
    usage_read: Instant,
    /// Device requests that failed; the link is told and goes on.
    device_errors: u64,
    /// Times that a shared receive queue fell below its limit.
    srq_low: u64,
    /// When that was last told.
    srq_low_told: Option<Instant>,
    losses: Losses,
    last_device_error: Option<String>,
    gone: Gone,
    /// Datagram queue pairs that were found in error and opened anew.
    datagram_reopens: u64,
    /// Workers have keys.
    keeps_keys: bool,
    keys_aged: Instant,
    /// To be made anew.
    doubtful_keys: Vec<(WorkerIndex, KeyNote)>,
}

impl<B: Backend, C, N> std::fmt::Debug for Endpoint<B, C, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("port", &self.port).finish_non_exhaustive()
    }
}

/// A new endpoint and its workers.
type Made<B, C, N> = (Endpoint<B, C, N>, Vec<LinkWorker<<B as Backend>::Queues, C, N>>);

impl<B: Backend, C, N> Endpoint<B, C, N> {
    /// Registers the pool's memory, creates the workers' queues and the link.
    pub fn new(
        mut hca: B,
        mut config: EndpointConfig,
        pool: &Pool,
        now: Instant,
    ) -> Result<Made<B, C, N>, EndpointError> {
        hca.register_pool(pool)?;
        let sizes = config.sizes;
        let large = keys::large_buffers(&mut hca, &config, pool)?;
        let mut queues = Vec::with_capacity(usize::from(config.workers));
        for index in 0..config.workers {
            queues.push(hca.create_queues(
                &QueuesConfig {
                    id: queues_id(config.place, config.workers, index),
                    ud_recv_depth: sizes.ud_recv_depth,
                    ud_recv_most: ud_recv_most(pool, &config),
                    srq_depth: sizes.srq_depth,
                    srq_message: config.link.receive_mtu as usize,
                    srq_limit: sizes.srq_limit,
                    max_ud: MAX_LINKS,
                    likely_ud: config.links,
                    max_rc: sizes.max_rc.into(),
                    max_sends: max_sends(pool, &config),
                    signal_every: sizes.signal_every,
                },
                pool,
            )?);
        }
        let mut datagrams = Vec::with_capacity(queues.len());
        for queues in &mut queues {
            if let Some(most) = sizes.send_segments {
                queues.limit_send_segments(most as usize);
            }
            let config = UdConfig { queues: queues.id(), port: config.port, send_depth: sizes.ud_send_depth };
            let ud = hca.create_ud(&config)?;
            datagrams.push(WorkerSettings { ud_qpn: B::ud_qpn(&ud) });
            // It has a place: the queues are new and have one.
            if let Err(ud) = queues.insert_ud(UD, ud) {
                hca.destroy_ud(ud)?;
            }
        }
        config.link.workers = datagrams;
        let none = Link::over(config.link.clone(), now)?;
        let mut port = Port::new(
            &PortSettings {
                // Our end's name in CM messages.
                node_guid: hca.device().node_guid,
                workers: vec![WorkerSlots { first: 0, count: sizes.max_rc }; queues.len()],
                // Peers see PSNs, which derive from the link's seed, and must not learn communication ids from them.
                seed: RandomState::new().hash_one(std::process::id()),
            },
            now,
        );
        let first = port.add(now, config.link)?;
        let links = port.link(first).map(|link| Some(LinkEnd::new(link))).into_iter().collect();
        let lists = hca.device().fast_registration.is_some_and(|fast| fast.by == RegisteredBy::Umr);
        let keeps_keys = large.is_some() && lists && sizes.long_messages == LongMessages::Key;
        let mut ends = Vec::with_capacity(queues.len());
        let mut workers = Vec::with_capacity(queues.len());
        for (index, queues) in queues.into_iter().enumerate() {
            let (commands, inbox) = ring::channel(RING);
            let (outbox, notes) = ring::channel(RING);
            let received = Usage::new(sizes.max_rc.into(), 1);
            let Some(marks) = received.marks().first().cloned() else { continue };
            let long = Arc::<Counters>::default();
            let worker = LinkWorker::new(index as u8, queues, inbox, outbox, marks);
            workers.push(match &large {
                Some(large) => worker.with_long(Long::new(large.clone(), keeps_keys, Arc::clone(&long))),
                None => worker,
            });
            ends.push(WorkerEnd { commands, waiting: VecDeque::new(), notes, received, long });
        }
        let endpoint = Self {
            hca,
            port,
            number: config.port,
            place: config.place,
            links,
            none,
            pool: pool.clone(),
            removed: VecDeque::new(),
            ud_send_depth: sizes.ud_send_depth,
            rc_send_depth: sizes.rc_send_depth,
            workers: ends,
            rcs: HashMap::new(),
            app_notes: VecDeque::new(),
            mads: Outgoing::default(),
            gid_news: false,
            // At once, then as often as is due.
            port_read: now.checked_sub(PORT_NET).unwrap_or(now),
            misses: Misses::default(),
            closing_read: now,
            next_look: 0,
            usage_read: now,
            device_errors: 0,
            srq_low: 0,
            srq_low_told: None,
            losses: Losses::default(),
            last_device_error: None,
            gone: Gone::No,
            datagram_reopens: 0,
            keeps_keys,
            keys_aged: now,
            doubtful_keys: Vec::new(),
        };
        Ok((endpoint, workers))
    }

    /// The first link, to ask things of it: for those who have one only. What it wants done is done in the next [`Endpoint::tick`]. Once
    /// it has been removed, what is asked of it has no effect.
    pub fn link(&mut self) -> &mut Link {
        self.port.link_mut(LinkIndex(0)).unwrap_or(&mut self.none)
    }

    /// A link, to ask things of it.
    pub fn link_at(&mut self, index: LinkIndex) -> Option<&mut Link> {
        self.port.link_mut(index)
    }

    /// The port and its links, to look at.
    #[must_use]
    pub const fn links(&self) -> &Port {
        &self.port
    }

    /// The device.
    pub const fn hca(&mut self) -> &mut B {
        &mut self.hca
    }

    /// The port of the device.
    #[must_use]
    pub const fn port(&self) -> PortNumber {
        self.number
    }

    /// The name of a worker's queues.
    fn queues_id(&self, worker: WorkerIndex) -> QueuesId {
        queues_id(self.place, self.workers.len() as u8, worker.0)
    }

    /// How often a datagram queue pair was found in error and opened anew.
    #[must_use]
    pub const fn datagram_reopens(&self) -> u64 {
        self.datagram_reopens
    }

    /// Device requests that failed, and what the last one said.
    #[must_use]
    pub fn device_errors(&self) -> (u64, Option<&str>) {
        (self.device_errors, self.last_device_error.as_deref())
    }

    /// How often a shared receive queue fell below its limit. Devices tell of it about once a second at most.
    #[must_use]
    pub const fn srq_low(&self) -> u64 {
        self.srq_low
    }

    /// What was lost since the last call.
    pub fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.losses)
    }

    /// True if the device has told since the last call of something that may mean another GID table.
    pub const fn take_gid_news(&mut self) -> bool {
        std::mem::replace(&mut self.gid_news, false)
    }

    /// Sends an application's command, which carries a packet, to a worker. It is lost, and counted, if the worker is far
    /// behind.
    pub fn send(&mut self, worker: WorkerIndex, command: C) -> bool {
        self.offer(worker, Command::App(command))
    }

    /// Has a worker carry out a command that must not be lost, however far behind it is. The caller sees to it that these are few.
    pub fn order(&mut self, worker: WorkerIndex, command: C) {
        if let Some(end) = self.workers.get_mut(usize::from(worker.0)) {
            end.send(Command::App(command));
        }
    }

    fn offer(&mut self, worker: WorkerIndex, command: Command<B::Queues, C>) -> bool {
        let taken = self.workers.get_mut(usize::from(worker.0)).is_some_and(|end| end.offer(command));
        self.losses.queue_full += u64::from(!taken);
        taken
    }

    /// Lends every worker an empty histogram; the full ones come back as events.
    pub fn ask_latency(&mut self) {
        for end in &mut self.workers {
            end.send(Command::Latency(dataplane::latency::empty()));
        }
    }

    /// Does what is due. New tables go to `board`; `latency` takes the histograms that came back. True if there was anything.
    pub fn tick(
        &mut self,
        now: Instant,
        board: &mut impl Board<Destination<B>>,
        mut latency: impl FnMut(Box<hdrhistogram::Histogram<u32>>),
    ) -> bool {
        let mut busy = self.take_notes(now, &mut latency);
        busy |= self.take_device_events(now);
        busy |= self.take_mads(now);
        // Receiving has made room.
        self.flush_mads();
        let since = now.duration_since(self.port_read);
        let again = if self.misses.any() { PORT_RETRY } else { PORT_NET };
        if since >= again || since >= PORT_PERIOD && self.waits_for_port() {
            self.read_port(now);
        }
        if now.duration_since(self.closing_read) >= CLOSING_PERIOD {
            self.closing_read = now;
            if self.is_gone() { self.take_all_back() } else { self.flush_closing() }
        }
        if now.duration_since(self.usage_read) >= USAGE_PERIOD {
            self.collect_usage(now);
            if !self.is_gone() {
                self.look_after_datagrams(now);
            }
        }
        self.check_quiescence(now, board);
        if self.port.poll_timeout().is_some_and(|at| at <= now) {
            self.port.handle_timeout(now);
        }
        busy |= self.advance_removals(now);
        while let Some((link, action)) = self.port.poll_action(now) {
            busy = true;
            self.carry_out(now, link, action, board);
        }
        while let Some(mad) = self.port.poll_transmit(now) {
            busy = true;
            self.send_mad(mad);
        }
        self.renew_keys();
        self.age_keys(now);
        for end in &mut self.workers {
            end.flush();
        }
        busy || !self.mads.is_empty()
    }

    /// The next thing that the link tells: for those who have one only.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.poll_link_event().map(|(_, event)| event)
    }

    /// The next thing that a link tells.
    pub fn poll_link_event(&mut self) -> Option<(LinkIndex, Event)> {
        self.port.poll_event()
    }

    /// What communication management has counted on the port.
    #[must_use]
    pub const fn cm_counters(&self) -> &cm::connection::Counters {
        self.port.cm_counters()
    }

    /// The next note of the application's.
    pub fn poll_note(&mut self) -> Option<(WorkerIndex, N)> {
        self.app_notes.pop_front()
    }

    /// Takes everything apart after the workers have ended and given their queues back.
    pub fn close(mut self, queues: Vec<B::Queues>) -> Result<B, EndpointError> {
        self.take_last_keys();
        // What is still in the rings goes home with them.
        self.workers.clear();
        for (_, rc) in self.rcs.drain() {
            self.hca.destroy_rc(rc)?;
        }
        for queues in queues {
            self.hca.destroy_queues(queues)?;
        }
        Ok(self.hca)
    }

    /// Tells links which of their connections messages came by.
    fn collect_usage(&mut self, now: Instant) {
        self.usage_read = now;
        for (worker, end) in (0..=u8::MAX).map(WorkerIndex).zip(&self.workers) {
            self.port.handle_received(now, worker, &end.received.take(0));
        }
    }

    /// Tells links which of their publications every worker has taken up.
    fn check_quiescence(&mut self, now: Instant, board: &impl Board<Destination<B>>) {
        for (index, end) in (0u16..).zip(&mut self.links) {
            let Some(end) = end else { continue };
            while let Some(generation) = end.passed(|grace| board.passed(grace)) {
                if let Some(link) = self.port.link_mut(LinkIndex(index)) {
                    link.handle_quiescent(now, generation);
                }
            }
        }
    }

    /// Tells the link that a connected queue pair belongs to what befell it; false if it belongs to none.
    fn note(&mut self, now: Instant, qpn: Qpn, note: Option<WorkerNote>) -> bool {
        let ours = self.port.owner(qpn).is_some();
        if let (true, Some(note)) = (ours, note) {
            self.port.handle_note(now, qpn, note);
        }
        ours
    }

    /// Counts a failure of the device and logs it.
    fn check<T>(&mut self, result: Result<T, HcaError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.device_errors += 1;
                let text = e.to_string();
                tracing::debug!("device: {text}");
                self.last_device_error = Some(text);
                None
            }
        }
    }
}
