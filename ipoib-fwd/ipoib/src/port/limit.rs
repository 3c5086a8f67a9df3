//! Rate limit of messages that are answered for any sender, first of all connection requests, by port of the
//! fabric.
//!
//! Messages beyond the limit are dropped, as the fabric might have dropped them, and the sender repeats them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cm::Origin;

use crate::bucket::Bucket;

/// Most ports that have a bucket at a time.
const MAX_PORTS: usize = 4096;
/// Least time between two sweeps for buckets that are no longer needed.
const SWEEP: Duration = Duration::from_millis(10);

/// A token bucket for each port of the fabric.
#[derive(Debug)]
pub(super) struct Limit {
    burst: u32,
    per_second: u32,
    buckets: HashMap<Origin, Bucket>,
    swept: Option<Instant>,
}

impl Limit {
    /// Limits of each port: `burst` at once, and `per_second` in the long run.
    pub(super) fn new(burst: u32, per_second: u32) -> Self {
        Self { burst, per_second, buckets: HashMap::new(), swept: None }
    }

    /// Takes a token from a port's bucket; false if it has none.
    pub(super) fn take(&mut self, now: Instant, origin: Origin) -> bool {
        if !self.buckets.contains_key(&origin) && self.buckets.len() >= MAX_PORTS {
            if self.swept.is_some_and(|at| now.saturating_duration_since(at) < SWEEP) {
                return false;
            }
            self.swept = Some(now);
            // A port whose bucket is full again needs no bucket.
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
            if self.buckets.len() >= MAX_PORTS {
                return false;
            }
        }
        let full = Bucket::new(now, self.burst, self.per_second);
        self.buckets.entry(origin).or_insert(full).take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ib_wire::Lid;

    fn at(lid: u16) -> Origin {
        Origin::Lid(Lid(lid))
    }

    #[test]
    fn each_port_has_its_own() {
        let t = Instant::now();
        let mut limit = Limit::new(5, 10);
        assert_eq!((0..100).filter(|_| limit.take(t, at(1))).count(), 5);
        assert!(limit.take(t, at(2)), "requests of one port do not count for another");
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let t = Instant::now();
        let mut limit = Limit::new(2, 1);
        for lid in 0..u16::MAX {
            limit.take(t, at(lid));
        }
        assert_eq!(limit.buckets.len(), MAX_PORTS);
        assert!(!limit.take(t, at(60_000)));
        assert!(limit.take(t + Duration::from_secs(5), at(60_000)), "full buckets are removed");
        assert_eq!(limit.buckets.len(), 1);
    }
}
