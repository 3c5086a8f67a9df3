//! What is there before a capture begins: files that an earlier one has left, files of others, files that another capture writes. All of it is
//! looked at before anything is touched, and what is to go is held by a lock until then.
//!
//! Names may be in a directory of somebody who is not to be trusted, and the gateway be root: what was looked at is what is open.

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

/// Links that lead on to links.
const MOST_LINKS: usize = 40;
/// What only its owner reads: how captures make their files.
const OWNERS_ONLY: u32 = 0o600;

const IN_THE_WAY: &str =
    "no capture has left it, and it is in the way: take it away, or give the capture another name";
const IN_USE: &str =
    "another program has it open for its own capture: give this one another name, or end that program";
const OF_OTHERS: &str =
    "it is a link of another user, which may lead anywhere: name the file that it leads to, or take it away";

/// The first file of a kind of packets, before it is made, and what an earlier capture has left of its kind.
#[derive(Debug)]
pub(super) struct First {
    pub(super) names: Names,
    pub(super) link_type: u32,
    /// None for what takes no place on a disk: a pipe.
    pub(super) bounds: Option<Bounds>,
    /// What takes place, or is a pipe.
    place: PathBuf,
    /// It, if it is there and is written over.
    open: Option<File>,
    /// What goes before the capture begins, and its locks.
    left: Vec<(PathBuf, File)>,
}

impl First {
    /// Looks at what is there, and changes nothing. Only a file that was `named` is written over without being a capture's.
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
            // A link is the operator's: he has chosen what it leads to.
            Some(kind) if kind.is_file() && (is_named || first.place != path) => {
                first.open = Some(written_over(&first.place).map_err(failed(&first.place))?);
            }
            // It is made again only with its first packet.
            Some(kind) if kind.is_file() || kind.is_dir() => {
                let file = left(&path, link_type).map_err(failed(&path))?;
                first.left.push((path, file));
            }
            Some(kind) => {
                // Beside it there are no others.
                (first.bounds, first.place) = (None, path);
                // Who is to read is waited for while nothing else is open yet.
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
                // It has gone meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&path)(error)),
            }
        }
        Ok(first)
    }

    /// Takes away what an earlier capture has left; nothing, if another one that began meanwhile has a file in its place.
    pub(super) fn clear(&mut self) -> Result<(), CaptureError> {
        for (path, file) in &self.left {
            is_in_place(file, path).map_err(failed(path))?;
        }
        self.left.drain(..).try_for_each(|(path, _lock)| remove(&path))
    }

    /// True if it is there already, and is written over.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The file, empty.
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

/// Where links lead, if there are some. It need not be there.
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

/// What a link says; None for what is none, or is not there. Only root's and our own are believed.
fn target(path: &Path) -> io::Result<Option<PathBuf>> {
    // The link itself is held, so that nobody puts another one in its place meanwhile.
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

/// Opens a file that is there. What has taken its place since somebody looked, a link or a pipe, is neither followed nor waited for.
fn open_file(options: &mut OpenOptions, path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(in_the_way());
    }
    Ok((file, meta))
}

/// A file whose content goes when the capture begins; until then it is only locked.
fn written_over(path: &Path) -> io::Result<File> {
    let (file, _) = open_file(OpenOptions::new().write(true), path)?;
    is_free(file.try_lock())?;
    Ok(file)
}

/// A file that an earlier capture has left and none writes; a link is none.
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
    // On some file systems who cannot write has shared locks only.
    is_free(file.try_lock_shared())?;
    Ok(file)
}

/// Where a file is.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a file can be made: who has to wait for it until all else is open is told now that it will fail.
fn may_make(path: &Path) -> io::Result<()> {
    Ok(access(directory(path), Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Whether a capture was killed as it began a file: then it is ours, or of whom the gateway has become, whose the directory is.
fn is_left_empty(path: &Path, meta: &Metadata) -> io::Result<bool> {
    let is_private = meta.len() == 0 && meta.mode() & 0o7777 == OWNERS_ONLY;
    let owner = || fs::metadata(directory(path)).map(|meta| meta.uid());
    Ok(is_private && (meta.uid() == geteuid().as_raw() || meta.uid() == owner()?))
}

/// An error if another file is where this one was; it may have gone.
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

/// Where there are no locks, nobody has one.
fn is_free(lock: Result<(), TryLockError>) -> io::Result<()> {
    match lock {
        Err(TryLockError::WouldBlock) => Err(refused(io::ErrorKind::ResourceBusy, IN_USE)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// A pipe, or what else takes no place on a disk. Whoever is to read it is waited for.
fn pipe(path: &Path) -> Result<File, CaptureError> {
    let failed = failed(path);
    let file = OpenOptions::new().write(true).open(path).map_err(&failed)?;
    // By this call, which the thread that writes captures may make. A file has no bound here.
    let meta = fstat(&file).map_err(|errno| failed(errno.into()))?;
    match FileType::from_raw_mode(meta.st_mode) {
        FileType::RegularFile => Err(failed(in_the_way())),
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests;
