//! Memory registrations as send queue entries.

use super::sq::{Full, Posted, Request, SendQueue};
use super::umr::{LIST_STEP, RIGHTS, pad_list};
use crate::hca::KeyRights;
use prm::{
    DS_UNIT, DataSegment, MAX_DS, MkeyContext, SendOpcode, UmrControl, mkey_access, mkey_mask, umr_flags,
};

/// Size of a UMR without a list in units of 16 bytes: control, UMR control, key context.
const HEAD_UNITS: usize = 8;

/// Maximum number of pieces of an inline list.
pub(super) const INLINE_PIECES: usize = (MAX_DS - HEAD_UNITS) / LIST_STEP * LIST_STEP;

/// New contents of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyContents {
    /// Key with its new tag.
    pub(super) mkey: u32,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) rights: KeyRights,
}

/// Converts rights to bits of [`mkey_access`].
fn access(rights: KeyRights) -> u8 {
    [
        (true, mkey_access::LOCAL_READ),
        (rights.local_write, mkey_access::LOCAL_WRITE),
        (rights.remote_read, mkey_access::REMOTE_READ),
        (rights.remote_write, mkey_access::REMOTE_WRITE),
        (rights.remote_atomic, mkey_access::ATOMIC),
    ]
    .into_iter()
    .fold(0, |bits, (has, bit)| if has { bits | bit } else { bits })
}

impl SendQueue {
    /// Size of a registration in units of 16 bytes, with an inline list or a separate one.
    pub(super) const fn registration_units(inline: Option<usize>) -> usize {
        match inline {
            Some(pieces) => HEAD_UNITS + pieces.next_multiple_of(LIST_STEP),
            None => HEAD_UNITS + 1,
        }
    }

    /// FAST_REG: sets the contents of a free key to `count` pieces. They come from the memory that `outside`
    /// names, padded to four entries, or from `pieces`.
    pub(super) fn post_registration(
        &mut self,
        flags: u8,
        contents: &KeyContents,
        count: usize,
        outside: Option<DataSegment>,
        pieces: impl Iterator<Item = DataSegment>,
    ) -> Result<Posted, Full> {
        let inline = if outside.is_some() { 0 } else { umr_flags::INLINE };
        let mut control = UmrControl { flags: inline | umr_flags::CHECK_FREE, ..UmrControl::default() };
        control.klm_octowords.set(count.next_multiple_of(LIST_STEP) as u16);
        control
            .mkey_mask
            .set(mkey_mask::FREE | mkey_mask::MKEY | mkey_mask::LEN | mkey_mask::START_ADDR | RIGHTS);
        let mut context = MkeyContext { access: access(contents.rights), ..MkeyContext::default() };
        context.qpn_mkey.set(MkeyContext::ANY_QP | (contents.mkey & 0xff));
        context.start.set(contents.start);
        context.len.set(contents.len);
        let units = Self::registration_units(outside.is_none().then_some(count));
        self.post(Request { opcode: SendOpcode::Umr, flags, imm: contents.mkey }, units, |writer| {
            writer.segment(&control);
            writer.segment(&context);
            match outside {
                Some(list) => writer.segment(&list),
                None => {
                    pieces.for_each(|piece| writer.segment(&piece));
                    pad_list(writer, count);
                }
            }
            Ok(())
        })
    }
}

const _: () = assert!(HEAD_UNITS * DS_UNIT == 128 && INLINE_PIECES == 52);
