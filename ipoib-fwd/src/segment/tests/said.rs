//! Packets of the gateway's own: ping replies, packets that do not fit, and rate limits.

use super::*;

const CONNECTION: Option<Origin> = Some(Origin::Connection(Qpn::new(0x70)));

fn ping(side: Side, source: Ipv4Addr, len: usize) -> Vec<u8> {
    let mut ip = Vec::new();
    etherparse::PacketBuilder::ipv4(source.octets(), GATEWAY.octets(), 64)
        .icmpv4_echo_request(1, 2)
        .write(&mut ip, &vec![7; len - 28])
        .unwrap();
    framed(side, &ip)
}

#[test]
fn a_ping_by_connection_is_answered_by_it_and_may_be_cut() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    let request = ping(Side::InfiniBand, I1, 8000);
    w.segment.handle_local(w.now, &mut w.fabric, &arrival(Side::InfiniBand, CONNECTION), &request);
    // The worker chooses the path by length, as for any packet: no packet that is too long is sent as a
    // datagram.
    let outputs = w.outputs();
    let [Output::Message { to, bytes, .. }] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((*to, bytes.len(), bytes[6] & 0x40), (I1.into(), 8000, 0));
}

#[test]
fn a_source_behind_a_router_of_the_fabric_gets_the_error() {
    let mut w = World::new();
    let far = Ipv4Addr::new(192, 0, 2, 7);
    let big = packet(Side::InfiniBand, far, E1, 4000);
    // By datagram: back to its origin.
    let by_datagram = arrival(Side::InfiniBand, Some(Origin::Datagram(from(1))));
    w.segment.handle_too_big(w.now, &mut w.fabric, by_datagram, 1500, None, big.clone());
    let outputs = w.outputs();
    let [Output::Drop(DropReason::TooBigAnswered, 1), Output::Datagram { to, bytes, .. }] = &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((to.qpn, to.av.dlid, &bytes[16..20]), (hardware(1).qpn, Lid(1), &far.octets()[..]));
    // By connection: to the neighbor at its other end.
    let by_connection = arrival(Side::InfiniBand, CONNECTION);
    w.segment.handle_too_big(w.now, &mut w.fabric, by_connection, 1500, None, big.clone());
    assert!(
        w.outputs().contains(&Output::Drop(DropReason::NeighbourUnresolved, 1)),
        "no neighbor is known there"
    );
    w.know_infiniband(1, I1);
    w.fabric.behind.insert(Qpn::new(0x70), I1.into());
    w.segment.handle_too_big(w.now, &mut w.fabric, by_connection, 1500, None, big);
    assert!(w.outputs().iter().any(|o| matches!(o, Output::Message { to, .. } if *to == IpAddr::V4(I1))));
}

#[test]
fn a_packet_too_large_for_a_datagram_waits_for_the_connection() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    w.fabric.dialling.insert(I1.into());
    let big = packet(Side::Ethernet, E1, I1, 9000);
    let hold = |w: &mut World, dial: Option<IpAddr>| {
        let arrival = arrival(Side::Ethernet, None);
        w.segment.handle_too_big(w.now, &mut w.fabric, arrival, 2044, dial, big.clone());
    };
    hold(&mut w, Some(I1.into()));
    w.pass(ms(50));
    assert_eq!(w.outputs(), []);
    w.fabric.connections.insert(I1.into());
    w.fabric.dialling.clear();
    w.publish(I1);
    let outputs = w.outputs();
    assert!(matches!(&outputs[..], [Output::Release { packet, .. }] if *packet == big), "{outputs:?}");
    // The dial fails: the source gets an ICMP error.
    w.fabric.connections.clear();
    w.fabric.dialling.insert(I1.into());
    hold(&mut w, Some(I1.into()));
    w.fabric.dialling.clear();
    w.pass(ms(50));
    let answered = |outputs: Outputs| {
        matches!(&outputs[..], [Output::Drop(DropReason::TooBigAnswered, 1), Output::Frame { bytes, .. }]
            if bytes[34..36] == [3, 4] && bytes[40..42] == 2044u16.to_be_bytes())
    };
    assert!(answered(w.outputs()));
    // No connection is being established: at once.
    hold(&mut w, Some(I1.into()));
    assert!(answered(w.outputs()));
    hold(&mut w, None);
    assert!(answered(w.outputs()));
    // The dial takes too long.
    w.fabric.dialling.insert(I1.into());
    hold(&mut w, Some(I1.into()));
    w.pass(secs(4));
    assert!(answered(w.outputs()));
}

#[test]
fn a_flood_of_pings_silences_no_errors_and_one_host_not_the_others() {
    let mut w = World::new();
    let (request, arrival) = (ping(Side::Ethernet, E1, 100), arrival(Side::Ethernet, None));
    for _ in 0..1000 {
        w.segment.handle_local(w.now, &mut w.fabric, &arrival, &request);
    }
    let answered = w.outputs().iter().filter(|o| matches!(o, Output::Frame { .. })).count();
    assert_eq!(answered, 50);
    let errors = |w: &mut World, source| {
        let big = packet(Side::Ethernet, source, I1, 9000);
        for _ in 0..40 {
            w.segment.handle_too_big(w.now, &mut w.fabric, arrival, 2044, None, big.clone());
        }
        w.outputs().iter().filter(|o| matches!(o, Output::Frame { .. })).count()
    };
    assert_eq!(errors(&mut w, E1), 20, "one host's share");
    assert_eq!(errors(&mut w, E2), 20, "another's");
}

/// The n-th of many addresses without a known host.
fn absent(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a4d_0000 + n % 100 + 10)
}

#[test]
fn a_storm_of_requests_and_announcements_is_carried_across_at_a_pace() {
    let mut w = World::new();
    for n in 0..2000u32 {
        let (on_ethernet, on_infiniband) = (absent(n), absent(n + 50));
        if n % 100 < 50 {
            w.ethernet(ArpOperation::Request, E2_MAC, on_ethernet, on_ethernet);
            w.infiniband(InfiniBandOperation::Request, 3, on_infiniband, on_infiniband);
        }
        w.ethernet(ArpOperation::Request, E2_MAC, NONE, Ipv4Addr::from(0x0a4d_0000 + n % 100 + 120));
    }
    // No address is announced without a query of the other side.
    let queried = w.calls();
    assert!(!queried.iter().any(|a| matches!(a, Call::Announce(_))), "{queried:?}");
    let requests = queried.iter().filter(|a| matches!(a, Call::Request { .. })).count();
    assert_eq!(requests, 50 + 256, "each claim once, and a burst of probes");
    w.outputs();
    w.pass(PROVEN);
    let announced = w.calls().iter().filter(|a| matches!(a, Call::Announce(_))).count();
    let frames = World::frames(&w.outputs()).iter().filter(|a| a.sender_ip == a.target_ip).count();
    assert!((16..=20).contains(&announced) && (16..=20).contains(&frames), "{announced} {frames}");
}

#[test]
fn a_host_that_floods_with_announcements_keeps_no_others_from_being_carried_across() {
    let mut w = World::new();
    let announced = |w: &mut World, ip: Ipv4Addr| w.calls().contains(&Call::Announce(ip.into()));
    for second in 0..5u8 {
        for n in 0..1000u32 {
            let ip = absent(n);
            w.ethernet(ArpOperation::Request, E2_MAC, ip, ip);
            w.infiniband(InfiniBandOperation::Request, 3, ip, ip);
            w.segment.handle_timeout(w.now, &mut w.fabric);
            w.now += ms(1);
        }
        w.calls();
        w.outputs();
        let new = Ipv4Addr::new(10, 77, 0, 150 + second);
        w.ethernet(ArpOperation::Request, E1_MAC, new, new);
        w.pass(PROVEN);
        assert!(announced(&mut w, new), "second {second}: to InfiniBand");
        let other = Ipv4Addr::new(10, 77, 0, 160 + second);
        w.infiniband(InfiniBandOperation::Request, 1, other, other);
        w.pass(PROVEN);
        let frames = World::frames(&w.outputs());
        assert!(
            frames.iter().any(|f| f.sender_ip == other && f.target_ip == other),
            "second {second}: to Ethernet"
        );
    }
}
