//! `ctl clear` and `ctl since`: a baseline for counters. Clearing does not reset them, so that monitoring
//! never sees a counter decrease.

use std::time::Instant;

use dataplane::latency::Summary;
use hdrhistogram::Histogram;
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
use super::duties::SegmentDuty;
use crate::counter::{SegmentTotals, Totals};
use crate::forward::SegmentIndex;

/// The counters at the time of the last clear.
#[derive(Debug)]
pub(in crate::gateway) struct Base {
    counters: Instant,
    latency: Instant,
    totals: Option<Totals>,
    srq_low: u64,
    /// Histograms of iterations, and of connection setups.
    times: Option<[Histogram<u64>; 2]>,
}

impl Base {
    /// The baseline at the start: zero.
    pub(in crate::gateway) const fn new(now: Instant) -> Self {
        Self { counters: now, latency: now, totals: None, srq_low: 0, times: None }
    }
}

/// Samples of a histogram since `before`.
fn since(now: &Histogram<u64>, before: &Histogram<u64>) -> Histogram<u64> {
    let mut rest = now.clone();
    // Both have the same bounds, and samples are never removed.
    let _ = rest.subtract(before);
    rest
}

impl<B: Backend> GatewayControl<B> {
    /// Makes the current counters the baseline, for some of them or for all.
    pub(super) fn clear(&mut self, now: Instant, what: Option<&str>) -> Value {
        let is_wanted = |word| what.is_none_or(|what| what.split(',').any(|one| one == word));
        if is_wanted("counters") {
            self.base.totals = Some(self.totals());
            self.base.srq_low = self.srq_low();
            self.base.counters = now;
            let all = self.segments.iter().map(|duty| self.counted(duty)).collect::<Vec<_>>();
            for (duty, counted) in self.segments.iter_mut().zip(all) {
                duty.cleared = Some(counted);
            }
        }
        if is_wanted("latency") {
            self.base.times = Some([self.times.service.clone(), self.times.setup.clone()]);
            self.base.latency = now;
        }
        json!({"counters": is_wanted("counters"), "latency": is_wanted("latency")})
    }

    /// Counters of a segment since the baseline, by worker; the control lcore's are last.
    fn counted_since(&self, duty: &SegmentDuty) -> Vec<SegmentTotals> {
        let mut counted = self.counted(duty);
        if let Some(before) = &duty.cleared {
            counted.iter_mut().zip(before).for_each(|(counted, before)| *counted = counted.since(before));
        }
        counted
    }

    /// Counters since the baseline, of the gateway or of a segment.
    pub(super) fn since(&self, now: Instant, only: Option<SegmentIndex>) -> Value {
        let Base { counters, latency, totals, srq_low, times } = &self.base;
        if let Some(duty) = only.and_then(|at| self.segments.at(at)) {
            let mut answer = self.segment_traffic(duty, &self.counted_since(duty));
            let for_ms = now.saturating_duration_since(*counters).as_millis() as u64;
            answer.insert("for_ms".to_owned(), json!({ "counters": for_ms }));
            return answer.into();
        }
        let all = self.totals();
        let all = totals.as_ref().map_or_else(|| all.clone(), |before| all.since(before));
        let segments = self.segments.iter().map(|duty| {
            let counted = SegmentTotals::sum(&self.counted_since(duty));
            let mut row = serde_json::Map::from_iter([("segment".to_owned(), duty.name.clone().into())]);
            row.extend(counted.row_json());
            Value::Object(row)
        });
        let now_at: [&Histogram<u64>; 2] = [&self.times.service, &self.times.setup];
        let [service, setup] = match times {
            Some([service, setup]) => [since(now_at[0], service), since(now_at[1], setup)],
            None => now_at.map(Clone::clone),
        };
        let ms = |at: &Instant| now.saturating_duration_since(*at).as_millis() as u64;
        json!({
            "for_ms": {"counters": ms(counters), "latency": ms(latency)},
            "traffic": all.traffic_json(),
            "drops": all.drops_json(),
            "alarms": {"srq_low": self.srq_low().saturating_sub(*srq_low)},
            "segments": segments.collect::<Vec<_>>(),
            "times": {"burst_service_ns": Summary::of(&service), "connection_setup_ns": Summary::of(&setup)},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::report::Times;

    #[test]
    fn a_histogram_since_a_base_has_what_came_later() {
        let mut all = Times::new().unwrap().service;
        (1..=100).for_each(|n| all.record(n * 1000).unwrap());
        let base = all.clone();
        assert_eq!(since(&all, &base).len(), 0);
        all.record_n(7, 3).unwrap();
        let rest = since(&all, &base);
        assert_eq!((rest.len(), rest.max()), (3, 7));
        assert_eq!(all.len(), 103, "what is counted goes on");
    }
}
