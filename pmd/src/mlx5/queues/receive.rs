//! The receiving half: buffers posted to the shared receive queues, one for datagrams and one for connections.

use arrayvec::ArrayVec;
use ib_wire::{Lid, Qpn, ServiceLevel};

use super::{Events, MlxQueues};
use crate::bookkeeping::{Health, Place};
use crate::hca::{Checksum, MemoryKey, QpEvent, QpFault, Received, Source, UdSlot, UdSource, WcStatus};
use crate::mem::packet::{self, Packet, STASH, Stash, top_up};
use crate::mlx5::bus::Bus;
use crate::mlx5::cq::{Arrival, Completion, Extra, What};
use crate::mlx5::mr::MrTable;
use crate::mlx5::rings::SrqRing;
use crate::mlx5::srq::SharedReceiveQueue;
use prm::DataSegment;

/// A datagram, where it came from, and what the device says of the packet in it.
type Arrived<P> = (P, UdSource, Checksum);

/// Bytes in front of a datagram's data where its GRH goes, or nothing.
pub(super) const GRH_AREA: u32 = 40;

/// From the last byte of the GRH area back to the first byte of the destination GID.
const DGID_BEFORE_DATA: usize = 16;
/// The destination of an IPv4 header, which ends where the data begin.
const IPV4_DESTINATION_BEFORE_DATA: usize = 4;

/// A shared receive queue with its buffers: each entry has as many as the largest message needs. A message takes the first
/// ones away; the rest stays, and with it what the ring says of them.
#[derive(Debug)]
pub(super) struct SharedEntries<P> {
    pub(super) queue: SharedReceiveQueue,
    /// Buffers of one entry.
    per_entry: usize,
    buffers: Box<[Option<P>]>,
    /// How many of the first buffers of each entry may be missing; none behind them is.
    missing: Box<[u8]>,
    /// Bytes in front of each buffer's data that the device fills, too.
    front: u32,
    /// Bytes that a buffer takes, those in front included.
    room: u32,
}

impl<P: Packet> SharedEntries<P> {
    /// The queue of `entries` on a new ring for messages of `message` bytes, in buffers that take `room` bytes and `front` before them.
    pub(super) fn new(ring: &SrqRing, entries: u32, message: usize, room: u32, front: u32) -> Self {
        let queue = SharedReceiveQueue::new(ring, entries);
        let room = room + front;
        let needed = message.div_ceil(room.max(1) as usize).max(1);
        const { assert!(STASH <= u8::MAX as usize) };
        let per_entry = needed.min(queue.max_segments()).min(STASH);
        debug_assert_eq!(per_entry, needed, "the ring's stride is too small for the largest message");
        let buffers = (0..queue.slots() * per_entry).map(|_| None).collect();
        let missing = vec![per_entry as u8; queue.slots()].into();
        Self { queue, per_entry, buffers, missing, front, room }
    }

    /// Lets go of all buffers without giving them back.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.buffers));
    }

    /// Takes the first buffer out of the entry in `slot`.
    #[inline(always)]
    fn single(&mut self, slot: usize) -> Option<P> {
        let buf = self.buffers.get_mut(slot * self.per_entry)?.take()?;
        if let Some(missing) = self.missing.get_mut(slot) {
            *missing = 1;
        }
        Some(buf)
    }

    /// Takes a message of `len` bytes out of the entry in `slot`; `None` if it is longer than the entry.
    #[inline(always)]
    fn message(&mut self, slot: usize, len: u32) -> Option<P> {
        if len > self.room {
            return self.chain(slot, len);
        }
        // An empty message is one buffer, too.
        let mut buf = self.single(slot)?;
        buf.fill(len);
        Some(buf)
    }

    /// The same of one that is longer than a buffer.
    #[inline(never)]
    fn chain(&mut self, slot: usize, len: u32) -> Option<P> {
        let start = slot * self.per_entry;
        let entry = self.buffers.get_mut(start..start + self.per_entry)?;
        let (message, used) = packet::message(entry, len, self.room)?;
        if let Some(missing) = self.missing.get_mut(slot) {
            *missing = used as u8;
        }
        Some(message)
    }

    /// Posts entries until the queue is full, or `stash` and pool are empty. Returns how many.
    fn refill(&mut self, stash: &mut Stash<P>, pool: &mut P::Pool, regions: &mut MrTable) -> usize {
        let mut posted = 0;
        while let Some(slot) = self.queue.next_slot() {
            let start = slot * self.per_entry;
            let Some(missing) = self.missing.get_mut(slot) else { break };
            let first = usize::from(*missing);
            let Some(entry) = self.buffers.get_mut(start..start + first) else { break };
            if !top_up(stash, pool, first) {
                break;
            }
            // The last buffer of an entry is rarely used; where it is there, so is what ends the list behind it.
            let fresh = first == self.per_entry;
            // As most are: a short message took the first one.
            if let ([place @ None], false) = (&mut *entry, fresh) {
                let Some(buf) = stash.pop() else { break };
                let (address, len) = buf.room();
                let (address, len) = (address - u64::from(self.front), len + self.front);
                let Some(lkey) = regions.lkey(address, len) else { break };
                *missing = 0;
                // There was nothing to drop.
                std::mem::forget(place.replace(buf));
                self.queue.commit_first(DataSegment::new(address, len, lkey));
                posted += 1;
                continue;
            }
            let mut registered = true;
            for (index, place) in entry.iter_mut().enumerate() {
                if place.is_some() {
                    continue;
                }
                let Some(buf) = stash.pop() else {
                    registered = false;
                    break;
                };
                let (address, len) = buf.room();
                let (address, len) = (address - u64::from(self.front), len + self.front);
                let Some(lkey) = regions.lkey(address, len) else {
                    registered = false;
                    break;
                };
                self.queue.write_segment(index, DataSegment::new(address, len, lkey));
                *place = Some(buf);
            }
            if !registered {
                break;
            }
            *missing = 0;
            if fresh {
                self.queue.terminate(self.per_entry);
            }
            if self.queue.commit().is_none() {
                break;
            }
            posted += 1;
        }
        self.queue.publish();
        posted
    }
}

impl<B: Bus, P: Packet> MlxQueues<B, P> {
    /// Fills the receive queues up. Returns how many entries it posted.
    pub fn fill(&mut self) -> usize {
        let Self { stash, pool, regions, .. } = self;
        let mut posted = self.datagrams.refill(stash, pool, regions);
        if let Some(srq) = &mut self.connections {
            posted += srq.refill(stash, pool, regions);
        }
        posted
    }

    /// Receives posted: (for datagrams, for connections).
    #[must_use]
    pub fn posted_receives(&self) -> (u32, u32) {
        let connections = self.connections.as_ref().map_or(0, |srq| srq.queue.outstanding());
        (self.datagrams.queue.outstanding(), connections)
    }

    /// Hands up to `limit` received messages to `sink`, oldest first.
    #[inline]
    pub fn receive(&mut self, limit: usize, mut sink: impl FnMut(Received<P>), events: &mut Events) {
        let (mut received, mut taken, mut empty) = (0, 0, false);
        let mut batch = ArrayVec::new();
        while received < limit && events.remaining_capacity() >= Health::MAX_EVENTS {
            // Messages by connections, nearly always with nothing beside their data, take no look at the rest of their completion.
            if let Some(message) = self.receive_cq.message() {
                let place = self.numbers.find(message.qpn);
                if !matches!(place, Some(Place::Ud(_))) {
                    self.receive_cq.skip();
                    taken += 1;
                    if let Some(buf) = self.message(message.counter, message.byte_len) {
                        let (ud, rc) = (place.map(Place::ud), place.and_then(Place::rc));
                        let (qpn, checksum) = (Qpn::new(message.qpn), Checksum::Unknown);
                        sink(Received { buf, qpn, ud, rc, source: Source::Rc, checksum });
                        received += 1;
                    }
                    continue;
                }
            }
            let Some(cqe) = self.receive_cq.poll() else {
                empty = true;
                break;
            };
            taken += 1;
            let completion = Completion::of(&cqe);
            let qpn = Qpn::new(completion.qpn);
            match completion.what {
                What::Received(arrival) => {
                    // Each kind is handed on by itself: put together first, it would go through memory in pieces.
                    let place = self.numbers.find(completion.qpn);
                    if let Some(Place::Ud(slot)) = place {
                        if let Some((buf, source, checksum)) = self.datagram(slot, completion, arrival) {
                            let source = Source::Ud(source);
                            sink(Received { buf, qpn, ud: Some(slot), rc: None, source, checksum });
                            received += 1;
                        }
                    } else if let Some(buf) = self.message(completion.counter, arrival.byte_len) {
                        let (ud, rc) = (place.map(Place::ud), place.and_then(Place::rc));
                        let checksum = Checksum::Unknown;
                        let source = match arrival.extra {
                            Extra::Invalidated(key) => Source::RcInvalidated(MemoryKey::new(key)),
                            Extra::None | Extra::Immediate(_) => Source::Rc,
                        };
                        sink(Received { buf, qpn, ud, rc, source, checksum });
                        received += 1;
                    }
                }
                What::ReceiveFailed(failure) => {
                    // The entry keeps its buffers and is posted again as it is.
                    match self.numbers.find(completion.qpn) {
                        Some(Place::Ud(_)) => self.take_datagram_slot(completion.counter),
                        _ => self.take_shared_slot(completion.counter),
                    };
                    if failure.status != WcStatus::Flushed {
                        let fault = QpFault::Receive(failure.status);
                        let _ = events.try_push(QpEvent { qpn, fault });
                    }
                }
                What::Sent { .. } | What::SendFailed(_) | What::Unknown(_) => {
                    self.send_completion(completion, &mut batch, events);
                }
            }
        }
        self.progress.polled(taken, empty);
        self.receive_cq.publish();
        P::free_all(&mut batch);
    }

    fn take_datagram_slot(&mut self, slot: u16) -> Option<usize> {
        let slot = self.datagrams.queue.take(slot);
        if slot.is_none() {
            self.anomalies.unknown_entry += 1;
        }
        slot
    }

    fn take_shared_slot(&mut self, slot: u16) -> Option<usize> {
        let slot = self.connections.as_mut().and_then(|srq| srq.queue.take(slot));
        if slot.is_none() {
            self.anomalies.unknown_entry += 1;
        }
        slot
    }

    #[inline]
    fn datagram(&mut self, at: UdSlot, completion: Completion, arrival: Arrival) -> Option<Arrived<P>> {
        let slot = self.take_datagram_slot(completion.counter)?;
        let mut buf = self.datagrams.single(slot)?;
        // One that has been taken out since, perhaps with another in its place, has no business here any more.
        let Some(ud) = self.uds.get(at.0.into()).filter(|ud| ud.side.sq.qpn() == completion.qpn) else {
            self.anomalies.unknown_qp += 1;
            return None;
        };
        let (_, room) = buf.room();
        let Some(len) = arrival.byte_len.checked_sub(GRH_AREA).filter(|len| *len <= room) else {
            self.anomalies.bad_length += 1;
            return None;
        };
        buf.fill(len);
        let checksum =
            if arrival.ipv4_is_good && ud.checks_ipv4 { Checksum::Good } else { Checksum::Unknown };
        let source = UdSource {
            qpn: Qpn::new(arrival.src_qpn),
            slid: Lid(arrival.slid),
            sl: ServiceLevel::new(if ud.ethernet { 0 } else { arrival.sl }),
            dlid_path_bits: arrival.dlid_path_bits,
            pkey_index: arrival.pkey_index,
            has_grh: arrival.grh,
            // A multicast datagram always has a GRH (IBA 10.5.2.1).
            multicast: arrival.grh
                && if ud.ethernet && arrival.ipv4() {
                    buf.byte_before_data(IPV4_DESTINATION_BEFORE_DATA) >> 4 == 0xe
                } else {
                    buf.byte_before_data(DGID_BEFORE_DATA) == 0xff
                },
        };
        Some((buf, source, checksum))
    }

    #[inline(always)]
    fn message(&mut self, slot: u16, len: u32) -> Option<P> {
        let slot = self.take_shared_slot(slot)?;
        let message = self.connections.as_mut().and_then(|srq| srq.message(slot, len));
        if message.is_none() {
            self.anomalies.bad_length += 1;
        }
        message
    }
}
