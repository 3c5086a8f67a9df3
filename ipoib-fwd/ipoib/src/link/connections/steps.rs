//! What the table of states says, carried out.

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

/// What a worker still sent by a connection has this long to arrive before the connection is closed.
const LINGER: Duration = Duration::from_millis(50);
/// Between two attempts to post a drain request to a full send queue.
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

    /// Keeps what came early.
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
            // A handshake that never began has nothing to say either.
            Input::Released => !self.handshake,
            _ => false,
        }
    }
}

impl Work<'_> {
    /// Moves a connection. `reason`: why it is closed, if that is what comes of it.
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
            // Receive buffers are there, on the shared queue.
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
                // What has come so far has its place.
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
                // Its worker has given it back: what waits for the peer to forget it is its number, not its place. Else peers that come
                // again and again, as they do when receives run dry, find no place for seconds.
                self.leave_place(key);
            }
            Act::Destroy => self.destroy(key),
            Act::Keep => conn.keep(input),
            Act::Recall(early) if conn.has_kept(early) => self.step(now, key, early, reason),
            Act::Recall(_) => {}
        }
    }

    /// Asks the device for a change of state. What nobody has agreed on cannot be done.
    fn modify(&mut self, now: Instant, key: ConnKey, to: Option<QpTransition>) {
        match (self.conns.map.get(&key).and_then(|c| c.qpn), to) {
            (Some(qpn), Some(to)) => self.out.actions.push_back(Action::ModifyRc { conn: key, qpn, to }),
            _ => self.step(now, key, Input::Failed, CloseReason::Device),
        }
    }

    /// The peer's neighbours are to be published without the connection, which is one of ours.
    fn unlist(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.map.get(&key).filter(|conn| !conn.is_passive()) {
            self.out.words.push_back(Word::Republish(conn.peer));
        }
    }

    /// The device has made the queue pair, or has refused.
    pub(in crate::link) fn created(&mut self, now: Instant, key: ConnKey, qpn: Option<Qpn>) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let Some(qpn) = qpn else { return self.step(now, key, Input::Refused, CloseReason::Device) };
        // One at a time, and each told once.
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

    /// The answer to the outstanding action.
    pub(in crate::link) fn done(&mut self, now: Instant, key: ConnKey, ok: bool) {
        let input = if ok { Input::Done } else { Input::Failed };
        self.step(now, key, input, CloseReason::Device);
    }

    /// A bounded step has run out of time.
    pub(in crate::link) fn timeout(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let reason = if conn.state == State::Live { CloseReason::Idle } else { CloseReason::Timeout };
        self.step(now, key, Input::Expired, reason);
    }

    /// The last step.
    fn destroy(&mut self, key: ConnKey) {
        self.out.timers.cancel(Timer::Conn(key));
        self.leave_place(key);
        let Some(conn) = self.conns.map.remove(&key) else { return };
        // Not sooner: its queue pair is one of those that its host has.
        if conn.counted {
            self.out.requests.push_back(Request::Departed(key));
        }
        if let Some(qpn) = conn.qpn {
            self.conns.by_qpn.remove(&qpn);
            self.out.actions.push_back(Action::DestroyRc { conn: key, qpn });
        }
        self.out.words.push_back(Word::ConnectionGone);
    }

    /// Gives its place in the worker's table back, if it has one.
    fn leave_place(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let (slot, worker, passive) = (conn.slot.take(), conn.worker, conn.is_passive());
        // A passive connection's slot was in no table; an active one's is in none of the next generation.
        let generation = if passive { 0 } else { self.out.unpublished_since() };
        if let Some(slot) = slot {
            self.put_slot(generation, worker, slot);
        }
        self.release_slots();
    }
}
