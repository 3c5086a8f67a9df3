//! What goes into and comes out of the connection table.

use std::time::Duration;

use ib_wire::cm::{FlowLabel, MaxCmRetries, MessageRejected, RejectReason, RetryCount, RnrRetry};
use ib_wire::{CommId, Gid, Guid, Lid, Mtu, PKey, Psn, Qpn, ServiceId, TimeoutCode};

use super::state::State;
use crate::{Origin, Path};

/// Sizes and identity of a table.
#[derive(Clone, Debug)]
pub struct Config {
    /// Communication ids and transaction ids derive from it: a secret, or others predict them; drawn at each start, or peers take
    /// new connections for old ones.
    pub seed: u64,
    /// GUID of our channel adapter.
    pub ca_guid: Guid,
    /// Most connections, those in TIMEWAIT included. A REQ beyond is dropped; the peer tries again.
    pub max_connections: usize,
    /// Most of them that peers have begun, TIMEWAIT included: the rest is for ours.
    pub max_begun: usize,
    /// Most of them that one port of the fabric has begun, TIMEWAIT included. A REQ beyond is dropped; the peer tries again.
    pub max_from_port: usize,
    /// Most service ids.
    pub max_listeners: usize,
    /// Most datagrams that wait for [`super::ConnectionTable::poll_transmit`]; one more is dropped as if the fabric
    /// had lost it.
    pub max_transmit: usize,
    /// Longest time that the ACK of our adapter takes, as REP announces it and REQ's ACK timeout contains it.
    pub ack_delay: TimeoutCode,
    /// Upper bound of every other time that a peer can impose: response timeouts, MRA service timeouts.
    pub max_wait: Duration,
    /// Upper bound of TIMEWAIT where the peer has begun the connection and named its time.
    pub max_timewait: Duration,
    /// Upper bound of the time for all repetitions of a message to a peer that has begun the connection and named times and number.
    pub max_repeating: Duration,
}

impl Config {
    /// Sizes for one port of a gateway.
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
            // Twice the packet life time that subnet managers configure by default, rounded up as Linux does, and doubled.
            max_timewait: Duration::from_millis(4096),
            // What ib_ipoib's own numbers come to.
            max_repeating: Duration::from_secs(66),
        }
    }
}

/// Names a connection in a table. It is our communication id, and is not used again soon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub(super) CommId);

impl ConnId {
    /// Our communication id.
    #[must_use]
    pub const fn comm_id(self) -> CommId {
        self.0
    }
}

/// Asks for a connection. [`ConnectRequest::ipoib`] has the values that Linux's IPoIB uses.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// The service.
    pub service_id: ServiceId,
    /// Our queue pair, in INIT.
    pub local_qpn: Qpn,
    /// The PSN that we expect first: our queue pair's `rq_psn`.
    pub starting_psn: Psn,
    /// The way to the peer.
    pub path: Path,
    /// Index of the path's P_Key in the port's table.
    pub pkey_index: u16,
    /// Index of the path's source GID in the port's table.
    pub sgid_index: u8,
    /// Our port sends nothing without a GRH ([`Path::gsi`]).
    pub grh_required: bool,
    /// Private data, at most 92 bytes.
    pub private_data: Vec<u8>,
    /// Our queue pair is on a shared receive queue.
    pub srq: bool,
    /// RDMA reads and atomics that we can serve at once.
    pub responder_resources: u8,
    /// RDMA reads and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: RetryCount,
    /// RNR retries that the peer shall use; 7 = without end.
    pub rnr_retry_count: RnrRetry,
    /// Time within which the peer has to answer.
    pub remote_response_timeout: TimeoutCode,
    /// Time within which we answer.
    pub local_response_timeout: TimeoutCode,
    /// How often either side sends a message again.
    pub max_cm_retries: MaxCmRetries,
}

impl ConnectRequest {
    /// The values of Linux's `ib_ipoib`.
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

/// Accepts a connection.
#[derive(Clone, Debug)]
pub struct AcceptParams {
    /// Our queue pair, already in RTR at least.
    pub local_qpn: Qpn,
    /// The PSN that we expect first: our queue pair's `rq_psn`.
    pub starting_psn: Psn,
    /// Private data, at most 196 bytes.
    pub private_data: Vec<u8>,
    /// Our queue pair is on a shared receive queue.
    pub srq: bool,
    /// RDMA reads and atomics that we can serve at once.
    pub responder_resources: u8,
    /// RDMA reads and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// RNR retries that the peer shall use; Linux's IPoIB copies the REQ's.
    pub rnr_retry_count: RnrRetry,
}

impl AcceptParams {
    /// The values of Linux's `ib_ipoib`.
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
    /// RTR: the way to the peer (its `life_time` is for the CM only).
    pub path: Path,
    /// RTR: path MTU.
    pub path_mtu: Mtu,
    /// RTR: the peer's queue pair.
    pub dest_qpn: Qpn,
    /// RTR: first PSN that we expect.
    pub rq_psn: Psn,
    /// RTR: RNR NAK timer code; 0 = 655.36 ms, the longest.
    pub min_rnr_timer: u8,
    /// RTR: RDMA reads and atomics that we serve at once.
    pub max_dest_rd_atomic: u8,
    /// RTS: first PSN that we send.
    pub sq_psn: Psn,
    /// RTS: local ACK timeout.
    pub ack_timeout: TimeoutCode,
    /// RTS: transport retries, 0 to 7.
    pub retry_count: u8,
    /// RTS: RNR retries, 0 to 7.
    pub rnr_retry: u8,
    /// RTS: RDMA reads and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
}

/// What a peer's REQ says.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    /// The service that it asks for.
    pub service_id: ServiceId,
    /// The peer's communication id.
    pub remote_comm_id: CommId,
    /// GUID of the peer's channel adapter.
    pub remote_ca_guid: Guid,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// First PSN that we shall send.
    pub remote_starting_psn: Psn,
    /// The way to the peer; a permissive LID has been replaced by the datagram's.
    pub path: Path,
    /// Partition.
    pub pkey: PKey,
    /// Index of the P_Key that the datagram came with.
    pub pkey_index: u16,
    /// The LID that the datagram came from.
    pub source_lid: Lid,
    /// The GID that it came from, if it had a GRH.
    pub source_gid: Option<Gid>,
    /// The port in whose share it counts ([`super::ConnectionTable::handle_mad_for`]): the one that it came from, as a rule.
    pub payer: Origin,
    /// The peer's queue pair is on a shared receive queue.
    pub srq: bool,
    /// Transport retries that the peer uses, and we shall.
    pub retry_count: RetryCount,
    /// RNR retries that the peer wants us to use.
    pub rnr_retry_count: RnrRetry,
    /// RDMA reads and atomics that the peer can serve at once.
    pub responder_resources: u8,
    /// RDMA reads and atomics that the peer may have outstanding.
    pub initiator_depth: u8,
    /// ACK timeout of our queue pair.
    pub ack_timeout: TimeoutCode,
    /// Private data.
    pub private_data: [u8; 92],
}

impl RequestInfo {
    /// Attributes of our queue pair, given the PSN that we expect first.
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

    /// Flow label of the path, for a GRH.
    #[must_use]
    pub const fn flow_label(&self) -> FlowLabel {
        self.path.flow_label
    }
}

/// What a peer's REP says.
#[derive(Clone, Debug)]
pub struct ReplyInfo {
    /// The peer's communication id.
    pub remote_comm_id: CommId,
    /// GUID of the peer's channel adapter.
    pub remote_ca_guid: Guid,
    /// The peer's queue pair is on a shared receive queue.
    pub srq: bool,
    /// Attributes of our queue pair; the peer's number and PSN are in them.
    pub attributes: QpAttributes,
    /// Private data.
    pub private_data: [u8; 196],
}

/// What a peer's REJ says.
#[derive(Clone, Debug)]
pub struct RejectInfo {
    /// Why.
    pub reason: RejectReason,
    /// Which of our messages it rejects.
    pub message: MessageRejected,
    /// Additional information, 72 bytes at most.
    pub info: Vec<u8>,
    /// Private data; the peer's own only if the reason is [`RejectReason::Consumer`].
    pub private_data: [u8; 148],
}

/// Who ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DisconnectCause {
    /// We did, by [`super::ConnectionTable::disconnect`]; the peer has confirmed it, or never will.
    Us,
    /// The peer's DREQ.
    Peer,
    /// The peer has begun a new connection from the same queue pair: this one is a left-over.
    Stale,
}

/// Something that the owner of a table has to know.
#[derive(Clone, Debug)]
pub enum Event {
    /// A peer asks for a connection: answer by `accept` or `reject` (or `delay` first).
    Requested {
        /// The new connection.
        id: ConnId,
        /// What it asks for.
        request: Box<RequestInfo>,
    },
    /// The peer accepts: move the queue pair to RTR and RTS, then call `ready` (or `reject`).
    Replied {
        /// The connection.
        id: ConnId,
        /// Its answer.
        reply: Box<ReplyInfo>,
    },
    /// A passive connection is in use: the RTU came, or data did.
    Established {
        /// The connection.
        id: ConnId,
    },
    /// The peer rejects or gives up. The queue pair goes to ERR.
    Rejected {
        /// The connection.
        id: ConnId,
        /// Why.
        reject: Box<RejectInfo>,
    },
    /// The peer does not answer. The queue pair goes to ERR.
    TimedOut {
        /// The connection.
        id: ConnId,
    },
    /// The connection has ended. The queue pair goes to ERR.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// By whom.
        cause: DisconnectCause,
    },
    /// Nothing of this connection is left on the way: the queue pair's number may be used again. The last event of
    /// every connection.
    Released {
        /// The connection that was.
        id: ConnId,
    },
}

impl Event {
    /// The connection that it is about.
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

/// Why a call was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// No such connection, or no more.
    #[error("no connection {0:?}")]
    Unknown(ConnId),
    /// The connection's state does not allow this.
    #[error("not allowed in state {0:?}")]
    State(State),
    /// As many connections as the table takes.
    #[error("the table has its {0} connections")]
    Full(usize),
    /// As many listeners as the table takes.
    #[error("the table has its {0} listeners")]
    ListenersFull(usize),
    /// Somebody listens already.
    #[error("service {0} is taken")]
    ServiceTaken(ServiceId),
    /// The queue pair belongs to another connection.
    #[error("queue pair {0} is in use")]
    QpInUse(Qpn),
    /// More private data than the message has room for.
    #[error("{len} bytes of private data, {max} fit")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
}
