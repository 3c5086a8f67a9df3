//! Atomic operations of a guest: the device's capabilities, the driver's choices, and permissions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

const SWAP: u8 = 0x11;
const ADD: u8 = 0x12;
/// Kind of the capabilities, as named by commands; with the lowest bit set, their current values.
const ATOMIC: u16 = 3 << 1;
/// Access of a key: local read and write, atomic operations.
const KEY: u8 = 0x04 | 0x08 | 0x40;
/// Optional parameter of a transition, and the context bits that belong to it.
const PARAMETER: u32 = 1 << 2;
const ALLOWED: u8 = 1 << 5;

fn capabilities(g: &mut Guest, modifier: u16) -> Vec<u8> {
    let mut bytes = input(0x100, 16);
    put16(&mut bytes, 6, modifier);
    g.command(&bytes, 0x1010).output[0x10..].to_vec()
}

/// Sets the byte order of responses: 0 for the most significant byte first, 1 for the host's.
fn choose(g: &mut Guest, order: u8) -> u8 {
    let mut bytes = input(0x109, 0x1010);
    put16(&mut bytes, 6, ATOMIC);
    bytes[0x10 + 8] = order << 6;
    g.try_command(&bytes, 16).status
}

fn chosen(g: &mut Guest) -> u8 {
    capabilities(g, ATOMIC | 1)[8] >> 6
}

/// A transition that changes the peer's permissions: access bits, and the mode of atomic operations.
fn allow(g: &mut Guest, qp: u32, optional: u32, access: u8, mode: u8) {
    let mut bytes = about(0x505, qp);
    bytes.resize(0x110, 0);
    put32(&mut bytes, 0x10, optional);
    bytes[0x18 + 0x91] = mode;
    bytes[0x18 + 0x92] = access;
    g.command(&bytes, 16);
}

fn key(g: &mut Guest, tag: u8, access: u8, start: u64, pages: &[u64]) -> u32 {
    let mut bytes = g.key_input(tag, start, pages.len() as u64 * 4096, pages);
    bytes[0x12] = access | 1;
    g.command(&bytes, 16).number() << 8 | u32::from(tag)
}

fn body(there: u64, rkey: u32, operands: (u64, u64), here: u64, lkey: u32) -> Vec<u8> {
    let mut body = there.to_be_bytes().to_vec();
    body.extend_from_slice(&rkey.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&operands.0.to_be_bytes());
    body.extend_from_slice(&operands.1.to_be_bytes());
    body.extend_from_slice(&piece(8, lkey, here));
    body
}

fn pair(g: &mut Guest, cq: &Completions) -> (QueuePair, QueuePair) {
    let (a, b) = (g.create_qp(SERVICE_RC, cq), g.create_qp(SERVICE_RC, cq));
    g.open(&a, Some((7, b.number)));
    g.open(&b, Some((7, a.number)));
    (a, b)
}

#[test]
fn a_driver_queries_them_and_chooses_a_byte_order() {
    let mut g = Guest::new();
    g.probe();
    assert_eq!(capabilities(&mut g, 0)[0x43] & 2, 2, "there are any");
    let most = capabilities(&mut g, ATOMIC);
    // The host's byte order is available; both operations; eight bytes.
    assert_eq!((most[8] & 2, &most[0x12..0x14], &most[0x16..0x18]), (2, &[0, 3][..], &[0, 8][..]));
    assert_eq!(chosen(&mut g), 0);
    assert_eq!((choose(&mut g, 2), choose(&mut g, 3), chosen(&mut g)), (3, 3, 0));
    assert_eq!((choose(&mut g, 1), chosen(&mut g)), (0, 1));
    // Setting other capabilities changes nothing, and the input is too short for this one.
    g.command(&input(0x109, 0x1010), 16);
    let mut short = input(0x109, 0x12);
    put16(&mut short, 6, ATOMIC);
    assert_eq!((g.try_command(&short, 16).status, chosen(&mut g)), (0x50, 1));
    // The next driver starts with the default.
    g.command(&input(0x103, 16), 16);
    assert_eq!(chosen(&mut g), 0);
}

#[test]
fn on_scattered_pages_in_either_byte_order() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let (mut a, b) = pair(&mut g, &cq);
    allow(&mut g, b.number, PARAMETER, ALLOWED, 1);
    let (from, into) = (g.scattered(4), g.scattered(4));
    let rkey = key(&mut g, 1, KEY, 0x7000_0000, &from);
    let lkey = key(&mut g, 2, KEY, 0x5000_0000, &into);
    let begin = 0x0102_0304_0506_0708u64;
    for order in [0, 1] {
        assert_eq!(choose(&mut g, order), 0);
        // The last word of one page and the first one of another.
        for (at, page, offset) in [(4096 + 4088, 1, 4088), (3 * 4096, 3, 0)] {
            g.put(from[page] + offset, &begin.to_ne_bytes());
            let mut expected = begin;
            for (opcode, operands, after) in
                [(ADD, (1, 0), begin + 1), (SWAP, (9, begin), begin + 1), (SWAP, (9, begin + 1), 9)]
            {
                let entry = body(0x7000_0000 + at, rkey, operands, 0x5000_0000 + at, lkey);
                g.post_send(&mut a, opcode, &entry);
                g.settle();
                let cqe = g.poll(&mut cq).unwrap();
                assert_eq!((cqe[63] >> 4, cqe[56], &cqe[44..48]), (0, opcode, &[0, 0, 0, 8][..]));
                let bytes = if order == 0 { expected.to_be_bytes() } else { expected.to_ne_bytes() };
                assert_eq!(g.get(into[page] + offset, 8), bytes);
                assert_eq!(g.get(from[page] + offset, 8), after.to_ne_bytes());
                expected = after;
            }
        }
    }
}

#[test]
fn the_other_end_may_what_the_driver_says() {
    // The queue pair's access, its mode, the key's access, and the result.
    for (access, mode, at_key, syndrome) in [
        (ALLOWED, 1, KEY, None),
        (ALLOWED | 0xc0, 3, 0x7c, None),
        (0xc0, 1, KEY, Some(0x12)),
        (ALLOWED, 0, KEY, Some(0x12)),
        (ALLOWED, 1, 0x3c, Some(0x13)),
        (ALLOWED, 1, 0x44, Some(0x13)),
    ] {
        let mut g = Guest::new();
        let eq = g.probe();
        let mut cq = g.create_cq(eq.number, 7);
        let (mut a, b) = pair(&mut g, &cq);
        allow(&mut g, b.number, PARAMETER | 1 << 1 | 1 << 3, access, mode);
        // A change that does not select them changes nothing.
        allow(&mut g, b.number, 0, 0, 0);
        let (page, there) = (g.pages(1), g.pages(1));
        let lkey = key(&mut g, 1, KEY, page, &[page]);
        let rkey = key(&mut g, 2, at_key, there, &[there]);
        g.post_send(&mut a, ADD, &body(there, rkey, (5, 0), page, lkey));
        g.settle();
        let cqe = g.poll(&mut cq).unwrap();
        let failed = (cqe[63] >> 4 == 13).then_some(cqe[55]);
        assert_eq!(failed, syndrome, "{access:#x} {mode} {at_key:#x}");
        let after = if syndrome.is_none() { 5u64 } else { 0 };
        assert_eq!(g.get(there, 8), after.to_ne_bytes());
    }
}
