//! Armed completion queues, and scattered memory.

use std::time::{Duration, Instant};

use ib_wire::{Lid, Mtu, Qpn};

use super::rig::{CQ, Host, Memory, PORT, Pair, Rc, Rig, To, data, pattern};
use crate::cable::{CableEnd, CableUrl};
use crate::engine::Engine;
use crate::{Access, MemoryPieces, QpKind};

fn awake(engine: &mut Engine) -> Vec<u32> {
    std::iter::from_fn(|| engine.next_completion_event()).collect()
}

/// A sends datagrams to B.
pub(super) struct Datagrams {
    pub(super) rig: Rig,
    tx: Pair,
    pub(super) rx: Pair,
    to: To,
    from: (Memory, u32),
    into: (Memory, u32),
}

impl Datagrams {
    pub(super) fn new() -> Self {
        let mut rig = Rig::new();
        let (tx, rx) = (rig.a.ud(3, 0), rig.b.ud(3, 0));
        let to = To { lid: Lid(2), qpn: rx.qpn, qkey: 3, grh: None };
        let (from, into) = (rig.a.memory(64), rig.b.memory(4096));
        Self { rig, tx, rx, to, from, into }
    }

    pub(super) fn pass(&mut self, solicited: bool) {
        self.rig.b.receive(&mut self.rx, &[data(4096, self.into.1, self.into.0.address())]);
        let body = [&self.to.bytes()[..], &data(10, self.from.1, self.from.0.address())].concat();
        self.rig.a.post(&mut self.tx, 0x0a, 0x08 | if solicited { 0x02 } else { 0 }, 0, &body);
        self.rig.settle();
    }

    pub(super) fn arm(&mut self, consumer: u32, solicited: bool) {
        self.rig.b.engine.arm_cq(self.rig.b.rcq.number, consumer, solicited).unwrap();
    }

    pub(super) fn has_event(&mut self) -> bool {
        match awake(&mut self.rig.b.engine)[..] {
            [] => false,
            [number] => number == self.rig.b.rcq.number,
            _ => panic!("two events"),
        }
    }
}

#[test]
fn an_armed_queue_raises_one_event() {
    let mut d = Datagrams::new();
    d.pass(false);
    assert!(!d.has_event(), "it is not armed");
    assert_eq!(d.rig.b.rcq.all().len(), 1);
    d.arm(1, false);
    assert!(!d.has_event());
    d.pass(false);
    d.pass(false);
    assert!(d.has_event());
    d.pass(false);
    assert!(!d.has_event(), "one event for each time it is armed");
}

#[test]
fn a_completion_before_arming_raises_an_event_at_once() {
    let mut d = Datagrams::new();
    d.pass(false);
    d.pass(false);
    d.arm(2, false);
    assert!(!d.has_event(), "the host has seen both");
    d.arm(1, false);
    assert!(d.has_event());
    // Armed twice, fetched once.
    d.arm(0, false);
    d.arm(0, false);
    assert!(d.has_event());
}

#[test]
fn solicited_completions_and_failures_alone() {
    let mut d = Datagrams::new();
    d.arm(0, true);
    d.pass(false);
    assert!(!d.has_event());
    d.pass(true);
    assert!(d.has_event());
    d.pass(false);
    d.arm(2, true);
    assert!(!d.has_event(), "the third is not solicited");
    d.arm(1, true);
    assert!(d.has_event(), "the second is");
    // A receive that fails.
    d.arm(3, true);
    d.rig.b.receive(&mut d.rx, &[data(4096, d.into.1, d.into.0.address())]);
    d.rig.b.engine.modify_qp(d.rx.qpn, &hca::QpTransition::ToError).unwrap();
    assert!(d.has_event());
}

#[test]
fn arming_works_across_wraps_of_the_ring_and_of_24_bits() {
    let mut d = Datagrams::new();
    for n in 0..CQ as u32 + 3 {
        d.arm(n & 0xff_ffff, false);
        assert!(!d.has_event());
        d.pass(false);
        assert!(d.has_event());
        assert_eq!((d.rig.a.scq.all().len(), d.rig.b.rcq.all().len()), (1, 1));
    }
    // An impossible index raises no event and does no harm.
    d.arm(0x00ff_f000, false);
    d.arm(0x0080_0000, true);
    assert!(!d.has_event());
}

#[test]
fn a_destroyed_queue_raises_no_event() {
    let mut host = Host::new(1);
    let queue = super::rig::Queue::cq(&mut host.engine, 4);
    assert!(host.engine.arm_cq(queue.number, 0xff_ffff, false).is_ok());
    host.engine.destroy_cq(queue.number).unwrap();
    assert!(awake(&mut host.engine).is_empty());
    assert!(host.engine.arm_cq(queue.number, 0, false).is_err());
    assert!(host.engine.arm_cq(0, 0, false).is_err());
    assert!(host.engine.arm_cq(u32::MAX, 0, false).is_err());
}

/// `len` bytes as pages of 64 in reverse order, with access in address order.
struct Scattered {
    memory: Memory,
    pages: usize,
}

impl Scattered {
    fn new(len: usize) -> (Self, MemoryPieces) {
        let memory = Memory::new(len);
        let pages = len / 64;
        let list = (0..pages).map(|n| (n as u64 * 64, memory.part((pages - 1 - n) * 64, 64)));
        let pieces = MemoryPieces::new(list).unwrap();
        (Self { memory, pages }, pieces)
    }

    fn put(&self, bytes: &[u8]) {
        for (n, page) in bytes.chunks(64).enumerate() {
            self.memory.put((self.pages - 1 - n) * 64, page);
        }
    }

    fn get(&self, len: usize) -> Vec<u8> {
        let mut out: Vec<u8> =
            (0..self.pages).flat_map(|n| self.memory.get((self.pages - 1 - n) * 64, 64)).collect();
        out.truncate(len);
        out
    }
}

#[test]
fn a_datagram_from_pages_to_pages() {
    let mut d = Datagrams::new();
    let (from, pieces) = Scattered::new(1024);
    from.put(&pattern(1024, 5));
    let key = d.rig.a.engine.register(0x1000, pieces, Access::LOCAL).unwrap();
    let (into, pieces) = Scattered::new(2048);
    let rkey = d.rig.b.engine.register_tagged(0x5a, 0x7f_0000, pieces, Access::LOCAL).unwrap();
    assert_eq!(rkey as u8, 0x5a);
    d.rig.b.receive(&mut d.rx, &[data(50, rkey, 0x7f_0000), data(1990, rkey, 0x7f_0032)]);
    d.rig.a.send_ud(&mut d.tx, &d.to, &[data(333, key, 0x1000 + 7), data(600, key, 0x1000 + 400)]);
    d.rig.settle();
    let sent = pattern(1024, 5);
    assert_eq!(d.rig.b.rcq.all().iter().map(|w| w.bytes).collect::<Vec<_>>(), [40 + 933]);
    assert_eq!(into.get(973)[40..], [&sent[7..340], &sent[400..1000]].concat());
    // Past the end.
    d.rig.a.send_ud(&mut d.tx, &d.to, &[data(100, key, 0x1000 + 925)]);
    d.rig.settle();
    let last = d.rig.a.scq.all().pop().unwrap();
    assert_eq!(last.status, hca::WcStatus::LocalProtection);
}

#[test]
fn a_hole_is_not_accessible() {
    let mut d = Datagrams::new();
    let memory = Memory::new(256);
    let pieces = || MemoryPieces::new([(0, memory.part(0, 64)), (128, memory.part(64, 64))]).unwrap();
    let key = d.rig.a.engine.register(0, pieces(), Access::LOCAL).unwrap();
    let mut status = |at: u64, len: u32| {
        d.rig.a.send_ud(&mut d.tx, &d.to, &[data(len, key, at)]);
        d.rig.settle();
        let status = d.rig.a.scq.all().pop().unwrap().status;
        // Only a failed send requires recovery.
        let _ = d.rig.a.engine.modify_qp(d.tx.qpn, &hca::QpTransition::RecoverSend);
        status
    };
    assert_eq!(status(0, 64), hca::WcStatus::Success);
    assert_eq!(status(128, 64), hca::WcStatus::Success);
    for (at, len) in [(0, 65), (63, 2), (64, 1), (127, 2), (100, 10), (128, 65), (192, 1), (0, 192)] {
        assert_eq!(status(at, len), hca::WcStatus::LocalProtection, "{len} bytes at {at}");
    }
    d.rig.a.engine.replace_memory(key, memory.part(0, 256)).unwrap();
    assert!(d.rig.a.engine.replace_memory(key + 1, pieces()).is_err());
    d.rig.a.send_ud(&mut d.tx, &d.to, &[data(192, key, 0)]);
    d.rig.settle();
    assert_eq!(d.rig.a.scq.all().pop().unwrap().status, hca::WcStatus::Success);
}

#[test]
fn unordered_ranges_are_refused() {
    let m = Memory::new(256);
    let refused = |list: Vec<(u64, crate::HostMemory)>| MemoryPieces::new(list).is_none();
    assert!(refused(vec![(64, m.part(0, 64)), (0, m.part(64, 64))]));
    assert!(refused(vec![(0, m.part(0, 64)), (63, m.part(64, 64))]));
    assert!(refused(vec![(u64::MAX - 3, m.part(0, 64))]));
    assert!(!refused(vec![]));
    // Adjacent ranges are merged.
    let pieces = MemoryPieces::new((0..4).map(|n| (n * 64, m.part(n as usize * 64, 64)))).unwrap();
    assert_eq!(crate::RegionMemory::from(pieces).first(10, 200).map(|m| m.len()), Some(200));
}

#[test]
fn keys_with_one_tag_differ() {
    let mut d = Datagrams::new();
    let keys: Vec<_> = (0..3)
        .map(|_| d.rig.a.engine.register_tagged(9, 0, d.from.0.host(), Access::LOCAL).unwrap())
        .collect();
    assert!(keys.iter().all(|key| *key as u8 == 9) && keys[0] != keys[1] && keys[1] != keys[2]);
    for key in keys {
        d.rig.a.engine.deregister(key).unwrap();
    }
}

#[test]
fn a_device_with_work_or_an_expired_deadline_prevents_sleep() {
    const CALM: Duration = Duration::from_micros(100);
    let path = std::env::temp_dir().join(format!("ib-engine-rest-{}.sock", std::process::id()));
    let url: CableUrl = format!("shm:{}", path.display()).parse().unwrap();
    let mut other = CableEnd::listen(&url).unwrap();
    let mut host = Host::new(1);
    host.engine.set_cable(PORT, Some(CableEnd::connect(&url).unwrap())).unwrap();
    let mut now = Instant::now();
    while !other.is_up() {
        now += CALM;
        host.engine.step(now);
        other.poll(now);
    }
    host.engine.activate(PORT, Lid(1), Mtu::B4096).unwrap();
    let mut pair = host.qp(QpKind::Rc, 64, None, 0);
    host.connect(&pair, (Lid(2), Qpn::new(77)), Rc::default());
    let settle = |host: &mut Host, now: &mut Instant| {
        while host.engine.step(*now) {}
        *now += CALM;
    };
    settle(&mut host, &mut now);
    assert!(host.engine.rest(now, |_| {}));
    host.engine.ring(pair.qpn);
    assert!(!host.engine.rest(now, |_| {}), "a queue pair is ready");
    settle(&mut host, &mut now);
    assert!(host.engine.rest(now, |_| {}));
    let mut doorbells = host.engine.attach_doorbells();
    doorbells.post([0; 8]);
    assert!(!host.engine.rest(now, |_| {}), "a doorbell was rung");
    settle(&mut host, &mut now);
    // The peer does not answer.
    let (memory, key) = host.memory(64);
    host.post(&mut pair, 0x0a, 0x08, 0, &data(10, key, memory.address()));
    settle(&mut host, &mut now);
    let deadline = host.engine.next_deadline(now).unwrap();
    assert!(deadline > now && host.engine.rest(now, |_| {}));
    assert!(!host.engine.rest(deadline, |_| {}), "a retransmission is due");
}

#[test]
fn sleep_returns_its_maximum_duration() {
    const CALM: Duration = Duration::from_micros(100);
    const LAST_RETRY: Duration = Duration::from_millis(500);
    const DELAY: Duration = Duration::from_millis(30);
    let path = std::env::temp_dir().join(format!("ib-engine-sleep-{}.sock", std::process::id()));
    let url = |faults: &str| -> CableUrl { format!("shm:{}{faults}", path.display()).parse().unwrap() };
    let sleep = |host: &mut Host, now| {
        let mut wakers = 0;
        (host.engine.sleep(now, |_| wakers += 1), wakers)
    };
    let mut host = Host::new(1);
    let mut now = Instant::now();
    assert_eq!(sleep(&mut host, now), (Some(Duration::MAX), 0), "without a cable");
    // No listener: it dials again, at increasing intervals.
    host.engine.set_cable(PORT, Some(CableEnd::connect(&url("?delay=30ms")).unwrap())).unwrap();
    let mut sleeps = 0;
    let begin = now;
    while now - begin < Duration::from_secs(10) {
        host.engine.step(now);
        let (pause, wakers) = sleep(&mut host, now);
        assert!(pause.is_some_and(|pause| pause <= LAST_RETRY) && wakers == 0, "{pause:?}");
        now += pause.unwrap();
        sleeps += 1;
    }
    assert!(sleeps < 40, "{sleeps} sleeps in ten seconds");
    // Once up, it can be woken.
    let mut other = CableEnd::listen(&url("")).unwrap();
    while !other.is_up() {
        now += Duration::from_millis(1);
        host.engine.step(now);
        other.poll(now);
    }
    host.engine.activate(PORT, Lid(1), Mtu::B4096).unwrap();
    let mut pair = host.ud(3, 0);
    while host.engine.step(now) {}
    now += CALM;
    assert_eq!(sleep(&mut host, now), (Some(Duration::MAX), 1), "up");
    // A packet delayed by fault injection leaves in time.
    let (memory, key) = host.memory(64);
    let to = To { lid: Lid(2), qpn: Qpn::new(77), qkey: 3, grh: None };
    host.send_ud(&mut pair, &to, &[data(10, key, memory.address())]);
    while host.engine.step(now) {}
    now += CALM;
    let (pause, _) = sleep(&mut host, now);
    assert!(pause.is_some_and(|pause| pause <= DELAY && pause > DELAY / 2), "{pause:?}");
    other.poll(now);
    assert_eq!(other.receive(8, |_| {}), 0);
    now += pause.unwrap();
    host.engine.step(now);
    assert_eq!(other.receive(8, |_| {}), 1);
}
