//! Meanings of ARP packets, and rejection of false ones.

use super::*;
use crate::segment::{ArpMeaning, check_ethernet, check_infiniband};

/// Hosts of another subnet.
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 8);
const OTHER_TOO: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

fn arp(operation: ArpOperation, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> EthernetArp {
    EthernetArp { operation, sender_mac: E1_MAC, sender_ip, target_mac: MacAddress::ZERO, target_ip }
}

#[test]
fn arp_is_classified_and_false_claims_are_dropped() {
    let settings = own();
    let check = |a: EthernetArp| check_ethernet(&a, E1_MAC, &settings);
    let (request, reply) = (ArpOperation::Request, ArpOperation::Reply);
    assert_eq!(check(arp(request, E1, I1)), Ok(ArpMeaning::Request { target: I1 }));
    assert_eq!(check(arp(reply, E1, GATEWAY)), Ok(ArpMeaning::Reply));
    assert_eq!(check(arp(request, E1, E1)), Ok(ArpMeaning::Announcement));
    assert_eq!(check(arp(reply, E1, E1)), Ok(ArpMeaning::Announcement));
    assert_eq!(check(arp(request, Ipv4Addr::UNSPECIFIED, E1)), Ok(ArpMeaning::Probe { target: E1 }));
    for (sender, target) in [
        (GATEWAY, I1),
        (Ipv4Addr::BROADCAST, I1),
        (Ipv4Addr::LOCALHOST, I1),
        (E1, Ipv4Addr::new(10, 77, 0, 255)),
        (E1, Ipv4Addr::new(224, 0, 0, 1)),
        // A false claim is false whatever the other fields of the packet are.
        (GATEWAY, OTHER),
        (OTHER, Ipv4Addr::BROADCAST),
        (Ipv4Addr::LOCALHOST, OTHER),
    ] {
        assert_eq!(check(arp(request, sender, target)), Err(DropReason::HostileArp), "{sender} {target}");
    }
    // Hosts of another subnet on the same wire speak to each other, and claim nothing of this one.
    for (sender, target) in
        [(OTHER, I1), (E1, OTHER), (OTHER, OTHER), (OTHER, OTHER_TOO), (Ipv4Addr::UNSPECIFIED, OTHER)]
    {
        for operation in [request, reply] {
            let expected = match operation {
                ArpOperation::Reply if sender.is_unspecified() => DropReason::HostileArp,
                _ => DropReason::ArpOffSubnet,
            };
            assert_eq!(
                check(arp(operation, sender, target)),
                Err(expected),
                "{operation:?} {sender} {target}"
            );
        }
    }
    assert_eq!(check(arp(reply, Ipv4Addr::UNSPECIFIED, E1)), Err(DropReason::HostileArp));
    // The answer to a probe names no target.
    assert_eq!(check(arp(reply, E1, Ipv4Addr::UNSPECIFIED)), Ok(ArpMeaning::Reply));
    let group = EthernetArp { sender_mac: MacAddress::BROADCAST, ..arp(request, E1, I1) };
    assert_eq!(check(group), Err(DropReason::HostileArp));
    let ours = EthernetArp { sender_mac: GATEWAY_MAC, ..arp(request, E1, I1) };
    assert_eq!(check(ours), Err(DropReason::LoopSelf));
}

#[test]
fn arp_of_the_infiniband_side() {
    let (ours, peer, settings) = (hardware(0), hardware(9), own());
    let queried = Arp::request(ours, E1, I1);
    assert_eq!(check_infiniband(&queried, &[ours], &settings), Err(DropReason::LoopSelf));
    assert!(check_infiniband(&queried.reply(peer), &[ours], &settings).is_ok());
    let management = HardwareAddress { qpn: Qpn::GSI, ..peer };
    assert_eq!(check_infiniband(&queried.reply(management), &[ours], &settings), Err(DropReason::HostileArp));
}

#[test]
fn arp_that_names_another_queue_pair_than_its_senders_is_forged() {
    let mut w = World::new();
    w.know_infiniband(1, I1);
    let forged = HardwareAddress { flags: AddressFlags::NONE, ..hardware(1) };
    for operation in [InfiniBandOperation::Request, InfiniBandOperation::Reply] {
        w.infiniband_from(2, &Arp { operation, ..Arp::request(forged, I1, GATEWAY) });
        assert_eq!(w.outputs(), [Output::Drop(DropReason::ForgedArp, 1)]);
    }
    // This includes the claim of an Ethernet host's address.
    w.know_ethernet(E1_MAC, E1);
    w.infiniband_from(2, &Arp::request(hardware(1), E1, E1));
    assert_eq!(w.outputs(), [Output::Drop(DropReason::ForgedArp, 1)]);
    assert_eq!((w.calls(), w.fabric.hardware(I1.into())), (vec![], Some(hardware(1))));
}

#[test]
fn a_station_that_is_not_known_for_its_address_is_noted_and_known_hosts_are_not() {
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.know_infiniband(1, I1);
    w.segment.take_unknown_sender();
    w.ethernet(ArpOperation::Request, E1_MAC, E1, I1);
    w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
    assert!(!w.segment.take_unknown_sender());
    let unknown: [fn(&mut World); 4] = [
        |w| w.ethernet(ArpOperation::Request, E2_MAC, E1, I1),
        |w| w.ethernet(ArpOperation::Request, E2_MAC, Ipv4Addr::UNSPECIFIED, I1),
        |w| w.infiniband(InfiniBandOperation::Request, 3, I1, E1),
        |w| w.infiniband(InfiniBandOperation::Request, 3, Ipv4Addr::UNSPECIFIED, E1),
    ];
    for speak in unknown {
        speak(&mut w);
        assert!(w.segment.take_unknown_sender());
        assert!(!w.segment.take_unknown_sender(), "once");
    }
}
