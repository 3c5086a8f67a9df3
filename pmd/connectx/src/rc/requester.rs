//! The requester of a connection: segmentation, window, acknowledges, go-back-N, retries.

use std::time::Instant;

use ib_wire::packet::{Aeth, AtomicEth, Extended, NakCode, Opcode, Reth, Syndrome};
use ib_wire::{Psn, Rkey};

use super::QpFace;
use crate::addressing;
use crate::connection::requester::{Message, Requester, WINDOW};
use crate::counters::{Activity, DropReason};
use crate::device::{Device, Face, Step};
use crate::object::mr::Member;
use crate::object::qp::{Qp, QpKind};
use crate::queue_counters::QueueCount;
use crate::umr;
use crate::wqe::{self, Pieces};
use hca::{QpState, WcStatus};
use prm::SendOpcode;

/// Most messages started and not completed.
const MAX_MESSAGES: usize = 512;
/// An acknowledge is requested at least once in this many packets.
const ACK_EVERY: u32 = 16;
/// Most packets of an RDMA READ response: PSNs are compared within half their range.
pub(super) const MAX_ANSWER: u32 = 1 << 22;
/// Longest message in bytes (IBA 9.7.1).
const MAX_MESSAGE: u64 = 1 << 31;
/// Operand and result length of an atomic operation in bytes (IBA 9.4.5).
const ATOMIC_LEN: u64 = 8;

/// Completes finished requests in order.
pub(super) fn settle(qp: &mut Qp, dev: &mut Device) {
    loop {
        let face = Face::new(qp);
        let Some(message) = qp.rc.as_mut().and_then(|rc| rc.requester.settled()) else { return };
        match message.fault {
            Some(status) => {
                dev.fail_send(&face, &message.control, status);
                dev.fail_qp(qp);
                return;
            }
            None if message.control.signalled => {
                dev.complete_send(&face, &message.control, message.length as u32)
            }
            None => {}
        }
    }
}

/// Starts the next posted work request.
fn begin(qp: &mut Qp, dev: &mut Device) -> bool {
    let Some(rc) = &mut qp.rc else { return false };
    let broken = rc.requester.begun.back().is_some_and(|m| m.fault.is_some());
    if broken || rc.requester.begun.len() >= MAX_MESSAGES {
        return false;
    }
    let Some(control) = wqe::peek(&qp.sq) else { return false };
    let waits = control.ordered && !rc.requester.begun.is_empty()
        || control.fenced && rc.requester.asked_before(usize::MAX) > 0;
    if waits {
        return false;
    }
    let xrc = qp.kind == QpKind::XrcInitiator;
    let mut message = Message { control, xrc, first: rc.requester.next, packets: 0, length: 0, fault: None };
    match measure(&message, qp.domain, qp.qpn, &qp.sq, dev) {
        Ok(None) => {}
        Ok(Some(length)) => {
            message.length = length;
            message.packets = length.div_ceil(rc.mtu.bytes() as u64).max(1) as u32;
            let refused = qp.remote.reads_out == 0 || message.packets > MAX_ANSWER;
            if message.asks() && refused {
                message.fault = Some(WcStatus::LocalQpOperation);
            }
        }
        Err(status) => message.fault = Some(status),
    }
    qp.sq.head = qp.sq.head.wrapping_add(control.blocks);
    if message.packets == 0 && message.fault.is_none() {
        rc.requester.cursor += 1;
    }
    rc.requester.begun.push_back(message);
    true
}

/// Bytes that a work request sends; `None` if it does not send.
fn measure(
    message: &Message,
    member: Member,
    qpn: ib_wire::Qpn,
    sq: &crate::object::send::SendQueue,
    dev: &mut Device,
) -> Result<Option<u64>, WcStatus> {
    dev.wqe.load(sq, &message.control, qpn)?;
    match message.control.operation() {
        Some(SendOpcode::Nop) => Ok(None),
        Some(SendOpcode::Umr) => umr::execute(dev, &message.control, member).map(|()| None),
        Some(
            SendOpcode::Send
            | SendOpcode::SendImm
            | SendOpcode::SendInvalidate
            | SendOpcode::RdmaWrite
            | SendOpcode::RdmaWriteImm
            | SendOpcode::RdmaRead,
        ) => {
            if message.xrc {
                dev.wqe.xrc()?;
            }
            let length = dev.wqe.data_len(message.data_at())?;
            if length > MAX_MESSAGE { Err(WcStatus::LocalLength) } else { Ok(Some(length)) }
        }
        Some(SendOpcode::CompareSwap | SendOpcode::FetchAdd) => {
            dev.wqe.atomic(message.operation_at())?;
            // The peer's memory must not change if the result cannot be written here.
            let room = dev.wqe.writable(dev.mrs.of(member), message.data_at())?;
            if room == ATOMIC_LEN { Ok(Some(room)) } else { Err(WcStatus::LocalLength) }
        }
        _ => Err(WcStatus::LocalQpOperation),
    }
}

/// Sends the next packet, new or retransmitted.
pub(crate) fn step(qp: &mut Qp, dev: &mut Device, now: Instant) -> Step {
    let face = QpFace::new(qp, dev);
    let Some(rc) = &mut qp.rc else { return Step::Idle };
    let stands = !qp.state.goes_on_sending();
    if stands || rc.requester.rnr_until.is_some() || rc.requester.window_is_full() {
        return Step::Idle;
    }
    if rc.requester.cursor >= rc.requester.begun.len() {
        if qp.state != QpState::Rts || !begin(qp, dev) {
            return Step::Idle;
        }
        if qp.rc.as_ref().and_then(|rc| rc.requester.begun.back()).is_some_and(Message::sends_nothing) {
            settle(qp, dev);
        }
    }
    let Some(rc) = &mut qp.rc else { return Step::Idle };
    if rc.requester.cursor >= rc.requester.begun.len() {
        // The request sends no packets.
        return Step::Sent;
    }
    let Some(message) = rc.requester.begun.get(rc.requester.cursor).copied() else { return Step::Idle };
    if message.fault.is_some() {
        return Step::Idle;
    }
    let asks = message.asks();
    // A retransmitted one is already counted.
    let waits = asks && rc.requester.asked_before(rc.requester.cursor) >= qp.remote.reads_out.into();
    if waits {
        return Step::Idle;
    }
    match packet(qp, dev, &face, &message) {
        Ok(Step::Sent) => {}
        Ok(other) => return other,
        Err(status) => {
            if let Some(rc) = &mut qp.rc
                && let Some(m) = rc.requester.begun.get_mut(rc.requester.cursor)
            {
                m.fault = Some(status);
            }
            // It fails as soon as all requests before it have completed.
            settle(qp, dev);
            return Step::Idle;
        }
    }
    let Some(rc) = &mut qp.rc else { return Step::Idle };
    let r = &mut rc.requester;
    // A READ or atomic request consumes the PSNs of its whole response at once.
    let next = if asks { message.end() } else { r.next.add(1) };
    if r.next == r.top {
        r.top = next;
    } else {
        dev.counters.count(Activity::Retransmitted);
    }
    r.next = next;
    if r.next == message.end() {
        r.cursor += 1;
        // Skips work requests without packets.
        while r.begun.get(r.cursor).is_some_and(|m| m.packets == 0 && m.fault.is_none()) {
            r.cursor += 1;
        }
    }
    if r.ack_by.is_none() {
        r.ack_by = r.ack_time(now);
    }
    Step::Sent
}

fn packet(qp: &Qp, dev: &mut Device, face: &QpFace, message: &Message) -> Result<Step, WcStatus> {
    let Some(rc) = &qp.rc else { return Ok(Step::Idle) };
    let r = &rc.requester;
    let mtu = rc.mtu.bytes();
    let k = r.next.since(message.first);
    let offset = u64::from(k) * mtu as u64;
    let len = message.length.saturating_sub(offset).min(mtu as u64) as usize;
    let (first, last) = (k == 0, k + 1 == message.packets);
    dev.wqe.reload(&qp.sq, &message.control, qp.qpn)?;
    let mut pieces = Pieces::new();
    let asks = message.asks();
    let len = if asks { 0 } else { len };
    let keys = dev.mrs.of(qp.domain);
    let whole = if asks { None } else { dev.wqe.whole(keys, message.data_at(), offset, len) };
    if !asks && whole.is_none() {
        dev.wqe.gather(dev.mrs.of(qp.domain), message.data_at(), offset, len, &mut pieces)?;
    }
    let operation = message.control.operation().ok_or(WcStatus::LocalQpOperation)?;
    let opcode = opcode(operation, first, last).ok_or(WcStatus::LocalQpOperation)?;
    let imm = message.control.imm;
    let extended = match operation {
        SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm if first => {
            let remote = dev.wqe.remote(message.operation_at())?;
            let reth = Reth {
                address: remote.address.get(),
                rkey: Rkey(remote.rkey.get()),
                length: message.length as u32,
            };
            if last && operation == SendOpcode::RdmaWriteImm {
                Extended::RethImmediate(reth, imm)
            } else {
                Extended::Reth(reth)
            }
        }
        // The whole response, or the part not yet received.
        SendOpcode::RdmaRead => {
            let remote = dev.wqe.remote(message.operation_at())?;
            Extended::Reth(Reth {
                address: remote.address.get().wrapping_add(offset),
                rkey: Rkey(remote.rkey.get()),
                length: message.length.saturating_sub(offset) as u32,
            })
        }
        SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
            let at = message.operation_at();
            let (remote, operands) = (dev.wqe.remote(at)?, dev.wqe.atomic(at)?);
            Extended::Atomic(AtomicEth {
                address: remote.address.get(),
                rkey: Rkey(remote.rkey.get()),
                swap_add: operands.swap_add.get(),
                compare: operands.compare.get(),
            })
        }
        SendOpcode::SendImm | SendOpcode::RdmaWriteImm if last => Extended::Immediate(imm),
        SendOpcode::SendInvalidate if last => Extended::Ieth(Rkey(u32::from_be_bytes(imm))),
        _ => Extended::Bare,
    };
    let extended = if message.xrc { extended.with_xrc(dev.wqe.xrc()?) } else { extended };
    let mut bth = face.bth(rc, opcode, r.next);
    // A response is an acknowledge.
    bth.solicited = !asks && last && message.control.solicited;
    bth.ack_request = !asks && (last || asks_for_acknowledge(r, r.next));
    let sent = dev.send(
        face.port,
        |port| addressing::address(port, &rc.av, &bth, &extended, face.qpn, false),
        len,
        |wqe, out| match &whole {
            Some(memory) => _ = memory.read(out),
            None => wqe.copy(&pieces, out),
        },
    );
    Ok(if sent.is_ok() { Step::Sent } else { Step::Blocked })
}

/// True if the packet with this PSN requests an acknowledge although it does not end its message.
#[inline(always)]
pub(super) fn asks_for_acknowledge(r: &Requester, psn: Psn) -> bool {
    psn.get() % ACK_EVERY == ACK_EVERY - 1 || psn.since(r.oldest) + 1 >= WINDOW
}

pub(super) const fn opcode(operation: SendOpcode, first: bool, last: bool) -> Option<Opcode> {
    Some(match (operation, first, last) {
        (SendOpcode::Send | SendOpcode::SendImm | SendOpcode::SendInvalidate, true, false) => {
            Opcode::RcSendFirst
        }
        (SendOpcode::Send | SendOpcode::SendImm | SendOpcode::SendInvalidate, false, false) => {
            Opcode::RcSendMiddle
        }
        (SendOpcode::Send, false, true) => Opcode::RcSendLast,
        (SendOpcode::Send, true, true) => Opcode::RcSendOnly,
        (SendOpcode::SendImm, false, true) => Opcode::RcSendLastImmediate,
        (SendOpcode::SendImm, true, true) => Opcode::RcSendOnlyImmediate,
        (SendOpcode::SendInvalidate, false, true) => Opcode::RcSendLastInvalidate,
        (SendOpcode::SendInvalidate, true, true) => Opcode::RcSendOnlyInvalidate,
        (SendOpcode::RdmaRead, ..) => Opcode::RcReadRequest,
        (SendOpcode::CompareSwap, ..) => Opcode::RcCompareSwap,
        (SendOpcode::FetchAdd, ..) => Opcode::RcFetchAdd,
        (SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm, true, false) => Opcode::RcWriteFirst,
        (SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm, false, false) => Opcode::RcWriteMiddle,
        (SendOpcode::RdmaWrite, false, true) => Opcode::RcWriteLast,
        (SendOpcode::RdmaWrite, true, true) => Opcode::RcWriteOnly,
        (SendOpcode::RdmaWriteImm, false, true) => Opcode::RcWriteLastImmediate,
        (SendOpcode::RdmaWriteImm, true, true) => Opcode::RcWriteOnlyImmediate,
        _ => return None,
    })
}

/// Handles an acknowledge (IBA 9.7.5.1, 9.7.5.2).
pub(crate) fn acknowledge(qp: &mut Qp, dev: &mut Device, psn: Psn, aeth: Aeth, now: Instant) {
    if !qp.state.goes_on_sending() {
        return dev.counters.drop_packet(DropReason::QueuePairState);
    }
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.requester;
    let outstanding = r.top.since(r.oldest);
    let at = psn.since(r.oldest);
    if at >= outstanding {
        // A repeated last acknowledge is the result of a duplicate; anything else is a ghost acknowledge.
        if psn.add(1) != r.oldest {
            dev.counters.drop_packet(DropReason::StrayAcknowledge);
        }
        return;
    }
    // A response to an earlier request is missing.
    if let Some(due) = r.answer_due(psn)
        && (due != psn || matches!(aeth.syndrome, Syndrome::Ack(_)))
    {
        return go_back(qp, dev, due, now);
    }
    let mut fault = None;
    match aeth.syndrome {
        Syndrome::Ack(_) => {
            r.advance(psn.add(1), now);
            r.rnr_until = None;
        }
        Syndrome::Nak(NakCode::SequenceError) => {
            dev.queue_counters.count(qp.counter_set, QueueCount::SequenceErrors);
            r.advance(psn, now);
            if r.retries_left == 0 {
                fault = Some(WcStatus::RetryExceeded);
            } else {
                r.retries_left -= 1;
                r.seek(psn);
            }
        }
        Syndrome::RnrNak(timer) => {
            dev.queue_counters.count(qp.counter_set, QueueCount::ReceiverNotReady);
            r.advance(psn, now);
            if r.rnr_left == 0 {
                fault = Some(WcStatus::RnrRetryExceeded);
            } else {
                if r.rnr_retry != 7 {
                    r.rnr_left -= 1;
                }
                r.seek(psn);
                r.rnr_until = Some(now + timer.duration());
                r.ack_by = None;
            }
        }
        Syndrome::Nak(code) => {
            r.advance(psn, now);
            fault = Some(match code {
                NakCode::InvalidRequest => WcStatus::RemoteInvalidRequest,
                NakCode::RemoteAccess => WcStatus::RemoteAccess,
                NakCode::RemoteOperation => WcStatus::RemoteOperation,
                _ => WcStatus::BadResponse,
            });
        }
        Syndrome::Reserved(_) => return dev.counters.drop_packet(DropReason::Unsupported),
    }
    settle(qp, dev);
    if let Some(status) = fault {
        fail_oldest(qp, dev, status);
    }
    dev.update_timer(qp);
    dev.schedule(qp);
}

/// Requests a missing part of a response again, once until it arrives or the timeout expires.
pub(super) fn go_back(qp: &mut Qp, dev: &mut Device, psn: Psn, now: Instant) {
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.requester;
    r.advance(psn, now);
    let again = !std::mem::replace(&mut r.gap, true);
    let exceeded = again && r.retries_left == 0;
    if again {
        dev.queue_counters.count(qp.counter_set, QueueCount::ImpliedSequenceErrors);
    }
    if again && !exceeded {
        r.retries_left -= 1;
        r.seek(psn);
    }
    settle(qp, dev);
    if exceeded {
        fail_oldest(qp, dev, WcStatus::RetryExceeded);
    }
    dev.update_timer(qp);
    dev.schedule(qp);
}

/// Ends the connection with `status` for the oldest work request.
pub(super) fn fail_oldest(qp: &mut Qp, dev: &mut Device, status: WcStatus) {
    if qp.state == QpState::Err {
        return;
    }
    let face = Face::new(qp);
    if let Some(control) = qp.rc.as_mut().and_then(|rc| rc.requester.take_begun()) {
        dev.fail_send(&face, &control, status);
    }
    dev.fail_qp(qp);
}

/// Handles an expired deadline.
pub(crate) fn expire(qp: &mut Qp, dev: &mut Device, now: Instant) {
    let Some(rc) = &mut qp.rc else { return };
    let r = &mut rc.requester;
    if r.rnr_until.is_some_and(|at| at <= now) {
        r.rnr_until = None;
    }
    if r.ack_by.is_some_and(|at| at <= now) {
        r.ack_by = None;
        r.gap = false;
        dev.counters.count(Activity::Timeouts);
        dev.queue_counters.count(qp.counter_set, QueueCount::AcknowledgeTimeouts);
        if r.retries_left == 0 {
            return fail_oldest(qp, dev, WcStatus::RetryExceeded);
        }
        r.retries_left -= 1;
        r.seek(r.oldest);
    }
    dev.schedule(qp);
}
