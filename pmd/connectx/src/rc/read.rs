//! RDMA READ (IBA 9.7.5.1.6) in the responder.

use ib_wire::packet::NakCode;

use super::refusal::{INVALID, Refusal};
use super::requester::MAX_ANSWER;
use super::{answer, reach};
use crate::connection::responder::{Answer, Content};
use crate::counters::DropReason;
use crate::device::Device;
use crate::frame::Arrived;
use crate::object::mr::{Member, Use};
use crate::object::qp::Qp;

/// The response to a request, if permitted, and its number of packets.
fn wanted(qp: &Qp, dev: &Device, packet: &Arrived<'_>, member: Member) -> Result<(Answer, u32), Refusal> {
    let (Some(rc), Some(reth)) = (&qp.rc, packet.extended().reth()) else { return Err(INVALID) };
    let packets = reth.length.div_ceil(rc.mtu.bytes() as u32).max(1);
    if !qp.remote.read || !packet.payload().is_empty() || packets > MAX_ANSWER {
        return Err(INVALID);
    }
    let (rkey, address, len) = (reth.rkey.0, reth.address, reth.length as usize);
    // A read of zero bytes names no memory.
    if len > 0 && dev.mrs.of(member).translate(rkey, address, len, Use::RemoteRead).is_err() {
        return Err(Refusal::Fatal(NakCode::RemoteAccess, None));
    }
    let content = Content::Memory { member, rkey, address, left: reth.length, begun: false };
    Ok((Answer { psn: packet.bth().psn, content, again: false }, packets))
}

/// Handles the next request in order. It uses one PSN for each packet of its response.
pub(super) fn request(
    qp: &mut Qp,
    dev: &mut Device,
    packet: &Arrived<'_>,
    member: Member,
) -> Result<(), Refusal> {
    let (wanted, packets) = wanted(qp, dev, packet, member)?;
    let depth = qp.remote.reads_in;
    let Some(rc) = &mut qp.rc else { return Err(INVALID) };
    if rc.responder.incoming.is_some() {
        return Err(INVALID);
    }
    answer::make_room(&mut rc.responder, depth)?;
    rc.responder.answers.push_back(wanted);
    // The caller counts the last one.
    rc.responder.epsn = rc.responder.epsn.add(packets - 1);
    dev.schedule(qp);
    Ok(())
}

/// Handles a duplicate request: the response is sent again from the PSN that the peer gives (IBA 9.7.5.1.5).
pub(super) fn repeat(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) {
    let wanted =
        reach::member(qp, dev, packet).ok_or(INVALID).and_then(|member| wanted(qp, dev, packet, member));
    let depth = qp.remote.reads_in;
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.responder;
    match wanted {
        Ok((wanted, packets)) if packets <= r.epsn.since(wanted.psn) => {
            answer::owe_again(r, wanted, packets, depth);
        }
        // Not a repetition of any earlier request.
        _ => dev.counters.drop_packet(DropReason::Unsupported),
    }
}
