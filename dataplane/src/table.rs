//! Publication of immutable tables from the control lcore to workers.
//!
//! A worker refreshes its [`Reader`] several times per iteration, which costs one atomic load and a compare
//! if nothing has changed. The refresh is its quiescent state ([`crate::quiescence`]). The publisher keeps
//! every old version for a grace period. Memory is therefore freed on the control lcore and never in the
//! middle of a burst.

use std::collections::VecDeque;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::quiescence::{Grace, Quiescence, Quiescent};

/// The control lcore's side.
#[derive(Debug)]
pub struct Publisher<T> {
    shared: Arc<ArcSwap<T>>,
    quiescence: Quiescence,
    /// Old versions, oldest first, until their grace periods have passed.
    retired: VecDeque<(Grace, Arc<T>)>,
}

/// A worker's side.
#[derive(Debug)]
pub struct Reader<T> {
    shared: Arc<ArcSwap<T>>,
    // Dropped before the worker counts as ended.
    table: Arc<T>,
    quiescent: Quiescent,
}

impl<T> Publisher<T> {
    /// Publishes a first version.
    #[must_use]
    pub fn new(first: T) -> Self {
        Self {
            shared: Arc::new(ArcSwap::from_pointee(first)),
            quiescence: Quiescence::new(),
            retired: VecDeque::new(),
        }
    }

    /// Creates a reader.
    #[must_use]
    pub fn reader(&mut self) -> Reader<T> {
        let shared = Arc::clone(&self.shared);
        Reader { table: shared.load_full(), shared, quiescent: self.quiescence.join() }
    }

    /// Replaces the table and frees versions that no reader holds any more. When the returned grace period
    /// has passed, no reader has an older table than this one.
    pub fn publish(&mut self, next: T) -> Grace {
        let old = self.shared.swap(Arc::new(next));
        let grace = self.quiescence.begin();
        self.retired.push_back((grace, old));
        self.collect();
        grace
    }

    /// Returns the grace period of the last publication. When it has passed, all readers have the newest
    /// table.
    #[must_use]
    pub const fn newest(&self) -> Grace {
        self.quiescence.newest()
    }

    /// True if no reader has a table older than that of a publication.
    #[must_use]
    pub fn passed(&self, grace: Grace) -> bool {
        self.quiescence.passed(grace)
    }

    /// Starts a grace period without a new table. When it has passed, each reader has completed an iteration.
    pub fn ask(&mut self) -> Grace {
        self.quiescence.begin()
    }

    /// Returns the readers that delay a grace period, by their creation order.
    pub fn behind(&self, grace: Grace) -> impl Iterator<Item = usize> + '_ {
        self.quiescence.behind(grace)
    }

    /// Frees retired versions that no reader holds. Returns the number of those still held.
    pub fn collect(&mut self) -> usize {
        while self.retired.front().is_some_and(|(grace, _)| self.quiescence.passed(*grace)) {
            self.retired.pop_front();
        }
        self.retired.len()
    }
}

impl<T> Reader<T> {
    /// Returns the newest version and reports a quiescent state. Call it at least once per iteration.
    #[inline]
    pub fn refresh(&mut self) -> &T {
        let Self { shared, table, quiescent } = self;
        quiescent.pass(|| *table = shared.load_full());
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;

    struct Tracked(u32, Arc<AtomicUsize>, ThreadId);

    impl Drop for Tracked {
        fn drop(&mut self) {
            assert_eq!(std::thread::current().id(), self.2, "a table must be freed where it was published");
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn old_versions_are_freed_by_the_publisher_after_readers_moved_on() {
        let freed = Arc::new(AtomicUsize::new(0));
        let me = std::thread::current().id();
        let table = |n| Tracked(n, Arc::clone(&freed), me);
        let mut publisher = Publisher::new(table(0));
        let mut reader = publisher.reader();
        assert_eq!(reader.refresh().0, 0);
        publisher.publish(table(1));
        assert_eq!(freed.load(Ordering::Relaxed), 0, "the reader still holds version 0");
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(reader.refresh().0, 1));
        });
        assert_eq!(freed.load(Ordering::Relaxed), 0, "the reader's thread must not free it");
        assert_eq!(publisher.collect(), 0);
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_publication_has_passed_when_every_reader_has_taken_it_up_or_ended() {
        let mut publisher = Publisher::new(0);
        assert!(publisher.passed(publisher.newest()));
        let (mut first, second) = (publisher.reader(), publisher.reader());
        let grace = publisher.publish(1);
        assert_eq!(*first.refresh(), 1);
        assert!(!publisher.passed(grace), "the second may read version 0");
        let mut late = publisher.reader();
        assert_eq!(publisher.collect(), 1);
        drop(second);
        assert!(publisher.passed(grace), "a later reader never saw version 0");
        assert_eq!(publisher.collect(), 0);
        assert_eq!((*late.refresh(), publisher.newest()), (1, grace));
    }
}
