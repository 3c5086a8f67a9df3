//! Valid and invalid messages of a client.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use std::os::fd::AsFd;

use guest::*;
use softhca::vfio_user::session::Violation;
use softhca::vfio_user::socket::Gone;

const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOSYS: u32 = 38;

fn word(body: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(body[at..at + 4].try_into().unwrap())
}

#[test]
fn the_device_describes_itself() {
    let mut g = Guest::new();
    let info = g.ask(4, &words(&[16, 0, 0, 0])).body;
    assert_eq!((word(&info, 4), word(&info, 8), word(&info, 12)), (3, 9, 5));
    for (index, size) in [(0, 32 << 20), (7, 256), (1, 0), (8, 0)] {
        let info = g.ask(5, &words(&[32, 0, index, 0, 0, 0, 0, 0])).body;
        assert_eq!((word(&info, 8), word(&info, 16)), (index, size));
    }
    assert_eq!(g.ask(5, &words(&[32, 0, 9, 0])).error, EINVAL);
    let info = g.ask(7, &words(&[16, 0, 2, 0])).body;
    assert_eq!((word(&info, 4), word(&info, 12)), (9, 16));
    assert_eq!(g.ask(7, &words(&[16, 0, 5, 0])).error, EINVAL);
}

#[test]
fn a_client_starts_with_its_version() {
    let mut g = Guest::silent();
    g.post(4, &[]);
    assert_eq!(g.gone, Some(Gone::Violation(Violation::NoVersion)));
    let mut g = Guest::silent();
    g.post(1, &[1, 0, 0, 0]);
    assert_eq!(g.gone, Some(Gone::Violation(Violation::Version(1, 0))));
}

#[test]
fn the_client_learns_the_limits() {
    let mut g = Guest::silent();
    let answer = g.ask(1, &[0, 0, 3, 0]).body;
    let text = std::str::from_utf8(&answer[4..answer.len() - 1]).unwrap();
    let reply: serde_json::Value = serde_json::from_str(text).unwrap();
    let reply = &reply["capabilities"];
    assert_eq!((&reply["max_dma_maps"], &reply["pgsizes"]), (&1024.into(), &4096.into()));
    assert_eq!((&reply["max_msg_fds"], &reply["write_multiple"]), (&16.into(), &true.into()));
}

#[test]
fn invalid_sizes_end_the_session() {
    for size in [0u32, 15, u32::MAX, 1 << 17] {
        let mut g = Guest::new();
        let mut header = vec![0; 16];
        header[2] = 4;
        header[4..8].copy_from_slice(&size.to_le_bytes());
        g.send(&header, &[]);
        g.settle();
        assert_eq!(g.gone, Some(Gone::Violation(Violation::Size(size))));
    }
}

#[test]
fn a_message_may_arrive_in_parts() {
    let mut g = Guest::new();
    let body = [&0u64.to_le_bytes()[..], &words(&[7, 4])].concat();
    let mut bytes = [&77u16.to_le_bytes()[..], &9u16.to_le_bytes(), &words(&[32, 0, 0])].concat();
    bytes.extend_from_slice(&body);
    for byte in &bytes {
        g.send(&[*byte], &[]);
        g.settle();
    }
    let answer = g.take(36);
    assert_eq!((&answer[..2], &answer[32..]), (&77u16.to_le_bytes()[..], &[0xb3, 0x15, 0x17, 0x10][..]));
}

#[test]
fn unknown_or_short_messages_are_refused_and_the_session_continues() {
    let mut g = Guest::new();
    for command in [0, 6, 11, 12, 14, 16, 999] {
        assert_eq!(g.ask(command, &[0; 64]).error, ENOSYS, "{command}");
    }
    for command in [2, 3, 5, 7, 8, 9, 10, 15] {
        assert_eq!(g.ask(command, &[0; 3]).error, EINVAL, "{command}");
    }
    assert_eq!(g.read(7, 0, 4).error, 0);
}

#[test]
fn accesses_stay_within_their_region() {
    let mut g = Guest::new();
    for (region, offset, count) in [
        (7, 256, 1),
        (7, 253, 4),
        (7, u64::MAX, 4),
        (0, 32 << 20, 1),
        (0, (32 << 20) - 2, 4),
        (1, 0, 1),
        (99, 0, 1),
    ] {
        assert_eq!(g.read(region, offset, count).error, EINVAL, "{region} {offset:#x} {count}");
    }
    assert_eq!(g.read(0, 0, 1 << 20).error, EINVAL, "more than a message may read");
    assert_eq!(g.read(0, 0, 1 << 16).body.len(), 16 + (1 << 16));
    // A write that announces more bytes than it has.
    let body = [&0u64.to_le_bytes()[..], &words(&[7, 8, 0])].concat();
    assert_eq!(g.ask(10, &body).error, EINVAL);
}

#[test]
fn several_writes_in_one_message() {
    let mut g = Guest::new();
    let record =
        |offset: u64, data: [u8; 4]| [&offset.to_le_bytes()[..], &words(&[0, 4]), &data, &[0; 4]].concat();
    let body = [
        2u64.to_le_bytes().to_vec(),
        record(0x10, 0x12u32.to_be_bytes()),
        record(0x14, 0x3456_7000u32.to_be_bytes()),
    ]
    .concat();
    assert_eq!(g.ask(15, &body).error, 0);
    assert_eq!((g.read_word(0x10), g.read_word(0x14)), (0x12, 0x3456_7056));
    // More writes than the limit; one that is longer than its record.
    let mut more = body.clone();
    more[0] = 3;
    assert_eq!(g.ask(15, &more).error, EINVAL);
    more[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(g.ask(15, &more).error, EINVAL);
    let mut long = body;
    long[8 + 12] = 9;
    assert_eq!(g.ask(15, &long).error, EINVAL);
}

#[test]
fn invalid_mappings_are_refused() {
    let mut g = Guest::new();
    let file = g.memory.try_clone().unwrap();
    let file = Some(file.as_fd());
    let high = 1 << 40;
    for (offset, address, len, why) in [
        (0, 0, MEMORY, "already mapped"),
        (0, MEMORY - 4096, 8192, "partly mapped already"),
        (0, high, 0, "nothing"),
        (0, high + 1, 4096, "not a page"),
        (1, high, 4096, "not a page of the file"),
        (0, high, 4095, "not a whole page"),
        (4096, high, MEMORY, "past the end of the file"),
        (u64::MAX - 4095, high, 4096, "past every end"),
        (0, u64::MAX - 4095, 8192, "past the last address"),
    ] {
        assert_eq!(g.map(offset, address, len, file), EINVAL, "{why}");
    }
    for (address, len) in [(4096, 4096), (0, MEMORY - 4096), (4096, MEMORY), (high, 4096), (u64::MAX, 2)] {
        assert_eq!(g.unmap(address, len), EINVAL, "{address:#x} {len:#x}");
    }
    // The number of mappings is limited.
    for n in 0..1023 {
        assert_eq!(g.map(n * 4096, high + n * 4096, 4096, file), 0);
    }
    for n in [1023, 2000] {
        assert_eq!(g.map(0, high + n * 4096, 4096, file), ENOSPC, "and the client stays");
    }
    assert_eq!(g.unmap(high, 1023 * 4096), 0);
    assert_eq!(g.map(0, high, 4096, file), 0);
}

#[test]
fn only_existing_interrupts_can_be_set() {
    let mut g = Guest::new();
    for (first, count) in [(0, 17), (16, 1), (u32::MAX, 2)] {
        assert_eq!(g.ask(8, &words(&[20, 0x24, 2, first, count])).error, EINVAL);
    }
    assert_eq!(g.ask(8, &words(&[20, 0x22, 2, 0, 1])).error, EINVAL, "by bits");
    assert_eq!(g.ask(8, &words(&[20, 0x0c, 2, 0, 1])).error, EINVAL, "masks");
    // Raised by the client, then disabled.
    assert_eq!(g.ask(8, &words(&[20, 0x21, 2, 1, 1])).error, 0);
    assert_eq!((g.interrupts(0), g.interrupts(1)), (0, 1));
    assert_eq!(g.ask(8, &words(&[20, 0x21, 2, 0, 0])).error, 0);
    assert_eq!(g.ask(8, &words(&[20, 0x21, 2, 1, 1])).error, 0);
    assert_eq!(g.interrupts(1), 0);
}

#[test]
fn a_disconnected_client_leaves_nothing_behind() {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 6);
    let qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    g.whole_key(1);
    g.hang_up();
    assert_eq!(g.gone, Some(Gone::HungUp));
    // The next client finds a device without memory or objects.
    g.connect_again();
    assert_eq!(g.ask(1, &[0, 0, 3, 0]).error, 0);
    g.write(7, 4, &[6, 0]);
    g.set_queue();
    g.lay(0, &input(0x104, 16), 16);
    assert!(g.ring(0, 16).is_none(), "it has no memory to read commands from");
    g.introduce();
    g.probe();
}
