//! State of an unreliable connection: the partly transferred message in each direction.

use ib_wire::{Mtu, Psn, Qpn};

use super::responder::Incoming;
use crate::wqe::Control;
use hca::{AddressVector, UcToReceive};

/// A work request that is partly sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) control: Control,
    /// Length of the message in bytes.
    pub(crate) length: u64,
    /// Bytes sent.
    pub(crate) sent: u64,
}

/// An unreliably connected queue pair and the path to its peer.
#[derive(Debug)]
pub(crate) struct Unreliable {
    pub(crate) av: AddressVector,
    pub(crate) dest_qpn: Qpn,
    pub(crate) mtu: Mtu,
    /// PSN of the next packet to send.
    pub(crate) next: Psn,
    pub(crate) outgoing: Option<Outgoing>,
    /// PSN of the next packet expected.
    pub(crate) expected: Psn,
    pub(crate) incoming: Option<Incoming>,
    /// The receive of a lost message, which the next message uses.
    pub(crate) spare: Option<u16>,
    /// A message has arrived.
    pub(crate) heard: bool,
}

impl Unreliable {
    pub(crate) fn new(how: &UcToReceive) -> Self {
        Self {
            av: how.av,
            dest_qpn: how.dest_qpn,
            mtu: how.path_mtu,
            next: Psn::default(),
            outgoing: None,
            expected: how.rq_psn,
            incoming: None,
            spare: None,
            heard: false,
        }
    }

    /// Drops the incoming message. Its receive is kept for the next one.
    pub(crate) fn lose(&mut self) {
        if let Some(Incoming::Send { counter, .. }) = self.incoming.take() {
            self.spare = Some(counter);
        }
    }

    /// Takes the receive that was taken and has not completed.
    pub(crate) fn take_receive(&mut self) -> Option<u16> {
        self.lose();
        self.spare.take()
    }
}
