//! Keys serve only queues of their own protection domain.

use super::read::Reading;
use super::rig::*;
use crate::{Access, ProtectionDomain, QpKind};
use hca::WcStatus;
use ib_wire::Lid;

const READ: u8 = 0x10;
const WRITE: u8 = 0x08;
const SEND: u8 = 0x0a;
const SIGNAL: u8 = 0x08;
const OURS: ProtectionDomain = ProtectionDomain(5);
const OTHER: ProtectionDomain = ProtectionDomain(6);

/// Both ends of a connection in one domain, with all keys.
fn reading() -> Reading {
    let mut r = Reading::new(Rig::new(), Rc::default(), 4096);
    let Reading { rig, a, b, rkey, lkey, .. } = &mut r;
    rig.a.engine.set_qp_domain(a.qpn, OURS).unwrap();
    rig.b.engine.set_qp_domain(b.qpn, OURS).unwrap();
    rig.a.engine.set_key_domain(*lkey, OURS).unwrap();
    rig.b.engine.set_key_domain(*rkey, OURS).unwrap();
    r
}

#[test]
fn memory_of_both_ends_must_be_in_the_domain() {
    type Change = fn(&mut Reading);
    let theirs: Change = |r| r.rig.b.engine.set_key_domain(r.rkey, OTHER).unwrap();
    let ours: Change = |r| r.rig.a.engine.set_key_domain(r.lkey, OTHER).unwrap();
    let pair: Change = |r| r.rig.a.engine.set_qp_domain(r.a.qpn, OTHER).unwrap();
    for opcode in [READ, WRITE] {
        let cases = [
            (theirs, WcStatus::RemoteAccess),
            (ours, WcStatus::LocalProtection),
            (pair, WcStatus::LocalProtection),
        ];
        for (n, (change, status)) in cases.into_iter().enumerate() {
            let mut r = reading();
            let body = r.body(0, 100, 0);
            r.rig.a.post(&mut r.a, opcode, SIGNAL, 0, &body);
            r.rig.settle();
            assert_eq!(r.outcomes(), [(opcode, WcStatus::Success)]);
            change(&mut r);
            r.rig.a.post(&mut r.a, opcode, SIGNAL, 0, &body);
            r.rig.settle();
            assert_eq!(r.outcomes(), [(opcode, status)], "{opcode:#x}, case {n}");
        }
    }
    let mut r = reading();
    assert!(r.rig.a.engine.set_key_domain(r.lkey ^ 1, OURS).is_err());
    assert!(r.rig.a.engine.set_srq_domain(99, OURS).is_err());
}

#[test]
fn receives_use_the_domain_of_their_queue() {
    for (key_domain, status) in [(OURS, WcStatus::Success), (OTHER, WcStatus::LocalProtection)] {
        // A queue of its own.
        let mut r = reading();
        let (sink, key) = r.rig.b.memory(64);
        r.rig.b.engine.set_key_domain(key, key_domain).unwrap();
        r.rig.b.receive(&mut r.b, &[data(64, key, sink.address())]);
        r.rig.a.post(&mut r.a, SEND, SIGNAL, 0, &data(10, r.lkey, r.here.address()));
        r.rig.settle();
        assert_eq!(r.rig.b.rcq.all().iter().map(|wc| wc.status).collect::<Vec<_>>(), [status]);
        // A shared queue, whose domain differs from the queue pair's; datagrams.
        let mut rig = Rig::new();
        let mut srq = SharedQueue::new(&mut rig.b.engine, 4, 2048, 2048);
        rig.b.engine.set_srq_domain(srq.number, OURS).unwrap();
        rig.b.engine.set_key_domain(srq.key, key_domain).unwrap();
        srq.post();
        let mut tx = rig.a.ud(3, 0);
        let rx = rig.b.qp(QpKind::Ud, 64, Some(srq.number), 0);
        rig.b.open_ud(&rx, 3);
        rig.b.engine.set_qp_domain(rx.qpn, OTHER).unwrap();
        let memory = Memory::new(64);
        let key = rig.a.engine.register(memory.address(), memory.host(), Access::LOCAL).unwrap();
        let to = To { lid: Lid(2), qpn: rx.qpn, qkey: 3, grh: None };
        rig.a.send_ud(&mut tx, &to, &[data(10, key, memory.address())]);
        rig.settle();
        assert_eq!(rig.b.rcq.all().iter().map(|wc| wc.status).collect::<Vec<_>>(), [status]);
        assert_eq!(rig.a.scq.all().iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
        // The data sent.
        rig.a.engine.set_key_domain(key, OTHER).unwrap();
        rig.a.send_ud(&mut tx, &to, &[data(10, key, memory.address())]);
        rig.settle();
        assert_eq!(rig.a.scq.all().pop().unwrap().status, WcStatus::LocalProtection);
    }
}
