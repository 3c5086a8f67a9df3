//! Echoes: gateways that do not believe each other detect with them that they join the same two networks.
//!
//! A forwarding gateway answers each probe of another gateway with an echo on the other side. An echo of a
//! nonce that was sent on one side and arrives on the other can only come from a station on both networks.
//! The format has no key and does not depend on the version of the hellos, so gateways with different keys or
//! versions understand it.
//!
//! ```text
//!  0 magic "IPGE"   4 zero   8 nonce   16 GUID   24 instance   32 priority   33 zero
//! ```

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ib_wire::Guid;
use ipoib::net::probe::Nonce;

use super::message::{Identity, Side};

const MAGIC: [u8; 4] = *b"IPGE";
/// Length of an echo, bytes.
pub(super) const ECHO_LEN: usize = 40;
/// Length of the period of [`EchoBudget`].
const PERIOD: Duration = Duration::from_millis(100);
/// Maximum number of echoes on one side in a period.
const PER_PERIOD: usize = 64;

/// One echo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Echo {
    /// The nonce of the probe that it answers.
    pub(super) nonce: Nonce,
    /// The gateway that heard the probe and forwards.
    pub(super) from: Identity,
    /// The priority of that gateway.
    pub(super) priority: u8,
}

impl Echo {
    /// Parses an echo; further bytes are padding. `None` if the bytes are no echo.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<ECHO_LEN>()?;
        let be64 = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes);
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let from = Identity { guid: Guid(be64(16)?), instance: be64(24)? };
        Some(Self { nonce: Nonce(be64(8)?), from, priority: bytes[32] })
    }

    /// Encodes the echo.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ECHO_LEN);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.nonce.0.to_be_bytes());
        bytes.extend_from_slice(&self.from.guid.0.to_be_bytes());
        bytes.extend_from_slice(&self.from.instance.to_be_bytes());
        bytes.push(self.priority);
        bytes.resize(ECHO_LEN, 0);
        bytes
    }
}

/// A separate bound on echoes for each side: a flood of probes on one side does not prevent answers to the
/// other side's. Each probe has one echo in a period, so copies of a probe do not exhaust the bound.
#[derive(Debug)]
pub(super) struct EchoBudget {
    until: Instant,
    answered: [ArrayVec<Nonce, PER_PERIOD>; 2],
}

impl EchoBudget {
    pub(super) const fn new(now: Instant) -> Self {
        Self { until: now, answered: [ArrayVec::new_const(), ArrayVec::new_const()] }
    }

    /// True if a probe that arrived on this side should be answered.
    pub(super) fn take(&mut self, now: Instant, side: Side, nonce: Nonce) -> bool {
        if now >= self.until {
            self.until = now + PERIOD;
            self.answered.iter_mut().for_each(ArrayVec::clear);
        }
        let answered = &mut self.answered[side as usize];
        !answered.contains(&nonce) && answered.try_push(nonce).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_is_read_as_it_was_written_and_nothing_else_is_one() {
        let from = Identity { guid: Guid(7), instance: 9 };
        let echo = Echo { nonce: Nonce(5), from, priority: 200 };
        let mut bytes = echo.to_bytes();
        for end in 0..ECHO_LEN {
            assert_eq!(Echo::parse(&bytes[..end]), None);
        }
        // An Ethernet frame may be padded.
        bytes.extend_from_slice(&[0; 20]);
        assert_eq!(Echo::parse(&bytes), Some(echo));
        bytes[3] ^= 1;
        assert_eq!(Echo::parse(&bytes), None);
    }

    #[test]
    fn a_flood_on_one_side_leaves_the_other_side_its_echoes() {
        let now = Instant::now();
        let mut budget = EchoBudget::new(now);
        let taken = |budget: &mut EchoBudget, now, side| {
            (0..1000).filter(|n| budget.take(now, side, Nonce(*n))).count()
        };
        assert_eq!(taken(&mut budget, now, Side::Ethernet), PER_PERIOD);
        assert_eq!(taken(&mut budget, now, Side::InfiniBand), PER_PERIOD);
        assert_eq!(taken(&mut budget, now + PERIOD, Side::Ethernet), PER_PERIOD);
    }

    #[test]
    fn copies_of_a_probe_have_one_echo_and_leave_others_theirs() {
        let now = Instant::now();
        let mut budget = EchoBudget::new(now);
        let copies = (0..1000).filter(|_| budget.take(now, Side::Ethernet, Nonce(7))).count();
        assert_eq!(copies, 1);
        assert!(budget.take(now, Side::Ethernet, Nonce(8)));
        assert!(budget.take(now + PERIOD, Side::Ethernet, Nonce(7)), "a new period");
    }
}
