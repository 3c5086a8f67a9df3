//! Connections that peers open: admission, and the lifetime of idle ones.

use std::time::{Duration, Instant};

use cm::connection::RequestInfo;
use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::ipoib::{AddressFlags, HardwareAddress};
use ib_wire::{Gid, Lid, PKey};

use super::{PeerKey, Side, Work};
use crate::link::action::{Action, ConnKey};
use crate::link::outbox::Word;
use crate::link::settings::{Mode, WorkerIndex};
use crate::link::statistics::CloseReason;
use crate::link::timers::Timer;
use crate::link::{MAX_MESSAGE, MIN_MESSAGE};

/// A passive connection that is idle for this long is closed if connection slots run out.
pub(super) const OUT_OF_USE: Duration = Duration::from_secs(10);
/// Time limit for a peer's request to become a connection, whatever time-outs the peer names.
const HALF_OPEN: Duration = Duration::from_secs(30);
/// A connection that never carried anything is closed after this fraction of the idle time.
const UNUSED_PART: u32 = 4;

/// The LID that a request came from. Some devices do not report it (RoCE has none); then it is the LID that
/// the request names.
fn origin(request: &RequestInfo) -> Lid {
    if request.source_lid == Lid(0) { request.path.dlid } else { request.source_lid }
}

/// A peer's request that may become a connection.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// The worker of ours that it is for.
    pub(crate) worker: WorkerIndex,
    peer: HardwareAddress,
    mtu: u32,
}

impl Candidate {
    const fn peer_key(&self) -> PeerKey {
        (self.peer.qpn, self.peer.gid, self.worker)
    }
}

impl Work<'_> {
    /// Checks whether a peer's request can be met.
    fn judge(&self, request: &RequestInfo) -> Result<Candidate, RejectReason> {
        // As in ib_ipoib, no service ID is registered in datagram mode.
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
        Ok(Candidate { worker, peer, mtu: private.receive_mtu.min(MAX_MESSAGE) })
    }

    /// Examines a peer's request: returns what it needs, or the reason to reject it. `came_by`: the P_Key by
    /// which it came, if known.
    pub(in crate::link) fn examine(
        &mut self,
        request: &RequestInfo,
        came_by: Option<PKey>,
    ) -> Result<Candidate, RejectReason> {
        let candidate = self.judge(request).inspect_err(|_| self.out.counters.requests_rejected += 1)?;
        let (gid, lid) = (candidate.peer.gid, origin(request));
        if !self.is_at(request, candidate.peer) {
            self.out.counters.requests_suspect += 1;
            self.out.counters.requests_rejected += 1;
            // If the peer has moved, subnet administration will report it, and the next request is accepted.
            self.out.words.push_back(Word::WantPath(gid, lid));
            self.out.words.push_back(Word::CheckLid(gid, lid));
            return Err(RejectReason::Consumer);
        }
        if !self.is_of_our_partition(request, came_by, gid) {
            self.out.counters.requests_suspect += 1;
            self.out.counters.requests_rejected += 1;
            // If the peer is a member, subnet administration has a path to it, and the next request is
            // accepted.
            self.out.words.push_back(Word::WantPath(gid, lid));
            return Err(RejectReason::Consumer);
        }
        // A peer that cannot be looked up would never be proven.
        if !self.paths.may_look_up(gid, lid) {
            self.out.counters.paths_limited += 1;
            self.out.counters.requests_rejected += 1;
            return Err(RejectReason::NoResources);
        }
        Ok(candidate)
    }

    /// True if the sender of a request is a member of the partition that the request names. Only members can
    /// send by its P_Key. Some adapters send all datagrams of connection management by the first P_Key of
    /// their table. Then a path from subnet administration decides, which gives paths only to members.
    fn is_of_our_partition(&self, request: &RequestInfo, came_by: Option<PKey>, gid: Gid) -> bool {
        let same = |key: PKey| key.base() == self.ground.settings.pkey.base();
        let came_by_it = self.ground.port.pkey_index == Some(request.pkey_index) || came_by.is_some_and(same);
        let lid = request.source_lid;
        let is_path_to = |path: &cm::Path| self.ground.port.subnet().is_same_port(path.dlid, lid);
        came_by_it || lid != Lid(0) && self.paths.get(gid).is_some_and(is_path_to)
    }

    /// Closes a peer's previous connection: a peer sends by one at a time, so a new one means that it has
    /// abandoned the old one.
    pub(in crate::link) fn replace(&mut self, now: Instant, candidate: &Candidate) {
        if let Some(old) = self.conns.passive.of_peer(candidate.peer_key()) {
            self.close(now, old, CloseReason::Replaced);
        }
    }

    /// Starts the connection that a peer requests.
    pub(in crate::link) fn accept(
        &mut self,
        now: Instant,
        request: &RequestInfo,
        candidate: &Candidate,
    ) -> ConnKey {
        let Candidate { worker, peer, mtu } = *candidate;
        // An unknown requester is looked up; the answer shows whether its GID is genuine
        // (`Link::check_origins`).
        self.out.words.push_back(Word::ProvePath(peer.gid, origin(request)));
        let psn = self.out.random.psn();
        let key = self.conns.add(now, Side::Passive, worker, peer, psn);
        let attributes = request.qp_attributes(psn);
        let (receive, send) = self.transitions(&attributes);
        if let Some(conn) = self.conns.map.get_mut(&key) {
            conn.mtu = mtu;
            conn.receive = Some(receive);
            conn.send = Some(send);
            conn.handshake = true;
            conn.lid = origin(request);
            conn.origin = request.payer;
            conn.counted = true;
            conn.rnr_retry = request.rnr_retry_count;
            self.conns.passive.insert(conn.file(), key);
        }
        self.out.timers.set(Timer::Conn(key), now + HALF_OPEN);
        self.arm_expiry();
        self.out.actions.push_back(Action::CreateRc { conn: key, worker, passive: true });
        key
    }

    /// Closes a connection that a peer opened, to make room.
    pub(in crate::link) fn evict(&mut self, now: Instant, key: ConnKey) {
        self.close(now, key, CloseReason::Evicted);
    }

    /// False if a request comes from another port than the one that has the GID in the request, as far as
    /// subnet administration has reported, and as an earlier connection of that peer has shown.
    fn is_at(&self, request: &RequestInfo, peer: HardwareAddress) -> bool {
        let lid = origin(request);
        let subnet = self.ground.port.subnet();
        let known = self.paths.get(peer.gid).is_none_or(|path| subnet.is_same_port(path.dlid, lid));
        // All connections with one GID have come from one LID: each was checked by this function when it
        // came.
        let other = self.conns.passive.of_gid(peer.gid).next().and_then(|key| self.conns.map.get(&key));
        // Within the subnet a request names its own LID; if the device reports no LID, the GRH has at least
        // the port's GUID.
        let consistent = if request.source_lid == Lid(0) {
            request.source_gid.is_none_or(|gid| gid.id() == peer.gid.id())
        } else {
            subnet.is_same_port(request.path.dlid, lid)
                && request.source_gid.is_none_or(|gid| gid == peer.gid)
        };
        consistent && known && other.is_none_or(|other| subnet.is_same_port(other.lid, lid))
    }

    /// Handles the answer of subnet administration with a GID's LID: connections from another LID were
    /// forged, or their peer has moved.
    pub(in crate::link) fn check_origins(&mut self, now: Instant, gid: Gid, lid: Lid) {
        let subnet = self.ground.port.subnet();
        let elsewhere =
            |key: &ConnKey| self.conns.map.get(key).is_some_and(|conn| !subnet.is_same_port(conn.lid, lid));
        let foreign: Vec<_> = self.conns.passive.of_gid(gid).filter(elsewhere).collect();
        for key in foreign {
            self.close(now, key, CloseReason::AddressChanged);
        }
    }

    /// Sets the time that a new passive connection may go without carrying anything.
    pub(super) fn expect_data(&mut self, now: Instant, key: ConnKey) {
        self.out.timers.set(Timer::Conn(key), now + self.ground.settings.passive_idle / UNUSED_PART);
    }

    /// Sets the timer of the longest idle passive connection.
    fn arm_expiry(&mut self) {
        match self.conns.passive.oldest() {
            Some((used, _)) => {
                let at = used + self.ground.settings.passive_idle;
                // Never earlier than it is set already: a use only moves the oldest connection, and a late
                // timeout is harmless.
                if self.out.timers.get(Timer::PassiveExpiry).is_none() {
                    self.out.timers.set(Timer::PassiveExpiry, at);
                }
            }
            None => self.out.timers.cancel(Timer::PassiveExpiry),
        }
    }

    /// Closes passive connections that have reached the idle limit, the longest idle first.
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
