//! Key operations recorded from libmlx5 are executed with the meaning that the library's callers intended.

use super::*;
use crate::object::mr::Member;
use crate::{FastKey, ListKind};

/// Entries of the key that a vector changes.
const CAPACITY: usize = 8;

/// The vector, with an index of its own for each entry's key: they differ only in their tags.
fn with_keys(vector: &Value) -> Value {
    let mut vector = vector.clone();
    for wqe in vector["posts"][0]["wqes"].as_array_mut().unwrap() {
        let mut bytes = hex(&wqe["bytes"]);
        if bytes[3] == 0x25 {
            for entry in bytes[16 + 48 + 64..].as_chunks_mut::<16>().0 {
                if entry[5] == 0x18 {
                    (entry[6], entry[7]) = (entry[6] + entry[7], 0);
                }
            }
        }
        wqe["bytes"] = bytes.iter().map(|b| format!("{b:02x}")).collect::<String>().into();
    }
    vector
}

/// Address, length and key of the memory that a request names, after `with_keys`.
fn named(request: &Value) -> Vec<(u64, usize, u32)> {
    let list = request["sg_list"].as_array().map_or(&[][..], Vec::as_slice);
    let key = |s: &Value| number(&s["lkey"]) as u32;
    list.iter()
        .map(|s| {
            (number(&s["addr"]), number(&s["length"]) as usize, (key(s) & !0xff) + (key(s) << 8 & 0xffff))
        })
        .collect()
}

#[test]
fn lists_of_the_library() {
    let mut executed = 0;
    for vector in family("umr.json") {
        let name = vector["name"].as_str().unwrap();
        let posted_at_all = vector["posts"][0]["wqes"].as_array().is_some_and(|wqes| !wqes.is_empty());
        if !posted_at_all || name.contains("interleaved") {
            continue;
        }
        let mut host = Host::new(1);
        let requests = posted(&vector);
        let mut memory: Vec<(u32, Memory)> = Vec::new();
        for (address, len, key) in requests.iter().flat_map(|(_, request)| named(request)) {
            if !memory.iter().any(|(other, _)| *other == key) {
                let m = Memory::new(len);
                m.put(0, &pattern(len, key.into()));
                assert!(host.engine.dev.mrs.register_as(key, address, m.part(0, len).into(), Access::LOCAL));
                memory.push((key, m));
            }
        }
        let how = FastKey { octowords: CAPACITY, ..free_key(ListKind::Keys, 0) };
        assert_eq!(host.engine.create_fast_key(&how).unwrap(), 0x0018_0000, "{name}");
        let mut bench = Bench { host, ..Bench::new() };
        let _qp = post(&mut bench, &with_keys(&vector), QpKind::Rc);
        bench.step();
        let status: Vec<_> = bench.host.scq.all().iter().map(|wc| wc.status).collect();
        assert!(status.iter().all(|&status| status == WcStatus::Success), "{name}: {status:?}");
        for (_, request) in requests.iter().filter(|(_, r)| r["mkey"].is_string() && r["sg_list"].is_array())
        {
            let expected: Vec<u8> = named(request)
                .iter()
                .flat_map(|(_, len, key)| memory.iter().find(|(k, _)| k == key).unwrap().1.get(0, *len))
                .collect();
            let mut read = vec![0; expected.len()];
            let keys = bench.host.engine.dev.mrs.of(Member::default());
            keys.read(number(&request["mkey"]) as u32, 0, &mut read).unwrap_or_else(|_| panic!("{name}"));
            assert!(read == expected, "{name}: other bytes");
            assert!(keys.read(number(&request["mkey"]) as u32, 1, &mut read).is_err(), "{name}: no end");
        }
        executed += 1;
    }
    assert!(executed >= 9, "{executed}");
}

#[test]
fn windows_of_the_library() {
    let mut bound = 0;
    for vector in family("rc_send.json") {
        let name = vector["name"].as_str().unwrap();
        if !name.contains("bind_mw") || vector["posts"][0]["wqes"].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        let request = &vector["posts"][0]["posted"][0];
        let (old, new) = (number(&request["mw_rkey_old"]) as u32, number(&request["mw_rkey_new"]) as u32);
        let (address, len) = (number(&request["bind_addr"]), number(&request["bind_length"]));
        let mut bench = Bench::new();
        let memory = Memory::new(1000);
        memory.put(0, &pattern(1000, 5));
        let mrs = &mut bench.host.engine.dev.mrs;
        assert!(mrs.register_as(
            number(&request["mr_lkey"]) as u32,
            address,
            memory.part(0, 1000).into(),
            Access::LOCAL
        ));
        let window = bench.host.engine.create_fast_key(&free_key(ListKind::Keys, 4)).unwrap();
        assert_eq!(window, old, "{name}");
        let qp = post(&mut bench, &vector, QpKind::Rc);
        bench.step();
        let status = bench.host.scq.poll().unwrap().status;
        // More than two gigabytes do not exist.
        let fits = len <= 1000;
        assert_eq!(status == WcStatus::Success, fits, "{name}: {status:?}");
        let keys = |queue_pair| Member { queue_pair, ..Member::default() };
        let mrs = &bench.host.engine.dev.mrs;
        let mut byte = [0];
        let last = address + len.max(1) - 1;
        let read = mrs.of(keys(Some(qp.qpn))).read(new, last, &mut byte);
        assert_eq!(read.is_ok(), fits && len > 0, "{name}");
        assert!(mrs.of(keys(Some(qp.qpn))).read(old, last, &mut byte).is_err(), "{name}");
        assert!(mrs.of(keys(Some(Qpn::new(9)))).read(new, last, &mut byte).is_err(), "{name}: anybody's");
        bound += 1;
    }
    assert!(bound >= 6, "{bound}");
}
