//! Takes over the rings of the library's objects.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use verbs_sys as sys;

use super::super::object::{CompletionQueue, QueuePair, SharedReceiveQueue};
use super::super::remedy;
use crate::hca::HcaError;
use crate::mlx5::rings::{CqRing, DoorbellRecord, QpRings, Register, RingMemory, SrqRing};
use prm::{ARM_REGISTER, CQE_SIZE, WQEBB};

/// Queries the library for the rings that `obj` refers to.
fn init(obj: &mut sys::mlx5dv_obj, kind: sys::mlx5dv_obj_type, what: &str) -> Result<(), HcaError> {
    // SAFETY: the objects are live and belong to libmlx5; the results go to variables of the callers.
    match unsafe { sys::mlx5dv_init_obj(obj, u64::from(kind)) } {
        0 => Ok(()),
        rc => Err(remedy::code(format!("taking over the rings of a {what}"), rc)),
    }
}

fn memory<T>(start: *mut T, bytes: usize, what: &str) -> Result<RingMemory, HcaError> {
    let start = NonNull::new(start.cast()).ok_or_else(|| no_ring(what))?;
    // SAFETY: the library's ring. It has the given length and lives as long as its object. The queues on the
    // ring hold the object by their anchor, and do not use the ring after they have released it. From now on
    // the library does not touch the ring, and the driver follows the protocol.
    Ok(unsafe { RingMemory::new(start, bytes) })
}

fn record(words: *mut sys::__be32, count: usize, what: &str) -> Result<DoorbellRecord, HcaError> {
    let words = NonNull::new(words.cast::<AtomicU32>()).filter(|w| w.is_aligned());
    // SAFETY: the library's record, as for `memory`. The library writes to it only while it moves the queue
    // pair to RESET.
    words.map(|words| unsafe { DoorbellRecord::new(words, count) }).ok_or_else(|| no_ring(what))
}

fn no_ring(what: &str) -> HcaError {
    remedy::foreign_rings(&format!("libmlx5 gave a {what} a ring of an unexpected form"))
}

/// Returns the ring of a new completion queue, and the address of its arm register. The library does not
/// touch the ring afterwards.
pub(super) fn cq(queue: &CompletionQueue) -> Result<(CqRing, u64), HcaError> {
    let what = "completion queue";
    let mut out = sys::mlx5dv_cq::default();
    let mut obj = sys::mlx5dv_obj::default();
    obj.cq.in_ = queue.raw();
    obj.cq.out = &mut out;
    init(&mut obj, sys::MLX5DV_OBJ_CQ, what)?;
    if out.cqe_size as usize != CQE_SIZE {
        return Err(remedy::rings(
            &format!(
                "libmlx5 uses completions of {} bytes, but the driver requires {CQE_SIZE}",
                out.cqe_size
            ),
            "unset MLX5_CQE_SIZE",
        ));
    }
    if !out.cqe_cnt.is_power_of_two() || out.cq_uar.is_null() {
        return Err(no_ring(what));
    }
    let ring = CqRing {
        buf: memory(out.buf, out.cqe_cnt as usize * CQE_SIZE, what)?,
        cqe_count: out.cqe_cnt,
        dbrec: record(out.dbrec, 2, what)?,
        cqn: out.cqn,
    };
    Ok((ring, out.cq_uar as u64 + ARM_REGISTER as u64))
}

/// Returns the ring of a new shared receive queue.
pub(super) fn srq(queue: &SharedReceiveQueue, segments: u32) -> Result<SrqRing, HcaError> {
    let what = "shared receive queue";
    let mut out = sys::mlx5dv_srq { comp_mask: u64::from(sys::MLX5DV_SRQ_MASK_SRQN), ..Default::default() };
    let mut obj = sys::mlx5dv_obj::default();
    obj.srq.in_ = queue.raw();
    obj.srq.out = &mut out;
    init(&mut obj, sys::MLX5DV_OBJ_SRQ, what)?;
    // The list of a new queue contains all slots in order. The library's wait queue follows.
    let slots = out.tail.saturating_add(1);
    if out.head != 0 || !slots.is_power_of_two() || slots > 1 << 16 || !out.stride.is_power_of_two() {
        return Err(no_ring(what));
    }
    if out.stride < (segments + 1).saturating_mul(16) {
        return Err(HcaError::Unsupported {
            what: "segments of a shared receive queue's entry",
            value: segments.into(),
            limit: format!("at most {}", (out.stride / 16).saturating_sub(1)),
        });
    }
    Ok(SrqRing {
        buf: memory(out.buf, slots as usize * out.stride as usize, what)?,
        stride: out.stride,
        slots,
        head: out.head as u16,
        tail: out.tail as u16,
        dbrec: record(out.dbrec, 1, what)?,
        srqn: out.srqn,
    })
}

/// Returns the rings of a new queue pair.
pub(super) fn qp(pair: &QueuePair) -> Result<QpRings, HcaError> {
    let what = "queue pair";
    let mut out = sys::mlx5dv_qp::default();
    let mut obj = sys::mlx5dv_obj::default();
    obj.qp.in_ = pair.raw();
    obj.qp.out = &mut out;
    init(&mut obj, sys::MLX5DV_OBJ_QP, what)?;
    let (sq, rq) = (out.sq, out.rq);
    let fits = |slots: u32| slots.is_power_of_two() && slots <= 1 << 15;
    if sq.stride as usize != WQEBB || !fits(sq.wqe_cnt) || !(rq.wqe_cnt == 0 || fits(rq.wqe_cnt)) {
        return Err(no_ring(what));
    }
    if out.bf.reg.is_null() {
        return Err(no_ring(what));
    }
    Ok(QpRings {
        qpn: pair.number().get(),
        dbrec: record(out.dbrec, 2, what)?,
        sq_buf: memory(sq.buf, sq.wqe_cnt as usize * WQEBB, what)?,
        sq_wqebbs: sq.wqe_cnt,
        rq_buf: match rq.wqe_cnt {
            0 => RingMemory::empty(),
            slots => memory(rq.buf, slots as usize * rq.stride as usize, what)?,
        },
        rq_slots: rq.wqe_cnt,
        rq_stride: rq.stride,
        // Without BlueFlame the register has only one half.
        register: Register::new(out.bf.reg as u64, out.bf.size),
    })
}

/// Rejects settings that change the ring format: signatures of entries.
pub(super) fn check_environment() -> Result<(), HcaError> {
    for name in ["MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE"] {
        let on = std::env::var(name).is_ok_and(|value| value != "0");
        if on {
            return Err(remedy::rings(
                "libmlx5 is configured to sign entries, which the driver does not support",
                &format!("unset {name}"),
            ));
        }
    }
    Ok(())
}
