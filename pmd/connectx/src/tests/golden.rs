//! The device against vectors recorded from libmlx5 (`pmd/tests/data/mlx5`): it executes those entries, and
//! it writes the completions that the library accepts.

mod receive;
mod ring;
mod umr;

use std::path::Path;

use ib_wire::packet::{Aeth, Bth, Credit, Extended, Headers, Lrh, Opcode, Packet, Syndrome};
use ib_wire::{Lid, Mtu, PKey, Psn, Qpn};
use serde_json::Value;

use super::rig::*;
use crate::cable::CableEnd;
use crate::object::cq::{Cq, Overrun};
use crate::object::moderation::Notify;
use crate::{Access, QpKind};
use hca::WcStatus;
use prm::{Cqe, CqeOpcode, Syndrome as CqeSyndrome};

const FIRST_PSN: u32 = 100;

fn family(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/mlx5").join(file);
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all["vectors"].as_array().unwrap().clone()
}

fn hex(value: &Value) -> Vec<u8> {
    let s = value.as_str().unwrap();
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn number(value: &Value) -> u64 {
    match value {
        Value::String(s) => u64::from_str_radix(&s[2..], 16).unwrap(),
        other => other.as_u64().unwrap(),
    }
}

/// A device with the keys and addresses of the vectors, and the raw other end of its cable.
struct Bench {
    host: Host,
    wire: CableEnd,
    now: std::time::Instant,
    memory: Vec<(u64, Memory)>,
}

impl Bench {
    fn new() -> Self {
        let (ours, theirs) = CableEnd::pair().unwrap();
        let mut host = Host::new(1);
        host.engine.set_cable(PORT, Some(theirs)).unwrap();
        host.engine.activate(PORT, Lid(0x10), Mtu::B4096).unwrap();
        let port = host.engine.port_mut(PORT).unwrap();
        port.lmc = 3;
        let mut guids = port.gids.block(0).unwrap();
        guids.guids[1] = ib_wire::Guid(0x99);
        assert_eq!(port.gids.set_block(0, &guids), Some(true));
        let mut memory = Vec::new();
        for (key, start, len) in [
            (0x0018_0a00, 0x7f11_2233_4400, 8192),
            (0x0018_0b01, 0x7f22_3344_5510, 65_536),
            (0x0018_0c02, 0x7f33_4455_6621, 64),
        ] {
            let m = Memory::new(len);
            m.put(0, &pattern(len, u64::from(key)));
            // Addresses that do not exist here: the device must translate by the key.
            assert!(host.engine.dev.mrs.register_as(key, start, m.part(0, len).into(), Access::LOCAL));
            memory.push((start, m));
        }
        Self { host, wire: ours, now: std::time::Instant::now(), memory }
    }

    fn at(&self, address: u64, len: usize) -> Vec<u8> {
        let (start, m) =
            self.memory.iter().find(|(s, m)| address >= *s && address - s < m.host().len() as u64).unwrap();
        m.get((address - start) as usize, len)
    }

    /// The payload of a work request according to the vector.
    fn payload(&self, posted: &Value) -> Vec<u8> {
        if let Some(inline) = posted["inline_data"].as_array() {
            return inline.iter().flat_map(hex).collect();
        }
        let list = posted["sg_list"].as_array().map_or(&[][..], Vec::as_slice);
        list.iter().flat_map(|s| self.at(number(&s["addr"]), number(&s["length"]) as usize)).collect()
    }

    fn step(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for _ in 0..20 {
            self.host.engine.step(self.now);
            self.wire.receive(100, |p| packets.push(p.to_vec()));
        }
        packets
    }

    fn acknowledge(&mut self, to: Qpn, psn: Psn) {
        let headers = Headers {
            lrh: Lrh { dlid: Lid(0x10), slid: Lid(2), ..Lrh::default() },
            grh: None,
            bth: Bth {
                opcode: Opcode::RcAcknowledge,
                solicited: false,
                migrated: true,
                pkey: PKey::DEFAULT,
                fecn: false,
                becn: false,
                dest_qpn: to,
                ack_request: false,
                psn,
            },
            extended: Extended::Aeth(Aeth { syndrome: Syndrome::Ack(Credit::INVALID), msn: Psn::new(1) }),
        };
        self.wire.send_with(headers.packet_len(0), |out| _ = headers.write_packet(&[], out)).unwrap();
        self.step();
    }
}

/// Posts all entries of a vector unchanged, in a ring of the vector's size, from the vector's index on.
#[must_use]
fn post(bench: &mut Bench, vector: &Value, kind: QpKind) -> Pair {
    let blocks = number(&vector["qp"]["sq_wqebb_count"]) as usize;
    let index = number(&vector["qp"]["user_index"]) as u32;
    let mut qp = bench.host.numbered(kind, blocks, None, index, Some(number(&vector["qp"]["qpn"]) as u32));
    match kind {
        QpKind::Rc => bench.host.connect(
            &qp,
            (Lid(2), Qpn::new(0x456)),
            Rc { sq_psn: FIRST_PSN, mtu: Mtu::B4096, ..Rc::default() },
        ),
        _ => bench.host.open_ud(&qp, 0x8000_0b1b),
    }
    let posts = vector["posts"].as_array().unwrap();
    let first = number(&posts[0]["wqes"][0]["wqe_index"]) as u16;
    qp.posted = first;
    bench.host.engine.qps.real(qp.qpn).unwrap().sq.head = first;
    for wqe in posts.iter().flat_map(|p| p["wqes"].as_array().unwrap()) {
        assert_eq!(number(&wqe["wqe_index"]) as u16, qp.posted);
        let mut bytes = hex(&wqe["bytes"]);
        for hole in wqe["untouched"].as_array().unwrap() {
            // A device must not read there.
            let (at, len) = (number(&hole[0]) as usize, number(&hole[1]) as usize);
            bytes[at..at + len].fill(0xee);
        }
        bench.host.post_raw(&mut qp, &bytes);
    }
    qp
}

fn posted(vector: &Value) -> Vec<(u16, Value)> {
    let mut all = Vec::new();
    for post in vector["posts"].as_array().unwrap() {
        let wqes = post["wqes"].as_array().unwrap();
        for (wqe, request) in wqes.iter().zip(post["posted"].as_array().unwrap()) {
            all.push((number(&wqe["wqe_index"]) as u16, request.clone()));
        }
    }
    all
}

fn has(request: &Value, flag: &str) -> bool {
    request["send_flags"].as_array().unwrap().iter().any(|f| f == flag)
}

#[test]
fn connected_sends_of_the_library_are_executed() {
    let (mut sent, mut refused) = (0, 0);
    for vector in family("rc_send.json") {
        let name = vector["name"].as_str().unwrap();
        if vector["posts"]
            .as_array()
            .is_none_or(|p| p.iter().all(|p| p["wqes"].as_array().is_none_or(Vec::is_empty)))
        {
            continue;
        }
        let mut bench = Bench::new();
        let qp = post(&mut bench, &vector, QpKind::Rc);
        let packets = bench.step();
        let mut packets = packets.iter().map(|p| Packet::parse(p).unwrap());
        let mut psn = Psn::new(FIRST_PSN);
        let mut expected = Vec::new();
        for (index, request) in posted(&vector) {
            let code = match request["opcode"].as_str().unwrap() {
                "SEND" => 0x0a,
                "SEND_WITH_IMM" => 0x0b,
                "SEND_WITH_INV" => 0x01,
                "RDMA_WRITE" => 0x08,
                "RDMA_WRITE_WITH_IMM" => 0x09,
                // READ and atomics are not permitted, and there are no such keys: the queue pair reports it
                // and stops.
                other => {
                    refused += 1;
                    let key = matches!(other, "LOCAL_INV" | "BIND_MW");
                    let status = if key { WcStatus::MemoryWindowBind } else { WcStatus::LocalQpOperation };
                    let failed = (index, status);
                    expected.push(failed);
                    break;
                }
            };
            // 2^31 in one segment reads as inline data of no length.
            let payload = if name == "send_1_sge_2g" { Vec::new() } else { bench.payload(&request) };
            let mut arrived = Vec::new();
            loop {
                let p = packets.next().unwrap_or_else(|| panic!("{name}: no packet for {index}"));
                assert_eq!(
                    (p.bth().psn, p.bth().dest_qpn, p.lrh().dlid),
                    (psn, Qpn::new(0x456), Lid(2)),
                    "{name}"
                );
                psn = psn.add(1);
                if let Some(reth) = p.extended().reth() {
                    assert_eq!(reth.address, number(&request["remote_addr"]), "{name}");
                    assert_eq!(u64::from(reth.rkey.0), number(&request["rkey"]), "{name}");
                    assert_eq!(reth.length as usize, payload.len(), "{name}");
                }
                arrived.extend_from_slice(p.payload());
                let end = matches!(
                    p.bth().opcode.to_byte(),
                    0x02..=0x05 | 0x08..=0x0b | 0x16 | 0x17
                );
                if end {
                    assert_eq!(p.bth().solicited, has(&request, "SOLICITED"), "{name}");
                    match p.extended() {
                        Extended::Immediate(imm) | Extended::RethImmediate(_, imm) => {
                            assert_eq!(imm[..], hex(&request["imm_data_wire_bytes"]), "{name}");
                        }
                        Extended::Ieth(key) => {
                            assert_eq!(u64::from(key.0), number(&request["invalidate_rkey"]), "{name}");
                        }
                        _ => assert!(matches!(code, 0x08 | 0x0a), "{name}"),
                    }
                    break;
                }
            }
            assert!(arrived == payload, "{name}: other bytes than the segments name");
            if has(&request, "SIGNALED") || name == "send_sq_sig_all" {
                expected.push((index, WcStatus::Success));
            }
            sent += 1;
        }
        drop(packets);
        if psn != Psn::new(FIRST_PSN) {
            bench.acknowledge(qp.qpn, psn.add(Psn::MASK));
        }
        let wc = bench.host.scq.all();
        let got: Vec<_> =
            wc.iter().map(|w| (w.counter, w.status)).filter(|w| w.1 != WcStatus::Flushed).collect();
        assert_eq!(got, expected, "{name}");
    }
    assert!(sent > 35 && refused > 8, "{sent} sent, {refused} refused");
}

#[test]
fn datagrams_of_the_library_are_executed() {
    let mut sent = 0;
    for vector in family("ud_send.json") {
        let name = vector["name"].as_str().unwrap();
        // Underlay queue pairs are created by a flag that this device does not support.
        if vector["posts"].is_null() || name.contains("underlay") {
            continue;
        }
        let mut bench = Bench::new();
        let _qp = post(&mut bench, &vector, QpKind::Ud);
        let packets = bench.step();
        let all = posted(&vector);
        assert_eq!(
            packets.len(),
            all.len(),
            "{name} {:?} {:?}",
            bench.host.engine.counters(),
            bench.host.scq.all()
        );
        for ((_, request), bytes) in all.iter().zip(&packets) {
            let p = Packet::parse(bytes).unwrap();
            let ah = &request["ah"];
            assert_eq!(u64::from(p.lrh().dlid.0), number(&ah["dlid"]), "{name}");
            assert_eq!(u64::from(p.lrh().sl.get()), number(&ah["sl"]), "{name}");
            assert_eq!(u64::from(p.lrh().slid.0), 0x10 + number(&ah["src_path_bits"]), "{name}");
            assert_eq!(u64::from(p.bth().dest_qpn.get()), number(&request["remote_qpn"]), "{name}");
            assert_eq!(p.bth().solicited, has(request, "SOLICITED"), "{name}");
            let deth = p.extended().deth().unwrap();
            let asked = number(&request["remote_qkey"]) as u32;
            let qkey = if asked & 0x8000_0000 == 0 { asked } else { 0x8000_0b1b };
            assert_eq!((deth.qkey.0, deth.src_qpn.get()), (qkey, 0x123), "{name}");
            if let Some(imm) = p.extended().immediate() {
                assert_eq!(imm[..], hex(&request["imm_data_wire_bytes"]), "{name}");
            }
            assert_eq!(p.grh().is_some(), ah["is_global"].as_bool().unwrap(), "{name}");
            if let Some(grh) = p.grh() {
                assert_eq!(grh.dgid.0[..], hex(&ah["dgid"]), "{name}");
                assert_eq!(u64::from(grh.flow_label), number(&ah["flow_label"]), "{name}");
                assert_eq!(u64::from(grh.hop_limit), number(&ah["hop_limit"]), "{name}");
                assert_eq!(u64::from(grh.traffic_class), number(&ah["traffic_class"]), "{name}");
                let index = number(&ah["sgid_index"]) as u16;
                assert_eq!(grh.sgid, bench.host.engine.gid(PORT, index).unwrap(), "{name}");
            }
            assert!(p.payload() == bench.payload(request), "{name}");
            sent += 1;
        }
        let done: Vec<_> = bench.host.scq.all().iter().map(|w| (w.counter, w.status)).collect();
        let expected: Vec<_> =
            all.iter().filter(|(_, r)| has(r, "SIGNALED")).map(|(i, _)| (*i, WcStatus::Success)).collect();
        assert_eq!(done, expected, "{name}");
    }
    assert!(sent >= 9, "{sent}");
}

/// One entry as the device writes it to the first slot of a new ring.
fn written(write: impl FnOnce(&mut Cq) -> Result<Notify, Overrun>) -> Vec<u8> {
    let (ring, dbrec) = (Memory::new(8 * 64), Memory::new(8));
    let mut cq = Cq::new(ring.part(0, 512).into(), dbrec.part(0, 8)).unwrap();
    assert_eq!(write(&mut cq), Ok(Notify::Nothing), "it is not armed");
    ring.get(0, 64)
}

#[test]
fn completions_are_those_that_the_library_takes() {
    let mut compared = 0;
    for vector in family("cqe.json") {
        let name = vector["name"].as_str().unwrap();
        let qpn = Qpn::new(number(&vector["qp"]["qpn"]) as u32);
        let index = number(&vector["qp"]["user_index"]) as u32;
        let bytes = hex(&vector["cqes"][0]);
        let counter = u16::from_be_bytes([bytes[60], bytes[61]]);
        let ours = if let Some(code) = name.strip_prefix("req_err_").or(name.strip_prefix("resp_err_srq_")) {
            let Some(syndrome) = CqeSyndrome::from_code(u8::from_str_radix(code, 16).unwrap()) else {
                continue;
            };
            let (opcode, wqe) = if name.starts_with("req") {
                (CqeOpcode::RequesterError, bytes[56])
            } else {
                (CqeOpcode::ResponderError, 0)
            };
            written(|cq| cq.fail(opcode, qpn, index, wqe, counter, syndrome))
        } else {
            let opcode = match name {
                "rc_srq_send" | "ud_rq_no_grh" | "ud_rq_grh" | "rc_rq_send" | "rc_srq_solicited" => {
                    CqeOpcode::ReceiveSend
                }
                "rc_srq_send_imm" => CqeOpcode::ReceiveSendImm,
                "rc_srq_write_imm" => CqeOpcode::ReceiveWriteImm,
                "rc_srq_send_inv" => CqeOpcode::ReceiveSendInvalidate,
                "req_send" => CqeOpcode::Requester,
                _ => continue,
            };
            // The words that describe the event come from the vector; their positions, and the rest, come
            // from the device.
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let mut cqe = Cqe::default();
            cqe.srqn_uidx.set(index);
            cqe.ml_path = bytes[17];
            cqe.slid.set(word(20) as u16);
            cqe.flags_rqpn.set(word(24));
            cqe.imm_inval_pkey.set(word(36));
            cqe.byte_cnt.set(word(44));
            cqe.sop_drop_qpn.set(u32::from(bytes[56]) << 24 | qpn.get());
            cqe.wqe_counter.set(counter);
            written(|cq| cq.complete(cqe, opcode, name.ends_with("solicited")))
        };
        // In an error entry the library reads nothing before the vendor's word, and that word is ours alone.
        let error = name.contains("err");
        for at in (if error { 55 } else { 0 })..64 {
            assert_eq!(ours[at], bytes[at], "{name}: byte {at}");
        }
        assert_eq!(ours[32..36], bytes[32..36], "{name}: user index");
        compared += 1;
    }
    assert!(compared >= 30, "{compared}");
}
