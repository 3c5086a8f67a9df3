//! The requester of an unreliable connection: a work request completes when its last packet is sent.

use ib_wire::packet::{Bth, Extended, Opcode, Reth};
use ib_wire::{PKey, Rkey};

use crate::addressing;
use crate::connection::unreliable::Outgoing;
use crate::device::{Device, Face, Step};
use crate::object::qp::Qp;
use crate::umr;
use crate::wqe::{self, Control, Pieces};
use hca::{QpState, WcStatus};
use prm::{ControlSegment, RemoteAddressSegment, SendOpcode};

/// Longest message in bytes (IBA 9.8.2).
const MAX_MESSAGE: u64 = 1 << 31;

/// Sends the next packet.
pub(crate) fn step(qp: &mut Qp, dev: &mut Device) -> Step {
    let begun = qp.uc.as_ref().and_then(|uc| uc.outgoing);
    let control = match (qp.state, begun) {
        (QpState::Rts | QpState::SqDraining, Some(outgoing)) => outgoing.control,
        (QpState::Rts, None) => match wqe::peek(&qp.sq) {
            Some(control) => control,
            None => return Step::Idle,
        },
        (QpState::Sqe, _) => {
            dev.flush_sends(qp);
            return Step::Idle;
        }
        _ => return Step::Idle,
    };
    match advance(qp, dev, &control, begun) {
        Ok((step, outgoing)) => {
            let done = step == Step::Sent && outgoing.sent >= outgoing.length;
            if let Some(uc) = &mut qp.uc {
                // A request that was rejected before its first packet starts again from the beginning.
                uc.outgoing = (!done && (begun.is_some() || step == Step::Sent)).then_some(outgoing);
            }
            if done {
                qp.sq.head = qp.sq.head.wrapping_add(control.blocks);
                if control.signalled {
                    dev.complete_send(&Face::new(qp), &control, outgoing.length as u32);
                }
            }
            step
        }
        Err(status) => {
            dev.stop_sends(qp, &control, status);
            Step::Idle
        }
    }
}

/// Sends one packet of a work request and returns its progress.
fn advance(
    qp: &mut Qp,
    dev: &mut Device,
    control: &Control,
    begun: Option<Outgoing>,
) -> Result<(Step, Outgoing), WcStatus> {
    let operation = control.operation().ok_or(WcStatus::LocalQpOperation)?;
    let data_at = size_of::<ControlSegment>()
        + match operation {
            SendOpcode::Nop | SendOpcode::Umr => 0,
            SendOpcode::Send | SendOpcode::SendImm => 0,
            SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm => size_of::<RemoteAddressSegment>(),
            _ => return Err(WcStatus::LocalQpOperation),
        };
    let mut outgoing = match begun {
        Some(outgoing) => {
            dev.wqe.reload(&qp.sq, control, qp.qpn)?;
            outgoing
        }
        None => {
            dev.wqe.load(&qp.sq, control, qp.qpn)?;
            let within_device = Outgoing { control: *control, length: 0, sent: 0 };
            match operation {
                SendOpcode::Nop => return Ok((Step::Sent, within_device)),
                SendOpcode::Umr => {
                    umr::execute(dev, control, qp.domain)?;
                    return Ok((Step::Sent, within_device));
                }
                _ => {}
            }
            let length = dev.wqe.data_len(data_at)?;
            if length > MAX_MESSAGE {
                return Err(WcStatus::LocalLength);
            }
            Outgoing { control: *control, length, sent: 0 }
        }
    };
    let pkey = dev.port(qp.port).map_or(PKey(0), |port| qp.pkey(&port.pkeys));
    let Some(uc) = &mut qp.uc else { return Err(WcStatus::LocalQpOperation) };
    let left = outgoing.length - outgoing.sent;
    let len = left.min(uc.mtu.bytes() as u64) as usize;
    let (first, last) = (outgoing.sent == 0, left == len as u64);
    let mut pieces = Pieces::new();
    dev.wqe.gather(dev.mrs.of(qp.domain), data_at, outgoing.sent, len, &mut pieces)?;
    let (opcode, immediate) = opcode(operation, first, last).ok_or(WcStatus::LocalQpOperation)?;
    let extended = if data_at > size_of::<ControlSegment>() && first {
        let remote = dev.wqe.remote(size_of::<ControlSegment>())?;
        let reth = Reth {
            address: remote.address.get(),
            rkey: Rkey(remote.rkey.get()),
            length: outgoing.length as u32,
        };
        if immediate { Extended::RethImmediate(reth, control.imm) } else { Extended::Reth(reth) }
    } else if immediate {
        Extended::Immediate(control.imm)
    } else {
        Extended::Bare
    };
    let bth = Bth {
        opcode,
        solicited: last && control.solicited,
        migrated: true,
        pkey,
        fecn: false,
        becn: false,
        dest_qpn: uc.dest_qpn,
        ack_request: false,
        psn: uc.next,
    };
    let (av, flow) = (uc.av, qp.qpn.get());
    let frame = |port: &mut _| addressing::address(port, &av, &bth, &extended, flow, false);
    if dev.send(qp.port, frame, len, |wqe, out| wqe.copy(&pieces, out)).is_err() {
        return Ok((Step::Blocked, outgoing));
    }
    uc.next = uc.next.add(1);
    outgoing.sent += len as u64;
    Ok((Step::Sent, outgoing))
}

/// The opcode of a packet, and whether it carries immediate data.
const fn opcode(operation: SendOpcode, first: bool, last: bool) -> Option<(Opcode, bool)> {
    Some(match (operation, first, last) {
        (SendOpcode::Send | SendOpcode::SendImm, true, false) => (Opcode::UcSendFirst, false),
        (SendOpcode::Send | SendOpcode::SendImm, false, false) => (Opcode::UcSendMiddle, false),
        (SendOpcode::Send, false, true) => (Opcode::UcSendLast, false),
        (SendOpcode::Send, true, true) => (Opcode::UcSendOnly, false),
        (SendOpcode::SendImm, false, true) => (Opcode::UcSendLastImmediate, true),
        (SendOpcode::SendImm, true, true) => (Opcode::UcSendOnlyImmediate, true),
        (SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm, true, false) => (Opcode::UcWriteFirst, false),
        (SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm, false, false) => (Opcode::UcWriteMiddle, false),
        (SendOpcode::RdmaWrite, false, true) => (Opcode::UcWriteLast, false),
        (SendOpcode::RdmaWrite, true, true) => (Opcode::UcWriteOnly, false),
        (SendOpcode::RdmaWriteImm, false, true) => (Opcode::UcWriteLastImmediate, true),
        (SendOpcode::RdmaWriteImm, true, true) => (Opcode::UcWriteOnlyImmediate, true),
        _ => return None,
    })
}
