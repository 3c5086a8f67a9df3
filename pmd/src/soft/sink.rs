//! A device for benchmarks of the driver: no transport, no link, no wire.
//!
//! It takes every send that is rung for, as soon as it gets a turn, and completes those that ask for it; and it fills
//! shared receives with messages that it was given beforehand. What it costs is counted apart ([`SinkStats::cycles`]), so
//! that the rest of a loop's time is the driver's and what stands above it. It executes the same rings as the device
//! model, and checks what keeps memory safe and a benchmark honest: entries in order, keys, lengths, room in completion queues.

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::HostMemory;
use crate::eal;
use crate::hca::HcaError;
use crate::mem::{Mbuf, Pool};
use crate::mlx5::bus::Bus;
use crate::mlx5::layout::{
    CQE_SIZE, ControlSegment, Cqe, CqeOpcode, DBREC_CONSUMER, DBREC_RECEIVE, DBREC_SEND, DBREC_SIZE, DS_UNIT,
    DataSegment, DatagramAddress, NextSegment, WQEBB, cqe_owner, fm_ce_se,
};
use crate::mlx5::mr::{MrTable, Region};
use crate::mlx5::queues::{MlxQueues, Parts};
use crate::mlx5::rc::RcQp;
use crate::mlx5::rings::{
    CqGeometry, CqRing, DoorbellRecord, QpGeometry, QpRequest, QpRings, Register, RingMemory, SendOperations,
    SrqGeometry, SrqRing, Transport,
};

/// Rings and records begin on a cache line of their own.
const ALIGN: usize = 64;
/// Number of the first queue pair, which is the datagram one.
const FIRST_QPN: u32 = 0x40;
/// Key of the first memory region.
const FIRST_LKEY: u32 = 0x1000;

/// What a sink is made with.
#[derive(Clone, Debug)]
pub struct SinkConfig {
    /// Connected queue pairs.
    pub connections: u16,
    /// Sends of each that may be outstanding.
    pub send_depth: u32,
    /// Depth of the shared receive queue.
    pub srq_depth: u32,
    /// Largest message that an entry of it takes, bytes.
    pub srq_message: usize,
    /// One signalled send in this many.
    pub signal_every: u32,
    /// Messages to receive, one after the other and again from the first, by the connections in turn; none = nothing is
    /// received.
    pub messages: Vec<Vec<u8>>,
    /// Most messages received in one turn.
    pub receives_per_turn: usize,
}

/// What a sink did, readable while it works.
#[derive(Debug, Default)]
pub struct SinkStats {
    sends: AtomicU64,
    send_bytes: AtomicU64,
    completions: AtomicU64,
    receives: AtomicU64,
    doorbells: AtomicU64,
    bad: AtomicU64,
    cycles: AtomicU64,
}

fn add(cell: &AtomicU64, n: u64) {
    // The sink is the only writer.
    cell.store(cell.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl SinkStats {
    /// Sends taken.
    #[must_use]
    pub fn sends(&self) -> u64 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Bytes of their messages.
    #[must_use]
    pub fn send_bytes(&self) -> u64 {
        self.send_bytes.load(Ordering::Relaxed)
    }

    /// Send completions written.
    #[must_use]
    pub fn completions(&self) -> u64 {
        self.completions.load(Ordering::Relaxed)
    }

    /// Messages received.
    #[must_use]
    pub fn receives(&self) -> u64 {
        self.receives.load(Ordering::Relaxed)
    }

    /// Doorbells rung.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.doorbells.load(Ordering::Relaxed)
    }

    /// Entries that a device would not have taken, and completions that found no room. More than 0 spoils a benchmark.
    #[must_use]
    pub fn bad(&self) -> u64 {
        self.bad.load(Ordering::Relaxed)
    }

    /// Cycles of the time-stamp counter that its turns took.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles.load(Ordering::Relaxed)
    }
}

/// A piece of memory for rings. It stays for the life of the process, so that nothing which names it can outlive it: a
/// process makes few sinks.
#[derive(Clone, Copy)]
struct Block {
    base: NonNull<u8>,
    len: usize,
}

impl Block {
    fn new(len: usize) -> Result<Self, HcaError> {
        let layout = Layout::from_size_align(len.max(ALIGN).next_multiple_of(ALIGN), ALIGN)
            .map_err(|_| HcaError::Exhausted("memory for rings"))?;
        // SAFETY: the size is not zero.
        let base =
            NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(HcaError::Exhausted("memory for rings"))?;
        Ok(Self { base, len: layout.size() })
    }

    fn host(self) -> HostMemory {
        // SAFETY: `len` bytes, never freed; no reference to them is ever made.
        unsafe { HostMemory::new(self.base, self.len) }
    }

    fn ring(self) -> RingMemory {
        // SAFETY: as in `host`; driver and sink hand entries over by records and owner bits, on one thread.
        unsafe { RingMemory::new(self.base, self.len) }
    }

    fn record(self, words: usize) -> DoorbellRecord {
        debug_assert!(self.len >= words * 4);
        // SAFETY: as in `host`; aligned to 64, and both sides use atomics.
        unsafe { DoorbellRecord::new(self.base.cast::<AtomicU32>(), words) }
    }
}

/// The device's end of a completion queue.
#[derive(Debug)]
struct CompletionWriter {
    ring: HostMemory,
    dbrec: HostMemory,
    slots: u32,
    producer: u32,
    /// The consumer index as last read: read again only when there seems to be no room.
    consumer: u32,
}

impl CompletionWriter {
    fn create(entries: u32, cqn: u32) -> Result<(CqRing, Self), HcaError> {
        let geometry = CqGeometry::new(entries).ok_or(HcaError::Exhausted("completion queue entries"))?;
        let (ring, dbrec) = (Block::new(geometry.bytes())?, Block::new(DBREC_SIZE)?);
        let description = CqRing { buf: ring.ring(), cqe_count: geometry.slots, dbrec: dbrec.record(2), cqn };
        description.format();
        let writer =
            Self { ring: ring.host(), dbrec: dbrec.host(), slots: geometry.slots, producer: 0, consumer: 0 };
        Ok((description, writer))
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        // The record holds 24 bits; a queue has at most 2^22 entries.
        let used = |consumer: u32, producer: u32| producer.wrapping_sub(consumer) & 0x00ff_ffff;
        if used(self.consumer, self.producer) < self.slots {
            return true;
        }
        self.consumer = self.dbrec.load(DBREC_CONSUMER * 4).unwrap_or(self.consumer);
        used(self.consumer, self.producer) < self.slots
    }

    /// Writes an entry, its owner byte last. There is room.
    #[inline]
    fn write(&mut self, opcode: CqeOpcode, cqe: &Cqe) {
        let at = (self.producer & (self.slots - 1)) as usize * CQE_SIZE;
        let owner = u8::from(self.producer & self.slots != 0) * cqe_owner::OWNER;
        let bytes: [u8; CQE_SIZE] = zerocopy::transmute!(*cqe);
        if let (Some(place), Some((_, body))) = (self.ring.part(at, CQE_SIZE), bytes.split_last()) {
            place.write(body);
            place.publish(CQE_SIZE - 1, (opcode as u8) << cqe_owner::OPCODE_SHIFT | owner);
        }
        self.producer = self.producer.wrapping_add(1);
    }
}

/// What taking the sends of one queue pair gave.
#[derive(Clone, Copy, Default)]
struct Taken {
    sends: u64,
    bytes: u64,
    completions: u64,
    bad: u64,
}

/// The device's end of a send queue.
#[derive(Debug)]
struct SendReader {
    ring: HostMemory,
    dbrec: HostMemory,
    wqebbs: u16,
    consumer: u16,
    qpn: u32,
    /// Units of 16 bytes in front of an entry's data.
    head: usize,
    rung: bool,
}

impl SendReader {
    fn create(qpn: u32, asked: &QpRequest) -> Result<(QpRings, Self), HcaError> {
        let geometry = QpGeometry::new(asked)
            .filter(|g| g.sq_wqebbs <= 1 << 15 && g.rq_slots <= 1 << 15)
            .ok_or(HcaError::Exhausted("send queue entries"))?;
        let ring = Block::new(geometry.sq_wqebbs as usize * WQEBB)?;
        let receives = Block::new((geometry.rq_slots * geometry.rq_stride) as usize)?;
        let dbrec = Block::new(DBREC_SIZE)?;
        let rings = QpRings {
            qpn,
            dbrec: dbrec.record(2),
            sq_buf: ring.ring(),
            sq_wqebbs: geometry.sq_wqebbs,
            rq_buf: receives.ring(),
            rq_slots: geometry.rq_slots,
            rq_stride: geometry.rq_stride,
            // Queue pairs are told apart by the doorbell itself.
            register: Register::new(0, 0),
        };
        rings.format();
        let address = match asked.transport {
            Transport::Ud => size_of::<DatagramAddress>(),
            Transport::Rc => 0,
        };
        let reader = Self {
            ring: ring.host(),
            dbrec: dbrec.host(),
            wqebbs: geometry.sq_wqebbs as u16,
            consumer: 0,
            qpn,
            head: (size_of::<ControlSegment>() + address) / DS_UNIT,
            rung: false,
        };
        Ok((rings, reader))
    }

    /// The 16 bytes at unit `unit` of the entry at `index`, around the end of the ring.
    #[inline]
    fn unit(&self, index: u16, unit: usize) -> Option<[u8; DS_UNIT]> {
        let mask = usize::from(self.wqebbs) * WQEBB - 1;
        let at = (usize::from(index) * WQEBB + unit * DS_UNIT) & mask;
        let mut bytes = [0; DS_UNIT];
        self.ring.part(at, DS_UNIT)?.read(&mut bytes).then_some(bytes)
    }

    /// Takes all that was posted.
    #[inline]
    fn take(&mut self, cq: &mut CompletionWriter) -> Taken {
        let mut taken = Taken::default();
        let producer = self.dbrec.load(DBREC_SEND * 4).unwrap_or(0) as u16;
        while self.consumer != producer {
            let Some(control) = self.unit(self.consumer, 0) else { break };
            let control: ControlSegment = zerocopy::transmute!(control);
            let ds = control.ds();
            if control.index() != self.consumer || control.qpn() != self.qpn || ds == 0 {
                // Out of step for good: a device would stop here, too.
                taken.bad += 1;
                self.consumer = producer;
                break;
            }
            let signalled = control.fm_ce_se & fm_ce_se::CQ_UPDATE != 0;
            if signalled && !cq.has_room() {
                taken.bad += 1;
                break;
            }
            for unit in self.head..ds {
                let Some(data) = self.unit(self.consumer, unit) else { break };
                let data: DataSegment = zerocopy::transmute!(data);
                taken.bytes += u64::from(data.byte_count.get());
            }
            if signalled {
                let mut cqe = Cqe::default();
                cqe.sop_drop_qpn.set((u32::from(control.opcode()) << 24) | self.qpn);
                cqe.wqe_counter.set(self.consumer);
                cq.write(CqeOpcode::Requester, &cqe);
                taken.completions += 1;
            }
            taken.sends += 1;
            self.consumer = self.consumer.wrapping_add(ds.div_ceil(WQEBB / DS_UNIT) as u16);
        }
        taken
    }
}

/// The device's end of a shared receive queue.
#[derive(Debug)]
struct SharedReader {
    ring: HostMemory,
    dbrec: HostMemory,
    stride: usize,
    /// The slot that the next message takes.
    head: u16,
    taken: u16,
}

impl SharedReader {
    fn create(depth: u32, segments: u32) -> Result<(SrqRing, Self), HcaError> {
        let geometry = SrqGeometry::new(depth, segments, 32_767)
            .ok_or(HcaError::Exhausted("shared receive queue entries"))?;
        let (ring, dbrec) = (Block::new(geometry.bytes())?, Block::new(DBREC_SIZE)?);
        let description = SrqRing {
            buf: ring.ring(),
            stride: geometry.stride,
            slots: geometry.slots,
            head: 0,
            tail: (geometry.slots - 1) as u16,
            dbrec: dbrec.record(1),
            srqn: 1,
        };
        description.format();
        let reader = Self {
            ring: ring.host(),
            dbrec: dbrec.host(),
            stride: geometry.stride as usize,
            head: 0,
            taken: 0,
        };
        Ok((description, reader))
    }

    fn posted(&self) -> u16 {
        (self.dbrec.load(DBREC_RECEIVE * 4).unwrap_or(0) as u16).wrapping_sub(self.taken)
    }

    /// Takes the next entry, of which there is one: its slot and its first segment.
    #[inline]
    fn take(&mut self) -> Option<(u16, DataSegment)> {
        let mut bytes = [0; size_of::<NextSegment>() + size_of::<DataSegment>()];
        if !self.ring.part(usize::from(self.head) * self.stride, bytes.len())?.read(&mut bytes) {
            return None;
        }
        let (link, data): (NextSegment, DataSegment) = zerocopy::transmute!(bytes);
        let slot = self.head;
        self.head = link.next.get();
        self.taken = self.taken.wrapping_add(1);
        Some((slot, data))
    }
}

/// The device, which is also the bus that leads to it.
#[derive(Debug)]
pub struct Sink {
    stats: Arc<SinkStats>,
    /// Send queues by queue pair number from [`FIRST_QPN`] on.
    sends: Vec<SendReader>,
    /// Those that were rung for, each once.
    rung: Vec<usize>,
    send_cq: CompletionWriter,
    receive_cq: CompletionWriter,
    srq: SharedReader,
    /// Registered memory; its key is [`FIRST_LKEY`] and its place.
    regions: Vec<HostMemory>,
    /// What the regions are of.
    _pool: Pool,
    messages: Vec<Box<[u8]>>,
    next_message: usize,
    next_connection: u32,
    receives_per_turn: usize,
}

/// A sink with the driver on it.
#[derive(Debug)]
pub struct Made {
    /// The driver's queues; the sink is their bus. Nothing is posted yet.
    pub queues: MlxQueues<Sink, Mbuf>,
    /// The connected queue pairs, to be taken into the table.
    pub connections: Vec<RcQp<Mbuf>>,
    /// What the sink does.
    pub stats: Arc<SinkStats>,
}

impl Sink {
    /// A sink and the driver's queues on it; receive buffers come from `pool`.
    pub fn create(config: &SinkConfig, pool: &Pool) -> Result<Made, HcaError> {
        let segments = config.srq_message.div_ceil(pool.data_room().max(1)).max(1) as u32;
        let asked = |transport, send_wr, recv_wr| QpRequest {
            transport,
            send_wr,
            send_sge: 2,
            recv_wr,
            recv_sge: 1,
            inline_data: 0,
            operations: SendOperations::SendOnly,
        };
        let (ud, reader) = SendReader::create(FIRST_QPN, &asked(Transport::Ud, 64, 64))?;
        let mut sends = vec![reader];
        let mut connections = Vec::new();
        let mut wqebbs = ud.sq_wqebbs;
        for index in 0..u32::from(config.connections) {
            let asked = asked(Transport::Rc, config.send_depth.max(16), 0);
            let (rings, reader) = SendReader::create(FIRST_QPN + 1 + index, &asked)?;
            wqebbs += rings.sq_wqebbs;
            sends.push(reader);
            connections.push(RcQp::new(&rings, false, config.signal_every, None));
        }
        let (srq_ring, srq) = SharedReader::create(config.srq_depth, segments)?;
        let (send_ring, send_cq) = CompletionWriter::create(wqebbs, 1)?;
        let (receive_ring, receive_cq) = CompletionWriter::create(srq_ring.slots + ud.rq_slots, 2)?;
        let (mut regions, mut table) = (Vec::new(), MrTable::new());
        for zone in pool.zones() {
            let Some(base) = NonNull::new(zone.address as *mut u8) else { continue };
            // SAFETY: a pool's zones stay mapped as long as the pool, which the sink keeps a handle of. Posted buffers are
            // the device's until they complete.
            regions.push(unsafe { HostMemory::new(base, zone.length as usize) });
            let lkey = FIRST_LKEY + regions.len() as u32 - 1;
            let region = Region { start: zone.address, len: zone.length, lkey };
            table.add(region).map_err(|_| HcaError::Exhausted("memory regions"))?;
        }
        let stats = Arc::<SinkStats>::default();
        let sink = Self {
            stats: Arc::clone(&stats),
            rung: Vec::with_capacity(sends.len()),
            sends,
            send_cq,
            receive_cq,
            srq,
            regions,
            _pool: pool.clone(),
            messages: config.messages.iter().map(|m| m.as_slice().into()).collect(),
            next_message: 0,
            next_connection: 0,
            receives_per_turn: config.receives_per_turn,
        };
        let queues = MlxQueues::new(Parts {
            receive_cq: receive_ring,
            send_cq: send_ring,
            ud,
            srq: Some(srq_ring),
            receive_depth: (64, config.srq_depth),
            srq_message: config.srq_message,
            regions: table,
            pool: pool.clone(),
            bus: sink,
            max_rc: config.connections.into(),
            signal_every: config.signal_every,
            ud_anchor: None,
            srq_anchor: None,
        });
        Ok(Made { queues, connections, stats })
    }

    fn take_sends(&mut self) {
        let mut all = Taken::default();
        for index in self.rung.drain(..) {
            let Some(queue) = self.sends.get_mut(index) else { continue };
            queue.rung = false;
            let taken = queue.take(&mut self.send_cq);
            all.sends += taken.sends;
            all.bytes += taken.bytes;
            all.completions += taken.completions;
            all.bad += taken.bad;
        }
        add(&self.stats.sends, all.sends);
        add(&self.stats.send_bytes, all.bytes);
        add(&self.stats.completions, all.completions);
        add(&self.stats.bad, all.bad);
    }

    /// Fills receives. Returns how many.
    fn receive(&mut self) -> u64 {
        let connections = self.sends.len() as u32 - 1;
        if self.messages.is_empty() || connections == 0 {
            return 0;
        }
        let (mut received, mut bad) = (0, 0);
        for _ in 0..self.receives_per_turn.min(self.srq.posted().into()) {
            // A full queue holds the sink back, as a wire would hold a sender back that waits for acknowledgements.
            if !self.receive_cq.has_room() {
                break;
            }
            let Some(message) = self.messages.get(self.next_message) else { break };
            let Some((slot, data)) = self.srq.take() else { break };
            if !write_message(&self.regions, &data, message) {
                bad += 1;
            }
            let mut cqe = Cqe::default();
            cqe.byte_cnt.set(message.len() as u32);
            cqe.sop_drop_qpn.set(FIRST_QPN + 1 + self.next_connection);
            cqe.wqe_counter.set(slot);
            self.receive_cq.write(CqeOpcode::ReceiveSend, &cqe);
            received += 1;
            self.next_message =
                if self.next_message + 1 == self.messages.len() { 0 } else { self.next_message + 1 };
            self.next_connection =
                if self.next_connection + 1 == connections { 0 } else { self.next_connection + 1 };
        }
        add(&self.stats.receives, received);
        add(&self.stats.bad, bad);
        received
    }
}

/// Writes a message into the memory of a segment, if key and bounds allow it.
#[inline]
fn write_message(regions: &[HostMemory], data: &DataSegment, message: &[u8]) -> bool {
    let place = || {
        let region = regions.get(data.lkey.get().checked_sub(FIRST_LKEY)? as usize)?;
        let offset = data.address.get().checked_sub(region.address())? as usize;
        region.part(offset, data.byte_count.get() as usize)
    };
    place().is_some_and(|place| place.write(message))
}

impl Bus for Sink {
    #[inline]
    fn ring(&mut self, register: &mut Register, doorbell: [u8; 8]) {
        register.turn_over();
        add(&self.stats.doorbells, 1);
        let [.., a, b, c, _] = doorbell;
        let index = u32::from_be_bytes([0, a, b, c]).wrapping_sub(FIRST_QPN) as usize;
        match self.sends.get_mut(index) {
            Some(queue) if !queue.rung => {
                queue.rung = true;
                self.rung.push(index);
            }
            Some(_) => {}
            None => add(&self.stats.bad, 1),
        }
    }

    #[inline]
    fn turn(&mut self) -> bool {
        let begin = eal::tsc();
        let sent = !self.rung.is_empty();
        if sent {
            self.take_sends();
        }
        let received = self.receive();
        add(&self.stats.cycles, eal::tsc().wrapping_sub(begin));
        sent || received > 0
    }
}

#[cfg(test)]
mod tests;
