//! Real offloads: AF_PACKET ports on a veth pair and a TAP port, in a private network namespace. A separate
//! process, because EAL starts once.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Instant;

use pmd::eth::{Burst, EthConfig, EthOffloads, EthPort, EthQueue};
use pmd::hca::Checksum;
use pmd::mem::{FrameFacts, FrameTag, Mbuf, Pool};

mod veth;

use veth::{CONFIG, DEADLINE, PRIVATE, eal, kernel_sends, own_namespace, pool, run, veth};

/// Returns a broadcast frame of 60 bytes with this content after its addresses.
fn frame(pool: &Pool, behind: &[u8]) -> Mbuf {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9]);
    bytes.extend(behind);
    bytes.resize(60, 0);
    pool.copy_from_slice(&bytes).unwrap()
}

/// Returns an IPv4 header of a UDP packet without payload, with its checksum.
fn ipv4() -> Vec<u8> {
    let mut packet =
        vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 9, 0, 8, 0, 0];
    let sum: u32 = packet[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn send(queue: &mut EthQueue, frame: Mbuf) {
    let mut burst = Burst::new();
    burst.push(frame);
    assert_eq!(queue.tx_burst(&mut burst), 1);
}

/// Returns the metadata of the next test frame, and its content after the addresses.
fn receive(queue: &mut EthQueue) -> (FrameFacts, Vec<u8>) {
    let end = Instant::now() + DEADLINE;
    loop {
        let mut burst = Burst::new();
        queue.rx_burst(&mut burst);
        for m in burst {
            if m.data().get(6..12) == Some(&[2, 0, 0, 0, 0, 9]) {
                return (m.frame_facts(), m.data()[12..].to_vec());
            }
        }
        assert!(Instant::now() < end, "nothing arrives");
    }
}

#[test]
fn ports_do_what_they_say() {
    if !own_namespace() {
        return;
    }
    // Two ports on one interface would share its frames.
    veth("left", "right", 1500);
    veth("left2", "right2", 1500);
    std::mem::forget(eal(&[
        "net_af_packet0,iface=left",
        "net_af_packet1,iface=right",
        "net_af_packet2,iface=left2",
        "net_af_packet3,iface=right2",
        "net_tap0,iface=dtap0",
        "net_ring0",
    ]));
    let (pool, config) = (pool("frames", 2048, 2048), CONFIG);
    let (ring, _queues) = EthPort::start(Some("net_ring0"), &config, &pool).unwrap();
    assert_eq!(ring.offloads(), EthOffloads::default(), "a ring has no offloads");

    let start = |name, offloads| {
        let (port, mut queues) =
            EthPort::start(Some(name), &EthConfig { offloads, ..config }, &pool).unwrap();
        (port.offloads(), queues.remove(0))
    };
    let both_tags = EthOffloads { strip_tags: true, insert_tags: true, check_ipv4: false };
    let (enabled, mut left) = start("net_af_packet0", true);
    assert_eq!((enabled, left.inserts_tags()), (both_tags, true));
    let (enabled, mut right) = start("net_af_packet1", true);
    assert_eq!(enabled, both_tags);
    let (enabled, mut plain) = start("net_af_packet3", false);
    assert_eq!((enabled, plain.inserts_tags()), (EthOffloads::default(), false));

    let (_, mut left2) = start("net_af_packet2", true);

    let in_frame = FrameFacts::default();
    let taken = |control| FrameFacts { tag: FrameTag::Taken(control), checksum: Checksum::Unknown };
    let inner = [PRIVATE, [7, 8]].concat();
    let tagged = |control: u16, inner: &[u8]| [&[0x81, 0][..], &control.to_be_bytes(), inner].concat();

    // Without a tag, with a tag inserted by the port, and with a tag in the frame. A port that strips tags
    // never leaves one in the frame; any other always does.
    for (wish, in_data) in [(None, None), (Some(100), None), (None, Some(0x6064)), (None, Some(0xe000))] {
        for queue in [&mut left, &mut left2] {
            let mut sent = frame(&pool, &in_data.map_or(inner.clone(), |control| tagged(control, &inner)));
            if let Some(control) = wish {
                sent.wish_tag(control);
            }
            send(queue, sent);
        }
        let control = wish.or(in_data);
        let (facts, bytes) = receive(&mut right);
        assert_eq!((facts, &bytes[..4]), (control.map_or(in_frame, taken), &inner[..]));
        let (facts, bytes) = receive(&mut plain);
        let whole = control.map_or(inner.clone(), |control| tagged(control, &inner));
        assert_eq!((facts.tag, &bytes[..whole.len()]), (FrameTag::InFrame, &whole[..]));
    }
    // Two tags: one is stripped, and the other one stays.
    let mut twice = frame(&pool, &tagged(200, &inner));
    twice.wish_tag(100);
    send(&mut left, twice);
    let (facts, bytes) = receive(&mut right);
    assert_eq!((facts, &bytes[..8]), (taken(100), &tagged(200, &inner)[..]));

    // A TAP port checks headers.
    let (tap, mut inn) = start("net_tap0", true);
    assert!(tap.check_ipv4, "{tap:?}");
    run("ip link set dtap0 addrgenmode none up");
    let (good, mut bad) = (ipv4(), ipv4());
    bad[10] ^= 1;
    for (packet, checksum) in [(good, Checksum::Good), (bad, Checksum::Unknown)] {
        kernel_sends("dtap0", &[&[8, 0][..], &packet].concat());
        assert_eq!(receive(&mut inn).0, FrameFacts { tag: FrameTag::InFrame, checksum });
    }
}
