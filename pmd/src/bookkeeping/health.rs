//! Whether a queue pair's sends still succeed, and what of it was told.

use arrayvec::ArrayVec;
use ib_wire::Qpn;

use crate::hca::{BURST, QpEvent, QpFault, WcStatus};

/// The state of a send queue, as its completions tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Health {
    failed: bool,
    flush_reported: bool,
}

/// What a send completion was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    /// Queue pair.
    pub(crate) qpn: Qpn,
    /// Outcome.
    pub(crate) status: WcStatus,
    /// The drain request was among what completed.
    pub(crate) drained: bool,
    /// Sends still outstanding.
    pub(crate) outstanding: u32,
    /// A datagram queue pair: only it comes back from an error by itself.
    pub(crate) datagram: bool,
}

impl Health {
    /// Most events that one completion causes.
    pub(crate) const MAX_EVENTS: usize = 3;

    /// True if the queue pair is in error.
    #[inline]
    pub(crate) const fn failed(&self) -> bool {
        self.failed
    }

    /// The queue pair is in error.
    pub(crate) const fn fail(&mut self) {
        self.failed = true;
    }

    /// Nothing is outstanding on it, which was told otherwise.
    pub(crate) const fn flushed(&mut self) {
        self.flush_reported = true;
    }

    /// It begins anew.
    pub(crate) const fn restart(&mut self) {
        *self = Self { failed: false, flush_reported: false };
    }

    /// Sends have completed: tells what has to be known of it. There is room for [`Health::MAX_EVENTS`]: the callers see to
    /// it.
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

    fn told(health: &mut Health, status: WcStatus, outstanding: u32, datagram: bool) -> Vec<QpFault> {
        let mut events = ArrayVec::new();
        let qpn = Qpn::new(7);
        health.completed(Completed { qpn, status, drained: false, outstanding, datagram }, &mut events);
        events.into_iter().map(|event: QpEvent| event.fault).collect()
    }

    #[test]
    fn an_error_is_told_once_and_its_flush_once() {
        let mut health = Health::default();
        assert_eq!(told(&mut health, WcStatus::Success, 3, false), []);
        let retry = QpFault::Send(WcStatus::RetryExceeded);
        assert_eq!(told(&mut health, WcStatus::RetryExceeded, 2, false), [retry]);
        assert_eq!(told(&mut health, WcStatus::Flushed, 1, false), []);
        assert_eq!(told(&mut health, WcStatus::Flushed, 0, false), [QpFault::Flushed]);
        assert_eq!(told(&mut health, WcStatus::Flushed, 0, false), []);
        assert!(health.failed());
    }

    #[test]
    fn only_a_datagram_queue_pair_comes_back_by_a_success() {
        for (datagram, failed) in [(true, false), (false, true)] {
            let mut health = Health::default();
            told(&mut health, WcStatus::LocalLength, 1, datagram);
            told(&mut health, WcStatus::Success, 1, datagram);
            assert_eq!(health.failed(), failed);
        }
    }
}
