//! Queue pair state changes, converted from the kernel interface to the engine.

use connectx::RemoteOperations;
use ib_wire::{Gid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::hca::{AddressVector, GlobalRoute, QpState, QpTransition, RcToReceive, RcToSend};
use uverbs_sys as abi;
use verbs_sys as verbs;

fn address(to: &abi::ib_uverbs_qp_dest) -> AddressVector {
    AddressVector {
        dlid: Lid(to.dlid),
        sl: ServiceLevel::new(to.sl),
        src_path_bits: to.src_path_bits,
        rate: Rate::new(to.static_rate),
        grh: (to.is_global != 0).then_some(GlobalRoute {
            dgid: Gid(to.dgid),
            sgid_index: to.sgid_index,
            flow_label: to.flow_label,
            hop_limit: to.hop_limit,
            traffic_class: to.traffic_class,
        }),
    }
}

/// Converts a request; `None` if it does not affect the device's state.
pub(super) fn transition(q: &abi::ib_uverbs_modify_qp) -> Option<QpTransition> {
    let has = |bit: u32| q.attr_mask & bit != 0;
    if !has(verbs::IBV_QP_STATE) {
        return None;
    }
    Some(match u32::from(q.qp_state) {
        verbs::IBV_QPS_RESET => QpTransition::ToReset,
        verbs::IBV_QPS_ERR => QpTransition::ToError,
        verbs::IBV_QPS_INIT if has(verbs::IBV_QP_QKEY) => {
            QpTransition::UdToInit { pkey_index: q.pkey_index, qkey: QKey(q.qkey) }
        }
        verbs::IBV_QPS_INIT => QpTransition::RcToInit { pkey_index: q.pkey_index },
        verbs::IBV_QPS_RTR if has(verbs::IBV_QP_AV) => QpTransition::RcToReceive(RcToReceive {
            av: address(&q.dest),
            dest_qpn: Qpn::new(q.dest_qp_num),
            rq_psn: Psn::new(q.rq_psn),
            path_mtu: Mtu::from_code(q.path_mtu)?,
            min_rnr_timer: q.min_rnr_timer,
        }),
        verbs::IBV_QPS_RTR => QpTransition::UdToReceive,
        verbs::IBV_QPS_RTS if has(verbs::IBV_QP_CUR_STATE) => QpTransition::RecoverSend,
        verbs::IBV_QPS_RTS if has(verbs::IBV_QP_QKEY) => QpTransition::UdQKey(QKey(q.qkey)),
        verbs::IBV_QPS_RTS if has(verbs::IBV_QP_TIMEOUT) => QpTransition::RcToSend(RcToSend {
            sq_psn: Psn::new(q.sq_psn),
            timeout: q.timeout,
            retry_count: q.retry_cnt,
            rnr_retry: q.rnr_retry,
        }),
        verbs::IBV_QPS_RTS => QpTransition::UdToSend { sq_psn: Psn::new(q.sq_psn) },
        _ => return None,
    })
}

/// Updates the operations permitted to the remote end.
pub(super) fn remote(q: &abi::ib_uverbs_modify_qp, remote: &mut RemoteOperations) {
    let has = |bit: u32| q.attr_mask & bit != 0;
    if has(verbs::IBV_QP_ACCESS_FLAGS) {
        let may = |flag: u32| q.qp_access_flags & flag != 0;
        remote.write = may(verbs::IBV_ACCESS_REMOTE_WRITE);
        remote.read = may(verbs::IBV_ACCESS_REMOTE_READ);
        remote.atomic = may(verbs::IBV_ACCESS_REMOTE_ATOMIC);
    }
    if has(verbs::IBV_QP_MAX_DEST_RD_ATOMIC) {
        remote.reads_in = q.max_dest_rd_atomic;
    }
    if has(verbs::IBV_QP_MAX_QP_RD_ATOMIC) {
        remote.reads_out = q.max_rd_atomic;
    }
}

/// Encodes a state.
pub(super) const fn state(state: QpState) -> u8 {
    (match state {
        QpState::Reset => verbs::IBV_QPS_RESET,
        QpState::Init => verbs::IBV_QPS_INIT,
        QpState::Rtr => verbs::IBV_QPS_RTR,
        QpState::Rts => verbs::IBV_QPS_RTS,
        QpState::SqDraining | QpState::SqDrained => verbs::IBV_QPS_SQD,
        QpState::Sqe => verbs::IBV_QPS_SQE,
        QpState::Err => verbs::IBV_QPS_ERR,
    }) as u8
}
