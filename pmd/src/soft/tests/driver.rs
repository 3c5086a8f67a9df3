//! Tests of the driver's queues on the device, with counted packet buffers.

use std::sync::Arc;

use ib_wire::{Lid, Mtu, Psn, QKey, Qpn};
use parking_lot::Mutex;

use super::management::{joined, mask_lid};
use super::{Memory, PORT, local, pattern};
use crate::hca::{
    AddressVector, AsyncEvent, Control, PostError, QpEvent, QpFault, QpTransition, QueuesConfig, QueuesId,
    RcConfig, RcSlot, RcToReceive, RcToSend, Source, UdConfig, UdDestination, UdSlot,
};
use crate::mem::packet::{Packet, PacketPool, Stash};
use crate::mlx5::av::Destination;
use crate::mlx5::bus::Bus;
use crate::mlx5::queues::{Events, MlxQueues};
use crate::soft::{SoftBus, SoftHca};

const HEAD: usize = 128;
const ROOM: usize = 4096;
const EACH: usize = HEAD + ROOM;
const BUFFERS: usize = 1500;

struct Store {
    memory: Memory,
    free: Mutex<Vec<usize>>,
}

// SAFETY: memory is reached by copies only, and each buffer has one owner.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

#[derive(Clone)]
pub(super) struct Buffers(Arc<Store>);

impl Buffers {
    pub(super) fn new() -> Self {
        let free = Mutex::new((0..BUFFERS).collect());
        Self(Arc::new(Store { memory: Memory::new(BUFFERS * EACH), free }))
    }

    fn home(&self) -> usize {
        self.0.free.lock().len()
    }

    pub(super) fn chain(&self, bytes: &[u8]) -> Buffer {
        let mut parts: Vec<_> = Vec::new();
        let mut rest = bytes;
        loop {
            let n = rest.len().min(ROOM);
            let at = self.0.free.lock().pop().unwrap();
            self.0.memory.put(at * EACH + HEAD, &rest[..n]);
            parts.push((at, n as u32));
            rest = &rest[n..];
            if rest.is_empty() {
                return Buffer { store: self.clone(), parts };
            }
        }
    }
}

pub(super) struct Buffer {
    store: Buffers,
    parts: Vec<(usize, u32)>,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.parts)
    }
}

impl Buffer {
    fn bytes(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|&(at, n)| self.store.0.memory.get(at * EACH + HEAD, n as usize)).collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.store.0.free.lock().extend(self.parts.iter().map(|p| p.0));
    }
}

impl Packet for Buffer {
    type Pool = Buffers;

    fn segments(&self) -> usize {
        self.parts.len()
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u32)> {
        let base = self.store.0.memory.address();
        self.parts.iter().map(move |&(at, n)| (base + (at * EACH + HEAD) as u64, n))
    }

    fn room(&self) -> (u64, u32) {
        (self.store.0.memory.address() + (self.parts[0].0 * EACH + HEAD) as u64, ROOM as u32)
    }

    fn fill(&mut self, len: u32) {
        self.parts[0].1 = len;
    }

    fn lay(&mut self, at: usize, bytes: &[u8]) -> bool {
        let fits = at + bytes.len() <= ROOM;
        if fits {
            self.store.0.memory.put(self.parts[0].0 * EACH + HEAD + at, bytes);
            self.parts[0].1 = (at + bytes.len()) as u32;
        }
        fits
    }

    fn append(&mut self, mut tail: Self) {
        self.parts.append(&mut tail.parts);
    }

    fn byte_before_data(&self, distance: usize) -> u8 {
        self.store.0.memory.get(self.parts[0].0 * EACH + HEAD - distance, 1)[0]
    }
}

impl PacketPool<Buffer> for Buffers {
    fn room(&self) -> u32 {
        ROOM as u32
    }

    fn take(&mut self, count: usize, into: &mut Stash<Buffer>) -> bool {
        let mut free = self.0.free.lock();
        if free.len() < count {
            return false;
        }
        for _ in 0..count {
            into.push(Buffer { store: self.clone(), parts: vec![(free.pop().unwrap(), 0)] });
        }
        true
    }

    // Like a pool in several regions: each buffer's key is looked up.
    fn lies_within(&self, _start: u64, _len: u64) -> bool {
        false
    }
}

struct Worker {
    hca: SoftHca,
    buffers: Buffers,
    queues: MlxQueues<SoftBus, Buffer>,
    ud: Qpn,
    got: Vec<(Vec<u8>, Qpn, Source)>,
    events: Vec<QpEvent>,
}

/// Registers the buffers with a device. They outlive it in these tests.
pub(super) fn register(hca: &mut SoftHca, buffers: &Buffers) {
    let host = buffers.0.memory.host();
    let base = std::ptr::NonNull::new(host.address() as usize as *mut u8).unwrap();
    // SAFETY: the store outlives the device in these tests.
    unsafe { hca.register_memory(base, host.len()).unwrap() };
}

/// Creates a worker's queues with receives, and its datagram queue pair.
pub(super) fn queues(
    hca: &mut SoftHca,
    buffers: &Buffers,
    id: QueuesId,
) -> (MlxQueues<SoftBus, Buffer>, Qpn) {
    let config = QueuesConfig {
        id,
        ud_recv_depth: 64,
        ud_recv_most: u32::MAX,
        srq_depth: 31,
        srq_message: 65_524,
        srq_limit: 4,
        max_ud: 2,
        likely_ud: 1,
        max_rc: 8,
        max_sends: 1024,
        signal_every: 16,
    };
    let mut queues = hca.queues_for(&config, buffers.clone()).unwrap();
    let ud = hca.ud_for(&UdConfig { queues: id, port: PORT, send_depth: 64 }).unwrap();
    let qpn = ud.qpn();
    queues.insert_datagrams(UD, ud).unwrap();
    bring_ud_up(hca, qpn);
    queues.open_datagrams(UD);
    queues.fill();
    (queues, qpn)
}

fn bring_ud_up(hca: &mut SoftHca, qpn: Qpn) {
    for to in [
        QpTransition::UdToInit { pkey_index: 0, qkey: QKey(0xb1b) },
        QpTransition::UdToReceive,
        QpTransition::UdToSend { sq_psn: Psn::new(0) },
    ] {
        hca.modify_qp(qpn, &to).unwrap();
    }
}

impl Worker {
    fn new(mut hca: SoftHca) -> Self {
        let buffers = Buffers::new();
        register(&mut hca, &buffers);
        let (queues, ud) = queues(&mut hca, &buffers, QueuesId(3));
        Self { ud, hca, buffers, queues, got: Vec::new(), events: Vec::new() }
    }

    fn bring_ud_up(&mut self) {
        bring_ud_up(&mut self.hca, self.ud);
        self.queues.open_datagrams(UD);
    }

    fn connect(&mut self, slot: u16, rc: Rc, dest: (Lid, Qpn)) {
        let qpn = rc.qpn();
        let receive = RcToReceive {
            av: local(dest.0),
            dest_qpn: dest.1,
            rq_psn: Psn::new(9),
            path_mtu: Mtu::B2048,
            min_rnr_timer: 0,
        };
        let send = RcToSend { sq_psn: Psn::new(9), timeout: 14, retry_count: 0, rnr_retry: 0 };
        for to in [
            QpTransition::RcToInit { pkey_index: 0 },
            QpTransition::RcToReceive(receive),
            QpTransition::RcToSend(send),
        ] {
            self.hca.modify_qp(qpn, &to).unwrap();
        }
        self.queues.insert(RcSlot(slot), rc).unwrap();
    }

    fn turn(&mut self) {
        self.queues.ring_all();
        self.queues.bus().turn();
        let mut events = Events::new();
        let got = &mut self.got;
        self.queues.receive(32, |r| got.push((r.buf.bytes(), r.qpn, r.source)), &mut events);
        self.queues.reap(&mut events);
        self.events.extend(events.drain(..));
        self.queues.fill();
    }

    fn end(mut self) -> Buffers {
        self.hca.end_queues(self.queues).unwrap();
        self.buffers
    }
}

pub(super) const UD: UdSlot = UdSlot(0);

fn rc_config(send_depth: u32, passive: bool) -> RcConfig {
    RcConfig { queues: QueuesId(3), port: PORT, beside: UD, send_depth, passive }
}

type Rc = crate::mlx5::rc::RcQp<Buffer>;

fn pair() -> (Worker, Worker) {
    let (a, b) = joined();
    (Worker::new(a), Worker::new(b))
}

fn turns(a: &mut Worker, b: &mut Worker, n: usize) {
    for _ in 0..n {
        a.turn();
        b.turn();
    }
}

#[test]
fn the_destination_lid_is_reported_and_can_be_used_as_a_source() {
    let (a, mut b) = joined();
    mask_lid(&mut b, &a, Lid(4), 2);
    let (mut a, mut b) = (Worker::new(a), Worker::new(b));
    let qkey = Some(QKey(0xb1b));
    for bits in 0..4_u8 {
        let av = local(Lid(4 + u16::from(bits)));
        let to = Destination::new(&UdDestination { av, qpn: a.ud, qkey });
        b.queues.post_ud(UD, &to, b.buffers.chain(b"to one of several")).unwrap();
        turns(&mut a, &mut b, 4);
        let (_, _, Source::Ud(from)) = a.got.pop().unwrap() else { panic!("a datagram") };
        assert_eq!((from.slid, from.dlid_path_bits), (Lid(2), bits));
        let av = AddressVector { src_path_bits: from.dlid_path_bits, ..local(from.slid) };
        let back = Destination::new(&UdDestination { av, qpn: from.qpn, qkey });
        a.queues.post_ud(UD, &back, a.buffers.chain(b"from the same")).unwrap();
        turns(&mut a, &mut b, 4);
        let (_, _, Source::Ud(from)) = b.got.pop().unwrap() else { panic!("a datagram") };
        assert_eq!((from.slid, from.dlid_path_bits), (Lid(4 + u16::from(bits)), 0));
    }
}

#[test]
fn datagrams_and_messages_by_driver_and_device() {
    let (mut a, mut b) = pair();
    let active = a.hca.rc_for(&rc_config(64, false)).unwrap();
    let passive = b.hca.rc_for(&rc_config(1, true)).unwrap();
    let (aq, bq) = (active.qpn(), passive.qpn());
    a.connect(0, active, (Lid(2), bq));
    b.connect(5, passive, (Lid(1), aq));
    let to = Destination::new(&UdDestination { av: local(Lid(2)), qpn: b.ud, qkey: Some(QKey(0xb1b)) });

    let sizes = [0, 1, 44, 2048, 2049, 4096, 4097, 9000, 65_524, 1500];
    for round in 0..60usize {
        let size = sizes[round % sizes.len()];
        a.queues.post_rc(RcSlot(0), a.buffers.chain(&pattern(size, round as u64))).unwrap();
        a.queues.post_ud(UD, &to, a.buffers.chain(&pattern(size.min(4092), 1000 + round as u64))).unwrap();
        turns(&mut a, &mut b, 40);
        let got = std::mem::take(&mut b.got);
        assert_eq!(got.len(), 2, "round {round}: {:?} {:?}", b.hca.counters(), a.events);
        for (bytes, qpn, source) in got {
            match source {
                Source::Rc | Source::RcInvalidated(_) => {
                    assert_eq!(qpn, bq);
                    assert!(bytes == pattern(size, round as u64), "round {round}");
                }
                Source::Ud(from) => {
                    assert_eq!((qpn, from.qpn, from.slid, from.multicast), (b.ud, a.ud, Lid(1), false));
                    assert!(bytes == pattern(size.min(4092), 1000 + round as u64), "round {round}");
                }
            }
        }
    }
    assert!(a.events.is_empty() && b.events.is_empty());

    // The passive end is destroyed as IPoIB does it: error, last entry, drain request, drained, destroyed.
    b.hca.modify_qp(bq, &QpTransition::ToError).unwrap();
    let mut events = std::iter::from_fn(|| b.hca.next_event());
    assert!(events.any(|e| e == AsyncEvent::LastWqeReached(bq)));
    b.queues.drain(RcSlot(5)).unwrap();
    turns(&mut a, &mut b, 4);
    assert!(b.events.contains(&QpEvent { qpn: bq, fault: QpFault::Drained }), "{:?}", b.events);
    let rc = b.queues.remove(RcSlot(5)).unwrap();
    b.hca.end_rc(rc).unwrap();

    // The active end has outstanding sends that are never acknowledged.
    for i in 0..5 {
        a.queues.post_rc(RcSlot(0), a.buffers.chain(&pattern(3000, i))).unwrap();
    }
    turns(&mut a, &mut b, 4);
    assert_eq!(a.queues.outstanding(RcSlot(0)), 5);
    a.hca.modify_qp(aq, &QpTransition::ToError).unwrap();
    turns(&mut a, &mut b, 4);
    assert_eq!(a.queues.outstanding(RcSlot(0)), 0);
    let rc = a.queues.remove(RcSlot(0)).unwrap();
    a.hca.end_rc(rc).unwrap();

    assert_eq!((a.queues.anomalies(), b.queues.anomalies()), Default::default());
    for buffers in [a.end(), b.end()] {
        assert_eq!(buffers.home(), BUFFERS, "buffers are missing");
    }
}

#[test]
fn whatever_is_destroyed_first_every_buffer_goes_home() {
    for order in 0..3 {
        let (mut a, mut b) = pair();
        let config = rc_config(64, false);
        let (ra, rb) = (a.hca.rc_for(&config).unwrap(), b.hca.rc_for(&config).unwrap());
        let (aq, bq) = (ra.qpn(), rb.qpn());
        a.connect(1, ra, (Lid(2), bq));
        b.connect(1, rb, (Lid(1), aq));
        for i in 0..6 {
            a.queues.post_rc(RcSlot(1), a.buffers.chain(&pattern(60_000, i))).unwrap();
        }
        a.turn();
        b.turn();
        // During a message.
        match order {
            0 => {
                let rc = b.queues.remove(RcSlot(1)).unwrap();
                b.hca.end_rc(rc).unwrap();
            }
            1 => drop(b.queues.remove(RcSlot(1))),
            _ => {}
        }
        a.turn();
        b.turn();
        for buffers in [b.end(), a.end()] {
            assert_eq!(buffers.home(), BUFFERS, "order {order}");
        }
    }
}

#[test]
fn a_datagram_queue_pair_comes_back_from_error_with_every_buffer() {
    let (mut a, mut b) = pair();
    let to = Destination::new(&UdDestination { av: local(Lid(2)), qpn: b.ud, qkey: Some(QKey(0xb1b)) });
    for round in 0..5u64 {
        // An amount that leaves the indices in the middle of the rings and the last sends unsignaled.
        for i in 0..37 {
            a.queues.post_ud(UD, &to, a.buffers.chain(&pattern(200, round * 100 + i))).unwrap();
            turns(&mut a, &mut b, 2);
        }
        turns(&mut a, &mut b, 20);
        let got: Vec<_> = b.got.drain(..).map(|(bytes, ..)| bytes).collect();
        assert!(got.iter().zip(0..).all(|(bytes, i)| *bytes == pattern(200, round * 100 + i)));
        assert_eq!(got.len(), 37, "round {round}");
        // Two posts without a doorbell are flushed too.
        for i in 0..2 {
            a.queues.post_ud(UD, &to, a.buffers.chain(&pattern(100, i))).unwrap();
        }
        for end in [&mut a, &mut b] {
            end.hca.modify_qp(end.ud, &QpTransition::ToError).unwrap();
            if round % 2 == 1 {
                // The worker, which has not been notified yet, posts returned buffers again.
                end.turn();
            }
            end.queues.close_datagrams(UD);
            end.hca.modify_qp(end.ud, &QpTransition::ToError).unwrap();
        }
        let refused = a.queues.post_ud(UD, &to, a.buffers.chain(&[1])).unwrap_err();
        assert_eq!(refused.1, PostError::NoConnection);
        drop(refused);
        turns(&mut a, &mut b, 600);
        for end in [&mut a, &mut b] {
            assert_eq!(end.queues.datagrams_outstanding(UD), 0, "round {round}");
            end.hca.modify_qp(end.ud, &QpTransition::ToReset).unwrap();
            end.bring_ud_up();
            end.queues.open_datagrams(UD);
            end.queues.fill();
            end.events.clear();
        }
    }
    assert_eq!((a.queues.anomalies(), b.queues.anomalies()), Default::default());
    for buffers in [a.end(), b.end()] {
        assert_eq!(buffers.home(), BUFFERS, "buffers are missing");
    }
}

#[test]
fn numbers_and_room_run_out_with_an_error() {
    let (mut a, _b) = pair();
    let config = rc_config(1, true);
    let made: Vec<_> = std::iter::from_fn(|| a.hca.rc_for::<Buffer>(&config).ok()).collect();
    // All numbers except those of the management and datagram queue pairs.
    assert!((8000..8192).contains(&made.len()), "{}", made.len());
    assert_eq!(a.hca.rc_for::<Buffer>(&config).map(drop).unwrap_err().to_string(), "out of queue pairs");
    assert!(a.hca.rc_for::<Buffer>(&RcConfig { queues: QueuesId(9), ..config }).is_err());
    let before = made.len();
    for rc in made {
        a.hca.end_rc(rc).unwrap();
    }
    let again: Vec<_> = std::iter::from_fn(|| a.hca.rc_for::<Buffer>(&config).ok()).collect();
    assert_eq!(again.len(), before);
}

#[test]
fn dropped_queues_are_out_of_the_reach_of_other_threads_turns() {
    for kept_elsewhere in [false, true] {
        let (mut a, mut b) = pair();
        let config = rc_config(64, false);
        let (ra, rb) = (a.hca.rc_for(&config).unwrap(), b.hca.rc_for(&config).unwrap());
        let (aq, bq) = (ra.qpn(), rb.qpn());
        a.connect(1, ra, (Lid(2), bq));
        b.connect(1, rb, (Lid(1), aq));
        let to = Destination::new(&UdDestination { av: local(Lid(2)), qpn: b.ud, qkey: Some(QKey(0xb1b)) });
        turns(&mut a, &mut b, 4);
        let engine = b.hca.engine().clone();
        let elsewhere = kept_elsewhere.then(|| b.queues.remove(RcSlot(1)).unwrap());
        // Safe code may do this without the device's knowledge.
        drop(b.queues);
        assert_eq!(b.buffers.home(), BUFFERS);
        let before = b.buffers.0.memory.get(0, BUFFERS * EACH);
        for i in 0..4 {
            a.queues.post_rc(RcSlot(1), a.buffers.chain(&pattern(5000, i))).unwrap();
            a.queues.post_ud(UD, &to, a.buffers.chain(&pattern(2000, 50 + i))).unwrap();
        }
        for _ in 0..20 {
            a.turn();
            engine.lock().step(std::time::Instant::now());
        }
        assert!(
            b.buffers.0.memory.get(0, BUFFERS * EACH) == before,
            "the memory may belong to another packet"
        );
        drop(elsewhere);
    }
}

#[test]
fn four_thousand_active_and_four_thousand_passive_connections_fit_one_worker() {
    const EACH_WAY: u16 = 4000;
    let (mut a, _b) = pair();
    let config = QueuesConfig {
        id: QueuesId(4),
        ud_recv_depth: 512,
        ud_recv_most: u32::MAX,
        srq_depth: 512,
        srq_message: 65_524,
        srq_limit: 128,
        max_ud: 128,
        likely_ud: 1,
        max_rc: 2 * u32::from(EACH_WAY),
        max_sends: 1 << 14,
        signal_every: 16,
    };
    let queues = a.hca.queues_for::<Buffer>(&config, a.buffers.clone()).unwrap();
    let own = a.hca.ring_bytes();
    let mut made = Vec::new();
    let mut bytes = Vec::new();
    for passive in [false, true] {
        let before = a.hca.ring_bytes();
        for _ in 0..EACH_WAY {
            let config =
                RcConfig { queues: QueuesId(4), ..rc_config(if passive { 1 } else { 128 }, passive) };
            made.push(a.hca.rc_for::<Buffer>(&config).unwrap());
        }
        bytes.push((a.hca.ring_bytes() - before) / usize::from(EACH_WAY));
    }
    let mut queues = queues;
    for (slot, rc) in made.into_iter().enumerate() {
        queues.insert(RcSlot(slot as u16), rc).unwrap();
    }
    // A ring and its records for each. The completion queues do not grow with them.
    assert_eq!(bytes, [128 * 64 + 64, 4 * 64 + 64]);
    assert!(own < 8 << 20, "{own} bytes of queues");
    a.hca.end_queues(queues).unwrap();
}
