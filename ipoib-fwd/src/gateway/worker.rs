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
use pmd::eth::{Burst, EthQueue};
use pmd::hca::{PostError, Queues, Received, RxBurst, Source, UdSource};
use pmd::mem::{Mbuf, Pool};
use tap::{FrameKind, Tap, TapDirection};

use crate::counter::{Traffic, WorkerCounters};
use crate::forward::{
    EthVerdict, IbVerdict, NeighbourIndex, Punt, Side, Tables, Via, eth_to_ib, ib_to_eth, own_to_ib,
};
use crate::segment::Origin;
use crate::segment::pair::storm::StormGuard;
use endpoint::{LinkWorker, Note, UD, note};
use ib_wire::Qpn;
use ipoib::drop_reason::DropReason;
use ipoib::link::LinkIndex;
use ipoib::net::ethernet::ETHERNET_HEADER_LEN;
use ipoib::net::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER};

use super::cut;
use super::usage::Usage;

/// What the control lcore asks of a gateway's worker beside the link's commands.
#[derive(Debug)]
pub enum GatewayCommand {
    /// Send a frame by the Ethernet port.
    SendEthernet(Mbuf),
    /// Forward a packet that waited for its destination, as if it had come in now.
    Forward(Side, Mbuf),
    /// Send an IPv4 packet of the gateway's own, behind room for an Ethernet header, to an InfiniBand host.
    SendInfiniBand(Ipv4Addr, Mbuf),
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
    /// Where it came from.
    pub side: Side,
    /// For a message, how it came; `None` if it has waited.
    pub origin: Option<Origin>,
    /// The whole frame or message.
    pub packet: Mbuf,
}

/// Header bytes that a verdict looks at.
const HEAD: usize = 128;
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
    usage: Arc<Usage>,
    storm: StormGuard,
    tap: Option<Tap>,
}

/// What a packet from the control lcore waits for until the newest tables are there.
enum Delayed {
    /// It waited for its destination.
    Forward(Side),
    /// It is the gateway's own, to this neighbour.
    Own(Ipv4Addr),
}

/// What is worth its own type: everything that a verdict is carried out with.
struct Hands<'a, Q: Queues> {
    queues: &'a mut Q,
    notes: &'a mut Sender<Note<Q, GatewayNote>>,
    eth: &'a mut EthQueue,
    eth_tx: &'a mut Burst,
    refused_turns: &'a mut u32,
    counters: &'a mut WorkerCounters,
    pool: &'a Pool,
    usage: &'a Usage,
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
            usage: Arc::default(),
            storm: StormGuard::new(seed),
            tap,
        }
    }

    /// The counters, for a reader.
    #[must_use]
    pub const fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// The marks of use, for the control lcore.
    #[must_use]
    pub(super) fn usage(&self) -> Arc<Usage> {
        Arc::clone(&self.usage)
    }

    /// Takes the worker apart when it has ended.
    pub fn into_parts(mut self) -> (Q, EthQueue, Recorder) {
        // Frames that the port did not take in the end.
        self.counters.drops(DropReason::Shutdown, self.eth_tx.len() as u64);
        self.eth_tx.clear();
        (self.link.into_queues(), self.eth, self.service)
    }

    fn take_commands(&mut self) -> usize {
        let mut forward: ArrayVec<(Delayed, Mbuf), 32> = ArrayVec::new();
        let (eth_tx, counters, tap) = (&mut self.eth_tx, &mut self.counters, &mut self.tap);
        let done = self.link.commands(&mut self.service, |command, _| match command {
            GatewayCommand::SendEthernet(frame) => push_frame(eth_tx, counters, tap, frame),
            GatewayCommand::Forward(side, packet) => {
                if forward.try_push((Delayed::Forward(side), packet)).is_err() {
                    counters.drop(DropReason::NeighbourQueueFull);
                }
            }
            GatewayCommand::SendInfiniBand(to, packet) => {
                if forward.try_push((Delayed::Own(to), packet)).is_err() {
                    counters.drop(DropReason::IbQueueFull);
                }
            }
        });
        let (tables, mut hands) = self.hands();
        for (what, packet) in forward {
            match what {
                Delayed::Forward(Side::Ethernet) => hands.take_frame(packet, tables),
                Delayed::Forward(Side::InfiniBand) => {
                    hands.take_message(packet, &Source::Rc, None, tables);
                }
                Delayed::Own(to) => {
                    let verdict = own_to_ib(head(&packet), packet.len(), to, tables);
                    hands.carry_out_ethernet(verdict, packet, tables);
                }
            }
        }
        done
    }

    /// The newest tables, and everything that verdicts are carried out with.
    #[inline]
    fn hands(&mut self) -> (&Tables<Q::Destination>, Hands<'_, Q>) {
        let (queues, notes) = self.link.parts();
        let hands = Hands {
            queues,
            notes,
            eth: &mut self.eth,
            eth_tx: &mut self.eth_tx,
            refused_turns: &mut self.refused_turns,
            counters: &mut self.counters,
            pool: &self.pool,
            usage: &self.usage,
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
        for frame in burst {
            hands.counters.packet(Traffic::EthReceive, frame.len());
            if let Some(tap) = hands.tap {
                offer(tap, TapDirection::Received, &frame);
            }
            hands.take_frame(frame, tables);
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
        for Received { buf, qpn, source, .. } in burst {
            hands.counters.packet(path_of(&source), buf.len());
            if matches!(source, Source::Rc) {
                hands.usage.mark_received(qpn);
            }
            hands.take_message(buf, &source, Some(origin_of(&source, qpn)), tables);
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

    // The Ethernet port does not wake: a rest is as short as a packet from there may wait.
    fn arm(&mut self) -> bool {
        self.link.queues().arm()
    }

    fn rest(&mut self, at_most: Duration) -> bool {
        self.link.queues().wait(at_most)
    }
}

/// Offers a frame to a tap.
fn offer(tap: &mut Tap, direction: TapDirection, frame: &Mbuf) {
    tap.offer_parts(FrameKind::Ethernet, direction, frame.segments().map(|s| s.bytes));
}

/// The first bytes of a packet: all that its headers can be.
fn head(packet: &Mbuf) -> &[u8] {
    let data = packet.data();
    data.get(..HEAD).unwrap_or(data)
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

fn push_frame(eth_tx: &mut Burst, counters: &mut WorkerCounters, tap: &mut Option<Tap>, frame: Mbuf) {
    if let Some(tap) = tap {
        offer(tap, TapDirection::Sent, &frame);
    }
    if eth_tx.try_push(frame).is_err() {
        counters.drop(DropReason::EthQueueFull);
    }
}

impl<Q: Queues> Hands<'_, Q> {
    #[inline]
    fn take_frame(&mut self, frame: Mbuf, tables: &Tables<Q::Destination>) {
        let verdict = eth_to_ib(head(&frame), frame.len(), tables);
        if let EthVerdict::Forward { via: Via::Group(_), .. }
        | EthVerdict::Fragment { via: Via::Group(_), .. } = verdict
            && !self.is_calm(head(&frame), ETHERNET_HEADER_LEN)
        {
            return self.counters.drop(DropReason::Storm);
        }
        self.carry_out_ethernet(verdict, frame, tables);
    }

    #[inline]
    fn take_message(
        &mut self,
        message: Mbuf,
        source: &Source,
        origin: Option<Origin>,
        tables: &Tables<Q::Destination>,
    ) {
        let verdict = ib_to_eth(head(&message), message.len(), source, tables);
        if let IbVerdict::Forward { neighbour: None, .. } | IbVerdict::Fragment { neighbour: None, .. } =
            verdict
            && !self.is_calm(head(&message), IPOIB_HEADER_LEN)
        {
            return self.counters.drop(DropReason::Storm);
        }
        self.carry_out_infiniband(verdict, message, origin);
    }

    /// True if a packet to a group or to all does not come too often.
    fn is_calm(&mut self, head: &[u8], header_len: usize) -> bool {
        let packet = head.get(header_len..).unwrap_or_default();
        let broadcast = packet.get(16).is_some_and(|first| !(224..240).contains(first));
        self.storm.admits(self.usage.period.load(Ordering::Relaxed), 0, packet, broadcast)
    }

    /// Sends what waits for the Ethernet port; what it does not take waits on.
    fn flush_ethernet(&mut self) {
        if self.eth_tx.is_empty() {
            return;
        }
        let bytes: usize = self.eth_tx.iter().map(Mbuf::len).sum();
        let sent = self.eth.tx_burst(self.eth_tx);
        let left: usize = self.eth_tx.iter().map(Mbuf::len).sum();
        self.counters.packets(Traffic::EthTransmit, sent as u64, (bytes - left) as u64);
        *self.refused_turns = if self.eth_tx.is_empty() { 0 } else { *self.refused_turns + 1 };
    }

    #[inline]
    fn carry_out_ethernet(
        &mut self,
        verdict: EthVerdict<'_, Q::Destination>,
        mut frame: Mbuf,
        tables: &Tables<Q::Destination>,
    ) {
        match verdict {
            EthVerdict::Forward { via, ip_len, neighbour, dial } => {
                // 14 bytes of Ethernet header off, 4 of encapsulation on, padding cut: in place.
                let fits = frame.trim_front(ETHERNET_HEADER_LEN) && frame.truncate(usize::from(ip_len));
                match frame.prepend(IPOIB_HEADER_LEN).filter(|_| fits) {
                    Some(header) => header.copy_from_slice(&IPOIB_IPV4_HEADER),
                    None => return self.counters.drop(DropReason::BadLength),
                }
                self.send_message(via, frame);
                self.note_use(neighbour, dial, tables);
            }
            EthVerdict::Fragment { via, ip_len, mtu, neighbour, dial } => {
                self.counters.packet(Traffic::Fragmented, frame.len());
                let cut =
                    cut::pieces(self.pool, &frame, ETHERNET_HEADER_LEN, ip_len, mtu, &IPOIB_IPV4_HEADER);
                for piece in cut {
                    match piece {
                        Some(piece) => self.send_message(via, piece),
                        None => self.counters.drop(DropReason::NoBuffers),
                    }
                }
                self.note_use(neighbour, dial, tables);
            }
            EthVerdict::TooBig { mtu, dial } => {
                let dial = dial.and_then(|n| tables.ib_at(n));
                if let Some(ip) = dial {
                    self.want(ip);
                }
                self.punt(Cause::TooBig { mtu, dial }, Side::Ethernet, None, frame);
            }
            EthVerdict::Punt(punt) => self.punt(Cause::Punt(punt), Side::Ethernet, None, frame),
            EthVerdict::Drop(reason) => self.counters.drop(reason),
        }
    }

    fn carry_out_infiniband(&mut self, verdict: IbVerdict, mut message: Mbuf, origin: Option<Origin>) {
        match verdict {
            IbVerdict::Forward { header, ip_len, neighbour } => {
                self.note_ethernet_use(neighbour);
                // 4 bytes of encapsulation off, 14 of Ethernet header on: in place.
                let fits = message.trim_front(IPOIB_HEADER_LEN) && message.truncate(usize::from(ip_len));
                match message.prepend(ETHERNET_HEADER_LEN).filter(|_| fits) {
                    Some(room) => room.copy_from_slice(&header),
                    None => return self.counters.drop(DropReason::BadLength),
                }
                push_frame(self.eth_tx, self.counters, self.tap, message);
            }
            IbVerdict::Fragment { header, ip_len, mtu, neighbour } => {
                self.note_ethernet_use(neighbour);
                self.counters.packet(Traffic::Fragmented, message.len());
                for piece in cut::pieces(self.pool, &message, IPOIB_HEADER_LEN, ip_len, mtu, &header) {
                    // A packet has more pieces than a burst has room for.
                    if self.eth_tx.is_full() {
                        self.flush_ethernet();
                    }
                    match piece {
                        Some(piece) => push_frame(self.eth_tx, self.counters, self.tap, piece),
                        None => self.counters.drop(DropReason::NoBuffers),
                    }
                }
            }
            IbVerdict::TooBig { mtu } => {
                self.punt(Cause::TooBig { mtu, dial: None }, Side::InfiniBand, origin, message);
            }
            IbVerdict::Punt(punt) => self.punt(Cause::Punt(punt), Side::InfiniBand, origin, message),
            IbVerdict::Drop(reason) => self.counters.drop(reason),
        }
    }

    fn send_message(&mut self, via: Via<'_, Q::Destination>, message: Mbuf) {
        let bytes = message.len();
        let (path, result) = match via {
            Via::Rc(slot) => (Traffic::IbRcTransmit, self.queues.send_rc(slot, message)),
            Via::Ud(to) => (Traffic::IbUdUnicastTransmit, self.queues.send_ud(UD, to, message)),
            Via::Group(to) => (Traffic::IbUdMulticastTransmit, self.queues.send_ud(UD, to, message)),
        };
        match result {
            Ok(()) => self.counters.packet(path, bytes),
            Err(refused) => self.counters.drop(match refused.error {
                PostError::Full => DropReason::IbQueueFull,
                PostError::TooManySegments => DropReason::TooManySegments,
                PostError::NoConnection => DropReason::NoConnection,
                PostError::NotRegistered => DropReason::SendFailed,
            }),
        }
    }

    /// Marks the neighbour as used; the first packet after the marks were taken may ask for a connection.
    fn note_use(&mut self, neighbour: Option<NeighbourIndex>, dial: bool, tables: &Tables<Q::Destination>) {
        let Some(index) = neighbour else { return };
        if self.usage.mark_infiniband(index)
            && dial
            && let Some(ip) = tables.ib_at(index)
        {
            self.want(ip);
        }
    }

    fn note_ethernet_use(&mut self, neighbour: Option<NeighbourIndex>) {
        if let Some(index) = neighbour {
            self.usage.mark_ethernet(index);
        }
    }

    fn want(&mut self, ip: Ipv4Addr) {
        // A hint: a full ring loses it, and the next packet gives it again.
        if self.notes.room() > 1 {
            drop(self.notes.send(Note::Wanted(LinkIndex(0), ip)));
        }
    }

    fn punt(&mut self, cause: Cause, side: Side, origin: Option<Origin>, packet: Mbuf) {
        self.counters.packet(Traffic::Punt, packet.len());
        if note(self.notes, GatewayNote { cause, side, origin, packet }).is_err() {
            self.counters.drop(DropReason::PuntQueueFull);
        }
    }
}
