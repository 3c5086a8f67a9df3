//! Timeouts of the table: retransmission, giving up, TIMEWAIT.

use std::time::Instant;

use ib_wire::CommId;
use ib_wire::cm::RejectReason;

use super::state::{Input, State};
use super::{ConnId, ConnectionTable, Event};

impl ConnectionTable {
    /// Handles expired timers: retransmission, giving up, the end of TIMEWAIT.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.timers.pop_due(now) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.deadline = None;
            if entry.state == State::Timewait {
                self.step(now, id, Input::TimewaitOver);
                continue;
            }
            if let Some(pending) = entry.pending.as_mut()
                && let Some(left) = pending.retries.checked_sub(1)
            {
                pending.retries = left;
                let (peer, message, tid) = (entry.peer, pending.message, pending.tid);
                let at = now + entry.timeout;
                self.timers.set(id, &mut entry.deadline, Some(at));
                self.counters.count_retransmitted(message.attribute());
                self.send(peer, &message, tid);
                continue;
            }
            self.exhausted(now, id);
        }
    }

    /// Handles a missing response after the last retransmission, or an owner that did not respond in time.
    fn exhausted(&mut self, now: Instant, id: CommId) {
        let state = self.state_of(id);
        match state {
            State::DreqSent => self.disconnected(id),
            _ => self.event(id, Event::TimedOut { id: ConnId(id) }),
        }
        // The peer may have accepted the message and consider the connection established.
        if matches!(state, State::ReqSent | State::MraReqRcvd | State::RepSent | State::MraRepRcvd)
            && let Some((peer, reject, tid)) = self.reject_message(id, RejectReason::Timeout, [0; 148])
        {
            self.send_reject(peer, reject, tid);
        }
        self.step(now, id, Input::Exhausted);
    }
}
