//! Words of memory that processes share: one maintainer writes a published table, any number of processes read it.
//!
//! The file lies in a directory that only the maintainer's user may write (`/run`, not `/dev/shm`), or at least is that user's. The maintainer holds a lock on it
//! as long as it lives; the kernel lets go of it when the process is dead, whatever it died of.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gidcache::layout::Words;
use rustix::fs::{FlockOperation, flock};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const WORD: usize = size_of::<AtomicU64>();
/// Most words that a reader maps: 1 GiB.
const MAX_WORDS: usize = 1 << 27;
/// A reader that looks whether there is a maintainer holds a lock for a moment.
const LOCK_TRIES: u32 = 50;

/// The clock of signs of life, the same for all processes of a machine: nanoseconds of CLOCK_MONOTONIC.
#[must_use]
pub fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Why memory is not shared.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// Another process maintains it.
    #[error("{} is maintained by another process: stop that one, or choose another file", .0.display())]
    Maintained(PathBuf),
    /// The file is another user's, who could write what readers take for ours.
    #[error("{} belongs to another user: choose another place, for instance in /run", .0.display())]
    Foreign(PathBuf),
    /// The file is empty, or no whole number of words, or too long.
    #[error("{} does not hold whole words: choose a new file, or one that was written by this program", .0.display())]
    Length(PathBuf),
    /// A call failed.
    #[error("cannot {what} {}: {source}; choose a file in a directory of this user's, for instance in /run", path.display())]
    Call {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

fn call<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl Fn(E) -> ShmError {
    move |source| ShmError::Call { what, path: path.to_owned(), source: source.into() }
}

/// A mapping of a file's words.
#[derive(Debug)]
struct Map {
    address: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and its words are atomic.
unsafe impl Send for Map {}
// SAFETY: as above; whoever has a `&Map` only loads and stores atomically.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &File, words: usize, protection: ProtFlags, path: &Path) -> Result<Self, ShmError> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that is in use.
        let address =
            unsafe { mmap(std::ptr::null_mut(), words * WORD, protection, MapFlags::SHARED, file, 0) };
        let address = address.map_err(call("map", path))?;
        let address = NonNull::new(address.cast())
            .ok_or_else(|| call("map", path)(io::Error::from(io::ErrorKind::Other)))?;
        Ok(Self { address, words })
    }

    /// The words. Of a map that is read only nothing but relaxed loads may be done.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, `words` words long and lives until `self` is dropped; all bytes are valid for an
        // AtomicU64, and all processes reach them by atomic accesses only. The file is never made shorter by us.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.words * WORD) };
    }
}

/// The maintainer's words; its clones are the same words.
#[derive(Clone, Debug)]
pub struct Maintained {
    map: Arc<Map>,
    /// Holds the lock.
    _file: Arc<File>,
}

impl Maintained {
    /// Opens or makes the file and becomes its maintainer. What a former maintainer left is kept if it is as long, so that its readers need
    /// not notice; else they are left behind with the old file and find themselves without a maintainer.
    pub fn open(path: &Path, words: usize) -> Result<Self, ShmError> {
        for _ in 0..LOCK_TRIES {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
                .open(path)
                .map_err(call("open", path))?;
            if file.metadata().map_err(call("look at", path))?.uid() != rustix::process::geteuid().as_raw() {
                return Err(ShmError::Foreign(path.to_owned()));
            }
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(2));
                continue;
            }
            let ours = file.metadata().map_err(call("look at", path))?;
            // Another maintainer may have put another file in its place meanwhile.
            if std::fs::metadata(path).map(|there| there.ino()).ok() != Some(ours.ino()) {
                continue;
            }
            let length = (words * WORD) as u64;
            if ours.len() == 0 {
                file.set_len(length).map_err(call("make room in", path))?;
            } else if ours.len() != length {
                std::fs::remove_file(path).map_err(call("replace", path))?;
                continue;
            }
            let map = Map::new(&file, words, ProtFlags::READ | ProtFlags::WRITE, path)?;
            return Ok(Self { map: Arc::new(map), _file: Arc::new(file) });
        }
        Err(ShmError::Maintained(path.to_owned()))
    }
}

impl Maintained {
    /// Leaves what is in the file to whoever still reads it and begins a new one.
    pub fn renewed(self, path: &Path, words: usize) -> Result<Self, ShmError> {
        std::fs::remove_file(path).map_err(call("replace", path))?;
        Self::open(path, words)
    }
}

impl AsRef<[AtomicU64]> for Maintained {
    fn as_ref(&self) -> &[AtomicU64] {
        self.map.words()
    }
}

/// A reader's words, mapped read only; clones are the same words.
#[derive(Clone, Debug)]
pub struct ReadOnly {
    map: Arc<Map>,
    file: Arc<File>,
    path: Arc<Path>,
}

impl ReadOnly {
    /// Maps the words of a file.
    pub fn open(path: &Path) -> Result<Self, ShmError> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)
            .map_err(call("open", path))?;
        let bytes = file.metadata().map_err(call("look at", path))?.len();
        let words = usize::try_from(bytes).unwrap_or(usize::MAX) / WORD;
        if words == 0 || words > MAX_WORDS || bytes % WORD as u64 != 0 {
            return Err(ShmError::Length(path.to_owned()));
        }
        let map = Map::new(&file, words, ProtFlags::READ, path)?;
        Ok(Self { map: Arc::new(map), file: Arc::new(file), path: path.into() })
    }

    /// True if a living process maintains these words. False means that they are stale: open the file again, a successor may have
    /// made another. Makes system calls.
    pub fn is_maintained(&self) -> Result<bool, ShmError> {
        match flock(&*self.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                flock(&*self.file, FlockOperation::Unlock).map_err(call("unlock", &self.path))?;
                Ok(false)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(call("lock", &self.path)(error)),
        }
    }
}

impl Words for ReadOnly {
    fn count(&self) -> usize {
        self.map.words
    }

    fn load(&self, at: usize) -> u64 {
        // Relaxed: other loads may not be done on pages that cannot be written.
        self.map.words().get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}
