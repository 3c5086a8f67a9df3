//! A filter of addresses that have been heard.
//!
//! When queries are scarce, those for a heard address take precedence over those for addresses that may not
//! exist.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::FixedState;

/// Number of sets, and of addresses in each.
const SETS: usize = 8192;
const WAYS: usize = 4;

/// Addresses that have been heard, as far as there is room: each set keeps the most recent ones. A false
/// positive has a probability of a few in a thousand million.
#[derive(Debug)]
pub struct Heard {
    sets: Vec<[u32; WAYS]>,
    hash: FixedState,
}

impl Heard {
    /// An empty filter; `seed` is random: the network must not know which addresses collide.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { sets: vec![[0; WAYS]; SETS], hash: FixedState::with_seed(seed) }
    }

    /// The address's set, and its mark in that.
    fn set_and_mark(&self, ip: IpAddr) -> (usize, u32) {
        let hash = self.hash.hash_one(ip);
        (hash as usize % SETS, (hash >> 32) as u32 | 1)
    }

    /// Records that an address was heard.
    pub fn note(&mut self, ip: IpAddr) {
        let (set, mark) = self.set_and_mark(ip);
        let Some(set) = self.sets.get_mut(set) else { return };
        // The most recent mark is first; a mark that is already in the set moves to the front.
        let until = set.iter().position(|known| *known == mark).unwrap_or(WAYS - 1);
        if let Some(before) = set.get_mut(..=until) {
            before.rotate_right(1);
        }
        set[0] = mark;
    }

    /// True if the address was heard.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        let (set, mark) = self.set_and_mark(ip);
        self.sets.get(set).is_some_and(|set| set.contains(&mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn heard_addresses_are_known_and_the_most_recent_ones_stay() {
        let mut heard = Heard::new(7);
        assert!((0..10_000).all(|n| !heard.has(host(n))));
        (0..8192).for_each(|n| heard.note(host(n)));
        let known = (0..8192).filter(|n| heard.has(host(*n))).count();
        assert!(known > 8100, "{known}");
        assert!((8192..100_000).all(|n| !heard.has(host(n))));
        for n in 8192..200_000 {
            heard.note(host(n));
            heard.note(host(1));
            assert!(heard.has(host(n)) && heard.has(host(1)), "an address that is heard often stays");
        }
        assert!((2..8192).filter(|n| heard.has(host(*n))).count() < 100);
    }
}
