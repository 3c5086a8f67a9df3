//! The port's requests to subnet administration: memberships of groups and paths, for all links of the port.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, MadStatus, Method};
use ib_wire::sa::{McMask, McMemberRecord, PathRecord, SaMad};
use ib_wire::{Gid, Tid};

use super::paths::{Ask, Asked, OUTSTANDING, PathKey, PathQuery, Paths};
use crate::Path;
use crate::agent::{Agent, Attempts, Handled, RequestId};

/// Patience with the subnet manager (Linux's IPoIB asks with 1000 ms).
const ATTEMPTS: Attempts = Attempts { timeout: Duration::from_millis(1000), tries: 3 };
/// A request that has had no answer for this long has ended. A device that repeats requests by itself must have stopped by then, or it
/// undoes what follows.
pub const PATIENCE: Duration = Duration::from_millis(3000);
/// Joins, leaves and queries of groups under way at once, over all links: a subnet manager
/// that comes back is not flooded.
const GROUPS: usize = 64;
/// Most queries among them. A query only explains why a group could not be joined.
const QUERIES: usize = GROUPS / 4;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// Subnet administration answered with this.
    Granted(T),
    /// It refused with this status.
    Refused(MadStatus),
    /// It did not answer, however often it was asked.
    Silence,
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaEvent<U> {
    /// A request to join a group ended.
    Joined {
        /// Whose.
        user: U,
        /// The membership; `None` in a grant whose record was not to be read.
        outcome: Outcome<Option<McMemberRecord>>,
    },
    /// A request to leave a group ended.
    Left {
        /// Whose.
        user: U,
        /// How.
        outcome: Outcome<()>,
    },
    /// A query of a group ended.
    Group {
        /// Whose.
        user: U,
        /// The group; `None` in a grant whose record was not to be read.
        outcome: Outcome<Option<McMemberRecord>>,
    },
    /// A lookup of a path ended. [`Outcome::Refused`] with status [`MadStatus::OK`] stands for an answer that leads nowhere.
    Path {
        /// Which path.
        key: PathKey,
        /// The path.
        outcome: Outcome<Path>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose<U> {
    Join(U),
    /// A join whose answer nobody wants: its user has left meanwhile.
    Abandoned(U),
    Leave(U),
    Path(PathKey),
    Query(U),
}

/// The requests of one port. The owner takes what is to be sent and [`Sa::poll_event`] until they are empty after every
/// input.
#[derive(Debug)]
pub struct Sa<U> {
    agent: Agent,
    pending: BTreeMap<RequestId, Purpose<U>>,
    /// Joins and leaves that wait for others to end, oldest first.
    waiting: VecDeque<(Purpose<U>, Mad)>,
    /// Leaves that wait for a join of the same user to end.
    held: VecDeque<(U, Mad)>,
    /// Queries of groups that wait for others to end, or for joins and leaves to be sent, oldest first.
    queries: VecDeque<(U, Mad)>,
    /// Joins, leaves and queries under way.
    groups: usize,
    /// Queries among them.
    querying: usize,
    paths: Paths,
    events: VecDeque<SaEvent<U>>,
}

impl<U: Copy + Eq> Sa<U> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            agent: Agent::new(seed, GROUPS + OUTSTANDING),
            pending: BTreeMap::new(),
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            queries: VecDeque::new(),
            groups: 0,
            querying: 0,
            paths: Paths::new(),
            events: VecDeque::new(),
        }
    }

    /// Asks to join a group. [`SaEvent::Joined`] follows, once for each call, unless it is taken back.
    pub fn join(&mut self, now: Instant, user: U, sm: MadAddress, record: &McMemberRecord, mask: McMask) {
        // Who joins again leaves no more.
        while let Some(at) = self.held.iter().position(|(of, _)| *of == user) {
            self.held.remove(at);
            self.events.push_back(SaEvent::Left { user, outcome: Outcome::Granted(()) });
        }
        let bytes = SaMad::request(Method::Set, Tid(0), mask.bits(), record).to_bytes();
        self.waiting.push_back((Purpose::Join(user), Mad { peer: sm, bytes }));
        self.pump(now);
    }

    /// Asks to leave a group. [`SaEvent::Left`] follows; of this user's requests to join nothing more is heard.
    ///
    /// A join that has been sent may be sent again whatever happens here, as the kernel does with requests that it has, and would make
    /// us a member once more: the leave waits for its end.
    pub fn leave(&mut self, now: Instant, user: U, sm: MadAddress, record: &McMemberRecord, mask: McMask) {
        let bytes = SaMad::request(Method::Delete, Tid(0), mask.bits(), record).to_bytes();
        let mad = Mad { peer: sm, bytes };
        self.cancel_join(user);
        if self.is_joining(user) {
            self.held.push_back((user, mad));
        } else {
            self.waiting.push_back((Purpose::Leave(user), mad));
            self.pump(now);
        }
    }

    /// True while a join is under way whose user has left.
    fn is_joining(&self, user: U) -> bool {
        self.pending.values().any(|purpose| *purpose == Purpose::Abandoned(user))
    }

    /// Takes a request to join back; no event follows. If it has been sent, it goes on, and a leave waits for its end.
    pub fn cancel_join(&mut self, user: U) {
        self.waiting.retain(|(purpose, _)| *purpose != Purpose::Join(user));
        for purpose in self.pending.values_mut().filter(|purpose| **purpose == Purpose::Join(user)) {
            *purpose = Purpose::Abandoned(user);
        }
    }

    /// Takes back all requests about groups that `unwanted` says so of; no events follow.
    pub fn cancel_groups(&mut self, now: Instant, unwanted: impl Fn(U) -> bool) {
        self.queries.retain(|(user, _)| !unwanted(*user));
        self.cancel(now, |purpose| match *purpose {
            Purpose::Join(user) | Purpose::Abandoned(user) | Purpose::Leave(user) => unwanted(user),
            Purpose::Path(_) => false,
            Purpose::Query(user) => unwanted(user),
        });
        self.held.retain(|(user, _)| !unwanted(*user));
    }

    fn cancel(&mut self, now: Instant, unwanted: impl Fn(&Purpose<U>) -> bool) {
        self.waiting.retain(|(purpose, _)| !unwanted(purpose));
        let (ended, kept) = std::mem::take(&mut self.pending).into_iter().partition(|(_, p)| unwanted(p));
        self.pending = kept;
        let ended: BTreeMap<RequestId, Purpose<U>> = ended;
        for (id, purpose) in ended {
            self.agent.cancel(id);
            self.settle(purpose);
        }
        self.pump(now);
    }

    /// Asks for a path. [`SaEvent::Path`] follows, now or when it is known, and again whenever it has been looked up.
    pub fn ask_path(&mut self, now: Instant, query: PathQuery, ask: Ask) {
        match self.paths.ask(now, query, ask) {
            Asked::Known(path) => {
                let (key, outcome) = (query.key, Outcome::Granted(path));
                self.events.push_back(SaEvent::Path { key, outcome });
            }
            Asked::Later => {}
            Asked::Send => self.pump(now),
            Asked::Replace(id) => {
                self.agent.cancel(id);
                self.pending.remove(&id);
                self.pump(now);
            }
        }
    }

    /// Nobody needs a path any more.
    pub fn forget_path(&mut self, now: Instant, key: PathKey) {
        if let Some(id) = self.paths.forget(key) {
            self.agent.cancel(id);
            self.pending.remove(&id);
            self.pump(now);
        }
    }

    /// Queries what a group is like, member or not. [`SaEvent::Group`] follows, unless it is taken back with the user's other requests.
    /// While a query of this user is under way or waits, another one is not sent: the event of the first one is for both.
    pub fn query_group(&mut self, now: Instant, user: U, sm: MadAddress, mgid: Gid) {
        let is_queried = self.queries.iter().any(|(of, _)| *of == user)
            || self.pending.values().any(|purpose| *purpose == Purpose::Query(user));
        if is_queried {
            return;
        }
        let record = McMemberRecord { mgid, ..McMemberRecord::default() };
        let bytes = SaMad::request(Method::Get, Tid(0), McMask::MGID.bits(), &record).to_bytes();
        self.queries.push_back((user, Mad { peer: sm, bytes }));
        self.pump(now);
    }

    /// Paths that are known or being looked up.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.paths.queued()
    }

    /// Requests under way or waiting.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.pending.len() + self.waiting.len() + self.held.len() + self.queries.len()
    }

    /// The next request about a group: joins and leaves first, then queries, of which at
    /// most [`QUERIES`] are under way.
    fn next_group(&mut self) -> Option<(Purpose<U>, Mad)> {
        self.waiting.pop_front().or_else(|| {
            let (user, mad) = self.queries.pop_front_if(|_| self.querying < QUERIES)?;
            Some((Purpose::Query(user), mad))
        })
    }

    /// Sends what has its turn.
    fn pump(&mut self, now: Instant) {
        while self.groups < GROUPS
            && let Some((purpose, mad)) = self.next_group()
        {
            match self.agent.request(now, mad, ATTEMPTS) {
                Ok(id) => {
                    self.groups += 1;
                    self.querying += usize::from(matches!(purpose, Purpose::Query(_)));
                    self.pending.insert(id, purpose);
                }
                // The agent has room for as many as are under way at once. Were it otherwise: as if nobody had answered.
                Err(_) => self.ended(now, purpose, Outcome::Silence),
            }
        }
        while let Some((key, mad)) = self.paths.next_lookup(now) {
            let id = self.agent.request(now, mad, ATTEMPTS).ok();
            self.paths.sent(now, key, id);
            if let Some(id) = id {
                self.pending.insert(id, Purpose::Path(key));
            }
        }
    }

    /// Takes a datagram of subnet administration's; false if it answers nothing.
    pub(super) fn handle_mad(&mut self, now: Instant, mad: &Mad) -> bool {
        match self.agent.handle_mad(mad) {
            Handled::Response(id) => {
                let Some(purpose) = self.pending.remove(&id) else { return false };
                self.settle(purpose);
                let answer = SaMad::parse(&mad.bytes);
                let status = answer.header.status;
                let outcome =
                    if status.is_ok() { Outcome::Granted(&answer) } else { Outcome::Refused(status) };
                self.ended(now, purpose, outcome);
                self.pump(now);
                true
            }
            Handled::Busy => true,
            Handled::Unsolicited | Handled::Stray => false,
        }
    }

    fn settle(&mut self, purpose: Purpose<U>) {
        if !matches!(purpose, Purpose::Path(_)) {
            self.groups = self.groups.saturating_sub(1);
        }
        if matches!(purpose, Purpose::Query(_)) {
            self.querying = self.querying.saturating_sub(1);
        }
    }

    fn ended(&mut self, now: Instant, purpose: Purpose<U>, outcome: Outcome<&SaMad>) {
        self.events.push_back(match purpose {
            Purpose::Abandoned(user) => {
                if !self.is_joining(user) {
                    let (due, held) =
                        std::mem::take(&mut self.held).into_iter().partition(|(of, _)| *of == user);
                    self.held = held;
                    let due: VecDeque<_> = due;
                    self.waiting.extend(due.into_iter().map(|(user, mad)| (Purpose::Leave(user), mad)));
                }
                return;
            }
            Purpose::Join(user) => SaEvent::Joined { user, outcome: outcome.map(SaMad::record) },
            Purpose::Leave(user) => SaEvent::Left { user, outcome: outcome.map(|_| ()) },
            Purpose::Query(user) => SaEvent::Group { user, outcome: outcome.map(SaMad::record) },
            Purpose::Path(key) => {
                let record: Option<PathRecord> = match outcome {
                    Outcome::Granted(answer) => answer.record(),
                    Outcome::Refused(_) | Outcome::Silence => None,
                };
                let path = self.paths.answered(now, key, record.as_ref());
                let outcome = match (path, outcome) {
                    (Some(path), _) => Outcome::Granted(path),
                    (None, Outcome::Silence) => Outcome::Silence,
                    (None, Outcome::Refused(status)) => Outcome::Refused(status),
                    (None, Outcome::Granted(_)) => Outcome::Refused(MadStatus::OK),
                };
                SaEvent::Path { key, outcome }
            }
        });
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Mad> {
        self.agent.poll_transmit()
    }

    /// What came of a request, in the order of the answers.
    pub fn poll_event(&mut self) -> Option<SaEvent<U>> {
        self.events.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.agent.poll_timeout(), self.paths.next_timeout()].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.agent.handle_timeout(now);
        while let Some(id) = self.agent.poll_expired() {
            if let Some(purpose) = self.pending.remove(&id) {
                self.settle(purpose);
                self.ended(now, purpose, Outcome::Silence);
            }
        }
        self.paths.handle_timeout(now);
        self.pump(now);
    }
}

impl<T> Outcome<T> {
    /// The same with another content.
    pub fn map<V>(self, with: impl FnOnce(T) -> V) -> Outcome<V> {
        match self {
            Self::Granted(content) => Outcome::Granted(with(content)),
            Self::Refused(status) => Outcome::Refused(status),
            Self::Silence => Outcome::Silence,
        }
    }
}
