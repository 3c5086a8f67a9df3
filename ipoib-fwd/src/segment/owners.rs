//! Address ownership: each address has one owner. A host that claims an address of a host on the other side
//! is not believed before the owner was queried. If the owner answers, the claim is refused (RFC 5227 2.4).
//! If it does not, the address moves, as a MAC address moves from one port of a switch to another.
//!
//! ```text
//!                claim: query            no answer to 3 queries
//!  (settled) ───────────────> Queried ─────────────────────────────> moved (settled)
//!      ▲                      ▲ │ the owner is heard
//!      │   after 1, 2 and 4 s │ ▼
//!      └── 7 s ──────────── Refused
//!
//!  more than 5 moves in a minute: Held, all claims are refused for the configured time
//! ```
//!
//! An owner that answers may be about to go: a host that takes over an address (VRRP) announces that once,
//! while the previous owner still has it. So the owner is queried again soon, in case the claimant sends no
//! further claim.
//!
//! An address without a known owner is claimed in the same way, with fewer queries, which go to the whole
//! other side. A host there that answers refuses the claim without becoming the owner. An address is
//! `Contested` when hosts of both sides have answered for it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use foldhash::fast::FixedState;
use ib_wire::{Gid, Qpn};
use ipoib::net::ethernet::MacAddress;

use super::defence::Defence;

/// Queries to an owner, and the time for each answer: a second in all.
pub(super) const QUESTIONS: u8 = 3;
pub(super) const ANSWER: Duration = Duration::from_millis(330);
/// Queries to the other side for the owner of an address without a known owner, and the time for each answer.
pub(super) const SEARCHES: u8 = 2;
pub(super) const FOUND: Duration = Duration::from_millis(150);
/// How long an address that both sides answer for is believed to be on neither.
pub(super) const CONTESTED: Duration = Duration::from_secs(10);
/// After a refusal further claims are refused for this long without another query.
const REFUSED: Duration = Duration::from_secs(1);
/// Delay of the next query after the owner's first, second and third answer.
pub(super) const AGAIN: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// More moves than [`MOVES`] within [`WINDOW`] are too many; then the address stays where it is for a while.
const MOVES: usize = 5;
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses with a history, and how many are evicted at once to make room.
const ADDRESSES: usize = 1024;
const ROOM: usize = 64;

/// Makes room for one more address: evicts those with the least `worth`.
fn make_room<V, W: Ord>(addresses: &mut HashMap<IpAddr, V, FixedState>, worth: impl Fn(&V) -> W) {
    if addresses.len() < ADDRESSES {
        return;
    }
    let mut order: Vec<_> = addresses.iter().map(|(ip, address)| (worth(address), *ip)).collect();
    order.select_nth_unstable(ROOM);
    for (_, ip) in order.into_iter().take(ROOM) {
        addresses.remove(&ip);
    }
}

#[derive(Debug)]
enum Dispute<C> {
    Settled,
    /// `answered`: how often the owner has answered since the claim.
    /// `unowned`: no host was known to have the address when it was claimed.
    Queried {
        claim: C,
        questions: u8,
        due: Instant,
        answered: usize,
        unowned: bool,
    },
    /// `again`: when the owner is queried again.
    Refused {
        claim: C,
        until: Instant,
        answered: usize,
        again: Option<Instant>,
        unowned: bool,
    },
    Held {
        until: Instant,
    },
    Contested {
        until: Instant,
    },
}

#[derive(Debug)]
struct Address<C> {
    dispute: Dispute<C>,
    moves: ArrayVec<Instant, MOVES>,
    defence: Defence<()>,
    /// The address was claimed, and no announcement of the owner has followed or is due.
    undefended: bool,
    /// When the address was last claimed.
    claimed: Instant,
}

impl<C> Address<C> {
    /// Rank for eviction, the least first. Addresses whose owner has answered make room before those whose
    /// owner is being queried, since that owner may be gone. If the owner is being queried, addresses without
    /// a known owner make room first.
    const fn worth(&self) -> (u8, Instant) {
        let rank = match self.dispute {
            Dispute::Settled | Dispute::Refused { .. } => 0,
            Dispute::Queried { unowned: true, .. } => 1,
            Dispute::Queried { .. } => 2,
            Dispute::Held { .. } | Dispute::Contested { .. } => 3,
        };
        (rank, self.claimed)
    }
}

/// The decision on a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Query the owner; the claim is kept.
    Query,
    /// The owner is being queried already; this claim replaces the last one.
    Wait,
    /// The owner has just answered.
    Refused,
    /// The address has moved too often.
    Held,
}

/// An action that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<C> {
    /// Query the owner again; the last query goes to its whole side, where it may have another hardware
    /// address.
    Query { ip: IpAddr, last: bool },
    /// The owner does not answer: the address moves. `held`: it stays there for a while, having moved too
    /// often.
    Move { ip: IpAddr, claim: C, held: bool },
    /// No host was known to have the address, and no host of the other side has it.
    Prove { ip: IpAddr, claim: C },
    /// Claims were refused within the interval after a defense, which is over: announce the owner again.
    Defend { ip: IpAddr },
}

/// The addresses in dispute, and those that have moved recently. `C` describes a claim.
#[derive(Debug)]
pub(super) struct Owners<C> {
    addresses: HashMap<IpAddr, Address<C>, FixedState>,
    hold: Duration,
    /// When the next action is due, or a little earlier.
    next: Option<Instant>,
}

impl<C: Copy> Owners<C> {
    /// An address that moves too often stays where it is for `hold`.
    pub(super) fn new(seed: u64, hold: Duration) -> Self {
        Self { addresses: HashMap::with_hasher(FixedState::with_seed(seed)), hold, next: None }
    }

    /// Records the claim of a host to an address that a host of the other side has, or that no host is known
    /// to have.
    pub(super) fn claim(&mut self, now: Instant, ip: IpAddr, claim: C, unowned: bool) -> Answer {
        // A host that floods with claims must not cause others' claims to be refused.
        if !self.addresses.contains_key(&ip) {
            make_room(&mut self.addresses, Address::worth);
        }
        let address = self.addresses.entry(ip).or_insert_with(|| Address {
            dispute: Dispute::Settled,
            moves: ArrayVec::new(),
            defence: Defence::default(),
            undefended: false,
            claimed: now,
        });
        match &mut address.dispute {
            Dispute::Queried { claim: kept, answered, .. } => {
                *kept = claim;
                // The first answer to a claim already defends the address.
                let due = if *answered > 0 { address.defence.note(now, ()) } else { None };
                due.into_iter().for_each(|due| self.wake_by(due));
                return Answer::Wait;
            }
            Dispute::Refused { until, .. } if now < *until => {
                let due = address.defence.note(now, ());
                due.into_iter().for_each(|due| self.wake_by(due));
                return Answer::Refused;
            }
            Dispute::Held { until } | Dispute::Contested { until } if now < *until => return Answer::Held,
            Dispute::Settled | Dispute::Refused { .. } | Dispute::Held { .. } | Dispute::Contested { .. } => {
            }
        }
        let due = now + answer_time(unowned);
        address.dispute = Dispute::Queried { claim, questions: 1, due, answered: 0, unowned };
        (address.claimed, address.undefended) = (now, true);
        self.wake_by(due);
        Answer::Query
    }

    /// Hosts of both sides have answered for an address.
    pub(super) fn contest(&mut self, now: Instant, ip: IpAddr) {
        if !self.addresses.contains_key(&ip) {
            make_room(&mut self.addresses, Address::worth);
        }
        let (dispute, until) = (Dispute::Settled, now + CONTESTED);
        let defence = Defence::default();
        let address = Address { dispute, moves: ArrayVec::new(), defence, undefended: false, claimed: now };
        self.addresses.entry(ip).or_insert(address).dispute = Dispute::Contested { until };
        self.wake_by(until);
    }

    /// True while hosts of both sides have answered for an address.
    pub(super) fn is_contested(&self, now: Instant, ip: IpAddr) -> bool {
        let dispute = self.addresses.get(&ip).map(|address| &address.dispute);
        matches!(dispute, Some(Dispute::Contested { until }) if now < *until)
    }

    /// The claim that is open, or that was refused and will be verified again.
    pub(super) fn claimed(&self, ip: IpAddr) -> Option<C> {
        match self.addresses.get(&ip)?.dispute {
            Dispute::Queried { claim, .. } | Dispute::Refused { claim, again: Some(_), .. } => Some(claim),
            _ => None,
        }
    }

    /// Ends all disputes: another gateway settles them now, or this one when it forwards again. Returns the
    /// open ones: the addresses whose owners are being queried, or would have been queried again.
    pub(super) fn settle(&mut self) -> Vec<IpAddr> {
        let (mut open, mut queried) = (Vec::new(), Vec::new());
        for (ip, address) in &mut self.addresses {
            address.defence.settle();
            match address.dispute {
                Dispute::Queried { .. } => queried.push(*ip),
                Dispute::Refused { again: Some(_), .. } => open.push(*ip),
                _ => {}
            }
            if matches!(address.dispute, Dispute::Queried { .. } | Dispute::Refused { .. }) {
                address.dispute = Dispute::Settled;
            }
        }
        open.append(&mut queried);
        open
    }

    /// The owner was heard. Returns the claim that was open so far, if this refuses one.
    pub(super) fn confirm(&mut self, now: Instant, ip: IpAddr) -> Option<C> {
        let address = self.addresses.get_mut(&ip)?;
        match std::mem::replace(&mut address.dispute, Dispute::Settled) {
            Dispute::Queried { claim, answered, unowned, .. } => {
                let again = AGAIN.get(answered).map(|after| now + *after);
                let (until, answered) = (now + REFUSED, answered + 1);
                address.dispute = Dispute::Refused { claim, until, answered, again, unowned };
                again.into_iter().for_each(|at| self.wake_by(at));
                (answered == 1).then_some(claim)
            }
            other => {
                address.dispute = other;
                None
            }
        }
    }

    /// Discards an open claim because a query about the address could not be sent. If the owner has answered
    /// before, it is queried again instead, when the time for this answer is over: the claimant may send no
    /// further claim.
    pub(super) fn give_up(&mut self, ip: IpAddr) {
        let Some(address) = self.addresses.get_mut(&ip) else { return };
        if let Dispute::Queried { claim, due, answered, unowned, .. } = address.dispute {
            address.dispute = match answered {
                0 => Dispute::Settled,
                _ => Dispute::Refused { claim, until: due, answered, again: Some(due), unowned },
            };
        }
    }

    /// Discards an open claim: the address no longer belongs to one of the networks.
    pub(super) fn discard(&mut self, ip: IpAddr) {
        let Some(address) = self.addresses.get_mut(&ip) else { return };
        if matches!(address.dispute, Dispute::Queried { .. } | Dispute::Refused { .. }) {
            address.dispute = Dispute::Settled;
        }
    }

    /// True while the owner of an address is being queried because of a claim.
    pub(super) fn is_queried(&self, ip: IpAddr) -> bool {
        self.addresses.get(&ip).is_some_and(|address| matches!(address.dispute, Dispute::Queried { .. }))
    }

    /// True if a claim was refused, and the owner has not been announced on the claimant's side since: a host
    /// that was not proven may have refused it first.
    pub(super) fn is_undefended(&self, ip: IpAddr) -> bool {
        self.addresses.get(&ip).is_some_and(|address| {
            let refused = match address.dispute {
                Dispute::Queried { answered, .. } => answered > 0,
                Dispute::Refused { .. } => true,
                Dispute::Settled | Dispute::Held { .. } | Dispute::Contested { .. } => false,
            };
            refused && address.undefended
        })
    }

    /// A claim was refused. Returns true if the owner should be announced on the claimant's side now.
    /// Otherwise a [`Step::Defend`] follows when the interval ends.
    pub(super) fn may_defend(&mut self, now: Instant, ip: IpAddr) -> bool {
        let Some(address) = self.addresses.get_mut(&ip) else { return false };
        address.undefended = false;
        let defends = address.defence.defend(now, ());
        let due = address.defence.due();
        due.into_iter().for_each(|due| self.wake_by(due));
        defends
    }

    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// True while claims to an address are refused because it has moved too often.
    #[cfg(test)]
    pub(super) fn is_held(&self, ip: IpAddr) -> bool {
        self.addresses.get(&ip).is_some_and(|address| matches!(address.dispute, Dispute::Held { .. }))
    }

    /// Number of addresses with a history.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the actions that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Step<C>> {
        let mut steps = Vec::new();
        if self.next.is_none_or(|at| now < at) {
            return steps;
        }
        self.addresses.retain(|ip, address| {
            while address.moves.first().is_some_and(|at| now.saturating_duration_since(*at) > WINDOW) {
                address.moves.remove(0);
            }
            match &mut address.dispute {
                Dispute::Queried { questions, due, unowned, .. }
                    if *due <= now && *questions < if *unowned { SEARCHES } else { QUESTIONS } =>
                {
                    *questions += 1;
                    *due = now + answer_time(*unowned);
                    steps.push(Step::Query { ip: *ip, last: *questions == QUESTIONS });
                }
                Dispute::Queried { due, claim, unowned: true, .. } if *due <= now => {
                    steps.push(Step::Prove { ip: *ip, claim: *claim });
                    address.dispute = Dispute::Settled;
                }
                Dispute::Queried { due, .. } if *due <= now => {
                    let held = address.moves.is_full();
                    let next = if held { Dispute::Held { until: now + self.hold } } else { Dispute::Settled };
                    if !held {
                        address.moves.push(now);
                    }
                    if let Dispute::Queried { claim, .. } = std::mem::replace(&mut address.dispute, next) {
                        address.defence.settle();
                        steps.push(Step::Move { ip: *ip, claim, held });
                    }
                }
                Dispute::Refused { again: Some(at), .. } if *at <= now => {
                    if let Dispute::Refused { claim, answered, unowned, .. } =
                        std::mem::replace(&mut address.dispute, Dispute::Settled)
                    {
                        let due = now + answer_time(unowned);
                        address.dispute = Dispute::Queried { claim, questions: 1, due, answered, unowned };
                        steps.push(Step::Query { ip: *ip, last: false });
                    }
                }
                Dispute::Queried { .. } | Dispute::Refused { again: Some(_), .. } => {}
                Dispute::Refused { until, .. } | Dispute::Held { until } | Dispute::Contested { until }
                    if now < *until => {}
                dispute => *dispute = Dispute::Settled,
            }
            // An owner that is being queried may be gone: it is defended when it has answered.
            let is_queried = matches!(address.dispute, Dispute::Queried { .. });
            if !is_queried && address.defence.take_due(now).is_some() {
                steps.push(Step::Defend { ip: *ip });
            }
            address.defence.is_recent(now)
                || !address.moves.is_empty()
                || !matches!(address.dispute, Dispute::Settled)
        });
        // Histories are checked once a second, disputes when they are due.
        let due = |address: &Address<C>| {
            let due = match &address.dispute {
                Dispute::Queried { due, .. } => return *due,
                Dispute::Refused { again: Some(due), .. } => *due,
                Dispute::Settled
                | Dispute::Refused { .. }
                | Dispute::Held { .. }
                | Dispute::Contested { .. } => now + Duration::from_secs(1),
            };
            address.defence.due().map_or(due, |defence| defence.min(due))
        };
        self.next = self.addresses.values().map(due).min();
        steps
    }

    fn wake_by(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

/// How long an answer to one query is awaited.
const fn answer_time(unowned: bool) -> Duration {
    if unowned { FOUND } else { ANSWER }
}

/// How long an answer of the previous card of an address is awaited after another card of its side has taken
/// it.
const DOUBT: Duration = Duration::from_secs(1);
// A host that answers in time still has its connection.
const _: () = assert!(DOUBT.as_millis() < ipoib::link::LEFT_GRACE.as_millis());

/// A link-layer address: the hardware address by which a side knows a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Card {
    Ethernet(MacAddress),
    InfiniBand(Gid, Qpn),
}

/// An address that another card of the same side has taken.
#[derive(Clone, Copy, Debug)]
struct Change {
    old: Card,
    /// True if the old card has answered: then it keeps the address.
    kept: bool,
    until: Instant,
    /// When the old card is queried again, and how often it has been queried.
    again: Option<Instant>,
    queried: usize,
}

/// An action that is due for such an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// The old card has not answered yet: a query may get lost.
    Query(Card),
    /// It has kept the address and must be verified again.
    Verify(Card),
}

/// Addresses whose hosts have changed their link-layer address recently. A change within a side is believed
/// at once (RFC 826), as every host there believes it. If the previous card still answers, it keeps the
/// address. It is queried again soon, in case it was about to go.
#[derive(Debug)]
pub(super) struct Changes {
    changes: HashMap<IpAddr, Change, FixedState>,
}

/// The decision on another link-layer address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Belief {
    /// Believe it, and query the previous one.
    QueryOld,
    /// It is the previous one: it keeps the address.
    Keep,
    /// The previous one has just answered, or is being queried because of another one: do not believe it.
    Refuse,
}

impl Changes {
    pub(super) fn new(seed: u64) -> Self {
        Self { changes: HashMap::with_hasher(FixedState::with_seed(seed)) }
    }

    /// A host that was known at `old` is heard from `new`.
    pub(super) fn hear(&mut self, now: Instant, ip: IpAddr, old: Card, new: Card) -> Belief {
        match self.changes.get_mut(&ip).filter(|change| now < change.until) {
            Some(change) if change.kept && change.old == old => return Belief::Refuse,
            Some(change) if !change.kept && change.old == new => {
                (change.kept, change.until, change.queried) = (true, now + DOUBT, 0);
                change.again = AGAIN.first().map(|after| now + *after);
                return Belief::Keep;
            }
            // A third card while the first is being queried: the first one must not be forgotten for it.
            Some(change) if !change.kept => return Belief::Refuse,
            Some(_) | None => {}
        }
        // A change that is forgotten cannot be reverted. So entries whose old card has had time to answer and
        // has not are evicted first, then the oldest: a host answers long before a thousand others have
        // changed.
        if !self.changes.contains_key(&ip) {
            make_room(&mut self.changes, |change| {
                let over = !change.kept && now + DOUBT >= change.until + ANSWER;
                (!over, change.until)
            });
        }
        let change = Change { old, kept: false, until: now + DOUBT, again: Some(now + ANSWER), queried: 0 };
        self.changes.insert(ip, change);
        Belief::QueryOld
    }

    /// Number of addresses that another card has taken recently.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// True if [`Self::handle_timeout`] has a query to send.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.changes.values().any(|change| change.again.is_some_and(|at| at <= now))
    }

    /// Forgets entries that have ended. Returns the addresses whose cards must be queried.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<(IpAddr, Due)> {
        let mut queries = Vec::new();
        self.changes.retain(|ip, change| {
            let due = change.again.is_some_and(|at| at <= now);
            if due {
                change.queried += 1;
            }
            if due && change.kept {
                queries.push((*ip, Due::Verify(change.old)));
                change.again = AGAIN.get(change.queried).map(|after| now + *after);
            } else if due {
                queries.push((*ip, Due::Query(change.old)));
                change.again = (change.queried + 1 < usize::from(QUESTIONS)).then(|| now + ANSWER);
            }
            now < change.until || (change.kept && change.again.is_some())
        });
        queries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    fn card(n: u8) -> Card {
        Card::Ethernet(MacAddress([2, 0, 0, 0, 0, n]))
    }

    #[test]
    fn a_flood_of_claims_keeps_no_address_from_moving() {
        let (mut owners, mut now) = (Owners::new(1, Duration::from_secs(60)), Instant::now());
        let mut moved = Vec::new();
        for n in 0..10_000 {
            // Owners that are present answer.
            owners.claim(now, host(n), n, false);
            owners.confirm(now, host(n));
            if n == 5000 {
                assert_eq!(owners.claim(now, host(1 << 30), n, false), Answer::Query);
            }
            now += Duration::from_micros(200);
            moved.extend(owners.handle_timeout(now).into_iter().filter(|s| matches!(s, Step::Move { .. })));
            assert!(owners.addresses.len() <= ADDRESSES);
        }
        now += Duration::from_secs(1);
        moved.extend(owners.handle_timeout(now).into_iter().filter(|s| matches!(s, Step::Move { .. })));
        assert_eq!(moved, [Step::Move { ip: host(1 << 30), claim: 5000, held: false }]);
    }

    #[test]
    fn a_flood_of_changes_neither_refuses_one_nor_makes_an_owner_forgotten() {
        for kept in [false, true] {
            let (mut changes, mut now) = (Changes::new(1), Instant::now());
            let change = |changes: &mut Changes, now, n| {
                assert_eq!(changes.hear(now, host(n), card(1), card(2)), Belief::QueryOld);
                if kept {
                    assert_eq!(changes.hear(now, host(n), card(2), card(1)), Belief::Keep);
                }
            };
            for n in 0..5000 {
                now += Duration::from_micros(200);
                change(&mut changes, now, n);
            }
            assert_eq!(changes.hear(now, host(1 << 30), card(1), card(2)), Belief::QueryOld);
            for n in 5000..5500 {
                now += Duration::from_micros(2);
                change(&mut changes, now, n);
                assert!(changes.changes.len() <= ADDRESSES);
            }
            assert_eq!(changes.hear(now, host(1 << 30), card(2), card(1)), Belief::Keep);
        }
    }
}
