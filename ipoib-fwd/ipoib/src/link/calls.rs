//! What the port and the device's owner tell a link about its connections.

use std::time::{Duration, Instant};

use cm::connection::{Event as CmEvent, RequestInfo};
use hca::RcSlot;
use ib_wire::cm::RejectReason;
use ib_wire::{Gid, Lid, Qpn};

use super::action::{ConnKey, WorkerNote};
use super::machine::Link;

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

    /// True if `qpn` is a connected queue pair of this link.
    #[must_use]
    pub fn owns(&self, qpn: Qpn) -> bool {
        self.conns.by_qpn.contains_key(&qpn)
    }

    /// A peer asks for a connection: the one that begins, or why not.
    pub(crate) fn requested(&mut self, now: Instant, request: &RequestInfo) -> Result<ConnKey, RejectReason> {
        self.with_conns(now, |conns| conns.requested(now, request))
    }

    /// Tells what the port's connection table has to say about a connection; requests and ends have calls of their own
    /// ([`Link::requested`], [`Link::handshake_over`]).
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

    /// How long the connection that is idle for the longest time has been so, if it is out of use.
    pub(crate) fn out_of_use(&self, now: Instant) -> Option<Duration> {
        self.conns.out_of_use(now)
    }

    /// Closes the connection that is idle for the longest time.
    pub(crate) fn evict(&mut self, now: Instant) {
        self.with_conns(now, |conns| conns.evict(now));
    }
}
