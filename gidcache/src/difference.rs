//! Differences between two states of a table.

use crate::entry::Entry;

/// An entry that only one of two states contains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Difference {
    /// Only the earlier state contains it.
    Removed(Entry),
    /// Only the later state contains it.
    Added(Entry),
}

impl Difference {
    /// Returns the entry.
    #[must_use]
    pub const fn entry(&self) -> &Entry {
        match self {
            Self::Removed(entry) | Self::Added(entry) => entry,
        }
    }

    /// True for [`Difference::Added`].
    #[must_use]
    pub const fn is_addition(&self) -> bool {
        matches!(self, Self::Added(_))
    }
}

/// Returns the changes from `before` to `after`, by port and index. A removal from a slot comes before an
/// addition to it. A changed entry is both removed and added.
#[must_use]
pub fn differences(before: &[Entry], after: &[Entry]) -> Vec<Difference> {
    let sorted = |entries: &[Entry]| {
        let mut sorted = entries.to_vec();
        sorted.sort_unstable();
        sorted
    };
    let (before, after) = (sorted(before), sorted(after));
    let gone = before.iter().filter(|entry| after.binary_search(entry).is_err()).copied();
    let new = after.iter().filter(|entry| before.binary_search(entry).is_err()).copied();
    let mut all: Vec<Difference> = gone.map(Difference::Removed).chain(new.map(Difference::Added)).collect();
    all.sort_by_key(|change| (change.entry().port, change.entry().index, change.is_addition()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Attributes, GidType, Key};
    use ib_wire::{Gid, Guid, PortNumber};

    fn entry(port: u8, index: u16, guid: u64) -> Entry {
        let key = Key { gid: Gid::new(7, Guid(guid)), gid_type: GidType::Ib, ifindex: None };
        let attributes = Attributes { key, vlan: None };
        Entry { port: PortNumber(port), index, attributes, default: false }
    }

    #[test]
    fn a_change_is_a_removal_and_an_addition_in_the_order_of_slots() {
        let before = [entry(2, 0, 1), entry(1, 5, 1), entry(1, 0, 1)];
        let after = [entry(1, 0, 1), entry(1, 5, 2), entry(2, 1, 9)];
        let changes = differences(&before, &after);
        let expected = [
            Difference::Removed(entry(1, 5, 1)),
            Difference::Added(entry(1, 5, 2)),
            Difference::Removed(entry(2, 0, 1)),
            Difference::Added(entry(2, 1, 9)),
        ];
        assert_eq!(changes, expected);
        assert_eq!(differences(&after, &after), []);
    }
}
