//! Which addresses have been heard: where questions are scarce, who asks for one of them comes before who asks for addresses that perhaps
//! nobody has.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::FixedState;

/// Sets, and addresses that one of them holds.
const SETS: usize = 8192;
const WAYS: usize = 4;

/// Addresses that have been heard, as many as there is room for: the last ones of each set stay. Some addresses in a thousand million are taken
/// for others.
#[derive(Debug)]
pub struct Heard {
    sets: Vec<[u32; WAYS]>,
    hash: FixedState,
}

impl Heard {
    /// None yet; `seed` is drawn at start: the network must not know which addresses collide.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { sets: vec![[0; WAYS]; SETS], hash: FixedState::with_seed(seed) }
    }

    /// The address's set, and its mark in it.
    fn place(&self, ip: IpAddr) -> (usize, u32) {
        let hash = self.hash.hash_one(ip);
        (hash as usize % SETS, (hash >> 32) as u32 | 1)
    }

    /// An address was heard.
    pub fn note(&mut self, ip: IpAddr) {
        let (set, mark) = self.place(ip);
        let Some(set) = self.sets.get_mut(set) else { return };
        // The last one stands first; who was there already makes room for itself.
        let until = set.iter().position(|known| *known == mark).unwrap_or(WAYS - 1);
        if let Some(before) = set.get_mut(..=until) {
            before.rotate_right(1);
        }
        set[0] = mark;
    }

    /// True if it was.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        let (set, mark) = self.place(ip);
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
    fn what_was_heard_is_known_and_the_last_ones_stay() {
        let mut heard = Heard::new(7);
        assert!((0..10_000).all(|n| !heard.has(host(n))));
        (0..8192).for_each(|n| heard.note(host(n)));
        let known = (0..8192).filter(|n| heard.has(host(*n))).count();
        assert!(known > 8100, "{known}");
        assert!((8192..100_000).all(|n| !heard.has(host(n))));
        for n in 8192..200_000 {
            heard.note(host(n));
            heard.note(host(1));
            assert!(heard.has(host(n)) && heard.has(host(1)), "who speaks is not forgotten");
        }
        assert!((2..8192).filter(|n| heard.has(host(*n))).count() < 100);
    }
}
