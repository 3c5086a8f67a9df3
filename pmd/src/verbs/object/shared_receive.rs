//! Shared receive queues.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_sys as sys;

use super::super::remedy;
use super::{ProtectionDomain, destroyed, threads};
use crate::hca::HcaError;

threads! { SharedReceiveQueue }

/// A shared receive queue.
#[derive(Debug)]
pub(in crate::verbs) struct SharedReceiveQueue {
    raw: NonNull<sys::ibv_srq>,
    domain: Arc<ProtectionDomain>,
    ended: AtomicBool,
}

impl SharedReceiveQueue {
    pub(in crate::verbs) fn new(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        segments: u32,
    ) -> Result<Self, HcaError> {
        let mut init = sys::ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: sys::ibv_srq_attr { max_wr: depth, max_sge: segments, srq_limit: 0 },
        };
        // SAFETY: the domain lives; the attributes are a local variable.
        let raw = NonNull::new(unsafe { sys::ibv_create_srq(domain.raw(), &mut init) })
            .ok_or_else(|| remedy::last(format!("creating a shared receive queue of {depth} entries")))?;
        Ok(Self { raw, domain: Arc::clone(domain), ended: AtomicBool::new(false) })
    }

    /// Destroys it on the first call.
    ///
    /// # Errors
    ///
    /// On failure the device may still fill its buffers. They must be leaked rather than reused, and the
    /// objects it was created from stay.
    ///
    /// # Safety
    ///
    /// It is not used any more.
    pub(in crate::verbs) unsafe fn end(&self) -> Result<(), HcaError> {
        if self.ended.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: owned by `self`, and destroyed only once; its users hold it.
        let result = destroyed("shared receive queue", unsafe { sys::ibv_destroy_srq(self.raw()) });
        if result.is_err() {
            std::mem::forget(Arc::clone(&self.domain));
        }
        result
    }

    /// Arms an event for when fewer than `limit` receives are posted.
    pub(in crate::verbs) fn arm(&self, limit: u32) -> Result<(), HcaError> {
        let mut attr = sys::ibv_srq_attr { srq_limit: limit, ..Default::default() };
        // SAFETY: live; the attributes are a local variable.
        let rc = unsafe { sys::ibv_modify_srq(self.raw(), &mut attr, sys::IBV_SRQ_LIMIT as c_int) };
        if rc == 0 { Ok(()) } else { Err(remedy::code("setting the limit of a shared receive queue", rc)) }
    }

    pub(in crate::verbs) const fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        if let Err(e) = unsafe { self.end() } {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

#[cfg(test)]
impl SharedReceiveQueue {
    pub(super) fn played(domain: &Arc<ProtectionDomain>, raw: NonNull<sys::ibv_srq>) -> Self {
        Self { raw, domain: Arc::clone(domain), ended: AtomicBool::new(false) }
    }
}
