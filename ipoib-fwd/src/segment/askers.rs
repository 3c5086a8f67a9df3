//! Who asked for what: ARP across the gateway.
//!
//! A request of one side becomes a request on the other, with the gateway's own link-layer address in the sender's place.
//! The answer goes back to everybody who asked in the meantime.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Who may wait for one address.
const ASKERS: usize = 16;
/// Addresses that are waited for.
const TARGETS: usize = 1024;
/// How long an asker waits: ARP implementations ask again each second.
const PATIENCE: Duration = Duration::from_secs(2);

/// The askers of one side, by the address that they ask for. `A` is an asker's link-layer address.
#[derive(Debug)]
pub(super) struct Askers<A> {
    waiting: HashMap<IpAddr, Vec<Asker<A>>>,
}

/// One asker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<A> {
    pub(super) hardware: A,
    pub(super) ip: IpAddr,
    since: Instant,
}

impl<A> Default for Askers<A> {
    fn default() -> Self {
        Self { waiting: HashMap::new() }
    }
}

impl<A: Copy + Eq> Askers<A> {
    /// Notes an asker; false if there is no room.
    pub(super) fn add(&mut self, now: Instant, target: IpAddr, hardware: A, ip: IpAddr) -> bool {
        if self.waiting.len() >= TARGETS && !self.waiting.contains_key(&target) {
            return false;
        }
        let askers = self.waiting.entry(target).or_default();
        if let Some(known) = askers.iter_mut().find(|a| a.hardware == hardware && a.ip == ip) {
            known.since = now;
        } else if askers.len() < ASKERS {
            askers.push(Asker { hardware, ip, since: now });
        } else {
            return false;
        }
        true
    }

    /// Takes everybody who asked for `target`.
    pub(super) fn take(&mut self, target: IpAddr) -> Vec<Asker<A>> {
        self.waiting.remove(&target).unwrap_or_default()
    }

    /// Takes those who asked for `target` without an address of their own (RFC 5227 2.1.1): they want to know whether
    /// it is taken, not the way to it.
    pub(super) fn take_probers(&mut self, target: IpAddr) -> Vec<Asker<A>> {
        let Some(askers) = self.waiting.get_mut(&target) else { return Vec::new() };
        let probers = askers.extract_if(.., |a| a.ip.is_unspecified()).collect();
        if askers.is_empty() {
            self.waiting.remove(&target);
        }
        probers
    }

    /// True if few addresses are waited for.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < TARGETS / 2
    }

    /// True if anybody asks for `target`.
    pub(super) fn is_asked(&self, target: IpAddr) -> bool {
        self.waiting.contains_key(&target)
    }

    /// Forgets those who have waited for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.waiting.retain(|_, askers| {
            askers.retain(|a| now.duration_since(a.since) <= PATIENCE);
            !askers.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn askers_are_bounded_answered_once_and_forgotten() {
        let mut askers = Askers::<u8>::default();
        let (now, target) = (Instant::now(), IpAddr::from([10, 0, 0, 1]));
        for hardware in 0..20 {
            assert_eq!(askers.add(now, target, hardware, target), usize::from(hardware) < ASKERS);
        }
        assert!(askers.add(now, target, 3, target), "asking again is no second asker");
        assert_eq!(askers.take(target).len(), ASKERS);
        assert!(askers.take(target).is_empty());
        askers.add(now, target, 1, target);
        askers.add(now, target, 2, IpAddr::from([0, 0, 0, 0]));
        assert_eq!(askers.take_probers(target).iter().map(|a| a.hardware).collect::<Vec<_>>(), [2]);
        assert!(askers.is_asked(target));
        askers.expire(now + PATIENCE * 2);
        assert!(askers.take(target).is_empty());
        for n in 0..2000u32 {
            askers.add(now, IpAddr::from(n.to_be_bytes()), 1, target);
        }
        assert_eq!(askers.waiting.len(), TARGETS);
    }
}
