//! Start of the gateway from a command line, and its shutdown.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{CommandLine, Config, ConfigFile, Overrides, Segment};
use dataplane::capture::{Bounds, Capture};
use dataplane::control::ControlLoop;
use dataplane::worker::{Handle, run};
use logging::{Log, Modules, Stream};
use pmd::eal::{Eal, LcoreId};
use pmd::eth::{EthConfig, EthPort, EthQueue};
use pmd::hca::{Backend, PortNumber};
use pmd::mem::{Pool, PoolConfig};
use preflight::{Code, Severity};
use rustix::thread::CpuSet;

use super::board::GatewayBoard;
use super::control::duties::Duties;
use super::control::events::Events;
use super::control::kept::Kept;
use super::control::ports::{DeviceGids, Endpoints, EthernetPort, GatewayEndpoint, port_name};
use super::control::recordings::Recordings;
use super::control::reload::{Reloader, policy};
use super::control::service::Service;
use super::control::set::Chosen;
use super::control::since::Base;
use super::control::stalls::Stalls;
use super::control::traces::Traces;
use super::control::{GatewayControl, Schedule};
use super::devices::{Devices, open_soft};
use super::end::Report;
use super::error::{GatewayError, Places};
use super::gids::{self, GatewayGids};
use super::keeper::Keeper;
use super::leases::Leases;
use super::port_names::PortNames;
use super::privileges::Privileges;
use super::random::random;
use super::report::Times;
use super::segment_parts::SegmentMaker;
use super::worker::{GatewayCommand, GatewayNote, GatewayWorker, WorkerParts};
use super::writer::{self, Writer};
use crate::check;
use crate::counter::WorkerCounters;
use crate::forward::{EndpointIndex, SegmentIndex};
use crate::segment::pair::storm::SharedStorm;
use crate::state_directory::{self, StateDirectory};
use endpoint::{Endpoint, EndpointConfig, EndpointPlace, LinkWorker, WorkerSizes};

/// One signalled send in this many: completions are reaped in batches.
const SIGNAL_EVERY: u32 = 16;

/// Time after its start until a bond has polled its members (every 10 ms by default). It sets the addresses
/// of those that are up, on EAL's interrupt thread, which has no capabilities later.
const BOND_LOOK: Duration = Duration::from_millis(100);

/// Parameters of a start.
#[derive(Debug)]
pub struct Start {
    /// The command line, split into arguments.
    pub line: CommandLine,
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// Options of the command line that override the file.
    pub overrides: Overrides,
    /// Capture file.
    pub capture: Option<PathBuf>,
    /// Limits of its disk use.
    pub capture_bounds: Bounds,
    /// The log; the configuration sets its level.
    pub log: Log,
}

impl Start {
    /// Runs the gateway until it is requested to stop, or its device is gone.
    pub fn run(self) -> Result<Report, GatewayError> {
        // Opening devices takes time: requests for the configuration during it are answered later.
        let control = ControlLoop::new()?;
        // All errors that can be found without a device are found before EAL starts, by the rules of --check.
        let places = Places(self.file.as_deref().map(ConfigFile::read).transpose()?);
        let (config, report) = check::before_start(&self.line.eal, places.0.as_ref(), &self.overrides);
        if let Some(first) = report.refusals().next() {
            return Err(GatewayError::refused(first, report.count(Severity::Error) - 1));
        }
        let check = |workers: u8| match &places.0 {
            Some(file) => file.check(&config, workers.into()),
            None => config.check(workers.into()),
        };
        self.log.set(config.gateway.log, &Modules::default());
        warn(&report);
        let names = PortNames::of(&config);
        let devices = Devices::choose(&config, &names, &places)?;
        let privileges = Privileges::configured(&config.gateway, &devices, &places)?;
        let state = state_directory::of(&config.gateway).map(StateDirectory::lock).transpose();
        let state = state.map_err(|e| places.at("gateway.state-directory", None, e))?.flatten();
        for warning in self.line.eal.warnings() {
            tracing::warn!("{warning}");
        }
        let capture = self.capture.as_deref().map(|path| Capture::prepare(path, self.capture_bounds));
        let mut capture = capture.transpose()?;

        let cpus = writer::own_cpus();
        let words = self.line.eal.with_rings(config.buffers.data_room);
        let arguments = std::iter::once(self.line.program.clone()).chain(words);
        let eal = Eal::init(arguments)?;
        let lcores = eal.worker_lcores();
        if lcores.is_empty() {
            return Err(GatewayError::NoWorker(eal.main_lcore()));
        }
        let workers = u8::try_from(lcores.len())
            .map_err(|_| GatewayError::Unsupported("at most 255 worker lcores are supported".to_owned()))?;
        check(workers)?;
        let pool = Pool::create(
            "packets",
            &PoolConfig {
                count: config
                    .buffers
                    .count
                    .map_or_else(|| config.buffers_needed(workers.into()), NonZeroU32::get),
                data_room: config.buffers.data_room,
                cache: config.buffers.cache,
                socket: -1,
            },
        )?;
        let ethernet = EthConfig {
            queues: workers.into(),
            rx_descriptors: config.ethernet.rx_descriptors,
            tx_descriptors: config.ethernet.tx_descriptors,
            mtu: config.ethernet.mtu,
            promiscuous: config.ethernet.promiscuous,
            offloads: config.ethernet.offloads,
        };
        let mut ethernets = Vec::new();
        for name in &names.ethernets {
            let started = EthPort::start(name.name.as_deref(), &ethernet, &pool);
            ethernets.push(started.map_err(|e| places.at("segment.ethernet", Some(name.segment), e))?);
        }
        let soft = match &devices {
            Devices::Soft(soft) => open_soft(soft, &mut capture, &places)?,
            Devices::Verbs(_) | Devices::Mlx5(_) => Vec::new(),
        };
        let running = Running {
            control,
            start: &self,
            config: &config,
            privileges,
            names,
            places: &places,
            eal: &eal,
            lcores,
            pool: pool.clone(),
            ethernets,
            capture,
            state,
            cpus,
        };
        let mut report = match devices {
            Devices::Soft(_) => running.run(soft)?,
            Devices::Verbs(list) => running.run(list)?,
            Devices::Mlx5(list) => running.run(list)?,
        };
        report.buffers_outstanding = pool.in_use();
        Ok(report)
    }
}

/// Logs warnings about the configuration. Deficiencies of the host are reported by the code that needs the
/// resource.
fn warn(report: &preflight::Report) {
    let is_configured = |code| matches!(code, Code::KeyUnused | Code::ConnectionsOvercommitted);
    for finding in report.findings().iter().filter(|finding| is_configured(finding.code)) {
        let place =
            finding.at.as_ref().map(|at| format!("{}:{}:{}: ", at.file.display(), at.line, at.column));
        tracing::warn!("{}{}; {}", place.unwrap_or_default(), finding.what, finding.help);
    }
}

/// The resources of a running gateway, for any device.
struct Running<'a> {
    start: &'a Start,
    control: ControlLoop,
    config: &'a Config,
    privileges: Privileges,
    names: PortNames,
    places: &'a Places,
    eal: &'a Eal,
    lcores: Vec<LcoreId>,
    pool: Pool,
    /// Each Ethernet port, with its queues indexed by worker.
    ethernets: Vec<(EthPort, Vec<EthQueue>)>,
    capture: Option<Capture>,
    /// The directory of known hosts, if there is one.
    state: Option<StateDirectory>,
    /// The CPUs of the process before EAL pinned its lcores.
    cpus: CpuSet,
}

/// The endpoints of all InfiniBand ports, and each worker's queues on them.
type MadeEndpoints<B> =
    (Vec<GatewayEndpoint<B>>, Vec<Vec<LinkWorker<<B as Backend>::Queues, GatewayCommand, GatewayNote>>>);

impl Running<'_> {
    /// Creates the endpoints, each with the link of the first segment on its port.
    fn endpoints<B: Backend>(
        &self,
        now: Instant,
        hcas: Vec<B>,
        maker: &SegmentMaker,
    ) -> Result<MadeEndpoints<B>, GatewayError> {
        let mut endpoints = Vec::new();
        let mut links: Vec<Vec<_>> = self.lcores.iter().map(|_| Vec::new()).collect();
        let of = u8::try_from(hcas.len()).unwrap_or(u8::MAX);
        for (hca, index) in hcas.into_iter().zip(0..of) {
            let first = self.config.segments.iter().find(|segment| {
                let ports = self.names.of_segment(self.config, segment);
                ports.is_some_and(|(_, endpoint)| endpoint == EndpointIndex(index))
            });
            let Some(first) = first else { continue };
            let config = self.endpoint_config(maker, first, EndpointPlace { index, of });
            let made = Endpoint::new(hca, config, &self.pool, now);
            let (endpoint, workers) = made.map_err(|e| {
                let name = self.names.infinibands.get(usize::from(index));
                self.places.at("segment.port", name.map(|name| name.segment), e)
            })?;
            endpoints.push(endpoint);
            for (links, link) in links.iter_mut().zip(workers) {
                links.push(link);
            }
        }
        Ok((endpoints, links))
    }

    /// The copies of devices' GID tables, one for each device. The first one is shared as configured; a
    /// further one is in a file next to it that has the device's name.
    fn gids<B: Backend>(
        &self,
        now: Instant,
        endpoints: &mut Endpoints<B>,
    ) -> Result<Vec<DeviceGids>, GatewayError> {
        let (mut all, mut seen) = (Vec::new(), Vec::new());
        for index in endpoints.indices() {
            let Some(endpoint) = endpoints.at(index) else { continue };
            let name = endpoint.hca().device().name;
            if seen.contains(&name) {
                continue;
            }
            let file = match &self.config.gateway.gids {
                Some(file) if !seen.is_empty() => Some(gids::device_file(file, &name).ok_or_else(|| {
                    let what = format!(
                        "the name of device `{name}` cannot be part of a file name next to {}",
                        file.display()
                    );
                    let error = GatewayError::Unsupported(format!("{what}: write gids = \"\""));
                    self.places.at("gateway.gids", None, error)
                })?),
                file => file.clone(),
            };
            let made = GatewayGids::new(endpoint.hca(), file.as_deref(), random(), now);
            all.push((index, made.map_err(|e| self.places.at("gateway.gids", None, e))?));
            seen.push(name);
        }
        Ok(all)
    }

    /// The CPUs for a thread that is not an lcore.
    fn other_cpus(&self) -> Result<Option<CpuSet>, GatewayError> {
        let mut workers = Vec::new();
        for &lcore in &self.lcores {
            workers.push(self.eal.launch(lcore, writer::own_cpus)?.join()?);
        }
        Ok(writer::spare_cpus(&self.cpus, &writer::own_cpus(), &workers))
    }

    /// Known hosts of an earlier run, and the thread that saves those of this one, if there is a directory
    /// for them.
    fn kept(&self, now: Instant) -> Result<Kept, GatewayError> {
        let Some(directory) = self.state.as_ref().map(StateDirectory::path) else {
            return Ok(Kept::new(now));
        };
        let keeper =
            Keeper::start(directory.to_owned(), self.other_cpus()?).map_err(GatewayError::HostsThread)?;
        Ok(Kept::in_directory(now, directory, keeper))
    }

    /// The thread that writes captures, if captures are possible. It drops its privileges as other threads
    /// do, and runs on no worker's CPU.
    fn recordings(&mut self) -> Result<Recordings, GatewayError> {
        let capture = self.capture.take();
        if capture.is_none() && self.config.gateway.captures.is_none() {
            return Ok(Recordings::default());
        }
        let cpus = self.other_cpus()?;
        let all = capture.as_ref().map(Capture::progress);
        let writer = Writer::start(capture, cpus).map_err(GatewayError::CaptureThread)?;
        Ok(Recordings::new(writer, all))
    }

    fn run<B: Backend>(mut self, hcas: Vec<B>) -> Result<Report, GatewayError> {
        let now = Instant::now();
        let handles: Vec<Arc<Handle>> = self.lcores.iter().map(|_| Handle::new()).collect();
        for handle in &handles {
            handle.set_idle(policy(self.config.gateway.idle));
        }
        let maker = SegmentMaker {
            config: self.config.clone(),
            names: self.names.clone(),
            workers: self.lcores.len() as u8,
            instance: random(),
            started: now,
            receive_mtu: None,
            mode: None,
            priority: None,
            drained: false,
        };
        let (endpoints, mut links) = self.endpoints(now, hcas, &maker)?;
        let mut endpoints = Endpoints::new(endpoints, self.names.urls(self.config));
        let gids = self.gids(now, &mut endpoints)?;
        let (mut ethernets, mut queues) = (Vec::new(), Vec::new());
        for (port, by_worker) in self.ethernets.drain(..) {
            ethernets.push(EthernetPort::new(port));
            queues.push(by_worker.into_iter());
        }
        let (mut board, mut duties) = (GatewayBoard::new(maker.workers), Duties::default());
        for (segment, index) in self.config.segments.iter().zip((0..).map(SegmentIndex)) {
            let Some(mut ground) = maker.ground(segment, index, &ethernets, &mut endpoints) else { continue };
            // The first link of a port was created with the endpoint.
            if duties.iter().any(|duty| duty.endpoint == ground.endpoint)
                && let Some(endpoint) = endpoints.at(ground.endpoint)
            {
                ground.link = endpoint.add_link(now, maker.link_settings(segment)).map_err(|e| {
                    let what = format!(
                        "segment {}: {e}: configure fewer segments, workers or connections",
                        segment.name
                    );
                    self.places.at("segment.name", Some(index.0.into()), GatewayError::Unsupported(what))
                })?;
            }
            maker.install(now, segment, ground, &mut endpoints, &mut board, &mut duties)?;
        }
        board.flush();

        let storm = Arc::<SharedStorm>::default();
        let leases = Arc::new(Leases::new(now));
        let mut workers = Vec::new();
        for links in links.drain(..) {
            let tap = self.capture.as_mut().map(Capture::tap);
            workers.push(GatewayWorker::new(WorkerParts {
                links,
                ethernets: queues.iter_mut().filter_map(Iterator::next).collect(),
                tables: board.reader(),
                pool: self.pool.clone(),
                srq_low: self.config.infiniband.srq_alarm(),
                seed: random(),
                storm: Arc::clone(&storm),
                leases: Arc::clone(&leases),
                tap,
            }));
        }
        if let Some(path) = &self.config.gateway.control_socket {
            self.control.listen(path, self.privileges.access())?;
        }
        // Only now: if the start fails, files of an earlier capture stay, and those of a gateway that is
        // running.
        if let Some(capture) = &mut self.capture {
            capture.begin()?;
        }
        let recordings = self.recordings()?;
        let kept = self.kept(now)?;
        kept.restore(now, &mut duties);
        let own = WorkerCounters::default();
        let Some(times) = Times::new() else {
            return Err(GatewayError::Unsupported("the histograms' bounds are not possible".to_owned()));
        };
        let mut controller = GatewayControl {
            readers: workers.iter().map(|w| w.counters().reader()).collect(),
            storm,
            endpoints,
            board,
            gids,
            ethernets,
            pool: self.pool.clone(),
            own_reader: own.reader(),
            segment_readers: workers
                .iter()
                .map(|w| w.counters().segment_reader())
                .chain(std::iter::once(own.segment_reader()))
                .collect(),
            own,
            segments: duties,
            maker,
            reloader: Reloader::new(
                self.start.file.clone(),
                self.start.overrides.clone(),
                self.start.log.clone(),
                handles.clone(),
            ),
            service: Service::new(Instant::now()),
            events: Events::new(),
            chosen: Chosen::default(),
            recordings,
            kept,
            traces: Traces::new(),
            base: Base::new(now),
            times,
            stats_period: (self.config.gateway.stats_seconds > 0)
                .then(|| Duration::from_secs(self.config.gateway.stats_seconds.into())),
            stats_stream: Stream::stdout("lines of statistics"),
            schedule: Schedule::new(now),
            stalls: Stalls::default(),
            stopping: None,
            failure: None,
        };
        // Everything is open: ports, devices, sockets, files.
        if self.config.gateway.cores != config::Cores::Full
            && let Err(error) = self.eal.leave_out_of_cores()
        {
            tracing::warn!("packet buffers may be part of a core dump: {error}");
        }
        let drivers = controller.ethernets.iter().flat_map(|end| end.port.drivers());
        if drivers.clone().any(|driver| driver == "net_bonding") && !self.eal.wait_for_alarms(BOND_LOOK) {
            tracing::warn!(
                "EAL's interrupt thread does not run: a bond may not detect the links of its members"
            );
        }
        self.privileges.give_up(self.config, drivers.clone())?;
        let seccomp = self.config.gateway.seccomp;
        let filters = self.privileges.filter_calls(seccomp, drivers, self.eal, &self.lcores)?;
        let (captures, hosts) = filters.map(|filters| (filters.captures, filters.hosts)).unzip();
        controller.recordings.settle(captures)?;
        controller.kept.settle(hosts)?;
        let mut jobs = Vec::new();
        for ((worker, &lcore), handle) in workers.into_iter().zip(&self.lcores).zip(&handles) {
            let handle = Arc::clone(handle);
            jobs.push(self.eal.launch(lcore, move || run(worker, &handle))?);
        }
        let ethernets = controller.ethernets.iter().map(|end| &end.port);
        let ethernets: Vec<String> =
            ethernets.map(|port| format!("{} (wakes by {})", port.name(), port.woken_by().name())).collect();
        let infinibands: Vec<String> = controller.endpoints.iter_mut().map(|end| port_name(end)).collect();
        tracing::info!(
            "forwarding between {} and {} with {} worker(s)",
            ethernets.join(", "),
            infinibands.join(", "),
            jobs.len()
        );
        let served = self.control.run(&mut controller);
        // After the control loop has stopped for any reason, the workers exit, and all buffers are returned.
        for handle in &handles {
            handle.stop();
        }
        let mut queues: Vec<Vec<B::Queues>> = controller.endpoints.iter().map(|_| Vec::new()).collect();
        for job in jobs {
            let (of_ports, _ethernets, mut service) = job.join()?.into_parts();
            controller.times.add_service(&service.swap(dataplane::latency::empty()));
            for (queues, of_port) in queues.iter_mut().zip(of_ports) {
                queues.push(of_port);
            }
        }
        let report = controller.finish(queues);
        served?;
        report
    }

    fn endpoint_config(&self, maker: &SegmentMaker, first: &Segment, place: EndpointPlace) -> EndpointConfig {
        let ib = &self.config.infiniband;
        let workers = self.lcores.len() as u8;
        let share = self.config.connection_share(workers.into());
        EndpointConfig {
            place,
            port: PortNumber(first.port),
            workers,
            links: u16::try_from(self.config.segments.len()).unwrap_or(u16::MAX),
            sizes: WorkerSizes {
                ud_send_depth: ib.ud_send_depth,
                ud_recv_depth: ib.ud_receive_depth,
                srq_depth: ib.srq_depth,
                srq_limit: ib.srq_alarm(),
                send_buffers: self.config.segments_per_frame(),
                rc_send_depth: self.config.connection_send_depth(workers.into()),
                max_rc: u16::try_from(share.both()).unwrap_or(u16::MAX),
                signal_every: SIGNAL_EVERY,
                send_segments: ib.send_segments,
                long_messages: match ib.long_messages {
                    config::LongMessages::Copy => endpoint::LongMessages::Copy,
                    config::LongMessages::Key => endpoint::LongMessages::Key,
                },
            },
            link: maker.link_settings(first),
        }
    }
}
