//! Sharded copy-on-write hash map for hosts outside the [directly indexed table](super::near). It is cheap to
//! copy with one entry changed, and lookups touch few cache lines.
//!
//! The map is an array of pointers to shards of a few entries. A change creates one new shard. It also copies
//! the pointer array if another version of the map shares it. All other shards stay shared. A lookup takes
//! one hash, which selects the shard.
//!
//! A shard starts with a cache line that has the keys and indices of all its entries. A miss therefore
//! touches one line, and a hit one more. All keys are compared at once, since branches on the keys of
//! thousands of hosts are mispredicted. A shard of more than eight entries is rare and continues in another
//! shard.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use pmd::compare::equal;
use pmd::fetch::fetch;

use super::NeighbourIndex;

/// Entries in a shard.
const WIDTH: usize = 8;
/// Entries in a shard if the map holds the expected number.
const PER_SHARD: usize = 4;
/// The bits of a hash from this one on select the shard.
const SHARD_SHIFT: u32 = 32;

#[derive(Clone, Debug)]
struct Entry<N> {
    key: u32,
    index: NeighbourIndex,
    neighbour: N,
}

/// Entries are stored from the front, without gaps.
#[derive(Debug)]
#[repr(C, align(64))]
struct Shard<N> {
    /// Unused slots repeat the first key: a search for it finds the first slot before them.
    keys: [u32; WIDTH],
    /// The indices, in 24 bits: they fill up the line.
    low: [u16; WIDTH],
    high: [u8; WIDTH],
    more: Option<Arc<Self>>,
    neighbours: [Option<N>; WIDTH],
}

impl<N> Default for Shard<N> {
    fn default() -> Self {
        let (keys, low, high) = Default::default();
        Self { keys, low, high, more: None, neighbours: [const { None }; WIDTH] }
    }
}

impl<N: Clone> Shard<N> {
    fn of(entries: Vec<Entry<N>>, more: Option<Arc<Self>>) -> Self {
        let mut shard = Self { more, ..Self::default() };
        shard.keys = [entries.first().map_or(0, |entry| entry.key); WIDTH];
        let numbers = shard.low.iter_mut().zip(&mut shard.high);
        let places = shard.keys.iter_mut().zip(numbers).zip(&mut shard.neighbours);
        for (entry, ((key, (low, high)), neighbour)) in entries.into_iter().zip(places) {
            *key = entry.key;
            (*low, *high) = (entry.index.0 as u16, (entry.index.0 >> 16) as u8);
            *neighbour = Some(entry.neighbour);
        }
        shard
    }

    /// A bit for each slot with this key; the lowest one is valid.
    #[inline(always)]
    fn find(&self, key: u32) -> u32 {
        equal(&self.keys, key)
    }

    fn index(&self, at: usize) -> Option<NeighbourIndex> {
        Some(NeighbourIndex(u32::from(*self.high.get(at)?) << 16 | u32::from(*self.low.get(at)?)))
    }

    fn entries(&self) -> impl Iterator<Item = Entry<N>> + '_ {
        (0..WIDTH).map_while(|at| {
            let neighbour = self.neighbours.get(at)?.clone()?;
            Some(Entry { key: *self.keys.get(at)?, index: self.index(at)?, neighbour })
        })
    }
}

/// Neighbours by address.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Shards<N> {
    /// Number of entries. It is the first field, next to the fields that lookups in the direct table read.
    len: usize,
    hash: FixedState,
    /// A power of two of shards.
    shards: Box<[Arc<Shard<N>>]>,
}

impl<N: Clone> Shards<N> {
    /// Upper bound of entries' indices.
    pub(super) const NUMBERS: usize = 1 << 24;

    /// Creates an empty map for about `expected` entries; it accepts more. `seed` must be secret, so that
    /// nobody can predict which addresses collide.
    pub(super) fn new(seed: u64, expected: usize) -> Self {
        let count = expected.div_ceil(PER_SHARD).next_power_of_two();
        let empty = Arc::<Shard<N>>::default();
        Self { hash: FixedState::with_seed(seed), shards: vec![empty; count].into_boxed_slice(), len: 0 }
    }

    #[inline(always)]
    fn shard_of(&self, key: u32) -> usize {
        (self.hash.hash_one(key) >> SHARD_SHIFT) as usize & (self.shards.len() - 1)
    }

    #[inline(always)]
    pub(super) fn get(&self, key: u32) -> Option<(NeighbourIndex, &N)> {
        let mut shard = &**self.shards.get(self.shard_of(key))?;
        loop {
            let found = shard.find(key);
            if found != 0 {
                let at = found.trailing_zeros() as usize;
                // `None` if the shard is empty.
                return Some((shard.index(at)?, shard.neighbours.get(at)?.as_ref()?));
            }
            shard = shard.more.as_deref()?;
        }
    }

    /// Prefetches the row that shows whether there is an entry.
    #[inline(always)]
    pub(super) fn fetch_row(&self, key: u32) {
        if let Some(shard) = self.shards.get(self.shard_of(key)) {
            fetch(&**shard);
        }
    }

    /// Prefetches an entry. Call it a little after [`Shards::fetch_row`].
    #[inline(always)]
    pub(super) fn fetch_entry(&self, key: u32) {
        if let Some(shard) = self.shards.get(self.shard_of(key))
            && let Some(place) = shard.neighbours.get(shard.find(key).trailing_zeros() as usize)
        {
            fetch(place);
        }
    }

    /// Number of entries.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds or changes an entry.
    pub(super) fn set(&mut self, key: u32, index: NeighbourIndex, neighbour: N) {
        debug_assert!((index.0 as usize) < Self::NUMBERS);
        self.change(key, Some(Entry { key, index, neighbour }));
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: u32) {
        self.change(key, None);
    }

    /// Removes and returns all entries.
    pub(super) fn take(&mut self) -> Vec<(u32, NeighbourIndex, N)> {
        let all = |shard| std::iter::successors(Some(shard), |shard: &&Shard<N>| shard.more.as_deref());
        let shards = self.shards.iter().flat_map(|shard| all(&**shard));
        let entries =
            shards.flat_map(Shard::entries).map(|entry| (entry.key, entry.index, entry.neighbour)).collect();
        self.shards.fill(Arc::default());
        self.len = 0;
        entries
    }

    /// Replaces the key's shard by one with another entry for the key.
    fn change(&mut self, key: u32, next: Option<Entry<N>>) {
        let at = self.shard_of(key);
        let Some(place) = self.shards.get_mut(at) else { return };
        let all = std::iter::successors(Some(&**place), |shard| shard.more.as_deref());
        let mut entries: Vec<_> = all.flat_map(Shard::entries).collect();
        self.len -= entries.len();
        entries.retain(|entry| entry.key != key);
        entries.extend(next);
        self.len += entries.len();
        let mut more = None;
        // Split from the back, so that the first shard is full.
        while entries.len() > WIDTH {
            let last = entries.split_off((entries.len() - 1) / WIDTH * WIDTH);
            more = Some(Arc::new(Shard::of(last, more)));
        }
        *place = Arc::new(Shard::of(entries, more));
    }

    /// Number of shards that this map shares with another.
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
        assert_eq!(map.shards.len(), 1024);
        let before = map.clone();
        assert_eq!(map.shared_with(&before), 1024);
        map.set(17, NeighbourIndex(17), 18);
        assert_eq!(map.shared_with(&before), 1023);
        map.remove(17);
        assert_eq!(map.shared_with(&before), 1023);
        assert_eq!((before.get(17), map.get(17)), (Some((NeighbourIndex(17), &17)), None));
    }

    #[test]
    fn shards_stay_small_however_addresses_are_chosen() {
        let mut map = Shards::new(0x5eed, 4096);
        // Addresses that differ in few bits, as in a subnet, and addresses that differ only in high bits.
        for n in 0..2048u32 {
            map.set(0x0a4d_0000 + n, NeighbourIndex(n), ());
            map.set(n << 20 | 1, NeighbourIndex(n), ());
        }
        let long = map.shards.iter().filter(|shard| shard.more.is_some()).count();
        let longer = map.shards.iter().filter_map(|shard| shard.more.as_ref()?.more.as_ref()).count();
        assert!(long < map.shards.len() / 20 && longer == 0, "{long} and {longer} of {}", map.shards.len());
    }

    #[test]
    fn fields_read_first_are_on_one_cache_line() {
        type Hosts = Shard<[u8; 6]>;
        assert_eq!((align_of::<Hosts>(), std::mem::offset_of!(Hosts, neighbours)), (64, 64));
    }

    #[test]
    fn address_zero_and_large_indices_are_found() {
        let mut map = Shards::new(1, 4);
        assert_eq!(map.get(0), None);
        let last = NeighbourIndex(Shards::<u8>::NUMBERS as u32 - 1);
        map.set(5, last, 6_u8);
        assert_eq!((map.get(0), map.get(5)), (None, Some((last, &6))));
        map.set(0, NeighbourIndex(0x0001_0002), 7);
        map.remove(5);
        assert_eq!((map.get(0), map.get(5)), (Some((NeighbourIndex(0x0001_0002), &7)), None));
        map.remove(0);
        assert_eq!(map.get(0), None);
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u32..40, any::<Option<u8>>()), 0..200), expected in 0usize..24) {
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
            let all = |shard| std::iter::successors(Some(shard), |shard: &&Shard<_>| shard.more.as_deref());
            let entries = map.shards.iter().flat_map(|shard| all(&**shard)).flat_map(Shard::entries);
            prop_assert_eq!((entries.count(), map.len()), (model.len(), model.len()));
        }
    }
}
