//! Hosts that have no place [near](super::near): a map that is cheap to copy with one of them changed, and to look into when it lies in no near cache.
//!
//! It is an array of pointers to shards of a few entries. A change makes one new shard, and a new array of pointers if somebody holds the
//! old one; all other shards are shared. A lookup takes one hash, which chooses the shard.
//!
//! A shard begins with a cache line of its own, which has the keys and numbers of all its entries: what is not there is known by that line, and what
//! is there is on one line more. All keys are compared at once, since branches on the keys of thousands of hosts are guessed wrong. Shards of
//! more than eight entries are rare, and go on in another one.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use pmd::compare::equal;
use pmd::fetch::fetch;

use super::NeighbourIndex;

/// Entries of a shard.
const WIDTH: usize = 8;
/// Entries that it has if the map holds as many as are expected.
const PER_SHARD: usize = 4;
/// Bits of a hash that choose the shard.
const SHARD_SHIFT: u32 = 32;

#[derive(Clone, Debug)]
struct Entry<N> {
    key: u32,
    index: NeighbourIndex,
    neighbour: N,
}

/// Entries stand from the front, with no gap.
#[derive(Debug)]
#[repr(C, align(64))]
struct Shard<N> {
    /// Behind the last one, the first one again: whoever finds a key there has found it before.
    keys: [u32; WIDTH],
    /// The numbers, in 24 bits: they fill up the line.
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

    /// A bit for each place with this key; the lowest one counts.
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
    /// Entries. First, beside what is asked of near hosts.
    len: usize,
    hash: FixedState,
    /// A power of two of them.
    shards: Box<[Arc<Shard<N>>]>,
}

impl<N: Clone> Shards<N> {
    /// Most numbers that entries have.
    pub(super) const NUMBERS: usize = 1 << 24;

    /// An empty map for about `expected` entries; it takes more. `seed`: which addresses collide, nobody may know.
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
                // None, if the shard is empty.
                return Some((shard.index(at)?, shard.neighbours.get(at)?.as_ref()?));
            }
            shard = shard.more.as_deref()?;
        }
    }

    /// Has the processor fetch what tells whether there is an entry.
    #[inline(always)]
    pub(super) fn fetch_row(&self, key: u32) {
        if let Some(shard) = self.shards.get(self.shard_of(key)) {
            fetch(&**shard);
        }
    }

    /// Has it fetch an entry; a little after [`Shards::fetch_row`].
    #[inline(always)]
    pub(super) fn fetch_entry(&self, key: u32) {
        if let Some(shard) = self.shards.get(self.shard_of(key))
            && let Some(place) = shard.neighbours.get(shard.find(key).trailing_zeros() as usize)
        {
            fetch(place);
        }
    }

    /// Entries.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds or changes an entry.
    pub(super) fn set(&mut self, key: u32, index: NeighbourIndex, neighbour: N) {
        debug_assert!((index.0 as usize) < Self::NUMBERS);
        self.change(key, Some(Entry { key, index, neighbour }));
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, key: u32) {
        self.change(key, None);
    }

    /// Takes all entries out.
    pub(super) fn take(&mut self) -> Vec<(u32, NeighbourIndex, N)> {
        let all = |shard| std::iter::successors(Some(shard), |shard: &&Shard<N>| shard.more.as_deref());
        let shards = self.shards.iter().flat_map(|shard| all(&**shard));
        let entries =
            shards.flat_map(Shard::entries).map(|entry| (entry.key, entry.index, entry.neighbour)).collect();
        self.shards.fill(Arc::default());
        self.len = 0;
        entries
    }

    /// Makes the key's shard anew with another entry for it.
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
        // From the back.
        while entries.len() > WIDTH {
            let last = entries.split_off((entries.len() - 1) / WIDTH * WIDTH);
            more = Some(Arc::new(Shard::of(last, more)));
        }
        *place = Arc::new(Shard::of(entries, more));
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
        // Addresses that differ in few bits, as a subnet's do, and in high ones only.
        for n in 0..2048u32 {
            map.set(0x0a4d_0000 + n, NeighbourIndex(n), ());
            map.set(n << 20 | 1, NeighbourIndex(n), ());
        }
        let long = map.shards.iter().filter(|shard| shard.more.is_some()).count();
        let longer = map.shards.iter().filter_map(|shard| shard.more.as_ref()?.more.as_ref()).count();
        assert!(long < map.shards.len() / 20 && longer == 0, "{long} and {longer} of {}", map.shards.len());
    }

    #[test]
    fn what_a_lookup_asks_first_is_on_one_cache_line() {
        type Hosts = Shard<[u8; 6]>;
        assert_eq!((align_of::<Hosts>(), std::mem::offset_of!(Hosts, neighbours)), (64, 64));
    }

    #[test]
    fn an_address_of_zeros_and_large_numbers_are_as_others() {
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
