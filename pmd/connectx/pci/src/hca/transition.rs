//! Transitions of queue pairs as commands: the changes in the engine, and the resulting context.

use connectx::{QpKind, RemoteOperations};
use hca::{AddressVector, GlobalRoute, QpTransition, RcToReceive, RcToSend, UcToReceive};
use ib_wire::{Gid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};
use prm::command::opcode;
use prm::context::{AddressPath, QpContext, opt_param};
use zerocopy::big_endian::{U16, U32};

use super::command::Fault;

/// Offset of mlx5's rate codes from those of the IBA. Codes up to this one select the port's own rate.
const FIRST_RATE: u8 = 5;

/// True if the path in a transition sets the queue pair's port. For a datagram queue pair only the first
/// transition does.
pub(super) const fn names_port(op: u16, kind: QpKind, optional: u32) -> bool {
    match op {
        opcode::RST2INIT_QP => true,
        opcode::INIT2INIT_QP => optional & opt_param::PORT != 0,
        opcode::INIT2RTR_QP => kind.is_reliable() || matches!(kind, QpKind::Uc),
        _ => false,
    }
}

/// The engine's transitions: a change of state, followed by one of the Q_Key.
pub(super) fn transitions(
    op: u16,
    kind: QpKind,
    context: &QpContext,
    optional: u32,
    notify: bool,
) -> Result<[Option<QpTransition>; 2], Fault> {
    let (reliable, unreliable) = (kind.is_reliable(), kind == QpKind::Uc);
    let mtu = || {
        let code = context.mtu_msg >> 5;
        Mtu::from_code(code).ok_or_else(|| Fault::parameter(format!("invalid MTU code {code}")))
    };
    let pkey_index = context.path.pkey_index.get();
    let connected = reliable || unreliable;
    let leads_to_rts =
        matches!(op, opcode::RTS2RTS_QP | opcode::SQERR2RTS_QP | opcode::SQD2RTS_QP | opcode::SQD_RTS_QP);
    let qkey = (leads_to_rts && !connected && optional & opt_param::QKEY != 0)
        .then_some(QpTransition::UdQKey(QKey(context.qkey.get())));
    let state = match op {
        opcode::RST2INIT_QP if reliable => QpTransition::RcToInit { pkey_index },
        opcode::RST2INIT_QP if unreliable => QpTransition::UcToInit { pkey_index },
        opcode::RST2INIT_QP => QpTransition::UdToInit { pkey_index, qkey: QKey(context.qkey.get()) },
        opcode::INIT2RTR_QP if reliable => QpTransition::RcToReceive(RcToReceive {
            av: address(&context.path),
            dest_qpn: Qpn::new(context.page_remote.get()),
            rq_psn: Psn::new(context.rnr_receive_psn.get()),
            path_mtu: mtu()?,
            min_rnr_timer: (context.rnr_receive_psn.get() >> 24) as u8 & 0x1f,
        }),
        opcode::INIT2RTR_QP if unreliable => QpTransition::UcToReceive(UcToReceive {
            av: address(&context.path),
            dest_qpn: Qpn::new(context.page_remote.get()),
            rq_psn: Psn::new(context.rnr_receive_psn.get()),
            path_mtu: mtu()?,
        }),
        opcode::INIT2RTR_QP => QpTransition::UdToReceive,
        opcode::RTR2RTS_QP if reliable => QpTransition::RcToSend(RcToSend {
            sq_psn: Psn::new(context.send_psn.get()),
            timeout: context.path.ack_timeout >> 3,
            retry_count: context.retry & 7,
            rnr_retry: context.rnr_retry >> 5,
        }),
        opcode::RTR2RTS_QP if unreliable => {
            QpTransition::UcToSend { sq_psn: Psn::new(context.send_psn.get()) }
        }
        opcode::RTR2RTS_QP => QpTransition::UdToSend { sq_psn: Psn::new(context.send_psn.get()) },
        opcode::INIT2INIT_QP | opcode::RTS2RTS_QP => return Ok([None, qkey]),
        opcode::SQERR2RTS_QP => QpTransition::RecoverSend,
        opcode::RTS2SQD_QP => QpTransition::DrainSend { notify },
        opcode::SQD2RTS_QP | opcode::SQD_RTS_QP => QpTransition::ResumeSend,
        opcode::TWO_ERR_QP => QpTransition::ToError,
        _ => QpTransition::ToReset,
    };
    Ok([Some(state), qkey])
}

/// The remote operations of a connection after a transition.
pub(super) fn remote_operations(
    op: u16,
    before: RemoteOperations,
    context: &QpContext,
    optional: u32,
) -> RemoteOperations {
    let sets = |required: u16, bit: u32| op == required || optional & bit != 0;
    let mut remote = before;
    if sets(opcode::RST2INIT_QP, opt_param::REMOTE_READ) {
        remote.read = context.remote_read();
    }
    if sets(opcode::RST2INIT_QP, opt_param::REMOTE_WRITE) {
        remote.write = context.remote_write();
    }
    if sets(opcode::RST2INIT_QP, opt_param::REMOTE_ATOMIC) {
        remote.atomic = context.remote_atomic();
    }
    if sets(opcode::INIT2RTR_QP, opt_param::READS_IN) {
        remote.reads_in = context.reads_in();
    }
    if sets(opcode::RTR2RTS_QP, opt_param::READS_OUT) {
        remote.reads_out = context.reads_out();
    }
    remote
}

fn address(path: &AddressPath) -> AddressVector {
    let word = path.class_flow.get();
    AddressVector {
        dlid: Lid(path.rlid.get()),
        sl: ServiceLevel::new(path.sl),
        src_path_bits: path.grh_path_bits & 0x7f,
        rate: Rate::new((path.rate & 0xf).saturating_sub(FIRST_RATE)),
        grh: (path.grh_path_bits & AddressPath::GRH != 0).then_some(GlobalRoute {
            dgid: Gid(path.rgid),
            sgid_index: path.sgid_index,
            flow_label: word & 0xf_ffff,
            hop_limit: path.hop_limit,
            traffic_class: (word >> 20) as u8,
        }),
    }
}

/// The context after a transition: the fields that it sets from `given`, and all others unchanged.
pub(super) fn context_after(
    op: u16,
    kind: QpKind,
    before: &QpContext,
    given: &QpContext,
    optional: u32,
) -> QpContext {
    let connected = kind.is_reliable() || kind == QpKind::Uc;
    let mut context = *before;
    match op {
        opcode::RST2INIT_QP => context = made_and(before, *given),
        opcode::INIT2RTR_QP if connected => {
            let AddressPath { pkey_index, port, ack_timeout, .. } = before.path;
            let port = if names_port(op, kind, optional) { given.path.port } else { port };
            context.path = AddressPath { pkey_index, port, ack_timeout, ..given.path };
            context.alternate = given.alternate;
            context.mtu_msg = given.mtu_msg;
            let pages = before.page_remote.get() & !Qpn::MASK;
            context.page_remote = U32::new(pages | given.page_remote.get() & Qpn::MASK);
            context.rnr_receive_psn = given.rnr_receive_psn;
            context.log_rra = reads_in(before, given);
        }
        opcode::RTR2RTS_QP => {
            context.send_psn = given.send_psn;
            context.log_ack_request = given.log_ack_request;
            context.retry = given.retry;
            context.rnr_retry = given.rnr_retry & 0xe0 | before.rnr_retry & 0x1f;
            context.path.ack_timeout = given.path.ack_timeout;
        }
        _ => {}
    }
    let says = |bit: u32| optional & bit != 0;
    let rights = [
        (opt_param::REMOTE_READ, 1 << 15),
        (opt_param::REMOTE_WRITE, 1 << 14),
        (opt_param::REMOTE_ATOMIC, 1 << 13),
    ];
    for (_, right) in rights.into_iter().filter(|(bit, _)| says(*bit)) {
        let (was, is) = (context.access_offset.get(), given.access_offset.get());
        context.access_offset = U16::new(was & !right | is & right);
    }
    if says(opt_param::PKEY_INDEX) {
        context.path.pkey_index = given.path.pkey_index;
    }
    if says(opt_param::PORT) {
        context.path.port = given.path.port;
    }
    if says(opt_param::QKEY) {
        context.qkey = given.qkey;
    }
    if says(opt_param::READS_OUT) {
        context.retry = given.retry & 0xe0 | context.retry & 0x1f;
    }
    if says(opt_param::READS_IN) {
        context.log_rra = reads_in(&context, given);
    }
    context
}

/// Limit of reads by the peer, from `given`. An earlier transition has set the mode of atomic operations.
fn reads_in(before: &QpContext, given: &QpContext) -> U16 {
    given.log_rra | before.log_rra & U16::new(QpContext::ATOMIC_MODE)
}

/// The context of the first transition, with the fields that are fixed at creation.
const fn made_and(made: &QpContext, given: QpContext) -> QpContext {
    QpContext {
        service: made.service,
        pd: made.pd,
        rq_size_stride: made.rq_size_stride,
        sq_size: made.sq_size,
        uar: made.uar,
        user_index: made.user_index,
        send_cq: made.send_cq,
        receive_cq: made.receive_cq,
        dbrec: made.dbrec,
        rq_srq: made.rq_srq,
        xrcd: made.xrcd,
        ..given
    }
}
