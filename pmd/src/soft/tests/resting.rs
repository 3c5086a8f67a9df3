//! Tests of sleep and wakeup of workers on one device.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, MadHeader, Method, MgmtClass};
use ib_wire::{Lid, Mtu, Psn, QKey, Qpn, ServiceLevel, Tid};

use super::driver::{Buffer, Buffers, UD, queues, register};
use super::management::device;
use super::{PORT, local, pattern};
use crate::hca::{Control, PortState, QpTransition, QueuesId, RcConfig, RcSlot, RcToReceive, RcToSend};
use crate::hca::{UdDestination, UdSlot};
use crate::mlx5::av::Destination;
use crate::mlx5::bus::Bus;
use crate::mlx5::queues::{Events, MlxQueues};
use crate::soft::{SoftBus, SoftHca};
use connectx::cable::{CableEnd, CableUrl};

type Queues = MlxQueues<SoftBus, Buffer>;

/// Duration of a wait that only an event ends in time; longer than [`LOST`].
const LONG: Duration = Duration::from_secs(300);
/// A wait of this duration was not ended by an event. It is generous because the machine may be busy.
const LOST: Duration = Duration::from_secs(120);

/// Two devices on a shared-memory cable: one with sleeping workers, and one that sends to them.
struct Rig {
    hca: SoftHca,
    workers: Vec<(Queues, Qpn)>,
    peer: SoftHca,
    sender: Queues,
    buffers: [Buffers; 2],
}

impl Rig {
    fn new(workers: u16) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ib-rest-{}-{}.sock", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let url: CableUrl = format!("shm:{}", std::env::temp_dir().join(name).display()).parse().unwrap();
        let ends = [CableEnd::listen(&url).unwrap(), CableEnd::connect(&url).unwrap()];
        let mut devices = [device(1), device(2)];
        for (hca, end) in devices.iter_mut().zip(ends) {
            hca.set_cable(PORT, Some(end)).unwrap();
        }
        let end = Instant::now() + LOST;
        while devices.iter().any(|hca| hca.port(PORT).unwrap().state == PortState::Down) {
            assert!(Instant::now() < end, "the cable does not come up");
            for hca in &devices {
                hca.engine().lock().step(Instant::now());
            }
        }
        let buffers = [Buffers::new(), Buffers::new()];
        for (lid, (hca, buffers)) in (1..).zip(devices.iter_mut().zip(&buffers)) {
            hca.engine().lock().activate(PORT, Lid(lid), Mtu::B4096).unwrap();
            register(hca, buffers);
        }
        let [mut hca, mut peer] = devices;
        let workers = (0..workers).map(|n| queues(&mut hca, &buffers[0], QueuesId(n))).collect();
        let (sender, _) = queues(&mut peer, &buffers[1], QueuesId(9));
        Self { hca, workers, peer, sender, buffers }
    }

    /// Sends a datagram to the worker's queue pair. It is on the cable when this returns.
    fn send(&mut self, to: Qpn) {
        let to = Destination::new(&UdDestination { av: local(Lid(1)), qpn: to, qkey: Some(QKey(0xb1b)) });
        self.sender.post_ud(UD, &to, self.buffers[1].chain(&pattern(100, 1))).unwrap();
        self.sender.ring_all();
        while self.sender.bus().turn() {}
        self.sender.reap(&mut Events::new());
    }
}

/// Runs one iteration of a worker. Returns the number of messages and whether there was any work.
fn turn(queues: &mut Queues) -> (u64, bool) {
    let mut got = 0;
    let mut busy = queues.bus().turn();
    let mut events = Events::new();
    queues.receive(32, |_| got += 1, &mut events);
    busy |= got > 0 || !events.is_empty();
    queues.reap(&mut events);
    queues.fill();
    (got, busy)
}

/// Arms and polls until there is no work.
fn come_to_rest(queues: &mut Queues) {
    let end = Instant::now() + LOST;
    loop {
        assert!(Instant::now() < end, "always busy");
        // Events from the busy time are pending too.
        while turn(queues).1 || queues.wait_for_event(Duration::ZERO) {}
        assert!(queues.ask_for_event());
        // A device that was just busy does not arm cables yet.
        std::thread::sleep(Duration::from_millis(1));
        if !turn(queues).1 {
            return;
        }
    }
}

fn rests(queues: &mut Queues) -> bool {
    !queues.wait_for_event(Duration::from_micros(100))
}

#[test]
fn a_packet_ends_a_rest_on_an_idle_device() {
    let mut rig = Rig::new(1);
    for round in 0..3 {
        let (ref mut worker, qpn) = rig.workers[0];
        come_to_rest(worker);
        assert!(rests(worker), "nothing has arrived in round {round}");
        rig.send(qpn);
        let worker = &mut rig.workers[0].0;
        let start = Instant::now();
        assert!(worker.wait_for_event(LONG) && start.elapsed() < LOST, "round {round}");
        assert_eq!(turn(worker), (1, true));
    }
}

#[test]
fn a_message_taken_by_another_worker_wakes_its_receiver() {
    let mut rig = Rig::new(2);
    for round in 0..3 {
        for (worker, _) in &mut rig.workers {
            come_to_rest(worker);
        }
        rig.send(rig.workers[1].1);
        let [(first, _), (second, _)] = &mut rig.workers[..] else { panic!() };
        assert!(first.wait_for_event(LONG));
        assert_eq!(turn(first), (0, true), "the other's");
        // The message on the cable has been taken. A poll by another handle would find nothing.
        let start = Instant::now();
        assert!(second.wait_for_event(LONG) && start.elapsed() < LOST, "round {round}");
        assert_eq!(turn(second).0, 1);
    }
}

#[test]
fn a_rest_on_a_device_that_another_keeps_busy_ends_with_a_packet() {
    let mut rig = Rig::new(2);
    let qpns = [rig.workers[0].1, rig.workers[1].1];
    come_to_rest(&mut rig.workers[1].0);
    for _ in 0..100 {
        rig.send(qpns[0]);
        turn(&mut rig.workers[0].0);
        // It arms and polls while the first one works.
        assert!(rig.workers[1].0.ask_for_event());
        turn(&mut rig.workers[1].0);
    }
    while turn(&mut rig.workers[0].0).1 {}
    while rig.workers[1].0.wait_for_event(Duration::ZERO) {}
    assert!(rig.workers[1].0.ask_for_event());
    rig.send(qpns[1]);
    assert_eq!(turn(&mut rig.workers[0].0), (0, true));
    let start = Instant::now();
    assert!(rig.workers[1].0.wait_for_event(LONG) && start.elapsed() < LOST);
    assert_eq!(turn(&mut rig.workers[1].0).0, 1);
}

#[test]
fn a_rest_ends_when_it_is_time_for_what_the_device_waits_for() {
    let mut rig = Rig::new(1);
    let config =
        RcConfig { queues: QueuesId(0), port: PORT, beside: UdSlot(0), send_depth: 16, passive: false };
    let rc = rig.hca.rc_for(&config).unwrap();
    let qpn = rc.qpn();
    // No queue pair has that number, so no response comes.
    let receive = RcToReceive {
        av: local(Lid(2)),
        dest_qpn: Qpn::new(0x00_beef),
        rq_psn: Psn::new(9),
        path_mtu: Mtu::B2048,
        min_rnr_timer: 0,
    };
    // 0.27 s.
    let send = RcToSend { sq_psn: Psn::new(9), timeout: 16, retry_count: 0, rnr_retry: 0 };
    for to in [
        QpTransition::RcToInit { pkey_index: 0 },
        QpTransition::RcToReceive(receive),
        QpTransition::RcToSend(send),
    ] {
        rig.hca.modify_qp(qpn, &to).unwrap();
    }
    let worker = &mut rig.workers[0].0;
    worker.insert(RcSlot(0), rc).unwrap();
    let start = Instant::now();
    worker.post_rc(RcSlot(0), rig.buffers[0].chain(&pattern(100, 1))).unwrap();
    worker.ring_all();
    while worker.outstanding(RcSlot(0)) > 0 {
        come_to_rest(worker);
        if worker.outstanding(RcSlot(0)) > 0 {
            worker.wait_for_event(LONG);
        }
        assert!(start.elapsed() < LOST, "the wakeup was lost");
        turn(worker);
    }
    assert!(start.elapsed() >= Duration::from_millis(200), "it must have slept");
}

#[test]
fn work_from_a_thread_that_does_not_advance_the_device_wakes_a_worker() {
    let mut rig = Rig::new(2);
    for (worker, _) in &mut rig.workers {
        come_to_rest(worker);
        assert!(rests(worker));
    }
    let mut bytes = Box::new([0; 256]);
    MadHeader::new(MgmtClass::ComMgt, 2, Method::Send, Tid(7), 0x10).put(&mut bytes);
    let mad = Mad { peer: MadAddress::gsi(Lid(2), ServiceLevel::new(0)), bytes };
    rig.hca.send_mad(PORT, &mad).unwrap();
    let start = Instant::now();
    assert!(rig.workers[0].0.wait_for_event(LONG) && start.elapsed() < LOST);
    assert!(turn(&mut rig.workers[0].0).1);
    rig.sender.bus().turn();
    assert_eq!(rig.peer.receive_mad(PORT).unwrap().unwrap().header().tid, Tid(7));
}

/// A worker's loop with sleeps that only a packet ends.
fn work(queues: &mut Queues, got: &AtomicU64, stop: &AtomicBool) {
    let (mut armed, mut idle) = (false, 0);
    while !stop.load(Ordering::Relaxed) {
        let (n, busy) = turn(queues);
        got.fetch_add(n, Ordering::Release);
        idle = if busy { 0 } else { idle + 1 };
        armed &= !busy;
        if idle < 8 {
            std::hint::spin_loop();
        } else if !armed {
            armed = queues.ask_for_event();
        } else {
            armed = !queues.wait_for_event(LONG);
        }
    }
}

#[test]
fn no_packet_is_slept_through_by_two_workers() {
    const ROUNDS: u64 = 4000;
    let mut rig = Rig::new(2);
    let stop = AtomicBool::new(false);
    let got = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut sleepers = std::mem::take(&mut rig.workers);
    let qpns = [sleepers[0].1, sleepers[1].1];
    std::thread::scope(|scope| {
        for ((worker, _), got) in sleepers.iter_mut().zip(&got) {
            scope.spawn(|| work(worker, got, &stop));
        }
        let mut dice = 1_u64;
        let mut sent = [0; 2];
        let mut lost = None;
        for round in 0..ROUNDS {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let to = (dice >> 60) as usize & 1;
            rig.send(qpns[to]);
            sent[to] += 1;
            // At any point of the loop: working, arming, polling or sleeping.
            let begin = Instant::now();
            let pause = begin + Duration::from_nanos((dice >> 33) % 200_000);
            while got[to].load(Ordering::Acquire) < sent[to] && begin.elapsed() < LOST {
                std::thread::yield_now();
            }
            if got[to].load(Ordering::Acquire) < sent[to] {
                lost = Some((round, to));
                break;
            }
            while Instant::now() < pause {
                std::hint::spin_loop();
            }
        }
        stop.store(true, Ordering::Relaxed);
        qpns.into_iter().for_each(|qpn| rig.send(qpn));
        assert_eq!(lost, None, "round and worker without a wakeup");
    });
}
