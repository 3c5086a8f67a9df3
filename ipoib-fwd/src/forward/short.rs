//! The short way, for the packets that nearly all are: IPv4 without options or fragment offset, unicast, between two hosts of the
//! segment's own subnet, that fit as they are.
//!
//! It asks what [`eth_to_ib`](super::eth_to_ib) and [`ib_to_eth`](super::ib_to_eth) ask of such a packet, in fewer steps: what of the
//! settings is asked of every packet is made ready when they are published ([`Lane`](super::tables::Lane)), headers are read as words, and all is
//! asked before the first branch, since plain packets pass all of it. What fails anything goes the long way, which alone knows why; so the
//! short way has no drop reasons. What it takes the long way would forward likewise: a property test holds the two against each other.
//!
//! A frame may have a tag in it: its packet stands four bytes further on, and its segment is found by two flat tables, VLAN to number
//! to lane. Frames that look as the last one did, which is one word compared, are of its segment. Packets of many segments in turn cost more
//! by what each touches of its own segment, so that this is on few cache lines: the lane, the hosts' first, a line of the list of
//! pages, of a page, of a block, the host.
//!
//! On a packet of `step-eth-ib-rc` it spends some 145 instructions, 46 of them on the two look-ups.

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

/// An IPv4 header without options, in words as they lie in memory: their numbers are of no meaning.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PacketWords {
    /// Version and length, service, total length, identification, flags and offset.
    start: U64,
    /// Time to live, protocol, checksum, source.
    middle: U64,
    destination: U32,
}

/// The addresses of a frame.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddressWords {
    /// The destination, and two bytes of the source.
    start: U64,
    /// The other four.
    source: U32,
}

/// The front of a message.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MessageWords {
    ethertype: U16,
    _reserved: U16,
    packet: PacketWords,
}

const ETHERTYPE: u16 = ETHERTYPE_IPV4.to_be();
/// The six bytes of an Ethernet address in a word.
const MAC: u64 = 0xffff_ffff_ffff;
/// Of a word's last two bytes, the offset of a fragment.
const OFFSET: u64 = 0xff1f << 48;
/// The bit of a word that tells an Ethernet address of a group.
const GROUP: u64 = 1;

/// A plain packet between hosts of the subnet.
struct Packet {
    total_len: u16,
    source: Ipv4Addr,
    destination: Ipv4Addr,
}

/// What to do with a frame that goes on as it is.
#[derive(Debug)]
pub struct ToInfiniBand<'t, D> {
    /// The way.
    pub via: Via<'t, D>,
    /// Bytes of the IPv4 packet.
    pub ip_len: u16,
    /// The neighbour it goes to; `None` for groups, which only the long way knows.
    pub neighbour: Option<NeighbourIndex>,
    /// Tell the control lcore that this neighbour wants a connection.
    pub dial: Option<NextHop>,
}

/// What to do with a message that goes on as it is.
#[derive(Debug)]
pub struct ToEthernet<'t> {
    /// Whom the frame is for.
    pub to: &'t MacAddress,
    /// Bytes of the IPv4 packet.
    pub ip_len: u16,
    /// The neighbour it goes to; `None` for groups, which only the long way knows.
    pub neighbour: Option<NeighbourIndex>,
}

/// What the short way asks of a segment's packets, made ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    /// Our Ethernet address as it lies in memory; one that no frame has, if nothing goes to InfiniBand.
    mac: u64,
    /// The first address of a host in our subnet, and how many there are: none, if nothing goes the short way.
    first: u32,
    hosts: u32,
    own: u32,
    ud_mtu: u16,
    eth_mtu: u16,
    to_ethernet: bool,
}

impl Short {
    /// For a segment with these settings.
    #[must_use]
    pub(super) fn new<D>(settings: &Settings<D>) -> Self {
        let [a, b, c, d, e, f] = settings.mac.0;
        let (first, hosts, own) = match &settings.address {
            Some(own) => {
                let (first, last) = own.subnet().hosts();
                // A subnet has one kind of addresses, or it is of groups, of loopback or reserved at one end.
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

    /// The packet behind `front` of `len` bytes, if it is a plain one that lies within them.
    #[inline(always)]
    fn plain(&self, words: &PacketWords, front: usize, len: usize, checksum: Checksum) -> Option<Packet> {
        let (start, middle, destination) = (words.start.get(), words.middle.get(), words.destination.get());
        // One's complement: the words add up to a multiple of 0xffff, in whatever order their bytes are (RFC 1071 2.B), and however long
        // they are: a carry out of 64 bits counts 1, since 2^64 - 1 is such a multiple.
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

    /// Decides on a frame whose IPv4 packet stands behind `front` bytes: see [`eth_to_ib`](super::eth_to_ib). `None`: it goes the long way.
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

    /// Decides on a message: see [`ib_to_eth`](super::ib_to_eth). `None`: it goes the long way.
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

/// A packet that goes the short way.
#[derive(Debug)]
pub struct Plain<'t, D, How> {
    /// Its segment.
    pub segment: SegmentIndex,
    /// Where that one's messages leave.
    pub uplink: Uplink,
    /// That one's table.
    pub table: &'t SegmentTable<D>,
    /// The worker's marks for the hosts that it may go to.
    pub marks: Option<&'t Marks>,
    /// Bytes in front of the IPv4 packet.
    pub front: usize,
    /// What to do with it.
    pub how: How,
}

/// The addresses in an IPv4 header, if it is one.
#[inline(always)]
fn addresses(packet: &[u8]) -> Option<[u32; 2]> {
    let (words, _) = PacketWords::ref_from_prefix(packet).ok()?;
    Some([((words.middle.get() >> 32) as u32).swap_bytes(), words.destination.get().swap_bytes()])
}

/// The short way of a burst's packets from one port.
#[derive(Debug)]
pub struct ShortWay<'t, D> {
    tables: &'t Tables<D>,
    worker: WorkerIndex,
    /// Everything goes the long way.
    is_closed: bool,
    /// The VLAN or link of the last packet: as a rule it is the next one's, too.
    last: u16,
    /// How frames of that VLAN look.
    looks: Looks,
    lane: Option<&'t Lane<D>>,
    marks: Option<&'t Marks>,
    /// Once a frame has asked for them.
    vlans: Option<&'t Vlans>,
}

/// Neither a VLAN nor a link.
const NONE: u16 = u16::MAX;

impl<'t, D: Clone> ShortWay<'t, D> {
    /// By these tables, for a worker.
    #[inline]
    #[must_use]
    pub const fn new(tables: &'t Tables<D>, worker: WorkerIndex) -> Self {
        let looks = Looks::NOBODYS;
        Self { tables, worker, is_closed: false, last: NONE, looks, lane: None, marks: None, vlans: None }
    }

    /// If so, nothing goes it.
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

    /// Looks at a frame that does not look as the last one did. Returns the bytes in front of its packet.
    #[inline(always)]
    fn look(&mut self, port: EthernetIndex, head: &[u8; GLANCED], tag: FrameTag) -> Option<usize> {
        if tag == FrameTag::InFrame
            && let Some((looks, vid)) = Looks::of_tagged(head)
        {
            // Of another VLAN than the last, or that one had its tag taken off.
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
        self.looks = if tag == FrameTag::InFrame { Looks::of_untagged() } else { Looks::NOBODYS };
        Some(glance.len())
    }

    /// Decides on a frame of the port's: with a tag in it, or taken off, or none. `None`: it goes the long way.
    #[inline(always)]
    #[must_use]
    pub fn frame(
        &mut self,
        port: EthernetIndex,
        head: &[u8],
        frame_len: usize,
        facts: FrameFacts,
    ) -> Option<Plain<'t, D, ToInfiniBand<'t, D>>> {
        // First what is known beforehand of frames of which the port told nothing.
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

    /// The segment and the addresses, source and destination, of a frame that may be plain.
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
        // Looks are of the lane that `frame` saw last.
        self.looks = Looks::NOBODYS;
        let lane = self.lane(vid, Side::InfiniBand, |tables| tables.lane_of_vlan(port, vid))?;
        Some((&lane.table, addresses(head.get(glance.len()..)?)?))
    }

    /// The same of a message.
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

    /// Decides on a message of a link's of the port. `None`: it goes the long way.
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
