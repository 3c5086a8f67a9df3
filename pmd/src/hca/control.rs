//! The control path of a device, used by the control lcore.

use ::hca::{
    AsyncEvent, DeviceAttributes, HcaError, PortAttributes, QpState, QpTransition, QueuesConfig, RcConfig,
    RemoteAccess, UdConfig, UdDestination,
};
use gidcache::Entry;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Lid, PKey, PortNumber, Qpn};

use super::{MemoryWork, Queues};
use crate::mem::key::{DoubtfulKey, FreeKey};
use crate::mem::{Mbuf, Pool};

/// The control path of a device. Any call may be slow; workers must not make any.
pub trait Control {
    /// Returns the attributes of the device.
    fn device(&self) -> DeviceAttributes;

    /// Returns the current attributes of a port.
    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError>;

    /// Returns why a port is down, if the device knows a reason.
    fn port_trouble(&self, port: PortNumber) -> Option<String> {
        let _ = port;
        None
    }

    /// Returns entry `index` of a port's GID table. An empty entry is [`Gid::ZERO`]; an index beyond the
    /// table is an error.
    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError>;

    /// Returns a consistent snapshot of the whole GID table of all ports.
    fn gids(&self) -> Result<Vec<Entry>, HcaError>;

    /// Returns one entry of a port's GID table with all attributes. An empty entry is `None`; an index beyond
    /// the table is an error.
    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError>;

    /// Returns entry `index` of a port's P_Key table. An empty entry is 0; an index beyond the table is an
    /// error.
    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError>;

    /// Registers every memory zone of `pool` for local access. Call it before any of its buffers is posted.
    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError>;

    /// Moves a queue pair to another state.
    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError>;

    /// Sets what the two ends of a connection in RESET may do with each other's memory once it is open. By
    /// default the remote end may do nothing.
    fn set_remote_access(&mut self, qpn: Qpn, access: &RemoteAccess) -> Result<(), HcaError>;

    /// Returns the state of a queue pair.
    fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError>;

    /// Attaches a datagram queue pair to a multicast group (after a join, IBA 10.5.2).
    fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;

    /// Reverts [`Control::attach_multicast`].
    fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;

    /// Sends a management datagram from a port's QP1, or from its QP0 if the device provides access to it.
    fn send_mad(&mut self, port: PortNumber, mad: &Mad) -> Result<(), HcaError>;

    /// Returns the next management datagram received by a port, if any. Does not wait.
    fn receive_mad(&mut self, port: PortNumber) -> Result<Option<Mad>, HcaError>;

    /// Returns the next asynchronous event, if any. Does not wait.
    fn next_event(&mut self) -> Option<AsyncEvent>;

    /// Returns the number of packets that the device dropped, by human-readable reason. Empty if the device
    /// does not report them.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A device with a known type of queues.
pub trait Backend: Control {
    /// The data path.
    type Queues: MemoryWork;

    /// Creates a worker's completion queues and shared receive queues. Receive buffers come from `pool`,
    /// which must be registered.
    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError>;

    /// Destroys the queues, which the worker has returned, and the queue pairs in their tables. All buffers
    /// return to the pool.
    ///
    /// # Errors
    ///
    /// Fails if the device does not release an object. The buffers of that object are leaked.
    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError>;

    /// Creates a datagram queue pair in RESET. Its data path goes to the worker, which opens it
    /// ([`Queues::open_ud`]) in INIT or a later state.
    fn create_ud(&mut self, config: &UdConfig) -> Result<<Self::Queues as Queues>::Ud, HcaError>;

    /// Destroys a datagram queue pair whose data path the worker has returned. Its outstanding buffers are
    /// freed.
    fn destroy_ud(&mut self, ud: <Self::Queues as Queues>::Ud) -> Result<(), HcaError>;

    /// Returns the number of a datagram queue pair.
    fn ud_qpn(ud: &<Self::Queues as Queues>::Ud) -> Qpn;

    /// Creates a connected queue pair in RESET. Its data path goes to the worker.
    fn create_rc(&mut self, config: &RcConfig) -> Result<<Self::Queues as Queues>::Rc, HcaError>;

    /// Destroys a connected queue pair whose data path the worker has returned. Its outstanding buffers are
    /// freed.
    fn destroy_rc(&mut self, rc: <Self::Queues as Queues>::Rc) -> Result<(), HcaError>;

    /// Returns the number of a connected queue pair.
    fn rc_qpn(rc: &<Self::Queues as Queues>::Rc) -> Qpn;

    /// Creates a key without memory for the connections of this device, with room for `pieces` pieces.
    ///
    /// # Errors
    ///
    /// Fails if [`DeviceAttributes::fast_registration`] is `None` or its limits are exceeded.
    fn create_key(&mut self, pieces: u32) -> Result<FreeKey, HcaError> {
        Err(no_keys(pieces))
    }

    /// Destroys a key.
    fn destroy_key(&mut self, key: FreeKey) -> Result<(), HcaError> {
        Err(no_keys(key.pieces()))
    }

    /// Recreates a key in an unknown state and returns its memory to the owner.
    ///
    /// All work on the key's queue pair must have completed, or the queue pair must be in RESET or destroyed.
    /// Unbind windows bound to the key first.
    ///
    /// # Errors
    ///
    /// On failure the key and its memory stay allocated until the device is closed.
    fn renew_key(&mut self, key: DoubtfulKey) -> Result<(FreeKey, Option<Mbuf>), HcaError> {
        Err(no_keys(key.pieces()))
    }

    /// Prepares a datagram destination for queue pairs of this port.
    fn destination(
        &mut self,
        port: PortNumber,
        to: &UdDestination,
    ) -> Result<<Self::Queues as Queues>::Destination, HcaError>;
}

/// Error of a device that cannot register memory from a send queue.
fn no_keys(pieces: u32) -> HcaError {
    let limit = "none: it does not register memory from a send queue".to_owned();
    HcaError::Unsupported { what: "pieces of a memory key", value: pieces.into(), limit }
}
