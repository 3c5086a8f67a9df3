//! Keys outside of segments that a reload changes.

use std::time::{Duration, Instant};

use config::Change;
use dataplane::worker::IdlePolicy;
use logging::Modules;
use pmd::hca::Backend;

use crate::gateway::control::GatewayControl;

/// The effect of a key outside of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Live {
    Idle,
    Log,
    Stats,
    /// Every link, and the neighbor timers of every segment.
    Links,
}

impl Live {
    /// `None` for a key that cannot change at run time: then the reload is refused.
    pub(super) fn of(key: &str) -> Option<Self> {
        Some(match key {
            "gateway.idle" => Self::Idle,
            "gateway.log" => Self::Log,
            "gateway.stats-seconds" => Self::Stats,
            "infiniband.receive-mtu"
            | "infiniband.retry-count"
            | "infiniband.rnr-retry"
            | "infiniband.connection-idle-seconds"
            | "infiniband.neighbour-idle-seconds" => Self::Links,
            _ => return None,
        })
    }
}

/// The idle policy of a worker.
pub(in crate::gateway) const fn policy(idle: config::Idle) -> IdlePolicy {
    match idle {
        config::Idle::Poll => IdlePolicy::Poll,
        config::Idle::Pause => IdlePolicy::Pause,
        config::Idle::Sleep => IdlePolicy::Sleep,
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Applies the keys outside of segments from the new configuration.
    pub(super) fn follow_keys(&mut self, now: Instant, change: &Change) {
        for key in &change.keys {
            self.chosen.give_up(key);
            if *key == "infiniband.receive-mtu" {
                self.maker.receive_mtu = None;
            }
        }
        let config = &self.maker.config;
        for what in change.keys.iter().filter_map(|key| Live::of(key)) {
            match what {
                Live::Idle => self.reloader.set_idle(policy(config.gateway.idle)),
                Live::Log => self.reloader.log.set(config.gateway.log, &Modules::default()),
                Live::Stats => {
                    let seconds = config.gateway.stats_seconds;
                    self.stats_period = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                    (self.schedule.stats, self.schedule.stats_before) = (now, None);
                }
                Live::Links => {}
            }
        }
        if change.keys.iter().any(|key| Live::of(key) == Some(Live::Links)) {
            self.follow_links(now);
        }
    }

    /// Applies the settings of links, and the neighbor timers of segments.
    pub(in crate::gateway::control) fn follow_links(&mut self, now: Instant) {
        for duty in self.segments.iter_mut() {
            let segment = self.maker.config.segments.iter().find(|s| s.name.as_str() == duty.name);
            duty.segment.set_idle(self.maker.ageing().idle);
            if let (Some(segment), Some(link)) = (segment, self.endpoints.link(duty.endpoint, duty.link))
                && let Err(e) = link.follow(now, &self.maker.link_settings(segment))
            {
                tracing::error!(segment = duty.name.as_str(), "{}: {e}", duty.name);
            }
        }
    }
}
