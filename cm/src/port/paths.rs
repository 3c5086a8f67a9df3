//! Paths that subnet administration was asked for: each once, kept until somebody doubts it.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, Method};
use ib_wire::sa::{NumbPath, PathMask, PathRecord, SaMad};
use ib_wire::{Gid, PKey, Tid};

use crate::Path;
use crate::agent::RequestId;
use crate::timers::Timers;

/// Path lookups under way at once; the rest waits its turn.
pub(super) const OUTSTANDING: usize = 64;
/// How long a failed lookup is not repeated.
const HOLD: Duration = Duration::from_secs(1);
/// Least time between refreshing lookups of one path.
const REFRESH: Duration = Duration::from_secs(1);

/// Names a path. Its partition is part of the name, as subnet administration answers for each by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathKey {
    /// The partition, as full member.
    pub pkey: PKey,
    /// The other port.
    pub dgid: Gid,
}

/// What is asked about a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathQuery {
    /// Subnet administration's port.
    pub sm: MadAddress,
    /// The partition and the other port.
    pub key: PathKey,
    /// Our GID.
    pub sgid: Gid,
    /// Traffic class.
    pub traffic_class: u8,
}

impl PathQuery {
    fn to_mad(self) -> Mad {
        let record = PathRecord {
            dgid: self.key.dgid,
            sgid: self.sgid,
            numb_path: NumbPath::new(1),
            pkey: self.key.pkey,
            traffic_class: self.traffic_class,
            ..PathRecord::default()
        };
        let mask =
            PathMask::DGID | PathMask::SGID | PathMask::NUMB_PATH | PathMask::TRAFFIC_CLASS | PathMask::PKEY;
        let bytes = SaMad::request(Method::Get, Tid(0), mask.bits(), &record).to_bytes();
        Mad { peer: self.sm, bytes }
    }
}

/// How much an asker wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// The path, if it is not known or being looked up.
    Unknown,
    /// Whether it is still what it was; asked once a second at most.
    Doubtful,
    /// Anew and at once: what is under way went to another subnet manager, or from another address.
    Restart,
}

/// How a lookup stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lookup {
    /// None needed.
    Idle,
    /// In the queue of those that wait for others to end.
    Queued,
    /// Subnet administration has been asked.
    Asked(RequestId),
    /// It has failed a moment ago; a timer ends the hold.
    Held {
        /// Somebody has asked meanwhile.
        wanted: bool,
    },
}

#[derive(Debug)]
struct Entry {
    query: PathQuery,
    path: Option<Path>,
    lookup: Lookup,
    asked_at: Instant,
    deadline: Option<Instant>,
}

/// What an [`Ask`] comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// The path is here.
    Known(Path),
    /// An answer will come.
    Later,
    /// The lookup is to be sent as soon as there is room.
    Send,
    /// So is this one, in place of a request that is of no use any more.
    Replace(RequestId),
}

/// The path cache of a port.
#[derive(Debug)]
pub(super) struct Paths {
    entries: HashMap<PathKey, Entry>,
    queue: VecDeque<PathKey>,
    timers: Timers<PathKey>,
    asked: usize,
}

impl Paths {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), queue: VecDeque::new(), timers: Timers::new(), asked: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(super) fn ask(&mut self, now: Instant, query: PathQuery, ask: Ask) -> Asked {
        let key = query.key;
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            query,
            path: None,
            lookup: Lookup::Idle,
            asked_at: now,
            deadline: None,
        });
        entry.query = query;
        let due = entry.asked_at + REFRESH;
        match (ask, entry.lookup) {
            (Ask::Unknown, Lookup::Idle) if let Some(path) = entry.path => return Asked::Known(path),
            (Ask::Doubtful, Lookup::Idle) if entry.path.is_some() && due > now => {
                self.timers.set(key, &mut entry.deadline, Some(due));
                return Asked::Later;
            }
            (_, Lookup::Idle) | (Ask::Restart, Lookup::Held { .. }) => {}
            (Ask::Restart, Lookup::Asked(id)) => {
                self.enqueue(key);
                self.asked = self.asked.saturating_sub(1);
                return Asked::Replace(id);
            }
            (Ask::Unknown | Ask::Doubtful, Lookup::Held { .. }) => {
                entry.lookup = Lookup::Held { wanted: true };
                return Asked::Later;
            }
            (_, Lookup::Queued | Lookup::Asked(_)) => return Asked::Later,
        }
        self.enqueue(key);
        Asked::Send
    }

    fn enqueue(&mut self, key: PathKey) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.timers.set(key, &mut entry.deadline, None);
        entry.lookup = Lookup::Queued;
        self.queue.push_back(key);
    }

    /// The next lookup to send, if its turn has come.
    pub(super) fn next_lookup(&mut self, now: Instant) -> Option<(PathKey, Mad)> {
        while self.asked < OUTSTANDING {
            let key = self.queue.pop_front()?;
            // Keys of forgotten paths stay in the queue until here.
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.lookup == Lookup::Queued
            {
                entry.asked_at = now;
                return Some((key, entry.query.to_mad()));
            }
        }
        None
    }

    /// The lookup is on its way, or could not be sent.
    pub(super) fn sent(&mut self, now: Instant, key: PathKey, id: Option<RequestId>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match id {
            Some(id) => {
                entry.lookup = Lookup::Asked(id);
                self.asked += 1;
            }
            None => {
                entry.lookup = Lookup::Held { wanted: true };
                self.timers.set(key, &mut entry.deadline, Some(now + HOLD));
            }
        }
    }

    /// The answer to a lookup; none if there was none, or a refusal. The path as it is kept.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        key: PathKey,
        record: Option<&PathRecord>,
    ) -> Option<Path> {
        self.asked = self.asked.saturating_sub(1);
        let entry = self.entries.get_mut(&key)?;
        match record.and_then(Path::from_record) {
            Some(path) => {
                // The key stays the GID that was asked for, whatever the answer says (ib_ipoib does the same).
                let path = Path { dgid: key.dgid, sgid: entry.query.sgid, ..path };
                entry.lookup = Lookup::Idle;
                entry.path = Some(path);
                Some(path)
            }
            None => {
                entry.lookup = Lookup::Held { wanted: false };
                self.timers.set(key, &mut entry.deadline, Some(now + HOLD));
                None
            }
        }
    }

    /// Forgets a path; the request that is to be taken back, if there is one.
    pub(super) fn forget(&mut self, key: PathKey) -> Option<RequestId> {
        let mut entry = self.entries.remove(&key)?;
        self.timers.set(key, &mut entry.deadline, None);
        if entry.lookup == Lookup::Queued {
            self.queue.retain(|queued| *queued != key);
        }
        let Lookup::Asked(id) = entry.lookup else { return None };
        self.asked = self.asked.saturating_sub(1);
        Some(id)
    }

    /// Ends holds and starts refreshing lookups that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(key) = self.timers.pop_due(now) {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.deadline = None;
            match entry.lookup {
                Lookup::Held { wanted: false } => entry.lookup = Lookup::Idle,
                Lookup::Held { wanted: true } | Lookup::Idle => self.enqueue(key),
                Lookup::Queued | Lookup::Asked(_) => {}
            }
        }
    }
}
