//! Requests for unsupported services: rejected as in IBA 13.4.7, instead of running into timeouts.

use ib_wire::mad::{BASE_VERSION, Mad, MadStatus, Method, MgmtClass};

/// Returns the response to an unhandled request. Returns `None` for messages without a response, for
/// datagrams of another base version, and for the classes of QP0.
pub(super) fn answer(mad: &Mad) -> Option<Mad> {
    let mut header = mad.header();
    if header.base_version != BASE_VERSION || header.class.is_smp() || header.method.is_response() {
        return None;
    }
    // Only Get and Set apply to every agent of every class. Unsolicited messages (Trap, Report) must not be
    // acknowledged here.
    if !matches!(header.method, Method::Get | Method::Set) {
        return None;
    }
    header.method = Method::GetResp;
    header.status = match header.class {
        // This node is a client of subnet administration and a party of communication management, and
        // supports the class in this version.
        MgmtClass::SubnAdm | MgmtClass::ComMgt => MadStatus::UNSUPPORTED_METHOD,
        _ => MadStatus::BAD_VERSION,
    };
    let mut answer = Mad { peer: mad.peer.reply(), bytes: mad.bytes.clone() };
    header.put(&mut answer.bytes);
    Some(answer)
}
