//! One worker's queues: see [`crate::hca::Queues`].
//!
//! A work request's id names its kind and its place here. A device that names one that it was not given, or a length that does
//! not fit, is counted and believed no further: no buffer is lost or given out twice.

mod receive;
mod send;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::{Lid, Qpn, ServiceLevel};
use verbs_sys as sys;

use super::address::VerbsDestination;
use super::object::{CompletionQueue, SharedReceiveQueue};
use crate::bookkeeping::{Completed, Connected, Connections, Health};
use crate::hca::{
    BURST, HcaError, PostError, QpEvent, QpFault, Queues, RcSlot, Received, Refused, RxBurst, Source,
    UdSource, WcStatus,
};
use crate::mem::{HEADROOM, Mbuf, Pool};
use crate::mlx5::mr::MrTable;
use receive::{DatagramReceives, GRH_AREA, SharedReceives, Stash};
use send::Lists;
pub(super) use send::SendSide;

/// From the first byte of the data back to the first byte of the destination GID.
const DGID_BEFORE_DATA: usize = 16;

/// What a work request is; the upper half of its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Kind {
    Send = 1,
    Drain = 2,
    Datagram = 3,
    Shared = 4,
}

const fn tag(kind: Kind, place: u32) -> u64 {
    (kind as u64) << 32 | place as u64
}

const fn untag(id: u64) -> Option<(Kind, u32)> {
    let kind = match id >> 32 {
        1 => Kind::Send,
        2 => Kind::Drain,
        3 => Kind::Datagram,
        4 => Kind::Shared,
        _ => return None,
    };
    Some((kind, id as u32))
}

/// What a device told that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Anomalies {
    /// Completions of queue pairs that are not, or no longer, in the table.
    pub unknown_qp: u64,
    /// Completions that name an entry which the device did not have.
    pub unknown_entry: u64,
    /// Messages shorter than a datagram's GRH area or longer than their buffers.
    pub bad_length: u64,
    /// Completion queues that could not be polled.
    pub bad_poll: u64,
}

/// Hot half of a connected queue pair. What it still owes when it is dropped goes home with it.
#[derive(Debug)]
pub struct VerbsRc {
    side: SendSide,
    passive: bool,
}

impl VerbsRc {
    pub(super) const fn new(side: SendSide, passive: bool) -> Self {
        Self { side, passive }
    }

    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.side.qpn()
    }

    pub(super) fn destroy(mut self) -> Result<(), HcaError> {
        self.side.destroy()
    }
}

impl Connected for VerbsRc {
    fn number(&self) -> Qpn {
        self.qpn()
    }
}

/// What a worker's queues are made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) send_cq: Arc<CompletionQueue>,
    pub(super) recv_cq: Arc<CompletionQueue>,
    pub(super) ud: SendSide,
    pub(super) ud_receives: u32,
    /// The shared receive queue and the segments of its entries.
    pub(super) srq: Option<(Arc<SharedReceiveQueue>, usize)>,
    pub(super) srq_depth: u32,
    pub(super) regions: MrTable,
    pub(super) pool: Pool,
    pub(super) max_rc: u32,
}

/// One worker's queues. Dropping them destroys their queue pairs, then gives their buffers back.
#[derive(Debug)]
pub struct VerbsQueues {
    // In this order: connected queue pairs use the shared receives, and the datagram queue pair its own.
    rcs: Connections<VerbsRc>,
    ud: SendSide,
    datagrams: DatagramReceives,
    /// Nothing is posted to the datagram queue pair.
    ud_closed: bool,
    shared: Option<SharedReceives>,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    lists: Lists,
    stash: Stash,
    regions: MrTable,
    pool: Pool,
    /// Faults found while posting.
    faults: ArrayVec<QpEvent, BURST>,
    anomalies: Anomalies,
}

impl Drop for VerbsQueues {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{}", super::remedy::whole(&e));
        }
    }
}

impl VerbsQueues {
    pub(super) fn new(parts: Parts) -> Self {
        let room = parts.pool.data_room();
        let shared =
            parts.srq.map(|(queue, segments)| SharedReceives::new(queue, parts.srq_depth, segments, room));
        Self {
            rcs: Connections::new(parts.max_rc),
            ud: parts.ud,
            datagrams: DatagramReceives::new(parts.ud_receives),
            ud_closed: false,
            shared,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            lists: Lists::new(),
            stash: Stash::new(),
            regions: parts.regions,
            pool: parts.pool,
            faults: ArrayVec::new(),
            anomalies: Anomalies::default(),
        }
    }

    /// Destroys all queue pairs, then gives the buffers back, except those that the device does not let go of. Tells the first
    /// failure.
    fn end(&mut self) -> Result<(), HcaError> {
        // Connected queue pairs use the shared receives, and the datagram queue pair its own.
        let mut result = Ok(());
        for rc in self.rcs.take_all() {
            result = result.and(rc.destroy());
        }
        let ud = self.ud.destroy().inspect_err(|_| self.datagrams.forget());
        let shared = self.shared.as_mut().map_or(Ok(()), SharedReceives::destroy);
        result.and(ud).and(shared)
    }

    pub(super) fn destroy(mut self) -> Result<(), HcaError> {
        self.end()
    }

    /// What the device told that cannot be, so far.
    #[must_use]
    pub const fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    fn poll<'w>(
        cq: &CompletionQueue,
        wc: &'w mut [sys::ibv_wc],
        anomalies: &mut Anomalies,
    ) -> &'w [sys::ibv_wc] {
        // SAFETY: the queue lives, and only this worker polls it.
        let count = unsafe { sys::inline::poll_cq(cq.raw(), wc) };
        match usize::try_from(count) {
            Ok(count) => wc.get(..count).unwrap_or_default(),
            Err(_) => {
                anomalies.bad_poll += 1;
                &[]
            }
        }
    }

    /// A send or drain request has completed. Returns how many buffers went home.
    #[inline]
    fn send_completion(
        &mut self,
        wc: &sys::ibv_wc,
        kind: Kind,
        entry: u32,
        events: &mut ArrayVec<QpEvent, BURST>,
    ) -> usize {
        let qpn = Qpn::new(wc.qp_num);
        let datagram = qpn == self.ud.qpn();
        let side = if datagram {
            &mut self.ud
        } else {
            let Some(rc) = self.rcs.of_qpn(wc.qp_num) else {
                self.anomalies.unknown_qp += 1;
                return 0;
            };
            &mut rc.side
        };
        let (mut freed, mut drained) = (0, false);
        let known = if kind == Kind::Drain {
            drained = side.drained();
            drained
        } else {
            let reaped = side.complete(entry);
            freed = reaped.freed;
            reaped.known
        };
        if !known {
            self.anomalies.unknown_entry += 1;
            return 0;
        }
        let outstanding = side.outstanding();
        let what = Completed { qpn, status: status(wc.status), drained, outstanding, datagram };
        side.health.completed(what, events);
        freed
    }

    fn datagram(&mut self, wc: &sys::ibv_wc, slot: u32) -> Option<(Mbuf, Source)> {
        let Some(mut buf) = self.datagrams.take(slot) else {
            self.anomalies.unknown_entry += 1;
            return None;
        };
        let len = (wc.byte_len as usize).checked_sub(GRH_AREA);
        if !len.is_some_and(|len| buf.set_data(HEADROOM, len)) {
            self.anomalies.bad_length += 1;
            return None;
        }
        let has_grh = wc.wc_flags & sys::IBV_WC_GRH != 0;
        let source = UdSource {
            qpn: Qpn::new(wc.src_qp),
            slid: Lid(wc.slid),
            sl: ServiceLevel::new(wc.sl),
            pkey_index: wc.pkey_index,
            has_grh,
            // A multicast datagram always has a GRH (IBA 10.5.2.1).
            multicast: has_grh
                && buf.before_data(DGID_BEFORE_DATA).is_some_and(|gid| gid.first() == Some(&0xff)),
        };
        Some((buf, Source::Ud(source)))
    }

    fn message(&mut self, wc: &sys::ibv_wc, slot: u32) -> Option<(Mbuf, Source)> {
        match self.shared.as_mut().map_or(Err(false), |srq| srq.message(slot, wc.byte_len as usize)) {
            Ok(buf) => Some((buf, Source::Rc)),
            Err(known) => {
                let count =
                    if known { &mut self.anomalies.bad_length } else { &mut self.anomalies.unknown_entry };
                *count += 1;
                None
            }
        }
    }

    /// A receive that failed, or was flushed.
    fn receive_failed(
        &mut self,
        wc: &sys::ibv_wc,
        kind: Kind,
        slot: u32,
        events: &mut ArrayVec<QpEvent, BURST>,
    ) {
        let known = match (kind, &mut self.shared) {
            (Kind::Datagram, _) => self.datagrams.take(slot).is_some(),
            (_, Some(srq)) => srq.recycle(slot),
            (_, None) => false,
        };
        if !known {
            self.anomalies.unknown_entry += 1;
        }
        let status = status(wc.status);
        if status != WcStatus::Flushed {
            let event = QpEvent { qpn: Qpn::new(wc.qp_num), fault: QpFault::Receive(status) };
            let _ = events.try_push(event);
        }
    }

    fn report_faults(&mut self, events: &mut ArrayVec<QpEvent, BURST>) {
        while events.remaining_capacity() > 0 {
            let Some(event) = self.faults.pop() else { break };
            events.push(event);
        }
    }
}

/// Keeps a failure of posting until events are asked for.
fn note_failure(faults: &mut ArrayVec<QpEvent, BURST>, qpn: Qpn, flushed: bool) {
    let _ = faults.try_push(QpEvent { qpn, fault: QpFault::Send(WcStatus::General) });
    if flushed {
        let _ = faults.try_push(QpEvent { qpn, fault: QpFault::Flushed });
    }
}

/// Completions of one poll.
fn room(events: &ArrayVec<QpEvent, BURST>) -> usize {
    (events.remaining_capacity() / Health::MAX_EVENTS).min(BURST)
}

impl Queues for VerbsQueues {
    type Rc = VerbsRc;
    type Destination = VerbsDestination;

    fn ud_qpn(&self) -> Qpn {
        self.ud.qpn()
    }

    fn turn(&mut self) -> bool {
        false
    }

    #[inline]
    fn send_ud(&mut self, to: &VerbsDestination, buf: Mbuf) -> Result<(), Refused> {
        if self.ud_closed {
            return Err(Refused { buf, error: PostError::NoConnection });
        }
        self.ud.queue(buf, Some(to.clone()), &mut self.regions).map_err(|(buf, error)| Refused { buf, error })
    }

    #[inline]
    fn send_rc(&mut self, slot: RcSlot, buf: Mbuf) -> Result<(), Refused> {
        let Some(rc) = self.rcs.get_mut(slot) else {
            return Err(Refused { buf, error: PostError::NoConnection });
        };
        if rc.passive || rc.side.health.failed() {
            return Err(Refused { buf, error: PostError::NoConnection });
        }
        let was_dirty = rc.side.has_queued();
        rc.side.queue(buf, None, &mut self.regions).map_err(|(buf, error)| Refused { buf, error })?;
        if !was_dirty {
            self.rcs.wait(slot);
        }
        Ok(())
    }

    fn ring(&mut self) {
        let Self { ud, rcs, lists, regions, faults, .. } = self;
        if ud.has_queued() && !ud.ring(lists, regions) {
            note_failure(faults, ud.qpn(), false);
        }
        rcs.ring(|rc| {
            if !rc.side.ring(lists, regions) {
                let flushed = rc.side.outstanding() == 0;
                if flushed {
                    rc.side.health.flushed();
                }
                note_failure(faults, rc.qpn(), flushed);
            }
        });
    }

    fn poll_receive(&mut self, burst: &mut RxBurst, events: &mut ArrayVec<QpEvent, BURST>) {
        loop {
            let most = room(events).min(burst.remaining_capacity());
            let mut wc = [sys::ibv_wc::default(); BURST];
            let wc = Self::poll(&self.recv_cq, wc.get_mut(..most).unwrap_or_default(), &mut self.anomalies);
            if wc.is_empty() {
                break;
            }
            for wc in wc {
                let Some((kind, place)) = untag(wc.wr_id) else {
                    self.anomalies.unknown_entry += 1;
                    continue;
                };
                let arrived = match kind {
                    Kind::Send | Kind::Drain => {
                        self.send_completion(wc, kind, place, events);
                        None
                    }
                    _ if wc.status != sys::IBV_WC_SUCCESS => {
                        self.receive_failed(wc, kind, place, events);
                        None
                    }
                    Kind::Datagram => self.datagram(wc, place),
                    Kind::Shared => self.message(wc, place),
                };
                if let Some((buf, source)) = arrived {
                    burst.push(Received { buf, qpn: Qpn::new(wc.qp_num), source });
                }
            }
            if wc.len() < most {
                break;
            }
        }
    }

    fn poll_send(&mut self, events: &mut ArrayVec<QpEvent, BURST>) -> usize {
        self.report_faults(events);
        let mut freed = 0;
        let most = room(events);
        let mut wc = [sys::ibv_wc::default(); BURST];
        let wc = Self::poll(&self.send_cq, wc.get_mut(..most).unwrap_or_default(), &mut self.anomalies);
        for wc in wc {
            match untag(wc.wr_id) {
                Some((kind @ (Kind::Send | Kind::Drain), place)) => {
                    freed += self.send_completion(wc, kind, place, events);
                }
                _ => self.anomalies.unknown_entry += 1,
            }
        }
        freed
    }

    fn refill(&mut self) -> usize {
        let mut posted = 0;
        if !self.ud_closed {
            posted += self.datagrams.refill(&self.ud.qp, &mut self.stash, &mut self.pool, &mut self.regions);
        }
        if let Some(srq) = &mut self.shared {
            posted += srq.refill(&mut self.stash, &mut self.pool, &mut self.regions);
        }
        posted
    }

    fn close_ud(&mut self) {
        self.ud_closed = true;
    }

    fn ud_outstanding(&self) -> u32 {
        self.ud.outstanding() + self.datagrams.posted()
    }

    fn open_ud(&mut self) {
        // The library counts its rings from 0 again by itself.
        self.ud.health.restart();
        self.ud_closed = false;
    }

    fn arm(&mut self) -> bool {
        self.recv_cq.arm()
    }

    fn wait(&mut self, at_most: Duration) -> bool {
        self.recv_cq.wait(at_most) > 0
    }

    fn receives_posted(&self) -> (u32, u32) {
        (self.datagrams.posted(), self.shared.as_ref().map_or(0, SharedReceives::posted))
    }

    fn insert_rc(&mut self, slot: RcSlot, rc: VerbsRc) -> Result<(), VerbsRc> {
        self.rcs.insert(slot, rc)
    }

    fn post_drain(&mut self, slot: RcSlot) -> Result<(), PostError> {
        let rc = self.rcs.get_mut(slot).ok_or(PostError::NoConnection)?;
        rc.side.health.fail();
        rc.side.post_drain()
    }

    fn remove_rc(&mut self, slot: RcSlot) -> Option<VerbsRc> {
        self.rcs.remove(slot)
    }

    fn rc_outstanding(&self, slot: RcSlot) -> usize {
        self.rcs.get(slot).map_or(0, |rc| rc.side.outstanding() as usize)
    }
}

/// The library's statuses (IBA 11.6.2).
const fn status(status: sys::ibv_wc_status) -> WcStatus {
    match status {
        sys::IBV_WC_SUCCESS => WcStatus::Success,
        sys::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        sys::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocalQpOperation,
        sys::IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtection,
        sys::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        sys::IBV_WC_MW_BIND_ERR => WcStatus::MemoryWindowBind,
        sys::IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
        sys::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalAccess,
        sys::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        sys::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        sys::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
        sys::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
        sys::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        sys::IBV_WC_REM_ABORT_ERR => WcStatus::RemoteAborted,
        _ => WcStatus::General,
    }
}
