//! Creates and destroys a worker's queues, as the library and the kernel do together.

use super::memory::{Arena, Block};
use crate::hca::{HcaError, PortNumber, QueuesConfig, RcConfig, UdConfig};
use crate::mlx5::rings::{
    CqGeometry, CqRing, QpRequest, QpRings, Register, SharedSizes, SrqGeometry, SrqRing,
};
use connectx::QpKind;
use connectx::engine::{Engine, MAX_QPS, QpAttributes};
use prm::DBREC_SIZE;

/// Maximum number of receives of a shared receive queue.
const MAX_SRQ_WR: u32 = 32_767;
/// Maximum number of entries of a completion queue.
const MAX_CQE: u32 = (1 << 22) - 1;
/// Room for a doorbell record in bytes: a cache line of its own after the rings.
const RECORD: usize = 64;

/// A device object with its memory.
#[derive(Debug)]
pub(super) struct Created<R> {
    pub(super) rings: R,
    pub(super) block: Block,
}

/// Components of a worker's queues.
#[derive(Debug)]
pub(super) struct WorkerRings {
    pub(super) receive_cq: Created<CqRing>,
    pub(super) send_cq: Created<CqRing>,
    pub(super) datagrams: Created<SrqRing>,
    pub(super) connections: Option<Created<SrqRing>>,
    pub(super) signal_every: u32,
    /// Maximum number of outstanding sends.
    pub(super) sends: u32,
}

fn too_large(what: &'static str, value: u32) -> HcaError {
    HcaError::Unsupported { what, value: u64::from(value), limit: "less".into() }
}

/// Creates a completion queue for `entries` outstanding entries.
pub(super) fn create_cq(
    engine: &mut Engine,
    arena: &Arena,
    entries: u32,
) -> Result<Created<CqRing>, HcaError> {
    let geometry = CqGeometry::new(entries).ok_or_else(|| too_large("completion queue", entries))?;
    let bytes = geometry.bytes();
    let block = arena.allocate(bytes + RECORD)?;
    let mut rings = CqRing {
        buf: block.ring(0, bytes),
        cqe_count: geometry.slots,
        dbrec: block.record(bytes, 2),
        cqn: 0,
    };
    rings.format();
    match engine.create_cq(block.host(0, bytes), block.host(bytes, DBREC_SIZE)) {
        Ok(number) => {
            rings.cqn = number;
            Ok(Created { rings, block })
        }
        Err(error) => {
            // SAFETY: nobody has received it.
            unsafe { arena.free(block) };
            Err(error)
        }
    }
}

fn create_srq(
    engine: &mut Engine,
    arena: &Arena,
    depth: u32,
    segments: u32,
) -> Result<Created<SrqRing>, HcaError> {
    let geometry = SrqGeometry::new(depth, segments, MAX_SRQ_WR)
        .ok_or_else(|| too_large("shared receive queue", depth))?;
    let (bytes, stride) = (geometry.bytes(), geometry.stride as usize);
    let block = arena.allocate(bytes + RECORD)?;
    let mut rings = SrqRing {
        buf: block.ring(0, bytes),
        stride: geometry.stride,
        slots: geometry.slots,
        head: 0,
        tail: (geometry.slots - 1) as u16,
        dbrec: block.record(bytes, 1),
        srqn: 0,
    };
    rings.format();
    match engine.create_srq(block.host(0, bytes), stride, block.host(bytes, DBREC_SIZE)) {
        Ok(number) => {
            rings.srqn = number;
            Ok(Created { rings, block })
        }
        Err(error) => {
            // SAFETY: nobody has received it.
            unsafe { arena.free(block) };
            Err(error)
        }
    }
}

/// Attributes of a queue pair other than its sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpPlace {
    pub(super) kind: QpKind,
    pub(super) port: PortNumber,
    pub(super) srq: Option<u32>,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
}

/// Creates a queue pair in RESET.
pub(super) fn create_qp(
    engine: &mut Engine,
    arena: &Arena,
    asked: &QpRequest,
    place: QpPlace,
) -> Result<Created<QpRings>, HcaError> {
    let geometry = asked.geometry()?;
    let sq_at = (geometry.sq_offset as usize).next_multiple_of(64);
    let sq_bytes = geometry.sq_wqebbs as usize * 64;
    let rq_bytes = (geometry.rq_slots * geometry.rq_stride) as usize;
    let record_at = sq_at + sq_bytes;
    let block = arena.allocate(record_at + RECORD)?;
    let mut rings = QpRings {
        qpn: 0,
        dbrec: block.record(record_at, 2),
        sq_buf: block.ring(sq_at, sq_bytes),
        sq_wqebbs: geometry.sq_wqebbs,
        rq_buf: block.ring(0, rq_bytes),
        rq_slots: geometry.rq_slots,
        rq_stride: geometry.rq_stride,
        // The device identifies queue pairs by the doorbell's contents.
        register: Register::new(0, 0),
    };
    rings.format();
    let created = engine.create_qp(&QpAttributes {
        kind: place.kind,
        port: place.port,
        send_ring: block.host(sq_at, sq_bytes).into(),
        receive_ring: (rq_bytes > 0).then(|| (block.host(0, rq_bytes).into(), geometry.rq_stride as usize)),
        srq: place.srq,
        dbrec: block.host(record_at, DBREC_SIZE),
        send_cq: place.send_cq,
        recv_cq: place.recv_cq,
        user_index: 0,
    });
    match created {
        Ok(qpn) => {
            rings.qpn = qpn.get();
            Ok(Created { rings, block })
        }
        Err(error) => {
            // SAFETY: nobody has received it.
            unsafe { arena.free(block) };
            Err(error)
        }
    }
}

impl WorkerRings {
    /// Creates all of a worker's queues. A receive buffer has room for `room` bytes.
    pub(super) fn create(
        engine: &mut Engine,
        arena: &Arena,
        config: &QueuesConfig,
        room: usize,
    ) -> Result<Self, HcaError> {
        let sizes = SharedSizes::new(config, room, MAX_SRQ_WR, MAX_CQE, MAX_QPS as u32)?;
        let mut undo = Undo { engine, arena, srqs: Vec::new(), cqs: Vec::new() };
        undo.srqs.push(create_srq(undo.engine, arena, sizes.datagrams, 1)?);
        if let Some((depth, segments)) = sizes.srq {
            undo.srqs.push(create_srq(undo.engine, arena, depth, segments)?);
        }
        undo.cqs.push(create_cq(undo.engine, arena, sizes.sends)?);
        undo.cqs.push(create_cq(undo.engine, arena, sizes.receives)?);
        if let Some(srq) = undo.srqs.get(1)
            && config.srq_limit > 0
        {
            undo.engine.arm_srq(srq.rings.srqn, config.srq_limit.min(0xffff) as u16)?;
        }
        let (srqs, mut cqs) = undo.keep();
        let mut srqs = srqs.into_iter();
        let (Some(receive_cq), Some(send_cq), Some(datagrams)) = (cqs.pop(), cqs.pop(), srqs.next()) else {
            return Err(HcaError::Exhausted("completion queues"));
        };
        Ok(Self {
            receive_cq,
            send_cq,
            datagrams,
            connections: srqs.next(),
            signal_every: config.signal_every,
            sends: sizes.sends,
        })
    }

    /// Creates a datagram queue pair on these queues.
    pub(super) fn create_ud(
        &self,
        engine: &mut Engine,
        arena: &Arena,
        config: &UdConfig,
    ) -> Result<Created<QpRings>, HcaError> {
        let place = QpPlace {
            kind: QpKind::Ud,
            port: config.port,
            srq: Some(self.datagrams.rings.srqn),
            send_cq: self.send_cq.rings.cqn,
            recv_cq: self.receive_cq.rings.cqn,
        };
        create_qp(engine, arena, &QpRequest::datagrams(config), place)
    }

    /// Creates a connected queue pair on these queues.
    pub(super) fn create_rc(
        &self,
        engine: &mut Engine,
        arena: &Arena,
        config: &RcConfig,
    ) -> Result<Created<QpRings>, HcaError> {
        let srq = self.connections.as_ref().map(|s| s.rings.srqn);
        let srq = srq.ok_or(HcaError::Exhausted("shared receive queues: these queues are datagram only"))?;
        let (recv_cq, send_cq) = (self.receive_cq.rings.cqn, self.send_cq.rings.cqn);
        let place = QpPlace {
            kind: QpKind::Rc,
            port: config.port,
            srq: Some(srq),
            send_cq: if config.passive { recv_cq } else { send_cq },
            recv_cq,
        };
        create_qp(engine, arena, &QpRequest::connection(config), place)
    }

    /// Destroys all queues. The queue pairs must have been destroyed.
    ///
    /// # Safety
    /// No driver's queue uses the rings any more.
    pub(super) unsafe fn destroy(self, engine: &mut Engine, arena: &Arena) -> Result<(), HcaError> {
        engine.destroy_cq(self.send_cq.rings.cqn)?;
        engine.destroy_cq(self.receive_cq.rings.cqn)?;
        let mut blocks = vec![self.send_cq.block, self.receive_cq.block];
        for srq in std::iter::once(self.datagrams).chain(self.connections) {
            engine.destroy_srq(srq.rings.srqn)?;
            blocks.push(srq.block);
        }
        for block in blocks {
            // SAFETY: the device's objects have just been destroyed; the contract of this function covers the
            // driver's objects.
            unsafe { arena.free(block) };
        }
        Ok(())
    }
}

/// Objects created so far. Dropping the value on an error destroys them.
struct Undo<'a> {
    engine: &'a mut Engine,
    arena: &'a Arena,
    srqs: Vec<Created<SrqRing>>,
    cqs: Vec<Created<CqRing>>,
}

impl Undo<'_> {
    fn keep(mut self) -> (Vec<Created<SrqRing>>, Vec<Created<CqRing>>) {
        (std::mem::take(&mut self.srqs), std::mem::take(&mut self.cqs))
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        for cq in self.cqs.drain(..) {
            if self.engine.destroy_cq(cq.rings.cqn).is_ok() {
                // SAFETY: the device has released it, and no driver has received it.
                unsafe { self.arena.free(cq.block) };
            }
        }
        for srq in self.srqs.drain(..) {
            if self.engine.destroy_srq(srq.rings.srqn).is_ok() {
                // SAFETY: as above.
                unsafe { self.arena.free(srq.block) };
            }
        }
    }
}
