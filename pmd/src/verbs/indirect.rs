//! Fast-registration keys of mlx5 devices: indirect ones, which the library makes and UMR entries of the driver give lists of pieces.
//!
//! The library makes them by a command of the program's own (DEVX), which takes a firmware and a kernel that let it. No privilege is needed.

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

/// Most pieces that the library can be asked for: it counts them in 16 bits, padded to four.
const MOST_PIECES: u32 = 0xfffc;
/// The modifier of a query for what is in force.
const CURRENT: u16 = 1;

/// All indirect keys of a device, by their places. The control lcore makes and destroys them; queues know them by their numbers.
#[derive(Debug)]
pub(super) struct IndirectKeys {
    keys: BTreeMap<u32, IndirectKey>,
    /// Most pieces of a key; 0 where none can be made.
    most: u32,
}

impl IndirectKeys {
    /// Of a driver that does not use them.
    pub(super) const fn unused() -> Self {
        Self { keys: BTreeMap::new(), most: 0 }
    }

    /// Finds out what the device can do: by making a key.
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

    /// Most pieces of a key, if any can be made.
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
            // A device that has made one is short of something else.
            if self.most > 0 {
                return error;
            }
            remedy::no_indirect_keys(domain.context().name(), &remedy::whole(&error))
        })?;
        let key = made.key();
        self.keys.insert(key.index(), made);
        Ok(FreeKey::new(key, pieces))
    }

    /// Destroys a key: if that succeeds the device does not use its memory any more.
    pub(super) fn destroy(&mut self, key: MemoryKey) -> Result<(), HcaError> {
        let made = self.keys.remove(&key.index());
        made.ok_or_else(|| HcaError::NotFound { what: "memory key", name: format!("{key:?}") })?.end()
    }
}

/// Asks the device itself, for the library does not tell.
fn most_pieces(context: &Context) -> Result<u32, HcaError> {
    let input = InputHeader {
        opcode: opcode::QUERY_HCA_CAP.into(),
        modifier: (capability::GENERAL << 1 | CURRENT).into(),
        ..InputHeader::default()
    };
    let mut output = vec![0_u8; size_of::<OutputHeader>() + capability::CAPABILITIES];
    // SAFETY: open; the library reads and writes as many bytes as it is told.
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
        return Err(remedy::code("asking the device for its capabilities", rc));
    }
    let told = output.get(size_of::<OutputHeader>()..).unwrap_or_default();
    if general::UMR_WITHOUT_INDIRECT.get(told) != 0 {
        let text = "its work requests give no memory to keys for lists (umr_indirect_mkey_disabled)";
        return Err(HcaError::Environment(text.to_owned()));
    }
    let log = general::LOG_MAX_KLM_LIST.get(told);
    Ok(1_u32.checked_shl(log as u32).unwrap_or(MOST_PIECES).min(MOST_PIECES))
}
