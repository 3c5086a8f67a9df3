//! Neighbours: from IPv4 address to link-layer address, learned by ARP, aged like a kernel's.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hca::{AddressVector, UdDestination, UdSource};
use ib_wire::ipoib::AddressFlags;
use ib_wire::{Gid, Qpn, Rate};

use super::action::{Event, ReceivedArp};
use super::machine::Link;
use super::settings::{Mode, WorkerIndex};
use super::statistics::{CloseReason, NeighbourInfo};
use super::table::{Neighbour, NeighbourChange};
use super::timers::Timer;
use crate::bucket::Bucket;
use ib_wire::ipoib::HardwareAddress;
use ib_wire::ipoib::{Arp, ArpOperation};

/// A confirmed address is taken for good for this long.
const REACHABLE: Duration = Duration::from_secs(30);
/// Between two requests for one address.
const RETRY: Duration = Duration::from_secs(1);
/// Requests before an address is given up.
const TRIES: u8 = 3;
/// How long a failed address is remembered as such.
const HOLD: Duration = Duration::from_secs(3);
/// New addresses asked for: so many at once, and so many a second.
const NEW_BURST: u32 = 256;
const NEW_PER_SECOND: u32 = 1024;
/// Requests and announcements by broadcast that the owner may have sent: a host that has taken another gateway's place announces many
/// addresses at once.
const ASKED_BURST: u32 = 4096;
const ASKED_PER_SECOND: u32 = 1024;

/// What is known about a neighbour's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Asked by broadcast, so many times; no answer yet.
    Incomplete { tries: u8 },
    /// Confirmed less than half a minute ago.
    Reachable,
    /// Not confirmed for a while, and not in use.
    Stale,
    /// In use and asked by unicast, so many times.
    Probe { tries: u8 },
    /// No answer came; kept for a moment so that it is not asked again at once.
    Failed,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "incomplete",
            Self::Reachable => "reachable",
            Self::Stale => "stale",
            Self::Probe { .. } => "probe",
            Self::Failed => "failed",
        }
    }
}

/// Who makes room for whom in a full table: the lower for the higher, and for its like.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    /// Has not answered.
    Unanswered,
    /// No worker sends to it.
    Unused,
    /// Carries traffic.
    Used,
}

/// One neighbour.
#[derive(Debug)]
pub(super) struct Entry {
    hardware: Option<HardwareAddress>,
    state: State,
    /// On whose behalf it is asked for: an address of ours and the worker whose link-layer address it has.
    source: (WorkerIndex, Ipv4Addr),
    last_used: Instant,
    /// When each worker last sent to it.
    users: Vec<Option<Instant>>,
    /// Its place in the order of eviction.
    place: (Class, Instant),
}

impl Entry {
    /// Who it makes room for, by what is known of it now.
    fn class(&self) -> Class {
        match (self.hardware, self.state) {
            (None, _) => Class::Unanswered,
            (Some(_), State::Stale) => Class::Unused,
            (Some(_), _) if self.users.iter().any(Option::is_some) => Class::Used,
            (Some(_), _) => Class::Unused,
        }
    }
}

/// All neighbours.
#[derive(Debug)]
pub(super) struct NeighbourMap {
    entries: HashMap<Ipv4Addr, Entry>,
    /// Which neighbours have which link-layer address.
    by_address: BTreeSet<(Gid, Qpn, Ipv4Addr)>,
    /// Who makes room first.
    order: BTreeSet<(Class, Instant, Ipv4Addr)>,
    /// New addresses asked for.
    new: Bucket,
    /// Requests by broadcast on others' behalf, of which nothing is remembered.
    asked: Bucket,
}

impl NeighbourMap {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            entries: HashMap::new(),
            by_address: BTreeSet::new(),
            order: BTreeSet::new(),
            new: Bucket::new(now, NEW_BURST, NEW_PER_SECOND),
            asked: Bucket::new(now, ASKED_BURST, ASKED_PER_SECOND),
        }
    }

    /// True if a neighbour's port has this GID.
    pub(super) fn uses_gid(&self, gid: Gid) -> bool {
        self.at_gid(gid).next().is_some()
    }

    /// The neighbours behind a port.
    fn at_gid(&self, gid: Gid) -> impl Iterator<Item = (Qpn, Ipv4Addr)> {
        let from = (gid, Qpn::new(0), Ipv4Addr::UNSPECIFIED);
        let to = (gid, Qpn::new(Qpn::MASK), Ipv4Addr::BROADCAST);
        self.by_address.range(from..=to).map(|(_, qpn, ip)| (*qpn, *ip))
    }

    /// The neighbours with this link-layer address.
    pub(super) fn at_address(&self, address: HardwareAddress) -> impl Iterator<Item = Ipv4Addr> {
        let from = (address.gid, address.qpn, Ipv4Addr::UNSPECIFIED);
        let to = (address.gid, address.qpn, Ipv4Addr::BROADCAST);
        self.by_address.range(from..=to).map(|(_, _, ip)| *ip)
    }

    /// True if `worker` sent to a neighbour with this address within `within` before `now`.
    pub(super) fn used_by(
        &self,
        address: HardwareAddress,
        worker: WorkerIndex,
        now: Instant,
        within: Duration,
    ) -> bool {
        self.at_address(address).any(|ip| {
            let used = self.entries.get(&ip).and_then(|e| *e.users.get(usize::from(worker.0))?);
            used.is_some_and(|t| now.duration_since(t) <= within)
        })
    }

    /// The flags that neighbours with this address have announced.
    pub(super) fn accepts_rc(&self, address: HardwareAddress) -> bool {
        self.at_address(address)
            .filter_map(|ip| self.entries.get(&ip)?.hardware)
            .any(|hardware| hardware.flags.has_rc())
    }

    /// Puts a neighbour where it belongs in the order of eviction, after anything about it has changed.
    fn place(&mut self, ip: Ipv4Addr) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        let now = (entry.class(), entry.last_used);
        let before = std::mem::replace(&mut entry.place, now);
        if before != now {
            self.order.remove(&(before.0, before.1, ip));
        }
        self.order.insert((now.0, now.1, ip));
    }
}

impl Link {
    /// Asks for the address of `ip` on behalf of `source`, an address that is reached by `worker`'s link-layer address:
    /// forwarding found no entry. Rate limited; the answer is an event and a publication.
    pub fn resolve(&mut self, now: Instant, worker: WorkerIndex, source: Ipv4Addr, ip: Ipv4Addr) {
        if !self.up || self.is_shutting_down() || !is_host(ip) || self.address(worker).is_none() {
            return;
        }
        if let Some(entry) = self.neighbours.entries.get_mut(&ip) {
            match entry.state {
                State::Incomplete { .. } | State::Failed => self.counters.resolve_limited += 1,
                State::Reachable | State::Stale | State::Probe { .. } => {
                    entry.source = (worker, source);
                    self.used(now, worker, ip);
                }
            }
            return;
        }
        if !self.neighbours.new.take(now) {
            self.counters.resolve_limited += 1;
            return;
        }
        if !self.make_room(now) {
            return;
        }
        self.enter(now, (worker, source), ip);
        if let Some(entry) = self.neighbours.entries.get_mut(&ip)
            && let Some(user) = entry.users.get_mut(usize::from(worker.0))
        {
            *user = Some(now);
        }
        self.timers.set(Timer::Neighbour(ip), now + RETRY);
        self.ask_all(worker, source, ip);
    }

    /// Sees to it that there is room for one more neighbour.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.neighbours.entries.len() < self.settings.max_neighbours {
            return true;
        }
        // Those without an address go first, then those that are out of use; who carries traffic stays.
        match self.neighbours.order.first().copied() {
            Some((Class::Unanswered | Class::Unused, _, ip)) => {
                self.counters.neighbours_evicted += 1;
                self.forget(now, ip, CloseReason::NeighbourGone);
                true
            }
            Some((Class::Used, ..)) | None => {
                self.counters.neighbours_full += 1;
                false
            }
        }
    }

    /// Takes an ARP packet that a worker received.
    pub fn handle_arp(&mut self, now: Instant, worker: WorkerIndex, from: &UdSource, packet: Arp) {
        self.counters.arp_received += 1;
        // Our own broadcasts come back to us.
        let deaf = !self.up || self.is_shutting_down();
        if deaf || self.is_own(packet.sender) || self.address(worker).is_none() {
            return;
        }
        if !is_host_address(packet.sender) || matches!(packet.operation, ArpOperation::Other(_)) {
            self.counters.arp_invalid += 1;
            return;
        }
        if is_host(packet.sender_ip) && self.neighbours.entries.contains_key(&packet.sender_ip) {
            self.learn(now, packet.sender_ip, packet.sender);
        }
        self.check_lid(packet.sender.gid, from.slid);
        self.events.push_back(Event::Arp(ReceivedArp { worker, packet, multicast: from.multicast }));
    }

    /// Sends an ARP reply: `ip` is at `worker`'s link-layer address. Whoever asked becomes a neighbour.
    pub fn reply(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        ip: Ipv4Addr,
        to: HardwareAddress,
        to_ip: Ipv4Addr,
    ) {
        let Some(own) = self.address(worker) else { return };
        if !self.up || self.is_shutting_down() || !is_host_address(to) || self.is_own(to) {
            return;
        }
        // A probe for a duplicate address (RFC 5227) has no sender address, and none is learned.
        if is_host(to_ip) {
            if !self.neighbours.entries.contains_key(&to_ip) && self.make_room(now) {
                self.enter(now, (worker, ip), to_ip);
            }
            if let Some(entry) = self.neighbours.entries.get_mut(&to_ip) {
                entry.source = (worker, ip);
                self.learn(now, to_ip, to);
            }
        }
        let packet =
            Arp { operation: ArpOperation::Reply, sender: own, sender_ip: ip, target: to, target_ip: to_ip };
        self.send_arp(now, worker, to.gid, to.qpn, packet);
    }

    /// Sends an ARP request for `target` by broadcast, from `source` at `worker`'s link-layer address, without any state. Rate limited.
    pub fn request(&mut self, now: Instant, worker: WorkerIndex, source: Ipv4Addr, target: Ipv4Addr) {
        if self.neighbours.asked.take(now) {
            self.ask_all(worker, source, target);
        } else {
            self.counters.requests_limited += 1;
        }
    }

    fn ask_all(&mut self, worker: WorkerIndex, source: Ipv4Addr, target: Ipv4Addr) {
        if let Some(packet) = self.arp_request(worker, source, target) {
            self.broadcast_arp(worker, &packet);
        }
    }

    /// Tells all that `ip` is at `worker`'s link-layer address: a gratuitous ARP request by broadcast.
    pub fn announce(&mut self, now: Instant, worker: WorkerIndex, ip: Ipv4Addr) {
        self.request(now, worker, ip, ip);
    }

    fn arp_request(&self, worker: WorkerIndex, source: Ipv4Addr, target: Ipv4Addr) -> Option<Arp> {
        Some(Arp::request(self.address(worker)?, source, target))
    }

    /// The address of a neighbour has been confirmed, or has changed. Accepted at once: the QPN of a peer is volatile
    /// (RFC 4391 9.1.1).
    fn learn(&mut self, now: Instant, ip: Ipv4Addr, hardware: HardwareAddress) {
        let Some(entry) = self.neighbours.entries.get_mut(&ip) else { return };
        let before = entry.hardware.replace(hardware);
        entry.state = State::Reachable;
        self.timers.set(Timer::Neighbour(ip), now + REACHABLE);
        match before {
            None => {
                entry.last_used = now;
                self.neighbours.by_address.insert((hardware.gid, hardware.qpn, ip));
                self.events.push_back(Event::NeighbourResolved { ip, hardware });
                self.dirty.insert(ip);
            }
            Some(old) if !old.is_same_as(hardware) => {
                self.neighbours.by_address.remove(&(old.gid, old.qpn, ip));
                self.neighbours.by_address.insert((hardware.gid, hardware.qpn, ip));
                self.events.push_back(Event::NeighbourChanged { ip, old, new: hardware });
                self.dirty.insert(ip);
                self.close_unneeded(now, old, CloseReason::AddressChanged);
                let same_port = old.qpn == hardware.qpn || old.gid.id() == hardware.gid.id();
                if old.gid != hardware.gid && same_port {
                    self.close_moved(now, old);
                }
                // Whoever got another queue pair may have got another LID too.
                self.refresh_path(hardware.gid);
            }
            Some(old) if old.flags != hardware.flags => {
                self.dirty.insert(ip);
                self.allow_dials(now, hardware);
                if !hardware.flags.has_rc() {
                    self.close_unneeded(now, hardware, CloseReason::AddressChanged);
                }
            }
            Some(_) => {}
        }
        self.neighbours.place(ip);
        self.want_path(now, hardware.gid);
        self.dial_users(now, ip);
    }

    /// Dials for every worker that sends to any neighbour: connected mode has begun.
    pub(super) fn dial_all(&mut self, now: Instant) {
        let all: Vec<_> = self.neighbours.entries.keys().copied().collect();
        for ip in all {
            self.dial_users(now, ip);
        }
    }

    /// Dials for each worker that sends to a neighbour.
    fn dial_users(&mut self, now: Instant, ip: Ipv4Addr) {
        let Some(entry) = self.neighbours.entries.get(&ip) else { return };
        let Some(hardware) = entry.hardware else { return };
        let users: Vec<_> = (0u8..)
            .zip(&entry.users)
            .filter(|(_, used)| used.is_some_and(|t| now.duration_since(t) <= REACHABLE))
            .map(|(worker, _)| WorkerIndex(worker))
            .collect();
        for worker in users {
            self.dial(now, hardware, worker);
        }
    }

    /// A worker sends to a neighbour.
    pub(super) fn used(&mut self, now: Instant, worker: WorkerIndex, ip: Ipv4Addr) {
        let Some(entry) = self.neighbours.entries.get_mut(&ip) else { return };
        let Some(user) = entry.users.get_mut(usize::from(worker.0)) else { return };
        *user = Some(now);
        entry.last_used = now;
        let stale = entry.state == State::Stale;
        if stale {
            entry.state = State::Probe { tries: 0 };
        }
        let hardware = entry.hardware;
        self.neighbours.place(ip);
        let Some(hardware) = hardware else { return };
        if stale {
            self.probe(now, ip);
        }
        self.want_path(now, hardware.gid);
        self.dial(now, hardware, worker);
    }

    /// A connection to an address failed or did not come into being: perhaps nobody is there any more, or somebody
    /// without connected mode. Asks once; without an answer the address is forgotten, and looked for anew when it is used.
    pub(super) fn suspect(&mut self, now: Instant, peer: HardwareAddress) {
        if self.is_shutting_down() {
            return;
        }
        let suspects: Vec<_> = self.neighbours.at_address(peer).collect();
        for ip in suspects {
            if let Some(entry) = self.neighbours.entries.get_mut(&ip)
                && matches!(entry.state, State::Reachable | State::Stale)
            {
                entry.state = State::Probe { tries: TRIES - 1 };
                self.probe(now, ip);
            }
        }
    }

    /// What was confirmed before this moment is to be confirmed again: soon, and not all at once.
    pub(super) fn doubt_neighbours(&mut self, now: Instant) {
        let known: Vec<_> = self
            .neighbours
            .entries
            .iter()
            .filter(|(_, entry)| entry.state == State::Reachable)
            .map(|(ip, _)| *ip)
            .collect();
        for ip in known {
            let delay = self.random.between(RETRY / 2, RETRY * 2);
            self.timers.set(Timer::Neighbour(ip), now + delay);
        }
    }

    /// In whose name to ask. An address that has become a neighbour's own is not ours to speak for any more: asking in its
    /// name would teach the link a wrong way to it, so that nobody's is used (RFC 5227 2.1.1).
    fn still_ours(&self, (worker, source): (WorkerIndex, Ipv4Addr)) -> (WorkerIndex, Ipv4Addr) {
        match self.neighbour_hardware(source) {
            None if self.speaks => (worker, source),
            _ => (worker, Ipv4Addr::UNSPECIFIED),
        }
    }

    /// Asks a neighbour by unicast whether it is still there.
    fn probe(&mut self, now: Instant, ip: Ipv4Addr) {
        let Some(entry) = self.neighbours.entries.get_mut(&ip) else { return };
        let (State::Probe { tries }, Some(hardware)) = (entry.state, entry.hardware) else { return };
        entry.state = State::Probe { tries: tries.saturating_add(1) };
        let source = entry.source;
        self.timers.set(Timer::Neighbour(ip), now + RETRY);
        let (worker, source) = self.still_ours(source);
        if let Some(packet) = self.arp_request(worker, source, ip) {
            self.send_arp(now, worker, hardware.gid, hardware.qpn, packet);
        }
    }

    /// The next step of a neighbour's ageing.
    pub(super) fn neighbour_timeout(&mut self, now: Instant, ip: Ipv4Addr) {
        let idle_limit = self.settings.neighbour_idle;
        let Some(entry) = self.neighbours.entries.get_mut(&ip) else { return };
        let idle = now.duration_since(entry.last_used);
        match entry.state {
            State::Incomplete { tries } if tries < TRIES && self.speaks => {
                entry.state = State::Incomplete { tries: tries + 1 };
                let source = entry.source;
                self.timers.set(Timer::Neighbour(ip), now + RETRY);
                let (worker, source) = self.still_ours(source);
                self.ask_all(worker, source, ip);
            }
            State::Incomplete { .. } => {
                entry.state = State::Failed;
                self.timers.set(Timer::Neighbour(ip), now + HOLD);
                self.counters.neighbours_failed += 1;
                self.events.push_back(Event::NeighbourUnreachable { ip });
            }
            State::Reachable if idle < REACHABLE => {
                entry.state = State::Probe { tries: 0 };
                self.probe(now, ip);
            }
            State::Reachable => {
                entry.state = State::Stale;
                self.timers.set(Timer::Neighbour(ip), now + idle_limit.saturating_sub(idle));
                self.neighbours.place(ip);
            }
            State::Stale if idle < idle_limit => {
                self.timers.set(Timer::Neighbour(ip), now + (idle_limit - idle));
            }
            State::Stale | State::Failed => self.forget(now, ip, CloseReason::NeighbourGone),
            State::Probe { tries } if tries < TRIES => self.probe(now, ip),
            State::Probe { .. } => {
                let gid = entry.hardware.map(|h| h.gid);
                self.counters.neighbours_failed += 1;
                self.events.push_back(Event::NeighbourUnreachable { ip });
                self.forget(now, ip, CloseReason::NeighbourGone);
                // Perhaps it has only moved to another LID.
                if let Some(gid) = gid {
                    self.refresh_path(gid);
                }
            }
        }
    }

    /// Somebody who knows, another gateway, told where a neighbour is: it is kept as one that nobody uses, with its path, and not
    /// asked for until somebody does. Then it is asked in nobody's name, so that nobody learns a wrong address for a host.
    pub fn handle_told(&mut self, now: Instant, ip: Ipv4Addr, hardware: HardwareAddress) {
        let deaf = !self.up || self.is_shutting_down();
        if deaf || self.is_own(hardware) || !is_host_address(hardware) || !is_host(ip) {
            return;
        }
        if !self.neighbours.entries.contains_key(&ip) && !self.make_room(now) {
            return;
        }
        self.enter(now, (WorkerIndex(0), Ipv4Addr::UNSPECIFIED), ip);
        self.learn(now, ip, hardware);
        let idle_limit = self.settings.neighbour_idle;
        if let Some(entry) = self.neighbours.entries.get_mut(&ip) {
            (entry.state, entry.last_used) = (State::Stale, now);
            entry.source = (WorkerIndex(0), Ipv4Addr::UNSPECIFIED);
            self.timers.set(Timer::Neighbour(ip), now + idle_limit);
        }
    }

    /// Drops a neighbour and what only it needed.
    fn forget(&mut self, now: Instant, ip: Ipv4Addr, reason: CloseReason) {
        let Some(entry) = self.neighbours.entries.remove(&ip) else { return };
        self.timers.cancel(Timer::Neighbour(ip));
        self.neighbours.order.remove(&(entry.place.0, entry.place.1, ip));
        if let Some(hardware) = entry.hardware {
            self.neighbours.by_address.remove(&(hardware.gid, hardware.qpn, ip));
            self.dirty.insert(ip);
            self.close_unneeded(now, hardware, reason);
        }
    }

    /// Drops all neighbours.
    pub(super) fn forget_all(&mut self, now: Instant, reason: CloseReason) {
        let all: Vec<_> = self.neighbours.entries.keys().copied().collect();
        for ip in all {
            self.forget(now, ip, reason);
        }
    }

    /// The path to a port is known, or another one. `moved`: what was sent the old way gets lost.
    pub(super) fn path_changed(&mut self, now: Instant, gid: Gid, moved: bool) {
        let behind: Vec<_> = self.neighbours.at_gid(gid).collect();
        for (qpn, ip) in behind {
            self.dirty.insert(ip);
            if moved {
                let address = HardwareAddress { flags: AddressFlags::NONE, qpn, gid };
                self.close_active(now, address, CloseReason::AddressChanged);
            }
            self.dial_users(now, ip);
        }
    }

    /// There is no path to a port: what is known of neighbours there is of no use.
    pub(super) fn path_failed(&mut self, now: Instant, gid: Gid) {
        if self.paths.get(gid).is_some() {
            return;
        }
        let behind: Vec<_> = self.neighbours.at_gid(gid).collect();
        for (_, ip) in behind {
            self.counters.neighbours_failed += 1;
            self.events.push_back(Event::NeighbourUnreachable { ip });
            self.forget(now, ip, CloseReason::NeighbourGone);
        }
    }

    /// Every entry of the table has to be made anew.
    pub(super) fn republish_all(&mut self) {
        let known = self.neighbours.entries.iter().filter(|(_, e)| e.hardware.is_some()).map(|(ip, _)| *ip);
        self.dirty.extend(known);
    }

    /// Entries of all neighbours with this address have to be made anew.
    pub(super) fn republish(&mut self, address: HardwareAddress) {
        self.dirty.extend(self.neighbours.at_address(address));
    }

    /// What workers shall know of a neighbour.
    pub(super) fn table_entry(&self, ip: Ipv4Addr) -> NeighbourChange {
        let known = self.neighbours.entries.get(&ip).and_then(|e| e.hardware);
        let Some(hardware) = known else { return NeighbourChange::Remove(ip) };
        let ud = match (self.paths.get(hardware.gid), self.qkey()) {
            (Some(path), Some(qkey)) => Some(self.ud_destination(path, hardware.qpn, qkey)),
            _ => None,
        };
        NeighbourChange::Set(Neighbour {
            ip,
            hardware,
            ud,
            rc: self.rc_paths(hardware),
            dial: self.settings.mode == Mode::Connected
                && hardware.flags.has_rc()
                && !self.is_shutting_down(),
        })
    }

    /// All neighbours.
    #[must_use]
    pub fn neighbours(&self, now: Instant) -> Vec<NeighbourInfo> {
        let mut all: Vec<_> = self
            .neighbours
            .entries
            .iter()
            .map(|(ip, e)| NeighbourInfo {
                ip: *ip,
                hardware: e.hardware,
                state: e.state.name(),
                dlid: e.hardware.and_then(|h| self.paths.get(h.gid)).map_or(0, |p| p.dlid.0),
                connections: e.hardware.map_or(0, |h| self.rc_paths(h).iter().flatten().count()),
                idle_ms: now.duration_since(e.last_used).as_millis() as u64,
            })
            .collect();
        all.sort_by_key(|n| n.ip);
        all
    }
}

/// What the owner of a link that stands for other hosts needs to know, and to say, of neighbours.
impl Link {
    /// The link-layer address of a neighbour that has answered.
    #[must_use]
    pub fn neighbour_hardware(&self, ip: Ipv4Addr) -> Option<HardwareAddress> {
        self.neighbours.entries.get(&ip)?.hardware
    }

    /// Asks a neighbour that has answered before whether it is still there: one request by unicast, in the name of
    /// `source` at `worker`'s link-layer address. Its ageing goes on as it would have.
    pub fn ask_neighbour(&mut self, now: Instant, worker: WorkerIndex, source: Ipv4Addr, ip: Ipv4Addr) {
        let Some(hardware) = self.neighbour_hardware(ip) else { return };
        if let Some(packet) = self.arp_request(worker, source, ip) {
            self.send_arp(now, worker, hardware.gid, hardware.qpn, packet);
        }
    }

    /// Takes a host for a neighbour that has told its address without having been asked. `source` and `worker` as for
    /// [`Link::resolve`].
    pub fn meet_neighbour(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: Ipv4Addr,
        hardware: HardwareAddress,
        ip: Ipv4Addr,
    ) {
        if !self.up || self.is_shutting_down() || !is_host_address(hardware) || self.is_own(hardware) {
            return;
        }
        if is_host(ip) && (self.neighbours.entries.contains_key(&ip) || self.make_room(now)) {
            self.enter(now, (worker, source), ip);
            self.learn(now, ip, hardware);
        }
    }

    /// An entry for a neighbour of which nothing is known, if there is none.
    fn enter(&mut self, now: Instant, source: (WorkerIndex, Ipv4Addr), ip: Ipv4Addr) {
        let users = vec![None; self.settings.workers.len()];
        let state = State::Incomplete { tries: 1 };
        let place = (Class::Unanswered, now);
        let entry = Entry { hardware: None, state, source, last_used: now, users, place };
        self.neighbours.entries.entry(ip).or_insert(entry);
        self.neighbours.place(ip);
    }

    /// Forgets a neighbour: its address belongs to somebody who is not on this link.
    pub fn forget_neighbour(&mut self, now: Instant, ip: Ipv4Addr) {
        self.forget(now, ip, CloseReason::NeighbourGone);
    }

    /// True while a connection of a worker's to a neighbour is being made.
    #[must_use]
    pub fn is_dialling(&self, ip: Ipv4Addr, worker: WorkerIndex) -> bool {
        let Some(peer) = self.neighbour_hardware(ip) else { return false };
        let dial = self.conns.dials.get(&(peer.qpn, peer.gid, worker));
        let conn = dial.and_then(|dial| self.conns.map.get(&dial.conn?));
        conn.is_some_and(|conn| conn.closing.is_none())
    }

    /// A neighbour at the other end of a connection.
    #[must_use]
    pub fn neighbour_behind(&self, qpn: Qpn) -> Option<Ipv4Addr> {
        let conn = self.conns.map.get(self.conns.by_qpn.get(&qpn)?)?;
        self.neighbours.at_address(conn.peer).next()
    }

    /// Where a datagram came from, if it came from a host of this subnet.
    #[must_use]
    pub fn way_back(&self, source: &UdSource) -> Option<UdDestination> {
        let av = AddressVector {
            dlid: source.slid,
            sl: source.sl,
            src_path_bits: 0,
            rate: Rate::default(),
            grh: None,
        };
        // Behind a GRH is another subnet, to which the source's LID is not the way.
        let qkey = self.qkey().filter(|_| self.up && !source.has_grh)?;
        Some(UdDestination { av, qpn: source.qpn, qkey })
    }
}

/// True if one host can have the address.
const fn is_host(ip: Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast() && !ip.is_loopback()
}

/// True if a host's interface can have the link-layer address.
fn is_host_address(address: HardwareAddress) -> bool {
    address.qpn.get() > Qpn::GSI.get()
        && address.qpn != Qpn::MULTICAST
        && !address.gid.is_multicast()
        && address.gid != Gid::ZERO
}
