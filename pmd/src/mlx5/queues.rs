//! One worker's queues on an mlx5 device: see [`crate::hca::Queues`].
//!
//! Completions are found by queue pair number and slot, not by the user index of CQE version 1, which belongs to the
//! library. A device that names an entry it was not given, or a length that does not fit, is counted and believed no further:
//! no buffer is lost or given out twice.

mod receive;
mod seam;

use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::Qpn;

use super::anchor::{Anchored, release};
use super::av::Destination;
use super::bus::Bus;
use super::cq::{Completion, CompletionQueue, What};
use super::mr::MrTable;
use super::packet::{Packet, Stash};
use super::rc::{RcQp, SendSide};
use super::rings::{CqRing, QpRings, SrqRing};
use super::rq::ReceiveQueue;
use super::sq::Request;
use crate::bookkeeping::{Completed, Connections, Health};
use crate::hca::{BURST, HcaError, PostError, QpEvent, RcSlot, WcStatus};
use prm::{DataSegment, SendOpcode};
use receive::SharedEntries;

/// Most completions that one poll of sends takes.
const SEND_BATCH: usize = 64;

/// Places of the table of connected queue pairs that one poll looks at to find an idle one.
const VISIT_SPAN: usize = 16;

/// Events of one poll.
pub type Events = ArrayVec<QpEvent, BURST>;

/// What a worker's queues are made of.
#[derive(Debug)]
pub struct Parts<B, P: Packet> {
    /// Where receives complete, and the drain requests of passive queue pairs.
    pub receive_cq: CqRing,
    /// Where sends complete. Room for an entry of each send that can be outstanding.
    pub send_cq: CqRing,
    /// The datagram queue pair.
    pub ud: QpRings,
    /// The shared receive queue; `None` = datagrams only.
    pub srq: Option<SrqRing>,
    /// Receives to keep posted: on the datagram queue and on the shared one. Rings are larger than what was asked for.
    pub receive_depth: (u32, u32),
    /// Bytes of the largest message that an entry of the shared receive queue takes.
    pub srq_message: usize,
    /// Memory that buffers lie in.
    pub regions: MrTable,
    /// Where receive buffers come from.
    pub pool: P::Pool,
    /// The way to the device.
    pub bus: B,
    /// Places for connected queue pairs.
    pub max_rc: u32,
    /// One signalled send in this many.
    pub signal_every: u32,
    /// True at an Ethernet port, where completions tell the kind of IP header in place of the service level.
    pub ethernet: bool,
    /// The datagram queue pair's object.
    pub ud_anchor: Anchored,
    /// The shared receive queue's object.
    pub srq_anchor: Anchored,
}

/// What a device told that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Anomalies {
    /// Completions of an unknown kind.
    pub unknown_opcode: u64,
    /// Completions of queue pairs that are not, or no longer, in the table.
    pub unknown_qp: u64,
    /// Completions that name an entry which the device did not have.
    pub unknown_entry: u64,
    /// Messages shorter than a datagram's GRH area or longer than their buffers.
    pub bad_length: u64,
}

/// One worker's queues.
#[derive(Debug)]
pub struct MlxQueues<B: Bus, P: Packet> {
    receive_cq: CompletionQueue,
    /// Events of it that were fetched: the device wants their number when it is asked for the next.
    events: u32,
    send_cq: CompletionQueue,
    ud_qpn: u32,
    ud: SendSide<P>,
    rq: ReceiveQueue,
    /// Nothing is posted to the datagram queue pair.
    ud_closed: bool,
    rq_buffers: Box<[Option<P>]>,
    receive_depth: (u32, u32),
    srq: Option<SharedEntries<P>>,
    rcs: Connections<RcQp<P>>,
    visited: usize,
    regions: MrTable,
    pool: P::Pool,
    stash: Stash<P>,
    bus: B,
    anomalies: Anomalies,
    ethernet: bool,
    ud_anchor: Anchored,
    srq_anchor: Anchored,
}

impl<B: Bus, P: Packet> Drop for MlxQueues<B, P> {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{e}");
        }
    }
}

/// The pieces of a buffer as data segments.
#[inline]
fn data_segments<'a, P: Packet>(
    buf: &'a P,
    regions: &'a mut MrTable,
) -> impl Iterator<Item = Result<DataSegment, PostError>> + 'a {
    buf.pieces().map(|(address, len)| {
        let lkey = regions.lkey(address, len).ok_or(PostError::NotRegistered)?;
        Ok(DataSegment::new(address, len, lkey))
    })
}

impl<B: Bus, P: Packet> MlxQueues<B, P> {
    /// The queues on new rings. Nothing is posted yet: [`MlxQueues::fill`] does.
    #[must_use]
    pub fn new(parts: Parts<B, P>) -> Self {
        let rq = ReceiveQueue::new(&parts.ud);
        let room = super::packet::PacketPool::room(&parts.pool);
        Self {
            receive_cq: CompletionQueue::new(&parts.receive_cq),
            events: 0,
            send_cq: CompletionQueue::new(&parts.send_cq),
            ud_qpn: parts.ud.qpn,
            ethernet: parts.ethernet,
            ud: SendSide::new(&parts.ud, parts.signal_every.min(1 << 12) as u16),
            rq_buffers: (0..rq.slots()).map(|_| None).collect(),
            rq,
            ud_closed: false,
            receive_depth: parts.receive_depth,
            srq: parts.srq.map(|ring| SharedEntries::new(&ring, parts.srq_message, room)),
            rcs: Connections::new(parts.max_rc),
            visited: 0,
            regions: parts.regions,
            pool: parts.pool,
            stash: Stash::new(),
            bus: parts.bus,
            anomalies: Anomalies::default(),
            ud_anchor: parts.ud_anchor,
            srq_anchor: parts.srq_anchor,
        }
    }

    /// Destroys all queue pairs, then gives the buffers back, except those that the device does not let go of. Tells the first
    /// failure.
    fn end(&mut self) -> Result<(), HcaError> {
        // Connected queue pairs first: the device fills the shared receives for them.
        let mut result = Ok(());
        for rc in self.rcs.take_all() {
            result = result.and(rc.destroy());
        }
        let ud = release(&mut self.ud_anchor).inspect_err(|_| {
            self.ud.forget();
            std::mem::forget(std::mem::take(&mut self.rq_buffers));
        });
        let srq = release(&mut self.srq_anchor).inspect_err(|_| {
            if let Some(srq) = &mut self.srq {
                srq.forget();
            }
        });
        result.and(ud).and(srq)
    }

    /// Destroys the queues.
    pub fn destroy(mut self) -> Result<(), HcaError> {
        self.end()
    }

    /// The bus.
    pub const fn bus(&mut self) -> &mut B {
        &mut self.bus
    }

    /// What the device told that cannot be, so far.
    #[must_use]
    pub const fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// Posts a datagram.
    #[inline]
    pub fn post_ud(&mut self, to: &Destination, buf: P) -> Result<(), (P, PostError)> {
        if self.ud_closed {
            return Err((buf, PostError::NoConnection));
        }
        let regions = &mut self.regions;
        self.ud.post(buf, 4, |sq, flags, segments, buf| {
            let request = Request { opcode: SendOpcode::Send, flags, imm: 0 };
            sq.post_datagram(request, to.address(), segments, data_segments(buf, regions))
        })
    }

    /// Posts a message on a connection.
    #[inline]
    pub fn post_rc(&mut self, slot: RcSlot, buf: P) -> Result<(), (P, PostError)> {
        let Some(rc) = self.rcs.get_mut(slot) else {
            return Err((buf, PostError::NoConnection));
        };
        if rc.passive || rc.side.health.failed() {
            return Err((buf, PostError::NoConnection));
        }
        let was_dirty = rc.side.sq.is_dirty();
        let regions = &mut self.regions;
        rc.side.post(buf, 1, |sq, flags, segments, buf| {
            let request = Request { opcode: SendOpcode::Send, flags, imm: 0 };
            let mut data = data_segments(buf, regions);
            match (segments, data.next()) {
                (1, Some(Ok(only))) if only.byte_count != 0 => Ok(sq.post_single(request, only)?),
                (_, first) => sq.post_send(request, segments, first.into_iter().chain(data)),
            }
        })?;
        if !was_dirty {
            self.rcs.wait(slot);
        }
        Ok(())
    }

    /// Rings for all that was posted.
    #[inline]
    pub fn ring_all(&mut self) {
        self.ud.sq.ring(&mut self.bus);
        self.rcs.ring(|rc| rc.side.sq.ring(&mut self.bus));
    }

    /// Reaps send completions. Returns how many buffers went home.
    pub fn reap(&mut self, events: &mut Events) -> usize {
        let mut freed = 0;
        let mut batch = Stash::new();
        for _ in 0..SEND_BATCH {
            if events.remaining_capacity() < Health::MAX_EVENTS {
                break;
            }
            let Some(cqe) = self.send_cq.poll() else { break };
            freed += self.send_completion(&Completion::of(&cqe), &mut batch, events);
        }
        self.send_cq.publish();
        P::free_all(&mut batch);
        self.visit();
        freed
    }

    /// Looks at one queue pair for sends whose completion nothing will fetch any more.
    fn visit(&mut self) {
        for _ in 0..VISIT_SPAN.min(self.rcs.len() + 1) {
            let at = self.visited;
            let last = at >= self.rcs.len();
            self.visited = if last { 0 } else { at + 1 };
            let side = match self.rcs.get_mut(RcSlot(at as u16)) {
                _ if last => &mut self.ud,
                Some(rc) => &mut rc.side,
                None => continue,
            };
            // Rung at once if it was not waiting for the next round anyway.
            let was_dirty = side.sq.is_dirty();
            if side.visit() && !was_dirty {
                side.sq.ring(&mut self.bus);
            }
            return;
        }
    }

    /// A send has completed or failed. Returns how many buffers it frees into `batch`.
    #[inline]
    fn send_completion(
        &mut self,
        completion: &Completion,
        batch: &mut Stash<P>,
        events: &mut Events,
    ) -> usize {
        let status = match completion.what {
            What::Sent { .. } => WcStatus::Success,
            What::SendFailed(failure) => failure.status,
            What::Received(_) | What::ReceiveFailed(_) | What::Unknown(_) => {
                self.anomalies.unknown_opcode += 1;
                return 0;
            }
        };
        let datagram = completion.qpn == self.ud_qpn;
        let side = if datagram {
            &mut self.ud
        } else {
            let Some(rc) = self.rcs.of_qpn(completion.qpn) else {
                self.anomalies.unknown_qp += 1;
                return 0;
            };
            &mut rc.side
        };
        let mut freed = 0;
        let reaped = side.complete(completion.counter, |buf| {
            freed += 1;
            if batch.is_full() {
                P::free_all(batch);
            }
            batch.push(buf);
        });
        if !reaped.known {
            self.anomalies.unknown_entry += 1;
            return 0;
        }
        let outstanding = side.outstanding();
        let what = Completed {
            qpn: Qpn::new(completion.qpn),
            status,
            drained: reaped.drained,
            outstanding,
            datagram,
        };
        side.health.completed(what, events);
        freed
    }

    /// See [`crate::hca::Queues::arm`].
    pub fn ask_for_event(&mut self) -> bool {
        let doorbell = self.receive_cq.arm(self.events, false);
        self.bus.arm(doorbell)
    }

    /// See [`crate::hca::Queues::wait`].
    pub fn wait_for_event(&mut self, at_most: Duration) -> bool {
        let events = self.bus.wait(at_most);
        self.events = self.events.wrapping_add(events);
        events > 0
    }

    /// See [`crate::hca::Queues::close_ud`].
    pub fn close_datagrams(&mut self) {
        self.ud_closed = true;
        // What waits for the doorbell is flushed with the rest.
        self.ud.sq.ring(&mut self.bus);
    }

    /// Requests that the datagram queue pair has not given back.
    #[must_use]
    pub const fn datagrams_outstanding(&self) -> u32 {
        self.ud.outstanding() + self.rq.outstanding()
    }

    /// See [`crate::hca::Queues::open_ud`]. Does nothing as long as anything is outstanding.
    pub fn open_datagrams(&mut self) {
        if self.datagrams_outstanding() == 0 {
            // In RESET the device counts from 0 again.
            self.ud.restart();
            self.rq.restart();
            self.ud_closed = false;
        }
    }

    /// Takes a connected queue pair into the table.
    #[expect(clippy::result_large_err, reason = "what is not taken is handed back")]
    pub fn insert(&mut self, slot: RcSlot, rc: RcQp<P>) -> Result<(), RcQp<P>> {
        self.rcs.insert(slot, rc)
    }

    /// Takes a connected queue pair out of the table.
    pub fn remove(&mut self, slot: RcSlot) -> Option<RcQp<P>> {
        self.rcs.remove(slot)
    }

    /// Posts the drain request of a queue pair that is in error, and rings.
    pub fn drain(&mut self, slot: RcSlot) -> Result<(), PostError> {
        let rc = self.rcs.get_mut(slot).ok_or(PostError::NoConnection)?;
        rc.side.post_drain()?;
        rc.side.health.fail();
        rc.side.sq.ring(&mut self.bus);
        self.rcs.rung(slot);
        Ok(())
    }

    /// Sends outstanding on a connected queue pair.
    #[must_use]
    pub fn outstanding(&self, slot: RcSlot) -> usize {
        self.rcs.get(slot).map_or(0, |rc| rc.side.outstanding() as usize)
    }
}
