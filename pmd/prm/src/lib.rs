//! The binary formats of mlx5: work queue entries, completion queue entries and doorbell records in memory;
//! and, for a complete device model, its registers, commands, contexts and events. All are big endian.
//!
//! The driver of such rings and the software ConnectX behind them share only this crate, so that each side
//! checks the other. Each struct has byte alignment, so that it can be read from or written to any offset of
//! a ring. Sizes and offsets are checked at compile time, here against numbers and in `pmd` against the
//! installed `mlx5dv.h`.
#![forbid(unsafe_code)]

mod address;
pub mod bar;
pub mod capability;
pub mod command;
mod completion;
pub mod context;
mod event;
pub mod port;
mod receive;
mod send;
mod umr;

pub use address::DatagramAddress;
pub use completion::{Cqe, CqeOpcode, ErrorCqe, Syndrome, cqe_flags, cqe_headers, cqe_owner};
pub use event::{EQE_SIZE, Eqe, EventType, port_event};
pub use receive::NextSegment;
pub use send::{
    AtomicSegment, ControlSegment, DataSegment, EthernetSegment, InlineHeader, RemoteAddressSegment,
    SendOpcode, XrcSegment, fm_ce_se,
};
pub use umr::{
    MkeyContext, RepeatBlock, RepeatEntry, UmrControl, mkey_access, mkey_flags, mkey_mask, umr_flags,
};

/// Bytes of a send work queue basic block (WQEBB); send queue indices count these.
pub const WQEBB: usize = 64;

/// Unit of a work queue entry's length (DS) in the control segment, in bytes.
pub const DS_UNIT: usize = 16;

/// Largest DS of a send work queue entry: the field has six bits.
pub const MAX_DS: usize = 63;

/// Bytes of a completion queue entry.
pub const CQE_SIZE: usize = 64;

/// The key of no memory. It ends the list of data segments of a receive that does not fill its slot.
pub const INVALID_LKEY: u32 = 0x100;

/// In a byte count of a send: the data follow in the entry itself.
pub const INLINE_DATA: u32 = 0x8000_0000;

/// Index of the word of a queue pair's doorbell record that counts posted receives, modulo 2^16. A shared
/// receive queue's record has this word only.
pub const DBREC_RECEIVE: usize = 0;

/// Index of the word of a queue pair's doorbell record that holds the index behind the last posted send,
/// modulo 2^16.
pub const DBREC_SEND: usize = 1;

/// Index of the word of a completion queue's doorbell record that holds the consumer index, modulo 2^24.
pub const DBREC_CONSUMER: usize = 0;

/// Index of the word of a completion queue's doorbell record that arms it.
pub const DBREC_ARM: usize = 1;

/// Bytes of a doorbell record of a queue pair or a completion queue.
pub const DBREC_SIZE: usize = 8;

/// Offset, in the doorbell page, of the register that arms completion queues.
pub const ARM_REGISTER: usize = 0x20;

/// In the arm word: an event for solicited completions only. Bits 28 and 29 count the events, bits 0 to 23
/// hold the consumer index.
pub const ARM_SOLICITED: u32 = 1 << 24;

/// Checks sizes and offsets at compile time.
macro_rules! layout {
    ($ty:ty, $size:literal $(, $field:ident @ $offset:literal)*) => {
        const _: () = assert!(size_of::<$ty>() == $size && align_of::<$ty>() == 1);
        $(const _: () = assert!(std::mem::offset_of!($ty, $field) == $offset);)*
    };
}
pub(crate) use layout;
