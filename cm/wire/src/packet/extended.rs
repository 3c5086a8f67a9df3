//! Extended transport headers (IBA 9.3).

use super::{Layout, XRCETH_LEN, XrcEth};
use crate::{Psn, QKey, Qpn, Rkey};

/// Bytes of the datagram extended header.
pub const DETH_LEN: usize = 8;
/// Bytes of the RDMA extended header.
pub const RETH_LEN: usize = 16;
/// Bytes of the acknowledge extended header.
pub const AETH_LEN: usize = 4;

/// Datagram extended header (IBA 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deth {
    /// Q_Key of the destination.
    pub qkey: QKey,
    /// Source queue pair.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Converts to eight bytes.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self) -> [u8; DETH_LEN] {
        let [k0, k1, k2, k3] = self.qkey.0.to_be_bytes();
        let [q0, q1, q2] = self.src_qpn.to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }

    /// Reads the header.
    #[must_use]
    #[inline]
    pub const fn from_bytes(b: &[u8; DETH_LEN]) -> Self {
        Self {
            qkey: QKey(u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            src_qpn: Qpn::from_be_bytes([b[5], b[6], b[7]]),
        }
    }
}

/// RDMA extended header (IBA 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reth {
    /// Remote virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes.
    pub length: u32,
}

impl Reth {
    /// Converts to sixteen bytes.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self) -> [u8; RETH_LEN] {
        let v = (self.address as u128) << 64 | (self.rkey.0 as u128) << 32 | self.length as u128;
        v.to_be_bytes()
    }

    /// Reads the header.
    #[must_use]
    #[inline]
    pub const fn from_bytes(b: &[u8; RETH_LEN]) -> Self {
        let v = u128::from_be_bytes(*b);
        Self { address: (v >> 64) as u64, rkey: Rkey((v >> 32) as u32), length: v as u32 }
    }
}

/// Atomic extended header (IBA 9.3.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AtomicEth {
    /// Remote virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Swap or add operand.
    pub swap_add: u64,
    /// Compare operand.
    pub compare: u64,
}

/// End-to-end credit field of an acknowledge, five bits (IBA 9.7.7.2.4). The value 31 means that credits are
/// not used, as with every responder on a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Credit(u8);

impl Credit {
    /// Unlimited: credits are not used.
    pub const INVALID: Self = Self(31);

    /// The lower five bits of `code`.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Code of the time that a sender waits after an RNR NAK, five bits (IBA table 45); 0 is the longest, 655.36
/// ms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The lower five bits of `code`.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The duration that the code means.
    #[must_use]
    pub const fn duration(self) -> std::time::Duration {
        // Hundredths of a millisecond. From code 2 on, the steps alternate between factors of 1.5 and 1.33.
        let hundredths = match self.0 {
            0 => 65_536,
            1 => 1,
            n if n % 2 == 0 => 2 << ((n - 2) / 2),
            n => 3 << ((n - 3) / 2),
        };
        std::time::Duration::from_micros(hundredths * 10)
    }
}

/// Reason why a packet was refused (IBA 9.7.5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// PSN out of sequence.
    SequenceError,
    /// Request not supported or malformed.
    InvalidRequest,
    /// The R_Key does not permit the access.
    RemoteAccess,
    /// The responder failed.
    RemoteOperation,
    /// Reliable datagram only.
    InvalidRdRequest,
    /// A reserved code, 5 to 31.
    Reserved(u8),
}

impl NakCode {
    const fn from_bits(bits: u8) -> Self {
        match bits & 0x1f {
            0 => Self::SequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperation,
            4 => Self::InvalidRdRequest,
            n => Self::Reserved(n),
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::SequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperation => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(n) => n & 0x1f,
        }
    }
}

/// Syndrome of an acknowledge (IBA 9.7.5.2, table 43).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Received.
    Ack(Credit),
    /// No receive buffer: retry after the time.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
    /// A code without a meaning, kept unchanged.
    Reserved(u8),
}

impl Syndrome {
    /// Converts from the wire byte.
    #[must_use]
    pub const fn from_byte(b: u8) -> Self {
        match b >> 5 {
            0 => Self::Ack(Credit::new(b)),
            1 => Self::RnrNak(RnrTimer::new(b)),
            3 => Self::Nak(NakCode::from_bits(b)),
            _ => Self::Reserved(b),
        }
    }

    /// Converts to the wire byte.
    #[must_use]
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credit) => credit.code(),
            Self::RnrNak(timer) => 0x20 | timer.code(),
            Self::Nak(code) => 0x60 | code.bits(),
            Self::Reserved(b) => b,
        }
    }
}

/// Acknowledge extended header (IBA 9.3.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// The responder's verdict.
    pub syndrome: Syndrome,
    /// Message sequence number: messages completed, modulo 2^24. It counts as a PSN does.
    pub msn: Psn,
}

impl Aeth {
    /// Converts to four bytes.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self) -> [u8; AETH_LEN] {
        let [m0, m1, m2] = self.msn.to_be_bytes();
        [self.syndrome.to_byte(), m0, m1, m2]
    }

    /// Reads the header.
    #[must_use]
    #[inline]
    pub const fn from_bytes(b: &[u8; AETH_LEN]) -> Self {
        Self { syndrome: Syndrome::from_byte(b[0]), msn: Psn::from_be_bytes([b[1], b[2], b[3]]) }
    }
}

/// The headers between the BTH and the payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Extended {
    /// None.
    Bare,
    /// Datagram.
    Deth(Deth),
    /// Datagram with immediate data (in wire order, not converted).
    DethImmediate(Deth, [u8; 4]),
    /// RDMA request.
    Reth(Reth),
    /// RDMA request with immediate data.
    RethImmediate(Reth, [u8; 4]),
    /// Immediate data.
    Immediate([u8; 4]),
    /// The R_Key to invalidate.
    Ieth(Rkey),
    /// Acknowledge.
    Aeth(Aeth),
    /// Acknowledge of an atomic operation with the previous value.
    AethAtomic(Aeth, u64),
    /// Atomic request.
    Atomic(AtomicEth),
    /// Request to an XRC shared receive queue.
    Xrc(XrcEth),
    /// RDMA request to the domain of an XRC shared receive queue.
    XrcReth(XrcEth, Reth),
    /// RDMA request to the domain of an XRC shared receive queue, with immediate data.
    XrcRethImmediate(XrcEth, Reth, [u8; 4]),
    /// Request to an XRC shared receive queue, with immediate data.
    XrcImmediate(XrcEth, [u8; 4]),
    /// Request to an XRC shared receive queue, with the R_Key to invalidate.
    XrcIeth(XrcEth, Rkey),
    /// Atomic request to the domain of an XRC shared receive queue.
    XrcAtomic(XrcEth, AtomicEth),
}

impl Extended {
    /// Maximum bytes of any variant.
    pub const MAX_LEN: usize = 32;

    /// The layout of these headers.
    #[must_use]
    #[inline]
    pub const fn layout(&self) -> Layout {
        match self {
            Self::Bare => Layout::Bare,
            Self::Deth(_) => Layout::Deth,
            Self::DethImmediate(..) => Layout::DethImmediate,
            Self::Reth(_) => Layout::Reth,
            Self::RethImmediate(..) => Layout::RethImmediate,
            Self::Immediate(_) => Layout::Immediate,
            Self::Ieth(_) => Layout::Ieth,
            Self::Aeth(_) => Layout::Aeth,
            Self::AethAtomic(..) => Layout::AethAtomic,
            Self::Atomic(_) => Layout::Atomic,
            Self::Xrc(_) => Layout::Xrc,
            Self::XrcReth(..) => Layout::XrcReth,
            Self::XrcRethImmediate(..) => Layout::XrcRethImmediate,
            Self::XrcImmediate(..) => Layout::XrcImmediate,
            Self::XrcIeth(..) => Layout::XrcIeth,
            Self::XrcAtomic(..) => Layout::XrcAtomic,
        }
    }

    /// The datagram header, if there is one.
    #[must_use]
    pub const fn deth(&self) -> Option<&Deth> {
        match self {
            Self::Deth(deth) | Self::DethImmediate(deth, _) => Some(deth),
            _ => None,
        }
    }

    /// The acknowledge header, if there is one.
    #[must_use]
    pub const fn aeth(&self) -> Option<&Aeth> {
        match self {
            Self::Aeth(aeth) | Self::AethAtomic(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    /// The RDMA header, if there is one.
    #[must_use]
    pub const fn reth(&self) -> Option<&Reth> {
        match self {
            Self::Reth(reth) | Self::RethImmediate(reth, _) => Some(reth),
            Self::XrcReth(_, reth) | Self::XrcRethImmediate(_, reth, _) => Some(reth),
            _ => None,
        }
    }

    /// Immediate data, if there is any.
    #[must_use]
    pub const fn immediate(&self) -> Option<[u8; 4]> {
        match self {
            Self::Immediate(imm) | Self::DethImmediate(_, imm) | Self::RethImmediate(_, imm) => Some(*imm),
            Self::XrcImmediate(_, imm) | Self::XrcRethImmediate(_, _, imm) => Some(*imm),
            _ => None,
        }
    }

    /// Splits the headers of `layout` off the front of `b`; the remainder is the payload. Returns `None` if
    /// they do not fit.
    pub(super) fn split(layout: Layout, b: &[u8]) -> Option<(Self, &[u8])> {
        Some(match layout {
            Layout::Bare => (Self::Bare, b),
            Layout::Deth => {
                let (deth, b) = b.split_first_chunk()?;
                (Self::Deth(Deth::from_bytes(deth)), b)
            }
            Layout::DethImmediate => {
                let (deth, b) = b.split_first_chunk()?;
                let (imm, b) = b.split_first_chunk()?;
                (Self::DethImmediate(Deth::from_bytes(deth), *imm), b)
            }
            Layout::Reth => {
                let (reth, b) = b.split_first_chunk()?;
                (Self::Reth(Reth::from_bytes(reth)), b)
            }
            Layout::RethImmediate => {
                let (reth, b) = b.split_first_chunk()?;
                let (imm, b) = b.split_first_chunk()?;
                (Self::RethImmediate(Reth::from_bytes(reth), *imm), b)
            }
            Layout::Immediate => {
                let (imm, b) = b.split_first_chunk()?;
                (Self::Immediate(*imm), b)
            }
            Layout::Ieth => {
                let (rkey, b) = b.split_first_chunk()?;
                (Self::Ieth(Rkey(u32::from_be_bytes(*rkey))), b)
            }
            Layout::Aeth => {
                let (aeth, b) = b.split_first_chunk()?;
                (Self::Aeth(Aeth::from_bytes(aeth)), b)
            }
            Layout::AethAtomic => {
                let (aeth, b) = b.split_first_chunk()?;
                let (value, b) = b.split_first_chunk()?;
                (Self::AethAtomic(Aeth::from_bytes(aeth), u64::from_be_bytes(*value)), b)
            }
            Layout::Atomic => {
                let (address, b) = b.split_first_chunk()?;
                let (rkey, b) = b.split_first_chunk()?;
                let (swap_add, b) = b.split_first_chunk()?;
                let (compare, b) = b.split_first_chunk()?;
                let atomic = AtomicEth {
                    address: u64::from_be_bytes(*address),
                    rkey: Rkey(u32::from_be_bytes(*rkey)),
                    swap_add: u64::from_be_bytes(*swap_add),
                    compare: u64::from_be_bytes(*compare),
                };
                (Self::Atomic(atomic), b)
            }
            Layout::Xrc
            | Layout::XrcReth
            | Layout::XrcRethImmediate
            | Layout::XrcImmediate
            | Layout::XrcIeth
            | Layout::XrcAtomic => {
                let (xrc, b) = b.split_first_chunk()?;
                let (rest, b) = Self::split(layout.without_xrc(), b)?;
                (rest.with_xrc(XrcEth::from_bytes(xrc)), b)
            }
        })
    }

    /// Converts to bytes, in the first [`Layout::len`] bytes of the result.
    pub(super) fn to_bytes(self) -> [u8; Self::MAX_LEN] {
        let mut out = [0; Self::MAX_LEN];
        match self {
            Self::Bare => {}
            Self::Deth(deth) => out[..8].copy_from_slice(&deth.to_bytes()),
            Self::DethImmediate(deth, imm) => {
                out[..8].copy_from_slice(&deth.to_bytes());
                out[8..12].copy_from_slice(&imm);
            }
            Self::Reth(reth) => out[..16].copy_from_slice(&reth.to_bytes()),
            Self::RethImmediate(reth, imm) => {
                out[..16].copy_from_slice(&reth.to_bytes());
                out[16..20].copy_from_slice(&imm);
            }
            Self::Immediate(imm) => out[..4].copy_from_slice(&imm),
            Self::Ieth(rkey) => out[..4].copy_from_slice(&rkey.0.to_be_bytes()),
            Self::Aeth(aeth) => out[..4].copy_from_slice(&aeth.to_bytes()),
            Self::AethAtomic(aeth, value) => {
                out[..4].copy_from_slice(&aeth.to_bytes());
                out[4..12].copy_from_slice(&value.to_be_bytes());
            }
            Self::Atomic(a) => {
                out[..8].copy_from_slice(&a.address.to_be_bytes());
                out[8..12].copy_from_slice(&a.rkey.0.to_be_bytes());
                out[12..20].copy_from_slice(&a.swap_add.to_be_bytes());
                out[20..28].copy_from_slice(&a.compare.to_be_bytes());
            }
            Self::Xrc(xrc)
            | Self::XrcReth(xrc, _)
            | Self::XrcRethImmediate(xrc, ..)
            | Self::XrcImmediate(xrc, _)
            | Self::XrcIeth(xrc, _)
            | Self::XrcAtomic(xrc, _) => {
                let rest = self.without_xrc().to_bytes();
                out[..XRCETH_LEN].copy_from_slice(&xrc.to_bytes());
                out[XRCETH_LEN..].copy_from_slice(&rest[..Self::MAX_LEN - XRCETH_LEN]);
            }
        }
        out
    }
}
