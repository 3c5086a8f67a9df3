//! Extended reliable connections of a guest, and its shared receive queues of all kinds, with the commands
//! that Linux uses from ISSI 1 on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

const BAD_PARAMETER: u8 = 0x03;
const BAD_RESOURCE: u8 = 0x05;
const BUSY: u8 = 0x06;
const SERVICE_XRC: u8 = 3;
const SLOTS: u16 = 64;
const STRIDE: u64 = 32;
/// User index of a driver that sets none.
const NO_INDEX: u32 = 0xff_ffff;

/// A shared receive queue of 64 slots of 32 bytes, whose receives all use one buffer.
struct SharedQueue {
    number: u32,
    ring: u64,
    record: u64,
    posted: u16,
}

impl SharedQueue {
    /// `create` returns the number of a queue with this ring and record.
    fn new(g: &mut Guest, create: impl FnOnce(&mut Guest, u64, u64) -> u32) -> Self {
        let (ring, record) = (g.pages(1), g.pages(1));
        for slot in 0..SLOTS {
            g.put(ring + u64::from(slot) * STRIDE + 2, &((slot + 1) % SLOTS).to_be_bytes());
        }
        let number = create(g, ring, record);
        Self { number, ring, record, posted: 0 }
    }

    fn xrc(g: &mut Guest, xrcd: u32, cq: u32, index: u32) -> Self {
        Self::new(g, |g, ring, record| g.command(&xrc_srq(ring, record, xrcd, cq, index), 16).number())
    }

    fn post(&mut self, g: &mut Guest, piece: [u8; 16]) {
        let at = self.ring + u64::from(self.posted % SLOTS) * STRIDE;
        g.put(at + 16, &piece);
        self.posted += 1;
        g.put(self.record, &u32::from(self.posted).to_be_bytes());
    }
}

fn listing(mut bytes: Vec<u8>, page: u64) -> Vec<u8> {
    bytes.extend_from_slice(&page.to_be_bytes());
    bytes
}

fn xrc_srq(ring: u64, record: u64, xrcd: u32, cq: u32, index: u32) -> Vec<u8> {
    let mut bytes = input(0x705, 0x110);
    bytes[0x10] = 6;
    put32(&mut bytes, 0x14, 1 << 24 | xrcd);
    put32(&mut bytes, 0x18, cq);
    put32(&mut bytes, 0x20, index);
    put64(&mut bytes, 0x38, record);
    listing(bytes, ring)
}

fn pool(ring: u64, record: u64) -> Vec<u8> {
    let mut bytes = input(0x90c, 0x110);
    // State "ready", as the driver writes it.
    bytes[0x21] = 0x10;
    put64(&mut bytes, 0x60, record);
    bytes[0x71] = 5;
    bytes[0x73] = 6;
    listing(bytes, ring)
}

fn limit_of_pool(number: u32, limit: u16) -> Vec<u8> {
    let mut bytes = about(0x90d, 1 << 28 | number);
    bytes.resize(0x110, 0);
    bytes[0x17] = 1;
    put16(&mut bytes, 0x56, limit);
    bytes
}

/// A target as created by the driver: no queues, and other objects in their fields.
fn target(xrcd: u32, cq: u32, srq: u32) -> Vec<u8> {
    let mut bytes = input(0x500, 0x110);
    let c = &mut bytes[0x18..];
    c[1] = SERVICE_XRC;
    c[10] = 0x80;
    put32(c, 0x10, NO_INDEX);
    put32(c, 0x7c, cq);
    put32(c, 0x9c, cq);
    put32(c, 0x98, xrcd);
    put32(c, 0xac, 1 << 24 | srq);
    bytes
}

/// With a send queue of 64 WQEBBs on its second page, so that the helpers can write requests there.
fn initiator(g: &mut Guest, cq: &Completions, srq: u32) -> QueuePair {
    let pages = g.scattered(2);
    let record = g.pages(1);
    let mut bytes = g.qp_input(SERVICE_XRC, cq.number, &pages, record);
    // The ring begins where that of receives would end.
    let c = &mut bytes[0x18..];
    c[9] = 0;
    put16(c, 0x92, 32 << 6);
    put32(c, 0xac, 1 << 24 | srq);
    let number = g.command(&bytes, 16).number();
    QueuePair { number, pages, record, posted: 0, received: 0 }
}

fn segment(srqn: u32) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    put32(&mut bytes, 0, srqn);
    bytes
}

fn issi(g: &mut Guest, version: u16) -> u8 {
    let mut bytes = input(0x10b, 16);
    put16(&mut bytes, 0xa, version);
    g.try_command(&bytes, 16).status
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn the_interface_has_two_versions() {
    let mut g = Guest::new();
    g.probe();
    let values = |g: &mut Guest| {
        let output = g.command(&input(0x10a, 16), 0x70).output;
        (word(&output, 8) & 0xffff, word(&output, 0x6c))
    };
    assert_eq!(values(&mut g), (0, 3));
    assert_eq!((issi(&mut g, 1), values(&mut g)), (0, (1, 3)));
    assert_eq!(
        (issi(&mut g, 2), issi(&mut g, 0xffff), values(&mut g)),
        (BAD_PARAMETER, BAD_PARAMETER, (1, 3))
    );
    // A restarted driver selects again.
    g.command(&input(0x104, 16), 16);
    assert_eq!(values(&mut g), (0, 3));
}

#[test]
fn initiators_targets_and_a_queue_that_several_share() {
    let mut g = Guest::new();
    let mut eq = g.probe();
    assert_eq!(issi(&mut g, 1), 0);
    let (filler, mut sends, mut receives) =
        (g.create_cq(eq.number, 6), g.create_cq(eq.number, 6), g.create_cq(eq.number, 6));
    let xrcd = g.command(&input(0x80e, 16), 16).number();
    let mut srq = SharedQueue::xrc(&mut g, xrcd, receives.number, 0x321);
    let key = g.whole_key(3);
    let (from, into) = (g.pages(2), g.pages(2));
    let bytes: Vec<u8> = (0..5000u32).map(|n| (n * 7 + n / 251) as u8).collect();
    g.put(from, &bytes);
    let mut ends: Vec<_> = (0..3)
        .map(|_| {
            let ini = initiator(&mut g, &sends, srq.number);
            let tgt = g.command(&target(xrcd, filler.number, srq.number), 16).number();
            g.open(&ini, Some((7, tgt)));
            g.move_on(tgt, Some((7, ini.number)), &[0x502, 0x503, 0x504]);
            (ini, tgt)
        })
        .collect();
    let mut arm = about(0x708, srq.number);
    put16(&mut arm, 0xe, 2);
    for _ in 0..3 {
        srq.post(&mut g, piece(5000, key, into));
    }
    g.command(&arm, 16);
    for (ini, tgt) in &mut ends {
        let body = [segment(srq.number), piece(5000, key, from).to_vec()].concat();
        g.post_send(ini, 0x0a, &body);
        g.settle();
        let got = g.poll(&mut receives).unwrap();
        assert_eq!((got[63] >> 4, word(&got, 44), word(&got, 32)), (2, 5000, 0x321));
        assert_eq!((word(&got, 56), word(&got, 24) & 0xff_ffff), (*tgt, ini.number));
        let sent = g.poll(&mut sends).unwrap();
        assert_eq!((sent[63] >> 4, word(&sent, 32), word(&sent, 56) & 0xff_ffff), (0, 0x123, ini.number));
        assert!(g.get(into, 5000) == bytes);
        g.put(into, &[0; 5000]);
    }
    assert!(g.poll(&mut filler.clone()).is_none(), "the filler queue gets no completions");
    // The limit event was raised once, with the number of the queue.
    let limits = std::iter::from_fn(|| g.next_event(&mut eq)).filter(|(kind, ..)| *kind == 0x14);
    assert_eq!(limits.map(|(.., data)| word(&data, 24)).collect::<Vec<_>>(), [srq.number]);
    // Queries.
    let context = g.command(&about(0x707, srq.number), 0x110).output;
    assert_eq!(
        (word(&context, 0x14) & 0xff_ffff, word(&context, 0x20), word(&context, 0x2c)),
        (xrcd, 0x321, 0)
    );
    let context = g.command(&about(0x50b, ends[0].1), 0x110).output;
    assert_eq!((context[0x18] >> 4, context[0x19], word(&context, 0x18 + 0x98)), (3, 3, xrcd));
    // No receive is posted: the sender waits, and continues when there is one.
    let (ini, tgt) = &mut ends[0];
    g.post_send(ini, 0x0a, &[segment(srq.number), piece(10, key, from).to_vec()].concat());
    g.settle();
    assert!(g.poll(&mut sends).is_none() && g.poll(&mut receives).is_none());
    srq.post(&mut g, piece(5000, key, into));
    let sent = (0..10_000).find_map(|_| {
        g.wait(std::time::Duration::from_millis(1));
        g.poll(&mut sends)
    });
    assert!(sent.is_some_and(|cqe| cqe[63] >> 4 == 0));
    assert!(g.poll(&mut receives).is_some_and(|cqe| cqe[63] >> 4 == 2));
    // Another number: both ends are in error, and the driver learns which target.
    g.post_send(ini, 0x0a, &[segment(srq.number ^ 0x800), piece(10, key, from).to_vec()].concat());
    g.settle();
    let failed = g.poll(&mut sends).unwrap();
    assert_eq!((failed[63] >> 4, failed[55]), (13, 0x12));
    assert_eq!((g.state(ini.number), g.state(*tgt)), (6, 6));
    let values: Vec<_> =
        std::iter::from_fn(|| g.next_event(&mut eq)).filter(|(kind, ..)| *kind == 0x10).collect();
    assert_eq!(values.iter().map(|(.., data)| word(data, 24)).collect::<Vec<_>>(), [*tgt]);
    // Objects in use cannot be destroyed.
    assert_eq!(g.try_command(&about(0x80f, xrcd), 16).status, BUSY);
    assert_eq!(g.try_command(&about(0x401, receives.number), 16).status, BUSY);
    for (ini, tgt) in ends {
        g.command(&about(0x501, ini.number), 16);
        g.command(&about(0x50a, tgt), 16);
        assert_eq!(g.try_command(&about(0x80f, xrcd), 16).status, BUSY);
        g.command(&about(0x501, tgt), 16);
    }
    assert_eq!(g.try_command(&about(0x80f, xrcd), 16).status, BUSY);
    g.command(&about(0x706, srq.number), 16);
    for cq in [receives, sends, filler] {
        g.command(&about(0x401, cq.number), 16);
    }
    g.command(&about(0x80f, xrcd), 16);
    assert_eq!(g.try_command(&about(0x80f, xrcd), 16).status, BAD_RESOURCE);
}

#[test]
fn writes_reads_and_atomics_over_an_extended_connection() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let xrcd = g.command(&input(0x80e, 16), 16).number();
    let mut srq = SharedQueue::xrc(&mut g, xrcd, cq.number, NO_INDEX);
    let mut ini = initiator(&mut g, &cq, srq.number);
    let tgt = g.command(&target(xrcd, cq.number, srq.number), 16).number();
    g.open(&ini, Some((7, tgt)));
    for op in [0x502, 0x503, 0x504] {
        let mut bytes = g.transition(op, tgt, 1, Some((7, ini.number)));
        // The peer may execute all operations.
        put16(&mut bytes, 0x18 + 0x92, 0xe000);
        bytes[0x18 + 0x91] |= 1;
        g.command(&bytes, 16);
    }
    let (from, into) = (g.pages(1), g.pages(1));
    g.put(from, &[0x5a; 4096]);
    let key = g.whole_key(3);
    let rkey = {
        let mut bytes = g.key_input(4, into, 4096, &[into]);
        bytes[0x12] |= 0x40;
        g.command(&bytes, 16).number() << 8 | 4
    };
    let number = srq.number;
    let mut request = |g: &mut Guest, opcode: u8, operands: &[u64], len: u32| {
        let mut body = segment(number);
        body.extend_from_slice(&into.to_be_bytes());
        body.extend_from_slice(&rkey.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        operands.iter().for_each(|operand| body.extend_from_slice(&operand.to_be_bytes()));
        body.extend_from_slice(&piece(len, key, from));
        let first = g.lay_request(&mut ini, opcode, 77, &body);
        g.ring_send(first);
        g.settle();
        std::iter::from_fn(|| g.poll(&mut cq)).map(|cqe| (cqe[63] >> 4, word(&cqe, 32))).collect::<Vec<_>>()
    };
    assert_eq!(request(&mut g, 8, &[], 3000), [(0, 0x123)]);
    assert!(g.get(into, 3000) == [0x5a; 3000] && g.get(into + 3000, 96) == [0; 96]);
    g.put(from, &[0; 4096]);
    assert_eq!(request(&mut g, 0x10, &[], 3000), [(0, 0x123)]);
    assert!(g.get(from, 3000) == [0x5a; 3000]);
    g.put(into, &40u64.to_ne_bytes());
    assert_eq!(request(&mut g, 0x12, &[2, 0], 8), [(0, 0x123)]);
    assert_eq!(g.get(into, 8), 42u64.to_ne_bytes());
    srq.post(&mut g, piece(0, key, into));
    // Without a user index, a queue's completions have its number.
    let mut values = request(&mut g, 9, &[], 8);
    values.sort_unstable();
    assert_eq!(values, [(0, 0x123), (1, number)]);
}

#[test]
fn receive_memory_pools_are_shared_receive_queues() {
    let mut g = Guest::new();
    let mut eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let mut srq = SharedQueue::new(&mut g, |g, ring, record| g.command(&pool(ring, record), 16).number());
    let (key, from, into) = (g.whole_key(3), g.pages(1), g.pages(1));
    let (pages, record) = (g.scattered(2), g.pages(1));
    let mut bytes = g.qp_input(SERVICE_RC, cq.number, &pages, record);
    put32(&mut bytes, 0x18 + 0xac, 1 << 24 | srq.number);
    let rx = QueuePair { number: g.command(&bytes, 16).number(), pages, record, posted: 0, received: 0 };
    let mut tx = g.create_qp(SERVICE_RC, &cq);
    g.open(&tx, Some((7, rx.number)));
    g.open(&rx, Some((7, tx.number)));
    srq.post(&mut g, piece(64, key, into));
    srq.post(&mut g, piece(64, key, into));
    g.command(&limit_of_pool(srq.number, 2), 16);
    let values = |g: &mut Guest| {
        let context = g.command(&about(0x90f, srq.number), 0x110).output;
        (context[0x21] >> 4, word(&context, 0x54) & 0xffff)
    };
    assert_eq!(values(&mut g), (1, 2));
    g.put(from, &[9; 64]);
    g.post_send(&mut tx, 0x0a, &piece(64, key, from));
    g.settle();
    assert_eq!(std::iter::from_fn(|| g.poll(&mut cq)).count(), 2);
    assert_eq!((g.get(into, 64), values(&mut g)), (vec![9; 64], (1, 0)));
    let limits = std::iter::from_fn(|| g.next_event(&mut eq)).filter(|(kind, ..)| *kind == 0x14);
    assert_eq!(limits.map(|(.., data)| word(&data, 24)).collect::<Vec<_>>(), [srq.number]);
    // Other changes are rejected.
    let mut bytes = limit_of_pool(srq.number, 1);
    bytes[0x17] = 3;
    assert_eq!(g.try_command(&bytes, 16).status, BAD_PARAMETER);
    assert_eq!(g.try_command(&about(0x90e, srq.number), 16).status, BUSY);
    g.command(&about(0x501, rx.number), 16);
    // A link out of the ring breaks it.
    g.command(&about(0x90e, srq.number), 16);
    assert_eq!(g.try_command(&about(0x90f, srq.number), 0x110).status, BAD_RESOURCE);
}

#[test]
fn each_kind_of_shared_queue_has_its_commands() {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 6);
    let xrcd = g.command(&input(0x80e, 16), 16).number();
    let plain = SharedQueue::new(&mut g, |g, ring, record| {
        let mut bytes = xrc_srq(ring, record, 0, 0, 0);
        put16(&mut bytes, 0, 0x700);
        g.command(&bytes, 16).number()
    });
    let of_pool = SharedQueue::new(&mut g, |g, ring, record| g.command(&pool(ring, record), 16).number());
    let xrc = SharedQueue::xrc(&mut g, xrcd, cq.number, 1);
    let mut commands = [[0x702u16, 0x703, 0x701], [0x90f, 0x90d, 0x90e], [0x707, 0x708, 0x706]]
        .into_iter()
        .zip([plain.number, of_pool.number, xrc.number]);
    let all: Vec<_> = commands.by_ref().collect();
    let status = |g: &mut Guest, op: u16, number: u32| {
        let mut bytes = about(op, number);
        bytes.resize(0x110, 0);
        g.try_command(&bytes, 0x110).status
    };
    for (ops, own) in &all {
        for (_, number) in &all {
            for &op in &ops[..if number == own { 2 } else { 3 }] {
                let expected = if number == own { 0 } else { BAD_RESOURCE };
                assert_eq!(status(&mut g, op, *number), expected, "{op:#x} {number}");
            }
        }
    }
    assert_eq!(g.hca.report().objects["shared_receive_queues"], 3);
    for (ops, own) in all {
        assert_eq!((status(&mut g, ops[2], own), status(&mut g, ops[2], own)), (0, BAD_RESOURCE));
    }
}

#[test]
fn missing_objects_are_refused() {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 6);
    let xrcd = g.command(&input(0x80e, 16), 16).number();
    let (ring, record) = (g.pages(1), g.pages(1));
    for (xrcd, cq) in [(xrcd + 1, cq.number), (0, cq.number), (0xff_ffff, cq.number), (xrcd, 99)] {
        assert_eq!(
            g.try_command(&xrc_srq(ring, record, xrcd, cq, 0), 16).status,
            BAD_RESOURCE,
            "{xrcd} {cq}"
        );
    }
    for domain in [0, xrcd + 1, 0xff_ffff] {
        assert_eq!(g.try_command(&target(domain, cq.number, 0), 16).status, BAD_RESOURCE, "{domain}");
    }
    // An XRC queue supplies no receives to other connections.
    let srq = SharedQueue::xrc(&mut g, xrcd, cq.number, 0);
    let (pages, records) = (g.scattered(2), g.pages(1));
    let mut bytes = g.qp_input(SERVICE_RC, cq.number, &pages, records);
    put32(&mut bytes, 0x18 + 0xac, 1 << 24 | srq.number);
    assert_eq!(g.try_command(&bytes, 16).status, BAD_RESOURCE);
    // Memory that users register, rings without size, records outside of memory.
    let mut umem = xrc_srq(ring, record, xrcd, cq.number, 0);
    umem[0x5c] = 0x80;
    assert_eq!(g.try_command(&umem, 16).status, BAD_PARAMETER);
    for (at, value) in
        [(0x74, 0x80), (0x74, 0x40), (0x71, 4), (0x71, 11), (0x71, 15), (0x73, 31), (0x73, 17), (0x60, 0xff)]
    {
        let mut bytes = pool(ring, record);
        bytes[at] = value;
        assert_ne!(g.try_command(&bytes, 16).status, 0, "{value:#x} at {at:#x}");
    }
    // Short inputs.
    for op in [0x705, 0x90c, 0x90d] {
        assert_ne!(g.try_command(&input(op, 12), 16).status, 0, "{op:#x}");
    }
    assert_eq!(g.hca.report().objects["shared_receive_queues"], 1);
    assert_eq!(g.hca.report().objects["queue_pairs"], 0);
}
