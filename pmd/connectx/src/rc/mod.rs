//! Reliable connections (IBA 9.7): sending, receiving, acknowledging.

pub(super) mod answer;
pub(super) mod atomic;
pub(super) mod middle;
mod reach;
mod read;
mod refusal;
pub(super) mod requester;
pub(super) mod responder;
pub(super) mod series;

use ib_wire::Psn;
use ib_wire::packet::{Aeth, Bth, Credit, Extended, Opcode, Syndrome};

use super::addressing;
use super::connection::Connection;
use super::connection::responder::Reply;
use super::device::{Device, Unsent};
use super::object::qp::Qp;
use super::port::Port;

/// Queue pair attributes that a connection needs to build packets.
#[derive(Clone, Copy)]
struct QpFace {
    port: u8,
    qpn: u32,
    pkey: ib_wire::PKey,
    xrc: bool,
}

impl QpFace {
    fn new(qp: &Qp, dev: &Device) -> Self {
        let pkey = dev.port(qp.port).map_or(ib_wire::PKey(0), |port| qp.pkey(&port.pkeys));
        Self { port: qp.port, qpn: qp.qpn.get(), pkey, xrc: qp.kind.is_xrc() }
    }

    /// Base transport header of a packet of the connection.
    fn bth(&self, rc: &Connection, opcode: Opcode, psn: Psn) -> Bth {
        Bth {
            opcode: if self.xrc { opcode.with_xrc() } else { opcode },
            solicited: false,
            migrated: true,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            dest_qpn: rc.dest_qpn,
            ack_request: false,
            psn,
        }
    }
}

/// Sends the responses and the acknowledge that the responder owes, if any. Returns true if responses were
/// sent.
pub(crate) fn reply(qp: &mut Qp, dev: &mut Device) -> Result<bool, Unsent> {
    let owes = |qp: &Qp| qp.rc.as_ref().is_some_and(|rc| !rc.responder.answers.is_empty());
    let answered = owes(qp) && answer::send(qp, dev)?;
    if owes(qp) {
        dev.schedule_behind(qp);
        return Ok(answered);
    }
    let face = QpFace::new(qp, dev);
    let Some(rc) = &mut qp.rc else { return Ok(answered) };
    let (psn, syndrome) = match rc.responder.reply {
        None => return Ok(answered),
        Some(Reply::Ack) => (rc.responder.epsn.add(Psn::new(u32::MAX).get()), Syndrome::Ack(Credit::INVALID)),
        Some(Reply::Nak(psn, syndrome)) => (psn, syndrome),
    };
    let aeth = Aeth { syndrome, msn: rc.responder.msn };
    let bth = face.bth(rc, Opcode::RcAcknowledge, psn);
    let av = rc.av;
    let flow = face.qpn;
    let frame = |port: &mut Port| addressing::address(port, &av, &bth, &Extended::Aeth(aeth), flow, false);
    match dev.send(face.port, frame, 0, |_, _| {}) {
        Err(_) if answered => {
            dev.schedule_behind(qp);
            return Ok(true);
        }
        gone => gone?,
    }
    dev.counters.count(super::counters::Activity::Acknowledges);
    rc.responder.reply = None;
    rc.responder.since_ack = 0;
    Ok(answered)
}
