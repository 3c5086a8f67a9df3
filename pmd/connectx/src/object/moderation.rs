//! Moderation of completion events: several completions, or some time, for one event.

use std::time::Duration;

/// How many completions a queue waits for before it tells, and for how long at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moderation {
    count: u16,
    period: Duration,
}

impl Moderation {
    /// `None`, for none, if either is zero.
    pub(crate) fn new(count: u16, period: Duration) -> Option<Self> {
        (count > 0 && !period.is_zero()).then_some(Self { count, period })
    }

    /// Completions for one event.
    pub(crate) const fn count(self) -> u16 {
        self.count
    }

    /// From the first completion until it is told at the latest.
    pub(crate) const fn period(self) -> Duration {
        self.period
    }
}

/// What a completion, or arming a queue, came to for whoever waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// Nothing is to be told: nobody has asked, or not for this.
    Nothing,
    /// An event is due now.
    Event,
    /// An event is held back until more come or the period is over.
    Held,
}

/// The event of a queue that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    /// Completions that it still waits for; 0 if it does not wait.
    missing: u16,
}

impl Held {
    /// So many completions have come that the event is about.
    pub(crate) fn count(&mut self, by: Option<Moderation>, came: u32) -> Told {
        let Some(moderation) = by else {
            self.missing = 0;
            return Told::Event;
        };
        let missing = if self.missing > 0 { self.missing } else { moderation.count };
        self.missing = u16::try_from(u32::from(missing).saturating_sub(came)).unwrap_or(0);
        if self.missing == 0 { Told::Event } else { Told::Held }
    }
}
