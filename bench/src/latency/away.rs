//! Jitter of the machine itself for a polling program: times at which a processor that only reads the
//! time-stamp counter was preempted by the kernel or the hypervisor, and the delay that this alone causes for
//! a packet. No software can have less latency at these times.

use std::time::Duration;

use hdrhistogram::Histogram;
use pmd::eal;

use super::generator::{Pace, Schedule};
use super::rig::{cycles, record};
use crate::pair::ns;

/// Minimum gap between two reads of the counter that counts as a preemption. A read takes a tenth of it.
const LEAST: Duration = Duration::from_nanos(250);
/// Maximum of gaps in one observation, which stops at it.
const MOST: usize = 1 << 14;

/// The duration of an observation, and the preemptions in it, in cycles of the time-stamp counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    begin: u64,
    end: u64,
    gaps: Vec<(u64, u64)>,
}

/// Observes the processor of this thread until a time.
pub(super) fn spin(until: u64) -> Watch {
    let least = cycles(LEAST);
    // Written once before: the first access of a page would cause a gap.
    let mut gaps = vec![(1, 1); MOST];
    gaps.clear();
    let begin = eal::tsc();
    let mut last = begin;
    while last < until && gaps.len() < MOST {
        let now = eal::tsc().max(last);
        if now - last > least {
            gaps.push((last, now));
        }
        last = now;
    }
    Watch { begin, end: last, gaps }
}

impl Watch {
    /// Nanoseconds of the observation.
    pub(super) fn time(&self) -> f64 {
        ns(self.end - self.begin)
    }

    /// The same without preemptions.
    pub(super) fn without_gaps(&self) -> Self {
        Self { gaps: Vec::new(), ..*self }
    }

    /// Nanoseconds of each preemption.
    pub(super) fn gaps(&self) -> impl Iterator<Item = f64> {
        self.gaps.iter().map(|(gone, back)| ns(back - gone))
    }
}

/// A processor that works whenever it is available. Queries are in the order of time.
struct Presence<'w> {
    gaps: &'w [(u64, u64)],
}

impl Presence<'_> {
    /// The time at which work of a duration is done that starts at `from`.
    fn done(&mut self, from: f64, work: f64) -> f64 {
        let (mut at, mut left) = (from, work);
        while let Some(((gone, back), rest)) = self.gaps.split_first() {
            let (gone, back) = (*gone as f64, *back as f64);
            if gone > at + left {
                break;
            }
            if back > at {
                left -= (gone - at).max(0.0);
                at = back;
            }
            self.gaps = rest;
        }
        at + left
    }
}

/// The delay of packets at this pace, caused by other packets and by the two processors on their path
/// (generator, worker, generator), if each packet took `service` cycles of the worker, and nothing else took
/// time.
pub(super) fn waits(generator: &Watch, worker: &Watch, pace: Pace, service: f64, times: &mut Histogram<u64>) {
    let (begin, end) = (generator.begin.max(worker.begin), generator.end.min(worker.end));
    let mut schedule = Schedule::new(pace, begin, begin);
    let of = |watch| {
        let Watch { gaps, .. }: &Watch = watch;
        Presence { gaps }
    };
    let (mut sends, mut serves, mut receives) = (of(generator), of(worker), of(generator));
    let mut free = 0.0;
    while schedule.due() < end {
        let due = schedule.due() as f64;
        free = serves.done(sends.done(due, 0.0).max(free), service);
        let waited = receives.done(free, 0.0) - due - service;
        record(times, waited.max(0.0) as u64);
        schedule.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::super::histogram;
    use super::*;

    fn watch(gaps: &[(u64, u64)]) -> Watch {
        let second = eal::tsc_hz() as f64;
        let at = |us: u64| (1e9 + us as f64 * second / 1e6) as u64;
        Watch { begin: at(0), end: at(1000), gaps: gaps.iter().map(|(a, b)| (at(*a), at(*b))).collect() }
    }

    fn quantiles(generator: &Watch, worker: &Watch, pace: Pace, service: f64) -> [u64; 4] {
        let mut times = histogram();
        waits(generator, worker, pace, service, &mut times);
        [0.5, 0.9, 0.95, 1.0].map(|quantile| times.value_at_quantile(quantile) / 1000)
    }

    #[test]
    fn who_comes_while_a_processor_is_away_waits_for_the_rest_of_it() {
        eal::for_tests();
        let (here, even) = (watch(&[]), Pace::Even(1e7));
        assert_eq!(quantiles(&here, &here, even, 0.0), [0; 4]);
        // A tenth of the time: the median delay is half of it.
        let away = watch(&[(200, 300)]);
        for (generator, worker) in [(&here, &away), (&away, &here)] {
            let [half, most, middle, longest] = quantiles(generator, worker, even, 0.0);
            assert_eq!((half, most), (0, 0));
            assert!((48..=52).contains(&middle) && (99..=100).contains(&longest), "{middle} {longest}");
        }
        // Successive preemptions.
        let [.., longest] = quantiles(&away, &watch(&[(300, 400)]), even, 0.0);
        assert!((199..=200).contains(&longest), "{longest}");
    }

    #[test]
    fn at_half_of_the_maximum_an_absence_takes_as_long_again_to_work_off() {
        eal::for_tests();
        let service = eal::tsc_hz() as f64 / 2e6;
        let away = watch(&[(200, 300)]);
        let [half, most, _, longest] = quantiles(&watch(&[]), &away, Pace::Even(1e6), service);
        // A fifth of the packets is delayed, evenly distributed.
        assert_eq!(half, 0);
        assert!((45..=55).contains(&most) && (95..=101).contains(&longest), "{most} {longest}");
    }

    #[test]
    fn work_goes_on_where_it_stopped() {
        let mut presence = Presence { gaps: &[(10, 20), (25, 30), (40, 50)] };
        let done = [(0.0, 5.0), (5.0, 9.0), (24.0, 3.0), (45.0, 0.0), (60.0, 1.0)];
        let done = done.map(|(from, work)| presence.done(from, work));
        assert_eq!(done, [5.0, 24.0, 32.0, 50.0, 61.0]);
    }

    #[test]
    fn a_processor_is_looked_at_until_then() {
        eal::for_tests();
        let until = eal::tsc() + cycles(Duration::from_millis(2));
        let watch = spin(until);
        assert!(watch.end >= until || watch.gaps.len() == MOST);
        let least = ns(cycles(LEAST));
        assert!(watch.gaps().all(|gap| gap > least) && watch.gaps().sum::<f64>() <= watch.time() + 1.0);
    }
}
