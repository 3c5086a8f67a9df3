//! Packets that leave on schedule, independent of earlier packets, and their results.

use hdrhistogram::Histogram;
use pmd::eal;

use super::histogram;

/// Rate of packets per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Pace {
    /// At random, as from many independent senders.
    Random(f64),
    /// At even intervals.
    Even(f64),
}

/// The schedule of packets, in cycles of the time-stamp counter. It is independent of the actual sends.
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

    /// The scheduled time of the next packet.
    #[inline]
    pub(super) const fn due(&self) -> u64 {
        self.next as u64
    }

    /// Advances to the next packet.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next += match &mut self.random {
            None => self.mean,
            Some(state) => {
                // xorshift64.
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                // (0, 1]: the logarithm gives exponentially distributed gaps.
                let uniform = ((*state >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                -uniform.ln() * self.mean
            }
        };
    }
}

/// The results of the packets of a cell.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// Nanoseconds from the scheduled time to the arrival or, for lost packets, to the timeout.
    pub(super) times: Histogram<u64>,
    /// Nanoseconds from the scheduled time to the actual send.
    pub(super) lateness: Histogram<u64>,
    /// Packets that did not arrive.
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

    /// Gaps of a schedule, relative to their mean.
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
        // A fraction of 1/e of exponential gaps is longer than their mean.
        let longer = random.iter().filter(|gap| **gap > 1.0).count() as f64 / random.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.01, "{longer}");
        assert!(random.iter().all(|gap| *gap >= 0.0));
    }
}
