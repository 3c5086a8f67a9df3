//! Scarce room is shared by all senders.

use ib_wire::{Lid, Qpn};

use super::rig::*;
use super::subnet::headers;
use crate::{DropReason, QpKind};

/// Endless senders to their own port: each, when served, fills what is left of the loopback queue.
const ENDLESS: usize = 8;
/// Datagrams posted by each before each step: more than it sends in one. An entry has two blocks.
const POSTED: u64 = 120;
const MESSAGES: usize = 40;

/// User index of the first of them.
const FIRST: u32 = 100;

/// Datagram queue pairs that have more posted than they send in a step.
struct Endless {
    qps: Vec<Pair>,
    /// A queue pair without receives: only the order of sending matters here.
    to: To,
    piece: [u8; 16],
    _memory: Memory,
    posted: [u64; ENDLESS],
    sent: [u64; ENDLESS],
}

impl Endless {
    fn new(host: &mut Host) -> Self {
        let one = |n| {
            let qp = host.qp(QpKind::Ud, 256, None, FIRST + n as u32);
            host.open_ud(&qp, 3);
            qp
        };
        let qps = (0..ENDLESS).map(one).collect();
        let (memory, key) = host.memory(64);
        let to = To { lid: Lid(1), qpn: host.ud(3, 1).qpn, qkey: 3, grh: None };
        let piece = data(64, key, memory.address());
        Self { qps, to, piece, _memory: memory, posted: [0; ENDLESS], sent: [0; ENDLESS] }
    }

    fn post(&mut self, host: &mut Host) {
        for ((qp, posted), sent) in self.qps.iter_mut().zip(&mut self.posted).zip(&self.sent) {
            while *posted - sent < POSTED {
                host.send_ud(qp, &self.to, &[self.piece]);
                *posted += 1;
            }
        }
    }

    /// Consumes their completions and returns the number of completions of other queue pairs.
    fn complete(&mut self, host: &mut Host) -> usize {
        let mut others = 0;
        for wc in host.scq.all() {
            match wc.user_index.checked_sub(FIRST) {
                Some(n) => self.sent[n as usize] += 1,
                None => others += 1,
            }
        }
        others
    }
}

#[test]
fn a_loopback_sender_among_endless_ones_gets_its_messages_through() {
    let mut rig = Rig::new();
    let mut endless = Endless::new(&mut rig.a);
    let (mut one, mut other) = (rig.a.ud(3, 2), rig.a.ud(3, 3));
    let (into, there) = rig.a.memory(64 * 256);
    let to_other = To { qpn: other.qpn, ..endless.to.clone() };
    let (mut arrived, mut completed) = (0, 0);
    for round in 0..400 {
        endless.post(&mut rig.a);
        // After the others have started.
        if (10..10 + MESSAGES).contains(&round) {
            rig.a.receive(&mut other, &[data(256, there, into.address())]);
            rig.a.send_ud(&mut one, &to_other, &[endless.piece]);
        }
        rig.a.engine.step(rig.now);
        completed += endless.complete(&mut rig.a);
        arrived += rig.a.rcq.all().len();
    }
    assert_eq!((arrived, completed), (MESSAGES, MESSAGES));
    let sent = endless.sent;
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(*least > 0 && most - least <= most / 4, "shares of room: {sent:?}");
    assert_eq!(rig.a.drops(DropReason::LoopbackFull), 0);
}

/// A packet of the agent to its own port, as the response to a requester that claims our LID.
fn answer_to_ourselves() -> Box<[u8]> {
    let headers = headers(15, Lid(1), Lid(1), Qpn::SMI);
    let payload = [0; 256];
    let mut packet = vec![0; headers.packet_len(payload.len())];
    headers.write_packet(&payload, &mut packet).unwrap();
    packet.into()
}

#[test]
fn the_agent_answers_while_queue_pairs_send_endlessly() {
    let mut rig = Rig::new();
    let mut endless = Endless::new(&mut rig.a);
    for round in 0..20 {
        endless.post(&mut rig.a);
        if round == 10 {
            rig.a.engine.port_mut(PORT).unwrap().answer(answer_to_ourselves());
        }
        rig.a.engine.step(rig.now);
        endless.complete(&mut rig.a);
        let waits = rig.a.engine.port_mut(PORT).unwrap().has_answers();
        assert!(!waits, "round {round}");
    }
}
