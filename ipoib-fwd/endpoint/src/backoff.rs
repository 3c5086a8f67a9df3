//! Delays between retries of an operation that fails repeatedly.

use std::time::Duration;

/// Longest delay between two tries.
const LONGEST: Duration = Duration::from_secs(60);

/// Exponential backoff: a second after the first failure, then twice as long each time, up to a minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Creates one without failures.
    #[must_use]
    pub const fn new() -> Self {
        Self { failures: 0 }
    }

    /// Counts a failure; returns the delay until the next try.
    pub const fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.pause()
    }

    /// Resets it after a success.
    pub const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of failures since the last success.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the delay between the last failure and the next try; a second if there was none.
    #[must_use]
    pub const fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1);
        if doublings > 5 { LONGEST } else { Duration::from_secs(1 << doublings) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_a_minute_and_restarts_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..9).map(|_| backoff.failed().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.failures(), 9);
        backoff.succeeded();
        assert_eq!(backoff.pause().as_secs(), 1);
    }
}
