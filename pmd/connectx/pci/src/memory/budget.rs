//! What objects of the guest may take of this process' own memory: a piece for each run of pages that they name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pieces that are left.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    pub(super) fn new(pieces: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(pieces)) }
    }

    /// How many are left.
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes pieces, until what is returned is dropped. `None` if there are not so many.
    pub(super) fn take(&self, pieces: usize) -> Option<Taken> {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(pieces)).ok()?;
        Some(Taken { budget: self.clone(), pieces })
    }
}

/// Pieces that an object has.
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
    fn what_is_dropped_can_be_taken_again() {
        let budget = Budget::new(5);
        let first = budget.take(3);
        assert!(first.is_some() && budget.take(3).is_none());
        drop(first);
        assert!(budget.take(5).is_some());
    }
}
