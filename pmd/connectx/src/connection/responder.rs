//! What the receiving half of a connection remembers: order, the message that comes in, what it owes.

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::Psn;
use ib_wire::packet::{RnrTimer, Syndrome};

/// What the responder owes the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// All up to the expected PSN.
    Ack,
    /// A refusal of one PSN.
    Nak(Psn, Syndrome),
}

/// A message of which packets are missing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming {
    /// A SEND into the receive of this counter.
    Send { counter: u16, received: u64 },
    /// An RDMA WRITE.
    Write { rkey: u32, address: u64, left: u64, length: u32 },
}

/// An RDMA READ whose answer is not sent yet, or not all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Of the next packet.
    pub(crate) psn: Psn,
    pub(crate) rkey: u32,
    pub(crate) address: u64,
    pub(crate) left: u32,
    /// Its first packet has gone.
    pub(crate) begun: bool,
    /// It was answered before.
    pub(crate) again: bool,
}

/// The responder of one connection.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) epsn: Psn,
    pub(crate) msn: Psn,
    pub(crate) reply: Option<Reply>,
    pub(crate) since_ack: u8,
    pub(crate) rnr: RnrTimer,
    /// A refusal went out; what comes before the refused PSN arrives again is not refused once more.
    pub(crate) refused: bool,
    pub(crate) incoming: Option<Incoming>,
    /// RDMA READs to be answered, in their order and before `reply`.
    pub(crate) reads: VecDeque<Read>,
    /// By then the message that comes in goes on.
    pub(crate) goes_on_by: Option<Instant>,
}

impl Responder {
    pub(crate) fn new(epsn: Psn, min_rnr_timer: u8) -> Self {
        Self {
            epsn,
            msn: Psn::default(),
            reply: None,
            since_ack: 0,
            rnr: RnrTimer::new(min_rnr_timer),
            refused: false,
            incoming: None,
            reads: VecDeque::new(),
            goes_on_by: None,
        }
    }

    /// Takes the receive that a message has begun to fill.
    pub(crate) fn take_receive(&mut self) -> Option<u16> {
        match self.incoming.take() {
            Some(Incoming::Send { counter, .. }) => Some(counter),
            _ => None,
        }
    }
}
