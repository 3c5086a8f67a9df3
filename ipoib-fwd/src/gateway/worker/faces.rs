//! A worker's queues on its ports, with their backlogs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dataplane::table::Reader;
use pmd::eth::{Burst, EthQueue};
use pmd::hca::{BURST, MemoryWork};
use pmd::mem::{FrameFacts, FrameTag, Mbuf};

use super::grouping::Grouping;
use super::{GatewayCommand, GatewayNote};
use crate::counter::{Traffic, WorkerCounters};
use crate::forward::{EndpointIndex, EthernetIndex, FrameHead, SegmentIndex, Tables};
use crate::gateway::frames::head;
use crate::gateway::partial_checksum::SAMPLES;
use crate::gateway::tag;
use endpoint::LinkWorker;
use ipoib::drop_reason::DropReason;
use ipoib::net::arp::EthernetArp;
use ipoib::net::be16;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_ARP, ETHERTYPE_VLAN};

/// Frames are dropped if a port has accepted nothing for this long.
const PATIENCE: Duration = Duration::from_millis(20);
/// Capacity of the backlog of a port that accepts no frames.
const WAITING: usize = config::WAITING_FRAMES as usize - BURST;
/// The part of it that is reserved for frames of the control lcore: a dropped query would look like a host
/// that does not reply.
const OWN: usize = 32;
/// Most dropped queries that are reported; further ones count as sent.
const MOST_UNSENT: usize = 2 * OWN;
/// Most fragments of a packet: 65,515 bytes behind a header of 20 bytes, in fragments of 552 bytes, which is
/// the payload at the smallest MTU of 576. With options in the header there are a few more.
const PIECES: usize = WAITING / 2;

/// A worker's queues on an InfiniBand port.
#[derive(Debug)]
pub(super) struct InfiniBandFace<Q: MemoryWork> {
    pub(super) link: LinkWorker<Q, GatewayCommand, GatewayNote>,
}

impl<Q: MemoryWork> InfiniBandFace<Q> {
    pub(super) fn new(link: LinkWorker<Q, GatewayCommand, GatewayNote>) -> Self {
        Self { link }
    }
}

/// Round robin over the InfiniBand ports: receiving starts behind the last port that had anything. If
/// receiving pauses before all ports were polled, it continues with the next one.
#[derive(Debug)]
pub(super) struct Rota {
    first: u8,
    count: u8,
}

impl Rota {
    pub(super) const fn new(count: u8) -> Self {
        Self { first: 0, count }
    }

    /// The ports of an iteration, in order.
    #[inline]
    pub(super) fn turn(&self) -> impl Iterator<Item = EndpointIndex> + use<> {
        (self.first..self.count).chain(0..self.first).map(EndpointIndex)
    }

    /// Notes that something was received from a port.
    #[inline]
    pub(super) const fn served(&mut self, port: EndpointIndex) {
        self.first = if port.0 + 1 < self.count { port.0 + 1 } else { 0 };
    }
}

/// TX state of a port: whether frames may wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    /// It accepts frames, as far as is known.
    Open,
    /// It has refused frames, and has accepted none since then.
    Blocked(Instant),
    /// It has accepted nothing for the whole timeout: no frames wait for it.
    Stuck,
}

impl Patience {
    /// The next state after the port was offered frames, accepted `taken` of them, and `left` still wait.
    const fn offered(self, taken: usize, left: usize, now: Instant) -> Self {
        match self {
            Self::Stuck | Self::Blocked(_) if taken == 0 => self,
            _ if left > 0 => Self::Blocked(now),
            _ => Self::Open,
        }
    }

    /// The backlog is offered once an iteration. True if its timeout is over.
    fn ends(&mut self, now: Instant) -> bool {
        if let Self::Blocked(since) = *self
            && now.saturating_duration_since(since) >= PATIENCE
        {
            *self = Self::Stuck;
        }
        *self == Self::Stuck
    }
}

/// Where a frame of the control lcore waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnRoom {
    Burst,
    Behind,
    /// Not at all, or not for long.
    None,
}

/// Where a frame of the control lcore waits for a port. `is_full`: the next burst is full; `behind`: the
/// number of frames after it.
const fn own_room(patience: Patience, is_full: bool, behind: usize) -> OwnRoom {
    match patience {
        Patience::Stuck => OwnRoom::None,
        Patience::Open | Patience::Blocked(_) if !is_full => OwnRoom::Burst,
        Patience::Open | Patience::Blocked(_) if behind < WAITING => OwnRoom::Behind,
        Patience::Open | Patience::Blocked(_) => OwnRoom::None,
    }
}

/// A worker's queue on an Ethernet port.
#[derive(Debug)]
pub(super) struct EthernetFace {
    pub(super) queue: EthQueue,
    pub(super) grouping: Grouping,
    /// The next burst.
    burst: Burst,
    /// Frames after the burst. Empty unless the burst is full.
    behind: VecDeque<Mbuf>,
    patience: Patience,
    /// It has refused frames in this iteration, and is not tried again.
    is_blocked: bool,
    /// Frames that it cannot send, and has dropped.
    unfit: u64,
    /// Queries of the control lcore that waited and were dropped, to be reported.
    unsent: Vec<(SegmentIndex, Mbuf)>,
    /// Received frames are inspected before they are forwarded: by a tap, or by the sampling of checksums.
    is_watched: bool,
    has_tap: bool,
    /// Frames still to be sampled.
    samples: u8,
}

impl EthernetFace {
    pub(super) fn new(queue: EthQueue) -> Self {
        let behind = VecDeque::with_capacity(WAITING);
        let grouping = Grouping::default();
        Self {
            queue,
            grouping,
            burst: Burst::new(),
            behind,
            patience: Patience::Open,
            is_blocked: false,
            unfit: 0,
            unsent: Vec::with_capacity(MOST_UNSENT),
            is_watched: false,
            has_tap: false,
            samples: 0,
        }
    }

    /// Starts or stops showing received frames to a tap.
    pub(super) const fn watch(&mut self, has_tap: bool) {
        self.has_tap = has_tap;
        self.is_watched = has_tap || self.samples > 0;
    }

    /// Samples the checksums of the next frames.
    pub(super) const fn sample_checksums(&mut self) {
        self.samples = SAMPLES;
        self.is_watched = true;
    }

    /// True if received frames are inspected before they are forwarded.
    #[inline]
    pub(super) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Takes samples for a burst of `frames` frames from those left in this second; returns their number.
    pub(super) fn take_samples(&mut self, frames: usize) -> usize {
        let taken = frames.min(self.samples.into());
        self.samples -= taken as u8;
        self.watch(self.has_tap);
        taken
    }

    /// Ends the sampling of this second.
    pub(super) const fn end_samples(&mut self) {
        self.samples = 0;
        self.watch(self.has_tap);
    }

    /// Queues a frame for [`EthernetFace::flush`]. False if there is no room; the frame is then lost.
    #[inline]
    pub(super) fn push(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> bool {
        match self.burst.try_push(frame) {
            Ok(()) => true,
            Err(full) => self.push_full(full.element(), counters),
        }
    }

    fn push_full(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> bool {
        if !self.is_blocked {
            self.offer(counters);
        }
        if !self.burst.is_full() {
            self.burst.push(frame);
            return true;
        }
        let has_room = self.behind.len() < WAITING - OWN;
        if has_room {
            self.behind.push_back(frame);
        }
        has_room
    }

    /// Queues a frame of the control lcore, which has its own share of the backlog. The frame is returned if
    /// it would be dropped.
    pub(super) fn push_own(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> Result<(), Mbuf> {
        if self.patience == Patience::Stuck && self.burst.is_empty() {
            return self.offer_one(frame, counters);
        }
        if self.burst.is_full() && !self.is_blocked {
            self.offer(counters);
        }
        match own_room(self.patience, self.burst.is_full(), self.behind.len()) {
            OwnRoom::None => return Err(frame),
            OwnRoom::Burst => self.burst.push(frame),
            OwnRoom::Behind => self.behind.push_back(frame),
        }
        Ok(())
    }

    /// Offers a frame to a stalled port: it may accept frames again, and a gateway that forwards nothing has
    /// no other way to detect it. The frame is returned if it is not accepted.
    #[cold]
    fn offer_one(&mut self, frame: Mbuf, counters: &mut WorkerCounters) -> Result<(), Mbuf> {
        self.burst.push(frame);
        self.offer(counters);
        match self.burst.pop() {
            Some(frame) => {
                self.is_blocked = false;
                Err(frame)
            }
            None => Ok(()),
        }
    }

    /// True if there may be no room for all fragments of a packet: without all its fragments, a packet is
    /// useless.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.behind.len() > WAITING - OWN - PIECES
    }

    /// True while the port applies backpressure: it has refused frames in this iteration, and not for long.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked && self.patience != Patience::Stuck
    }

    /// True if the last frame that was pushed still waits.
    pub(super) const fn holds(&self) -> bool {
        !self.burst.is_empty()
    }

    /// The number of frames that it could not send, and dropped with [`DropReason::TooManySegments`].
    pub(super) const fn unfit(&self) -> u64 {
        self.unfit
    }

    /// Sends the backlog; frames that the port does not accept wait.
    #[inline]
    pub(super) fn flush(&mut self, counters: &mut WorkerCounters) {
        if !self.burst.is_empty() && !self.is_blocked {
            self.offer(counters);
        }
    }

    /// Starts an iteration: offers the backlog again, and drops it if the port has accepted nothing for too
    /// long. True if frames still wait.
    #[inline]
    pub(super) fn begin_turn<D: Clone>(
        &mut self,
        port: EthernetIndex,
        counters: &mut WorkerCounters,
        tables: &mut Reader<Tables<D>>,
    ) -> bool {
        self.queue.keep_up();
        self.is_blocked && self.retry(port, counters, tables)
    }

    #[cold]
    fn retry<D: Clone>(
        &mut self,
        port: EthernetIndex,
        counters: &mut WorkerCounters,
        tables: &mut Reader<Tables<D>>,
    ) -> bool {
        self.offer(counters);
        if self.is_blocked && self.patience.ends(Instant::now()) {
            // Flushed before the tables are refreshed: an index may belong to another segment in the new
            // tables.
            counters.settle();
            self.clear(port, DropReason::EthQueueFull, counters, tables.refresh());
        }
        self.is_blocked
    }

    fn offer(&mut self, counters: &mut WorkerCounters) {
        let mut taken = 0;
        loop {
            // Before they are sent: a driver may insert a tag even into a frame that it does not accept.
            let (offered, mut lengths) = (self.burst.len(), [0; BURST]);
            for (length, frame) in lengths.iter_mut().zip(&self.burst) {
                *length = frame.len();
            }
            let sent = self.queue.tx_burst(&mut self.burst);
            let bytes: usize = lengths.iter().take(sent).sum();
            counters.packets(Traffic::EthTransmit, sent as u64, bytes as u64);
            let unfit = offered - sent - self.burst.len();
            if unfit > 0 {
                self.unfit += unfit as u64;
                counters.drops(DropReason::TooManySegments, unfit as u64);
            }
            taken += offered - self.burst.len();
            let is_blocked = !self.burst.is_empty();
            let room = self.burst.remaining_capacity().min(self.behind.len());
            if room > 0 {
                self.burst.extend(self.behind.drain(..room));
            }
            if is_blocked || room == 0 {
                self.is_blocked = is_blocked;
                break;
            }
        }
        if self.is_blocked || self.patience != Patience::Open {
            self.patience = self.patience.offered(taken, self.burst.len(), Instant::now());
        }
    }

    /// Drops the backlog. Each frame is counted for its segment, in which it has been counted as sent.
    /// Queries are kept for [`EthernetFace::take_unsent`].
    pub(super) fn clear<D: Clone>(
        &mut self,
        port: EthernetIndex,
        reason: DropReason,
        counters: &mut WorkerCounters,
        tables: &Tables<D>,
    ) {
        let Self { burst, behind, unsent, .. } = self;
        for mut frame in burst.drain(..).chain(behind.drain(..)) {
            let front = front_of(&frame);
            let segment = front.as_ref().and_then(|front| tables.vlan(port, front.vid));
            let Some(segment) = segment else {
                counters.drop(reason);
                continue;
            };
            counters.drops_of(segment, reason, 1);
            // No host's ARP is forwarded: all ARP is the control lcore's.
            let is_own = front.is_some_and(|front| front.ethertype == ETHERTYPE_ARP);
            let is_kept =
                is_own && unsent.len() < MOST_UNSENT && (!is_tagged(&frame) || tag::remove(&mut frame));
            if is_kept && EthernetArp::parse(head(&frame)).is_ok_and(|arp| arp.is_query()) {
                unsent.push((segment, frame));
            }
        }
        self.is_blocked = false;
    }

    /// True if queries that waited were dropped.
    #[inline]
    pub(super) const fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next query that waited and was dropped, without its tag.
    pub(super) fn take_unsent(&mut self) -> Option<(SegmentIndex, Mbuf)> {
        self.unsent.pop()
    }
}

/// The header in front of the packet of an egress frame: with its tag in the frame, or as a TX offload.
fn front_of(frame: &Mbuf) -> Option<FrameHead> {
    let read = |tag| FrameHead::parse(head(frame), FrameFacts { tag, ..FrameFacts::default() });
    // A driver may already have inserted it.
    let wished = frame.wished_tag().and_then(|control| read(FrameTag::Taken(control)).ok());
    wished.or_else(|| read(FrameTag::InFrame).ok())
}

/// True if the tag is in the frame.
fn is_tagged(frame: &Mbuf) -> bool {
    be16(head(frame), ETHERNET_HEADER_LEN - 2) == Some(ETHERTYPE_VLAN)
}

#[cfg(test)]
mod tests;
