//! Queue pairs.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ib_wire::{Gid, Lid, Qpn};
use parking_lot::Mutex;
use verbs_sys as sys;

use super::super::remedy;
use super::{CompletionQueue, ProtectionDomain, SharedReceiveQueue, destroyed, threads};
use crate::hca::HcaError;

threads! { QueuePair }

/// Attributes of a new queue pair.
#[derive(Clone, Debug)]
pub(in crate::verbs) struct QueuePairParts {
    pub(in crate::verbs) kind: sys::ibv_qp_type,
    pub(in crate::verbs) send_cq: Arc<CompletionQueue>,
    pub(in crate::verbs) recv_cq: Arc<CompletionQueue>,
    pub(in crate::verbs) srq: Option<Arc<SharedReceiveQueue>>,
    pub(in crate::verbs) send_wr: u32,
    pub(in crate::verbs) send_sge: u32,
    pub(in crate::verbs) recv_wr: u32,
}

/// A queue pair. After its destruction the device owns none of its buffers.
#[derive(Debug)]
pub(in crate::verbs) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    srq: Option<Arc<SharedReceiveQueue>>,
    domain: Arc<ProtectionDomain>,
    ended: AtomicBool,
    /// Multicast groups to which it is attached. A queue pair in a group cannot be destroyed.
    groups: Mutex<Vec<(Gid, Lid)>>,
}

impl QueuePairParts {
    const fn cap(&self) -> sys::ibv_qp_cap {
        sys::ibv_qp_cap {
            max_send_wr: self.send_wr,
            max_recv_wr: self.recv_wr,
            max_send_sge: self.send_sge,
            max_recv_sge: if self.recv_wr > 0 { 1 } else { 0 },
            max_inline_data: 0,
        }
    }

    fn raw_srq(&self) -> *mut sys::ibv_srq {
        self.srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.raw())
    }
}

impl QueuePair {
    /// Creates a queue pair for use through library calls.
    pub(in crate::verbs) fn new(
        domain: &Arc<ProtectionDomain>,
        parts: QueuePairParts,
    ) -> Result<Self, HcaError> {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: parts.send_cq.raw(),
            recv_cq: parts.recv_cq.raw(),
            srq: parts.raw_srq(),
            cap: parts.cap(),
            qp_type: parts.kind,
            ..Default::default()
        };
        // SAFETY: the domain and the objects in the attributes live; the attributes are a local variable.
        let raw = unsafe { sys::ibv_create_qp(domain.raw(), &mut init) };
        Self::own(domain, parts, raw)
    }

    /// Creates a queue pair for use through its rings. Only SEND is declared, so that an entry takes no more
    /// room than it needs, and inline payload in completions is disabled.
    pub(in crate::verbs) fn for_rings(
        domain: &Arc<ProtectionDomain>,
        parts: QueuePairParts,
    ) -> Result<Self, HcaError> {
        let mut init = sys::ibv_qp_init_attr_ex {
            send_cq: parts.send_cq.raw(),
            recv_cq: parts.recv_cq.raw(),
            srq: parts.raw_srq(),
            cap: parts.cap(),
            qp_type: parts.kind,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: domain.raw(),
            send_ops_flags: u64::from(sys::IBV_QP_EX_WITH_SEND),
            ..Default::default()
        };
        let mut own = sys::mlx5dv_qp_init_attr {
            comp_mask: u64::from(sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS),
            create_flags: sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
            ..Default::default()
        };
        // SAFETY: as in `new`, and the device is libmlx5's: nothing else comes here.
        let raw = unsafe { sys::mlx5dv_create_qp(domain.context().raw(), &mut init, &mut own) };
        Self::own(domain, parts, raw)
    }

    fn own(
        domain: &Arc<ProtectionDomain>,
        parts: QueuePairParts,
        raw: *mut sys::ibv_qp,
    ) -> Result<Self, HcaError> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| remedy::last(format!("creating a queue pair of {} sends", parts.send_wr)))?;
        Ok(Self {
            raw,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: parts.srq,
            domain: Arc::clone(domain),
            ended: AtomicBool::new(false),
            groups: Mutex::default(),
        })
    }

    /// Destroys it on the first call.
    ///
    /// # Errors
    ///
    /// On failure the device may still access its buffers. They must be leaked rather than reused, and the
    /// objects it was created from stay.
    ///
    /// # Safety
    ///
    /// It is not used any more.
    pub(in crate::verbs) unsafe fn end(&self) -> Result<(), HcaError> {
        if self.ended.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // When a device is removed, the library does not wait until the groups are left. A group that
        // is already gone gives an error, which is ignored. A queue pair that is still in a group cannot be
        // destroyed, and that error is returned.
        let groups = std::mem::take(&mut *self.groups.lock());
        for (mgid, mlid) in groups {
            drop(self.detach(mgid, mlid));
        }
        // SAFETY: owned by `self`, and destroyed only once; its users hold it.
        let result = destroyed("queue pair", unsafe { sys::ibv_destroy_qp(self.raw()) });
        if result.is_err() {
            let (send, receive) = (Arc::clone(&self.send_cq), Arc::clone(&self.recv_cq));
            std::mem::forget((send, receive, self.srq.clone(), Arc::clone(&self.domain)));
        }
        result
    }

    pub(in crate::verbs) const fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    pub(in crate::verbs) fn number(&self) -> Qpn {
        // SAFETY: live; its number does not change.
        Qpn::new(unsafe { (*self.raw()).qp_num })
    }

    /// Changes attributes. Returns an error number on failure.
    pub(in crate::verbs) fn modify(&self, attr: &mut sys::ibv_qp_attr, mask: u32) -> Result<(), i32> {
        // SAFETY: live; the attributes are borrowed exclusively.
        match unsafe { sys::ibv_modify_qp(self.raw(), attr, mask as c_int) } {
            0 => Ok(()),
            rc => Err(rc.abs()),
        }
    }

    pub(in crate::verbs) fn state(&self) -> Result<sys::ibv_qp_state, HcaError> {
        let (mut attr, mut init) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
        // SAFETY: live; the attributes are local variables.
        let rc = unsafe { sys::ibv_query_qp(self.raw(), &mut attr, sys::IBV_QP_STATE as c_int, &mut init) };
        if rc == 0 { Ok(attr.qp_state) } else { Err(remedy::code("querying a queue pair's state", rc)) }
    }

    pub(in crate::verbs) fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        let gid = sys::ibv_gid { raw: mgid.0 };
        // SAFETY: live; the GID is a local variable.
        let rc = unsafe { sys::ibv_attach_mcast(self.raw(), &gid, mlid.0) };
        if rc != 0 {
            return Err(remedy::code(format!("attaching to the group {mgid}"), rc));
        }
        self.groups.lock().push((mgid, mlid));
        Ok(())
    }

    pub(in crate::verbs) fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.groups.lock().retain(|group| *group != (mgid, mlid));
        let gid = sys::ibv_gid { raw: mgid.0 };
        // SAFETY: live; the GID is a local variable.
        let rc = unsafe { sys::ibv_detach_mcast(self.raw(), &gid, mlid.0) };
        if rc == 0 { Ok(()) } else { Err(remedy::code(format!("detaching from the group {mgid}"), rc)) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        if let Err(e) = unsafe { self.end() } {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

#[cfg(test)]
impl QueuePair {
    pub(super) fn played(
        domain: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        raw: NonNull<sys::ibv_qp>,
    ) -> Self {
        Self {
            raw,
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            srq: None,
            domain: Arc::clone(domain),
            ended: AtomicBool::new(false),
            groups: Mutex::default(),
        }
    }
}
