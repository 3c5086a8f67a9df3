//! Connections: both directions, refusals, faults, switching modes, the end.

use hca::QpState;
use ib_wire::cm::{AttributeId, Message, RejectReason};
use ib_wire::ipoib::AddressFlags;

use super::fabric::{Fabric, ms, secs};
use crate::link::{CloseReason, Event, Mode, WorkerIndex, WorkerNote};

fn pair(seed: u64) -> Fabric {
    let mut f = Fabric::new(seed);
    f.add(1, |_| {});
    f.add(1, |_| {});
    f.run(ms(100));
    f
}

fn connected(seed: u64) -> Fabric {
    let mut f = pair(seed);
    f.connect();
    f
}

#[test]
fn one_connection_for_each_direction() {
    let mut f = connected(1);
    for n in 0..2 {
        assert_eq!((f.nodes[n].live(true), f.nodes[n].live(false)), (1, 1));
        assert!(f.address(n, 0).flags.has_rc());
        let c = f.nodes[n].link.counters();
        assert_eq!((c.connections_opened, c.connections_accepted, c.dials), (1, 1, 1));
        let ups = f.nodes[n].events.iter().filter(|e| matches!(e, Event::ConnectionUp { .. })).count();
        assert_eq!(ups, 2);
    }
    let path = f.nodes[0].table.get(f.nodes[1].ip).and_then(|n| n.rc(0)).expect("connected");
    assert_eq!(path.mtu, 65_524);
    assert_eq!(path.slot.0, 10, "the first slot that the link was given");
    // The connections stay while they are used.
    for _ in 0..40 {
        f.use_by(0, 0, 1);
        f.use_by(1, 0, 0);
        f.receive_all();
        f.run(secs(20));
    }
    f.assert_connected(0, 0, 1);
    assert_eq!(f.nodes[0].created.len(), 2);
}

#[test]
fn handshakes_survive_loss() {
    for seed in 0..10 {
        let mut f = pair(seed);
        f.loss = 80;
        for _ in 0..60 {
            f.resolve(0, 1);
            f.use_by(0, 0, 1);
            f.use_by(1, 0, 0);
            f.run(secs(2));
        }
        f.loss = 0;
        f.run(secs(30));
        f.use_by(0, 0, 1);
        f.use_by(1, 0, 0);
        f.run(secs(30));
        f.assert_connected(0, 0, 1);
        f.assert_connected(1, 0, 0);
    }
}

#[test]
fn slow_devices_change_nothing() {
    let mut f = pair(5);
    f.nodes[0].lazy = true;
    f.nodes[1].lazy = true;
    f.resolve(0, 1);
    f.run(ms(500));
    f.use_by(1, 0, 0);
    f.run(ms(500));
    f.assert_connected(0, 0, 1);
    f.assert_connected(1, 0, 0);
}

#[test]
fn smaller_receive_mtu_of_the_peer_is_obeyed() {
    let mut f = Fabric::new(1);
    f.add(1, |_| {});
    f.add(1, |s| s.receive_mtu = 9000);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(ms(200));
    let path = f.nodes[0].table.get(f.nodes[1].ip).and_then(|n| n.rc(0)).expect("connected");
    assert_eq!(path.mtu, 9000);
}

#[test]
fn each_worker_dials_for_itself() {
    let mut f = Fabric::new(1);
    f.add(3, |_| {});
    f.add(2, |_| {});
    f.run(ms(100));
    for w in 0..3 {
        f.resolve_by(0, w, 1);
        f.run(ms(200));
    }
    for w in 0..3 {
        f.assert_connected(0, w, 1);
    }
    // The peer's ARP answer names its first worker.
    assert!(f.nodes[1].link.connections(f.now).iter().all(|c| c.worker == WorkerIndex(0)));
    assert_eq!(f.nodes[1].live(true), 3);
}

#[test]
fn addresses_of_one_peer_share_a_connection() {
    let mut f = connected(1);
    let peer = f.address(1, 0);
    let now = f.now;
    let from = hca::UdSource {
        qpn: peer.qpn,
        slid: f.nodes[1].facts.lid,
        sl: ib_wire::ServiceLevel::new(0),
        dlid_path_bits: 0,
        pkey_index: 0,
        has_grh: false,
        multicast: false,
    };
    let (second, own_ip) = ([10, 0, 5, 5].into(), f.nodes[0].ip);
    f.nodes[0].link.reply(
        now,
        WorkerIndex(0),
        own_ip,
        crate::link::Asker { hardware: peer, lid: from.slid },
        second,
    );
    f.nodes[0].link.handle_arp(
        now,
        WorkerIndex(0),
        &from,
        ib_wire::ipoib::Arp::request(peer, second, own_ip),
    );
    f.nodes[0].link.handle_used(now, WorkerIndex(0), &[], &[second.into()]);
    f.run(ms(100));
    assert_eq!(f.nodes[0].live(false), 1);
    let first = f.nodes[0].table.get(f.nodes[1].ip).and_then(|n| n.rc(0));
    assert_eq!(f.nodes[0].table.get(second).and_then(|n| n.rc(0)), first);
}

#[test]
fn a_datagram_peer_is_never_dialled() {
    let mut f = Fabric::new(1);
    f.add(1, |_| {});
    f.add(1, |s| s.mode = Mode::Datagram);
    f.run(ms(100));
    f.resolve(0, 1);
    f.resolve(1, 0);
    f.run(secs(5));
    assert_eq!(f.nodes[0].link.counters().dials, 0);
    assert!(f.nodes[0].table.get(f.nodes[1].ip).is_some_and(|n| n.ud.is_some() && !n.dial));
    assert!(f.cm_mads.is_empty());
}

/// Reasons after which the same request would be rejected again.
const FINAL: [u16; 15] = [5, 9, 11, 18, 19, 20, 21, 22, 23, 24, 25, 27, 29, 31, 33];
/// Reasons that concern the path.
const PATH: [u16; 8] = [12, 13, 14, 15, 16, 17, 26, 32];

#[test]
fn each_rejection_is_bounded_and_leaves_nothing() {
    // The last two are not reasons of the IBA.
    for code in (1..=33).chain([34, 0x8000]) {
        let reason = RejectReason::from_code(code);
        let mut f = pair(u64::from(code));
        f.refuse_request = Some(Box::new(move |_| Some(reason)));
        f.resolve(0, 1);
        f.run(ms(600));
        let requests = |f: &Fabric| {
            f.cm_mads.iter().filter(|m| m.header().attribute == AttributeId::Request.code()).count()
        };
        let c = *f.nodes[0].link.counters();
        assert_eq!(c.connections_opened, 0, "{reason:?}");
        assert_eq!(f.nodes[0].link.cm_counters().rejects_received(reason), requests(&f) as u64, "{reason:?}");
        if FINAL.contains(&code) {
            assert_eq!((requests(&f), c.dial_rejected_for_good), (1, 1), "{reason:?}");
            for _ in 0..20 {
                f.use_by(0, 0, 1);
                f.run(secs(10));
            }
            assert_eq!(requests(&f), 1, "{reason:?}: 200 s later");
        } else {
            assert!(c.dial_rejected >= 2 && c.dial_rejected_for_good == 0, "{reason:?}: {c:?}");
            assert!(requests(&f) <= 10, "{reason:?}: {} requests in 0.6 s", requests(&f));
        }
        f.run(secs(2));
        let paths = f.nodes[0].link.counters().path_queries;
        assert_eq!(paths > 1, PATH.contains(&code), "{reason:?}: {paths} path lookups");
        let fallbacks = if reason == RejectReason::InvalidServiceId { c.dials } else { 0 };
        assert_eq!(c.service_id_fallbacks, fallbacks, "{reason:?}");
        let down = |e: &Event| {
            matches!(e, Event::ConnectionDown { passive: false, reason, peer, .. }
            if *reason == CloseReason::Rejected(code) && peer.is_same_as(f.address(1, 0)))
        };
        assert!(f.nodes[0].events.iter().any(down), "{reason:?}");
        let entry = f.nodes[0].table.get(f.nodes[1].ip).expect("known");
        assert!(entry.rc(0).is_none() && entry.ud.is_some(), "datagrams continue");
        let now = f.now;
        f.nodes[0].link.shutdown(now);
        f.run(secs(30));
        f.assert_clean(0);
    }
}

#[test]
fn a_final_rejection_holds_until_the_peer_changes_its_flags() {
    let mut f = pair(1);
    f.refuse_request = Some(Box::new(|_| Some(RejectReason::Unsupported)));
    f.resolve(0, 1);
    f.run(secs(2));
    f.refuse_request = None;
    let dials = |f: &Fabric| f.nodes[0].link.counters().dials;
    assert_eq!(dials(&f), 1);
    for mode in [Mode::Datagram, Mode::Connected] {
        let now = f.now;
        let peer = &mut f.nodes[1];
        peer.link.set_mode(now, mode);
        peer.link.announce(now, WorkerIndex(0), peer.ip);
        f.run(secs(1));
    }
    f.use_by(0, 0, 1);
    f.run(secs(1));
    f.assert_connected(0, 0, 1);
    assert_eq!(dials(&f), 2);
}

#[test]
fn rfc_service_id_is_tried_second_and_remembered() {
    use ib_wire::cm::ipoib::ServiceIdForm::{self, Linux, Rfc4755};
    let form = |id| ServiceIdForm::of(id).expect("IPoIB").0;
    let mut f = pair(1);
    f.refuse_request =
        Some(Box::new(move |r| (form(r.service_id) == Linux).then_some(RejectReason::InvalidServiceId)));
    f.resolve(0, 1);
    f.run(ms(200));
    f.assert_connected(0, 0, 1);
    let qpn = *f.nodes[0].qps.iter().find(|(_, q)| !q.passive).expect("active").0;
    let now = f.now;
    f.nodes[0].link.handle_note(now, qpn, WorkerNote::Fault);
    f.run(secs(2));
    f.assert_connected(0, 0, 1);
    let forms: Vec<_> = f
        .cm_mads
        .iter()
        .filter_map(|m| match Message::parse(&m.bytes) {
            Ok((_, Message::Request(request))) => Some(form(request.service_id)),
            _ => None,
        })
        .collect();
    assert_eq!(forms, [Linux, Rfc4755, Rfc4755]);
    assert_eq!(f.nodes[0].link.counters().service_id_fallbacks, 1);
    assert_eq!(f.nodes[0].link.counters().connections_opened, 2);
}

#[test]
fn a_fault_closes_and_redials() {
    let mut f = connected(2);
    let qpn = *f.nodes[0].qps.iter().find(|(_, q)| !q.passive).expect("active").0;
    let now = f.now;
    f.nodes[0].link.handle_note(now, qpn, WorkerNote::Fault);
    f.settle();
    let entry = f.nodes[0].table.get(f.nodes[1].ip).expect("known");
    assert!(entry.rc(0).is_none() && entry.ud.is_some(), "datagrams in between");
    f.run(secs(2));
    f.assert_connected(0, 0, 1);
    assert!(!f.nodes[0].qps.contains_key(&qpn), "the old one is gone");
    assert_eq!(f.nodes[0].link.counters().connections_faulted, 1);
    assert_eq!((f.nodes[1].live(true), f.nodes[1].live(false)), (1, 1));
}

#[test]
fn a_peer_that_vanishes_takes_its_connections_along() {
    let mut f = connected(3);
    f.nodes[1].alive = false;
    for _ in 0..20 {
        f.use_by(0, 0, 1);
        f.run(secs(5));
    }
    assert!(f.nodes[0].table.get(f.nodes[1].ip).is_none());
    assert_eq!(f.nodes[0].live(false), 0);
    f.run(secs(600));
    f.assert_clean(0);
}

#[test]
fn another_queue_pair_of_the_peer_replaces_path_and_connection() {
    let mut f = connected(4);
    let old = f.address(1, 0);
    f.nodes[1].alive = false;
    // As if the peer's driver was reloaded: same GID and IP, but in our test it is another node with another
    // queue pair.
    let n = f.add(1, |s| s.workers[0].ud_qpn = ib_wire::Qpn::new(0x7777));
    f.nodes[n].facts.gid = f.nodes[1].facts.gid;
    let (ip, facts, now) = (f.nodes[1].ip, f.nodes[n].facts, f.now);
    f.nodes[n].ip = ip;
    f.nodes[n].link.handle_port(now, facts);
    f.run(ms(100));
    f.nodes[n].link.announce(now, WorkerIndex(0), ip);
    f.run(secs(1));
    let new = f.address(n, 0);
    let changed = Event::NeighbourChanged { ip: ip.into(), old, new };
    assert!(f.nodes[0].events.contains(&changed));
    f.use_by(0, 0, n);
    f.run(secs(12));
    f.use_by(0, 0, n);
    f.run(secs(2));
    f.assert_connected(0, 0, n);
    assert_eq!(f.nodes[0].live(false), 1);
}

#[test]
fn to_datagram_and_back_under_way() {
    let mut f = connected(5);
    let now = f.now;
    f.nodes[0].link.set_mode(now, Mode::Datagram);
    f.settle();
    let entry = f.nodes[0].table.get(f.nodes[1].ip).expect("known");
    assert!(entry.rc(0).is_none() && !entry.dial && entry.ud.is_some());
    let active = f.nodes[0].qps.values().find(|q| !q.passive).expect("not yet closed");
    assert_eq!(active.state, QpState::Rts, "sent packets are still in flight");
    f.run(secs(1));
    assert_eq!((f.nodes[0].live(false), f.nodes[0].live(true)), (0, 1), "the peer still may send");
    assert_eq!(f.nodes[1].live(true), 0);
    assert!(!f.address(0, 0).flags.has_rc());
    // The peer whose connection fails queries the neighbour, learns that connected mode is over, and no
    // longer dials.
    let dials = f.nodes[1].link.counters().dials;
    let qpn = *f.nodes[1].qps.iter().find(|(_, q)| !q.passive).expect("active").0;
    let now = f.now;
    f.nodes[1].link.handle_note(now, qpn, WorkerNote::Fault);
    f.run(secs(5));
    assert_eq!(f.nodes[1].live(false), 0);
    assert_eq!(f.nodes[1].link.counters().dials, dials);
    let now = f.now;
    f.nodes[0].link.set_mode(now, Mode::Connected);
    f.run(secs(1));
    f.assert_connected(0, 0, 1);
    // The next answer to the peer announces connected mode again.
    f.use_by(1, 0, 0);
    f.run(secs(20));
    f.use_by(1, 0, 0);
    f.run(secs(15));
    f.assert_connected(1, 0, 0);
}

#[test]
fn switching_modes_in_the_middle_of_handshakes() {
    for step in 0..30 {
        let mut f = pair(step);
        f.nodes[0].lazy = true;
        f.resolve(0, 1);
        f.run(ms(step));
        let now = f.now;
        f.nodes[0].link.set_mode(now, Mode::Datagram);
        f.run(ms(step / 2));
        let now = f.now;
        f.nodes[0].link.set_mode(now, Mode::Connected);
        f.run(secs(1));
        f.use_by(0, 0, 1);
        f.run(secs(5));
        f.use_by(0, 0, 1);
        f.run(secs(20));
        f.assert_connected(0, 0, 1);
        assert_eq!(f.nodes[0].live(false), 1);
    }
}

#[test]
fn shutdown_leaves_nothing() {
    let mut f = connected(6);
    f.cm_mads.clear();
    let now = f.now;
    f.nodes[0].link.shutdown(now);
    f.run(secs(2));
    assert!(f.nodes[0].link.is_stopped());
    assert_eq!(f.nodes[0].events.iter().filter(|e| **e == Event::Stopped).count(), 1);
    f.assert_clean(0);
    assert!(f.nodes[0].attached.is_empty());
    assert!(f.nodes[0].table.is_empty());
    assert!(f.members.iter().all(|(_, port)| *port != f.nodes[0].facts.gid));
    let dreqs = f.cm_mads.iter().filter(|m| m.header().attribute == AttributeId::DisconnectRequest.code());
    assert!(dreqs.count() >= 2);
    f.run(secs(1));
    assert_eq!((f.nodes[1].live(true), f.nodes[1].live(false)), (0, 0), "the peer was notified");
    // No further events follow.
    f.nodes[0].take_events();
    f.resolve(0, 1);
    f.run(secs(100));
    assert!(f.nodes[0].events.is_empty());
}

#[test]
fn shutdown_does_not_wait_for_ever() {
    let mut f = connected(7);
    f.nodes[1].alive = false;
    f.sa_up = false;
    f.nodes[0].mute = true;
    let now = f.now;
    f.nodes[0].link.shutdown(now);
    f.run(secs(16));
    assert!(f.nodes[0].link.is_stopped());
    f.assert_clean(0);
    assert!(f.nodes[0].link.counters().teardown_timeouts >= 2);
}

#[test]
fn shutdown_at_any_moment() {
    for step in 0..40 {
        let mut f = Fabric::new(step);
        f.add(2, |_| {});
        f.add(1, |_| {});
        f.nodes[0].lazy = true;
        f.run(ms(20));
        f.resolve(0, 1);
        f.resolve_by(0, 1, 1);
        f.run(ms(step));
        let now = f.now;
        f.nodes[0].link.shutdown(now);
        f.run(secs(12));
        assert!(f.nodes[0].link.is_stopped(), "step {step}");
        f.assert_clean(0);
        assert!(f.nodes[0].attached.is_empty());
    }
}

#[test]
fn a_device_that_refuses_is_tried_again_later() {
    let mut f = pair(8);
    f.nodes[0].refuse_create = true;
    f.resolve(0, 1);
    f.run(secs(1));
    assert!((2..=6).contains(&f.nodes[0].link.counters().dials));
    f.nodes[0].refuse_create = false;
    f.nodes[0].refuse_receive = true;
    f.run(secs(3));
    assert_eq!(f.nodes[0].link.counters().connections_opened, 0);
    f.nodes[0].refuse_receive = false;
    f.use_by(0, 0, 1);
    f.run(secs(17));
    f.assert_connected(0, 0, 1);
    f.run(secs(6));
    assert_eq!(f.nodes[0].qps.len(), 1);
}

#[test]
fn a_peer_without_the_flag_loses_its_connection() {
    let mut f = connected(9);
    let mut peer = f.address(1, 0);
    peer.flags = AddressFlags::NONE;
    let from = hca::UdSource {
        qpn: peer.qpn,
        slid: f.nodes[1].facts.lid,
        sl: ib_wire::ServiceLevel::new(0),
        dlid_path_bits: 0,
        pkey_index: 0,
        has_grh: false,
        multicast: true,
    };
    let arp = ib_wire::ipoib::Arp::request(peer, f.nodes[1].ip, f.nodes[1].ip);
    let now = f.now;
    f.nodes[0].link.handle_arp(now, WorkerIndex(0), &from, arp);
    f.run(secs(1));
    assert_eq!(f.nodes[0].live(false), 0);
    assert!(f.nodes[0].table.get(f.nodes[1].ip).is_some_and(|n| !n.dial && n.rc(0).is_none()));
}
