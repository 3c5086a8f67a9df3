//! The cold face of a device: the control lcore's.

use gidcache::Entry;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, PortNumber, Psn, QKey, Qpn, ServiceLevel};

use super::{AddressVector, HcaError, Queues, UdDestination};
use crate::mem::Pool;

/// What a device is.
#[derive(Clone, Debug)]
pub struct DeviceAttributes {
    /// Its name: `soft0`, `mlx5_0`, `rxe0`.
    pub name: String,
    /// Node GUID.
    pub node_guid: Guid,
    /// Number of ports.
    pub ports: u8,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most work requests in one queue.
    pub max_wr: u32,
    /// Most scatter elements in one SRQ entry.
    pub max_srq_sge: u32,
}

/// Logical state of a port (IBA 14.2.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortState {
    /// No link.
    Down = 1,
    /// Link up, not yet configured by a subnet manager.
    Init = 2,
    /// Configured, only management passes.
    Armed = 3,
    /// Data passes.
    Active = 4,
}

/// What is at the other end of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// What a port is at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttributes {
    /// Logical state.
    pub state: PortState,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Base LID; 0 before a subnet manager gave one.
    pub lid: Lid,
    /// LID mask control.
    pub lmc: u8,
    /// LID of the subnet manager, where subnet administration listens on QP1.
    pub sm_lid: Lid,
    /// Service level towards the subnet manager.
    pub sm_sl: ServiceLevel,
    /// MTU in use.
    pub active_mtu: Mtu,
    /// Largest MTU that the port can use.
    pub max_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_table_len: u16,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
    /// Port GUID.
    pub guid: Guid,
}

/// Something happened to a device without being asked for (IBA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// The port became active.
    PortActive(PortNumber),
    /// The port's link is unavailable.
    PortError(PortNumber),
    /// The port's LID changed.
    LidChange(PortNumber),
    /// The P_Key table changed.
    PKeyChange(PortNumber),
    /// The GID table changed.
    GidChange(PortNumber),
    /// Another subnet manager took over.
    SmChange(PortNumber),
    /// The subnet manager asks clients to register anew.
    ClientReregister(PortNumber),
    /// A queue pair on a shared receive queue, in the error state, has taken its last receive (IBA 10.3.1).
    LastWqeReached(Qpn),
    /// Data came before the RTU.
    CommunicationEstablished(Qpn),
    /// A queue pair failed outside of any completion.
    QpFatal(Qpn),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(QueuesId),
    /// A completion queue overran or the device died; only a restart helps.
    Fatal,
}

/// State of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Fresh or torn down.
    Reset,
    /// Bound to a port; receives may be posted.
    Init,
    /// Receives.
    Rtr,
    /// Receives and sends.
    Rts,
    /// A datagram send failed; sends are flushed, receives go on.
    Sqe,
    /// Everything is flushed.
    Err,
}

/// RC attributes of INIT → RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcToReceive {
    /// The way to the other end.
    pub av: AddressVector,
    /// The other end's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that we expect: the one we announced.
    pub rq_psn: Psn,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// RNR NAK timer code, 5 bits; 0 = 655.36 ms, the longest.
    pub min_rnr_timer: u8,
}

/// RC attributes of RTR → RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcToSend {
    /// First PSN that we send: the one the other end announced.
    pub sq_psn: Psn,
    /// Local ACK timeout code, 5 bits; 0 = never.
    pub timeout: u8,
    /// Retries after timeouts or sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 = for ever.
    pub rnr_retry: u8,
}

/// A change of state of a queue pair, with what it needs (IBA 10.3.1, 11.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpTransition {
    /// RESET → INIT of a datagram queue pair.
    UdToInit {
        /// Index into the port's P_Key table.
        pkey_index: u16,
        /// Its Q_Key.
        qkey: QKey,
    },
    /// RESET → INIT of a connected queue pair.
    RcToInit {
        /// Index into the port's P_Key table.
        pkey_index: u16,
    },
    /// INIT → RTR of a datagram queue pair.
    UdToReceive,
    /// INIT → RTR of a connected queue pair.
    RcToReceive(RcToReceive),
    /// RTR → RTS of a datagram queue pair.
    UdToSend {
        /// First PSN to send.
        sq_psn: Psn,
    },
    /// RTR → RTS of a connected queue pair.
    RcToSend(RcToSend),
    /// Change of a datagram queue pair's Q_Key in RTS, as a new broadcast group may need.
    UdQKey(QKey),
    /// SQE → RTS.
    RecoverSend,
    /// Any state but RESET → ERR: flush. In ERR it flushes what was posted to a datagram queue pair since.
    ToError,
    /// Any state → RESET: forget what is outstanding.
    ToReset,
}

/// Names the queues of one worker on one device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueuesId(pub u16);

/// Sizes of one worker's queues. Depths are work requests; devices round up to powers of two.
#[derive(Clone, Debug)]
pub struct QueuesConfig {
    /// Which worker.
    pub id: QueuesId,
    /// Port of the device.
    pub port: PortNumber,
    /// Depth of the datagram queue pair's send queue.
    pub ud_send_depth: u32,
    /// Depth of the datagram queue pair's receive queue.
    pub ud_recv_depth: u32,
    /// Depth of the shared receive queue; 0 = datagram only, no shared receive queue.
    pub srq_depth: u32,
    /// Largest message that an SRQ entry must take, bytes (65,524 for IPoIB's largest).
    pub srq_message: usize,
    /// Raise [`AsyncEvent::SrqLimitReached`] when fewer entries than this are posted; 0 = never.
    pub srq_limit: u32,
    /// Most connected queue pairs that may complete into these queues: sizes the completion queues.
    pub max_rc: u32,
    /// One signalled send in this many.
    pub signal_every: u32,
}

/// One connected queue pair on a worker's queues.
#[derive(Clone, Copy, Debug)]
pub struct RcConfig {
    /// The worker's queues.
    pub queues: QueuesId,
    /// Depth of the send queue; 1 is enough for a passive one, which only ever sends its drain request.
    pub send_depth: u32,
    /// True if its send completions go to the receive completion queue, so that the drain request's completion comes
    /// behind every receive of this queue pair (IBA 10.3.1); such a queue pair is not for data.
    pub passive: bool,
}

/// The cold face of a device. All calls may take long; none is for a worker.
pub trait Control {
    /// What the device is.
    fn device(&self) -> DeviceAttributes;

    /// What a port is now.
    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError>;

    /// Entry `index` of a port's GID table; [`Gid::ZERO`] if empty, an error beyond the table.
    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError>;

    /// The whole GID table, of all ports, as it is at one moment.
    fn gids(&self) -> Result<Vec<Entry>, HcaError>;

    /// One entry of a port's GID table with all its attributes; `None` if empty.
    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError>;

    /// Entry `index` of a port's P_Key table; 0 if empty, an error beyond the table.
    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError>;

    /// Registers every memory zone of `pool` for local access. Must precede any post of its buffers.
    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError>;

    /// Moves a queue pair to another state.
    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError>;

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
    type Queues: Queues;

    /// Creates a worker's completion queues, datagram queue pair (in RESET) and shared receive queue. Receive buffers
    /// come from `pool`, which is registered.
    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<Self::Queues, HcaError>;

    /// Destroys them after the worker has given them back; every buffer goes home.
    fn destroy_queues(&mut self, queues: Self::Queues) -> Result<(), HcaError>;

    /// Creates a connected queue pair, in RESET. Its hot half goes to the worker.
    fn create_rc(&mut self, config: &RcConfig) -> Result<<Self::Queues as Queues>::Rc, HcaError>;

    /// Destroys a connected queue pair whose hot half came back from the worker; what is still outstanding on it is
    /// freed.
    fn destroy_rc(&mut self, rc: <Self::Queues as Queues>::Rc) -> Result<(), HcaError>;

    /// Number of a connected queue pair.
    fn rc_qpn(rc: &<Self::Queues as Queues>::Rc) -> Qpn;

    /// Prepares a datagram destination for posting.
    fn destination(&mut self, to: &UdDestination) -> Result<<Self::Queues as Queues>::Destination, HcaError>;
}
