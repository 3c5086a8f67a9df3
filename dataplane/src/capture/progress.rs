//! Progress of a capture for other threads, since the writer itself may be blocked by a disk.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tap::{TapLosses, TapReader};

/// The capture is running: the taps have the current losses.
const LIVE: u64 = u64::MAX;

/// State that the writer shares.
#[derive(Debug, Default)]
pub(super) struct SharedProgress {
    written: AtomicU64,
    seen: AtomicU64,
    /// Requested packets that will not be written.
    left: AtomicU64,
    /// Packets lost by the taps' rings until the end of the capture; [`LIVE`] before.
    lost: AtomicU64,
    /// Locked without any file operations.
    files: Mutex<VecDeque<PathBuf>>,
}

impl SharedProgress {
    /// Creates the state of a new capture.
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

    /// Marks the capture as ended. Later losses of the taps' rings do not count.
    pub(super) fn over(&self, lost: u64) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// The kept files, newest last.
    pub(super) fn files(&self) -> MutexGuard<'_, VecDeque<PathBuf>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Progress of a capture. It stays valid after the capture has ended.
#[derive(Clone, Debug)]
pub struct Progress {
    shared: Arc<SharedProgress>,
    losses: Vec<TapLosses>,
}

impl Progress {
    pub(super) fn new(shared: &Arc<SharedProgress>, taps: &[TapReader]) -> Self {
        Self { shared: Arc::clone(shared), losses: taps.iter().map(TapReader::losses).collect() }
    }

    /// Returns the numbers of packets written, packets seen, and packets missing. A packet is missing if a
    /// tap's ring was full or the capture ended before it was written.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        let SharedProgress { written, seen, left, lost, .. } = &*self.shared;
        let [written, seen, left, lost] =
            [written, seen, left, lost].map(|count| count.load(Ordering::Relaxed));
        let live = || self.losses.iter().map(TapLosses::packets).sum::<u64>();
        [written, seen, left + if lost == LIVE { live() } else { lost }]
    }

    /// Returns the kept files, newest last.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.shared.files().iter().cloned().collect()
    }
}
