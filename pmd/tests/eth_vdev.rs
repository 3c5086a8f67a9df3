//! Ports of DPDK's software drivers, which EAL loads as plugins. A separate process, because EAL starts once.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use pmd::eal::Eal;
use pmd::eth::{Burst, EthConfig, EthPort, port_names};
use pmd::hca::BURST;
use pmd::mem::{Mbuf, Pool, PoolConfig};

/// Runs one test at a time, on an EAL that runs until the process exits.
fn eal() -> MutexGuard<'static, bool> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock().unwrap_or_else(|e| e.into_inner());
    if !*started {
        let words = format!(
            "test --no-huge --no-shconf --no-pci -m 128 --no-telemetry --log-level=error --lcores 0@0 --vdev net_null0,size=60 \
             --vdev net_null1 --vdev net_null2 --vdev net_null3 --vdev net_ring0 --vdev net_ring1 --vdev net_ring2 \
             --vdev net_pcap0,tx_pcap={}",
            capture().display()
        );
        std::mem::forget(Eal::init(words.split_whitespace().map(str::to_owned)).unwrap());
        *started = true;
    }
    started
}

/// Returns the file to which `net_pcap0` writes sent frames.
fn capture() -> PathBuf {
    std::env::temp_dir().join(format!("eth-vdev-{}.pcap", std::process::id()))
}

/// Returns a chain with these bytes in its segments.
fn chain(pool: &Pool, parts: &[&[u8]]) -> Mbuf {
    let mut frame = pool.copy_from_slice(parts[0]).unwrap();
    for part in &parts[1..] {
        frame.append_chain(pool.copy_from_slice(part).unwrap());
    }
    frame
}

fn pool(name: &str, count: u32, data_room: u16) -> Pool {
    Pool::create(name, &PoolConfig { count, data_room, cache: 0, socket: -1 }).unwrap()
}

fn config() -> EthConfig {
    EthConfig {
        queues: 1,
        rx_descriptors: 256,
        tx_descriptors: 256,
        mtu: 1500,
        promiscuous: true,
        offloads: true,
    }
}

#[test]
fn a_null_port_gives_frames_and_takes_them_without_leak() {
    let _one = eal();
    let pool = pool("null", 256, 2048);
    let (port, mut queues) = EthPort::start(Some("net_null0"), &config(), &pool).unwrap();
    assert_eq!((port.name(), queues.len(), port.link().up), ("net_null0", 1, true));
    let queue = &mut queues[0];
    let mut burst = Burst::new();
    assert_eq!(queue.rx_burst(&mut burst), BURST);
    assert_eq!(queue.rx_burst(&mut burst), 0, "the burst is full");
    assert!(burst.iter().all(|m| m.len() == 60 && m.segment_count() == 1));
    assert_eq!(pool.in_use() as usize, BURST);
    assert_eq!((queue.tx_burst(&mut burst), burst.len()), (BURST, 0));
    assert_eq!(pool.in_use(), 0);
    let stats = port.stats();
    assert_eq!((stats.received, stats.sent), (BURST as u64, BURST as u64));

    // The port exists as long as its queues; then its name is removed.
    drop(port);
    assert_eq!(queue.rx_burst(&mut burst), BURST);
    assert!(port_names().contains(&"net_null0".to_owned()));
    drop((burst, queues));
    assert!(!port_names().contains(&"net_null0".to_owned()));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_driver_that_sends_one_segment_gets_copies_of_chains() {
    let _one = eal();
    let pool = pool("chains", 64, 256);
    let config = EthConfig { mtu: 200, ..config() };
    let (port, mut queues) = EthPort::start(Some("net_pcap0"), &config, &pool).unwrap();
    let parts: [&[u8]; 3] = [&[0x11; 60], &[0x22; 50], &[0x33; 70]];
    let mut burst = Burst::new();
    burst.push(chain(&pool, &parts[..1]));
    burst.push(chain(&pool, &parts));
    burst.push(chain(&pool, &parts[1..]));
    assert_eq!((queues[0].tx_burst(&mut burst), burst.len(), pool.in_use()), (3, 0, 0));
    drop((port, queues));
    // After the file header, each frame has its own header.
    let mut frames = &std::fs::read(capture()).unwrap()[24..];
    std::fs::remove_file(capture()).unwrap();
    for sent in [&parts[..1], &parts, &parts[1..]] {
        let sent = sent.concat();
        assert_eq!(frames[16..16 + sent.len()], sent);
        frames = &frames[16 + sent.len()..];
    }
    assert!(frames.is_empty());
}

#[test]
fn a_chain_waits_for_the_buffer_that_its_copy_needs() {
    let _one = eal();
    let pool = pool("no copies", 64, 256);
    let config = EthConfig { mtu: 200, ..config() };
    let (_port, mut queues) = EthPort::start(Some("net_null3"), &config, &pool).unwrap();
    let parts: [&[u8]; 2] = [&[0x11; 60], &[0x22; 50]];
    let mut burst = Burst::new();
    for parts in [&parts[..1], &parts, &parts[1..]] {
        burst.push(chain(&pool, parts));
    }
    let mut rest: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    // The first frame's buffer is free after it was sent.
    assert_eq!((queues[0].tx_burst(&mut burst), burst.len()), (1, 2));
    let taken = pool.alloc();
    assert_eq!((queues[0].tx_burst(&mut burst), burst.len()), (0, 2));
    assert_eq!(burst[0].segment_count(), 2);
    drop(taken);
    assert_eq!((queues[0].tx_burst(&mut burst), burst.len()), (2, 0));
    // No buffer is long enough for this frame; the next one is sent.
    rest.truncate(8);
    burst.push(chain(&pool, &[&[1; 200], &[2; 200]]));
    burst.push(chain(&pool, &parts));
    assert_eq!((queues[0].tx_burst(&mut burst), burst.len()), (1, 0));
    drop(rest);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn an_empty_pool_is_no_fault() {
    let _one = eal();
    let pool = pool("empty", 64, 2048);
    let (_port, mut queues) = EthPort::start(Some("net_null1"), &config(), &pool).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let mut burst = Burst::new();
    assert_eq!(queues[0].rx_burst(&mut burst), 0);
    drop(all);
    assert_eq!(queues[0].rx_burst(&mut burst), BURST);
}

#[test]
fn a_ring_keeps_order_and_hands_back_what_it_cannot_take() {
    let _one = eal();
    let pool = pool("ring", 4096, 256);
    let (port, mut queues) = EthPort::start(Some("net_ring0"), &config(), &pool).unwrap();
    let queue = &mut queues[0];
    let mut sent = 0u32;
    let mut burst = Burst::new();
    // Until the ring is full. The rest stays in order.
    loop {
        while !burst.is_full() {
            let number = sent + burst.len() as u32;
            burst.push(pool.copy_from_slice(&number.to_be_bytes()).unwrap());
        }
        let taken = queue.tx_burst(&mut burst);
        assert_eq!(taken + burst.len(), BURST);
        sent += taken as u32;
        for (number, m) in (sent..).zip(&burst) {
            assert_eq!(m.data(), number.to_be_bytes());
        }
        if taken < BURST {
            break;
        }
        assert!(sent < 4096, "the ring becomes full");
    }
    assert!(sent as usize >= BURST && !burst.is_empty());
    burst.clear();
    let mut received = 0u32;
    while queue.rx_burst(&mut burst) > 0 {
        for m in burst.drain(..) {
            assert_eq!(m.data(), received.to_be_bytes());
            received += 1;
        }
    }
    assert_eq!((received, pool.in_use()), (sent, 0));
    assert_eq!(port.stats().sent, u64::from(sent));
}

#[test]
fn a_port_has_one_user() {
    let _one = eal();
    let pool = pool("one user", 256, 2048);
    let first = EthPort::start(Some("net_ring1"), &config(), &pool).unwrap();
    let error = EthPort::start(Some("net_ring1"), &config(), &pool).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    drop(first);
}

#[test]
fn wrong_ports_and_settings_are_named() {
    let _one = eal();
    let pool = pool("wrong", 64, 2048);
    let says = |name, config: &EthConfig, words: &[&str]| {
        let error = EthPort::start(name, config, &pool).unwrap_err().to_string();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    };
    says(Some("net_nothing"), &config(), &["net_nothing", "net_ring2", "ethernet.port"]);
    says(Some("0000:ff:1f.7"), &config(), &["0000:ff:1f.7"]);
    says(Some("nul\0"), &config(), &["available"]);
    says(None, &config(), &["several", "net_ring2"]);
    says(Some("net_ring2"), &EthConfig { queues: 60_000, ..config() }, &["at most", "60000", "lcores"]);
    says(Some("net_ring2"), &EthConfig { queues: 0, ..config() }, &["queue"]);
    // A driver with one buffer per frame, and a longer frame.
    says(
        Some("net_null2"),
        &EthConfig { mtu: 9000, ..config() },
        &["send", "2048", "[buffers] data-room = 9024"],
    );
    // A rejected port can be started again.
    drop(EthPort::start(Some("net_ring2"), &config(), &pool).unwrap());
}
