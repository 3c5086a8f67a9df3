//! The files of a capture: the newest so many, and none longer than ordered, so that the disk that they take is bounded.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::first::{First, directory};
use super::progress::Told;
use super::{CaptureError, PCAP_HEADER, PCAP_RECORD, Pcap};

/// What a capture may take on disk, of each kind of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Files that are kept, the newest.
    pub files: u32,
    /// Bytes of each, at most.
    pub size: u64,
}

impl Bounds {
    /// Most files that may be ordered.
    pub const MOST_FILES: u32 = 64;
    /// Fewest bytes of one.
    pub const LEAST_SIZE: u64 = 64 << 10;
    /// Most bytes of one.
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

/// What the files of a capture are called: `STEM.N` and an ending, N counted up from 0.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) stem: PathBuf,
    pub(super) ending: &'static str,
    /// The first one has its number, too.
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

    /// Files that are there with a number, whoever made them.
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

    /// An error if there is a file with a number.
    pub(super) fn refuse_used(&self) -> Result<(), CaptureError> {
        match self.there()?.pop() {
            Some(path) => Err(failed(&path)(io::ErrorKind::AlreadyExists.into())),
            None => Ok(()),
        }
    }
}

/// Somebody else may have taken it away. Where that is forbidden nothing would bound the disk that is used.
pub(super) fn remove(path: &Path) -> Result<(), CaptureError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

/// Files of one kind of packets, as they are written.
#[derive(Debug)]
pub(super) struct Files {
    names: Names,
    link_type: u32,
    /// None for what takes no place on a disk: a pipe.
    bounds: Option<Bounds>,
    /// They stay open: so nobody else takes them for what an earlier capture has left ([`create`]).
    kept: VecDeque<(PathBuf, Arc<File>)>,
    newest: Pcap,
    /// Bytes in it.
    bytes: u64,
    number: u64,
    /// Packets that are not in it yet: they are told of when they are.
    unflushed: u64,
    told: Arc<Told>,
}

impl Files {
    /// With a first file that is new.
    pub(super) fn begin(
        names: Names,
        link_type: u32,
        bounds: Bounds,
        told: &Arc<Told>,
    ) -> Result<Self, CaptureError> {
        let path = names.of(0);
        let file = create(&path)?;
        Self::with(names, (file, path), link_type, Some(bounds), told)
    }

    /// With a first file that may have been there before.
    pub(super) fn over(first: &mut First, told: &Arc<Told>) -> Result<Self, CaptureError> {
        let opened = first.make()?;
        Self::with(first.names.clone(), opened, first.link_type, first.bounds, told)
    }

    fn with(
        names: Names,
        (file, path): (File, PathBuf),
        link_type: u32,
        bounds: Option<Bounds>,
        told: &Arc<Told>,
    ) -> Result<Self, CaptureError> {
        let (newest, file) = Pcap::begin(&path, file, link_type)?;
        told.files().push_back(path.clone());
        Ok(Self {
            names,
            link_type,
            bounds,
            kept: VecDeque::from([(path, file)]),
            newest,
            bytes: PCAP_HEADER,
            number: 0,
            unflushed: 0,
            told: Arc::clone(told),
        })
    }

    /// Writes a packet behind its head. False if it is longer than any file may be: then it is missing.
    pub(super) fn write(&mut self, time: u64, head: &[u8], packet: &[u8]) -> Result<bool, CaptureError> {
        let more = PCAP_RECORD + (head.len() + packet.len()) as u64;
        if let Some(bounds) = self.bounds {
            if PCAP_HEADER + more > bounds.size {
                self.told.left(1);
                return Ok(false);
            }
            if self.bytes + more > bounds.size {
                self.go_on(bounds).inspect_err(|_| self.told.left(1))?;
            }
        }
        self.unflushed += 1;
        self.newest.write(time, head, packet)?;
        self.bytes += more;
        Ok(true)
    }

    /// Begins another file. The oldest goes first, so that there are never more than were ordered.
    fn go_on(&mut self, bounds: Bounds) -> Result<(), CaptureError> {
        self.flush()?;
        if self.kept.len() >= bounds.files as usize
            && let Some((oldest, _lock)) = self.kept.pop_front()
        {
            self.told.files().retain(|path| *path != oldest);
            remove(&oldest)?;
        }
        self.number += 1;
        let path = self.names.of(self.number);
        let (newest, file) = Pcap::begin(&path, create(&path)?, self.link_type)?;
        self.newest = newest;
        self.bytes = PCAP_HEADER;
        self.told.files().push_back(path.clone());
        self.kept.push_back((path, file));
        Ok(())
    }

    /// All that was written is in the file.
    pub(super) fn flush(&mut self) -> Result<(), CaptureError> {
        self.newest.flush()?;
        self.told.written(std::mem::take(&mut self.unflushed));
        Ok(())
    }

    /// What is not in the file now will not be.
    pub(super) fn give_up(&mut self) {
        self.told.left(std::mem::take(&mut self.unflushed));
    }
}

/// A new file, which only its owner reads, and never one that is there, or is a link to elsewhere. It is locked for as long as it is open.
pub(super) fn create(path: &Path) -> Result<File, CaptureError> {
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed(path))?;
    // Nobody else can have one for longer than a look takes; and where there are no locks it is written all the same.
    let _ = file.try_lock();
    Ok(file)
}
