//! Keys whose memory is set by a send queue: lists, pages, rejected operations, ordering.

use std::time::Duration;

use super::rig::*;
use crate::object::mr::{Member, Use};
use crate::{Access, ListKind, MemoryPieces, ProtectionDomain, QpKind};
use hca::{QpState, QpTransition, WcStatus};

#[test]
fn registered_used_invalidated_and_registered_with_another_tag() {
    let mut k = Keyed::new();
    let bytes = pattern_of(0);
    for round in 0..600u32 {
        let tag = round as u8;
        // Another range in each round, out of order.
        let at = round as usize * 16;
        k.register(tag, &[k.piece(at + 100, 50), k.piece(at, 70)]);
        let mut expected = bytes[at + 100..at + 150].to_vec();
        expected.extend_from_slice(&bytes[at..at + 70]);
        assert_eq!(k.read(0, 120), expected, "round {round}");
        assert_eq!(k.read(49, 2), expected[49..51]);
        k.done(k.key, &Umr::free());
    }
    // A write through the key reaches all ranges.
    k.register(9, &[k.piece(1000, 3), k.piece(0, 5), k.piece(2000, 300)]);
    let written = pattern(308, 5);
    k.here.put(0, &written);
    assert_eq!(k.access(WRITE, k.key, 0, 308), WcStatus::Success);
    assert_eq!(k.there.get(1000, 3), written[..3]);
    assert_eq!(k.there.get(0, 5), written[3..8]);
    assert_eq!(k.there.get(2000, 300), written[8..]);
    assert_eq!(k.there.get(1003, 9), bytes[1003..1012]);
}

#[test]
fn no_old_tag_bound_right_or_domain_is_passed() {
    type Change = fn(&mut Keyed);
    let cases: [(&str, Change, u8, u64, usize); 8] = [
        ("an old tag", |k| k.key = k.tagged(1), READ, 0, 1),
        ("free", |k| k.done(k.key, &Umr::free()), READ, 0, 1),
        ("gone", |k| k.rig.b.engine.deregister(k.tagged(0)).unwrap(), READ, 0, 1),
        ("behind the end", |_| (), READ, 199, 2),
        ("far behind the end", |_| (), WRITE, u64::MAX, 2),
        ("no right", |k| k.done(k.key, &Umr { mask: RIGHTS, access: 0x10, ..Umr::default() }), WRITE, 0, 1),
        (
            "another domain",
            |k| k.rig.b.engine.set_key_domain(k.tagged(0), ProtectionDomain(3)).unwrap(),
            READ,
            0,
            1,
        ),
        ("memory that is gone", |k| k.rig.b.engine.deregister(k.lkey).unwrap(), WRITE, 0, 1),
    ];
    for (what, change, opcode, address, len) in cases {
        let mut k = Keyed::new();
        k.register(1, &[k.piece(0, 100)]);
        k.done(k.key, &Umr::free());
        k.register(2, &[k.piece(0, 100), k.piece(500, 100)]);
        assert_eq!(k.access(WRITE, k.key, 0, 200), WcStatus::Success);
        let before = k.there.get(0, SIZE);
        change(&mut k);
        assert_eq!(k.access(opcode, k.key, address, len), WcStatus::RemoteAccess, "{what}");
        assert_eq!(k.states(), (QpState::Err, QpState::Err), "{what}");
        assert!(k.there.get(0, SIZE) == before, "{what}: written nevertheless");
    }
}

#[test]
fn a_key_serves_the_queue_that_gave_it_memory_and_no_old_tag_does() {
    let mut k = Keyed::new();
    k.register(1, &[k.piece(300, 100), k.piece(0, 100)]);
    let (sink, key) = k.rig.a.memory(400);
    for expected in [WcStatus::Success, WcStatus::LocalProtection] {
        k.rig.a.receive(&mut k.a, &[data(400, key, sink.address())]);
        // The registration and its use in one batch.
        let old = k.key;
        k.rig.b.post(&mut k.b, UMR, 0, old, &Umr::free_own().body());
        let again = Umr::register(2, 0, &[k.piece(300, 100), k.piece(0, 100)]);
        let now = k.tagged(2);
        k.rig.b.post(&mut k.b, UMR, 0, now, &again.body());
        let used = if expected == WcStatus::Success { now } else { old ^ 1 };
        k.rig.b.post(&mut k.b, SEND, SIGNAL, 0, &data(150, used, 25));
        k.rig.settle();
        let done: Vec<_> = k.rig.b.scq.all().iter().map(|wc| (wc.send_opcode, wc.status)).collect();
        assert_eq!(done, [(SEND, expected)]);
        k.key = now;
    }
    let sent = [k.there.get(325, 75), k.there.get(0, 75)].concat();
    assert_eq!(sink.get(0, 150), sent);
}

#[test]
fn a_refused_operation_fails_the_queue_pair_and_leaves_the_key_unchanged() {
    type Make = fn(&mut Keyed) -> (u32, Umr);
    let window = WcStatus::MemoryWindowBind;
    fn good(k: &Keyed) -> Umr {
        Umr { flags: 0, ..Umr::register(3, 0, &[k.piece(0, 64)]) }
    }
    let cases: [(&str, Make, WcStatus); 27] = [
        ("a region", |k| (k.lkey, good(k)), window),
        ("no key", |k| (k.key + 0x700, good(k)), window),
        ("not free", |k| (k.key, Umr { flags: CHECK_FREE, ..good(k) }), window),
        ("an unknown flag", |k| (k.key, Umr { flags: 1, ..good(k) }), window),
        ("an unknown field", |k| (k.key, Umr { mask: 1 << 12 | good(k).mask, ..good(k) }), window),
        ("an offset", |k| (k.key, Umr { flags: 0x10, offset: 4, ..good(k) }), window),
        (
            "too long a list",
            |k| {
                let small = k.rig.b.engine.create_fast_key(&free_key(ListKind::Keys, 2)).unwrap();
                // There is room for the padding.
                k.done(small, &Umr::register(0, 0, &[k.piece(0, 8); 4]));
                k.done(small, &Umr::free());
                (small, Umr::register(3, 0, &[k.piece(0, 8); 5]))
            },
            window,
        ),
        ("longer than its list", |k| (k.key, Umr { len: 65, ..good(k) }), window),
        ("without end", |k| (k.key, Umr { start: u64::MAX - 62, ..good(k) }), window),
        (
            "out of bounds",
            |k| (k.key, Umr { flags: 0, ..Umr::register(3, 0, &[k.piece(SIZE - 1, 2)]) }),
            window,
        ),
        (
            "an address without end",
            |k| (k.key, Umr { flags: 0, ..Umr::register(3, 0, &[data(2, k.lkey, u64::MAX)]) }),
            window,
        ),
        ("itself", |k| (k.key, Umr { flags: 0, ..Umr::register(3, 0, &[data(8, k.key, 0)]) }), window),
        (
            "another list",
            |k| {
                let other = k.rig.b.engine.create_fast_key(&free_key(ListKind::Keys, 4)).unwrap();
                k.done(other, &Umr::register(0, 0, &[k.piece(0, 64)]));
                (k.key, Umr { flags: 0, ..Umr::register(3, 0, &[data(8, other, 0)]) })
            },
            window,
        ),
        (
            "strided",
            |k| (k.key, Umr { flags: 0, ..Umr::register(3, 0, &[data(8, 0x400, 1), k.piece(0, 8)]) }),
            window,
        ),
        (
            "a huge entry",
            |k| (k.key, Umr { flags: 0, ..Umr::register(3, 0, &[data(u32::MAX, k.lkey, 0)]) }),
            window,
        ),
        (
            "a region that may not be written",
            |k| {
                let key = k.rig.b.engine.register(0, k.there.host(), Access::default()).unwrap();
                (k.key, Umr { flags: 0, ..Umr::register(3, 0, &[data(8, key, 0)]) })
            },
            window,
        ),
        (
            "memory of another domain",
            |k| {
                k.rig.b.engine.set_key_domain(k.lkey, ProtectionDomain(9)).unwrap();
                (k.key, good(k))
            },
            window,
        ),
        (
            "another domain's queue pair",
            |k| {
                k.rig.b.engine.set_qp_domain(k.b.qpn, ProtectionDomain(9)).unwrap();
                (k.key, good(k))
            },
            window,
        ),
        (
            "another's queue pair",
            |k| (k.key, Umr { mask: good(k).mask | QPN, qpn: 0x1234, ..good(k) }),
            window,
        ),
        ("freed by an old tag", |k| (k.tagged(1), Umr::free()), window),
        ("freed with a list", |k| (k.key, Umr { list: vec![0; 16], ..Umr::free() }), window),
        (
            "marked as valid",
            |k| {
                k.done(k.key, &Umr::free());
                (k.key, Umr { flags: CHECK_VALID, ..Umr::free() })
            },
            window,
        ),
        (
            "a list that is nowhere",
            |k| (k.key, Umr { at: Some((2048, k.lkey)), ..good(k) }),
            WcStatus::LocalProtection,
        ),
        ("a list under its own key", |k| (k.key, Umr { at: Some((0, k.key)), ..good(k) }), window),
        (
            "a list that does not begin at a multiple of 2,048 bytes",
            |k| (k.key, Umr { at: Some((k.there.address() + 64, k.lkey)), ..good(k) }),
            WcStatus::LocalQpOperation,
        ),
        (
            "a long list by address",
            |k| (k.key, Umr { at: Some((0, k.lkey)), ..Umr::register(3, 0, &[k.piece(0, 8); 65]) }),
            window,
        ),
        ("pages", |k| (k.key, Umr::pages(3, 0, 8, 12, &[0])), window),
    ];
    for (what, make, status) in cases {
        let mut k = Keyed::new();
        k.register(1, &[k.piece(8, 64)]);
        k.done(k.key, &Umr::free());
        k.register(2, &[k.piece(8, 64)]);
        let (key, umr) = make(&mut k);
        assert_eq!(k.post(key, &umr), status, "{what}");
        assert_eq!(k.states().1, QpState::Err, "{what}");
        // The state before is unchanged.
        k.rig.b.engine.set_key_domain(k.lkey, ProtectionDomain(0)).unwrap();
        let old = if what.contains("marked as valid") { WcStatus::RemoteAccess } else { WcStatus::Success };
        assert_eq!(k.access_2(READ, k.tagged(2), 0, 64), old, "{what}");
        if old == WcStatus::Success {
            assert_eq!(k.here.get(0, 64), k.there.get(8, 64), "{what}");
        }
    }
}

#[test]
fn truncated_entries_are_refused() {
    for (len, at, status) in [
        (0, None, WcStatus::LocalQpOperation),
        (47, None, WcStatus::LocalQpOperation),
        (111, None, WcStatus::LocalQpOperation),
        (127, None, WcStatus::LocalQpOperation),
        (112, Some((0, 0)), WcStatus::LocalQpOperation),
    ] {
        let mut k = Keyed::new();
        let mut body = Umr { at, ..Umr::register(1, 0, &[k.piece(0, 8)]) }.body();
        body.truncate(len / 16 * 16);
        k.rig.b.post(&mut k.b, UMR, SIGNAL, k.key, &body);
        k.rig.settle();
        assert_eq!(k.rig.b.scq.all()[0].status, status, "{len} bytes");
    }
    // A list that is shorter than the entry says.
    let mut k = Keyed::new();
    let mut body =
        Umr { at: Some((k.there.address(), k.lkey)), ..Umr::register(1, 0, &[k.piece(0, 8)]) }.body();
    body[112..116].copy_from_slice(&63u32.to_be_bytes());
    k.rig.b.post(&mut k.b, UMR, SIGNAL, k.key, &body);
    k.rig.settle();
    assert_eq!(k.rig.b.scq.all()[0].status, WcStatus::LocalLength);
}

#[test]
fn lists_of_all_lengths_in_the_entry_and_elsewhere() {
    let (lists, size) = (Memory::new(1 << 16), 20);
    for (entries, elsewhere) in
        [(1, false), (52, false), (1, true), (52, true), (53, true), (200, true), (3000, true)]
    {
        let mut k = Keyed::with(ListKind::Keys, 3008);
        let lkey = k.rig.b.engine.register(lists.address(), lists.host(), Access::default()).unwrap();
        // From the end to the front, each one byte apart.
        let pieces: Vec<_> = (0..entries).rev().map(|n| k.piece(n * (size + 1), size)).collect();
        let bytes = k.there.get(0, SIZE);
        let expected: Vec<_> =
            (0..entries).rev().flat_map(|n| bytes[n * (size + 1)..][..size].to_vec()).collect();
        lists.put(0, &pieces.concat());
        let at = elsewhere.then(|| (lists.address(), lkey));
        k.key = k.tagged(4);
        k.done(k.key, &Umr { at, ..Umr::register(4, 0, &pieces) });
        // A list is not read again.
        lists.put(0, &vec![0xff; 48_000]);
        assert_eq!(k.read(0, expected.len().min(SIZE)), expected, "{entries} entries");
        let last = expected.len() as u64 - 1;
        assert_eq!(k.read(last, 1), expected[last as usize..]);
        assert_eq!(k.access(READ, k.key, last, 2), WcStatus::RemoteAccess);
    }
}

#[test]
fn a_list_that_changes_while_it_is_read_is_one_or_the_other() {
    let mut k = Keyed::new();
    let other = Memory::new(4096);
    other.put(0, &pattern(4096, 9));
    let other_key = k.rig.b.engine.register(other.address(), other.host(), Access::LOCAL).unwrap();
    let lists = Memory::new(64);
    let lkey = k.rig.b.engine.register(lists.address(), lists.host(), Access::default()).unwrap();
    // Neither key fits the other's address.
    let both = [k.piece(0, 64), data(64, other_key, other.address())];
    lists.put(0, &both[0]);
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let shared = lists.host();
    let changing = std::thread::spawn({
        let done = done.clone();
        move || {
            let mut n = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                n += 1;
                shared.write(&both[n % 2]);
            }
        }
    });
    let umr = Umr { flags: 0, at: Some((lists.address(), lkey)), ..Umr::register(0, 0, &[both[0]]) };
    for _ in 0..300 {
        k.rig.b.post(&mut k.b2, UMR, SIGNAL, k.key, &umr.body());
        k.rig.settle();
        let mut wc = k.rig.b.scq.all();
        if wc.remove(0).status == WcStatus::Success {
            let read = k.read(0, 64);
            assert!(read == k.there.get(0, 64) || read == other.get(0, 64));
        } else {
            // Half of one and half of the other is no memory.
            break;
        }
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    changing.join().unwrap();
}

#[test]
fn more_than_four_gigabytes() {
    let mut k = Keyed::new();
    // 2 GiB of addresses, the same 64 MiB repeated.
    let block = Memory::new(64 << 20);
    let pieces = (0..32).map(|n| (n * (64 << 20), block.host()));
    let region = MemoryPieces::new(pieces).unwrap();
    let key = k.rig.b.engine.register(0x1_0000_0000, region, Access::LOCAL).unwrap();
    let list = [data(1 << 31, key, 0x1_0000_0000); 3];
    k.register(1, &list);
    let far = (5u64 << 30) + 12_345;
    let bytes = pattern(1000, 3);
    k.here.put(0, &bytes);
    assert_eq!(k.access(WRITE, k.key, far, 1000), WcStatus::Success);
    assert_eq!(block.get((far % (64 << 20)) as usize, 1000), bytes);
    // Across the border of two entries.
    assert_eq!(k.access(WRITE, k.key, (4 << 30) - 400, 1000), WcStatus::Success);
    assert_eq!(
        (block.get((64 << 20) - 400, 400), block.get(0, 600)),
        (bytes[..400].to_vec(), bytes[400..].to_vec())
    );
    assert_eq!(k.read((6 << 30) - 1, 1).len(), 1);
    assert_eq!(k.access(READ, k.key, (6 << 30) - 1, 2), WcStatus::RemoteAccess);
}

#[test]
fn pages_by_their_addresses() {
    let mut k = Keyed::with(ListKind::Pages, 8);
    let bytes = pattern_of(0);
    let bus = |k: &Keyed| MemoryPieces::new([(0x10_0000, k.there.host())]).unwrap();
    k.rig.b.engine.set_bus(bus(&k));
    k.rig.b.engine.allow_page_lists(k.b.qpn).unwrap();
    // The flag bits of its addresses are ignored.
    let umr = Umr::pages(1, 0x7000_0123, 8000, 12, &[0x10_3003, 0x10_1003, 0x10_2003]);
    k.key = k.tagged(1);
    k.done(k.key, &umr);
    let expected = [&bytes[0x3123..0x4000], &bytes[0x1000..0x2000], &bytes[0x2000..0x2123 - 192]].concat();
    assert_eq!(k.read(0x7000_0123, 8000), expected);
    k.here.put(0, &pattern(8000, 8));
    assert_eq!(k.access(WRITE, k.key, 0x7000_0123, 8000), WcStatus::Success);
    assert_eq!(k.there.get(0x3123, 10), pattern(8000, 8)[..10]);
    // A list may name it.
    let list = k.rig.b.engine.create_fast_key(&free_key(ListKind::Keys, 4)).unwrap();
    k.done(list, &Umr::register(0, 0, &[data(100, k.key, 0x7000_0123 + 4000)]));
    assert_eq!(k.access(READ, list, 0, 100), WcStatus::Success);
    assert_eq!(k.here.get(0, 100), pattern(8000, 8)[4000..4100]);
    // Memory that the host has removed meanwhile.
    k.rig.b.engine.set_bus(MemoryPieces::new([(0x10_0000, k.there.part(0, 0x3000))]).unwrap());
    assert_eq!(k.access(READ, list, 0, 1), WcStatus::Success);
    assert_eq!(k.access(READ, k.key, 0x7000_0123, 1), WcStatus::RemoteAccess);
    for (what, umr) in [
        ("too few", Umr::pages(1, 0x123, 8 * 4096, 12, &[0x10_0000])),
        ("too many", Umr::pages(1, 0x123, 8, 12, &[0x10_0000; 17])),
        ("small", Umr::pages(1, 0x123, 8, 11, &[0x10_0000])),
    ] {
        let mut k = Keyed::with(ListKind::Pages, 8);
        k.rig.b.engine.set_bus(bus(&k));
        k.rig.b.engine.allow_page_lists(k.b.qpn).unwrap();
        assert_eq!(k.post(k.key, &umr), WcStatus::MemoryWindowBind, "{what}");
    }
    // No memory, no right, or no such addresses at all.
    let umr = Umr::pages(1, 0, 8, 12, &[0x20_0000]);
    for (right, bus_there, status) in [
        (true, true, WcStatus::Success),
        (false, true, WcStatus::MemoryWindowBind),
        (true, false, WcStatus::Success),
    ] {
        let mut k = Keyed::with(ListKind::Pages, 8);
        if bus_there {
            k.rig.b.engine.set_bus(bus(&k));
        }
        if right {
            k.rig.b.engine.allow_page_lists(k.b.qpn).unwrap();
        }
        k.key = k.tagged(1);
        assert_eq!(k.post(k.key, &umr), status);
        if status == WcStatus::Success {
            assert_eq!(k.access(READ, k.key, 0, 1), WcStatus::RemoteAccess);
        }
    }
}

#[test]
fn a_strong_fence_waits_for_all_before_it() {
    for (fence, expected) in [(STRONG_FENCE, WcStatus::Success), (0, WcStatus::LocalProtection)] {
        let mut k = Keyed::new();
        k.register(1, &[k.piece(0, 64)]);
        // The peer has no receive yet, so it is retransmitted.
        k.rig.b.post(&mut k.b, SEND, SIGNAL, 0, &data(64, k.key, 0));
        k.rig.b.post(&mut k.b, UMR, SIGNAL | fence, k.key, &Umr::free().body());
        k.rig.settle();
        assert_eq!(k.rig.b.scq.all(), []);
        let (sink, key) = k.rig.a.memory(64);
        k.rig.a.receive(&mut k.a, &[data(64, key, sink.address())]);
        k.rig.run(Duration::from_millis(20));
        let done: Vec<_> = k.rig.b.scq.all().iter().map(|wc| (wc.send_opcode, wc.status)).collect();
        assert_eq!(done[0], (SEND, expected));
        assert_eq!(done[1].0, UMR);
    }
}

#[test]
fn no_entry_makes_a_key_lead_out_of_registered_memory() {
    let mut k = Keyed::with(ListKind::Keys, 8);
    k.rig.b.engine.set_bus(MemoryPieces::new([(0x10_0000, k.there.host())]).unwrap());
    let pages = k.rig.b.engine.create_fast_key(&free_key(ListKind::Pages, 8)).unwrap();
    let lists = [k.key, k.rig.b.engine.create_fast_key(&free_key(ListKind::Keys, 4)).unwrap()];
    // All key operations, on all domains.
    let mut qp = k.rig.b.qp(QpKind::Umr, 256, None, 9);
    k.rig.b.open_ud(&qp, 0);
    let mut seed = 1u64;
    let mut random = |bound: usize| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (seed >> 33) as usize % bound
    };
    let memory = k.there.address()..k.there.address() + SIZE as u64;
    let (mut done, mut refused, mut found) = (0, 0, 0);
    for _ in 0..6000 {
        let umr = match random(4) {
            0 => Umr::pages(
                1,
                random(9000) as u64,
                random(20_000) as u64,
                12,
                &[0x10_3000, 0x10_1000, 0x10_f000],
            ),
            1 => Umr::register(1, 0, &[k.piece(random(SIZE), 100), k.piece(0, 70), data(9, pages | 1, 5000)]),
            2 => Umr { at: Some((0x10_0000, k.lkey)), ..Umr::register(1, 0, &[k.piece(0, 8); 3]) },
            _ => Umr::free(),
        };
        let key =
            if umr.shift > 0 { pages } else { [pages, lists[0], lists[1]][random(3)] } | random(2) as u32;
        let mut body = Umr { flags: if random(2) == 0 { 0 } else { umr.flags }, ..umr }.body();
        for _ in 0..random(4) {
            let at = random(body.len());
            body[at] ^= 1 << random(8);
        }
        k.rig.b.post(&mut qp, UMR, SIGNAL, key, &body);
        k.rig.settle();
        match k.rig.b.scq.all()[0].status {
            WcStatus::Success => done += 1,
            _ => {
                refused += 1;
                k.rig.b.engine.modify_qp(qp.qpn, &QpTransition::RecoverSend).unwrap();
            }
        }
        let mrs = &k.rig.b.engine.dev.mrs;
        for key in [pages, lists[0], lists[1]] {
            let status = k.rig.b.engine.query_key(key).unwrap();
            let member = Member { domain: status.domain, queue_pair: status.queue_pair, ..Member::default() };
            let (name, len) = (key & !0xff | u32::from(status.tag), 1 + random(200));
            let address = status.start.wrapping_add(random(20_000) as u64).wrapping_sub(2);
            for how in [Use::LocalRead, Use::RemoteWrite] {
                let Ok(piece) = mrs.of(member).translate(name, address, len, how) else { continue };
                assert!(!status.free && address >= status.start);
                assert!(address - status.start + len as u64 <= status.len);
                assert!(memory.start <= piece.address());
                assert!(piece.address() + piece.len() as u64 <= memory.end);
                found += 1;
            }
        }
    }
    assert!(done > 1000 && refused > 1000 && found > 1000, "{done} done, {refused} refused, {found} found");
}
