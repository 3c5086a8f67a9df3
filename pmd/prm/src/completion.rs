//! Completion queue entries.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;
use hca::WcStatus;

/// What a completion queue entry tells of: the upper four bits of its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CqeOpcode {
    /// A send work request is done.
    Requester = 0,
    /// An RDMA WRITE with immediate has arrived.
    ReceiveWriteImm = 1,
    /// A SEND has arrived.
    ReceiveSend = 2,
    /// A SEND with immediate has arrived.
    ReceiveSendImm = 3,
    /// A SEND with invalidate has arrived.
    ReceiveSendInvalidate = 4,
    /// The queue goes on in another ring.
    Resize = 5,
    /// A send work request has failed.
    RequesterError = 13,
    /// A receive has failed.
    ResponderError = 14,
    /// Nothing: the slot has never been written.
    Invalid = 15,
}

impl CqeOpcode {
    /// From its code.
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
    /// Up to 32 bytes of payload lie in the first half of the entry.
    pub const INLINE_32: u8 = 0x04;
    /// Up to 64 bytes of payload lie in the entry in front of this one.
    pub const INLINE_64: u8 = 0x08;
    /// What each slot's last byte holds in a new ring: opcode 15, owner 0.
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
    /// At an Ethernet port, in place of the service level: an IPv6 header came with the packet.
    pub const ROCE_IPV6: u32 = 0x0100_0000;
    /// At an Ethernet port: an IPv4 header did.
    pub const ROCE_IPV4: u32 = 0x0200_0000;
}

/// Parts of [`Cqe::hds_ip_ext`] and [`Cqe::l4_hdr_type`].
pub mod cqe_headers {
    /// In `hds_ip_ext`: the checksum of the IP header is right.
    pub const L3_OK: u8 = 0x02;
    /// In `hds_ip_ext`: that of the TCP or UDP packet is right.
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
    /// What was found out about the headers of an Ethernet frame or IPoIB datagram: see [`cqe_headers`].
    pub hds_ip_ext: u8,
    /// Their types: see [`cqe_headers`].
    pub l4_hdr_type: u8,
    /// VLAN tag of Ethernet receives.
    pub vlan: U16,
    /// The queue pair's user index (24 bits) with CQE version 1.
    pub srqn_uidx: U32,
    /// Immediate, invalidated key, or P_Key index; of a datagram to queue pair 1 the P_Key.
    pub imm_inval_pkey: U32,
    /// Application of inline operations.
    pub app: u8,
    /// Their operation.
    pub app_op: u8,
    /// Their information.
    pub app_info: U16,
    /// Bytes of the message; a datagram's count includes its 40-byte GRH area.
    pub byte_cnt: U32,
    /// When, in the device's clock.
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
    /// True if the device found a right IPv4 header in a datagram. False says nothing: it may be of another kind, or the device
    /// may not have looked.
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

/// A completion queue entry whose opcode is one of the two errors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorCqe {
    /// Not to be looked at.
    pub reserved_0: [u8; 32],
    /// The queue pair's user index (24 bits) with CQE version 1.
    pub srqn_uidx: U32,
    /// Not to be looked at: the byte count, too, means nothing.
    pub reserved_36: [u8; 18],
    /// The vendor's word on it.
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

/// Why a work request failed, in the device's code.
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
    /// Invalid request, says the responder.
    RemoteInvalidRequest = 0x12,
    /// Remote access error.
    RemoteAccess = 0x13,
    /// Remote operation error.
    RemoteOperation = 0x14,
    /// Transport retries used up.
    RetryExceeded = 0x15,
    /// RNR retries used up.
    RnrRetryExceeded = 0x16,
    /// Aborted by the remote side.
    RemoteAborted = 0x22,
}

impl Syndrome {
    /// From its code.
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

    /// Its code.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The outcome that a code in an error entry stands for; a code that nobody knows is a general error.
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

    /// The code for an outcome; there is none for success and for a general error.
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
