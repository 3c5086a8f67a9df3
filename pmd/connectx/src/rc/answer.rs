//! Responses to RDMA READs and atomic operations (IBA 9.7.5.1.6), on the responder's and the requester's
//! side.

use std::time::Instant;

use ib_wire::packet::{Aeth, Credit, Extended, NakCode, Opcode, Syndrome};

use super::QpFace;
use super::refusal::{INVALID, Refusal};
use super::requester::{fail_oldest, go_back, settle};
use crate::addressing;
use crate::connection::responder::{Answer, Content, Reply, Responder};
use crate::counters::{Activity, DropReason};
use crate::device::{Device, Unsent};
use crate::event::DeviceEvent;
use crate::frame::Arrived;
use crate::object::qp::Qp;
use crate::wqe::{Pieces, gather_remote};
use hca::WcStatus;

/// Response packets that one queue pair sends each time it is served.
const BURST: usize = 16;

/// Makes room for one more response; at most `depth` are queued.
pub(super) fn make_room(r: &mut Responder, depth: u8) -> Result<(), Refusal> {
    if r.answers.len() >= usize::from(depth) {
        // A requester that sends a new request has received all responses that it requested again before.
        let again = r.answers.iter().position(|answer| answer.again).ok_or(INVALID)?;
        r.answers.remove(again);
    }
    Ok(())
}

/// Queues a repeated response of `packets` packets, in order among those queued, in place of the one that it
/// repeats.
pub(super) fn owe_again(r: &mut Responder, answer: Answer, packets: u32, depth: u8) {
    r.answers.retain(|owed| owed.psn.since(answer.psn) >= packets);
    if r.answers.len() < usize::from(depth) {
        let at = r.answers.partition_point(|owed| !owed.psn.is_at_or_after(answer.psn));
        r.answers.insert(at, Answer { again: true, ..answer });
    }
}

/// Sends queued responses. Returns true if any packet was sent; the rest is sent when the queue pair is
/// served again.
pub(super) fn send(qp: &mut Qp, dev: &mut Device) -> Result<bool, Unsent> {
    let face = QpFace::new(qp, dev);
    for sent in 0..BURST {
        let Some(rc) = &mut qp.rc else { return Ok(sent > 0) };
        let Some(answer) = rc.responder.answers.front().copied() else { return Ok(sent > 0) };
        let aeth = Aeth { syndrome: Syndrome::Ack(Credit::INVALID), msn: rc.responder.msn };
        let mtu = rc.mtu.bytes() as u32;
        let mut pieces = Pieces::new();
        let (opcode, extended, len, rest) = match answer.content {
            Content::Value(value) => {
                (Opcode::RcAtomicAcknowledge, Extended::AethAtomic(aeth, value), 0, None)
            }
            Content::Memory { member, rkey, address, left, begun } => {
                let len = left.min(mtu);
                let last = left <= mtu;
                let keys = dev.mrs.of(member);
                if gather_remote(keys, rkey, address, len as usize, &mut pieces).is_err() {
                    // The key has been invalidated since.
                    rc.responder.answers.clear();
                    rc.responder.reply = Some(Reply::Nak(answer.psn, Syndrome::Nak(NakCode::RemoteAccess)));
                    dev.events.push(DeviceEvent::QpAccessError(qp.qpn));
                    dev.fail_qp(qp);
                    return Ok(true);
                }
                let (opcode, extended) = match (begun, last) {
                    (false, true) => (Opcode::RcReadResponseOnly, Extended::Aeth(aeth)),
                    (false, false) => (Opcode::RcReadResponseFirst, Extended::Aeth(aeth)),
                    (true, false) => (Opcode::RcReadResponseMiddle, Extended::Bare),
                    (true, true) => (Opcode::RcReadResponseLast, Extended::Aeth(aeth)),
                };
                let address = address.wrapping_add(len.into());
                let rest = (!last).then_some(Content::Memory {
                    member,
                    rkey,
                    address,
                    left: left - len,
                    begun: true,
                });
                (opcode, extended, len as usize, rest)
            }
        };
        let bth = face.bth(rc, opcode, answer.psn);
        let av = rc.av;
        let gone = dev.send(
            face.port,
            |port| addressing::address(port, &av, &bth, &extended, face.qpn, false),
            len,
            |wqe, out| wqe.copy(&pieces, out),
        );
        match gone {
            // A queue pair that has sent is scheduled behind those that have not.
            Err(_) if sent > 0 => return Ok(true),
            gone => gone?,
        }
        match (rest, rc.responder.answers.front_mut()) {
            (Some(content), Some(front)) => *front = Answer { psn: answer.psn.add(1), content, ..answer },
            _ => _ = rc.responder.answers.pop_front(),
        }
    }
    Ok(true)
}

/// Receives a response packet.
pub(crate) fn take(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, now: Instant) {
    if !qp.state.goes_on_sending() {
        return dev.counters.drop_packet(DropReason::QueuePairState);
    }
    let Some(rc) = &mut qp.rc else { return };
    let mtu = rc.mtu.bytes() as u64;
    let r = &mut rc.requester;
    let psn = packet.bth().psn;
    let value = match *packet.extended() {
        Extended::AethAtomic(_, value) => Some(dev.answer_order.bytes(value)),
        _ => None,
    };
    let message = r.begun.iter().find(|m| psn.since(m.first) < m.packets);
    let message = message.filter(|m| m.asks() && m.is_atomic() == value.is_some()).copied();
    let outstanding = psn.since(r.oldest) < r.top.since(r.oldest);
    let Some((message, due)) = message.filter(|_| outstanding).zip(r.answer_due(psn)) else {
        // A repeated packet of earlier responses.
        dev.counters.count(Activity::Duplicates);
        return;
    };
    if psn != due {
        return go_back(qp, dev, due, now);
    }
    let offset = u64::from(psn.since(message.first)) * mtu;
    let payload = value.as_ref().map_or(packet.payload(), |bytes| bytes);
    let control = message.control;
    let laid = if payload.len() as u64 == message.length.saturating_sub(offset).min(mtu) {
        dev.wqe
            .reload(&qp.sq, &control, qp.qpn)
            .and_then(|()| dev.wqe.scatter(dev.mrs.of(qp.domain), message.data_at(), offset, payload))
    } else {
        Err(WcStatus::BadResponse)
    };
    // A response acknowledges all requests before it (IBA 9.7.5.1.2).
    r.advance(if laid.is_ok() { psn.add(1) } else { message.first }, now);
    r.gap = false;
    r.rnr_until = None;
    settle(qp, dev);
    if let Err(status) = laid {
        fail_oldest(qp, dev, status);
    }
    dev.update_timer(qp);
    dev.schedule(qp);
}
