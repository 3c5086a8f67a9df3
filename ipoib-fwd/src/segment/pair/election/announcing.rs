//! Announcements of a gateway that continues to forward after another one forwarded at the same time, for
//! instance where networks meet again. Without them hosts that send to the other gateway find this one only
//! when their own entries age.

use std::time::{Duration, Instant};

use super::super::api::Event;
use super::super::message::Role;
use super::{HANDOVER, Pair};

/// Shortest time between two announcements of all hosts. They take two rounds, a second apart.
const GAP: Duration = Duration::from_secs(2);
// Hosts hear the second announcement before the other gateway stops forwarding what they send to it.
const _: () = assert!(GAP.as_millis() < HANDOVER.as_millis());

/// When all hosts were announced, and when they must be announced again.
#[derive(Debug, Default)]
pub(super) struct Announcing {
    last: Option<Instant>,
    due: Option<Instant>,
}

impl Announcing {
    /// When the next announcement is due.
    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }
}

impl Pair {
    /// The role has changed: a gateway that starts to forward announces all hosts in any case.
    pub(super) fn restart_announcing(&mut self, now: Instant) {
        self.announcing = Announcing { last: (self.role == Role::Forwarding).then_some(now), due: None };
    }

    /// Another gateway forwards as well, or did so. If this one continues, it announces all hosts: at once,
    /// or [`GAP`] after the last time.
    pub(super) fn announce_again(&mut self, now: Instant) {
        if self.role == Role::Forwarding {
            let earliest = self.announcing.last.map_or(now, |last| last + GAP);
            self.announcing.due.get_or_insert(earliest.max(now));
        }
    }

    /// Announces the hosts if that is due.
    pub(super) fn announce_if_due(&mut self, now: Instant) {
        if self.announcing.due.take_if(|due| now >= *due).is_some() {
            self.announcing.last = Some(now);
            self.events.push_back(Event::AnnounceHosts);
        }
    }
}
