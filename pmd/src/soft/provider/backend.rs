//! The software ConnectX behind the mlx5 driver's queues.

use ib_wire::Qpn;

use super::SoftHca;
use crate::hca::{Backend, HcaError, QpTransition, Queues as _, QueuesConfig, RcConfig, UdDestination};
use crate::mem::{Mbuf, Pool};
use crate::mlx5::av::Destination;
use crate::mlx5::queues::{MlxQueues, Parts};
use crate::mlx5::rc::RcQp;
use crate::soft::bus::SoftBus;

impl Backend for SoftHca {
    type Queues = MlxQueues<SoftBus, Mbuf>;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError> {
        let (regions, bus) = (self.regions.clone(), SoftBus::new(&self.engine));
        let rings = self.make_queues(config, pool.data_room())?;
        Ok(MlxQueues::new(Parts {
            receive_cq: rings.receive_cq.rings,
            send_cq: rings.send_cq.rings,
            ud: rings.ud.rings,
            srq: rings.srq.as_ref().map(|s| s.rings),
            srq_message: config.srq_message,
            regions,
            pool: pool.clone(),
            bus,
            max_rc: config.max_rc,
            signal_every: config.signal_every,
        }))
    }

    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError> {
        let ud = queues.ud_qpn();
        // The device lets go of every buffer before the driver, which owns them, does.
        self.engine.lock().modify_qp(ud, &QpTransition::ToReset)?;
        drop(queues);
        // SAFETY: the driver's queues on these rings are gone, as just done.
        unsafe { self.unmake_queues(ud) }
    }

    fn create_rc(&mut self, config: &RcConfig) -> Result<RcQp<Mbuf>, HcaError> {
        let (rings, signal_every) = self.make_rc(config)?;
        Ok(RcQp::new(&rings, config.passive, signal_every))
    }

    fn destroy_rc(&mut self, rc: RcQp<Mbuf>) -> Result<(), HcaError> {
        let qpn = rc.qpn();
        // As above: first the device, which may still read from the buffers, then the driver.
        self.engine.lock().modify_qp(qpn, &QpTransition::ToReset)?;
        drop(rc);
        // SAFETY: the driver's queue pair on these rings is gone, as just done.
        unsafe { self.unmake_rc(qpn) }
    }

    fn rc_qpn(rc: &RcQp<Mbuf>) -> Qpn {
        rc.qpn()
    }

    fn destination(&mut self, to: &UdDestination) -> Result<Destination, HcaError> {
        Ok(Destination::new(to))
    }
}
