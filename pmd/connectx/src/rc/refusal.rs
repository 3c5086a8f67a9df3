//! Why a responder does not carry out a request.

use hca::WcStatus;
use ib_wire::packet::NakCode;

/// Why a request is not carried out.
pub(super) enum Refusal {
    /// No receive: later, perhaps.
    NotReady,
    /// This ends the connection. A receive that was taken completes with the status.
    Fatal(NakCode, Option<(u16, WcStatus)>),
}

/// A request that may not be made, or not now.
pub(super) const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, None);
