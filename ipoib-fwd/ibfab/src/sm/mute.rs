//! Hosts that have a link and do not answer, or repeatedly answer late. Sweeps do not wait for them: they
//! leave such hosts out, and the subnet manager queries the hosts separately until they answer.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::Tid;
use ib_wire::mad::{Mad, Method};
use ib_wire::smp::{DirectedPath, Smp, attribute};

use super::transaction::Transactions;
use crate::subnet::{PortId, SmConfig};

/// Unanswered queries before a host that was present counts as gone. That takes about four seconds. With more
/// than ten silent hosts it takes 0.4 s for each of them, as few queries are outstanding at once.
const PATIENCE: u32 = 4;
/// Pause before the next query. It doubles after every few queries, and with each relapse, to 4 s.
const PAUSE: Duration = Duration::from_millis(250);
const MAX_DOUBLINGS: u32 = 4;
/// Retransmissions of queries to a host that count as a missing answer: the sweep waited for each. One is
/// forgotten after every `LATE_SPAN`.
const MAX_LATE: u32 = 4;
const LATE_SPAN: Duration = Duration::from_secs(2);
/// Time without a strike after which a host is treated as any other.
const FORGIVEN: Duration = Duration::from_secs(60);

/// A host that does not answer, or did not for a time.
#[derive(Debug)]
struct Host {
    path: DirectedPath,
    /// Consecutive queries without an answer.
    strikes: u32,
    /// How often it answered again and then stopped; each time delays the sweep.
    relapses: u32,
    last_strike: Instant,
    /// When it is queried next; `None` while a query is outstanding, or the sweep includes it again.
    next: Option<Instant>,
    /// Sweeps leave it out.
    left_out: bool,
    /// Its link has changed since the last sweep that reached its port.
    link_changed: bool,
}

/// Recent retransmissions of queries to a host.
#[derive(Debug)]
struct Late {
    repeats: u32,
    since: Instant,
}

/// Hosts that do not answer, by the switch port at the other end of their link.
#[derive(Debug)]
pub(crate) struct MuteHosts {
    hosts: BTreeMap<PortId, Host>,
    late: BTreeMap<PortId, Late>,
    /// Hosts that were late too often in this sweep, and the paths to them. The sweep includes them to its
    /// end, so that a host whose answers are always late comes up.
    too_late: BTreeMap<PortId, DirectedPath>,
    queries: Transactions<PortId>,
}

impl MuteHosts {
    pub(crate) fn new(config: &SmConfig) -> Self {
        let queries =
            Transactions::new(config.smp_window, config.smp_timeout, config.smp_tries, config.seed, 2);
        Self { hosts: BTreeMap::new(), late: BTreeMap::new(), too_late: BTreeMap::new(), queries }
    }

    /// Notes that a host did not answer.
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

    /// Notes that a host answered after this number of retransmissions. [`Self::leave_out_late`] leaves it
    /// out if there were too many.
    pub(crate) fn late(&mut self, now: Instant, at: PortId, path: DirectedPath, repeats: u32) {
        let late = self.late.entry(at).or_insert(Late { repeats: 0, since: now });
        late.forget(now);
        late.repeats += repeats;
        if late.repeats > MAX_LATE {
            self.late.remove(&at);
            self.too_late.insert(at, path);
        }
    }

    /// Leaves out hosts that were late too often.
    pub(crate) fn leave_out_late(&mut self, now: Instant) {
        for (at, path) in std::mem::take(&mut self.too_late) {
            self.strike(now, at, path);
        }
    }

    /// Notes that a sweep has reached the port of a host that it leaves out; `path` is the current path to
    /// the host.
    pub(crate) fn pass_by(&mut self, at: PortId, path: DirectedPath) {
        let Some(host) = self.hosts.get_mut(&at).filter(|host| host.path != path || host.link_changed) else {
            return;
        };
        host.path = path;
        host.strikes = if host.link_changed { 0 } else { host.strikes };
        host.link_changed = false;
        // By another path, or after its link was down, it may answer. It is queried at once, unless it has
        // already delayed sweeps.
        host.next = Some(host.last_strike + if host.relapses > 0 { host.pause() } else { Duration::ZERO });
        self.queries.abandon(|port| *port == at);
    }

    /// True if sweeps leave out the host behind a port.
    pub(crate) fn leaves_out(&self, at: PortId) -> bool {
        self.hosts.get(&at).is_some_and(|host| host.left_out)
    }

    /// True if the host behind a port counts as gone.
    pub(crate) fn is_gone(&self, at: PortId) -> bool {
        self.hosts.get(&at).is_some_and(|host| host.left_out && host.strikes >= PATIENCE)
    }

    /// Notes that the link of a port went down. It may be up again, and there may be another host.
    pub(crate) fn link_changed(&mut self, at: PortId) {
        if let Some(host) = self.hosts.get_mut(&at) {
            host.link_changed = true;
            host.next = None;
            self.queries.abandon(|port| *port == at);
        }
    }

    /// Ends a sweep. Removes ports that do not exist, and hosts that have answered, or had no link, for a
    /// long time.
    pub(crate) fn sweep_ended(&mut self, now: Instant, is_there: impl Fn(PortId) -> bool) {
        let counts = |host: &Host| {
            let is_queried = host.left_out && !host.link_changed;
            is_queried || now.saturating_duration_since(host.last_strike) < FORGIVEN
        };
        self.hosts.retain(|&at, host| counts(host) && is_there(at));
        self.late.retain(|&at, late| {
            late.forget(now);
            late.repeats > 0 && is_there(at)
        });
        let hosts = &self.hosts;
        self.queries.abandon(|port| !hosts.contains_key(port));
    }

    /// Returns when [`Self::expire`] or [`Self::query`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        let next = self.hosts.values().filter_map(|host| host.next).min();
        next.into_iter().chain(self.queries.due()).min()
    }

    /// Queries hosts that are due. With `is_sweep`, which follows a change, it also queries hosts that have
    /// been silent only for a short time.
    pub(crate) fn query(&mut self, now: Instant, is_sweep: bool, to: &mut VecDeque<Mad>) {
        for (&at, host) in &mut self.hosts {
            let early = is_sweep && host.relapses == 0 && host.strikes < PATIENCE;
            if host.next.is_some_and(|next| early || next <= now) {
                host.next = None;
                let query = Smp::directed(Method::Get, Tid(0), attribute::NODE_INFO, 0, &host.path);
                self.queries.push(at, query);
            }
        }
        self.queries.send(now, to);
    }

    /// Handles an answer. True if a host answers again: the next sweep includes it.
    pub(crate) fn answer(&mut self, smp: &Smp) -> bool {
        let Some((at, _)) = self.queries.answer(smp) else { return false };
        if let Some(host) = self.hosts.get_mut(&at) {
            host.left_out = false;
            host.strikes = 0;
            host.next = None;
        }
        true
    }

    /// Sends queries again, or gives them up. True if a host counts as gone now.
    pub(crate) fn expire(&mut self, now: Instant, to: &mut VecDeque<Mad>) -> bool {
        let mut gone = false;
        for at in self.queries.expire(now, to) {
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
    /// Forgets old retransmissions.
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
