//! The life of a link's neighbours: learnt, aged, asked again, and bounded (RFC 1122 2.3.2.1, RFC 4861 7.3 in spirit).
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
//! A neighbor that somebody waits for is verified: as Probing, with less time between the questions.
//!
//! A full table makes room by class: who never answered goes first, then whom no worker sends to, the longest unused
//! before the others. Who carries traffic makes room for nobody, but whoever has more than a share of such neighbours to its
//! link-layer addresses loses one of them. Every step costs the logarithm of the table's size at most.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::rules::{HostCounters, Idle, Rules};
use super::shares::{LinkLayer, Shares};

/// Time between two questions.
const RETRY: Duration = Duration::from_secs(1);
/// Questions before a neighbour counts as gone.
const TRIES: u8 = 3;
/// Time between two questions of a verification, for which somebody waits.
const VERIFY: Duration = Duration::from_millis(330);

/// A question to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe<A> {
    /// Whom to ask for.
    pub ip: IpAddr,
    /// The link-layer address known so far; all hosts if there is none.
    pub to: Option<A>,
}

/// Why a neighbour is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// It does not answer.
    Unanswered,
    /// Nobody has used it for long.
    Unused,
    /// Others needed the room.
    Evicted,
    /// It was to be forgotten.
    Forgotten,
}

/// What happened to a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<A> {
    /// It is known, or has another address now.
    Set {
        /// Which.
        ip: IpAddr,
        /// Its link-layer address.
        address: A,
        /// The one before.
        before: Option<A>,
    },
    /// It has not answered, which is remembered for a moment.
    Failed {
        /// Which.
        ip: IpAddr,
    },
    /// It is gone.
    Gone {
        /// Which.
        ip: IpAddr,
        /// Its link-layer address, if it had answered.
        address: Option<A>,
        /// Why.
        why: Gone,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Asked of all, so many times.
    Incomplete { tries: u8 },
    /// Confirmed not long ago.
    Reachable,
    /// Not confirmed for a while, and not in use.
    Stale,
    /// In use and asked, so many times.
    Probing { tries: u8 },
    /// Asked at a faster pace because somebody waits for the answer.
    Verifying { tries: u8 },
    /// No answer came; not to be asked again at once.
    Failed,
}

/// Who makes room for whom: the lower for the higher, and for its like.
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
    /// When the neighbor itself was heard last.
    confirmed: Option<Instant>,
    /// A worker sent to it since it was last confirmed.
    used: bool,
    class: Class,
    /// When it was last used, or first known.
    since: Instant,
    /// In whose share it is counted.
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

/// The table. `A` is a link-layer address, `T` what the link keeps of each neighbour.
#[derive(Debug)]
pub struct Ageing<A: LinkLayer, T = ()> {
    rules: Rules,
    /// Who has not answered is asked again.
    insists: bool,
    entries: HashMap<IpAddr, Entry<A, T>, FixedState>,
    due: BTreeSet<(Instant, IpAddr)>,
    /// Who makes room first.
    order: BTreeSet<(Class, Instant, IpAddr)>,
    /// The unused ones by link-layer address, the longest unused first.
    unused: HashMap<A::Holder, BTreeSet<(Instant, IpAddr)>, FixedState>,
    /// Those in use.
    used: Shares<A::Holder>,
    unanswered: usize,
    probes: VecDeque<Probe<A>>,
    events: VecDeque<Event<A>>,
    counters: HostCounters,
}

impl<A: LinkLayer, T> Ageing<A, T> {
    /// An empty table; `seed` is drawn at start: the network must not know which addresses collide.
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

    /// The rules, to change them: they count for what comes.
    pub const fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Whether who has not answered is asked again.
    pub const fn insist(&mut self, insists: bool) {
        self.insists = insists;
    }

    // -- what it knows

    /// The link-layer address of a neighbour that has answered.
    #[must_use]
    pub fn get(&self, ip: IpAddr) -> Option<A> {
        self.entries.get(&ip)?.address
    }

    /// True if a neighbour is known or asked for.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.entries.contains_key(&ip)
    }

    /// True while a neighbour that has answered before is asked whether it is still there.
    #[must_use]
    pub fn is_asked(&self, ip: IpAddr) -> bool {
        self.entries
            .get(&ip)
            .is_some_and(|entry| matches!(entry.state, State::Probing { .. } | State::Verifying { .. }))
    }

    /// True if a neighbor itself was heard at its address within `within` before `now`.
    #[must_use]
    pub fn is_confirmed(&self, now: Instant, ip: IpAddr, within: Duration) -> bool {
        let confirmed = self.entries.get(&ip).and_then(|entry| entry.confirmed);
        confirmed.is_some_and(|at| now.saturating_duration_since(at) <= within)
    }

    /// Sets when a neighbor itself was heard last, where that was at another time than [`Self::learn`] was called.
    pub fn set_confirmed(&mut self, ip: IpAddr, at: Option<Instant>) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.confirmed = at;
        }
    }

    /// What the link keeps of a neighbour.
    #[must_use]
    pub fn tag(&self, ip: IpAddr) -> Option<&T> {
        Some(&self.entries.get(&ip)?.tag)
    }

    /// The same, to change it.
    pub fn tag_mut(&mut self, ip: IpAddr) -> Option<&mut T> {
        Some(&mut self.entries.get_mut(&ip)?.tag)
    }

    /// How many are known or asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is room for neighbors that nobody trustworthy has reported: a quarter of the table is left to those that are heard.
    #[must_use]
    pub fn has_room_for_reports(&self) -> bool {
        self.entries.len() < self.rules.most / 4 * 3
    }

    /// How many are asked for and have not answered yet.
    #[must_use]
    pub const fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Counters.
    #[must_use]
    pub const fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Info<A>> {
        self.entries.iter().map(|(ip, entry)| info(*ip, entry))
    }

    /// The first `most` of them behind an address, in the order of their addresses. Of the others nothing but the address is looked at.
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

    // -- what it is told

    /// A neighbour told its address, already validated. False if there is no room for it. Whom nobody asked for is learnt with `tag`; if
    /// too many are known by that link-layer address, the longest unused of them makes room: anybody can write it into a packet, so that
    /// nobody is refused for it.
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

    /// As [`Self::learn`], however many there are by that link-layer address.
    fn learn_any(&mut self, now: Instant, ip: IpAddr, address: A, tag: T) -> bool {
        let due = now + self.rules.reachable;
        if let Some(mut entry) = self.take(ip) {
            let before = entry.address.replace(address);
            entry.confirmed = Some(now);
            (entry.state, entry.due, entry.used) = (State::Reachable, due, false);
            if before.is_none() {
                // Traffic asked for it.
                (entry.class, entry.since) = (Class::Used, now);
            } else if now.duration_since(entry.since) >= self.rules.reachable {
                // It may speak as often as it likes: nobody sends to it.
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

    /// Somebody who knows told where a neighbour is: it is kept as one that nobody uses, and not asked for until somebody does. Who tells
    /// sees which of them are used: there may be as many by one link-layer address as there are.
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

    /// Asks for a neighbour that is not known; does nothing if it is known or asked for already. False if there is no room.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr, tag: T) -> bool {
        if self.entries.contains_key(&ip) {
            return true;
        }
        // Of those that are asked for, the oldest has had the most time to answer.
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

    /// A worker sent to this neighbour since that was last asked.
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

    /// Perhaps a neighbour is not there any more: it is asked once, and gone without an answer.
    pub fn suspect(&mut self, now: Instant, ip: IpAddr) {
        let Some(mut entry) = self.take(ip) else { return };
        if matches!(entry.state, State::Reachable | State::Stale) {
            (entry.state, entry.due) = (State::Probing { tries: TRIES }, now + RETRY);
            self.probes.push_back(Probe { ip, to: entry.address });
        }
        self.put(ip, entry);
    }

    /// Queries a known neighbor because somebody waits for the answer: three questions within a second, and it is gone without an
    /// answer. Does nothing while such a query is under way.
    pub fn verify(&mut self, now: Instant, ip: IpAddr) {
        let Some(mut entry) = self.take(ip) else { return };
        if matches!(entry.state, State::Reachable | State::Stale | State::Probing { .. }) {
            (entry.state, entry.due) = (State::Verifying { tries: 1 }, now + VERIFY);
            self.probes.push_back(Probe { ip, to: entry.address });
        }
        self.put(ip, entry);
    }

    /// A question about a known neighbor was not sent: it does not count.
    pub fn note_unsent(&mut self, ip: IpAddr) {
        if let Some(State::Probing { tries } | State::Verifying { tries }) =
            self.entries.get_mut(&ip).map(|entry| &mut entry.state)
        {
            *tries = tries.saturating_sub(1);
        }
    }

    /// What was confirmed is to be confirmed again, each after a `delay`.
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

    /// It is no neighbour of this link any more.
    pub fn forget(&mut self, ip: IpAddr) {
        self.remove(ip, Gone::Forgotten);
    }

    // -- what it wants

    /// The next question to ask.
    pub fn poll_transmit(&mut self) -> Option<Probe<A>> {
        self.probes.pop_front()
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event<A>> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, ip)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let Some(mut entry) = self.take(ip) else { return };
            let in_use = entry.used || now.duration_since(entry.since) < self.rules.reachable;
            let mut retry = RETRY;
            let ask = match entry.state {
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
                // The rules may be others by now.
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
            self.probes.push_back(Probe { ip, to: ask });
            self.put(ip, entry);
        }
    }

    // -- its indices

    fn stale_until(&self, now: Instant, since: Instant) -> Instant {
        match self.rules.idle {
            Idle::SinceUse(idle) => (since + idle).max(now),
            Idle::SinceStale(idle) => now + idle,
        }
    }

    /// Sees to it that there is room for one more.
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

    /// An entry that was taken out does not come back.
    fn bury(&mut self, ip: IpAddr, entry: &Entry<A, T>, why: Gone) {
        if let Some(holder) = entry.counted {
            self.used.remove(holder, ip);
        }
        self.events.push_back(Event::Gone { ip, address: entry.address, why });
    }

    /// Takes an entry out of all indices but the shares, for it mostly stays where it is in those; [`Self::put`] brings it back,
    /// [`Self::bury`] does not.
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
