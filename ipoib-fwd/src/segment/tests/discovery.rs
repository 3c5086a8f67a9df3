//! Silent hosts, and a gateway that starts to forward without knowing them.

use super::*;
use crate::forward::{Prefix, Role, Routes};
use crate::segment::discovery::MOST;

/// A standby gateway that knows no hosts.
pub(super) fn standby() -> World {
    let mut w = World::new();
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w
}

pub(super) fn start(w: &mut World) {
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
}

/// The queries and announcements of the gateway in the meantime.
#[derive(Default)]
pub(super) struct Seen {
    /// Queries on each side, and when.
    pub(super) queried: [Vec<(Duration, Ipv4Addr)>; 2],
    /// Announcements on each side, and when.
    pub(super) announced: [Vec<(Duration, Ipv4Addr)>; 2],
    /// Reports of how many known hosts answered.
    pub(super) reports: Vec<Happening>,
}

impl Seen {
    pub(super) fn announced_on(&self, side: Side) -> Vec<Ipv4Addr> {
        let mut all: Vec<_> = self.announced[side as usize].iter().map(|(_, ip)| *ip).collect();
        all.sort();
        all
    }

    pub(super) fn queries(&self, side: Side, ip: Ipv4Addr) -> usize {
        self.queried[side as usize].iter().filter(|(_, of)| *of == ip).count()
    }
}

fn v4(ip: IpAddr) -> Ipv4Addr {
    let IpAddr::V4(ip) = ip else { panic!("all addresses are IPv4") };
    ip
}

/// Lets time pass while hosts of both sides answer every query.
pub(super) fn answering(
    w: &mut World,
    time: Duration,
    ethernet: &[(MacAddress, Ipv4Addr)],
    infiniband: &[(u8, Ipv4Addr)],
) -> Seen {
    let (mut seen, began) = (Seen::default(), w.now);
    while w.now < began + time {
        w.now += ms(4);
        w.segment.handle_timeout(w.now, &mut w.fabric);
        let at = w.now - began;
        let outputs = w.outputs();
        let reports = conflicts::moved(&outputs).into_iter();
        seen.reports.extend(reports.filter(|report| matches!(report, Happening::KnownHosts { .. })));
        for frame in World::frames(&outputs) {
            assert_eq!(frame.operation, ArpOperation::Request);
            if frame.sender_ip == frame.target_ip {
                seen.announced[Side::Ethernet as usize].push((at, frame.target_ip));
                continue;
            }
            seen.queried[Side::Ethernet as usize].push((at, frame.target_ip));
            for (mac, ip) in ethernet.iter().filter(|(_, ip)| *ip == frame.target_ip) {
                w.ethernet(ArpOperation::Reply, *mac, *ip, frame.sender_ip);
            }
        }
        for queried in w.calls() {
            match queried {
                Call::Announce(ip) => seen.announced[Side::InfiniBand as usize].push((at, v4(ip))),
                Call::Request { source, ip } => {
                    seen.queried[Side::InfiniBand as usize].push((at, v4(ip)));
                    for (n, ip) in infiniband.iter().filter(|(_, of)| IpAddr::V4(*of) == ip) {
                        w.infiniband(InfiniBandOperation::Reply, *n, *ip, v4(source));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    seen
}

#[test]
fn silent_hosts_of_both_sides_are_announced_twice_and_not_learned() {
    let mut w = standby();
    let seen = answering(&mut w, secs(3), &[(E1_MAC, E1)], &[(2, I1)]);
    assert!(seen.queried.iter().all(Vec::is_empty), "a standby gateway queries nobody");
    start(&mut w);
    let seen = answering(&mut w, secs(3), &[(E1_MAC, E1)], &[(2, I1)]);
    assert_eq!(seen.announced_on(Side::Ethernet), [I1, I1]);
    assert_eq!(seen.announced_on(Side::InfiniBand), [E1, E1, GATEWAY, GATEWAY]);
    // Once in each of two rounds; twice in each for the proof of a host of the other side.
    for (side, own, across) in [(Side::Ethernet, E1, I1), (Side::InfiniBand, I1, E1)] {
        assert_eq!((seen.queries(side, own), seen.queries(side, across)), (2, 6));
        assert_eq!(seen.queries(side, E2), 2);
        assert_eq!(seen.queries(side, GATEWAY), 0);
    }
    assert_eq!(w.segment.hosts().count() + w.fabric.neighbours.len(), 0, "nobody needs them");
    assert_eq!(w.segment.counters().limited, 0);
    let seen = answering(&mut w, secs(60), &[(E1_MAC, E1)], &[(2, I1)]);
    assert!(seen.queried.iter().chain(&seen.announced).all(Vec::is_empty), "it ends");
    // An answer without a query has no effect.
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.pass(secs(1));
    assert!(w.calls().is_empty());
}

#[test]
fn an_address_that_both_sides_answer_for_is_not_announced() {
    let mut w = standby();
    start(&mut w);
    let seen = answering(&mut w, secs(5), &[(E1_MAC, E1), (E2_MAC, I1)], &[(2, I1), (4, E1)]);
    assert!(seen.announced_on(Side::Ethernet).is_empty());
    assert_eq!(seen.announced_on(Side::InfiniBand), [GATEWAY, GATEWAY]);
    assert!(w.segment.counters().conflicts > 0);
}

#[test]
fn a_lost_query_is_made_up_for_by_the_second_round() {
    let mut w = standby();
    start(&mut w);
    answering(&mut w, ms(900), &[], &[]);
    let seen = answering(&mut w, ms(2100), &[(E1_MAC, E1)], &[(2, I1)]);
    assert_eq!(seen.announced_on(Side::Ethernet), [I1]);
    assert!(seen.announced_on(Side::InfiniBand).contains(&E1));
}

#[test]
fn a_gateway_that_resigns_sends_no_queries() {
    let mut w = standby();
    start(&mut w);
    answering(&mut w, ms(100), &[], &[]);
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.outputs();
    let seen = answering(&mut w, secs(5), &[(E1_MAC, E1)], &[(2, I1)]);
    assert!(seen.queried.iter().chain(&seen.announced).all(Vec::is_empty));
}

#[test]
fn hosts_that_are_known_are_announced_without_a_query() {
    let mut w = standby();
    w.know_ethernet(E1_MAC, E1);
    w.know_infiniband(2, I1);
    w.segment.set_role(w.now, Role::Forwarding, [I1.into()].into_iter());
    // One becomes known while others are queried.
    answering(&mut w, ms(900), &[], &[]);
    w.know_infiniband(4, I2);
    let seen = answering(&mut w, secs(3), &[], &[]);
    assert_eq!(seen.announced_on(Side::Ethernet), [I1, I2], "for the second time, and for the first");
    assert_eq!((seen.queries(Side::Ethernet, I1), seen.queries(Side::InfiniBand, E1)), (0, 0));
}

#[test]
fn a_full_subnet_leaves_the_limits_of_ordinary_work_alone() {
    let mut w = standby();
    start(&mut w);
    let began = w.now;
    let ethernet: Vec<_> =
        (1..125).map(|n| (MacAddress([2, 0, 0, 0, 1, n]), Ipv4Addr::new(10, 77, 0, n))).collect();
    let infiniband: Vec<_> = (125..250).map(|n| (n, Ipv4Addr::new(10, 77, 0, n))).collect();
    let mut seen = [Vec::new(), Vec::new()];
    let mut claims = 0;
    while w.now < began + secs(3) {
        let step = answering(&mut w, ms(40), &ethernet, &infiniband);
        for (all, more) in seen.iter_mut().zip(step.announced) {
            all.extend(more.into_iter().map(|(_, ip)| ip));
        }
        // Claims and announcements of ordinary hosts, up to their limits in that time.
        let new = Ipv4Addr::new(10, 77, 0, 251 + claims % 3);
        w.ethernet(ArpOperation::Request, MacAddress([2, 0, 0, 0, 2, claims]), new, new);
        claims += 1;
    }
    for (side, hosts) in [(Side::InfiniBand, 1..125), (Side::Ethernet, 125..250)] {
        for n in hosts {
            assert!(seen[side as usize].contains(&Ipv4Addr::new(10, 77, 0, n)), "{side:?} {n}");
        }
    }
    assert_eq!(w.segment.counters().limited, 0);
}

#[test]
fn discovery_keeps_its_pace_and_slows_down_while_hosts_look_for_many() {
    let queried = |busy: bool| {
        let mut w = standby();
        w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 20);
        start(&mut w);
        for n in 0..if busy { 600 } else { 0 } {
            w.segment.ethernet_requesters.add(
                w.now + secs(9),
                Ipv4Addr::from(0x0a4d_f000 + n).into(),
                E1_MAC,
                E1.into(),
            );
        }
        answering(&mut w, secs(1), &[], &[]).queried[Side::Ethernet as usize].len()
    };
    let (free, busy) = (queried(false), queried(true));
    assert!((450..=516).contains(&free), "{free}");
    assert!((60..=130).contains(&busy), "{busy}");
}

#[test]
fn of_a_large_subnet_hosts_that_were_heard_come_first_and_a_larger_one_is_left_out() {
    let mut w = standby();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    let silent = Ipv4Addr::new(10, 77, 200, 1);
    let heard = Ipv4Addr::new(10, 77, 200, 2);
    w.ethernet(ArpOperation::Request, E1_MAC, heard, GATEWAY);
    w.outputs();
    start(&mut w);
    let seen = answering(&mut w, secs(30), &[(E1_MAC, heard), (E2_MAC, silent)], &[]);
    assert_eq!(seen.queried[Side::Ethernet as usize][0].1, heard);
    assert!(seen.announced_on(Side::InfiniBand).contains(&heard));
    assert!(!seen.announced_on(Side::InfiniBand).contains(&silent));
    let mut addresses: Vec<_> = seen.queried[Side::Ethernet as usize].iter().map(|(_, ip)| *ip).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), MOST);

    let mut w = standby();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 15);
    let small = Prefix::of(Ipv4Addr::new(10, 99, 0, 0), 29).unwrap();
    w.segment.own.settings.routes = Routes::new(&[small], &[]).unwrap();
    start(&mut w);
    let seen = answering(&mut w, secs(10), &[], &[]);
    assert_eq!(seen.queried[Side::InfiniBand as usize].len(), 2 * 6);
}

#[test]
fn without_subnets_no_address_is_queried() {
    let mut w = standby();
    w.segment.own.settings.address = None;
    start(&mut w);
    let seen = answering(&mut w, secs(10), &[(E1_MAC, E1)], &[(2, I1)]);
    assert!(seen.queried.iter().all(Vec::is_empty));
}

#[test]
fn a_packet_and_a_requester_wait_no_longer_for_a_host_that_is_being_discovered() {
    // Discovery has just found the host, and its address is being proven.
    let discovering = |side: Side| {
        let mut w = standby();
        start(&mut w);
        w.pass(ms(20));
        match side {
            Side::Ethernet => w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY),
            Side::InfiniBand => w.infiniband(InfiniBandOperation::Reply, 2, I1, GATEWAY),
        }
        w.outputs();
        w.calls();
        w
    };
    let released = |w: &mut World| w.outputs().iter().any(|o| matches!(o, Output::Release { .. }));

    let mut w = discovering(Side::Ethernet);
    let message = packet(Side::InfiniBand, I1, E1, 100);
    w.segment.handle_unresolved(
        w.now,
        &mut w.fabric,
        E1.into(),
        arrival(Side::InfiniBand, None),
        message,
        false,
    );
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    assert!(released(&mut w), "the packet goes with the answer");

    let mut w = discovering(Side::Ethernet);
    w.infiniband(InfiniBandOperation::Request, 2, I1, E1);
    w.pass(PROVEN);
    assert!(w.calls().contains(&Call::Reply { ip: E1.into(), to: hardware(2), to_ip: I1.into() }));

    let mut w = discovering(Side::InfiniBand);
    let frame = packet(Side::Ethernet, E1, I1, 100);
    w.segment.handle_unresolved(w.now, &mut w.fabric, I1.into(), arrival(Side::Ethernet, None), frame, false);
    w.infiniband(InfiniBandOperation::Reply, 2, I1, GATEWAY);
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(2)), "the answer is taken");

    let mut w = discovering(Side::InfiniBand);
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    w.pass(PROVEN);
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(2)), "somebody needs it now");
    w.know_infiniband(2, I1);
    w.publish(I1);
    // I1 may know E1 at a queue pair that is gone: it is queried in E1's name first.
    w.pass(PROVEN);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    assert!(w.calls().contains(&Call::Ask(I1.into())));
    w.infiniband(InfiniBandOperation::Reply, 2, I1, E1);
    let replies = World::frames(&w.outputs());
    assert!(
        replies
            .iter()
            .any(|a| a.operation == ArpOperation::Reply && a.sender_ip == I1 && a.target_mac == E1_MAC)
    );
}

#[test]
fn a_host_whose_proof_was_given_up_is_discovered_in_the_second_round() {
    let mut w = standby();
    start(&mut w);
    // InfiniBand cannot be queried.
    w.fabric.is_limited = true;
    let seen = answering(&mut w, ms(900), &[(E1_MAC, E1)], &[]);
    assert!(seen.queries(Side::Ethernet, E1) > 0 && !seen.announced_on(Side::InfiniBand).contains(&E1));
    w.fabric.is_limited = false;
    let seen = answering(&mut w, secs(3), &[(E1_MAC, E1)], &[]);
    assert!(seen.announced_on(Side::InfiniBand).contains(&E1));
}
