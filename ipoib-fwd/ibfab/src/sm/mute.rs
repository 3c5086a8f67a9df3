//! Hosts that have a link and do not answer, or answer late again and again. Nothing waits for them: sweeps leave them out, and they are
//! queried apart from the sweeps until they answer.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::Tid;
use ib_wire::mad::{Mad, Method};
use ib_wire::smp::{DirectedPath, Smp, attribute};

use super::transaction::Transactions;
use crate::subnet::{PortId, SmConfig};

/// Questions without an answer before a host that was there counts as gone: after some four seconds, or, as few questions are out at
/// once, after 0.4 s for each host that does not answer, if there are more than ten.
const PATIENCE: u32 = 4;
/// Pause before the next question. It doubles after every few questions, and with each relapse, to 4 s.
const PAUSE: Duration = Duration::from_millis(250);
const MAX_DOUBLINGS: u32 = 4;
/// Repetitions of questions before an answer of a host that counts like none: others waited for each. One is forgotten after
/// every `LATE_SPAN`.
const MAX_LATE: u32 = 4;
const LATE_SPAN: Duration = Duration::from_secs(2);
/// Time without a strike after which a host is like all others.
const FORGIVEN: Duration = Duration::from_secs(60);

/// A host that does not answer, or has not for a time.
#[derive(Debug)]
struct Host {
    path: DirectedPath,
    /// Questions in a row that it did not answer.
    strikes: u32,
    /// How often it answered again and then stopped: each time costs others a wait.
    relapses: u32,
    last_strike: Instant,
    /// When it is asked next; `None` while it is being asked, or is in the sweep again.
    next: Option<Instant>,
    /// Sweeps leave it out.
    left_out: bool,
    /// Its link has changed since the last sweep that came to its port.
    link_changed: bool,
}

/// Repetitions that a host's answers took lately.
#[derive(Debug)]
struct Late {
    repeats: u32,
    since: Instant,
}

/// The hosts that do not answer, by the switch port that they hang on.
#[derive(Debug)]
pub(crate) struct MuteHosts {
    hosts: BTreeMap<PortId, Host>,
    late: BTreeMap<PortId, Late>,
    /// Hosts that were late too often in this sweep, and the paths to them. They are part of it to its end, so that a host
    /// whose answers are always late comes up.
    too_late: BTreeMap<PortId, DirectedPath>,
    questions: Transactions<PortId>,
}

impl MuteHosts {
    pub(crate) fn new(config: &SmConfig) -> Self {
        let questions =
            Transactions::new(config.smp_window, config.smp_timeout, config.smp_tries, config.seed, 2);
        Self { hosts: BTreeMap::new(), late: BTreeMap::new(), too_late: BTreeMap::new(), questions }
    }

    /// A host did not answer.
    pub(crate) fn strike(&mut self, now: Instant, at: PortId, path: DirectedPath) {
        let known = self.hosts.contains_key(&at);
        let host = self.hosts.entry(at).or_insert(Host {
            path,
            strikes: 0,
            relapses: 0,
            last_strike: now,
            next: None,
            left_out: false,
            link_changed: false,
        });
        // A sweep may lose several packets of one host.
        if !host.left_out {
            host.path = path;
            host.relapses = host.relapses.saturating_add(u32::from(known));
            host.left_out = true;
            host.link_changed = false;
            host.strike(now);
        }
    }

    /// A host answered after this many repetitions. [`Self::leave_out_late`] leaves it out if there were too many.
    pub(crate) fn late(&mut self, now: Instant, at: PortId, path: DirectedPath, repeats: u32) {
        let late = self.late.entry(at).or_insert(Late { repeats: 0, since: now });
        late.forget(now);
        late.repeats += repeats;
        if late.repeats > MAX_LATE {
            self.late.remove(&at);
            self.too_late.insert(at, path);
        }
    }

    /// Leaves the hosts out that were late too often.
    pub(crate) fn leave_out_late(&mut self, now: Instant) {
        for (at, path) in std::mem::take(&mut self.too_late) {
            self.strike(now, at, path);
        }
    }

    /// A sweep that leaves a host out has come to its port; `path` is the way to the host now.
    pub(crate) fn pass_by(&mut self, at: PortId, path: DirectedPath) {
        let Some(host) = self.hosts.get_mut(&at).filter(|host| host.path != path || host.link_changed) else {
            return;
        };
        host.path = path;
        host.strikes = if host.link_changed { 0 } else { host.strikes };
        host.link_changed = false;
        // By another way, or after its link was down, it may answer: it is asked at once, unless it has had others wait before.
        host.next = Some(host.last_strike + if host.relapses > 0 { host.pause() } else { Duration::ZERO });
        self.questions.abandon(|asked| *asked == at);
    }

    /// True if sweeps leave the host behind a port out.
    pub(crate) fn leaves_out(&self, at: PortId) -> bool {
        self.hosts.get(&at).is_some_and(|host| host.left_out)
    }

    /// True if the host behind a port counts as gone.
    pub(crate) fn is_gone(&self, at: PortId) -> bool {
        self.hosts.get(&at).is_some_and(|host| host.left_out && host.strikes >= PATIENCE)
    }

    /// The link of a port went down. It may be up again, and another host may be there.
    pub(crate) fn link_changed(&mut self, at: PortId) {
        if let Some(host) = self.hosts.get_mut(&at) {
            host.link_changed = true;
            host.next = None;
            self.questions.abandon(|asked| *asked == at);
        }
    }

    /// A sweep is over. Forgets ports that are not there, and hosts that have answered, or had no link, for long.
    pub(crate) fn sweep_ended(&mut self, now: Instant, is_there: impl Fn(PortId) -> bool) {
        let counts = |host: &Host| {
            let is_asked = host.left_out && !host.link_changed;
            is_asked || now.saturating_duration_since(host.last_strike) < FORGIVEN
        };
        self.hosts.retain(|&at, host| counts(host) && is_there(at));
        self.late.retain(|&at, late| {
            late.forget(now);
            late.repeats > 0 && is_there(at)
        });
        let hosts = &self.hosts;
        self.questions.abandon(|asked| !hosts.contains_key(asked));
    }

    /// When [`Self::expire`] or [`Self::ask`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        let next = self.hosts.values().filter_map(|host| host.next).min();
        next.into_iter().chain(self.questions.due()).min()
    }

    /// Queries hosts that are due. With `is_sweep`, as something has changed, also those that
    /// have not been silent for long.
    pub(crate) fn ask(&mut self, now: Instant, is_sweep: bool, to: &mut VecDeque<Mad>) {
        for (&at, host) in &mut self.hosts {
            let early = is_sweep && host.relapses == 0 && host.strikes < PATIENCE;
            if host.next.is_some_and(|next| early || next <= now) {
                host.next = None;
                let question = Smp::directed(Method::Get, Tid(0), attribute::NODE_INFO, 0, &host.path);
                self.questions.push(at, question);
            }
        }
        self.questions.send(now, to);
    }

    /// Takes an answer. True if a host answers again: the next sweep includes it.
    pub(crate) fn answer(&mut self, smp: &Smp) -> bool {
        let Some((at, _)) = self.questions.answer(smp) else { return false };
        if let Some(host) = self.hosts.get_mut(&at) {
            host.left_out = false;
            host.strikes = 0;
            host.next = None;
        }
        true
    }

    /// Sends questions again, or gives them up. True if a host counts as gone now.
    pub(crate) fn expire(&mut self, now: Instant, to: &mut VecDeque<Mad>) -> bool {
        let mut gone = false;
        for at in self.questions.expire(now, to) {
            let Some(host) = self.hosts.get_mut(&at) else { continue };
            host.strike(now);
            gone |= host.strikes == PATIENCE;
        }
        gone
    }
}

impl Host {
    fn strike(&mut self, now: Instant) {
        self.strikes = self.strikes.saturating_add(1);
        self.last_strike = now;
        self.next = Some(now + self.pause());
    }

    fn pause(&self) -> Duration {
        let doublings = (self.strikes / (PATIENCE + 1)).max(self.relapses).min(MAX_DOUBLINGS);
        PAUSE * (1 << doublings)
    }
}

impl Late {
    /// Forgets the repetitions that are long ago.
    fn forget(&mut self, now: Instant) {
        while now.saturating_duration_since(self.since) >= LATE_SPAN && self.repeats > 0 {
            self.repeats -= 1;
            self.since += LATE_SPAN;
        }
        if self.repeats == 0 {
            self.since = now;
        }
    }
}
