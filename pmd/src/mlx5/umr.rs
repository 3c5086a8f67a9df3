//! Key operations of a send queue: registration, binding and invalidation. Each is a UMR entry.
//!
//! IPoIB itself only uses SEND. Key operations serve storage-like services and frames with more segments than
//! a send allows. The entry after a UMR carries the small fence (see [`SendQueue::post`]), so it may use the
//! key.

use super::sq::{Full, Posted, Request, SendQueue, Writer};
use prm::{
    DS_UNIT, DataSegment, MkeyContext, RepeatBlock, RepeatEntry, SendOpcode, UmrControl, mkey_access,
    mkey_mask, umr_flags,
};

/// Length of a UMR without a list in units of 16 bytes: control, UMR control, key context.
const HEAD_UNITS: usize = 8;

/// Length of an entry that frees a key, in units of 16 bytes.
pub(super) const FREE_UNITS: usize = HEAD_UNITS;

/// Lists are padded to a multiple of this many entries.
pub(super) const LIST_STEP: usize = 4;

/// Rights that a UMR may set: all except local read, which a key always has.
pub(super) const RIGHTS: u64 =
    mkey_mask::LOCAL_WRITE | mkey_mask::REMOTE_READ | mkey_mask::REMOTE_WRITE | mkey_mask::ATOMIC;

/// Reason why a key operation was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UmrError {
    /// The send queue is full.
    #[error("the send queue is full")]
    Full,
    /// The list is longer than the key allows.
    #[error("the key has room for {max} entries, not {asked}")]
    TooManyEntries {
        /// Requested number of entries.
        asked: usize,
        /// Capacity of the key in entries.
        max: usize,
    },
}

impl From<Full> for UmrError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// A key whose memory is a list of pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndirectKey {
    /// The key with its new tag.
    pub mkey: u32,
    /// Maximum number of entries of its list.
    pub max_entries: usize,
}

/// A piece of a strided layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strided {
    /// Address of the piece in the first repetition.
    pub address: u64,
    /// Length of the piece in bytes.
    pub bytes: u16,
    /// Gap after the piece in bytes.
    pub skip: u16,
    /// Key of the memory.
    pub lkey: u32,
}

/// Memory layout of a key.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'a> {
    /// Pieces, one after the other in the key's address range.
    List(&'a [DataSegment]),
    /// Repetitions of strided pieces.
    Interleaved {
        /// Number of repetitions.
        repeat: u32,
        /// The pieces.
        pieces: &'a [Strided],
    },
}

impl Layout<'_> {
    /// Number of list entries as the device counts them.
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
    /// Current key.
    pub old_rkey: u32,
    /// New key, with another tag.
    pub new_rkey: u32,
    /// Key of the memory region.
    pub mr_lkey: u32,
    /// First address.
    pub address: u64,
    /// Length in bytes; 0 unbinds it.
    pub len: u64,
    /// Bits of [`mkey_access`]. Local rights are ignored.
    pub access: u8,
    /// True if the addresses of its users start at 0.
    pub zero_based: bool,
}

/// Key operations of a send queue.
impl SendQueue {
    /// LOCAL_INV: frees a key and resets its tag to 0. `flags` as in [`Request::flags`].
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

    /// BIND_MW: binds or unbinds a window.
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

    /// Registers memory by UMR: sets a tag of `key` and, if given, rights (bits of [`mkey_access`]) and
    /// memory. The key is zero-based, and any queue pair may use it.
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
