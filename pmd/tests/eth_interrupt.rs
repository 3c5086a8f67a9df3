//! A sleeping worker is woken by a port's receive interrupts: a TAP port with two queues, in a private
//! network namespace.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use pmd::eth::{Burst, EthConfig, EthPort, EthQueue, Woken, WokenBy, wait};

mod veth;

use veth::{CONFIG, PRIVATE, eal, kernel_sends, own_namespace, pool, run};

/// Duration of a wait that only a frame ends in time; longer than [`LOST`].
const LONG: Duration = Duration::from_secs(300);
/// A wait of this duration was not ended by a frame. It is generous because the machine may be busy.
const LOST: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(20);
const BY_INTERRUPT: Woken = Woken { interrupt: true, device: false };

/// Sleeps on all queues, after enabling interrupts and polling once more.
fn rest(queues: &mut [EthQueue], at_most: Duration) -> Woken {
    queues.iter_mut().for_each(|queue| _ = queue.arm());
    let woken = wait(queues.iter_mut(), std::iter::empty(), at_most);
    queues.iter_mut().for_each(EthQueue::disarm);
    woken
}

/// Returns the number of received test frames.
fn take(queues: &mut [EthQueue]) -> usize {
    let mut burst = Burst::new();
    queues.iter_mut().for_each(|queue| _ = queue.rx_burst(&mut burst));
    burst.iter().filter(|frame| frame.data().get(12..14) == Some(&PRIVATE)).count()
}

#[test]
fn a_frame_ends_a_rest_by_the_ports_interrupt() {
    if !own_namespace() {
        return;
    }
    // Only the test sends frames. Without IPv6 in the kernel there is nothing to disable.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    std::mem::forget(eal(&["net_tap0,iface=dtap0", "net_null0"]));
    let pool = pool("frames", 1024, 2048);
    let (null, _queues) = EthPort::start(Some("net_null0"), &CONFIG, &pool).unwrap();
    assert_eq!(null.woken_by(), WokenBy::Timer, "it has no interrupts");

    let (tap, mut queues) =
        EthPort::start(Some("net_tap0"), &EthConfig { queues: 2, ..CONFIG }, &pool).unwrap();
    assert_eq!(tap.woken_by(), WokenBy::RxInterrupt);
    // Frames that the kernel may have sent when the interface came up.
    let begin = Instant::now();
    while rest(&mut queues, SHORT) == BY_INTERRUPT {
        take(&mut queues);
        assert!(begin.elapsed() < LOST, "woken without a frame");
    }
    for round in 0..50 {
        // One frame arrives before the sleep, the next one during it.
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(round % 2 * 3));
            kernel_sends("dtap0", &PRIVATE);
        });
        let begin = Instant::now();
        // The driver is notified of frames by a signal, which may end a sleep too.
        while rest(&mut queues, LONG) != BY_INTERRUPT {
            assert!(begin.elapsed() < LOST, "round {round}: the wakeup was lost");
        }
        while take(&mut queues) == 0 {
            assert!(begin.elapsed() < LOST, "round {round}: woken without a frame");
        }
        sender.join().unwrap();
        assert_eq!(rest(&mut queues, SHORT), Woken::default(), "round {round}: already reported");
    }

    // A deleted interface causes no wakeups, instead of continuous ones.
    run("ip link del dtap0");
    rest(&mut queues, SHORT);
    let begin = Instant::now();
    assert_eq!(rest(&mut queues, SHORT), Woken::default());
    assert!(begin.elapsed() >= SHORT);
}
