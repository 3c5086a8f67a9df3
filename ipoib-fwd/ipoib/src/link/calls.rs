//! Calls by which the port and the device's owner report on a link's connections.

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
    /// Assigns a connection its slot in the worker's table, before its queue pair is created.
    pub(crate) fn lend_slot(&mut self, now: Instant, key: ConnKey, slot: RcSlot) {
        self.with_conns(now, |conns| conns.lend_slot(key, slot));
    }

    /// Reports that the worker has no free slot for a connection.
    pub(crate) fn no_slot(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.no_slot(now, key));
    }

    /// Answers [`super::Action::CreateRc`]: the queue pair's number, or `None` if the device refused.
    pub(crate) fn handle_created(&mut self, now: Instant, key: ConnKey, qpn: Option<Qpn>) {
        self.with_conns(now, |conns| conns.created(now, key, qpn));
    }

    /// Answers [`super::Action::AttachMulticast`]: attached, or refused by the device.
    pub(crate) fn handle_attached(&mut self, now: Instant, mgid: Gid, mlid: Lid, ok: bool) {
        self.at_groups().attached(now, mgid, mlid, ok);
    }

    /// Answers the connection's outstanding action: done, or failed.
    pub fn handle_done(&mut self, now: Instant, conn: ConnKey, ok: bool) {
        self.with_conns(now, |conns| conns.done(now, conn, ok));
    }

    /// Reports an event of a connected queue pair. Unknown numbers are ignored.
    pub fn handle_note(&mut self, now: Instant, qpn: Qpn, note: WorkerNote) {
        self.with_conns(now, |conns| conns.note(now, qpn, note));
    }

    /// Reports that a message of this link was not sent.
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

    /// Examines a peer's connection request: returns what it needs, or the reason to reject it. `came_by`:
    /// the P_Key by which it came, if known.
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

    /// Starts the connection that a peer requests.
    pub(crate) fn accept(&mut self, now: Instant, request: &RequestInfo, candidate: &Candidate) -> ConnKey {
        self.with_conns(now, |conns| conns.accept(now, request, candidate))
    }

    /// Counts a request that was refused for lack of room.
    pub(crate) const fn turn_away(&mut self) {
        self.out.counters.requests_rejected += 1;
    }

    /// The path to a port, if it is known.
    pub(crate) fn path(&self, gid: Gid) -> Option<&Path> {
        self.paths.get(gid)
    }

    /// The number of connections that a port has opened and that are not closing.
    pub(crate) fn opened_by(&self, origin: Origin) -> usize {
        self.conns.passive.of_origin(origin)
    }

    /// The longest idle of those connections, and since when it is idle.
    pub(crate) fn oldest_by(&self, origin: Origin) -> Option<(Instant, ConnKey)> {
        self.conns.passive.oldest_of_origin(origin)
    }

    /// The number of connections that a port has opened to a worker and that are not closing.
    pub(crate) fn opened_by_at(&self, origin: Origin, worker: WorkerIndex) -> usize {
        self.conns.passive.of_origin_at(origin, worker)
    }

    /// The longest idle of those connections, and since when it is idle.
    pub(crate) fn oldest_by_at(&self, origin: Origin, worker: WorkerIndex) -> Option<(Instant, ConnKey)> {
        self.conns.passive.oldest_of_origin_at(origin, worker)
    }

    /// The number of connections that peers have opened to a worker and that are not closing.
    pub(crate) fn opened_to(&self, worker: WorkerIndex) -> usize {
        self.conns.passive.at_worker(worker)
    }

    /// The longest idle of those connections, and since when it is idle.
    pub(crate) fn oldest_to(&self, worker: WorkerIndex) -> Option<(Instant, ConnKey)> {
        self.conns.passive.oldest_of_worker(worker)
    }

    /// Reports an event of the port's connection table about a connection; requests and ends have their own
    /// calls ([`Link::accept`], [`Link::handshake_over`]).
    pub(crate) fn handle_handshake(&mut self, now: Instant, key: ConnKey, event: CmEvent) {
        self.with_conns(now, |conns| conns.handshake(now, key, event));
    }

    /// Reports the end of a connection's handshake.
    pub(crate) fn handshake_over(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.released(now, key));
    }

    /// Reports that the REQ could not be sent, for lack of room among the port's connections.
    pub(crate) fn connect_failed(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.connect_failed(now, key));
    }

    /// Reports that the REP could not be sent: the peer has given up in the meantime.
    pub(crate) fn accept_failed(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.accept_failed(now, key));
    }

    /// True if the connection still waits for its REQ to be sent.
    pub(crate) fn wants_handshake(&self, key: ConnKey) -> bool {
        self.conns.wants_handshake(key)
    }

    /// The longest idle connection that a peer opened, if it is out of use, and since when it is idle.
    pub(crate) fn out_of_use(&self, now: Instant) -> Option<(Instant, ConnKey)> {
        self.conns.out_of_use(now)
    }

    /// Closes a connection that a peer opened, to make room.
    pub(crate) fn evict(&mut self, now: Instant, key: ConnKey) {
        self.with_conns(now, |conns| conns.evict(now, key));
    }
}
