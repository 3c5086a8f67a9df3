//! A software ConnectX that can be made to refuse requests, to report events, and to be gone. It counts how
//! often each queue pair is flushed.

#![allow(dead_code, reason = "not every test uses all of it")]

#[path = "../adapter/mod.rs"]
mod adapter;

use std::collections::{HashMap, VecDeque};

use adapter::adapter;
use endpoint::WorkerSizes;
use gidcache::Entry;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Lid, PKey, Qpn};
use pmd::hca::{
    AsyncEvent, Backend, Control, DeviceAttributes, HcaError, PortAttributes, PortNumber, QpState,
    QpTransition, Queues, QueuesConfig, RcConfig, RemoteAccess, UdConfig, UdDestination,
};
use pmd::mem::Pool;
use pmd::soft::SoftHca;

pub(crate) const PORT: PortNumber = PortNumber(1);

/// Sizes of a worker's queues that are soon full.
pub(crate) const SIZES: WorkerSizes = WorkerSizes {
    ud_send_depth: 64,
    ud_recv_depth: 64,
    srq_depth: 31,
    srq_limit: 0,
    send_buffers: 1,
    rc_send_depth: 16,
    max_rc: 64,
    signal_every: 4,
    send_segments: None,
    long_messages: endpoint::LongMessages::Copy,
};

pub(crate) type SoftQueues = <SoftHca as Backend>::Queues;
type Ud = <SoftQueues as Queues>::Ud;
type Rc = <SoftQueues as Queues>::Rc;
pub(crate) type Destination = <SoftQueues as Queues>::Destination;

/// Selects transitions of queue pairs.
pub(crate) type Choice = fn(&QpTransition) -> bool;

/// The device of this module.
pub(crate) struct Device {
    pub(crate) hca: SoftHca,
    /// How often each queue pair was flushed.
    pub(crate) flushes: HashMap<Qpn, u32>,
    /// Transitions that datagram queue pairs are refused, and the number of tries.
    pub(crate) refused: Option<(Choice, u32)>,
    /// If set, it attaches to no group; the number of tries.
    pub(crate) attach_refused: Option<u32>,
    /// Events that it reports in addition to its own.
    pub(crate) events: VecDeque<AsyncEvent>,
    /// It no longer answers.
    pub(crate) gone: bool,
}

impl Device {
    /// Creates one with one port.
    pub(crate) fn new(n: u8) -> Self {
        let hca = adapter(n.into(), None);
        Self {
            hca,
            flushes: HashMap::new(),
            refused: None,
            attach_refused: None,
            events: VecDeque::new(),
            gone: false,
        }
    }

    fn there(&self) -> Result<&SoftHca, HcaError> {
        if self.gone { Err(HcaError::Gone(self.hca.device().name)) } else { Ok(&self.hca) }
    }

    fn there_mut(&mut self) -> Result<&mut SoftHca, HcaError> {
        self.there()?;
        Ok(&mut self.hca)
    }
}

impl Control for Device {
    fn device(&self) -> DeviceAttributes {
        self.hca.device()
    }
    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        self.there()?.port(port)
    }
    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        self.there()?.gid(port, index)
    }
    fn gids(&self) -> Result<Vec<Entry>, HcaError> {
        self.there()?.gids()
    }
    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError> {
        self.there()?.gid_entry(port, index)
    }
    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        self.there()?.pkey(port, index)
    }
    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError> {
        self.there_mut()?.register_pool(pool)
    }
    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        if *to == QpTransition::ToError {
            *self.flushes.entry(qpn).or_default() += 1;
        }
        if let Some((is_refused, tries)) = &mut self.refused
            && is_refused(to)
        {
            *tries += 1;
            return Err(HcaError::Exhausted("what a test takes away"));
        }
        self.there_mut()?.modify_qp(qpn, to)
    }
    fn set_remote_access(&mut self, qpn: Qpn, access: &RemoteAccess) -> Result<(), HcaError> {
        self.there_mut()?.set_remote_access(qpn, access)
    }
    fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        self.there()?.qp_state(qpn)
    }
    fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        if let Some(tries) = &mut self.attach_refused {
            *tries += 1;
            return Err(HcaError::Exhausted("what a test takes away"));
        }
        self.there_mut()?.attach_multicast(qpn, mgid, mlid)
    }
    fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.there_mut()?.detach_multicast(qpn, mgid, mlid)
    }
    fn send_mad(&mut self, port: PortNumber, mad: &Mad) -> Result<(), HcaError> {
        self.there_mut()?.send_mad(port, mad)
    }
    fn receive_mad(&mut self, port: PortNumber) -> Result<Option<Mad>, HcaError> {
        self.there_mut()?.receive_mad(port)
    }
    fn next_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front().or_else(|| self.hca.next_event())
    }
}

impl Backend for Device {
    type Queues = SoftQueues;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<SoftQueues, HcaError> {
        self.there_mut()?.create_queues(config, pool)
    }
    fn destroy_queues(&mut self, queues: SoftQueues) -> Result<(), HcaError> {
        self.hca.destroy_queues(queues)
    }
    fn create_ud(&mut self, config: &UdConfig) -> Result<Ud, HcaError> {
        self.there_mut()?.create_ud(config)
    }
    fn destroy_ud(&mut self, ud: Ud) -> Result<(), HcaError> {
        self.hca.destroy_ud(ud)
    }
    fn ud_qpn(ud: &Ud) -> Qpn {
        SoftHca::ud_qpn(ud)
    }
    fn create_rc(&mut self, config: &RcConfig) -> Result<Rc, HcaError> {
        self.there_mut()?.create_rc(config)
    }
    fn destroy_rc(&mut self, rc: Rc) -> Result<(), HcaError> {
        self.hca.destroy_rc(rc)
    }
    fn rc_qpn(rc: &Rc) -> Qpn {
        SoftHca::rc_qpn(rc)
    }
    fn destination(&mut self, port: PortNumber, to: &UdDestination) -> Result<Destination, HcaError> {
        self.there_mut()?.destination(port, to)
    }
}
