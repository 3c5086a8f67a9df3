//! The neighbour table of the workers: immutable, with a cheap copy for each change.
//!
//! A table is a fixed array of shared shards. Changing one neighbour of 4096 copies the array of 256 pointers
//! and one shard of some 16 entries. Hosts choose their addresses, so each table's hash has a secret random
//! seed. The entry's destination type is a parameter: the link uses `UdDestination`, a worker uses the form
//! that its device has prepared from that.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hca::{RcSlot, UdDestination};

use ib_wire::ipoib::HardwareAddress;

const SHARDS: usize = 256;

/// An established connection of one worker to a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcPath {
    /// Its slot in the worker's table.
    pub slot: RcSlot,
    /// Largest message that the peer takes, encapsulation header included: 5 to 65,524.
    pub mtu: u32,
}

/// A neighbour whose link-layer address and path are known.
#[derive(Clone, PartialEq, Debug)]
pub struct Neighbour<D = UdDestination> {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its link-layer address.
    pub hardware: HardwareAddress,
    /// Destination of datagrams; `None` while the path is looked up.
    pub ud: Option<D>,
    /// Connections, by worker index; shorter than the number of workers if the remaining ones have none.
    pub rc: Vec<Option<RcPath>>,
    /// True if a worker without a connection should report that it sends to this neighbour
    /// ([`super::Link::handle_used`], with a rate limit), so that a connection is dialled.
    pub dial: bool,
}

impl<D> Neighbour<D> {
    /// The connection of worker `worker`, if it is up.
    #[must_use]
    pub fn rc(&self, worker: u8) -> Option<RcPath> {
        self.rc.get(usize::from(worker)).copied().flatten()
    }

    /// The same neighbour with another kind of destination.
    pub fn map<E>(&self, convert: impl FnOnce(&D) -> E) -> Neighbour<E> {
        Neighbour {
            ip: self.ip,
            hardware: self.hardware,
            ud: self.ud.as_ref().map(convert),
            rc: self.rc.clone(),
            dial: self.dial,
        }
    }

    /// The same neighbour with its destination prepared by `prepare`.
    pub fn try_map<E, F, Err>(&self, prepare: F) -> Result<Neighbour<E>, Err>
    where
        F: FnOnce(&D) -> Result<E, Err>,
    {
        Ok(Neighbour {
            ip: self.ip,
            hardware: self.hardware,
            ud: self.ud.as_ref().map(prepare).transpose()?,
            rc: self.rc.clone(),
            dial: self.dial,
        })
    }
}

/// A change from one table to the next.
#[derive(Clone, PartialEq, Debug)]
pub enum NeighbourChange<D = UdDestination> {
    /// The neighbour is new or changed.
    Set(Neighbour<D>),
    /// The neighbour was removed.
    Remove(IpAddr),
}

impl<D> NeighbourChange<D> {
    /// The neighbour's IP address.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        match self {
            Self::Set(n) => n.ip,
            Self::Remove(ip) => *ip,
        }
    }
}

type Shard<D> = Vec<Arc<Neighbour<D>>>;

/// An immutable neighbour table.
#[derive(Clone, Debug)]
pub struct Neighbours<D = UdDestination> {
    shards: Box<[Arc<Shard<D>>]>,
    len: usize,
    hash: FixedState,
}

impl<D> Default for Neighbours<D> {
    fn default() -> Self {
        let empty = Arc::new(Vec::new());
        let hash = FixedState::with_seed(RandomState::new().hash_one(SHARDS));
        Self { shards: vec![empty; SHARDS].into_boxed_slice(), len: 0, hash }
    }
}

impl<D> Neighbours<D> {
    fn shard_of(&self, ip: IpAddr) -> usize {
        let hash = match ip {
            IpAddr::V4(ip) => self.hash.hash_one(ip.to_bits()),
            IpAddr::V6(ip) => self.hash.hash_one(ip.to_bits()),
        };
        hash as usize % SHARDS
    }

    /// The neighbour with this address. Allocates nothing.
    #[must_use]
    pub fn get(&self, ip: impl Into<IpAddr>) -> Option<&Neighbour<D>> {
        let ip = ip.into();
        let shard = self.shards.get(self.shard_of(ip))?;
        shard.iter().find(|n| n.ip == ip).map(Arc::as_ref)
    }

    /// The number of neighbours.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the table is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All neighbours, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Neighbour<D>> {
        self.shards.iter().flat_map(|s| s.iter().map(Arc::as_ref))
    }

    /// A copy of this table with some changes; unchanged shards are shared.
    #[must_use]
    pub fn with(&self, changes: impl IntoIterator<Item = NeighbourChange<D>>) -> Self {
        let mut next = Self { shards: self.shards.clone(), len: self.len, hash: self.hash.clone() };
        for change in changes {
            let ip = change.ip();
            let Some(shard) = next.shards.get_mut(self.shard_of(ip)) else { continue };
            let entries = Arc::make_mut(shard);
            let at = entries.iter().position(|n| n.ip == ip);
            match (change, at) {
                (NeighbourChange::Set(n), Some(at)) => {
                    if let Some(entry) = entries.get_mut(at) {
                        *entry = Arc::new(n);
                    }
                }
                (NeighbourChange::Set(n), None) => {
                    entries.push(Arc::new(n));
                    next.len += 1;
                }
                (NeighbourChange::Remove(_), Some(at)) => {
                    entries.swap_remove(at);
                    next.len -= 1;
                }
                (NeighbourChange::Remove(_), None) => {}
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::ipoib::AddressFlags;
    use ib_wire::{Gid, Qpn};
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn v4(ip: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(ip).into()
    }

    fn neighbour(ip: u32, qpn: u32) -> Neighbour<u32> {
        let hardware = HardwareAddress { flags: AddressFlags::NONE, qpn: Qpn::new(qpn), gid: Gid::ZERO };
        Neighbour { ip: v4(ip), hardware, ud: Some(qpn), rc: vec![None, None], dial: false }
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u32..64, any::<bool>(), 0u32..1000), 0..200)) {
            let mut table = Neighbours::default();
            let mut model = HashMap::new();
            for (ip, set, qpn) in steps {
                let before = (table.clone(), model.clone());
                let change = if set {
                    model.insert(ip, qpn);
                    NeighbourChange::Set(neighbour(ip, qpn))
                } else {
                    model.remove(&ip);
                    NeighbourChange::Remove(v4(ip))
                };
                table = table.with([change]);
                for (t, m) in [&before, &(table.clone(), model.clone())] {
                    prop_assert_eq!(t.len(), m.len());
                    prop_assert_eq!(t.iter().count(), m.len());
                    for ip in 0..64 {
                        prop_assert_eq!(t.get(v4(ip)).and_then(|n| n.ud), m.get(&ip).copied());
                    }
                }
            }
        }
    }

    /// Addresses that a host has chosen because another table has them in one shard.
    #[test]
    fn nobody_can_choose_addresses_of_one_shard() {
        let [known, other] = [(); 2].map(|()| Neighbours::<u32>::default());
        let chosen = (0..1_000_000).filter(|ip| known.shard_of(v4(*ip)) == 0).take(1000);
        let table = other.with(chosen.map(|ip| NeighbourChange::Set(neighbour(ip, 1))));
        assert_eq!(table.len(), 1000);
        assert!(table.shards.iter().all(|shard| shard.len() < 100));
    }

    #[test]
    fn a_change_copies_one_shard_only() {
        let full: Neighbours<u32> =
            Neighbours::default().with((0..4096).map(|i| NeighbourChange::Set(neighbour(i, i))));
        let next = full.with([NeighbourChange::Set(neighbour(7, 8))]);
        let copied = full.shards.iter().zip(&next.shards).filter(|(a, b)| !Arc::ptr_eq(a, b)).count();
        assert_eq!(copied, 1);
        assert!(full.shards.iter().all(|s| s.len() < 48), "the hash spreads");
        assert_eq!(full.get(v4(7)).and_then(|n| n.ud), Some(7));
        assert_eq!(next.get(v4(7)).and_then(|n| n.ud), Some(8));
    }
}
