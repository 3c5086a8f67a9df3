//! The effect of the port, its events and its services on a link: light, normal and heavy flushes, graded as
//! in ib_ipoib.

use std::net::Ipv4Addr;
use std::time::Instant;

use cm::Path;
use cm::port::Outcome;
use hca::PortState;
use ib_wire::Gid;
use ib_wire::sa::McMemberRecord;

use super::action::Event;
use super::machine::Link;
use super::paths::Answer;
use super::settings::{PortEvent, PortFacts};
use super::statistics::CloseReason;
use super::waiting::Waiting;

impl Link {
    /// Reports the port's present state, at start and in case of doubt. Differences from the last report have
    /// the effect of the events that would have announced them.
    pub(crate) fn handle_port(&mut self, now: Instant, facts: PortFacts) {
        let before = self.ground.port;
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

    /// Reports an asynchronous event of the port (see [`PortEvent::from_async`]) and the port's state after
    /// it.
    pub(crate) fn handle_port_event(&mut self, now: Instant, event: PortEvent, facts: PortFacts) {
        self.take_port_event(now, event, facts);
        self.note_waiting();
    }

    fn take_port_event(&mut self, now: Instant, event: PortEvent, facts: PortFacts) {
        let before = std::mem::replace(&mut self.ground.port, facts);
        self.out.state_dirty = true;
        self.check_own_address(now, &facts);
        let was_usable = before.state == PortState::Active && before.pkey_index.is_some();
        // The state may be ahead of the events: a lost state counts whatever the event's name.
        let event = match event {
            PortEvent::Heavy if facts.pkey_index == before.pkey_index => PortEvent::Light,
            PortEvent::Light if facts.state != before.state || facts.lid != before.lid => PortEvent::Normal,
            event => event,
        };
        if !was_usable && !self.ground.port_usable() {
            return;
        }
        self.out.counters.flushes += 1;
        match event {
            PortEvent::Light if was_usable && self.ground.port_usable() => {
                // Pending requests went to the old subnet manager, or from the old GID.
                self.at_groups().restart();
                self.at_paths().requery();
            }
            PortEvent::Light | PortEvent::Normal => self.fall(now),
            PortEvent::Heavy => {
                self.fall(now);
                // Connections are bound to the old P_Key index.
                self.with_conns(now, |conns| conns.close_all(now, None, CloseReason::LinkDown));
            }
        }
        if self.ground.port_usable() {
            self.at_groups().join_all();
        }
    }

    /// Takes the link down and forgets the state that came from the subnet.
    fn fall(&mut self, now: Instant) {
        self.at_groups().drop_all();
        self.link_down(now);
        self.at_paths().drop_all();
    }

    /// Marks the link as down, and forgets the neighbours, which cannot be reached.
    pub(super) fn link_down(&mut self, now: Instant) {
        self.out.state_dirty = true;
        self.forget_all(now, CloseReason::LinkDown);
        if self.ground.up {
            self.ground.up = false;
            self.out.events.push_back(Event::Down);
        }
    }

    /// Checks whether the port's GID has changed, and restarts the state that depends on it.
    pub(super) fn check_own_address(&mut self, now: Instant, facts: &PortFacts) {
        if self.ground.own.see(facts.gid).is_none() {
            return;
        }
        self.out.counters.gid_changes += 1;
        self.out.state_dirty = true;
        self.with_conns(now, |conns| conns.close_all(now, None, CloseReason::OwnAddressChanged));
        // A new prefix applies to the whole subnet. Dials wait for the paths from the new address.
        self.doubt_neighbours(now);
    }

    /// Handles the join of the broadcast group with the present address. If the link was down, it comes up,
    /// and the owner announces the address anyway.
    pub(super) fn link_up(&mut self) {
        let unannounced = std::mem::take(&mut self.ground.own.unannounced);
        if !self.ground.up {
            self.ground.up = true;
            self.out.events.push_back(Event::Up);
            self.at_paths().requery();
        } else if unannounced {
            self.out.events.push_back(Event::Readdressed { gid: self.ground.port.gid });
        }
    }

    /// Answers [`super::Request::Join`].
    pub(crate) fn join_answered(
        &mut self,
        now: Instant,
        group: Ipv4Addr,
        outcome: Outcome<Option<McMemberRecord>>,
    ) {
        self.at_groups().answered(now, group, outcome);
        self.pass_on(now);
        self.note_waiting();
    }

    /// Answers [`super::Request::QueryGroup`].
    pub(crate) fn group_answered(&mut self, group: Ipv4Addr, outcome: Outcome<Option<McMemberRecord>>) {
        self.at_groups().explained(group, outcome);
        self.note_waiting();
    }

    /// Answers [`super::Request::Leave`].
    pub(crate) fn leave_answered(&mut self, outcome: Outcome<()>) {
        self.at_groups().left(outcome);
        self.check_left();
    }

    /// Answers [`super::Request::Path`]; also comes unrequested if another link's request has brought a new
    /// path.
    pub(crate) fn path_answered(&mut self, now: Instant, gid: Gid, outcome: Outcome<Path>) {
        match self.at_paths().answered(gid, outcome) {
            Answer::Known => {}
            Answer::Changed { dlid, moved } => {
                self.path_changed(now, gid, moved);
                self.with_conns(now, |conns| conns.check_origins(now, gid, dlid));
            }
            Answer::Failed => self.path_failed(now, gid),
        }
    }

    /// The condition that the link waits for; `None` if it is up, about to come up, or shutting down.
    #[must_use]
    pub fn waits_for(&self) -> Option<Waiting> {
        if self.ground.up || self.ground.is_shutting_down() {
            return None;
        }
        match self.ground.port.state {
            PortState::Down => Some(Waiting::Cable),
            PortState::Init | PortState::Armed => Some(Waiting::SubnetManager),
            PortState::Active if self.ground.port.pkey_index.is_none() => {
                Some(if self.ground.port.limited { Waiting::FullMembership } else { Waiting::PKey })
            }
            PortState::Active => self.groups.broadcast_failure(),
        }
    }

    /// Notifies the owner of a change of that condition.
    pub(super) fn note_waiting(&mut self) {
        let now = self.waits_for();
        if self.waiting != now {
            self.waiting = now;
            self.out.events.extend(now.map(Event::Waiting));
        }
    }
}
