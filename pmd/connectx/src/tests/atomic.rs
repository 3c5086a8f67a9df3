//! COMPARE & SWAP and FETCH & ADD, over all kinds of cables.

use std::time::Duration;

use ib_wire::packet::{AtomicEth, Bth, Extended, Headers, Lrh, Opcode, Packet, VirtualLane};
use ib_wire::{Lid, Mtu, PKey, Psn, Qpn, Rkey, ServiceLevel};

use super::read::Reading;
use super::rig::*;
use crate::cable::{CableEnd, Faults};
use crate::{Access, Activity, AnswerOrder, DeviceEvent, DropReason, QpKind, RemoteOperations};
use hca::{QpState, WcStatus};

const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;
const READ: u8 = 0x10;
const SWAP: u8 = 0x11;
const ADD: u8 = 0x12;
const SIGNAL: u8 = 0x08;
const FENCE: u8 = 0x80;

const ALL: Access = Access { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };
const EVERYTHING: RemoteOperations =
    RemoteOperations { write: true, read: true, atomic: true, reads_in: 4, reads_out: 4 };

/// An operation on the eight bytes at `there`, whose result goes to `here`.
fn operation(there: u64, rkey: u32, operands: (u64, u64), here: &[[u8; 16]]) -> Vec<u8> {
    let mut body = there.to_be_bytes().to_vec();
    body.extend_from_slice(&rkey.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&operands.0.to_be_bytes());
    body.extend_from_slice(&operands.1.to_be_bytes());
    body.extend_from_slice(&here.concat());
    body
}

/// As for reading, with a key that permits everything.
fn counting(rig: Rig, how: Rc) -> Reading {
    let mut r = Reading::new(rig, how, 4096);
    r.rkey = r.rig.b.engine.register(r.there.address(), r.there.host(), ALL).unwrap();
    r.there.put(0, &[0; 4096]);
    r
}

impl Reading {
    /// `operands`: the swap and compare values, or the value to add.
    fn operate(&mut self, opcode: u8, at: u64, operands: (u64, u64), to: usize, flags: u8) {
        let place = data(8, self.lkey, self.here.address() + to as u64);
        let body = operation(self.there.address() + at, self.rkey, operands, &[place]);
        self.rig.a.post(&mut self.a, opcode, flags, 0, &body);
    }

    fn there(&self, at: usize) -> u64 {
        number(&self.there, at)
    }

    fn here(&self, at: usize) -> u64 {
        number(&self.here, at)
    }
}

fn number(memory: &Memory, at: usize) -> u64 {
    u64::from_ne_bytes(memory.get(at, 8).try_into().unwrap())
}

#[test]
fn both_operations_return_the_old_value() {
    let mut r = counting(Rig::new(), Rc::default());
    let begin = 0x1122_3344_5566_7788_u64;
    r.there.put(64, &begin.to_ne_bytes());
    // Each with its operands and the value afterwards.
    for (opcode, operands, after) in [
        (ADD, (1, 77), begin + 1),
        (ADD, (u64::MAX, 0), begin),
        (SWAP, (5, begin + 1), begin),
        (SWAP, (5, begin), 5),
        (SWAP, (6, begin), 5),
        (ADD, (u64::MAX - 1, 0), 3),
    ] {
        let before = r.there(64);
        r.operate(opcode, 64, operands, 8, SIGNAL);
        r.rig.settle();
        let done: Vec<_> = r.rig.a.scq.all().iter().map(|wc| (wc.send_opcode, wc.status, wc.bytes)).collect();
        assert_eq!(done, [(opcode, WcStatus::Success, 8)]);
        assert_eq!((r.here(8), r.there(64)), (before, after));
    }
    // Nothing around it has changed, at either end.
    assert_eq!((r.there(56), r.there(72), r.here(0), r.here(16)), (0, 0, 0, 0));
    // A big-endian result if requested.
    r.there.put(64, &begin.to_ne_bytes());
    r.rig.a.engine.set_answer_order(AnswerOrder::Big);
    r.operate(ADD, 64, (1, 0), 8, SIGNAL);
    r.rig.settle();
    assert_eq!((r.here.get(8, 8), r.there(64)), (begin.to_be_bytes().to_vec(), begin + 1));
    assert_eq!(r.events(), []);
}

#[test]
fn concurrent_additions_of_requesters_and_the_host_are_not_lost() {
    const EACH: usize = 300;
    let mut r = counting(Rig::new(), Rc::default());
    // Keeps both ends' rings at the addresses that the devices know.
    let (mut pairs, mut others) = (Vec::new(), Vec::new());
    for n in 0..6 {
        let (a, b) = (r.rig.a.qp(QpKind::Rc, 64, None, n), r.rig.b.qp(QpKind::Rc, 64, None, 9));
        r.rig.a.connect(&a, (Lid(2), b.qpn), Rc::default());
        r.rig.b.connect(&b, (Lid(1), a.qpn), Rc::default());
        r.rig.a.engine.set_remote_operations(a.qpn, EVERYTHING).unwrap();
        r.rig.b.engine.set_remote_operations(b.qpn, EVERYTHING).unwrap();
        pairs.push(a);
        others.push(b);
    }
    // The host's processors count in the same word, from a separate thread.
    let word = r.there.part(0, 8);
    let host = std::thread::spawn(move || {
        for _ in 0..100_000 {
            word.fetch_add(1 << 32).unwrap();
        }
    });
    let mut outcomes = Vec::new();
    for round in 0..EACH {
        for (n, pair) in pairs.iter_mut().enumerate() {
            let place = data(8, r.lkey, r.here.address() + n as u64 * 8);
            let body = operation(r.there.address(), r.rkey, (1, 0), &[place]);
            r.rig.a.post(pair, ADD, SIGNAL, 0, &body);
        }
        r.rig.settle();
        assert_eq!(r.rig.a.scq.all().len(), pairs.len(), "round {round}");
        outcomes.extend((0..pairs.len()).map(|n| r.here(n * 8) as u32));
    }
    host.join().unwrap();
    let total = EACH * pairs.len();
    assert_eq!(r.there(0), (100_000 << 32) + total as u64);
    // No two operations returned the same value.
    outcomes.sort_unstable();
    assert!(outcomes.into_iter().eq(0..total as u32));
    // Only one of several compare-and-swap operations takes a lock.
    for (n, pair) in pairs.iter_mut().enumerate() {
        let place = data(8, r.lkey, r.here.address() + n as u64 * 8);
        let body = operation(r.there.address() + 8, r.rkey, (n as u64 + 1, 0), &[place]);
        r.rig.a.post(pair, SWAP, SIGNAL, 0, &body);
    }
    r.rig.settle();
    let winners = (0..6).filter(|n| r.here(n * 8) == 0).count();
    assert_eq!(winners, 1);
    assert!((1..=6).contains(&r.there(8)));
}

#[test]
fn no_operation_is_executed_twice_on_a_faulty_link() {
    let schedules = [
        Faults { loss: 0.1, ..Faults::default() },
        Faults { duplicate: 0.3, ..Faults::default() },
        Faults { reorder: 0.3, ..Faults::default() },
        Faults { loss: 0.08, duplicate: 0.1, reorder: 0.1, corrupt: 0.05, ..Faults::default() },
    ];
    let mut repeated = 0;
    for seed in 0..6u64 {
        for (i, faults) in schedules.iter().enumerate() {
            let (mut left, mut right) = CableEnd::pair().unwrap();
            // Of the requests, or of the responses.
            let end = if seed % 2 == 0 { &mut left } else { &mut right };
            end.inject(Faults { seed: seed * 100 + i as u64, ..*faults });
            let how = Rc { mtu: Mtu::B256, timeout: 8, retry: 7, ..Rc::default() };
            let mut r = counting(Rig::over(left, right), how);
            let (mut posted, mut done) = (0, 0);
            let end = r.rig.now + Duration::from_secs(20);
            while done < 90 {
                while posted < 90 && posted - done < 24 {
                    let to = posted as usize % 90 * 8;
                    // Every third operation is an RDMA READ of several packets.
                    match posted % 3 {
                        0 => r.read(2048, 700, 2048, SIGNAL),
                        1 => r.operate(ADD, 0, (1, 0), to, SIGNAL),
                        // As only these operations change it, each swap finds the value of the previous one.
                        _ => r.operate(SWAP, 8, (posted, posted.saturating_sub(3)), to, SIGNAL),
                    }
                    posted += 1;
                }
                assert!(r.rig.now < end, "{done} of 90, schedule {i}, seed {seed}");
                r.rig.settle();
                for (opcode, status) in r.outcomes() {
                    let kind = [READ, ADD, SWAP][done as usize % 3];
                    assert_eq!((opcode, status), (kind, WcStatus::Success), "schedule {i}, seed {seed}");
                    done += 1;
                }
                if done < posted {
                    let next =
                        [&r.rig.a, &r.rig.b].into_iter().filter_map(|h| h.engine.next_deadline(r.rig.now));
                    let now = r.rig.now + Duration::from_micros(10);
                    r.rig.now = next.min().map_or(now, |at| at.max(now));
                }
            }
            assert_eq!(r.there(0), 30, "schedule {i}, seed {seed}");
            for n in 0..30 {
                assert_eq!(r.here((n * 3 + 1) * 8), n as u64, "schedule {i}, seed {seed}");
                let before = if n == 0 { 0 } else { n as u64 * 3 - 1 };
                assert_eq!(r.here((n * 3 + 2) * 8), before, "schedule {i}, seed {seed}");
            }
            repeated += r.rig.b.engine.counters().activity(Activity::Duplicates);
        }
    }
    assert!(repeated > 100, "{repeated} requests came twice");
}

#[test]
fn a_lost_response_is_repeated() {
    let (left, mut near) = CableEnd::pair().unwrap();
    let (mut far, right) = CableEnd::pair().unwrap();
    let how = Rc { timeout: 8, retry: 7, ..Rc::default() };
    let mut r = counting(Rig::over(left, right), how);
    for n in 0..3 {
        r.operate(ADD, 0, (7, 0), 8 + n * 8, SIGNAL);
    }
    // The fabric loses the first five responses.
    let (mut lost, mut done) = (0, Vec::new());
    for _ in 0..10_000 {
        r.rig.settle();
        near.receive(100, |bytes| far.send_with(bytes.len(), |out| out.copy_from_slice(bytes)).unwrap());
        far.receive(100, |bytes| {
            let answer = Packet::parse(bytes).unwrap().bth().opcode == Opcode::RcAtomicAcknowledge;
            if answer && lost < 5 {
                lost += 1;
            } else {
                near.send_with(bytes.len(), |out| out.copy_from_slice(bytes)).unwrap();
            }
        });
        done.extend(r.outcomes());
        if done.len() == 3 {
            break;
        }
        r.rig.now += Duration::from_micros(100);
    }
    assert_eq!(done, [(ADD, WcStatus::Success); 3]);
    assert_eq!((r.there(0), r.here(8), r.here(16), r.here(24)), (21, 0, 7, 14));
    assert!(lost == 5 && r.rig.b.engine.counters().activity(Activity::Duplicates) >= 3);
}

/// A hand-written peer at the other end of the cable, which builds each packet itself.
struct ByHand {
    wire: CableEnd,
    rig: Rig,
    pair: Pair,
    memory: Memory,
    rkey: u32,
    _idle: CableEnd,
}

impl ByHand {
    fn new() -> Self {
        let (wire, theirs) = CableEnd::pair().unwrap();
        let (idle, other) = CableEnd::pair().unwrap();
        let mut rig = Rig::over(theirs, other);
        let pair = rig.a.qp(QpKind::Rc, 16, None, 2);
        rig.a.connect(&pair, (Lid(2), Qpn::new(5)), Rc { mtu: Mtu::B256, ..Rc::default() });
        rig.a.engine.set_remote_operations(pair.qpn, EVERYTHING).unwrap();
        let memory = Memory::new(64);
        let rkey = rig.a.engine.register(memory.address(), memory.host(), ALL).unwrap();
        Self { wire, rig, pair, memory, rkey, _idle: idle }
    }

    /// Sends a request with this PSN that adds one to the word at `at`, and returns the responses.
    fn add(&mut self, psn: u32, at: u64, payload: usize) -> Vec<(Opcode, Psn, Extended)> {
        let bth = Bth {
            opcode: Opcode::RcFetchAdd,
            solicited: false,
            migrated: true,
            pkey: PKey(0xffff),
            fecn: false,
            becn: false,
            dest_qpn: self.pair.qpn,
            ack_request: true,
            psn: Psn::new(psn),
        };
        let address = self.memory.address() + at;
        let extended =
            Extended::Atomic(AtomicEth { address, rkey: Rkey(self.rkey), swap_add: 1, compare: 0 });
        let lrh = Lrh { vl: VirtualLane::new(0), sl: ServiceLevel::new(0), dlid: Lid(1), slid: Lid(2) };
        let headers = Headers { lrh, grh: None, bth, extended };
        let payload = vec![0xab; payload];
        let mut bytes = vec![0; headers.packet_len(payload.len())];
        headers.write_packet(&payload, &mut bytes).unwrap();
        self.wire.send_with(bytes.len(), |out| out.copy_from_slice(&bytes)).unwrap();
        self.rig.settle();
        let mut answers = Vec::new();
        self.wire.receive(100, |bytes| {
            let packet = Packet::parse(bytes).unwrap();
            answers.push((packet.bth().opcode, packet.bth().psn, packet.headers().extended));
        });
        answers.retain(|(opcode, ..)| *opcode == Opcode::RcAtomicAcknowledge);
        answers
    }

    fn found(&mut self, psn: u32, at: u64) -> Option<u64> {
        let answers = self.add(psn, at, 0);
        assert!(answers.len() <= 1);
        answers.first().map(|(_, answered, extended)| {
            assert_eq!(*answered, Psn::new(psn));
            let Extended::AethAtomic(_, value) = extended else { panic!("{extended:?}") };
            *value
        })
    }
}

#[test]
fn the_results_that_may_be_requested_again_are_kept() {
    let mut hand = ByHand::new();
    for n in 0..6 {
        assert_eq!(hand.found(7 + n, 8), Some(n.into()));
    }
    // The last four are kept, in any order and for any number of repetitions; older ones are not, and are not
    // executed again.
    for n in [2, 5, 3, 3, 4, 2] {
        assert_eq!(hand.found(7 + n, 8), Some(n.into()), "{n}");
    }
    for n in [0, 1] {
        assert_eq!(hand.found(7 + n, 8), None, "{n}");
    }
    // A request that was never sent in this form, with the PSN of another one.
    assert_eq!(hand.found(7 + 5, 16), None);
    assert_eq!((number(&hand.memory, 8), number(&hand.memory, 16)), (6, 0));
    assert_eq!(hand.rig.a.drops(DropReason::Unsupported), 3);
    assert_eq!(hand.found(7 + 6, 8), Some(6));
    // A request has no payload.
    assert_eq!(hand.add(7 + 7, 8, 4), []);
    assert_eq!(hand.rig.a.engine.qp_state(hand.pair.qpn).unwrap(), QpState::Err);
    assert_eq!(number(&hand.memory, 8), 7);
}

#[test]
fn exceeding_the_limit_of_the_peer_ends_the_connection() {
    let mut r = counting(Rig::new(), Rc::default());
    // The requester's own limit, which includes RDMA READs, keeps it within the responder's limit.
    for n in 0..40 {
        r.operate(ADD, 0, (1, 0), n * 8, SIGNAL);
        r.read(0, 10, 1024, SIGNAL);
    }
    r.rig.settle();
    assert_eq!((r.outcomes().len(), r.there(0)), (80, 40));
    let more = RemoteOperations { reads_out: 5, ..EVERYTHING };
    r.rig.a.engine.set_remote_operations(r.a.qpn, more).unwrap();
    for n in 0..40 {
        r.operate(ADD, 0, (1, 0), n * 8, SIGNAL);
    }
    r.rig.settle();
    let done = r.outcomes();
    let refused = done.iter().position(|(_, status)| *status != WcStatus::Success).unwrap();
    assert_eq!(done[refused].1, WcStatus::RemoteInvalidRequest);
    assert!(done[refused + 1..].iter().all(|(_, status)| *status == WcStatus::Flushed));
    // A refused request is not executed.
    assert_eq!(r.there(0), 40 + refused as u64);
    assert_eq!(r.events(), [DeviceEvent::QpRequestError(r.b.qpn)]);
}

#[test]
fn invalid_operations_are_refused() {
    type Change = fn(&mut Reading) -> Vec<u8>;
    /// Status, and the event at the other end.
    type Outcome = (WcStatus, Option<fn(Qpn) -> DeviceEvent>);
    fn body(r: &Reading, at: u64) -> Vec<u8> {
        operation(r.there.address() + at, r.rkey, (1, 0), &[data(8, r.lkey, r.here.address())])
    }
    fn to(r: &Reading, here: &[[u8; 16]]) -> Vec<u8> {
        operation(r.there.address(), r.rkey, (1, 0), here)
    }
    fn with_key(r: &mut Reading, access: Access) -> Vec<u8> {
        r.rkey = r.rig.b.engine.register(r.there.address(), r.there.host(), access).unwrap();
        body(r, 0)
    }
    fn at_queue_pair(r: &mut Reading, remote: RemoteOperations) -> Vec<u8> {
        r.rig.b.engine.set_remote_operations(r.b.qpn, remote).unwrap();
        body(r, 0)
    }
    let access: Outcome = (WcStatus::RemoteAccess, Some(DeviceEvent::QpAccessError));
    let invalid: Outcome = (WcStatus::RemoteInvalidRequest, Some(DeviceEvent::QpRequestError));
    let here = |status| (status, None);
    let cases: [(Change, Outcome); 18] = [
        // Not aligned, even where it would also be out of bounds.
        (|r| body(r, 4), invalid),
        (|r| body(r, 4095), invalid),
        (|r| body(r, 4096), access),
        (|r| body(r, u64::MAX - 7 - r.there.address()), access),
        (
            |r| {
                r.rkey ^= 0x100;
                body(r, 0)
            },
            access,
        ),
        (|r| with_key(r, Access { remote_atomic: false, ..ALL }), access),
        (|r| with_key(r, Access { local_write: false, ..ALL }), access),
        (|r| at_queue_pair(r, RemoteOperations { atomic: false, ..EVERYTHING }), invalid),
        (|r| at_queue_pair(r, RemoteOperations { reads_in: 0, ..EVERYTHING }), invalid),
        // Errors on this side.
        (|r| to(r, &[data(4, r.lkey, r.here.address())]), here(WcStatus::LocalLength)),
        (|r| to(r, &[data(16, r.lkey, r.here.address())]), here(WcStatus::LocalLength)),
        (|r| to(r, &[]), here(WcStatus::LocalLength)),
        (|r| to(r, &[data(8, r.lkey ^ 0x100, r.here.address())]), here(WcStatus::LocalProtection)),
        (|r| to(r, &[data(8, r.lkey, r.here.address() + 4092)]), here(WcStatus::LocalProtection)),
        (
            |r| {
                let access = Access { local_write: false, ..Access::LOCAL };
                let key = r.rig.a.engine.register(r.here.address(), r.here.host(), access).unwrap();
                to(r, &[data(8, key, r.here.address())])
            },
            here(WcStatus::LocalProtection),
        ),
        // Inline.
        (|r| to(r, &[data(0x8000_0008, 0, 0)]), here(WcStatus::LocalQpOperation)),
        // No operands.
        (|r| body(r, 0)[..16].to_vec(), here(WcStatus::LocalQpOperation)),
        (
            |r| {
                r.rig.a.engine.set_remote_operations(r.a.qpn, RemoteOperations::default()).unwrap();
                body(r, 0)
            },
            here(WcStatus::LocalQpOperation),
        ),
    ];
    for (n, (change, (status, event))) in cases.into_iter().enumerate() {
        for opcode in [ADD, SWAP] {
            let mut r = counting(Rig::new(), Rc::default());
            r.operate(ADD, 8, (1, 0), 0, SIGNAL);
            r.rig.settle();
            assert_eq!(r.outcomes(), [(ADD, WcStatus::Success)]);
            let body = change(&mut r);
            r.rig.a.post(&mut r.a, opcode, SIGNAL, 0, &body);
            r.operate(ADD, 0, (1, 0), 0, SIGNAL);
            r.rig.settle();
            assert_eq!(r.outcomes(), [(opcode, status), (ADD, WcStatus::Flushed)], "case {n}");
            assert_eq!(r.events(), Vec::from_iter(event.map(|event| event(r.b.qpn))), "case {n}");
            assert_eq!(r.states().0, QpState::Err, "case {n}");
            // Nothing has changed.
            assert_eq!((r.there(0), r.there(8)), (0, 1), "case {n}");
        }
    }
}

#[test]
fn memory_that_is_not_aligned_in_the_host() {
    let mut r = counting(Rig::new(), Rc::default());
    let begin = r.there.address();
    // Aligned by the peer's addresses, but not in host memory.
    r.rkey = r.rig.b.engine.register(begin, r.there.part(4, 64), ALL).unwrap();
    r.operate(ADD, 0, (1, 0), 0, SIGNAL);
    r.rig.settle();
    assert_eq!(r.outcomes(), [(ADD, WcStatus::RemoteOperation)]);
    assert_eq!((r.there(0), r.there(8)), (0, 0));
}

#[test]
fn with_keys_set_by_work_requests() {
    // Rights of the key, ranges of its memory (offset and length), and the result of adding one at byte 16.
    const RIGHT: u8 = 0x40;
    let whole: &[(usize, usize)] = &[(64, 8), (128, 64)];
    let cut: &[(usize, usize)] = &[(64, 20), (4, 64)];
    for (access, pieces, status) in [
        (0x3c | RIGHT, whole, WcStatus::Success),
        // The keys named by the list provide the device's right.
        (RIGHT, whole, WcStatus::Success),
        (0x3c, whole, WcStatus::RemoteAccess),
        // A word split across two ranges cannot be accessed.
        (0x3c | RIGHT, cut, WcStatus::RemoteOperation),
    ] {
        let mut k = Keyed::new();
        let pieces: Vec<_> = pieces.iter().map(|&(at, len)| k.piece(at, len)).collect();
        let umr = Umr::register(3, 0, &pieces);
        k.key = k.tagged(3);
        k.done(k.key, &Umr { access, mask: umr.mask | 1 << 21, ..umr });
        let before = number(&k.there, 136);
        let body = operation(16, k.key, (1, 0), &[data(8, k.here_lkey, k.here.address())]);
        k.rig.a.post(&mut k.a, ADD, SIGNAL, 0, &body);
        k.rig.settle();
        assert_eq!(k.rig.a.scq.all()[0].status, status, "{access:#x}");
        let done = u64::from(status == WcStatus::Success);
        assert_eq!(number(&k.there, 136), before.wrapping_add(done));
        assert_eq!(number(&k.here, 0), before * done);
    }
}

#[test]
fn between_other_operations_and_with_fences_all_keep_their_order() {
    let (left, mut right) = CableEnd::pair().unwrap();
    right.inject(Faults { delay: Duration::from_millis(1), ..Faults::default() });
    let mut r = counting(Rig::over(left, right), Rc { mtu: Mtu::B256, timeout: 14, ..Rc::default() });
    let (sink, key) = r.rig.b.memory(256);
    for round in 0..10u64 {
        r.rig.b.receive(&mut r.b, &[data(64, key, sink.address())]);
        r.here.put(0, &[0xee; 64]);
        // The result is used again, in the memory next to it and in a message. With a fence the result is
        // sent, not the old content.
        r.operate(ADD, 0, (1, 0), 0, SIGNAL);
        let mut write = operation(r.there.address() + 8, r.rkey, (0, 0), &[]);
        write.truncate(16);
        write.extend_from_slice(&data(8, r.lkey, r.here.address()));
        r.rig.a.post(&mut r.a, WRITE, SIGNAL | FENCE, 0, &write);
        r.rig.a.post(&mut r.a, SEND, SIGNAL, 0, &data(8, r.lkey, r.here.address()));
        // An RDMA READ behind an operation sees its effect.
        r.operate(SWAP, 16, (round + 1, round), 16, SIGNAL);
        r.read(16, 600, 32, SIGNAL);
        r.rig.run(Duration::from_millis(20));
        let expected = [ADD, WRITE, SEND, SWAP, READ].map(|opcode| (opcode, WcStatus::Success));
        assert_eq!(r.outcomes(), expected, "round {round}");
        assert_eq!((r.there(0), r.there(8), number(&sink, 0)), (round + 1, round, round));
        assert_eq!((r.here(0), r.here(16), r.there(16), r.here(32)), (round, round, round + 1, round + 1));
        assert_eq!(r.rig.b.rcq.all().len(), 1);
    }
    // Without a fence the old content is sent.
    r.rig.b.receive(&mut r.b, &[data(64, key, sink.address())]);
    r.here.put(0, &[0xee; 8]);
    r.operate(ADD, 0, (1, 0), 0, SIGNAL);
    r.rig.a.post(&mut r.a, SEND, SIGNAL, 0, &data(8, r.lkey, r.here.address()));
    r.rig.run(Duration::from_millis(20));
    assert_eq!(sink.get(0, 8), [0xee; 8]);
}

#[test]
fn within_one_device() {
    // A connection of a device with itself: both ends belong to one device.
    let mut rig = Rig::new();
    let (mut a, b) = (rig.a.qp(QpKind::Rc, 64, None, 1), rig.a.qp(QpKind::Rc, 64, None, 2));
    rig.a.connect(&a, (Lid(1), b.qpn), Rc::default());
    rig.a.connect(&b, (Lid(1), a.qpn), Rc::default());
    for pair in [&a, &b] {
        rig.a.engine.set_remote_operations(pair.qpn, EVERYTHING).unwrap();
    }
    let memory = Memory::new(64);
    let key = rig.a.engine.register(memory.address(), memory.host(), ALL).unwrap();
    for n in 0..200 {
        // The result goes to the adjacent word.
        let place = data(8, key, memory.address() + 8);
        rig.a.post(&mut a, ADD, SIGNAL, 0, &operation(memory.address(), key, (3, 0), &[place]));
        rig.settle();
        assert_eq!((number(&memory, 0), number(&memory, 8)), (n * 3 + 3, n * 3));
    }
}
