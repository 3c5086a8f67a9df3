//! Tries of something that fails again and again.

use std::time::Duration;

/// Longest time between two tries.
const LONGEST: Duration = Duration::from_secs(60);

/// Time between tries: a second after the first failure, then twice as long each time, up to a minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Nothing has failed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { failures: 0 }
    }

    /// It has failed once more: time until the next try.
    pub const fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.pause()
    }

    /// It has worked.
    pub const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How often it has failed since it last worked.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Time between the last failure and the next try; a second if there was none.
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
    fn it_doubles_up_to_a_minute_and_begins_anew() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..9).map(|_| backoff.failed().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.failures(), 9);
        backoff.succeeded();
        assert_eq!(backoff.pause().as_secs(), 1);
    }
}
