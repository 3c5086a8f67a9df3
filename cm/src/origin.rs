//! Source port of a management datagram.

use ib_wire::mad::MadAddress;
use ib_wire::{Gid, Lid};

use crate::Path;

/// A port of the fabric. It is identified by the headers of its packets, never by the contents of a message.
/// A LID is assigned to the adapter. A GID is one that the sender's adapter has or claims.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A port of the local subnet, by its base LID.
    Lid(Lid),
    /// A port behind a router, whose LID does not identify it, or a port on a device that reports no LIDs.
    Gid(Gid),
}

/// Parameters that identify a port in the local subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subnet {
    /// GID prefix of the subnet.
    pub prefix: u64,
    /// LID mask control: a port has 2^lmc LIDs. A subnet manager sets the same value for all ports of a
    /// subnet.
    pub lmc: u8,
}

impl Default for Subnet {
    fn default() -> Self {
        Self { prefix: Gid::DEFAULT_PREFIX, lmc: 0 }
    }
}

impl Subnet {
    /// Returns the base LID of the port with this LID (IBA 4.1.3).
    #[must_use]
    pub fn base_lid(&self, lid: Lid) -> Lid {
        Lid(lid.0 & (u16::MAX << self.lmc.min(7)))
    }

    /// True if both LIDs belong to one port.
    #[must_use]
    pub fn is_same_port(&self, a: Lid, b: Lid) -> bool {
        self.base_lid(a) == self.base_lid(b)
    }

    /// Returns the source port of a datagram.
    #[must_use]
    pub fn origin(&self, from: &MadAddress) -> Origin {
        match from.route.map(|route| route.gid) {
            Some(gid) if from.lid == Lid(0) || gid.prefix() != self.prefix => Origin::Gid(gid),
            _ => Origin::Lid(self.base_lid(from.lid)),
        }
    }

    /// Returns the port at the end of a path. After a change of the local prefix, a path within the subnet
    /// still contains the old one.
    pub(crate) fn destination(&self, path: &Path) -> Origin {
        if path.hop_limit > 1 { Origin::Gid(path.dgid) } else { Origin::Lid(self.base_lid(path.dlid)) }
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Guid, ServiceLevel};

    use super::*;

    #[test]
    fn all_lids_of_a_port_are_one_origin() {
        let subnet = Subnet { lmc: 2, ..Subnet::default() };
        let from = |lid| MadAddress::gsi(Lid(lid), ServiceLevel::new(0));
        for lid in 8..12 {
            assert_eq!(subnet.origin(&from(lid)), Origin::Lid(Lid(8)));
        }
        assert_ne!(subnet.origin(&from(7)), subnet.origin(&from(8)));
        assert_ne!(subnet.origin(&from(12)), subnet.origin(&from(8)));
        assert!(!Subnet::default().is_same_port(Lid(8), Lid(9)));
    }

    #[test]
    fn behind_a_router_and_without_a_lid_the_gid_counts() {
        let (near, far) = (Gid::new(Gid::DEFAULT_PREFIX, Guid(5)), Gid::new(7, Guid(5)));
        let from = |lid, gid| MadAddress::gsi(Lid(lid), ServiceLevel::new(0)).with_gid(gid);
        let subnet = Subnet::default();
        assert_eq!(
            subnet.origin(&from(3, near)),
            Origin::Lid(Lid(3)),
            "a GRH within the subnet changes nothing"
        );
        assert_eq!(subnet.origin(&from(3, far)), Origin::Gid(far));
        assert_eq!(subnet.origin(&from(0, near)), Origin::Gid(near));
    }
}
