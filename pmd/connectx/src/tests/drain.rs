//! Draining of sends (SQD): started sends complete, no more are started, and an event reports it; then all
//! continue.

use std::time::Duration;

use ib_wire::{Lid, Mtu};

use super::read::Reading;
use super::rig::*;
use crate::{DeviceEvent, QpKind};
use hca::{HcaError, QpState, QpTransition, WcStatus};

const SIGNAL: u8 = 0x08;

fn drained(host: &mut Host) -> Vec<DeviceEvent> {
    let events = std::iter::from_fn(|| host.engine.next_event());
    events.filter(|event| matches!(event, DeviceEvent::SqDrained(_))).collect()
}

#[test]
fn started_sends_complete_and_the_others_wait() {
    for notify in [true, false] {
        let mut r = Reading::new(Rig::new(), Rc { mtu: Mtu::B256, ..Rc::default() }, 1 << 16);
        // More than a step sends. Both are started, as four may be in flight.
        r.read(0, 20_000, 0, SIGNAL);
        r.read(20_000, 20_000, 20_000, SIGNAL);
        r.rig.a.engine.step(r.rig.now);
        let drain = QpTransition::DrainSend { notify };
        r.rig.a.engine.modify_qp(r.a.qpn, &drain).unwrap();
        assert_eq!(r.states().0, QpState::SqDraining);
        assert!(drained(&mut r.rig.a).is_empty());
        r.read(40_000, 100, 40_000, SIGNAL);
        r.rig.settle();
        assert_eq!(r.states().0, QpState::SqDrained);
        let events = [DeviceEvent::SqDrained(r.a.qpn)];
        assert_eq!(drained(&mut r.rig.a), if notify { &events[..] } else { &[] });
        assert_eq!(r.outcomes(), [(0x10, WcStatus::Success); 2], "the third waits");
        // It still receives.
        let (m, key) = r.rig.a.memory(64);
        r.rig.a.receive(&mut r.a, &[data(64, key, m.address())]);
        let (n, there) = r.rig.b.memory(64);
        r.rig.b.send(&mut r.b, &[data(9, there, n.address())]);
        r.rig.settle();
        assert_eq!((r.rig.a.rcq.all().len(), r.rig.b.scq.all().len()), (1, 1));
        // A state that cannot be drained.
        let again = r.rig.a.engine.modify_qp(r.a.qpn, &drain);
        assert!(matches!(again, Err(HcaError::BadTransition { from: "SQD", .. })), "{again:?}");
        r.rig.a.engine.modify_qp(r.a.qpn, &QpTransition::ResumeSend).unwrap();
        r.rig.settle();
        assert_eq!((r.outcomes(), r.states().0), (vec![(0x10, WcStatus::Success)], QpState::Rts));
        assert!(drained(&mut r.rig.a).is_empty(), "one event");
    }
}

#[test]
fn resuming_before_it_is_drained_raises_no_event() {
    let mut r = Reading::new(Rig::new(), Rc { mtu: Mtu::B256, ..Rc::default() }, 1 << 16);
    r.read(0, 20_000, 0, SIGNAL);
    r.rig.a.engine.step(r.rig.now);
    r.rig.a.engine.modify_qp(r.a.qpn, &QpTransition::DrainSend { notify: true }).unwrap();
    r.read(0, 20_000, 20_000, SIGNAL);
    r.rig.a.engine.modify_qp(r.a.qpn, &QpTransition::ResumeSend).unwrap();
    r.rig.settle();
    assert_eq!(r.outcomes(), [(0x10, WcStatus::Success); 2]);
    assert!(drained(&mut r.rig.a).is_empty());
    // An idle queue pair is drained at once.
    r.rig.a.engine.modify_qp(r.a.qpn, &QpTransition::DrainSend { notify: true }).unwrap();
    r.rig.settle();
    assert_eq!((drained(&mut r.rig.a).len(), r.states().0), (1, QpState::SqDrained));
}

#[test]
fn a_send_that_fails_while_draining_fails_as_usual() {
    // The peer does not answer: the connection ends and is not drained.
    let mut r = Reading::new(Rig::new(), Rc { retry: 1, timeout: 8, ..Rc::default() }, 4096);
    r.rig.b.engine.modify_qp(r.b.qpn, &QpTransition::ToReset).unwrap();
    r.read(0, 100, 0, 0);
    r.rig.a.engine.step(r.rig.now);
    r.rig.a.engine.modify_qp(r.a.qpn, &QpTransition::DrainSend { notify: true }).unwrap();
    r.read(0, 100, 0, 0);
    r.rig.run(Duration::from_millis(100));
    assert_eq!(r.outcomes(), [(0x10, WcStatus::RetryExceeded), (0x10, WcStatus::Flushed)]);
    assert_eq!((r.states().0, drained(&mut r.rig.a).len()), (QpState::Err, 0));
}

#[test]
fn datagrams_and_unreliable_messages_drain_too() {
    let mut rig = Rig::new();
    let (m, key) = rig.a.memory(20_000);
    for kind in [QpKind::Ud, QpKind::Uc] {
        let (mut a, mut b) = (rig.a.qp(kind, 64, None, 1), rig.b.qp(kind, 64, None, 2));
        match kind {
            QpKind::Ud => (rig.a.open_ud(&a, 3), rig.b.open_ud(&b, 3)),
            _ => (
                rig.a.connect_uc(&a, (Lid(2), b.qpn), Rc { mtu: Mtu::B256, ..Rc::default() }),
                rig.b.connect_uc(&b, (Lid(1), a.qpn), Rc { mtu: Mtu::B256, ..Rc::default() }),
            ),
        };
        let (into, there) = rig.b.memory(40_000);
        for _ in 0..2 {
            rig.b.receive(&mut b, &[data(20_000, there, into.address())]);
        }
        let to = To { lid: Lid(2), qpn: b.qpn, qkey: 3, grh: None };
        // A message with more packets than a step sends completes; messages not started wait.
        let len = if kind == QpKind::Ud { 100 } else { 10_000 };
        let piece = data(len, key, m.address());
        let post = |rig: &mut Rig, a: &mut Pair| match kind {
            QpKind::Ud => rig.a.send_ud(a, &to, &[piece]),
            _ => rig.a.send(a, &[piece]),
        };
        post(&mut rig, &mut a);
        rig.a.engine.step(rig.now);
        rig.a.engine.modify_qp(a.qpn, &QpTransition::DrainSend { notify: true }).unwrap();
        post(&mut rig, &mut a);
        rig.settle();
        assert_eq!(drained(&mut rig.a), [DeviceEvent::SqDrained(a.qpn)], "{kind:?}");
        assert_eq!((rig.a.scq.all().len(), rig.b.rcq.all().len()), (1, 1), "{kind:?}");
        rig.a.engine.modify_qp(a.qpn, &QpTransition::ResumeSend).unwrap();
        rig.settle();
        assert_eq!((rig.a.scq.all().len(), rig.b.rcq.all().len()), (1, 1), "{kind:?}");
    }
}
