//! The library's objects, each owned once: dropping one destroys it, and it holds what it was made from.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ib_wire::{Gid, Lid, Qpn};
use verbs_sys as sys;

use super::device::Context;
use super::remedy;
use crate::hca::HcaError;
use crate::mem::Zone;

/// Tells of an object that the device did not let go of: whoever holds it keeps it until the process ends.
fn complain(what: &str, rc: c_int) {
    if rc != 0 {
        tracing::warn!("destroying a {what}: {}", io::Error::from_raw_os_error(rc.abs()));
    }
}

macro_rules! threads {
    ($($object:ident)*) => { $(
        // SAFETY: the library locks what its objects share; posting to and polling one object from several threads is the
        // caller's to avoid, and the queues, which alone do it, are not `Sync`.
        unsafe impl Send for $object {}
        // SAFETY: as above.
        unsafe impl Sync for $object {}
    )* };
}

threads! { ProtectionDomain MemoryRegion CompletionQueue SharedReceiveQueue QueuePair AddressHandle }

/// A protection domain.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

impl ProtectionDomain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, HcaError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { sys::ibv_alloc_pd(context.raw()) })
            .ok_or_else(|| remedy::last("creating a protection domain"))?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing that was made from it is left.
        complain("protection domain", unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) });
    }
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    _domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// Registers a zone of a pool for local access.
    ///
    /// # Safety
    ///
    /// The zone stays mapped while the region lives, and what is posted of it is the device's until it completes.
    pub(super) unsafe fn new(domain: &Arc<ProtectionDomain>, zone: &Zone) -> Result<Self, HcaError> {
        let access = sys::IBV_ACCESS_LOCAL_WRITE as c_int;
        // SAFETY: mapped memory, by the contract of this function.
        let raw = unsafe {
            sys::ibv_reg_mr(domain.raw.as_ptr(), zone.address as *mut _, zone.length as usize, access)
        };
        let raw =
            NonNull::new(raw).ok_or_else(|| remedy::registration(zone.length, io::Error::last_os_error()))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.raw.as_ptr()).lkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: ours.
        complain("memory region", unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    _context: Arc<Context>,
}

impl CompletionQueue {
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> Result<Self, HcaError> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: the context is open; there is no event channel.
        let raw = unsafe {
            sys::ibv_create_cq(context.raw(), entries, std::ptr::null_mut(), std::ptr::null_mut(), 0)
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| remedy::last(format!("creating a completion queue of {entries} entries")))?;
        Ok(Self { raw, _context: Arc::clone(context) })
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: ours, and no queue pair on it is left.
        complain("completion queue", unsafe { sys::ibv_destroy_cq(self.raw()) });
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    raw: NonNull<sys::ibv_srq>,
    _domain: Arc<ProtectionDomain>,
}

impl SharedReceiveQueue {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, depth: u32, segments: u32) -> Result<Self, HcaError> {
        let mut init = sys::ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: sys::ibv_srq_attr { max_wr: depth, max_sge: segments, srq_limit: 0 },
        };
        // SAFETY: the domain lives; the attributes are ours.
        let raw = NonNull::new(unsafe { sys::ibv_create_srq(domain.raw.as_ptr(), &mut init) })
            .ok_or_else(|| remedy::last(format!("creating a shared receive queue of {depth} entries")))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    /// Asks for an event when fewer receives than this are posted.
    pub(super) fn arm(&self, limit: u32) -> Result<(), HcaError> {
        let mut attr = sys::ibv_srq_attr { srq_limit: limit, ..Default::default() };
        // SAFETY: live; the attributes are ours.
        let rc = unsafe { sys::ibv_modify_srq(self.raw(), &mut attr, sys::IBV_SRQ_LIMIT as c_int) };
        if rc == 0 { Ok(()) } else { Err(remedy::code("setting the limit of a shared receive queue", rc)) }
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: ours, and no queue pair on it is left.
        complain("shared receive queue", unsafe { sys::ibv_destroy_srq(self.raw()) });
    }
}

/// What a queue pair is made with.
#[derive(Clone, Debug)]
pub(super) struct QueuePairParts {
    pub(super) kind: sys::ibv_qp_type,
    pub(super) send_cq: Arc<CompletionQueue>,
    pub(super) recv_cq: Arc<CompletionQueue>,
    pub(super) srq: Option<Arc<SharedReceiveQueue>>,
    pub(super) send_wr: u32,
    pub(super) send_sge: u32,
    pub(super) recv_wr: u32,
}

/// A queue pair. Once destroyed, the device has none of its buffers any more.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    _send_cq: Arc<CompletionQueue>,
    _recv_cq: Arc<CompletionQueue>,
    _srq: Option<Arc<SharedReceiveQueue>>,
    _domain: Arc<ProtectionDomain>,
}

impl QueuePair {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, parts: QueuePairParts) -> Result<Self, HcaError> {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: parts.send_cq.raw(),
            recv_cq: parts.recv_cq.raw(),
            srq: parts.srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.raw()),
            cap: sys::ibv_qp_cap {
                max_send_wr: parts.send_wr,
                max_recv_wr: parts.recv_wr,
                max_send_sge: parts.send_sge,
                max_recv_sge: u32::from(parts.recv_wr > 0),
                max_inline_data: 0,
            },
            qp_type: parts.kind,
            ..Default::default()
        };
        // SAFETY: the domain and what the attributes name live; the attributes are ours.
        let raw = NonNull::new(unsafe { sys::ibv_create_qp(domain.raw.as_ptr(), &mut init) })
            .ok_or_else(|| remedy::last(format!("creating a queue pair of {} sends", parts.send_wr)))?;
        Ok(Self {
            raw,
            _send_cq: parts.send_cq,
            _recv_cq: parts.recv_cq,
            _srq: parts.srq,
            _domain: Arc::clone(domain),
        })
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    pub(super) fn number(&self) -> Qpn {
        // SAFETY: live; its number does not change.
        Qpn::new(unsafe { (*self.raw()).qp_num })
    }

    /// Changes attributes; an error number on failure.
    pub(super) fn modify(&self, attr: &mut sys::ibv_qp_attr, mask: u32) -> Result<(), i32> {
        // SAFETY: live; the attributes are ours.
        match unsafe { sys::ibv_modify_qp(self.raw(), attr, mask as c_int) } {
            0 => Ok(()),
            rc => Err(rc.abs()),
        }
    }

    pub(super) fn state(&self) -> Result<sys::ibv_qp_state, HcaError> {
        let (mut attr, mut init) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
        // SAFETY: live; the attributes are ours.
        let rc = unsafe { sys::ibv_query_qp(self.raw(), &mut attr, sys::IBV_QP_STATE as c_int, &mut init) };
        if rc == 0 { Ok(attr.qp_state) } else { Err(remedy::code("asking for a queue pair's state", rc)) }
    }

    pub(super) fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        let gid = sys::ibv_gid { raw: mgid.0 };
        // SAFETY: live; the GID is ours.
        let rc = unsafe { sys::ibv_attach_mcast(self.raw(), &gid, mlid.0) };
        if rc == 0 { Ok(()) } else { Err(remedy::code(format!("attaching to the group {mgid}"), rc)) }
    }

    pub(super) fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        let gid = sys::ibv_gid { raw: mgid.0 };
        // SAFETY: live; the GID is ours.
        let rc = unsafe { sys::ibv_detach_mcast(self.raw(), &gid, mlid.0) };
        if rc == 0 { Ok(()) } else { Err(remedy::code(format!("detaching from the group {mgid}"), rc)) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: ours; what uses it holds it.
        complain("queue pair", unsafe { sys::ibv_destroy_qp(self.raw()) });
    }
}

/// An address handle.
#[derive(Debug)]
pub(super) struct AddressHandle {
    raw: NonNull<sys::ibv_ah>,
    _domain: Arc<ProtectionDomain>,
}

impl AddressHandle {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, attr: &mut sys::ibv_ah_attr) -> Result<Self, HcaError> {
        // SAFETY: the domain lives; the attributes are ours.
        let raw = NonNull::new(unsafe { sys::ibv_create_ah(domain.raw.as_ptr(), attr) })
            .ok_or_else(|| remedy::last(format!("creating an address handle to LID {}", attr.dlid)))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: ours; entries that are outstanding hold it.
        complain("address handle", unsafe { sys::ibv_destroy_ah(self.raw()) });
    }
}

/// Objects of a provider that a test plays. They are never destroyed: the library does not know them.
#[cfg(test)]
pub(super) mod played {
    use super::*;

    fn keep<T>(object: T) -> Arc<T> {
        let object = Arc::new(object);
        std::mem::forget(Arc::clone(&object));
        object
    }

    pub(in crate::verbs) fn domain(context: *mut sys::ibv_context) -> Arc<ProtectionDomain> {
        let context = keep(Context::played(NonNull::new(context).unwrap()));
        keep(ProtectionDomain { raw: NonNull::dangling(), context })
    }

    pub(in crate::verbs) fn cq(domain: &ProtectionDomain, raw: *mut sys::ibv_cq) -> Arc<CompletionQueue> {
        keep(CompletionQueue { raw: NonNull::new(raw).unwrap(), _context: Arc::clone(&domain.context) })
    }

    pub(in crate::verbs) fn srq(
        domain: &Arc<ProtectionDomain>,
        raw: *mut sys::ibv_srq,
    ) -> Arc<SharedReceiveQueue> {
        keep(SharedReceiveQueue { raw: NonNull::new(raw).unwrap(), _domain: Arc::clone(domain) })
    }

    pub(in crate::verbs) fn qp(
        domain: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        raw: *mut sys::ibv_qp,
    ) -> Arc<QueuePair> {
        keep(QueuePair {
            raw: NonNull::new(raw).unwrap(),
            _send_cq: Arc::clone(cq),
            _recv_cq: Arc::clone(cq),
            _srq: None,
            _domain: Arc::clone(domain),
        })
    }

    pub(in crate::verbs) fn handle(domain: &Arc<ProtectionDomain>) -> Arc<AddressHandle> {
        keep(AddressHandle { raw: NonNull::dangling(), _domain: Arc::clone(domain) })
    }
}
