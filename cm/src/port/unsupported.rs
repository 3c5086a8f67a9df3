//! Requests for services that nobody here offers: told so, as IBA 13.4.7 has it, instead of left to run into their time-outs.

use ib_wire::mad::{BASE_VERSION, Mad, MadStatus, Method, MgmtClass};

/// The answer to a request that nobody takes; none for messages that have no answer, for datagrams of another base version and for those
/// of QP0's classes.
pub(super) fn answer(mad: &Mad) -> Option<Mad> {
    let mut header = mad.header();
    if header.base_version != BASE_VERSION || header.class.is_smp() || header.method.is_response() {
        return None;
    }
    // Only Get and Set ask every agent of every class. What is sent unasked (Trap, Report) is not ours to acknowledge.
    if !matches!(header.method, Method::Get | Method::Set) {
        return None;
    }
    header.method = Method::GetResp;
    header.status = match header.class {
        // We are a client of subnet administration and a party of communication management, and have the class in this version.
        MgmtClass::SubnAdm | MgmtClass::ComMgt => MadStatus::UNSUPPORTED_METHOD,
        _ => MadStatus::BAD_VERSION,
    };
    let mut answer = Mad { peer: mad.peer.reply(), bytes: mad.bytes.clone() };
    header.put(&mut answer.bytes);
    Some(answer)
}
