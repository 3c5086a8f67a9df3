//! The device's ends of the rings.

use std::alloc::{Layout, alloc_zeroed};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use connectx::HostMemory;
use pmd::fetch::fetch_at;
use pmd::hca::HcaError;
use pmd::mlx5::rings::{
    CqGeometry, CqRing, DoorbellRecord, QpGeometry, QpRequest, QpRings, Register, RingMemory, SrqGeometry,
    SrqRing, Transport,
};
use prm::{
    CQE_SIZE, ControlSegment, Cqe, CqeOpcode, DBREC_CONSUMER, DBREC_RECEIVE, DBREC_SEND, DBREC_SIZE, DS_UNIT,
    DataSegment, DatagramAddress, NextSegment, SendOpcode, WQEBB, cqe_owner, fm_ce_se,
};

use super::FIRST_QPN;
use super::sample::Sample;

/// Rings and records begin on their own cache line.
const ALIGN: usize = 64;
/// Offset of the completion fields of a send: opcode and queue pair, index, owner.
const SENT: usize = offset_of!(Cqe, sop_drop_qpn);
const _: () = assert!(offset_of!(Cqe, wqe_counter) == SENT + 4 && CQE_SIZE == SENT + 8);
/// The flag of an entry that requests a completion, in the second eight bytes.
const CQ_UPDATE: u64 = (fm_ce_se::CQ_UPDATE as u64) << 32;

/// A block of memory for rings. It is never freed, so that nothing that names it can outlive it: a process
/// creates few sinks.
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
        // SAFETY: `len` bytes, never freed; no reference to them is ever created.
        unsafe { HostMemory::new(self.base, self.len) }
    }

    fn ring(self) -> RingMemory {
        // SAFETY: as in `host`; driver and sink pass entries through records and owner bits, on one thread.
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
pub(super) struct CompletionWriter {
    ring: HostMemory,
    dbrec: HostMemory,
    slots: u32,
    producer: u32,
    /// The consumer index as last read. It is read again only when there seems to be no room.
    consumer: u32,
}

impl CompletionWriter {
    pub(super) fn create(entries: u32, cqn: u32) -> Result<(CqRing, Self), HcaError> {
        let geometry = CqGeometry::new(entries).ok_or(HcaError::Exhausted("completion queue entries"))?;
        let (ring, dbrec) = (Block::new(geometry.bytes())?, Block::new(DBREC_SIZE)?);
        let description = CqRing { buf: ring.ring(), cqe_count: geometry.slots, dbrec: dbrec.record(2), cqn };
        description.format();
        let writer =
            Self { ring: ring.host(), dbrec: dbrec.host(), slots: geometry.slots, producer: 0, consumer: 0 };
        Ok((description, writer))
    }

    /// Number of free entries; exact only up to `wanted`.
    #[inline]
    fn room(&mut self, wanted: u32) -> u32 {
        // The record holds 24 bits; a queue has at most 2^22 entries.
        let used = |consumer: u32, producer: u32| producer.wrapping_sub(consumer) & 0x00ff_ffff;
        let room = self.slots.saturating_sub(used(self.consumer, self.producer));
        if room >= wanted {
            return room;
        }
        self.consumer = self.dbrec.load(DBREC_CONSUMER * 4).unwrap_or(self.consumer);
        self.slots.saturating_sub(used(self.consumer, self.producer))
    }

    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        self.room(1) > 0
    }

    /// Writes an entry, its owner byte last. The caller has checked that there is room.
    #[inline]
    pub(super) fn write(&mut self, opcode: CqeOpcode, cqe: &Cqe) {
        self.batch(1).write(opcode, std::iter::once(*cqe));
    }

    /// Writes the entry of a send: only its end, because the rest is always zero. The caller has checked that
    /// there is room.
    #[inline(always)]
    fn write_sent(&mut self, qpn: u32, index: u16) {
        let at = (self.producer & (self.slots - 1)) as usize * CQE_SIZE + SENT;
        let owner = u8::from(self.producer & self.slots != 0) * cqe_owner::OWNER;
        let [_, a, b, c] = qpn.to_be_bytes();
        let [d, e] = index.to_be_bytes();
        if let Some(place) = self.ring.part(at, CQE_SIZE - SENT) {
            place.write(&[SendOpcode::Send as u8, a, b, c, d, e, 0]);
            place.publish(
                CQE_SIZE - SENT - 1,
                (CqeOpcode::Requester as u8) << cqe_owner::OPCODE_SHIFT | owner,
            );
        }
        self.producer = self.producer.wrapping_add(1);
    }

    /// Prepares to write `wanted` consecutive entries, or as many as fit.
    #[inline(always)]
    pub(super) fn batch(&mut self, wanted: u32) -> CompletionBatch<'_> {
        let room = self.room(wanted).min(wanted);
        let Self { ring, slots, producer, .. } = *self;
        CompletionBatch { ring, slots, producer, room, writer: self }
    }
}

/// Consecutive entries to write. The next index is a local copy, because the queue's own would be reloaded
/// after every write.
pub(super) struct CompletionBatch<'w> {
    writer: &'w mut CompletionWriter,
    ring: HostMemory,
    slots: u32,
    producer: u32,
    room: u32,
}

impl Drop for CompletionBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.writer.producer = self.producer;
    }
}

impl CompletionBatch<'_> {
    /// Number of entries that fit.
    #[inline(always)]
    pub(super) const fn room(&self) -> u32 {
        self.room
    }

    /// Writes one entry for each of `cqes`, its owner byte last. The caller has checked that there is room
    /// for all. Contiguous entries up to the end of the ring have the same owner.
    #[inline(always)]
    pub(super) fn write(&mut self, opcode: CqeOpcode, mut cqes: impl ExactSizeIterator<Item = Cqe>) {
        while cqes.len() > 0 {
            let at = self.producer & (self.slots - 1);
            let count = (self.slots - at).min(cqes.len() as u32);
            let owner = u8::from(self.producer & self.slots != 0) * cqe_owner::OWNER;
            let last = (opcode as u8) << cqe_owner::OPCODE_SHIFT | owner;
            let Some(run) = self.ring.part(at as usize * CQE_SIZE, count as usize * CQE_SIZE) else { return };
            for (n, cqe) in (0..count as usize).zip(&mut cqes) {
                let bytes: [u8; CQE_SIZE] = zerocopy::transmute!(cqe);
                let [body @ .., _] = bytes;
                // SAFETY: `count` entries lie in `run`, to which no reference exists; the owner byte is
                // shared as an atomic.
                unsafe {
                    let entry = run.base().add(n * CQE_SIZE);
                    entry.cast::<[u8; CQE_SIZE - 1]>().write_unaligned(body);
                    AtomicU8::from_ptr(entry.add(CQE_SIZE - 1).as_ptr()).store(last, Ordering::Release);
                }
            }
            self.producer = self.producer.wrapping_add(count);
        }
    }
}

/// Result of consuming the sends of one queue pair.
#[derive(Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) sends: u64,
    pub(super) bytes: u64,
    pub(super) completions: u64,
    pub(super) bad: u64,
}

/// The device's end of a send queue.
// On its own cache line: in an adapter the state of a queue pair is separate, too.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct SendReader {
    ring: HostMemory,
    pub(super) dbrec: HostMemory,
    wqebbs: u16,
    consumer: u16,
    qpn: u32,
    /// Units of 16 bytes in front of an entry's data.
    head: usize,
}

impl SendReader {
    pub(super) fn create(qpn: u32, request: &QpRequest) -> Result<(QpRings, Self), HcaError> {
        let geometry = QpGeometry::new(request)
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
            // The doorbell itself identifies the queue pair.
            register: Register::new(0, 0),
        };
        rings.format();
        let address = match request.transport {
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
        };
        Ok((rings, reader))
    }

    /// Prefetches the memory that is read first when entries are consumed.
    #[inline(always)]
    pub(super) fn fetch(&self) {
        fetch_at(self.dbrec.address() as *const u8);
        let at = usize::from(self.consumer & (self.wqebbs - 1)) * WQEBB;
        fetch_at((self.ring.address() + at as u64) as *const u8);
    }

    /// The 16 bytes at unit `unit` of the entry at `index`, wrapping at the end of the ring.
    #[inline]
    fn unit(&self, index: u16, unit: usize) -> Option<[u8; DS_UNIT]> {
        let mask = usize::from(self.wqebbs) * WQEBB - 1;
        let at = (usize::from(index) * WQEBB + unit * DS_UNIT) & mask;
        let mut bytes = [0; DS_UNIT];
        self.ring.part(at, DS_UNIT)?.read(&mut bytes).then_some(bytes)
    }

    /// Consumes all posted entries.
    #[inline]
    pub(super) fn take(
        &mut self,
        cq: &mut CompletionWriter,
        sample: &mut Sample,
        regions: &[HostMemory],
        taken: &mut Taken,
    ) {
        let producer = self.dbrec.load(DBREC_SEND * 4).unwrap_or(0) as u16;
        // There are at most as many entries as blocks. Usually none of them is in the sample, and the check
        // is skipped.
        if sample.has_one_within(producer.wrapping_sub(self.consumer)) {
            return self.take_looking(producer, cq, sample, regions, taken);
        }
        let before = taken.sends;
        match self.head {
            1 => self.take_plain::<1>(producer, cq, taken),
            4 => self.take_plain::<4>(producer, cq, taken),
            _ => {}
        }
        if self.consumer != producer {
            self.take_any(producer, cq, taken);
        }
        sample.pass_sends((taken.sends - before) as u32);
    }

    /// Consumes entries that are not plain.
    #[inline(never)]
    fn take_any(&mut self, producer: u16, cq: &mut CompletionWriter, taken: &mut Taken) {
        self.take_each(producer, cq, taken, |_, _| {});
    }

    /// Consumes the posted entries and inspects those in the sample.
    #[cold]
    #[inline(never)]
    fn take_looking(
        &mut self,
        producer: u16,
        cq: &mut CompletionWriter,
        sample: &mut Sample,
        regions: &[HostMemory],
        taken: &mut Taken,
    ) {
        self.take_each(producer, cq, taken, |this, control| {
            if sample.has_send() {
                this.show(control, sample, regions);
            }
        });
    }

    /// Consumes sends of one segment, with the data segment behind `HEAD` units of 16 bytes, up to the first
    /// other entry.
    ///
    /// The first eight bytes of such an entry are known in advance: index, opcode, queue pair and length are
    /// compared at once, where [`SendReader::take_each`] decodes them one by one.
    #[inline(always)]
    fn take_plain<const HEAD: usize>(&mut self, producer: u16, cq: &mut CompletionWriter, taken: &mut Taken) {
        let step = (HEAD + 1).div_ceil(WQEBB / DS_UNIT) as u16;
        let stride = usize::from(step) * WQEBB;
        let plain = u64::from(SendOpcode::Send as u8) << 32 | u64::from(self.qpn) << 8 | (HEAD as u64 + 1);
        while self.consumer != producer {
            // Contiguous entries, up to the end of the ring.
            let at = self.consumer & self.wqebbs.wrapping_sub(1);
            let count = producer.wrapping_sub(self.consumer).min(self.wqebbs - at) / step;
            let Some(run) = self.ring.part(usize::from(at) * WQEBB, usize::from(count) * stride) else {
                return;
            };
            let (mut expected, mut bytes, mut done) = (u64::from(self.consumer) << 40 | plain, 0, 0);
            while done < usize::from(count) {
                // SAFETY: `count` entries of `stride` bytes, which is more than the head and a unit, lie in
                // `run`; the driver has written them before it rang.
                let (start, data) = unsafe {
                    let entry = run.base().add(done * stride);
                    let data = entry.add(HEAD * DS_UNIT).cast::<[u8; DS_UNIT]>();
                    (entry.cast::<[u64; 2]>().read_unaligned(), data.read_unaligned())
                };
                let data: DataSegment = zerocopy::transmute!(data);
                let [word, flags] = start.map(u64::from_be);
                if word != expected {
                    break;
                }
                if flags & CQ_UPDATE != 0 {
                    if !cq.has_room() {
                        break;
                    }
                    cq.write_sent(self.qpn, (expected >> 40) as u16);
                    taken.completions += 1;
                }
                bytes += u64::from(data.byte_count.get());
                done += 1;
                // Indices wrap to 0 only where the ring does, too.
                expected += u64::from(step) << 40;
            }
            self.consumer = self.consumer.wrapping_add(done as u16 * step);
            taken.sends += done as u64;
            taken.bytes += bytes;
            if done == 0 || done < usize::from(count) {
                return;
            }
        }
    }

    #[inline(always)]
    fn take_each(
        &mut self,
        producer: u16,
        cq: &mut CompletionWriter,
        taken: &mut Taken,
        mut look: impl FnMut(&Self, &ControlSegment),
    ) {
        while self.consumer != producer {
            let Some(control) = self.unit(self.consumer, 0) else { break };
            let control: ControlSegment = zerocopy::transmute!(control);
            let ds = control.ds();
            if control.index() != self.consumer || control.qpn() != self.qpn || ds == 0 {
                // Out of step for good: a real device would stop here, too.
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
            look(self, &control);
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
    }
}

impl SendReader {
    /// Inspects the entry that is consumed now.
    #[cold]
    fn show(&self, control: &ControlSegment, sample: &mut Sample, regions: &[HostMemory]) {
        match control.opcode() {
            opcode if opcode == SendOpcode::Send as u8 => {}
            // The driver's NOP, which fetches the last completions: it has no message.
            opcode if opcode == SendOpcode::Nop as u8 => return,
            _ => return sample.add_wrong(),
        }
        let ds = control.ds();
        let connection = (self.qpn > FIRST_QPN).then(|| (self.qpn - FIRST_QPN - 1) as u16);
        let address = || {
            let units: Option<Vec<_>> = (1..self.head).map(|unit| self.unit(self.consumer, unit)).collect();
            let bytes: [u8; size_of::<DatagramAddress>()] = units?.concat().try_into().ok()?;
            Some(zerocopy::transmute!(bytes))
        };
        let to: Option<DatagramAddress> = if connection.is_none() { address() } else { None };
        let data = (self.head..ds)
            .map_while(|unit| self.unit(self.consumer, unit).map(|bytes| zerocopy::transmute!(bytes)));
        sample.look_at_send(regions, connection, to.as_ref(), data);
    }
}

/// The device's end of a shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReader {
    ring: HostMemory,
    dbrec: HostMemory,
    stride: usize,
    /// The slot of the next message.
    head: u16,
    taken: u16,
}

impl SharedReader {
    pub(super) fn create(depth: u32, segments: u32) -> Result<(SrqRing, Self), HcaError> {
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

    pub(super) fn posted(&self) -> u16 {
        (self.dbrec.load(DBREC_RECEIVE * 4).unwrap_or(0) as u16).wrapping_sub(self.taken)
    }

    /// Prepares to consume consecutive entries.
    #[inline(always)]
    pub(super) const fn batch(&mut self) -> SharedBatch<'_> {
        SharedBatch { ring: self.ring, stride: self.stride, head: self.head, taken: self.taken, reader: self }
    }
}

/// Consecutive entries of a shared receive queue to consume; as [`CompletionBatch`].
pub(super) struct SharedBatch<'r> {
    reader: &'r mut SharedReader,
    ring: HostMemory,
    stride: usize,
    head: u16,
    taken: u16,
}

impl Drop for SharedBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.reader.head = self.head;
        self.reader.taken = self.taken;
    }
}

impl SharedBatch<'_> {
    /// Consumes the next entry, which must exist, and returns its slot and its first segment.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<(u16, DataSegment)> {
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
