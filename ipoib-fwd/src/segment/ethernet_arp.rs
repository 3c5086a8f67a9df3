//! ARP of the Ethernet side: carries out the actions of the table in [`ownership`](super::ownership).

use std::net::IpAddr;
use std::time::Instant;

use super::arp::{ArpMeaning, answer_ethernet, check_ethernet};
use super::fabric::{FIRST, Fabric};
use super::limits::{By, Payer};
use super::machine::Segment;
use super::names::NO_SENDER;
use super::output::Packet;
use super::ownership::{
    ArpKind, SenderAction, SenderKnowledge, TargetAction, TargetKnowledge, of_sender, of_target,
};
use super::pair::Place;
use super::pending::Claim;
use crate::forward::Side;
use ipoib::drop_reason::DropReason;
use ipoib::net::arp::EthernetArp;
use ipoib::net::ethernet::EthernetHeader;

impl<P: Packet> Segment<P> {
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
        let (sender, place) = (IpAddr::V4(arp.sender_ip), Place::Ethernet(arp.sender_mac));
        let checked = check_ethernet(&arp, EthernetHeader::parse(frame)?.source, &self.own);
        let mut known = self.sender_known(now, fabric, sender, place);
        self.note_sender(known);
        // A claim to the gateway's own address has no other meaning.
        let hostile = checked == Err(DropReason::HostileArp) && arp.sender_mac.is_unicast();
        let kind = match checked {
            Err(_) if hostile && known.is_own() => ArpKind::Announcement,
            checked => checked?.kind(),
        };
        if kind != ArpKind::Probe {
            self.heard.note(sender);
        }
        if let Ok(meaning) = checked
            && known != SenderKnowledge::PeerGateway
        {
            self.discover_heard(now, arp.sender_ip, meaning, By::Ethernet(arp.sender_mac));
        }
        if known == SenderKnowledge::AcrossUnproven
            && kind != ArpKind::Probe
            && self.discard_report(now, fabric, Side::Ethernet, sender)
        {
            known = SenderKnowledge::Discovered;
        }
        let claim = Claim::Ethernet(arp);
        match of_sender(kind, known, self.forwards()) {
            SenderAction::Report => return self.report_claim_to_own(now, fabric, place),
            SenderAction::ReportPeer => return self.report_own_address_of_peer(now, place),
            SenderAction::Drop => return Err(DropReason::PeerGateway),
            SenderAction::Refuse => return self.refuse(),
            SenderAction::AskOwner => {
                // It was waiting to be proven again, and this is an answer.
                self.lookups.remove(&sender);
                return self.claim(now, fabric, sender, claim);
            }
            SenderAction::Prove => {
                self.prove(now, fabric, sender, claim);
                return Ok(());
            }
            SenderAction::ProveAndAnnounce => self.prove_discovered(now, fabric, sender, claim),
            SenderAction::ServeAndProve => return self.serve_new_ethernet(now, fabric, &arp, checked?),
            SenderAction::Note => self.meanwhile.note(sender),
            SenderAction::Contest => self.contest(now, fabric, sender, place),
            SenderAction::Refute => {
                self.refute(now, sender, place);
                if self.hosts.contains(sender) && self.take_ethernet_answer(now, fabric, &arp)? {
                    return Ok(());
                }
            }
            SenderAction::Serve => {}
            SenderAction::Confirm => {
                self.confirm(now, fabric, sender, place);
                self.learn_ethernet(now, fabric, &arp)?;
            }
            SenderAction::Doubt => {
                let weighed = self.hosts.get(sender).map_or(Ok(()), |old| self.doubt(now, fabric, &arp, old));
                if weighed.is_ok() {
                    self.prove_again(now, fabric, Side::Ethernet, sender, kind == ArpKind::Announcement);
                }
                // The address is on this side in either case: an open claim is refused. A card that is not
                // proven is not announced for it.
                let believed =
                    if weighed.is_ok() { None } else { self.known_on(fabric, Side::Ethernet, sender) };
                self.confirm(now, fabric, sender, believed.unwrap_or(place));
                weighed?;
                self.learn_ethernet(now, fabric, &arp)?;
            }
            SenderAction::Take => {
                if self.take_ethernet_answer(now, fabric, &arp)? {
                    return Ok(());
                }
            }
        }
        self.answer_ethernet_arp(now, fabric, &arp, checked?)
    }

    /// Handles a host for which this side was queried. Returns true if it is learned, and served, only after
    /// the other side has stayed silent.
    fn take_ethernet_answer(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &EthernetArp,
    ) -> Result<bool, DropReason> {
        let sender = IpAddr::V4(arp.sender_ip);
        // If two hosts answer, the first one is queried like a known one.
        let lookup = self.lookups.get(&sender).copied();
        let before = lookup.and_then(|lookup| lookup.answer).map(|arp| arp.sender_mac);
        if let Some(mac) = before.filter(|mac| *mac != arp.sender_mac) {
            self.doubt(now, fabric, arp, mac)?;
        }
        for requester in self.infiniband_requesters.of(sender) {
            self.prove_infiniband_requester(now, fabric, requester.hardware, requester.ip);
        }
        if let Some(lookup) = self.lookups.get_mut(&sender) {
            lookup.take(now, *arp);
            lookup.announces |= arp.sender_ip == arp.target_ip;
            return Ok(true);
        }
        // A packet that waits for the host is sent, but the host is not announced or answered for before it
        // is proven.
        self.unproven.insert(sender, false);
        self.learn_ethernet(now, fabric, arp)?;
        Ok(false)
    }

    /// A known host was heard.
    fn learn_ethernet(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &EthernetArp,
    ) -> Result<(), DropReason> {
        let sender = IpAddr::V4(arp.sender_ip);
        if !self.hosts.learn(now, sender, arp.sender_mac, None) {
            return Err(DropReason::NeighbourTableFull);
        }
        self.note_name(fabric, Side::Ethernet, sender);
        // Hosts of its own side hear it themselves.
        self.ethernet_requesters.take(sender);
        if self.forwards() && self.unproven.contains_key(&sender) {
            self.query_own_side(now, fabric, Side::InfiniBand, sender);
        }
        // Hosts that only check whether the address is taken are answered at once, unless it is being proven.
        // If their own side cannot be queried, they have queried it themselves.
        if !self.lookups.contains_key(&sender) {
            for prober in self.infiniband_requesters.take_probers(sender) {
                fabric.answer(now, self.worker_of(sender), sender, prober.hardware, prober.ip);
            }
        }
        if self.is_proven(fabric, Side::Ethernet, sender) && !self.lookups.contains_key(&sender) {
            self.answer_infiniband_requesters(now, fabric, sender);
            self.introduce_proven(now, fabric, sender);
        }
        Ok(())
    }

    /// Serves a request of an unknown host, and proves the host if it concerns the gateway: hosts that talk
    /// to their own side only do not.
    fn serve_new_ethernet(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &EthernetArp,
        meaning: ArpMeaning,
    ) -> Result<(), DropReason> {
        let (sender, claim) = (IpAddr::V4(arp.sender_ip), Claim::Ethernet(*arp));
        let ArpMeaning::Request { target } = meaning else { return Ok(()) };
        let target = IpAddr::V4(target);
        let unknown = self.target_known(now, fabric, Side::Ethernet, target) == TargetKnowledge::Unknown;
        if unknown && self.name_for(now, fabric, Side::InfiniBand, target, None) == NO_SENDER {
            // The other side is queried in its name, once it is proven.
            self.prove(now, fabric, sender, claim);
            return Ok(());
        }
        self.answer_ethernet_arp(now, fabric, arp, meaning)?;
        if self.own.owns(target) || fabric.hardware(target).is_some() {
            self.prove(now, fabric, sender, claim.served());
        }
        Ok(())
    }

    pub(super) fn answer_ethernet_arp(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arp: &EthernetArp,
        meaning: ArpMeaning,
    ) -> Result<(), DropReason> {
        let sender = IpAddr::V4(arp.sender_ip);
        let by = By::Ethernet(arp.sender_mac);
        let target = match meaning {
            ArpMeaning::Reply => return Ok(()),
            ArpMeaning::Announcement => {
                if self.forwards() && self.is_proven(fabric, Side::Ethernet, sender) {
                    self.announce_to_infiniband(now, fabric, sender, by);
                } else {
                    self.announce_when_proven(sender, Side::Ethernet);
                }
                return Ok(());
            }
            ArpMeaning::Request { target } | ArpMeaning::Probe { target } => IpAddr::V4(target),
        };
        let probes = matches!(meaning, ArpMeaning::Probe { .. });
        if probes {
            self.names.note_probe(now, Place::Ethernet(arp.sender_mac), target);
        }
        let known = self.target_known(now, fabric, Side::Ethernet, target);
        let mut action = of_target(meaning.kind(), known, self.forwards());
        // Known, but without a path yet.
        if known == TargetKnowledge::AcrossFresh && action == TargetAction::Answer && !fabric.has_way(target)
        {
            action = TargetAction::LookUp;
        }
        if action == TargetAction::Answer && self.introductions.is_open(sender, target) {
            action = TargetAction::Wait;
        }
        match action {
            TargetAction::Answer => {
                self.frame(&answer_ethernet(arp, self.own.mac()), arp.sender_mac);
                return Ok(());
            }
            TargetAction::Ignore => return Ok(()),
            _ => {}
        }
        if !self.ethernet_requesters.is_requested(target) {
            let room = self.ethernet_requesters.has_room();
            self.take_lookup(now, Payer::Station(by), room)?;
        }
        self.ethernet_requesters.add(now, target, arp.sender_mac, sender);
        match action {
            TargetAction::AskOwner => {
                self.verify_infiniband(now, fabric, target, Some(sender));
            }
            TargetAction::AskOwnSide => {
                self.query_own_side(now, fabric, Side::Ethernet, target);
            }
            TargetAction::AskHere => self.verify_ethernet(now, target, None),
            TargetAction::LookUp if !probes => {
                self.seek_on_infiniband(now, fabric, target, Some((sender, arp.sender_mac)));
            }
            // The probe is forwarded, and so is its answer.
            TargetAction::LookUp if self.limits.probes.take(now) => {
                fabric.request(now, FIRST, NO_SENDER, target);
            }
            TargetAction::LookUp => self.counters.limited += 1,
            // It is found without a query in the requester's name.
            TargetAction::Wait if !probes && known == TargetKnowledge::Disputed => {
                if fabric.hardware(target).is_none() {
                    self.introduce(now, fabric, (sender, arp.sender_mac), target);
                }
            }
            TargetAction::Wait | TargetAction::Answer | TargetAction::Ignore => {}
        }
        Ok(())
    }
}
