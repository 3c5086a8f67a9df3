//! The data path of a datagram queue pair.

use ib_wire::Qpn;

use super::anchor::{Anchored, let_go, release};
use super::rc::SendSide;
use super::rings::QpRings;
use super::send::{ADDRESS_UNITS, CONTROL_UNITS};
use crate::bookkeeping::Mark;
use crate::hca::HcaError;
use crate::mem::packet::Packet;

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
pub struct UdQp<P> {
    pub(super) side: SendSide<P>,
    pub(super) door: Door,
    /// True at an Ethernet port, where completions report the kind of IP header instead of the service level.
    pub(super) ethernet: bool,
    /// True if completions report IPv4 header checks.
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
    /// Creates a queue pair. It receives into its worker's shared queue for datagrams.
    #[must_use]
    pub fn new(rings: &QpRings, ethernet: bool, signal_every: u32, anchor: Anchored) -> Self {
        let side = SendSide::new(rings, signal_every.min(1 << 12) as u16, CONTROL_UNITS + ADDRESS_UNITS);
        Self { side, door: Door::New, ethernet, checks_ipv4: false, anchor }
    }

    /// Sets whether its completions report IPv4 header checks. At an Ethernet port they refer to the headers
    /// that carry the datagram.
    #[must_use]
    pub const fn checking_ipv4(mut self, yes: bool) -> Self {
        self.checks_ipv4 = yes;
        self
    }

    /// Destroys it. Pending buffers return to the pool, or are leaked if the device does not release them.
    pub fn destroy(mut self) -> Result<(), HcaError> {
        release(&mut self.anchor).inspect_err(|_| self.side.forget())
    }

    /// Returns the queue pair number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        Qpn::new(self.side.sq.qpn())
    }
}
