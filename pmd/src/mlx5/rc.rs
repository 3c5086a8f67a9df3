//! The send half of a queue pair with the buffers that it owes, and the connected queue pair made of it.

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

/// Most segments of a buffer that is sent: as many as an SRQ entry for IPoIB's largest message has, and to spare. The entry
/// (656 bytes with an address) fits what devices allow, 1024.
pub const MAX_SEND_SEGMENTS: usize = 36;

/// Visits in which a queue pair had unsignalled sends and no new one, before a NOP fetches their completion.
const IDLE_VISITS: u8 = 16;

impl From<Full> for PostError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// Entries of a chain: it is registered, sent, invalidated. The last is owed an answer for all.
pub(super) const CHAIN_ENTRIES: usize = 3;

/// What lies at the WQEBB where an entry begins.
#[derive(Debug)]
struct Slot<P> {
    buf: Option<P>,
    /// How many WQEBBs the entry has. 0: as many as a plain message, so that posting one writes nothing here.
    wqebbs: u16,
}

impl<P> Slot<P> {
    /// WQEBBs of the entry, where a plain message has so many.
    const fn wqebbs(&self, plain: u16) -> u16 {
        if self.wqebbs == 0 { plain } else { self.wqebbs }
    }
}

/// A send queue and the buffers of its entries.
// In this order, what each message touches comes first: see `RcQp`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SendSide<P> {
    pub(super) sq: SendQueue,
    slots: Box<[Slot<P>]>,
    /// How many messages in one piece may follow one another with no look at anything but this: the ring has room for them, none of them is
    /// to ask for a completion, no fence is due, sends succeed. Each post that does look sets it anew. A send
    /// that completes with an error ends it, and so does a drain; a post that is refused and a receive that fails leave it.
    allowance: u16,
    /// What the allowance was when all was booked: the difference was posted on it and is not counted below. Whoever asks for those numbers books
    /// it first ([`SendSide::book`]), which is once a burst. (A count beside the allowance is added to together with it in a vector register, whose
    /// load of more bytes than the store before it wrote waits for the store.)
    granted: u16,
    /// WQEBBs of such a message.
    plain_wqebbs: u16,
    /// Entries in the ring that have no buffer or another length: nobody is owed an answer, and nothing but buffers comes back, where there is none.
    odd: u16,
    /// Entries that the device has or is about to have.
    outstanding: u32,
    signal_every: u16,
    /// Entries since the last signalled one, and the WQEBBs that they take.
    unsignalled: u16,
    unsignalled_wqebbs: u16,
    idle_visits: u8,
    /// It is among those that are visited.
    lagging: bool,
    pub(super) health: Health,
    /// Most segments of a buffer.
    max_segments: u8,
    /// The drain request is outstanding, and where. An `Option` of it would have the largest niche of a queue pair, and who asks for one in its
    /// place would look at this line, which messages do not touch.
    draining: bool,
    drain: u16,
    /// The last entry of a chain of which an earlier one has failed, and how.
    cause: Option<(u16, WcStatus)>,
    /// By slots, too: work whose poster waits for an answer. Nothing on a queue pair that only sends messages.
    works: Box<[Option<Work<P>>]>,
}

impl<P> SendSide<P> {
    /// Lets go of all buffers without giving them back.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
        std::mem::forget(std::mem::take(&mut self.works));
    }
}

impl<P: Packet> SendSide<P> {
    /// On a new ring. `head`: the length of what goes before a message's data, in units of 16 bytes.
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

    /// Messages that were posted on allowance since all was booked.
    #[inline(always)]
    const fn unbooked(&self) -> u16 {
        self.granted - self.allowance
    }

    /// Nothing more is posted on allowance.
    #[inline(always)]
    const fn withdraw(&mut self) {
        self.granted -= self.allowance;
        self.allowance = 0;
    }

    /// Counts what was posted on allowance.
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

    /// Begins again after RESET, with nothing outstanding.
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

    /// Sends have completed: see [`Health::completed`].
    #[inline]
    pub(super) fn completed(&mut self, what: Completed, events: &mut ArrayVec<QpEvent, BURST>) {
        self.health.completed(what, events);
        if self.health.failed() {
            self.withdraw();
        }
    }

    /// The queue pair is in error.
    pub(super) const fn fail(&mut self) {
        self.health.fail();
        self.withdraw();
    }

    /// The number of a queue pair whose send queue has turned out to be broken: it fails with that. Once.
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

    /// Posts a message in one piece, which is `data`, on allowance: what [`SendSide::post`] would do with it. With an address it is a datagram.
    // Two callers, which post most of what is posted at all.
    #[inline(always)]
    pub(super) fn post_allowed(&mut self, buf: P, to: Option<&DatagramAddress>, data: DataSegment) {
        self.put_plain(buf, to, data, 0);
        self.allowance -= 1;
    }

    #[inline(always)]
    fn put_plain(&mut self, buf: P, to: Option<&DatagramAddress>, data: DataSegment, flags: u8) {
        let at = self.sq.post_plain(to, data, flags);
        if let Some(slot) = self.slots.get_mut(at) {
            // What was there was taken when it completed, so that there is nothing to drop.
            std::mem::forget(slot.buf.replace(buf));
        }
    }

    /// True if [`SendSide::post_plain`] may be called: no fence is due, and there is room.
    #[inline(always)]
    pub(super) const fn takes_plain(&self) -> bool {
        !self.sq.is_fenced() && self.sq.size().saturating_sub(self.sq.used()) > self.plain_wqebbs
    }

    /// Posts a message in one piece, which is `data`, without an allowance: what [`SendSide::post`] would do with it, in some 100 instructions
    /// less. With thousands of connections completions are scarce, and each message goes this way.
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

    /// Has the processor fetch what the next message touches beside this.
    #[inline(always)]
    pub(super) fn fetch_entry(&self) {
        let at = usize::from(self.sq.posted() & self.sq.size().wrapping_sub(1));
        self.sq.fetch(at);
        if let Some(slot) = self.slots.get(at) {
            fetch(slot);
        }
    }

    /// True if an entry of so many WQEBBs is to ask for a completion, however many may be outstanding.
    #[inline(always)]
    const fn is_signal_due(&self, wqebbs: u16) -> bool {
        // By the time that half of the ring waits for a completion, one must be on its way.
        self.unsignalled + 1 >= self.signal_every || self.unsignalled_wqebbs + wqebbs >= self.sq.size() / 2
    }

    /// A message of so many WQEBBs was posted.
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

    /// Sets the allowance anew. All is booked.
    const fn allow(&mut self) {
        // A plain message takes one WQEBB or two.
        let (size, shift) = (self.sq.size(), self.plain_wqebbs.saturating_sub(1));
        // As `post` asks: less than the room that is left, and no completion due.
        let room = size.saturating_sub(self.sq.used()).saturating_sub(1) >> shift;
        let entries = self.signal_every.saturating_sub(1).saturating_sub(self.unsignalled);
        let half = (size / 2).saturating_sub(1).saturating_sub(self.unsignalled_wqebbs) >> shift;
        let least = if room < entries { room } else { entries };
        let least = if least < half { least } else { half };
        self.allowance = if self.sq.is_fenced() || self.health.failed() { 0 } else { least };
        self.granted = self.allowance;
    }

    /// Posts `buf` by `post`, which is told the entry's flags and how many segments there are. `head` is the length of what
    /// goes before the data, in units of 16 bytes. `scarce` asks for a completion whatever else. One WQEBB is kept back for the drain request.
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
        // Who has another way for it need not try that where nothing has room.
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

    /// Posts a signalled entry without data.
    fn post_nop(&mut self) -> Result<Posted, PostError> {
        let posted = self.sq.post_nop(fm_ce_se::CQ_UPDATE)?;
        self.signalled(posted);
        Ok(posted)
    }

    /// An entry without a buffer was posted, whose completion all before it share.
    fn signalled(&mut self, posted: Posted) {
        // It may be of those behind which a fence is due.
        self.withdraw();
        self.book();
        self.unsignalled = 0;
        self.unsignalled_wqebbs = 0;
        self.idle_visits = 0;
        self.note(posted, None);
    }

    /// Posts work of at most so many units of 16 bytes, signalled. One WQEBB is kept back for the drain request.
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

    /// As [`SendSide::post_work`], for several entries of so many WQEBBs together, of which the last is signalled: all or none.
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

    /// There is room for so many WQEBBs of work, and for what is owed.
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

    /// What was posted there is owed an answer.
    pub(super) fn owe(&mut self, posted: Posted, work: Work<P>) {
        let mask = self.sq.size().wrapping_sub(1);
        if let Some(place) = self.works.get_mut(usize::from(posted.index & mask)) {
            *place = Some(work);
        }
    }

    /// All work on keys that is owed an answer, oldest first. Lists that the device reads stay here: it may still do so.
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

    // Two callers, one of them in the way of each packet.
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

    /// Posts the drain request, one at a time: a send of nothing. In the error state a device flushes it like any other send,
    /// which is what everybody relies on there; of a NOP no manual says so.
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

    /// Fetches the completion of sends that nothing will signal any more. True if a doorbell is due.
    #[inline]
    pub(super) fn visit(&mut self) -> bool {
        self.book();
        if self.unsignalled == 0 {
            return false;
        }
        self.idle_visits = self.idle_visits.saturating_add(1);
        self.idle_visits >= IDLE_VISITS && self.post_nop().is_ok()
    }

    /// The same at once, for who posts nothing any more. True if a doorbell is due.
    pub(super) fn ask(&mut self) -> bool {
        self.book();
        self.unsignalled > 0 && self.post_nop().is_ok()
    }

    /// True if it has sends that nothing signals, and is to be visited from now on.
    #[inline]
    pub(super) const fn starts_to_lag(&mut self) -> bool {
        self.book();
        let starts = self.unsignalled > 0 && !self.lagging;
        self.lagging |= starts;
        starts
    }

    /// True if it is to be visited again.
    pub(super) const fn still_lags(&mut self) -> bool {
        self.book();
        self.lagging = self.unsignalled > 0;
        self.lagging
    }
}

/// Hot half of a connected queue pair. What it still owes when it is dropped goes home with it.
///
/// What a message touches lies on two neighbouring cache lines, in the order that is written here: with thousands of connections each message
/// finds a queue pair that lies in no near cache.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct RcQp<P> {
    pub(super) passive: bool,
    /// Nothing is posted yet: completions of an older queue pair with its number may be left.
    pub(super) sealed: bool,
    /// The datagram queue pair that it stands beside.
    pub(super) beside: UdSlot,
    pub(super) side: SendSide<P>,
    anchor: Anchored,
    /// It was removed from the table with sends outstanding. Dropped last, after the device has let go.
    pub(super) removed: Option<Removed>,
}

impl<P> RcQp<P> {
    /// The device did not let go.
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
    /// A new queue pair; `passive` if its send completions go to the receive completion queue and it only ever posts its
    /// drain request.
    #[must_use]
    pub fn new(rings: &QpRings, passive: bool, beside: UdSlot, signal_every: u32, anchor: Anchored) -> Self {
        let side = SendSide::new(rings, signal_every.min(1 << 12) as u16, CONTROL_UNITS);
        Self { passive, sealed: false, beside, side, anchor, removed: None }
    }

    /// Destroys it; what it still owes goes home, or is kept if the device does not let go.
    pub fn destroy(mut self) -> Result<(), HcaError> {
        release(&mut self.anchor).inspect_err(|_| self.forget())
    }

    /// Its number.
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
        // Whether there is one is told there, too.
        assert_eq!(size_of::<Option<Qp>>(), size_of::<Qp>());
    }
}
