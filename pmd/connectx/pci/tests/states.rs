//! States of queue pairs as seen by a driver: draining of sends, and completions on entering and leaving the
//! error state.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

const RTS2SQD: u16 = 0x508;
const SQD2RTS: u16 = 0x509;
const SQD_RTS: u16 = 0x50c;
const SQ_DRAINED: u8 = 3;
const LAST_WQE: u8 = 0x13;

/// A change of state without parameters; `notify` is the bit above the number.
fn say(g: &mut Guest, op: u16, qp: u32, notify: bool) -> u8 {
    let bytes = about(op, qp | u32::from(notify) << 31);
    g.try_command(&bytes, 16).status
}

/// Opcode, syndrome and counter of the completions since the last call.
fn completed(g: &mut Guest, cq: &mut Completions) -> Vec<(u8, u8, u16)> {
    std::iter::from_fn(|| g.poll(cq))
        .map(|c| {
            let (opcode, syndrome) = outcome(&c);
            (opcode, syndrome, u16::from_be_bytes([c[60], c[61]]))
        })
        .collect()
}

fn events(g: &mut Guest, eq: &mut Events) -> Vec<(u8, u32)> {
    let number = |data: &[u8]| u32::from_be_bytes([data[24], data[25], data[26], data[27]]);
    std::iter::from_fn(|| g.next_event(eq)).map(|(kind, _, data)| (kind, number(&data))).collect()
}

#[test]
fn a_driver_drains_the_sends_of_a_queue_pair() {
    for service in [SERVICE_RC, SERVICE_UC, SERVICE_UD] {
        for (resume, notify) in [(SQD_RTS, true), (SQD2RTS, false)] {
            let mut g = Guest::new();
            let mut eq = g.probe();
            let mut cq = g.create_cq(eq.number, 7);
            let (mut a, b) = (g.create_qp(service, &cq), g.create_qp(service, &cq));
            let remote = |qp: &QueuePair| (service != SERVICE_UD).then_some((7, qp.number));
            g.open(&a, remote(&b));
            g.open(&b, remote(&a));
            let (page, key) = (g.pages(1), g.whole_key(3));
            assert_eq!((say(&mut g, RTS2SQD, a.number, notify), g.state(a.number)), (0, 5));
            let expected: &[(u8, u32)] = if notify { &[(SQ_DRAINED, a.number)] } else { &[] };
            g.settle();
            assert_eq!(events(&mut g, &mut eq), expected);
            // Requests posted now wait; a receive would not.
            let mut body = if service == SERVICE_UD { datagram(7, b.number).to_vec() } else { Vec::new() };
            body.extend(piece(16, key, page));
            g.post_send(&mut a, 0x0a, &body);
            g.settle();
            assert_eq!((completed(&mut g, &mut cq), g.state(a.number)), (vec![], 5), "service {service}");
            assert_eq!(say(&mut g, RTS2SQD, a.number, notify), 0x10, "already drained");
            // It resumes, with another Q_Key if it is a datagram queue pair.
            let mut bytes = about(resume, a.number);
            bytes.resize(0x110, 0);
            put32(&mut bytes, 0x10, 1 << 5);
            put32(&mut bytes, 0x18 + 0xa8, QKEY);
            g.command(&bytes, 16);
            g.settle();
            assert_eq!(g.state(a.number), 3);
            if service != SERVICE_RC {
                assert_eq!(completed(&mut g, &mut cq), [(0, 0, 0)], "service {service}");
            }
            assert_eq!(say(&mut g, 0x507, a.number, false), 0);
        }
    }
}

#[test]
fn a_transition_of_a_drained_queue_pair_needs_only_its_number() {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 7);
    let a = g.create_qp(SERVICE_UD, &cq);
    for op in [RTS2SQD, SQD_RTS, SQD2RTS] {
        let mut bytes = about(op, a.number);
        bytes.resize(0x110, 0);
        assert_eq!(g.try_command(&bytes, 16).status, 0x10, "{op:#x} in RESET");
        put32(&mut bytes, 8, 0x123456);
        assert_eq!(g.try_command(&bytes, 16).status, 5, "{op:#x} of no queue pair");
        assert_ne!(g.try_command(&bytes[..8], 16).status, 0, "{op:#x} cut short");
    }
}

/// An error on request of the driver: every posted request completes once, signaled or not, and so do later
/// ones. RESET discards them.
#[test]
fn posted_requests_are_flushed_once_and_reset_completes_none() {
    const FLUSHED: u8 = 5;
    for service in [SERVICE_RC, SERVICE_UC, SERVICE_UD] {
        let mut g = Guest::new();
        let eq = g.probe();
        let mut cq = g.create_cq(eq.number, 7);
        let (page, key) = (g.pages(1), g.whole_key(3));
        let (mut a, mut lost) = (g.create_qp(service, &cq), g.create_qp(service, &cq));
        for qp in [&a, &lost] {
            g.open(qp, (service != SERVICE_UD).then_some((9, 77)));
        }
        let mut body = if service == SERVICE_UD { datagram(9, 77).to_vec() } else { Vec::new() };
        body.extend(piece(16, key, page));
        for qp in [&mut a, &mut lost] {
            g.receive(qp, piece(4096, key, page));
            g.receive(qp, piece(4096, key, page));
            // Posted without a doorbell; the record shows them.
            for _ in 0..3 {
                g.lay_send(qp, 0x0a, &body);
            }
        }
        let step = a.posted / 3;
        assert_eq!(say(&mut g, 0x507, a.number, false), 0);
        g.settle();
        let sends = (0..3).map(|n| (13, FLUSHED, n * step));
        let expected: Vec<_> = sends.chain((0..2).map(|n| (14, FLUSHED, n))).collect();
        assert_eq!(completed(&mut g, &mut cq), expected, "service {service}");
        g.receive(&mut a, piece(4096, key, page));
        assert_eq!(say(&mut g, 0x507, a.number, false), 0);
        g.settle();
        assert_eq!(completed(&mut g, &mut cq), [(14, FLUSHED, 2)], "service {service}");
        assert_eq!((say(&mut g, 0x50a, a.number, false), say(&mut g, 0x50a, lost.number, false)), (0, 0));
        g.settle();
        assert_eq!((completed(&mut g, &mut cq), g.state(lost.number)), (vec![], 0), "service {service}");
    }
}

#[test]
fn the_last_receive_of_a_shared_queue_raises_one_event() {
    for service in [SERVICE_RC, SERVICE_UC, SERVICE_UD] {
        let mut g = Guest::new();
        let mut eq = g.probe();
        let cq = g.create_cq(eq.number, 7);
        let (page, record) = (g.pages(1), g.pages(1));
        let mut bytes = input(0x700, 0x118);
        // 16 slots of 32 bytes.
        bytes[0x10] = 4;
        bytes[0x14] = 1;
        put64(&mut bytes, 0x10 + 0x28, record);
        put64(&mut bytes, 0x110, page);
        let srq = g.command(&bytes, 16).number();
        let (pages, own) = (g.scattered(2), g.pages(1));
        let mut bytes = g.qp_input(service, cq.number, &pages, own);
        put32(&mut bytes, 0x18 + 0xac, 1 << 24 | srq);
        let number = g.command(&bytes, 16).number();
        let qp = QueuePair { number, pages, record: own, posted: 0, received: 0 };
        g.open(&qp, (service != SERVICE_UD).then_some((9, 77)));
        for _ in 0..3 {
            assert_eq!(say(&mut g, 0x507, number, false), 0);
            g.settle();
        }
        assert_eq!(events(&mut g, &mut eq), [(LAST_WQE, number)], "service {service}");
    }
}

#[test]
fn a_queue_pair_keeps_fields_that_a_transition_does_not_set() {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 6);
    let qp = g.create_qp(SERVICE_RC, &cq).number;
    // Port and the peer's permissions; path, number, MTU and first packet of the peer; retries and first
    // packet. Each sets only its own fields.
    let mut init = about(0x502, qp);
    init.resize(0x110, 0);
    init[0x18 + 0x3d] = 1;
    init[0x18 + 0x92] = 0xc0;
    let mut rtr = about(0x503, qp);
    rtr.resize(0x110, 0);
    rtr[0x18 + 8] = 4 << 5;
    rtr[0x18 + 0x3d] = 1;
    put32(&mut rtr, 0x18 + 0x14, 0x1234);
    put16(&mut rtr, 0x18 + 0x18 + 6, 9);
    put32(&mut rtr, 0x18 + 0x94, 12 << 24 | 77);
    let mut rts = about(0x504, qp);
    rts.resize(0x110, 0);
    rts[0x18 + 0x18 + 8] = 14 << 3;
    rts[0x18 + 0x71] = 2 << 5 | 6;
    rts[0x18 + 0x72] = 5 << 5;
    put32(&mut rts, 0x18 + 0x78, 99);
    for bytes in [init, rtr, rts] {
        g.command(&bytes, 16);
    }
    // Removes the right to write, and sets nothing else.
    let mut less = about(0x505, qp);
    less.resize(0x110, 0);
    put32(&mut less, 0x10, 1 << 3);
    put32(&mut less, 0x18 + 0x14, 0x4321);
    let query = |g: &mut Guest| {
        let c = g.command(&about(0x50b, qp), 0x110).output.split_off(0x18);
        let number = |at: usize| u32::from_be_bytes([0, c[at + 1], c[at + 2], c[at + 3]]);
        assert_eq!((c[8] >> 5, number(0x14), c[0x18 + 7], c[0x18 + 8] >> 3), (4, 0x1234, 9, 14));
        assert_eq!((c[0x71], c[0x72] >> 5, number(0x78), c[0x94], number(0x94)), (2 << 5 | 6, 5, 99, 12, 77));
        (c[0] >> 4, c[0x92])
    };
    assert_eq!(query(&mut g), (3, 0xc0));
    g.command(&less, 16);
    assert_eq!(query(&mut g), (3, 0x80));
    assert_eq!(say(&mut g, 0x507, qp, false), 0);
    assert_eq!(query(&mut g), (6, 0x80));
}
