//! What a worker looks up: the link's state and neighbours, with destinations that its device has prepared.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::quiescence::Grace;
use dataplane::table::{Publisher, Reader};

use ipoib::link::{LinkIndex, LinkState, NeighbourChange, Neighbours};

/// A prepared datagram destination, and whether a worker has used it lately.
#[derive(Clone, Debug)]
pub struct Peer<D> {
    /// The destination.
    pub to: D,
    used: Arc<AtomicBool>,
}

impl<D> Peer<D> {
    /// A destination that nobody has used.
    pub fn new(to: D) -> Self {
        Self { to, used: Arc::default() }
    }

    /// The same peer by another way: it keeps its usage.
    pub fn with_destination<E>(&self, to: E) -> Peer<E> {
        Peer { to, used: Arc::clone(&self.used) }
    }

    /// Marks it used; true if it was not, that is once between two calls of [`Peer::take_used`].
    pub fn mark_used(&self) -> bool {
        // Read first: the line stays shared between workers while the mark stands.
        !self.used.load(Ordering::Relaxed) && !self.used.swap(true, Ordering::Relaxed)
    }

    /// Clears the mark; true if it was set.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// A new state of the link, with destinations that the device has prepared: what a [`Board`] publishes.
#[derive(Clone, Debug)]
pub struct LinkUpdate<D> {
    /// Which link.
    pub link: LinkIndex,
    /// The link as a whole.
    pub state: Arc<LinkState>,
    /// The broadcast group, if joined.
    pub broadcast: Option<D>,
    /// Other joined groups.
    pub groups: Vec<(Ipv4Addr, D)>,
    /// Neighbours that came, changed or went.
    pub changes: Vec<NeighbourChange<Peer<D>>>,
}

/// Where an endpoint's owner publishes the link's tables to its workers, in the shape that its workers look up.
pub trait Board<D> {
    /// Publishes. When it returns, a worker that refreshes its tables sees the update; when the grace has passed, none looks at older
    /// ones.
    fn publish(&mut self, update: LinkUpdate<D>) -> Grace;

    /// True if no worker looks at tables older than a publication's.
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
}

/// Publishes [`LinkView`]s.
#[derive(Debug)]
pub struct ViewBoard<D> {
    view: LinkView<D>,
    publisher: Publisher<LinkView<D>>,
}

impl<D: Clone> ViewBoard<D> {
    /// A board whose first view is of a link that is down.
    #[must_use]
    pub fn new(state: Arc<LinkState>) -> Self {
        let view = LinkView { state, neighbours: Neighbours::default(), broadcast: None, groups: Vec::new() };
        Self { publisher: Publisher::new(view.clone()), view }
    }

    /// A worker's reader.
    #[must_use]
    pub fn reader(&mut self) -> Reader<LinkView<D>> {
        self.publisher.reader()
    }
}

impl<D: Clone> Board<D> for ViewBoard<D> {
    fn publish(&mut self, update: LinkUpdate<D>) -> Grace {
        let neighbours = self.view.neighbours.with(update.changes);
        self.view =
            LinkView { state: update.state, neighbours, broadcast: update.broadcast, groups: update.groups };
        self.publisher.publish(self.view.clone())
    }

    fn passed(&self, grace: Grace) -> bool {
        self.publisher.passed(grace)
    }
}
