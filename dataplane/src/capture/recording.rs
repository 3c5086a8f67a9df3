//! A recording: a capture of Ethernet frames that begins and ends while the program runs, bounded in time and on disk.
//!
//! Its files are `NAME.N.pcap` in one directory, N counted up; when there are as many as were ordered, the oldest of its own goes. Nothing that
//! is there is ever written over: a name with files is refused.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tap::{FrameKind, Tap, TapReader, tap};

use super::filter::Order;
use super::{CaptureError, LINKTYPE_ETHERNET, PCAP_HEADER, PCAP_RECORD, Pcap};

/// Longest that one call works on, and frames between two looks at the clock.
const SPELL: Duration = Duration::from_millis(2);
const FRAMES: usize = 32;
/// Bytes of a worker's ring.
const RING: usize = 2 << 20;

/// A recording, on the control side.
#[derive(Debug)]
pub struct Recording {
    directory: PathBuf,
    order: Order,
    taps: Vec<TapReader>,
    file: Pcap,
    /// Bytes in the newest file.
    bytes: u64,
    /// Files that are kept, the newest last.
    files: VecDeque<PathBuf>,
    number: u64,
    began: Instant,
    seen: u64,
    written: u64,
    dropped: u64,
    packet: Vec<u8>,
}

/// Whether a recording goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It does, and the taps had something.
    Busy,
    /// It does; there was nothing.
    Idle,
    /// It has as many packets as were ordered, or has lasted as long.
    Done,
}

impl Recording {
    /// Begins one in a directory, which has no file of an earlier one with that name.
    pub fn begin(directory: &Path, order: Order, now: Instant) -> Result<Self, CaptureError> {
        refuse_used(directory, &order.name)?;
        let (path, file) = create(directory, &order.name, 0)?;
        Ok(Self {
            directory: directory.to_owned(),
            order,
            taps: Vec::new(),
            file,
            bytes: PCAP_HEADER,
            files: VecDeque::from([path]),
            number: 0,
            began: now,
            seen: 0,
            written: 0,
            dropped: 0,
            packet: Vec::new(),
        })
    }

    /// A tap of a worker that is to be recorded.
    pub fn tap(&mut self) -> Tap {
        let (tap, reader) = tap(RING);
        self.taps.push(reader);
        tap
    }

    /// Writes what the taps have, in order of time, for a moment at most. Call it in each turn.
    pub fn drain(&mut self, now: Instant) -> Result<State, CaptureError> {
        let (begin, before) = (Instant::now(), self.seen);
        let mut any = false;
        'spell: loop {
            for _ in 0..FRAMES {
                if self.written >= self.order.packets {
                    break 'spell;
                }
                let taps = self.taps.iter_mut();
                let oldest =
                    taps.filter_map(|tap| Some((tap.peek()?.time, tap))).min_by_key(|(time, _)| *time);
                let Some(header) = oldest.and_then(|(_, tap)| tap.pop(&mut self.packet)) else {
                    break 'spell;
                };
                self.seen += 1;
                if header.kind == FrameKind::Ethernet && self.order.wants(header.direction, &self.packet) {
                    self.write(header.time)?;
                    any = true;
                }
            }
            if begin.elapsed() >= SPELL {
                break;
            }
        }
        if any {
            self.file.flush()?;
        }
        let gone = |tap: &mut TapReader| tap.is_abandoned() && tap.peek().is_none();
        self.dropped += self.taps.extract_if(.., gone).map(|tap| tap.dropped()).sum::<u64>();
        let is_over = self.written >= self.order.packets
            || now.saturating_duration_since(self.began) >= self.order.time;
        Ok(match is_over {
            true => State::Done,
            false if self.seen > before => State::Busy,
            false => State::Idle,
        })
    }

    /// Writes all that the taps have. For the end, when nobody puts anything in any more.
    pub fn drain_all(&mut self, now: Instant) -> Result<(), CaptureError> {
        loop {
            let before = self.seen;
            self.drain(now)?;
            if self.seen == before {
                return Ok(());
            }
        }
    }

    /// Counts what the taps have and nobody will write: it is missing, unless there is all that was ordered. Reads a ring's length at most,
    /// though workers may go on filling it.
    pub fn leave_rest(&mut self) {
        if self.written >= self.order.packets {
            return;
        }
        for tap in &mut self.taps {
            let mut left = RING;
            while left > 0
                && let Some(header) = tap.pop(&mut self.packet)
            {
                left = left.saturating_sub(self.packet.len() + 1);
                self.seen += 1;
                let is_wanted =
                    header.kind == FrameKind::Ethernet && self.order.wants(header.direction, &self.packet);
                self.dropped += u64::from(is_wanted);
            }
        }
    }

    fn write(&mut self, time: u64) -> Result<(), CaptureError> {
        let more = PCAP_RECORD + self.packet.len() as u64;
        if self.bytes + more > self.order.size {
            self.file.flush()?;
            self.number += 1;
            let (path, file) = create(&self.directory, &self.order.name, self.number)?;
            (self.file, self.bytes) = (file, PCAP_HEADER);
            self.files.push_back(path);
            if self.files.len() > self.order.files as usize
                && let Some(oldest) = self.files.pop_front()
            {
                // Somebody else may have taken it away.
                let _ = fs::remove_file(oldest);
            }
        }
        self.file.write(time, &[], &self.packet)?;
        self.bytes += more;
        self.written += 1;
        Ok(())
    }

    /// True when no worker has a tap of it any more: then it can be dropped without a worker freeing anything.
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        self.taps.iter().all(TapReader::is_abandoned)
    }

    /// Packets written, packets that were looked at, packets that are missing: a tap's ring was full, or they were in it at the end.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        let dropped = self.dropped + self.taps.iter().map(TapReader::dropped).sum::<u64>();
        [self.written, self.seen, dropped]
    }

    /// The files that are kept, the newest last.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }
}

/// An error if there is a file of that name, with any number.
fn refuse_used(directory: &Path, name: &str) -> Result<(), CaptureError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| CaptureError { path, source }
    };
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let entry = entry.map_err(failed(directory))?;
        let file = entry.file_name();
        let rest = file.to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix('.'));
        let number = rest.and_then(|rest| rest.strip_suffix(".pcap"));
        if number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())) {
            return Err(failed(&entry.path())(io::ErrorKind::AlreadyExists.into()));
        }
    }
    Ok(())
}

/// A new file, which only its owner reads, and never one that is there, or is a link to elsewhere.
fn create(directory: &Path, name: &str, number: u64) -> Result<(PathBuf, Pcap), CaptureError> {
    let path = directory.join(format!("{name}.{number}.pcap"));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|source: io::Error| CaptureError { path: path.clone(), source })?;
    let file = Pcap::begin(&path, file, LINKTYPE_ETHERNET)?;
    Ok((path, file))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Folder, ethernet};
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use tap::TapDirection;

    fn begin(folder: &Folder, words: &str) -> Recording {
        Recording::begin(&folder.0, Order::parse(words).unwrap(), Instant::now()).unwrap()
    }

    fn offer(tap: &mut Tap, n: usize) {
        (0..n).for_each(|_| tap.offer(FrameKind::Ethernet, TapDirection::Sent, &ethernet()));
    }

    #[test]
    fn the_newest_files_are_kept_and_none_is_longer_than_ordered() {
        let folder = Folder::new("rotated");
        let mut recording = begin(&folder, "c,files=2,size=65536");
        let mut tap = recording.tap();
        // 76 bytes each in the file: 862 to a file.
        for _ in 0..30 {
            offer(&mut tap, 100);
            assert_eq!(recording.drain(Instant::now()).unwrap(), State::Busy);
        }
        while recording.counts()[1] < 3000 {
            recording.drain(Instant::now()).unwrap();
        }
        assert_eq!(recording.counts(), [3000, 3000, 0]);
        let mut files: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        assert_eq!(files, recording.files().map(Path::to_owned).collect::<Vec<_>>());
        assert_eq!(files, ["c.2.pcap", "c.3.pcap"].map(|name| folder.0.join(name)));
        for file in files {
            let meta = fs::metadata(&file).unwrap();
            assert!(meta.len() <= 65_536);
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn what_is_there_stays() {
        let folder = Folder::new("there");
        let order = || Order::parse("c").unwrap();
        fs::write(folder.0.join("c.0.pcap"), "mine").unwrap();
        let error = Recording::begin(&folder.0, order(), Instant::now()).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(folder.0.join("c.0.pcap")).unwrap(), "mine");
        // A link, even one that leads nowhere, is not followed.
        fs::remove_file(folder.0.join("c.0.pcap")).unwrap();
        std::os::unix::fs::symlink(folder.0.join("elsewhere"), folder.0.join("c.0.pcap")).unwrap();
        assert!(Recording::begin(&folder.0, order(), Instant::now()).is_err());
        assert!(!folder.0.join("elsewhere").exists());
        // Nor does one begin that would come upon a file later, after it has taken others away.
        fs::remove_file(folder.0.join("c.0.pcap")).unwrap();
        fs::write(folder.0.join("c.5.pcap"), "mine").unwrap();
        let error = Recording::begin(&folder.0, order(), Instant::now()).unwrap_err();
        assert_eq!(
            (error.source.kind(), error.path),
            (io::ErrorKind::AlreadyExists, folder.0.join("c.5.pcap"))
        );
        assert!(!folder.0.join("c.0.pcap").exists());
        fs::remove_file(folder.0.join("c.5.pcap")).unwrap();
        // Files of other names are no hindrance.
        for other in ["c.pcap", "c..pcap", "c.x.pcap", "c.1.pcap.gz", "cc.1.pcap", "b.c.1.pcap"] {
            fs::write(folder.0.join(other), "").unwrap();
        }
        assert!(Recording::begin(&folder.0, order(), Instant::now()).is_ok());
    }

    #[test]
    fn what_is_in_the_rings_at_the_end_is_written_or_counted() {
        let folder = Folder::new("rest");
        let mut recording = begin(&folder, "all");
        let [mut one, mut two] = [recording.tap(), recording.tap()];
        offer(&mut one, 20_000);
        offer(&mut two, 10_000);
        drop((one, two));
        recording.drain_all(Instant::now()).unwrap();
        assert_eq!(recording.counts(), [30_000, 30_000, 0]);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Idle);
        let mut recording = begin(&folder, "some");
        let mut tap = recording.tap();
        offer(&mut tap, 100);
        tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 30]);
        recording.leave_rest();
        assert_eq!(recording.counts(), [0, 101, 100]);
        // What came after all that was ordered is missed by nobody.
        let mut recording = begin(&folder, "few,packets=3");
        let mut tap = recording.tap();
        offer(&mut tap, 10);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Done);
        recording.leave_rest();
        assert_eq!(recording.counts(), [3, 3, 0]);
    }

    #[test]
    fn it_ends_after_so_many_packets_or_so_long() {
        let folder = Folder::new("ends");
        let mut recording = begin(&folder, "packets,packets=5");
        let mut tap = recording.tap();
        offer(&mut tap, 9);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Done);
        assert_eq!(recording.counts()[0], 5);
        let mut recording = begin(&folder, "seconds,seconds=3");
        let began = recording.began;
        assert_eq!(recording.drain(began + Duration::from_millis(2999)).unwrap(), State::Idle);
        assert_eq!(recording.drain(began + Duration::from_secs(3)).unwrap(), State::Done);
        assert!(recording.is_let_go());
        let tap = recording.tap();
        assert!(!recording.is_let_go());
        drop(tap);
        assert!(recording.is_let_go());
    }
}
