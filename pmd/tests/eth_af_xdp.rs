//! Who rests is woken by a frame at an AF_XDP port: one end of a veth pair, in a network namespace that goes with the process.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use pmd::eth::{Burst, EthPort, Woken, WokenBy, wait};

mod veth;

use veth::{CONFIG, PRIVATE, eal, kernel_sends, own_namespace, pool, veth};

/// Longer than [`LOST`]: a wait that only a frame ends in time.
const LONG: Duration = Duration::from_secs(300);
/// A wait of this length was not ended by a frame. Generous: the machine may be busy.
const LOST: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn a_frame_ends_a_rest_by_the_drivers_socket() {
    if !own_namespace() {
        return;
    }
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0) };
    if socket < 0 {
        eprintln!("skipped: no AF_XDP in this kernel ({})", std::io::Error::last_os_error());
        return;
    }
    // It stays, and is not taken for the port's.
    for ends in [["left", "right"], ["near", "far"]] {
        veth(ends[0], ends[1], 1500);
    }
    std::mem::forget(eal(&["net_af_xdp0,iface=right", "net_af_xdp1,iface=far"]));
    let pool = pool("frames", 16_384, 2048);
    let mut ports = ["net_af_xdp0", "net_af_xdp1"].map(|name| {
        let (port, queues) = EthPort::start(Some(name), &CONFIG, &pool).unwrap();
        assert_eq!(port.woken_by(), WokenBy::Socket, "{name}");
        (port, queues)
    });
    for round in 0..20 {
        // Each is woken by its own frames only.
        for (n, sender) in ["left", "near"].into_iter().enumerate() {
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(round % 2 * 3));
                kernel_sends(sender, &PRIVATE);
            });
            let begin = Instant::now();
            let mut burst = Burst::new();
            while burst.is_empty() {
                let queues = &mut ports[n].1;
                wait(queues.iter_mut(), std::iter::empty(), LONG);
                queues[0].rx_burst(&mut burst);
                assert!(begin.elapsed() < LOST, "round {round}, {sender}: it rested on");
            }
            thread.join().unwrap();
            assert_eq!((burst.len(), burst[0].data().get(12..14)), (1, Some(&PRIVATE[..])));
            for (_, queues) in &mut ports {
                let begin = Instant::now();
                assert_eq!(wait(queues.iter_mut(), std::iter::empty(), SHORT), Woken::default());
                assert!(begin.elapsed() >= SHORT, "round {round}: no frame is left");
            }
        }
    }
}
