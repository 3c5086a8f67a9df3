//! Subnets and routes of a segment: longest-prefix match for the next hop.
//!
//! The next hop of a packet is its destination if that is on the link. Otherwise it is the router of the
//! longest matching prefix. The table is a sorted list of disjoint address ranges. A lookup is a binary
//! search in at most 641 of them.

use std::net::Ipv4Addr;
use std::sync::Arc;

/// Maximum number of routes of a segment.
pub const MAX_ROUTES: usize = config::MAX_ROUTES;
/// Maximum number of subnets of a segment.
pub const MAX_SUBNETS: usize = config::MAX_SUBNETS;

/// A network prefix. The host bits of its address are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    network: u32,
    mask: u32,
}

impl Prefix {
    /// The network of `len` bits in which `address` lies; `None` if `len` is above 32.
    #[must_use]
    pub const fn of(address: Ipv4Addr, len: u8) -> Option<Self> {
        let mask = match len {
            0 => 0,
            1..=32 => u32::MAX << (32 - len),
            _ => return None,
        };
        Some(Self { network: address.to_bits() & mask, mask })
    }

    /// True if `ip` is in the network.
    #[inline]
    #[must_use]
    pub const fn contains(&self, ip: Ipv4Addr) -> bool {
        ip.to_bits() & self.mask == self.network
    }

    /// True if the network has a broadcast and a network address. Networks of one or two addresses have
    /// neither (RFC 3021).
    #[inline]
    const fn has_ends(&self) -> bool {
        self.mask < u32::MAX << 1
    }

    /// True if `ip` is the broadcast address.
    #[inline]
    #[must_use]
    pub const fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        self.has_ends() && ip.to_bits() == self.last()
    }

    /// True if `ip` is the network address, which no host has. Old stacks took it for the broadcast address.
    #[inline]
    #[must_use]
    pub const fn is_network(&self, ip: Ipv4Addr) -> bool {
        self.has_ends() && ip.to_bits() == self.network
    }

    /// The first and the last host address.
    #[inline]
    #[must_use]
    pub const fn hosts(&self) -> (Ipv4Addr, Ipv4Addr) {
        let ends = self.has_ends() as u32;
        (Ipv4Addr::from_bits(self.network + ends), Ipv4Addr::from_bits(self.last() - ends))
    }

    /// Number of addresses.
    #[must_use]
    pub const fn size(&self) -> u64 {
        !self.mask as u64 + 1
    }

    const fn last(&self) -> u32 {
        self.network | !self.mask
    }
}

/// A route: packets for `to` go to the router `via`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The destination network; the default route has length 0.
    pub to: Prefix,
    /// The next hop: a host of the segment's own subnets, on either side.
    pub via: Ipv4Addr,
}

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    /// The address is in this subnet of the segment.
    OnLink(Prefix),
    /// Packets for the address go to this router.
    Via(Ipv4Addr),
}

/// A segment has too many subnets or routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{subnets} subnets and {routes} routes: a segment has at most {MAX_SUBNETS} and {MAX_ROUTES}; a shorter prefix covers many"
)]
pub struct TooManyRoutes {
    subnets: usize,
    routes: usize,
}

/// The first address of a range and the result for the range.
type Range = (u32, Option<Hop>);

/// Subnets and routes of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Routes {
    /// Sorted; the first starts at 0. `None` if there is neither a subnet nor a route.
    ranges: Option<Arc<[Range]>>,
}

impl Routes {
    /// Creates a table. Addresses of a subnet are on the link, whatever the routes are. If two routes have
    /// the same network, the first is used.
    pub fn new(subnets: &[Prefix], routes: &[Route]) -> Result<Self, TooManyRoutes> {
        if subnets.len() > MAX_SUBNETS || routes.len() > MAX_ROUTES {
            return Err(TooManyRoutes { subnets: subnets.len(), routes: routes.len() });
        }
        // The result can only change at the start of a network and behind its end.
        let networks = subnets.iter().chain(routes.iter().map(|r| &r.to));
        let edges = networks.flat_map(|n| [Some(n.network), n.last().checked_add(1)]).flatten();
        let mut starts: Vec<u32> = edges.collect();
        if !subnets.is_empty() || !routes.is_empty() {
            starts.push(0);
        }
        starts.sort_unstable();
        starts.dedup();
        let ranges = starts.into_iter().map(|at| (at, scan(Ipv4Addr::from_bits(at), subnets, routes)));
        let ranges: Arc<[Range]> = ranges.collect();
        Ok(Self { ranges: (!ranges.is_empty()).then_some(ranges) })
    }

    /// Looks up an address.
    #[must_use]
    pub fn get(&self, ip: Ipv4Addr) -> Option<Hop> {
        let ranges = self.ranges.as_ref()?;
        let behind = ranges.partition_point(|(start, _)| *start <= ip.to_bits());
        ranges.get(behind.checked_sub(1)?)?.1
    }

    /// The subnets in the order of their addresses. A subnet that contains others may occur more than once.
    pub fn subnets(&self) -> impl Iterator<Item = Prefix> {
        self.ranges.iter().flat_map(|ranges| ranges.iter()).filter_map(|(_, hop)| match hop {
            Some(Hop::OnLink(subnet)) => Some(*subnet),
            Some(Hop::Via(_)) | None => None,
        })
    }

    /// True if there is neither a subnet nor a route.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_none()
    }
}

/// Looks up an address by a linear scan.
fn scan(ip: Ipv4Addr, subnets: &[Prefix], routes: &[Route]) -> Option<Hop> {
    let longest = |best: Option<Prefix>, n: &Prefix| match best {
        Some(best) if best.mask >= n.mask => Some(best),
        _ => Some(*n),
    };
    if let Some(subnet) = subnets.iter().filter(|n| n.contains(ip)).fold(None, longest) {
        return Some(Hop::OnLink(subnet));
    }
    let to = routes.iter().map(|r| &r.to).filter(|n| n.contains(ip)).fold(None, longest)?;
    routes.iter().find(|r| r.to == to).map(|r| Hop::Via(r.via))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, len) = text.split_once('/').unwrap();
        Prefix::of(address.parse().unwrap(), len.parse().unwrap()).unwrap()
    }

    fn route(to: &str, via: &str) -> Route {
        Route { to: prefix(to), via: via.parse().unwrap() }
    }

    #[test]
    fn the_longest_prefix_matches_and_subnets_precede_routes() {
        let routes = Routes::new(
            &[prefix("10.77.0.0/24"), prefix("10.78.0.0/16")],
            &[
                route("0.0.0.0/0", "10.77.0.1"),
                route("10.0.0.0/8", "10.77.0.2"),
                route("10.80.0.0/16", "10.77.0.3"),
                route("10.80.0.0/16", "10.77.0.4"),
                route("10.77.0.9/32", "10.77.0.5"),
                route("255.255.255.254/31", "10.77.0.6"),
            ],
        )
        .unwrap();
        let get = |ip: &str| routes.get(ip.parse().unwrap()).unwrap();
        let via = |n| Hop::Via(Ipv4Addr::new(10, 77, 0, n));
        assert_eq!(get("10.77.0.9"), Hop::OnLink(prefix("10.77.0.0/24")));
        assert_eq!(get("10.78.255.255"), Hop::OnLink(prefix("10.78.0.0/16")));
        assert_eq!(get("10.79.0.0"), via(2));
        assert_eq!(get("10.80.0.0"), via(3));
        assert_eq!(get("10.80.255.255"), via(3));
        assert_eq!(get("10.81.0.0"), via(2));
        assert_eq!(get("11.0.0.0"), via(1));
        assert_eq!(get("255.255.255.255"), via(6));
        assert_eq!(Routes::default().get(Ipv4Addr::UNSPECIFIED), None);
        let one = Routes::new(&[], &[route("10.0.0.0/8", "10.77.0.1")]).unwrap();
        assert_eq!([[9, 255, 255, 255], [11, 0, 0, 0]].map(|ip| one.get(ip.into())), [None; 2]);
    }

    #[test]
    fn more_than_the_maximum_is_refused() {
        let routes = vec![route("0.0.0.0/0", "10.77.0.1"); MAX_ROUTES + 1];
        assert!(Routes::new(&[], &routes[1..]).is_ok());
        assert!(Routes::new(&[], &routes).unwrap_err().to_string().contains("257 routes"));
        let subnets = vec![prefix("10.0.0.0/8"); MAX_SUBNETS + 1];
        assert!(Routes::new(&subnets, &[]).is_err());
    }

    fn any_prefix() -> impl Strategy<Value = Prefix> {
        // Few values for each byte, so that networks contain each other.
        let byte = prop::sample::select(vec![0u8, 1, 10, 127, 128, 254, 255]);
        (prop::array::uniform4(byte), 0u8..=32).prop_map(|(ip, len)| Prefix::of(ip.into(), len).unwrap())
    }

    proptest! {
        #[test]
        fn a_lookup_equals_a_linear_scan(
            subnets in prop::collection::vec(any_prefix(), 0..6),
            to in prop::collection::vec(any_prefix(), 0..40),
            near in prop::collection::vec((any_prefix(), -1i64..=1), 40),
            far in any::<[u32; 8]>(),
        ) {
            let routes: Vec<_> = to.iter().zip(1u32..).map(|(&to, n)| Route { to, via: n.into() }).collect();
            let table = Routes::new(&subnets, &routes).unwrap();
            let ranges = table.ranges.as_ref().map_or(0, |r| r.len());
            prop_assert!(ranges <= 1 + 2 * (subnets.len() + routes.len()));
            let edges = near.iter().map(|(n, _)| *n).zip(&near).flat_map(|(n, (_, by))| {
                [n.network, n.last()].map(|at| i64::from(at).wrapping_add(*by) as u32)
            });
            for ip in edges.chain(far).map(Ipv4Addr::from_bits) {
                prop_assert_eq!(table.get(ip), scan(ip, &subnets, &routes), "{}", ip);
            }
        }
    }
}
