//! The data path: the mlx5 driver on the rings of this device.

use connectx::{Access, FastKey, ListKind, ProtectionDomain};
use ib_wire::Qpn;

use super::SoftHca;
use super::anchor::{Object, SoftAnchor};
use super::bus::SoftBus;
use crate::hca::{
    Backend, HcaError, MemoryKey, PortNumber, Queues, QueuesConfig, RcConfig, UdConfig, UdDestination,
};
use crate::mem::key::{DoubtfulKey, FreeKey};
use crate::mem::packet::{Packet, PacketPool};
use crate::mem::{Mbuf, Pool};
use crate::mlx5::av::Destination;
use crate::mlx5::queues::{MlxQueues, Parts};
use crate::mlx5::rc::RcQp;
use crate::mlx5::ud::UdQp;

impl SoftHca {
    /// Creates a worker's queues for any kind of packet buffer. The memory of the buffers of `pool` must be
    /// registered.
    pub(crate) fn queues_for<P: Packet>(
        &mut self,
        config: &QueuesConfig,
        pool: P::Pool,
    ) -> Result<MlxQueues<SoftBus, P>, HcaError> {
        let regions = self.regions.clone();
        let bus = SoftBus::new(&self.engine);
        let engine = self.engine.clone();
        let rings = self.make_queues(config, PacketPool::<P>::room(&pool) as usize)?;
        let anchored = |object| Some(SoftAnchor::boxed(&engine, object));
        Ok(MlxQueues::new(Parts {
            id: config.id,
            receive_cq: rings.receive_cq.rings,
            send_cq: rings.send_cq.rings,
            datagrams: rings.datagrams.rings,
            connections: rings.connections.as_ref().map(|srq| srq.rings),
            receive_depth: (config.ud_recv_depth, config.srq_depth),
            srq_message: config.srq_message,
            regions,
            pool,
            bus,
            max_ud: config.max_ud,
            max_rc: config.max_rc,
            max_sends: rings.sends,
            datagrams_anchor: anchored(Object::Shared(rings.datagrams.rings.srqn)),
            connections_anchor: rings
                .connections
                .as_ref()
                .and_then(|srq| anchored(Object::Shared(srq.rings.srqn))),
        }))
    }

    /// Destroys a worker's queues and frees their buffers.
    pub(crate) fn end_queues<P: Packet>(&mut self, queues: MlxQueues<SoftBus, P>) -> Result<(), HcaError> {
        let id = queues.id();
        let (uds, rcs) = queues.all_numbers();
        queues.destroy()?;
        for qpn in uds.into_iter().chain(rcs) {
            // SAFETY: it was in the driver's tables, which are gone.
            unsafe { self.unmake_qp(qpn)? };
        }
        self.end_elsewhere(id);
        // SAFETY: the driver's queues are gone.
        unsafe { self.unmake_queues(id) }
    }

    /// Creates a datagram queue pair for any kind of packet buffer.
    pub(crate) fn ud_for<P: Packet>(&mut self, config: &UdConfig) -> Result<UdQp<P>, HcaError> {
        let ethernet = self.engine.lock().is_ethernet(config.port);
        let (rings, signal_every) = self.make_ud(config)?;
        let anchor = SoftAnchor::boxed(&self.engine, Object::Pair(Qpn::new(rings.qpn)));
        Ok(UdQp::new(&rings, ethernet, signal_every, Some(anchor)).checking_ipv4(!ethernet))
    }

    /// Destroys a datagram queue pair and frees its pending buffers.
    pub(crate) fn end_ud<P: Packet>(&mut self, ud: UdQp<P>) -> Result<(), HcaError> {
        let qpn = ud.qpn();
        ud.destroy()?;
        // SAFETY: the driver's queue pair is gone.
        unsafe { self.unmake_qp(qpn) }
    }

    /// Creates a connected queue pair for any kind of packet buffer.
    pub(crate) fn rc_for<P: Packet>(&mut self, config: &RcConfig) -> Result<RcQp<P>, HcaError> {
        let (rings, signal_every) = self.make_rc(config)?;
        let anchor = SoftAnchor::boxed(&self.engine, Object::Pair(Qpn::new(rings.qpn)));
        Ok(RcQp::new(&rings, config.passive, config.beside, signal_every, Some(anchor)))
    }

    /// Destroys a connected queue pair and frees its pending buffers.
    pub(crate) fn end_rc<P: Packet>(&mut self, rc: RcQp<P>) -> Result<(), HcaError> {
        let qpn = rc.qpn();
        // A partly filled receive of the shared queue comes back with a completion.
        rc.destroy()?;
        // SAFETY: the driver's queue pair is gone.
        unsafe { self.unmake_qp(qpn) }
    }
}

/// Returns the key with its initial tag, by which the device identifies it.
const fn as_made(key: MemoryKey) -> u32 {
    key.index() << 8
}

impl Backend for SoftHca {
    type Queues = MlxQueues<SoftBus, Mbuf>;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError> {
        self.queues_for(config, pool.clone())
    }

    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError> {
        self.end_queues(queues)
    }

    fn create_ud(&mut self, config: &UdConfig) -> Result<<Self::Queues as Queues>::Ud, HcaError> {
        self.ud_for(config)
    }

    fn destroy_ud(&mut self, ud: <Self::Queues as Queues>::Ud) -> Result<(), HcaError> {
        self.end_ud(ud)
    }

    fn ud_qpn(ud: &<Self::Queues as Queues>::Ud) -> Qpn {
        ud.qpn()
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

    fn create_key(&mut self, pieces: u32) -> Result<FreeKey, HcaError> {
        let key = self.engine.lock().create_fast_key(&FastKey {
            tag: 0,
            domain: ProtectionDomain::default(),
            list: ListKind::Keys,
            // Padded like the lists.
            octowords: pieces.next_multiple_of(4) as usize,
            access: Access::default(),
            remote_invalidate: true,
        })?;
        Ok(FreeKey::new(MemoryKey::new(key), pieces))
    }

    fn destroy_key(&mut self, key: FreeKey) -> Result<(), HcaError> {
        self.engine.lock().deregister(as_made(key.key()))
    }

    fn renew_key(&mut self, key: DoubtfulKey) -> Result<(FreeKey, Option<Mbuf>), HcaError> {
        self.engine.lock().deregister(as_made(key.key()))?;
        let pieces = key.pieces();
        // The device no longer uses the memory.
        let memory = key.forgotten();
        Ok((self.create_key(pieces)?, memory))
    }

    fn destination(
        &mut self,
        port: PortNumber,
        to: &UdDestination,
    ) -> Result<<Self::Queues as Queues>::Destination, HcaError> {
        self.check_grh(port, to.av.grh.is_some())?;
        Ok(Destination::new(to))
    }
}
