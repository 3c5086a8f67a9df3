//! Neighbor cache: MAC addresses of peers by GID. An entry is resolved on demand and revalidated while in
//! use.

use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ib_wire::Gid;

use super::MacAddress;

/// Interval between repeated requests (RFC 4861: RETRANS_TIMER).
const RETRANSMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Requests before the peer counts as unreachable (RFC 4861: MAX_UNICAST_SOLICIT).
const MAX_REQUESTS: u8 = 3;
/// Lifetime of a reply (RFC 4861: REACHABLE_TIME).
const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// Time for which an unreachable peer is not retried.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// Capacity of the cache. On a larger network the least recently used entry is evicted.
const MAX_NEIGHBOURS: usize = 1024;
/// Interval between two scans of the cache.
const SCAN_INTERVAL: Duration = Duration::from_millis(20);

/// State of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A request is outstanding; nothing can be sent yet.
    Incomplete { requests: u8, again: Instant },
    /// The peer has replied.
    Reachable { mac: MacAddress, check: Instant },
    /// The peer has replied before, is in use, and is being revalidated.
    Probing { mac: MacAddress, requests: u8, again: Instant },
    /// The peer does not reply.
    Failed { until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    /// Our GID that sends the requests.
    ours: Gid,
    used: Instant,
    state: State,
}

/// Result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolution {
    /// Send to this address.
    Known(MacAddress),
    /// Wait for a reply.
    Wait,
    /// Give up.
    Unreachable,
}

/// A request to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    /// Source address.
    pub(crate) ours: Gid,
    /// The GID to resolve.
    pub(crate) target: Gid,
    /// The last known MAC address; the request is multicast if there is none.
    pub(crate) mac: Option<MacAddress>,
}

/// The neighbor cache.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    list: HashMap<Gid, Neighbour, RandomState>,
    next_look: Option<Instant>,
    now: Option<Instant>,
    questions: Vec<Question>,
    /// An entry changed that a datagram may wait for.
    news: bool,
}

impl Neighbours {
    /// Looks up the MAC address of a GID. The first lookup sends a request.
    pub(crate) fn resolve(&mut self, ours: Gid, gid: Gid) -> Resolution {
        let Some(now) = self.now else { return Resolution::Wait };
        let Some(n) = self.list.get_mut(&gid) else {
            self.make_room();
            let state = State::Incomplete { requests: 1, again: now + RETRANSMIT_INTERVAL };
            self.list.insert(gid, Neighbour { ours, used: now, state });
            self.questions.push(Question { ours, target: gid, mac: None });
            return Resolution::Wait;
        };
        (n.ours, n.used) = (ours, now);
        match n.state {
            State::Incomplete { .. } => Resolution::Wait,
            State::Reachable { mac, check } if now >= check => {
                n.state = State::Probing { mac, requests: 1, again: now + RETRANSMIT_INTERVAL };
                self.questions.push(Question { ours, target: gid, mac: Some(mac) });
                Resolution::Known(mac)
            }
            State::Reachable { mac, .. } | State::Probing { mac, .. } => Resolution::Known(mac),
            State::Failed { until } if now < until => Resolution::Unreachable,
            State::Failed { .. } => {
                n.state = State::Incomplete { requests: 1, again: now + RETRANSMIT_INTERVAL };
                self.questions.push(Question { ours, target: gid, mac: None });
                Resolution::Wait
            }
        }
    }

    /// Handles an address that a peer has announced. An unknown peer is added only if it sent us a request
    /// (`remember`), because we will reply to it.
    pub(crate) fn handle_address(&mut self, gid: Gid, mac: MacAddress, remember: bool) {
        let Some(now) = self.now else { return };
        // A multicast address is not the address of a host.
        if mac[0] & 1 == 1 || mac == [0; 6] {
            return;
        }
        let state = State::Reachable { mac, check: now + REACHABLE_TIME };
        match self.list.get_mut(&gid) {
            Some(n) => {
                n.state = state;
                self.news = true;
            }
            None if remember => {
                self.make_room();
                self.list.insert(gid, Neighbour { ours: Gid::ZERO, used: now, state });
            }
            None => {}
        }
    }

    fn make_room(&mut self) {
        if self.list.len() < MAX_NEIGHBOURS {
            return;
        }
        if let Some((&oldest, _)) = self.list.iter().min_by_key(|(_, n)| n.used) {
            self.list.remove(&oldest);
            // Datagrams that wait for this entry must look it up again.
            self.news = true;
        }
    }

    /// Advances time to `now`.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.now = Some(now);
        if self.next_look.is_some_and(|at| now < at) {
            return;
        }
        self.next_look = Some(now + SCAN_INTERVAL);
        for (gid, n) in &mut self.list {
            let (requests, again, mac) = match n.state {
                State::Incomplete { requests, again } => (requests, again, None),
                State::Probing { mac, requests, again } => (requests, again, Some(mac)),
                State::Reachable { .. } | State::Failed { .. } => continue,
            };
            if now < again {
                continue;
            }
            n.state = match mac {
                _ if requests >= MAX_REQUESTS => State::Failed { until: now + RETRY_AFTER },
                None => State::Incomplete { requests: requests + 1, again: now + RETRANSMIT_INTERVAL },
                Some(mac) => State::Probing { mac, requests: requests + 1, again: now + RETRANSMIT_INTERVAL },
            };
            self.news |= requests >= MAX_REQUESTS;
            if requests < MAX_REQUESTS {
                // The last of several requests is multicast: the peer may have a new NIC.
                let mac = mac.filter(|_| requests + 1 < MAX_REQUESTS);
                self.questions.push(Question { ours: n.ours, target: *gid, mac });
            }
        }
    }

    /// True if the result of a lookup may have changed since the last call.
    pub(crate) const fn take_news(&mut self) -> bool {
        std::mem::replace(&mut self.news, false)
    }

    /// When to call [`Neighbours::handle_timeout`] next.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.next_look
    }

    /// The next request to send.
    pub(crate) fn poll_transmit(&mut self) -> Option<Question> {
        self.questions.pop()
    }
}
