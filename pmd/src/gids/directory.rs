//! The directory in which one process serves the GID tables of all devices of a host. Each table is in a file
//! with the device's name.
//!
//! Only the owner may write to the directory, so its contents come from the service. Readers check this. They
//! also check that the owner is root or their own user, and that the files have the same owner.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::shm::{Lock, ShmError};

/// Default directory.
pub const DEFAULT_DIRECTORY: &str = "/run/ipoib-gids";
/// Maximum number of tables that a reader uses in a directory.
pub const MAX_TABLES: usize = 256;
/// Maximum length of a table name. Kernel devices have at most 63 bytes (IB_DEVICE_NAME_MAX); interfaces have
/// 15, plus a prefix.
const LONGEST_NAME: usize = 63;
/// File whose lock ensures that only one service uses the directory.
const LOCK: &str = ".lock";

/// Reason why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process serves this directory.
    #[error(
        "{} already has a service{}: stop it (systemctl stop ipoib-gids), or choose another directory with --dir",
        path.display(), process.map_or_else(String::new, |process| format!(", process {process}"))
    )]
    Served {
        /// The directory.
        path: PathBuf,
        /// The other process.
        process: Option<u32>,
    },
    /// Other users could create files in it.
    #[error("{} is writable by users other than its owner: chmod go-w it, or choose another directory", .0.display())]
    Writable(PathBuf),
    /// It belongs to another user.
    #[error("{} belongs to user {owner}, not to this one: choose another directory with --dir", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// It belongs to a user that readers do not trust.
    #[error(
        "{} belongs to user {owner}: tables are read only from directories of root or of this user; specify one of these", path.display()
    )]
    Stranger {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The directory does not exist, so there is no service.
    #[error(
        "no GID tables are served in {}: start the service (systemctl start ipoib-gids, or ipoib-fwd gids --serve)", .0.display()
    )]
    Nowhere(PathBuf),
    /// It is not a directory.
    #[error("{} is not a directory (symbolic links are not accepted): specify the directory itself", .0.display())]
    NotADirectory(PathBuf),
    /// A system call failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Call {
        /// The failed operation.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// Its lock could not be taken.
    #[error(transparent)]
    Lock(#[from] ShmError),
}

fn call(what: &'static str, path: &Path) -> impl Fn(io::Error) -> DirectoryError {
    move |source| DirectoryError::Call { what, path: path.to_owned(), source }
}

/// Returns the table name of a software RoCE port on an interface. No kernel device should have such a name.
#[must_use]
pub fn roce_table(interface: &str) -> String {
    format!("roce:{interface}")
}

/// True if a table may have this name, which becomes a file name. It cannot lead to another directory or to a
/// table's helper files ([`shm`](crate::shm)).
#[must_use]
pub fn is_table_name(name: &str) -> bool {
    let reserved = name.rsplit('.').next().is_none_or(|end| matches!(end, "" | "lock" | "new"));
    let plain = |c: char| !matches!(c, '/') && !c.is_control() && !c.is_whitespace();
    !reserved && !name.starts_with('.') && name.len() <= LONGEST_NAME && name.chars().all(plain)
}

/// Returns the directory's metadata if only its owner can create files in it.
fn look(path: &Path) -> Result<Metadata, DirectoryError> {
    let found = std::fs::symlink_metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DirectoryError::Nowhere(path.to_owned()),
        _ => call("look at", path)(error),
    })?;
    if !found.is_dir() {
        return Err(DirectoryError::NotADirectory(path.to_owned()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(DirectoryError::Writable(path.to_owned()));
    }
    Ok(found)
}

/// The directory of this process. No other process serves it as long as this value exists.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    lock: Lock,
}

impl Directory {
    /// Creates the directory if necessary and starts to serve it.
    pub fn serve(path: &Path) -> Result<Self, DirectoryError> {
        match DirBuilder::new().mode(0o755).create(path) {
            // Regardless of the umask: all users may look up GIDs.
            Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(0o755))
                .map_err(call("let others read", path))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(call("make", path)(error)),
        }
        let owner = look(path)?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(DirectoryError::Foreign { path: path.to_owned(), owner });
        }
        let lock = Lock::take(&path.join(LOCK), path).map_err(|error| match error {
            ShmError::Maintained { path, process } => DirectoryError::Served { path, process },
            other => other.into(),
        })?;
        Ok(Self { path: path.to_owned(), lock })
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if it still exists. Otherwise new readers find nothing, and another service may start in a new
    /// directory with the same name.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.lock.is_in_place()
    }

    /// Returns the file of a table, or `None` if the name is invalid.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<PathBuf> {
        is_table_name(name).then(|| self.path.join(name))
    }

    /// Removes the tables of an earlier service that nobody maintains any more, except those that `keep`
    /// accepts. Returns the number of removed tables.
    pub fn sweep(&self, keep: impl Fn(&str) -> bool) -> Result<usize, DirectoryError> {
        let mut removed = 0;
        for name in names(&self.path)?.iter().filter(|name| !keep(name)) {
            let path = self.path.join(name);
            match crate::shm::remove_left(&path) {
                Ok(true) => removed += 1,
                // A table that another process maintains stays.
                Ok(false) => {}
                Err(error) => tracing::warn!("table {name} of an absent device was not removed: {error}"),
            }
        }
        Ok(removed)
    }
}

/// Returns the sorted names of the tables in a directory, at most [`MAX_TABLES`], and the owner.
pub fn tables(path: &Path) -> Result<(Vec<String>, u32), DirectoryError> {
    let owner = look(path)?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(DirectoryError::Stranger { path: path.to_owned(), owner });
    }
    Ok((names(path)?, owner))
}

/// Returns the first names in sorted order, independent of the directory's order.
fn names(path: &Path) -> Result<Vec<String>, DirectoryError> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(path).map_err(call("list", path))? {
        let entry = entry.map_err(call("list", path))?;
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && is_table_name(name)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
        {
            names.insert(name.to_owned());
            if names.len() > MAX_TABLES {
                names.pop_last();
            }
        }
    }
    Ok(names.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn place(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gid-directory-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["mlx5_0", "roce:eth1", "roce:eth1.100", "rxe0", "a b".trim_end_matches(" b")] {
            assert!(is_table_name(good), "{good:?}");
        }
        let long = "a".repeat(LONGEST_NAME + 1);
        for bad in [
            "", ".", "..", ".lock", "a.lock", "a.new", "lock", "new", "a/b", "/a", "a\0b", "a\n", "a b",
            "a.", &long,
        ] {
            assert!(!is_table_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_second_service_is_rejected_and_names_the_first() {
        let path = place("two");
        let first = Directory::serve(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        let error = Directory::serve(&path).unwrap_err();
        assert!(
            matches!(&error, DirectoryError::Served { process, .. } if *process == Some(std::process::id()))
        );
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert!(first.is_in_place());
        fs::rename(path.join(LOCK), path.join("moved")).unwrap();
        assert!(!first.is_in_place());
        fs::rename(path.join("moved"), path.join(LOCK)).unwrap();
        drop(first);
        // Invalid contents of the lock file.
        for text in ["", "x", "99999999999999999999999"] {
            fs::write(path.join(LOCK), text).unwrap();
            drop(Directory::serve(&path).unwrap());
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_write_is_none() {
        let path = place("open");
        assert!(matches!(tables(&path), Err(DirectoryError::Nowhere(_))));
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o775, 0o757, 0o1777] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(matches!(Directory::serve(&path), Err(DirectoryError::Writable(_))), "{mode:o}");
            assert!(matches!(tables(&path), Err(DirectoryError::Writable(_))), "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let link = place("link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Directory::serve(&link), Err(DirectoryError::NotADirectory(_))));
        assert!(matches!(tables(&link), Err(DirectoryError::NotADirectory(_))));
        fs::remove_file(&link).unwrap();
        // Only root can change the owner of a directory.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            assert!(matches!(Directory::serve(&path), Err(DirectoryError::Foreign { owner: 12_345, .. })));
            let error = tables(&path).unwrap_err();
            assert!(matches!(error, DirectoryError::Stranger { owner: 12_345, .. }), "{error}");
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn of_too_many_tables_the_first_by_name_are_found() {
        let path = place("many");
        let directory = Directory::serve(&path).unwrap();
        let mut expected: Vec<String> = (0..4 * MAX_TABLES).map(|n| format!("mlx5_{n}")).collect();
        for name in &expected {
            fs::write(directory.table(name).unwrap(), "").unwrap();
        }
        expected.sort_unstable();
        expected.truncate(MAX_TABLES);
        assert_eq!(tables(&path).unwrap().0, expected);
        drop(directory);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_nobody_keeps_is_swept_and_what_somebody_keeps_stays() {
        let path = place("sweep");
        let directory = Directory::serve(&path).unwrap();
        let open = |name: &str| crate::shm::Maintained::open(&directory.table(name).unwrap(), 8).unwrap();
        let (kept, left, served) = (open("kept"), open("left"), open("served"));
        drop(left);
        drop(served);
        assert_eq!(tables(&path).unwrap().0, ["kept", "left", "served"]);
        assert_eq!(directory.sweep(|name| name == "served").unwrap(), 1);
        assert_eq!(tables(&path).unwrap().0, ["kept", "served"]);
        assert!(!path.join("left.lock").exists());
        // Anything but a file is not a table, and does not prevent a service.
        fs::create_dir(path.join("mlx5_0")).unwrap();
        std::os::unix::fs::symlink("kept", path.join("mlx5_1")).unwrap();
        assert_eq!(directory.sweep(|_| false).unwrap(), 1, "served");
        assert_eq!(tables(&path).unwrap().0, ["kept"]);
        assert!(path.join("mlx5_0").exists() && !path.join("mlx5_0.lock").exists());
        drop(kept);
        drop(directory);
        fs::remove_dir_all(&path).unwrap();
    }
}
