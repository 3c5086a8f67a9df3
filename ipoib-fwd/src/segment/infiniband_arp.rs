//! ARP of the InfiniBand side: carries out the actions of the table in [`ownership`](super::ownership).

use std::net::IpAddr;
use std::time::Instant;

use ib_wire::Lid;
use ib_wire::ipoib::Arp as InfiniBandArp;

use super::arp::{ArpMeaning, check_infiniband};
use super::fabric::Fabric;
use super::hosts;
use super::limits::{By, Payer};
use super::machine::Segment;
use super::names::NO_SENDER;
use super::output::{Arrival, Origin, Packet};
use super::ownership::{
    ArpKind, SenderAction, SenderKnowledge, TargetAction, TargetKnowledge, of_sender, of_target,
};
use super::pair::Place;
use super::pending::Claim;
use crate::forward::Side;
use ipoib::drop_reason::DropReason;
use ipoib::link::Asker;
use ipoib::net::IPOIB_HEADER_LEN;

impl<P: Packet> Segment<P> {
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
        let checked = check_infiniband(&arp, fabric.own_addresses(), &self.own);
        let (sender, forged) = (IpAddr::V4(arp.sender_ip), arp.sender.qpn != from.qpn);
        arp.sender = fabric.believed(&from, arp.sender);
        let place = Place::InfiniBand(arp.sender);
        let mut known = self.sender_known(now, fabric, sender, place);
        self.note_sender(known);
        let kind = match checked {
            Err(DropReason::HostileArp) if known.is_own() => ArpKind::Announcement,
            checked => checked?.kind(),
        };
        // All hosts send it from the queue pair that the address names; the adapter reports which one it was.
        if forged {
            return Err(DropReason::ForgedArp);
        }
        if let Ok(meaning) = checked
            && known != SenderKnowledge::PeerGateway
        {
            self.discover_heard(now, arp.sender_ip, meaning, By::Lid(from.slid));
        }
        if known == SenderKnowledge::AcrossUnproven
            && kind != ArpKind::Probe
            && self.discard_report(now, fabric, Side::InfiniBand, sender)
        {
            known = SenderKnowledge::Discovered;
        }
        let claim = Claim::InfiniBand { worker, from, arp };
        let action = of_sender(kind, known, self.forwards());
        // A host that refutes a claim, and is sought, is learned like any that answers, and must be proven.
        let learns = matches!(
            action,
            SenderAction::Confirm | SenderAction::Doubt | SenderAction::Take | SenderAction::Refute
        );
        match action {
            SenderAction::Report => return self.report_claim_to_own(now, fabric, place),
            SenderAction::ReportPeer => return self.report_own_address_of_peer(now, place),
            SenderAction::Drop => return Err(DropReason::PeerGateway),
            SenderAction::Refuse => return self.refuse(),
            SenderAction::AskOwner => {
                // It was waiting to be proven again, and this is an answer.
                self.lookups.remove(&sender);
                return self.claim(now, fabric, sender, claim);
            }
            SenderAction::Note => self.meanwhile.note(sender),
            SenderAction::Prove => self.prove(now, fabric, sender, claim),
            SenderAction::ProveAndAnnounce => self.prove_discovered(now, fabric, sender, claim),
            SenderAction::ServeAndProve => {}
            SenderAction::Contest => self.contest(now, fabric, sender, place),
            SenderAction::Refute => self.refute(now, sender, place),
            SenderAction::Serve => {}
            SenderAction::Confirm => self.confirm(now, fabric, sender, place),
            SenderAction::Doubt => {
                let old = fabric.hardware(sender);
                let weighed =
                    old.map_or(Ok(()), |old| self.doubt_infiniband(now, fabric, sender, [old, arp.sender]));
                if weighed.is_ok() {
                    self.prove_again(now, fabric, Side::InfiniBand, sender, kind == ArpKind::Announcement);
                }
                // Like on Ethernet.
                let believed =
                    if weighed.is_ok() { None } else { self.known_on(fabric, Side::InfiniBand, sender) };
                self.confirm(now, fabric, sender, believed.unwrap_or(place));
                weighed?;
            }
            SenderAction::Take => self.take_infiniband_answer(now, fabric, &arp, known),
        }
        // The link learns a sender that it seeks, so it must not see one that must not be learned.
        if kind != ArpKind::Probe && (learns || !fabric.is_sought(sender)) {
            let was_known = fabric.hardware(sender).is_some();
            fabric.hear(now, worker, &from, arp);
            // A claim of an unknown host proves nothing to hosts that probe; an answer to their probe does.
            if kind == ArpKind::Reply || fabric.hardware(sender).is_some() {
                self.infiniband_host_heard(now, fabric, sender, was_known);
            }
            if kind == ArpKind::Reply && fabric.hardware(sender).is_some_and(|at| at.is_same_as(arp.sender)) {
                self.introduced(now, fabric, IpAddr::V4(arp.target_ip), sender);
            }
        }
        if action == SenderAction::ServeAndProve {
            return self.serve_new_infiniband(now, fabric, claim, from.slid, checked?);
        }
        self.answer_infiniband_arp(now, fabric, &arp, from.slid, checked?)
    }

    /// Handles a host for which this side was queried.
    fn take_infiniband_answer(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &InfiniBandArp,
        known: SenderKnowledge,
    ) {
        let ip = IpAddr::V4(arp.sender_ip);
        if known != SenderKnowledge::SoughtAcross {
            return;
        }
        // Ethernet is queried again, and has the full time to answer.
        self.lookups.remove(&ip);
        self.infiniband_requesters.take(ip);
        self.hosts.forget(ip);
        self.unproven.insert(ip, false);
        let name = self.name_for(now, fabric, Side::InfiniBand, ip, None);
        fabric.meet(now, self.worker_of_name(name), name, arp.sender, ip);
    }

    /// The link has recorded a host.
    fn infiniband_host_heard(&mut self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr, was_known: bool) {
        // Hosts that only check whether an address is taken need not wait for the path to it.
        let probers = self.ethernet_requesters.take_probers(ip);
        self.announce_gateway_on_ethernet(ip, probers.into_iter().map(|a| (a.hardware, a.ip)));
        if fabric.hardware(ip).is_none() {
            return;
        }
        // Hosts of its own side hear it themselves.
        self.infiniband_requesters.take(ip);
        if !was_known {
            self.unproven.insert(ip, false);
            self.prove_ethernet_requesters(now, fabric, ip);
        }
        if self.forwards() && self.unproven.contains_key(&ip) {
            self.query_own_side(now, fabric, Side::Ethernet, ip);
        }
        self.note_name(fabric, Side::InfiniBand, ip);
        let proven = self.is_proven(fabric, Side::InfiniBand, ip) && !self.lookups.contains_key(&ip);
        if proven && fabric.has_way(ip) {
            self.answer_ethernet_requesters(now, fabric, ip);
        }
    }

    /// Serves a request of an unknown host. The host is proven when it is answered, or first if there is no
    /// other name to query in.
    fn serve_new_infiniband(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        claim: Claim,
        lid: Lid,
        meaning: ArpMeaning,
    ) -> Result<(), DropReason> {
        let (Claim::InfiniBand { arp, .. }, ArpMeaning::Request { target }) = (claim, meaning) else {
            return Ok(());
        };
        let target = IpAddr::V4(target);
        let unknown = self.target_known(now, fabric, Side::InfiniBand, target) == TargetKnowledge::Unknown;
        if unknown && self.name_for(now, fabric, Side::Ethernet, target, None) == NO_SENDER {
            self.prove(now, fabric, arp.sender_ip.into(), claim);
            return Ok(());
        }
        self.answer_infiniband_arp(now, fabric, &arp, lid, meaning)
    }

    /// Stops the link's search for an address for which a host probes: the next query without a sender
    /// address would make the host give it up.
    fn stop_search(&self, now: Instant, fabric: &mut impl Fabric, ip: IpAddr) {
        if fabric.is_sought(ip) && self.name_for(now, fabric, Side::InfiniBand, ip, None) == NO_SENDER {
            fabric.forget(now, ip);
        }
    }

    pub(super) fn answer_infiniband_arp(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &InfiniBandArp,
        lid: Lid,
        meaning: ArpMeaning,
    ) -> Result<(), DropReason> {
        let requester = IpAddr::V4(arp.sender_ip);
        let target = match meaning {
            ArpMeaning::Reply => return Ok(()),
            ArpMeaning::Announcement => {
                if self.forwards() && self.is_proven(fabric, Side::InfiniBand, requester) {
                    self.announce_to_ethernet(now, requester, By::Lid(lid));
                } else {
                    self.announce_when_proven(requester, Side::InfiniBand);
                }
                return Ok(());
            }
            ArpMeaning::Request { target } | ArpMeaning::Probe { target } => IpAddr::V4(target),
        };
        if matches!(meaning, ArpMeaning::Probe { .. }) {
            self.names.note_probe(now, Place::InfiniBand(arp.sender), target);
            self.stop_search(now, fabric, target);
        }
        let to = Asker { hardware: arp.sender, lid };
        let known = self.target_known(now, fabric, Side::InfiniBand, target);
        let action = of_target(meaning.kind(), known, self.forwards());
        match action {
            TargetAction::Answer => {
                self.reply_infiniband(now, fabric, target, to, requester);
                return Ok(());
            }
            TargetAction::Ignore => return Ok(()),
            _ => {}
        }
        if !self.infiniband_requesters.is_requested(target) {
            let room = self.infiniband_requesters.has_room() && hosts::has_room(&self.hosts);
            self.take_lookup(now, Payer::Station(By::Lid(lid)), room)?;
        }
        if let Some(gone) = self.infiniband_requesters.add(now, target, to, requester) {
            // An answer is not believed either if its own side had no time to answer.
            self.lookups.remove(&gone);
            if self.hosts.get(gone).is_none() {
                self.hosts.forget(gone);
            }
        }
        match action {
            TargetAction::AskOwner => self.verify_ethernet(now, target, Some(requester)),
            TargetAction::AskOwnSide => {
                self.query_own_side(now, fabric, Side::InfiniBand, target);
            }
            TargetAction::AskHere => {
                self.verify_infiniband(now, fabric, target, None);
            }
            TargetAction::LookUp => self.seek_on_ethernet(now, fabric, target, Some(requester))?,
            TargetAction::Wait | TargetAction::Answer | TargetAction::Ignore => {}
        }
        Ok(())
    }
}
