//! Packets that leave when they are to leave, whatever becomes of those before them, and what is heard of them.

use hdrhistogram::Histogram;
use pmd::eal;

use super::histogram;

/// How often packets leave, a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Pace {
    /// At random, as from many senders that know nothing of each other.
    Random(f64),
    /// One after the other.
    Even(f64),
}

/// When packets are to leave, in cycles of the time-stamp counter. It is not told when they do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    next: f64,
    mean: f64,
    random: Option<u64>,
}

impl Schedule {
    pub(super) fn new(pace: Pace, begin: u64, seed: u64) -> Self {
        let (rate, random) = match pace {
            Pace::Random(rate) => (rate, Some(seed | 1)),
            Pace::Even(rate) => (rate, None),
        };
        Self { next: begin as f64, mean: eal::tsc_hz() as f64 / rate.max(1.0), random }
    }

    /// When the next one is to leave.
    #[inline]
    pub(super) const fn due(&self) -> u64 {
        self.next as u64
    }

    /// It was handed on.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next += match &mut self.random {
            None => self.mean,
            Some(state) => {
                // xorshift64.
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                // (0, 1]: gaps between arrivals at random are spread like the logarithm of it.
                let uniform = ((*state >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                -uniform.ln() * self.mean
            }
        };
    }
}

/// What is heard of the packets of a cell.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// Nanoseconds from when they were to leave until they had arrived, or, of those that did not, until they were given up.
    pub(super) times: Histogram<u64>,
    /// Nanoseconds from then until they did leave.
    pub(super) lateness: Histogram<u64>,
    /// Packets that were sent and did not arrive.
    pub(super) lost: u64,
}

impl Default for Heard {
    fn default() -> Self {
        Self { times: histogram(), lateness: histogram(), lost: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaps of a schedule, in parts of their mean.
    fn gaps(pace: Pace, count: usize) -> Vec<f64> {
        eal::for_tests();
        let mut schedule = Schedule::new(pace, 1 << 40, 7);
        assert_eq!(schedule.due(), 1 << 40);
        let gap = |_| {
            let before = schedule.next;
            schedule.advance();
            (schedule.next - before) / schedule.mean
        };
        (0..count).map(gap).collect()
    }

    #[test]
    fn packets_leave_evenly_or_as_often_and_at_random() {
        assert!(gaps(Pace::Even(1000.0), 100).iter().all(|gap| (gap - 1.0).abs() < 1e-3));
        let random = gaps(Pace::Random(1e6), 100_000);
        let mean = random.iter().sum::<f64>() / random.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        // Of exponential gaps a part of 1/e is longer than their mean.
        let longer = random.iter().filter(|gap| **gap > 1.0).count() as f64 / random.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.01, "{longer}");
        assert!(random.iter().all(|gap| *gap >= 0.0));
    }
}
