//! The epoch that the control lcore advances, and each worker's progress.

use super::sync::{Arc, AtomicU64, Ordering};

/// A counter on a separate cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Line {
    fn new(value: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(value)))
    }
}

/// A grace period. When it has passed, no worker can use objects that were unreachable at its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Grace(u64);

/// The control lcore's side.
#[derive(Debug)]
pub struct Quiescence {
    begun: u64,
    epoch: Arc<Line>,
    /// The epoch in which each worker last reported a quiescent state.
    passed: Vec<Arc<Line>>,
}

impl Default for Quiescence {
    fn default() -> Self {
        Self { begun: 0, epoch: Line::new(0), passed: Vec::new() }
    }
}

impl Quiescence {
    /// Creates the state without workers, in which every grace period has passed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a worker. It holds no object that is already unreachable.
    pub fn join(&mut self) -> Quiescent {
        let passed = Line::new(self.begun);
        self.passed.push(Arc::clone(&passed));
        Quiescent { epoch: Arc::clone(&self.epoch), at: self.begun, passed }
    }

    /// Starts a grace period for objects that were just made unreachable.
    pub fn begin(&mut self) -> Grace {
        self.begun += 1;
        // A worker that sees the epoch also sees everything published before it.
        self.epoch.0.store(self.begun, Ordering::Release);
        self.newest()
    }

    /// Returns the grace period started last.
    #[must_use]
    pub const fn newest(&self) -> Grace {
        Grace(self.begun)
    }

    /// True if the grace period has passed: no worker uses the objects that were unreachable at its start.
    #[must_use]
    pub fn passed(&self, grace: Grace) -> bool {
        // The acquire orders the workers' accesses before their quiescent states.
        self.passed.iter().all(|passed| passed.0.load(Ordering::Acquire) >= grace.0)
    }

    /// Returns the workers that delay the grace period, by their join order.
    pub fn behind(&self, grace: Grace) -> impl Iterator<Item = usize> + '_ {
        let all = self.passed.iter().enumerate();
        all.filter(move |(_, passed)| passed.0.load(Ordering::Acquire) < grace.0).map(|(n, _)| n)
    }
}

/// A worker's side. A dropped worker uses no objects.
#[derive(Debug)]
pub struct Quiescent {
    epoch: Arc<Line>,
    at: u64,
    passed: Arc<Line>,
}

impl Quiescent {
    /// Reports a quiescent state. If a grace period has started since the last one, `renew` must drop the
    /// objects that the worker holds. It may then take others, which are at least as new as that period.
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
