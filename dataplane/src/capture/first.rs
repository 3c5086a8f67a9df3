//! Checks before a capture starts: files of an earlier capture, unrelated files, and files that another
//! capture is writing.
//!
//! Everything is checked before anything is changed. Files that will be removed are locked until then.
//!
//! Directories may belong to untrusted users while the gateway runs as root. All checks therefore refer to
//! open files.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FileType, OFlags, access, fstat, readlinkat};
use rustix::process::geteuid;

use super::files::{Bounds, Names, create, failed, remove};
use super::{CaptureError, PCAP_HEADER, header};

/// Maximum length of a chain of symbolic links.
const MOST_LINKS: usize = 40;
/// Mode of files that captures create: readable only by their owner.
const OWNERS_ONLY: u32 = 0o600;

const IN_THE_WAY: &str =
    "a file that is not a capture is in the way: remove it, or give the capture another name";
const IN_USE: &str = "another program is using it for a capture: choose another name, or stop that program";
const OF_OTHERS: &str =
    "it is a symbolic link of another user, which is not trusted: specify its target, or remove it";

/// The first file of a kind of packets before its creation, and the leftovers of an earlier capture.
#[derive(Debug)]
pub(super) struct First {
    pub(super) names: Names,
    pub(super) link_type: u32,
    /// `None` for a target that uses no disk space, such as a pipe.
    pub(super) bounds: Option<Bounds>,
    /// The target, after following links.
    place: PathBuf,
    /// The target, if it exists and will be overwritten.
    open: Option<File>,
    /// Files to remove before the capture starts, locked.
    left: Vec<(PathBuf, File)>,
}

impl First {
    /// Checks the existing files without changing anything. Files other than captures are overwritten only if
    /// they were named explicitly.
    pub(super) fn look(
        names: Names,
        link_type: u32,
        bounds: Bounds,
        is_named: bool,
    ) -> Result<Self, CaptureError> {
        let path = names.of(0);
        let place = follow(&path)?;
        let there = match path.metadata() {
            Ok(meta) => Some(meta.file_type()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&path)(error)),
        };
        let mut first = Self { names, link_type, bounds: Some(bounds), place, open: None, left: Vec::new() };
        match there {
            None => {}
            // A symbolic link was created by the operator, who chose its target.
            Some(kind) if kind.is_file() && (is_named || first.place != path) => {
                first.open = Some(written_over(&first.place).map_err(failed(&first.place))?);
            }
            // It is created again only with the first packet.
            Some(kind) if kind.is_file() || kind.is_dir() => {
                let file = left(&path, link_type).map_err(failed(&path))?;
                first.left.push((path, file));
            }
            Some(kind) => {
                // A pipe has no numbered files.
                (first.bounds, first.place) = (None, path);
                // Wait for the reader while nothing else is open.
                if is_named && kind.is_fifo() {
                    first.open = Some(pipe(&first.place)?);
                }
                return Ok(first);
            }
        }
        if first.open.is_none() {
            may_make(&first.place).map_err(failed(&first.place))?;
        }
        for path in first.names.there()? {
            match left(&path, link_type) {
                Ok(file) => first.left.push((path, file)),
                // It was removed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&path)(error)),
            }
        }
        Ok(first)
    }

    /// Removes the files of an earlier capture. Removes nothing if another capture has meanwhile replaced one
    /// of them.
    pub(super) fn clear(&mut self) -> Result<(), CaptureError> {
        for (path, file) in &self.left {
            is_in_place(file, path).map_err(failed(path))?;
        }
        self.left.drain(..).try_for_each(|(path, _lock)| remove(&path))
    }

    /// True if the target exists and will be overwritten.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Creates or truncates the file.
    pub(super) fn make(&mut self) -> Result<(File, PathBuf), CaptureError> {
        self.clear()?;
        let file = match (self.open.take(), self.bounds) {
            (Some(file), Some(_)) => {
                file.set_len(0).map_err(failed(&self.place))?;
                file
            }
            (Some(pipe), None) => pipe,
            (None, Some(_)) => create(&self.place)?,
            (None, None) => pipe(&self.place)?,
        };
        Ok((file, self.place.clone()))
    }
}

fn refused(kind: io::ErrorKind, why: &'static str) -> io::Error {
    io::Error::new(kind, why)
}

fn in_the_way() -> io::Error {
    refused(io::ErrorKind::AlreadyExists, IN_THE_WAY)
}

/// Follows symbolic links. The target may not exist.
fn follow(path: &Path) -> Result<PathBuf, CaptureError> {
    let mut place = path.to_owned();
    for _ in 0..MOST_LINKS {
        match target(&place).map_err(failed(&place))? {
            Some(target) => place = place.parent().unwrap_or(Path::new("")).join(target),
            None => return Ok(place),
        }
    }
    Err(failed(path)(rustix::io::Errno::LOOP.into()))
}

/// Returns the target of a symbolic link, or `None` for anything else. Only links owned by root or this user
/// are trusted.
fn target(path: &Path) -> io::Result<Option<PathBuf>> {
    // Open the link itself, so that it cannot be replaced in the meantime.
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let link = match OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = link.metadata()?;
    if !meta.is_symlink() {
        return Ok(None);
    }
    if meta.uid() != 0 && meta.uid() != geteuid().as_raw() {
        return Err(refused(io::ErrorKind::PermissionDenied, OF_OTHERS));
    }
    let target = readlinkat(&link, "", Vec::new())?;
    Ok(Some(OsStr::from_bytes(target.as_bytes()).into()))
}

/// Opens an existing regular file. A link or pipe that replaced it is neither followed nor waited for.
fn open_file(options: &mut OpenOptions, path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(in_the_way());
    }
    Ok((file, meta))
}

/// Opens a file that the capture will overwrite. Until it starts, the file is only locked.
fn written_over(path: &Path) -> io::Result<File> {
    let (file, _) = open_file(OpenOptions::new().write(true), path)?;
    is_free(file.try_lock())?;
    Ok(file)
}

/// Opens a leftover of an earlier capture that is not in use. Symbolic links are rejected.
fn left(path: &Path, link_type: u32) -> io::Result<File> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(in_the_way());
    }
    let (file, meta) = open_file(OpenOptions::new().read(true), path)?;
    let mut begin = Vec::new();
    (&file).take(PCAP_HEADER).read_to_end(&mut begin)?;
    if begin != header(link_type) && !is_left_empty(path, &meta)? {
        return Err(in_the_way());
    }
    // Some file systems allow only shared locks without write access.
    is_free(file.try_lock_shared())?;
    Ok(file)
}

/// Returns the directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks whether a file can be created. If it is created only later, the error is reported now.
fn may_make(path: &Path) -> io::Result<()> {
    Ok(access(directory(path), Access::WRITE_OK | Access::EXEC_OK)?)
}

/// True for the empty file of a capture that was killed right after creating it. Its owner is this user, or
/// the gateway's later user, who owns the directory.
fn is_left_empty(path: &Path, meta: &Metadata) -> io::Result<bool> {
    let is_private = meta.len() == 0 && meta.mode() & 0o7777 == OWNERS_ONLY;
    let owner = || fs::metadata(directory(path)).map(|meta| meta.uid());
    Ok(is_private && (meta.uid() == geteuid().as_raw() || meta.uid() == owner()?))
}

/// Fails if the path now refers to another file. The file may be gone.
fn is_in_place(file: &File, path: &Path) -> io::Result<()> {
    let place = |meta: &Metadata| (meta.dev(), meta.ino());
    match fs::symlink_metadata(path) {
        Ok(there) if place(&there) != place(&file.metadata()?) => {
            Err(refused(io::ErrorKind::ResourceBusy, IN_USE))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Without lock support no other capture can hold a lock.
fn is_free(lock: Result<(), TryLockError>) -> io::Result<()> {
    match lock {
        Err(TryLockError::WouldBlock) => Err(refused(io::ErrorKind::ResourceBusy, IN_USE)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Opens a pipe or another target that uses no disk space. Waits for the reader of a pipe.
fn pipe(path: &Path) -> Result<File, CaptureError> {
    let failed = failed(path);
    let file = OpenOptions::new().write(true).open(path).map_err(&failed)?;
    // Use this system call because the capture thread is permitted to make it. A regular file would be
    // unbounded here.
    let meta = fstat(&file).map_err(|errno| failed(errno.into()))?;
    match FileType::from_raw_mode(meta.st_mode) {
        FileType::RegularFile => Err(failed(in_the_way())),
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests;
