//! Creates and destroys a worker's queues and connected queue pairs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use ib_wire::Qpn;
use verbs_sys as sys;

use super::super::object::{
    CompletionChannel, CompletionQueue, ProtectionDomain, QueuePair, QueuePairParts, SharedReceiveQueue,
};
use super::super::setup::{DatagramReceives, WorkerRecord, no_queues, within};
use super::super::{Mlx5Hca, remedy};
use super::{PortAddressing, RingWorker, WorkerRegister, rings};
use crate::hca::{
    Backend, HcaError, LinkLayer, PortNumber, QueuesConfig, QueuesId, RcConfig, UdConfig, UdDestination,
};
use crate::mem::key::{DoubtfulKey, FreeKey};
use crate::mem::{Mbuf, Pool};
use crate::mlx5::av::Destination;
use crate::mlx5::bus::{EventSource, PciBus};
use crate::mlx5::queues::{MlxQueues, Parts};
use crate::mlx5::rc::RcQp;
use crate::mlx5::rings::{QpGeometry, QpRequest, QpRings, Register, SharedSizes};
use crate::mlx5::ud::UdQp;

/// Objects of a worker's queues other than its queue pairs.
#[derive(Debug)]
struct Own {
    recv_cq: Arc<CompletionQueue>,
    _send_cq: Arc<CompletionQueue>,
    _domain: Arc<ProtectionDomain>,
}

impl EventSource for Own {
    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.recv_cq.events()
    }

    fn wait(&self, at_most: Duration) -> u32 {
        self.recv_cq.wait(at_most)
    }
}

/// True if the rings are large enough. Larger ones are fine: the completion queue limits the number of
/// outstanding sends, not the rings.
const fn suffices(sq_wqebbs: u32, rq_slots: u32, needed: &QpGeometry) -> bool {
    sq_wqebbs >= needed.sq_wqebbs && rq_slots >= needed.rq_slots
}

impl Mlx5Hca {
    fn limit(&self, of: impl Fn(&sys::ibv_device_attr) -> i32) -> u32 {
        u32::try_from(of(self.context.limits())).unwrap_or(0)
    }

    /// Returns the addressing mode of a port, read once.
    fn addressing(&mut self, port: PortNumber) -> Result<PortAddressing, HcaError> {
        if let Some(known) = self.path.addressing.get(&port.0) {
            return Ok(*known);
        }
        let attributes = self.context.port(port)?;
        let read = PortAddressing {
            ethernet: attributes.link_layer == LinkLayer::Ethernet,
            grh_required: attributes.grh_required,
        };
        self.path.addressing.insert(port.0, read);
        Ok(read)
    }

    /// Creates a queue pair with the worker's doorbell register.
    fn ring_qp(
        &mut self,
        id: QueuesId,
        request: &QpRequest,
        parts: QueuePairParts,
    ) -> Result<(Arc<QueuePair>, QpRings), HcaError> {
        let worker = self.workers.get(&id).ok_or_else(|| no_queues(id))?;
        let domain = worker.own.domain.upgrade().ok_or_else(|| no_queues(id))?;
        let geometry = request.geometry()?;
        let pair = Arc::new(QueuePair::for_rings(&domain, parts)?);
        let rings = rings::qp(&pair)?;
        if !suffices(rings.sq_wqebbs, rings.rq_slots, &geometry) {
            return Err(remedy::foreign_rings(&format!(
                "libmlx5 created queues of {} and {} blocks, but {} and {} are required",
                rings.sq_wqebbs, rings.rq_slots, geometry.sq_wqebbs, geometry.rq_slots
            )));
        }
        self.claim_register(id, rings.register)?;
        Ok((pair, rings))
    }

    /// Checks that the register is exclusive to this worker, or is not write-combining.
    fn claim_register(&mut self, id: QueuesId, register: Register) -> Result<(), HcaError> {
        let worker = self.workers.get(&id).ok_or_else(|| no_queues(id))?;
        if matches!(worker.own.register, WorkerRegister::Shared) {
            if register.has_halves() {
                return Err(remedy::foreign_rings(
                    "libmlx5 assigned a queue pair a write-combining register that others may use",
                ));
            }
            return Ok(());
        }
        let register = register.address();
        let rings =
            |worker: &RingWorker| matches!(worker.register, WorkerRegister::Own(Some(r)) if r == register);
        if self.workers.iter().any(|(other, worker)| *other != id && rings(&worker.own)) {
            return Err(remedy::rings(
                "libmlx5 assigned one doorbell register to two workers",
                "raise MLX5_TOTAL_UUARS, or use one worker",
            ));
        }
        let worker = self.workers.get_mut(&id).ok_or_else(|| no_queues(id))?;
        if let WorkerRegister::Own(own) = &mut worker.own.register
            && *own.get_or_insert(register) != register
        {
            return Err(remedy::foreign_rings(
                "libmlx5 assigned a queue pair a register other than its worker's",
            ));
        }
        Ok(())
    }
}

impl Backend for Mlx5Hca {
    type Queues = MlxQueues<PciBus, Mbuf>;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError> {
        if self.workers.contains_key(&config.id) {
            return Err(HcaError::Exhausted("queues with this number: they already exist"));
        }
        rings::check_environment()?;
        let limits = *self.context.limits();
        let (max_srq_wr, max_cqe, max_qp) =
            (self.limit(|l| l.max_srq_wr), self.limit(|l| l.max_cqe), self.limit(|l| l.max_qp));
        let sizes = SharedSizes::new(config, pool.data_room(), max_srq_wr, max_cqe, max_qp)?;

        let datagrams = Arc::new(SharedReceiveQueue::new(&self.domain, sizes.datagrams, 1)?);
        let datagrams_ring = rings::srq(&datagrams, 1)?;
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
        // Must happen before any queue pair is created on them.
        let ((receive_ring, arm_register), (send_ring, _)) = (rings::cq(&recv_cq)?, rings::cq(&send_cq)?);
        let (domain, register) = match ProtectionDomain::for_thread(&self.domain) {
            Ok(domain) => (Arc::new(domain), WorkerRegister::Own(None)),
            // The kernel provides no write-combining.
            Err(HcaError::Io { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                (Arc::clone(&self.domain), WorkerRegister::Shared)
            }
            Err(e) => {
                let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
                let what = format!("no exclusive doorbell register for this worker: {why}");
                return Err(remedy::rings(&what, "use fewer workers"));
            }
        };
        let worker = WorkerRecord {
            send_cq: Arc::downgrade(&send_cq),
            recv_cq: Arc::downgrade(&recv_cq),
            datagrams: DatagramReceives::Shared(Arc::downgrade(&datagrams)),
            srq: srq.as_ref().map(Arc::downgrade),
            srq_limit: config.srq_limit,
            signal_every: config.signal_every,
            room: pool.data_room(),
            own: RingWorker { domain: Arc::downgrade(&domain), register },
        };
        self.keep_queues(config.id, worker)?;
        let own = Own { recv_cq, _send_cq: send_cq, _domain: domain };
        // SAFETY: the library maps the queue pairs' registers for as long as its context is open. The queue
        // pairs hold the context, and the queues hold them. Either no other worker has this register, or it
        // is not write-combining; this is checked for each. The arm register belongs to the context, too.
        let bus = unsafe { PciBus::new(arm_register, Box::new(own)) };
        Ok(MlxQueues::new(Parts {
            id: config.id,
            receive_cq: receive_ring,
            send_cq: send_ring,
            datagrams: datagrams_ring,
            connections: srq_ring,
            receive_depth: (config.ud_recv_depth, config.srq_depth),
            srq_message: config.srq_message,
            regions: self.regions.clone(),
            pool: pool.clone(),
            bus,
            max_ud: config.max_ud,
            max_rc: config.max_rc,
            max_sends: sizes.sends,
            datagrams_anchor: Some(Box::new(datagrams)),
            connections_anchor: srq.map(|srq| Box::new(srq) as Box<_>),
        }))
    }

    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError> {
        let id = queues.id();
        let destroyed = queues.destroy();
        self.forget_queues(id)?;
        destroyed
    }

    fn create_ud(&mut self, config: &UdConfig) -> Result<UdQp<Mbuf>, HcaError> {
        let request = QpRequest::datagrams(config);
        within("depth of the send queue", request.send_wr, self.context.limits().max_qp_wr)?;
        self.check_room(config.queues, config.port, false)?;
        let worker = self.workers.get(&config.queues).ok_or_else(|| no_queues(config.queues))?;
        let [send_cq, recv_cq] = worker.cqs().ok_or_else(|| no_queues(config.queues))?;
        let DatagramReceives::Shared(srq) = &worker.datagrams else { return Err(no_queues(config.queues)) };
        let (srq, signal_every) = (srq.upgrade(), worker.signal_every);
        let parts = QueuePairParts {
            kind: sys::IBV_QPT_UD,
            send_cq,
            recv_cq,
            srq: Some(srq.ok_or_else(|| no_queues(config.queues))?),
            send_wr: request.send_wr,
            send_sge: request.send_sge,
            recv_wr: 0,
        };
        let (qp, rings) = self.ring_qp(config.queues, &request, parts)?;
        let ethernet = self.addressing(config.port)?.ethernet;
        self.keep_qp(&qp, config.queues, config.port, false);
        let checks = self.context.checks_ipv4() && !ethernet;
        Ok(UdQp::new(&rings, ethernet, signal_every, Some(Box::new(qp))).checking_ipv4(checks))
    }

    fn destroy_ud(&mut self, ud: UdQp<Mbuf>) -> Result<(), HcaError> {
        let qpn = ud.qpn();
        let destroyed = ud.destroy();
        self.forget_qp(qpn)?;
        destroyed
    }

    fn ud_qpn(ud: &UdQp<Mbuf>) -> Qpn {
        ud.qpn()
    }

    fn create_rc(&mut self, config: &RcConfig) -> Result<RcQp<Mbuf>, HcaError> {
        let request = QpRequest::connection(config);
        let worker = self.workers.get(&config.queues).ok_or_else(|| no_queues(config.queues))?;
        let [send_cq, recv_cq] = worker.cqs().ok_or_else(|| no_queues(config.queues))?;
        let (srq, signal_every) = (worker.connections()?, worker.signal_every);
        let parts = QueuePairParts {
            kind: sys::IBV_QPT_RC,
            send_cq: if config.passive { Arc::clone(&recv_cq) } else { send_cq },
            recv_cq,
            srq: Some(srq),
            send_wr: request.send_wr,
            send_sge: request.send_sge,
            recv_wr: 0,
        };
        let (qp, rings) = self.ring_qp(config.queues, &request, parts)?;
        self.keep_qp(&qp, config.queues, config.port, true);
        Ok(RcQp::new(&rings, config.passive, config.beside, signal_every, Some(Box::new(qp))))
    }

    fn destroy_rc(&mut self, rc: RcQp<Mbuf>) -> Result<(), HcaError> {
        let qpn = rc.qpn();
        let destroyed = rc.destroy();
        self.forget_qp(qpn)?;
        destroyed
    }

    fn rc_qpn(rc: &RcQp<Mbuf>) -> Qpn {
        rc.qpn()
    }

    fn create_key(&mut self, pieces: u32) -> Result<FreeKey, HcaError> {
        self.indirect.create(&self.domain, pieces)
    }

    fn destroy_key(&mut self, key: FreeKey) -> Result<(), HcaError> {
        self.indirect.destroy(key.key())
    }

    fn renew_key(&mut self, key: DoubtfulKey) -> Result<(FreeKey, Option<Mbuf>), HcaError> {
        self.indirect.destroy(key.key())?;
        let pieces = key.pieces();
        // The device no longer uses the memory.
        let memory = key.forgotten();
        Ok((self.indirect.create(&self.domain, pieces)?, memory))
    }

    fn destination(&mut self, port: PortNumber, to: &UdDestination) -> Result<Destination, HcaError> {
        let addressing = self.addressing(port)?;
        if addressing.ethernet {
            return Err(remedy::no_ethernet_datagrams(self.context.name(), port));
        }
        // The kernel rejects such an address handle. This path does not use the kernel, so check here.
        if addressing.grh_required && to.av.grh.is_none() {
            return Err(remedy::no_grh(self.context.name(), port, to.av.dlid));
        }
        // The library needs no object: the address is part of each entry.
        Ok(Destination::new(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_queues_than_requested_are_accepted_and_smaller_ones_rejected() {
        let needed = QpGeometry {
            rq_slots: 32,
            rq_stride: 64,
            sq_wqebbs: 64,
            sq_offset: 2048,
            max_inline: 0,
            max_recv_sge: 1,
        };
        for (sq_wqebbs, rq_slots, taken) in
            [(64, 32, true), (128, 32, true), (64, 64, true), (32, 32, false), (64, 16, false)]
        {
            assert_eq!(suffices(sq_wqebbs, rq_slots, &needed), taken, "{sq_wqebbs} {rq_slots}");
        }
    }
}
