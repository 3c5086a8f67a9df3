//! Datagrams (IBA 9.8.3): user, general management and, if the host requests it, subnet management.

use ib_wire::QKey;
use ib_wire::packet::{Bth, Deth, Extended, GRH_LEN, Opcode};

use super::addressing;
use super::counters::DropReason;
use super::device::{Device, Face, Receive, Step, Unsent};
use super::ethernet::ParkedDatagram;
use super::frame::{Arrived, NetworkHeader};
use super::object::qp::{Qp, QpKind};
use super::queue_counters::QueueCount;
use super::scatter::ScatterError;
use super::wqe::{self, Control, Pieces, Wqe};
use hca::{QpState, WcStatus};
use prm::{Cqe, CqeOpcode, SendOpcode, cqe_flags, cqe_headers};

/// Sends the next datagram.
pub(crate) fn step(qp: &mut Qp, dev: &mut Device) -> Step {
    next(qp, dev, datagram)
}

/// Executes the next work request of a queue pair without connections. `how` returns the number of bytes
/// sent.
#[inline]
pub(crate) fn next(
    qp: &mut Qp,
    dev: &mut Device,
    how: impl FnOnce(&mut Qp, &mut Device, &Control) -> Result<(Step, u32), WcStatus>,
) -> Step {
    if qp.state == QpState::Sqe {
        dev.flush_sends(qp);
        return Step::Idle;
    }
    if qp.state != QpState::Rts {
        return Step::Idle;
    }
    let Some(control) = wqe::peek(&qp.sq) else { return Step::Idle };
    let face = Face::new(qp);
    match how(qp, dev, &control) {
        Ok((Step::Sent, length)) => {
            qp.sq.head = qp.sq.head.wrapping_add(control.blocks);
            if control.signalled {
                dev.complete_send(&face, &control, length);
            }
            Step::Sent
        }
        Ok((other, _)) => other,
        Err(status) => {
            dev.stop_sends(qp, &control, status);
            Step::Idle
        }
    }
}

fn datagram(qp: &mut Qp, dev: &mut Device, control: &Control) -> Result<(Step, u32), WcStatus> {
    dev.wqe.load(&qp.sq, control, qp.qpn)?;
    let immediate = match control.operation() {
        Some(SendOpcode::Send) => false,
        Some(SendOpcode::SendImm) => true,
        Some(SendOpcode::Nop) => return Ok((Step::Sent, 0)),
        _ => return Err(WcStatus::LocalQpOperation),
    };
    let to = dev.wqe.datagram()?;
    let length = dev.wqe.data_len(to.data_at)?;
    let port = dev.port(qp.port).ok_or(WcStatus::LocalQpOperation)?;
    if length > port.mtu.bytes() as u64 {
        return Err(WcStatus::LocalLength);
    }
    if qp.kind != QpKind::Smi && !port.may_send_to(&to.av) {
        return Err(WcStatus::LocalQpOperation);
    }
    // A key with its top bit set means "the queue pair's own" (IBA 10.2.5).
    let qkey = match qp.kind {
        QpKind::Smi => QKey(0),
        _ if to.qkey.is_privileged() => qp.qkey,
        _ => to.qkey,
    };
    let pkey = qp.pkey(&port.pkeys);
    let len = length as usize;
    let mut pieces = Pieces::new();
    let keys = dev.mrs.of(qp.domain);
    let whole = dev.wqe.whole(keys, to.data_at, 0, len);
    if whole.is_none() {
        dev.wqe.gather(keys, to.data_at, 0, len, &mut pieces)?;
    }
    let fill = |wqe: &Wqe, out: &mut [u8]| match &whole {
        Some(memory) => _ = memory.read(out),
        None => wqe.copy(&pieces, out),
    };
    let deth = Deth { qkey, src_qpn: qp.wire_qpn() };
    let bth = Bth {
        opcode: if immediate { Opcode::UdSendOnlyImmediate } else { Opcode::UdSendOnly },
        solicited: control.solicited,
        // Management never migrates; Linux sends its GMPs with this bit set.
        migrated: !matches!(qp.kind, QpKind::Gsi | QpKind::Smi),
        pkey,
        fecn: false,
        becn: false,
        dest_qpn: to.qpn,
        ack_request: false,
        psn: qp.datagram_psn,
    };
    let extended = if immediate { Extended::DethImmediate(deth, control.imm) } else { Extended::Deth(deth) };
    let management = qp.kind == QpKind::Smi;
    let flow = qp.qpn.get();
    let sent = dev.send(
        qp.port,
        |port| addressing::address(port, &to.av, &bth, &extended, flow, management),
        len,
        fill,
    );
    match sent {
        Ok(()) => {}
        Err(Unsent::Full) => return Ok((Step::Blocked, 0)),
        // Later datagrams may go to a resolved destination.
        Err(Unsent::NoAddress) => {
            let mut payload = vec![0; len].into_boxed_slice();
            fill(&dev.wqe, &mut payload);
            dev.park(qp.port, ParkedDatagram { av: to.av, bth, extended, flow, payload });
        }
    }
    qp.datagram_psn = qp.datagram_psn.add(1);
    Ok((Step::Sent, length as u32))
}

/// Receives a datagram.
pub(crate) fn receive(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) {
    let Some(reason) = accept(qp, dev, packet) else { return };
    if reason == DropReason::NoReceive {
        dev.queue_counters.count(qp.counter_set, QueueCount::OutOfBuffer);
    }
    dev.counters.drop_packet(reason);
}

fn accept(qp: &mut Qp, dev: &mut Device, packet: &Arrived<'_>) -> Option<DropReason> {
    let Some(deth) = packet.extended().deth() else { return Some(DropReason::Transport) };
    if !qp.receives_packets() {
        return Some(DropReason::QueuePairState);
    }
    let port = dev.ports.get_mut(usize::from(qp.port))?;
    if packet.payload().len() > port.mtu.bytes() {
        return Some(DropReason::OverMtu);
    }
    // QP0 has no partition. QP1 accepts every partition of the port, all others only their own (IBA
    // 9.6.1.1.4, 10.9.2).
    let pkey = packet.bth().pkey;
    let pkey_index = match qp.kind {
        QpKind::Smi => Some(0),
        QpKind::Gsi => port.find_pkey(pkey),
        QpKind::Ud | QpKind::Uc | QpKind::Rc | QpKind::XrcInitiator | QpKind::XrcTarget | QpKind::Umr => {
            qp.pkey(&port.pkeys).matches(pkey).then_some(qp.pkey_index)
        }
    };
    let Some(pkey_index) = pkey_index else {
        port.pkey_violations = port.pkey_violations.saturating_add(1);
        return Some(DropReason::PartitionKey);
    };
    if qp.kind != QpKind::Smi && deth.qkey != qp.qkey {
        port.qkey_violations = port.qkey_violations.saturating_add(1);
        return Some(DropReason::QueueKey);
    }
    let path_bits = (packet.dlid.0 & ((1 << port.lmc.min(7)) - 1)) as u8;

    let total = GRH_LEN as u64 + packet.payload().len() as u64;
    // A datagram that is too long is dropped before it consumes a receive: no peer can break the queue pair.
    let front = dev.front_receive(&qp.receives);
    if let Some(front) = front {
        dev.load_receive(&qp.receives, front);
        if dev.receive.capacity() < total {
            return Some(DropReason::ReceiveTooShort);
        }
    }
    let counter = match dev.take_receive(&mut qp.receives) {
        Receive::Taken(counter) => counter,
        Receive::Empty => return Some(DropReason::NoReceive),
        Receive::Broken => {
            dev.fail_qp_unheard(qp);
            return Some(DropReason::NoReceive);
        }
    };
    if front != Some(counter) {
        dev.load_receive(&qp.receives, counter);
    }
    let lay_down = |offset, bytes: &[u8]| dev.receive.write(&dev.mrs, offset, bytes);
    // The 40 bytes of the GRH are reserved in the receive even without a GRH. A shorter receive cannot hold a
    // datagram.
    let written = if dev.receive.capacity() < total {
        Err(ScatterError::Length)
    } else {
        match packet.network {
            NetworkHeader::None => Ok(()),
            NetworkHeader::Grh(header) | NetworkHeader::Ipv6(header) => lay_down(0, header),
            NetworkHeader::Ipv4(header) => lay_down((GRH_LEN - header.len()) as u64, header),
        }
        .and_then(|()| lay_down(GRH_LEN as u64, packet.payload()))
    };
    let face = Face::new(qp);
    if let Err(error) = written {
        let status = match error {
            ScatterError::Length => WcStatus::LocalLength,
            ScatterError::Protection => WcStatus::LocalProtection,
        };
        dev.fail_receive(&face, counter, status);
        dev.fail_qp(qp);
        return None;
    }
    let mut cqe = Cqe::default();
    let grh = match packet.network {
        NetworkHeader::None => u32::from(packet.sl.get()) << cqe_flags::SL_SHIFT,
        NetworkHeader::Grh(_) => cqe_flags::GRH | u32::from(packet.sl.get()) << cqe_flags::SL_SHIFT,
        NetworkHeader::Ipv6(_) => cqe_flags::GRH | cqe_flags::ROCE_IPV6,
        NetworkHeader::Ipv4(_) => cqe_flags::GRH | cqe_flags::ROCE_IPV4,
    };
    cqe.ml_path = path_bits;
    cqe.slid.set(packet.slid.0);
    cqe.flags_rqpn.set(grh | deth.src_qpn.get());
    // For queue pair 1, Linux's driver reads the P_Key itself from this field and looks up its index.
    cqe.imm_inval_pkey.set(if qp.kind == QpKind::Gsi { pkey.0 } else { pkey_index }.into());
    let mut opcode = CqeOpcode::ReceiveSend;
    if let Some(imm) = packet.extended().immediate() {
        cqe.imm_inval_pkey.set(u32::from_be_bytes(imm));
        opcode = CqeOpcode::ReceiveSendImm;
    }
    // On an Ethernet port this bit would describe the header that carries the datagram.
    if matches!(packet.network, NetworkHeader::None | NetworkHeader::Grh(_))
        && has_good_ipv4(packet.payload())
    {
        cqe.hds_ip_ext = cqe_headers::L3_OK;
        cqe.l4_hdr_type = cqe_headers::L3_IPV4 << cqe_headers::L3_SHIFT;
    }
    cqe.byte_cnt.set(total as u32);
    cqe.wqe_counter.set(counter);
    dev.complete_receive(&face, cqe, opcode, packet.bth().solicited);
    None
}

/// True for an IPoIB message (RFC 4391 6) that begins with an IPv4 header with a correct checksum (RFC 791
/// 3.1).
fn has_good_ipv4(message: &[u8]) -> bool {
    let [8, 0, _, _, packet @ ..] = message else { return false };
    let len =
        packet.first().map_or(0, |&first| if first >> 4 == 4 { usize::from(first & 0xf) * 4 } else { 0 });
    let Some(header) = packet.get(..len).filter(|header| header.len() >= 20) else { return false };
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    // One's complement: add the carries, twice, because the first addition may carry again.
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}
