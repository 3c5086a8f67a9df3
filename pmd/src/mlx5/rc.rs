//! The send side of a queue pair with its pending buffers, and the connected queue pair built on it.

mod completion;

use arrayvec::ArrayVec;
use ib_wire::Qpn;

use super::anchor::{Anchored, let_go, release};
use super::rings::QpRings;
use super::send::CONTROL_UNITS;
use super::sq::{Full, Posted, Request, SendQueue};
use crate::bookkeeping::{Completed, Health, Operation, Removed, Work};
use crate::fetch::fetch;
use crate::hca::{BURST, HcaError, PostError, QpEvent, UdSlot, WcStatus};
use crate::mem::key::PageList;
use crate::mem::packet::Packet;
use prm::{DS_UNIT, DataSegment, DatagramAddress, SendOpcode, WQEBB, fm_ce_se};

/// Maximum number of segments of a sent buffer.
///
/// An SRQ entry for IPoIB's largest message needs fewer. The send entry (656 bytes with an address) stays
/// below the device limit of 1024 bytes.
pub const MAX_SEND_SEGMENTS: usize = 36;

/// Idle visits of a queue pair with unsignaled sends before a NOP requests their completion.
const IDLE_VISITS: u8 = 16;

impl From<Full> for PostError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// Number of entries of a chain: register, send, invalidate. The result of the last one covers all.
pub(super) const CHAIN_ENTRIES: usize = 3;

/// State of the WQEBB where an entry starts.
#[derive(Debug)]
struct Slot<P> {
    buf: Option<P>,
    /// Length of the entry in WQEBBs. 0 means the length of a plain message, so that posting one needs no
    /// write here.
    wqebbs: u16,
}

impl<P> Slot<P> {
    /// Returns the length of the entry, given the length of a plain message.
    const fn wqebbs(&self, plain: u16) -> u16 {
        if self.wqebbs == 0 { plain } else { self.wqebbs }
    }
}

/// A send queue and the buffers of its entries.
// The fields that each message touches come first: see `RcQp`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SendSide<P> {
    pub(super) sq: SendQueue,
    slots: Box<[Slot<P>]>,
    /// Number of single-segment messages that may be posted without further checks.
    ///
    /// For these the ring has room, no completion request is due, no fence is due, and sends have not failed.
    /// Every checked post recomputes it. An error completion or a drain request zeroes it. A rejected post or
    /// a failed receive does not change it.
    allowance: u16,
    /// Value of `allowance` when the counters below were last updated.
    ///
    /// The difference was posted since and is not in the counters. [`SendSide::book`] updates them once per
    /// burst, before they are read. (A separate counter next to `allowance` would be updated with it in one
    /// vector register. That wider load would stall on the preceding narrower store.)
    granted: u16,
    /// Length of a plain message in WQEBBs.
    plain_wqebbs: u16,
    /// Entries in the ring without a buffer or with another length. If 0, no result is pending and
    /// completions free only buffers.
    odd: u16,
    /// Entries that the device owns or will own after the next doorbell.
    outstanding: u32,
    signal_every: u16,
    /// Entries since the last signaled one, and their length in WQEBBs.
    unsignalled: u16,
    unsignalled_wqebbs: u16,
    idle_visits: u8,
    /// True if the queue pair is in the list of visited ones.
    lagging: bool,
    pub(super) health: Health,
    /// Maximum number of segments of a buffer.
    max_segments: u8,
    /// True if the drain request is outstanding; `drain` is its index.
    ///
    /// An `Option` would provide the largest niche of a queue pair. A slot check would then read this cache
    /// line, which messages do not touch.
    draining: bool,
    drain: u16,
    /// The last entry of a chain with an earlier failure, and the status of that failure.
    cause: Option<(u16, WcStatus)>,
    /// Work that awaits a result, by slot. Empty on a queue pair that only sends messages.
    works: Box<[Option<Work<P>>]>,
}

impl<P> SendSide<P> {
    /// Leaks all buffers instead of returning them to the pool.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
        std::mem::forget(std::mem::take(&mut self.works));
    }
}

impl<P: Packet> SendSide<P> {
    /// Creates the send side on a formatted ring. `head` is the length in front of a message's data, in units
    /// of 16 bytes.
    pub(super) fn new(rings: &QpRings, signal_every: u16, head: usize) -> Self {
        let sq = SendQueue::new(rings);
        Self {
            allowance: 0,
            granted: 0,
            plain_wqebbs: ((head + 1) * DS_UNIT).div_ceil(WQEBB) as u16,
            odd: 0,
            slots: (0..sq.size()).map(|_| Slot { buf: None, wqebbs: 0 }).collect(),
            works: Box::default(),
            sq,
            outstanding: 0,
            signal_every: signal_every.max(1),
            max_segments: MAX_SEND_SEGMENTS as u8,
            unsignalled: 0,
            unsignalled_wqebbs: 0,
            idle_visits: 0,
            lagging: false,
            draining: false,
            drain: 0,
            cause: None,
            health: Health::default(),
        }
    }

    pub(super) fn limit_segments(&mut self, most: usize) {
        self.max_segments = most.clamp(1, MAX_SEND_SEGMENTS) as u8;
    }

    pub(super) const fn outstanding(&self) -> u32 {
        self.outstanding + self.unbooked() as u32
    }

    /// Number of messages posted on the allowance since the counters were updated.
    #[inline(always)]
    const fn unbooked(&self) -> u16 {
        self.granted - self.allowance
    }

    /// Revokes the allowance.
    #[inline(always)]
    const fn withdraw(&mut self) {
        self.granted -= self.allowance;
        self.allowance = 0;
    }

    /// Adds the messages posted on the allowance to the counters.
    #[inline]
    const fn book(&mut self) {
        let unbooked = self.unbooked();
        if unbooked > 0 {
            self.outstanding += unbooked as u32;
            self.unsignalled += unbooked;
            self.unsignalled_wqebbs += unbooked * self.plain_wqebbs;
            self.granted = self.allowance;
            self.idle_visits = 0;
        }
    }

    /// Restarts after RESET, with nothing outstanding.
    pub(super) fn restart(&mut self) {
        self.sq.restart();
        self.slots.iter_mut().for_each(|slot| slot.wqebbs = 0);
        self.odd = 0;
        self.unsignalled = 0;
        self.unsignalled_wqebbs = 0;
        self.idle_visits = 0;
        self.cause = None;
        (self.granted, self.allowance) = (0, 0);
        self.health.restart();
    }

    /// Records completed sends: see [`Health::completed`].
    #[inline]
    pub(super) fn completed(&mut self, what: Completed, events: &mut ArrayVec<QpEvent, BURST>) {
        self.health.completed(what, events);
        if self.health.failed() {
            self.withdraw();
        }
    }

    /// Marks the queue pair as failed.
    pub(super) const fn fail(&mut self) {
        self.health.fail();
        self.withdraw();
    }

    /// Fails the queue pair if its send queue is broken, and returns its number. Returns it once.
    #[inline(always)]
    pub(super) fn newly_broken(&mut self) -> Option<Qpn> {
        if !self.sq.is_broken() || self.health.failed() {
            return None;
        }
        self.fail();
        Some(Qpn::new(self.sq.qpn()))
    }

    /// True if [`SendSide::post_allowed`] may be called.
    #[inline(always)]
    pub(super) const fn has_allowance(&self) -> bool {
        self.allowance > 0
    }

    /// Posts a single-segment message on the allowance; with an address, it is a datagram. The result is the
    /// same as of [`SendSide::post`].
    // It is inlined into two callers, which post nearly all messages.
    #[inline(always)]
    pub(super) fn post_allowed(&mut self, buf: P, to: Option<&DatagramAddress>, data: DataSegment) {
        self.put_plain(buf, to, data, 0);
        self.allowance -= 1;
    }

    #[inline(always)]
    fn put_plain(&mut self, buf: P, to: Option<&DatagramAddress>, data: DataSegment, flags: u8) {
        let at = self.sq.post_plain(to, data, flags);
        if let Some(slot) = self.slots.get_mut(at) {
            // The old buffer was taken on completion, so there is nothing to drop.
            std::mem::forget(slot.buf.replace(buf));
        }
    }

    /// True if [`SendSide::post_plain`] may be called: no fence is due, and there is room.
    #[inline(always)]
    pub(super) const fn takes_plain(&self) -> bool {
        !self.sq.is_fenced() && self.sq.size().saturating_sub(self.sq.used()) > self.plain_wqebbs
    }

    /// Posts a single-segment message without an allowance. The result is the same as of [`SendSide::post`].
    ///
    /// With thousands of connections, completions are scarce and every message takes this path.
    #[inline(always)]
    pub(super) fn post_plain(
        &mut self,
        buf: P,
        to: Option<&DatagramAddress>,
        data: DataSegment,
        scarce: bool,
    ) {
        self.book();
        let wqebbs = self.plain_wqebbs;
        let signal = scarce || self.is_signal_due(wqebbs);
        self.put_plain(buf, to, data, if signal { fm_ce_se::CQ_UPDATE } else { 0 });
        self.posted(wqebbs, signal);
        self.outstanding += 1;
        if scarce {
            self.withdraw();
        } else {
            self.allow();
        }
    }

    /// Prefetches the memory outside of `self` that the next message touches.
    #[inline(always)]
    pub(super) fn fetch_entry(&self) {
        let at = usize::from(self.sq.posted() & self.sq.size().wrapping_sub(1));
        self.sq.fetch(at);
        if let Some(slot) = self.slots.get(at) {
            fetch(slot);
        }
    }

    /// True if an entry of `wqebbs` WQEBBs must request a completion, regardless of the send budget.
    #[inline(always)]
    const fn is_signal_due(&self, wqebbs: u16) -> bool {
        // Request a completion before half of the ring waits for one.
        self.unsignalled + 1 >= self.signal_every || self.unsignalled_wqebbs + wqebbs >= self.sq.size() / 2
    }

    /// Counts a posted message of `wqebbs` WQEBBs.
    #[inline(always)]
    const fn posted(&mut self, wqebbs: u16, signal: bool) {
        if signal {
            self.unsignalled = 0;
            self.unsignalled_wqebbs = 0;
        } else {
            self.unsignalled += 1;
            self.unsignalled_wqebbs += wqebbs;
        }
        self.idle_visits = 0;
    }

    /// Recomputes the allowance. The counters are up to date.
    const fn allow(&mut self) {
        // A plain message takes one or two WQEBBs.
        let (size, shift) = (self.sq.size(), self.plain_wqebbs.saturating_sub(1));
        // The same conditions as in `post`: less than the remaining room, and no completion due.
        let room = size.saturating_sub(self.sq.used()).saturating_sub(1) >> shift;
        let entries = self.signal_every.saturating_sub(1).saturating_sub(self.unsignalled);
        let half = (size / 2).saturating_sub(1).saturating_sub(self.unsignalled_wqebbs) >> shift;
        let least = if room < entries { room } else { entries };
        let least = if least < half { least } else { half };
        self.allowance = if self.sq.is_fenced() || self.health.failed() { 0 } else { least };
        self.granted = self.allowance;
    }

    /// Posts `buf` through `post`, which receives the entry's flags and the number of segments.
    ///
    /// - `head` is the length in front of the data, in units of 16 bytes.
    /// - `scarce` forces a completion request.
    ///
    /// One WQEBB is reserved for the drain request.
    #[inline]
    pub(super) fn post(
        &mut self,
        buf: P,
        head: usize,
        scarce: bool,
        post: impl FnOnce(&mut SendQueue, u8, usize, &P) -> Result<Posted, PostError>,
    ) -> Result<(), (P, PostError)> {
        self.book();
        let segments = buf.segments();
        let wqebbs = ((head + segments) * 16).div_ceil(WQEBB);
        let room = usize::from(self.sq.size() - self.sq.used());
        // With `TooManySegments` the caller tries another method. That is pointless if the ring is full.
        if (segments > usize::from(self.max_segments) || wqebbs >= usize::from(self.sq.size())) && room > 1 {
            return Err((buf, PostError::TooManySegments));
        }
        if wqebbs >= room {
            return Err((buf, PostError::Full));
        }
        let signal = scarce || self.is_signal_due(wqebbs as u16);
        let flags = if signal { fm_ce_se::CQ_UPDATE } else { 0 };
        match post(&mut self.sq, flags, segments, &buf) {
            Ok(posted) => {
                self.posted(posted.wqebbs, signal);
                self.note(posted, Some(buf));
                self.allow();
                Ok(())
            }
            Err(error) => Err((buf, error)),
        }
    }

    /// Posts a signaled entry without data.
    fn post_nop(&mut self) -> Result<Posted, PostError> {
        let posted = self.sq.post_nop(fm_ce_se::CQ_UPDATE)?;
        self.signalled(posted);
        Ok(posted)
    }

    /// Records a signaled entry without a buffer, whose completion covers all entries before it.
    fn signalled(&mut self, posted: Posted) {
        // The entry may require a fence after it.
        self.withdraw();
        self.book();
        self.unsignalled = 0;
        self.unsignalled_wqebbs = 0;
        self.idle_visits = 0;
        self.note(posted, None);
    }

    /// Posts signaled work of at most `units` units of 16 bytes. One WQEBB is reserved for the drain request.
    pub(super) fn post_work(
        &mut self,
        units: usize,
        post: impl FnOnce(&mut SendQueue) -> Result<Posted, PostError>,
    ) -> Result<Posted, PostError> {
        self.make_room((units * DS_UNIT).div_ceil(WQEBB))?;
        let posted = post(&mut self.sq)?;
        self.signalled(posted);
        Ok(posted)
    }

    /// Posts several entries of `wqebbs` WQEBBs in total, all or none. Only the last one is signaled. See
    /// [`SendSide::post_work`].
    pub(super) fn post_works<const N: usize>(
        &mut self,
        wqebbs: usize,
        post: impl FnOnce(&mut SendQueue) -> Result<[Posted; N], PostError>,
    ) -> Result<Option<Posted>, PostError> {
        self.make_room(wqebbs)?;
        let posted = post(&mut self.sq)?;
        if let Some((last, others)) = posted.split_last() {
            others.iter().for_each(|posted| self.note(*posted, None));
            self.signalled(*last);
        }
        Ok(posted.last().copied())
    }

    /// Checks for room for `wqebbs` WQEBBs of work, and allocates storage for its result.
    fn make_room(&mut self, wqebbs: usize) -> Result<(), PostError> {
        if wqebbs >= usize::from(self.sq.size()) {
            return Err(PostError::TooManySegments);
        }
        if wqebbs >= usize::from(self.sq.size() - self.sq.used()) {
            return Err(PostError::Full);
        }
        if self.works.is_empty() {
            self.works = (0..self.sq.size()).map(|_| None).collect();
        }
        Ok(())
    }

    /// Records work that awaits a result.
    pub(super) fn owe(&mut self, posted: Posted, work: Work<P>) {
        let mask = self.sq.size().wrapping_sub(1);
        if let Some(place) = self.works.get_mut(usize::from(posted.index & mask)) {
            *place = Some(work);
        }
    }

    /// Takes all key work that awaits a result, oldest first. Lists stay here because the device may still
    /// read them.
    pub(super) fn take_key_works(&mut self) -> impl Iterator<Item = Work<P>> + '_ {
        let (mask, retired) = (self.sq.size().wrapping_sub(1), self.sq.retired());
        let Self { slots, works, .. } = self;
        (0..self.sq.used()).filter_map(move |n| {
            let at = usize::from(retired.wrapping_add(n) & mask);
            let place = works.get_mut(at)?;
            let mut work = place.take_if(|work| !matches!(work.operation, Operation::Transfer(_)))?;
            if let Some(slot) = slots.get_mut(at) {
                slot.buf = work.operation.list().and_then(PageList::leave);
            }
            Some(work)
        })
    }

    // Two callers, one of them on the path of each packet.
    #[inline(always)]
    fn note(&mut self, posted: Posted, buf: Option<P>) {
        let mask = self.sq.size().wrapping_sub(1);
        let is_plain = posted.wqebbs == self.plain_wqebbs;
        if buf.is_none() || !is_plain {
            self.odd += 1;
        }
        if let Some(slot) = self.slots.get_mut(usize::from(posted.index & mask)) {
            slot.wqebbs = if is_plain { 0 } else { posted.wqebbs };
            slot.buf = buf;
        }
        self.outstanding += 1;
    }

    /// Posts the drain request, an empty send. Only one can be outstanding.
    ///
    /// In the error state a device flushes it like any other send, and other drivers rely on this too. No
    /// manual says the same of a NOP.
    pub(super) fn post_drain(&mut self) -> Result<(), PostError> {
        if self.draining {
            return Err(PostError::Full);
        }
        let request = Request { opcode: SendOpcode::Send, flags: fm_ce_se::CQ_UPDATE, imm: 0 };
        let posted = self.sq.post_send::<PostError>(request, 0, std::iter::empty())?;
        (self.draining, self.drain) = (true, posted.index);
        self.signalled(posted);
        Ok(())
    }

    /// Requests the completion of trailing unsignaled sends after enough idle visits. Returns true if a
    /// doorbell is due.
    #[inline]
    pub(super) fn visit(&mut self) -> bool {
        self.book();
        if self.unsignalled == 0 {
            return false;
        }
        self.idle_visits = self.idle_visits.saturating_add(1);
        self.idle_visits >= IDLE_VISITS && self.post_nop().is_ok()
    }

    /// Requests that completion immediately, for a queue pair that posts nothing more. Returns true if a
    /// doorbell is due.
    pub(super) fn ask(&mut self) -> bool {
        self.book();
        self.unsignalled > 0 && self.post_nop().is_ok()
    }

    /// True if it has unsignaled sends and is not yet in the list of visited queue pairs. Marks it as listed.
    #[inline]
    pub(super) const fn starts_to_lag(&mut self) -> bool {
        self.book();
        let starts = self.unsignalled > 0 && !self.lagging;
        self.lagging |= starts;
        starts
    }

    /// True if it must be visited again.
    pub(super) const fn still_lags(&mut self) -> bool {
        self.book();
        self.lagging = self.unsignalled > 0;
        self.lagging
    }
}

/// Data path of a connected queue pair. Dropping it returns its pending buffers.
///
/// The fields that a message touches lie on two adjacent cache lines, in declaration order. With thousands of
/// connections, each message finds its queue pair outside the near caches.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct RcQp<P> {
    pub(super) passive: bool,
    /// True while posting is not allowed: completions of an older queue pair with the same number may be
    /// pending.
    pub(super) sealed: bool,
    /// The datagram queue pair of the same link.
    pub(super) beside: UdSlot,
    pub(super) side: SendSide<P>,
    anchor: Anchored,
    /// Set if it was removed from the table with sends outstanding. Dropped last, after the device has
    /// released the buffers.
    pub(super) removed: Option<Removed>,
}

impl<P> RcQp<P> {
    /// The device did not release the buffers.
    fn forget(&mut self) {
        self.side.forget();
        if let Some(removed) = self.removed.take() {
            removed.forget();
        }
    }
}

impl<P> Drop for RcQp<P> {
    fn drop(&mut self) {
        if !let_go(&mut self.anchor) {
            self.forget();
        }
    }
}

impl<P: Packet> RcQp<P> {
    /// Creates a queue pair. Send completions of a `passive` one go to the receive completion queue, and it
    /// posts only its drain request.
    #[must_use]
    pub fn new(rings: &QpRings, passive: bool, beside: UdSlot, signal_every: u32, anchor: Anchored) -> Self {
        let side = SendSide::new(rings, signal_every.min(1 << 12) as u16, CONTROL_UNITS);
        Self { passive, sealed: false, beside, side, anchor, removed: None }
    }

    /// Destroys it. Pending buffers return to the pool, or are leaked if the device does not release them.
    pub fn destroy(mut self) -> Result<(), HcaError> {
        release(&mut self.anchor).inspect_err(|_| self.forget())
    }

    /// Returns the queue pair number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        Qpn::new(self.side.sq.qpn())
    }

    /// True if it only receives.
    #[must_use]
    pub const fn is_passive(&self) -> bool {
        self.passive
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::mem::Mbuf;

    #[test]
    fn what_a_message_touches_of_a_queue_pair_is_on_two_neighbouring_cache_lines() {
        type Qp = RcQp<Mbuf>;
        let cold = offset_of!(Qp, side) + offset_of!(SendSide<Mbuf>, draining);
        assert!(align_of::<Qp>() == 128 && cold <= 128, "{cold}");
        // The `Option` of a slot uses a niche in the same lines.
        assert_eq!(size_of::<Option<Qp>>(), size_of::<Qp>());
    }
}
