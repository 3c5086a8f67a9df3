//! A token bucket: limits the rate of an operation.

use std::time::{Duration, Instant};

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    burst: u32,
    /// Time until one token is added.
    pause: Duration,
    tokens: u32,
    filled: Instant,
}

impl Bucket {
    /// A full bucket: `burst` tokens at once, and `per_second` in the long run. 0 counts as 1.
    #[must_use]
    pub fn new(now: Instant, burst: u32, per_second: u32) -> Self {
        let (burst, pause) = (burst.max(1), Duration::from_secs(1) / per_second.max(1));
        Self { burst, pause, tokens: burst, filled: now }
    }

    fn fill(&mut self, now: Instant) {
        let due = now.saturating_duration_since(self.filled).as_nanos() / self.pause.as_nanos().max(1);
        let fresh = u32::try_from(due).unwrap_or(u32::MAX);
        if self.tokens.saturating_add(fresh) >= self.burst {
            (self.tokens, self.filled) = (self.burst, self.filled.max(now));
        } else {
            self.tokens += fresh;
            self.filled += self.pause * fresh;
        }
    }

    /// Takes a token; false if there is none.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let left = self.tokens.checked_sub(1);
        self.tokens = left.unwrap_or(0);
        left.is_some()
    }

    /// True if no token is missing.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.tokens == self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_followed_by_the_configured_rate() {
        let t = Instant::now();
        let mut bucket = Bucket::new(t, 5, 10);
        assert_eq!((0..100).filter(|_| bucket.take(t)).count(), 5);
        let taken = (0..3000).filter(|ms| bucket.take(t + Duration::from_millis(*ms))).count();
        assert!((29..=30).contains(&taken), "{taken}");
        assert!(!bucket.is_full(t + Duration::from_millis(3100)));
        assert!(bucket.is_full(t + Duration::from_millis(3700)));
        assert!(bucket.take(t), "time that goes back takes nothing away");
        let late = t + Duration::from_secs(3600);
        assert!(bucket.is_full(late));
        assert_eq!((0..100).filter(|_| bucket.take(t)).count(), 5);
        assert_eq!((0..100).filter(|_| bucket.take(late)).count(), 0, "nor does it give twice");
    }
}
