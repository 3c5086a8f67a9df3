//! Rate limits of packets that the gateway originates.

use std::hash::BuildHasher as _;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use foldhash::fast::FixedState;
use ib_wire::{Gid, Lid};

use super::fabric::{Fabric, v4};
use super::knowledge::side_of;
use super::machine::Segment;
use super::output::{Arrival, Origin, Packet};
use super::pair::Place;
use crate::forward::{Hop, Side};
use ipoib::bucket::Bucket;
use ipoib::neighbour::Heard;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, EthernetHeader, MacAddress};

/// Tokens per second, and burst.
type Rate = (u32, u32);

/// Ping replies.
const ECHO: Rate = (1000, 50);
/// ICMP errors, to all hosts.
const ERRORS: Rate = (1000, 100);
/// ICMP errors to one host: a connection needs one or two for its path MTU, and a host has many connections.
const ERRORS_EACH: Rate = (50, 20);
/// Broadcast requests that hosts cause. On Ethernet, hosts that have been heard there have a second budget of
/// the same size.
const REQUESTS: Rate = (1000, 256);
/// Announcements that go from one side to the other, including answers to false claims.
const ANNOUNCEMENTS: Rate = (200, 64);
/// Announcements that one host causes: a host that floods does not delay the announcements of others' moves.
const ANNOUNCEMENTS_EACH: Rate = (10, 16);
/// Claims by hosts of one side to addresses without a known owner. A second budget of the same size serves
/// addresses that were learned at the same hardware address before. Each claim has two queries: both budgets
/// together leave a fifth of the link's broadcasts to others.
const SEARCHES: Rate = (200, 256);
/// Claims of one host.
const SEARCHES_EACH: Rate = (32, 64);
/// Lookups of one side for hosts for which the other one is queried. A second budget of the same size serves
/// hosts that are known from reports.
const LOOKUPS: Rate = (1000, 256);

/// Addresses that are queried on each side when the gateway starts to forward.
const DISCOVERY: Rate = (500, 16);
/// Hosts that have answered those queries: two queries and an announcement for each. With [`DISCOVERY`]
/// that is less than the link's own limit for broadcasts restores in a second, so that discovery takes
/// at most its burst from others.
const DISCOVERED: Rate = (128, 512);

/// Lookups of one host while many addresses are looked up, mainly addresses that no host has. Others keep
/// their room.
const LOOKUPS_EACH: Rate = (32, 64);

/// Lookups of one router, for all hosts behind it together. Each of these hosts has a share of its own, too.
const LOOKUPS_ROUTER: Rate = (256, 512);

/// Number of hosts with their own limits; two may share one.
const SHARES: usize = 256;
const LOOKUP_SHARES: usize = 1024;

/// The host on whose behalf an address is looked up, as far as it is known.
#[derive(Clone, Copy, Hash, Debug)]
pub(super) enum By {
    Ethernet(MacAddress),
    Lid(Lid),
    /// The port at the other end of connections.
    Port(Gid),
    /// A host beyond the link, at its router's link-layer address, which all hosts behind the router share.
    /// Or a host that is announced.
    Beyond(IpAddr),
    Unknown,
}

impl By {
    /// The station that sent a packet without a path, whatever its source address says.
    pub(super) fn station(arrival: &Arrival, packet: &impl Packet, fabric: &impl Fabric) -> Self {
        let mut head = [0; ETHERNET_HEADER_LEN];
        match (arrival.side, arrival.origin) {
            (Side::Ethernet, _) => {
                let read = packet.read(0, &mut head);
                let header = EthernetHeader::parse(head.get(..read).unwrap_or_default());
                header.map_or(Self::Unknown, |header| Self::Ethernet(header.source))
            }
            (Side::InfiniBand, Some(Origin::Datagram(from))) => Self::Lid(from.slid),
            (Side::InfiniBand, Some(Origin::Connection(qpn))) => {
                fabric.address_behind(qpn).map_or(Self::Unknown, |peer| Self::Port(peer.gid))
            }
            (Side::InfiniBand, None) => Self::Unknown,
        }
    }
}

impl<P: Packet> Segment<P> {
    /// The share that pays for the lookup for a packet with this source address. A source beyond the link has
    /// a share of its own only if the packet comes from the router to it: any station can forge such a
    /// source.
    pub(super) fn payer(
        &self,
        fabric: &impl Fabric,
        arrival: &Arrival,
        packet: &impl Packet,
        source: IpAddr,
    ) -> Payer {
        let station = By::station(arrival, packet, fabric);
        let router = match v4(source).and_then(|source| self.own.settings.hop(source)) {
            Some(Hop::Via(router)) => IpAddr::V4(router),
            Some(Hop::OnLink(_)) | None => return Payer::Station(station),
        };
        let is_router = match (station, arrival.origin) {
            (By::Ethernet(mac), _) => self.hosts.get(router) == Some(mac),
            (_, Some(Origin::Connection(qpn))) => {
                let at = fabric.address_behind(qpn);
                at.zip(fabric.hardware(router)).is_some_and(|(at, router)| at.is_same_as(router))
            }
            (_, Some(Origin::Datagram(from))) => fabric.is_from(&from, router),
            (_, None) => false,
        };
        if is_router { Payer::Behind { router: station, host: source } } else { Payer::Station(station) }
    }
}

/// The share that a lookup is taken from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payer {
    /// A station on the link.
    Station(By),
    /// A host behind a router on the link: its own share, and the router's.
    Behind { router: By, host: IpAddr },
}

fn bucket(now: Instant, (per_second, burst): Rate) -> Bucket {
    Bucket::new(now, burst, per_second)
}

/// The limits of one kind of claims: each host's share, and all of them.
#[derive(Debug)]
struct Searches {
    each: Vec<Bucket>,
    all: Bucket,
}

impl Searches {
    fn new(now: Instant, shares: usize) -> Self {
        Self { each: vec![bucket(now, SEARCHES_EACH); shares], all: bucket(now, SEARCHES) }
    }

    /// Takes one search for the host with this hash. Takes from its share first, so that a host without
    /// tokens takes nothing from others.
    fn take(&mut self, now: Instant, hash: u64) -> bool {
        let share = hash as usize % self.each.len().max(1);
        self.each.get_mut(share).is_some_and(|each| each.take(now)) && self.all.take(now)
    }
}

/// All limits of a segment.
#[derive(Debug)]
pub(super) struct Limits {
    /// Ping replies have a bucket of their own: a flood of pings does not suppress errors.
    pub(super) echo: Bucket,
    errors: Bucket,
    errors_each: Vec<Bucket>,
    lookups_each: Vec<Bucket>,
    lookups_router: Vec<Bucket>,
    announcements_each: Vec<Bucket>,
    heard_each: Vec<Bucket>,
    hash: FixedState,
    /// Requests on the InfiniBand side for its own hosts, and on the Ethernet side.
    pub(super) infiniband_requests: Bucket,
    pub(super) ethernet_requests: Bucket,
    /// Probes of Ethernet hosts that are carried to the InfiniBand side.
    pub(super) probes: Bucket,
    /// Probes for Ethernet hosts that have been heard.
    pub(super) returning_requests: Bucket,
    /// Claims of each side, by [`Side`]: to addresses that were learned at the claimant before, and to all
    /// others.
    known: [Searches; 2],
    unknown: [Searches; 2],
    /// Addresses that were proven and learned, each at its hardware address.
    proven: Heard,
    /// Questions to the other side for a host of each side, by [`Side`], before it is answered for.
    own_side: [Bucket; 2],
    /// The same for hosts that are known from reports.
    reported: Bucket,
    /// Announcements of Ethernet hosts that were proven just now.
    pub(super) new_hosts: Bucket,
    /// Queries of host discovery.
    pub(super) discovery: Bucket,
    /// Hosts that have answered them.
    pub(super) discovered: Bucket,
    /// Announcements on the InfiniBand side, and on the Ethernet side.
    infiniband_announcements: Bucket,
    ethernet_announcements: Bucket,
}

impl Limits {
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        Self {
            echo: bucket(now, ECHO),
            errors: bucket(now, ERRORS),
            errors_each: vec![bucket(now, ERRORS_EACH); SHARES],
            lookups_each: vec![bucket(now, LOOKUPS_EACH); LOOKUP_SHARES],
            lookups_router: vec![bucket(now, LOOKUPS_ROUTER); SHARES],
            announcements_each: vec![bucket(now, ANNOUNCEMENTS_EACH); LOOKUP_SHARES],
            hash: FixedState::with_seed(seed),
            known: [Searches::new(now, SHARES), Searches::new(now, SHARES)],
            unknown: [Searches::new(now, LOOKUP_SHARES), Searches::new(now, LOOKUP_SHARES)],
            proven: Heard::new(seed.rotate_left(20)),
            own_side: [bucket(now, LOOKUPS); 2],
            reported: bucket(now, LOOKUPS),
            heard_each: vec![bucket(now, SEARCHES_EACH); LOOKUP_SHARES],
            infiniband_requests: bucket(now, REQUESTS),
            ethernet_requests: bucket(now, REQUESTS),
            probes: bucket(now, SEARCHES),
            returning_requests: bucket(now, REQUESTS),
            new_hosts: bucket(now, ANNOUNCEMENTS),
            discovery: bucket(now, DISCOVERY),
            discovered: bucket(now, DISCOVERED),
            infiniband_announcements: bucket(now, ANNOUNCEMENTS),
            ethernet_announcements: bucket(now, ANNOUNCEMENTS),
        }
    }

    /// True if one more address may be looked up on behalf of a host. While there is room for many, this
    /// holds for all hosts.
    pub(super) fn take_lookup(&mut self, now: Instant, payer: Payer, room: bool) -> bool {
        let (by, router) = match payer {
            Payer::Station(by) => (by, None),
            Payer::Behind { router, host } => (By::Beyond(host), Some(router)),
        };
        let share = self.hash.hash_one(by) as usize % LOOKUP_SHARES;
        let own = self.lookups_each.get_mut(share).is_some_and(|b| b.take(now));
        // The host's own share first: a host without tokens takes nothing from the others behind the router.
        let both = own
            && router.is_none_or(|router| {
                let share = self.hash.hash_one(router) as usize % SHARES;
                self.lookups_router.get_mut(share).is_some_and(|b| b.take(now))
            });
        both || room
    }

    /// True if a side may be queried because a host of the other one claims an address at `place`. Hosts of
    /// the two sides have separate budgets, and so have hosts that were learned before and hosts that were
    /// not.
    pub(super) fn take_search(&mut self, now: Instant, ip: IpAddr, place: Place, of: By) -> bool {
        let (side, hash) = (side_of(place) as usize, self.hash.hash_one(of));
        let is_known = self.proven.has(self.mark(ip, place));
        let take = |kind: &mut [Searches; 2]| kind.get_mut(side).is_some_and(|s| s.take(now, hash));
        (is_known && take(&mut self.known)) || take(&mut self.unknown)
    }

    /// An address was proven to be at a hardware address, and its host is learned.
    pub(super) fn note_proven(&mut self, ip: IpAddr, place: Place) {
        self.proven.note(self.mark(ip, place));
    }

    /// The hash of an address at a hardware address.
    fn mark(&self, ip: IpAddr, place: Place) -> IpAddr {
        let hash = match place {
            Place::Ethernet(mac) => self.hash.hash_one((ip, mac.0)),
            Place::InfiniBand(at) => self.hash.hash_one((ip, at.gid.0, at.qpn.get())),
        };
        IpAddr::V6(Ipv6Addr::from_bits(hash.into()))
    }

    /// True if the other side may be queried for a host of `side`. `is_reported`: it is known from a report.
    pub(super) fn take_own_side(&mut self, now: Instant, side: Side, is_reported: bool) -> bool {
        let own = self.own_side.get_mut(side as usize);
        let bucket = if is_reported { Some(&mut self.reported) } else { own };
        bucket.is_some_and(|bucket| bucket.take(now))
    }

    /// True if discovery may query an address that a host has mentioned. Discovery has a limit of its own for
    /// all hosts.
    pub(super) fn take_heard(&mut self, now: Instant, of: By) -> bool {
        let share = self.hash.hash_one(of) as usize % LOOKUP_SHARES;
        self.heard_each.get_mut(share).is_some_and(|b| b.take(now))
    }

    /// True if an announcement that a host has brought about may go to a side.
    pub(super) fn take_announcement(&mut self, now: Instant, side: Side, of: By) -> bool {
        let share = self.hash.hash_one(of) as usize % LOOKUP_SHARES;
        // The host's own share first, as with errors.
        self.announcements_each.get_mut(share).is_some_and(|b| b.take(now))
            && match side {
                Side::Ethernet => self.ethernet_announcements.take(now),
                Side::InfiniBand => self.infiniband_announcements.take(now),
            }
    }

    /// True if an ICMP error may go to a host (RFC 1812 4.3.2.8).
    pub(super) fn take_error(&mut self, now: Instant, to: IpAddr) -> bool {
        let share = self.hash.hash_one(to) as usize % SHARES;
        // The host's own share first: a host without tokens takes nothing from the others.
        self.errors_each.get_mut(share).is_some_and(|b| b.take(now)) && self.errors.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::discovery::MOST;

    #[test]
    fn the_manual_has_these_rates() {
        let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/manual/limits.md");
        let manual = std::fs::read_to_string(manual).unwrap();
        let number = |n: u32| if n < 1000 { n.to_string() } else { format!("{},{:03}", n / 1000, n % 1000) };
        let rate =
            |(per_second, burst): Rate| format!("{} at once, {} a second", number(burst), number(per_second));
        let both = |each, (per_second, burst): Rate| {
            format!("{}; {} and {}", rate(each), number(burst), number(per_second))
        };
        for cell in [
            format!("| {}, once half of the room is in use | one host |", rate(LOOKUPS_EACH)),
            format!("| {}, once half of the room is in use | one router |", rate(LOOKUPS_ROUTER)),
            format!("| {}, each of the three | all |", rate(REQUESTS)),
            format!(
                "because of a claim | {} for all of a side, and the same again for addresses",
                both(SEARCHES_EACH, SEARCHES)
            ),
            format!("of the requester's own side | {}, of each side |", rate(LOOKUPS)),
            format!("that are known from reports | {} |", rate(LOOKUPS)),
            format!("probes of Ethernet hosts on InfiniBand | {} |", rate(SEARCHES)),
            format!("carried across | {} to a side for all |", both(ANNOUNCEMENTS_EACH, ANNOUNCEMENTS)),
            format!("proven just now | {} | all |", rate(ANNOUNCEMENTS)),
            format!(
                "when the gateway starts to forward | {}, {} addresses",
                rate(DISCOVERY),
                number(MOST as u32)
            ),
            format!(
                "hosts that answer queries of discovery (the three rows above) | {} | all |",
                rate(DISCOVERED)
            ),
            format!("| ping replies | {} | all |", rate(ECHO)),
            format!("| ICMP errors | {} for all |", both(ERRORS_EACH, ERRORS)),
        ] {
            assert!(manual.contains(&cell), "{cell}");
        }
    }
}
