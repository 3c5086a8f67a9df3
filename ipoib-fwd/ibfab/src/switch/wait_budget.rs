//! Limit of the time for which data from a link between switches waits for slow receivers.
//!
//! A packet that waits holds up everything behind it, including packets for other hosts. So all waits of a
//! link share a budget. While some of it is left, a packet waits up to the head-of-queue life time (IBA
//! 18.2.5.4). A link whose receivers have used it up waits for [`PASSING`] only, which a receiver that keeps
//! accepting packets does not exceed.

use std::time::{Duration, Instant};

use super::{HEAD_OF_QUEUE_LIFE, PASSING};

/// Time without a wait that returns one unit of budget: slow receivers use at most a ninth of a link's time.
const REFILL: u32 = 8;

/// Wait budget of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBudget {
    left: Duration,
    /// Time at which `left` was updated; `None` before the first wait.
    at: Option<Instant>,
}

impl WaitBudget {
    pub(super) const fn new() -> Self {
        Self { left: HEAD_OF_QUEUE_LIFE, at: None }
    }

    fn left(&self, now: Instant) -> Duration {
        let idle = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        (self.left + idle / REFILL).min(HEAD_OF_QUEUE_LIFE)
    }

    /// Returns the longest total wait of a packet that has waited since `since`.
    pub(super) fn limit(&self, since: Instant) -> Duration {
        self.left(since).max(PASSING)
    }

    /// Ends a packet's wait. The first [`PASSING`] of each wait is free.
    pub(super) fn spend(&mut self, since: Instant, now: Instant) {
        let long = now.saturating_duration_since(since).saturating_sub(PASSING);
        if !long.is_zero() {
            self.left = self.left(since + PASSING).saturating_sub(long);
            self.at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_use_the_budget_up_and_time_without_them_gives_it_back() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut budget = WaitBudget::new();
        assert_eq!(budget.limit(start), HEAD_OF_QUEUE_LIFE);
        budget.spend(start, at(101));
        assert_eq!(budget.limit(at(101)), Duration::from_millis(150));
        budget.spend(at(101), at(400));
        assert_eq!(budget.limit(at(400)), PASSING);
        assert_eq!(budget.limit(at(400 + 8 * 20)), Duration::from_millis(20));
        assert_eq!(budget.limit(at(400 + 8 * 1000)), HEAD_OF_QUEUE_LIFE, "no more than it was");
        // Short waits cost nothing, and the budget recovers during them, too.
        let mut busy = WaitBudget::new();
        busy.spend(start, at(101));
        (101..901).for_each(|ms| busy.spend(at(ms), at(ms + 1)));
        assert_eq!(busy.limit(at(901)), HEAD_OF_QUEUE_LIFE);
    }
}
