//! What a link asks for, carried out on its device and its workers.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use ib_wire::Qpn;
use pmd::hca::{Backend, QueuesId, RcConfig, UdDestination};

use super::{Destination, Endpoint, Pending, WorkerEnd};
use crate::message::Command;
use crate::view::{Board, LinkUpdate, Peer};
use ipoib::link::{Action, ConnKey, LinkState, NeighbourChange, Publication, WorkerIndex};

impl<B: Backend, C, N> Endpoint<B, C, N> {
    pub(super) fn worker(&mut self, worker: WorkerIndex) -> Option<&mut WorkerEnd<B::Queues, C, N>> {
        self.workers.get_mut(usize::from(worker.0))
    }

    pub(super) fn ud_qpn(&self, worker: WorkerIndex) -> Option<Qpn> {
        self.link.settings().workers.get(usize::from(worker.0)).map(|w| w.ud_qpn)
    }

    pub(super) fn carry_out(&mut self, now: Instant, action: Action, board: &mut impl Board<Destination<B>>) {
        match action {
            Action::SendMad(mad) => self.send_mad(mad),
            Action::OpenUd { worker, pkey_index, qkey } => {
                self.open_datagrams(now, worker, (pkey_index, qkey))
            }
            Action::SetQKey { worker, qkey } => self.set_qkey(worker, qkey),
            Action::AttachMulticast { worker, mgid, mlid } => {
                if let Some(qpn) = self.ud_qpn(worker) {
                    let result = self.hca.attach_multicast(qpn, mgid, mlid);
                    self.check(result);
                }
            }
            Action::DetachMulticast { worker, mgid, mlid } => {
                if let Some(qpn) = self.ud_qpn(worker) {
                    let result = self.hca.detach_multicast(qpn, mgid, mlid);
                    self.check(result);
                }
            }
            Action::SendUd { worker, to, bytes } => self.send_ud(worker, &to, &bytes[..]),
            Action::CreateRc { conn, worker, passive } => self.create_rc(now, conn, worker, passive),
            Action::ModifyRc { conn, qpn, to } => {
                let result = self.hca.modify_qp(qpn, &to);
                let ok = self.check(result).is_some();
                self.link.handle_done(now, conn, ok);
            }
            Action::InsertRc { conn, worker, slot } => match self.rcs.remove(&conn) {
                Some(rc) => match self.worker(worker) {
                    Some(end) => end.send(Command::InsertRc { conn, slot, rc }),
                    None => {
                        self.rcs.insert(conn, rc);
                        self.link.handle_done(now, conn, false);
                    }
                },
                None => self.link.handle_done(now, conn, false),
            },
            Action::PostDrain { conn, worker, slot } => {
                if let Some(end) = self.worker(worker) {
                    end.send(Command::PostDrain { conn, slot });
                }
            }
            Action::RemoveRc { conn, worker, slot } => {
                if let Some(end) = self.worker(worker) {
                    end.send(Command::RemoveRc { conn, slot });
                }
            }
            Action::DestroyRc { conn, .. } => {
                if let Some(rc) = self.rcs.remove(&conn) {
                    let result = self.hca.destroy_rc(rc);
                    self.check(result);
                }
            }
            Action::Publish(publication) => self.publish(publication, board),
        }
    }

    /// Sends a message of the control lcore's by a worker. It is lost, and counted, if there is no buffer or no such
    /// destination, or if the worker is far behind.
    pub fn send_ud(&mut self, worker: WorkerIndex, to: &UdDestination, message: &[u8]) {
        let prepared = self.hca.destination(to);
        let Some(to) = self.check(prepared) else { return };
        match self.pool.copy_from_slice(message) {
            Some(buf) => self.offer(worker, Command::SendUd { to, buf }),
            None => self.losses.no_buffers += 1,
        }
    }

    fn create_rc(&mut self, now: Instant, conn: ConnKey, worker: WorkerIndex, passive: bool) {
        // A passive one only ever sends its drain request.
        let send_depth = if passive { 1 } else { self.rc_send_depth };
        let created =
            self.hca.create_rc(&RcConfig { queues: QueuesId(worker.0.into()), send_depth, passive });
        let qpn = self.check(created).map(|rc| {
            let qpn = B::rc_qpn(&rc);
            self.rcs.insert(conn, rc);
            qpn
        });
        self.link.handle_created(now, conn, qpn);
    }

    fn publish(&mut self, publication: Publication, board: &mut impl Board<Destination<B>>) {
        let mut changes = Vec::with_capacity(publication.changes.len());
        for change in publication.changes {
            let ip = change.ip();
            let prepared = match change {
                NeighbourChange::Remove(_) => None,
                NeighbourChange::Set(neighbour) => {
                    let prepared = neighbour.try_map(|to| {
                        let to = self.hca.destination(to)?;
                        // Marks of use go on counting across changes of one neighbour.
                        Ok(match self.peers.get(&ip) {
                            Some(peer) => peer.with_destination(to),
                            None => Peer::new(to),
                        })
                    });
                    self.check(prepared)
                }
            };
            match prepared.as_ref().and_then(|n| n.ud.clone()) {
                Some(peer) => self.peers.insert(ip, peer),
                None => self.peers.remove(&ip),
            };
            changes.push(prepared.map_or(NeighbourChange::Remove(ip), NeighbourChange::Set));
        }
        if !Arc::ptr_eq(&self.state, &publication.state) {
            self.broadcast = publication.state.broadcast.as_ref().and_then(|to| self.prepare(to));
            self.groups = self.prepare_groups(&publication.state);
            self.state = publication.state;
        }
        board.publish(LinkUpdate {
            state: Arc::clone(&self.state),
            broadcast: self.broadcast.clone(),
            groups: self.groups.clone(),
            changes,
        });
        let turns = self.workers.iter().map(|w| w.handle.turns()).collect();
        self.pending.push_back(Pending { generation: publication.generation, turns });
    }

    fn prepare(&mut self, to: &UdDestination) -> Option<Destination<B>> {
        let prepared = self.hca.destination(to);
        self.check(prepared)
    }

    fn prepare_groups(&mut self, state: &LinkState) -> Vec<(Ipv4Addr, Destination<B>)> {
        state.groups.iter().filter_map(|(ip, to)| Some((*ip, self.prepare(to)?))).collect()
    }
}
