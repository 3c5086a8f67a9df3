//! Send queue entries, doorbell records and doorbells: families `rc_send`, `ud_send`, `umr`.

use ib_wire::{Gid, Lid, QKey, Qpn, Rate, ServiceLevel};
use serde_json::Value;

use super::{Arena, assert_same, bytes, family, list, number, record_bytes, unwrapped};
use crate::hca::{AddressVector, GlobalRoute, UdDestination};
use crate::mlx5::av::{Destination, address_vector};
use crate::mlx5::bus::Recorder;
use crate::mlx5::rings::Register;
use crate::mlx5::send::Remote;
use crate::mlx5::sq::{Full, Posted, Request, SendQueue};
use crate::mlx5::umr::{IndirectKey, Layout, Strided, UmrError, Window};
use prm::{DataSegment, SendOpcode, fm_ce_se, mkey_access};
use zerocopy::IntoBytes;

/// Vectors that do not apply to a driver that posts SENDs, with reasons.
const SKIPPED: &[(&str, &str)] = &[
    ("send_1_sge_signature", "signatures are not used by these queue pairs"),
    (
        "queue_full",
        "no posts in it: libmlx5 counts entries against max_send_wr, this driver WQEBBs against the ring",
    ),
    ("ud_underlay", "underlay queue pairs are not used: the datagram queue pair is a plain one"),
    ("ud_underlay_csum", "as ud_underlay"),
    ("ud_underlay_inline", "as ud_underlay"),
    ("create_mkey_4", "a command to the firmware, not an entry of a queue"),
    ("create_mkey_5", "as create_mkey_4"),
    ("create_mkey_4_remote_invalidate", "as create_mkey_4"),
    ("create_mkey_4_update_tag", "as create_mkey_4"),
];

fn pieces(sg_list: &Value) -> Vec<DataSegment> {
    list(sg_list)
        .iter()
        .map(|s| DataSegment::new(number(&s["addr"]), number(&s["length"]) as u32, number(&s["lkey"]) as u32))
        .collect()
}

fn av(ah: &Value) -> AddressVector {
    let grh = ah["is_global"].as_bool().unwrap().then(|| GlobalRoute {
        dgid: Gid(bytes(&ah["dgid"]).try_into().unwrap()),
        sgid_index: number(&ah["sgid_index"]) as u8,
        flow_label: number(&ah["flow_label"]) as u32,
        hop_limit: number(&ah["hop_limit"]) as u8,
        traffic_class: number(&ah["traffic_class"]) as u8,
    });
    AddressVector {
        dlid: Lid(number(&ah["dlid"]) as u16),
        sl: ServiceLevel::new(number(&ah["sl"]) as u8),
        src_path_bits: number(&ah["src_path_bits"]) as u8,
        rate: Rate::new(number(&ah["static_rate"]) as u8),
        grh,
    }
}

/// Converts verbs access flags to the device's.
fn rights(flags: u64) -> u8 {
    [
        (1, mkey_access::LOCAL_WRITE),
        (2, mkey_access::REMOTE_WRITE),
        (4, mkey_access::REMOTE_READ),
        (8, mkey_access::ATOMIC),
    ]
    .iter()
    .filter(|(verbs, _)| flags & verbs != 0)
    .fold(0, |all, (_, ours)| all | ours)
}

fn post_key(sq: &mut SendQueue, flags: u8, wr: &Value, max_entries: usize) -> Result<Posted, UmrError> {
    let list_of = pieces(&wr["sg_list"]);
    let strided: Vec<Strided> = list(&wr["interleaved"])
        .iter()
        .map(|s| Strided {
            address: number(&s["addr"]),
            bytes: number(&s["bytes_count"]) as u16,
            skip: number(&s["bytes_skip"]) as u16,
            lkey: number(&s["lkey"]) as u32,
        })
        .collect();
    let layout = if wr.get("interleaved").is_some() {
        Some(Layout::Interleaved { repeat: number(&wr["repeat_count"]) as u32, pieces: &strided })
    } else {
        wr.get("sg_list").map(|_| Layout::List(&list_of))
    };
    let key = IndirectKey { mkey: number(&wr["mkey"]) as u32, max_entries };
    let access = wr.get("access_flags").map(|flags| rights(number(flags)));
    sq.post_key(flags, key, access, layout.as_ref())
}

/// Posts one work request of a vector.
fn post(sq: &mut SendQueue, wr: &Value, signalled: bool, key_entries: usize) -> Result<Posted, UmrError> {
    let has = |flag: &str| list(&wr["send_flags"]).iter().any(|f| f == flag);
    let mut flags = 0;
    for (name, bit) in
        [("SIGNALED", fm_ce_se::CQ_UPDATE), ("SOLICITED", fm_ce_se::SOLICITED), ("FENCE", fm_ce_se::FENCE)]
    {
        if has(name) {
            flags |= bit;
        }
    }
    if signalled {
        flags |= fm_ce_se::CQ_UPDATE;
    }
    let imm = || u32::from_be_bytes(bytes(&wr["imm_data_wire_bytes"]).try_into().unwrap());
    let remote = || Remote { address: number(&wr["remote_addr"]), rkey: number(&wr["rkey"]) as u32 };
    let data = if wr.get("addr").is_some() {
        vec![DataSegment::new(number(&wr["addr"]), number(&wr["length"]) as u32, number(&wr["lkey"]) as u32)]
    } else {
        pieces(&wr["sg_list"])
    };
    let name = wr["opcode"].as_str().unwrap();
    let (opcode, imm) = match name {
        "SEND" => (SendOpcode::Send, 0),
        "SEND_WITH_IMM" => (SendOpcode::SendImm, imm()),
        "SEND_WITH_INV" => (SendOpcode::SendInvalidate, number(&wr["invalidate_rkey"]) as u32),
        "RDMA_WRITE" => (SendOpcode::RdmaWrite, 0),
        "RDMA_WRITE_WITH_IMM" => (SendOpcode::RdmaWriteImm, imm()),
        "RDMA_READ" => (SendOpcode::RdmaRead, 0),
        "ATOMIC_CMP_AND_SWP" => (SendOpcode::CompareSwap, 0),
        "ATOMIC_FETCH_AND_ADD" => (SendOpcode::FetchAdd, 0),
        "LOCAL_INV" => {
            let key = wr.get("invalidate_rkey").unwrap_or(&wr["mkey"]);
            return Ok(sq.post_local_invalidate(flags, number(key) as u32)?);
        }
        "BIND_MW" => {
            let access = number(&wr["mw_access_flags"]);
            let window = Window {
                old_rkey: number(&wr["mw_rkey_old"]) as u32,
                new_rkey: number(&wr["mw_rkey_new"]) as u32,
                mr_lkey: number(&wr["mr_lkey"]) as u32,
                address: number(&wr["bind_addr"]),
                len: number(&wr["bind_length"]),
                access: rights(access),
                zero_based: access & 0x20 != 0,
            };
            return Ok(sq.post_bind_window(flags, &window)?);
        }
        _ => return post_key(sq, flags, wr, key_entries),
    };
    let request = Request { opcode, flags, imm };
    let destination = wr.get("ah").map(|ah| {
        Destination::new(&UdDestination {
            av: av(ah),
            qpn: Qpn::new(number(&wr["remote_qpn"]) as u32),
            qkey: Some(QKey(number(&wr["remote_qkey"]) as u32)),
        })
    });
    let posted = match opcode {
        SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm | SendOpcode::RdmaRead => {
            sq.post_rdma(request, remote(), data.len(), data.into_iter().map(Ok::<_, Full>))?
        }
        SendOpcode::CompareSwap => {
            sq.post_atomic(request, remote(), number(&wr["swap"]), number(&wr["compare_add"]), data[0])?
        }
        SendOpcode::FetchAdd => sq.post_atomic(request, remote(), number(&wr["compare_add"]), 0, data[0])?,
        _ if has("INLINE") => {
            let parts: Vec<Vec<u8>> = list(&wr["inline_data"]).iter().map(bytes).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            sq.post_inline(request, destination.as_ref().map(Destination::address), &parts)?
        }
        _ => {
            let count = data.len();
            let data = data.into_iter().map(Ok::<_, Full>);
            match &destination {
                Some(to) => sq.post_datagram(request, to.address(), count, data)?,
                None => sq.post_send(request, count, data)?,
            }
        }
    };
    Ok(posted)
}

fn run(name: &str, vector: &Value) {
    let qp = &vector["qp"];
    let size = number(&qp["sq_wqebb_count"]) as usize * 64;
    let mut arena = Arena::new(size + 4096);
    let mut rings = arena.qp(number(&qp["qpn"]) as u32, number(&qp["sq_wqebb_count"]) as u32, 4, 16);
    if name == "three_posts_shut_up_bf" {
        rings.register = Register::new(0x800, 0);
    }
    let mut sq = SendQueue::new(&rings);
    let mut bus = Recorder::default();

    // Advance the queue to the vector's start index, one WQEBB and one doorbell at a time.
    let before = number(&Value::String(format!(
        "0x{}",
        &vector["posts"][0]["dbrec"]["before"].as_str().unwrap()[8..]
    )));
    for _ in 0..before {
        sq.post_nop(0).unwrap();
        sq.ring(&mut bus);
        sq.retire(sq.posted());
    }
    for call in list(&vector["posts"]) {
        bus.rung.clear();
        let wrs = list(&call["posted"]);
        let refused = call.get("error").is_some();
        for wr in wrs {
            // A queue pair with sq_sig_all signals posts without the flag. This driver sets the flag in each
            // post.
            let result =
                post(&mut sq, wr, name == "send_sq_sig_all" || key_signalled(wrs, wr), key_entries(name));
            assert_eq!(result.is_err(), refused, "{name}: {result:?}");
        }
        sq.ring(&mut bus);
        for wqe in list(&call["wqes"]) {
            let len = number(&wqe["ds"]) as usize * 16;
            let ours = unwrapped(&rings.sq_buf, size, number(&wqe["ring_slot"]) as usize * 64, len);
            assert_same(name, &ours, &bytes(&wqe["bytes"]), &wqe["untouched"]);
        }
        assert_eq!(record_bytes(&rings.dbrec), bytes(&call["dbrec"]["after"]), "{name}: record");
        if call["doorbell"]["kind"] == "none" {
            assert!(bus.rung.is_empty(), "{name}: rang");
        } else {
            let [(register, first)] = bus.rung[..] else { panic!("{name}: {} doorbells", bus.rung.len()) };
            assert_eq!(first[..], bytes(&call["doorbell"]["bytes"])[..8], "{name}: doorbell");
            assert_eq!(register, number(&call["doorbell"]["register_offset"]), "{name}: register");
        }
    }
}

/// The `umr` vectors do not contain flags: the last request of a call is signaled.
fn key_signalled(wrs: &[Value], wr: &Value) -> bool {
    let keyed = wrs.iter().any(|w| w.get("send_flags").is_none());
    keyed && std::ptr::eq(wr, wrs.last().unwrap())
}

fn key_entries(name: &str) -> usize {
    if name == "mr_list_5_of_4" { 4 } else { 8 }
}

fn run_family(file: &str, expected: usize) {
    let mut ran = 0;
    for (name, vector) in family(file) {
        if name == "address_vectors" {
            continue;
        }
        if SKIPPED.iter().any(|(skipped, _)| *skipped == name) {
            continue;
        }
        run(&name, &vector);
        ran += 1;
    }
    assert_eq!(ran, expected, "{file}");
}

#[test]
fn rc_entries_are_those_of_libmlx5() {
    run_family("rc_send.json", 46 - 2);
}

#[test]
fn ud_entries_are_those_of_libmlx5() {
    run_family("ud_send.json", 13 - 3 - 1);
}

#[test]
fn umr_entries_are_those_of_libmlx5() {
    run_family("umr.json", 21 - 4);
}

#[test]
fn address_vectors_are_those_of_libmlx5() {
    let all = family("ud_send.json").remove("address_vectors").unwrap();
    let all = list(&all["address_vectors"]);
    assert_eq!(all.len(), 29);
    for vector in all {
        let ours = address_vector(&av(&vector["ah"]));
        assert_eq!(super::hex(ours.as_bytes()), vector["av"].as_str().unwrap(), "{vector}");
    }
}

#[test]
fn every_skipped_vector_exists() {
    let names: Vec<String> = ["rc_send.json", "ud_send.json", "umr.json"]
        .iter()
        .flat_map(|file| family(file).into_keys())
        .collect();
    for (skipped, _) in SKIPPED {
        assert!(names.iter().any(|name| name == skipped), "{skipped}");
    }
}

#[test]
fn an_entry_of_one_piece_is_the_same_by_the_short_way() {
    let mut arena = Arena::new(1 << 14);
    let rings = [arena.qp(0x4711, 8, 0, 0), arena.qp(0x4711, 8, 0, 0)];
    let [mut long, mut short] = rings.map(|r| SendQueue::new(&r));
    for lap in 0..100_u16 {
        let flags = if lap % 3 == 0 { fm_ce_se::CQ_UPDATE } else { 0 };
        let opcode = if lap % 5 == 0 { SendOpcode::SendImm } else { SendOpcode::Send };
        let request = Request { opcode, flags, imm: lap.into() };
        let data = DataSegment::new(0x1000 + u64::from(lap), 1 + u32::from(lap), 7);
        let by_long: Result<Posted, Full> = long.post_send(request, 1, [Ok(data)]);
        assert_eq!(short.post_single(request, data), by_long);
        let (mut theirs, mut ours) = (Recorder::default(), Recorder::default());
        // Queues fill up, reject posts and are emptied.
        if lap % 11 == 10 {
            assert_eq!(by_long, Err(Full));
            long.ring(&mut theirs);
            short.ring(&mut ours);
            long.retire(long.posted());
            short.retire(short.posted());
        }
        let bytes = |rung: &Recorder| rung.rung.iter().map(|(_, b)| *b).collect::<Vec<_>>();
        assert_eq!(bytes(&ours), bytes(&theirs));
        let [a, b] = rings.map(|r| r.sq_buf.read::<[u8; 512]>(0));
        assert_eq!(a, b, "lap {lap}");
    }
}
