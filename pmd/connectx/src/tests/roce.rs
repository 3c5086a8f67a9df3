//! Ethernet ports: both transports over RoCEv2, and other traffic of a network.

use std::time::{Duration, Instant};

use gidcache::{Attributes, GidType, Key, VlanId};
use ib_wire::packet::RocePacket;
use ib_wire::{Gid, Lid, Mtu, Qpn};

use super::rig::*;
use crate::cable::{CableEnd, Faults};
use crate::ethernet::{guid_of_mac, roce_mtu};
use crate::{Activity, DropReason, QpKind};
use hca::{AddressVector, GlobalRoute, LinkLayer, PortState, WcStatus};

const QKEY: u32 = 0x0b1b;
/// Indices in the GID table: link-local, IPv4, IPv6.
const SIX: u8 = 0;
const FOUR: u8 = 1;

fn mac(id: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, id as u8]
}

fn v4(id: u16) -> Gid {
    gidcache::gid_of_address([10, 0, 0, id as u8].into())
}

fn entry(gid: Gid, gid_type: GidType) -> Attributes {
    Attributes { key: Key { gid, gid_type, ifindex: None }, vlan: None }
}

fn host(id: u16, cable: CableEnd) -> Host {
    let mut host = Host::with_ports(id, LinkLayer::Ethernet, vec![guid_of_mac(mac(id))]);
    for (index, gid) in [(SIX, gidcache::link_local_gid(mac(id))), (FOUR, v4(id))] {
        host.engine.set_gid(PORT, index.into(), Some(entry(gid, GidType::RoceV2))).unwrap();
    }
    host.engine.set_cable(PORT, Some(cable)).unwrap();
    host
}

fn rig_with(faults: Faults) -> Rig {
    let (mut left, right) = CableEnd::ethernet_pair().unwrap();
    left.inject(faults);
    let mut rig = Rig { a: host(1, left), b: host(2, right), now: Instant::now() };
    rig.settle();
    rig
}

fn rig() -> Rig {
    rig_with(Faults::default())
}

fn route(dgid: Gid, sgid_index: u8) -> GlobalRoute {
    GlobalRoute { dgid, sgid_index, flow_label: 0x12345, hop_limit: 9, traffic_class: 3 }
}

fn to(rig: &Rig, qpn: Qpn, index: u8) -> To {
    let dgid = rig.b.engine.gid(PORT, index.into()).unwrap();
    To { lid: Lid(0), qpn, qkey: QKEY, grh: Some(route(dgid, index)) }
}

#[test]
fn a_port_becomes_active_without_a_manager_and_accepts_its_kind_of_links() {
    let mut rig = rig();
    let port = rig.a.engine.port_attributes(PORT).unwrap();
    assert_eq!((port.state, port.link_layer, port.lid), (PortState::Active, LinkLayer::Ethernet, Lid(0)));
    let (infiniband, _other) = CableEnd::pair().unwrap();
    let error = rig.a.engine.set_cable(PORT, Some(infiniband)).unwrap_err();
    assert!(error.to_string().contains("roce:"), "{error}");
    let (ethernet, _other) = CableEnd::ethernet_pair().unwrap();
    assert!(Host::new(3).engine.set_cable(PORT, Some(ethernet)).is_err());
    rig.a.engine.set_cable(PORT, None).unwrap();
    assert_eq!(rig.a.engine.port_attributes(PORT).unwrap().state, PortState::Down);
}

#[test]
fn datagrams_arrive_behind_their_ip_header() {
    let mut rig = rig();
    let mut tx = rig.a.ud(QKEY, 11);
    let mut rx = rig.b.ud(QKEY, 22);
    let (out, out_key) = rig.a.memory(4096);
    let (inn, in_key) = rig.b.memory(8192);
    out.put(0, &pattern(2044, 1));
    for (index, flags) in [(SIX, 0x11), (FOUR, 0x12)] {
        inn.put(0, &[0xee; 40]);
        rig.b.receive(&mut rx, &[data(2084, in_key, inn.address())]);
        let to = to(&rig, rx.qpn, index);
        // The first waits until the peer's address is resolved.
        rig.a.send_ud(&mut tx, &to, &[data(2043, out_key, out.address())]);
        rig.settle();
        assert_eq!(rig.a.scq.all().len(), 1);
        let got = rig.b.rcq.all();
        assert_eq!(got.len(), 1, "{index}: {:?}", rig.b.engine.counters());
        let wc = &got[0];
        assert_eq!((wc.bytes, wc.source, wc.slid, wc.grh), (2083, tx.qpn.get(), 0, true));
        assert_eq!(wc.flags, flags);
        assert_eq!(inn.get(40, 2043), pattern(2044, 1)[..2043]);
        let area = inn.get(0, 40);
        if index == FOUR {
            assert_eq!(area[..20], [0xee; 20], "only the last twenty bytes hold the header");
            assert_eq!((area[20], area[21], area[28]), (0x45, 3, 9));
            assert_eq!((&area[32..36], &area[36..]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        } else {
            assert_eq!(area[..4], [0x60, 0x31, 0x23, 0x45]);
            assert_eq!((area[6], area[7]), (17, 9));
            assert_eq!(area[24..], rig.b.engine.gid(PORT, 0).unwrap().0);
        }
    }
}

fn to_ourselves(rig: &Rig, qpn: Qpn) -> To {
    To { grh: Some(route(rig.a.engine.gid(PORT, 1).unwrap(), FOUR)), ..to(rig, qpn, FOUR) }
}

#[test]
fn a_port_reaches_itself() {
    let mut rig = rig();
    let mut tx = rig.a.ud(QKEY, 1);
    let mut rx = rig.a.ud(QKEY, 2);
    let (m, key) = rig.a.memory(512);
    m.put(0, b"to myself");
    rig.a.receive(&mut rx, &[data(256, key, m.address() + 256)]);
    let to = to_ourselves(&rig, rx.qpn);
    rig.a.send_ud(&mut tx, &to, &[data(9, key, m.address())]);
    rig.settle();
    assert_eq!(m.get(256 + 40, 9), b"to myself");
    assert_eq!(rig.a.engine.counters().activity(Activity::Sent), 0);
}

#[test]
fn groups_reach_attached_queue_pairs() {
    let mut rig = rig();
    let mut tx = rig.a.ud(QKEY, 1);
    let mut rx = rig.b.ud(QKEY, 2);
    let (m, key) = rig.a.memory(64);
    let (r, rkey) = rig.b.memory(512);
    let group = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    rig.b.receive(&mut rx, &[data(256, rkey, r.address())]);
    let to = To { lid: Lid(0xc000), qpn: Qpn::MULTICAST, qkey: QKEY, grh: Some(route(group, SIX)) };
    rig.a.send_ud(&mut tx, &to, &[data(5, key, m.address())]);
    rig.settle();
    assert_eq!((rig.b.rcq.all().len(), rig.b.drops(DropReason::NotAttached)), (0, 1));
    rig.b.engine.attach_multicast(rx.qpn, group).unwrap();
    rig.a.send_ud(&mut tx, &to, &[data(5, key, m.address())]);
    rig.settle();
    assert_eq!(rig.b.rcq.all().len(), 1);
}

#[test]
fn packets_that_cannot_be_sent_are_dropped_and_counted() {
    let mut rig = rig();
    let mut tx = rig.a.ud(QKEY, 1);
    let rx = rig.b.ud(QKEY, 2);
    let (m, key) = rig.a.memory(64);
    let mut send = |rig: &mut Rig, to: &To| {
        rig.a.send_ud(&mut tx, to, &[data(5, key, m.address())]);
        rig.settle();
        rig.a.scq.all().len()
    };
    let good = to(&rig, rx.qpn, FOUR);
    assert_eq!(send(&mut rig, &To { grh: None, ..good.clone() }), 1);
    let v1 = entry(v4(9), GidType::RoceV1);
    rig.a.engine.set_gid(PORT, 4, Some(v1)).unwrap();
    let vlan = Attributes { vlan: VlanId::new(7), ..entry(v4(8), GidType::RoceV2) };
    rig.a.engine.set_gid(PORT, 5, Some(vlan)).unwrap();
    for index in [4, 5, 6] {
        assert_eq!(send(&mut rig, &To { grh: Some(route(v4(2), index)), ..good.clone() }), 1);
    }
    assert_eq!(rig.a.drops(DropReason::NoRoute), 4);
    // No such host: the datagram waits for three requests and is then dropped, as are later ones for a while.
    // It waits outside its queue pair, which has completed it.
    let nobody = To { grh: Some(route(v4(77), FOUR)), ..good };
    assert_eq!(send(&mut rig, &nobody), 1);
    let wait = |rig: &mut Rig| {
        for _ in 0..40 {
            rig.now += Duration::from_millis(100);
            rig.settle();
        }
    };
    wait(&mut rig);
    assert_eq!((rig.a.scq.all().len(), rig.a.drops(DropReason::NoNeighbour)), (0, 1));
    assert_eq!(rig.a.engine.counters().activity(Activity::Sent), 3, "only the requests");
}

/// Messages on connections in both directions, with any faults on the wire.
fn connected(faults: Faults, index: u8, sizes: &[usize]) -> (Rig, Qpn) {
    let mut rig = rig_with(faults);
    let slots = 16;
    let longest = sizes.iter().copied().max().unwrap_or(1);
    let mut qa = rig.a.sized(QpKind::Rc, (256, slots, 32), None, 5, None);
    let mut qb = rig.b.sized(QpKind::Rc, (256, slots, 32), None, 6, None);
    let av = |host: &Host| AddressVector {
        grh: Some(route(host.engine.gid(PORT, index.into()).unwrap(), index)),
        ..local(Lid(0))
    };
    let (to_a, to_b) = (av(&rig.a), av(&rig.b));
    let how = Rc { mtu: Mtu::B1024, timeout: 10, ..Rc::default() };
    rig.a.connect_by(&qa, to_b, qb.qpn, Rc { sq_psn: 0xff_ffff, rq_psn: 3, ..how });
    rig.b.connect_by(&qb, to_a, qa.qpn, Rc { sq_psn: 3, rq_psn: 0xff_ffff, ..how });
    let (ma, ka) = rig.a.memory(2 * longest);
    let (mb, kb) = rig.b.memory(2 * longest);
    for (i, &size) in sizes.iter().enumerate() {
        // There and back, through different memory.
        ma.put(0, &pattern(size, i as u64));
        rig.b.receive(&mut qb, &[data(longest as u32, kb, mb.address())]);
        rig.a.receive(&mut qa, &[data(longest as u32, ka, ma.address() + longest as u64)]);
        rig.a.send(&mut qa, &[data(size as u32, ka, ma.address())]);
        rig.run(Duration::from_secs(2));
        let got = rig.b.rcq.all();
        assert_eq!(got.len(), 1, "message {i}: {:?} {:?}", rig.a.engine.counters(), rig.b.engine.counters());
        assert_eq!((got[0].status, got[0].bytes as usize), (WcStatus::Success, size));
        rig.b.send(&mut qb, &[data(size as u32, kb, mb.address())]);
        rig.run(Duration::from_secs(2));
        assert_eq!(rig.a.rcq.all().iter().map(|wc| wc.bytes as usize).collect::<Vec<_>>(), [size]);
        assert!(ma.get(longest, size) == pattern(size, i as u64), "message {i}");
        for wc in rig.a.scq.all().into_iter().chain(rig.b.scq.all()) {
            assert_eq!(wc.status, WcStatus::Success);
        }
    }
    (rig, qa.qpn)
}

#[test]
fn connections_carry_messages_of_all_sizes() {
    for index in [SIX, FOUR] {
        connected(Faults::default(), index, &[1, 0, 64, 1023, 1024, 1025, 65_536]);
    }
}

#[test]
fn connections_survive_a_bad_wire() {
    let faults =
        Faults { loss: 0.05, duplicate: 0.03, reorder: 0.03, corrupt: 0.03, seed: 11, ..Faults::default() };
    let (rig, _) = connected(faults, FOUR, &[30_000; 12]);
    let (a, b) = (rig.a.engine.counters(), rig.b.engine.counters());
    assert!(a.activity(Activity::Retransmitted) > 0 && b.activity(Activity::Retransmitted) > 0);
    assert!(b.drops(DropReason::InvariantCrc) + a.drops(DropReason::InvariantCrc) > 0);
}

#[test]
fn a_stranger_cannot_speak_on_a_connection() {
    let (mut rig, qpn) = connected(Faults::default(), FOUR, &[10]);
    // The peer moves to another address: packets from there do not belong to the connection.
    rig.b.engine.set_gid(PORT, FOUR.into(), Some(entry(v4(3), GidType::RoceV2))).unwrap();
    let mut tx = rig.b.qp(QpKind::Rc, 64, None, 9);
    let av = AddressVector { grh: Some(route(v4(1), FOUR)), ..local(Lid(0)) };
    rig.b.connect_by(&tx, av, qpn, Rc { timeout: 0, ..Rc::default() });
    let (m, key) = rig.b.memory(64);
    rig.b.send(&mut tx, &[data(5, key, m.address())]);
    rig.settle();
    assert_eq!(rig.a.drops(DropReason::WrongSource), 1);
}

/// Invalid frames: each is counted, and none is answered or breaks anything.
#[test]
fn hostile_frames() {
    let (mut wire, end) = CableEnd::ethernet_pair().unwrap();
    let mut host = host(1, end);
    let now = Instant::now();
    let mut frames = Vec::new();
    for record in pcap(include_bytes!("../../../../cm/wire/tests/data/linux-ipoib-cm-rocev2.pcap")) {
        frames.push(record.to_vec());
    }
    let mut dice = 7u64;
    let mut roll = |n: usize| {
        dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (dice >> 33) as usize % n
    };
    let mut sent = 0;
    for round in 0..4000 {
        let mut frame = frames[roll(frames.len())].clone();
        // To us, by MAC address and sometimes by GID, or unchanged.
        if round % 4 != 0 {
            frame[..6].copy_from_slice(&mac(1));
        }
        if round % 3 == 0 {
            frame[38..54].copy_from_slice(&gidcache::link_local_gid(mac(1)).0);
        }
        for _ in 0..roll(4) {
            let at = roll(frame.len().min(90));
            frame[at] ^= 1 << roll(8);
        }
        let len = if roll(4) == 0 { roll(frame.len()) + 1 } else { frame.len() };
        wire.send_with(len, |out| out.copy_from_slice(&frame[..len])).unwrap();
        sent += 1;
        host.engine.step(now);
        wire.poll(now);
        wire.receive(64, |_| {});
    }
    host.engine.step(now);
    let counters = host.engine.counters();
    let dropped: u64 = DropReason::ALL.iter().map(|&r| counters.drops(r)).sum();
    assert!(dropped > sent / 2 && dropped <= sent, "{dropped} of {sent}");
    for reason in
        [DropReason::Malformed, DropReason::InvariantCrc, DropReason::NotOurMac, DropReason::OtherTraffic]
    {
        assert!(counters.drops(reason) > 0, "{}", reason.name());
    }
}

fn pcap(file: &[u8]) -> Vec<&[u8]> {
    let mut rest = &file[24..];
    let mut out = Vec::new();
    while let Some((header, tail)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (record, tail) = tail.split_at(len);
        out.push(record);
        rest = tail;
    }
    out
}

/// The parser accepts what is sent, with one UDP source port per flow.
#[test]
fn frames_on_the_wire() {
    let (mut wire, end) = CableEnd::ethernet_pair().unwrap();
    let mut host = host(1, end);
    let now = Instant::now();
    let mut ports = std::collections::BTreeSet::new();
    let (m, key) = host.memory(64);
    host.engine.step(now);
    for n in 0..4 {
        let mut tx = host.ud(QKEY, n);
        let group = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
        let to = To { lid: Lid(0), qpn: Qpn::MULTICAST, qkey: QKEY, grh: Some(route(group, SIX)) };
        for _ in 0..3 {
            host.send_ud(&mut tx, &to, &[data(n + 1, key, m.address())]);
        }
        host.engine.step(now);
        host.engine.step(now);
        wire.poll(now);
        let mut seen = 0;
        wire.receive(64, |frame| {
            assert_eq!(frame[..14], [0x33, 0x33, 1, 2, 3, 4, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
            let packet = RocePacket::parse(&frame[14..]).unwrap();
            assert!(packet.icrc_is_right());
            assert_eq!(packet.transport().payload.len(), n as usize + 1);
            assert!(packet.source_port() >= 0xc000);
            ports.insert(packet.source_port());
            seen += 1;
        });
        assert_eq!(seen, 3);
    }
    assert_eq!(ports.len(), 4);
}

#[test]
fn mtu_by_the_interface() {
    let codes = [(0, None), (300, None), (356, Some(Mtu::B256)), (1500, Some(Mtu::B1024))];
    for (ip, mtu) in codes.into_iter().chain([(4500, Some(Mtu::B4096)), (9000, Some(Mtu::B4096))]) {
        assert_eq!(roce_mtu(ip), mtu, "{ip}");
    }
}

#[test]
fn a_destination_that_does_not_answer_holds_up_no_other() {
    let mut rig = rig();
    let mut tx = rig.a.ud(QKEY, 1);
    let mut rx = rig.b.ud(QKEY, 2);
    let (m, key) = rig.a.memory(64);
    let (r, rkey) = rig.b.memory(4096);
    let good = to(&rig, rx.qpn, FOUR);
    let nobody = To { grh: Some(route(v4(77), FOUR)), ..good.clone() };
    m.put(0, b"0123456789");
    for n in 0..3 {
        rig.b.receive(&mut rx, &[data(256, rkey, r.address() + n * 256)]);
        rig.a.send_ud(&mut tx, &nobody, &[data(5, key, m.address())]);
        rig.a.send_ud(&mut tx, &good, &[data(10 - n as u32, key, m.address())]);
    }
    // Time does not advance, so the silent host is not given up yet.
    rig.settle();
    let got: Vec<_> = rig.b.rcq.all().iter().map(|w| w.bytes).collect();
    assert_eq!(got, [50, 49, 48], "all of them in order, with an empty neighbor cache");
    assert_eq!(rig.a.scq.all().len(), 6);
    // The queue for one host is bounded; further datagrams are counted.
    for _ in 0..256 {
        rig.a.send_ud(&mut tx, &nobody, &[data(5, key, m.address())]);
        rig.settle();
    }
    assert_eq!((rig.a.scq.all().len(), rig.a.drops(DropReason::NeighbourQueueFull)), (256, 3));
    rig.run(Duration::from_secs(5));
    assert_eq!(rig.a.drops(DropReason::NoNeighbour), 256);
}
