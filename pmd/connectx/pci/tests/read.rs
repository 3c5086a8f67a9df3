//! RDMA READ between queue pairs of a guest, and the peer's permissions set by its driver.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

/// A transition that changes the peer's permissions.
fn allow(g: &mut Guest, qp: u32, optional: u32, access: u8) {
    let mut bytes = about(0x505, qp);
    bytes.resize(0x110, 0);
    put32(&mut bytes, 0x10, optional);
    bytes[0x18 + 0x92] = access;
    g.command(&bytes, 16);
}

fn body(there: u64, rkey: u32, len: u32, here: u64, lkey: u32) -> Vec<u8> {
    let mut body = there.to_be_bytes().to_vec();
    body.extend_from_slice(&rkey.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&piece(len, lkey, here));
    body
}

#[test]
fn reads_from_scattered_pages_to_scattered_pages() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let (mut a, b) = (g.create_qp(SERVICE_RC, &cq), g.create_qp(SERVICE_RC, &cq));
    g.open(&a, Some((7, b.number)));
    g.open(&b, Some((7, a.number)));
    let (from, into) = (g.scattered(32), g.scattered(32));
    let bytes: Vec<u8> = (0..32 * 4096).map(|n: u32| (n * 7 + n / 251) as u8).collect();
    for (page, data) in from.iter().zip(bytes.chunks(4096)) {
        g.put(*page, data);
    }
    // Regions that begin in the middle of a page.
    let (source_at, target_at, len) = (0x7000_0100u64, 0x5000_0200u64, 120_000u32);
    let source = g.key(1, source_at, len.into(), &from);
    let target = g.key(2, target_at, len.into(), &into);
    // Four are in flight at once, and the peer accepts two.
    let each = len / 12;
    let post = |g: &mut Guest, a: &mut QueuePair| {
        let mut first = [0; 8];
        for n in 0..12u64 {
            let at = n * u64::from(each);
            first = g.lay_send(a, 0x10, &body(source_at + at, source, each, target_at + at, target));
        }
        g.ring_send(first);
        g.settle();
    };
    post(&mut g, &mut a);
    let done: Vec<_> = std::iter::from_fn(|| g.poll(&mut cq)).collect();
    let refused = done.iter().find(|cqe| cqe[63] >> 4 == 13).map(|cqe| cqe[55]);
    assert_eq!((done.len(), refused), (12, Some(0x12)));
    // With a matching limit.
    let (mut a, b) = (g.create_qp(SERVICE_RC, &cq), g.create_qp(SERVICE_RC, &cq));
    g.open(&a, Some((7, b.number)));
    g.open(&b, Some((7, a.number)));
    let mut fits = about(0x505, a.number);
    fits.resize(0x110, 0);
    put32(&mut fits, 0x10, 1 << 8);
    fits[0x18 + 0x71] = 1 << 5;
    g.command(&fits, 16);
    for page in &into {
        g.put(*page, &[0; 4096]);
    }
    post(&mut g, &mut a);
    for _ in 0..12 {
        let cqe = g.poll(&mut cq).unwrap();
        // Opcode of the work request, and bytes.
        assert_eq!((cqe[63] >> 4, cqe[56], &cqe[44..48]), (0, 0x10, &each.to_be_bytes()[..]));
    }
    let all: Vec<u8> = into.iter().flat_map(|page| g.get(*page, 4096)).collect();
    assert!(all[0x200..0x200 + len as usize] == bytes[0x100..0x100 + len as usize]);
}

#[test]
fn the_other_end_may_what_the_driver_says() {
    // Opcode, access bits (read 0x80, write 0x40), whether it succeeds.
    for (opcode, access, well) in [
        (0x10, 0xc0, true),
        (0x10, 0x80, true),
        (0x10, 0x40, false),
        (8, 0x40, true),
        (8, 0x80, false),
        (8, 0, false),
    ] {
        let mut g = Guest::new();
        let mut eq = g.probe();
        let mut cq = g.create_cq(eq.number, 7);
        let (mut a, b) = (g.create_qp(SERVICE_RC, &cq), g.create_qp(SERVICE_RC, &cq));
        g.open(&a, Some((7, b.number)));
        g.open(&b, Some((7, a.number)));
        let page = g.pages(1);
        let key = g.key(9, page, 4096, &[page]);
        // A change that does not select them changes nothing.
        allow(&mut g, b.number, 0, 0);
        g.post_send(&mut a, opcode, &body(page, key, 8, page + 64, key));
        g.settle();
        assert_eq!(g.poll(&mut cq).unwrap()[63] >> 4, 0);
        allow(&mut g, b.number, 1 << 1 | 1 << 3, access);
        g.post_send(&mut a, opcode, &body(page, key, 8, page + 64, key));
        g.settle();
        let cqe = g.poll(&mut cq).unwrap();
        if well {
            assert_eq!(cqe[63] >> 4, 0, "{opcode:#x} {access:#x}");
        } else {
            // The peer rejects the request, and its own host is notified.
            assert_eq!((cqe[63] >> 4, cqe[55]), (13, 0x12), "{opcode:#x} {access:#x}");
            let (kind, _, data) = g.next_event(&mut eq).unwrap();
            assert_eq!((kind, &data[24..]), (0x10, &b.number.to_be_bytes()[..]));
        }
    }
}

#[test]
fn a_key_serves_queues_of_its_own_protection_domain() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let number = cq.number;
    let domains = [(); 2].map(|()| g.command(&input(0x800, 16), 16).number());
    let in_domain = |g: &mut Guest, domain: u32| {
        let (pages, record) = (g.scattered(2), g.pages(1));
        let mut bytes = g.qp_input(SERVICE_RC, number, &pages, record);
        put32(&mut bytes, 0x18 + 4, domain);
        let number = g.command(&bytes, 16).number();
        QueuePair { number, pages, record, posted: 0, received: 0 }
    };
    let (mut a, b) = (in_domain(&mut g, domains[0]), in_domain(&mut g, domains[0]));
    g.open(&a, Some((7, b.number)));
    g.open(&b, Some((7, a.number)));
    let page = g.pages(1);
    let key = |g: &mut Guest, tag: u8, domain: u32| {
        let mut bytes = g.key_input(tag, page, 4096, &[page]);
        put32(&mut bytes, 0x1c, domain);
        g.command(&bytes, 16).number() << 8 | u32::from(tag)
    };
    let (ours, theirs) = (key(&mut g, 1, domains[0]), key(&mut g, 2, domains[1]));
    g.post_send(&mut a, 0x10, &body(page, ours, 8, page + 64, ours));
    g.settle();
    assert_eq!(g.poll(&mut cq).unwrap()[63] >> 4, 0);
    g.post_send(&mut a, 0x10, &body(page, theirs, 8, page + 64, ours));
    g.settle();
    let cqe = g.poll(&mut cq).unwrap();
    assert_eq!((cqe[63] >> 4, cqe[55]), (13, 0x13), "a remote access error");
}
