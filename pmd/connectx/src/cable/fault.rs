//! A seeded fault injector for one direction of a cable: loss, duplication, reordering, corruption, delay.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Faults to inject on a cable, independently in each direction. All off by default.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet is duplicated.
    pub duplicate: f64,
    /// Probability that one to four later packets overtake a packet.
    pub reorder: f64,
    /// Probability that one bit of a packet is flipped.
    pub corrupt: f64,
    /// Additional delay of each packet.
    pub delay: Duration,
    /// Seed of the random numbers: the same seed and the same packets give the same faults.
    pub seed: u64,
}

impl Faults {
    /// True if no faults are enabled.
    #[must_use]
    pub fn is_off(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }
}

/// Counters of the injected faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounters {
    /// Packets lost.
    pub lost: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets overtaken by later ones.
    pub reordered: u64,
    /// Packets with one flipped bit.
    pub corrupted: u64,
    /// Packets dropped because the injector's queue was full.
    pub overflowed: u64,
}

impl FaultCounters {
    /// Names and values, for reports.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let Self { lost, duplicated, reordered, corrupted, overflowed } = *self;
        [
            ("lost", lost),
            ("duplicated", duplicated),
            ("reordered", reordered),
            ("corrupted", corrupted),
            ("overflowed", overflowed),
        ]
        .into_iter()
    }
}

/// Capacity of the queue of held packets.
const MAX_HELD: usize = 4096;
/// A packet waits for others to overtake it for at most this time.
const MAX_OVERTAKING: Duration = Duration::from_millis(2);

#[derive(Debug)]
struct Held {
    /// Earliest time of release.
    due: Instant,
    /// Later packets that must still pass.
    overtake: u8,
    bytes: Box<[u8]>,
}

/// The injector of one direction.
#[derive(Debug)]
pub(super) struct Injector {
    faults: Faults,
    dice: u64,
    now: Option<Instant>,
    held: VecDeque<Held>,
    pub(super) counters: FaultCounters,
}

impl Injector {
    /// Creates an injector; `direction` gives the two directions of a cable different random numbers.
    pub(super) const fn new(faults: Faults, direction: u64) -> Self {
        let dice = faults.seed ^ direction.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let counters = FaultCounters { lost: 0, duplicated: 0, reordered: 0, corrupted: 0, overflowed: 0 };
        Self { faults, dice, now: None, held: VecDeque::new(), counters }
    }

    /// Splitmix64.
    const fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.roll() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Advances time: packets due by `now` may leave.
    pub(super) const fn set_now(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// True if another packet can be accepted.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() < MAX_HELD
    }

    /// Discards all held packets and returns how many there were.
    pub(super) fn clear(&mut self) -> u64 {
        let n = self.held.len() as u64;
        self.held.clear();
        n
    }

    /// Accepts a packet and applies random faults to it.
    pub(super) fn put(&mut self, packet: &[u8]) {
        if self.chance(self.faults.loss) {
            self.counters.lost += 1;
            return;
        }
        let overtake = if self.chance(self.faults.reorder) { 1 + (self.roll() & 3) as u8 } else { 0 };
        let twice = self.chance(self.faults.duplicate);
        let corrupt = self.chance(self.faults.corrupt);
        let mut bytes: Box<[u8]> = packet.into();
        if corrupt && !bytes.is_empty() {
            let bit = (self.roll() % (8 * bytes.len() as u64)) as usize;
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            self.counters.corrupted += 1;
        }
        for earlier in &mut self.held {
            earlier.overtake = earlier.overtake.saturating_sub(1);
        }
        self.counters.reordered += u64::from(overtake > 0);
        self.counters.duplicated += u64::from(twice);
        let due = self.now.unwrap_or_else(Instant::now) + self.faults.delay;
        if twice {
            self.hold(Held { due, overtake: 0, bytes: bytes.clone() });
        }
        self.hold(Held { due, overtake, bytes });
    }

    fn hold(&mut self, held: Held) {
        if self.held.len() < MAX_HELD {
            self.held.push_back(held);
        } else {
            self.counters.overflowed += 1;
        }
    }

    fn is_ready(&self, held: &Held) -> bool {
        let Some(now) = self.now else { return held.overtake == 0 && self.faults.delay.is_zero() };
        held.due <= now && (held.overtake == 0 || held.due + MAX_OVERTAKING <= now)
    }

    /// When the next packet may leave if no other arrives.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = |held: &Held| held.due + if held.overtake == 0 { Duration::ZERO } else { MAX_OVERTAKING };
        self.held.iter().map(due).min()
    }

    /// Passes the next packet that may leave to `take`, and keeps it in its position if that returns false.
    pub(super) fn next(&mut self, take: impl FnOnce(&[u8]) -> bool) -> bool {
        let Some(at) = self.held.iter().position(|held| self.is_ready(held)) else { return false };
        let taken = self.held.get(at).is_some_and(|held| take(&held.bytes));
        if taken {
            self.held.remove(at);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(faults: Faults, packets: u8) -> (Vec<Vec<u8>>, FaultCounters) {
        let start = Instant::now();
        let mut injector = Injector::new(faults, 1);
        let mut out = Vec::new();
        injector.set_now(start);
        let mut drain = |injector: &mut Injector| {
            while injector.next(|p| {
                out.push(p.to_vec());
                true
            }) {}
        };
        for i in 0..packets {
            injector.put(&[i; 32]);
            drain(&mut injector);
        }
        injector.set_now(start + Duration::from_secs(2));
        drain(&mut injector);
        (out, injector.counters)
    }

    #[test]
    fn nothing_is_lost_or_changed_by_reordering() {
        let (mut out, counters) = run(Faults { reorder: 0.3, seed: 5, ..Faults::default() }, 200);
        assert!(counters.reordered > 20, "{counters:?}");
        assert!(!out.is_sorted());
        out.sort();
        assert_eq!(out, (0..200u8).map(|i| vec![i; 32]).collect::<Vec<_>>());
    }

    #[test]
    fn each_fault_is_counted_as_it_shows() {
        let (out, counters) =
            run(Faults { loss: 0.25, duplicate: 0.25, corrupt: 0.25, seed: 9, ..Faults::default() }, 250);
        assert_eq!(out.len() as u64, 250 - counters.lost + counters.duplicated);
        assert!(counters.lost > 30 && counters.duplicated > 30 && counters.corrupted > 30, "{counters:?}");
        let odd = out.iter().filter(|p| p.windows(2).any(|w| w[0] != w[1])).count() as u64;
        assert!(odd >= counters.corrupted && odd <= 2 * counters.corrupted);
    }

    #[test]
    fn same_seed_same_faults() {
        let faults =
            Faults { loss: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, seed: 77, ..Faults::default() };
        assert_eq!(run(faults, 250), run(faults, 250));
        assert_ne!(run(faults, 250), run(Faults { seed: 78, ..faults }, 250));
    }

    #[test]
    fn delay_holds_until_due() {
        let start = Instant::now();
        let mut injector = Injector::new(Faults { delay: Duration::from_millis(5), ..Faults::default() }, 0);
        injector.set_now(start);
        injector.put(&[1]);
        injector.set_now(start + Duration::from_millis(4));
        assert!(!injector.next(|_| true));
        injector.set_now(start + Duration::from_millis(5));
        assert!(!injector.next(|_| false), "refused: stays");
        assert!(injector.next(|p| p == [1]));
        assert!(!injector.next(|_| true));
    }
}
