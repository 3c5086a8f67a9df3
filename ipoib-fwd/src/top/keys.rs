//! Who reads the terminal: a thread of its own. crossterm 0.29 does not come back from a terminal that has gone away, nor from within half an
//! escape sequence.

use std::io::{self, stdin};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Events that wait; the terminal keeps what comes after them.
const MAX_WAITING: usize = 64;

/// The way from the thread.
#[derive(Debug)]
pub(super) struct Keys {
    events: Receiver<io::Result<Event>>,
}

impl Keys {
    /// A thread that reads standard input. It ends with the process.
    pub(super) fn start() -> io::Result<Self> {
        Self::of(event::read)
    }

    fn of(mut read: impl FnMut() -> io::Result<Event> + Send + 'static) -> io::Result<Self> {
        let (tell, events) = mpsc::sync_channel(MAX_WAITING);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            loop {
                let event = read();
                let is_last = event.is_err();
                if tell.send(event).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Self { events })
    }

    /// What was pressed, some of it if there is no end to it; waits so long for the first.
    pub(super) fn wait(&self, at_most: Duration) -> io::Result<Vec<Event>> {
        let first = match self.events.recv_timeout(at_most) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return Ok(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("nobody reads keys any more"));
            }
        };
        std::iter::once(first).chain(self.events.try_iter().take(MAX_WAITING)).collect()
    }
}

/// True if nobody is at the terminal any more.
pub(super) fn is_gone() -> bool {
    let stdin = stdin();
    // HUP and ERR are told of unasked, poll(2).
    let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For the thread, on a machine that may be busy.
    const DEADLINE: Duration = Duration::from_secs(120);

    #[test]
    fn what_comes_without_end_comes_in_pieces() {
        let keys = Keys::of(|| Ok(Event::FocusGained)).unwrap();
        for _ in 0..3 {
            assert!((1..=MAX_WAITING + 1).contains(&keys.wait(DEADLINE).unwrap().len()));
        }
    }

    #[test]
    fn a_thread_that_does_not_come_back_holds_nobody_up() {
        let (_keep, never) = mpsc::channel::<Event>();
        let keys = Keys::of(move || never.recv().map_err(io::Error::other)).unwrap();
        assert!(keys.wait(Duration::from_millis(1)).unwrap().is_empty());
    }

    #[test]
    fn a_failure_ends_it_and_is_told() {
        let keys = Keys::of(|| Err(io::Error::other("broken"))).unwrap();
        assert_eq!(keys.wait(DEADLINE).unwrap_err().to_string(), "broken");
        assert_eq!(keys.wait(DEADLINE).unwrap_err().to_string(), "nobody reads keys any more");
    }
}
