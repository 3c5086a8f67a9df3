//! Traps of a port's agent, each repeated until the subnet manager has heard it (IBA 13.4.9, 14.3.9).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_wire::Tid;
use ib_wire::sa::Notice;
use ib_wire::smp::Smp;

/// Time between two repetitions of a trap, and how often it is sent.
const INTERVAL: Duration = Duration::from_secs(1);
const TRIES: u8 = 4;
/// Most traps that wait to be heard: the oldest makes room.
const MAX_TRAPS: usize = 4;

#[derive(Debug)]
struct Trap {
    smp: Smp,
    left: u8,
    /// `None`: at once.
    due: Option<Instant>,
}

/// Those that nobody has repressed yet.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    waiting: VecDeque<Trap>,
    last_tid: u64,
}

impl Traps {
    /// Has something to tell.
    pub(crate) fn raise(&mut self, notice: &Notice) {
        if self.waiting.len() == MAX_TRAPS {
            self.waiting.pop_front();
        }
        self.last_tid += 1;
        self.waiting.push_back(Trap { smp: notice.to_trap(Tid(self.last_tid)), left: TRIES, due: None });
    }

    /// Has something to tell that is not told anew while the same kind of thing waits to be heard: whoever brings it about at will does not
    /// push out what the others tell.
    pub(crate) fn raise_alone(&mut self, notice: &Notice) {
        let same =
            |trap: &Trap| trap.smp.attribute::<Notice>().is_some_and(|n| n.trap_number == notice.trap_number);
        if !self.waiting.iter().any(same) {
            self.raise(notice);
        }
    }

    /// The subnet manager has heard the trap. False if there was none like that.
    pub(crate) fn repress(&mut self, tid: Tid) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|trap| trap.smp.header.tid != tid);
        self.waiting.len() < before
    }

    /// There is nobody to tell.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The next one that is to be sent.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Smp> {
        self.waiting.retain(|trap| trap.left > 0 || trap.due.is_some_and(|due| due > now));
        let trap = self.waiting.iter_mut().find(|trap| trap.due.is_none_or(|due| due <= now))?;
        trap.left -= 1;
        trap.due = Some(now + INTERVAL);
        Some(trap.smp)
    }

    /// When it wants to be polled.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.waiting.iter().map(|trap| trap.due.unwrap_or(now)).min()
    }
}
