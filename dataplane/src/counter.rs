//! Counters with one writer and any number of readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The writer's side: one worker's block of `N` counters. An addition is a plain load and store without a
/// lock.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    cells: Arc<Block<N>>,
}

/// A reader's side.
#[derive(Debug)]
pub struct CounterReader<const N: usize> {
    cells: Arc<Block<N>>,
}

/// The counters, on separate cache lines.
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

    /// Creates a reader.
    #[must_use]
    pub fn reader(&self) -> CounterReader<N> {
        CounterReader { cells: Arc::clone(&self.cells) }
    }
}

impl<const N: usize> CounterReader<N> {
    /// Returns the current values. Each is exact, but together they are not a snapshot.
    #[must_use]
    pub fn read(&self) -> [u64; N] {
        std::array::from_fn(|i| self.cells.0[i].load(Ordering::Relaxed))
    }
}

/// The writer's side of a table with rows of `N` counters. Each row starts on a cache line, so that its first
/// eight counters share one.
#[derive(Debug)]
pub struct CounterRows<const N: usize> {
    rows: Arc<[Row<N>]>,
}

/// A reader's side of a table.
#[derive(Debug)]
pub struct CounterRowsReader<const N: usize> {
    rows: Arc<[Row<N>]>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Row<const N: usize>([AtomicU64; N]);

impl<const N: usize> CounterRows<N> {
    /// Creates a table with `rows` rows.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        Self { rows: (0..rows).map(|_| Row(std::array::from_fn(|_| AtomicU64::new(0)))).collect() }
    }

    /// Adds `n` to a counter of a row. Indices outside of the table are ignored.
    #[inline]
    pub fn add(&mut self, row: usize, index: usize, n: u64) {
        if let Some(cell) = self.rows.get(row).and_then(|row| row.0.get(index)) {
            // `&mut self` makes this thread the only writer, so a plain load and store lose nothing.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// Adds to two adjacent counters of a row.
    #[inline]
    pub fn add_both(&mut self, row: usize, index: usize, n: [u64; 2]) {
        let cells = self.rows.get(row).and_then(|row| row.0.get(index..)?.first_chunk::<2>());
        for (cell, n) in cells.into_iter().flatten().zip(n) {
            // As above.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// Creates a reader.
    #[must_use]
    pub fn reader(&self) -> CounterRowsReader<N> {
        CounterRowsReader { rows: Arc::clone(&self.rows) }
    }
}

impl<const N: usize> CounterRowsReader<N> {
    /// Returns the current values of a row. Each is exact, but together they are not a snapshot. A missing
    /// row reads as zeros.
    #[must_use]
    pub fn read(&self, row: usize) -> [u64; N] {
        let row = self.rows.get(row);
        std::array::from_fn(|i| {
            row.and_then(|row| row.0.get(i)).map_or(0, |cell| cell.load(Ordering::Relaxed))
        })
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

    #[test]
    fn rows_are_for_themselves_and_begin_on_cache_lines() {
        let mut rows = CounterRows::<9>::new(3);
        let reader = rows.reader();
        rows.add(1, 8, 5);
        rows.add(2, 0, 1);
        rows.add(3, 0, 1);
        rows.add(0, 9, 1);
        rows.add_both(2, 1, [7, 8]);
        rows.add_both(2, 8, [1, 1]);
        assert_eq!(reader.read(1), [0, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(
            (reader.read(0), reader.read(2), reader.read(3)),
            ([0; 9], [1, 7, 8, 0, 0, 0, 0, 0, 0], [0; 9])
        );
        assert_eq!((size_of::<Row<9>>(), align_of::<Row<9>>()), (128, 64));
    }
}
