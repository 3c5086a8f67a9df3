//! What the parts of a link give out: actions, events, requests, deadlines, counts, what is to be published. Lent to them to fill.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Lid};

use super::action::{Action, Event};
use super::random::Random;
use super::request::Request;
use super::statistics::LinkCounters;
use super::timers::Timers;

/// What one part has to say to another. The link passes it on before it does anything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// A connection to this peer failed or did not come into being.
    Suspect(HardwareAddress),
    /// The entries of neighbours with this address are to be made anew.
    Republish(HardwareAddress),
    /// The path to this port is wanted: a request for a connection that came by this LID names it.
    WantPath(Gid, Lid),
    /// The same, and the request has been accepted: the answer shows whether it came from there.
    ProvePath(Gid, Lid),
    /// It is doubtful.
    RefreshPath(Gid),
    /// It seems to lead elsewhere: something came from there by this LID.
    CheckLid(Gid, Lid),
    /// All entries are to be made anew.
    RepublishAll,
    /// The broadcast group is joined, anew perhaps.
    Joined,
    /// Its membership is gone.
    Excluded,
    /// A connection is no more.
    ConnectionGone,
}

/// The outbox of one link.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    /// What the port's services are to do.
    pub(super) requests: VecDeque<Request>,
    pub(super) words: VecDeque<Word>,
    pub(super) timers: Timers,
    pub(super) random: Random,
    pub(super) counters: LinkCounters,
    /// Neighbours whose table entry has to be made anew.
    pub(super) dirty: BTreeSet<IpAddr>,
    /// The link's state has to be published anew.
    pub(super) state_dirty: bool,
    /// The last publication, and the last that all workers have taken up.
    pub(super) generation: u64,
    pub(super) quiescent: u64,
    /// A publication that something waits for: it is made though nothing may have changed.
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

    /// The next generation, to wait for.
    pub(super) const fn await_next(&mut self) -> u64 {
        self.owed = self.generation + 1;
        self.owed
    }

    /// The generation that has no entry of before this moment, to wait for.
    pub(super) fn unpublished_since(&mut self) -> u64 {
        // What is dirty may turn out to be as it was.
        if self.is_dirty() { self.await_next() } else { self.generation }
    }
}
