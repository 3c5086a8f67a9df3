//! The numbers of the InfiniBand architecture. Each has a type of its own, so that a LID cannot be mistaken
//! for a queue pair.

use std::fmt;

/// Defines a number that is as wide as its integer type.
macro_rules! plain_number {
    ($(#[$doc:meta])* $name:ident($int:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $fmt, ")"), self.0)
            }
        }
    };
}

/// Defines a 24-bit number; the constructor drops the upper eight bits.
macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// The largest value.
            pub const MASK: u32 = 0x00ff_ffff;

            /// The lower 24 bits of `value`.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & Self::MASK)
            }

            /// The value, at most `MASK`.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// Converts from three bytes in wire order.
            #[must_use]
            pub const fn from_be_bytes(b: [u8; 3]) -> Self {
                Self(u32::from_be_bytes([0, b[0], b[1], b[2]]))
            }

            /// Converts to three bytes in wire order.
            #[must_use]
            pub const fn to_be_bytes(self) -> [u8; 3] {
                let [_, a, b, c] = self.0.to_be_bytes();
                [a, b, c]
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "0x{:06x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(0x{:06x})"), self.0)
            }
        }
    };
}

plain_number!(
    /// Local identifier: the address of a port within its subnet (IBA 4.1.3).
    Lid(u16),
    "{}"
);
plain_number!(
    /// Partition key; bit 15 is full membership (IBA 10.9.1).
    PKey(u16),
    "0x{:04x}"
);
plain_number!(
    /// Queue key of a datagram queue pair; values with bit 31 set are privileged (IBA 10.2.5).
    QKey(u32),
    "0x{:08x}"
);
plain_number!(
    /// 64-bit globally unique identifier of a node, system or port.
    Guid(u64),
    "0x{:016x}"
);
plain_number!(
    /// Transaction identifier of a management datagram.
    Tid(u64),
    "0x{:016x}"
);
plain_number!(
    /// Communication id of one end of a connection (IBA 12.6).
    CommId(u32),
    "0x{:08x}"
);
plain_number!(
    /// Service id in a connection request (IBA 12.6.4).
    ServiceId(u64),
    "0x{:016x}"
);
plain_number!(
    /// Remote key of a memory region or window (IBA 10.6.3).
    Rkey(u32),
    "0x{:08x}"
);
number24!(
    /// Queue pair number.
    Qpn
);
number24!(
    /// Number of an XRC shared receive queue (IBA annex A14).
    XrcSrqn
);
number24!(
    /// Packet sequence number; arithmetic is modulo 2^24 (IBA 9.7.1).
    Psn
);

impl Lid {
    /// The permissive LID, for directed-route SMPs and for ports that have no LID yet.
    pub const PERMISSIVE: Self = Self(0xffff);
    /// First LID of the multicast range (IBA 4.1.3).
    pub const FIRST_MULTICAST: Self = Self(0xc000);

    /// True for a multicast LID, 0xC000 to 0xFFFE.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::FIRST_MULTICAST.0 && self.0 != Self::PERMISSIVE.0
    }
}

impl PKey {
    /// The default partition with full membership.
    pub const DEFAULT: Self = Self(0xffff);

    /// True for a full member of the partition.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// The key without its membership bit.
    #[must_use]
    pub const fn base(self) -> u16 {
        self.0 & 0x7fff
    }

    /// True if both keys belong to the same partition and at least one is a full member (IBA 10.9.3).
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        self.base() != 0 && self.base() == other.base() && (self.is_full() || other.is_full())
    }
}

impl QKey {
    /// The well-known key of the general services interface, QP1.
    pub const GSI: Self = Self(0x8001_0000);

    /// True if using the key needs a privilege.
    #[must_use]
    pub const fn is_privileged(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl Qpn {
    /// Subnet management interface.
    pub const SMI: Self = Self(0);
    /// General services interface.
    pub const GSI: Self = Self(1);
    /// Destination of every multicast datagram.
    pub const MULTICAST: Self = Self(Self::MASK);
}

impl Psn {
    /// The PSN `n` after this one.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The distance from `earlier` to `self`, 0 to 2^24 - 1.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// True if `self` is `other` or one of the 2^23 - 1 PSNs after it.
    #[must_use]
    pub const fn is_at_or_after(self, other: Self) -> bool {
        self.since(other) < 1 << 23
    }
}

/// Number of a port of a device, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortNumber(pub u8);

/// 128-bit global identifier, in wire order (IBA 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of no port.
    pub const ZERO: Self = Self([0; 16]);
    /// The default subnet prefix.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Interface id that addresses subnet administration in every subnet: locally administered, number 2.
    pub const SUBNET_ADMINISTRATION: Guid = Guid(1 << 57 | 2);

    /// Builds a GID from subnet prefix and interface id.
    #[must_use]
    pub const fn new(prefix: u64, id: Guid) -> Self {
        Self((((prefix as u128) << 64) | id.0 as u128).to_be_bytes())
    }

    /// The upper 64 bits.
    #[must_use]
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower 64 bits.
    #[must_use]
    pub const fn id(self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }

    /// True for a multicast GID, `ff..`.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Largest payload of one packet (IBA 9.4; the code of PortInfo, PathRecord and REQ).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Converts from the wire code, 1 to 5.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }

    /// The wire code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Payload bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }
}

/// Static rate code of path records and address vectors, six bits (2 = 2.5, 3 = 10, 7 = 40 Gb/s …; 0 = the
/// port's own rate).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rate(u8);

impl Rate {
    /// The lower six bits of `code`.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x3f)
    }

    /// The wire code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The rate in Mb/s. `None` for the port's own rate and for unassigned codes.
    #[must_use]
    pub const fn megabits(self) -> Option<u32> {
        Some(match self.0 {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_000,
            12 => 56_000,
            13 => 112_000,
            14 => 168_000,
            15 => 25_000,
            16 => 100_000,
            17 => 200_000,
            18 => 300_000,
            19 => 28_000,
            20 => 50_000,
            21 => 400_000,
            22 => 600_000,
            _ => return None,
        })
    }
}

/// Service level, four bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ServiceLevel(u8);

impl ServiceLevel {
    /// The lower four bits of `sl`.
    #[must_use]
    pub const fn new(sl: u8) -> Self {
        Self(sl & 0xf)
    }

    /// 0 to 15.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A time as 4.096 µs · 2^n, five bits (IBA 12.7.34 and others).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TimeoutCode(u8);

impl TimeoutCode {
    /// The lower five bits of `code`.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The wire code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The duration that the code means.
    #[must_use]
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(4096 << self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_order_wraps_at_two_to_the_24() {
        assert!(Psn::new(0).is_at_or_after(Psn::new(0xff_ffff)));
        assert!(!Psn::new(0xff_ffff).is_at_or_after(Psn::new(0)));
        assert_eq!(Psn::new(0xff_ffff).add(2), Psn::new(1));
    }

    #[test]
    fn partition_needs_one_full_member() {
        assert!(PKey(0xffff).matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8001).matches(PKey(0x8002)));
    }

    #[test]
    fn mtu_code_and_bytes() {
        assert_eq!(Mtu::B256.bytes(), 256);
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::from_code(6), None);
    }
}
