//! Neighbours: from IPv4 address to link-layer address, learned by ARP, aged like a kernel's.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ib_wire::{Gid, Qpn};

use super::settings::WorkerIndex;
use crate::bucket::Bucket;
use ib_wire::ipoib::HardwareAddress;

/// A confirmed address is taken for good for this long.
pub(super) const REACHABLE: Duration = Duration::from_secs(30);
/// Between two requests for one address.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Requests before an address is given up.
pub(super) const TRIES: u8 = 3;
/// How long a failed address is remembered as such.
pub(super) const HOLD: Duration = Duration::from_secs(3);
/// New addresses asked for: so many at once, and so many a second.
pub(super) const NEW_BURST: u32 = 256;
pub(super) const NEW_PER_SECOND: u32 = 1024;
/// Requests and announcements by broadcast that the owner may have sent: a host that has taken another gateway's place announces many
/// addresses at once.
pub(super) const ASKED_BURST: u32 = 4096;
pub(super) const ASKED_PER_SECOND: u32 = 1024;

/// What is known about a neighbour's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Asked by broadcast, so many times; no answer yet.
    Incomplete { tries: u8 },
    /// Confirmed less than half a minute ago.
    Reachable,
    /// Not confirmed for a while, and not in use.
    Stale,
    /// In use and asked by unicast, so many times.
    Probe { tries: u8 },
    /// No answer came; kept for a moment so that it is not asked again at once.
    Failed,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "incomplete",
            Self::Reachable => "reachable",
            Self::Stale => "stale",
            Self::Probe { .. } => "probe",
            Self::Failed => "failed",
        }
    }
}

/// Who makes room for whom in a full table: the lower for the higher, and for its like.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    /// Has not answered.
    Unanswered,
    /// No worker sends to it.
    Unused,
    /// Carries traffic.
    Used,
}

/// One neighbour.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) hardware: Option<HardwareAddress>,
    pub(super) state: State,
    /// On whose behalf it is asked for: an address of ours and the worker whose link-layer address it has.
    pub(super) source: (WorkerIndex, Ipv4Addr),
    pub(super) last_used: Instant,
    /// When each worker last sent to it.
    pub(super) users: Vec<Option<Instant>>,
    /// Its place in the order of eviction.
    pub(super) place: (Class, Instant),
}

impl Entry {
    /// Who it makes room for, by what is known of it now.
    pub(super) fn class(&self) -> Class {
        match (self.hardware, self.state) {
            (None, _) => Class::Unanswered,
            (Some(_), State::Stale) => Class::Unused,
            (Some(_), _) if self.users.iter().any(Option::is_some) => Class::Used,
            (Some(_), _) => Class::Unused,
        }
    }
}

/// All neighbours.
#[derive(Debug)]
pub(super) struct NeighbourMap {
    pub(super) entries: HashMap<Ipv4Addr, Entry>,
    /// Which neighbours have which link-layer address.
    pub(super) by_address: BTreeSet<(Gid, Qpn, Ipv4Addr)>,
    /// Who makes room first.
    pub(super) order: BTreeSet<(Class, Instant, Ipv4Addr)>,
    /// New addresses asked for.
    pub(super) new: Bucket,
    /// Requests by broadcast on others' behalf, of which nothing is remembered.
    pub(super) asked: Bucket,
}

impl NeighbourMap {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            entries: HashMap::new(),
            by_address: BTreeSet::new(),
            order: BTreeSet::new(),
            new: Bucket::new(now, NEW_BURST, NEW_PER_SECOND),
            asked: Bucket::new(now, ASKED_BURST, ASKED_PER_SECOND),
        }
    }

    /// True if a neighbour's port has this GID.
    pub(super) fn uses_gid(&self, gid: Gid) -> bool {
        self.at_gid(gid).next().is_some()
    }

    /// The neighbours behind a port.
    pub(super) fn at_gid(&self, gid: Gid) -> impl Iterator<Item = (Qpn, Ipv4Addr)> {
        let from = (gid, Qpn::new(0), Ipv4Addr::UNSPECIFIED);
        let to = (gid, Qpn::new(Qpn::MASK), Ipv4Addr::BROADCAST);
        self.by_address.range(from..=to).map(|(_, qpn, ip)| (*qpn, *ip))
    }

    /// The neighbours with this link-layer address.
    pub(super) fn at_address(&self, address: HardwareAddress) -> impl Iterator<Item = Ipv4Addr> {
        let from = (address.gid, address.qpn, Ipv4Addr::UNSPECIFIED);
        let to = (address.gid, address.qpn, Ipv4Addr::BROADCAST);
        self.by_address.range(from..=to).map(|(_, _, ip)| *ip)
    }

    /// True if `worker` sent to a neighbour with this address within `within` before `now`.
    pub(super) fn used_by(
        &self,
        address: HardwareAddress,
        worker: WorkerIndex,
        now: Instant,
        within: Duration,
    ) -> bool {
        self.at_address(address).any(|ip| {
            let used = self.entries.get(&ip).and_then(|e| *e.users.get(usize::from(worker.0))?);
            used.is_some_and(|t| now.duration_since(t) <= within)
        })
    }

    /// The flags that neighbours with this address have announced.
    pub(super) fn accepts_rc(&self, address: HardwareAddress) -> bool {
        self.at_address(address)
            .filter_map(|ip| self.entries.get(&ip)?.hardware)
            .any(|hardware| hardware.flags.has_rc())
    }

    /// Puts a neighbour where it belongs in the order of eviction, after anything about it has changed.
    pub(super) fn place(&mut self, ip: Ipv4Addr) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        let now = (entry.class(), entry.last_used);
        let before = std::mem::replace(&mut entry.place, now);
        if before != now {
            self.order.remove(&(before.0, before.1, ip));
        }
        self.order.insert((now.0, now.1, ip));
    }
}

/// True if one host can have the address.
pub(super) const fn is_host(ip: Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast() && !ip.is_loopback()
}

/// True if a host's interface can have the link-layer address.
pub(super) fn is_host_address(address: HardwareAddress) -> bool {
    address.qpn.get() > Qpn::GSI.get()
        && address.qpn != Qpn::MULTICAST
        && !address.gid.is_multicast()
        && address.gid != Gid::ZERO
}
