//! Unpredictable transaction IDs.

use std::hash::Hasher;

use ib_wire::Tid;
use siphasher::sip::SipHasher24;

/// A source of transaction IDs: a keyed hash (SipHash-2-4) of a counter.
#[derive(Debug)]
pub(crate) struct TransactionIds {
    key: [u8; 16],
    next: u64,
}

impl TransactionIds {
    /// Creates a source from this seed; `purpose` makes several sources of one seed differ.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self { key: ((u128::from(seed) << 64) | u128::from(purpose)).to_be_bytes(), next: 0 }
    }

    /// Returns the next ID.
    pub(crate) fn next(&mut self) -> Tid {
        self.next = self.next.wrapping_add(1);
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(self.next);
        Tid(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_have_no_common_difference_and_depend_on_seed_and_purpose() {
        let ids = |seed, purpose| {
            let mut source = TransactionIds::new(seed, purpose);
            std::iter::from_fn(|| Some(source.next().0)).take(100).collect::<Vec<u64>>()
        };
        let first = ids(1, 0);
        assert_eq!(first, ids(1, 0));
        let differences: BTreeSet<u64> = first.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert_eq!(differences.len(), 99);
        let all: BTreeSet<u64> = [first, ids(2, 0), ids(1, 1)].concat().into_iter().collect();
        assert_eq!(all.len(), 300);
    }
}
