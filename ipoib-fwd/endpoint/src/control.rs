//! The control lcore's part of an endpoint: carries out a link's actions on a device and its workers.

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

/// Capacity of a ring between the control lcore and a worker.
pub const RING: usize = 4096;
/// How often the workers' marks of the connections that messages arrived on are harvested.
const USAGE_PERIOD: Duration = Duration::from_secs(1);
/// How often the port's state is read without an event while a link waits for it: some devices raise none on
/// INIT → ACTIVE.
const PORT_PERIOD: Duration = Duration::from_millis(50);
/// The same while no link waits: a safety net for lost events.
const PORT_NET: Duration = Duration::from_secs(5);
/// The same after a read that failed.
const PORT_RETRY: Duration = Duration::from_secs(1);
/// How often datagram queue pairs that are being closed are checked.
const CLOSING_PERIOD: Duration = Duration::from_millis(50);

/// Largest number of links for which a worker can have a datagram queue pair.
const MAX_LINKS: u16 = 128;
/// Why an endpoint cannot be created or run.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The device refused a request.
    #[error("the host channel adapter: {0}")]
    Hca(#[from] HcaError),
    /// There is no memory for large buffers.
    #[error("buffers for messages of more pieces than the device sends: {0}")]
    Buffers(#[from] PoolError),
    /// The link's settings are invalid.
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
    /// A link that is closed, returned where there is none.
    none: Link,
    /// Links that have been removed, and not yet reported to their owner.
    removed: VecDeque<LinkIndex>,
    pool: Pool,
    ud_send_depth: u32,
    rc_send_depth: u32,
    workers: Vec<WorkerEnd<B::Queues, C, N>>,
    /// Data-path halves of connections that no worker has.
    rcs: HashMap<ConnKey, Rc<B>>,
    app_notes: VecDeque<(WorkerIndex, N)>,
    /// Management datagrams that wait for room on the device.
    mads: Outgoing,
    /// An event of the device may mean a changed GID table.
    gid_news: bool,
    port_read: Instant,
    /// Reads of the port's state that have failed.
    misses: Misses,
    closing_read: Instant,
    /// Index of the datagram queue pair that is checked next.
    next_look: usize,
    usage_read: Instant,
    /// Device requests that failed; the link is notified and continues.
    device_errors: u64,
    /// Times that a shared receive queue fell below its limit.
    srq_low: u64,
    /// When that was last reported.
    srq_low_reported: Option<Instant>,
    losses: Losses,
    last_device_error: Option<String>,
    gone: Gone,
    /// Number of datagram queue pairs that were found in error and reopened.
    datagram_reopens: u64,
    /// True if workers use keys.
    keeps_keys: bool,
    keys_aged: Instant,
    /// Keys that must be made again.
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
    /// Registers the pool's memory, and creates the workers' queues and the link.
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
            // A slot is free: the queues are new and have at least one.
            if let Err(ud) = queues.insert_ud(UD, ud) {
                hca.destroy_ud(ud)?;
            }
        }
        config.link.workers = datagrams;
        let none = Link::over(config.link.clone(), now)?;
        let mut port = Port::new(
            &PortSettings {
                // Our identity in CM messages.
                node_guid: hca.device().node_guid,
                workers: vec![WorkerSlots { first: 0, count: sizes.max_rc }; queues.len()],
                // Peers see PSNs, which derive from the link's seed, and must not infer communication IDs
                // from them.
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
            // Read at once, then at its period.
            port_read: now.checked_sub(PORT_NET).unwrap_or(now),
            misses: Misses::default(),
            closing_read: now,
            next_look: 0,
            usage_read: now,
            device_errors: 0,
            srq_low: 0,
            srq_low_reported: None,
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

    /// Returns the first link, for owners of exactly one. The next [`Endpoint::tick`] carries out its
    /// actions. After the link's removal, calls on it have no effect.
    pub fn link(&mut self) -> &mut Link {
        self.port.link_mut(LinkIndex(0)).unwrap_or(&mut self.none)
    }

    /// Returns a link for changes.
    pub fn link_at(&mut self, index: LinkIndex) -> Option<&mut Link> {
        self.port.link_mut(index)
    }

    /// Returns the port and its links for reading.
    #[must_use]
    pub const fn links(&self) -> &Port {
        &self.port
    }

    /// Returns the device.
    pub const fn hca(&mut self) -> &mut B {
        &mut self.hca
    }

    /// Returns the port of the device.
    #[must_use]
    pub const fn port(&self) -> PortNumber {
        self.number
    }

    /// Returns the identifier of a worker's queues.
    fn queues_id(&self, worker: WorkerIndex) -> QueuesId {
        queues_id(self.place, self.workers.len() as u8, worker.0)
    }

    /// Returns how often a datagram queue pair was found in error and reopened.
    #[must_use]
    pub const fn datagram_reopens(&self) -> u64 {
        self.datagram_reopens
    }

    /// Returns the number of device requests that failed, and the last error.
    #[must_use]
    pub fn device_errors(&self) -> (u64, Option<&str>) {
        (self.device_errors, self.last_device_error.as_deref())
    }

    /// Returns how often a shared receive queue fell below its limit. Devices report that about once a second
    /// at most.
    #[must_use]
    pub const fn srq_low(&self) -> u64 {
        self.srq_low
    }

    /// Returns the losses since the last call.
    pub fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.losses)
    }

    /// True if an event of the device since the last call may mean a changed GID table.
    pub const fn take_gid_news(&mut self) -> bool {
        std::mem::replace(&mut self.gid_news, false)
    }

    /// Sends an application's command, which carries a packet, to a worker. The command is lost, and counted,
    /// if the worker is far behind.
    pub fn send(&mut self, worker: WorkerIndex, command: C) -> bool {
        self.offer(worker, Command::App(command))
    }

    /// Sends a worker a command that must not be lost, however far behind the worker is. The caller ensures
    /// that such commands are few.
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

    /// Lends an empty histogram to every worker; [`Endpoint::tick`] passes on the full ones.
    pub fn ask_latency(&mut self) {
        for end in &mut self.workers {
            end.send(Command::Latency(dataplane::latency::empty()));
        }
    }

    /// Does the work that is due. New tables go to `board`; `latency` takes the histograms that came back.
    /// True if there was any work.
    pub fn tick(
        &mut self,
        now: Instant,
        board: &mut impl Board<Destination<B>>,
        mut latency: impl FnMut(Box<hdrhistogram::Histogram<u32>>),
    ) -> bool {
        let mut busy = self.take_notes(now, &mut latency);
        busy |= self.take_device_events(now);
        busy |= self.take_mads(now);
        // Receiving has freed room.
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

    /// Returns the next event of the link, for owners of exactly one.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.poll_link_event().map(|(_, event)| event)
    }

    /// Returns the next event of a link.
    pub fn poll_link_event(&mut self) -> Option<(LinkIndex, Event)> {
        self.port.poll_event()
    }

    /// Returns the counters of communication management on the port.
    #[must_use]
    pub const fn cm_counters(&self) -> &cm::connection::Counters {
        self.port.cm_counters()
    }

    /// Returns the application's next note.
    pub fn poll_note(&mut self) -> Option<(WorkerIndex, N)> {
        self.app_notes.pop_front()
    }

    /// Destroys everything, after the workers have ended and returned their queues.
    pub fn close(mut self, queues: Vec<B::Queues>) -> Result<B, EndpointError> {
        self.take_last_keys();
        // This also frees the contents of the rings.
        self.workers.clear();
        for (_, rc) in self.rcs.drain() {
            self.hca.destroy_rc(rc)?;
        }
        for queues in queues {
            self.hca.destroy_queues(queues)?;
        }
        Ok(self.hca)
    }

    /// Notifies links of the connections on which messages arrived.
    fn collect_usage(&mut self, now: Instant) {
        self.usage_read = now;
        for (worker, end) in (0..=u8::MAX).map(WorkerIndex).zip(&self.workers) {
            self.port.handle_received(now, worker, &end.received.take(0));
        }
    }

    /// Notifies links of the publications that every worker has taken up.
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

    /// Notifies the link that owns a connected queue pair of an event; false if no link owns it.
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
