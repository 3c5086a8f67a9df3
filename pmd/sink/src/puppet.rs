//! A scripted device for tests of the driver: it consumes receives and writes any completions.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use pmd::hca::{HcaError, QueuesId, UdSlot};
use pmd::mem::packet::{Packet, PacketPool};
use pmd::mlx5::anchor::Anchor;
use pmd::mlx5::bus::Bus;
use pmd::mlx5::mr::MrTable;
use pmd::mlx5::queues::{MlxQueues, Parts};
use pmd::mlx5::rc::RcQp;
use pmd::mlx5::rings::{
    CqGeometry, CqRing, DoorbellRecord, QpRings, Register, RingMemory, SrqGeometry, SrqRing,
};
use pmd::mlx5::ud::UdQp;
use prm::{CQE_SIZE, Cqe, DBREC_RECEIVE, DBREC_SIZE, NextSegment, WQEBB, cqe_owner};

/// Doorbell records, and their neighbors, begin on their own cache line.
const ALIGN: usize = 64;

/// Memory for one ring, and its doorbell record in a separate allocation, so that an access outside the ring
/// is an access outside an allocation.
#[derive(Debug)]
struct Block {
    ring: (NonNull<u8>, Layout),
    record: (NonNull<u8>, Layout),
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for Block {}
// SAFETY: it is only kept; its memory is accessed through the descriptions, by one thread at a time (see
// `Puppet`).
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize) -> Result<Arc<Self>, HcaError> {
        let allocate = |len: usize| {
            let layout = Layout::from_size_align(len.max(1), ALIGN).ok()?;
            // SAFETY: the size is not zero.
            Some((NonNull::new(unsafe { alloc_zeroed(layout) })?, layout))
        };
        let none = || HcaError::Exhausted("memory for rings");
        let ring = allocate(len).ok_or_else(none)?;
        let record = allocate(DBREC_SIZE).ok_or_else(none)?;
        Ok(Arc::new(Self { ring, record }))
    }

    fn ring(&self) -> RingMemory {
        // SAFETY: the holder of a description also holds the block, or is held by a holder of it; all are on
        // one thread at a time.
        unsafe { RingMemory::new(self.ring.0, self.ring.1.size()) }
    }

    fn record(&self) -> DoorbellRecord {
        // SAFETY: as in `ring`; aligned to 64, accessed by atomics only.
        unsafe { DoorbellRecord::new(self.record.0.cast::<AtomicU32>(), DBREC_SIZE / 4) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        for (base, layout) in [self.ring, self.record] {
            // SAFETY: allocated in `new` with this layout, freed once.
            unsafe { dealloc(base.as_ptr(), layout) };
        }
    }
}

/// Keeps a queue's memory as long as the queue.
#[derive(Debug)]
struct Kept(#[expect(dead_code, reason = "held")] Arc<Block>);

impl Anchor for Kept {
    fn release(self: Box<Self>) -> Result<(), HcaError> {
        Ok(())
    }
}

/// Sizes of a puppet's queues.
#[derive(Clone, Copy, Debug)]
pub struct PuppetConfig {
    /// Slots for connections.
    pub connections: u16,
    /// Entries of each completion queue.
    pub completions: u32,
    /// Receives for datagrams, and for connections.
    pub receives: (u32, u32),
    /// Largest message on a connection in bytes.
    pub message: usize,
    /// Most sends outstanding.
    pub sends: u32,
}

/// Parameters of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairConfig {
    /// Its number.
    pub qpn: u32,
    /// Blocks of its send queue, a power of two.
    pub wqebbs: u32,
    /// One signaled send in this many.
    pub signal_every: u32,
    /// It only receives.
    pub passive: bool,
}

/// Selects a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completions {
    /// Of receives.
    Receives,
    /// Of sends.
    Sends,
}

/// Selects a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receives {
    /// Of datagrams.
    Datagrams,
    /// Of connections.
    Connections,
}

/// The device's end of a completion queue.
#[derive(Debug)]
struct CompletionEnd {
    ring: CqRing,
    produced: u32,
    _block: Arc<Block>,
}

impl CompletionEnd {
    fn new(entries: u32, cqn: u32) -> Result<Self, HcaError> {
        let lacking = HcaError::Exhausted("completion queue entries");
        let geometry = CqGeometry::new(entries).ok_or(lacking)?;
        let block = Block::new(geometry.bytes())?;
        let ring = CqRing { buf: block.ring(), cqe_count: geometry.slots, dbrec: block.record(), cqn };
        ring.format();
        Ok(Self { ring, produced: 0, _block: block })
    }
}

/// The device's end of a shared receive queue.
#[derive(Debug)]
struct ReceiveEnd {
    ring: SrqRing,
    next: u16,
    taken: u16,
    block: Arc<Block>,
}

impl ReceiveEnd {
    fn new(entries: u32, segments: u32) -> Result<Self, HcaError> {
        let lacking = HcaError::Exhausted("shared receive queue entries");
        let geometry = SrqGeometry::new(entries, segments, 32_767).ok_or(lacking)?;
        let block = Block::new(geometry.bytes())?;
        let ring = SrqRing {
            buf: block.ring(),
            stride: geometry.stride,
            slots: geometry.slots,
            head: 0,
            tail: (geometry.slots - 1) as u16,
            dbrec: block.record(),
            srqn: 1,
        };
        ring.format();
        Ok(Self { ring, next: 0, taken: 0, block })
    }

    fn take(&mut self) -> Option<u16> {
        if self.ring.dbrec.load(DBREC_RECEIVE) as u16 == self.taken {
            return None;
        }
        let slot = self.next;
        let link: NextSegment = self.ring.buf.read(usize::from(slot) * self.ring.stride as usize);
        self.next = link.next.get();
        self.taken = self.taken.wrapping_add(1);
        Some(slot)
    }
}

/// The device, which is also the driver's bus, so that the owner of the driver's queues has both ends of
/// their rings. Only the driver accesses send queues; the test knows what it posted.
#[derive(Debug)]
pub struct Puppet {
    receives: CompletionEnd,
    sends: CompletionEnd,
    datagrams: ReceiveEnd,
    connections: ReceiveEnd,
}

impl Puppet {
    /// Creates a puppet and the driver's queues on it, without queue pairs.
    pub fn create<P: Packet>(
        config: &PuppetConfig,
        pool: P::Pool,
        regions: MrTable,
    ) -> Result<MlxQueues<Self, P>, HcaError> {
        let room = pool.room().max(1) as usize;
        let segments = config.message.div_ceil(room).max(1) as u32;
        let puppet = Self {
            receives: CompletionEnd::new(config.completions, 2)?,
            sends: CompletionEnd::new(config.completions, 1)?,
            datagrams: ReceiveEnd::new(config.receives.0, 1)?,
            connections: ReceiveEnd::new(config.receives.1, segments)?,
        };
        let kept =
            |end: &ReceiveEnd| -> Option<Box<dyn Anchor>> { Some(Box::new(Kept(Arc::clone(&end.block)))) };
        Ok(MlxQueues::new(Parts {
            id: QueuesId(0),
            receive_cq: puppet.receives.ring,
            send_cq: puppet.sends.ring,
            datagrams: puppet.datagrams.ring,
            connections: Some(puppet.connections.ring),
            receive_depth: config.receives,
            srq_message: config.message,
            regions,
            pool,
            max_ud: 1,
            max_rc: config.connections.into(),
            max_sends: config.sends,
            datagrams_anchor: kept(&puppet.datagrams),
            connections_anchor: kept(&puppet.connections),
            bus: puppet,
        }))
    }

    /// Creates a connected queue pair.
    pub fn connection<P: Packet>(config: &QueuePairConfig) -> Result<RcQp<P>, HcaError> {
        let (rings, block) = queue_pair(config)?;
        let anchor: Box<dyn Anchor> = Box::new(Kept(block));
        Ok(RcQp::new(&rings, config.passive, UdSlot(0), config.signal_every, Some(anchor)))
    }

    /// Creates a datagram queue pair.
    pub fn datagrams<P: Packet>(config: &QueuePairConfig) -> Result<UdQp<P>, HcaError> {
        let (rings, block) = queue_pair(config)?;
        let anchor: Box<dyn Anchor> = Box::new(Kept(block));
        Ok(UdQp::new(&rings, false, config.signal_every, Some(anchor)))
    }

    const fn end(&mut self, queue: Completions) -> &mut CompletionEnd {
        match queue {
            Completions::Receives => &mut self.receives,
            Completions::Sends => &mut self.sends,
        }
    }

    /// Writes the next completion with opcode `code`, as a device would, with the owner bit of the current
    /// lap.
    pub fn complete(&mut self, queue: Completions, code: u8, cqe: &Cqe) {
        let end = self.end(queue);
        let lap = u8::from(end.produced & end.ring.cqe_count != 0) * cqe_owner::OWNER;
        let low = cqe.op_own & !cqe_owner::OWNER & ((1 << cqe_owner::OPCODE_SHIFT) - 1);
        let cqe = Cqe { op_own: code << cqe_owner::OPCODE_SHIFT | low | lap, ..*cqe };
        let at = (end.produced & (end.ring.cqe_count - 1)) as usize * CQE_SIZE;
        end.ring.buf.write(at, &cqe);
        end.produced = end.produced.wrapping_add(1);
    }

    /// Writes any bytes to any entry, as no device would.
    pub fn scribble(&mut self, queue: Completions, entry: u32, bytes: &[u8; CQE_SIZE]) {
        let ring = self.end(queue).ring;
        ring.buf.write((entry & (ring.cqe_count - 1)) as usize * CQE_SIZE, bytes);
    }

    /// Consumes the oldest posted receive and returns its slot.
    pub fn take_receive(&mut self, queue: Receives) -> Option<u16> {
        match queue {
            Receives::Datagrams => self.datagrams.take(),
            Receives::Connections => self.connections.take(),
        }
    }
}

fn queue_pair(config: &QueuePairConfig) -> Result<(QpRings, Arc<Block>), HcaError> {
    let sizes = config.wqebbs.is_power_of_two() && config.wqebbs <= 1 << 15;
    if !sizes {
        return Err(HcaError::Exhausted("send queue entries"));
    }
    let block = Block::new(config.wqebbs as usize * WQEBB)?;
    let rings = QpRings {
        qpn: config.qpn,
        dbrec: block.record(),
        sq_buf: block.ring(),
        sq_wqebbs: config.wqebbs,
        rq_buf: RingMemory::empty(),
        rq_slots: 0,
        rq_stride: 1,
        register: Register::new(0, 0),
    };
    rings.format();
    Ok((rings, block))
}

impl Bus for Puppet {
    fn ring(&mut self, register: &mut Register, _doorbell: [u8; 8]) {
        register.turn_over();
    }

    fn turn(&mut self) -> bool {
        false
    }
}
