//! Queue pairs: what they are made with, their life.

use ib_wire::{Gid, Psn, QKey, Qpn};

use super::{Engine, not_found, unsupported};
use crate::device::Face;
use crate::memory::HostMemory;
use crate::object::mr::ProtectionDomain;
use crate::object::qp::{Consequence, Qp, QpKind, Receives, RemoteOperations};
use crate::object::receive::ReceiveQueue;
use crate::object::send::SendQueue;
use crate::object::table::{QpTable, slot_of};
use crate::region::RegionMemory;
use hca::{HcaError, PortNumber, QpState, QpTransition, WcStatus};

/// What a queue pair is made with.
#[derive(Debug)]
pub struct QpAttributes {
    /// What it is for.
    pub kind: QpKind,
    /// Its port.
    pub port: PortNumber,
    /// The send ring: WQEBBs.
    pub send_ring: RegionMemory,
    /// The receive ring and the bytes of a slot; `None` with a shared receive queue.
    pub receive_ring: Option<(RegionMemory, usize)>,
    /// The shared receive queue.
    pub srq: Option<u32>,
    /// Doorbell record: receive counter, send counter.
    pub dbrec: HostMemory,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// What completions call it, 24 bits.
    pub user_index: u32,
}

impl Engine {
    /// Creates a queue pair in RESET.
    pub fn create_qp(&mut self, attributes: &QpAttributes) -> Result<Qpn, HcaError> {
        let slot = self.qps.next_slot().ok_or(HcaError::Exhausted("queue pairs"))?;
        let number = QpTable::number(slot, self.roll() as u32);
        self.create_qp_numbered(attributes, number)
    }

    pub(crate) fn create_qp_numbered(&mut self, a: &QpAttributes, qpn: Qpn) -> Result<Qpn, HcaError> {
        self.port(a.port)?;
        for cq in [a.send_cq, a.recv_cq] {
            let there = self.dev.cqs.get(cq as usize).is_some_and(Option::is_some);
            there.then_some(()).ok_or_else(|| not_found("completion queue", cq))?;
        }
        let sq = SendQueue::new(a.send_ring.clone(), a.dbrec)
            .ok_or_else(|| unsupported("send ring bytes", a.send_ring.len()))?;
        let receives = match (a.srq, &a.receive_ring) {
            (Some(n), _) if self.dev.srqs.get(n as usize).is_some_and(Option::is_some) => Receives::Shared(n),
            (Some(n), _) => return Err(not_found("shared receive queue", n)),
            (None, Some((ring, stride))) => Receives::Own(
                ReceiveQueue::new(ring.clone(), *stride, a.dbrec)
                    .ok_or_else(|| unsupported("receive ring bytes", ring.len()))?,
            ),
            (None, None) => Receives::None,
        };
        let qp = Qp {
            qpn,
            slot: slot_of(qpn),
            kind: a.kind,
            port: a.port.0 - 1,
            state: QpState::Reset,
            user_index: a.user_index & Qpn::MASK,
            send_cq: a.send_cq,
            recv_cq: a.recv_cq,
            sq,
            receives,
            pkey_index: 0,
            domain: ProtectionDomain::default(),
            remote: RemoteOperations::default(),
            hears_itself: false,
            qkey: QKey(0),
            datagram_psn: Psn::default(),
            rc: None,
            queued: false,
            deadline: None,
            armed: None,
        };
        if !self.qps.insert(qp) {
            return Err(HcaError::Exhausted("special queue pairs"));
        }
        Ok(qpn)
    }

    /// Moves a queue pair to another state.
    pub fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        if let QpTransition::UdToInit { pkey_index, .. } | QpTransition::RcToInit { pkey_index } = *to
            && dev.port(qp.port).is_some_and(|port| usize::from(pkey_index) >= port.pkeys.len())
        {
            return Err(not_found("P_Key index", pkey_index));
        }
        match qp.transition(to)? {
            Consequence::None => dev.schedule(qp),
            Consequence::Flush => dev.enter_error(qp),
            Consequence::Reset => {
                // The shared queue's entry must come back all the same.
                let begun = qp.rc.as_mut().and_then(|rc| rc.responder.take_receive());
                if let Some(counter) = begun {
                    dev.fail_receive(&Face::new(qp), counter, WcStatus::Flushed);
                }
                dev.disarm(qp);
                qp.deadline = None;
                qp.rc = None;
                qp.sq.reset();
                if let Receives::Own(rq) = &mut qp.receives {
                    rq.reset();
                }
            }
        }
        Ok(())
    }

    /// The index into the P_Key table that a queue pair sends with from now on.
    pub fn set_pkey_index(&mut self, qpn: Qpn, index: u16) {
        if let Some(qp) = self.qps.real(qpn) {
            qp.pkey_index = index;
        }
    }

    /// Puts a queue pair into a protection domain, with the receive queue that is its own.
    pub fn set_qp_domain(&mut self, qpn: Qpn, domain: ProtectionDomain) -> Result<(), HcaError> {
        let qp = self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        qp.domain = domain;
        if let Receives::Own(rq) = &mut qp.receives {
            rq.domain = domain;
        }
        Ok(())
    }

    /// What a connection may do from now on.
    pub fn set_remote_operations(&mut self, qpn: Qpn, remote: RemoteOperations) -> Result<(), HcaError> {
        self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?.remote = remote;
        Ok(())
    }

    /// Whether a datagram queue pair gets what it sends to a group that it is attached to itself; a new one does not.
    pub fn set_multicast_loopback(&mut self, qpn: Qpn, to_itself: bool) -> Result<(), HcaError> {
        self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?.hears_itself = to_itself;
        Ok(())
    }

    /// True if nothing that was posted to a queue pair's send queue waits to be sent.
    pub fn sends_are_done(&mut self, qpn: Qpn) -> bool {
        self.qps.real(qpn).is_none_or(|qp| qp.sq.pending() == 0)
    }

    /// The port of a queue pair.
    pub fn qp_port(&self, qpn: Qpn) -> Option<PortNumber> {
        self.qps.get(qpn).map(|qp| PortNumber(qp.port + 1))
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        Ok(self.qps.get(qpn).ok_or_else(|| not_found("queue pair", qpn))?.state)
    }

    /// Destroys a queue pair. Everything outstanding completes as flushed first.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        if qp.state != QpState::Reset {
            dev.flush(qp);
        }
        dev.disarm(qp);
        let slot = qp.slot;
        dev.unheard.remove(&slot);
        dev.ready.retain(|&s| s != slot);
        dev.multicast.forget(slot);
        qps.remove(slot);
        Ok(())
    }

    /// Lets a datagram queue pair receive a group.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).filter(|qp| qp.kind == QpKind::Ud);
        let qp = qp.ok_or_else(|| not_found("datagram queue pair", qpn))?;
        let attached = group.is_multicast() && dev.multicast.attach(qp.port, group, qp.slot);
        attached.then_some(()).ok_or(HcaError::Exhausted("multicast attachments"))
    }

    /// Ends that.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        dev.multicast
            .detach(qp.port, group, qp.slot)
            .then_some(())
            .ok_or_else(|| not_found("multicast attachment", group))
    }
}
