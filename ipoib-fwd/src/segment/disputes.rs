//! Addresses that more than one host has: what a segment does of [`owners`](super::owners), who decides.

use std::net::IpAddr;
use std::time::Instant;

use super::arp::{ArpMeaning, ask_ethernet, check_ethernet, check_infiniband};
use super::fabric::{FIRST, Fabric, v4};
use super::machine::Segment;
use super::output::{Happening, Output, Packet};
use super::owners::{Answer, Belief, Card, Due, Step};
use super::pair::Place;
use super::pending::Claim;
use ib_wire::ipoib::AddressFlags;
use ipoib::drop_reason::DropReason;
use ipoib::link::HardwareAddress;
use ipoib::net::arp::EthernetArp;
use ipoib::net::ethernet::MacAddress;

impl<P: Packet> Segment<P> {
    /// A known Ethernet host is heard from another card than before.
    pub(super) fn doubt(
        &mut self,
        now: Instant,
        arp: &EthernetArp,
        old: MacAddress,
    ) -> Result<(), DropReason> {
        let ip = IpAddr::V4(arp.sender_ip);
        let belief = self.changes.hear(now, ip, Card::Ethernet(old), Card::Ethernet(arp.sender_mac));
        let (owner, claimant) = (Place::Ethernet(arp.sender_mac), Place::Ethernet(old));
        if self.weigh(ip, owner, claimant, belief)? {
            self.frame(&ask_ethernet(arp.sender_ip, &self.own), old);
        }
        Ok(())
    }

    /// A known InfiniBand host is heard from another port or queue pair than before; the old one is asked while it is still known.
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
            fabric.ask(now, FIRST, IpAddr::V4(self.own.asker()), ip);
        }
        Ok(())
    }

    /// Cards that another one has taken an address from are asked once more, and those that have kept theirs whether they are still
    /// there. Who is not is looked for anew.
    pub(super) fn ask_cards(&mut self, now: Instant, fabric: &mut impl Fabric) {
        let due = self.changes.handle_timeout(now);
        // Who stands by has nobody asked in its name.
        if !self.forwards() {
            return;
        }
        let asker = IpAddr::V4(self.own.asker());
        for (ip, due) in due {
            match due {
                Due::Ask(Card::Ethernet(mac)) => {
                    if let Some(ip) = v4(ip) {
                        self.frame(&ask_ethernet(ip, &self.own), mac);
                    }
                }
                Due::Ask(Card::InfiniBand(gid, qpn)) => {
                    let at = HardwareAddress { flags: AddressFlags::NONE, qpn, gid };
                    fabric.ask_at(now, FIRST, asker, ip, at);
                }
                Due::Verify(Card::Ethernet(mac)) if self.hosts.get(ip) == Some(mac) => {
                    self.hosts.verify(now, ip);
                }
                Due::Verify(Card::Ethernet(_)) => {}
                Due::Verify(Card::InfiniBand(gid, qpn)) => {
                    if fabric.hardware(ip).is_some_and(|at| (at.gid, at.qpn) == (gid, qpn)) {
                        fabric.verify(now, ip);
                    }
                }
            }
        }
        self.take_host_events(now, fabric);
    }

    /// Counts what another card of a side comes to; who is heard is the `owner` if it was that before, and who was believed meanwhile the
    /// `claimant`. True if the old one is to be asked.
    fn weigh(
        &mut self,
        ip: IpAddr,
        owner: Place,
        claimant: Place,
        belief: Belief,
    ) -> Result<bool, DropReason> {
        match belief {
            Belief::AskOld => return Ok(true),
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

    pub(super) fn claim(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        claim: Claim,
    ) -> Result<(), DropReason> {
        match self.owners.claim(now, ip, claim) {
            Answer::Ask => self.ask_owner(now, fabric, ip),
            Answer::Wait => {}
            Answer::Refused | Answer::Held => {
                self.counters.claims_dropped += 1;
                return Err(DropReason::AddressConflict);
            }
        }
        Ok(())
    }

    /// Asks the owner of an address by unicast whether it is still there.
    fn ask_owner(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        match (self.hosts.get(ip), v4(ip)) {
            (Some(mac), Some(ip)) => self.frame(&ask_ethernet(ip, &self.own), mac),
            _ => fabric.ask(now, FIRST, IpAddr::V4(self.own.asker()), ip),
        }
    }

    /// The owner of an address is heard: an open claim is refused, and the claimant's side told who has it (RFC 5227 2.4).
    pub(super) fn confirm(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr, owner: Place) {
        let Some(claim) = self.owners.confirm(now, ip) else { return };
        self.counters.conflicts += 1;
        self.output(Output::Happening(Happening::Conflict { ip, owner, claimant: claim.place() }));
        if !self.owners.may_defend(now, ip) {
            return;
        }
        match owner {
            Place::Ethernet(_) => self.announce_to_infiniband(now, fabric, ip),
            Place::InfiniBand(_) => self.announce_to_ethernet(now, ip),
        }
    }

    pub(super) fn settle_claims(&mut self, now: Instant, fabric: &mut impl Fabric) {
        for step in self.owners.handle_timeout(now) {
            match step {
                Step::Ask(ip) => self.ask_owner(now, fabric, ip),
                Step::Move { ip, claim, held } => {
                    let to = claim.place();
                    self.counters.moves += 1;
                    self.output(Output::Happening(Happening::AddressMoved { ip, to }));
                    if held {
                        self.counters.held_down += 1;
                        self.output(Output::Happening(Happening::HeldDown { ip, owner: to }));
                    }
                    self.take(now, fabric, |segment, fabric| segment.move_address(now, fabric, ip, claim));
                }
            }
        }
    }

    /// Moves an address to the side that claims it, tells the side that it left, and does what the claim asked for.
    fn move_address(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        ip: IpAddr,
        claim: Claim,
    ) -> Result<(), DropReason> {
        let meaning = match claim {
            Claim::Ethernet(arp) => {
                fabric.forget(now, ip);
                if !self.hosts.learn(now, ip, arp.sender_mac, ()) {
                    return Err(DropReason::NeighbourTableFull);
                }
                self.announce_to_infiniband(now, fabric, ip);
                check_ethernet(&arp, arp.sender_mac, &self.own)?
            }
            Claim::InfiniBand { worker, from, arp } => {
                self.hosts.forget(ip);
                self.take_host_events(now, fabric);
                fabric.meet(now, worker, IpAddr::V4(self.own.asker()), arp.sender, ip);
                fabric.hear(now, worker, &from, arp);
                self.announce_to_ethernet(now, ip);
                check_infiniband(&arp, fabric.own_addresses(), &self.own)?
            }
        };
        // An announcement has been carried on by now.
        match (claim, meaning) {
            (_, ArpMeaning::Announcement) => Ok(()),
            (Claim::Ethernet(arp), meaning) => self.answer_ethernet_arp(now, fabric, &arp, meaning),
            (Claim::InfiniBand { arp, from, .. }, meaning) => {
                self.answer_infiniband_arp(now, fabric, &arp, from.slid, meaning)
            }
        }
    }
}
