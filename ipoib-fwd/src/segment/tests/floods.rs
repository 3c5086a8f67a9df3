//! One host, or many, that look up every address: the lookups of others succeed in the meantime.

use super::*;

fn world() -> World {
    let mut w = World::new();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    w
}

/// The n-th address that no host has.
fn absent(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 4, 0)) + n % 0x4000)
}

/// Calls `scan` 5,000 times a second, and `cold` once a second with another address each time. Both get the
/// number of the call.
fn flood(
    w: &mut World,
    mut scan: impl FnMut(&mut World, Ipv4Addr),
    mut cold: impl FnMut(&mut World, Ipv4Addr),
) {
    let mut n = 0;
    for second in 0..10u8 {
        for tick in 0..100 {
            for _ in 0..50 {
                scan(w, absent(n));
                n += 1;
            }
            if tick == 50 {
                w.outputs();
                w.calls();
                cold(w, Ipv4Addr::new(10, 77, 1, second));
            }
            w.pass(ms(10));
        }
    }
}

fn datagram(n: u8) -> Arrival {
    arrival(Side::InfiniBand, Some(Origin::Datagram(from(n))))
}

fn send(w: &mut World, arrival: Arrival, from: Ipv4Addr, to: Ipv4Addr) {
    let message = packet(arrival.side, from, to, 100);
    w.segment.handle_unresolved(w.now, &mut w.fabric, to.into(), arrival, message, false);
}

#[test]
fn of_ethernet_hosts_by_arp() {
    let mut w = world();
    flood(
        &mut w,
        |w, nobody| w.infiniband(InfiniBandOperation::Request, 3, I2, nobody),
        |w, cold| {
            w.infiniband(InfiniBandOperation::Request, 1, I1, cold);
            assert!(World::frames(&w.outputs()).iter().any(|f| f.target_ip == cold), "{cold} is queried");
            w.pass(ms(1));
            w.ethernet(ArpOperation::Reply, E1_MAC, cold, GATEWAY);
            w.pass(ms(300));
            let reply = Call::Reply { ip: cold.into(), to: hardware(1), to_ip: I1.into() };
            assert!(w.calls().contains(&reply), "{cold} is answered");
        },
    );
}

#[test]
fn of_ethernet_hosts_by_packets() {
    let mut w = world();
    flood(
        &mut w,
        |w, nobody| send(w, datagram(3), I2, nobody),
        |w, cold| {
            send(w, datagram(1), I1, cold);
            assert!(World::frames(&w.outputs()).iter().any(|f| f.target_ip == cold), "{cold} is queried");
            w.ethernet(ArpOperation::Reply, E1_MAC, cold, GATEWAY);
            assert!(w.outputs().iter().any(|o| matches!(o, Output::Release { .. })), "{cold} has its packet");
        },
    );
}

#[test]
fn of_infiniband_hosts_by_arp() {
    let mut w = world();
    w.know_ethernet(E1_MAC, E1);
    flood(
        &mut w,
        |w, nobody| w.ethernet(ArpOperation::Request, E2_MAC, E2, nobody),
        |w, cold| {
            w.ethernet(ArpOperation::Request, E1_MAC, E1, cold);
            assert!(w.calls().contains(&Call::Resolve { source: E1.into(), ip: cold.into() }));
            w.know_infiniband(1, cold);
            w.publish(cold);
            assert!(World::frames(&w.outputs()).iter().any(|f| f.sender_ip == cold), "{cold} is answered");
        },
    );
    // A refusal by a limit does not count as a full table.
    let refused = |w: &mut World, n: u32| {
        w.ethernet(ArpOperation::Request, E2_MAC, E2, absent(n));
        w.outputs()
    };
    let outputs: Outputs = (0..5000).flat_map(|n| refused(&mut w, n)).collect();
    assert!(outputs.contains(&Output::Drop(DropReason::LookupLimited, 1)));
    assert!(!outputs.contains(&Output::Drop(DropReason::NeighbourTableFull, 1)));
    // The link has a limit for all: one host may not use it up.
    assert!(w.calls().len() < 5000 / 10);
}

#[test]
fn of_infiniband_hosts_by_packets() {
    let mut w = world();
    w.know_ethernet(E1_MAC, E1);
    let frame = |w: &mut World, from: MacAddress, to: Ipv4Addr| {
        let mut frame = packet(Side::Ethernet, E1, to, 100);
        frame[6..12].copy_from_slice(&from.0);
        let arrival = arrival(Side::Ethernet, None);
        w.segment.handle_unresolved(w.now, &mut w.fabric, to.into(), arrival, frame, false);
    };
    flood(
        &mut w,
        |w, nobody| frame(w, E2_MAC, nobody),
        |w, cold| {
            w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
            frame(w, E1_MAC, cold);
            assert_eq!(w.calls(), [Call::Resolve { source: E1.into(), ip: cold.into() }]);
            w.know_infiniband(1, cold);
            w.publish(cold);
            assert!(w.outputs().iter().any(|o| matches!(o, Output::Release { .. })), "{cold} has its packet");
        },
    );
}

#[test]
fn while_hosts_answer_one_host_may_look_up_thousands() {
    let mut w = world();
    for n in 0..4000 {
        let host = absent(n);
        send(&mut w, datagram(1), I1, host);
        if n % 4 == 3 {
            w.pass(ms(1));
        }
        w.ethernet(ArpOperation::Reply, E1_MAC, host, GATEWAY);
        assert!(w.outputs().iter().any(|o| matches!(o, Output::Release { .. })), "{host}");
    }
}

/// The router to 192.0.2.0/24 is `via`.
fn route_by(w: &mut World, via: Ipv4Addr) {
    let to = crate::forward::Prefix::of(Ipv4Addr::new(192, 0, 2, 0), 24).unwrap();
    w.segment.own.settings.routes =
        crate::forward::Routes::new(&[], &[crate::forward::Route { to, via }]).unwrap();
}

#[test]
fn a_scanner_beyond_a_router_has_one_share_of_the_hosts_there() {
    let mut w = world();
    route_by(&mut w, E1);
    w.know_ethernet(E1_MAC, E1);
    let frame = |w: &mut World, from: Ipv4Addr, to: Ipv4Addr| {
        let frame = packet(Side::Ethernet, from, to, 100);
        let arrival = arrival(Side::Ethernet, None);
        w.segment.handle_unresolved(w.now, &mut w.fabric, to.into(), arrival, frame, false);
    };
    flood(
        &mut w,
        |w, nobody| frame(w, Ipv4Addr::new(192, 0, 2, 66), nobody),
        |w, cold| {
            frame(w, Ipv4Addr::new(192, 0, 2, 1), cold);
            assert_eq!(w.calls(), [Call::Resolve { source: GATEWAY.into(), ip: cold.into() }]);
            w.know_infiniband(1, cold);
        },
    );
}

#[test]
fn forged_sources_beyond_the_link_share_one_budget() {
    // With no router there, and with a router that is another host.
    for router in [None, Some(E2)] {
        let mut w = world();
        if let Some(router) = router {
            route_by(&mut w, router);
            w.know_ethernet(E2_MAC, E2);
        }
        let mut n = 0u32;
        flood(
            &mut w,
            |w, nobody| {
                n += 1;
                send(w, datagram(3), Ipv4Addr::from_bits(0xc000_0200 + n % 256), nobody);
            },
            |w, cold| {
                send(w, datagram(1), I1, cold);
                let frames = World::frames(&w.outputs());
                assert!(frames.iter().any(|f| f.target_ip == cold), "{cold} is queried");
                w.ethernet(ArpOperation::Reply, E1_MAC, cold, GATEWAY);
                let released = w.outputs().iter().any(|o| matches!(o, Output::Release { .. }));
                assert!(released, "{cold} has its packet");
            },
        );
        assert!(w.segment.hosts.unanswered() < 400, "{}", w.segment.hosts.unanswered());
    }
}

#[test]
fn a_datagram_is_the_routers_only_if_it_comes_from_the_routers_port() {
    let mut w = world();
    route_by(&mut w, I1);
    w.know_infiniband(1, I1);
    let mut behind = |lid: u16| {
        let source = Ipv4Addr::new(192, 0, 2, 1);
        let origin = Origin::Datagram(UdSource { slid: Lid(lid), ..from(1) });
        let arrival = arrival(Side::InfiniBand, Some(origin));
        let packet = packet(Side::InfiniBand, source, E1, 100);
        let payer = w.segment.payer(&w.fabric, &arrival, &packet, source.into());
        matches!(payer, crate::segment::limits::Payer::Behind { .. })
    };
    // A station may have the same queue pair number at another port.
    assert_eq!([1, 3].map(&mut behind), [true, false]);
}

#[test]
fn a_host_with_many_connections_has_one_share() {
    let mut w = world();
    w.fabric.connected = (0..1024).map(|n| (Qpn::new(0x1000 + n), hardware(3))).collect();
    for n in 0..20_000u32 {
        let origin = Origin::Connection(Qpn::new(0x1000 + n % 1024));
        send(&mut w, arrival(Side::InfiniBand, Some(origin)), I2, absent(n));
        if n % 50 == 49 {
            w.pass(ms(10));
        }
        let most = w.segment.hosts.unanswered();
        assert!(most < 400, "{most} are looked up");
    }
}

#[test]
fn of_changed_cards_another_host_still_gets_a_new_one() {
    let mut w = world();
    let mac = |n: u32, card: u8| MacAddress([2, 9, card, 0, 0, (n >> 8) as u8]);
    for card in 0..2 {
        for n in 0..1024 {
            w.ethernet(ArpOperation::Request, mac(n, card), absent(n), GATEWAY);
            w.segment.handle_timeout(w.now, &mut w.fabric);
            w.now += ms(2);
        }
        w.pass(PROVEN);
        w.outputs();
    }
    w.know_ethernet(E1_MAC, E1);
    // Once, as a host announces a takeover (VRRP).
    w.ethernet(ArpOperation::Request, E2_MAC, E1, E1);
    assert!(w.outputs().contains(&Output::SetHost { ip: E1.into(), mac: E2_MAC }));
}

/// The n-th of many requesting hosts: its address.
fn crowd(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 128, 0)) + n % 0x4000)
}

#[test]
fn of_infiniband_hosts_by_arp_from_many_stations() {
    let mut w = world();
    w.know_ethernet(E1_MAC, E1);
    let mut n = 0u32;
    flood(
        &mut w,
        |w, nobody| {
            n += 1;
            let [.., b, c, d] = n.to_be_bytes();
            w.ethernet(ArpOperation::Request, MacAddress([2, 9, 9, b, c, d]), crowd(n), nobody);
        },
        |w, cold| {
            w.ethernet(ArpOperation::Request, E1_MAC, E1, cold);
            assert!(w.calls().contains(&Call::Resolve { source: E1.into(), ip: cold.into() }));
            w.know_infiniband(1, cold);
            w.publish(cold);
            assert!(World::frames(&w.outputs()).iter().any(|f| f.sender_ip == cold), "{cold} is answered");
        },
    );
}

/// The n-th of many InfiniBand hosts requests an address.
fn request_from_port(w: &mut World, n: u32, target: Ipv4Addr) {
    let slid = Lid(0x100 + n as u16 % 0x4000);
    let mut hardware = hardware(3);
    hardware.gid.0[12..].copy_from_slice(&n.to_be_bytes());
    let arp = Arp::request(hardware, crowd(n), target);
    let message = [&[8, 6, 0, 0][..], &arp.to_bytes()].concat();
    let arrival = arrival(Side::InfiniBand, Some(Origin::Datagram(UdSource { slid, ..from(3) })));
    w.segment.handle_infiniband_arp(w.now, &mut w.fabric, &arrival, &message);
}

#[test]
fn of_ethernet_hosts_by_arp_from_many_ports() {
    let mut w = world();
    // All packets that they have ever sent.
    for second in 0..10 {
        let cold = Ipv4Addr::new(10, 77, 1, second);
        w.ethernet(ArpOperation::Request, E1_MAC, cold, cold);
    }
    assert_eq!(w.segment.hosts().count(), 0);
    let mut n = 0;
    flood(
        &mut w,
        |w, nobody| {
            n += 1;
            request_from_port(w, n, nobody);
        },
        |w, cold| {
            w.infiniband(InfiniBandOperation::Request, 1, I1, cold);
            assert!(World::frames(&w.outputs()).iter().any(|f| f.target_ip == cold), "{cold} is queried");
            w.ethernet(ArpOperation::Reply, E1_MAC, cold, GATEWAY);
            w.pass(ms(300));
            let reply = Call::Reply { ip: cold.into(), to: hardware(1), to_ip: I1.into() };
            assert!(w.calls().contains(&reply), "{cold} is answered");
        },
    );
}

#[test]
fn a_host_that_was_never_heard_is_found_in_the_end() {
    let mut w = world();
    let mut queried = 0;
    for tick in 0..2000u32 {
        for n in 0..50 {
            request_from_port(&mut w, tick * 50 + n, absent(tick * 50 + n));
            // About once a second.
            if tick % 97 == 50 && n == tick % 50 {
                w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
            }
            queried += World::frames(&w.outputs()).iter().filter(|f| f.target_ip == E1).count();
        }
        w.pass(ms(10));
    }
    assert!(queried >= 2, "{queried} of 20 times");
}

#[test]
fn a_flood_of_probes_on_one_side_leaves_the_other_sides_probes_known() {
    let mut w = World::new();
    w.segment.set_networks(w.now, &mut w.fabric, None, crate::forward::Routes::default());
    w.infiniband(InfiniBandOperation::Request, 1, NONE, I1);
    for n in 0..3000 {
        let ip = Ipv4Addr::from_bits(0x0a4e_0000 + n);
        w.ethernet(ArpOperation::Request, E2_MAC, NONE, ip);
    }
    let none = IpAddr::V4(NONE);
    assert!(!w.segment.may_query_as(w.now, &w.fabric, Side::InfiniBand, I1.into(), none));
}
