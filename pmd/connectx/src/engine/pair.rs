//! Queue pairs: their table, what they are made with, their life.

use std::collections::VecDeque;

use ib_wire::{Gid, QKey, Qpn};

use super::{Engine, not_found, unsupported};
use crate::device::Face;
use crate::memory::HostMemory;
use crate::object::qp::{Consequence, Qp, QpKind, Receives, SendQueue};
use crate::object::receive::ReceiveQueue;
use hca::{HcaError, PortNumber, QpState, QpTransition, WcStatus};

/// Low bits of a queue pair number that are its place in the table.
const SLOT_BITS: u32 = 13;
/// Most queue pairs.
pub const MAX_QPS: usize = 1 << SLOT_BITS;

/// What a queue pair is made with.
#[derive(Debug)]
pub struct QpAttributes {
    /// What it is for.
    pub kind: QpKind,
    /// Its port.
    pub port: PortNumber,
    /// The send ring: WQEBBs.
    pub send_ring: HostMemory,
    /// The receive ring and the bytes of a slot; `None` with a shared receive queue.
    pub receive_ring: Option<(HostMemory, usize)>,
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

/// All queue pairs, by the low bits of their numbers.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    slots: Vec<Option<Box<Qp>>>,
    free: VecDeque<u32>,
    /// Queue pairs 0 and 1 by port.
    special: Vec<[Option<u32>; 2]>,
}

impl QpTable {
    /// An empty table for a device of this many ports.
    pub(super) fn new(ports: usize) -> Self {
        Self { special: vec![[None; 2]; ports], ..Self::default() }
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Qp> {
        self.slots.iter().flatten().map(|qp| &**qp)
    }

    /// All of them, to be changed.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.slots.iter_mut().flatten().map(|qp| &mut **qp)
    }

    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    /// By real number.
    pub(crate) fn real(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        self.at(qpn.get() & (MAX_QPS as u32 - 1)).filter(|qp| qp.qpn == qpn)
    }

    /// By the number that a packet to `port` names: 0 and 1 are the special ones, whatever they are really called.
    pub(crate) fn named(&mut self, port: u8, qpn: Qpn) -> Option<&mut Qp> {
        if qpn == Qpn::SMI || qpn == Qpn::GSI {
            let slot = (*self.special.get(usize::from(port))?.get(qpn.get() as usize)?)?;
            return self.at(slot);
        }
        self.real(qpn).filter(|qp| qp.port == port)
    }
}

impl Engine {
    /// Creates a queue pair in RESET.
    pub fn create_qp(&mut self, attributes: &QpAttributes) -> Result<Qpn, HcaError> {
        // The place is found first, so that the upper bits alone are drawn; they begin high and differ from run to
        // run, so that a device that was restarted is not taken for the old one.
        let slot = match self.qps.free.front() {
            Some(&slot) if self.qps.slots.len() >= MAX_QPS || self.qps.free.len() > 64 => slot,
            _ if self.qps.slots.len() < MAX_QPS => self.qps.slots.len() as u32,
            Some(&slot) => slot,
            None => return Err(HcaError::Exhausted("queue pairs")),
        };
        let upper = (self.roll() as u32) | 1 << (23 - SLOT_BITS);
        self.create_qp_numbered(attributes, Qpn::new(upper << SLOT_BITS | slot))
    }

    pub(crate) fn create_qp_numbered(&mut self, a: &QpAttributes, qpn: Qpn) -> Result<Qpn, HcaError> {
        self.port(a.port)?;
        for cq in [a.send_cq, a.recv_cq] {
            let there = self.dev.cqs.get(cq as usize).is_some_and(Option::is_some);
            there.then_some(()).ok_or_else(|| not_found("completion queue", cq))?;
        }
        let sq = SendQueue::new(a.send_ring, a.dbrec)
            .ok_or_else(|| unsupported("send ring bytes", a.send_ring.len()))?;
        let receives = match (a.srq, a.receive_ring) {
            (Some(n), _) if self.dev.srqs.get(n as usize).is_some_and(Option::is_some) => Receives::Shared(n),
            (Some(n), _) => return Err(not_found("shared receive queue", n)),
            (None, Some((ring, stride))) => Receives::Own(
                ReceiveQueue::new(ring, stride, a.dbrec)
                    .ok_or_else(|| unsupported("receive ring bytes", ring.len()))?,
            ),
            (None, None) => Receives::None,
        };
        let slot = qpn.get() & (MAX_QPS as u32 - 1);
        let port = a.port.0 - 1;
        if let Some(number) = a.kind.external()
            && let Some(place) =
                self.qps.special.get_mut(usize::from(port)).and_then(|s| s.get_mut(number.get() as usize))
        {
            if place.is_some() {
                return Err(HcaError::Exhausted("special queue pairs"));
            }
            *place = Some(slot);
        }
        let qp = Qp {
            qpn,
            slot,
            kind: a.kind,
            port,
            state: QpState::Reset,
            user_index: a.user_index & Qpn::MASK,
            send_cq: a.send_cq,
            recv_cq: a.recv_cq,
            sq,
            receives,
            pkey_index: 0,
            qkey: QKey(0),
            rc: None,
            queued: false,
            deadline: None,
            armed: None,
        };
        if self.qps.slots.len() <= slot as usize {
            for skipped in self.qps.slots.len() as u32..slot {
                self.qps.free.push_back(skipped);
            }
            self.qps.slots.resize_with(slot as usize + 1, || None);
        }
        self.qps.free.retain(|&s| s != slot);
        if let Some(place) = self.qps.slots.get_mut(slot as usize) {
            *place = Some(Box::new(qp));
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

    /// True if nothing that was posted to a queue pair's send queue waits to be sent.
    pub fn sends_are_done(&mut self, qpn: Qpn) -> bool {
        self.qps.real(qpn).is_none_or(|qp| qp.sq.pending() == 0)
    }

    /// The port of a queue pair.
    pub fn qp_port(&self, qpn: Qpn) -> Option<PortNumber> {
        let slot = (qpn.get() & (MAX_QPS as u32 - 1)) as usize;
        self.qps.slots.get(slot)?.as_deref().map(|qp| PortNumber(qp.port + 1))
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        let slot = (qpn.get() & (MAX_QPS as u32 - 1)) as usize;
        let qp = self.qps.slots.get(slot).and_then(Option::as_deref).filter(|qp| qp.qpn == qpn);
        Ok(qp.ok_or_else(|| not_found("queue pair", qpn))?.state)
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
        dev.ready.retain(|&s| s != slot);
        dev.multicast.forget(slot);
        for place in qps.special.iter_mut().flatten() {
            if *place == Some(slot) {
                *place = None;
            }
        }
        if let Some(place) = qps.slots.get_mut(slot as usize) {
            *place = None;
        }
        qps.free.push_back(slot);
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
