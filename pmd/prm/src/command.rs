//! The command interface, through which a driver sends requests to the device's firmware. An entry of the
//! command queue holds the first 16 bytes of input and output; the rest is in chains of mailboxes.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// Bytes of input and output in the entry itself.
pub const COMMAND_INLINE: usize = 16;

/// An entry of the command queue.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandEntry {
    /// [`CommandEntry::TYPE`].
    pub kind: u8,
    /// Zero.
    pub reserved_1: [u8; 3],
    /// Bytes of input.
    pub input_len: U32,
    /// Address of the first input mailbox.
    pub input_mailbox: U64,
    /// Start of the input.
    pub input: [u8; COMMAND_INLINE],
    /// Start of the output.
    pub output: [u8; COMMAND_INLINE],
    /// Address of the first output mailbox.
    pub output_mailbox: U64,
    /// Size of the output buffer in bytes.
    pub output_len: U32,
    /// Repeated in all mailboxes of the command.
    pub token: u8,
    /// Signature of the entry, if used.
    pub signature: u8,
    /// Zero.
    pub reserved_62: u8,
    /// Bit 0: the device owns the entry; bits 1 to 7: delivery status ([`Delivery`]).
    pub status_own: u8,
}

impl CommandEntry {
    /// Type of commands in the host's memory.
    pub const TYPE: u8 = 7;
    /// In `status_own`: the device owns the entry.
    pub const OWNED: u8 = 1;
    /// Offset of `output`.
    pub const OUTPUT: usize = 0x20;
    /// Offset of `status_own`.
    pub const STATUS_OWN: usize = 0x3f;
}

layout!(
    CommandEntry, 64, input_len @ 4, input_mailbox @ 8, input @ 0x10, output @ 0x20, output_mailbox @ 0x30, output_len @ 0x38,
    token @ 0x3c, status_own @ 0x3f
);

/// Bytes of input or output in a mailbox.
pub const MAILBOX_DATA: usize = 512;

/// A mailbox.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Mailbox {
    /// Input or output.
    pub data: [u8; MAILBOX_DATA],
    /// Zero.
    pub reserved_512: [u8; 48],
    /// Address of the next one.
    pub next: U64,
    /// Its index in the chain, from 0.
    pub block: U32,
    /// Zero.
    pub reserved_572: u8,
    /// The command's token.
    pub token: u8,
    /// Signature of the last bytes, if used.
    pub control_signature: u8,
    /// Signature of all bytes, if used.
    pub signature: u8,
}

layout!(Mailbox, 576, next @ 0x230, block @ 0x238, token @ 0x23d, signature @ 0x23f);

/// Delivery status of a command, independent of its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Delivery {
    /// Success.
    Good = 0,
    /// A mailbox has another token.
    Token = 2,
    /// A mailbox has another index in its chain.
    BlockNumber = 3,
    /// An output mailbox is not in memory.
    OutputPointer = 4,
    /// An input mailbox is not in memory.
    InputPointer = 5,
    /// The input is too long, or too short to contain the opcode.
    InputLength = 8,
    /// The output buffer is too short or too long.
    OutputLength = 9,
    /// The entry has another type.
    CommandType = 0x10,
}

/// Result of a command: the first byte of its output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CommandStatus {
    /// Success.
    Good = 0x00,
    /// The device is at fault.
    Internal = 0x01,
    /// No such command.
    BadOperation = 0x02,
    /// A parameter is out of range, or an address is not in memory.
    BadParameter = 0x03,
    /// The device's state does not permit it.
    BadSystemState = 0x04,
    /// No such object.
    BadResource = 0x05,
    /// The object is in use.
    ResourceBusy = 0x06,
    /// More than the device allows.
    ExceedsLimit = 0x08,
    /// The queue pair's state does not permit it.
    BadQpState = 0x10,
    /// A management datagram without a response.
    BadPacket = 0x30,
    /// A queue contains more entries than fit.
    BadSize = 0x40,
    /// No room for another object.
    NoResources = 0x0f,
    /// The input is too short.
    BadInputLength = 0x50,
    /// The output buffer is too short.
    BadOutputLength = 0x51,
}

/// Header of all inputs.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InputHeader {
    /// See [`opcode`].
    pub opcode: U16,
    /// The user on whose behalf the command is sent.
    pub uid: U16,
    /// Zero.
    pub reserved_4: U16,
    /// Variant of the command.
    pub modifier: U16,
    /// First parameter: for most commands the number of an object, in the low 24 bits.
    pub number: U32,
    /// Second parameter.
    pub parameter: U32,
}

layout!(InputHeader, 16, opcode @ 0, uid @ 2, modifier @ 6, number @ 8, parameter @ 12);

/// Header of all outputs.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OutputHeader {
    /// See [`CommandStatus`].
    pub status: u8,
    /// Zero.
    pub reserved_1: [u8; 3],
    /// Detail of the status; the numbers are device specific.
    pub syndrome: U32,
    /// First value: for most commands the number of an object.
    pub number: U32,
    /// Second value.
    pub parameter: U32,
}

layout!(OutputHeader, 16, syndrome @ 4, number @ 8, parameter @ 12);

/// Opcodes of commands.
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub mod opcode {
    pub const QUERY_HCA_CAP: u16 = 0x100;
    pub const QUERY_ADAPTER: u16 = 0x101;
    pub const INIT_HCA: u16 = 0x102;
    pub const TEARDOWN_HCA: u16 = 0x103;
    pub const ENABLE_HCA: u16 = 0x104;
    pub const DISABLE_HCA: u16 = 0x105;
    pub const QUERY_PAGES: u16 = 0x107;
    pub const MANAGE_PAGES: u16 = 0x108;
    pub const SET_HCA_CAP: u16 = 0x109;
    pub const QUERY_ISSI: u16 = 0x10a;
    pub const SET_ISSI: u16 = 0x10b;
    pub const SET_DRIVER_VERSION: u16 = 0x10d;
    pub const CREATE_MKEY: u16 = 0x200;
    pub const QUERY_MKEY: u16 = 0x201;
    pub const DESTROY_MKEY: u16 = 0x202;
    pub const QUERY_SPECIAL_CONTEXTS: u16 = 0x203;
    pub const CREATE_EQ: u16 = 0x301;
    pub const DESTROY_EQ: u16 = 0x302;
    pub const QUERY_EQ: u16 = 0x303;
    pub const CREATE_CQ: u16 = 0x400;
    pub const DESTROY_CQ: u16 = 0x401;
    pub const QUERY_CQ: u16 = 0x402;
    pub const MODIFY_CQ: u16 = 0x403;
    pub const CREATE_QP: u16 = 0x500;
    pub const DESTROY_QP: u16 = 0x501;
    pub const RST2INIT_QP: u16 = 0x502;
    pub const INIT2RTR_QP: u16 = 0x503;
    pub const RTR2RTS_QP: u16 = 0x504;
    pub const RTS2RTS_QP: u16 = 0x505;
    pub const SQERR2RTS_QP: u16 = 0x506;
    pub const TWO_ERR_QP: u16 = 0x507;
    pub const RTS2SQD_QP: u16 = 0x508;
    pub const SQD2RTS_QP: u16 = 0x509;
    pub const TWO_RST_QP: u16 = 0x50a;
    pub const QUERY_QP: u16 = 0x50b;
    pub const SQD_RTS_QP: u16 = 0x50c;
    pub const MAD_IFC: u16 = 0x50d;
    pub const INIT2INIT_QP: u16 = 0x50e;
    pub const CREATE_SRQ: u16 = 0x700;
    pub const DESTROY_SRQ: u16 = 0x701;
    pub const QUERY_SRQ: u16 = 0x702;
    pub const ARM_RQ: u16 = 0x703;
    pub const CREATE_XRC_SRQ: u16 = 0x705;
    pub const DESTROY_XRC_SRQ: u16 = 0x706;
    pub const QUERY_XRC_SRQ: u16 = 0x707;
    pub const ARM_XRC_SRQ: u16 = 0x708;
    pub const QUERY_VPORT_STATE: u16 = 0x750;
    pub const MODIFY_VPORT_STATE: u16 = 0x751;
    pub const QUERY_HCA_VPORT_CONTEXT: u16 = 0x762;
    pub const MODIFY_HCA_VPORT_CONTEXT: u16 = 0x763;
    pub const QUERY_HCA_VPORT_GID: u16 = 0x764;
    pub const QUERY_HCA_VPORT_PKEY: u16 = 0x765;
    pub const ALLOC_Q_COUNTER: u16 = 0x771;
    pub const DEALLOC_Q_COUNTER: u16 = 0x772;
    pub const QUERY_Q_COUNTER: u16 = 0x773;
    pub const ALLOC_PD: u16 = 0x800;
    pub const DEALLOC_PD: u16 = 0x801;
    pub const ALLOC_UAR: u16 = 0x802;
    pub const DEALLOC_UAR: u16 = 0x803;
    pub const ACCESS_REG: u16 = 0x805;
    pub const ATTACH_TO_MCG: u16 = 0x806;
    pub const DETACH_FROM_MCG: u16 = 0x807;
    pub const ALLOC_XRCD: u16 = 0x80e;
    pub const DEALLOC_XRCD: u16 = 0x80f;
    pub const CREATE_RMP: u16 = 0x90c;
    pub const MODIFY_RMP: u16 = 0x90d;
    pub const DESTROY_RMP: u16 = 0x90e;
    pub const QUERY_RMP: u16 = 0x90f;
    pub const CREATE_UCTX: u16 = 0xa04;
    pub const DESTROY_UCTX: u16 = 0xa06;
}

/// Input of QUERY_Q_COUNTER.
pub mod q_counter {
    /// Offset of a byte with [`CLEARS`].
    pub const CLEAR: usize = 0x18;
    /// Clear the counters.
    pub const CLEARS: u8 = 0x80;
    /// Offset of the set's number, a byte.
    pub const SET: usize = 0x1f;
}

/// What MODIFY_CQ changes: the modifier selects the meaning of the second parameter, a mask.
pub mod modify_cq {
    /// Modifier: moderation.
    pub const MODERATION: u16 = 0;
    /// Modifier: another ring.
    pub const RESIZE: u16 = 1;
    /// Moderation: the period.
    pub const PERIOD: u32 = 1 << 0;
    /// Moderation: the number of completions.
    pub const COUNT: u32 = 1 << 1;
    /// Another ring: its size, the offset in its first page, and the size of its pages, all together.
    pub const RING: u32 = 7;
}

/// Offset of the page list in the input of a command that creates a queue or a key.
pub const PAGE_LIST: usize = 0x110;

/// Offset of the context in the input of all such commands except those of queue pairs.
pub const CONTEXT: usize = 0x10;

/// Offset of the context of a queue pair, in input and output.
pub const QP_CONTEXT: usize = 0x18;

/// Versions of the interface (ISSI).
pub mod issi {
    /// Offset of the current version, 16 bits, in the output of QUERY_ISSI and the input of SET_ISSI.
    pub const CURRENT: usize = 0xa;
    /// Offset of the bit mask of supported versions.
    pub const SUPPORTED: usize = 0x6c;
}

/// Offset of the context of a receive memory pool, in input and output.
pub const RMP_CONTEXT: usize = 0x20;

/// Fields of MODIFY_RMP.
pub mod modify_rmp {
    /// Offset of the mask.
    pub const MASK: usize = 0x14;
    /// The limit.
    pub const LIMIT: u32 = 1 << 0;
}

/// In the input of CREATE_XRC_SRQ: the ring is in user-registered memory (UMEM).
pub const XRC_SRQ_UMEM: (usize, u8) = (0x5c, 0x80);

/// In the input of CREATE_CQ and MODIFY_CQ: the ring is in user-registered memory (UMEM), not on a list of
/// pages.
pub const CQ_UMEM: (usize, u8) = (0x5c, 0x80);

/// The same for CREATE_QP.
pub const QP_UMEM: (usize, u8) = (0x10c, 0x80);

/// Offset of the event mask in the input that creates an event queue.
pub const EVENT_MASK: usize = 0x58;
