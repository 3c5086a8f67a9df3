//! Segments of send work queue entries.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// Operation of a send work queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SendOpcode {
    /// No operation; completes in queue order.
    Nop = 0x00,
    /// SEND that invalidates a key of the receiver.
    SendInvalidate = 0x01,
    /// RDMA WRITE.
    RdmaWrite = 0x08,
    /// RDMA WRITE with immediate.
    RdmaWriteImm = 0x09,
    /// SEND.
    Send = 0x0a,
    /// SEND with immediate.
    SendImm = 0x0b,
    /// RDMA READ.
    RdmaRead = 0x10,
    /// Compare and swap.
    CompareSwap = 0x11,
    /// Fetch and add.
    FetchAdd = 0x12,
    /// User-mode memory registration, including LOCAL_INV and BIND_MW.
    Umr = 0x25,
}

impl SendOpcode {
    /// Converts from a code.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Nop,
            0x01 => Self::SendInvalidate,
            0x08 => Self::RdmaWrite,
            0x09 => Self::RdmaWriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x10 => Self::RdmaRead,
            0x11 => Self::CompareSwap,
            0x12 => Self::FetchAdd,
            0x25 => Self::Umr,
            _ => return None,
        })
    }

    /// The code.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Bits of [`ControlSegment::fm_ce_se`].
pub mod fm_ce_se {
    /// The receiver's completion is solicited.
    pub const SOLICITED: u8 = 0x02;
    /// A completion is requested.
    pub const CQ_UPDATE: u8 = 0x08;
    /// Wait for earlier local key operations.
    pub const SMALL_FENCE: u8 = 0x20;
    /// Wait for all earlier requests.
    pub const STRONG_ORDERING: u8 = 0x60;
    /// Wait for all earlier RDMA READs and atomics.
    pub const FENCE: u8 = 0x80;

    /// True for the modes (3 bits at 5) that wait for all earlier RDMA READs and atomics.
    #[must_use]
    pub const fn is_fence(bits: u8) -> bool {
        matches!(bits >> 5, 2..=4)
    }

    /// True for the mode that waits for all earlier work requests.
    #[must_use]
    pub const fn is_strong(bits: u8) -> bool {
        bits >> 5 == 3
    }
}

/// First segment of each send work queue entry.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControlSegment {
    /// Opcode modifier (8 bits), index in WQEBBs (16), opcode (8).
    pub opmod_index_opcode: U32,
    /// Queue pair number (24 bits), reserved (2), length in units of 16 bytes (6).
    pub qpn_ds: U32,
    /// Signature; 0 if not used.
    pub signature: u8,
    /// Stream of a dynamically connected initiator.
    pub dci_stream: U16,
    /// Fence, completion and solicited bits.
    pub fm_ce_se: u8,
    /// Immediate, key to invalidate, or key of an UMR.
    pub imm: U32,
}

impl ControlSegment {
    /// Creates a control segment; `index` in WQEBBs, `ds` in units of 16 bytes.
    #[inline]
    #[must_use]
    pub fn new(opcode: SendOpcode, index: u16, qpn: u32, ds: usize, flags: u8, imm: u32) -> Self {
        Self {
            opmod_index_opcode: U32::new((u32::from(index) << 8) | u32::from(opcode.code())),
            qpn_ds: U32::new((qpn << 8) | (ds as u32 & 0x3f)),
            signature: 0,
            dci_stream: U16::ZERO,
            fm_ce_se: flags,
            imm: U32::new(imm),
        }
    }

    /// Code of the opcode.
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.opmod_index_opcode.get() as u8
    }

    /// Index of its first WQEBB.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u16 {
        (self.opmod_index_opcode.get() >> 8) as u16
    }

    /// Queue pair number.
    #[inline]
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// Length of the entry in units of 16 bytes.
    #[inline]
    #[must_use]
    pub fn ds(&self) -> usize {
        (self.qpn_ds.get() & 0x3f) as usize
    }
}

layout!(ControlSegment, 16, qpn_ds @ 4, signature @ 8, dci_stream @ 9, fm_ce_se @ 11, imm @ 12);

/// One memory range of a send or receive.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DataSegment {
    /// Bytes.
    pub byte_count: U32,
    /// Local key.
    pub lkey: U32,
    /// Address.
    pub address: U64,
}

impl DataSegment {
    /// Creates a data segment.
    #[inline]
    #[must_use]
    pub const fn new(address: u64, byte_count: u32, lkey: u32) -> Self {
        Self { byte_count: U32::new(byte_count), lkey: U32::new(lkey), address: U64::new(address) }
    }

    /// Creates the segment that ends the list of a receive.
    #[inline]
    #[must_use]
    pub const fn terminator() -> Self {
        Self::new(0, 0, super::INVALID_LKEY)
    }
}

layout!(DataSegment, 16, lkey @ 4, address @ 8);

/// Header of inline data; the bytes follow directly.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InlineHeader {
    /// Bytes that follow, with [`super::INLINE_DATA`].
    pub byte_count: U32,
}

layout!(InlineHeader, 4);

/// The remote memory of an RDMA operation.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RemoteAddressSegment {
    /// Address.
    pub address: U64,
    /// Remote key.
    pub rkey: U32,
    /// Zero.
    pub reserved: U32,
}

layout!(RemoteAddressSegment, 16, rkey @ 8);

/// The target of a request on an extended reliable connection; follows the control segment of every request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct XrcSegment {
    /// Number of the remote shared receive queue, 24 bits.
    pub srqn: U32,
    /// Zero.
    pub reserved: [U32; 3],
}

layout!(XrcSegment, 16, srqn @ 0);

/// Operands of an atomic operation.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicSegment {
    /// The value to swap in, or to add.
    pub swap_add: U64,
    /// The value to compare with; ignored by a fetch and add.
    pub compare: U64,
}

layout!(AtomicSegment, 16, compare @ 8);

/// Offloads of an underlay queue pair; the first bytes of the packet are in it and behind it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EthernetSegment {
    /// Zero.
    pub reserved_0: U32,
    /// Checksums to fill in: 0x40 for layer 3, 0x80 for layer 4.
    pub checksum_flags: u8,
    /// Zero.
    pub reserved_5: u8,
    /// Segment size of a large send.
    pub mss: U16,
    /// Zero.
    pub reserved_8: U32,
    /// Bytes of inline header.
    pub inline_header_size: U16,
    /// The first two of them.
    pub inline_start: [u8; 2],
}

layout!(EthernetSegment, 16, checksum_flags @ 4, mss @ 6, inline_header_size @ 12, inline_start @ 14);
