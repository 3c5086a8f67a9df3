//! A recording: a capture of Ethernet frames that starts and stops while the program runs, limited in time
//! and disk usage.
//!
//! Its files are `NAME.N.pcap` in one directory, with increasing N. When their number reaches the limit, the
//! oldest one is removed. Existing files are never overwritten: a name with existing files is rejected.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tap::{FrameKind, Tap, TapReader, tap};

use super::files::{Files, Names};
use super::filter::Order;
use super::progress::{Progress, SharedProgress};
use super::{CaptureError, LINKTYPE_ETHERNET};

/// Time limit of one call, and the number of frames between two readings of the clock.
const SPELL: Duration = Duration::from_millis(2);
const FRAMES: usize = 32;
/// Interval between polls of empty taps at the end.
const PAUSE: Duration = Duration::from_micros(200);
/// Length of a worker's ring in bytes.
const RING: usize = 2 << 20;

/// The writer's side of a recording.
#[derive(Debug)]
pub struct Recording {
    order: Order,
    taps: Vec<TapReader>,
    files: Files,
    began: Instant,
    seen: u64,
    written: u64,
    shared: Arc<SharedProgress>,
    packet: Vec<u8>,
}

/// State of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Running; the taps had frames.
    Busy,
    /// Running; the taps were empty.
    Idle,
    /// Finished: a limit on packets or time was reached.
    Done,
}

impl Recording {
    /// Starts a recording in a directory without files of an earlier one with that name.
    pub fn begin(directory: &Path, order: Order, now: Instant) -> Result<Self, CaptureError> {
        let names = Names { stem: directory.join(&order.name), ending: ".pcap", is_first_numbered: true };
        names.refuse_used()?;
        let shared = SharedProgress::new();
        let files = Files::begin(names, LINKTYPE_ETHERNET, order.bounds, &shared)?;
        Ok(Self {
            order,
            taps: Vec::new(),
            files,
            began: now,
            seen: 0,
            written: 0,
            shared,
            packet: Vec::new(),
        })
    }

    /// Creates a tap for a worker.
    pub fn tap(&mut self) -> Tap {
        let (tap, reader) = tap(RING);
        self.taps.push(reader);
        tap
    }

    /// Writes the frames of all taps in chronological order, for a limited time. Call it in each iteration.
    pub fn drain(&mut self, now: Instant) -> Result<State, CaptureError> {
        self.spell(now).inspect_err(|_| self.files.give_up())
    }

    fn spell(&mut self, now: Instant) -> Result<State, CaptureError> {
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
                self.shared.seen(1);
                if header.kind == FrameKind::Ethernet && self.order.wants(header.direction, &self.packet) {
                    self.written += u64::from(self.files.write(header.time, &[], &self.packet)?);
                    any = true;
                }
            }
            if begin.elapsed() >= SPELL {
                break;
            }
        }
        if any {
            self.files.flush()?;
        }
        let is_over = self.written >= self.order.packets
            || now.saturating_duration_since(self.began) >= self.order.time;
        Ok(match is_over {
            true => State::Done,
            false if self.seen > before => State::Busy,
            false => State::Idle,
        })
    }

    /// Writes the remaining frames at the end of the recording.
    ///
    /// It returns when all taps are dropped and empty, or after `patience`.
    pub fn drain_all(&mut self, patience: Duration) -> Result<(), CaptureError> {
        let begin = Instant::now();
        loop {
            // In this order, to include frames added before the tap was dropped.
            let is_let_go = self.is_let_go();
            let before = self.seen;
            let state = self.drain(Instant::now())?;
            let is_all = is_let_go && self.seen == before;
            if is_all || self.written >= self.order.packets || begin.elapsed() >= patience {
                return Ok(());
            }
            if state != State::Busy && self.seen == before {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Counts the frames in the taps as missing, unless the recording was complete. Reads at most one ring
    /// length per tap, since workers may keep filling it.
    pub fn leave_rest(&mut self) {
        if self.written < self.order.packets {
            self.pass_rest();
        }
        self.shared.over(self.taps.iter().map(TapReader::dropped).sum());
    }

    fn pass_rest(&mut self) {
        let (mut seen, mut missing) = (0, 0);
        for tap in &mut self.taps {
            let mut left = RING;
            while left > 0
                && let Some(header) = tap.pop(&mut self.packet)
            {
                left = left.saturating_sub(self.packet.len() + 1);
                seen += 1;
                let is_wanted =
                    header.kind == FrameKind::Ethernet && self.order.wants(header.direction, &self.packet);
                missing += u64::from(is_wanted);
            }
        }
        self.seen += seen;
        self.shared.seen(seen);
        self.shared.left(missing);
    }

    /// True if no worker holds a tap any more. It can then be dropped without a worker freeing memory.
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        self.taps.iter().all(TapReader::is_abandoned)
    }

    /// Returns a handle to the progress, for other threads. All taps must have been created.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::new(&self.shared, &self.taps)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Folder, ethernet};
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::{fs, io};
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
        // Each takes 76 bytes in the file: 862 per file.
        for _ in 0..30 {
            offer(&mut tap, 100);
            assert_eq!(recording.drain(Instant::now()).unwrap(), State::Busy);
        }
        while recording.progress().counts()[1] < 3000 {
            recording.drain(Instant::now()).unwrap();
        }
        assert_eq!(recording.progress().counts(), [3000, 3000, 0]);
        let mut files: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        assert_eq!(files, recording.progress().files());
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
        // A symbolic link is not followed, even a dangling one.
        fs::remove_file(folder.0.join("c.0.pcap")).unwrap();
        std::os::unix::fs::symlink(folder.0.join("elsewhere"), folder.0.join("c.0.pcap")).unwrap();
        assert!(Recording::begin(&folder.0, order(), Instant::now()).is_err());
        assert!(!folder.0.join("elsewhere").exists());
        // A recording that would reach an existing file later is rejected too, before it removes others.
        fs::remove_file(folder.0.join("c.0.pcap")).unwrap();
        fs::write(folder.0.join("c.5.pcap"), "mine").unwrap();
        let error = Recording::begin(&folder.0, order(), Instant::now()).unwrap_err();
        assert_eq!(
            (error.source.kind(), error.path),
            (io::ErrorKind::AlreadyExists, folder.0.join("c.5.pcap"))
        );
        assert!(!folder.0.join("c.0.pcap").exists());
        fs::remove_file(folder.0.join("c.5.pcap")).unwrap();
        // Files with other names do not matter.
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
        let progress = recording.progress();
        recording.drain_all(Duration::from_secs(60)).unwrap();
        assert_eq!(progress.counts(), [30_000, 30_000, 0]);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Idle);
        // It does not wait forever for a worker that keeps its tap. Frames added by then are written.
        let mut recording = begin(&folder, "held");
        let mut tap = recording.tap();
        offer(&mut tap, 100);
        recording.drain_all(Duration::from_secs(2)).unwrap();
        assert_eq!(recording.progress().counts(), [100, 100, 0]);
        let mut recording = begin(&folder, "some");
        let mut tap = recording.tap();
        offer(&mut tap, 100);
        tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 30]);
        recording.leave_rest();
        assert_eq!(recording.progress().counts(), [0, 101, 100]);
        // Frames after the limit do not count as missing.
        let mut recording = begin(&folder, "few,packets=3");
        let mut tap = recording.tap();
        offer(&mut tap, 10);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Done);
        recording.leave_rest();
        assert_eq!(recording.progress().counts(), [3, 3, 0]);
        // Neither do frames offered until the taps are dropped, even if they fill the ring.
        offer(&mut tap, 100_000);
        assert_eq!((recording.progress().counts(), recording.taps[0].dropped() > 0), ([3, 3, 0], true));
    }

    #[test]
    fn it_ends_at_the_packet_or_time_limit() {
        let folder = Folder::new("ends");
        let mut recording = begin(&folder, "packets,packets=5");
        let mut tap = recording.tap();
        offer(&mut tap, 9);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Done);
        assert_eq!(recording.progress().counts()[0], 5);
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
