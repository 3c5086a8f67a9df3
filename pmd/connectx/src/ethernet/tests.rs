use std::time::{Duration, Instant};

use super::message::{handle, question};
use super::neighbour::Question;
use super::*;

const A: MacAddress = [2, 0, 0, 0, 0, 0xa];
const B: MacAddress = [2, 0, 0, 0, 0, 0xb];

fn v4(last: u8) -> Gid {
    gidcache::gid_of_address([10, 0, 0, last].into())
}

fn at(ms: u64) -> Instant {
    use std::sync::LazyLock;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START + Duration::from_millis(ms)
}

fn questions(n: &mut Neighbours) -> Vec<Option<MacAddress>> {
    std::iter::from_fn(|| n.poll_transmit()).map(|q| q.mac).collect()
}

/// Request and reply between two ports, in both address families. The target learns the requester's address,
/// too.
#[test]
fn two_ports_resolve_each_other() {
    for (a, b) in [(v4(1), v4(2)), (gidcache::link_local_gid(A), gidcache::link_local_gid(B))] {
        let (mut of_a, mut of_b) = (Neighbours::default(), Neighbours::default());
        of_a.handle_timeout(at(0));
        of_b.handle_timeout(at(0));
        assert_eq!(of_a.resolve(a, b), Resolution::Wait);
        assert_eq!(of_a.resolve(a, b), Resolution::Wait);
        let request = of_a.poll_transmit().unwrap();
        assert!(of_a.poll_transmit().is_none(), "one request");
        let frame = question(A, &request);
        assert_eq!(frame[0] & 1, 1, "broadcast, or multicast to the target's group");
        assert!(handle(&mut of_b, B, |gid| gid == v4(99), &frame).is_none(), "a request for another address");
        let answer = handle(&mut of_b, B, |gid| gid == b, &frame).unwrap();
        assert_eq!(answer[..6], A);
        assert!(handle(&mut of_a, A, |gid| gid == a, &answer).is_none());
        assert_eq!(of_a.resolve(a, b), Resolution::Known(B));
        assert_eq!(of_b.resolve(b, a), Resolution::Known(A));
        // A later request is unicast.
        let again = question(A, &Question { mac: Some(B), ..request });
        assert_eq!(again[..6], B);
        assert!(handle(&mut of_b, B, |gid| gid == b, &again).is_some());
    }
}

#[test]
fn an_entry_in_use_is_revalidated_and_a_silent_peer_is_given_up() {
    let mut n = Neighbours::default();
    n.handle_timeout(at(0));
    n.resolve(v4(1), v4(2));
    assert_eq!(questions(&mut n), [None]);
    n.handle_address(v4(2), B, false);
    n.handle_timeout(at(29_000));
    assert_eq!(n.resolve(v4(1), v4(2)), Resolution::Known(B));
    assert_eq!(questions(&mut n), []);
    n.handle_timeout(at(30_000));
    assert_eq!(n.resolve(v4(1), v4(2)), Resolution::Known(B));
    assert_eq!(questions(&mut n), [Some(B)]);
    n.handle_timeout(at(31_000));
    assert_eq!(n.resolve(v4(1), v4(2)), Resolution::Known(B), "in use meanwhile");
    n.handle_timeout(at(32_000));
    assert_eq!(questions(&mut n), [None, Some(B)], "the last request is multicast");
    n.handle_timeout(at(33_000));
    assert_eq!(n.resolve(v4(1), v4(2)), Resolution::Unreachable);
    assert_eq!(questions(&mut n), []);
    n.handle_timeout(at(36_000));
    assert_eq!(n.resolve(v4(1), v4(2)), Resolution::Wait, "another try");
    assert_eq!(questions(&mut n), [None]);
}

#[test]
fn the_cache_is_bounded_and_ignores_group_addresses() {
    let mut n = Neighbours::default();
    n.handle_timeout(at(0));
    n.resolve(v4(1), v4(2));
    n.handle_address(v4(2), B, false);
    n.handle_address(v4(2), [0xff; 6], true);
    n.handle_address(v4(3), B, false);
    n.handle_timeout(at(1));
    assert_eq!(n.resolve(v4(1), v4(2)), Resolution::Known(B));
    for i in 0..5000u16 {
        let [a, b] = i.to_be_bytes();
        n.handle_address(gidcache::gid_of_address([11, 0, a, b].into()), B, true);
        n.handle_timeout(at(u64::from(i) + 2));
        // An entry in use is not evicted.
        assert_eq!(n.resolve(v4(1), v4(2)), Resolution::Known(B));
    }
    assert_eq!(n.resolve(v4(1), gidcache::gid_of_address([11, 0, 0, 1].into())), Resolution::Wait);
}

#[test]
fn routed_or_damaged_discovery_messages_are_ignored() {
    let (a, b) = (gidcache::link_local_gid(A), gidcache::link_local_gid(B));
    let mut n = Neighbours::default();
    n.handle_timeout(at(0));
    let good = question(A, &Question { ours: a, target: b, mac: None });
    for (at, value) in [(14 + 7, 254), (14 + 40 + 1, 1), (14 + 40 + 2, good[56] ^ 1), (80, 7)] {
        let mut frame = good.clone();
        frame[at] = value;
        assert!(handle(&mut n, B, |gid| gid == b, &frame).is_none(), "byte {at}");
    }
    for len in 0..good.len() {
        assert!(handle(&mut n, B, |gid| gid == b, &good[..len]).is_none());
    }
    // A host without an address probes ours: the reply is multicast.
    let mut frame = good;
    frame[22..38].fill(0);
    let from = frame.clone();
    frame[56..58].copy_from_slice(&{
        let mut pseudo = from[22..54].to_vec();
        pseudo.extend([0, 0, 0, 32, 0, 0, 0, 58]);
        pseudo.extend(&from[54..56]);
        pseudo.extend([0, 0]);
        pseudo.extend(&from[58..]);
        let sum: u32 = pseudo.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    });
    let answer = handle(&mut n, B, |gid| gid == b, &frame).unwrap();
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
}

/// Requests and replies of Linux, recorded from soft-RoCE: 10.0.0.1 is the kernel, 10.0.0.2 a port like ours.
#[test]
fn requests_and_replies_of_a_kernel() {
    const KERNEL: MacAddress = [2, 0, 0, 0, 0, 1];
    const OURS: MacAddress = [2, 0, 0, 0, 0, 2];
    let file = include_bytes!("../../../../cm/wire/tests/data/soft-roce-pingpong-ipv4.pcap");
    let mut rest = &file[24..];
    let mut n = Neighbours::default();
    n.handle_timeout(at(0));
    assert_eq!(n.resolve(v4(2), v4(1)), Resolution::Wait);
    let (mut requests, mut replies) = (0, 0);
    while let Some((header, tail)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (frame, tail) = tail.split_at(len);
        rest = tail;
        if frame[6..12] != KERNEL || frame[12..14] != [8, 6] {
            continue;
        }
        match (frame[21], handle(&mut n, OURS, |gid| gid == v4(2), frame)) {
            (1, Some(answer)) => {
                requests += 1;
                assert_eq!((&answer[..6], &answer[28..32]), (&KERNEL[..], &[10, 0, 0, 2][..]));
            }
            (2, None) => replies += 1,
            other => panic!("{other:?}: {frame:02x?}"),
        }
    }
    assert!(requests > 0 && replies > 0, "{requests} {replies}");
    assert_eq!(n.resolve(v4(2), v4(1)), Resolution::Known(KERNEL));
}
