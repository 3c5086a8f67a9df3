//! Frames between two AF_PACKET ports over a veth pair, in a private network namespace.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmd::eth::{Burst, EthConfig, EthPort, Woken, WokenBy, wait};
use pmd::mem::{Mbuf, Pool};

mod veth;

use veth::{CONFIG, DEADLINE, PRIVATE, eal, own_namespace, pool, run, until, veth};

/// Returns a frame of a private EtherType with `length` bytes, in segments of `part` bytes.
fn frame(pool: &Pool, number: u8, length: usize, part: usize) -> (Mbuf, Vec<u8>) {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5, number]);
    bytes.extend((bytes.len()..length).map(|i| (i % 253) as u8 ^ number));
    let mut chain: Option<Mbuf> = None;
    for piece in bytes.chunks(part) {
        let one = pool.copy_from_slice(piece).unwrap();
        match &mut chain {
            Some(chain) => chain.append_chain(one),
            None => chain = Some(one),
        }
    }
    (chain.unwrap(), bytes)
}

/// Frames longer than the driver's reported limit, with enough buffer space.
fn jumbo_frames() {
    let pool = pool("jumbo", 256, 16_384);
    let config = EthConfig { mtu: 9000, ..CONFIG };
    let (one, mut out) = EthPort::start(Some("net_af_packet2"), &config, &pool).unwrap();
    let (other, mut inn) = EthPort::start(Some("net_af_packet3"), &config, &pool).unwrap();
    let (chain, bytes) = frame(&pool, 1, 9014, 3000);
    let mut burst = Burst::from_iter([chain]);
    assert_eq!(out[0].tx_burst(&mut burst), 1);
    let mut received = None;
    let end = Instant::now() + DEADLINE;
    while received.is_none() && Instant::now() < end {
        inn[0].rx_burst(&mut burst);
        received = burst.drain(..).find(|m| m.data().get(12..14) == Some(&PRIVATE));
    }
    assert!(received.unwrap().data() == bytes);
    drop((one, out, other, inn));
}

#[test]
fn frames_of_several_segments_arrive_whole() {
    if !own_namespace() {
        return;
    }
    veth("left", "right", 1500);
    veth("near", "far", 9000);
    let eal = eal(&[
        "net_af_packet0,iface=left",
        "net_af_packet1,iface=right",
        "net_af_packet2,iface=near,framesz=16384,blocksz=65536,framecnt=64",
        "net_af_packet3,iface=far,framesz=16384,blocksz=65536,framecnt=64",
    ]);
    let (pool, config) = (pool("frames", 512, 2048), CONFIG);
    let long = EthConfig { mtu: 1501, ..config };
    let refused = |config: &EthConfig| {
        EthPort::start(Some("net_af_packet0"), config, &pool).map(drop).unwrap_err().to_string()
    };
    let error = refused(&long);
    assert!(error.contains("interface left has an MTU of 1500 bytes: ip link set left mtu 1501"), "{error}");
    let error = refused(&EthConfig { mtu: 9000, ..config });
    assert!(
        error.contains("frames of 2048 bytes hold at most 1960") && error.contains("data-room = 16384"),
        "{error}"
    );
    jumbo_frames();
    let (left, mut out) = EthPort::start(Some("net_af_packet0"), &config, &pool).unwrap();
    let (right, mut inn) = EthPort::start(Some("net_af_packet1"), &config, &pool).unwrap();
    assert!(left.link().up && right.link().up);
    assert_eq!(left.woken_by(), WokenBy::Socket);
    assert_ne!(left.mac(), right.mac());

    let mut expected = Vec::new();
    let mut burst = Burst::new();
    for (number, (length, part)) in
        [(60, 60), (1514, 14), (1514, 1000), (1514, 89), (64, 1)].into_iter().enumerate()
    {
        let (chain, bytes) = frame(&pool, number as u8, length, part);
        assert_eq!(chain.segment_count(), length.div_ceil(part));
        burst.push(chain);
        expected.push(bytes);
    }
    assert_eq!((out[0].tx_burst(&mut burst), burst.len()), (5, 0));
    assert_eq!(pool.in_use(), 0, "sent frames are freed");

    let mut received = Vec::new();
    let end = Instant::now() + DEADLINE;
    while received.len() < expected.len() && Instant::now() < end {
        inn[0].rx_burst(&mut burst);
        for m in burst.drain(..) {
            if m.data().get(12..14) == Some(&PRIVATE) {
                let mut bytes = vec![0; m.len()];
                assert_eq!(m.read(0, &mut bytes), m.len());
                received.push(bytes);
            }
        }
    }
    assert_eq!(received.len(), expected.len());
    for (number, (got, wanted)) in received.iter().zip(&expected).enumerate() {
        assert!(got == wanted, "frame {number}: {} bytes for {}", got.len(), wanted.len());
    }
    assert_eq!(right.stats().received, 5);

    // A waiting thread is woken by a frame, and not before.
    let start = Instant::now();
    assert!(
        wait(inn.iter_mut(), std::iter::empty(), Duration::from_millis(30)) == Woken::default()
            && start.elapsed() >= Duration::from_millis(30)
    );
    let mut sender = out.remove(0);
    let is_sent = Arc::new(AtomicBool::new(false));
    let later = std::thread::spawn({
        let (pool, is_sent) = (pool.clone(), Arc::clone(&is_sent));
        move || {
            // Usually long enough for the other thread to fall asleep.
            std::thread::sleep(Duration::from_millis(50));
            is_sent.store(true, Ordering::SeqCst);
            let (one, _) = frame(&pool, 9, 60, 60);
            let mut burst = Burst::from_iter([one]);
            sender.tx_burst(&mut burst);
            sender
        }
    });
    let start = Instant::now();
    wait(inn.iter_mut(), std::iter::empty(), 2 * DEADLINE);
    assert!(is_sent.load(Ordering::SeqCst), "woken without a frame");
    assert!(start.elapsed() < DEADLINE, "not woken by the frame");
    let sender = later.join().unwrap();
    while inn[0].rx_burst(&mut burst) == 0 {}
    burst.clear();

    // An unplugged cable: the driver does not notice, but the kernel does.
    run("ip link set right down");
    // The kernel reports a carrier change within about a second.
    until(|| !left.link().up && !right.link().up);
    // The resulting socket error ends one wait.
    wait(inn.iter_mut(), std::iter::empty(), Duration::from_millis(20));
    let start = Instant::now();
    wait(inn.iter_mut(), std::iter::empty(), Duration::from_millis(20));
    assert!(start.elapsed() >= Duration::from_millis(20));
    run("ip link set right up");
    until(|| left.link().up && right.link().up);
    // After renaming, another interface takes the old name. The port stays with its interface.
    run("ip link set left name uplink");
    run("ip link add left type veth peer name other");
    assert!(left.link().up, "a renamed interface");
    run("ip link del uplink");
    assert!(!left.link().up, "a deleted interface");
    drop((left, out, sender, right, inn));
    assert_eq!(pool.in_use(), 0);
    drop(pool);
    drop(eal);
}
