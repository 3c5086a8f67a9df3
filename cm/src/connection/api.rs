//! Parameters, results and events of the connection table.

use std::time::Duration;

use ib_wire::cm::{FlowLabel, MaxCmRetries, MessageRejected, RejectReason, RetryCount, RnrRetry};
use ib_wire::{CommId, Gid, Guid, Lid, Mtu, PKey, Psn, Qpn, ServiceId, TimeoutCode};

use super::state::State;
use crate::{Origin, Path};

/// Limits and identity of a table.
#[derive(Clone, Debug)]
pub struct Config {
    /// Source of communication IDs and transaction IDs. It must be secret, or others can predict them. It
    /// must differ at each start, or peers confuse new connections with old ones.
    pub seed: u64,
    /// GUID of the local channel adapter.
    pub ca_guid: Guid,
    /// Maximum number of connections, including those in TIMEWAIT. Further REQs are dropped, and the peer
    /// retries.
    pub max_connections: usize,
    /// Maximum number of connections that peers have initiated, including TIMEWAIT. The rest is reserved for
    /// local ones.
    pub max_begun: usize,
    /// Maximum number of connections initiated by one port of the fabric, including TIMEWAIT. Further REQs
    /// are dropped, and the peer retries.
    pub max_from_port: usize,
    /// Maximum number of service IDs.
    pub max_listeners: usize,
    /// Maximum number of datagrams waiting for [`super::ConnectionTable::poll_transmit`]. Further ones are
    /// dropped, as if lost in the fabric.
    pub max_transmit: usize,
    /// Maximum ACK delay of the local adapter. It is announced in REP and included in the ACK timeout of REQ.
    pub ack_delay: TimeoutCode,
    /// Upper limit of all other times that a peer can set: response timeouts, MRA service timeouts.
    pub max_wait: Duration,
    /// Upper limit of TIMEWAIT if the peer initiated the connection and set its time.
    pub max_timewait: Duration,
    /// Upper limit of the time for all retransmissions to a peer that initiated the connection and set times
    /// and count.
    pub max_repeating: Duration,
}

impl Config {
    /// Limits for one port of a gateway.
    #[must_use]
    pub const fn new(seed: u64, ca_guid: Guid) -> Self {
        Self {
            seed,
            ca_guid,
            max_connections: 8192,
            max_begun: 8192,
            max_from_port: 8192,
            max_listeners: 128,
            max_transmit: 4096,
            ack_delay: TimeoutCode::new(15),
            max_wait: Duration::from_secs(60),
            // Twice the default packet lifetime of subnet managers, rounded up as in Linux, and doubled.
            max_timewait: Duration::from_millis(4096),
            // The result of ib_ipoib's own values.
            max_repeating: Duration::from_secs(66),
        }
    }
}

/// Identifies a connection in a table. It is the local communication ID and is not reused soon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub(super) CommId);

impl ConnId {
    /// Returns the local communication ID.
    #[must_use]
    pub const fn comm_id(self) -> CommId {
        self.0
    }
}

/// Parameters of an outgoing connection. [`ConnectRequest::ipoib`] uses the values of Linux's IPoIB.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// Service ID.
    pub service_id: ServiceId,
    /// Local queue pair, in INIT.
    pub local_qpn: Qpn,
    /// First PSN that the local queue pair expects: its `rq_psn`.
    pub starting_psn: Psn,
    /// Path to the peer.
    pub path: Path,
    /// Index of the path's P_Key in the port's table.
    pub pkey_index: u16,
    /// Index of the path's source GID in the port's table.
    pub sgid_index: u8,
    /// True if the local port sends nothing without a GRH ([`Path::gsi`]).
    pub grh_required: bool,
    /// Private data, at most 92 bytes.
    pub private_data: Vec<u8>,
    /// True if the local queue pair uses a shared receive queue.
    pub srq: bool,
    /// Number of concurrent RDMA reads and atomics that the local end can serve.
    pub responder_resources: u8,
    /// Number of RDMA reads and atomics that the local end may have outstanding.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: RetryCount,
    /// RNR retries for the peer; 7 means infinite.
    pub rnr_retry_count: RnrRetry,
    /// Time limit for the peer's response.
    pub remote_response_timeout: TimeoutCode,
    /// Time limit for the local response.
    pub local_response_timeout: TimeoutCode,
    /// Number of retransmissions of a message by either side.
    pub max_cm_retries: MaxCmRetries,
}

impl ConnectRequest {
    /// Returns a request with the values of Linux's `ib_ipoib`.
    #[must_use]
    pub fn ipoib(service_id: ServiceId, local_qpn: Qpn, path: Path, private_data: &[u8]) -> Self {
        Self {
            service_id,
            local_qpn,
            starting_psn: Psn::new(0),
            path,
            pkey_index: 0,
            sgid_index: 0,
            grh_required: false,
            private_data: private_data.to_vec(),
            srq: true,
            responder_resources: 4,
            initiator_depth: 0,
            retry_count: RetryCount::new(0),
            rnr_retry_count: RnrRetry::new(0),
            remote_response_timeout: TimeoutCode::new(20),
            local_response_timeout: TimeoutCode::new(20),
            max_cm_retries: MaxCmRetries::new(15),
        }
    }
}

/// Parameters for accepting a connection.
#[derive(Clone, Debug)]
pub struct AcceptParams {
    /// Local queue pair, in RTR or RTS.
    pub local_qpn: Qpn,
    /// First PSN that the local queue pair expects: its `rq_psn`.
    pub starting_psn: Psn,
    /// Private data, at most 196 bytes.
    pub private_data: Vec<u8>,
    /// True if the local queue pair uses a shared receive queue.
    pub srq: bool,
    /// Number of concurrent RDMA reads and atomics that the local end can serve.
    pub responder_resources: u8,
    /// Number of RDMA reads and atomics that the local end may have outstanding.
    pub initiator_depth: u8,
    /// RNR retries for the peer. Linux's IPoIB copies those of the REQ.
    pub rnr_retry_count: RnrRetry,
}

impl AcceptParams {
    /// Returns parameters with the values of Linux's `ib_ipoib`.
    #[must_use]
    pub fn ipoib(local_qpn: Qpn, starting_psn: Psn, request: &RequestInfo, private_data: &[u8]) -> Self {
        Self {
            local_qpn,
            starting_psn,
            private_data: private_data.to_vec(),
            srq: true,
            responder_resources: 0,
            initiator_depth: 0,
            rnr_retry_count: request.rnr_retry_count,
        }
    }
}

/// Attributes of a connected queue pair, for INIT → RTR → RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttributes {
    /// RTR: path to the peer (its `life_time` is only used by the CM).
    pub path: Path,
    /// RTR: path MTU.
    pub path_mtu: Mtu,
    /// RTR: remote queue pair.
    pub dest_qpn: Qpn,
    /// RTR: first expected PSN.
    pub rq_psn: Psn,
    /// RTR: RNR NAK timer code; 0 means 655.36 ms, the maximum.
    pub min_rnr_timer: u8,
    /// RTR: number of concurrent RDMA reads and atomics to serve.
    pub max_dest_rd_atomic: u8,
    /// RTS: first PSN to send.
    pub sq_psn: Psn,
    /// RTS: local ACK timeout.
    pub ack_timeout: TimeoutCode,
    /// RTS: transport retries, 0 to 7.
    pub retry_count: u8,
    /// RTS: RNR retries, 0 to 7.
    pub rnr_retry: u8,
    /// RTS: number of RDMA reads and atomics that may be outstanding.
    pub max_rd_atomic: u8,
}

/// Contents of a peer's REQ.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    /// Requested service ID.
    pub service_id: ServiceId,
    /// The peer's communication ID.
    pub remote_comm_id: CommId,
    /// GUID of the peer's channel adapter.
    pub remote_ca_guid: Guid,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// First PSN to send to the peer.
    pub remote_starting_psn: Psn,
    /// Path to the peer. A permissive LID has been replaced by the datagram's source LID.
    pub path: Path,
    /// Partition.
    pub pkey: PKey,
    /// Index of the P_Key of the datagram.
    pub pkey_index: u16,
    /// Source LID of the datagram.
    pub source_lid: Lid,
    /// Source GID of the datagram, if it had a GRH.
    pub source_gid: Option<Gid>,
    /// Port whose share it counts against ([`super::ConnectionTable::handle_mad_for`]), usually the source
    /// port.
    pub payer: Origin,
    /// True if the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Transport retries for both ends.
    pub retry_count: RetryCount,
    /// RNR retries that the peer requests.
    pub rnr_retry_count: RnrRetry,
    /// Number of concurrent RDMA reads and atomics that the peer can serve.
    pub responder_resources: u8,
    /// Number of RDMA reads and atomics that the peer may have outstanding.
    pub initiator_depth: u8,
    /// ACK timeout for the local queue pair.
    pub ack_timeout: TimeoutCode,
    /// Private data.
    pub private_data: [u8; 92],
}

impl RequestInfo {
    /// Returns the attributes of the local queue pair, given the first PSN that it expects.
    #[must_use]
    pub const fn qp_attributes(&self, rq_psn: Psn) -> QpAttributes {
        QpAttributes {
            path: self.path,
            path_mtu: self.path.mtu,
            dest_qpn: self.remote_qpn,
            rq_psn,
            min_rnr_timer: 0,
            max_dest_rd_atomic: self.initiator_depth,
            sq_psn: self.remote_starting_psn,
            ack_timeout: self.ack_timeout,
            retry_count: self.retry_count.get(),
            rnr_retry: self.rnr_retry_count.get(),
            max_rd_atomic: self.responder_resources,
        }
    }

    /// Returns the flow label of the path, for a GRH.
    #[must_use]
    pub const fn flow_label(&self) -> FlowLabel {
        self.path.flow_label
    }
}

/// Contents of a peer's REP.
#[derive(Clone, Debug)]
pub struct ReplyInfo {
    /// The peer's communication ID.
    pub remote_comm_id: CommId,
    /// GUID of the peer's channel adapter.
    pub remote_ca_guid: Guid,
    /// True if the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Attributes of the local queue pair, including the peer's queue pair number and PSN.
    pub attributes: QpAttributes,
    /// Private data.
    pub private_data: [u8; 196],
}

/// Contents of a peer's REJ.
#[derive(Clone, Debug)]
pub struct RejectInfo {
    /// Reason.
    pub reason: RejectReason,
    /// The rejected message.
    pub message: MessageRejected,
    /// Additional information, at most 72 bytes.
    pub info: Vec<u8>,
    /// Private data. The peer's own only for reason [`RejectReason::Consumer`].
    pub private_data: [u8; 148],
}

/// Cause of a disconnection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DisconnectCause {
    /// [`super::ConnectionTable::disconnect`] was called. The peer has confirmed it, or never will.
    Us,
    /// The peer's DREQ.
    Peer,
    /// The peer started a new connection from the same queue pair, so this one is stale.
    Stale,
}

/// An event for the owner of a table.
#[derive(Clone, Debug)]
pub enum Event {
    /// A peer requests a connection. Respond with `accept` or `reject`, optionally after `delay`.
    Requested {
        /// The new connection.
        id: ConnId,
        /// The request.
        request: Box<RequestInfo>,
    },
    /// The peer accepted. Move the queue pair to RTR and RTS, then call `ready` (or `reject`).
    Replied {
        /// The connection.
        id: ConnId,
        /// The peer's reply.
        reply: Box<ReplyInfo>,
    },
    /// A passive connection is established: the RTU or data arrived.
    Established {
        /// The connection.
        id: ConnId,
    },
    /// The peer rejected the connection or gave up. Move the queue pair to ERR.
    Rejected {
        /// The connection.
        id: ConnId,
        /// The rejection.
        reject: Box<RejectInfo>,
    },
    /// The peer does not respond. Move the queue pair to ERR.
    TimedOut {
        /// The connection.
        id: ConnId,
    },
    /// The connection has ended. Move the queue pair to ERR.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// The cause.
        cause: DisconnectCause,
    },
    /// No packets of this connection are in flight any more, and the queue pair's number may be reused. This
    /// is the last event of every connection.
    Released {
        /// The former connection.
        id: ConnId,
    },
}

impl Event {
    /// Returns the connection of the event.
    #[must_use]
    pub const fn id(&self) -> ConnId {
        match self {
            Self::Requested { id, .. }
            | Self::Replied { id, .. }
            | Self::Established { id }
            | Self::Rejected { id, .. }
            | Self::TimedOut { id }
            | Self::Disconnected { id, .. }
            | Self::Released { id } => *id,
        }
    }
}

/// Reason why a call was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// The connection does not exist, or no longer.
    #[error("no connection {0:?}")]
    Unknown(ConnId),
    /// The connection's state does not allow this.
    #[error("not allowed in state {0:?}")]
    State(State),
    /// The maximum number of connections is reached.
    #[error("the table is full ({0} connections)")]
    Full(usize),
    /// The maximum number of listeners is reached.
    #[error("the table is full ({0} listeners)")]
    ListenersFull(usize),
    /// There is already a listener.
    #[error("service {0} is already in use")]
    ServiceTaken(ServiceId),
    /// The queue pair belongs to another connection.
    #[error("queue pair {0} is in use")]
    QpInUse(Qpn),
    /// The private data exceed the message.
    #[error("{len} bytes of private data exceed the limit of {max}")]
    PrivateData {
        /// Given length.
        len: usize,
        /// Maximum length.
        max: usize,
    },
}
