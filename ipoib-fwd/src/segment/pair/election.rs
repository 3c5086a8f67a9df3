//! One gateway among those of its segment: who forwards.

mod absence;
mod announcing;
mod drain;
mod hearing;
pub(super) mod lease;
mod rivalry;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ipoib::net::probe::probe_packet;

use self::announcing::Announcing;
use self::lease::OutOfService;
use super::api::{Drain, Event, PeerInfo, Settings, Station, Statistics, Transmit, Why};
use super::echo::EchoBudget;
use super::loops::{Loops, Sign};
use super::message::{Body, Hello, Identity, Message, Neighbour, Role, Side, SideSet};
use super::peers::{Peer, Peers, Rank, rank};
use super::rivals::Rivals;
use super::siblings::Siblings;
use super::strangers::Strangers;
use super::sync::Sync;

/// Hellos for which a better gateway stands by before it claims: its tables become warm.
pub(in crate::segment) const WARM: u32 = 20;
/// For so long who hands over in order forwards hosts' own packets still: the other gateway's announcements, two rounds a second apart,
/// are on their way. Packets to all it leaves to the other one at once, so nothing circles.
pub(in crate::segment) const HANDOVER: Duration = Duration::from_secs(3);
/// Shortest time between two hellos that somebody's first hello, or a new host, brought about.
const GAP: Duration = Duration::from_millis(50);

/// The machine.
#[derive(Debug)]
pub struct Pair {
    settings: Settings,
    own: Identity,
    station: Station,
    up: SideSet,
    leaves: bool,
    drained: Option<Drain>,
    /// Until when it forwards hosts' own packets beside the one that has taken over.
    hands_over: Option<Instant>,
    role: Role,
    since: Instant,
    /// It has heard for long enough whether there are others, since both sides are up.
    listened: bool,
    /// When one of its sides went down, while it is without one.
    side_lost: Option<Instant>,
    out_of_service: OutOfService,
    /// Not before this: who resigned waits a lease before it forwards again.
    not_before: Option<Instant>,
    peers: Peers,
    strangers: Strangers,
    rivals: Rivals,
    /// The rival that ranks worse, as last reported.
    lesser_rival: Option<Identity>,
    announcing: Announcing,
    echo_budget: EchoBudget,
    loops: Loops,
    siblings: Siblings,
    sync: Sync,
    sequence: u64,
    last_hello: Option<Instant>,
    lease_end: Option<Instant>,
    next_hello: Instant,
    wake: Instant,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    statistics: Statistics,
}

impl Pair {
    /// A gateway that knows of nothing yet, with both sides down.
    #[must_use]
    pub fn new(now: Instant, settings: Settings, own: Identity, station: Station) -> Self {
        Self {
            settings,
            own,
            station,
            up: SideSet::NONE,
            leaves: false,
            drained: None,
            hands_over: None,
            role: Role::Standby,
            since: now,
            listened: false,
            side_lost: None,
            out_of_service: OutOfService::new(now),
            not_before: None,
            peers: Peers::new(own, settings.key.is_some(), settings.lease()),
            strangers: Strangers::default(),
            rivals: Rivals::default(),
            lesser_rival: None,
            announcing: Announcing::default(),
            echo_budget: EchoBudget::new(now),
            loops: Loops::new(now),
            siblings: Siblings::default(),
            sync: Sync::new(now),
            sequence: 0,
            last_hello: None,
            lease_end: None,
            next_hello: now,
            wake: now,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            statistics: Statistics::default(),
        }
    }

    /// Makes this a segment of its own among those that the gateway makes one after the other: it has another instance,
    /// so that recordings of messages to an earlier one do not count. Its messages are numbered by the uptime in
    /// microseconds.
    #[must_use]
    pub fn numbered_from(mut self, uptime: Duration) -> Self {
        self.own = self.own.made_after(uptime);
        self.peers = Peers::new(self.own, self.settings.key.is_some(), self.settings.lease());
        self.sequence = u64::try_from(uptime.as_micros()).unwrap_or(u64::MAX >> 1);
        self
    }

    // -- what it says

    /// What it does.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// True while it forwards hosts' own packets beside the one that has taken over.
    #[must_use]
    pub const fn hands_over(&self) -> bool {
        self.hands_over.is_some()
    }

    /// Since when.
    #[must_use]
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// Which one it is.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.own
    }

    /// True if its messages are signed.
    #[must_use]
    pub const fn is_keyed(&self) -> bool {
        self.settings.key.is_some()
    }

    /// Its priority.
    #[must_use]
    pub const fn priority(&self) -> u8 {
        self.settings.priority
    }

    /// Counts since the start.
    #[must_use]
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Until when nothing is forwarded because of a loop.
    #[must_use]
    pub fn blocked_until(&self, now: Instant) -> Option<Instant> {
        self.loops.held_until(now)
    }

    /// The other gateways, also those that are gone.
    pub fn peers(&self, now: Instant) -> impl Iterator<Item = PeerInfo> {
        self.peers.known().map(move |p| PeerInfo {
            who: p.who,
            priority: p.hello.priority,
            role: p.hello.role,
            leaves: p.hello.leaves,
            alive: p.is_alive(now),
            heard: p.sides(now),
            hears_us: p.hello.hears(self.own),
            age: p.last_heard().map_or(Duration::MAX, |at| now.saturating_duration_since(at)),
            mac: p.hello.mac,
        })
    }

    /// Where the other gateways are. What comes from there to a group was forwarded already, and nobody there is a host to
    /// be learnt. Who was silent for an hour was taken away, and others may have its addresses; without a key who was silent for as long
    /// as it had been heard before, if that is less.
    pub fn stations(&self, now: Instant) -> impl Iterator<Item = Station> {
        self.peers.remembered(now).map(|p| Station {
            mac: p.hello.mac,
            lid: p.hello.lid,
            gid: p.hello.gid,
            qpns: p.hello.qpns.clone(),
        })
    }

    // -- hosts for those who stand by

    /// True if all known hosts are wanted by [`Self::tell_neighbours`].
    #[must_use]
    pub fn wants_neighbours(&self, now: Instant) -> bool {
        self.tells(now) && self.sync.is_due(now)
    }

    /// All hosts that the forwarder knows.
    pub fn tell_neighbours(&mut self, now: Instant, hosts: impl Iterator<Item = Neighbour>) {
        self.sync.begin(now, hosts);
    }

    /// A host is new or has moved.
    pub fn tell_neighbour(&mut self, now: Instant, host: Neighbour) {
        if self.tells(now) {
            self.sync.note(host);
            // If this gateway ends in the next moment, the other one must know whom to announce.
            self.hurry(now);
        }
    }

    /// The next hello goes soon.
    fn hurry(&mut self, now: Instant) {
        let soon = self.last_hello.map_or(now, |last| last + GAP);
        self.next_hello = self.next_hello.min(soon.max(now));
        self.wake = self.wake.min(self.next_hello);
    }

    /// An unknown station has spoken, and this gateway may be about to answer it: if that is another gateway, it hears first that this
    /// is one.
    pub fn greet(&mut self, now: Instant) {
        if self.role == Role::Forwarding {
            self.hurry(now);
            if now >= self.next_hello {
                self.handle_timeout(now);
            }
        }
    }

    fn tells(&self, now: Instant) -> bool {
        self.role == Role::Forwarding && self.peers.alive(now).next().is_some()
    }

    // -- what it wants

    /// The next thing to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub const fn poll_timeout(&self) -> Instant {
        self.wake
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.evaluate_for(now, None);
        self.announce_if_due(now);
        // A gateway that is not believed forwards the same packets.
        let ends = self.hands_over() && !self.rivals.proven(now).is_empty();
        if self.hands_over.take_if(|until| ends || now >= *until).is_some() {
            self.look_for_successor(now);
            if self.role != Role::Forwarding {
                self.events.push_back(Event::HandedOver);
            }
        }
        if self.strangers.handle_timeout(now) {
            self.events.push_back(Event::Stranger { why: None });
        }
        if now >= self.next_hello {
            self.send_hello(now);
        }
        if self.probes() {
            let is_near = self.strangers.is_near() || self.rivals.is_near(now);
            let fast = (is_near || self.role == Role::Listening).then_some(self.settings.hello);
            if self.loops.is_due(now, fast) {
                for side in Side::BOTH {
                    let nonce = self.loops.draw(side);
                    self.transmits.push_back(Transmit::Probe(side, probe_packet(nonce)));
                }
            }
        }
        self.renew_lease(now);
        self.wake = self.next_wake(now);
    }

    /// A gateway that stands by does not probe, unless it still hands over: the forwarder does, and says what it finds.
    const fn probes(&self) -> bool {
        let carries = self.hands_over() || !matches!(self.role, Role::Standby | Role::Drained);
        self.up.is_both() && !self.leaves && carries
    }

    fn next_wake(&self, now: Instant) -> Instant {
        let listened = self.since + self.settings.listening();
        let marks = [
            self.probes().then(|| self.loops.next_probe()),
            self.loops.held_until(now),
            self.not_before,
            self.hands_over,
            self.strangers.poll_timeout(),
            self.rivals.poll_timeout(),
            self.announcing.poll_timeout(),
            (self.role == Role::Listening).then_some(listened),
            (self.role == Role::Listening).then_some(listened + self.settings.lease()),
        ];
        let leases = self.peers.alive(now).filter_map(|p| p.alive_until());
        let marks = marks.into_iter().flatten().chain(leases).filter(|at| *at > now);
        marks.fold(self.next_hello, Instant::min)
    }

    // -- who forwards

    fn rank(&self) -> Rank {
        rank(self.settings.priority, self.own)
    }

    fn is_able(&self) -> bool {
        self.up.is_both() && !self.leaves && !self.is_drained()
    }

    fn block(&mut self, now: Instant, sign: Sign, arrived: Side) {
        self.statistics.loops += 1;
        if let Some(hold) = self.loops.block(now) {
            self.events.push_back(Event::Loop { sign, arrived, hold });
        }
        // Nothing passes where there is a loop, whatever the role is.
        if self.hands_over.take().is_some() {
            self.events.push_back(Event::HandedOver);
        }
        self.handle_timeout(now);
    }

    fn evaluate_for(&mut self, now: Instant, cause: Option<Why>) {
        self.peers.note_deaf(now);
        let doubled = self.peers.note_forwarders(now);
        while let Some((who, alive)) = self.peers.change(now) {
            self.events.push_back(Event::Peer { who, alive });
            // A replayed hello must not restart it, so a hello alone does not.
            if alive {
                self.sync.restart(now);
            }
        }
        self.forget_believed_rivals(now);
        let (to, why) = self.next_role(now);
        if to == self.role {
            if doubled {
                self.announce_again(now);
            }
            return self.report_lesser_rival(now);
        }
        self.report_block(why);
        let from = std::mem::replace(&mut self.role, to);
        self.since = now;
        self.next_hello = now;
        self.restart_announcing(now);
        let in_order =
            matches!(why, Why::Leaving | Why::Drained | Why::Better(_) | Why::Deaf(_)) && self.up.is_both();
        if from == Role::Forwarding {
            self.hands_over = in_order.then_some(now + HANDOVER);
        } else if !matches!(to, Role::Standby | Role::Drained) || !self.up.is_both() {
            // Who is drained, or put back, while it hands over goes on with that.
            self.hands_over = None;
        }
        match to {
            Role::Listening => self.loops.probe_now(now),
            Role::Forwarding => {
                self.loops.probe_now(now);
                self.statistics.takeovers += 1;
                self.sync.restart(now);
            }
            Role::Standby | Role::Blocked | Role::Drained => {}
        }
        if from == Role::Forwarding {
            self.statistics.resignations += 1;
            self.not_before = Some(now + self.settings.lease());
        }
        self.events.push_back(Event::Role { from, to, why: cause.unwrap_or(why) });
    }

    fn next_role(&mut self, now: Instant) -> (Role, Why) {
        self.note_own_service(now);
        if self.is_drained() {
            // Whether there are others it hears all the time, while it can.
            self.listened &= self.loops.held_until(now).is_none();
            return (Role::Drained, Why::Drained);
        }
        if self.loops.held_until(now).is_some() {
            self.listened = false;
            return (Role::Blocked, Why::Loop);
        }
        if !self.is_able() {
            return (Role::Standby, if self.leaves { Why::Leaving } else { Why::SideDown });
        }
        if let Some(resigned) = self.resigned_by_silence(now) {
            return resigned;
        }
        let next = match self.role {
            Role::Blocked => (Role::Listening, Why::Quiet),
            Role::Standby | Role::Drained if !self.listened => (Role::Listening, Why::SidesUp),
            Role::Listening if now < self.since + self.settings.listening() => {
                (Role::Listening, Why::SidesUp)
            }
            Role::Listening | Role::Standby => self.contend(now),
            Role::Drained => (Role::Standby, Why::Undrained),
            Role::Forwarding => self.defend(now),
        };
        self.unless_rival(now, next)
    }

    /// Begins to forward if nobody else does or should.
    fn contend(&mut self, now: Instant) -> (Role, Why) {
        let own = self.rank();
        let forwarder = self.peers.alive(now).find(|p| p.hello.role == Role::Forwarding);
        if let Some(who) = forwarder.or_else(|| self.bound_forwarder(now)).map(|p| p.who) {
            self.listened = true;
            return (Role::Standby, Why::Better(who));
        }
        let mut better = self.peers.alive(now).filter(|p| p.hello.is_able() && p.rank() < own);
        if self.role == Role::Standby {
            // Who listens only is not waited for: there is nobody who forwards meanwhile.
            if let Some(p) = better.find(|p| p.hello.role == Role::Standby) {
                return (Role::Standby, Why::Better(p.who));
            }
            if self.not_before.is_some_and(|at| now < at) {
                return (Role::Standby, Why::TakeOver);
            }
            return (Role::Forwarding, Why::TakeOver);
        }
        // All begin at the same time: the better ones go first, but are not waited for without end.
        match better.next() {
            Some(_) if now < self.since + self.settings.listening() + self.settings.lease() => {
                (Role::Listening, Why::SidesUp)
            }
            _ => {
                self.listened = true;
                (Role::Forwarding, Why::Alone)
            }
        }
    }

    /// Stops to forward if another one should.
    fn defend(&self, now: Instant) -> (Role, Why) {
        let own = self.rank();
        let patience = self.settings.lease() * 2;
        for peer in self.peers.alive(now) {
            if peer.hello.role == Role::Forwarding {
                if peer.rank() < own {
                    return (Role::Standby, Why::Better(peer.who));
                }
                if peer.deaf_since.is_some_and(|since| now >= since + patience) {
                    return (Role::Standby, Why::Deaf(peer.who));
                }
            }
            if peer.hello.claims && peer.hello.is_able() && peer.hello.priority > self.settings.priority {
                return (Role::Standby, Why::Better(peer.who));
            }
        }
        (Role::Forwarding, Why::Alone)
    }

    /// True if we are better than the forwarder, and have stood by for long enough to know its hosts.
    fn claims(&self, now: Instant) -> bool {
        let warm = now >= self.since + self.settings.hello.saturating_mul(WARM);
        let worse = |p: &Peer| p.hello.role == Role::Forwarding && p.hello.priority < self.settings.priority;
        self.role == Role::Standby && self.is_able() && warm && self.peers.alive(now).any(worse)
    }

    // -- sending

    fn send_hello(&mut self, now: Instant) {
        self.last_hello = Some(now);
        self.next_hello = now + self.settings.hello;
        let hello = Hello {
            priority: self.settings.priority,
            role: self.role.told(),
            up: self.up,
            claims: self.claims(now),
            leaves: self.leaves || self.is_drained(),
            interval: self.settings.hello,
            lease: self.settings.lease(),
            mac: self.station.mac,
            lid: self.station.lid,
            gid: self.station.gid,
            qpns: self.station.qpns.clone(),
            heard: self.peers.heard(now),
        };
        for side in Side::BOTH {
            self.send(side, Body::Hello(hello.clone()));
        }
        if self.tells(now) {
            // One side is enough; the one on which most of them are heard.
            let side = if self.peers.alive(now).all(|p| p.sides(now).has(Side::Ethernet)) {
                Side::Ethernet
            } else {
                Side::InfiniBand
            };
            let pages: Vec<_> = self.sync.pages().collect();
            for page in pages {
                self.send(side, Body::Neighbours(page));
            }
        }
    }

    fn send(&mut self, side: Side, body: Body) {
        if !self.up.has(side) {
            return;
        }
        self.sequence += 1;
        self.statistics.sent += 1;
        let message =
            Message { segment: self.settings.segment, from: self.own, sequence: self.sequence, side, body };
        self.transmits.push_back(Transmit::Message(side, message.to_bytes(self.settings.key)));
    }
}
