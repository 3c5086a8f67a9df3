use super::world::{HELLO, KEY, World, ms};
use crate::segment::pair::message::{Body, Message, MessageError};
use crate::segment::pair::{
    Disbelief, Event, Hello, Identity, Key, Neighbour, Place, Role, SegmentId, Side, SideSet, Why,
};
use ib_wire::Guid;
use ipoib::net::ethernet::MacAddress;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn one_alone_listens_for_three_hellos_and_then_forwards() {
    let mut w = World::new(&[100], false);
    assert_eq!(w.role(0), Some(Role::Listening));
    w.run(HELLO * 3 - ms(1));
    assert_eq!(w.role(0), Some(Role::Listening));
    assert!(w.probes >= 6, "it probes both sides while it listens");
    w.run(ms(2));
    assert_eq!(w.role(0), Some(Role::Forwarding));
}

#[test]
fn the_higher_priority_forwards_and_of_equals_the_lower_guid() {
    for (priorities, best) in [([100, 200], 1), ([100, 100], 0)] {
        let mut w = World::new(&priorities, false);
        w.run_looking(SECOND * 5, |w| assert!(w.doubled.is_none()));
        assert_eq!(w.forwarders(), [best]);
        assert_eq!(w.role(1 - best), Some(Role::Standby));
    }
}

#[test]
fn a_standby_forwards_within_three_seconds_after_the_other_died() {
    let mut w = World::new(&[100, 100], false);
    w.run(SECOND * 3);
    w.crash(0);
    assert!(w.until_forwards(1, SECOND * 3) <= ms(1100));
}

#[test]
fn a_gateway_that_leaves_or_loses_a_side_hands_over_at_once() {
    for side in [None, Some(Side::Ethernet), Some(Side::InfiniBand)] {
        let mut w = World::new(&[100, 100], false);
        w.run(SECOND * 3);
        match side {
            Some(side) => w.set_side(0, side, false),
            None => {
                let now = w.now;
                w.with(0, |pair| pair.leave(now));
            }
        }
        assert_eq!(w.role(0), Some(Role::Standby));
        assert!(w.until_forwards(1, SECOND) <= ms(20), "{side:?}");
        if let Some(side) = side {
            w.set_side(0, side, true);
            w.run_looking(SECOND * 20, |w| assert_eq!(w.forwarders(), [1], "equals do not take it back"));
        }
    }
}

#[test]
fn a_higher_priority_that_returns_takes_over_in_order_and_warm() {
    let mut w = World::new(&[200, 100], false);
    w.run(SECOND * 3);
    w.crash(0);
    w.run(SECOND * 3);
    assert_eq!(w.forwarders(), [1]);
    w.start(0);
    w.run_looking(SECOND * 5, |w| assert_eq!(w.forwarders(), [1]));
    let mut gap = Duration::ZERO;
    let mut without = None;
    w.run_looking(SECOND * 5, |w| {
        assert!(w.doubled.is_none());
        match w.forwarders().is_empty() {
            true => _ = without.get_or_insert(w.now),
            false => gap = gap.max(without.take().map_or(Duration::ZERO, |since| w.now - since)),
        }
    });
    assert_eq!(w.forwarders(), [0]);
    assert!(gap <= ms(10), "{gap:?}");
}

#[test]
fn cut_on_one_side_one_forwards_and_cut_on_both_the_worse_one_resigns_with_the_first_hello() {
    let mut w = World::new(&[100, 100], false);
    w.run(SECOND * 3);
    for side in [0, 1] {
        w.boxes[1].part[side] = 1;
        w.run_looking(SECOND * 10, |w| assert_eq!(w.forwarders(), [0]));
        w.boxes[1].part[side] = 0;
    }
    for healed in [0, 1] {
        w.boxes[1].part = [1, 1];
        w.run(SECOND * 10);
        assert_eq!(w.forwarders(), [0, 1]);
        w.boxes[1].part[healed] = 0;
        w.run(HELLO + ms(5));
        assert_eq!(w.forwarders(), [0], "healed on {healed}");
        w.boxes[1].part = [0, 0];
        w.run(SECOND * 5);
    }
    // The tables know each other's addresses still.
    let known = |w: &World, i: usize| w.boxes[i].pair.as_ref().unwrap().stations(w.now).collect::<Vec<_>>();
    assert_eq!(known(&w, 0), [World::station(1)]);
    assert_eq!(known(&w, 1), [World::station(0)]);
}

fn announced(w: &mut World, index: usize) -> usize {
    std::mem::take(&mut w.boxes[index].events).iter().filter(|e| **e == Event::AnnounceHosts).count()
}

#[test]
fn a_forwarder_that_continues_where_networks_meet_again_announces_its_hosts() {
    for (keyed, healed) in [(false, &[0][..]), (true, &[1]), (false, &[0, 1]), (true, &[0, 1])] {
        // Either one may hear the other one first.
        for phase in 0..6 {
            let mut w = World::new(&[100, 100], keyed);
            w.run(SECOND * 3);
            w.boxes[1].part = [1, 1];
            w.run(SECOND * 10 + ms(50 * phase));
            assert_eq!(w.forwarders(), [0, 1]);
            announced(&mut w, 0);
            healed.iter().for_each(|side| w.boxes[1].part[*side] = 0);
            w.run(HELLO * 2 + ms(5));
            assert_eq!(w.forwarders(), [0]);
            assert!(announced(&mut w, 0) >= 1, "keyed {keyed}, {healed:?}, phase {phase}");
            let hands_over = |w: &World| w.boxes[1].pair.as_ref().unwrap().hands_over();
            assert!(hands_over(&w), "hosts hear it before they are cut off");
            w.run(SECOND * 20);
            assert!(announced(&mut w, 0) <= 1, "twice at most");
        }
    }
}

#[test]
fn a_lone_forwarder_announces_its_hosts_once() {
    let mut w = World::new(&[100, 100], false);
    w.run(SECOND * 3);
    // One that stands by restarts, and dies.
    w.crash(1);
    w.run(SECOND * 3);
    w.start(1);
    w.run(SECOND * 3);
    w.crash(1);
    w.run(SECOND * 3);
    assert_eq!((w.forwarders(), announced(&mut w, 0)), (vec![0], 0), "it did when it began");
}

#[test]
fn endless_hellos_cause_one_announcement_of_hosts_in_two_seconds() {
    let mut w = World::new(&[255], false);
    w.run(SECOND * 3);
    for n in 0..100u64 {
        let hello =
            Hello { priority: 0, role: [Role::Forwarding, Role::Standby][n as usize % 2], ..boasted() };
        let from = Identity { guid: Guid(9), instance: 7 };
        let side = Side::Ethernet;
        let message =
            Message { segment: SegmentId(1), from, sequence: n + 1, side, body: Body::Hello(hello) };
        let (now, bytes) = (w.now, message.to_bytes(None));
        w.with(0, |pair| pair.handle_message(now, side, &bytes).unwrap());
        w.run(ms(100));
    }
    let n = announced(&mut w, 0);
    assert!((4..=6).contains(&n), "{n} within 10 s");
}

#[test]
fn a_gateway_that_was_taken_away_leaves_its_addresses_to_others_after_an_hour() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 3);
    w.crash(0);
    let known = |w: &World| w.boxes[1].pair.as_ref().unwrap().stations(w.now).collect::<Vec<_>>();
    w.run(SECOND * 3590);
    assert_eq!(known(&w), [World::station(0)], "it may be cut off, and forward");
    w.run(SECOND * 20);
    assert_eq!(known(&w), []);
    // One that comes back is known again.
    w.start(0);
    w.run(SECOND * 3);
    assert_eq!(known(&w), [World::station(0)]);
}

#[test]
fn without_a_key_a_gateway_is_remembered_as_long_as_it_was_heard_and_an_hour_at_most() {
    let known = |w: &World| w.boxes[1].pair.as_ref().unwrap().stations(w.now).count();
    for (heard, remembered) in [(600, 600), (5000, 3600)] {
        let mut w = World::new(&[100, 100], false);
        w.run(SECOND * heard);
        w.crash(0);
        w.run(SECOND * remembered - SECOND * 5);
        assert_eq!(known(&w), 1);
        w.run(SECOND * 10);
        assert_eq!(known(&w), 0);
    }
}

#[test]
fn without_a_key_one_hello_makes_a_host_a_gateway_for_a_moment_only() {
    let mut w = World::new(&[100], false);
    w.run(SECOND * 3);
    let (now, bytes) = (w.now, boast(SegmentId(1), 1, Side::Ethernet, None));
    w.with(0, |pair| pair.handle_message(now, Side::Ethernet, &bytes).unwrap());
    let known = |w: &World| w.boxes[0].pair.as_ref().unwrap().stations(w.now).count();
    assert_eq!(known(&w), 1);
    w.run(SECOND * 2);
    assert_eq!(known(&w), 0);
}

#[test]
fn the_manual_says_how_long_one_hello_without_a_key_holds_back_a_gateway_that_returns() {
    let mut w = World::new(&[100], false);
    w.run(SECOND * 3);
    w.set_side(0, Side::InfiniBand, false);
    w.run(SECOND * 5);
    let hello = Hello { lease: SECOND * 31, ..boasted() };
    let (from, side) = (Identity { guid: Guid(9), instance: 7 }, Side::Ethernet);
    let message = Message { segment: SegmentId(1), from, sequence: 1, side, body: Body::Hello(hello) };
    let (now, bytes) = (w.now, message.to_bytes(None));
    w.with(0, |pair| pair.handle_message(now, side, &bytes).unwrap());
    w.run(ms(100));
    w.set_side(0, Side::InfiniBand, true);
    let held_back = ms(100) + w.until_forwards(0, SECOND * 60);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/manual/pairs.md");
    let page = std::fs::read_to_string(page).unwrap();
    let statement = format!("forwards nothing for up to {} s after each one", held_back.as_secs());
    assert!(page.contains(&statement), "{statement}");
}

#[test]
fn a_forwarder_whose_rival_is_deaf_resigns_since_only_it_knows() {
    let mut w = World::new(&[100, 100], false);
    w.run(SECOND * 3);
    // The second hears nothing: its arrivals come from a network part of its own.
    for _ in 0..200 {
        w.boxes[1].part = [1, 1];
        w.run(ms(1));
    }
    w.run(SECOND * 2);
    assert_eq!(w.forwarders(), [0, 1]);
    let (now, mut handed_over) = (w.now, false);
    for n in 0u32..20 {
        // The first gateway hears the second.
        let mut said = Vec::new();
        w.with(1, |pair| {
            pair.set_priority(now + HELLO * n, 100);
            while let Some(t) = pair.poll_transmit() {
                if let crate::segment::pair::Transmit::Message(side, bytes) = t {
                    said.push((side, bytes));
                }
            }
        });
        w.with(0, |pair| {
            for (side, bytes) in said {
                pair.handle_message(now + HELLO * n, side, &bytes).unwrap();
            }
            handed_over |= pair.hands_over();
        });
    }
    assert_eq!(w.forwarders(), [1]);
    let deaf = w.boxes[0].events.iter().any(|e| matches!(e, Event::Role { why: Why::Deaf(_), .. }));
    assert!(deaf, "{:?}", w.boxes[0].events);
    assert!(handed_over, "hosts still send to it");
    // The other one hears it again, and its hosts hear where they are.
    w.boxes[1].part = [0, 0];
    announced(&mut w, 1);
    w.run(SECOND * 10);
    assert_eq!((w.forwarders(), announced(&mut w, 1)), (vec![1], 1));
}

#[test]
fn a_foreign_bridge_blocks_every_gateway_and_its_end_ends_that() {
    let mut w = World::new(&[100, 100], false);
    w.run(SECOND * 3);
    w.bridge = true;
    w.run(ms(1100));
    assert_eq!(w.role(0), Some(Role::Blocked));
    w.run_looking(SECOND * 60, |w| assert!(w.forwarders().len() <= 1));
    assert_eq!((w.role(0), w.role(1)), (Some(Role::Blocked), Some(Role::Blocked)));
    assert!(w.boxes[0].events.iter().any(|e| matches!(e, Event::Loop { .. })));
    w.bridge = false;
    w.run(SECOND * 15);
    assert_eq!(w.forwarders().len(), 1);
    // It is there again: blocked for longer.
    w.bridge = true;
    w.run(SECOND * 2);
    w.bridge = false;
    w.run(SECOND * 15);
    assert!(w.forwarders().is_empty());
    w.run(SECOND * 10);
    assert_eq!(w.forwarders().len(), 1);
}

#[test]
fn own_hellos_on_the_other_side_block_and_on_their_own_side_are_reported() {
    let mut w = World::new(&[100], true);
    w.run(SECOND * 3);
    let hello = |w: &mut World| {
        let now = w.now;
        let mut sent = Vec::new();
        w.with(0, |pair| {
            pair.set_priority(now, 100);
            while let Some(t) = pair.poll_transmit() {
                if let crate::segment::pair::Transmit::Message(side, bytes) = t {
                    sent.push((side, bytes));
                }
            }
        });
        sent.swap_remove(0)
    };
    let (side, bytes) = hello(&mut w);
    let now = w.now;
    for _ in 0..100 {
        w.with(0, |pair| pair.handle_message(now, side, &bytes).unwrap());
    }
    assert_eq!(w.role(0), Some(Role::Forwarding), "any station that hears a hello can repeat it");
    assert_eq!(w.boxes[0].events.iter().filter(|e| **e == Event::Multiplied { side }).count(), 1);
    w.with(0, |pair| pair.handle_message(now, side.other(), &bytes).unwrap());
    assert_eq!(w.role(0), Some(Role::Blocked));
}

#[test]
fn a_bridge_that_is_there_from_the_start_never_sees_one_forward() {
    let mut w = World::new(&[100, 50, 50], false);
    w.bridge = true;
    w.run_looking(SECOND * 30, |w| assert!(w.forwarders().is_empty()));
}

fn host(n: u32) -> Neighbour {
    let mac = MacAddress([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
    Neighbour { ip: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)), place: Place::Ethernet(mac) }
}

#[test]
fn a_standby_receives_all_hosts_and_new_ones_at_once() {
    let mut w = World::new(&[100, 100], false);
    w.run(SECOND * 3);
    let received = |w: &mut World| -> Vec<Neighbour> {
        let events = std::mem::take(&mut w.boxes[1].events);
        events
            .into_iter()
            .filter_map(|e| if let Event::Neighbours(n) = e { Some(n) } else { None })
            .flatten()
            .collect()
    };
    let hosts = 8192;
    for _ in 0..20 {
        let now = w.now;
        w.with(0, |pair| {
            if pair.wants_neighbours(now) {
                pair.tell_neighbours(now, (0..hosts).map(host));
            }
        });
        w.run(SECOND / 2);
    }
    let mut heard = received(&mut w);
    heard.sort_by_key(|n| n.ip);
    heard.dedup();
    assert_eq!(heard, (0..hosts).map(host).collect::<Vec<_>>());
    let now = w.now;
    w.with(0, |pair| pair.tell_neighbour(now, host(9999)));
    w.run(ms(55));
    assert!(received(&mut w).contains(&host(9999)), "at once, for its forwarder may die");
    // Many new hosts must not cause many messages.
    let sent = |w: &World| w.boxes[0].pair.as_ref().unwrap().statistics().sent;
    let before = sent(&w);
    for n in 0..1000 {
        let now = w.now;
        w.with(0, |pair| pair.tell_neighbour(now, host(20_000 + n)));
        w.run(ms(1));
    }
    assert!(sent(&w) - before <= 21 * (2 + 8), "{}", sent(&w) - before);
    // No other gateway may report hosts to the forwarder.
    let now = w.now;
    w.with(1, |pair| assert!(!pair.wants_neighbours(now)));
}

#[test]
fn with_a_key_recordings_of_earlier_lives_do_not_restart_the_reports_of_hosts() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 3);
    let (hosts, mut heard) = (2000, std::collections::BTreeSet::new());
    // More lives than a gateway keeps, in turn: each recording is as good as a new gateway.
    for n in 0..400 {
        let (from, side) = (Identity { guid: Guid(9), instance: n % 16 }, Side::Ethernet);
        let body = Body::Hello(Hello { role: Role::Standby, claims: false, ..boasted() });
        let message = Message { segment: SegmentId(1), from, sequence: 1, side, body };
        let (now, bytes) = (w.now, message.to_bytes(Some(KEY)));
        w.with(0, |pair| {
            pair.handle_message(now, side, &bytes).unwrap();
            if pair.wants_neighbours(now) {
                pair.tell_neighbours(now, (0..hosts).map(host));
            }
        });
        w.run(ms(50));
        for event in std::mem::take(&mut w.boxes[1].events) {
            if let Event::Neighbours(page) = event {
                heard.extend(page.into_iter().map(|host| host.ip));
            }
        }
    }
    assert_eq!(w.forwarders(), [0]);
    assert_eq!(heard.len(), hosts as usize);
}

#[test]
fn with_a_key_recordings_of_an_earlier_life_do_not_count() {
    let mut w = World::new(&[100, 200], true);
    let mut recorded = Vec::new();
    w.run(SECOND * 3);
    assert_eq!(w.forwarders(), [1]);
    let now = w.now;
    w.with(1, |pair| {
        pair.set_priority(now, 200);
        while let Some(t) = pair.poll_transmit() {
            recorded.push(t);
        }
    });
    w.crash(1);
    w.crash(0);
    w.start(0);
    for _ in 0..50 {
        let now = w.now;
        w.with(0, |pair| {
            for t in &recorded {
                if let crate::segment::pair::Transmit::Message(side, bytes) = t {
                    pair.handle_message(now, *side, bytes).unwrap();
                }
            }
        });
        w.run(ms(100));
    }
    assert_eq!(w.forwarders(), [0]);
}

#[test]
fn with_a_key_recordings_do_not_count_after_a_reload_has_made_the_segment_again() {
    let mut w = World::new(&[100, 200], true);
    w.run(SECOND * 3);
    let mut recorded = std::collections::VecDeque::new();
    for n in 0..40 {
        let now = w.now;
        w.with(1, |pair| {
            pair.set_priority(now, 200 + n % 2);
            recorded.extend(std::iter::from_fn(|| pair.poll_transmit()));
        });
        w.run(ms(50));
    }
    assert!(recorded.len() > 40, "{}", recorded.len());
    w.crash(1);
    w.remake(0);
    // For some seconds.
    while let Some(transmit) = recorded.pop_front() {
        let now = w.now;
        w.with(0, |pair| {
            if let crate::segment::pair::Transmit::Message(side, bytes) = &transmit {
                pair.handle_message(now, *side, bytes).unwrap();
            }
        });
        w.run(ms(100));
    }
    assert_eq!(w.forwarders(), [0]);
}

#[test]
fn a_segment_that_a_reload_makes_again_is_heard_at_once_with_a_key_or_without() {
    for keyed in [false, true] {
        let mut w = World::new(&[200, 100], keyed);
        w.run(SECOND * 60);
        assert_eq!(w.forwarders(), [0]);
        for index in [1, 0] {
            w.remake(index);
            w.run(SECOND);
            let made = w.boxes[index].pair.as_ref().unwrap().identity();
            let pair = w.boxes[1 - index].pair.as_ref().unwrap();
            let peers = pair.peers(w.now).filter(|peer| peer.who == made);
            let peers: Vec<_> = peers.map(|peer| (peer.alive, peer.hears_us)).collect();
            assert_eq!(peers, [(true, SideSet::BOTH)], "keyed {keyed}, {index}");
        }
        w.run(SECOND * 10);
        assert_eq!(w.forwarders(), [0], "the better one again");
    }
}

/// A hello of gateway 2, as the best of all gateways, which forwards already.
pub(super) fn boast(segment: SegmentId, sequence: u64, side: Side, key: Option<Key>) -> Vec<u8> {
    let from = Identity { guid: Guid(0), instance: 7 };
    Message { segment, from, sequence, side, body: Body::Hello(boasted()) }.to_bytes(key)
}

fn boasted() -> Hello {
    let station = World::station(2);
    Hello {
        priority: 255,
        role: Role::Forwarding,
        up: SideSet::BOTH,
        claims: true,
        leaves: false,
        interval: HELLO,
        lease: SECOND,
        mac: station.mac,
        lid: station.lid,
        gid: station.gid,
        qpns: station.qpns,
        heard: Vec::new(),
    }
}

fn strangers(w: &mut World, index: usize) -> Vec<Option<Disbelief>> {
    let events = std::mem::take(&mut w.boxes[index].events);
    events
        .into_iter()
        .filter_map(|e| if let Event::Stranger { why } = e { Some(why) } else { None })
        .collect()
}

#[test]
fn a_gateway_with_another_key_changes_nothing_and_is_reported() {
    for (own, others) in [(true, None), (true, Some(Key::new([8; 16]))), (false, Some(Key::new([8; 16])))] {
        let mut w = World::new(&[100], own);
        w.run(SECOND * 3);
        assert_eq!(w.role(0), Some(Role::Forwarding));
        for sequence in 1..100 {
            for side in Side::BOTH {
                let (now, bytes) = (w.now, boast(SegmentId(1), sequence, side, others));
                w.with(0, |pair| {
                    assert_eq!(pair.handle_message(now, side, &bytes), Err(MessageError::Key));
                });
            }
            w.run(HELLO);
            assert_eq!(w.role(0), Some(Role::Forwarding));
        }
        assert_eq!(strangers(&mut w, 0), [Some(Disbelief::Message(MessageError::Key))], "once");
        let pair = w.boxes[0].pair.as_ref().unwrap();
        let (why, sides, _) = pair.stranger().expect("it is there");
        assert!(sides.is_both() && why.to_string().contains("gateway.pair-key"), "{why}");
        // None of theirs counts as a gateway in our tables, or any host could be made one.
        assert_eq!((pair.stations(w.now).count(), pair.statistics().rejected), (0, 198));
        w.run(SECOND * 31);
        assert_eq!(strangers(&mut w, 0), [None]);
        assert!(w.boxes[0].pair.as_ref().unwrap().stranger().is_none());
    }
}

#[test]
fn a_gateway_that_names_another_partition_on_both_sides_is_reported() {
    let mut w = World::new(&[100], false);
    w.run(SECOND * 3);
    for (side, received) in [(Side::Ethernet, 0), (Side::InfiniBand, 1)] {
        for sequence in 1..10 {
            let (now, bytes) = (w.now, boast(SegmentId(2 << 48), sequence, side, None));
            w.with(0, |pair| pair.handle_message(now, side, &bytes).unwrap());
            w.run(HELLO);
        }
        assert_eq!(strangers(&mut w, 0).len(), received, "another network may be joined to this one");
        assert_eq!(w.role(0), Some(Role::Forwarding));
    }
}

#[test]
fn a_gateway_with_another_subnet_is_of_another_network_unless_heard_on_both_sides() {
    // Another subnet, or none.
    for segment in [SegmentId(2), SegmentId(0)] {
        let mut w = World::new(&[100], false);
        w.run(SECOND * 3);
        for (side, role) in [(Side::Ethernet, Role::Forwarding), (Side::InfiniBand, Role::Standby)] {
            for sequence in 1..10 {
                let (now, bytes) = (w.now, boast(segment, sequence, side, None));
                w.with(0, |pair| pair.handle_message(now, side, &bytes).unwrap());
                w.run(HELLO);
            }
            assert_eq!(w.role(0), Some(role), "{segment:?} {side:?}");
            assert!(strangers(&mut w, 0).is_empty());
        }
    }
}

#[test]
fn without_a_key_a_hello_of_ours_on_the_other_side_causes_probes_and_no_block() {
    for side in Side::BOTH {
        let mut w = World::new(&[100], false);
        w.run(SECOND * 3);
        let mut sent = Vec::new();
        w.with(0, |pair| {
            let own = pair.identity();
            let hello =
                Message { segment: SegmentId(1), from: own, sequence: 1, side, body: Body::Hello(boasted()) };
            sent.push(hello.to_bytes(None));
        });
        let (now, probes) = (w.now, w.probes);
        w.with(0, |pair| {
            for _ in 0..1000 {
                pair.handle_message(now, side.other(), &sent[0]).unwrap();
            }
        });
        w.run(ms(100));
        assert_eq!(w.role(0), Some(Role::Forwarding));
        assert!((probes + 2..=probes + 4).contains(&w.probes), "{} after {probes}", w.probes);
    }
}
