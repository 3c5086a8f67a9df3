//! Loops that others make: something foreign that joins the same two networks beside us.
//!
//! A probe is a small IPv4 broadcast such as any plain bridge or relay carries. No gateway of ours forwards one. So a probe
//! that was sent on one side and arrives on the other came by a foreign way, and each broadcast that we forward would come back by it
//! for ever. The same is said by a signed hello of our own on the other side; without a key anybody who hears one can forge that, so
//! it is only a reason to probe. The answer is to forward nothing until probes have stayed away for
//! the hold time. Each further loop doubles that. Several copies of a hello on its own side tell of a loop within that network, which
//! is only told.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ipoib::net::probe::Nonce;

use super::message::Side;

/// Probes that are waited for: both sides', for longer than a packet lives in a network of bridges.
const REMEMBERED: usize = 64;
/// How long a forwarder waits between two probes of a side.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between two probes of a side for which something that anybody can send is the reason.
const GAP: Duration = Duration::from_millis(100);
/// First hold time; the shortest time without probes after which the loop counts as gone.
const HOLD: Duration = Duration::from_secs(10);
/// Longest hold time.
const LONGEST_HOLD: Duration = Duration::from_secs(300);
/// After this long without a loop the next one counts as the first.
const FORGIVEN: Duration = Duration::from_secs(900);
/// Copies of one hello on its own side which a reflection, as some switches' ports make it, does not explain.
const COPIES: u32 = 3;

/// How a loop was noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// A probe of ours on the other side.
    Probe,
    /// A hello of ours on the other side.
    Hello,
    /// Hellos of another segment of this gateway on both sides.
    Sibling,
}

/// What is remembered to notice loops, and for how long one blocks.
#[derive(Debug)]
pub(super) struct Loops {
    /// Nobody who hears nonces must be able to guess those of the other side.
    secret: RandomState,
    drawn: u64,
    sent: ArrayVec<(Nonce, Side), REMEMBERED>,
    last_probe: Option<Instant>,
    next_probe: Instant,
    /// The last hello of ours that came back, and how often.
    copies: (u64, u32),
    held_until: Option<Instant>,
    last: Option<Instant>,
    level: u32,
}

impl Loops {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            secret: RandomState::new(),
            drawn: 0,
            sent: ArrayVec::new(),
            last_probe: None,
            next_probe: now,
            copies: (0, 0),
            held_until: None,
            last: None,
            level: 0,
        }
    }

    /// A new probe for a side.
    pub(super) fn draw(&mut self, side: Side) -> Nonce {
        self.drawn += 1;
        let nonce = Nonce(self.secret.hash_one(self.drawn));
        if self.sent.is_full() {
            self.sent.remove(0);
        }
        self.sent.push((nonce, side));
        nonce
    }

    /// True if probes are due; then they are due again after `period`, or after a second.
    pub(super) fn is_due(&mut self, now: Instant, period: Option<Duration>) -> bool {
        let due = now >= self.next_probe;
        if due {
            self.last_probe = Some(now);
            self.next_probe = now + period.unwrap_or(PERIOD).min(PERIOD);
        }
        due
    }

    pub(super) const fn probe_now(&mut self, now: Instant) {
        self.next_probe = now;
    }

    /// Probes soon: something looks like a loop. Anybody can make it look so, thus not at once each time.
    pub(super) fn probe_soon(&mut self, now: Instant) {
        let soon = self.last_probe.map_or(now, |last| last + GAP);
        self.next_probe = self.next_probe.min(soon.max(now));
    }

    pub(super) const fn last_probe(&self) -> Option<Instant> {
        self.last_probe
    }

    pub(super) const fn next_probe(&self) -> Instant {
        self.next_probe
    }

    /// True for a nonce that we sent on the other side than this one.
    pub(super) fn is_of_other_side(&self, side: Side, nonce: Nonce) -> bool {
        self.sent.iter().any(|(sent, on)| *sent == nonce && *on != side)
    }

    /// True for a nonce that we sent.
    pub(super) fn is_own(&self, nonce: Nonce) -> bool {
        self.sent.iter().any(|(sent, _)| *sent == nonce)
    }

    /// A hello of our own came back on its own side. True if that is one copy too many: that side has a loop of its own.
    pub(super) const fn is_multiplied(&mut self, sequence: u64) -> bool {
        if self.copies.0 != sequence {
            self.copies = (sequence, 0);
        }
        self.copies.1 += 1;
        self.copies.1 == COPIES
    }

    /// There is a loop. Answers the hold time if that is news.
    pub(super) fn block(&mut self, now: Instant) -> Option<Duration> {
        let quiet = self.last.replace(now).map(|last| now.saturating_duration_since(last));
        if let Some(until) = self.held_until.filter(|until| *until > now) {
            self.held_until = Some(until.max(now + HOLD));
            return None;
        }
        self.level = if quiet.is_none_or(|quiet| quiet > FORGIVEN) { 0 } else { self.level + 1 };
        let hold = HOLD.saturating_mul(1 << self.level.min(8)).min(LONGEST_HOLD);
        self.held_until = Some(now + hold);
        Some(hold)
    }

    /// Until when nothing is to be forwarded.
    pub(super) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.held_until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_probe_on_the_other_side_is_a_loop() {
        let mut loops = Loops::new(Instant::now());
        let nonce = loops.draw(Side::Ethernet);
        assert!(!loops.is_of_other_side(Side::Ethernet, nonce));
        assert!(loops.is_of_other_side(Side::InfiniBand, nonce));
        assert!(!loops.is_of_other_side(Side::InfiniBand, Nonce(nonce.0 ^ 1)));
        for _ in 0..REMEMBERED {
            loops.draw(Side::InfiniBand);
        }
        assert!(!loops.is_of_other_side(Side::InfiniBand, nonce), "bounded");
    }

    #[test]
    fn one_copy_of_a_hello_is_a_reflection_and_many_are_a_loop_of_that_side() {
        let mut loops = Loops::new(Instant::now());
        assert!((1..50).all(|sequence| !loops.is_multiplied(sequence)));
        assert!(!loops.is_multiplied(49));
        assert!(loops.is_multiplied(49));
        assert!(!loops.is_multiplied(49), "told once a hello");
    }

    #[test]
    fn the_hold_time_doubles_up_to_its_end_and_a_long_quiet_forgives() {
        let mut now = Instant::now();
        let mut loops = Loops::new(now);
        let mut holds = Vec::new();
        for _ in 0..8 {
            let hold = loops.block(now).unwrap_or_default();
            assert_eq!(loops.block(now + hold / 2), None, "still held");
            holds.push(hold.as_secs());
            now += hold * 2;
        }
        assert_eq!(holds, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(loops.held_until(now), None);
        assert_eq!(loops.block(now + FORGIVEN * 2), Some(HOLD));
    }
}
