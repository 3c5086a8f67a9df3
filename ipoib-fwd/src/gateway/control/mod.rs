//! The gateway's control lcore: everything except plain forwarding.

mod answers;
mod checksums;
mod drain;
pub(super) mod duties;
pub(super) mod events;
pub(super) mod kept;
mod metrics;
pub(super) mod news;
mod page;
mod pair;
pub(super) mod pair_duty;
mod port_rows;
pub(super) mod ports;
pub(super) mod recordings;
pub(super) mod reload;
mod segments;
pub(super) mod service;
pub(super) mod set;
pub(super) mod since;
pub(super) mod stalls;
pub(super) mod traces;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dataplane::control::{Controller, Flow};
use dataplane::telemetry::{Command, Reply};
use logging::Stream;
use pmd::hca::{Backend, Queues};
use pmd::mem::Pool;

use super::board::GatewayBoard;
use super::error::GatewayError;
use super::report::{self, Times};
use super::segment_parts::SegmentMaker;
use crate::command::{self, Argument, Asked};
use crate::counter::{SegmentCounterReader, Totals, WorkerCounterReader, WorkerCounters};
use crate::event::What;

use crate::forward::EndpointIndex;
use crate::segment::pair::storm::SharedStorm;
use duties::Duties;
use events::Events;
use kept::Kept;
use ports::{DeviceGids, Endpoints, EthernetPort};
use recordings::Recordings;
use reload::Reloader;
use service::Service;
use set::Chosen;
use since::Base;
use stalls::Stalls;
use traces::Traces;

type Destination<B> = <<B as Backend>::Queues as Queues>::Destination;

/// Period of checking the Ethernet ports' links.
const ETHERNET_PERIOD: Duration = Duration::from_millis(500);
/// Period of collecting the workers' histograms and accessed bits.
const LATENCY_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait for a clean exit: DREQs answered, groups left.
const STOP_PATIENCE: Duration = Duration::from_secs(6);

/// The control lcore's state.
#[derive(Debug)]
pub(super) struct GatewayControl<B: Backend> {
    pub(super) endpoints: Endpoints<B>,
    pub(super) board: GatewayBoard<Destination<B>>,
    /// One for each device.
    pub(super) gids: Vec<DeviceGids>,
    /// Indexed by [`crate::forward::EthernetIndex`].
    pub(super) ethernets: Vec<EthernetPort>,
    pub(super) pool: Pool,
    pub(super) readers: Vec<WorkerCounterReader>,
    /// The counting period of the workers' storm guards.
    pub(super) storm: Arc<SharedStorm>,
    /// The control lcore's own drops.
    pub(super) own: WorkerCounters,
    pub(super) own_reader: WorkerCounterReader,
    /// One for each worker; the control lcore's is last.
    pub(super) segment_readers: Vec<SegmentCounterReader>,
    pub(super) segments: Duties,
    /// The builder of segments, with the configuration that is in force.
    pub(super) maker: SegmentMaker,
    pub(super) reloader: Reloader,
    pub(super) service: Service,
    pub(super) events: Events,
    pub(super) chosen: Chosen,
    pub(super) base: Base,
    pub(super) recordings: Recordings,
    pub(super) kept: Kept,
    pub(super) traces: Traces,
    pub(super) times: Times,
    pub(super) stats_period: Option<Duration>,
    pub(super) stats_stream: Stream,
    pub(super) schedule: Schedule,
    pub(super) stalls: Stalls,
    pub(super) stopping: Option<Instant>,
    /// The error that stopped the gateway; `None` unless there was one.
    pub(super) failure: Option<GatewayError>,
}

/// When periodic tasks are due.
#[derive(Debug)]
pub(super) struct Schedule {
    /// When the gateway was started.
    pub(super) started: Instant,
    pub(super) started_by_clock: SystemTime,
    pub(super) ethernet: Instant,
    /// The next period of the storm guards.
    pub(super) storm: Instant,
    pub(super) latency: Instant,
    pub(super) stats: Instant,
    pub(super) stats_before: Option<Totals>,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        let started_by_clock = SystemTime::now();
        Self {
            started: now,
            started_by_clock,
            ethernet: now,
            storm: now,
            latency: now,
            stats: now,
            stats_before: None,
        }
    }
}

impl<B: Backend> GatewayControl<B> {
    pub(super) fn totals(&self) -> Totals {
        Totals::of(self.readers.iter().chain(std::iter::once(&self.own_reader)))
    }

    /// True if there was work to do.
    fn periodic(&mut self, now: Instant) -> bool {
        if now >= self.schedule.ethernet {
            self.schedule.ethernet = now + ETHERNET_PERIOD;
            self.publish_addresses();
            self.watch_ethernets(now);
            self.endpoints.log_troubles();
        }
        if now >= self.schedule.latency {
            self.schedule.latency = now + LATENCY_PERIOD;
            self.times.pass_second();
            // A worker has one histogram, whatever the number of its ports.
            if let Some(endpoint) = self.endpoints.at(EndpointIndex(0)) {
                endpoint.ask_latency();
            }
            self.sample_checksums();
            self.collect_usage(now);
            self.watch_alarms(now);
        }
        if let Some(period) = self.stats_period
            && now >= self.schedule.stats
        {
            let totals = self.totals();
            if let Some(before) = self.schedule.stats_before.replace(totals.clone()) {
                // A reader that is gone or does not read is not an error.
                let line = report::line(&before, &totals, period.as_secs_f64());
                self.stats_stream.put(&format!("{line}\n"));
            }
            self.schedule.stats = now + period;
        }
        self.keep_hosts(now);
        self.drive_recording(now);
        self.drive_traces(now)
    }
}

impl<B: Backend> Controller for GatewayControl<B> {
    fn tick(&mut self, now: Instant) -> Flow {
        self.watch_stalls(now);
        let mut busy = self.tick_endpoints(now);
        if let Err(gone) = self.look_for_devices(now) {
            self.drop_waiting(now);
            self.failure = Some(gone);
            return Flow::Done;
        }
        self.release_published(now);
        busy |= self.take_packets(now);
        busy |= self.take_link_events(now);
        busy |= self.advance_reload(now);
        self.follow_gids(now);
        self.drive_pairs(now);
        self.pass_time(now);
        busy |= self.periodic(now);
        self.board.flush();
        self.notify_service(now);
        self.events.settle(now);
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

    fn request(&mut self, now: Instant, request: &Command) -> Result<Reply, String> {
        let asked = Asked::parse(request)?;
        let argument = asked.argument.as_deref();
        let segment = match (asked.command.argument(), argument) {
            (Argument::Segment, Some(name)) => match self.known_segment(name) {
                Err(why) if asked.command == command::Command::Links => {
                    return self.links_not_at_work(name).map(Reply::from).ok_or(why);
                }
                found => Some(found?),
            },
            _ => None,
        };
        let answer = match asked.command {
            command::Command::Events => return Ok(self.events.follow(argument)),
            command::Command::Trace => return self.trace(now, argument),
            command::Command::List => command::list(),
            command::Command::Help => command::help(argument)?,
            command::Command::Stats => self.stats(now, segment),
            command::Command::Metrics => self.metrics().into(),
            command::Command::Links => self.links(now, segment),
            command::Command::Neighbours => self.neighbours(now, argument)?,
            command::Command::Connections => self.connections(now, argument)?,
            command::Command::Groups => self.groups(argument)?,
            command::Command::Gids => self.gid_table(),
            command::Command::Capture => return self.capture_now(now, argument),
            command::Command::Set => self.set(now, argument)?,
            command::Command::Clear => self.clear(now, argument),
            command::Command::Since => self.since(now, segment),
            command::Command::Mode => self.set_mode(now, argument)?,
            command::Command::Health => self.health(),
            command::Command::Drain => self.drain(now, argument)?,
            command::Command::Reload => return Ok(self.ask_for_reload()),
        };
        Ok(answer.into())
    }

    fn reload(&mut self, _: Instant) {
        self.reloader.request();
    }

    fn stop(&mut self, now: Instant) {
        tracing::info!(event = What::Stopping.journal(), "stopping");
        self.stopping = Some(now);
        self.service.stopping();
        let said = || ("the gateway stops".to_owned(), serde_json::Value::Null);
        self.events.report(now, What::Stopping, None, said);
        self.keep_all_hosts(now);
        self.shut_down(now);
    }

    fn end(&mut self) {
        self.events.end();
        self.traces.end();
        self.end_of_captures(Instant::now());
    }
}
