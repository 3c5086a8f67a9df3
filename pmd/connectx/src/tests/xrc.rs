//! Extended reliable connections: initiators, targets, and the shared receive queues that requests name.

use std::time::Duration;

use ib_wire::packet::{Bth, Extended, Headers, Lrh, Opcode, VirtualLane, XrcEth};
use ib_wire::{Lid, Mtu, PKey, Psn, Qpn, ServiceLevel, XrcSrqn};

use super::rig::*;
use crate::cable::{CableEnd, Faults};
use crate::{
    Access, Activity, DeviceEvent, DropReason, ProtectionDomain, QpKind, RemoteOperations, XrcDomain,
    XrcQueue,
};
use hca::{AsyncEvent, QpState, QpTransition, WcStatus};

const WRITE_IMM: u8 = 0x09;
const SEND_IMM: u8 = 0x0b;
const SWAP: u8 = 0x11;
const ADD: u8 = 0x12;
const RESP_WRITE_IMM: u8 = 1;
const OURS: XrcDomain = XrcDomain(5);
const OTHER: XrcDomain = XrcDomain(6);
const EVERYTHING: RemoteOperations =
    RemoteOperations { write: true, read: true, atomic: true, reads_in: 4, reads_out: 4 };
const FULL: Access = Access { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };

/// An initiator at `a`, a target at `b`.
struct Link {
    rig: Rig,
    ini: Pair,
    tgt: Qpn,
    from: (Memory, u32),
}

impl Link {
    fn new(rig: Rig, how: Rc) -> Self {
        let mut rig = rig;
        let (ini, tgt) = connected(&mut rig, how);
        let from = rig.a.memory(1 << 16);
        from.0.put(0, &pattern(1 << 16, 7));
        Self { rig, ini, tgt, from }
    }

    /// A queue at `b`; its user index is 40, 41, …
    fn queue(&mut self, slots: usize, size: usize, domain: XrcDomain, index: u32) -> SharedQueue {
        let how = XrcQueue { domain, cq: self.rig.b.rcq.number, user_index: Some(index) };
        SharedQueue::xrc(&mut self.rig.b.engine, slots, size, how)
    }

    /// Sends `len` bytes to the queue with this number.
    fn send(&mut self, srqn: u32, len: usize) {
        let body = [segment(srqn), data(len as u32, self.from.1, self.from.0.address())].concat();
        self.rig.a.post(&mut self.ini, SEND, SIGNAL, 0, &body);
    }

    fn operate(&mut self, opcode: u8, srqn: u32, there: (u64, u32), operands: &[u64], here: [u8; 16]) {
        let mut body = segment(srqn).to_vec();
        body.extend_from_slice(&there.0.to_be_bytes());
        body.extend_from_slice(&there.1.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        operands.iter().for_each(|operand| body.extend_from_slice(&operand.to_be_bytes()));
        body.extend_from_slice(&here);
        self.rig.a.post(&mut self.ini, opcode, SIGNAL, 0x1234_5678, &body);
    }

    fn outcomes(&mut self) -> Vec<WcStatus> {
        self.rig.a.scq.all().iter().map(|wc| wc.status).collect()
    }

    fn states(&self) -> (QpState, QpState) {
        let Rig { a, b, .. } = &self.rig;
        (a.engine.qp_state(self.ini.qpn).unwrap(), b.engine.qp_state(self.tgt).unwrap())
    }

    fn events(&mut self) -> Vec<DeviceEvent> {
        let about = |event: &DeviceEvent| !matches!(event, DeviceEvent::Async(AsyncEvent::PortActive(_)));
        std::iter::from_fn(|| self.rig.b.engine.next_event()).filter(about).collect()
    }
}

fn connected(rig: &mut Rig, how: Rc) -> (Pair, Qpn) {
    let ini = rig.a.qp(QpKind::XrcInitiator, 256, None, 5);
    let tgt = rig.b.engine.create_xrc_target(PORT, OURS).unwrap();
    rig.a.connect(&ini, (Lid(2), tgt), Rc { sq_psn: 0xff_fff0, ..how });
    rig.b.connect_number(tgt, local(Lid(1)), ini.qpn, Rc { rq_psn: 0xff_fff0, ..how });
    rig.a.engine.set_remote_operations(ini.qpn, EVERYTHING).unwrap();
    rig.b.engine.set_remote_operations(tgt, EVERYTHING).unwrap();
    (ini, tgt)
}

fn link() -> Link {
    Link::new(Rig::new(), Rc { mtu: Mtu::B1024, ..Rc::default() })
}

/// The XRC segment behind the control segment.
fn segment(srqn: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&srqn.to_be_bytes());
    bytes
}

#[test]
fn messages_of_all_sizes_to_several_queues_over_one_connection() {
    let mut l = link();
    let mut queues = [40, 41, 42].map(|index| l.queue(8, 5000, OURS, index));
    for (n, len) in [0, 1, 1023, 1024, 1025, 2048, 4097, 5000, 3].into_iter().enumerate() {
        let srq = &mut queues[n % 3];
        let number = srq.number;
        srq.post();
        l.send(number, len);
        l.rig.settle();
        let wc = l.rig.b.rcq.poll().unwrap();
        let said = (wc.opcode, wc.status, wc.qpn, wc.user_index, wc.bytes as usize, wc.source);
        let index = 40 + n as u32 % 3;
        assert_eq!(said, (RESP_SEND, WcStatus::Success, l.tgt.get(), index, len, l.ini.qpn.get()));
        assert!(queues[n % 3].free(wc.counter, len) == pattern(1 << 16, 7)[..len], "{len} bytes");
        let sent = l.rig.a.scq.all();
        assert_eq!(
            sent.iter().map(|wc| (wc.status, wc.user_index)).collect::<Vec<_>>(),
            [(WcStatus::Success, 5)]
        );
    }
    assert_eq!(l.states(), (QpState::Rts, QpState::Rts));
}

#[test]
fn several_initiators_and_targets_share_a_queue_whose_completions_tell_them_apart() {
    let mut l = link();
    let mut srq = l.queue(16, 256, OURS, 77);
    let mut more: Vec<_> = (0..3).map(|_| connected(&mut l.rig, Rc::default())).collect();
    (0..8).for_each(|_| srq.post());
    for _ in 0..2 {
        for (ini, _) in &mut more {
            let body = [segment(srq.number), data(100, l.from.1, l.from.0.address())].concat();
            l.rig.a.post(ini, SEND_IMM, SIGNAL, 9, &body);
        }
        l.send(srq.number, 100);
    }
    l.rig.settle();
    let mut came: Vec<_> =
        l.rig.b.rcq.all().iter().map(|wc| (wc.qpn, wc.source, wc.user_index, wc.status)).collect();
    came.sort_unstable_by_key(|wc| (wc.0, wc.1));
    let mut expected: Vec<_> = more.iter().map(|(ini, tgt)| (tgt.get(), ini.qpn.get())).collect();
    expected.push((l.tgt.get(), l.ini.qpn.get()));
    expected.sort_unstable();
    let twice = expected.iter().flat_map(|&(tgt, ini)| [(tgt, ini, 77, WcStatus::Success); 2]);
    assert_eq!(came, twice.collect::<Vec<_>>());
    // Without an index, as in version 0 of completions, its number is used.
    let how = XrcQueue { domain: OURS, cq: l.rig.b.rcq.number, user_index: None };
    let mut plain = SharedQueue::xrc(&mut l.rig.b.engine, 4, 256, how);
    plain.post();
    l.send(plain.number, 3);
    l.rig.settle();
    assert_eq!(l.rig.b.rcq.poll().unwrap().user_index, plain.number);
}

#[test]
fn nothing_is_missing_on_a_faulty_cable() {
    let faults = Faults { loss: 0.05, duplicate: 0.1, reorder: 0.1, corrupt: 0.02, ..Faults::default() };
    let (mut left, mut right) = CableEnd::pair().unwrap();
    left.inject(Faults { seed: 3, ..faults });
    right.inject(Faults { seed: 4, ..faults });
    let mut l = Link::new(Rig::over(left, right), Rc { mtu: Mtu::B256, timeout: 4, ..Rc::default() });
    let mut srq = l.queue(64, 3000, OURS, 1);
    (0..50).for_each(|_| srq.post());
    (0..50).for_each(|n| l.send(srq.number, n * 60));
    l.rig.run(Duration::from_secs(30));
    let came: Vec<_> = l.rig.b.rcq.all().iter().map(|wc| (wc.bytes, wc.status)).collect();
    assert_eq!(came, (0..50).map(|n| (n * 60, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(l.outcomes(), [WcStatus::Success; 50]);
    assert!(l.rig.a.engine.counters().activity(Activity::Retransmitted) > 0);
}

#[test]
fn a_queue_that_is_not_there_or_not_in_the_domain_is_refused_and_ends_the_connection() {
    for opcode in [SEND, WRITE, READ, ADD] {
        for case in 0..5 {
            let mut l = link();
            let mut ours = l.queue(4, 256, OURS, 1);
            let mut other = l.queue(4, 256, OTHER, 2);
            let mut plain = SharedQueue::new(&mut l.rig.b.engine, 4, 256, 256);
            [&mut ours, &mut other, &mut plain].into_iter().for_each(SharedQueue::post);
            // A queue of another domain, one that is no XRC queue, and unused numbers.
            let number = [other.number, plain.number, 0, 99, 0xff_ffff][case];
            let there = Memory::new(64);
            let rkey = l.rig.b.engine.register(there.address(), there.host(), FULL).unwrap();
            let here = data(8, l.from.1, l.from.0.address());
            match opcode {
                SEND => l.send(number, 8),
                ADD => l.operate(opcode, number, (there.address(), rkey), &[1, 0], here),
                _ => l.operate(opcode, number, (there.address(), rkey), &[], here),
            }
            l.rig.settle();
            assert_eq!(l.outcomes(), [WcStatus::RemoteInvalidRequest], "{opcode:#x}, {number:#x}");
            assert_eq!(l.states(), (QpState::Err, QpState::Err));
            assert_eq!((l.rig.b.rcq.all(), there.get(0, 64)), (vec![], vec![0; 64]));
            assert!(l.events().contains(&DeviceEvent::QpRequestError(l.tgt)));
            let posted = |srq: &SharedQueue| l.rig.b.engine.query_srq(srq.number).unwrap().posted;
            assert_eq!([&ours, &other, &plain].map(posted), [1; 3]);
        }
    }
}

#[test]
fn a_number_that_is_given_again_is_the_new_queue() {
    let mut l = link();
    let mut first = l.queue(4, 256, OURS, 1);
    first.post();
    l.send(first.number, 10);
    l.rig.settle();
    assert_eq!(l.rig.b.rcq.poll().unwrap().user_index, 1);
    l.rig.b.engine.destroy_srq(first.number).unwrap();
    let mut second = l.queue(4, 256, OURS, 2);
    assert_eq!(second.number, first.number);
    second.post();
    l.send(second.number, 10);
    l.rig.settle();
    assert_eq!(l.rig.b.rcq.poll().unwrap().user_index, 2);
    // A queue in another domain is rejected like a missing one.
    l.rig.b.engine.destroy_srq(second.number).unwrap();
    let third = l.queue(4, 256, OTHER, 3);
    assert_eq!(third.number, first.number);
    l.send(third.number, 10);
    l.rig.settle();
    assert_eq!(l.outcomes()[2..], [WcStatus::RemoteInvalidRequest]);
}

#[test]
fn writes_reads_and_atomics_access_the_domain_of_the_queue() {
    const PD: ProtectionDomain = ProtectionDomain(3);
    for opcode in [WRITE, READ, ADD, SWAP] {
        for (key_domain, status) in [(PD, WcStatus::Success), (ProtectionDomain(4), WcStatus::RemoteAccess)] {
            let mut l = link();
            let srq = l.queue(4, 256, OURS, 1);
            l.rig.b.engine.set_srq_domain(srq.number, PD).unwrap();
            // The domain of the target does not matter: many may share it.
            l.rig.b.engine.set_qp_domain(l.tgt, ProtectionDomain(4)).unwrap();
            let there = Memory::new(4096);
            there.put(0, &7u64.to_ne_bytes());
            let rkey = l.rig.b.engine.register(there.address(), there.host(), FULL).unwrap();
            l.rig.b.engine.set_key_domain(rkey, key_domain).unwrap();
            let before = there.get(0, 4096);
            // Reads and writes of several packets.
            let long = data(3000, l.from.1, l.from.0.address());
            let short = data(8, l.from.1, l.from.0.address());
            let place = (there.address(), rkey);
            match opcode {
                ADD => l.operate(opcode, srq.number, place, &[5, 0], short),
                SWAP => l.operate(opcode, srq.number, place, &[12, 7], short),
                _ => l.operate(opcode, srq.number, place, &[], long),
            }
            l.rig.settle();
            assert_eq!(l.outcomes(), [status], "{opcode:#x}");
            let after = there.get(0, 4096);
            match (status, opcode) {
                (WcStatus::Success, ADD | SWAP) => {
                    assert_eq!(after[..8], 12u64.to_ne_bytes());
                    assert_eq!(l.from.0.get(0, 8), 7u64.to_ne_bytes());
                }
                (WcStatus::Success, WRITE) => assert!(after[..3000] == pattern(1 << 16, 7)[..3000]),
                (WcStatus::Success, _) => assert!(l.from.0.get(0, 3000) == after[..3000]),
                _ => assert!(after == before && l.from.0.get(0, 3000) == pattern(1 << 16, 7)[..3000]),
            }
            assert!(l.rig.b.rcq.all().is_empty(), "none of them takes a receive");
        }
    }
}

#[test]
fn a_write_with_immediate_takes_a_receive() {
    let mut l = link();
    let mut srq = l.queue(4, 256, OURS, 30);
    let there = Memory::new(4096);
    let rkey = l.rig.b.engine.register(there.address(), there.host(), FULL).unwrap();
    srq.post();
    for len in [0, 100, 3000] {
        let here = data(len, l.from.1, l.from.0.address());
        l.operate(WRITE_IMM, srq.number, (there.address(), rkey), &[], here);
        l.rig.settle();
        if len > 0 {
            // The queue was empty: the last packet waits for a receive.
            assert!(l.rig.b.rcq.poll().is_none());
            srq.post();
            l.rig.run(Duration::from_millis(100));
        }
        let wc = l.rig.b.rcq.poll().unwrap();
        let said = (wc.opcode, wc.user_index, wc.qpn, wc.imm, wc.bytes);
        assert_eq!(said, (RESP_WRITE_IMM, 30, l.tgt.get(), 0x1234_5678, len));
        srq.free(wc.counter, 0);
        assert_eq!(l.outcomes(), [WcStatus::Success]);
        assert!(there.get(0, len as usize) == pattern(1 << 16, 7)[..len as usize]);
    }
}

#[test]
fn an_empty_queue_makes_senders_wait_and_others_are_not_concerned() {
    let mut l = link();
    let mut empty = l.queue(4, 256, OURS, 1);
    let mut full = l.queue(4, 256, OURS, 2);
    full.post();
    l.send(empty.number, 10);
    let (mut other, tgt) = connected(&mut l.rig, Rc::default());
    let body = [segment(full.number), data(10, l.from.1, l.from.0.address())].concat();
    l.rig.a.post(&mut other, SEND, SIGNAL, 0, &body);
    l.rig.settle();
    assert!(l.rig.b.engine.counters().activity(Activity::RnrNaks) > 0);
    let came: Vec<_> = l.rig.b.rcq.all().iter().map(|wc| (wc.user_index, wc.qpn)).collect();
    assert_eq!(came, [(2, tgt.get())]);
    empty.post();
    l.rig.run(Duration::from_millis(100));
    assert_eq!(l.rig.b.rcq.all().iter().map(|wc| wc.user_index).collect::<Vec<_>>(), [1]);
    assert_eq!(l.outcomes(), [WcStatus::Success; 2]);
    // A requester without retries fails.
    let mut l = Link::new(Rig::new(), Rc { rnr_retry: 0, ..Rc::default() });
    let srq = l.queue(4, 256, OURS, 1);
    l.send(srq.number, 10);
    l.rig.settle();
    assert_eq!(l.outcomes(), [WcStatus::RnrRetryExceeded]);
    assert_eq!(l.states(), (QpState::Err, QpState::Rts));
}

#[test]
fn the_limit_event_of_a_queue_is_raised_once() {
    let mut l = link();
    let mut srq = l.queue(8, 256, OURS, 1);
    (0..4).for_each(|_| srq.post());
    l.rig.b.engine.arm_srq(srq.number, 3).unwrap();
    let limits =
        |l: &mut Link| l.events().iter().filter(|e| **e == DeviceEvent::SrqLimit(srq.number)).count();
    for expected in [0, 1, 0] {
        l.send(srq.number, 10);
        l.rig.settle();
        assert_eq!(limits(&mut l), expected);
    }
    l.rig.b.engine.arm_srq(srq.number, 1).unwrap();
    l.send(srq.number, 10);
    l.rig.settle();
    assert_eq!(limits(&mut l), 1);
}

/// A packet as the initiator sends it, built outside.
fn packet(l: &Link, opcode: Opcode, psn: u32, extended: Extended, payload: &[u8]) -> Vec<u8> {
    let bth = Bth {
        opcode,
        solicited: false,
        migrated: true,
        pkey: PKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: l.tgt,
        ack_request: true,
        psn: Psn::new(psn),
    };
    let lrh = Lrh { vl: VirtualLane::new(0), sl: ServiceLevel::new(0), dlid: Lid(2), slid: Lid(1) };
    let mut out = vec![0; 4200];
    let len = Headers { lrh, grh: None, bth, extended }.write_packet(payload, &mut out).unwrap();
    out.truncate(len);
    out
}

fn put(far: &mut CableEnd, packet: &[u8]) {
    far.send_with(packet.len(), |out| out.copy_from_slice(packet)).unwrap();
}

fn named(number: u32) -> Extended {
    Extended::Xrc(XrcEth { srqn: XrcSrqn::new(number) })
}

/// `b` alone, and the other end of its cable.
fn alone() -> (Link, CableEnd) {
    let (far, near) = CableEnd::pair().unwrap();
    let (other, _) = CableEnd::pair().unwrap();
    (Link::new(Rig::over(other, near), Rc { mtu: Mtu::B256, ..Rc::default() }), far)
}

const FIRST: u32 = 0xff_fff0;

#[test]
fn a_queue_that_is_destroyed_within_a_message_takes_its_receive_with_it() {
    for again in [false, true] {
        let (mut l, mut far) = alone();
        let mut srq = l.queue(4, 1024, OURS, 1);
        srq.post();
        let first = packet(&l, Opcode::XrcSendFirst, FIRST, named(srq.number), &[1; 256]);
        put(&mut far, &first);
        l.rig.settle();
        assert_eq!(l.rig.b.engine.query_srq(srq.number).unwrap().posted, 0);
        l.rig.b.engine.destroy_srq(srq.number).unwrap();
        let mut next = again.then(|| l.queue(4, 1024, OURS, 2));
        next.iter_mut().for_each(SharedQueue::post);
        let last =
            packet(&l, Opcode::XrcSendLast, FIRST.wrapping_add(1) & 0xff_ffff, named(srq.number), &[2; 9]);
        put(&mut far, &last);
        l.rig.settle();
        assert_eq!(l.states().1, QpState::Err);
        assert!(l.rig.b.rcq.all().is_empty(), "the destroyed receive does not complete");
        if let Some(next) = next {
            assert_eq!(l.rig.b.engine.query_srq(next.number).unwrap().posted, 1);
        }
    }
}

#[test]
fn a_message_that_changes_its_queue_is_refused() {
    let (mut l, mut far) = alone();
    let (mut one, mut two) = (l.queue(4, 1024, OURS, 1), l.queue(4, 1024, OURS, 2));
    one.post();
    two.post();
    let first = packet(&l, Opcode::XrcSendFirst, FIRST, named(one.number), &[1; 256]);
    let last = packet(&l, Opcode::XrcSendLast, FIRST + 1, named(two.number), &[2; 9]);
    for packet in [first, last] {
        put(&mut far, &packet);
    }
    l.rig.settle();
    // The receive completes on the queue that it was taken from.
    let came: Vec<_> = l.rig.b.rcq.all().iter().map(|wc| (wc.opcode, wc.status, wc.user_index)).collect();
    assert_eq!(came, [(RESP_ERR, WcStatus::Flushed, 1)]);
    assert_eq!(l.rig.b.engine.query_srq(two.number).unwrap().posted, 1);
    assert_eq!(l.states().1, QpState::Err);
}

#[test]
fn each_end_takes_its_half_of_the_packets_and_only_of_this_transport() {
    let (mut l, mut far) = alone();
    let mut srq = l.queue(4, 1024, OURS, 1);
    srq.post();
    // Without the header, of another transport, or a response to a target that never requests anything.
    let aeth = ib_wire::packet::Aeth {
        syndrome: ib_wire::packet::Syndrome::Ack(ib_wire::packet::Credit::INVALID),
        msn: Psn::new(0),
    };
    let cases = [
        (Opcode::RcSendOnly, Extended::Bare, DropReason::Transport),
        (Opcode::UcSendOnly, Extended::Bare, DropReason::Transport),
        (Opcode::XrcAcknowledge, Extended::Aeth(aeth), DropReason::Unsupported),
        (Opcode::XrcReadResponseMiddle, Extended::Bare, DropReason::Unsupported),
    ];
    for (opcode, extended, reason) in cases {
        let before = l.rig.b.drops(reason);
        let bytes = packet(&l, opcode, FIRST, extended, &[]);
        put(&mut far, &bytes);
        l.rig.settle();
        assert_eq!(l.rig.b.drops(reason), before + 1, "{opcode:?}");
    }
    assert_eq!((l.states().1, l.rig.b.rcq.all()), (QpState::Rts, vec![]));
    let bytes = packet(&l, Opcode::XrcSendOnly, FIRST, named(srq.number), &[3; 5]);
    put(&mut far, &bytes);
    l.rig.settle();
    assert_eq!(l.rig.b.rcq.all().len(), 1);
}

#[test]
fn ends_in_error_flush_their_requests_and_the_queue_continues() {
    let mut l = link();
    let mut srq = l.queue(8, 256, OURS, 1);
    srq.post();
    // The target fails: its initiator retries in vain.
    l.rig.b.engine.modify_qp(l.tgt, &QpTransition::ToError).unwrap();
    assert!(l.events().contains(&DeviceEvent::Async(AsyncEvent::LastWqeReached(l.tgt))));
    l.send(srq.number, 10);
    l.rig.run(Duration::from_secs(20));
    assert_eq!(l.outcomes(), [WcStatus::RetryExceeded]);
    assert_eq!(l.rig.b.drops(DropReason::QueuePairState), 8);
    l.send(srq.number, 10);
    l.rig.settle();
    assert_eq!(l.outcomes(), [WcStatus::Flushed]);
    // Others continue, on the same queue.
    let (mut ini, tgt) = connected(&mut l.rig, Rc::default());
    let body = [segment(srq.number), data(10, l.from.1, l.from.0.address())].concat();
    l.rig.a.post(&mut ini, SEND, SIGNAL, 0, &body);
    l.rig.settle();
    assert_eq!(
        l.rig.b.rcq.all().iter().map(|wc| (wc.qpn, wc.status)).collect::<Vec<_>>(),
        [(tgt.get(), WcStatus::Success)]
    );
    // An initiator in error stops sending; its target does not notice.
    l.rig.a.engine.modify_qp(ini.qpn, &QpTransition::ToError).unwrap();
    l.rig.a.post(&mut ini, SEND, SIGNAL, 0, &body);
    l.rig.settle();
    assert_eq!(l.outcomes(), [WcStatus::Success, WcStatus::Flushed]);
    assert_eq!(l.rig.b.engine.qp_state(tgt).unwrap(), QpState::Rts);
    // From RESET on both serve again.
    l.rig.a.engine.modify_qp(l.ini.qpn, &QpTransition::ToReset).unwrap();
    l.rig.b.engine.modify_qp(l.tgt, &QpTransition::ToReset).unwrap();
    l.ini.posted = 0;
    l.rig.a.connect(&l.ini, (Lid(2), l.tgt), Rc::default());
    l.rig.b.connect_number(l.tgt, local(Lid(1)), l.ini.qpn, Rc::default());
    srq.post();
    l.send(srq.number, 20);
    l.rig.settle();
    assert_eq!(l.outcomes(), [WcStatus::Success]);
}

#[test]
fn objects_in_use_are_kept() {
    let mut l = link();
    let engine = &mut l.rig.b.engine;
    assert!(engine.is_xrc_domain_used(OURS) && !engine.is_xrc_domain_used(OTHER));
    let cq = Queue::cq(engine, 16);
    let how = XrcQueue { domain: OTHER, cq: cq.number, user_index: None };
    let srq = SharedQueue::xrc(engine, 4, 64, how);
    assert!(engine.is_xrc_domain_used(OTHER) && engine.destroy_cq(cq.number).is_err());
    // It serves targets alone.
    let refused = |host: &mut Host, kind, srq| {
        let (ring, dbrec) = (Memory::new(1024), Memory::new(8));
        let attributes = crate::engine::QpAttributes {
            kind,
            port: PORT,
            send_ring: ring.part(0, 1024).into(),
            receive_ring: None,
            srq,
            dbrec: dbrec.part(0, 8),
            send_cq: host.scq.number,
            recv_cq: host.rcq.number,
            user_index: 0,
        };
        host.engine.create_qp(&attributes).is_err()
    };
    assert!(refused(&mut l.rig.b, QpKind::Rc, Some(srq.number)));
    assert!(refused(&mut l.rig.b, QpKind::XrcTarget, None));
    let engine = &mut l.rig.b.engine;
    assert!(engine.create_xrc_target(hca::PortNumber(7), OURS).is_err());
    engine.destroy_srq(srq.number).unwrap();
    engine.destroy_cq(cq.number).unwrap();
    engine.destroy_qp(l.tgt).unwrap();
    assert!(!engine.is_xrc_domain_used(OTHER) && !engine.is_xrc_domain_used(OURS));
    let (ring, dbrec) = (Memory::new(1024), Memory::new(8));
    let gone = XrcQueue { domain: OURS, cq: cq.number, user_index: None };
    assert!(engine.create_xrc_srq(ring.part(0, 1024), 64, dbrec.part(0, 8), gone).is_err());
}
