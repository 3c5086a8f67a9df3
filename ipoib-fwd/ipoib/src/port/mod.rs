//! One HCA port and the IPoIB links on it, one per P_Key. State that the links share is here; each link's own
//! state is in [`Link`].
//!
//! No I/O and no clock. The owner's loop:
//!
//! 1. Feed inputs.
//! 2. Call [`Port::poll_action`] until it returns `None`; execute each action, and answer it if its
//!    description says so.
//! 3. Call [`Port::poll_transmit`] and [`Port::poll_event`] until they return `None`.
//! 4. Wait until [`Port::poll_timeout`] or the next input.
//!
//! ```text
//!             ┌─ cm::port::Port: subnet administration, connections, QP1 ─> poll_transmit
//!  MADs ─> Port ─ requests, answers
//!  facts      ├─ Link 0 (P_Key 0xffff) ─┐
//!             ├─ Link 1 (P_Key 0x8001) ─┼─> poll_action (LinkIndex, Action), poll_event (LinkIndex, Event)
//!             └─ slots of the workers ──┘
//! ```

mod admission;
mod facts;
mod limit;
mod services;
mod slots;

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::Instant;

use cm::Subnet;
use cm::connection::{Config, ConnId};
use cm::port::Taken;
use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::{Gid, Guid, Lid, Qpn};

use crate::bucket::Bucket;
use crate::link::{
    Action, ConnKey, Event, Link, LinkError, LinkIndex, LinkSettings, PortEvent, WorkerIndex, WorkerNote,
};
use admission::Holders;
pub use facts::Facts;
use limit::Limit;
use slots::Slots;
pub use slots::WorkerSlots;

/// Entries of the handshake table that a host may have for each connection that it may open, including those
/// in TIMEWAIT. A host that has its share and renews all of it every second has fewer.
const CM_ENTRIES: usize = 4;

/// Most links of a port.
pub const MAX_LINKS: usize = 256;

/// The parameters of a port.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// GUID of the node (channel adapter): identifies our end in CM messages.
    pub node_guid: Guid,
    /// The connection slots of each worker, assigned to the links as they need them.
    pub workers: Vec<WorkerSlots>,
    /// Seed of communication IDs and transaction IDs: a secret, drawn at each start.
    pub seed: u64,
}

/// A port with its links.
#[derive(Debug)]
pub struct Port {
    services: cm::port::Port<(LinkIndex, Ipv4Addr)>,
    /// As last reported; `None` before the first report.
    facts: Option<Facts>,
    links: Vec<Option<Link>>,
    /// Links that may not come up yet.
    held: BTreeSet<LinkIndex>,
    slots: Slots,
    /// The slots that each host uses.
    holders: Holders,
    subnet: Subnet,
    /// Most connections that one host may open: the largest value of the links that were added.
    share: usize,
    /// Most handshakes that one host may have started, whatever its share is.
    cm_share: usize,
    /// Rate limit of connection requests and other messages that any host may send, by the port that they
    /// come from.
    limit: Limit,
    /// Rate limit of connection requests that we send.
    dials: Bucket,
    /// Connections by their identifiers in the connection table and in the links.
    by_id: HashMap<ConnId, ConnKey>,
    by_key: HashMap<ConnKey, ConnId>,
    /// The link of each connected queue pair.
    by_qpn: HashMap<Qpn, LinkIndex>,
    /// The link of a service ID's queue pair.
    by_service: HashMap<Qpn, LinkIndex>,
    /// The link that is polled first for its next event. It stays first until it has none.
    polled_link: usize,
    mads_ignored: u64,
    mads_refused: u64,
    requests_limited: u64,
}

impl Port {
    /// A port without links, down until [`Port::handle_port`] reports otherwise.
    #[must_use]
    pub fn new(settings: &PortSettings, now: Instant) -> Self {
        let slots: usize = settings.workers.iter().map(|w| usize::from(w.count)).sum();
        // All of a port's slots may be requested at once, and again within a few seconds.
        let (burst, per_second) = ((slots as u32).max(256), (slots as u32 / 4).max(128));
        // Those in TIMEWAIT no longer have a queue pair.
        let max_connections = slots.saturating_mul(2).clamp(64, 16_384);
        let max_begun = max_connections / 4 * 3;
        let config = Config {
            max_connections,
            max_begun,
            // Two forms for each worker of each link.
            max_listeners: MAX_LINKS * 256 * 2,
            max_wait: services::MAX_WAIT,
            ..Config::new(settings.seed, settings.node_guid)
        };
        Self {
            services: cm::port::Port::new(config),
            facts: None,
            links: Vec::new(),
            held: BTreeSet::new(),
            slots: Slots::new(&settings.workers),
            holders: Holders::default(),
            subnet: Subnet::default(),
            share: 0,
            cm_share: max_begun / 4,
            limit: Limit::new(burst, per_second),
            dials: Bucket::new(now, burst, per_second),
            by_id: HashMap::new(),
            by_key: HashMap::new(),
            by_qpn: HashMap::new(),
            by_service: HashMap::new(),
            polled_link: 0,
            mads_ignored: 0,
            mads_refused: 0,
            requests_limited: 0,
        }
    }

    /// The index that the next [`Port::add`] uses: its owner first creates the datagram queue pairs for it.
    #[must_use]
    pub fn vacancy(&self) -> Option<LinkIndex> {
        self.vacancies().next()
    }

    /// All free indices, lowest first.
    pub fn vacancies(&self) -> impl Iterator<Item = LinkIndex> {
        let is_free = |at: &usize| self.links.get(*at).is_none_or(Option::is_none);
        (0..MAX_LINKS).filter(is_free).map(|at| LinkIndex(at as u16))
    }

    /// Adds a link at the first free index. It comes up once the port is a full member of its partition; the
    /// other links are not affected.
    pub fn add(&mut self, now: Instant, settings: LinkSettings) -> Result<LinkIndex, LinkError> {
        let index = self.vacancy().ok_or(LinkError::Full(MAX_LINKS))?;
        self.add_at(now, index, settings)
    }

    /// As [`Port::add`], at an index of the caller's choice.
    pub fn add_at(
        &mut self,
        now: Instant,
        index: LinkIndex,
        settings: LinkSettings,
    ) -> Result<LinkIndex, LinkError> {
        let index = self.add_held(now, index, settings)?;
        self.release(now, index);
        Ok(index)
    }

    /// As [`Port::add_at`], but the link stays inactive and receives no events before it is
    /// [released](Port::release).
    pub fn add_held(
        &mut self,
        now: Instant,
        index: LinkIndex,
        settings: LinkSettings,
    ) -> Result<LinkIndex, LinkError> {
        let at = usize::from(index.0);
        if at >= MAX_LINKS || self.links.get(at).is_some_and(Option::is_some) {
            return Err(LinkError::Full(MAX_LINKS));
        }
        let pkey = settings.pkey;
        if self.links().any(|(_, link)| link.settings().pkey.base() == pkey.base()) {
            return Err(LinkError::PKeyTaken(pkey));
        }
        let link = Link::new(index, settings, now)?;
        self.held.insert(index);
        self.listen(index, &link);
        self.share = self.share.max(link.settings().max_passive_from_lid);
        let entries = self.share.saturating_mul(CM_ENTRIES).min(self.cm_share);
        self.services.connections.set_max_from_port(entries);
        if at >= self.links.len() {
            self.links.resize_with(at + 1, || None);
        }
        if let Some(entry) = self.links.get_mut(at) {
            *entry = Some(link);
        }
        Ok(index)
    }

    /// Activates a link that was added by [`Port::add_held`].
    pub fn release(&mut self, now: Instant, index: LinkIndex) {
        if !self.held.remove(&index) {
            return;
        }
        let link = self.links.get_mut(usize::from(index.0)).and_then(Option::as_mut);
        if let (Some(facts), Some(link)) = (&self.facts, link) {
            let facts = facts.of(link.settings());
            link.handle_port(now, facts);
        }
    }

    /// All links except those that are held.
    fn released(&mut self) -> impl Iterator<Item = &mut Link> {
        let Self { links, held, .. } = self;
        let numbered = (0u16..).map(LinkIndex).zip(links);
        numbered.filter(|(index, _)| !held.contains(index)).filter_map(|(_, link)| link.as_mut())
    }

    /// Removes a link that has been shut down ([`Link::shutdown`], [`Event::Stopped`]) and that no worker
    /// uses any more; the other links are not affected. Its index may be reused. Returns `None` and does
    /// nothing if the link is not ready for that.
    pub fn remove(&mut self, now: Instant, index: LinkIndex) -> Option<Link> {
        // Its last requests are still served.
        self.serve(now);
        let entry = self.links.get_mut(usize::from(index.0))?;
        let link = entry.take_if(|link| link.is_settled())?;
        self.unlisten(index);
        self.held.remove(&index);
        self.services.sa.cancel_groups(now, |(of, _)| of == index);
        self.by_qpn.retain(|_, of| *of != index);
        // The only remains of its connections are handshakes in TIMEWAIT, which have no waiting user.
        self.by_id.retain(|_, key| key.link != index);
        self.by_key.retain(|key, _| key.link != index);
        Some(link)
    }

    /// A link, read-only.
    #[must_use]
    pub fn link(&self, index: LinkIndex) -> Option<&Link> {
        self.links.get(usize::from(index.0))?.as_ref()
    }

    /// A link, for calls that change it.
    pub fn link_mut(&mut self, index: LinkIndex) -> Option<&mut Link> {
        self.links.get_mut(usize::from(index.0))?.as_mut()
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = (LinkIndex, &Link)> {
        (0u16..).zip(&self.links).filter_map(|(index, link)| Some((LinkIndex(index), link.as_ref()?)))
    }

    /// The port's state, as last reported.
    #[must_use]
    pub const fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// Reports the port's present state, at start and in case of doubt. Links without a difference are not
    /// affected.
    pub fn handle_port(&mut self, now: Instant, facts: Facts) {
        for link in self.released() {
            let facts = facts.of(link.settings());
            link.handle_port(now, facts);
        }
        self.set_facts(facts);
    }

    fn set_facts(&mut self, facts: Facts) {
        self.subnet = Subnet { prefix: facts.gid.prefix(), lmc: facts.lmc };
        self.services.connections.set_subnet(self.subnet);
        self.facts = Some(facts);
    }

    /// Reports an asynchronous event of the port and the port's state after it. A changed P_Key table affects
    /// only those links whose membership or index has changed.
    pub fn handle_port_event(&mut self, now: Instant, event: PortEvent, facts: Facts) {
        if event == PortEvent::Heavy {
            self.handle_port(now, facts);
            return;
        }
        for link in self.released() {
            let facts = facts.of(link.settings());
            link.handle_port_event(now, event, facts);
        }
        self.set_facts(facts);
    }

    /// Handles a management datagram that the port's QP1 received. Returns false if it is of no use.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) -> bool {
        let payer = self.payer(&mad.peer);
        let is_limited =
            mad.header().class == MgmtClass::ComMgt && self.services.connections.is_unsolicited(mad);
        if is_limited && !self.limit.take(now, payer) {
            self.requests_limited += 1;
            return false;
        }
        let taken = self.services.handle_mad_for(now, mad, payer);
        match taken {
            Taken::Administration | Taken::Connection => {}
            Taken::Refused => self.mads_refused += 1,
            Taken::Ignored => self.mads_ignored += 1,
        }
        self.serve(now);
        matches!(taken, Taken::Administration | Taken::Connection)
    }

    /// Answers [`Action::CreateRc`]: the queue pair's number, or `None` if the device refused.
    pub fn handle_created(&mut self, now: Instant, conn: ConnKey, qpn: Option<Qpn>) {
        let Some(link) = self.link_mut(conn.link) else { return };
        link.handle_created(now, conn, qpn);
        if let Some(qpn) = qpn.filter(|qpn| link.owns(*qpn)) {
            self.by_qpn.insert(qpn, conn.link);
        }
    }

    /// Answers a connection's outstanding action: done, or failed.
    pub fn handle_done(&mut self, now: Instant, conn: ConnKey, ok: bool) {
        if let Some(link) = self.link_mut(conn.link) {
            link.handle_done(now, conn, ok);
        }
    }

    /// Answers [`Action::AttachMulticast`]: attached, or refused by the device.
    pub fn handle_attached(&mut self, now: Instant, link: LinkIndex, mgid: Gid, mlid: Lid, ok: bool) {
        if let Some(link) = self.link_mut(link) {
            link.handle_attached(now, mgid, mlid, ok);
        }
    }

    /// The link that a connected queue pair belongs to.
    #[must_use]
    pub fn owner(&self, qpn: Qpn) -> Option<LinkIndex> {
        self.by_qpn.get(&qpn).copied()
    }

    /// The link and the worker that a datagram queue pair belongs to.
    #[must_use]
    pub fn datagram_owner(&self, qpn: Qpn) -> Option<(LinkIndex, WorkerIndex)> {
        let index = *self.by_service.get(&qpn)?;
        let workers = &self.link(index)?.settings().workers;
        let at = workers.iter().position(|w| w.ud_qpn == qpn)?;
        Some((index, WorkerIndex(u8::try_from(at).ok()?)))
    }

    /// Reports an event of a connected queue pair. Unknown numbers are ignored.
    pub fn handle_note(&mut self, now: Instant, qpn: Qpn, note: WorkerNote) {
        if let Some(link) = self.owner(qpn).and_then(|index| self.link_mut(index)) {
            link.handle_note(now, qpn, note);
        }
    }

    /// Reports in bulk the passive queue pairs of a worker that have received, about once a second.
    pub fn handle_received(&mut self, now: Instant, worker: WorkerIndex, received: &[Qpn]) {
        for qpn in received {
            if let Some(link) = self.owner(*qpn).and_then(|index| self.link_mut(index)) {
                link.handle_used(now, worker, std::slice::from_ref(qpn), &[]);
            }
        }
    }

    /// The next action, and its link.
    pub fn poll_action(&mut self, now: Instant) -> Option<(LinkIndex, Action)> {
        loop {
            self.serve(now);
            let next = (0u16..).zip(self.links.iter_mut()).find_map(|(index, link)| {
                let action = link.as_mut()?.poll_action()?;
                Some((LinkIndex(index), action))
            });
            match next {
                Some((_, Action::CreateRc { conn, worker, passive }))
                    if !self.assign_slot(now, conn, worker, passive) => {}
                Some((_, Action::DestroyRc { qpn, .. })) => {
                    self.by_qpn.remove(&qpn);
                    return next;
                }
                Some(_) => return next,
                None => break,
            }
        }
        // Changes are collected while there are other actions.
        (0u16..).zip(self.links.iter_mut()).find_map(|(index, link)| {
            let publication = link.as_mut()?.publish()?;
            Some((LinkIndex(index), Action::Publish(publication)))
        })
    }

    /// The next management datagram to send from the port's QP1.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Mad> {
        self.serve(now);
        self.services.poll_transmit()
    }

    /// The next event, and its link.
    pub fn poll_event(&mut self) -> Option<(LinkIndex, Event)> {
        let count = self.links.len();
        for step in 0..count {
            let at = (self.polled_link + step) % count;
            if let Some(event) = self.links.get_mut(at).and_then(|link| link.as_mut()?.poll_event()) {
                self.polled_link = at;
                return Some((LinkIndex(at as u16), event));
            }
        }
        None
    }

    /// The time at which [`Port::handle_timeout`] must be called, if nothing else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let links = self.links.iter().flatten().filter_map(Link::poll_timeout);
        links.chain(self.services.poll_timeout()).min()
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.services.handle_timeout(now);
        self.serve(now);
        for link in self.links.iter_mut().flatten() {
            if link.poll_timeout().is_some_and(|at| at <= now) {
                link.handle_timeout(now);
            }
        }
        self.serve(now);
    }

    /// Counters of communication management: messages, repetitions, rejections by reason, drops by reason.
    #[must_use]
    pub const fn cm_counters(&self) -> &cm::connection::Counters {
        self.services.connections.counters()
    }

    /// The number of handshakes in the port's table, including those in TIMEWAIT.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.services.connections.len()
    }

    /// Management datagrams that were ignored: unknown class, length or transaction.
    #[must_use]
    pub const fn mads_ignored(&self) -> u64 {
        self.mads_ignored
    }

    /// Connection requests, and other messages that any host may send, that were dropped because their sender
    /// exceeded its rate limit.
    #[must_use]
    pub const fn requests_limited(&self) -> u64 {
        self.requests_limited
    }

    /// Requests for services that do not exist here, answered with that status.
    #[must_use]
    pub const fn mads_refused(&self) -> u64 {
        self.mads_refused
    }
}

#[cfg(test)]
mod tests;
