//! Pending ARP requests across the gateway: the hosts that wait for an answer.
//!
//! A request of one side becomes a request on the other, with the gateway's own link-layer address as the
//! sender's. The answer goes back to all hosts that sent a request for the address in the meantime.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Maximum number of hosts that wait for one address.
const REQUESTERS: usize = 16;
/// Maximum number of addresses with waiting hosts.
const TARGETS: usize = 1024;
/// How long a requester waits: ARP implementations repeat a request every second.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The requesters of one side, by the address that they request. `A` is the link-layer address of a
/// requester.
#[derive(Debug)]
pub(super) struct Requesters<A> {
    waiting: HashMap<IpAddr, Target<A>>,
    /// The addresses, in the order of their first request, the oldest first.
    order: BTreeSet<(Instant, IpAddr)>,
}

/// The requesters of one address.
#[derive(Debug)]
struct Target<A> {
    /// Time of the first request.
    born: Instant,
    requesters: Vec<Requester<A>>,
}

/// One requester.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester<A> {
    pub(super) hardware: A,
    pub(super) ip: IpAddr,
    /// Time of its request.
    pub(super) since: Instant,
}

impl<A> Requester<A> {
    /// True if the host only checks whether the address is taken (RFC 5227).
    pub(super) fn probes(&self) -> bool {
        self.ip.is_unspecified()
    }
}

impl<A> Default for Requesters<A> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), order: BTreeSet::new() }
    }
}

impl<A: Copy + Eq> Requesters<A> {
    /// Records a requester. If there are too many addresses, evicts the one with the oldest request and
    /// returns it: a host that is present answers soon.
    pub(super) fn add(&mut self, now: Instant, target: IpAddr, hardware: A, ip: IpAddr) -> Option<IpAddr> {
        let full = self.waiting.len() >= TARGETS && !self.waiting.contains_key(&target);
        let gone = self.order.first().filter(|_| full).map(|(_, gone)| *gone);
        if let Some(gone) = gone {
            self.take(gone);
        }
        let waiting = self.waiting.entry(target).or_insert(Target { born: now, requesters: Vec::new() });
        self.order.insert((waiting.born, target));
        let requesters = &mut waiting.requesters;
        if let Some(again) = requesters.iter().position(|a| a.hardware == hardware && a.ip == ip) {
            requesters.remove(again);
        } else if requesters.len() >= REQUESTERS {
            requesters.remove(0);
        }
        requesters.push(Requester { hardware, ip, since: now });
        gone
    }

    /// All requesters of `target`.
    pub(super) fn of(&self, target: IpAddr) -> Vec<Requester<A>> {
        self.waiting.get(&target).map_or_else(Vec::new, |waiting| waiting.requesters.clone())
    }

    /// Removes and returns all requesters of `target`.
    pub(super) fn take(&mut self, target: IpAddr) -> Vec<Requester<A>> {
        let Some(taken) = self.waiting.remove(&target) else { return Vec::new() };
        self.order.remove(&(taken.born, target));
        taken.requesters
    }

    /// Removes and returns the requesters of `target` that have no address of their own (RFC 5227 2.1.1):
    /// they check whether it is taken and need no path to it.
    pub(super) fn take_probers(&mut self, target: IpAddr) -> Vec<Requester<A>> {
        let Some(waiting) = self.waiting.get_mut(&target) else { return Vec::new() };
        let probers = waiting.requesters.extract_if(.., |a| a.ip.is_unspecified()).collect();
        if waiting.requesters.is_empty() {
            self.take(target);
        }
        probers
    }

    /// True if few addresses have waiting hosts.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < TARGETS / 2
    }

    /// Number of addresses with waiting hosts.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.waiting.len(), self.order.len());
        self.waiting.len()
    }

    /// True if any host waits for `target`.
    pub(super) fn is_requested(&self, target: IpAddr) -> bool {
        self.waiting.contains_key(&target)
    }

    /// Removes requesters that have waited for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.waiting.retain(|target, waiting| {
            waiting.requesters.retain(|a| now.duration_since(a.since) <= PATIENCE);
            let waits = !waiting.requesters.is_empty();
            if !waits {
                self.order.remove(&(waiting.born, *target));
            }
            waits
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requesters_are_bounded_answered_once_and_forgotten() {
        let mut requesters = Requesters::<u8>::default();
        let (now, target) = (Instant::now(), IpAddr::from([10, 0, 0, 1]));
        for hardware in 0..20 {
            assert_eq!(requesters.add(now, target, hardware, target), None);
        }
        requesters.add(now, target, 5, target);
        let waiting: Vec<_> = requesters.take(target).iter().map(|a| a.hardware).collect();
        assert_eq!(
            waiting,
            [4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 5],
            "the last ones, each once"
        );
        assert!(requesters.take(target).is_empty());
        requesters.add(now, target, 1, target);
        requesters.add(now, target, 2, IpAddr::from([0, 0, 0, 0]));
        assert_eq!(requesters.take_probers(target).iter().map(|a| a.hardware).collect::<Vec<_>>(), [2]);
        assert!(requesters.is_requested(target));
        requesters.expire(now + PATIENCE * 2);
        assert!(requesters.take(target).is_empty() && requesters.order.is_empty());
        let other = |n: u32| IpAddr::from(n.to_be_bytes());
        for n in 0..2000u32 {
            let at = now + Duration::from_millis(n.into());
            let gone = n.checked_sub(TARGETS as u32).map(other);
            assert_eq!(requesters.add(at, other(n), 1, target), gone, "the oldest makes room");
            // A repeated request does not change the age.
            requesters.add(at, other(n.saturating_sub(1000)), 1, target);
        }
        assert_eq!((requesters.waiting.len(), requesters.order.len()), (TARGETS, TARGETS));
    }
}
