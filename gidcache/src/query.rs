//! What a lookup asks for, and which of several answers it gets.

use ib_wire::{Gid, PortNumber};

use crate::entry::{Entry, GidType, IfIndex, VlanId};

/// Which VLANs answer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum VlanMatch {
    /// Any, without a tag preferred.
    #[default]
    Any,
    /// No tag.
    Untagged,
    /// This one.
    Is(VlanId),
}

/// A GID and what else is known of it. What is given must match exactly; among entries that match, the best is, in this order:
/// RoCE v2 before RoCE v1 before IB, untagged before tagged, the lower port, the lower index (default slots come first).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    gid: Gid,
    gid_type: Option<GidType>,
    port: Option<PortNumber>,
    ifindex: Option<IfIndex>,
    vlan: VlanMatch,
}

impl Query {
    /// Any entry of a GID.
    #[must_use]
    pub const fn new(gid: Gid) -> Self {
        Self { gid, gid_type: None, port: None, ifindex: None, vlan: VlanMatch::Any }
    }

    /// Only entries of this type.
    #[must_use]
    pub const fn gid_type(self, gid_type: GidType) -> Self {
        Self { gid_type: Some(gid_type), ..self }
    }

    /// Only entries of this port.
    #[must_use]
    pub const fn port(self, port: PortNumber) -> Self {
        Self { port: Some(port), ..self }
    }

    /// Only entries of this interface.
    #[must_use]
    pub const fn ifindex(self, ifindex: IfIndex) -> Self {
        Self { ifindex: Some(ifindex), ..self }
    }

    /// Only entries of these VLANs.
    #[must_use]
    pub const fn vlan(self, vlan: VlanMatch) -> Self {
        Self { vlan, ..self }
    }

    /// The GID asked for.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// True if the entry has all that is asked for.
    #[must_use]
    pub fn matches(&self, entry: &Entry) -> bool {
        entry.gid() == self.gid
            && self.gid_type.is_none_or(|gid_type| entry.gid_type() == gid_type)
            && self.port.is_none_or(|port| entry.port == port)
            && self.ifindex.is_none_or(|ifindex| entry.attributes.key.ifindex == Some(ifindex))
            && match self.vlan {
                VlanMatch::Any => true,
                VlanMatch::Untagged => entry.attributes.vlan.is_none(),
                VlanMatch::Is(vlan) => entry.attributes.vlan == Some(vlan),
            }
    }

    /// The best of some entries.
    pub fn best(&self, entries: impl IntoIterator<Item = Entry>) -> Option<Entry> {
        entries.into_iter().filter(|entry| self.matches(entry)).min_by_key(rank)
    }
}

/// The less, the better.
fn rank(entry: &Entry) -> (u8, bool, PortNumber, u16) {
    let gid_type = match entry.gid_type() {
        GidType::RoceV2 => 0,
        GidType::RoceV1 => 1,
        GidType::Ib => 2,
    };
    (gid_type, entry.attributes.vlan.is_some(), entry.port, entry.index)
}
