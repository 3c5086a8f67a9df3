//! RDMA READ (IBA 9.7.5.1.6): what the responder answers, and what the requester does with the answer.

use std::time::Instant;

use ib_wire::packet::{Aeth, Credit, Extended, NakCode, Opcode, Syndrome};

use super::QpFace;
use super::refusal::{INVALID, Refusal};
use super::requester::{MAX_ANSWER, fail_oldest, go_back, settle};
use crate::addressing;
use crate::connection::responder::{Read, Reply};
use crate::counters::{Activity, DropReason};
use crate::device::{Device, Unsent};
use crate::event::DeviceEvent;
use crate::frame::Arrived;
use crate::object::mr::Use;
use crate::object::qp::Qp;
use crate::wqe::{Pieces, gather_remote};
use hca::{QpState, WcStatus};

/// Packets of answers that one queue pair sends in its turn.
const BURST: usize = 16;

/// What a request asks for, if it may.
fn wanted(qp: &Qp, dev: &Device, packet: &Arrived<'_>) -> Result<(Read, u32), Refusal> {
    let (Some(rc), Some(reth)) = (&qp.rc, packet.extended().reth()) else { return Err(INVALID) };
    let packets = reth.length.div_ceil(rc.mtu.bytes() as u32).max(1);
    if !qp.remote.read || !packet.payload().is_empty() || packets > MAX_ANSWER {
        return Err(INVALID);
    }
    let (rkey, address, len) = (reth.rkey.0, reth.address, reth.length as usize);
    // Who reads nothing names no memory.
    if len > 0 && dev.mrs.of(qp.domain).translate(rkey, address, len, Use::RemoteRead).is_err() {
        return Err(Refusal::Fatal(NakCode::RemoteAccess, None));
    }
    let read = Read { psn: packet.bth().psn, rkey, address, left: reth.length, begun: false, again: false };
    Ok((read, packets))
}

/// Takes a request in that is next in order. It has as many PSNs as its answer has packets.
pub(super) fn request(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) -> Result<(), Refusal> {
    let (read, packets) = wanted(qp, dev, packet)?;
    let depth = qp.remote.reads_in;
    let Some(rc) = &mut qp.rc else { return Err(INVALID) };
    if rc.responder.incoming.is_some() {
        return Err(INVALID);
    }
    let reads = &mut rc.responder.reads;
    if reads.len() >= usize::from(depth) {
        // Who asks for another one has all that it had asked for again before.
        let again = reads.iter().position(|read| read.again).ok_or(INVALID)?;
        reads.remove(again);
    }
    reads.push_back(read);
    // Whoever calls counts the last one.
    rc.responder.epsn = rc.responder.epsn.add(packets - 1);
    dev.schedule(qp);
    Ok(())
}

/// Takes a request in that came before: it is answered again, from where the other end says (IBA 9.7.5.1.5).
pub(super) fn repeat(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) {
    let wanted = wanted(qp, dev, packet);
    let depth = usize::from(qp.remote.reads_in);
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.responder;
    match wanted {
        Ok((read, packets)) if packets <= r.epsn.since(read.psn) => {
            // In its place among those that are owed, and instead of the one that it repeats.
            r.reads.retain(|owed| owed.psn.since(read.psn) >= packets);
            if r.reads.len() < depth {
                let at = r.reads.partition_point(|owed| !owed.psn.is_at_or_after(read.psn));
                r.reads.insert(at, Read { again: true, ..read });
            }
        }
        // What it never was is no repetition.
        _ => dev.counters.drop_packet(DropReason::Unsupported),
    }
}

/// Sends what it can of the answers that are owed. True if any packet has gone; those that have not gone come in another turn.
pub(super) fn respond(qp: &mut Qp, dev: &mut Device) -> Result<bool, Unsent> {
    let face = QpFace::new(qp, dev);
    for sent in 0..BURST {
        let Some(rc) = &mut qp.rc else { return Ok(sent > 0) };
        let Some(read) = rc.responder.reads.front().copied() else { return Ok(sent > 0) };
        let mtu = rc.mtu.bytes() as u32;
        let len = read.left.min(mtu);
        let last = read.left <= mtu;
        let mut pieces = Pieces::new();
        if gather_remote(dev.mrs.of(qp.domain), read.rkey, read.address, len as usize, &mut pieces).is_err() {
            // The key has gone since.
            rc.responder.reads.clear();
            rc.responder.reply = Some(Reply::Nak(read.psn, Syndrome::Nak(NakCode::RemoteAccess)));
            dev.events.push(DeviceEvent::QpAccessError(qp.qpn));
            dev.fail_qp(qp);
            return Ok(true);
        }
        let aeth = Aeth { syndrome: Syndrome::Ack(Credit::INVALID), msn: rc.responder.msn };
        let (opcode, extended) = match (read.begun, last) {
            (false, true) => (Opcode::RcReadResponseOnly, Extended::Aeth(aeth)),
            (false, false) => (Opcode::RcReadResponseFirst, Extended::Aeth(aeth)),
            (true, false) => (Opcode::RcReadResponseMiddle, Extended::Bare),
            (true, true) => (Opcode::RcReadResponseLast, Extended::Aeth(aeth)),
        };
        let bth = face.bth(rc, opcode, read.psn);
        let av = rc.av;
        dev.send(
            face.port,
            |port| addressing::address(port, &av, bth, extended, face.qpn, false),
            len as usize,
            |wqe, out| wqe.copy(&pieces, out),
        )?;
        if last {
            rc.responder.reads.pop_front();
        } else if let Some(front) = rc.responder.reads.front_mut() {
            front.psn = read.psn.add(1);
            front.address = read.address.wrapping_add(len.into());
            front.left = read.left - len;
            front.begun = true;
        }
    }
    Ok(true)
}

/// Takes a packet of an answer in.
pub(crate) fn response(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, now: Instant) {
    if qp.state != QpState::Rts {
        return dev.counters.drop_packet(DropReason::QueuePairState);
    }
    let Some(rc) = &mut qp.rc else { return };
    let mtu = rc.mtu.bytes() as u64;
    let r = &mut rc.requester;
    let psn = packet.bth().psn;
    let message = r.begun.iter().find(|m| psn.since(m.first) < m.packets).filter(|m| m.is_read()).copied();
    let asked = psn.since(r.oldest) < r.top.since(r.oldest);
    let Some((message, due)) = message.filter(|_| asked).zip(r.read_due(psn)) else {
        // What came before comes again.
        dev.counters.count(Activity::Duplicates);
        return;
    };
    if psn != due {
        return go_back(qp, dev, due, now);
    }
    let offset = u64::from(psn.since(message.first)) * mtu;
    let payload = packet.payload();
    let control = message.control;
    let laid = if payload.len() as u64 == message.length.saturating_sub(offset).min(mtu) {
        dev.wqe
            .reload(&qp.sq, control.index, control.len())
            .and_then(|()| dev.wqe.scatter(dev.mrs.of(qp.domain), message.data_at(), offset, payload))
    } else {
        Err(WcStatus::BadResponse)
    };
    // An answer acknowledges all that was asked before it (IBA 9.7.5.1.2).
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
