//! Classification of the addresses in an ARP packet: the columns of [`ownership`](super::ownership).

use std::net::IpAddr;
use std::time::Instant;

use super::arp::ArpMeaning;
use super::fabric::Fabric;
use super::machine::Segment;
use super::output::Packet;
use super::ownership::{ArpKind, FRESH, LATE, SenderKnowledge, TargetKnowledge};
use super::pair::Place;
use crate::forward::Side;

impl ArpMeaning {
    /// The kind of the packet, for the table.
    pub(super) const fn kind(self) -> ArpKind {
        match self {
            Self::Request { .. } => ArpKind::Request,
            Self::Probe { .. } => ArpKind::Probe,
            Self::Reply => ArpKind::Reply,
            Self::Announcement => ArpKind::Announcement,
        }
    }
}

impl<P: Packet> Segment<P> {
    /// Where an address is known to be on a side.
    pub(super) fn known_on(&self, fabric: &impl Fabric, side: Side, ip: IpAddr) -> Option<Place> {
        match side {
            Side::Ethernet => self.hosts.get(ip).map(Place::Ethernet),
            Side::InfiniBand => fabric.hardware(ip).map(Place::InfiniBand),
        }
    }

    /// True if an address is known to be on a side.
    pub(super) fn is_on(&self, fabric: &impl Fabric, side: Side, ip: IpAddr) -> bool {
        self.known_on(fabric, side, ip).is_some()
    }

    /// True if a host was heard on a side a short time ago.
    pub(super) fn is_fresh(&self, now: Instant, fabric: &impl Fabric, side: Side, ip: IpAddr) -> bool {
        match side {
            Side::Ethernet => self.hosts.is_confirmed(now, ip, FRESH),
            Side::InfiniBand => fabric.is_confirmed(now, ip, FRESH),
        }
    }

    /// True if silence has proven an address a short time ago: a late answer may still come.
    fn is_proven_lately(&self, now: Instant, ip: IpAddr) -> bool {
        self.proven_at.get(&ip).is_some_and(|at| now.saturating_duration_since(*at) < LATE)
    }

    /// Classifies an address that is claimed at `place`.
    pub(super) fn sender_known(
        &self,
        now: Instant,
        fabric: &impl Fabric,
        ip: IpAddr,
        place: Place,
    ) -> SenderKnowledge {
        let side = side_of(place);
        let (known, peer) = match place {
            Place::Ethernet(mac) => {
                (self.hosts.get(ip).map(|at| at == mac), self.own.settings.is_gateway_mac(mac))
            }
            Place::InfiniBand(hardware) => (
                fabric.hardware(ip).map(|at| at.is_same_as(hardware)),
                self.own.settings.is_gateway_address(hardware),
            ),
        };
        match (self.own.owns(ip), peer) {
            (true, true) => return SenderKnowledge::OwnAtPeer,
            (false, true) => return SenderKnowledge::PeerGateway,
            (true, false) => return SenderKnowledge::Own,
            (false, false) => {}
        }
        if self.owners.is_contested(now, ip) {
            return SenderKnowledge::Contested;
        }
        match known {
            Some(true) => return SenderKnowledge::Here,
            Some(false) => return SenderKnowledge::Elsewhere,
            None => {}
        }
        // The other side was queried on behalf of this one, or this one so that a host of the other is
        // proven.
        let lookup = self.lookups.get(&ip);
        let answered =
            side == Side::InfiniBand && lookup.is_some_and(|l| l.own == side && l.answer.is_some());
        if answered {
            return SenderKnowledge::AcrossUnproven;
        }
        if self.is_on(fabric, side.other(), ip) {
            let proven = self.unproven.get(&ip).copied().unwrap_or(lookup.is_none());
            return match proven {
                true if self.is_proven_lately(now, ip) => SenderKnowledge::AcrossLately,
                true => SenderKnowledge::Across,
                false => SenderKnowledge::AcrossUnproven,
            };
        }
        let awaited = match side {
            Side::Ethernet => self.hosts.contains(ip),
            Side::InfiniBand => fabric.is_sought(ip),
        };
        match self.owners.claimed(ip).map(|claim| claim.side()) {
            Some(claimed) if claimed != side => return SenderKnowledge::ClaimedAcross,
            // Hosts or packets wait for it.
            Some(_) if awaited => return SenderKnowledge::Awaited,
            Some(_) => return SenderKnowledge::ClaimedHere,
            None => {}
        }
        match lookup {
            _ if awaited => SenderKnowledge::Awaited,
            Some(lookup) if lookup.own == side => SenderKnowledge::SoughtAcross,
            Some(_) | None if self.discovery.expects(now, ip) => SenderKnowledge::Discovered,
            Some(_) | None => SenderKnowledge::Unknown,
        }
    }

    /// Classifies the sender of an ARP packet.
    pub(super) fn note_sender(&mut self, known: SenderKnowledge) {
        self.unknown_sender |= !matches!(
            known,
            SenderKnowledge::Here | SenderKnowledge::OwnAtPeer | SenderKnowledge::PeerGateway
        );
    }

    /// True if an ARP packet has come from a station that is not known for its sender since the last call:
    /// another gateway may be there that has not heard this one.
    pub fn take_unknown_sender(&mut self) -> bool {
        std::mem::take(&mut self.unknown_sender)
    }

    /// Classifies an address that a host of `side` requests.
    pub(super) fn target_known(
        &self,
        now: Instant,
        fabric: &impl Fabric,
        side: Side,
        ip: IpAddr,
    ) -> TargetKnowledge {
        let across = side.other();
        if self.own.owns(ip) {
            TargetKnowledge::Own
        } else if self.owners.is_contested(now, ip) {
            TargetKnowledge::Contested
        } else if self.owners.is_queried(ip) {
            TargetKnowledge::Disputed
        } else if self.is_on(fabric, across, ip) {
            match self.is_fresh(now, fabric, across, ip) {
                _ if self.unproven.contains_key(&ip) || self.lookups.contains_key(&ip) => {
                    TargetKnowledge::AcrossUnproven
                }
                true => TargetKnowledge::AcrossFresh,
                false => TargetKnowledge::Across,
            }
        } else if !self.is_on(fabric, side, ip) {
            TargetKnowledge::Unknown
        } else if self.is_fresh(now, fabric, side, ip) {
            TargetKnowledge::HereFresh
        } else {
            TargetKnowledge::Here
        }
    }
}

/// The side of a location.
pub(super) const fn side_of(place: Place) -> Side {
    match place {
        Place::Ethernet(_) => Side::Ethernet,
        Place::InfiniBand(_) => Side::InfiniBand,
    }
}
