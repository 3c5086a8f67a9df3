//! How a capture stands, for others than who writes it: that one may be waiting for a disk.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tap::{TapLosses, TapReader};

/// It is not over yet: the taps tell.
const LIVE: u64 = u64::MAX;

/// What the writer tells as it goes.
#[derive(Debug, Default)]
pub(super) struct Told {
    written: AtomicU64,
    seen: AtomicU64,
    /// Wanted, and nobody will write them.
    left: AtomicU64,
    /// What the taps' rings had no room for until the end; before it, [`LIVE`].
    lost: AtomicU64,
    /// Nothing is done with files while it is locked.
    files: Mutex<VecDeque<PathBuf>>,
}

impl Told {
    /// Of a capture that begins.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { lost: AtomicU64::new(LIVE), ..Self::default() })
    }

    pub(super) fn written(&self, packets: u64) {
        self.written.fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn seen(&self, packets: u64) {
        self.seen.fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn left(&self, packets: u64) {
        self.left.fetch_add(packets, Ordering::Relaxed);
    }

    /// It is over: what the taps' rings have no room for from now on, nobody wanted.
    pub(super) fn over(&self, lost: u64) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// The files that are kept, the newest last.
    pub(super) fn files(&self) -> MutexGuard<'_, VecDeque<PathBuf>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a capture stands. It goes on telling when the capture is over.
#[derive(Clone, Debug)]
pub struct Progress {
    told: Arc<Told>,
    losses: Vec<TapLosses>,
}

impl Progress {
    pub(super) fn new(told: &Arc<Told>, taps: &[TapReader]) -> Self {
        Self { told: Arc::clone(told), losses: taps.iter().map(TapReader::losses).collect() }
    }

    /// Packets written, packets that were looked at, packets that are missing: a tap's ring was full, or they were in it at the end.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        let Told { written, seen, left, lost, .. } = &*self.told;
        let [written, seen, left, lost] =
            [written, seen, left, lost].map(|count| count.load(Ordering::Relaxed));
        let live = || self.losses.iter().map(TapLosses::packets).sum::<u64>();
        [written, seen, left + if lost == LIVE { live() } else { lost }]
    }

    /// The files that are kept, the newest last.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.told.files().iter().cloned().collect()
    }
}
