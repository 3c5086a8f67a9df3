//! Local route header (IBA 7.7).

use crate::{Lid, ServiceLevel};

/// Bytes of the local route header.
pub const LRH_LEN: usize = 8;

/// Virtual lane, four bits; 15 carries subnet management only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct VirtualLane(u8);

impl VirtualLane {
    /// The lane of SMPs.
    pub const MANAGEMENT: Self = Self(15);

    /// The lower four bits of `lane`.
    #[must_use]
    pub const fn new(lane: u8) -> Self {
        Self(lane & 0xf)
    }

    /// 0 to 15.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Link next header: what follows the LRH (IBA 7.7.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Lnh {
    /// A raw packet with an ethertype header.
    Raw = 0,
    /// A raw packet with an IPv6 header.
    RawIpv6 = 1,
    /// BTH: within the subnet.
    Local = 2,
    /// GRH, then BTH.
    Global = 3,
}

impl Lnh {
    /// From the lower two bits of the LRH's second byte.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Raw,
            1 => Self::RawIpv6,
            2 => Self::Local,
            _ => Self::Global,
        }
    }
}

/// Local route header without what follows from the rest of the packet (LNH, packet length).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lrh {
    /// Virtual lane. Not covered by the ICRC.
    pub vl: VirtualLane,
    /// Service level.
    pub sl: ServiceLevel,
    /// Destination, unicast, multicast or permissive.
    pub dlid: Lid,
    /// Source.
    pub slid: Lid,
}

impl Lrh {
    /// The eight bytes; `words` is the packet's length from LRH to ICRC in words of four bytes, at most 0x7ff.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self, lnh: Lnh, words: u16) -> [u8; LRH_LEN] {
        let [d0, d1] = self.dlid.0.to_be_bytes();
        let [l0, l1] = (words & 0x7ff).to_be_bytes();
        let [s0, s1] = self.slid.0.to_be_bytes();
        [self.vl.get() << 4, self.sl.get() << 4 | lnh as u8, d0, d1, l0, l1, s0, s1]
    }

    /// Reads the header; the second and third results are the LNH and the length in words.
    #[must_use]
    #[inline]
    pub const fn from_bytes(b: &[u8; LRH_LEN]) -> (Self, Lnh, u16) {
        let lrh = Self {
            vl: VirtualLane::new(b[0] >> 4),
            sl: ServiceLevel::new(b[1] >> 4),
            dlid: Lid(u16::from_be_bytes([b[2], b[3]])),
            slid: Lid(u16::from_be_bytes([b[6], b[7]])),
        };
        (lrh, Lnh::from_bits(b[1]), u16::from_be_bytes([b[4], b[5]]) & 0x7ff)
    }
}
