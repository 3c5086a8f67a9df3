//! A link's neighbours and the operations on them: queries, replies, reports of other gateways, and the
//! connections that they need.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use hca::UdSource;
use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation, HardwareAddress};
use ib_wire::{Gid, Lid, Qpn};

use super::action::{Asker, Event, ReceivedArp};
use super::machine::Link;
use super::neighbours::{NOBODY, REACHABLE, Source, Tag, is_host, is_host_address};
use super::paths::Reason;
use super::settings::{Mode, WorkerIndex};
use super::statistics::{CloseReason, ConnectionInfo, NeighbourInfo, PathInfo};
use super::table::{Neighbour, NeighbourChange};
use super::timers::Timer;
use crate::neighbour::{self, Gone, Question};

/// How long a connection stays after its neighbour has left the address. If only another host claims the
/// address, the neighbour contradicts the claim and keeps its connection: the owner of the table gives it
/// less time than this to answer.
pub const LEFT_GRACE: Duration = Duration::from_millis(1500);

impl Link {
    /// Resolves the address of `ip`, because forwarding found no entry.
    ///
    /// The query is sent on behalf of `source`, an address that is reached by `worker`'s link-layer address.
    /// Queries are rate limited. The result is an event and a publication.
    pub fn resolve(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: impl Into<IpAddr>,
        ip: impl Into<IpAddr>,
    ) {
        let (source, ip) = (source.into(), ip.into());
        if !self.ground.is_at_work() || !is_host(ip) || self.ground.address(worker).is_none() {
            return;
        }
        if self.neighbours.contains(ip) {
            match self.neighbours.get(ip) {
                Some(_) => {
                    self.set_source(now, ip, (worker, source));
                    self.used(now, worker, ip);
                }
                None => self.out.counters.resolve_limited += 1,
            }
            return;
        }
        if !self.is_spoken(source, ip) {
            return;
        }
        if !self.neighbours.may_query_new(now, ip) {
            self.out.counters.resolve_limited += 1;
            return;
        }
        let mut tag = Tag::new(now, (worker, source));
        tag.used(now, worker);
        self.neighbours.ageing().resolve(now, ip, tag);
        self.attend_neighbours(now, CloseReason::NeighbourGone);
    }

    /// True if the link can send queries for an address: only by ARP so far.
    fn is_spoken(&mut self, source: IpAddr, target: IpAddr) -> bool {
        match Question::new(source, target) {
            Question::Arp { .. } => true,
            Question::Nd { .. } => {
                self.out.counters.unspoken += 1;
                false
            }
        }
    }

    /// The sender's link-layer address, with the flags to believe, given the origin of its packet.
    ///
    /// If the packet came from another LID than the path leads to, another host may have sent it. The known
    /// flags of a neighbour at that address then stay in force until the path is confirmed, so that no
    /// neighbour loses connections by it.
    #[must_use]
    pub fn believed(&self, from: &UdSource, sender: HardwareAddress) -> HardwareAddress {
        let subnet = self.ground.port.subnet();
        let is_elsewhere = |path: &cm::Path| !subnet.is_same_port(path.dlid, from.slid);
        let elsewhere = self.paths.get(sender.gid).is_some_and(is_elsewhere);
        let known = elsewhere.then(|| self.neighbours.at_address(sender).next()).flatten();
        known.and_then(|ip| self.neighbours.get(ip)).unwrap_or(sender)
    }

    /// Handles an ARP packet that a worker received. A host sends it by the queue pair that its address names
    /// (RFC 4391 9.1).
    pub fn handle_arp(&mut self, now: Instant, worker: WorkerIndex, from: &UdSource, mut packet: Arp) {
        self.out.counters.arp_received += 1;
        // Our own broadcasts come back to us.
        let deaf = !self.ground.is_at_work();
        if deaf || self.ground.is_own(packet.sender) || self.ground.address(worker).is_none() {
            return;
        }
        let forged = !is_host_address(packet.sender) || packet.sender.qpn != from.qpn;
        if forged || matches!(packet.operation, ArpOperation::Other(_)) {
            self.out.counters.arp_invalid += 1;
            return;
        }
        packet.sender = self.believed(from, packet.sender);
        let sender = IpAddr::V4(packet.sender_ip);
        if is_host(sender) {
            self.neighbours.note_heard(sender);
        }
        if is_host(sender) && self.neighbours.contains(sender) {
            self.learn(now, sender, packet.sender, NOBODY, Reason::Named(from.slid));
        }
        self.at_paths().check_lid(packet.sender.gid, from.slid);
        let (lid, multicast) = (from.slid, from.multicast);
        self.out.events.push_back(Event::Arp(ReceivedArp { worker, packet, lid, multicast }));
    }

    /// Sends an ARP reply, and learns the requester as a neighbour: `ip` is at `worker`'s link-layer address.
    pub fn reply(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        ip: impl Into<IpAddr>,
        to: Asker,
        to_ip: impl Into<IpAddr>,
    ) {
        let (ip, requester) = (ip.into(), to_ip.into());
        let deaf = !self.ground.is_at_work() || self.ground.address(worker).is_none();
        if deaf || !is_host_address(to.hardware) || self.ground.is_own(to.hardware) {
            return;
        }
        // A probe for a duplicate address (RFC 5227) has no sender address, and none is learned.
        if is_host(requester) && requester.is_ipv4() && ip.is_ipv4() {
            self.set_source(now, requester, (worker, ip));
            self.learn(now, requester, to.hardware, (worker, ip), Reason::Named(to.lid));
        }
        self.answer(now, worker, ip, to, requester);
    }

    /// Sends an ARP reply and learns nothing from the request: it is not verified that the requester has the
    /// address that it claims. IPv6 is not supported.
    pub fn answer(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        ip: impl Into<IpAddr>,
        Asker { hardware: to, lid }: Asker,
        to_ip: impl Into<IpAddr>,
    ) {
        let Some(own) = self.ground.address(worker) else { return };
        let reason = Reason::Named(lid);
        if !self.ground.is_at_work() || !is_host_address(to) || self.ground.is_own(to) {
            return;
        }
        let (IpAddr::V4(ip), IpAddr::V4(to_ip)) = (ip.into(), to_ip.into()) else {
            self.out.counters.unspoken += 1;
            return;
        };
        let packet =
            Arp { operation: ArpOperation::Reply, sender: own, sender_ip: ip, target: to, target_ip: to_ip };
        self.at_paths().send_arp(now, worker, (to.gid, to.qpn), packet, reason);
    }

    /// Broadcasts a request for `target`, from `source` at `worker`'s link-layer address, without any state.
    /// Returns false if the rate limit drops it, or if the link cannot send.
    pub fn request(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: impl Into<IpAddr>,
        target: impl Into<IpAddr>,
    ) -> bool {
        if !self.neighbours.may_broadcast(now) {
            self.out.counters.requests_limited += 1;
            return false;
        }
        let can_send = self.ground.up && self.groups.broadcast_destination().is_some();
        self.send_query(now, (worker, source.into()), target.into(), None);
        can_send && self.ground.address(worker).is_some()
    }

    /// Announces that `ip` is at `worker`'s link-layer address: a gratuitous request by broadcast. Returns
    /// false as [`Self::request`] does.
    pub fn announce(&mut self, now: Instant, worker: WorkerIndex, ip: impl Into<IpAddr>) -> bool {
        let ip = ip.into();
        self.request(now, worker, ip, ip)
    }

    /// Sends a query for an address, to the host that is thought to have it or by broadcast. All queries are
    /// sent here, by the protocol of the address.
    pub(super) fn send_query(
        &mut self,
        now: Instant,
        (worker, source): Source,
        ip: IpAddr,
        to: Option<HardwareAddress>,
    ) {
        let Some(own) = self.ground.address(worker) else { return };
        match (Question::new(source, ip), to) {
            (Question::Arp { source, target }, Some(to)) => {
                let packet = Arp::request(own, source, target);
                self.at_paths().send_arp(now, worker, (to.gid, to.qpn), packet, Reason::Needed);
            }
            (Question::Arp { source, target }, None) => {
                self.at_paths().broadcast_arp(worker, &Arp::request(own, source, target));
            }
            (Question::Nd { .. }, _) => self.out.counters.unspoken += 1,
        }
    }

    pub(super) fn set_source(&mut self, now: Instant, ip: IpAddr, source: Source) {
        if let Some(tag) = self.neighbours.ageing().tag_mut(ip) {
            (tag.source, tag.named) = (source, now);
        }
    }

    /// Records the address of a neighbour, confirmed or changed. A change is accepted immediately: a peer's
    /// QPN is volatile (RFC 4391 9.1.1). An owner that needs to know whether the previous host still has the
    /// address must find out itself.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        ip: IpAddr,
        hardware: HardwareAddress,
        source: Source,
        reason: Reason,
    ) {
        // A queried neighbour is needed, whichever packet shows where it is.
        let queried = self.neighbours.contains(ip) && self.neighbours.get(ip).is_none();
        let reason = if queried { Reason::Needed } else { reason };
        let known = self.neighbours.ageing().learn(now, ip, hardware, Tag::new(now, source));
        self.attend_neighbours(now, CloseReason::NeighbourGone);
        if known {
            self.at_paths().want(now, hardware.gid, reason);
            self.dial_users(now, ip);
        }
    }

    /// Handles the events of the neighbour table: sends queries, reports, closes connections. `reason`: the
    /// close reason for connections to neighbours that are gone.
    pub(super) fn attend_neighbours(&mut self, now: Instant, reason: CloseReason) {
        while let Some(event) = self.neighbours.poll_event() {
            match event {
                neighbour::Event::Set { ip, address, before: None } => {
                    self.out.events.push_back(Event::NeighbourResolved { ip, hardware: address });
                    self.out.dirty.insert(ip);
                }
                neighbour::Event::Set { ip, address, before: Some(old) } => {
                    self.paths.set_spare(old.gid);
                    self.out.dirty.insert(ip);
                    self.readdressed(now, ip, old, address);
                }
                neighbour::Event::Failed { ip } => self.unreachable(ip),
                neighbour::Event::Gone { ip, address: Some(old), why } => {
                    self.paths.set_spare(old.gid);
                    self.out.dirty.insert(ip);
                    if why == Gone::Unanswered {
                        self.unreachable(ip);
                    }
                    self.close_unneeded(now, old, reason);
                    if why == Gone::Unanswered {
                        // It may only have moved to another LID.
                        self.at_paths().refresh(old.gid);
                    }
                }
                neighbour::Event::Gone { address: None, .. } => {}
            }
        }
        while let Some(probe) = self.neighbours.poll_transmit() {
            // The last query for a known neighbour is broadcast: its port may have another queue pair or LID.
            let is_last = probe.to.is_none() && self.neighbours.get(probe.ip).is_some();
            if is_last && !self.neighbours.may_broadcast(now) {
                self.out.counters.requests_limited += 1;
                self.neighbours.ageing().note_unsent(probe.ip);
                continue;
            }
            let tag = self.neighbours.tag(probe.ip).filter(|tag| !self.neighbours.is_worn(now, tag));
            let source = tag.map_or(NOBODY, |tag| tag.source);
            let source = self.still_ours(source);
            self.send_query(now, source, probe.ip, probe.to);
        }
        let counters = *self.neighbours.counters();
        self.out.counters.neighbours_full = counters.table_full;
        self.out.counters.neighbours_evicted =
            counters.evicted_unanswered + counters.evicted_unused + counters.evicted_share;
    }

    /// Handles a known neighbour's new address, or new flags.
    fn readdressed(&mut self, now: Instant, ip: IpAddr, old: HardwareAddress, new: HardwareAddress) {
        if old.is_same_as(new) {
            self.with_conns(now, |conns| conns.allow_dials(now, new));
            if !new.flags.has_rc() {
                self.close_unneeded(now, new, CloseReason::AddressChanged);
            }
            return;
        }
        self.out.events.push_back(Event::NeighbourChanged { ip, old, new });
        // Neither proves that it is the same port: queue pair numbers of many hosts are equal, and any host
        // can write a GID.
        let same_port = old.qpn == new.qpn || old.gid.id() == new.gid.id();
        let connected = self.conns.rc_paths(&self.ground, old).iter().any(Option::is_some);
        if connected {
            self.out.timers.set(Timer::Left(old.gid, old.qpn), now + LEFT_GRACE);
        } else {
            self.close_unneeded(now, old, CloseReason::AddressChanged);
        }
        if old.gid != new.gid && same_port {
            self.out.timers.set(Timer::Moved(old.gid, old.qpn), now + LEFT_GRACE);
        }
        // A host with another queue pair may have another LID, too.
        self.at_paths().refresh(new.gid);
    }

    fn unreachable(&mut self, ip: IpAddr) {
        self.out.counters.neighbours_failed += 1;
        self.out.events.push_back(Event::NeighbourUnreachable { ip });
    }

    /// Dials for every worker that sends to any neighbour: the mode has changed to connected.
    pub(super) fn dial_all(&mut self, now: Instant) {
        let all: Vec<_> = self.neighbours.known().collect();
        for ip in all {
            self.dial_users(now, ip);
        }
    }

    /// Dials for each worker that sends to a neighbour.
    fn dial_users(&mut self, now: Instant, ip: IpAddr) {
        let Some(hardware) = self.neighbours.get(ip) else { return };
        let Some(tag) = self.neighbours.tag(ip) else { return };
        let users: Vec<_> = tag.users(now, REACHABLE).collect();
        for worker in users {
            self.with_conns(now, |conns| conns.dial(now, hardware, worker));
        }
    }

    /// Records that a worker sends to a neighbour.
    pub(super) fn used(&mut self, now: Instant, worker: WorkerIndex, ip: IpAddr) {
        if self.ground.address(worker).is_none() {
            return;
        }
        let Some(tag) = self.neighbours.ageing().tag_mut(ip) else { return };
        tag.used(now, worker);
        self.neighbours.ageing().note_used(now, ip);
        self.attend_neighbours(now, CloseReason::NeighbourGone);
        let Some(hardware) = self.neighbours.get(ip) else { return };
        self.at_paths().want(now, hardware.gid, Reason::Needed);
        self.with_conns(now, |conns| conns.dial(now, hardware, worker));
    }

    /// Probes the neighbours at an address after a connection to it failed or was not established: perhaps
    /// the host is gone, or no longer has connected mode. Sends one query; without an answer the neighbour is
    /// forgotten, and resolved again when it is used.
    pub(super) fn suspect(&mut self, now: Instant, peer: HardwareAddress) {
        if self.ground.is_shutting_down() {
            return;
        }
        let suspects: Vec<_> = self.neighbours.at_address(peer).collect();
        for ip in suspects {
            self.neighbours.ageing().suspect(now, ip);
        }
        self.attend_neighbours(now, CloseReason::NeighbourGone);
    }

    /// Requires all neighbours to be confirmed again: soon, and not all at once.
    pub(super) fn doubt_neighbours(&mut self, now: Instant) {
        let random = &mut self.out.random;
        let (least, most) = (Duration::from_millis(500), Duration::from_secs(2));
        self.neighbours.ageing().doubt_all(now, || random.between(least, most));
    }

    /// The source to query from. An address that has become a neighbour's own no longer belongs to a host
    /// that we represent. A query from it would teach the link a wrong path to it, so the query is sent as a
    /// probe instead (RFC 5227 2.1.1).
    fn still_ours(&self, (worker, source): Source) -> Source {
        match self.neighbours.get(source) {
            None if self.ground.speaks => (worker, source),
            _ => (worker, NOBODY.1),
        }
    }

    /// Handles the deadlines of the neighbour table.
    pub(super) fn neighbours_timeout(&mut self, now: Instant) {
        let speaks = self.ground.speaks;
        let ageing = self.neighbours.ageing();
        ageing.insist(speaks);
        ageing.handle_timeout(now);
        self.attend_neighbours(now, CloseReason::NeighbourGone);
    }

    /// Records where a neighbour is, as reported by a trusted source: another gateway. The neighbour is kept
    /// as unused, with its path, and is not queried until a worker uses it. It is then queried by a probe
    /// without a source address, so that no host learns a wrong address.
    pub fn handle_told(&mut self, now: Instant, ip: impl Into<IpAddr>, hardware: HardwareAddress) {
        let ip = ip.into();
        let deaf = !self.ground.is_at_work();
        if deaf || self.ground.is_own(hardware) || !is_host_address(hardware) || !is_host(ip) {
            return;
        }
        self.neighbours.note_heard(ip);
        if self.neighbours.ageing().tell(now, ip, hardware, Tag::new(now, NOBODY)) {
            self.set_source(now, ip, NOBODY);
            self.attend_neighbours(now, CloseReason::NeighbourGone);
            self.at_paths().want(now, hardware.gid, Reason::Needed);
            self.dial_users(now, ip);
        } else {
            self.attend_neighbours(now, CloseReason::NeighbourGone);
        }
    }

    /// Drops all neighbours.
    pub(super) fn forget_all(&mut self, now: Instant, reason: CloseReason) {
        let all: Vec<_> = self.neighbours.iter().map(|info| info.ip).collect();
        for ip in all {
            self.neighbours.ageing().forget(ip);
            self.attend_neighbours(now, reason);
        }
    }

    /// Handles a new or changed path to a port. `moved`: packets sent on the old path are lost.
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

    /// Handles the lack of a path to a port: its neighbours cannot be reached and are forgotten.
    pub(super) fn path_failed(&mut self, now: Instant, gid: Gid) {
        let behind: Vec<_> = self.neighbours.at_gid(gid).collect();
        for (_, ip) in behind {
            self.unreachable(ip);
            self.neighbours.ageing().forget(ip);
            self.attend_neighbours(now, CloseReason::NeighbourGone);
        }
    }

    /// Marks every entry of the table for rebuilding.
    pub(super) fn republish_all(&mut self) {
        self.out.dirty.extend(self.neighbours.known());
    }

    /// Marks the entries of all neighbours with this address for rebuilding.
    pub(super) fn republish(&mut self, address: HardwareAddress) {
        self.out.dirty.extend(self.neighbours.at_address(address));
    }

    /// The table entry of a neighbour, for the workers.
    pub(super) fn table_entry(&self, ip: IpAddr) -> NeighbourChange {
        let Some(hardware) = self.neighbours.get(ip) else { return NeighbourChange::Remove(ip) };
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

    /// The number of neighbours.
    #[must_use]
    pub fn neighbour_count(&self) -> usize {
        self.neighbours.iter().count()
    }

    /// The path to a neighbour, with the connection of one worker.
    #[must_use]
    pub fn path_to(&self, ip: IpAddr, worker: WorkerIndex) -> Option<PathInfo> {
        let hardware = self.neighbours.get(ip)?;
        let dlid = self.paths.get(hardware.gid).map_or(Lid(0), |path| path.dlid);
        Some(PathInfo { hardware, dlid, connection: self.conns.opened(hardware, worker) })
    }

    /// All neighbours.
    #[must_use]
    pub fn neighbours(&self, now: Instant) -> Vec<NeighbourInfo> {
        self.neighbours_after(now, None, usize::MAX)
    }

    /// The first `most` neighbours after an address, in the order of their addresses.
    #[must_use]
    pub fn neighbours_after(&self, now: Instant, after: Option<IpAddr>, most: usize) -> Vec<NeighbourInfo> {
        let connections = |h| self.conns.rc_paths(&self.ground, h).iter().flatten().count();
        let next = self.neighbours.after(after, most).into_iter().map(|info| NeighbourInfo {
            ip: info.ip,
            hardware: info.address,
            state: info.state,
            dlid: info.address.and_then(|h| self.paths.get(h.gid)).map_or(0, |p| p.dlid.0),
            connections: info.address.map_or(0, connections),
            idle_ms: now.duration_since(info.since).as_millis() as u64,
        });
        next.collect()
    }
}

/// Connections that depend on neighbours.
impl Link {
    /// Closes the connections to an address that no neighbour with connected mode has.
    fn close_unneeded(&mut self, now: Instant, peer: HardwareAddress, reason: CloseReason) {
        if !self.neighbours.accepts_rc(peer) {
            self.with_conns(now, |conns| conns.forget_peer(now, peer, reason));
        }
    }

    /// Handles the end of the time in which a neighbour may come back to an address that it left.
    pub(super) fn left_timeout(&mut self, now: Instant, gid: Gid, qpn: Qpn) {
        let old = HardwareAddress { flags: AddressFlags::RC, qpn, gid };
        self.close_unneeded(now, old, CloseReason::AddressChanged);
    }

    /// Closes the connections that a port opened under an address that it left, if no neighbour has come back
    /// to it.
    pub(super) fn moved_timeout(&mut self, now: Instant, gid: Gid, qpn: Qpn) {
        let old = HardwareAddress { flags: AddressFlags::RC, qpn, gid };
        if self.neighbours.at_address(old).next().is_none() {
            self.with_conns(now, |conns| conns.close_passive(now, old, CloseReason::AddressChanged));
        }
    }

    /// Dials a peer whose back-off has ended, if it is still used.
    pub(super) fn dial_timeout(&mut self, now: Instant, (gid, qpn): (Gid, Qpn), worker: WorkerIndex) {
        let peer = HardwareAddress { flags: AddressFlags::RC, qpn, gid };
        if self.neighbours.accepts_rc(peer) && self.neighbours.used_by(peer, worker, now, REACHABLE) {
            self.with_conns(now, |conns| conns.dial(now, peer, worker));
        }
    }

    /// All connections.
    #[must_use]
    pub fn connections(&self, now: Instant) -> Vec<ConnectionInfo> {
        self.connections_after(now, 0, usize::MAX)
    }

    /// The connections after the one with `number`, at most `limit` of them; 0 is before the first.
    #[must_use]
    pub fn connections_after(&self, now: Instant, number: u64, limit: usize) -> Vec<ConnectionInfo> {
        self.conns.list(now, (number, limit), |peer| self.neighbours.at_address(peer).next())
    }

    /// The number of connections that carry packets: those that we opened, and those that peers opened.
    #[must_use]
    pub fn live_connections(&self) -> [usize; 2] {
        self.conns.live()
    }

    /// Reports in bulk the use that a worker has seen, about once a second: its passive queue pairs that
    /// received, and the neighbours that it sent to. If [`super::Neighbour::dial`] is set, the latter are
    /// also reported immediately, with a rate limit.
    pub fn handle_used(&mut self, now: Instant, worker: WorkerIndex, received: &[Qpn], sent: &[IpAddr]) {
        self.with_conns(now, |conns| conns.received(now, received));
        for ip in sent {
            self.used(now, worker, *ip);
        }
    }
}
