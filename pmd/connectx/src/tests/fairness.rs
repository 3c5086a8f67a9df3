//! Room that is short goes to all who want it.

use ib_wire::Lid;

use super::rig::*;
use crate::{DropReason, QpKind};

/// Senders without end to their own port: each fills, in its turn, what is left of the way back there.
const ENDLESS: usize = 8;
/// Datagrams that each has posted before each turn: more than it sends in one. An entry takes two blocks of its ring.
const POSTED: u64 = 120;
const MESSAGES: usize = 40;

/// A datagram queue pair that has more posted than it sends in a turn.
fn endless_sender(host: &mut Host, user_index: u32) -> Pair {
    let qp = host.qp(QpKind::Ud, 256, None, user_index);
    host.open_ud(&qp, 3);
    qp
}

#[test]
fn who_sends_to_its_own_port_beside_others_without_end_gets_its_messages_through() {
    let mut rig = Rig::new();
    let (m, key) = rig.a.memory(64);
    // Datagrams that nobody has receives for: what counts here is who gets to send.
    let sink = rig.a.ud(3, 1);
    let piece = data(64, key, m.address());
    let to = To { lid: Lid(1), qpn: sink.qpn, qkey: 3, grh: None };
    let mut endless: Vec<_> = (0..ENDLESS).map(|n| endless_sender(&mut rig.a, 100 + n as u32)).collect();
    let (mut posted, mut sent) = ([0_u64; ENDLESS], [0_u64; ENDLESS]);
    let (mut one, mut other) = (rig.a.ud(3, 2), rig.a.ud(3, 3));
    let (into, there) = rig.a.memory(64 * 256);
    let beside = To { qpn: other.qpn, ..to.clone() };
    let (mut arrived, mut completed) = (0, 0);
    for round in 0..400 {
        for ((qp, posted), sent) in endless.iter_mut().zip(&mut posted).zip(&sent) {
            while *posted - sent < POSTED {
                rig.a.send_ud(qp, &to, &[piece]);
                *posted += 1;
            }
        }
        // Behind the others, when they are under way.
        if (10..10 + MESSAGES).contains(&round) {
            rig.a.receive(&mut other, &[data(256, there, into.address())]);
            rig.a.send_ud(&mut one, &beside, &[piece]);
        }
        rig.a.engine.step(rig.now);
        for wc in rig.a.scq.all() {
            match wc.user_index.checked_sub(100) {
                Some(n) => sent[n as usize] += 1,
                None => completed += 1,
            }
        }
        arrived += rig.a.rcq.all().len();
    }
    assert_eq!((arrived, completed), (MESSAGES, MESSAGES));
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(*least > 0 && most - least <= most / 4, "shares of room: {sent:?}");
    assert_eq!(rig.a.drops(DropReason::LoopbackFull), 0);
}
