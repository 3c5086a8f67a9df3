//! Keyed hash of GIDs for the index.
//!
//! Hosts that announce prefixes or assign addresses choose GIDs. Without a secret key they could choose GIDs
//! that collide. The two products are a strongly universal hash of the GID's four 32-bit parts (Lemire and
//! Kaser, "Strongly universal string hashing is fast", Multilinear-HM). GIDs chosen without the key collide
//! as rarely as random ones. The final steps break up arithmetic progressions, which are bad for linear
//! probing.
//!
//! The key of a shared table is stored in its file, so that all processes use the same one. It is secret from
//! the network, but not from local users who may read the table. A user with the key can make searches as
//! long as the table has such GIDs, but cannot make a result wrong.

/// The key, derived from one secret word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashKey {
    parts: [u64; 4],
    sum: u64,
    factor: u64,
}

impl HashKey {
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut draw = || splitmix(&mut state);
        Self { parts: [draw(), draw(), draw(), draw()], sum: draw(), factor: draw() | 1 }
    }

    /// Returns one of `rows` rows.
    #[inline]
    pub(crate) const fn home(&self, (first, second): (u64, u64), rows: usize) -> usize {
        const LOW: u64 = 0xffff_ffff;
        let [a, b, c, d] = self.parts;
        let one = a.wrapping_add(first >> 32).wrapping_mul(b.wrapping_add(first & LOW));
        let two = c.wrapping_add(second >> 32).wrapping_mul(d.wrapping_add(second & LOW));
        let sum = one.wrapping_add(two).wrapping_add(self.sum);
        let spread = (sum ^ (sum >> 32)).wrapping_mul(self.factor);
        ((spread as u128 * rows as u128) >> 64) as usize
    }
}

/// Returns the next number of a sequence (Steele, Lea and Flood, SplitMix).
const fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::BTreeSet;

    use ib_wire::{Gid, Guid};

    use super::*;
    use crate::layout::halves;

    const GIDS: usize = 4096;
    const ROWS: usize = 4 * GIDS;

    /// Returns the number of rows in the longest search after inserting the GIDs in order.
    fn longest(key: HashKey, gids: &BTreeSet<Gid>) -> usize {
        let mut taken = vec![false; ROWS];
        let mut longest = 0;
        for gid in gids {
            let mut at = key.home(halves(*gid), ROWS);
            let mut probes = 1;
            while taken[at] {
                at = (at + 1) % ROWS;
                probes += 1;
            }
            taken[at] = true;
            longest = longest.max(probes);
        }
        longest
    }

    /// GIDs of an attacker without the key: steps of powers of two, and of numbers that are weak points of
    /// multiplicative hashes, in either half.
    #[test]
    fn chosen_gids_lie_no_closer_than_random_ones() {
        let mut steps: Vec<u64> = (0..53).step_by(4).map(|power| 1 << power).collect();
        steps.extend([
            3,
            0xffff_ffff,
            0x1_0000_0001,
            0x9e37_79b9_7f4a_7c15,
            0xbf58_476d_1ce4_e5b9,
            u64::MAX / 3,
        ]);
        let mut random = 1;
        let at_random =
            (0..GIDS).map(|_| Gid::new(splitmix(&mut random), Guid(splitmix(&mut random)))).collect();
        let mut worst = (0, 0);
        for seed in 0..12 {
            let key = HashKey::new(seed);
            worst.0 = worst.0.max(longest(key, &at_random));
            for step in &steps {
                let number = |n: usize| step.wrapping_mul(n as u64);
                let prefixes = (0..GIDS).map(|n| Gid::new((0xfd00 << 48) ^ number(n), Guid(7))).collect();
                let ids = (0..GIDS).map(|n| Gid::new(0xfe80 << 48, Guid(number(n)))).collect();
                let both = (0..GIDS).map(|n| Gid::new(number(n), Guid(number(n)))).collect();
                for gids in [prefixes, ids, both] {
                    worst.1 = worst.1.max(longest(key, &gids));
                }
            }
        }
        assert!(worst.0 <= 32 && worst.1 <= 32, "rows searched: random {}, chosen {}", worst.0, worst.1);
    }

    /// Different keys result in different orders.
    #[test]
    fn keys_differ() {
        let homes = |seed| {
            let key = HashKey::new(seed);
            (0..64).map(|n| key.home((1, n), ROWS)).collect::<Vec<_>>()
        };
        assert_ne!(homes(1), homes(2));
        assert!(homes(1).iter().all(|home| *home < ROWS));
        assert_eq!(HashKey::new(1).home((1, 1), 1), 0);
    }
}
