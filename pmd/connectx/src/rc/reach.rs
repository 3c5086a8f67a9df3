//! The memory and receives that a request may use: those of the queue pair, or of the shared receive queue
//! that it names.

use super::refusal::{INVALID, Refusal};
use crate::device::Device;
use crate::frame::Arrived;
use crate::object::mr::Member;
use crate::object::qp::{Qp, Receives};
use crate::object::xrc;

/// The owner of the memory that a request may access. Requests at an XRC target name an XRC shared receive
/// queue of its domain, and access memory of that queue's protection domain (IBA annex A14). A target has no
/// protection domain, because many processes, each with its own, may share it.
pub(super) fn member(qp: &Qp, dev: &Device, packet: &Arrived<'_>) -> Option<Member> {
    let Receives::Named(target) = &qp.receives else { return Some(qp.domain) };
    let (_, srq) = xrc::find(&dev.srqs, target.domain, packet.xrc?)?;
    Some(Member { domain: srq.domain, ..qp.domain })
}

/// As [`member`], for the next request in order, which takes its receive from the queue that it names. All
/// packets of a message name the same queue.
pub(super) fn enter(qp: &mut Qp, dev: &Device, packet: &Arrived<'_>) -> Result<Member, Refusal> {
    let member = member(qp, dev, packet).ok_or(INVALID)?;
    let begun = qp.rc.as_ref().is_some_and(|rc| rc.responder.incoming.is_some());
    if let Receives::Named(target) = &mut qp.receives {
        let named = packet.xrc.map(|xrc| xrc.srqn.get());
        if begun && target.named != named {
            return Err(INVALID);
        }
        target.named = named;
    }
    Ok(member)
}
