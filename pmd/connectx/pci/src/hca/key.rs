//! Commands about memory keys.

use connectx::Access;
use prm::command::CONTEXT;
use prm::{MkeyContext, mkey_access};
use tracing::warn;

use super::Hca;
use super::command::{Fault, Input, Output};
use crate::memory::{Lease, PAGE};

/// Most pieces of memory that all keys name together: 32 GiB of scattered pages.
const MAX_PIECES: usize = 8 << 20;
/// Binary logarithm of the largest page.
const LOG_MAX_PAGE: u8 = 31;

/// A memory key.
#[derive(Debug)]
pub(super) struct Key {
    /// As work requests name it.
    key: u32,
    /// It is for all memory.
    whole: bool,
    pieces: usize,
    lease: Lease,
}

impl Hca {
    pub(super) fn create_key(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let context: MkeyContext = input.view(CONTEXT)?;
        let flags = context.access;
        let access = Access {
            local_write: flags & mkey_access::LOCAL_WRITE != 0,
            remote_write: flags & mkey_access::REMOTE_WRITE != 0,
            remote_read: flags & mkey_access::REMOTE_READ != 0,
        };
        let tag = context.qpn_mkey.get() as u8;
        let (start, len) = (context.start.get(), context.len.get());
        let gone = || Fault::parameter("a page is no memory");
        let (whole, start, (pieces, lease)) = match flags & MkeyContext::MODE {
            0 if context.flags_pd.get() & MkeyContext::WHOLE != 0 => {
                (true, 0, self.memory.whole().ok_or_else(gone)?)
            }
            MkeyContext::MODE_PAGES => {
                let log = context.log_page_size & 0x1f;
                if !(PAGE.trailing_zeros() as u8..=LOG_MAX_PAGE).contains(&log) {
                    return Err(Fault::parameter(format!("pages of 2^{log} bytes")));
                }
                let page = 1 << log;
                let first = start % page;
                let all = first.checked_add(len).ok_or_else(|| Fault::parameter("a region without end"))?;
                let pages = input.pages(all, page)?;
                (false, start, self.memory.pieces(&pages, page, first, len).ok_or_else(gone)?)
            }
            other => return Err(Fault::parameter(format!("keys of kind {other}"))),
        };
        let count = pieces.count();
        if self.objects.pieces + count > MAX_PIECES {
            return Err(Fault::exhausted("places for pages"));
        }
        let key = self.engine.register_tagged(tag, start, pieces, access)?;
        self.objects.pieces += count;
        self.objects.keys.insert(key >> 8, Key { key, whole, pieces: count, lease });
        output.set_number(key >> 8)
    }

    pub(super) fn destroy_key(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let index = input.number();
        let key = self.objects.keys.get(&index).ok_or_else(|| Fault::resource("memory key", index))?;
        self.engine.deregister(key.key)?;
        if let Some(key) = self.objects.keys.remove(&index) {
            self.objects.pieces -= key.pieces;
        }
        Ok(())
    }

    /// The guest's memory is another: so is what keys for all of it name.
    pub(super) fn refresh_whole_keys(&mut self) {
        for key in self.objects.keys.values_mut().filter(|key| key.whole) {
            let Some((pieces, lease)) = self.memory.whole() else { continue };
            let count = pieces.count();
            match self.engine.replace_memory(key.key, pieces) {
                // Only now nothing works on the memory of the old one.
                Ok(()) => {
                    key.lease = lease;
                    self.objects.pieces = self.objects.pieces - key.pieces + count;
                    key.pieces = count;
                }
                Err(error) => warn!("key {:#x}: {error}", key.key),
            }
        }
    }
}
