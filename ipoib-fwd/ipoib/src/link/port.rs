//! What port events do to a link: light, normal and heavy flushes, as ib_ipoib grades them.

use std::time::Instant;

use super::action::Event;
use super::machine::Link;
use super::settings::{PortEvent, PortFacts};
use super::statistics::CloseReason;

impl Link {
    /// Tells what the port is now, at start and when in doubt; differences to what was told before have the effect of
    /// the events that would have announced them.
    pub(crate) fn handle_port(&mut self, now: Instant, facts: PortFacts) {
        let before = self.port;
        let event = if facts.pkey_index != before.pkey_index {
            PortEvent::Heavy
        } else if facts.state != before.state || facts.lid != before.lid {
            PortEvent::Normal
        } else if facts != before {
            PortEvent::Light
        } else {
            self.note_waiting();
            return;
        };
        self.handle_port_event(now, event, facts);
    }

    /// Tells of an asynchronous event of the port (see [`PortEvent::from_async`]) and what the port is after it.
    pub(crate) fn handle_port_event(&mut self, now: Instant, event: PortEvent, facts: PortFacts) {
        self.take_port_event(now, event, facts);
        self.note_waiting();
    }

    fn take_port_event(&mut self, now: Instant, event: PortEvent, facts: PortFacts) {
        let before = std::mem::replace(&mut self.port, facts);
        self.state_dirty = true;
        self.check_own_address(now, &facts);
        let was_usable = before.state == hca::PortState::Active && before.pkey_index.is_some();
        // Facts may be ahead of events: a lost state counts whatever the event's name.
        let event = match event {
            PortEvent::Heavy if facts.pkey_index == before.pkey_index => PortEvent::Light,
            PortEvent::Light if facts.state != before.state || facts.lid != before.lid => PortEvent::Normal,
            event => event,
        };
        if !was_usable && !self.port_usable() {
            return;
        }
        self.counters.flushes += 1;
        match event {
            PortEvent::Light if was_usable && self.port_usable() => {
                // What is under way went to the old subnet manager, or from the old GID.
                self.restart_joins();
                self.requery_paths();
            }
            PortEvent::Light | PortEvent::Normal => self.fall(now),
            PortEvent::Heavy => {
                self.fall(now);
                // Connections are bound to the index that is no more.
                self.close_all(now, None, CloseReason::LinkDown);
            }
        }
        if self.port_usable() {
            self.join_all();
        }
    }

    /// Takes the link down and forgets what the subnet told.
    fn fall(&mut self, now: Instant) {
        self.drop_memberships();
        self.link_down(now);
        self.drop_paths();
    }

    /// The link is down: no neighbour can be reached.
    pub(super) fn link_down(&mut self, now: Instant) {
        self.state_dirty = true;
        self.forget_all(now, CloseReason::LinkDown);
        if self.up {
            self.up = false;
            self.events.push_back(Event::Down);
        }
    }
}
