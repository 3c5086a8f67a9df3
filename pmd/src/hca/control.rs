//! The cold face of a device: the control lcore's.

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

/// The cold face of a device. All calls may take long; none is for a worker.
pub trait Control {
    /// What the device is.
    fn device(&self) -> DeviceAttributes;

    /// What a port is now.
    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError>;

    /// Why a port is down, if the device knows more than that it is.
    fn port_trouble(&self, port: PortNumber) -> Option<String> {
        let _ = port;
        None
    }

    /// Entry `index` of a port's GID table; [`Gid::ZERO`] if empty, an error beyond the table.
    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError>;

    /// The whole GID table, of all ports, as it is at one moment.
    fn gids(&self) -> Result<Vec<Entry>, HcaError>;

    /// One entry of a port's GID table with all its attributes; `None` if empty, an error beyond the table.
    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError>;

    /// Entry `index` of a port's P_Key table; 0 if empty, an error beyond the table.
    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError>;

    /// Registers every memory zone of `pool` for local access. Must precede any post of its buffers.
    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError>;

    /// Moves a queue pair to another state.
    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError>;

    /// What the ends of a connection, in RESET, may do with each other's memory once it is open. Of a new one the other end may do
    /// nothing.
    fn set_remote_access(&mut self, qpn: Qpn, access: &RemoteAccess) -> Result<(), HcaError>;

    /// The state that a queue pair is in.
    fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError>;

    /// Lets a datagram queue pair receive a multicast group (after a join, IBA 10.5.2).
    fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;

    /// Ends [`Control::attach_multicast`].
    fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError>;

    /// Sends a management datagram from a port's QP1 (or QP0 where the device gives it to us).
    fn send_mad(&mut self, port: PortNumber, mad: &Mad) -> Result<(), HcaError>;

    /// The next management datagram that a port received, if any. Does not wait.
    fn receive_mad(&mut self, port: PortNumber) -> Result<Option<Mad>, HcaError>;

    /// The next asynchronous event, if any. Does not wait.
    fn next_event(&mut self) -> Option<AsyncEvent>;

    /// Packets that the device itself dropped, by reason, for people; empty where it does not tell.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A device whose queues are of one known type.
pub trait Backend: Control {
    /// The hot face.
    type Queues: MemoryWork;

    /// Creates a worker's completion queues and what its queue pairs receive into. Receive buffers come from `pool`, which is
    /// registered.
    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError>;

    /// Destroys them, with the queue pairs that are in their tables, after the worker has given them back; every buffer goes
    /// home. What the device does not let go of is an error, and keeps its buffers.
    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError>;

    /// Creates a datagram queue pair, in RESET. Its hot half goes to the worker, which opens it ([`Queues::open_ud`]) once it is
    /// in INIT or beyond.
    fn create_ud(&mut self, config: &UdConfig) -> Result<<Self::Queues as Queues>::Ud, HcaError>;

    /// Destroys a datagram queue pair whose hot half came back from the worker; what is still outstanding on it is freed.
    fn destroy_ud(&mut self, ud: <Self::Queues as Queues>::Ud) -> Result<(), HcaError>;

    /// Number of a datagram queue pair.
    fn ud_qpn(ud: &<Self::Queues as Queues>::Ud) -> Qpn;

    /// Creates a connected queue pair, in RESET. Its hot half goes to the worker.
    fn create_rc(&mut self, config: &RcConfig) -> Result<<Self::Queues as Queues>::Rc, HcaError>;

    /// Destroys a connected queue pair whose hot half came back from the worker; what is still outstanding on it is
    /// freed.
    fn destroy_rc(&mut self, rc: <Self::Queues as Queues>::Rc) -> Result<(), HcaError>;

    /// Number of a connected queue pair.
    fn rc_qpn(rc: &<Self::Queues as Queues>::Rc) -> Qpn;

    /// Makes a key without memory, with room for so many pieces, for the connections of this device. An error where
    /// [`DeviceAttributes::fast_registration`] is `None`, and beyond what that allows.
    fn create_key(&mut self, pieces: u32) -> Result<FreeKey, HcaError> {
        Err(no_keys(pieces))
    }

    /// Destroys a key.
    fn destroy_key(&mut self, key: FreeKey) -> Result<(), HcaError> {
        Err(no_keys(key.pieces()))
    }

    /// Makes a key anew of which nobody knows what it is; its memory is its owner's again. Of the queue pair that it was posted on all
    /// work is answered for, or it is in RESET, or gone; a window that may be bound to it should go first. If it fails the key and its memory are kept until the device is closed.
    fn renew_key(&mut self, key: DoubtfulKey) -> Result<(FreeKey, Option<Mbuf>), HcaError> {
        Err(no_keys(key.pieces()))
    }

    /// Prepares a datagram destination for posting to queue pairs of this port.
    fn destination(
        &mut self,
        port: PortNumber,
        to: &UdDestination,
    ) -> Result<<Self::Queues as Queues>::Destination, HcaError>;
}

/// The answer of a device that registers no memory from a send queue.
fn no_keys(pieces: u32) -> HcaError {
    let limit = "none: it does not register memory from a send queue".to_owned();
    HcaError::Unsupported { what: "pieces of a memory key", value: pieces.into(), limit }
}
