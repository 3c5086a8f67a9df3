//! Memory keys for lists of pieces.

use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys as sys;

use super::super::remedy;
use super::{ProtectionDomain, complain, destroyed, threads};
use crate::hca::{HcaError, MemoryKey};

threads! { IndirectKey }

/// A free libmlx5 key. UMR entries set its list of pieces.
#[derive(Debug)]
pub(in crate::verbs) struct IndirectKey {
    raw: Option<NonNull<sys::mlx5dv_mkey>>,
    _domain: Arc<ProtectionDomain>,
}

impl IndirectKey {
    /// Creates a key with room for `pieces` pieces. Its tag can be changed, and a peer's SEND can invalidate
    /// it.
    pub(in crate::verbs) fn new(domain: &Arc<ProtectionDomain>, pieces: u16) -> Result<Self, HcaError> {
        let mut attributes = sys::mlx5dv_mkey_init_attr {
            pd: domain.raw(),
            create_flags: sys::MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT
                | sys::MLX5DV_MKEY_INIT_ATTR_FLAGS_UPDATE_TAG
                | sys::MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE,
            max_entries: pieces,
        };
        // SAFETY: a live domain of a device that libmlx5 drives; the attributes are a local variable.
        let raw = NonNull::new(unsafe { sys::mlx5dv_create_mkey(&mut attributes) });
        let raw = raw.ok_or_else(|| remedy::last("creating a memory key for a list"))?;
        Ok(Self { raw: Some(raw), _domain: Arc::clone(domain) })
    }

    /// Returns the key with its initial tag.
    pub(in crate::verbs) fn key(&self) -> MemoryKey {
        // SAFETY: live.
        self.raw.map_or(MemoryKey::new(0), |raw| MemoryKey::new(unsafe { (*raw.as_ptr()).lkey }))
    }

    /// Destroys the key. On an error the device may still use its memory.
    pub(in crate::verbs) fn end(mut self) -> Result<(), HcaError> {
        match self.raw.take() {
            // SAFETY: owned here, and nobody else uses it.
            Some(raw) => destroyed("memory key", unsafe { sys::mlx5dv_destroy_mkey(raw.as_ptr()) }),
            None => Ok(()),
        }
    }
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: owned here, and nobody else uses it.
            complain("memory key", unsafe { sys::mlx5dv_destroy_mkey(raw.as_ptr()) });
        }
    }
}
