//! Addresses that more than one host claims: the actions of a segment on the decisions of
//! [`owners`](super::owners).

use std::net::IpAddr;
use std::time::Instant;

use super::arp::{ArpMeaning, announcement_ethernet, check_ethernet, check_infiniband, request_ethernet};
use super::defence::DEFEND;
use super::fabric::{FIRST, Fabric, v4};
use super::knowledge::side_of;
use super::limits::By;
use super::machine::Segment;
use super::output::{Happening, Output, Packet};
use super::owners::{Answer, Belief, Card, Due, Step};
use super::pair::Place;
use super::pending::Claim;
use crate::forward::Side;
use ib_wire::ipoib::AddressFlags;
use ipoib::drop_reason::DropReason;
use ipoib::link::HardwareAddress;
use ipoib::net::arp::EthernetArp;
use ipoib::net::ethernet::MacAddress;

impl<P: Packet> Segment<P> {
    /// Handles a known Ethernet host that is heard from another card than before.
    pub(super) fn doubt(
        &mut self,
        now: Instant,
        fabric: &impl Fabric,
        arp: &EthernetArp,
        old: MacAddress,
    ) -> Result<(), DropReason> {
        let ip = IpAddr::V4(arp.sender_ip);
        let belief = self.changes.hear(now, ip, Card::Ethernet(old), Card::Ethernet(arp.sender_mac));
        let (owner, claimant) = (Place::Ethernet(arp.sender_mac), Place::Ethernet(old));
        if self.weigh(ip, owner, claimant, belief)? {
            self.query_ethernet_host(now, fabric, ip, None, old);
        }
        Ok(())
    }

    /// Handles a known InfiniBand host that is heard from another port or queue pair than before. Queries the
    /// old one while it is still known.
    pub(super) fn doubt_infiniband(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        [old, new]: [HardwareAddress; 2],
    ) -> Result<(), DropReason> {
        let card = |at: HardwareAddress| Card::InfiniBand(at.gid, at.qpn);
        let belief = self.changes.hear(now, ip, card(old), card(new));
        if self.weigh(ip, Place::InfiniBand(new), Place::InfiniBand(old), belief)? {
            let name = self.name_for(now, fabric, Side::InfiniBand, ip, None);
            fabric.ask(now, self.worker_of_name(name), name, ip);
        }
        Ok(())
    }

    /// Queries again the cards that lost an address to another one, and checks whether cards that kept theirs
    /// are still there. If one is gone, looks its address up again.
    pub(super) fn query_cards(&mut self, now: Instant, fabric: &mut impl Fabric) {
        let due = self.changes.handle_timeout(now);
        // A standby gateway does not query these cards.
        if !self.forwards() {
            return;
        }
        for (ip, due) in due {
            match due {
                Due::Query(Card::Ethernet(mac)) => {
                    self.query_ethernet_host(now, fabric, ip, None, mac);
                }
                Due::Query(Card::InfiniBand(gid, qpn)) => {
                    let at = HardwareAddress { flags: AddressFlags::NONE, qpn, gid };
                    let name = self.name_for(now, fabric, Side::InfiniBand, ip, None);
                    fabric.ask_at(now, self.worker_of_name(name), name, ip, at);
                }
                Due::Verify(Card::Ethernet(mac)) if self.hosts.get(ip) == Some(mac) => {
                    self.verify_ethernet(now, ip, None);
                }
                Due::Verify(Card::Ethernet(_)) => {}
                Due::Verify(Card::InfiniBand(gid, qpn)) => {
                    if fabric.hardware(ip).is_some_and(|at| (at.gid, at.qpn) == (gid, qpn)) {
                        self.verify_infiniband(now, fabric, ip, None);
                    }
                }
            }
        }
        self.take_host_events(now, fabric);
    }

    /// Counts the outcome of a claim by another card of a side. The heard card is the `owner` if it was the
    /// owner before; the card believed meanwhile is the `claimant`. True if the old one should be queried.
    fn weigh(
        &mut self,
        ip: IpAddr,
        owner: Place,
        claimant: Place,
        belief: Belief,
    ) -> Result<bool, DropReason> {
        match belief {
            Belief::QueryOld => return Ok(true),
            Belief::Keep => {
                self.counters.conflicts += 1;
                self.output(Output::Happening(Happening::Conflict { ip, owner, claimant }));
            }
            Belief::Refuse => {
                self.counters.claims_dropped += 1;
                return Err(DropReason::AddressConflict);
            }
        }
        Ok(false)
    }

    /// Counts a claim that was refused already.
    pub(super) const fn refuse(&mut self) -> Result<(), DropReason> {
        self.counters.claims_dropped += 1;
        Err(DropReason::AddressConflict)
    }

    /// Handles a claim to the gateway's own address: reports the hardware address and announces the own
    /// address on that side (RFC 5227 2.4).
    pub(super) fn report_claim_to_own(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        claimant: Place,
    ) -> Result<(), DropReason> {
        self.counters.own_address_claimed += 1;
        if let Some(defence) = self.own_defence.get_mut(side_of(claimant) as usize)
            && defence.defend(now, claimant)
        {
            self.defend_own(now, fabric, claimant);
        }
        Err(DropReason::HostileArp)
    }

    /// Reports another gateway that has the gateway's own address, at most once in [`DEFEND`] on each side. The own
    /// address is not defended: the other gateway would defend it as well, in turn without end.
    pub(super) fn report_own_address_of_peer(&mut self, now: Instant, peer: Place) -> Result<(), DropReason> {
        self.counters.own_address_claimed += 1;
        if let Some(ip) = self.own.address().map(IpAddr::V4)
            && let Some(last) = self.peer_reported.get_mut(side_of(peer) as usize)
            && last.is_none_or(|at| now.saturating_duration_since(at) >= DEFEND)
        {
            *last = Some(now);
            self.output(Output::Happening(Happening::OwnAddressOfPeer { ip, peer }));
        }
        Err(DropReason::HostileArp)
    }

    /// Defends the own address against claims within the interval after the last defense, once that interval
    /// is over.
    pub(super) fn defend_own_again(&mut self, now: Instant, fabric: &mut impl Fabric) {
        let due = self.own_defence.each_mut().map(|defence| defence.take_due(now));
        for claimant in due.into_iter().flatten() {
            self.defend_own(now, fabric, claimant);
        }
    }

    fn defend_own(&mut self, now: Instant, fabric: &mut impl Fabric, claimant: Place) {
        let Some(own) = self.own.address() else { return };
        self.output(Output::Happening(Happening::OwnAddressClaimed { ip: own.into(), claimant }));
        match claimant {
            Place::Ethernet(_) => {
                self.frame(&announcement_ethernet(own, self.own.mac()), MacAddress::BROADCAST)
            }
            Place::InfiniBand(_) => {
                fabric.announce(now, FIRST, own.into());
            }
        }
    }

    /// Starts to prove an address without a known owner: queries the other side for it.
    pub(super) fn prove(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr, claim: Claim) {
        if !self.forwards()
            || self.is_on(fabric, Side::Ethernet, ip)
            || self.is_on(fabric, Side::InfiniBand, ip)
        {
            return;
        }
        if self.owners.claimed(ip).is_none() && !self.limits.take_search(now, ip, claim.place(), claim.by()) {
            self.counters.limited += 1;
            return;
        }
        self.start_proof(now, fabric, ip, claim);
    }

    /// Queries the other side because of a claim to an address without a known owner.
    pub(super) fn start_proof(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr, claim: Claim) {
        if self.owners.claim(now, ip, claim, true) == Answer::Query
            && !self.search(now, fabric, claim.side().other(), ip)
        {
            self.give_up(ip);
        }
    }

    /// Discards a claim about which the other side could not be queried: its silence would prove nothing.
    fn give_up(&mut self, ip: IpAddr) {
        self.owners.give_up(ip);
        // The second round of discovery may find it again.
        self.discovery.take_found(ip);
        self.counters.limited += 1;
    }

    /// A frame of this segment was not sent. If it was a query, silence proves nothing: discards what waited
    /// for the answer.
    pub fn handle_unsent(&mut self, frame: &[u8]) {
        let Ok(arp) = EthernetArp::parse(frame) else { return };
        if arp.is_query() {
            self.hosts.note_unsent(arp.target_ip.into());
            self.give_up_queried(Side::Ethernet, arp.target_ip.into());
        }
    }

    /// A query to a side was not sent: discards what waits for the answer.
    pub(super) fn give_up_queried(&mut self, side: Side, ip: IpAddr) {
        // A claim of an Ethernet host causes a query on InfiniBand.
        let is_queried = self.owners.claimed(ip).is_some_and(|claim| claim.side().other() == side);
        if is_queried && self.owners.is_queried(ip) {
            self.give_up(ip);
        }
        if self.lookups.get(&ip).is_some_and(|lookup| lookup.own == side) {
            self.lookups.remove(&ip);
            self.counters.limited += 1;
        }
    }

    /// Hosts of both sides answer for an address that none of them is proven to have. Each side keeps its own
    /// host, and the gateway neither announces nor answers for the address.
    pub(super) fn contest(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr, heard: Place) {
        let answered = self.lookups.get(&ip).and_then(|lookup| lookup.answer);
        let other = match heard {
            Place::Ethernet(_) => fabric.hardware(ip).map(Place::InfiniBand),
            Place::InfiniBand(_) => {
                self.hosts.get(ip).or(answered.map(|arp| arp.sender_mac)).map(Place::Ethernet)
            }
        };
        self.counters.answers_withdrawn += 1;
        if let Some(claimant) = other {
            self.output(Output::Happening(Happening::Conflict { ip, owner: heard, claimant }));
        }
        self.lookups.remove(&ip);
        self.unproven.remove(&ip);
        self.reported.remove(ip);
        self.proven_at.remove(&ip);
        self.ethernet_requesters.take(ip);
        self.infiniband_requesters.take(ip);
        self.hosts.forget(ip);
        fabric.forget(now, ip);
        self.owners.contest(now, ip);
    }

    /// Refuses the claim of the other side to an address that an unknown host answers for. This does not
    /// prove the owner, so nothing is announced on the other side. If the host is sought, its answer is taken
    /// like any other.
    pub(super) fn refute(&mut self, now: Instant, ip: IpAddr, owner: Place) {
        if let Some(claim) = self.owners.confirm(now, ip) {
            self.counters.conflicts += 1;
            self.output(Output::Happening(Happening::Conflict { ip, owner, claimant: claim.place() }));
        }
    }

    pub(super) fn claim(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        claim: Claim,
    ) -> Result<(), DropReason> {
        match self.owners.claim(now, ip, claim, false) {
            Answer::Query => {
                if !self.query_owner(now, fabric, ip, claim.side().other()) {
                    self.give_up(ip);
                }
            }
            Answer::Wait => {}
            Answer::Refused | Answer::Held => return self.refuse(),
        }
        Ok(())
    }

    /// Queries the owner of an address by unicast, or its whole side if no host is known to have the address.
    /// Returns false if that side could not be queried.
    fn query_owner(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr, side: Side) -> bool {
        match (side, self.hosts.get(ip)) {
            _ if !self.is_on(fabric, side, ip) => return self.search(now, fabric, side, ip),
            // In any name: an owner that is not queried would lose its address.
            (Side::Ethernet, Some(mac)) => {
                let name = v4(self.name_for(now, fabric, side, ip, None));
                if let (Some(ip), Some(name)) = (v4(ip), name) {
                    self.frame(&request_ethernet(ip, name, self.own.mac()), mac);
                }
            }
            _ => {
                let name = self.name_for(now, fabric, Side::InfiniBand, ip, None);
                fabric.ask(now, self.worker_of_name(name), name, ip);
            }
        }
        true
    }

    /// The owner of an address is heard: refuses an open claim and announces the owner on the claimant's side
    /// (RFC 5227 2.4).
    pub(super) fn confirm(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr, owner: Place) {
        if let Some(claim) = self.owners.confirm(now, ip) {
            self.counters.conflicts += 1;
            self.output(Output::Happening(Happening::Conflict { ip, owner, claimant: claim.place() }));
        }
        // The owner is proven by this answer, or by a later one if the first came from a card that is not
        // proven.
        if self.owners.is_undefended(ip)
            && self.is_proven(fabric, side_of(owner), ip)
            && self.owners.may_defend(now, ip)
        {
            self.defend(now, fabric, ip);
        }
    }

    /// Announces a proven owner on the other side.
    fn defend(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        if self.is_proven(fabric, Side::Ethernet, ip) {
            self.announce_to_infiniband(now, fabric, ip, By::Beyond(ip));
        } else if self.is_proven(fabric, Side::InfiniBand, ip) {
            self.announce_to_ethernet(now, ip, By::Beyond(ip));
        }
    }

    pub(super) fn settle_claims(&mut self, now: Instant, fabric: &mut impl Fabric) {
        for step in self.owners.handle_timeout(now) {
            let (Step::Query { ip, .. }
            | Step::Move { ip, .. }
            | Step::Prove { ip, .. }
            | Step::Defend { ip }) = step;
            // The networks may have changed since the claim.
            if self.own.owns(ip) || !v4(ip).is_some_and(|ip| self.own.settings.is_on_link(ip)) {
                self.owners.discard(ip);
                continue;
            }
            match step {
                Step::Query { ip, last } => {
                    let Some(claim) = self.owners.claimed(ip) else { continue };
                    let side = claim.side().other();
                    // By unicast first, then the whole side, where the owner may have another hardware
                    // address.
                    let sent = if last {
                        self.search(now, fabric, side, ip)
                    } else {
                        self.query_owner(now, fabric, ip, side)
                    };
                    if !sent {
                        self.give_up(ip);
                    }
                }
                Step::Prove { ip, claim } => {
                    self.take(now, fabric, |segment, fabric| segment.proven(now, fabric, ip, claim));
                    self.note_learned(fabric, side_of(claim.place()), ip);
                    self.introduce_proven(now, fabric, ip);
                    self.answer_proven(now, fabric, ip);
                }
                Step::Defend { ip } => self.defend(now, fabric, ip),
                Step::Move { ip, claim, held } => {
                    let to = claim.place();
                    self.counters.moves += 1;
                    self.output(Output::Happening(Happening::AddressMoved { ip, to }));
                    if held {
                        self.counters.held_down += 1;
                        self.output(Output::Happening(Happening::HeldDown { ip, owner: to }));
                    }
                    self.take(now, fabric, |segment, fabric| segment.move_address(now, fabric, ip, claim));
                    self.note_learned(fabric, side_of(to), ip);
                }
            }
        }
    }

    /// Records where a host was learned, so that a flood of claims to unknown addresses does not delay it
    /// when it returns. A host that is not learned can be proven again at once: it has no tokens beyond those
    /// of unknown hosts.
    fn note_learned(&mut self, fabric: &impl Fabric, side: Side, ip: IpAddr) {
        if let Some(place) = self.known_on(fabric, side, ip) {
            self.limits.note_proven(ip, place);
        }
    }

    /// No host of the other side has an address: learns a host that sent a request, or forwards an
    /// announcement.
    fn proven(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        claim: Claim,
    ) -> Result<(), DropReason> {
        let side = side_of(claim.place());
        if self.is_on(fabric, side.other(), ip) {
            // Its owner was found in the meantime.
            return self.claim(now, fabric, ip, claim);
        }
        self.unproven.remove(&ip);
        self.proven_at.insert(ip, now);
        self.kept.note(now, ip);
        let discovered = self.discovery.take_found(ip);
        self.discovery.note_answer(ip);
        match claim {
            Claim::Ethernet(arp) => {
                let is_awaited = self.infiniband_requesters.is_requested(ip)
                    || self.hosts.contains(ip)
                    || self.introductions.is_source(ip);
                let wanted = !claim.announces() || is_awaited;
                if wanted && !self.hosts.learn(now, ip, arp.sender_mac, None) {
                    return Err(DropReason::NeighbourTableFull);
                }
                // It was heard before the other side was queried.
                self.hosts.set_confirmed(ip, None);
                self.note_name(fabric, side, ip);
                if discovered {
                    self.announce_discovered(now, fabric, ip, side);
                } else if claim.announces() {
                    self.announce_to_infiniband(now, fabric, ip, By::Ethernet(arp.sender_mac));
                }
                if claim.announces() {
                    return Ok(());
                }
                self.announce_new(now, ip);
                let meaning = check_ethernet(&arp, arp.sender_mac, &self.own)?;
                self.answer_ethernet_arp(now, fabric, &arp, meaning)
            }
            Claim::InfiniBand { from, arp, .. } => {
                let lid = from.slid;
                if !claim.announces() || self.ethernet_requesters.is_requested(ip) || fabric.is_sought(ip) {
                    let name = self.name_for(now, fabric, Side::InfiniBand, ip, None);
                    fabric.meet(now, self.worker_of_name(name), name, arp.sender, ip);
                }
                self.note_name(fabric, side, ip);
                if discovered {
                    self.announce_discovered(now, fabric, ip, side);
                } else if claim.announces() {
                    self.announce_to_ethernet(now, ip, By::Lid(lid));
                }
                if claim.announces() {
                    return Ok(());
                }
                let meaning = check_infiniband(&arp, fabric.own_addresses(), &self.own)?;
                self.answer_infiniband_arp(now, fabric, &arp, lid, meaning)
            }
        }
    }

    /// Answers hosts that requested an address while it was being proven.
    fn answer_proven(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        if self.lookups.contains_key(&ip) {
            return;
        }
        if self.is_proven(fabric, Side::Ethernet, ip) {
            self.answer_infiniband_requesters(now, fabric, ip);
        } else if self.is_proven(fabric, Side::InfiniBand, ip) {
            self.release_to_infiniband(now, fabric, ip);
        }
    }

    /// Moves an address to the side that claims it, announces it on the side that it left, and serves the
    /// claiming packet. A router may move with hundreds of addresses (VRRP): all of them are announced.
    fn move_address(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        claim: Claim,
    ) -> Result<(), DropReason> {
        self.unproven.remove(&ip);
        self.proven_at.remove(&ip);
        let meaning = match claim {
            Claim::Ethernet(arp) => {
                fabric.forget(now, ip);
                if !self.hosts.learn(now, ip, arp.sender_mac, None) {
                    return Err(DropReason::NeighbourTableFull);
                }
                self.hosts.set_confirmed(ip, None);
                self.announcements.add(now, ip);
                check_ethernet(&arp, arp.sender_mac, &self.own)?
            }
            Claim::InfiniBand { worker, from, arp } => {
                self.hosts.forget(ip);
                self.take_host_events(now, fabric);
                let name = self.name_for(now, fabric, Side::InfiniBand, ip, None);
                fabric.meet(now, self.worker_of_name(name), name, arp.sender, ip);
                fabric.hear(now, worker, &from, arp);
                self.ethernet_announcements.add(now, ip);
                check_infiniband(&arp, fabric.own_addresses(), &self.own)?
            }
        };
        // An announcement has been forwarded by now.
        match (claim, meaning) {
            (_, ArpMeaning::Announcement) => Ok(()),
            (Claim::Ethernet(arp), meaning) => self.answer_ethernet_arp(now, fabric, &arp, meaning),
            (Claim::InfiniBand { arp, from, .. }, meaning) => {
                self.answer_infiniband_arp(now, fabric, &arp, from.slid, meaning)
            }
        }
    }
}
