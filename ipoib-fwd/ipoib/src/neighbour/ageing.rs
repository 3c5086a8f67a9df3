//! The life cycle of a link's neighbours: learned, aged, probed, and bounded (after RFC 1122 2.3.2.1 and
//! RFC 4861 7.3).
//!
//! ```text
//!            resolve              heard                confirmed age out
//!  (unknown) ───────> Incomplete ───────> Reachable ─────────────────────> Stale
//!                      │ no answer          ▲   ▲  heard                     │ used
//!                      ▼                    │   └────────────── Probing <────┘
//!                    Failed                 └────────────────────┘ │ no answer
//!                      │ a moment                                  ▼
//!                      └────> Gone <── unused for long, Stale ─── Gone
//! ```
//!
//! A neighbour is verified if a decision waits for its answer: as Probing, with less time between the probes.
//!
//! A full table evicts by class: first neighbours that never answered, then unused ones, the longest unused
//! first. Neighbours that carry traffic are not evicted for others. The exception is the link-layer holder
//! with the most of them: if they exceed its share, it loses one. Each operation takes at most logarithmic
//! time in the table's size.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::rules::{HostCounters, Idle, Rules};
use super::shares::{LinkLayer, Shares};

/// Time between two probes.
const RETRY: Duration = Duration::from_secs(1);
/// Probes before a neighbour counts as gone.
const TRIES: u8 = 3;
/// Time between two probes of a verification.
const VERIFY: Duration = Duration::from_millis(330);

/// A query to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe<A> {
    /// The IP address to resolve.
    pub ip: IpAddr,
    /// The link-layer address known so far; `None`: broadcast.
    pub to: Option<A>,
}

/// The reason for which a neighbour is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// It does not answer.
    Unanswered,
    /// No worker has used it for long.
    Unused,
    /// Another neighbour needed its entry.
    Evicted,
    /// The owner removed it.
    Forgotten,
}

/// A change of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<A> {
    /// It is known, or has a new address.
    Set {
        /// Its IP address.
        ip: IpAddr,
        /// Its link-layer address.
        address: A,
        /// The previous one.
        before: Option<A>,
    },
    /// It has not answered, which is remembered for a short time.
    Failed {
        /// Its IP address.
        ip: IpAddr,
    },
    /// It is gone.
    Gone {
        /// Its IP address.
        ip: IpAddr,
        /// Its link-layer address, if it had answered.
        address: Option<A>,
        /// The reason.
        why: Gone,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Queried by broadcast, `tries` times.
    Incomplete { tries: u8 },
    /// Confirmed not long ago.
    Reachable,
    /// Not confirmed for a while, and not in use.
    Stale,
    /// In use and probed, `tries` times.
    Probing { tries: u8 },
    /// Probed at a faster pace because a decision waits for the answer.
    Verifying { tries: u8 },
    /// No answer came; not queried again for a short time.
    Failed,
}

/// Eviction order: a lower class makes room for a higher one, and for its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    /// Has not answered.
    Unanswered,
    /// No worker sends to it.
    Unused,
    /// Carries traffic.
    Used,
}

#[derive(Clone, Debug)]
struct Entry<A: LinkLayer, T> {
    address: Option<A>,
    state: State,
    /// When the state's time is over.
    due: Instant,
    /// When the neighbour itself was last heard.
    confirmed: Option<Instant>,
    /// A worker sent to it since it was last confirmed.
    used: bool,
    class: Class,
    /// When it was last used, or first known.
    since: Instant,
    /// The holder in whose share it is counted.
    counted: Option<A::Holder>,
    tag: T,
}

/// A neighbour, as control sockets show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info<A> {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its link-layer address, if it has answered.
    pub address: Option<A>,
    /// Name of the state that it is in.
    pub state: &'static str,
    /// When it was last used, or first known.
    pub since: Instant,
}

fn info<A: LinkLayer, T>(ip: IpAddr, entry: &Entry<A, T>) -> Info<A> {
    let state = match entry.state {
        State::Incomplete { .. } => "incomplete",
        State::Reachable => "reachable",
        State::Stale => "stale",
        State::Probing { .. } | State::Verifying { .. } => "probing",
        State::Failed => "failed",
    };
    Info { ip, address: entry.address, state, since: entry.since }
}

/// The neighbour table. `A` is a link-layer address, `T` is the link's data about each neighbour.
#[derive(Debug)]
pub struct Ageing<A: LinkLayer, T = ()> {
    rules: Rules,
    /// True if unanswered queries are repeated.
    insists: bool,
    entries: HashMap<IpAddr, Entry<A, T>, FixedState>,
    due: BTreeSet<(Instant, IpAddr)>,
    /// Eviction order, first to last.
    order: BTreeSet<(Class, Instant, IpAddr)>,
    /// The unused neighbours by link-layer holder, the longest unused first.
    unused: HashMap<A::Holder, BTreeSet<(Instant, IpAddr)>, FixedState>,
    /// The neighbours in use.
    used: Shares<A::Holder>,
    unanswered: usize,
    probes: VecDeque<Probe<A>>,
    events: VecDeque<Event<A>>,
    counters: HostCounters,
}

impl<A: LinkLayer, T> Ageing<A, T> {
    /// An empty table; `seed` is random: the network must not know which addresses collide.
    #[must_use]
    pub fn new(seed: u64, rules: Rules) -> Self {
        Self {
            rules,
            insists: true,
            entries: HashMap::with_hasher(FixedState::with_seed(seed)),
            due: BTreeSet::new(),
            order: BTreeSet::new(),
            unused: HashMap::with_hasher(FixedState::with_seed(seed.rotate_left(17))),
            used: Shares::new(seed.rotate_left(33)),
            unanswered: 0,
            probes: VecDeque::new(),
            events: VecDeque::new(),
            counters: HostCounters::default(),
        }
    }

    /// The rules, mutable: a change applies to later events.
    pub const fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Sets whether unanswered queries are repeated.
    pub const fn insist(&mut self, insists: bool) {
        self.insists = insists;
    }

    // -- lookups

    /// The link-layer address of a neighbour that has answered.
    #[must_use]
    pub fn get(&self, ip: IpAddr) -> Option<A> {
        self.entries.get(&ip)?.address
    }

    /// True if a neighbour is known or being resolved.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.entries.contains_key(&ip)
    }

    /// True while a neighbour that has answered before is being probed.
    #[must_use]
    pub fn is_asked(&self, ip: IpAddr) -> bool {
        self.entries
            .get(&ip)
            .is_some_and(|entry| matches!(entry.state, State::Probing { .. } | State::Verifying { .. }))
    }

    /// True if the neighbour itself was heard at its address within `within` before `now`.
    #[must_use]
    pub fn is_confirmed(&self, now: Instant, ip: IpAddr, within: Duration) -> bool {
        let confirmed = self.entries.get(&ip).and_then(|entry| entry.confirmed);
        confirmed.is_some_and(|at| now.saturating_duration_since(at) <= within)
    }

    /// Sets when the neighbour itself was last heard, where that differs from the time of [`Self::learn`].
    pub fn set_confirmed(&mut self, ip: IpAddr, at: Option<Instant>) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.confirmed = at;
        }
    }

    /// The link's data about a neighbour.
    #[must_use]
    pub fn tag(&self, ip: IpAddr) -> Option<&T> {
        Some(&self.entries.get(&ip)?.tag)
    }

    /// The same, mutable.
    pub fn tag_mut(&mut self, ip: IpAddr) -> Option<&mut T> {
        Some(&mut self.entries.get_mut(&ip)?.tag)
    }

    /// The number of neighbours that are known or being resolved.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is room for neighbours from untrusted reports: a quarter of the table is reserved for
    /// neighbours that are heard.
    #[must_use]
    pub fn has_room_for_reports(&self) -> bool {
        self.entries.len() < self.rules.most / 4 * 3
    }

    /// The number of neighbours that are being resolved and have not answered yet.
    #[must_use]
    pub const fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// True if the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Counters.
    #[must_use]
    pub const fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// All neighbours, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Info<A>> {
        self.entries.iter().map(|(ip, entry)| info(*ip, entry))
    }

    /// The first `most` neighbours after an address, in the order of their addresses. The entries of the
    /// others are not read.
    #[must_use]
    pub fn after(&self, after: Option<IpAddr>, most: usize) -> Vec<Info<A>> {
        let behind = self.entries.keys().filter(|ip| after.is_none_or(|after| **ip > after));
        let mut next: Vec<IpAddr> = behind.copied().collect();
        if next.len() > most {
            next.select_nth_unstable(most);
            next.truncate(most);
        }
        next.sort_unstable();
        next.into_iter().filter_map(|ip| self.entries.get(&ip).map(|entry| info(ip, entry))).collect()
    }

    // -- inputs

    /// Records a neighbour's address from a packet that the caller has validated. Returns false if there is
    /// no room.
    ///
    /// A new neighbour is stored with `tag`. If its link-layer holder already has the most unused neighbours
    /// that the rules allow, the longest unused of them makes room. The new one is not refused, because any
    /// host can write that link-layer address into a packet.
    pub fn learn(&mut self, now: Instant, ip: IpAddr, address: A, tag: T) -> bool {
        let most = self.rules.most_unused_each as usize;
        if !self.entries.contains_key(&ip)
            && let Some(first) = self.unused.get(&address.holder()).filter(|all| all.len() >= most)
            && let Some((_, first)) = first.first().copied()
        {
            self.counters.sender_limited += 1;
            self.remove(first, Gone::Evicted);
        }
        self.learn_any(now, ip, address, tag)
    }

    /// As [`Self::learn`], without the limit on unused neighbours of one link-layer holder.
    fn learn_any(&mut self, now: Instant, ip: IpAddr, address: A, tag: T) -> bool {
        let due = now + self.rules.reachable;
        if let Some(mut entry) = self.take(ip) {
            let before = entry.address.replace(address);
            entry.confirmed = Some(now);
            (entry.state, entry.due, entry.used) = (State::Reachable, due, false);
            if before.is_none() {
                // A query for traffic found it.
                (entry.class, entry.since) = (Class::Used, now);
            } else if now.duration_since(entry.since) >= self.rules.reachable {
                // Its own packets do not count as use, however many it sends: no worker sends to it.
                entry.class = Class::Unused;
            }
            self.put(ip, entry);
            if before != Some(address) {
                self.events.push_back(Event::Set { ip, address, before });
            }
            return true;
        }
        if !self.make_room() {
            return false;
        }
        let (state, class) = (State::Reachable, Class::Unused);
        let address = Some(address);
        let confirmed = Some(now);
        let entry =
            Entry { address, state, due, confirmed, used: false, class, since: now, counted: None, tag };
        self.put(ip, entry);
        self.events.extend(address.map(|address| Event::Set { ip, address, before: None }));
        true
    }

    /// Records a neighbour's address from a trusted report. Returns false if there is no room.
    ///
    /// The neighbour is kept as unused, and is not probed until a worker uses it. There is no limit for one
    /// link-layer holder, because the reporter sees which of its neighbours are used.
    pub fn tell(&mut self, now: Instant, ip: IpAddr, address: A, tag: T) -> bool {
        if !self.learn_any(now, ip, address, tag) {
            return false;
        }
        if let Some(mut entry) = self.take(ip) {
            (entry.state, entry.class, entry.since) = (State::Stale, Class::Unused, now);
            entry.confirmed = None;
            entry.due = self.stale_until(now, now);
            self.put(ip, entry);
        }
        true
    }

    /// Queries a neighbour that is not known; does nothing if it is known or being resolved. Returns false if
    /// there is no room.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr, tag: T) -> bool {
        if self.entries.contains_key(&ip) {
            return true;
        }
        // The oldest of the pending queries has had the most time to be answered.
        if self.unanswered >= self.rules.most_asked {
            self.evict_first();
        }
        if !self.make_room() {
            return false;
        }
        let (state, class) = (State::Incomplete { tries: 1 }, Class::Unanswered);
        let due = now + RETRY;
        let (address, confirmed, counted) = (None, None, None);
        let entry = Entry { address, state, due, confirmed, used: true, class, since: now, counted, tag };
        self.put(ip, entry);
        self.probes.push_back(Probe { ip, to: None });
        true
    }

    /// Records that a worker has sent to this neighbour since the use was last checked.
    pub fn note_used(&mut self, now: Instant, ip: IpAddr) {
        let Some(mut entry) = self.take(ip) else { return };
        entry.used = true;
        if let Some(to) = entry.address {
            (entry.class, entry.since) = (Class::Used, now);
            if entry.state == State::Stale {
                (entry.state, entry.due) = (State::Probing { tries: 1 }, now + RETRY);
                self.probes.push_back(Probe { ip, to: Some(to) });
            }
        }
        self.put(ip, entry);
    }

    /// Probes a neighbour that may be gone: once, and without an answer it is removed.
    pub fn suspect(&mut self, now: Instant, ip: IpAddr) {
        let Some(mut entry) = self.take(ip) else { return };
        if matches!(entry.state, State::Reachable | State::Stale) {
            (entry.state, entry.due) = (State::Probing { tries: TRIES }, now + RETRY);
            self.probes.push_back(Probe { ip, to: entry.address });
        }
        self.put(ip, entry);
    }

    /// Verifies a known neighbour because a decision waits for its answer: three probes within a second.
    /// Without an answer it is removed. Does nothing while a verification is under way.
    pub fn verify(&mut self, now: Instant, ip: IpAddr) {
        let Some(mut entry) = self.take(ip) else { return };
        if matches!(entry.state, State::Reachable | State::Stale | State::Probing { .. }) {
            (entry.state, entry.due) = (State::Verifying { tries: 1 }, now + VERIFY);
            self.probes.push_back(Probe { ip, to: entry.address });
        }
        self.put(ip, entry);
    }

    /// Records that a probe of a known neighbour was not sent: it does not count.
    pub fn note_unsent(&mut self, ip: IpAddr) {
        if let Some(State::Probing { tries } | State::Verifying { tries }) =
            self.entries.get_mut(&ip).map(|entry| &mut entry.state)
        {
            *tries = tries.saturating_sub(1);
        }
    }

    /// Requires reachable neighbours to be confirmed again, each after a `delay`.
    pub fn doubt_all(&mut self, now: Instant, mut delay: impl FnMut() -> Duration) {
        let known: Vec<_> =
            self.entries.iter().filter(|(_, e)| e.state == State::Reachable).map(|(ip, _)| *ip).collect();
        for ip in known {
            if let Some(mut entry) = self.take(ip) {
                entry.due = now + delay();
                self.put(ip, entry);
            }
        }
    }

    /// Removes a host that is no longer a neighbour of this link.
    pub fn forget(&mut self, ip: IpAddr) {
        self.remove(ip, Gone::Forgotten);
    }

    // -- outputs

    /// The next query to send.
    pub fn poll_transmit(&mut self) -> Option<Probe<A>> {
        self.probes.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<A>> {
        self.events.pop_front()
    }

    /// The time at which [`Self::handle_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, ip)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let Some(mut entry) = self.take(ip) else { return };
            let in_use = entry.used || now.duration_since(entry.since) < self.rules.reachable;
            let mut retry = RETRY;
            let to = match entry.state {
                State::Incomplete { tries } if tries < TRIES && self.insists => {
                    entry.state = State::Incomplete { tries: tries + 1 };
                    None
                }
                State::Incomplete { .. } if !self.rules.failed.is_zero() => {
                    (entry.state, entry.due) = (State::Failed, now + self.rules.failed);
                    self.put(ip, entry);
                    self.events.push_back(Event::Failed { ip });
                    continue;
                }
                State::Probing { tries } if tries < TRIES => {
                    entry.state = State::Probing { tries: tries + 1 };
                    entry.address.filter(|_| tries + 1 < TRIES || !self.rules.last_to_all)
                }
                State::Verifying { tries } if tries < TRIES => {
                    entry.state = State::Verifying { tries: tries + 1 };
                    retry = VERIFY;
                    entry.address.filter(|_| tries + 1 < TRIES || !self.rules.last_to_all)
                }
                State::Reachable if in_use => {
                    entry.state = State::Probing { tries: 1 };
                    entry.address
                }
                State::Reachable => {
                    (entry.state, entry.class) = (State::Stale, Class::Unused);
                    entry.due = self.stale_until(now, entry.since);
                    self.put(ip, entry);
                    continue;
                }
                // The rules may have changed since.
                State::Stale
                    if matches!(self.rules.idle, Idle::SinceUse(_))
                        && self.stale_until(now, entry.since) > now =>
                {
                    entry.due = self.stale_until(now, entry.since);
                    self.put(ip, entry);
                    continue;
                }
                State::Stale | State::Failed => {
                    self.bury(ip, &entry, Gone::Unused);
                    continue;
                }
                State::Incomplete { .. } | State::Probing { .. } | State::Verifying { .. } => {
                    self.bury(ip, &entry, Gone::Unanswered);
                    continue;
                }
            };
            entry.due = now + retry;
            self.probes.push_back(Probe { ip, to });
            self.put(ip, entry);
        }
    }

    // -- indices

    fn stale_until(&self, now: Instant, since: Instant) -> Instant {
        match self.rules.idle {
            Idle::SinceUse(idle) => (since + idle).max(now),
            Idle::SinceStale(idle) => now + idle,
        }
    }

    /// Makes room for one more neighbour; false if there is none.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < self.rules.most {
            return true;
        }
        if self.order.first().is_some_and(|(first, ..)| *first <= Class::Unused) {
            self.evict_first();
        } else if let Some(ip) = self.used.beyond(self.rules.share) {
            self.counters.evicted_share += 1;
            self.remove(ip, Gone::Evicted);
        } else {
            self.counters.table_full += 1;
            return false;
        }
        true
    }

    fn evict_first(&mut self) {
        let Some((class, _, ip)) = self.order.first().copied() else { return };
        match class {
            Class::Unanswered => self.counters.evicted_unanswered += 1,
            Class::Unused | Class::Used => self.counters.evicted_unused += 1,
        }
        self.remove(ip, Gone::Evicted);
    }

    fn remove(&mut self, ip: IpAddr, why: Gone) {
        if let Some(entry) = self.take(ip) {
            self.bury(ip, &entry, why);
        }
    }

    /// Reports an entry that was taken out as gone.
    fn bury(&mut self, ip: IpAddr, entry: &Entry<A, T>, why: Gone) {
        if let Some(holder) = entry.counted {
            self.used.remove(holder, ip);
        }
        self.events.push_back(Event::Gone { ip, address: entry.address, why });
    }

    /// Takes an entry out of all indices but the shares, where it mostly stays. [`Self::put`] brings it back,
    /// [`Self::bury`] removes it from the shares.
    fn take(&mut self, ip: IpAddr) -> Option<Entry<A, T>> {
        let entry = self.entries.remove(&ip)?;
        self.due.remove(&(entry.due, ip));
        self.order.remove(&(entry.class, entry.since, ip));
        self.unanswered -= usize::from(entry.class == Class::Unanswered);
        if let (Class::Unused, Some(address)) = (entry.class, entry.address)
            && let Some(all) = self.unused.get_mut(&address.holder())
        {
            all.remove(&(entry.since, ip));
            if all.is_empty() {
                self.unused.remove(&address.holder());
            }
        }
        Some(entry)
    }

    fn put(&mut self, ip: IpAddr, mut entry: Entry<A, T>) {
        let holder = entry.address.filter(|_| entry.class == Class::Used).map(|address| address.holder());
        if holder != entry.counted {
            if let Some(before) = std::mem::replace(&mut entry.counted, holder) {
                self.used.remove(before, ip);
            }
            if let Some(holder) = holder {
                self.used.add(holder, ip);
            }
        }
        self.due.insert((entry.due, ip));
        self.order.insert((entry.class, entry.since, ip));
        self.unanswered += usize::from(entry.class == Class::Unanswered);
        if let (Class::Unused, Some(address)) = (entry.class, entry.address) {
            self.unused.entry(address.holder()).or_default().insert((entry.since, ip));
        }
        self.entries.insert(ip, entry);
    }
}
