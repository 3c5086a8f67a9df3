//! Two software devices on a connection, with keys that are registered, used and invalidated.

use std::time::Instant;

use arrayvec::ArrayVec;
use connectx::cable::CableEnd;
use ib_wire::{Guid, Lid, Mtu, PortNumber, Psn, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, BURST, Backend, ChainSend, Control, DoneBurst, Fence, KeyRights, MemoryWork, Outcome,
    QpTransition, Queues, QueuesConfig, QueuesId, RcConfig, RcSlot, RcToReceive, RcToSend, Registration,
    RemoteAccess, RemoteMemory, RxBurst, Source, UdSlot, WcStatus,
};
use pmd::mem::key::{FreeKey, KeyPool, KeyPoolConfig, Memory, PageList};
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::soft::{SoftConfig, SoftHca};

use crate::allocations::allocations;

const PORT: PortNumber = PortNumber(1);
const SLOT: RcSlot = RcSlot(0);
const ID: QueuesId = QueuesId(0);
/// Length of a piece of memory in bytes.
const PIECE: usize = 64;
/// Length of a buffer, and therefore of a message, in bytes.
const ROOM: u16 = 4096;
/// Number of iterations in which any pending work finishes.
const PATIENCE: u32 = 100_000;

struct End {
    hca: SoftHca,
    queues: <SoftHca as Backend>::Queues,
    qpn: Qpn,
}

impl End {
    fn new(lid: u16, cable: CableEnd, pool: &Pool) -> Self {
        let n = u64::from(lid);
        let mut hca = SoftHca::new(&SoftConfig {
            name: format!("soft{n}"),
            node_guid: Guid(n),
            port_guids: vec![Guid(0x10 + n)],
            max_mtu: Mtu::B4096,
            gid_table: 8,
            seed: n,
        })
        .unwrap();
        hca.set_cable(PORT, Some(cable)).unwrap();
        hca.engine().lock().activate(PORT, Lid(lid), Mtu::B4096).unwrap();
        hca.register_pool(pool).unwrap();
        let config = QueuesConfig {
            id: ID,
            ud_recv_depth: 64,
            ud_recv_most: u32::MAX,
            srq_depth: 64,
            srq_message: 1000,
            srq_limit: 0,
            max_ud: 0,
            likely_ud: 1,
            max_rc: 1,
            max_sends: 64,
            signal_every: 8,
        };
        let mut queues = hca.create_queues(&config, pool).unwrap();
        let config = RcConfig { queues: ID, port: PORT, beside: UdSlot(0), send_depth: 256, passive: false };
        let rc = hca.create_rc(&config).unwrap();
        let qpn = SoftHca::rc_qpn(&rc);
        queues.insert_rc(SLOT, rc).unwrap();
        queues.refill();
        Self { hca, queues, qpn }
    }

    fn connect(&mut self, dlid: u16, dest_qpn: Qpn) {
        let remote = RemoteAccess { write: true, read: true, atomic: false, answered: 4, asked: 4 };
        self.hca.set_remote_access(self.qpn, &remote).unwrap();
        let (psn, path_mtu) = (Psn::new(7), Mtu::B4096);
        let av = AddressVector {
            dlid: Lid(dlid),
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::default(),
            grh: None,
        };
        for to in [
            QpTransition::RcToInit { pkey_index: 0 },
            QpTransition::RcToReceive(RcToReceive { av, dest_qpn, rq_psn: psn, path_mtu, min_rnr_timer: 12 }),
            QpTransition::RcToSend(RcToSend { sq_psn: psn, timeout: 14, retry_count: 7, rnr_retry: 7 }),
        ] {
            self.hca.modify_qp(self.qpn, &to).unwrap();
        }
    }
}

/// Returns a chain of full pieces.
fn chain(pool: &Pool, pieces: usize) -> Mbuf {
    let mut chain: Option<Mbuf> = None;
    for _ in 0..pieces {
        let mut one = pool.alloc().unwrap();
        one.append(PIECE).unwrap().fill(0);
        if let Some(tail) = chain.take() {
            one.append_chain(tail);
        }
        chain = Some(one);
    }
    chain.unwrap()
}

/// Returns a buffer with these bytes.
fn buffer(pool: &Pool, bytes: &[u8]) -> Mbuf {
    let mut buf = pool.alloc().unwrap();
    buf.append(bytes.len()).unwrap().copy_from_slice(bytes);
    buf
}

/// Result of iterations.
#[derive(Default)]
struct Ended {
    work: Option<(WcStatus, Outcome)>,
    message: Option<(Mbuf, Source)>,
}

/// Both ends, and free keys of the second.
pub(crate) struct Link {
    ends: [End; 2],
    pool: Pool,
    keys: KeyPool,
    /// The device's clock is constant, because the test never reads the time.
    now: Instant,
    /// Number of allocations by the devices.
    by_devices: u64,
}

/// Returns a list for `pieces` pieces: in the work request or, if that has no room, in a buffer.
pub(crate) fn list(pool: &Pool, pieces: usize) -> PageList {
    if pieces > 52 { PageList::in_buffer(pool.alloc().unwrap()) } else { PageList::new(pieces) }
}

impl Link {
    /// Creates a link with keys for these numbers of pieces.
    pub(crate) fn new(pieces: &[usize]) -> Self {
        pmd::eal::for_tests();
        let config = PoolConfig { count: 2048, data_room: ROOM, cache: 0, socket: -1 };
        let pool = Pool::create("steady", &config).unwrap();
        let (here, there) = CableEnd::pair().unwrap();
        let mut ends = [End::new(1, here, &pool), End::new(2, there, &pool)];
        let [first, second] = &mut ends;
        first.connect(2, second.qpn);
        second.connect(1, first.qpn);
        let mut keys = KeyPool::new(KeyPoolConfig::default());
        for pieces in pieces {
            let size = KeyPool::size_for(*pieces as u32).unwrap();
            keys.add(second.hca.create_key(size).unwrap()).unwrap();
        }
        Self { ends, pool, keys, now: Instant::now(), by_devices: 0 }
    }

    pub(crate) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Number of this thread's allocations that were not the devices'.
    pub(crate) fn allocations(&self) -> u64 {
        allocations() - self.by_devices
    }

    /// Number of the devices' allocations.
    pub(crate) const fn allocations_by_devices(&self) -> u64 {
        self.by_devices
    }

    /// Runs both devices until an end's work has finished or a message has arrived.
    fn until(&mut self, at: usize, message: bool) -> Ended {
        let mut ended = Ended::default();
        for _ in 0..PATIENCE {
            for end in &mut self.ends {
                end.queues.ring();
                let before = allocations();
                end.hca.engine().lock().step(self.now);
                self.by_devices += allocations() - before;
            }
            let end = &mut self.ends[at];
            let (mut burst, mut events, mut works) =
                (RxBurst::new(), ArrayVec::<_, BURST>::new(), DoneBurst::new());
            end.queues.poll_receive(&mut burst, &mut events);
            end.queues.poll_send(&mut events);
            end.queues.take_done(&mut works);
            end.queues.refill();
            assert!(events.is_empty(), "{events:?}");
            ended.work = works.pop().map(|work| (work.status, work.what)).or(ended.work);
            ended.message = burst.pop().map(|received| (received.buf, received.source)).or(ended.message);
            if if message { ended.message.is_some() } else { ended.work.is_some() } {
                return ended;
            }
        }
        panic!("nothing comes");
    }

    fn work(&mut self, at: usize) -> Outcome {
        let (status, what) = self.until(at, false).work.unwrap();
        assert_eq!(status, WcStatus::Success);
        what
    }

    fn transferred(&mut self) -> Mbuf {
        let Outcome::Transferred(buf) = self.work(0) else { panic!("something else has ended") };
        buf
    }

    /// Runs one cycle with a key: takes it, registers a fresh chain, lets the peer write and read, and
    /// invalidates it locally or by a peer's SEND. Then sends a chain under it and returns it.
    pub(crate) fn cycle(&mut self, list: PageList, pieces: usize, number: u64) -> PageList {
        let key = self.keys.take(pieces as u32).unwrap();
        let old = key.key();
        let work = Registration {
            key,
            list,
            memory: Memory::Chain(chain(&self.pool, pieces)),
            start: 0x1000 * number,
            len: None,
            rights: KeyRights { remote_read: true, ..KeyRights::WRITE },
        };
        let rkey = self.ends[1].queues.register(SLOT, 1, work).unwrap();
        let Outcome::Registered(key, list) = self.work(1) else { panic!("not registered") };
        assert!(key.key() == rkey && rkey != old && rkey.index() == old.index());

        // Across the boundary of the last two pieces, if there is one.
        let (offset, bytes) = ((PIECE * pieces - PIECE).max(20) - 4, number.to_le_bytes());
        let remote = RemoteMemory { address: key.start() + offset as u64, rkey };
        self.ends[0].queues.write(SLOT, 2, remote, buffer(&self.pool, &bytes), None).unwrap();
        drop(self.transferred());
        self.ends[0].queues.read(SLOT, 3, remote, buffer(&self.pool, &[0; 8])).unwrap();
        assert_eq!(self.transferred().data(), bytes);

        let (key, memory) = if number.is_multiple_of(2) {
            self.ends[1].queues.invalidate(SLOT, 4, key, Fence::Reads).unwrap();
            let Outcome::Invalidated(key, memory) = self.work(1) else { panic!("not invalidated") };
            (key, memory)
        } else {
            let word = buffer(&self.pool, b"end this");
            self.ends[0].queues.send_invalidating(SLOT, 5, rkey, word).unwrap();
            let (buf, source) = self.until(1, true).message.unwrap();
            assert_eq!((buf.data(), source), (&b"end this"[..], Source::RcInvalidated(rkey)));
            drop(self.transferred());
            key.invalidated_by_peer(rkey).unwrap()
        };
        let mut there = [0; 8];
        memory.unwrap().read(offset, &mut there);
        assert_eq!(there, bytes);
        let (key, list) =
            if pieces * PIECE <= usize::from(ROOM) { self.send(key, list, pieces) } else { (key, list) };
        self.keys.put(key).unwrap();
        list
    }

    /// Sends a chain as one message under a key.
    fn send(&mut self, key: FreeKey, list: PageList, pieces: usize) -> (FreeKey, PageList) {
        let work = ChainSend { key, list, buf: chain(&self.pool, pieces) };
        self.ends[1].queues.send_chain(SLOT, 6, work).unwrap();
        let Outcome::ChainSent(ChainSend { key, list, buf }) = self.work(1) else { panic!("not sent") };
        assert_eq!((buf.len(), list.count()), (pieces * PIECE, 0));
        (key, list)
    }
}
