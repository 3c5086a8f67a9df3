//! Commands on queue pairs.

use connectx::engine::QpAttributes;
use connectx::{ProtectionDomain, QpKind, RemoteOperations, XrcDomain};
use hca::{PortNumber, QpState};
use ib_wire::{Psn, Qpn};
use prm::WQEBB;
use prm::command::{QP_CONTEXT, QP_UMEM, opcode};
use prm::context::{QpContext, opt_param, qp_service, qp_state, rq_type};
use zerocopy::big_endian::U32;

use super::command::{Fault, Input, Output};
use super::queue::Place;
use super::transition::{context_after, names_port, remote_operations, transitions};
use super::user::Kind;
use super::{Hca, Table};
use crate::memory::Lease;

/// Offset of the mask of optional parameters in the input of transitions.
const OPTIONAL: usize = 0x10;
/// Flag in the number of a queue pair to drain: raise an event when it is drained.
const NOTIFY: u32 = 1 << 31;

/// Remote operations of a connection before any transition sets them.
const NOTHING: RemoteOperations =
    RemoteOperations { write: false, read: false, atomic: false, reads_in: 1, reads_out: 1 };

/// A queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    kind: QpKind,
    /// Context for queries: as created, with changes by transitions.
    context: QpContext,
    remote: RemoteOperations,
    _leases: Vec<Lease>,
}

impl Pair {
    /// The doorbell page of the queue pair.
    pub(super) const fn uar_page(&self) -> u32 {
        self.context.uar_page()
    }
}

impl Hca {
    pub(super) fn create_qp(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::QueuePairs, self.objects.qps.len())?;
        let context: QpContext = input.view(QP_CONTEXT)?;
        let kind = match context.service {
            qp_service::RC => QpKind::Rc,
            qp_service::UC => QpKind::Uc,
            qp_service::UD => QpKind::Ud,
            qp_service::XRC if context.has_no_sends() => QpKind::XrcTarget,
            qp_service::XRC => QpKind::XrcInitiator,
            qp_service::SMI => QpKind::Smi,
            qp_service::GSI => QpKind::Gsi,
            qp_service::UMR => QpKind::Umr,
            other => {
                return Err(Fault::parameter(format!("unsupported service of a queue pair: {other:#x}")));
            }
        };
        let (number, leases) = match kind {
            QpKind::XrcTarget => (self.create_xrc_target(input, &context)?, Vec::new()),
            _ => self.create_real_qp(input, &context, kind)?,
        };
        self.objects.qps.insert(number, Pair { kind, context, remote: NOTHING, _leases: leases });
        output.set_number(number)
    }

    fn create_real_qp(
        &mut self,
        input: &Input,
        context: &QpContext,
        kind: QpKind,
    ) -> Result<(u32, Vec<Lease>), Fault> {
        input.without_umem(QP_UMEM)?;
        let (uid, users) = (input.header().uid.get(), &self.objects.users);
        users.check_reach(uid, Kind::Domain, context.pd.get() & Qpn::MASK)?;
        let (send_cq, recv_cq) = (context.send_cq.get() & Qpn::MASK, context.receive_cq.get() & Qpn::MASK);
        for cq in [send_cq, recv_cq] {
            users.check_reach(uid, Kind::CompletionQueue, cq)?;
            if !self.objects.cqs.contains_key(&cq) {
                return Err(Fault::resource("completion queue", cq));
            }
        }
        let (own, shared) = match context.rq_type() {
            // An initiator has none, whatever queue a driver puts there.
            _ if kind == QpKind::XrcInitiator => (false, None),
            rq_type::OWN => (true, None),
            rq_type::SHARED => {
                let srq = context.rq_srq.get() & Qpn::MASK;
                users.check_reach(uid, Kind::SharedQueue, srq)?;
                (false, Some(srq))
            }
            rq_type::NONE => (false, None),
            other => return Err(Fault::parameter(format!("unsupported kind of receives: {other}"))),
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
            // Until a transition sets it.
            port: PortNumber(1),
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
        if context.rnr_retry & QpContext::FAST_REGISTRATION != 0 {
            self.engine.allow_page_lists(number)?;
        }
        if context.flags_11 & QpContext::RESERVED_LKEY != 0 {
            self.engine.allow_reserved_key(number)?;
        }
        let blocked = context.pd.get() & QpContext::BLOCK_LOOPBACK != 0;
        self.engine.set_multicast_loopback(number, !blocked)?;
        self.engine.set_counter_set(number, context.counter_set())?;
        Ok((number.get(), vec![receive_lease, send_lease, record_lease]))
    }

    /// Creates the target of an extended reliable connection. Only the XRC domain of the context is used;
    /// drivers put other objects in the remaining fields.
    fn create_xrc_target(&mut self, input: &Input, context: &QpContext) -> Result<u32, Fault> {
        let xrcd = context.xrcd.get() & Qpn::MASK;
        self.objects.users.check_reach(input.header().uid.get(), Kind::XrcDomain, xrcd)?;
        if !self.objects.xrcds.has(xrcd) {
            return Err(Fault::resource("XRC domain", xrcd));
        }
        let number = self.engine.create_xrc_target(PortNumber(1), XrcDomain(xrcd))?;
        self.engine.set_counter_set(number, context.counter_set())?;
        Ok(number.get())
    }

    pub(super) fn destroy_qp(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        if !self.objects.qps.contains_key(&number) {
            return Err(Fault::resource("queue pair", number));
        }
        self.engine.destroy_qp(Qpn::new(number))?;
        self.objects.qps.remove(&number);
        Ok(())
    }

    pub(super) fn query_qp(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let pair = self.objects.qps.get(&number).ok_or_else(|| Fault::resource("queue pair", number))?;
        let qpn = Qpn::new(number);
        let state = match self.engine.qp_state(qpn)? {
            QpState::Reset => qp_state::RST,
            QpState::Init => qp_state::INIT,
            QpState::Rtr => qp_state::RTR,
            QpState::Rts => qp_state::RTS,
            QpState::SqDraining => qp_state::SQ_DRAINING,
            QpState::SqDrained => qp_state::SQD,
            QpState::Sqe => qp_state::SQER,
            QpState::Err => qp_state::ERR,
        };
        let mut context = pair.context;
        context.state = state << 4 | context.state & 0xf;
        if let Some(port) = self.engine.qp_port(qpn) {
            context.path.port = port.0;
        }
        if let Some((send, receive)) = self.engine.qp_psns(qpn) {
            context.send_psn = U32::new(send.get());
            let expected = receive.map_or(context.rnr_receive_psn.get() & Psn::MASK, Psn::get);
            context.rnr_receive_psn = U32::new(context.rnr_receive_psn.get() & !Psn::MASK | expected);
        }
        output.put(QP_CONTEXT, &context)
    }

    pub(super) fn modify_qp(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let qpn = Qpn::new(number);
        let pair = self.objects.qps.get_mut(&number).ok_or_else(|| Fault::resource("queue pair", number))?;
        let op = input.header().opcode.get();
        let kind = pair.kind;
        // These transitions only name the new state.
        let says = !matches!(op, opcode::TWO_ERR_QP | opcode::TWO_RST_QP | opcode::RTS2SQD_QP);
        let (context, optional) = if says {
            (input.view::<QpContext>(QP_CONTEXT)?, input.view::<U32>(OPTIONAL)?.get())
        } else {
            (QpContext::default(), 0)
        };
        let remote = remote_operations(op, pair.remote, &context, optional);
        let notify = input.header().number.get() & NOTIFY != 0;
        let transitions = transitions(op, kind, &context, optional, notify)?;
        if names_port(op, kind, optional) {
            self.engine.set_qp_port(qpn, PortNumber(context.path.port))?;
        }
        for to in transitions.into_iter().flatten() {
            self.engine.modify_qp(qpn, &to)?;
        }
        self.engine.set_remote_operations(qpn, remote)?;
        pair.remote = remote;
        if op == opcode::RST2INIT_QP {
            self.engine.set_counter_set(qpn, context.counter_set())?;
        }
        if matches!(op, opcode::INIT2INIT_QP | opcode::RTS2RTS_QP) && optional & opt_param::PKEY_INDEX != 0 {
            let index = context.path.pkey_index.get();
            let port = self.engine.qp_port(qpn).ok_or_else(|| Fault::resource("queue pair", number))?;
            self.engine.pkey(port, index)?;
            self.engine.set_pkey_index(qpn, index);
        }
        if says {
            pair.context = context_after(op, kind, &pair.context, &context, optional);
        }
        Ok(())
    }

    /// Flushes requests posted to queue pairs in error since the last call. Returns true if there are such
    /// queue pairs.
    pub(super) fn flush_failed(&mut self) -> bool {
        let Self { engine, objects, .. } = self;
        let mut any = false;
        for &number in objects.qps.keys() {
            if engine.qp_state(Qpn::new(number)).is_ok_and(|state| state == QpState::Err) {
                engine.ring(Qpn::new(number));
                any = true;
            }
        }
        any
    }
}
