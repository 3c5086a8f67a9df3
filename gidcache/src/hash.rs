//! Where the search for a GID begins: a hash under a secret key.
//!
//! Whoever announces prefixes on a network, or gives out addresses, chooses GIDs, and could otherwise choose them to lie in a row.
//! The two products are a strongly universal hash of the GID's four 32-bit parts (Lemire and Kaser, "Strongly universal string
//! hashing is fast", Multilinear-HM): two GIDs that were chosen without the key begin at the same place as seldom as two random ones. What
//! follows leaves no arithmetic progressions, which linear probing would take ill.
//!
//! The key of a table that is shared stands in its file, so that processes agree on it: secret it is to networks, not to users of this machine who
//! may read the table. One who knows it makes searches as long as the table has such GIDs, and no answer wrong.

/// The key, drawn out of one secret word.
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

    /// One of `rows` rows.
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

/// The next number of a sequence (Steele, Lea and Flood, SplitMix).
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

    /// Rows that the longest search looks at, when the GIDs are put in one after the other.
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

    /// What those would announce who want searches to be long, and do not know the key: steps of powers of two and of numbers that
    /// multiplicative hashes are weak with, in either half.
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
        assert!(worst.0 <= 32 && worst.1 <= 32, "rows looked at: random {}, chosen {}", worst.0, worst.1);
    }

    /// Without the key there is nothing to know: another key has another order.
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
