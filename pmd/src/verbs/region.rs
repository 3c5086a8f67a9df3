//! Registration by a device command, for cost comparisons.

use std::sync::Arc;

use super::device;
use super::object::{MemoryRegion, ProtectionDomain};
use crate::hca::HcaError;
use crate::mem::Zone;

/// A device that is used only to register memory.
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

    /// Registers memory for local access (`ibv_reg_mr`) and deregisters it (`ibv_dereg_mr`).
    pub fn register(&self, memory: &mut [u8]) -> Result<(), HcaError> {
        let zone = Zone { address: memory.as_mut_ptr() as u64, length: memory.len() as u64 };
        // SAFETY: borrowed until the region is gone; without queue pairs the device does nothing with it.
        unsafe { MemoryRegion::new(&self.domain, &zone, false) }.map(drop)
    }
}
