//! `ipoib-fwd gids --serve`: shares the GID tables of all devices of this host with any number of processes.
//!
//! One thread waits for all events:
//!
//! * of devices whose tables the kernel maintains (`devices`);
//! * of interfaces and their addresses, from which the tables of software RoCE ports follow (`interfaces`);
//! * of devices that are added or removed.
//!
//! Once a second the service confirms the tables that contain all known changes.

mod devices;
mod interfaces;

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use dataplane::service::{ServiceManager, Watchdog};
use gidcache::Difference;
use gidcache::netlink::{Audience, Monitor, MonitorError, Notice, Plugs, Turn};
use gidcache::rules::Event;
use pmd::gids::{DEFAULT_DIRECTORY, Directory, DirectoryError, MirrorError};
use pmd::shm::monotonic_nanoseconds;
use pmd::verbs::interface_name;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::devices::{Devices, Kernel, Renamed};
use self::interfaces::Interfaces;
use super::Row;

/// Iterations of the interfaces' monitor in one of the service: an event storm leaves time for the devices.
const TURNS: u32 = 16;
/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Maximum number of changes of a table that are logged one by one at a time.
const LOGGED: usize = 16;

/// Options of the service.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// Serve the tables of all RDMA devices of this host in shared memory, including devices added later, for
    /// `ipoib-fwd gids --from` and any number of processes that look GIDs up. Changes are logged. Stop it
    /// with SIGTERM or Ctrl-C. Readers stay attached when the service exits, can detect that, and continue
    /// when it is started again. A served device is in use: some drivers cannot be unloaded until it is
    /// released.
    #[arg(long, conflicts_with_all = ["json", "watch", "device", "socket", "shared", "from"])]
    pub serve: bool,
    /// With --serve: also serve the table of a software RoCE port on this interface, under the name
    /// roce:INTERFACE. The interface need not exist yet. The entries follow from the addresses of the
    /// interface and of interfaces on top of it, by the kernel's rules. May be given 32 times.
    #[arg(long, value_name = "INTERFACE", requires = "serve")]
    pub roce: Vec<String>,
    /// With --serve: directory of the tables, writable only for the service; the default is /run/ipoib-gids.
    /// The service creates it, but not its parent directory.
    #[arg(long, value_name = "DIR", requires = "serve")]
    pub dir: Option<PathBuf>,
}

/// Why the service cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The directory was removed: readers find nothing.
    #[error("{} was removed while its tables were served: restart the service, which creates it again", .0.display())]
    Removed(PathBuf),
    /// A device was renamed.
    #[error(transparent)]
    Renamed(#[from] Renamed),
    /// The table of an interface cannot be created.
    #[error("the table of {name}")]
    Table {
        /// Its name.
        name: String,
        /// The error.
        #[source]
        source: MirrorError,
    },
    /// The kernel reports nothing about interfaces or devices.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// The name is not valid for an interface.
    #[error("{0:?} is not a valid interface name: --roce takes a name such as eth1")]
    Interface(String),
    /// The interface is given twice.
    #[error("--roce {0} is given twice: give it once")]
    Twice(String),
    /// Too many interfaces.
    #[error("--roce is given {0} times, but at most {MOST} are possible: start a second service for the others, with --dir", MOST = interfaces::MAX_INTERFACES)]
    TooMany(usize),
    /// Waiting for events or signals failed.
    #[error("cannot {what}: {source}")]
    Call {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Serves tables until SIGTERM or SIGINT.
pub fn run(options: &ServeOptions) -> Result<(), ServeError> {
    let stop = Stop::new().map_err(|source| ServeError::Call { what: "wait for signals", source })?;
    let directory = options.dir.as_deref().unwrap_or(Path::new(DEFAULT_DIRECTORY));
    let now = Instant::now();
    let directory = Directory::serve(directory)?;
    let mut service = Service::new(directory, &options.roce, now)?;
    let mut manager = ServiceManager::of_environment().unwrap_or_else(|error| {
        tracing::warn!("cannot notify the service manager: {error}");
        None
    });
    let mut watchdog = manager.as_ref().and_then(|manager| Watchdog::new(manager, now));
    let (mut has_begun, mut is_notified) = (false, false);
    loop {
        let now = Instant::now();
        service.turn(now)?;
        if !has_begun && service.is_settled {
            has_begun = true;
            service.begin()?;
        }
        if let Some(manager) = manager.as_ref().filter(|_| has_begun && !is_notified) {
            // Notify a service manager again that did not take the message.
            is_notified = manager.ready();
        }
        if let Some(manager) = &mut manager {
            manager.status(&service.status());
            if let Some(watchdog) = &mut watchdog {
                watchdog.turned(now, manager);
            }
        }
        if stop.is_due() {
            break;
        }
        service.wait(&stop).map_err(|source| ServeError::Call { what: "wait for events", source })?;
    }
    if let Some(manager) = &manager {
        manager.stopping();
    }
    service.end();
    Ok(())
}

/// Signals that stop the service, as a descriptor that becomes readable.
#[derive(Debug)]
struct Stop(UnixStream);

impl Stop {
    fn new() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, theirs.try_clone()?)?;
        }
        Ok(Self(ours))
    }

    fn is_due(&self) -> bool {
        (&self.0).read(&mut [0]).is_ok_and(|bytes| bytes > 0)
    }
}

/// The state of the service.
#[derive(Debug)]
struct Service {
    directory: Directory,
    devices: Devices<Kernel>,
    interfaces: Interfaces,
    monitor: Monitor,
    /// `None` if the kernel does not report it: devices are enumerated nevertheless.
    plugs: Option<Plugs>,
    heartbeat: Instant,
    /// Start time of the last iteration (CLOCK_MONOTONIC): the tables contain everything that happened
    /// before.
    begun: u64,
    /// True if the interfaces' tables were up to date in the last iteration.
    is_settled: bool,
}

/// Receives the interfaces' events: for the tables that follow from them, and for VLAN numbers, which must be
/// read again.
struct Hall<'a> {
    interfaces: &'a mut Interfaces,
    links: bool,
}

impl Audience for Hall<'_> {
    fn hear(&mut self, notice: &Notice) {
        self.links |= matches!(notice, Notice::Event(Event::Interface(_) | Event::InterfaceGone(_)));
        self.interfaces.hear(notice);
    }
}

impl Service {
    fn new(directory: Directory, roce: &[String], now: Instant) -> Result<Self, ServeError> {
        let interfaces = Interfaces::new(&directory, roce)?;
        let plugs = Plugs::new().map_err(|error| tracing::warn!("new devices are detected late: {error}"));
        let (devices, monitor) = (Devices::new(Kernel, now), Monitor::new(now)?);
        Ok(Self {
            directory,
            devices,
            interfaces,
            monitor,
            plugs: plugs.ok(),
            heartbeat: now,
            begun: 0,
            is_settled: false,
        })
    }

    /// Handles all pending events. It waits for nothing but the devices' answers.
    fn turn(&mut self, now: Instant) -> Result<(), ServeError> {
        // Tables are confirmed as of this time: they may lack changes that happen while they are written.
        self.begun = monotonic_nanoseconds();
        let Self { directory, devices, interfaces, monitor, plugs, heartbeat, begun, is_settled } = self;
        let plugged = plugs.as_mut().map(Plugs::take).transpose()?.unwrap_or(false);
        let mut hall = Hall { interfaces, links: false };
        let mut left = Turn::More;
        for _ in 0..TURNS {
            left = monitor.turn(now, &mut hall)?;
            if left == Turn::Idle {
                break;
            }
        }
        let links = hall.links;
        // Until the list is complete, entries that must be removed are unknown.
        *is_settled = left == Turn::Idle && monitor.is_settled();
        if *is_settled {
            interfaces.apply();
        }
        devices.turn(directory, now, plugged, links)?;
        if now >= *heartbeat {
            *heartbeat = now + HEARTBEAT;
            if !directory.is_in_place() {
                return Err(ServeError::Removed(directory.path().to_owned()));
            }
            devices.beat(*begun);
            if *is_settled {
                interfaces.beat(*begun);
            }
        }
        Ok(())
    }

    /// Finishes the start when all tables exist: removes tables that an earlier service has left.
    fn begin(&self) -> Result<(), ServeError> {
        let swept = self.directory.sweep(|name| self.devices.has(name) || self.interfaces.has(name))?;
        if swept > 0 {
            tracing::info!("removed {swept} tables of devices that no longer exist");
        }
        self.devices.beat(self.begun);
        self.interfaces.beat(self.begun);
        tracing::info!("{} in {}", self.status(), self.directory.path().display());
        Ok(())
    }

    /// Reports to readers immediately that the tables have no maintainer. The tables remain for the next
    /// service.
    fn end(&self) {
        self.devices.beat(0);
        self.interfaces.beat(0);
        tracing::info!("ended; the tables remain in {}", self.directory.path().display());
    }

    fn status(&self) -> String {
        let tables = self.devices.count() + self.interfaces.count();
        let gids = self.devices.gids() + self.interfaces.gids();
        let plural = if tables == 1 { "" } else { "s" };
        let left_out = self.devices.trouble().map_or_else(String::new, |trouble| format!("; {trouble}"));
        format!("{tables} table{plural}, {gids} GIDs{left_out}")
    }

    /// Waits until there may be an event.
    fn wait(&self, stop: &Stop) -> io::Result<()> {
        let now = Instant::now();
        let due = self.monitor.poll_timeout().map_or(self.heartbeat, |due| due.min(self.heartbeat));
        let period = due.saturating_duration_since(now);
        let mut fds: Vec<BorrowedFd<'_>> = vec![stop.0.as_fd(), self.monitor.as_fd()];
        fds.extend(self.plugs.as_ref().map(|plugs| plugs.as_fd()));
        fds.extend(self.devices.readable());
        let mut fds: Vec<PollFd<'_>> =
            fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: period.as_secs() as i64, tv_nsec: period.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Logs what changed in a table.
fn log_changes(name: &str, changes: &[Difference]) {
    for change in changes.iter().take(LOGGED) {
        let sign = if change.is_addition() { '+' } else { '-' };
        let row = Row::new(name, change.entry(), interface_name);
        let cells: Vec<String> = row.cells().into_iter().filter(|cell| !cell.is_empty()).collect();
        tracing::info!("{sign} {}", cells.join(" "));
    }
    if let Some(more) = changes.len().checked_sub(LOGGED).filter(|more| *more > 0) {
        tracing::info!("{name}: {more} more changes");
    }
}
