//! The hot face: the mlx5 driver on this device's rings.

use ib_wire::Qpn;

use super::SoftHca;
use super::anchor::{Object, SoftAnchor};
use super::bus::SoftBus;
use crate::hca::{Backend, HcaError, Queues, QueuesConfig, RcConfig, UdDestination};
use crate::mem::{Mbuf, Pool};
use crate::mlx5::av::Destination;
use crate::mlx5::packet::{Packet, PacketPool};
use crate::mlx5::queues::{MlxQueues, Parts};
use crate::mlx5::rc::RcQp;

impl SoftHca {
    /// A worker's queues, for any kind of packet buffer. The memory that buffers of `pool` lie in must be registered.
    pub(crate) fn queues_for<P: Packet>(
        &mut self,
        config: &QueuesConfig,
        pool: P::Pool,
    ) -> Result<MlxQueues<SoftBus, P>, HcaError> {
        let regions = self.regions.clone();
        let bus = SoftBus::new(&self.engine);
        let ethernet = self.engine.lock().is_ethernet(config.port);
        let engine = self.engine.clone();
        let rings = self.make_queues(config, PacketPool::<P>::room(&pool) as usize)?;
        let anchored = |object| Some(SoftAnchor::boxed(&engine, object));
        Ok(MlxQueues::new(Parts {
            receive_cq: rings.receive_cq.rings,
            send_cq: rings.send_cq.rings,
            ud: rings.ud.rings,
            srq: rings.srq.as_ref().map(|srq| srq.rings),
            receive_depth: (config.ud_recv_depth, config.srq_depth),
            srq_message: config.srq_message,
            regions,
            pool,
            bus,
            max_rc: config.max_rc,
            signal_every: config.signal_every,
            ethernet,
            ud_anchor: anchored(Object::Pair(Qpn::new(rings.ud.rings.qpn))),
            srq_anchor: rings.srq.as_ref().and_then(|srq| anchored(Object::Shared(srq.rings.srqn))),
        }))
    }

    /// Destroys a worker's queues; what they hold goes home.
    pub(crate) fn end_queues<P: Packet>(
        &mut self,
        ud: Qpn,
        queues: MlxQueues<SoftBus, P>,
    ) -> Result<(), HcaError> {
        queues.destroy()?;
        self.end_connected(ud);
        // SAFETY: the driver's queues are gone.
        unsafe { self.unmake_queues(ud) }
    }

    /// A connected queue pair for any kind of packet buffer.
    pub(crate) fn rc_for<P: Packet>(&mut self, config: &RcConfig) -> Result<RcQp<P>, HcaError> {
        let (rings, signal_every) = self.make_rc(config)?;
        let anchor = SoftAnchor::boxed(&self.engine, Object::Pair(Qpn::new(rings.qpn)));
        Ok(RcQp::new(&rings, config.passive, signal_every, Some(anchor)))
    }

    /// Destroys a connected queue pair; what it owes goes home.
    pub(crate) fn end_rc<P: Packet>(&mut self, rc: RcQp<P>) -> Result<(), HcaError> {
        let qpn = rc.qpn();
        // A receive of the shared queue that it had begun to fill comes back with a completion.
        rc.destroy()?;
        // SAFETY: the driver's queue pair is gone.
        unsafe { self.unmake_rc(qpn) }
    }
}

impl Backend for SoftHca {
    type Queues = MlxQueues<SoftBus, Mbuf>;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError> {
        self.queues_for(config, pool.clone())
    }

    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError> {
        self.end_queues(queues.ud_qpn(), queues)
    }

    fn create_rc(&mut self, config: &RcConfig) -> Result<<Self::Queues as Queues>::Rc, HcaError> {
        self.rc_for(config)
    }

    fn destroy_rc(&mut self, rc: <Self::Queues as Queues>::Rc) -> Result<(), HcaError> {
        self.end_rc(rc)
    }

    fn rc_qpn(rc: &<Self::Queues as Queues>::Rc) -> Qpn {
        rc.qpn()
    }

    fn destination(&mut self, to: &UdDestination) -> Result<<Self::Queues as Queues>::Destination, HcaError> {
        Ok(Destination::new(to))
    }
}
