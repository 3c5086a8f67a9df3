//! Deadlines of many objects, the earliest first.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ib_wire::TimeoutCode;
use ib_wire::sa::LifeTime;

/// A set with at most one deadline per key. The owner stores each deadline with its object, so that it can be
/// cancelled.
#[derive(Debug)]
pub(crate) struct Timers<K>(BTreeSet<(Instant, K)>);

impl<K: Ord + Copy> Timers<K> {
    pub(crate) const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Moves `key` from the deadline in `slot` to `at`.
    pub(crate) fn set(&mut self, key: K, slot: &mut Option<Instant>, at: Option<Instant>) {
        if let Some(old) = slot.take() {
            self.0.remove(&(old, key));
        }
        if let Some(new) = at {
            self.0.insert((new, key));
        }
        *slot = at;
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes and returns the earliest key that is due. The owner clears its own copy of the deadline.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, key)| key)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Converts a timeout code as Linux's CM does: to a power of two in milliseconds.
pub(crate) const fn response_time(code: TimeoutCode) -> Duration {
    Duration::from_millis(1 << code.code().saturating_sub(8))
}

/// Computes the code of the local ACK timeout from the round trip (one more than the lifetime) and the remote
/// adapter's delay. It is the larger of the two, or one more if they differ by at most one.
pub(crate) fn ack_timeout(ack_delay: TimeoutCode, life_time: LifeTime) -> TimeoutCode {
    let delay = ack_delay.code();
    let way = life_time.timeout().code() + 1;
    let code =
        if way >= delay { way + u8::from(delay >= way - 1) } else { delay + u8::from(way >= delay - 1) };
    TimeoutCode::new(code.min(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(delay: u8, life: u8) -> u8 {
        ack_timeout(TimeoutCode::new(delay), LifeTime::new(life)).code()
    }

    #[test]
    fn ack_timeout_adds_one_only_where_both_matter() {
        assert_eq!(ack(0, 18), 19, "no delay: the round trip");
        assert_eq!(ack(15, 18), 19, "the delay is small compared with the round trip");
        assert_eq!(ack(18, 18), 20);
        assert_eq!(ack(19, 18), 20);
        assert_eq!(ack(20, 18), 21);
        assert_eq!(ack(21, 18), 21);
        assert_eq!(ack(31, 31), 31, "five bits");
        assert_eq!(ack(0, 0), 2, "a delay within one of the round trip");
    }

    #[test]
    fn response_time_is_linux_s() {
        assert_eq!(response_time(TimeoutCode::new(20)), Duration::from_millis(4096));
        assert_eq!(response_time(TimeoutCode::new(3)), Duration::from_millis(1));
    }

    #[test]
    fn timers_come_in_order_and_can_be_moved() {
        let t = Instant::now();
        let s = |n| t + Duration::from_secs(n);
        let mut timers = Timers::new();
        let (mut a, mut b) = (None, None);
        timers.set(1, &mut a, Some(s(5)));
        timers.set(2, &mut b, Some(s(3)));
        timers.set(1, &mut a, Some(s(2)));
        assert_eq!((timers.len(), timers.next()), (2, Some(s(2))));
        assert_eq!(timers.pop_due(s(1)), None);
        assert_eq!(timers.pop_due(s(3)), Some(1));
        timers.set(2, &mut b, None);
        assert_eq!((timers.pop_due(s(9)), b), (None, None));
    }
}
