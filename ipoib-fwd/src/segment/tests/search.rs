//! What a gateway that begins to forward does about hosts that it does not know.

use super::*;
use crate::forward::{Prefix, Role, Routes};
use crate::segment::search::MOST;

/// Hosts that are silent until they are asked.
struct Silent {
    ethernet: Vec<(Ipv4Addr, MacAddress)>,
    infiniband: Vec<(Ipv4Addr, u8)>,
    /// Rounds of questions that get lost.
    deaf: usize,
    /// The first question to this host on this side gets lost, too.
    lost: Option<(Side, Ipv4Addr)>,
}

impl Silent {
    /// How many questions to a host get lost.
    fn deaf_to(&self, side: Side, ip: Ipv4Addr) -> usize {
        self.deaf + usize::from(self.lost == Some((side, ip)))
    }
}

/// What was announced on Ethernet and on InfiniBand, and how often each address was asked for there.
#[derive(Default)]
struct Seen {
    announced: [Vec<Ipv4Addr>; 2],
    asked: [HashMap<Ipv4Addr, usize>; 2],
}

fn v4(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => panic!("{ip}"),
    }
}

/// Lets time pass; hosts answer what they are asked.
fn pass(w: &mut World, time: Duration, hosts: &Silent) -> Seen {
    let (end, mut seen) = (w.now + time, Seen::default());
    while w.now < end {
        w.pass(ms(10));
        for frame in World::frames(&w.outputs()) {
            if frame.sender_ip == frame.target_ip {
                seen.announced[0].push(frame.sender_ip);
                continue;
            }
            let times = seen.asked[0].entry(frame.target_ip).or_default();
            *times += 1;
            if let Some((ip, mac)) = hosts.ethernet.iter().find(|(ip, _)| *ip == frame.target_ip)
                && *times > hosts.deaf_to(Side::Ethernet, *ip)
            {
                w.ethernet(ArpOperation::Reply, *mac, *ip, frame.sender_ip);
            }
        }
        for asked in w.asked() {
            match asked {
                Asked::Announce(ip) => seen.announced[1].push(v4(ip)),
                Asked::Request { ip, .. } => {
                    let times = seen.asked[1].entry(v4(ip)).or_default();
                    *times += 1;
                    if let Some((ip, n)) = hosts.infiniband.iter().find(|(host, _)| *host == v4(ip))
                        && *times > hosts.deaf_to(Side::InfiniBand, *ip)
                    {
                        w.infiniband(InfiniBandOperation::Reply, *n, *ip, GATEWAY);
                    }
                }
                _ => {}
            }
        }
    }
    seen
}

fn begin(w: &mut World) {
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.segment.search_hosts(w.now);
}

fn hosts() -> Silent {
    Silent {
        ethernet: vec![(E1, E1_MAC), (E2, E2_MAC)],
        infiniband: vec![(I1, 2), (I2, 4)],
        deaf: 0,
        lost: None,
    }
}

#[test]
fn silent_hosts_of_both_sides_are_found_and_announced_on_the_other_one() {
    for deaf in [0, 1] {
        let mut w = World::new();
        begin(&mut w);
        let seen = pass(&mut w, secs(1), &Silent { deaf, ..hosts() });
        for (found, expected) in seen.announced.into_iter().zip([[I1, I2], [E1, E2]]) {
            let found: HashSet<_> = found.into_iter().filter(|ip| *ip != GATEWAY).collect();
            assert_eq!(found, HashSet::from(expected), "{deaf} lost");
        }
        // Once more: an announcement may be lost.
        let again = pass(&mut w, secs(1), &hosts());
        assert!(again.announced[0].contains(&I1) && again.announced[1].contains(&E1));
        let quiet = pass(&mut w, secs(60), &hosts());
        assert!(quiet.asked.iter().all(HashMap::is_empty) && quiet.announced.iter().all(Vec::is_empty));
    }
}

#[test]
fn each_address_is_asked_for_twice_at_most_and_the_own_and_the_known_not_at_all() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.know_infiniband(2, I1);
    begin(&mut w);
    let seen = pass(&mut w, secs(3), &Silent { ethernet: vec![], infiniband: vec![], ..hosts() });
    for asked in seen.asked {
        assert_eq!((asked.len(), asked.values().max()), (251, Some(&2)));
        assert!([E1, I1, GATEWAY].iter().all(|ip| !asked.contains_key(ip)));
    }
}

#[test]
fn who_answers_for_a_host_of_the_other_side_diverts_nothing() {
    for (liar, owner_loses_one) in
        [Side::Ethernet, Side::InfiniBand].into_iter().flat_map(|liar| [(liar, false), (liar, true)])
    {
        let mut w = World::new();
        begin(&mut w);
        let mut both = hosts();
        let owner = if liar == Side::Ethernet { I1 } else { E1 };
        both.lost = owner_loses_one.then_some((liar.other(), owner));
        match liar {
            Side::Ethernet => both.ethernet.push((I1, E2_MAC)),
            Side::InfiniBand => both.infiniband.push((E1, 4)),
        }
        let seen = pass(&mut w, secs(3), &both);
        let side = if liar == Side::Ethernet { 1 } else { 0 };
        assert!(!seen.announced[side].contains(&owner), "{liar:?} {owner_loses_one}");
    }
}

#[test]
fn an_address_is_searched_again_when_a_question_was_not_sent() {
    let mut w = World::new();
    begin(&mut w);
    w.fabric.is_limited = true;
    let seen = pass(&mut w, secs(2), &hosts());
    assert!(seen.announced.iter().all(|ips| ips.iter().all(|ip| *ip == GATEWAY)), "{:?}", seen.announced);
    w.fabric.is_limited = false;
    let seen = pass(&mut w, secs(2), &hosts());
    assert!(seen.announced[0].contains(&I1) && seen.announced[1].contains(&E1));
}

#[test]
fn a_host_that_is_found_is_not_announced_again_when_its_address_is_open() {
    let mut w = World::new();
    begin(&mut w);
    let seen = pass(&mut w, secs(1), &hosts());
    assert!([I1, I2].iter().all(|ip| seen.announced[0].contains(ip)));
    assert!([E1, E2].iter().all(|ip| seen.announced[1].contains(ip)));
    // A host of the other side speaks for one, and neither side is believed about another.
    w.infiniband(InfiniBandOperation::Reply, 4, E1, GATEWAY);
    w.segment.owners.contest(w.now, I1.into());
    let seen = pass(&mut w, secs(2), &hosts());
    assert!(!seen.announced[0].contains(&I1) && seen.announced[0].contains(&I2));
    assert!(!seen.announced[1].contains(&E1) && seen.announced[1].contains(&E2));
}

#[test]
fn a_gateway_that_stands_by_again_stops_and_large_subnets_are_left_out() {
    let mut w = World::new();
    begin(&mut w);
    pass(&mut w, ms(50), &hosts());
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    let seen = pass(&mut w, secs(2), &hosts());
    assert!(seen.asked.iter().all(HashMap::is_empty));

    let prefix = |len| Prefix::of(Ipv4Addr::new(10, 80, 0, 0), len).unwrap();
    for (len, expected) in [(16, 0), (20, MOST as usize - 2), (22, 1022)] {
        let mut w = World::new();
        let routes = Routes::new(&[prefix(len)], &[]).unwrap();
        w.segment.set_networks(w.now, &mut w.fabric, None, routes);
        begin(&mut w);
        let seen = pass(&mut w, secs(10), &hosts());
        assert_eq!(seen.asked.map(|asked| asked.len()), [expected; 2], "/{len}");
    }
}
