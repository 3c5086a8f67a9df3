//! The hot half of a datagram queue pair.

use ib_wire::Qpn;

use super::anchor::{Anchored, let_go, release};
use super::rc::SendSide;
use super::rings::QpRings;
use super::send::{ADDRESS_UNITS, CONTROL_UNITS};
use crate::bookkeeping::Mark;
use crate::hca::HcaError;
use crate::mem::packet::Packet;

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
pub struct UdQp<P> {
    pub(super) side: SendSide<P>,
    pub(super) door: Door,
    /// At an Ethernet port, where completions tell the kind of IP header in place of the service level.
    pub(super) ethernet: bool,
    /// Completions tell of IPv4 headers.
    pub(super) checks_ipv4: bool,
    anchor: Anchored,
}

impl<P> Drop for UdQp<P> {
    fn drop(&mut self) {
        if !let_go(&mut self.anchor) {
            self.side.forget();
        }
    }
}

impl<P: Packet> UdQp<P> {
    /// A new queue pair; it receives into its worker's shared queue for datagrams.
    #[must_use]
    pub fn new(rings: &QpRings, ethernet: bool, signal_every: u32, anchor: Anchored) -> Self {
        let side = SendSide::new(rings, signal_every.min(1 << 12) as u16, CONTROL_UNITS + ADDRESS_UNITS);
        Self { side, door: Door::New, ethernet, checks_ipv4: false, anchor }
    }

    /// Whether its completions tell of IPv4 headers. At an Ethernet port they tell of those that carry the datagram.
    #[must_use]
    pub const fn checking_ipv4(mut self, yes: bool) -> Self {
        self.checks_ipv4 = yes;
        self
    }

    /// Destroys it; what it still owes goes home, or is kept if the device does not let go.
    pub fn destroy(mut self) -> Result<(), HcaError> {
        release(&mut self.anchor).inspect_err(|_| self.side.forget())
    }

    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        Qpn::new(self.side.sq.qpn())
    }
}
