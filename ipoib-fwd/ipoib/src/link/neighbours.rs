//! The neighbours of a link: their common life cycle ([`crate::neighbour`]), and the state that only
//! InfiniBand needs. That is the neighbours at each link-layer address, the workers that send to each, and
//! the source address of its queries.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Qpn};

use super::settings::{LinkSettings, WorkerIndex};
use crate::bucket::Bucket;
use crate::neighbour::{Ageing, Event, Heard, HostCounters, Idle, Info, Probe, Rules};

/// How long a confirmed address counts as reachable.
pub(super) const REACHABLE: Duration = Duration::from_secs(30);
/// How long a failed address is remembered.
const HOLD: Duration = Duration::from_secs(3);
/// Queries for new addresses: burst, and rate in queries per second. Addresses that have been heard before
/// have a second budget of the same size: a host that scans the network does not prevent them from being
/// resolved.
const NEW_BURST: u32 = 256;
const NEW_PER_SECOND: u32 = 1024;
/// Neighbours with traffic that a port keeps when others find no room.
const SHARE: u32 = 64;
/// Requests and announcements by broadcast that the owner may send: a gateway that takes over from another
/// one announces many addresses at once.
const ASKED_BURST: u32 = 4096;
const ASKED_PER_SECOND: u32 = 1024;

/// How long the address of a host that the owner represents is used as source.
const BORROWED: Duration = Duration::from_secs(5);

/// The source of a query: an address that we represent, and the worker whose link-layer address it has.
pub(super) type Source = (WorkerIndex, IpAddr);

pub(super) const NOBODY: Source = (WorkerIndex(0), IpAddr::V4(Ipv4Addr::UNSPECIFIED));

/// The link's data about a neighbour.
#[derive(Debug)]
pub(super) struct Tag {
    /// The source of its queries.
    pub(super) source: Source,
    /// When that source was set.
    pub(super) named: Instant,
    /// When each worker last sent to the neighbour.
    pub(super) users: Vec<Option<Instant>>,
}

impl Tag {
    pub(super) const fn new(now: Instant, source: Source) -> Self {
        Self { source, named: now, users: Vec::new() }
    }

    /// Records that a worker sends to the neighbour.
    pub(super) fn used(&mut self, now: Instant, worker: WorkerIndex) {
        let at = usize::from(worker.0);
        if self.users.len() <= at {
            self.users.resize(at + 1, None);
        }
        if let Some(user) = self.users.get_mut(at) {
            *user = Some(now);
        }
    }

    /// The workers that sent to it within `within` before `now`.
    pub(super) fn users(&self, now: Instant, within: Duration) -> impl Iterator<Item = WorkerIndex> {
        let recent = move |used: &Option<Instant>| used.is_some_and(|at| now.duration_since(at) <= within);
        (0u8..).zip(&self.users).filter(move |(_, used)| recent(used)).map(|(worker, _)| WorkerIndex(worker))
    }
}

/// The lowest and the highest address: the bounds of a range over all.
const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const LAST: IpAddr = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));

/// All neighbours of a link.
#[derive(Debug)]
pub(super) struct NeighbourMap {
    ageing: Ageing<HardwareAddress, Tag>,
    /// Index of the neighbours by link-layer address.
    by_address: BTreeSet<(Gid, Qpn, IpAddr)>,
    /// Limit of queries for new addresses.
    new: Bucket,
    /// Hosts of this side that have been heard, and the limit of queries for them.
    heard: Heard,
    returning: Bucket,
    /// Limit of broadcast requests on behalf of others, which keep no state.
    broadcasts: Bucket,
    /// The owner's own address, if all other sources are hosts that it represents.
    own_name: Option<Option<IpAddr>>,
}

fn rules(settings: &LinkSettings) -> Rules {
    Rules {
        reachable: REACHABLE,
        idle: Idle::SinceUse(settings.neighbour_idle),
        failed: HOLD,
        last_to_all: true,
        most: settings.max_neighbours,
        // New ones are limited by rate.
        most_asked: usize::MAX,
        most_unused_each: u32::MAX,
        share: SHARE,
    }
}

impl NeighbourMap {
    pub(super) fn new(now: Instant, settings: &LinkSettings) -> Self {
        Self {
            ageing: Ageing::new(settings.seed.rotate_left(16), rules(settings)),
            by_address: BTreeSet::new(),
            new: Bucket::new(now, NEW_BURST, NEW_PER_SECOND),
            heard: Heard::new(settings.seed.rotate_left(48)),
            returning: Bucket::new(now, NEW_BURST, NEW_PER_SECOND),
            broadcasts: Bucket::new(now, ASKED_BURST, ASKED_PER_SECOND),
            own_name: None,
        }
    }

    /// Applies changed settings.
    pub(super) fn follow(&mut self, settings: &LinkSettings) {
        *self.ageing.rules_mut() = rules(settings);
    }

    /// The neighbour table. Its events must be taken before anything else is read from this map
    /// ([`Self::poll_event`]).
    pub(super) const fn ageing(&mut self) -> &mut Ageing<HardwareAddress, Tag> {
        &mut self.ageing
    }

    /// Records that a host of this side was heard, whether it becomes a neighbour or not.
    pub(super) fn note_heard(&mut self, ip: IpAddr) {
        self.heard.note(ip);
    }

    /// True if one more new address may be queried now.
    pub(super) fn may_query_new(&mut self, now: Instant, ip: IpAddr) -> bool {
        (self.heard.has(ip) && self.returning.take(now)) || self.new.take(now)
    }

    /// Sets the owner's own address; all other sources are hosts that the owner represents.
    pub(super) const fn set_own_name(&mut self, own: Option<IpAddr>) {
        self.own_name = Some(own);
    }

    /// True if the source may no longer be used: the host that has it may have moved.
    pub(super) fn is_worn(&self, now: Instant, tag: &Tag) -> bool {
        let borrowed = self.own_name.is_some_and(|own| own != Some(tag.source.1));
        borrowed && now.saturating_duration_since(tag.named) > BORROWED
    }

    /// True if one more request may be broadcast now.
    pub(super) fn may_broadcast(&mut self, now: Instant) -> bool {
        self.broadcasts.take(now)
    }

    pub(super) fn poll_event(&mut self) -> Option<Event<HardwareAddress>> {
        let event = self.ageing.poll_event()?;
        match event {
            Event::Set { ip, address, before } => {
                if let Some(old) = before {
                    self.by_address.remove(&(old.gid, old.qpn, ip));
                }
                self.by_address.insert((address.gid, address.qpn, ip));
            }
            Event::Gone { ip, address: Some(old), .. } => {
                self.by_address.remove(&(old.gid, old.qpn, ip));
            }
            Event::Gone { address: None, .. } | Event::Failed { .. } => {}
        }
        Some(event)
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Probe<HardwareAddress>> {
        self.ageing.poll_transmit()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.ageing.poll_timeout()
    }

    pub(super) const fn counters(&self) -> &HostCounters {
        self.ageing.counters()
    }

    /// The link-layer address of a neighbour that has answered.
    pub(super) fn get(&self, ip: IpAddr) -> Option<HardwareAddress> {
        self.ageing.get(ip)
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.ageing.contains(ip)
    }

    pub(super) fn is_asked(&self, ip: IpAddr) -> bool {
        self.ageing.is_asked(ip)
    }

    pub(super) fn is_confirmed(&self, now: Instant, ip: IpAddr, within: Duration) -> bool {
        self.ageing.is_confirmed(now, ip, within)
    }

    pub(super) fn has_room_for_reports(&self) -> bool {
        self.ageing.has_room_for_reports()
    }

    pub(super) fn tag(&self, ip: IpAddr) -> Option<&Tag> {
        self.ageing.tag(ip)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Info<HardwareAddress>> {
        self.ageing.iter()
    }

    /// As [`Ageing::after`].
    pub(super) fn after(&self, after: Option<IpAddr>, most: usize) -> Vec<Info<HardwareAddress>> {
        self.ageing.after(after, most)
    }

    /// All neighbours that have answered.
    pub(super) fn known(&self) -> impl Iterator<Item = IpAddr> {
        self.by_address.iter().map(|(_, _, ip)| *ip)
    }

    /// True if a neighbour's port has this GID.
    pub(super) fn uses_gid(&self, gid: Gid) -> bool {
        self.at_gid(gid).next().is_some()
    }

    /// The neighbours behind a port.
    pub(super) fn at_gid(&self, gid: Gid) -> impl Iterator<Item = (Qpn, IpAddr)> {
        let range = (gid, Qpn::new(0), FIRST)..=(gid, Qpn::new(Qpn::MASK), LAST);
        self.by_address.range(range).map(|(_, qpn, ip)| (*qpn, *ip))
    }

    /// The neighbours with this link-layer address.
    pub(super) fn at_address(&self, at: HardwareAddress) -> impl Iterator<Item = IpAddr> {
        self.by_address.range((at.gid, at.qpn, FIRST)..=(at.gid, at.qpn, LAST)).map(|(_, _, ip)| *ip)
    }

    /// True if `worker` sent to a neighbour with this address within `within` before `now`.
    pub(super) fn used_by(
        &self,
        address: HardwareAddress,
        worker: WorkerIndex,
        now: Instant,
        within: Duration,
    ) -> bool {
        let used = |ip| self.tag(ip).is_some_and(|tag| tag.users(now, within).any(|w| w == worker));
        self.at_address(address).any(used)
    }

    /// True if a neighbour with this address has announced connected mode.
    pub(super) fn accepts_rc(&self, address: HardwareAddress) -> bool {
        self.at_address(address).filter_map(|ip| self.get(ip)).any(|hardware| hardware.flags.has_rc())
    }
}

/// True if one host can have the address.
pub(super) const fn is_host(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !is_broadcast && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
}

/// True if a host's interface can have the link-layer address.
pub(super) fn is_host_address(address: HardwareAddress) -> bool {
    address.qpn.get() > Qpn::GSI.get()
        && address.qpn != Qpn::MULTICAST
        && !address.gid.is_multicast()
        && address.gid != Gid::ZERO
}
