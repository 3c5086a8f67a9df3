//! Values of several runs.

use std::time::Duration;

use serde::Serialize;

/// Minimum, median and maximum of several values.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
    /// Number of values.
    pub(crate) runs: usize,
}

impl Spread {
    /// The spread of values; `None` if there are none.
    pub(crate) fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { min, median: low.midpoint(*high), max, runs: sorted.len() })
    }
}

/// The slices of one of several alternatives.
#[derive(Clone, Default)]
pub(crate) struct Turns {
    rates: Vec<f64>,
    times: Vec<f64>,
}

impl Turns {
    /// Adds a slice: messages, duration, and measured nanoseconds of it.
    pub(crate) fn add(&mut self, messages: u64, time: Duration, counted: f64) {
        self.rates.push(messages as f64 / time.as_secs_f64());
        self.times.push(counted / messages.max(1) as f64);
    }

    /// Messages per second in the median slice, which preempted slices do not change.
    pub(crate) fn rate(&self) -> f64 {
        Spread::of(&self.rates).map_or(0.0, |spread| spread.median)
    }

    /// Measured nanoseconds per message, likewise.
    pub(crate) fn time(&self) -> f64 {
        Spread::of(&self.times).map_or(0.0, |spread| spread.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_even_and_no_figures() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0, runs: 3 }));
        assert_eq!(
            Spread::of(&[4.0, 1.0, 2.0, 3.0]),
            Some(Spread { min: 1.0, median: 2.5, max: 4.0, runs: 4 })
        );
        assert_eq!(Spread::of(&[]), None);
    }
}
