//! A guest that violates the interface: it gets a status or loses its own data, and the device continues to
//! serve.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use std::os::fd::AsFd;
use std::time::Duration;

use guest::*;

const BAD_PARAMETER: u8 = 3;
const BAD_RESOURCE: u8 = 5;
const NO_RESOURCES: u8 = 0xf;
const BAD_INPUT_LENGTH: u8 = 0x50;
const BAD_OUTPUT_LENGTH: u8 = 0x51;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }
}

/// Checks that a datagram passes through a freshly set up device.
fn still_serves(g: &mut Guest) {
    assert_eq!(g.ask(13, &[]).error, 0);
    g.write(7, 4, &[6, 0]);
    g.hca.engine_mut().activate(PORT, ib_wire::Lid(7), ib_wire::Mtu::B4096).unwrap();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 6);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let key = g.whole_key(1);
    let buffer = g.pages(1);
    g.receive(&mut qp, piece(2048, key, buffer));
    g.put(buffer + 2048, b"still here");
    let body = [&datagram(7, qp.number)[..], &piece(10, key, buffer + 2048)].concat();
    g.post_send(&mut qp, 10, &body);
    g.settle();
    assert_eq!(std::iter::from_fn(|| g.poll(&mut cq)).count(), 2);
    assert_eq!(g.get(buffer + 40, 10), b"still here");
}

#[test]
fn entries_that_cannot_be_read() {
    let mut g = Guest::new();
    g.probe();
    // Offset in the entry, bytes, delivery status for the driver.
    let broken: [(usize, &[u8], u8); 9] = [
        (0, &[6], 0x10),
        (4, &u32::MAX.to_be_bytes(), 8),
        (4, &7u32.to_be_bytes(), 8),
        (0x38, &7u32.to_be_bytes(), 9),
        (0x38, &u32::MAX.to_be_bytes(), 9),
        (8, &u64::MAX.to_be_bytes(), 5),
        (8, &(MEMORY - 100).to_be_bytes(), 5),
        (0x30, &MEMORY.to_be_bytes(), 4),
        (0x3c, &[1], 2),
    ];
    for (at, bytes, delivery) in broken {
        g.lay(0, &input(0x109, 0x200), 0x200);
        g.put(0x1000 + at as u64, bytes);
        let done = g.ring(0, 16).unwrap();
        assert_eq!(done.delivery, delivery, "byte {at:#x}");
    }
    // A circular chain is not followed forever.
    g.lay(0, &input(0x109, 0x1000), 16);
    g.put(0x2_0000 + 0x230, &0x2_0000u64.to_be_bytes());
    assert_eq!(g.ring(0, 16).unwrap().delivery, 3);
    // An entry that the device does not own is ignored, and so is one outside of memory.
    g.lay(0, &input(0x104, 16), 16);
    g.put(0x103f, &[0]);
    g.write(0, 0x18, &1u32.to_be_bytes());
    assert_eq!(g.get(0x1020, 1), [0]);
    g.write(0, 0x10, &u32::MAX.to_be_bytes());
    g.write(0, 0x14, &u32::MAX.to_be_bytes());
    g.write(0, 0x18, &u32::MAX.to_be_bytes());
    still_serves(&mut g);
}

#[test]
fn inputs_and_outputs_that_are_too_short() {
    let mut g = Guest::new();
    g.probe();
    for op in [0x200u16, 0x301, 0x400, 0x500, 0x502, 0x503, 0x700, 0x806] {
        assert_eq!(g.try_command(&input(op, 16), 16).status, BAD_INPUT_LENGTH, "{op:#x}");
    }
    for op in [0x100u16, 0x101, 0x10a, 0x762] {
        assert_eq!(g.try_command(&input(op, 16), 16).status, BAD_OUTPUT_LENGTH, "{op:#x}");
    }
    assert_eq!(g.try_command(&input(0xfff, 16), 16).status, 2);
    still_serves(&mut g);
}

#[test]
fn pages_that_are_no_memory() {
    let mut g = Guest::new();
    let eq = g.probe();
    let record = g.pages(1);
    for page in [MEMORY, MEMORY - 4096 + 0x1_0000, !0xfff, 1 << 52] {
        let cq = g.cq_input(eq.number, 7, &[0x20_0000, page], record);
        assert_eq!(g.try_command(&cq, 16).status, BAD_PARAMETER);
        let key = g.key_input(1, 0, 8192, &[0x20_0000, page]);
        assert_eq!(g.try_command(&key, 16).status, BAD_PARAMETER);
    }
    // Lists that are too short for their purpose.
    let cq = g.cq_input(eq.number, 7, &[0x20_0000], record);
    assert_eq!(g.try_command(&cq, 16).status, BAD_INPUT_LENGTH);
    let key = g.key_input(1, 0, 1 << 40, &[0x20_0000]);
    assert_eq!(g.try_command(&key, 16).status, BAD_INPUT_LENGTH);
    for (start, len) in [(u64::MAX - 4095, 8192), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        let key = g.key_input(1, start, len, &[0x20_0000, 0x20_1000]);
        assert_ne!(g.try_command(&key, 16).status, 0);
    }
    // Doorbell records outside of memory, and across its end.
    for record in [MEMORY, MEMORY - 4, u64::MAX - 3, 0x20_0002] {
        let cq = g.cq_input(eq.number, 6, &[0x20_0000], record);
        assert_eq!(g.try_command(&cq, 16).status, BAD_PARAMETER, "{record:#x}");
    }
    // Using one page several times is up to the guest.
    let cq = g.cq_input(eq.number, 8, &[0x20_0000; 4], record);
    assert_eq!(g.try_command(&cq, 16).status, 0);
    still_serves(&mut g);
}

#[test]
fn numbers_of_objects_that_are_not_there() {
    let mut g = Guest::new();
    let eq = g.probe();
    for number in [0, 0xff, 0x1234, 0xff_ffff] {
        for op in [0x202u16, 0x302, 0x401, 0x501, 0x507, 0x50a, 0x701, 0x801, 0x803, 0x80f] {
            assert_eq!(g.try_command(&about(op, number), 16).status, BAD_RESOURCE, "{op:#x} {number:#x}");
        }
    }
    let bytes = g.cq_input(99, 6, &[0x20_0000], 0x20_1000);
    assert_eq!(g.try_command(&bytes, 16).status, BAD_RESOURCE);
    let bytes = g.qp_input(SERVICE_UD, 77, &[0x20_0000, 0x20_2000], 0x20_1000);
    assert_eq!(g.try_command(&bytes, 16).status, BAD_RESOURCE);
    let cq = g.create_cq(eq.number, 6);
    for service in [4u8, 5, 6, 9, 0xb, 0xff] {
        let bytes = g.qp_input(service, cq.number, &[0x20_0000, 0x20_2000], 0x20_1000);
        assert_eq!(g.try_command(&bytes, 16).status, BAD_PARAMETER, "service {service}");
    }
    still_serves(&mut g);
}

#[test]
fn tables_have_ends() {
    let mut g = Guest::new();
    g.probe();
    let mut made = 0;
    let last = loop {
        let page = 0x40_0000;
        let mut bytes = input(0x301, 0x118);
        put32(&mut bytes, 0x1c, 6 << 24 | 0x10);
        put64(&mut bytes, 0x110, page);
        let done = g.try_command(&bytes, 16);
        if done.status != 0 {
            break done.status;
        }
        made += 1;
    };
    assert_eq!((made, last), (30, NO_RESOURCES));
    let mut uars = 0;
    while g.try_command(&input(0x802, 16), 16).status == 0 {
        uars += 1;
    }
    assert_eq!(uars, 8192 - 0x10 - 1);
    still_serves(&mut g);
}

#[test]
fn doorbells_to_anywhere() {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 6);
    let qp = g.create_qp(SERVICE_RC, &cq);
    g.open(&qp, Some((7, qp.number)));
    let mut dice = Dice(3);
    for _ in 0..20_000 {
        let data = dice.roll().to_be_bytes();
        let at = match dice.below(3) {
            0 => dice.below(32 << 20) & !7,
            1 => dice.below(64) * 4096 + [0x20, 0x24, 0x40, 0x48, 0x800, 0x900][dice.below(6) as usize],
            _ => 0x10 * 4096 + [0x20, 0x40, 0x48, 0x800, 0x804, 0xa00][dice.below(6) as usize],
        };
        let len = [1, 2, 4, 8][dice.below(4) as usize].min((32 << 20) - at) as usize;
        // Skip the command queue's register, which would make the device wait for invalid memory.
        g.write(0, at, &data[..len]);
    }
    still_serves(&mut g);
}

#[test]
fn memory_that_goes_while_it_is_registered() {
    let mut g = Guest::new();
    let high = 1u64 << 32;
    let file = g.memory.try_clone().unwrap();
    assert_eq!(g.map(0x80_0000, high, 0x40_0000, Some(file.as_fd())), 0);
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 6);
    // Rings and records in memory that will be removed.
    let bytes = g.qp_input(SERVICE_UD, cq.number, &[high, high + 0x2000], high + 0x4000);
    let number = g.command(&bytes, 16).number();
    let mut qp =
        QueuePair { number, pages: vec![0x80_0000, 0x80_2000], record: 0x80_4000, posted: 0, received: 0 };
    g.open(&qp, None);
    let whole = g.whole_key(1);
    let listed = g.key(2, 0x1000, 4096, &[high + 0x6000]);
    let mut send = |g: &mut Guest, key: u32, address: u64| {
        g.post_send(&mut qp, 10, &[&datagram(7, 0xf0)[..], &piece(10, key, address)].concat());
        g.settle();
        let cqe = g.poll(&mut cq).unwrap();
        if cqe[63] >> 4 == 13 {
            let recover = [&about(0x506, qp.number)[..], &[0; 0x100]].concat();
            g.command(&recover, 16);
        }
        cqe[63] >> 4 == 0
    };
    assert!(send(&mut g, whole, high + 0x6000) && send(&mut g, listed, 0x1000));
    assert_eq!(g.unmap(high, 0x40_0000), 0);
    // It is gone at once for the key for all memory. Listed pages stay until their key is destroyed, as
    // pinned pages do.
    assert!(!send(&mut g, whole, high + 0x6000) && send(&mut g, listed, 0x1000));
    assert_eq!(g.map(0x80_0000, high, 0x40_0000, Some(file.as_fd())), 0);
    assert!(send(&mut g, whole, high + 0x6000));
    still_serves(&mut g);
}

#[test]
fn rings_whose_bytes_change_while_they_are_read() {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 7);
    let pairs: Vec<_> = [SERVICE_RC, SERVICE_RC, SERVICE_UD].iter().map(|s| g.create_qp(*s, &cq)).collect();
    g.open(&pairs[0], Some((7, pairs[1].number)));
    g.open(&pairs[1], Some((7, pairs[0].number)));
    g.open(&pairs[2], None);
    let key = g.whole_key(1);
    let mut dice = Dice(11);
    for round in 0..3000 {
        let qp = &pairs[dice.below(3) as usize];
        let at = match dice.below(4) {
            0 => qp.record + dice.below(2) * 4,
            1 => cq.record,
            _ => qp.pages[dice.below(2) as usize] + dice.below(256) * 16,
        };
        let mut bytes = dice.roll().to_be_bytes().to_vec();
        if dice.below(2) == 0 {
            bytes = piece(dice.below(5000) as u32, key, dice.below(MEMORY)).to_vec();
        }
        g.put(at, &bytes);
        g.write(
            0,
            0x10 * 4096 + 0x800,
            &[0, 0, 0, 10, (qp.number >> 16) as u8, (qp.number >> 8) as u8, qp.number as u8, 4],
        );
        if round % 100 == 0 {
            g.wait(Duration::from_millis(2));
        }
    }
    still_serves(&mut g);
}

#[test]
fn commands_of_dice() {
    let mut g = Guest::new();
    let ops = [
        0x100, 0x101, 0x102, 0x103, 0x104, 0x109, 0x10a, 0x200, 0x202, 0x301, 0x302, 0x303, 0x400, 0x401,
        0x403, 0x500, 0x501, 0x502, 0x503, 0x504, 0x505, 0x506, 0x507, 0x50a, 0x50b, 0x50e, 0x700, 0x701,
        0x703, 0x762, 0x764, 0x765, 0x800, 0x801, 0x802, 0x803, 0x805, 0x806, 0x807,
    ];
    g.probe();
    let mut dice = Dice(5);
    let mut good = 0;
    for _ in 0..4000 {
        let op = ops[dice.below(ops.len() as u64) as usize];
        let mut bytes = input(op, 0x110 + 8 * dice.below(20) as usize);
        for _ in 0..dice.below(24) {
            let at = 8 + dice.below(bytes.len() as u64 - 8) as usize;
            bytes[at] = dice.roll() as u8;
        }
        for at in (0x110..bytes.len()).step_by(8) {
            let page = dice.below(MEMORY / 4096) * 4096;
            bytes[at..at + 8].copy_from_slice(&page.to_be_bytes());
        }
        // Small numbers are more likely to be valid than large ones.
        put32(&mut bytes, 8, dice.below(4) as u32);
        let done = g.try_command(&bytes, 0x1010);
        assert_eq!(done.delivery, 0);
        good += u32::from(done.status == 0);
        assert_eq!(g.gone, None);
    }
    assert!(good > 500, "only {good} commands were executed");
    still_serves(&mut g);
}
