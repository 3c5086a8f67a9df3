//! Hosts that a segment has known, longer than the tables of hosts keep them.
//!
//! A silent host leaves the tables after a minute, while other hosts keep it in their neighbor caches for
//! hours. A gateway that starts to forward queries these addresses first ([`discovery`](super::discovery)).
//! None of them is believed before it answers. The control lcore writes them to a file, so that they outlive
//! a restart.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::fabric::v4;
use super::machine::Segment;
use super::output::Packet;
use crate::kept::{KeptHost, LONGEST, MOST};

/// Hosts beyond [`MOST`] before the oldest are removed.
const SLACK: usize = MOST / 8;
/// Hosts that were only reported count as known this long ago: forged reports displace no host that was
/// proven more recently.
const REPORTED: Duration = Duration::from_hours(1);

/// Those hosts, and when each was last known.
#[derive(Debug)]
pub(super) struct Kept {
    hosts: HashMap<Ipv4Addr, Known, FixedState>,
}

/// When a host was last known: `age` before `at`. A clock that starts with the host may not have that moment.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: Instant,
    age: Duration,
}

impl Known {
    fn age(self, now: Instant) -> Duration {
        self.age.saturating_add(now.saturating_duration_since(self.at))
    }
}

impl Kept {
    pub(super) fn new(seed: u64) -> Self {
        Self { hosts: HashMap::with_hasher(FixedState::with_seed(seed)) }
    }

    /// Records that a host is known now.
    pub(super) fn note(&mut self, now: Instant, ip: IpAddr) {
        self.insert(now, ip, Duration::ZERO);
    }

    /// Records that a host was known earlier, unless it has been known since.
    fn insert(&mut self, now: Instant, ip: IpAddr, age: Duration) {
        let Some(ip) = v4(ip) else { return };
        let known = Known { at: now, age };
        let entry = self.hosts.entry(ip).or_insert(known);
        if known.age(now) <= entry.age(now) {
            *entry = known;
        }
        if self.hosts.len() > MOST + SLACK {
            self.trim(now);
        }
    }

    /// Removes the oldest hosts beyond [`MOST`], and those that are too old.
    fn trim(&mut self, now: Instant) {
        let kept: HashSet<Ipv4Addr> = self.newest_first(now).map(|host| host.ip).collect();
        self.hosts.retain(|ip, _| kept.contains(ip));
    }

    /// Number of hosts.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.hosts.len()
    }

    /// The hosts, the most recent first, in an order that depends only on their ages and addresses.
    pub(super) fn newest_first(&self, now: Instant) -> impl Iterator<Item = KeptHost> + use<> {
        let age = |known: &Known| u32::try_from(known.age(now).as_secs()).unwrap_or(u32::MAX);
        let all = self.hosts.iter().map(|(ip, known)| KeptHost { ip: *ip, age: age(known) });
        let mut hosts: Vec<KeptHost> = all.filter(|host| host.age <= LONGEST).collect();
        hosts.sort_unstable_by_key(|host| (host.age, host.ip));
        hosts.into_iter().take(MOST)
    }
}

impl<P: Packet> Segment<P> {
    /// Records the hosts that are known now; `infiniband` are those of that side.
    pub fn remember(&mut self, now: Instant, infiniband: impl Iterator<Item = IpAddr>) {
        let ethernet = self.hosts.iter().filter(|host| host.address.is_some()).map(|host| host.ip);
        for ip in ethernet.chain(infiniband) {
            let age = if self.unproven.contains_key(&ip) { REPORTED } else { Duration::ZERO };
            self.kept.insert(now, ip, age);
        }
        self.kept.trim(now);
    }

    /// The hosts that were known, the most recent first, at most [`MOST`].
    #[must_use]
    pub fn kept(&self, now: Instant) -> Vec<KeptHost> {
        self.kept.newest_first(now).collect()
    }

    /// Adds hosts that were known before a restart: they are queried when the segment starts to forward.
    pub fn restore(&mut self, now: Instant, hosts: &[KeptHost]) {
        for host in hosts.iter().take(MOST) {
            self.kept.insert(now, host.ip.into(), Duration::from_secs(host.age.into()));
        }
    }
}
