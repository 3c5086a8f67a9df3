//! A standard stream that is written without blocking.
//!
//! A pipe without a reader, a stopped terminal and a full socket accept no more bytes. A line that such a
//! stream does not accept immediately is lost and counted. The next accepted line is preceded by the number
//! of lost ones. The stream's own flags are not changed, because other processes may share them.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tracing_subscriber::fmt::MakeWriter;

/// Attempts to report losses at the end, and the pause between them.
const LAST_TRIES: u32 = 25;
const LAST_PAUSE: Duration = Duration::from_millis(20);
/// Number of bytes that a pipe accepts when it reports room (pipe(7)).
const PIPE_BUF: usize = 4096;

/// One of the process's standard streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standard {
    Output,
    Error,
}

impl Standard {
    fn with<T>(self, f: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Self::Output => f(io::stdout().as_fd()),
            Self::Error => f(io::stderr().as_fd()),
        }
    }
}

/// Method of writing a stream without blocking.
#[derive(Debug)]
enum Method {
    /// A file, or a device that accepts everything: a write never waits for a reader.
    Direct,
    /// A socket: each send has a flag of its own.
    Socket,
    /// A pipe or terminal, opened again with separate flags.
    NonBlocking(File),
    /// A stream that could not be opened again: it is polled for room before each write.
    Polled,
}

impl Method {
    fn of(file: BorrowedFd<'_>) -> Self {
        match rustix::fs::fstat(file).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Socket) => Self::Socket,
            Ok(FileType::Fifo) => Self::reopen(file),
            Ok(FileType::CharacterDevice) if file.is_terminal() => Self::reopen(file),
            _ => Self::Direct,
        }
    }

    fn reopen(file: BorrowedFd<'_>) -> Self {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let again = File::options()
            .write(true)
            .custom_flags(flags.bits().cast_signed())
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        again.map_or(Self::Polled, Self::NonBlocking)
    }

    /// Writes the bytes that the stream accepts immediately. Returns their number.
    fn write(&self, stream: BorrowedFd<'_>, bytes: &[u8]) -> usize {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            let taken = match self {
                Self::Direct => rustix::io::write(stream, rest),
                Self::Socket => rustix::net::send(stream, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
                Self::NonBlocking(file) => rustix::io::write(file, rest),
                Self::Polled if has_room(stream) => {
                    rustix::io::write(stream, rest.get(..PIPE_BUF).unwrap_or(rest))
                }
                Self::Polled => Err(Errno::AGAIN),
            };
            match taken {
                Ok(0) => break,
                Ok(n) => written += n,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        written
    }
}

fn has_room(stream: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(stream, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Lost output of a stream.
#[derive(Default, Debug)]
struct Losses {
    lines: u64,
    /// True if the last line was accepted only in part.
    torn: bool,
}

/// A standard stream. Clones share it and its losses.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stream: Standard,
    method: Method,
    /// Description of a line for the report of losses.
    lines: &'static str,
    losses: Mutex<Losses>,
}

impl Stream {
    /// Returns standard output. `lines` describes its lines for the report of losses: "`lines` that are lost:
    /// 3".
    #[must_use]
    pub fn stdout(lines: &'static str) -> Self {
        Self::new(Standard::Output, lines)
    }

    /// Returns standard error.
    #[must_use]
    pub fn stderr(lines: &'static str) -> Self {
        Self::new(Standard::Error, lines)
    }

    fn new(stream: Standard, lines: &'static str) -> Self {
        let method = stream.with(Method::of);
        Self(Arc::new(Inner { stream, method, lines, losses: Mutex::default() }))
    }

    /// Writes a line, which ends with a newline. Returns false if the stream does not accept it immediately;
    /// it is then lost.
    pub fn put(&self, line: &str) -> bool {
        self.0.stream.with(|stream| self.0.put(stream, line.as_bytes()))
    }

    /// Reports the remaining losses when the program exits, if the stream accepts the report within half a
    /// second.
    pub fn finish(&self) {
        for n in 0..LAST_TRIES {
            if n > 0 {
                std::thread::sleep(LAST_PAUSE);
            }
            if self.0.stream.with(|stream| self.0.put(stream, b"")) {
                return;
            }
        }
    }
}

impl Inner {
    fn put(&self, stream: BorrowedFd<'_>, line: &[u8]) -> bool {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        if losses.torn {
            bytes.push(b'\n');
        }
        if losses.lines > 0 {
            bytes.extend(format!("{} that are lost: {}\n", self.lines, losses.lines).bytes());
        }
        let before = bytes.len();
        bytes.extend(line);
        let written = self.method.write(stream, &bytes);
        if let Some(last) = written.checked_sub(1).and_then(|last| bytes.get(last)) {
            losses.torn = *last != b'\n';
        }
        if written >= before {
            losses.lines = 0;
        }
        let taken = written == bytes.len();
        if !taken && !line.is_empty() {
            losses.lines += 1;
        }
        taken
    }
}

impl Write for &Stream {
    /// Never fails: losses are counted.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Stream {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn over(method: Method) -> Inner {
        Inner { stream: Standard::Error, method, lines: "entries", losses: Mutex::default() }
    }

    /// Returns everything that can be read now.
    fn drain(mut from: impl io::Read) -> String {
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = from.read(&mut some) {
            all.extend(some.get(..n).unwrap());
        }
        String::from_utf8(all).unwrap()
    }

    /// Nobody reads for a while: no write blocks, each line is complete or counted, and the next one contains
    /// the number of lost lines.
    fn nobody_reads(writer: &OwnedFd, reader: impl io::Read + Copy, method: Method) {
        const LINES: usize = 20_000;
        let inner = over(method);
        let put = |text: &str| inner.put(writer.as_fd(), text.as_bytes());
        let taken = (0..LINES).filter(|n| put(&format!("line {n} of a log\n"))).count();
        assert!((1..LINES).contains(&taken), "{taken} taken");
        let read = drain(reader);
        let whole = read.lines().filter(|line| line.starts_with("line ") && line.ends_with(" of a log"));
        assert_eq!(whole.count(), taken);
        assert!(put("next\n"));
        let next = drain(reader);
        let wanted = format!("entries that are lost: {}\nnext\n", LINES - taken);
        assert_eq!(next.trim_start_matches('\n'), wanted);
        assert!(put("one more\n"));
        assert_eq!(drain(reader), "one more\n");
    }

    /// Returns a pipe with a nonblocking reader, and a writer whose own description would block.
    fn pipe() -> (io::PipeReader, OwnedFd) {
        let (reader, writer) = io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
        (reader, writer.into())
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (reader, writer) = pipe();
        let method = Method::of(writer.as_fd());
        assert!(matches!(method, Method::NonBlocking(_)), "{method:?}");
        nobody_reads(&writer, &reader, method);
        let (reader, writer) = pipe();
        nobody_reads(&writer, &reader, Method::Polled);
        // Other processes share the program's description.
        assert!(!rustix::fs::fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_socket_without_a_reader_does_not_block() {
        let (reader, writer) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let writer = OwnedFd::from(writer);
        let method = Method::of(writer.as_fd());
        assert!(matches!(method, Method::Socket), "{method:?}");
        nobody_reads(&writer, &reader, method);
    }

    #[test]
    fn a_line_that_was_taken_in_part_is_ended_before_the_next() {
        let (reader, writer) = pipe();
        let inner = over(Method::of(writer.as_fd()));
        let long = "x".repeat(1 << 21) + "\n";
        assert!(!inner.put(writer.as_fd(), long.as_bytes()));
        assert!(drain(&reader).chars().all(|letter| letter == 'x'));
        assert!(inner.put(writer.as_fd(), b"next\n"));
        assert_eq!(drain(&reader), "\nentries that are lost: 1\nnext\n");
    }

    #[test]
    fn a_file_has_every_line() {
        let path = std::env::temp_dir().join(format!("stream-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let inner = over(Method::of(file.as_fd()));
        assert!(matches!(inner.method, Method::Direct));
        assert!((0..10_000).all(|_| inner.put(file.as_fd(), b"a line of the log\n")));
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 10_000);
    }

    #[test]
    fn losses_that_no_line_has_reported_are_reported_at_the_end() {
        let (reader, writer) = pipe();
        let inner = over(Method::of(writer.as_fd()));
        while inner.put(writer.as_fd(), b"a line\n") {}
        assert!(!inner.put(writer.as_fd(), b""), "there is no room yet");
        drain(&reader);
        assert!(inner.put(writer.as_fd(), b""));
        assert!(drain(&reader).ends_with("entries that are lost: 1\n"));
    }
}
