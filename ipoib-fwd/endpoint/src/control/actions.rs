//! Actions of a link, carried out on its device and its workers.

use std::sync::Arc;
use std::time::Instant;

use ib_wire::Qpn;
use pmd::hca::{Backend, RcConfig, UdDestination};

use super::{Destination, Endpoint, WorkerEnd};
use crate::message::Command;
use crate::view::{Board, LinkUpdate};
use crate::worker::place;
use ipoib::link::{Action, ConnKey, LinkIndex, NeighbourChange, Publication, WorkerIndex};

/// Message size that every datagram may have. The first datagrams are sent before the link's MTU is
/// published.
const LEAST_MTU: usize = 256;

impl<B: Backend, C, N> Endpoint<B, C, N> {
    pub(super) fn worker(&mut self, worker: WorkerIndex) -> Option<&mut WorkerEnd<B::Queues, C, N>> {
        self.workers.get_mut(usize::from(worker.0))
    }

    pub(super) fn ud_qpn(&self, link: LinkIndex, worker: WorkerIndex) -> Option<Qpn> {
        self.port.link(link)?.settings().workers.get(usize::from(worker.0)).map(|w| w.ud_qpn)
    }

    pub(super) fn carry_out(
        &mut self,
        now: Instant,
        link: LinkIndex,
        action: Action,
        board: &mut impl Board<Destination<B>>,
    ) {
        match action {
            Action::OpenUd { worker, pkey_index, qkey } => {
                self.open_datagrams(now, link, worker, (pkey_index, qkey))
            }
            Action::SetQKey { worker, qkey } => self.set_qkey(now, link, worker, qkey),
            Action::AttachMulticast { worker, mgid, mlid } => {
                if let Some(qpn) = self.ud_qpn(link, worker) {
                    let result = self.hca.attach_multicast(qpn, mgid, mlid);
                    let ok = self.check(result).is_some();
                    self.port.handle_attached(now, link, mgid, mlid, ok);
                }
            }
            Action::DetachMulticast { worker, mgid, mlid } => {
                if let Some(qpn) = self.ud_qpn(link, worker) {
                    let result = self.hca.detach_multicast(qpn, mgid, mlid);
                    self.check(result);
                }
            }
            Action::SendUd { worker, to, bytes } => self.send_ud_by(link, worker, &to, &bytes[..]),
            Action::CreateRc { conn, worker, passive } => self.create_rc(now, conn, worker, passive),
            Action::ModifyRc { conn, qpn, to } => {
                let result = self.hca.modify_qp(qpn, &to);
                let ok = self.check(result).is_some();
                self.port.handle_done(now, conn, ok);
            }
            Action::InsertRc { conn, worker, slot } => match self.rcs.remove(&conn) {
                Some(rc) => match self.worker(worker) {
                    Some(end) => {
                        end.received.set(slot.0.into(), B::rc_qpn(&rc));
                        end.send(Command::InsertRc { conn, slot, rc });
                    }
                    None => {
                        self.rcs.insert(conn, rc);
                        self.port.handle_done(now, conn, false);
                    }
                },
                None => self.port.handle_done(now, conn, false),
            },
            Action::PostDrain { conn, worker, slot } => {
                if let Some(end) = self.worker(worker) {
                    end.send(Command::PostDrain { conn, slot });
                }
            }
            Action::RemoveRc { conn, worker, slot } => {
                if let Some(end) = self.worker(worker) {
                    end.received.clear(slot.0.into());
                    end.send(Command::RemoveRc { conn, slot });
                }
            }
            Action::DestroyRc { conn, .. } => {
                if let Some(rc) = self.rcs.remove(&conn) {
                    let result = self.hca.destroy_rc(rc);
                    self.check(result);
                }
            }
            Action::Publish(publication) => self.publish(link, publication, board),
        }
    }

    /// Sends a message of the control lcore by a worker's datagram queue pair of the first link, for owners
    /// of exactly one.
    pub fn send_ud(&mut self, worker: WorkerIndex, to: &UdDestination, message: &[u8]) {
        self.send_ud_by(LinkIndex(0), worker, to, message);
    }

    /// Sends a message of the control lcore by a worker's datagram queue pair of a link.
    ///
    /// The message is lost, and counted, if there is no buffer or no such destination, if it is longer than a
    /// datagram may be, or if the worker is far behind.
    pub fn send_ud_by(&mut self, link: LinkIndex, worker: WorkerIndex, to: &UdDestination, message: &[u8]) {
        // The device would complete it with an error that stops the queue for all traffic.
        let mtu = self.port.link(link).map_or(0, |link| link.state().ud_mtu as usize);
        if message.len() > mtu.max(LEAST_MTU) {
            self.losses.refused += 1;
            return;
        }
        let prepared = self.hca.destination(self.number, to);
        let Some(to) = self.check(prepared) else { return self.note_unsent(link, message) };
        let is_taken = match self.pool.copy_from_slice(message) {
            Some(buf) => self.offer(worker, Command::SendUd { link, to, buf }),
            None => {
                self.losses.no_buffers += 1;
                false
            }
        };
        if !is_taken {
            self.note_unsent(link, message);
        }
    }

    /// Notifies a link that its message was not sent.
    pub(super) fn note_unsent(&mut self, link: LinkIndex, message: &[u8]) {
        if let Some(link) = self.port.link_mut(link) {
            link.handle_unsent(message);
        }
    }

    fn create_rc(&mut self, now: Instant, conn: ConnKey, worker: WorkerIndex, passive: bool) {
        // The passive side only ever sends its drain request.
        let send_depth = if passive { 1 } else { self.rc_send_depth };
        let queues = self.queues_id(worker);
        let created = self.hca.create_rc(&RcConfig {
            queues,
            port: self.number,
            beside: place(conn.link),
            send_depth,
            passive,
        });
        let qpn = self.check(created).map(|rc| {
            let qpn = B::rc_qpn(&rc);
            self.rcs.insert(conn, rc);
            qpn
        });
        self.port.handle_created(now, conn, qpn);
    }

    fn publish(&mut self, link: LinkIndex, publication: Publication, board: &mut impl Board<Destination<B>>) {
        // Lent out while the device prepares the destinations in the link's tables.
        let Some(mut end) = self.links.get_mut(usize::from(link.0)).and_then(Option::take) else { return };
        let mut changes = Vec::with_capacity(publication.changes.len());
        for change in publication.changes {
            let ip = change.ip();
            let prepared = match change {
                NeighbourChange::Remove(_) => None,
                NeighbourChange::Set(neighbour) => {
                    let prepared = neighbour.try_map(|to| self.hca.destination(self.number, to));
                    self.check(prepared)
                }
            };
            changes.push(prepared.map_or(NeighbourChange::Remove(ip), NeighbourChange::Set));
        }
        if !Arc::ptr_eq(&end.state, &publication.state) {
            let state = publication.state;
            end.broadcast = state.broadcast.as_ref().and_then(|to| self.prepare(to));
            end.groups = state.groups.iter().filter_map(|(ip, to)| Some((*ip, self.prepare(to)?))).collect();
            end.state = state;
        }
        let grace = board.publish(LinkUpdate {
            link,
            state: Arc::clone(&end.state),
            broadcast: end.broadcast.clone(),
            groups: end.groups.clone(),
            changes,
        });
        end.published(publication.generation, grace);
        if let Some(place) = self.links.get_mut(usize::from(link.0)) {
            *place = Some(end);
        }
    }

    fn prepare(&mut self, to: &UdDestination) -> Option<Destination<B>> {
        let prepared = self.hca.destination(self.number, to);
        self.check(prepared)
    }
}
