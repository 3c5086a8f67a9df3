//! Receive interrupts that can be disabled and that signal through a counter: a virtio port. A vhost port at
//! the other end runs in another process, which executes this program again.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pmd::eth::{Burst, EthConfig, EthPort, EthQueue, Woken, WokenBy, wait};
use pmd::mem::Pool;

mod veth;

use veth::{CONFIG, eal, pool, until};

/// Path of the other end's socket, for the process that runs it.
const OTHER_END: &str = "PMD_TEST_VHOST";
/// Duration of a wait that only a frame ends in time; longer than [`LOST`].
const LONG: Duration = Duration::from_secs(300);
/// A wait of this duration was not ended by a frame. It is generous because the machine may be busy.
const LOST: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(20);
const BY_INTERRUPT: Woken = Woken { interrupt: true, device: false };

/// Returns each frame after the number of milliseconds in its first byte, until the process is killed or its
/// parent exits.
fn echo(path: &str) {
    let parent = parent_id();
    std::mem::forget(eal(&[&format!("net_vhost0,iface={path}")]));
    let pool = pool("frames", 2048, 2048);
    let (_port, mut queues) = EthPort::start(Some("net_vhost0"), &CONFIG, &pool).unwrap();
    let mut burst = Burst::new();
    loop {
        while queues[0].rx_burst(&mut burst) == 0 {
            if parent_id() != parent {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_millis(burst[0].data()[0].into()));
        while !burst.is_empty() {
            queues[0].tx_burst(&mut burst);
        }
    }
}

/// The other end's process and socket, removed on drop.
struct OtherEnd(Child, PathBuf);

impl Drop for OtherEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}

fn send(queue: &mut EthQueue, pool: &Pool, milliseconds: u8, number: u8) {
    let mut bytes = [number; 60];
    bytes[0] = milliseconds;
    let mut burst = Burst::from_iter([pool.copy_from_slice(&bytes).unwrap()]);
    assert_eq!(queue.tx_burst(&mut burst), 1);
}

/// Returns the numbers of the received frames.
fn take(queue: &mut EthQueue) -> Vec<u8> {
    let mut burst = Burst::new();
    queue.rx_burst(&mut burst);
    burst.iter().map(|frame| frame.data()[1]).collect()
}

fn rest(queue: &mut EthQueue, at_most: Duration) -> Woken {
    wait(std::iter::once(queue), std::iter::empty(), at_most)
}

#[test]
fn an_enabled_interrupt_signals_later_frames_only() {
    if let Ok(path) = std::env::var(OTHER_END) {
        return echo(&path);
    }
    let path = std::env::temp_dir().join(format!("pmd-vhost-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let other = Command::new(std::env::current_exe().unwrap()).env(OTHER_END, &path).spawn().unwrap();
    let _other = OtherEnd(other, path.clone());
    let begin = Instant::now();
    while !path.exists() {
        assert!(begin.elapsed() < LOST, "the other end does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::mem::forget(eal(&[&format!("net_virtio_user0,path={}", path.display())]));
    let pool = pool("frames", 2048, 2048);
    // Its other end does not filter by address and cannot be set to promiscuous mode.
    let config = EthConfig { promiscuous: false, ..CONFIG };
    let (port, mut queues) = EthPort::start(Some("net_virtio_user0"), &config, &pool).unwrap();
    assert_eq!(port.woken_by(), WokenBy::RxInterrupt);
    until(|| port.link().up);
    let queue = &mut queues[0];
    for round in 0..50 {
        // Disabled: a frame causes no wakeup, now or later. An awake worker polls.
        let begin = Instant::now();
        send(queue, &pool, 0, round);
        while take(queue) != [round] {
            assert!(begin.elapsed() < LOST, "round {round}: lost");
        }
        assert!(queue.arm(), "round {round}: it was disabled");
        assert!(!queue.arm(), "round {round}: it is enabled");
        assert_eq!(take(queue), [], "round {round}: the poll before the sleep");
        assert_eq!(rest(queue, SHORT), Woken::default(), "round {round}: nothing has arrived since");
        send(queue, &pool, round % 3 * 2, 100 + round);
        assert_eq!(rest(queue, LONG), BY_INTERRUPT, "round {round}");
        assert!(begin.elapsed() < LOST, "round {round}: the wakeup was lost");
        assert_eq!(rest(queue, Duration::ZERO), Woken::default(), "round {round}: it signals once");
        queue.disarm();
        assert_eq!(take(queue), [100 + round]);
    }
}
