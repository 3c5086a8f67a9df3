//! Queue pair state transitions in the library's form (IBA 11.2.4.2).

use std::io;

use ib_wire::QKey;
use verbs_sys as sys;

use super::address::attributes;
use super::object::QueuePair;
use super::remedy;
use crate::hca::{HcaError, PortNumber, QpState, QpTransition, RemoteAccess};

/// Access flags of a queue pair (`ibv_access_flags`).
const fn access_flags(remote: &RemoteAccess) -> u32 {
    (if remote.write { sys::IBV_ACCESS_REMOTE_WRITE } else { 0 })
        | (if remote.read { sys::IBV_ACCESS_REMOTE_READ } else { 0 })
        | (if remote.atomic { sys::IBV_ACCESS_REMOTE_ATOMIC } else { 0 })
}

/// Returns the attributes of a transition, and the mask of valid ones.
fn request(to: &QpTransition, (port, remote): (PortNumber, &RemoteAccess)) -> (sys::ibv_qp_attr, u32) {
    let mut attr = sys::ibv_qp_attr::default();
    let mask = match *to {
        QpTransition::UdToInit { pkey_index, qkey } => {
            attr.qp_state = sys::IBV_QPS_INIT;
            attr.pkey_index = pkey_index;
            attr.port_num = port.0;
            attr.qkey = qkey.0;
            sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY
        }
        QpTransition::RcToInit { pkey_index } => {
            attr.qp_state = sys::IBV_QPS_INIT;
            attr.pkey_index = pkey_index;
            attr.port_num = port.0;
            attr.qp_access_flags = access_flags(remote);
            sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS
        }
        QpTransition::UcToInit { pkey_index } => {
            attr.qp_state = sys::IBV_QPS_INIT;
            attr.pkey_index = pkey_index;
            attr.port_num = port.0;
            attr.qp_access_flags = 0;
            sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS
        }
        QpTransition::UdToReceive => {
            attr.qp_state = sys::IBV_QPS_RTR;
            sys::IBV_QP_STATE
        }
        QpTransition::UcToReceive(ref rtr) => {
            attr.qp_state = sys::IBV_QPS_RTR;
            attr.ah_attr = attributes(&rtr.av, port);
            attr.path_mtu = sys::ibv_mtu::from(rtr.path_mtu.code());
            attr.dest_qp_num = rtr.dest_qpn.get();
            attr.rq_psn = rtr.rq_psn.get();
            sys::IBV_QP_STATE
                | sys::IBV_QP_AV
                | sys::IBV_QP_PATH_MTU
                | sys::IBV_QP_DEST_QPN
                | sys::IBV_QP_RQ_PSN
        }
        QpTransition::RcToReceive(ref rtr) => {
            attr.qp_state = sys::IBV_QPS_RTR;
            attr.ah_attr = attributes(&rtr.av, port);
            attr.path_mtu = sys::ibv_mtu::from(rtr.path_mtu.code());
            attr.dest_qp_num = rtr.dest_qpn.get();
            attr.rq_psn = rtr.rq_psn.get();
            attr.max_dest_rd_atomic = remote.answered;
            attr.min_rnr_timer = rtr.min_rnr_timer;
            sys::IBV_QP_STATE
                | sys::IBV_QP_AV
                | sys::IBV_QP_PATH_MTU
                | sys::IBV_QP_DEST_QPN
                | sys::IBV_QP_RQ_PSN
                | sys::IBV_QP_MAX_DEST_RD_ATOMIC
                | sys::IBV_QP_MIN_RNR_TIMER
        }
        QpTransition::UdToSend { sq_psn } | QpTransition::UcToSend { sq_psn } => {
            attr.qp_state = sys::IBV_QPS_RTS;
            attr.sq_psn = sq_psn.get();
            sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN
        }
        QpTransition::RcToSend(ref rts) => {
            attr.qp_state = sys::IBV_QPS_RTS;
            attr.sq_psn = rts.sq_psn.get();
            attr.timeout = rts.timeout;
            attr.retry_cnt = rts.retry_count;
            attr.rnr_retry = rts.rnr_retry;
            attr.max_rd_atomic = remote.asked;
            sys::IBV_QP_STATE
                | sys::IBV_QP_SQ_PSN
                | sys::IBV_QP_TIMEOUT
                | sys::IBV_QP_RETRY_CNT
                | sys::IBV_QP_RNR_RETRY
                | sys::IBV_QP_MAX_QP_RD_ATOMIC
        }
        QpTransition::UdQKey(qkey) => {
            attr.qp_state = sys::IBV_QPS_RTS;
            attr.qkey = qkey.0;
            sys::IBV_QP_STATE | sys::IBV_QP_QKEY
        }
        QpTransition::RecoverSend => {
            attr.qp_state = sys::IBV_QPS_RTS;
            attr.cur_qp_state = sys::IBV_QPS_SQE;
            sys::IBV_QP_STATE | sys::IBV_QP_CUR_STATE
        }
        QpTransition::DrainSend { notify } => {
            attr.qp_state = sys::IBV_QPS_SQD;
            attr.en_sqd_async_notify = notify.into();
            sys::IBV_QP_STATE | sys::IBV_QP_EN_SQD_ASYNC_NOTIFY
        }
        QpTransition::ResumeSend => {
            attr.qp_state = sys::IBV_QPS_RTS;
            attr.cur_qp_state = sys::IBV_QPS_SQD;
            sys::IBV_QP_STATE | sys::IBV_QP_CUR_STATE
        }
        QpTransition::ToError => {
            attr.qp_state = sys::IBV_QPS_ERR;
            sys::IBV_QP_STATE
        }
        QpTransition::ToReset => {
            attr.qp_state = sys::IBV_QPS_RESET;
            sys::IBV_QP_STATE
        }
    };
    (attr, mask)
}

const fn qkey_of(to: &QpTransition) -> QKey {
    match to {
        QpTransition::UdToInit { qkey, .. } | QpTransition::UdQKey(qkey) => *qkey,
        _ => QKey(0),
    }
}

const fn name(to: &QpTransition) -> &'static str {
    match to {
        QpTransition::UdToInit { .. } | QpTransition::RcToInit { .. } | QpTransition::UcToInit { .. } => {
            "INIT"
        }
        QpTransition::UdToReceive | QpTransition::RcToReceive(_) | QpTransition::UcToReceive(_) => "RTR",
        QpTransition::UdToSend { .. } | QpTransition::RcToSend(_) | QpTransition::UcToSend { .. } => "RTS",
        QpTransition::UdQKey(_) => "another Q_Key",
        QpTransition::RecoverSend | QpTransition::ResumeSend => "RTS again",
        QpTransition::DrainSend { .. } => "SQD",
        QpTransition::ToError => "ERR",
        QpTransition::ToReset => "RESET",
    }
}

const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::SqDraining | QpState::SqDrained => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

/// Converts the library's state.
pub(super) const fn state(state: sys::ibv_qp_state) -> QpState {
    match state {
        sys::IBV_QPS_RESET => QpState::Reset,
        sys::IBV_QPS_INIT => QpState::Init,
        sys::IBV_QPS_RTR => QpState::Rtr,
        // This driver never requests SQD.
        sys::IBV_QPS_RTS => QpState::Rts,
        sys::IBV_QPS_SQD => QpState::SqDrained,
        sys::IBV_QPS_SQE => QpState::Sqe,
        _ => QpState::Err,
    }
}

/// True if IBA defines this transition for this kind of queue pair and state. Providers are lenient and
/// differ.
const fn allowed(connected: bool, from: QpState, to: &QpTransition) -> bool {
    use QpTransition as To;
    let of_this_kind = match to {
        To::RcToInit { .. } | To::RcToReceive(_) | To::RcToSend(_) => connected,
        To::UdToInit { .. } | To::UdToReceive | To::UdToSend { .. } | To::UdQKey(_) | To::RecoverSend => {
            !connected
        }
        // Such queue pairs are not created here.
        To::UcToInit { .. } | To::UcToReceive(_) | To::UcToSend { .. } => false,
        To::DrainSend { .. } | To::ResumeSend | To::ToError | To::ToReset => true,
    };
    of_this_kind
        && match to {
            To::UdToInit { .. } | To::RcToInit { .. } | To::UcToInit { .. } => matches!(from, QpState::Reset),
            To::UdToReceive | To::RcToReceive(_) | To::UcToReceive(_) => matches!(from, QpState::Init),
            To::UdToSend { .. } | To::RcToSend(_) | To::UcToSend { .. } => matches!(from, QpState::Rtr),
            To::UdQKey(_) | To::DrainSend { .. } => matches!(from, QpState::Rts),
            To::ResumeSend => matches!(from, QpState::SqDraining | QpState::SqDrained),
            To::RecoverSend => matches!(from, QpState::Sqe),
            To::ToError => !matches!(from, QpState::Reset),
            To::ToReset => true,
        }
}

/// Moves a queue pair to another state.
pub(super) fn modify(
    qp: &QueuePair,
    connected: bool,
    (port, remote): (PortNumber, &RemoteAccess),
    to: &QpTransition,
) -> Result<(), HcaError> {
    let from = state(qp.state()?);
    if !allowed(connected, from, to) {
        return Err(HcaError::BadTransition { qpn: qp.number(), from: state_name(from), to: name(to) });
    }
    let (mut attr, mask) = request(to, (port, remote));
    qp.modify(&mut attr, mask).map_err(|errno| {
        let what = format!("moving queue pair {} to {}", qp.number(), name(to));
        remedy::qkey(qkey_of(to), what, io::Error::from_raw_os_error(errno))
    })
}

#[cfg(test)]
mod tests {
    use ib_wire::{Lid, Mtu, Psn, Qpn, Rate, ServiceLevel};

    use super::*;
    use crate::hca::{AddressVector, RcToReceive, RcToSend};

    #[test]
    fn each_transition_sets_what_it_must_and_nothing_else() {
        let av = AddressVector {
            dlid: Lid(7),
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::new(0),
            grh: None,
        };
        let port = PortNumber(1);
        let (attr, mask) = request(
            &QpTransition::RcToReceive(RcToReceive {
                av,
                dest_qpn: Qpn::new(0x11),
                rq_psn: Psn::new(0x222),
                path_mtu: Mtu::B2048,
                min_rnr_timer: 12,
            }),
            (port, &RemoteAccess::default()),
        );
        assert_eq!((attr.dest_qp_num, attr.rq_psn, attr.path_mtu), (0x11, 0x222, 4));
        assert_eq!((attr.ah_attr.dlid, attr.ah_attr.port_num, attr.min_rnr_timer), (7, 1, 12));
        // The optional attributes of IBA 11.2.4.2 are not set.
        assert_eq!(mask, 0x1 | 0x80 | 0x100 | 0x10_0000 | 0x1000 | 0x2_0000 | 0x8000);
        let (attr, mask) = request(
            &QpTransition::RcToSend(RcToSend {
                sq_psn: Psn::new(9),
                timeout: 14,
                retry_count: 1,
                rnr_retry: 2,
            }),
            (port, &RemoteAccess::default()),
        );
        assert_eq!((attr.sq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry), (9, 14, 1, 2));
        assert_eq!(mask, 0x1 | 0x1_0000 | 0x200 | 0x400 | 0x800 | 0x2000);
    }

    #[test]
    fn transitions_that_iba_lacks_are_refused() {
        let init = QpTransition::RcToInit { pkey_index: 0 };
        assert!(allowed(true, QpState::Reset, &init));
        assert!(!allowed(false, QpState::Reset, &init));
        assert!(!allowed(true, QpState::Rts, &init));
        assert!(!allowed(false, QpState::Err, &QpTransition::RecoverSend));
        assert!(!allowed(true, QpState::Reset, &QpTransition::ToError));
        assert!(allowed(true, QpState::Err, &QpTransition::ToReset));
    }
}
