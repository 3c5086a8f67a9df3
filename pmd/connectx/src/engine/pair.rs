//! Engine calls that create, modify and destroy queue pairs.

use ib_wire::{Gid, Psn, Qpn};

use super::{Engine, not_found, unsupported};
use crate::device::Face;
use crate::memory::HostMemory;
use crate::object::mr::{Member, ProtectionDomain, Trust};
use crate::object::qp::{Consequence, Qp, QpKind, Receives, RemoteOperations, state_name};
use crate::object::receive::ReceiveQueue;
use crate::object::send::SendQueue;
use crate::object::table::QpTable;
use crate::queue_counters::QueueCount;
use crate::region::RegionMemory;
use hca::{HcaError, PortNumber, QpState, QpTransition, RcToReceive, UcToReceive, WcStatus};

/// Parameters of a queue pair.
#[derive(Debug)]
pub struct QpAttributes {
    /// Transport or purpose.
    pub kind: QpKind,
    /// Its port, until [`Engine::set_qp_port`] changes it.
    pub port: PortNumber,
    /// The send ring of WQEBBs.
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
    /// Identifier in completions, 24 bits.
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
        if a.kind == QpKind::XrcTarget {
            return Err(unsupported("queues of an XRC target", 1));
        }
        for cq in [a.send_cq, a.recv_cq] {
            let there = self.dev.cqs.get(cq as usize).is_some_and(Option::is_some);
            there.then_some(()).ok_or_else(|| not_found("completion queue", cq))?;
        }
        let sq = SendQueue::new(a.send_ring.clone(), a.dbrec)
            .ok_or_else(|| unsupported("send ring bytes", a.send_ring.len()))?;
        let trust = if a.kind == QpKind::Umr { Trust::Domains } else { Trust::Lists };
        let domain = Member { queue_pair: Some(qpn), trust, ..Member::default() };
        let mut receives = match (a.srq, &a.receive_ring) {
            // Of the XRC queue pairs only targets have receives.
            (Some(n), _) if self.dev.srq(n).is_some_and(|srq| srq.xrc.is_none()) => Receives::Shared(n),
            (Some(n), _) => return Err(not_found("shared receive queue", n)),
            (None, Some((ring, stride))) => Receives::Own(
                ReceiveQueue::new(ring.clone(), *stride, a.dbrec)
                    .ok_or_else(|| unsupported("receive ring bytes", ring.len()))?,
            ),
            (None, None) => Receives::None,
        };
        if let Receives::Own(rq) = &mut receives {
            rq.domain = domain;
        }
        let qp = Qp {
            send_cq: a.send_cq,
            recv_cq: a.recv_cq,
            user_index: a.user_index & Qpn::MASK,
            ..Qp::new(qpn, a.kind, a.port.0 - 1, sq, receives, domain)
        };
        self.qps.insert(qp);
        Ok(qpn)
    }

    /// Changes the port of a queue pair in RESET or INIT. Its multicast attachments move with it.
    pub fn set_qp_port(&mut self, qpn: Qpn, port: PortNumber) -> Result<(), HcaError> {
        self.port(port)?;
        let index = port.0 - 1;
        let qp = self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        let (slot, state, special) = (qp.slot, qp.state, qp.kind.external());
        if qp.port == index {
            return Ok(());
        }
        if !matches!(state, QpState::Reset | QpState::Init) {
            return Err(HcaError::BadTransition { qpn, from: state_name(state), to: "another port" });
        }
        if state == QpState::Init
            && let Some(number) = special
            && !self.qps.name(index, number, slot)
        {
            return Err(HcaError::Exhausted("special queue pairs"));
        }
        if let Some(qp) = self.qps.at(slot) {
            qp.port = index;
        }
        Ok(())
    }

    /// Moves a queue pair to another state. Only one of each port's special queue pairs can be out of RESET.
    pub fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.get(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        if let QpTransition::UdToInit { pkey_index, .. }
        | QpTransition::RcToInit { pkey_index }
        | QpTransition::UcToInit { pkey_index } = *to
            && dev.port(qp.port).is_some_and(|port| usize::from(pkey_index) >= port.pkeys.len())
        {
            return Err(not_found("P_Key index", pkey_index));
        }
        if let QpTransition::RcToReceive(RcToReceive { av, .. })
        | QpTransition::UcToReceive(UcToReceive { av, .. }) = to
            && dev.port(qp.port).is_some_and(|port| !port.may_send_to(av))
        {
            return Err(HcaError::Environment(format!(
                "port {} requires a GRH, and queue pair {qpn} has an address without one",
                qp.port + 1
            )));
        }
        if let (QpState::Reset, QpTransition::UdToInit { .. }, Some(number)) =
            (qp.state, to, qp.kind.external())
        {
            let (port, slot) = (qp.port, qp.slot);
            qps.name(port, number, slot).then_some(()).ok_or(HcaError::Exhausted("special queue pairs"))?;
        }
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        match qp.transition(to)? {
            Consequence::None => dev.schedule(qp),
            Consequence::Flush => dev.enter_error(qp),
            Consequence::FlushAgain => {
                dev.flush(qp);
            }
            Consequence::Reset => {
                // The entry of a shared queue must complete, because the host would otherwise never learn of
                // it.
                let shared = qp.receives.are_shared();
                if let Some(counter) = qp.take_begun_receive().filter(|_| shared) {
                    dev.fail_receive(&Face::receiving(qp, dev), counter, WcStatus::Flushed);
                }
                dev.disarm(qp);
                qp.deadline = None;
                qp.rc = None;
                qp.uc = None;
                qp.notify_drained = false;
                qp.sq.reset();
                match &mut qp.receives {
                    Receives::Own(rq) => rq.reset(),
                    Receives::Named(target) => target.named = None,
                    Receives::Shared(_) | Receives::None => {}
                }
                let slot = qp.slot;
                qps.unname(slot);
            }
        }
        Ok(())
    }

    /// Sets the index in the P_Key table that a queue pair sends with.
    pub fn set_pkey_index(&mut self, qpn: Qpn, index: u16) {
        if let Some(qp) = self.qps.real(qpn) {
            qp.pkey_index = index;
        }
    }

    /// Moves a queue pair and its own receive queue to a protection domain.
    pub fn set_qp_domain(&mut self, qpn: Qpn, domain: ProtectionDomain) -> Result<(), HcaError> {
        let qp = self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        qp.domain.domain = domain;
        if let Receives::Own(rq) = &mut qp.receives {
            rq.domain = qp.domain;
        }
        Ok(())
    }

    /// Permits a queue pair to set the memory of keys by page addresses. By default only queue pairs of kind
    /// UMR may do so.
    pub fn allow_page_lists(&mut self, qpn: Qpn) -> Result<(), HcaError> {
        let trust = &mut self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?.domain.trust;
        *trust = (*trust).max(Trust::Pages);
        Ok(())
    }

    /// Permits the work requests of a queue pair, and of its own receive queue, to use the reserved key. The
    /// default is not permitted. The memory is that of [`Engine::set_bus`].
    pub fn allow_reserved_key(&mut self, qpn: Qpn) -> Result<(), HcaError> {
        let qp = self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        qp.domain.reserved = true;
        if let Receives::Own(rq) = &mut qp.receives {
            rq.domain = qp.domain;
        }
        Ok(())
    }

    /// Sets the remote operations of a connection.
    pub fn set_remote_operations(&mut self, qpn: Qpn, remote: RemoteOperations) -> Result<(), HcaError> {
        self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?.remote = remote;
        Ok(())
    }

    /// Sets whether a datagram queue pair receives its own packets to a group that it is attached to. The
    /// default is no.
    pub fn set_multicast_loopback(&mut self, qpn: Qpn, to_itself: bool) -> Result<(), HcaError> {
        self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?.hears_itself = to_itself;
        Ok(())
    }

    /// Assigns a queue pair to a set of counters; 0 means none. Numbers from
    /// [`COUNTER_SETS`](crate::COUNTER_SETS) on count nothing.
    pub fn set_counter_set(&mut self, qpn: Qpn, set: u8) -> Result<(), HcaError> {
        self.qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?.counter_set = set;
        Ok(())
    }

    /// A counter of a set of queue pairs, since the set was last cleared.
    #[must_use]
    pub fn queue_counter(&self, set: u8, what: QueueCount) -> u64 {
        self.dev.queue_counters.get(set, what)
    }

    /// Clears the counters of a set.
    pub fn clear_queue_counters(&mut self, set: u8) {
        self.dev.queue_counters.clear(set);
    }

    /// True if no request in a queue pair's send queue waits to be sent.
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

    /// The PSN of the next packet that a queue pair sends and, for a connection, the PSN that it expects
    /// next.
    pub fn qp_psns(&self, qpn: Qpn) -> Option<(Psn, Option<Psn>)> {
        let qp = self.qps.get(qpn)?;
        Some(match (&qp.rc, &qp.uc) {
            (Some(rc), _) => (rc.requester.next, Some(rc.responder.epsn)),
            (None, Some(uc)) => (uc.next, Some(uc.expected)),
            (None, None) => (qp.datagram_psn, None),
        })
    }

    /// Destroys a queue pair. All outstanding work requests complete as flushed first.
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

    /// Attaches a datagram queue pair to a multicast group.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).filter(|qp| qp.kind == QpKind::Ud);
        let qp = qp.ok_or_else(|| not_found("datagram queue pair", qpn))?;
        let attached = group.is_multicast() && dev.multicast.attach(group, qp.slot);
        attached.then_some(()).ok_or(HcaError::Exhausted("multicast attachments"))
    }

    /// Detaches a datagram queue pair from a multicast group.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        dev.multicast
            .detach(group, qp.slot)
            .then_some(())
            .ok_or_else(|| not_found("multicast attachment", group))
    }
}
