//! Bonds of AF_PACKET ports over veth pairs, in a private network namespace.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use pmd::eth::{Burst, EthConfig, EthPort, EthQueue};
use pmd::mem::{Pool, PoolConfig};

mod veth;

use veth::{CONFIG, DEADLINE, PRIVATE, eal, kernel_sends, own_namespace, pool, until, veth};

/// Returns a broadcast frame.
fn frame(pool: &Pool) -> Burst {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9, PRIVATE[0], PRIVATE[1]]);
    bytes.resize(60, 7);
    Burst::from_iter([pool.copy_from_slice(&bytes).unwrap()])
}

/// Runs iterations of workers without frames to send until `is` holds or the time is over. Returns whether it
/// held.
fn turn(
    queues: &mut [&mut EthQueue],
    time: Duration,
    mut is: impl FnMut(&mut [&mut EthQueue], &mut Burst) -> bool,
) -> bool {
    let end = Instant::now() + time;
    let mut received = Burst::new();
    while Instant::now() < end {
        for queue in &mut *queues {
            queue.keep_up();
        }
        if is(queues, &mut received) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn bonds_agree_by_lacp_without_traffic_and_count_what_their_rings_lose() {
    if !own_namespace() {
        return;
    }
    for n in 0..2 {
        veth(&format!("left{n}"), &format!("right{n}"), 1500);
    }
    // The argument name for a member changed in 23.11.
    let member = if eal_takes_members() { "member" } else { "slave" };
    let bond = |n: u8| {
        format!("net_bonding{n},mode=4,{member}=net_af_packet{0},{member}=net_af_packet{1}", 2 * n, 2 * n + 1)
    };
    let [left, right] = [bond(0), bond(1)];
    let eal = eal(&[
        "net_af_packet0,iface=left0",
        "net_af_packet1,iface=left1",
        "net_af_packet2,iface=right0,framecnt=64,blocksz=4096,framesz=2048",
        "net_af_packet3,iface=right1,framecnt=64,blocksz=4096,framesz=2048",
        &left,
        &right,
    ]);
    let pool = pool("bonds", 4096, 2048);
    // A condition for which the driver would exit the program is an error.
    let part = PoolConfig { count: 10_000, data_room: 2048, cache: 0, socket: -1 };
    let fillers: Vec<Pool> =
        (0..64).map_while(|n| Pool::create(&format!("filler-{n}"), &part).ok()).collect();
    let many = EthConfig { tx_descriptors: 65_000, ..CONFIG };
    let error = EthPort::start(Some("net_bonding0"), &many, &pool).unwrap_err().to_string();
    assert!(error.contains("speak LACP") && error.contains("more memory"), "{error}");
    assert!(error.contains("no memory for"), "{error}");
    drop(fillers);
    // Broadcasts are received although promiscuous mode was not requested and the drivers cannot receive all
    // groups.
    let config = EthConfig { promiscuous: false, ..CONFIG };
    let (one, mut out) = EthPort::start(Some("net_bonding0"), &config, &pool).unwrap();
    let (other, mut inn) = EthPort::start(Some("net_bonding1"), &config, &pool).unwrap();
    let (out, inn) = (&mut out[0], &mut inn[0]);
    let arrives = |queues: &mut [&mut EthQueue], burst: &mut Burst| {
        for queue in &mut *queues {
            queue.rx_burst(burst);
        }
        let came = burst.iter().any(|m| m.data().get(12..14) == Some(&PRIVATE));
        burst.clear();
        // Without a partner the bond accepts no frames.
        queues[0].tx_burst(&mut frame(&pool));
        came
    };
    assert!(turn(&mut [&mut *out, &mut *inn], DEADLINE, arrives), "the bonds do not agree");
    assert!(one.link().up && other.link().up);

    // Nobody polls, and the members' rings become full.
    let before = other.stats();
    for name in ["left0", "left1"] {
        (0..500).for_each(|_| kernel_sends(name, &PRIVATE));
    }
    let lost = other.stats().missed - before.missed;
    assert!((2 * (500 - 64)..=2 * 500).contains(&lost), "{lost} of 1,000 lost");
    assert_eq!(other.stats().missed - before.missed, lost, "reported once");

    // All cables unplugged: the drivers report nothing, but the kernel does.
    veth::run("ip link set left0 down");
    assert!(other.link().up, "one link is left");
    veth::run("ip link set left1 down");
    until(|| !other.link().up && !one.link().up);
    drop((one, other));
    drop(eal);
}

/// True if this DPDK uses the argument name `member`.
fn eal_takes_members() -> bool {
    let version = std::process::Command::new("pkg-config").args(["--modversion", "libdpdk"]).output();
    let version = version.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let mut numbers = version.split('.').filter_map(|n| n.trim().parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= (23, 11))
}
