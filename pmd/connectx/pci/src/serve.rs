//! The server's single thread: serves a client at its socket and the device, and sleeps when idle.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use tracing::{info, warn};

use crate::hca::Hca;
use crate::vfio_user::socket::{Client, Gone};

/// Idle iterations before the first sleep.
const SPINS: u32 = 3;
/// First sleep.
const FIRST: Duration = Duration::from_micros(50);
/// Longest sleep while there is work that must wait, for example for a full cable.
const LONGEST: Duration = Duration::from_millis(1);
/// Sleeps of one length before they get longer, so that a conversation continues with short ones.
const REPEATS: u32 = 40;
/// Longest sleep if there is nothing to do before a wakeup.
const REST: Duration = Duration::from_millis(100);

/// How long to sleep after this number of idle iterations; `None` to poll again at once.
fn idle_sleep(idle: u32) -> Option<Duration> {
    let sleeps = idle.checked_sub(SPINS)?;
    Some((FIRST * (1 << (sleeps / REPEATS).min(10))).min(LONGEST))
}

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process listens there.
    #[error("{0} is in use by another process; use another --socket")]
    InUse(PathBuf),
    /// The socket cannot be created.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The socket has failed.
    #[error("waiting for a client: {0}")]
    Accept(io::Error),
}

/// A device at its socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file, so that only our own is removed.
    name: Option<(u64, u64)>,
    hca: Hca,
    client: Option<Client>,
    idle: u32,
    report: Option<PathBuf>,
}

/// Requests to a running server, for example from signal handlers.
#[derive(Clone, Default, Debug)]
pub struct Orders {
    /// Stop.
    pub stop: Arc<AtomicBool>,
    /// Write the report.
    pub report: Arc<AtomicBool>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.name.is_some() && name_of(&self.path) == self.name {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn name_of(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Listen { path: path.to_owned(), source };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // Stale socket of a killed process, or in use?
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            let probe = UnixStream::connect(path);
            if !is_socket || !probe.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                return Err(ServeError::InUse(path.to_owned()));
            }
            std::fs::remove_file(path).map_err(failed)?;
            UnixListener::bind(path).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

impl Server {
    /// Listens at a path. Clients can connect when this returns.
    pub fn new(path: &Path, hca: Hca) -> Result<Self, ServeError> {
        let listener = listen(path)?;
        let name = name_of(path);
        let failed = |source| ServeError::Listen { path: path.to_owned(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), name, hca, client: None, idle: 0, report: None })
    }

    /// Sets the file for the device's report, which is written on request ([`Orders::report`]) and on exit.
    pub fn report_to(&mut self, path: Option<PathBuf>) {
        self.report = path;
    }

    /// Serves one client after another until a stop request.
    pub fn run(&mut self, orders: &Orders) -> Result<(), ServeError> {
        info!("waiting for a client at {}", self.path.display());
        while !orders.stop.load(Ordering::Relaxed) {
            if orders.report.swap(false, Ordering::Relaxed) {
                self.write_report();
            }
            let busy = self.turn(Instant::now())?;
            self.sleep_if_idle(busy)?;
        }
        info!("{:?}", self.hca.counters());
        self.write_report();
        Ok(())
    }

    /// Writes the report atomically: a reader finds the complete old or new file.
    fn write_report(&self) {
        let Some(path) = &self.report else { return };
        let whole = path.with_added_extension("new");
        let written = serde_json::to_vec(&self.hca.report())
            .map_err(io::Error::from)
            .and_then(|json| std::fs::write(&whole, json))
            .and_then(|()| std::fs::rename(&whole, path));
        if let Err(error) = written {
            warn!("cannot write the report to {}: {error}", path.display());
        }
    }

    /// Runs one iteration. Returns true if there was any work.
    pub fn turn(&mut self, now: Instant) -> Result<bool, ServeError> {
        let mut busy = match &mut self.client {
            None => match self.listener.accept() {
                Ok((socket, _)) => {
                    info!("a client has connected");
                    self.client = Some(Client::new(socket));
                    true
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => false,
                Err(error) => return Err(ServeError::Accept(error)),
            },
            Some(client) => match client.turn(&mut self.hca) {
                Ok(busy) => busy,
                Err(gone) => {
                    if gone == Gone::HungUp {
                        info!("{gone}")
                    } else {
                        warn!("{gone}")
                    }
                    self.client = None;
                    self.hca.disconnect();
                    true
                }
            },
        };
        busy |= self.hca.turn(now);
        Ok(busy)
    }

    /// Sleeps if there is nothing to do: until a message of the client, a wakeup by a cable, or the next
    /// deadline.
    fn sleep_if_idle(&mut self, busy: bool) -> Result<(), ServeError> {
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
        let Some(mut timeout) = idle_sleep(self.idle) else { return Ok(()) };
        let mut now = Instant::now();
        let mut wakers = Vec::new();
        if self.hca.sleep(now, |_| {}).is_some() {
            // Packets that arrived before arming do not wake.
            now = Instant::now();
            if self.turn(now)? {
                self.idle = 0;
                return Ok(());
            }
            // Only now: a device that is reset binds the same socket again, and no copy of it may exist then.
            match self.hca.sleep(now, |waker| wakers.extend(waker.try_clone_to_owned())) {
                Some(longest) => timeout = longest.min(REST),
                None => return Ok(()),
            }
        }
        if let Some(at) = self.hca.next_deadline(now) {
            timeout = timeout.min(at.saturating_duration_since(now));
        }
        let held_up = self.client.as_ref().is_some_and(Client::is_held_up);
        let flags = if held_up { PollFlags::OUT } else { PollFlags::IN };
        let waker = self.client.as_ref().map_or_else(|| self.listener.as_fd(), AsFd::as_fd);
        let mut all = vec![PollFd::new(&waker, flags)];
        all.extend(wakers.iter().map(|waker| PollFd::new(waker, PollFlags::IN)));
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        // An interrupted sleep ends here; other errors show when the socket is read.
        let _ = rustix::event::poll(&mut all, Some(&timeout));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_get_longer() {
        assert_eq!(idle_sleep(SPINS - 1), None);
        assert_eq!(idle_sleep(SPINS), Some(FIRST));
        assert_eq!(idle_sleep(SPINS + REPEATS), Some(2 * FIRST));
        assert_eq!(idle_sleep(u32::MAX), Some(LONGEST));
    }
}
