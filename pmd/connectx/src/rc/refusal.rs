//! Why a responder does not execute a request.

use hca::WcStatus;
use ib_wire::packet::NakCode;

/// Why a request is not executed.
pub(super) enum Refusal {
    /// No receive is posted; the requester may retry.
    NotReady,
    /// The connection ends. A receive that was taken completes with the status.
    Fatal(NakCode, Option<(u16, WcStatus)>),
}

/// The NAK for an invalid request, or for one that is invalid in the current state.
pub(super) const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, None);
