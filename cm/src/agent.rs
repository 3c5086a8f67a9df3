//! Transactions with another node's agent: a request is sent again until its response comes or the tries are used up
//! (IBA 13.4.6.3).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadHeader, MgmtClass};
use ib_wire::{Lid, Tid};

use crate::random::Random;
use crate::timers::Timers;

/// Names an outstanding request: the lower half of its transaction id. The upper half belongs to the kernel, which
/// replaces it on the way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(u32);

/// How long to wait and how often to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempts {
    /// Time for one answer.
    pub timeout: Duration,
    /// Datagrams sent at most, the first included; 0 counts as 1.
    pub tries: u8,
}

/// What became of a datagram that was handed to [`Agent::handle_mad`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handled {
    /// It answers this request, which is no longer outstanding.
    Response(RequestId),
    /// It is a request or a report of somebody else.
    Unsolicited,
    /// It answers nothing that is outstanding: late, repeated, or not meant for us.
    Stray,
    /// The responder is busy; the request will be sent again.
    Busy,
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AgentError {
    /// As many requests outstanding as allowed.
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

/// The requests that a port has outstanding.
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
    /// An agent with no request outstanding. Transaction ids begin where `seed` says.
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

    /// Sends a request under a new transaction id.
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

    /// Looks whether a datagram answers a request.
    pub fn handle_mad(&mut self, mad: &Mad) -> Handled {
        let header = mad.header();
        if !header.method.is_response() {
            return Handled::Unsolicited;
        }
        let id = RequestId(header.tid.0 as u32);
        let Some(t) = self.outstanding.get(&id) else { return Handled::Stray };
        let asked = MadHeader::of(&t.mad.bytes);
        if t.class != header.class
            || t.lid != mad.peer.lid
            || asked.method.response() != Some(header.method)
            || asked.attribute != header.attribute
        {
            return Handled::Stray;
        }
        if header.status.is_busy() {
            return Handled::Busy;
        }
        self.cancel(id);
        Handled::Response(id)
    }

    /// Forgets a request; its answer, if it comes, is stray.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(mut t) = self.outstanding.remove(&id) {
            self.timers.set(id, &mut t.deadline, None);
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.transmit.pop_front()
    }

    /// The next request that nobody answered.
    pub fn poll_expired(&mut self) -> Option<RequestId> {
        self.expired.pop_front()
    }

    /// When [`Agent::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Sends again what is due, or gives it up.
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

    /// Requests outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }
}

#[cfg(test)]
mod tests;
