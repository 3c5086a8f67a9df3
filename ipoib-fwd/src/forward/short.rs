//! The fast path, for plain packets: nearly all packets are plain.
//!
//! A plain packet is unicast IPv4 without options and without fragment offset, between two hosts of the
//! segment's own subnet, and it needs no fragmentation.
//!
//! The fast path makes the same checks as [`eth_to_ib`](super::eth_to_ib()) and
//! [`ib_to_eth`](super::ib_to_eth()), in fewer steps. The settings that each packet needs are prepared when
//! the table is published ([`Lane`]). Headers are read as words. All checks are made before the first branch,
//! since plain packets pass all of them.
//!
//! A packet that fails a check takes the slow path, which alone knows the reason; the fast path has no drop
//! reasons. A property test verifies that the slow path forwards in the same way all packets that the fast
//! path accepts.
//!
//! A frame may have a VLAN tag: its packet then starts four bytes later. Two flat tables lead to its segment:
//! from VLAN to index, and from index to [`Lane`]. A frame with the same signature as the frame before it,
//! which is one comparison of a word, belongs to the same segment.
//!
//! With packets of many segments in a burst, the cost is the memory that each touches of its own segment.
//! These are few cache lines: the lane, the first line of the hosts, one line each of the page list, a page
//! and a block, and the host.

use std::net::Ipv4Addr;

use dataplane::usage::Marks;
use pmd::hca::{Checksum, Source};
use pmd::mem::{FrameFacts, FrameTag};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::Side;
use super::eth_to_ib::{NextHop, Via};
use super::frame_head::{GLANCED, Glance, Looks};
use super::neighbours::NeighbourIndex;
use super::settings::{Role, Settings, Uplink};
use super::tables::{EndpointIndex, EthernetIndex, Lane, SegmentIndex, SegmentTable, Tables, Vlans};
use ipoib::link::WorkerIndex;
use ipoib::net::ethernet::{ETHERTYPE_IPV4, MacAddress};
use ipoib::net::{IPOIB_HEADER_LEN, ipv4};

/// An IPv4 header without options, as words in memory order: their numeric values have no meaning.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PacketWords {
    /// Version and header length, type of service, total length, identification, flags and fragment offset.
    start: U64,
    /// Time to live, protocol, checksum, source.
    middle: U64,
    destination: U32,
}

/// The addresses of an Ethernet frame.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddressWords {
    /// The destination and two bytes of the source.
    start: U64,
    /// The other four bytes of the source.
    source: U32,
}

/// The headers of a message.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MessageWords {
    ethertype: U16,
    _reserved: U16,
    packet: PacketWords,
}

const ETHERTYPE: u16 = ETHERTYPE_IPV4.to_be();
/// Mask of the six bytes of an Ethernet address in a word.
const MAC: u64 = 0xffff_ffff_ffff;
/// Mask of the fragment offset, without the flags, in the last two bytes of a word.
const OFFSET: u64 = 0xff1f << 48;
/// The group bit of an Ethernet address in a word.
const GROUP: u64 = 1;

/// A plain packet between hosts of the subnet.
struct Packet {
    total_len: u16,
    source: Ipv4Addr,
    destination: Ipv4Addr,
}

/// The decision on a plain frame.
#[derive(Debug)]
pub struct ToInfiniBand<'t, D> {
    /// Where to send it.
    pub via: Via<'t, D>,
    /// Length of the IPv4 packet in bytes.
    pub ip_len: u16,
    /// The neighbor it goes to; `None` for groups, which only the slow path handles.
    pub neighbour: Option<NeighbourIndex>,
    /// Notify the control lcore that this neighbor needs a connection.
    pub dial: Option<NextHop>,
}

/// The decision on a plain message.
#[derive(Debug)]
pub struct ToEthernet<'t> {
    /// Destination address of the frame.
    pub to: &'t MacAddress,
    /// Length of the IPv4 packet in bytes.
    pub ip_len: u16,
    /// The neighbor it goes to; `None` for groups, which only the slow path handles.
    pub neighbour: Option<NeighbourIndex>,
}

/// Settings of a segment, prepared for the fast path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    /// The gateway's Ethernet address in memory order; an impossible one if nothing may go to InfiniBand.
    mac: u64,
    /// The first host address of the gateway's subnet, and the number of host addresses. The number is 0 if
    /// all packets take the slow path.
    first: u32,
    hosts: u32,
    own: u32,
    ud_mtu: u16,
    eth_mtu: u16,
    to_ethernet: bool,
}

impl Short {
    /// Prepares the settings of a segment.
    #[must_use]
    pub(super) fn new<D>(settings: &Settings<D>) -> Self {
        let [a, b, c, d, e, f] = settings.mac.0;
        let (first, hosts, own) = match &settings.address {
            Some(own) => {
                let (first, last) = own.subnet().hosts();
                // If both ends are unicast, so is the whole subnet: groups, loopback and reserved addresses
                // are at one end of a subnet that contains them.
                let plain = ipv4::is_unicast(first) && ipv4::is_unicast(last);
                let count = last.to_bits() - first.to_bits() + 1;
                (first.to_bits(), if plain { count } else { 0 }, own.address().to_bits())
            }
            None => (0, 0, 0),
        };
        let forwards = matches!(settings.role, Role::Forwarding | Role::HandingOver);
        let to_infiniband = forwards && settings.broadcast.is_some();
        Self {
            mac: if to_infiniband { u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) } else { u64::MAX },
            first,
            hosts,
            own,
            ud_mtu: settings.ud_ip_mtu(),
            eth_mtu: settings.eth_mtu,
            to_ethernet: forwards && settings.eth_up,
        }
    }

    #[inline(always)]
    const fn is_host(&self, address: u32) -> bool {
        (address.wrapping_sub(self.first) < self.hosts) & (address != self.own)
    }

    /// Returns the packet behind `front` bytes, if it is plain and within the `len` bytes of the frame or
    /// message.
    #[inline(always)]
    fn plain(&self, words: &PacketWords, front: usize, len: usize, checksum: Checksum) -> Option<Packet> {
        let (start, middle, destination) = (words.start.get(), words.middle.get(), words.destination.get());
        // One's complement: the sum of the words is a multiple of 0xffff, whatever their byte order is (RFC
        // 1071 2.B) and their size. A carry out of 64 bits counts as 1, since 2^64 - 1 is such a multiple.
        let add = |a: u64, b: u64| {
            let (sum, carry) = a.overflowing_add(b);
            sum.wrapping_add(carry.into())
        };
        let valid = add(add(start, middle), destination.into()).is_multiple_of(0xffff);
        let total_len = ((start >> 16) as u16).swap_bytes();
        let (source, destination) = (((middle >> 32) as u32).swap_bytes(), destination.swap_bytes());
        let plain = (start & 0xff == 0x45)
            & (start & OFFSET == 0)
            & (middle & 0xff != 0)
            & (usize::from(total_len) >= ipv4::IPV4_HEADER_LEN)
            & (usize::from(total_len) + front <= len)
            & self.is_host(source)
            & self.is_host(destination);
        if !plain || (!valid && checksum == Checksum::Unknown) {
            return None;
        }
        let (source, destination) = (Ipv4Addr::from_bits(source), Ipv4Addr::from_bits(destination));
        Some(Packet { total_len, source, destination })
    }

    /// Decides on a frame whose IPv4 packet is behind `front` bytes: see [`eth_to_ib`](super::eth_to_ib()).
    /// `None`: it takes the slow path.
    #[inline(always)]
    fn eth_to_ib<'t, D: Clone>(
        &self,
        head: &[u8; GLANCED],
        front: usize,
        frame_len: usize,
        checksum: Checksum,
        table: &'t SegmentTable<D>,
        worker: WorkerIndex,
    ) -> Option<ToInfiniBand<'t, D>> {
        let (addresses, _) = AddressWords::ref_from_prefix(head).ok()?;
        let (words, _) = PacketWords::ref_from_prefix(head.get(front..)?).ok()?;
        let start = addresses.start.get();
        let source = start >> 48 | u64::from(addresses.source.get()) << 16;
        let ours = (start & MAC == self.mac) & (source != self.mac) & (source & GROUP == 0);
        if !ours {
            return None;
        }
        let packet = self.plain(words, front, frame_len, checksum)?;
        if table.has_ib(packet.source) {
            return None;
        }
        let ip_len = packet.total_len;
        let (neighbour, host) = table.ib(packet.destination)?;
        let neighbour = Some(neighbour);
        let message_len = u32::from(ip_len) + IPOIB_HEADER_LEN as u32;
        match host.rc.of(worker) {
            Some(rc) => (message_len <= rc.mtu).then_some(ToInfiniBand {
                via: Via::Rc(rc.slot),
                ip_len,
                neighbour,
                dial: None,
            }),
            None => {
                let dial = host.dial.then_some(packet.destination.into());
                let via = Via::Ud(host.ud.as_ref()?);
                (ip_len <= self.ud_mtu).then_some(ToInfiniBand { via, ip_len, neighbour, dial })
            }
        }
    }

    /// Decides on a message: see [`ib_to_eth`](super::ib_to_eth()). `None`: it takes the slow path.
    #[inline(always)]
    fn ib_to_eth<'t, D: Clone>(
        &self,
        head: &[u8],
        message_len: usize,
        source: &Source,
        checksum: Checksum,
        table: &'t SegmentTable<D>,
    ) -> Option<ToEthernet<'t>> {
        let (words, _) = MessageWords::ref_from_prefix(head).ok()?;
        let group = matches!(source, Source::Ud(ud) if ud.multicast);
        if (words.ethertype.get() != ETHERTYPE) | group | !self.to_ethernet {
            return None;
        }
        let packet = self.plain(&words.packet, IPOIB_HEADER_LEN, message_len, checksum)?;
        if table.has_eth(packet.source) {
            return None;
        }
        let (neighbour, host) = table.eth(packet.destination)?;
        let ip_len = packet.total_len;
        if ip_len > self.eth_mtu {
            return None;
        }
        Some(ToEthernet { to: &host.mac, ip_len, neighbour: Some(neighbour) })
    }
}

/// A packet that takes the fast path.
#[derive(Debug)]
pub struct Plain<'t, D, How> {
    /// Its segment.
    pub segment: SegmentIndex,
    /// The port and link that the segment's messages are sent from.
    pub uplink: Uplink,
    /// The segment's table.
    pub table: &'t SegmentTable<D>,
    /// The worker's marks for the hosts of the destination side.
    pub marks: Option<&'t Marks>,
    /// Length of the headers in front of the IPv4 packet, in bytes.
    pub front: usize,
    /// The decision.
    pub how: How,
}

/// The source and destination address of an IPv4 header.
#[inline(always)]
fn addresses(packet: &[u8]) -> Option<[u32; 2]> {
    let (words, _) = PacketWords::ref_from_prefix(packet).ok()?;
    Some([((words.middle.get() >> 32) as u32).swap_bytes(), words.destination.get().swap_bytes()])
}

/// The fast path for a burst of packets from one port.
#[derive(Debug)]
pub struct ShortWay<'t, D> {
    tables: &'t Tables<D>,
    worker: WorkerIndex,
    /// All packets take the slow path.
    is_closed: bool,
    /// The VLAN or link of the last packet. It is usually that of the next packet, too.
    last: u16,
    /// The signature of frames of that VLAN.
    looks: Looks,
    lane: Option<&'t Lane<D>>,
    marks: Option<&'t Marks>,
    /// Set when a frame has needed them.
    vlans: Option<&'t Vlans>,
}

/// Neither a VLAN nor a link.
const NONE: u16 = u16::MAX;

impl<'t, D: Clone> ShortWay<'t, D> {
    /// Creates the fast path of a burst, with these tables, for a worker.
    #[inline]
    #[must_use]
    pub const fn new(tables: &'t Tables<D>, worker: WorkerIndex) -> Self {
        let looks = Looks::NO_FRAME;
        Self { tables, worker, is_closed: false, last: NONE, looks, lane: None, marks: None, vlans: None }
    }

    /// Sends all packets to the slow path if `is_closed`.
    #[inline]
    #[must_use]
    pub const fn unless(self, is_closed: bool) -> Self {
        Self { is_closed, ..self }
    }

    #[inline(always)]
    fn lane(
        &mut self,
        key: u16,
        to: Side,
        find: impl FnOnce(&'t Tables<D>) -> Option<&'t Lane<D>>,
    ) -> Option<&'t Lane<D>> {
        if key != self.last {
            let lane = if self.is_closed { None } else { find(self.tables) };
            self.enter(key, to, lane);
        }
        self.lane
    }

    #[inline(always)]
    fn enter(&mut self, key: u16, to: Side, lane: Option<&'t Lane<D>>) {
        self.lane = lane;
        self.marks = lane.and_then(|lane| lane.marks(to, self.worker));
        self.last = key;
    }

    #[cold]
    fn find_vlans(&mut self, port: EthernetIndex) -> Option<&'t Vlans> {
        self.vlans = if self.is_closed { None } else { self.tables.vlans(port) };
        self.vlans
    }

    /// Finds the segment of a frame whose signature differs from that of the last frame. Returns the length
    /// of the headers in front of its packet.
    #[inline(always)]
    fn look(&mut self, port: EthernetIndex, head: &[u8; GLANCED], tag: FrameTag) -> Option<usize> {
        if tag == FrameTag::InFrame
            && let Some((looks, vid)) = Looks::of_tagged(head)
        {
            // The VLAN differs from the last one, or the port had removed the last one's tag.
            let vlans = match self.vlans {
                Some(vlans) => vlans,
                None => self.find_vlans(port)?,
            };
            self.enter(vid, Side::InfiniBand, self.tables.lane_of(vlans, vid));
            self.looks = looks;
            return Some(looks.len());
        }
        let glance = Glance::at(head, tag)?;
        let vid = glance.vid;
        self.lane(vid, Side::InfiniBand, |tables| tables.lane_of_vlan(port, vid));
        self.looks = if tag == FrameTag::InFrame { Looks::of_untagged() } else { Looks::NO_FRAME };
        Some(glance.len())
    }

    /// Decides on a frame of the port, whether it has a tag, the port has removed the tag, or it is untagged.
    /// `None`: it takes the slow path.
    #[inline(always)]
    #[must_use]
    pub fn frame(
        &mut self,
        port: EthernetIndex,
        head: &[u8],
        frame_len: usize,
        facts: FrameFacts,
    ) -> Option<Plain<'t, D, ToInfiniBand<'t, D>>> {
        // Frames without offload metadata come first: they may have the last frame's signature.
        let front = if facts.tag == FrameTag::InFrame {
            let head = head.first_chunk()?;
            match self.looks.front(head) {
                Some(front) => front,
                None => self.look(port, head, FrameTag::InFrame)?,
            }
        } else {
            self.look(port, head.first_chunk()?, facts.tag)?
        };
        let head = head.first_chunk()?;
        let lane = self.lane?;
        let how = lane.short.eth_to_ib(head, front, frame_len, facts.checksum, &lane.table, self.worker)?;
        let &Lane { segment, uplink, ref table, .. } = lane;
        Some(Plain { segment, uplink, table, marks: self.marks, front, how })
    }

    /// The segment's table, and the source and destination address of a frame that may be plain.
    #[inline(always)]
    #[must_use]
    pub fn addresses(
        &mut self,
        port: EthernetIndex,
        head: &[u8],
        facts: FrameFacts,
    ) -> Option<(&'t SegmentTable<D>, [u32; 2])> {
        let head = head.first_chunk()?;
        let glance = Glance::at(head, facts.tag)?;
        let vid = glance.vid;
        // The signature belongs to the lane of the last call of `frame`.
        self.looks = Looks::NO_FRAME;
        let lane = self.lane(vid, Side::InfiniBand, |tables| tables.lane_of_vlan(port, vid))?;
        Some((&lane.table, addresses(head.get(glance.len()..)?)?))
    }

    /// The segment's table, and the source and destination address of a message that may be plain.
    #[inline(always)]
    #[must_use]
    pub fn message_addresses(
        &mut self,
        (port, link): (EndpointIndex, u8),
        head: &[u8],
    ) -> Option<(&'t SegmentTable<D>, [u32; 2])> {
        let lane = self.lane(link.into(), Side::Ethernet, |tables| tables.lane_of_link(port, link))?;
        Some((&lane.table, addresses(head.get(IPOIB_HEADER_LEN..)?)?))
    }

    /// Decides on a message of a link of the port. `None`: it takes the slow path.
    #[inline(always)]
    #[must_use]
    pub fn message(
        &mut self,
        (port, link): (EndpointIndex, u8),
        head: &[u8],
        message_len: usize,
        source: &Source,
        checksum: Checksum,
    ) -> Option<Plain<'t, D, ToEthernet<'t>>> {
        let lane = self.lane(link.into(), Side::Ethernet, |tables| tables.lane_of_link(port, link))?;
        let how = lane.short.ib_to_eth(head, message_len, source, checksum, &lane.table)?;
        let &Lane { segment, uplink, ref table, .. } = lane;
        Some(Plain { segment, uplink, table, marks: self.marks, front: IPOIB_HEADER_LEN, how })
    }
}
