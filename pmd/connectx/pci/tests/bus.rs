//! Bus state: interrupts without a listener, and memory that the guest forbids the device to use.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use std::os::fd::AsFd;
use std::time::Duration;

use guest::*;

/// Disables all vectors, as a monitor does between two settings.
fn vectors_off(g: &mut Guest) {
    assert_eq!(g.ask(8, &words(&[20, 0x21, 2, 0, 0])).error, 0);
}

fn vectors_on(g: &mut Guest) {
    let fds: Vec<_> = g.vectors.iter().map(|fd| fd.try_clone().unwrap()).collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    assert_eq!(g.ask_with(8, &words(&[20, 0x24, 2, 0, 4]), &fds).error, 0);
}

#[test]
fn an_interrupt_without_a_listener_is_delivered_later() {
    let mut g = Guest::new();
    let mut eq = g.probe();
    g.arm_eq(&eq);
    vectors_off(&mut g);
    down(&mut g);
    assert_eq!(g.interrupts(0), 0);
    vectors_on(&mut g);
    assert_eq!(g.interrupts(0), 1);
    // Once only: it is no longer armed.
    vectors_off(&mut g);
    vectors_on(&mut g);
    up(&mut g);
    assert_eq!(g.interrupts(0), 0);
    assert_eq!([(); 3].map(|()| g.next_event(&mut eq).map(|e| e.1)), [Some(1), Some(4), None]);
    g.arm_eq(&eq);
    down(&mut g);
    assert_eq!(g.interrupts(0), 1);
}

#[test]
fn a_full_eventfd_of_a_client_does_not_block() {
    let mut g = Guest::new();
    let eq = g.probe();
    // An eventfd that blocks, filled to its limit.
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert_eq!(g.ask_with(8, &words(&[20, 0x24, 2, 0, 1]), &[full.as_fd()]).error, 0);
    g.arm_eq(&eq);
    down(&mut g);
    assert_eq!(g.ask(8, &words(&[20, 0x21, 2, 0, 1])).error, 0);
    assert_eq!(g.hca.counters().interrupts, 1);
}

#[test]
fn a_device_without_bus_mastering_does_not_touch_memory_and_resumes_later() {
    let mut g = Guest::new();
    let mut eq = g.probe();
    let mut cq = g.create_cq(eq.number, 6);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let key = g.whole_key(1);
    let buffer = g.pages(1);
    g.receive(&mut qp, piece(2048, key, buffer));
    g.arm_eq(&eq);
    g.arm_cq(&cq);
    let before = g.get(0, MEMORY as usize);
    g.write(7, 4, &[2, 0]);
    // Doorbells of all kinds.
    g.put(buffer + 2048, b"later");
    let body = [&datagram(7, qp.number)[..], &piece(5, key, buffer + 2048)].concat();
    g.post_send(&mut qp, 10, &body);
    g.lay(3, &input(0x800, 16), 16);
    assert!(g.ring(3, 16).is_none());
    g.arm_cq(&cq);
    g.arm_eq(&eq);
    down(&mut g);
    up(&mut g);
    g.wait(Duration::from_millis(30));
    assert_eq!(g.interrupts(0), 0);
    assert_eq!(g.next_event(&mut eq), None);
    assert!(g.poll(&mut cq).is_none());
    assert_eq!(g.get(buffer + 40, 5), before[buffer as usize + 40..][..5]);
    // It does not poll for work in vain, either.
    let now = g.now();
    assert_eq!((g.hca.turn(now), g.hca.next_deadline(now)), (false, None));
    g.write(7, 4, &[6, 0]);
    g.settle();
    assert_eq!(g.get(0x1000 + 3 * 64 + 0x3f, 1)[0] & 1, 0, "the command is complete");
    assert_eq!(g.get(buffer + 40, 5), b"later");
    assert_eq!(std::iter::from_fn(|| g.poll(&mut cq)).count(), 2);
    let mut kinds: Vec<_> = std::iter::from_fn(|| g.next_event(&mut eq)).map(|e| e.0).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [0, 9, 9], "a completion, two of the port");
    assert_eq!(g.interrupts(0), 1);
}

#[test]
fn agents_of_a_device_without_a_driver_need_no_memory() {
    let mut g = Guest::new();
    g.write(7, 4, &[2, 0]);
    // No event can be written, and the subnet is served.
    let now = g.now();
    assert!(g.hca.next_deadline(now).is_none_or(|at| at > now));
    up(&mut g);
    assert_eq!(g.hca.counters().events, 0);
}

#[test]
fn a_queue_pair_in_error_lets_the_device_sleep() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 6);
    let mut qps = [g.create_qp(SERVICE_UD, &cq), g.create_qp(SERVICE_RC, &cq)];
    g.open(&qps[0], None);
    g.open(&qps[1], Some((7, 99)));
    let key = g.whole_key(1);
    g.receive(&mut qps[0], piece(64, key, 0x10_0000));
    for qp in &qps {
        g.command(&about(0x507, qp.number), 16);
    }
    assert_eq!(g.poll(&mut cq).map(|cqe| cqe[63] >> 4), Some(14), "what was posted is flushed");
    let end = g.now() + Duration::from_millis(200);
    let (mut busy, mut looks) = (0, 0);
    while g.now() < end {
        let now = g.now();
        busy += u32::from(g.hca.turn(now));
        looks += 1;
        let next = g.hca.next_deadline(now).unwrap();
        g.pass(next.saturating_duration_since(now).max(Duration::from_micros(100)));
    }
    assert_eq!(busy, 0, "of {looks}");
    assert!(looks < 120, "{looks}");
    // Requests posted after that are found nevertheless.
    g.receive(&mut qps[0], piece(64, key, 0x10_0000));
    g.wait(Duration::from_millis(40));
    assert_eq!(g.poll(&mut cq).map(|cqe| cqe[63] >> 4), Some(14));
}
