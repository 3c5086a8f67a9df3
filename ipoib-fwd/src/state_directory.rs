//! The state directory: its path, and the lock that reserves it for this gateway.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use preflight::printable;
use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The file in the directory that a gateway locks. Other users may open the directory itself, and could lock
/// it.
const FILE: &str = "lock";
/// The kernel's table of file locks.
const LOCKS: &str = "/proc/locks";

/// A state directory that no other gateway uses while this value exists. The kernel releases the lock when
/// the process exits.
#[derive(Debug)]
pub(crate) struct StateDirectory {
    path: PathBuf,
    /// The locked file. `None` if it cannot be locked.
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

/// The state directory of a configuration, and the process that uses it, if another one does. The lock is
/// shared and released at once, so that two such checks do not conflict.
pub(crate) fn in_use(gateway: &config::Gateway) -> Option<(PathBuf, String)> {
    let path = of(gateway)?;
    let file = open(&path.join(FILE), false).ok()?;
    let locked = flock(&file, FlockOperation::NonBlockingLockShared);
    (locked == Err(Errno::WOULDBLOCK)).then(|| (path, holder_of(&file)))
}

/// The state directory of a configuration.
pub(crate) fn of(gateway: &config::Gateway) -> Option<PathBuf> {
    gateway.state_directory.clone().or_else(of_service)
}

impl StateDirectory {
    /// Locks a directory. Returns `None` if it does not exist: without a lock, nothing may be written to a
    /// directory that is created later.
    pub(crate) fn lock(path: PathBuf) -> Result<Option<Self>, StateDirectoryInUse> {
        let name = path.join(FILE);
        let error = match open(&name, true) {
            Ok(file) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { path, _lock: Some(file) })),
                Err(Errno::WOULDBLOCK) => {
                    let holder = holder_of(&file);
                    return Err(StateDirectoryInUse { path: path.display().to_string(), holder });
                }
                Err(error) => error.into(),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(
                    "{}: there is no such directory, so known hosts are not kept over a restart: create it and restart the \
                     gateway",
                    path.display()
                );
                return Ok(None);
            }
            Err(error) => error,
        };
        tracing::warn!(
            "{}: cannot be locked ({error}): make sure that no other gateway has this state directory",
            name.display()
        );
        Ok(Some(Self { path, _lock: None }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// True if a file with this owner may be the lock file of this user's gateway. Root also accepts the
/// directory's owner: that user's gateway may hold the lock.
const fn is_trusted_owner(owner: u32, user: u32, directory_owner: u32) -> bool {
    owner == user || user == 0 && owner == directory_owner
}

/// Opens the file to lock. Only root and its owner may open it, so nobody else can hold its lock. The owner
/// is the user of this process, or for root the owner of the directory.
fn open(name: &Path, create: bool) -> io::Result<File> {
    // Neither a link to another file nor a pipe that blocks.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(name)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.mode() & 0o077 != 0 {
        let what =
            "it is not a regular file that only its owner may open: remove it, and restart the gateway";
        return Err(io::Error::other(what));
    }
    let (owner, user) = (metadata.uid(), geteuid().as_raw());
    let directory = name.parent().unwrap_or(name);
    if !is_trusted_owner(owner, user, fs::metadata(directory)?.uid()) {
        // A live gateway of that user may hold its lock: it must not be removed.
        let what =
            format!("it belongs to user {owner}: give it to user {user} (chown), and restart the gateway");
        return Err(io::Error::other(what));
    }
    Ok(file)
}

/// A file in the kernel's table of locks: the numbers of its device, and its inode.
fn file_id(file: &File) -> io::Result<String> {
    let metadata = file.metadata()?;
    let device = metadata.dev();
    Ok(format!("{:02x}:{:02x}:{}", major(device), minor(device), metadata.ino()))
}

/// The process that locked a file, for a message.
fn holder_of(file: &File) -> String {
    let locks = fs::read_to_string(LOCKS).unwrap_or_default();
    process(file_id(file).ok().and_then(|id| holder(&locks, &id)))
}

/// The process that locked a file by flock(2), from the kernel's table:
/// `1: FLOCK  ADVISORY  WRITE 612 00:1a:2054 0 EOF`.
fn holder(locks: &str, id: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        // The line of a waiting process has an arrow here.
        let (kind, pid, file) = (fields.next()?, fields.nth(2)?, fields.next()?);
        if kind == "FLOCK" && file == id { pid.parse().ok() } else { None }
    })
}

/// Describes a process, with its name if it has one. A process chooses its name: control characters are
/// replaced.
fn process(pid: Option<u32>) -> String {
    let Some(pid) = pid else { return "another process".to_owned() };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", printable(name.trim_end())),
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
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    /// A directory that others may open.
    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("state-directory-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn is_locked(path: &Path) -> bool {
        StateDirectory::lock(path.to_owned()).unwrap().unwrap()._lock.is_some()
    }

    #[test]
    fn a_directory_is_one_gateways_until_it_has_ended() {
        let path = directory("one");
        let first = StateDirectory::lock(path.clone()).unwrap();
        let second = StateDirectory::lock(path.clone()).unwrap_err().to_string();
        let (pid, shown) = (std::process::id(), path.display().to_string());
        assert!(second.starts_with(&format!("process {pid} (")) && second.contains(&shown), "{second}");
        assert_eq!(fs::metadata(path.join(FILE)).unwrap().mode() & 0o777, 0o600);
        let mut gateway = config::Config::default().gateway;
        gateway.state_directory = Some(path.clone());
        let (at, holder) = in_use(&gateway).unwrap();
        assert!(at == path && second.starts_with(&holder), "{holder}");
        drop(first);
        assert_eq!(in_use(&gateway), None);
        assert!(is_locked(&path), "the file of an earlier run is locked again");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_directory_that_is_created_later_is_not_written_to() {
        let path = directory("later");
        fs::remove_dir(&path).unwrap();
        assert!(StateDirectory::lock(path.clone()).unwrap().is_none());
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_on_the_directory_itself_keeps_no_gateway_from_starting() {
        let path = directory("itself");
        // Read permission is enough for it.
        let of_others = File::open(&path).unwrap();
        flock(&of_others, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_locked(&path));
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_file_that_others_may_open_or_that_is_none_is_not_locked_and_blocks_nothing() {
        let path = directory("none");
        let file = path.join(FILE);
        let make_fifo = || {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        };
        make_fifo();
        assert!(!is_locked(&path));
        // A pipe instead of the directory.
        let state = StateDirectory::lock(file.clone()).unwrap().unwrap();
        assert!(state._lock.is_none());
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(path.join("elsewhere"), &file).unwrap();
        assert!(!is_locked(&path) && !path.join("elsewhere").exists());
        fs::remove_file(&file).unwrap();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let of_others = File::open(&file).unwrap();
        flock(&of_others, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!is_locked(&path));
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn root_sees_the_lock_of_a_gateway_that_the_directorys_owner_started() {
        assert!(is_trusted_owner(5, 5, 6) && is_trusted_owner(0, 0, 6) && is_trusted_owner(6, 0, 6));
        assert!(!is_trusted_owner(6, 5, 6) && !is_trusted_owner(0, 5, 0) && !is_trusted_owner(5, 0, 6));
        let path = directory("user");
        let file = path.join(FILE);
        let lock = StateDirectory::lock(path.clone()).unwrap().unwrap();
        // Only root can change the owner of a file.
        if chown(&path, Some(12_345), None).is_ok() {
            chown(&file, Some(12_345), None).unwrap();
            assert!(StateDirectory::lock(path.clone()).is_err(), "in use");
            let mut gateway = config::Config::default().gateway;
            gateway.state_directory = Some(path.clone());
            assert!(in_use(&gateway).is_some());
            drop(lock);
            assert!(is_locked(&path));
            // A third user's.
            chown(&file, Some(12_346), None).unwrap();
            assert!(!is_locked(&path));
            let error = open(&file, true).unwrap_err().to_string();
            assert!(error.contains("belongs to user 12346") && error.contains("chown"), "{error}");
            assert!(!error.contains("remove"), "{error}");
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn the_holder_of_a_lock_is_read_from_the_kernels_table() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:1a:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 611 fe:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 612 00:1a:77 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 613 00:1a:78 0 EOF\nnonsense\n";
        let holder_of = |inode| holder(locks, &format!("00:1a:{inode}"));
        // The same inode number on another device is another file.
        assert_eq!((holder_of(77), holder_of(78), holder("", "00:1a:77")), (Some(612), None, None));
    }

    #[test]
    fn the_name_of_a_process_has_no_control_characters() {
        let named = std::thread::spawn(|| {
            rustix::thread::set_name(c"a\x1b[2J\nb").unwrap();
            process(Some(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()))
        });
        let text = named.join().unwrap();
        assert!(text.ends_with("(a [2J b)"), "{text:?}");
    }
}
