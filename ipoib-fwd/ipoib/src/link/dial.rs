//! Connections that we open, up to the moment when they are in use.

use std::time::{Duration, Instant};

use hca::QpTransition;
use ib_wire::Qpn;
use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::ServiceIdForm;
use ib_wire::ipoib::HardwareAddress;

use super::action::{Action, ConnKey, Event};
use super::connections::{Dial, Side, State};
use super::machine::Link;
use super::rejection::{Verdict, verdict};
use super::settings::{Mode, WorkerIndex};
use super::statistics::CloseReason;
use super::timers::Timer;

/// First and largest delay between dials of one peer.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(16));
/// How long a peer is not dialled that would reject the dial again.
const FINAL: Duration = Duration::from_secs(300);
/// A connection that lived for this long has made up for earlier failures.
const STEADY: Duration = Duration::from_secs(16);
/// A peer is dialled again if the worker sent to it within this time.
const IN_USE: Duration = Duration::from_secs(30);

impl Link {
    /// Opens a connection from `worker` to `peer`, if that is wanted and possible and there is none.
    pub(super) fn dial(&mut self, now: Instant, peer: HardwareAddress, worker: WorkerIndex) {
        let wanted = self.settings.mode == Mode::Connected && self.up && !self.is_shutting_down();
        // A path from an address that we had before names us wrongly; another one is being looked up.
        let ours = self.paths.get(peer.gid).map(|path| path.sgid == self.port.gid);
        if !wanted || !peer.flags.has_rc() || self.is_own(peer) {
            return;
        }
        match ours {
            Some(true) => {}
            Some(false) => return self.refresh_path(peer.gid),
            None => return,
        }
        let peer_key = (peer.qpn, peer.gid, worker);
        if self.timers.get(Timer::Dial(peer.gid, peer.qpn, worker)).is_some() {
            return;
        }
        let dial = *self.conns.dials.entry(peer_key).or_insert(Dial {
            conn: None,
            failures: 0,
            form: ServiceIdForm::Linux,
        });
        if dial.conn.is_some() {
            return;
        }
        let psn = self.random.psn();
        let side = Side::Active { form: dial.form, fallback: false };
        self.counters.dials += 1;
        let key = self.conns.add(now, side, worker, peer, psn);
        if let Some(dial) = self.conns.dials.get_mut(&peer_key) {
            dial.conn = Some(key);
        }
        self.actions.push_back(Action::CreateRc { conn: key, worker, passive: false });
    }

    /// Lets some time pass before a peer is dialled again.
    fn back_off(&mut self, now: Instant, peer: HardwareAddress, worker: WorkerIndex) {
        let Some(dial) = self.conns.dials.get_mut(&(peer.qpn, peer.gid, worker)) else { return };
        let delay = self.random.backoff(BACKOFF.0, dial.failures, BACKOFF.1);
        dial.failures = dial.failures.saturating_add(1);
        self.timers.set(Timer::Dial(peer.gid, peer.qpn, worker), now + delay);
    }

    /// A connection of ours is closing; it may be wanted again.
    pub(super) fn plan_redial(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let (peer, worker) = (conn.peer, conn.worker);
        let steady = conn.live_since.is_some_and(|t| now.duration_since(t) >= STEADY);
        match reason {
            CloseReason::Rejected(_)
            | CloseReason::Timeout
            | CloseReason::PeerDisconnected
            | CloseReason::Fault
            | CloseReason::Device
            | CloseReason::Full
            | CloseReason::PrivateData => {
                if let Some(dial) = self.conns.dials.get_mut(&(peer.qpn, peer.gid, worker)) {
                    if steady {
                        dial.failures = 0;
                    }
                    if matches!(reason, CloseReason::Rejected(_)) {
                        dial.form = ServiceIdForm::Linux;
                    }
                    self.back_off(now, peer, worker);
                }
                if let CloseReason::Rejected(code) = reason {
                    self.after_rejection(now, peer, worker, RejectReason::from_code(code));
                }
                let ours =
                    matches!(reason, CloseReason::Device | CloseReason::Full | CloseReason::PrivateData);
                if !ours {
                    self.suspect(now, peer);
                }
            }
            CloseReason::NeighbourGone
            | CloseReason::AddressChanged
            | CloseReason::OwnAddressChanged
            | CloseReason::Idle
            | CloseReason::Evicted
            | CloseReason::Replaced
            | CloseReason::ModeChanged
            | CloseReason::LinkDown
            | CloseReason::Shutdown => {}
        }
    }

    /// What a rejection asks for beside the back-off.
    fn after_rejection(
        &mut self,
        now: Instant,
        peer: HardwareAddress,
        worker: WorkerIndex,
        reason: RejectReason,
    ) {
        match verdict(reason) {
            Verdict::Again | Verdict::OtherServiceId => {}
            Verdict::NewPath => self.refresh_path(peer.gid),
            Verdict::Final => {
                self.counters.dial_rejected_for_good += 1;
                self.timers.set(Timer::Dial(peer.gid, peer.qpn, worker), now + FINAL);
            }
        }
    }

    /// The peer's flags have changed: what it rejected for good it may take now. The back-off stays.
    pub(super) fn allow_dials(&mut self, now: Instant, peer: HardwareAddress) {
        for worker in self.worker_indices() {
            let held = self.timers.get(Timer::Dial(peer.gid, peer.qpn, worker));
            if held.is_some_and(|until| until > now + BACKOFF.1) {
                self.back_off(now, peer, worker);
            }
        }
    }

    /// A peer may be dialled again.
    pub(super) fn dial_timeout(&mut self, now: Instant, peer: (ib_wire::Gid, Qpn), worker: WorkerIndex) {
        let flags = ib_wire::ipoib::AddressFlags::RC;
        let peer = HardwareAddress { flags, qpn: peer.1, gid: peer.0 };
        if self.neighbours.accepts_rc(peer) && self.neighbours.used_by(peer, worker, now, IN_USE) {
            self.dial(now, peer, worker);
        }
    }

    /// Answers [`Action::CreateRc`]: the queue pair's number, or `None` if the device refused.
    pub(crate) fn handle_created(&mut self, now: Instant, conn: ConnKey, qpn: Option<Qpn>) {
        let key = conn;
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if conn.state != State::Creating {
            return;
        }
        let Some(qpn) = qpn else {
            conn.state = State::Halted;
            match conn.closing {
                None => self.close(now, key, CloseReason::Device),
                Some(_) => self.begin_teardown(now, key),
            }
            return;
        };
        conn.qpn = Some(qpn);
        self.conns.by_qpn.insert(qpn, key);
        let pkey_index = self.port.pkey_index;
        match (conn.closing, pkey_index) {
            (None, Some(pkey_index)) => {
                conn.state = State::Initialising;
                self.modify(key, QpTransition::RcToInit { pkey_index });
            }
            (None, None) => {
                conn.state = State::Halted;
                self.close(now, key, CloseReason::LinkDown);
            }
            (Some(_), _) => self.begin_teardown(now, key),
        }
    }

    fn modify(&mut self, key: ConnKey, to: QpTransition) {
        if let Some(qpn) = self.conns.map.get(&key).and_then(|c| c.qpn) {
            self.actions.push_back(Action::ModifyRc { conn: key, qpn, to });
        }
    }

    /// Answers the connection's outstanding action: done, or failed.
    pub fn handle_done(&mut self, now: Instant, conn: ConnKey, ok: bool) {
        let key = conn;
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        match conn.state {
            State::Initialising | State::Inserting | State::ToReceive | State::ToSend => {}
            State::ToError | State::AwaitDrained | State::Removing => {
                self.teardown_done(now, key, ok);
                return;
            }
            _ => return,
        }
        match conn.state {
            State::Inserting => conn.inserted = ok,
            State::ToReceive => conn.receiving = ok,
            _ => {}
        }
        if conn.closing.is_some() {
            self.begin_teardown(now, key);
            return;
        }
        if !ok {
            conn.state = State::Halted;
            self.close(now, key, CloseReason::Device);
            return;
        }
        self.step_up(now, key);
    }

    /// The next step on the way up.
    fn step_up(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        match (conn.state, conn.side) {
            (State::Initialising, _) => {
                let Some(slot) = conn.slot else { return self.halt(now, key) };
                conn.state = State::Inserting;
                let worker = conn.worker;
                self.actions.push_back(Action::InsertRc { conn: key, worker, slot });
            }
            (State::Inserting, Side::Active { .. }) => {
                conn.state = State::Dialling;
                self.cm_connect(now, key);
            }
            (State::Inserting, Side::Passive) => self.start_receiving(now, key),
            (State::ToReceive, _) => match conn.send {
                Some(send) => {
                    conn.state = State::ToSend;
                    self.modify(key, QpTransition::RcToSend(send));
                }
                None => self.halt(now, key),
            },
            (State::ToSend, Side::Active { .. }) => {
                conn.state = State::Live;
                self.cm_ready(key);
                self.live(now, key);
            }
            (State::ToSend, Side::Passive) => {
                conn.state = State::Replied;
                let ready = conn.ready;
                self.cm_accept(key);
                if ready {
                    self.live(now, key);
                }
            }
            _ => {}
        }
    }

    /// The handshake has said what the queue pair needs: INIT → RTR. Receive buffers are there, on the shared queue.
    pub(super) fn start_receiving(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        match conn.receive {
            Some(receive) => {
                conn.state = State::ToReceive;
                conn.receiving = true;
                self.modify(key, QpTransition::RcToReceive(receive));
            }
            None => self.halt(now, key),
        }
    }

    /// Closes a connection whose handshake left out what its queue pair needs.
    fn halt(&mut self, now: Instant, key: ConnKey) {
        if let Some(conn) = self.conns.map.get_mut(&key) {
            conn.state = State::Halted;
            self.close(now, key, CloseReason::Device);
        }
    }

    /// A connection has come up.
    pub(super) fn live(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if conn.live_since.is_some() {
            return;
        }
        conn.state = State::Live;
        conn.live_since = Some(now);
        let (peer, passive, setup) = (conn.peer, conn.is_passive(), now.duration_since(conn.started));
        if passive {
            self.counters.connections_accepted += 1;
            self.expect_data(now, key);
        } else {
            self.counters.connections_opened += 1;
            if let Side::Active { form, .. } = conn.side {
                let peer_key = conn.peer_key();
                if let Some(dial) = self.conns.dials.get_mut(&peer_key) {
                    dial.form = form;
                }
            }
            self.republish(peer);
        }
        self.events.push_back(Event::ConnectionUp { conn: key, passive, peer, setup });
    }

    /// The peer has rejected a dial. A service id that it does not know is tried in its other form, once.
    pub(super) fn dial_rejected(&mut self, now: Instant, key: ConnKey, reason: RejectReason) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if let (State::Dialling, Side::Active { form, fallback: false }, Verdict::OtherServiceId, None) =
            (conn.state, conn.side, verdict(reason), conn.closing)
        {
            conn.side = Side::Active { form: form.other(), fallback: true };
            self.counters.service_id_fallbacks += 1;
            self.cm_connect(now, key);
            return;
        }
        self.close(now, key, CloseReason::Rejected(reason.code()));
    }

    /// Forgets all dials that have no connection.
    pub(super) fn forget_dials(&mut self) {
        let timers = &mut self.timers;
        self.conns.dials.retain(|(qpn, gid, worker), dial| {
            timers.cancel(Timer::Dial(*gid, *qpn, *worker));
            dial.conn.is_some()
        });
    }
}
