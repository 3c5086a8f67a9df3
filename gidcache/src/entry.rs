//! An entry of a GID table.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ib_wire::{Gid, Guid, PortNumber};

/// Type of a GID (`enum ib_uverbs_gid_type`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum GidType {
    /// A port of an InfiniBand fabric.
    Ib = 0,
    /// RoCE v1, EtherType 0x8915.
    RoceV1 = 1,
    /// RoCE v2, UDP port 4791.
    RoceV2 = 2,
}

impl GidType {
    /// Converts a number to a type.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Ib),
            1 => Some(Self::RoceV1),
            2 => Some(Self::RoceV2),
            _ => None,
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ib => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// GID types of a RoCE port. Its table contains each address once for each type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoceTypes {
    /// Only RoCE v1.
    V1,
    /// Only RoCE v2.
    V2,
    /// Both.
    Both,
}

impl RoceTypes {
    /// Returns the types in the order of their default slots.
    #[must_use]
    pub const fn types(self) -> &'static [GidType] {
        match self {
            Self::V1 => &[GidType::RoceV1],
            Self::V2 => &[GidType::RoceV2],
            Self::Both => &[GidType::RoceV1, GidType::RoceV2],
        }
    }
}

/// Index of a network interface of the kernel, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IfIndex(std::num::NonZeroU32);

impl IfIndex {
    /// Returns `None` for 0, which is not a valid index.
    #[must_use]
    pub const fn new(index: u32) -> Option<Self> {
        match std::num::NonZeroU32::new(index) {
            Some(index) => Some(Self(index)),
            None => None,
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for IfIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// VLAN id, 0 to 4095.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VlanId(u16);

impl VlanId {
    /// Returns `None` if the number has more than 12 bits.
    #[must_use]
    pub const fn new(id: u16) -> Option<Self> {
        if id < 4096 { Some(Self(id)) } else { None }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Identifies an entry of a port: there is one entry for each address, type and interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// GID.
    pub gid: Gid,
    /// Type.
    pub gid_type: GidType,
    /// Interface with the address; `None` for InfiniBand ports.
    pub ifindex: Option<IfIndex>,
}

/// A GID with its attributes, without its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Attributes {
    /// GID, type, interface.
    pub key: Key,
    /// VLAN that packets with this GID carry.
    pub vlan: Option<VlanId>,
}

/// A valid entry of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// The port.
    pub port: PortNumber,
    /// Index in the port's table.
    pub index: u16,
    /// GID, type, interface, VLAN.
    pub attributes: Attributes,
    /// True for the port's own GID in a reserved slot.
    pub default: bool,
}

impl Entry {
    /// Returns the GID.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.attributes.key.gid
    }

    /// Returns the type.
    #[must_use]
    pub const fn gid_type(&self) -> GidType {
        self.attributes.key.gid_type
    }
}

/// Contents of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// Nothing.
    Empty,
    /// An entry that is being added to the device or removed from it. It must not be used; repeat the query.
    Invalid,
    /// A usable entry.
    Valid(Entry),
}

/// Converts an IP address to a GID. IPv4 addresses are mapped into IPv6.
#[must_use]
pub const fn gid_of_address(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

/// Returns the IPv4 address of a GID.
#[must_use]
pub const fn ipv4_of_gid(gid: Gid) -> Option<Ipv4Addr> {
    std::net::Ipv6Addr::from_octets(gid.0).to_ipv4_mapped()
}

/// Returns the link-local GID of a MAC address: fe80::/64 and the modified EUI-64 (RFC 4291 appendix A).
#[must_use]
pub const fn link_local_gid(mac: [u8; 6]) -> Gid {
    let [a, b, c, d, e, f] = mac;
    Gid::new(Gid::DEFAULT_PREFIX, Guid(u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])))
}
