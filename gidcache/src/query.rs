//! Lookup criteria, and the ranking of results.

use ib_wire::{Gid, PortNumber};

use crate::entry::{Entry, GidType, IfIndex, VlanId};
use crate::layout::{
    IFINDEX, IFINDEX_SHIFT, PORT, PORT_SHIFT, Record, STATE, STATE_VALID, TAGGED, TYPE, TYPE_SHIFT, VLAN,
    VLAN_SHIFT, gid_of, halves,
};

/// VLAN criterion.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum VlanMatch {
    /// Any VLAN; untagged entries are preferred.
    #[default]
    Any,
    /// Untagged only.
    Untagged,
    /// This VLAN only.
    Is(VlanId),
}

/// A GID with additional criteria, which must match exactly.
///
/// The best of several matching entries is selected by these criteria, in order:
///
/// 1. RoCE v2 before RoCE v1 before IB
/// 2. untagged before tagged
/// 3. lower port number
/// 4. lower index (default slots come first)
///
/// A query is stored as the words of a record with masks, so that a lookup compares four words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    first: u64,
    second: u64,
    facts: Bits,
    place: Bits,
}

/// Required bits of a word.
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
    /// Matches any entry of a GID.
    #[inline]
    #[must_use]
    pub const fn new(gid: Gid) -> Self {
        let (first, second) = halves(gid);
        let facts = Bits { which: STATE, value: STATE_VALID };
        Self { first, second, facts, place: Bits { which: 0, value: 0 } }
    }

    /// Restricts the query to entries of this type.
    #[inline]
    #[must_use]
    pub const fn gid_type(self, gid_type: GidType) -> Self {
        Self { facts: self.facts.and(TYPE, (gid_type as u64) << TYPE_SHIFT), ..self }
    }

    /// Restricts the query to entries of this port.
    #[inline]
    #[must_use]
    pub const fn port(self, port: PortNumber) -> Self {
        Self { place: self.place.and(PORT, (port.0 as u64) << PORT_SHIFT), ..self }
    }

    /// Restricts the query to entries of this interface.
    #[inline]
    #[must_use]
    pub const fn ifindex(self, ifindex: IfIndex) -> Self {
        Self { facts: self.facts.and(IFINDEX, (ifindex.get() as u64) << IFINDEX_SHIFT), ..self }
    }

    /// Restricts the query to entries of these VLANs.
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

    /// Returns the GID.
    #[inline]
    #[must_use]
    pub const fn gid(&self) -> Gid {
        gid_of(self.first, self.second)
    }

    /// True if the entry meets all criteria.
    #[must_use]
    pub fn matches(&self, entry: &Entry) -> bool {
        let record = Record::new(entry, true);
        self.names(&record) && self.admits(&record)
    }

    /// True if a record has this GID.
    #[inline]
    pub(crate) const fn names(&self, record: &Record) -> bool {
        record.first == self.first && record.second == self.second
    }

    /// Returns the words of the GID.
    #[inline]
    pub(crate) const fn halves(&self) -> (u64, u64) {
        (self.first, self.second)
    }

    /// True if a record of this GID meets all criteria.
    #[inline]
    pub(crate) const fn admits(&self, record: &Record) -> bool {
        self.facts.are_in(record.facts) && self.place.are_in(record.place)
    }

    /// Returns the best of several entries.
    pub fn best(&self, entries: impl IntoIterator<Item = Entry>) -> Option<Entry> {
        entries.into_iter().filter(|entry| self.matches(entry)).min_by_key(rank)
    }
}

/// Ranks an entry; lower is better.
pub(crate) fn rank(entry: &Entry) -> (u8, bool, PortNumber, u16) {
    let gid_type = match entry.gid_type() {
        GidType::RoceV2 => 0,
        GidType::RoceV1 => 1,
        GidType::Ib => 2,
    };
    (gid_type, entry.attributes.vlan.is_some(), entry.port, entry.index)
}
