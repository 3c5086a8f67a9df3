//! Rules that hold in both directions.

use std::net::Ipv4Addr;

use super::routes::Hop;
use super::tables::{Role, Settings};
use ipoib::drop_reason::DropReason;
use ipoib::net::ipv4::{self, Ipv4View};

/// Whom a destination address means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cast {
    /// One host, by this neighbour: itself, or a router.
    Host(Ipv4Addr),
    /// The gateway itself.
    Gateway,
    /// All hosts: limited or subnet broadcast.
    Broadcast,
    /// A group within 224.0.0.0/24, which never leaves a link (RFC 5771 4).
    LocalGroup,
    /// Any other group.
    Group,
}

impl Cast {
    /// True if more than one host is meant.
    pub(super) const fn is_many(self) -> bool {
        matches!(self, Self::Broadcast | Self::LocalGroup | Self::Group)
    }
}

/// How the link layer addressed a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkCast {
    /// To us.
    Unicast,
    /// To a group or to all.
    Multicast,
}

/// Classifies the destination, and drops what no packet of either side may be.
#[inline]
pub(super) fn classify<D>(
    packet: &Ipv4View<'_>,
    link_cast: LinkCast,
    settings: &Settings<D>,
) -> Result<Cast, DropReason> {
    let cast = cast_of(packet.destination(), settings)?;
    check_source(packet.source(), cast, settings)?;
    if packet.ttl() == 0 {
        return Err(DropReason::TtlExceeded);
    }
    if link_cast == LinkCast::Multicast && !cast.is_many() {
        return Err(DropReason::LinkBroadcastOfUnicast);
    }
    Ok(cast)
}

#[inline]
fn cast_of<D>(destination: Ipv4Addr, settings: &Settings<D>) -> Result<Cast, DropReason> {
    let [a, b, c, _] = destination.octets();
    if ipv4::is_unicast(destination) {
        if settings.address.is_some_and(|own| own.address() == destination) {
            return Ok(Cast::Gateway);
        }
        return match settings.hop(destination) {
            Some(Hop::OnLink(subnet)) if subnet.is_broadcast(destination) => Ok(Cast::Broadcast),
            Some(Hop::OnLink(subnet)) if subnet.is_network(destination) => Err(DropReason::Martian),
            Some(Hop::OnLink(_)) => Ok(Cast::Host(destination)),
            Some(Hop::Via(router)) => Ok(Cast::Host(router)),
            None if settings.knows_no_subnet() => Ok(Cast::Host(destination)),
            None => Err(DropReason::OffSubnet),
        };
    }
    match (a, b, c) {
        (224, 0, 0) => Ok(Cast::LocalGroup),
        (224..=239, ..) => Ok(Cast::Group),
        _ if destination.is_broadcast() => Ok(Cast::Broadcast),
        _ => Err(DropReason::Martian),
    }
}

/// Sources that no packet from the network may have. The unspecified address may ask everybody (DHCP), nobody else.
#[inline]
fn check_source<D>(source: Ipv4Addr, cast: Cast, settings: &Settings<D>) -> Result<(), DropReason> {
    if !ipv4::is_possible_source(source) || (source.is_unspecified() && !cast.is_many()) {
        return Err(DropReason::Martian);
    }
    if settings.address.is_some_and(|own| own.address() == source) {
        return Err(DropReason::Martian);
    }
    // A host beyond the link may be behind a router of either side.
    match settings.hop(source) {
        Some(Hop::OnLink(subnet)) if subnet.is_broadcast(source) => Err(DropReason::Martian),
        _ => Ok(()),
    }
}

/// Lets a data packet pass if this gateway is the one that forwards.
#[inline]
pub(super) const fn check_role(role: Role) -> Result<(), DropReason> {
    match role {
        Role::Forwarding => Ok(()),
        Role::Standby => Err(DropReason::Standby),
        Role::Blocked => Err(DropReason::SegmentBlocked),
    }
}
