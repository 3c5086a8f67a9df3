//! State of the requester of a connection: started messages, window, acknowledges, go-back-N, retries.

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::{Psn, TimeoutCode};

use crate::wqe::Control;
use hca::{RcToSend, WcStatus};
use prm::{AtomicSegment, ControlSegment, RemoteAddressSegment, SendOpcode, XrcSegment};

/// Most packets sent and not acknowledged.
pub(crate) const WINDOW: u32 = 512;

/// A started work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) control: Control,
    /// It names the shared receive queue that it is for.
    pub(crate) xrc: bool,
    pub(crate) first: Psn,
    /// Packets of the message; 0 for an operation within the device.
    pub(crate) packets: u32,
    pub(crate) length: u64,
    /// Reason that it cannot be executed; reported after all requests before it have completed.
    pub(crate) fault: Option<WcStatus>,
}

impl Message {
    pub(crate) const fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    /// True if there is nothing to acknowledge: the message has no packets, or has failed.
    pub(crate) const fn sends_nothing(&self) -> bool {
        self.packets == 0 || self.fault.is_some()
    }

    /// True for an RDMA READ or an atomic operation, which a response completes.
    pub(crate) fn asks(&self) -> bool {
        self.control.operation() == Some(SendOpcode::RdmaRead) || self.is_atomic()
    }

    /// True for an atomic operation.
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.control.operation(), Some(SendOpcode::CompareSwap | SendOpcode::FetchAdd))
    }

    /// Offset of the segments of its operation.
    pub(crate) const fn operation_at(&self) -> usize {
        size_of::<ControlSegment>() + if self.xrc { size_of::<XrcSegment>() } else { 0 }
    }

    /// Offset of its data segments.
    pub(crate) fn data_at(&self) -> usize {
        self.operation_at()
            + match self.control.operation() {
                Some(SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm | SendOpcode::RdmaRead) => {
                    size_of::<RemoteAddressSegment>()
                }
                Some(SendOpcode::CompareSwap | SendOpcode::FetchAdd) => {
                    size_of::<RemoteAddressSegment>() + size_of::<AtomicSegment>()
                }
                _ => 0,
            }
    }
}

/// The requester of one connection.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(crate) begun: VecDeque<Message>,
    /// Index in `begun` of the message that `next` belongs to; the length of `begun` if none.
    pub(crate) cursor: usize,
    /// PSN of the next packet to send.
    pub(crate) next: Psn,
    /// PSN behind the last one ever sent.
    pub(crate) top: Psn,
    /// Oldest PSN not acknowledged.
    pub(crate) oldest: Psn,
    pub(crate) timeout: TimeoutCode,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    pub(crate) rnr_until: Option<Instant>,
    /// Part of a response is missing and was requested again.
    pub(crate) gap: bool,
    pub(crate) ack_by: Option<Instant>,
}

impl Requester {
    /// Initializes the requester in the transition from RTR to RTS.
    pub(crate) fn start(&mut self, how: &RcToSend) {
        *self = Self {
            next: how.sq_psn,
            top: how.sq_psn,
            oldest: how.sq_psn,
            timeout: TimeoutCode::new(how.timeout),
            retry_count: how.retry_count & 7,
            rnr_retry: how.rnr_retry & 7,
            retries_left: how.retry_count & 7,
            rnr_left: how.rnr_retry & 7,
            ..Self::default()
        };
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.rnr_until, self.ack_by].into_iter().flatten().min()
    }

    pub(crate) fn window_is_full(&self) -> bool {
        self.next.since(self.oldest) >= WINDOW
    }

    /// Moves the send position to `psn`, forward or back.
    pub(crate) fn seek(&mut self, psn: Psn) {
        self.next = psn;
        self.cursor =
            self.begun.iter().position(|m| psn.since(m.first) < m.packets).unwrap_or(self.begun.len());
    }

    /// Acknowledges everything before `psn`. Returns true if this is new.
    pub(crate) fn advance(&mut self, psn: Psn, now: Instant) -> bool {
        let news = psn != self.oldest;
        self.oldest = psn;
        if news {
            self.retries_left = self.retry_count;
            self.rnr_left = self.rnr_retry;
            if !self.next.is_at_or_after(psn) {
                self.seek(psn);
            }
        }
        self.ack_by = (self.oldest != self.top).then(|| self.ack_time(now)).flatten();
        news
    }

    pub(crate) fn ack_time(&self, now: Instant) -> Option<Instant> {
        (self.timeout.code() != 0).then(|| now + self.timeout.duration())
    }

    /// The PSN awaited by the oldest request without a complete response, unless it is behind `psn`.
    pub(crate) fn answer_due(&self, psn: Psn) -> Option<Psn> {
        let awaited = self.begun.iter().find(|m| self.is_under_way(m))?;
        let due = if self.oldest.is_at_or_after(awaited.first) { self.oldest } else { awaited.first };
        psn.is_at_or_after(due).then_some(due)
    }

    /// True for a request without a complete response.
    fn is_under_way(&self, message: &Message) -> bool {
        message.asks() && message.packets > 0 && !self.oldest.is_at_or_after(message.end())
    }

    /// Number of requests without a complete response before message `index`.
    pub(crate) fn asked_before(&self, index: usize) -> usize {
        self.begun.iter().take(index).filter(|m| self.is_under_way(m)).count()
    }

    /// Takes the oldest work request if it is finished or has failed.
    pub(crate) fn settled(&mut self) -> Option<Message> {
        let front = self.begun.front()?;
        if front.fault.is_none() && !self.oldest.is_at_or_after(front.end()) {
            return None;
        }
        self.cursor = self.cursor.saturating_sub(1);
        self.begun.pop_front()
    }

    /// Takes the oldest work request in any state.
    pub(crate) fn take_begun(&mut self) -> Option<Control> {
        self.cursor = 0;
        Some(self.begun.pop_front()?.control)
    }

    /// Clears all deadlines.
    pub(crate) fn stop(&mut self) {
        self.rnr_until = None;
        self.ack_by = None;
    }
}
