//! The nodes' devices: they execute the links' actions, and check their conditions.

use hca::{QpState, QpTransition, UdSource};
use ib_wire::ipoib::{Arp, decapsulate};
use ib_wire::{Gid, Qpn};

use super::fabric::{Fabric, Parcel, Qp, ms};
use crate::link::{Action, LinkIndex, WorkerIndex, WorkerNote};

impl Fabric {
    fn reply(&mut self, n: usize, parcel: Parcel) {
        let after = if self.nodes[n].lazy { ms(self.random.next() % 5) } else { ms(0) };
        self.send(n, after, parcel);
    }

    pub(super) fn perform(&mut self, n: usize, action: Action) {
        let node = &mut self.nodes[n];
        match action {
            Action::OpenUd { worker, pkey_index, qkey } => {
                node.opened.insert(worker, (pkey_index, qkey));
            }
            Action::SetQKey { worker, qkey } => {
                node.opened.get_mut(&worker).expect("Q_Key of a closed queue pair").1 = qkey;
            }
            Action::AttachMulticast { worker, mgid, mlid } => {
                assert_eq!(worker, WorkerIndex(0));
                let ok = !node.refuse_attach.contains(&mgid);
                if ok {
                    assert!(node.attached.insert((mgid, mlid)), "attached twice");
                }
                let now = self.now;
                self.nodes[n].link.0.handle_attached(now, LinkIndex(0), mgid, mlid, ok);
            }
            Action::DetachMulticast { worker, mgid, mlid } => {
                assert_eq!(worker, WorkerIndex(0));
                assert!(node.attached.remove(&(mgid, mlid)), "detached what was not attached");
            }
            Action::SendUd { bytes, .. } if node.queue_is_full => node.link.handle_unsent(&bytes[..]),
            Action::SendUd { worker, to, bytes } => {
                let (qkey, source) = (node.opened[&worker].1, node.facts.lid);
                let own = node.link.settings().workers[usize::from(worker.0)].ud_qpn;
                assert_eq!(to.qkey, Some(qkey));
                let (_, content) = decapsulate(&bytes[..]).expect("header");
                let arp = Arp::parse(content).expect("ARP");
                let multicast = to.qpn == Qpn::MULTICAST;
                let from = UdSource {
                    qpn: own,
                    slid: source,
                    sl: to.av.sl,
                    dlid_path_bits: 0,
                    pkey_index: 0,
                    has_grh: multicast,
                    multicast,
                };
                if multicast {
                    let mgid = to.av.grh.expect("multicast has a GRH").dgid;
                    let members: Vec<_> = (0..self.nodes.len())
                        .filter(|m| {
                            self.nodes[*m].alive && self.nodes[*m].attached.contains(&(mgid, to.av.dlid))
                        })
                        .collect();
                    for m in members {
                        self.send(m, ms(1), Parcel::Arp { worker: WorkerIndex(0), from, arp });
                    }
                } else if let Some(m) = self.node_at(to.av.dlid)
                    // As a channel adapter does: its own GID, whatever the prefix if the destination's is the
                    // default one.
                    && to.av.grh.is_none_or(|grh| {
                        let own = self.nodes[m].facts.gid;
                        grh.dgid == own || grh.dgid == Gid::new(Gid::DEFAULT_PREFIX, own.id())
                    })
                {
                    let workers = &self.nodes[m].link.settings().workers;
                    if let Some(w) = workers.iter().position(|w| w.ud_qpn == to.qpn) {
                        self.send(m, ms(1), Parcel::Arp { worker: WorkerIndex(w as u8), from, arp });
                    }
                }
            }
            Action::CreateRc { conn, passive, .. } => {
                assert!(node.created.insert(conn), "a key is used once");
                if node.refuse_create {
                    node.destroyed.insert(conn);
                    self.reply(n, Parcel::Created(conn, None));
                    return;
                }
                node.next_qpn += 1;
                let qpn = Qpn::new(node.next_qpn);
                let qp = Qp {
                    key: conn,
                    state: QpState::Reset,
                    passive,
                    receive: None,
                    send: None,
                    inserted: None,
                };
                node.qps.insert(qpn, qp);
                self.reply(n, Parcel::Created(conn, Some(qpn)));
            }
            Action::ModifyRc { conn, qpn, to } => {
                let refuse = node.refuse_receive;
                let mute = node.mute;
                let qp = node.qps.get_mut(&qpn).expect("queue pair");
                assert_eq!(qp.key, conn);
                let mut last_wqe = false;
                let mut ok = true;
                qp.state = match (qp.state, to) {
                    (QpState::Reset, QpTransition::RcToInit { .. }) => QpState::Init,
                    (QpState::Init, QpTransition::RcToReceive(_)) if refuse => {
                        ok = false;
                        QpState::Init
                    }
                    (QpState::Init, QpTransition::RcToReceive(r)) => {
                        assert!(qp.inserted.is_some(), "the worker must know it before it can receive");
                        qp.receive = Some(r);
                        QpState::Rtr
                    }
                    (QpState::Rtr, QpTransition::RcToSend(s)) => {
                        qp.send = Some(s);
                        QpState::Rts
                    }
                    (QpState::Rtr | QpState::Rts | QpState::Err, QpTransition::ToError) => {
                        last_wqe = true;
                        QpState::Err
                    }
                    (from, to) => panic!("{to:?} in {from:?}"),
                };
                self.reply(n, Parcel::Done(conn, ok));
                if last_wqe && !mute {
                    self.send(n, ms(2), Parcel::Note(qpn, WorkerNote::LastWqeReached));
                }
            }
            Action::InsertRc { conn, worker, slot } => {
                assert!(node.slots.insert((worker, slot), conn).is_none(), "slot taken");
                let named = |n: &crate::link::Neighbour| n.rc(worker.0).is_some_and(|rc| rc.slot == slot);
                assert!(
                    !node.tables.iter().any(|(_, table)| table.iter().any(named)),
                    "a worker may still send to the slot's last connection"
                );
                let qp = node.qps.values_mut().find(|q| q.key == conn).expect("queue pair");
                qp.inserted = Some((worker, slot));
                self.reply(n, Parcel::Done(conn, true));
            }
            Action::PostDrain { conn, worker, slot } => {
                assert_eq!(node.slots.get(&(worker, slot)), Some(&conn));
                let mute = node.mute;
                let (qpn, qp) = node.qps.iter().find(|(_, q)| q.key == conn).expect("queue pair");
                assert_eq!(qp.state, QpState::Err, "the drain request belongs to a queue pair in error");
                let qpn = *qpn;
                // Sometimes the send queue is full.
                if self.random.next().is_multiple_of(4) {
                    self.reply(n, Parcel::Done(conn, false));
                } else if !mute {
                    self.send(n, ms(2), Parcel::Note(qpn, WorkerNote::Drained));
                }
            }
            Action::RemoveRc { conn, worker, slot } => {
                assert_eq!(node.slots.remove(&(worker, slot)), Some(conn));
                let qp = node.qps.values_mut().find(|q| q.key == conn).expect("queue pair");
                qp.inserted = None;
                self.reply(n, Parcel::Done(conn, true));
            }
            Action::DestroyRc { conn, qpn } => {
                let qp = node.qps.remove(&qpn).expect("queue pair");
                assert_eq!(qp.key, conn);
                assert_eq!(qp.inserted, None, "the worker still has it");
                assert!(node.destroyed.insert(conn), "destroyed twice");
            }
            Action::Publish(p) => {
                node.table = node.table.with(p.changes);
                node.tables.push((p.generation, node.table.clone()));
                node.state = Some((*p.state).clone());
                for neighbour in node.table.iter() {
                    for (w, rc) in (0..).zip(&neighbour.rc) {
                        if let Some(rc) = rc {
                            let key = node.slots.get(&(WorkerIndex(w), rc.slot)).expect("published slot");
                            let qp = node.qps.values().find(|q| q.key == *key).expect("its queue pair");
                            assert!(!qp.passive, "never send on a connection that the peer opened");
                            assert!(matches!(qp.state, QpState::Rts | QpState::Err));
                        }
                    }
                }
                // Workers take up new tables with a delay.
                let after = if node.lazy { ms(self.random.next() % 400) } else { ms(0) };
                if !node.stuck {
                    self.send(n, after, Parcel::Quiescent(p.generation));
                }
            }
        }
    }
}
