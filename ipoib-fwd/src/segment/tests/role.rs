//! A segment while another gateway forwards, and when it takes over.

use super::*;
use crate::forward::{PeerGateway, Role};
use crate::segment::pair::{Neighbour, Place};

const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfd]);

fn standby() -> World {
    let mut w = World::new();
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    let peer = hardware(9);
    let qpns = vec![peer.qpn];
    w.segment.set_gateways(vec![PeerGateway { mac: PEER_MAC, lid: Lid(9), gid: peer.gid, qpns }]);
    w
}

fn report_host(w: &mut World, ip: Ipv4Addr, place: Place) -> bool {
    w.segment.learn_told(w.now, &mut w.fabric, &Neighbour { ip: ip.into(), place }, true)
}

#[test]
fn a_standby_answers_for_its_own_address_only() {
    let mut w = standby();
    w.know_infiniband(2, I1);
    // A host of the other side, one that is not known, an announcement, a probe: no answer and no query.
    for target in [I1, I2, E2] {
        w.ethernet(ArpOperation::Request, E1_MAC, E1, target);
        w.ethernet(ArpOperation::Request, E1_MAC, NONE, target);
        w.infiniband(InfiniBandOperation::Request, 4, I2, target);
    }
    w.ethernet(ArpOperation::Request, E1_MAC, E1, E1);
    w.infiniband(InfiniBandOperation::Request, 4, I2, I2);
    w.pass(secs(5));
    let outputs = w.outputs();
    assert!(World::frames(&outputs).is_empty(), "{outputs:?}");
    assert!(w.calls().is_empty());
    // It answers for its own address.
    w.ethernet(ArpOperation::Request, E1_MAC, E1, GATEWAY);
    assert_eq!(World::frames(&w.outputs()).len(), 1);
    w.infiniband(InfiniBandOperation::Request, 2, I1, GATEWAY);
    assert!(matches!(w.calls()[..], [Call::Reply { to_ip, .. }] if to_ip == IpAddr::V4(I1)));
}

#[test]
fn other_gateways_are_no_hosts_by_any_claim() {
    let mut w = standby();
    // Announcements and queries of the forwarder for hosts of the other side.
    w.ethernet(ArpOperation::Request, PEER_MAC, I1, I1);
    w.ethernet(ArpOperation::Request, PEER_MAC, I1, GATEWAY);
    w.infiniband(InfiniBandOperation::Request, 9, E1, E1);
    w.infiniband(InfiniBandOperation::Request, 9, E1, GATEWAY);
    let outputs = w.outputs();
    assert!(outputs.iter().all(|o| *o == Output::Drop(DropReason::PeerGateway, 1)), "{outputs:?}");
    assert_eq!(outputs.len(), 4);
    assert!(w.calls().is_empty());
    assert!(!report_host(&mut w, I1, Place::InfiniBand(hardware(9))));
    assert!(!report_host(&mut w, E1, Place::Ethernet(PEER_MAC)));
    assert_eq!(w.segment.hosts().count(), 0);
}

/// A claim of the gateway's own address by the other gateway, on each side.
fn peer_claims_own_address(w: &mut World) {
    w.ethernet(ArpOperation::Request, PEER_MAC, GATEWAY, GATEWAY);
    w.ethernet(ArpOperation::Request, PEER_MAC, GATEWAY, E1);
    w.infiniband(InfiniBandOperation::Request, 9, GATEWAY, GATEWAY);
    w.infiniband(InfiniBandOperation::Request, 9, GATEWAY, I1);
}

#[test]
fn another_gateway_with_the_own_address_is_reported_once_in_ten_seconds_and_not_answered() {
    for role in [Role::Standby, Role::Forwarding] {
        let mut w = standby();
        w.segment.set_role(w.now, role, std::iter::empty());
        w.pass(secs(5));
        w.outputs();
        w.calls();
        let reported = [Place::Ethernet(PEER_MAC), Place::InfiniBand(hardware(9))]
            .map(|peer| Happening::OwnAddressOfPeer { ip: GATEWAY.into(), peer });
        let reports = |w: &mut World| {
            let (outputs, calls) = (w.outputs(), w.calls());
            let frames = World::frames(&outputs).into_iter().filter(|frame| frame.sender_ip == GATEWAY);
            assert_eq!(frames.count(), 0, "{role:?}: it defends its address");
            assert!(!calls.contains(&Call::Announce(GATEWAY.into())), "{role:?}: it defends its address");
            conflicts::moved(&outputs)
        };
        peer_claims_own_address(&mut w);
        peer_claims_own_address(&mut w);
        assert_eq!(reports(&mut w), reported, "{role:?}");
        assert_eq!(w.segment.counters().own_address_claimed, 8);
        assert_eq!(w.segment.hosts().count(), 0);
        w.now += secs(9);
        peer_claims_own_address(&mut w);
        assert_eq!(reports(&mut w), [], "{role:?}");
        w.now += secs(1);
        peer_claims_own_address(&mut w);
        assert_eq!(reports(&mut w), reported, "{role:?}");
        // Its announcements of hosts are no claims of this address.
        w.ethernet(ArpOperation::Request, PEER_MAC, I1, I1);
        assert_eq!(w.outputs(), [Output::Drop(DropReason::PeerGateway, 1)]);
        // A host is still answered by an announcement, whatever the other gateway has claimed.
        w.ethernet(ArpOperation::Request, E2_MAC, GATEWAY, GATEWAY);
        let outputs = w.outputs();
        assert_eq!(World::frames(&outputs).len(), 1);
        let claimant = Place::Ethernet(E2_MAC);
        let claim = Happening::OwnAddressClaimed { ip: GATEWAY.into(), claimant };
        assert_eq!(conflicts::moved(&outputs), [claim]);
    }
}

#[test]
fn reported_hosts_are_announced_on_both_sides_when_the_forwarder_is_gone() {
    let mut w = standby();
    assert!(report_host(&mut w, I1, Place::InfiniBand(hardware(2))));
    w.know_infiniband(2, I1);
    assert!(!report_host(&mut w, E1, Place::Ethernet(E1_MAC)));
    assert_eq!(w.outputs(), [Output::SetHost { ip: E1.into(), mac: E1_MAC }]);
    // Exceptions: our own address, addresses beyond the subnet, addresses that no host has.
    for ip in [GATEWAY, Ipv4Addr::new(10, 78, 0, 1)] {
        assert!(!report_host(&mut w, ip, Place::InfiniBand(hardware(4))));
        assert!(!report_host(&mut w, ip, Place::Ethernet(E2_MAC)));
    }
    assert!(!report_host(&mut w, E2, Place::Ethernet(GATEWAY_MAC)));
    assert!(!report_host(&mut w, E2, Place::Ethernet(MacAddress::BROADCAST)));
    assert!(w.outputs().is_empty());
    w.pass(secs(1));
    assert!(w.calls().is_empty(), "not before it forwards");

    w.segment.set_role(w.now, Role::Forwarding, [I1.into()].into_iter());
    w.pass(ms(20));
    let announced = |w: &mut World| World::frames(&w.outputs()).iter().filter(|f| f.sender_ip == I1).count();
    assert_eq!(announced(&mut w), 1);
    assert!(w.calls().contains(&Call::Announce(E1.into())));
    // Again: the first may have been lost.
    w.pass(secs(2));
    assert_eq!(announced(&mut w), 1);
    assert!(w.calls().contains(&Call::Announce(E1.into())));
    // It forwards now, and receives no reports.
    assert!(!report_host(&mut w, I2, Place::InfiniBand(hardware(4))));
}

#[test]
fn a_forwarder_announces_the_hosts_of_both_sides_again_when_another_one_has_forwarded() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.know_infiniband(2, I1);
    w.outputs();
    w.segment.announce_hosts(w.now, [I1.into()].into_iter());
    w.pass(secs(3));
    let frames = World::frames(&w.outputs());
    assert_eq!(frames.iter().filter(|frame| frame.sender_ip == I1).count(), 2);
    assert_eq!(w.calls().into_iter().filter(|queried| *queried == Call::Announce(E1.into())).count(), 2);
}

#[test]
fn thousands_are_announced_within_two_seconds() {
    let mut w = standby();
    (1..=200).for_each(|n| w.know_infiniband(n, Ipv4Addr::new(10, 77, 0, n)));
    let hosts = (0..4000u32).map(|n| IpAddr::V4(Ipv4Addr::from_bits(0x0a4d_0000 + n % 200 + 1)));
    w.segment.set_role(w.now, Role::Forwarding, hosts);
    // The control lcore's slowest iteration takes 4 ms.
    for _ in 0..500 {
        w.now += ms(4);
        w.segment.handle_timeout(w.now, &mut w.fabric);
    }
    assert!(World::frames(&w.outputs()).len() >= 4000);
}

#[test]
fn a_gateway_that_resigns_drops_waiting_packets_and_falls_silent() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    let waiting = packet(Side::Ethernet, E1, I1, 60);
    w.segment.handle_unresolved(
        w.now,
        &mut w.fabric,
        I1.into(),
        arrival(Side::Ethernet, None),
        waiting,
        false,
    );
    w.segment.announce_all(w.now);
    w.calls();
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    let dropped = |o: &Output<Vec<u8>>| matches!(o, Output::Discard { reason: DropReason::Standby, .. });
    assert!(w.outputs().iter().any(dropped));
    w.pass(secs(5));
    assert!(w.calls().is_empty());
}

#[test]
fn inputs_of_a_gateway_that_has_resigned_cause_no_output() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    // A requester, and a packet in flight to the control lcore when the role ends.
    let asks = packet(Side::Ethernet, E1, I1, 60);
    w.segment.handle_unresolved(w.now, &mut w.fabric, I1.into(), arrival(Side::Ethernet, None), asks, false);
    w.outputs();
    w.calls();
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.outputs();
    let late = packet(Side::Ethernet, E1, I2, 60);
    w.segment.handle_unresolved(w.now, &mut w.fabric, I2.into(), arrival(Side::Ethernet, None), late, false);
    assert_eq!(w.outputs(), [Output::Drop(DropReason::Standby, 1)]);
    assert!(w.calls().is_empty(), "nothing is queried");
}

#[test]
fn a_standby_does_not_query_owners_again() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.ethernet(ArpOperation::Request, E2_MAC, E1, GATEWAY);
    w.ethernet(ArpOperation::Request, E1_MAC, E1, GATEWAY);
    assert_eq!(w.segment.hosts().next().unwrap().mac, Some(E1_MAC), "kept");
    w.outputs();
    w.pass(secs(8));
    assert!(World::frames(&w.outputs()).is_empty());
}

#[test]
fn a_gateway_that_has_resigned_queries_in_no_hosts_name() {
    let mut w = World::new();
    w.segment.own.settings.address = None;
    w.know_ethernet(E1_MAC, E1);
    w.know_infiniband(2, I1);
    // The host is queried on behalf of one of the other side.
    w.pass(secs(6));
    w.infiniband(InfiniBandOperation::Request, 2, I1, E1);
    let asks = |w: &mut World| -> Vec<_> {
        let frames = World::frames(&w.outputs());
        frames.iter().filter(|arp| arp.target_ip == E1).map(|arp| arp.sender_ip).collect()
    };
    assert!(asks(&mut w).contains(&I1));
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.pass(secs(5));
    let names = asks(&mut w);
    assert!(!names.is_empty() && names.iter().all(|name| *name == NONE), "{names:?}");
}

/// An Ethernet host's address is announced on InfiniBand while this gateway stands by; then it takes over.
fn claimed_meanwhile() -> World {
    let mut w = standby();
    w.know_ethernet(E1_MAC, E1);
    w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
    w.pass(secs(5));
    assert!(World::frames(&w.outputs()).is_empty(), "a standby sends no queries");
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.pass(ms(700));
    let queried = World::frames(&w.outputs());
    assert!(
        queried.iter().any(|arp| arp.target_ip == E1 && arp.operation == ArpOperation::Request),
        "{queried:?}"
    );
    w
}

#[test]
fn a_takeover_forgets_an_owner_that_has_gone_and_finds_the_new_one() {
    let mut w = claimed_meanwhile();
    w.pass(secs(5));
    assert_eq!(w.segment.hosts().count(), 0, "it does not answer");
    w.ethernet(ArpOperation::Request, E2_MAC, E2, E1);
    assert!(
        w.calls().contains(&Call::Resolve { source: GATEWAY.into(), ip: E1.into() }),
        "and is looked up on the other side"
    );
}

#[test]
fn a_takeover_keeps_an_owner_that_answers() {
    let mut w = claimed_meanwhile();
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.pass(secs(5));
    assert_eq!(w.segment.hosts().next().unwrap().mac, Some(E1_MAC));
}

#[test]
fn a_takeover_queries_infiniband_hosts_whose_addresses_were_claimed() {
    let mut w = standby();
    w.know_infiniband(1, I1);
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.calls();
    w.pass(secs(5));
    assert_eq!(w.calls(), []);
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.pass(ms(1100));
    assert!(w.calls().contains(&Call::Verify(I1.into())));
}

/// How often these Ethernet hosts have been announced on InfiniBand since the last time.
fn announced_on_infiniband(w: &mut World, ips: [Ipv4Addr; 2]) -> [usize; 2] {
    let queried = w.calls();
    ips.map(|ip| queried.iter().filter(|queried| **queried == Call::Announce(ip.into())).count())
}

/// The same for InfiniBand hosts on Ethernet.
fn announced_on_ethernet(w: &mut World, ips: [Ipv4Addr; 2]) -> [usize; 2] {
    let frames = World::frames(&w.outputs());
    ips.map(|ip| frames.iter().filter(|arp| arp.sender_ip == ip && arp.target_ip == ip).count())
}

#[test]
fn a_host_with_a_claimed_address_is_announced_on_infiniband_when_it_has_answered() {
    for answers in [false, true] {
        let mut w = standby();
        w.know_ethernet(E1_MAC, E1);
        w.know_ethernet(E2_MAC, E2);
        w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
        w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
        w.pass(ms(300));
        // Our link-layer addresses change: this does not prove the host.
        w.segment.announce_all(w.now);
        w.pass(ms(600));
        assert_eq!(announced_on_infiniband(&mut w, [E1, E2]), [0, 2]);
        if answers {
            w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
        }
        w.pass(secs(5));
        let times = if answers { 2 } else { 0 };
        assert_eq!(announced_on_infiniband(&mut w, [E1, E2]), [times, 1]);
        assert_eq!(w.segment.hosts().any(|host| host.ip == E1), answers);
    }
}

#[test]
fn a_host_with_a_claimed_address_is_announced_on_ethernet_when_it_has_answered() {
    for answers in [false, true] {
        let mut w = standby();
        w.know_infiniband(1, I1);
        w.know_infiniband(2, I2);
        w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
        w.segment.set_role(w.now, Role::Forwarding, [I1.into(), I2.into()].into_iter());
        w.pass(ms(1500));
        assert_eq!(announced_on_ethernet(&mut w, [I1, I2]), [0, 2]);
        if answers {
            w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
        } else {
            // The link gives it up.
            w.fabric.forget(w.now, I1.into());
        }
        w.pass(secs(5));
        let times = if answers { 2 } else { 0 };
        assert_eq!(announced_on_ethernet(&mut w, [I1, I2]), [times, 0]);
    }
}

#[test]
fn a_host_claimed_or_gone_after_a_takeover_is_not_announced_again() {
    let mut w = standby();
    w.know_ethernet(E1_MAC, E1);
    w.know_infiniband(2, I1);
    w.segment.set_role(w.now, Role::Forwarding, [I1.into()].into_iter());
    w.pass(ms(500));
    assert_eq!(announced_on_infiniband(&mut w, [E1, E2]), [1, 0]);
    assert_eq!(announced_on_ethernet(&mut w, [I1, I2]), [1, 0]);
    // The second round starts while the owner of one is being queried, and the other one is gone.
    w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
    w.fabric.forget(w.now, I1.into());
    w.pass(secs(3));
    assert_eq!(w.segment.counters().moves, 1);
    assert_eq!(announced_on_infiniband(&mut w, [E1, E2]), [0, 0]);
    assert_eq!(announced_on_ethernet(&mut w, [I1, E1]), [0, 2], "only the move is announced");
}

#[test]
fn a_gateway_that_resigned_before_an_owner_answered_queries_it_again() {
    let mut w = claimed_meanwhile();
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.calls();
    w.pass(ms(200));
    assert_eq!(announced_on_infiniband(&mut w, [E1, E2]), [0, 0]);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.pass(secs(2));
    assert_eq!(announced_on_infiniband(&mut w, [E1, E2]), [2, 0]);
}

#[test]
fn a_claim_that_is_open_at_a_resignation_is_resumed_by_the_next_forwarder() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
    w.pass(ms(100));
    w.segment.set_role(w.now, Role::Blocked, std::iter::empty());
    w.pass(secs(10));
    assert_eq!(w.segment.hosts().count(), 1, "a standby decides no claims");
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.pass(secs(5));
    assert_eq!(w.segment.hosts().count(), 0);
}

#[test]
fn a_request_for_a_standby_gateway_takes_no_address() {
    let mut w = standby();
    w.know_ethernet(E1_MAC, E1);
    w.infiniband(InfiniBandOperation::Request, 1, E1, GATEWAY);
    let (ip, to, to_ip) = (GATEWAY.into(), hardware(1), E1.into());
    assert_eq!(w.calls(), [Call::Reply { ip, to, to_ip }]);
    assert!(w.fabric.hardware(E1.into()).is_none());
    assert_eq!(w.segment.hosts().next().unwrap().mac, Some(E1_MAC));
}

/// An InfiniBand host has just answered a query for an Ethernet host.
fn unproven() -> World {
    let mut w = World::new();
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    assert!(w.segment.is_unproven(I1.into()));
    w
}

#[test]
fn an_unproven_host_is_not_reported_to_standby_gateways() {
    let mut w = unproven();
    assert!(w.segment.doubted().contains(&I1.into()));
    w.pass(ms(260));
    assert!(w.segment.doubted().is_empty() && !w.segment.is_unproven(I1.into()), "Ethernet is silent");
}

#[test]
fn an_unproven_host_stays_unproven_while_another_gateway_forwards() {
    for reported in [false, true] {
        let mut w = unproven();
        w.segment.set_role(w.now, Role::Standby, std::iter::empty());
        w.outputs();
        if reported {
            // Another gateway has proven it.
            assert!(report_host(&mut w, I1, Place::InfiniBand(hardware(1))));
        }
        w.know_infiniband(1, I1);
        w.segment.set_role(w.now, Role::Forwarding, [I1.into()].into_iter());
        w.pass(ms(100));
        assert_eq!(announced_on_ethernet(&mut w, [I1, I2]), [usize::from(reported), 0]);
    }
}

#[test]
fn an_owner_that_could_not_be_queried_is_queried_later() {
    let mut w = standby();
    // Without an address there is no name to query in while a host probes.
    let routes = w.segment.own.settings.routes.clone();
    w.segment.set_networks(w.now, &mut w.fabric, None, routes);
    w.know_infiniband(1, I1);
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.infiniband(InfiniBandOperation::Request, 1, NONE, I1);
    w.pass(secs(5));
    assert!(!w.calls().contains(&Call::Verify(I1.into())));
    assert_eq!(announced_on_ethernet(&mut w, [I1, I2]), [0, 0]);
    w.pass(secs(10));
    assert!(w.calls().contains(&Call::Verify(I1.into())));
}

fn reported(w: &mut World, ip: Ipv4Addr, place: Place) -> bool {
    w.segment.learn_told(w.now, &mut w.fabric, &Neighbour { ip: ip.into(), place }, false)
}

#[test]
fn a_forged_report_takes_no_address_from_a_host_that_the_gateway_knows() {
    // A gateway without peers stands by, since a station forges hellos.
    let mut w = World::new();
    w.know_infiniband(2, I1);
    w.know_ethernet(E1_MAC, E1);
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.outputs();
    // Reports of the other side, and of another address on its own side.
    for place in [Place::Ethernet(E2_MAC), Place::InfiniBand(hardware(4))] {
        assert!(!reported(&mut w, I1, place));
    }
    assert!(!reported(&mut w, E1, Place::InfiniBand(hardware(4))));
    assert!(!reported(&mut w, E1, Place::Ethernet(E2_MAC)));
    assert_eq!(w.fabric.neighbours.get(&I1.into()).map(|known| known.0), Some(hardware(2)));
    assert_eq!(w.segment.hosts().map(|host| host.mac).collect::<Vec<_>>(), [Some(E1_MAC)]);
    // It forwards again: both are queried, and neither is announced before it answers.
    w.segment.set_role(w.now, Role::Forwarding, [I1.into()].into_iter());
    w.pass(ms(200));
    let queried = w.calls();
    assert!(queried.contains(&Call::Verify(I1.into())), "{queried:?}");
    assert!(!queried.contains(&Call::Announce(I1.into())) && !queried.contains(&Call::Announce(E1.into())));
    w.infiniband(InfiniBandOperation::Reply, 2, I1, GATEWAY);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.pass(secs(3));
    assert!(World::frames(&w.outputs()).iter().any(|arp| arp.sender_ip == I1 && arp.target_ip == I1));
    assert!(w.calls().contains(&Call::Announce(E1.into())));
}

#[test]
fn a_host_that_anybody_may_have_reported_is_announced_when_the_other_side_has_stayed_silent() {
    let mut w = standby();
    assert!(reported(&mut w, I1, Place::InfiniBand(hardware(2))));
    w.know_infiniband(2, I1);
    assert!(!reported(&mut w, E1, Place::Ethernet(E1_MAC)));
    assert!(!reported(&mut w, E2, Place::Ethernet(E2_MAC)));
    w.outputs();
    w.segment.set_role(w.now, Role::Forwarding, [I1.into()].into_iter());
    w.pass(ms(20));
    let frames = World::frames(&w.outputs());
    let asked_for = |ip| frames.iter().any(|arp| arp.target_ip == ip && arp.sender_ip != ip);
    assert!(asked_for(I1), "{frames:?}");
    let queried = w.calls();
    for ip in [E1, E2] {
        assert!(queried.contains(&Call::Request { source: GATEWAY.into(), ip: ip.into() }), "{queried:?}");
    }
    assert!(
        !queried.iter().any(|queried| matches!(queried, Call::Announce(ip) if *ip != IpAddr::V4(GATEWAY)))
    );
    // The third one is on InfiniBand: the report was false.
    w.infiniband(InfiniBandOperation::Reply, 4, E2, GATEWAY);
    w.pass(secs(5));
    let announced = announced_on_infiniband(&mut w, [E1, E2]);
    assert_eq!(announced, [2, 0]);
    assert_eq!(announced_on_ethernet(&mut w, [I1, E2]), [2, 1], "proven like one that was discovered");
    assert_eq!(w.segment.counters().answers_withdrawn, 0, "no address is contested because of a report");
}

#[test]
fn a_false_report_of_an_infiniband_host_does_not_contest_its_owner() {
    for host_answers in [false, true] {
        let mut w = standby();
        assert!(reported(&mut w, E1, Place::InfiniBand(hardware(2))));
        w.know_infiniband(2, E1);
        w.fabric.stale.insert(E1.into());
        w.segment.set_role(w.now, Role::Forwarding, [E1.into()].into_iter());
        w.pass(ms(20));
        w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
        assert!(w.fabric.hardware(E1.into()).is_none());
        let mut announced = 0;
        for _ in 0..200 {
            w.pass(ms(10));
            let queried = w.calls();
            announced += queried.iter().filter(|queried| **queried == Call::Announce(E1.into())).count();
            let is_queried =
                |queried: &Call| matches!(queried, Call::Request { ip, .. } if *ip == IpAddr::V4(E1));
            if host_answers && queried.iter().any(is_queried) {
                // The report was true, and the answer was false.
                w.infiniband(InfiniBandOperation::Reply, 2, E1, GATEWAY);
            }
        }
        assert_eq!(announced, usize::from(!host_answers));
        assert_eq!(announced_on_ethernet(&mut w, [E1, E2]), [0, 0]);
        assert_eq!(w.segment.counters().answers_withdrawn, 0);
    }
}

#[test]
fn forged_reports_of_many_addresses_push_out_no_known_host() {
    let mut w = standby();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    let ip = |n: u32| Ipv4Addr::from_bits(0x0a4d_0000 + n);
    for n in 1..=8 {
        w.know_ethernet(MacAddress([2, 8, 0, 0, 0, n as u8]), ip(n));
    }
    for n in 300..6000u32 {
        let [.., high, low] = n.to_be_bytes();
        reported(&mut w, ip(n), Place::Ethernet(MacAddress([2, 9, 0, 0, high, low])));
    }
    let known: HashSet<_> = w.segment.hosts().map(|host| host.ip).collect();
    assert!((1..=8).all(|n| known.contains(&IpAddr::V4(ip(n)))));
    assert_eq!(known.len(), crate::forward::MAX_NEIGHBOURS / 4 * 3, "the rest is for hosts that are heard");
    w.fabric.is_full = true;
    assert!(!reported(&mut w, ip(6000), Place::InfiniBand(hardware(2))));
    assert!(report_host(&mut w, ip(6000), Place::InfiniBand(hardware(2))), "one that cannot be forged");
}

#[test]
fn a_reported_host_that_cannot_be_proven_now_uses_up_no_queries() {
    let mut w = standby();
    // Without an address there is no name to query in while a host probes.
    let routes = w.segment.own.settings.routes.clone();
    w.segment.set_networks(w.now, &mut w.fabric, None, routes);
    assert!(!reported(&mut w, E1, Place::Ethernet(E1_MAC)));
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.infiniband(InfiniBandOperation::Request, 1, NONE, E1);
    for _ in 0..10_000 {
        w.segment.handle_timeout(w.now, &mut w.fabric);
    }
    assert!(w.segment.is_unproven(E1.into()));
    assert!(w.segment.limits.take_own_side(w.now, Side::Ethernet, true));
}

#[test]
fn an_unproven_host_is_proven_and_announced_when_the_gateway_forwards_again() {
    let mut w = unproven();
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    w.know_infiniband(1, I1);
    w.outputs();
    w.segment.set_role(w.now, Role::Forwarding, [I1.into()].into_iter());
    w.pass(ms(200));
    assert_eq!(announced_on_ethernet(&mut w, [I1, I2]), [0, 0]);
    w.pass(secs(3));
    assert!(!w.segment.is_unproven(I1.into()));
    assert_eq!(announced_on_ethernet(&mut w, [I1, I2]), [2, 0]);
}

#[test]
fn thousands_of_reported_hosts_are_proven_and_announced_within_fifteen_seconds() {
    let mut w = standby();
    let hosts: Vec<_> = (1..=2000u32).map(|n| Ipv4Addr::from_bits(0x0a4d_0000 + n)).collect();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    for (n, ip) in hosts.iter().enumerate() {
        let [high, low] = (n as u16).to_be_bytes();
        assert!(!reported(&mut w, *ip, Place::Ethernet(MacAddress([2, 9, 0, 0, high, low]))));
    }
    w.outputs();
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.pass(secs(15));
    let announced: HashSet<_> = w
        .calls()
        .into_iter()
        .filter_map(|queried| if let Call::Announce(ip) = queried { Some(ip) } else { None })
        .collect();
    let known = w.segment.hosts().count();
    assert!(hosts.iter().all(|ip| announced.contains(&IpAddr::V4(*ip))), "{known}: {}", announced.len());
}

#[test]
fn an_announcement_that_the_links_rate_limit_drops_is_sent_later() {
    let mut w = standby();
    w.know_ethernet(E1_MAC, E1);
    w.fabric.is_limited = true;
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    w.pass(secs(5));
    assert!(w.segment.announcements.len() <= 2, "the host and the gateway, once each");
    w.fabric.is_limited = false;
    w.pass(secs(2));
    assert_eq!(announced_on_infiniband(&mut w, [E1, GATEWAY]), [1, 1]);
}
