//! A lock that lives as long as the process that holds it, on a file that only its user may open. The file says which process that is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{ShmError, call, check_owner};

/// How often the file is opened again because it was removed in between.
const TRIES: u32 = 16;
/// Digits of the longest number of a process, and the end of the line.
const LINE: usize = 16;

/// A lock that this process has. The kernel lets go of it when the process is dead, whatever it died of.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Takes the lock on `path`, which guards `what`; [`ShmError::Maintained`] if another process has it.
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
            // Whoever had it may have removed it just before we got it, and then it keeps nobody out.
            if is_at(&file, path) {
                let line = format!("{}\n", std::process::id());
                let written = file.set_len(0).and_then(|()| file.write_all_at(line.as_bytes(), 0));
                written.map_err(call("write the lock of", what))?;
                return Ok(Self { path: path.to_owned(), file });
            }
        }
        Err(ShmError::Maintained { path: what.to_owned(), process: None })
    }

    /// True if the file is where it was: else it keeps nobody out any more.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// Removes the file, which others then make anew. The lock is this process's until it is dropped.
    pub(super) fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// True if a file is what is at a path.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let place = |of: std::fs::Metadata| (of.dev(), of.ino());
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => place(ours) == place(there),
        _ => false,
    }
}

/// The process that a lock's file names. It belongs to our user, but may have been written by anything of that.
fn written_in(file: &File) -> Option<u32> {
    let mut line = [0; LINE];
    let length = file.read_at(&mut line, 0).ok()?;
    std::str::from_utf8(line.get(..length)?).ok()?.trim_end().parse().ok()
}
