//! One worker's queues: see [`crate::hca::Queues`].
//!
//! A work request's id names its kind and its place here. A device that names one that it was not given, or a length that does
//! not fit, is counted and believed no further: no buffer is lost or given out twice.

mod receive;
mod send;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::{Lid, Qpn, ServiceLevel};
use verbs_sys as sys;

use super::address::VerbsDestination;
use super::object::{CompletionQueue, SharedReceiveQueue};
use crate::bookkeeping::{Completed, Health, Numbers, Place, Places};
use crate::hca::{
    BURST, Checksum, HcaError, PostError, QpEvent, QpFault, Queues, QueuesId, RcSlot, Received, Refused,
    RxBurst, Source, UdSlot, UdSource, WcStatus,
};
use crate::mem::{HEADROOM, Mbuf, Pool};
use crate::mlx5::mr::MrTable;
use receive::{DatagramReceives, GRH_AREA, SharedDatagrams, SharedReceives, Stash};
use send::Lists;
pub(super) use send::SendSide;

/// From the first byte of the data back to the first byte of the destination GID.
const DGID_BEFORE_DATA: usize = 16;

/// Polls of the send completions in one turn, so that a turn takes as many as it may post.
const SEND_ROUNDS: usize = 8;
/// Sends that any connection may have outstanding while there is room at all.
const FAIR: u32 = 16;

/// What a work request is; the upper half of its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Kind {
    Send = 1,
    Drain = 2,
    /// A receive for datagrams.
    Datagram = 3,
    /// A receive for connections.
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

/// Whether a datagram queue pair is posted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Door {
    /// It is.
    Open,
    /// Not yet.
    New,
    /// Not any more, since the receive completion queue had been found empty so often.
    Closed(u32),
}

/// Hot half of a datagram queue pair. What it still owes when it is dropped goes home with it.
#[derive(Debug)]
pub struct VerbsUd {
    side: SendSide,
    /// Where the device cannot share receives among datagram queue pairs: its own.
    own: Option<DatagramReceives>,
    door: Door,
}

impl VerbsUd {
    pub(super) fn new(side: SendSide, own_receives: u32) -> Self {
        let own = (own_receives > 0).then(|| DatagramReceives::new(own_receives));
        Self { side, own, door: Door::New }
    }

    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.side.qpn()
    }

    fn end(&mut self) -> Result<(), HcaError> {
        self.side.destroy().inspect_err(|_| {
            if let Some(own) = &mut self.own {
                own.forget();
            }
        })
    }

    pub(super) fn destroy(mut self) -> Result<(), HcaError> {
        self.end()
    }
}

impl Drop for VerbsUd {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{}", super::remedy::whole(&e));
        }
    }
}

/// Hot half of a connected queue pair. What it still owes when it is dropped goes home with it.
#[derive(Debug)]
pub struct VerbsRc {
    side: SendSide,
    passive: bool,
    beside: UdSlot,
}

impl VerbsRc {
    pub(super) const fn new(side: SendSide, passive: bool, beside: UdSlot) -> Self {
        Self { side, passive, beside }
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

/// What a worker's queues are made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) id: QueuesId,
    pub(super) send_cq: Arc<CompletionQueue>,
    pub(super) recv_cq: Arc<CompletionQueue>,
    /// The receive queue that all datagram queue pairs share, and its depth; `None` where each has its own.
    pub(super) datagrams: Option<(Arc<SharedReceiveQueue>, u32)>,
    /// The receive queue that all connections share, and the segments of its entries.
    pub(super) srq: Option<(Arc<SharedReceiveQueue>, usize)>,
    pub(super) srq_depth: u32,
    pub(super) regions: MrTable,
    pub(super) pool: Pool,
    pub(super) max_ud: u16,
    pub(super) max_rc: u32,
    /// Most sends outstanding at once: what the completion queue has room for.
    pub(super) max_sends: u32,
}

/// One worker's queues. Dropping them destroys their queue pairs, then gives their buffers back.
#[derive(Debug)]
pub struct VerbsQueues {
    id: QueuesId,
    numbers: Numbers,
    uds: Places<VerbsUd>,
    rcs: Places<VerbsRc>,
    datagrams: Option<SharedDatagrams>,
    shared: Option<SharedReceives>,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    /// How often the receive completion queue was found empty.
    empty_polls: u32,
    lists: Lists,
    stash: Stash,
    regions: MrTable,
    pool: Pool,
    max_sends: u32,
    /// Sends that have not completed, and how many of these were on queue pairs that were taken out since.
    sends: u32,
    orphaned: u32,
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
            id: parts.id,
            numbers: Numbers::new(usize::from(parts.max_ud) + parts.max_rc.min(1 << 16) as usize),
            uds: Places::new(parts.max_ud.into()),
            rcs: Places::new(parts.max_rc),
            datagrams: parts.datagrams.map(|(queue, depth)| SharedDatagrams::new(queue, depth)),
            shared,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            empty_polls: 0,
            lists: Lists::new(),
            stash: Stash::new(),
            regions: parts.regions,
            pool: parts.pool,
            max_sends: parts.max_sends,
            sends: 0,
            orphaned: 0,
            faults: ArrayVec::new(),
            anomalies: Anomalies::default(),
        }
    }

    /// Destroys all queue pairs, then gives the buffers back, except those that the device does not let go of. Tells the first
    /// failure.
    fn end(&mut self) -> Result<(), HcaError> {
        // Queue pairs use the shared receives.
        let mut result = Ok(());
        for rc in self.rcs.take_all() {
            result = result.and(rc.destroy());
        }
        for ud in self.uds.take_all() {
            result = result.and(ud.destroy());
        }
        let datagrams = self.datagrams.as_mut().map_or(Ok(()), SharedDatagrams::destroy);
        let shared = self.shared.as_mut().map_or(Ok(()), SharedReceives::destroy);
        result.and(datagrams).and(shared)
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
        let found = match self.numbers.find(wc.qp_num) {
            Some(Place::Ud(slot)) => self.uds.get_mut(slot.0.into()).map(|ud| (&mut ud.side, true)),
            Some(Place::Rc(slot, _)) => self.rcs.get_mut(slot.0).map(|rc| (&mut rc.side, false)),
            None => None,
        };
        let Some((side, datagram)) = found else {
            self.anomalies.unknown_qp += 1;
            return 0;
        };
        let (mut freed, mut drained) = (0, false);
        let known = if kind == Kind::Drain {
            drained = side.drained();
            drained
        } else {
            let reaped = side.complete(entry);
            freed = reaped.freed;
            self.sends = self.sends.saturating_sub(freed as u32);
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

    /// The receives for datagrams that a completion of this queue pair is of.
    fn datagrams_of(&mut self, qpn: u32) -> Option<&mut DatagramReceives> {
        match &mut self.datagrams {
            Some(shared) => Some(&mut shared.receives),
            None => match self.numbers.find(qpn) {
                Some(Place::Ud(slot)) => self.uds.get_mut(slot.0.into())?.own.as_mut(),
                _ => None,
            },
        }
    }

    fn datagram(&mut self, wc: &sys::ibv_wc, slot: u32) -> Option<(Mbuf, Source)> {
        let Some(mut buf) = self.datagrams_of(wc.qp_num).and_then(|receives| receives.take(slot)) else {
            self.anomalies.unknown_entry += 1;
            return None;
        };
        // One that has been taken out since has no business here any more.
        if !matches!(self.numbers.find(wc.qp_num), Some(Place::Ud(_))) {
            self.anomalies.unknown_qp += 1;
            return None;
        }
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
        let known = match kind {
            Kind::Datagram => self.datagrams_of(wc.qp_num).is_some_and(|all| all.take(slot).is_some()),
            _ => self.shared.as_mut().is_some_and(|srq| srq.recycle(slot)),
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
    type Ud = VerbsUd;
    type Rc = VerbsRc;
    type Destination = VerbsDestination;

    fn id(&self) -> QueuesId {
        self.id
    }

    fn turn(&mut self) -> bool {
        false
    }

    #[inline]
    fn send_ud(&mut self, slot: UdSlot, to: &VerbsDestination, buf: Mbuf) -> Result<(), Refused> {
        let Some(ud) = self.uds.get_mut(slot.0.into()).filter(|ud| ud.door == Door::Open) else {
            return Err(Refused { buf, error: PostError::NoConnection });
        };
        if self.sends >= self.max_sends {
            return Err(Refused { buf, error: PostError::Full });
        }
        let was_dirty = ud.side.has_queued();
        ud.side
            .queue(buf, Some(to.clone()), &mut self.regions)
            .map_err(|(buf, error)| Refused { buf, error })?;
        self.sends += 1;
        if !was_dirty {
            self.uds.wait(slot.0.into());
        }
        Ok(())
    }

    #[inline]
    fn send_rc(&mut self, slot: RcSlot, buf: Mbuf) -> Result<(), Refused> {
        let Some(rc) = self.rcs.get_mut(slot.0) else {
            return Err(Refused { buf, error: PostError::NoConnection });
        };
        if rc.passive || rc.side.health.failed() {
            return Err(Refused { buf, error: PostError::NoConnection });
        }
        // No connection holds more than is left for all others, beyond a few.
        let (free, held) = (self.max_sends.saturating_sub(self.sends), rc.side.outstanding());
        if free == 0 || held >= FAIR && held > free {
            return Err(Refused { buf, error: PostError::Full });
        }
        let was_dirty = rc.side.has_queued();
        rc.side.queue(buf, None, &mut self.regions).map_err(|(buf, error)| Refused { buf, error })?;
        self.sends += 1;
        if !was_dirty {
            self.rcs.wait(slot.0);
        }
        Ok(())
    }

    fn ring(&mut self) {
        let Self { uds, rcs, lists, regions, faults, sends, .. } = self;
        // What the library does not take is dropped.
        let mut ring = |side: &mut SendSide| {
            let before = side.outstanding();
            let taken = side.ring(lists, regions);
            *sends = sends.saturating_sub(before.saturating_sub(side.outstanding()));
            taken
        };
        uds.ring(|_, ud| {
            if !ring(&mut ud.side) {
                note_failure(faults, ud.qpn(), false);
            }
        });
        rcs.ring(|_, rc| {
            if !ring(&mut rc.side) {
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
                if most > 0 {
                    self.empty_polls = self.empty_polls.wrapping_add(1);
                }
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
                    let place = self.numbers.find(wc.qp_num);
                    let ud = place.map(|(Place::Ud(slot) | Place::Rc(_, slot))| slot);
                    // Only with datagrams, and where the device looks at all, is this set.
                    let checksum = if wc.wc_flags & sys::IBV_WC_IP_CSUM_OK != 0 {
                        Checksum::Good
                    } else {
                        Checksum::Unknown
                    };
                    burst.push(Received { buf, qpn: Qpn::new(wc.qp_num), ud, source, checksum });
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
        for _ in 0..SEND_ROUNDS {
            let most = room(events);
            let mut wc = [sys::ibv_wc::default(); BURST];
            let wc = Self::poll(&self.send_cq, wc.get_mut(..most).unwrap_or_default(), &mut self.anomalies);
            if wc.is_empty() && most > 0 {
                self.sends = self.sends.saturating_sub(std::mem::take(&mut self.orphaned));
            }
            for wc in wc.iter() {
                match untag(wc.wr_id) {
                    Some((kind @ (Kind::Send | Kind::Drain), place)) => {
                        freed += self.send_completion(wc, kind, place, events);
                    }
                    _ => self.anomalies.unknown_entry += 1,
                }
            }
            if wc.len() < most || most == 0 {
                break;
            }
        }
        freed
    }

    fn refill(&mut self) -> usize {
        let Self { stash, pool, regions, .. } = self;
        let mut posted = match &mut self.datagrams {
            Some(shared) => shared.refill(stash, pool, regions),
            None => {
                let open = self.uds.all_mut().filter(|ud| ud.door == Door::Open);
                open.map(|ud| refill_own(ud, stash, pool, regions)).sum()
            }
        };
        if let Some(srq) = &mut self.shared {
            posted += srq.refill(stash, pool, regions);
        }
        posted
    }

    fn insert_ud(&mut self, slot: UdSlot, ud: VerbsUd) -> Result<(), VerbsUd> {
        if !self.uds.is_free(slot.0.into()) || !self.numbers.insert(ud.qpn().get(), Place::Ud(slot)) {
            return Err(ud);
        }
        self.uds.insert(slot.0.into(), ud)
    }

    fn open_ud(&mut self, slot: UdSlot) {
        // The library counts its rings from 0 again by itself.
        if let Some(ud) = self.uds.get_mut(slot.0.into()) {
            ud.side.health.restart();
            ud.door = Door::Open;
        }
    }

    fn close_ud(&mut self, slot: UdSlot) {
        if let Some(ud) = self.uds.get_mut(slot.0.into()) {
            ud.door = Door::Closed(self.empty_polls);
        }
    }

    fn ud_outstanding(&self, slot: UdSlot) -> u32 {
        self.uds.get(slot.0.into()).map_or(0, |ud| {
            // What it received before lies in the completion queue until that has been found empty.
            let unread = ud.door == Door::Closed(self.empty_polls);
            ud.side.outstanding() + ud.own.as_ref().map_or(0, DatagramReceives::posted) + u32::from(unread)
        })
    }

    fn remove_ud(&mut self, slot: UdSlot) -> Option<VerbsUd> {
        let ud = self.uds.remove(slot.0.into())?;
        self.numbers.remove(ud.qpn().get());
        self.orphaned += ud.side.sends();
        Some(ud)
    }

    fn ud_qpn(&self, slot: UdSlot) -> Option<Qpn> {
        self.uds.get(slot.0.into()).map(VerbsUd::qpn)
    }

    fn arm(&mut self) -> bool {
        self.recv_cq.arm()
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.recv_cq.events()
    }

    fn wait(&mut self, at_most: Duration) -> bool {
        self.recv_cq.wait(at_most) > 0
    }

    fn receives_posted(&self) -> (u32, u32) {
        let own = || self.uds.all().filter_map(|ud| ud.own.as_ref()).map(DatagramReceives::posted).sum();
        let datagrams = self.datagrams.as_ref().map_or_else(own, |shared| shared.receives.posted());
        (datagrams, self.shared.as_ref().map_or(0, SharedReceives::posted))
    }

    fn insert_rc(&mut self, slot: RcSlot, rc: VerbsRc) -> Result<(), VerbsRc> {
        if !self.rcs.is_free(slot.0) || !self.numbers.insert(rc.qpn().get(), Place::Rc(slot, rc.beside)) {
            return Err(rc);
        }
        self.rcs.insert(slot.0, rc)
    }

    fn post_drain(&mut self, slot: RcSlot) -> Result<(), PostError> {
        let rc = self.rcs.get_mut(slot.0).ok_or(PostError::NoConnection)?;
        rc.side.health.fail();
        rc.side.post_drain()
    }

    fn remove_rc(&mut self, slot: RcSlot) -> Option<VerbsRc> {
        let rc = self.rcs.remove(slot.0)?;
        self.numbers.remove(rc.qpn().get());
        self.orphaned += rc.side.sends();
        Some(rc)
    }

    fn rc_outstanding(&self, slot: RcSlot) -> usize {
        self.rcs.get(slot.0).map_or(0, |rc| rc.side.outstanding() as usize)
    }
}

/// Fills the receive queue up that a datagram queue pair has of its own.
fn refill_own(ud: &mut VerbsUd, stash: &mut Stash, pool: &mut Pool, regions: &mut MrTable) -> usize {
    let VerbsUd { side, own, .. } = ud;
    own.as_mut()
        .map_or(0, |own| own.refill(stash, pool, regions, |first, bad| side.post_receives(first, bad)))
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
