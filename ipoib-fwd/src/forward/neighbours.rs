//! Table entries for neighbors.

use std::sync::Arc;

use pmd::hca::RcSlot;

use ipoib::link::{self, RcPath, WorkerIndex};
use ipoib::net::ethernet::MacAddress;

/// Index of a neighbor on its side of its segment, below twice the maximum number of neighbors. It is stable
/// for the lifetime of the neighbor. Workers use it to mark the neighbors that they have sent to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NeighbourIndex(pub u32);

/// Number of workers whose connections an entry holds inline; the others are behind a pointer.
const FEW: usize = 4;

/// The connections to a neighbour, by worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RcPaths {
    few: [Slot; FEW],
    more: Option<Arc<[Slot]>>,
}

/// An optional connection in eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Slot {
    /// 0 if there is no connection.
    mtu: u32,
    slot: u16,
}

impl From<&Option<RcPath>> for Slot {
    fn from(path: &Option<RcPath>) -> Self {
        path.map_or_else(Self::default, |RcPath { slot, mtu }| Self { mtu, slot: slot.0 })
    }
}

impl RcPaths {
    /// Creates the list in the order of the workers. Workers beyond the last have no connection.
    #[must_use]
    pub fn new(by_worker: &[Option<RcPath>]) -> Self {
        let (few, more) = by_worker.split_at(by_worker.len().min(FEW));
        let more = (!more.is_empty()).then(|| more.iter().map(Slot::from).collect());
        let mut paths = Self { few: Default::default(), more };
        for (slot, path) in paths.few.iter_mut().zip(few) {
            *slot = path.into();
        }
        paths
    }

    /// The connection of a worker, if it is up.
    #[inline]
    #[must_use]
    pub fn of(&self, worker: WorkerIndex) -> Option<RcPath> {
        let worker = usize::from(worker.0);
        let Slot { mtu, slot } = match self.few.get(worker) {
            Some(slot) => *slot,
            None => *self.more.as_ref()?.get(worker - FEW)?,
        };
        (mtu != 0).then_some(RcPath { slot: RcSlot(slot), mtu })
    }
}

/// A host of the InfiniBand side.
// Field order: the fields that packets on connections use are on one cache line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct IbNeighbour<D> {
    /// The workers' connections to it.
    pub rc: RcPaths,
    /// True if a worker without a connection must notify the control lcore when it sends to this neighbor.
    /// The control lcore then sets up a connection.
    pub dial: bool,
    /// Destination of datagrams; `None` while the path is resolved.
    pub ud: Option<D>,
}

impl<D: Clone> IbNeighbour<D> {
    /// The workers' part of a neighbor that the link has published.
    #[must_use]
    pub fn of(neighbour: &link::Neighbour<D>) -> Self {
        Self { ud: neighbour.ud.clone(), rc: RcPaths::new(&neighbour.rc), dial: neighbour.dial }
    }
}

/// A host of the Ethernet side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthNeighbour {
    /// Its link-layer address.
    pub mac: MacAddress,
}
