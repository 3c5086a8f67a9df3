//! Counted packet buffers, and a scripted device. It consumes send entries and writes completions, with an
//! independent reading of the formats.

use std::sync::{Arc, Mutex};

use zerocopy::FromBytes;

use super::Arena;
use crate::hca::{QueuesId, UdSlot};
use crate::mem::packet::{Packet, PacketPool, Stash};
use crate::mlx5::bus::Recorder;
use crate::mlx5::mr::{MrTable, Region};
use crate::mlx5::queues::{MlxQueues, Parts};
use crate::mlx5::rc::RcQp;
use crate::mlx5::rings::{CqRing, QpRings, RingMemory, SrqRing};
use crate::mlx5::ud::UdQp;
use prm::{ControlSegment, Cqe, CqeOpcode, DataSegment, ErrorCqe, INVALID_LKEY, NextSegment, SendOpcode};

pub(super) const HEADROOM: usize = 128;
pub(super) const ROOM: usize = 64;
/// Distance between buffers. The data of each starts at a multiple of this, so that all of it fits into a
/// key's list.
pub(super) const EACH: usize = 2048;
pub(super) const LKEY: u32 = 0x1234_5600;
pub(super) const UD: u32 = 0x40;
/// Entries of the receive completion queue.
pub(super) const RECEIVE_ENTRIES: usize = 1024;
/// Buffers of an entry of the shared receive queue.
pub(super) const PER_ENTRY: usize = 3;
/// Contents of a freed buffer.
const POISON: u8 = 0xdd;

/// Memory of all buffers, and which of them are in use.
pub(super) struct Store {
    _arena: Arena,
    pub(super) memory: RingMemory,
    out: Mutex<Vec<bool>>,
}

// SAFETY: this value only keeps the arena alive. Memory is accessed by copies, each buffer by its one owner
// at a time.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

#[derive(Clone)]
pub(super) struct Buffers(Arc<Store>);

impl Buffers {
    pub(super) fn new(count: usize) -> Self {
        let mut arena = Arena::new((count + 1) * EACH);
        arena.align(EACH, HEADROOM);
        let memory = arena.ring(count * EACH);
        Self(Arc::new(Store { _arena: arena, memory, out: Mutex::new(vec![false; count]) }))
    }

    pub(super) fn base(&self) -> u64 {
        self.0.memory.base().as_ptr() as u64
    }

    pub(super) fn out(&self) -> usize {
        self.0.out.lock().unwrap().iter().filter(|out| **out).count()
    }

    fn one(&self) -> Option<usize> {
        let mut out = self.0.out.lock().unwrap();
        let index = out.iter().position(|out| !out)?;
        out[index] = true;
        Some(index)
    }

    /// Returns a chain that contains `bytes`, with at least one segment.
    pub(super) fn chain(&self, bytes: &[u8]) -> Option<Buffer> {
        let mut buffer = Buffer { store: self.clone(), parts: vec![] };
        for part in bytes.chunks(ROOM) {
            let index = self.one()?;
            self.0.memory.write(index * EACH + HEADROOM, part);
            buffer.parts.push((index, part.len()));
        }
        if bytes.is_empty() {
            buffer.parts.push((self.one()?, 0));
        }
        Some(buffer)
    }

    fn offset(&self, address: u64) -> usize {
        usize::try_from(address.checked_sub(self.base()).expect("an address in the pool")).unwrap()
    }

    /// Reads memory as the device does.
    pub(super) fn get(&self, address: u64, len: usize) -> Vec<u8> {
        let at = self.offset(address);
        (at..at + len).map(|i| self.0.memory.read::<u8>(i)).collect()
    }

    /// Writes memory as the device does: only to buffers in use.
    pub(super) fn put(&self, address: u64, bytes: &[u8]) {
        let at = self.offset(address);
        assert!(self.0.out.lock().unwrap()[at / EACH], "the device writes to a free buffer");
        assert!(bytes.is_empty() || (at + bytes.len() - 1) / EACH == at / EACH);
        self.0.memory.write(at, bytes);
    }
}

/// A chain of buffers.
pub(super) struct Buffer {
    store: Buffers,
    parts: Vec<(usize, usize)>,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts.fmt(f)
    }
}

impl Buffer {
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.pieces().flat_map(|(address, len)| self.store.get(address, len as usize)).collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        for (index, _) in &self.parts {
            let was = std::mem::replace(&mut self.store.0.out.lock().unwrap()[*index], false);
            assert!(was, "buffer {index} is freed twice");
            self.store.0.memory.write(index * EACH, [POISON; EACH].as_slice());
        }
    }
}

impl Packet for Buffer {
    type Pool = Buffers;

    fn segments(&self) -> usize {
        self.parts.len()
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u32)> {
        self.parts
            .iter()
            .map(|(index, len)| (self.store.base() + (index * EACH + HEADROOM) as u64, *len as u32))
    }

    fn room(&self) -> (u64, u32) {
        (self.store.base() + (self.parts[0].0 * EACH + HEADROOM) as u64, ROOM as u32)
    }

    fn fill(&mut self, len: u32) {
        assert!(self.parts.len() == 1 && len as usize <= ROOM);
        self.parts[0].1 = len as usize;
    }

    fn lay(&mut self, at: usize, bytes: &[u8]) -> bool {
        let fits = at + bytes.len() <= ROOM;
        if fits {
            self.store.0.memory.write(self.parts[0].0 * EACH + HEADROOM + at, bytes);
            self.parts[0].1 = at + bytes.len();
        }
        fits
    }

    fn append(&mut self, mut tail: Self) {
        assert_eq!(self.parts.len(), 1);
        self.parts.append(&mut tail.parts);
    }

    fn byte_before_data(&self, distance: usize) -> u8 {
        self.store.0.memory.read(self.parts[0].0 * EACH + HEADROOM - distance)
    }
}

impl PacketPool<Buffer> for Buffers {
    fn room(&self) -> u32 {
        ROOM as u32
    }

    fn take(&mut self, count: usize, into: &mut Stash<Buffer>) -> bool {
        let fresh: Vec<Buffer> = (0..count).map_while(|_| self.chain(&[])).collect();
        if fresh.len() < count || count > into.remaining_capacity() {
            return false;
        }
        into.extend(fresh);
        true
    }

    fn lies_within(&self, start: u64, len: u64) -> bool {
        start <= self.base() && start + len >= self.base() + self.0.memory.len() as u64
    }
}

/// A send entry that the device has consumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    pub(super) index: u16,
    pub(super) wqebbs: u16,
    pub(super) opcode: u8,
    pub(super) signalled: bool,
    pub(super) pieces: Vec<(u64, usize)>,
    /// Contents of the segments at that time.
    pub(super) bytes: Vec<u8>,
    pub(super) imm: u32,
    pub(super) fence: u8,
    /// Units after the control segment.
    pub(super) units: Vec<[u8; 16]>,
}

/// Device side of a queue pair.
pub(super) struct DeviceQp {
    rings: QpRings,
    sq_taken: u16,
    passive: bool,
}

/// Device side of a shared receive queue.
struct Shared {
    ring: SrqRing,
    taken: u16,
    next: u16,
}

impl Shared {
    fn new(ring: SrqRing) -> Self {
        Self { ring, taken: 0, next: 0 }
    }

    /// Consumes the next entry.
    fn take(&mut self) -> Option<u16> {
        if self.ring.dbrec.load(0) as u16 == self.taken {
            return None;
        }
        let slot = self.next;
        self.next =
            self.ring.buf.read::<NextSegment>(usize::from(slot) * self.ring.stride as usize).next.get();
        self.taken = self.taken.wrapping_add(1);
        Some(slot)
    }

    /// Reads unit `n` of an entry; 0 is the link.
    fn segment(&self, slot: u16, n: usize) -> DataSegment {
        self.ring.buf.read(usize::from(slot) * self.ring.stride as usize + n * 16)
    }
}

/// Rings and their device side.
pub(super) struct Device {
    arena: Arena,
    pub(super) buffers: Buffers,
    pub(super) qps: Vec<DeviceQp>,
    srq: Shared,
    datagrams: Shared,
    receive_cq: (CqRing, u32),
    send_cq: (CqRing, u32),
}

/// Depths of [`Device::new`].
pub(super) struct Depths {
    pub(super) send: u32,
    pub(super) ud_receive: u32,
    pub(super) shared: u32,
    pub(super) signal_every: u32,
    /// Maximum number of outstanding sends.
    pub(super) sends: u32,
    pub(super) buffers: usize,
}

pub(super) type TestQueues = MlxQueues<Recorder, Buffer>;

impl Device {
    pub(super) fn new(depths: &Depths) -> (Self, TestQueues) {
        let mut arena = Arena::new(1 << 20);
        let buffers = Buffers::new(depths.buffers);
        let ud = arena.qp(UD, depths.send, 0, 16);
        ud.format();
        let datagrams = arena.srq(2 * depths.ud_receive, 2 * depths.ud_receive, 32);
        // The link (16 bytes) and three segments fill the stride. In a longer one the fourth segment would be
        // the terminator.
        let srq = arena.srq(depths.shared, depths.shared, 128);
        let receive_cq = arena.cq(RECEIVE_ENTRIES as u32);
        let send_cq = arena.cq(depths.sends.next_power_of_two());
        let mut regions = MrTable::new();
        let len = (depths.buffers * EACH) as u64;
        regions.add(Region { start: buffers.base(), len, lkey: LKEY }).unwrap();
        let mut queues = MlxQueues::new(Parts {
            id: QueuesId(0),
            receive_cq,
            send_cq,
            datagrams,
            connections: Some(srq),
            receive_depth: (depths.ud_receive, depths.shared - 1),
            srq_message: PER_ENTRY * ROOM,
            regions,
            pool: buffers.clone(),
            bus: Recorder::default(),
            max_ud: 2,
            max_rc: 8,
            max_sends: depths.sends,
            datagrams_anchor: None,
            connections_anchor: None,
        });
        queues.insert_datagrams(UdSlot(0), UdQp::new(&ud, false, depths.signal_every, None)).unwrap();
        queues.open_datagrams(UdSlot(0));
        let qps = vec![DeviceQp { rings: ud, sq_taken: 0, passive: false }];
        let (receive_cq, send_cq) = ((receive_cq, 0), (send_cq, 0));
        (
            Self {
                arena,
                buffers,
                qps,
                srq: Shared::new(srq),
                datagrams: Shared::new(datagrams),
                receive_cq,
                send_cq,
            },
            queues,
        )
    }

    /// Creates a connected queue pair and returns its data path. The device side is the last of `qps`.
    pub(super) fn rc(&mut self, qpn: u32, wqebbs: u32, passive: bool, signal_every: u32) -> RcQp<Buffer> {
        let rings = self.arena.qp(qpn, wqebbs, 0, 16);
        rings.format();
        self.qps.push(DeviceQp { rings, sq_taken: 0, passive });
        RcQp::new(&rings, passive, UdSlot(0), signal_every, None)
    }

    /// Consumes the send entries that were handed to the device.
    pub(super) fn take_sends(&mut self, qp: usize) -> Vec<Taken> {
        let DeviceQp { rings, sq_taken, .. } = &mut self.qps[qp];
        let posted = rings.dbrec.load(1) as u16;
        let mut taken = vec![];
        while *sq_taken != posted {
            let unit = |n: usize| -> [u8; 16] {
                let at = (usize::from(*sq_taken) * 64 + n * 16) % (rings.sq_wqebbs as usize * 64);
                rings.sq_buf.read(at)
            };
            let control = ControlSegment::read_from_bytes(&unit(0)).unwrap();
            assert_eq!((control.qpn(), control.index()), (rings.qpn, *sq_taken));
            let head = match SendOpcode::from_code(control.opcode()) {
                Some(SendOpcode::Umr) => control.ds(),
                Some(SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm | SendOpcode::RdmaRead) => 2,
                Some(SendOpcode::Nop) => 1,
                _ => {
                    if qp == 0 {
                        4
                    } else {
                        1
                    }
                }
            };
            let pieces: Vec<(u64, usize)> = (head..control.ds())
                .filter_map(|n| {
                    let data = DataSegment::read_from_bytes(&unit(n)).unwrap();
                    let lkey = data.lkey.get();
                    // The list of a newly registered key is not followed.
                    let made = |t: &Taken| t.opcode == SendOpcode::Umr as u8 && t.imm == lkey;
                    assert!(lkey == LKEY || taken.iter().any(made));
                    (lkey == LKEY).then_some((data.address.get(), data.byte_count.get() as usize))
                })
                .collect();
            let bytes = pieces.iter().flat_map(|(address, len)| self.buffers.get(*address, *len)).collect();
            let wqebbs = control.ds().div_ceil(4) as u16;
            taken.push(Taken {
                index: *sq_taken,
                wqebbs,
                opcode: control.opcode(),
                signalled: control.fm_ce_se & 0x08 != 0,
                pieces,
                bytes,
                imm: control.imm.get(),
                fence: control.fm_ce_se >> 5,
                units: (1..control.ds()).map(unit).collect(),
            });
            *sq_taken = sq_taken.wrapping_add(wqebbs);
        }
        taken
    }

    fn write(&mut self, receive: bool, mut cqe: Cqe, opcode: CqeOpcode) {
        let (ring, produced) = if receive { &mut self.receive_cq } else { &mut self.send_cq };
        let lap = u8::from(*produced & ring.cqe_count != 0);
        let free = (ring.dbrec.load(0).wrapping_add(ring.cqe_count).wrapping_sub(*produced)) & 0x00ff_ffff;
        assert!(free > 0, "the completion queue overruns");
        cqe.op_own = ((opcode as u8) << 4) | lap;
        ring.buf.write((*produced % ring.cqe_count) as usize * 64, &cqe);
        *produced = produced.wrapping_add(1);
    }

    fn send_cqe(&mut self, qp: usize, index: u16, cqe: Cqe, opcode: CqeOpcode) {
        let mut cqe = cqe;
        cqe.sop_drop_qpn.set((0x0a << 24) | self.qps[qp].rings.qpn);
        cqe.wqe_counter.set(index);
        let receive = self.qps[qp].passive;
        self.write(receive, cqe, opcode);
    }

    /// Completes a send.
    pub(super) fn sent(&mut self, qp: usize, index: u16) {
        self.send_cqe(qp, index, Cqe::default(), CqeOpcode::Requester);
    }

    /// Fails a send with `syndrome`. The byte count contains a value that must not be used.
    pub(super) fn send_failed(&mut self, qp: usize, index: u16, syndrome: u8) {
        let cqe = zerocopy::transmute!(ErrorCqe { syndrome, reserved_36: [0xff; 18], ..ErrorCqe::default() });
        self.send_cqe(qp, index, cqe, CqeOpcode::RequesterError);
    }

    /// Delivers a datagram: 40 bytes of GRH area, then the payload. Returns false if no receive is posted.
    pub(super) fn datagram(&mut self, grh: Option<[u8; 40]>, payload: &[u8]) -> bool {
        let Some(counter) = self.datagrams.take() else { return false };
        let data = self.datagrams.segment(counter, 1);
        assert_eq!(data.lkey.get(), LKEY);
        assert!(payload.len() + 40 <= data.byte_count.get() as usize);
        self.buffers.put(data.address.get(), &[&grh.unwrap_or([0; 40]), payload].concat());
        let mut cqe = Cqe::default();
        cqe.flags_rqpn.set(0x0000_0456 | (3 << 24) | if grh.is_some() { 1 << 28 } else { 0 });
        cqe.slid.set(17);
        cqe.imm_inval_pkey.set(1);
        cqe.byte_cnt.set(payload.len() as u32 + 40);
        cqe.sop_drop_qpn.set(UD);
        cqe.wqe_counter.set(counter);
        self.write(true, cqe, CqeOpcode::ReceiveSend);
        true
    }

    /// Consumes the next entry of the shared receive queue and writes `payload` to it. Returns its slot.
    pub(super) fn scatter(&mut self, payload: &[u8]) -> Option<u16> {
        let slot = self.srq.take()?;
        let mut rest = payload;
        for n in 1..self.srq.ring.stride as usize / 16 {
            let data = self.srq.segment(slot, n);
            if data.lkey.get() == INVALID_LKEY {
                assert_eq!(n - 1, PER_ENTRY);
                break;
            }
            assert_eq!((data.lkey.get(), data.byte_count.get() as usize), (LKEY, ROOM));
            let (now, later) = rest.split_at(rest.len().min(ROOM));
            self.buffers.put(data.address.get(), now);
            rest = later;
        }
        assert!(rest.is_empty());
        Some(slot)
    }

    /// Reports a message in `slot` of the shared receive queue.
    pub(super) fn received(&mut self, qpn: u32, slot: u16, len: u32) {
        let mut cqe = Cqe::default();
        cqe.byte_cnt.set(len);
        cqe.sop_drop_qpn.set(qpn);
        cqe.wqe_counter.set(slot);
        self.write(true, cqe, CqeOpcode::ReceiveSend);
    }

    /// Consumes the next entry of the shared receive queue and fails it.
    pub(super) fn receive_failed(&mut self, qpn: u32, slot: u16, syndrome: u8) {
        let mut cqe: Cqe =
            zerocopy::transmute!(ErrorCqe { syndrome, reserved_36: [0xff; 18], ..ErrorCqe::default() });
        cqe.sop_drop_qpn.set(qpn);
        cqe.wqe_counter.set(slot);
        self.write(true, cqe, CqeOpcode::ResponderError);
    }

    /// Fails the next datagram receive.
    pub(super) fn datagram_failed(&mut self, syndrome: u8) {
        let counter = self.datagrams.take().unwrap();
        self.receive_failed(UD, counter, syndrome);
    }

    /// Writes an arbitrary entry to the receive completion queue.
    pub(super) fn raw(&mut self, cqe: Cqe, opcode: u8) {
        let (ring, produced) = &mut self.receive_cq;
        let lap = u8::from(*produced & ring.cqe_count != 0);
        let cqe = Cqe { op_own: (opcode << 4) | lap, ..cqe };
        ring.buf.write((*produced % ring.cqe_count) as usize * 64, &cqe);
        *produced = produced.wrapping_add(1);
    }
}
