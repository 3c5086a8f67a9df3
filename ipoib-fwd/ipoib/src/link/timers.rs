//! The link's deadlines, one for each pending operation.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::Instant;

use ib_wire::{Gid, Qpn};

use super::action::ConnKey;
use super::settings::WorkerIndex;

/// The owner of a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Timer {
    /// A group's next attempt to join.
    Group(Ipv4Addr),
    /// The time limit of a connection's step.
    Conn(ConnKey),
    /// The next dial of a peer from a worker.
    Dial(Gid, Qpn, WorkerIndex),
    /// Close the connections to an address that a neighbour has left.
    Left(Gid, Qpn),
    /// Close the connections that a port opened under an address that it has left.
    Moved(Gid, Qpn),
    /// The oldest passive connection's expiry.
    PassiveExpiry,
    /// Drop unused paths.
    PathSweep,
    /// The time limit of a shutdown.
    Shutdown,
}

/// A set of deadlines, at most one for each [`Timer`].
#[derive(Debug, Default)]
pub(super) struct Timers {
    at: HashMap<Timer, Instant>,
    queue: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    /// Sets a deadline; replaces an earlier one of the same timer.
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.cancel(timer);
        self.at.insert(timer, at);
        self.queue.insert((at, timer));
    }

    /// Cancels a deadline.
    pub(super) fn cancel(&mut self, timer: Timer) {
        if let Some(at) = self.at.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    /// The deadline of a timer.
    pub(super) fn get(&self, timer: Timer) -> Option<Instant> {
        self.at.get(&timer).copied()
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the earliest timer whose deadline has come.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.at.remove(&timer);
        Some(timer)
    }

    /// The number of deadlines.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn setting_again_replaces() {
        let t0 = Instant::now();
        let mut timers = Timers::default();
        timers.set(Timer::PathSweep, t0 + Duration::from_secs(1));
        timers.set(Timer::PathSweep, t0 + Duration::from_secs(3));
        timers.set(Timer::Shutdown, t0 + Duration::from_secs(2));
        assert_eq!(timers.len(), 2);
        assert_eq!(timers.expired(t0 + Duration::from_secs(1)), None);
        assert_eq!(timers.expired(t0 + Duration::from_secs(9)), Some(Timer::Shutdown));
        timers.cancel(Timer::PathSweep);
        assert_eq!(timers.next(), None);
        assert_eq!(timers.get(Timer::PathSweep), None);
    }
}
