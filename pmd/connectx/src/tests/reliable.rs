use std::time::Duration;

use ib_wire::{Lid, Mtu, Qpn};

use super::rig::*;
use crate::cable::{CableEnd, Faults};
use crate::{Access, Activity, DeviceEvent, DropReason, FastKey, ListKind, QpKind};
use hca::{AsyncEvent, QpState, QpTransition, WcStatus};

const SEND: u8 = 0x0a;
const SIGNAL: u8 = 0x08;

struct Joined {
    rig: Rig,
    tx: Pair,
    rx: Pair,
    srq: SharedQueue,
}

/// A connection from `a` to `b`, whose receives come from a shared queue of `slots`.
fn joined(mut rig: Rig, how: Rc, slots: usize, size: usize) -> Joined {
    let piece = size.div_ceil(17).max(64);
    let srq = SharedQueue::new(&mut rig.b.engine, slots, size, piece);
    let tx = rig.a.qp(QpKind::Rc, 256, None, 5);
    let rx = rig.b.qp(QpKind::Rc, 16, Some(srq.number), 6);
    rig.a.connect(&tx, (Lid(2), rx.qpn), Rc { sq_psn: 0xff_fff0, rq_psn: 3, ..how });
    rig.b.connect(&rx, (Lid(1), tx.qpn), Rc { sq_psn: 3, rq_psn: 0xff_fff0, ..how });
    Joined { rig, tx, rx, srq }
}

/// Sends messages of these sizes and takes each from the shared queue, comparing every byte.
fn deliver(l: &mut Joined, sizes: &[usize], limit: Duration) {
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let (out, key) = l.rig.a.memory(longest + 64 * sizes.len());
    out.put(0, &pattern(longest + 64 * sizes.len(), 77));
    for _ in 0..l.srq_slots() {
        l.srq.post();
    }
    for (i, &size) in sizes.iter().enumerate() {
        // Each message is another part of the same pattern.
        let at = out.address() + 61 * i as u64;
        let first = (size / 3) as u32;
        let pieces = [data(first, key, at), data(size as u32 - first, key, at + u64::from(first))];
        let flags = if i % 3 == 0 || i + 1 == sizes.len() { SIGNAL } else { 0 };
        l.rig.a.post(&mut l.tx, SEND, flags, 0, &pieces.concat());
    }
    let end = l.rig.now + limit;
    let (mut got, mut completed) = (0, Vec::new());
    while got < sizes.len() || completed.last() != Some(&(sizes.len() - 1)) {
        assert!(l.rig.now < end, "{got} of {} arrived; {:?}", sizes.len(), l.rig.a.engine.counters());
        l.rig.settle();
        for wc in l.rig.b.rcq.all() {
            assert_eq!((wc.opcode, wc.user_index, wc.bytes as usize), (RESP_SEND, 6, sizes[got]));
            let bytes = l.srq.free(wc.counter, wc.bytes as usize);
            assert!(bytes == out.get(61 * got, sizes[got]), "message {got} of {} bytes", sizes[got]);
            l.srq.post();
            got += 1;
        }
        for wc in l.rig.a.scq.all() {
            assert_eq!((wc.status, wc.opcode, wc.send_opcode), (WcStatus::Success, REQ, SEND));
            completed.push(usize::from(wc.counter));
        }
        l.rig.now += Duration::from_micros(100);
    }
    let expected: Vec<_> = (0..sizes.len()).filter(|i| i % 3 == 0 || i + 1 == sizes.len()).collect();
    assert_eq!(completed, expected);
    l.rig.run(Duration::from_millis(50));
    assert!(l.rig.b.rcq.all().is_empty(), "something arrived twice");
    assert!(l.rig.a.scq.all().is_empty());
}

impl Joined {
    fn srq_slots(&self) -> usize {
        self.srq.buffers.host().len() / self.srq.size.max(64) - 1
    }

    fn piece(&mut self, len: u32) -> [u8; 16] {
        let (m, key) = self.rig.a.memory(len.max(1) as usize);
        let piece = data(len, key, m.address());
        std::mem::forget(m);
        piece
    }
}

#[test]
fn messages_of_every_size_at_every_mtu() {
    for mtu in [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096] {
        let m = mtu.bytes();
        let mut l = joined(Rig::new(), Rc { mtu, ..Rc::default() }, 16, 65_536);
        deliver(&mut l, &[0, 1, 3, m - 1, m, m + 1, 2 * m, 65_524, 5, 0], Duration::from_secs(1));
        assert_eq!(l.rig.a.engine.counters().activity(Activity::Retransmitted), 0);
        assert_eq!(l.rig.a.drops(DropReason::StrayAcknowledge), 0);
    }
    let mut l = joined(Rig::new(), Rc { mtu: Mtu::B4096, ..Rc::default() }, 4, 1 << 20);
    deliver(&mut l, &[1 << 20, 1, (1 << 20) - 3], Duration::from_secs(1));
}

#[test]
fn nothing_is_lost_or_duplicated_on_a_faulty_link() {
    let schedules = [
        Faults { loss: 0.05, ..Faults::default() },
        Faults { duplicate: 0.2, ..Faults::default() },
        Faults { reorder: 0.2, ..Faults::default() },
        Faults { corrupt: 0.05, ..Faults::default() },
        Faults { delay: Duration::from_micros(700), loss: 0.02, ..Faults::default() },
        Faults { loss: 0.08, duplicate: 0.1, reorder: 0.1, corrupt: 0.03, ..Faults::default() },
    ];
    for seed in 0..8 {
        for (i, faults) in schedules.iter().enumerate() {
            let (mut left, right) = CableEnd::pair().unwrap();
            left.inject(Faults { seed: seed * 100 + i as u64, ..*faults });
            let mtu = [Mtu::B256, Mtu::B1024, Mtu::B2048, Mtu::B4096][seed as usize % 4];
            let m = mtu.bytes();
            // No retry limit: nothing may be lost here, whatever the random faults.
            let how = Rc { mtu, timeout: 8, retry: 7, ..Rc::default() };
            let mut l = joined(Rig::over(left, right), how, 4, 65_536);
            let sizes = [0, 1, m - 1, m, m + 1, 4000, 17, 65_524, 3, 9000, 0, 100, 2 * m];
            deliver(&mut l, &sizes, Duration::from_secs(5));
            let counters = l.rig.a.engine.counters();
            let retried = counters.activity(Activity::Retransmitted);
            assert!(retried > 0 || faults.loss == 0.0, "schedule {i}, seed {seed} lost nothing");
        }
    }
}

#[test]
fn a_dry_shared_queue_holds_the_sender_back() {
    let mut l = joined(Rig::new(), Rc { rnr_timer: 12, ..Rc::default() }, 4, 4096);
    l.rig.b.engine.arm_srq(l.srq.number, 1).unwrap();
    let piece = l.piece(3000);
    l.rig.a.send(&mut l.tx, &[piece]);
    l.rig.settle();
    assert_eq!(l.rig.b.engine.counters().activity(Activity::RnrNaks), 1);
    // Longer than any retry count, but finite: 640 µs each.
    l.rig.run(Duration::from_millis(20));
    assert!(l.rig.b.engine.counters().activity(Activity::RnrNaks) > 8);
    assert!(l.rig.a.scq.all().is_empty());
    l.srq.post();
    l.rig.run(Duration::from_millis(2));
    assert_eq!(l.rig.b.rcq.all().len(), 1);
    assert_eq!(l.rig.a.scq.all().len(), 1);
    assert_eq!(
        std::iter::from_fn(|| l.rig.b.engine.next_event()).last(),
        Some(DeviceEvent::SrqLimit(l.srq.number))
    );
}

#[test]
fn rnr_retries_are_counted() {
    for (retries, naks) in [(0, 1), (2, 3)] {
        let mut l = joined(Rig::new(), Rc { rnr_retry: retries, ..Rc::default() }, 4, 4096);
        let piece = l.piece(100);
        l.rig.a.send(&mut l.tx, &[piece]);
        l.rig.a.send(&mut l.tx, &[piece]);
        l.rig.run(Duration::from_millis(20));
        assert_eq!(l.rig.b.engine.counters().activity(Activity::RnrNaks), naks);
        let status: Vec<_> = l.rig.a.scq.all().iter().map(|w| (w.counter, w.status)).collect();
        assert_eq!(status, [(0, WcStatus::RnrRetryExceeded), (1, WcStatus::Flushed)]);
        assert_eq!(l.rig.a.engine.qp_state(l.tx.qpn).unwrap(), QpState::Err);
    }
}

#[test]
fn a_dead_peer_costs_the_retries_and_then_the_connection() {
    let mut l = joined(Rig::new(), Rc { timeout: 10, retry: 3, ..Rc::default() }, 4, 4096);
    l.rig.b.engine.modify_qp(l.rx.qpn, &QpTransition::ToReset).unwrap();
    let piece = l.piece(100);
    let start = l.rig.now;
    l.rig.a.send(&mut l.tx, &[piece]);
    l.rig.run(Duration::from_secs(1));
    let wc = l.rig.a.scq.all();
    assert_eq!(wc.iter().map(|w| w.status).collect::<Vec<_>>(), [WcStatus::RetryExceeded]);
    let took = l.rig.now - start;
    // 4.096 µs · 2^10 four times.
    assert!((Duration::from_micros(16_700)..Duration::from_millis(17)).contains(&took), "{took:?}");
}

#[test]
fn a_message_longer_than_the_receive_ends_the_connection() {
    let mut l = joined(Rig::new(), Rc { mtu: Mtu::B1024, ..Rc::default() }, 4, 2000);
    l.srq.post();
    l.srq.post();
    let piece = l.piece(2001);
    l.rig.a.send(&mut l.tx, &[piece]);
    l.rig.run(Duration::from_millis(5));
    let wc = l.rig.b.rcq.all();
    assert_eq!(
        wc.iter().map(|w| (w.opcode, w.status)).collect::<Vec<_>>(),
        [(RESP_ERR, WcStatus::LocalLength)]
    );
    assert_eq!(l.rig.a.scq.all()[0].status, WcStatus::RemoteInvalidRequest);
    assert_eq!(l.rig.b.engine.qp_state(l.rx.qpn).unwrap(), QpState::Err);
    let events: Vec<_> = std::iter::from_fn(|| l.rig.b.engine.next_event()).collect();
    assert!(events.contains(&DeviceEvent::Async(AsyncEvent::LastWqeReached(l.rx.qpn))));
}

#[test]
fn keys_are_checked_on_every_access() {
    // Sending: wrong key, wrong tag, past the end, past the end of addresses.
    let bad = |i: usize, key: u32, m: &Memory| match i {
        0 => data(64, 0x1234, m.address()),
        1 => data(64, key ^ 1, m.address()),
        2 => data(64, key, m.address() + 4096 - 63),
        3 => data(64, key, m.address() - 1),
        _ => data(64, key, u64::MAX - 10),
    };
    for i in 0..5 {
        let mut l = joined(Rig::new(), Rc::default(), 4, 4096);
        for _ in 0..3 {
            l.srq.post();
        }
        let (m, key) = l.rig.a.memory(4096);
        l.rig.a.send(&mut l.tx, &[data(100, key, m.address())]);
        l.rig.a.send(&mut l.tx, &[bad(i, key, &m)]);
        l.rig.a.send(&mut l.tx, &[data(100, key, m.address())]);
        l.rig.settle();
        let status: Vec<_> = l.rig.a.scq.all().iter().map(|w| (w.counter, w.status)).collect();
        assert_eq!(
            status,
            [(0, WcStatus::Success), (1, WcStatus::LocalProtection), (2, WcStatus::Flushed)],
            "case {i}"
        );
        assert_eq!(l.rig.b.rcq.all().len(), 1);
    }
    // Receiving into memory that may only be read.
    let mut l = joined(Rig::new(), Rc::default(), 4, 4096);
    l.rig.b.engine.deregister(l.srq.key).unwrap();
    l.srq.post();
    let piece = l.piece(10);
    l.rig.a.send(&mut l.tx, &[piece]);
    l.rig.settle();
    assert_eq!(l.rig.b.rcq.all()[0].status, WcStatus::LocalProtection);
    assert_eq!(l.rig.a.scq.all()[0].status, WcStatus::RemoteOperation);
}

#[test]
fn every_outstanding_work_request_is_flushed_once() {
    for destroy in [false, true] {
        // The receiver gets the first half of a message, and then nothing more arrives.
        let mut l = joined(Rig::new(), Rc { mtu: Mtu::B256, ..Rc::default() }, 4, 60_000);
        l.srq.post();
        let piece = l.piece(60_000);
        l.rig.a.send(&mut l.tx, &[piece]);
        l.rig.a.send(&mut l.tx, &[piece]);
        l.rig.a.post(&mut l.tx, SEND, 0, 0, &piece);
        l.rig.a.engine.step(l.rig.now);
        l.rig.b.engine.step(l.rig.now);
        for (host, qpn) in [(&mut l.rig.a, l.tx.qpn), (&mut l.rig.b, l.rx.qpn)] {
            host.engine.modify_qp(qpn, &QpTransition::ToError).unwrap();
        }
        // Posted after the error, as a drain request would be.
        l.rig.a.post(&mut l.tx, SEND, SIGNAL, 0, &piece);
        l.rig.settle();
        if destroy {
            l.rig.a.engine.destroy_qp(l.tx.qpn).unwrap();
            l.rig.b.engine.destroy_qp(l.rx.qpn).unwrap();
        }
        let flushed: Vec<_> = l.rig.a.scq.all().iter().map(|w| (w.opcode, w.counter, w.status)).collect();
        assert_eq!(flushed, [0, 1, 2, 3].map(|i| (REQ_ERR, i, WcStatus::Flushed)));
        let wc = l.rig.b.rcq.all();
        assert_eq!(
            wc.iter().map(|w| (w.opcode, w.status)).collect::<Vec<_>>(),
            [(RESP_ERR, WcStatus::Flushed)]
        );
        let last = std::iter::from_fn(|| l.rig.b.engine.next_event())
            .filter(|e| matches!(e, DeviceEvent::Async(AsyncEvent::LastWqeReached(q)) if *q == l.rx.qpn))
            .count();
        assert_eq!(last, 1);
        l.rig.settle();
        assert!(l.rig.a.scq.all().is_empty() && l.rig.b.rcq.all().is_empty());
    }
}

#[test]
fn a_queue_pair_with_receives_of_its_own_flushes_them() {
    let mut rig = Rig::new();
    let mut qp = rig.a.qp(QpKind::Rc, 16, None, 1);
    let (m, key) = rig.a.memory(4096);
    rig.a.connect(&qp, (Lid(2), Qpn::new(77)), Rc::default());
    for _ in 0..5 {
        rig.a.receive(&mut qp, &[data(100, key, m.address())]);
    }
    rig.a.send(&mut qp, &[data(100, key, m.address())]);
    rig.a.engine.destroy_qp(qp.qpn).unwrap();
    let flushed: Vec<_> = rig.a.rcq.all().iter().map(|w| (w.counter, w.status)).collect();
    assert_eq!(flushed, [0, 1, 2, 3, 4].map(|i| (i, WcStatus::Flushed)));
    assert_eq!(rig.a.scq.all().len(), 1);
}

#[test]
fn immediate_invalidate_inline_and_nop() {
    let mut l = joined(Rig::new(), Rc::default(), 8, 4096);
    for _ in 0..6 {
        l.srq.post();
    }
    let inline = |bytes: &[u8]| {
        let mut b = (bytes.len() as u32 | 0x8000_0000).to_be_bytes().to_vec();
        b.extend_from_slice(bytes);
        b.resize(b.len().next_multiple_of(16), 0);
        b
    };
    let text = pattern(200, 3);
    // A key that this may invalidate.
    let fast = FastKey { tag: 0xd4, remote_invalidate: true, ..free_key(ListKind::Keys, 4) };
    let key = l.rig.b.engine.create_fast_key(&fast).unwrap();
    let mut back = l.rig.b.qp(QpKind::Rc, 64, None, 0);
    l.rig.b.connect(&back, (Lid(1), Qpn::new(9)), Rc::default());
    l.rig.b.post(&mut back, UMR, 0, key, &Umr { mask: FREE, ..Umr::default() }.body());
    l.rig.settle();
    l.rig.a.post(&mut l.tx, 0x0b, SIGNAL | 2, 0x1122_3344, &inline(&text[..12]));
    l.rig.a.post(&mut l.tx, 0x00, SIGNAL, 0, &[]);
    l.rig.a.post(&mut l.tx, 0x01, SIGNAL, key, &inline(&text));
    l.rig.a.post(&mut l.tx, 0x10, SIGNAL, 0, &[0; 32]);
    l.rig.settle();
    let got = l.rig.b.rcq.all();
    assert_eq!(
        (got[0].opcode, got[0].imm, got[0].solicited, got[0].bytes),
        (RESP_IMM, 0x1122_3344, true, 12)
    );
    assert_eq!((got[1].opcode, got[1].imm, got[1].solicited), (4, key, false));
    assert_eq!(l.srq.free(got[1].counter, 200), text);
    let sent: Vec<_> = l.rig.a.scq.all().iter().map(|w| (w.counter, w.send_opcode, w.status)).collect();
    // An entry with inline data of 200 bytes takes four blocks. READ is not permitted.
    assert_eq!(
        sent,
        [
            (0, 0x0b, WcStatus::Success),
            (1, 0x00, WcStatus::Success),
            (2, 0x01, WcStatus::Success),
            (6, 0x10, WcStatus::LocalQpOperation)
        ]
    );
}

#[test]
fn rdma_write_goes_where_the_key_allows() {
    let mut l = joined(Rig::new(), Rc { mtu: Mtu::B256, ..Rc::default() }, 4, 4096);
    l.srq.post();
    let (src, key) = l.rig.a.memory(4096);
    src.put(0, &pattern(4096, 9));
    let dst = Memory::new(4096);
    let write = Access { remote_write: true, ..Access::LOCAL };
    let rkey = l.rig.b.engine.register(dst.address(), dst.host(), write).unwrap();
    let body = |at: u64, rkey: u32, len: u32| {
        let mut b = at.to_be_bytes().to_vec();
        b.extend_from_slice(&rkey.to_be_bytes());
        b.extend_from_slice(&[0; 4]);
        b.extend_from_slice(&data(len, key, src.address()));
        b
    };
    l.rig.a.post(&mut l.tx, 0x08, SIGNAL, 0, &body(dst.address() + 5, rkey, 1000));
    l.rig.a.post(&mut l.tx, 0x09, SIGNAL, 42, &body(dst.address() + 2000, rkey, 600));
    l.rig.settle();
    assert_eq!(dst.get(5, 1000), pattern(4096, 9)[..1000]);
    assert_eq!(dst.get(2000, 600), pattern(4096, 9)[..600]);
    let got = l.rig.b.rcq.all();
    assert_eq!((got.len(), got[0].opcode, got[0].imm, got[0].bytes), (1, 1, 42, 600));
    // One byte past the end; then a key without the right.
    l.rig.a.post(&mut l.tx, 0x08, SIGNAL, 0, &body(dst.address() + 3500, rkey, 597));
    l.rig.settle();
    let sent: Vec<_> = l.rig.a.scq.all().iter().map(|w| w.status).collect();
    assert_eq!(sent, [WcStatus::Success, WcStatus::Success, WcStatus::RemoteAccess]);
}

#[test]
fn a_key_invalidated_during_a_write_consumes_no_receive() {
    let mut l = joined(Rig::new(), Rc { mtu: Mtu::B256, timeout: 0, ..Rc::default() }, 4, 4096);
    l.srq.post();
    // One packet more than a step sends.
    let length = 64 * 256 + 10;
    let (src, key) = l.rig.a.memory(length as usize);
    let dst = Memory::new(length as usize);
    let write = Access { remote_write: true, ..Access::LOCAL };
    let rkey = l.rig.b.engine.register(dst.address(), dst.host(), write).unwrap();
    let mut body = dst.address().to_be_bytes().to_vec();
    body.extend_from_slice(&rkey.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&data(length, key, src.address()));
    l.rig.a.post(&mut l.tx, 0x09, SIGNAL, 42, &body);
    l.rig.a.engine.step(l.rig.now);
    l.rig.b.engine.step(l.rig.now);
    l.rig.b.engine.deregister(rkey).unwrap();
    l.rig.settle();
    assert_eq!(l.rig.a.scq.all()[0].status, WcStatus::RemoteAccess);
    assert_eq!(l.rig.b.rcq.all(), [], "the last packet was refused before it took a receive");
    // The next connection on the shared queue finds it.
    let mut tx = l.rig.a.qp(QpKind::Rc, 16, None, 3);
    let rx = l.rig.b.qp(QpKind::Rc, 16, Some(l.srq.number), 4);
    l.rig.a.connect(&tx, (Lid(2), rx.qpn), Rc::default());
    l.rig.b.connect(&rx, (Lid(1), tx.qpn), Rc::default());
    l.rig.a.send(&mut tx, &[data(10, key, src.address())]);
    l.rig.settle();
    assert_eq!(l.rig.b.rcq.all().iter().map(|w| (w.opcode, w.bytes)).collect::<Vec<_>>(), [(RESP_SEND, 10)]);
}
