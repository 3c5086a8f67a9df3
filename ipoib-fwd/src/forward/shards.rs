//! A map of neighbours that is cheap to copy with one of them changed.
//!
//! It is an array of pointers to shards of some 16 entries, each a small hash table with open addressing. A change makes one new
//! shard, and a new array of pointers if somebody holds the old one; all other shards are shared. A lookup takes one hash: some
//! of its bits choose the shard, others the place in it.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::NeighbourIndex;

/// Entries that a shard holds if it holds its part of all.
const PER_SHARD: usize = 16;
/// Bits of a hash that choose the shard; the lower ones choose the place.
const SHARD_SHIFT: u32 = 32;

#[derive(Clone, Debug)]
struct Entry<K, N> {
    key: K,
    index: NeighbourIndex,
    neighbour: N,
}

/// Twice as many places as entries at least, a power of two; an entry lies at its place or behind it, with no gap between.
type Shard<K, N> = Arc<[Option<Entry<K, N>>]>;

/// Neighbours by address.
#[derive(Clone, Debug)]
pub(super) struct Shards<K, N> {
    hash: FixedState,
    /// A power of two of them.
    shards: Box<[Shard<K, N>]>,
}

impl<K: Copy + Eq + Hash, N: Clone> Shards<K, N> {
    /// An empty map for about `expected` entries; it takes more. `seed`: which addresses collide, nobody may know.
    pub(super) fn new(seed: u64, expected: usize) -> Self {
        let count = expected.div_ceil(PER_SHARD).next_power_of_two();
        let empty: Shard<K, N> = Arc::from([None]);
        Self { hash: FixedState::with_seed(seed), shards: vec![empty; count].into_boxed_slice() }
    }

    #[inline]
    fn shard_of(&self, hash: u64) -> usize {
        (hash >> SHARD_SHIFT) as usize & (self.shards.len() - 1)
    }

    #[inline(always)]
    pub(super) fn get(&self, key: K) -> Option<(NeighbourIndex, &N)> {
        let hash = self.hash.hash_one(key);
        let shard = self.shards.get(self.shard_of(hash))?;
        let mut place = hash as usize;
        loop {
            // At least half of the places are empty.
            let entry = shard.get(place & (shard.len() - 1))?.as_ref()?;
            if entry.key == key {
                return Some((entry.index, &entry.neighbour));
            }
            place += 1;
        }
    }

    /// Adds or changes an entry.
    pub(super) fn set(&mut self, key: K, index: NeighbourIndex, neighbour: N) {
        self.change(key, Some(Entry { key, index, neighbour }));
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, key: K) {
        self.change(key, None);
    }

    /// Makes the key's shard anew with another entry for it.
    fn change(&mut self, key: K, next: Option<Entry<K, N>>) {
        let at = self.shard_of(self.hash.hash_one(key));
        let Some(old) = self.shards.get(at) else { return };
        let others = old.iter().flatten().filter(|e| e.key != key).cloned();
        let entries: Vec<_> = others.chain(next).collect();
        let places = (2 * entries.len()).next_power_of_two();
        let mut new = vec![None; places];
        for entry in entries {
            let mut place = self.hash.hash_one(entry.key) as usize;
            while new.get(place & (places - 1)).is_some_and(Option::is_some) {
                place += 1;
            }
            if let Some(free) = new.get_mut(place & (places - 1)) {
                *free = Some(entry);
            }
        }
        if let Some(shard) = self.shards.get_mut(at) {
            *shard = new.into();
        }
    }

    /// How many shards this map has that another one has, too.
    #[cfg(test)]
    fn shared_with(&self, other: &Self) -> usize {
        self.shards.iter().zip(&other.shards).filter(|(a, b)| Arc::ptr_eq(a, b)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_change_leaves_all_other_shards_shared() {
        let mut map = Shards::new(7, 4096);
        for n in 0..4096u32 {
            map.set(n, NeighbourIndex(n), n);
        }
        assert_eq!(map.shards.len(), 256);
        let before = map.clone();
        assert_eq!(map.shared_with(&before), 256);
        map.set(17, NeighbourIndex(17), 18);
        assert_eq!(map.shared_with(&before), 255);
        map.remove(17);
        assert_eq!(map.shared_with(&before), 255);
        assert_eq!((before.get(17), map.get(17)), (Some((NeighbourIndex(17), &17)), None));
    }

    #[test]
    fn shards_stay_small_however_addresses_are_chosen() {
        let mut map = Shards::new(0x5eed, 4096);
        // Addresses that differ in few bits, as a subnet's do, and in high ones only.
        for n in 0..2048u32 {
            map.set(0x0a4d_0000 + n, NeighbourIndex(n), ());
            map.set(n << 20 | 1, NeighbourIndex(n), ());
        }
        let largest = map.shards.iter().map(|s| s.iter().flatten().count()).max();
        assert!(largest.is_some_and(|n| n < 4 * PER_SHARD), "{largest:?}");
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u32..40, any::<Option<u8>>()), 0..200), expected in 0usize..64) {
            let (mut map, mut model) = (Shards::new(3, expected), BTreeMap::new());
            for (key, value) in steps {
                match value {
                    Some(value) => {
                        map.set(key, NeighbourIndex(key), value);
                        model.insert(key, value);
                    }
                    None => {
                        map.remove(key);
                        model.remove(&key);
                    }
                }
                for key in 0..40 {
                    let found = map.get(key).map(|(index, value)| (index.0, *value));
                    prop_assert_eq!(found, model.get(&key).map(|v| (key, *v)));
                }
            }
            for shard in &map.shards {
                prop_assert!(shard.len().is_power_of_two() && shard.iter().flatten().count() * 2 <= shard.len());
            }
        }
    }
}
