//! Forwarding decision for frames from Ethernet to InfiniBand.

use std::net::Ipv4Addr;

use pmd::hca::RcSlot;

use super::neighbours::{IbNeighbour, NeighbourIndex};
use super::rules::{Cast, LinkCast, check_role, classify};
use super::tables::SegmentTable;
use super::{ETHERTYPE_HELLO, FrameHead, PAIR_GROUP, Punt};
use ipoib::drop_reason::DropReason;
use ipoib::link::WorkerIndex;
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::ethernet::{
    ETHERNET_HEADER_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, MacAddress,
};
use ipoib::net::ipv4::Ipv4View;
use ipoib::net::probe::probe_nonce;

/// How a packet is sent into the fabric.
#[derive(Debug, PartialEq, Eq)]
pub enum Via<'t, D> {
    /// On this worker's connection in this slot.
    Rc(RcSlot),
    /// As a datagram to a host.
    Ud(&'t D),
    /// As a datagram to a group.
    Group(&'t D),
}

impl<D> Clone for Via<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Via<'_, D> {}

/// The address of the neighbor that packets are sent to.
// Kept as an integer: a byte array is written and read in different access sizes, which stalls store
// forwarding on each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop(u32);

impl From<Ipv4Addr> for NextHop {
    #[inline(always)]
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_bits())
    }
}

impl From<NextHop> for Ipv4Addr {
    #[inline(always)]
    fn from(NextHop(bits): NextHop) -> Self {
        Self::from_bits(bits)
    }
}

/// The decision on a frame.
///
/// In a frame, the IPv4 packet starts behind its [`FrameHead`]. The message is
/// [`ipoib::net::IPOIB_IPV4_HEADER`] followed by the packet's first `ip_len` bytes. Any bytes after them are
/// padding and must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EthVerdict<'t, D> {
    /// Send the packet.
    Forward {
        /// Where to send it.
        via: Via<'t, D>,
        /// Length of the IPv4 packet in bytes.
        ip_len: u16,
        /// The neighbor it goes to, to be marked as used; `None` for groups.
        neighbour: Option<NeighbourIndex>,
        /// Notify the control lcore that this neighbor needs a connection.
        dial: Option<NextHop>,
    },
    /// Fragment the packet ([`ipoib::net::fragment`]) and send the fragments.
    Fragment {
        /// Where to send the fragments.
        via: Via<'t, D>,
        /// Length of the IPv4 packet in bytes.
        ip_len: u16,
        /// Largest fragment in bytes, IPv4 header included.
        mtu: u16,
        /// The neighbor they go to, to be marked as used; `None` for groups.
        neighbour: Option<NeighbourIndex>,
        /// Notify the control lcore that this neighbor needs a connection.
        dial: Option<NextHop>,
    },
    /// The packet does not fit and must not be fragmented. Report this MTU to its source by ICMP if
    /// [`ipoib::net::icmp::may_answer`] and the rate limit allow it. Then drop the packet
    /// ([`DropReason::TooBigAnswered`] or [`DropReason::TooBig`]).
    TooBig {
        /// Largest packet that would fit, in bytes.
        mtu: u16,
        /// Notify the control lcore that this neighbor needs a connection, which would carry larger packets.
        dial: Option<NextHop>,
    },
    /// Pass the whole frame to the control lcore.
    Punt(Punt),
    /// Drop the frame.
    Drop(DropReason),
}

impl<D> EthVerdict<'_, D> {
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

/// Decides on a frame of a segment. `head` is the start of the frame with all headers; 78 bytes are always
/// enough. `front` is the result of [`FrameHead::parse`] for it. `frame_len` is the length of the frame
/// without the frame check sequence.
#[inline(always)]
#[must_use]
pub fn eth_to_ib<'t, D: Clone>(
    head: &[u8],
    front: &FrameHead,
    frame_len: usize,
    table: &'t SegmentTable<D>,
    worker: WorkerIndex,
) -> EthVerdict<'t, D> {
    decide(head, front, frame_len, table, worker).unwrap_or_else(EthVerdict::Drop)
}

#[inline(always)]
fn decide<'t, D: Clone>(
    head: &[u8],
    front: &FrameHead,
    frame_len: usize,
    table: &'t SegmentTable<D>,
    worker: WorkerIndex,
) -> Result<EthVerdict<'t, D>, DropReason> {
    let settings = &table.settings;
    // Parsed here, not passed in: addresses that are stored and loaded in different access sizes stall store
    // forwarding.
    let ethernet = EthernetHeader::parse(head)?;
    if ethernet.source == settings.mac {
        // An own hello that comes back indicates a loop.
        let is_hello = front.ethertype == ETHERTYPE_HELLO && ethernet.destination == PAIR_GROUP;
        return if is_hello { Ok(EthVerdict::Punt(Punt::Hello)) } else { Err(DropReason::LoopSelf) };
    }
    if ethernet.source.is_multicast() {
        return Err(DropReason::Martian);
    }
    let link_cast = if ethernet.destination == settings.mac {
        LinkCast::Unicast
    } else if ethernet.destination.is_multicast() {
        LinkCast::Multicast
    } else {
        return Err(DropReason::NotForUs);
    };
    match front.ethertype {
        ETHERTYPE_IPV4 => {}
        ETHERTYPE_ARP => return Ok(EthVerdict::Punt(Punt::Arp)),
        ETHERTYPE_HELLO if ethernet.destination == PAIR_GROUP => return Ok(EthVerdict::Punt(Punt::Hello)),
        ETHERTYPE_IPV6 => return Err(DropReason::Ipv6),
        // Below 0x0600 it is an IEEE 802.3 length: LLC, spanning tree and the like.
        _ => return Err(DropReason::UnknownEthertype),
    }
    if link_cast == LinkCast::Multicast {
        if head.get(front.len..).is_some_and(|packet| probe_nonce(packet).is_some()) {
            return Ok(EthVerdict::Punt(Punt::Hello));
        }
        if settings.is_gateway_mac(ethernet.source) {
            return Err(DropReason::PeerGateway);
        }
    }
    let packet_len = frame_len.checked_sub(front.len).ok_or(DropReason::Truncated)?;
    let packet = head.get(front.len..).unwrap_or_default();
    let packet = Ipv4View::parse_received(packet, packet_len, front.checksum)?;
    let cast = classify(&packet, link_cast, settings)?;
    if cast == Cast::Gateway {
        return Ok(EthVerdict::Punt(Punt::Local));
    }
    check_role(settings.role, cast)?;
    if table.ib(packet.source()).is_some() {
        return Err(DropReason::Martian);
    }
    let Cast::Host(next_hop) = cast else {
        return to_group(&packet, cast, ethernet.destination, table);
    };
    let next_hop = Ipv4Addr::from_bits(next_hop);
    // Nothing can be sent or resolved while the link is down.
    if settings.broadcast.is_none() {
        return Err(DropReason::LinkDown);
    }
    let Some((index, neighbour)) = table.ib(next_hop) else {
        return if table.eth(next_hop).is_some() {
            Err(DropReason::SameSide)
        } else {
            Ok(EthVerdict::Punt(Punt::Neighbour(next_hop)))
        };
    };
    Ok(to_host(&packet, next_hop, index, neighbour, table, worker))
}

/// Decides on an IPv4 packet that the gateway itself sends to an InfiniBand host. The packet follows headroom
/// for an Ethernet header. `head` and `frame_len` are as for [`eth_to_ib`]. `to` is the neighbor that the
/// packet goes to.
#[must_use]
pub fn own_to_ib<'t, D: Clone>(
    head: &[u8],
    frame_len: usize,
    to: Ipv4Addr,
    table: &'t SegmentTable<D>,
    worker: WorkerIndex,
) -> EthVerdict<'t, D> {
    let packet_len = frame_len.saturating_sub(ETHERNET_HEADER_LEN);
    let packet = match Ipv4View::parse(head.get(ETHERNET_HEADER_LEN..).unwrap_or_default(), packet_len) {
        Ok(packet) => packet,
        Err(reason) => return EthVerdict::Drop(reason),
    };
    let verdict =
        table.ib(to).map(|(index, neighbour)| to_host(&packet, to, index, neighbour, table, worker));
    match verdict {
        // The gateway's own packets cause no ICMP error and are not queued.
        Some(EthVerdict::TooBig { .. }) => EthVerdict::Drop(DropReason::TooBig),
        Some(EthVerdict::Punt(_)) | None => EthVerdict::Drop(DropReason::NeighbourUnresolved),
        Some(verdict) => verdict,
    }
}

/// Uses the connection if the packet fits, otherwise a datagram. If it fits neither, it is fragmented for the
/// one with the larger MTU.
#[inline(always)]
fn to_host<'t, D>(
    packet: &Ipv4View<'_>,
    next_hop: Ipv4Addr,
    index: NeighbourIndex,
    neighbour: &'t IbNeighbour<D>,
    table: &'t SegmentTable<D>,
    worker: WorkerIndex,
) -> EthVerdict<'t, D> {
    let ip_len = packet.total_len();
    let rc = neighbour.rc.of(worker).map(|rc| (Via::Rc(rc.slot), ip_mtu(rc.mtu)));
    let dial = (neighbour.dial && rc.is_none()).then_some(next_hop.into());
    let ud = || neighbour.ud.as_ref().map(|ud| (Via::Ud(ud), table.settings.ud_ip_mtu()));
    let fits = |path: Option<(Via<'t, D>, u16)>| path.filter(|(_, mtu)| ip_len <= *mtu);
    if let Some((via, _)) = fits(rc).or_else(|| fits(ud())) {
        return EthVerdict::Forward { via, ip_len, neighbour: Some(index), dial };
    }
    let Some((via, mtu)) = [rc, ud()].into_iter().flatten().max_by_key(|(_, mtu)| *mtu) else {
        return EthVerdict::Punt(Punt::Neighbour(next_hop));
    };
    if packet.dont_fragment() {
        EthVerdict::TooBig { mtu, dial }
    } else {
        EthVerdict::Fragment { via, ip_len, mtu, neighbour: Some(index), dial }
    }
}

/// Largest IPv4 packet in a message of at most `message_mtu` bytes.
#[inline]
pub(super) fn ip_mtu(message_mtu: u32) -> u16 {
    u16::try_from(message_mtu.saturating_sub(IPOIB_HEADER_LEN as u32)).unwrap_or(u16::MAX)
}

#[cold]
fn to_group<'t, D>(
    packet: &Ipv4View<'_>,
    cast: Cast,
    frame_destination: MacAddress,
    table: &'t SegmentTable<D>,
) -> Result<EthVerdict<'t, D>, DropReason> {
    let settings = &table.settings;
    // A packet for one group in a frame for another would bypass the switches' multicast filters.
    if frame_destination.is_multicast()
        && frame_destination != MacAddress::BROADCAST
        && frame_destination != MacAddress::of_group(packet.destination())
    {
        return Err(DropReason::NotForUs);
    }
    let broadcast = settings.broadcast.as_ref().ok_or(DropReason::LinkDown)?;
    let joined = || settings.groups.iter().find(|(group, _)| *group == packet.destination()).map(|(_, d)| d);
    let destination = match cast {
        Cast::LocalGroup => joined().unwrap_or(broadcast),
        Cast::Group => joined().ok_or(DropReason::GroupUnknown)?,
        Cast::Broadcast | Cast::Host(_) | Cast::Gateway => broadcast,
    };
    let (via, ip_len, mtu) = (Via::Group(destination), packet.total_len(), settings.ud_ip_mtu());
    Ok(if ip_len <= mtu {
        EthVerdict::Forward { via, ip_len, neighbour: None, dial: None }
    } else if packet.dont_fragment() {
        EthVerdict::Drop(DropReason::TooBig)
    } else {
        EthVerdict::Fragment { via, ip_len, mtu, neighbour: None, dial: None }
    })
}
