//! How addresses are defended against hosts that claim them: the gateway's own, and those of hosts of the
//! other side.

use super::conflicts::moved;
use super::*;
use crate::segment::pair::Place;

/// Passes time in steps of 10 ms. Returns the time after which each defense of `ip` was sent, on Ethernet or
/// on InfiniBand.
fn defences(w: &mut World, side: Side, ip: Ipv4Addr, time: Duration) -> Vec<Duration> {
    let (start, mut sent) = (w.now, Vec::new());
    while w.now < start + time {
        w.pass(ms(10));
        let frames =
            World::frames(&w.outputs()).into_iter().filter(|f| (f.sender_ip, f.target_ip) == (ip, ip));
        let announced = w.calls().into_iter().filter(|queried| *queried == Call::Announce(ip.into()));
        let n = if side == Side::Ethernet { frames.count() } else { announced.count() };
        sent.extend(std::iter::repeat_n(w.now - start, n));
    }
    sent
}

/// A host of a side claims an address by an announcement.
fn claim(w: &mut World, side: Side, ip: Ipv4Addr) {
    match side {
        Side::Ethernet => w.ethernet(ArpOperation::Request, E2_MAC, ip, ip),
        Side::InfiniBand => w.infiniband(InfiniBandOperation::Request, 3, ip, ip),
    }
}

#[test]
fn claims_of_the_own_address_after_a_defence_cause_one_announcement_after_ten_seconds() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let mut w = World::new();
        claim(&mut w, side, GATEWAY);
        w.outputs();
        assert_eq!(w.calls().len(), usize::from(side == Side::InfiniBand));
        w.pass(ms(200));
        for _ in 0..4 {
            claim(&mut w, side, GATEWAY);
            w.pass(ms(200));
        }
        let early = w.outputs();
        assert_eq!((World::frames(&early), moved(&early), w.calls()), (vec![], vec![], vec![]));
        // One second has passed.
        assert_eq!(defences(&mut w, side, GATEWAY, secs(60)), [secs(9)], "once for all claims");
        // With endless claims: one in ten seconds.
        let (mut sent, start) = (Vec::new(), w.now);
        while w.now < start + secs(35) {
            claim(&mut w, side, GATEWAY);
            let before = w.now - start;
            sent.extend(defences(&mut w, side, GATEWAY, ms(500)).into_iter().map(|after| before + after));
        }
        assert_eq!(sent, [ms(10), secs(10), secs(20), secs(30)]);
    }
}

#[test]
fn another_claimant_of_the_own_address_is_reported_when_ten_seconds_are_over() {
    let mut w = World::new();
    let other = MacAddress([2, 0, 0, 0, 9, 9]);
    for mac in [E2_MAC, other] {
        w.ethernet(ArpOperation::Request, mac, GATEWAY, GATEWAY);
    }
    w.pass(secs(20));
    let reported = [E2_MAC, other].map(Place::Ethernet);
    let reported = reported.map(|claimant| Happening::OwnAddressClaimed { ip: GATEWAY.into(), claimant });
    assert_eq!(moved(&w.outputs()), reported);
}

/// A host claims the address of a host of the other side, which answers each query. Returns when the owner is
/// announced on the claimant's side, after the first refusal.
fn defences_of_a_host(side: Side, owner_stays: bool) -> Vec<Duration> {
    let mut w = World::new();
    let ip = if side == Side::Ethernet { I1 } else { E1 };
    let answer = |w: &mut World| match side {
        Side::Ethernet => w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY),
        Side::InfiniBand => w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY),
    };
    match side {
        Side::Ethernet => w.know_infiniband(1, I1),
        Side::InfiniBand => w.know_ethernet(E1_MAC, E1),
    }
    // A new host is announced twice.
    w.pass(secs(2));
    claim(&mut w, side, ip);
    w.outputs();
    answer(&mut w);
    w.pass(ms(500));
    claim(&mut w, side, ip);
    w.outputs();
    w.calls();
    let mut sent = Vec::new();
    for tenth in 0..300 {
        sent.extend(defences(&mut w, side, ip, ms(100)).into_iter().map(|at| at + ms(500 + tenth * 100)));
        if w.segment.owners.is_queried(ip.into()) && owner_stays {
            answer(&mut w);
        }
    }
    sent
}

#[test]
fn a_claim_that_is_refused_soon_after_a_defence_causes_an_announcement_of_the_owner_after_ten_seconds() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let sent = defences_of_a_host(side, true);
        assert_eq!(sent, [secs(10)], "{side:?}");
        // The owner has gone: the claimant has the address, and is announced on the other side only.
        assert_eq!(defences_of_a_host(side, false), [], "{side:?}");
    }
}

#[test]
fn an_owner_is_defended_although_another_card_of_its_side_was_heard_first() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let mut w = World::new();
        let ip = if side == Side::Ethernet { I1 } else { E1 };
        match side {
            Side::Ethernet => w.know_infiniband(1, I1),
            Side::InfiniBand => w.know_ethernet(E1_MAC, E1),
        }
        w.pass(secs(2));
        claim(&mut w, side, ip);
        // Another card of the owner's side answers for it, and then the owner, which answers each query.
        match side {
            Side::Ethernet => w.infiniband(InfiniBandOperation::Request, 2, I1, GATEWAY),
            Side::InfiniBand => {
                w.ethernet(ArpOperation::Request, MacAddress([2, 0, 0, 0, 9, 9]), E1, GATEWAY);
            }
        }
        w.outputs();
        w.calls();
        let mut sent = 0;
        for _ in 0..200 {
            match side {
                Side::Ethernet => w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY),
                Side::InfiniBand => w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY),
            }
            sent += defences(&mut w, side, ip, ms(100)).len();
        }
        assert_eq!(sent, 1, "{side:?}");
    }
}

#[test]
fn a_host_that_claims_the_gateways_own_address_is_reported_once_in_ten_seconds() {
    let mut w = World::new();
    let claim = |claimant| Happening::OwnAddressClaimed { ip: GATEWAY.into(), claimant };
    for _ in 0..5 {
        w.ethernet(ArpOperation::Request, E2_MAC, GATEWAY, GATEWAY);
    }
    let outputs = w.outputs();
    assert_eq!(moved(&outputs), [claim(Place::Ethernet(E2_MAC))]);
    let defence = World::frames(&outputs);
    assert_eq!(
        defence.iter().map(|f| (f.sender_mac, f.sender_ip)).collect::<Vec<_>>(),
        [(GATEWAY_MAC, GATEWAY)]
    );
    let dropped = outputs.iter().filter(|o| **o == Output::Drop(DropReason::HostileArp, 1)).count();
    assert_eq!((dropped, w.segment.counters().own_address_claimed), (5, 5));
    w.pass(secs(20));
    w.outputs();
    w.infiniband(InfiniBandOperation::Request, 3, GATEWAY, I1);
    assert_eq!(moved(&w.outputs()), [claim(Place::InfiniBand(hardware(3)))]);
    assert_eq!(w.calls(), [Call::Announce(GATEWAY.into())]);
}

#[test]
fn the_owners_of_many_addresses_are_defended_and_each_has_its_share() {
    let mut w = World::new();
    let all: Vec<_> = (20..60).map(|n| Ipv4Addr::new(10, 77, 0, n)).collect();
    for ip in &all {
        w.know_infiniband(1, *ip);
        w.ethernet(ArpOperation::Request, E2_MAC, *ip, *ip);
        w.infiniband(InfiniBandOperation::Reply, 1, *ip, GATEWAY);
    }
    let defences = World::frames(&w.outputs());
    assert_eq!(defences.iter().map(|a| a.sender_ip).collect::<Vec<_>>(), all);
}

#[test]
fn a_claim_to_the_own_address_on_one_side_leaves_it_defended_on_the_other() {
    let mut w = World::new();
    w.ethernet(ArpOperation::Request, E2_MAC, GATEWAY, GATEWAY);
    w.outputs();
    for _ in 0..2 {
        w.infiniband(InfiniBandOperation::Request, 3, GATEWAY, I1);
    }
    assert_eq!(w.calls(), [Call::Announce(GATEWAY.into())]);
    let claimant = Place::InfiniBand(hardware(3));
    assert_eq!(moved(&w.outputs()), [Happening::OwnAddressClaimed { ip: GATEWAY.into(), claimant }]);
}
