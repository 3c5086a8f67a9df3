//! Memory shared by processes: one maintainer writes a published table, and any number of processes read it.
//!
//! The file belongs to the maintainer's user. It should be in a directory that only this user may write
//! (`/run`, not `/dev/shm`).
//!
//! The maintainer holds two locks for its lifetime. The kernel releases both when the process dies for any
//! reason:
//!
//! - A lock on a separate file (`.lock`) that only its user may open. It ensures that there is one
//!   maintainer.
//! - A write lock on the file itself. Readers check for it but cannot take it.
//!
//! No reader can block a maintainer or pose as one.

mod lock;

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gidcache::layout::Words;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub use self::lock::Lock;

const WORD: usize = size_of::<AtomicU64>();
/// Maximum number of 64-bit words that a reader maps: 1 GiB.
const MAX_WORDS: usize = 1 << 27;

/// Returns the clock of heartbeats, which is common to all processes of a host: CLOCK_MONOTONIC in
/// nanoseconds.
#[must_use]
pub fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Reason why memory could not be shared.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// Another process maintains the file.
    #[error(
        "{} is maintained by {}: stop it, or choose another file", path.display(),
        process.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"))
    )]
    Maintained {
        /// The file.
        path: PathBuf,
        /// The process ID, if known.
        process: Option<u32>,
    },
    /// The file belongs to another user, who could modify what readers trust.
    #[error("{} belongs to another user: choose another file, for example in /run", .0.display())]
    Foreign(PathBuf),
    /// It is not a regular file, is empty or too long, or its length is not a multiple of the word size.
    #[error("{} is not a whole number of words long: choose a new file, or one written by this program", .0.display())]
    Length(PathBuf),
    /// The file system is full.
    #[error("no room for the {length} bytes of {}: remove files there, or enlarge the file system (find it with findmnt -T)", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// Required length in bytes.
        length: u64,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}; choose a file in a directory of this user, for example in /run", path.display())]
    Call {
        /// The failed operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
}

fn call<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl Fn(E) -> ShmError {
    move |source| ShmError::Call { what, path: path.to_owned(), source: source.into() }
}

/// A shared mapping of a file.
#[derive(Debug)]
struct Map {
    address: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and its words are atomic.
unsafe impl Send for Map {}
// SAFETY: as above; a holder of a `&Map` only loads and stores atomically.
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

    /// Returns the words. On a read-only map only relaxed loads are allowed.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, `words` words long and lives until `self` is dropped. All
        // bytes are valid for an AtomicU64, and all processes access them only by atomic operations. This
        // code never shortens the file.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.words * WORD) };
    }
}

/// The maintainer's mapping. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct Maintained {
    map: Arc<Map>,
    /// Holds the write lock that shows readers that the file has a maintainer.
    _file: Arc<File>,
    /// Excludes other maintainers.
    lock: Arc<Lock>,
}

impl Maintained {
    /// Opens or creates the file and becomes its maintainer.
    ///
    /// If the file has the requested length, its contents are kept and readers notice nothing. Otherwise
    /// readers keep the old file, which then has no maintainer.
    pub fn open(path: &Path, words: usize) -> Result<Self, ShmError> {
        Self::with(path, words, Arc::new(lock_of(path)?))
    }

    fn with(path: &Path, words: usize, lock: Arc<Lock>) -> Result<Self, ShmError> {
        let length = (words * WORD) as u64;
        let file = match left(path, length)? {
            Some(file) if mark(&file).is_ok() => {
                allocate(&file, length, path)?;
                file
            }
            // A reader can prevent the lock on this file, but not a copy of it in a new file. This process
            // holds `lock`, so nobody else writes the file.
            of_readers => fresh(path, length, of_readers.as_ref())?,
        };
        let map = Map::new(&file, words, ProtFlags::READ | ProtFlags::WRITE, path)?;
        Ok(Self { map: Arc::new(map), _file: Arc::new(file), lock })
    }

    /// Leaves the file to its current readers and creates a new one.
    pub fn renewed(self, path: &Path, words: usize) -> Result<Self, ShmError> {
        std::fs::remove_file(path).map_err(call("replace", path))?;
        Self::with(path, words, self.lock)
    }

    /// Removes the files, so that no new readers find them. Existing readers see that there is no maintainer
    /// when this value and its clones are dropped.
    pub fn remove(&self, path: &Path) -> Result<(), ShmError> {
        std::fs::remove_file(path).map_err(call("remove", path))?;
        self.lock.remove().map_err(call("remove the lock of", path))
    }
}

fn lock_of(path: &Path) -> Result<Lock, ShmError> {
    Lock::take(&with_suffix(path, ".lock"), path)
}

/// Removes the file of a former maintainer. Returns false if there is no such file, it is maintained, or it
/// belongs to another user.
pub fn remove_left(path: &Path) -> Result<bool, ShmError> {
    if !std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    let lock = match lock_of(path) {
        Ok(lock) => lock,
        Err(ShmError::Maintained { .. } | ShmError::Foreign(_)) => return Ok(false),
        Err(error) => return Err(error),
    };
    std::fs::remove_file(path).and_then(|()| lock.remove()).map_err(call("remove", path))?;
    Ok(true)
}

/// Appends a suffix to a file name.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn check_owner(file: &File, path: &Path) -> Result<(), ShmError> {
    let owner = file.metadata().map_err(call("look at", path))?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(ShmError::Foreign(path.to_owned()))
    }
}

/// Opens the file of a former maintainer if it has this length.
fn left(path: &Path, length: u64) -> Result<Option<File>, ShmError> {
    let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(call("open", path)(e)),
    };
    check_owner(&file, path)?;
    let found = file.metadata().map_err(call("look at", path))?.len();
    Ok((found == length).then_some(file))
}

/// Allocates storage for all words now. Otherwise a later write to a page without storage would kill the
/// process.
fn allocate(file: &File, length: u64, path: &Path) -> Result<(), ShmError> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(ShmError::Full { path: path.to_owned(), length }),
        // Some file systems cannot guarantee space.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(length).map_err(call("allocate", path)),
        Err(error) => Err(call("allocate", path)(error)),
    }
}

/// Creates a file with a copy of another's words, or zeros, and locks it before it becomes visible. It
/// replaces an existing file.
fn fresh(path: &Path, length: u64, words: Option<&File>) -> Result<File, ShmError> {
    let making = with_suffix(path, ".new");
    match std::fs::remove_file(&making) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(call("remove the old temporary file of", path)(e));
        }
        _ => {}
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o644)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(&making)
        .map_err(call("make", path))?;
    // Regardless of the umask: all users may look up GIDs.
    file.set_permissions(Permissions::from_mode(0o644)).map_err(call("let others read", path))?;
    allocate(&file, length, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&making);
    })?;
    if let Some(mut words) = words {
        io::copy(&mut words, &mut &file).map_err(call("copy", path))?;
    }
    mark(&file).map_err(call("mark", path))?;
    std::fs::rename(&making, path).map_err(call("replace", path))?;
    Ok(file)
}

/// Describes an open file description lock of this kind on the whole file (fcntl(2)).
fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: numbers only; all zeros is a value, and means from the first byte to the end.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Takes the write lock that marks a file as maintained. Readers cannot take it, because they may only open
/// the file for reading. The kernel releases it when the process dies.
fn mark(file: &File) -> io::Result<()> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: the call reads the structure.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// True if a file is marked. Queries the lock without taking it.
fn is_marked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_RDLCK);
    // SAFETY: the call reads the structure and writes the conflicting lock to it.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if rc == 0 {
        Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
    } else {
        Err(io::Error::last_os_error())
    }
}

impl AsRef<[AtomicU64]> for Maintained {
    fn as_ref(&self) -> &[AtomicU64] {
        self.map.words()
    }
}

/// A reader's mapping, read-only. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct ReadOnly {
    map: Arc<Map>,
    file: Arc<File>,
    path: Arc<Path>,
}

impl ReadOnly {
    /// Maps a file.
    pub fn open(path: &Path) -> Result<Self, ShmError> {
        let file = OpenOptions::new()
            .read(true)
            // Do not block if the path is a pipe.
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)
            .map_err(call("open", path))?;
        let found = file.metadata().map_err(call("look at", path))?;
        let bytes = found.len();
        let words = usize::try_from(bytes).unwrap_or(usize::MAX) / WORD;
        if !found.is_file() || words == 0 || words > MAX_WORDS || bytes % WORD as u64 != 0 {
            return Err(ShmError::Length(path.to_owned()));
        }
        let map = Map::new(&file, words, ProtFlags::READ, path)?;
        Ok(Self { map: Arc::new(map), file: Arc::new(file), path: path.into() })
    }

    /// Returns the owner of the file.
    pub fn owner(&self) -> Result<u32, ShmError> {
        Ok(self.file.metadata().map_err(call("look at", &self.path))?.uid())
    }

    /// True if the path still refers to this file.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        lock::is_at(&self.file, path)
    }

    /// True if a running process maintains the file.
    ///
    /// Otherwise the contents are stale: open the path again, since a successor may have created a new file.
    /// Makes system calls.
    pub fn is_maintained(&self) -> Result<bool, ShmError> {
        is_marked(&self.file).map_err(call("check the maintainer of", &self.path))
    }
}

impl Words for ReadOnly {
    fn count(&self) -> usize {
        self.map.words
    }

    fn load(&self, at: usize) -> u64 {
        // Relaxed, because stronger orderings may be implemented as writes, and the pages are read-only.
        self.map.words().get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn load_quad(&self, quad: usize) -> Option<[u64; 4]> {
        gidcache::layout::quad_of(self.map.words(), quad)
    }
}
