//! Completion queues that drivers modify: another ring, moderation, and queries.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use std::time::Duration;

use guest::*;

const MODIFY: u16 = 0x403;
const QUERY: u16 = 0x402;

/// A command that moves a queue to another ring.
fn resize_input(cq: u32, log: u8, pages: &[u64]) -> Vec<u8> {
    let mut bytes = about(MODIFY, cq);
    bytes.resize(0x110, 0);
    put16(&mut bytes, 6, 1);
    put32(&mut bytes, 0xc, 7);
    put32(&mut bytes, 0x1c, u32::from(log) << 24);
    for page in pages {
        bytes.extend_from_slice(&page.to_be_bytes());
    }
    bytes
}

/// Moves a queue as drivers do: unread entries move to the new ring, each one slot further.
fn resize(g: &mut Guest, cq: &mut Completions, log: u8) -> u8 {
    let pages = g.scattered((64u64 << log).div_ceil(4096));
    let place = |pages: &[u64], log: u8, index: u32| {
        let at = u64::from(index % (1 << log)) * 64;
        pages[at as usize / 4096] + at % 4096
    };
    for index in 0..1 << log {
        g.put(place(&pages, log, index) + 63, &[0xf0]);
    }
    let status = g.try_command(&resize_input(cq.number, log, &pages), 16).status;
    if status != 0 {
        return status;
    }
    let mut index = cq.consumer;
    loop {
        let mut entry = g.get(place(&cq.pages, cq.log, index), 64);
        assert_eq!(u32::from(entry[63] & 1), index >> cq.log & 1, "the last entry is missing");
        index += 1;
        if entry[63] >> 4 == 5 {
            break;
        }
        entry[63] = entry[63] & !1 | (index >> log & 1) as u8;
        g.put(place(&pages, log, index), &entry);
    }
    cq.consumer += 1;
    (cq.pages, cq.log) = (pages, log);
    0
}

fn send(g: &mut Guest, qp: &mut QueuePair, key: u32) {
    g.post_send(qp, 10, &[&datagram(7, 0xf0)[..], &piece(10, key, 0x10_0000)].concat());
    g.settle();
}

#[test]
fn a_queue_moves_to_another_ring() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 4);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let key = g.whole_key(0);
    let mut expected = 0u16;
    for (log, unread) in [(8, 5), (3, 2), (6, 0), (4, 13), (12, 3), (2, 1), (5, 20)] {
        for _ in 0..unread {
            send(&mut g, &mut qp, key);
        }
        // The unread entries do not fit.
        if unread >= 4 {
            assert_eq!(resize(&mut g, &mut cq, 2), 0x40);
        }
        // Pages that are not in memory; half of the pages; half of the mask; too large a ring.
        let bad = resize_input(cq.number, log, &[MEMORY; 64]);
        assert_eq!(g.try_command(&bad, 16).status, 3);
        assert_eq!(g.try_command(&resize_input(cq.number, 12, &[0x10_0000; 63]), 16).status, 0x50);
        let mut half = resize_input(cq.number, log, &[0x10_0000; 64]);
        put32(&mut half, 0xc, 1);
        assert_eq!(g.try_command(&half, 16).status, 3);
        assert_eq!(g.try_command(&resize_input(cq.number, 17, &[0x10_0000; 1 << 10]), 16).status, 3);
        assert_eq!(g.try_command(&resize_input(0xfff, log, &[0x10_0000; 64]), 16).status, 5);
        let larger = log.max(6);
        assert_eq!(resize(&mut g, &mut cq, larger), 0);
        for _ in 0..30 {
            send(&mut g, &mut qp, key);
        }
        for _ in 0..unread + 30 {
            let cqe = g.poll(&mut cq).unwrap();
            assert_eq!((cqe[63] >> 4, u16::from_be_bytes([cqe[60], cqe[61]])), (0, expected));
            // A datagram takes two blocks of the ring.
            expected = expected.wrapping_add(2);
        }
        assert!(g.poll(&mut cq).is_none());
        let now = g.command(&about(QUERY, cq.number), 0x50).output;
        assert_eq!(now[0x1c], larger);
        assert_eq!((&now[0x39..0x3c], &now[0x3d..0x40]), (&now[0x3d..0x40], &cq.consumer.to_be_bytes()[1..]));
    }
}

#[test]
fn events_are_moderated() {
    let mut g = Guest::new();
    g.probe();
    let mut eq = g.create_eq(2, 0);
    let cq = {
        let (pages, record) = (g.scattered(1), g.pages(1));
        for n in 0..64 {
            g.put(pages[0] + n * 64 + 63, &[0xf0]);
        }
        let mut bytes = g.cq_input(eq.number, 6, &pages, record);
        put32(&mut bytes, 0x20, 0xfff << 16 | 3);
        let number = g.command(&bytes, 16).number();
        Completions { number, pages, log: 6, record, consumer: 0 }
    };
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let key = g.whole_key(0);
    let word = |g: &mut Guest| {
        let now = g.command(&about(QUERY, cq.number), 0x50).output;
        u32::from_be_bytes(now[0x20..0x24].try_into().unwrap())
    };
    let state = |g: &mut Guest| g.command(&about(QUERY, cq.number), 0x50).output[0x12];
    assert_eq!(word(&mut g), 0xfff << 16 | 3);
    // One completion: its event is raised late, by the timer.
    assert_eq!(state(&mut g), 0xa);
    g.arm_cq(&cq);
    assert_eq!(state(&mut g), 0x9);
    g.arm_eq(&eq);
    send(&mut g, &mut qp, key);
    let end = g.now() + Duration::from_secs(20);
    while g.next_event(&mut eq).is_none() {
        assert!(g.now() < end, "the event is never raised");
        g.wait(Duration::from_millis(1));
    }
    assert_eq!((g.interrupts(2), state(&mut g)), (1, 0xa));
    // Each of the two can be changed alone.
    let change = |g: &mut Guest, mask: u32, word: u32| {
        let mut bytes = about(MODIFY, cq.number);
        bytes.resize(0x110, 0);
        put32(&mut bytes, 0xc, mask);
        put32(&mut bytes, 0x20, word);
        g.try_command(&bytes, 16).status
    };
    assert_eq!((change(&mut g, 1, 0x123 << 16 | 9), word(&mut g)), (0, 0x123 << 16 | 3));
    assert_eq!((change(&mut g, 2, 0x456 << 16 | 9), word(&mut g)), (0, 0x123 << 16 | 9));
    assert_eq!((change(&mut g, 0x80, 0), word(&mut g)), (3, 0x123 << 16 | 9));
    // Without moderation: at once.
    assert_eq!((change(&mut g, 3, 0), word(&mut g)), (0, 0));
    let mut cq = cq.clone();
    g.poll(&mut cq).unwrap();
    g.arm_cq(&cq);
    send(&mut g, &mut qp, key);
    assert!(g.next_event(&mut eq).is_some());
}

/// Reads the clock register, two words.
fn clock(g: &mut Guest) -> u64 {
    let mut word = |at| u64::from(g.read_word(at));
    word(0x1000) << 32 | word(0x1004)
}

#[test]
fn completions_have_the_time_of_the_device() {
    let mut g = Guest::new();
    let eq = g.probe();
    // Ticks per millisecond.
    let capabilities = g.command(&input(0x100, 16), 0x1010).output;
    assert_eq!(capabilities[0x10 + 0x9c..][..4], 1_000_000u32.to_be_bytes());
    let (mut sent, mut received) = (g.create_cq(eq.number, 6), g.create_cq(eq.number, 6));
    let mut sender = g.create_qp(SERVICE_UD, &sent);
    let mut receiver = g.create_qp(SERVICE_UD, &received);
    for qp in [&sender, &receiver] {
        g.open(qp, None);
    }
    let key = g.whole_key(0);
    let mut before = clock(&mut g);
    for _ in 0..3 {
        g.receive(&mut receiver, piece(100, key, 0x20_0000));
        let body = [&datagram(7, receiver.number)[..], &piece(10, key, 0x10_0000)].concat();
        g.post_send(&mut sender, 10, &body);
        g.settle();
        let times = [&mut sent, &mut received].map(|cq| {
            let cqe = g.poll(cq).unwrap();
            u64::from_be_bytes(cqe[48..56].try_into().unwrap())
        });
        let after = clock(&mut g);
        assert!(times.iter().all(|time| (before + 1..after).contains(time)), "{before} {times:?} {after}");
        before = after;
    }
    // Another driver finds the clock running.
    g.write(7, 0x68, &[0, 0x80]);
    assert!(clock(&mut g) > before);
}
