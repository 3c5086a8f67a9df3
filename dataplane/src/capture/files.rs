//! Files of a capture. Number and length are limited, so the disk usage is bounded. The newest files are
//! kept.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::first::{First, directory};
use super::progress::SharedProgress;
use super::{CaptureError, PCAP_HEADER, PCAP_RECORD, Pcap};

/// Limits on the disk usage of a capture, for each kind of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Number of files to keep.
    pub files: u32,
    /// Maximum length of a file in bytes.
    pub size: u64,
}

impl Bounds {
    /// Maximum number of files.
    pub const MOST_FILES: u32 = 64;
    /// Minimum file length in bytes.
    pub const LEAST_SIZE: u64 = 64 << 10;
    /// Maximum file length in bytes.
    pub const MOST_SIZE: u64 = 64 << 20;
}

impl Default for Bounds {
    fn default() -> Self {
        Self { files: 4, size: 16 << 20 }
    }
}

pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> CaptureError + use<> {
    let path = path.to_owned();
    move |source| CaptureError { path: path.clone(), source }
}

/// File names of a capture: `STEM.N` and an ending, with N counting from 0.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) stem: PathBuf,
    pub(super) ending: &'static str,
    /// True if the first file has a number too.
    pub(super) is_first_numbered: bool,
}

impl Names {
    pub(super) fn of(&self, number: u64) -> PathBuf {
        let mut name = OsString::from(&self.stem);
        if number > 0 || self.is_first_numbered {
            name.push(format!(".{number}"));
        }
        name.push(self.ending);
        name.into()
    }

    /// Returns the existing numbered files, regardless of their origin.
    pub(super) fn there(&self) -> Result<Vec<PathBuf>, CaptureError> {
        let Some(name) = self.stem.file_name() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let failed = failed(&self.of(0));
        for entry in fs::read_dir(directory(&self.stem)).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let file = entry.file_name();
            let rest = file.as_bytes().strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
            let number = rest.and_then(|rest| rest.strip_suffix(self.ending.as_bytes()));
            if number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit)) {
                found.push(self.stem.with_file_name(file));
            }
        }
        Ok(found)
    }

    /// Fails if a numbered file exists.
    pub(super) fn refuse_used(&self) -> Result<(), CaptureError> {
        match self.there()?.pop() {
            Some(path) => Err(failed(&path)(io::ErrorKind::AlreadyExists.into())),
            None => Ok(()),
        }
    }
}

/// Removes a file, which may already be gone. Fails without permission, since the disk usage would be
/// unbounded.
pub(super) fn remove(path: &Path) -> Result<(), CaptureError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

/// Files of one kind of packets that are being written.
#[derive(Debug)]
pub(super) struct Files {
    names: Names,
    link_type: u32,
    /// `None` for a target that uses no disk space, such as a pipe.
    bounds: Option<Bounds>,
    /// Kept files. They stay open, so that no other capture takes them for leftovers ([`create`]).
    kept: VecDeque<(PathBuf, Arc<File>)>,
    newest: Pcap,
    /// Number of bytes in it.
    bytes: u64,
    number: u64,
    /// Packets not yet flushed to the file. They are reported after the flush.
    unflushed: u64,
    shared: Arc<SharedProgress>,
}

impl Files {
    /// Creates the files, starting with a new one.
    pub(super) fn begin(
        names: Names,
        link_type: u32,
        bounds: Bounds,
        shared: &Arc<SharedProgress>,
    ) -> Result<Self, CaptureError> {
        let path = names.of(0);
        let file = create(&path)?;
        Self::with(names, (file, path), link_type, Some(bounds), shared)
    }

    /// Creates the files, starting with one that may have existed.
    pub(super) fn over(first: &mut First, shared: &Arc<SharedProgress>) -> Result<Self, CaptureError> {
        let opened = first.make()?;
        Self::with(first.names.clone(), opened, first.link_type, first.bounds, shared)
    }

    fn with(
        names: Names,
        (file, path): (File, PathBuf),
        link_type: u32,
        bounds: Option<Bounds>,
        shared: &Arc<SharedProgress>,
    ) -> Result<Self, CaptureError> {
        let (newest, file) = Pcap::begin(&path, file, link_type)?;
        shared.files().push_back(path.clone());
        Ok(Self {
            names,
            link_type,
            bounds,
            kept: VecDeque::from([(path, file)]),
            newest,
            bytes: PCAP_HEADER,
            number: 0,
            unflushed: 0,
            shared: Arc::clone(shared),
        })
    }

    /// Writes a packet with a header. Returns false if it is longer than the maximum file length; it then
    /// counts as missing.
    pub(super) fn write(&mut self, time: u64, head: &[u8], packet: &[u8]) -> Result<bool, CaptureError> {
        let more = PCAP_RECORD + (head.len() + packet.len()) as u64;
        if let Some(bounds) = self.bounds {
            if PCAP_HEADER + more > bounds.size {
                self.shared.left(1);
                return Ok(false);
            }
            if self.bytes + more > bounds.size {
                self.go_on(bounds).inspect_err(|_| self.shared.left(1))?;
            }
        }
        self.unflushed += 1;
        self.newest.write(time, head, packet)?;
        self.bytes += more;
        Ok(true)
    }

    /// Starts the next file. Removes the oldest one first, so that the limit is never exceeded.
    fn go_on(&mut self, bounds: Bounds) -> Result<(), CaptureError> {
        self.flush()?;
        if self.kept.len() >= bounds.files as usize
            && let Some((oldest, _lock)) = self.kept.pop_front()
        {
            self.shared.files().retain(|path| *path != oldest);
            remove(&oldest)?;
        }
        self.number += 1;
        let path = self.names.of(self.number);
        let (newest, file) = Pcap::begin(&path, create(&path)?, self.link_type)?;
        self.newest = newest;
        self.bytes = PCAP_HEADER;
        self.shared.files().push_back(path.clone());
        self.kept.push_back((path, file));
        Ok(())
    }

    /// Flushes all written packets to the file.
    pub(super) fn flush(&mut self) -> Result<(), CaptureError> {
        self.newest.flush()?;
        self.shared.written(std::mem::take(&mut self.unflushed));
        Ok(())
    }

    /// Counts unflushed packets as missing.
    pub(super) fn give_up(&mut self) {
        self.shared.left(std::mem::take(&mut self.unflushed));
    }
}

/// Creates a file that only its owner may read. Fails if the path exists, also as a symbolic link. The file
/// stays locked while it is open.
pub(super) fn create(path: &Path) -> Result<File, CaptureError> {
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed(path))?;
    // Another process can hold the lock only briefly while it checks the file. Without lock support the file
    // is written anyway.
    let _ = file.try_lock();
    Ok(file)
}
