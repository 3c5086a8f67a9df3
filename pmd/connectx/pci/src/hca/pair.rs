//! Commands about queue pairs.

use connectx::engine::QpAttributes;
use connectx::{ProtectionDomain, QpKind, RemoteOperations};
use hca::{AddressVector, GlobalRoute, QpState, QpTransition, RcToReceive, RcToSend};
use ib_wire::{Gid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};
use prm::WQEBB;
use prm::command::{QP_CONTEXT, opcode};
use prm::context::{AddressPath, QpContext, opt_param, qp_service, qp_state, rq_type};
use zerocopy::big_endian::U32;

use super::command::{Fault, Input, Output};
use super::queue::Place;
use super::{Hca, PORT, Table};
use crate::memory::Lease;

/// Where the mask of parameters is, in the input of transitions.
const OPTIONAL: usize = 0x10;
/// The least rate that means one; those below it mean the port's own.
const FIRST_RATE: u8 = 5;

/// What connections may do before they are told.
const NOTHING: RemoteOperations = RemoteOperations { write: false, read: false, reads_in: 1, reads_out: 1 };

/// A queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    /// `None` for one that the engine does not know: drivers make it, and never use it.
    kind: Option<QpKind>,
    /// The state of such a one.
    state: u8,
    /// For queries: as it was made, with what transitions said since.
    context: QpContext,
    remote: RemoteOperations,
    _leases: Vec<Lease>,
}

impl Hca {
    pub(super) fn create_qp(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::QueuePairs, self.objects.qps.len())?;
        let context: QpContext = input.view(QP_CONTEXT)?;
        let kind = match context.service {
            qp_service::RC => Some(QpKind::Rc),
            qp_service::UD => Some(QpKind::Ud),
            qp_service::SMI => Some(QpKind::Smi),
            qp_service::GSI => Some(QpKind::Gsi),
            qp_service::UMR => None,
            other => return Err(Fault::parameter(format!("queue pairs of service {other:#x}"))),
        };
        let (number, leases) = match kind {
            Some(kind) => self.create_real_qp(input, &context, kind)?,
            None => {
                let number = self.objects.idle_numbers.take();
                (number.ok_or_else(|| Fault::exhausted("queue pairs of this service"))?, Vec::new())
            }
        };
        self.objects
            .qps
            .insert(number, Pair { kind, state: qp_state::RST, context, remote: NOTHING, _leases: leases });
        output.set_number(number)
    }

    fn create_real_qp(
        &mut self,
        input: &Input,
        context: &QpContext,
        kind: QpKind,
    ) -> Result<(u32, Vec<Lease>), Fault> {
        let (send_cq, recv_cq) = (context.send_cq.get() & Qpn::MASK, context.receive_cq.get() & Qpn::MASK);
        for cq in [send_cq, recv_cq] {
            if !self.objects.cqs.contains_key(&cq) {
                return Err(Fault::resource("completion queue", cq));
            }
        }
        let (own, shared) = match context.rq_type() {
            rq_type::OWN => (true, None),
            rq_type::SHARED => (false, Some(context.rq_srq.get() & Qpn::MASK)),
            rq_type::NONE => (false, None),
            other => return Err(Fault::parameter(format!("receives of kind {other}"))),
        };
        let stride = context.receive_stride();
        let receives = if own { context.receives() * stride } else { 0 };
        let sends = context.send_blocks() * WQEBB;
        let place = |before, len| Place {
            log_page_size: context.log_page_size(),
            page_offset: context.page_offset(),
            before,
            len,
        };
        // The receive ring comes first.
        let (receive_ring, receive_lease) = self.ring(input, place(0, receives))?;
        let (send_ring, send_lease) = self.ring(input, place(receives, sends))?;
        let (record, record_lease) = self.record(context.dbrec)?;
        let [a, b, c] = context.user_index;
        let number = self.engine.create_qp(&QpAttributes {
            kind,
            port: PORT,
            send_ring,
            receive_ring: own.then_some((receive_ring, stride)),
            srq: shared,
            dbrec: record,
            send_cq,
            recv_cq,
            user_index: u32::from_be_bytes([0, a, b, c]),
        })?;
        let domain = ProtectionDomain(context.pd.get() & Qpn::MASK);
        self.engine.set_qp_domain(number, domain)?;
        let blocked = context.pd.get() & QpContext::BLOCK_LOOPBACK != 0;
        self.engine.set_multicast_loopback(number, !blocked)?;
        Ok((number.get(), vec![receive_lease, send_lease, record_lease]))
    }

    pub(super) fn destroy_qp(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let pair = self.objects.qps.get(&number).ok_or_else(|| Fault::resource("queue pair", number))?;
        if pair.kind.is_some() {
            self.engine.destroy_qp(Qpn::new(number))?;
        } else {
            self.objects.idle_numbers.give_back(number);
        }
        self.objects.qps.remove(&number);
        Ok(())
    }

    pub(super) fn query_qp(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let pair = self.objects.qps.get(&number).ok_or_else(|| Fault::resource("queue pair", number))?;
        let state = match pair.kind {
            None => pair.state,
            Some(_) => match self.engine.qp_state(Qpn::new(number))? {
                QpState::Reset => qp_state::RST,
                QpState::Init => qp_state::INIT,
                QpState::Rtr => qp_state::RTR,
                QpState::Rts => qp_state::RTS,
                QpState::Sqe => qp_state::SQER,
                QpState::Err => qp_state::ERR,
            },
        };
        output.put(QP_CONTEXT, &QpContext { state: state << 4 | pair.context.state & 0xf, ..pair.context })
    }

    pub(super) fn modify_qp(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let pair = self.objects.qps.get_mut(&number).ok_or_else(|| Fault::resource("queue pair", number))?;
        let op = input.header().opcode.get();
        // Transitions that say more than where to.
        let told = if matches!(op, opcode::TWO_ERR_QP | opcode::TWO_RST_QP) {
            None
        } else {
            Some((input.view::<QpContext>(QP_CONTEXT)?, input.view::<U32>(OPTIONAL)?.get()))
        };
        match pair.kind {
            Some(kind) => {
                let (context, optional) = told.unwrap_or_default();
                let qpn = Qpn::new(number);
                let remote = remote_operations(op, pair.remote, &context, optional);
                if let Some(to) = transition(op, kind, &context, optional)? {
                    self.engine.modify_qp(qpn, &to)?;
                }
                self.engine.set_remote_operations(qpn, remote)?;
                pair.remote = remote;
                if matches!(op, opcode::INIT2INIT_QP | opcode::RTS2RTS_QP)
                    && optional & opt_param::PKEY_INDEX != 0
                {
                    let index = context.path.pkey_index.get();
                    self.engine.pkey(PORT, index)?;
                    self.engine.set_pkey_index(qpn, index);
                }
            }
            None => pair.state = state_behind(op),
        }
        if let Some((context, _)) = told {
            pair.context = merged(&pair.context, context);
        }
        Ok(())
    }

    /// What was posted to queue pairs in error since they were looked at last is flushed. True if there are any.
    pub(super) fn flush_failed(&mut self) -> bool {
        let Self { engine, objects, .. } = self;
        let mut any = false;
        for number in objects.qps.iter().filter(|(_, pair)| pair.kind.is_some()).map(|(number, _)| *number) {
            if engine.qp_state(Qpn::new(number)).is_ok_and(|state| state == QpState::Err) {
                engine.ring(Qpn::new(number));
                any = true;
            }
        }
        any
    }
}

/// The state that a transition leads to.
const fn state_behind(op: u16) -> u8 {
    match op {
        opcode::RST2INIT_QP | opcode::INIT2INIT_QP => qp_state::INIT,
        opcode::INIT2RTR_QP => qp_state::RTR,
        opcode::RTR2RTS_QP | opcode::RTS2RTS_QP | opcode::SQERR2RTS_QP => qp_state::RTS,
        opcode::TWO_ERR_QP => qp_state::ERR,
        _ => qp_state::RST,
    }
}

/// What the engine is asked for; `None` for nothing.
fn transition(
    op: u16,
    kind: QpKind,
    context: &QpContext,
    optional: u32,
) -> Result<Option<QpTransition>, Fault> {
    let connected = kind == QpKind::Rc;
    let pkey_index = context.path.pkey_index.get();
    Ok(Some(match op {
        opcode::RST2INIT_QP if connected => QpTransition::RcToInit { pkey_index },
        opcode::RST2INIT_QP => QpTransition::UdToInit { pkey_index, qkey: QKey(context.qkey.get()) },
        opcode::INIT2RTR_QP if connected => {
            let mtu = context.mtu_msg >> 5;
            QpTransition::RcToReceive(RcToReceive {
                av: address(&context.path),
                dest_qpn: Qpn::new(context.page_remote.get()),
                rq_psn: Psn::new(context.rnr_receive_psn.get()),
                path_mtu: Mtu::from_code(mtu).ok_or_else(|| Fault::parameter(format!("MTU code {mtu}")))?,
                min_rnr_timer: (context.rnr_receive_psn.get() >> 24) as u8 & 0x1f,
            })
        }
        opcode::INIT2RTR_QP => QpTransition::UdToReceive,
        opcode::RTR2RTS_QP if connected => QpTransition::RcToSend(RcToSend {
            sq_psn: Psn::new(context.send_psn.get()),
            timeout: context.path.ack_timeout >> 3,
            retry_count: context.retry & 7,
            rnr_retry: context.rnr_retry >> 5,
        }),
        opcode::RTR2RTS_QP => QpTransition::UdToSend { sq_psn: Psn::new(context.send_psn.get()) },
        opcode::RTS2RTS_QP if !connected && optional & opt_param::QKEY != 0 => {
            QpTransition::UdQKey(QKey(context.qkey.get()))
        }
        opcode::INIT2INIT_QP | opcode::RTS2RTS_QP => return Ok(None),
        opcode::SQERR2RTS_QP => QpTransition::RecoverSend,
        opcode::TWO_ERR_QP => QpTransition::ToError,
        _ => QpTransition::ToReset,
    }))
}

/// What a connection may do after a transition.
fn remote_operations(
    op: u16,
    before: RemoteOperations,
    context: &QpContext,
    optional: u32,
) -> RemoteOperations {
    let told = |required: u16, bit: u32| op == required || optional & bit != 0;
    let mut remote = before;
    if told(opcode::RST2INIT_QP, opt_param::REMOTE_READ) {
        remote.read = context.remote_read();
    }
    if told(opcode::RST2INIT_QP, opt_param::REMOTE_WRITE) {
        remote.write = context.remote_write();
    }
    if told(opcode::INIT2RTR_QP, opt_param::READS_IN) {
        remote.reads_in = context.reads_in();
    }
    if told(opcode::RTR2RTS_QP, opt_param::READS_OUT) {
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

/// What a transition says, with what a queue pair is made with and keeps.
const fn merged(made: &QpContext, told: QpContext) -> QpContext {
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
        ..told
    }
}
