//! Memory windows.

use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys as sys;

use super::super::remedy;
use super::{ProtectionDomain, complain, destroyed, threads};
use crate::hca::{HcaError, MemoryKey};

threads! { MemoryWindow }

/// A type 2 memory window.
#[derive(Debug)]
pub(in crate::verbs) struct MemoryWindow {
    raw: Option<NonNull<sys::ibv_mw>>,
    _domain: Arc<ProtectionDomain>,
}

impl MemoryWindow {
    pub(in crate::verbs) fn new(domain: &Arc<ProtectionDomain>) -> Result<Self, HcaError> {
        // SAFETY: a live domain.
        let raw = NonNull::new(unsafe { sys::inline::alloc_mw(domain.raw(), sys::IBV_MW_TYPE_2) });
        let raw = raw.ok_or_else(|| remedy::last("creating a memory window"))?;
        Ok(Self { raw: Some(raw), _domain: Arc::clone(domain) })
    }

    /// Returns the library's object; null after its destruction.
    pub(in crate::verbs) const fn raw(&self) -> *mut sys::ibv_mw {
        match self.raw {
            Some(raw) => raw.as_ptr(),
            None => std::ptr::null_mut(),
        }
    }

    /// Returns the key with its initial tag.
    pub(in crate::verbs) fn key(&self) -> MemoryKey {
        // SAFETY: live.
        self.raw.map_or(MemoryKey::new(0), |raw| MemoryKey::new(unsafe { (*raw.as_ptr()).rkey }))
    }

    /// Destroys the window.
    pub(in crate::verbs) fn end(mut self) -> Result<(), HcaError> {
        match self.raw.take() {
            // SAFETY: owned here, and nobody else uses it.
            Some(raw) => destroyed("memory window", unsafe { sys::inline::dealloc_mw(raw.as_ptr()) }),
            None => Ok(()),
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: owned here, and nobody else uses it.
            complain("memory window", unsafe { sys::inline::dealloc_mw(raw.as_ptr()) });
        }
    }
}
