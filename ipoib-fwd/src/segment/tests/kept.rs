//! Hosts that were known before a gateway starts to forward: it queries them first, and believes none of them
//! before it answers.

use super::discovery::{Seen, answering, standby, start};
use super::*;
use crate::forward::Role;
use crate::kept::{KeptHost, LONGEST, MOST};

/// Hosts that were known, and that are announced within three seconds.
const PROMISED: u32 = 600;

fn kept(hosts: impl IntoIterator<Item = (Ipv4Addr, u32)>) -> Vec<KeptHost> {
    hosts.into_iter().map(|(ip, age)| KeptHost { ip, age }).collect()
}

/// A gateway that starts in place of one that has known these hosts.
fn successor(hosts: &[KeptHost], address: Option<GatewayAddress>) -> World {
    let mut w = standby();
    w.segment.own.settings.address = address;
    w.segment.restore(w.now, hosts);
    start(&mut w);
    w
}

fn first_queried(seen: &Seen, side: Side, n: usize) -> Vec<Ipv4Addr> {
    seen.queried[side as usize].iter().map(|(_, ip)| *ip).take(n).collect()
}

#[test]
fn without_subnets_silent_hosts_that_were_known_are_announced() {
    let mut before = World::new();
    before.segment.own.settings.address = None;
    before.know_ethernet(E1_MAC, E1);
    before.know_infiniband(2, I1);
    before.segment.remember(before.now, [I1.into()].into_iter());
    // They leave the tables, and are remembered.
    before.pass(secs(200));
    before.fabric.neighbours.clear();
    assert_eq!(before.segment.hosts().count(), 0);
    before.segment.remember(before.now, std::iter::empty());
    let hosts = before.segment.kept(before.now);
    assert_eq!(hosts, kept([(E1, 200), (I1, 200)]));

    let mut w = successor(&hosts, None);
    let seen = answering(&mut w, secs(3), &[(E1_MAC, E1)], &[(2, I1)]);
    assert_eq!(seen.announced_on(Side::Ethernet), [I1, I1]);
    assert_eq!(seen.announced_on(Side::InfiniBand), [E1, E1]);
    // It knows them, and keeps them over the next restart.
    assert_eq!(w.segment.hosts().count() + w.fabric.neighbours.len(), 0);
    w.segment.remember(w.now, std::iter::empty());
    let again: Vec<_> = w.segment.kept(w.now).into_iter().map(|host| host.age <= 3).collect();
    assert_eq!(again, [true, true]);
}

#[test]
fn a_host_that_was_known_and_does_not_answer_is_not_believed() {
    let hosts = kept([(E1, 0), (I1, 0)]);
    let mut w = successor(&hosts, None);
    let seen = answering(&mut w, secs(10), &[], &[]);
    for side in [Side::Ethernet, Side::InfiniBand] {
        assert_eq!([E1, I1].map(|ip| seen.queries(side, ip)), [2, 2], "{side:?}");
        assert!(seen.announced_on(side).is_empty());
    }
    // Nor is an address that both sides answer for.
    let mut w = successor(&hosts, None);
    let seen = answering(&mut w, secs(5), &[(E1_MAC, E1), (E2_MAC, I1)], &[(2, I1), (4, E1)]);
    assert!(seen.announced.iter().all(Vec::is_empty));
}

/// Reports of how many known hosts answered.
fn reports(w: &mut World) -> Vec<Happening> {
    let reports = conflicts::moved(&w.outputs()).into_iter();
    reports.filter(|happening| matches!(happening, Happening::KnownHosts { .. })).collect()
}

#[test]
fn how_many_known_hosts_answered_is_reported_once_after_the_second_round() {
    let silent = Ipv4Addr::new(10, 77, 0, 99);
    let mut w = successor(&kept([(E1, 0), (I1, 0), (E2, 5), (silent, 5)]), None);
    let (ethernet, infiniband) = ([(E1_MAC, E1)], [(2, I1)]);
    let seen = answering(&mut w, ms(1900), &ethernet, &infiniband);
    assert_eq!(seen.reports, [], "the second round has not had its time");
    // One answers its second query late.
    w.ethernet(ArpOperation::Reply, E2_MAC, E2, GATEWAY);
    let seen = answering(&mut w, secs(1), &ethernet, &infiniband);
    assert_eq!(seen.reports, [Happening::KnownHosts { queried: 4, answered: 3 }]);
    let counters = w.segment.counters();
    assert_eq!((counters.known_hosts_queried, counters.known_hosts_answered), (4, 3));
    let seen = answering(&mut w, secs(100), &ethernet, &infiniband);
    assert_eq!(seen.reports, []);
    // It starts to forward again, and stops before the end: nothing is reported.
    w.segment.remember(w.now, std::iter::empty());
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    start(&mut w);
    let seen = answering(&mut w, ms(500), &ethernet, &infiniband);
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.pass(secs(5));
    assert_eq!((seen.reports, reports(&mut w)), (vec![], vec![]));
    // Nobody was known.
    let mut w = successor(&[], None);
    assert_eq!(answering(&mut w, secs(5), &[], &[]).reports, []);
}

#[test]
fn hosts_that_were_known_come_before_all_others_the_newest_first_and_twice() {
    let own = GatewayAddress::new(GATEWAY, 16);
    let at = |n: u32| Ipv4Addr::from(0x0a4d_c000 + n);
    let hosts = kept((0..400).map(|n| (at(n), n)));
    let outside = kept([(Ipv4Addr::new(192, 0, 2, 1), 0), (GATEWAY, 0)]);
    let mut w = successor(&[outside, hosts].concat(), own);
    let last = (E1_MAC, at(399));
    let seen = answering(&mut w, secs(3), &[last], &[]);
    let order: Vec<_> = (0..400).map(at).collect();
    assert_eq!(first_queried(&seen, Side::Ethernet, 400), order);
    assert_eq!(first_queried(&seen, Side::InfiniBand, 400), order);
    // The second round of these precedes most of the 65,534 others, of which more than a hundred were queried
    // in the meantime.
    let when = |ip| {
        let times = seen.queried[Side::Ethernet as usize].iter().filter(|(_, of)| *of == ip);
        times.map(|(at, _)| *at).collect::<Vec<_>>()
    };
    for ip in order.iter().take(390) {
        let times = when(*ip);
        assert_eq!(times.len(), 2, "{ip}");
        assert!(times[1] - times[0] < ms(1500), "{ip}: {times:?}");
    }
    assert!(seen.announced_on(Side::InfiniBand).contains(&last.1));
    let others = seen.queried[Side::Ethernet as usize].iter().filter(|(_, ip)| !order.contains(ip));
    assert!(others.count() > 100);
    assert_eq!(seen.queries(Side::Ethernet, Ipv4Addr::new(192, 0, 2, 1)), 0);
}

#[test]
fn the_manuals_number_of_hosts_is_announced_in_three_seconds() {
    let hosts: Vec<_> = (0..PROMISED).map(|n| Ipv4Addr::from(0x0a4d_0000 + n)).collect();
    let mac = |n: usize| MacAddress([2, 0, 0, 1, (n >> 8) as u8, n as u8]);
    let ethernet: Vec<_> = hosts.iter().enumerate().map(|(n, ip)| (mac(n), *ip)).collect();
    let mut w = successor(&kept(hosts.iter().map(|ip| (*ip, 0))), None);
    let seen = answering(&mut w, secs(3), &ethernet, &[]);
    let mut announced = seen.announced_on(Side::InfiniBand);
    announced.dedup();
    assert_eq!(announced, hosts);
}

#[test]
fn the_newest_are_remembered_and_no_host_for_ever() {
    let mut w = World::new();
    let at = |n: usize| Ipv4Addr::from(0x0a4e_0000 + n as u32);
    let hosts = kept((0..MOST).map(|n| (at(n), 60 + n as u32)));
    w.segment.restore(w.now, &hosts);
    assert_eq!(w.segment.kept(w.now), hosts);
    w.know_ethernet(E1_MAC, E1);
    w.segment.remember(w.now, std::iter::empty());
    let all = w.segment.kept(w.now);
    assert_eq!((all.len(), all[0].ip, all[0].age), (MOST, E1, 0));
    assert!(!all.iter().any(|host| host.ip == at(MOST - 1)), "the oldest has made room");
    w.now += Duration::from_secs(u64::from(LONGEST) - 1000);
    assert!(w.segment.kept(w.now).iter().all(|host| host.age <= LONGEST));
    assert!(w.segment.kept(w.now).iter().any(|host| host.ip == at(900)));
    assert!(!w.segment.kept(w.now).iter().any(|host| host.ip == at(1000)));
}

#[test]
fn reported_hosts_displace_none_that_was_proven() {
    let mut w = standby();
    let proven = kept((0..MOST).map(|n| (Ipv4Addr::from(0x0a4e_0000 + n as u32), 10)));
    w.segment.restore(w.now, &proven);
    let place = crate::segment::pair::Place::Ethernet(E1_MAC);
    let reported = crate::segment::pair::Neighbour { ip: E1.into(), place };
    w.segment.learn_told(w.now, &mut w.fabric, &reported, false);
    w.segment.remember(w.now, std::iter::empty());
    assert_eq!(w.segment.kept(w.now), proven);
    // Where there is room, they are kept: the peer may be gone when this gateway starts again.
    for authentic in [false, true] {
        let mut w = standby();
        w.segment.learn_told(w.now, &mut w.fabric, &reported, authentic);
        w.segment.remember(w.now, std::iter::empty());
        let ips: Vec<_> = w.segment.kept(w.now).iter().map(|host| host.ip).collect();
        assert_eq!(ips, [E1], "authentic: {authentic}");
    }
}

/// A gateway that starts in a segment without subnets, and knows nothing.
fn stranger() -> World {
    successor(&[], None)
}

#[test]
fn without_subnets_addresses_that_are_heard_are_queried_and_announced() {
    let mut w = stranger();
    // Hosts of one side look for each other: this does not concern a gateway that has forwarded for long.
    w.ethernet(ArpOperation::Request, E1_MAC, E1, E2);
    w.infiniband(InfiniBandOperation::Request, 2, I1, I2);
    let hosts = ([(E1_MAC, E1), (E2_MAC, E2)], [(2, I1), (4, I2)]);
    let seen = answering(&mut w, secs(4), &hosts.0, &hosts.1);
    for ip in [E1, E2] {
        assert!(seen.announced_on(Side::InfiniBand).contains(&ip), "{ip}");
    }
    for ip in [I1, I2] {
        assert!(seen.announced_on(Side::Ethernet).contains(&ip), "{ip}");
    }
}

/// The addresses for which Ethernet is queried within ten seconds.
fn queried_on_ethernet(w: &mut World) -> HashSet<Ipv4Addr> {
    let mut queried = HashSet::new();
    for _ in 0..2500 {
        w.pass(ms(4));
        queried.extend(World::frames(&w.outputs()).iter().map(|frame| frame.target_ip));
    }
    queried
}

#[test]
fn addresses_that_are_heard_are_queried_within_the_shares_and_for_a_minute() {
    let mut w = stranger();
    for n in 0..3000_u32 {
        w.ethernet(ArpOperation::Request, E1_MAC, E1, Ipv4Addr::from(0x0a4d_1000 + n));
    }
    let queried = queried_on_ethernet(&mut w).len();
    assert!((32..=64).contains(&queried), "{queried}");
    // Another host has its own share.
    w.ethernet(ArpOperation::Request, E2_MAC, E2, I2);
    assert!(queried_on_ethernet(&mut w).contains(&I2));
    // By then hosts' own entries have aged.
    w.pass(secs(60));
    w.ethernet(ArpOperation::Request, E2_MAC, E2, I1);
    w.outputs();
    assert!(!queried_on_ethernet(&mut w).contains(&I1));
}
