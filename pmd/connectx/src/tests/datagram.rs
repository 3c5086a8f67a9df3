use ib_wire::packet::Packet;
use ib_wire::smp::Capabilities;
use ib_wire::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn};

use super::rig::*;
use crate::cable::CableEnd;
use crate::{DropReason, QpKind};
use hca::{AddressVector, GlobalRoute, HcaError, QpState, QpTransition, RcToReceive, WcStatus};

const QKEY: u32 = 0x0b1b;

fn group(dgid: Gid) -> To {
    let route = GlobalRoute { dgid, sgid_index: 0, flow_label: 0, hop_limit: 0, traffic_class: 0 };
    To { lid: Lid(0xc001), qpn: Qpn::MULTICAST, qkey: QKEY, grh: Some(route) }
}

#[test]
fn a_datagram_arrives_behind_its_grh_area() {
    let mut rig = Rig::new();
    let mut tx = rig.a.ud(QKEY, 11);
    let mut rx = rig.b.ud(QKEY, 22);
    let (out, out_key) = rig.a.memory(4096);
    let (inn, in_key) = rig.b.memory(8192);
    out.put(0, &pattern(2044, 1));
    rig.b.receive(&mut rx, &[data(2084, in_key, inn.address())]);
    rig.b
        .receive(&mut rx, &[data(40, in_key, inn.address() + 4096), data(100, in_key, inn.address() + 6000)]);
    let to = To { lid: Lid(2), qpn: rx.qpn, qkey: QKEY, grh: None };
    // Two segments, unaligned.
    let pieces = [data(1001, out_key, out.address()), data(1043, out_key, out.address() + 1001)];
    rig.a.send_ud(&mut tx, &to, &pieces);
    let mut routed = to;
    let dgid = rig.b.gid();
    routed.grh =
        Some(GlobalRoute { dgid, sgid_index: 0, flow_label: 0x12345, hop_limit: 9, traffic_class: 3 });
    rig.a.send_ud(&mut tx, &routed, &[data(77, out_key, out.address())]);
    rig.settle();

    let sent = rig.a.scq.all();
    assert_eq!(
        sent.iter().map(|w| (w.opcode, w.counter, w.send_opcode)).collect::<Vec<_>>(),
        [(REQ, 0, 0x0a), (REQ, 2, 0x0a)]
    );
    let got = rig.b.rcq.all();
    assert_eq!(got.len(), 2);
    assert_eq!(
        (got[0].opcode, got[0].bytes, got[0].source, got[0].slid, got[0].grh, got[0].user_index),
        (RESP_SEND, 2084, tx.qpn.get(), 1, false, 22)
    );
    assert_eq!((got[0].counter, got[1].counter, got[1].grh, got[1].bytes), (0, 1, true, 117));
    assert_eq!(inn.get(40, 2044), pattern(2044, 1));
    assert_eq!(inn.get(6000, 77), pattern(2044, 1)[..77]);
    let grh = inn.get(4096, 40);
    assert_eq!(grh[..4], [0x60, 0x31, 0x23, 0x45]);
    assert_eq!((&grh[8..24], &grh[24..]), (&rig.a.gid().0[..], &dgid.0[..]));
}

#[test]
fn the_short_form_of_an_address_has_no_grh() {
    let mut rig = Rig::new();
    let mut tx = rig.a.ud(QKEY, 0);
    let mut rx = rig.b.ud(QKEY, 0);
    let (out, out_key) = rig.a.memory(64);
    let (inn, in_key) = rig.b.memory(256);
    out.put(0, &pattern(50, 3));
    rig.b.receive(&mut rx, &[data(256, in_key, inn.address())]);
    let to = To { lid: Lid(2), qpn: rx.qpn, qkey: QKEY, grh: None };
    let mut short = to.bytes()[..16].to_vec();
    short[8] = 0;
    rig.a.post(&mut tx, 0x0a, 0x08, 0, &[&short[..], &data(50, out_key, out.address())].concat());
    rig.settle();
    let got = rig.b.rcq.all();
    assert_eq!((got.len(), got[0].bytes, got[0].grh), (1, 90, false));
    assert_eq!(inn.get(40, 50), pattern(50, 3));
    // An entry that ends within it is invalid.
    rig.a.post(&mut tx, 0x0a, 0x08, 0, &to.bytes()[..16]);
    rig.settle();
    let sent = rig.a.scq.all();
    assert_eq!(sent.len(), 2);
    assert_eq!((sent[0].opcode, sent[1].opcode == REQ), (REQ, false));
}

#[test]
fn keys_of_partition_and_queue_are_checked_and_counted() {
    let mut rig = Rig::new();
    let mut tx = rig.a.ud(QKEY, 0);
    let mut rx = rig.b.ud(QKEY, 0);
    let (m, key) = rig.b.memory(4096);
    let (out, out_key) = rig.a.memory(64);
    for _ in 0..4 {
        rig.b.receive(&mut rx, &[data(1000, key, m.address())]);
    }
    let mut send = |rig: &mut Rig, qkey: u32| {
        let to = To { lid: Lid(2), qpn: rx.qpn, qkey, grh: None };
        rig.a.send_ud(&mut tx, &to, &[data(10, out_key, out.address())]);
        rig.settle();
        rig.b.rcq.all().len()
    };
    assert_eq!(send(&mut rig, QKEY + 1), 0);
    assert_eq!(rig.b.drops(DropReason::QueueKey), 1);
    // The top bit selects the sender's own key.
    assert_eq!(send(&mut rig, 0x8000_0001), 1);
    rig.b.engine.set_pkey(PORT, 0, PKey(0x8123)).unwrap();
    assert_eq!(send(&mut rig, QKEY), 0);
    assert_eq!(rig.b.drops(DropReason::PartitionKey), 1);
    rig.a.engine.set_pkey(PORT, 0, PKey(0x0123)).unwrap();
    assert_eq!(send(&mut rig, QKEY), 1);
    rig.b.engine.set_pkey(PORT, 0, PKey(0x0123)).unwrap();
    assert_eq!(send(&mut rig, QKEY), 0, "two limited members");
    let p = rig.b.engine.port_mut(PORT).unwrap();
    assert_eq!((p.pkey_violations, p.qkey_violations), (2, 1));
}

#[test]
fn a_group_reaches_all_that_are_attached_but_not_its_sender() {
    let mut rig = Rig::new();
    let mgid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let (out, out_key) = rig.a.memory(256);
    let (ma, ka) = rig.a.memory(4096);
    let (mb, kb) = rig.b.memory(4096);
    let mut tx = rig.a.ud(QKEY, 1);
    let mut sibling = rig.a.ud(QKEY, 2);
    let mut deaf = rig.b.ud(QKEY, 3);
    let mut listener = rig.b.ud(QKEY, 4);
    for qp in [&mut tx, &mut sibling] {
        rig.a.receive(qp, &[data(300, ka, ma.address())]);
        rig.a.engine.attach_multicast(qp.qpn, mgid).unwrap();
        rig.a.engine.attach_multicast(qp.qpn, mgid).unwrap();
    }
    for qp in [&mut deaf, &mut listener] {
        rig.b.receive(qp, &[data(300, kb, mb.address())]);
    }
    rig.b.engine.attach_multicast(listener.qpn, mgid).unwrap();
    out.put(0, &pattern(100, 5));
    rig.a.send_ud(&mut tx, &group(mgid), &[data(100, out_key, out.address())]);
    rig.settle();
    let receivers = |w: Vec<Wc>| w.iter().map(|w| w.user_index).collect::<Vec<_>>();
    assert_eq!(receivers(rig.a.rcq.all()), [2]);
    assert_eq!(receivers(rig.b.rcq.all()), [4]);
    assert_eq!(mb.get(40, 100), pattern(100, 5));
    rig.b.engine.detach_multicast(listener.qpn, mgid).unwrap();
    rig.a.send_ud(&mut tx, &group(mgid), &[data(100, out_key, out.address())]);
    rig.settle();
    assert_eq!(rig.b.drops(DropReason::NotAttached), 1);
}

#[test]
fn one_device_listens_to_the_groups_of_a_hundred_and_twenty_eight_segments() {
    let mut rig = Rig::new();
    let group =
        |segment: u8, n: u8| Gid([0xff, 0x12, 0x40, 0x1b, 0x80, segment, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]);
    let pairs: Vec<_> = (0..128).map(|n| rig.a.ud(QKEY, n)).collect();
    for (segment, qp) in (0..).zip(&pairs) {
        for n in 0..13 {
            rig.a.engine.attach_multicast(qp.qpn, group(segment, n)).unwrap();
        }
    }
    assert!(rig.a.engine.detach_multicast(pairs[127].qpn, group(127, 12)).is_ok());
}

#[test]
fn queue_pair_one_has_another_number_within() {
    let mut rig = Rig::new();
    let mut tx = rig.a.qp(QpKind::Gsi, 16, None, 1);
    let mut rx = rig.b.qp(QpKind::Gsi, 16, None, 9);
    rig.a.open_ud(&tx, QKey::GSI.0);
    rig.b.open_ud(&rx, QKey::GSI.0);
    assert!(rx.qpn.get() > 1);
    let (m, key) = rig.b.memory(4096);
    let (out, out_key) = rig.a.memory(256);
    rig.b.receive(&mut rx, &[data(296, key, m.address())]);
    let to = To { lid: Lid(2), qpn: Qpn::GSI, qkey: QKey::GSI.0, grh: None };
    rig.a.send_ud(&mut tx, &to, &[data(256, out_key, out.address())]);
    rig.settle();
    let got = rig.b.rcq.all();
    assert_eq!((got.len(), got[0].source, got[0].user_index, got[0].qpn), (1, 1, 9, rx.qpn.get()));
}

#[test]
fn a_failed_send_stops_sends_only() {
    let mut rig = Rig::new();
    let mut a = rig.a.ud(QKEY, 1);
    let mut b = rig.b.ud(QKEY, 2);
    let (m, key) = rig.a.memory(4096);
    let (mb, kb) = rig.b.memory(4096);
    let to = To { lid: Lid(2), qpn: b.qpn, qkey: QKEY, grh: None };
    rig.a.receive(&mut a, &[data(200, key, m.address())]);
    rig.a.send_ud(&mut a, &to, &[data(10, key + 1, m.address())]);
    rig.a.send_ud(&mut a, &to, &[data(10, key, m.address())]);
    rig.settle();
    let status: Vec<_> = rig.a.scq.all().iter().map(|w| (w.counter, w.status)).collect();
    assert_eq!(status, [(0, WcStatus::LocalProtection), (2, WcStatus::Flushed)]);
    assert_eq!(rig.a.engine.qp_state(a.qpn).unwrap(), QpState::Sqe);
    let back = To { lid: Lid(1), qpn: a.qpn, qkey: QKEY, grh: None };
    rig.b.send_ud(&mut b, &back, &[data(10, kb, mb.address())]);
    rig.settle();
    assert_eq!(rig.a.rcq.all().len(), 1);
    rig.a.engine.modify_qp(a.qpn, &QpTransition::RecoverSend).unwrap();
    rig.b.receive(&mut b, &[data(200, kb, mb.address())]);
    rig.a.send_ud(&mut a, &to, &[data(10, key, m.address())]);
    rig.settle();
    assert_eq!(rig.a.scq.all()[0].status, WcStatus::Success);
    assert_eq!(rig.b.rcq.all().len(), 1);
}

#[test]
fn a_datagram_that_does_not_fit_consumes_no_receive() {
    let mut rig = Rig::new();
    let mut tx = rig.a.ud(QKEY, 0);
    let mut rx = rig.b.ud(QKEY, 0);
    let (m, key) = rig.b.memory(4096);
    let (out, out_key) = rig.a.memory(8192);
    let to = To { lid: Lid(2), qpn: rx.qpn, qkey: QKEY, grh: None };
    let piece = |n| data(n, out_key, out.address());
    rig.a.send_ud(&mut tx, &to, &[piece(10)]);
    rig.settle();
    assert_eq!(rig.b.drops(DropReason::NoReceive), 1);
    rig.b.receive(&mut rx, &[data(100, key, m.address())]);
    rig.a.send_ud(&mut tx, &to, &[piece(61)]);
    rig.a.send_ud(&mut tx, &to, &[piece(60)]);
    rig.settle();
    assert_eq!(rig.b.drops(DropReason::ReceiveTooShort), 1);
    assert_eq!(rig.b.rcq.all()[0].bytes, 100);
    rig.a.scq.all();
    rig.a.send_ud(&mut tx, &to, &[piece(4097)]);
    rig.settle();
    assert_eq!(rig.a.scq.all()[0].status, WcStatus::LocalLength);
}

#[test]
fn within_one_device() {
    let mut rig = Rig::new();
    let mut tx = rig.a.ud(QKEY, 1);
    let mut rx = rig.a.ud(QKEY, 2);
    let (m, key) = rig.a.memory(4096);
    m.put(0, b"to myself");
    rig.a.receive(&mut rx, &[data(100, key, m.address() + 1000)]);
    let to = To { lid: Lid(1), qpn: rx.qpn, qkey: QKEY, grh: None };
    rig.a.send_ud(&mut tx, &to, &[data(9, key, m.address())]);
    rig.settle();
    assert_eq!(rig.a.rcq.all()[0].bytes, 49);
    assert_eq!(m.get(1040, 9), b"to myself");
}

#[test]
fn sequence_numbers_start_as_the_host_sets_them() {
    let (mut wire, theirs) = CableEnd::pair().unwrap();
    let (_idle, other) = CableEnd::pair().unwrap();
    let mut rig = Rig::over(theirs, other);
    let mut tx = rig.a.qp(QpKind::Ud, 64, None, 1);
    for to in [
        QpTransition::UdToInit { pkey_index: 0, qkey: QKey(QKEY) },
        QpTransition::UdToReceive,
        QpTransition::UdToSend { sq_psn: Psn::new(0xff_fffe) },
    ] {
        rig.a.engine.modify_qp(tx.qpn, &to).unwrap();
    }
    let (m, key) = rig.a.memory(64);
    let to = To { lid: Lid(7), qpn: Qpn::new(9), qkey: QKEY, grh: None };
    for _ in 0..4 {
        rig.a.send_ud(&mut tx, &to, &[data(10, key, m.address())]);
    }
    rig.a.engine.step(rig.now);
    let mut seen = Vec::new();
    wire.receive(10, |bytes| seen.push(Packet::parse(bytes).unwrap().bth().psn.get()));
    assert_eq!(seen, [0xff_fffe, 0xff_ffff, 0, 1]);
}

#[test]
fn completions_of_queue_pair_1_have_the_pkey_and_others_its_index() {
    let mut rig = Rig::new();
    let key_of = |index: u16| PKey(0x8100 + index);
    for index in 1..6 {
        rig.a.engine.set_pkey(PORT, index, key_of(index)).unwrap();
        rig.b.engine.set_pkey(PORT, index, key_of(index)).unwrap();
    }
    let mut open = |host: u8, kind, index, qkey: QKey| {
        let host = if host == 0 { &mut rig.a } else { &mut rig.b };
        let qp = host.qp(kind, 64, None, 1);
        for to in [
            QpTransition::UdToInit { pkey_index: index, qkey },
            QpTransition::UdToReceive,
            QpTransition::UdToSend { sq_psn: Psn::new(0) },
        ] {
            host.engine.modify_qp(qp.qpn, &to).unwrap();
        }
        qp
    };
    let mut tx = open(0, QpKind::Ud, 4, QKey::GSI);
    let mut gsi = open(1, QpKind::Gsi, 0, QKey::GSI);
    let mut ud = open(1, QpKind::Ud, 4, QKey(QKEY));
    let ud_qpn = ud.qpn;
    let (m, key) = rig.b.memory(4096);
    let (from, from_key) = rig.a.memory(64);
    for (qp, to, qkey) in [(&mut gsi, Qpn::GSI, QKey::GSI.0), (&mut ud, ud_qpn, QKEY)] {
        rig.b.receive(qp, &[data(1000, key, m.address())]);
        let to = To { lid: Lid(2), qpn: to, qkey, grh: None };
        rig.a.send_ud(&mut tx, &to, &[data(10, from_key, from.address())]);
    }
    rig.settle();
    let said: Vec<_> = rig.b.rcq.all().iter().map(|wc| wc.imm).collect();
    assert_eq!(said, [u32::from(key_of(4).0), 4]);
}

/// A port that shares its LID with others: nothing leaves it without a GRH, and packets without one are for
/// another port.
#[test]
fn a_virtual_port_needs_a_grh_both_ways() {
    let mut rig = Rig::new();
    rig.b.engine.require_grh(PORT).unwrap();
    assert!(rig.b.engine.port_attributes(PORT).unwrap().grh_required);
    let (mut tx, mut rx) = (rig.a.ud(QKEY, 11), rig.b.ud(QKEY, 22));
    let (out, out_key) = rig.a.memory(4096);
    let (inn, in_key) = rig.b.memory(4096);
    rig.b.receive(&mut rx, &[data(400, in_key, inn.address())]);
    let plain = To { lid: Lid(2), qpn: rx.qpn, qkey: QKEY, grh: None };
    let route = |dgid| GlobalRoute { dgid, sgid_index: 0, flow_label: 0, hop_limit: 1, traffic_class: 0 };
    let routed = To { grh: Some(route(rig.b.gid())), ..plain.clone() };
    rig.a.send_ud(&mut tx, &plain, &[data(100, out_key, out.address())]);
    rig.settle();
    assert_eq!((rig.b.rcq.all().len(), rig.b.drops(DropReason::NoGrh)), (0, 1));
    rig.a.send_ud(&mut tx, &routed, &[data(100, out_key, out.address())]);
    rig.settle();
    assert_eq!(rig.b.rcq.all().iter().map(|w| (w.bytes, w.grh)).collect::<Vec<_>>(), [(140, true)]);

    // Its own sends; a group's address always has a GRH.
    let back = To { lid: Lid(1), qpn: tx.qpn, qkey: QKEY, grh: Some(route(rig.a.gid())) };
    rig.a.receive(&mut tx, &[data(400, out_key, out.address())]);
    rig.b.send_ud(&mut rx, &back, &[data(100, in_key, inn.address())]);
    rig.settle();
    assert_eq!((rig.a.rcq.all().len(), rig.b.scq.all().len()), (1, 1));
    rig.b.send_ud(&mut rx, &To { grh: None, ..back }, &[data(100, in_key, inn.address())]);
    rig.settle();
    let failed: Vec<_> = rig.b.scq.all().iter().map(|w| (w.opcode, w.status)).collect();
    let connection = RcToReceive {
        av: local(Lid(1)),
        path_mtu: Mtu::B1024,
        dest_qpn: Qpn::new(7),
        rq_psn: Psn::new(0),
        min_rnr_timer: 0,
    };
    let rc = rig.b.qp(QpKind::Rc, 16, None, 0);
    rig.b.engine.modify_qp(rc.qpn, &QpTransition::RcToInit { pkey_index: 0 }).unwrap();
    let refused = rig.b.engine.modify_qp(rc.qpn, &QpTransition::RcToReceive(connection));
    assert!(matches!(refused, Err(HcaError::Environment(_))), "{refused:?}");
    let av = AddressVector { grh: Some(route(rig.a.gid())), ..connection.av };
    rig.b.engine.modify_qp(rc.qpn, &QpTransition::RcToReceive(RcToReceive { av, ..connection })).unwrap();
    assert_eq!(
        (failed, rig.a.rcq.all().len()),
        (vec![(REQ_ERR, WcStatus::LocalQpOperation)], 0),
        "refused, not sent"
    );
}

/// Subnet administration is reached by its well-known GUID only at the port with the subnet manager.
#[test]
fn the_guid_of_subnet_administration_is_that_of_the_managers_port() {
    let mut rig = Rig::new();
    let (mut tx, mut rx) = (rig.a.ud(QKEY, 11), rig.b.ud(QKEY, 22));
    let (out, out_key) = rig.a.memory(4096);
    let (inn, in_key) = rig.b.memory(4096);
    for _ in 0..2 {
        rig.b.receive(&mut rx, &[data(400, in_key, inn.address())]);
    }
    let dgid = Gid::new(Gid::DEFAULT_PREFIX, Gid::SUBNET_ADMINISTRATION);
    let grh = Some(GlobalRoute { dgid, sgid_index: 0, flow_label: 0, hop_limit: 0, traffic_class: 0 });
    let to = To { lid: Lid(2), qpn: rx.qpn, qkey: QKEY, grh };
    for (manager, arrived) in [(false, 0), (true, 1)] {
        let value = if manager { Capabilities::SM } else { Capabilities::empty() };
        rig.b.engine.set_capabilities(PORT, Capabilities::SM, value).unwrap();
        rig.a.send_ud(&mut tx, &to, &[data(100, out_key, out.address())]);
        rig.settle();
        assert_eq!(rig.b.rcq.all().len(), arrived, "{manager}");
    }
    assert_eq!(rig.b.drops(DropReason::NotOurGid), 1);
}
