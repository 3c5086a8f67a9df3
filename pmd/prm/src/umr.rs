//! Segments of user-mode memory registration (UMR): keys created, changed and freed from a send queue.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// Bits of [`UmrControl::flags`].
pub mod umr_flags {
    /// The key must belong to this queue pair.
    pub const CHECK_QPN: u8 = 0x08;
    /// The translation offset is valid.
    pub const TRANSLATION_OFFSET: u8 = 0x10;
    /// The key must be free.
    pub const CHECK_FREE: u8 = 0x20;
    /// The key must not be free.
    pub const CHECK_VALID: u8 = 0x40;
    /// The list of memory ranges is in the entry.
    pub const INLINE: u8 = 0x80;
    /// All known flags.
    pub const ALL: u8 = CHECK_QPN | TRANSLATION_OFFSET | CHECK_FREE | CHECK_VALID | INLINE;
}

/// Bits of [`UmrControl::mkey_mask`]: which fields of the key context are valid.
pub mod mkey_mask {
    /// Length.
    pub const LEN: u64 = 1;
    /// Page size.
    pub const PAGE_SIZE: u64 = 1 << 1;
    /// Start address.
    pub const START_ADDR: u64 = 1 << 6;
    /// Protection domain.
    pub const DOMAIN: u64 = 1 << 7;
    /// Right of the peer to invalidate it.
    pub const REMOTE_INVALIDATE: u64 = 1 << 8;
    /// Tag of the key.
    pub const MKEY: u64 = 1 << 13;
    /// Queue pair.
    pub const QPN: u64 = 1 << 14;
    /// Local read right.
    pub const LOCAL_READ: u64 = 1 << 17;
    /// Local write right.
    pub const LOCAL_WRITE: u64 = 1 << 18;
    /// Remote read right.
    pub const REMOTE_READ: u64 = 1 << 19;
    /// Remote write right.
    pub const REMOTE_WRITE: u64 = 1 << 20;
    /// Remote atomic right.
    pub const ATOMIC: u64 = 1 << 21;
    /// Whether a small fence waits for it.
    pub const SMALL_FENCE: u64 = 1 << 23;
    /// Free bit.
    pub const FREE: u64 = 1 << 29;
    /// All rights.
    pub const RIGHTS: u64 = LOCAL_READ | LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | ATOMIC;
    /// All known fields.
    pub const ALL: u64 =
        LEN | PAGE_SIZE | START_ADDR | DOMAIN | REMOTE_INVALIDATE | MKEY | QPN | RIGHTS | SMALL_FENCE | FREE;
}

/// Bits of [`MkeyContext::access`].
pub mod mkey_access {
    /// Local read.
    pub const LOCAL_READ: u8 = 0x04;
    /// Local write.
    pub const LOCAL_WRITE: u8 = 0x08;
    /// Remote read.
    pub const REMOTE_READ: u8 = 0x10;
    /// Remote write.
    pub const REMOTE_WRITE: u8 = 0x20;
    /// Remote atomic.
    pub const ATOMIC: u8 = 0x40;
    /// Work requests may set its memory.
    pub const UMR: u8 = 0x80;
}

/// Bits of [`MkeyContext::flags_pd`].
pub mod mkey_flags {
    /// The peer may invalidate it.
    pub const REMOTE_INVALIDATE: u32 = 1 << 24;
}

/// Parameters of a UMR operation.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UmrControl {
    /// See [`umr_flags`].
    pub flags: u8,
    /// Zero.
    pub reserved_1: [u8; 3],
    /// Length of the list in units of 16 bytes.
    pub klm_octowords: U16,
    /// Offset into the translation, in units of 16 bytes.
    pub translation_offset: U16,
    /// See [`mkey_mask`].
    pub mkey_mask: U64,
    /// Zero.
    pub reserved_16: [u8; 32],
}

layout!(UmrControl, 48, klm_octowords @ 4, translation_offset @ 6, mkey_mask @ 8);

/// A memory key's context; only fields named by the mask are valid.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MkeyContext {
    /// Bit 6: the key is free.
    pub free: u8,
    /// Zero.
    pub reserved_1: u8,
    /// See [`mkey_access`].
    pub access: u8,
    /// Bits of scatter formats.
    pub sf: u8,
    /// Queue pair that may use it (24 bits, all ones = any) and the key's tag (8).
    pub qpn_mkey: U32,
    /// Zero.
    pub reserved_8: U32,
    /// Protection domain and flags.
    pub flags_pd: U32,
    /// First address; 0 = zero based.
    pub start: U64,
    /// Bytes.
    pub len: U64,
    /// Length of the signature description.
    pub bsf_octowords: U32,
    /// Zero.
    pub reserved_36: [u8; 16],
    /// Length of the translation.
    pub translation_octowords: U32,
    /// Zero.
    pub reserved_56: [u8; 3],
    /// Page size of the translation.
    pub log_page_size: u8,
    /// Zero.
    pub reserved_60: U32,
}

impl MkeyContext {
    /// In `free`: the key is free.
    pub const FREE: u8 = 0x40;
    /// In `access`: meaning of `start` and the list, two bits: 0 for physical addresses without a list.
    pub const MODE: u8 = 0x03;
    /// In `access`: a list of pages.
    pub const MODE_PAGES: u8 = 0x01;
    /// In `access`: a list of keys, addresses and lengths.
    pub const MODE_KEYS: u8 = 0x02;
    /// In `flags_pd`: all memory, regardless of the length.
    pub const WHOLE: u32 = 0x8000_0000;
    /// In `qpn_mkey`: any queue pair.
    pub const ANY_QP: u32 = 0xffff_ff00;
}

layout!(
    MkeyContext, 64, access @ 2, qpn_mkey @ 4, flags_pd @ 12, start @ 16, len @ 24, bsf_octowords @ 32,
    translation_octowords @ 52, log_page_size @ 59
);

/// Header of a strided list: the entries behind it are used in rotation.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RepeatBlock {
    /// Bytes of one rotation.
    pub byte_count: U32,
    /// [`RepeatBlock::STRIDED`].
    pub op: U32,
    /// Number of rotations.
    pub repeat_count: U32,
    /// Zero.
    pub reserved_12: U16,
    /// Entries that follow.
    pub entries: U16,
}

impl RepeatBlock {
    /// In place of a key: this is a strided list.
    pub const STRIDED: u32 = 0x400;
}

layout!(RepeatBlock, 16, op @ 4, repeat_count @ 8, entries @ 14);

/// One range of a strided list.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RepeatEntry {
    /// Distance from one rotation's range to the next one's.
    pub stride: U16,
    /// Bytes of a range.
    pub byte_count: U16,
    /// Key of the memory.
    pub mkey: U32,
    /// Address of the first rotation's range.
    pub address: U64,
}

layout!(RepeatEntry, 16, byte_count @ 2, mkey @ 4, address @ 8);
