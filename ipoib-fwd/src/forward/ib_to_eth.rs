//! Forwarding decision for messages from InfiniBand to Ethernet.

use std::net::Ipv4Addr;

use pmd::hca::{Checksum, Source};

use super::neighbours::NeighbourIndex;
use super::rules::{Cast, LinkCast, check_role, classify};
use super::tables::SegmentTable;
use super::{ETHERTYPE_HELLO, Punt};
use ipoib::drop_reason::DropReason;
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::be16;
use ipoib::net::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, MacAddress};
use ipoib::net::ipv4::Ipv4View;
use ipoib::net::probe::probe_nonce;

/// The decision on a message.
///
/// In a message, the IPv4 packet starts at [`IPOIB_HEADER_LEN`]. Its frame is an Ethernet header from the
/// gateway's address to another address, and the packet's first `ip_len` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IbVerdict {
    /// Send the packet.
    Forward {
        /// Destination address of the frame.
        to: MacAddress,
        /// Length of the IPv4 packet in bytes.
        ip_len: u16,
        /// The neighbor it goes to, to be marked as used; `None` for groups.
        neighbour: Option<NeighbourIndex>,
    },
    /// Fragment the packet ([`ipoib::net::fragment`]) and send the fragments.
    Fragment {
        /// Destination address of the frames.
        to: MacAddress,
        /// Length of the IPv4 packet in bytes.
        ip_len: u16,
        /// Largest fragment in bytes, IPv4 header included.
        mtu: u16,
        /// The neighbor they go to, to be marked as used; `None` for groups.
        neighbour: Option<NeighbourIndex>,
    },
    /// The packet does not fit and must not be fragmented. Report this MTU to its source by ICMP if
    /// [`ipoib::net::icmp::may_answer`] and the rate limit allow it. Then drop the packet
    /// ([`DropReason::TooBigAnswered`] or [`DropReason::TooBig`]).
    TooBig {
        /// Largest packet that would fit, in bytes.
        mtu: u16,
    },
    /// Pass the whole message to the control lcore.
    Punt(Punt),
    /// Drop the message.
    Drop(DropReason),
}

impl IbVerdict {
    /// True if only the forwarding gateway acts on this verdict.
    #[inline]
    #[must_use]
    pub const fn is_of_forwarder(&self) -> bool {
        match self {
            Self::Forward { .. } | Self::Fragment { .. } | Self::TooBig { .. } => true,
            Self::Punt(punt) => punt.is_of_forwarder(),
            Self::Drop(_) => false,
        }
    }
}

/// Decides on a message that a queue pair received. `head` is its start from the encapsulation header on with
/// all headers; 64 bytes are always enough. `message_len` is its length, `source` the transport and the
/// sender, `checksum` the device's checksum status.
#[inline(always)]
#[must_use]
pub fn ib_to_eth<D: Clone>(
    head: &[u8],
    message_len: usize,
    source: &Source,
    checksum: Checksum,
    table: &SegmentTable<D>,
) -> IbVerdict {
    decide(head, message_len, source, checksum, table).unwrap_or_else(IbVerdict::Drop)
}

#[inline(always)]
fn decide<D: Clone>(
    head: &[u8],
    message_len: usize,
    source: &Source,
    checksum: Checksum,
    table: &SegmentTable<D>,
) -> Result<IbVerdict, DropReason> {
    let settings = &table.settings;
    let link_cast = match source {
        Source::Ud(ud) if ud.multicast => {
            // The fabric delivers a multicast to its sender's port, too.
            if ud.slid == settings.own_lid && settings.own_qpns.contains(&ud.qpn) {
                return Err(DropReason::LoopSelf);
            }
            LinkCast::Multicast
        }
        Source::Ud(_) | Source::Rc | Source::RcInvalidated(_) => LinkCast::Unicast,
    };
    let packet_len = message_len.checked_sub(IPOIB_HEADER_LEN).ok_or(DropReason::Truncated)?;
    // The reserved half of the header is ignored on receive (RFC 4391 6).
    match be16(head, 0).ok_or(DropReason::Truncated)? {
        ETHERTYPE_IPV4 => {}
        // ARP is never sent on a connection (RFC 4755 3.4).
        ETHERTYPE_ARP if matches!(source, Source::Ud(_)) => return Ok(IbVerdict::Punt(Punt::Arp)),
        ETHERTYPE_ARP => return Err(DropReason::BadArp),
        // Gateways send hellos to the broadcast group.
        ETHERTYPE_HELLO if link_cast == LinkCast::Multicast => return Ok(IbVerdict::Punt(Punt::Hello)),
        ETHERTYPE_IPV6 => return Err(DropReason::Ipv6),
        // Values below 0x0600 are not ethertypes.
        ..0x0600 => return Err(DropReason::NotIpoib),
        _ => return Err(DropReason::UnknownEthertype),
    }
    if link_cast == LinkCast::Multicast
        && let Source::Ud(ud) = source
    {
        if head.get(IPOIB_HEADER_LEN..).is_some_and(|packet| probe_nonce(packet).is_some()) {
            return Ok(IbVerdict::Punt(Punt::Hello));
        }
        if settings.is_gateway_port(ud.slid, ud.qpn) {
            return Err(DropReason::PeerGateway);
        }
    }
    let packet = head.get(IPOIB_HEADER_LEN..).unwrap_or_default();
    let packet = Ipv4View::parse_received(packet, packet_len, checksum)?;
    let cast = classify(&packet, link_cast, settings)?;
    if cast == Cast::Gateway {
        return Ok(IbVerdict::Punt(Punt::Local));
    }
    check_role(settings.role, cast)?;
    if table.eth(packet.source()).is_some() {
        return Err(DropReason::Martian);
    }
    if !settings.eth_up {
        return Err(DropReason::LinkDown);
    }
    let (to, neighbour) = match cast {
        Cast::Broadcast => (MacAddress::BROADCAST, None),
        Cast::LocalGroup => (MacAddress::of_group(packet.destination()), None),
        Cast::Group if settings.groups.iter().any(|(group, _)| *group == packet.destination()) => {
            (MacAddress::of_group(packet.destination()), None)
        }
        Cast::Group => return Err(DropReason::GroupUnknown),
        Cast::Gateway => return Ok(IbVerdict::Punt(Punt::Local)),
        Cast::Host(next_hop) => match table.eth(Ipv4Addr::from_bits(next_hop)) {
            Some((index, neighbour)) => (neighbour.mac, Some(index)),
            None if table.ib(Ipv4Addr::from_bits(next_hop)).is_some() => return Err(DropReason::SameSide),
            None => return Ok(IbVerdict::Punt(Punt::Neighbour(Ipv4Addr::from_bits(next_hop)))),
        },
    };
    let (ip_len, mtu) = (packet.total_len(), settings.eth_mtu);
    Ok(if ip_len <= mtu {
        IbVerdict::Forward { to, ip_len, neighbour }
    } else if !packet.dont_fragment() {
        IbVerdict::Fragment { to, ip_len, mtu, neighbour }
    } else if cast.is_many() {
        IbVerdict::Drop(DropReason::TooBig)
    } else {
        IbVerdict::TooBig { mtu }
    })
}
