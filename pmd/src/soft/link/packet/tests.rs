use std::time::{Duration, Instant};

use super::super::{LinkEnd, LinkError, LinkTrouble, LinkUrl};
use crate::interface::{self, Request};

/// A network namespace for this thread alone, with nothing but a loopback interface that is down. False if that may not be.
fn own_namespace() -> bool {
    // SAFETY: only the network namespace of this thread changes, which nothing else relies on.
    let result = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    if let Err(e) = result {
        println!("skipped: cannot make a network namespace: {e}");
    }
    result.is_ok()
}

fn set_up(up: bool) {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).unwrap();
    let mut request = Request::new("lo");
    request.set_flags(if up { libc::IFF_UP | libc::IFF_RUNNING } else { 0 } as libc::c_short);
    request.call(&socket, libc::SIOCSIFFLAGS).unwrap();
}

#[test]
fn frames_leave_and_arrive_and_the_interface_is_followed() {
    std::thread::spawn(|| {
        if !own_namespace() {
            return;
        }
        let open = |text: &str| LinkEnd::connect(&text.parse::<LinkUrl>().unwrap());
        let error = open("roce:nosuch0").unwrap_err();
        assert!(
            matches!(error, LinkError::Socket { .. }) && error.to_string().contains("nosuch0"),
            "{error}"
        );
        let mut end = open("roce:lo").unwrap();
        assert!(end.is_ethernet());
        let mut now = Instant::now();
        end.poll(now);
        assert_eq!((end.is_up(), end.trouble()), (false, Some(LinkTrouble::NoCarrier)));
        end.send_with(64, |frame| frame.fill(1)).unwrap();
        assert_eq!(end.counters().tx_down, 1);
        set_up(true);
        now += Duration::from_secs(1);
        end.poll(now);
        assert!(end.is_up(), "{:?}", end.trouble());
        // What leaves by the loopback interface arrives by it; our own copy of it does not count.
        for n in 0..40u8 {
            end.send_with(100 + usize::from(n), |frame| {
                frame.fill(n);
                frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
            })
            .unwrap();
        }
        end.flush();
        let mut seen = Vec::new();
        while end.receive(16, |frame| seen.push((frame.len(), frame[0]))) > 0 {}
        let expected: Vec<_> = (0..40u8).map(|n| (100 + usize::from(n), n)).collect();
        assert_eq!(seen, expected);
        set_up(false);
        now += Duration::from_secs(1);
        end.poll(now);
        assert_eq!((end.is_up(), end.counters().downs), (false, 1));
    })
    .join()
    .unwrap();
}

#[test]
fn only_ethernet_has_a_mac_address() {
    let error = interface::mac("lo").unwrap_err();
    assert!(error.to_string().contains("no Ethernet interface"), "{error}");
    assert!(interface::mtu("lo").unwrap() > 0);
    assert!(interface::mtu("way-too-long-for-an-interface").is_err());
}
