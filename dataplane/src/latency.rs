//! HDR histograms of durations, recorded by workers and read by the control lcore.
//!
//! A worker records into its own histogram without locks or allocations. To read it, the control lcore sends
//! an empty histogram and receives the full one over the rings. [`Recorder::swap`] is the worker's part.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Maximum distinguishable duration in nanoseconds. Longer ones count as this.
const HIGHEST_NS: u64 = 10_000_000_000;

/// Two significant digits: a resolution of 1 % is enough for latencies and limits the table to 15 KiB.
const DIGITS: u8 = 2;

/// A worker's histogram of nanoseconds.
#[derive(Debug)]
pub struct Recorder {
    histogram: Box<Histogram<u32>>,
}

/// Creates an empty histogram, to be passed to a [`Recorder`].
#[must_use]
pub fn empty() -> Box<Histogram<u32>> {
    // The bounds are valid constants, so the constructor cannot fail. The fallback avoids a panic.
    Box::new(
        Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS)
            .unwrap_or_else(|_| Histogram::new(1).unwrap_or_else(|_| std::process::abort())),
    )
}

impl Default for Recorder {
    fn default() -> Self {
        Self { histogram: empty() }
    }
}

impl Recorder {
    /// Records a duration in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
    }

    /// Continues with `next` and returns the histogram recorded so far.
    pub fn swap(&mut self, next: Box<Histogram<u32>>) -> Box<Histogram<u32>> {
        std::mem::replace(&mut self.histogram, next)
    }
}

/// Summary of a histogram for operators, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    /// Number of recorded durations.
    pub count: u64,
    /// Minimum.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

impl Summary {
    /// Summarizes a histogram.
    #[must_use]
    pub fn of<C: hdrhistogram::Counter>(h: &Histogram<C>) -> Self {
        Self {
            count: h.len(),
            min: if h.is_empty() { 0 } else { h.min() },
            p50: h.value_at_quantile(0.5),
            p90: h.value_at_quantile(0.9),
            p99: h.value_at_quantile(0.99),
            p999: h.value_at_quantile(0.999),
            max: h.max(),
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        write!(
            f,
            "{} samples: min {:.1} µs, 50 % {:.1}, 90 % {:.1}, 99 % {:.1}, 99.9 % {:.1}, max {:.1} µs",
            self.count,
            us(self.min),
            us(self.p50),
            us(self.p90),
            us(self.p99),
            us(self.p999),
            us(self.max)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_hands_over_what_was_recorded() {
        let mut recorder = Recorder::default();
        for ns in [100, 200, 300, u64::MAX] {
            recorder.record(ns);
        }
        let full = recorder.swap(empty());
        let summary = Summary::of(&full);
        assert_eq!((summary.count, summary.min), (4, 100));
        assert!(summary.max >= HIGHEST_NS, "a longer time counts as the longest");
        assert_eq!(Summary::of(&recorder.swap(empty())).count, 0);
    }
}
