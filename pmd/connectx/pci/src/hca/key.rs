//! Commands about memory keys.

use connectx::{Access, ProtectionDomain};
use prm::command::CONTEXT;
use prm::{MkeyContext, mkey_access};
use tracing::warn;

use super::command::{Fault, Input, Output};
use super::{Hca, Table};
use crate::memory::{Lease, PAGE};

/// Binary logarithm of the largest page.
const LOG_MAX_PAGE: u8 = 31;
/// Bits of a protection domain's number.
pub(super) const NUMBER: u32 = 0xff_ffff;

/// A memory key.
#[derive(Debug)]
pub(super) struct Key {
    /// As work requests name it.
    key: u32,
    /// It is for all memory.
    whole: bool,
    /// Keeps its memory.
    lease: Lease,
}

impl Hca {
    pub(super) fn create_key(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::MemoryKeys, self.objects.keys.len())?;
        let context: MkeyContext = input.view(CONTEXT)?;
        let flags = context.access;
        let access = Access {
            local_write: flags & mkey_access::LOCAL_WRITE != 0,
            remote_write: flags & mkey_access::REMOTE_WRITE != 0,
            remote_read: flags & mkey_access::REMOTE_READ != 0,
        };
        let tag = context.qpn_mkey.get() as u8;
        let (start, len) = (context.start.get(), context.len.get());
        let (whole, start, (pieces, lease)) = match flags & MkeyContext::MODE {
            0 if context.flags_pd.get() & MkeyContext::WHOLE != 0 => (true, 0, self.memory.whole()?),
            MkeyContext::MODE_PAGES => {
                let log = context.log_page_size & 0x1f;
                if !(PAGE.trailing_zeros() as u8..=LOG_MAX_PAGE).contains(&log) {
                    return Err(Fault::parameter(format!("pages of 2^{log} bytes")));
                }
                let page = 1 << log;
                let first = start % page;
                let all = first.checked_add(len).ok_or_else(|| Fault::parameter("a region without end"))?;
                let pages = input.pages(all, page)?;
                (false, start, self.memory.pieces(&pages, page, first, len)?)
            }
            other => return Err(Fault::parameter(format!("keys of kind {other}"))),
        };
        let key = self.engine.register_tagged(tag, start, pieces, access)?;
        let domain = ProtectionDomain(context.flags_pd.get() & NUMBER);
        self.engine.set_key_domain(key, domain)?;
        self.objects.keys.insert(key >> 8, Key { key, whole, lease });
        output.set_number(key >> 8)
    }

    pub(super) fn destroy_key(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let index = input.number();
        let key = self.objects.keys.get(&index).ok_or_else(|| Fault::resource("memory key", index))?;
        self.engine.deregister(key.key)?;
        self.objects.keys.remove(&index);
        Ok(())
    }

    /// The guest's memory is another: so is what keys for all of it name.
    pub(super) fn refresh_whole_keys(&mut self) {
        for key in self.objects.keys.values_mut().filter(|key| key.whole) {
            // A key that there is no room for any more names nothing, rather than what was there before.
            let (pieces, lease) = self.memory.whole().unwrap_or_else(|error| {
                warn!("key {:#x}: {error}", key.key);
                Default::default()
            });
            match self.engine.replace_memory(key.key, pieces) {
                // Only now nothing works on the memory of the old one.
                Ok(()) => key.lease = lease,
                Err(error) => warn!("key {:#x}: {error}", key.key),
            }
        }
    }
}
