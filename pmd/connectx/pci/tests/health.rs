//! Reporting of device errors to a driver: the health buffer, and the state of event queues.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

/// Severity, syndrome and detail from the health buffer.
fn health(g: &mut Guest) -> (u8, u8, u16) {
    let bytes = g.read(0, 0x200, 0x40).body;
    let bytes = &bytes[16..];
    assert!(bytes[..0x38].iter().all(|b| *b == 0));
    (bytes[0x38], bytes[0x3d], u16::from_be_bytes([bytes[0x3e], bytes[0x3f]]))
}

const WELL: (u8, u8, u16) = (0, 0, 0);
const ERROR: u8 = 0x0b;

/// Status, state, consumer and producer of an event queue.
fn query(g: &mut Guest, eq: u32) -> (u8, u8, u32, u32) {
    let output = g.command(&about(0x303, eq), 0x110).output;
    let word = |at: usize| u32::from_be_bytes(output[at..at + 4].try_into().unwrap());
    assert_eq!((word(0x1c), word(0x24)), (6 << 24 | 0x10, 0), "as created");
    ((word(0x10) >> 28) as u8, (word(0x10) >> 8) as u8 & 0xf, word(0x38), word(0x3c))
}

/// Raises 64 port events, which fill the queue.
fn fill(g: &mut Guest) {
    for _ in 0..32 {
        down(g);
        up(g);
    }
}

#[test]
fn a_queue_of_events_that_was_full_is_in_error_and_the_device_says_so() {
    let mut g = Guest::new();
    let mut eq = g.probe();
    // The port came up before there was a queue.
    let before = g.hca.counters().lost_events;
    assert_eq!(query(&mut g, eq.number), (0, 0xa, 0, 0));
    g.arm_eq(&eq);
    assert_eq!(query(&mut g, eq.number), (0, 0x9, 0, 0));
    fill(&mut g);
    // A full queue is no error: nothing was lost.
    assert_eq!((health(&mut g), g.hca.counters().lost_events), (WELL, before));
    assert_eq!(query(&mut g, eq.number), (0, 0xa, 0, 64));
    down(&mut g);
    assert_eq!(g.hca.counters().lost_events, before + 1);
    assert_eq!(health(&mut g), (ERROR, 0x0c, eq.number as u16));
    assert_eq!(query(&mut g, eq.number), (0xa, 0xa, 0, 64));
    // Its entries can be read; a driver that has read all is not misled to believe that none is missing.
    for n in 0..64 {
        let (kind, what, _) = g.next_event(&mut eq).unwrap();
        assert_eq!((kind, what), (9, if n % 2 == 0 { 1 } else { 4 }), "{n}");
    }
    g.arm_eq(&eq);
    up(&mut g);
    assert_eq!((g.next_event(&mut eq), g.hca.counters().lost_events), (None, before + 2));
    assert_eq!(health(&mut g), (ERROR, 0x0c, eq.number as u16));
    // Everything else continues.
    assert_eq!(g.try_command(&input(0x800, 16), 16).status, 0);
    // Another queue replaces it, and the device is healthy.
    g.command(&about(0x302, eq.number), 16);
    assert_eq!(health(&mut g), WELL);
    let mut eq = g.create_eq(0, !(1 | 1 << 10));
    down(&mut g);
    assert_eq!(g.next_event(&mut eq).map(|e| e.1), Some(1));
    assert_eq!(health(&mut g), WELL);
}

#[test]
fn a_driver_that_begins_anew_finds_a_device_that_is_well() {
    for how in ["queue", "enable", "reset"] {
        let mut g = Guest::new();
        let eq = g.probe();
        fill(&mut g);
        down(&mut g);
        assert_eq!(health(&mut g), (ERROR, 0x0c, eq.number as u16));
        match how {
            "queue" => g.set_queue(),
            "enable" => drop(g.command(&input(0x104, 16), 16)),
            _ => {
                assert_eq!(g.ask(13, &[]).error, 0);
                g.write(7, 4, &[6, 0]);
            }
        }
        assert_eq!(health(&mut g), WELL, "{how}");
        let mut eq = g.probe();
        up(&mut g);
        assert_eq!(g.next_event(&mut eq).map(|e| e.1), Some(4), "{how}");
    }
}

#[test]
fn a_full_queue_for_completions_has_its_own_syndrome() {
    let mut g = Guest::new();
    let mut port = g.probe();
    let eq = g.create_eq(1, 0);
    let mut cq = g.create_cq(eq.number, 6);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let key = g.whole_key(1);
    // Each completion is armed and read, but no event is.
    for n in 0..65 {
        assert_eq!(health(&mut g), WELL, "{n}");
        g.arm_cq(&cq);
        g.post_send(&mut qp, 10, &[&datagram(7, 0xf0)[..], &piece(10, key, 0x10_0000)].concat());
        g.settle();
        assert!(g.poll(&mut cq).is_some());
    }
    assert_eq!(health(&mut g), (ERROR, 0x0d, eq.number as u16));
    // The port's events are still delivered.
    down(&mut g);
    assert_eq!(g.next_event(&mut port).map(|e| e.1), Some(1));
}

#[test]
fn a_command_queue_that_is_no_memory_is_an_illness_until_there_is_another() {
    let mut g = Guest::new();
    g.write(0, 0x10, &u32::MAX.to_be_bytes());
    g.write(0, 0x14, &0xffff_f000u32.to_be_bytes());
    assert_eq!(health(&mut g), WELL);
    g.write(0, 0x18, &1u32.to_be_bytes());
    assert_eq!(health(&mut g), (ERROR, 0x0a, 0));
    g.probe();
    assert_eq!(health(&mut g), WELL);
}

#[test]
fn events_lost_while_the_device_may_not_write_are_reported() {
    let mut g = Guest::new();
    let eq = g.probe();
    let before = g.hca.counters().lost_events;
    g.write(7, 4, &[2, 0]);
    // More than the device queues.
    for _ in 0..=1 << 13 {
        g.hca.engine_mut().set_cable(PORT, None).unwrap();
        g.hca.engine_mut().activate(PORT, ib_wire::Lid(7), ib_wire::Mtu::B4096).unwrap();
    }
    assert_eq!((health(&mut g), g.hca.counters().lost_events), (WELL, before));
    g.write(7, 4, &[6, 0]);
    assert_eq!(health(&mut g), (ERROR, 0x0c, eq.number as u16));
    // All are counted: those that the device could not queue, and those that the queue could not hold.
    assert_eq!(g.hca.counters().lost_events, before + (1 << 14) + 2 - 64);
    // The commands' events are separate.
    assert_eq!(g.try_command(&input(0x800, 16), 16).status, 0);
}
