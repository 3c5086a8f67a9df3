//! The other gateways of the segment, by their hellos.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

use super::message::{Heard, Hello, Identity, MAX_PEERS, Role, Side, SideSet};

/// Longest lease that is believed: one hello must not silence us for long.
const LONGEST_LEASE: Duration = Duration::from_secs(31);
/// Without a key any station may have forged a lease: then at most this number of our own leases is believed.
const LEASES: u32 = 4;
/// Maximum time for which the addresses of a silent gateway still count as a gateway's. Longer than networks
/// stay split by a failure: such a gateway forwards unheard, and its packets must not be forwarded again.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Earlier gateways whose sequence numbers are remembered with a key, so that replayed messages of them stay
/// old. Each restart of a gateway counts, and each segment that it makes again. `docs/security-model.md` has
/// this bound.
const PAST: usize = 1000;

/// Rank of a gateway: the higher priority, then the lower GUID (IBA 14.4.1), then the lower instance. Less is
/// better.
pub(super) type Rank = (u8, Identity);

pub(super) const fn rank(priority: u8, who: Identity) -> Rank {
    (u8::MAX - priority, who)
}

/// Replay window of a side: each message counts once, and messages that overtake one another all count (RFC
/// 4303 3.4.3).
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    last: u64,
    /// Bit n is set if the message n before the last one has come.
    seen: u64,
}

impl Window {
    const fn takes(&mut self, sequence: u64) -> bool {
        if sequence > self.last {
            let by = sequence - self.last;
            self.seen = if by < 64 { self.seen << by } else { 0 } | 1;
            self.last = sequence;
            return true;
        }
        let back = self.last - sequence;
        let is_news = back < 64 && self.seen & (1 << back) == 0;
        if is_news {
            self.seen |= 1 << back;
        }
        is_news
    }
}

/// Another gateway.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) who: Identity,
    pub(super) hello: Hello,
    /// The sequence number of the last hello on each side.
    newest: [u64; 2],
    /// The sequence numbers received on each side.
    windows: [Window; 2],
    heard: [Option<Instant>; 2],
    /// How long it has been heard in total, with its present addresses.
    heard_for: Duration,
    /// Since when it has been there without a pause.
    pub(super) since: Instant,
    /// Since when it is drained, about to exit, or without one of its sides, by its hellos.
    pub(super) unable_since: Option<Instant>,
    /// True if its last hello may be of a gateway with the longer lease.
    pub(super) may_have_long_lease: bool,
    /// Since when it forwards and does not hear us.
    pub(super) deaf_since: Option<Instant>,
    /// It forwarded at the last check.
    forwarded: bool,
    /// It has named our instance, or this is not required.
    verified: bool,
    /// Last reported to the caller as alive.
    announced: bool,
}

impl Peer {
    /// When it counts as gone unless it is heard again.
    pub(super) fn alive_until(&self) -> Option<Instant> {
        self.last_heard().map(|at| at + self.hello.lease)
    }

    /// True if it counts: its lease runs, and its messages are not replayed ones.
    pub(super) fn is_alive(&self, now: Instant) -> bool {
        self.verified && self.is_heard(now)
    }

    fn is_heard(&self, now: Instant) -> bool {
        self.alive_until().is_some_and(|until| now < until)
    }

    fn note_service(&mut self, now: Instant) {
        let in_service = self.hello.up.is_both() && !self.hello.leaves;
        self.unable_since = if in_service { None } else { self.unable_since.or(Some(now)) };
    }

    pub(super) fn rank(&self) -> Rank {
        rank(self.hello.priority, self.who)
    }

    pub(super) fn heard_at(&self, side: Side) -> Option<Instant> {
        self.heard.get(side as usize).copied().flatten()
    }

    fn is_heard_on(&self, now: Instant, side: Side) -> bool {
        self.heard_at(side).is_some_and(|at| now < at + self.hello.lease)
    }

    /// The sides on which it was heard within its lease.
    pub(super) fn sides(&self, now: Instant) -> SideSet {
        Side::BOTH.into_iter().fold(SideSet::NONE, |set, side| set.with(side, self.is_heard_on(now, side)))
    }

    /// The sequence number that a hello must exceed to be newer than the last one.
    fn newest(&self) -> u64 {
        self.newest.into_iter().max().unwrap_or_default()
    }

    /// Without a key any station may have forged a number that the gateway never reaches: it counts no longer
    /// than the lease that came with it.
    fn forget_numbers(&mut self, now: Instant) {
        for side in
            Side::BOTH.into_iter().filter(|side| !self.is_heard_on(now, *side)).collect::<ArrayVec<_, 2>>()
        {
            (self.windows[side as usize], self.newest[side as usize]) = (Window::default(), 0);
        }
    }

    pub(super) fn last_heard(&self) -> Option<Instant> {
        self.heard.iter().flatten().max().copied()
    }
}

/// The result of a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reception {
    /// A gateway that was not heard before, or was silent for long.
    New,
    /// A known gateway; `true` if it just became blocked.
    Known { blocked: bool },
    /// The hello is older than the last one.
    Old,
    /// There is no room for more gateways.
    Full,
}

/// The gateways ever heard, bounded; those with the longest silence make room.
#[derive(Debug)]
pub(super) struct Peers {
    list: ArrayVec<Peer, MAX_PEERS>,
    /// With a key, the sequence numbers of the last [`PAST`] gateways that counted once and made room.
    past: VecDeque<(Identity, [Window; 2])>,
    own: Identity,
    /// Only gateways that name our instance count.
    verify: bool,
    longest_lease: Duration,
}

impl Peers {
    /// `lease`: our own. `verify`: messages are signed, and a gateway that does not name our instance reports
    /// nothing new.
    pub(super) fn new(own: Identity, verify: bool, lease: Duration) -> Self {
        let longest_lease = if verify { LONGEST_LEASE } else { LONGEST_LEASE.min(lease * LEASES) };
        Self { list: ArrayVec::new_const(), past: VecDeque::new(), own, verify, longest_lease }
    }

    /// All gateways that have counted once.
    pub(super) fn known(&self) -> impl Iterator<Item = &Peer> {
        self.list.iter().filter(|p| p.verified)
    }

    /// Until when its addresses count as a gateway's. Without a key any station may have forged them: then
    /// they count for the time for which it had been heard.
    fn remembered_until(&self, peer: &Peer) -> Option<Instant> {
        let most = if self.verify { REMEMBERED } else { peer.heard_for.min(REMEMBERED) };
        peer.last_heard().map(|at| at + most.max(peer.hello.lease))
    }

    /// The gateways whose addresses count. With a key they include, for its lease, one that does not count
    /// yet: it has signed a hello, or a station replays one of a gateway that had these addresses once.
    pub(super) fn remembered(&self, now: Instant) -> impl Iterator<Item = &Peer> {
        self.list.iter().filter(move |p| {
            p.is_heard(now) || (p.verified && self.remembered_until(p).is_some_and(|until| now < until))
        })
    }

    /// Sets whether the last hello of a gateway may be of one with the longer lease.
    pub(super) fn set_long_lease(&mut self, who: Identity, is_possible: bool) {
        if let Some(peer) = self.list.iter_mut().find(|p| p.who == who) {
            peer.may_have_long_lease = is_possible;
        }
    }

    pub(super) fn alive(&self, now: Instant) -> impl Iterator<Item = &Peer> {
        self.list.iter().filter(move |p| p.is_alive(now))
    }

    /// True if a message with this sequence number has not arrived on this side yet; records the number.
    pub(super) fn is_news(&mut self, who: Identity, side: Side, sequence: u64) -> bool {
        self.list.iter_mut().find(|p| p.who == who).is_some_and(|p| p.windows[side as usize].takes(sequence))
    }

    /// Handles a hello.
    pub(super) fn hello(
        &mut self,
        now: Instant,
        who: Identity,
        side: Side,
        sequence: u64,
        mut hello: Hello,
    ) -> Reception {
        hello.lease = hello.lease.min(self.longest_lease);
        let verified = !self.verify || !hello.hears(self.own).is_none();
        let past = self.past.iter().position(|(past, _)| *past == who);
        let mut windows = past.and_then(|at| self.past.get(at)).map_or_else(Default::default, |p| p.1);
        if let Some(peer) = self.list.iter_mut().find(|p| p.who == who) {
            if !self.verify {
                peer.forget_numbers(now);
            }
            if !self.is_news(who, side, sequence) {
                return Reception::Old;
            }
        } else if !windows[side as usize].takes(sequence) {
            return Reception::Old;
        } else if self.list.is_full() && !self.make_room(now) {
            return Reception::Full;
        }
        if let Some(peer) = self.list.iter_mut().find(|p| p.who == who) {
            let was_heard = peer.is_heard(now);
            if let Some(last) = peer.last_heard().filter(|_| was_heard) {
                peer.heard_for += now.saturating_duration_since(last);
            }
            peer.heard[side as usize] = Some(now);
            if !was_heard {
                peer.since = now;
            }
            // Once is enough: its sequence numbers rise from there.
            peer.verified |= verified;
            let blocked = hello.role == Role::Blocked && peer.hello.role != Role::Blocked;
            // The other side's copy of a later hello may have been faster.
            if sequence > peer.newest() {
                // A station may have named a host in its name.
                if !hello.has_addresses_of(&peer.hello) {
                    peer.heard_for = Duration::ZERO;
                }
                peer.hello = hello;
                peer.note_service(now);
            }
            peer.newest[side as usize] = peer.newest[side as usize].max(sequence);
            return if was_heard { Reception::Known { blocked } } else { Reception::New };
        }
        let mut peer = Peer {
            who,
            hello,
            newest: [0; 2],
            windows,
            heard: [None; 2],
            heard_for: Duration::ZERO,
            since: now,
            unable_since: None,
            deaf_since: None,
            may_have_long_lease: false,
            forwarded: false,
            verified: verified || past.is_some(),
            announced: false,
        };
        self.past.retain(|(past, _)| *past != who);
        peer.newest[side as usize] = sequence;
        peer.heard[side as usize] = Some(now);
        peer.note_service(now);
        self.list.push(peer);
        Reception::New
    }

    /// Removes a gateway that is not heard; false if all are.
    fn make_room(&mut self, now: Instant) -> bool {
        let unheard = self.list.iter().enumerate().filter(|(_, p)| !p.is_alive(now));
        // A gateway that has never counted is removed first: it would have to name us again.
        let first = unheard.min_by_key(|(_, p)| (p.verified, self.remembered_until(p)));
        let Some(place) = first.map(|(place, _)| place) else { return false };
        let gone = self.list.remove(place);
        // Without its sequence numbers, replayed messages of it would count as new.
        if self.verify && gone.verified {
            if self.past.len() == PAST {
                self.past.pop_front();
            }
            self.past.push_back((gone.who, gone.windows));
        }
        true
    }

    /// Records the gateways that forward without hearing us.
    pub(super) fn note_deaf(&mut self, now: Instant) {
        for peer in &mut self.list {
            let deaf = peer.is_alive(now)
                && peer.hello.role == Role::Forwarding
                && peer.hello.hears(self.own).is_none();
            peer.deaf_since = if deaf { peer.deaf_since.or(Some(now)) } else { None };
        }
    }

    /// Records which gateways forward. True if one of them started or stopped forwarding, or is heard again
    /// and may have forwarded unheard. A gateway that has just started listens first. Call it before
    /// [`Self::change`].
    pub(super) fn note_forwarders(&mut self, now: Instant) -> bool {
        let mut changed = false;
        for peer in &mut self.list {
            let alive = peer.is_alive(now);
            let forwards = alive && peer.hello.role == Role::Forwarding;
            let is_back = alive && !peer.announced && peer.hello.role != Role::Listening;
            changed |= is_back || forwards != peer.forwarded;
            peer.forwarded = forwards;
        }
        changed
    }

    /// The next gateway that appeared or disappeared since the last call.
    pub(super) fn change(&mut self, now: Instant) -> Option<(Identity, bool)> {
        self.list.iter_mut().find_map(|peer| {
            let alive = peer.is_alive(now);
            let changed = alive != peer.announced;
            peer.announced = alive;
            changed.then_some((peer.who, alive))
        })
    }

    /// The gateways that we hear, for our hello. They include those that do not count yet: they wait to be
    /// named.
    pub(super) fn heard(&self, now: Instant) -> Vec<Heard> {
        let heard = self.list.iter().filter(|p| p.is_heard(now));
        heard.map(|p| Heard { who: p.who, sides: p.sides(now) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::{Gid, Guid, Lid};
    use ipoib::net::ethernet::MacAddress;

    const SECOND: Duration = Duration::from_secs(1);
    const OWN: Identity = Identity { guid: Guid(1), instance: 1 };

    fn life(instance: u64) -> Identity {
        Identity { guid: Guid(2), instance }
    }

    fn hello(role: Role, hears_us: bool) -> Hello {
        let heard = hears_us.then_some(Heard { who: OWN, sides: SideSet::BOTH });
        Hello {
            priority: 100,
            role,
            up: SideSet::BOTH,
            claims: false,
            leaves: false,
            interval: Duration::from_millis(300),
            lease: Duration::from_secs(1),
            mac: MacAddress([2, 0, 0, 0, 0, 2]),
            lid: Lid(2),
            gid: Gid::ZERO,
            qpns: Vec::new(),
            heard: heard.into_iter().collect(),
        }
    }

    /// Hellos on both sides until `end`, whose numbers rise from `sequence`.
    fn hear(peers: &mut Peers, now: &mut Instant, end: Instant, sequence: &mut u64) {
        while *now < end {
            for side in Side::BOTH {
                *sequence += 1;
                peers.hello(*now, life(1), side, *sequence, hello(Role::Forwarding, true));
            }
            *now += Duration::from_millis(300);
        }
    }

    #[test]
    fn a_forged_sequence_number_deafens_us_for_a_lease_only() {
        for on in [&Side::BOTH[..], &[Side::Ethernet], &[Side::InfiniBand]] {
            let (mut peers, mut now, mut sequence) = (Peers::new(OWN, false, SECOND), Instant::now(), 0);
            let end = now + SECOND;
            hear(&mut peers, &mut now, end, &mut sequence);
            for side in on {
                peers.hello(now, life(1), *side, u64::MAX, hello(Role::Standby, false));
            }
            assert_eq!(peers.alive(now).next().map(|p| p.hello.role), Some(Role::Standby));
            let end = now + SECOND * 3;
            hear(&mut peers, &mut now, end, &mut sequence);
            let peer = peers.alive(now).next().unwrap();
            assert_eq!((peer.hello.role, peer.sides(now)), (Role::Forwarding, SideSet::BOTH));
        }
    }

    #[test]
    fn with_a_key_the_first_hello_makes_its_addresses_a_gateways_for_its_lease() {
        let (mut peers, now) = (Peers::new(OWN, true, SECOND), Instant::now());
        peers.hello(now, life(1), Side::Ethernet, 1, hello(Role::Forwarding, false));
        assert_eq!((peers.known().count(), peers.remembered(now).count()), (0, 1), "it does not count yet");
        assert_eq!(peers.remembered(now + SECOND).count(), 0);
    }

    #[test]
    fn a_forged_lease_is_a_few_of_ours_only() {
        let (mut peers, mut now, mut sequence) = (Peers::new(OWN, false, SECOND), Instant::now(), 0);
        let end = now + SECOND;
        hear(&mut peers, &mut now, end, &mut sequence);
        // In the name of the forwarder, and with a number beyond all of its own.
        let forged = Hello { lease: SECOND * 31, ..hello(Role::Standby, true) };
        for side in Side::BOTH {
            peers.hello(now, life(1), side, u64::MAX, forged.clone());
        }
        let end = now + SECOND * 5;
        hear(&mut peers, &mut now, end, &mut sequence);
        assert_eq!(peers.alive(now).map(|p| p.hello.role).collect::<Vec<_>>(), [Role::Forwarding]);
    }

    #[test]
    fn without_a_key_a_gateway_is_remembered_as_long_as_it_was_heard_despite_forgeries() {
        let (mut peers, mut now, mut sequence) = (Peers::new(OWN, false, SECOND), Instant::now(), 0);
        let end = now + SECOND * 100;
        hear(&mut peers, &mut now, end, &mut sequence);
        let remembered = |peers: &Peers, now| peers.remembered(now).map(|p| p.who).collect::<Vec<_>>();
        // It is cut off; gateways that have never counted do not displace it.
        now += SECOND * 10;
        for instance in 2..50 {
            peers.hello(now, life(instance), Side::Ethernet, 7, hello(Role::Standby, false));
            now += SECOND;
        }
        assert!(remembered(&peers, now).contains(&life(1)));
        now += SECOND * 10;
        assert_eq!(remembered(&peers, now), [life(1)], "of those nobody is");
        assert_eq!(remembered(&peers, end + SECOND * 98), [life(1)]);
        assert_eq!(remembered(&peers, end + SECOND * 102), []);
        // A station that names a host's address in its name makes it a gateway's only for a moment.
        let host = Hello { mac: MacAddress([2, 9, 9, 9, 9, 9]), ..hello(Role::Forwarding, true) };
        peers.hello(now, life(1), Side::Ethernet, sequence + 1, host);
        assert_eq!(remembered(&peers, now), [life(1)]);
        assert_eq!(remembered(&peers, now + SECOND * 2), []);
    }

    #[test]
    fn with_a_key_recordings_of_many_lives_that_counted_stay_old() {
        let (mut peers, mut now) = (Peers::new(OWN, true, SECOND), Instant::now());
        let said = |instance| (1..9).map(move |n| (life(instance), Side::BOTH[n as usize % 2], n));
        for instance in 0..PAST as u64 + 8 {
            for (who, side, sequence) in said(instance) {
                peers.hello(now, who, side, sequence, hello(Role::Forwarding, true));
            }
            assert!(peers.alive(now).any(|p| p.who == life(instance)));
            now += SECOND * 60;
        }
        for (who, side, sequence) in (0..PAST as u64 + 8).flat_map(said) {
            let again = peers.hello(now, who, side, sequence, hello(Role::Forwarding, true));
            assert_eq!(again, Reception::Old, "{who:?} {sequence}");
        }
        // A gateway that was cut off for long counts again with its next hello.
        peers.hello(now, life(0), Side::Ethernet, 9, hello(Role::Forwarding, true));
        assert_eq!(peers.alive(now).map(|p| p.who).collect::<Vec<_>>(), [life(0)]);
    }

    #[test]
    fn the_security_model_has_the_number_of_runs_whose_replays_stay_old() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/security-model.md");
        let page = std::fs::read_to_string(page).unwrap();
        let number = format!("{},{:03} restarts", PAST / 1000, PAST % 1000);
        assert!(page.contains(&number), "{number}");
    }

    #[test]
    fn with_a_key_recordings_stay_old_however_many_lives_there_are_of() {
        let (mut peers, mut now, mut sequence) = (Peers::new(OWN, true, SECOND), Instant::now(), 0);
        let end = now + Duration::from_secs(30);
        hear(&mut peers, &mut now, end, &mut sequence);
        now += Duration::from_secs(60);
        // Hellos of its runs before our present one: they do not name us.
        for instance in 2..50 {
            peers.hello(now, life(instance), Side::Ethernet, 7, hello(Role::Forwarding, false));
            now += Duration::from_millis(10);
        }
        for recorded in 1..=sequence {
            // The two sides alternate in numbers, and the side is part of the signed bytes.
            let side = if recorded % 2 == 1 { Side::Ethernet } else { Side::InfiniBand };
            let again = peers.hello(now, life(1), side, recorded, hello(Role::Forwarding, true));
            assert_eq!(again, Reception::Old, "{recorded}");
        }
        assert!(peers.alive(now).next().is_none());
    }
}
