//! REQ (IBA 12.6.5) and REP (12.6.8).

use super::PathInfo;
use crate::layout::{layout, narrow_number, open_enum};
use crate::{CommId, Guid, Mtu, PKey, Psn, QKey, Qpn, ServiceId, TimeoutCode};

layout! {
    /// REQ: requests a connection.
    pub struct Request[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Requested service.
        service_id: ServiceId = 8 @ 0, 64;
        /// GUID of the sender's channel adapter.
        ca_guid: Guid = 16 @ 0, 64;
        /// Q_Key, for reliable datagrams.
        qkey: QKey = 28 @ 0, 32;
        /// The sender's queue pair.
        local_qpn: Qpn = 32 @ 0, 24;
        /// RDMA reads and atomics that the sender can serve at once.
        responder_resources: u8 = 35 @ 0, 8;
        /// The sender's EE context.
        local_eecn: Qpn = 36 @ 0, 24;
        /// RDMA reads and atomics that the sender may have outstanding.
        initiator_depth: u8 = 39 @ 0, 8;
        /// The receiver's EE context.
        remote_eecn: Qpn = 40 @ 0, 24;
        /// Time within which the receiver must respond.
        remote_response_timeout: TimeoutCode = 43 @ 0, 5;
        /// Transport service.
        transport: Transport = 43 @ 5, 2;
        /// The sender supports end-to-end flow control.
        flow_control: bool = 43 @ 7, 1;
        /// First PSN that the *receiver* of this message sends with.
        starting_psn: Psn = 44 @ 0, 24;
        /// Time within which the sender will respond.
        local_response_timeout: TimeoutCode = 47 @ 0, 5;
        /// Transport retries.
        retry_count: RetryCount = 47 @ 5, 3;
        /// Partition.
        pkey: PKey = 48 @ 0, 16;
        /// MTU of the paths.
        path_mtu: PathMtu = 50 @ 0, 4;
        /// An RD channel exists.
        rdc_exists: bool = 50 @ 4, 1;
        /// RNR retries that the receiver should use; 7 = unlimited.
        rnr_retry_count: RnrRetry = 50 @ 5, 3;
        /// Maximum number of times that either side repeats a message.
        max_cm_retries: MaxCmRetries = 51 @ 0, 4;
        /// The sender's queue pair uses a shared receive queue.
        srq: bool = 51 @ 4, 1;
        /// Transport if `transport` is extended.
        extended_transport: ExtendedTransport = 51 @ 5, 3;
        /// Primary path; "local" is the sender's end.
        primary: PathInfo = 52 @ 0, 352;
        /// Alternate path; all zero = none.
        alternate: PathInfo = 96 @ 0, 352;
        /// Private data.
        private_data: [u8; 92] = 140 @ 0, 736;
    }
}

impl Default for Request {
    fn default() -> Self {
        Self::parse(&[0; Self::LEN])
    }
}

layout! {
    /// REP: accepts a connection.
    pub struct Reply[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// Q_Key, for reliable datagrams.
        qkey: QKey = 8 @ 0, 32;
        /// The sender's queue pair.
        local_qpn: Qpn = 12 @ 0, 24;
        /// The sender's EE context.
        local_eecn: Qpn = 16 @ 0, 24;
        /// First PSN that the *receiver* of this message sends with.
        starting_psn: Psn = 20 @ 0, 24;
        /// RDMA reads and atomics that the sender can serve at once.
        responder_resources: u8 = 24 @ 0, 8;
        /// RDMA reads and atomics that the sender may have outstanding.
        initiator_depth: u8 = 25 @ 0, 8;
        /// Longest time that the sender's channel adapter takes for an ACK.
        target_ack_delay: TimeoutCode = 26 @ 0, 5;
        /// Outcome for the alternate path.
        failover: Failover = 26 @ 5, 2;
        /// The sender supports end-to-end flow control.
        flow_control: bool = 26 @ 7, 1;
        /// RNR retries that the receiver should use; 7 = unlimited.
        rnr_retry_count: RnrRetry = 27 @ 0, 3;
        /// The sender's queue pair uses a shared receive queue.
        srq: bool = 27 @ 3, 1;
        /// GUID of the sender's channel adapter.
        ca_guid: Guid = 28 @ 0, 64;
        /// Private data.
        private_data: [u8; 196] = 36 @ 0, 1568;
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::parse(&[0; Self::LEN])
    }
}

open_enum! {
    /// Transport service type, 2 bits.
    pub enum Transport(u8) {
        /// Reliable connection.
        Rc = 0,
        /// Unreliable connection.
        Uc = 1,
        /// Reliable datagram.
        Rd = 2,
        /// The extended transport type applies.
        Extended = 3,
    }
}

open_enum! {
    /// Extended transport type, 3 bits.
    pub enum ExtendedTransport(u8) {
        /// None.
        None = 0,
        /// Extended reliable connection.
        Xrc = 1,
    }
}

open_enum! {
    /// Outcome for the alternate path in a REP, 2 bits.
    pub enum Failover(u8) {
        /// Accepted, or none was given.
        Accepted = 0,
        /// Not supported.
        NotSupported = 1,
        /// Rejected.
        Rejected = 2,
    }
}

narrow_number! {
    /// Transport retries, 3 bits.
    RetryCount(u8, 3)
}

narrow_number! {
    /// RNR retries, 3 bits; 7 = unlimited.
    RnrRetry(u8, 3)
}

narrow_number! {
    /// Repetitions of a CM message, 4 bits.
    MaxCmRetries(u8, 4)
}

narrow_number! {
    /// Path MTU code, 4 bits. A code that names no MTU is kept; REJ reason 26 is for such codes.
    PathMtu(u8, 4)
}

impl PathMtu {
    /// The MTU, if the code names one.
    #[must_use]
    pub const fn mtu(self) -> Option<Mtu> {
        Mtu::from_code(self.get())
    }
}

impl From<Mtu> for PathMtu {
    fn from(mtu: Mtu) -> Self {
        Self::new(mtu.code())
    }
}
