//! Results of work requests.

use ib_wire::Qpn;

/// Why a post was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The send queue is full, or the worker has reached its limit of outstanding sends.
    #[error("the send queue is full")]
    Full,
    /// The buffer has more segments than a work request can carry.
    #[error("the buffer has too many segments")]
    TooManySegments,
    /// The slot holds no connected queue pair, or one in error; or it holds no open datagram queue pair.
    #[error("no connection in this slot")]
    NoConnection,
    /// The buffer is outside all registered memory.
    #[error("the buffer is not in registered memory")]
    NotRegistered,
}

/// Outcome of a work request (IBA 11.6.2), in the order of mlx5's syndromes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WcStatus {
    /// Success.
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
    /// Any other error.
    General,
}

/// An event of a queue pair for the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpEvent {
    /// The queue pair.
    pub qpn: Qpn,
    /// The event.
    pub fault: QpFault,
}

/// Kind of a queue pair event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpFault {
    /// A send failed, other than by being flushed.
    Send(WcStatus),
    /// A receive failed, other than by being flushed.
    Receive(WcStatus),
    /// The drain request has completed: no receive of this queue pair is left in the completion queue.
    Drained,
    /// The send queue of a queue pair in error has nothing outstanding.
    Flushed,
}
