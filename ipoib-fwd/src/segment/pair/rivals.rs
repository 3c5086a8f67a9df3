//! Rivals: gateways that are not believed and have proved by echoes on both sides that they forward between
//! the same two networks.
//!
//! A station on one network only can send echoes on its own side, and change or repeat those that it hears
//! there. It cannot make the same identity and priority arrive on the other side, so it makes no rival. A
//! station on both networks can, as it can feign a loop.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

use super::message::{Identity, Side};
use super::peers::{Rank, rank};

/// Maximum number of rivals that are known at a time. The one with the least [worth](Rival::worth) is evicted
/// first; of equals, the one with the longest silence.
const KNOWN: usize = 32;
/// For how long an echo counts. Probes are sent at least once a second, so three may be lost.
pub(super) const PROOF: Duration = Duration::from_millis(3500);

#[derive(Debug)]
struct Rival {
    who: Identity,
    priority: u8,
    /// When its echoes came, by side.
    heard: [Option<Instant>; 2],
}

impl Rival {
    /// Until when it has a proof from both sides.
    fn proven_until(&self) -> Option<Instant> {
        let [a, b] = self.heard;
        Some(a?.min(b?) + PROOF)
    }

    /// Its worth when a rival heard on `side` needs room: any host there can make up the identities of rivals
    /// that are heard on this side alone.
    fn worth(&self, side: Side) -> u8 {
        match (self.heard[side as usize], self.heard[side.other() as usize]) {
            (_, None) => 0,
            (None, Some(_)) => 1,
            (Some(_), Some(_)) => 2,
        }
    }

    fn last(&self) -> Option<Instant> {
        self.heard.iter().flatten().max().copied()
    }
}

/// The senders of echoes of our probes.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    list: ArrayVec<Rival, KNOWN>,
}

impl Rivals {
    /// Handles an echo of a probe of ours on the side on which that probe was not sent.
    pub(super) fn hear(&mut self, now: Instant, side: Side, who: Identity, priority: u8) {
        self.list.retain(|rival| rival.last().is_some_and(|at| now < at + PROOF));
        let place = self.list.iter().position(|rival| (rival.who, rival.priority) == (who, priority));
        let place = place.unwrap_or_else(|| {
            if self.list.is_full() {
                let order = |(_, rival): &(usize, &Rival)| (rival.worth(side), rival.last());
                let least = self.list.iter().enumerate().min_by_key(order);
                if let Some(least) = least.map(|(place, _)| place) {
                    self.list.remove(least);
                }
            }
            self.list.push(Rival { who, priority, heard: [None; 2] });
            self.list.len() - 1
        });
        if let Some(rival) = self.list.get_mut(place) {
            rival.heard[side as usize] = Some(now);
        }
    }

    /// Forgets the rivals for which `is_none` returns true: they are believed by now.
    pub(super) fn forget(&mut self, is_none: impl Fn(Identity) -> bool) {
        self.list.retain(|rival| !is_none(rival.who));
    }

    /// The rivals with a valid proof, by rank, the best first.
    pub(super) fn proven(&self, now: Instant) -> Vec<(Rank, Identity)> {
        let proven = self.list.iter().filter(|rival| rival.proven_until().is_some_and(|until| now < until));
        let mut proven: Vec<_> = proven.map(|rival| (rank(rival.priority, rival.who), rival.who)).collect();
        proven.sort_unstable();
        proven
    }

    /// True if an echo of a probe of ours has been heard recently.
    pub(super) fn is_near(&self, now: Instant) -> bool {
        self.list.iter().any(|rival| rival.last().is_some_and(|at| now < at + PROOF))
    }

    /// When the next proof expires.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.list.iter().filter_map(Rival::proven_until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::Guid;

    fn gateway(n: u64) -> Identity {
        Identity { guid: Guid(n), instance: n }
    }

    #[test]
    fn only_equal_echoes_on_both_sides_are_a_proof_and_it_expires() {
        let (mut rivals, now) = (Rivals::default(), Instant::now());
        for n in 0..100 {
            rivals.hear(now, Side::Ethernet, gateway(1), 100);
            rivals.hear(now, Side::InfiniBand, gateway(2), 100);
            rivals.hear(now, Side::InfiniBand, gateway(1), 100 + (n % 50) + 1);
        }
        assert!(rivals.proven(now).is_empty() && rivals.is_near(now));
        rivals.hear(now, Side::InfiniBand, gateway(1), 100);
        assert_eq!(rivals.proven(now), [(rank(100, gateway(1)), gateway(1))]);
        rivals.hear(now + PROOF / 2, Side::InfiniBand, gateway(1), 100);
        assert_eq!(rivals.poll_timeout(), Some(now + PROOF));
        assert!(rivals.proven(now + PROOF).is_empty(), "one side is silent");
        assert!(!rivals.is_near(now + PROOF * 2));
    }

    #[test]
    fn many_identities_on_one_side_evict_no_rival_heard_on_the_other() {
        for side in Side::BOTH {
            let (mut rivals, now) = (Rivals::default(), Instant::now());
            rivals.hear(now, side.other(), gateway(1), 100);
            (0..1000).for_each(|n| rivals.hear(now, side, gateway(10 + n), 255));
            rivals.hear(now, side, gateway(1), 100);
            assert_eq!(rivals.proven(now), [(rank(100, gateway(1)), gateway(1))], "{side:?}");
        }
    }

    #[test]
    fn many_identities_on_one_side_evict_no_rival_heard_again_on_both() {
        let (mut rivals, mut now) = (Rivals::default(), Instant::now());
        for n in 0..1000 {
            rivals.hear(now, Side::Ethernet, gateway(10 + n), 255);
            if n % 10 == 0 {
                Side::BOTH.into_iter().for_each(|side| rivals.hear(now, side, gateway(1), 100));
                assert_eq!(rivals.proven(now).len(), 1);
            }
            now += Duration::from_millis(10);
        }
        assert!(rivals.list.len() <= KNOWN);
    }
}
