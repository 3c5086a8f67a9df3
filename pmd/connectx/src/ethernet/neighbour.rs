//! MAC addresses of other ports, by GID. Asked for when a packet needs one, checked from time to time while in use.

use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ib_wire::Gid;

use super::MacAddress;

/// Time to an answer before the question is asked again (RFC 4861: RETRANS_TIMER).
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Questions before the other end is taken to be away (RFC 4861: MAX_UNICAST_SOLICIT).
const QUESTIONS: u8 = 3;
/// An answer is good for this long (RFC 4861: REACHABLE_TIME).
const GOOD_FOR: Duration = Duration::from_secs(30);
/// So long nothing is sent to an end that did not answer.
const AWAY_FOR: Duration = Duration::from_secs(3);
/// Most ends that are known or asked for; a port of a larger network forgets what it used least lately.
const MAX_NEIGHBOURS: usize = 1024;
/// Time between two looks at all of them.
const PACE: Duration = Duration::from_millis(20);

/// What is known of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is being asked; nothing can be sent yet.
    Asking { asked: u8, again: Instant },
    /// It answered.
    Known { mac: MacAddress, check: Instant },
    /// It answered once, is in use, and is being asked again.
    Checking { mac: MacAddress, asked: u8, again: Instant },
    /// It does not answer.
    Away { until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    /// Whom of ours it is asked for.
    ours: Gid,
    used: Instant,
    state: State,
}

/// What a packet can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolution {
    /// Go there.
    Known(MacAddress),
    /// Wait for an answer.
    Wait,
    /// Give up.
    Unreachable,
}

/// A question to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    /// Source address.
    pub(crate) ours: Gid,
    /// Whose MAC address is wanted.
    pub(crate) target: Gid,
    /// Where it was last; all are asked if that is not known.
    pub(crate) mac: Option<MacAddress>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    list: HashMap<Gid, Neighbour, RandomState>,
    next_look: Option<Instant>,
    now: Option<Instant>,
    questions: Vec<Question>,
    /// What is known of somebody who was asked for has changed.
    news: bool,
}

impl Neighbours {
    /// The way to a GID. The first call for it brings a question about.
    pub(crate) fn resolve(&mut self, ours: Gid, gid: Gid) -> Resolution {
        let Some(now) = self.now else { return Resolution::Wait };
        let Some(n) = self.list.get_mut(&gid) else {
            self.make_room();
            let state = State::Asking { asked: 1, again: now + ASK_AGAIN };
            self.list.insert(gid, Neighbour { ours, used: now, state });
            self.questions.push(Question { ours, target: gid, mac: None });
            return Resolution::Wait;
        };
        (n.ours, n.used) = (ours, now);
        match n.state {
            State::Asking { .. } => Resolution::Wait,
            State::Known { mac, check } if now >= check => {
                n.state = State::Checking { mac, asked: 1, again: now + ASK_AGAIN };
                self.questions.push(Question { ours, target: gid, mac: Some(mac) });
                Resolution::Known(mac)
            }
            State::Known { mac, .. } | State::Checking { mac, .. } => Resolution::Known(mac),
            State::Away { until } if now < until => Resolution::Unreachable,
            State::Away { .. } => {
                n.state = State::Asking { asked: 1, again: now + ASK_AGAIN };
                self.questions.push(Question { ours, target: gid, mac: None });
                Resolution::Wait
            }
        }
    }

    /// An end has said where it is. Those that nobody asked for are remembered only if they asked us (`remember`), since they
    /// will want an answer.
    pub(crate) fn handle_address(&mut self, gid: Gid, mac: MacAddress, remember: bool) {
        let Some(now) = self.now else { return };
        // A group address is nobody's own.
        if mac[0] & 1 == 1 || mac == [0; 6] {
            return;
        }
        let state = State::Known { mac, check: now + GOOD_FOR };
        match self.list.get_mut(&gid) {
            Some(n) => {
                n.state = state;
                self.news = true;
            }
            None if remember => {
                self.make_room();
                self.list.insert(gid, Neighbour { ours: Gid::ZERO, used: now, state });
            }
            None => {}
        }
    }

    fn make_room(&mut self) {
        if self.list.len() < MAX_NEIGHBOURS {
            return;
        }
        if let Some((&oldest, _)) = self.list.iter().min_by_key(|(_, n)| n.used) {
            self.list.remove(&oldest);
            // Who waits for it has to ask again.
            self.news = true;
        }
    }

    /// Time goes on.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.now = Some(now);
        if self.next_look.is_some_and(|at| now < at) {
            return;
        }
        self.next_look = Some(now + PACE);
        for (gid, n) in &mut self.list {
            let (asked, again, mac) = match n.state {
                State::Asking { asked, again } => (asked, again, None),
                State::Checking { mac, asked, again } => (asked, again, Some(mac)),
                State::Known { .. } | State::Away { .. } => continue,
            };
            if now < again {
                continue;
            }
            n.state = match mac {
                _ if asked >= QUESTIONS => State::Away { until: now + AWAY_FOR },
                None => State::Asking { asked: asked + 1, again: now + ASK_AGAIN },
                Some(mac) => State::Checking { mac, asked: asked + 1, again: now + ASK_AGAIN },
            };
            self.news |= asked >= QUESTIONS;
            if asked < QUESTIONS {
                // The last of several questions goes to all: the end may have another card now.
                let mac = mac.filter(|_| asked + 1 < QUESTIONS);
                self.questions.push(Question { ours: n.ours, target: *gid, mac });
            }
        }
    }

    /// True if a packet that waits may have an answer since the last call.
    pub(crate) const fn take_news(&mut self) -> bool {
        std::mem::replace(&mut self.news, false)
    }

    /// When time has to go on.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.next_look
    }

    /// The next question to be sent.
    pub(crate) fn poll_transmit(&mut self) -> Option<Question> {
        self.questions.pop()
    }
}
