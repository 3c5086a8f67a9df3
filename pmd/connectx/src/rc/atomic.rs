//! COMPARE & SWAP and FETCH & ADD (IBA 9.4.5) in the responder.
//!
//! The thread that calls the engine executes the memory accesses of all queue pairs one after another, so
//! that no other access of the device interferes. Atomic instructions of the processor exclude the host's
//! processors and other devices that share the memory ([`crate::HostMemory`]).

use ib_wire::packet::{Extended, NakCode, Opcode};

use super::answer;
use super::refusal::{INVALID, Refusal};
use crate::connection::responder::{Answer, Atomic, Content};
use crate::counters::DropReason;
use crate::device::Device;
use crate::frame::Arrived;
use crate::object::mr::{Member, Use};
use crate::object::qp::Qp;

/// Byte order in which the requester writes the result of an atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AnswerOrder {
    /// The host's byte order.
    #[default]
    Host,
    /// Most significant byte first.
    Big,
}

impl AnswerOrder {
    /// The bytes of a result.
    pub(super) const fn bytes(self, value: u64) -> [u8; LEN] {
        match self {
            Self::Host => value.to_ne_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// Length of the operand in bytes.
const LEN: usize = size_of::<u64>();

fn wanted(packet: &Arrived<'_>) -> Option<Atomic> {
    let Extended::Atomic(request) = *packet.extended() else { return None };
    let bth = packet.bth();
    packet.payload().is_empty().then_some(Atomic { psn: bth.psn, opcode: bth.opcode, request })
}

/// Executes the next request in order.
pub(super) fn request(
    qp: &mut Qp,
    dev: &mut Device,
    packet: &Arrived<'_>,
    member: Member,
) -> Result<(), Refusal> {
    let depth = qp.remote.reads_in;
    let atomic = wanted(packet).filter(|_| qp.remote.atomic).ok_or(INVALID)?;
    let Some(rc) = &mut qp.rc else { return Err(INVALID) };
    let request = &atomic.request;
    if rc.responder.incoming.is_some() || !request.address.is_multiple_of(LEN as u64) {
        return Err(INVALID);
    }
    let memory = dev
        .mrs
        .of(member)
        .translate(request.rkey.0, request.address, LEN, Use::RemoteAtomic)
        .map_err(|_| Refusal::Fatal(NakCode::RemoteAccess, None))?;
    answer::make_room(&mut rc.responder, depth)?;
    let was = match atomic.opcode {
        Opcode::RcCompareSwap => memory.compare_swap(request.compare, request.swap_add),
        _ => memory.fetch_add(request.swap_add),
    };
    // Its address is aligned, but the host memory behind it is not.
    let was = was.ok_or(Refusal::Fatal(NakCode::RemoteOperation, None))?;
    rc.responder.keep(atomic, was, depth.into());
    rc.responder.answers.push_back(Answer { psn: atomic.psn, content: Content::Value(was), again: false });
    dev.schedule(qp);
    Ok(())
}

/// Handles a duplicate request: it gets the same response as before. It gets no response if the result is no
/// longer kept (IBA 9.7.5.1.5).
pub(super) fn repeat(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) {
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.responder;
    let known = wanted(packet).and_then(|atomic| Some((atomic.psn, r.kept(&atomic)?)));
    match known {
        Some((psn, was)) => {
            let answer = Answer { psn, content: Content::Value(was), again: true };
            answer::owe_again(r, answer, 1, qp.remote.reads_in);
        }
        None => dev.counters.drop_packet(DropReason::Unsupported),
    }
}
