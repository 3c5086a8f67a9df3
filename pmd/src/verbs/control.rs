//! The control path.

use std::sync::Arc;

use gidcache::Entry;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Lid, PKey, Qpn};

use super::object::MemoryRegion;
use super::umad::ManagementPort;
use super::{Adapter, DataPath, qp};
use crate::hca::{
    AsyncEvent, Control, DeviceAttributes, FastRegistration, HcaError, PortAttributes, PortNumber, QpState,
    QpTransition, RemoteAccess,
};
use crate::mem::Pool;
use crate::mlx5::mr::Region;

impl<P: DataPath> Adapter<P> {
    fn management(&mut self, port: PortNumber) -> Result<&mut ManagementPort, HcaError> {
        self.management
            .get_mut(&port.0)
            .ok_or_else(|| HcaError::NotFound { what: "open port", name: port.0.to_string() })
    }
}

impl<P: DataPath> Control for Adapter<P> {
    fn device(&self) -> DeviceAttributes {
        let reports = self.context.reports_invalidated();
        let fast = P::fast_registration(self.context.has_windows(), self.indirect.most_pieces());
        let fast = fast
            .map(|fast| FastRegistration { remote_invalidate: fast.remote_invalidate && reports, ..fast });
        let known = self.context.attributes();
        let max_send_segments = P::send_segments(known.max_send_segments);
        DeviceAttributes { max_send_segments, fast_registration: fast, ..known }
    }

    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        self.context.port(port)
    }

    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        self.context.gid(port, index)
    }

    fn gids(&self) -> Result<Vec<Entry>, HcaError> {
        self.context.gids()
    }

    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError> {
        self.context.gid_entry(port, index)
    }

    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        self.context.pkey(port, index)
    }

    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError> {
        for zone in pool.zones() {
            let known = |r: &Region| r.start == zone.address && r.len == zone.length;
            if self.regions.regions().iter().any(known) {
                continue;
            }
            // SAFETY: a pool's memory stays while the pool is held, and the code below holds it until after
            // the region is gone. Posted buffers belong to the queues, which give them back when they
            // complete.
            let region = unsafe { MemoryRegion::new(&self.domain, &zone, self.context.has_windows())? };
            let entry = Region { start: zone.address, len: zone.length, lkey: region.lkey() };
            self.regions.add(entry).map_err(|_| HcaError::Exhausted("memory regions of one device"))?;
            self.registered.push((Arc::new(region), pool.clone()));
        }
        Ok(())
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        let (qp, record) = self.qp(qpn)?;
        // Some providers do not check it.
        if let QpTransition::UdToInit { pkey_index, .. } | QpTransition::RcToInit { pkey_index } = *to {
            self.context.pkey(record.port, pkey_index)?;
        }
        if matches!(to, QpTransition::UdToReceive) {
            self.check_room(record.queues, record.port, true)?;
        }
        qp::modify(&qp, record.connected, (record.port, &record.remote), to)?;
        self.after_transition(qpn, to);
        Ok(())
    }

    fn set_remote_access(&mut self, qpn: Qpn, access: &RemoteAccess) -> Result<(), HcaError> {
        let record = self.qps.get_mut(&qpn).filter(|record| record.connected);
        let record = record
            .ok_or_else(|| HcaError::NotFound { what: "connected queue pair", name: qpn.to_string() })?;
        record.remote = *access;
        Ok(())
    }

    fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        Ok(qp::state(self.qp(qpn)?.0.state()?))
    }

    fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.qp(qpn)?.0.attach(mgid, mlid)
    }

    fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.qp(qpn)?.0.detach(mgid, mlid)
    }

    fn send_mad(&mut self, port: PortNumber, mad: &Mad) -> Result<(), HcaError> {
        self.management(port)?.send(mad)
    }

    fn receive_mad(&mut self, port: PortNumber) -> Result<Option<Mad>, HcaError> {
        self.management(port)?.receive()
    }

    fn next_event(&mut self) -> Option<AsyncEvent> {
        self.device_event()
    }
}
