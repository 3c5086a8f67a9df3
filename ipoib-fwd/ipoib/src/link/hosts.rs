//! A link's neighbours and all that hangs on them: who asks, who is told, which connections are wanted.

use std::net::Ipv4Addr;
use std::time::Instant;

use hca::{AddressVector, UdDestination, UdSource};
use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation, HardwareAddress};
use ib_wire::{Gid, Qpn, Rate};

use super::action::{Event, ReceivedArp};
use super::machine::Link;
use super::neighbours::*;
use super::settings::{Mode, WorkerIndex};
use super::statistics::{CloseReason, ConnectionInfo, NeighbourInfo};
use super::table::{Neighbour, NeighbourChange};
use super::timers::Timer;

impl Link {
    /// Asks for the address of `ip` on behalf of `source`, an address that is reached by `worker`'s link-layer address:
    /// forwarding found no entry. Rate limited; the answer is an event and a publication.
    pub fn resolve(&mut self, now: Instant, worker: WorkerIndex, source: Ipv4Addr, ip: Ipv4Addr) {
        if !self.ground.up
            || self.ground.is_shutting_down()
            || !is_host(ip)
            || self.ground.address(worker).is_none()
        {
            return;
        }
        if let Some(entry) = self.neighbours.entries.get_mut(&ip) {
            match entry.state {
                State::Incomplete { .. } | State::Failed => self.out.counters.resolve_limited += 1,
                State::Reachable | State::Stale | State::Probe { .. } => {
                    entry.source = (worker, source);
                    self.used(now, worker, ip);
                }
            }
            return;
        }
        if !self.neighbours.new.take(now) {
            self.out.counters.resolve_limited += 1;
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
        self.out.timers.set(Timer::Neighbour(ip), now + RETRY);
        self.ask_all(worker, source, ip);
    }

    /// Sees to it that there is room for one more neighbour.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.neighbours.entries.len() < self.ground.settings.max_neighbours {
            return true;
        }
        // Those without an address go first, then those that are out of use; who carries traffic stays.
        match self.neighbours.order.first().copied() {
            Some((Class::Unanswered | Class::Unused, _, ip)) => {
                self.out.counters.neighbours_evicted += 1;
                self.forget(now, ip, CloseReason::NeighbourGone);
                true
            }
            Some((Class::Used, ..)) | None => {
                self.out.counters.neighbours_full += 1;
                false
            }
        }
    }

    /// Takes an ARP packet that a worker received.
    pub fn handle_arp(&mut self, now: Instant, worker: WorkerIndex, from: &UdSource, packet: Arp) {
        self.out.counters.arp_received += 1;
        // Our own broadcasts come back to us.
        let deaf = !self.ground.up || self.ground.is_shutting_down();
        if deaf || self.ground.is_own(packet.sender) || self.ground.address(worker).is_none() {
            return;
        }
        if !is_host_address(packet.sender) || matches!(packet.operation, ArpOperation::Other(_)) {
            self.out.counters.arp_invalid += 1;
            return;
        }
        if is_host(packet.sender_ip) && self.neighbours.entries.contains_key(&packet.sender_ip) {
            self.learn(now, packet.sender_ip, packet.sender);
        }
        self.at_paths().check_lid(packet.sender.gid, from.slid);
        self.out.events.push_back(Event::Arp(ReceivedArp { worker, packet, multicast: from.multicast }));
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
        let Some(own) = self.ground.address(worker) else { return };
        if !self.ground.up || self.ground.is_shutting_down() || !is_host_address(to) || self.ground.is_own(to)
        {
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
        self.at_paths().send_arp(now, worker, to.gid, to.qpn, packet);
    }

    /// Sends an ARP request for `target` by broadcast, from `source` at `worker`'s link-layer address, without any state. Rate limited.
    pub fn request(&mut self, now: Instant, worker: WorkerIndex, source: Ipv4Addr, target: Ipv4Addr) {
        if self.neighbours.asked.take(now) {
            self.ask_all(worker, source, target);
        } else {
            self.out.counters.requests_limited += 1;
        }
    }

    fn ask_all(&mut self, worker: WorkerIndex, source: Ipv4Addr, target: Ipv4Addr) {
        if let Some(packet) = self.arp_request(worker, source, target) {
            self.at_paths().broadcast_arp(worker, &packet);
        }
    }

    /// Tells all that `ip` is at `worker`'s link-layer address: a gratuitous ARP request by broadcast.
    pub fn announce(&mut self, now: Instant, worker: WorkerIndex, ip: Ipv4Addr) {
        self.request(now, worker, ip, ip);
    }

    fn arp_request(&self, worker: WorkerIndex, source: Ipv4Addr, target: Ipv4Addr) -> Option<Arp> {
        Some(Arp::request(self.ground.address(worker)?, source, target))
    }

    /// The address of a neighbour has been confirmed, or has changed. Accepted at once: the QPN of a peer is volatile
    /// (RFC 4391 9.1.1).
    fn learn(&mut self, now: Instant, ip: Ipv4Addr, hardware: HardwareAddress) {
        let Some(entry) = self.neighbours.entries.get_mut(&ip) else { return };
        let before = entry.hardware.replace(hardware);
        entry.state = State::Reachable;
        self.out.timers.set(Timer::Neighbour(ip), now + REACHABLE);
        match before {
            None => {
                entry.last_used = now;
                self.neighbours.by_address.insert((hardware.gid, hardware.qpn, ip));
                self.out.events.push_back(Event::NeighbourResolved { ip, hardware });
                self.out.dirty.insert(ip);
            }
            Some(old) if !old.is_same_as(hardware) => {
                self.neighbours.by_address.remove(&(old.gid, old.qpn, ip));
                self.neighbours.by_address.insert((hardware.gid, hardware.qpn, ip));
                self.out.events.push_back(Event::NeighbourChanged { ip, old, new: hardware });
                self.out.dirty.insert(ip);
                self.close_unneeded(now, old, CloseReason::AddressChanged);
                let same_port = old.qpn == hardware.qpn || old.gid.id() == hardware.gid.id();
                if old.gid != hardware.gid && same_port {
                    self.close_moved(now, old);
                }
                // Whoever got another queue pair may have got another LID too.
                self.at_paths().refresh(hardware.gid);
            }
            Some(old) if old.flags != hardware.flags => {
                self.out.dirty.insert(ip);
                self.with_conns(now, |conns| conns.allow_dials(now, hardware));
                if !hardware.flags.has_rc() {
                    self.close_unneeded(now, hardware, CloseReason::AddressChanged);
                }
            }
            Some(_) => {}
        }
        self.neighbours.place(ip);
        self.at_paths().want(now, hardware.gid);
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
            self.with_conns(now, |conns| conns.dial(now, hardware, worker));
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
        self.at_paths().want(now, hardware.gid);
        self.with_conns(now, |conns| conns.dial(now, hardware, worker));
    }

    /// A connection to an address failed or did not come into being: perhaps nobody is there any more, or somebody
    /// without connected mode. Asks once; without an answer the address is forgotten, and looked for anew when it is used.
    pub(super) fn suspect(&mut self, now: Instant, peer: HardwareAddress) {
        if self.ground.is_shutting_down() {
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
            let delay = self.out.random.between(RETRY / 2, RETRY * 2);
            self.out.timers.set(Timer::Neighbour(ip), now + delay);
        }
    }

    /// In whose name to ask. An address that has become a neighbour's own is not ours to speak for any more: asking in its
    /// name would teach the link a wrong way to it, so that nobody's is used (RFC 5227 2.1.1).
    fn still_ours(&self, (worker, source): (WorkerIndex, Ipv4Addr)) -> (WorkerIndex, Ipv4Addr) {
        match self.neighbour_hardware(source) {
            None if self.ground.speaks => (worker, source),
            _ => (worker, Ipv4Addr::UNSPECIFIED),
        }
    }

    /// Asks a neighbour by unicast whether it is still there.
    fn probe(&mut self, now: Instant, ip: Ipv4Addr) {
        let Some(entry) = self.neighbours.entries.get_mut(&ip) else { return };
        let (State::Probe { tries }, Some(hardware)) = (entry.state, entry.hardware) else { return };
        entry.state = State::Probe { tries: tries.saturating_add(1) };
        let source = entry.source;
        self.out.timers.set(Timer::Neighbour(ip), now + RETRY);
        let (worker, source) = self.still_ours(source);
        if let Some(packet) = self.arp_request(worker, source, ip) {
            self.at_paths().send_arp(now, worker, hardware.gid, hardware.qpn, packet);
        }
    }

    /// The next step of a neighbour's ageing.
    pub(super) fn neighbour_timeout(&mut self, now: Instant, ip: Ipv4Addr) {
        let idle_limit = self.ground.settings.neighbour_idle;
        let Some(entry) = self.neighbours.entries.get_mut(&ip) else { return };
        let idle = now.duration_since(entry.last_used);
        match entry.state {
            State::Incomplete { tries } if tries < TRIES && self.ground.speaks => {
                entry.state = State::Incomplete { tries: tries + 1 };
                let source = entry.source;
                self.out.timers.set(Timer::Neighbour(ip), now + RETRY);
                let (worker, source) = self.still_ours(source);
                self.ask_all(worker, source, ip);
            }
            State::Incomplete { .. } => {
                entry.state = State::Failed;
                self.out.timers.set(Timer::Neighbour(ip), now + HOLD);
                self.out.counters.neighbours_failed += 1;
                self.out.events.push_back(Event::NeighbourUnreachable { ip });
            }
            State::Reachable if idle < REACHABLE => {
                entry.state = State::Probe { tries: 0 };
                self.probe(now, ip);
            }
            State::Reachable => {
                entry.state = State::Stale;
                self.out.timers.set(Timer::Neighbour(ip), now + idle_limit.saturating_sub(idle));
                self.neighbours.place(ip);
            }
            State::Stale if idle < idle_limit => {
                self.out.timers.set(Timer::Neighbour(ip), now + (idle_limit - idle));
            }
            State::Stale | State::Failed => self.forget(now, ip, CloseReason::NeighbourGone),
            State::Probe { tries } if tries < TRIES => self.probe(now, ip),
            State::Probe { .. } => {
                let gid = entry.hardware.map(|h| h.gid);
                self.out.counters.neighbours_failed += 1;
                self.out.events.push_back(Event::NeighbourUnreachable { ip });
                self.forget(now, ip, CloseReason::NeighbourGone);
                // Perhaps it has only moved to another LID.
                if let Some(gid) = gid {
                    self.at_paths().refresh(gid);
                }
            }
        }
    }

    /// Somebody who knows, another gateway, told where a neighbour is: it is kept as one that nobody uses, with its path, and not
    /// asked for until somebody does. Then it is asked in nobody's name, so that nobody learns a wrong address for a host.
    pub fn handle_told(&mut self, now: Instant, ip: Ipv4Addr, hardware: HardwareAddress) {
        let deaf = !self.ground.up || self.ground.is_shutting_down();
        if deaf || self.ground.is_own(hardware) || !is_host_address(hardware) || !is_host(ip) {
            return;
        }
        if !self.neighbours.entries.contains_key(&ip) && !self.make_room(now) {
            return;
        }
        self.enter(now, (WorkerIndex(0), Ipv4Addr::UNSPECIFIED), ip);
        self.learn(now, ip, hardware);
        let idle_limit = self.ground.settings.neighbour_idle;
        if let Some(entry) = self.neighbours.entries.get_mut(&ip) {
            (entry.state, entry.last_used) = (State::Stale, now);
            entry.source = (WorkerIndex(0), Ipv4Addr::UNSPECIFIED);
            self.out.timers.set(Timer::Neighbour(ip), now + idle_limit);
        }
    }

    /// Drops a neighbour and what only it needed.
    fn forget(&mut self, now: Instant, ip: Ipv4Addr, reason: CloseReason) {
        let Some(entry) = self.neighbours.entries.remove(&ip) else { return };
        self.out.timers.cancel(Timer::Neighbour(ip));
        self.neighbours.order.remove(&(entry.place.0, entry.place.1, ip));
        if let Some(hardware) = entry.hardware {
            self.neighbours.by_address.remove(&(hardware.gid, hardware.qpn, ip));
            self.out.dirty.insert(ip);
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
            self.out.dirty.insert(ip);
            if moved {
                let address = HardwareAddress { flags: AddressFlags::NONE, qpn, gid };
                self.with_conns(now, |conns| conns.close_active(now, address, CloseReason::AddressChanged));
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
            self.out.counters.neighbours_failed += 1;
            self.out.events.push_back(Event::NeighbourUnreachable { ip });
            self.forget(now, ip, CloseReason::NeighbourGone);
        }
    }

    /// Every entry of the table has to be made anew.
    pub(super) fn republish_all(&mut self) {
        let known = self.neighbours.entries.iter().filter(|(_, e)| e.hardware.is_some()).map(|(ip, _)| *ip);
        self.out.dirty.extend(known);
    }

    /// Entries of all neighbours with this address have to be made anew.
    pub(super) fn republish(&mut self, address: HardwareAddress) {
        self.out.dirty.extend(self.neighbours.at_address(address));
    }

    /// What workers shall know of a neighbour.
    pub(super) fn table_entry(&self, ip: Ipv4Addr) -> NeighbourChange {
        let known = self.neighbours.entries.get(&ip).and_then(|e| e.hardware);
        let Some(hardware) = known else { return NeighbourChange::Remove(ip) };
        let ud = match (self.paths.get(hardware.gid), self.groups.qkey()) {
            (Some(path), Some(qkey)) => Some(self.ground.ud_destination(path, hardware.qpn, qkey)),
            _ => None,
        };
        NeighbourChange::Set(Neighbour {
            ip,
            hardware,
            ud,
            rc: self.conns.rc_paths(&self.ground, hardware),
            dial: self.ground.settings.mode == Mode::Connected
                && hardware.flags.has_rc()
                && !self.ground.is_shutting_down(),
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
                connections: e
                    .hardware
                    .map_or(0, |h| self.conns.rc_paths(&self.ground, h).iter().flatten().count()),
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
            self.at_paths().send_arp(now, worker, hardware.gid, hardware.qpn, packet);
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
        if !self.ground.up
            || self.ground.is_shutting_down()
            || !is_host_address(hardware)
            || self.ground.is_own(hardware)
        {
            return;
        }
        if is_host(ip) && (self.neighbours.entries.contains_key(&ip) || self.make_room(now)) {
            self.enter(now, (worker, source), ip);
            self.learn(now, ip, hardware);
        }
    }

    /// An entry for a neighbour of which nothing is known, if there is none.
    fn enter(&mut self, now: Instant, source: (WorkerIndex, Ipv4Addr), ip: Ipv4Addr) {
        let users = vec![None; self.ground.settings.workers.len()];
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
        self.conns.is_dialling(peer, worker)
    }

    /// A neighbour at the other end of a connection.
    #[must_use]
    pub fn neighbour_behind(&self, qpn: Qpn) -> Option<Ipv4Addr> {
        self.neighbours.at_address(self.conns.behind(qpn)?).next()
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
        let qkey = self.groups.qkey().filter(|_| self.ground.up && !source.has_grh)?;
        Some(UdDestination { av, qpn: source.qpn, qkey })
    }
}

/// Connections, as far as they depend on neighbours.
impl Link {
    /// Closes the connections to an address that no neighbour with connected mode has any more.
    fn close_unneeded(&mut self, now: Instant, peer: HardwareAddress, reason: CloseReason) {
        if !self.neighbours.accepts_rc(peer) {
            self.with_conns(now, |conns| conns.forget_peer(now, peer, reason));
        }
    }

    /// Closes the connections that a port opened under an address that it no longer has.
    fn close_moved(&mut self, now: Instant, old: HardwareAddress) {
        if self.neighbours.at_address(old).next().is_none() {
            self.with_conns(now, |conns| conns.close_passive(now, old, CloseReason::AddressChanged));
        }
    }

    /// A peer may be dialled again.
    pub(super) fn dial_timeout(&mut self, now: Instant, (gid, qpn): (Gid, Qpn), worker: WorkerIndex) {
        let peer = HardwareAddress { flags: AddressFlags::RC, qpn, gid };
        if self.neighbours.accepts_rc(peer) && self.neighbours.used_by(peer, worker, now, REACHABLE) {
            self.with_conns(now, |conns| conns.dial(now, peer, worker));
        }
    }

    /// All connections.
    #[must_use]
    pub fn connections(&self, now: Instant) -> Vec<ConnectionInfo> {
        self.conns.list(now, |peer| self.neighbours.at_address(peer).next())
    }

    /// Tells in bulk what a worker has seen in use, about once a second: its passive queue pairs that received, and the
    /// neighbours that it sent to. The latter also at once, with a rate limit, where [`super::Neighbour::dial`] is set.
    pub fn handle_used(&mut self, now: Instant, worker: WorkerIndex, received: &[Qpn], sent: &[Ipv4Addr]) {
        self.with_conns(now, |conns| conns.received(now, received));
        for ip in sent {
            self.used(now, worker, *ip);
        }
    }
}
