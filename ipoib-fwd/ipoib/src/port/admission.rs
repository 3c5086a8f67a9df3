//! Admission of connection requests: each host's share of the port, over all its links.

use std::collections::HashMap;
use std::time::Instant;

use cm::connection::RequestInfo;
use cm::{Origin, Path};
use ib_wire::Lid;
use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::ServiceIdForm;
use ib_wire::mad::MadAddress;

use super::Port;
use crate::link::{ConnKey, Link, WorkerIndex};

/// The connections that hosts have opened, until their queue pairs are destroyed; those being torn down are
/// included.
#[derive(Debug, Default)]
pub(super) struct Holders {
    holders: HashMap<ConnKey, (Origin, WorkerIndex)>,
    counts: HashMap<Origin, usize>,
    /// The same by worker: slots belong to workers.
    at_workers: HashMap<(Origin, WorkerIndex), usize>,
    /// Connections of all hosts.
    workers: HashMap<WorkerIndex, usize>,
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Holders {
    fn insert(&mut self, conn: ConnKey, origin: Origin, worker: WorkerIndex) {
        self.holders.insert(conn, (origin, worker));
        *self.counts.entry(origin).or_default() += 1;
        *self.at_workers.entry((origin, worker)).or_default() += 1;
        *self.workers.entry(worker).or_default() += 1;
    }

    pub(super) fn remove(&mut self, conn: ConnKey) {
        let Some((origin, worker)) = self.holders.remove(&conn) else { return };
        less(&mut self.counts, origin);
        less(&mut self.at_workers, (origin, worker));
        less(&mut self.workers, worker);
    }

    /// The number of a host's connections.
    pub(super) fn of(&self, origin: Origin) -> usize {
        self.counts.get(&origin).copied().unwrap_or(0)
    }

    /// The number of a host's connections to one worker.
    fn at(&self, origin: Origin, worker: WorkerIndex) -> usize {
        self.at_workers.get(&(origin, worker)).copied().unwrap_or(0)
    }

    /// The number of connections of all hosts to a worker.
    fn to(&self, worker: WorkerIndex) -> usize {
        self.workers.get(&worker).copied().unwrap_or(0)
    }

    /// The numbers of connections and of hosts.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.holders.len(), self.counts.len())
    }
}

/// Connections to a worker that may be in teardown while others take their slots: a queue pair lives until
/// TIMEWAIT is over. Without them, a full port would accept only one connection every few seconds.
fn closing(most: usize) -> usize {
    (most / 4).max(1)
}

impl Port {
    /// Handles a host's connection request: returns the new connection, or the reason to reject the request.
    ///
    /// A host that has its share of the port or of the worker loses one of its own connections, and must
    /// repeat its request: the share includes connections in teardown.
    ///
    /// All hosts together have at most the worker's slots for connections that peers open. Beyond that, the
    /// longest idle connection is closed, whatever its link and host. A request is refused if the most
    /// connections that may be in teardown already are.
    pub(super) fn admit(&mut self, now: Instant, request: &RequestInfo) -> Result<ConnKey, RejectReason> {
        let of = ServiceIdForm::of(request.service_id).and_then(|(_, qpn)| self.by_service.get(&qpn));
        let index = *of.ok_or(RejectReason::InvalidServiceId)?;
        let keys = self.facts.as_ref().map(|facts| &facts.pkeys);
        let came_by = keys.and_then(|keys| keys.get(usize::from(request.pkey_index)).copied());
        let link = self.link_mut(index).ok_or(RejectReason::InvalidServiceId)?;
        let candidate = link.examine(now, request, came_by)?;
        link.replace(now, &candidate);
        let (share, most) = (link.settings().max_passive_from_lid, link.settings().max_passive);
        let workers = self.link(index).map_or(1, |link| link.settings().workers.len()).max(1);
        let is_full = if self.holders.at(request.payer, candidate.worker) >= share.div_ceil(workers) {
            self.make_room_of_at(now, request.payer, candidate.worker);
            true
        } else if self.holders.of(request.payer) >= share {
            self.make_room_of(now, request.payer);
            true
        } else {
            self.holders.to(candidate.worker) >= most + closing(most)
        };
        if is_full {
            self.link_mut(index).into_iter().for_each(Link::turn_away);
            return Err(RejectReason::NoResources);
        }
        self.make_room_at(now, candidate.worker, most);
        let link = self.link_mut(index).ok_or(RejectReason::InvalidServiceId)?;
        let key = link.accept(now, request, &candidate);
        self.holders.insert(key, request.payer, candidate.worker);
        Ok(key)
    }

    /// The host in whose share a datagram counts. A GRH with a GID of another subnet does not identify a
    /// separate host, or one host could appear as any number of them. It counts in the share of its LID,
    /// until subnet administration's path to that GID leads through a router at that LID.
    pub(super) fn payer(&self, from: &MadAddress) -> Origin {
        let origin = self.subnet.origin(from);
        let Origin::Gid(gid) = origin else { return origin };
        let is_routed = |path: &Path| path.hop_limit > 1 && self.subnet.is_same_port(path.dlid, from.lid);
        if from.lid == Lid(0) || self.links().any(|(_, link)| link.path(gid).is_some_and(is_routed)) {
            origin
        } else {
            Origin::Lid(self.subnet.base_lid(from.lid))
        }
    }

    /// Closes the longest idle connection of a host, unless one of its connections is already in teardown.
    fn make_room_of(&mut self, now: Instant, origin: Origin) {
        let count: usize = self.links().map(|(_, link)| link.opened_by(origin)).sum();
        if count >= self.holders.of(origin) {
            self.evict(now, |link| link.oldest_by(origin));
        }
    }

    /// The same for a host's connections to one worker.
    fn make_room_of_at(&mut self, now: Instant, origin: Origin, worker: WorkerIndex) {
        let count: usize = self.links().map(|(_, link)| link.opened_by_at(origin, worker)).sum();
        if count >= self.holders.at(origin, worker) {
            self.evict(now, |link| link.oldest_by_at(origin, worker));
        }
    }

    /// Closes the longest idle connection to a worker, if there are at least `most`.
    fn make_room_at(&mut self, now: Instant, worker: WorkerIndex, most: usize) {
        let count: usize = self.links().map(|(_, link)| link.opened_to(worker)).sum();
        if count >= most {
            self.evict(now, |link| link.oldest_to(worker));
        }
    }

    /// Closes the longest idle of the connections that each link selects.
    pub(super) fn evict(&mut self, now: Instant, named: impl Fn(&Link) -> Option<(Instant, ConnKey)>) {
        if let Some((_, oldest)) = self.links().filter_map(|(_, link)| named(link)).min()
            && let Some(link) = self.link_mut(oldest.link)
        {
            link.evict(now, oldest);
        }
    }
}
