//! Creating and destroying a worker's queues and connected queue pairs.

use std::sync::{Arc, Weak};

use ib_wire::Qpn;
use verbs_sys as sys;

use super::super::object::{
    CompletionChannel, CompletionQueue, ProtectionDomain, QueuePair, QueuePairParts, SharedReceiveQueue,
};
use super::super::setup::{WorkerRecord, within};
use super::super::{Mlx5Hca, remedy};
use super::{RingWorker, rings};
use crate::hca::{Backend, HcaError, LinkLayer, Queues, QueuesConfig, RcConfig, UdDestination};
use crate::mem::{Mbuf, Pool};
use crate::mlx5::av::Destination;
use crate::mlx5::bus::PciBus;
use crate::mlx5::queues::{MlxQueues, Parts};
use crate::mlx5::rc::RcQp;
use crate::mlx5::rings::{QpRequest, QpRings, SharedSizes};

impl Mlx5Hca {
    fn limit(&self, of: impl Fn(&sys::ibv_device_attr) -> i32) -> u32 {
        u32::try_from(of(self.context.limits())).unwrap_or(0)
    }

    /// A queue pair on the worker's own register.
    fn ring_qp(
        domain: &Arc<ProtectionDomain>,
        asked: &QpRequest,
        parts: QueuePairParts,
    ) -> Result<(Arc<QueuePair>, QpRings), HcaError> {
        let geometry = asked.geometry()?;
        let pair = Arc::new(QueuePair::for_rings(domain, parts)?);
        let rings = rings::qp(&pair)?;
        // Smaller than asked for would let the completion queues overflow, or receive buffers be left over.
        if rings.sq_wqebbs > geometry.sq_wqebbs || rings.rq_slots < geometry.rq_slots {
            return Err(remedy::rings(
                &format!("libmlx5 made queues of {} and {} blocks", rings.sq_wqebbs, rings.rq_slots),
                "install another release of rdma-core",
            ));
        }
        Ok((pair, rings))
    }

    /// The register is one that no other worker rings.
    fn check_register(&self, register: u64) -> Result<(), HcaError> {
        if self.workers.values().any(|other| other.own.register == register) {
            return Err(remedy::rings(
                "libmlx5 gave two workers one doorbell register",
                "raise MLX5_TOTAL_UUARS, or use one worker",
            ));
        }
        Ok(())
    }
}

impl Backend for Mlx5Hca {
    type Queues = MlxQueues<PciBus, Mbuf>;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError> {
        if self.workers.contains_key(&config.id) {
            return Err(HcaError::Exhausted("queues of this number: they exist"));
        }
        rings::check_environment()?;
        let limits = *self.context.limits();
        let asked = QpRequest::datagrams(config);
        within("depth of the send queue", asked.send_wr, limits.max_qp_wr)?;
        within("depth of the receive queue", asked.recv_wr, limits.max_qp_wr)?;
        let (max_srq_wr, max_cqe) = (self.limit(|l| l.max_srq_wr), self.limit(|l| l.max_cqe));
        let sizes = SharedSizes::new(config, &asked.geometry()?, pool.data_room(), max_srq_wr, max_cqe)?;

        let (mut srq, mut srq_ring) = (None, None);
        if let Some((depth, segments)) = sizes.srq {
            within("segments of a shared receive queue's entry", segments, limits.max_srq_sge)?;
            let queue = Arc::new(SharedReceiveQueue::new(&self.domain, depth, segments)?);
            srq_ring = Some(rings::srq(&queue, segments)?);
            srq = Some(queue);
        }
        let channel = Arc::new(CompletionChannel::new(&self.context)?);
        let recv_cq = Arc::new(CompletionQueue::new(&self.context, sizes.receives, Some(channel))?);
        let send_cq = Arc::new(CompletionQueue::new(&self.context, sizes.sends, None)?);
        // Before any queue pair is made on them.
        let ((receive_ring, arm_register), (send_ring, _)) = (rings::cq(&recv_cq)?, rings::cq(&send_cq)?);
        let domain = ProtectionDomain::for_thread(&self.domain).map_err(|e| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            remedy::rings(&format!("no doorbell register for this worker alone: {why}"), "use fewer workers")
        })?;
        let domain = Arc::new(domain);
        let parts = QueuePairParts {
            kind: sys::IBV_QPT_UD,
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            srq: None,
            send_wr: asked.send_wr,
            send_sge: asked.send_sge,
            recv_wr: asked.recv_wr,
        };
        let (ud, ud_rings) = Self::ring_qp(&domain, &asked, parts)?;
        let register = ud_rings.register.address();
        self.check_register(register)?;
        let worker = WorkerRecord {
            port: config.port,
            ud: ud.number(),
            send_cq: Arc::downgrade(&send_cq),
            recv_cq: Arc::downgrade(&recv_cq),
            srq: srq.as_ref().map(Arc::downgrade),
            srq_limit: config.srq_limit,
            signal_every: config.signal_every,
            send_credit: sizes.send_credit,
            drain_credit: sizes.drain_credit,
            own: RingWorker { domain: Arc::downgrade(&domain), register },
        };
        self.keep_queues(config.id, worker, &ud)?;
        // SAFETY: the queue pairs' registers are mapped by the library for as long as its context is open, which the queue
        // pairs hold and the queues hold them; no other worker has this one, as checked. The one that arms is the context's, too.
        let bus = unsafe { PciBus::new(arm_register, Box::new(recv_cq)) };
        let ethernet = self.context.port(config.port)?.link_layer == LinkLayer::Ethernet;
        Ok(MlxQueues::new(Parts {
            receive_cq: receive_ring,
            send_cq: send_ring,
            ud: ud_rings,
            srq: srq_ring,
            receive_depth: (config.ud_recv_depth, config.srq_depth),
            srq_message: config.srq_message,
            regions: self.regions.clone(),
            pool: pool.clone(),
            bus,
            max_rc: config.max_rc,
            signal_every: config.signal_every,
            ethernet,
            ud_anchor: Some(Box::new(ud)),
            srq_anchor: srq.map(|srq| Box::new(srq) as Box<_>),
        }))
    }

    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError> {
        let ud = queues.ud_qpn();
        let destroyed = queues.destroy();
        self.forget_queues(ud)?;
        destroyed
    }

    fn create_rc(&mut self, config: &RcConfig) -> Result<RcQp<Mbuf>, HcaError> {
        let asked = QpRequest::connection(config);
        let geometry = asked.geometry()?;
        let no_queues = || HcaError::NotFound { what: "queues", name: config.queues.0.to_string() };
        let worker = self.workers.get_mut(&config.queues).ok_or_else(no_queues)?;
        let (Some(send_cq), Some(recv_cq)) = (worker.send_cq.upgrade(), worker.recv_cq.upgrade()) else {
            return Err(no_queues());
        };
        let domain = worker.own.domain.upgrade().ok_or_else(no_queues)?;
        let srq = worker.srq.as_ref().and_then(Weak::upgrade);
        let srq = srq.ok_or(HcaError::Exhausted("shared receive queues: these queues are datagram only"))?;
        let blocks = geometry.sq_wqebbs;
        worker.check_credit(config.passive, blocks)?;
        let signal_every = worker.signal_every;
        let parts = QueuePairParts {
            kind: sys::IBV_QPT_RC,
            send_cq: if config.passive { Arc::clone(&recv_cq) } else { send_cq },
            recv_cq,
            srq: Some(srq),
            send_wr: asked.send_wr,
            send_sge: asked.send_sge,
            recv_wr: 0,
        };
        let (qp, rings) = Self::ring_qp(&domain, &asked, parts)?;
        if rings.register.address() != worker.own.register {
            return Err(remedy::rings(
                "libmlx5 gave a queue pair another register than its worker's",
                "install another release of rdma-core",
            ));
        }
        self.keep_rc(&qp, config, blocks);
        Ok(RcQp::new(&rings, config.passive, signal_every, Some(Box::new(qp))))
    }

    fn destroy_rc(&mut self, rc: RcQp<Mbuf>) -> Result<(), HcaError> {
        let qpn = rc.qpn();
        let destroyed = rc.destroy();
        self.forget_rc(qpn)?;
        destroyed
    }

    fn rc_qpn(rc: &RcQp<Mbuf>) -> Qpn {
        rc.qpn()
    }

    fn destination(&mut self, to: &UdDestination) -> Result<Destination, HcaError> {
        // No object of the library: the address goes into each entry.
        Ok(Destination::new(to))
    }
}
