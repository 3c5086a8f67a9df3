//! The GID table of the hardware, for whoever manages it.

use std::sync::Arc;

use gidcache::{Entry, Provider, ProviderError};
use parking_lot::Mutex;

use super::SoftHca;
use crate::soft::engine::Engine;

/// Writes GID tables of a software device's Ethernet ports.
#[derive(Clone, Debug)]
pub struct SoftGids {
    engine: Arc<Mutex<Engine>>,
}

impl SoftHca {
    /// The device as [`gidcache`] tells it of entries.
    #[must_use]
    pub fn gid_provider(&self) -> SoftGids {
        SoftGids { engine: Arc::clone(&self.engine) }
    }
}

impl Provider for SoftGids {
    fn add_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        Ok(self.engine.lock().set_gid(entry.port, entry.index, Some(entry.attributes))?)
    }

    fn del_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        Ok(self.engine.lock().set_gid(entry.port, entry.index, None)?)
    }
}
