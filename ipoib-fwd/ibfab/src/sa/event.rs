//! Events for subscribers, and the log of events that are not sent to all of them yet.

use std::collections::BTreeMap;

use ib_wire::sa::trap;
use ib_wire::{Gid, Guid, PKey};

use crate::subnet::{Port, Subnet};

/// An event that subscribers may be interested in.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(super) trap: u16,
    pub(super) gid: Gid,
    /// Reported only to ports that can communicate with one of these.
    pkeys: Vec<PKey>,
}

impl Event {
    pub(crate) fn port_in(subnet: &Subnet, guid: Guid) -> Self {
        let port = subnet.by_guid(guid);
        let pkeys = port.map(|e| e.port.pkeys.keys().collect()).unwrap_or_default();
        Self { trap: trap::GID_IN_SERVICE, gid: Gid::new(subnet.prefix, guid), pkeys }
    }

    /// A port left the subnet; `pkeys` are those that it had.
    pub(crate) const fn port_out(subnet: &Subnet, guid: Guid, pkeys: Vec<PKey>) -> Self {
        Self { trap: trap::GID_OUT_OF_SERVICE, gid: Gid::new(subnet.prefix, guid), pkeys }
    }

    pub(crate) fn group_created(gid: Gid, pkey: PKey) -> Self {
        Self { trap: trap::GROUP_CREATED, gid, pkeys: vec![pkey] }
    }

    pub(crate) fn group_deleted(gid: Gid, pkey: PKey) -> Self {
        Self { trap: trap::GROUP_DELETED, gid, pkeys: vec![pkey] }
    }

    /// A group's key is a full one, so every member of its partition matches it.
    pub(super) fn concerns(&self, port: &Port) -> bool {
        self.pkeys.iter().any(|event| port.pkeys.keys().any(|own| own.matches(*event)))
    }
}

/// Returns the trap with the opposite meaning of traps 64 to 67: in and out of service, created and deleted.
pub(super) const fn opposite(trap: u16) -> u16 {
    trap ^ 1
}

/// Events that at least one subscriber has not been sent yet, by number. For each GID, it has the last event
/// of each trap.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    events: BTreeMap<u64, Event>,
    numbers: BTreeMap<(Gid, u16), u64>,
    last: u64,
}

impl EventLog {
    /// Appends an event. Returns the oldest one if there are now more than `most`.
    pub(super) fn push(&mut self, event: Event, most: usize) -> Option<(u64, Event)> {
        self.last += 1;
        if let Some(older) = self.numbers.insert((event.gid, event.trap), self.last) {
            self.events.remove(&older);
        }
        self.events.insert(self.last, event);
        if self.events.len() > most { self.pop() } else { None }
    }

    fn pop(&mut self) -> Option<(u64, Event)> {
        let (number, event) = self.events.pop_first()?;
        self.numbers.remove(&(event.gid, event.trap));
        Some((number, event))
    }

    /// Returns the number of the last event; 0 before the first.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Returns the first event after number `seen`.
    pub(super) fn after(&self, seen: u64) -> Option<(u64, &Event)> {
        self.events.range(seen + 1..).next().map(|(&number, event)| (number, event))
    }

    /// Returns the later event that reverses `event`, which has this number.
    pub(super) fn reversal(&self, number: u64, event: &Event) -> Option<&Event> {
        let later = self.numbers.get(&(event.gid, opposite(event.trap))).filter(|&&other| other > number)?;
        self.events.get(later)
    }

    /// Drops events up to number `seen`.
    pub(super) fn drop_until(&mut self, seen: u64) {
        while self.events.first_key_value().is_some_and(|(&number, _)| number <= seen) {
            self.pop();
        }
    }
}
