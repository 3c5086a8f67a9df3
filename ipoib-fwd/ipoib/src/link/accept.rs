//! Connections that peers open: which are accepted, and how long the idle ones are kept.

use std::time::{Duration, Instant};

use cm::connection::RequestInfo;
use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::ipoib::{AddressFlags, HardwareAddress};

use super::action::{Action, ConnKey};
use super::connections::{Side, State};
use super::machine::Link;
use super::settings::{Mode, WorkerIndex};
use super::statistics::CloseReason;
use super::timers::Timer;
use super::{MAX_MESSAGE, MIN_MESSAGE};

/// A passive connection idle for this long makes room where connection slots run out.
const OUT_OF_USE: Duration = Duration::from_secs(10);

impl Link {
    /// Decides on a peer's request: the worker and the peer, or why not.
    fn judge(&self, request: &RequestInfo) -> Result<(WorkerIndex, HardwareAddress, u32), RejectReason> {
        // As in ib_ipoib, nobody listens in datagram mode.
        if self.settings.mode != Mode::Connected || !self.up || self.is_shutting_down() {
            return Err(RejectReason::InvalidServiceId);
        }
        let (_, ud_qpn) = ServiceIdForm::of(request.service_id).ok_or(RejectReason::InvalidServiceId)?;
        let worker = self.worker_indices().find(|w| self.address(*w).is_some_and(|a| a.qpn == ud_qpn));
        let worker = worker.ok_or(RejectReason::InvalidServiceId)?;
        if !request.pkey.matches(self.settings.pkey) {
            return Err(RejectReason::Consumer);
        }
        if request.path.mtu > self.port.mtu {
            return Err(RejectReason::InvalidMtu);
        }
        let private = PrivateData::from_message(&request.private_data).ok_or(RejectReason::Consumer)?;
        let peer = HardwareAddress { flags: AddressFlags::RC, qpn: private.ud_qpn, gid: request.path.dgid };
        if private.receive_mtu < MIN_MESSAGE || private.ud_qpn.get() < 2 || peer.gid.is_multicast() {
            return Err(RejectReason::Consumer);
        }
        Ok((worker, peer, private.receive_mtu.min(MAX_MESSAGE)))
    }

    /// A peer asks for a connection: the one that begins, or why not.
    pub(crate) fn requested(&mut self, now: Instant, request: &RequestInfo) -> Result<ConnKey, RejectReason> {
        let (worker, peer, mtu) = match self.judge(request) {
            Ok(accepted) => accepted,
            Err(reason) => {
                self.counters.requests_rejected += 1;
                return Err(reason);
            }
        };
        // A peer sends by one connection at a time; if it opens another, it has given the old one up.
        if let Some(old) = self.conns.passive.get(&(peer.qpn, peer.gid, worker)).copied() {
            self.close(now, old, CloseReason::Replaced);
        }
        while self.conns.lru.len() >= self.settings.max_passive
            && let Some((_, oldest)) = self.conns.lru.first().copied()
        {
            self.close(now, oldest, CloseReason::Evicted);
        }
        let psn = self.random.psn();
        let key = self.conns.add(now, Side::Passive, worker, peer, psn);
        let attributes = request.qp_attributes(psn);
        let (receive, send) = self.transitions(&attributes);
        if let Some(conn) = self.conns.map.get_mut(&key) {
            conn.mtu = mtu;
            conn.receive = Some(receive);
            conn.send = Some(send);
            conn.handshake = true;
            conn.rnr_retry = request.rnr_retry_count;
        }
        self.conns.passive.insert((peer.qpn, peer.gid, worker), key);
        self.conns.lru.insert((now, key));
        self.arm_expiry();
        self.actions.push_back(Action::CreateRc { conn: key, worker, passive: true });
        Ok(key)
    }

    /// How long the connection that is idle for the longest time has been so, if it is out of use.
    pub(crate) fn out_of_use(&self, now: Instant) -> Option<Duration> {
        let (used, _) = self.conns.lru.first()?;
        Some(now.saturating_duration_since(*used)).filter(|idle| *idle >= OUT_OF_USE)
    }

    /// Closes the connection that is idle for the longest time.
    pub(crate) fn evict(&mut self, now: Instant) {
        if let Some((_, oldest)) = self.conns.lru.first().copied() {
            self.close(now, oldest, CloseReason::Evicted);
        }
    }

    /// The RTU came, or data in its place.
    pub(super) fn established(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        match conn.state {
            State::Replied => self.live(now, key),
            State::ToReceive | State::ToSend => conn.ready = true,
            _ => {}
        }
    }

    /// Sets the timer of the passive connection that is idle for the longest time.
    fn arm_expiry(&mut self) {
        match self.conns.lru.first() {
            Some((used, _)) => {
                let at = *used + self.settings.passive_idle;
                // Never earlier than it is set already: touching moves the front, and waking a little late is no harm.
                if self.timers.get(Timer::PassiveExpiry).is_none() {
                    self.timers.set(Timer::PassiveExpiry, at);
                }
            }
            None => self.timers.cancel(Timer::PassiveExpiry),
        }
    }

    /// Closes passive connections from the idle end, up to the first that is fresh.
    pub(super) fn expire_passive(&mut self, now: Instant) {
        while let Some((used, key)) = self.conns.lru.first().copied()
            && now.saturating_duration_since(used) >= self.settings.passive_idle
        {
            self.close(now, key, CloseReason::Idle);
        }
        self.timers.cancel(Timer::PassiveExpiry);
        self.arm_expiry();
    }
}
