//! What an unreliable connection remembers: in each direction the message of which a part has gone, or come, and no more.

use ib_wire::{Mtu, Psn, Qpn};

use super::responder::Incoming;
use crate::wqe::Control;
use hca::{AddressVector, UcToReceive};

/// A work request of which packets are still to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) control: Control,
    /// Bytes of the message.
    pub(crate) length: u64,
    /// Bytes that have gone.
    pub(crate) sent: u64,
}

/// An unreliably connected queue pair and the way to its other end.
#[derive(Debug)]
pub(crate) struct Unreliable {
    pub(crate) av: AddressVector,
    pub(crate) dest_qpn: Qpn,
    pub(crate) mtu: Mtu,
    /// PSN to be sent next.
    pub(crate) next: Psn,
    pub(crate) outgoing: Option<Outgoing>,
    /// PSN to come next.
    pub(crate) expected: Psn,
    pub(crate) incoming: Option<Incoming>,
    /// The receive of a message that was lost: the next message gets it.
    pub(crate) spare: Option<u16>,
    /// A message has come.
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

    /// The message that comes in is lost. Its receive stays for the next one.
    pub(crate) fn lose(&mut self) {
        if let Some(Incoming::Send { counter, .. }) = self.incoming.take() {
            self.spare = Some(counter);
        }
    }

    /// Takes the receive that it has taken and not completed.
    pub(crate) fn take_receive(&mut self) -> Option<u16> {
        self.lose();
        self.spare.take()
    }
}
