//! Execution of the state table.

use std::time::{Duration, Instant};

use hca::QpTransition;
use ib_wire::Qpn;

use super::state::{Act, Input, State, When};
use super::{Connection, Side, Work};
use crate::link::action::{Action, ConnKey, Event};
use crate::link::outbox::Word;
use crate::link::request::Request;
use crate::link::statistics::CloseReason;
use crate::link::timers::Timer;

/// Time for packets that a worker has sent on a connection to arrive before it is closed.
const LINGER: Duration = Duration::from_millis(50);
/// Time between two attempts to post a drain request to a full send queue.
const DRAIN_RETRY: Duration = Duration::from_millis(10);

impl Connection {
    fn meets(&self, when: When, most_tries: u128) -> bool {
        match when {
            When::Always => true,
            When::Active => !self.is_passive(),
            When::Carried => self.carried,
            When::Drained => self.kept.drained,
            When::TriesLeft => u128::from(self.drain_tries) < most_tries,
        }
    }

    /// Keeps an early input.
    const fn keep(&mut self, input: Input) {
        match input {
            Input::Established => self.kept.established = true,
            Input::LastWqe => self.kept.last_wqe = true,
            Input::Drained => self.kept.drained = true,
            _ => {}
        }
    }

    const fn has_kept(&self, input: Input) -> bool {
        match input {
            Input::Established => self.kept.established,
            Input::LastWqe => self.kept.last_wqe,
            Input::Drained => self.kept.drained,
            // A handshake that never started has no end to wait for.
            Input::Released => !self.handshake,
            _ => false,
        }
    }
}

impl Work<'_> {
    /// Processes an input. `reason`: the close reason, if the input closes the connection.
    pub(super) fn step(&mut self, now: Instant, key: ConnKey, input: Input, reason: CloseReason) {
        let most_tries =
            (self.ground.settings.teardown_timeout.as_millis() / 2 / DRAIN_RETRY.as_millis()).max(1);
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let row = conn.state.rows(input).iter().find(|row| conn.meets(row.when, most_tries));
        let Some(row) = row else {
            self.out.counters.connection_strays += 1;
            return;
        };
        if let Some(to) = row.to {
            if to.is_closing() {
                conn.closing.get_or_insert(reason);
            }
            conn.state = to;
        }
        for act in row.acts {
            self.act(now, key, *act, input);
        }
    }

    fn act(&mut self, now: Instant, key: ConnKey, act: Act, input: Input) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let teardown = self.ground.settings.teardown_timeout;
        let (peer, passive) = (conn.peer, conn.is_passive());
        let reason = conn.closing.unwrap_or(CloseReason::Timeout);
        match act {
            Act::Initialise => {
                let pkey_index = self.ground.port.pkey_index;
                self.modify(now, key, pkey_index.map(|pkey_index| QpTransition::RcToInit { pkey_index }));
            }
            Act::Insert => match conn.slot {
                Some(slot) => {
                    let worker = conn.worker;
                    self.out.actions.push_back(Action::InsertRc { conn: key, worker, slot });
                }
                None => self.step(now, key, Input::Failed, CloseReason::Device),
            },
            Act::Connect => self.cm_connect(now, key),
            Act::ConnectOther => {
                if let Side::Active { form, .. } = conn.side {
                    conn.side = Side::Active { form: form.other(), fallback: true };
                }
                self.out.counters.service_id_fallbacks += 1;
                self.cm_connect(now, key);
            }
            // Receive buffers are already on the shared queue.
            Act::Receive => {
                let receive = conn.receive.map(QpTransition::RcToReceive);
                self.modify(now, key, receive);
            }
            Act::Send => {
                let send = conn.send.map(QpTransition::RcToSend);
                self.modify(now, key, send);
            }
            Act::Rtu => self.out.requests.push_back(Request::Ready(key)),
            Act::Rep => self.cm_accept(key),
            Act::Up => self.up(now, key),
            Act::Withdraw => {
                self.conns.retiring.push_back((self.out.await_next(), key));
                self.detach(key);
                self.unlist(key);
                self.out.events.push_back(Event::ConnectionDown { conn: key, passive, peer, reason });
                self.out.timers.set(Timer::Conn(key), now + teardown);
            }
            Act::Down => {
                self.detach(key);
                self.count_close(now, key, reason);
                self.out.events.push_back(Event::ConnectionDown { conn: key, passive, peer, reason });
            }
            Act::Unlist => self.unlist(key),
            Act::Disconnect => {
                if conn.handshake {
                    let no_resources = matches!(reason, CloseReason::Device | CloseReason::Full);
                    self.out.requests.push_back(Request::Close { conn: key, no_resources });
                }
            }
            Act::Linger => self.out.timers.set(Timer::Conn(key), now + LINGER),
            Act::Error => {
                conn.patience.get_or_insert(now + teardown);
                self.out.timers.cancel(Timer::Conn(key));
                self.modify(now, key, Some(QpTransition::ToError));
            }
            // Two waits for the device share the time of a teardown.
            Act::AwaitLastWqe => self.out.timers.set(Timer::Conn(key), now + teardown / 2),
            Act::Drain => {
                self.out.timers.set(Timer::Conn(key), now + teardown / 2);
                // A connection that has come this far has its slot.
                if let Some(slot) = conn.slot {
                    self.out.actions.push_back(Action::PostDrain { conn: key, worker: conn.worker, slot });
                }
            }
            Act::DrainLater => {
                conn.drain_tries = conn.drain_tries.saturating_add(1);
                self.out.timers.set(Timer::Conn(key), now + DRAIN_RETRY);
            }
            Act::Overdue => self.out.counters.teardown_timeouts += 1,
            Act::Remove => {
                conn.patience.get_or_insert(now + teardown);
                self.out.timers.cancel(Timer::Conn(key));
                if let Some(slot) = conn.slot {
                    self.out.actions.push_back(Action::RemoveRc { conn: key, worker: conn.worker, slot });
                }
            }
            Act::AwaitRelease => {
                let until = *conn.patience.get_or_insert(now + teardown);
                self.out.timers.set(Timer::Conn(key), until.max(now));
                // The worker has given the queue pair back: only its number must wait until the peer has
                // forgotten it, not its slot. Otherwise peers that reconnect again and again, as they do when
                // receives run dry, would find no slot for seconds.
                self.leave_slot(key);
            }
            Act::Destroy => self.destroy(key),
            Act::Keep => conn.keep(input),
            Act::Recall(early) if conn.has_kept(early) => self.step(now, key, early, reason),
            Act::Recall(_) => {}
        }
    }

    /// Requests a state change from the device. A change without agreed parameters fails.
    fn modify(&mut self, now: Instant, key: ConnKey, to: Option<QpTransition>) {
        match (self.conns.map.get(&key).and_then(|c| c.qpn), to) {
            (Some(qpn), Some(to)) => self.out.actions.push_back(Action::ModifyRc { conn: key, qpn, to }),
            _ => self.step(now, key, Input::Failed, CloseReason::Device),
        }
    }

    /// Publishes the peer's neighbours without the connection, if it is one that we opened.
    fn unlist(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.map.get(&key).filter(|conn| !conn.is_passive()) {
            self.out.words.push_back(Word::Republish(conn.peer));
        }
    }

    /// Handles the answer to the creation of a queue pair.
    pub(in crate::link) fn created(&mut self, now: Instant, key: ConnKey, qpn: Option<Qpn>) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let Some(qpn) = qpn else { return self.step(now, key, Input::Refused, CloseReason::Device) };
        // One creation at a time, each answered once.
        if conn.qpn.is_some() {
            self.out.counters.connection_strays += 1;
            return;
        }
        conn.qpn = Some(qpn);
        self.conns.by_qpn.insert(qpn, key);
        match self.ground.port.pkey_index {
            Some(_) => self.step(now, key, Input::Created, CloseReason::Device),
            None => self.step(now, key, Input::Refused, CloseReason::LinkDown),
        }
    }

    /// Handles the answer to the outstanding action.
    pub(in crate::link) fn done(&mut self, now: Instant, key: ConnKey, ok: bool) {
        let input = if ok { Input::Done } else { Input::Failed };
        self.step(now, key, input, CloseReason::Device);
    }

    /// Handles the timeout of a step.
    pub(in crate::link) fn timeout(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let reason = if conn.state == State::Live { CloseReason::Idle } else { CloseReason::Timeout };
        self.step(now, key, Input::Expired, reason);
    }

    /// Removes the connection: the last step.
    fn destroy(&mut self, key: ConnKey) {
        self.out.timers.cancel(Timer::Conn(key));
        self.leave_slot(key);
        let Some(conn) = self.conns.map.remove(&key) else { return };
        // Not earlier: until now its queue pair counts in its host's share.
        if conn.counted {
            self.out.requests.push_back(Request::Departed(key));
        }
        if let Some(qpn) = conn.qpn {
            self.conns.by_qpn.remove(&qpn);
            self.out.actions.push_back(Action::DestroyRc { conn: key, qpn });
        }
        self.out.words.push_back(Word::ConnectionGone);
    }

    /// Returns its slot in the worker's table, if it has one.
    fn leave_slot(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let (slot, worker, passive) = (conn.slot.take(), conn.worker, conn.is_passive());
        // A passive connection's slot was in no table; an active one's is not in the next generation.
        let generation = if passive { 0 } else { self.out.unpublished_since() };
        if let Some(slot) = slot {
            self.put_slot(generation, worker, slot);
        }
        self.release_slots();
    }
}
