//! Requests to the kernel, and interpretation of its responses and events, without I/O.
//!
//! After subscribing to events, the session lists first the interfaces and then the addresses over the same
//! socket. The messages on the socket are in chronological order. An event between two parts of a list is
//! newer than the earlier part and older than the later one.
//!
//! If events were lost, or the list changed while the kernel sent it, the session lists again. After repeated
//! losses it waits first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer};

use super::message::{IFADDRMSG, IFINFOMSG, Meaning, Messages, RTM_GETADDR, RTM_GETLINK};
use crate::rules::{Event, Rules};

/// Pause before the second of consecutive scans. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The kernel responds immediately, so a missing response was lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// After this time without losses, the next loss counts as the first.
const CALM: Duration = Duration::from_secs(10);

/// Notification for the rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A list starts.
    ScanBegins,
    /// An item of the list.
    Scanned(Event),
    /// The list is complete.
    ScanEnds,
    /// The list was aborted.
    ScanAborted,
    /// An event.
    Event(Event),
}

impl Notice {
    /// Applies the notice to the rules.
    pub fn tell(&self, rules: &mut Rules) {
        match self {
            Self::ScanBegins => rules.begin_scan(),
            Self::Scanned(event) => rules.handle_scanned(event),
            Self::ScanEnds => rules.end_scan(),
            Self::ScanAborted => rules.abort_scan(),
            Self::Event(event) => rules.handle_event(event),
        }
    }
}

/// Event counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Number of messages.
    pub messages: u64,
    /// Number of malformed messages.
    pub malformed: u64,
    /// Number of times that messages were lost.
    pub overruns: u64,
    /// Number of completed lists.
    pub scans: u64,
    /// Number of aborted lists.
    pub aborted_scans: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No list is in progress.
    Following,
    /// A list is due at this time.
    Waiting(Instant),
    /// Listing the interfaces.
    Interfaces { sequence: u32, deadline: Instant },
    /// Listing the addresses.
    Addresses { sequence: u32, deadline: Instant },
}

/// An rtnetlink session: see the module.
#[derive(Debug)]
pub struct Session {
    state: State,
    port: u32,
    sequence: u32,
    pause: Duration,
    last_scan: Option<Instant>,
    transmit: Option<Vec<u8>>,
    notices: VecDeque<Notice>,
    counters: Counters,
}

impl Session {
    /// Creates a session whose first list is due immediately. The socket must already be subscribed; `port`
    /// is its own address.
    #[must_use]
    pub const fn new(now: Instant, port: u32) -> Self {
        Self {
            state: State::Waiting(now),
            port,
            sequence: 0,
            pause: FIRST_PAUSE,
            last_scan: None,
            transmit: None,
            notices: VecDeque::new(),
            counters: Counters { messages: 0, malformed: 0, overruns: 0, scans: 0, aborted_scans: 0 },
        }
    }

    /// Handles a datagram from the kernel.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &[u8]) {
        for message in Messages::new(datagram) {
            self.counters.messages += 1;
            let listing = match self.state {
                State::Interfaces { sequence, .. } | State::Addresses { sequence, .. } => Some(sequence),
                State::Following | State::Waiting(_) => None,
            };
            // Events that another process caused carry its numbers.
            let ours = message.port == self.port;
            let answer = ours && listing == Some(message.sequence);
            if answer && message.flags & NLM_F_DUMP_INTR != 0 {
                self.scan_again(now);
                continue;
            }
            match message.meaning {
                None => {
                    self.counters.malformed += 1;
                    // The list will contain what the malformed event meant.
                    if !answer && self.state == State::Following {
                        self.scan_again(now);
                    }
                }
                Some(Meaning::Event(event)) if answer => self.notices.push_back(Notice::Scanned(event)),
                // Part of an aborted list.
                Some(Meaning::Event(_)) if ours => {}
                Some(Meaning::Event(event)) => self.notices.push_back(Notice::Event(event)),
                Some(Meaning::Done) if answer => self.handle_done(now),
                Some(Meaning::Error(code)) if answer && code != 0 => self.scan_again(now),
                Some(Meaning::Overrun) => self.handle_overrun(now),
                Some(Meaning::Nothing | Meaning::Done | Meaning::Error(_)) => {}
            }
        }
    }

    /// Handles lost messages (ENOBUFS, or a datagram longer than the buffer).
    pub fn handle_overrun(&mut self, now: Instant) {
        self.counters.overruns += 1;
        self.scan_again(now);
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.state {
            State::Waiting(due) if due <= now => {
                self.notices.push_back(Notice::ScanBegins);
                let sequence = self.ask(RTM_GETLINK, IFINFOMSG);
                self.state = State::Interfaces { sequence, deadline: now + ANSWER_TIMEOUT };
            }
            State::Interfaces { deadline, .. } | State::Addresses { deadline, .. } if deadline <= now => {
                self.scan_again(now);
            }
            State::Following | State::Waiting(_) | State::Interfaces { .. } | State::Addresses { .. } => {}
        }
    }

    /// Returns the time at which [`Session::handle_timeout`] must be called.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Following => None,
            State::Waiting(due) => Some(due),
            State::Interfaces { deadline, .. } | State::Addresses { deadline, .. } => Some(deadline),
        }
    }

    /// Returns a request to send to the kernel.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.transmit.take()
    }

    /// Returns the next notice for the rules. Call it after each datagram until there is none.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// True when no list is in progress and nothing was lost since the last one.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.state == State::Following
    }

    /// Returns the event counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    fn handle_done(&mut self, now: Instant) {
        match self.state {
            State::Interfaces { .. } => {
                let sequence = self.ask(RTM_GETADDR, IFADDRMSG);
                self.state = State::Addresses { sequence, deadline: now + ANSWER_TIMEOUT };
            }
            State::Addresses { .. } => {
                self.state = State::Following;
                self.counters.scans += 1;
                self.notices.push_back(Notice::ScanEnds);
            }
            State::Following | State::Waiting(_) => {}
        }
    }

    fn scan_again(&mut self, now: Instant) {
        match self.state {
            State::Interfaces { .. } | State::Addresses { .. } => {
                self.counters.aborted_scans += 1;
                self.notices.push_back(Notice::ScanAborted);
            }
            State::Waiting(_) => return,
            State::Following => {}
        }
        if self.last_scan.is_none_or(|last| now.saturating_duration_since(last) > CALM) {
            self.pause = FIRST_PAUSE;
        }
        self.last_scan = Some(now);
        self.state = State::Waiting(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn ask(&mut self, message_type: u16, body: usize) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut request = vec![0; 16 + body];
        let length = request.len() as u32;
        let mut header = NetlinkBuffer::new(&mut request);
        header.set_length(length);
        header.set_message_type(message_type);
        header.set_flags(NLM_F_REQUEST | NLM_F_DUMP);
        header.set_sequence_number(self.sequence);
        self.transmit = Some(request);
        self.sequence
    }
}
