//! A sleeping worker is woken by a frame on an AF_XDP port: one end of a veth pair, in a private network
//! namespace.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use pmd::eth::{Burst, EthPort, Woken, WokenBy, wait};

mod veth;

use veth::{CONFIG, PRIVATE, eal, kernel_sends, own_namespace, pool, veth};

/// Duration of a wait that only a frame ends in time; longer than [`LOST`].
const LONG: Duration = Duration::from_secs(300);
/// A wait of this duration was not ended by a frame. It is generous because the machine may be busy.
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
    // This socket stays open and must not be mistaken for the port's.
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
        // Each queue is woken only by its own frames.
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
                assert!(begin.elapsed() < LOST, "round {round}, {sender}: the wakeup was lost");
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
