//! Index of the connections that peers opened and that are not closing: by peer, by age, and by origin.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use cm::Origin;
use ib_wire::{Gid, Qpn};

use super::PeerKey;
use crate::link::action::ConnKey;
use crate::link::settings::WorkerIndex;

/// The keys of a passive connection in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) struct File {
    pub(in crate::link) peer: PeerKey,
    /// The port that its REQ came from.
    pub(in crate::link) origin: Origin,
    /// When it was last seen in use.
    pub(in crate::link) used: Instant,
}

impl File {
    const fn worker(&self) -> WorkerIndex {
        self.peer.2
    }

    const fn name(&self) -> (Gid, Qpn, WorkerIndex) {
        (self.peer.1, self.peer.0, self.peer.2)
    }
}

/// Passive connections, each list in the order of use, longest idle first.
#[derive(Debug, Default)]
pub(in crate::link) struct Passive {
    /// By peer; each has one at a time.
    peers: BTreeMap<(Gid, Qpn, WorkerIndex), ConnKey>,
    by_age: BTreeSet<(Instant, ConnKey)>,
    by_worker: BTreeSet<(WorkerIndex, Instant, ConnKey)>,
    by_origin: BTreeSet<(Origin, Instant, ConnKey)>,
    by_origin_at: BTreeSet<(Origin, WorkerIndex, Instant, ConnKey)>,
    /// The number of connections of each worker and of each port of the fabric.
    workers: HashMap<WorkerIndex, usize>,
    origins: HashMap<Origin, usize>,
    origins_at: HashMap<(Origin, WorkerIndex), usize>,
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Passive {
    /// Adds a connection whose peer has no other.
    pub(in crate::link) fn insert(&mut self, file: File, key: ConnKey) {
        self.peers.insert(file.name(), key);
        *self.workers.entry(file.worker()).or_default() += 1;
        *self.origins.entry(file.origin).or_default() += 1;
        *self.origins_at.entry((file.origin, file.worker())).or_default() += 1;
        self.list(file, key);
    }

    fn list(&mut self, file: File, key: ConnKey) {
        self.by_age.insert((file.used, key));
        self.by_worker.insert((file.worker(), file.used, key));
        self.by_origin.insert((file.origin, file.used, key));
        self.by_origin_at.insert((file.origin, file.worker(), file.used, key));
    }

    fn unlist(&mut self, file: File, key: ConnKey) -> bool {
        self.by_worker.remove(&(file.worker(), file.used, key));
        self.by_origin.remove(&(file.origin, file.used, key));
        self.by_origin_at.remove(&(file.origin, file.worker(), file.used, key));
        self.by_age.remove(&(file.used, key))
    }

    /// Removes a connection, if it is in the index.
    pub(in crate::link) fn remove(&mut self, file: File, key: ConnKey) {
        if !self.unlist(file, key) {
            return;
        }
        less(&mut self.workers, file.worker());
        less(&mut self.origins, file.origin);
        less(&mut self.origins_at, (file.origin, file.worker()));
        if self.peers.get(&file.name()) == Some(&key) {
            self.peers.remove(&file.name());
        }
    }

    /// Records that a connection was just used.
    pub(in crate::link) fn touch(&mut self, file: File, key: ConnKey, now: Instant) {
        if self.unlist(file, key) {
            self.list(File { used: now, ..file }, key);
        }
    }

    /// The connection that a peer has to a worker.
    pub(in crate::link) fn of_peer(&self, (qpn, gid, worker): PeerKey) -> Option<ConnKey> {
        self.peers.get(&(gid, qpn, worker)).copied()
    }

    /// The connections that claim to come from this GID.
    pub(in crate::link) fn of_gid(&self, gid: Gid) -> impl Iterator<Item = ConnKey> {
        let from = (gid, Qpn::new(0), WorkerIndex(0));
        let to = (gid, Qpn::new(Qpn::MASK), WorkerIndex(u8::MAX));
        self.peers.range(from..=to).map(|(_, key)| *key)
    }

    /// The longest idle connection, and since when it is idle.
    pub(in crate::link) fn oldest(&self) -> Option<(Instant, ConnKey)> {
        self.by_age.first().copied()
    }

    /// The longest idle connection of one worker.
    pub(in crate::link) fn oldest_of_worker(&self, worker: WorkerIndex) -> Option<(Instant, ConnKey)> {
        let (of, used, key) = *self.by_worker.range((worker, self.oldest()?.0, ConnKey::FIRST)..).next()?;
        (of == worker).then_some((used, key))
    }

    /// The longest idle connection from one port.
    pub(in crate::link) fn oldest_of_origin(&self, origin: Origin) -> Option<(Instant, ConnKey)> {
        let (of, used, key) = *self.by_origin.range((origin, self.oldest()?.0, ConnKey::FIRST)..).next()?;
        (of == origin).then_some((used, key))
    }

    /// The longest idle connection from one port to one worker.
    pub(in crate::link) fn oldest_of_origin_at(
        &self,
        origin: Origin,
        worker: WorkerIndex,
    ) -> Option<(Instant, ConnKey)> {
        let first = (origin, worker, self.oldest()?.0, ConnKey::FIRST);
        let (of, at, used, key) = *self.by_origin_at.range(first..).next()?;
        (of == origin && at == worker).then_some((used, key))
    }

    /// The number of a worker's connections.
    pub(in crate::link) fn at_worker(&self, worker: WorkerIndex) -> usize {
        self.workers.get(&worker).copied().unwrap_or(0)
    }

    /// The number of connections from a port.
    pub(in crate::link) fn of_origin(&self, origin: Origin) -> usize {
        self.origins.get(&origin).copied().unwrap_or(0)
    }

    /// The number of connections from a port to one worker.
    pub(in crate::link) fn of_origin_at(&self, origin: Origin, worker: WorkerIndex) -> usize {
        self.origins_at.get(&(origin, worker)).copied().unwrap_or(0)
    }

    /// The number of connections.
    #[cfg(test)]
    pub(in crate::link) fn len(&self) -> usize {
        assert_eq!(self.peers.len(), self.by_age.len());
        assert_eq!(self.by_worker.len(), self.workers.values().sum::<usize>());
        assert_eq!(self.by_origin.len(), self.origins.values().sum::<usize>());
        assert_eq!(self.by_origin_at.len(), self.origins_at.values().sum::<usize>());
        self.by_age.len()
    }
}
