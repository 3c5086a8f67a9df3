//! Reads the port's state from the device: once for all links, on its events, and periodically in case an
//! event was lost.

use std::time::Instant;

use hca::PortState;
use ib_wire::PKey;
use pmd::hca::{Backend, HcaError};

use super::{Endpoint, PORT_RETRY};
use ipoib::link::Waiting;
use ipoib::port::Facts;

/// Whether the device is gone for good.
#[derive(Debug)]
pub(super) enum Gone {
    /// It is usable.
    No,
    /// It is gone, and the owner has not been notified yet.
    Unreported(HcaError),
    /// It is gone, and the owner has been notified.
    Reported,
}

impl Gone {
    fn take(&mut self) -> Option<HcaError> {
        match std::mem::replace(self, Self::Reported) {
            Self::Unreported(why) => Some(why),
            before => {
                *self = before;
                None
            }
        }
    }
}

/// Consecutive failed reads of the port's state before the port counts as down. A process that is short of
/// file descriptors or memory for a moment then loses no connection.
const MISSES: u32 = 5;

/// Counts failed reads of the port's state since the last success.
///
/// Reads are more frequent while a link waits for its P_Key, and on events: failures within [`PORT_RETRY`] of
/// each other count as one.
#[derive(Debug, Default)]
pub(super) struct Misses {
    count: u32,
    counted: Option<Instant>,
}

/// Outcome of a read.
struct Read {
    facts: Facts,
    /// Warning to log.
    warn: Option<&'static str>,
}

impl Misses {
    pub(super) const fn any(&self) -> bool {
        self.count > 0
    }

    /// Evaluates a read. After a failure the port's state remains as before, unless too many reads have
    /// failed or the device is gone.
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
    /// Marks the device as gone: whatever its driver still reports, the port is down.
    pub(super) fn lose_device(&mut self, now: Instant, why: HcaError) {
        if self.is_gone() {
            return;
        }
        self.gone = Gone::Unreported(why);
        self.mads.clear();
        self.read_port(now);
    }

    /// True if the device is gone: its port stays down for good.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        !matches!(self.gone, Gone::No)
    }

    /// Returns why the device is gone, once. After that, the owner can only close the endpoint.
    pub fn take_gone(&mut self) -> Option<HcaError> {
        self.gone.take()
    }

    /// Returns the port's state, or the last one that could be read.
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

    /// Counts a failed read. Logs the first one and the one that takes the port down.
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

    /// True while a link waits for a change of the port's state or of its P_Key table.
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
    fn only_repeated_failed_reads_take_the_port_down() {
        let (mut misses, mut now, up) = (Misses::default(), Instant::now(), up());
        assert_eq!(misses.take(now, failed(), None).facts, Facts::default(), "no state was ever read");
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
