//! The directory in which one process serves the GID tables of all devices of a machine, each in a file that has the device's name.
//!
//! It is its user's, and nobody else may write it. So what readers find in it is the service's: they check that, that the user is root or
//! their own, and that the files are of the same user.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::shm::{Lock, ShmError};

/// Where it is if nobody says otherwise.
pub const DEFAULT_DIRECTORY: &str = "/run/ipoib-gids";
/// Most tables that a reader looks for in a directory.
pub const MAX_TABLES: usize = 256;
/// Bytes of the longest name: the kernel's devices have 63 at most (IB_DEVICE_NAME_MAX), interfaces 15, with a word before them.
const LONGEST_NAME: usize = 63;
/// The file in it by which there is one service.
const LOCK: &str = ".lock";

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process serves there.
    #[error(
        "{} has a service already{}: stop that one (systemctl stop ipoib-gids), or choose another directory with --dir",
        path.display(), process.map_or_else(String::new, |process| format!(", process {process}"))
    )]
    Served {
        /// The directory.
        path: PathBuf,
        /// The other process.
        process: Option<u32>,
    },
    /// Others could put files into it.
    #[error("{} may be written by others than its owner: chmod go-w it, or choose another directory", .0.display())]
    Writable(PathBuf),
    /// It is another user's.
    #[error("{} belongs to user {owner}, not to this one: choose another directory with --dir", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// It is of a user whom readers do not believe.
    #[error(
        "{} belongs to user {owner}: tables are read from directories of root or of this user; name one of these", path.display()
    )]
    Stranger {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// There is none, so nobody serves.
    #[error(
        "no GID tables are served in {}: start the service (systemctl start ipoib-gids, or ipoib-fwd gids --serve)", .0.display()
    )]
    Nowhere(PathBuf),
    /// It is no directory.
    #[error("{} is no directory (a symbolic link is none): name the directory itself", .0.display())]
    NotADirectory(PathBuf),
    /// A call failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Call {
        /// What was being done.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Its lock.
    #[error(transparent)]
    Lock(#[from] ShmError),
}

fn call(what: &'static str, path: &Path) -> impl Fn(io::Error) -> DirectoryError {
    move |source| DirectoryError::Call { what, path: path.to_owned(), source }
}

/// The name of the table of a software RoCE port on an interface, that of its cable. No device of the kernel should have it.
#[must_use]
pub fn roce_table(interface: &str) -> String {
    format!("roce:{interface}")
}

/// True if a table may have this name, which becomes that of a file: it leads nowhere else, nor to what lies beside a table
/// ([`shm`](crate::shm)).
#[must_use]
pub fn is_table_name(name: &str) -> bool {
    let beside = name.rsplit('.').next().is_none_or(|end| matches!(end, "" | "lock" | "new"));
    let plain = |c: char| !matches!(c, '/') && !c.is_control() && !c.is_whitespace();
    !beside && !name.starts_with('.') && name.len() <= LONGEST_NAME && name.chars().all(plain)
}

/// What a directory is, if nobody but its owner can put anything into it.
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

/// The directory of this process, which is the only one that serves there as long as this lives.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    lock: Lock,
}

impl Directory {
    /// Makes the directory if need be, and becomes the one that serves there.
    pub fn serve(path: &Path) -> Result<Self, DirectoryError> {
        match DirBuilder::new().mode(0o755).create(path) {
            // Whatever the umask: all may look GIDs up.
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if it is still there: else new readers find nothing, and nobody is kept from serving in another one of its name.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.lock.is_in_place()
    }

    /// The file of a table; `None` if there can be none of this name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<PathBuf> {
        is_table_name(name).then(|| self.path.join(name))
    }

    /// Removes the tables that an earlier service left and nobody keeps any more, but for those of these names. Returns how many.
    pub fn sweep(&self, keep: impl Fn(&str) -> bool) -> Result<usize, DirectoryError> {
        let mut removed = 0;
        for name in names(&self.path)?.iter().filter(|name| !keep(name)) {
            let path = self.path.join(name);
            match crate::shm::remove_left(&path) {
                Ok(true) => removed += 1,
                // One that another process keeps there stays.
                Ok(false) => {}
                Err(error) => tracing::warn!("{name} stays, whose device is not there: {error}"),
            }
        }
        Ok(removed)
    }
}

/// Names of the tables in a directory, sorted, as many as there may be at most; and whose they are.
pub fn tables(path: &Path) -> Result<(Vec<String>, u32), DirectoryError> {
    let owner = look(path)?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(DirectoryError::Stranger { path: path.to_owned(), owner });
    }
    Ok((names(path)?, owner))
}

/// The first names in their order, whatever the directory's.
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
    fn there_is_one_service_and_the_second_is_told_of_it() {
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
        // Whatever is in the lock's file.
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
        // Only root can give a directory away.
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
        // What is no file is no table, and keeps nobody from serving.
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
