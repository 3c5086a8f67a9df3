//! Send completions: reclaims buffers, and posts a NOP to flush trailing unsignaled sends.

use ib_wire::Qpn;

use super::{Events, MlxQueues};
use crate::bookkeeping::{Completed, Health, Place};
use crate::hca::{Done, QpEvent, QpFault, WcStatus};
use crate::mem::packet::{Packet, Stash};
use crate::mlx5::bus::Bus;
use crate::mlx5::cq::{Completion, Sent, What};

/// Maximum number of completions that one poll of sends consumes.
const SEND_BATCH: usize = 64;
/// Number of queue pairs visited per poll for trailing unsignaled sends: after a poll with work, and after an
/// idle one.
const VISITS: usize = 2;
const IDLE_VISITS: usize = 64;

impl<B: Bus, P: Packet> MlxQueues<B, P> {
    /// Reaps send completions. Returns the number of buffers freed.
    #[inline(never)]
    pub fn reap(&mut self, events: &mut Events) -> usize {
        if !self.broken.is_empty() {
            self.report_broken(events);
        }
        let (mut freed, mut taken, mut empty) = (0, 0, false);
        let mut batch = Stash::new();
        while taken < SEND_BATCH {
            if events.remaining_capacity() < Health::MAX_EVENTS {
                break;
            }
            if let Some(sent) = self.send_cq.sent()
                && let Some(count) = self.complete_sent(sent, &mut batch)
            {
                self.send_cq.skip();
                freed += count;
                taken += 1;
                continue;
            }
            let Some(cqe) = self.send_cq.poll() else {
                self.credit.settle();
                empty = true;
                break;
            };
            taken += 1;
            freed += self.send_completion(Completion::of(&cqe), &mut batch, events);
        }
        self.send_progress.polled(taken, empty);
        if !self.sealed.is_empty() {
            self.unseal();
        }
        self.send_cq.publish();
        P::free_all(&mut batch);
        let rang = std::mem::take(&mut self.rang);
        self.visit(if rang || freed > 0 { VISITS } else { IDLE_VISITS });
        freed
    }

    /// Reports queue pairs with broken send queues.
    #[cold]
    fn report_broken(&mut self, events: &mut Events) {
        while !events.is_full()
            && let Some(qpn) = self.broken.pop_front()
        {
            self.anomalies.out_of_range += 1;
            events.push(QpEvent { qpn, fault: QpFault::Send(WcStatus::LocalQpOperation) });
        }
    }

    /// Fast path of [`MlxQueues::send_completion`] for successful messages without other pending work.
    /// Returns `None`, without side effects, if the full path is needed.
    #[inline(always)]
    fn complete_sent(&mut self, Sent { qpn, counter }: Sent, batch: &mut Stash<P>) -> Option<usize> {
        let side = match self.numbers.find(qpn)? {
            Place::Rc(slot, _) => self.rcs.get_mut(slot.0).filter(|rc| !rc.passive).map(|rc| &mut rc.side),
            Place::Ud(slot) => self.uds.get_mut(slot.0.into()).map(|ud| &mut ud.side),
        };
        let count = side.filter(|side| side.sq.qpn() == qpn)?.complete_sent(counter, batch)?;
        self.credit.give_back(count.into());
        Some(count.into())
    }

    /// Visits some of the queue pairs in `lagging`.
    fn visit(&mut self, most: usize) {
        for _ in 0..most.min(self.lagging.len()) {
            let Some(place) = self.lagging.pop_front() else { return };
            let (side, room) = match place {
                Place::Ud(slot) => {
                    (self.uds.get_mut(slot.0.into()).map(|ud| &mut ud.side), self.credit.has_room())
                }
                Place::Rc(slot, _) => {
                    (self.rcs.get_mut(slot.0).map(|rc| &mut rc.side), self.credit.admits_nop())
                }
            };
            let Some(side) = side else { continue };
            // Ring immediately unless the queue pair already waits for the next doorbell round.
            let was_dirty = side.sq.is_dirty();
            if room && side.visit() {
                self.credit.take();
                if !was_dirty {
                    side.sq.ring(&mut self.bus);
                }
            }
            if side.still_lags() {
                self.lagging.push_back(place);
            }
        }
    }

    /// Processes a completed or failed send. Returns the number of buffers freed into `batch`.
    #[inline(never)]
    pub(super) fn send_completion(
        &mut self,
        completion: Completion,
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
        let found = match self.numbers.find(completion.qpn) {
            Some(Place::Ud(slot)) => self.uds.get_mut(slot.0.into()).map(|ud| (&mut ud.side, None, true)),
            Some(Place::Rc(slot, _)) => {
                self.rcs.get_mut(slot.0).map(|rc| (&mut rc.side, Some(slot), !rc.passive))
            }
            None => None,
        };
        let Some((side, slot, counts)) = found.filter(|(side, ..)| side.sq.qpn() == completion.qpn) else {
            self.anomalies.unknown_qp += 1;
            return 0;
        };
        let mut freed = 0;
        let before = side.outstanding();
        let done = &mut self.done;
        let reaped = side.complete(
            (completion.counter, status),
            |buf| {
                freed += 1;
                if let Err(full) = batch.try_push(buf) {
                    P::free_all(batch);
                    batch.push(full.element());
                }
            },
            |work, status| {
                let what = work.operation.ended(status);
                done.extend(slot.map(|slot| Done { slot, ticket: work.ticket, status, what }));
            },
        );
        if !reaped.known {
            self.anomalies.unknown_entry += 1;
            return 0;
        }
        let outstanding = side.outstanding();
        if counts {
            self.credit.give_back(before.saturating_sub(outstanding));
        }
        let what = Completed {
            qpn: Qpn::new(completion.qpn),
            status,
            drained: reaped.drained,
            outstanding,
            datagram: slot.is_none(),
        };
        side.completed(what, events);
        freed
    }
}
