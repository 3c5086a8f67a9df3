//! Outputs of a link's parts: actions, events, requests, deadlines, counters, and pending publications. The
//! parts write into it.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Lid};

use super::action::{Action, Event};
use super::random::Random;
use super::request::Request;
use super::statistics::LinkCounters;
use super::timers::Timers;

/// A message from one part to another. The link delivers it before it does anything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// A connection to this peer failed or was not established.
    Suspect(HardwareAddress),
    /// The entries of neighbours with this address must be rebuilt.
    Republish(HardwareAddress),
    /// Look up the path to this port: a connection request that came by this LID names it.
    WantPath(Gid, Lid),
    /// The same for a request that has been accepted: the answer shows whether it came from there.
    ProvePath(Gid, Lid),
    /// The path to this port is doubtful.
    RefreshPath(Gid),
    /// The path to this port seems to lead elsewhere: a packet came from there by this LID.
    CheckLid(Gid, Lid),
    /// All entries must be rebuilt.
    RepublishAll,
    /// The broadcast group is joined, perhaps again.
    Joined,
    /// The membership of the broadcast group is lost.
    Excluded,
    /// A connection no longer exists.
    ConnectionGone,
}

/// The outbox of one link.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    /// Requests to the port's services.
    pub(super) requests: VecDeque<Request>,
    pub(super) words: VecDeque<Word>,
    pub(super) timers: Timers,
    pub(super) random: Random,
    pub(super) counters: LinkCounters,
    /// Neighbours whose table entry must be rebuilt.
    pub(super) dirty: BTreeSet<IpAddr>,
    /// The link's state must be published again.
    pub(super) state_dirty: bool,
    /// The last publication, and the last that all workers have taken up.
    pub(super) generation: u64,
    pub(super) quiescent: u64,
    /// A generation that something waits for: it is published even if nothing has changed.
    owed: u64,
}

impl Outbox {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            actions: VecDeque::new(),
            events: VecDeque::new(),
            requests: VecDeque::new(),
            words: VecDeque::new(),
            timers: Timers::default(),
            random: Random::new(seed),
            counters: LinkCounters::default(),
            dirty: BTreeSet::new(),
            state_dirty: true,
            generation: 0,
            quiescent: 0,
            owed: 0,
        }
    }

    /// True if there is anything to publish.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.state_dirty || self.is_owed()
    }

    /// True if something waits for the next publication.
    pub(super) const fn is_owed(&self) -> bool {
        self.owed > self.generation
    }

    /// Requests the next generation, and returns its number.
    pub(super) const fn await_next(&mut self) -> u64 {
        self.owed = self.generation + 1;
        self.owed
    }

    /// The number of a generation without entries from before this moment, to wait for.
    pub(super) fn unpublished_since(&mut self) -> u64 {
        // A dirty entry may turn out to be unchanged.
        if self.is_dirty() { self.await_next() } else { self.generation }
    }
}
