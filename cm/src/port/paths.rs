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
/// How many of them may be of those that are not urgent.
const NOT_URGENT: usize = OUTSTANDING / 2;
/// Keys of forgotten lookups that are left in a queue before it is gone through.
const STALE: usize = 64;
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
    /// The same for a port that we know of by somebody's word only: when its turn comes, behind those that are needed.
    Rumoured,
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
    /// In a queue of those that wait for others to end, at the place with this number.
    Queued(u64),
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
    /// It is needed: its lookup goes before the others.
    urgent: bool,
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
    urgent: VecDeque<(u64, PathKey)>,
    others: VecDeque<(u64, PathKey)>,
    /// Places given so far, and those of them whose lookups have been forgotten since.
    places: u64,
    stale: usize,
    timers: Timers<PathKey>,
    asked: Load,
}

/// Lookups under way.
#[derive(Debug, Default)]
struct Load {
    all: usize,
    others: usize,
}

impl Load {
    fn begin(&mut self, urgent: bool) {
        self.all += 1;
        self.others += usize::from(!urgent);
    }

    fn end(&mut self, urgent: bool) {
        self.all = self.all.saturating_sub(1);
        self.others = self.others.saturating_sub(usize::from(!urgent));
    }
}

impl Paths {
    pub(super) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            urgent: VecDeque::new(),
            others: VecDeque::new(),
            places: 0,
            stale: 0,
            timers: Timers::new(),
            asked: Load::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Keys in the queues, forgotten ones included.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.urgent.len() + self.others.len()
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
            urgent: false,
            asked_at: now,
            deadline: None,
        });
        entry.query = query;
        let due = entry.asked_at + REFRESH;
        let urgent = matches!(ask, Ask::Unknown | Ask::Restart);
        match (ask, entry.lookup) {
            (Ask::Unknown | Ask::Rumoured, Lookup::Idle) if let Some(path) = entry.path => {
                return Asked::Known(path);
            }
            (Ask::Doubtful, Lookup::Idle) if entry.path.is_some() && due > now => {
                self.timers.set(key, &mut entry.deadline, Some(due));
                return Asked::Later;
            }
            (_, Lookup::Idle) | (Ask::Restart, Lookup::Held { .. }) => {}
            // What was nobody's need waits with the others no longer.
            (_, Lookup::Queued(_)) if urgent && !entry.urgent => self.stale += 1,
            (Ask::Restart, Lookup::Asked(id)) => {
                self.asked.end(entry.urgent);
                self.enqueue(key, urgent);
                return Asked::Replace(id);
            }
            (Ask::Unknown | Ask::Rumoured | Ask::Doubtful, Lookup::Held { .. }) => {
                entry.lookup = Lookup::Held { wanted: true };
                entry.urgent |= urgent;
                return Asked::Later;
            }
            (_, Lookup::Queued(_) | Lookup::Asked(_)) => return Asked::Later,
        }
        self.enqueue(key, urgent);
        Asked::Send
    }

    fn enqueue(&mut self, key: PathKey, urgent: bool) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.timers.set(key, &mut entry.deadline, None);
        self.places += 1;
        (entry.lookup, entry.urgent) = (Lookup::Queued(self.places), urgent);
        if urgent { &mut self.urgent } else { &mut self.others }.push_back((self.places, key));
    }

    /// The next lookup to send, if its turn has come.
    pub(super) fn next_lookup(&mut self, now: Instant) -> Option<(PathKey, Mad)> {
        while self.asked.all < OUTSTANDING {
            let (place, key) = match self.urgent.pop_front() {
                Some(next) => next,
                None if self.asked.others < NOT_URGENT => self.others.pop_front()?,
                None => return None,
            };
            // Keys of paths that were forgotten, or became urgent, stay in the queue until here.
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.lookup == Lookup::Queued(place)
            {
                entry.asked_at = now;
                return Some((key, entry.query.to_mad()));
            }
            self.stale = self.stale.saturating_sub(1);
        }
        None
    }

    /// The lookup is on its way, or could not be sent.
    pub(super) fn sent(&mut self, now: Instant, key: PathKey, id: Option<RequestId>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match id {
            Some(id) => {
                entry.lookup = Lookup::Asked(id);
                self.asked.begin(entry.urgent);
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
        let entry = self.entries.get_mut(&key)?;
        self.asked.end(entry.urgent);
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
        if matches!(entry.lookup, Lookup::Queued(_)) {
            self.stale += 1;
            self.tidy();
        }
        let Lookup::Asked(id) = entry.lookup else { return None };
        self.asked.end(entry.urgent);
        Some(id)
    }

    /// Takes forgotten keys out of the queues when they are many: once for each, in the mean.
    fn tidy(&mut self) {
        if self.stale < STALE.max((self.urgent.len() + self.others.len()) / 2) {
            return;
        }
        self.stale = 0;
        for queue in [&mut self.urgent, &mut self.others] {
            let entries = &self.entries;
            queue.retain(|(place, key)| entries.get(key).is_some_and(|e| e.lookup == Lookup::Queued(*place)));
        }
    }

    /// Ends holds and starts refreshing lookups that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(key) = self.timers.pop_due(now) {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.deadline = None;
            match entry.lookup {
                Lookup::Held { wanted: false } => entry.lookup = Lookup::Idle,
                Lookup::Held { wanted: true } | Lookup::Idle => {
                    let urgent = entry.urgent;
                    self.enqueue(key, urgent);
                }
                Lookup::Queued(_) | Lookup::Asked(_) => {}
            }
        }
    }
}
