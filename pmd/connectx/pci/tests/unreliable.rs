//! Unreliable connections between queue pairs of a guest: commands of a driver, and completions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

/// The remote address and the data of an RDMA WRITE.
fn write(there: u64, rkey: u32, piece: [u8; 16]) -> Vec<u8> {
    let mut body = there.to_be_bytes().to_vec();
    body.extend_from_slice(&rkey.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&piece);
    body
}

#[test]
fn messages_and_writes_over_an_unreliable_connection() {
    let mut g = Guest::new();
    let eq = g.probe();
    let capabilities = g.command(&[&0x100u16.to_be_bytes()[..], &[0; 14]].concat(), 0x1010).output;
    assert_eq!(capabilities[0x10 + 0x47] & 7, 7, "UD, UC and RC are announced");
    let mut cq = g.create_cq(eq.number, 7);
    let (mut a, mut b) = (g.create_qp(SERVICE_UC, &cq), g.create_qp(SERVICE_UC, &cq));
    g.open(&a, Some((7, b.number)));
    g.open(&b, Some((7, a.number)));
    let (from, into) = (g.pages(4), g.pages(4));
    let bytes: Vec<u8> = (0..12_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
    g.put(from, &bytes);
    let key = g.whole_key(3);
    let target = g.key(4, into, 4 * 4096, &[into, into + 4096, into + 8192, into + 12_288]);
    for _ in 0..2 {
        g.receive(&mut b, piece(12_000, key, into));
    }
    // SEND with immediate data, in packets of 2048 bytes; then a write, and one with immediate data.
    g.post_send(&mut a, 0x0b, &piece(12_000, key, from));
    g.settle();
    let sent = g.poll(&mut cq).unwrap();
    let got = g.poll(&mut cq).unwrap();
    assert_eq!((sent[63] >> 4, sent[56], &sent[44..48]), (0, 0x0b, &12_000u32.to_be_bytes()[..]));
    assert_eq!((got[63] >> 4, &got[44..48]), (3, &12_000u32.to_be_bytes()[..]));
    assert!(g.get(into, 12_000) == bytes);
    g.put(into, &[0; 12_000]);
    g.post_send(&mut a, 8, &write(into + 100, target, piece(5000, key, from)));
    g.post_send(&mut a, 9, &write(into + 5100, target, piece(5000, key, from + 5000)));
    g.settle();
    assert!(g.get(into + 100, 10_000) == bytes[..10_000]);
    let completed: Vec<_> =
        std::iter::from_fn(|| g.poll(&mut cq)).map(|cqe| (cqe[63] >> 4, cqe[56])).collect();
    assert_eq!(completed, [(0, 8), (0, 9), (1, 0)]);
    // Without permission: it is not reported, and both ends continue.
    g.post_send(&mut a, 8, &write(into, target ^ 1, piece(8, key, from)));
    g.post_send(&mut a, 0x0a, &piece(8, key, from));
    g.settle();
    let completed: Vec<_> =
        std::iter::from_fn(|| g.poll(&mut cq)).map(|cqe| (cqe[63] >> 4, cqe[56])).collect();
    assert_eq!(completed, [(0, 8), (0, 0x0a)], "a message without a receive is lost");
    assert_eq!((g.state(a.number), g.state(b.number)), (3, 3));
    // The sender's own key is wrong: sends stop until the driver resumes them.
    g.post_send(&mut a, 0x0a, &piece(8, key ^ 1, from));
    g.post_send(&mut a, 0x0a, &piece(8, key, from));
    g.settle();
    let completed: Vec<_> = std::iter::from_fn(|| g.poll(&mut cq)).map(|cqe| outcome(&cqe)).collect();
    assert_eq!((completed, g.state(a.number)), (vec![(13, 0x04), (13, 0x05)], 4));
    g.move_on(a.number, None, &[0x506]);
    g.receive(&mut b, piece(12_000, key, into));
    g.post_send(&mut a, 0x0a, &piece(8, key, from));
    g.settle();
    let completed: Vec<_> = std::iter::from_fn(|| g.poll(&mut cq)).map(|cqe| cqe[63] >> 4).collect();
    assert_eq!((completed, g.state(a.number)), (vec![0, 2], 3));
}
