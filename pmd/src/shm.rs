//! Words of memory that processes share: one maintainer writes a published table, any number of processes read it.
//!
//! The file lies in a directory that only the maintainer's user may write (`/run`, not `/dev/shm`), or at least is that user's. The maintainer
//! holds two locks as long as it lives, and the kernel lets go of both when the process is dead, whatever it died of: one on a file beside it that
//! only its user may open (`.lock`), so that there is one maintainer, and one for writing on the file itself, which readers look for and cannot
//! have. No reader can keep a maintainer out, or look like one.

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
/// Most words that a reader maps: 1 GiB.
const MAX_WORDS: usize = 1 << 27;

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
    #[error(
        "{} is maintained by {}: stop that one, or choose another file", path.display(),
        process.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"))
    )]
    Maintained {
        /// What it maintains.
        path: PathBuf,
        /// The process, if that is known.
        process: Option<u32>,
    },
    /// The file is another user's, who could write what readers take for ours.
    #[error("{} belongs to another user: choose another place, for instance in /run", .0.display())]
    Foreign(PathBuf),
    /// The file is none, empty, or no whole number of words, or too long.
    #[error("{} does not hold whole words: choose a new file, or one that was written by this program", .0.display())]
    Length(PathBuf),
    /// The file system is full.
    #[error("no room for the {length} bytes of {}: remove files there, or make the file system larger (findmnt -T names it)", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// What it needs.
        length: u64,
    },
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
    /// Holds the mark by which readers see that somebody maintains it.
    _file: Arc<File>,
    /// Keeps others out.
    lock: Arc<Lock>,
}

impl Maintained {
    /// Opens or makes the file and becomes its maintainer. What a former maintainer left is kept if it is as long, so that its readers need
    /// not notice; else they are left behind with the old file and find themselves without a maintainer.
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
            // A reader can keep us from marking a file, but not from making another one of the same words: we have the lock, so that nobody
            // writes them.
            of_readers => fresh(path, length, of_readers.as_ref())?,
        };
        let map = Map::new(&file, words, ProtFlags::READ | ProtFlags::WRITE, path)?;
        Ok(Self { map: Arc::new(map), _file: Arc::new(file), lock })
    }

    /// Leaves what is in the file to whoever still reads it and begins a new one.
    pub fn renewed(self, path: &Path, words: usize) -> Result<Self, ShmError> {
        std::fs::remove_file(path).map_err(call("replace", path))?;
        Self::with(path, words, self.lock)
    }

    /// Removes the files: nobody shall find the words any more. Whoever has them open finds them without a maintainer when this one and
    /// its clones are dropped.
    pub fn remove(&self, path: &Path) -> Result<(), ShmError> {
        std::fs::remove_file(path).map_err(call("remove", path))?;
        self.lock.remove().map_err(call("remove the lock of", path))
    }
}

fn lock_of(path: &Path) -> Result<Lock, ShmError> {
    Lock::take(&beside(path, ".lock"), path)
}

/// Removes what a former maintainer left. False if there is no such file, somebody maintains it, or it is another user's.
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

/// A file's name with something behind it.
fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(what);
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

/// What a former maintainer left, if it is of this length.
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

/// Takes room for all words now: a page that there is none for when it is written ends the process.
fn allocate(file: &File, length: u64, path: &Path) -> Result<(), ShmError> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(ShmError::Full { path: path.to_owned(), length }),
        // Some file systems promise nothing.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(length).map_err(call("make room in", path)),
        Err(error) => Err(call("make room in", path)(error)),
    }
}

/// A file of another's words, or of zeros, marked before anybody can see it, in the place of what was there.
fn fresh(path: &Path, length: u64, words: Option<&File>) -> Result<File, ShmError> {
    let making = beside(path, ".new");
    match std::fs::remove_file(&making) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(call("make room for", path)(e)),
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
    // Whatever the umask: all may look GIDs up.
    file.set_permissions(Permissions::from_mode(0o644)).map_err(call("let others read", path))?;
    allocate(&file, length, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&making);
    })?;
    if let Some(mut words) = words {
        io::copy(&mut words, &mut &file).map_err(call("copy", path))?;
    }
    mark(&file).map_err(call("mark", path))?;
    std::fs::rename(&making, path).map_err(call("put in its place", path))?;
    Ok(file)
}

/// A lock of an open file description on the whole file (fcntl(2)), of this kind.
fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: numbers only; all zeros is a value, and means from the first byte to the end.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Marks a file as maintained: with a lock for writing, which nobody has who may only read it. The kernel takes it off when the process
/// is dead.
fn mark(file: &File) -> io::Result<()> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: the call reads the structure.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// True if a file is marked. Looks, and takes no lock itself.
fn is_marked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_RDLCK);
    // SAFETY: the call reads the structure and writes to it what stands in the way.
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
            // A pipe in its place is not waited for.
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

    /// The user whose file it is.
    pub fn owner(&self) -> Result<u32, ShmError> {
        Ok(self.file.metadata().map_err(call("look at", &self.path))?.uid())
    }

    /// True if this is the file that is at a path now.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        lock::is_at(&self.file, path)
    }

    /// True if a living process maintains these words. False means that they are stale: open the file again, a successor may have
    /// made another. Makes system calls.
    pub fn is_maintained(&self) -> Result<bool, ShmError> {
        is_marked(&self.file).map_err(call("look for the maintainer of", &self.path))
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

    fn load_quad(&self, quad: usize) -> Option<[u64; 4]> {
        gidcache::layout::quad_of(self.map.words(), quad)
    }
}
