//! The control path.

use std::ptr::NonNull;

use std::time::Instant;

use gidcache::Entry;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::{Gid, Lid, PKey, Qpn};

use super::SoftHca;
use crate::hca::{
    AsyncEvent, Control, DeviceAttributes, FastRegistration, HcaError, PortAttributes, PortNumber, QpState,
    QpTransition, RegisteredBy, RemoteAccess,
};
use crate::mem::Pool;
use crate::mlx5::rc::MAX_SEND_SEGMENTS;
use connectx::cable::CableTrouble;
use connectx::engine::MAX_QPS;
use connectx::{DropReason, MAX_OCTOWORDS, MKeyCheck, RemoteOperations};

/// Number of performance management queries that one call of `receive_mad` answers.
const QUESTIONS: usize = 8;

impl SoftHca {
    /// Returns the index of a port.
    fn port_index(&self, port: PortNumber) -> Result<usize, HcaError> {
        let index = usize::from(port.0).wrapping_sub(1);
        if index < self.management.len() {
            Ok(index)
        } else {
            Err(HcaError::NotFound { what: "port", name: port.0.to_string() })
        }
    }
}

// Workers advance the device. Without workers, calls that send or receive management datagrams do. These
// calls must not do so while there are workers. They would fill the workers' shared receive queues while the
// workers do not run. A queue that runs empty breaks its senders' connections.
impl Control for SoftHca {
    fn device(&self) -> DeviceAttributes {
        DeviceAttributes {
            name: self.name.clone(),
            node_guid: self.engine.lock().config().node_guid,
            ports: self.management.len() as u8,
            max_qp: MAX_QPS as u32,
            max_wr: 1 << 15,
            max_send_segments: MAX_SEND_SEGMENTS as u32,
            max_srq_sge: 31,
            checks_ipv4: true,
            fast_registration: Some(FastRegistration {
                by: RegisteredBy::Umr,
                max_pieces: MAX_OCTOWORDS as u32,
                remote_invalidate: true,
                read_invalidate: false,
            }),
        }
    }

    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        self.engine.lock().port_attributes(port)
    }

    fn port_trouble(&self, port: PortNumber) -> Option<String> {
        Some(match self.engine.lock().cable_trouble(port)? {
            CableTrouble::Busy => {
                "it is in use: another gateway, adapter or port is connected to it; give this port a link of its own".to_owned()
            }
            trouble => trouble.to_string(),
        })
    }

    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        self.engine.lock().gid(port, index)
    }

    fn gids(&self) -> Result<Vec<Entry>, HcaError> {
        Ok(self.engine.lock().gids())
    }

    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError> {
        let engine = self.engine.lock();
        engine.gid(port, index)?;
        Ok(engine.gids().into_iter().find(|entry| (entry.port, entry.index) == (port, index)))
    }

    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        self.engine.lock().pkey(port, index)
    }

    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError> {
        // A pool is freed with its last handle, so the device keeps one.
        self.engine.lock().keep(pool.clone());
        for zone in pool.zones() {
            let Some(base) = NonNull::new(zone.address as *mut u8) else { continue };
            // SAFETY: the device keeps the pool, so that its zones stay. Posted buffers belong to the queues,
            // which give them back when they complete.
            unsafe { self.register_memory(base, zone.length as usize)? };
        }
        Ok(())
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        let mut engine = self.engine.lock();
        engine.modify_qp(qpn, to)?;
        engine.wake(Instant::now());
        Ok(())
    }

    fn set_remote_access(&mut self, qpn: Qpn, access: &RemoteAccess) -> Result<(), HcaError> {
        let &RemoteAccess { write, read, atomic, answered, asked } = access;
        let operations = RemoteOperations { write, read, atomic, reads_in: answered, reads_out: asked };
        self.engine.lock().set_remote_operations(qpn, operations)
    }

    fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        self.engine.lock().qp_state(qpn)
    }

    fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid, _mlid: Lid) -> Result<(), HcaError> {
        self.engine.lock().attach_multicast(qpn, mgid)
    }

    fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid, _mlid: Lid) -> Result<(), HcaError> {
        self.engine.lock().detach_multicast(qpn, mgid)
    }

    fn send_mad(&mut self, port: PortNumber, mad: &Mad) -> Result<(), HcaError> {
        let index = self.port_index(port)?;
        // Classes 0x01 and 0x81 are sent from queue pair 0, whatever their destination; all others from queue
        // pair 1.
        let special = usize::from(!mad.header().class.is_smp());
        if special == 1 {
            self.check_grh(port, mad.peer.route.is_some())?;
        }
        let mut engine = self.engine.lock();
        if let Some(management) = self.management.get_mut(index).and_then(|m| m.get_mut(special)) {
            management.send(&mut engine, &mut self.bus, mad)?;
        }
        let now = Instant::now();
        if self.workers.is_empty() {
            engine.step(now);
        } else {
            engine.wake(now);
        }
        Ok(())
    }

    fn receive_mad(&mut self, port: PortNumber) -> Result<Option<Mad>, HcaError> {
        let index = self.port_index(port)?;
        for _ in 0..QUESTIONS {
            let mut engine = self.engine.lock();
            if self.workers.is_empty() {
                engine.step(Instant::now());
            }
            let pair = self.management.get_mut(index).into_iter().flatten();
            let Some(mad) = pair.rev().find_map(|management| management.receive(&mut engine)) else { break };
            let header = mad.header();
            if header.class != MgmtClass::Perf || !matches!(header.method, Method::Get | Method::Set) {
                return Ok(Some(mad));
            }
            // On real hardware the kernel passes these to the firmware, and users never see them.
            let answer = engine.management(port, &mad.bytes, MKeyCheck::Due);
            drop(engine);
            if let Some(bytes) = answer {
                // If there is no room, the sender repeats the query.
                let _ = self.send_mad(port, &Mad { peer: mad.peer.reply(), bytes });
            }
        }
        Ok(None)
    }

    fn next_event(&mut self) -> Option<AsyncEvent> {
        if self.served.is_some() {
            self.follow_gids(Instant::now());
        }
        loop {
            let event = self.engine.lock().next_event()?;
            if let Some(event) = self.translate(event) {
                return Some(event);
            }
        }
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        let counters = self.counters();
        let all = DropReason::ALL.iter().map(|&reason| (reason.name(), counters.drops(reason)));
        all.filter(|&(_, n)| n > 0).collect()
    }
}
