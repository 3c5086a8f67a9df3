//! A lock held for the lifetime of a process, on a file that only its user may open. The file contains the
//! process ID.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{ShmError, call, check_owner};

/// Maximum number of attempts if the file is removed between opening and locking.
const TRIES: u32 = 16;
/// Maximum length of a process ID with a newline.
const LINE: usize = 16;

/// A lock that this process holds. The kernel releases it when the process dies for any reason.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Takes the lock on `path`, which protects `what`. Returns [`ShmError::Maintained`] if another process
    /// holds it.
    pub fn take(path: &Path, what: &Path) -> Result<Self, ShmError> {
        for _ in 0..TRIES {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
                .open(path)
                .map_err(call("open the lock of", what))?;
            check_owner(&file, what)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(ShmError::Maintained { path: what.to_owned(), process: written_in(&file) });
            }
            // The previous holder may have removed the file just before. A lock on a removed file excludes
            // nobody.
            if is_at(&file, path) {
                let line = format!("{}\n", std::process::id());
                let written = file.set_len(0).and_then(|()| file.write_all_at(line.as_bytes(), 0));
                written.map_err(call("write the lock of", what))?;
                return Ok(Self { path: path.to_owned(), file });
            }
        }
        Err(ShmError::Maintained { path: what.to_owned(), process: None })
    }

    /// True if the file is still at its path. Otherwise the lock excludes nobody any more.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// Removes the file. Other processes then create a new one, but this lock is held until it is dropped.
    pub(super) fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// True if the path refers to this file.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let place = |of: std::fs::Metadata| (of.dev(), of.ino());
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => place(ours) == place(there),
        _ => false,
    }
}

/// Reads the process ID in a lock file. The file belongs to this user, but any of the user's processes may
/// have written it.
fn written_in(file: &File) -> Option<u32> {
    let mut line = [0; LINE];
    let length = file.read_at(&mut line, 0).ok()?;
    std::str::from_utf8(line.get(..length)?).ok()?.trim_end().parse().ok()
}
