//! Receive path: messages from the shared receive queues for datagrams and for connections.

use arrayvec::ArrayVec;
use ib_wire::{Lid, Qpn, ServiceLevel};

use super::entries::Wrong;
use super::{Anomalies, Events, MlxQueues};
use crate::bookkeeping::{Health, Place};
use crate::hca::{Checksum, MemoryKey, QpEvent, QpFault, Received, Source, UdSlot, UdSource, WcStatus};
use crate::mem::packet::Packet;
use crate::mlx5::bus::Bus;
use crate::mlx5::cq::{Arrival, Completion, Extra, Message, What};
use crate::mlx5::ud::UdQp;

/// A datagram with its source and the device's checksum result.
type Arrived<P> = (P, UdSource, Checksum);

/// Bytes in front of a datagram's data that are reserved for its GRH.
pub(super) const GRH_AREA: u32 = 40;

/// Distance from the end of the GRH area back to the first byte of the destination GID.
const DGID_BEFORE_DATA: usize = 16;
/// Distance from the start of the data back to the destination address of the IPv4 header that ends there.
const IPV4_DESTINATION_BEFORE_DATA: usize = 4;

impl<B: Bus, P: Packet> MlxQueues<B, P> {
    /// Refills the receive queues. Returns the number of entries posted.
    pub fn fill(&mut self) -> usize {
        let Self { stash, pool, regions, .. } = self;
        let mut posted = self.datagrams.refill(stash, pool, regions);
        if let Some(srq) = &mut self.connections {
            posted += srq.refill(stash, pool, regions);
        }
        posted
    }

    /// Number of receives posted: (for datagrams, for connections).
    #[must_use]
    pub fn posted_receives(&self) -> (u32, u32) {
        let connections = self.connections.as_ref().map_or(0, |srq| srq.outstanding());
        (self.datagrams.outstanding(), connections)
    }

    /// Passes up to `limit` received messages to `sink`, oldest first.
    #[inline]
    pub fn receive(&mut self, limit: usize, mut sink: impl FnMut(Received<P>), events: &mut Events) {
        let (mut received, mut taken, mut empty) = (0, 0, false);
        let mut batch = ArrayVec::new();
        while received < limit {
            // Fast path: known queue pairs and messages that carry only data. It reads only the needed fields
            // of a completion.
            let messages = self.plain_messages(limit - received, &mut sink);
            let datagrams = self.plain_datagrams(limit - received - messages.received, &mut sink);
            received += messages.received + datagrams.received;
            if messages.taken + datagrams.taken > 0 {
                taken += messages.taken + datagrams.taken;
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
                    // Pass each kind to the sink separately: merging them first would write parts of the
                    // value to memory.
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
                    // The entry keeps its buffers except the first. The first buffer is replaced when the
                    // entry is posted again.
                    let known = match (self.numbers.find(completion.qpn), &mut self.connections) {
                        (Some(Place::Ud(_)), _) => self.datagrams.single(completion.counter),
                        (_, Some(srq)) => srq.single(completion.counter),
                        (_, None) => Err(Wrong::Entry),
                    };
                    if let Some(buf) = self.right(known) {
                        // If the stash is full, the buffer returns to the pool.
                        let _ = self.stash.try_push(buf);
                    }
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
        if !self.sealed.is_empty() {
            self.unseal();
        }
        self.receive_cq.publish();
        P::free_all(&mut batch);
    }

    /// Consumes data-only, single-buffer messages of known connections, up to the first other completion.
    // A separate function leaves the registers to this loop.
    #[inline(never)]
    fn plain_messages(&mut self, limit: usize, sink: &mut impl FnMut(Received<P>)) -> Polled {
        let mut polled = Polled::default();
        let Self { receive_cq, numbers, connections: Some(connections), anomalies, .. } = self else {
            return polled;
        };
        let (mut messages, mut entries) = (receive_cq.messages(), connections.completed());
        while polled.received < limit
            && let Some(Message { qpn, counter, byte_len }) = messages.next()
            && let Some(Place::Rc(rc, ud)) = numbers.find(qpn)
            && entries.fits(byte_len)
        {
            messages.skip();
            polled.taken += 1;
            match entries.message(counter, byte_len) {
                Ok(buf) => {
                    let (qpn, checksum) = (Qpn::new(qpn), Checksum::Unknown);
                    sink(Received { buf, qpn, ud: Some(ud), rc: Some(rc), source: Source::Rc, checksum });
                    polled.received += 1;
                }
                Err(wrong) => anomalies.note(wrong),
            }
        }
        polled
    }

    /// Consumes data-only datagrams to one known queue pair, up to the first other completion.
    #[inline(never)]
    fn plain_datagrams(&mut self, limit: usize, sink: &mut impl FnMut(Received<P>)) -> Polled {
        let mut polled = Polled::default();
        let Self { receive_cq, numbers, uds, datagrams, anomalies, .. } = self;
        let mut messages = receive_cq.messages();
        let Some(Message { qpn: number, .. }) = messages.next() else { return polled };
        let Some(Place::Ud(slot)) = numbers.find(number) else { return polled };
        // The queue pair may have been removed since, and its slot reused.
        let Some(ud) = uds.get(slot.0.into()).filter(|ud| ud.side.sq.qpn() == number) else { return polled };
        let (kind, mut entries) = (Kind::of(ud), datagrams.completed());
        while polled.received < limit
            && let Some(Message { qpn, counter, byte_len }) = messages.next()
            && qpn == number
        {
            messages.skip();
            polled.taken += 1;
            match entries.datagram(counter, byte_len) {
                Ok(buf) => {
                    // Read the sender's fields only when needed: read earlier, they would be spilled to the
                    // stack.
                    let (source, checksum) = kind.source(&buf, messages.taken());
                    let (qpn, source) = (Qpn::new(qpn), Source::Ud(source));
                    sink(Received { buf, qpn, ud: Some(slot), rc: None, source, checksum });
                    polled.received += 1;
                }
                Err(wrong) => anomalies.note(wrong),
            }
        }
        polled
    }

    /// Handles a datagram that carries more than data, or one for a removed queue pair.
    fn datagram(&mut self, at: UdSlot, completion: Completion, arrival: Arrival) -> Option<Arrived<P>> {
        let taken = self.datagrams.completed().datagram(completion.counter, arrival.byte_len);
        let ud = self.uds.get(at.0.into()).filter(|ud| ud.side.sq.qpn() == completion.qpn);
        match (taken, ud.map(Kind::of)) {
            (Ok(buf), Some(kind)) => {
                let (source, checksum) = kind.source(&buf, arrival);
                return Some((buf, source, checksum));
            }
            (Err(Wrong::Length) | Ok(_), None) => self.anomalies.unknown_qp += 1,
            (Err(wrong), _) => self.anomalies.note(wrong),
        }
        None
    }

    fn message(&mut self, slot: u16, len: u32) -> Option<P> {
        let taken = match &mut self.connections {
            Some(srq) => srq.message(slot, len),
            None => Err(Wrong::Entry),
        };
        self.right(taken)
    }

    /// Counts an invalid device report.
    #[inline(always)]
    fn right<T>(&mut self, result: Result<T, Wrong>) -> Option<T> {
        result.map_err(|wrong| self.anomalies.note(wrong)).ok()
    }
}

impl Anomalies {
    #[cold]
    const fn note(&mut self, wrong: Wrong) {
        match wrong {
            Wrong::Entry => self.unknown_entry += 1,
            Wrong::Length => self.bad_length += 1,
        }
    }
}

/// Number of completions consumed and of messages received.
#[derive(Clone, Copy, Default, Debug)]
struct Polled {
    received: usize,
    taken: usize,
}

/// Interpretation of a queue pair's datagram completions.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// See [`UdQp::ethernet`].
    ethernet: bool,
    /// See [`UdQp::checks_ipv4`].
    checks_ipv4: bool,
}

impl Kind {
    const fn of<P>(ud: &UdQp<P>) -> Self {
        Self { ethernet: ud.ethernet, checks_ipv4: ud.checks_ipv4 }
    }

    /// Returns the source of a received datagram and the device's checksum result. The buffer has been
    /// filled.
    #[inline(always)]
    fn source<P: Packet>(self, buf: &P, arrival: Arrival) -> (UdSource, Checksum) {
        let good = arrival.ipv4_is_good && self.checks_ipv4;
        let source = UdSource {
            qpn: Qpn::new(arrival.src_qpn),
            slid: Lid(arrival.slid),
            sl: ServiceLevel::new(if self.ethernet { 0 } else { arrival.sl }),
            dlid_path_bits: arrival.dlid_path_bits,
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
        (source, if good { Checksum::Good } else { Checksum::Unknown })
    }
}
