//! Effects of port events.

use std::net::Ipv4Addr;

use hca::{AsyncEvent, PortNumber, PortState};
use ib_wire::sa::attribute;
use ib_wire::{Lid, Mtu};

use super::fabric::{Fabric, ms, secs};
use crate::link::{CloseReason, Event, PortEvent, PortFacts, Waiting, WorkerIndex};

const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const JOIN: (u16, u8) = (attribute::MC_MEMBER_RECORD, 2);
const PATH: (u16, u8) = (attribute::PATH_RECORD, 1);

/// Two nodes, connected in both directions, in two groups each.
fn busy() -> Fabric {
    let mut f = Fabric::new(1);
    f.add(1, |_| {});
    f.add(1, |_| {});
    let now = f.now;
    for node in &mut f.nodes {
        assert!(node.link.join(now, ALL_HOSTS));
    }
    f.run(ms(100));
    f.connect();
    f.forget_past();
    f
}

fn event(f: &mut Fabric, event: PortEvent) {
    let (facts, now) = (f.nodes[0].facts, f.now);
    f.nodes[0].link.handle_port_event(now, event, facts);
    f.run(ms(100));
}

#[test]
fn events_have_their_severities() {
    let p = PortNumber(1);
    for (event, weight) in [
        (AsyncEvent::SmChange(p), PortEvent::Light),
        (AsyncEvent::ClientReregister(p), PortEvent::Light),
        (AsyncEvent::GidChange(p), PortEvent::Light),
        (AsyncEvent::PortActive(p), PortEvent::Normal),
        (AsyncEvent::PortError(p), PortEvent::Normal),
        (AsyncEvent::LidChange(p), PortEvent::Normal),
        (AsyncEvent::PKeyChange(p), PortEvent::Heavy),
    ] {
        assert_eq!(PortEvent::from_async(&event), Some((p, weight)));
    }
    assert_eq!(PortEvent::from_async(&AsyncEvent::Fatal), None);
}

#[test]
fn light_joins_and_asks_again_and_keeps_what_works() {
    let mut f = busy();
    // The new subnet manager knows of no group.
    f.members.clear();
    f.mlids.clear();
    f.next_mlid = 0xc100;
    event(&mut f, PortEvent::Light);
    assert_eq!(f.requests[&JOIN], 2);
    assert_eq!(f.requests[&PATH], 1);
    assert_eq!(f.members.len(), 2);
    assert!(f.nodes[0].attached.iter().all(|(_, mlid)| mlid.0 > 0xc100), "{:?}", f.nodes[0].attached);
    assert_eq!(f.nodes[0].attached.len(), 2);
    assert!(f.nodes[0].events.is_empty(), "{:?}", f.nodes[0].events);
    f.assert_connected(0, 0, 1);
}

#[test]
fn light_with_a_silent_subnet_manager_keeps_the_link_up() {
    let mut f = busy();
    f.sa_up = false;
    event(&mut f, PortEvent::Light);
    f.run(secs(30));
    // An observer of the counter sees that the silence continues.
    for _ in 0..5 {
        let before = f.nodes[0].link.counters().sa_timeouts;
        f.run(secs(60));
        assert!(f.nodes[0].link.state().up);
        assert!(f.nodes[0].link.counters().sa_timeouts > before, "{before}");
    }
    f.sa_up = true;
    f.members.clear();
    f.run(secs(20));
    assert_eq!(f.members.iter().filter(|(_, port)| *port == f.nodes[0].facts.gid).count(), 2);
}

#[test]
fn each_waiting_condition_is_reported_once() {
    let mut f = Fabric::new(3);
    f.sa_up = false;
    f.add(1, |_| {});
    f.run(secs(60));
    let node = &mut f.nodes[0];
    assert_eq!(node.link.waits_for(), Some(Waiting::Answer));
    let (c, active) = (*node.link.counters(), node.facts);
    assert!(c.sa_timeouts >= 4 && c.sa_timeouts == c.join_failures, "{c:?}");
    // Each attempt sends three datagrams; the back-off is 16 s at most.
    assert!(c.joins <= 12, "{c:?}");
    let now = f.now;
    for (state, pkey_index) in [
        (PortState::Down, None),
        (PortState::Init, None),
        (PortState::Active, None),
        (PortState::Active, Some(0)),
    ] {
        for _ in 0..3 {
            node.link.handle_port(now, PortFacts { state, pkey_index, ..active });
        }
    }
    f.settle();
    f.sa_up = true;
    f.run(secs(10));
    assert!(f.nodes[0].link.state().up);
    assert_eq!(f.nodes[0].link.waits_for(), None);
    let reported: Vec<_> = f.nodes[0]
        .take_events()
        .into_iter()
        .filter_map(|e| if let Event::Waiting(why) = e { Some(why) } else { None })
        .collect();
    assert_eq!(reported, [Waiting::Answer, Waiting::Cable, Waiting::SubnetManager, Waiting::PKey]);
}

#[test]
fn a_group_whose_mtu_exceeds_the_ports_is_named_with_both_and_the_remedy() {
    let mut f = Fabric::new(3);
    f.add(1, |_| {});
    let broadcast = f.nodes[0].link.groups().iter().find(|g| g.ip.is_broadcast()).expect("wanted").mgid;
    f.refuse_join.insert(broadcast);
    let now = f.now;
    let denied = Waiting::Admission { status: 0x0700, rate: Some(10_000) };
    for (mtu, why) in [(Mtu::B2048, Waiting::GroupMtu { group: 4096, port: 2048 }), (Mtu::B4096, denied)] {
        f.nodes[0].facts.mtu = mtu;
        let facts = f.nodes[0].facts;
        f.nodes[0].link.handle_port(now, facts);
        f.run(secs(60));
        assert_eq!(f.nodes[0].link.waits_for(), Some(why));
    }
    let reported: Vec<_> = f.nodes[0]
        .take_events()
        .into_iter()
        .filter_map(|e| if let Event::Waiting(why) = e { Some(why) } else { None })
        .collect();
    let group_mtu = Waiting::GroupMtu { group: 4096, port: 2048 };
    assert_eq!(reported, [group_mtu, denied], "each once, however often it is refused");
    let text = group_mtu.to_string();
    assert!(text.contains("4096") && text.contains("2048") && text.contains("subnet manager"), "{text}");
    f.refuse_join.clear();
    f.run(secs(60));
    assert!(f.nodes[0].link.state().up);
}

#[test]
fn a_refusal_to_join_is_named_with_its_status_and_a_remedy() {
    let mut f = Fabric::new(3);
    f.add(1, |_| {});
    let broadcast = f.nodes[0].link.groups().iter().find(|g| g.ip.is_broadcast()).expect("wanted").mgid;
    f.refuse_join.insert(broadcast);
    let rate = Some(10_000);
    // The status of the refusal; the status of the answer to the query of the group, if that is refused; the
    // waiting condition; its text.
    let cases: [(u8, Option<u8>, Waiting, &[&str]); 6] = [
        (
            6,
            Some(3),
            Waiting::NoGroup { status: 0x0600 },
            &["0x0600, insufficient components", "P_Key", "scope"],
        ),
        (
            6,
            Some(7),
            Waiting::Admission { status: 0x0600, rate: None },
            &["does not exist", "P_Key and scope"],
        ),
        (
            2,
            None,
            Waiting::Admission { status: 0x0200, rate },
            &["0x0200, invalid request", "10.0 Gb/s", "pkey"],
        ),
        (2, Some(7), Waiting::Admission { status: 0x0200, rate: None }, &["P_Key, scope, rate and MTU"]),
        (1, None, Waiting::Admission { status: 0x0100, rate }, &["0x0100, no resources", "multicast LID"]),
        (7, None, Waiting::Admission { status: 0x0700, rate }, &["0x0700, denied", "allow this port"]),
    ];
    for (status, query, why, words) in cases {
        (f.join_status, f.query_status) = (status, query);
        f.run(secs(60));
        assert_eq!(f.nodes[0].link.waits_for(), Some(why));
        let text = why.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    let reported: Vec<_> = f.nodes[0]
        .take_events()
        .into_iter()
        .filter_map(|e| if let Event::Waiting(why) = e { Some(why) } else { None })
        .collect();
    assert_eq!(reported, cases.map(|(.., why, _)| why), "each once, however often it is refused");
    f.refuse_join.clear();
    f.run(secs(60));
    assert!(f.nodes[0].link.state().up);
}

#[test]
fn light_with_a_refusal_takes_the_link_down() {
    let mut f = busy();
    let broadcast = f.nodes[0].link.groups().iter().find(|g| g.ip.is_broadcast()).expect("joined").mgid;
    f.refuse_join.insert(broadcast);
    event(&mut f, PortEvent::Light);
    assert!(!f.nodes[0].link.state().up);
    assert!(f.nodes[0].table.is_empty());
    f.refuse_join.clear();
    f.run(secs(20));
    assert!(f.nodes[0].link.state().up);
}

#[test]
fn down_and_up_again() {
    let mut f = busy();
    f.change_port(0, |p| p.state = PortState::Down);
    f.run(ms(100));
    let node = &f.nodes[0];
    assert!(node.events.contains(&Event::Down));
    let down = |e: &Event| {
        matches!(e, Event::ConnectionDown { passive: false, reason, .. }
        if *reason == CloseReason::LinkDown)
    };
    assert!(node.events.iter().any(down));
    assert!(node.attached.is_empty() && node.table.is_empty());
    let state = node.link.state();
    assert!(!state.up && state.broadcast.is_none() && state.groups.is_empty());
    f.run(secs(1));
    assert_eq!(f.nodes[0].live(false), 0);
    // A link that is down gets no requests.
    f.requests.clear();
    f.resolve(0, 1);
    f.run(secs(5));
    assert!(f.requests.is_empty());
    f.change_port(0, |p| p.state = PortState::Active);
    f.run(secs(1));
    assert!(f.nodes[0].events.contains(&Event::Up));
    assert_eq!(f.nodes[0].attached.len(), 2, "both groups");
    f.resolve(0, 1);
    f.run(secs(1));
    f.assert_connected(0, 0, 1);
    assert_eq!(f.nodes[1].live(true), 1, "the peer's remaining one was replaced");
}

#[test]
fn error_that_is_already_over_still_causes_a_flush() {
    let mut f = busy();
    event(&mut f, PortEvent::Normal);
    let events = f.nodes[0].take_events();
    let at = |e: &Event| events.iter().position(|x| x == e);
    assert!(at(&Event::Down).expect("down") < at(&Event::Up).expect("up"));
}

#[test]
fn another_lid_of_ours() {
    let mut f = busy();
    f.change_port(0, |p| p.lid = Lid(77));
    f.run(secs(1));
    assert!(f.nodes[0].events.contains(&Event::Up));
    f.resolve(0, 1);
    f.run(secs(1));
    f.assert_connected(0, 0, 1);
    // The other side saw the new LID in the ARP request.
    f.use_by(1, 0, 0);
    f.run(secs(20));
    f.use_by(1, 0, 0);
    f.run(secs(2));
    f.assert_connected(1, 0, 0);
}

#[test]
fn p_key_moved_gone_and_back() {
    let mut f = busy();
    event(&mut f, PortEvent::Heavy);
    assert!(f.nodes[0].events.is_empty(), "not our entry of the table");
    let before = f.nodes[0].created.clone();
    f.change_port(0, |p| p.pkey_index = Some(3));
    f.run(secs(1));
    assert_eq!(f.nodes[0].opened[&WorkerIndex(0)].0, 3);
    assert!(before.is_subset(&f.nodes[0].destroyed), "they were bound to the old index");
    assert!(f.nodes[0].link.state().up);
    f.change_port(0, |p| p.pkey_index = None);
    f.run(secs(1));
    assert!(!f.nodes[0].link.state().up);
    f.change_port(0, |p| p.pkey_index = Some(3));
    f.run(secs(1));
    assert!(f.nodes[0].link.state().up);
    f.resolve(0, 1);
    f.run(secs(1));
    f.assert_connected(0, 0, 1);
}

#[test]
fn no_answer_from_before_a_flush_counts() {
    let mut f = Fabric::new(9);
    f.add(1, |_| {});
    f.settle();
    // The answer to the first join is in flight when the port goes down.
    f.change_port(0, |p| p.state = PortState::Down);
    f.run(secs(1));
    assert!(!f.nodes[0].link.state().up);
    assert!(f.nodes[0].attached.is_empty());
    assert_eq!(f.nodes[0].link.0.mads_ignored(), 0, "it ends a join that was cancelled");
}

/// For each group, the broadcast group among them: the device refuses to attach to it for a while.
#[test]
fn a_group_that_the_device_does_not_attach_is_tried_again() {
    for group in [Ipv4Addr::BROADCAST, ALL_HOSTS] {
        let mut f = Fabric::new(1);
        f.add(1, |_| {});
        let mgid = |f: &Fabric| {
            let groups = f.nodes[0].link.groups();
            groups.iter().find(|info| info.ip == group).map(|info| info.mgid)
        };
        let now = f.now;
        assert!(f.nodes[0].link.join(now, ALL_HOSTS));
        let mgid = mgid(&f).expect("it wants the group");
        f.nodes[0].refuse_attach.insert(mgid);
        f.run(secs(100));
        let is_attached = |f: &Fabric| f.nodes[0].attached.iter().any(|(attached, _)| *attached == mgid);
        let failures = f.nodes[0].link.counters().attach_failures;
        // Doubling up to 16 s, each a quarter longer or shorter at most.
        assert!((8..=16).contains(&failures) && !is_attached(&f), "{group}: {failures} tries");
        f.nodes[0].refuse_attach.clear();
        f.run(secs(20));
        assert!(is_attached(&f), "{group}");
        assert_eq!(f.nodes[0].link.counters().attach_failures, failures);
        // It stays attached, and is detached once.
        f.run(secs(100));
        assert!(is_attached(&f));
        let facts = PortFacts { state: PortState::Down, ..f.nodes[0].facts };
        let now = f.now;
        f.nodes[0].link.handle_port(now, facts);
        f.run(secs(1));
        assert_eq!(f.nodes[0].attached.len(), 0);
    }
}
