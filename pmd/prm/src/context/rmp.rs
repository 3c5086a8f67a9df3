//! Receive memory pools, which drivers use for shared receive queues from ISSI 1 on.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// A work queue, within the context of its owner. A list of pages follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WorkQueueContext {
    /// Kind (4 bits at 28), signature, padding.
    pub kind: U32,
    /// Offset in the first page (5 bits), in units of a 64th of a page.
    pub page_offset: U16,
    /// Limit.
    pub limit: U16,
    /// Protection domain, 24 bits.
    pub pd: U32,
    /// Doorbell page, 24 bits.
    pub uar: U32,
    /// Address of the doorbell record.
    pub dbrec: U64,
    /// Counters of the device and the driver, for queries.
    pub counters: [U32; 2],
    /// Zero.
    pub reserved_32: u8,
    /// Binary logarithm of a slot's size, 4 bits.
    pub log_stride: u8,
    /// Binary logarithm of the page size, in units of 4096 bytes (5 bits).
    pub log_page_size: u8,
    /// Binary logarithm of the number of slots, 5 bits.
    pub log_size: u8,
    /// Flags ([`WorkQueueContext::UMEM`]), and fields not used here.
    pub flags_36: u8,
    /// Fields not used here.
    pub reserved_37: [u8; 155],
}

layout!(
    WorkQueueContext, 192, page_offset @ 4, limit @ 6, pd @ 8, uar @ 0xc, dbrec @ 0x10, counters @ 0x18, log_stride @ 0x21,
    log_page_size @ 0x22, log_size @ 0x23, flags_36 @ 0x24
);

impl Default for WorkQueueContext {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

impl WorkQueueContext {
    /// In `flags_36`: the ring, or the record, is in user-registered memory (UMEM).
    pub const UMEM: u8 = 0xc0;

    /// Bytes of a slot.
    #[must_use]
    pub const fn stride(&self) -> usize {
        1 << (self.log_stride & 0xf)
    }

    /// Binary logarithm of the number of slots.
    #[must_use]
    pub const fn log_size(&self) -> u8 {
        self.log_size & 0x1f
    }

    /// Binary logarithm of the page size, in units of 4096 bytes.
    #[must_use]
    pub const fn log_page_size(&self) -> u8 {
        self.log_page_size & 0x1f
    }

    /// Offset in the first page, in units of a 64th of a page.
    #[must_use]
    pub const fn page_offset(&self) -> u8 {
        self.page_offset.get() as u8 & 0x1f
    }
}

/// A receive memory pool's context.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RmpContext {
    /// State, 4 bits at 20: see [`RmpContext::READY`].
    pub state: U32,
    /// Flags.
    pub flags: U32,
    /// Zero.
    pub reserved_8: [U64; 5],
    /// Its ring.
    pub wq: WorkQueueContext,
}

layout!(RmpContext, 240, wq @ 0x30);

impl RmpContext {
    /// State of a pool that supplies receives.
    pub const READY: u32 = 1 << 20;
    /// State of a pool that supplies no more receives.
    pub const ERROR: u32 = 3 << 20;
}
