//! Pseudo-random numbers for PSNs and jitter, from a seed. Not for secrets.

use std::time::Duration;

use ib_wire::Psn;

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) const fn psn(&mut self) -> Psn {
        Psn::new(self.next() as u32)
    }

    /// A duration between the two.
    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_micros().max(1) as u64;
        least + Duration::from_micros(self.next() % span)
    }

    /// `base` doubled `failures` times, at most `cap`; then reduced at random by up to a quarter.
    pub(super) fn backoff(&mut self, base: Duration, failures: u32, cap: Duration) -> Duration {
        let whole = base.saturating_mul(1u32 << failures.min(16)).min(cap);
        let quarter = (whole / 4).as_micros().max(1) as u64;
        whole - Duration::from_micros(self.next() % quarter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap() {
        let mut random = Random::new(7);
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(16));
        for failures in 0..40 {
            let whole = Duration::from_millis(100 << failures.min(16)).min(cap);
            let delay = random.backoff(base, failures, cap);
            assert!(delay <= whole && delay >= whole * 3 / 4, "{failures}: {delay:?}");
        }
    }
}
