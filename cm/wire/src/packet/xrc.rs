//! Extended reliable connections (IBA annex A14). A request names its shared receive queue in a header after
//! the BTH; a response names none. Everything else is the same as on a reliable connection.

use super::{Extended, Layout};
use crate::XrcSrqn;

/// Bytes of the XRC extended header.
pub const XRCETH_LEN: usize = 4;

/// XRC extended header: the shared receive queue of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct XrcEth {
    /// Number of the shared receive queue.
    pub srqn: XrcSrqn,
}

impl XrcEth {
    /// Converts to four bytes; the first is reserved.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self) -> [u8; XRCETH_LEN] {
        let [a, b, c] = self.srqn.to_be_bytes();
        [0, a, b, c]
    }

    /// Reads the header.
    #[must_use]
    #[inline]
    pub const fn from_bytes(b: &[u8; XRCETH_LEN]) -> Self {
        Self { srqn: XrcSrqn::from_be_bytes([b[1], b[2], b[3]]) }
    }
}

impl Layout {
    /// The layout after the XRCETH; a layout without XRCETH is returned unchanged.
    pub(super) const fn without_xrc(self) -> Self {
        match self {
            Self::Xrc => Self::Bare,
            Self::XrcReth => Self::Reth,
            Self::XrcRethImmediate => Self::RethImmediate,
            Self::XrcImmediate => Self::Immediate,
            Self::XrcIeth => Self::Ieth,
            Self::XrcAtomic => Self::Atomic,
            other => other,
        }
    }
}

impl Extended {
    /// The XRC header, if there is one.
    #[must_use]
    pub const fn xrc(&self) -> Option<&XrcEth> {
        match self {
            Self::Xrc(xrc)
            | Self::XrcReth(xrc, _)
            | Self::XrcRethImmediate(xrc, ..)
            | Self::XrcImmediate(xrc, _)
            | Self::XrcIeth(xrc, _)
            | Self::XrcAtomic(xrc, _) => Some(xrc),
            _ => None,
        }
    }

    /// The headers after the XRC header; headers without one are returned unchanged.
    #[must_use]
    pub const fn without_xrc(self) -> Self {
        match self {
            Self::Xrc(_) => Self::Bare,
            Self::XrcReth(_, reth) => Self::Reth(reth),
            Self::XrcRethImmediate(_, reth, imm) => Self::RethImmediate(reth, imm),
            Self::XrcImmediate(_, imm) => Self::Immediate(imm),
            Self::XrcIeth(_, rkey) => Self::Ieth(rkey),
            Self::XrcAtomic(_, atomic) => Self::Atomic(atomic),
            other => other,
        }
    }

    /// Puts an XRC header before the headers of a request on a reliable connection. Headers of a response or
    /// of another service are returned unchanged.
    #[must_use]
    pub const fn with_xrc(self, xrc: XrcEth) -> Self {
        match self {
            Self::Bare => Self::Xrc(xrc),
            Self::Reth(reth) => Self::XrcReth(xrc, reth),
            Self::RethImmediate(reth, imm) => Self::XrcRethImmediate(xrc, reth, imm),
            Self::Immediate(imm) => Self::XrcImmediate(xrc, imm),
            Self::Ieth(rkey) => Self::XrcIeth(xrc, rkey),
            Self::Atomic(atomic) => Self::XrcAtomic(xrc, atomic),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;
    use crate::packet::{Opcode, Service};

    #[test]
    fn the_header_comes_ahead_of_all_others_and_only_in_requests() {
        let mut requests = 0;
        for &opcode in Opcode::KNOWN.iter().filter(|opcode| opcode.service() == Service::Xrc) {
            let rc = opcode.without_xrc();
            assert_eq!(
                (rc.to_byte() | 0xa0, rc.with_xrc(), rc.service()),
                (opcode.to_byte(), opcode, Service::Rc)
            );
            assert!(Opcode::KNOWN.contains(&rc), "{rc:?}");
            let behind = if rc.is_rc_request() { XRCETH_LEN } else { 0 };
            assert_eq!(opcode.layout().len(), rc.layout().len() + behind, "{opcode:?}");
            assert_eq!(opcode.layout().without_xrc(), rc.layout());
            requests += usize::from(rc.is_rc_request());
        }
        // All RC opcodes: 17 of the 23 are requests.
        assert_eq!(requests, 17);
        // Other services have no XRC form.
        for opcode in [Opcode::UdSendOnly, Opcode::UcSendOnly, Opcode::Other(0xc0)] {
            assert_eq!((opcode.with_xrc(), opcode.without_xrc()), (opcode, opcode));
        }
    }

    #[test]
    fn the_number_is_24_bits_and_the_byte_before_it_is_not_looked_at() {
        let xrc = XrcEth::from_bytes(&[0xff, 0x12, 0x34, 0x56]);
        assert_eq!((xrc.srqn.get(), xrc.to_bytes()), (0x12_3456, [0, 0x12, 0x34, 0x56]));
        let extended = Extended::Ieth(Rkey(0xaabb_ccdd)).with_xrc(xrc);
        assert_eq!(extended.to_bytes()[..8], [0, 0x12, 0x34, 0x56, 0xaa, 0xbb, 0xcc, 0xdd]);
        assert_eq!((extended.xrc(), extended.without_xrc()), (Some(&xrc), Extended::Ieth(Rkey(0xaabb_ccdd))));
        assert_eq!((Extended::Bare.xrc(), Extended::Bare.without_xrc()), (None, Extended::Bare));
    }
}
