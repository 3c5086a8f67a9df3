//! Traps of a subnet management agent, each repeated until the subnet manager has heard it (IBA 13.4.9, 14.3.9).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_wire::Tid;
use ib_wire::sa::Notice;
use ib_wire::smp::Smp;

/// Time between two repetitions of a trap.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// How often it is sent.
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

impl Trap {
    /// It tells of the same kind of thing.
    fn is_of(&self, notice: &Notice) -> bool {
        self.smp.attribute::<Notice>().is_some_and(|own| own.trap_number == notice.trap_number)
    }
}

/// Those that nobody has repressed yet.
#[derive(Debug, Default)]
pub struct Traps {
    waiting: VecDeque<Trap>,
    last_tid: u64,
}

impl Traps {
    /// Has something to tell.
    pub fn raise(&mut self, notice: &Notice) {
        if self.waiting.len() == MAX_TRAPS {
            self.waiting.pop_front();
        }
        self.last_tid += 1;
        self.waiting.push_back(Trap { smp: notice.to_trap(Tid(self.last_tid)), left: TRIES, due: None });
    }

    /// Has something to tell that is not told anew while the same kind of thing waits to be heard: whoever brings it about at will does not
    /// push out what the others tell.
    pub fn raise_alone(&mut self, notice: &Notice) {
        if !self.waiting.iter().any(|trap| trap.is_of(notice)) {
            self.raise(notice);
        }
    }

    /// Has something to tell in place of the same kind of thing that waits to be heard: the subnet manager has to know that it came again, not how often.
    pub fn raise_anew(&mut self, notice: &Notice) {
        self.waiting.retain(|trap| !trap.is_of(notice));
        self.raise(notice);
    }

    /// One of that number waits to be heard.
    #[must_use]
    pub fn has(&self, tid: Tid) -> bool {
        self.waiting.iter().any(|trap| trap.smp.header.tid == tid)
    }

    /// The subnet manager has heard the trap. False if there was none like that.
    pub fn repress(&mut self, tid: Tid) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|trap| trap.smp.header.tid != tid);
        self.waiting.len() < before
    }

    /// There is nobody to tell.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The next one that is to be sent.
    pub fn poll(&mut self, now: Instant) -> Option<Smp> {
        self.waiting.retain(|trap| trap.left > 0 || trap.due.is_some_and(|due| due > now));
        let trap = self.waiting.iter_mut().find(|trap| trap.due.is_none_or(|due| due <= now))?;
        trap.left -= 1;
        trap.due = Some(now + INTERVAL);
        Some(trap.smp)
    }

    /// When it wants to be polled.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.waiting.iter().map(|trap| trap.due.unwrap_or(now)).min()
    }
}
