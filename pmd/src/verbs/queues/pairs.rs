//! Hot halves of queue pairs.

use ib_wire::Qpn;

use super::receive::{DatagramReceives, Stash};
use super::send::SendSide;
use crate::bookkeeping::Mark;
use crate::hca::{HcaError, UdSlot};
use crate::mem::Pool;
use crate::mlx5::mr::MrTable;
use crate::verbs::remedy;

/// Whether a datagram queue pair is posted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Door {
    /// It is.
    Open,
    /// Not yet.
    New,
    /// Not any more, since the receive completion queue had been read so far.
    Closed(Mark),
}

/// Hot half of a datagram queue pair. What it still owes when it is dropped goes home with it.
#[derive(Debug)]
pub struct VerbsUd {
    pub(super) side: SendSide,
    /// Where the device cannot share receives among datagram queue pairs: its own.
    pub(super) own: Option<DatagramReceives>,
    pub(super) door: Door,
}

impl VerbsUd {
    pub(in crate::verbs) fn new(side: SendSide, own_receives: u32) -> Self {
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

/// Hot half of a connected queue pair. What it still owes when it is dropped goes home with it.
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

    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.side.qpn()
    }

    pub(in crate::verbs) fn destroy(mut self) -> Result<(), HcaError> {
        self.side.destroy()
    }
}

impl VerbsUd {
    /// Fills the receive queue up that it has of its own.
    pub(super) fn refill_own(&mut self, stash: &mut Stash, pool: &mut Pool, regions: &mut MrTable) -> usize {
        let Self { side, own, .. } = self;
        own.as_mut()
            .map_or(0, |own| own.refill(stash, pool, regions, |first, bad| side.post_receives(first, bad)))
    }
}
