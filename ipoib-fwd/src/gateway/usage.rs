//! Which neighbours a worker has sent to lately: one bit each, set by the worker, taken by the control lcore.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ib_wire::Qpn;

use crate::forward::{MAX_NEIGHBOURS, NeighbourIndex};

const WORDS: usize = MAX_NEIGHBOURS / 64;
/// Words of marks of queue pairs: one bit for each value of the lower 16 bits of a number.
const QP_WORDS: usize = 1 << 10;

/// Marks of one worker.
#[derive(Debug)]
pub(super) struct Usage {
    infiniband: [AtomicU64; WORDS],
    ethernet: [AtomicU64; WORDS],
    /// Two queue pairs may share a bit; then one keeps the other looking fresh.
    received: [AtomicU64; QP_WORDS],
    /// The period that the worker's storm guard counts for; the control lcore counts on.
    pub(super) period: AtomicU32,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            infiniband: std::array::from_fn(|_| AtomicU64::new(0)),
            ethernet: std::array::from_fn(|_| AtomicU64::new(0)),
            received: std::array::from_fn(|_| AtomicU64::new(0)),
            period: AtomicU32::new(0),
        }
    }
}

fn mark(words: &[AtomicU64], index: u16) -> bool {
    let (word, bit) = (usize::from(index) / 64, 1 << (index % 64));
    let Some(word) = words.get(word) else { return false };
    // Read first: a mark that stands costs no write.
    word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

fn take(words: &[AtomicU64], mut each: impl FnMut(NeighbourIndex)) {
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
        mark(&self.infiniband, index.0)
    }

    /// The worker sent to an Ethernet host.
    pub(super) fn mark_ethernet(&self, index: NeighbourIndex) {
        mark(&self.ethernet, index.0);
    }

    /// The worker received from a connection.
    pub(super) fn mark_received(&self, qpn: Qpn) {
        mark(&self.received, qpn.get() as u16);
    }

    /// Takes the marks of those queue pairs in `which` that have received.
    pub(super) fn take_received(&self, which: impl Iterator<Item = Qpn>) -> Vec<Qpn> {
        let words: Vec<u64> = self.received.iter().map(|w| w.swap(0, Ordering::Relaxed)).collect();
        let marked = |qpn: &Qpn| {
            let index = qpn.get() as u16;
            words.get(usize::from(index) / 64).is_some_and(|w| w & 1 << (index % 64) != 0)
        };
        which.filter(marked).collect()
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
        usage.mark_received(Qpn::new(0x12_3456));
        let both = [0x12_3456, 0x12_3457].map(Qpn::new);
        assert_eq!(usage.take_received(both.into_iter()), both[..1]);
        assert!(usage.take_received(both.into_iter()).is_empty());
    }
}
