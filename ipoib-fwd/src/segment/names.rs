//! The sender address of the gateway's queries.
//!
//! Linux answers an ARP request only if its routes lead back to the sender address (`rp_filter` 1 and 2), or
//! if both addresses are in one subnet (`arp_ignore` 2). A request without a sender address is answered
//! whatever those settings are, but a host that probes for the same address at that moment takes it for a
//! conflict (RFC 5227 2.1.1). The order of preference is therefore:
//!
//! 1. the host on whose behalf the query is sent, if it is proven, was heard within the last 5 s, and is in
//!    the target's subnet;
//! 2. the gateway's own address, if it is in that subnet;
//! 3. the last proven host of that subnet that was heard on the other side, within the last 5 s;
//! 4. no sender address, unless a host of the queried side probes for the address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::fabric::{Fabric, v4};
use super::knowledge::side_of;
use super::machine::Segment;
use super::output::Packet;
use super::pair::Place;
use crate::forward::{Hop, Prefix, Side};

/// The sender address of a probe.
pub(super) const NO_SENDER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// A host that probes for an address has finished after this time (RFC 5227 2.1.1: three probes and a wait, 9
/// s at most).
const PROBING: Duration = Duration::from_secs(10);
/// Maximum number of addresses of a side whose probes are remembered.
const MOST: usize = 1024;

/// Hosts whose names may be used, and addresses that hosts probe for.
#[derive(Debug)]
pub(super) struct Names {
    /// The last proven host of a side and subnet that was heard. Bounded by the subnets of a segment.
    heard: HashMap<(bool, Prefix), Ipv4Addr, FixedState>,
    /// When each address was probed for and by which host. One map for each side: a flood on one side does
    /// not change the other's.
    probed: [HashMap<IpAddr, (Instant, Place), FixedState>; 2],
}

impl Names {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = || FixedState::with_seed(seed);
        Self { heard: HashMap::with_hasher(hasher()), probed: [hasher(), hasher()].map(HashMap::with_hasher) }
    }

    /// Records that the subnets have changed.
    pub(super) fn clear(&mut self) {
        self.heard.clear();
    }

    /// Records a proven host that was heard.
    fn note(&mut self, side: Side, subnet: Prefix, ip: Ipv4Addr) {
        self.heard.insert((side == Side::Ethernet, subnet), ip);
    }

    fn last(&self, side: Side, subnet: Prefix) -> Option<Ipv4Addr> {
        self.heard.get(&(side == Side::Ethernet, subnet)).copied()
    }

    /// Records a probe for an address by a host of a side.
    pub(super) fn note_probe(&mut self, now: Instant, prober: Place, ip: IpAddr) {
        let probed = &mut self.probed[side_of(prober) as usize];
        if probed.len() >= MOST {
            probed.retain(|_, (at, _)| now.saturating_duration_since(*at) < PROBING);
        }
        // With this number of probes at once the oldest entry is as good as any.
        if probed.len() >= MOST {
            probed.clear();
        }
        probed.insert(ip, (now, prober));
    }

    /// The host of a side that probes for an address.
    fn prober(&self, now: Instant, side: Side, ip: IpAddr) -> Option<Place> {
        let (at, prober) = self.probed[side as usize].get(&ip)?;
        (now.saturating_duration_since(*at) < PROBING).then_some(*prober)
    }
}

impl<P: Packet> Segment<P> {
    /// The subnet of a host of the segment; `None` in a segment without subnets.
    fn subnet_of(&self, ip: Ipv4Addr) -> Option<Prefix> {
        match self.own.settings.hop(ip) {
            Some(Hop::OnLink(subnet)) => Some(subnet),
            Some(Hop::Via(_)) | None => None,
        }
    }

    /// True if an address is proven to be on a side.
    pub(super) fn is_proven(&self, fabric: &impl Fabric, side: Side, ip: IpAddr) -> bool {
        let known = match side {
            Side::Ethernet => self.hosts.get(ip).is_some(),
            Side::InfiniBand => fabric.hardware(ip).is_some(),
        };
        known && !self.unproven.contains_key(&ip) && !self.owners.is_queried(ip)
    }

    /// A proven host was heard on a side: the gateway may query in its name.
    pub(super) fn note_name(&mut self, fabric: &impl Fabric, side: Side, ip: IpAddr) {
        let host = v4(ip).filter(|_| self.is_proven(fabric, side, ip));
        if let Some((host, subnet)) = host.and_then(|host| Some((host, self.subnet_of(host)?))) {
            self.names.note(side, subnet, host);
        }
    }

    /// True if a host may be queried in this name: it is another host of the same subnet.
    pub(super) fn may_name(&self, name: Ipv4Addr, target: Ipv4Addr) -> bool {
        name != target && self.own.settings.is_on_link(name) && self.subnet_of(name) == self.subnet_of(target)
    }

    /// The name in which `target` is queried on `side`, on behalf of `requester` if there is one. A gateway that
    /// does not forward queries in no host's name: hosts would send that host's packets to it.
    pub(super) fn name_for(
        &self,
        now: Instant,
        fabric: &impl Fabric,
        side: Side,
        target: IpAddr,
        requester: Option<IpAddr>,
    ) -> IpAddr {
        let Some(to) = v4(target) else { return NO_SENDER };
        let subnet = self.subnet_of(to);
        let fits = |name: &Ipv4Addr| self.may_name(*name, to);
        let speaks = self.forwards();
        // A host that was not heard for some time may have moved to the queried side.
        let proven = |name: &Ipv4Addr| {
            let (across, ip) = (side.other(), IpAddr::V4(*name));
            speaks
                && fits(name)
                && self.is_proven(fabric, across, ip)
                && self.is_fresh(now, fabric, across, ip)
        };
        let requester = requester.and_then(v4).filter(proven);
        let own = || self.own.address().filter(fits);
        // Where the subnets are not known, a host may be in another one than the target.
        let last = || subnet.and_then(|subnet| self.names.last(side.other(), subnet)).filter(proven);
        let name = requester.or_else(own).or_else(last);
        name.map_or(NO_SENDER, IpAddr::V4)
    }

    /// True if a query in this name may be sent on a side. A query without a sender address is not sent for
    /// an address that a host there probes for, unless another host is known to have the address.
    pub(super) fn may_query_as(
        &self,
        now: Instant,
        fabric: &impl Fabric,
        side: Side,
        target: IpAddr,
        name: IpAddr,
    ) -> bool {
        let Some(prober) = self.names.prober(now, side, target).filter(|_| name == NO_SENDER) else {
            return true;
        };
        match prober {
            Place::Ethernet(mac) => self.hosts.get(target).is_some_and(|at| at != mac),
            Place::InfiniBand(prober) => fabric.hardware(target).is_some_and(|at| !at.is_same_as(prober)),
        }
    }
}
