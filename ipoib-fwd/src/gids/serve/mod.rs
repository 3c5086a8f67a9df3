//! `ipoib-fwd gids --serve`: keeps the GID tables of all devices of this machine where any number of processes read them.
//!
//! One thread waits for everything at once: events of the devices, which the kernel keeps the tables of (`devices`), of interfaces and
//! their addresses, from which those of software RoCE ports follow (`interfaces`), and of devices that come and go. A table is said to
//! be good, once a second, only while all that is known to have happened is in it.

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

/// Turns of the interfaces' events in one of ours: a storm of them leaves time for the devices.
const TURNS: u32 = 16;
/// Between two signs of life.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Most changes of one table that are logged one by one at a time.
const TOLD: usize = 16;

/// Options of the service.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// Serve: keep the tables of all RDMA devices of this machine, also of those that come later, in shared memory, for `ipoib-fwd gids
    /// --from` and any number of processes that look GIDs up. Changes are logged. Ends with SIGTERM or Ctrl-C. Readers stay attached when the service ends,
    /// are able to tell, and go on when it is started again. A device that is served is in use, which some drivers wait for when they are unloaded.
    #[arg(long, conflicts_with_all = ["json", "watch", "device", "socket", "shared", "from"])]
    pub serve: bool,
    /// With --serve: also the table of a software RoCE port on this interface, which need not exist yet, under the name roce:INTERFACE; from the
    /// interface's addresses and those of what lies on it, by the kernel's rules. May be given 32 times.
    #[arg(long, value_name = "INTERFACE", requires = "serve")]
    pub roce: Vec<String>,
    /// With --serve: directory of the tables, which nobody else may write; /run/ipoib-gids if none is given. It is made, but what it lies in is not.
    #[arg(long, value_name = "DIR", requires = "serve")]
    pub dir: Option<PathBuf>,
}

/// Why the service cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Somebody removed the directory, and readers find nothing.
    #[error("{} was removed while its tables were served: start the service again, which makes it anew", .0.display())]
    Removed(PathBuf),
    /// A device got another name.
    #[error(transparent)]
    Renamed(#[from] Renamed),
    /// A table of an interface.
    #[error("the table of {name}")]
    Table {
        /// Its name.
        name: String,
        /// What is wrong.
        #[source]
        source: MirrorError,
    },
    /// The kernel tells nothing of its interfaces or devices.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// An interface that there cannot be.
    #[error("no interface can be called {0:?}: --roce takes a name such as eth1")]
    Interface(String),
    /// An interface that is named twice.
    #[error("--roce {0} is given twice: once is enough")]
    Twice(String),
    /// Too many interfaces.
    #[error("--roce is given {0} times; {MOST} is the most: start a second service for the others, with --dir", MOST = interfaces::MAX_INTERFACES)]
    TooMany(usize),
    /// Signals or waiting.
    #[error("cannot {what}: {source}")]
    Call {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Serves until a signal ends it.
pub fn run(options: &ServeOptions) -> Result<(), ServeError> {
    let stop = Stop::new().map_err(|source| ServeError::Call { what: "wait for signals", source })?;
    let directory = options.dir.as_deref().unwrap_or(Path::new(DEFAULT_DIRECTORY));
    let now = Instant::now();
    let directory = Directory::serve(directory)?;
    let mut service = Service::new(directory, &options.roce, now)?;
    let mut manager = ServiceManager::of_environment().unwrap_or_else(|error| {
        tracing::warn!("the service manager cannot be told anything: {error}");
        None
    });
    let mut watchdog = manager.as_ref().and_then(|manager| Watchdog::new(manager, now));
    let (mut has_begun, mut is_told) = (false, false);
    loop {
        let now = Instant::now();
        service.turn(now)?;
        if !has_begun && service.is_settled {
            has_begun = true;
            service.begin()?;
        }
        if let Some(manager) = manager.as_ref().filter(|_| has_begun && !is_told) {
            // A manager that did not take it is told again.
            is_told = manager.ready();
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

/// Signals that end the service, as a descriptor that becomes readable.
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

/// All that is served.
#[derive(Debug)]
struct Service {
    directory: Directory,
    devices: Devices<Kernel>,
    interfaces: Interfaces,
    monitor: Monitor,
    /// `None` where the kernel does not tell: devices are looked for all the same.
    plugs: Option<Plugs>,
    heartbeat: Instant,
    /// When the last turn began (CLOCK_MONOTONIC): what happened before it is in the tables.
    begun: u64,
    /// The interfaces' tables were what they should be in the last turn.
    is_settled: bool,
}

/// Who hears of interfaces: the tables that follow from them, and those of which a VLAN's number is asked for anew.
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
        let plugs = Plugs::new().map_err(|error| tracing::warn!("devices that come are seen late: {error}"));
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

    /// Does what there is to do, without waiting for anything but the devices' answers.
    fn turn(&mut self, now: Instant) -> Result<(), ServeError> {
        // Tables are spoken for as of now: what happens while they are written may not be in them.
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
        // Until a list is complete nothing is known of what shall not be.
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

    /// All tables are there for the first time: what an earlier service left beside them goes.
    fn begin(&self) -> Result<(), ServeError> {
        let swept = self.directory.sweep(|name| self.devices.has(name) || self.interfaces.has(name))?;
        if swept > 0 {
            tracing::info!("{swept} tables of devices that are no more were removed");
        }
        self.devices.beat(self.begun);
        self.interfaces.beat(self.begun);
        tracing::info!("{} in {}", self.status(), self.directory.path().display());
        Ok(())
    }

    /// Readers are told at once that nobody looks after the tables; these stay for whoever is started next.
    fn end(&self) {
        self.devices.beat(0);
        self.interfaces.beat(0);
        tracing::info!("ended; the tables stay in {}", self.directory.path().display());
    }

    fn status(&self) -> String {
        let tables = self.devices.count() + self.interfaces.count();
        let gids = self.devices.gids() + self.interfaces.gids();
        let plural = if tables == 1 { "" } else { "s" };
        let left_out = self.devices.trouble().map_or_else(String::new, |trouble| format!("; {trouble}"));
        format!("{tables} table{plural}, {gids} GIDs{left_out}")
    }

    /// Waits until there may be something to do.
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
fn tell(name: &str, changes: &[Difference]) {
    for change in changes.iter().take(TOLD) {
        let sign = if change.is_addition() { '+' } else { '-' };
        let row = Row::new(name, change.entry(), interface_name);
        let cells: Vec<String> = row.cells().into_iter().filter(|cell| !cell.is_empty()).collect();
        tracing::info!("{sign} {}", cells.join(" "));
    }
    if let Some(more) = changes.len().checked_sub(TOLD).filter(|more| *more > 0) {
        tracing::info!("{name}: {more} more changes");
    }
}
