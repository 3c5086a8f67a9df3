//! A bound on the broadcast and multicast packets that a worker sends, so that no packet multiplies before a
//! loop is detected.
//!
//! A packet that was forwarded and arrives again from another station, on either side, was returned by
//! another gateway or bridge: it passes once. All workers share the table of these packets, since copies may
//! arrive at different workers. The same station may repeat a packet, up to a bound of each worker.
//!
//! Workers have no clock: the control lcore counts periods.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;

/// Length of a period.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Maximum number of copies of one packet in a period. A station that exceeds it is part of a loop, or its
/// packets may be lost without harm.
pub const COPIES: u8 = 8;
/// Maximum number of broadcasts of a segment in a period.
pub const BROADCASTS: u32 = 2000;
/// Periods for which the station of a packet is remembered.
const REMEMBERED: u32 = 10;
/// Segments that a gateway can have.
const SEGMENTS: usize = crate::forward::MAX_SEGMENTS;
/// Packets that are distinguished. They fit a worker's cache.
const SLOTS: usize = 256;
/// Packets whose station is remembered.
const ORIGINS: usize = 4096;
/// Bytes of a packet behind its IPv4 header that are compared: ports, length, checksum.
const PAYLOAD: usize = 16;
/// Bits of an entry of [`SharedStorm::origins`]: the packet's hash, its station, the period in which it came
/// last.
const ORIGIN_BITS: u32 = 20;
const PERIOD_BITS: u32 = 12;

/// State that the guards of all workers share: the period, and the stations of broadcast and multicast
/// packets.
#[derive(Debug)]
pub struct SharedStorm {
    period: AtomicU32,
    hash: FixedState,
    origins: Box<[AtomicU64]>,
}

impl Default for SharedStorm {
    fn default() -> Self {
        let hash = FixedState::with_seed(RandomState::new().hash_one(0));
        let origins = std::iter::repeat_with(AtomicU64::default).take(ORIGINS).collect();
        // The first period has no remembered stations: an entry that was never written has the maximum age.
        Self { period: AtomicU32::new(REMEMBERED + 1), hash, origins }
    }
}

impl SharedStorm {
    /// The number of the present period.
    pub fn period(&self) -> u32 {
        self.period.load(Ordering::Relaxed)
    }

    /// Starts the next period.
    pub fn begin_period(&self) {
        self.period.fetch_add(1, Ordering::Relaxed);
    }

    /// True if a packet came from another station before; otherwise its station is recorded. Two workers that
    /// receive copies at the same moment may both pass theirs.
    fn came_from_another(&self, period: u32, segment: u32, fields: [&[u8]; 3], origin: u64) -> bool {
        let hash = self.hash.hash_one((segment, fields));
        let Some(entry) = self.origins.get(hash as usize % ORIGINS) else { return false };
        let name = hash >> (ORIGIN_BITS + PERIOD_BITS) << (ORIGIN_BITS + PERIOD_BITS);
        let origin = self.hash.hash_one(origin) >> (64 - ORIGIN_BITS) << PERIOD_BITS;
        let now = u64::from(period) & ((1 << PERIOD_BITS) - 1);
        let known = entry.load(Ordering::Relaxed);
        let age = now.wrapping_sub(known) & ((1 << PERIOD_BITS) - 1);
        let is_known = known >> (ORIGIN_BITS + PERIOD_BITS) == name >> (ORIGIN_BITS + PERIOD_BITS)
            && age <= u64::from(REMEMBERED);
        if is_known && known & (((1 << ORIGIN_BITS) - 1) << PERIOD_BITS) != origin {
            return true;
        }
        entry.store(name | origin | now, Ordering::Relaxed);
        false
    }
}

/// Counts of this period.
#[derive(Debug)]
pub struct StormGuard {
    hash: FixedState,
    period: u32,
    /// By segment.
    broadcasts: Box<[u32; SEGMENTS]>,
    slots: Box<[(u32, u8)]>,
}

impl StormGuard {
    /// Makes a guard with no counts. `seed` is drawn at start: the network must not know which packets have
    /// the same hash.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let slots = vec![(0, 0); SLOTS].into_boxed_slice();
        Self { hash: FixedState::with_seed(seed), period: 0, broadcasts: Box::new([0; SEGMENTS]), slots }
    }

    /// True if a broadcast or multicast packet may be forwarded now. `packet` is its IPv4 packet, or the
    /// first bytes of it. `origin` is the station that sent it, different on the two sides. Packets of
    /// different `segment`s are different packets. Only broadcasts have a bound for a whole segment:
    /// multicast groups are joined deliberately.
    pub fn admits(
        &mut self,
        shared: &SharedStorm,
        segment: u32,
        packet: &[u8],
        broadcast: bool,
        origin: u64,
    ) -> bool {
        let period = shared.period();
        if self.period != period {
            self.period = period;
            self.broadcasts.fill(0);
            self.slots.fill((0, 0));
        }
        if broadcast && let Some(count) = self.broadcasts.get_mut(segment as usize % SEGMENTS) {
            *count = count.saturating_add(1);
            if *count > BROADCASTS {
                return false;
            }
        }
        // Fields that a router changes are not compared: time to live, header checksum.
        let field = |at: usize, to: usize| packet.get(at..to.min(packet.len())).unwrap_or_default();
        let fields = [field(2, 8), field(9, 10), field(12, 20 + PAYLOAD)];
        if shared.came_from_another(period, segment, fields, origin) {
            return false;
        }
        let hash = self.hash.hash_one((segment, fields));
        let Some(slot) = self.slots.get_mut(hash as usize % SLOTS) else { return true };
        let name = (hash >> 32) as u32;
        if slot.0 != name {
            *slot = (name, 0);
        }
        slot.1 = slot.1.saturating_add(1);
        slot.1 <= COPIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipoib::net::probe::{Nonce, probe_packet};

    /// The shared state in a period.
    fn at(period: u32) -> SharedStorm {
        SharedStorm { period: AtomicU32::new(period), ..SharedStorm::default() }
    }

    #[test]
    fn copies_of_one_packet_are_bounded_in_each_period_and_others_are_not_touched() {
        let mut guard = StormGuard::new(7);
        let mut packet = probe_packet(Nonce(1));
        let copies = |guard: &mut StormGuard, period, packet: &[u8]| {
            (0..100).filter(|_| guard.admits(&at(period), 0, packet, true, 1)).count()
        };
        assert_eq!(copies(&mut guard, 1, &packet), usize::from(COPIES));
        // A router's copy is the same packet.
        packet[8] -= 1;
        assert_eq!(copies(&mut guard, 1, &packet), 0);
        assert!(guard.admits(&at(1), 0, &probe_packet(Nonce(2)), true, 1));
        assert!(guard.admits(&at(1), 1, &packet, true, 1), "another segment");
        assert_eq!(copies(&mut guard, 2, &packet), usize::from(COPIES), "a new period");
    }

    #[test]
    fn a_packet_that_comes_again_from_another_station_passes_once_for_a_second_whichever_worker_takes_it() {
        let (shared, mut guards) = (SharedStorm::default(), [StormGuard::new(7), StormGuard::new(8)]);
        let packet = probe_packet(Nonce(1));
        assert!(guards[0].admits(&shared, 0, &packet, true, 1));
        for _ in 0..=REMEMBERED {
            for guard in &mut guards {
                assert!((2..10).all(|other| !guard.admits(&shared, 0, &packet, true, other)));
            }
            shared.begin_period();
        }
        assert!(guards[1].admits(&shared, 0, &packet, true, 2), "much later");
        assert!(guards[0].admits(&shared, 0, &packet, true, 2), "its sender repeats it");
        assert!(guards[0].admits(&shared, 1, &packet, true, 3), "another segment");
        assert!(guards[0].admits(&shared, 0, &probe_packet(Nonce(2)), true, 3), "another packet");
    }

    #[test]
    fn broadcasts_are_bounded_all_together_and_groups_are_not() {
        let mut guard = StormGuard::new(7);
        let shared = at(1);
        let different = |guard: &mut StormGuard, broadcast| {
            (0..10_000).filter(|n| guard.admits(&shared, 0, &probe_packet(Nonce(*n)), broadcast, 1)).count()
        };
        assert_eq!(different(&mut guard, true), BROADCASTS as usize);
        assert_eq!(different(&mut guard, false), 10_000);
    }

    #[test]
    fn a_packet_of_any_length_is_taken() {
        let mut guard = StormGuard::new(7);
        for n in 0..=48 {
            assert!(guard.admits(&at(n), 0, &probe_packet(Nonce(1))[..n as usize], true, 1));
        }
    }
}
