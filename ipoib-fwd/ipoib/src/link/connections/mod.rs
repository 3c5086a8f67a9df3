//! The connections of a link: their data, their states ([`state`]), and their indices.
//!
//! [`Connections`] owns them. [`Work`] operates on them, with the parts of the link that they need.

mod accept;
mod closing;
mod dial;
mod handshake;
mod passive;
mod rejection;
mod state;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::time::{Duration, Instant};

use cm::Origin;
use hca::{RcSlot, RcToReceive, RcToSend};
use ib_wire::cm::RnrRetry;
use ib_wire::cm::ipoib::ServiceIdForm;
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Lid, Psn, Qpn};

use super::action::{ConnKey, WorkerNote};
use super::ground::Ground;
use super::outbox::{Outbox, Word};
use super::paths::Paths;
use super::request::Request;
use super::settings::{LinkIndex, WorkerIndex};
use super::statistics::{CloseReason, ConnectionInfo};
use super::table::RcPath;
pub(crate) use accept::Candidate;
use passive::{File, Passive};
use state::{Input, State};

/// The side that opened a connection, and the data of that side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) enum Side {
    /// We opened it.
    Active {
        /// The form of service ID that was dialled.
        form: ServiceIdForm,
        /// True once the other form was dialled as well.
        fallback: bool,
    },
    /// The peer opened it.
    Passive,
}

/// The key of a peer: datagram queue pair and GID, and the worker of ours that serves it.
pub(in crate::link) type PeerKey = (Qpn, Gid, WorkerIndex);

/// Inputs that came early.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    established: bool,
    last_wqe: bool,
    drained: bool,
}

/// One connection.
#[derive(Debug)]
pub(in crate::link) struct Connection {
    pub(in crate::link) side: Side,
    pub(in crate::link) worker: WorkerIndex,
    /// Its slot in the worker's table, from the port.
    pub(in crate::link) slot: Option<RcSlot>,
    pub(in crate::link) peer: HardwareAddress,
    pub(in crate::link) qpn: Option<Qpn>,
    /// The port's connection table has it, and its handshake has not ended.
    pub(in crate::link) handshake: bool,
    pub(in crate::link) state: State,
    /// The reason for which it is closing, once it is.
    closing: Option<CloseReason>,
    /// The deadline of its teardown, once that has started.
    pub(in crate::link) patience: Option<Instant>,
    /// The PSN that the peer must start with.
    pub(in crate::link) psn: Psn,
    /// The transitions that the handshake has agreed on.
    pub(in crate::link) receive: Option<RcToReceive>,
    pub(in crate::link) send: Option<RcToSend>,
    /// Passive: the LID that the request came from.
    pub(in crate::link) lid: Lid,
    /// Passive: the port that the request came from.
    pub(in crate::link) origin: Origin,
    /// Passive: it counts in that port's share.
    pub(in crate::link) counted: bool,
    /// Passive: it has received a message.
    pub(in crate::link) carried: bool,
    /// Passive: RNR retries that the peer requests from us.
    pub(in crate::link) rnr_retry: RnrRetry,
    /// Inputs that came before their state ([`state::Act::Keep`]).
    kept: Kept,
    /// Times that the drain request found the send queue full.
    drain_tries: u16,
    /// The peer's receive MTU, encapsulation header included; 0 = unknown.
    pub(in crate::link) mtu: u32,
    pub(in crate::link) started: Instant,
    pub(in crate::link) live_since: Option<Instant>,
    pub(in crate::link) last_used: Instant,
}

impl Connection {
    pub(in crate::link) const fn is_passive(&self) -> bool {
        matches!(self.side, Side::Passive)
    }

    /// Its keys in the index of passive connections.
    pub(in crate::link) const fn file(&self) -> File {
        File { peer: self.peer_key(), origin: self.origin, used: self.last_used }
    }

    pub(in crate::link) const fn peer_key(&self) -> PeerKey {
        (self.peer.qpn, self.peer.gid, self.worker)
    }
}

/// The state of dialling a peer from a worker.
#[derive(Clone, Copy, Debug)]
pub(in crate::link) struct Dial {
    pub(in crate::link) conn: Option<ConnKey>,
    pub(in crate::link) failures: u32,
    pub(in crate::link) form: ServiceIdForm,
}

/// All connections of a link.
#[derive(Debug)]
pub(in crate::link) struct Connections {
    /// In the order of their creation.
    pub(in crate::link) map: BTreeMap<ConnKey, Connection>,
    pub(in crate::link) by_qpn: HashMap<Qpn, ConnKey>,
    /// Dials by peer and worker.
    pub(in crate::link) dials: HashMap<PeerKey, Dial>,
    /// Passive connections that are not closing.
    pub(in crate::link) passive: Passive,
    /// Active connections that no table contains from a generation on, in the order of the generations.
    pub(in crate::link) retiring: VecDeque<(u64, ConnKey)>,
    index: LinkIndex,
    /// Slots that tables before a generation may still contain.
    pub(in crate::link) quarantine: VecDeque<(u64, WorkerIndex, RcSlot)>,
    next_key: u64,
}

impl Connections {
    pub(in crate::link) fn new(index: LinkIndex) -> Self {
        Self {
            map: BTreeMap::new(),
            by_qpn: HashMap::new(),
            dials: HashMap::new(),
            passive: Passive::default(),
            retiring: VecDeque::new(),
            index,
            quarantine: VecDeque::new(),
            next_key: 1,
        }
    }

    /// A new connection in its first state.
    pub(in crate::link) fn add(
        &mut self,
        now: Instant,
        side: Side,
        worker: WorkerIndex,
        peer: HardwareAddress,
        psn: Psn,
    ) -> ConnKey {
        let key = ConnKey { link: self.index, number: self.next_key };
        self.next_key += 1;
        let conn = Connection {
            side,
            worker,
            slot: None,
            peer,
            qpn: None,
            handshake: false,
            state: State::Creating,
            closing: None,
            patience: None,
            psn,
            receive: None,
            send: None,
            lid: Lid(0),
            origin: Origin::Lid(Lid(0)),
            counted: false,
            carried: false,
            rnr_retry: RnrRetry::new(0),
            kept: Kept::default(),
            drain_tries: 0,
            mtu: 0,
            started: now,
            live_since: None,
            last_used: now,
        };
        self.map.insert(key, conn);
        key
    }

    /// The live connection of `worker` to `peer` that we opened.
    fn rc_path(&self, peer: HardwareAddress, worker: WorkerIndex) -> Option<RcPath> {
        let dial = self.dials.get(&(peer.qpn, peer.gid, worker))?;
        let conn = self.map.get(&dial.conn?)?;
        conn.slot.filter(|_| conn.state == State::Live).map(|slot| RcPath { slot, mtu: conn.mtu })
    }

    /// Our queue pair of the live connection of `worker` to `peer` that we opened.
    pub(in crate::link) fn opened(&self, peer: HardwareAddress, worker: WorkerIndex) -> Option<Qpn> {
        let dial = self.dials.get(&(peer.qpn, peer.gid, worker))?;
        let conn = self.map.get(&dial.conn?)?;
        conn.qpn.filter(|_| conn.state == State::Live)
    }

    /// The longest idle passive connection, if it is out of use, and since when it is idle.
    pub(in crate::link) fn out_of_use(&self, now: Instant) -> Option<(Instant, ConnKey)> {
        let is_out = |used: Instant| now.saturating_duration_since(used) >= accept::OUT_OF_USE;
        self.passive.oldest().filter(|(used, _)| is_out(*used))
    }

    /// True if the connection still waits for its REQ to be sent.
    pub(in crate::link) fn wants_handshake(&self, key: ConnKey) -> bool {
        self.map.get(&key).is_some_and(|c| c.state == State::Dialling)
    }

    /// The connections after the one with the number `after`, at most `limit` of them, in the order of their
    /// numbers; `ip` maps an address to its neighbour.
    pub(in crate::link) fn list(
        &self,
        now: Instant,
        (after, limit): (u64, usize),
        ip: impl Fn(HardwareAddress) -> Option<IpAddr>,
    ) -> Vec<ConnectionInfo> {
        let after = Bound::Excluded(ConnKey { link: self.index, number: after });
        let rows = self.map.range((after, Bound::Unbounded)).take(limit).map(|(key, c)| ConnectionInfo {
            key: *key,
            passive: c.is_passive(),
            worker: c.worker,
            qpn: c.qpn,
            ip: ip(c.peer),
            peer: c.peer,
            state: c.state.name(),
            mtu: c.mtu,
            idle_ms: now.saturating_duration_since(c.last_used).as_millis() as u64,
        });
        rows.collect()
    }

    /// The number of connections that carry packets: those that we opened, and those that peers opened.
    pub(in crate::link) fn live(&self) -> [usize; 2] {
        self.map.values().filter(|conn| conn.state.name() == "live").fold([0; 2], |[ours, theirs], conn| {
            if conn.is_passive() { [ours, theirs + 1] } else { [ours + 1, theirs] }
        })
    }

    /// Live connections to a peer that we opened, by worker.
    pub(in crate::link) fn rc_paths(&self, ground: &Ground, peer: HardwareAddress) -> Vec<Option<RcPath>> {
        ground.worker_indices().map(|worker| self.rc_path(peer, worker)).collect()
    }

    /// True while a connection from a worker to a peer is being established.
    pub(in crate::link) fn is_dialling(&self, peer: HardwareAddress, worker: WorkerIndex) -> bool {
        let dial = self.dials.get(&(peer.qpn, peer.gid, worker));
        let conn = dial.and_then(|dial| self.map.get(&dial.conn?));
        conn.is_some_and(|conn| !conn.state.is_closing())
    }

    /// The peer at the other end of a connected queue pair.
    pub(in crate::link) fn behind(&self, qpn: Qpn) -> Option<HardwareAddress> {
        Some(self.map.get(self.by_qpn.get(&qpn)?)?.peer)
    }
}

/// The connections, with the parts of the link that they need.
pub(in crate::link) struct Work<'a> {
    pub(in crate::link) conns: &'a mut Connections,
    pub(in crate::link) ground: &'a Ground,
    pub(in crate::link) paths: &'a Paths,
    pub(in crate::link) out: &'a mut Outbox,
}

impl Work<'_> {
    /// Assigns a connection its slot in the worker's table, before its queue pair is created.
    pub(in crate::link) fn lend_slot(&mut self, key: ConnKey, slot: RcSlot) {
        match self.conns.map.get_mut(&key) {
            Some(conn) => conn.slot = Some(slot),
            None => debug_assert!(false, "a slot for no connection"),
        }
    }

    /// Handles the lack of a free slot for a connection on its worker.
    pub(in crate::link) fn no_slot(&mut self, now: Instant, key: ConnKey) {
        self.step(now, key, Input::Refused, CloseReason::Full);
    }

    /// Returns a slot, for use after all workers have taken up `generation`; 0 = immediately.
    fn put_slot(&mut self, generation: u64, worker: WorkerIndex, slot: RcSlot) {
        if generation > 0 {
            self.conns.quarantine.push_back((generation, worker, slot));
        } else {
            self.out.requests.push_back(Request::FreeSlot { worker, slot });
        }
    }

    /// Frees slots that no table contains any more.
    pub(in crate::link) fn release_slots(&mut self) {
        while let Some((needed, worker, slot)) = self.conns.quarantine.front().copied()
            && needed <= self.out.quiescent
        {
            self.conns.quarantine.pop_front();
            self.out.requests.push_back(Request::FreeSlot { worker, slot });
        }
    }

    /// Records that a worker has received on these queue pairs.
    pub(in crate::link) fn received(&mut self, now: Instant, qpns: &[Qpn]) {
        for qpn in qpns {
            if let Some(key) = self.conns.by_qpn.get(qpn).copied() {
                self.touch(now, key);
            }
        }
    }

    /// Records that a passive connection has received; updates its position at most once a second.
    fn touch(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.carried = true;
        if now.saturating_duration_since(conn.last_used) < Duration::from_secs(1) {
            return;
        }
        let file = conn.file();
        conn.last_used = now;
        self.conns.passive.touch(file, key, now);
    }

    /// Handles an event of a connected queue pair.
    pub(in crate::link) fn note(&mut self, now: Instant, qpn: Qpn, note: WorkerNote) {
        let Some(key) = self.conns.by_qpn.get(&qpn).copied() else { return };
        let Some(conn) = self.conns.map.get(&key) else { return };
        let input = match note {
            WorkerNote::Fault => {
                let gid = conn.peer.gid;
                self.close(now, key, CloseReason::Fault);
                // A send without an answer may mean that the peer has moved to another LID.
                self.out.words.push_back(Word::RefreshPath(gid));
                return;
            }
            WorkerNote::CommunicationEstablished => {
                self.out.requests.push_back(Request::Data(key));
                Input::Established
            }
            WorkerNote::LastWqeReached => Input::LastWqe,
            WorkerNote::Drained => Input::Drained,
            // Receives complete elsewhere, so the send queue's state proves nothing about a passive
            // connection.
            WorkerNote::Flushed if conn.is_passive() => return,
            WorkerNote::Flushed => Input::Drained,
        };
        self.step(now, key, input, CloseReason::Fault);
    }
}
