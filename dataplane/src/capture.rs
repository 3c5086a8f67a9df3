//! Capture files: packets copied by taps, in pcap format.
//!
//! - InfiniBand packets go to the named file, as ERF records (link type 197), which common tools open
//!   directly.
//! - Ethernet packets go to a second file with the suffix `.eth.pcap`, which is created with the first
//!   packet.
//!
//! When a file is full, the capture continues in a numbered one (`FILE.1`, `FILE.1.eth.pcap`) and keeps the
//! newest.

mod files;
mod filter;
mod first;
mod progress;
mod recording;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use files::Bounds;
use files::{Files, Names};
pub use filter::Order;
use first::First;
pub use progress::Progress;
use progress::SharedProgress;
pub use recording::{Recording, State};
use tap::{DEFAULT_TAP_BYTES, FrameKind, Tap, TapReader, tap};

/// pcap link types.
const LINKTYPE_ETHERNET: u32 = 1;
const LINKTYPE_ERF: u32 = 197;
/// ERF record type of an InfiniBand packet.
const ERF_INFINIBAND: u8 = 21;
/// ERF flag for records of varying length.
const ERF_VARYING: u8 = 4;
const ERF_HEADER: usize = 16;
/// Suffix of the files with Ethernet packets.
const ETHERNET_ENDING: &str = ".eth.pcap";
/// Magic number of pcap with nanosecond timestamps.
const MAGIC: u32 = 0xa1b2_3c4d;
const SNAP_LEN: u32 = 0x4_0000;
/// Length of the file header, and of the header before each packet, in bytes.
const PCAP_HEADER: u64 = 24;
const PCAP_RECORD: u64 = 16;
/// Limits of one call to `drain`, in records and time, so that the control loop makes progress.
const MAX_DRAIN: usize = 65_536;
const SPELL: Duration = Duration::from_millis(2);
/// Number of records between two readings of the clock.
const RECORDS: usize = 32;

/// A capture file could not be written. The capture ends.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the capture file {path}")]
pub struct CaptureError {
    /// The file.
    pub path: PathBuf,
    /// The system error.
    #[source]
    pub source: io::Error,
}

/// One pcap file.
#[derive(Debug)]
struct Pcap {
    path: PathBuf,
    file: BufWriter<Arc<File>>,
}

impl Pcap {
    /// Starts a pcap stream in an empty file. Also returns the file, for a caller that keeps it open.
    fn begin(path: &Path, mut file: File, link_type: u32) -> Result<(Self, Arc<File>), CaptureError> {
        // Write the header immediately: a file without packets is valid pcap too.
        file.write_all(&header(link_type))
            .map_err(|source| CaptureError { path: path.to_owned(), source })?;
        let file = Arc::new(file);
        let writer = BufWriter::with_capacity(1 << 18, Arc::clone(&file));
        Ok((Self { path: path.to_owned(), file: writer }, file))
    }

    fn write(&mut self, time: u64, head: &[u8], packet: &[u8]) -> Result<(), CaptureError> {
        let len = (head.len() + packet.len()) as u32;
        let mut record = [0; 16];
        let fields = [(time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32, len, len];
        for (to, field) in record.chunks_exact_mut(4).zip(fields) {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        [&record[..], head, packet]
            .iter()
            .try_for_each(|bytes| self.file.write_all(bytes))
            .map_err(|source| self.failed(source))
    }

    fn flush(&mut self) -> Result<(), CaptureError> {
        self.file.flush().map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> CaptureError {
        CaptureError { path: self.path.clone(), source }
    }
}

/// Returns the pcap file header.
fn header(link_type: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(PCAP_HEADER as usize);
    header.extend(MAGIC.to_ne_bytes());
    header.extend(2u16.to_ne_bytes());
    header.extend(4u16.to_ne_bytes());
    header.extend([0; 8]);
    header.extend(SNAP_LEN.to_ne_bytes());
    header.extend(link_type.to_ne_bytes());
    header
}

/// ERF header of an InfiniBand packet of `len` bytes.
fn erf_header(time: u64, len: usize) -> [u8; ERF_HEADER] {
    // 32.32 fixed point seconds, little endian.
    let fraction = (time % 1_000_000_000) * (1 << 32) / 1_000_000_000;
    let stamp = (time / 1_000_000_000) << 32 | fraction;
    let [t0, t1, t2, t3, t4, t5, t6, t7] = stamp.to_le_bytes();
    let [r0, r1] = ((ERF_HEADER + len) as u16).to_be_bytes();
    let [w0, w1] = (len as u16).to_be_bytes();
    [t0, t1, t2, t3, t4, t5, t6, t7, ERF_INFINIBAND, ERF_VARYING, r0, r1, 0, 0, w0, w1]
}

/// Files of one kind of packets.
#[derive(Debug)]
struct Kind {
    first: First,
    /// `None` before the files are created.
    files: Option<Files>,
}

impl Kind {
    fn look(path: &Path, ending: &'static str, link_type: u32, bounds: Bounds) -> Result<Self, CaptureError> {
        let names = Names { stem: path.to_owned(), ending, is_first_numbered: false };
        Ok(Self { first: First::look(names, link_type, bounds, ending.is_empty())?, files: None })
    }

    /// Returns the files and creates them if necessary.
    fn files(&mut self, shared: &Arc<SharedProgress>) -> Result<&mut Files, CaptureError> {
        match &mut self.files {
            Some(files) => Ok(files),
            none => Ok(none.insert(Files::over(&mut self.first, shared)?)),
        }
    }
}

/// A running capture: its taps and its files. It is owned by the control side or by a separate thread.
#[derive(Debug)]
pub struct Capture {
    infiniband: Kind,
    /// Its files are created with the first packet.
    ethernet: Kind,
    taps: Vec<TapReader>,
    /// Overflows of removed taps.
    dropped_before: u64,
    shared: Arc<SharedProgress>,
    packet: Vec<u8>,
}

impl Capture {
    /// Prepares a capture to `path` and `path.eth.pcap`, each with the bounded number of files.
    ///
    /// It checks existing files but changes nothing, so a failed start leaves them untouched.
    /// [`begin`](Self::begin) overwrites or removes the files of an earlier capture.
    ///
    /// # Errors
    ///
    /// Fails if other files have these names, or another capture is writing them.
    pub fn prepare(path: &Path, bounds: Bounds) -> Result<Self, CaptureError> {
        // First, because opening `path` may wait for the reader of a pipe.
        let ethernet = Kind::look(path, ETHERNET_ENDING, LINKTYPE_ETHERNET, bounds)?;
        Ok(Self {
            infiniband: Kind::look(path, "", LINKTYPE_ERF, bounds)?,
            ethernet,
            taps: Vec::new(),
            dropped_before: 0,
            shared: SharedProgress::new(),
            packet: Vec::new(),
        })
    }

    /// Removes the files of an earlier capture and creates new ones.
    pub fn begin(&mut self) -> Result<(), CaptureError> {
        self.infiniband.first.clear()?;
        self.ethernet.first.clear()?;
        self.infiniband.files(&self.shared)?;
        if self.ethernet.first.is_open() {
            self.ethernet.files(&self.shared)?;
        }
        Ok(())
    }

    /// Prepares a capture and starts it immediately.
    pub fn create(path: &Path, bounds: Bounds) -> Result<Self, CaptureError> {
        let mut capture = Self::prepare(path, bounds)?;
        capture.begin()?;
        Ok(capture)
    }

    /// Creates a new tap of this capture.
    pub fn tap(&mut self) -> Tap {
        let (tap, reader) = tap(DEFAULT_TAP_BYTES);
        self.taps.push(reader);
        tap
    }

    /// Writes the packets of all taps in chronological order. Returns their number. Call it a few times per
    /// second, and once more after the last packet.
    pub fn drain(&mut self) -> Result<usize, CaptureError> {
        let written = self.spell().inspect_err(|_| {
            let kinds = [&mut self.infiniband, &mut self.ethernet];
            kinds.into_iter().filter_map(|kind| kind.files.as_mut()).for_each(Files::give_up);
        });
        let gone = |tap: &mut TapReader| tap.is_abandoned() && tap.peek().is_none();
        self.dropped_before += self.taps.extract_if(.., gone).map(|tap| tap.dropped()).sum::<u64>();
        written
    }

    /// Writes for a limited time. Returns the number of packets.
    fn spell(&mut self) -> Result<usize, CaptureError> {
        let (begin, mut n) = (Instant::now(), 0);
        while n < MAX_DRAIN {
            if n % RECORDS == RECORDS - 1 && begin.elapsed() >= SPELL {
                break;
            }
            let oldest = self
                .taps
                .iter_mut()
                .filter_map(|tap| tap.peek().map(|header| (header.time, tap)))
                .min_by_key(|(time, _)| *time);
            let Some(header) = oldest.and_then(|(_, tap)| tap.pop(&mut self.packet)) else { break };
            n += 1;
            self.shared.seen(1);
            let erf;
            let (kind, head): (_, &[u8]) = match header.kind {
                FrameKind::InfiniBand => {
                    erf = erf_header(header.time, self.packet.len());
                    (&mut self.infiniband, &erf)
                }
                FrameKind::Ethernet => (&mut self.ethernet, &[]),
            };
            let files = kind.files(&self.shared).inspect_err(|_| self.shared.left(1))?;
            files.write(header.time, head, &self.packet)?;
        }
        if n > 0 {
            for kind in [&mut self.infiniband, &mut self.ethernet] {
                kind.files.as_mut().map_or(Ok(()), Files::flush)?;
            }
        }
        Ok(n)
    }

    /// Ends the capture and counts the packets in the taps as missing, at most one ring length per tap.
    ///
    /// Rings of taps that are still in use are leaked, because a worker must not free memory.
    pub fn leave_rest(mut self) {
        let mut missing = 0;
        for tap in &mut self.taps {
            let mut left = DEFAULT_TAP_BYTES;
            while left > 0 && tap.pop(&mut self.packet).is_some() {
                left = left.saturating_sub(self.packet.len() + 1);
                missing += 1;
            }
        }
        self.shared.seen(missing);
        self.shared.left(missing);
        self.shared.over(self.dropped());
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.taps).into_iter().partition(TapReader::is_abandoned);
        drop(gone);
        std::mem::forget(kept);
    }

    /// Number of packets written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.progress().counts()[0]
    }

    /// Returns a handle to the progress, for other threads. It includes the losses of the current taps.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::new(&self.shared, &self.taps)
    }

    /// Number of packets missing because a tap's ring was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_before + self.taps.iter().map(TapReader::dropped).sum::<u64>()
    }
}

#[cfg(test)]
mod tests;
