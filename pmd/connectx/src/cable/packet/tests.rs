use std::time::{Duration, Instant};

use super::super::{CableEnd, CableError, CableTrouble, CableUrl};

/// Moves this thread to a new network namespace, which has only a loopback interface that is down. False
/// without permission.
fn own_namespace() -> bool {
    // SAFETY: only the network namespace of this thread changes, and nothing else relies on it.
    let result = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    if let Err(e) = result {
        eprintln!("skipped: cannot create a network namespace: {e}");
    }
    result.is_ok()
}

#[test]
fn frames_leave_and_arrive_and_the_interface_is_followed() {
    std::thread::spawn(|| {
        if !own_namespace() {
            return;
        }
        let open = |text: &str| CableEnd::connect(&text.parse::<CableUrl>().unwrap());
        let error = open("roce:nosuch0").unwrap_err();
        assert!(
            matches!(error, CableError::Socket { .. }) && error.to_string().contains("nosuch0"),
            "{error}"
        );
        let mut end = open("roce:lo").unwrap();
        assert!(end.is_ethernet());
        let mut now = Instant::now();
        end.poll(now);
        assert_eq!((end.is_up(), end.trouble()), (false, Some(CableTrouble::NoCarrier)));
        end.send_with(64, |frame| frame.fill(1)).unwrap();
        assert_eq!(end.counters().tx_down, 1);
        interface::set_up("lo", true).unwrap();
        now += Duration::from_secs(1);
        end.poll(now);
        assert!(end.is_up(), "{:?}", end.trouble());
        // Frames sent on the loopback interface arrive on it; our own outgoing copies are ignored.
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
        interface::set_up("lo", false).unwrap();
        now += Duration::from_secs(1);
        end.poll(now);
        assert_eq!((end.is_up(), end.counters().downs), (false, 1));
    })
    .join()
    .unwrap();
}
