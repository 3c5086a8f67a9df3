//! Pseudorandom numbers that differ from run to run, or are repeatable, depending on the owner's seed.

use std::hash::{DefaultHasher, Hasher as _};

/// SplitMix64: suitable for identifiers that must not repeat after a restart, but not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) const fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
}

/// Number of rounds of [`Identifiers`]: eight, where four already make a pseudorandom permutation (Luby and
/// Rackoff).
const ROUNDS: u8 = 8;

/// Purpose of a secret from [`Identifiers::derive`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Label {
    /// The upper half of connection management's transaction IDs.
    Connections,
    /// Transaction IDs of subnet administration.
    Administration,
}

/// Identifiers that cannot be predicted from one another.
///
/// They are a counter encrypted by a Feistel network, whose round function is SipHash with a secret key. Each
/// of the 2^32 values occurs once before any repeats.
#[derive(Clone, Debug)]
pub(crate) struct Identifiers {
    key: [u64; 2],
    counter: u32,
}

impl Identifiers {
    pub(crate) const fn new(random: &mut Random) -> Self {
        Self { key: [random.next_u64(), random.next_u64()], counter: random.next_u32() }
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.counter = self.counter.wrapping_add(1);
        let (mut left, mut right) = ((self.counter >> 16) as u16, self.counter as u16);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.round(round, right));
        }
        u32::from(left) << 16 | u32::from(right)
    }

    /// Derives another secret from the same key. Neither the identifiers nor the other secrets disclose it.
    pub(crate) fn derive(&self, label: Label) -> u64 {
        self.hash(ROUNDS + label as u8, 0)
    }

    fn round(&self, round: u8, half: u16) -> u16 {
        self.hash(round, half) as u16
    }

    fn hash(&self, round: u8, half: u16) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.key.iter().for_each(|word| hasher.write_u64(*word));
        hasher.write_u8(round);
        hasher.write_u16(half);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_is_derived_is_none_of_the_outputs_that_the_key_is_made_of() {
        let identifiers = Identifiers::new(&mut Random::new(3));
        let derived = [Label::Connections, Label::Administration].map(|label| identifiers.derive(label));
        assert_ne!(derived[0], derived[1]);
        let mut random = Random::new(3);
        let outputs: Vec<u64> = (0..16).map(|_| random.next_u64()).collect();
        for derived in derived {
            assert!(outputs.iter().all(|output| *output != derived && output >> 32 != derived >> 32));
        }
        assert_eq!(Identifiers::new(&mut Random::new(3)).derive(Label::Connections), derived[0]);
    }

    #[test]
    fn identifiers_do_not_repeat_and_have_no_common_difference() {
        let mut identifiers = Identifiers::new(&mut Random::new(3));
        let ids: Vec<u32> = (0..100_000).map(|_| identifiers.next()).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        let differences: HashSet<u32> = ids.windows(2).map(|pair| pair[0] ^ pair[1]).collect();
        // With random numbers, about one pair in 43,000 has the same difference as another pair.
        assert!(differences.len() > 99_900, "{}", differences.len());
        let again: Vec<u32> = {
            let mut same = Identifiers::new(&mut Random::new(3));
            (0..100).map(|_| same.next()).collect()
        };
        assert_eq!(again, ids[..100], "a seed gives the same run");
        assert_ne!(Identifiers::new(&mut Random::new(4)).next(), ids[0]);
    }
}
