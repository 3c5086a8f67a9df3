//! Figures of several runs.

use std::time::Duration;

use serde::Serialize;

/// The least, the middle and the greatest of several figures.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
    /// How many there were.
    pub(crate) runs: usize,
}

impl Spread {
    /// Of figures; `None` if there are none.
    pub(crate) fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { min, median: low.midpoint(*high), max, runs: sorted.len() })
    }
}

/// What turns of one of several ways took.
#[derive(Clone, Default)]
pub(crate) struct Turns {
    rates: Vec<f64>,
    times: Vec<f64>,
}

impl Turns {
    /// Takes a turn: messages, how long it was, and nanoseconds of it that count.
    pub(crate) fn add(&mut self, messages: u64, time: Duration, counted: f64) {
        self.rates.push(messages as f64 / time.as_secs_f64());
        self.times.push(counted / messages.max(1) as f64);
    }

    /// Messages a second in the middle one of the turns, which those in which others had the processor do not move.
    pub(crate) fn rate(&self) -> f64 {
        Spread::of(&self.rates).map_or(0.0, |spread| spread.median)
    }

    /// Nanoseconds of a message that count, likewise.
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
