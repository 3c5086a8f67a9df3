//! Reads the terminal in a separate thread. crossterm 0.29 does not return from a terminal that is gone, nor
//! from an incomplete escape sequence.

use std::io::{self, stdin};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum number of queued events; further input stays in the terminal.
const MAX_WAITING: usize = 64;

/// The events from the thread.
#[derive(Debug)]
pub(super) struct Keys {
    events: Receiver<io::Result<Event>>,
}

impl Keys {
    /// Starts a thread that reads standard input. It runs until the process exits.
    pub(super) fn start() -> io::Result<Self> {
        Self::of(event::read)
    }

    fn of(mut read: impl FnMut() -> io::Result<Event> + Send + 'static) -> io::Result<Self> {
        let (sender, events) = mpsc::sync_channel(MAX_WAITING);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            loop {
                let event = read();
                let is_last = event.is_err();
                if sender.send(event).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Self { events })
    }

    /// Waits for an event, at most for `at_most`, and returns it with a limited number of further events.
    pub(super) fn wait(&self, at_most: Duration) -> io::Result<Vec<Event>> {
        let first = match self.events.recv_timeout(at_most) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return Ok(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the keyboard thread has stopped"));
            }
        };
        std::iter::once(first).chain(self.events.try_iter().take(MAX_WAITING)).collect()
    }
}

/// True if the terminal is gone.
pub(super) fn is_gone() -> bool {
    let stdin = stdin();
    // poll(2) reports HUP and ERR even if no events are requested.
    let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long timeout, for a busy host.
    const DEADLINE: Duration = Duration::from_secs(120);

    #[test]
    fn endless_events_are_returned_in_parts() {
        let keys = Keys::of(|| Ok(Event::FocusGained)).unwrap();
        for _ in 0..3 {
            assert!((1..=MAX_WAITING + 1).contains(&keys.wait(DEADLINE).unwrap().len()));
        }
    }

    #[test]
    fn a_blocked_thread_does_not_block_the_caller() {
        let (_keep, never) = mpsc::channel::<Event>();
        let keys = Keys::of(move || never.recv().map_err(io::Error::other)).unwrap();
        assert!(keys.wait(Duration::from_millis(1)).unwrap().is_empty());
    }

    #[test]
    fn an_error_stops_the_thread_and_is_reported() {
        let keys = Keys::of(|| Err(io::Error::other("broken"))).unwrap();
        assert_eq!(keys.wait(DEADLINE).unwrap_err().to_string(), "broken");
        assert_eq!(keys.wait(DEADLINE).unwrap_err().to_string(), "the keyboard thread has stopped");
    }
}
