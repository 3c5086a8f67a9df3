//! Data path of queue pairs.

use ib_wire::Qpn;

use super::receive::{DatagramReceives, Stash};
use super::send::SendSide;
use crate::bookkeeping::Mark;
use crate::hca::{HcaError, UdSlot};
use crate::mem::Pool;
use crate::mlx5::mr::MrTable;
use crate::verbs::remedy;

/// State of a datagram queue pair with respect to posting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Door {
    /// Sends may be posted.
    Open,
    /// Not opened yet.
    New,
    /// Closed. Holds the read progress of the receive completion queue at that time.
    Closed(Mark),
}

/// Data path of a datagram queue pair. Dropping it returns its pending buffers.
#[derive(Debug)]
pub struct VerbsUd {
    pub(super) side: SendSide,
    /// Its own receive queue, if the device cannot share receives among datagram queue pairs.
    pub(super) own: Option<DatagramReceives>,
    pub(super) door: Door,
}

impl VerbsUd {
    pub(in crate::verbs) fn new(side: SendSide, own_receives: u32) -> Self {
        let own = (own_receives > 0).then(|| DatagramReceives::new(own_receives));
        Self { side, own, door: Door::New }
    }

    /// Returns the queue pair number.
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

    pub(in crate::verbs) fn destroy(mut self) -> Result<(), HcaError> {
        self.end()
    }
}

impl Drop for VerbsUd {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

/// Data path of a connected queue pair. Dropping it returns its pending buffers.
#[derive(Debug)]
pub struct VerbsRc {
    pub(super) side: SendSide,
    pub(super) passive: bool,
    pub(super) beside: UdSlot,
}

impl VerbsRc {
    pub(in crate::verbs) const fn new(side: SendSide, passive: bool, beside: UdSlot) -> Self {
        Self { side, passive, beside }
    }

    /// Returns the queue pair number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.side.qpn()
    }

    pub(in crate::verbs) fn destroy(mut self) -> Result<(), HcaError> {
        self.side.destroy()
    }
}

impl VerbsUd {
    /// Refills its own receive queue, if it has one.
    pub(super) fn refill_own(&mut self, stash: &mut Stash, pool: &mut Pool, regions: &mut MrTable) -> usize {
        let Self { side, own, .. } = self;
        own.as_mut()
            .map_or(0, |own| own.refill(stash, pool, regions, |first, bad| side.post_receives(first, bad)))
    }
}
