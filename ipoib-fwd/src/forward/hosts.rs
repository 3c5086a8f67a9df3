//! Hosts of one side of a segment by IPv4 address. Hosts of its subnet are in a [directly indexed
//! table](super::near). The others are in a [hash map](super::shards): hosts of other subnets and hosts for
//! which the table has no page left.

use std::ops::Range;

use super::NeighbourIndex;
use super::near::Near;
use super::shards::Shards;

/// Hosts by address. The fields that the fast path reads are on the first cache line. With many segments in a
/// burst, they then stay in the near caches.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Hosts<N> {
    near: Near<N>,
    far: Shards<N>,
    /// Number of entries of the hash map whose address is in the directly indexed range. Usually this is 0,
    /// and addresses of that range are not searched in the hash map.
    strays: usize,
    addresses: Range<u64>,
    expected: usize,
}

impl<N: Clone> Hosts<N> {
    /// Upper bound of hosts' indices.
    pub(super) const NUMBERS: usize = Shards::<N>::NUMBERS;

    /// Creates a map for about `expected` hosts; it accepts more. `seed` must be secret, so that nobody can
    /// predict which addresses collide.
    pub(super) fn new(seed: u64, expected: usize) -> Self {
        let addresses = 0..0;
        Self {
            near: Near::new(&addresses, expected),
            far: Shards::new(seed, expected),
            strays: 0,
            addresses,
            expected,
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, key: u32) -> Option<(NeighbourIndex, &N)> {
        let near = self.near.get(key);
        if near.is_some() || !self.may_be_far(key) {
            return near;
        }
        self.get_far(key)
    }

    /// False if a host that is not in the direct table is not in the map at all.
    #[inline(always)]
    const fn may_be_far(&self, key: u32) -> bool {
        self.far.len() != 0 && (self.strays != 0 || !self.near.covers(key))
    }

    #[inline(never)]
    fn get_far(&self, key: u32) -> Option<(NeighbourIndex, &N)> {
        self.far.get(key)
    }

    #[inline(always)]
    pub(super) fn has(&self, key: u32) -> bool {
        self.near.has(key) || (self.may_be_far(key) && self.get_far(key).is_some())
    }

    /// Prefetches the row that shows whether there is a host.
    #[inline(always)]
    pub(super) fn fetch_row(&self, key: u32) {
        self.near.fetch_row(key);
        if self.may_be_far(key) {
            self.far.fetch_row(key);
        }
    }

    /// Prefetches the row and the host. Returns false if the caller must call [`Hosts::fetch_far`] a little
    /// later.
    #[inline(always)]
    pub(super) fn fetch(&self, key: u32) -> bool {
        self.near.fetch(key);
        let far = self.may_be_far(key);
        if far {
            self.far.fetch_row(key);
        }
        !far
    }

    pub(super) fn fetch_far(&self, key: u32) {
        self.far.fetch_entry(key);
    }

    /// Number of hosts.
    pub(super) const fn len(&self) -> usize {
        self.near.len() + self.far.len()
    }

    /// Number of hosts in the hash map.
    pub(super) const fn far(&self) -> usize {
        self.far.len()
    }

    /// Adds or changes a host. `addresses` is the segment's subnet; all hosts move if it differs from the
    /// last call.
    pub(super) fn set(&mut self, addresses: Range<u64>, key: u32, index: NeighbourIndex, host: N) {
        if self.addresses != addresses {
            self.move_to(addresses);
        }
        self.put(key, index, host);
    }

    fn put(&mut self, key: u32, index: NeighbourIndex, host: N) {
        // A host of the hash map may have a slot in the direct table now.
        if self.near.set(key, index, host.clone()) {
            self.remove_far(key);
            return;
        }
        let before = self.far.len();
        self.far.set(key, index, host);
        if self.near.covers(key) {
            self.strays += self.far.len() - before;
        }
    }

    fn remove_far(&mut self, key: u32) {
        let before = self.far.len();
        if before == 0 {
            return;
        }
        self.far.remove(key);
        if self.near.covers(key) {
            self.strays -= before - self.far.len();
        }
    }

    fn move_to(&mut self, addresses: Range<u64>) {
        let near = std::mem::replace(&mut self.near, Near::new(&addresses, self.expected));
        let far = self.far.take();
        self.strays = 0;
        self.addresses = addresses;
        for (key, index, host) in far {
            self.put(key, index, host);
        }
        for (key, index, host) in near.iter() {
            self.put(key, index, host.clone());
        }
    }

    /// Removes a host.
    pub(super) fn remove(&mut self, key: u32) {
        if !self.near.remove(key) {
            self.remove_far(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_of_the_fast_path_are_on_one_cache_line() {
        type Map = Hosts<[u8; 6]>;
        assert_eq!((align_of::<Map>(), std::mem::offset_of!(Map, far)), (64, 56));
    }

    fn addresses() -> impl Strategy<Value = Range<u64>> {
        prop_oneof![
            Just(0..0),
            Just(8..24),
            Just(0x0a00_0000..0x0b00_0000),
            Just(0..1 << 32),
            Just(0x0a00_0004..0x0a01_0000)
        ]
    }

    fn key() -> impl Strategy<Value = u32> {
        prop_oneof![
            0u32..40,
            0x0a00_0000u32..0x0a00_0040,
            (0u32..64).prop_map(|n| 0x0a00_0000 + n * 4096),
            Just(u32::MAX)
        ]
    }

    proptest! {
        /// The map equals a model, whatever subnets come and go and however few pages there are.
        #[test]
        fn lookups_equal_those_of_a_model(
            steps in prop::collection::vec((addresses(), key(), any::<Option<u8>>()), 0..200),
            stays in any::<bool>(),
            lookups in prop::collection::vec(key(), 20),
        ) {
            let (mut map, mut model) = (Hosts::new(3, 24), BTreeMap::new());
            for (n, (addresses, key, value)) in steps.into_iter().enumerate() {
                let addresses = if stays { 0x0a00_0000..0x0b00_0000 } else { addresses };
                match value {
                    Some(value) => {
                        map.set(addresses, key, NeighbourIndex(n as u32), value);
                        model.insert(key, (NeighbourIndex(n as u32), value));
                    }
                    None => {
                        map.remove(key);
                        model.remove(&key);
                    }
                }
                for key in lookups.iter().chain(model.keys()) {
                    let found = map.get(*key).map(|(index, value)| (index, *value));
                    prop_assert_eq!(found, model.get(key).copied());
                    prop_assert_eq!(map.has(*key), found.is_some());
                }
                prop_assert_eq!(map.len(), model.len());
                let strays = model.keys().filter(|key| map.near.covers(**key) && !map.near.has(**key)).count();
                prop_assert_eq!(map.strays, strays);
            }
        }
    }
}
