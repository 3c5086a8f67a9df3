//! Moderation of completion events: several completions, or a period, for one event.

use std::time::Duration;

/// Number of completions before an event, and the longest delay of the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moderation {
    count: u16,
    period: Duration,
}

impl Moderation {
    /// Creates a setting; `None` (no moderation) if either is zero.
    pub(crate) fn new(count: u16, period: Duration) -> Option<Self> {
        (count > 0 && !period.is_zero()).then_some(Self { count, period })
    }

    /// Completions for one event.
    pub(crate) const fn count(self) -> u16 {
        self.count
    }

    /// Longest delay from the first completion to the event.
    pub(crate) const fn period(self) -> Duration {
        self.period
    }
}

/// Effect of a completion, or of arming the queue, on its waiters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notify {
    /// No event: the queue is not armed, or not for this completion.
    Nothing,
    /// An event is due now.
    Event,
    /// The event is delayed until more completions arrive or the period ends.
    Held,
}

/// The delayed event of an armed queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    /// Completions still missing before the event; 0 if no event is delayed.
    missing: u16,
}

impl Held {
    /// Counts `came` completions that qualify for the event.
    pub(crate) fn count(&mut self, by: Option<Moderation>, came: u32) -> Notify {
        let Some(moderation) = by else {
            self.missing = 0;
            return Notify::Event;
        };
        let missing = if self.missing > 0 { self.missing } else { moderation.count };
        self.missing = u16::try_from(u32::from(missing).saturating_sub(came)).unwrap_or(0);
        if self.missing == 0 { Notify::Event } else { Notify::Held }
    }
}
