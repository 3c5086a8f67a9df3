//! Connections that we open, until they are in use.

use std::time::{Duration, Instant};

use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::ServiceIdForm;
use ib_wire::ipoib::HardwareAddress;

use super::rejection::{Verdict, verdict};
use super::state::Input;
use super::{Dial, Side, Work};
use crate::link::action::{Action, ConnKey, Event};
use crate::link::outbox::Word;
use crate::link::settings::{Mode, WorkerIndex};
use crate::link::statistics::CloseReason;
use crate::link::timers::Timer;

/// First and largest delay between dials of one peer.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(16));
/// How long a peer is not dialled after a rejection that would be repeated.
const FINAL: Duration = Duration::from_secs(300);
/// A connection that lived for this long clears the count of earlier failures.
const STEADY: Duration = Duration::from_secs(16);

impl Work<'_> {
    /// Opens a connection from `worker` to `peer`, if that is wanted and possible and there is none.
    pub(in crate::link) fn dial(&mut self, now: Instant, peer: HardwareAddress, worker: WorkerIndex) {
        let wanted = self.ground.settings.mode == Mode::Connected && self.ground.is_at_work();
        // A path from a former address of ours names the wrong GID; a new path is being looked up.
        let ours = self.paths.get(peer.gid).map(|path| path.sgid == self.ground.port.gid);
        if !wanted || !peer.flags.has_rc() || self.ground.is_own(peer) {
            return;
        }
        match ours {
            Some(true) => {}
            Some(false) => return self.out.words.push_back(Word::RefreshPath(peer.gid)),
            None => return,
        }
        let peer_key = (peer.qpn, peer.gid, worker);
        if self.out.timers.get(Timer::Dial(peer.gid, peer.qpn, worker)).is_some() {
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
        let psn = self.out.random.psn();
        let side = Side::Active { form: dial.form, fallback: false };
        self.out.counters.dials += 1;
        let key = self.conns.add(now, side, worker, peer, psn);
        if let Some(dial) = self.conns.dials.get_mut(&peer_key) {
            dial.conn = Some(key);
        }
        self.out.actions.push_back(Action::CreateRc { conn: key, worker, passive: false });
    }

    /// Delays the next dial of a peer.
    fn back_off(&mut self, now: Instant, peer: HardwareAddress, worker: WorkerIndex) {
        let Some(dial) = self.conns.dials.get_mut(&(peer.qpn, peer.gid, worker)) else { return };
        let delay = self.out.random.backoff(BACKOFF.0, dial.failures, BACKOFF.1);
        dial.failures = dial.failures.saturating_add(1);
        self.out.timers.set(Timer::Dial(peer.gid, peer.qpn, worker), now + delay);
    }

    /// Schedules the next dial when a connection of ours closes.
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
                    self.out.words.push_back(Word::Suspect(peer));
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

    /// Handles the reason of a rejection, in addition to the back-off.
    fn after_rejection(
        &mut self,
        now: Instant,
        peer: HardwareAddress,
        worker: WorkerIndex,
        reason: RejectReason,
    ) {
        match verdict(reason) {
            Verdict::Again | Verdict::OtherServiceId => {}
            Verdict::NewPath => self.out.words.push_back(Word::RefreshPath(peer.gid)),
            Verdict::Final => {
                self.out.counters.dial_rejected_for_good += 1;
                self.out.timers.set(Timer::Dial(peer.gid, peer.qpn, worker), now + FINAL);
            }
        }
    }

    /// Permits dials to a peer whose flags have changed: it may now accept a request that it rejected for
    /// good. The back-off stays.
    pub(in crate::link) fn allow_dials(&mut self, now: Instant, peer: HardwareAddress) {
        for worker in self.ground.worker_indices() {
            let held = self.out.timers.get(Timer::Dial(peer.gid, peer.qpn, worker));
            if held.is_some_and(|until| until > now + BACKOFF.1) {
                self.back_off(now, peer, worker);
            }
        }
    }

    /// Reports that a connection has come up.
    pub(super) fn up(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.live_since = Some(now);
        let (peer, passive, setup) = (conn.peer, conn.is_passive(), now.duration_since(conn.started));
        if passive {
            self.out.counters.connections_accepted += 1;
            self.expect_data(now, key);
        } else {
            self.out.counters.connections_opened += 1;
            if let Side::Active { form, .. } = conn.side {
                let peer_key = conn.peer_key();
                if let Some(dial) = self.conns.dials.get_mut(&peer_key) {
                    dial.form = form;
                }
            }
            self.out.words.push_back(Word::Republish(peer));
        }
        self.out.events.push_back(Event::ConnectionUp { conn: key, passive, peer, setup });
    }

    /// Handles the rejection of a dial by the peer. If the peer does not know the service ID, the other form
    /// is tried, once.
    pub(super) fn rejected(&mut self, now: Instant, key: ConnKey, reason: RejectReason) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let untried = matches!(conn.side, Side::Active { fallback: false, .. });
        let input = match verdict(reason) {
            Verdict::OtherServiceId if untried => Input::UnknownService,
            _ => Input::Close,
        };
        self.step(now, key, input, CloseReason::Rejected(reason.code()));
    }

    /// Forgets all dials that have no connection.
    pub(in crate::link) fn forget_dials(&mut self) {
        let timers = &mut self.out.timers;
        self.conns.dials.retain(|(qpn, gid, worker), dial| {
            timers.cancel(Timer::Dial(*gid, *qpn, *worker));
            dial.conn.is_some()
        });
    }
}
