//! Floods of claims from one side, each with another hardware address: proofs of others' addresses take no
//! longer.

use super::*;
use crate::forward::Role;
use crate::segment::pair::{Neighbour, Place};

fn world() -> World {
    let mut w = World::new();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    w
}

/// The n-th claim of a flood: for an address, of an unknown station.
fn forge(w: &mut World, side: Side, n: u32, ip: Ipv4Addr) {
    let [.., b, c, d] = n.to_be_bytes();
    match side {
        Side::Ethernet => w.ethernet(ArpOperation::Request, MacAddress([2, 9, 9, b, c, d]), ip, ip),
        Side::InfiniBand => {
            let mut sender = hardware(3);
            sender.gid.0[12..].copy_from_slice(&n.to_be_bytes());
            let source = UdSource { slid: Lid(0x100 + n as u16 % 0x4000), ..from(3) };
            let message = [&[8, 6, 0, 0][..], &Arp::request(sender, ip, ip).to_bytes()].concat();
            let arrival = arrival(Side::InfiniBand, Some(Origin::Datagram(source)));
            w.segment.handle_infiniband_arp(w.now, &mut w.fabric, &arrival, &message);
        }
    }
}

/// The n-th of many addresses.
fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a4d_4000 + n % 0x4000)
}

/// A hundred claims at once to addresses that no host has: they take all tokens that were refilled since the
/// last time.
fn burst(w: &mut World, side: Side, n: &mut u32) {
    for _ in 0..100 {
        forge(w, side, *n, address(*n));
        *n += 1;
    }
}

/// Lets time pass in a flood of 10,000 claims a second.
fn flood(w: &mut World, side: Side, n: &mut u32, time: Duration) {
    let end = w.now + time;
    while w.now < end {
        burst(w, side, n);
        w.pass(ms(10));
    }
}

/// A flood of a second, which then takes all remaining tokens.
fn flooded(w: &mut World, side: Side) -> u32 {
    let mut n = 0;
    flood(w, side, &mut n, secs(1));
    burst(w, side, &mut n);
    w.outputs();
    w.calls();
    n
}

/// A host of a side announces an address.
fn announce(w: &mut World, side: Side, ip: Ipv4Addr) {
    match side {
        Side::Ethernet => w.ethernet(ArpOperation::Request, E1_MAC, ip, ip),
        Side::InfiniBand => w.infiniband(InfiniBandOperation::Request, 1, ip, ip),
    }
}

/// A host requests the gateway, is proven and learned, and has aged out.
fn be_learned(w: &mut World, side: Side, ip: Ipv4Addr) {
    match side {
        Side::Ethernet => w.know_ethernet(E1_MAC, ip),
        Side::InfiniBand => {
            announce(w, side, ip);
            w.ethernet(ArpOperation::Request, E2_MAC, E2, ip);
            w.pass(PROVEN);
        }
    }
    assert!(w.segment.is_on(&w.fabric, side, ip.into()));
    age_out(w, ip);
}

/// A host was silent for so long that it is not known any more.
fn age_out(w: &mut World, ip: Ipv4Addr) {
    w.segment.hosts.forget(ip.into());
    w.segment.take_host_events(w.now, &mut w.fabric);
    w.fabric.forget(w.now, ip.into());
    w.pass(secs(90));
}

#[test]
fn a_flood_of_claims_from_one_side_delays_no_proof_of_the_other_side() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let mut w = world();
        let mut n = flooded(&mut w, side);
        for host in 1..5 {
            let ip = Ipv4Addr::new(10, 77, 1, host);
            burst(&mut w, side, &mut n);
            announce(&mut w, side.other(), ip);
            flood(&mut w, side, &mut n, PROVEN);
            let frames = World::frames(&w.outputs());
            let announced = match side {
                Side::Ethernet => frames.iter().any(|f| (f.sender_ip, f.target_ip) == (ip, ip)),
                Side::InfiniBand => w.calls().contains(&Call::Announce(ip.into())),
            };
            assert!(announced, "{side:?}: {ip} is announced");
        }
    }
}

#[test]
fn a_flood_of_claims_delays_no_proof_of_a_host_that_was_proven_before() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let mut w = world();
        let ip = Ipv4Addr::new(10, 77, 1, 1);
        be_learned(&mut w, side, ip);
        let mut n = flooded(&mut w, side);
        announce(&mut w, side, ip);
        let is_queried = |w: &World| w.segment.owners.claimed(ip.into()).is_some();
        assert!(is_queried(&w), "{side:?}");
        flood(&mut w, side, &mut n, PROVEN);
        assert!(!is_queried(&w), "{side:?}: it is proven");
        // An unknown one has to wait.
        burst(&mut w, side, &mut n);
        let stranger = Ipv4Addr::new(10, 77, 1, 2);
        announce(&mut w, side, stranger);
        assert!(w.segment.owners.claimed(stranger.into()).is_none());
    }
}

#[test]
fn a_flood_of_claims_delays_no_proof_of_a_host_whose_address_has_moved_before() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let mut w = world();
        let ip = Ipv4Addr::new(10, 77, 1, 1);
        match side {
            Side::Ethernet => w.know_infiniband(1, ip),
            Side::InfiniBand => w.know_ethernet(E1_MAC, ip),
        }
        announce(&mut w, side, ip);
        w.pass(ms(1100));
        assert_eq!(w.segment.counters().moves, 1, "{side:?}");
        age_out(&mut w, ip);
        let mut n = flooded(&mut w, side);
        burst(&mut w, side, &mut n);
        announce(&mut w, side, ip);
        assert!(w.segment.owners.claimed(ip.into()).is_some(), "{side:?}");
    }
}

#[test]
fn a_flood_of_claims_that_were_proven_before_delays_no_proof_of_a_host_that_was_learned() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let mut w = world();
        let ip = Ipv4Addr::new(10, 77, 1, 1);
        be_learned(&mut w, side, ip);
        // The same addresses at the same hardware addresses again and again: all are proven at some time.
        const PAIRS: u32 = 500;
        let mut n = 0;
        for tick in 0..600 {
            for _ in 0..50 {
                forge(&mut w, side, n % PAIRS, address(n % PAIRS));
                n += 1;
            }
            if tick < 599 {
                w.pass(ms(10));
            }
        }
        assert!((0..PAIRS).all(|n| !w.segment.is_on(&w.fabric, side, address(n).into())));
        announce(&mut w, side, ip);
        assert!(w.segment.owners.claimed(ip.into()).is_some(), "{side:?}");
    }
}

#[test]
fn a_flood_of_claims_delays_no_move_of_a_known_host() {
    for side in [Side::Ethernet, Side::InfiniBand] {
        let mut w = world();
        let ip = match side {
            Side::Ethernet => I1,
            Side::InfiniBand => E1,
        };
        match side {
            Side::Ethernet => w.know_infiniband(1, I1),
            Side::InfiniBand => w.know_ethernet(E1_MAC, E1),
        }
        let mut n = flooded(&mut w, side);
        announce(&mut w, side, ip);
        flood(&mut w, side, &mut n, ms(1100));
        assert_eq!(w.segment.counters().moves, 1, "{side:?}");
    }
}

#[test]
fn a_flood_of_claims_to_known_addresses_delays_no_proof_of_reported_hosts() {
    let mut w = world();
    const KNOWN: u32 = 2000;
    (0..KNOWN).for_each(|n| w.know_infiniband(1, address(n)));
    w.segment.set_role(w.now, Role::Standby, std::iter::empty());
    let report = Neighbour { ip: E1.into(), place: Place::Ethernet(E1_MAC) };
    w.segment.learn_told(w.now, &mut w.fabric, &report, false);
    w.segment.set_role(w.now, Role::Forwarding, std::iter::empty());
    let end = w.now + PROVEN;
    let mut n = 0;
    while w.now < end {
        // Each known host seems to have another port: it has to be proven again.
        for _ in 0..300 {
            forge(&mut w, Side::InfiniBand, n, address(n % KNOWN));
            n += 1;
        }
        w.pass(ms(10));
    }
    assert!(!w.segment.is_unproven(E1.into()));
}
