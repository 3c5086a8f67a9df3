//! A host that acts as a driver but shares no code with it: raw rings, entries written byte by byte.

mod keys;
mod queue;

use std::time::{Duration, Instant};

use ib_wire::{Gid, Guid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};

use crate::cable::CableEnd;
use crate::engine::{Engine, EngineConfig, QpAttributes};
use crate::{Access, PortConfig, QpKind};
use hca::{
    AddressVector, GlobalRoute, LinkLayer, PortNumber, QpTransition, RcToReceive, RcToSend, UcToReceive,
};

pub(super) use keys::*;
pub(super) use queue::*;

pub(super) const PORT: PortNumber = PortNumber(1);

pub(super) struct Pair {
    pub(super) qpn: Qpn,
    pub(super) ring: Memory,
    pub(super) dbrec: Memory,
    blocks: usize,
    pub(super) rq_at: usize,
    rq_stride: usize,
    rq_slots: usize,
    pub(super) posted: u16,
    pub(super) received: u16,
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

    /// A queue pair with these numbers of WQEBBs, receive slots and bytes of a receive slot.
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
            send_ring: ring.part(0, blocks * 64).into(),
            receive_ring: Some((ring.part(blocks * 64, rq_slots * rq_stride).into(), rq_stride)),
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

    /// Moves a connection to `dest` from RESET to RTS, starting at the given PSNs.
    pub(super) fn connect(&mut self, qp: &Pair, dest: (Lid, Qpn), how: Rc) {
        self.connect_by(qp, local(dest.0), dest.1, how);
    }

    /// Moves an unreliable connection from RESET to RTS.
    pub(super) fn connect_uc(&mut self, qp: &Pair, dest: (Lid, Qpn), how: Rc) {
        self.connect_uc_by(qp, local(dest.0), dest.1, how);
    }

    /// As `connect_uc`, with an address vector.
    pub(super) fn connect_uc_by(&mut self, qp: &Pair, av: AddressVector, dest_qpn: Qpn, how: Rc) {
        for to in [
            QpTransition::UcToInit { pkey_index: 0 },
            QpTransition::UcToReceive(UcToReceive {
                av,
                dest_qpn,
                rq_psn: Psn::new(how.rq_psn),
                path_mtu: how.mtu,
            }),
            QpTransition::UcToSend { sq_psn: Psn::new(how.sq_psn) },
        ] {
            self.engine.modify_qp(qp.qpn, &to).unwrap();
        }
    }

    /// As `connect`, with an address vector.
    pub(super) fn connect_by(&mut self, qp: &Pair, av: AddressVector, dest_qpn: Qpn, how: Rc) {
        self.connect_number(qp.qpn, av, dest_qpn, how);
    }

    /// As `connect_by`, for any queue pair.
    pub(super) fn connect_number(&mut self, qpn: Qpn, av: AddressVector, dest_qpn: Qpn, how: Rc) {
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
            self.engine.modify_qp(qpn, &to).unwrap();
        }
    }

    pub(super) fn memory(&mut self, len: usize) -> (Memory, u32) {
        let memory = Memory::new(len);
        let key = self.engine.register(memory.address(), memory.host(), Access::LOCAL).unwrap();
        (memory, key)
    }

    /// Writes an entry, with the control segment's index, queue pair and length filled in, and rings the
    /// doorbell.
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

    pub(super) fn drops(&self, reason: crate::DropReason) -> u64 {
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

/// Two hosts on one cable, with a simulated clock.
pub(super) struct Rig {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) now: Instant,
}

impl Rig {
    pub(super) fn new() -> Self {
        let (a, b) = CableEnd::pair().unwrap();
        Self::over(a, b)
    }

    pub(super) fn over(left: CableEnd, right: CableEnd) -> Self {
        let (mut a, mut b) = (Host::new(1), Host::new(2));
        a.engine.set_cable(PORT, Some(left)).unwrap();
        b.engine.set_cable(PORT, Some(right)).unwrap();
        a.engine.activate(PORT, Lid(1), Mtu::B4096).unwrap();
        b.engine.activate(PORT, Lid(2), Mtu::B4096).unwrap();
        Self { a, b, now: Instant::now() }
    }

    /// Steps until nothing changes any more; time does not advance.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            let worked = self.a.engine.step(self.now) | self.b.engine.step(self.now);
            quiet = if worked { 0 } else { quiet + 1 };
        }
    }

    /// As `settle`, but idle time advances to the next deadline, by at most `limit`.
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

/// Bytes that identify their position.
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
