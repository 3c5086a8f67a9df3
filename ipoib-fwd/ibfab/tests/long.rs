//! Messages in more buffers than a device names in one send: all arrive, including the first, and none leaves
//! anything behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod adapter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use adapter::adapter;
use arrayvec::ArrayVec;
use connectx::cable::CableEnd;
use dataplane::latency::Recorder;
use endpoint::{
    Endpoint, EndpointConfig, EndpointPlace, LinkWorker, LongMessages, LongStatistics, Tag, Taken, ViewBoard,
    Waited, WorkerSizes,
};
use ib_wire::{Lid, Mtu, PKey, Psn, Qpn, Rate, ServiceLevel};
use ipoib::link::LinkSettings;
use pmd::hca::{
    AddressVector, Backend, Control, PortNumber, QpTransition, Queues, QueuesConfig, QueuesId, RcConfig,
    RcSlot, RcToReceive, RcToSend, RxBurst, UdSlot,
};
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::soft::SoftHca;

const PATIENCE: Duration = Duration::from_secs(120);
const PORT: PortNumber = PortNumber(1);
/// Buffers that the device names in a send; a message here has seventeen.
const SEGMENTS: u32 = 2;
const LONGEST: usize = 65_524;
const ROOM: u16 = 4096;

type SoftQueues = <SoftHca as Backend>::Queues;
type Destination = <SoftQueues as Queues>::Destination;

/// Creates an adapter with that LID and an active port.
fn active(lid: u16, cable: CableEnd) -> SoftHca {
    let hca = adapter(lid.into(), Some(cable));
    hca.engine().lock().activate(PORT, Lid(lid), Mtu::B4096).unwrap();
    hca
}

fn to_send(hca: &mut SoftHca, qpn: Qpn, lid: u16, dest_qpn: Qpn) {
    let av = AddressVector {
        dlid: Lid(lid),
        sl: ServiceLevel::new(0),
        src_path_bits: 0,
        rate: Rate::default(),
        grh: None,
    };
    let receive = RcToReceive { av, dest_qpn, rq_psn: Psn::new(7), path_mtu: Mtu::B4096, min_rnr_timer: 12 };
    let send = RcToSend { sq_psn: Psn::new(7), timeout: 18, retry_count: 7, rnr_retry: 7 };
    let init = QpTransition::RcToInit { pkey_index: 0 };
    for to in [init, QpTransition::RcToReceive(receive), QpTransition::RcToSend(send)] {
        hca.modify_qp(qpn, &to).unwrap();
    }
}

/// An endpoint with one worker, and connections to a peer that receives.
struct World {
    endpoint: Endpoint<SoftHca, (), ()>,
    worker: LinkWorker<SoftQueues, (), ()>,
    board: ViewBoard<Destination>,
    pool: Pool,
    far: SoftHca,
    far_queues: SoftQueues,
    arrived: Vec<Vec<u8>>,
    /// Messages that waited for too long.
    lost: usize,
}

impl World {
    fn new(long_messages: LongMessages) -> Self {
        pmd::eal::for_tests();
        let config = PoolConfig { count: 4096, data_room: ROOM, cache: 0, socket: -1 };
        let (pool, far_pool) =
            (Pool::create("near", &config).unwrap(), Pool::create("far", &config).unwrap());
        let (one, two) = CableEnd::pair().unwrap();
        let (hca, mut far) = (active(1, one), active(2, two));
        let sizes = WorkerSizes {
            ud_send_depth: 64,
            ud_recv_depth: 64,
            srq_depth: 31,
            srq_limit: 0,
            send_buffers: 1,
            rc_send_depth: 256,
            max_rc: 8,
            signal_every: 4,
            send_segments: Some(SEGMENTS),
            long_messages,
        };
        let link = LinkSettings::new(PKey::DEFAULT, Qpn::default(), 5);
        let config =
            EndpointConfig { place: EndpointPlace::ONLY, port: PORT, workers: 1, links: 1, sizes, link };
        let (mut endpoint, mut workers) = Endpoint::new(hca, config, &pool, Instant::now()).unwrap();
        far.register_pool(&far_pool).unwrap();
        let config = QueuesConfig {
            id: QueuesId(0),
            ud_recv_depth: 16,
            ud_recv_most: u32::MAX,
            srq_depth: 63,
            srq_message: LONGEST,
            srq_limit: 0,
            max_ud: 0,
            likely_ud: 1,
            max_rc: 8,
            max_sends: 256,
            signal_every: 4,
        };
        let mut far_queues = far.create_queues(&config, &far_pool).unwrap();
        far_queues.refill();
        let board = ViewBoard::new(Arc::clone(endpoint.link().state()));
        let worker = workers.pop().unwrap();
        let mut world = Self { endpoint, worker, board, pool, far, far_queues, arrived: Vec::new(), lost: 0 };
        world.connect(0);
        // All receives are posted.
        for _ in 0..4 {
            world.turn_near();
            world.turn_far();
        }
        world
    }

    /// Connects a slot; returns the number of our queue pair.
    fn connect(&mut self, slot: u16) -> Qpn {
        let config = |passive| RcConfig {
            queues: QueuesId(0),
            port: PORT,
            beside: UdSlot(0),
            send_depth: if passive { 4 } else { 256 },
            passive,
        };
        let ours = self.endpoint.hca().create_rc(&config(false)).unwrap();
        let theirs = self.far.create_rc(&config(true)).unwrap();
        let numbers = (SoftHca::rc_qpn(&ours), SoftHca::rc_qpn(&theirs));
        to_send(self.endpoint.hca(), numbers.0, 2, numbers.1);
        to_send(&mut self.far, numbers.1, 1, numbers.0);
        self.worker.queues().insert_rc(RcSlot(slot), ours).unwrap();
        self.far_queues.insert_rc(RcSlot(slot), theirs).unwrap();
        numbers.0
    }

    fn message(&self, len: usize, seed: u8) -> (Mbuf, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(31) ^ (n >> 8) as u8 ^ seed).collect();
        (self.pool.copy_from_slice(&bytes).unwrap(), bytes)
    }

    fn turn_near(&mut self) {
        let mut times = Recorder::default();
        self.worker.commands(&mut times, |(), _| ());
        let lost = &mut self.lost;
        self.worker.retry(|_, waited| *lost += usize::from(matches!(waited, Waited::Lost(_))));
        self.worker.finish();
        self.worker.queues().turn();
        self.endpoint.tick(Instant::now(), &mut self.board, |_| ());
    }

    fn turn_far(&mut self) {
        self.far_queues.ring();
        self.far_queues.turn();
        let (mut burst, mut events) = (RxBurst::new(), ArrayVec::new());
        self.far_queues.poll_receive(&mut burst, &mut events);
        for received in burst {
            let mut bytes = vec![0; received.buf.len()];
            received.buf.read(0, &mut bytes);
            self.arrived.push(bytes);
        }
        self.far_queues.poll_send(&mut events);
        self.far_queues.refill();
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.endpoint.long_statistics());
            self.turn_near();
            self.turn_far();
        }
    }

    /// Sends one message, which must arrive whole.
    fn carry(&mut self, slot: u16, len: usize, seed: u8) {
        let (buf, bytes) = self.message(len, seed);
        let taken = self.worker.send_rc(RcSlot(slot), Tag(0), buf).unwrap();
        assert_eq!(taken, Taken::Now, "no message waits for a queue");
        self.until("the message", |w| !w.arrived.is_empty());
        assert!(self.arrived.pop().unwrap() == bytes && self.arrived.is_empty(), "{len} bytes");
    }

    fn statistics(&self) -> LongStatistics {
        self.endpoint.long_statistics()
    }

    /// Closes everything and checks that all buffers are returned.
    fn close(self) {
        let Self { endpoint, worker, pool, .. } = self;
        drop(endpoint.close(vec![worker.into_queues()]).unwrap());
        assert_eq!(pool.in_use(), 0);
    }
}

/// Sends messages until this number of keys is idle; each message that finds no key requests one.
fn with_keys(world: &mut World, keys: u64) {
    while world.statistics().idle < keys {
        let before = world.statistics();
        // Takes all keys; one more message misses one.
        for n in 0..=before.idle {
            let (buf, _) = world.message(LONGEST, n as u8);
            world.worker.send_rc(RcSlot(0), Tag(0), buf).unwrap();
        }
        let sent = before.idle as usize + 1;
        world.until("messages and keys", |w| {
            let now = w.statistics();
            w.arrived.len() == sent && now.in_use == 0 && now.idle > before.idle
        });
        world.arrived.clear();
    }
}

#[test]
fn the_first_message_arrives_and_all_others() {
    for how in [LongMessages::Copy, LongMessages::Key] {
        let mut world = World::new(how);
        let home = world.pool.in_use();
        world.carry(0, LONGEST, 1);
        let first = world.statistics();
        assert_eq!((first.copied, first.by_key), (1, 0), "there is no key yet");
        // Messages with few buffers need neither.
        world.carry(0, usize::from(ROOM), 2);
        world.carry(0, 2 * usize::from(ROOM), 3);
        assert_eq!(world.statistics().copied, 1);
        for n in 0..20 {
            world.carry(0, LONGEST - usize::from(n), n);
        }
        let all = world.statistics();
        match how {
            LongMessages::Copy => assert_eq!((all.copied, all.by_key, all.taken), (21, 0, 0)),
            LongMessages::Key => {
                assert_eq!(all.copied + all.by_key, 21);
                // The next message leaves as soon as one has arrived. By then, the message before it may not
                // have released its key, and the completion of the last one may be outstanding.
                assert!(all.by_key >= 15 && all.most_in_use <= 3, "{all:?}");
                world.until("the key", |w| w.statistics().in_use == 0);
                // One message at a time needs no more.
                assert!(world.statistics().idle <= 3, "{:?}", world.statistics());
            }
        }
        world.until("the buffers", |w| w.pool.in_use() <= home);
        world.close();
    }
}

#[test]
fn a_message_without_a_large_buffer_waits() {
    let mut world = World::new(LongMessages::Copy);
    let home = world.pool.in_use();
    let mut sent = Vec::new();
    // The peer takes none, and there are 64 large buffers.
    for n in 0..70 {
        let (buf, bytes) = world.message(3 * usize::from(ROOM), n);
        world.worker.send_rc(RcSlot(0), Tag(0), buf).unwrap();
        sent.push(bytes);
    }
    let waiting = world.worker.waiting();
    assert!(waiting > 0);
    // Messages that wait for longer than 20 ms are dropped and reported; the others arrive in order.
    world.until("what was sent", |w| {
        w.worker.waiting() == 0 && w.worker.queues().rc_outstanding(RcSlot(0)) == 0
    });
    // In bursts, of which a busy machine may have left some.
    (0..70).for_each(|_| world.turn_far());
    assert!(world.arrived.len() >= sent.len() - waiting, "{}", world.arrived.len());
    assert_eq!(world.arrived.len() + world.lost, sent.len());
    assert!(world.statistics().waited > 0, "{:?}", world.statistics());
    let mut order = sent.iter();
    assert!(world.arrived.iter().all(|one| order.any(|other| one == other)));
    world.arrived.clear();
    world.carry(0, LONGEST, 9);
    world.until("the buffers", |w| w.pool.in_use() <= home);
    world.close();
}

#[test]
fn the_dead_connection_gives_keys_and_buffers_back() {
    let mut world = World::new(LongMessages::Key);
    let home = world.pool.in_use();
    with_keys(&mut world, 4);
    let qpn = world.connect(1);
    // The peer takes nothing: all of them are outstanding.
    for n in 0..4 {
        let (buf, _) = world.message(LONGEST, n);
        world.worker.send_rc(RcSlot(1), Tag(0), buf).unwrap();
    }
    for _ in 0..20 {
        world.turn_near();
    }
    assert_eq!(world.statistics().in_use, 4, "{:?}", world.statistics());
    world.endpoint.hca().modify_qp(qpn, &QpTransition::ToError).unwrap();
    world.until("keys as new", |w| {
        let now = w.statistics();
        (now.doubtful, now.in_use, now.idle) == (4, 0, 4)
    });
    world.until("the buffers", |w| w.pool.in_use() <= home);
    let before = world.statistics();
    // They work as before.
    for n in 0..8 {
        world.arrived.clear();
        world.carry(0, LONGEST, n);
    }
    let after = world.statistics();
    assert_eq!((after.by_key - before.by_key, after.copied), (8, before.copied));
    world.close();
}

#[test]
fn a_connection_that_is_taken_away_or_a_worker_that_ends_leaves_nothing() {
    let mut world = World::new(LongMessages::Key);
    with_keys(&mut world, 4);
    let home = world.pool.in_use();
    world.connect(1);
    let post = |world: &mut World| {
        for n in 0..2 {
            let (buf, _) = world.message(LONGEST, n);
            world.worker.send_rc(RcSlot(1), Tag(0), buf).unwrap();
        }
        for _ in 0..20 {
            world.turn_near();
        }
        assert_eq!(world.statistics().in_use, 2, "{:?}", world.statistics());
    };
    post(&mut world);
    let rc = world.worker.queues().remove_rc(RcSlot(1)).unwrap();
    world.endpoint.hca().destroy_rc(rc).unwrap();
    world.far_queues.remove_rc(RcSlot(1)).map(|rc| world.far.destroy_rc(rc)).unwrap().unwrap();
    world.until("keys as new", |w| w.statistics().doubtful == 2 && w.statistics().idle == 4);
    world.until("the buffers", |w| w.pool.in_use() <= home);
    world.arrived.clear();
    world.connect(1);
    post(&mut world);
    world.close();
}
