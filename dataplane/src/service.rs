//! The service manager that started the process, and what it is told: datagrams of sd_notify(3), lines `NAME=value`.
//!
//! Nothing here waits: a manager that takes nothing misses a message and never holds up who tells it.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use crate::quiescence::Grace;
use crate::table::Publisher;

/// Names of the environment by which a manager says that it wants to be told (sd_notify(3), sd_watchdog_enabled(3)).
const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_OF: &str = "WATCHDOG_PID";

/// Signs of life in one period of the watchdog: one may be late or lost.
const SIGNS: u32 = 4;

/// The manager's end.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    watchdog: Option<Duration>,
    status: String,
}

impl ServiceManager {
    /// The one that the environment names; `None` if it names none, an error if that one cannot be told anything.
    pub fn of_environment() -> io::Result<Option<Self>> {
        let Some(address) = std::env::var_os(SOCKET) else { return Ok(None) };
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        // The watchdog may be another process's of the service.
        let ours = number(WATCHDOG_OF).is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number(WATCHDOG).filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        Self::at(&address, watchdog).map(Some)
    }

    /// The one at an address: a path, or a name of the abstract kind behind an `@`. `watchdog` is how long it waits for a sign of life.
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

    /// How often it wants a sign of life at least.
    #[must_use]
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// True if it took the message.
    fn tell(&self, message: &str) -> bool {
        self.socket.send(message.as_bytes()).is_ok()
    }

    /// The service does its work, or does it again after [`Self::reloading`]. False if the manager took no message: say it again.
    pub fn ready(&self) -> bool {
        self.tell("READY=1")
    }

    /// The service reads its configuration again; [`Self::ready`] ends that.
    pub fn reloading(&self) {
        self.tell("RELOADING=1");
    }

    /// The service winds up.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// How the service is, on one line. Sent if it is news.
    pub fn status(&mut self, status: &str) {
        if self.status != status && self.tell(&format!("STATUS={}", status.replace('\n', " "))) {
            status.clone_into(&mut self.status);
        }
    }

    /// A sign of life.
    fn alive(&self) {
        self.tell("WATCHDOG=1");
    }
}

/// The watchdog of a service: gives signs of life as long as all that do its work turn.
#[derive(Debug)]
pub struct Watchdog {
    every: Duration,
    next: Instant,
    /// What all workers are to pass before the next sign, and since when.
    asked: Option<(Grace, Instant)>,
}

impl Watchdog {
    /// `None` for a manager that has none.
    #[must_use]
    pub fn new(manager: &ServiceManager, now: Instant) -> Option<Self> {
        let every = manager.watchdog()? / SIGNS;
        Some(Self { every, next: now, asked: None })
    }

    /// Who asks is the only one that does the work: a sign of life if one is due.
    pub fn turned(&mut self, now: Instant, manager: &ServiceManager) {
        if now >= self.next {
            self.next = now + self.every;
            manager.alive();
        }
    }

    /// A sign of life if one is due and all workers, who read these tables, have turned since the last one. Else what they have not passed,
    /// and since when that is waited for.
    pub fn workers_turned(
        &mut self,
        now: Instant,
        manager: &ServiceManager,
        tables: &mut Publisher<impl Sized>,
    ) -> Option<(Grace, Instant)> {
        if now < self.next {
            return None;
        }
        if let Some((grace, since)) = self.asked
            && !tables.passed(grace)
        {
            return Some((grace, since));
        }
        manager.alive();
        self.asked = Some((tables.ask(), now));
        self.next = now + self.every;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager, and what it is told.
    struct Told {
        socket: UnixDatagram,
        manager: ServiceManager,
    }

    impl Told {
        /// At an abstract name of its own.
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
            let mut told = Vec::new();
            while let Ok(length) = self.socket.recv(&mut bytes) {
                told.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
            }
            told
        }
    }

    #[test]
    fn what_is_told_is_told_once() {
        let mut told = Told::new("once", None);
        told.manager.status("waits\nfor a cable");
        told.manager.status("waits\nfor a cable");
        assert!(told.manager.ready());
        told.manager.status("up");
        told.manager.reloading();
        assert!(told.manager.ready());
        told.manager.stopping();
        let wanted =
            ["STATUS=waits for a cable", "READY=1", "STATUS=up", "RELOADING=1", "READY=1", "STOPPING=1"];
        assert_eq!(told.take(), wanted);
        assert!(Watchdog::new(&told.manager, Instant::now()).is_none());
    }

    #[test]
    fn a_manager_that_takes_nothing_holds_nobody_up() {
        let told = Told::new("full", None);
        let taken = std::iter::repeat_with(|| told.manager.ready()).take_while(|taken| *taken).count();
        assert!(taken > 0);
        assert_eq!(told.take().len(), taken);
        assert!(told.manager.ready(), "it has room again");
    }

    #[test]
    fn there_is_no_sign_of_life_while_a_worker_stands_still() {
        let told = Told::new("workers", Some(Duration::from_secs(4)));
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut watchdog = Watchdog::new(&told.manager, begin).unwrap();
        let mut board = Publisher::new(());
        let (mut first, mut second) = (board.reader(), board.reader());
        let mut signs = |board: &mut Publisher<()>, now| {
            let behind = watchdog.workers_turned(now, &told.manager, board);
            (told.take().len(), behind.map(|(_, since)| since))
        };
        assert_eq!(signs(&mut board, at(0)), (1, None));
        // Nothing is due yet; both turn, then the first alone.
        assert_eq!(signs(&mut board, at(999)), (0, None));
        first.refresh();
        second.refresh();
        assert_eq!(signs(&mut board, at(1000)), (1, None));
        first.refresh();
        for ms in [2000, 2001, 60_000] {
            assert_eq!(signs(&mut board, at(ms)), (0, Some(at(1000))));
        }
        assert_eq!(board.behind(board.newest()).collect::<Vec<_>>(), [1]);
        // It goes on.
        second.refresh();
        assert_eq!(signs(&mut board, at(60_001)), (1, None));
        assert_eq!(board.behind(board.newest()).collect::<Vec<_>>(), [0, 1]);
        // One that has ended is not waited for.
        drop(second);
        first.refresh();
        assert_eq!(signs(&mut board, at(61_001)), (1, None));
    }

    #[test]
    fn one_that_works_alone_is_alive_while_it_turns() {
        let told = Told::new("alone", Some(Duration::from_secs(4)));
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(&told.manager, begin).unwrap();
        for ms in [0, 500, 999, 1000, 1001, 1999, 2500] {
            watchdog.turned(begin + Duration::from_millis(ms), &told.manager);
        }
        assert_eq!(told.take(), ["WATCHDOG=1"; 3]);
    }
}
