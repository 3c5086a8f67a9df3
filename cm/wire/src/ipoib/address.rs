//! Link-layer addresses (RFC 4391 section 9.1.1, RFC 4755 section 2.1).

use std::fmt;

use crate::{Gid, Guid, Qpn};

/// Bytes of a link-layer address.
pub const HARDWARE_ADDRESS_LEN: usize = 20;

/// The first byte of a link-layer address: the connected modes that its owner supports. The flags are not
/// part of the identity, so addresses are compared without them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AddressFlags(u8);

impl AddressFlags {
    /// Datagram mode only.
    pub const NONE: Self = Self(0);
    /// Reliable connections (RC).
    pub const RC: Self = Self(0x80);
    /// Unreliable connections (UC).
    pub const UC: Self = Self(0x40);

    /// Converts from the byte; the six reserved bits are kept.
    #[must_use]
    pub const fn from_byte(b: u8) -> Self {
        Self(b)
    }

    /// The byte.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        self.0
    }

    /// True if reliable connections are offered.
    #[must_use]
    pub const fn has_rc(self) -> bool {
        self.0 & Self::RC.0 != 0
    }

    /// True if unreliable connections are offered.
    #[must_use]
    pub const fn has_uc(self) -> bool {
        self.0 & Self::UC.0 != 0
    }
}

impl fmt::Debug for AddressFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressFlags(0x{:02x})", self.0)
    }
}

/// A link-layer address of 20 bytes: flags, queue pair of the datagram service, port GID. `==` compares all
/// bytes; [`HardwareAddress::is_same_as`] compares the identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HardwareAddress {
    /// Connected modes.
    pub flags: AddressFlags,
    /// Datagram queue pair; [`Qpn::MULTICAST`] for a group. It may change while the GID stays the same.
    pub qpn: Qpn,
    /// Port GID, or a group's.
    pub gid: Gid,
}

impl HardwareAddress {
    /// The address of a group.
    #[must_use]
    pub const fn multicast(mgid: Gid) -> Self {
        Self { flags: AddressFlags::NONE, qpn: Qpn::MULTICAST, gid: mgid }
    }

    /// Reads an address.
    #[must_use]
    pub fn from_bytes(b: &[u8; HARDWARE_ADDRESS_LEN]) -> Self {
        let mut gid = Gid::ZERO;
        gid.0.copy_from_slice(&b[4..]);
        Self { flags: AddressFlags(b[0]), qpn: Qpn::from_be_bytes([b[1], b[2], b[3]]), gid }
    }

    /// Converts to twenty bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HARDWARE_ADDRESS_LEN] {
        let mut out = [0; HARDWARE_ADDRESS_LEN];
        out[0] = self.flags.0;
        out[1..4].copy_from_slice(&self.qpn.to_be_bytes());
        out[4..].copy_from_slice(&self.gid.0);
        out
    }

    /// The address without its flags. It can be used as a key, and its order is that of RFC 4755 section 4,
    /// for ends that dial each other at the same time.
    #[must_use]
    pub const fn identity(self) -> (Qpn, Gid) {
        (self.qpn, self.gid)
    }

    /// True if both addresses name the same interface or group; the flags are ignored.
    #[must_use]
    pub fn is_same_as(self, other: Self) -> bool {
        self.identity() == other.identity()
    }

    /// True for a group's address.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.gid.is_multicast()
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.to_bytes().iter().enumerate() {
            write!(f, "{}{b:02x}", if i == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// The IPv6 interface identifier of a port: its GUID as a modified EUI-64 (RFC 4391 section 8). As in Linux,
/// a GUID whose universal/local bit is already set is not changed.
#[must_use]
pub const fn interface_id(port: Guid) -> [u8; 8] {
    (port.0 | 0x0200_0000_0000_0000).to_be_bytes()
}
