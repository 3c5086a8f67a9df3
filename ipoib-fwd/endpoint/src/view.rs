//! Lookup tables of a worker: the link's state and neighbours, with destinations that its device has
//! prepared.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use dataplane::quiescence::Grace;
use dataplane::table::{Publisher, Reader};
use dataplane::usage::{Marks, Usage};

use ipoib::link::{LinkIndex, LinkState, NeighbourChange, Neighbours};

/// A prepared datagram destination, and the number by which its use is marked.
#[derive(Clone, Debug)]
pub struct Peer<D> {
    /// The destination.
    pub to: D,
    /// See [`LinkView::used`].
    pub number: u32,
}

/// A new state of the link, with destinations that the device has prepared: what a [`Board`] publishes.
#[derive(Clone, Debug)]
pub struct LinkUpdate<D> {
    /// The link.
    pub link: LinkIndex,
    /// The link as a whole.
    pub state: Arc<LinkState>,
    /// The broadcast group, if joined.
    pub broadcast: Option<D>,
    /// Other joined groups.
    pub groups: Vec<(Ipv4Addr, D)>,
    /// Neighbours that were added, changed or removed.
    pub changes: Vec<NeighbourChange<D>>,
}

/// Publishes an endpoint's link tables to its workers, in the shape that its workers look up.
pub trait Board<D> {
    /// Publishes. When it returns, a worker that refreshes its tables sees the update. When the grace period
    /// has passed, no worker reads older tables.
    fn publish(&mut self, update: LinkUpdate<D>) -> Grace;

    /// True if no worker reads tables older than those of a publication.
    fn passed(&self, grace: Grace) -> bool;
}

/// An immutable snapshot of the link: the tables of a host, which has nothing else to look up.
#[derive(Clone, Debug)]
pub struct LinkView<D> {
    /// The link as a whole.
    pub state: Arc<LinkState>,
    /// Neighbours by IP address.
    pub neighbours: Neighbours<Peer<D>>,
    /// The broadcast group, if joined.
    pub broadcast: Option<D>,
    /// Other joined groups.
    pub groups: Vec<(Ipv4Addr, D)>,
    /// The worker's marks of the neighbours that it has sent to.
    pub used: Marks,
}

/// Largest number of neighbours whose use is marked: more than a link has.
const MOST: usize = 1 << 16;

/// Publishes [`LinkView`]s to one worker.
#[derive(Debug)]
pub struct ViewBoard<D> {
    view: LinkView<D>,
    numbers: HashMap<IpAddr, u32>,
    used: Usage<IpAddr>,
    publisher: Publisher<LinkView<D>>,
}

impl<D: Clone> ViewBoard<D> {
    /// Creates a board whose first view is of a link that is down.
    #[must_use]
    pub fn new(state: Arc<LinkState>) -> Self {
        let used = Usage::new(MOST, 1);
        let marks = used.marks().first().cloned().unwrap_or_else(|| Marks::new(MOST));
        let view = LinkView {
            state,
            neighbours: Neighbours::default(),
            broadcast: None,
            groups: Vec::new(),
            used: marks,
        };
        Self { publisher: Publisher::new(view.clone()), view, numbers: HashMap::new(), used }
    }

    /// Returns the neighbours that the worker has sent to since the last call.
    #[must_use]
    pub fn take_used(&self) -> Vec<IpAddr> {
        self.used.take(0)
    }

    fn peer(&mut self, change: NeighbourChange<D>) -> NeighbourChange<Peer<D>> {
        match change {
            NeighbourChange::Set(neighbour) => {
                let Self { numbers, used, .. } = self;
                let number = *numbers.entry(neighbour.ip).or_insert_with_key(|ip| {
                    // Above the limit, use is not marked.
                    used.add(*ip).unwrap_or(u32::MAX)
                });
                NeighbourChange::Set(neighbour.map(|to| Peer { to: to.clone(), number }))
            }
            NeighbourChange::Remove(ip) => {
                if let Some(number) = self.numbers.remove(&ip) {
                    self.used.remove(number);
                }
                NeighbourChange::Remove(ip)
            }
        }
    }

    /// Creates a reader for a worker.
    #[must_use]
    pub fn reader(&mut self) -> Reader<LinkView<D>> {
        self.publisher.reader()
    }
}

impl<D: Clone> Board<D> for ViewBoard<D> {
    fn publish(&mut self, update: LinkUpdate<D>) -> Grace {
        let changes: Vec<_> = update.changes.into_iter().map(|change| self.peer(change)).collect();
        self.view.neighbours = self.view.neighbours.with(changes);
        (self.view.state, self.view.broadcast, self.view.groups) =
            (update.state, update.broadcast, update.groups);
        self.publisher.publish(self.view.clone())
    }

    fn passed(&self, grace: Grace) -> bool {
        self.publisher.passed(grace)
    }
}
