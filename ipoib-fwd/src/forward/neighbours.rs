//! What is known of a host.

use std::sync::Arc;

use pmd::hca::RcSlot;

use ipoib::link::{self, RcPath, WorkerIndex};
use ipoib::net::ethernet::MacAddress;

/// Number of a neighbour on its side of its segment, below twice the most that there may be; it stays as long as the neighbour does.
/// Workers mark by it which neighbours they sent to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NeighbourIndex(pub u32);

/// Workers whose connections an entry has room for; those of more are behind a pointer.
const FEW: usize = 4;

/// The connections to a neighbour, by worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RcPaths {
    few: [Way; FEW],
    more: Option<Arc<[Way]>>,
}

/// A connection, if there is one, in eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Way {
    /// 0: there is none.
    mtu: u32,
    slot: u16,
}

impl From<&Option<RcPath>> for Way {
    fn from(path: &Option<RcPath>) -> Self {
        path.map_or_else(Self::default, |RcPath { slot, mtu }| Self { mtu, slot: slot.0 })
    }
}

impl RcPaths {
    /// Connections in the order of their workers; workers beyond the last have none.
    #[must_use]
    pub fn new(by_worker: &[Option<RcPath>]) -> Self {
        let (few, more) = by_worker.split_at(by_worker.len().min(FEW));
        let more = (!more.is_empty()).then(|| more.iter().map(Way::from).collect());
        let mut paths = Self { few: Default::default(), more };
        for (place, path) in paths.few.iter_mut().zip(few) {
            *place = path.into();
        }
        paths
    }

    /// The connection of a worker, if it is up.
    #[inline]
    #[must_use]
    pub fn of(&self, worker: WorkerIndex) -> Option<RcPath> {
        let worker = usize::from(worker.0);
        let Way { mtu, slot } = match self.few.get(worker) {
            Some(way) => *way,
            None => *self.more.as_ref()?.get(worker - FEW)?,
        };
        (mtu != 0).then_some(RcPath { slot: RcSlot(slot), mtu })
    }
}

/// A host of the InfiniBand side.
// In this order: what packets by connections touch is on one cache line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct IbNeighbour<D> {
    /// The workers' connections to it.
    pub rc: RcPaths,
    /// True if a worker without a connection should tell that it sends to this neighbour, so that one is dialled.
    pub dial: bool,
    /// Where datagrams go; `None` while the path is looked up.
    pub ud: Option<D>,
}

impl<D: Clone> IbNeighbour<D> {
    /// What workers need to know of a neighbour that the link published.
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
