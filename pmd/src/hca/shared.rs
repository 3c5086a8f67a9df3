//! A device with several users on one thread, each with its own port and queues.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ::hca::{
    AsyncEvent, DeviceAttributes, HcaError, PortAttributes, QpState, QpTransition, QueuesConfig, RcConfig,
    RemoteAccess, UdConfig, UdDestination,
};
use gidcache::Entry;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Lid, PKey, PortNumber, Qpn};

use super::{Backend, Control, Queues};
use crate::mem::key::{DoubtfulKey, FreeKey};
use crate::mem::{Mbuf, Pool};

/// One user's handle of a shared device.
///
/// Calls are forwarded to the device. Its events are delivered to every user, which must select its own. The
/// device is closed with the last handle. Queues are those of the device, so sharing adds no cost for
/// workers.
#[derive(Debug)]
pub struct Shared<B> {
    device: Rc<RefCell<Device<B>>>,
    /// Index of this user's inbox.
    user: usize,
}

#[derive(Debug)]
struct Device<B> {
    hca: B,
    /// Events that each user has not fetched; `None` for a dropped handle.
    inboxes: Vec<Option<VecDeque<AsyncEvent>>>,
}

impl<B: Backend> Shared<B> {
    /// Creates the first user's handle.
    pub fn new(hca: B) -> Self {
        let device = Device { hca, inboxes: vec![Some(VecDeque::new())] };
        Self { device: Rc::new(RefCell::new(device)), user: 0 }
    }

    /// Creates a handle for another user. It receives events from now on.
    #[must_use]
    pub fn another(&self) -> Self {
        let mut device = self.device.borrow_mut();
        device.inboxes.push(Some(VecDeque::new()));
        Self { device: Rc::clone(&self.device), user: device.inboxes.len() - 1 }
    }

    fn with<T>(&self, call: impl FnOnce(&mut B) -> T) -> T {
        call(&mut self.device.borrow_mut().hca)
    }
}

impl<B> Drop for Shared<B> {
    fn drop(&mut self) {
        if let Some(inbox) = self.device.borrow_mut().inboxes.get_mut(self.user) {
            *inbox = None;
        }
    }
}

impl<B: Backend> Control for Shared<B> {
    fn device(&self) -> DeviceAttributes {
        self.with(|hca| hca.device())
    }

    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        self.with(|hca| hca.port(port))
    }

    fn port_trouble(&self, port: PortNumber) -> Option<String> {
        self.with(|hca| hca.port_trouble(port))
    }

    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        self.with(|hca| hca.gid(port, index))
    }

    fn gids(&self) -> Result<Vec<Entry>, HcaError> {
        self.with(|hca| hca.gids())
    }

    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError> {
        self.with(|hca| hca.gid_entry(port, index))
    }

    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        self.with(|hca| hca.pkey(port, index))
    }

    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError> {
        // The device tracks the memory that it has already registered.
        self.with(|hca| hca.register_pool(pool))
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        self.with(|hca| hca.modify_qp(qpn, to))
    }

    fn set_remote_access(&mut self, qpn: Qpn, access: &RemoteAccess) -> Result<(), HcaError> {
        self.with(|hca| hca.set_remote_access(qpn, access))
    }

    fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        self.with(|hca| hca.qp_state(qpn))
    }

    fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.with(|hca| hca.attach_multicast(qpn, mgid, mlid))
    }

    fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.with(|hca| hca.detach_multicast(qpn, mgid, mlid))
    }

    fn send_mad(&mut self, port: PortNumber, mad: &Mad) -> Result<(), HcaError> {
        self.with(|hca| hca.send_mad(port, mad))
    }

    fn receive_mad(&mut self, port: PortNumber) -> Result<Option<Mad>, HcaError> {
        self.with(|hca| hca.receive_mad(port))
    }

    fn next_event(&mut self) -> Option<AsyncEvent> {
        let Device { hca, inboxes } = &mut *self.device.borrow_mut();
        if let Some(inbox) = inboxes.get_mut(self.user).and_then(Option::as_mut)
            && let Some(event) = inbox.pop_front()
        {
            return Some(event);
        }
        let event = hca.next_event()?;
        for (user, inbox) in inboxes.iter_mut().enumerate() {
            if let Some(inbox) = inbox.as_mut().filter(|_| user != self.user) {
                inbox.push_back(event);
            }
        }
        Some(event)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.with(|hca| hca.drops())
    }
}

impl<B: Backend> Backend for Shared<B> {
    type Queues = B::Queues;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError> {
        self.with(|hca| hca.create_queues(config, pool))
    }

    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError> {
        self.with(|hca| hca.destroy_queues(queues))
    }

    fn create_ud(&mut self, config: &UdConfig) -> Result<<Self::Queues as Queues>::Ud, HcaError> {
        self.with(|hca| hca.create_ud(config))
    }

    fn destroy_ud(&mut self, ud: <Self::Queues as Queues>::Ud) -> Result<(), HcaError> {
        self.with(|hca| hca.destroy_ud(ud))
    }

    fn ud_qpn(ud: &<Self::Queues as Queues>::Ud) -> Qpn {
        B::ud_qpn(ud)
    }

    fn create_rc(&mut self, config: &RcConfig) -> Result<<Self::Queues as Queues>::Rc, HcaError> {
        self.with(|hca| hca.create_rc(config))
    }

    fn destroy_rc(&mut self, rc: <Self::Queues as Queues>::Rc) -> Result<(), HcaError> {
        self.with(|hca| hca.destroy_rc(rc))
    }

    fn rc_qpn(rc: &<Self::Queues as Queues>::Rc) -> Qpn {
        B::rc_qpn(rc)
    }

    fn create_key(&mut self, pieces: u32) -> Result<FreeKey, HcaError> {
        self.with(|hca| hca.create_key(pieces))
    }

    fn destroy_key(&mut self, key: FreeKey) -> Result<(), HcaError> {
        self.with(|hca| hca.destroy_key(key))
    }

    fn renew_key(&mut self, key: DoubtfulKey) -> Result<(FreeKey, Option<Mbuf>), HcaError> {
        self.with(|hca| hca.renew_key(key))
    }

    fn destination(
        &mut self,
        port: PortNumber,
        to: &UdDestination,
    ) -> Result<<Self::Queues as Queues>::Destination, HcaError> {
        self.with(|hca| hca.destination(port, to))
    }
}
