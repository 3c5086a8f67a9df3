//! The first packet to a host that is not known yet, in both directions; requesters are answered when the
//! path is published.

use super::*;
use crate::segment::parked::{DESTINATIONS, PATIENCE, PER_DESTINATION};

fn cold_frame(w: &mut World) -> Vec<u8> {
    let frame = packet(Side::Ethernet, E1, I1, 100);
    let arrival = arrival(Side::Ethernet, None);
    w.segment.handle_unresolved(w.now, &mut w.fabric, I1.into(), arrival, frame.clone(), false);
    frame
}

fn released(outputs: &Outputs) -> Vec<&Vec<u8>> {
    let mut packets = Vec::new();
    for output in outputs {
        if let Output::Release { packet, .. } = output {
            packets.push(packet);
        }
    }
    packets
}

#[test]
fn a_packet_goes_when_the_path_is_published_and_not_before() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    let frame = cold_frame(&mut w);
    assert_eq!(w.calls(), [Call::Resolve { source: E1.into(), ip: I1.into() }]);
    // It has answered, and its path is being looked up.
    w.fabric.neighbours.insert(I1.into(), (hardware(1), false));
    w.publish(I1);
    let event = ipoib::link::Event::NeighbourResolved { ip: I1.into(), hardware: hardware(1) };
    w.segment.handle_link_event(w.now, &mut w.fabric, &event);
    w.pass(ms(500));
    assert_eq!(w.outputs(), []);
    w.know_infiniband(1, I1);
    w.publish(I1);
    assert_eq!(released(&w.outputs()), [&frame]);
    w.publish(I1);
    assert_eq!(w.outputs(), []);
}

#[test]
fn a_packet_that_comes_behind_the_publication_goes_at_once() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    let frame = packet(Side::Ethernet, E1, I1, 100);
    let arrival = arrival(Side::Ethernet, None);
    w.segment.handle_unresolved(w.now, &mut w.fabric, I1.into(), arrival, frame.clone(), true);
    assert_eq!(released(&w.outputs()), [&frame]);
    // The link knows the path and the tables do not: they are full. Forwarding it again would bring it back
    // for ever.
    w.segment.handle_unresolved(w.now, &mut w.fabric, I1.into(), arrival, frame, false);
    assert_eq!(w.outputs(), [Output::Drop(DropReason::NeighbourTableFull, 1)]);
}

#[test]
fn a_message_to_a_cold_ethernet_host_goes_when_the_host_is_published() {
    let mut w = World::new();
    let message = packet(Side::InfiniBand, I1, E1, 100);
    let arrival = arrival(Side::InfiniBand, None);
    w.segment.handle_unresolved(w.now, &mut w.fabric, E1.into(), arrival, message.clone(), false);
    let queried = World::frames(&w.outputs());
    assert_eq!(queried.iter().map(|a| a.target_ip).collect::<Vec<_>>(), [E1]);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    let outputs = w.outputs();
    assert_eq!(outputs[0], Output::SetHost { ip: E1.into(), mac: E1_MAC });
    assert_eq!(released(&outputs), [&message]);
}

#[test]
fn a_requester_is_answered_when_the_path_is_published_and_not_before() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    assert_eq!(w.calls(), [Call::Resolve { source: E1.into(), ip: I1.into() }]);
    assert_eq!(World::frames(&w.outputs()), []);
    w.fabric.neighbours.insert(I1.into(), (hardware(1), false));
    // A second request before the path is known is not answered either.
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    w.publish(I1);
    assert_eq!(World::frames(&w.outputs()), []);
    w.know_infiniband(1, I1);
    w.publish(I1);
    let answers = World::frames(&w.outputs());
    assert_eq!(answers.len(), 1);
    let want = (ArpOperation::Reply, GATEWAY_MAC, I1, E1_MAC, E1);
    let a = answers[0];
    assert_eq!((a.operation, a.sender_mac, a.sender_ip, a.target_mac, a.target_ip), want);
    // From now on at once.
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    assert_eq!(World::frames(&w.outputs()), answers);
}

/// The reasons for which waiting packets are dropped; there must be no other output.
fn discarded(w: &mut World) -> Vec<DropReason> {
    let reason = |output: Output<Vec<u8>>| match output {
        Output::Discard { side: Side::Ethernet, packet, reason } if !packet.is_empty() => reason,
        other => panic!("{other:?}"),
    };
    w.outputs().into_iter().map(reason).collect()
}

#[test]
fn packets_without_an_answer_are_dropped_and_few_wait() {
    let mut w = World::new();
    for _ in 0..PER_DESTINATION + 2 {
        cold_frame(&mut w);
    }
    assert_eq!(discarded(&mut w), [DropReason::NeighbourQueueFull; 2]);
    let unreachable = ipoib::link::Event::NeighbourUnreachable { ip: I1.into() };
    w.segment.handle_link_event(w.now, &mut w.fabric, &unreachable);
    assert_eq!(discarded(&mut w), [DropReason::NeighbourUnresolved; PER_DESTINATION]);
    cold_frame(&mut w);
    w.pass(PATIENCE + secs(1));
    assert_eq!(discarded(&mut w), [DropReason::NeighbourUnresolved]);
    let (mut frame, arrival) = (packet(Side::Ethernet, E1, I1, 100), arrival(Side::Ethernet, None));
    for n in 0..1000u32 {
        // The same for many hosts.
        frame[8..12].copy_from_slice(&n.to_be_bytes());
        let ip = IpAddr::V4((0x0a4d_0100 + n).into());
        w.segment.handle_unresolved(w.now, &mut w.fabric, ip, arrival, frame.clone(), false);
    }
    assert_eq!(w.outputs().len(), 1000 - DESTINATIONS);
    w.segment.clear(DropReason::Shutdown);
    assert_eq!(discarded(&mut w), [DropReason::Shutdown; DESTINATIONS]);
}

/// Replies among frames: the address and the receiver.
fn replies(outputs: &Outputs) -> Vec<(Ipv4Addr, MacAddress)> {
    let frames = World::frames(outputs).into_iter();
    frames.filter(|a| a.operation == ArpOperation::Reply).map(|a| (a.sender_ip, a.target_mac)).collect()
}

/// E1 is being introduced to I1, which has a path: its address is proven, then I1 is queried in its name.
/// Returns the outputs in the meantime.
fn until_introduced(w: &mut World) -> Outputs {
    w.pass(PROVEN);
    let mut outputs = w.outputs();
    assert!(World::frames(&outputs).iter().any(|a| a.target_ip == E1), "E1 is heard before its name is used");
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    outputs.extend(w.outputs());
    assert_eq!(w.calls().last(), Some(&Call::Ask(I1.into())));
    outputs
}

#[test]
fn a_packet_waits_until_its_source_is_introduced() {
    for answers in [true, false] {
        let mut w = World::new();
        let frame = cold_frame(&mut w);
        assert_eq!(w.calls(), [Call::Resolve { source: GATEWAY.into(), ip: I1.into() }]);
        w.know_infiniband(1, I1);
        w.publish(I1);
        // I1 may know E1 at a queue pair of an earlier run: its answer to the packet would go there.
        assert_eq!(released(&w.outputs()), [] as [&Vec<u8>; 0]);
        let outputs = until_introduced(&mut w);
        assert_eq!(released(&outputs), [] as [&Vec<u8>; 0]);
        if answers {
            w.infiniband(InfiniBandOperation::Reply, 1, I1, E1);
        } else {
            w.pass(ms(510));
        }
        assert_eq!(released(&w.outputs()), [&frame], "answers: {answers}");
    }
}

#[test]
fn a_host_that_is_answered_itself_needs_no_introduction() {
    let mut w = World::new();
    let frame = cold_frame(&mut w);
    w.know_infiniband(1, I1);
    w.publish(I1);
    assert_eq!(released(&w.outputs()), [] as [&Vec<u8>; 0]);
    // I1 has a packet for E1, too, and looks it up.
    w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.outputs();
    w.calls();
    w.pass(ms(310));
    let reply = Call::Reply { ip: E1.into(), to: hardware(1), to_ip: I1.into() };
    assert!(w.calls().contains(&reply), "it knows E1 by this answer");
    assert_eq!(released(&w.outputs()), [&frame]);
}

#[test]
fn a_packet_whose_source_cannot_be_proven_is_sent_nevertheless() {
    // A host of InfiniBand has the address.
    let mut w = World::new();
    let frame = cold_frame(&mut w);
    w.know_infiniband(1, I1);
    w.publish(I1);
    w.infiniband(InfiniBandOperation::Reply, 2, E1, GATEWAY);
    w.pass(ms(10));
    assert_eq!(released(&w.outputs()), [&frame], "and does not wait any more");
    assert!(!w.calls().contains(&Call::Ask(I1.into())));
    // Its source is not of the segment, as behind a router.
    let mut w = World::new();
    let (frame, arrival) =
        (packet(Side::Ethernet, Ipv4Addr::new(192, 0, 2, 1), I1, 100), arrival(Side::Ethernet, None));
    w.segment.handle_unresolved(w.now, &mut w.fabric, I1.into(), arrival, frame.clone(), false);
    w.know_infiniband(1, I1);
    w.publish(I1);
    assert_eq!(released(&w.outputs()), [&frame]);
}

#[test]
fn a_packet_is_not_dropped_while_its_source_is_introduced_to_a_host_with_a_path() {
    let mut w = World::new();
    let frame = cold_frame(&mut w);
    w.pass(PATIENCE - ms(100));
    w.know_infiniband(1, I1);
    w.publish(I1);
    assert_eq!(released(&w.outputs()), [] as [&Vec<u8>; 0], "it is introduced first");
    w.pass(secs(1));
    let outputs = w.outputs();
    assert_eq!(released(&outputs), [&frame]);
    assert!(!outputs.iter().any(|o| matches!(o, Output::Discard { .. })));
}

#[test]
fn an_introduction_under_way_is_not_pushed_out_by_a_scan() {
    let mut w = World::new();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    let frame = cold_frame(&mut w);
    w.know_infiniband(1, I1);
    w.publish(I1);
    for n in 0..400u32 {
        w.ethernet(ArpOperation::Request, E2_MAC, E2, Ipv4Addr::from(0x0a4d_0400 + n));
    }
    assert_eq!(w.segment.introductions.len(), 256, "those without a path have made room");
    until_introduced(&mut w);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, E1);
    assert_eq!(released(&w.outputs()), [&frame]);
}

#[test]
fn a_requester_is_introduced_before_it_is_answered() {
    let mut w = World::new();
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    w.know_infiniband(1, I1);
    w.publish(I1);
    // A second request does not get an earlier answer.
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    assert_eq!(replies(&w.outputs()), []);
    assert_eq!(replies(&until_introduced(&mut w)), []);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, E1);
    assert_eq!(replies(&w.outputs()), [(I1, E1_MAC)]);
}

#[test]
fn a_scan_prevents_no_introduction() {
    let mut w = World::new();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    for n in 0..1000u32 {
        let nobody = Ipv4Addr::from(0x0a4d_0400 + n);
        w.ethernet(ArpOperation::Request, E2_MAC, E2, nobody);
    }
    let frame = cold_frame(&mut w);
    w.know_infiniband(1, I1);
    w.publish(I1);
    w.outputs();
    w.calls();
    until_introduced(&mut w);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, E1);
    assert_eq!(released(&w.outputs()), [&frame]);
}

#[test]
fn duplicate_address_detection_sees_the_other_side() {
    let mut w = World::new();
    // From Ethernet: the InfiniBand host is in no table, and its answer has no target address.
    w.ethernet(ArpOperation::Request, E2_MAC, NONE, I1);
    assert_eq!(w.calls(), [Call::Request { source: NONE.into(), ip: I1.into() }]);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, NONE);
    let answers = World::frames(&w.outputs());
    assert_eq!(answers.iter().map(|a| (a.sender_ip, a.target_mac)).collect::<Vec<_>>(), [(I1, E2_MAC)]);
    // The same from InfiniBand.
    w.infiniband(InfiniBandOperation::Request, 2, NONE, E1);
    assert_eq!(World::frames(&w.outputs())[0].target_ip, E1);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.pass(ms(300));
    let reply = Call::Reply { ip: E1.into(), to: hardware(2), to_ip: NONE.into() };
    assert!(w.calls().contains(&reply));
}

#[test]
fn an_infiniband_hosts_own_side_is_queried_first() {
    let mut w = World::new();
    w.infiniband(InfiniBandOperation::Request, 1, I1, I2);
    assert_eq!(w.calls(), [Call::Request { source: GATEWAY.into(), ip: I2.into() }]);
    // A router that answers for every address is quick; the owner is heard a little later.
    w.ethernet(ArpOperation::Reply, E1_MAC, I2, GATEWAY);
    w.pass(ms(100));
    w.infiniband(InfiniBandOperation::Reply, 2, I2, GATEWAY);
    w.pass(secs(2));
    assert!(w.calls().iter().all(|a| !matches!(a, Call::Reply { .. } | Call::Announce(_))));
    assert!(!w.outputs().iter().any(|o| matches!(o, Output::SetHost { .. })));
    assert_eq!(w.segment.counters().answers_withdrawn, 1);
    // If no host of the own side answers, the other side's answer is sent soon.
    w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.pass(ms(200));
    assert!(w.calls().iter().all(|a| !matches!(a, Call::Reply { .. })));
    w.pass(ms(100));
    let reply = Call::Reply { ip: E1.into(), to: hardware(1), to_ip: I1.into() };
    assert_eq!(w.calls(), [reply, Call::Announce(E1.into())]);
    // The address of a known host is answered at once.
    w.infiniband(InfiniBandOperation::Request, 2, I2, E1);
    assert_eq!(w.calls(), [Call::Reply { ip: E1.into(), to: hardware(2), to_ip: I2.into() }]);
}

#[test]
fn an_infiniband_host_that_answers_late_is_proven_by_full_silence_of_ethernet() {
    let mut w = World::new();
    w.infiniband(InfiniBandOperation::Request, 1, I1, I2);
    w.pass(ms(240));
    w.outputs();
    w.infiniband(InfiniBandOperation::Reply, 2, I2, GATEWAY);
    assert_eq!(World::frames(&w.outputs()).iter().map(|a| a.target_ip).collect::<Vec<_>>(), [I2]);
    w.pass(ms(240));
    assert!(w.segment.is_unproven(I2.into()));
    w.pass(ms(20));
    assert!(!w.segment.is_unproven(I2.into()));
}

#[test]
fn hosts_that_talk_to_their_own_side_only_are_not_proven() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.ethernet(ArpOperation::Request, E2_MAC, E2, E1);
    w.ethernet(ArpOperation::Reply, E2_MAC, E2, E1);
    assert_eq!(w.segment.hosts().count(), 1);
}

#[test]
fn a_request_of_a_host_while_its_answer_waits_is_answered_too() {
    let mut w = World::new();
    w.know_infiniband(2, I2);
    w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
    // Both start at the same moment: it requests a host of the other side before it answers.
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I2);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.outputs();
    w.pass(ms(300));
    let mut answers = World::frames(&w.outputs());
    answers.retain(|a| a.operation == ArpOperation::Reply);
    assert_eq!(answers.iter().map(|a| (a.sender_ip, a.target_mac)).collect::<Vec<_>>(), [(I2, E1_MAC)]);
    assert!(w.calls().contains(&Call::Reply { ip: E1.into(), to: hardware(1), to_ip: I1.into() }));
}

#[test]
fn the_own_side_is_queried_twice_before_an_answer_of_the_other_one_is_believed() {
    for limited in [false, true] {
        let mut w = World::new();
        w.infiniband(InfiniBandOperation::Request, 1, I1, I2);
        w.ethernet(ArpOperation::Reply, E1_MAC, I2, GATEWAY);
        w.calls();
        // I2 has not received the first query.
        w.fabric.is_limited = limited;
        w.pass(ms(130));
        if limited {
            // Without the second query silence proves nothing.
            assert_eq!(w.segment.counters().limited, 1);
        } else {
            assert_eq!(w.calls(), [Call::Request { source: GATEWAY.into(), ip: I2.into() }]);
            w.infiniband(InfiniBandOperation::Reply, 2, I2, GATEWAY);
            assert_eq!(w.segment.counters().answers_withdrawn, 1);
        }
        w.pass(ms(700));
        assert!(w.calls().iter().all(|a| !matches!(a, Call::Reply { .. } | Call::Announce(_))));
        assert!(!w.outputs().iter().any(|o| matches!(o, Output::SetHost { .. })));
    }
}

#[test]
fn an_answer_that_comes_late_leaves_the_address_to_neither_side() {
    for after in [ms(300), secs(9), secs(11)] {
        let mut w = World::new();
        w.infiniband(InfiniBandOperation::Request, 1, I1, I2);
        w.ethernet(ArpOperation::Reply, E1_MAC, I2, GATEWAY);
        w.pass(after);
        let reply = Call::Reply { ip: I2.into(), to: hardware(1), to_ip: I1.into() };
        assert!(w.calls().contains(&reply));
        w.infiniband(InfiniBandOperation::Reply, 2, I2, GATEWAY);
        // After ten seconds it is a claim, which the owner may refuse.
        let late = after < secs(10);
        assert_eq!(w.segment.counters().answers_withdrawn, u64::from(late), "{after:?}");
        assert_eq!(w.segment.hosts.get(I2.into()).is_none(), late, "{after:?}");
        if late {
            w.infiniband(InfiniBandOperation::Request, 1, I1, I2);
            w.pass(secs(2));
            assert!(!w.calls().contains(&reply));
        }
    }
}

#[test]
fn each_ethernet_host_is_announced_to_infiniband_when_it_is_proven() {
    // After a restart InfiniBand hosts know all Ethernet hosts, not only the first one, at queue pairs that
    // are gone.
    let mut w = World::new();
    w.know_infiniband(1, I1);
    for (mac, ip) in [(E1_MAC, E1), (E2_MAC, E2)] {
        w.ethernet(ArpOperation::Request, mac, ip, I1);
        assert_eq!(replies(&w.outputs()), [(I1, mac)]);
        w.pass(PROVEN);
        assert!(w.calls().contains(&Call::Announce(ip.into())), "{ip}");
    }
}
