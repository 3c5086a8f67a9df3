//! What a lookup asks for, and which of several answers it gets.

use ib_wire::{Gid, PortNumber};

use crate::entry::{Entry, GidType, IfIndex, VlanId};
use crate::layout::{
    IFINDEX, IFINDEX_SHIFT, PORT, PORT_SHIFT, Record, STATE, STATE_VALID, TAGGED, TYPE, TYPE_SHIFT, VLAN,
    VLAN_SHIFT, gid_of, halves,
};

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
///
/// It is kept as the words of a record and the bits of them that are asked for: a lookup compares four words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    first: u64,
    second: u64,
    facts: Bits,
    place: Bits,
}

/// Bits of a word that have to be so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bits {
    which: u64,
    value: u64,
}

impl Bits {
    const fn and(self, which: u64, value: u64) -> Self {
        Self { which: self.which | which, value: self.value & !which | value }
    }

    const fn without(self, which: u64) -> Self {
        Self { which: self.which & !which, value: self.value & !which }
    }

    #[inline]
    const fn are_in(self, word: u64) -> bool {
        word & self.which == self.value
    }
}

impl Query {
    /// Any entry of a GID.
    #[inline]
    #[must_use]
    pub const fn new(gid: Gid) -> Self {
        let (first, second) = halves(gid);
        let facts = Bits { which: STATE, value: STATE_VALID };
        Self { first, second, facts, place: Bits { which: 0, value: 0 } }
    }

    /// Only entries of this type.
    #[inline]
    #[must_use]
    pub const fn gid_type(self, gid_type: GidType) -> Self {
        Self { facts: self.facts.and(TYPE, (gid_type as u64) << TYPE_SHIFT), ..self }
    }

    /// Only entries of this port.
    #[inline]
    #[must_use]
    pub const fn port(self, port: PortNumber) -> Self {
        Self { place: self.place.and(PORT, (port.0 as u64) << PORT_SHIFT), ..self }
    }

    /// Only entries of this interface.
    #[inline]
    #[must_use]
    pub const fn ifindex(self, ifindex: IfIndex) -> Self {
        Self { facts: self.facts.and(IFINDEX, (ifindex.get() as u64) << IFINDEX_SHIFT), ..self }
    }

    /// Only entries of these VLANs.
    #[inline]
    #[must_use]
    pub const fn vlan(self, vlan: VlanMatch) -> Self {
        let any = self.facts.without(TAGGED | VLAN);
        let facts = match vlan {
            VlanMatch::Any => any,
            VlanMatch::Untagged => any.and(TAGGED, 0),
            VlanMatch::Is(id) => any.and(TAGGED | VLAN, TAGGED | (id.get() as u64) << VLAN_SHIFT),
        };
        Self { facts, ..self }
    }

    /// The GID asked for.
    #[inline]
    #[must_use]
    pub const fn gid(&self) -> Gid {
        gid_of(self.first, self.second)
    }

    /// True if the entry has all that is asked for.
    #[must_use]
    pub fn matches(&self, entry: &Entry) -> bool {
        let record = Record::new(entry, true);
        self.names(&record) && self.admits(&record)
    }

    /// True if a record is of this GID.
    #[inline]
    pub(crate) const fn names(&self, record: &Record) -> bool {
        record.first == self.first && record.second == self.second
    }

    /// The words of the GID.
    #[inline]
    pub(crate) const fn halves(&self) -> (u64, u64) {
        (self.first, self.second)
    }

    /// True if a record of this GID has all that is asked for.
    #[inline]
    pub(crate) const fn admits(&self, record: &Record) -> bool {
        self.facts.are_in(record.facts) && self.place.are_in(record.place)
    }

    /// The best of some entries.
    pub fn best(&self, entries: impl IntoIterator<Item = Entry>) -> Option<Entry> {
        entries.into_iter().filter(|entry| self.matches(entry)).min_by_key(rank)
    }
}

/// The less, the better.
pub(crate) fn rank(entry: &Entry) -> (u8, bool, PortNumber, u16) {
    let gid_type = match entry.gid_type() {
        GidType::RoceV2 => 0,
        GidType::RoceV1 => 1,
        GidType::Ib => 2,
    };
    (gid_type, entry.attributes.vlan.is_some(), entry.port, entry.index)
}
