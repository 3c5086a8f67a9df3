//! Sets of queue pair counters, as drivers show them in `hw_counters`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

const ALLOC: u16 = 0x771;
const DEALLOC: u16 = 0x772;
const QUERY: u16 = 0x773;

/// Offsets of counters.
const WRITES: usize = 0x10;
const READS: usize = 0x18;
const OUT_OF_BUFFER: usize = 0x30;
const RECEIVER_NOT_READY: usize = 0x48;
/// All counters.
const ALL: [usize; 11] =
    [WRITES, READS, 0x20, 0x28, OUT_OF_BUFFER, 0x38, 0x40, RECEIVER_NOT_READY, 0x50, 0x58, 0x60];

const SEND: u8 = 10;
const WRITE: u8 = 8;
const READ: u8 = 16;

fn query_input(set: u8, clears: bool) -> Vec<u8> {
    let mut bytes = input(QUERY, 0x20);
    bytes[0x18] = u8::from(clears) << 7;
    bytes[0x1f] = set;
    bytes
}

fn counter(g: &mut Guest, set: u8, at: usize) -> u32 {
    let done = g.command(&query_input(set, false), 0x100);
    u32::from_be_bytes(done.output[at..at + 4].try_into().unwrap())
}

/// RESET to RTS, in a set of counters.
fn open_in(g: &mut Guest, qp: &QueuePair, set: u8, remote: Option<(u16, u32)>) {
    let mut bytes = about(0x502, qp.number);
    bytes.resize(0x110, 0);
    let c = &mut bytes[0x18..];
    put32(c, 0xa8, QKEY);
    c[8] = 4 << 5;
    c[0xc] = set;
    // Its port.
    c[0x18 + 0x25] = 1;
    c[0x92] = 0xc0;
    g.command(&bytes, 16);
    g.move_on(qp.number, remote, &[0x503, 0x504]);
}

fn set_of(g: &mut Guest) -> u8 {
    g.command(&input(ALLOC, 16), 16).number() as u8
}

/// A guest with a port, a completion queue and a key.
fn world() -> (Guest, Completions, u32) {
    let mut g = Guest::new();
    let eq = g.probe();
    g.hca.engine_mut().activate(PORT, ib_wire::Lid(7), ib_wire::Mtu::B4096).unwrap();
    let cq = g.create_cq(eq.number, 6);
    let key = g.whole_key(1);
    (g, cq, key)
}

#[test]
fn datagrams_without_a_receive_count_where_they_were_to_go() {
    let (mut g, cq, key) = world();
    let sets = [set_of(&mut g), set_of(&mut g)];
    assert!(sets[0] != 0 && sets[1] != sets[0]);
    let mut qps = [g.create_qp(SERVICE_UD, &cq), g.create_qp(SERVICE_UD, &cq)];
    for (qp, set) in qps.iter().zip(sets) {
        open_in(&mut g, qp, set, None);
    }
    let buffer = g.pages(1);
    g.receive(&mut qps[1], piece(2048, key, buffer));
    let body = [&datagram(7, qps[1].number)[..], &piece(5, key, buffer + 2048)].concat();
    for _ in 0..4 {
        g.post_send(&mut qps[0], SEND, &body);
        g.settle();
    }
    assert_eq!((counter(&mut g, sets[0], OUT_OF_BUFFER), counter(&mut g, sets[1], OUT_OF_BUFFER)), (0, 3));
    // The values are returned before they are cleared.
    let done = g.command(&query_input(sets[1], true), 0x100);
    assert_eq!(done.output[OUT_OF_BUFFER..OUT_OF_BUFFER + 4], [0, 0, 0, 3]);
    for at in ALL {
        assert_eq!(counter(&mut g, sets[1], at), 0, "{at:#x}");
    }
}

#[test]
fn requests_of_connections_count_at_their_responder() {
    let (mut g, cq, _) = world();
    let sets = [set_of(&mut g), set_of(&mut g)];
    let mut qps = [g.create_qp(SERVICE_RC, &cq), g.create_qp(SERVICE_RC, &cq)];
    let numbers = [qps[0].number, qps[1].number];
    for (n, qp) in qps.iter().enumerate() {
        open_in(&mut g, qp, sets[n], Some((7, numbers[1 - n])));
    }
    let pages = g.scattered(2);
    let buffer = 0x7000_0000;
    let key = g.key(2, buffer, 8192, &pages);
    let mut remote = [0; 16];
    put64(&mut remote, 0, buffer + 4096);
    put32(&mut remote, 8, key);
    let body = [remote, piece(64, key, buffer)].concat();
    for (opcode, times) in [(WRITE, 3), (READ, 2)] {
        for _ in 0..times {
            g.post_send(&mut qps[0], opcode, &body);
            g.settle();
        }
    }
    let of = |g: &mut Guest, set: u8| {
        [WRITES, READS, OUT_OF_BUFFER, RECEIVER_NOT_READY].map(|at| counter(g, set, at))
    };
    assert_eq!(of(&mut g, sets[0]), [0; 4]);
    assert_eq!(of(&mut g, sets[1]), [3, 2, 0, 0]);
    // A message without a posted receive.
    g.post_send(&mut qps[0], SEND, &piece(5, key, buffer));
    g.settle();
    // It is retransmitted meanwhile. The responder counts each refusal before the sender receives it, one at
    // a time.
    let [_, _, before, _] = of(&mut g, sets[1]);
    let [.., at_sender] = of(&mut g, sets[0]);
    let [_, _, behind, _] = of(&mut g, sets[1]);
    assert!(before > 0 && (before - 1..=behind).contains(&at_sender), "{before} {at_sender} {behind}");
}

#[test]
fn sets_are_limited_and_can_be_freed() {
    let (mut g, ..) = world();
    let mut sets: Vec<u8> = Vec::new();
    let full = loop {
        let done = g.try_command(&input(ALLOC, 16), 16);
        if done.status != 0 {
            break done.status;
        }
        sets.push(done.number() as u8);
        assert!(sets.len() < 1000);
    };
    // The number that the capabilities announce (10 bits at bit 6 of byte 0x30), and then "no resources".
    let capabilities = g.command(&input(0x100, 16), 0x1010).output;
    let announced = u16::from_be_bytes([capabilities[0x40], capabilities[0x41]]) & 0x3ff;
    assert_eq!((sets.len(), full), (usize::from(announced), 0xf));
    assert_eq!(g.hca.report().objects["counter_sets"], u64::from(announced));
    for set in &sets {
        assert_eq!(g.try_command(&about(DEALLOC, (*set).into()), 16).status, 0);
        assert_ne!(g.try_command(&about(DEALLOC, (*set).into()), 16).status, 0);
        assert_ne!(g.try_command(&query_input(*set, false), 0x100).status, 0);
    }
    // An unallocated set.
    assert_ne!(g.try_command(&query_input(0, false), 0x100).status, 0);
    assert_eq!(set_of(&mut g), sets[0]);
}
