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
    /// Converts from the lower two bits of the LRH's second byte.
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

/// Local route header without LNH and packet length, which are computed from the packet.
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
    /// Converts to eight bytes; `words` is the packet's length from LRH to ICRC in words of four bytes, at
    /// most 0x7ff.
    #[must_use]
    #[inline(always)]
    pub const fn to_bytes(self, lnh: Lnh, words: u16) -> [u8; LRH_LEN] {
        let lane = (self.vl.get() << 4) as u64;
        let level = (self.sl.get() << 4 | lnh as u8) as u64;
        let (to, from) = (self.dlid.0 as u64, self.slid.0 as u64);
        (lane << 56 | level << 48 | to << 32 | (words as u64 & 0x7ff) << 16 | from).to_be_bytes()
    }

    /// Reads the header; the second and third results are the LNH and the length in words.
    #[must_use]
    #[inline(always)]
    pub const fn from_bytes(b: &[u8; LRH_LEN]) -> (Self, Lnh, u16) {
        let word = u64::from_be_bytes(*b);
        let lrh = Self {
            vl: VirtualLane::new((word >> 60) as u8),
            sl: ServiceLevel::new((word >> 52) as u8),
            dlid: Lid((word >> 32) as u16),
            slid: Lid(word as u16),
        };
        (lrh, Lnh::from_bits((word >> 48) as u8), (word >> 16) as u16 & 0x7ff)
    }
}
