//! The responder of a connection: order, duplicates, receives, acknowledges.

use std::time::{Duration, Instant};

use ib_wire::Psn;
use ib_wire::packet::{Extended, NakCode, Opcode, Syndrome};

use super::refusal::{INVALID, Refusal};
use crate::connection::responder::{Incoming, Reply};
use crate::counters::{Activity, DropReason};
use crate::device::{Device, Face, Receive};
use crate::event::DeviceEvent;
use crate::frame::Arrived;
use crate::object::mr::{Member, Use};
use crate::object::qp::Qp;
use crate::queue_counters::QueueCount;
use crate::scatter::{ScatterError, Spot};
use hca::{AsyncEvent, QpState, WcStatus};
use prm::{Cqe, CqeOpcode};

/// Timeout of a SEND into a shared receive queue between two packets. When it expires, the connection ends
/// with an event.
///
/// The IBA has no such timer, but until then the message holds a shared receive. A peer that starts one
/// message on each of many connections and completes none would otherwise hold all receives. Messages that
/// hold no shared receive wait without limit.
const SHARED_RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Handles a request packet.
pub(crate) fn request(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, now: Instant) {
    let before = qp.rc.as_ref().map(|rc| rc.responder.epsn);
    take_in(qp, dev, packet);
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.responder;
    if Some(r.epsn) != before {
        wait_for_more(qp, dev, now);
    }
}

/// Sets the deadline of the next packet, if the message continues and holds a shared receive.
#[inline]
fn wait_for_more(qp: &mut Qp, dev: &mut Device, now: Instant) {
    let shared = qp.receives.are_shared();
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.responder;
    let holds = shared && matches!(r.incoming, Some(Incoming::Send { .. }));
    let by = holds.then(|| now + SHARED_RECEIVE_TIMEOUT);
    if by != r.goes_on_by {
        r.goes_on_by = by;
        dev.update_timer(qp);
    }
}

/// Receives a packet of a SEND. The caller has checked that it is the next in order, continues the message,
/// has a permitted length and has no extended header. Returns false if the packet ended the connection or
/// there was no receive.
#[inline]
pub(crate) fn follow(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, last: bool, now: Instant) -> bool {
    let member = qp.domain;
    let outcome = send(qp, dev, packet, member, last);
    let well = outcome.is_ok();
    conclude(qp, dev, packet, outcome);
    if well {
        wait_for_more(qp, dev, now);
    }
    well
}

/// Ends a connection whose message does not continue.
pub(crate) fn expire(qp: &mut Qp, dev: &mut Device, now: Instant) {
    let Some(rc) = &mut qp.rc else { return };
    if rc.responder.goes_on_by.is_some_and(|at| at <= now) {
        rc.responder.goes_on_by = None;
        // No completion can report the reason, so an event does.
        dev.fail_qp_unheard(qp);
    }
}

fn take_in(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) {
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.responder;
    let psn = packet.bth().psn;
    if psn != r.epsn {
        if psn.is_at_or_after(r.epsn) {
            dev.counters.drop_packet(DropReason::OutOfSequence);
            dev.queue_counters.count(qp.counter_set, QueueCount::OutOfSequence);
            if !r.refused {
                r.refused = true;
                r.reply = Some(Reply::Nak(r.epsn, Syndrome::Nak(NakCode::SequenceError)));
                dev.counters.count(Activity::SequenceNaks);
            }
        } else {
            // IBA 9.7.5.1.4: a duplicate SEND or WRITE is acknowledged and not executed again; a READ is
            // executed again. A duplicate atomic operation gets its original response.
            dev.counters.count(Activity::Duplicates);
            dev.queue_counters.count(qp.counter_set, QueueCount::DuplicateRequests);
            match packet.bth().opcode {
                Opcode::RcReadRequest => super::read::repeat(qp, dev, packet),
                Opcode::RcCompareSwap | Opcode::RcFetchAdd => super::atomic::repeat(qp, dev, packet),
                _ => _ = r.reply.get_or_insert(Reply::Ack),
            }
        }
        return dev.schedule(qp);
    }
    if qp.state == QpState::Rtr && r.msn == Psn::default() && r.since_ack == 0 {
        dev.events.raise(AsyncEvent::CommunicationEstablished(qp.qpn));
    }
    let outcome = execute(qp, dev, packet);
    if outcome.is_ok() {
        dev.accepted = Some(qp.slot);
    }
    conclude(qp, dev, packet, outcome);
}

/// Updates the state after the next packet in order. Returns true if it ended its message.
#[inline]
fn conclude(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, outcome: Result<bool, Refusal>) {
    match outcome {
        Ok(ended) => {
            let Some(rc) = &mut qp.rc else { return };
            let r = &mut rc.responder;
            if ended {
                r.msn = r.msn.add(1);
            }
            let owed = r.pass(packet.bth().ack_request);
            if let Some(what) = request_counter(packet.bth().opcode) {
                dev.queue_counters.count(qp.counter_set, what);
            }
            if owed {
                dev.schedule(qp);
            }
        }
        Err(refusal) => refuse(qp, dev, packet.bth().psn, refusal),
    }
}

/// Handles the refusal of the next packet in order.
#[cold]
fn refuse(qp: &mut Qp, dev: &mut Device, psn: Psn, refusal: Refusal) {
    match refusal {
        Refusal::NotReady => {
            let Some(rc) = &mut qp.rc else { return };
            let r = &mut rc.responder;
            r.refused = true;
            r.reply = Some(Reply::Nak(psn, Syndrome::RnrNak(r.rnr)));
            dev.counters.count(Activity::RnrNaks);
            dev.queue_counters.count(qp.counter_set, QueueCount::OutOfBuffer);
            dev.schedule(qp);
        }
        Refusal::Fatal(code, receive) => {
            if let Some(rc) = &mut qp.rc {
                rc.responder.refused = true;
                rc.responder.reply = Some(Reply::Nak(psn, Syndrome::Nak(code)));
                if receive.is_some() {
                    rc.responder.incoming = None;
                }
            }
            // An event reports what no receive can (IBA 9.9.3).
            match (receive, code) {
                (Some((counter, status)), _) => {
                    dev.fail_receive(&Face::receiving(qp, dev), counter, status);
                }
                (None, NakCode::RemoteAccess) => dev.events.push(DeviceEvent::QpAccessError(qp.qpn)),
                (None, NakCode::InvalidRequest) => dev.events.push(DeviceEvent::QpRequestError(qp.qpn)),
                (None, _) => dev.events.raise(AsyncEvent::QpFatal(qp.qpn)),
            }
            dev.fail_qp(qp);
            dev.schedule(qp);
        }
    }
}

/// The counter of a request's first packet; SENDs have none.
const fn request_counter(opcode: Opcode) -> Option<QueueCount> {
    Some(match opcode {
        Opcode::RcWriteFirst | Opcode::RcWriteOnly | Opcode::RcWriteOnlyImmediate => {
            QueueCount::WriteRequests
        }
        Opcode::RcReadRequest => QueueCount::ReadRequests,
        Opcode::RcCompareSwap | Opcode::RcFetchAdd => QueueCount::AtomicRequests,
        _ => return None,
    })
}

/// Executes the next request in order. Returns true if it ends its message.
fn execute(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) -> Result<bool, Refusal> {
    let member = super::reach::enter(qp, dev, packet)?;
    let Some(rc) = &mut qp.rc else { return Err(INVALID) };
    let opcode = packet.bth().opcode;
    let payload = packet.payload();
    let mtu = rc.mtu.bytes();
    let (first, last) = match opcode {
        Opcode::RcSendFirst | Opcode::RcWriteFirst => (true, false),
        Opcode::RcSendMiddle | Opcode::RcWriteMiddle => (false, false),
        Opcode::RcSendLast
        | Opcode::RcSendLastImmediate
        | Opcode::RcSendLastInvalidate
        | Opcode::RcWriteLast
        | Opcode::RcWriteLastImmediate => (false, true),
        Opcode::RcSendOnly
        | Opcode::RcSendOnlyImmediate
        | Opcode::RcSendOnlyInvalidate
        | Opcode::RcWriteOnly
        | Opcode::RcWriteOnlyImmediate => (true, true),
        Opcode::RcReadRequest => return super::read::request(qp, dev, packet, member).map(|()| true),
        Opcode::RcCompareSwap | Opcode::RcFetchAdd => {
            return super::atomic::request(qp, dev, packet, member).map(|()| true);
        }
        _ => return Err(INVALID),
    };
    let fits = match (first, last) {
        (_, false) => payload.len() == mtu,
        (false, true) => (1..=mtu).contains(&payload.len()),
        (true, true) => payload.len() <= mtu,
    };
    if !fits {
        let receive = rc.responder.take_receive().map(|counter| (counter, WcStatus::LocalLength));
        return Err(Refusal::Fatal(NakCode::InvalidRequest, receive));
    }
    let is_write = matches!(
        opcode,
        Opcode::RcWriteFirst
            | Opcode::RcWriteMiddle
            | Opcode::RcWriteLast
            | Opcode::RcWriteLastImmediate
            | Opcode::RcWriteOnly
            | Opcode::RcWriteOnlyImmediate
    );
    if is_write && !qp.remote.write {
        return Err(INVALID);
    }
    match (rc.responder.incoming, first, is_write) {
        (None, true, true) | (Some(Incoming::Write { .. }), false, true) => {
            write(qp, dev, packet, member, last)
        }
        (None, true, false) | (Some(Incoming::Send { .. }), false, false) => {
            send(qp, dev, packet, member, last)
        }
        _ => Err(INVALID),
    }
}

fn send(
    qp: &mut Qp,
    dev: &mut Device,
    packet: &Arrived<'_>,
    member: Member,
    last: bool,
) -> Result<bool, Refusal> {
    let face = Face::receiving(qp, dev);
    let Some(rc) = &mut qp.rc else { return Err(INVALID) };
    let (counter, received, mut spot) = match rc.responder.incoming {
        Some(Incoming::Send { counter, received, spot }) => (counter, received, spot),
        _ => (take(dev, &mut qp.receives)?, 0, Spot::default()),
    };
    let payload = packet.payload();
    let total = received + payload.len() as u64;
    // If the packet is refused from here on, the refusal completes the receive.
    dev.lay_down(&qp.receives, counter, received, &mut spot, payload).map_err(|error| match error {
        ScatterError::Length => {
            Refusal::Fatal(NakCode::InvalidRequest, Some((counter, WcStatus::LocalLength)))
        }
        ScatterError::Protection => {
            Refusal::Fatal(NakCode::RemoteOperation, Some((counter, WcStatus::LocalProtection)))
        }
    })?;
    if let Extended::Ieth(rkey) = *packet.extended() {
        // The key is invalidated before the message is reported. If that fails, the receive completes with
        // the sender's error.
        dev.mrs.invalidate(member, rkey.0).map_err(|_| {
            Refusal::Fatal(NakCode::RemoteAccess, Some((counter, WcStatus::RemoteInvalidRequest)))
        })?;
    }
    rc.responder.incoming = (!last).then_some(Incoming::Send { counter, received: total, spot });
    if last {
        let opcode = match packet.bth().opcode {
            Opcode::RcSendLastImmediate | Opcode::RcSendOnlyImmediate => CqeOpcode::ReceiveSendImm,
            Opcode::RcSendLastInvalidate | Opcode::RcSendOnlyInvalidate => CqeOpcode::ReceiveSendInvalidate,
            _ => CqeOpcode::ReceiveSend,
        };
        let dest_qpn = rc.dest_qpn;
        complete(dev, &face, packet, counter, total as u32, opcode, dest_qpn);
    }
    Ok(last)
}

fn write(
    qp: &mut Qp,
    dev: &mut Device,
    packet: &Arrived<'_>,
    member: Member,
    last: bool,
) -> Result<bool, Refusal> {
    const ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, None);
    let face = Face::receiving(qp, dev);
    let Some(rc) = &mut qp.rc else { return Err(INVALID) };
    let payload = packet.payload();
    let (rkey, address, left, length) = match (rc.responder.incoming, packet.extended().reth()) {
        (Some(Incoming::Write { rkey, address, left, length }), _) => (rkey, address, left, length),
        (_, Some(reth)) => {
            let length = u64::from(reth.length);
            // The whole range is checked at once; a WRITE of zero bytes names no memory (IBA 9.7.5.2.3).
            if length > 0
                && dev
                    .mrs
                    .of(member)
                    .translate(reth.rkey.0, reth.address, length as usize, Use::RemoteWrite)
                    .is_err()
            {
                return Err(ACCESS);
            }
            (reth.rkey.0, reth.address, length, reth.length)
        }
        _ => return Err(INVALID),
    };
    let n = payload.len() as u64;
    if n > left || last && n != left {
        return Err(INVALID);
    }
    // The key may have been invalidated since the first packet. It is checked before a receive is taken,
    // which would otherwise be lost.
    if n > 0 {
        dev.mrs.of(member).translate(rkey, address, payload.len(), Use::RemoteWrite).map_err(|_| ACCESS)?;
    }
    let immediate =
        matches!(packet.bth().opcode, Opcode::RcWriteLastImmediate | Opcode::RcWriteOnlyImmediate);
    let counter = if immediate { Some(take(dev, &mut qp.receives)?) } else { None };
    dev.mrs.of(member).write(rkey, address, payload, Use::RemoteWrite).map_err(|_| ACCESS)?;
    rc.responder.incoming =
        (!last).then_some(Incoming::Write { rkey, address: address.wrapping_add(n), left: left - n, length });
    if let Some(counter) = counter {
        let dest_qpn = rc.dest_qpn;
        complete(dev, &face, packet, counter, length, CqeOpcode::ReceiveWriteImm, dest_qpn);
    }
    Ok(last)
}

/// Takes a receive for the start of a message.
fn take(dev: &mut Device, receives: &mut crate::object::qp::Receives) -> Result<u16, Refusal> {
    match dev.take_receive(receives) {
        Receive::Taken(counter) => Ok(counter),
        Receive::Empty => Err(Refusal::NotReady),
        Receive::Broken => Err(Refusal::Fatal(NakCode::RemoteOperation, None)),
    }
}

/// Completes a receive with the fields of the message's last packet.
pub(crate) fn complete(
    dev: &mut Device,
    face: &Face,
    packet: &Arrived<'_>,
    counter: u16,
    length: u32,
    opcode: CqeOpcode,
    source: ib_wire::Qpn,
) {
    let mut cqe = Cqe::default();
    cqe.slid.set(packet.slid.0);
    cqe.flags_rqpn.set(u32::from(packet.sl.get()) << 24 | source.get());
    cqe.byte_cnt.set(length);
    cqe.wqe_counter.set(counter);
    match *packet.extended() {
        Extended::Immediate(imm) | Extended::RethImmediate(_, imm) => {
            cqe.imm_inval_pkey.set(u32::from_be_bytes(imm));
        }
        Extended::Ieth(rkey) => cqe.imm_inval_pkey.set(rkey.0),
        _ => {}
    }
    dev.complete_receive(face, cqe, opcode, packet.bth().solicited);
}
