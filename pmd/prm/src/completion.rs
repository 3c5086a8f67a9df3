//! Completion queue entries.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;
use hca::WcStatus;

/// Type of a completion queue entry: the upper four bits of its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CqeOpcode {
    /// A send work request has completed.
    Requester = 0,
    /// An RDMA WRITE with immediate has arrived.
    ReceiveWriteImm = 1,
    /// A SEND has arrived.
    ReceiveSend = 2,
    /// A SEND with immediate has arrived.
    ReceiveSendImm = 3,
    /// A SEND with invalidate has arrived.
    ReceiveSendInvalidate = 4,
    /// The queue continues in another ring.
    Resize = 5,
    /// A send work request has failed.
    RequesterError = 13,
    /// A receive has failed.
    ResponderError = 14,
    /// Invalid: the slot has never been written.
    Invalid = 15,
}

impl CqeOpcode {
    /// Converts from a code.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Requester,
            1 => Self::ReceiveWriteImm,
            2 => Self::ReceiveSend,
            3 => Self::ReceiveSendImm,
            4 => Self::ReceiveSendInvalidate,
            5 => Self::Resize,
            13 => Self::RequesterError,
            14 => Self::ResponderError,
            15 => Self::Invalid,
            _ => return None,
        })
    }
}

/// Bits of the last byte of a completion queue entry.
pub mod cqe_owner {
    /// Changes with each lap; 0 in the first one.
    pub const OWNER: u8 = 0x01;
    /// The completion was solicited.
    pub const SOLICITED: u8 = 0x02;
    /// At most 32 bytes of payload are in the first half of the entry.
    pub const INLINE_32: u8 = 0x04;
    /// At most 64 bytes of payload are in the previous entry.
    pub const INLINE_64: u8 = 0x08;
    /// Last byte of each slot in a new ring: opcode 15, owner 0.
    pub const INITIAL: u8 = 0xf0;
    /// Shift of the opcode.
    pub const OPCODE_SHIFT: u32 = 4;
}

/// Parts of [`Cqe::flags_rqpn`].
pub mod cqe_flags {
    /// Source queue pair of a datagram.
    pub const QPN_MASK: u32 = 0x00ff_ffff;
    /// Shift of the service level, four bits.
    pub const SL_SHIFT: u32 = 24;
    /// The packet had a GRH if any of these two bits is set.
    pub const GRH_MASK: u32 = 0x3000_0000;
    /// The GRH was an InfiniBand one.
    pub const GRH: u32 = 0x1000_0000;
    /// On an Ethernet port, in place of the service level: the packet has an IPv6 header.
    pub const ROCE_IPV6: u32 = 0x0100_0000;
    /// On an Ethernet port: the packet has an IPv4 header.
    pub const ROCE_IPV4: u32 = 0x0200_0000;
}

/// Parts of [`Cqe::hds_ip_ext`] and [`Cqe::l4_hdr_type`].
pub mod cqe_headers {
    /// In `hds_ip_ext`: the checksum of the IP header is correct.
    pub const L3_OK: u8 = 0x02;
    /// In `hds_ip_ext`: the checksum of the TCP or UDP packet is correct.
    pub const L4_OK: u8 = 0x04;
    /// Shift of the kind of IP header in `l4_hdr_type`, two bits.
    pub const L3_SHIFT: u32 = 2;
    /// IPv6.
    pub const L3_IPV6: u8 = 1;
    /// IPv4.
    pub const L3_IPV4: u8 = 2;
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// Zero.
    pub reserved_0: [u8; 2],
    /// Stride index of a striding receive queue.
    pub wqe_id: U16,
    /// Fields of Ethernet receives.
    pub reserved_4: [u8; 13],
    /// Low bits of the destination LID (7 bits).
    pub ml_path: u8,
    /// Zero.
    pub reserved_18: [u8; 4],
    /// Source LID.
    pub slid: U16,
    /// See [`cqe_flags`].
    pub flags_rqpn: U32,
    /// Result of the header checks of an Ethernet frame or IPoIB datagram: see [`cqe_headers`].
    pub hds_ip_ext: u8,
    /// Types of its headers: see [`cqe_headers`].
    pub l4_hdr_type: u8,
    /// VLAN tag of Ethernet receives.
    pub vlan: U16,
    /// The queue pair's user index (24 bits) with CQE version 1.
    pub srqn_uidx: U32,
    /// Immediate data, invalidated key, or P_Key index; for a datagram to queue pair 1 the P_Key.
    pub imm_inval_pkey: U32,
    /// Application of inline operations.
    pub app: u8,
    /// Their operation.
    pub app_op: u8,
    /// Their information.
    pub app_info: U16,
    /// Bytes of the message; a datagram's count includes its 40-byte GRH area.
    pub byte_cnt: U32,
    /// Timestamp in ticks of the device's clock.
    pub timestamp: U64,
    /// Opcode of the send work queue entry (8 bits), queue pair (24).
    pub sop_drop_qpn: U32,
    /// First WQEBB of the send, or slot of the receive.
    pub wqe_counter: U16,
    /// Signature or validity count.
    pub signature: u8,
    /// Opcode (4 bits), format (2), solicited, owner: see [`cqe_owner`].
    pub op_own: u8,
}

layout!(
    Cqe, 64, wqe_id @ 2, ml_path @ 17, slid @ 22, flags_rqpn @ 24, hds_ip_ext @ 28, vlan @ 30, srqn_uidx @ 32,
    imm_inval_pkey @ 36, app @ 40, app_info @ 42, byte_cnt @ 44, timestamp @ 48, sop_drop_qpn @ 56, wqe_counter @ 60,
    op_own @ 63
);

impl Cqe {
    /// True if the device found a correct IPv4 header in a datagram. False has no meaning: the packet may be
    /// of another kind, or not checked.
    #[inline]
    #[must_use]
    pub const fn ipv4_is_good(&self) -> bool {
        let kind = (self.l4_hdr_type >> cqe_headers::L3_SHIFT) & 3;
        self.hds_ip_ext & cqe_headers::L3_OK != 0 && kind == cqe_headers::L3_IPV4
    }
}

impl Default for Cqe {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// A completion queue entry with one of the two error opcodes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorCqe {
    /// Undefined.
    pub reserved_0: [u8; 32],
    /// The queue pair's user index (24 bits) with CQE version 1.
    pub srqn_uidx: U32,
    /// Undefined, including the byte count.
    pub reserved_36: [u8; 18],
    /// Vendor-specific syndrome.
    pub vendor_syndrome: u8,
    /// See [`Syndrome`].
    pub syndrome: u8,
    /// Opcode of the send work queue entry (8 bits), queue pair (24).
    pub opcode_qpn: U32,
    /// First WQEBB of the send, or slot of the receive.
    pub wqe_counter: U16,
    /// Signature or validity count.
    pub signature: u8,
    /// As in [`Cqe`].
    pub op_own: u8,
}

layout!(ErrorCqe, 64, srqn_uidx @ 32, vendor_syndrome @ 54, syndrome @ 55, opcode_qpn @ 56, wqe_counter @ 60, op_own @ 63);

impl Default for ErrorCqe {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// Syndrome of a failed work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Syndrome {
    /// Local length error.
    LocalLength = 0x01,
    /// Local queue pair operation error.
    LocalQpOperation = 0x02,
    /// Local protection error.
    LocalProtection = 0x04,
    /// Flushed.
    Flushed = 0x05,
    /// Memory window bind error.
    MemoryWindowBind = 0x06,
    /// Bad response.
    BadResponse = 0x10,
    /// Local access error.
    LocalAccess = 0x11,
    /// The responder rejected the request as invalid.
    RemoteInvalidRequest = 0x12,
    /// Remote access error.
    RemoteAccess = 0x13,
    /// Remote operation error.
    RemoteOperation = 0x14,
    /// Transport retry limit exceeded.
    RetryExceeded = 0x15,
    /// RNR retry limit exceeded.
    RnrRetryExceeded = 0x16,
    /// Aborted by the remote side.
    RemoteAborted = 0x22,
}

impl Syndrome {
    /// Converts from a code.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => Self::LocalLength,
            0x02 => Self::LocalQpOperation,
            0x04 => Self::LocalProtection,
            0x05 => Self::Flushed,
            0x06 => Self::MemoryWindowBind,
            0x10 => Self::BadResponse,
            0x11 => Self::LocalAccess,
            0x12 => Self::RemoteInvalidRequest,
            0x13 => Self::RemoteAccess,
            0x14 => Self::RemoteOperation,
            0x15 => Self::RetryExceeded,
            0x16 => Self::RnrRetryExceeded,
            0x22 => Self::RemoteAborted,
            _ => return None,
        })
    }

    /// The code.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The outcome for the code of an error entry; an unknown code is a general error.
    #[inline]
    #[must_use]
    pub const fn outcome(code: u8) -> WcStatus {
        match Self::from_code(code) {
            Some(Self::LocalLength) => WcStatus::LocalLength,
            Some(Self::LocalQpOperation) => WcStatus::LocalQpOperation,
            Some(Self::LocalProtection) => WcStatus::LocalProtection,
            Some(Self::Flushed) => WcStatus::Flushed,
            Some(Self::MemoryWindowBind) => WcStatus::MemoryWindowBind,
            Some(Self::BadResponse) => WcStatus::BadResponse,
            Some(Self::LocalAccess) => WcStatus::LocalAccess,
            Some(Self::RemoteInvalidRequest) => WcStatus::RemoteInvalidRequest,
            Some(Self::RemoteAccess) => WcStatus::RemoteAccess,
            Some(Self::RemoteOperation) => WcStatus::RemoteOperation,
            Some(Self::RetryExceeded) => WcStatus::RetryExceeded,
            Some(Self::RnrRetryExceeded) => WcStatus::RnrRetryExceeded,
            Some(Self::RemoteAborted) => WcStatus::RemoteAborted,
            None => WcStatus::General,
        }
    }

    /// The code for an outcome; none for success and for a general error.
    #[inline]
    #[must_use]
    pub const fn of(outcome: WcStatus) -> Option<Self> {
        Some(match outcome {
            WcStatus::LocalLength => Self::LocalLength,
            WcStatus::LocalQpOperation => Self::LocalQpOperation,
            WcStatus::LocalProtection => Self::LocalProtection,
            WcStatus::Flushed => Self::Flushed,
            WcStatus::MemoryWindowBind => Self::MemoryWindowBind,
            WcStatus::BadResponse => Self::BadResponse,
            WcStatus::LocalAccess => Self::LocalAccess,
            WcStatus::RemoteInvalidRequest => Self::RemoteInvalidRequest,
            WcStatus::RemoteAccess => Self::RemoteAccess,
            WcStatus::RemoteOperation => Self::RemoteOperation,
            WcStatus::RetryExceeded => Self::RetryExceeded,
            WcStatus::RnrRetryExceeded => Self::RnrRetryExceeded,
            WcStatus::RemoteAborted => Self::RemoteAborted,
            WcStatus::Success | WcStatus::General => return None,
        })
    }
}
