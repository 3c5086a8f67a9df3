//! From a command line to a running gateway, and back.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{CommandLine, Config, Overrides, Segment};
use connectx::cable::{CableEnd, CableError, CableUrl, CableUrlError};
use dataplane::capture::{Capture, CaptureError};
use dataplane::control::{ControlError, ControlLoop};
use dataplane::worker::{Handle, run};
use ib_wire::{Guid, Mtu};
use pmd::eal::{Eal, EalError, LcoreId};
use pmd::eth::{EthConfig, EthError, EthPort, EthQueue};
use pmd::hca::{Backend, HcaError, PortNumber};
use pmd::mem::{Pool, PoolConfig, PoolError};
use pmd::soft::{SoftConfig, SoftHca};
use pmd::verbs::{Mlx5Hca, VerbsHca};
use serde_json::{Value, json};
use tap::Tap;

use super::board::GatewayBoard;
use super::control::duties::Duties;
use super::control::reload::{Reloader, policy};
use super::control::{GatewayControl, Schedule};
use super::gids::GatewayGids;
use super::report::Times;
use super::segment_parts::{Ground, SegmentMaker};
use super::worker::GatewayWorker;
use crate::counter::{Totals, WorkerCounters};
use crate::forward::SegmentIndex;
use crate::log::Log;
use endpoint::{Endpoint, EndpointConfig, EndpointError, WorkerSizes};
use ipoib::link::LinkIndex;
use ipoib::net::ethernet::MacAddress;

/// One signalled send in this many: completions are reaped in batches.
const SIGNAL_EVERY: u32 = 16;

/// Why the gateway did not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The command line or the file.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// EAL.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// Packet buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The Ethernet port.
    #[error(transparent)]
    Ethernet(#[from] EthError),
    /// The host channel adapter.
    #[error(transparent)]
    Hca(#[from] HcaError),
    /// The endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The URL of a link of the software ConnectX.
    #[error("infiniband.soft.ports: {0}")]
    CableUrl(#[from] CableUrlError),
    /// A link of the software ConnectX.
    #[error("infiniband.soft.ports: {0}")]
    Link(#[from] CableError),
    /// The copy of the device's GID table.
    #[error("gateway.gids: {0}")]
    Gids(#[from] pmd::gids::MirrorError),
    /// The control loop.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// No lcore is left to forward packets.
    #[error(
        "lcore {0} controls and none is left to forward packets: name at least two lcores, for instance -l 0-1"
    )]
    NoWorker(LcoreId),
    /// Something that this version cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// The report could not be written.
    #[error("cannot write the report {path}")]
    Report {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

/// What the gateway is started with.
#[derive(Debug)]
pub struct Start {
    /// The command line, split.
    pub line: CommandLine,
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// What the command line says instead of the file.
    pub overrides: Overrides,
    /// Capture file.
    pub capture: Option<PathBuf>,
    /// The log, whose level the configuration has.
    pub log: Log,
}

/// What was counted, at the end.
#[derive(Debug)]
pub struct Report {
    totals: Totals,
    times: Value,
    buffers_outstanding: u32,
    memory: Value,
    srq_low: u64,
    failure: Option<HcaError>,
}

impl Report {
    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        super::super::ctl::render(&self.json())
    }

    /// What ended the gateway, if it was not asked to end.
    #[must_use]
    pub const fn failure(&self) -> Option<&HcaError> {
        self.failure.as_ref()
    }

    fn json(&self) -> Value {
        json!({
            "traffic": self.totals.traffic_json(),
            "drops": self.totals.drops_json(),
            "alarms": {"srq_low": self.srq_low},
            "times": self.times,
            "memory": self.memory,
            "buffers_outstanding": self.buffers_outstanding,
        })
    }

    /// For a program.
    pub fn write(&self, file: &Path) -> Result<(), GatewayError> {
        std::fs::write(file, format!("{:#}\n", self.json()))
            .map_err(|source| GatewayError::Report { path: file.to_owned(), source })
    }
}

impl Start {
    /// Runs the gateway until it is asked to stop, or its device is gone.
    pub fn run(self) -> Result<Report, GatewayError> {
        // Devices take their time: who asks for the configuration meanwhile is answered later.
        let control = ControlLoop::new()?;
        // Everything that can be wrong without a device is found before EAL starts.
        let config = match &self.file {
            Some(file) => Config::load(file, &self.overrides)?,
            None => Config::from_overrides(&self.overrides),
        };
        self.log.set(config.gateway.log);
        // More are refused below, unless EAL knows better that there are no such CPUs.
        if let Some(workers) = self.line.eal.roles()?.and_then(|roles| u8::try_from(roles.workers.len()).ok())
        {
            config.check(workers.into())?;
        }
        let segment = first_segment(&config)?;
        let device = Device::choose(&config, segment)?;
        for warning in self.line.eal.warnings() {
            tracing::warn!("{warning}");
        }
        let mut capture = self.capture.as_deref().map(Capture::create).transpose()?;

        let arguments = std::iter::once(self.line.program.clone()).chain(self.line.eal.arguments.clone());
        let eal = Eal::init(arguments)?;
        let lcores = eal.worker_lcores();
        if lcores.is_empty() {
            return Err(GatewayError::NoWorker(eal.main_lcore()));
        }
        let workers = u8::try_from(lcores.len())
            .map_err(|_| GatewayError::Unsupported("at most 255 worker lcores are supported".to_owned()))?;
        config.check(workers.into())?;
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
        let (port, queues) = EthPort::start(segment.ethernet.as_deref(), &ethernet, &pool)?;
        let soft = match &device {
            Device::Soft(soft) => Some(soft.open(&config, capture.as_mut())?),
            Device::Verbs(_) | Device::Mlx5(_) => None,
        };
        let running = Running {
            control,
            start: &self,
            config: &config,
            segment,
            eal: &eal,
            lcores,
            pool: pool.clone(),
            port,
            queues,
            capture,
        };
        let mut report = match (soft, device) {
            (Some(hca), _) => running.run(hca)?,
            (None, Device::Verbs(hca)) => running.run(*hca)?,
            (None, Device::Mlx5(hca)) => running.run(*hca)?,
            (None, Device::Soft(_)) => return Err(no_device()),
        };
        report.buffers_outstanding = pool.in_use();
        Ok(report)
    }
}

/// The segment whose Ethernet port, device and port all have: this version drives one of each.
fn first_segment(config: &Config) -> Result<&Segment, GatewayError> {
    let refused = |other: &Segment, what: &str| {
        Err(GatewayError::Unsupported(format!(
            "segment {}: this version drives one {what}: give all segments the same one, or run a gateway for each",
            other.name
        )))
    };
    let Some(first) = config.segments.first() else {
        return Err(GatewayError::Unsupported("there is no segment: add a [[segment]]".to_owned()));
    };
    for other in &config.segments {
        if other.ethernet != first.ethernet {
            return refused(other, "Ethernet port");
        }
        if (&other.device, other.port) != (&first.device, first.port) {
            return refused(other, "InfiniBand port");
        }
    }
    Ok(first)
}

/// What the software ConnectX is made from.
#[derive(Debug)]
struct SoftParts {
    config: SoftConfig,
    links: Vec<CableUrl>,
}

/// A number that nobody can know.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

fn no_device() -> GatewayError {
    GatewayError::Unsupported(
        "no InfiniBand device: add [infiniband.soft] with ports = [{ link = \"shm:/run/ibfab.sock\" }] and start \
         ibfab, or load the driver of a host channel adapter (modprobe mlx5_ib ib_uverbs ib_umad)"
            .to_owned(),
    )
}

/// What drives the InfiniBand port, as far as it is there before EAL starts.
#[derive(Debug)]
enum Device {
    /// The software ConnectX.
    Soft(SoftParts),
    /// A device of the machine, open, by the library's calls.
    Verbs(Box<VerbsHca>),
    /// A ConnectX of the machine, open, by its rings.
    Mlx5(Box<Mlx5Hca>),
}

impl Device {
    fn choose(config: &Config, segment: &Segment) -> Result<Self, GatewayError> {
        use config::Driver;
        let ib = &config.infiniband;
        let (name, port) = (segment.device.as_deref(), PortNumber(segment.port));
        let driver = match ib.driver {
            Driver::Auto if ib.is_soft() => Driver::Soft,
            Driver::Auto if pmd::verbs::devices()?.is_empty() => return Err(no_device()),
            Driver::Auto if pmd::verbs::find(name, port)?.is_mlx5 => Driver::Mlx5,
            Driver::Auto => Driver::Verbs,
            chosen => chosen,
        };
        match driver {
            Driver::Soft => Ok(Self::Soft(soft_parts(config, segment)?)),
            Driver::Mlx5 => Ok(Self::Mlx5(Box::new(Mlx5Hca::open(name, port)?))),
            Driver::Auto | Driver::Verbs => Ok(Self::Verbs(Box::new(VerbsHca::open(name, port)?))),
        }
    }
}

fn soft_parts(config: &Config, segment: &Segment) -> Result<SoftParts, GatewayError> {
    let Some(soft) = config.infiniband.soft_device(segment.device.as_deref()) else {
        return Err(no_device());
    };
    let seed = soft.seed.unwrap_or_else(random);
    // Locally administered, so that it meets no real one.
    let node = soft.node_guid.map_or(0x0200_0000_0000_0000 | (seed & 0x00ff_ffff_ffff_ff00), |g| g.0);
    let guid_of = |(i, p): (usize, &config::SoftPort)| Guid(p.guid.map_or(node + 1 + i as u64, |g| g.0));
    let mtu = soft.ports.iter().map(|p| p.mtu).max().unwrap_or(4096);
    let max_mtu = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
        .into_iter()
        .find(|m| m.bytes() == usize::from(mtu))
        .unwrap_or(Mtu::B4096);
    let links = soft.ports.iter().map(|p| p.link.parse()).collect::<Result<Vec<CableUrl>, _>>()?;
    Ok(SoftParts {
        config: SoftConfig {
            name: soft.name.clone(),
            node_guid: Guid(node),
            port_guids: soft.ports.iter().enumerate().map(guid_of).collect(),
            max_mtu,
            gid_table: soft.gid_table,
            seed,
        },
        links,
    })
}

impl SoftParts {
    fn open(&self, _config: &Config, mut capture: Option<&mut Capture>) -> Result<SoftHca, GatewayError> {
        let mut hca = SoftHca::new(&self.config)?;
        for (index, url) in self.links.iter().enumerate() {
            let mut link = CableEnd::connect(url)?;
            link.set_tap(capture.as_mut().map(|c| c.tap()));
            hca.set_cable(PortNumber(index as u8 + 1), Some(link))?;
        }
        Ok(hca)
    }
}

/// Everything that a gateway runs on, whatever its device.
struct Running<'a> {
    start: &'a Start,
    control: ControlLoop,
    config: &'a Config,
    segment: &'a Segment,
    eal: &'a Eal,
    lcores: Vec<LcoreId>,
    pool: Pool,
    port: EthPort,
    queues: Vec<EthQueue>,
    capture: Option<Capture>,
}

impl Running<'_> {
    fn run<B: Backend>(mut self, hca: B) -> Result<Report, GatewayError> {
        let now = Instant::now();
        let handles: Vec<Arc<Handle>> = self.lcores.iter().map(|_| Handle::new()).collect();
        for handle in &handles {
            handle.set_idle(policy(self.config.gateway.idle));
        }
        let maker = SegmentMaker {
            config: self.config.clone(),
            workers: self.lcores.len() as u8,
            instance: random(),
        };
        let (mut endpoint, link_workers) =
            Endpoint::new(hca, self.endpoint_config(&maker), &self.pool, &handles, now)?;
        let gids = GatewayGids::new(endpoint.hca(), self.config.gateway.gids.as_deref(), random(), now)?;
        let mac = MacAddress(self.port.mac());
        let port = endpoint.port();
        let guid = endpoint.hca().port(port).map_or(endpoint.hca().device().node_guid, |p| p.guid);
        let (mut board, mut duties) = (GatewayBoard::new(maker.workers), Duties::default());
        for (segment, index) in self.config.segments.iter().zip((0..).map(SegmentIndex)) {
            let link = match index {
                // The first link came with the endpoint.
                SegmentIndex(0) => LinkIndex(0),
                _ => endpoint.add_link(now, maker.link_settings(segment)).map_err(|e| {
                    GatewayError::Unsupported(format!(
                        "segment {}: {e}: configure fewer segments, workers or connections",
                        segment.name
                    ))
                })?,
            };
            let ground = Ground { index, link, mac, guid };
            maker.install(now, segment, ground, &mut endpoint, &mut board, &mut duties)?;
        }
        board.flush();

        let mut workers = Vec::new();
        for (link, eth) in link_workers.into_iter().zip(self.queues.drain(..)) {
            let tap: Option<Tap> = self.capture.as_mut().map(Capture::tap);
            let low = self.config.infiniband.srq_alarm();
            workers.push(GatewayWorker::new(
                link,
                eth,
                board.reader(),
                self.pool.clone(),
                low,
                random(),
                tap,
            ));
        }
        let own = WorkerCounters::default();
        let Some(times) = Times::new() else {
            return Err(GatewayError::Unsupported("the histograms' bounds are not possible".to_owned()));
        };
        let mut controller = GatewayControl {
            readers: workers.iter().map(|w| w.counters().reader()).collect(),
            receivers: workers.iter().map(GatewayWorker::receivers).collect(),
            endpoint,
            board,
            gids,
            port: self.port,
            pool: self.pool.clone(),
            mac,
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
            times,
            capture: self.capture,
            stats_period: (self.config.gateway.stats_seconds > 0)
                .then(|| Duration::from_secs(self.config.gateway.stats_seconds.into())),
            schedule: Schedule::new(now),
            stopping: None,
            failure: None,
        };
        let mut jobs = Vec::new();
        for ((worker, &lcore), handle) in workers.into_iter().zip(&self.lcores).zip(&handles) {
            let handle = Arc::clone(handle);
            jobs.push(self.eal.launch(lcore, move || run(worker, &handle))?);
        }
        tracing::info!(
            "forwarding between {} and {} with {} worker(s)",
            controller.port.name(),
            controller.endpoint.hca().device().name,
            jobs.len()
        );
        let served = self.control.run(&mut controller, self.config.gateway.control_socket.as_deref());
        // Whatever ended the control loop, the workers end and every buffer goes home.
        for handle in &handles {
            handle.stop();
        }
        let mut queues = Vec::new();
        for job in jobs {
            let (queue, _ethernet, mut service) = job.join()?.into_parts();
            controller.times.add_service(&service.swap(dataplane::latency::empty()));
            queues.push(queue);
        }
        let report = controller.finish(queues);
        served?;
        report
    }

    fn endpoint_config(&self, maker: &SegmentMaker) -> EndpointConfig {
        let ib = &self.config.infiniband;
        let workers = self.lcores.len() as u8;
        let share = self.config.connection_share(workers.into());
        EndpointConfig {
            port: PortNumber(self.segment.port),
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
            },
            link: maker.link_settings(self.segment),
        }
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Gives everything back and sums up.
    fn finish(mut self, queues: Vec<B::Queues>) -> Result<Report, GatewayError> {
        if let Some(capture) = &mut self.capture {
            while capture.drain()? > 0 {}
        }
        let report = Report {
            totals: self.totals(),
            times: self.times.json(),
            buffers_outstanding: 0,
            memory: memory(),
            srq_low: self.endpoint.srq_low(),
            failure: self.failure,
        };
        drop(self.port);
        drop(self.endpoint.close(queues)?);
        Ok(report)
    }
}

/// What the process occupies, in KiB.
fn memory() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').trim().split(' ').next()?.parse::<u64>().ok()
    };
    json!({"resident_kib": kib("VmRSS"), "hugetlb_kib": kib("HugetlbPages")})
}
