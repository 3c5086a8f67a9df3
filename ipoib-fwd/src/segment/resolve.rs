//! Address resolution across the gateway: learning, asking, answering, on both sides. A request of one side becomes a
//! request on the other in the gateway's name; who asked is told when packets can go that way.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ib_wire::Lid;
use ib_wire::ipoib::Arp as InfiniBandArp;

use super::arp::{
    ArpMeaning, announcement_ethernet, answer_ethernet, ask_ethernet, check_ethernet, check_infiniband,
};
use super::fabric::{FIRST, Fabric, v4};
use super::hosts;
use super::limits::By;
use super::machine::Segment;
use super::output::{Arrival, Origin, Output, Packet};
use super::pair::Place;
use super::parked::Awaited;
use super::pending::{Claim, Lookup};
use ipoib::drop_reason::DropReason;
use ipoib::link::{Asker, WorkerIndex};
use ipoib::neighbour::{Event as HostEvent, Question};
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::{EthernetHeader, MacAddress};

const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// How long an Ethernet host's answer to an InfiniBand host waits for one of its own side, which is the better one:
/// a router that answers for everybody is quick.
pub(super) const OWN_SIDE_FIRST: Duration = Duration::from_millis(250);

impl<P: Packet> Segment<P> {
    pub(super) fn frame(&mut self, arp: &EthernetArp, to: MacAddress) {
        self.output(Output::Frame { worker: FIRST, bytes: arp.to_frame(to).to_vec() });
    }

    /// Does a step; what it came to is counted, and changes of hosts are told.
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

    /// Has one more address looked for on behalf of a host, unless that has many looked for at a time when there is little room.
    pub(super) fn take_lookup(&mut self, now: Instant, by: By, room: bool) -> Result<(), DropReason> {
        if self.limits.take_lookup(now, by, room) {
            return Ok(());
        }
        self.counters.limited += 1;
        Err(DropReason::NeighbourTableFull)
    }

    // -- the Ethernet side

    /// An ARP packet in a frame from Ethernet.
    pub fn handle_ethernet_arp(&mut self, now: Instant, fabric: &mut impl Fabric, frame: &[u8]) {
        self.take(now, fabric, |segment, fabric| segment.ethernet_arp(now, fabric, frame));
    }

    fn ethernet_arp(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        frame: &[u8],
    ) -> Result<(), DropReason> {
        let arp = EthernetArp::parse(frame)?;
        let meaning = check_ethernet(&arp, EthernetHeader::parse(frame)?.source, &self.own)?;
        let sender = IpAddr::V4(arp.sender_ip);
        if self.own.settings.is_gateway_mac(arp.sender_mac) {
            return Err(DropReason::PeerGateway);
        }
        if matches!(meaning, ArpMeaning::Probe { .. }) {
            return self.answer_ethernet_arp(now, fabric, &arp, meaning);
        }
        self.heard.note(sender);
        match self.hosts.get(sender) {
            // Who moves is the forwarder's to decide.
            None if fabric.hardware(sender).is_some() && !self.forwards() => {
                self.meanwhile.note(sender);
                return self.answer_ethernet_arp(now, fabric, &arp, meaning);
            }
            None if fabric.hardware(sender).is_some() => {
                return self.claim(now, fabric, sender, Claim::Ethernet(arp));
            }
            Some(mac) if mac != arp.sender_mac => self.doubt(now, &arp, mac)?,
            Some(mac) => self.confirm(now, fabric, sender, Place::Ethernet(mac)),
            None => {}
        }
        // Of two that answer, the first is asked as one that is known is.
        let before = self.lookups.get(&sender).and_then(|lookup| lookup.answer).map(|arp| arp.sender_mac);
        if let Some(mac) = before.filter(|mac| *mac != arp.sender_mac) {
            self.doubt(now, &arp, mac)?;
        }
        if let Some(lookup) = self.lookups.get_mut(&sender) {
            lookup.take(arp);
            return Ok(());
        }
        self.believe_ethernet(now, fabric, &arp, meaning)
    }

    /// Learns a sender who concerns us, and answers it.
    fn believe_ethernet(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &EthernetArp,
        meaning: ArpMeaning,
    ) -> Result<(), DropReason> {
        let sender = IpAddr::V4(arp.sender_ip);
        // Whoever talks to Ethernet hosts only is no concern of ours.
        let concerns_us = match meaning {
            ArpMeaning::Request { target } => self.hosts.get(IpAddr::V4(target)).is_none(),
            ArpMeaning::Reply | ArpMeaning::Announcement | ArpMeaning::Probe { .. } => false,
        };
        let known = self.hosts.contains(sender);
        if (known || concerns_us) && !self.hosts.learn(now, sender, arp.sender_mac, ()) {
            return Err(DropReason::NeighbourTableFull);
        }
        self.answer_ethernet_arp(now, fabric, arp, meaning)
    }

    pub(super) fn answer_ethernet_arp(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &EthernetArp,
        meaning: ArpMeaning,
    ) -> Result<(), DropReason> {
        if !self.forwards() && !meaning.asks_for(|target| self.own.owns(IpAddr::V4(target))) {
            return Ok(());
        }
        let (target, probe) = match meaning {
            ArpMeaning::Reply => return Ok(()),
            ArpMeaning::Announcement => {
                self.announce_to_infiniband(now, fabric, IpAddr::V4(arp.sender_ip));
                return Ok(());
            }
            ArpMeaning::Request { target } => (IpAddr::V4(target), false),
            ArpMeaning::Probe { target } => (IpAddr::V4(target), true),
        };
        let sender = IpAddr::V4(arp.sender_ip);
        // Who only wants to know whether an address is taken need not wait for the way to it. The link ages its
        // neighbours and asks them itself.
        let known = if probe { fabric.hardware(target).is_some() } else { fabric.has_way(target) };
        if self.own.owns(target) || (known && self.hosts.get(target).is_none()) {
            self.frame(&answer_ethernet(arp, self.own.mac()), arp.sender_mac);
            return Ok(());
        }
        // An Ethernet host hears the request, too.
        if self.hosts.get(target).is_some() {
            return Ok(());
        }
        if !self.ethernet_askers.is_asked(target) {
            let room = self.ethernet_askers.has_room();
            self.take_lookup(now, By::Ethernet(arp.sender_mac), room)?;
        }
        self.ethernet_askers.add(now, target, arp.sender_mac, sender);
        if !probe {
            fabric.resolve(now, self.worker_of(sender), sender, target);
        } else if self.limits.infiniband_requests.take(now) {
            // Whoever has the address answers, and that is told on.
            fabric.request(now, FIRST, NOBODY, target);
        } else {
            self.counters.limited += 1;
        }
        Ok(())
    }

    /// Answers all who asked for an InfiniBand host.
    pub(super) fn answer_ethernet_askers(&mut self, ip: IpAddr) {
        let askers = self.ethernet_askers.take(ip);
        self.tell_ethernet(ip, askers.into_iter().map(|a| (a.hardware, a.ip)));
    }

    /// Tells Ethernet hosts that an address is behind the gateway.
    fn tell_ethernet(&mut self, ip: IpAddr, askers: impl Iterator<Item = (MacAddress, IpAddr)>) {
        let Some(ip) = v4(ip) else { return };
        for (target_mac, target) in askers {
            let Some(target_ip) = v4(target) else { continue };
            let operation = ArpOperation::Reply;
            let arp =
                EthernetArp { operation, sender_mac: self.own.mac(), sender_ip: ip, target_mac, target_ip };
            self.frame(&arp, target_mac);
        }
    }

    /// Sends the requests that the table of Ethernet hosts wants, tells what it learnt.
    pub(super) fn take_host_events(&mut self, now: Instant, fabric: &mut impl Fabric) {
        while let Some(event) = self.hosts.poll_event() {
            match event {
                HostEvent::Set { ip, address: mac, .. } => {
                    self.output(Output::SetHost { ip, mac });
                    let worker = self.worker_of(ip);
                    for asker in self.infiniband_askers.take(ip) {
                        // An answer makes the asker a neighbour. Its address may be another host's by now.
                        let at = fabric.hardware(asker.ip);
                        let moved = at.is_some_and(|at| !at.is_same_as(asker.hardware.hardware));
                        if moved || self.hosts.get(asker.ip).is_some() {
                            continue;
                        }
                        fabric.reply(now, worker, ip, asker.hardware, asker.ip);
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
                }
            }
        }
        while let Some(probe) = self.hosts.poll_transmit() {
            if probe.to.is_none() && !self.may_ask_all(now, probe.ip) {
                // It is asked again in a second.
                self.counters.limited += 1;
                continue;
            }
            // Nobody but IPv4 hosts is learnt or asked for yet.
            if let Question::Arp { target, .. } = Question::new(NOBODY, probe.ip) {
                self.frame(&ask_ethernet(target, &self.own), probe.to.unwrap_or(MacAddress::BROADCAST));
            }
        }
    }

    /// True if all Ethernet hosts may be asked for one now. Whoever scans the network does not keep those from being found that are there.
    fn may_ask_all(&mut self, now: Instant, ip: IpAddr) -> bool {
        let returns = self.heard.has(ip) && self.limits.returning_requests.take(now);
        returns || self.limits.ethernet_requests.take(now)
    }

    /// Tells the Ethernet side that an InfiniBand host is behind the gateway: switches and hosts learn it.
    pub(super) fn announce_to_ethernet(&mut self, now: Instant, ip: IpAddr) {
        let Some(ip) = v4(ip) else { return };
        if self.limits.ethernet_announcements.take(now) {
            self.frame(&announcement_ethernet(ip, self.own.mac()), MacAddress::BROADCAST);
        } else {
            self.counters.limited += 1;
        }
    }

    // -- the InfiniBand side

    /// An ARP packet in a message from the fabric.
    pub fn handle_infiniband_arp(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arrival: &Arrival,
        message: &[u8],
    ) {
        self.take(now, fabric, |segment, fabric| segment.infiniband_arp(now, fabric, arrival, message));
    }

    fn infiniband_arp(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arrival: &Arrival,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let worker = arrival.worker;
        // Address resolution never travels by connection.
        let Some(Origin::Datagram(from)) = arrival.origin else { return Err(DropReason::BadArp) };
        let body = message.get(IPOIB_HEADER_LEN..).ok_or(DropReason::Truncated)?;
        let mut arp = InfiniBandArp::parse(body).map_err(|_| DropReason::BadArp)?;
        let meaning = check_infiniband(&arp, fabric.own_addresses(), &self.own)?;
        // Everybody sends it by the queue pair that the address names; the adapter says which it was.
        if arp.sender.qpn != from.qpn {
            return Err(DropReason::ForgedArp);
        }
        arp.sender = fabric.believed(&from, arp.sender);
        let sender = IpAddr::V4(arp.sender_ip);
        if self.own.settings.is_gateway_address(arp.sender) {
            return Err(DropReason::PeerGateway);
        }
        if !matches!(meaning, ArpMeaning::Probe { .. }) {
            match fabric.hardware(sender) {
                // Who moves is the forwarder's to decide.
                None if self.hosts.get(sender).is_some() && !self.forwards() => {
                    self.meanwhile.note(sender);
                    // Whom the link answers it takes for a neighbour.
                    return Ok(());
                }
                None if self.hosts.get(sender).is_some() => {
                    return self.claim(now, fabric, sender, Claim::InfiniBand { worker, from, arp });
                }
                Some(known) if !known.is_same_as(arp.sender) => {
                    self.doubt_infiniband(now, fabric, sender, [known, arp.sender])?;
                }
                Some(_) => self.confirm(now, fabric, sender, Place::InfiniBand(arp.sender)),
                None => {}
            }
            self.withdraw(now, fabric, worker, &arp);
            // The link learns the sender, and answers what it asked itself.
            fabric.hear(now, worker, &from, arp);
            let probers = self.ethernet_askers.take_probers(sender);
            self.tell_ethernet(sender, probers.into_iter().map(|a| (a.hardware, a.ip)));
        }
        self.answer_infiniband_arp(now, fabric, &arp, from.slid, meaning)
    }

    pub(super) fn answer_infiniband_arp(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &InfiniBandArp,
        lid: Lid,
        meaning: ArpMeaning,
    ) -> Result<(), DropReason> {
        if !self.forwards() && !meaning.asks_for(|target| self.own.owns(IpAddr::V4(target))) {
            return Ok(());
        }
        let target = match meaning {
            ArpMeaning::Reply => return Ok(()),
            ArpMeaning::Announcement => {
                self.announce_to_ethernet(now, IpAddr::V4(arp.sender_ip));
                return Ok(());
            }
            ArpMeaning::Request { target } | ArpMeaning::Probe { target } => IpAddr::V4(target),
        };
        let (to, asker) = (Asker { hardware: arp.sender, lid }, IpAddr::V4(arp.sender_ip));
        if self.own.owns(target) || self.hosts.get(target).is_some() {
            fabric.reply(now, self.worker_of(target), target, to, asker);
            return Ok(());
        }
        // An InfiniBand host hears the request, too.
        if fabric.hardware(target).is_some() {
            return Ok(());
        }
        let known = self.infiniband_askers.is_asked(target);
        if !known {
            let room = self.infiniband_askers.has_room() && hosts::has_room(&self.hosts);
            self.take_lookup(now, By::Lid(lid), room)?;
        }
        if let Some(gone) = self.infiniband_askers.add(now, target, to, asker) {
            // Nor is an answer believed for which its own side was not waited for.
            self.lookups.remove(&gone);
            if self.hosts.get(gone).is_none() {
                self.hosts.forget(gone);
            }
        }
        if !self.hosts.resolve(now, target, ()) {
            return Err(DropReason::NeighbourTableFull);
        }
        if !known {
            self.lookups.insert(target, Lookup { until: now + OWN_SIDE_FIRST, answer: None });
            // Its own side's answer goes to the asker only; this one comes to us.
            if self.limits.infiniband_requests.take(now) {
                fabric.request(now, FIRST, IpAddr::V4(self.own.asker()), target);
            } else {
                self.counters.limited += 1;
            }
        }
        Ok(())
    }

    /// A host that somebody of its own side asked for has been heard there: whoever answered for it on Ethernet is not
    /// believed.
    fn withdraw(&mut self, now: Instant, fabric: &mut impl Fabric, worker: WorkerIndex, arp: &InfiniBandArp) {
        let ip = IpAddr::V4(arp.sender_ip);
        let Some(lookup) = self.lookups.remove(&ip) else { return };
        self.counters.answers_withdrawn += u64::from(lookup.answer.is_some());
        self.infiniband_askers.take(ip);
        self.hosts.forget(ip);
        // So that a later answer from Ethernet is a claim.
        fabric.meet(now, worker, IpAddr::V4(self.own.asker()), arp.sender, ip);
    }

    /// Believes what Ethernet hosts answered for addresses that nobody on InfiniBand has.
    pub(super) fn settle_lookups(&mut self, now: Instant, fabric: &mut impl Fabric) {
        if self.lookups.values().all(|l| now < l.until) {
            return;
        }
        let mut answers = Vec::new();
        self.lookups.retain(|_, lookup| {
            let waits = now < lookup.until;
            answers.extend(lookup.answer.filter(|_| !waits));
            waits
        });
        for arp in answers {
            self.take(now, fabric, |segment, fabric| {
                let meaning = check_ethernet(&arp, arp.sender_mac, &segment.own)?;
                segment.believe_ethernet(now, fabric, &arp, meaning)
            });
        }
    }

    pub(super) fn announce_to_infiniband(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        if self.limits.infiniband_announcements.take(now) {
            fabric.announce(now, self.worker_of(ip), ip);
        } else {
            self.counters.limited += 1;
        }
    }
}
