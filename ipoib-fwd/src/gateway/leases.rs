//! Leases: how long workers may forward without a sign of life from the control lcore.
//!
//! Worker 0 sends the control lcore's hellos, and renews a segment's lease after each of them
//! ([`Pair::lease_end`](crate::segment::pair::Pair::lease_end)). All workers read the lease. If the control
//! lcore or worker 0 hangs, no lease is renewed, and the other workers stop before another gateway takes
//! over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::forward::{MAX_SEGMENTS, SegmentIndex};

/// The end of a lease without an end: there is no other gateway.
const NEVER: u64 = u64::MAX;

/// The leases of all segments, in nanoseconds since [`Leases::new`].
#[derive(Debug)]
pub struct Leases {
    origin: Instant,
    /// The earliest of the ends. Workers look at nothing else while no lease is over.
    first: AtomicU64,
    ends: [AtomicU64; MAX_SEGMENTS],
}

impl Leases {
    /// Creates leases without an end.
    #[must_use]
    pub fn new(origin: Instant) -> Self {
        let never = || AtomicU64::new(NEVER);
        Self { origin, first: never(), ends: std::array::from_fn(|_| never()) }
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// Sets the end of a segment's lease; `None`: it has no end. Called by one worker only.
    // Release: a worker that reads the new end reads tables that are at least as new as the command for it.
    pub(super) fn renew(&self, segment: SegmentIndex, end: Option<Instant>) {
        let Some(place) = self.ends.get(usize::from(segment.0)) else { return };
        place.store(end.map_or(NEVER, |end| self.nanoseconds(end)), Ordering::Release);
        let first = self.ends.iter().map(|end| end.load(Ordering::Relaxed)).min();
        self.first.store(first.unwrap_or(NEVER), Ordering::Release);
    }
}

/// A worker's view of the leases.
#[derive(Debug)]
pub(super) struct LeaseReader {
    leases: Arc<Leases>,
    now: u64,
    is_any_over: bool,
}

impl LeaseReader {
    pub(super) const fn new(leases: Arc<Leases>) -> Self {
        Self { leases, now: 0, is_any_over: false }
    }

    /// Starts an iteration.
    #[inline]
    pub(super) fn begin_turn(&mut self, now: Instant) {
        self.now = self.leases.nanoseconds(now);
        self.is_any_over = self.leases.first.load(Ordering::Acquire) <= self.now;
    }

    /// True if the lease of any segment is over.
    #[inline]
    pub(super) const fn is_any_over(&self) -> bool {
        self.is_any_over
    }

    /// True if a segment's lease is over.
    #[inline]
    pub(super) fn is_over(&self, segment: SegmentIndex) -> bool {
        self.is_any_over
            && self
                .leases
                .ends
                .get(usize::from(segment.0))
                .is_some_and(|end| end.load(Ordering::Acquire) <= self.now)
    }

    /// Renews a segment's lease.
    pub(super) fn renew(&self, segment: SegmentIndex, end: Option<Instant>) {
        self.leases.renew(segment, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_segment_has_its_own_end_and_one_test_shows_that_none_is_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let leases = Arc::new(Leases::new(start));
        let mut reader = LeaseReader::new(Arc::clone(&leases));
        let mut over = |now| {
            reader.begin_turn(now);
            let of = [0, 1, 63].map(|segment| reader.is_over(SegmentIndex(segment)));
            (reader.is_any_over(), of)
        };
        assert_eq!(over(at(1_000_000)), (false, [false; 3]), "no other gateway");
        leases.renew(SegmentIndex(1), Some(at(10)));
        leases.renew(SegmentIndex(63), Some(at(20)));
        assert_eq!(over(at(10) - Duration::from_nanos(1)), (false, [false; 3]));
        assert_eq!(over(at(10)), (true, [false, true, false]));
        assert_eq!(over(at(20)), (true, [false, true, true]));
        leases.renew(SegmentIndex(1), Some(at(30)));
        assert_eq!(over(at(20)), (true, [false, false, true]));
        leases.renew(SegmentIndex(63), None);
        assert_eq!(over(at(29)), (false, [false; 3]));
        leases.renew(SegmentIndex(u8::MAX), Some(at(1)));
        assert_eq!(over(at(29)), (false, [false; 3]), "there is no such segment");
    }
}
