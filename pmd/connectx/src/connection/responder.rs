//! State of the responder of a connection: order, the incoming message, and the replies that it owes.

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::Psn;
use ib_wire::packet::{AtomicEth, Opcode, RnrTimer, Syndrome};

use crate::object::mr::Member;
use crate::scatter::Spot;

/// An acknowledge is sent after at most this many packets, requested or not.
const ACK_EVERY: u8 = 64;

/// A reply that the responder owes the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// An acknowledge of all packets before the expected PSN.
    Ack,
    /// A refusal of one PSN.
    Nak(Psn, Syndrome),
}

/// An incomplete message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming {
    /// A SEND into the receive with this counter, and its fill position.
    Send { counter: u16, received: u64, spot: Spot },
    /// An RDMA WRITE.
    Write { rkey: u32, address: u64, left: u64, length: u32 },
}

/// A response that is not sent completely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// PSN of the next packet.
    pub(crate) psn: Psn,
    pub(crate) content: Content,
    /// It is a repetition.
    pub(crate) again: bool,
}

/// Content of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// Response to an RDMA READ: the requested memory, read when each packet is sent.
    Memory {
        /// The owner of the rights to read it.
        member: Member,
        rkey: u32,
        address: u64,
        left: u32,
        /// Its first packet was sent.
        begun: bool,
    },
    /// Response to an atomic operation: the original value.
    Value(u64),
}

/// An atomic operation that was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Atomic {
    pub(crate) psn: Psn,
    pub(crate) opcode: Opcode,
    pub(crate) request: AtomicEth,
}

/// The responder of one connection.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) epsn: Psn,
    pub(crate) msn: Psn,
    pub(crate) reply: Option<Reply>,
    pub(crate) since_ack: u8,
    pub(crate) rnr: RnrTimer,
    /// A NAK was sent. Later packets are not refused again until the refused PSN arrives.
    pub(crate) refused: bool,
    pub(crate) incoming: Option<Incoming>,
    /// Responses to send in order, before `reply`.
    pub(crate) answers: VecDeque<Answer>,
    /// The last atomic operations and their original values. If a response is lost, the request is repeated
    /// and must not be executed twice (IBA 9.4.5). The length is the limit of concurrent requests; a
    /// requester within that limit never repeats an older one.
    kept: VecDeque<(Atomic, u64)>,
    /// Deadline of the next packet of the incoming message, if it holds a shared receive.
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
            answers: VecDeque::new(),
            kept: VecDeque::new(),
            goes_on_by: None,
        }
    }

    /// Advances past the packet just executed. Returns true if an acknowledge is owed, `requested` or not.
    #[inline(always)]
    pub(crate) fn pass(&mut self, requested: bool) -> bool {
        self.epsn = self.epsn.add(1);
        self.refused = false;
        self.since_ack = self.since_ack.saturating_add(1);
        let stale = matches!(self.reply, Some(Reply::Nak(..)));
        let owed = requested || self.since_ack >= ACK_EVERY || stale;
        if owed {
            self.reply = Some(Reply::Ack);
        }
        owed
    }

    /// Keeps the result of an atomic operation, and at most `depth` results in total.
    pub(crate) fn keep(&mut self, atomic: Atomic, was: u64, depth: usize) {
        while self.kept.len() >= depth.max(1) {
            self.kept.pop_front();
        }
        self.kept.push_back((atomic, was));
    }

    /// The result of an atomic operation that was executed, if it is still kept.
    pub(crate) fn kept(&self, atomic: &Atomic) -> Option<u64> {
        self.kept.iter().rev().find(|(done, _)| done == atomic).map(|(_, was)| *was)
    }

    /// Stops the responder on a connection error. It still sends the refusal that caused the error and
    /// replies owed before it.
    pub(crate) fn fall_silent(&mut self) {
        if !matches!(self.reply, Some(Reply::Nak(_, Syndrome::Nak(_)))) {
            self.answers.clear();
            self.reply = None;
        }
        self.goes_on_by = None;
    }

    /// Takes the receive that a message has partly filled.
    pub(crate) fn take_receive(&mut self) -> Option<u16> {
        match self.incoming.take() {
            Some(Incoming::Send { counter, .. }) => Some(counter),
            _ => None,
        }
    }
}
