//! Insertion and removal of queue pairs.

use ib_wire::Qpn;

use super::MlxQueues;
use crate::bookkeeping::{Place, Reading};
use crate::hca::{Done, PostError, RcSlot, UdSlot, WcStatus};
use crate::mem::packet::Packet;
use crate::mlx5::bus::Bus;
use crate::mlx5::rc::RcQp;
use crate::mlx5::ud::{Door, UdQp};

impl<B: Bus, P: Packet> MlxQueues<B, P> {
    /// See [`crate::hca::Queues::insert_ud`].
    #[expect(clippy::result_large_err, reason = "a queue pair that is not accepted is handed back")]
    pub fn insert_datagrams(&mut self, slot: UdSlot, ud: UdQp<P>) -> Result<(), UdQp<P>> {
        let Some(known) = self.ud_numbers.get_mut(usize::from(slot.0)) else { return Err(ud) };
        if !self.uds.is_free(slot.0.into()) {
            return Err(ud);
        }
        let number = ud.qpn().get();
        if let Some(old) = known.replace(number)
            && self.numbers.find(old) == Some(Place::Ud(slot))
        {
            self.numbers.remove(old);
        }
        if !self.numbers.insert(number, Place::Ud(slot)) {
            return Err(ud);
        }
        self.uds.insert(slot.0.into(), ud)
    }

    /// See [`crate::hca::Queues::open_ud`]. Does nothing while sends or receives are outstanding.
    pub fn open_datagrams(&mut self, slot: UdSlot) {
        if self.datagrams_outstanding(slot) == 0
            && let Some(ud) = self.uds.get_mut(slot.0.into())
        {
            // In RESET the device counts from 0 again.
            ud.side.restart();
            ud.door = Door::Open;
        }
    }

    /// See [`crate::hca::Queues::close_ud`].
    pub fn close_datagrams(&mut self, slot: UdSlot) {
        let Some(ud) = self.uds.get_mut(slot.0.into()) else { return };
        ud.door = Door::Closed(self.progress.mark());
        // With thousands of connections, waiting for its turn in `lagging` takes long, and the link has no
        // datagrams until then.
        if self.credit.has_room() && ud.side.ask() {
            self.credit.take();
        }
        // Sends that wait for the doorbell are flushed with the rest.
        ud.side.sq.ring(&mut self.bus);
        self.uds.rung(slot.0.into());
    }

    /// See [`crate::hca::Queues::ud_outstanding`].
    #[must_use]
    pub fn datagrams_outstanding(&self, slot: UdSlot) -> u32 {
        self.uds.get(slot.0.into()).map_or(0, |ud| {
            let unread = matches!(ud.door, Door::Closed(mark) if !self.progress.is_past(mark));
            ud.side.outstanding() + u32::from(unread)
        })
    }

    /// See [`crate::hca::Queues::remove_ud`].
    pub fn remove_datagrams(&mut self, slot: UdSlot) -> Option<UdQp<P>> {
        let ud = self.uds.remove(slot.0.into())?;
        self.credit.orphan(ud.side.outstanding());
        self.lagging.retain(|place| *place != Place::Ud(slot));
        Some(ud)
    }

    /// Returns the number of the datagram queue pair in a slot.
    #[must_use]
    pub fn datagrams_qpn(&self, slot: UdSlot) -> Option<Qpn> {
        self.uds.get(slot.0.into()).map(UdQp::qpn)
    }

    /// Returns the numbers of all queue pairs: (datagram, connected).
    pub(crate) fn all_numbers(&self) -> (Vec<Qpn>, Vec<Qpn>) {
        (self.uds.all().map(UdQp::qpn).collect(), self.rcs.all().map(RcQp::qpn).collect())
    }

    /// Inserts a connected queue pair.
    #[expect(clippy::result_large_err, reason = "a queue pair that is not accepted is handed back")]
    pub fn insert(&mut self, slot: RcSlot, mut rc: RcQp<P>) -> Result<(), RcQp<P>> {
        if !self.rcs.is_free(slot.0) || !self.numbers.insert(rc.qpn().get(), Place::Rc(slot, rc.beside)) {
            return Err(rc);
        }
        rc.side.limit_segments(self.max_segments);
        let reading = Reading { receives: &self.progress, sends: &self.send_progress };
        rc.sealed = self.stale.take(rc.qpn().get(), reading);
        if rc.sealed {
            self.sealed.push((slot, self.progress.mark(), self.send_progress.mark()));
        }
        self.rcs.insert(slot.0, rc)
    }

    /// Removes a connected queue pair.
    pub fn remove(&mut self, slot: RcSlot) -> Option<RcQp<P>> {
        let mut rc = self.rcs.remove(slot.0)?;
        // Buffers that the device may still use are released with the queue pair. Keys would be lost, so they
        // are reported as flushed.
        let status = WcStatus::Flushed;
        self.done.extend(rc.side.take_key_works().map(|work| {
            let what = work.operation.ended(status);
            Done { slot, ticket: work.ticket, status, what }
        }));
        self.numbers.remove(rc.qpn().get());
        if rc.side.outstanding() > 0 {
            let reading = Reading { receives: &self.progress, sends: &self.send_progress };
            rc.removed = Some(self.stale.note(rc.qpn().get(), reading));
        }
        self.sealed.retain(|(other, ..)| *other != slot);
        if !rc.passive {
            self.credit.orphan(rc.side.outstanding());
        }
        self.lagging.retain(|place| !matches!(place, Place::Rc(other, _) if *other == slot));
        Some(rc)
    }

    /// Lets connections post once no pending completion can belong to an older queue pair with the same
    /// number.
    pub(super) fn unseal(&mut self) {
        let Self { sealed, rcs, progress, send_progress, .. } = self;
        sealed.retain(|(slot, received, sent)| {
            let waits = !progress.is_past(*received) || !send_progress.is_past(*sent);
            if let (false, Some(rc)) = (waits, rcs.get_mut(slot.0)) {
                rc.sealed = false;
            }
            waits
        });
    }

    /// Posts the drain request of a queue pair in the error state and rings its doorbell.
    pub fn drain(&mut self, slot: RcSlot) -> Result<(), PostError> {
        let rc = self.rcs.get_mut(slot.0).ok_or(PostError::NoConnection)?;
        // Drain requests of passive queue pairs complete on the receive completion queue, which has room for
        // them.
        if rc.sealed || !rc.passive && !self.credit.has_room() {
            return Err(PostError::Full);
        }
        rc.side.post_drain()?;
        if !rc.passive {
            self.credit.take();
        }
        rc.side.fail();
        rc.side.sq.ring(&mut self.bus);
        self.rcs.rung(slot.0);
        Ok(())
    }

    /// Returns the number of outstanding sends of a connected queue pair.
    #[must_use]
    pub fn outstanding(&self, slot: RcSlot) -> usize {
        self.rcs.get(slot.0).map_or(0, |rc| rc.side.outstanding() as usize)
    }
}
