//! The connections of a link: what each is, where each stands, and how each is found.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hca::{RcSlot, RcToReceive, RcToSend};
use ib_wire::cm::RnrRetry;
use ib_wire::cm::ipoib::ServiceIdForm;
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Lid, Psn, Qpn};

use super::action::{ConnKey, WorkerNote};
use super::machine::Link;
use super::passive::{File, Passive};
use super::request::Request;
use super::settings::{LinkIndex, WorkerIndex};
use super::statistics::{CloseReason, ConnectionInfo};
use super::table::RcPath;

/// Where a connection stands. It goes down this list, active and passive ones by their own steps; from every state
/// before `ToError` it can jump there, or, where the queue pair has not come that far, to `Removing` or its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The device has been asked for a queue pair.
    Creating,
    /// RESET → INIT is under way.
    Initialising,
    /// The worker has been asked to take it in.
    Inserting,
    /// A step has failed; no action is outstanding. Left at once.
    Halted,
    /// Active: REQ is out, no REP yet.
    Dialling,
    /// INIT → RTR is under way.
    ToReceive,
    /// RTR → RTS is under way.
    ToSend,
    /// Passive: REP is out, no RTU yet.
    Replied,
    /// In use.
    Live,
    /// Active: out of the published tables, but workers may still use it until they have taken up this generation.
    Retiring {
        /// The publication that no longer has it.
        generation: u64,
    },
    /// Active: out of use; what was sent is on its way.
    Lingering,
    /// → ERR is under way.
    ToError,
    /// In ERR; the last-WQE event has to come (IBA 10.3.1).
    AwaitLastWqe,
    /// The send queue was full; the drain request is posted again soon.
    DrainRetry,
    /// The worker has been asked to post the drain request; its completion has to come.
    AwaitDrained,
    /// The worker has been asked to give it back.
    Removing,
    /// At rest; the handshake's end has to come before the number may be used again.
    AwaitRelease,
}

impl State {
    /// Its name for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Initialising => "initialising",
            Self::Inserting => "inserting",
            Self::Halted => "halted",
            Self::Dialling => "dialling",
            Self::ToReceive => "to_receive",
            Self::ToSend => "to_send",
            Self::Replied => "replied",
            Self::Live => "live",
            Self::Retiring { .. } => "retiring",
            Self::Lingering => "lingering",
            Self::ToError => "to_error",
            Self::AwaitLastWqe => "await_last_wqe",
            Self::DrainRetry => "drain_retry",
            Self::AwaitDrained => "await_drained",
            Self::Removing => "removing",
            Self::AwaitRelease => "await_release",
        }
    }

    /// True while the answer to an action is awaited.
    pub(super) const fn is_busy(self) -> bool {
        match self {
            Self::Creating
            | Self::Initialising
            | Self::Inserting
            | Self::ToReceive
            | Self::ToSend
            | Self::ToError
            | Self::Removing => true,
            Self::Halted
            | Self::Dialling
            | Self::Replied
            | Self::Live
            | Self::Retiring { .. }
            | Self::Lingering
            | Self::AwaitLastWqe
            | Self::DrainRetry
            | Self::AwaitDrained
            | Self::AwaitRelease => false,
        }
    }
}

/// Which way a connection was opened, and what only that way has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// We opened it.
    Active {
        /// The service id that was dialled.
        form: ServiceIdForm,
        /// True once the other form was dialled too.
        fallback: bool,
    },
    /// The peer opened it.
    Passive,
}

/// How a peer is known: datagram queue pair and GID, and which of our workers deals with it.
pub(super) type PeerKey = (Qpn, Gid, WorkerIndex);

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) side: Side,
    pub(super) worker: WorkerIndex,
    /// Its place in the worker's table, from the port.
    pub(super) slot: Option<RcSlot>,
    pub(super) peer: HardwareAddress,
    pub(super) qpn: Option<Qpn>,
    /// The port's connection table has it, and has not said its last word.
    pub(super) handshake: bool,
    pub(super) state: State,
    /// Why it is being closed, once it is.
    pub(super) closing: Option<CloseReason>,
    /// When a teardown that is under way stops waiting for others.
    pub(super) patience: Option<Instant>,
    /// PSN that the peer shall begin with.
    pub(super) psn: Psn,
    /// The transitions that the handshake has agreed on.
    pub(super) receive: Option<RcToReceive>,
    pub(super) send: Option<RcToSend>,
    /// Passive: the LID that the request came from.
    pub(super) lid: Lid,
    /// Passive: it has received something.
    pub(super) carried: bool,
    /// Passive: RNR retries that the peer wants us to use.
    pub(super) rnr_retry: RnrRetry,
    /// The worker has it in its table.
    pub(super) inserted: bool,
    /// It has been told to go to RTR: messages may have arrived.
    pub(super) receiving: bool,
    /// The worker's and device's notes so far.
    pub(super) last_wqe: bool,
    pub(super) drained: bool,
    /// Times that the drain request found the send queue full.
    pub(super) drain_tries: u16,
    /// The RTU came, or data in its place, before REP was out.
    pub(super) ready: bool,
    /// The peer's receive MTU, encapsulation header included; 0 = not known.
    pub(super) mtu: u32,
    pub(super) started: Instant,
    pub(super) live_since: Option<Instant>,
    pub(super) last_used: Instant,
}

impl Connection {
    pub(super) const fn is_passive(&self) -> bool {
        matches!(self.side, Side::Passive)
    }

    /// What it is filed under if it is a passive one.
    pub(super) const fn file(&self) -> File {
        File { peer: self.peer_key(), lid: self.lid, used: self.last_used }
    }

    pub(super) const fn peer_key(&self) -> PeerKey {
        (self.peer.qpn, self.peer.gid, self.worker)
    }
}

/// What is remembered of dialling a peer from a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    pub(super) conn: Option<ConnKey>,
    pub(super) failures: u32,
    pub(super) form: ServiceIdForm,
}

/// All connections of a link.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) map: HashMap<ConnKey, Connection>,
    pub(super) by_qpn: HashMap<Qpn, ConnKey>,
    /// Dials by peer and worker.
    pub(super) dials: HashMap<PeerKey, Dial>,
    /// Passive connections that are not closing.
    pub(super) passive: Passive,
    /// Active ones that no table has from some generation on, in its order.
    pub(super) retiring: VecDeque<(u64, ConnKey)>,
    index: LinkIndex,
    /// Slots that tables of before a generation may still name.
    pub(super) quarantine: VecDeque<(u64, WorkerIndex, RcSlot)>,
    next_key: u64,
}

impl Connections {
    pub(super) fn new(index: LinkIndex) -> Self {
        Self {
            map: HashMap::new(),
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
    pub(super) fn add(
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
            carried: false,
            rnr_retry: RnrRetry::new(0),
            inserted: false,
            receiving: false,
            last_wqe: false,
            drained: false,
            drain_tries: 0,
            ready: false,
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
        let live = conn.state == State::Live && conn.closing.is_none();
        conn.slot.filter(|_| live).map(|slot| RcPath { slot, mtu: conn.mtu })
    }
}

impl Link {
    /// Live connections to a peer that we opened, by worker.
    pub(super) fn rc_paths(&self, peer: HardwareAddress) -> Vec<Option<RcPath>> {
        self.worker_indices().map(|worker| self.conns.rc_path(peer, worker)).collect()
    }

    /// Gives a connection its place in the worker's table, before its queue pair is created.
    pub(crate) fn lend_slot(&mut self, key: ConnKey, slot: RcSlot) {
        match self.conns.map.get_mut(&key) {
            Some(conn) => conn.slot = Some(slot),
            None => debug_assert!(false, "a place for no connection"),
        }
    }

    /// There is no place for a connection on its worker.
    pub(crate) fn no_slot(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.state = State::Halted;
        match conn.closing {
            None => self.close(now, key, CloseReason::Full),
            Some(_) => self.begin_teardown(now, key),
        }
    }

    /// Gives a slot back, for use after all workers have taken up `generation`; 0 = at once.
    pub(super) fn put_slot(&mut self, generation: u64, worker: WorkerIndex, slot: RcSlot) {
        if generation > 0 {
            self.conns.quarantine.push_back((generation, worker, slot));
        } else {
            self.requests.push_back(Request::FreeSlot { worker, slot });
        }
    }

    /// Slots that no table names any more are free.
    pub(super) fn release_slots(&mut self) {
        while let Some((needed, worker, slot)) = self.conns.quarantine.front().copied()
            && needed <= self.quiescent
        {
            self.conns.quarantine.pop_front();
            self.requests.push_back(Request::FreeSlot { worker, slot });
        }
    }

    /// True if `qpn` is a connected queue pair of this link.
    #[must_use]
    pub fn owns(&self, qpn: Qpn) -> bool {
        self.conns.by_qpn.contains_key(&qpn)
    }

    /// Tells in bulk what a worker has seen in use, about once a second: its passive queue pairs that received, and the
    /// neighbours that it sent to. The latter also at once, with a rate limit, where [`super::Neighbour::dial`] is set.
    pub fn handle_used(&mut self, now: Instant, worker: WorkerIndex, received: &[Qpn], sent: &[Ipv4Addr]) {
        for qpn in received {
            if let Some(key) = self.conns.by_qpn.get(qpn).copied() {
                self.touch(now, key);
            }
        }
        for ip in sent {
            self.used(now, worker, *ip);
        }
    }

    /// A passive connection has received; looked at no more than once a second for each.
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

    /// Tells what befell a connected queue pair. Unknown numbers are ignored.
    pub fn handle_note(&mut self, now: Instant, qpn: Qpn, note: WorkerNote) {
        let Some(key) = self.conns.by_qpn.get(&qpn).copied() else { return };
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        match note {
            WorkerNote::Fault => {
                let peer = conn.peer;
                self.close(now, key, CloseReason::Fault);
                // A send that got no answer may mean that the peer is behind another LID now.
                self.refresh_path(peer.gid);
            }
            WorkerNote::CommunicationEstablished => self.communication_established(now, key),
            WorkerNote::LastWqeReached => {
                conn.last_wqe = true;
                self.advance_teardown(now, key);
            }
            WorkerNote::Drained => {
                conn.drained = true;
                self.advance_teardown(now, key);
            }
            WorkerNote::Flushed => {
                // Receives complete elsewhere, so this says nothing about a passive one.
                conn.drained |= !conn.is_passive();
                self.advance_teardown(now, key);
            }
        }
    }

    /// All connections.
    #[must_use]
    pub fn connections(&self, now: Instant) -> Vec<ConnectionInfo> {
        let mut all: Vec<_> = self
            .conns
            .map
            .iter()
            .map(|(key, c)| ConnectionInfo {
                key: *key,
                passive: c.is_passive(),
                worker: c.worker,
                qpn: c.qpn,
                ip: self.neighbours.at_address(c.peer).next(),
                peer: c.peer,
                state: c.state.name(),
                mtu: c.mtu,
                idle_ms: now.saturating_duration_since(c.last_used).as_millis() as u64,
            })
            .collect();
        all.sort_by_key(|c| c.key);
        all
    }
}
