//! Stalls of the control lcore: intervals in which it did not run.

use std::time::{Duration, Instant};

use pmd::hca::Backend;
use serde_json::json;

use super::GatewayControl;
use crate::event::What;
use crate::segment::pair::{lease, shortest_stall};

/// Ticks that were so late that a lease may have ended.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Stalls {
    last: Option<Instant>,
    count: u64,
}

impl Stalls {
    /// The number of stalls.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Notes a tick. Returns the time since the previous one if it is a stall.
    fn tick(&mut self, now: Instant, shortest: Duration) -> Option<Duration> {
        let since = now.saturating_duration_since(self.last.replace(now)?);
        let is_stall = since >= shortest;
        self.count += u64::from(is_stall);
        is_stall.then_some(since)
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Reports a stall that is over.
    pub(super) fn watch_stalls(&mut self, now: Instant) {
        let hello = Duration::from_millis(self.maker.config.gateway.hello_ms.into());
        let Some(stall) = self.stalls.tick(now, shortest_stall(hello)) else { return };
        let ms = stall.as_millis() as u64;
        let text = format!(
            "the control lcore did not run for {ms} ms; other gateways wait for {} ms after a hello: another gateway, if there is one, may have taken over; give the control lcore a processor of its own, or enlarge gateway.hello-ms",
            lease(hello).as_millis()
        );
        tracing::error!(event = What::ControlStalled.journal(), "{text}");
        self.events.report(now, What::ControlStalled, None, || (text, json!({ "milliseconds": ms })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_comes_too_late_is_a_stall_and_the_first_is_none() {
        let (mut stalls, start, shortest) = (Stalls::default(), Instant::now(), Duration::from_secs(1));
        let at = |ms| start + Duration::from_millis(ms);
        let seen = [5000, 5004, 6003, 7003, 7004].map(|ms| stalls.tick(at(ms), shortest));
        assert_eq!(seen, [None, None, None, Some(shortest), None]);
        assert_eq!(stalls.count(), 1);
    }
}
