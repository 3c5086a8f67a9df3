//! The table of Ethernet hosts.

use super::*;
use crate::forward::MAX_NEIGHBOURS;
use crate::segment::hosts::{self, Hosts};
use crate::segment::worker_of;
use ipoib::neighbour::{Event as HostEvent, Gone, Probe};

const HOST: IpAddr = IpAddr::V4(E1);

fn table() -> (Hosts, Instant) {
    (hosts::table(1, Ageing::default()), Instant::now())
}

fn pass(table: &mut Hosts, now: Instant) {
    table.handle_timeout(now);
    assert!(table.poll_timeout().is_none_or(|due| due > now), "nothing is left due");
}

fn ip(n: u32) -> IpAddr {
    IpAddr::V4(n.into())
}

fn mac(n: u32) -> MacAddress {
    let [a, b, c, d] = n.to_be_bytes();
    MacAddress([2, 1, a, b, c, d])
}

#[test]
fn a_host_that_does_not_answer_three_probes_is_gone() {
    let (mut t, mut now) = table();
    assert!(t.resolve(now, HOST, None));
    let mut probes = 0;
    for _ in 0..5 {
        probes += std::iter::from_fn(|| t.poll_transmit()).count();
        now += secs(1);
        pass(&mut t, now);
    }
    assert_eq!(probes, 3);
    assert_eq!(t.poll_event(), Some(HostEvent::Gone { ip: HOST, address: None, why: Gone::Unanswered }));
    assert_eq!((t.len(), t.poll_timeout()), (0, None));
}

#[test]
fn a_host_that_is_verified_is_queried_three_times_within_a_second() {
    for answers in [false, true] {
        let (mut t, start) = table();
        t.learn(start, HOST, E1_MAC, None);
        let now = start + secs(6);
        assert!(t.is_confirmed(now, HOST, secs(6)) && !t.is_confirmed(now, HOST, secs(5)));
        t.verify(now, HOST);
        t.verify(now, HOST);
        assert!(t.is_asked(HOST));
        pass(&mut t, now + ms(340));
        if answers {
            t.learn(now + ms(500), HOST, E1_MAC, None);
        }
        pass(&mut t, now + ms(680));
        pass(&mut t, now + ms(1020));
        let to: Vec<_> = std::iter::from_fn(|| t.poll_transmit()).map(|probe| probe.to).collect();
        let known = Some(E1_MAC);
        let (queried, left) =
            if answers { (vec![known; 2], known) } else { (vec![known, known, None], None) };
        assert_eq!((to, t.get(HOST)), (queried, left), "the last query is for another card");
        assert_eq!(t.is_confirmed(now + secs(1), HOST, secs(1)), answers);
    }
}

#[test]
fn a_used_neighbour_is_probed_and_an_unused_one_forgotten() {
    let (mut t, start) = table();
    let nobody = IpAddr::V4(E2);
    t.learn(start, HOST, E1_MAC, None);
    t.learn(start, nobody, E1_MAC, None);
    while t.poll_event().is_some() {}
    t.note_used(start, HOST);
    pass(&mut t, start + secs(30));
    assert_eq!(t.poll_transmit(), Some(Probe { ip: HOST, to: Some(E1_MAC) }));
    assert_eq!(t.poll_transmit(), None);
    t.learn(start + secs(30), HOST, E1_MAC, None);
    assert_eq!(t.poll_event(), None, "a refresh is no change");
    pass(&mut t, start + secs(59));
    assert_eq!(t.poll_transmit(), None);
    pass(&mut t, start + secs(90));
    assert_eq!(
        t.poll_event(),
        Some(HostEvent::Gone { ip: nobody, address: Some(E1_MAC), why: Gone::Unused })
    );
    // Stale by now; traffic triggers the query again.
    t.note_used(start + secs(91), HOST);
    assert_eq!(t.poll_transmit(), Some(Probe { ip: HOST, to: Some(E1_MAC) }));
}

#[test]
fn a_new_address_is_reported_and_a_move_forgets() {
    let (mut t, now) = table();
    t.learn(now, HOST, E1_MAC, None);
    t.learn(now, HOST, E2_MAC, None);
    t.forget(HOST);
    let events: Vec<_> = std::iter::from_fn(|| t.poll_event()).collect();
    let set = |address, before| HostEvent::Set { ip: HOST, address, before };
    let gone = HostEvent::Gone { ip: HOST, address: Some(E2_MAC), why: Gone::Forgotten };
    assert_eq!(events, [set(E1_MAC, None), set(E2_MAC, Some(E1_MAC)), gone]);
    assert_eq!(t.get(HOST), None);
}

#[test]
fn a_scan_evicts_older_queries_and_no_known_host() {
    let (mut t, now) = table();
    t.learn(now, HOST, E1_MAC, None);
    assert!((0..10_000).all(|i| t.resolve(now + ms(i.into()), ip(i), None)));
    assert_eq!((t.len(), t.get(HOST)), (513, Some(E1_MAC)));
    assert_eq!(t.counters().evicted_unanswered, 10_000 - 512);
    assert!(t.contains(ip(9_999)) && !t.contains(ip(0)), "the oldest has had its time");
}

#[test]
fn a_storm_of_senders_takes_no_room_from_hosts_with_traffic() {
    let (mut t, start) = table();
    for i in 0..100 {
        t.learn(start, ip(i), mac(i), None);
        t.note_used(start, ip(i));
    }
    // Faster than any entry ages.
    for i in 1_000..21_000 {
        let now = start + Duration::from_micros(u64::from(i) * 100);
        assert!(t.learn(now, ip(i), mac(i), None), "{i}");
        if i % 1_000 == 0 {
            (0..100).for_each(|used| t.note_used(now, ip(used)));
        }
    }
    assert_eq!(t.len(), MAX_NEIGHBOURS);
    assert!((0..100).all(|i| t.get(ip(i)) == Some(mac(i))));
    assert_eq!(t.counters().evicted_unused, 20_000 - (MAX_NEIGHBOURS as u64 - 100));
    // A new host still finds room, whether it sends a request or is queried.
    let now = start + secs(3);
    assert!(t.learn(now, HOST, E1_MAC, None) && t.resolve(now, IpAddr::V4(E2), None));
}

#[test]
fn hosts_with_traffic_are_not_evicted() {
    let (mut t, now) = table();
    for i in 0..MAX_NEIGHBOURS as u32 {
        assert!(t.learn(now, ip(i), mac(i), None));
        t.note_used(now, ip(i));
    }
    assert!(!t.learn(now, HOST, E1_MAC, None) && !t.resolve(now, HOST, None));
    assert_eq!(t.counters().table_full, 2);
}

#[test]
fn one_host_that_claims_every_address_keeps_its_share_and_no_more() {
    let (mut t, mut now) = table();
    for i in 0..100 {
        t.learn(now, ip(i), mac(i), None);
        t.note_used(now, ip(i));
    }
    // It sends in the name of thousands, and causes traffic to each of them.
    let most = MAX_NEIGHBOURS as u32;
    for i in 1_000..1_000 + most {
        t.learn(now, ip(i), E1_MAC, None);
        t.note_used(now, ip(i));
    }
    assert_eq!(t.len(), MAX_NEIGHBOURS);
    // Others find room nevertheless, and hosts that were there stay.
    for i in 50_000..53_000 {
        now += Duration::from_micros(1);
        assert!(t.learn(now, ip(i), mac(i), None), "{i}");
        t.note_used(now, ip(i));
    }
    assert!(t.resolve(now, HOST, None));
    assert!((0..100).chain(50_000..53_000).all(|i| t.get(ip(i)) == Some(mac(i))));
    // It takes nothing from others either.
    for i in 1_000..1_000 + most {
        t.learn(now, ip(i), E1_MAC, None);
        t.note_used(now, ip(i));
    }
    assert!((0..100).chain(50_000..53_000).all(|i| t.get(ip(i)) == Some(mac(i))));
    assert_eq!(t.counters().table_full, 0);
}

#[test]
fn a_host_that_only_sends_often_counts_as_unused() {
    let (mut t, start) = table();
    for i in 0..MAX_NEIGHBOURS as u32 {
        assert!(t.learn(start, ip(i), mac(i), None));
        t.note_used(start, ip(i));
    }
    // The first has traffic all the time, the others are only heard.
    for second in 1..=40 {
        let now = start + secs(second);
        t.note_used(now, ip(0));
        (0..MAX_NEIGHBOURS as u32).filter(|_| second % 10 == 0).for_each(|i| {
            t.learn(now, ip(i), mac(i), None);
        });
        pass(&mut t, now);
    }
    let now = start + secs(40);
    let newcomers = 100_000..100_000 + MAX_NEIGHBOURS as u32 - 1;
    assert!(newcomers.clone().all(|i| t.learn(now, ip(i), mac(i), None)));
    assert!(t.get(ip(0)).is_some() && newcomers.clone().all(|i| t.get(ip(i)).is_some()));
}

#[test]
fn one_sender_names_a_bounded_number_of_hosts_without_queries() {
    let (mut t, now) = table();
    assert!((0..1_000).all(|i| t.learn(now + ms(i.into()), ip(i), E1_MAC, None)));
    assert!((0..1_000).all(|i| t.get(ip(i)).is_some() == (i >= 744)), "the longest unused have made room");
    assert_eq!((t.len(), t.counters().sender_limited), (256, 744));
    let now = now + secs(1);
    assert!(t.resolve(now, HOST, None) && t.learn(now, HOST, E1_MAC, None), "its answer is welcome");
    assert!(t.learn(now, IpAddr::V4(E2), E2_MAC, None), "others are not concerned");
    assert_eq!((t.len(), t.counters().sender_limited), (258, 744));
    // A host with traffic stays, even if another one writes its address into packets.
    t.note_used(now, ip(744));
    assert!((5_000..6_000).all(|i| t.learn(now + ms(i.into()), ip(i), E1_MAC, None)));
    assert!(t.get(ip(744)).is_some() && t.get(ip(745)).is_none());
}

#[test]
fn reported_hosts_may_have_any_number_of_addresses() {
    let (mut t, now) = table();
    for round in 0..10 {
        let now = now + secs(round * 3);
        assert!((0..1_000).all(|i| t.tell(now, ip(i), E1_MAC, None)));
        pass(&mut t, now);
    }
    assert_eq!((t.len(), t.counters().sender_limited, t.poll_transmit()), (1_000, 0, None));
}

#[test]
fn hosts_are_spread_over_all_workers() {
    let mut hosts = [0; 4];
    for i in 0..1000u32 {
        hosts[usize::from(worker_of(ip(0x0a4d_0000 + i), 4))] += 1;
    }
    assert!(hosts.iter().all(|n| (150..350).contains(n)), "{hosts:?}");
    assert_eq!(worker_of(HOST, 1), 0);
}

#[test]
fn a_host_whose_address_others_forge_is_still_answered() {
    let mut w = World::new();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    w.know_infiniband(1, I1);
    for round in 1..5u8 {
        for n in 0..1000u16 {
            let [a, b] = n.to_be_bytes();
            w.ethernet(ArpOperation::Request, E1_MAC, Ipv4Addr::new(10, 77, 1 + a, b), GATEWAY);
        }
        w.outputs();
        w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
        let answers = World::frames(&w.outputs());
        assert!(answers.iter().any(|f| f.sender_ip == I1 && f.sender_mac == GATEWAY_MAC), "round {round}");
        w.pass(secs(1));
    }
}
