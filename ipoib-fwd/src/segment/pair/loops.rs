//! Loops through foreign equipment that joins the same two networks as this gateway.
//!
//! A probe is a small IPv4 broadcast such as any plain bridge or relay forwards. No gateway of ours forwards
//! one. So a probe that was sent on one side and arrives on the other took a foreign path, and each broadcast
//! that we forward would return on it for ever. A signed hello of our own on the other side proves the same.
//! Without a key any station that hears a hello can forge that, so it is only a reason to probe. A gateway
//! that detects a loop forwards nothing until probes have stayed away for the hold time. Each further loop
//! doubles that time. Several copies of a hello on its own side show a loop within that network, which is
//! only reported.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ipoib::net::probe::Nonce;

use super::message::Side;

/// Number of probes that are remembered: both sides', for longer than a packet lives in a network of bridges.
const REMEMBERED: usize = 64;
/// How long a forwarder waits between two probes of a side.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between two probes of a side if the reason for them can be forged by any station.
const GAP: Duration = Duration::from_millis(100);
/// First hold time; the shortest time without probes after which the loop counts as gone.
const HOLD: Duration = Duration::from_secs(10);
/// Longest hold time.
const LONGEST_HOLD: Duration = Duration::from_secs(300);
/// After this long without a loop the next one counts as the first.
const FORGIVEN: Duration = Duration::from_secs(900);
/// Number of copies of one hello on its own side that a reflection, as on the ports of some switches, does
/// not explain.
const COPIES: u32 = 3;

/// How a loop was detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// A probe of ours on the other side.
    Probe,
    /// A hello of ours on the other side.
    Hello,
    /// Hellos of another segment of this gateway on both sides.
    Sibling,
}

/// State for loop detection and the length of blocks.
#[derive(Debug)]
pub(super) struct Loops {
    /// Stations that hear nonces of one side must not be able to guess those of the other side.
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

    /// Draws a new probe for a side.
    pub(super) fn draw(&mut self, side: Side) -> Nonce {
        self.drawn += 1;
        let nonce = Nonce(self.secret.hash_one(self.drawn));
        if self.sent.is_full() {
            self.sent.remove(0);
        }
        self.sent.push((nonce, side));
        nonce
    }

    /// True if probes are due. The next ones are due after `period`, or after a second.
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

    /// Probes soon because of a sign of a loop. Any station can forge the sign, so the rate of these probes
    /// is limited.
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

    /// Counts a hello of our own that came back on its own side. True if that is one copy too many: that side
    /// has a loop of its own.
    pub(super) const fn is_multiplied(&mut self, sequence: u64) -> bool {
        if self.copies.0 != sequence {
            self.copies = (sequence, 0);
        }
        self.copies.1 += 1;
        self.copies.1 == COPIES
    }

    /// Records a loop. Returns the hold time if the loop is new.
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

    /// Until when forwarding is blocked.
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
        assert!(!loops.is_multiplied(49), "reported once per hello");
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
