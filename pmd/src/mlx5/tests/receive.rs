//! Receive queue entries: families `rq` and `srq`, the latter from two releases of libmlx5.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use serde_json::Value;

use super::{Arena, assert_same, bytes, family, hex, list, number, record_bytes, unwrapped};
use crate::mlx5::rings::{DoorbellRecord, SrqRing};
use crate::mlx5::rq::ReceiveQueue;
use crate::mlx5::srq::SharedReceiveQueue;
use prm::DataSegment;

fn pieces(wr: &Value) -> Vec<DataSegment> {
    list(&wr["sg_list"])
        .iter()
        .map(|s| DataSegment::new(number(&s["addr"]), number(&s["length"]) as u32, number(&s["lkey"]) as u32))
        .collect()
}

#[test]
fn receives_are_those_of_libmlx5() {
    let vectors = family("rq.json");
    assert_eq!(vectors.len(), 8);
    for (name, vector) in vectors {
        let (slots, stride) = (number(&vector["qp"]["rq_wqe_count"]), number(&vector["qp"]["rq_stride"]));
        let mut arena = Arena::new((slots * stride) as usize + 8192);
        let rings = arena.qp(0x123, 8, slots as u32, stride as u32);
        let mut rq = ReceiveQueue::new(&rings);
        let before = u64::from_str_radix(&vector["dbrec"]["before"].as_str().unwrap()[..8], 16).unwrap();
        for _ in 0..before {
            rq.post([]).unwrap();
            rq.publish();
            rq.take().unwrap();
        }
        for wr in list(&vector["posted"]) {
            rq.post(pieces(wr)).unwrap();
        }
        rq.publish();
        for wqe in list(&vector["wqes"]) {
            let theirs = bytes(&wqe["bytes"]);
            let size = (slots * stride) as usize;
            let ours = unwrapped(&rings.rq_buf, size, (number(&wqe["slot"]) * stride) as usize, theirs.len());
            assert_same(&name, &ours, &theirs, &wqe["untouched"]);
        }
        assert_eq!(record_bytes(&rings.dbrec), bytes(&vector["dbrec"]["after"]), "{name}");
    }
}

fn slot_bytes(ring: &SrqRing, slot: usize, len: usize) -> Vec<u8> {
    unwrapped(&ring.buf, ring.buf.len(), slot * ring.stride as usize, len)
}

#[test]
fn shared_receives_are_those_of_libmlx5() {
    let mut ran = 0;
    for (name, vector) in family("srq.json") {
        if !name.starts_with("post_") {
            continue;
        }
        let srq = &vector["srq"];
        let (slots, stride) = (number(&srq["granted_max_wr"]) as u32 + 1, number(&srq["stride"]) as u32);
        let mut arena = Arena::new(16 * stride as usize + 4096);
        let ring = arena.srq(slots, number(&srq["ring_slots"]) as u32, stride);
        let mut queue = SharedReceiveQueue::new(&ring, ring.slots - 1);
        assert_eq!(queue.max_segments() as u64, number(&srq["granted_max_sge"]));
        for wr in list(&vector["posted"]) {
            queue.post(&pieces(wr), ()).unwrap();
        }
        queue.publish();
        for wqe in list(&vector["wqes"]) {
            let theirs = bytes(&wqe["bytes"]);
            let ours = slot_bytes(&ring, number(&wqe["slot"]) as usize, theirs.len());
            assert_same(&name, &ours, &theirs, &wqe["untouched"]);
        }
        assert_eq!(
            hex(&record_bytes(&ring.dbrec)[..4]),
            vector["after"]["dbrec"].as_str().unwrap(),
            "{name}"
        );
        assert_eq!(queue.next_slot().unwrap() as u64, number(&vector["after"]["head"]), "{name}");
        ran += 1;
    }
    assert_eq!(ran, 7);
}

#[test]
fn a_receive_that_does_not_fit_stops_the_shared_queue_and_the_device_gets_nothing_of_it() {
    let mut arena = Arena::new(8192);
    let ring = arena.srq(4, 8, 32);
    let mut queue = SharedReceiveQueue::new(&ring, ring.slots - 1);
    let data = DataSegment::new(0x1000, 100, 7);
    queue.post(&[data], ()).unwrap();
    queue.publish();
    let published = record_bytes(&ring.dbrec);
    queue.shorten(ring.stride as usize);
    queue.post(&[data], ());
    assert!(queue.is_broken());
    queue.publish();
    assert_eq!(record_bytes(&ring.dbrec), published);
    assert_eq!((queue.room(), queue.post(&[data], ())), (0, None));
}

#[test]
fn a_doorbell_record_has_no_word_beyond_its_own() {
    let words = [AtomicU32::new(0), AtomicU32::new(0)];
    // SAFETY: both words live until the end of the test, and are touched as atomics only.
    let record = unsafe { DoorbellRecord::new(NonNull::from(&words[0]), 1) };
    assert!(record.has(0) && !record.has(1));
    record.store(0, 1);
    record.store(1, 2);
    assert_eq!((record.load(0), record.load(1)), (1, 0));
    assert_eq!(words.map(AtomicU32::into_inner), [1_u32.to_be(), 0]);
}

/// Compares the free list with both libmlx5 releases.
///
/// Release 44 changes a link when it polls; later releases do when they post, as this driver does. A device
/// that follows the links of posted slots finds the same: after each post, the chain of slots that it has not
/// consumed.
#[test]
fn slots_freed_out_of_order_are_chained_as_libmlx5_does() {
    let vector = family("srq.json").remove("consume_out_of_order_and_repost").unwrap();
    let mut arena = Arena::new(8192);
    let ring = arena.srq(4, 8, 32);
    let mut queue = SharedReceiveQueue::new(&ring, ring.slots - 1);
    let mut posts = 0;
    let data = |n: u64| DataSegment::new(0x7f11_2233_4400 + (n << 20), 100, 0x0018_0a00);
    for n in 0..3 {
        queue.post(&[data(n)], ()).unwrap();
    }
    queue.publish();
    for step in list(&vector["steps"]) {
        let what = step["step"].as_str().unwrap();
        if let Some(slot) = what.strip_prefix("polled the CQE of slot ") {
            let slot = slot.parse().unwrap();
            assert_eq!(queue.take(slot), Some(()));
            assert_eq!(queue.take(slot), None, "a slot completes once");
        } else if let Some(slot) = what.strip_prefix("posted again: goes to slot ") {
            let slot: usize = slot.parse().unwrap();
            assert_eq!(queue.post(&[data(9 + posts)], ()), Some(slot));
            queue.publish();
            posts += 1;
            let theirs = list(&step["ring"]).iter().find(|s| s["slot"] == slot).unwrap();
            let mut expected = bytes(&theirs["bytes"]);
            let ours = slot_bytes(&ring, slot, 32);
            // The address depends on the test harness.
            expected[24..].copy_from_slice(&ours[24..]);
            assert_eq!(hex(&ours), hex(&expected), "{what}");
            assert_eq!(
                hex(&record_bytes(&ring.dbrec)[..4]),
                step["state"]["dbrec"].as_str().unwrap(),
                "{what}"
            );
            assert_eq!(u64::from(queue.head()), number(&step["state"]["head"]), "{what}");
        } else if step.get("error").is_some() {
            assert_eq!(queue.post(&[data(0)], ()), None);
        } else {
            assert_eq!(
                hex(&record_bytes(&ring.dbrec)[..4]),
                step["state"]["dbrec"].as_str().unwrap(),
                "{what}"
            );
            for link in list(&step["links"]) {
                let ours = slot_bytes(&ring, number(&link["slot"]) as usize, 16);
                assert_eq!(hex(&ours), link["bytes"].as_str().unwrap(), "{what}");
            }
        }
    }
    assert_eq!(posts, 3);
}

#[test]
fn shared_receive_record_counts_modulo_65536() {
    let vector = family("srq.json").remove("doorbell_record_wraps_at_65536").unwrap();
    let mut arena = Arena::new(8192);
    let ring = arena.srq(4, 8, 32);
    let mut queue = SharedReceiveQueue::new(&ring, ring.slots - 1);
    let mut posts = 0;
    for step in list(&vector["dbrec_after_posts"]) {
        while posts < number(&step["posts"]) {
            let slot = queue.post(&[], ()).unwrap();
            queue.publish();
            queue.take(slot as u16).unwrap();
            posts += 1;
        }
        assert_eq!(hex(&record_bytes(&ring.dbrec)[..4]), step["dbrec"].as_str().unwrap());
    }
    assert_eq!(posts, 65_538);
}

/// Vectors that are identical in both releases are run once. This test checks that the known difference is
/// the only one.
#[test]
fn releases_of_libmlx5_differ_in_one_vector() {
    let (old, new) = (family("srq.json"), family("rdma-core-64/srq.json"));
    let differ: Vec<&String> =
        old.iter().filter(|(name, v)| new.get(*name) != Some(v)).map(|(name, _)| name).collect();
    assert_eq!(differ, ["consume_out_of_order_and_repost"]);
    assert_eq!((old.len(), new.len()), (16, 16));
    assert_eq!(7 + 7 + 2, 16, "the whole family is run: initial states, posts, and these two");
}

#[test]
fn a_ring_longer_than_its_queue_has_but_the_slots_in_use() {
    let mut arena = Arena::new(1 << 16);
    let mut queue = SharedReceiveQueue::new(&arena.srq(64, 64, 32), 5);
    let mut slots = BTreeSet::new();
    for _ in 0..100 {
        let posted: Vec<_> = std::iter::from_fn(|| queue.post(&[], ())).collect();
        assert_eq!(queue.outstanding(), 5);
        for slot in posted {
            slots.insert(slot);
            assert_eq!(queue.take(slot as u16), Some(()));
        }
    }
    assert_eq!(slots.len(), 6, "the posted ones and the reserved one");
}
