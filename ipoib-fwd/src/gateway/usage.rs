//! Which neighbours a worker has sent to lately: one bit each, set by the worker, taken by the control lcore.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::forward::{MAX_NEIGHBOURS, NeighbourIndex};

const WORDS: usize = MAX_NEIGHBOURS / 64;

/// Marks of one worker.
#[derive(Debug)]
pub(super) struct Usage {
    infiniband: [AtomicU64; WORDS],
    ethernet: [AtomicU64; WORDS],
}

impl Default for Usage {
    fn default() -> Self {
        let none = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { infiniband: none(), ethernet: none() }
    }
}

fn mark(words: &[AtomicU64; WORDS], index: NeighbourIndex) -> bool {
    let (word, bit) = (usize::from(index.0) / 64, 1 << (index.0 % 64));
    let Some(word) = words.get(word) else { return false };
    // Read first: a mark that stands costs no write.
    word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

fn take(words: &[AtomicU64; WORDS], mut each: impl FnMut(NeighbourIndex)) {
    for (n, word) in words.iter().enumerate() {
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            each(NeighbourIndex((n * 64) as u16 + bits.trailing_zeros() as u16));
            bits &= bits - 1;
        }
    }
}

impl Usage {
    /// The worker sent to an InfiniBand host; true for the first time since the marks were taken.
    pub(super) fn mark_infiniband(&self, index: NeighbourIndex) -> bool {
        mark(&self.infiniband, index)
    }

    /// The worker sent to an Ethernet host.
    pub(super) fn mark_ethernet(&self, index: NeighbourIndex) {
        mark(&self.ethernet, index);
    }

    /// Takes the marks of InfiniBand hosts.
    pub(super) fn take_infiniband(&self, each: impl FnMut(NeighbourIndex)) {
        take(&self.infiniband, each);
    }

    /// Takes the marks of Ethernet hosts.
    pub(super) fn take_ethernet(&self, each: impl FnMut(NeighbourIndex)) {
        take(&self.ethernet, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_once() {
        let usage = Usage::default();
        let marks = [0, 63, 64, 4095].map(NeighbourIndex);
        assert!(marks.iter().all(|&m| usage.mark_infiniband(m)));
        assert!(!usage.mark_infiniband(NeighbourIndex(64)), "marked already");
        let mut taken = Vec::new();
        usage.take_infiniband(|m| taken.push(m));
        assert_eq!(taken, marks);
        usage.take_infiniband(|_| panic!("taken twice"));
        assert!(usage.mark_infiniband(NeighbourIndex(64)));
    }
}
