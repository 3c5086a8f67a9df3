//! Unreliable connections: messages that arrive, messages that are lost, and errors that are not reported.

use ib_wire::packet::{Bth, Extended, Headers, Lrh, Opcode, Packet, Reth};
use ib_wire::{Lid, Mtu, PKey, Psn, Qpn, Rkey};

use super::rig::*;
use crate::cable::{CableEnd, Faults};
use crate::{Access, Activity, DeviceEvent, DropReason, QpKind, RemoteOperations};
use hca::{AsyncEvent, QpState, QpTransition, WcStatus};

const SEND: u8 = 0x0a;
const SEND_IMM: u8 = 0x0b;
const WRITE: u8 = 0x08;
const WRITE_IMM: u8 = 0x09;
const SIGNAL: u8 = 0x08;
const WRITABLE: Access = Access { remote_write: true, ..Access::LOCAL };

fn remote(address: u64, rkey: u32) -> Vec<u8> {
    let mut body = address.to_be_bytes().to_vec();
    body.extend_from_slice(&rkey.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body
}

/// `a` and `b` connected; `a` has data to send, `b` a buffer for each of 16 receives and one to be written
/// to.
struct Joined {
    rig: Rig,
    a: Pair,
    b: Pair,
    from: (Memory, u32),
    into: (Memory, u32),
    place: (Memory, u32),
}

const LEN: usize = 70_000;
const EACH: usize = 20_000;

fn joined(mut rig: Rig, mtu: Mtu) -> Joined {
    let (a, b) = (rig.a.qp(QpKind::Uc, 256, None, 5), rig.b.qp(QpKind::Uc, 16, None, 6));
    let how = Rc { mtu, ..Rc::default() };
    rig.a.connect_uc(&a, (Lid(2), b.qpn), Rc { sq_psn: 0xff_fffe, rq_psn: 3, ..how });
    rig.b.connect_uc(&b, (Lid(1), a.qpn), Rc { sq_psn: 3, rq_psn: 0xff_fffe, ..how });
    let (from, into) = (rig.a.memory(LEN), rig.b.memory(16 * EACH));
    from.0.put(0, &pattern(LEN, 3));
    let memory = Memory::new(LEN);
    let key = rig.b.engine.register(memory.address(), memory.host(), WRITABLE).unwrap();
    Joined { rig, a, b, from, into, place: (memory, key) }
}

impl Joined {
    fn receive(&mut self, n: usize) {
        let at = self.into.0.address() + (n % 16 * EACH) as u64;
        self.rig.b.receive(&mut self.b, &[data(EACH as u32, self.into.1, at)]);
    }

    fn piece(&self, at: usize, len: usize) -> [u8; 16] {
        data(len as u32, self.from.1, self.from.0.address() + at as u64)
    }
}

#[test]
fn messages_of_every_size_at_every_mtu_and_no_packet_back() {
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        let m = mtu.bytes();
        let mut l = joined(Rig::new(), mtu);
        let sizes = [0, 1, m - 1, m, m + 1, 2 * m, 2 * m + 3, 19_999];
        for (n, &size) in sizes.iter().enumerate() {
            let what = format!("{size} bytes by {m}");
            for _ in 0..3 {
                l.receive(n);
            }
            let (third, source) = (size / 3, l.from.0.get(n, size));
            let pieces = [l.piece(n, third), l.piece(n + third, size - third)].concat();
            let place = remote(l.place.0.address() + 9, l.place.1);
            let write = [&place[..], &pieces].concat();
            l.rig.a.post(&mut l.a, SEND, SIGNAL | 2, 0, &pieces);
            l.rig.a.post(&mut l.a, WRITE, 0, 0, &write);
            l.rig.a.post(&mut l.a, SEND_IMM, 0, 0x0102_0304, &pieces);
            l.rig.a.post(&mut l.a, 0, SIGNAL, 0, &[]);
            l.rig.settle();
            assert_eq!(l.place.0.get(9, size), source, "{what}");
            l.place.0.put(0, &vec![0; size + 9]);
            l.rig.a.post(&mut l.a, WRITE_IMM, SIGNAL, 77, &write);
            l.rig.settle();
            assert_eq!((l.into.0.get(n * EACH, size), l.place.0.get(9, size)), (source.clone(), source));
            let sent: Vec<_> = l.rig.a.scq.all().iter().map(|w| (w.send_opcode, w.status, w.bytes)).collect();
            let (ok, bytes) = (WcStatus::Success, size as u32);
            assert_eq!(sent, [(SEND, ok, bytes), (0, ok, 0), (WRITE_IMM, ok, bytes)], "{what}");
            let got = l.rig.b.rcq.all();
            let received: Vec<_> = got.iter().map(|w| (w.opcode, w.imm, w.bytes, w.solicited)).collect();
            let expected =
                [(RESP_SEND, 0, bytes, true), (RESP_IMM, 0x0102_0304, bytes, false), (1, 77, bytes, false)];
            assert_eq!(received, expected, "{what}");
            assert!(got.iter().all(|w| (w.source, w.slid, w.user_index) == (l.a.qpn.get(), 1, 6)));
        }
        assert_eq!(l.rig.b.engine.counters().activity(Activity::Sent), 0);
    }
}

#[test]
fn within_one_device() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (rig.a.qp(QpKind::Uc, 64, None, 5), rig.a.qp(QpKind::Uc, 64, None, 6));
    rig.a.connect_uc(&a, (Lid(1), b.qpn), Rc::default());
    rig.a.connect_uc(&b, (Lid(1), a.qpn), Rc::default());
    let (m, key) = rig.a.memory(20_000);
    m.put(0, &pattern(9000, 1));
    rig.a.receive(&mut b, &[data(10_000, key, m.address() + 10_000)]);
    rig.a.send(&mut a, &[data(9000, key, m.address())]);
    rig.settle();
    assert_eq!((rig.a.scq.all().len(), rig.a.rcq.all().len()), (1, 1));
    assert_eq!(m.get(10_000, 9000), pattern(9000, 1));
}

/// Messages arrive complete and in order on any link; lost ones are not noticed.
#[test]
fn messages_arrive_whole_or_not_at_all() {
    for (seed, faults) in [
        Faults { loss: 0.05, ..Faults::default() },
        Faults { reorder: 0.1, ..Faults::default() },
        Faults { corrupt: 0.05, ..Faults::default() },
        Faults { loss: 0.03, duplicate: 0.1, reorder: 0.05, corrupt: 0.03, ..Faults::default() },
    ]
    .into_iter()
    .enumerate()
    {
        let (mut left, right) = CableEnd::pair().unwrap();
        left.inject(Faults { seed: seed as u64, ..faults });
        let mut l = joined(Rig::over(left, right), Mtu::B256);
        (0..16).for_each(|n| l.receive(n));
        let (mut posted, mut arrived) = (16, 0);
        for round in 0..300 {
            let len = 1 + round * 37 % 4000;
            let piece = l.piece(round, len);
            l.rig.a.post(&mut l.a, SEND_IMM, SIGNAL, round as u32, &piece);
            l.rig.settle();
            assert_eq!(l.rig.a.scq.all().iter().map(|w| w.status).collect::<Vec<_>>(), [WcStatus::Success]);
            for got in l.rig.b.rcq.all() {
                let sent = got.imm as usize;
                assert_eq!((got.opcode, got.bytes as usize), (RESP_IMM, 1 + sent * 37 % 4000));
                let here = l.into.0.get(usize::from(got.counter) % 16 * EACH, got.bytes as usize);
                assert!(here == l.from.0.get(sent, got.bytes as usize), "message {sent} of schedule {seed}");
                assert_eq!(usize::from(got.counter), posted - 16, "receives are consumed in order");
                l.receive(posted);
                posted += 1;
                arrived += 1;
            }
        }
        assert!((60..300).contains(&arrived), "{arrived} of schedule {seed}");
        for (host, qp) in [(&l.rig.a, &l.a), (&l.rig.b, &l.b)] {
            assert_eq!(host.engine.qp_state(qp.qpn).unwrap(), QpState::Rts);
        }
    }
}

/// A connection whose peer is this test.
struct Wire {
    rig: Rig,
    cable: CableEnd,
    qp: Pair,
    srq: Option<SharedQueue>,
    place: (Memory, u32),
    psn: u32,
}

const MTU: usize = 256;

impl Wire {
    fn new(shared: bool) -> Self {
        let (cable, theirs) = CableEnd::pair().unwrap();
        let (_idle, other) = CableEnd::pair().unwrap();
        let mut rig = Rig::over(theirs, other);
        let srq = shared.then(|| SharedQueue::new(&mut rig.a.engine, 8, 600, 600));
        let qp = rig.a.qp(QpKind::Uc, 16, srq.as_ref().map(|srq| srq.number), 2);
        rig.a.connect_uc(&qp, (Lid(2), Qpn::new(5)), Rc { mtu: Mtu::B256, ..Rc::default() });
        let memory = Memory::new(4096);
        let key = rig.a.engine.register(memory.address(), memory.host(), WRITABLE).unwrap();
        Self { rig, cable, qp, srq, place: (memory, key), psn: 7 }
    }

    fn receives(&mut self, n: usize) {
        for _ in 0..n {
            match &mut self.srq {
                Some(srq) => srq.post(),
                None => {
                    let piece = data(600, self.place.1, self.place.0.address() + 1024);
                    self.rig.a.receive(&mut self.qp, &[piece]);
                }
            }
        }
    }

    /// Sends a packet with the next PSN.
    fn packet(&mut self, opcode: Opcode, extended: Extended, payload: &[u8]) {
        let headers = Headers {
            lrh: Lrh { dlid: Lid(1), slid: Lid(2), ..Lrh::default() },
            grh: None,
            bth: Bth {
                opcode,
                solicited: false,
                migrated: true,
                pkey: PKey::DEFAULT,
                fecn: false,
                becn: false,
                dest_qpn: self.qp.qpn,
                ack_request: false,
                psn: Psn::new(self.psn),
            },
            extended,
        };
        self.psn += 1;
        let mut bytes = vec![0; headers.packet_len(payload.len())];
        headers.write_packet(payload, &mut bytes).unwrap();
        self.cable.send_with(bytes.len(), |out| out.copy_from_slice(&bytes)).unwrap();
        for _ in 0..3 {
            self.rig.a.engine.step(self.rig.now);
        }
        assert_eq!(self.cable.receive(8, |_| ()), 0, "nothing comes back");
    }

    fn send(&mut self, opcode: Opcode, len: usize) {
        self.packet(opcode, Extended::Bare, &vec![opcode.to_byte(); len]);
    }

    fn reth(&self, at: u64, length: u32) -> Extended {
        let address = self.place.0.address() + at;
        Extended::Reth(Reth { address, rkey: Rkey(self.place.1), length })
    }

    /// Opcode, counter and bytes of the messages since the last call.
    fn arrived(&mut self) -> Vec<(u8, u16, u32)> {
        self.rig.a.rcq.all().iter().map(|w| (w.opcode, w.counter, w.bytes)).collect()
    }

    fn only(&mut self) {
        self.send(Opcode::UcSendOnly, 10);
    }

    /// Checks that it continues normally, and that drops were counted for these reasons.
    fn unharmed(&mut self, drops: &[(DropReason, u64)]) {
        assert_eq!(self.rig.a.engine.qp_state(self.qp.qpn).unwrap(), QpState::Rts);
        for reason in DropReason::ALL {
            let expected = drops.iter().find(|(r, _)| *r == reason).map_or(0, |(_, n)| *n);
            assert_eq!(self.rig.a.drops(reason), expected, "{}", reason.name());
        }
    }
}

#[test]
fn a_lost_packet_costs_its_message_and_the_receive_takes_the_next() {
    use Opcode::{UcSendFirst as F, UcSendLast as L, UcSendMiddle as M, UcSendOnly as O};
    // Each step: a packet, or a gap. The number of its packets that are dropped, and the sizes of the
    // messages that arrive.
    type Step = Option<(Opcode, usize)>;
    const GAP: Step = None;
    let cases: [(&[Step], u64, &[u32]); 10] = [
        (&[Some((F, MTU)), Some((M, MTU)), Some((L, 3))], 0, &[515]),
        (&[Some((F, MTU)), GAP, Some((M, MTU)), Some((L, 3)), Some((O, 9))], 2, &[9]),
        (&[Some((F, MTU)), Some((M, MTU)), GAP, Some((O, 9))], 0, &[9]),
        (&[Some((F, MTU)), GAP, Some((L, 3)), Some((F, MTU)), Some((L, 4))], 1, &[260]),
        (&[GAP, Some((M, MTU)), Some((L, 3)), Some((O, 0))], 2, &[0]),
        (&[GAP, GAP, Some((O, 1)), GAP, Some((O, 2))], 0, &[1, 2]),
        (&[Some((F, MTU)), Some((F, MTU)), Some((L, 1))], 0, &[257]),
        (&[Some((F, MTU)), Some((O, 5)), Some((L, 1))], 1, &[5]),
        (&[Some((O, 5)), Some((L, 1)), Some((L, 1)), Some((O, 6))], 2, &[5, 6]),
        (&[Some((F, MTU)), Some((L, 1)), Some((L, 1)), Some((O, 6))], 1, &[257, 6]),
    ];
    for shared in [false, true] {
        for (n, (steps, dropped, sizes)) in cases.iter().enumerate() {
            let mut w = Wire::new(shared);
            w.receives(4);
            for step in *steps {
                match step {
                    Some((opcode, len)) => w.send(*opcode, *len),
                    None => w.psn += 1,
                }
            }
            let expected: Vec<_> =
                sizes.iter().enumerate().map(|(n, &len)| (RESP_SEND, n as u16, len)).collect();
            assert_eq!(w.arrived(), expected, "case {n}");
            w.unharmed(&[(DropReason::BrokenMessage, *dropped)]);
        }
    }
}

#[test]
fn a_part_of_another_message_is_none_of_this_one() {
    let mut w = Wire::new(false);
    w.receives(4);
    w.send(Opcode::UcSendFirst, MTU);
    w.send(Opcode::UcWriteMiddle, MTU);
    w.send(Opcode::UcSendLast, 1);
    let reth = w.reth(0, 300);
    w.packet(Opcode::UcWriteFirst, reth, &[1; MTU]);
    w.send(Opcode::UcSendLast, 44);
    w.send(Opcode::UcWriteLast, 44);
    w.only();
    assert_eq!(w.arrived(), [(RESP_SEND, 0, 10)]);
    w.unharmed(&[(DropReason::BrokenMessage, 4)]);
}

#[test]
fn errors_in_a_message_are_not_reported() {
    let mut w = Wire::new(false);
    // No receive; later packets of the message have none either.
    w.send(Opcode::UcSendFirst, MTU);
    w.send(Opcode::UcSendLast, 1);
    w.only();
    w.receives(2);
    // Longer than the receive, in one packet of three.
    w.send(Opcode::UcSendFirst, MTU);
    w.send(Opcode::UcSendMiddle, MTU);
    w.send(Opcode::UcSendLast, 89);
    // Invalid packet lengths.
    w.send(Opcode::UcSendFirst, MTU - 1);
    w.send(Opcode::UcSendOnly, MTU + 1);
    w.send(Opcode::UcSendFirst, MTU);
    w.send(Opcode::UcSendLast, 0);
    // Opcodes of other kinds of connections.
    w.send(Opcode::RcSendOnly, 1);
    w.send(Opcode::Other(0x2c), 16);
    w.only();
    assert_eq!(w.arrived(), [(RESP_SEND, 0, 10)], "the receive of all of them");
    w.unharmed(&[
        (DropReason::NoReceive, 2),
        (DropReason::BrokenMessage, 1),
        (DropReason::ReceiveTooShort, 1),
        (DropReason::Malformed, 3),
        (DropReason::Transport, 1),
        (DropReason::Unsupported, 1),
    ]);
    let events: Vec<_> = std::iter::from_fn(|| w.rig.a.engine.next_event()).collect();
    assert!(matches!(events[..], [DeviceEvent::Async(AsyncEvent::PortActive(_))]), "{events:?}");
}

#[test]
fn writes_go_where_the_key_allows_or_nowhere() {
    let mut w = Wire::new(false);
    let (good, short) = (w.reth(0, 300), w.reth(0, 10));
    let wrong = |address, rkey, length| Extended::Reth(Reth { address, rkey: Rkey(rkey), length });
    let (at, key) = (w.place.0.address(), w.place.1);
    // Another key, past the end of the region in a later packet, longer and shorter than announced.
    let bad = [wrong(at, key ^ 1, 10), wrong(at + 4090, key, 10)];
    for reth in bad {
        w.packet(Opcode::UcWriteOnly, reth, &[9; 10]);
    }
    let late = wrong(at + 3900, key, 300);
    w.packet(Opcode::UcWriteFirst, late, &[9; MTU]);
    w.send(Opcode::UcWriteLast, 44);
    w.packet(Opcode::UcWriteOnly, short, &[9; 11]);
    w.packet(Opcode::UcWriteOnly, short, &[9; 9]);
    assert_eq!(w.place.0.get(0, 4096), [0; 4096]);
    // Immediate data without a receive: nothing of the last packet is written.
    w.packet(Opcode::UcWriteFirst, good, &[7; MTU]);
    w.packet(Opcode::UcWriteLastImmediate, Extended::Immediate([0, 0, 0, 1]), &[7; 44]);
    assert_eq!(w.place.0.get(0, 300), [vec![7; MTU], vec![0; 44]].concat());
    assert_eq!(w.arrived(), []);
    // With a receive; and a write of zero bytes names no memory.
    w.receives(2);
    w.packet(Opcode::UcWriteFirst, good, &[8; MTU]);
    w.packet(Opcode::UcWriteLastImmediate, Extended::Immediate([0, 0, 0, 1]), &[8; 44]);
    let nothing = Reth { address: 1, rkey: Rkey(0), length: 0 };
    w.packet(Opcode::UcWriteOnlyImmediate, Extended::RethImmediate(nothing, [0; 4]), &[]);
    assert_eq!(w.place.0.get(0, 300), [8; 300]);
    assert_eq!(w.arrived(), [(1, 0, 300), (1, 1, 0)]);
    w.unharmed(&[
        (DropReason::RemoteAccess, 3),
        (DropReason::BrokenMessage, 1),
        (DropReason::Malformed, 2),
        (DropReason::NoReceive, 1),
    ]);
    // The queue pair does not permit it.
    let none = RemoteOperations { write: false, ..RemoteOperations::default() };
    w.rig.a.engine.set_remote_operations(w.qp.qpn, none).unwrap();
    w.packet(Opcode::UcWriteOnly, short, &[5; 10]);
    assert_eq!((w.place.0.get(0, 10), w.rig.a.drops(DropReason::RemoteAccess)), (vec![8; 10], 4));
}

#[test]
fn packets_as_they_are_on_the_wire() {
    let mut w = Wire::new(false);
    let (m, key) = w.rig.a.memory(600);
    m.put(0, &pattern(600, 8));
    let piece = data(600, key, m.address());
    w.rig.a.post(&mut w.qp, SEND_IMM, SIGNAL | 2, 0xaabb_ccdd, &piece);
    let write = [&remote(0x1122, 0x33)[..], &piece].concat();
    w.rig.a.post(&mut w.qp, WRITE_IMM, SIGNAL, 0x0102_0304, &write);
    w.rig.settle();
    let mut seen = Vec::new();
    let mut bytes = Vec::new();
    w.cable.receive(16, |packet| {
        let packet = Packet::parse(packet).unwrap();
        let bth = packet.bth();
        assert!(!bth.ack_request && bth.dest_qpn == Qpn::new(5));
        seen.push((bth.opcode.to_byte(), bth.psn.get(), bth.solicited, *packet.extended()));
        bytes.extend_from_slice(packet.payload());
    });
    let reth = Reth { address: 0x1122, rkey: Rkey(0x33), length: 600 };
    let expected = [
        (0x20, 7, false, Extended::Bare),
        (0x21, 8, false, Extended::Bare),
        (0x23, 9, true, Extended::Immediate([0xaa, 0xbb, 0xcc, 0xdd])),
        (0x26, 10, false, Extended::Reth(reth)),
        (0x27, 11, false, Extended::Bare),
        (0x29, 12, false, Extended::Immediate([1, 2, 3, 4])),
    ];
    assert_eq!(seen, expected);
    assert!(bytes == [pattern(600, 8), pattern(600, 8)].concat());
}

#[test]
fn a_send_that_fails_stops_sends_only() {
    let mut l = joined(Rig::new(), Mtu::B256);
    (0..3).for_each(|n| l.receive(n));
    let (good, foreign) = (l.piece(0, 300), data(10, l.from.1 ^ 1, l.from.0.address()));
    l.rig.a.send(&mut l.a, &[good]);
    // It fails in its second packet: the first one was sent.
    l.rig.a.send(&mut l.a, &[good, foreign]);
    l.rig.a.post(&mut l.a, SEND, 0, 0, &good);
    l.rig.settle();
    let done = |l: &mut Joined| l.rig.a.scq.all().iter().map(|w| (w.counter, w.status)).collect::<Vec<_>>();
    let expected = [(0, WcStatus::Success), (1, WcStatus::LocalProtection), (2, WcStatus::Flushed)];
    assert_eq!(done(&mut l), expected);
    assert_eq!(l.rig.a.engine.qp_state(l.a.qpn).unwrap(), QpState::Sqe);
    // Requests posted to it are flushed; packets for it arrive.
    l.rig.a.send(&mut l.a, &[good]);
    let (here, there) = (l.rig.a.memory(64), l.rig.b.memory(64));
    l.rig.a.receive(&mut l.a, &[data(64, here.1, here.0.address())]);
    l.rig.b.send(&mut l.b, &[data(9, there.1, there.0.address())]);
    l.rig.settle();
    assert_eq!((l.rig.a.rcq.all().len(), done(&mut l)), (1, vec![(3, WcStatus::Flushed)]));
    l.rig.a.engine.modify_qp(l.a.qpn, &QpTransition::RecoverSend).unwrap();
    l.rig.a.send(&mut l.a, &[good]);
    l.rig.settle();
    assert_eq!(done(&mut l), [(4, WcStatus::Success)]);
    assert_eq!(l.rig.b.rcq.all().len(), 2, "the complete messages");
    // Reads and atomics need reliable connections.
    l.rig.a.post(&mut l.a, 0x10, SIGNAL, 0, &[&remote(0, 0)[..], &good].concat());
    l.rig.settle();
    assert_eq!(done(&mut l), [(5, WcStatus::LocalQpOperation)]);
}

#[test]
fn a_receive_that_cannot_be_written_to_ends_the_connection() {
    let mut l = joined(Rig::new(), Mtu::B256);
    l.rig.b.receive(&mut l.b, &[data(600, l.into.1 ^ 1, l.into.0.address())]);
    l.receive(0);
    let piece = l.piece(0, 300);
    l.rig.a.send(&mut l.a, &[piece]);
    l.rig.settle();
    let completed: Vec<_> = l.rig.b.rcq.all().iter().map(|w| (w.counter, w.status)).collect();
    assert_eq!(completed, [(0, WcStatus::LocalProtection), (1, WcStatus::Flushed)]);
    assert_eq!(l.rig.b.engine.qp_state(l.b.qpn).unwrap(), QpState::Err);
    assert_eq!(l.rig.a.scq.all()[0].status, WcStatus::Success);
}
