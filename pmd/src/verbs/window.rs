//! Memory windows of a device, used to register memory from a send queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::object::{MemoryWindow, ProtectionDomain};
use super::remedy;
use crate::hca::{HcaError, MemoryKey};
use crate::mem::key::FreeKey;

/// All type 2 windows of a device by key index. The control lcore creates and destroys them; queues look them
/// up.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows(Arc<Mutex<BTreeMap<u32, Arc<MemoryWindow>>>>);

impl Windows {
    pub(super) fn create(&self, domain: &Arc<ProtectionDomain>, pieces: u32) -> Result<FreeKey, HcaError> {
        if pieces != 1 || !domain.context().has_windows() {
            let limit = if domain.context().has_windows() { "1: it has memory windows" } else { "none" };
            let what = "pieces of a memory key";
            return Err(HcaError::Unsupported { what, value: pieces.into(), limit: limit.into() });
        }
        let window = MemoryWindow::new(domain)?;
        let key = window.key();
        self.0.lock().insert(key.index(), Arc::new(window));
        Ok(FreeKey::new(key, 1))
    }

    /// Destroys a window. Outstanding work holds a reference, and the window then stays.
    pub(super) fn destroy(&self, key: MemoryKey) -> Result<(), HcaError> {
        let mut all = self.0.lock();
        let window = all
            .remove(&key.index())
            .ok_or_else(|| HcaError::NotFound { what: "memory window", name: format!("{key:?}") })?;
        match Arc::try_unwrap(window) {
            Ok(window) => window.end(),
            Err(window) => {
                all.insert(key.index(), window);
                Err(remedy::in_use("memory window"))
            }
        }
    }

    pub(super) fn find(&self, key: MemoryKey) -> Option<Arc<MemoryWindow>> {
        self.0.lock().get(&key.index()).cloned()
    }
}
