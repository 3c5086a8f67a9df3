//! Event queues, completion queues, shared receive queues.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bar::UAR_PAGE_MASK;
use crate::layout;

/// Five bits at bit 24 of a word.
const fn log_at_24(word: u32) -> u8 {
    (word >> 24) as u8 & 0x1f
}

/// An event queue's context.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EqContext {
    /// Status ([`EqContext::OVERRUN`], 4 bits at 28), flags, and whether it is armed ([`EqContext::ARMED`], 4
    /// bits at 8).
    pub status: U32,
    /// Zero.
    pub reserved_4: U32,
    /// Offset in the first page.
    pub page_offset: U32,
    /// Binary logarithm of the number of entries (5 bits at 24) and doorbell page (24 bits).
    pub size_uar: U32,
    /// Zero.
    pub reserved_16: U32,
    /// Interrupt vector, 12 bits.
    pub vector: U32,
    /// Binary logarithm of the page size, in units of 4096 bytes (5 bits at 24).
    pub page_size: U32,
    /// Zero.
    pub reserved_28: [U32; 3],
    /// Consumer index, 24 bits, for queries.
    pub consumer: U32,
    /// Producer index, 24 bits, for queries.
    pub producer: U32,
    /// Zero.
    pub reserved_48: [U32; 4],
}

layout!(EqContext, 64, page_offset @ 8, size_uar @ 0xc, vector @ 0x14, page_size @ 0x18, consumer @ 0x28, producer @ 0x2c);

impl EqContext {
    /// Status of a queue that had no room for an event, and accepts no more.
    pub const OVERRUN: u32 = 0xa << 28;
    /// The next event raises an interrupt.
    pub const ARMED: u32 = 0x9 << 8;
    /// No event raises an interrupt until the driver arms the queue again.
    pub const FIRED: u32 = 0xa << 8;

    /// Binary logarithm of the number of entries.
    #[must_use]
    pub const fn log_size(&self) -> u8 {
        log_at_24(self.size_uar.get())
    }

    /// Its doorbell page.
    #[must_use]
    pub const fn uar_page(&self) -> u32 {
        self.size_uar.get() & UAR_PAGE_MASK
    }

    /// Interrupt vector.
    #[must_use]
    pub const fn vector(&self) -> u16 {
        self.vector.get() as u16 & 0xfff
    }

    /// Binary logarithm of the page size, in units of 4096 bytes.
    #[must_use]
    pub const fn log_page_size(&self) -> u8 {
        log_at_24(self.page_size.get())
    }
}

/// A completion queue's context.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CqContext {
    /// Status; size of entries (3 bits at 21); flags.
    pub status: U32,
    /// Zero.
    pub reserved_4: U32,
    /// Offset in the first page (6 bits at 6), in units of a 64th of a page.
    pub page_offset: U32,
    /// Binary logarithm of the number of entries (5 bits at 24) and doorbell page (24 bits).
    pub size_uar: U32,
    /// Moderation: microseconds (12 bits at 16) and completions (16 bits).
    pub moderation: U32,
    /// Event queue.
    pub eqn: U32,
    /// Binary logarithm of the page size, in units of 4096 bytes (5 bits at 24).
    pub page_size: U32,
    /// Zero.
    pub reserved_28: U32,
    /// Index of the last entry that raised an event, 24 bits, for queries.
    pub last_notified: U32,
    /// Index of the last solicited entry, 24 bits, for queries.
    pub last_solicited: U32,
    /// Consumer index, 24 bits, for queries.
    pub consumer: U32,
    /// Producer index, 24 bits, for queries.
    pub producer: U32,
    /// Zero.
    pub reserved_48: [U32; 2],
    /// Address of the doorbell record.
    pub dbrec: U64,
}

layout!(
    CqContext, 64, page_offset @ 8, size_uar @ 0xc, moderation @ 0x10, eqn @ 0x14, page_size @ 0x18,
    consumer @ 0x28, producer @ 0x2c, dbrec @ 0x38
);

impl CqContext {
    /// Status of a queue that had no room for a completion, and accepts no more.
    pub const OVERRUN: u32 = 0x9 << 28;
    /// The next completion raises an event.
    pub const ARMED: u32 = 0x9 << 8;
    /// The next solicited completion raises an event.
    pub const SOLICITED_ARMED: u32 = 0x6 << 8;
    /// No completion raises an event until the driver arms the queue again.
    pub const FIRED: u32 = 0xa << 8;

    /// Completions for one event; 0 for no moderation.
    #[must_use]
    pub const fn moderation_count(&self) -> u16 {
        self.moderation.get() as u16
    }

    /// Longest delay of an event in microseconds; 0 for no moderation.
    #[must_use]
    pub const fn moderation_period(&self) -> u16 {
        (self.moderation.get() >> 16) as u16 & 0xfff
    }

    /// Bytes of an entry; `None` for an undefined format.
    #[must_use]
    pub const fn entry_size(&self) -> Option<usize> {
        match (self.status.get() >> 21) & 7 {
            0 => Some(64),
            1 => Some(128),
            _ => None,
        }
    }

    /// Offset in the first page, in units of a 64th of a page.
    #[must_use]
    pub const fn page_offset(&self) -> u8 {
        (self.page_offset.get() >> 6) as u8 & 0x3f
    }

    /// Binary logarithm of the number of entries.
    #[must_use]
    pub const fn log_size(&self) -> u8 {
        log_at_24(self.size_uar.get())
    }

    /// Its doorbell page.
    #[must_use]
    pub const fn uar_page(&self) -> u32 {
        self.size_uar.get() & UAR_PAGE_MASK
    }

    /// Binary logarithm of the page size, in units of 4096 bytes.
    #[must_use]
    pub const fn log_page_size(&self) -> u8 {
        log_at_24(self.page_size.get())
    }
}

/// A shared receive queue's context; that of an XRC queue is the same, with a user index.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SrqContext {
    /// State (4 bits at 28); binary logarithm of the number of slots (4 bits at 24).
    pub state_size: U32,
    /// Flags; binary logarithm of a slot's size in units of 16 bytes (3 bits at 24); XRC domain (24 bits).
    pub stride_xrcd: U32,
    /// Offset in the first page (6 bits at 26), in units of a 64th of a page; completion queue (24 bits).
    pub offset_cqn: U32,
    /// Zero.
    pub reserved_12: U32,
    /// For an XRC queue: a flag ([`SrqContext::NUMBER_IS_INDEX`]) and the identifier in completions (24
    /// bits); binary logarithm of the page size, in units of 4096 bytes (6 bits at 24).
    pub page_user: U32,
    /// Zero.
    pub reserved_20: U32,
    /// Protection domain.
    pub pd: U32,
    /// Limit (16 bits at 16), and the number of posted receives, for queries.
    pub limit_count: U32,
    /// Zero.
    pub reserved_32: U64,
    /// Address of the doorbell record.
    pub dbrec: U64,
    /// Zero.
    pub reserved_48: [u8; 16],
}

layout!(
    SrqContext, 64, stride_xrcd @ 4, offset_cqn @ 8, page_user @ 0x10, pd @ 0x18, limit_count @ 0x1c, dbrec @ 0x28
);

impl SrqContext {
    /// Mask of the state.
    pub const STATE: u32 = 0xf << 28;
    /// State of a queue that supplies no more receives.
    pub const ERROR: u32 = 1 << 28;
    /// In `page_user`: completions identify the queue by its number, not the user index.
    pub const NUMBER_IS_INDEX: u32 = 1 << 31;

    /// XRC domain.
    #[must_use]
    pub const fn xrcd(&self) -> u32 {
        self.stride_xrcd.get() & 0xff_ffff
    }

    /// Completion queue of an XRC queue.
    #[must_use]
    pub const fn cqn(&self) -> u32 {
        self.offset_cqn.get() & 0xff_ffff
    }

    /// Identifier of an XRC queue in completions; `None` for its number.
    #[must_use]
    pub const fn user_index(&self) -> Option<u32> {
        let word = self.page_user.get();
        if word & Self::NUMBER_IS_INDEX != 0 { None } else { Some(word & 0xff_ffff) }
    }

    /// Binary logarithm of the number of slots.
    #[must_use]
    pub const fn log_size(&self) -> u8 {
        (self.state_size.get() >> 24) as u8 & 0xf
    }

    /// Bytes of a slot.
    #[must_use]
    pub const fn stride(&self) -> usize {
        16 << ((self.stride_xrcd.get() >> 24) & 7)
    }

    /// Offset in the first page, in units of a 64th of a page.
    #[must_use]
    pub const fn page_offset(&self) -> u8 {
        (self.offset_cqn.get() >> 26) as u8
    }

    /// Binary logarithm of the page size, in units of 4096 bytes.
    #[must_use]
    pub const fn log_page_size(&self) -> u8 {
        (self.page_user.get() >> 24) as u8 & 0x3f
    }

    /// Limit.
    #[must_use]
    pub const fn limit(&self) -> u16 {
        (self.limit_count.get() >> 16) as u16
    }
}
