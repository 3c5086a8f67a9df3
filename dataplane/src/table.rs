//! Publication of immutable tables from the control lcore to workers.
//!
//! A worker refreshes its [`Reader`] once per loop: one atomic load and a compare when nothing changed. The publisher
//! keeps every old version until no reader holds it, so that memory is freed on the control lcore and never in the
//! middle of a burst.

use std::sync::Arc;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;

/// The control lcore's end.
#[derive(Debug)]
pub struct Publisher<T> {
    shared: Arc<ArcSwap<T>>,
    retired: Vec<Arc<T>>,
}

/// A worker's end.
#[derive(Debug)]
pub struct Reader<T> {
    cache: Cache<Arc<ArcSwap<T>>, Arc<T>>,
}

impl<T> Publisher<T> {
    /// Publishes a first version.
    #[must_use]
    pub fn new(first: T) -> Self {
        Self { shared: Arc::new(ArcSwap::from_pointee(first)), retired: Vec::new() }
    }

    /// Another reader.
    #[must_use]
    pub fn reader(&self) -> Reader<T> {
        Reader { cache: Cache::new(Arc::clone(&self.shared)) }
    }

    /// Replaces the table and frees the versions that no reader holds any more.
    pub fn publish(&mut self, next: T) {
        self.retired.push(self.shared.swap(Arc::new(next)));
        self.collect();
    }

    /// Frees retired versions that no reader holds; returns how many are still held.
    pub fn collect(&mut self) -> usize {
        self.retired.retain(|old| Arc::strong_count(old) > 1);
        self.retired.len()
    }
}

impl<T> Reader<T> {
    /// The newest version. Call once per loop: the worker's quiescent point.
    pub fn refresh(&mut self) -> &T {
        self.cache.load()
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
}
