//! The responder of an unreliable connection.
//!
//! A first packet starts a message in any state. A missing packet or any other error drops the message
//! silently, and the next message uses its receive.

use ib_wire::packet::Opcode;

use crate::connection::responder::Incoming;
use crate::counters::DropReason;
use crate::device::{Device, Face, Receive};
use crate::frame::Arrived;
use crate::object::mr::Use;
use crate::object::qp::Qp;
use crate::queue_counters::QueueCount;
use crate::rc::responder::complete;
use crate::scatter::{ScatterError, Spot};
use hca::{AsyncEvent, QpState, WcStatus};
use prm::CqeOpcode;

/// The position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    first: bool,
    last: bool,
    write: bool,
    immediate: bool,
}

impl Part {
    const fn of(opcode: Opcode) -> Option<Self> {
        let (first, last, write, immediate) = match opcode {
            Opcode::UcSendFirst => (true, false, false, false),
            Opcode::UcSendMiddle => (false, false, false, false),
            Opcode::UcSendLast => (false, true, false, false),
            Opcode::UcSendLastImmediate => (false, true, false, true),
            Opcode::UcSendOnly => (true, true, false, false),
            Opcode::UcSendOnlyImmediate => (true, true, false, true),
            Opcode::UcWriteFirst => (true, false, true, false),
            Opcode::UcWriteMiddle => (false, false, true, false),
            Opcode::UcWriteLast => (false, true, true, false),
            Opcode::UcWriteLastImmediate => (false, true, true, true),
            Opcode::UcWriteOnly => (true, true, true, false),
            Opcode::UcWriteOnlyImmediate => (true, true, true, true),
            _ => return None,
        };
        Some(Self { first, last, write, immediate })
    }

    /// True if a packet at this position may have `len` bytes of payload.
    fn fits(self, len: usize, mtu: usize) -> bool {
        match (self.first, self.last) {
            (_, false) => len == mtu,
            (false, true) => (1..=mtu).contains(&len),
            (true, true) => len <= mtu,
        }
    }

    /// True if the packet continues an incomplete message.
    const fn continues(self, incoming: Option<Incoming>) -> bool {
        matches!(
            (incoming, self.write),
            (Some(Incoming::Send { .. }), false) | (Some(Incoming::Write { .. }), true)
        )
    }
}

/// Receives a packet.
pub(crate) fn receive(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) -> Result<(), DropReason> {
    let Some(uc) = &mut qp.uc else { return Err(DropReason::QueuePairState) };
    let bth = packet.bth();
    let part = Part::of(bth.opcode).ok_or(DropReason::Unsupported)?;
    if part.first {
        uc.lose();
    } else if bth.psn != uc.expected || !part.continues(uc.incoming) {
        uc.lose();
        return Err(DropReason::BrokenMessage);
    }
    uc.expected = bth.psn.add(1);
    if qp.state == QpState::Rtr && !std::mem::replace(&mut uc.heard, true) {
        dev.events.raise(AsyncEvent::CommunicationEstablished(qp.qpn));
    }
    let taken = if !part.fits(packet.payload().len(), uc.mtu.bytes()) {
        Err(DropReason::Malformed)
    } else if part.write {
        write(qp, dev, packet, part)
    } else {
        send(qp, dev, packet, part)
    };
    if taken.is_err()
        && let Some(uc) = &mut qp.uc
    {
        uc.lose();
    }
    taken
}

fn send(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, part: Part) -> Result<(), DropReason> {
    let (counter, received, mut spot) = match qp.uc.as_ref().and_then(|uc| uc.incoming) {
        Some(Incoming::Send { counter, received, spot }) => (counter, received, spot),
        _ => (take(qp, dev)?, 0, Spot::default()),
    };
    let Some(uc) = &mut qp.uc else { return Err(DropReason::QueuePairState) };
    let total = received + packet.payload().len() as u64;
    let laid = dev.lay_down(&qp.receives, counter, received, &mut spot, packet.payload());
    uc.incoming = Some(Incoming::Send { counter, received: total, spot });
    match laid {
        Ok(()) => {}
        Err(ScatterError::Length) => return Err(DropReason::ReceiveTooShort),
        // The fault is the local host's, so its receive completes with an error.
        Err(ScatterError::Protection) => {
            uc.incoming = None;
            dev.fail_receive(&Face::new(qp), counter, WcStatus::LocalProtection);
            dev.fail_qp(qp);
            return Ok(());
        }
    }
    if part.last {
        uc.incoming = None;
        let opcode = if part.immediate { CqeOpcode::ReceiveSendImm } else { CqeOpcode::ReceiveSend };
        let source = uc.dest_qpn;
        complete(dev, &Face::new(qp), packet, counter, total as u32, opcode, source);
    }
    Ok(())
}

fn write(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>, part: Part) -> Result<(), DropReason> {
    if !qp.remote.write {
        return Err(DropReason::RemoteAccess);
    }
    let incoming = qp.uc.as_ref().and_then(|uc| uc.incoming);
    let (rkey, address, left, length) = match (incoming, packet.extended().reth()) {
        (Some(Incoming::Write { rkey, address, left, length }), None) => (rkey, address, left, length),
        (None, Some(reth)) => (reth.rkey.0, reth.address, u64::from(reth.length), reth.length),
        _ => return Err(DropReason::Malformed),
    };
    let n = packet.payload().len() as u64;
    if n > left || part.last && n != left {
        return Err(DropReason::Malformed);
    }
    // The whole range is checked at once, and the part written is checked again, because the key may have
    // been invalidated since. A write of zero bytes names no memory.
    let allowed = dev.mrs.of(qp.domain).translate(rkey, address, left as usize, Use::RemoteWrite);
    if left > 0 && allowed.is_err() {
        return Err(DropReason::RemoteAccess);
    }
    let counter = if part.immediate { Some(take(qp, dev)?) } else { None };
    let written = dev.mrs.of(qp.domain).write(rkey, address, packet.payload(), Use::RemoteWrite);
    let Some(uc) = &mut qp.uc else { return Err(DropReason::QueuePairState) };
    if written.is_err() {
        uc.spare = counter.or(uc.spare);
        return Err(DropReason::RemoteAccess);
    }
    let address = address.wrapping_add(n);
    uc.incoming = (!part.last).then_some(Incoming::Write { rkey, address, left: left - n, length });
    if let Some(counter) = counter {
        let source = uc.dest_qpn;
        complete(dev, &Face::new(qp), packet, counter, length, CqeOpcode::ReceiveWriteImm, source);
    }
    Ok(())
}

/// The receive of a lost message, or the next one.
fn take(qp: &mut Qp, dev: &mut Device) -> Result<u16, DropReason> {
    if let Some(spare) = qp.uc.as_mut().and_then(|uc| uc.spare.take()) {
        return Ok(spare);
    }
    match dev.take_receive(&mut qp.receives) {
        Receive::Taken(counter) => Ok(counter),
        Receive::Empty => {
            dev.queue_counters.count(qp.counter_set, QueueCount::OutOfBuffer);
            Err(DropReason::NoReceive)
        }
        Receive::Broken => {
            dev.fail_qp_unheard(qp);
            Err(DropReason::NoReceive)
        }
    }
}
