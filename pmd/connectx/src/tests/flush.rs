//! Completions of a failed queue pair, by its kind and the cause of the error: their status and order, each
//! work request once, signaled or not. The peer of each is a queue pair of the same kind.

use std::time::Duration;

use ib_wire::Lid;

use super::read::Reading;
use super::rig::*;
use crate::{Activity, DeviceEvent, ProtectionDomain, QpKind};
use hca::{AsyncEvent, QpState, QpTransition, WcStatus};

const FLUSHED: WcStatus = WcStatus::Flushed;
const SUCCESS: WcStatus = WcStatus::Success;
const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;
const SIGNAL: u8 = 0x08;
const KINDS: [QpKind; 3] = [QpKind::Rc, QpKind::Uc, QpKind::Ud];

/// Counters and statuses of completions, in order.
type Completed = Vec<(u16, WcStatus)>;

/// A queue pair under test, its peer, and memory for both.
struct Bench {
    rig: Rig,
    kind: QpKind,
    /// Source of receives.
    srq: Option<SharedQueue>,
    a: Pair,
    b: Pair,
    here: (Memory, u32),
    there: (Memory, u32),
}

impl Bench {
    fn new(kind: QpKind, shared: bool) -> Self {
        Self::with_queues(kind, shared, CQ, CQ)
    }

    /// With room for this number of send and receive completions.
    fn with_queues(kind: QpKind, shared: bool, sends: usize, receives: usize) -> Self {
        let mut rig = Rig::new();
        rig.a.scq = Queue::cq(&mut rig.a.engine, sends);
        rig.a.rcq = Queue::cq(&mut rig.a.engine, receives);
        let srq = shared.then(|| SharedQueue::new(&mut rig.a.engine, 16, 1024, 1024));
        let a = rig.a.qp(kind, 64, srq.as_ref().map(|srq| srq.number), 5);
        let b = rig.b.qp(kind, 64, None, 6);
        let (here, there) = (rig.a.memory(8192), rig.b.memory(8192));
        let mut bench = Self { rig, kind, srq, a, b, here, there };
        bench.open();
        bench
    }

    /// Moves both ends from RESET to RTS.
    fn open(&mut self) {
        let how = Rc { mtu: ib_wire::Mtu::B256, retry: 1, rnr_retry: 1, ..Rc::default() };
        let Self { rig: Rig { a: host_a, b: host_b, .. }, a, b, .. } = self;
        for (host, qp, dest) in [(host_a, &*a, (Lid(2), b.qpn)), (host_b, &*b, (Lid(1), a.qpn))] {
            match self.kind {
                QpKind::Rc => host.connect(qp, dest, how),
                QpKind::Uc => host.connect_uc(qp, dest, how),
                _ => host.open_ud(qp, 3),
            }
        }
    }

    /// Posts a send of `a` with a key and length.
    fn post(&mut self, opcode: u8, flags: u8, key: u32, len: u32) {
        let mut body = Vec::new();
        if self.kind == QpKind::Ud {
            body.extend(To { lid: Lid(2), qpn: self.b.qpn, qkey: 3, grh: None }.bytes());
        }
        if opcode == WRITE {
            // With a key that does not exist.
            body.extend([0; 16]);
        }
        body.extend(data(len, key, self.here.0.address()));
        self.rig.a.post(&mut self.a, opcode, flags, 0, &body);
    }

    /// Posts sends of which only the last is signaled.
    fn sends(&mut self, n: usize) {
        let key = self.here.1;
        (1..=n).for_each(|left| self.post(SEND, if left == n { SIGNAL } else { 0 }, key, 100));
    }

    fn receive(&mut self, key: u32) {
        match &mut self.srq {
            Some(srq) => srq.post(),
            None => {
                let piece = data(1024, key, self.here.0.address() + 4096);
                self.rig.a.receive(&mut self.a, &[piece]);
            }
        }
    }

    fn receives(&mut self, n: usize) {
        let key = self.here.1;
        (0..n).for_each(|_| self.receive(key));
    }

    /// Makes the peer send a message of `len` bytes, which is still in flight on return.
    fn send_back(&mut self, len: u32) {
        let mut body = Vec::new();
        if self.kind == QpKind::Ud {
            body.extend(To { lid: Lid(1), qpn: self.a.qpn, qkey: 3, grh: None }.bytes());
        }
        body.extend(data(len, self.there.1, self.there.0.address()));
        self.rig.b.post(&mut self.b, SEND, 0, 0, &body);
    }

    /// Delivers half a message to a connected queue pair, so that its receive is in use.
    fn begin_message(&mut self) {
        if self.kind == QpKind::Ud {
            return;
        }
        // The last segment has no valid key: the data before it is sent.
        let good = data(512, self.there.1, self.there.0.address());
        let bad = data(88, self.there.1 ^ 1, self.there.0.address());
        self.rig.b.post(&mut self.b, SEND, 0, 0, &[good, bad].concat());
        self.rig.settle();
    }

    /// Completions since the last call: sends, receives.
    fn completed(&mut self) -> (Completed, Completed) {
        let all =
            |queue: &mut Queue| queue.all().iter().map(|w| (w.counter, w.status)).collect::<Completed>();
        (all(&mut self.rig.a.scq), all(&mut self.rig.a.rcq))
    }

    /// Events about the queue pair and its queues.
    fn events(&mut self) -> Vec<DeviceEvent> {
        let about = |event: &DeviceEvent| !matches!(event, DeviceEvent::Async(AsyncEvent::PortActive(_)));
        std::iter::from_fn(|| self.rig.a.engine.next_event()).filter(about).collect()
    }

    fn state(&self) -> QpState {
        self.rig.a.engine.qp_state(self.a.qpn).unwrap()
    }

    fn modify(&mut self, to: QpTransition) {
        self.rig.a.engine.modify_qp(self.a.qpn, &to).unwrap();
        self.rig.settle();
    }

    fn run(&mut self) {
        self.rig.run(Duration::from_millis(100));
    }

    /// Block of the `n`th posted entry: the address of a datagram takes a second block.
    fn at(&self, n: u16) -> u16 {
        if self.kind == QpKind::Ud { n * 2 } else { n }
    }

    /// Posts receives at the peer.
    fn peer_receives(&mut self, n: usize) {
        for _ in 0..n {
            let piece = data(1024, self.there.1, self.there.0.address() + 4096);
            self.rig.b.receive(&mut self.b, &[piece]);
        }
    }

    /// Checks that it is in error with exactly these completions and events, and that another transition to
    /// the error state adds none.
    fn has_failed(
        &mut self,
        sends: &[(u16, WcStatus)],
        receives: &[(u16, WcStatus)],
        events: &[DeviceEvent],
    ) {
        let what = format!("{:?}, shared: {}", self.kind, self.srq.is_some());
        self.run();
        let named = |list: &[DeviceEvent]| {
            let mut names: Vec<_> = list.iter().map(|event| format!("{event:?}")).collect();
            names.sort();
            names
        };
        assert_eq!(self.completed(), (sends.to_vec(), receives.to_vec()), "{what}");
        assert_eq!(named(&self.events()), named(events), "{what}");
        assert_eq!(self.state(), QpState::Err, "{what}");
        self.modify(QpTransition::ToError);
        assert_eq!((self.completed(), self.events().len()), ((vec![], vec![]), 0), "{what}: again");
    }

    /// As `has_failed`, plus the event of a last receive from the shared queue.
    fn has_failed_with(
        &mut self,
        sends: &[(u16, WcStatus)],
        receives: &[(u16, WcStatus)],
        events: &[DeviceEvent],
    ) {
        let last = DeviceEvent::Async(AsyncEvent::LastWqeReached(self.a.qpn));
        let last = self.srq.is_some().then_some(last);
        let events: Vec<_> = events.iter().copied().chain(last).collect();
        self.has_failed(sends, receives, &events);
    }

    /// Checks that requests posted in the error state are flushed: sends behind the earlier ones, and its own
    /// receives.
    fn flushes_what_comes(&mut self) {
        let (send, first) = (self.a.posted, self.a.received);
        self.receives(2);
        self.sends(1);
        self.rig.settle();
        let own = [(first, FLUSHED), (first.wrapping_add(1), FLUSHED)];
        let own = if self.srq.is_none() { &own[..] } else { &[] };
        assert_eq!(self.completed(), (vec![(send, FLUSHED)], own.to_vec()), "{:?}", self.kind);
        // Receives have no doorbell. They are found at the next doorbell or transition to the error state.
        let first = self.a.received;
        self.receives(1);
        self.modify(QpTransition::ToError);
        let own = if self.srq.is_none() { vec![(first, FLUSHED)] } else { vec![] };
        assert_eq!(self.completed(), (vec![], own), "{:?}", self.kind);
        assert_eq!(self.events().len(), 0, "the last receive raises one event");
    }
}

/// All kinds, with their own and with shared receives.
fn each(mut check: impl FnMut(QpKind, bool)) {
    for kind in KINDS {
        check(kind, false);
        check(kind, true);
    }
}

/// Receives that a queue pair flushes: all of its own, or the one of a shared queue that is in use.
fn flushed(own: u16, shared: bool, in_use: bool) -> Completed {
    let n = if shared { in_use.into() } else { own };
    (0..n).map(|n| (n, FLUSHED)).collect()
}

#[test]
fn by_a_transition() {
    each(|kind, shared| {
        let mut t = Bench::new(kind, shared);
        t.receives(3);
        t.begin_message();
        t.sends(3);
        t.rig.a.engine.modify_qp(t.a.qpn, &QpTransition::ToError).unwrap();
        let sends = [0, 1, 2].map(|n| (t.at(n), FLUSHED));
        t.has_failed_with(&sends, &flushed(3, shared, kind != QpKind::Ud), &[]);
        t.flushes_what_comes();
    });
}

#[test]
fn by_a_transition_with_sends_in_flight() {
    // The peer has no receive: a reliable send waits, and the others are gone.
    each(|kind, shared| {
        let mut t = Bench::new(kind, shared);
        t.receives(1);
        t.sends(3);
        t.rig.settle();
        let last = t.at(2);
        let sends = match kind {
            QpKind::Rc => [0, 1, 2].map(|n| (n, FLUSHED)).to_vec(),
            _ => vec![(last, SUCCESS)],
        };
        t.rig.a.engine.modify_qp(t.a.qpn, &QpTransition::ToError).unwrap();
        t.has_failed_with(&sends, &flushed(1, shared, false), &[]);
        t.flushes_what_comes();
    });
}

#[test]
fn by_a_send_without_memory_rights() {
    each(|kind, shared| {
        let mut t = Bench::new(kind, shared);
        t.receives(2);
        t.peer_receives(4);
        let key = t.here.1;
        for key in [key, key ^ 1, key, key] {
            t.post(SEND, 0, key, 100);
        }
        let sends = [(t.at(1), WcStatus::LocalProtection), (t.at(2), FLUSHED), (t.at(3), FLUSHED)];
        if kind == QpKind::Rc {
            t.has_failed_with(&sends, &flushed(2, shared, false), &[]);
            return t.flushes_what_comes();
        }
        // An unreliable queue pair only stops its sends.
        t.run();
        assert_eq!((t.completed(), t.state()), ((sends.to_vec(), vec![]), QpState::Sqe), "{kind:?}");
        t.sends(2);
        t.send_back(50);
        t.rig.settle();
        let later = vec![(t.at(4), FLUSHED), (t.at(5), FLUSHED)];
        assert_eq!(t.completed(), (later, vec![(0, SUCCESS)]), "{kind:?}");
        // From there it fails as from any state.
        t.rig.a.engine.modify_qp(t.a.qpn, &QpTransition::ToError).unwrap();
        let rest = if shared { vec![] } else { vec![(1, FLUSHED)] };
        t.has_failed_with(&[], &rest, &[]);
        t.flushes_what_comes();
    });
}

#[test]
fn by_the_other_ends_refusal() {
    for (shared, kind) in [(false, QpKind::Rc), (true, QpKind::Rc), (false, QpKind::Uc), (true, QpKind::Uc)] {
        let mut t = Bench::new(kind, shared);
        t.receives(2);
        t.peer_receives(2);
        let key = t.here.1;
        for flags in [0, 0, SIGNAL] {
            t.post(WRITE, flags, key, 100);
        }
        if kind == QpKind::Uc {
            // The error is not reported.
            t.run();
            assert_eq!((t.completed(), t.state()), ((vec![(2, SUCCESS)], vec![]), QpState::Rts));
            continue;
        }
        let sends = [(0, WcStatus::RemoteAccess), (1, FLUSHED), (2, FLUSHED)];
        t.has_failed_with(&sends, &flushed(2, shared, false), &[]);
        t.flushes_what_comes();
        // The peer has failed as well, without a receive to report it.
        let there: Vec<_> = t.rig.b.rcq.all().iter().map(|w| (w.counter, w.status)).collect();
        assert_eq!(there, [(0, FLUSHED), (1, FLUSHED)]);
        let events = std::iter::from_fn(|| t.rig.b.engine.next_event());
        assert_eq!(events.filter(|event| *event == DeviceEvent::QpAccessError(t.b.qpn)).count(), 1);
    }
}

#[test]
fn by_timeout_and_by_missing_receives() {
    each(|kind, shared| {
        for silent in [false, true] {
            let mut t = Bench::new(kind, shared);
            t.receives(2);
            if silent {
                t.rig.b.engine.modify_qp(t.b.qpn, &QpTransition::ToReset).unwrap();
            }
            t.sends(3);
            if kind != QpKind::Rc {
                t.run();
                let last = t.at(2);
                assert_eq!((t.completed(), t.state()), ((vec![(last, SUCCESS)], vec![]), QpState::Rts));
                continue;
            }
            let why = if silent { WcStatus::RetryExceeded } else { WcStatus::RnrRetryExceeded };
            t.has_failed_with(&[(0, why), (1, FLUSHED), (2, FLUSHED)], &flushed(2, shared, false), &[]);
            t.flushes_what_comes();
        }
    });
}

#[test]
fn by_a_receive_without_memory_rights() {
    each(|kind, shared| {
        let mut t = Bench::new(kind, shared);
        if let Some(srq) = &t.srq {
            // None of its keys is valid any more.
            t.rig.a.engine.set_srq_domain(srq.number, ProtectionDomain(9)).unwrap();
        }
        let (key, wrong) = (t.here.1, t.here.1 ^ 1);
        t.receive(wrong);
        t.receive(key);
        t.send_back(100);
        let mut receives = vec![(0, WcStatus::LocalProtection)];
        if !shared {
            receives.push((1, FLUSHED));
        }
        t.has_failed_with(&[], &receives, &[]);
        t.flushes_what_comes();
    });
}

#[test]
fn by_a_completion_queue_overrun() {
    each(|kind, shared| {
        // The queue of sends: four completions are written and no more; outstanding receives are flushed.
        let mut t = Bench::with_queues(kind, shared, 4, CQ);
        t.receives(2);
        t.peer_receives(6);
        let key = t.here.1;
        (0..6).for_each(|_| t.post(SEND, SIGNAL, key, 10));
        t.rig.settle();
        let events =
            [DeviceEvent::CqOverrun(t.rig.a.scq.number), DeviceEvent::Async(AsyncEvent::QpFatal(t.a.qpn))];
        let sends: Vec<_> = (0..4).map(|n| (t.at(n), SUCCESS)).collect();
        t.has_failed_with(&sends, &flushed(2, shared, false), &events);
        // The queue of receives.
        let mut t = Bench::with_queues(kind, shared, CQ, 4);
        t.receives(8);
        for _ in 0..5 {
            t.send_back(10);
            t.rig.settle();
        }
        let events =
            [DeviceEvent::CqOverrun(t.rig.a.rcq.number), DeviceEvent::Async(AsyncEvent::QpFatal(t.a.qpn))];
        let receives: Vec<_> = (0..4).map(|n| (n, SUCCESS)).collect();
        t.has_failed_with(&[], &receives, &events);
        t.sends(2);
        t.rig.settle();
        let (first, second) = (t.at(0), t.at(1));
        assert_eq!(t.completed(), (vec![(first, FLUSHED), (second, FLUSHED)], vec![]));
    });
}

#[test]
fn by_a_shared_queue_that_is_broken() {
    for kind in KINDS {
        let mut t = Bench::new(kind, true);
        let srq = t.srq.as_mut().unwrap();
        let number = srq.number;
        srq.break_link();
        srq.post();
        t.send_back(10);
        let events = [DeviceEvent::SrqError(number), DeviceEvent::Async(AsyncEvent::QpFatal(t.a.qpn))];
        t.has_failed_with(&[], &[], &events);
        t.sends(1);
        t.rig.settle();
        assert_eq!(t.completed(), (vec![(0, FLUSHED)], vec![]), "{kind:?}");
    }
}

/// RESET discards requests. Only the receive from a shared queue completes, because the host cannot recover
/// it otherwise.
#[test]
fn reset_discards_requests_and_restarts() {
    each(|kind, shared| {
        let mut t = Bench::new(kind, shared);
        t.receives(3);
        t.begin_message();
        t.sends(3);
        t.modify(QpTransition::ToReset);
        let back = if shared { flushed(3, true, kind != QpKind::Ud) } else { vec![] };
        assert_eq!(t.completed(), (vec![], back), "{kind:?}");
        assert_eq!((t.events().len(), t.state()), (0, QpState::Reset));
        // The host discards its state, too.
        t.rig.b.engine.modify_qp(t.b.qpn, &QpTransition::ToReset).unwrap();
        for qp in [&mut t.a, &mut t.b] {
            qp.forge(0);
            (qp.posted, qp.received) = (0, 0);
        }
        t.open();
        t.receives(1);
        t.peer_receives(1);
        t.sends(1);
        t.send_back(70);
        t.run();
        let counter = if shared && kind != QpKind::Ud { 1 } else { 0 };
        assert_eq!(
            t.completed(),
            (vec![(0, SUCCESS)], vec![(counter, SUCCESS)]),
            "{kind:?}, shared: {shared}"
        );
    });
}

#[test]
fn destroying_flushes_outstanding_requests_once() {
    each(|kind, shared| {
        let mut t = Bench::new(kind, shared);
        t.receives(3);
        t.begin_message();
        t.sends(3);
        t.rig.a.engine.destroy_qp(t.a.qpn).unwrap();
        t.rig.settle();
        let sends = [0, 1, 2].map(|n| (t.at(n), FLUSHED)).to_vec();
        assert_eq!(t.completed(), (sends, flushed(3, shared, kind != QpKind::Ud)), "{kind:?}");
        assert_eq!(t.events().len(), 0);
    });
}

/// An error stops all sending, for example the rest of a response.
#[test]
fn a_queue_pair_in_error_is_silent() {
    let how = Rc { mtu: ib_wire::Mtu::B256, timeout: 0, ..Rc::default() };
    let mut r = Reading::new(Rig::new(), how, 1 << 16);
    r.read(0, 1 << 16, 0, SIGNAL);
    r.rig.a.engine.step(r.rig.now);
    r.rig.b.engine.step(r.rig.now);
    let sent = |r: &Reading| r.rig.b.engine.counters().activity(Activity::Sent);
    let before = sent(&r);
    assert!((1..256).contains(&before), "{before} packets of 256");
    r.rig.b.engine.modify_qp(r.b.qpn, &QpTransition::ToError).unwrap();
    r.rig.settle();
    assert_eq!(sent(&r), before);
}
