//! A bound on what one worker sends to groups, whatever comes: so that nothing multiplies before a loop is noticed.
//!
//! A packet that was forwarded and comes again from another station, on either side, was carried round by another gateway or bridge: it
//! passes once. The same station may repeat a packet, up to a bound.
//!
//! The worker has no clock: the control lcore counts periods.

use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::FixedState;

/// Length of a period.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Most copies of one packet in a period. Who repeats itself more often than that is a loop, or sends what may be lost.
pub const COPIES: u8 = 8;
/// Most broadcasts of a segment in a period.
pub const BROADCASTS: u32 = 2000;
/// Periods for which it is remembered from where a packet came.
const REMEMBERED: u32 = 10;
/// Segments that a gateway can have.
const SEGMENTS: usize = crate::forward::MAX_SEGMENTS;
/// Packets that are told apart. A worker's cache keeps them.
const SLOTS: usize = 1024;
/// Bytes of a packet behind its IPv4 header that count: ports, length, checksum.
const PAYLOAD: usize = 16;

/// The last packet of a slot.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    /// Of the packet; the segment is part of it.
    name: u32,
    /// Of the station from which it came first.
    origin: u32,
    /// When it came last.
    period: u32,
    /// How often it came in that period.
    copies: u8,
}

/// Counts of this period.
#[derive(Debug)]
pub struct StormGuard {
    hash: FixedState,
    period: u32,
    /// By segment.
    broadcasts: Box<[u32; SEGMENTS]>,
    slots: Box<[Slot]>,
}

impl StormGuard {
    /// Nothing counted yet; `seed` is drawn at start: the network must not know which packets are taken for one another.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let slots = vec![Slot::default(); SLOTS].into_boxed_slice();
        Self { hash: FixedState::with_seed(seed), period: 0, broadcasts: Box::new([0; SEGMENTS]), slots }
    }

    /// True if a packet to a group or to all may be forwarded in this period. `packet` is its IPv4 packet, or the first bytes of it, `origin`
    /// the station that sent it, different on the two sides. `segment` tells apart what different segments forward. Only broadcasts have a
    /// bound for all of a segment together: groups are joined and wanted.
    pub fn admits(&mut self, period: u32, segment: u32, packet: &[u8], broadcast: bool, origin: u64) -> bool {
        if self.period != period {
            self.period = period;
            self.broadcasts.fill(0);
        }
        if broadcast && let Some(count) = self.broadcasts.get_mut(segment as usize % SEGMENTS) {
            *count = count.saturating_add(1);
            if *count > BROADCASTS {
                return false;
            }
        }
        // What a router on the way changes does not count: time to live, header checksum.
        let field = |at: usize, to: usize| packet.get(at..to.min(packet.len())).unwrap_or_default();
        let hash = self.hash.hash_one((segment, field(2, 8), field(9, 10), field(12, 20 + PAYLOAD)));
        let origin = (self.hash.hash_one(origin) >> 32) as u32;
        let Some(slot) = self.slots.get_mut(hash as usize % SLOTS) else { return true };
        let name = (hash >> 32) as u32;
        let is_known = slot.name == name && period.wrapping_sub(slot.period) <= REMEMBERED;
        if !is_known {
            *slot = Slot { name, origin, period, copies: 0 };
        } else if slot.origin != origin {
            return false;
        } else if slot.period != period {
            (slot.period, slot.copies) = (period, 0);
        }
        slot.copies = slot.copies.saturating_add(1);
        slot.copies <= COPIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipoib::net::probe::{Nonce, probe_packet};

    #[test]
    fn copies_of_one_packet_are_bounded_in_each_period_and_others_are_not_touched() {
        let mut guard = StormGuard::new(7);
        let mut packet = probe_packet(Nonce(1));
        let copies = |guard: &mut StormGuard, period, packet: &[u8]| {
            (0..100).filter(|_| guard.admits(period, 0, packet, true, 1)).count()
        };
        assert_eq!(copies(&mut guard, 1, &packet), usize::from(COPIES));
        // A router's copy is the same packet.
        packet[8] -= 1;
        assert_eq!(copies(&mut guard, 1, &packet), 0);
        assert!(guard.admits(1, 0, &probe_packet(Nonce(2)), true, 1));
        assert!(guard.admits(1, 1, &packet, true, 1), "another segment");
        assert_eq!(copies(&mut guard, 2, &packet), usize::from(COPIES), "a new period");
    }

    #[test]
    fn a_packet_that_comes_again_from_another_station_passes_once_for_a_second() {
        let mut guard = StormGuard::new(7);
        let packet = probe_packet(Nonce(1));
        assert!(guard.admits(5, 0, &packet, true, 1));
        for period in 5..=5 + REMEMBERED {
            for other in 2..10 {
                assert!(!guard.admits(period, 0, &packet, true, other), "{period}");
            }
        }
        assert!(guard.admits(6, 0, &packet, true, 1), "its sender repeats it");
        assert!(guard.admits(6, 1, &packet, true, 2), "another segment");
        assert!(guard.admits(6, 0, &probe_packet(Nonce(2)), true, 2), "another packet");
        assert!(guard.admits(7 + REMEMBERED, 0, &packet, true, 2), "much later");
    }

    #[test]
    fn broadcasts_are_bounded_all_together_and_groups_are_not() {
        let mut guard = StormGuard::new(7);
        let different = |guard: &mut StormGuard, broadcast| {
            (0..10_000).filter(|n| guard.admits(1, 0, &probe_packet(Nonce(*n)), broadcast, 1)).count()
        };
        assert_eq!(different(&mut guard, true), BROADCASTS as usize);
        assert_eq!(different(&mut guard, false), 10_000);
    }

    #[test]
    fn a_packet_of_any_length_is_taken() {
        let mut guard = StormGuard::new(7);
        for n in 0..=48 {
            assert!(guard.admits(n, 0, &probe_packet(Nonce(1))[..n as usize], true, 1));
        }
    }
}
