//! Connections that peers open: which are accepted, and how long the idle ones are kept.

use std::time::{Duration, Instant};

use cm::connection::RequestInfo;
use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::ipoib::{AddressFlags, HardwareAddress};
use ib_wire::{Gid, Lid};

use super::passive::File;
use super::{Side, Work};
use crate::link::action::{Action, ConnKey};
use crate::link::outbox::Word;
use crate::link::settings::{Mode, WorkerIndex};
use crate::link::statistics::CloseReason;
use crate::link::timers::Timer;
use crate::link::{MAX_MESSAGE, MIN_MESSAGE};

/// A passive connection idle for this long makes room where connection slots run out.
pub(super) const OUT_OF_USE: Duration = Duration::from_secs(10);
/// A peer's request has this long to become a connection, whatever time-outs the peer names.
const HALF_OPEN: Duration = Duration::from_secs(30);
/// A connection that never carried anything is closed after this part of the time that an idle one has.
const UNUSED_PART: u32 = 4;

/// The LID that a request came from. Some devices tell none (RoCE has none); then it is the one that the request names.
fn origin(request: &RequestInfo) -> Lid {
    if request.source_lid == Lid(0) { request.path.dlid } else { request.source_lid }
}

impl Work<'_> {
    /// Decides on a peer's request: the worker and the peer, or why not.
    fn judge(&self, request: &RequestInfo) -> Result<(WorkerIndex, HardwareAddress, u32), RejectReason> {
        // As in ib_ipoib, nobody listens in datagram mode.
        if self.ground.settings.mode != Mode::Connected || !self.ground.up || self.ground.is_shutting_down() {
            return Err(RejectReason::InvalidServiceId);
        }
        let (_, ud_qpn) = ServiceIdForm::of(request.service_id).ok_or(RejectReason::InvalidServiceId)?;
        let worker =
            self.ground.worker_indices().find(|w| self.ground.address(*w).is_some_and(|a| a.qpn == ud_qpn));
        let worker = worker.ok_or(RejectReason::InvalidServiceId)?;
        if !request.pkey.matches(self.ground.settings.pkey) {
            return Err(RejectReason::Consumer);
        }
        if request.path.mtu > self.ground.port.mtu {
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
    pub(in crate::link) fn requested(
        &mut self,
        now: Instant,
        request: &RequestInfo,
    ) -> Result<ConnKey, RejectReason> {
        let (worker, peer, mtu) = match self.judge(request) {
            Ok(accepted) => accepted,
            Err(reason) => {
                self.out.counters.requests_rejected += 1;
                return Err(reason);
            }
        };
        let (peer_key, lid) = ((peer.qpn, peer.gid, worker), origin(request));
        if !self.is_at(request, peer) {
            self.out.counters.requests_suspect += 1;
            self.out.counters.requests_rejected += 1;
            // If the peer has moved, subnet administration will say so, and the next request is taken.
            self.out.words.push_back(Word::WantPath(peer.gid));
            self.out.words.push_back(Word::CheckLid(peer.gid, lid));
            return Err(RejectReason::Consumer);
        }
        // A peer sends by one connection at a time; if it opens another, it has given the old one up.
        if let Some(old) = self.conns.passive.of_peer(peer_key) {
            self.close(now, old, CloseReason::Replaced);
        }
        // Whoever has more than a share makes room among what is its own.
        while self.conns.passive.of_lid(lid) >= self.ground.settings.max_passive_from_lid
            && let Some((_, oldest)) = self.conns.passive.oldest_of_lid(lid)
        {
            self.close(now, oldest, CloseReason::Evicted);
        }
        while self.conns.passive.at_worker(worker) >= self.ground.settings.max_passive
            && let Some((_, oldest)) = self.conns.passive.oldest_of_worker(worker)
        {
            self.close(now, oldest, CloseReason::Evicted);
        }
        // Who asks is looked up, if that is not known; then it is seen whether it is who it says (`Link::check_origins`).
        self.out.words.push_back(Word::WantPath(peer.gid));
        let psn = self.out.random.psn();
        let key = self.conns.add(now, Side::Passive, worker, peer, psn);
        let attributes = request.qp_attributes(psn);
        let (receive, send) = self.transitions(&attributes);
        if let Some(conn) = self.conns.map.get_mut(&key) {
            conn.mtu = mtu;
            conn.receive = Some(receive);
            conn.send = Some(send);
            conn.handshake = true;
            conn.lid = lid;
            conn.rnr_retry = request.rnr_retry_count;
        }
        self.conns.passive.insert(File { peer: peer_key, lid, used: now }, key);
        self.out.timers.set(Timer::Conn(key), now + HALF_OPEN);
        self.arm_expiry();
        self.out.actions.push_back(Action::CreateRc { conn: key, worker, passive: true });
        Ok(key)
    }

    /// Closes the connection that is idle for the longest time.
    pub(in crate::link) fn evict(&mut self, now: Instant) {
        if let Some((_, oldest)) = self.conns.passive.oldest() {
            self.close(now, oldest, CloseReason::Evicted);
        }
    }

    /// True unless a request comes from another port than the one that has the GID which it names: as far as subnet administration has
    /// told, and as an earlier connection of that peer has shown.
    fn is_at(&self, request: &RequestInfo, peer: HardwareAddress) -> bool {
        let lid = origin(request);
        let known = self.paths.get(peer.gid).is_none_or(|path| path.dlid == lid);
        // All that name one GID have come from one LID: each was seen to by this when it came.
        let other = self.conns.passive.of_gid(peer.gid).next().and_then(|key| self.conns.map.get(&key));
        // Within the subnet a request names its own LID; where no LID is told, the GRH has the port's GUID at least.
        let consistent = if request.source_lid == Lid(0) {
            request.source_gid.is_none_or(|gid| gid.id() == peer.gid.id())
        } else {
            request.path.dlid == lid && request.source_gid.is_none_or(|gid| gid == peer.gid)
        };
        consistent && known && other.is_none_or(|other| other.lid == lid)
    }

    /// Subnet administration has told where a GID is: who came from elsewhere was somebody else, or has moved.
    pub(in crate::link) fn check_origins(&mut self, now: Instant, gid: Gid, lid: Lid) {
        let elsewhere = |key: &ConnKey| self.conns.map.get(key).is_some_and(|conn| conn.lid != lid);
        let strangers: Vec<_> = self.conns.passive.of_gid(gid).filter(elsewhere).collect();
        for key in strangers {
            self.close(now, key, CloseReason::AddressChanged);
        }
    }

    /// A passive connection has come up: how long it may go without carrying anything.
    pub(super) fn expect_data(&mut self, now: Instant, key: ConnKey) {
        self.out.timers.set(Timer::Conn(key), now + self.ground.settings.passive_idle / UNUSED_PART);
    }

    /// Sets the timer of the passive connection that is idle for the longest time.
    fn arm_expiry(&mut self) {
        match self.conns.passive.oldest() {
            Some((used, _)) => {
                let at = used + self.ground.settings.passive_idle;
                // Never earlier than it is set already: touching moves the front, and waking a little late is no harm.
                if self.out.timers.get(Timer::PassiveExpiry).is_none() {
                    self.out.timers.set(Timer::PassiveExpiry, at);
                }
            }
            None => self.out.timers.cancel(Timer::PassiveExpiry),
        }
    }

    /// Closes passive connections from the idle end, up to the first that is fresh.
    pub(in crate::link) fn expire_passive(&mut self, now: Instant) {
        while let Some((used, key)) = self.conns.passive.oldest()
            && now.saturating_duration_since(used) >= self.ground.settings.passive_idle
        {
            self.close(now, key, CloseReason::Idle);
        }
        self.out.timers.cancel(Timer::PassiveExpiry);
        self.arm_expiry();
    }
}
