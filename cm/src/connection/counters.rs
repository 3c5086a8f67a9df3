//! Counters of a connection table.

use ib_wire::cm::{AttributeId, RejectReason};

/// Number of separate counters for REJ reasons: codes 0 to 33; all others share the last.
const REASONS: usize = 35;
/// Number of separate counters for message types: attributes 0x10 to 0x1a; all others share the last.
const MESSAGES: usize = 12;

/// Reason why a datagram was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Dropped {
    /// Not a CM message: class, version, method or attribute.
    Malformed,
    /// Names no local connection.
    UnknownConnection,
    /// A duplicate that needs no response.
    Duplicate,
    /// Not allowed in the connection's state.
    State,
    /// A DREQ for a queue pair other than the connection's.
    WrongQp,
    /// The table or the event queue is full.
    NoRoom,
    /// A REQ from a port that has used up its share of the table.
    OverShare,
    /// Not sent because the transmit queue is full.
    TransmitFull,
}

impl Dropped {
    /// All reasons in counter order.
    pub const ALL: [Self; 8] = [
        Self::Malformed,
        Self::UnknownConnection,
        Self::Duplicate,
        Self::State,
        Self::WrongQp,
        Self::NoRoom,
        Self::OverShare,
        Self::TransmitFull,
    ];
}

/// Counters of a table. They are never reset.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    received: [u64; MESSAGES],
    sent: [u64; MESSAGES],
    retransmitted: [u64; MESSAGES],
    rejects_received: [u64; REASONS_LOW],
    rejects_received_high: [u64; REASONS - REASONS_LOW],
    rejects_sent: [u64; REASONS_LOW],
    rejects_sent_high: [u64; REASONS - REASONS_LOW],
    dropped: [u64; Dropped::ALL.len()],
}

/// Arrays of more than 32 elements do not implement `Default`.
const REASONS_LOW: usize = 32;

fn message_index(a: AttributeId) -> usize {
    usize::from(a.code()).checked_sub(0x10).map_or(MESSAGES - 1, |i| i.min(MESSAGES - 1))
}

fn reason_index(r: RejectReason) -> usize {
    usize::from(r.code()).min(REASONS - 1)
}

fn bump(counters: &mut [u64], at: usize) {
    if let Some(c) = counters.get_mut(at) {
        *c = c.wrapping_add(1);
    }
}

fn bump_reason(low: &mut [u64], high: &mut [u64], reason: RejectReason) {
    let at = reason_index(reason);
    match at.checked_sub(REASONS_LOW) {
        Some(i) => bump(high, i),
        None => bump(low, at),
    }
}

fn read_reason(low: &[u64], high: &[u64], reason: RejectReason) -> u64 {
    let at = reason_index(reason);
    let found = match at.checked_sub(REASONS_LOW) {
        Some(i) => high.get(i),
        None => low.get(at),
    };
    found.copied().unwrap_or(0)
}

impl Counters {
    /// Number of received messages of a type. Unknown types share one counter.
    #[must_use]
    pub fn received(&self, message: AttributeId) -> u64 {
        self.received.get(message_index(message)).copied().unwrap_or(0)
    }

    /// Number of sent messages of a type, including retransmissions.
    #[must_use]
    pub fn sent(&self, message: AttributeId) -> u64 {
        self.sent.get(message_index(message)).copied().unwrap_or(0)
    }

    /// Number of retransmitted messages of a type.
    #[must_use]
    pub fn retransmitted(&self, message: AttributeId) -> u64 {
        self.retransmitted.get(message_index(message)).copied().unwrap_or(0)
    }

    /// Number of received REJ messages for a reason. Unknown reasons share one counter.
    #[must_use]
    pub fn rejects_received(&self, reason: RejectReason) -> u64 {
        read_reason(&self.rejects_received, &self.rejects_received_high, reason)
    }

    /// Number of sent REJ messages for a reason.
    #[must_use]
    pub fn rejects_sent(&self, reason: RejectReason) -> u64 {
        read_reason(&self.rejects_sent, &self.rejects_sent_high, reason)
    }

    /// Number of dropped datagrams.
    #[must_use]
    pub fn dropped(&self, why: Dropped) -> u64 {
        self.dropped.get(why as usize).copied().unwrap_or(0)
    }

    pub(super) fn count_received(&mut self, message: AttributeId) {
        bump(&mut self.received, message_index(message));
    }

    pub(super) fn count_sent(&mut self, message: AttributeId) {
        bump(&mut self.sent, message_index(message));
    }

    pub(super) fn count_retransmitted(&mut self, message: AttributeId) {
        bump(&mut self.retransmitted, message_index(message));
    }

    pub(super) fn count_reject_received(&mut self, reason: RejectReason) {
        bump_reason(&mut self.rejects_received, &mut self.rejects_received_high, reason);
    }

    pub(super) fn count_reject_sent(&mut self, reason: RejectReason) {
        bump_reason(&mut self.rejects_sent, &mut self.rejects_sent_high, reason);
    }

    pub(super) fn count_dropped(&mut self, why: Dropped) {
        bump(&mut self.dropped, why as usize);
    }
}
