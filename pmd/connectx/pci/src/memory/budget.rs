//! Limit of this process's own memory that the guest's objects may use: one record per contiguous range that
//! they name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Remaining ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    pub(super) fn new(pieces: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(pieces)) }
    }

    /// Number of remaining ranges.
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes `pieces` ranges, which return when the result is dropped. `None` if fewer remain.
    pub(super) fn take(&self, pieces: usize) -> Option<Taken> {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(pieces)).ok()?;
        Some(Taken { budget: self.clone(), pieces })
    }
}

/// Ranges held by an object.
#[derive(Debug)]
pub(super) struct Taken {
    budget: Budget,
    pieces: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.pieces, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_ranges_can_be_taken_again() {
        let budget = Budget::new(5);
        let first = budget.take(3);
        assert!(first.is_some() && budget.take(3).is_none());
        drop(first);
        assert!(budget.take(5).is_some());
    }
}
