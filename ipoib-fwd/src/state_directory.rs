//! The state directory: its path, and the lock that reserves it for this gateway.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The kernel's table of file locks.
const LOCKS: &str = "/proc/locks";

/// A state directory that no other gateway uses while this value exists. The kernel releases the lock when
/// the process exits.
#[derive(Debug)]
pub(crate) struct StateDirectory {
    path: PathBuf,
    /// The locked directory. `None` if its file system does not support locks.
    _lock: Option<File>,
}

/// Another process uses the directory.
#[derive(Debug, thiserror::Error)]
#[error(
    "{holder} uses {path} as its state directory, too: give each gateway of a host a directory of its own, or stop that process"
)]
pub struct StateDirectoryInUse {
    path: String,
    holder: String,
}

/// The state directory of a configuration, and the process that uses it, if another one does. The lock is shared and
/// released at once, so that two such checks do not meet.
pub(crate) fn in_use(gateway: &config::Gateway) -> Option<(PathBuf, String)> {
    let path = of(gateway)?;
    let directory = File::open(&path).ok()?;
    let locked = flock(&directory, FlockOperation::NonBlockingLockShared);
    (locked == Err(Errno::WOULDBLOCK)).then(|| (path, holder_of(&directory)))
}

/// The state directory of a configuration.
pub(crate) fn of(gateway: &config::Gateway) -> Option<PathBuf> {
    gateway.state_directory.clone().or_else(of_service)
}

impl StateDirectory {
    /// Locks a directory. A directory that does not exist is not locked: nothing can be saved in it.
    pub(crate) fn lock(path: PathBuf) -> Result<Self, StateDirectoryInUse> {
        let Ok(directory) = File::open(&path) else { return Ok(Self { path, _lock: None }) };
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, _lock: Some(directory) }),
            Err(Errno::WOULDBLOCK) => {
                Err(StateDirectoryInUse { path: path.display().to_string(), holder: holder_of(&directory) })
            }
            Err(error) => {
                tracing::warn!(
                    "{}: cannot be locked ({error}): make sure that no other gateway has this state directory",
                    path.display()
                );
                Ok(Self { path, _lock: None })
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn inode(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.ino())
}

/// The process that locked a directory, in words.
fn holder_of(directory: &File) -> String {
    let locks = fs::read_to_string(LOCKS).unwrap_or_default();
    process(inode(directory).ok().and_then(|inode| holder(&locks, inode)))
}

/// The process that locked an inode by flock(2), from the kernel's table:
/// `1: FLOCK  ADVISORY  WRITE 612 00:1a:2054 0 EOF`.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        // The line of a waiting process has an arrow here.
        let (kind, pid, file) = (fields.next()?, fields.nth(2)?, fields.next()?);
        let of_file = file.rsplit(':').next()?.parse() == Ok(inode);
        if kind == "FLOCK" && of_file { pid.parse().ok() } else { None }
    })
}

/// Describes a process, with its name if it has one.
fn process(pid: Option<u32>) -> String {
    let Some(pid) = pid else { return "another process".to_owned() };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

/// The state directory that the service manager provides (systemd: `StateDirectory=`); the first of several.
fn of_service() -> Option<PathBuf> {
    let all = std::env::var_os("STATE_DIRECTORY")?;
    let first = all.as_encoded_bytes().split(|byte| *byte == b':').next()?;
    let path = Path::new(std::ffi::OsStr::from_bytes(first));
    path.is_absolute().then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_gateways_until_it_has_ended() {
        let path = std::env::temp_dir().join(format!("state-directory-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let first = StateDirectory::lock(path.clone()).unwrap();
        let second = StateDirectory::lock(path.clone()).unwrap_err().to_string();
        let (pid, shown) = (std::process::id(), path.display().to_string());
        assert!(second.starts_with(&format!("process {pid} (")) && second.contains(&shown), "{second}");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "the lock leaves no file");
        let mut gateway = config::Config::default().gateway;
        gateway.state_directory = Some(path.clone());
        let (at, holder) = in_use(&gateway).unwrap();
        assert!(at == path && second.starts_with(&holder), "{holder}");
        drop(first);
        assert_eq!(in_use(&gateway), None);
        assert!(StateDirectory::lock(path.clone()).is_ok());
        fs::remove_dir(&path).unwrap();
        assert!(StateDirectory::lock(path).is_ok(), "one that is missing is reported elsewhere");
    }

    #[test]
    fn the_holder_of_a_lock_is_read_from_the_kernels_table() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:1a:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 612 fe:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 613 fe:01:78 0 EOF\nnonsense\n";
        assert_eq!((holder(locks, 77), holder(locks, 78), holder("", 77)), (Some(612), None, None));
    }
}
