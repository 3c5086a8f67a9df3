//! Completion queue entries and records: families `cqe` and `cq`.

use serde_json::Value;

use super::{Arena, bytes, family, hex, list, number, record_bytes};
use crate::hca::WcStatus;
use crate::mlx5::cq::{Completion, CompletionQueue, Extra, What};
use crate::mlx5::rings::CqRing;
use prm::{Cqe, SendOpcode};

/// Vectors that are not run, with reasons.
const SKIPPED: &[(&str, &str)] = &[
    ("rc_srq_inline_scatter_32", "inline payload: queue pairs do not use it (see Arrival::inline)"),
    ("rc_rq_inline_scatter_32", "as rc_srq_inline_scatter_32"),
    ("req_read_inline_scatter", "as rc_srq_inline_scatter_32"),
    ("unknown_index", "the library's own table; the driver uses the queue pair number"),
    ("unknown_index_v0", "as unknown_index"),
    ("srqn_in_place_of_index", "as unknown_index"),
];

/// Verbs status codes in the order of `ibv_wc_status`.
fn status(code: u64) -> WcStatus {
    match code {
        0 => WcStatus::Success,
        1 => WcStatus::LocalLength,
        2 => WcStatus::LocalQpOperation,
        4 => WcStatus::LocalProtection,
        5 => WcStatus::Flushed,
        6 => WcStatus::MemoryWindowBind,
        7 => WcStatus::BadResponse,
        8 => WcStatus::LocalAccess,
        9 => WcStatus::RemoteInvalidRequest,
        10 => WcStatus::RemoteAccess,
        11 => WcStatus::RemoteOperation,
        12 => WcStatus::RetryExceeded,
        13 => WcStatus::RnrRetryExceeded,
        16 => WcStatus::RemoteAborted,
        21 => WcStatus::General,
        other => panic!("status {other}"),
    }
}

fn send_opcode(code: u8, theirs: &str) -> bool {
    let ours = SendOpcode::from_code(code);
    match theirs {
        "SEND" => matches!(ours, Some(SendOpcode::Send | SendOpcode::SendImm | SendOpcode::SendInvalidate)),
        "RDMA_WRITE" => matches!(ours, Some(SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm)),
        "RDMA_READ" => ours == Some(SendOpcode::RdmaRead),
        "COMP_SWAP" => ours == Some(SendOpcode::CompareSwap),
        "FETCH_ADD" => ours == Some(SendOpcode::FetchAdd),
        "LOCAL_INV" | "BIND_MW" => ours == Some(SendOpcode::Umr),
        other => panic!("opcode {other}"),
    }
}

/// The vector's queue: its number of slots, the slots already consumed, then the entries.
fn queue(vector: &Value) -> (Arena, CqRing, CompletionQueue) {
    let slots = number(&vector["cq_slots"]) as usize;
    let mut arena = Arena::new(slots * 64 + 4096);
    let ring = arena.cq(slots as u32);
    let mut cq = CompletionQueue::new(&ring);
    let start = number(&vector["consumer_index_before"]) as usize;
    for index in 0..start {
        let cqe = Cqe { op_own: u8::from(index / slots % 2 == 1), ..Cqe::default() };
        ring.buf.write(index % slots * 64, &cqe);
        assert!(cq.poll().is_some());
    }
    cq.publish();
    assert_eq!(record_bytes(&ring.dbrec), bytes(&vector["cq_dbrec"]["before"]));
    for (i, cqe) in list(&vector["cqes"]).iter().enumerate() {
        ring.buf.write((start + i) % slots * 64, bytes(cqe).as_slice());
    }
    (arena, ring, cq)
}

fn check(name: &str, completion: &Completion, wc: &Value) {
    assert_eq!(u64::from(completion.qpn), number(&wc["qp_num"]), "{name}");
    let theirs = status(number(&wc["status_code"]));
    match completion.what {
        What::SendFailed(failure) | What::ReceiveFailed(failure) => {
            assert_eq!(failure.status, theirs, "{name}");
            assert_eq!(u64::from(failure.vendor), number(&wc["vendor_err"]), "{name}");
        }
        What::Sent { opcode } => {
            assert_eq!(theirs, WcStatus::Success, "{name}");
            assert!(
                send_opcode(opcode, wc["opcode"].as_str().unwrap()),
                "{name}: {opcode:#x} {}",
                wc["opcode"]
            );
        }
        What::Received(arrival) => {
            assert_eq!(theirs, WcStatus::Success, "{name}");
            assert!(wc["opcode"].as_str().unwrap().starts_with("RECV"), "{name}");
            assert_eq!(u64::from(arrival.byte_len), number(&wc["byte_len"]), "{name}");
            assert_eq!(u64::from(arrival.src_qpn), number(&wc["src_qp"]), "{name}");
            assert_eq!(u64::from(arrival.slid), number(&wc["slid"]), "{name}");
            assert_eq!(u64::from(arrival.sl), number(&wc["sl"]), "{name}");
            assert_eq!(u64::from(arrival.dlid_path_bits), number(&wc["dlid_path_bits"]), "{name}");
            assert_eq!(u64::from(arrival.pkey_index), number(&wc["pkey_index"]), "{name}");
            let has = |flag: &str| list(&wc["wc_flags"]).iter().any(|f| f == flag);
            assert_eq!(arrival.grh, has("GRH"), "{name}");
            let extra = if has("WITH_IMM") {
                Extra::Immediate(u32::from_be_bytes(bytes(&wc["imm_data_wire_bytes"]).try_into().unwrap()))
            } else if has("WITH_INV") {
                Extra::Invalidated(number(&wc["invalidated_rkey"]) as u32)
            } else {
                Extra::None
            };
            assert_eq!(arrival.extra, extra, "{name}");
        }
        What::Unknown(code) => panic!("{name}: opcode {code}"),
    }
}

#[test]
fn completions_are_read_as_libmlx5_reads_them() {
    let vectors = family("cqe.json");
    assert_eq!(vectors.len(), 91);
    let mut ran = 0;
    for (name, vector) in vectors {
        if SKIPPED.iter().any(|(skipped, _)| *skipped == name) {
            continue;
        }
        let (_arena, ring, mut cq) = queue(&vector);
        let completions: Vec<Completion> =
            std::iter::from_fn(|| cq.poll()).map(|cqe| Completion::of(&cqe)).collect();
        cq.publish();
        assert_eq!(completions.len() as u64, number(&vector["ibv_poll_cq_returned"]), "{name}");
        assert_eq!(record_bytes(&ring.dbrec), bytes(&vector["cq_dbrec"]["after"]), "{name}");
        for (completion, wc) in completions.iter().zip(list(&vector["wc"])) {
            check(&name, completion, wc);
        }
        ran += 1;
    }
    assert_eq!(ran, 91 - SKIPPED.len());
}

#[test]
fn every_skipped_vector_exists() {
    let vectors = family("cqe.json");
    assert!(SKIPPED.iter().all(|(name, _)| vectors.contains_key(*name)));
}

#[test]
fn arming_is_that_of_libmlx5() {
    let vector = family("cq.json").remove("arm").unwrap();
    let mut arena = Arena::new(8192);
    let ring = arena.cq(32);
    let mut cq = CompletionQueue::new(&ring);
    let mut polled = 0;
    for step in list(&vector["steps"]) {
        let before = step["dbrec_before"].as_str().unwrap();
        let consumer = usize::from_str_radix(&before[..8], 16).unwrap();
        while polled < consumer {
            ring.buf.write(polled * 64, &Cqe::default());
            assert!(cq.poll().is_some());
            polled += 1;
        }
        cq.publish();
        let what = step["step"].as_str().unwrap();
        let events = what.strip_prefix("after ").map_or(0, |rest| rest[..1].parse().unwrap());
        let register = cq.arm(events, step["solicited_only"].as_bool().unwrap());
        assert_eq!(hex(&register), step["register_bytes"].as_str().unwrap(), "{what}");
        assert_eq!(hex(&record_bytes(&ring.dbrec)), step["dbrec_after"].as_str().unwrap(), "{what}");
    }
}

#[test]
fn consumer_index_counts_modulo_two_to_the_24() {
    let vector = family("cq.json").remove("consumer_index").unwrap();
    let mut arena = Arena::new(8192);
    let ring = arena.cq(8);
    let mut cq = CompletionQueue::new(&ring);
    let mut polled: u64 = 0;
    for step in list(&vector["dbrec_after"]) {
        while polled < number(&step["polled"]) {
            ring.buf.write((polled % 8) as usize * 64 + 63, &(u8::from(polled / 8 % 2 == 1)));
            assert!(cq.poll().is_some());
            polled += 1;
        }
        cq.publish();
        assert_eq!(hex(&record_bytes(&ring.dbrec)), step["dbrec"].as_str().unwrap(), "{polled}");
    }
    assert_eq!(polled, 16_777_217);
}

#[test]
fn owner_bit_turns_over_with_each_lap() {
    let vector = family("cq.json").remove("owner_bit").unwrap();
    let mut arena = Arena::new(8192);
    let ring = arena.cq(4);
    let initially: Vec<u8> = (0..256).map(|i| ring.buf.read::<u8>(i)).collect();
    assert_eq!(hex(&initially), vector["ring_initially"].as_str().unwrap());
    let mut cq = CompletionQueue::new(&ring);
    for lap in list(&vector["laps"]) {
        let last = number(&lap["slot"]) as usize * 64 + 63;
        let taken = number(&lap["owner_bit_taken"]) as u8;
        ring.buf.write(last, &(taken ^ 1));
        assert!(cq.poll().is_none(), "{lap}");
        ring.buf.write(last, &taken);
        assert!(cq.poll().is_some(), "{lap}");
    }
    assert_eq!(list(&vector["laps"]).len(), 13);
}
