//! The receiving half: what arrives by the shared receive queues, one for datagrams and one for connections.

use arrayvec::ArrayVec;
use ib_wire::{Lid, Qpn, ServiceLevel};

use super::entries::Wrong;
use super::{Events, MlxQueues};
use crate::bookkeeping::{Health, Place};
use crate::hca::{Checksum, MemoryKey, QpEvent, QpFault, Received, Source, UdSlot, UdSource, WcStatus};
use crate::mem::packet::Packet;
use crate::mlx5::bus::Bus;
use crate::mlx5::cq::{Arrival, Completion, Extra, What};

/// A datagram, where it came from, and what the device says of the packet in it.
type Arrived<P> = (P, UdSource, Checksum);

/// Bytes in front of a datagram's data where its GRH goes, or nothing.
pub(super) const GRH_AREA: u32 = 40;

/// From the last byte of the GRH area back to the first byte of the destination GID.
const DGID_BEFORE_DATA: usize = 16;
/// The destination of an IPv4 header, which ends where the data begin.
const IPV4_DESTINATION_BEFORE_DATA: usize = 4;

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
        let connections = self.connections.as_ref().map_or(0, |srq| srq.outstanding());
        (self.datagrams.outstanding(), connections)
    }

    /// Hands up to `limit` received messages to `sink`, oldest first.
    #[inline]
    pub fn receive(&mut self, limit: usize, mut sink: impl FnMut(Received<P>), events: &mut Events) {
        let (mut received, mut taken, mut empty) = (0, 0, false);
        let mut batch = ArrayVec::new();
        while received < limit {
            // Messages by connections that we know, nearly always with nothing beside their data, take no look at the rest of their completion.
            if let Some(message) = self.receive_cq.message()
                && let Some(Place::Rc(rc, ud)) = self.numbers.find(message.qpn)
            {
                self.receive_cq.skip();
                taken += 1;
                if let Some(buf) = self.message(message.counter, message.byte_len) {
                    let (qpn, checksum) = (Qpn::new(message.qpn), Checksum::Unknown);
                    sink(Received { buf, qpn, ud: Some(ud), rc: Some(rc), source: Source::Rc, checksum });
                    received += 1;
                }
                continue;
            }
            if events.remaining_capacity() < Health::MAX_EVENTS {
                break;
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
                    let known = match (self.numbers.find(completion.qpn), &mut self.connections) {
                        (Some(Place::Ud(_)), _) => self.datagrams.failed(completion.counter),
                        (_, Some(srq)) => srq.failed(completion.counter),
                        (_, None) => Err(Wrong::Entry),
                    };
                    self.right(known);
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

    #[inline]
    fn datagram(&mut self, at: UdSlot, completion: Completion, arrival: Arrival) -> Option<Arrived<P>> {
        let taken = self.datagrams.single(completion.counter);
        let mut buf = self.right(taken)?;
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
        let taken = match &mut self.connections {
            Some(srq) => srq.message(slot, len),
            None => Err(Wrong::Entry),
        };
        self.right(taken)
    }

    /// Counts what a device told that cannot be.
    #[inline(always)]
    fn right<T>(&mut self, told: Result<T, Wrong>) -> Option<T> {
        match told {
            Ok(right) => Some(right),
            Err(wrong) => {
                self.note_wrong(wrong);
                None
            }
        }
    }

    #[cold]
    const fn note_wrong(&mut self, wrong: Wrong) {
        match wrong {
            Wrong::Entry => self.anomalies.unknown_entry += 1,
            Wrong::Length => self.anomalies.bad_length += 1,
        }
    }
}
