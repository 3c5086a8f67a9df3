//! The epoch that the control lcore counts, and how far each worker has come in it.

use super::sync::{Arc, AtomicU64, Ordering};

/// A word in a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Line {
    fn new(value: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(value)))
    }
}

/// From some moment on: when it has passed, no worker can use what was out of reach at that moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Grace(u64);

/// The control lcore's end.
#[derive(Debug)]
pub struct Quiescence {
    begun: u64,
    epoch: Arc<Line>,
    /// The epoch that each worker has passed.
    passed: Vec<Arc<Line>>,
}

impl Default for Quiescence {
    fn default() -> Self {
        Self { begun: 0, epoch: Line::new(0), passed: Vec::new() }
    }
}

impl Quiescence {
    /// Without workers: then nobody uses anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker's end; it holds nothing that is out of reach already.
    pub fn join(&mut self) -> Quiescent {
        let passed = Line::new(self.begun);
        self.passed.push(Arc::clone(&passed));
        Quiescent { epoch: Arc::clone(&self.epoch), at: self.begun, passed }
    }

    /// Something has been taken out of workers' reach: when will nobody use it any more?
    pub fn begin(&mut self) -> Grace {
        self.begun += 1;
        // Whoever sees the epoch sees what was published before it.
        self.epoch.0.store(self.begun, Ordering::Release);
        self.newest()
    }

    /// What was begun last.
    #[must_use]
    pub const fn newest(&self) -> Grace {
        Grace(self.begun)
    }

    /// True if no worker uses any more what was out of reach when it was begun.
    #[must_use]
    pub fn passed(&self, grace: Grace) -> bool {
        // What workers did with it before they passed is done.
        self.passed.iter().all(|passed| passed.0.load(Ordering::Acquire) >= grace.0)
    }

    /// The workers that have not passed it, by the order in which they joined.
    pub fn behind(&self, grace: Grace) -> impl Iterator<Item = usize> + '_ {
        let all = self.passed.iter().enumerate();
        all.filter(move |(_, passed)| passed.0.load(Ordering::Acquire) < grace.0).map(|(n, _)| n)
    }
}

/// A worker's end. When it is dropped the worker uses nothing.
#[derive(Debug)]
pub struct Quiescent {
    epoch: Arc<Line>,
    at: u64,
    passed: Arc<Line>,
}

impl Quiescent {
    /// The quiescent point. If anything was begun since the last one, `renew` lets go of what the worker holds; what it takes
    /// instead is as new as that.
    #[inline]
    pub fn pass(&mut self, renew: impl FnOnce()) {
        let epoch = self.epoch.0.load(Ordering::Acquire);
        if epoch != self.at {
            renew();
            self.at = epoch;
            self.passed.0.store(epoch, Ordering::Release);
        }
    }
}

impl Drop for Quiescent {
    fn drop(&mut self) {
        self.passed.0.store(u64::MAX, Ordering::Release);
    }
}
