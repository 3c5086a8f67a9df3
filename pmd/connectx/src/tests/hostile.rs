//! Hostile rings and packets. The device may fail their queue pairs. It must not crash, touch other memory,
//! or stop serving others.

use std::time::Duration;

use ib_wire::packet::{Extended, Headers, Opcode, Packet, Reth};
use ib_wire::{Lid, Mtu, Psn, Qpn, Rkey};

use super::rig::*;
use crate::cable::{CableEnd, Crcs};
use crate::{Access, DeviceEvent, DropReason, QpKind, RemoteOperations};
use hca::{AsyncEvent, QpState, QpTransition, WcStatus};

const EVERYTHING: RemoteOperations =
    RemoteOperations { write: true, read: true, atomic: true, reads_in: 4, reads_out: 4 };

/// Splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> usize {
        (self.roll() % n) as usize
    }
}

/// Checks that a message still gets through between two correct queue pairs.
fn still_serves(rig: &mut Rig) {
    let mut tx = rig.a.ud(0x11, 0);
    let mut rx = rig.b.ud(0x11, 0x77);
    let (m, key) = rig.a.memory(64);
    let (r, rkey) = rig.b.memory(256);
    rig.b.receive(&mut rx, &[data(256, rkey, r.address())]);
    rig.a.scq.all();
    rig.b.rcq.all();
    m.put(0, b"still here");
    rig.a.send_ud(
        &mut tx,
        &To { lid: Lid(2), qpn: rx.qpn, qkey: 0x11, grh: None },
        &[data(10, key, m.address())],
    );
    rig.settle();
    assert_eq!(r.get(40, 10), b"still here");
    assert_eq!(rig.b.rcq.all().iter().filter(|w| w.user_index == 0x77).count(), 1);
    for (host, qp) in [(&mut rig.a, tx), (&mut rig.b, rx)] {
        host.engine.destroy_qp(qp.qpn).unwrap();
        host.scq.all();
        host.rcq.all();
    }
}

#[test]
fn random_send_entries() {
    let mut rig = Rig::new();
    let mut dice = Dice(1);
    let (m, key) = rig.a.memory(70_000);
    for round in 0..2000 {
        let kind = if round % 2 == 0 { QpKind::Rc } else { QpKind::Ud };
        let mut qp = rig.a.qp(kind, 32, None, 1);
        match kind {
            QpKind::Rc => {
                rig.a.connect(&qp, (Lid(2), Qpn::new(5)), Rc { timeout: 0, ..Rc::default() });
                rig.a.engine.set_remote_operations(qp.qpn, EVERYTHING).unwrap();
            }
            _ => rig.a.open_ud(&qp, 3),
        }
        let blocks = 1 + dice.below(20);
        let mut wqe: Vec<u8> = (0..blocks * 64).map(|_| dice.roll() as u8).collect();
        // Valid enough to be parsed, in most rounds.
        if dice.below(4) > 0 {
            let opcode = [0x0a, 0x0b, 0x08, 0x09, 0x01, 0x00, 0x10, 0x11, 0x12][dice.below(9)];
            let ds = 1 + dice.below(63) as u32;
            wqe[..4].copy_from_slice(&u32::to_be_bytes(opcode));
            wqe[4..8].copy_from_slice(&(qp.qpn.get() << 8 | ds).to_be_bytes());
            for at in (16..wqe.len()).step_by(16) {
                match dice.below(4) {
                    0 => wqe[at..at + 16].copy_from_slice(&data(dice.roll() as u32, key, m.address())),
                    1 => wqe[at..at + 16].copy_from_slice(&data(dice.below(70_000) as u32, key, m.address())),
                    2 => wqe[at..at + 4]
                        .copy_from_slice(&(0x8000_0000 | dice.roll() as u32 & 0x1ff).to_be_bytes()),
                    _ => {}
                }
            }
        }
        qp.posted = 0;
        rig.a.post_raw(&mut qp, &wqe);
        for _ in 0..6 {
            rig.a.engine.step(rig.now);
            rig.b.engine.step(rig.now);
        }
        rig.a.engine.destroy_qp(qp.qpn).unwrap();
        for wc in rig.a.scq.all() {
            assert!(wc.counter < 32 && wc.qpn == qp.qpn.get(), "{wc:?}");
        }
    }
    rig.settle();
    still_serves(&mut rig);
}

#[test]
fn counters_that_run_ahead_of_the_ring() {
    let mut rig = Rig::new();
    for record in [1u32, 33, 1000, 0x7fff, 0xffff, 0xffff_ffff] {
        let mut qp = rig.a.qp(QpKind::Ud, 32, None, 1);
        rig.a.open_ud(&qp, 3);
        rig.a.receive(&mut qp, &[]);
        qp.forge(record);
        rig.a.engine.ring(qp.qpn);
        rig.settle();
        rig.a.engine.modify_qp(qp.qpn, &QpTransition::ToError).unwrap();
        rig.settle();
        rig.a.engine.destroy_qp(qp.qpn).unwrap();
        assert!(rig.a.scq.all().len() <= 96 && rig.a.rcq.all().len() <= 192);
    }
    still_serves(&mut rig);
}

#[test]
fn a_link_out_of_the_shared_ring_breaks_its_users_only() {
    let mut rig = Rig::new();
    let mut srq = SharedQueue::new(&mut rig.b.engine, 8, 512, 512);
    let mut tx = rig.a.qp(QpKind::Rc, 16, None, 1);
    let rx = rig.b.qp(QpKind::Rc, 16, Some(srq.number), 2);
    rig.a.connect(&tx, (Lid(2), rx.qpn), Rc::default());
    rig.b.connect(&rx, (Lid(1), tx.qpn), Rc::default());
    let (m, key) = rig.a.memory(64);
    srq.post();
    srq.post();
    rig.a.send(&mut tx, &[data(10, key, m.address())]);
    rig.settle();
    assert_eq!(rig.b.rcq.all().len(), 1);
    srq.break_link();
    srq.forge(3);
    for _ in 0..3 {
        rig.a.send(&mut tx, &[data(10, key, m.address())]);
    }
    rig.settle();
    assert_eq!(rig.b.engine.qp_state(rx.qpn).unwrap(), QpState::Err);
    assert!(rig.a.scq.all().iter().any(|w| w.status == WcStatus::RemoteOperation));
    still_serves(&mut rig);
}

#[test]
fn a_completion_queue_that_overruns_is_reported_and_not_overwritten() {
    let mut rig = Rig::new();
    let mut qp = rig.a.ud(3, 0);
    let to = To { lid: Lid(2), qpn: Qpn::new(99), qkey: 3, grh: None };
    let (m, key) = rig.a.memory(64);
    for _ in 0..CQ + 5 {
        rig.a.send_ud(&mut qp, &to, &[data(10, key, m.address())]);
        rig.settle();
    }
    let events: Vec<_> = std::iter::from_fn(|| rig.a.engine.next_event()).collect();
    assert!(events.contains(&DeviceEvent::CqOverrun(rig.a.scq.number)));
    assert_eq!(rig.a.scq.all().len(), CQ);
}

#[test]
fn every_kind_of_mangled_packet() {
    let (mut wire, theirs) = CableEnd::pair().unwrap();
    let (_idle, other) = CableEnd::pair().unwrap();
    let mut rig = Rig::over(theirs, other);
    let mut dice = Dice(7);
    let mut ud = rig.a.ud(3, 1);
    let (m, key) = rig.a.memory(1 << 16);
    let mut srq = SharedQueue::new(&mut rig.a.engine, 8, 2000, 500);
    for _ in 0..7 {
        srq.post();
    }
    let mut rc = rig.a.qp(QpKind::Rc, 16, Some(srq.number), 2);
    let mut seen = std::collections::HashSet::new();
    for round in 0..6000 {
        if rig.a.engine.qp_state(rc.qpn).unwrap() != QpState::Rts {
            rig.a.engine.modify_qp(rc.qpn, &QpTransition::ToReset).unwrap();
            rc.forge(0);
            rc.posted = 0;
            rig.a.connect(&rc, (Lid(2), Qpn::new(5)), Rc { mtu: Mtu::B256, ..Rc::default() });
            rig.a.engine.set_remote_operations(rc.qpn, EVERYTHING).unwrap();
        }
        rig.a.receive(&mut ud, &[data(4136, key, m.address())]);
        let opcode = if dice.below(8) == 0 {
            Opcode::from_byte(dice.roll() as u8)
        } else {
            Opcode::KNOWN[dice.below(Opcode::KNOWN.len() as u64)]
        };
        let qpn = [ud.qpn, rc.qpn, Qpn::new(0), Qpn::new(1), Qpn::new(dice.roll() as u32)][dice.below(5)];
        let mut headers = random_headers(&mut dice, opcode, qpn);
        headers.bth.psn = Psn::new(7 + dice.below(4) as u32);
        let payload = vec![0xab; [0, 1, 255, 256, 257, 4096, dice.below(4000)][dice.below(7)]];
        let mut bytes = vec![0; headers.packet_len(payload.len())];
        headers.write_packet(&payload, &mut bytes).unwrap();
        assert!(Packet::parse(&bytes).is_ok());
        match dice.below(5) {
            0 => {
                let at = dice.below(bytes.len() as u64);
                bytes[at] ^= 1 << dice.below(8);
            }
            1 => bytes.truncate(1 + dice.below(bytes.len() as u64)),
            _ => {}
        }
        // Through shared memory any bytes may arrive as a packet that needs no CRCs.
        let crcs = if round % 2 == 0 { Crcs::Present } else { Crcs::Absent };
        wire.forward(&bytes, crcs).unwrap();
        rig.a.engine.step(rig.now);
        wire.receive(100, |_| ());
        for wc in rig.a.rcq.all() {
            if wc.user_index == 2 {
                srq.free(wc.counter, 0);
                srq.post();
            }
        }
        rig.a.scq.all();
        while rig.a.engine.next_event().is_some() {}
        if round % 100 == 0 {
            for reason in &DropReason::ALL {
                if rig.a.drops(*reason) > 0 {
                    seen.insert(reason.name());
                }
            }
        }
    }
    for label in [
        "malformed",
        "vcrc",
        "not_our_lid",
        "virtual_lane",
        "no_queue_pair",
        "transport",
        "pkey",
        "qkey",
        "wrong_source",
    ] {
        assert!(seen.contains(label), "{label} never happened: {seen:?}");
    }
}

fn random_headers(dice: &mut Dice, opcode: Opcode, qpn: Qpn) -> Headers {
    let mut seed = [0u8; 128];
    for b in &mut seed {
        *b = dice.roll() as u8;
    }
    // The parser builds a value of any layout from any bytes.
    let mut bytes = vec![0, 2, 0, 1, 0, 0, 0, 2];
    bytes.extend_from_slice(&[opcode.to_byte(), 0x40, 0xff, 0xff, 0]);
    bytes.extend_from_slice(&qpn.to_be_bytes());
    bytes.extend_from_slice(&[seed[0] & 0x80, 0, 0, 0]);
    bytes.extend_from_slice(&seed[..28 + 6]);
    bytes.resize(bytes.len().next_multiple_of(4) + 2, 0);
    let words = ((bytes.len() - 2) / 4) as u16;
    bytes[4..6].copy_from_slice(&words.to_be_bytes());
    let mut headers = Packet::parse(&bytes).unwrap().headers();
    match &mut headers.extended {
        Extended::Deth(deth) | Extended::DethImmediate(deth, _) if dice.below(2) == 0 => deth.qkey.0 = 3,
        Extended::Reth(reth) if dice.below(2) == 0 => *reth = Reth { rkey: Rkey(0x18_0001), ..*reth },
        Extended::Atomic(atomic) if dice.below(2) == 0 => atomic.rkey = Rkey(0x18_0001),
        _ => {}
    }
    match dice.below(12) {
        0 => headers.lrh.dlid = Lid(dice.roll() as u16),
        1 => headers.lrh.slid = Lid(dice.roll() as u16),
        2 => headers.bth.pkey.0 = dice.roll() as u16,
        3 => headers.lrh.vl = ib_wire::packet::VirtualLane::MANAGEMENT,
        _ => {}
    }
    headers
}

/// A device whose peer is a test that writes single packets of connections.
struct Forged {
    wire: CableEnd,
    rig: Rig,
    dice: Dice,
    _idle: CableEnd,
}

impl Forged {
    fn new() -> Self {
        let (wire, theirs) = CableEnd::pair().unwrap();
        let (idle, other) = CableEnd::pair().unwrap();
        Self { wire, rig: Rig::over(theirs, other), dice: Dice(9), _idle: idle }
    }

    /// Sends a correctly addressed packet of 256 bytes to a connection.
    fn send(&mut self, to: Qpn, opcode: Opcode, psn: u32, reth: Option<Reth>) {
        let mut headers = loop {
            let headers = random_headers(&mut self.dice, opcode, to);
            let (lrh, pkey) = (headers.lrh, headers.bth.pkey.0);
            let managed = lrh.vl == ib_wire::packet::VirtualLane::MANAGEMENT;
            if (lrh.dlid, lrh.slid, pkey, managed) == (Lid(1), Lid(2), 0xffff, false) {
                break headers;
            }
        };
        headers.bth.psn = Psn::new(psn);
        if let Some(reth) = reth {
            headers.extended = Extended::Reth(reth);
        }
        let payload = [0xab; 256];
        let mut bytes = vec![0; headers.packet_len(payload.len())];
        headers.write_packet(&payload, &mut bytes).unwrap();
        self.wire.send_with(bytes.len(), |out| out.copy_from_slice(&bytes)).unwrap();
        self.rig.a.engine.step(self.rig.now);
        self.wire.receive(100, |_| ());
    }

    fn pass(&mut self, time: Duration) {
        self.rig.now += time;
        self.rig.a.engine.step(self.rig.now);
    }
}

/// One packet of a message into a shared receive, and never the next: the receive completes, and the
/// connection ends with an event.
#[test]
fn a_message_that_does_not_go_on_gives_its_receive_back() {
    let mut f = Forged::new();
    let mut srq = SharedQueue::new(&mut f.rig.a.engine, 8, 2000, 500);
    srq.post();
    let rc = f.rig.a.qp(QpKind::Rc, 16, Some(srq.number), 2);
    f.rig.a.connect(&rc, (Lid(2), Qpn::new(5)), Rc { mtu: Mtu::B256, ..Rc::default() });
    while f.rig.a.engine.next_event().is_some() {}
    f.send(rc.qpn, Opcode::RcSendFirst, 7, None);
    assert_eq!((f.rig.a.engine.qp_state(rc.qpn).unwrap(), f.rig.a.rcq.all().len()), (QpState::Rts, 0));
    // The message continues slowly; a duplicate is no progress.
    f.rig.now += Duration::from_secs(9);
    f.send(rc.qpn, Opcode::RcSendMiddle, 8, None);
    f.rig.now += Duration::from_secs(9);
    f.send(rc.qpn, Opcode::RcSendMiddle, 8, None);
    assert_eq!((f.rig.a.engine.qp_state(rc.qpn).unwrap(), f.rig.a.rcq.all().len()), (QpState::Rts, 0));
    assert_eq!(f.rig.a.engine.next_event(), None);
    f.pass(Duration::from_secs(2));
    assert_eq!(f.rig.a.engine.qp_state(rc.qpn).unwrap(), QpState::Err);
    let back = f.rig.a.rcq.all();
    assert_eq!(
        back.iter().map(|wc| (wc.user_index, wc.status)).collect::<Vec<_>>(),
        [(2, WcStatus::Flushed)]
    );
    let events: Vec<_> = std::iter::from_fn(|| f.rig.a.engine.next_event()).collect();
    assert!(events.contains(&DeviceEvent::Async(AsyncEvent::QpFatal(rc.qpn))), "{events:?}");
}

/// A requester may pause as long as its own retries allow if its message holds nothing of other connections.
#[test]
fn a_message_that_holds_no_shared_receive_may_pause_without_limit() {
    let how = Rc { mtu: Mtu::B256, ..Rc::default() };
    for shared in [false, true] {
        let mut f = Forged::new();
        let (memory, key) = f.rig.a.memory(4096);
        let mut srq = SharedQueue::new(&mut f.rig.a.engine, 8, 2000, 500);
        srq.post();
        let mut rc = f.rig.a.qp(QpKind::Rc, 16, shared.then_some(srq.number), 2);
        f.rig.a.connect(&rc, (Lid(2), Qpn::new(5)), how);
        let last = if shared {
            // An RDMA WRITE, which consumes no receive.
            f.rig.a.engine.set_remote_operations(rc.qpn, EVERYTHING).unwrap();
            let target = Memory::new(4096);
            let write = Access { remote_write: true, ..Access::LOCAL };
            let rkey = f.rig.a.engine.register(target.address(), target.host(), write).unwrap();
            let reth = Reth { address: target.address(), rkey: Rkey(rkey), length: 512 };
            f.send(rc.qpn, Opcode::RcWriteFirst, 7, Some(reth));
            f.pass(Duration::from_secs(600));
            assert_eq!(f.rig.a.engine.qp_state(rc.qpn).unwrap(), QpState::Rts, "a WRITE");
            f.send(rc.qpn, Opcode::RcWriteLast, 8, None);
            assert_eq!(target.get(0, 512), [0xab; 512]);
            9
        } else {
            f.rig.a.receive(&mut rc, &[data(2000, key, memory.address())]);
            f.send(rc.qpn, Opcode::RcSendFirst, 7, None);
            f.pass(Duration::from_secs(600));
            assert_eq!(f.rig.a.engine.qp_state(rc.qpn).unwrap(), QpState::Rts, "a receive of its own");
            f.send(rc.qpn, Opcode::RcSendLast, 8, None);
            let got = f.rig.a.rcq.all();
            assert_eq!(
                got.iter().map(|wc| (wc.status, wc.bytes)).collect::<Vec<_>>(),
                [(WcStatus::Success, 512)]
            );
            9
        };
        // It still serves.
        f.rig.a.receive(&mut rc, &[data(2000, key, memory.address())]);
        f.send(rc.qpn, Opcode::RcSendOnly, last, None);
        assert_eq!(f.rig.a.rcq.all().iter().map(|wc| wc.bytes).collect::<Vec<_>>(), [256]);
    }
}
