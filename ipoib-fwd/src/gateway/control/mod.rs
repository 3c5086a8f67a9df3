//! The gateway's control lcore: everything that is not plain forwarding.

mod answers;
pub(super) mod duties;
pub(super) mod pair;
pub(super) mod reload;
pub(super) mod segments;

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::capture::Capture;
use dataplane::control::{Controller, Flow};
use dataplane::telemetry::{Answer, Command};
use pmd::eth::EthPort;
use pmd::hca::{Backend, HcaError, Queues};
use pmd::mem::Pool;

use super::board::GatewayBoard;
use super::gids::GatewayGids;
use super::report::{self, Times};
use super::segment_parts::SegmentMaker;
use super::usage::Receivers;
use super::worker::{GatewayCommand, GatewayNote};
use crate::command::{self, Argument, Asked};
use crate::counter::{SegmentCounterReader, Totals, WorkerCounterReader, WorkerCounters};
use endpoint::Endpoint;
use ipoib::drop_reason::DropReason;
use ipoib::net::ethernet::MacAddress;

use duties::Duties;
use reload::Reloader;

type Destination<B> = <<B as Backend>::Queues as Queues>::Destination;

/// How often the Ethernet port's link is looked at.
const ETHERNET_PERIOD: Duration = Duration::from_millis(500);
/// How often workers' histograms and marks of use are collected.
const LATENCY_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait for a clean end: DREQs answered, groups left.
const STOP_PATIENCE: Duration = Duration::from_secs(6);

/// The control lcore's duty.
#[derive(Debug)]
pub(super) struct GatewayControl<B: Backend> {
    pub(super) endpoint: Endpoint<B, GatewayCommand, GatewayNote>,
    pub(super) board: GatewayBoard<Destination<B>>,
    pub(super) gids: GatewayGids,
    pub(super) port: EthPort,
    pub(super) pool: Pool,
    pub(super) mac: MacAddress,
    pub(super) readers: Vec<WorkerCounterReader>,
    /// Each worker's marks of the connections that it received from.
    pub(super) receivers: Vec<Arc<Receivers>>,
    /// The control lcore's own drops.
    pub(super) own: WorkerCounters,
    pub(super) own_reader: WorkerCounterReader,
    /// By worker, and last the control lcore's own.
    pub(super) segment_readers: Vec<SegmentCounterReader>,
    pub(super) segments: Duties,
    /// What segments are made by: the configuration that the gateway runs with.
    pub(super) maker: SegmentMaker,
    pub(super) reloader: Reloader,
    pub(super) times: Times,
    pub(super) capture: Option<Capture>,
    pub(super) stats_period: Option<Duration>,
    pub(super) schedule: Schedule,
    pub(super) stopping: Option<Instant>,
    /// What ended the gateway, if it was not asked to end.
    pub(super) failure: Option<HcaError>,
}

/// When things that come again are due.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) ethernet: Instant,
    /// The next period of the storm guards.
    pub(super) storm: Instant,
    pub(super) latency: Instant,
    pub(super) stats: Instant,
    pub(super) stats_before: Option<Totals>,
}

impl Schedule {
    pub(super) const fn new(now: Instant) -> Self {
        Self { ethernet: now, storm: now, latency: now, stats: now, stats_before: None }
    }
}

impl<B: Backend> GatewayControl<B> {
    pub(super) fn totals(&self) -> Totals {
        Totals::of(self.readers.iter().chain(std::iter::once(&self.own_reader)))
    }

    fn count_losses(&mut self) {
        let losses = self.endpoint.take_losses();
        self.own.drops(DropReason::NoBuffers, losses.no_buffers);
        self.own.drops(DropReason::IbQueueFull, losses.queue_full);
        self.own.drops(DropReason::SendFailed, losses.refused);
        if losses.events > 0 {
            tracing::warn!("{} queue pair events were lost: the control lcore is too slow", losses.events);
        }
    }

    /// Keeps the copy of the device's GID table. What a change means to the link, the endpoint tells it.
    fn follow_gids(&mut self, now: Instant) {
        let told = self.endpoint.take_gid_news();
        match self.gids.refresh(self.endpoint.hca(), now, told) {
            Ok(changes) => {
                for change in changes {
                    let (what, entry) = (if change.is_addition() { "new" } else { "gone" }, change.entry());
                    tracing::info!("GID {} of port {}: {} is {what}", entry.index, entry.port.0, entry.gid());
                }
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }

    fn periodic(&mut self, now: Instant) {
        if now >= self.schedule.ethernet {
            self.schedule.ethernet = now + ETHERNET_PERIOD;
            self.tell_places();
        }
        if now >= self.schedule.latency {
            self.schedule.latency = now + LATENCY_PERIOD;
            self.endpoint.ask_latency();
            self.collect_usage(now);
        }
        if let Some(period) = self.stats_period
            && now >= self.schedule.stats
        {
            let totals = self.totals();
            if let Some(before) = self.schedule.stats_before.replace(totals.clone()) {
                // A reader that has gone away is no failure.
                let line = report::line(&before, &totals, period.as_secs_f64());
                let _ = writeln!(std::io::stdout(), "{line}");
            }
            self.schedule.stats = now + period;
        }
        if let Some(capture) = &mut self.capture
            && let Err(e) = capture.drain()
        {
            tracing::error!("{e}: {}; the capture ends here", e.source);
            self.capture = None;
        }
    }
}

impl<B: Backend> Controller for GatewayControl<B> {
    fn tick(&mut self, now: Instant) -> Flow {
        let times = &mut self.times;
        let mut busy = self.endpoint.tick(now, &mut self.board, |h| times.add_service(&h));
        self.count_losses();
        if let Some(gone) = self.endpoint.take_gone() {
            tracing::error!("{gone}");
            self.drop_waiting(now);
            self.failure = Some(gone);
            return Flow::Done;
        }
        self.tell_published(now);
        busy |= self.take_packets(now);
        busy |= self.take_link_events(now);
        self.advance_reload(now);
        self.follow_gids(now);
        self.drive_pairs(now);
        self.pass_time(now);
        self.periodic(now);
        self.board.flush();
        if let Some(since) = self.stopping {
            let late = now.duration_since(since) > STOP_PATIENCE;
            if late {
                tracing::warn!("not all connections and groups could be closed in time");
            }
            if late || self.is_stopped() {
                self.drop_waiting(now);
                return Flow::Done;
            }
            return Flow::Busy;
        }
        if busy { Flow::Busy } else { Flow::Idle }
    }

    fn request(&mut self, now: Instant, request: &Command) -> Answer {
        let asked = Asked::parse(request)?;
        let argument = asked.argument.as_deref();
        let segment = match (asked.command.argument(), argument) {
            (Argument::Segment, Some(name)) => Some(self.known_segment(name)?),
            _ => None,
        };
        Ok(match asked.command {
            command::Command::List => command::list(),
            command::Command::Help => command::help(argument)?,
            command::Command::Stats => self.stats(now, segment),
            command::Command::Links => self.links(now, segment),
            command::Command::Neighbours => self.neighbours(now, segment),
            command::Command::Connections => self.connections(now, segment),
            command::Command::Groups => self.groups(segment),
            command::Command::Gids => self.gid_table(),
            command::Command::Mode => self.set_mode(now, argument)?,
            command::Command::Reload => self.reload_now(now)?,
        })
    }

    fn reload(&mut self, now: Instant) {
        // What does not work is in the log.
        drop(self.reload_now(now));
    }

    fn stop(&mut self, now: Instant) {
        tracing::info!("stopping");
        self.stopping = Some(now);
        self.shut_down(now);
    }
}
