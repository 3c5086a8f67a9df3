//! Logging to the journal: if standard error is connected to the journal, entries are sent with fields in its
//! native protocol (a datagram of lines `NAME=value`; <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>).
//!
//! Sending never blocks. If the journal does not accept an entry, the entry is lost. The next accepted entry
//! contains the number of lost ones; at the end there is a separate entry for it. Without a journal the entry
//! goes to standard error as a line, if that accepts it immediately.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::SendFlags;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::{Program, capital, is_structured};
use crate::limit::{self, Note};

/// Socket on which the journal receives entries.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Environment variable of a service with the stream that the journal reads: device and inode
/// (systemd.exec(5)).
const STREAM: &str = "JOURNAL_STREAM";
/// Maximum text length of an entry in bytes. Longer entries would have to be passed in a memory file.
const LONGEST: usize = 16 << 10;
/// Number of attempts to report losses at the end, and the interval between them.
const LAST_TRIES: u32 = 25;
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// The journal as a log destination.
#[derive(Clone, Debug)]
pub(super) struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: Program,
    /// Prefix of our own field names.
    prefix: String,
    socket: UnixDatagram,
    path: PathBuf,
    lost: AtomicU64,
}

impl Journal {
    /// Returns the journal if standard error is connected to it, or `None` if not or if it accepts no
    /// entries.
    pub(super) fn of_standard_error(program: Program) -> Option<Self> {
        if !reads(io::stderr()) {
            return None;
        }
        Self::at(Path::new(SOCKET), program).ok()
    }

    /// Returns the journal with this socket path.
    fn at(path: &Path, program: Program) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        // An empty entry is ignored. It only checks that the journal receives entries.
        match socket.send_to(b"\n", path) {
            // The journal exists, but its queue is full.
            Err(full) if full.kind() == io::ErrorKind::WouldBlock => {}
            sent => drop(sent?),
        }
        // Each entry is sent to the path, because a restarted journal has another socket there.
        let inner = Inner {
            program,
            prefix: program.prefix(),
            socket,
            path: path.to_owned(),
            lost: AtomicU64::new(0),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Reports the losses since the last entry at the end, if the journal accepts the report within half a
    /// second.
    pub(super) fn finish(&self) {
        for n in 0..LAST_TRIES {
            if n > 0 {
                std::thread::sleep(LAST_PAUSE);
            }
            if self.report_losses() {
                return;
            }
        }
        let lost = self.0.lost.load(Ordering::Relaxed);
        say(Level::WARN, &format!("entries of the log that are lost: {lost}"));
    }

    /// Sends an entry about lost entries. Returns false if it was not accepted.
    fn report_losses(&self) -> bool {
        let Inner { program, prefix, socket, path, lost } = &*self.0;
        let n = lost.swap(0, Ordering::Relaxed);
        if n == 0 {
            return true;
        }
        let mut bytes = Vec::new();
        for (name, value) in [
            ("MESSAGE", format!("entries of the log that are lost: {n}")),
            ("PRIORITY", priority(Level::WARN).to_owned()),
            ("SYSLOG_IDENTIFIER", program.0.to_owned()),
            (&format!("{prefix}LOST"), n.to_string()),
        ] {
            field(&mut bytes, name, &value);
        }
        let sent = socket.send_to(&bytes, path).is_ok();
        if !sent {
            lost.fetch_add(n, Ordering::Relaxed);
        }
        sent
    }

    fn put(&self, level: Level, entry: Entry<'_>) {
        let Inner { prefix, socket, path, lost: all_lost, .. } = &*self.0;
        // Take the count to report it, and return it if this entry is lost too.
        let lost = all_lost.swap(0, Ordering::Relaxed);
        let mut bytes = entry.bytes;
        if lost > 0 {
            field(&mut bytes, &format!("{prefix}LOST"), &lost.to_string());
        }
        match socket.send_to(&bytes, path) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                all_lost.fetch_add(lost + 1, Ordering::Relaxed);
            }
            Err(_) => {
                let unsaid = u64::from(!say(level, &entry.message));
                all_lost.fetch_add(lost + unsaid, Ordering::Relaxed);
            }
        }
    }
}

/// Writes a line to standard error, which is the journal's stream, without blocking: the journal at the other
/// end may hang.
fn say(level: Level, text: &str) -> bool {
    let line = line(level, text);
    match rustix::net::send(io::stderr(), line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        // A file instead of the stream. Writing to it never waits for a reader.
        Err(rustix::io::Errno::NOTSOCK) => io::stderr().write_all(line.as_bytes()).is_ok(),
        sent => sent.is_ok(),
    }
}

/// Formats an entry for the stream: its priority in front (sd-daemon(3)), and newlines escaped. Another line
/// would be another entry with any priority.
fn line(level: Level, text: &str) -> String {
    format!("<{}>{}\n", priority(level), text.replace('\n', "\\n"))
}

/// True if the file is the stream that the journal reads.
pub(super) fn reads(file: impl AsFd) -> bool {
    let Ok(stream) = std::env::var(STREAM) else { return false };
    rustix::fs::fstat(file).is_ok_and(|file| is_stream(&stream, file.st_dev, file.st_ino))
}

/// True if `JOURNAL_STREAM` contains this device and inode.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream.split_once(':').is_some_and(|(dev, ino)| (dev.parse(), ino.parse()) == (Ok(device), Ok(inode)))
}

/// Appends a field.
fn field(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend(name.bytes());
    if value.contains('\n') {
        // A multi-line value, preceded by its length.
        bytes.push(b'\n');
        bytes.extend((value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend(value.bytes());
    bytes.push(b'\n');
}

/// Converts a field name to the journal's format: capitals, digits and underscores.
fn name_of(prefix: &str, field: &str) -> String {
    prefix.chars().chain(field.chars().map(capital)).take(64).collect()
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
    }
    text
}

/// An entry with the fields visited so far.
#[derive(Default)]
struct Entry<'p> {
    prefix: &'p str,
    bytes: Vec<u8>,
    message: String,
    /// Fields appended to the text.
    more: String,
}

impl Visit for Entry<'_> {
    fn record_str(&mut self, of: &Field, value: &str) {
        self.record_debug(of, &format_args!("{value}"));
    }

    fn record_debug(&mut self, of: &Field, value: &dyn fmt::Debug) {
        if of.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.message, "{value:?}");
            return;
        }
        let value = cut(format!("{value:?}"));
        if !is_structured(of) {
            let _ = write!(self.more, " {}={value}", of.name());
        }
        field(&mut self.bytes, &name_of(self.prefix, of.name()), &value);
    }
}

/// Priorities of syslog(3).
const fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let prefix = &self.0.prefix;
        let mut entry = Entry { prefix, ..Entry::default() };
        event.record(&mut entry);
        let (more, note) = (std::mem::take(&mut entry.more), limit::note());
        entry.message = cut(std::mem::take(&mut entry.message) + &more) + &note.to_string();
        if let Note::HeldBack(n) = note {
            field(&mut entry.bytes, &format!("{prefix}HELD_BACK"), &n.to_string());
        }
        let about = event.metadata();
        let line = about.line().map(|line| line.to_string());
        let rest = [
            ("MESSAGE", Some(entry.message.as_str())),
            ("PRIORITY", Some(priority(*about.level()))),
            ("SYSLOG_IDENTIFIER", Some(self.0.program.0)),
            ("TARGET", Some(about.target())),
            ("CODE_FILE", about.file()),
            ("CODE_LINE", line.as_deref()),
        ];
        for (name, value) in rest {
            if let Some(value) = value {
                field(&mut entry.bytes, name, value);
            }
        }
        self.put(*about.level(), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use std::collections::BTreeMap;
    use tracing_subscriber::layer::SubscriberExt as _;

    const PROGRAM: Program = Program("ipoib-fwd");

    /// A socket that replaces the journal.
    struct Stand {
        socket: UnixDatagram,
        path: PathBuf,
    }

    impl Stand {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("journal-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_nonblocking(true).unwrap();
            Self { socket, path }
        }

        /// Receives the next entry and parses the protocol.
        fn entry(&self) -> Option<BTreeMap<String, String>> {
            let mut bytes = vec![0; 1 << 17];
            let length = self.socket.recv(&mut bytes).ok()?;
            let mut rest = &bytes[..length];
            let mut fields = BTreeMap::new();
            while !rest.is_empty() {
                let end = rest.iter().position(|b| *b == b'\n').unwrap();
                let line = std::str::from_utf8(&rest[..end]).unwrap();
                rest = &rest[end + 1..];
                let (name, value) = match line.split_once('=') {
                    Some((name, value)) => (name, value.to_owned()),
                    None if line.is_empty() => continue,
                    None => {
                        let (length, behind) = rest.split_at(8);
                        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
                        assert_eq!(behind[length], b'\n');
                        rest = &behind[length + 1..];
                        (line, String::from_utf8(behind[..length].to_vec()).unwrap())
                    }
                };
                assert!(fields.insert(name.to_owned(), value).is_none(), "{name} twice");
            }
            Some(fields)
        }
    }

    impl Drop for Stand {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn logged(stand: &Stand, log: impl FnOnce()) {
        let journal = Journal::at(&stand.path, PROGRAM).unwrap();
        assert_eq!(stand.entry(), Some(BTreeMap::new()), "the check for a receiver");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), log);
    }

    #[test]
    fn an_entry_has_text_priority_place_and_fields() {
        let stand = Stand::new("fields");
        logged(&stand, || {
            tracing::warn!(segment = "storage", event = "down", peers = 2, "storage: link down");
            tracing::error!("two\nlines");
        });
        let entry = stand.entry().unwrap();
        for (name, value) in [
            ("MESSAGE", "storage: link down peers=2"),
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "ipoib-fwd"),
            ("IPOIB_FWD_SEGMENT", "storage"),
            ("IPOIB_FWD_EVENT", "down"),
            ("IPOIB_FWD_PEERS", "2"),
            ("TARGET", module_path!()),
        ] {
            assert_eq!(entry[name], value, "{name}");
        }
        assert!(entry["CODE_FILE"].ends_with("journal.rs") && entry["CODE_LINE"].parse::<u32>().is_ok());
        let entry = stand.entry().unwrap();
        assert_eq!((entry["MESSAGE"].as_str(), entry["PRIORITY"].as_str()), ("two\nlines", "3"));
        assert_eq!(stand.entry(), None);
    }

    #[test]
    fn text_of_others_makes_no_fields_and_no_endless_entry() {
        let stand = Stand::new("hostile");
        let evil = format!("a\nPRIORITY=0\nMESSAGE={}", "\u{e9}".repeat(LONGEST));
        logged(&stand, || tracing::info!(segment = evil.as_str(), "{evil}"));
        let entry = stand.entry().unwrap();
        assert_eq!(entry["PRIORITY"], "6");
        assert!(entry["MESSAGE"].starts_with("a\nPRIORITY=0\nMESSAGE=\u{e9}"));
        assert!(entry.values().all(|value| value.len() <= LONGEST));
    }

    #[test]
    fn a_blocked_journal_delays_nobody_and_later_receives_the_number_of_lost_entries() {
        let stand = Stand::new("full");
        let mut taken = 0;
        logged(&stand, || {
            // More than any socket queue holds (net.unix.max_dgram_qlen). It would hang if it waited.
            (0..5000).for_each(|n| tracing::info!("{n}"));
            while stand.entry().is_some() {
                taken += 1;
            }
            tracing::info!("after");
            tracing::info!("later");
        });
        assert!(taken < 5000);
        let after = stand.entry().unwrap();
        assert_eq!(
            (after["MESSAGE"].as_str(), after["IPOIB_FWD_LOST"].clone()),
            ("after", (5000 - taken).to_string())
        );
        assert_eq!(stand.entry().unwrap().get("IPOIB_FWD_LOST"), None);
    }

    #[test]
    fn losses_at_the_end_are_reported_or_soon_given_up() {
        let stand = Stand::new("end");
        let journal = Journal::at(&stand.path, PROGRAM).unwrap();
        stand.entry().unwrap();
        journal.finish();
        assert_eq!(stand.entry(), None, "nothing was lost");
        let log = tracing_subscriber::registry().with(journal.clone());
        tracing::subscriber::with_default(log, || (0..5000).for_each(|n| tracing::info!("{n}")));
        // While the journal accepts nothing, it still returns.
        journal.finish();
        let last = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // Usually after the first try.
                std::thread::sleep(LAST_PAUSE * 3);
                loop {
                    match stand.entry() {
                        Some(entry) if entry.contains_key("IPOIB_FWD_LOST") => return entry,
                        Some(_) => {}
                        None => std::thread::yield_now(),
                    }
                }
            });
            // More than once if the reader had no CPU for the duration of one call.
            while !reader.is_finished() {
                journal.finish();
            }
            reader.join().unwrap()
        });
        let lost: u64 = last["IPOIB_FWD_LOST"].parse().unwrap();
        assert!(lost > 0 && lost < 5000);
        assert_eq!(last["MESSAGE"], format!("entries of the log that are lost: {lost}"));
        assert_eq!(last["PRIORITY"], "4");
    }

    #[test]
    fn a_journal_that_is_full_at_the_start_is_one() {
        let stand = Stand::new("full-at-start");
        let filler = UnixDatagram::unbound().unwrap();
        filler.set_nonblocking(true).unwrap();
        while filler.send_to(b"\n", &stand.path).is_ok() {}
        let journal = Journal::at(&stand.path, PROGRAM).unwrap();
        while stand.entry().is_some() {}
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            tracing::info!("room");
        });
        assert_eq!(stand.entry().unwrap()["MESSAGE"], "room");
        assert!(Journal::at(Path::new("/nonexistent/socket"), PROGRAM).is_err());
    }

    #[test]
    fn each_loss_is_reported_once_for_any_number_of_threads() {
        const EACH: u64 = 4000;
        let stand = Stand::new("threads");
        let (mut taken, mut lost) = (0, 0);
        let mut read = || {
            while let Some(entry) = stand.entry() {
                taken += u64::from(entry.contains_key("MESSAGE"));
                lost += entry.get("IPOIB_FWD_LOST").map_or(0, |n| n.parse::<u64>().unwrap());
            }
        };
        let journal = Journal::at(&stand.path, PROGRAM).unwrap();
        let dispatch = tracing::Dispatch::new(tracing_subscriber::registry().with(journal));
        let log = |n: u64| tracing::dispatcher::with_default(&dispatch, || tracing::info!("{n}"));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| (0..EACH).for_each(log))).collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                read();
            }
        });
        read();
        log(0);
        read();
        assert_eq!(taken + lost, 2 * EACH + 1);
    }

    #[test]
    fn a_restarted_journal_receives_the_next_entry() {
        let old = Stand::new("restarted");
        logged(&old, || {
            let new = Stand::new("restarted");
            tracing::info!("to the new one");
            assert_eq!(new.entry().unwrap()["MESSAGE"], "to the new one");
            drop(new);
            tracing::info!("to standard error: there is no receiver");
        });
    }

    #[test]
    fn an_entry_on_the_stream_is_one_line_of_its_own_priority() {
        assert_eq!(line(Level::ERROR, "<7>a\n<0>b"), "<3><7>a\\n<0>b\n");
    }

    #[test]
    fn only_the_stream_that_is_named_is_the_journals() {
        assert!(is_stream("8:42", 8, 42));
        for other in ["", "8", "8:43", "9:42", "8:42:1", ":", "8:-42", " 8:42"] {
            assert!(!is_stream(other, 8, 42), "{other:?}");
        }
        assert_eq!(name_of(&PROGRAM.prefix(), "peer.address"), "IPOIB_FWD_PEER_ADDRESS");
    }

    #[test]
    fn each_program_has_entries_of_its_own_name() {
        for (program, prefix) in [("ibfab", "IBFAB_"), ("softhca", "SOFTHCA_")] {
            let stand = Stand::new(program);
            let journal = Journal::at(&stand.path, Program(program)).unwrap();
            stand.entry().unwrap();
            tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
                tracing::info!(host = "h1", "link up");
            });
            let entry = stand.entry().unwrap();
            assert_eq!(
                (entry["SYSLOG_IDENTIFIER"].as_str(), entry["MESSAGE"].as_str()),
                (program, "link up host=h1")
            );
            assert_eq!(entry[&format!("{prefix}HOST")], "h1");
        }
    }

    #[test]
    fn what_is_logged_again_and_again_is_held_back_and_said_so() {
        let stand = Stand::new("limit");
        let journal = Journal::at(&stand.path, PROGRAM).unwrap();
        stand.entry().unwrap();
        let limit = Limit::default();
        let mut entries = Vec::new();
        let mut take = || entries.extend(std::iter::from_fn(|| stand.entry()));
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(limit.clone()).with(journal),
            || {
                for n in 0..3 * limit::MOST {
                    tracing::warn!("the same: {n}");
                    take();
                }
                tracing::warn!("another");
                // The flood of one segment does not hide entries of another.
                for n in 0..limit::MOST + 2 {
                    for segment in ["one", "two"].iter().take(if n <= limit::MOST { 1 } else { 2 }) {
                        tracing::info!(segment, "{segment}: down");
                    }
                    take();
                }
                // Requested debug entries are not limited.
                for n in 0..2 * limit::MOST {
                    tracing::debug!("debug {n}");
                    take();
                }
            },
        );
        let text = |entry: &BTreeMap<String, String>| entry["MESSAGE"].clone();
        let same: Vec<_> = entries.iter().map(text).filter(|text| text.starts_with("the same")).collect();
        assert_eq!(same.len(), limit::MOST as usize);
        assert_eq!(same[0], "the same: 0");
        assert_eq!(same[198], "the same: 198");
        assert_eq!(same[199], "the same: 199 (further entries of this kind are suppressed for up to 10 s)");
        assert!(entries.iter().any(|entry| text(entry) == "another"));
        let of = |segment: &str| entries.iter().filter(|entry| text(entry).starts_with(segment)).count();
        assert_eq!((of("one: down"), of("two: down")), (limit::MOST as usize, 1));
        assert_eq!(
            entries.iter().filter(|entry| text(entry).starts_with("debug")).count(),
            2 * limit::MOST as usize
        );
        assert_eq!((limit.take_held_back(), limit.take_held_back()), (u64::from(2 * limit::MOST + 2), 0));
    }
}
