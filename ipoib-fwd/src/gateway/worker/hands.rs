//! Handling of a packet whose segment is known: computing the verdict, and carrying it out.

use std::net::Ipv4Addr;

use dataplane::usage::Marks;
use pmd::eth::Burst;
use pmd::hca::{Checksum, MemoryWork, Received, Refused, Source, UdSlot};
use pmd::mem::{Mbuf, Pool, Single};
use tap::TapDirection;

use super::faces::{EthernetFace, InfiniBandFace};
use super::{Common, held, origin_of};
use crate::counter::{SegmentTraffic, Traffic};
use crate::forward::{
    EndpointIndex, EthVerdict, EthernetIndex, FrameHead, IbVerdict, NeighbourIndex, NextHop, Plain,
    SegmentIndex, SegmentTable, Settings, ShortWay, Tables, ToEthernet, ToInfiniBand, Uplink, Via, eth_to_ib,
    ib_to_eth,
};
use crate::gateway::frames::{complete, head, offer};
use crate::gateway::sighting::Outcome;
use crate::gateway::tag;
use crate::segment::Origin;
use endpoint::{Note, RING, Taken};
use ipoib::drop_reason::DropReason;
use ipoib::link::LinkIndex;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, EthernetHeader, MacAddress};
use ipoib::net::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER};

/// The context in which verdicts are carried out: the egress port of a packet may be any port.
pub(super) struct Hands<'a, Q: MemoryWork> {
    pub(super) infinibands: &'a mut [InfiniBandFace<Q>],
    pub(super) ethernets: &'a mut [EthernetFace],
    pub(super) common: &'a mut Common,
    /// Buffers for fragments.
    pub(super) pool: &'a Pool,
}

/// The Ethernet header of a frame with a segment's IPv4 packet.
#[inline]
pub(super) const fn frame_header<D>(destination: MacAddress, table: &SegmentTable<D>) -> EthernetHeader {
    EthernetHeader { destination, source: table.settings.mac, ethertype: ETHERTYPE_IPV4 }
}

/// The sender of a frame, as an identifier for
/// [`StormGuard::admits`](crate::segment::pair::storm::StormGuard::admits).
fn frame_origin(frame: &Mbuf) -> u64 {
    let [_, _, _, _, _, _, a, b, c, d, e, f] = *head(frame).first_chunk().unwrap_or(&[0; 12]);
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The same for a message; the top bit marks its side.
fn message_origin(source: &Source) -> u64 {
    match source {
        Source::Ud(ud) => 1 << 63 | u64::from(ud.slid.0) << 32 | u64::from(ud.qpn.get()),
        Source::Rc | Source::RcInvalidated(_) => 1 << 63,
    }
}

/// Writes the header in front of the packet. Addresses are copied directly from the tables into the frame: a
/// header that is assembled first would go through the stack.
#[inline(always)]
fn write_frame_header<D>(
    room: &mut [u8; ETHERNET_HEADER_LEN],
    destination: &MacAddress,
    table: &SegmentTable<D>,
) {
    let [to @ .., _, _, _, _, _, _, _, _] = room;
    *to = destination.0;
    let [_, _, _, _, _, _, from @ .., _, _] = room;
    *from = table.settings.mac.0;
    let [.., t, y] = room;
    [*t, *y] = ETHERTYPE_IPV4.to_be_bytes();
}

/// Marks the neighbor as used; true for the first time since the accessed bits were taken.
#[inline(always)]
pub(super) fn mark(marks: Option<&Marks>, neighbour: Option<NeighbourIndex>) -> bool {
    match (marks, neighbour) {
        (Some(marks), Some(index)) => marks.mark(index.0 as usize),
        _ => false,
    }
}

/// Computes the checksum of a frame for which the port reports that it has none.
#[cold]
fn completed(frame: Single) -> Result<Single, Mbuf> {
    let mut frame = Mbuf::from(frame);
    complete(&mut frame);
    frame.single()
}

/// The same for any frame on the slow path, which does not check for that report.
#[cold]
fn completed_any(mut frame: Mbuf) -> Mbuf {
    if frame.frame_facts().checksum == Checksum::Missing {
        complete(&mut frame);
    }
    frame
}

/// The counter of a message.
#[inline(always)]
const fn path<D>(via: Via<'_, D>) -> Traffic {
    match via {
        Via::Rc(_) => Traffic::IbRcTransmit,
        Via::Ud(_) => Traffic::IbUdUnicastTransmit,
        Via::Group(_) => Traffic::IbUdMulticastTransmit,
    }
}

/// The frame that ends a run of frames for one port of the fabric.
pub(super) enum RunEnd<'t, D> {
    /// It is on the fast path, too, but leaves by another port.
    Elsewhere(Plain<'t, D, ToInfiniBand<'t, D>>, Single),
    /// It takes the slow path.
    Long(Mbuf),
}

impl Common {
    /// Counts a message of this many bytes that a queue has accepted.
    #[inline(always)]
    fn sent(&mut self, segment: SegmentIndex, path: Traffic, bytes: usize) {
        self.counters.forwarded(segment, SegmentTraffic::ToInfiniBand, Some(path), bytes);
    }

    /// Counts the outcome of a message of this many bytes.
    #[inline(always)]
    fn taken(
        &mut self,
        segment: SegmentIndex,
        path: Traffic,
        bytes: usize,
        taken: Result<Taken, Refused>,
    ) -> Outcome {
        match taken {
            Ok(Taken::Now) => {
                self.sent(segment, path, bytes);
                Outcome::Sent
            }
            // Counted when the queue accepts it.
            Ok(Taken::Later) => Outcome::Waits,
            Err(refused) => {
                let reason = held::reason(refused.error);
                self.counters.drops_of(segment, reason, 1);
                Outcome::Dropped(reason)
            }
        }
    }
}

/// The message of a frame with `front` bytes before its packet.
#[inline(always)]
fn reframed(
    common: &mut Common,
    segment: SegmentIndex,
    front: usize,
    ip_len: u16,
    frame: Single,
) -> Option<Single> {
    let message = frame.reframe(front, ip_len, IPOIB_IPV4_HEADER);
    if message.is_none() {
        common.counters.drops_of(segment, DropReason::BadLength, 1);
    }
    message
}

impl<Q: MemoryWork> InfiniBandFace<Q> {
    /// Carries out the fast path's verdict for a frame that leaves by this port, in place: removes 14 or 18
    /// bytes of Ethernet header, adds 4 bytes of encapsulation, cuts padding.
    #[inline(always)]
    fn forward_plain(
        &mut self,
        common: &mut Common,
        plain: Plain<'_, Q::Destination, ToInfiniBand<'_, Q::Destination>>,
        frame: Single,
    ) {
        let Plain { segment, uplink, marks, front, how, .. } = plain;
        let ToInfiniBand { via, ip_len, neighbour, dial } = how;
        // Each TX path is compiled separately from here on, so that its properties are compile-time
        // constants.
        match via {
            Via::Rc(slot) => {
                // Connected peers need no connection request. The fields for the accessed bit are read before
                // the message is sent.
                mark(marks, neighbour);
                let Some(message) = reframed(common, segment, front, ip_len, frame) else { return };
                let bytes = message.data().len();
                match self.link.send_single_rc(slot, message) {
                    Ok(()) => common.sent(segment, Traffic::IbRcTransmit, bytes),
                    Err(refused) => {
                        let tag = held::tag(segment, Traffic::IbRcTransmit);
                        let taken = self.link.refused_rc(slot, tag, refused);
                        common.taken(segment, Traffic::IbRcTransmit, bytes, taken);
                    }
                }
            }
            Via::Ud(to) | Via::Group(to) => {
                if mark(marks, neighbour)
                    && let Some(ip) = dial
                {
                    self.want(ip.into(), uplink.link);
                }
                let Some(message) = reframed(common, segment, front, ip_len, frame) else { return };
                let (path, bytes) = (path(via), message.data().len());
                let slot = UdSlot(uplink.link);
                match self.link.send_single_ud(slot, to, message) {
                    Ok(()) => common.sent(segment, path, bytes),
                    Err(refused) => {
                        let taken = self.link.refused_ud(slot, to, held::tag(segment, path), refused);
                        common.taken(segment, path, bytes, taken);
                    }
                }
            }
        }
    }

    /// Reports that packets are sent to a host without a connection.
    #[cold]
    fn want(&mut self, ip: Ipv4Addr, link: u8) {
        let (_, notes) = self.link.parts();
        // A hint: if the ring is full it is lost, and the next packet repeats it.
        if notes.room() > RING / 8 {
            drop(notes.send(Note::Wanted(LinkIndex(link.into()), ip.into())));
        }
    }
}

impl<Q: MemoryWork> Hands<'_, Q> {
    /// Groups a port's frames by VLAN.
    #[inline(always)]
    pub(super) fn group(&mut self, port: EthernetIndex, burst: &mut Burst) {
        if let Some(face) = self.ethernets.get_mut(port.at()) {
            face.grouping.by_vlan(burst);
        }
    }

    /// Counts a dropped packet of a segment.
    #[inline]
    pub(super) fn drop(&mut self, segment: SegmentIndex, reason: DropReason) -> Outcome {
        self.common.counters.drops_of(segment, reason, 1);
        Outcome::Dropped(reason)
    }

    /// The slow path of a frame.
    #[inline(never)]
    pub(super) fn take_any_frame(
        &mut self,
        port: EthernetIndex,
        frame: Mbuf,
        tables: &Tables<Q::Destination>,
    ) {
        let facts = frame.frame_facts();
        if self.common.tracer.is_some() {
            return self.trace_arrived_frame(port, frame, facts, tables);
        }
        match FrameHead::parse(head(&frame), facts) {
            Ok(front) => match tables.of_vlan(port, front.vid) {
                Some((segment, table)) => {
                    self.take_frame(frame, &front, segment, table);
                }
                None => self.common.counters.drop(DropReason::VlanUnknown),
            },
            Err(reason) => self.common.counters.drop(reason),
        }
    }

    /// The slow path of a message.
    #[inline(never)]
    pub(super) fn take_any_message(
        &mut self,
        port: EndpointIndex,
        received: Received,
        tables: &Tables<Q::Destination>,
    ) {
        if self.common.tracer.is_some() {
            return self.trace_arrived_message(port, received, tables);
        }
        let Received { buf, qpn, ud, source, checksum, .. } = received;
        match ud.and_then(|ud| tables.of_link(port, ud.0)) {
            Some((segment, table)) => {
                let origin = Some(origin_of(&source, qpn));
                self.take_message(buf, &source, checksum, origin, segment, table);
            }
            None => self.common.counters.drop(DropReason::LinkUnknown),
        }
    }

    /// Forwards frames of a port one after the other, as long as they are on the fast path and leave by this
    /// port of the fabric, which is looked up once for all of them. Returns the first frame that does not;
    /// `None` if there was none.
    #[inline(always)]
    pub(super) fn forward_run<'t>(
        &mut self,
        short: &mut ShortWay<'t, Q::Destination>,
        (from, to): (EthernetIndex, EndpointIndex),
        frames: &mut impl Iterator<Item = Mbuf>,
    ) -> Option<RunEnd<'t, Q::Destination>> {
        let Self { infinibands, common, .. } = self;
        let Some(face) = infinibands.get_mut(to.at()) else {
            return frames.next().map(completed_any).map(RunEnd::Long);
        };
        for frame in frames {
            let mut frame = match frame.single() {
                Ok(frame) => frame,
                Err(frame) => return Some(RunEnd::Long(completed_any(frame))),
            };
            let facts = frame.facts();
            if facts.checksum == Checksum::Missing {
                frame = match completed(frame) {
                    Ok(frame) => frame,
                    Err(frame) => return Some(RunEnd::Long(frame)),
                };
            }
            match short.frame(from, frame.data(), frame.data().len(), facts) {
                Some(plain) if plain.uplink.endpoint == to => face.forward_plain(common, plain, frame),
                Some(plain) => return Some(RunEnd::Elsewhere(plain, frame)),
                None => return Some(RunEnd::Long(frame.into())),
            }
        }
        None
    }

    /// Carries out the fast path's verdict for a frame that leaves by any port.
    #[inline(never)]
    pub(super) fn forward_single(
        &mut self,
        plain: Plain<'_, Q::Destination, ToInfiniBand<'_, Q::Destination>>,
        frame: Single,
    ) {
        match self.infinibands.get_mut(plain.uplink.endpoint.at()) {
            Some(face) => face.forward_plain(self.common, plain, frame),
            None => {
                self.drop(plain.segment, DropReason::SegmentGone);
            }
        }
    }

    /// Carries out the slow path's verdict for any frame, in place: removes 14 or 18 bytes of Ethernet
    /// header, adds 4 bytes of encapsulation, cuts padding.
    #[inline(always)]
    pub(super) fn forward_frame(
        &mut self,
        plain: Plain<'_, Q::Destination, ToInfiniBand<'_, Q::Destination>>,
        mut frame: Mbuf,
    ) -> Outcome {
        let Plain { segment, uplink, table, marks, front, how } = plain;
        let ToInfiniBand { via, ip_len, neighbour, dial } = how;
        match frame.reframe(front, ip_len.into()) {
            Some(header) => *header = IPOIB_IPV4_HEADER,
            None => return self.drop(segment, DropReason::BadLength),
        }
        let outcome = self.send_message(segment, via, frame, uplink);
        self.note_use(marks, neighbour, dial, table);
        outcome
    }

    /// Carries out a verdict of either path for a message.
    #[inline(always)]
    pub(super) fn forward_message(
        &mut self,
        plain: Plain<'_, Q::Destination, ToEthernet<'_>>,
        mut message: Mbuf,
    ) -> Outcome {
        let Plain { segment, table, marks, front, how, .. } = plain;
        let ToEthernet { to, ip_len, neighbour } = how;
        mark(marks, neighbour);
        // In place: removes 4 bytes of encapsulation, adds 14 bytes of Ethernet header.
        match message.reframe(front, ip_len.into()) {
            Some(room) => write_frame_header(room, to, table),
            None => return self.drop(segment, DropReason::BadLength),
        }
        self.push_frame(segment, message, &table.settings)
    }

    #[inline(always)]
    pub(super) fn take_frame(
        &mut self,
        frame: Mbuf,
        front: &FrameHead,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) -> Outcome {
        let verdict = eth_to_ib(head(&frame), front, frame.len(), table, self.common.worker);
        if self.common.leases.is_over(segment) && verdict.is_of_forwarder() {
            return self.drop(segment, DropReason::LeaseOver);
        }
        if let EthVerdict::Forward { via: Via::Group(_), .. }
        | EthVerdict::Fragment { via: Via::Group(_), .. } = verdict
            && !self.is_calm(segment, head(&frame), front.len, frame_origin(&frame))
        {
            return self.drop(segment, DropReason::Storm);
        }
        self.carry_out_ethernet(verdict, frame, front.len, segment, table)
    }

    #[inline(always)]
    pub(super) fn take_message(
        &mut self,
        message: Mbuf,
        source: &Source,
        checksum: Checksum,
        origin: Option<Origin>,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) -> Outcome {
        let verdict = ib_to_eth(head(&message), message.len(), source, checksum, table);
        if self.common.leases.is_over(segment) && verdict.is_of_forwarder() {
            return self.drop(segment, DropReason::LeaseOver);
        }
        if let IbVerdict::Forward { neighbour: None, .. } | IbVerdict::Fragment { neighbour: None, .. } =
            verdict
            && !self.is_calm(segment, head(&message), IPOIB_HEADER_LEN, message_origin(source))
        {
            return self.drop(segment, DropReason::Storm);
        }
        self.carry_out_infiniband(verdict, message, origin, segment, table)
    }

    /// Queues a frame for its segment's Ethernet port, with the tag of its VLAN.
    #[inline(always)]
    pub(super) fn push_frame(
        &mut self,
        segment: SegmentIndex,
        mut frame: Mbuf,
        settings: &Settings<Q::Destination>,
    ) -> Outcome {
        let Some(face) = self.ethernets.get_mut(settings.ethernet.at()) else {
            return self.drop(segment, DropReason::SegmentGone);
        };
        if let Some(vid) = settings.vlan {
            if face.queue.inserts_tags() {
                frame.wish_tag(vid);
            } else if !tag::insert(&mut frame, vid) {
                return self.drop(segment, DropReason::NoBuffers);
            }
        }
        if let Some(tap) = &mut self.common.tap {
            offer(tap, TapDirection::Sent, &frame, frame.wished_tag());
        }
        let bytes = frame.len();
        if face.push(frame, &mut self.common.counters) {
            self.common.counters.forwarded(segment, SegmentTraffic::ToEthernet, None, bytes);
            Outcome::Sent
        } else {
            self.drop(segment, DropReason::EthQueueFull)
        }
    }

    /// True if a packet to a group or to all hosts is within the storm guard's limits, and does not recur
    /// from another station.
    fn is_calm(&mut self, segment: SegmentIndex, head: &[u8], header_len: usize, origin: u64) -> bool {
        let packet = head.get(header_len..).unwrap_or_default();
        let broadcast = packet.get(16).is_some_and(|first| !(224..240).contains(first));
        let Common { storm, shared_storm, .. } = &mut self.common;
        storm.admits(shared_storm, segment.0.into(), packet, broadcast, origin)
    }

    #[inline(always)]
    pub(super) fn send_message(
        &mut self,
        segment: SegmentIndex,
        via: Via<'_, Q::Destination>,
        message: Mbuf,
        Uplink { endpoint, link }: Uplink,
    ) -> Outcome {
        let bytes = message.len();
        let ud = UdSlot(link);
        let Some(face) = self.infinibands.get_mut(endpoint.at()) else {
            return self.drop(segment, DropReason::SegmentGone);
        };
        let path = path(via);
        let tag = held::tag(segment, path);
        let taken = match via {
            Via::Rc(slot) => face.link.send_rc(slot, tag, message),
            Via::Ud(to) | Via::Group(to) => face.link.send_ud(ud, to, tag, message),
        };
        self.common.taken(segment, path, bytes, taken)
    }

    /// Marks the neighbor as used; the first packet after the accessed bits were taken may request a
    /// connection.
    #[inline(always)]
    pub(super) fn note_use(
        &mut self,
        marks: Option<&Marks>,
        neighbour: Option<NeighbourIndex>,
        dial: Option<NextHop>,
        table: &SegmentTable<Q::Destination>,
    ) {
        if mark(marks, neighbour)
            && let Some(ip) = dial
        {
            self.want(ip.into(), table);
        }
    }

    #[cold]
    pub(super) fn want(&mut self, ip: Ipv4Addr, table: &SegmentTable<Q::Destination>) {
        if let Some(face) = self.infinibands.get_mut(table.settings.endpoint.at()) {
            face.want(ip, table.settings.link);
        }
    }
}
