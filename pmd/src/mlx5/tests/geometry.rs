//! Sizes of rings: family `geometry`.

use super::{family, hex, list, number};
use crate::hca::{PortNumber, QueuesId, RcConfig, UdSlot};
use crate::mlx5::rings::{
    CqGeometry, QpGeometry, QpRequest, Register, SendOperations, SrqGeometry, Transport,
};

#[test]
fn queue_pairs_are_as_large_as_libmlx5_makes_them() {
    let mut ran = 0;
    for (name, vector) in family("geometry.json") {
        let Some(asked) = vector.get("asked") else { continue };
        let get = |field: &str| number(&asked[field]) as u32;
        let request = QpRequest {
            transport: if asked["type"] == "RC" { Transport::Rc } else { Transport::Ud },
            send_wr: get("max_send_wr"),
            send_sge: get("max_send_sge"),
            recv_wr: get("max_recv_wr"),
            recv_sge: get("max_recv_sge"),
            inline_data: get("max_inline_data"),
            operations: if asked["send_ops"].as_str().unwrap().starts_with("SEND") {
                SendOperations::SendOnly
            } else {
                SendOperations::All
            },
        };
        let ours = QpGeometry::new(&request).unwrap();
        let theirs = &vector["mlx5dv"];
        assert_eq!(u64::from(ours.sq_wqebbs), number(&theirs["sq_wqe_cnt"]), "{name}");
        assert_eq!(u64::from(ours.rq_slots), number(&theirs["rq_wqe_cnt"]), "{name}");
        assert_eq!(u64::from(ours.rq_stride), number(&theirs["rq_stride"]), "{name}");
        assert_eq!(u64::from(ours.sq_offset), number(&theirs["sq_offset_in_buffer"]), "{name}");
        assert_eq!(u64::from(ours.max_inline), number(&vector["granted"]["max_inline_data"]), "{name}");
        if ours.rq_slots > 0 {
            assert_eq!(u64::from(ours.max_recv_sge), number(&vector["granted"]["max_recv_sge"]), "{name}");
        }
        ran += 1;
    }
    assert_eq!(ran, 10);
}

#[test]
fn completion_queues_are_as_large_as_libmlx5_makes_them() {
    let mut ran = 0;
    for (name, vector) in family("geometry.json") {
        let Some(asked) = vector.get("asked_cqe") else { continue };
        let ours = CqGeometry::new(number(asked) as u32).unwrap();
        assert_eq!(u64::from(ours.slots), number(&vector["ring_slots"]), "{name}");
        let mut arena = super::Arena::new(ours.bytes() + 4096);
        let ring = arena.cq(ours.slots);
        for (slot, theirs) in [(0, "first_cqe_initially"), (ours.slots as usize - 1, "last_cqe_initially")] {
            assert_eq!(
                hex(&ring.buf.read::<[u8; 64]>(slot * 64)),
                vector[theirs].as_str().unwrap(),
                "{name}"
            );
        }
        assert_eq!(hex(&super::record_bytes(&ring.dbrec)), vector["dbrec_initially"].as_str().unwrap());
        ran += 1;
    }
    assert_eq!(ran, 5);
}

#[test]
fn shared_receive_queues_are_as_large_and_chained_as_libmlx5_makes_them() {
    let mut ran = 0;
    for (name, vector) in family("srq.json") {
        if !name.starts_with("initial") {
            continue;
        }
        let srq = &vector["srq"];
        let max = number(&vector["device_max_srq_wr"]) as u32;
        let ours =
            SrqGeometry::new(number(&srq["asked_max_wr"]) as u32, number(&srq["asked_max_sge"]) as u32, max)
                .unwrap();
        assert_eq!(u64::from(ours.ring_slots), number(&srq["ring_slots"]), "{name}");
        assert_eq!(u64::from(ours.stride), number(&srq["stride"]), "{name}");
        assert_eq!(u64::from(ours.slots) - 1, number(&srq["granted_max_wr"]), "{name}");
        assert_eq!(u64::from(ours.max_sge), number(&srq["granted_max_sge"]), "{name}");
        let mut arena = super::Arena::new(ours.bytes() + 4096);
        let ring = arena.srq(ours.slots, ours.ring_slots, ours.stride);
        assert_eq!(u64::from(ring.head), number(&vector["state"]["head"]));
        assert_eq!(u64::from(ring.tail), number(&vector["state"]["tail"]));
        for slot in list(&vector["ring"]) {
            let at = number(&slot["slot"]) as usize * ours.stride as usize;
            let bytes: Vec<u8> = (at..at + ours.stride as usize).map(|i| ring.buf.read::<u8>(i)).collect();
            assert_eq!(hex(&bytes), slot["bytes"].as_str().unwrap(), "{name}");
        }
        ran += 1;
    }
    assert_eq!(ran, 7);
}

#[test]
fn too_much_is_refused() {
    assert_eq!(SrqGeometry::new(40_000, 1, 32_767), None);
    assert_eq!(SrqGeometry::new(65_536, 1, u32::MAX), None);
    assert_eq!(CqGeometry::new(u32::MAX), None);
}

#[test]
fn register_halves_take_turns() {
    let mut register = Register::new(0x800, 0x100);
    let written: Vec<u64> = (0..3).map(|_| register.turn_over()).collect();
    assert_eq!(written, [0x800, 0x900, 0x800]);
}

#[test]
fn a_queue_pair_that_only_receives_has_the_usual_minimum_of_sends() {
    let config = RcConfig {
        queues: QueuesId(0),
        port: PortNumber(1),
        beside: UdSlot(0),
        send_depth: 1,
        passive: true,
    };
    let asked = QpRequest::connection(&config);
    assert_eq!((asked.send_wr, asked.geometry().unwrap().sq_wqebbs), (4, 4));
}
