//! What a worker looks up: the link's state and neighbours, with destinations that its device has prepared.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::link::{LinkState, Neighbours};

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

/// An immutable snapshot of the link.
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
