//! What the port and the device's owner tell a link about its connections.

use std::time::Instant;

use cm::connection::{Event as CmEvent, RequestInfo};
use cm::{Origin, Path};
use hca::RcSlot;
use ib_wire::cm::RejectReason;
use ib_wire::ipoib::{Arp, ArpOperation, EtherType, decapsulate};
use ib_wire::{Gid, Lid, PKey, Qpn};

use super::action::{ConnKey, Event, WorkerNote};
use super::connections::Candidate;
use super::machine::Link;
use super::settings::WorkerIndex;

impl Link {
    /// Gives a connection its place in the worker's table, before its queue pair is created.
    pub(crate) fn lend_slot(&mut self, now: Instant, key: ConnKey, slot: RcSlot) {
        self.with_conns(now, |conns| conns.lend_slot(key, slot));
    }

    /// There is no place for a connection on its worker.
    pub(crate) fn no_slot(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.no_slot(now, key));
    }

    /// Answers [`super::Action::CreateRc`]: the queue pair's number, or `None` if the device refused.
    pub(crate) fn handle_created(&mut self, now: Instant, key: ConnKey, qpn: Option<Qpn>) {
        self.with_conns(now, |conns| conns.created(now, key, qpn));
    }

    /// Answers [`super::Action::AttachMulticast`]: done, or refused by the device.
    pub(crate) fn handle_attached(&mut self, now: Instant, mgid: Gid, mlid: Lid, ok: bool) {
        self.at_groups().attached(now, mgid, mlid, ok);
    }

    /// Answers the connection's outstanding action: done, or failed.
    pub fn handle_done(&mut self, now: Instant, conn: ConnKey, ok: bool) {
        self.with_conns(now, |conns| conns.done(now, conn, ok));
    }

    /// Tells what befell a connected queue pair. Unknown numbers are ignored.
    pub fn handle_note(&mut self, now: Instant, qpn: Qpn, note: WorkerNote) {
        self.with_conns(now, |conns| conns.note(now, qpn, note));
    }

    /// A message of this link's was not sent.
    pub fn handle_unsent(&mut self, message: &[u8]) {
        let Some((EtherType::Arp, content)) = decapsulate(message) else { return };
        if let Ok(arp) = Arp::parse(content)
            && arp.operation == ArpOperation::Request
            && arp.sender_ip != arp.target_ip
        {
            let ip = arp.target_ip.into();
            self.neighbours.ageing().note_unsent(ip);
            self.out.events.push_back(Event::QueryUnsent { ip });
        }
    }

    /// True if `qpn` is a connected queue pair of this link.
    #[must_use]
    pub fn owns(&self, qpn: Qpn) -> bool {
        self.conns.by_qpn.contains_key(&qpn)
    }

    /// Examines a peer's request for a connection: what it may become, or why it becomes nothing. `came_by`: the P_Key by which it
    /// came, if that is known.
    pub(crate) fn examine(
        &mut self,
        now: Instant,
        request: &RequestInfo,
        came_by: Option<PKey>,
    ) -> Result<Candidate, RejectReason> {
        self.with_conns(now, |conns| conns.examine(request, came_by))
    }

    /// Closes the connection that the peer had before.
    pub(crate) fn replace(&mut self, now: Instant, candidate: &Candidate) {
        self.with_conns(now, |conns| conns.replace(now, candidate));
    }

    /// Begins the connection that a peer asks for.
    pub(crate) fn accept(&mut self, now: Instant, request: &RequestInfo, candidate: &Candidate) -> ConnKey {
        self.with_conns(now, |conns| conns.accept(now, request, candidate))
    }

    /// Counts a request that was refused for want of room.
    pub(crate) const fn turn_away(&mut self) {
        self.out.counters.requests_rejected += 1;
    }

    /// The path to a port, if it is known.
    pub(crate) fn path(&self, gid: Gid) -> Option<&Path> {
        self.paths.get(gid)
    }

    /// How many connections a port has opened that are not closing.
    pub(crate) fn opened_by(&self, origin: Origin) -> usize {
        self.conns.passive.of_origin(origin)
    }

    /// The one of them that is idle for the longest time, and since when.
    pub(crate) fn oldest_by(&self, origin: Origin) -> Option<(Instant, ConnKey)> {
        self.conns.passive.oldest_of_origin(origin)
    }

    /// How many connections a port has opened to a worker that are not closing.
    pub(crate) fn opened_by_at(&self, origin: Origin, worker: WorkerIndex) -> usize {
        self.conns.passive.of_origin_at(origin, worker)
    }

    /// The one of them that is idle for the longest time, and since when.
    pub(crate) fn oldest_by_at(&self, origin: Origin, worker: WorkerIndex) -> Option<(Instant, ConnKey)> {
        self.conns.passive.oldest_of_origin_at(origin, worker)
    }

    /// How many connections peers have opened to a worker that are not closing.
    pub(crate) fn opened_to(&self, worker: WorkerIndex) -> usize {
        self.conns.passive.at_worker(worker)
    }

    /// The one of them that is idle for the longest time, and since when.
    pub(crate) fn oldest_to(&self, worker: WorkerIndex) -> Option<(Instant, ConnKey)> {
        self.conns.passive.oldest_of_worker(worker)
    }

    /// Tells what the port's connection table has to say about a connection; requests and ends have calls of their own
    /// ([`Link::accept`], [`Link::handshake_over`]).
    pub(crate) fn handle_handshake(&mut self, now: Instant, key: ConnKey, event: CmEvent) {
        self.with_conns(now, |conns| conns.handshake(now, key, event));
    }

    /// The last word on a connection's handshake.
    pub(crate) fn handshake_over(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.released(now, key));
    }

    /// The REQ could not be sent, for want of room among the port's connections.
    pub(crate) fn connect_failed(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.connect_failed(now, key));
    }

    /// The REP could not be sent: the peer has given up meanwhile.
    pub(crate) fn accept_failed(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.accept_failed(now, key));
    }

    /// True if the connection still waits for its REQ to be sent.
    pub(crate) fn wants_handshake(&self, key: ConnKey) -> bool {
        self.conns.wants_handshake(key)
    }

    /// The connection of a peer's that is idle for the longest time, if it is out of use, and since when.
    pub(crate) fn out_of_use(&self, now: Instant) -> Option<(Instant, ConnKey)> {
        self.conns.out_of_use(now)
    }

    /// Closes a connection of a peer's to make room.
    pub(crate) fn evict(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.evict(now, key));
    }
}
