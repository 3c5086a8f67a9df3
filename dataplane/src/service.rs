//! Notifications to the service manager that started the process: sd_notify(3) datagrams with `NAME=value`
//! lines.
//!
//! Sending never blocks. A manager that does not read misses messages.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use crate::quiescence::Grace;
use crate::table::Publisher;

/// Environment variables by which a manager requests notifications (sd_notify(3), sd_watchdog_enabled(3)).
const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_OF: &str = "WATCHDOG_PID";

/// Number of watchdog notifications per period, so that one may be late or lost.
const SIGNS: u32 = 4;

/// Connection to the service manager.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    watchdog: Option<Duration>,
    status: String,
}

impl ServiceManager {
    /// Connects to the manager that the environment names, or returns `None` if there is none.
    ///
    /// # Errors
    ///
    /// Fails if the named socket cannot be used.
    pub fn of_environment() -> io::Result<Option<Self>> {
        let Some(address) = std::env::var_os(SOCKET) else { return Ok(None) };
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        // The watchdog may be meant for another process of the service.
        let ours = number(WATCHDOG_OF).is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number(WATCHDOG).filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        Self::at(&address, watchdog).map(Some)
    }

    /// Connects to a manager at an address: a path, or an abstract name after `@`. `watchdog` is the period
    /// of its watchdog.
    pub fn at(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(address)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, watchdog, status: String::new() })
    }

    /// Returns the period of the watchdog.
    #[must_use]
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends a message. Returns true if the manager accepted it.
    fn send(&self, message: &str) -> bool {
        self.socket.send(message.as_bytes()).is_ok()
    }

    /// Reports that the service is ready, initially or after [`Self::reloading`]. Returns false if the
    /// manager did not accept the message; the caller must then repeat it.
    pub fn ready(&self) -> bool {
        self.send("READY=1")
    }

    /// Reports that the service reloads its configuration, until [`Self::ready`].
    pub fn reloading(&self) {
        self.send("RELOADING=1");
    }

    /// Reports that the service is shutting down.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Reports the status of the service in one line, if it has changed.
    pub fn status(&mut self, status: &str) {
        if self.status != status && self.send(&format!("STATUS={}", status.replace('\n', " "))) {
            status.clone_into(&mut self.status);
        }
    }

    /// Sends a watchdog notification.
    fn alive(&self) {
        self.send("WATCHDOG=1");
    }
}

/// The watchdog of a service: notifies the manager as long as all working threads make progress.
#[derive(Debug)]
pub struct Watchdog {
    every: Duration,
    next: Instant,
    /// Grace period that all workers must pass before the next notification, with its start time.
    pending: Option<(Grace, Instant)>,
}

impl Watchdog {
    /// Returns `None` if the manager has no watchdog.
    #[must_use]
    pub fn new(manager: &ServiceManager, now: Instant) -> Option<Self> {
        let every = manager.watchdog()? / SIGNS;
        Some(Self { every, next: now, pending: None })
    }

    /// Sends a notification if it is due, for a caller that does all the work itself.
    pub fn turned(&mut self, now: Instant, manager: &ServiceManager) {
        if now >= self.next {
            self.next = now + self.every;
            manager.alive();
        }
    }

    /// Sends a notification if it is due and all workers, which read these tables, have made progress since
    /// the last one.
    ///
    /// Otherwise returns the grace period that they have not passed, and its start time.
    pub fn workers_turned(
        &mut self,
        now: Instant,
        manager: &ServiceManager,
        tables: &mut Publisher<impl Sized>,
    ) -> Option<(Grace, Instant)> {
        if now < self.next {
            return None;
        }
        if let Some((grace, since)) = self.pending
            && !tables.passed(grace)
        {
            return Some((grace, since));
        }
        manager.alive();
        self.pending = Some((tables.ask(), now));
        self.next = now + self.every;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager, and the messages that it receives.
    struct FakeManager {
        socket: UnixDatagram,
        manager: ServiceManager,
    }

    impl FakeManager {
        /// Binds a unique abstract name.
        fn new(name: &str, watchdog: Option<Duration>) -> Self {
            let name = format!("service-test-{}-{name}", std::process::id());
            let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
            let socket = UnixDatagram::bind_addr(&address).unwrap();
            socket.set_nonblocking(true).unwrap();
            let manager = ServiceManager::at(OsStr::new(&format!("@{name}")), watchdog).unwrap();
            Self { socket, manager }
        }

        fn take(&self) -> Vec<String> {
            let mut bytes = [0; 256];
            let mut messages = Vec::new();
            while let Ok(length) = self.socket.recv(&mut bytes) {
                messages.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
            }
            messages
        }
    }

    #[test]
    fn an_unchanged_status_is_sent_once() {
        let mut fake = FakeManager::new("once", None);
        fake.manager.status("waits\nfor a cable");
        fake.manager.status("waits\nfor a cable");
        assert!(fake.manager.ready());
        fake.manager.status("up");
        fake.manager.reloading();
        assert!(fake.manager.ready());
        fake.manager.stopping();
        let wanted =
            ["STATUS=waits for a cable", "READY=1", "STATUS=up", "RELOADING=1", "READY=1", "STOPPING=1"];
        assert_eq!(fake.take(), wanted);
        assert!(Watchdog::new(&fake.manager, Instant::now()).is_none());
    }

    #[test]
    fn a_manager_that_takes_nothing_holds_nobody_up() {
        let fake = FakeManager::new("full", None);
        let taken = std::iter::repeat_with(|| fake.manager.ready()).take_while(|taken| *taken).count();
        assert!(taken > 0);
        assert_eq!(fake.take().len(), taken);
        assert!(fake.manager.ready(), "it has room again");
    }

    #[test]
    fn there_is_no_sign_of_life_while_a_worker_stands_still() {
        let fake = FakeManager::new("workers", Some(Duration::from_secs(4)));
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut watchdog = Watchdog::new(&fake.manager, begin).unwrap();
        let mut board = Publisher::new(());
        let (mut first, mut second) = (board.reader(), board.reader());
        let mut signs = |board: &mut Publisher<()>, now| {
            let behind = watchdog.workers_turned(now, &fake.manager, board);
            (fake.take().len(), behind.map(|(_, since)| since))
        };
        assert_eq!(signs(&mut board, at(0)), (1, None));
        // Nothing is due yet. Then both make progress, then only the first.
        assert_eq!(signs(&mut board, at(999)), (0, None));
        first.refresh();
        second.refresh();
        assert_eq!(signs(&mut board, at(1000)), (1, None));
        first.refresh();
        for ms in [2000, 2001, 60_000] {
            assert_eq!(signs(&mut board, at(ms)), (0, Some(at(1000))));
        }
        assert_eq!(board.behind(board.newest()).collect::<Vec<_>>(), [1]);
        // It continues.
        second.refresh();
        assert_eq!(signs(&mut board, at(60_001)), (1, None));
        assert_eq!(board.behind(board.newest()).collect::<Vec<_>>(), [0, 1]);
        // An ended worker is not waited for.
        drop(second);
        first.refresh();
        assert_eq!(signs(&mut board, at(61_001)), (1, None));
    }

    #[test]
    fn one_that_works_alone_is_alive_while_it_turns() {
        let fake = FakeManager::new("alone", Some(Duration::from_secs(4)));
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(&fake.manager, begin).unwrap();
        for ms in [0, 500, 999, 1000, 1001, 1999, 2500] {
            watchdog.turned(begin + Duration::from_millis(ms), &fake.manager);
        }
        assert_eq!(fake.take(), ["WATCHDOG=1"; 3]);
    }
}
