//! The receiving half: buffers posted to the datagram queue and to the shared receive queue.

use arrayvec::ArrayVec;
use ib_wire::{Lid, Qpn, ServiceLevel};

use super::{Events, MlxQueues};
use crate::bookkeeping::Health;
use crate::hca::{QpEvent, QpFault, Source, UdSource, WcStatus};
use crate::mlx5::bus::Bus;
use crate::mlx5::cq::{Arrival, Completion, What};
use crate::mlx5::mr::MrTable;
use crate::mlx5::packet::{self, Packet, STASH, Stash, top_up};
use crate::mlx5::rings::SrqRing;
use crate::mlx5::srq::SharedReceiveQueue;
use prm::DataSegment;

/// Bytes in front of a datagram's data where its GRH goes, or nothing.
pub(super) const GRH_AREA: u32 = 40;

/// From the last byte of the GRH area back to the first byte of the destination GID.
const DGID_BEFORE_DATA: usize = 16;
/// The destination of an IPv4 header, which ends where the data begin.
const IPV4_DESTINATION_BEFORE_DATA: usize = 4;

/// The shared receive queue with its buffers: each entry has as many as the largest message needs. A message takes the first
/// ones away; the rest stays, and with it what the ring says of them.
#[derive(Debug)]
pub(super) struct SharedEntries<P> {
    pub(super) queue: SharedReceiveQueue,
    /// Buffers of one entry.
    per_entry: usize,
    buffers: Box<[Option<P>]>,
    /// How many of the first buffers of each entry may be missing; none behind them is.
    missing: Box<[u8]>,
    room: u32,
}

impl<P: Packet> SharedEntries<P> {
    pub(super) fn new(ring: &SrqRing, message: usize, room: u32) -> Self {
        let queue = SharedReceiveQueue::new(ring);
        let needed = message.div_ceil(room.max(1) as usize).max(1);
        const { assert!(STASH <= u8::MAX as usize) };
        let per_entry = needed.min(queue.max_segments()).min(STASH);
        debug_assert_eq!(per_entry, needed, "the ring's stride is too small for the largest message");
        let buffers = (0..queue.slots() * per_entry).map(|_| None).collect();
        let missing = vec![per_entry as u8; queue.slots()].into();
        Self { queue, per_entry, buffers, missing, room }
    }

    /// Lets go of all buffers without giving them back.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.buffers));
    }

    /// Takes a message of `len` bytes out of the entry in `slot`; `None` if it is longer than the entry.
    #[inline]
    fn message(&mut self, slot: usize, len: u32) -> Option<P> {
        let start = slot * self.per_entry;
        let entry = self.buffers.get_mut(start..start + self.per_entry)?;
        let (message, used) = packet::message(entry, len, self.room)?;
        if let Some(missing) = self.missing.get_mut(slot) {
            *missing = used as u8;
        }
        Some(message)
    }

    /// Posts entries until `depth` are posted, the queue is full, or `stash` and pool are empty. Returns how many.
    fn refill(
        &mut self,
        depth: u32,
        stash: &mut Stash<P>,
        pool: &mut P::Pool,
        regions: &mut MrTable,
    ) -> usize {
        let mut posted = 0;
        while self.queue.outstanding() < depth {
            let Some(slot) = self.queue.next_slot() else { break };
            let start = slot * self.per_entry;
            let Some(missing) = self.missing.get_mut(slot) else { break };
            let first = usize::from(*missing);
            let Some(entry) = self.buffers.get_mut(start..start + first) else { break };
            if !top_up(stash, pool, first) {
                break;
            }
            // The last buffer of an entry is rarely used; where it is there, so is what ends the list behind it.
            let fresh = first == self.per_entry;
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
        let mut posted = 0;
        while !self.ud_closed
            && self.rq.outstanding() < self.receive_depth.0
            && self.rq.next_slot().is_some()
            && top_up(&mut self.stash, &mut self.pool, 1)
        {
            let Some(buf) = self.stash.pop() else { break };
            let (address, len) = buf.room();
            let (address, len) = (address - u64::from(GRH_AREA), len + GRH_AREA);
            let Some(lkey) = self.regions.lkey(address, len) else { break };
            let Some(slot) = self.rq.post([DataSegment::new(address, len, lkey)]) else { break };
            if let Some(place) = self.rq_buffers.get_mut(slot) {
                *place = Some(buf);
            }
            posted += 1;
        }
        self.rq.publish();
        if let Some(srq) = &mut self.srq {
            posted += srq.refill(self.receive_depth.1, &mut self.stash, &mut self.pool, &mut self.regions);
        }
        posted
    }

    /// Receives posted: (datagram queue, shared receive queue).
    #[must_use]
    pub fn posted_receives(&self) -> (u32, u32) {
        (self.rq.outstanding(), self.srq.as_ref().map_or(0, |srq| srq.queue.outstanding()))
    }

    /// Hands up to `limit` received messages to `sink`, oldest first.
    #[inline]
    pub fn receive(&mut self, limit: usize, mut sink: impl FnMut(P, Qpn, Source), events: &mut Events) {
        let mut received = 0;
        let mut batch = ArrayVec::new();
        while received < limit && events.remaining_capacity() >= Health::MAX_EVENTS {
            let Some(cqe) = self.receive_cq.poll() else { break };
            let completion = Completion::of(&cqe);
            let qpn = Qpn::new(completion.qpn);
            match completion.what {
                What::Received(arrival) => {
                    let arrived = if completion.qpn == self.ud_qpn {
                        self.datagram(&arrival)
                    } else {
                        self.message(completion.counter, arrival.byte_len)
                    };
                    if let Some((buf, source)) = arrived {
                        sink(buf, qpn, source);
                        received += 1;
                    }
                }
                What::ReceiveFailed(failure) => {
                    if completion.qpn == self.ud_qpn {
                        drop(self.take_datagram_buffer());
                    } else {
                        // The entry keeps its buffers and is posted again as it is.
                        self.take_shared_slot(completion.counter);
                    }
                    if failure.status != WcStatus::Flushed {
                        let fault = QpFault::Receive(failure.status);
                        let _ = events.try_push(QpEvent { qpn, fault });
                    }
                }
                What::Sent { .. } | What::SendFailed(_) | What::Unknown(_) => {
                    self.send_completion(&completion, &mut batch, events);
                }
            }
        }
        self.receive_cq.publish();
        P::free_all(&mut batch);
    }

    fn take_datagram_buffer(&mut self) -> Option<P> {
        let buf = self.rq.take().and_then(|slot| self.rq_buffers.get_mut(slot)?.take());
        if buf.is_none() {
            self.anomalies.unknown_entry += 1;
        }
        buf
    }

    fn take_shared_slot(&mut self, slot: u16) -> Option<usize> {
        let slot = self.srq.as_mut().and_then(|srq| srq.queue.take(slot));
        if slot.is_none() {
            self.anomalies.unknown_entry += 1;
        }
        slot
    }

    #[inline]
    fn datagram(&mut self, arrival: &Arrival) -> Option<(P, Source)> {
        let mut buf = self.take_datagram_buffer()?;
        let (_, room) = buf.room();
        let Some(len) = arrival.byte_len.checked_sub(GRH_AREA).filter(|len| *len <= room) else {
            self.anomalies.bad_length += 1;
            return None;
        };
        buf.fill(len);
        let source = UdSource {
            qpn: Qpn::new(arrival.src_qpn),
            slid: Lid(arrival.slid),
            sl: ServiceLevel::new(if self.ethernet { 0 } else { arrival.sl }),
            pkey_index: arrival.pkey_index,
            has_grh: arrival.grh,
            // A multicast datagram always has a GRH (IBA 10.5.2.1).
            multicast: arrival.grh
                && if self.ethernet && arrival.ipv4() {
                    buf.byte_before_data(IPV4_DESTINATION_BEFORE_DATA) >> 4 == 0xe
                } else {
                    buf.byte_before_data(DGID_BEFORE_DATA) == 0xff
                },
        };
        Some((buf, Source::Ud(source)))
    }

    #[inline]
    fn message(&mut self, slot: u16, len: u32) -> Option<(P, Source)> {
        let slot = self.take_shared_slot(slot)?;
        let message = self.srq.as_mut().and_then(|srq| srq.message(slot, len));
        if message.is_none() {
            self.anomalies.bad_length += 1;
        }
        message.map(|buf| (buf, Source::Rc))
    }
}
