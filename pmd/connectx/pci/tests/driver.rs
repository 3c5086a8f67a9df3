//! The device under a small driver: typical use by a guest.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

/// Bytes that identify their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

#[test]
fn a_driver_finds_the_device_and_sets_it_up() {
    let mut g = Guest::new();
    assert_eq!(g.read(7, 0, 4).body[16..], [0xb3, 0x15, 0x17, 0x10]);
    assert_eq!(g.read_word(4) >> 16, 5);
    let mut eq = g.probe();
    let capabilities = g.command(&[&0x100u16.to_be_bytes()[..], &[0; 14]].concat(), 0x1010).output;
    assert_eq!(capabilities[0x10 + 0x37], 1, "ports");
    let port = g.command(&about(0x762, 0), 0x210).output;
    assert_eq!((port[0x10 + 0x22] >> 4, port[0x10 + 0x23] & 0xf, &port[0x70..0x72]), (5, 4, &[0, 7][..]));
    assert_eq!(port[0x10 + 0x20] & 0x10, 0, "no GRH required");
    g.hca.engine_mut().require_grh(PORT).unwrap();
    assert_eq!(g.command(&about(0x762, 0), 0x210).output[0x10 + 0x20] & 0x10, 0x10);
    let mut gid = about(0x764, 0);
    gid[14..16].copy_from_slice(&[0, 0]);
    let gid = g.command(&gid, 0x20).output;
    assert_eq!(gid[16..], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1]);
    let mut keys = about(0x765, 0);
    put16(&mut keys, 14, 0xffff);
    let keys = g.command(&keys, 16 + 128 * 4).output;
    assert_eq!((&keys[16..20], &keys[20..24]), (&[0, 0, 0xff, 0xff][..], &[0; 4][..]));
    // The port came up before a queue for such events existed; now it goes down.
    assert_eq!(g.next_event(&mut eq), None);
    g.arm_eq(&eq);
    g.hca.engine_mut().set_cable(PORT, None).unwrap();
    g.settle();
    let (kind, what, data) = g.next_event(&mut eq).unwrap();
    assert_eq!((kind, what, data[8], g.interrupts(0)), (9, 1, 0x10, 1));
}

#[test]
fn a_datagram_to_itself_completes_with_events_and_interrupts() {
    let mut g = Guest::new();
    g.probe();
    let mut eq = g.create_eq(2, 0);
    let mut cq = g.create_cq(eq.number, 7);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    assert_eq!(g.state(qp.number), 3);
    let key = g.whole_key(0xa7);
    let buffer = g.pages(2);
    g.put(buffer, &pattern(1000));
    let to = datagram(7, qp.number);
    // More than the rings hold, so that all wrap; an event and an interrupt for each pair of completions.
    for n in 0..200 {
        g.receive(&mut qp, piece(2048, key, buffer + 4096));
        g.arm_cq(&cq);
        g.arm_eq(&eq);
        assert_eq!(g.interrupts(2), 0);
        g.post_send(&mut qp, 10, &[&to[..], &piece(1000, key, buffer)].concat());
        g.settle();
        assert_eq!(g.interrupts(2), 1, "{n}");
        let (kind, _, data) = g.next_event(&mut eq).unwrap();
        assert_eq!((kind, &data[25..]), (0, &cq.number.to_be_bytes()[1..]));
        assert_eq!(g.next_event(&mut eq), None);
        let done: Vec<_> = [(); 2].iter().map(|()| g.poll(&mut cq).unwrap()).collect();
        let mut kinds: Vec<_> = done.iter().map(|cqe| cqe[63] >> 4).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [0, 2]);
        assert!(done.iter().all(|cqe| cqe[32..36] == [0, 0, 1, 0x23]), "user index");
        assert_eq!(g.get(buffer + 4096 + 40, 1000), pattern(1000));
        g.put(buffer + 4096, &[0; 2048]);
    }
}

#[test]
fn a_connection_moves_messages_between_scattered_pages() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let (mut a, mut b) = (g.create_qp(SERVICE_RC, &cq), g.create_qp(SERVICE_RC, &cq));
    g.open(&a, Some((7, b.number)));
    g.open(&b, Some((7, a.number)));
    let (from, into) = (g.scattered(16), g.scattered(16));
    let bytes = pattern(16 * 4096);
    for (page, data) in from.iter().zip(bytes.chunks(4096)) {
        g.put(*page, data);
    }
    // Regions that begin in the middle of a page.
    let (len, start, to) = (60_000u32, 0x7000_0100u64, 0x5000_0200u64);
    let source = g.key(1, start, len.into(), &from);
    let target = g.key(2, to, len.into(), &into);
    assert!(source as u8 == 1 && target as u8 == 2);
    let landed = |g: &Guest| {
        let all: Vec<u8> = into.iter().flat_map(|page| g.get(*page, 4096)).collect();
        all[0x200..0x200 + len as usize] == bytes[0x100..0x100 + len as usize]
    };
    // SEND.
    g.receive(&mut b, piece(len, target, to));
    g.post_send(&mut a, 10, &piece(len, source, start));
    g.settle();
    let done: Vec<_> = std::iter::from_fn(|| g.poll(&mut cq)).collect();
    assert_eq!(done.iter().map(|cqe| cqe[63] >> 4).collect::<Vec<_>>(), [2, 0]);
    assert!(landed(&g));
    // The PSN that each end sends next, and the one that it expects next.
    let psns = |g: &mut Guest, qp: u32| {
        let context = g.command(&about(0x50b, qp), 0x110).output.split_off(0x18);
        let psn = |at: usize| u32::from_be_bytes([0, context[at], context[at + 1], context[at + 2]]);
        (psn(0x79), psn(0x95))
    };
    let packets = len.div_ceil(2048);
    assert_eq!((psns(&mut g, a.number), psns(&mut g, b.number)), ((packets, 0), (0, packets)));
    // RDMA WRITE.
    for page in &into {
        g.put(*page, &[0; 4096]);
    }
    let mut body = to.to_be_bytes().to_vec();
    body.extend_from_slice(&target.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&piece(len, source, start));
    g.post_send(&mut a, 8, &body);
    g.settle();
    assert_eq!(g.poll(&mut cq).map(|cqe| cqe[63] >> 4), Some(0));
    assert!(landed(&g));
    // Behind the end of the key.
    body[..8].copy_from_slice(&(to + 1).to_be_bytes());
    g.post_send(&mut a, 8, &body);
    g.settle();
    assert_eq!(g.poll(&mut cq).map(|cqe| cqe[63] >> 4), Some(13));
    assert_eq!((g.state(a.number), g.state(b.number)), (6, 6));
}

#[test]
fn requests_posted_to_a_queue_pair_in_error_are_flushed() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 6);
    let mut qp = g.create_qp(SERVICE_RC, &cq);
    g.open(&qp, Some((7, 99)));
    g.command(&about(0x507, qp.number), 16);
    // As by a draining driver; there is no doorbell for it.
    let key = g.whole_key(0);
    g.receive(&mut qp, piece(64, key, 0));
    let end = g.now() + std::time::Duration::from_secs(5);
    let cqe = loop {
        g.wait(std::time::Duration::from_millis(5));
        match g.poll(&mut cq) {
            Some(cqe) => break cqe,
            None => assert!(g.now() < end, "it is not flushed"),
        }
    };
    assert_eq!((cqe[63] >> 4, cqe[55]), (14, 5));
}

#[test]
fn a_sender_receives_its_own_group_packets_unless_it_blocks_loopback() {
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let key = g.whole_key(0);
    let buffer = g.pages(1);
    let mut group = [0; 16];
    group[..4].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b]);
    let mut to = datagram(0xc001, 0xff_ffff);
    put32(&mut to, 28, 1 << 30);
    to[32..].copy_from_slice(&group);
    for blocked in [true, false] {
        let (pages, record) = (g.scattered(2), g.pages(1));
        let mut bytes = g.qp_input(SERVICE_UD, cq.number, &pages, record);
        bytes[0x18 + 4] = if blocked { 0x40 } else { 0 };
        let number = g.command(&bytes, 16).number();
        let mut qp = QueuePair { number, pages, record, posted: 0, received: 0 };
        let mut other = g.create_qp(SERVICE_UD, &cq);
        for qp in [&mut qp, &mut other] {
            g.open(qp, None);
            let mut attach = about(0x806, qp.number);
            attach.extend_from_slice(&group);
            g.command(&attach, 16);
            g.receive(qp, piece(2048, key, buffer));
        }
        g.post_send(&mut qp, 10, &[&to[..], &piece(100, key, buffer + 2048)].concat());
        g.settle();
        let done = std::iter::from_fn(|| g.poll(&mut cq));
        let mut heard: Vec<_> = done
            .filter(|cqe| cqe[63] >> 4 == 2)
            .map(|cqe| u32::from_be_bytes([0, cqe[57], cqe[58], cqe[59]]))
            .collect();
        heard.sort_unstable();
        let mut expected = if blocked { vec![other.number] } else { vec![qp.number, other.number] };
        expected.sort_unstable();
        assert_eq!(heard, expected, "{blocked}");
        g.command(&about(0x501, number), 16);
        g.command(&about(0x501, other.number), 16);
    }
}

#[test]
fn commands_raise_events_once_there_is_a_queue_for_them() {
    let mut g = Guest::new();
    g.probe();
    let mut eq = g.create_eq(1, 1 << 10);
    assert_eq!(g.next_event(&mut eq), None, "the queue's own creation is polled for");
    g.arm_eq(&eq);
    g.lay(5, &input(0x800, 16), 16);
    assert_eq!(g.ring(5, 16).unwrap().status, 0);
    let (kind, _, data) = g.next_event(&mut eq).unwrap();
    assert_eq!((kind, &data[..4], g.interrupts(1)), (10, &[0, 0, 0, 1 << 5][..], 1));
}

#[test]
fn an_overrun_queue_names_itself() {
    let mut g = Guest::new();
    let mut eq = g.probe();
    let cq = g.create_cq(eq.number, 2);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let key = g.whole_key(0);
    for _ in 0..6 {
        g.post_send(&mut qp, 10, &[&datagram(7, 0xf0)[..], &piece(10, key, 0x10_0000)].concat());
    }
    g.settle();
    let (kind, _, data) = g.next_event(&mut eq).unwrap();
    assert_eq!((kind, &data[..4]), (4, &cq.number.to_be_bytes()[..]));
    let (kind, _, data) = g.next_event(&mut eq).unwrap();
    assert_eq!(
        (kind, &data[24..]),
        (5, &qp.number.to_be_bytes()[..]),
        "the queue pair that lost a completion"
    );
    assert_eq!(g.next_event(&mut eq), None, "once");
}

#[test]
fn everything_can_be_destroyed_and_created_again() {
    let mut g = Guest::new();
    let eq = g.probe();
    for _ in 0..300 {
        let pages = [0x20_0000, 0x20_4000];
        let bytes = g.cq_input(eq.number, 6, &pages, 0x20_8000);
        let cq = g.command(&bytes, 16).number();
        let bytes = g.qp_input(SERVICE_UD, cq, &pages, 0x20_9000);
        let qp = g.command(&bytes, 16).number();
        let bytes = g.key_input(3, 0, 8192, &pages);
        let key = g.command(&bytes, 16).number();
        let pd = g.command(&input(0x800, 16), 16).number();
        assert_eq!(g.try_command(&about(0x401, cq), 16).status, 6, "a queue pair uses it");
        assert_eq!(g.try_command(&about(0x302, eq.number), 16).status, 6, "a completion queue uses it");
        for (op, number) in [(0x501, qp), (0x401, cq), (0x202, key), (0x801, pd)] {
            g.command(&about(op, number), 16);
            assert_eq!(g.try_command(&about(op, number), 16).status, 5, "it is gone");
        }
    }
    g.command(&about(0x302, eq.number), 16);
}

#[test]
fn a_reset_destroys_all_and_the_driver_restarts() {
    let mut g = Guest::new();
    for _ in 0..3 {
        let eq = g.probe();
        let cq = g.create_cq(eq.number, 6);
        let qp = g.create_qp(SERVICE_UD, &cq);
        g.open(&qp, None);
        g.whole_key(1);
        assert_eq!(g.ask(13, &[]).error, 0);
        assert_eq!(g.read_word(0x14), 0x56);
        // Not bus master: commands are not executed.
        g.set_queue();
        g.lay(0, &input(0x104, 16), 16);
        assert!(g.ring(0, 16).is_none());
        g.write(7, 4, &[6, 0]);
        assert_eq!(g.try_command(&about(0x50b, qp.number), 0x110).status, 5);
        g.hca.engine_mut().activate(PORT, ib_wire::Lid(7), ib_wire::Mtu::B4096).unwrap();
    }
}

#[test]
fn a_driver_that_is_loaded_again_finds_a_clean_device() {
    let mut g = Guest::new();
    for _ in 0..3 {
        g.set_queue();
        g.command(&input(0x104, 16), 16);
        let eq = g.create_eq(0, 0);
        assert_eq!(eq.number, 1);
        let uar = g.command(&input(0x802, 16), 16).number();
        assert_eq!(uar, 0x10);
        // It leaves a queue behind.
        g.create_cq(eq.number, 6);
        g.command(&input(0x103, 16), 16);
        g.command(&input(0x105, 16), 16);
    }
}

#[test]
fn the_firmware_answers_management_datagrams_of_its_host() {
    let mut g = Guest::new();
    g.probe();
    let mut mad = input(0x50d, 0x110);
    mad[0x0b] = 1;
    // Get of PortInfo, LID routed.
    mad[0x10..0x14].copy_from_slice(&[1, 1, 1, 1]);
    put16(&mut mad, 0x10 + 16, 0x15);
    let answer = g.command(&mad, 0x110).output;
    assert_eq!((answer[0x13], &answer[0x10 + 64 + 16..][..2]), (0x81, &[0, 7][..]));
    // Get of PortCounters.
    mad[0x11] = 4;
    put16(&mut mad, 0x10 + 16, 0x12);
    mad[0x10 + 64 + 1] = 1;
    let answer = g.command(&mad, 0x110).output;
    assert_eq!((answer[0x13], &answer[0x14..0x16]), (0x81, &[0, 0][..]));
    // An unsupported class: a bad packet.
    mad[0x11] = 0x32;
    assert_eq!(g.try_command(&mad, 0x110).status, 0x30);
}
