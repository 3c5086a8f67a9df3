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
    /// The path to this port is wanted: a connection was asked for from there.
    WantPath(Gid),
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
        }
    }

    /// True if there is anything to publish.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.state_dirty
    }

    /// The generation that has no entry of before this moment.
    pub(super) fn unpublished_since(&self) -> u64 {
        self.generation + u64::from(self.is_dirty())
    }
}
