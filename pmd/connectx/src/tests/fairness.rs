//! Room that is short goes to all who want it.

use ib_wire::packet::{Bth, Deth, Extended, Headers, Lrh, Opcode, VirtualLane};
use ib_wire::{Lid, PKey, Psn, QKey, Qpn, ServiceLevel};

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

/// A packet of the agent's to its own port, as the answer to somebody who says that his LID is ours.
fn answer_to_ourselves() -> Box<[u8]> {
    let bth = Bth {
        opcode: Opcode::UdSendOnly,
        solicited: false,
        migrated: true,
        pkey: PKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: Qpn::SMI,
        ack_request: false,
        psn: Psn::new(0),
    };
    let lrh = Lrh { vl: VirtualLane::new(15), sl: ServiceLevel::new(0), dlid: Lid(1), slid: Lid(1) };
    let extended = Extended::Deth(Deth { qkey: QKey(0), src_qpn: Qpn::SMI });
    let headers = Headers { lrh, grh: None, bth, extended };
    let payload = [0; 256];
    let mut packet = vec![0; headers.packet_len(payload.len())];
    headers.write_packet(&payload, &mut packet).unwrap();
    packet.into()
}

#[test]
fn the_agent_answers_beside_queue_pairs_that_send_without_end() {
    let mut rig = Rig::new();
    let (m, key) = rig.a.memory(64);
    let sink = rig.a.ud(3, 1);
    let piece = data(64, key, m.address());
    let to = To { lid: Lid(1), qpn: sink.qpn, qkey: 3, grh: None };
    let mut endless: Vec<_> = (0..ENDLESS).map(|n| endless_sender(&mut rig.a, 100 + n as u32)).collect();
    for round in 0..20 {
        for qp in &mut endless {
            // As much as a turn sends; what is left of the ring is used up before the end.
            for _ in 0..if round == 0 { POSTED } else { 32 } {
                rig.a.send_ud(qp, &to, &[piece]);
            }
        }
        if round == 10 {
            rig.a.engine.port_mut(PORT).unwrap().answer(answer_to_ourselves());
        }
        rig.a.engine.step(rig.now);
        rig.a.scq.all();
        let waits = rig.a.engine.port_mut(PORT).unwrap().has_answers();
        assert!(!waits, "round {round}");
    }
}
