//! Path cache: paths from subnet administration, each queried once and kept until it is doubted.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, Method};
use ib_wire::sa::{NumbPath, PathMask, PathRecord, SaMad};
use ib_wire::{Gid, PKey, Tid};

use crate::Path;
use crate::agent::RequestId;
use crate::timers::Timers;

/// Maximum number of outstanding path lookups. Others wait in a queue.
pub(super) const OUTSTANDING: usize = 64;
/// Maximum number of outstanding lookups that are not urgent.
const NOT_URGENT: usize = OUTSTANDING / 2;
/// Number of stale keys in a queue that triggers its cleanup.
const STALE: usize = 64;
/// Time during which a failed lookup is not repeated.
const HOLD: Duration = Duration::from_secs(1);
/// Minimum interval between refreshing lookups of a path.
const REFRESH: Duration = Duration::from_secs(1);

/// Identifies a path. The partition is included, because subnet administration answers for each partition
/// separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathKey {
    /// The partition's full-member P_Key.
    pub pkey: PKey,
    /// The other port.
    pub dgid: Gid,
}

/// Parameters of a path query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathQuery {
    /// Address of subnet administration.
    pub sm: MadAddress,
    /// The partition and the remote port.
    pub key: PathKey,
    /// Local GID.
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

/// Kind of a path request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Look the path up if it is unknown and no lookup is in progress.
    Unknown,
    /// The same for a port known only from another party, after the needed lookups.
    Rumoured,
    /// Check whether the path has changed, at most once per second.
    Doubtful,
    /// Look it up again immediately: the pending request went to another subnet manager or used another
    /// address.
    Restart,
}

/// State of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lookup {
    /// No lookup needed.
    Idle,
    /// Queued until others finish, with this queue number.
    Queued(u64),
    /// The query was sent.
    Sent(RequestId),
    /// It failed recently. A timer ends the hold.
    Held {
        /// True if the path was requested again meanwhile.
        wanted: bool,
    },
}

#[derive(Debug)]
struct Entry {
    query: PathQuery,
    path: Option<Path>,
    lookup: Lookup,
    /// True if the path is needed. Its lookup precedes the others.
    urgent: bool,
    queried_at: Instant,
    deadline: Option<Instant>,
}

/// Result of an [`Ask`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PathAnswer {
    /// The path is known.
    Known(Path),
    /// An answer will follow.
    Later,
    /// Send the lookup as soon as there is room.
    Send,
    /// Send the lookup, and cancel the obsolete request.
    Replace(RequestId),
}

/// The path cache of a port.
#[derive(Debug)]
pub(super) struct Paths {
    entries: HashMap<PathKey, Entry>,
    urgent: VecDeque<(u64, PathKey)>,
    others: VecDeque<(u64, PathKey)>,
    /// Number of queue numbers assigned, and number of stale keys in the queues.
    places: u64,
    stale: usize,
    timers: Timers<PathKey>,
    outstanding: Load,
}

/// Number of outstanding lookups.
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
            outstanding: Load::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of keys in the queues, including stale ones.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.urgent.len() + self.others.len()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(super) fn ask(&mut self, now: Instant, query: PathQuery, ask: Ask) -> PathAnswer {
        let key = query.key;
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            query,
            path: None,
            lookup: Lookup::Idle,
            urgent: false,
            queried_at: now,
            deadline: None,
        });
        entry.query = query;
        let due = entry.queried_at + REFRESH;
        let urgent = matches!(ask, Ask::Unknown | Ask::Restart);
        match (ask, entry.lookup) {
            (Ask::Unknown | Ask::Rumoured, Lookup::Idle) if let Some(path) = entry.path => {
                return PathAnswer::Known(path);
            }
            (Ask::Doubtful, Lookup::Idle) if entry.path.is_some() && due > now => {
                self.timers.set(key, &mut entry.deadline, Some(due));
                return PathAnswer::Later;
            }
            (_, Lookup::Idle) | (Ask::Restart, Lookup::Held { .. }) => {}
            // A lookup that becomes urgent leaves the queue of the others.
            (_, Lookup::Queued(_)) if urgent && !entry.urgent => self.stale += 1,
            (Ask::Restart, Lookup::Sent(id)) => {
                self.outstanding.end(entry.urgent);
                self.enqueue(key, urgent);
                return PathAnswer::Replace(id);
            }
            (Ask::Unknown | Ask::Rumoured | Ask::Doubtful, Lookup::Held { .. }) => {
                entry.lookup = Lookup::Held { wanted: true };
                entry.urgent |= urgent;
                return PathAnswer::Later;
            }
            (_, Lookup::Queued(_) | Lookup::Sent(_)) => return PathAnswer::Later,
        }
        self.enqueue(key, urgent);
        PathAnswer::Send
    }

    fn enqueue(&mut self, key: PathKey, urgent: bool) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.timers.set(key, &mut entry.deadline, None);
        self.places += 1;
        (entry.lookup, entry.urgent) = (Lookup::Queued(self.places), urgent);
        if urgent { &mut self.urgent } else { &mut self.others }.push_back((self.places, key));
    }

    /// Returns the next lookup to send, if one may be sent.
    pub(super) fn next_lookup(&mut self, now: Instant) -> Option<(PathKey, Mad)> {
        while self.outstanding.all < OUTSTANDING {
            let (place, key) = match self.urgent.pop_front() {
                Some(next) => next,
                None if self.outstanding.others < NOT_URGENT => self.others.pop_front()?,
                None => return None,
            };
            // Keys of paths that were forgotten or became urgent stay in the queue until here.
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.lookup == Lookup::Queued(place)
            {
                entry.queried_at = now;
                return Some((key, entry.query.to_mad()));
            }
            self.stale = self.stale.saturating_sub(1);
        }
        None
    }

    /// Records that the lookup was sent, or could not be sent.
    pub(super) fn sent(&mut self, now: Instant, key: PathKey, id: Option<RequestId>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match id {
            Some(id) => {
                entry.lookup = Lookup::Sent(id);
                self.outstanding.begin(entry.urgent);
            }
            None => {
                entry.lookup = Lookup::Held { wanted: true };
                self.timers.set(key, &mut entry.deadline, Some(now + HOLD));
            }
        }
    }

    /// Records the answer to a lookup; `None` if there was none or a rejection. Returns the path as stored.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        key: PathKey,
        record: Option<&PathRecord>,
    ) -> Option<Path> {
        let entry = self.entries.get_mut(&key)?;
        self.outstanding.end(entry.urgent);
        match record.and_then(Path::from_record) {
            Some(path) => {
                // The key remains the queried GID, whatever the answer contains (ib_ipoib does the same).
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

    /// Forgets a path. Returns the request to cancel, if there is one.
    pub(super) fn forget(&mut self, key: PathKey) -> Option<RequestId> {
        let mut entry = self.entries.remove(&key)?;
        self.timers.set(key, &mut entry.deadline, None);
        if matches!(entry.lookup, Lookup::Queued(_)) {
            self.stale += 1;
            self.tidy();
        }
        let Lookup::Sent(id) = entry.lookup else { return None };
        self.outstanding.end(entry.urgent);
        Some(id)
    }

    /// Removes stale keys from the queues when there are many. The amortized cost is constant.
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
                Lookup::Queued(_) | Lookup::Sent(_) => {}
            }
        }
    }
}
