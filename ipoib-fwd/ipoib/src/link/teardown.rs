//! The end of a connection (ib-ipoib's life cycle, IBA 10.3.1): error state, last-WQE event, drain, removal, destruction.

use std::time::{Duration, Instant};

use hca::QpTransition;
use ib_wire::ipoib::HardwareAddress;

use super::action::{Action, ConnKey, Event};
use super::connections::{Side, State};
use super::machine::Link;
use super::settings::WorkerIndex;
use super::statistics::CloseReason;
use super::timers::Timer;

/// What a worker still sent by a connection has this long to arrive before the connection is closed.
const LINGER: Duration = Duration::from_millis(50);
/// Between two attempts to post a drain request to a full send queue.
const DRAIN_RETRY: Duration = Duration::from_millis(10);

impl Link {
    /// Closes an active connection so that nothing gets lost: out of the tables first, then, when no worker uses it any
    /// more, disconnected.
    pub(super) fn retire(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        let generation = self.generation + 1;
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if conn.closing.is_some() {
            return;
        }
        if conn.state != State::Live || conn.is_passive() {
            self.close(now, key, reason);
            return;
        }
        let peer = conn.peer;
        conn.state = State::Retiring { generation };
        conn.closing = Some(reason);
        self.conns.retiring.push_back((generation, key));
        let passive = false;
        self.detach(key);
        self.republish(peer);
        // Without a publication there would be no generation to wait for.
        self.state_dirty = true;
        self.events.push_back(Event::ConnectionDown { conn: key, passive, reason });
        self.timers.set(Timer::Conn(key), now + self.settings.teardown_timeout);
    }

    /// Closes a connection from whatever state it is in.
    pub(super) fn close(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let before = conn.state;
        match before {
            State::Retiring { .. } | State::Lingering => {}
            _ if conn.closing.is_some() => return,
            _ => {
                let (peer, passive) = (conn.peer, conn.is_passive());
                conn.closing = Some(reason);
                self.detach(key);
                self.count_close(now, key, reason);
                self.events.push_back(Event::ConnectionDown { conn: key, passive, reason });
                if !passive && before == State::Live {
                    self.republish(peer);
                }
            }
        }
        self.cm_close(key, reason);
        if !before.is_busy() {
            self.begin_teardown(now, key);
        }
    }

    /// A closing connection counts no more as its peer's, nor among those that may expire.
    fn detach(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let peer_key = conn.peer_key();
        match conn.side {
            Side::Active { .. } => {
                if let Some(dial) = self.conns.dials.get_mut(&peer_key)
                    && dial.conn == Some(key)
                {
                    dial.conn = None;
                }
            }
            Side::Passive => {
                let file = conn.file();
                self.conns.passive.remove(file, key);
            }
        }
    }

    /// Counts a close and, where we had opened the connection, arranges for the next attempt.
    fn count_close(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let was_live = conn.live_since.is_some();
        let passive = conn.is_passive();
        match reason {
            CloseReason::Idle => self.counters.passive_expired += 1,
            CloseReason::Evicted => self.counters.passive_evicted += 1,
            CloseReason::PeerDisconnected => self.counters.connections_disconnected += 1,
            CloseReason::Fault if was_live => self.counters.connections_faulted += 1,
            CloseReason::Full if passive => self.counters.requests_rejected += 1,
            CloseReason::Rejected(_) if !passive => self.counters.dial_rejected += 1,
            CloseReason::Timeout if !passive => self.counters.dial_timeouts += 1,
            CloseReason::Fault | CloseReason::Device | CloseReason::Full | CloseReason::PrivateData
                if !passive =>
            {
                self.counters.dial_failed += 1;
            }
            _ => {}
        }
        if !passive {
            self.plan_redial(now, key, reason);
        }
    }

    /// Takes the first step of a teardown; no action is outstanding.
    pub(super) fn begin_teardown(&mut self, now: Instant, key: ConnKey) {
        let patience = now + self.settings.teardown_timeout;
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.patience = Some(patience);
        match conn.qpn {
            Some(qpn) if conn.receiving => {
                conn.state = State::ToError;
                self.timers.cancel(Timer::Conn(key));
                self.actions.push_back(Action::ModifyRc { conn: key, qpn, to: QpTransition::ToError });
            }
            _ if conn.inserted => self.remove_from_worker(key),
            _ => self.await_release(now, key),
        }
    }

    /// The queue pair is at rest. Its number must not come back before the handshake is over, TIMEWAIT included.
    fn await_release(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if !conn.handshake {
            self.destroy(now, key);
        } else {
            conn.state = State::AwaitRelease;
            let until = conn.patience.unwrap_or(now).max(now);
            self.timers.set(Timer::Conn(key), until);
        }
    }

    fn remove_from_worker(&mut self, key: ConnKey) {
        self.timers.cancel(Timer::Conn(key));
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.state = State::Removing;
        // What was inserted has its place.
        if let Some(slot) = conn.slot {
            self.actions.push_back(Action::RemoveRc { conn: key, worker: conn.worker, slot });
        }
    }

    /// The last step.
    fn destroy(&mut self, now: Instant, key: ConnKey) {
        self.timers.cancel(Timer::Conn(key));
        let Some(conn) = self.conns.map.remove(&key) else { return };
        if let Some(qpn) = conn.qpn {
            self.conns.by_qpn.remove(&qpn);
            self.actions.push_back(Action::DestroyRc { conn: key, qpn });
        }
        // A passive connection's slot was in no table; an active one's is in none of the next generation.
        let generation = if conn.is_passive() { 0 } else { self.unpublished_since() };
        if let Some(slot) = conn.slot {
            self.put_slot(generation, conn.worker, slot);
        }
        self.release_slots();
        self.connection_gone(now);
    }

    /// An action of a teardown has been answered.
    pub(super) fn teardown_done(&mut self, now: Instant, key: ConnKey, ok: bool) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        // Two waits for the device share the time of a teardown.
        let timeout = self.settings.teardown_timeout / 2;
        match conn.state {
            // A queue pair that cannot go to ERR is broken already; the waits are bounded.
            State::ToError => {
                conn.state = State::AwaitLastWqe;
                self.timers.set(Timer::Conn(key), now + timeout);
                self.advance_teardown(now, key);
            }
            State::AwaitDrained if !ok => {
                conn.state = State::DrainRetry;
                conn.drain_tries = conn.drain_tries.saturating_add(1);
                self.timers.set(Timer::Conn(key), now + DRAIN_RETRY);
                self.advance_teardown(now, key);
            }
            State::Removing => self.await_release(now, key),
            _ => {}
        }
    }

    /// Goes on with a teardown if what it waits for is there.
    pub(super) fn advance_teardown(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        match conn.state {
            State::AwaitLastWqe if conn.last_wqe => {
                if conn.drained {
                    self.remove_from_worker(key);
                } else {
                    self.post_drain(now, key);
                }
            }
            State::DrainRetry | State::AwaitDrained if conn.drained => self.remove_from_worker(key),
            State::AwaitRelease if !conn.handshake => self.destroy(now, key),
            _ => {}
        }
    }

    fn post_drain(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.state = State::AwaitDrained;
        self.timers.set(Timer::Conn(key), now + self.settings.teardown_timeout / 2);
        if let Some(slot) = conn.slot {
            self.actions.push_back(Action::PostDrain { conn: key, worker: conn.worker, slot });
        }
    }

    /// A bounded step of a connection has run out of time.
    pub(super) fn connection_timeout(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if conn.closing.is_none() {
            self.passive_timeout(now, key);
            return;
        }
        let patience = (self.settings.teardown_timeout.as_millis() / 2 / DRAIN_RETRY.as_millis()).max(1);
        match conn.state {
            State::Retiring { .. } | State::Lingering => {
                let reason = conn.closing.unwrap_or(CloseReason::NeighbourGone);
                self.close(now, key, reason);
            }
            State::AwaitLastWqe => {
                self.counters.teardown_timeouts += 1;
                conn.last_wqe = true;
                self.advance_teardown(now, key);
            }
            State::DrainRetry if u128::from(conn.drain_tries) < patience => self.post_drain(now, key),
            State::DrainRetry | State::AwaitDrained => {
                self.counters.teardown_timeouts += 1;
                self.remove_from_worker(key);
            }
            // The peer does not answer; it is not waited for.
            State::AwaitRelease => self.destroy(now, key),
            _ => {}
        }
    }

    /// All workers have taken up `generation`: connections that it no longer has are out of use.
    pub(super) fn retire_quiescent(&mut self, now: Instant, generation: u64) {
        while let Some((needed, key)) = self.conns.retiring.front().copied()
            && needed <= generation
        {
            self.conns.retiring.pop_front();
            // Some have run out of patience meanwhile.
            if let Some(conn) = self.conns.map.get_mut(&key)
                && matches!(conn.state, State::Retiring { .. })
            {
                conn.state = State::Lingering;
                self.timers.set(Timer::Conn(key), now + LINGER);
            }
        }
    }

    /// Closes the connections that we opened to an address, on all workers.
    pub(super) fn close_active(&mut self, now: Instant, peer: HardwareAddress, reason: CloseReason) {
        let keys: Vec<_> = self
            .worker_indices()
            .filter_map(|worker| self.conns.dials.get(&(peer.qpn, peer.gid, worker))?.conn)
            .collect();
        for key in keys {
            match reason {
                // There is nobody left to be gentle with.
                CloseReason::LinkDown => self.close(now, key, reason),
                _ => self.retire(now, key, reason),
            }
        }
    }

    /// Closes the connections to an address that no neighbour with connected mode has any more.
    pub(super) fn close_unneeded(&mut self, now: Instant, peer: HardwareAddress, reason: CloseReason) {
        if self.neighbours.accepts_rc(peer) {
            return;
        }
        self.close_active(now, peer, reason);
        let workers: Vec<WorkerIndex> = self.worker_indices().collect();
        for worker in workers {
            self.conns.dials.remove(&(peer.qpn, peer.gid, worker));
            self.timers.cancel(Timer::Dial(peer.gid, peer.qpn, worker));
        }
    }

    /// Closes the connections that a port opened under an address that it no longer has.
    pub(super) fn close_moved(&mut self, now: Instant, old: HardwareAddress) {
        if self.neighbours.at_address(old).next().is_some() {
            return;
        }
        let keys: Vec<_> = self
            .worker_indices()
            .filter_map(|worker| self.conns.passive.of_peer((old.qpn, old.gid, worker)))
            .collect();
        for key in keys {
            self.close(now, key, CloseReason::AddressChanged);
        }
    }

    /// Closes all connections, or all that one side opened.
    pub(super) fn close_all(&mut self, now: Instant, passive: Option<bool>, reason: CloseReason) {
        let keys: Vec<_> = self
            .conns
            .map
            .iter()
            .filter(|(_, c)| passive.is_none_or(|p| p == c.is_passive()))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            match reason {
                CloseReason::LinkDown => self.close(now, key, reason),
                _ => self.retire(now, key, reason),
            }
        }
    }
}
