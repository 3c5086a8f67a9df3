//! Notifications to the service manager: readiness, status, and the watchdog while all workers iterate.

use std::time::{Duration, Instant};

use dataplane::service::{ServiceManager, Watchdog};
use pmd::hca::Backend;

use super::GatewayControl;
use super::answers::waits_of;
use crate::event::What;
use crate::segment::pair::Role;

/// Period of updating the status.
const STATUS_PERIOD: Duration = Duration::from_millis(500);
/// Longest time for a segment to come up. After it, the reason why it waits is reported, and the gateway is
/// ready without it.
const SETTLING: Duration = Duration::from_secs(2);
/// The same for a segment that is neither up nor knows why it waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// The connection to the service manager; no-op if there is none.
#[derive(Debug)]
pub(in crate::gateway) struct Service {
    manager: Option<ServiceManager>,
    watchdog: Option<Watchdog>,
    started: Instant,
    /// The manager has been notified that the gateway is ready.
    ready: bool,
    status_due: Instant,
    /// A stall of workers has been logged.
    stuck: bool,
}

/// State of a segment for readiness.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    /// Its links are up, and it has its role.
    Settled(Role),
    /// It waits for an external condition.
    Waits(String),
    /// It is coming up.
    Coming(Role),
}

impl Readiness {
    /// True if readiness need not wait for it any longer.
    fn needs_no_wait(&self, waited: Duration) -> bool {
        match self {
            Self::Settled(_) => true,
            Self::Waits(_) => waited >= SETTLING,
            Self::Coming(_) => waited >= PATIENCE,
        }
    }
}

/// The status line: the number of segments in each state, and the reason of the first one that waits.
fn status(segments: &[(String, Readiness)]) -> String {
    let mut parts = Vec::new();
    for role in [Role::Forwarding, Role::Standby, Role::Drained, Role::Blocked, Role::Listening] {
        let of_role = |(_, r): &&(String, Readiness)| matches!(r, Readiness::Settled(is) | Readiness::Coming(is) if *is == role);
        let n = segments.iter().filter(of_role).count();
        if n > 0 {
            parts.push(format!("{n} {}", role.name()));
        }
    }
    let waiting: Vec<_> = segments
        .iter()
        .filter_map(|(name, r)| if let Readiness::Waits(why) = r { Some((name, why)) } else { None })
        .collect();
    if let Some((name, why)) = waiting.first() {
        parts.push(format!("{} waiting ({name}: {why})", waiting.len()));
    }
    let all = segments.len();
    let noun = if all == 1 { "segment" } else { "segments" };
    format!("{all} {noun}: {}", if parts.is_empty() { "none".to_owned() } else { parts.join(", ") })
}

impl Service {
    /// Connects to the manager in the environment.
    pub(in crate::gateway) fn new(now: Instant) -> Self {
        let manager = ServiceManager::of_environment().unwrap_or_else(|error| {
            tracing::warn!("cannot notify the service manager: {error}");
            None
        });
        Self {
            watchdog: manager.as_ref().and_then(|manager| Watchdog::new(manager, now)),
            manager,
            started: now,
            ready: false,
            status_due: now,
            stuck: false,
        }
    }

    /// The configuration is being reloaded.
    pub(super) fn reloading(&self) {
        if let Some(manager) = self.manager.as_ref().filter(|_| self.ready) {
            manager.reloading();
        }
    }

    /// The reload has ended.
    pub(super) const fn reloaded(&mut self, now: Instant) {
        // Reported with the next status; new segments are waited for.
        (self.ready, self.status_due, self.started) = (false, now, now);
    }

    /// The gateway is shutting down.
    pub(super) fn stopping(&mut self) {
        if let Some(manager) = &mut self.manager {
            manager.status("stopping");
            manager.stopping();
        }
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Sends due notifications to the service manager.
    pub(super) fn notify_service(&mut self, now: Instant) {
        self.watch_workers(now);
        if self.service.manager.is_none() || self.stopping.is_some() || now < self.service.status_due {
            return;
        }
        self.service.status_due = now + STATUS_PERIOD;
        let segments = self.readiness();
        let service = &mut self.service;
        let Some(manager) = &mut service.manager else { return };
        if !service.stuck {
            manager.status(&status(&segments));
        }
        let waited = now.duration_since(service.started);
        if !service.ready && segments.iter().all(|(_, readiness)| readiness.needs_no_wait(waited)) {
            service.ready = manager.ready();
        }
    }

    /// Feeds the watchdog if all workers have iterated since the last time.
    fn watch_workers(&mut self, now: Instant) {
        let Self { service, board, events, .. } = self;
        let (Some(manager), Some(watchdog)) = (&mut service.manager, &mut service.watchdog) else { return };
        let Some((grace, since)) = watchdog.workers_turned(now, manager, board.publisher()) else {
            service.stuck = false;
            return;
        };
        // A short delay of a worker is not reported.
        if !service.stuck && now.duration_since(since) > manager.watchdog().unwrap_or_default() / 2 {
            service.stuck = true;
            let who: Vec<String> = board.publisher().behind(grace).map(|n| n.to_string()).collect();
            let what = format!("worker {} is stalled: no sign of life until it runs", who.join(", "));
            tracing::error!(event = What::WorkerStuck.journal(), "{what}");
            manager.status(&what);
            events.report(now, What::WorkerStuck, None, || (what, serde_json::Value::Null));
        }
    }

    /// State of all segments; last the segments that a reload has added and that are not running yet.
    pub(super) fn readiness(&mut self) -> Vec<(String, Readiness)> {
        let Self { segments, endpoints, ethernets, reloader, .. } = self;
        let one = |duty: &super::duties::SegmentDuty| {
            let role = duty.duty.pair.role();
            let trouble = waits_of(endpoints, ethernets, duty);
            let link = endpoints.link(duty.endpoint, duty.link);
            let is_up = link.is_some_and(|link| link.state().up);
            let readiness = match (trouble, is_up) {
                (Some(why), _) => Readiness::Waits(why),
                (None, true) if role != Role::Listening => Readiness::Settled(role),
                (None, _) => Readiness::Coming(role),
            };
            (duty.name.clone(), readiness)
        };
        let coming = reloader.coming().map(|(name, _, why)| (name.to_owned(), Readiness::Waits(why)));
        segments.iter().map(one).chain(coming).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(why: &str) -> Readiness {
        Readiness::Waits(why.to_owned())
    }

    #[test]
    fn a_status_counts_roles_and_names_the_first_trouble() {
        let named = |list: &[Readiness]| -> Vec<(String, Readiness)> {
            list.iter().zip(0..).map(|(r, n)| (format!("s{n}"), r.clone())).collect()
        };
        let (forwarding, standby) = (Readiness::Settled(Role::Forwarding), Readiness::Settled(Role::Standby));
        assert_eq!(status(&named(std::slice::from_ref(&forwarding))), "1 segment: 1 forwarding");
        let all = [waits("no cable"), forwarding.clone(), standby, waits("no P_Key"), forwarding];
        assert_eq!(status(&named(&all)), "5 segments: 2 forwarding, 1 standby, 2 waiting (s0: no cable)");
        assert_eq!(status(&named(&[Readiness::Coming(Role::Listening)])), "1 segment: 1 listening");
        assert_eq!(status(&[]), "0 segments: none");
    }

    #[test]
    fn readiness_waits_for_what_comes_and_not_for_what_is_missing() {
        let ready = |r: &Readiness| [0, 2, 10].map(|s| r.needs_no_wait(Duration::from_secs(s)));
        assert_eq!(ready(&Readiness::Settled(Role::Standby)), [true; 3]);
        assert_eq!(ready(&waits("no cable")), [false, true, true]);
        assert_eq!(ready(&Readiness::Coming(Role::Listening)), [false, false, true]);
    }
}
