//! Election of the gateway of a segment that forwards.

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

/// Number of hello intervals that a better gateway stands by before it claims, so that its tables become
/// warm.
pub(in crate::segment) const WARM: u32 = 20;
/// How long a gateway that hands over in order still forwards hosts' own packets. The other gateway's
/// announcements, two rounds a second apart, are in transit during this time. Broadcast and multicast packets
/// are left to the other gateway at once, so none of them loops.
pub(in crate::segment) const HANDOVER: Duration = Duration::from_secs(3);
/// Shortest time between two hellos that were triggered by a first hello of another gateway or by a new host.
const GAP: Duration = Duration::from_millis(50);

/// The state machine.
#[derive(Debug)]
pub struct Pair {
    settings: Settings,
    own: Identity,
    station: Station,
    up: SideSet,
    leaves: bool,
    drained: Option<Drain>,
    /// Until when it forwards hosts' own packets in addition to the gateway that has taken over.
    hands_over: Option<Instant>,
    role: Role,
    since: Instant,
    /// It has listened for other gateways for long enough since both sides are up.
    listened: bool,
    /// When one of its sides went down, while a side is down.
    side_lost: Option<Instant>,
    out_of_service: OutOfService,
    /// A gateway that resigned waits a lease before it forwards again: the end of that time.
    not_before: Option<Instant>,
    peers: Peers,
    strangers: Strangers,
    rivals: Rivals,
    /// The last reported rival that ranks worse.
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
    /// Makes a gateway without any knowledge, with both sides down.
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

    /// Distinguishes this segment from earlier ones of the same gateway: it gets another instance, so
    /// replayed messages to an earlier one do not count. Its messages are numbered from the uptime in
    /// microseconds.
    #[must_use]
    pub fn numbered_from(mut self, uptime: Duration) -> Self {
        self.own = self.own.made_after(uptime);
        self.peers = Peers::new(self.own, self.settings.key.is_some(), self.settings.lease());
        self.sequence = u64::try_from(uptime.as_micros()).unwrap_or(u64::MAX >> 1);
        self
    }

    // -- state

    /// The role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// True while it forwards hosts' own packets in addition to the gateway that has taken over.
    #[must_use]
    pub const fn hands_over(&self) -> bool {
        self.hands_over.is_some()
    }

    /// Start of the present role.
    #[must_use]
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// The identity of this gateway.
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

    /// Until when forwarding is blocked because of a loop.
    #[must_use]
    pub fn blocked_until(&self, now: Instant) -> Option<Instant> {
        self.loops.held_until(now)
    }

    /// The other gateways, including those that are gone.
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

    /// The addresses of the other gateways. Broadcast and multicast packets from there were forwarded
    /// already, and no station there is learned as a host. A gateway that was silent for an hour is removed,
    /// since others may have its addresses. Without a key a gateway is removed earlier if it had been heard
    /// for less than an hour: after the same time of silence.
    pub fn stations(&self, now: Instant) -> impl Iterator<Item = Station> {
        self.peers.remembered(now).map(|p| Station {
            mac: p.hello.mac,
            lid: p.hello.lid,
            gid: p.hello.gid,
            qpns: p.hello.qpns.clone(),
        })
    }

    // -- hosts for standby gateways

    /// True if [`Self::tell_neighbours`] needs all known hosts.
    #[must_use]
    pub fn wants_neighbours(&self, now: Instant) -> bool {
        self.sends_hosts(now) && self.sync.is_due(now)
    }

    /// Reports all hosts that the forwarder knows.
    pub fn tell_neighbours(&mut self, now: Instant, hosts: impl Iterator<Item = Neighbour>) {
        self.sync.begin(now, hosts);
    }

    /// Reports a host that is new or has moved.
    pub fn tell_neighbour(&mut self, now: Instant, host: Neighbour) {
        if self.sends_hosts(now) {
            self.sync.note(host);
            // If this gateway exits in the next moment, the other one must know the host to announce it.
            self.hurry(now);
        }
    }

    /// Sends the next hello soon.
    fn hurry(&mut self, now: Instant) {
        let soon = self.last_hello.map_or(now, |last| last + GAP);
        self.next_hello = self.next_hello.min(soon.max(now));
        self.wake = self.wake.min(self.next_hello);
    }

    /// Sends a hello before this gateway answers an unknown station. If that station is another gateway, it
    /// learns first that this one is a gateway.
    pub fn greet(&mut self, now: Instant) {
        if self.role == Role::Forwarding {
            self.hurry(now);
            if now >= self.next_hello {
                self.handle_timeout(now);
            }
        }
    }

    fn sends_hosts(&self, now: Instant) -> bool {
        self.role == Role::Forwarding && self.peers.alive(now).next().is_some()
    }

    // -- outputs

    /// Returns the next message or probe to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Time of the next [`Self::handle_timeout`].
    #[must_use]
    pub const fn poll_timeout(&self) -> Instant {
        self.wake
    }

    /// Runs everything that is due.
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

    /// True if this gateway probes. A standby does not, unless it still hands over: the forwarder probes and
    /// reports the result.
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

    // -- election

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
        // No packet is forwarded where there is a loop, in any role.
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
            // A gateway that is drained, or put back, while it hands over continues with the handover.
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
            // It listens for other gateways all the time, while it can.
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

    /// Starts to forward if no other gateway does or should.
    fn contend(&mut self, now: Instant) -> (Role, Why) {
        let own = self.rank();
        let forwarder = self.peers.alive(now).find(|p| p.hello.role == Role::Forwarding);
        if let Some(who) = forwarder.or_else(|| self.bound_forwarder(now)).map(|p| p.who) {
            self.listened = true;
            return (Role::Standby, Why::Better(who));
        }
        let mut better = self.peers.alive(now).filter(|p| p.hello.is_able() && p.rank() < own);
        if self.role == Role::Standby {
            // A gateway that only listens is not waited for: no gateway would forward in the meantime.
            if let Some(p) = better.find(|p| p.hello.role == Role::Standby) {
                return (Role::Standby, Why::Better(p.who));
            }
            if self.not_before.is_some_and(|at| now < at) {
                return (Role::Standby, Why::TakeOver);
            }
            return (Role::Forwarding, Why::TakeOver);
        }
        // All start at the same time: the better ones go first, but the wait for them is limited.
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

    /// Stops forwarding if another gateway should forward.
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

    /// True if this gateway is better than the forwarder, and has stood by for long enough to know its hosts.
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
            role: self.role.reported(),
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
        if self.sends_hosts(now) {
            // One side is enough: the one on which most of them are heard.
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
