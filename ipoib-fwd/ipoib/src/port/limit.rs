//! How many connection requests one port of the fabric may send us: what is beyond is dropped, as the fabric might have, and sent again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_wire::Lid;

/// LIDs whose requests are counted at once.
const MAX_LIDS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    filled: Instant,
}

/// A bucket of tokens for each LID.
#[derive(Debug)]
pub(super) struct Limit {
    burst: u32,
    /// One token comes back in this time.
    pause: Duration,
    buckets: HashMap<Lid, Bucket>,
    /// When full buckets were last looked for: once in the time that one needs to fill.
    swept: Option<Instant>,
}

impl Limit {
    /// `burst` at once, and `per_second` in the long run; neither is 0.
    pub(super) fn new(burst: u32, per_second: u32) -> Self {
        let pause = Duration::from_secs(1) / per_second.max(1);
        Self { burst: burst.max(1), pause, buckets: HashMap::new(), swept: None }
    }

    fn fill(&self, bucket: Bucket, now: Instant) -> Bucket {
        let due = now.saturating_duration_since(bucket.filled).as_nanos() / self.pause.as_nanos().max(1);
        let fresh = u32::try_from(due).unwrap_or(u32::MAX);
        if bucket.tokens.saturating_add(fresh) >= self.burst {
            return Bucket { tokens: self.burst, filled: now };
        }
        Bucket { tokens: bucket.tokens + fresh, filled: bucket.filled + self.pause * fresh }
    }

    /// Takes a token of a LID's; false if it has none.
    pub(super) fn take(&mut self, now: Instant, lid: Lid) -> bool {
        if !self.buckets.contains_key(&lid) && self.buckets.len() >= MAX_LIDS {
            if self.swept.is_some_and(|at| now.saturating_duration_since(at) < self.pause) {
                return false;
            }
            self.swept = Some(now);
            // Those that have all their tokens again need no bucket.
            let mut buckets = std::mem::take(&mut self.buckets);
            buckets.retain(|_, bucket| self.fill(*bucket, now).tokens < self.burst);
            self.buckets = buckets;
            if self.buckets.len() >= MAX_LIDS {
                return false;
            }
        }
        let full = Bucket { tokens: self.burst, filled: now };
        let bucket = self.fill(self.buckets.get(&lid).copied().unwrap_or(full), now);
        let left = bucket.tokens.checked_sub(1);
        self.buckets.insert(lid, Bucket { tokens: left.unwrap_or(0), ..bucket });
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_so_many_a_second_for_each() {
        let t = Instant::now();
        let mut limit = Limit::new(5, 10);
        assert_eq!((0..100).filter(|_| limit.take(t, Lid(1))).count(), 5);
        assert!(limit.take(t, Lid(2)), "another's requests are another's");
        let taken = (0..3000).filter(|ms| limit.take(t + Duration::from_millis(*ms), Lid(1))).count();
        assert!((29..=30).contains(&taken), "{taken}");
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
