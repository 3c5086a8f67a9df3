//! State of a queue pair's connection: reliable (IBA 9.7) or unreliable (IBA 9.8.2). The operations are in
//! [`crate::rc`] and [`crate::uc`].

pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod unreliable;

use ib_wire::{Mtu, Qpn};

use hca::{AddressVector, RcToReceive};
use requester::Requester;
use responder::Responder;

/// Both halves of a reliably connected queue pair and the path to its peer.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) av: AddressVector,
    pub(crate) dest_qpn: Qpn,
    pub(crate) mtu: Mtu,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
}

impl Connection {
    pub(crate) fn new(how: &RcToReceive) -> Self {
        Self {
            av: how.av,
            dest_qpn: how.dest_qpn,
            mtu: how.path_mtu,
            requester: Requester::default(),
            responder: Responder::new(how.rq_psn, how.min_rnr_timer),
        }
    }
}
