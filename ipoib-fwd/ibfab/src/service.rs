//! What the service manager is told of the fabric.

use std::time::{Duration, Instant};

use dataplane::service::{ServiceManager, Watchdog};
use pmd::hca::Backend;

use crate::host::Host;

/// How often the status is made anew.
const PERIOD: Duration = Duration::from_millis(500);
/// How long hosts may take to come up before the fabric is ready without them.
const SETTLING: Duration = Duration::from_secs(2);

/// The service manager's side of the fabric; nothing is done if there is none.
#[derive(Debug)]
pub(crate) struct Service {
    manager: Option<ServiceManager>,
    watchdog: Option<Watchdog>,
    started: Instant,
    /// The manager knows that the fabric is ready.
    ready: bool,
    due: Instant,
}

impl Service {
    /// Of the manager that the environment names.
    pub(crate) fn new(now: Instant) -> Self {
        let manager = ServiceManager::of_environment().unwrap_or_else(|error| {
            tracing::warn!("the service manager cannot be told anything: {error}");
            None
        });
        let watchdog = manager.as_ref().and_then(|manager| Watchdog::new(manager, now));
        Self { manager, watchdog, started: now, ready: false, due: now }
    }

    /// Tells what is due: that the fabric turns, how it is, and when it is ready.
    pub(crate) fn tell<B: Backend>(&mut self, now: Instant, hosts: &mut [Host<B>]) {
        let Some(manager) = &mut self.manager else { return };
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.turned(now, manager);
        }
        if now < self.due {
            return;
        }
        self.due = now + PERIOD;
        let all = hosts.len();
        let up = hosts.iter_mut().filter_map(|host| host.is_up().then_some(())).count();
        manager.status(&format!("{up} of {all} hosts up"));
        if !self.ready && (up == all || now.duration_since(self.started) >= SETTLING) {
            self.ready = manager.ready();
        }
    }

    /// The configuration is being read again.
    pub(crate) fn reloading(&mut self) {
        if let Some(manager) = self.manager.as_ref().filter(|_| self.ready) {
            manager.reloading();
            self.ready = false;
        }
    }

    /// The fabric winds up.
    pub(crate) fn stopping(&self) {
        if let Some(manager) = &self.manager {
            manager.stopping();
        }
    }
}
