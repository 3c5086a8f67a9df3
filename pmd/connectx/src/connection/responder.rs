//! What the receiving half of a connection remembers: order, the message that comes in, what it owes.

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::Psn;
use ib_wire::packet::{AtomicEth, Opcode, RnrTimer, Syndrome};

use crate::object::mr::Member;
use crate::scatter::Spot;

/// An acknowledge is sent at the latest after this many packets, asked for or not.
const ACK_EVERY: u8 = 64;

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
    /// A SEND into the receive of this counter, and how far that is filled.
    Send { counter: u16, received: u64, spot: Spot },
    /// An RDMA WRITE.
    Write { rkey: u32, address: u64, left: u64, length: u32 },
}

/// An answer that is not sent yet, or not all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Of the next packet.
    pub(crate) psn: Psn,
    pub(crate) content: Content,
    /// It was given before.
    pub(crate) again: bool,
}

/// What an answer brings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// Of an RDMA READ: the memory that it asks for, as it is when a packet goes.
    Memory {
        /// Who it may be read by.
        member: Member,
        rkey: u32,
        address: u64,
        left: u32,
        /// Its first packet has gone.
        begun: bool,
    },
    /// Of an atomic operation: what was there before.
    Value(u64),
}

/// An atomic operation that was carried out.
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
    /// A refusal went out; what comes before the refused PSN arrives again is not refused once more.
    pub(crate) refused: bool,
    pub(crate) incoming: Option<Incoming>,
    /// Answers to be given, in their order and before `reply`.
    pub(crate) answers: VecDeque<Answer>,
    /// The last atomic operations and what was there before each: one whose answer was lost comes again and must not be carried out
    /// twice (IBA 9.4.5). As many as answers may be owed at once; who asks no more than that asks for no older one again.
    kept: VecDeque<(Atomic, u64)>,
    /// By then the message that comes in goes on, if it holds a receive of a shared queue.
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

    /// The next packet has been carried out. True if an acknowledge is owed, which is asked for or not.
    #[inline(always)]
    pub(crate) fn pass(&mut self, asked: bool) -> bool {
        self.epsn = self.epsn.add(1);
        self.refused = false;
        self.since_ack = self.since_ack.saturating_add(1);
        let stale = matches!(self.reply, Some(Reply::Nak(..)));
        let owed = asked || self.since_ack >= ACK_EVERY || stale;
        if owed {
            self.reply = Some(Reply::Ack);
        }
        owed
    }

    /// Keeps the outcome of an atomic operation, and of no more than `depth` with it.
    pub(crate) fn keep(&mut self, atomic: Atomic, was: u64, depth: usize) {
        while self.kept.len() >= depth.max(1) {
            self.kept.pop_front();
        }
        self.kept.push_back((atomic, was));
    }

    /// The outcome of an atomic operation that was carried out, if it is still known.
    pub(crate) fn kept(&self, atomic: &Atomic) -> Option<u64> {
        self.kept.iter().rev().find(|(done, _)| done == atomic).map(|(_, was)| *was)
    }

    /// The connection is in error: nothing goes out any more but a refusal that has led there, and what is owed before it.
    pub(crate) fn fall_silent(&mut self) {
        if !matches!(self.reply, Some(Reply::Nak(_, Syndrome::Nak(_)))) {
            self.answers.clear();
            self.reply = None;
        }
        self.goes_on_by = None;
    }

    /// Takes the receive that a message has begun to fill.
    pub(crate) fn take_receive(&mut self) -> Option<u16> {
        match self.incoming.take() {
            Some(Incoming::Send { counter, .. }) => Some(counter),
            _ => None,
        }
    }
}
