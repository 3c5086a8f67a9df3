//! Reliable connections (IBA 9.7).

pub(super) mod requester;
pub(super) mod responder;

use ib_wire::packet::{Aeth, Bth, Credit, Extended, Opcode, Syndrome};
use ib_wire::{Mtu, Psn, Qpn};

use super::device::Device;
use super::frame::Outgoing;
use super::object::qp::Qp;
use super::port::{Blocked, Port};
use hca::{AddressVector, RcToReceive};
use requester::Requester;
use responder::{Reply, Responder};

/// Both halves of a connected queue pair and the way to its other end.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) av: AddressVector,
    pub(crate) dest_qpn: Qpn,
    pub(crate) mtu: Mtu,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
}

impl Connection {
    pub(crate) fn new(how: &RcToReceive) -> Self {
        Self {
            av: how.av,
            dest_qpn: how.dest_qpn,
            mtu: how.path_mtu,
            requester: Requester::default(),
            responder: Responder::new(how.rq_psn, how.min_rnr_timer),
        }
    }

    fn bth(&self, qp: &QpFace, opcode: Opcode, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            migrated: true,
            pkey: qp.pkey,
            fecn: false,
            becn: false,
            dest_qpn: self.dest_qpn,
            ack_request: false,
            psn,
        }
    }
}

/// What a connection needs to know of its queue pair to make packets.
#[derive(Clone, Copy)]
struct QpFace {
    port: u8,
    qpn: u32,
    pkey: ib_wire::PKey,
}

impl QpFace {
    fn new(qp: &Qp, dev: &Device) -> Self {
        let pkey = dev.port(qp.port).map_or(ib_wire::PKey(0), |port| qp.pkey(&port.pkeys));
        Self { port: qp.port, qpn: qp.qpn.get(), pkey }
    }
}

/// Sends the acknowledge that the responder owes, if any.
pub(crate) fn reply(qp: &mut Qp, dev: &mut Device) -> Result<(), Blocked> {
    let face = QpFace::new(qp, dev);
    let Some(rc) = &mut qp.rc else { return Ok(()) };
    let (psn, syndrome) = match rc.responder.reply {
        None => return Ok(()),
        Some(Reply::Ack) => (rc.responder.epsn.add(Psn::new(u32::MAX).get()), Syndrome::Ack(Credit::INVALID)),
        Some(Reply::Nak(psn, syndrome)) => (psn, syndrome),
    };
    let aeth = Aeth { syndrome, msn: rc.responder.msn };
    let bth = rc.bth(&face, Opcode::RcAcknowledge, psn);
    let av = rc.av;
    let flow = face.qpn;
    let frame = |port: &mut Port| Outgoing::new(port, &av, bth, Extended::Aeth(aeth), flow, false);
    dev.send(face.port, frame, 0, |_, _| {})?;
    dev.counters.count(super::counters::Activity::Acknowledges);
    rc.responder.reply = None;
    rc.responder.since_ack = 0;
    Ok(())
}
