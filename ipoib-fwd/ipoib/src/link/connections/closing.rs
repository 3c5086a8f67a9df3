//! Closing of connections: single ones, or all of a kind.

use std::time::Instant;

use ib_wire::ipoib::HardwareAddress;

use super::state::{Input, State};
use super::{Side, Work};
use crate::link::action::ConnKey;
use crate::link::statistics::CloseReason;
use crate::link::timers::Timer;

impl Work<'_> {
    /// Closes an active connection without loss: unpublishes it first, and disconnects it when no worker uses
    /// it any more.
    pub(super) fn retire(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        self.step(now, key, Input::Retire, reason);
    }

    /// Closes a connection from any state.
    pub(super) fn close(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        self.step(now, key, Input::Close, reason);
    }

    /// Removes a closing connection from the indices of its peer and of those that may expire.
    pub(super) fn detach(&mut self, key: ConnKey) {
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

    /// Counts a close and, if we had opened the connection, schedules the next attempt.
    pub(super) fn count_close(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let was_live = conn.live_since.is_some();
        let passive = conn.is_passive();
        match reason {
            CloseReason::Idle => self.out.counters.passive_expired += 1,
            CloseReason::Evicted => self.out.counters.passive_evicted += 1,
            CloseReason::PeerDisconnected => self.out.counters.connections_disconnected += 1,
            CloseReason::Fault if was_live => self.out.counters.connections_faulted += 1,
            CloseReason::Full if passive => self.out.counters.requests_rejected += 1,
            CloseReason::Rejected(_) if !passive => self.out.counters.dial_rejected += 1,
            CloseReason::Timeout if !passive => self.out.counters.dial_timeouts += 1,
            CloseReason::Fault | CloseReason::Device | CloseReason::Full | CloseReason::PrivateData
                if !passive =>
            {
                self.out.counters.dial_failed += 1;
            }
            _ => {}
        }
        if !passive {
            self.plan_redial(now, key, reason);
        }
    }

    /// Continues the close of connections that are out of use because all workers have taken up `generation`,
    /// which no longer contains them.
    pub(in crate::link) fn retire_quiescent(&mut self, now: Instant, generation: u64) {
        while let Some((needed, key)) = self.conns.retiring.front().copied()
            && needed <= generation
        {
            self.conns.retiring.pop_front();
            // Some have timed out in the meantime.
            if self.conns.map.get(&key).is_some_and(|conn| conn.state == State::Retiring) {
                self.step(now, key, Input::OutOfUse, CloseReason::NeighbourGone);
            }
        }
    }

    /// Closes the connections that we opened to an address, on all workers.
    pub(in crate::link) fn close_active(&mut self, now: Instant, peer: HardwareAddress, reason: CloseReason) {
        let keys: Vec<_> = self
            .ground
            .worker_indices()
            .filter_map(|worker| self.conns.dials.get(&(peer.qpn, peer.gid, worker))?.conn)
            .collect();
        for key in keys {
            match reason {
                // The peer cannot be reached, so a gentle close is of no use.
                CloseReason::LinkDown => self.close(now, key, reason),
                _ => self.retire(now, key, reason),
            }
        }
    }

    /// Closes the connections that we opened to an address, and forgets that it was dialled.
    pub(in crate::link) fn forget_peer(&mut self, now: Instant, peer: HardwareAddress, reason: CloseReason) {
        self.close_active(now, peer, reason);
        for worker in self.ground.worker_indices() {
            self.conns.dials.remove(&(peer.qpn, peer.gid, worker));
            self.out.timers.cancel(Timer::Dial(peer.gid, peer.qpn, worker));
        }
    }

    /// Closes the connections that a port opened under an address that it no longer has.
    pub(in crate::link) fn close_passive(&mut self, now: Instant, old: HardwareAddress, reason: CloseReason) {
        let keys: Vec<_> = self
            .ground
            .worker_indices()
            .filter_map(|worker| self.conns.passive.of_peer((old.qpn, old.gid, worker)))
            .collect();
        for key in keys {
            self.close(now, key, reason);
        }
    }

    /// Closes all connections, or all that one side opened.
    pub(in crate::link) fn close_all(&mut self, now: Instant, passive: Option<bool>, reason: CloseReason) {
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
