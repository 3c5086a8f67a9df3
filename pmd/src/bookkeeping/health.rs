//! Error state of a queue pair's sends, and which faults have been reported.

use arrayvec::ArrayVec;
use ib_wire::Qpn;

use crate::hca::{BURST, QpEvent, QpFault, WcStatus};

/// State of a send queue, derived from its completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Health {
    failed: bool,
    flush_reported: bool,
}

/// Summary of a send completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    /// Queue pair.
    pub(crate) qpn: Qpn,
    /// Completion status.
    pub(crate) status: WcStatus,
    /// True if the drain request was among the completed entries.
    pub(crate) drained: bool,
    /// Number of sends still outstanding.
    pub(crate) outstanding: u32,
    /// True for a datagram queue pair. Only such a queue pair can recover from an error.
    pub(crate) datagram: bool,
}

impl Health {
    /// Maximum number of events that one completion causes.
    pub(crate) const MAX_EVENTS: usize = 3;

    /// True if the queue pair is in error.
    #[inline]
    pub(crate) const fn failed(&self) -> bool {
        self.failed
    }

    /// Marks the queue pair as failed.
    pub(crate) const fn fail(&mut self) {
        self.failed = true;
    }

    /// Marks the flush as reported, for a queue pair with nothing outstanding that was reported otherwise.
    pub(crate) const fn flushed(&mut self) {
        self.flush_reported = true;
    }

    /// Resets the state after a restart of the queue pair.
    pub(crate) const fn restart(&mut self) {
        *self = Self { failed: false, flush_reported: false };
    }

    /// Records a send completion and reports faults. Callers guarantee room for [`Health::MAX_EVENTS`]
    /// events.
    #[inline]
    pub(crate) fn completed(&mut self, what: Completed, events: &mut ArrayVec<QpEvent, BURST>) {
        let mut event = |fault| {
            let _ = events.try_push(QpEvent { qpn: what.qpn, fault });
        };
        if what.status == WcStatus::Success {
            if what.datagram {
                self.restart();
            }
        } else {
            self.failed = true;
            if what.status != WcStatus::Flushed {
                self.flush_reported = false;
                event(QpFault::Send(what.status));
            }
        }
        if what.drained {
            event(QpFault::Drained);
        }
        if self.failed && what.outstanding == 0 && !self.flush_reported {
            self.flush_reported = true;
            event(QpFault::Flushed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(health: &mut Health, status: WcStatus, outstanding: u32, datagram: bool) -> Vec<QpFault> {
        let mut events = ArrayVec::new();
        let qpn = Qpn::new(7);
        health.completed(Completed { qpn, status, drained: false, outstanding, datagram }, &mut events);
        events.into_iter().map(|event: QpEvent| event.fault).collect()
    }

    #[test]
    fn an_error_and_its_flush_are_each_reported_once() {
        let mut health = Health::default();
        assert_eq!(faults(&mut health, WcStatus::Success, 3, false), []);
        let retry = QpFault::Send(WcStatus::RetryExceeded);
        assert_eq!(faults(&mut health, WcStatus::RetryExceeded, 2, false), [retry]);
        assert_eq!(faults(&mut health, WcStatus::Flushed, 1, false), []);
        assert_eq!(faults(&mut health, WcStatus::Flushed, 0, false), [QpFault::Flushed]);
        assert_eq!(faults(&mut health, WcStatus::Flushed, 0, false), []);
        assert!(health.failed());
    }

    #[test]
    fn only_a_datagram_queue_pair_comes_back_by_a_success() {
        for (datagram, failed) in [(true, false), (false, true)] {
            let mut health = Health::default();
            faults(&mut health, WcStatus::LocalLength, 1, datagram);
            faults(&mut health, WcStatus::Success, 1, datagram);
            assert_eq!(health.failed(), failed);
        }
    }
}
