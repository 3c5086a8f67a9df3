//! Sends have completed: what comes back of their entries.

use super::{CHAIN_ENTRIES, SendSide};
use crate::bookkeeping::{Operation, Work};
use crate::hca::WcStatus;
use crate::mem::packet::Packet;

/// What a completion did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::mlx5) struct Reaped {
    /// False if the device named an entry that it did not have.
    pub(in crate::mlx5) known: bool,
    /// The drain request was among the entries.
    pub(in crate::mlx5) drained: bool,
}

impl<P: Packet> SendSide<P> {
    /// A completion names the entry at `counter`: it ended with `status`, all before it are done, and their buffers are `freed`. `worked`
    /// gets what is owed an answer, and how it ended.
    #[inline]
    pub(in crate::mlx5) fn complete(
        &mut self,
        (counter, status): (u16, WcStatus),
        mut freed: impl FnMut(P),
        mut worked: impl FnMut(Work<P>, WcStatus),
    ) -> Reaped {
        if !self.sq.is_in_use(counter) {
            return Reaped::default();
        }
        self.book();
        let mut reaped = Reaped { known: true, drained: false };
        let mut at = self.sq.retired();
        if self.odd == 0 {
            // One may be named by any of its blocks.
            let count = counter.wrapping_sub(at) / self.plain_wqebbs + 1;
            at = self.complete_plain(at, count, &mut freed);
        } else {
            at = self.complete_any(at, (counter, status), &mut reaped, &mut freed, &mut worked);
        }
        self.sq.retire(at);
        if status != WcStatus::Success {
            self.blame(status);
        }
        if self.outstanding == 0 {
            // Flushed ones complete whether signalled or not.
            self.unsignalled = 0;
            self.unsignalled_wqebbs = 0;
            self.odd = 0;
        }
        reaped
    }

    /// Messages have been sent, up to the one at `counter`: what [`SendSide::complete`] does where no entry is [odd](Self::odd) and no send has failed. Returns
    /// how many there were; `None`, and nothing is done, where there is more to do.
    #[inline(always)]
    pub(in crate::mlx5) fn complete_sent(&mut self, counter: u16, mut freed: impl FnMut(P)) -> Option<u16> {
        if self.odd != 0 || self.health.failed() || !self.sq.is_in_use(counter) {
            return None;
        }
        self.book();
        let at = self.sq.retired();
        let count = (counter.wrapping_sub(at) >> self.plain_wqebbs.saturating_sub(1)) + 1;
        let at = self.complete_plain(at, count, &mut freed);
        self.sq.retire(at);
        if self.outstanding == 0 {
            self.unsignalled = 0;
            self.unsignalled_wqebbs = 0;
        }
        Some(count)
    }

    /// Frees the buffers of `count` entries from `at` on, none of which is [odd](Self::odd). Returns the index behind them. It takes half of the
    /// instructions that the general way takes, for each packet that is sent.
    #[inline(always)]
    fn complete_plain(&mut self, at: u16, count: u16, freed: &mut impl FnMut(P)) -> u16 {
        let mask = self.sq.size().wrapping_sub(1);
        self.outstanding = self.outstanding.saturating_sub(count.into());
        if self.plain_wqebbs == 1 {
            // They lie side by side, up to the end of the ring and then from its beginning.
            let places = self.slots.get_mut(usize::from(at & mask)..).unwrap_or_default();
            let before_end = places.len().min(count.into());
            places.iter_mut().take(before_end).filter_map(|slot| slot.buf.take()).for_each(&mut *freed);
            let behind = usize::from(count) - before_end;
            self.slots.iter_mut().take(behind).filter_map(|slot| slot.buf.take()).for_each(freed);
            return at.wrapping_add(count);
        }
        let mut at = at;
        for _ in 0..count {
            if let Some(buf) = self.slots.get_mut(usize::from(at & mask)).and_then(|slot| slot.buf.take()) {
                freed(buf);
            }
            at = at.wrapping_add(self.plain_wqebbs);
        }
        at
    }

    /// Completes all entries from `at` up to the one at `counter`, whatever they are. Returns the index behind them.
    #[inline(never)]
    fn complete_any(
        &mut self,
        at: u16,
        (counter, status): (u16, WcStatus),
        reaped: &mut Reaped,
        freed: &mut impl FnMut(P),
        worked: &mut impl FnMut(Work<P>, WcStatus),
    ) -> u16 {
        let mask = self.sq.size().wrapping_sub(1);
        let mut at = at;
        while let Some(slot) = self.slots.get_mut(usize::from(at & mask)) {
            let wqebbs = slot.wqebbs.max(1);
            let buf = slot.buf.take();
            if buf.is_none() || wqebbs != self.plain_wqebbs {
                self.odd = self.odd.saturating_sub(1);
            }
            if let Some(buf) = buf {
                freed(buf);
            }
            self.outstanding = self.outstanding.saturating_sub(1);
            if self.draining && self.drain == at {
                self.draining = false;
                reaped.drained = true;
            }
            let inside = counter.wrapping_sub(at) < wqebbs;
            if let Some(work) = self.works.get_mut(usize::from(at & mask)).and_then(Option::take) {
                worked(work, if inside { self.outcome(at, status) } else { WcStatus::Success });
            }
            at = at.wrapping_add(wqebbs);
            if inside {
                break;
            }
        }
        at
    }

    /// How work ended whose last entry, at `index`, ended with `status`.
    fn outcome(&self, index: u16, status: WcStatus) -> WcStatus {
        match self.cause {
            Some((last, cause)) if last == index && status == WcStatus::Flushed => cause,
            _ => status,
        }
    }

    /// What failed just now may have been of a chain whose last entry is still to be flushed: that is where it is told why.
    #[cold]
    fn blame(&mut self, status: WcStatus) {
        if status == WcStatus::Flushed {
            return;
        }
        let mask = self.sq.size().wrapping_sub(1);
        let mut at = self.sq.retired();
        // A chain that begins behind it has its last entry further on.
        for _ in 1..CHAIN_ENTRIES {
            let place = usize::from(at & mask);
            let (true, Some(slot)) = (self.sq.is_in_use(at), self.slots.get(place)) else { return };
            if let Some(Some(work)) = self.works.get(place) {
                if matches!(work.operation, Operation::Chain(..)) {
                    self.cause = Some((at, status));
                }
                return;
            }
            at = at.wrapping_add(slot.wqebbs.max(1));
        }
    }
}
