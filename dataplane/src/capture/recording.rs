//! A recording: a capture of Ethernet frames that begins and ends while the program runs, bounded in time and on disk.
//!
//! Its files are `NAME.N.pcap` in one directory, N counted up; when there are as many as were ordered, the oldest of its own goes. Nothing that
//! is there is ever written over: a name with files is refused.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tap::{FrameKind, Tap, TapReader, tap};

use super::files::{Files, Names};
use super::filter::Order;
use super::progress::{Progress, Told};
use super::{CaptureError, LINKTYPE_ETHERNET};

/// Longest that one call works on, and frames between two looks at the clock.
const SPELL: Duration = Duration::from_millis(2);
const FRAMES: usize = 32;
/// Between two looks at taps that are empty, at the end.
const PAUSE: Duration = Duration::from_micros(200);
/// Bytes of a worker's ring.
const RING: usize = 2 << 20;

/// A recording, on the side of who writes it.
#[derive(Debug)]
pub struct Recording {
    order: Order,
    taps: Vec<TapReader>,
    files: Files,
    began: Instant,
    seen: u64,
    written: u64,
    told: Arc<Told>,
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
        let names = Names { stem: directory.join(&order.name), ending: ".pcap", is_first_numbered: true };
        names.refuse_used()?;
        let told = Told::new();
        let files = Files::begin(names, LINKTYPE_ETHERNET, order.bounds, &told)?;
        Ok(Self { order, taps: Vec::new(), files, began: now, seen: 0, written: 0, told, packet: Vec::new() })
    }

    /// A tap of a worker that is to be recorded.
    pub fn tap(&mut self) -> Tap {
        let (tap, reader) = tap(RING);
        self.taps.push(reader);
        tap
    }

    /// Writes what the taps have, in order of time, for a moment at most. Call it in each turn.
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
                self.told.seen(1);
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

    /// Writes all that the taps have, for the end: until nobody puts anything in any more and nothing is left, or, if that takes longer than
    /// `patience`, until then.
    pub fn drain_all(&mut self, patience: Duration) -> Result<(), CaptureError> {
        let begin = Instant::now();
        loop {
            // In this order: what was put in before the tap went is seen.
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

    /// Counts what the taps have and nobody will write: it is missing, unless there is all that was ordered. Reads a ring's length at most,
    /// though workers may go on filling it.
    pub fn leave_rest(&mut self) {
        if self.written < self.order.packets {
            self.pass_rest();
        }
        self.told.over(self.taps.iter().map(TapReader::dropped).sum());
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
        self.told.seen(seen);
        self.told.left(missing);
    }

    /// True when no worker has a tap of it any more: then it can be dropped without a worker freeing anything.
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        self.taps.iter().all(TapReader::is_abandoned)
    }

    /// How it stands, for others than who drains it. All taps have been made.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::new(&self.told, &self.taps)
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
        // 76 bytes each in the file: 862 to a file.
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
        let progress = recording.progress();
        recording.drain_all(Duration::from_secs(60)).unwrap();
        assert_eq!(progress.counts(), [30_000, 30_000, 0]);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Idle);
        // Whoever does not let go is not waited for without end, and what he has put in by then is written.
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
        // What came after all that was ordered is missed by nobody.
        let mut recording = begin(&folder, "few,packets=3");
        let mut tap = recording.tap();
        offer(&mut tap, 10);
        assert_eq!(recording.drain(Instant::now()).unwrap(), State::Done);
        recording.leave_rest();
        assert_eq!(recording.progress().counts(), [3, 3, 0]);
        // Nor what workers offer until they let go, though it fills the ring.
        offer(&mut tap, 100_000);
        assert_eq!((recording.progress().counts(), recording.taps[0].dropped() > 0), ([3, 3, 0], true));
    }

    #[test]
    fn it_ends_after_so_many_packets_or_so_long() {
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
