//! Counters with one writer and any number of readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The writer's end: one worker's block of `N` counters. An addition is a plain load and store; nothing is locked.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    cells: Arc<Block<N>>,
}

/// A reader's end.
#[derive(Debug)]
pub struct CounterReader<const N: usize> {
    cells: Arc<Block<N>>,
}

/// The cells, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
struct Block<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self { cells: Arc::new(Block(std::array::from_fn(|_| AtomicU64::new(0)))) }
    }
}

impl<const N: usize> Counters<N> {
    /// Adds `n` to counter `index`; an index outside of the block is ignored.
    pub fn add(&mut self, index: usize, n: u64) {
        if let Some(cell) = self.cells.0.get(index) {
            // `&mut self` makes this thread the only writer, so a plain load and store lose nothing.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// Another reader.
    #[must_use]
    pub fn reader(&self) -> CounterReader<N> {
        CounterReader { cells: Arc::clone(&self.cells) }
    }
}

impl<const N: usize> CounterReader<N> {
    /// The values at this moment; each is exact, together they are no snapshot.
    #[must_use]
    pub fn read(&self) -> [u64; N] {
        std::array::from_fn(|i| self.cells.0[i].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_the_writer_added() {
        let mut counters = Counters::<3>::default();
        let reader = counters.reader();
        counters.add(1, 5);
        counters.add(1, 2);
        counters.add(9, 1);
        assert_eq!(reader.read(), [0, 7, 0]);
    }
}
