//! Pool of free keys by size, for short-term use.

use std::time::{Duration, Instant};

use super::FreeKey;

/// Number of size classes. A key of class `n` has room for `4 << n` pieces.
const CLASSES: usize = 12;
/// Number of pieces of the smallest class.
const SMALLEST: u32 = 4;

/// Settings of a key pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPoolConfig {
    /// Maximum number of keys, both in use and free.
    pub most: usize,
    /// Minimum idle time after which a key should be returned to the device. The actual time is at most twice
    /// as long.
    pub idle: Duration,
}

impl Default for KeyPoolConfig {
    fn default() -> Self {
        Self { most: 1024, idle: Duration::from_secs(60) }
    }
}

/// Statistics of a key pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeyPoolStatistics {
    /// Keys in use.
    pub in_use: usize,
    /// Maximum number of keys in use at once.
    pub most_in_use: usize,
    /// Free keys.
    pub idle: usize,
    /// Number of successful requests for a key.
    pub taken: u64,
    /// Number of requests without a free key.
    pub missed: u64,
    /// Number of keys returned to the device because they were idle.
    pub aged: u64,
}

#[derive(Debug, Default)]
struct Class {
    /// Keys used since the last check, most recent last.
    active: Vec<FreeKey>,
    /// Keys not used since.
    inactive: Vec<FreeKey>,
}

/// Free keys by size. The most recently returned key is used first: its entry is likeliest in the device's
/// cache.
///
/// The pool does not create keys, which takes a device command. If a key is missing, the caller requests one
/// from the control lcore.
#[derive(Debug)]
pub struct KeyPool {
    classes: [Class; CLASSES],
    config: KeyPoolConfig,
    statistics: KeyPoolStatistics,
    looked: Option<Instant>,
}

/// Returns the smallest class with room for `pieces` pieces.
fn class_of(pieces: u32) -> Option<usize> {
    let class = pieces.div_ceil(SMALLEST).max(1).checked_next_power_of_two()?.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

impl KeyPool {
    /// Creates an empty pool.
    #[must_use]
    pub fn new(config: KeyPoolConfig) -> Self {
        let room =
            || Class { active: Vec::with_capacity(config.most), inactive: Vec::with_capacity(config.most) };
        Self {
            classes: std::array::from_fn(|_| room()),
            config,
            statistics: KeyPoolStatistics::default(),
            looked: None,
        }
    }

    /// Returns the size of a key to create for `pieces` pieces, or `None` if no class is large enough.
    #[must_use]
    pub fn size_for(pieces: u32) -> Option<u32> {
        class_of(pieces).map(|class| SMALLEST << class)
    }

    /// True if another key may be created.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.statistics.in_use + self.statistics.idle < self.config.most
    }

    /// Adds a newly created key. A full pool, or one without a matching class, returns it.
    pub fn add(&mut self, key: FreeKey) -> Result<(), FreeKey> {
        let class = Self::class_with(&key).filter(|_| self.has_room());
        let Some(class) = class.and_then(|class| self.classes.get_mut(class)) else { return Err(key) };
        class.active.push(key);
        self.statistics.idle += 1;
        Ok(())
    }

    /// Takes a key from the smallest class with room for `pieces` pieces, or from the next one. Returns
    /// `None` if both are empty.
    pub fn take(&mut self, pieces: u32) -> Option<FreeKey> {
        let first = class_of(pieces)?;
        let near = self.classes.iter_mut().skip(first).take(2);
        let Some(key) = near.filter_map(|class| class.active.pop().or_else(|| class.inactive.pop())).next()
        else {
            self.statistics.missed += 1;
            return None;
        };
        let s = &mut self.statistics;
        s.taken += 1;
        s.idle -= 1;
        s.in_use += 1;
        s.most_in_use = s.most_in_use.max(s.in_use);
        Some(key)
    }

    /// Returns a taken key to the pool. A key of another pool is handed back.
    pub fn put(&mut self, key: FreeKey) -> Result<(), FreeKey> {
        let class = Self::class_with(&key).filter(|_| self.statistics.in_use > 0);
        let Some(class) = class.and_then(|class| self.classes.get_mut(class)) else { return Err(key) };
        class.active.push(key);
        self.statistics.in_use -= 1;
        self.statistics.idle += 1;
        Ok(())
    }

    /// Records that a taken key will not be returned.
    pub const fn forget(&mut self) {
        self.statistics.in_use = self.statistics.in_use.saturating_sub(1);
    }

    /// Passes each key that was idle for [`KeyPoolConfig::idle`] to `expired`.
    pub fn age(&mut self, now: Instant, mut expired: impl FnMut(FreeKey)) {
        let since = *self.looked.get_or_insert(now);
        if now.saturating_duration_since(since) < self.config.idle {
            return;
        }
        self.looked = Some(now);
        for class in &mut self.classes {
            for key in class.inactive.drain(..) {
                self.statistics.idle -= 1;
                self.statistics.aged += 1;
                expired(key);
            }
            std::mem::swap(&mut class.active, &mut class.inactive);
        }
    }

    /// Returns the statistics.
    #[must_use]
    pub const fn statistics(&self) -> KeyPoolStatistics {
        self.statistics
    }

    /// Returns the largest class that the key has room for.
    fn class_with(key: &FreeKey) -> Option<usize> {
        let fours = key.pieces() / SMALLEST;
        Some((fours.checked_ilog2()? as usize).min(CLASSES - 1))
    }
}

#[cfg(test)]
mod tests {
    use ::hca::MemoryKey;
    use proptest::prelude::*;

    use super::*;

    fn key(index: u32, pieces: u32) -> FreeKey {
        FreeKey::new(MemoryKey::new(index << 8), pieces)
    }

    fn pool(most: usize) -> KeyPool {
        KeyPool::new(KeyPoolConfig { most, idle: Duration::from_secs(60) })
    }

    #[test]
    fn the_last_one_back_is_the_first_one_out() {
        let mut pool = pool(4);
        for n in 1..=3 {
            pool.add(key(n, 16)).unwrap();
        }
        let (a, b) = (pool.take(16).unwrap(), pool.take(9).unwrap());
        assert_eq!((a.key().index(), b.key().index()), (3, 2));
        pool.put(a).unwrap();
        assert_eq!(pool.take(16).unwrap().key().index(), 3);
    }

    #[test]
    fn a_key_serves_up_to_half_its_size() {
        let mut pool = pool(4);
        pool.add(key(1, 64)).unwrap();
        assert_eq!(pool.take(16), None, "a quarter of its size");
        assert_eq!(pool.take(65), None);
        assert!(pool.take(17).is_some());
        assert_eq!((pool.statistics().taken, pool.statistics().missed), (1, 2));
        assert_eq!(
            (KeyPool::size_for(0), KeyPool::size_for(17), KeyPool::size_for(8192)),
            (Some(4), Some(32), Some(8192))
        );
        assert_eq!((KeyPool::size_for(8193), KeyPool::size_for(u32::MAX)), (None, None));
    }

    #[test]
    fn there_are_no_more_than_its_bound() {
        let mut pool = pool(2);
        pool.add(key(1, 4)).unwrap();
        pool.add(key(2, 4)).unwrap();
        assert_eq!(pool.add(key(3, 4)).unwrap_err().key().index(), 3);
        let taken = pool.take(4).unwrap();
        assert!(!pool.has_room(), "one in use counts");
        // The key was lost with its connection.
        let _lost = taken;
        pool.forget();
        assert!(pool.has_room());
        // A key that was never taken cannot be returned.
        assert!(pool.put(key(9, 4)).is_err());
        assert!(pool.add(key(9, 3)).is_err(), "no class is that small");
    }

    #[test]
    fn what_is_not_used_goes_and_what_is_stays() {
        let mut pool = pool(8);
        let start = Instant::now();
        for n in 1..=4 {
            pool.add(key(n, 4)).unwrap();
        }
        let mut gone = Vec::new();
        for minute in 0..=3 {
            let used = pool.take(4).unwrap();
            pool.age(start + Duration::from_secs(60 * minute), |key| gone.push(key.key().index()));
            pool.put(used).unwrap();
        }
        gone.sort_unstable();
        assert_eq!(gone, [1, 2, 3]);
        assert_eq!((pool.statistics().idle, pool.statistics().aged, pool.statistics().in_use), (1, 3, 0));
    }

    proptest! {
        /// No key is duplicated or lost, and the statistics are correct, for any sequence of calls.
        #[test]
        fn every_key_has_one_owner(steps in prop::collection::vec((0..4_u8, 1..200_u32), 1..200)) {
            let mut pool = pool(16);
            let (mut held, mut made, mut gone, mut now) = (Vec::new(), 0_u32, 0, Instant::now());
            for (what, pieces) in steps {
                match what {
                    0 => {
                        let size = KeyPool::size_for(pieces).unwrap();
                        match pool.add(key(made, size)) {
                            Ok(()) => made += 1,
                            Err(_) => prop_assert!(!pool.has_room()),
                        }
                    }
                    1 => held.extend(pool.take(pieces).inspect(|key| assert!(key.pieces() >= pieces))),
                    2 => if let Some(key) = held.pop() { pool.put(key).unwrap() },
                    _ => {
                        now += Duration::from_secs(u64::from(pieces));
                        pool.age(now, |_| gone += 1);
                    }
                }
                let mut numbers: Vec<_> = held.iter().map(|key: &FreeKey| key.key().index()).collect();
                numbers.sort_unstable();
                numbers.dedup();
                prop_assert_eq!(numbers.len(), held.len());
                let s = pool.statistics();
                prop_assert_eq!((s.in_use, s.idle), (held.len(), made as usize - held.len() - gone));
                prop_assert!(s.in_use + s.idle <= 16);
            }
        }
    }
}
