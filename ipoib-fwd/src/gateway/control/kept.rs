//! Known hosts, saved for the next start: the control lcore collects them, and another thread writes them.

use std::path::Path;
use std::time::{Duration, Instant};

use config::SegmentName;
use pmd::hca::Backend;
use privileges::{Filter, FilterError};

use super::GatewayControl;
use super::duties::{Duties, SegmentDuty, parts};
use super::pair::infiniband_hosts;
use crate::forward::SegmentIndex;
use crate::gateway::keeper::{self, Keeper};
use crate::kept::{KeptFile, KeptSegment};

/// Time between two snapshots of all segments.
const PERIOD: Duration = Duration::from_secs(5);
/// The file is written this often although no host was added or removed: the ages in it would be outdated.
const REFRESH: Duration = Duration::from_secs(300);

/// The known hosts and the state of saving them.
#[derive(Debug)]
pub(in crate::gateway) struct Kept {
    /// Without a state directory nothing is written.
    keeper: Option<Keeper>,
    /// The contents of the file.
    file: KeptFile,
    written: Instant,
    /// The snapshot that is being taken, one segment at a time, and the next segment.
    snapshot: KeptFile,
    next: usize,
    due: Instant,
}

impl Kept {
    /// Without a file of an earlier run, and without a directory for a new one.
    pub(in crate::gateway) fn new(now: Instant) -> Self {
        let (file, snapshot) = (KeptFile::default(), KeptFile::default());
        Self { keeper: None, file, written: now, snapshot, next: 0, due: now + PERIOD }
    }

    /// With the file of an earlier run in this directory; the thread replaces it.
    pub(in crate::gateway) fn in_directory(now: Instant, directory: &Path, keeper: Keeper) -> Self {
        Self { keeper: Some(keeper), file: keeper::read(directory), ..Self::new(now) }
    }

    /// Everything is open: the thread restricts its system calls.
    pub(in crate::gateway) fn settle(&self, filter: Option<Filter>) -> Result<(), FilterError> {
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.settle(filter))
    }

    /// Restores the hosts that each segment knew before a restart.
    pub(in crate::gateway) fn restore(&self, now: Instant, duties: &mut Duties) {
        duties.iter_mut().for_each(|duty| self.restore_segment(now, duty));
    }

    /// Restores the hosts that a segment of this name knew before.
    pub(super) fn restore_segment(&self, now: Instant, duty: &mut SegmentDuty) {
        let of_name = |segment: &&KeptSegment| segment.name.as_str() == duty.name;
        if let Some(segment) = self.file.segments.iter().find(of_name) {
            duty.segment.restore(now, &segment.hosts);
        }
    }

    /// Completes a snapshot. It is written if it differs from the last one.
    fn put(&mut self, now: Instant, snapshot: KeptFile) {
        let is_due = now.saturating_duration_since(self.written) >= REFRESH || differ(&self.file, &snapshot);
        if let Some(keeper) = self.keeper.as_ref().filter(|_| is_due)
            && keeper.write(snapshot.clone())
        {
            (self.file, self.written) = (snapshot, now);
        }
    }

    /// Waits for the last write.
    pub(in crate::gateway) fn finish(self) {
        if let Some(keeper) = self.keeper {
            keeper.finish();
        }
    }
}

/// True unless both have the same hosts in the same order.
fn differ(a: &KeptFile, b: &KeptFile) -> bool {
    let hosts = |segment: &KeptSegment| segment.hosts.iter().map(|host| host.ip).collect::<Vec<_>>();
    let is_same = |(a, b): (&KeptSegment, &KeptSegment)| a.name == b.name && hosts(a) == hosts(b);
    a.segments.len() != b.segments.len() || !a.segments.iter().zip(&b.segments).all(is_same)
}

impl<B: Backend> GatewayControl<B> {
    /// Takes the next part of a snapshot: one segment at a time, so that packets never wait for all of them.
    pub(super) fn keep_hosts(&mut self, now: Instant) {
        if now < self.kept.due || self.stopping.is_some() {
            return;
        }
        if let Some(at) = self.indices().nth(self.kept.next) {
            self.kept.next += 1;
            return self.keep_segment(now, at);
        }
        (self.kept.next, self.kept.due) = (0, now + PERIOD);
        let snapshot = std::mem::take(&mut self.kept.snapshot);
        self.kept.put(now, snapshot);
    }

    /// The gateway stops: saves all hosts that are known now.
    pub(super) fn keep_all_hosts(&mut self, now: Instant) {
        self.kept.snapshot = KeptFile::default();
        let indices: Vec<_> = self.indices().collect();
        indices.into_iter().for_each(|at| self.keep_segment(now, at));
        let snapshot = std::mem::take(&mut self.kept.snapshot);
        self.kept.put(now, snapshot);
    }

    fn keep_segment(&mut self, now: Instant, at: SegmentIndex) {
        let Some((duty, link, _)) = parts!(self, at) else { return };
        duty.segment.remember(now, infiniband_hosts(now, link));
        if self.kept.keeper.is_some()
            && let Some(name) = SegmentName::new(&duty.name)
        {
            self.kept.snapshot.segments.push(KeptSegment { name, hosts: duty.segment.kept(now) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::kept::KeptHost;

    fn file(hosts: &[(u8, u32)]) -> KeptFile {
        let host = |(last, age): &(u8, u32)| KeptHost { ip: Ipv4Addr::new(10, 77, 0, *last), age: *age };
        let name = SegmentName::new("a").unwrap();
        KeptFile { segments: vec![KeptSegment { name, hosts: hosts.iter().map(host).collect() }] }
    }

    #[test]
    fn it_is_written_when_hosts_come_or_go_and_otherwise_now_and_then() {
        let before = file(&[(1, 0), (2, 60)]);
        assert!(!differ(&before, &before));
        assert!(!differ(&before, &file(&[(1, 0), (2, 65)])));
        assert!(differ(&before, &file(&[(1, 0), (2, 0), (3, 0)])));
        assert!(differ(&before, &file(&[(2, 0), (1, 1)])));
        assert!(differ(&before, &KeptFile::default()));

        let directory = std::env::temp_dir().join(format!("kept-hosts-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let start = Instant::now();
        let keeper = Keeper::start(directory.clone(), None).unwrap();
        let mut kept = Kept::in_directory(start, &directory, keeper);
        kept.settle(None).unwrap();
        let mut put = |now: Instant, snapshot: KeptFile| {
            // The thread may still be writing the previous one.
            let before = kept.written;
            let wanted = differ(&kept.file, &snapshot) || now - before >= REFRESH;
            kept.put(now, snapshot.clone());
            while wanted && kept.written == before {
                std::thread::yield_now();
                kept.put(now, snapshot.clone());
            }
            kept.written
        };
        let second = |n| start + Duration::from_secs(n);
        assert_eq!(put(second(5), before.clone()), second(5));
        assert_eq!(put(second(10), file(&[(1, 0), (2, 65)])), second(5), "nothing is new");
        assert_eq!(put(second(15), file(&[(1, 0)])), second(15));
        assert_eq!(put(second(315), file(&[(1, 300)])), second(315), "its ages are");
        kept.finish();
        assert_eq!(keeper::read(&directory), file(&[(1, 300)]));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
