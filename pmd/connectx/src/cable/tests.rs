use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use super::*;

mod crcs;

/// Packets of every length, so that records end at every offset of the ring. Each identifies itself.
fn packet(i: u32) -> Vec<u8> {
    let len = 4 + (i as usize * 37) % (MAX_PACKET - 4);
    let mut bytes = vec![i as u8; len];
    bytes[..4].copy_from_slice(&i.to_be_bytes());
    bytes
}

/// A loopback address that no other process's tests use.
pub(super) fn own_address() -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 128 | high, middle, low], 0))
}

/// Two free ports of this process's own loopback address.
pub(super) fn ports() -> (SocketAddr, SocketAddr) {
    let [a, b] = [(); 2].map(|()| UdpSocket::bind(own_address()).unwrap());
    (a.local_addr().unwrap(), b.local_addr().unwrap())
}

fn send(end: &mut CableEnd, packet: &[u8]) -> Result<(), CableFull> {
    end.send_with(packet.len(), |out| out.copy_from_slice(packet))
}

#[test]
fn a_pair_carries_every_packet_in_order_between_two_threads() {
    const N: u32 = 20_000;
    let (mut a, mut b) = CableEnd::pair().unwrap();
    let sender = std::thread::spawn(move || {
        let mut full = 0u64;
        for i in 0..N {
            while send(&mut a, &packet(i)).is_err() {
                full += 1;
                std::thread::yield_now();
            }
        }
        assert_eq!(a.counters().tx_packets, u64::from(N));
        assert_eq!(a.counters().tx_full, full);
        a
    });
    let mut next = 0;
    while next < N {
        let n = b.receive(32, |p| {
            assert_eq!(p, packet(next));
            next += 1;
        });
        if n == 0 {
            std::thread::yield_now();
        }
    }
    let mut a = sender.join().unwrap();
    assert_eq!(a.counters().tx_bytes, b.counters().rx_bytes);
    assert_eq!(a.receive(1, |_| {}), 0);
}

#[test]
fn a_slow_receiver_holds_the_sender_back() {
    let (mut a, mut b) = CableEnd::pair().unwrap();
    let mut sent = 0;
    while send(&mut a, &[7; MAX_PACKET]).is_ok() {
        sent += 1;
    }
    assert!(sent > 50 && !a.has_room(MAX_PACKET));
    assert_eq!(b.receive(2, |p| assert_eq!(p, [7; MAX_PACKET])), 2);
    assert!(a.has_room(MAX_PACKET));
    assert_eq!(send(&mut a, &[7; MAX_PACKET]), Ok(()));
}

#[test]
fn a_dropped_end_takes_the_other_down() {
    let now = Instant::now();
    let (mut a, b) = CableEnd::pair().unwrap();
    a.poll(now);
    assert!(a.is_up());
    send(&mut a, &[1]).unwrap();
    send(&mut a, &[2]).unwrap();
    drop(b);
    a.poll(now);
    assert!(!a.is_up());
    send(&mut a, &[3]).unwrap();
    let c = a.counters();
    assert_eq!((c.ups, c.downs, c.lost_going_down, c.tx_down), (1, 1, 2, 1));
}

#[test]
fn odd_lengths_are_dropped_and_counted() {
    let (mut a, mut b) = CableEnd::pair().unwrap();
    send(&mut a, &[]).unwrap();
    send(&mut a, &[0; MAX_PACKET + 1]).unwrap();
    assert_eq!(a.counters().tx_bad_length, 2);
    assert_eq!(b.receive(8, |_| {}), 0);
}

#[test]
fn faults_happen_in_both_directions() {
    let now = Instant::now();
    let (mut a, mut b) = CableEnd::pair().unwrap();
    a.inject(Faults { loss: 0.5, seed: 3, ..Faults::default() });
    a.poll(now);
    let mut shown = 0;
    for i in 0..200 {
        send(&mut a, &packet(i)).unwrap();
        send(&mut b, &packet(i)).unwrap();
        shown += a.receive(8, |_| {}) as u64;
    }
    let (sending, receiving) = a.fault_counters().unwrap();
    assert_eq!(b.receive(usize::MAX, |_| {}) as u64, 200 - sending.lost);
    assert_eq!((a.counters().rx_packets, shown), (200, 200 - receiving.lost));
    assert!(sending.lost > 60 && receiving.lost > 60 && sending.lost != receiving.lost);
}

#[test]
fn a_tap_copies_packets_that_cross_the_end() {
    let (mut a, mut b) = CableEnd::pair().unwrap();
    let (tap, mut reader) = tap::tap(10_000);
    a.set_tap(Some(tap));
    send(&mut a, &[1; 40]).unwrap();
    send(&mut b, &[2; 50]).unwrap();
    a.receive(8, |_| {});
    let mut bytes = Vec::new();
    let mut seen = Vec::new();
    while let Some(header) = reader.pop(&mut bytes) {
        seen.push((header.direction, bytes.clone()));
    }
    assert_eq!(seen, [(TapDirection::Sent, vec![1; 40]), (TapDirection::Received, vec![2; 50])]);
}

#[test]
fn a_refused_packet_is_passed_again() {
    for faults in [Faults::default(), Faults { corrupt: 1e-300, ..Faults::default() }] {
        let (mut a, mut b) = CableEnd::pair().unwrap();
        b.inject(faults);
        for i in 0..4 {
            send(&mut a, &[i; 100]).unwrap();
        }
        let mut seen = Vec::new();
        for (max, refuse) in [(9, 1), (9, 9), (1, 9), (9, 9)] {
            b.receive_as_sent(max, |p, _| {
                seen.push(p[0]);
                p[0] != refuse
            });
        }
        assert_eq!(seen, [0, 1, 1, 2, 3], "{faults:?}");
    }
}
