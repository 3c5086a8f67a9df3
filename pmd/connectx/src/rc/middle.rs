//! Sends the packets between the first and the last one of a message. They differ only in their numbers, so
//! the checks are done once and the headers are built once. Every exception takes the general path,
//! [`requester::step`](super::requester::step).

use ib_wire::packet::{Extended, Opcode, Series};

use super::QpFace;
use super::requester::{asks_for_acknowledge, opcode};
use crate::addressing;
use crate::connection::requester::WINDOW;
use crate::counters::Activity;
use crate::device::Device;
use crate::frame::Destination;
use crate::object::qp::{Qp, QpKind};
use crate::port::Port;
use crate::wqe::Pieces;
use hca::PortState;
use prm::SendOpcode;

/// Sends at most `most` packets of the message whose previous packet was just sent, up to the last but one.
/// Returns the number sent. If it is less than possible, the next packet takes the general path, which
/// reports the reason.
pub(crate) fn send(qp: &mut Qp, dev: &mut Device, most: usize) -> usize {
    let Some(rc) = &qp.rc else { return 0 };
    let r = &rc.requester;
    let Some(message) = r.begun.get(r.cursor) else { return 0 };
    let k = r.next.since(message.first);
    if k == 0 || k.saturating_add(1) >= message.packets {
        return 0;
    }
    let plain = qp.kind == QpKind::Rc && qp.state.goes_on_sending() && message.fault.is_none();
    // Retransmissions are counted by the general path.
    if !plain || r.rnr_until.is_some() || r.next != r.top {
        return 0;
    }
    let operation = message.control.operation();
    let opcode = operation.filter(|o| *o != SendOpcode::RdmaRead).and_then(|o| opcode(o, false, false));
    let Some(opcode @ (Opcode::RcSendMiddle | Opcode::RcWriteMiddle)) = opcode else { return 0 };
    let room = WINDOW.saturating_sub(r.next.since(r.oldest));
    let count = (message.packets - 1 - k).min(room).min(most as u32);
    // Only InfiniBand headers of packets that leave through the cable are built here.
    let goes_out = |port: &Port| {
        port.state == PortState::Active
            && port.ethernet.is_none()
            && port.cable.is_some()
            && !port.has_lid(rc.av.dlid)
    };
    if !dev.ports.get(usize::from(qp.port)).is_some_and(goes_out) {
        return 0;
    }
    if count == 0 || dev.wqe.reload(&qp.sq, &message.control, qp.qpn).is_err() {
        return 0;
    }
    let (data_at, mtu) = (message.data_at(), rc.mtu.bytes());
    let face = QpFace::new(qp, dev);
    let Device { ports, wqe, mrs, counters, .. } = dev;
    let Some(port) = ports.get_mut(usize::from(face.port)) else { return 0 };
    let bth = face.bth(rc, opcode, r.next);
    let Ok(outgoing) = addressing::address(port, &rc.av, &bth, &Extended::Bare, face.qpn, false) else {
        return 0;
    };
    let (Some(headers), Destination::Out, Some(cable)) =
        (outgoing.headers(), outgoing.destination, &mut port.cable)
    else {
        return 0;
    };
    let Ok(series) = Series::new(headers, mtu) else { return 0 };
    let (len, keys) = (series.packet_len(), mrs.of(qp.domain));
    let (mut next, mut sent) = (r.next, 0);
    let crcs = cable.crcs();
    let mut pieces = Pieces::new();
    while sent < count {
        let offset = u64::from(k + sent) * mtu as u64;
        let whole = wqe.whole(keys, data_at, offset, mtu);
        if whole.is_none() && wqe.gather(keys, data_at, offset, mtu, &mut pieces).is_err() {
            break;
        }
        let Ok(out) = cable.place(len) else { break };
        let Some(mut frame) = series.write(next, asks_for_acknowledge(r, next), out) else { break };
        match &whole {
            Some(memory) => _ = memory.read(frame.payload_mut()),
            None => wqe.copy(&pieces, frame.payload_mut()),
        }
        crcs.end(frame);
        if cable.commit(len, crcs).is_err() {
            break;
        }
        next = next.add(1);
        sent += 1;
    }
    counters.add(Activity::Sent, sent.into());
    if let Some(rc) = &mut qp.rc {
        rc.requester.next = next;
        rc.requester.top = next;
    }
    sent as usize
}
