//! Receive rings recorded from libmlx5. The device consumes the slots in the order of their links, writes
//! messages to the segments that they name, and reports the slots in its completions.

use ib_wire::packet::{Bth, Extended, Headers, Lrh, Opcode};
use ib_wire::{Lid, Mtu, PKey, Psn, Qpn};
use serde_json::Value;

use super::ring::*;
use super::{FIRST_PSN, family, hex, number};
use crate::tests::rig::*;
use crate::{DropReason, QpKind};
use hca::WcStatus;

/// Both releases of the library: they chain freed slots differently.
const SHARED: [&str; 2] = ["srq.json", "rdma-core-64/srq.json"];
/// These contain sizes and no bytes, so no message can arrive. They only test whether the device accepts the
/// sizes.
const SIZES: [&str; 4] =
    ["initial_1024_wr_1_sge", "initial_4_wr_2_sge", "initial_4_wr_17_sge", "initial_4_wr_31_sge"];
/// Work requests and the slots that they became.
const POSTED: [&str; 7] = [
    "post_1",
    "post_3",
    "post_2_sge_of_3",
    "post_3_sge_of_3",
    "post_17_sge",
    "post_0_sge",
    "post_zero_length_sge",
];
const OUT_OF_ORDER: &str = "consume_out_of_order_and_repost";
const RECORD: &str = "doorbell_record_wraps_at_65536";

#[test]
fn the_shared_families_contain_the_replayed_vectors() {
    for file in SHARED {
        let names: Vec<_> = family(file).iter().map(|v| v["name"].as_str().unwrap().to_owned()).collect();
        let known = [&CREATED[..], &SIZES, &POSTED, &[OUT_OF_ORDER, RECORD]].concat();
        assert_eq!(names, known, "{file}");
        for name in SIZES {
            let srq = &named(file, name)["srq"];
            let (slots, stride) = (number(&srq["ring_slots"]) as usize, number(&srq["stride"]) as usize);
            Bench::new(CONNECTED, (slots, stride), true);
        }
    }
}

#[test]
fn a_ring_as_created_is_taken_in_the_order_of_its_links() {
    let mut run = 0;
    for file in SHARED {
        for name in CREATED {
            let vector = named(file, name);
            let granted = number(&vector["srq"]["granted_max_wr"]) as usize;
            for service in [CONNECTED, DATAGRAM] {
                let mut bench = Bench::of_shared(service, file, &vector["srq"]);
                let sge = |slot: usize| Sge {
                    address: 0x7f11_2233_4400 + 0x1000 * slot as u64,
                    length: 100,
                    key: 0x0018_0a00,
                };
                let all: Vec<_> = (0..=granted).map(sge).collect();
                bench.register(&all);
                for slot in array(&vector["ring"]) {
                    let at = number(&slot["slot"]) as usize;
                    assert_eq!(bench.link(at), hex(&slot["bytes"])[..16]);
                    if let Some(sge) = all.get(at) {
                        let bytes = [bench.link(at), data(100, sge.key, sge.address).to_vec()].concat();
                        bench.put(at, &bytes);
                    }
                }
                bench.record(&(granted as u32).to_be_bytes());
                for slot in 0..granted {
                    bench.deliver(&all[slot..=slot], 100, slot as u16, name);
                }
                // The slot before the library's wait queue closes the circle.
                if service.kind == QpKind::Ud {
                    bench.is_dry(name);
                    bench.record(&(granted as u32 + 2).to_be_bytes());
                    bench.deliver(&all[granted..], 80, granted as u16, name);
                    bench.deliver(&all[..1], 70, 0, name);
                }
                bench.is_dry(name);
            }
            run += 1;
        }
    }
    assert_eq!(run, 2 * CREATED.len());
}

/// A bench with the posted entries of a shared-queue vector in memory.
fn posted(service: Service, file: &str, vector: &Value, key: fn(u32) -> u32) -> Bench {
    let bench = Bench::of_shared(service, file, &vector["srq"]);
    for wqe in array(&vector["wqes"]) {
        bench.put(number(&wqe["slot"]) as usize, &slot_bytes(wqe, 16, key));
    }
    bench.record(&hex(&vector["after"]["dbrec"]));
    bench
}

#[test]
fn shared_receives_of_the_library_are_filled() {
    let mut run = 0;
    for file in SHARED {
        for name in POSTED {
            let vector = named(file, name);
            assert_eq!(hex(&vector["before"]["dbrec"]), [0; 4], "{name}");
            let all: Vec<_> = array(&vector["posted"]).iter().map(|r| sges(r, apart)).collect();
            let total: usize = all[0].iter().map(|s| s.length).sum();
            for service in [CONNECTED, IN_PACKETS, DATAGRAM, ROUTED] {
                let fresh = || {
                    let mut bench = posted(service, file, &vector, apart);
                    bench.register(&all.concat());
                    bench
                };
                let least = fresh().overhead();
                for len in lengths(&all[0]).into_iter().filter(|&n| n >= least) {
                    let mut bench = fresh();
                    for (sges, wqe) in all.iter().zip(array(&vector["wqes"])) {
                        bench.deliver(sges, len, number(&wqe["slot"]) as u16, name);
                    }
                    bench.is_dry(name);
                }
                let slot = number(&vector["wqes"][0]["slot"]) as u16;
                fresh().fail(&all[0], (total + 1).max(least), slot, WcStatus::LocalLength, name);
            }
            run += 1;
        }
    }
    assert_eq!(run, 2 * POSTED.len());
}

#[test]
fn the_keys_of_the_library_count_with_their_tags() {
    let (mut one, mut more) = (0, 0);
    for file in SHARED {
        for name in POSTED {
            let vector = named(file, name);
            // No byte is changed here, and only the first segment's key exists.
            let all: Vec<_> = array(&vector["posted"]).iter().map(|r| sges(r, |key| key)).collect();
            let Some(&first) = all[0].first() else { continue };
            let firsts: Vec<_> = all.iter().map(|s| s[0]).collect();
            let mut bench = posted(CONNECTED, file, &vector, |key| key);
            bench.register(&firsts);
            for (slot, sge) in firsts.iter().enumerate() {
                bench.deliver(&[*sge], first.length, slot as u16, name);
            }
            one += 1;
            if all[0].len() > 1 {
                // It covers the others' addresses as well: only the tag shows that they are not its own.
                let reached: Vec<_> = all[0].iter().map(|s| Sge { key: first.key, ..*s }).collect();
                let mut bench = posted(CONNECTED, file, &vector, |key| key);
                bench.register(&reached);
                bench.fail(&[first], first.length + 1, 0, WcStatus::LocalProtection, name);
                more += 1;
            }
        }
    }
    assert_eq!((one, more), (12, 8));
}

/// The slot that a step of the vector posts to.
fn reposted(step: &Value) -> Option<u16> {
    step["step"].as_str().unwrap().strip_prefix("posted again: goes to slot ")?.parse().ok()
}

/// Replays the vector: messages arrive, the library polls and writes links, and posts again. With `late`, all
/// new receives are posted before another message arrives.
fn consume(file: &str, late: bool) -> Vec<u16> {
    let vector = named(file, OUT_OF_ORDER);
    let three = named(file, "post_3");
    let created = named(file, "initial_3_wr_1_sge");
    assert_eq!(vector["ring_slots"], created["srq"]["ring_slots"]);
    let steps = array(&vector["steps"]);
    let mut bench = Bench::of_shared(CONNECTED, file, &created["srq"]);
    let mut all: Vec<_> = array(&three["posted"]).iter().flat_map(|r| sges(r, apart)).collect();
    let segment = |bytes: &[u8]| Sge {
        address: u64::from_be_bytes(bytes[24..32].try_into().unwrap()),
        length: u32::from_be_bytes(bytes[16..20].try_into().unwrap()) as usize,
        key: u32::from_be_bytes(bytes[20..24].try_into().unwrap()),
    };
    for step in steps {
        if let Some(slot) = reposted(step) {
            all.push(segment(&hex(&array(&step["ring"])[usize::from(slot)]["bytes"])));
        }
    }
    assert_eq!(all.len(), 6);
    bench.register(&all);
    for (slot, wqe) in array(&three["wqes"]).iter().enumerate() {
        bench.put(slot, &hex(&wqe["bytes"]));
    }

    let (mut taken, mut waiting, mut played) = (Vec::new(), Vec::new(), 0);
    for step in steps {
        let what = step["step"].as_str().unwrap();
        if !step["error"].is_null() {
            // The library rejects it: nothing reaches the device.
            continue;
        }
        for (slot, link) in step["links"].as_array().into_iter().flatten().enumerate() {
            assert_eq!(number(&link["slot"]) as usize, slot);
            bench.put(slot, &hex(&link["bytes"]));
        }
        for (slot, whole) in step["ring"].as_array().into_iter().flatten().enumerate() {
            bench.put(slot, &hex(&whole["bytes"]));
        }
        bench.record(&hex(&step["state"]["dbrec"]));
        if let Some(slot) = reposted(step) {
            waiting.push((slot, all[taken.len() + waiting.len()]));
        }
        if what == "posted 3" {
            // The messages arrive before the library polls, which then happens in another order.
            waiting = (0..3).map(|slot| (slot, all[usize::from(slot)])).collect();
        }
        if what == "posted 3" || !late || waiting.len() == 3 {
            for (slot, sge) in waiting.drain(..) {
                bench.deliver(&[sge], 100, slot, what);
                taken.push(slot);
            }
        }
        played += 1;
    }
    assert_eq!((played, waiting.len()), (7, 0));
    bench.is_dry(file);
    taken
}

#[test]
fn links_are_read_when_a_slot_is_taken() {
    for late in [false, true] {
        // Release 44 chains freed slots behind the tail when it polls, release 64 when it posts.
        assert_eq!(consume("srq.json", late), [0, 1, 2, 3, 2, 0]);
        assert_eq!(consume("rdma-core-64/srq.json", late), [0, 1, 2, 3, 0, 1]);
    }
}

#[test]
fn messages_that_end_out_of_order_name_their_slots() {
    for (file, expected) in SHARED.into_iter().zip([[3u16, 2, 0], [3, 0, 1]]) {
        let vector = named(file, OUT_OF_ORDER);
        let created = named(file, "initial_3_wr_1_sge");
        let (ring, dbrec) = (Memory::new(8 * 32), Memory::new(8));
        let mut bench = super::Bench::new();
        let host = &mut bench.host;
        let srq = host.engine.create_srq(ring.part(0, 256), 32, dbrec.part(0, 8)).unwrap();
        let (memory, key) = host.memory(8 * 512);
        for slot in array(&created["ring"]) {
            let at = number(&slot["slot"]);
            // The vector's links; its receives of 100 bytes are too short for a message of two packets.
            ring.put(at as usize * 32, &hex(&slot["bytes"])[..16]);
            ring.put(at as usize * 32 + 16, &data(512, key, memory.address() + 512 * at));
        }
        let qps: Vec<_> = (0..3)
            .map(|i| {
                let qp = host.qp(QpKind::Rc, 16, Some(srq), i);
                let how = Rc { rq_psn: FIRST_PSN, mtu: Mtu::B256, ..Rc::default() };
                host.connect(&qp, (Lid(2), Qpn::new(0x400 + i)), how);
                qp
            })
            .collect();
        let mut psns = [FIRST_PSN; 3];
        let mut packet = |bench: &mut super::Bench, i: usize, opcode: Opcode, len: usize| {
            let headers = Headers {
                lrh: Lrh { dlid: Lid(0x10), slid: Lid(2), ..Lrh::default() },
                grh: None,
                bth: Bth {
                    opcode,
                    solicited: false,
                    migrated: true,
                    pkey: PKey::DEFAULT,
                    fecn: false,
                    becn: false,
                    dest_qpn: qps[i].qpn,
                    ack_request: false,
                    psn: Psn::new(psns[i]),
                },
                extended: Extended::Bare,
            };
            psns[i] += 1;
            let payload = pattern(len, psns[i].into());
            bench
                .wire
                .send_with(headers.packet_len(len), |out| _ = headers.write_packet(&payload, out))
                .unwrap();
            bench.step();
            let got = bench.host.rcq.all();
            assert!(got.iter().all(|w| w.status == WcStatus::Success && w.user_index == i as u32));
            (got.iter().map(|w| w.counter).collect::<Vec<_>>(), payload)
        };

        // Consumed in the order 0, 1, 2 and completed in the order 2, 0, 1, as in the vector.
        let steps = array(&vector["steps"]);
        dbrec.put(0, &hex(&steps[0]["state"]["dbrec"]));
        let (done, zero) = packet(&mut bench, 0, Opcode::RcSendFirst, 256);
        assert!(done.is_empty());
        assert!(packet(&mut bench, 1, Opcode::RcSendFirst, 256).0.is_empty());
        let ends = [(2, 2, Opcode::RcSendOnly), (0, 0, Opcode::RcSendLast), (1, 1, Opcode::RcSendLast)];
        for ((slot, qp, opcode), step) in ends.into_iter().zip(&steps[1..]) {
            let (done, _) = packet(&mut bench, qp, opcode, 200);
            assert_eq!(done, [slot]);
            assert_eq!(step["step"], format!("polled the CQE of slot {slot}"));
            for link in array(&step["links"]) {
                ring.put(number(&link["slot"]) as usize * 32, &hex(&link["bytes"]));
            }
        }
        assert_eq!(memory.get(0, 256), zero);
        for (slot, step) in expected.into_iter().zip(&steps[4..]) {
            assert_eq!(reposted(step), Some(slot));
            for whole in array(&step["ring"]) {
                ring.put(number(&whole["slot"]) as usize * 32, &hex(&whole["bytes"])[..16]);
            }
            dbrec.put(0, &hex(&step["state"]["dbrec"]));
            let (done, payload) = packet(&mut bench, usize::from(slot) % 3, Opcode::RcSendOnly, 100);
            assert_eq!(done, [slot]);
            assert_eq!(memory.get(usize::from(slot) * 512, 100), payload);
        }
    }
}

#[test]
fn the_record_of_a_shared_queue_goes_round() {
    let mut run = 0;
    for file in SHARED {
        let vector = named(file, RECORD);
        let created = named(file, CREATED[0]);
        let mut bench = Bench::of_shared(DATAGRAM, file, &created["srq"]);
        let ring: Vec<_> = (0..8)
            .map(|slot| Sge { address: 0x7f11_2233_4400 + 0x1000 * slot, length: 100, key: 0x0018_0a00 })
            .collect();
        bench.register(&ring);
        for (slot, sge) in ring.iter().enumerate() {
            let bytes = [bench.link(slot), data(100, sge.key, sge.address).to_vec()].concat();
            bench.put(slot, &bytes);
        }
        let steps = array(&vector["dbrec_after_posts"]);
        bench.pass(number(&steps[0]["posts"]) - 1);
        for step in steps {
            bench.is_dry(RECORD);
            bench.record(&hex(&step["dbrec"]));
            // Slots 0 to 7 are the circle.
            let slot = (number(&step["posts"]) - 1) as usize % 8;
            bench.deliver(&ring[slot..=slot], 100, slot as u16, RECORD);
            run += 1;
        }
        bench.is_dry(RECORD);
    }
    assert_eq!(run, 10);
}

/// A bench with the posted entries of a plain receive queue vector, after the device has consumed all earlier
/// ones.
fn plain(service: Service, vector: &Value, key: fn(u32) -> u32) -> (Bench, u16) {
    let qp = &vector["qp"];
    let size = (number(&qp["rq_wqe_count"]) as usize, number(&qp["rq_stride"]) as usize);
    let mut bench = Bench::new(service, size, false);
    let before = hex(&vector["dbrec"]["before"]);
    let first = u16::from_be_bytes([before[2], before[3]]);
    bench.pass(first.into());
    bench.record(&before[..4]);
    for wqe in array(&vector["wqes"]) {
        bench.put(number(&wqe["slot"]) as usize, &slot_bytes(wqe, 0, key));
    }
    (bench, first)
}

#[test]
fn plain_receives_of_the_library_are_filled() {
    let mut run = Vec::new();
    for vector in family("rq.json") {
        let name = vector["name"].as_str().unwrap();
        let all: Vec<_> = array(&vector["posted"]).iter().map(|r| sges(r, apart)).collect();
        let total: usize = all[0].iter().map(|s| s.length).sum();
        let is_ud = vector["qp"]["type"] == "UD";
        let services = if is_ud { [DATAGRAM, ROUTED] } else { [CONNECTED, IN_PACKETS] };
        for service in services {
            let fresh = || {
                let (mut bench, first) = plain(service, &vector, apart);
                bench.register(&all.concat());
                bench.is_dry(name);
                if !is_ud {
                    // The rejected message is retried: start again.
                    (bench, _) = plain(service, &vector, apart);
                    bench.register(&all.concat());
                }
                bench.record(&hex(&vector["dbrec"]["after"])[..4]);
                (bench, first)
            };
            let least = fresh().0.overhead();
            for len in lengths(&all[0]).into_iter().filter(|&n| n >= least) {
                let (mut bench, first) = fresh();
                for (i, (sges, wqe)) in all.iter().zip(array(&vector["wqes"])).enumerate() {
                    // The counter continues behind the end of the ring; the slot is its remainder.
                    let counter = first.wrapping_add(i as u16);
                    assert_eq!(u64::from(counter % 8), number(&wqe["slot"]), "{name}");
                    bench.deliver(sges, len, counter, name);
                }
                bench.is_dry(name);
            }
            let (mut bench, first) = fresh();
            if is_ud {
                // No peer can consume a receive with a datagram that is too long.
                bench.send(total + 1 - least);
                assert_eq!(bench.rig.b.drops(DropReason::ReceiveTooShort), 1, "{name}");
                bench.deliver(&all[0], total, first, name);
            } else {
                bench.fail(&all[0], total + 1, first, WcStatus::LocalLength, name);
            }
            if all[0].len() > 1 {
                // As recorded, only the first key can exist; it covers the others' addresses as well.
                let reached: Vec<_> = all[0].iter().map(|s| Sge { key: all[0][0].key, ..*s }).collect();
                let (mut bench, first) = plain(service, &vector, |key| key);
                bench.register(&reached);
                bench.record(&hex(&vector["dbrec"]["after"])[..4]);
                bench.fail(&all[0][..1], all[0][0].length + 1, first, WcStatus::LocalProtection, name);
            }
        }
        run.push(name.to_owned());
    }
    assert_eq!(
        run,
        [
            "ud_2_sge",
            "ud_1_sge_of_2",
            "ud_1_sge_of_1",
            "rc_3_sge",
            "rc_zero_length_sge",
            "rc_0_sge",
            "wrap",
            "counter_65535"
        ]
    );
}
