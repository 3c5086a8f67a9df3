//! The port's requests to subnet administration: group memberships and paths, for all links of the port.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, MadStatus, Method};
use ib_wire::sa::{McMask, McMemberRecord, PathRecord, SaMad};
use ib_wire::{Gid, Tid};

use super::paths::{Ask, OUTSTANDING, PathAnswer, PathKey, PathQuery, Paths};
use crate::Path;
use crate::agent::{Agent, Attempts, Handled, RequestId};

/// Timeout and retries for the subnet manager (Linux's IPoIB uses 1000 ms).
const ATTEMPTS: Attempts = Attempts { timeout: Duration::from_millis(1000), tries: 3 };
/// Time after which an unanswered request has ended. A device that repeats requests itself must have stopped
/// by then, or it would undo later requests.
pub const PATIENCE: Duration = Duration::from_millis(3000);
/// Maximum number of outstanding joins, leaves and group queries over all links, so that a restarting subnet
/// manager is not flooded.
const GROUPS: usize = 64;
/// Maximum number of queries among them. A query only explains why a group could not be joined.
const QUERIES: usize = GROUPS / 4;

/// Result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// Subnet administration returned this.
    Granted(T),
    /// It rejected the request with this status.
    Refused(MadStatus),
    /// It did not answer any of the transmissions.
    Silence,
}

/// Event of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaEvent<U> {
    /// A join request has ended.
    Joined {
        /// The user.
        user: U,
        /// The membership; `None` if it was granted with an unreadable record.
        outcome: Outcome<Option<McMemberRecord>>,
    },
    /// A leave request has ended.
    Left {
        /// The user.
        user: U,
        /// The result.
        outcome: Outcome<()>,
    },
    /// A group query has ended.
    Group {
        /// The user.
        user: U,
        /// The group; `None` if it was returned with an unreadable record.
        outcome: Outcome<Option<McMemberRecord>>,
    },
    /// A path lookup has ended. [`Outcome::Refused`] with status [`MadStatus::OK`] means an unusable answer.
    Path {
        /// The path's key.
        key: PathKey,
        /// The path.
        outcome: Outcome<Path>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose<U> {
    Join(U),
    /// A join whose result is not needed, because its user has left meanwhile.
    Abandoned(U),
    Leave(U),
    Path(PathKey),
    Query(U),
}

/// The requests of one port. After every input the owner polls for datagrams and events ([`Sa::poll_event`])
/// until there are none.
#[derive(Debug)]
pub struct Sa<U> {
    agent: Agent,
    pending: BTreeMap<RequestId, Purpose<U>>,
    /// Joins and leaves that wait for others to end, oldest first.
    waiting: VecDeque<(Purpose<U>, Mad)>,
    /// Leaves that wait for a join of the same user to end.
    held: VecDeque<(U, Mad)>,
    /// Group queries that wait for others to end, or for joins and leaves to be sent, oldest first.
    queries: VecDeque<(U, Mad)>,
    /// Number of outstanding joins, leaves and queries.
    groups: usize,
    /// Number of queries among them.
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

    /// Requests to join a group. [`SaEvent::Joined`] follows once for each call, unless the request is
    /// cancelled.
    pub fn join(&mut self, now: Instant, user: U, sm: MadAddress, record: &McMemberRecord, mask: McMask) {
        // A new join cancels the user's pending leaves.
        while let Some(at) = self.held.iter().position(|(of, _)| *of == user) {
            self.held.remove(at);
            self.events.push_back(SaEvent::Left { user, outcome: Outcome::Granted(()) });
        }
        let bytes = SaMad::request(Method::Set, Tid(0), mask.bits(), record).to_bytes();
        self.waiting.push_back((Purpose::Join(user), Mad { peer: sm, bytes }));
        self.pump(now);
    }

    /// Requests to leave a group. [`SaEvent::Left`] follows; the user's join requests cause no more events.
    ///
    /// A join that was sent may be retransmitted later, for example by the kernel, which would restore the
    /// membership. The leave therefore waits for the join to end.
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

    /// True while a join of a user that has left is outstanding.
    fn is_joining(&self, user: U) -> bool {
        self.pending.values().any(|purpose| *purpose == Purpose::Abandoned(user))
    }

    /// Cancels a join request. No event follows. If the request was sent, it continues, and a leave waits for
    /// its end.
    pub fn cancel_join(&mut self, user: U) {
        self.waiting.retain(|(purpose, _)| *purpose != Purpose::Join(user));
        for purpose in self.pending.values_mut().filter(|purpose| **purpose == Purpose::Join(user)) {
            *purpose = Purpose::Abandoned(user);
        }
    }

    /// Cancels the group requests for which `unwanted` returns true. No events follow.
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

    /// Requests a path. [`SaEvent::Path`] follows immediately or when the path is known, and again after each
    /// later lookup.
    pub fn ask_path(&mut self, now: Instant, query: PathQuery, ask: Ask) {
        match self.paths.ask(now, query, ask) {
            PathAnswer::Known(path) => {
                let (key, outcome) = (query.key, Outcome::Granted(path));
                self.events.push_back(SaEvent::Path { key, outcome });
            }
            PathAnswer::Later => {}
            PathAnswer::Send => self.pump(now),
            PathAnswer::Replace(id) => {
                self.agent.cancel(id);
                self.pending.remove(&id);
                self.pump(now);
            }
        }
    }

    /// Removes a path that is no longer needed.
    pub fn forget_path(&mut self, now: Instant, key: PathKey) {
        if let Some(id) = self.paths.forget(key) {
            self.agent.cancel(id);
            self.pending.remove(&id);
            self.pump(now);
        }
    }

    /// Queries the attributes of a group, member or not. [`SaEvent::Group`] follows, unless it is cancelled
    /// with the user's other requests.
    ///
    /// While a query of this user is outstanding or queued, no other is sent; the event covers both.
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

    /// Number of paths known or being looked up.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.paths.queued()
    }

    /// Number of outstanding or queued requests.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.pending.len() + self.waiting.len() + self.held.len() + self.queries.len()
    }

    /// Returns the next group request: joins and leaves first, then queries, of which at most [`QUERIES`] are
    /// outstanding.
    fn next_group(&mut self) -> Option<(Purpose<U>, Mad)> {
        self.waiting.pop_front().or_else(|| {
            let (user, mad) = self.queries.pop_front_if(|_| self.querying < QUERIES)?;
            Some((Purpose::Query(user), mad))
        })
    }

    /// Sends the requests that may be sent now.
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
                // The agent has room for all outstanding requests. If not, the request counts as unanswered.
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

    /// Handles a datagram from subnet administration. Returns false if it matches no request.
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

    /// Returns the next event, in the order of the answers.
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
    /// Converts the contents.
    pub fn map<V>(self, with: impl FnOnce(T) -> V) -> Outcome<V> {
        match self {
            Self::Granted(content) => Outcome::Granted(with(content)),
            Self::Refused(status) => Outcome::Refused(status),
            Self::Silence => Outcome::Silence,
        }
    }
}
