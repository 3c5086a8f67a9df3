//! How often an address is defended against hosts that claim it (RFC 5227 2.4): at most once in [`DEFEND`].
//!
//! A host believes the last announcement that it heard. So a claim within the interval causes one more
//! announcement at the end of the interval. Without it, hosts that believed the claimant would keep its
//! hardware address until their own entries age.

use std::time::{Duration, Instant};

/// Least time between two announcements that defend one address (RFC 5227: DEFEND_INTERVAL).
pub(super) const DEFEND: Duration = Duration::from_secs(10);

/// The defence of one address. `C` is what is known of a claimant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defence<C> {
    /// When the address was defended last.
    last: Option<Instant>,
    /// The last claimant since then.
    claimant: Option<C>,
}

impl<C> Default for Defence<C> {
    fn default() -> Self {
        Self { last: None, claimant: None }
    }
}

impl<C: Copy> Defence<C> {
    /// Records a claim to the address. Returns true if it is defended now, and false if it is defended when
    /// the interval ends.
    pub(super) fn defend(&mut self, now: Instant, claimant: C) -> bool {
        if self.is_recent(now) {
            self.claimant = Some(claimant);
            return false;
        }
        (self.last, self.claimant) = (Some(now), None);
        true
    }

    /// Records a further claim after the address was defended. Returns the time of the next defense: the end
    /// of the interval, or `None` if the address was not defended.
    pub(super) fn note(&mut self, now: Instant, claimant: C) -> Option<Instant> {
        if self.is_recent(now) {
            self.claimant = Some(claimant);
        }
        self.due()
    }

    /// Clears the claims until now: they need no further announcement.
    pub(super) const fn settle(&mut self) {
        self.claimant = None;
    }

    /// True if the address was defended within the interval before `now`.
    pub(super) fn is_recent(&self, now: Instant) -> bool {
        self.last.is_some_and(|at| now.saturating_duration_since(at) < DEFEND)
    }

    /// Time of the next defense.
    pub(super) fn due(&self) -> Option<Instant> {
        self.last.filter(|_| self.claimant.is_some()).map(|at| at + DEFEND)
    }

    /// Takes the last claimant if the next defense is due at `now`.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<C> {
        self.due().filter(|due| *due <= now)?;
        self.last = Some(now);
        self.claimant.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_an_interval_have_one_defence_at_its_end() {
        let (mut defence, start) = (Defence::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(defence.note(at(0), 1), None, "it was not defended");
        assert!(defence.defend(at(0), 1));
        assert_eq!(defence.due(), None, "nobody has claimed it since");
        assert!(!defence.defend(at(3), 2));
        assert_eq!(defence.note(at(4), 3), Some(at(10)));
        assert_eq!(defence.take_due(at(9)), None);
        assert_eq!(defence.take_due(at(10)), Some(3));
        assert_eq!(defence.take_due(at(30)), None, "one for all claims");
        // The next interval starts with that announcement.
        assert!(!defence.defend(at(19), 4));
        defence.settle();
        assert_eq!(defence.due(), None);
        assert!(defence.defend(at(20), 5));
    }
}
