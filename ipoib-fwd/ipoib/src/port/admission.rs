//! Which requests for connections are taken: what each host may have of the port's, over all its links.

use std::collections::HashMap;
use std::time::Instant;

use cm::Origin;
use cm::connection::RequestInfo;
use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::ServiceIdForm;

use super::Port;
use crate::link::{ConnKey, Link, WorkerIndex};

/// The connections that hosts have opened and that have places, or wait for one; those being torn down are among them.
#[derive(Debug, Default)]
pub(super) struct Holders {
    origins: HashMap<ConnKey, Origin>,
    counts: HashMap<Origin, usize>,
}

impl Holders {
    fn insert(&mut self, conn: ConnKey, origin: Origin) {
        self.origins.insert(conn, origin);
        *self.counts.entry(origin).or_default() += 1;
    }

    pub(super) fn remove(&mut self, conn: ConnKey) {
        let Some(origin) = self.origins.remove(&conn) else { return };
        if let Some(count) = self.counts.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&origin);
            }
        }
    }

    /// How many a host has.
    pub(super) fn of(&self, origin: Origin) -> usize {
        self.counts.get(&origin).copied().unwrap_or(0)
    }

    /// Connections and hosts.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.origins.len(), self.counts.len())
    }
}

impl Port {
    /// A host asks for a connection: the one that begins, or why not.
    ///
    /// A host that has its share makes room among its own, and asks again: the share counts what is being torn down. Hosts together
    /// have no more of a worker's places than those for connections that peers open; beyond, the one that is idle for the longest
    /// time goes, whatever its link and host.
    pub(super) fn admit(&mut self, now: Instant, request: &RequestInfo) -> Result<ConnKey, RejectReason> {
        let of = ServiceIdForm::of(request.service_id).and_then(|(_, qpn)| self.by_service.get(&qpn));
        let index = *of.ok_or(RejectReason::InvalidServiceId)?;
        let keys = self.facts.as_ref().map(|facts| &facts.pkeys);
        let came_by = keys.and_then(|keys| keys.get(usize::from(request.pkey_index)).copied());
        let link = self.link_mut(index).ok_or(RejectReason::InvalidServiceId)?;
        let candidate = link.examine(now, request, came_by)?;
        link.replace(now, &candidate);
        let (share, most) = (link.settings().max_passive_from_lid, link.settings().max_passive);
        if self.holders.of(request.origin) >= share {
            self.make_room_of(now, request.origin);
            self.link_mut(index).into_iter().for_each(Link::turn_away);
            return Err(RejectReason::NoResources);
        }
        self.make_room_at(now, candidate.worker, most);
        let link = self.link_mut(index).ok_or(RejectReason::InvalidServiceId)?;
        let key = link.accept(now, request, &candidate);
        self.holders.insert(key, request.origin);
        Ok(key)
    }

    /// Closes the connection of a host that is idle for the longest time, unless one of its connections is being torn down already.
    fn make_room_of(&mut self, now: Instant, origin: Origin) {
        let count: usize = self.links().map(|(_, link)| link.opened_by(origin)).sum();
        if count >= self.holders.of(origin) {
            self.evict(now, |link| link.oldest_by(origin));
        }
    }

    /// Closes the connection to a worker that is idle for the longest time, if there are `most`.
    fn make_room_at(&mut self, now: Instant, worker: WorkerIndex, most: usize) {
        let count: usize = self.links().map(|(_, link)| link.opened_to(worker)).sum();
        if count >= most {
            self.evict(now, |link| link.oldest_to(worker));
        }
    }

    /// Closes the connection that is idle for the longest time, of those that each link names.
    pub(super) fn evict(&mut self, now: Instant, named: impl Fn(&Link) -> Option<(Instant, ConnKey)>) {
        if let Some((_, oldest)) = self.links().filter_map(|(_, link)| named(link)).min()
            && let Some(link) = self.link_mut(oldest.link)
        {
            link.evict(now, oldest);
        }
    }
}
