//! Owned objects of the library. Dropping an object destroys it. Each holds the objects it was created from.

use std::ffi::c_int;
use std::io;

use super::remedy;
use crate::hca::HcaError;

mod completion;
mod domain;
mod indirect_key;
mod queue_pair;
mod shared_receive;
mod window;

pub(super) use completion::{CompletionChannel, CompletionQueue};
pub(super) use domain::{AddressHandle, MemoryRegion, ProtectionDomain};
pub(super) use indirect_key::IndirectKey;
pub(super) use queue_pair::{QueuePair, QueuePairParts};
pub(super) use shared_receive::SharedReceiveQueue;
pub(super) use window::MemoryWindow;

/// Logs that the device did not release an object without buffers.
fn complain(what: &str, rc: c_int) {
    if rc != 0 {
        tracing::warn!("destroying a {what}: {}", io::Error::from_raw_os_error(rc.abs()));
    }
}

macro_rules! threads {
    ($($object:ident)*) => { $(
        // SAFETY: the library locks what its objects share. The caller must not post to or poll one object
        // from several threads; only the queues do so, and they are not `Sync`.
        unsafe impl Send for $object {}
        // SAFETY: as above.
        unsafe impl Sync for $object {}
    )* };
}

use threads;

/// Result of destroying an object with buffers.
fn destroyed(what: &str, rc: c_int) -> Result<(), HcaError> {
    if rc == 0 {
        return Ok(());
    }
    Err(remedy::code(format!("destroying a {what}; its buffers are leaked until the process exits"), rc))
}

/// Objects of a provider simulated by a test. They are never destroyed, because the library does not know
/// them.
#[cfg(test)]
pub(super) mod played {
    use std::ptr::NonNull;
    use std::sync::Arc;

    use verbs_sys as sys;

    use super::super::device::Context;
    use super::*;

    fn keep<T>(object: T) -> Arc<T> {
        let object = Arc::new(object);
        std::mem::forget(Arc::clone(&object));
        object
    }

    fn some<T>(raw: *mut T) -> NonNull<T> {
        NonNull::new(raw).unwrap()
    }

    pub(in crate::verbs) fn domain(context: *mut sys::ibv_context) -> Arc<ProtectionDomain> {
        keep(ProtectionDomain::played(keep(Context::played(some(context)))))
    }

    pub(in crate::verbs) fn cq(domain: &ProtectionDomain, raw: *mut sys::ibv_cq) -> Arc<CompletionQueue> {
        keep(CompletionQueue::played(domain.shared_context(), some(raw)))
    }

    pub(in crate::verbs) fn srq(
        domain: &Arc<ProtectionDomain>,
        raw: *mut sys::ibv_srq,
    ) -> Arc<SharedReceiveQueue> {
        keep(SharedReceiveQueue::played(domain, some(raw)))
    }

    pub(in crate::verbs) fn qp(
        domain: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        raw: *mut sys::ibv_qp,
    ) -> Arc<QueuePair> {
        keep(QueuePair::played(domain, cq, some(raw)))
    }

    pub(in crate::verbs) fn handle(domain: &Arc<ProtectionDomain>) -> Arc<AddressHandle> {
        keep(AddressHandle::played(domain))
    }
}
