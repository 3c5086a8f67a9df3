//! One worker's queues on an mlx5 device: see [`crate::hca::Queues`].
//!
//! Completions are matched by queue pair number and slot. The user index of CQE version 1 belongs to the
//! library and is not used. If a device names an entry that it does not own, or a length that does not fit,
//! the driver counts an anomaly and ignores the entry. No buffer is lost or handed out twice.

mod chain;
mod entries;
mod memory;
mod receive;
mod seam;
mod sends;
mod tables;

use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::Qpn;

use super::anchor::{Anchored, release};
use super::av::Destination;
use super::bus::Bus;
use super::cq::CompletionQueue;
use super::mr::MrTable;
use super::rc::{MAX_SEND_SEGMENTS, RcQp};
use super::rings::{CqRing, SrqRing};
use super::sq::Request;
use super::ud::{Door, UdQp};
use crate::bookkeeping::{Credit, Mark, Numbers, Place, Places, Progress, StaleNumbers};
use crate::hca::{BURST, Done, HcaError, PostError, QpEvent, QueuesId, RcSlot, UdSlot};
use crate::mem::packet::{Packet, Stash};
use entries::SharedEntries;
use prm::{DataSegment, SendOpcode};
use receive::GRH_AREA;

/// Events returned by one poll.
pub type Events = ArrayVec<QpEvent, BURST>;

/// Components of a worker's queues.
#[derive(Debug)]
pub struct Parts<B, P: Packet> {
    /// Completion queue for receives and for the drain requests of passive queue pairs.
    pub receive_cq: CqRing,
    /// Completion queue for sends, with an entry for each send that can be outstanding.
    pub send_cq: CqRing,
    /// Identifier of the queue set.
    pub id: QueuesId,
    /// Receive queue shared by all datagram queue pairs. An entry is one buffer, with the GRH area in front
    /// of its data.
    pub datagrams: SrqRing,
    /// Receive queue shared by all connections; `None` for datagrams only.
    pub connections: Option<SrqRing>,
    /// Number of receives to keep posted, for datagrams and for connections. Rings can be larger than
    /// requested.
    pub receive_depth: (u32, u32),
    /// Maximum message length of an entry for connections, in bytes.
    pub srq_message: usize,
    /// Registered memory that contains the buffers.
    pub regions: MrTable,
    /// Pool of receive buffers.
    pub pool: P::Pool,
    /// Doorbell path to the device.
    pub bus: B,
    /// Number of slots for datagram queue pairs.
    pub max_ud: u16,
    /// Number of slots for connected queue pairs.
    pub max_rc: u32,
    /// Maximum number of outstanding sends.
    pub max_sends: u32,
    /// Device object of the datagram receive queue.
    pub datagrams_anchor: Anchored,
    /// Device object of the connection receive queue.
    pub connections_anchor: Anchored,
}

/// Counters of invalid device behavior.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Anomalies {
    /// Completions of an unknown kind.
    pub unknown_opcode: u64,
    /// Completions of queue pairs that are not in the table, or no longer.
    pub unknown_qp: u64,
    /// Completions that name an entry which the device did not own.
    pub unknown_entry: u64,
    /// Queues with an entry outside the ring. They post nothing more, and their queue pairs have failed.
    pub out_of_range: u64,
    /// Messages shorter than a datagram's GRH area or longer than their buffers.
    pub bad_length: u64,
}

/// A worker's queue set.
#[derive(Debug)]
pub struct MlxQueues<B: Bus, P: Packet> {
    id: QueuesId,
    receive_cq: CompletionQueue,
    /// Number of events fetched. The device needs it when the queue is armed again.
    events: u32,
    /// Read progress of the receive completion queue.
    progress: Progress,
    send_cq: CompletionQueue,
    /// Read progress of the send completion queue.
    send_progress: Progress,
    numbers: Numbers,
    uds: Places<UdQp<P>>,
    /// Current or last queue pair number in each slot of `uds`.
    ///
    /// A removed queue pair received into buffers of the datagram receive queue. Its number therefore stays
    /// known until the slot is reused.
    ud_numbers: Box<[Option<u32>]>,
    rcs: Places<RcQp<P>>,
    stale: StaleNumbers,
    /// Connections that may not post yet, with the read progress of the receive and send completion queues
    /// when they were added.
    sealed: Vec<(RcSlot, Mark, Mark)>,
    /// Maximum number of segments of a message on a connection.
    max_segments: usize,
    datagrams: SharedEntries<P>,
    connections: Option<SharedEntries<P>>,
    credit: Credit,
    /// Queue pairs with unsignaled sends that no posted completion covers, each at most once. The most
    /// recently visited one is last.
    lagging: VecDeque<Place>,
    /// True if the doorbell was rung for sends since completions were last reaped.
    rang: bool,
    regions: MrTable,
    pool: P::Pool,
    stash: Stash<P>,
    bus: B,
    anomalies: Anomalies,
    /// Queue pairs that failed because of a broken send queue and are not reported yet.
    broken: VecDeque<Qpn>,
    datagrams_anchor: Anchored,
    connections_anchor: Anchored,
    /// Finished memory work, oldest first.
    done: VecDeque<Done<P>>,
}

impl<B: Bus, P: Packet> Drop for MlxQueues<B, P> {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{e}");
        }
    }
}

/// Iterates over a buffer's segments as data segments.
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
    /// Creates the queues on formatted rings. Nothing is posted until [`MlxQueues::fill`].
    #[must_use]
    pub fn new(parts: Parts<B, P>) -> Self {
        let room = crate::mem::packet::PacketPool::room(&parts.pool);
        let (max_ud, max_rc) = (usize::from(parts.max_ud), parts.max_rc.min(1 << 16) as usize);
        let datagram = room as usize + GRH_AREA as usize;
        let (pool, regions) = (&parts.pool, &parts.regions);
        let datagrams =
            SharedEntries::new(&parts.datagrams, parts.receive_depth.0, datagram, GRH_AREA, pool, regions);
        let connections = parts.connections.map(|ring| {
            SharedEntries::new(&ring, parts.receive_depth.1, parts.srq_message, 0, pool, regions)
        });
        Self {
            id: parts.id,
            receive_cq: CompletionQueue::new(&parts.receive_cq),
            events: 0,
            progress: Progress::new(parts.receive_cq.cqe_count),
            send_cq: CompletionQueue::new(&parts.send_cq),
            send_progress: Progress::new(parts.send_cq.cqe_count),
            numbers: Numbers::new(max_ud + max_rc),
            uds: Places::new(parts.max_ud.into()),
            ud_numbers: vec![None; max_ud].into(),
            rcs: Places::new(parts.max_rc),
            stale: StaleNumbers::default(),
            sealed: Vec::new(),
            max_segments: MAX_SEND_SEGMENTS,
            datagrams,
            connections,
            credit: Credit::new(parts.max_sends),
            lagging: VecDeque::with_capacity(max_ud + max_rc),
            rang: false,
            regions: parts.regions,
            pool: parts.pool,
            stash: Stash::new(),
            bus: parts.bus,
            anomalies: Anomalies::default(),
            broken: VecDeque::new(),
            datagrams_anchor: parts.datagrams_anchor,
            connections_anchor: parts.connections_anchor,
            done: VecDeque::new(),
        }
    }

    /// Destroys all queue pairs, then returns the buffers, except those that the device does not release.
    /// Returns the first error.
    fn end(&mut self) -> Result<(), HcaError> {
        // Queue pairs first: the device fills the shared receives for them.
        let mut result = Ok(());
        for rc in self.rcs.take_all() {
            result = result.and(rc.destroy());
        }
        for ud in self.uds.take_all() {
            result = result.and(ud.destroy());
        }
        let datagrams = release(&mut self.datagrams_anchor).inspect_err(|_| self.datagrams.forget());
        let connections = release(&mut self.connections_anchor).inspect_err(|_| {
            if let Some(srq) = &mut self.connections {
                srq.forget();
            }
        });
        result.and(datagrams).and(connections)
    }

    /// Destroys the queues.
    pub fn destroy(mut self) -> Result<(), HcaError> {
        self.end()
    }

    /// Returns the identifier of the queue set.
    #[must_use]
    pub const fn id(&self) -> QueuesId {
        self.id
    }

    /// Returns the bus.
    pub const fn bus(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Returns the anomaly counters.
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        let receives = self.connections.iter().chain([&self.datagrams]);
        let broken = receives.filter(|entries| entries.is_broken()).count() as u64;
        Anomalies { out_of_range: self.anomalies.out_of_range + broken, ..self.anomalies }
    }

    /// Posts a datagram.
    #[inline(always)]
    pub fn post_ud(&mut self, slot: UdSlot, to: &Destination, buf: P) -> Result<(), (P, PostError)> {
        let piece = buf.only_piece();
        self.post_piece_ud(slot, to, buf, piece, |buf| buf).or_else(|buf| self.post_any_ud(slot, to, buf))
    }

    /// Like [`MlxQueues::post_piece_rc`], for datagrams.
    #[inline(always)]
    pub(super) fn post_piece_ud<M>(
        &mut self,
        slot: UdSlot,
        to: &Destination,
        message: M,
        piece: Option<(u64, u32)>,
        bare: impl FnOnce(M) -> P,
    ) -> Result<(), M> {
        if let Some(ud) = self.uds.get_mut(slot.0.into())
            && ud.door == Door::Open
            && ud.side.has_allowance()
            && self.credit.is_plentiful()
            && let Some((address, len)) = piece
            && let Some(lkey) = self.regions.lkey(address, len)
        {
            self.credit.take();
            let was_dirty = ud.side.sq.is_dirty();
            ud.side.post_allowed(bare(message), Some(to.address()), DataSegment::new(address, len, lkey));
            if !was_dirty {
                self.uds.wait(slot.0.into());
            }
            return Ok(());
        }
        Err(message)
    }

    /// Posts a datagram with all checks.
    #[inline(never)]
    pub(super) fn post_any_ud(
        &mut self,
        slot: UdSlot,
        to: &Destination,
        buf: P,
    ) -> Result<(), (P, PostError)> {
        let ud = self.uds.get_mut(slot.0.into());
        let Some(ud) = ud.filter(|ud| ud.door == Door::Open && !ud.side.sq.is_broken()) else {
            return Err((buf, PostError::NoConnection));
        };
        if !self.credit.has_room() {
            return Err((buf, PostError::Full));
        }
        let was_dirty = ud.side.sq.is_dirty();
        let regions = &mut self.regions;
        let scarce = self.credit.is_scarce();
        ud.side.post(buf, 4, scarce, |sq, flags, segments, buf| {
            let request = Request { opcode: SendOpcode::Send, flags, imm: 0 };
            sq.post_datagram(request, to.address(), segments, data_segments(buf, regions))
        })?;
        self.credit.take();
        if !was_dirty {
            self.uds.wait(slot.0.into());
        }
        Ok(())
    }

    /// Posts a message on a connection.
    ///
    /// The common case is a single-segment message within the allowance that the last checked post computed.
    /// That path skips the checks of ring space, signals and fences.
    #[inline(always)]
    pub fn post_rc(&mut self, slot: RcSlot, buf: P) -> Result<(), (P, PostError)> {
        let piece = buf.only_piece();
        self.post_piece_rc(slot, buf, piece, |buf| buf).or_else(|buf| self.post_looking_rc(slot, buf))
    }

    /// Posts a single-segment message within the allowance.
    ///
    /// `bare` strips the segment's location from `message`. Returns `message` if there is no allowance or the
    /// message has no such segment.
    #[inline(always)]
    pub(super) fn post_piece_rc<M>(
        &mut self,
        slot: RcSlot,
        message: M,
        piece: Option<(u64, u32)>,
        bare: impl FnOnce(M) -> P,
    ) -> Result<(), M> {
        // A passive queue pair and one with failed sends have no allowance.
        if let Some(rc) = self.rcs.get_mut(slot.0)
            && rc.side.has_allowance()
            && self.credit.is_plentiful()
            && let Some((address, len)) = piece
            && let Some(lkey) = self.regions.lkey(address, len)
        {
            self.credit.take();
            let was_dirty = rc.side.sq.is_dirty();
            rc.side.post_allowed(bare(message), None, DataSegment::new(address, len, lkey));
            if !was_dirty {
                self.rcs.wait(slot.0);
            }
            return Ok(());
        }
        Err(message)
    }

    /// Posts a message that has no allowance or must request a completion.
    #[inline(never)]
    pub(super) fn post_looking_rc(&mut self, slot: RcSlot, buf: P) -> Result<(), (P, PostError)> {
        if let Some(rc) = self.rcs.get_mut(slot.0)
            && !rc.passive
            && !rc.sealed
            && !rc.side.health.failed()
            && rc.side.takes_plain()
            && self.credit.admits(rc.side.outstanding())
            && let Some((address, len)) = buf.only_piece()
            && let Some(lkey) = self.regions.lkey(address, len)
        {
            let was_dirty = rc.side.sq.is_dirty();
            rc.side.post_plain(buf, None, DataSegment::new(address, len, lkey), self.credit.is_scarce());
            self.credit.take();
            if !was_dirty {
                self.rcs.wait(slot.0);
            }
            return Ok(());
        }
        self.post_any_rc(slot, buf)
    }

    /// Posts a message with all checks.
    #[inline(never)]
    pub(super) fn post_any_rc(&mut self, slot: RcSlot, buf: P) -> Result<(), (P, PostError)> {
        let Some(rc) = self.rcs.get_mut(slot.0) else {
            return Err((buf, PostError::NoConnection));
        };
        if rc.passive || rc.side.health.failed() {
            return Err((buf, PostError::NoConnection));
        }
        if rc.sealed || !self.credit.admits(rc.side.outstanding()) {
            return Err((buf, PostError::Full));
        }
        let scarce = self.credit.is_scarce();
        let was_dirty = rc.side.sq.is_dirty();
        let regions = &mut self.regions;
        rc.side.post(buf, 1, scarce, |sq, flags, segments, buf| {
            let request = Request { opcode: SendOpcode::Send, flags, imm: 0 };
            let mut data = data_segments(buf, regions);
            match (segments, data.next()) {
                (1, Some(Ok(only))) if only.byte_count != 0 => Ok(sq.post_single(request, only)?),
                (_, first) => sq.post_send(request, segments, first.into_iter().chain(data)),
            }
        })?;
        self.credit.take();
        if !was_dirty {
            self.rcs.wait(slot.0);
        }
        Ok(())
    }

    /// Posts an entry that is longer than its reservation.
    #[cfg(test)]
    pub(super) fn post_too_long(&mut self, slot: RcSlot) {
        let rc = self.rcs.get_mut(slot.0).unwrap();
        let request = Request { opcode: SendOpcode::Send, flags: 0, imm: 0 };
        let posted = rc.side.sq.post::<PostError>(request, 1, |writer| {
            writer.data(DataSegment::new(0, 1, 0));
            Ok(())
        });
        assert!(posted.is_ok());
        self.rcs.wait(slot.0);
    }

    #[cfg(test)]
    pub(super) fn has_allowance(&self, slot: RcSlot) -> bool {
        self.rcs.get(slot.0).is_some_and(|rc| rc.side.has_allowance())
    }

    /// Rings the doorbells of all posted sends.
    #[inline]
    pub fn ring_all(&mut self) {
        let Self { uds, rcs, bus, lagging, rang, broken, .. } = self;
        *rang |= uds.any_waits() || rcs.any_waits();
        uds.ring(|at, ud| {
            ud.side.sq.ring(bus);
            broken.extend(ud.side.newly_broken());
            if ud.side.starts_to_lag() {
                lagging.push_back(Place::Ud(UdSlot(at as u8)));
            }
        });
        rcs.ring(|at, rc| {
            rc.side.sq.ring(bus);
            broken.extend(rc.side.newly_broken());
            if rc.side.starts_to_lag() {
                lagging.push_back(Place::Rc(RcSlot(at), rc.beside));
            }
        });
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
}
