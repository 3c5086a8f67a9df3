//! A worker lcore of the gateway: one turn over an Ethernet queue and the queues of an IPoIB link.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use dataplane::latency::Recorder;
use dataplane::ring::Sender;
use dataplane::table::Reader;
use dataplane::worker::{Turn, Worker};
use pmd::eth::{self, Burst, EthQueue};
use pmd::hca::{BURST, Checksum, PostError, Queues, Received, RxBurst, Source, UdSlot, UdSource};
use pmd::mem::{FrameFacts, FrameTag, Mbuf, Pool};
use tap::{Tap, TapDirection};

use crate::counter::{SegmentTraffic, Traffic, WorkerCounters};
use crate::forward::{
    EthVerdict, FrameHead, IbVerdict, NeighbourIndex, Punt, SegmentIndex, SegmentTable, Side, Tables, Used,
    Via, eth_to_ib, ib_to_eth, own_to_ib,
};
use crate::segment::Origin;
use crate::segment::pair::storm::StormGuard;
use endpoint::{LinkWorker, Note, RING, note};
use ib_wire::Qpn;
use ipoib::drop_reason::DropReason;
use ipoib::link::{LinkIndex, WorkerIndex};
use ipoib::net::ethernet::ETHERNET_HEADER_LEN;
use ipoib::net::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER};

use super::cut;
use super::frames::{complete, head, offer};
use super::punts;
use super::tag;
use super::usage::Receivers;

/// What the control lcore asks of a gateway's worker beside the link's commands.
#[derive(Debug)]
pub enum GatewayCommand {
    /// Send a frame of a segment, which has no tag, by the Ethernet port.
    SendEthernet(SegmentIndex, Mbuf),
    /// Forward a packet of a segment that waited for its destination, as if it had come in now. A frame has no tag.
    Forward(SegmentIndex, Side, Mbuf),
    /// Send an IPv4 packet of the gateway's own, behind room for an Ethernet header, to an InfiniBand host of a segment.
    SendInfiniBand(SegmentIndex, Ipv4Addr, Mbuf),
}

/// Why a packet goes to the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The forwarding step says so.
    Punt(Punt),
    /// It does not fit and may not be cut: its source is to be told.
    TooBig {
        /// Largest packet that would fit.
        mtu: u16,
        /// The neighbour to which a connection is wanted that may take it.
        dial: Option<Ipv4Addr>,
    },
}

/// What a worker hands to the control lcore beside the link's notes.
#[derive(Debug)]
pub struct GatewayNote {
    /// Why.
    pub cause: Cause,
    /// The segment that it is of.
    pub segment: SegmentIndex,
    /// Where it came from.
    pub side: Side,
    /// For a message, how it came; `None` if it has waited.
    pub origin: Option<Origin>,
    /// The whole message, or the frame without its tag.
    pub packet: Mbuf,
}

/// The one Ethernet port.
const ETHERNET_PORT: u8 = 0;
/// Commands that the link takes in one turn, at most.
const COMMANDS_PER_TURN: usize = 32;
/// Bursts of received messages taken in one turn.
const RECEIVE_ROUNDS: usize = 4;
/// How many turns a frame that the port does not take is held before it is dropped.
const TX_PATIENCE: u32 = 64;

/// One worker.
#[derive(Debug)]
pub struct GatewayWorker<Q: Queues> {
    link: LinkWorker<Q, GatewayCommand, GatewayNote>,
    eth: EthQueue,
    tables: Reader<Tables<Q::Destination>>,
    pool: Pool,
    counters: WorkerCounters,
    service: Recorder,
    eth_tx: Burst,
    /// Turns for which the port has refused frames.
    refused_turns: u32,
    /// Shared receives below which frames are dropped rather than kept waiting for the Ethernet port.
    srq_low: u32,
    receivers: Arc<Receivers>,
    storm: StormGuard,
    tap: Option<Tap>,
}

/// What is worth its own type: everything that a verdict is carried out with.
struct Hands<'a, Q: Queues> {
    worker: WorkerIndex,
    queues: &'a mut Q,
    notes: &'a mut Sender<Note<Q, GatewayNote>>,
    eth: &'a mut EthQueue,
    eth_tx: &'a mut Burst,
    refused_turns: &'a mut u32,
    counters: &'a mut WorkerCounters,
    pool: &'a Pool,
    receivers: &'a Receivers,
    storm: &'a mut StormGuard,
    tap: &'a mut Option<Tap>,
}

impl<Q: Queues> GatewayWorker<Q> {
    /// A worker from its parts. `seed` is drawn at start: the network must not know which packets collide.
    pub fn new(
        link: LinkWorker<Q, GatewayCommand, GatewayNote>,
        eth: EthQueue,
        tables: Reader<Tables<Q::Destination>>,
        pool: Pool,
        srq_low: u32,
        seed: u64,
        tap: Option<Tap>,
    ) -> Self {
        Self {
            link,
            eth,
            tables,
            pool,
            counters: WorkerCounters::default(),
            service: Recorder::default(),
            eth_tx: Burst::new(),
            refused_turns: 0,
            srq_low,
            receivers: Arc::default(),
            storm: StormGuard::new(seed),
            tap,
        }
    }

    /// The counters, for a reader.
    #[must_use]
    pub const fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Marks of the connections that it received from, for the control lcore.
    #[must_use]
    pub(super) fn receivers(&self) -> Arc<Receivers> {
        Arc::clone(&self.receivers)
    }

    /// Takes the worker apart when it has ended.
    pub fn into_parts(mut self) -> (Q, EthQueue, Recorder) {
        // Frames that the port did not take in the end.
        self.counters.drops(DropReason::Shutdown, self.eth_tx.len() as u64);
        self.eth_tx.clear();
        (self.link.into_queues(), self.eth, self.service)
    }

    fn take_commands(&mut self) -> usize {
        let mut commands: ArrayVec<GatewayCommand, COMMANDS_PER_TURN> = ArrayVec::new();
        let counters = &mut self.counters;
        let done = self.link.commands(&mut self.service, |command, _| {
            if commands.try_push(command).is_err() {
                counters.drop(DropReason::NeighbourQueueFull);
            }
        });
        let (tables, mut hands) = self.hands();
        for command in commands {
            let (GatewayCommand::SendEthernet(segment, _)
            | GatewayCommand::Forward(segment, ..)
            | GatewayCommand::SendInfiniBand(segment, ..)) = command;
            let Some(table) = tables.segment(segment) else {
                hands.counters.drop(DropReason::SegmentGone);
                continue;
            };
            match command {
                GatewayCommand::SendEthernet(_, frame) => {
                    hands.push_frame(segment, frame, table.settings.vlan)
                }
                GatewayCommand::Forward(_, Side::InfiniBand, message) => {
                    hands.take_message(message, &Source::Rc, Checksum::Unknown, None, segment, table);
                }
                GatewayCommand::Forward(_, Side::Ethernet, frame) => {
                    match FrameHead::parse(head(&frame), FrameFacts::default()) {
                        Ok(front) => hands.take_frame(frame, &front, segment, table),
                        Err(reason) => hands.drop(segment, reason),
                    }
                }
                GatewayCommand::SendInfiniBand(_, to, packet) => {
                    let verdict = own_to_ib(head(&packet), packet.len(), to, table, hands.worker);
                    hands.carry_out_ethernet(verdict, packet, ETHERNET_HEADER_LEN, segment, table);
                }
            }
        }
        done
    }

    /// The newest tables, and everything that verdicts are carried out with.
    #[inline]
    fn hands(&mut self) -> (&Tables<Q::Destination>, Hands<'_, Q>) {
        let worker = WorkerIndex(self.link.index());
        let (queues, notes) = self.link.parts();
        let hands = Hands {
            worker,
            queues,
            notes,
            eth: &mut self.eth,
            eth_tx: &mut self.eth_tx,
            refused_turns: &mut self.refused_turns,
            counters: &mut self.counters,
            pool: &self.pool,
            receivers: &self.receivers,
            storm: &mut self.storm,
            tap: &mut self.tap,
        };
        (self.tables.refresh(), hands)
    }

    /// Receives from the Ethernet port.
    fn poll_ethernet(&mut self) -> bool {
        let mut burst = Burst::new();
        if self.eth.rx_burst(&mut burst) == 0 {
            return false;
        }
        let (tables, mut hands) = self.hands();
        for mut frame in burst {
            let facts = frame.frame_facts();
            hands.counters.packet(Traffic::EthReceive, frame.len());
            if let Some(tap) = hands.tap {
                let tag = if let FrameTag::Taken(control) = facts.tag { Some(control) } else { None };
                offer(tap, TapDirection::Received, &frame, tag);
            }
            if facts.checksum == Checksum::Missing {
                complete(&mut frame);
            }
            match FrameHead::parse(head(&frame), facts) {
                Ok(front) => match tables.of_vlan(ETHERNET_PORT, front.vid) {
                    Some((segment, table)) => hands.take_frame(frame, &front, segment, table),
                    None => hands.counters.drop(DropReason::VlanUnknown),
                },
                Err(reason) => hands.counters.drop(reason),
            }
        }
        true
    }

    /// Receives from the fabric.
    fn poll_infiniband(&mut self) -> bool {
        let mut burst = RxBurst::new();
        self.link.receive(&mut burst);
        if burst.is_empty() {
            return false;
        }
        let (tables, mut hands) = self.hands();
        for Received { buf, qpn, ud, source, checksum } in burst {
            hands.counters.packet(path_of(&source), buf.len());
            if matches!(source, Source::Rc) {
                hands.receivers.mark(qpn);
            }
            match ud.and_then(|ud| tables.of_link(ud.0)) {
                Some((segment, table)) => {
                    let origin = Some(origin_of(&source, qpn));
                    hands.take_message(buf, &source, checksum, origin, segment, table);
                }
                None => hands.counters.drop(DropReason::LinkUnknown),
            }
            if hands.eth_tx.is_full() {
                hands.flush_ethernet();
            }
        }
        true
    }

    /// True if receiving from the fabric may wait for the Ethernet port. Not for long, and not when shared receives
    /// run low: a peer whose message finds none loses its connection.
    fn may_wait_for_ethernet(&mut self) -> bool {
        if self.eth_tx.is_empty() {
            return false;
        }
        let (_, srq) = self.link.parts().0.receives_posted();
        if self.refused_turns < TX_PATIENCE && srq > self.srq_low {
            return true;
        }
        self.counters.drops(DropReason::EthQueueFull, self.eth_tx.len() as u64);
        self.eth_tx.clear();
        self.refused_turns = 0;
        false
    }
}

impl<Q: Queues> Worker for GatewayWorker<Q> {
    fn turn(&mut self) -> Turn {
        let mut busy = self.take_commands() > 0;
        busy |= self.link.queues().turn();
        busy |= self.poll_ethernet();
        self.link.queues().ring();
        self.hands().1.flush_ethernet();
        // The device may have filled more than one burst meanwhile.
        for _ in 0..RECEIVE_ROUNDS {
            if self.may_wait_for_ethernet() || !self.poll_infiniband() {
                break;
            }
            busy = true;
            self.hands().1.flush_ethernet();
        }
        busy |= self.link.finish();
        if busy { Turn::Busy } else { Turn::Idle }
    }

    fn record_service_time(&mut self, ns: u64) {
        self.service.record(ns);
    }

    // Where a side does not wake, a rest is as short as a packet from there may wait.
    fn arm(&mut self) -> bool {
        self.link.queues().arm()
    }

    fn rest(&mut self, at_most: Duration) -> bool {
        if self.eth.events().is_none() {
            return self.link.queues().wait(at_most);
        }
        let told = eth::wait(std::iter::once(&self.eth), self.link.queues().events(), at_most);
        told && self.link.queues().wait(Duration::ZERO)
    }
}

fn origin_of(source: &Source, qpn: Qpn) -> Origin {
    match source {
        Source::Rc => Origin::Connection(qpn),
        Source::Ud(source) => Origin::Datagram(*source),
    }
}

fn path_of(source: &Source) -> Traffic {
    match source {
        Source::Rc => Traffic::IbRcReceive,
        Source::Ud(UdSource { multicast: true, .. }) => Traffic::IbUdMulticastReceive,
        Source::Ud(_) => Traffic::IbUdUnicastReceive,
    }
}

impl<Q: Queues> Hands<'_, Q> {
    /// Counts a packet of a segment's that is dropped.
    #[inline]
    fn drop(&mut self, segment: SegmentIndex, reason: DropReason) {
        self.counters.drops_of(segment, reason, 1);
    }

    #[inline]
    fn take_frame(
        &mut self,
        frame: Mbuf,
        front: &FrameHead,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) {
        let verdict = eth_to_ib(head(&frame), front, frame.len(), table, self.worker);
        if let EthVerdict::Forward { via: Via::Group(_), .. }
        | EthVerdict::Fragment { via: Via::Group(_), .. } = verdict
            && !self.is_calm(segment, head(&frame), front.len)
        {
            return self.drop(segment, DropReason::Storm);
        }
        self.carry_out_ethernet(verdict, frame, front.len, segment, table);
    }

    #[inline]
    fn take_message(
        &mut self,
        message: Mbuf,
        source: &Source,
        checksum: Checksum,
        origin: Option<Origin>,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) {
        let verdict = ib_to_eth(head(&message), message.len(), source, checksum, table);
        if let IbVerdict::Forward { neighbour: None, .. } | IbVerdict::Fragment { neighbour: None, .. } =
            verdict
            && !self.is_calm(segment, head(&message), IPOIB_HEADER_LEN)
        {
            return self.drop(segment, DropReason::Storm);
        }
        self.carry_out_infiniband(verdict, message, origin, segment, table);
    }

    /// Queues a frame for the Ethernet port, with the tag of its VLAN.
    #[inline]
    fn push_frame(&mut self, segment: SegmentIndex, mut frame: Mbuf, vlan: Option<u16>) {
        if let Some(vid) = vlan {
            if self.eth.inserts_tags() {
                frame.wish_tag(vid);
            } else if !tag::insert(&mut frame, vid) {
                return self.drop(segment, DropReason::NoBuffers);
            }
        }
        if self.eth_tx.is_full() {
            self.flush_ethernet();
        }
        if let Some(tap) = self.tap {
            offer(tap, TapDirection::Sent, &frame, frame.wished_tag());
        }
        let bytes = frame.len();
        if self.eth_tx.try_push(frame).is_ok() {
            self.counters.of_segment(segment, SegmentTraffic::ToEthernet, bytes);
        } else {
            self.drop(segment, DropReason::EthQueueFull);
        }
    }

    /// True if a packet to a group or to all does not come too often.
    fn is_calm(&mut self, segment: SegmentIndex, head: &[u8], header_len: usize) -> bool {
        let packet = head.get(header_len..).unwrap_or_default();
        let broadcast = packet.get(16).is_some_and(|first| !(224..240).contains(first));
        self.storm.admits(self.receivers.period.load(Ordering::Relaxed), segment.0.into(), packet, broadcast)
    }

    /// Sends what waits for the Ethernet port; what it does not take waits on.
    fn flush_ethernet(&mut self) {
        if self.eth_tx.is_empty() {
            return;
        }
        // Before they are sent: a driver may put a tag even into a frame that it does not take.
        let lengths: ArrayVec<usize, BURST> = self.eth_tx.iter().map(Mbuf::len).collect();
        let sent = self.eth.tx_burst(self.eth_tx);
        let bytes: usize = lengths.iter().take(sent).sum();
        self.counters.packets(Traffic::EthTransmit, sent as u64, bytes as u64);
        *self.refused_turns = if self.eth_tx.is_empty() { 0 } else { *self.refused_turns + 1 };
    }

    #[inline]
    fn carry_out_ethernet(
        &mut self,
        verdict: EthVerdict<'_, Q::Destination>,
        mut frame: Mbuf,
        front: usize,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) {
        match verdict {
            EthVerdict::Forward { via, ip_len, neighbour, dial } => {
                // 14 or 18 bytes of Ethernet header off, 4 of encapsulation on, padding cut: in place.
                let fits = frame.trim_front(front) && frame.truncate(usize::from(ip_len));
                match frame.prepend(IPOIB_HEADER_LEN).filter(|_| fits) {
                    Some(header) => header.copy_from_slice(&IPOIB_IPV4_HEADER),
                    None => return self.drop(segment, DropReason::BadLength),
                }
                self.send_message(segment, via, frame, table);
                self.note_use(neighbour, dial, table);
            }
            EthVerdict::Fragment { via, ip_len, mtu, neighbour, dial } => {
                self.counters.packet(Traffic::Fragmented, frame.len());
                let cut = cut::pieces(self.pool, &frame, front, ip_len, mtu, &IPOIB_IPV4_HEADER);
                for piece in cut {
                    match piece {
                        Some(piece) => self.send_message(segment, via, piece, table),
                        None => self.drop(segment, DropReason::NoBuffers),
                    }
                }
                self.note_use(neighbour, dial, table);
            }
            EthVerdict::TooBig { mtu, dial } => {
                if let Some(ip) = dial {
                    self.want(ip, table);
                }
                self.punt_frame(Cause::TooBig { mtu, dial }, segment, front, frame);
            }
            EthVerdict::Punt(punt) => self.punt_frame(Cause::Punt(punt), segment, front, frame),
            EthVerdict::Drop(reason) => self.drop(segment, reason),
        }
    }

    #[inline]
    fn carry_out_infiniband(
        &mut self,
        verdict: IbVerdict,
        mut message: Mbuf,
        origin: Option<Origin>,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) {
        match verdict {
            IbVerdict::Forward { header, ip_len, neighbour } => {
                self.note_ethernet_use(neighbour, table);
                // 4 bytes of encapsulation off, 14 of Ethernet header on: in place.
                let fits = message.trim_front(IPOIB_HEADER_LEN) && message.truncate(usize::from(ip_len));
                match message.prepend(ETHERNET_HEADER_LEN).filter(|_| fits) {
                    Some(room) => room.copy_from_slice(&header),
                    None => return self.drop(segment, DropReason::BadLength),
                }
                self.push_frame(segment, message, table.settings.vlan);
            }
            IbVerdict::Fragment { header, ip_len, mtu, neighbour } => {
                self.note_ethernet_use(neighbour, table);
                self.counters.packet(Traffic::Fragmented, message.len());
                for piece in cut::pieces(self.pool, &message, IPOIB_HEADER_LEN, ip_len, mtu, &header) {
                    // A packet has more pieces than a burst has room for.
                    if self.eth_tx.is_full() {
                        self.flush_ethernet();
                    }
                    match piece {
                        Some(piece) => self.push_frame(segment, piece, table.settings.vlan),
                        None => self.drop(segment, DropReason::NoBuffers),
                    }
                }
            }
            IbVerdict::TooBig { mtu } => {
                self.punt_message(Cause::TooBig { mtu, dial: None }, segment, origin, message)
            }
            IbVerdict::Punt(punt) => self.punt_message(Cause::Punt(punt), segment, origin, message),
            IbVerdict::Drop(reason) => self.drop(segment, reason),
        }
    }

    fn send_message(
        &mut self,
        segment: SegmentIndex,
        via: Via<'_, Q::Destination>,
        message: Mbuf,
        table: &SegmentTable<Q::Destination>,
    ) {
        let bytes = message.len();
        let ud = UdSlot(table.settings.link);
        let (path, result) = match via {
            Via::Rc(slot) => (Traffic::IbRcTransmit, self.queues.send_rc(slot, message)),
            Via::Ud(to) => (Traffic::IbUdUnicastTransmit, self.queues.send_ud(ud, to, message)),
            Via::Group(to) => (Traffic::IbUdMulticastTransmit, self.queues.send_ud(ud, to, message)),
        };
        match result {
            Ok(()) => {
                self.counters.packet(path, bytes);
                self.counters.of_segment(segment, SegmentTraffic::ToInfiniBand, bytes);
            }
            Err(refused) => self.drop(
                segment,
                match refused.error {
                    PostError::Full => DropReason::IbQueueFull,
                    PostError::TooManySegments => DropReason::TooManySegments,
                    PostError::NoConnection => DropReason::NoConnection,
                    PostError::NotRegistered => DropReason::SendFailed,
                },
            ),
        }
    }

    /// Marks the neighbour as used; the first packet after the marks were taken may ask for a connection.
    #[inline]
    fn note_use(
        &mut self,
        neighbour: Option<NeighbourIndex>,
        dial: Option<Ipv4Addr>,
        table: &SegmentTable<Q::Destination>,
    ) {
        let (Some(index), Some(used)) = (neighbour, table.used(self.worker)) else { return };
        if used.infiniband.mark(index.0 as usize)
            && let Some(ip) = dial
        {
            self.want(ip, table);
        }
    }

    #[inline]
    fn note_ethernet_use(&mut self, neighbour: Option<NeighbourIndex>, table: &SegmentTable<Q::Destination>) {
        if let (Some(index), Some(Used { ethernet, .. })) = (neighbour, table.used(self.worker)) {
            ethernet.mark(index.0 as usize);
        }
    }

    fn want(&mut self, ip: Ipv4Addr, table: &SegmentTable<Q::Destination>) {
        // A hint: a ring that fills loses it, and the next packet gives it again.
        if self.notes.room() > RING / 8 {
            drop(self.notes.send(Note::Wanted(LinkIndex(table.settings.link.into()), ip.into())));
        }
    }

    /// Hands over a frame whose headers are `front` bytes long, without its tag.
    fn punt_frame(&mut self, cause: Cause, segment: SegmentIndex, front: usize, mut packet: Mbuf) {
        if front > ETHERNET_HEADER_LEN && !tag::remove(&mut packet) {
            return self.drop(segment, DropReason::Truncated);
        }
        self.punt(GatewayNote { cause, segment, side: Side::Ethernet, origin: None, packet });
    }

    fn punt_message(&mut self, cause: Cause, segment: SegmentIndex, origin: Option<Origin>, packet: Mbuf) {
        self.punt(GatewayNote { cause, segment, side: Side::InfiniBand, origin, packet });
    }

    fn punt(&mut self, what: GatewayNote) {
        let segment = what.segment;
        self.counters.packet(Traffic::Punt, what.packet.len());
        self.counters.of_segment(segment, SegmentTraffic::Punt, what.packet.len());
        let (room, full) = punts::share(&what.cause);
        let crowded = self.notes.room() <= room || !punts::may_hold(&what.cause, self.pool);
        if crowded || note(self.notes, what).is_err() {
            self.drop(segment, full);
        }
    }
}
