//! Protection domains with their registered memory and address handles.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys as sys;

use super::super::device::Context;
use super::super::remedy;
use super::{complain, threads};
use crate::hca::HcaError;
use crate::mem::Zone;

threads! { ProtectionDomain MemoryRegion AddressHandle }

/// A protection domain.
#[derive(Debug)]
pub(in crate::verbs) struct ProtectionDomain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
    /// For a domain of one thread: the thread domain, and the domain whose objects may be used in it.
    within: Option<(NonNull<sys::ibv_td>, Arc<Self>)>,
}

impl ProtectionDomain {
    pub(in crate::verbs) fn new(context: &Arc<Context>) -> Result<Self, HcaError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { sys::ibv_alloc_pd(context.raw()) })
            .ok_or_else(|| remedy::last("creating a protection domain"))?;
        Ok(Self { raw, context: Arc::clone(context), within: None })
    }

    /// Creates a domain for queue pairs used by one thread. Memory of `whole` may be used in it.
    pub(in crate::verbs) fn for_thread(whole: &Arc<Self>) -> Result<Self, HcaError> {
        let context = &whole.context;
        // SAFETY: the context is open.
        let thread = NonNull::new(unsafe { sys::inline::alloc_td(context.raw()) })
            .ok_or_else(|| remedy::last("creating a thread domain"))?;
        // SAFETY: all three are live.
        let raw =
            unsafe { sys::inline::alloc_parent_domain(context.raw(), whole.raw.as_ptr(), thread.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            let error = remedy::last("creating a protection domain of one thread");
            // SAFETY: owned here, and nothing was created in it.
            complain("thread domain", unsafe { sys::inline::dealloc_td(thread.as_ptr()) });
            return Err(error);
        };
        Ok(Self { raw, context: Arc::clone(context), within: Some((thread, Arc::clone(whole))) })
    }

    pub(in crate::verbs) fn context(&self) -> &Context {
        &self.context
    }

    pub(in crate::verbs) const fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: owned by `self`, and nothing created from it is left.
        complain("protection domain", unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) });
        if let Some((thread, _)) = &self.within {
            // SAFETY: owned by `self`, and its contents are gone.
            complain("thread domain", unsafe { sys::inline::dealloc_td(thread.as_ptr()) });
        }
    }
}

/// A registered memory region.
#[derive(Debug)]
pub(in crate::verbs) struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    _domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// Registers a zone of a pool for local access and, if `windows` is true, for windows.
    ///
    /// # Safety
    ///
    /// The zone stays mapped while the region lives. Posted parts of it belong to the device until they
    /// complete.
    pub(in crate::verbs) unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        zone: &Zone,
        windows: bool,
    ) -> Result<Self, HcaError> {
        let bind = if windows { sys::IBV_ACCESS_MW_BIND } else { 0 };
        let access = (sys::IBV_ACCESS_LOCAL_WRITE | bind) as c_int;
        // SAFETY: mapped memory, by the contract of this function.
        let raw =
            unsafe { sys::ibv_reg_mr(domain.raw(), zone.address as *mut _, zone.length as usize, access) };
        let raw =
            NonNull::new(raw).ok_or_else(|| remedy::registration(zone.length, io::Error::last_os_error()))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    pub(in crate::verbs) const fn raw(&self) -> *mut sys::ibv_mr {
        self.raw.as_ptr()
    }

    pub(in crate::verbs) fn lkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.raw.as_ptr()).lkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: owned by `self`.
        complain("memory region", unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// An address handle.
#[derive(Debug)]
pub(in crate::verbs) struct AddressHandle {
    raw: NonNull<sys::ibv_ah>,
    _domain: Arc<ProtectionDomain>,
}

impl AddressHandle {
    pub(in crate::verbs) fn new(
        domain: &Arc<ProtectionDomain>,
        attr: &mut sys::ibv_ah_attr,
    ) -> Result<Self, HcaError> {
        // SAFETY: the domain lives; the caller owns the attributes.
        let raw = NonNull::new(unsafe { sys::ibv_create_ah(domain.raw(), attr) })
            .ok_or_else(|| remedy::last(format!("creating an address handle to LID {}", attr.dlid)))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    pub(in crate::verbs) const fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: owned by `self`; outstanding entries hold it.
        complain("address handle", unsafe { sys::ibv_destroy_ah(self.raw()) });
    }
}

#[cfg(test)]
impl ProtectionDomain {
    pub(super) fn played(context: Arc<Context>) -> Self {
        Self { raw: NonNull::dangling(), context, within: None }
    }

    pub(super) fn shared_context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }
}

#[cfg(test)]
impl AddressHandle {
    pub(super) fn played(domain: &Arc<ProtectionDomain>) -> Self {
        Self { raw: NonNull::dangling(), _domain: Arc::clone(domain) }
    }
}
