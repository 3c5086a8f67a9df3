//! Drivers that start and stop, orderly or not, any number of times.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use std::time::{Duration, Instant};

use guest::*;
use softhca::hca::Hca;

/// The end of a driver, or the start of the next one.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    /// Everything is destroyed, then TEARDOWN_HCA and DISABLE_HCA.
    Orderly,
    /// TEARDOWN_HCA with all objects left.
    Teardown,
    /// DISABLE_HCA only.
    Disable,
    /// Nothing at all: a kernel that crashed.
    Crash,
    /// The function is reset by its device control.
    FunctionReset,
    /// The monitor resets the device, as in a reset of the virtual machine.
    Reset,
    /// The monitor disconnects, and another one connects.
    Monitor,
}

const ENDS: [End; 7] =
    [End::Orderly, End::Teardown, End::Disable, End::Crash, End::FunctionReset, End::Reset, End::Monitor];

/// A driver's run without its end: the objects that it created, with the commands that destroy them.
fn life(g: &mut Guest) -> (Events, Events, Vec<(u16, u32)>) {
    g.forget_pages();
    let port = g.probe();
    g.hca.engine_mut().activate(PORT, ib_wire::Lid(7), ib_wire::Mtu::B4096).unwrap();
    let commands = g.create_eq(1, 1 << 10);
    let mut cq = g.create_cq(port.number, 6);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    let connection = g.create_qp(SERVICE_RC, &cq);
    g.open(&qp, None);
    g.open(&connection, Some((7, 99)));
    let key = g.whole_key(1);
    let buffer = g.pages(1);
    g.receive(&mut qp, piece(2048, key, buffer));
    g.put(buffer + 2048, b"alive");
    let body = [&datagram(7, qp.number)[..], &piece(5, key, buffer + 2048)].concat();
    g.post_send(&mut qp, 10, &body);
    // One without a responding peer, so that there is a timer.
    let mut connection = connection;
    g.post_send(&mut connection, 10, &piece(5, key, buffer));
    g.settle();
    assert_eq!(std::iter::from_fn(|| g.poll(&mut cq)).count(), 2);
    assert_eq!(g.get(buffer + 40, 5), b"alive");
    let pd = g.command(&input(0x800, 16), 16).number();
    let made = vec![
        (0x501, connection.number),
        (0x501, qp.number),
        (0x401, cq.number),
        (0x202, key >> 8),
        (0x801, pd),
        (0x302, commands.number),
        (0x302, port.number),
        (0x803, 0x10),
    ];
    (port, commands, made)
}

fn end(g: &mut Guest, how: End, made: &[(u16, u32)]) {
    match how {
        End::Orderly => {
            for &(op, number) in made {
                g.command(&about(op, number), 16);
            }
            g.command(&input(0x103, 16), 16);
            g.command(&input(0x105, 16), 16);
        }
        End::Teardown => drop(g.command(&input(0x103, 16), 16)),
        End::Disable => drop(g.command(&input(0x105, 16), 16)),
        End::Crash => {}
        End::FunctionReset => {
            g.write(7, 0x68, &[0, 0x80]);
            g.write(7, 4, &[6, 0]);
        }
        End::Reset => {
            assert_eq!(g.ask(13, &[]).error, 0);
            g.write(7, 4, &[6, 0]);
        }
        End::Monitor => {
            g.hang_up();
            g.connect_again();
            g.introduce();
        }
    }
}

/// Descriptors and mappings of this process.
fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (
        std::fs::read_dir("/proc/self/fd").unwrap().count(),
        maps.lines().filter(|l| l.contains("memfd:")).count(),
    )
}

#[test]
fn each_new_driver_finds_a_clean_device() {
    let mut g = Guest::new();
    let (_, _, first) = life(&mut g);
    end(&mut g, End::Reset, &first);
    let before = held();
    for round in 0..200 {
        let how = ENDS[round % ENDS.len()];
        let (_, _, made) = life(&mut g);
        // Except for queue pairs, numbers are allocated as at first: nothing was left.
        let numbers = |made: &[(u16, u32)]| made[2..].to_vec();
        assert_eq!(numbers(&made), numbers(&first), "in round {round}");
        end(&mut g, how, &made);
        g.settle();
        assert_eq!(g.gone, None);
    }
    assert_eq!(held(), before, "descriptors and mappings");
}

#[test]
fn events_are_the_driver_s_that_is_there_now() {
    for how in [End::Crash, End::Teardown, End::Disable] {
        let mut g = Guest::new();
        let (mut old, mut old_commands, made) = life(&mut g);
        while g.next_event(&mut old).is_some() {}
        while g.next_event(&mut old_commands).is_some() {}
        end(&mut g, how, &made);
        while g.next_event(&mut old_commands).is_some() {}
        // Another kernel, with its queues at other addresses.
        let mut new = g.probe();
        let mut new_commands = g.create_eq(1, 1 << 10);
        g.command(&input(0x107, 16), 16);
        g.hca.engine_mut().activate(PORT, ib_wire::Lid(7), ib_wire::Mtu::B4096).unwrap();
        g.settle();
        assert_eq!(g.next_event(&mut new).map(|e| (e.0, e.1)), Some((9, 4)), "{how:?}");
        assert_eq!(g.next_event(&mut new_commands).map(|e| e.0), Some(10), "{how:?}");
        assert_eq!((g.next_event(&mut old), g.next_event(&mut old_commands)), (None, None), "{how:?}");
    }
}

#[test]
fn a_new_command_queue_address_destroys_the_old_driver_s_objects() {
    let mut g = Guest::new();
    let (mut old, _, _) = life(&mut g);
    while g.next_event(&mut old).is_some() {}
    let free = g.pages(0);
    let memory = g.get(FREE, (free - FREE) as usize);
    g.set_queue();
    // The port goes down, and the connection has a timer.
    g.hca.engine_mut().set_cable(PORT, None).unwrap();
    g.wait(Duration::from_millis(100));
    assert!(g.get(FREE, memory.len()) == memory, "memory of the old driver is written to");
}

#[test]
fn counters_outlive_the_driver_and_its_objects_do_not() {
    let mut g = Guest::new();
    let mut received = 0;
    for how in [End::Reset, End::FunctionReset, End::Teardown, End::Disable, End::Monitor] {
        let (_, _, made) = life(&mut g);
        let report = g.hca.report();
        assert_eq!((report.objects["queue_pairs"], report.objects["event_queues"]), (2, 2), "{how:?}");
        assert!(report.memory["pieces"] > 0 && report.memory["bytes"] > 0);
        // Each run has sent a datagram to itself.
        assert!(report.activity["received"] > received, "{how:?}: {report:?}");
        received = report.activity["received"];
        let commands = report.device["commands"];
        if how == End::Monitor {
            g.hang_up();
        } else {
            end(&mut g, how, &made);
        }
        g.settle();
        let report = g.hca.report();
        assert_eq!(report.objects.values().sum::<u64>(), 0, "{how:?}: {:?}", report.objects);
        assert_eq!(report.memory["pieces"], 0, "{how:?}");
        assert!(report.activity["received"] >= received && report.device["commands"] >= commands, "{how:?}");
    }
    assert_eq!(g.hca.report().memory.values().sum::<u64>(), 0);
}

#[test]
fn a_port_whose_address_is_taken_for_a_moment_gets_its_cable_later() {
    let local = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut config = config(1);
    config.port.cable = Some(format!("udp:{local}-127.0.0.1:9").parse().unwrap());
    let mut hca = Hca::new(config).unwrap();
    let now = Instant::now();
    let mut copies = Vec::new();
    assert!(hca.sleep(now, |waker| copies.extend(waker.try_clone_to_owned())).is_some());
    assert_eq!(copies.len(), 1);
    // The device is reset while another process has its socket.
    hca.disconnect();
    assert!(hca.engine().cable(PORT).is_none());
    for second in 1..3 {
        let later = now + Duration::from_secs(second);
        assert!(hca.next_deadline(later).is_some_and(|at| at <= later), "it tries again");
        hca.turn(later);
        assert!(hca.engine().cable(PORT).is_none());
    }
    drop(copies);
    hca.turn(now + Duration::from_secs(3));
    assert!(hca.engine().cable(PORT).is_some());
}
