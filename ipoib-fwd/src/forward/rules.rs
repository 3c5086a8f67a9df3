//! Rules for both directions.

use std::net::Ipv4Addr;

use super::routes::{Hop, Prefix};
use super::settings::{Role, Settings};
use ipoib::drop_reason::DropReason;
use ipoib::net::ipv4::{self, Ipv4View};

/// The kind of a destination address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cast {
    /// One host, with the next hop: the host itself or a router. It is an integer, because unaligned bytes
    /// cost many instructions here.
    Host(u32),
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
    /// True if the destination is more than one host.
    pub(super) const fn is_many(self) -> bool {
        matches!(self, Self::Broadcast | Self::LocalGroup | Self::Group)
    }
}

/// The kind of the link-layer destination address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkCast {
    /// The gateway's own address.
    Unicast,
    /// A group or broadcast address.
    Multicast,
}

/// Classifies the destination, and drops packets that are invalid on either side.
#[inline(always)]
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

#[inline(always)]
fn cast_of<D>(destination: Ipv4Addr, settings: &Settings<D>) -> Result<Cast, DropReason> {
    let [a, b, c, _] = destination.octets();
    if ipv4::is_unicast(destination) {
        return match &settings.address {
            Some(own) if own.address() == destination => Ok(Cast::Gateway),
            Some(own) if own.subnet().contains(destination) => on_link(destination, own.subnet()),
            _ => elsewhere(destination, settings),
        };
    }
    match (a, b, c) {
        (224, 0, 0) => Ok(Cast::LocalGroup),
        (224..=239, ..) => Ok(Cast::Group),
        _ if destination.is_broadcast() => Ok(Cast::Broadcast),
        _ => Err(DropReason::Martian),
    }
}

/// Drops sources that no packet from the network may have. The unspecified address is valid only in packets
/// to groups or broadcast addresses (DHCP).
#[inline(always)]
fn check_source<D>(source: Ipv4Addr, cast: Cast, settings: &Settings<D>) -> Result<(), DropReason> {
    if !ipv4::is_possible_source(source) || (source.is_unspecified() && !cast.is_many()) {
        return Err(DropReason::Martian);
    }
    let martian = match &settings.address {
        Some(own) if own.subnet().contains(source) => {
            source == own.address() || own.subnet().is_broadcast(source)
        }
        // A host beyond the link may be behind a router of either side.
        _ => matches!(settings.routes.get(source), Some(Hop::OnLink(subnet)) if subnet.is_broadcast(source)),
    };
    if martian { Err(DropReason::Martian) } else { Ok(()) }
}

/// Classifies an address in a subnet of the segment.
#[inline]
const fn on_link(destination: Ipv4Addr, subnet: Prefix) -> Result<Cast, DropReason> {
    if subnet.is_broadcast(destination) {
        Ok(Cast::Broadcast)
    } else if subnet.is_network(destination) {
        Err(DropReason::Martian)
    } else {
        Ok(Cast::Host(destination.to_bits()))
    }
}

/// Classifies an address outside the subnet of the gateway's own address.
#[cold]
fn elsewhere<D>(destination: Ipv4Addr, settings: &Settings<D>) -> Result<Cast, DropReason> {
    match settings.routes.get(destination) {
        Some(Hop::OnLink(subnet)) => on_link(destination, subnet),
        Some(Hop::Via(router)) => Ok(Cast::Host(router.to_bits())),
        None if settings.knows_no_subnet() => Ok(Cast::Host(destination.to_bits())),
        None => Err(DropReason::OffSubnet),
    }
}

/// Accepts a data packet if this gateway forwards. At most one gateway forwards packets to groups, in every
/// state.
#[inline]
pub(super) const fn check_role(role: Role, cast: Cast) -> Result<(), DropReason> {
    match role {
        Role::Forwarding => Ok(()),
        Role::HandingOver if !cast.is_many() => Ok(()),
        Role::HandingOver | Role::Standby => Err(DropReason::Standby),
        Role::Blocked => Err(DropReason::SegmentBlocked),
    }
}
