//! Send completions: buffers and results released by completed entries.

use super::{CHAIN_ENTRIES, SendSide};
use crate::bookkeeping::{Operation, Work};
use crate::hca::WcStatus;
use crate::mem::packet::{Packet, Stash, stow};

/// Effect of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::mlx5) struct Reaped {
    /// False if the device named an entry that it did not own.
    pub(in crate::mlx5) known: bool,
    /// True if the drain request was among the entries.
    pub(in crate::mlx5) drained: bool,
}

impl<P: Packet> SendSide<P> {
    /// Completes the entry at `counter` with `status`, and all entries before it successfully. Their buffers
    /// go to `freed`. `worked` receives the pending work with its status.
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
        let at = self.complete_any((counter, status), &mut reaped, &mut freed, &mut worked);
        self.sq.retire(at);
        if status != WcStatus::Success {
            self.blame(status);
        }
        if self.outstanding == 0 {
            // Flushed entries complete whether or not they are signaled.
            self.unsignalled = 0;
            self.unsignalled_wqebbs = 0;
            self.odd = 0;
        }
        reaped
    }

    /// Fast path of [`SendSide::complete`] for messages up to the one at `counter`.
    ///
    /// It applies if no entry is [odd](Self::odd) and no send has failed. Buffers go to `batch`, which is
    /// returned to the pool whenever it is full. Returns the number of buffers, or `None`, without side
    /// effects, if the full path is needed.
    #[inline(always)]
    pub(in crate::mlx5) fn complete_sent(&mut self, counter: u16, batch: &mut Stash<P>) -> Option<u16> {
        if self.odd != 0 || self.health.failed() || !self.sq.is_in_use(counter) {
            return None;
        }
        self.book();
        // A completion may name any WQEBB of a message.
        let behind = counter.wrapping_sub(self.sq.retired());
        let count = (behind >> self.plain_wqebbs.saturating_sub(1)) + 1;
        self.take_plain(count, batch);
        if self.outstanding == 0 {
            self.unsignalled = 0;
            self.unsignalled_wqebbs = 0;
        }
        Some(count)
    }

    /// Takes the buffers of the `count` oldest entries, none of which is [odd](Self::odd). They are
    /// contiguous modulo the ring size.
    #[inline(always)]
    fn take_plain(&mut self, count: u16, batch: &mut Stash<P>) {
        let (mask, step) = (self.sq.size().wrapping_sub(1), usize::from(self.plain_wqebbs));
        let (mut at, mut left) = (self.sq.retired(), usize::from(count));
        while left > 0 {
            if batch.is_full() {
                P::free_all(batch);
            }
            // With thousands of connections, nearly every completion covers one message.
            if left == 1 {
                let buf = self.slots.get_mut(usize::from(at & mask)).and_then(|slot| slot.buf.take());
                batch.extend(buf);
                at = at.wrapping_add(step as u16);
                break;
            }
            let places = self.slots.get_mut(usize::from(at & mask)..).unwrap_or_default();
            let here = left.min(batch.remaining_capacity()).min(places.len().div_ceil(step));
            let places = places.get_mut(..(here * step).min(places.len())).unwrap_or_default();
            if step == 1 {
                stow::<1, _, _>(batch, places, |slot| slot.buf.take());
            } else {
                stow::<2, _, _>(batch, places, |slot| slot.buf.take());
            }
            if here == 0 {
                break;
            }
            left -= here;
            at = at.wrapping_add((here * step) as u16);
        }
        self.outstanding = self.outstanding.saturating_sub(count.into());
        self.sq.retire(at);
    }

    /// Completes all entries up to the one at `counter`, of any kind. Returns the index after them.
    #[inline(never)]
    fn complete_any(
        &mut self,
        (counter, status): (u16, WcStatus),
        reaped: &mut Reaped,
        freed: &mut impl FnMut(P),
        worked: &mut impl FnMut(Work<P>, WcStatus),
    ) -> u16 {
        let mask = self.sq.size().wrapping_sub(1);
        let mut at = self.sq.retired();
        while let Some(slot) = self.slots.get_mut(usize::from(at & mask)) {
            let wqebbs = slot.wqebbs(self.plain_wqebbs);
            slot.wqebbs = 0;
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

    /// Returns the status of work whose last entry, at `index`, completed with `status`.
    fn outcome(&self, index: u16, status: WcStatus) -> WcStatus {
        match self.cause {
            Some((last, cause)) if last == index && status == WcStatus::Flushed => cause,
            _ => status,
        }
    }

    /// Records the failed entry's status for the last entry of its chain, which is flushed later and reports
    /// it.
    #[cold]
    fn blame(&mut self, status: WcStatus) {
        if status == WcStatus::Flushed {
            return;
        }
        let mask = self.sq.size().wrapping_sub(1);
        let mut at = self.sq.retired();
        // A chain that starts after it has its last entry further on.
        for _ in 1..CHAIN_ENTRIES {
            let place = usize::from(at & mask);
            let (true, Some(slot)) = (self.sq.is_in_use(at), self.slots.get(place)) else { return };
            if let Some(Some(work)) = self.works.get(place) {
                if matches!(work.operation, Operation::Chain(..)) {
                    self.cause = Some((at, status));
                }
                return;
            }
            at = at.wrapping_add(slot.wqebbs(self.plain_wqebbs));
        }
    }
}
