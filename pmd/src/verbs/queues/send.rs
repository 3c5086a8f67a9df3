//! The send side of a queue pair with its pending buffers.

use std::sync::Arc;

use ib_wire::Qpn;
use verbs_sys as sys;

use super::super::address::VerbsDestination;
use super::super::object::QueuePair;
use super::super::remedy;
use super::work::WorkRequest;
use super::{Kind, tag};
use crate::bookkeeping::{Health, Operation, Work};
use crate::hca::{HcaError, PostError};
use crate::mem::Mbuf;
use crate::mlx5::mr::MrTable;

/// Maximum number of work requests in one library call.
const LIST: usize = 32;
/// Maximum number of segments in one library call.
const LIST_SEGMENTS: usize = 8 * LIST;

/// A work request that is queued or outstanding.
#[derive(Debug, Default)]
struct Slot {
    buf: Option<Mbuf>,
    to: Option<VerbsDestination>,
    work: Option<(WorkRequest, Work<Mbuf>)>,
}

/// Effect of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Reaped {
    /// False if the device named an entry that it did not own.
    pub(super) known: bool,
    /// Number of buffers freed.
    pub(super) freed: usize,
}

/// Work requests under construction. Pointers between them are used during one call only.
pub(super) struct Lists {
    requests: Box<[sys::ibv_send_wr]>,
    segments: Box<[sys::ibv_sge]>,
}

// SAFETY: the pointers within are written and used within one call of `SendSide::ring`.
unsafe impl Send for Lists {}

impl std::fmt::Debug for Lists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lists")
    }
}

impl Lists {
    pub(super) fn new() -> Self {
        Self {
            requests: vec![sys::ibv_send_wr::default(); LIST].into_boxed_slice(),
            segments: vec![sys::ibv_sge::default(); LIST_SEGMENTS].into_boxed_slice(),
        }
    }
}

/// A send queue and its buffers. Entries are counted from 0: those before `retired` have completed, those
/// before `posted` belong to the device, and those before `queued` wait for the next doorbell.
#[derive(Debug)]
pub(in super::super) struct SendSide {
    // First, so that the device releases the buffers before they are freed.
    pub(super) qp: Arc<QueuePair>,
    qpn: Qpn,
    slots: Box<[Slot]>,
    depth: u32,
    segments: usize,
    signal_every: u32,
    retired: u32,
    posted: u32,
    queued: u32,
    unsignalled: u32,
    /// True if the drain request is outstanding.
    draining: bool,
    /// True if its destruction was attempted.
    ended: bool,
    pub(super) health: Health,
}

impl Drop for SendSide {
    fn drop(&mut self) {
        if let Err(e) = self.destroy() {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

impl SendSide {
    pub(in super::super) fn new(qp: Arc<QueuePair>, depth: u32, segments: u32, signal_every: u32) -> Self {
        let places = if depth == 0 { 0 } else { depth.next_power_of_two() };
        Self {
            qpn: qp.number(),
            qp,
            slots: (0..places).map(|_| Slot::default()).collect(),
            depth,
            segments: (segments as usize).min(LIST_SEGMENTS),
            // At most half of the queue waits for one completion.
            signal_every: signal_every.min(depth / 2).max(1),
            retired: 0,
            posted: 0,
            queued: 0,
            unsignalled: 0,
            draining: false,
            ended: false,
            health: Health::default(),
        }
    }

    /// Destroys the queue pair and returns its buffers to the pool. If the device may still use them, they
    /// are leaked.
    fn end(&mut self) -> Result<(), HcaError> {
        let result = if Arc::strong_count(&self.qp) > 1 {
            Err(remedy::in_use("queue pair"))
        } else {
            // SAFETY: the only holder, which ends here.
            unsafe { self.qp.end() }
        };
        let slots = std::mem::take(&mut self.slots);
        if result.is_err() {
            std::mem::forget(slots);
        }
        // Reported once.
        self.ended = true;
        result
    }

    /// Destroys the queue pair like `drop`, and returns the result.
    pub(super) fn destroy(&mut self) -> Result<(), HcaError> {
        if self.ended { Ok(()) } else { self.end() }
    }

    pub(super) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.queued.wrapping_sub(self.retired) + u32::from(self.draining)
    }

    /// Number of uncompleted sends other than the drain request.
    pub(super) const fn sends(&self) -> u32 {
        self.queued.wrapping_sub(self.retired)
    }

    /// Posts receives to the queue pair's own receive queue; see `ibv_post_recv`.
    pub(super) fn post_receives(&self, first: *mut sys::ibv_recv_wr, bad: &mut *mut sys::ibv_recv_wr) -> i32 {
        // SAFETY: the queue pair lives and only its one owner posts to it. The callers' lists and buffers are
        // valid until they complete.
        unsafe { sys::inline::post_recv(self.qp.raw(), first, bad) }
    }

    pub(super) const fn has_queued(&self) -> bool {
        self.queued != self.posted
    }

    const fn place(&self, entry: u32) -> usize {
        entry as usize & self.slots.len().wrapping_sub(1)
    }

    /// Queues a buffer until the next doorbell.
    #[inline]
    pub(super) fn queue(
        &mut self,
        buf: Mbuf,
        to: Option<VerbsDestination>,
        regions: &mut MrTable,
    ) -> Result<(), (Mbuf, PostError)> {
        if self.queued.wrapping_sub(self.retired) >= self.depth {
            return Err((buf, PostError::Full));
        }
        if buf.segment_count() > self.segments {
            return Err((buf, PostError::TooManySegments));
        }
        let mut known =
            |s: crate::mem::Segment<'_>| regions.lkey(s.address(), s.bytes.len() as u32).is_some();
        if !buf.segments().all(&mut known) {
            return Err((buf, PostError::NotRegistered));
        }
        let at = self.place(self.queued);
        match self.slots.get_mut(at) {
            Some(slot) => *slot = Slot { buf: Some(buf), to, work: None },
            None => return Err((buf, PostError::Full)),
        }
        self.queued = self.queued.wrapping_add(1);
        Ok(())
    }

    /// Queues work until the next doorbell, as [`SendSide::queue`] does for a buffer.
    pub(super) fn queue_work(
        &mut self,
        request: WorkRequest,
        work: Work<Mbuf>,
    ) -> Result<(), (Work<Mbuf>, PostError)> {
        let at = self.place(self.queued);
        match self.slots.get_mut(at) {
            Some(slot) if self.queued.wrapping_sub(self.retired) < self.depth => {
                *slot = Slot { buf: None, to: None, work: Some((request, work)) };
                self.queued = self.queued.wrapping_add(1);
                Ok(())
            }
            _ => Err((work, PostError::Full)),
        }
    }

    pub(super) fn limit_segments(&mut self, most: usize) {
        self.segments = self.segments.min(most.max(1));
    }

    /// Maximum number of segments of a sent buffer.
    pub(super) const fn max_segments(&self) -> usize {
        self.segments
    }

    /// Takes all key work that awaits a result, oldest first.
    pub(super) fn take_key_works(&mut self) -> impl Iterator<Item = Work<Mbuf>> + '_ {
        let (retired, mask) = (self.retired, self.slots.len().wrapping_sub(1));
        let slots = &mut self.slots;
        (0..self.queued.wrapping_sub(self.retired)).filter_map(move |n| {
            let slot = slots.get_mut(retired.wrapping_add(n) as usize & mask)?;
            let work = &mut slot.work;
            work.take_if(|(_, work)| !matches!(work.operation, Operation::Transfer(_))).map(|(_, work)| work)
        })
    }

    /// Posts the queued requests. Returns false if the library did not accept all of them: the rest is
    /// dropped, and the queue pair counts as failed. Dropped work is passed to `worked`.
    pub(super) fn ring(
        &mut self,
        lists: &mut Lists,
        regions: &mut MrTable,
        worked: impl FnMut(Work<Mbuf>),
    ) -> bool {
        while self.has_queued() {
            let count = self.build(lists, regions);
            let taken = post(&self.qp, lists.requests.get_mut(..count).unwrap_or_default());
            self.posted = self.posted.wrapping_add(taken as u32);
            if taken < count || count == 0 {
                self.drop_queued(worked);
                self.health.fail();
                return false;
            }
        }
        true
    }

    /// Builds work requests for queued entries, up to the maximum of one call. Returns their number. The last
    /// one is signaled, so that no buffer waits for a later send.
    fn build(&mut self, lists: &mut Lists, regions: &mut MrTable) -> usize {
        let (mut count, mut used) = (0, 0);
        let mut entry = self.posted;
        while entry != self.queued {
            let Some(slot) = self.slots.get(self.place(entry)) else { break };
            let Some(request) = lists.requests.get_mut(count) else { break };
            let buf = slot.buf.as_ref().or_else(|| slot.work.as_ref().and_then(|(_, work)| work.payload()));
            let room = used..used + buf.map_or(0, Mbuf::segment_count);
            let Some(segments) = lists.segments.get_mut(room) else { break };
            for (segment, piece) in segments.iter_mut().zip(buf.into_iter().flat_map(Mbuf::segments)) {
                let length = piece.bytes.len() as u32;
                // It was found when the buffer was queued.
                let lkey = regions.lkey(piece.address(), length).unwrap_or(0);
                *segment = sys::ibv_sge { addr: piece.address(), length, lkey };
            }
            self.unsignalled += 1;
            let signal = self.unsignalled >= self.signal_every;
            if signal {
                self.unsignalled = 0;
            }
            *request = sys::ibv_send_wr {
                wr_id: tag(Kind::Send, entry),
                sg_list: segments.as_mut_ptr(),
                num_sge: segments.len() as i32,
                opcode: sys::ibv_wr_opcode::IBV_WR_SEND,
                send_flags: if signal { sys::IBV_SEND_SIGNALED } else { 0 },
                ..Default::default()
            };
            if let Some((work, _)) = &slot.work {
                work.fill(request);
                self.unsignalled = 0;
            }
            if let Some(to) = &slot.to {
                request.wr.ud = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                    ah: to.handle.raw(),
                    remote_qpn: to.qpn.get(),
                    remote_qkey: to.qkey.0,
                };
            }
            used += segments.len();
            count += 1;
            entry = entry.wrapping_add(1);
        }
        if let Some(last) = count.checked_sub(1).and_then(|at| lists.requests.get_mut(at)) {
            last.send_flags |= sys::IBV_SEND_SIGNALED;
            self.unsignalled = 0;
        }
        count
    }

    fn drop_queued(&mut self, mut worked: impl FnMut(Work<Mbuf>)) {
        let mut entry = self.posted;
        while entry != self.queued {
            let at = self.place(entry);
            if let Some(slot) = self.slots.get_mut(at).map(std::mem::take)
                && let Some((_, work)) = slot.work
            {
                worked(work);
            }
            entry = entry.wrapping_add(1);
        }
        self.queued = self.posted;
    }

    /// Posts the drain request: an empty send on a queue pair in the error state, which completes as flushed.
    pub(super) fn post_drain(&mut self) -> Result<(), PostError> {
        if self.draining {
            return Err(PostError::Full);
        }
        let mut request = [sys::ibv_send_wr {
            wr_id: tag(Kind::Drain, 0),
            opcode: sys::ibv_wr_opcode::IBV_WR_SEND,
            send_flags: sys::IBV_SEND_SIGNALED,
            ..Default::default()
        }];
        if post(&self.qp, &mut request) == 0 {
            return Err(PostError::Full);
        }
        self.draining = true;
        Ok(())
    }

    /// Records that the drain request has completed. Returns false if there was none.
    pub(super) const fn drained(&mut self) -> bool {
        std::mem::replace(&mut self.draining, false)
    }

    /// Completes an entry and all before it, and frees their buffers. Work is passed to `worked`, with a flag
    /// that is true for the named entry.
    #[inline]
    pub(super) fn complete(&mut self, entry: u32, mut worked: impl FnMut(Work<Mbuf>, bool)) -> Reaped {
        let ahead = entry.wrapping_sub(self.retired);
        if ahead >= self.posted.wrapping_sub(self.retired) {
            return Reaped::default();
        }
        for n in 0..=ahead {
            let at = self.place(self.retired);
            if let Some(slot) = self.slots.get_mut(at).map(std::mem::take)
                && let Some((_, work)) = slot.work
            {
                worked(work, n == ahead);
            }
            self.retired = self.retired.wrapping_add(1);
        }
        Reaped { known: true, freed: ahead as usize + 1 }
    }
}

/// Chains work requests and posts them. Returns the number that the library accepted.
fn post(qp: &QueuePair, requests: &mut [sys::ibv_send_wr]) -> usize {
    let first = requests.as_mut_ptr();
    for at in 1..requests.len() {
        // SAFETY: both lie within the array, which is borrowed exclusively and used only through `first` from
        // here on.
        unsafe { (*first.add(at - 1)).next = first.add(at) };
    }
    if requests.is_empty() {
        return 0;
    }
    let mut bad = std::ptr::null_mut();
    // SAFETY: the queue pair lives and only its one owner posts to it. The list was chained above; its
    // segments and handles live during the call.
    let rc = unsafe { sys::inline::post_send(qp.raw(), first, &mut bad) };
    if rc == 0 {
        return requests.len();
    }
    // Requests before the bad one were accepted.
    let offset = (bad as usize).wrapping_sub(first as usize) / size_of::<sys::ibv_send_wr>();
    if bad.is_null() { 0 } else { offset.min(requests.len()) }
}
