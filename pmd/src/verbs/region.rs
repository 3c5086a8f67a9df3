//! Registration by a device's command, for who compares its cost.

use std::sync::Arc;

use super::device;
use super::object::{MemoryRegion, ProtectionDomain};
use crate::hca::HcaError;
use crate::mem::Zone;

/// A device on which memory is registered, and nothing else is done with it.
#[derive(Debug)]
pub struct RegionDevice {
    domain: Arc<ProtectionDomain>,
}

impl RegionDevice {
    /// Opens a device by name.
    pub fn open(name: &str) -> Result<Self, HcaError> {
        let context = Arc::new(device::open(name)?);
        Ok(Self { domain: Arc::new(ProtectionDomain::new(&context)?) })
    }

    /// Registers memory for local access (`ibv_reg_mr`), and ends that again (`ibv_dereg_mr`).
    pub fn register(&self, memory: &mut [u8]) -> Result<(), HcaError> {
        let zone = Zone { address: memory.as_mut_ptr() as u64, length: memory.len() as u64 };
        // SAFETY: borrowed until the region is gone; without queue pairs the device does nothing with it.
        unsafe { MemoryRegion::new(&self.domain, &zone, false) }.map(drop)
    }
}
