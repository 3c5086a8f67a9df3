//! Creating and destroying a worker's queues and connected queue pairs.

use std::sync::{Arc, Weak};

use ib_wire::Qpn;
use verbs_sys as sys;

use super::object::{CompletionChannel, CompletionQueue, QueuePair, QueuePairParts, SharedReceiveQueue};
use super::queues::{Parts, SendSide, VerbsQueues, VerbsRc};
use super::{Adapter, DataPath, QpRecord, VerbsHca};
use crate::hca::{
    Backend, HcaError, PortNumber, QpTransition, QueuesConfig, QueuesId, RcConfig, UdDestination,
};
use crate::mem::Pool;

/// Segments of a datagram: a packet from Ethernet has one or two.
pub(super) const UD_SEGMENTS: u32 = 4;
/// Segments of a message on a connection: as many as an entry for IPoIB's largest has, and to spare.
const RC_SEGMENTS: u32 = 24;
/// Sends of a queue pair that only receives: one drain request at a time. Other users of devices ask for no fewer than this.
const PASSIVE_SENDS: u32 = 4;
/// Sends per connected queue pair that the completion queue has room for.
pub(super) const RC_SENDS: u32 = 128;

/// A worker's queues as the control lcore knows them.
#[derive(Debug)]
pub(super) struct WorkerRecord<W> {
    pub(super) port: PortNumber,
    pub(super) ud: Qpn,
    pub(super) send_cq: Weak<CompletionQueue>,
    pub(super) recv_cq: Weak<CompletionQueue>,
    pub(super) srq: Option<Weak<SharedReceiveQueue>>,
    pub(super) srq_limit: u32,
    pub(super) signal_every: u32,
    /// Completions of sends, and of drain requests, that still have room.
    pub(super) send_credit: u32,
    pub(super) drain_credit: u32,
    /// What the way of packets adds.
    pub(super) own: W,
}

impl<W> WorkerRecord<W> {
    pub(super) fn is_srq(&self, raw: *mut sys::ibv_srq) -> bool {
        self.srq.as_ref().and_then(Weak::upgrade).is_some_and(|srq| srq.raw() == raw)
    }

    /// Asks for the limit event, if one is wanted.
    pub(super) fn arm(&self) -> Result<(), HcaError> {
        match self.srq.as_ref().and_then(Weak::upgrade) {
            Some(srq) if self.srq_limit > 0 => srq.arm(self.srq_limit),
            _ => Ok(()),
        }
    }

    /// Refuses what the completion queue has no room for.
    pub(super) const fn check_credit(&mut self, passive: bool, entries: u32) -> Result<(), HcaError> {
        if *self.credit(passive) < entries {
            return Err(HcaError::Exhausted("completion queue entries for connected queue pairs"));
        }
        Ok(())
    }

    pub(super) const fn credit(&mut self, passive: bool) -> &mut u32 {
        if passive { &mut self.drain_credit } else { &mut self.send_credit }
    }
}

pub(super) fn within(what: &'static str, value: u32, limit: i32) -> Result<u32, HcaError> {
    if i64::from(value) <= i64::from(limit) {
        return Ok(value);
    }
    Err(HcaError::Unsupported { what, value: value.into(), limit: format!("at most {limit}") })
}

impl<P: DataPath> Adapter<P> {
    pub(super) fn shared_receives(
        &self,
        config: &QueuesConfig,
        room: usize,
    ) -> Result<Option<(Arc<SharedReceiveQueue>, usize)>, HcaError> {
        if config.srq_depth == 0 {
            return Ok(None);
        }
        let limits = self.context.limits();
        let segments = config.srq_message.div_ceil(room.max(1)).max(1);
        let depth = within("depth of the shared receive queue", config.srq_depth, limits.max_srq_wr)?;
        let count = u32::try_from(segments).unwrap_or(u32::MAX);
        within("segments of a shared receive queue's entry", count, limits.max_srq_sge)?;
        Ok(Some((Arc::new(SharedReceiveQueue::new(&self.domain, depth, count)?), segments)))
    }

    pub(super) fn max_sge(&self, wanted: u32) -> u32 {
        wanted.min(u32::try_from(self.context.limits().max_sge).unwrap_or(1)).max(1)
    }
}

impl Backend for VerbsHca {
    type Queues = VerbsQueues;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<VerbsQueues, HcaError> {
        if self.workers.contains_key(&config.id) {
            return Err(HcaError::Exhausted("queues of this number: they exist"));
        }
        let limits = *self.context.limits();
        let sends = within("depth of the send queue", config.ud_send_depth.max(1), limits.max_qp_wr)?;
        let receives = within("depth of the receive queue", config.ud_recv_depth.max(1), limits.max_qp_wr)?;
        let shared = self.shared_receives(config, pool.data_room())?;
        let srq_depth = shared.as_ref().map_or(0, |_| config.srq_depth);

        // Every entry may complete by itself, once flushed; connections get what the device's largest queue leaves.
        let most = u32::try_from(limits.max_cqe).unwrap_or(0);
        let base = within("completions of receives", receives.saturating_add(srq_depth), limits.max_cqe)?;
        let drain_credit = config.max_rc.saturating_mul(PASSIVE_SENDS).min(most - base);
        let send_credit = config.max_rc.saturating_mul(RC_SENDS).min(most.saturating_sub(sends));
        let channel = Arc::new(CompletionChannel::new(&self.context)?);
        let recv_cq = Arc::new(CompletionQueue::new(&self.context, base + drain_credit, Some(channel))?);
        let send_cq = Arc::new(CompletionQueue::new(&self.context, sends + send_credit, None)?);
        let segments = self.max_sge(UD_SEGMENTS);
        let ud = Arc::new(QueuePair::new(
            &self.domain,
            QueuePairParts {
                kind: sys::IBV_QPT_UD,
                send_cq: Arc::clone(&send_cq),
                recv_cq: Arc::clone(&recv_cq),
                srq: None,
                send_wr: sends,
                send_sge: segments,
                recv_wr: receives,
            },
        )?);
        let worker = WorkerRecord {
            port: config.port,
            ud: ud.number(),
            send_cq: Arc::downgrade(&send_cq),
            recv_cq: Arc::downgrade(&recv_cq),
            srq: shared.as_ref().map(|(srq, _)| Arc::downgrade(srq)),
            srq_limit: config.srq_limit,
            signal_every: config.signal_every,
            send_credit,
            drain_credit,
            own: (),
        };
        self.keep_queues(config.id, worker, &ud)?;
        Ok(VerbsQueues::new(Parts {
            send_cq,
            recv_cq,
            ud: SendSide::new(ud, sends, segments, config.signal_every),
            ud_receives: receives,
            srq: shared,
            srq_depth,
            regions: self.regions.clone(),
            pool: pool.clone(),
            max_rc: config.max_rc,
        }))
    }

    fn destroy_queues(&mut self, queues: VerbsQueues) -> Result<(), HcaError> {
        let ud = crate::hca::Queues::ud_qpn(&queues);
        let destroyed = queues.destroy();
        self.forget_queues(ud)?;
        destroyed
    }

    fn create_rc(&mut self, config: &RcConfig) -> Result<VerbsRc, HcaError> {
        let segments = if config.passive { 1 } else { self.max_sge(RC_SEGMENTS) };
        let no_queues = || HcaError::NotFound { what: "queues", name: config.queues.0.to_string() };
        let worker = self.workers.get_mut(&config.queues).ok_or_else(no_queues)?;
        let (Some(send_cq), Some(recv_cq)) = (worker.send_cq.upgrade(), worker.recv_cq.upgrade()) else {
            return Err(no_queues());
        };
        let srq = worker.srq.as_ref().and_then(Weak::upgrade);
        let srq = srq.ok_or(HcaError::Exhausted("shared receive queues: these queues are datagram only"))?;
        // One more for the drain request.
        let depth = config.send_depth.max(1);
        let send_wr = if config.passive { depth.max(PASSIVE_SENDS) } else { depth.saturating_add(1) };
        worker.check_credit(config.passive, send_wr)?;
        let signal_every = worker.signal_every;
        let qp = Arc::new(QueuePair::new(
            &self.domain,
            QueuePairParts {
                kind: sys::IBV_QPT_RC,
                send_cq: if config.passive { Arc::clone(&recv_cq) } else { send_cq },
                recv_cq,
                srq: Some(srq),
                send_wr,
                send_sge: segments,
                recv_wr: 0,
            },
        )?);
        self.keep_rc(&qp, config, send_wr);
        let data = if config.passive { 0 } else { depth };
        Ok(VerbsRc::new(SendSide::new(qp, data, segments, signal_every), config.passive))
    }

    fn destroy_rc(&mut self, rc: VerbsRc) -> Result<(), HcaError> {
        let qpn = rc.qpn();
        let destroyed = rc.destroy();
        self.forget_rc(qpn)?;
        destroyed
    }

    fn rc_qpn(rc: &VerbsRc) -> Qpn {
        rc.qpn()
    }

    fn destination(&mut self, to: &UdDestination) -> Result<super::VerbsDestination, HcaError> {
        let port = self.workers.get(&QueuesId(0)).or_else(|| self.workers.values().next());
        let port = port.map_or(PortNumber(1), |worker| worker.port);
        if let Some(grh) = &to.av.grh
            && to.av.dlid.is_multicast()
            && !grh.dgid.is_multicast()
        {
            return Err(HcaError::NotFound { what: "multicast group", name: grh.dgid.to_string() });
        }
        self.path.handles.destination(&self.domain, port, to)
    }
}

impl<P: DataPath> Adapter<P> {
    /// Keeps account of a worker's new queues.
    pub(super) fn keep_queues(
        &mut self,
        id: QueuesId,
        worker: WorkerRecord<P::Worker>,
        ud: &Arc<QueuePair>,
    ) -> Result<(), HcaError> {
        worker.arm()?;
        self.qps.insert(
            worker.ud,
            QpRecord {
                qp: Arc::downgrade(ud),
                port: worker.port,
                queues: id,
                credit: 0,
                passive: false,
                connected: false,
                last_wqe_told: false,
            },
        );
        self.workers.insert(id, worker);
        Ok(())
    }

    /// Keeps account of a new connected queue pair that takes `credit` entries of a completion queue.
    pub(super) fn keep_rc(&mut self, qp: &Arc<QueuePair>, config: &RcConfig, credit: u32) {
        let Some(worker) = self.workers.get_mut(&config.queues) else { return };
        *worker.credit(config.passive) -= credit;
        self.qps.insert(
            qp.number(),
            QpRecord {
                qp: Arc::downgrade(qp),
                port: worker.port,
                queues: config.queues,
                credit,
                passive: config.passive,
                connected: true,
                last_wqe_told: false,
            },
        );
    }

    /// A worker's queues are gone.
    pub(super) fn forget_queues(&mut self, ud: Qpn) -> Result<(), HcaError> {
        let id = self.qps.remove(&ud).map(|record| record.queues);
        let id =
            id.ok_or_else(|| HcaError::NotFound { what: "queues with queue pair", name: ud.to_string() })?;
        self.workers.remove(&id);
        // Of connected queue pairs, those that were in its table are gone with it.
        self.qps.retain(|_, record| record.qp.strong_count() > 0);
        Ok(())
    }

    /// A connected queue pair is gone.
    pub(super) fn forget_rc(&mut self, qpn: Qpn) -> Result<(), HcaError> {
        let record = self
            .qps
            .remove(&qpn)
            .ok_or_else(|| HcaError::NotFound { what: "connected queue pair", name: qpn.to_string() })?;
        if let Some(worker) = self.workers.get_mut(&record.queues) {
            *worker.credit(record.passive) += record.credit;
        }
        Ok(())
    }

    /// What a provider does not tell and has to be told in its place.
    pub(super) fn after_transition(&mut self, qpn: Qpn, to: &QpTransition) {
        let tells = self.domain.context().tells_last_wqe();
        let Some(record) = self.qps.get_mut(&qpn).filter(|record| record.connected) else { return };
        match to {
            QpTransition::ToError if !tells && record.tell_last_wqe() => {
                self.own_events.push(crate::hca::AsyncEvent::LastWqeReached(qpn));
            }
            QpTransition::ToReset => record.last_wqe_told = false,
            _ => {}
        }
    }
}
