//! Packets received in one round, many of them on the fast path, give the same result as one per round, all
//! on the slow path, even if some packets are invalid.

use ib_wire::packet::{Bth, Extended, Headers, Lrh, Opcode, VirtualLane};
use ib_wire::{Lid, Mtu, PKey, Psn, Qpn, ServiceLevel};

use super::rig::*;
use crate::cable::{CableEnd, Crcs};
use crate::{Activity, DropReason, QpKind};
use hca::QpState;

/// Splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n) as usize
    }
}

/// MTU and first PSN of a list. Long packets have both CRCs computed in one pass, and their payloads are
/// copied with wide registers; the PSNs of some lists wrap.
fn measures(seed: u64) -> (Mtu, u32) {
    (if seed % 4 < 2 { Mtu::B256 } else { Mtu::B2048 }, if seed % 5 == 4 { 0xff_fff0 } else { 7 })
}

/// Packets of messages, some of them damaged, too short or too long, out of order, or missing. Every second
/// list is intact.
fn packets(seed: u64, qpn: Qpn) -> Vec<(Vec<u8>, Crcs)> {
    let mut dice = Dice(seed);
    let harm = seed % 2 == 1;
    let crcs = if dice.below(2) == 0 { Crcs::Present } else { Crcs::Absent };
    let (mtu, first) = measures(seed);
    let mtu = mtu.bytes();
    let (mut all, mut psn, mut left) = (Vec::new(), first, 0);
    for _ in 0..40 {
        let first = left == 0;
        left = if first { 1 + dice.below(8) } else { left } - 1;
        let opcode = match (first, left == 0) {
            (true, true) => Opcode::RcSendOnly,
            (true, false) => Opcode::RcSendFirst,
            (false, false) => Opcode::RcSendMiddle,
            (false, true) => Opcode::RcSendLast,
        };
        let len = if left > 0 { mtu } else { dice.below(mtu as u64) + usize::from(!first) };
        let wrong = |dice: &mut Dice, n| harm && dice.below(n) == 0;
        let opcode = if wrong(&mut dice, 30) { Opcode::from_byte(dice.below(8) as u8) } else { opcode };
        let len = if wrong(&mut dice, 30) { dice.below(2 * mtu as u64) } else { len };
        let bth = Bth {
            opcode,
            solicited: dice.below(4) == 0,
            migrated: true,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: qpn,
            ack_request: dice.below(4) == 0,
            psn: Psn::new(psn & 0xff_ffff),
        };
        let (vl, sl) = (VirtualLane::default(), ServiceLevel::new(0));
        let lrh = Lrh { vl, sl, dlid: Lid(1), slid: Lid(2) };
        let headers = Headers { lrh, grh: None, bth, extended: Extended::Bare };
        let mut bytes = vec![0; headers.packet_len(len)];
        if headers.write_packet(&pattern(len, psn.into()), &mut bytes).is_err() {
            continue;
        }
        if wrong(&mut dice, 12) {
            let at = dice.below(20);
            bytes[at] ^= 1 << dice.below(8);
            if dice.below(4) > 0 {
                ib_wire::crc::seal(&mut bytes);
            }
        }
        if wrong(&mut dice, 30) {
            let at = dice.below(bytes.len() as u64);
            bytes[at] ^= 1 << dice.below(8);
        }
        if wrong(&mut dice, 40) {
            bytes.truncate(1 + dice.below(bytes.len() as u64));
        }
        // Sometimes one is duplicated or missing.
        psn += u32::from(!wrong(&mut dice, 30)) + u32::from(wrong(&mut dice, 30));
        all.push((bytes, crcs));
    }
    all
}

/// Everything observable except acknowledges, of which one may replace several.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    drops: Vec<u64>,
    activity: Vec<u64>,
    state: QpState,
    expected: Option<Psn>,
    completions: Vec<Wc>,
    events: Vec<crate::DeviceEvent>,
    memory: Vec<u8>,
}

fn outcome(seed: u64, at_once: bool) -> Outcome {
    let (mut wire, theirs) = CableEnd::pair().unwrap();
    let (_idle, other) = CableEnd::pair().unwrap();
    let mut rig = Rig::over(theirs, other);
    // Segments end within packets and between them; some messages are longer than a receive, and some find
    // none.
    let (mtu, rq_psn) = measures(seed);
    let times = mtu.bytes() / 256;
    let piece = [100, 256, 700][seed as usize % 3] * times;
    let mut srq = SharedQueue::new(&mut rig.a.engine, 16, 1700 * times, piece);
    for _ in 0..3 + seed % 13 {
        srq.post();
    }
    let rc = rig.a.qp(QpKind::Rc, 16, Some(srq.number), 6);
    let how = Rc { mtu, rq_psn, ..Rc::default() };
    rig.a.connect(&rc, (Lid(2), Qpn::new(5)), how);
    for (bytes, crcs) in packets(seed, rc.qpn) {
        wire.forward(&bytes, crcs).unwrap();
        if !at_once {
            rig.a.engine.step(rig.now);
        }
    }
    rig.a.engine.step(rig.now);
    let what = [Activity::Received, Activity::Duplicates, Activity::SequenceNaks, Activity::RnrNaks];
    let counters = rig.a.engine.counters();
    Outcome {
        drops: DropReason::ALL.iter().map(|reason| counters.drops(*reason)).collect(),
        activity: what.into_iter().chain([Activity::Faults]).map(|what| counters.activity(what)).collect(),
        state: rig.a.engine.qp_state(rc.qpn).unwrap(),
        expected: rig.a.engine.qp_psns(rc.qpn).unwrap().1,
        completions: rig.a.rcq.all(),
        events: std::iter::from_fn(|| rig.a.engine.next_event()).collect(),
        memory: srq.buffers.get(0, srq.buffers.host().len()),
    }
}

#[test]
fn a_burst_gives_the_same_result_as_single_packets() {
    let mut reasons = std::collections::BTreeSet::new();
    let (mut completions, mut failed) = (0, 0);
    for seed in 0..300 {
        let together = outcome(seed, true);
        assert_eq!(together, outcome(seed, false), "list {seed}");
        let dropped = DropReason::ALL.iter().zip(&together.drops).filter(|(_, n)| **n > 0);
        reasons.extend(dropped.map(|(reason, _)| reason.name()));
        completions += together.completions.len();
        failed += usize::from(together.state == QpState::Err);
    }
    assert!(completions > 500 && (50..250).contains(&failed), "{completions}, {failed}");
    for name in
        ["malformed", "vcrc", "not_our_lid", "wrong_source", "pkey", "no_queue_pair", "out_of_sequence"]
    {
        assert!(reasons.contains(name), "{name} never happened: {reasons:?}");
    }
}
