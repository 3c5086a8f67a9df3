//! Address resolution across the gateway: lookups, the queries and events of the table of Ethernet hosts, and
//! the resulting answers.
//!
//! A request of one side becomes a request on the other. No requester is answered before its own side has
//! stayed silent, too.

use std::net::IpAddr;
use std::time::Instant;

use ib_wire::ipoib::Arp as InfiniBandArp;

use super::arp::{ArpMeaning, announcement_ethernet, check_ethernet, request_ethernet};
use super::fabric::{FIRST, Fabric, v4};
use super::limits::{By, Payer};
use super::machine::Segment;
use super::names::NO_SENDER;
use super::output::{Output, Packet};
use super::parked::Awaited;
use super::pending::{Claim, Lookup};
use crate::forward::Side;
use ib_wire::ServiceLevel;
use ib_wire::ipoib::ArpOperation as InfiniBandOperation;
use ipoib::drop_reason::DropReason;
use ipoib::link::Asker;
use ipoib::neighbour::{Event as HostEvent, Gone};
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::MacAddress;
use pmd::hca::UdSource;

/// Maximum number of lookups at once.
const MOST: usize = 1024;

impl<P: Packet> Segment<P> {
    pub(super) fn frame(&mut self, arp: &EthernetArp, to: MacAddress) {
        self.output(Output::Frame { worker: FIRST, bytes: arp.to_frame(to).to_vec() });
    }

    /// Runs a step, counts its result and reports changes of hosts.
    pub(super) fn take<F: Fabric>(
        &mut self,
        now: Instant,
        fabric: &mut F,
        step: impl FnOnce(&mut Self, &mut F) -> Result<(), DropReason>,
    ) {
        if let Err(reason) = step(self, fabric) {
            self.drop(reason, 1);
        }
        self.take_host_events(now, fabric);
    }

    /// Takes a token for one more lookup on behalf of a host. Refuses if the host has many lookups in
    /// progress at a time when there is little room.
    pub(super) fn take_lookup(&mut self, now: Instant, payer: Payer, room: bool) -> Result<(), DropReason> {
        if self.limits.take_lookup(now, payer, room) {
            return Ok(());
        }
        self.counters.limited += 1;
        Err(DropReason::LookupLimited)
    }

    // -- queries

    /// Queries one Ethernet host, or all. Returns false if a query without a sender address would do harm.
    pub(super) fn query_ethernet_host(
        &mut self,
        now: Instant,
        fabric: &impl Fabric,
        ip: IpAddr,
        requester: Option<IpAddr>,
        to: MacAddress,
    ) -> bool {
        let name = self.name_for(now, fabric, Side::Ethernet, ip, requester);
        if let (Some(ip), Some(name)) =
            (v4(ip), v4(name).filter(|_| self.may_query_as(now, fabric, Side::Ethernet, ip, name)))
        {
            self.frame(&request_ethernet(ip, name, self.own.mac()), to);
            return true;
        }
        false
    }

    /// Queries all InfiniBand hosts and keeps nothing. Returns false as [`Self::query_ethernet_host`] does, and
    /// if the link's rate limit drops the request.
    pub(super) fn query_infiniband_hosts(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
    ) -> bool {
        let name = self.name_for(now, fabric, Side::InfiniBand, ip, None);
        self.may_query_as(now, fabric, Side::InfiniBand, ip, name)
            && fabric.request(now, self.worker_of_name(name), name, ip)
    }

    /// Queries a side for an address that a host of the other one claims and that no host is known to have.
    /// Uses no sender address if there is no other name: if a host starts up with that address there, it
    /// should learn of the conflict. Returns false if the request was not sent: then silence proves nothing.
    pub(super) fn search(&mut self, now: Instant, fabric: &mut impl Fabric, side: Side, ip: IpAddr) -> bool {
        let name = self.name_for(now, fabric, side, ip, None);
        match (side, v4(ip), v4(name)) {
            (Side::Ethernet, Some(ip), Some(name)) => {
                self.frame(&request_ethernet(ip, name, self.own.mac()), MacAddress::BROADCAST);
                true
            }
            (Side::InfiniBand, Some(_), Some(_)) => fabric.request(now, self.worker_of_name(name), name, ip),
            _ => false,
        }
    }

    /// Queries a side for an address, to prove that a host of the other side has it. Returns false if that is
    /// not possible now.
    pub(super) fn query_own_side(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        own: Side,
        ip: IpAddr,
    ) -> bool {
        if self.lookups.contains_key(&ip) {
            return true;
        }
        let is_reported = self.reported.is_to_be_proven(ip);
        if self.lookups.len() >= MOST || !self.limits.take_own_side(now, own.other(), is_reported) {
            self.counters.limited += 1;
            return false;
        }
        let sent = self.query_side(now, fabric, own, ip);
        if sent {
            self.lookups.insert(ip, Lookup::new(now, own));
        }
        sent
    }

    /// True if few addresses are looked up.
    pub(super) fn has_lookup_room(&self) -> bool {
        self.lookups.len() < MOST / 2
    }

    /// Queries all hosts of a side. Returns false if that is not possible now.
    fn query_side(&mut self, now: Instant, fabric: &mut impl Fabric, side: Side, ip: IpAddr) -> bool {
        match side {
            Side::Ethernet => self.query_ethernet_host(now, fabric, ip, None, MacAddress::BROADCAST),
            Side::InfiniBand => self.query_infiniband_hosts(now, fabric, ip),
        }
    }

    /// Sends the second query of lookups: the first one or its answer may be lost. If it cannot be sent,
    /// silence proves nothing, and the lookup is discarded.
    fn query_own_side_again(&mut self, now: Instant, fabric: &mut impl Fabric) {
        let due = self.lookups.iter().filter(|(_, lookup)| lookup.again.is_some_and(|at| at <= now));
        let due: Vec<_> = due.map(|(ip, lookup)| (*ip, lookup.own)).collect();
        for (ip, own) in due {
            let sent = self.query_side(now, fabric, own, ip);
            if let Some(lookup) = self.lookups.get_mut(&ip).filter(|_| sent) {
                lookup.query_repeated(now);
            } else {
                self.lookups.remove(&ip);
                self.counters.limited += 1;
            }
        }
    }

    /// Handles a host of a side with another hardware address, so it may not be the host that was proven. It
    /// is announced there after the other side has stayed silent.
    pub(super) fn prove_again(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        side: Side,
        ip: IpAddr,
        announces: bool,
    ) {
        if !self.forwards() {
            return;
        }
        self.unproven.entry(ip).or_insert(true);
        self.query_own_side(now, fabric, side.other(), ip);
        if let Some(lookup) = self.lookups.get_mut(&ip) {
            lookup.announces |= announces;
        }
    }

    /// Looks up a host on Ethernet on behalf of InfiniBand hosts, which are queried, too.
    pub(super) fn seek_on_ethernet(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        requester: Option<IpAddr>,
    ) -> Result<(), DropReason> {
        if !self.hosts.resolve(now, ip, requester) {
            return Err(DropReason::NeighbourTableFull);
        }
        if self.lookups.contains_key(&ip) {
            return Ok(());
        }
        // The answer of its own side goes to the requester only; this one comes to us.
        if self.lookups.len() >= MOST || !self.limits.infiniband_requests.take(now) {
            self.counters.limited += 1;
        } else if self.query_infiniband_hosts(now, fabric, ip) {
            self.lookups.insert(ip, Lookup::new(now, Side::InfiniBand));
        }
        Ok(())
    }

    /// Looks up a host on InfiniBand on behalf of an Ethernet host, which was heard at this hardware address.
    pub(super) fn seek_on_infiniband(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        requester: Option<(IpAddr, MacAddress)>,
    ) {
        let name =
            self.name_for(now, fabric, Side::InfiniBand, ip, requester.map(|(requester, _)| requester));
        if let Some(requester) = requester.filter(|(requester, _)| *requester != name || fabric.is_sought(ip))
            && fabric.hardware(ip).is_none()
        {
            self.introduce(now, fabric, requester, ip);
        }
        if self.may_query_as(now, fabric, Side::InfiniBand, ip, name) {
            fabric.resolve(now, self.worker_of_name(name), name, ip);
        }
    }

    /// Queries the owner of an address of InfiniBand, which is forgotten if it does not answer. Returns false
    /// if a query without a sender address would do harm.
    pub(super) fn verify_infiniband(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        requester: Option<IpAddr>,
    ) -> bool {
        let name = self.name_for(now, fabric, Side::InfiniBand, ip, requester);
        let may_ask = self.may_query_as(now, fabric, Side::InfiniBand, ip, name);
        if may_ask {
            fabric.verify(now, self.worker_of_name(name), name, ip);
        }
        may_ask
    }

    /// Queries the owner of an address of Ethernet in the same way.
    pub(super) fn verify_ethernet(&mut self, now: Instant, ip: IpAddr, requester: Option<IpAddr>) {
        if let Some(tag) = self.hosts.tag_mut(ip) {
            *tag = requester.or(*tag);
        }
        self.hosts.verify(now, ip);
    }

    // -- answers

    /// Answers all Ethernet hosts that requested an InfiniBand host. Hosts that probe are answered if it was
    /// heard since, and hosts that are being introduced to it are answered later.
    pub(super) fn answer_ethernet_requesters(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        let mut requesters = self.ethernet_requesters.take(ip);
        // Hosts that have heard it since have been answered.
        let early: Vec<_> = requesters.extract_if(.., |requester| requester.probes()).collect();
        for requester in requesters.extract_if(.., |requester| self.introductions.is_open(requester.ip, ip)) {
            self.ethernet_requesters.add(now, ip, requester.hardware, requester.ip);
        }
        self.announce_gateway_on_ethernet(ip, requesters.into_iter().map(|a| (a.hardware, a.ip)));
        for prober in &early {
            self.ethernet_requesters.add(now, ip, prober.hardware, prober.ip);
        }
        if !early.is_empty() {
            self.verify_infiniband(now, fabric, ip, None);
        }
    }

    /// Announces to Ethernet hosts that an address is behind the gateway.
    pub(super) fn announce_gateway_on_ethernet(
        &mut self,
        ip: IpAddr,
        requesters: impl Iterator<Item = (MacAddress, IpAddr)>,
    ) {
        let Some(ip) = v4(ip) else { return };
        for (target_mac, target) in requesters {
            let Some(target_ip) = v4(target) else { continue };
            let operation = ArpOperation::Reply;
            let arp =
                EthernetArp { operation, sender_mac: self.own.mac(), sender_ip: ip, target_mac, target_ip };
            self.frame(&arp, target_mac);
        }
    }

    /// Answers all InfiniBand hosts that requested an Ethernet host; those that probe, if it was heard since.
    pub(super) fn answer_infiniband_requesters(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
    ) {
        for requester in self.infiniband_requesters.take(ip) {
            let since = now.saturating_duration_since(requester.since);
            if requester.probes() && !self.hosts.is_confirmed(now, ip, since) {
                self.infiniband_requesters.add(now, ip, requester.hardware, requester.ip);
                self.verify_ethernet(now, ip, None);
                continue;
            }
            // Its address may be another host's by now.
            let at = fabric.hardware(requester.ip);
            let moved = at.is_some_and(|at| !at.is_same_as(requester.hardware.hardware));
            if !moved && self.hosts.get(requester.ip).is_none() {
                self.reply_infiniband(now, fabric, ip, requester.hardware, requester.ip);
            }
        }
    }

    /// Answers an InfiniBand host, and starts to prove it if it is not known: a proven one becomes, or stays,
    /// a neighbor.
    pub(super) fn reply_infiniband(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        to: Asker,
        requester: IpAddr,
    ) {
        let worker = self.worker_of(ip);
        if fabric.hardware(requester).is_some_and(|at| at.is_same_as(to.hardware)) {
            // A neighbor is queried later in the name in which it is answered, to which it must have a route.
            match (v4(ip), v4(requester)) {
                (Some(name), Some(host)) if !self.may_name(name, host) => {
                    fabric.answer(now, worker, ip, to, requester);
                }
                _ => fabric.reply(now, worker, ip, to, requester),
            }
            // It knows the Ethernet host from this answer.
            return self.introduced(now, fabric, ip, requester);
        }
        fabric.answer(now, worker, ip, to, requester);
        self.prove_infiniband_requester(now, fabric, to, requester);
    }

    /// Starts to prove an InfiniBand host that sent a request, if its address is not known.
    pub(super) fn prove_infiniband_requester(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        to: Asker,
        requester: IpAddr,
    ) {
        let Some(sender_ip) = v4(requester).filter(|ip| !ip.is_unspecified()) else { return };
        let request = InfiniBandArp::request(to.hardware, sender_ip, sender_ip);
        let arp =
            InfiniBandArp { operation: InfiniBandOperation::Reply, target_ip: self.own.asker(), ..request };
        let from = UdSource {
            qpn: to.hardware.qpn,
            slid: to.lid,
            sl: ServiceLevel::default(),
            dlid_path_bits: 0,
            pkey_index: 0,
            has_grh: true,
            multicast: true,
        };
        self.prove(now, fabric, requester, Claim::InfiniBand { worker: FIRST, from, arp });
    }

    /// Starts to prove Ethernet hosts that requested an InfiniBand host which has answered.
    pub(super) fn prove_ethernet_requesters(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        target: IpAddr,
    ) {
        for requester in self.ethernet_requesters.of(target) {
            let Some(sender_ip) = v4(requester.ip).filter(|ip| !ip.is_unspecified()) else { continue };
            let arp = EthernetArp {
                operation: ArpOperation::Reply,
                sender_mac: requester.hardware,
                sender_ip,
                target_mac: self.own.mac(),
                target_ip: self.own.asker(),
            };
            self.prove(now, fabric, requester.ip, Claim::Ethernet(arp));
        }
    }

    /// Sends the requests of the table of Ethernet hosts, and handles its events.
    pub(super) fn take_host_events(&mut self, now: Instant, fabric: &mut impl Fabric) {
        while let Some(event) = self.hosts.poll_event() {
            match event {
                HostEvent::Set { ip, address: mac, .. } => {
                    self.output(Output::SetHost { ip, mac });
                    if !self.unproven.contains_key(&ip) && !self.lookups.contains_key(&ip) {
                        self.answer_infiniband_requesters(now, fabric, ip);
                    }
                    for waiting in self.parked.take(Awaited::EthernetHost, ip) {
                        let (side, worker) = (waiting.arrival.side, waiting.arrival.worker);
                        self.output(Output::Release { side, worker, packet: waiting.packet });
                    }
                }
                HostEvent::Failed { ip } | HostEvent::Gone { ip, .. } => {
                    self.output(Output::RemoveHost { ip });
                    let waiting = self.parked.take(Awaited::EthernetHost, ip);
                    self.discard(waiting, DropReason::NeighbourUnresolved);
                    let silent =
                        matches!(event, HostEvent::Gone { address: Some(_), why: Gone::Unanswered, .. });
                    // Its own side requests it: perhaps it is on the other one now.
                    if silent && self.forwards() && self.ethernet_requesters.is_requested(ip) {
                        self.seek_on_infiniband(now, fabric, ip, None);
                    }
                }
            }
        }
        while let Some(probe) = self.hosts.poll_transmit() {
            if probe.to.is_none() && !self.may_query_all(now, probe.ip) {
                // The query is repeated in a second.
                self.counters.limited += 1;
                continue;
            }
            let requester = self.hosts.tag(probe.ip).copied().flatten();
            self.query_ethernet_host(
                now,
                fabric,
                probe.ip,
                requester,
                probe.to.unwrap_or(MacAddress::BROADCAST),
            );
        }
    }

    /// True if all Ethernet hosts may be queried for one now. A host that scans the network does not prevent
    /// hosts that have been heard from being found.
    fn may_query_all(&mut self, now: Instant, ip: IpAddr) -> bool {
        let returns = self.heard.has(ip) && self.limits.returning_requests.take(now);
        returns || self.limits.ethernet_requests.take(now)
    }

    /// Believes the answers for addresses that no host of the requester's own side has.
    pub(super) fn settle_lookups(&mut self, now: Instant, fabric: &mut impl Fabric) {
        if self.lookups.values().all(|l| now < l.due()) {
            return;
        }
        self.query_own_side_again(now, fabric);
        let mut silent = Vec::new();
        self.lookups.retain(|ip, lookup| {
            let waits = now < lookup.until;
            if !waits {
                silent.push((*ip, *lookup));
            }
            waits
        });
        for (ip, lookup) in silent {
            if let Some((arp, at)) = lookup.answer.zip(lookup.answered) {
                self.take(now, fabric, |segment, fabric| segment.believe_ethernet(now, fabric, &arp, at));
            }
            let across = lookup.own.other();
            let Some(place) = self.known_on(fabric, across, ip) else { continue };
            self.limits.note_proven(ip, place);
            let was_reported = self.reported.remove(ip);
            let is_new = self.unproven.remove(&ip) == Some(false) || lookup.answer.is_some();
            self.proven_at.insert(ip, now);
            self.note_name(fabric, across, ip);
            if across == Side::Ethernet {
                self.introduce_proven(now, fabric, ip);
            }
            if was_reported {
                self.discovery.skip(ip);
            }
            match across {
                // They are announced like hosts that were proven before this gateway started to forward.
                Side::Ethernet if was_reported => self.announcements.add(now, ip),
                Side::InfiniBand if was_reported => self.ethernet_announcements.add(now, ip),
                Side::Ethernet if is_new && !lookup.announces => self.announce_new(now, ip),
                _ if !lookup.announces => {}
                Side::Ethernet => self.announce_to_infiniband(now, fabric, ip, By::Beyond(ip)),
                Side::InfiniBand => self.announce_to_ethernet(now, ip, By::Beyond(ip)),
            }
            // A host that was not heard for some time may be gone: it is queried before its requesters are
            // answered.
            match (across, self.is_fresh(now, fabric, across, ip)) {
                (Side::Ethernet, true) => self.answer_infiniband_requesters(now, fabric, ip),
                (Side::Ethernet, false) => self.verify_ethernet(now, ip, None),
                (Side::InfiniBand, true) if fabric.has_way(ip) => {
                    self.answer_ethernet_requesters(now, fabric, ip);
                }
                (Side::InfiniBand, true) => {}
                (Side::InfiniBand, false) => {
                    self.verify_infiniband(now, fabric, ip, None);
                }
            }
        }
        self.take_host_events(now, fabric);
    }

    /// Learns an Ethernet host that has answered, and serves the request that it sent itself in the meantime.
    fn believe_ethernet(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &EthernetArp,
        at: Instant,
    ) -> Result<(), DropReason> {
        let meaning = check_ethernet(arp, arp.sender_mac, &self.own)?;
        let sender = IpAddr::V4(arp.sender_ip);
        if self.hosts.contains(sender) && !self.hosts.learn(now, sender, arp.sender_mac, None) {
            return Err(DropReason::NeighbourTableFull);
        }
        self.hosts.set_confirmed(sender, Some(at));
        if matches!(meaning, ArpMeaning::Announcement) {
            // The lookup has recorded it.
            return Ok(());
        }
        self.answer_ethernet_arp(now, fabric, arp, meaning)
    }

    // -- announcements

    /// Announces on Ethernet that an InfiniBand host is behind the gateway: switches and hosts learn it.
    pub(super) fn announce_to_ethernet(&mut self, now: Instant, ip: IpAddr, by: By) {
        let Some(ip) = v4(ip) else { return };
        if self.limits.take_announcement(now, Side::Ethernet, by) {
            self.frame(&announcement_ethernet(ip, self.own.mac()), MacAddress::BROADCAST);
        } else {
            self.counters.limited += 1;
        }
    }

    /// Announces on InfiniBand that an Ethernet host is behind the gateway.
    pub(super) fn announce_to_infiniband(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        by: By,
    ) {
        if !self.limits.take_announcement(now, Side::InfiniBand, by) {
            self.counters.limited += 1;
        } else if !fabric.announce(now, self.worker_of(ip), ip) {
            self.announce_later(now, ip);
        }
    }

    /// The link's rate limit has dropped an announcement: a known host is announced in the next round.
    pub(super) fn announce_later(&mut self, now: Instant, ip: IpAddr) {
        self.counters.limited += 1;
        if self.hosts.get(ip).is_some() {
            self.announcements.put_off(now, ip);
        }
    }

    /// A host of a side that is being proven announces itself: the announcement is forwarded afterwards.
    pub(super) fn announce_when_proven(&mut self, ip: IpAddr, side: Side) {
        if let Some(lookup) = self.lookups.get_mut(&ip).filter(|lookup| lookup.own != side) {
            lookup.announces = true;
        }
    }

    /// Announces a newly proven Ethernet host to InfiniBand hosts, which may know it at a queue pair that is
    /// gone, as after a restart.
    pub(super) fn announce_new(&mut self, now: Instant, ip: IpAddr) {
        if self.limits.new_hosts.take(now) {
            self.announcements.add(now, ip);
        } else {
            self.counters.limited += 1;
        }
    }

    /// The worker at whose link-layer address a name is known on InfiniBand.
    pub(super) fn worker_of_name(&self, name: IpAddr) -> ipoib::link::WorkerIndex {
        if name == NO_SENDER { FIRST } else { self.worker_of(name) }
    }
}
