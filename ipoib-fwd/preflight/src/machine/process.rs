//! Limits and rights of this process.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::files::Root;

/// Limits and rights of a process.
#[derive(Clone, Copy, Default, Debug)]
pub struct Process {
    /// Bytes that it may lock; `None` if unlimited or unknown.
    pub memlock: Option<u64>,
    /// Files that it may open; `None` if unlimited or unknown.
    pub nofile: Option<u64>,
    /// Its effective capabilities; `None` if unknown.
    pub capabilities: Option<u64>,
}

impl Process {
    /// False if a capability is known to be missing.
    #[must_use]
    pub fn may(&self, capability: u32) -> bool {
        self.capabilities.is_none_or(|all| all >> capability & 1 == 1)
    }
}

/// Access to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It can be read and written.
    Granted,
    /// It cannot be opened.
    Refused,
    /// It does not exist.
    Missing,
}

impl Access {
    /// Checks a file of this host.
    #[must_use]
    pub(super) fn of(path: &Path) -> Self {
        use rustix::fs::Access as Wanted;
        match rustix::fs::access(path, Wanted::READ_OK | Wanted::WRITE_OK) {
            Ok(()) => Self::Granted,
            Err(Errno::NOENT | Errno::NOTDIR) => Self::Missing,
            Err(_) => Self::Refused,
        }
    }
}

/// The occupant of a socket's path.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Occupant {
    /// None, or a socket that a dead process has left.
    #[default]
    Nobody,
    /// A running gateway.
    Gateway,
    /// Something else.
    Other,
    /// The directory is not writable.
    Forbidden,
    /// The directory does not exist.
    NoDirectory,
}

impl Occupant {
    /// Checks a path of this host.
    pub(super) fn of(path: &Path) -> Self {
        match std::fs::symlink_metadata(path) {
            Ok(about) if !about.file_type().is_socket() => Self::Other,
            Ok(_) => Self::of_socket(path),
            Err(_) => {
                let directory = super::files::directory_of(path);
                match Access::of(directory) {
                    _ if !directory.is_dir() => Self::NoDirectory,
                    Access::Granted => Self::Nobody,
                    Access::Refused | Access::Missing => Self::Forbidden,
                }
            }
        }
    }

    fn of_socket(path: &Path) -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (Ok(socket), Ok(address)) = (socket, SocketAddrUnix::new(path)) else { return Self::Other };
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::AGAIN) => Self::Gateway,
            Err(Errno::CONNREFUSED) => Self::Nobody,
            Err(Errno::ACCESS | Errno::PERM) => Self::Forbidden,
            Err(_) => Self::Other,
        }
    }
}

/// The name of the effective user, or its number if `/etc/passwd` has no name.
pub(super) fn effective_user(root: &Root) -> String {
    let number = rustix::process::geteuid().as_raw().to_string();
    let accounts = root.text("etc/passwd").unwrap_or_default();
    let name = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number && !name.is_empty()).then(|| name.to_owned())
    });
    name.unwrap_or(number)
}

pub(super) fn read(root: &Root) -> Process {
    let limits = root.text("proc/self/limits").unwrap_or_default();
    let soft = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let status = root.text("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    Process {
        memlock: soft("Max locked memory"),
        nofile: soft("Max open files"),
        capabilities: effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()),
    }
}
