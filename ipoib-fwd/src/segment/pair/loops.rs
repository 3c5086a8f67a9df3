//! Loops that others make: something foreign that joins the same two networks beside us.
//!
//! A probe is a small IPv4 broadcast such as any plain bridge or relay carries. No gateway of ours forwards one. So a probe
//! that was sent on one side and arrives on the other came by a foreign way, and each broadcast that we forward would come back by it
//! for ever. The same is said by a hello of our own on the other side, or by several copies of one on its own side. The answer
//! is to forward nothing until probes have stayed away for the hold time. Each further loop doubles that.

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ipoib::net::checksum;

use super::message::Side;

/// The UDP port of probes, both ends: discard (RFC 863), so that nobody answers.
pub const PROBE_PORT: u16 = 9;
/// Bytes of a probe's IPv4 packet.
pub const PROBE_LEN: usize = 48;

const PAYLOAD: usize = 28;
const MAGIC: [u8; 8] = *b"IPGWprob";
/// Probes that are waited for: both sides', for longer than a packet lives in a network of bridges.
const REMEMBERED: usize = 16;
/// How long a forwarder waits between two probes of a side.
const PERIOD: Duration = Duration::from_secs(1);
/// First hold time; the shortest time without probes after which the loop counts as gone.
const HOLD: Duration = Duration::from_secs(10);
/// Longest hold time.
const LONGEST_HOLD: Duration = Duration::from_secs(300);
/// After this long without a loop the next one counts as the first.
const FORGIVEN: Duration = Duration::from_secs(900);
/// Copies of one hello on its own side which a reflection, as some switches' ports make it, does not explain.
const COPIES: u32 = 3;

/// A number that only who heard the probe knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(pub u64);

/// The IPv4 packet of a probe: UDP from nobody to everybody, as DHCP's first packet is, so that what relays the one relays the other.
#[must_use]
pub fn probe_packet(nonce: Nonce) -> [u8; PROBE_LEN] {
    let mut p = [0; PROBE_LEN];
    p[..10].copy_from_slice(&[0x45, 0xc0, 0, PROBE_LEN as u8, 0, 0, 0, 0, 64, 17]);
    p[4..6].copy_from_slice(&(nonce.0 as u16).to_be_bytes());
    p[16..20].copy_from_slice(&Ipv4Addr::BROADCAST.octets());
    let sum = checksum::checksum(&p[..20]);
    p[10..12].copy_from_slice(&sum.to_be_bytes());
    p[20..22].copy_from_slice(&PROBE_PORT.to_be_bytes());
    p[22..24].copy_from_slice(&PROBE_PORT.to_be_bytes());
    // No UDP checksum: zero says so (RFC 768).
    p[24..26].copy_from_slice(&((PROBE_LEN - 20) as u16).to_be_bytes());
    p[PAYLOAD..PAYLOAD + 8].copy_from_slice(&MAGIC);
    p[PAYLOAD + 8..PAYLOAD + 16].copy_from_slice(&nonce.0.to_be_bytes());
    p
}

/// The nonce of an IPv4 packet that is a probe, ours or another gateway's: no gateway forwards it. Options are not in probes, and
/// whoever relays one may have written its own source and time to live.
#[must_use]
pub fn probe_nonce(packet: &[u8]) -> Option<Nonce> {
    let p = packet.first_chunk::<{ PAYLOAD + 16 }>()?;
    let is_probe = p[0] == 0x45
        && p[9] == 17
        && p[22..24] == PROBE_PORT.to_be_bytes()
        && p[PAYLOAD..PAYLOAD + 8] == MAGIC;
    if !is_probe {
        return None;
    }
    p.last_chunk().map(|nonce| Nonce(u64::from_be_bytes(*nonce)))
}

/// How a loop was noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// A probe of ours on the other side.
    Probe,
    /// A hello of ours on the other side.
    Hello,
    /// More copies of a hello of ours on its own side than a reflection explains.
    Copies,
}

/// What is remembered to notice loops, and for how long one blocks.
#[derive(Debug)]
pub(super) struct Loops {
    /// Nobody who hears nonces must be able to guess those of the other side.
    secret: RandomState,
    drawn: u64,
    sent: ArrayVec<(Nonce, Side), REMEMBERED>,
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
            self.next_probe = now + period.unwrap_or(PERIOD);
        }
        due
    }

    pub(super) const fn probe_now(&mut self, now: Instant) {
        self.next_probe = now;
    }

    pub(super) const fn next_probe(&self) -> Instant {
        self.next_probe
    }

    /// A probe arrived. True if it is ours and says that there is a loop.
    pub(super) fn probe_arrived(&self, side: Side, nonce: Nonce) -> bool {
        self.sent.iter().any(|(sent, on)| *sent == nonce && *on != side)
    }

    /// A hello of our own came back, sent on one side and arrived on a side.
    pub(super) fn own_arrived(&mut self, sequence: u64, sent: Side, arrived: Side) -> Option<Sign> {
        if sent != arrived {
            return Some(Sign::Hello);
        }
        if self.copies.0 != sequence {
            self.copies = (sequence, 0);
        }
        self.copies.1 += 1;
        (self.copies.1 >= COPIES).then_some(Sign::Copies)
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
    use ipoib::net::ipv4::Ipv4View;

    #[test]
    fn a_probe_is_a_packet_that_everybody_takes_for_one_and_only_its_like_is_recognised() {
        let packet = probe_packet(Nonce(0x0123_4567_89ab_cdef));
        let view =
            Ipv4View::parse(&packet, packet.len()).map(|v| (v.destination(), v.protocol(), v.payload_len()));
        assert_eq!(view, Ok((Ipv4Addr::BROADCAST, 17, PROBE_LEN - 20)));
        assert_eq!(probe_nonce(&packet), Some(Nonce(0x0123_4567_89ab_cdef)));
        for end in 0..PAYLOAD + 16 {
            assert_eq!(probe_nonce(&packet[..end]), None);
        }
        for at in [0, 9, 22, 23, 28, 35] {
            let mut other = packet;
            other[at] ^= 1;
            assert_eq!(probe_nonce(&other), None, "byte {at}");
        }
    }

    #[test]
    fn only_our_own_probe_on_the_other_side_is_a_loop() {
        let mut loops = Loops::new(Instant::now());
        let nonce = loops.draw(Side::Ethernet);
        assert!(!loops.probe_arrived(Side::Ethernet, nonce));
        assert!(loops.probe_arrived(Side::InfiniBand, nonce));
        assert!(!loops.probe_arrived(Side::InfiniBand, Nonce(nonce.0 ^ 1)));
        for _ in 0..REMEMBERED {
            loops.draw(Side::InfiniBand);
        }
        assert!(!loops.probe_arrived(Side::InfiniBand, nonce), "bounded");
    }

    #[test]
    fn one_copy_of_a_hello_is_a_reflection_and_many_are_a_loop() {
        let mut loops = Loops::new(Instant::now());
        for sequence in 1..50 {
            assert_eq!(loops.own_arrived(sequence, Side::Ethernet, Side::Ethernet), None);
        }
        assert_eq!(loops.own_arrived(49, Side::Ethernet, Side::Ethernet), None);
        assert_eq!(loops.own_arrived(49, Side::Ethernet, Side::Ethernet), Some(Sign::Copies));
        assert_eq!(loops.own_arrived(50, Side::Ethernet, Side::InfiniBand), Some(Sign::Hello));
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
