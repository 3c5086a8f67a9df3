//! Creates and destroys a worker's queues and connected queue pairs.

use std::sync::{Arc, Weak};

use ib_wire::Qpn;
use verbs_sys as sys;

use super::object::{CompletionChannel, CompletionQueue, QueuePair, QueuePairParts, SharedReceiveQueue};
use super::queues::{Parts, SendSide, VerbsQueues, VerbsRc, VerbsUd};
use super::{Adapter, DataPath, QpRecord, VerbsHca, remedy};
use crate::hca::{
    Backend, HcaError, PortNumber, PortState, QpTransition, QueuesConfig, QueuesId, RcConfig, RemoteAccess,
    UdConfig, UdDestination,
};
use crate::mem::key::{DoubtfulKey, FreeKey};
use crate::mem::{Mbuf, Pool};

/// Maximum number of segments of a datagram. A packet from Ethernet has one or two.
pub(super) const UD_SEGMENTS: u32 = 4;
/// Maximum number of segments of a message on a connection. An entry for IPoIB's largest message needs fewer.
pub(super) const RC_SEGMENTS: u32 = 24;
/// Send depth of a queue pair that only receives. It posts one drain request at a time. Other users of the
/// devices request at least this depth.
const PASSIVE_SENDS: u32 = 4;
/// Maximum number of drain requests of one slot in the completion queue: its queue pair's and its
/// predecessor's.
const DRAINS: u32 = 2;
/// Minimum number of receives of a datagram queue pair with its own receive queue.
const OWN_RECEIVES: u32 = 16;

/// Receive queues of a worker's datagram queue pairs.
#[derive(Debug)]
pub(super) enum DatagramReceives {
    /// A shared queue.
    Shared(Weak<SharedReceiveQueue>),
    /// A separate queue for each, because the device cannot share them.
    Own {
        /// Depth of each queue.
        each: u32,
        /// Maximum number of receives of all queues together.
        most: u32,
    },
}

/// The control lcore's record of a worker's queues.
#[derive(Debug)]
pub(super) struct WorkerRecord<W> {
    pub(super) send_cq: Weak<CompletionQueue>,
    pub(super) recv_cq: Weak<CompletionQueue>,
    pub(super) datagrams: DatagramReceives,
    /// Shared receive queue of connections.
    pub(super) srq: Option<Weak<SharedReceiveQueue>>,
    pub(super) srq_limit: u32,
    pub(super) signal_every: u32,
    /// Room of a receive buffer in bytes.
    pub(super) room: usize,
    /// State specific to the data path.
    pub(super) own: W,
}

impl<W> WorkerRecord<W> {
    pub(super) fn is_srq(&self, raw: *mut sys::ibv_srq) -> bool {
        self.srq.as_ref().and_then(Weak::upgrade).is_some_and(|srq| srq.raw() == raw)
    }

    /// Arms the limit event, if one is configured.
    pub(super) fn arm(&self) -> Result<(), HcaError> {
        match self.srq.as_ref().and_then(Weak::upgrade) {
            Some(srq) if self.srq_limit > 0 => srq.arm(self.srq_limit),
            _ => Ok(()),
        }
    }

    /// Returns the completion queues: for sends, for receives.
    pub(super) fn cqs(&self) -> Option<[Arc<CompletionQueue>; 2]> {
        Some([self.send_cq.upgrade()?, self.recv_cq.upgrade()?])
    }

    /// Returns the shared receive queue of connections.
    pub(super) fn connections(&self) -> Result<Arc<SharedReceiveQueue>, HcaError> {
        let srq = self.srq.as_ref().and_then(Weak::upgrade);
        srq.ok_or(HcaError::Exhausted("shared receive queues: these queues are datagram only"))
    }
}

pub(super) fn no_queues(id: QueuesId) -> HcaError {
    HcaError::NotFound { what: "queues", name: id.0.to_string() }
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

impl VerbsHca {
    /// Creates the shared receive queue for datagram queue pairs, if the device supports it.
    fn shared_datagrams(&self, depth: u32, cq: &Arc<CompletionQueue>) -> Option<Arc<SharedReceiveQueue>> {
        let limit = u32::try_from(self.context.limits().max_srq_wr).unwrap_or(0);
        let srq = (depth <= limit).then(|| SharedReceiveQueue::new(&self.domain, depth, 1).ok()).flatten();
        let srq = Arc::new(srq?);
        let probe = QueuePairParts {
            kind: sys::IBV_QPT_UD,
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            srq: Some(Arc::clone(&srq)),
            send_wr: 1,
            send_sge: 1,
            recv_wr: 0,
        };
        let shared = QueuePair::new(&self.domain, probe).is_ok();
        shared.then_some(srq)
    }
}

/// Computes the number of receives of each datagram queue pair if they cannot be shared: its part of the
/// total, for the expected number of queue pairs. With all slots in use, they must fit into `completions`.
fn own_receives(depth: u32, config: &QueuesConfig, completions: u32) -> u32 {
    let places = u32::from(config.max_ud.max(1));
    let likely = u32::from(config.likely_ud.max(1)).min(places);
    (depth / likely).min(completions / places).max(OWN_RECEIVES).min(depth)
}

impl Backend for VerbsHca {
    type Queues = VerbsQueues;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<VerbsQueues, HcaError> {
        if self.workers.contains_key(&config.id) {
            return Err(HcaError::Exhausted("queues with this number: they already exist"));
        }
        let limits = *self.context.limits();
        let depth = within("depth of the receive queue", config.ud_recv_depth.max(1), limits.max_qp_wr)?;
        let srq_depth = config.srq_depth;
        // Each entry may complete separately once flushed.
        let drains = config.max_rc.saturating_mul(DRAINS);
        let spare =
            u32::try_from(limits.max_cqe).unwrap_or(0).saturating_sub(srq_depth.saturating_add(drains));
        let own = own_receives(depth, config, spare);
        let datagrams = depth.max(own.saturating_mul(config.max_ud.into()));
        let receives = within(
            "completions of receives and ends of connections (infiniband.max-connections, srq-depth)",
            datagrams.saturating_add(srq_depth).saturating_add(drains),
            limits.max_cqe,
        )?;
        within("queue pairs of one worker (infiniband.max-connections)", config.max_rc, limits.max_qp)?;
        // Drain requests are not counted as sends but also complete.
        let most = u32::try_from(limits.max_cqe).unwrap_or(1);
        let spare = drains.min(most / 2);
        let max_sends = config.max_sends.clamp(1, (most - spare).max(1));
        let channel = Arc::new(CompletionChannel::new(&self.context)?);
        let recv_cq = Arc::new(CompletionQueue::new(&self.context, receives, Some(channel))?);
        let send_cq = Arc::new(CompletionQueue::new(&self.context, max_sends + spare, None)?);
        let datagrams = self.shared_datagrams(depth, &send_cq);
        if datagrams.is_none() {
            tracing::info!(
                "{} cannot share receives among datagram queue pairs: each has its own {own}",
                self.context.name()
            );
        }
        let shared = self.shared_receives(config, pool.data_room())?;
        let worker = WorkerRecord {
            send_cq: Arc::downgrade(&send_cq),
            recv_cq: Arc::downgrade(&recv_cq),
            datagrams: match &datagrams {
                Some(srq) => DatagramReceives::Shared(Arc::downgrade(srq)),
                None => DatagramReceives::Own { each: own, most: config.ud_recv_most },
            },
            srq: shared.as_ref().map(|(srq, _)| Arc::downgrade(srq)),
            srq_limit: config.srq_limit,
            signal_every: config.signal_every,
            room: pool.data_room(),
            own: (),
        };
        self.keep_queues(config.id, worker)?;
        Ok(VerbsQueues::new(Parts {
            id: config.id,
            send_cq,
            recv_cq,
            datagrams: datagrams.map(|srq| (srq, depth)),
            srq: shared,
            srq_depth,
            regions: self.regions.clone(),
            memory: self.registered.iter().map(|(region, _)| Arc::clone(region)).collect(),
            windows: self.path.windows.clone(),
            pool: pool.clone(),
            max_ud: config.max_ud,
            max_rc: config.max_rc,
            max_sends,
        }))
    }

    fn destroy_queues(&mut self, queues: VerbsQueues) -> Result<(), HcaError> {
        let id = crate::hca::Queues::id(&queues);
        let destroyed = queues.destroy();
        self.forget_queues(id)?;
        destroyed
    }

    fn create_ud(&mut self, config: &UdConfig) -> Result<VerbsUd, HcaError> {
        let limits = *self.context.limits();
        let send_wr = within("depth of the send queue", config.send_depth.max(1), limits.max_qp_wr)?;
        self.check_room(config.queues, config.port, false)?;
        let segments = self.max_sge(UD_SEGMENTS);
        let worker = self.workers.get(&config.queues).ok_or_else(|| no_queues(config.queues))?;
        let [send_cq, recv_cq] = worker.cqs().ok_or_else(|| no_queues(config.queues))?;
        let (srq, recv_wr) = match &worker.datagrams {
            DatagramReceives::Shared(srq) => {
                (Some(srq.upgrade().ok_or_else(|| no_queues(config.queues))?), 0)
            }
            DatagramReceives::Own { each, most } => {
                let others = self.qps.values().filter(|qp| !qp.connected && qp.queues == config.queues);
                let others = u32::try_from(others.count()).unwrap_or(u32::MAX);
                if others.saturating_add(1).saturating_mul(*each) > *most {
                    return Err(remedy::few_buffers(self.context.name(), *each, others, *most));
                }
                (None, *each)
            }
        };
        let signal_every = worker.signal_every;
        let qp = Arc::new(QueuePair::new(
            &self.domain,
            QueuePairParts {
                kind: sys::IBV_QPT_UD,
                send_cq,
                recv_cq,
                srq,
                send_wr,
                send_sge: segments,
                recv_wr,
            },
        )?);
        self.keep_qp(&qp, config.queues, config.port, false);
        Ok(VerbsUd::new(SendSide::new(qp, send_wr, segments, signal_every), recv_wr))
    }

    fn destroy_ud(&mut self, ud: VerbsUd) -> Result<(), HcaError> {
        let qpn = ud.qpn();
        let destroyed = ud.destroy();
        self.forget_qp(qpn)?;
        destroyed
    }

    fn ud_qpn(ud: &VerbsUd) -> Qpn {
        ud.qpn()
    }

    fn create_rc(&mut self, config: &RcConfig) -> Result<VerbsRc, HcaError> {
        let segments = if config.passive { 1 } else { self.max_sge(RC_SEGMENTS) };
        let worker = self.workers.get(&config.queues).ok_or_else(|| no_queues(config.queues))?;
        let [send_cq, recv_cq] = worker.cqs().ok_or_else(|| no_queues(config.queues))?;
        let srq = worker.connections()?;
        // One more for the drain request.
        let depth = config.send_depth.max(1);
        let send_wr = if config.passive { depth.max(PASSIVE_SENDS) } else { depth.saturating_add(1) };
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
        self.keep_qp(&qp, config.queues, config.port, true);
        let data = if config.passive { 0 } else { depth };
        let side = SendSide::new(qp, data, segments, signal_every);
        Ok(VerbsRc::new(side, config.passive, config.beside))
    }

    fn destroy_rc(&mut self, rc: VerbsRc) -> Result<(), HcaError> {
        let qpn = rc.qpn();
        let destroyed = rc.destroy();
        self.forget_qp(qpn)?;
        destroyed
    }

    fn rc_qpn(rc: &VerbsRc) -> Qpn {
        rc.qpn()
    }

    fn create_key(&mut self, pieces: u32) -> Result<FreeKey, HcaError> {
        self.path.windows.create(&self.domain, pieces)
    }

    fn destroy_key(&mut self, key: FreeKey) -> Result<(), HcaError> {
        self.path.windows.destroy(key.key())
    }

    fn renew_key(&mut self, key: DoubtfulKey) -> Result<(FreeKey, Option<Mbuf>), HcaError> {
        self.path.windows.destroy(key.key())?;
        let pieces = key.pieces();
        let memory = key.forgotten();
        Ok((self.path.windows.create(&self.domain, pieces)?, memory))
    }

    fn destination(
        &mut self,
        port: PortNumber,
        to: &UdDestination,
    ) -> Result<super::VerbsDestination, HcaError> {
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
    /// Checks that a datagram of the port's MTU fits into a receive buffer after its GRH area.
    ///
    /// A real queue pair that receives a longer one enters the error state, and any host of the fabric can
    /// send it. The MTU of a port that is not active is not known yet.
    pub(super) fn check_room(&self, id: QueuesId, port: PortNumber, up: bool) -> Result<(), HcaError> {
        let room = self.workers.get(&id).map_or(0, |worker| worker.room);
        let attributes = self.context.port(port)?;
        let known = up || attributes.state == PortState::Active;
        if known && attributes.active_mtu.bytes() > room {
            return Err(remedy::small_buffers(
                self.context.name(),
                port,
                attributes.active_mtu.bytes(),
                room,
            ));
        }
        Ok(())
    }

    /// Records a worker's new queues.
    pub(super) fn keep_queues(
        &mut self,
        id: QueuesId,
        worker: WorkerRecord<P::Worker>,
    ) -> Result<(), HcaError> {
        worker.arm()?;
        self.workers.insert(id, worker);
        Ok(())
    }

    /// Records a new queue pair.
    pub(super) fn keep_qp(
        &mut self,
        qp: &Arc<QueuePair>,
        queues: QueuesId,
        port: PortNumber,
        connected: bool,
    ) {
        let remote = RemoteAccess::default();
        let record =
            QpRecord { qp: Arc::downgrade(qp), port, queues, connected, remote, last_wqe_reported: false };
        self.qps.insert(qp.number(), record);
    }

    /// Removes the record of a worker's destroyed queues.
    pub(super) fn forget_queues(&mut self, id: QueuesId) -> Result<(), HcaError> {
        self.workers.remove(&id).ok_or_else(|| no_queues(id))?;
        // Queue pairs in its tables were destroyed with it.
        self.qps.retain(|_, record| record.qp.strong_count() > 0);
        Ok(())
    }

    /// Removes the record of a destroyed queue pair.
    pub(super) fn forget_qp(&mut self, qpn: Qpn) -> Result<(), HcaError> {
        let record = self.qps.remove(&qpn);
        record.map(drop).ok_or_else(|| HcaError::NotFound { what: "queue pair", name: qpn.to_string() })
    }

    /// Raises events that the provider does not report.
    pub(super) fn after_transition(&mut self, qpn: Qpn, to: &QpTransition) {
        let reports = self.domain.context().reports_last_wqe();
        let Some(record) = self.qps.get_mut(&qpn).filter(|record| record.connected) else { return };
        match to {
            QpTransition::ToError if !reports && record.report_last_wqe() => {
                self.own_events.push(crate::hca::AsyncEvent::LastWqeReached(qpn));
            }
            QpTransition::ToReset => record.last_wqe_reported = false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_that_are_not_shared_are_dealt_out_to_the_links_there_are() {
        let config = |likely_ud| QueuesConfig {
            id: QueuesId(0),
            ud_recv_depth: 512,
            ud_recv_most: u32::MAX,
            srq_depth: 0,
            srq_message: 0,
            srq_limit: 0,
            max_ud: 128,
            likely_ud,
            max_rc: 0,
            max_sends: 1,
            signal_every: 1,
        };
        let plenty = 1 << 22;
        assert_eq!(own_receives(512, &config(1), plenty), 512, "the only link gets all of them");
        assert_eq!(own_receives(512, &config(4), plenty), 128);
        assert_eq!(own_receives(512, &config(0), plenty), 512);
        assert_eq!(own_receives(512, &config(128), plenty), OWN_RECEIVES, "never too few");
        assert_eq!(own_receives(512, &config(1), 128 * 100), 100, "completions must fit");
        assert_eq!(own_receives(8, &config(1), plenty), 8);
    }
}
