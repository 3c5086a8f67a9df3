//! Keys made, bound and freed from a send queue: every one of these operations is an UMR entry.
//!
//! IPoIB itself only SENDs; this is for storage-like services and for frames of more pieces than a send can have. The
//! entry behind an UMR carries the small fence (see [`SendQueue::post`]), so it may use the key at once.

use super::sq::{Full, Posted, Request, SendQueue, Writer};
use prm::{
    DS_UNIT, DataSegment, MkeyContext, RepeatBlock, RepeatEntry, SendOpcode, UmrControl, mkey_access,
    mkey_mask, umr_flags,
};

/// Units of 16 bytes of an UMR without a list: control, UMR control, key context.
const HEAD_UNITS: usize = 8;

/// Units of an entry that frees a key.
pub(super) const FREE_UNITS: usize = HEAD_UNITS;

/// Lists are padded to a multiple of this many entries.
pub(super) const LIST_STEP: usize = 4;

/// Rights that an UMR may set: all but local read, which a key always has.
pub(super) const RIGHTS: u64 =
    mkey_mask::LOCAL_WRITE | mkey_mask::REMOTE_READ | mkey_mask::REMOTE_WRITE | mkey_mask::ATOMIC;

/// Why a key operation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UmrError {
    /// The send queue is full.
    #[error("the send queue is full")]
    Full,
    /// The list is longer than the key allows.
    #[error("the key has room for {max} entries, not for {asked}")]
    TooManyEntries {
        /// Entries asked for.
        asked: usize,
        /// Entries of the key.
        max: usize,
    },
}

impl From<Full> for UmrError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// A key that lists of memory pieces can be written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndirectKey {
    /// The key with its new tag.
    pub mkey: u32,
    /// Entries of its list.
    pub max_entries: usize,
}

/// A piece of a strided layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strided {
    /// Address of the first round's piece.
    pub address: u64,
    /// Bytes taken.
    pub bytes: u16,
    /// Bytes passed over behind them.
    pub skip: u16,
    /// Key of the memory.
    pub lkey: u32,
}

/// What memory a key stands for.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'a> {
    /// Pieces, one behind the other.
    List(&'a [DataSegment]),
    /// Rounds over strided pieces.
    Interleaved {
        /// Rounds.
        repeat: u32,
        /// The pieces.
        pieces: &'a [Strided],
    },
}

impl Layout<'_> {
    /// Entries of the list as the device counts them.
    fn entries(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Interleaved { pieces, .. } => pieces.len() + 1,
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::List(list) => list.iter().map(|piece| u64::from(piece.byte_count.get())).sum(),
            Self::Interleaved { repeat, pieces } => round(pieces) * u64::from(*repeat),
        }
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            Self::List(list) => list.iter().for_each(|piece| writer.segment(piece)),
            Self::Interleaved { repeat, pieces } => {
                let mut head = RepeatBlock::default();
                head.byte_count.set(round(pieces) as u32);
                head.op.set(RepeatBlock::STRIDED);
                head.repeat_count.set(*repeat);
                head.entries.set(pieces.len() as u16);
                writer.segment(&head);
                for piece in *pieces {
                    let mut entry = RepeatEntry::default();
                    entry.stride.set(piece.bytes.wrapping_add(piece.skip));
                    entry.byte_count.set(piece.bytes);
                    entry.mkey.set(piece.lkey);
                    entry.address.set(piece.address);
                    writer.segment(&entry);
                }
            }
        }
        pad_list(writer, self.entries());
    }
}

fn round(pieces: &[Strided]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
}

pub(super) fn pad_list(writer: &mut Writer, entries: usize) {
    for _ in entries..entries.next_multiple_of(LIST_STEP) {
        writer.segment(&DataSegment::default());
    }
}

/// A memory window to bind (type 2, to this queue pair).
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its key as it was.
    pub old_rkey: u32,
    /// Its key from now on: another tag.
    pub new_rkey: u32,
    /// Key of the memory region.
    pub mr_lkey: u32,
    /// First address.
    pub address: u64,
    /// Bytes; 0 unbinds it.
    pub len: u64,
    /// Bits of [`mkey_access`]; local rights are not given.
    pub access: u8,
    /// Addresses of its users begin at 0.
    pub zero_based: bool,
}

/// Key operations of a send queue.
impl SendQueue {
    /// LOCAL_INV: frees a key; its tag becomes 0. `flags` as in [`Request::flags`].
    pub fn post_local_invalidate(&mut self, flags: u8, rkey: u32) -> Result<Posted, Full> {
        self.post_free(flags, rkey, 0)
    }

    fn post_free(&mut self, flags: u8, rkey: u32, new_tag: u32) -> Result<Posted, Full> {
        let mut control = UmrControl {
            flags: umr_flags::INLINE | umr_flags::TRANSLATION_OFFSET | umr_flags::CHECK_QPN,
            ..UmrControl::default()
        };
        control.mkey_mask.set(mkey_mask::FREE | mkey_mask::MKEY | mkey_mask::QPN);
        let mut context = MkeyContext { free: MkeyContext::FREE, ..MkeyContext::default() };
        context.qpn_mkey.set(MkeyContext::ANY_QP | (new_tag & 0xff));
        self.post(Request { opcode: SendOpcode::Umr, flags, imm: rkey }, HEAD_UNITS, |writer| {
            writer.segment(&control);
            writer.segment(&context);
            Ok(())
        })
    }

    /// BIND_MW: binds a window, or unbinds it.
    pub fn post_bind_window(&mut self, flags: u8, window: &Window) -> Result<Posted, Full> {
        if window.len == 0 {
            return self.post_free(flags, window.old_rkey, window.new_rkey);
        }
        let mut control = UmrControl {
            flags: umr_flags::INLINE | umr_flags::CHECK_FREE | umr_flags::TRANSLATION_OFFSET,
            ..UmrControl::default()
        };
        control.klm_octowords.set(LIST_STEP as u16);
        control.mkey_mask.set(
            mkey_mask::FREE
                | mkey_mask::MKEY
                | mkey_mask::QPN
                | mkey_mask::LEN
                | mkey_mask::START_ADDR
                | RIGHTS,
        );
        let remote = mkey_access::REMOTE_READ | mkey_access::REMOTE_WRITE | mkey_access::ATOMIC;
        let mut context = MkeyContext { access: window.access & remote, ..MkeyContext::default() };
        context.qpn_mkey.set((self.qpn() << 8) | (window.new_rkey & 0xff));
        context.start.set(if window.zero_based { 0 } else { window.address });
        context.len.set(window.len);
        let piece = DataSegment::new(window.address, window.len as u32, window.mr_lkey);
        let request = Request { opcode: SendOpcode::Umr, flags, imm: window.old_rkey };
        self.post(request, HEAD_UNITS + LIST_STEP, |writer| {
            writer.segment(&control);
            writer.segment(&context);
            writer.segment(&piece);
            pad_list(writer, 1);
            Ok(())
        })
    }

    /// Registers by UMR: gives `key` a tag and, where they are given, rights (bits of [`mkey_access`]) and memory. The key is
    /// zero based and any queue pair may use it.
    pub fn post_key(
        &mut self,
        flags: u8,
        key: IndirectKey,
        access: Option<u8>,
        layout: Option<&Layout<'_>>,
    ) -> Result<Posted, UmrError> {
        let entries = layout.map_or(0, Layout::entries);
        if entries > key.max_entries {
            return Err(UmrError::TooManyEntries { asked: entries, max: key.max_entries });
        }
        let octowords = entries.next_multiple_of(LIST_STEP) * (size_of::<DataSegment>() / DS_UNIT);
        let mut mask = mkey_mask::FREE | mkey_mask::MKEY;
        let mut context = MkeyContext::default();
        context.qpn_mkey.set(MkeyContext::ANY_QP | (key.mkey & 0xff));
        if let Some(access) = access {
            mask |= RIGHTS;
            context.access = access;
        }
        if let Some(layout) = layout {
            mask |= mkey_mask::LEN;
            context.len.set(layout.len());
        }
        let mut control = UmrControl { flags: umr_flags::INLINE, ..UmrControl::default() };
        control.klm_octowords.set(octowords as u16);
        control.mkey_mask.set(mask);
        let request = Request { opcode: SendOpcode::Umr, flags, imm: key.mkey };
        self.post(request, HEAD_UNITS + octowords, |writer| {
            writer.segment(&control);
            writer.segment(&context);
            if let Some(layout) = layout {
                layout.write(writer);
            }
            Ok(())
        })
    }
}
