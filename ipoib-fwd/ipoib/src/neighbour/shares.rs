//! Shares of link-layer holders in the neighbours that carry traffic: one host that claims many addresses
//! must not fill the table.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;

use foldhash::fast::FixedState;
use ib_wire::Gid;
use ib_wire::ipoib::HardwareAddress;

use crate::net::ethernet::MacAddress;

/// A link-layer address.
pub trait LinkLayer: Copy + Eq + Debug {
    /// Identity of the host that owns the address: common to all of its link-layer addresses, as far as that
    /// is visible.
    type Holder: Copy + Ord + Hash + Debug;

    /// The address's holder.
    fn holder(&self) -> Self::Holder;
}

impl LinkLayer for MacAddress {
    type Holder = Self;

    fn holder(&self) -> Self {
        *self
    }
}

impl LinkLayer for HardwareAddress {
    type Holder = Gid;

    /// The port: its owner can create any number of queue pairs.
    fn holder(&self) -> Gid {
        self.gid
    }
}

/// Neighbours by holder, and holders by their number of neighbours.
#[derive(Debug)]
pub(super) struct Shares<H> {
    counts: HashMap<H, u32, FixedState>,
    by_count: BTreeSet<(u32, H)>,
    held: BTreeSet<(H, IpAddr)>,
}

impl<H: Copy + Ord + Hash> Shares<H> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            counts: HashMap::with_hasher(FixedState::with_seed(seed)),
            by_count: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    pub(super) fn add(&mut self, holder: H, ip: IpAddr) {
        if self.held.insert((holder, ip)) {
            self.count(holder, |n| n + 1);
        }
    }

    pub(super) fn remove(&mut self, holder: H, ip: IpAddr) {
        if self.held.remove(&(holder, ip)) {
            self.count(holder, |n| n - 1);
        }
    }

    fn count(&mut self, holder: H, change: impl FnOnce(u32) -> u32) {
        let before = self.counts.remove(&holder).unwrap_or(0);
        self.by_count.remove(&(before, holder));
        let n = change(before);
        if n > 0 {
            self.counts.insert(holder, n);
            self.by_count.insert((n, holder));
        }
    }

    /// A neighbour of the holder that has most, if it has more than `share`.
    pub(super) fn beyond(&self, share: u32) -> Option<IpAddr> {
        let (_, holder) = self.by_count.last().filter(|(n, _)| *n > share)?;
        let lowest = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        let (_, ip) = self.held.range((*holder, lowest)..).next()?;
        Some(*ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::Qpn;
    use ib_wire::ipoib::AddressFlags;

    #[test]
    fn queue_pairs_of_one_port_share() {
        let mut shares = Shares::new(1);
        let at = |port: u8, qpn| HardwareAddress {
            flags: AddressFlags::RC,
            qpn: Qpn::new(qpn),
            gid: Gid([port; 16]),
        };
        let ip = |n: u8| IpAddr::V4([10, 0, 0, n].into());
        for n in 0..4 {
            shares.add(at(1, n.into()).holder(), ip(n));
            shares.add(at(1, n.into()).holder(), ip(n));
            shares.add(at(2, 7).holder(), ip(100));
        }
        assert_eq!(shares.beyond(4), None);
        assert_eq!(shares.beyond(3), Some(ip(0)));
        shares.remove(at(1, 0).holder(), ip(0));
        shares.remove(at(1, 0).holder(), ip(0));
        assert_eq!((shares.beyond(3), shares.beyond(2)), (None, Some(ip(1))));
        (1..4).for_each(|n| shares.remove(at(1, 9).holder(), ip(n)));
        shares.remove(at(2, 9).holder(), ip(100));
        assert!(shares.counts.is_empty() && shares.by_count.is_empty() && shares.held.is_empty());
    }
}
