//! The thread that writes the file of known hosts ([`kept`](crate::kept)), so that a slow disk delays nothing
//! else.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use privileges::{Filter, FilterError};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::kept::{KeptError, KeptFile, MOST_BYTES};

/// The file in the state directory.
const FILE: &str = "hosts";
/// The file that is written before it replaces [`FILE`].
const NEW_FILE: &str = "hosts.new";
/// The thread's name.
const NAME: &str = "hosts";
/// How long the exit of the gateway waits for the last file.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 2 });

/// The next task of the thread.
#[derive(Debug)]
enum Task {
    /// Everything is open: apply this filter, and write from now on.
    Settle(Option<Filter>),
    /// Write the file.
    Write(KeptFile),
}

/// The owner's handle of the thread.
#[derive(Debug)]
pub(super) struct Keeper {
    tasks: SyncSender<Task>,
    /// The outcome of the filter. It is disconnected when the thread has exited.
    settled: Receiver<Result<(), FilterError>>,
}

impl Keeper {
    /// Starts the thread on these processors. It writes nothing before [`Self::settle`].
    pub(super) fn start(directory: PathBuf, cpus: Option<CpuSet>) -> io::Result<Self> {
        // One file that is being written, and the next one.
        let (tasks, ordered) = mpsc::sync_channel(1);
        let (report, settled) = mpsc::channel();
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            if let Some(cpus) = cpus {
                // On any other processor it slows down the control lcore, which is not an error.
                let _ = sched_setaffinity(None, &cpus);
            }
            let mut failed = false;
            while let Ok(task) = ordered.recv() {
                match task {
                    Task::Settle(filter) => {
                        // The owner waits for it.
                        let _ = report.send(filter.map_or(Ok(()), |filter| filter.apply()));
                    }
                    Task::Write(hosts) => failed = keep(&directory, &hosts, failed),
                }
            }
        })?;
        Ok(Self { tasks, settled })
    }

    /// Everything is open: the thread restricts its system calls.
    pub(super) fn settle(&self, filter: Option<Filter>) -> Result<(), FilterError> {
        if self.tasks.send(Task::Settle(filter)).is_err() {
            return Ok(());
        }
        self.settled.recv().unwrap_or(Ok(()))
    }

    /// Writes this file in place of the previous one. Returns false while an earlier write has not finished.
    pub(super) fn write(&self, hosts: KeptFile) -> bool {
        self.tasks.try_send(Task::Write(hosts)).is_ok()
    }

    /// Waits for pending writes, for a bounded time.
    pub(super) fn finish(self) {
        drop(self.tasks);
        if matches!(self.settled.recv_timeout(PATIENCE), Err(RecvTimeoutError::Timeout)) {
            tracing::warn!(
                "the list of known hosts was not written within {} s: the disk of the state directory does not answer; check it: the next start reads the previous list",
                PATIENCE.as_secs()
            );
        }
    }
}

/// Writes the file, and logs the first of several failures. Returns true if it failed.
fn keep(directory: &Path, hosts: &KeptFile, failed: bool) -> bool {
    match write(directory, hosts) {
        Ok(()) => false,
        Err(error) => {
            if !failed {
                tracing::warn!(
                    "{}: cannot keep the known hosts: {error}; name in gateway.state-directory a directory with free space that \
                     the gateway's user may write to (systemd: StateDirectory=)",
                    directory.join(FILE).display()
                );
            }
            true
        }
    }
}

/// Replaces the file as a whole.
pub(super) fn write(directory: &Path, hosts: &KeptFile) -> io::Result<()> {
    let new = directory.join(NEW_FILE);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(&new)?;
    file.write_all(hosts.to_text().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, directory.join(FILE))?;
    File::open(directory)?.sync_all()
}

/// Why a file of known hosts cannot be used.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    #[error("it is no regular file")]
    Kind,
    #[error(transparent)]
    Contents(#[from] KeptError),
}

/// Reads the file of an earlier run. One that cannot be used is ignored, with a warning.
pub(super) fn read(directory: &Path) -> KeptFile {
    let path = directory.join(FILE);
    match try_read(&path) {
        Ok(hosts) => {
            let count: usize = hosts.segments.iter().map(|segment| segment.hosts.len()).sum();
            tracing::info!(
                "{}: {count} hosts were known before the restart; they are queried first",
                path.display()
            );
            hosts
        }
        Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => KeptFile::default(),
        Err(error) => {
            tracing::warn!(
                "{}: the list of known hosts is ignored: {error}; it is written again while the gateway runs",
                path.display()
            );
            KeptFile::default()
        }
    }
}

fn try_read(path: &Path) -> Result<KeptFile, ReadError> {
    // Neither a link to another file nor a pipe that blocks.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(ReadError::Kind);
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(KeptFile::parse(&bytes)?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt as _;

    use config::SegmentName;

    use super::*;
    use crate::kept::{KeptHost, KeptSegment};

    /// A directory of its own for each test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("keeper-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn hosts(last: u8) -> KeptFile {
        let hosts = vec![KeptHost { ip: Ipv4Addr::new(10, 77, 0, last), age: 3 }];
        KeptFile { segments: vec![KeptSegment { name: SegmentName::new("a").unwrap(), hosts }] }
    }

    fn keeper(directory: &Directory) -> Keeper {
        let keeper = Keeper::start(directory.0.clone(), None).unwrap();
        keeper.settle(None).unwrap();
        keeper
    }

    #[test]
    fn the_last_file_is_read_again_and_is_its_owners_alone() {
        let directory = Directory::new("last");
        assert_eq!(read(&directory.0), KeptFile::default(), "there is none at first");
        // A gateway was killed while it wrote.
        std::fs::write(directory.0.join(NEW_FILE), "x".repeat(100_000)).unwrap();
        let keeper = keeper(&directory);
        for last in [1, 2] {
            while !keeper.write(hosts(last)) {
                std::thread::yield_now();
            }
        }
        keeper.finish();
        assert_eq!(read(&directory.0), hosts(2));
        assert_eq!(directory.names(), [FILE]);
        let mode = std::fs::metadata(directory.0.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }

    #[test]
    fn a_file_that_is_none_or_damaged_is_ignored() {
        let directory = Directory::new("damaged");
        let path = directory.0.join(FILE);
        write(&directory.0, &hosts(1)).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(try_read(&path), Err(ReadError::Contents(KeptError::Checksum))));
        std::fs::write(&path, vec![0; MOST_BYTES + 100]).unwrap();
        assert!(matches!(try_read(&path), Err(ReadError::Contents(KeptError::TooLong))));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(try_read(&path), Err(ReadError::Kind)));
        std::fs::remove_dir(&path).unwrap();
        // A link to a file that is all right elsewhere.
        let elsewhere = Directory::new("elsewhere");
        write(&elsewhere.0, &hosts(1)).unwrap();
        std::os::unix::fs::symlink(elsewhere.0.join(FILE), &path).unwrap();
        assert!(matches!(try_read(&path), Err(ReadError::Io(_))));
        assert_eq!(read(&directory.0), KeptFile::default());
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_ends_nothing() {
        let directory = Directory::new("missing");
        let keeper = Keeper::start(directory.0.join("none"), None).unwrap();
        keeper.settle(None).unwrap();
        while !keeper.write(hosts(1)) {
            std::thread::yield_now();
        }
        // The thread continues: it accepts the next one.
        while !keeper.write(hosts(2)) {
            std::thread::yield_now();
        }
        keeper.finish();
        assert!(directory.names().is_empty());
    }
}
