//! Groups, ARP, paths, ageing.

use std::net::Ipv4Addr;

use ib_wire::sa::attribute;
use ib_wire::{Gid, Guid, Lid, QKey, Qpn};

use super::fabric::{Fabric, QKEY, SM_LID, ms, secs};
use crate::link::{Asker, Event, Mode, WorkerIndex, WorkerSettings};

fn datagram(n: u8) -> Fabric {
    let mut fabric = Fabric::new(1);
    for _ in 0..n {
        fabric.add(1, |s| s.mode = Mode::Datagram);
    }
    fabric
}

#[test]
fn broadcast_join_brings_the_link_up() {
    let mut f = datagram(1);
    assert!(f.nodes[0].link.join(f.now, Ipv4Addr::new(224, 0, 0, 1)));
    f.run(ms(100));
    let node = &f.nodes[0];
    assert_eq!(node.opened[&WorkerIndex(0)], (0, QKEY));
    assert_eq!(node.attached.len(), 2);
    assert!(node.events.contains(&Event::Up));
    let state = node.state.as_ref().expect("published");
    assert!(state.up);
    assert_eq!(state.ud_mtu, 4096);
    assert_eq!(state.groups.len(), 1);
    let broadcast = state.broadcast.expect("joined");
    assert_eq!((broadcast.qpn, broadcast.qkey), (Qpn::MULTICAST, Some(QKEY)));
    assert_eq!(node.link.groups().iter().filter(|g| g.state == "joined").count(), 2);
    f.nodes[0].link.leave(f.now, Ipv4Addr::new(224, 0, 0, 1));
    f.run(ms(100));
    assert_eq!(f.nodes[0].attached.len(), 1);
    assert_eq!(f.members.len(), 1);
}

#[test]
fn arp_and_path_both_ways() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(ms(100));
    let (a, b) = (f.nodes[0].ip, f.nodes[1].ip);
    let there = f.nodes[0].table.get(b).expect("resolved");
    let ud = there.ud.expect("path");
    assert_eq!((ud.av.dlid, ud.qkey), (f.nodes[1].facts.lid, Some(QKEY)));
    assert!(ud.av.grh.is_none(), "one subnet needs no GRH");
    assert_eq!(ud.av.src_path_bits, 0);
    assert!(!there.dial);
    assert!(f.nodes[1].table.get(a).expect("the requester is known").ud.is_some());
    assert!(f.nodes[0].events.iter().any(|e| matches!(e, Event::NeighbourResolved { ip, .. } if *ip == b)));
    // One lookup each, however often the address is queried.
    f.resolve(0, 1);
    f.run(secs(1));
    assert_eq!(f.requests[&(attribute::PATH_RECORD, 1)], 2);
}

/// A host that queries many addresses at once gets all answers, though the path to it is not known yet.
#[test]
fn answers_wait_for_the_path_to_the_requester() {
    let mut f = datagram(2);
    f.run(ms(100));
    let asker = Asker { hardware: f.address(1, 0), lid: f.nodes[1].facts.lid };
    let to = f.nodes[1].ip;
    for n in 0..40 {
        for _ in 0..2 {
            f.nodes[0].link.answer(f.now, WorkerIndex(0), Ipv4Addr::new(10, 9, 0, n), asker, to);
        }
    }
    f.run(ms(100));
    let counters = f.nodes[0].link.counters();
    assert_eq!((counters.arp_replies_sent, counters.arp_dropped), (40, 0), "each once");
}

/// Packets for ports without an answer from subnet administration fill the queue space that all paths share.
/// Every other port keeps its own share.
#[test]
fn packets_that_wait_for_paths_are_bounded() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.sa_up = false;
    let honest = Asker { hardware: f.address(1, 0), lid: f.nodes[1].facts.lid };
    let to = f.nodes[1].ip;
    let mut offered = 0;
    for lid in 0..16 {
        for port in 0..16 {
            for n in 0..80 {
                let mut asker = honest;
                asker.lid = Lid(100 + lid);
                asker.hardware.gid =
                    Gid::new(Gid::DEFAULT_PREFIX, Guid(u64::from(lid) << 8 | port | 0x10_0000));
                f.nodes[0].link.answer(f.now, WorkerIndex(0), Ipv4Addr::new(10, 9, 0, n), asker, to);
                offered += 1;
            }
        }
    }
    let kept = offered - f.nodes[0].link.counters().arp_dropped;
    assert_eq!(kept, 4096 + 3 * 16 * 16);
    for n in 0..4 {
        f.nodes[0].link.answer(f.now, WorkerIndex(0), Ipv4Addr::new(10, 9, 0, n), honest, to);
    }
    assert_eq!(f.nodes[0].link.counters().arp_dropped, offered - kept + 1);
    // When they are dropped the space is free again.
    f.run(secs(120));
    let before = f.nodes[0].link.counters().arp_dropped;
    assert!(before > kept, "{before}");
    for n in 0..40 {
        f.nodes[0].link.answer(f.now, WorkerIndex(0), Ipv4Addr::new(10, 9, 1, n), honest, to);
    }
    assert_eq!(f.nodes[0].link.counters().arp_dropped, before);
}

#[test]
fn reported_neighbour_has_its_path_and_is_not_queried_until_it_is_used() {
    let mut f = datagram(2);
    f.run(ms(100));
    let (ip, hardware) = (f.nodes[1].ip, f.nodes[1].link.state().addresses[0]);
    f.nodes[0].link.handle_told(f.now, ip, hardware);
    f.run(ms(100));
    assert!(f.nodes[0].table.get(ip).expect("published").ud.is_some());
    // Reported again and again, it stays, and is not queried.
    let queries = f.nodes[0].link.counters().arp_requests_sent;
    for _ in 0..20 {
        f.run(secs(10));
        f.nodes[0].link.handle_told(f.now, ip, hardware);
    }
    assert!(f.nodes[0].table.get(ip).is_some());
    assert_eq!(f.nodes[0].link.counters().arp_requests_sent, queries);
    assert!(f.nodes[1].table.get(f.nodes[0].ip).is_none());
    // Without further reports it is removed.
    f.run(secs(1000));
    assert!(f.nodes[0].table.get(ip).is_none());
    let own = f.nodes[0].link.state().addresses[0];
    f.nodes[0].link.handle_told(f.now, ip, own);
    f.run(ms(100));
    assert!(f.nodes[0].table.get(ip).is_none(), "no other host has our own address");
}

#[test]
fn joins_and_lookups_survive_loss() {
    for seed in 0..10 {
        let mut f = Fabric::new(seed);
        f.loss = 100;
        f.add(1, |s| s.mode = Mode::Datagram);
        f.add(1, |s| s.mode = Mode::Datagram);
        f.run(secs(60));
        assert!(f.nodes.iter().all(|n| n.link.state().up), "seed {seed}");
        for _ in 0..20 {
            f.resolve(0, 1);
            f.run(secs(1));
        }
        let b = f.nodes[1].ip;
        assert!(f.nodes[0].table.get(b).is_some_and(|n| n.ud.is_some()), "seed {seed}");
    }
}

#[test]
fn scan_does_not_prevent_heard_hosts_from_being_resolved() {
    let mut f = datagram(2);
    f.run(ms(100));
    let [own, ip] = [f.nodes[0].ip, f.nodes[1].ip];
    f.nodes[1].link.announce(f.now, WorkerIndex(0), ip);
    f.run(ms(50));
    assert!(f.nodes[0].link.neighbours(f.now).is_empty(), "hearing it does not make it a neighbour");
    for n in 0..10_000u32 {
        let nobody = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 9, 0, 0)) + n);
        f.nodes[0].link.resolve(f.now, WorkerIndex(0), own, nobody);
    }
    assert!(f.nodes[0].link.counters().resolve_limited > 9000);
    f.resolve(0, 1);
    f.run(ms(100));
    assert!(f.nodes[0].table.get(ip).is_some_and(|n| n.ud.is_some()));
}

#[test]
fn no_answer() {
    let mut f = datagram(1);
    f.run(ms(100));
    let ip = Ipv4Addr::new(10, 9, 9, 9);
    for _ in 0..10 {
        f.nodes[0].link.resolve(f.now, WorkerIndex(0), Ipv4Addr::new(10, 0, 0, 1), ip);
    }
    assert_eq!(f.nodes[0].link.counters().resolve_limited, 9);
    f.run(secs(4));
    assert!(f.nodes[0].events.contains(&Event::NeighbourUnreachable { ip: ip.into() }));
    assert_eq!(f.nodes[0].link.counters().arp_requests_sent, 3);
    f.run(secs(10));
    assert!(f.nodes[0].link.neighbours(f.now).is_empty());
}

#[test]
fn a_used_neighbour_is_probed_and_an_idle_one_forgotten() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    let b = f.nodes[1].ip;
    for _ in 0..12 {
        f.use_by(0, 0, 1);
        f.run(secs(10));
        assert!(f.nodes[0].table.get(b).is_some());
    }
    let probes = f.nodes[0].link.counters().arp_requests_sent - 1;
    assert!((2..=5).contains(&probes), "{probes} probes in two minutes");
    f.run(secs(120));
    assert!(f.nodes[0].table.get(b).is_none());
    assert!(f.nodes[0].link.neighbours(f.now).is_empty());
    assert_eq!(f.nodes[0].link.paths.len(), 0);
}

#[test]
fn a_peer_that_vanishes_is_unreachable() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    let b = f.nodes[1].ip;
    f.nodes[1].alive = false;
    for _ in 0..5 {
        f.use_by(0, 0, 1);
        f.run(secs(10));
    }
    assert!(f.nodes[0].events.contains(&Event::NeighbourUnreachable { ip: b.into() }));
    assert!(f.nodes[0].table.get(b).is_none());
}

#[test]
fn peer_that_moves_silently_is_found_by_the_last_query() {
    let (before, after) = (Qpn::new(0x200), Qpn::new(0x9000));
    for (qpn, lid) in [(after, Lid(3)), (before, Lid(99))] {
        let mut f = datagram(2);
        f.run(ms(100));
        f.resolve(0, 1);
        f.run(secs(1));
        let [own, peer] = [f.nodes[0].ip, f.nodes[1].ip];
        assert_eq!(f.nodes[0].table.get(peer).and_then(|n| n.ud).map(|ud| ud.qpn), Some(before));
        if qpn == before {
            f.change_port(1, |port| port.lid = lid);
        } else {
            f.reboot(1, 5, 1, |setup| {
                setup.link.mode = Mode::Datagram;
                setup.link.workers = vec![WorkerSettings { ud_qpn: qpn }];
            });
        }
        f.run(ms(500));
        f.nodes[0].link.verify_neighbour(f.now, WorkerIndex(0), own, peer);
        f.run(secs(2));
        let unreachable = Event::NeighbourUnreachable { ip: peer.into() };
        assert!(!f.nodes[0].events.contains(&unreachable), "{qpn:?} {lid:?}");
        let ud = f.nodes[0].table.get(peer).expect("known").ud.expect("path");
        assert_eq!((ud.qpn, ud.av.dlid), (qpn, lid));
    }
}

#[test]
fn neighbour_is_not_given_up_without_budget_for_broadcasts() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    let [own, peer] = [f.nodes[0].ip, f.nodes[1].ip];
    // It does not receive the first two of three queries.
    f.nodes[1].alive = false;
    f.nodes[0].link.verify_neighbour(f.now, WorkerIndex(0), own, peer);
    f.run(ms(500));
    f.nodes[1].alive = true;
    let other = Ipv4Addr::new(10, 9, 0, 1);
    for _ in 0..5000 {
        while f.nodes[0].link.request(f.now, WorkerIndex(0), own, other) {}
        f.run(ms(1) / 10);
    }
    assert!(!f.nodes[0].events.contains(&Event::NeighbourUnreachable { ip: peer.into() }));
    assert!(f.nodes[0].table.get(peer).is_some());
}

#[test]
fn a_question_that_was_not_sent_is_no_silence() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(10));
    let [own, peer] = [f.nodes[0].ip, f.nodes[1].ip];
    let unreachable = Event::NeighbourUnreachable { ip: peer.into() };
    for is_verified in [true, false] {
        f.nodes[0].queue_is_full = true;
        let began = f.now;
        while f.now < began + secs(100) {
            if is_verified {
                f.nodes[0].link.verify_neighbour(f.now, WorkerIndex(0), own, peer);
            } else {
                f.resolve(0, 1);
            }
            f.run(secs(1));
        }
        let unsent =
            f.nodes[0].events.iter().filter(|event| matches!(event, Event::QueryUnsent { .. })).count();
        assert!(unsent > 50, "{unsent}");
        assert!(!f.nodes[0].events.contains(&unreachable) && f.nodes[0].table.get(peer).is_some());
        // It answers the next query.
        f.nodes[0].queue_is_full = false;
        f.run(secs(10));
        assert!(!f.nodes[0].events.contains(&unreachable) && f.nodes[0].table.get(peer).is_some());
        f.nodes[0].events.clear();
    }
    // A neighbour that does not answer is given up.
    f.nodes[1].alive = false;
    f.nodes[0].link.verify_neighbour(f.now, WorkerIndex(0), own, peer);
    f.run(secs(2));
    assert!(f.nodes[0].events.contains(&unreachable));
}

#[test]
fn last_query_without_a_token_does_not_count_as_unanswered() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(10));
    let [own, peer] = [f.nodes[0].ip, f.nodes[1].ip];
    let unreachable = Event::NeighbourUnreachable { ip: peer.into() };
    let take_tokens = |f: &mut Fabric| {
        while f.nodes[0].link.request(f.now, WorkerIndex(0), own, Ipv4Addr::new(10, 9, 9, 9)) {}
    };
    take_tokens(&mut f);
    f.nodes[1].alive = false;
    f.nodes[0].link.verify_neighbour(f.now, WorkerIndex(0), own, peer);
    for _ in 0..3000 {
        f.now += ms(1);
        take_tokens(&mut f);
        f.run(ms(0));
    }
    assert!(!f.nodes[0].events.contains(&unreachable));
    f.run(secs(2));
    assert!(f.nodes[0].events.contains(&unreachable));
}

#[test]
fn another_lid_of_a_peer_is_found_by_its_arp() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(15));
    f.change_port(1, |p| p.lid = Lid(99));
    f.run(secs(1));
    f.resolve(1, 0);
    f.run(secs(1));
    let b = f.nodes[1].ip;
    let ud = f.nodes[0].table.get(b).expect("known").ud.expect("path");
    assert_eq!(ud.av.dlid, Lid(99));
}

#[test]
fn a_refused_join_is_tried_again_with_back_off() {
    let mut f = datagram(1);
    f.run(ms(100));
    let group = Ipv4Addr::new(239, 1, 2, 3);
    assert!(f.nodes[0].link.join(f.now, group));
    let mgid = f.nodes[0].link.groups().iter().find(|g| g.ip == group).expect("group").mgid;
    f.refuse_join.insert(mgid);
    f.run(secs(60));
    let failures = f.nodes[0].link.counters().join_failures;
    assert!((5..=12).contains(&failures), "{failures} failures in a minute");
    assert!(f.nodes[0].link.state().up);
    f.refuse_join.clear();
    f.run(secs(17));
    assert_eq!(f.nodes[0].attached.len(), 2);
}

#[test]
fn without_an_answer_the_link_stays_down_and_recovers() {
    let mut f = Fabric::new(3);
    f.sa_up = false;
    f.add(1, |_| {});
    f.run(secs(120));
    assert!(!f.nodes[0].link.state().up);
    f.sa_up = true;
    f.run(secs(20));
    assert!(f.nodes[0].link.state().up);
}

#[test]
fn nothing_is_learned_from_own_broadcasts_and_invalid_senders() {
    let mut f = datagram(2);
    f.run(ms(100));
    let own = f.address(0, 0);
    let from = hca::UdSource {
        qpn: own.qpn,
        slid: SM_LID,
        sl: ib_wire::ServiceLevel::new(0),
        dlid_path_bits: 0,
        pkey_index: 0,
        has_grh: true,
        multicast: true,
    };
    f.nodes[0].take_events();
    let (now, ip) = (f.now, Ipv4Addr::new(10, 0, 0, 7));
    let link = &mut f.nodes[0].link;
    link.handle_arp(now, WorkerIndex(0), &from, ib_wire::ipoib::Arp::request(own, ip, ip));
    let zero = ib_wire::ipoib::HardwareAddress::default();
    link.handle_arp(now, WorkerIndex(0), &from, ib_wire::ipoib::Arp::request(zero, ip, ip));
    link.handle_arp(now, WorkerIndex(9), &from, ib_wire::ipoib::Arp::request(zero, ip, ip));
    f.run(secs(1));
    assert!(f.nodes[0].events.is_empty());
    assert_eq!(f.nodes[0].link.counters().arp_invalid, 1);
}

#[test]
fn a_new_q_key_reaches_queue_pairs_and_entries() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    f.qkey = QKey(0x8000_4711);
    let (facts, now) = (f.nodes[0].facts, f.now);
    f.nodes[0].link.handle_port_event(now, crate::link::PortEvent::Light, facts);
    f.run(secs(1));
    assert_eq!(f.nodes[0].opened[&WorkerIndex(0)].1, f.qkey);
    let b = f.nodes[1].ip;
    assert_eq!(f.nodes[0].table.get(b).and_then(|n| n.ud).and_then(|u| u.qkey), Some(f.qkey));
}

#[test]
fn host_that_has_moved_to_the_fabric_is_not_used_as_source() {
    let mut f = datagram(3);
    f.run(ms(100));
    let (b, moved) = (f.nodes[1].ip, f.nodes[2].ip);
    let now = f.now;
    f.nodes[0].link.resolve(now, WorkerIndex(0), moved, b);
    f.run(secs(1));
    assert_eq!(f.nodes[1].link.neighbour_hardware(moved), Some(f.address(0, 0)), "we represent it");
    // Now it is a host of this link, and announces itself.
    f.resolve(2, 1);
    let (now, there) = (f.now, f.address(2, 0));
    f.nodes[0].link.meet_neighbour(now, WorkerIndex(0), Ipv4Addr::UNSPECIFIED, there, moved);
    f.run(secs(1));
    assert!(f.nodes[0].table.get(moved).is_some_and(|n| n.ud.is_some()), "learned, and its path found");
    let before = f.nodes[0].link.counters().arp_requests_sent;
    for _ in 0..8 {
        f.use_by(0, 0, 1);
        f.use_by(1, 0, 2);
        f.run(secs(5));
        assert_eq!(f.nodes[1].link.neighbour_hardware(moved), Some(there));
    }
    assert!(f.nodes[0].link.counters().arp_requests_sent > before, "it was queried meanwhile");
    assert!(f.nodes[0].link.neighbour_hardware(b).is_some(), "and has answered");
    let now = f.now;
    f.nodes[0].link.forget_neighbour(now, moved);
    f.run(ms(100));
    assert!(f.nodes[0].table.get(moved).is_none());
}

#[test]
fn neighbour_is_queried_on_behalf_of_others_by_unicast() {
    let mut f = datagram(3);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    let (b, now) = (f.nodes[1].ip, f.now);
    let heard = |f: &Fabric, n: usize| f.nodes[n].link.counters().arp_received;
    let before = [heard(&f, 0), heard(&f, 1), heard(&f, 2)];
    f.nodes[0].link.ask_neighbour(now, WorkerIndex(0), Ipv4Addr::UNSPECIFIED, b);
    f.run(ms(100));
    // The query reaches one host, and so does the answer.
    assert_eq!([heard(&f, 0), heard(&f, 1), heard(&f, 2)], [before[0] + 1, before[1] + 1, before[2]]);
}

/// IBA 7.11.1: a port with a LID mask has several LIDs. A requester that used one of them expects the answer
/// from that one.
#[test]
fn answer_comes_from_the_lid_that_was_sent_to() {
    let mut f = datagram(1);
    f.run(ms(100));
    let from = hca::UdSource {
        qpn: Qpn::new(0x77),
        slid: Lid(9),
        sl: ib_wire::ServiceLevel::new(2),
        dlid_path_bits: 3,
        pkey_index: 0,
        has_grh: false,
        multicast: false,
    };
    let back = f.nodes[0].link.way_back(&from).expect("the link is up");
    assert_eq!((back.av.dlid, back.qpn, back.av.src_path_bits), (Lid(9), Qpn::new(0x77), 3));
    // Without a GRH there is no answer to a host that sends one, and none from a port that requires one.
    assert_eq!(f.nodes[0].link.way_back(&hca::UdSource { has_grh: true, ..from }), None);
    f.change_port(0, |facts| facts.grh_required = true);
    f.run(ms(100));
    assert_eq!(f.nodes[0].link.way_back(&from), None);
}

#[test]
fn neighbours_are_listed_after_any_address_up_to_the_limit() {
    let mut f = datagram(2);
    f.run(ms(100));
    let (own, there, from) = (f.nodes[0].ip, f.address(1, 0), f.nodes[1].facts.lid);
    let address = |n: u8| Ipv4Addr::new(10, 8, 0, n);
    // In another order than that of the addresses.
    for n in (0..20u8).map(|n| n * 7 % 20) {
        let asker = Asker { hardware: there, lid: from };
        f.nodes[0].link.reply(f.now, WorkerIndex(0), own, asker, address(n));
    }
    let link = &f.nodes[0].link;
    let all: Vec<_> = link.neighbours(f.now).iter().map(|n| n.ip).collect();
    assert_eq!(all, (0..20).map(|n| address(n).into()).collect::<Vec<std::net::IpAddr>>());
    for most in [0, 1, 3, 19, 20, 21, usize::MAX] {
        for behind in [None, Some(0), Some(7), Some(18), Some(19)] {
            let listed = link.neighbours_after(f.now, behind.map(|n| address(n).into()), most);
            let listed: Vec<_> = listed.iter().map(|n| n.ip).collect();
            let rest = &all[behind.map_or(0, |n| usize::from(n) + 1)..];
            assert_eq!(listed, rest[..most.min(rest.len())], "{most} after {behind:?}");
        }
    }
}

#[test]
fn storm_of_senders_does_not_evict_neighbours_with_traffic() {
    let mut f = Fabric::new(1);
    f.add(1, |s| {
        s.mode = Mode::Datagram;
        s.max_neighbours = 16;
    });
    f.add(1, |s| s.mode = Mode::Datagram);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    let from = f.nodes[1].facts.lid;
    let (b, own, there) = (f.nodes[1].ip, f.nodes[0].ip, f.address(1, 0));
    for n in 0..100 {
        let (now, ip) = (f.now, Ipv4Addr::new(10, 8, 0, n));
        let sender = ib_wire::ipoib::HardwareAddress { qpn: Qpn::new(0x1000 + u32::from(n)), ..there };
        f.nodes[0].link.reply(now, WorkerIndex(0), own, Asker { hardware: sender, lid: from }, ip);
        assert_eq!(f.nodes[0].link.neighbour_hardware(ip), Some(sender), "the newest is known");
        f.run(ms(10));
    }
    let link = &f.nodes[0].link;
    assert_eq!((link.neighbours(f.now).len(), link.neighbour_hardware(b)), (16, Some(there)));
    assert_eq!((link.counters().neighbours_evicted, link.counters().neighbours_full), (85, 0));
}

#[test]
fn datagram_is_from_a_neighbour_if_it_comes_from_the_port_of_its_path() {
    let mut f = datagram(2);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(ms(100));
    let ip = f.nodes[1].ip;
    let at = f.nodes[0].link.neighbour_hardware(ip).expect("resolved");
    let from = hca::UdSource {
        qpn: at.qpn,
        slid: f.nodes[1].facts.lid,
        sl: ib_wire::ServiceLevel::default(),
        dlid_path_bits: 0,
        pkey_index: 0,
        has_grh: true,
        multicast: false,
    };
    let link = &f.nodes[0].link;
    assert!(link.is_from(&from, ip));
    assert!(!link.is_from(&hca::UdSource { slid: Lid(0x77), ..from }, ip), "another port");
    assert!(!link.is_from(&hca::UdSource { qpn: Qpn::new(at.qpn.get() + 1), ..from }, ip));
    assert!(!link.is_from(&from, f.nodes[0].ip), "the neighbour is not known");
}
