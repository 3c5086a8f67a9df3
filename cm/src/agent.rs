//! MAD transactions: retransmits a request until its response arrives or all tries are used up (IBA
//! 13.4.6.3).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadHeader, MgmtClass};
use ib_wire::{Lid, Tid};

use crate::random::Random;
use crate::timers::Timers;

/// Identifies an outstanding request: the lower half of its transaction ID. The kernel replaces the upper
/// half in transit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(u32);

/// Timeout and maximum number of transmissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempts {
    /// Time limit of one response.
    pub timeout: Duration,
    /// Maximum number of datagrams sent, including the first; 0 counts as 1.
    pub tries: u8,
}

/// Result of [`Agent::handle_mad`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handled {
    /// The response to this request, which is no longer outstanding.
    Response(RequestId),
    /// A request or report from another node.
    Unsolicited,
    /// A late, repeated or foreign response that matches no outstanding request.
    Stray,
    /// The responder is busy. The request will be sent again.
    Busy,
}

/// Reason why a request was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AgentError {
    /// The maximum number of requests is outstanding.
    #[error("{0} requests are outstanding")]
    Full(usize),
}

#[derive(Debug)]
struct Transaction {
    mad: Mad,
    class: MgmtClass,
    lid: Lid,
    left: u8,
    timeout: Duration,
    deadline: Option<Instant>,
}

/// The outstanding requests of a port.
#[derive(Debug)]
pub struct Agent {
    max_outstanding: usize,
    outstanding: HashMap<RequestId, Transaction>,
    timers: Timers<RequestId>,
    transmit: VecDeque<Mad>,
    expired: VecDeque<RequestId>,
    next: u32,
    tid_high: u32,
}

impl Agent {
    /// Creates an agent without outstanding requests. `seed` determines the first transaction ID.
    #[must_use]
    pub fn new(seed: u64, max_outstanding: usize) -> Self {
        let mut random = Random::new(seed);
        Self {
            max_outstanding,
            outstanding: HashMap::new(),
            timers: Timers::new(),
            transmit: VecDeque::new(),
            expired: VecDeque::new(),
            next: random.next_u32(),
            tid_high: random.next_u32(),
        }
    }

    /// Sends a request with a new transaction ID.
    pub fn request(
        &mut self,
        now: Instant,
        mut mad: Mad,
        attempts: Attempts,
    ) -> Result<RequestId, AgentError> {
        if self.outstanding.len() >= self.max_outstanding {
            return Err(AgentError::Full(self.max_outstanding));
        }
        let id = loop {
            self.next = self.next.wrapping_add(1);
            let id = RequestId(self.next);
            if self.next != 0 && !self.outstanding.contains_key(&id) {
                break id;
            }
        };
        let mut header = mad.header();
        header.tid = Tid(u64::from(self.tid_high) << 32 | u64::from(id.0));
        header.put(&mut mad.bytes);
        self.transmit.push_back(mad.clone());
        let mut deadline = None;
        self.timers.set(id, &mut deadline, Some(now + attempts.timeout));
        self.outstanding.insert(
            id,
            Transaction {
                class: header.class,
                lid: mad.peer.lid,
                mad,
                left: attempts.tries.saturating_sub(1),
                timeout: attempts.timeout,
                deadline,
            },
        );
        Ok(id)
    }

    /// Matches a datagram with the outstanding requests.
    pub fn handle_mad(&mut self, mad: &Mad) -> Handled {
        let header = mad.header();
        if !header.method.is_response() {
            return Handled::Unsolicited;
        }
        let id = RequestId(header.tid.0 as u32);
        let Some(t) = self.outstanding.get(&id) else { return Handled::Stray };
        let request = MadHeader::of(&t.mad.bytes);
        if t.class != header.class
            || t.lid != mad.peer.lid
            || request.method.response() != Some(header.method)
            || request.attribute != header.attribute
        {
            return Handled::Stray;
        }
        if header.status.is_busy() {
            return Handled::Busy;
        }
        self.cancel(id);
        Handled::Response(id)
    }

    /// Cancels a request. A later response is stray.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(mut t) = self.outstanding.remove(&id) {
            self.timers.set(id, &mut t.deadline, None);
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.transmit.pop_front()
    }

    /// Returns the next request without a response.
    pub fn poll_expired(&mut self) -> Option<RequestId> {
        self.expired.pop_front()
    }

    /// Returns the time at which [`Agent::handle_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Retransmits requests that are due, or gives them up.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.timers.pop_due(now) {
            let Some(t) = self.outstanding.get_mut(&id) else { continue };
            t.deadline = None;
            if let Some(left) = t.left.checked_sub(1) {
                t.left = left;
                self.timers.set(id, &mut t.deadline, Some(now + t.timeout));
                self.transmit.push_back(t.mad.clone());
            } else {
                self.outstanding.remove(&id);
                self.expired.push_back(id);
            }
        }
    }

    /// Number of outstanding requests.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }
}

#[cfg(test)]
mod tests;
