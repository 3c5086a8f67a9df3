//! Mapping of IP groups to multicast GIDs (RFC 4391 section 4).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Gid, PKey};

/// Signature of IPv4 groups in an MGID.
const SIGNATURE_IPV4: [u8; 2] = [0x40, 0x1b];
/// Signature of IPv6 groups in an MGID.
const SIGNATURE_IPV6: [u8; 2] = [0x60, 0x1b];

/// Last four bytes of every broadcast group.
pub const BROADCAST_SUFFIX: [u8; 4] = [0xff; 4];

/// Scope nibble of an MGID; an IPoIB link uses one scope for all its groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupScope(u8);

impl GroupScope {
    /// Link-local, the default.
    pub const LINK_LOCAL: Self = Self(2);

    /// The lower four bits of `scope`.
    #[must_use]
    pub const fn new(scope: u8) -> Self {
        Self(scope & 0xf)
    }

    /// 0 to 15.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for GroupScope {
    fn default() -> Self {
        Self::LINK_LOCAL
    }
}

/// The group that an IPoIB MGID represents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpoibGroup {
    /// The broadcast group of a link.
    Broadcast,
    /// An IPv4 group. The MGID carries the lower 28 bits; the upper four are always 1110.
    Ipv4(Ipv4Addr),
    /// An IPv6 group. The MGID carries the lower 80 bits; the upper 48 are zero here.
    Ipv6Suffix([u8; 10]),
}

/// MGID prefix. Partitions always appear with the full-member bit (RFC 4391 section 4).
fn prefix(signature: [u8; 2], pkey: PKey, scope: GroupScope) -> Gid {
    let mut gid = Gid::ZERO;
    gid.0[0] = 0xff;
    gid.0[1] = 0x10 | scope.get();
    gid.0[2..4].copy_from_slice(&signature);
    gid.0[4..6].copy_from_slice(&(pkey.0 | 0x8000).to_be_bytes());
    gid
}

/// The broadcast group of a link.
#[must_use]
pub fn broadcast_gid(pkey: PKey, scope: GroupScope) -> Gid {
    let mut gid = prefix(SIGNATURE_IPV4, pkey, scope);
    gid.0[12..].copy_from_slice(&BROADCAST_SUFFIX);
    gid
}

/// The MGID of an IP group on a link, or of IPv4's limited broadcast. Returns `None` if `group` is not
/// multicast.
#[must_use]
pub fn multicast_gid(group: IpAddr, pkey: PKey, scope: GroupScope) -> Option<Gid> {
    match group {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(broadcast_gid(pkey, scope)),
        IpAddr::V4(ip) if ip.is_multicast() => {
            let mut gid = prefix(SIGNATURE_IPV4, pkey, scope);
            let [a, b, c, d] = ip.octets();
            gid.0[12..].copy_from_slice(&[a & 0x0f, b, c, d]);
            Some(gid)
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let mut gid = prefix(SIGNATURE_IPV6, pkey, scope);
            gid.0[6..].copy_from_slice(&ip.octets()[6..]);
            Some(gid)
        }
        _ => None,
    }
}

impl IpoibGroup {
    /// Reads an MGID. Returns `None` if it is not an IPoIB group.
    #[must_use]
    pub fn from_gid(gid: Gid) -> Option<Self> {
        let b = gid.0;
        if b[0] != 0xff || b[1] & 0xf0 != 0x10 {
            return None;
        }
        match [b[2], b[3]] {
            SIGNATURE_IPV4 if b[6..12] != [0; 6] => None,
            SIGNATURE_IPV4 if b[12..] == BROADCAST_SUFFIX => Some(Self::Broadcast),
            SIGNATURE_IPV4 if b[12] & 0xf0 == 0 => {
                Some(Self::Ipv4(Ipv4Addr::new(0xe0 | b[12], b[13], b[14], b[15])))
            }
            SIGNATURE_IPV6 => {
                let mut suffix = [0; 10];
                suffix.copy_from_slice(&b[6..]);
                Some(Self::Ipv6Suffix(suffix))
            }
            _ => None,
        }
    }

    /// Partition and scope of any MGID.
    #[must_use]
    pub const fn link_of(gid: Gid) -> (PKey, GroupScope) {
        (PKey(u16::from_be_bytes([gid.0[4], gid.0[5]])), GroupScope::new(gid.0[1]))
    }
}

/// Displays an IPv6 suffix as the link-local group with this suffix, because the MGID does not carry the
/// upper bits.
impl std::fmt::Display for IpoibGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broadcast => f.write_str("broadcast"),
            Self::Ipv4(ip) => write!(f, "{ip}"),
            Self::Ipv6Suffix(suffix) => {
                let mut b = [0u8; 16];
                b[0] = 0xff;
                b[1] = 0x02;
                b[6..].copy_from_slice(suffix);
                write!(f, "{}", Ipv6Addr::from(b))
            }
        }
    }
}
