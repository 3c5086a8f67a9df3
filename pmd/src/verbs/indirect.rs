//! Fast-registration keys of mlx5 devices. They are indirect keys: the library creates them, and UMR entries
//! of the driver set their lists of pieces.
//!
//! The library creates them with a user-level command (DEVX), which the firmware and the kernel must support.
//! No privilege is needed.

use std::collections::BTreeMap;
use std::sync::Arc;

use prm::capability::{self, general};
use prm::command::{InputHeader, OutputHeader, opcode};
use verbs_sys as sys;
use zerocopy::IntoBytes;

use super::device::Context;
use super::object::{IndirectKey, ProtectionDomain};
use super::remedy;
use crate::hca::{HcaError, MemoryKey};
use crate::mem::key::FreeKey;

/// Maximum number of pieces that the library accepts: a 16-bit count, padded to a multiple of four.
const MOST_PIECES: u32 = 0xfffc;
/// Query modifier for the current values.
const CURRENT: u16 = 1;

/// All indirect keys of a device by index. The control lcore creates and destroys them; queues refer to them
/// by number.
#[derive(Debug)]
pub(super) struct IndirectKeys {
    keys: BTreeMap<u32, IndirectKey>,
    /// Maximum number of pieces of a key; 0 if keys cannot be created.
    most: u32,
}

impl IndirectKeys {
    /// Creates the state for a driver that does not use indirect keys.
    pub(super) const fn unused() -> Self {
        Self { keys: BTreeMap::new(), most: 0 }
    }

    /// Determines the device's capabilities by creating a key.
    pub(super) fn probe(domain: &Arc<ProtectionDomain>) -> Self {
        let context = domain.context();
        let most = most_pieces(context).and_then(|most| {
            IndirectKey::new(domain, 1)?.end()?;
            Ok(most)
        });
        let most = most.unwrap_or_else(|error| {
            tracing::info!("{}", remedy::no_indirect_keys(context.name(), &remedy::whole(&error)));
            0
        });
        Self { most, ..Self::unused() }
    }

    /// Returns the maximum number of pieces of a key, if keys can be created.
    pub(super) const fn most_pieces(&self) -> Option<u32> {
        if self.most == 0 { None } else { Some(self.most) }
    }

    pub(super) fn create(
        &mut self,
        domain: &Arc<ProtectionDomain>,
        pieces: u32,
    ) -> Result<FreeKey, HcaError> {
        if self.most > 0 && !(1..=self.most).contains(&pieces) {
            let limit = format!("1 to {}", self.most);
            return Err(HcaError::Unsupported {
                what: "pieces of a memory key",
                value: pieces.into(),
                limit,
            });
        }
        let made = IndirectKey::new(domain, pieces.min(MOST_PIECES) as u16).map_err(|error| {
            // The device has created a key before, so it lacks some other resource.
            if self.most > 0 {
                return error;
            }
            remedy::no_indirect_keys(domain.context().name(), &remedy::whole(&error))
        })?;
        let key = made.key();
        self.keys.insert(key.index(), made);
        Ok(FreeKey::new(key, pieces))
    }

    /// Destroys a key. On success the device no longer uses its memory.
    pub(super) fn destroy(&mut self, key: MemoryKey) -> Result<(), HcaError> {
        let made = self.keys.remove(&key.index());
        made.ok_or_else(|| HcaError::NotFound { what: "memory key", name: format!("{key:?}") })?.end()
    }
}

/// Queries the device directly, because the library does not provide the value.
fn most_pieces(context: &Context) -> Result<u32, HcaError> {
    let input = InputHeader {
        opcode: opcode::QUERY_HCA_CAP.into(),
        modifier: (capability::GENERAL << 1 | CURRENT).into(),
        ..InputHeader::default()
    };
    let mut output = vec![0_u8; size_of::<OutputHeader>() + capability::CAPABILITIES];
    // SAFETY: open; the library reads and writes only the passed lengths.
    let rc = unsafe {
        sys::mlx5dv_devx_general_cmd(
            context.raw(),
            input.as_bytes().as_ptr().cast(),
            input.as_bytes().len(),
            output.as_mut_ptr().cast(),
            output.len(),
        )
    };
    if rc != 0 {
        return Err(remedy::code("querying the device's capabilities", rc));
    }
    let capabilities = output.get(size_of::<OutputHeader>()..).unwrap_or_default();
    if general::UMR_WITHOUT_INDIRECT.get(capabilities) != 0 {
        let text = "its UMR work requests do not support list keys (umr_indirect_mkey_disabled)";
        return Err(HcaError::Environment(text.to_owned()));
    }
    let log = general::LOG_MAX_KLM_LIST.get(capabilities);
    Ok(1_u32.checked_shl(log as u32).unwrap_or(MOST_PIECES).min(MOST_PIECES))
}
