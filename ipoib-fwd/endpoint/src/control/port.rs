//! What the port is, read from the device: once for all links, on its events, and now and then in case one got lost.

use std::time::Instant;

use hca::PortState;
use ib_wire::PKey;
use pmd::hca::{Backend, HcaError};

use super::{Endpoint, PORT_RETRY};
use ipoib::link::Waiting;
use ipoib::port::Facts;

/// Whether the device can never be used again.
#[derive(Debug)]
pub(super) enum Gone {
    /// It can.
    No,
    /// It cannot, and the owner does not know why.
    Untold(HcaError),
    /// It cannot, and the owner knows.
    Told,
}

impl Gone {
    fn take(&mut self) -> Option<HcaError> {
        match std::mem::replace(self, Self::Told) {
            Self::Untold(why) => Some(why),
            before => {
                *self = before;
                None
            }
        }
    }
}

/// Reads of the port's facts in a row that may fail before it counts as down: a process that is short of file descriptors or memory
/// for a moment loses no connection.
const MISSES: u32 = 5;

/// Reads of the port's facts that have failed since the last one that did not.
///
/// Reads are more frequent while a link waits for its P_Key, and with events: those that fail within [`PORT_RETRY`] of each other count
/// as one.
#[derive(Debug, Default)]
pub(super) struct Misses {
    count: u32,
    counted: Option<Instant>,
}

/// What a read comes to.
struct Read {
    facts: Facts,
    /// What there is to be warned of.
    warn: Option<&'static str>,
}

impl Misses {
    pub(super) const fn any(&self) -> bool {
        self.count > 0
    }

    /// Takes the outcome of a read. After one that failed the port is what it was before, unless too many have failed or the device is
    /// gone.
    fn take(&mut self, now: Instant, read: Result<Facts, HcaError>, before: Option<&Facts>) -> Read {
        let error = match read {
            Ok(facts) => {
                *self = Self::default();
                return Read { facts, warn: None };
            }
            Err(error) => error,
        };
        let counts = self.counted.is_none_or(|at| now.saturating_duration_since(at) >= PORT_RETRY);
        if counts {
            self.count = self.count.saturating_add(1);
            self.counted = Some(now);
        }
        let is_lost = self.count >= MISSES || matches!(error, HcaError::Gone(_));
        let warn = match self.count {
            _ if !counts => None,
            MISSES => Some("it counts as down until it can be read again"),
            1 => Some("it stays as it was, and is read again every second"),
            _ => None,
        };
        let facts = if is_lost { Facts::default() } else { before.cloned().unwrap_or_default() };
        Read { facts, warn }
    }
}

impl<B: Backend, C, N> Endpoint<B, C, N> {
    /// The device is gone: whatever its driver still says of the port, there is none.
    pub(super) fn lose_device(&mut self, now: Instant, why: HcaError) {
        if self.is_gone() {
            return;
        }
        self.gone = Gone::Untold(why);
        self.mads.clear();
        self.read_port(now);
    }

    /// True if the device is gone: its port stays down for good.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        !matches!(self.gone, Gone::No)
    }

    /// Why the device is gone, told once; then there is nothing to do but to close the endpoint.
    pub fn take_gone(&mut self) -> Option<HcaError> {
        self.gone.take()
    }

    /// What the port is now, or was when it could last be read.
    pub(super) fn facts(&mut self, now: Instant) -> Facts {
        if self.is_gone() {
            return Facts::default();
        }
        let read = self.read_facts();
        let error = read.as_ref().err().map(ToString::to_string);
        let taken = self.misses.take(now, read, self.port.facts());
        if let Some(error) = error {
            self.note_miss(taken.warn, error);
        }
        taken.facts
    }

    /// A read that failed is counted and, at the first and at the one that takes the port down, logged.
    fn note_miss(&mut self, warn: Option<&str>, error: String) {
        if let Some(what) = warn {
            let name = self.hca.device().name;
            tracing::warn!("{name} port {}: its state cannot be read ({error}): {what}", self.number.0);
        }
        self.device_errors += 1;
        self.last_device_error = Some(error);
    }

    fn read_facts(&self) -> Result<Facts, HcaError> {
        let port = self.hca.port(self.number)?;
        let pkeys: Result<Vec<PKey>, HcaError> =
            (0..port.pkey_table_len).map(|index| self.hca.pkey(self.number, index)).collect();
        Ok(Facts {
            state: port.state,
            lid: port.lid,
            lmc: port.lmc,
            gid: self.hca.gid(self.number, 0)?,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            mtu: port.active_mtu,
            grh_required: port.grh_required,
            pkeys: pkeys?,
        })
    }

    pub(super) fn read_port(&mut self, now: Instant) {
        self.port_read = now;
        let facts = self.facts(now);
        self.port.handle_port(now, facts);
    }

    /// True while a change of the port's state or of its P_Key table is what a link waits for.
    pub(super) fn waits_for_port(&self) -> bool {
        if self.is_gone() {
            return false;
        }
        let active = self.port.facts().is_some_and(|facts| facts.state == PortState::Active);
        let for_key = |waiting| matches!(waiting, Waiting::PKey | Waiting::FullMembership);
        !active || self.port.links().any(|(_, link)| link.waits_for().is_some_and(for_key))
    }
}

#[cfg(test)]
mod tests {
    use super::super::PORT_PERIOD;
    use super::*;

    fn up() -> Facts {
        Facts { state: PortState::Active, pkeys: vec![PKey::DEFAULT], ..Facts::default() }
    }

    const fn failed() -> Result<Facts, HcaError> {
        Err(HcaError::Exhausted("file descriptors"))
    }

    #[test]
    fn reads_that_fail_take_the_port_down_only_when_they_are_many() {
        let (mut misses, mut now, up) = (Misses::default(), Instant::now(), up());
        assert_eq!(misses.take(now, failed(), None).facts, Facts::default(), "nothing was ever known");
        assert_eq!(misses.take(now, Ok(up.clone()), None).facts, up);
        for _ in 0..3 {
            let mut warnings = Vec::new();
            for n in 1..MISSES {
                now += PORT_RETRY;
                let read = misses.take(now, failed(), Some(&up));
                assert_eq!((read.facts == up, misses.any()), (true, true), "{n}");
                warnings.extend(read.warn);
            }
            now += PORT_RETRY;
            let read = misses.take(now, failed(), Some(&up));
            warnings.extend(read.warn);
            assert_eq!((read.facts, warnings.len()), (Facts::default(), 2));
            now += PORT_RETRY;
            let read = misses.take(now, failed(), Some(&Facts::default()));
            assert_eq!((read.facts, read.warn), (Facts::default(), None));
            assert_eq!(misses.take(now, Ok(up.clone()), None).facts, up);
            assert!(!misses.any());
        }
        assert_eq!(misses.take(now, Err(HcaError::Gone("it".into())), Some(&up)).facts, Facts::default());
    }

    /// While a link waits for its P_Key the port is read every 50 ms.
    #[test]
    fn reads_that_fail_within_a_second_count_once() {
        let (mut misses, begin, up) = (Misses::default(), Instant::now(), up());
        let mut warnings = 0;
        let down = (0..).map(|n| n * PORT_PERIOD).find(|after| {
            let read = misses.take(begin + *after, failed(), Some(&up));
            warnings += usize::from(read.warn.is_some());
            read.facts != up
        });
        assert_eq!((down, warnings), (Some((MISSES - 1) * PORT_RETRY), 2));
    }
}
