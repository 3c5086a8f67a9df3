//! What becomes of work requests.

use ib_wire::Qpn;

/// Why a post was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The send queue is full, or as many sends are outstanding as the worker may have.
    #[error("the send queue is full")]
    Full,
    /// The buffer has more segments than a work request can carry.
    #[error("the buffer has too many segments")]
    TooManySegments,
    /// No connected queue pair is in that slot, or it is in error; no datagram queue pair is, or it is not open.
    #[error("no connection in this slot")]
    NoConnection,
    /// The buffer lies outside of all registered memory.
    #[error("the buffer is not in registered memory")]
    NotRegistered,
}

/// Outcome of a work request (IBA 11.6.2), in the order of mlx5's syndromes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WcStatus {
    /// Done.
    Success,
    /// Local length error.
    LocalLength,
    /// Local QP operation error.
    LocalQpOperation,
    /// Local protection error.
    LocalProtection,
    /// Flushed.
    Flushed,
    /// Memory window bind error.
    MemoryWindowBind,
    /// Bad response.
    BadResponse,
    /// Local access error.
    LocalAccess,
    /// The responder found the request invalid.
    RemoteInvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operation error.
    RemoteOperation,
    /// Transport retries used up.
    RetryExceeded,
    /// RNR retries used up.
    RnrRetryExceeded,
    /// Aborted by the remote side.
    RemoteAborted,
    /// Anything else.
    General,
}

/// Something on a queue pair that the control lcore has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpEvent {
    /// The queue pair.
    pub qpn: Qpn,
    /// What it is.
    pub fault: QpFault,
}

/// What befell a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpFault {
    /// A send failed, other than by being flushed.
    Send(WcStatus),
    /// A receive failed, other than by being flushed.
    Receive(WcStatus),
    /// The drain request has completed: no receive of this queue pair is left in the
    /// completion queue.
    Drained,
    /// Nothing is outstanding on the send queue of a queue pair that is in error.
    Flushed,
}
