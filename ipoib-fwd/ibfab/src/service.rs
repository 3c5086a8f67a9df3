//! Notifications to the service manager.

use std::time::{Duration, Instant};

use dataplane::service::{ServiceManager, Watchdog};
use pmd::hca::Backend;

use crate::host::Host;

/// Period of status notifications.
const PERIOD: Duration = Duration::from_millis(500);
/// Time that hosts have to come up before the fabric is reported as ready without them.
const SETTLING: Duration = Duration::from_secs(2);

/// Notifies the service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Service {
    manager: Option<ServiceManager>,
    watchdog: Option<Watchdog>,
    started: Instant,
    /// The manager has been notified that the fabric is ready.
    ready: bool,
    due: Instant,
}

impl Service {
    /// Uses the manager that the environment names.
    pub(crate) fn new(now: Instant) -> Self {
        let manager = ServiceManager::of_environment().unwrap_or_else(|error| {
            tracing::warn!("cannot notify the service manager: {error}");
            None
        });
        let watchdog = manager.as_ref().and_then(|manager| Watchdog::new(manager, now));
        Self { manager, watchdog, started: now, ready: false, due: now }
    }

    /// Sends the notifications that are due: watchdog, status and readiness.
    pub(crate) fn notify<B: Backend>(&mut self, now: Instant, hosts: &mut [Host<B>]) {
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

    /// Reports that the configuration is being read again.
    pub(crate) fn reloading(&mut self) {
        if let Some(manager) = self.manager.as_ref().filter(|_| self.ready) {
            manager.reloading();
            self.ready = false;
        }
    }

    /// Reports that the fabric is stopping.
    pub(crate) fn stopping(&self) {
        if let Some(manager) = &self.manager {
            manager.stopping();
        }
    }
}
