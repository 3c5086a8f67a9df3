//! A host as a driver would be one, but written apart from the driver: raw rings, entries laid down byte by byte.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ib_wire::{Gid, Guid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};

use crate::hca::{
    AddressVector, GlobalRoute, LinkLayer, PortNumber, QpTransition, RcToReceive, RcToSend, WcStatus,
};
use crate::mlx5::layout::Syndrome;
use crate::soft::engine::{Engine, EngineConfig, QpAttributes};
use crate::soft::link::LinkEnd;
use crate::soft::{Access, HostMemory, PortConfig, QpKind};

pub(super) const PORT: PortNumber = PortNumber(1);

/// Memory of the host; never touched through references.
pub(super) struct Memory {
    base: NonNull<u8>,
    words: usize,
}

impl Memory {
    pub(super) fn new(len: usize) -> Self {
        let words = len.div_ceil(64) * 8;
        let words_box: Box<[u64]> = vec![0u64; words].into_boxed_slice();
        let base = NonNull::new(Box::into_raw(words_box).cast::<u8>()).unwrap();
        Self { base, words }
    }

    pub(super) fn host(&self) -> HostMemory {
        // SAFETY: freed on drop only, which the rig does behind the engine's.
        unsafe { HostMemory::new(self.base, self.words * 8) }
    }

    pub(super) fn part(&self, at: usize, len: usize) -> HostMemory {
        self.host().part(at, len).unwrap()
    }

    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(self.part(at, bytes.len()).write(bytes));
    }

    pub(super) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        assert!(self.part(at, len).read(&mut out));
        out
    }

    pub(super) fn address(&self) -> u64 {
        self.host().address()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr().cast::<u64>(), self.words);
        // SAFETY: made by `Box::into_raw` with this length.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// What a completion says, read from its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wc {
    pub(super) opcode: u8,
    pub(super) status: WcStatus,
    pub(super) user_index: u32,
    pub(super) qpn: u32,
    pub(super) send_opcode: u8,
    pub(super) counter: u16,
    pub(super) bytes: u32,
    pub(super) imm: u32,
    pub(super) source: u32,
    pub(super) slid: u16,
    pub(super) grh: bool,
    /// What stands above the source queue pair.
    pub(super) flags: u8,
    pub(super) solicited: bool,
}

pub(super) const REQ: u8 = 0;
pub(super) const RESP_SEND: u8 = 2;
pub(super) const RESP_IMM: u8 = 3;
pub(super) const REQ_ERR: u8 = 13;
pub(super) const RESP_ERR: u8 = 14;

pub(super) struct Queue {
    pub(super) ring: Memory,
    pub(super) dbrec: Memory,
    pub(super) entries: usize,
    pub(super) number: u32,
    consumer: u32,
}

impl Queue {
    pub(super) fn cq(engine: &mut Engine, entries: usize) -> Self {
        let ring = Memory::new(entries * 64);
        for i in 0..entries {
            ring.put(i * 64 + 63, &[0xf0]);
        }
        let dbrec = Memory::new(8);
        let number = engine.create_cq(ring.part(0, entries * 64), dbrec.part(0, 8)).unwrap();
        Self { ring, dbrec, entries, number, consumer: 0 }
    }

    pub(super) fn poll(&mut self) -> Option<Wc> {
        let at = self.consumer as usize % self.entries * 64;
        let b = self.ring.get(at, 64);
        let owner = u8::from(self.consumer as usize & self.entries != 0);
        if b[63] >> 4 == 15 || b[63] & 1 != owner {
            return None;
        }
        self.consumer += 1;
        self.dbrec.put(0, &(self.consumer & 0xff_ffff).to_be_bytes());
        let word = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let opcode = b[63] >> 4;
        let status = if opcode == REQ_ERR || opcode == RESP_ERR {
            Syndrome::outcome(b[55])
        } else {
            WcStatus::Success
        };
        Some(Wc {
            opcode,
            status,
            user_index: word(32) & 0xff_ffff,
            qpn: word(56) & 0xff_ffff,
            send_opcode: b[56],
            counter: u16::from_be_bytes([b[60], b[61]]),
            bytes: word(44),
            imm: word(36),
            source: word(24) & 0xff_ffff,
            slid: u16::from_be_bytes([b[22], b[23]]),
            grh: b[24] & 0x30 != 0,
            flags: b[24],
            solicited: b[63] & 2 != 0,
        })
    }

    pub(super) fn all(&mut self) -> Vec<Wc> {
        std::iter::from_fn(|| self.poll()).collect()
    }
}

/// A shared receive queue with one buffer of `size` bytes per slot, cut into segments of `piece` bytes.
pub(super) struct SharedQueue {
    ring: Memory,
    dbrec: Memory,
    pub(super) buffers: Memory,
    pub(super) size: usize,
    stride: usize,
    piece: usize,
    head: u16,
    tail: u16,
    posted: u16,
    pub(super) number: u32,
    pub(super) key: u32,
}

impl SharedQueue {
    pub(super) fn new(engine: &mut Engine, slots: usize, size: usize, piece: usize) -> Self {
        let segments = size.div_ceil(piece).max(1);
        let stride = (16 + 16 * segments).next_power_of_two();
        let ring = Memory::new(slots * stride);
        for slot in 0..slots {
            ring.put(slot * stride + 2, &(((slot + 1) % slots) as u16).to_be_bytes());
        }
        let dbrec = Memory::new(8);
        let buffers = Memory::new(slots * size.max(64));
        let key = engine.register(buffers.address(), buffers.host(), Access::LOCAL).unwrap();
        let number = engine.create_srq(ring.part(0, slots * stride), stride, dbrec.part(0, 8)).unwrap();
        let tail = slots as u16 - 1;
        Self { ring, dbrec, buffers, size, stride, piece, head: 0, tail, posted: 0, number, key }
    }

    /// Posts one more; the list must not be empty.
    pub(super) fn post(&mut self) {
        assert_ne!(self.head, self.tail, "the list is empty");
        let slot = usize::from(self.head);
        let next = self.ring.get(slot * self.stride + 2, 2);
        let mut at = slot * self.stride + 16;
        let end = (slot + 1) * self.stride;
        let mut done = 0;
        while done < self.size {
            let n = self.piece.min(self.size - done);
            let address = self.buffers.address() + (slot * self.size + done) as u64;
            self.ring.put(at, &data(n as u32, self.key, address));
            at += 16;
            done += n;
        }
        if at < end {
            self.ring.put(at, &data(0, 0x100, 0));
        }
        self.head = u16::from_be_bytes([next[0], next[1]]);
        self.posted = self.posted.wrapping_add(1);
        self.dbrec.put(0, &u32::from(self.posted).to_be_bytes());
    }

    /// Gives a completed slot back to the list and reads what it holds.
    pub(super) fn free(&mut self, slot: u16, len: usize) -> Vec<u8> {
        let bytes = self.buffers.get(usize::from(slot) * self.size, len.min(self.size));
        self.ring.put(usize::from(self.tail) * self.stride + 2, &slot.to_be_bytes());
        self.tail = slot;
        bytes
    }

    /// Writes the doorbell record.
    pub(super) fn forge(&mut self, value: u32) {
        self.dbrec.put(0, &value.to_be_bytes());
    }

    pub(super) fn break_link(&mut self) {
        let slots = 0xffffu16;
        self.ring.put(usize::from(self.head) * self.stride + 2, &slots.to_be_bytes());
    }
}

pub(super) fn data(count: u32, key: u32, address: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&count.to_be_bytes());
    out[4..8].copy_from_slice(&key.to_be_bytes());
    out[8..].copy_from_slice(&address.to_be_bytes());
    out
}

pub(super) struct Pair {
    pub(super) qpn: Qpn,
    pub(super) ring: Memory,
    pub(super) dbrec: Memory,
    blocks: usize,
    pub(super) rq_at: usize,
    rq_stride: usize,
    rq_slots: usize,
    pub(super) posted: u16,
    received: u16,
}

impl Pair {
    /// Writes both counters of the doorbell record.
    pub(super) fn forge(&mut self, value: u32) {
        self.dbrec.put(0, &value.to_be_bytes());
        self.dbrec.put(4, &value.to_be_bytes());
    }
}

pub(super) const CQ: usize = 1024;

/// One engine with its completion queues.
pub(super) struct Host {
    pub(super) engine: Engine,
    pub(super) scq: Queue,
    pub(super) rcq: Queue,
}

impl Host {
    pub(super) fn new(lid: u16) -> Self {
        let guids = (0..2).map(|p| Guid(0x2000 + u64::from(lid) * 16 + p)).collect();
        Self::with_ports(lid, LinkLayer::InfiniBand, guids)
    }

    pub(super) fn with_ports(id: u16, link_layer: LinkLayer, guids: Vec<Guid>) -> Self {
        let port = |guid| PortConfig { guid, max_mtu: Mtu::B4096, link_layer, gid_table: 20 };
        let mut engine = Engine::new(EngineConfig {
            node_guid: Guid(0x1000 + u64::from(id)),
            description: format!("host {id}"),
            ports: guids.into_iter().map(port).collect(),
            seed: u64::from(id),
        });
        let scq = Queue::cq(&mut engine, CQ);
        let rcq = Queue::cq(&mut engine, CQ);
        Self { engine, scq, rcq }
    }

    pub(super) fn gid(&self) -> Gid {
        self.engine.gid(PORT, 0).unwrap()
    }

    /// A queue pair with `blocks` WQEBBs and, without `srq`, 64 receive slots of two segments.
    pub(super) fn qp(&mut self, kind: QpKind, blocks: usize, srq: Option<u32>, user_index: u32) -> Pair {
        self.numbered(kind, blocks, srq, user_index, None)
    }

    pub(super) fn numbered(
        &mut self,
        kind: QpKind,
        blocks: usize,
        srq: Option<u32>,
        user_index: u32,
        number: Option<u32>,
    ) -> Pair {
        self.sized(kind, (blocks, 64, 32), srq, user_index, number)
    }

    /// A queue pair of this many WQEBBs, receive slots and bytes of a receive slot.
    pub(super) fn sized(
        &mut self,
        kind: QpKind,
        (blocks, rq_slots, rq_stride): (usize, usize, usize),
        srq: Option<u32>,
        user_index: u32,
        number: Option<u32>,
    ) -> Pair {
        let ring = Memory::new(blocks * 64 + rq_slots * rq_stride);
        let dbrec = Memory::new(8);
        let attributes = QpAttributes {
            kind,
            port: PORT,
            send_ring: ring.part(0, blocks * 64),
            receive_ring: Some((ring.part(blocks * 64, rq_slots * rq_stride), rq_stride)),
            srq,
            dbrec: dbrec.part(0, 8),
            send_cq: self.scq.number,
            recv_cq: self.rcq.number,
            user_index,
        };
        let qpn = match number {
            Some(n) => self.engine.create_qp_numbered(&attributes, Qpn::new(n)).unwrap(),
            None => self.engine.create_qp(&attributes).unwrap(),
        };
        Pair { qpn, ring, dbrec, blocks, rq_at: blocks * 64, rq_stride, rq_slots, posted: 0, received: 0 }
    }

    pub(super) fn ud(&mut self, qkey: u32, user_index: u32) -> Pair {
        let qp = self.qp(QpKind::Ud, 64, None, user_index);
        self.open_ud(&qp, qkey);
        qp
    }

    pub(super) fn open_ud(&mut self, qp: &Pair, qkey: u32) {
        for to in [
            QpTransition::UdToInit { pkey_index: 0, qkey: QKey(qkey) },
            QpTransition::UdToReceive,
            QpTransition::UdToSend { sq_psn: Psn::new(0) },
        ] {
            self.engine.modify_qp(qp.qpn, &to).unwrap();
        }
    }

    /// RESET to RTS against `dest`, both ends beginning at the PSNs given.
    pub(super) fn connect(&mut self, qp: &Pair, dest: (Lid, Qpn), how: Rc) {
        self.connect_by(qp, local(dest.0), dest.1, how);
    }

    /// As `connect`, by an address vector.
    pub(super) fn connect_by(&mut self, qp: &Pair, av: AddressVector, dest_qpn: Qpn, how: Rc) {
        let receive = RcToReceive {
            av,
            dest_qpn,
            rq_psn: Psn::new(how.rq_psn),
            path_mtu: how.mtu,
            min_rnr_timer: how.rnr_timer,
        };
        let send = RcToSend {
            sq_psn: Psn::new(how.sq_psn),
            timeout: how.timeout,
            retry_count: how.retry,
            rnr_retry: how.rnr_retry,
        };
        for to in [
            QpTransition::RcToInit { pkey_index: 0 },
            QpTransition::RcToReceive(receive),
            QpTransition::RcToSend(send),
        ] {
            self.engine.modify_qp(qp.qpn, &to).unwrap();
        }
    }

    pub(super) fn memory(&mut self, len: usize) -> (Memory, u32) {
        let memory = Memory::new(len);
        let key = self.engine.register(memory.address(), memory.host(), Access::LOCAL).unwrap();
        (memory, key)
    }

    /// Lays an entry down, with the control segment's index, queue pair and length filled in, and rings.
    pub(super) fn post(&mut self, qp: &mut Pair, opcode: u8, flags: u8, imm: u32, body: &[u8]) -> u16 {
        let index = qp.posted;
        let ds = 1 + body.len().div_ceil(16);
        let mut wqe = Vec::new();
        wqe.extend_from_slice(&(u32::from(index) << 8 | u32::from(opcode)).to_be_bytes());
        wqe.extend_from_slice(&(qp.qpn.get() << 8 | ds as u32).to_be_bytes());
        wqe.extend_from_slice(&[0, 0, 0, flags]);
        wqe.extend_from_slice(&imm.to_be_bytes());
        wqe.extend_from_slice(body);
        self.post_raw(qp, &wqe);
        index
    }

    pub(super) fn post_raw(&mut self, qp: &mut Pair, wqe: &[u8]) {
        for (i, unit) in wqe.chunks(16).enumerate() {
            let at = (usize::from(qp.posted) * 64 + i * 16) % (qp.blocks * 64);
            qp.ring.put(at, unit);
        }
        qp.posted = qp.posted.wrapping_add(wqe.len().div_ceil(64) as u16);
        qp.dbrec.put(4, &u32::from(qp.posted).to_be_bytes());
        self.engine.ring(qp.qpn);
    }

    pub(super) fn send(&mut self, qp: &mut Pair, pieces: &[[u8; 16]]) -> u16 {
        self.post(qp, 0x0a, 0x08, 0, &pieces.concat())
    }

    pub(super) fn send_ud(&mut self, qp: &mut Pair, to: &To, pieces: &[[u8; 16]]) -> u16 {
        let body = [&to.bytes()[..], &pieces.concat()].concat();
        self.post(qp, 0x0a, 0x08, 0, &body)
    }

    pub(super) fn receive(&mut self, qp: &mut Pair, pieces: &[[u8; 16]]) {
        let slot = usize::from(qp.received) % qp.rq_slots;
        let mut wqe = pieces.concat();
        if wqe.len() < qp.rq_stride {
            wqe.extend_from_slice(&data(0, 0x100, 0));
        }
        qp.ring.put(qp.rq_at + slot * qp.rq_stride, &wqe);
        qp.received = qp.received.wrapping_add(1);
        qp.dbrec.put(0, &u32::from(qp.received).to_be_bytes());
    }

    pub(super) fn drops(&self, reason: crate::soft::DropReason) -> u64 {
        self.engine.counters().drops(reason)
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy)]
pub(super) struct Rc {
    pub(super) mtu: Mtu,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) rnr_timer: u8,
    pub(super) timeout: u8,
    pub(super) retry: u8,
    pub(super) rnr_retry: u8,
}

impl Default for Rc {
    fn default() -> Self {
        Self { mtu: Mtu::B2048, rq_psn: 7, sq_psn: 7, rnr_timer: 1, timeout: 8, retry: 7, rnr_retry: 7 }
    }
}

pub(super) fn local(dlid: Lid) -> AddressVector {
    AddressVector { dlid, sl: ServiceLevel::new(0), src_path_bits: 0, rate: Rate::new(0), grh: None }
}

/// Destination of a datagram.
#[derive(Clone)]
pub(super) struct To {
    pub(super) lid: Lid,
    pub(super) qpn: Qpn,
    pub(super) qkey: u32,
    pub(super) grh: Option<GlobalRoute>,
}

impl To {
    pub(super) fn bytes(&self) -> [u8; 48] {
        let mut b = [0; 48];
        b[..4].copy_from_slice(&self.qkey.to_be_bytes());
        b[8..12].copy_from_slice(&(self.qpn.get() | 0x8000_0000).to_be_bytes());
        b[14..16].copy_from_slice(&self.lid.0.to_be_bytes());
        if let Some(grh) = &self.grh {
            b[26] = grh.traffic_class;
            b[27] = grh.hop_limit;
            let word = 1 << 30 | u32::from(grh.sgid_index) << 20 | grh.flow_label;
            b[28..32].copy_from_slice(&word.to_be_bytes());
            b[32..].copy_from_slice(&grh.dgid.0);
        }
        b
    }
}

/// Two hosts on one link, with a clock of their own.
pub(super) struct Rig {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) now: Instant,
}

impl Rig {
    pub(super) fn new() -> Self {
        let (a, b) = LinkEnd::pair().unwrap();
        Self::over(a, b)
    }

    pub(super) fn over(left: LinkEnd, right: LinkEnd) -> Self {
        let (mut a, mut b) = (Host::new(1), Host::new(2));
        a.engine.set_link(PORT, Some(left)).unwrap();
        b.engine.set_link(PORT, Some(right)).unwrap();
        a.engine.activate(PORT, Lid(1), Mtu::B4096).unwrap();
        b.engine.activate(PORT, Lid(2), Mtu::B4096).unwrap();
        Self { a, b, now: Instant::now() }
    }

    /// Turns until nothing moves any more; time stands still.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            let worked = self.a.engine.step(self.now) | self.b.engine.step(self.now);
            quiet = if worked { 0 } else { quiet + 1 };
        }
    }

    /// As `settle`, but when nothing moves time goes on to the next deadline, `limit` at most.
    pub(super) fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        loop {
            self.settle();
            let next = [&self.a, &self.b].into_iter().filter_map(|h| h.engine.next_deadline(self.now)).min();
            match next {
                Some(at) if at <= end => self.now = at.max(self.now + Duration::from_micros(10)),
                _ => return,
            }
        }
    }
}

/// Bytes that tell where they are from.
pub(super) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}
