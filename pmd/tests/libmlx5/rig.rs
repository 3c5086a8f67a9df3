//! Two connected devices with hosts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use connectx::cable::CableEnd;
use ib_wire::{Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, AsyncEvent, Backend, Control, PortNumber, QpEvent, QpTransition, Queues, QueuesConfig,
    QueuesId, RcConfig, RcSlot, RcToReceive, RcToSend, RxBurst, Source, UdConfig, UdDestination, UdSlot,
};
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::verbs::{Adapter, DataPath, OpenOptions, Rings};

use crate::fakekernel::{self, Doorbell, Settings};

pub(crate) const PORT: PortNumber = PortNumber(1);
pub(crate) const QKEY: QKey = QKey(0x1b1b);
/// Room of a buffer in bytes.
pub(crate) const ROOM: u16 = 2048;
/// Maximum message length of a shared receive queue entry in bytes.
pub(crate) const MESSAGE: usize = 20_000;

/// The driver on the library's rings.
pub(crate) type Mlx5 = Adapter<Rings>;

/// A pair of devices. Only one test runs at a time.
pub(crate) struct World {
    _one: MutexGuard<'static, ()>,
    pub(crate) pool: Pool,
    pub(crate) now: Instant,
}

fn settings(index: u16, cqe_version: u8) -> Settings {
    let guid = 0x0c42_a103_0000_0000 + 0x100 * (u64::from(index) + 1);
    Settings { guid, lid: index + 1, cqe_version, pages: 16, write_combining: true, users: true }
}

/// Creates two connected devices.
pub(crate) fn world() -> World {
    boot(&[settings(0, 1), settings(1, 1)])
}

/// Like [`world`], with this CQE version and number of doorbell pages.
pub(crate) fn other_world(cqe_version: u8, pages: usize) -> World {
    boot(&[settings(0, cqe_version), settings(1, cqe_version)].map(|s| Settings { pages, ..s }))
}

/// Like [`world`], without write-combining.
pub(crate) fn plain_world() -> World {
    boot(&[settings(0, 1), settings(1, 1)].map(|s| Settings { write_combining: false, ..s }))
}

/// Like [`world`], without user-level commands.
pub(crate) fn closed_world() -> World {
    boot(&[settings(0, 1), settings(1, 1)].map(|s| Settings { users: false, ..s }))
}

fn boot(settings: &[Settings; 2]) -> World {
    let one = alone();
    devices(settings);
    let config = PoolConfig { count: 8192, data_room: ROOM, cache: 0, socket: -1 };
    // A pool with leaked buffers keeps its name.
    static POOLS: AtomicU32 = AtomicU32::new(0);
    let name = format!("packets{}", POOLS.fetch_add(1, Ordering::Relaxed));
    World { _one: one, pool: Pool::create(&name, &config).unwrap(), now: Instant::now() }
}

/// Ensures that one test runs at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    pmd::eal::for_tests();
    one
}

/// Creates two connected devices without hosts.
pub(crate) fn fresh_devices() {
    devices(&[settings(0, 1), settings(1, 1)]);
}

/// Connects the two devices.
pub(crate) fn join() {
    let (one, other) = CableEnd::pair().unwrap();
    fakekernel::with(0, |d| d.plug(one));
    fakekernel::with(1, |d| d.plug(other));
}

fn devices(settings: &[Settings; 2]) {
    fakekernel::boot(settings);
    join();
    fakekernel::with(0, |d| d.calm());
    fakekernel::with(1, |d| d.calm());
}

impl World {
    /// Opens a device, with queues for worker 0.
    pub(crate) fn host<P: DataPath>(&self, device: usize) -> Host<Adapter<P>>
    where
        Adapter<P>: Backend,
    {
        let mut hca = open(device);
        hca.register_pool(&self.pool).unwrap();
        let queues = hca.create_queues(&config(0), &self.pool).unwrap();
        Host::new(hca, queues, Lid(device as u16 + 1))
    }

    /// Runs devices and hosts until they are idle. Returns the doorbells.
    pub(crate) fn settle(&mut self, hosts: &mut [&mut dyn Poll]) -> Vec<Doorbell> {
        let mut all = Vec::new();
        hosts.iter_mut().for_each(|host| host.ring());
        for idle in 0.. {
            assert!(idle < 2_000, "the system never becomes idle");
            let (rung, mut worked) = fakekernel::turn(|| self.now);
            all.extend(rung);
            for host in hosts.iter_mut() {
                worked |= host.poll();
            }
            if !worked {
                return all;
            }
        }
        unreachable!()
    }

    /// Like [`World::settle`], while time passes, so that timers expire.
    pub(crate) fn pass(&mut self, time: Duration, hosts: &mut [&mut dyn Poll]) {
        for _ in 0..100 {
            self.now += time / 100;
            self.settle(hosts);
        }
    }

    /// Destroys two hosts, then everything.
    pub(crate) fn end_with<A: Backend, B: Backend>(self, a: Host<A>, b: Host<B>) {
        a.end();
        b.end();
        self.end();
    }

    /// Checks at the end that all buffers have returned and the kernel has no objects left.
    pub(crate) fn end(self) {
        assert_eq!(self.pool.in_use(), 0, "buffers");
        for device in 0..2 {
            assert_eq!(fakekernel::with(device, |d| d.census()), [0; 6], "objects of device {device}");
        }
    }
}

/// Opens a device without management agents.
pub(crate) fn open<P: DataPath>(device: usize) -> Adapter<P> {
    let options = OpenOptions { management: false, ..OpenOptions::default() };
    Adapter::open_with(Some(&format!("mlx5_{device}")), PORT, options).unwrap()
}

/// Sizes of a worker's queues.
pub(crate) fn config(worker: u16) -> QueuesConfig {
    QueuesConfig {
        id: QueuesId(worker),
        ud_recv_depth: 64,
        ud_recv_most: u32::MAX,
        srq_depth: 63,
        srq_message: MESSAGE,
        srq_limit: 0,
        max_ud: 4,
        likely_ud: 1,
        max_rc: 16,
        max_sends: 1024,
        signal_every: 4,
    }
}

/// The first datagram queue pair.
pub(crate) const UD: UdSlot = UdSlot(0);

/// Creates the first datagram queue pair of a worker's queues.
pub(crate) fn with_ud<B: Backend>(hca: &mut B, queues: &mut B::Queues) -> Qpn {
    let ud = hca.create_ud(&UdConfig { queues: queues.id(), port: PORT, send_depth: 64 }).unwrap();
    queues.insert_ud(UD, ud).unwrap();
    queues.ud_qpn(UD).unwrap()
}

/// A participant in [`World::settle`].
pub(crate) trait Poll {
    /// Returns true if anything arrived.
    fn poll(&mut self) -> bool;
    /// Rings the doorbells of posted sends.
    fn ring(&mut self);
}

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) qpn: Qpn,
    pub(crate) source: Source,
}

/// A program on a device.
pub(crate) struct Host<B: Backend> {
    // In this order: the queues are dropped first.
    pub(crate) queues: Option<B::Queues>,
    pub(crate) hca: B,
    pub(crate) lid: Lid,
    pub(crate) ud: Qpn,
    pub(crate) received: Vec<Message>,
    pub(crate) events: Vec<QpEvent>,
    pub(crate) freed: usize,
    pub(crate) refilling: bool,
    slots: HashMap<Qpn, RcSlot>,
}

impl<B: Backend> Poll for Host<B> {
    fn ring(&mut self) {
        if let Some(queues) = &mut self.queues {
            queues.ring();
        }
    }

    fn poll(&mut self) -> bool {
        let Some(queues) = &mut self.queues else { return false };
        let mut burst = RxBurst::new();
        let mut events = ArrayVec::new();
        queues.poll_receive(&mut burst, &mut events);
        let freed = queues.poll_send(&mut events);
        let mut worked = !burst.is_empty() || !events.is_empty() || freed > 0;
        for received in burst {
            let mut bytes = vec![0; received.buf.len()];
            received.buf.read(0, &mut bytes);
            self.received.push(Message { bytes, qpn: received.qpn, source: received.source });
        }
        self.events.extend(events);
        self.freed += freed;
        if self.refilling {
            worked |= queues.refill() > 0;
        }
        queues.ring();
        worked
    }
}

impl<B: Backend> Host<B> {
    fn new(mut hca: B, mut queues: B::Queues, lid: Lid) -> Self {
        let ud = with_ud(&mut hca, &mut queues);
        let mut this = Self {
            queues: Some(queues),
            hca,
            lid,
            ud,
            received: Vec::new(),
            events: Vec::new(),
            freed: 0,
            refilling: true,
            slots: HashMap::new(),
        };
        this.open_ud();
        this.queues().refill();
        this
    }

    pub(crate) fn queues(&mut self) -> &mut B::Queues {
        self.queues.as_mut().unwrap()
    }

    /// Moves it from RESET to RTS.
    pub(crate) fn open_ud(&mut self) {
        for to in [
            QpTransition::UdToInit { pkey_index: 0, qkey: QKEY },
            QpTransition::UdToReceive,
            QpTransition::UdToSend { sq_psn: Psn::new(0) },
        ] {
            self.hca.modify_qp(self.ud, &to).unwrap();
        }
        self.queues().open_ud(UD);
    }

    /// Sends a datagram to a queue pair of a port.
    pub(crate) fn send_ud(&mut self, pool: &Pool, av: AddressVector, qpn: Qpn, bytes: &[u8]) {
        let to = self.hca.destination(PORT, &UdDestination { av, qpn, qkey: Some(QKEY) }).unwrap();
        self.queues().send_ud(UD, &to, message(pool, bytes)).unwrap();
    }

    /// Sends on a connection. Returns false if there is no room.
    pub(crate) fn send_rc(&mut self, pool: &Pool, slot: RcSlot, bytes: &[u8]) -> bool {
        self.queues().send_rc(slot, message(pool, bytes)).is_ok()
    }

    /// Creates a connected queue pair in the table.
    pub(crate) fn create_rc(&mut self, slot: RcSlot, passive: bool) -> Qpn {
        let config = RcConfig {
            queues: QueuesId(0),
            port: PORT,
            beside: UD,
            send_depth: if passive { 1 } else { 64 },
            passive,
        };
        let rc = self.hca.create_rc(&config).unwrap();
        let qpn = B::rc_qpn(&rc);
        self.queues().insert_rc(slot, rc).map_err(drop).unwrap();
        self.slots.insert(qpn, slot);
        qpn
    }

    /// Removes a connected queue pair from the table and destroys it.
    pub(crate) fn destroy_rc(&mut self, slot: RcSlot) {
        let rc = self.queues().remove_rc(slot).unwrap();
        self.hca.destroy_rc(rc).unwrap();
    }

    /// Opens one end of a connection.
    pub(crate) fn open_rc(&mut self, qpn: Qpn, peer: Qpn, lid: Lid) {
        for to in [
            QpTransition::RcToInit { pkey_index: 0 },
            QpTransition::RcToReceive(RcToReceive {
                av: to_lid(lid),
                dest_qpn: peer,
                rq_psn: Psn::new(100),
                path_mtu: Mtu::B2048,
                min_rnr_timer: 12,
            }),
            QpTransition::RcToSend(RcToSend {
                sq_psn: Psn::new(100),
                timeout: 8,
                retry_count: 3,
                rnr_retry: 3,
            }),
        ] {
            self.hca.modify_qp(qpn, &to).unwrap();
        }
    }

    /// Returns all pending asynchronous events.
    pub(crate) fn async_events(&mut self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.hca.next_event()).collect()
    }

    /// Destroys it as a gateway does.
    pub(crate) fn end(mut self) {
        let queues = self.queues.take().unwrap();
        self.hca.destroy_queues(queues).unwrap();
    }
}

/// Connects the queue pairs in the same slot of two hosts.
pub(crate) fn connect<A: Backend, B: Backend>(
    a: &mut Host<A>,
    b: &mut Host<B>,
    slot: RcSlot,
    passive: bool,
) -> (Qpn, Qpn) {
    let (one, other) = (a.create_rc(slot, false), b.create_rc(slot, passive));
    a.open_rc(one, other, b.lid);
    b.open_rc(other, one, a.lid);
    (one, other)
}

/// Returns the path to a LID in the same subnet.
pub(crate) const fn to_lid(lid: Lid) -> AddressVector {
    AddressVector { dlid: lid, sl: ServiceLevel::new(0), src_path_bits: 0, rate: Rate::new(0), grh: None }
}

/// Returns a buffer or chain with these bytes.
pub(crate) fn message(pool: &Pool, bytes: &[u8]) -> Mbuf {
    let mut pieces = bytes.chunks(usize::from(ROOM)).rev().map(|piece| pool.copy_from_slice(piece).unwrap());
    let mut chain = pieces.next().unwrap_or_else(|| pool.copy_from_slice(&[]).unwrap());
    for mut head in pieces {
        head.append_chain(chain);
        chain = head;
    }
    chain
}

/// Returns bytes that identify a message.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed * 31 + i / 251) as u8).collect()
}
