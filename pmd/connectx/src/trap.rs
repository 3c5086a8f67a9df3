//! Traps of a subnet management agent, each repeated until the subnet manager represses it (IBA 13.4.9,
//! 14.3.9).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_wire::Tid;
use ib_wire::sa::Notice;
use ib_wire::smp::Smp;

/// Interval between repetitions of a trap.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// How often a trap is sent.
const TRIES: u8 = 4;
/// Largest number of pending traps. A new trap replaces the oldest.
const MAX_TRAPS: usize = 4;

#[derive(Debug)]
struct Trap {
    smp: Smp,
    left: u8,
    /// `None`: at once.
    due: Option<Instant>,
}

impl Trap {
    /// True if the notice is of the same kind.
    fn is_of(&self, notice: &Notice) -> bool {
        self.smp.attribute::<Notice>().is_some_and(|own| own.trap_number == notice.trap_number)
    }
}

/// Traps that are not repressed yet.
#[derive(Debug, Default)]
pub struct Traps {
    waiting: VecDeque<Trap>,
    last_tid: u64,
}

impl Traps {
    /// Raises a trap.
    pub fn raise(&mut self, notice: &Notice) {
        if self.waiting.len() == MAX_TRAPS {
            self.waiting.pop_front();
        }
        self.last_tid += 1;
        self.waiting.push_back(Trap { smp: notice.to_trap(Tid(self.last_tid)), left: TRIES, due: None });
    }

    /// Raises a trap unless one of the same kind is pending. A sender that can cause it at will cannot
    /// displace other traps.
    pub fn raise_alone(&mut self, notice: &Notice) {
        if !self.waiting.iter().any(|trap| trap.is_of(notice)) {
            self.raise(notice);
        }
    }

    /// Raises a trap in place of a pending one of the same kind. The subnet manager must learn that the
    /// condition recurred, not how often.
    pub fn raise_anew(&mut self, notice: &Notice) {
        self.waiting.retain(|trap| !trap.is_of(notice));
        self.raise(notice);
    }

    /// True if a trap with this number is pending.
    #[must_use]
    pub fn has(&self, tid: Tid) -> bool {
        self.waiting.iter().any(|trap| trap.smp.header.tid == tid)
    }

    /// Removes a trap that the subnet manager repressed. Returns false if no such trap is pending.
    pub fn repress(&mut self, tid: Tid) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|trap| trap.smp.header.tid != tid);
        self.waiting.len() < before
    }

    /// Removes all traps, because no subnet manager is left to receive them.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The next trap to send.
    pub fn poll(&mut self, now: Instant) -> Option<Smp> {
        self.waiting.retain(|trap| trap.left > 0 || trap.due.is_some_and(|due| due > now));
        let trap = self.waiting.iter_mut().find(|trap| trap.due.is_none_or(|due| due <= now))?;
        trap.left -= 1;
        trap.due = Some(now + INTERVAL);
        Some(trap.smp)
    }

    /// When to call [`Traps::poll`] next.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.waiting.iter().map(|trap| trap.due.unwrap_or(now)).min()
    }
}
