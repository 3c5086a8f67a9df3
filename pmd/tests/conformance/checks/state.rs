//! States of queue pairs: every transition from every state.

use ib_wire::{Psn, QKey, Qpn};
use pmd::hca::{Backend, Control, HcaError, QpState, QpTransition, RcConfig};

use super::Check;
use crate::bench::{Bench, How, QKEY, UD, WORKER, rc_to_receive, rc_to_send};
use crate::lab::{Lab, Outcome, hold, same, wrong};

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("datagram: every transition from every state", datagram),
        Check::new("connected: every transition from every state", connected),
        Check::new("out-of-range attributes are an error and change nothing", attributes),
    ]
}

/// Returns the next state of a transition, by the queue pair's kind and state (IBA 10.3.1); `None` if it is
/// not allowed.
fn next(connected: bool, from: QpState, to: &QpTransition) -> Option<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqe};
    Some(match (to, from) {
        (QpTransition::UdToInit { .. }, Reset) if !connected => Init,
        (QpTransition::RcToInit { .. }, Reset) if connected => Init,
        (QpTransition::UdToReceive, Init) if !connected => Rtr,
        (QpTransition::RcToReceive(_), Init) if connected => Rtr,
        (QpTransition::UdToSend { .. }, Rtr) if !connected => Rts,
        (QpTransition::RcToSend(_), Rtr) if connected => Rts,
        (QpTransition::UdQKey(_), Rts) if !connected => Rts,
        (QpTransition::RecoverSend, Sqe) if !connected => Rts,
        (QpTransition::ToError, Init | Rtr | Rts | Sqe | Err) => Err,
        (QpTransition::ToReset, _) => Reset,
        _ => return None,
    })
}

fn transitions<L: Lab>(b: &Bench<'_, L>) -> Outcome<Vec<QpTransition>> {
    let how = How::default();
    Ok(vec![
        QpTransition::UdToInit { pkey_index: 0, qkey: QKEY },
        QpTransition::RcToInit { pkey_index: 0 },
        QpTransition::UdToReceive,
        rc_to_receive(b.way(0, false)?, Qpn::new(0x1234), 7, &how),
        QpTransition::UdToSend { sq_psn: Psn::new(0) },
        rc_to_send(9, &how),
        QpTransition::UdQKey(QKey(0x42)),
        QpTransition::RecoverSend,
        QpTransition::ToError,
        QpTransition::ToReset,
    ])
}

fn attempt<L: Lab>(
    b: &mut Bench<'_, L>,
    qpn: Qpn,
    connected: bool,
    way: &[QpTransition],
    all: &[QpTransition],
) -> Outcome {
    for to in all {
        b.ends[0].hca.modify_qp(qpn, &QpTransition::ToReset)?;
        for step in way {
            b.ends[0].hca.modify_qp(qpn, step)?;
        }
        let from = b.ends[0].state(qpn)?;
        let answer = b.ends[0].hca.modify_qp(qpn, to);
        let now = b.ends[0].state(qpn)?;
        match (next(connected, from, to), answer) {
            (Some(expected), Ok(())) => same!(now, expected, "state after {to:?} in {from:?}"),
            (None, Err(HcaError::BadTransition { qpn: reported, .. })) => {
                same!((reported, now), (qpn, from), "queue pair and state after {to:?} in {from:?}");
            }
            (Some(_), Err(e)) => return wrong(format!("{to:?} in {from:?}: {e}")),
            (None, answer) => return wrong(format!("{to:?} in {from:?} is not allowed, but: {answer:?}")),
        }
    }
    Ok(())
}

fn datagram<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let all = transitions(b)?;
    let way = [all[0], all[2], all[4]];
    let qpn = b.ends[0].ud;
    for steps in 0..=way.len() {
        attempt(b, qpn, false, &way[..steps], &all)?;
    }
    attempt(b, qpn, false, &[all[0], QpTransition::ToError], &all)
}

fn connected<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let all = transitions(b)?;
    let way = [all[1], all[3], all[5]];
    for passive in [false, true] {
        let config = RcConfig { queues: WORKER, port: b.lab.port(), beside: UD, send_depth: 4, passive };
        let rc = b.ends[0].hca.create_rc(&config)?;
        let qpn = L::Hca::rc_qpn(&rc);
        same!(b.ends[0].state(qpn)?, QpState::Reset, "first state");
        for steps in 0..=way.len() {
            attempt(b, qpn, true, &way[..steps], &all)?;
        }
        attempt(b, qpn, true, &[all[1], QpTransition::ToError], &all)?;
        b.ends[0].hca.destroy_rc(rc)?;
        hold!(b.ends[0].hca.qp_state(qpn).is_err(), "a destroyed queue pair has a state");
    }
    Ok(())
}

fn attributes<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let ud = b.ends[0].ud;
    let len = b.ends[0].hca.port(b.lab.port())?.pkey_table_len;
    for pkey_index in [len, u16::MAX] {
        let to = QpTransition::UdToInit { pkey_index, qkey: QKEY };
        hold!(b.ends[0].hca.modify_qp(ud, &to).is_err(), "P_Key index {pkey_index} of {len} is taken");
        same!(b.ends[0].state(ud)?, QpState::Reset, "state");
    }
    b.ends[0].open_ud(QKEY)
}
