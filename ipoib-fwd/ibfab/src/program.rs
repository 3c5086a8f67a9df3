//! The whole program: fabric and hosts on one thread, by turns.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use connectx::DEFAULT_GIDS;
use connectx::cable::{CableEnd, CableError};
use dataplane::capture::{Bounds, Capture, CaptureError};
use ib_wire::Guid;
use logging::Log;
use pmd::eal::{Eal, EalError};
use pmd::hca::{HcaError, PortNumber};
use pmd::mem::{Pool, PoolConfig, PoolError};
use pmd::soft::{SoftConfig, SoftHca};

use crate::check;
use crate::config::{ConfigError, FabricConfig, HostConfig, LinkConfig};
use crate::fabric::{Fabric, Management, TrunkError};
use crate::host::{BUFFERS, Host, HostError};
use crate::nap::Naps;
use crate::report;
use crate::service::Service;
use crate::switch::NoSuchPort;

/// Time between two reads of the capture.
const DRAIN: Duration = Duration::from_millis(20);
/// Time that hosts have to close their connections.
const FAREWELL: Duration = Duration::from_secs(2);
/// Megabytes of EAL memory in addition to the hosts' buffers.
const BASE_MEMORY: usize = 64;
/// Bytes of a buffer with its headroom and metadata: with ordinary pages it takes two.
const BUFFER_BYTES: usize = 8192;

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// EAL's arguments.
    #[error("command line: {what}; write EAL's arguments before `--` and the options of ibfab after it")]
    Arguments {
        /// The problem.
        what: String,
    },
    /// EAL.
    #[error("cannot start EAL")]
    Eal(#[from] EalError),
    /// Buffers.
    #[error("no buffers for host {name}")]
    Pool {
        /// The host.
        name: String,
        /// The cause.
        #[source]
        source: PoolError,
    },
    /// An external link.
    #[error("link {name} ({url})")]
    Link {
        /// Its name.
        name: String,
        /// Its address.
        url: String,
        /// The cause.
        #[source]
        source: CableError,
    },
    /// A pair of link ends within the process.
    #[error("no memory for the link of host {name}")]
    Pair {
        /// The host.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A port that is not there.
    #[error(transparent)]
    Port(#[from] NoSuchPort),
    /// A cable between switches.
    #[error(transparent)]
    Trunk(#[from] TrunkError),
    /// A host's channel adapter.
    #[error("the channel adapter of host {name}")]
    Hca {
        /// The host.
        name: String,
        /// The cause.
        #[source]
        source: HcaError,
    },
    /// A host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Signal handlers.
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
}

/// Settings of the command line in addition to the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// EAL's arguments without the program's name; empty for our own choice.
    pub eal: Vec<String>,
    /// File of the capture.
    pub capture: Option<PathBuf>,
    /// Limits of its size on disk.
    pub capture_bounds: Bounds,
    /// The configuration file, which SIGHUP reads again.
    pub config: Option<PathBuf>,
    /// Seconds between two reports.
    pub stats: Option<u32>,
    /// The subnet manager.
    pub management: Management,
    /// The process's log, which the configuration controls.
    pub log: Option<Log>,
}

/// Buffers of each pool that the fabric's thread caches: a few messages of the largest size.
const CACHE: u16 = 128;

/// The running fabric with its hosts.
#[derive(Debug)]
pub struct Program {
    fabric: Fabric,
    hosts: Vec<Host<SoftHca>>,
    /// The hosts' buffers, to check that all are returned.
    pools: Vec<Pool>,
    capture: Option<Capture>,
    stats: Option<Duration>,
    management: Management,
    log: Option<Log>,
    config: FabricConfig,
    /// The file that SIGHUP reads again.
    file: Option<PathBuf>,
    /// Dropped last, since buffers are in its memory.
    _eal: Option<Eal>,
}

/// Returns EAL's arguments if the user sets none: no hugepages, no devices, no files, and one lcore that
/// floats over all CPUs in our affinity mask.
fn default_eal(hosts: usize) -> Vec<String> {
    let cpus = rustix::thread::sched_getaffinity(None).map_or_else(
        |_| vec!["0".to_owned()],
        |set| {
            let all = 0..rustix::thread::CpuSet::MAX_CPU;
            all.filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu.to_string()).collect()
        },
    );
    let megabytes = BASE_MEMORY + hosts * BUFFERS as usize * BUFFER_BYTES / (1 << 20);
    let lcores = format!("--lcores=0@({})", cpus.join(","));
    let memory = megabytes.to_string();
    ["--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", &memory, &lcores]
        .map(str::to_owned)
        .into()
}

impl Program {
    /// Creates everything; no packet moves yet.
    pub fn start(config: &FabricConfig, options: Options) -> Result<Self, ProgramError> {
        let now = Instant::now();
        if let Some(log) = &options.log {
            log.set(config.log, &config.log_filter);
        }
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), "seed");
        let bounds = options.capture_bounds;
        let capture = options.capture.as_deref().map(|path| Capture::prepare(path, bounds));
        let mut capture = capture.transpose()?;
        let mut fabric = Fabric::new(now, config, seed, options.management);
        for link in &config.links {
            let mut end = listen(link)?;
            end.set_tap(capture.as_mut().map(Capture::tap));
            fabric.plug(link.place, &link.name, end)?;
        }
        fabric.set_trunks(&config.trunks, || capture.as_mut().map(Capture::tap))?;
        warn(&check::warnings(config, options.management));
        // A fabric without hosts needs no buffers.
        let eal = match config.hosts.len() {
            0 => None,
            n => {
                let arguments = if options.eal.is_empty() { default_eal(n) } else { options.eal };
                Some(Eal::init(std::iter::once("ibfab".to_owned()).chain(arguments))?)
            }
        };
        let mut hosts = Vec::new();
        let mut pools = Vec::new();
        for (host, number) in config.hosts.iter().zip(1u64..) {
            let (mut near, far) =
                CableEnd::pair().map_err(|source| ProgramError::Pair { name: host.name.clone(), source })?;
            near.set_tap(capture.as_mut().map(Capture::tap));
            fabric.plug(host.place, &host.name, near)?;
            let pool = Pool::create(
                &format!("host{number}"),
                &PoolConfig { count: BUFFERS, data_room: 4096, cache: CACHE, socket: -1 },
            )
            .map_err(|source| ProgramError::Pool { name: host.name.clone(), source })?;
            let hca = adapter(config, host, far, seed.wrapping_add(number))
                .map_err(|source| ProgramError::Hca { name: host.name.clone(), source })?;
            hosts.push(Host::new(host, hca, &pool, seed.rotate_left(32).wrapping_add(number), now)?);
            pools.push(pool);
        }
        // Only now: a start that fails must not remove the files of an earlier capture.
        if let Some(capture) = &mut capture {
            capture.begin()?;
        }
        let stats = options.stats.map(|s| Duration::from_secs(s.into()));
        let config = config.clone();
        let (management, log, file) = (options.management, options.log, options.config);
        Ok(Self { fabric, hosts, pools, capture, stats, management, log, config, file, _eal: eal })
    }

    /// Runs until `stop` is set, then shuts down cleanly. When `reload` is set, the configuration is read
    /// again.
    pub fn run(mut self, stop: &AtomicBool, reload: &AtomicBool) -> Result<(), ProgramError> {
        let ports: usize = self.fabric.switches().map(|switch| switch.ports().count()).sum();
        let switches = self.fabric.switches().count();
        tracing::info!(switches, ports, hosts = self.hosts.len(), "fabric runs");
        let mut naps = Naps::default();
        let mut now = Instant::now();
        let mut service = Service::new(now);
        let (mut next_drain, mut next_stats) = (now, self.stats.map(|every| now + every));
        let mut farewell = None;
        loop {
            now = Instant::now();
            let busy = self.turn(now);
            if now >= next_drain {
                next_drain = now + DRAIN;
                self.drain();
            }
            if let (Some(at), Some(every)) = (next_stats, self.stats)
                && now >= at
            {
                next_stats = Some(now + every);
                self.print();
            }
            service.notify(now, &mut self.hosts);
            if reload.swap(false, Ordering::Relaxed) {
                service.reloading();
                self.reload(now);
            }
            if farewell.is_none() && stop.load(Ordering::Relaxed) {
                service.stopping();
                farewell = Some(now + FAREWELL);
                self.hosts.iter_mut().for_each(|host| host.shutdown(now));
            }
            if farewell.is_some_and(|until| now >= until || self.hosts.iter_mut().all(Host::is_stopped)) {
                break;
            }
            let interfaces = self.hosts.iter().filter_map(Host::waker);
            if naps.after(busy, interfaces.chain(self.fabric.wakers())) {
                self.fabric.rest();
            }
        }
        self.print();
        self.end().map(|_| ())
    }

    /// Runs one iteration over the fabric and its hosts; true if there was any work.
    pub fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.fabric.step(now);
        for host in &mut self.hosts {
            busy |= host.turn(now);
        }
        // Packets that the hosts sent need not wait for the next iteration.
        busy |= self.fabric.step(now);
        busy
    }

    /// Reads the configuration again and applies the changes that are possible in use; all of them or none.
    fn reload(&mut self, now: Instant) {
        let Some(file) = &self.file else { return };
        match FabricConfig::load(file) {
            Ok(config) => self.follow(now, config),
            Err(error) => tracing::error!("the configuration stays as it was: {error}"),
        }
    }

    /// Applies another configuration: the subnet's prefix, partitions, trunks plugged in and out.
    pub fn follow(&mut self, now: Instant, config: FabricConfig) {
        if let Some(what) = config.fixed_difference(&self.config) {
            tracing::error!("the configuration stays as it was: {what} changed; restart ibfab to apply it");
            return;
        }
        let capture = &mut self.capture;
        if let Err(error) = self.fabric.set_trunks(&config.trunks, || capture.as_mut().map(Capture::tap)) {
            tracing::error!("the configuration stays as it was: {error}");
            return;
        }
        if let Some(log) = &self.log {
            log.set(config.log, &config.log_filter);
        }
        self.fabric.set_prefix(now, config.prefix);
        self.fabric.set_hop_limit(config.hop_limit);
        self.fabric.set_partitions(now, config.effective_partitions());
        warn(&check::warnings(&config, self.management));
        let (prefix, partitions) = (format!("{:#018x}", config.prefix), config.effective_partitions().len());
        tracing::info!(prefix, partitions, "configuration read again");
        self.config = config;
    }

    /// Returns the hosts, in the order of the configuration.
    pub fn hosts(&mut self) -> &mut [Host<SoftHca>] {
        &mut self.hosts
    }

    /// Returns the fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Writes captured packets. A capture that fails ends; the fabric continues.
    fn drain(&mut self) {
        let Some(Err(error)) = self.capture.as_mut().map(Capture::drain) else { return };
        if let Some(capture) = self.capture.take() {
            let progress = capture.progress();
            capture.leave_rest();
            let [written, _, missed] = progress.counts();
            tracing::error!(
                "the capture is over, {written} packets written, {missed} missed: {error}: {}; restart ibfab to capture again",
                error.source
            );
        }
    }

    fn print(&mut self) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = report::write(&mut text, &self.fabric, &mut self.hosts);
        print!("{text}");
    }

    /// Destroys everything. Returns the number of buffers that were not returned, which should be 0.
    pub fn end(mut self) -> Result<u32, ProgramError> {
        for host in self.hosts.drain(..) {
            drop(host.close()?);
        }
        let lost = self.pools.iter().map(Pool::in_use).sum();
        if lost > 0 {
            tracing::warn!(buffers = lost, "buffers were not returned");
        }
        if let Some(mut capture) = self.capture.take() {
            while capture.drain()? > 0 {}
            println!("captured {} packets, missed {}", capture.written(), capture.dropped());
        }
        Ok(lost)
    }
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn listen(link: &LinkConfig) -> Result<CableEnd, ProgramError> {
    CableEnd::listen(&link.url).map_err(|source| ProgramError::Link {
        name: link.name.clone(),
        url: link.url.to_string(),
        source,
    })
}

/// Creates a software channel adapter at the far end of a link.
fn adapter(config: &FabricConfig, host: &HostConfig, link: CableEnd, seed: u64) -> Result<SoftHca, HcaError> {
    let mut hca = SoftHca::new(&SoftConfig {
        name: host.name.clone(),
        node_guid: host.guid,
        port_guids: vec![Guid(host.guid.0 + 1)],
        max_mtu: config.mtu,
        gid_table: DEFAULT_GIDS,
        seed,
    })?;
    if host.grh_required {
        hca.require_grh(PortNumber(1))?;
    }
    hca.set_cable(PortNumber(1), Some(link))?;
    Ok(hca)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tap::{FrameKind, TapDirection};

    use super::*;

    #[test]
    fn a_capture_that_fails_ends_and_the_fabric_does_not() {
        let folder = std::env::temp_dir().join(format!("ibfab-capture-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("c");
        let text = "[[switch]]\nname = \"s\"\nports = 8";
        let config = FabricConfig::parse(Path::new("t.toml"), text).unwrap();
        let bounds = Bounds { files: 1, size: Bounds::LEAST_SIZE };
        let options =
            || Options { capture: Some(path.clone()), capture_bounds: bounds, ..Options::default() };
        let mut program = Program::start(&config, options()).unwrap();
        // A second capture cannot use its files.
        assert!(matches!(Program::start(&config, options()), Err(ProgramError::Capture(_))));
        let mut tap = program.capture.as_mut().map(Capture::tap).unwrap();
        program.drain();
        assert!(program.capture.is_some());
        // The oldest file cannot be removed, so that nothing would limit the disk space in use.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        (0..100).for_each(|_| tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 2000]));
        // On a busy machine, one iteration may not suffice.
        (0..100).for_each(|_| program.drain());
        assert!(program.capture.is_none());
        // The ports that offer it packets continue, too.
        tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 2000]);
        program.turn(Instant::now());
        program.drain();
        let again = FabricConfig { prefix: config.prefix + 1, ..config };
        program.follow(Instant::now(), again);
        assert_eq!(program.end().unwrap(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
