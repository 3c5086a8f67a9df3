//! Queue errors and limits, as reported by the guest's event queues.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

/// Slots of a shared receive queue, and bytes of each.
const SLOTS: u16 = 64;
const SLOT: u64 = 64;

/// A shared receive queue on one page.
struct Shared {
    number: u32,
    page: u64,
    record: u64,
    posted: u16,
}

impl Shared {
    fn new(g: &mut Guest) -> Self {
        let (page, record) = (g.pages(1), g.pages(1));
        for slot in 0..SLOTS {
            g.put(page + u64::from(slot) * SLOT + 2, &((slot + 1) % SLOTS).to_be_bytes());
        }
        let mut bytes = input(0x700, 0x110);
        bytes[0x10] = 6;
        bytes[0x14] = 2;
        put64(&mut bytes, 0x38, record);
        bytes.extend_from_slice(&page.to_be_bytes());
        let number = g.command(&bytes, 16).number();
        Self { number, page, record, posted: 0 }
    }

    fn post(&mut self, g: &mut Guest, segment: [u8; 16]) {
        let at = self.page + u64::from(self.posted % SLOTS) * SLOT;
        g.put(at + 16, &segment);
        let mut end = [0; 16];
        put32(&mut end, 4, 0x100);
        g.put(at + 32, &end);
        self.posted += 1;
        g.put(self.record, &u32::from(self.posted).to_be_bytes());
    }

    /// State, limit, posted receives.
    fn query(&self, g: &mut Guest) -> (u8, u16, u16) {
        let now = g.command(&about(0x702, self.number), 0x50).output;
        let half = |at: usize| u16::from_be_bytes([now[at], now[at + 1]]);
        (now[0x10] >> 4, half(0x2c), half(0x2e))
    }
}

/// A connection within the device: `a` sends, `b` takes its receives from a shared queue.
struct Connected {
    g: Guest,
    eq: Events,
    cq: Completions,
    a: QueuePair,
    b: u32,
    srq: Shared,
    key: u32,
    memory: u64,
}

impl Connected {
    /// Creates the connection; with `to_send` false, `b` stops in RTR.
    fn new(to_send: bool) -> Self {
        let mut g = Guest::new();
        let eq = g.probe();
        let cq = g.create_cq(eq.number, 6);
        let srq = Shared::new(&mut g);
        let a = g.create_qp(SERVICE_RC, &cq);
        let (pages, record) = (g.scattered(2), g.pages(1));
        let mut bytes = g.qp_input(SERVICE_RC, cq.number, &pages, record);
        put32(&mut bytes, 0x18 + 0xac, 1 << 24 | srq.number);
        let b = g.command(&bytes, 16).number();
        g.open(&a, Some((7, b)));
        let all = [0x502, 0x503, 0x504];
        g.move_on(b, Some((7, a.number)), if to_send { &all } else { &all[..2] });
        let (key, memory) = (g.whole_key(0), g.pages(1));
        Self { g, eq, cq, a, b, srq, key, memory }
    }

    fn post(&mut self) {
        self.srq.post(&mut self.g, piece(64, self.key, self.memory + 64));
    }

    fn send(&mut self) {
        self.g.post_send(&mut self.a, 10, &piece(10, self.key, self.memory));
        self.g.settle();
    }

    /// Types and numbers of the events since the last call.
    fn raised(&mut self) -> Vec<(u8, u32)> {
        let next = |event: (u8, u8, Vec<u8>)| {
            // A completion queue's number comes first, all others' at the end. Only the queue pair's type, 0,
            // names a kind of queue.
            let at = if event.0 == 4 { 0 } else { 24 };
            assert_eq!((event.1, event.2[20]), (0, 0));
            (event.0, u32::from_be_bytes(event.2[at..at + 4].try_into().unwrap()))
        };
        std::iter::from_fn(|| self.g.next_event(&mut self.eq)).map(next).collect()
    }
}

#[test]
fn data_before_the_connection_is_established_raises_an_event() {
    let mut c = Connected::new(false);
    c.post();
    c.post();
    c.send();
    c.send();
    assert_eq!(c.raised(), [(2, c.b)], "once");
    assert_eq!(std::iter::from_fn(|| c.g.poll(&mut c.cq)).count(), 4);
}

#[test]
fn a_shared_queue_that_falls_below_its_limit_raises_one_event_per_arming() {
    let mut c = Connected::new(true);
    for _ in 0..10 {
        c.post();
    }
    for limit in [8u16, 6, 2] {
        let mut arm = about(0x703, c.srq.number);
        put16(&mut arm, 14, limit);
        c.g.command(&arm, 16);
        let posted = c.srq.query(&mut c.g).2;
        assert_eq!(c.srq.query(&mut c.g), (0, limit, posted));
        for _ in limit..posted {
            c.send();
        }
        assert_eq!((c.raised(), c.srq.query(&mut c.g)), (vec![], (0, limit, limit)));
        c.send();
        assert_eq!((c.raised(), c.srq.query(&mut c.g)), (vec![(0x14, c.srq.number)], (0, 0, limit - 1)));
    }
    let mut arm = about(0x703, 99);
    put16(&mut arm, 14, 1);
    assert_eq!(c.g.try_command(&arm, 16).status, 5);
    assert_eq!(c.g.try_command(&about(0x702, 99), 0x50).status, 5);
}

#[test]
fn a_queue_pair_in_error_has_taken_its_last_receive() {
    let mut c = Connected::new(true);
    c.post();
    c.g.command(&about(0x507, c.b), 16);
    c.g.settle();
    assert_eq!(c.raised(), [(0x13, c.b)]);
    assert_eq!(c.srq.query(&mut c.g).2, 1, "the shared queue keeps its receives");
}

#[test]
fn invalid_requests_of_the_peer_raise_events() {
    // RDMA WRITE under a key that does not permit it.
    let mut c = Connected::new(true);
    let mut body = vec![0; 16];
    put64(&mut body, 0, c.memory);
    put32(&mut body, 8, c.key ^ 0xff00);
    body.extend_from_slice(&piece(10, c.key, c.memory));
    c.g.post_send(&mut c.a, 8, &body);
    c.g.settle();
    assert_eq!(c.raised(), [(0x11, c.b), (0x13, c.b)]);
    let cqe = c.g.poll(&mut c.cq).unwrap();
    assert_eq!((cqe[63] >> 4, cqe[55]), (13, 0x13), "a remote access error");
    // A message longer than the receive: its completion reports it, without an event.
    let mut c = Connected::new(true);
    c.srq.post(&mut c.g, piece(5, c.key, c.memory));
    c.send();
    assert_eq!(c.raised(), [(0x13, c.b)]);
    let mut done: Vec<_> = std::iter::from_fn(|| c.g.poll(&mut c.cq)).map(|e| outcome(&e)).collect();
    done.sort_unstable();
    assert_eq!(done, [(13, 0x12), (14, 1)]);
}

#[test]
fn a_shared_queue_whose_link_leads_out_of_its_ring() {
    let mut c = Connected::new(true);
    c.post();
    c.post();
    c.g.put(c.srq.page + 2, &[0xff, 0xff]);
    c.send();
    assert_eq!(c.raised(), [(0x12, c.srq.number), (5, c.b), (0x13, c.b)]);
    assert_eq!(c.srq.query(&mut c.g).0, 1);
    assert_eq!((c.g.state(c.b), c.g.state(c.a.number)), (6, 6));
}

#[test]
fn queue_pairs_whose_completions_have_no_room_fail() {
    let mut c = Connected::new(true);
    let small = c.g.create_cq(c.eq.number, 1);
    let mut alone = c.g.create_qp(SERVICE_UD, &small);
    c.g.open(&alone, None);
    let body = [&datagram(7, 0xf0)[..], &piece(10, c.key, c.memory)].concat();
    for n in 0..4 {
        c.g.post_send(&mut alone, 10, &body);
        c.g.settle();
        let expected = if n == 2 { vec![(4, small.number), (5, alone.number)] } else { vec![] };
        assert_eq!((n, c.raised()), (n, expected));
    }
    assert_eq!(c.g.state(alone.number), 6);
    // Others are not affected.
    c.post();
    c.send();
    assert_eq!((c.g.state(c.a.number), c.g.state(c.b), c.raised()), (3, 3, vec![]));
    assert_eq!(c.g.command(&about(0x402, small.number), 0x50).output[0x10] >> 4, 9);
}
