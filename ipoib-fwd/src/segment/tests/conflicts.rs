//! One owner per address: claims, moves, addresses that move too often.

use super::*;
use crate::segment::pair::Place;
use ipoib::link::Event;

pub(super) fn moved(outputs: &Outputs) -> Vec<Happening> {
    let happening = |output: &Output<_>| match output {
        Output::Happening(happening) => Some(*happening),
        _ => None,
    };
    outputs.iter().filter_map(happening).collect()
}

#[test]
fn an_infiniband_host_that_answers_keeps_its_address() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    // A gratuitous request of an Ethernet host for it.
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    assert_eq!(w.calls(), [Call::Ask(I1.into())]);
    assert_eq!(w.outputs(), [], "nothing is learned or announced");
    w.pass(ms(100));
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    let outputs = w.outputs();
    assert_eq!(
        moved(&outputs),
        [Happening::Conflict {
            ip: I1.into(),
            owner: Place::InfiniBand(hardware(1)),
            claimant: Place::Ethernet(E2_MAC)
        }]
    );
    // The owner is announced on the Ethernet side, once in ten seconds only.
    let defence = World::frames(&outputs);
    assert_eq!(
        defence.iter().map(|a| (a.sender_mac, a.sender_ip, a.target_ip)).collect::<Vec<_>>(),
        [(GATEWAY_MAC, I1, I1)]
    );
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    assert_eq!(w.outputs(), [Output::Drop(DropReason::AddressConflict, 1)]);
    answered(&mut w, 2);
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    assert_eq!(World::frames(&w.outputs()), []);
    answered(&mut w, 5);
    assert_eq!(w.segment.counters().moves, 0);
    assert!(w.fabric.has_way(I1.into()) && w.segment.hosts().count() == 0);
}

/// Lets time pass while each frame that the gateway sends is lost in its own queues.
fn pass_without_frames(w: &mut World, time: Duration) -> usize {
    let (end, mut lost) = (w.now + time, 0);
    while w.now < end {
        for output in w.outputs() {
            if let Output::Frame { bytes, .. } = output {
                w.segment.handle_unsent(&bytes);
                lost += 1;
            }
        }
        w.pass(ms(10));
    }
    lost
}

#[test]
fn a_query_of_ethernet_that_was_not_sent_ends_no_claim_about_which_infiniband_is_queried() {
    let mut w = World::new();
    w.ethernet(ArpOperation::Request, E1_MAC, E1, E1);
    let query = crate::segment::arp::request_ethernet(E1, GATEWAY, GATEWAY_MAC);
    w.segment.handle_unsent(&query.to_frame(MacAddress::BROADCAST));
    w.pass(PROVEN);
    assert!(w.calls().contains(&Call::Announce(E1.into())));
}

#[test]
fn a_query_that_was_not_sent_is_not_taken_for_the_owners_silence() {
    // For an owner that is known, and for one that is not.
    for known in [true, false] {
        let mut w = World::new();
        if known {
            w.know_ethernet(E1_MAC, E1);
        }
        w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
        assert!(pass_without_frames(&mut w, secs(3)) > 0);
        assert_eq!(w.segment.counters().moves, 0);
        assert_eq!(w.segment.hosts().count(), usize::from(known), "it keeps its address");
        let announced = World::frames(&w.outputs()).iter().any(|arp| arp.sender_ip == E1);
        assert!(!announced, "it is not on InfiniBand");
    }
    // Nor is an InfiniBand host proven by a side that was not queried.
    let mut w = World::new();
    w.fabric.sought.insert(I1.into());
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    assert!(pass_without_frames(&mut w, secs(3)) > 0);
    assert!(w.segment.is_unproven(I1.into()));
}

#[test]
fn queries_that_were_not_sent_leave_a_host_that_was_not_heard_for_a_while_known() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.pass(secs(6));
    w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
    assert!(pass_without_frames(&mut w, secs(5)) > 3);
    assert_eq!(w.segment.hosts().count(), 1);
    // One that stays silent is gone.
    w.pass(secs(5));
    assert_eq!(w.segment.hosts().count(), 0);
}

/// Lets time pass while each query to InfiniBand is lost in the gateway's own queues.
fn pass_without_queries(w: &mut World, time: Duration) -> usize {
    let (end, mut lost) = (w.now + time, 0);
    while w.now < end {
        for queried in w.calls() {
            if let Call::Ask(ip) | Call::AskAt(ip, _) | Call::Request { ip, .. } = queried {
                w.segment.handle_link_event(w.now, &mut w.fabric, &Event::QueryUnsent { ip });
                lost += 1;
            }
        }
        w.pass(ms(10));
    }
    lost
}

#[test]
fn a_query_of_infiniband_that_was_not_sent_is_not_taken_for_the_owners_silence() {
    // For an owner that is known, and for one that is not.
    for known in [true, false] {
        let mut w = World::new();
        if known {
            w.know_infiniband(1, I1);
        }
        w.ethernet(ArpOperation::Request, E1_MAC, I1, I1);
        assert!(pass_without_queries(&mut w, secs(3)) > 0);
        assert_eq!(w.segment.counters().moves, 0);
        assert_eq!(w.fabric.neighbours.contains_key(&I1.into()), known, "it keeps its address");
        let announced = w.calls().contains(&Call::Announce(I1.into()));
        assert!(!announced, "it is not on Ethernet");
    }
    // A query of InfiniBand has no effect on a claim for which Ethernet is queried.
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
    w.segment.handle_link_event(w.now, &mut w.fabric, &Event::QueryUnsent { ip: E1.into() });
    w.pass(secs(3));
    assert_eq!(w.segment.counters().moves, 1, "Ethernet was queried, and stayed silent");
}

#[test]
fn an_ethernet_host_that_answers_keeps_its_address() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
    let queried = w.outputs();
    assert!(matches!(&queried[..], [Output::Frame { bytes, .. }] if bytes[..6] == E1_MAC.0), "by unicast");
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    assert_eq!(
        moved(&w.outputs()),
        [Happening::Conflict {
            ip: E1.into(),
            owner: Place::Ethernet(E1_MAC),
            claimant: Place::InfiniBand(hardware(1))
        }]
    );
    assert_eq!(w.calls(), [Call::Announce(E1.into())]);
    for _ in 0..100 {
        w.pass(ms(50));
        w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    }
    assert_eq!((w.segment.counters().conflicts, w.segment.counters().moves), (1, 0));
    assert_eq!(w.segment.hosts().next().unwrap().mac, Some(E1_MAC));
    assert!(w.fabric.hardware(E1.into()).is_none());
}

/// The owner answers all queries of the next seconds.
fn answered(w: &mut World, seconds: u64) {
    for _ in 0..seconds * 20 {
        w.pass(ms(50));
        if w.calls().contains(&Call::Ask(I1.into())) {
            w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
        }
    }
}

#[test]
fn an_owner_that_answers_once_more_before_it_goes_loses_its_address_soon() {
    for owner_stays in [0, 1, 2, 3] {
        let mut w = World::new();
        w.know_infiniband(1, I1);
        // The new owner announces itself once, as with VRRP, while the old one still answers.
        w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
        w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
        w.calls();
        answered(&mut w, owner_stays);
        w.outputs();
        w.pass(secs(5));
        assert_eq!(
            moved(&w.outputs()),
            [Happening::AddressMoved { ip: I1.into(), to: Place::Ethernet(E2_MAC) }],
            "{owner_stays}"
        );
        assert_eq!(w.segment.counters().conflicts, 1, "one claim, one conflict");
    }
}

#[test]
fn an_owner_that_stays_is_queried_a_few_times_only() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    w.calls();
    answered(&mut w, 10);
    w.pass(secs(30));
    assert_eq!(w.calls(), []);
    assert_eq!((w.segment.counters().conflicts, w.segment.counters().moves), (1, 0));
}

#[test]
fn a_card_that_answers_once_more_before_it_goes_is_queried_again_soon() {
    // On Ethernet: the old card is queried, then all hosts; the new one answers.
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.ethernet(ArpOperation::Request, E2_MAC, E1, E1);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    assert_eq!(w.segment.hosts().next().unwrap().mac, Some(E1_MAC));
    w.outputs();
    w.pass(ms(1600));
    let to = |o: &Output<Vec<u8>>| match o {
        Output::Frame { bytes, .. } => bytes.first_chunk::<6>().map(|to| MacAddress(*to)),
        _ => None,
    };
    assert_eq!(w.outputs().iter().filter_map(to).collect::<Vec<_>>(), [E1_MAC; 2]);
    w.pass(ms(200));
    assert_eq!(w.outputs().iter().filter_map(to).collect::<Vec<_>>(), [MacAddress::BROADCAST]);
    w.ethernet(ArpOperation::Reply, E2_MAC, E1, GATEWAY);
    assert_eq!(w.segment.hosts().next().unwrap().mac, Some(E2_MAC));
    // On InfiniBand the link sends the queries, up to three times.
    w.know_infiniband(1, I1);
    w.infiniband(InfiniBandOperation::Request, 2, I1, I1);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    w.calls();
    w.pass(secs(20));
    let mut queried = w.calls();
    queried.retain(|queried| matches!(queried, Call::Verify(_)));
    assert_eq!(queried, [Call::Verify(I1.into()); 3]);
}

#[test]
fn a_claim_is_not_proven_by_queries_that_were_not_sent() {
    // The link's rate limit drops the first query, or the second one.
    for limited_after in [ms(0), ms(100)] {
        let mut w = World::new();
        w.fabric.is_limited = limited_after.is_zero();
        w.ethernet(ArpOperation::Request, E2_MAC, I1, GATEWAY);
        w.pass(limited_after);
        w.fabric.is_limited = true;
        w.pass(secs(3));
        assert!(!w.outputs().iter().any(|o| matches!(o, Output::SetHost { .. })), "{limited_after:?}");
        assert_eq!(w.segment.counters().limited, 1);
        // The next claim is verified.
        w.fabric.is_limited = false;
        w.know_ethernet(E2_MAC, I1);
    }
}

#[test]
fn an_owner_keeps_its_address_if_the_query_to_its_whole_side_was_not_sent() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.pass(ms(500));
    w.fabric.is_limited = true;
    w.pass(secs(3));
    assert_eq!((w.segment.counters().moves, w.segment.counters().limited), (0, 1));
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(1)));
}

#[test]
fn an_owner_that_answered_once_more_is_queried_again_if_a_query_was_not_sent() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
    w.outputs();
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.outputs();
    // The owner has gone, and the claimant sends nothing more.
    assert!(pass_without_frames(&mut w, ms(1200)) > 0);
    w.pass(secs(2));
    assert_eq!(w.segment.counters().moves, 1);
}

#[test]
fn an_address_moves_to_ethernet_when_its_owner_is_silent() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.pass(ms(900));
    let all = Call::Request { source: GATEWAY.into(), ip: I1.into() };
    assert_eq!(w.calls(), [Call::Ask(I1.into()), Call::Ask(I1.into()), all]);
    assert_eq!(w.outputs(), []);
    w.pass(ms(200));
    let outputs = w.outputs();
    assert!(outputs.contains(&Output::SetHost { ip: I1.into(), mac: E2_MAC }));
    assert_eq!(moved(&outputs), [Happening::AddressMoved { ip: I1.into(), to: Place::Ethernet(E2_MAC) }]);
    assert!(w.fabric.hardware(I1.into()).is_none());
    assert_eq!(
        w.calls(),
        [Call::Announce(I1.into())],
        "hosts with the old address in their caches learn the new one"
    );
}

#[test]
fn an_address_moves_to_infiniband_when_its_owner_is_silent() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.infiniband(InfiniBandOperation::Request, 1, E1, E1);
    w.pass(ms(1100));
    let outputs = w.outputs();
    assert!(outputs.contains(&Output::RemoveHost { ip: E1.into() }));
    assert_eq!(
        moved(&outputs),
        [Happening::AddressMoved { ip: E1.into(), to: Place::InfiniBand(hardware(1)) }]
    );
    let announced = World::frames(&outputs);
    assert_eq!(announced.iter().filter(|a| (a.sender_mac, a.sender_ip) == (GATEWAY_MAC, E1)).count(), 1);
    assert_eq!(w.fabric.hardware(E1.into()), Some(hardware(1)));
}

#[test]
fn a_host_that_moves_with_a_request_is_answered_after_the_move() {
    let mut w = World::new();
    w.know_ethernet(E2_MAC, E2);
    w.know_infiniband(1, I1);
    // A former InfiniBand host sends a request on Ethernet for another InfiniBand host, without announcing
    // itself.
    w.know_infiniband(2, I2);
    w.ethernet(ArpOperation::Request, E1_MAC, I1, I2);
    assert_eq!(World::frames(&w.outputs()), []);
    w.pass(ms(1100));
    let answers = World::frames(&w.outputs());
    assert_eq!(answers.iter().map(|a| (a.sender_ip, a.target_mac)).collect::<Vec<_>>(), [(I2, E1_MAC)]);
}

#[test]
fn an_address_that_moves_too_often_is_held_down() {
    for hold in [secs(60), secs(150)] {
        held_down_for(hold);
    }
}

fn held_down_for(hold: Duration) {
    let mut w = World::with(Ageing { hold, ..Ageing::default() });
    w.know_infiniband(1, I1);
    let mut held = None;
    for n in 0..10 {
        if n % 2 == 0 {
            w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
        } else {
            w.infiniband(InfiniBandOperation::Request, 1, I1, I1);
        }
        w.pass(ms(1200));
        held = moved(&w.outputs()).iter().find(|h| matches!(h, Happening::HeldDown { .. })).copied().or(held);
    }
    assert_eq!(held, Some(Happening::HeldDown { ip: I1.into(), owner: Place::InfiniBand(hardware(1)) }));
    let counters = *w.segment.counters();
    assert_eq!((counters.moves, counters.held_down, counters.claims_dropped), (6, 1, 2));
    w.pass(hold - secs(10));
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.pass(ms(1200));
    assert_eq!(w.segment.counters().moves, 6);
    // When that is over it may move again.
    w.pass(secs(12));
    w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
    w.pass(ms(1200));
    assert_eq!(w.segment.counters().moves, 7);
}

#[test]
fn disputes_are_bounded() {
    let mut w = World::new();
    for n in 0..3000u32 {
        let ip = Ipv4Addr::from(0x0a4d_0000 + n % 200 + 10);
        w.know_infiniband(1, ip);
        w.ethernet(ArpOperation::Request, E2_MAC, ip, ip);
    }
    assert_eq!(w.calls().len(), 200, "one query each, however often it is claimed");
}

#[test]
fn another_card_of_the_same_side_is_believed_at_once_unless_the_old_one_answers() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    let card = MacAddress([2, 0, 0, 0, 9, 9]);
    let set = |mac| Output::SetHost { ip: E1.into(), mac };
    w.ethernet(ArpOperation::Request, card, E1, E1);
    let outputs = w.outputs();
    assert!(outputs.contains(&set(card)), "{outputs:?}");
    let queried = |o: &Output<Vec<u8>>| matches!(o, Output::Frame { bytes, .. } if bytes[..6] == E1_MAC.0);
    assert_eq!(outputs.iter().filter(|o| queried(o)).count(), 1, "the old card is queried");
    // It does not answer: the new one stays, whatever comes later.
    w.pass(ms(1100));
    w.ethernet(ArpOperation::Request, card, E1, GATEWAY);
    assert_eq!(w.segment.counters().conflicts, 0);
    w.outputs();
    // Another card again, and this time the previous card is there.
    w.ethernet(ArpOperation::Request, E2_MAC, E1, E1);
    assert!(w.outputs().contains(&set(E2_MAC)));
    w.ethernet(ArpOperation::Reply, card, E1, GATEWAY);
    let outputs = w.outputs();
    assert!(outputs.contains(&set(card)));
    assert_eq!(
        moved(&outputs),
        [Happening::Conflict {
            ip: E1.into(),
            owner: Place::Ethernet(card),
            claimant: Place::Ethernet(E2_MAC)
        }]
    );
    w.ethernet(ArpOperation::Request, E2_MAC, E1, E1);
    assert_eq!(w.outputs(), [Output::Drop(DropReason::AddressConflict, 1)]);
}

#[test]
fn a_third_port_does_not_make_the_first_forgotten() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    // One host claims the address by two ports, one after the other: its owner answers both.
    w.infiniband(InfiniBandOperation::Request, 2, I1, I1);
    w.infiniband(InfiniBandOperation::Request, 3, I1, I1);
    assert_eq!(w.calls(), [Call::Ask(I1.into())]);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(1)));
    for port in [3, 2] {
        w.infiniband(InfiniBandOperation::Reply, port, I1, GATEWAY);
        assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(1)), "the owner keeps it");
    }
}

#[test]
fn another_port_on_infiniband_is_believed_at_once_unless_the_old_one_answers() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    w.infiniband(InfiniBandOperation::Request, 2, I1, I1);
    assert_eq!(w.calls(), [Call::Ask(I1.into())], "the old port is queried");
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(2)));
    // It does not answer: the new one stays, whatever comes later.
    w.pass(ms(1100));
    w.infiniband(InfiniBandOperation::Request, 2, I1, GATEWAY);
    assert_eq!(w.segment.counters().conflicts, 0);
    w.outputs();
    w.calls();
    // Another port again, and this time the previous port is there.
    w.infiniband(InfiniBandOperation::Request, 3, I1, I1);
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(3)));
    w.infiniband(InfiniBandOperation::Reply, 2, I1, GATEWAY);
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(2)));
    assert_eq!(
        moved(&w.outputs()),
        [Happening::Conflict {
            ip: I1.into(),
            owner: Place::InfiniBand(hardware(2)),
            claimant: Place::InfiniBand(hardware(3))
        }]
    );
    w.infiniband(InfiniBandOperation::Request, 3, I1, I1);
    assert_eq!(w.outputs(), [Output::Drop(DropReason::AddressConflict, 1)]);
    assert_eq!(w.fabric.hardware(I1.into()), Some(hardware(2)), "refused");
}

#[test]
fn a_request_in_the_name_of_a_host_that_has_come_since_gets_neither_answer_nor_address() {
    let mut w = World::new();
    // E2's host is not known yet, and a host on InfiniBand sends a request as if it were there.
    w.infiniband(InfiniBandOperation::Request, 3, E2, E1);
    w.know_ethernet(E2_MAC, E2);
    w.know_infiniband(1, I1);
    w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
    w.infiniband(InfiniBandOperation::Request, 2, I1, E1);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    w.pass(ms(300));
    let answered: Vec<_> =
        w.calls().into_iter().filter(|queried| matches!(queried, Call::Reply { .. })).collect();
    assert_eq!(answered.len(), 1, "{answered:?}");
    assert!(!w.fabric.neighbours.contains_key(&E2.into()));
}

#[test]
fn an_owner_that_missed_a_query_is_queried_again() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.ethernet(ArpOperation::Request, E2_MAC, E1, E1);
    w.outputs();
    w.pass(ms(500));
    let queried = |o: &&Output<Vec<u8>>| matches!(o, Output::Frame { bytes, .. } if bytes[..6] == E1_MAC.0);
    assert_eq!(w.outputs().iter().filter(queried).count(), 1);
    w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
    assert_eq!(w.segment.hosts().next().unwrap().mac, Some(E1_MAC));
    assert_eq!(w.segment.counters().conflicts, 1);
    // On InfiniBand in the same way, and the queries end.
    w.know_infiniband(1, I1);
    w.infiniband(InfiniBandOperation::Request, 2, I1, I1);
    w.calls();
    w.pass(secs(5));
    let of_1 = HardwareAddress { flags: AddressFlags::NONE, ..hardware(1) };
    let mut queried = w.calls();
    queried.retain(|queried| matches!(queried, Call::AskAt(..)));
    assert_eq!(queried, [Call::AskAt(I1.into(), of_1); 2]);
}

#[test]
fn a_second_answer_is_believed_only_if_the_first_host_is_silent() {
    for stays in [true, false] {
        let mut w = World::new();
        w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
        w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
        w.outputs();
        // Before either answer is believed, another host answers in the same way.
        w.pass(ms(50));
        w.ethernet(ArpOperation::Reply, E2_MAC, E1, GATEWAY);
        let queried = w.outputs();
        assert!(
            matches!(&queried[..], [Output::Frame { bytes, .. }] if bytes[..6] == E1_MAC.0),
            "{queried:?}"
        );
        if stays {
            w.ethernet(ArpOperation::Reply, E1_MAC, E1, GATEWAY);
            let outputs = w.outputs();
            assert_eq!(
                moved(&outputs),
                [Happening::Conflict {
                    ip: E1.into(),
                    owner: Place::Ethernet(E1_MAC),
                    claimant: Place::Ethernet(E2_MAC)
                }]
            );
            w.ethernet(ArpOperation::Reply, E2_MAC, E1, GATEWAY);
            assert_eq!(w.outputs(), [Output::Drop(DropReason::AddressConflict, 1)]);
        }
        w.pass(ms(300));
        assert!(w.calls().contains(&Call::Reply { ip: E1.into(), to: hardware(1), to_ip: I1.into() }));
        let mac = w.segment.hosts().next().unwrap().mac;
        assert_eq!(mac, Some(if stays { E1_MAC } else { E2_MAC }));
    }
}

#[test]
fn an_announcement_is_forwarded_when_the_other_side_has_been_silent() {
    for owner_answers in [false, true] {
        let mut w = World::new();
        w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
        assert_eq!(w.calls(), [Call::Request { source: GATEWAY.into(), ip: I1.into() }]);
        if owner_answers {
            w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
        }
        w.pass(secs(20));
        let announced = w.calls().contains(&Call::Announce(I1.into()));
        // An owner that does not answer again has gone: then the announcement is forwarded.
        assert!(announced, "{owner_answers}");
        assert_eq!(w.segment.counters().conflicts, u64::from(owner_answers));
    }
}

#[test]
fn announcements_of_a_liar_do_not_hide_the_owner() {
    let mut w = World::new();
    // The owner is not known, and answers all queries; a liar of the other side announces its address
    // repeatedly.
    for _ in 0..2 {
        w.ethernet(ArpOperation::Request, E2_MAC, I1, I1);
        w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    }
    w.pass(ms(100));
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    assert!(w.fabric.is_sought(I1.into()));
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    assert!(w.segment.is_unproven(I1.into()), "it is found");
    w.pass(ms(260));
    assert!(!w.segment.is_unproven(I1.into()));
    // The same for a host of Ethernet.
    w.infiniband(InfiniBandOperation::Request, 2, E2, E2);
    w.ethernet(ArpOperation::Reply, E2_MAC, E2, GATEWAY);
    w.pass(ms(100));
    w.infiniband(InfiniBandOperation::Request, 3, I2, E2);
    w.ethernet(ArpOperation::Reply, E2_MAC, E2, GATEWAY);
    w.pass(ms(260));
    assert_eq!(w.segment.hosts.get(E2.into()), Some(E2_MAC));
    assert!(!w.segment.is_unproven(E2.into()));
}

#[test]
fn an_announcement_of_a_host_that_is_being_proven_is_forwarded_afterwards() {
    // Ethernet: the host has answered a request of the other side before, or answers it by its announcement.
    for answered in [true, false] {
        let mut w = World::new();
        w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
        if answered {
            w.ethernet(ArpOperation::Request, E1_MAC, E1, GATEWAY);
        }
        w.ethernet(ArpOperation::Request, E1_MAC, E1, E1);
        w.pass(ms(200));
        assert!(!w.calls().contains(&Call::Announce(E1.into())));
        w.pass(ms(60));
        let announced = w.calls().iter().filter(|a| **a == Call::Announce(E1.into())).count();
        assert_eq!(announced, 1, "{answered}");
    }
    // InfiniBand.
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    w.infiniband(InfiniBandOperation::Reply, 1, I1, GATEWAY);
    w.infiniband(InfiniBandOperation::Request, 1, I1, I1);
    w.outputs();
    w.pass(ms(260));
    let frames = World::frames(&w.outputs());
    assert_eq!(frames.iter().filter(|a| (a.sender_ip, a.target_ip) == (I1, I1)).count(), 1);
}

#[test]
fn all_addresses_of_a_router_that_moves_are_announced_where_they_were() {
    let mut w = World::new();
    w.segment.own.settings.address = GatewayAddress::new(GATEWAY, 16);
    let all: Vec<_> = (0..200u32).map(|n| Ipv4Addr::from(0x0a4d_0400 + n)).collect();
    for ip in &all {
        w.know_infiniband(1, *ip);
        w.ethernet(ArpOperation::Request, E2_MAC, *ip, *ip);
    }
    w.pass(ms(1500));
    let queried = w.calls();
    assert!(all.iter().all(|ip| queried.contains(&Call::Announce((*ip).into()))));
    w.outputs();
    // In the other direction.
    for ip in &all {
        w.infiniband(InfiniBandOperation::Request, 1, *ip, *ip);
    }
    w.pass(ms(1500));
    let frames = World::frames(&w.outputs());
    assert!(all.iter().all(|ip| frames.iter().any(|a| (a.sender_ip, a.target_ip) == (*ip, *ip))));
}
