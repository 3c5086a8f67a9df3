//! How many connection requests one port of the fabric may send us: what is beyond is dropped, as the fabric might have, and sent again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_wire::Lid;

use crate::bucket::Bucket;

/// LIDs whose requests are counted at once.
const MAX_LIDS: usize = 4096;
/// Least time between two searches for buckets that are not needed any more.
const SWEEP: Duration = Duration::from_millis(10);

/// A bucket of tokens for each LID.
#[derive(Debug)]
pub(super) struct Limit {
    burst: u32,
    per_second: u32,
    buckets: HashMap<Lid, Bucket>,
    swept: Option<Instant>,
}

impl Limit {
    /// `burst` at once, and `per_second` in the long run.
    pub(super) fn new(burst: u32, per_second: u32) -> Self {
        Self { burst, per_second, buckets: HashMap::new(), swept: None }
    }

    /// Takes a token of a LID's; false if it has none.
    pub(super) fn take(&mut self, now: Instant, lid: Lid) -> bool {
        if !self.buckets.contains_key(&lid) && self.buckets.len() >= MAX_LIDS {
            if self.swept.is_some_and(|at| now.saturating_duration_since(at) < SWEEP) {
                return false;
            }
            self.swept = Some(now);
            // Those that have all their tokens again need no bucket.
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
            if self.buckets.len() >= MAX_LIDS {
                return false;
            }
        }
        let full = Bucket::new(now, self.burst, self.per_second);
        self.buckets.entry(lid).or_insert(full).take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lid_has_its_own() {
        let t = Instant::now();
        let mut limit = Limit::new(5, 10);
        assert_eq!((0..100).filter(|_| limit.take(t, Lid(1))).count(), 5);
        assert!(limit.take(t, Lid(2)), "another's requests are another's");
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let t = Instant::now();
        let mut limit = Limit::new(2, 1);
        for lid in 0..u16::MAX {
            limit.take(t, Lid(lid));
        }
        assert_eq!(limit.buckets.len(), MAX_LIDS);
        assert!(!limit.take(t, Lid(60_000)));
        assert!(limit.take(t + Duration::from_secs(5), Lid(60_000)), "those that are full again have gone");
        assert_eq!(limit.buckets.len(), 1);
    }
}
