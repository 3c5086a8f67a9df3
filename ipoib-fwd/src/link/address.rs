//! The 20-byte hardware address of IPoIB and the multicast mapping (RFC 4391 4 and 9.1.1, RFC 4755 3.1).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;

use ib_wire::{Gid, PKey, Qpn};

/// Flag of byte 0: the address accepts reliable connections.
pub const FLAG_RC: u8 = 0x80;
/// Flag of byte 0: the address accepts unreliable connections.
pub const FLAG_UC: u8 = 0x40;

/// Signature of IPv4 groups in bytes 2 and 3 of an MGID.
const IPV4_SIGNATURE: u16 = 0x401b;

/// A link-layer address: flags, datagram queue pair, port GID.
///
/// Equality and hash leave the flags out: a peer that changes its mind on connected mode is still the same peer.
#[derive(Clone, Copy)]
pub struct HardwareAddress {
    /// Byte 0: [`FLAG_RC`], [`FLAG_UC`].
    pub flags: u8,
    /// Bytes 1 to 3: the datagram queue pair.
    pub qpn: Qpn,
    /// Bytes 4 to 19: the port's GID, or an MGID.
    pub gid: Gid,
}

impl HardwareAddress {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// From wire bytes; the undefined flag bits are dropped (RFC 4391 9.1.1: ignored on receive).
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let mut gid = [0; 16];
        let mut i = 0;
        while i < 16 {
            gid[i] = b[4 + i];
            i += 1;
        }
        Self { flags: b[0] & (FLAG_RC | FLAG_UC), qpn: Qpn::from_be_bytes([b[1], b[2], b[3]]), gid: Gid(gid) }
    }

    /// As wire bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = self.flags;
        b[1..4].copy_from_slice(&self.qpn.to_be_bytes());
        b[4..].copy_from_slice(&self.gid.0);
        b
    }

    /// The address of a multicast group.
    #[must_use]
    pub const fn multicast(mgid: Gid) -> Self {
        Self { flags: 0, qpn: Qpn::MULTICAST, gid: mgid }
    }

    /// True if the address accepts reliable connections.
    #[must_use]
    pub const fn accepts_rc(&self) -> bool {
        self.flags & FLAG_RC != 0
    }

    /// True if a host can own it: unicast queue pair, unicast and non-zero GID.
    #[must_use]
    pub fn is_unicast(&self) -> bool {
        self.qpn.get() > 1 && self.qpn != Qpn::MULTICAST && !self.gid.is_multicast() && self.gid != Gid::ZERO
    }
}

impl PartialEq for HardwareAddress {
    fn eq(&self, other: &Self) -> bool {
        self.qpn == other.qpn && self.gid == other.gid
    }
}

impl Eq for HardwareAddress {}

impl Hash for HardwareAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.qpn.hash(state);
        self.gid.hash(state);
    }
}

impl fmt::Display for HardwareAddress {
    /// As `ip link` prints it: colon-separated bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.to_bytes().iter().enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HardwareAddress({self})")
    }
}

/// The MGID of an IPv4 group, or of the limited broadcast address, on the link of `pkey` (RFC 4391 4). `scope` is the
/// broadcast group's, four bits. The P_Key goes in with its full-membership bit.
#[must_use]
pub fn ipv4_mgid(group: Ipv4Addr, pkey: PKey, scope: u8) -> Gid {
    let low = if group == Ipv4Addr::BROADCAST { u32::MAX } else { u32::from(group) & 0x0fff_ffff };
    let mut g = [0; 16];
    g[0] = 0xff;
    g[1] = 0x10 | (scope & 0xf);
    g[2..4].copy_from_slice(&IPV4_SIGNATURE.to_be_bytes());
    g[4..6].copy_from_slice(&(pkey.0 | 0x8000).to_be_bytes());
    g[12..16].copy_from_slice(&low.to_be_bytes());
    Gid(g)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_no_part_of_identity() {
        let mut b = [0u8; 20];
        b[0] = 0xff;
        b[3] = 0x49;
        b[4] = 0xfe;
        let a = HardwareAddress::from_bytes(&b);
        assert!(a.accepts_rc());
        assert_eq!(a.flags, 0xc0);
        b[0] = 0;
        assert_eq!(a, HardwareAddress::from_bytes(&b));
        assert_eq!(HardwareAddress::from_bytes(&b).to_bytes(), b);
    }

    #[test]
    fn group_mapping_of_rfc_4391() {
        let all_routers = ipv4_mgid(Ipv4Addr::new(224, 0, 0, 2), PKey(0x8000), 2);
        assert_eq!(all_routers.to_string(), "ff12:401b:8000::2");
        let broadcast = ipv4_mgid(Ipv4Addr::BROADCAST, PKey(0x7fff), 2);
        assert_eq!(broadcast.to_string(), "ff12:401b:ffff::ffff:ffff");
    }
}
