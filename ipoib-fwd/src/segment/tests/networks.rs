//! Another address, other subnets, other routes while hosts talk.

use super::*;
use crate::forward::{Prefix, Route, Routes};

const FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const FAR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 7]);

fn routes(subnets: &[Ipv4Addr], via: Option<Ipv4Addr>) -> Routes {
    let subnets: Vec<Prefix> = subnets.iter().filter_map(|ip| Prefix::of(*ip, 24)).collect();
    let to = Prefix::of(Ipv4Addr::UNSPECIFIED, 0).unwrap();
    Routes::new(&subnets, &via.map(|via| Route { to, via }).into_iter().collect::<Vec<_>>()).unwrap()
}

fn change(w: &mut World, address: Ipv4Addr, routes: Routes) {
    w.segment.set_networks(w.now, &mut w.fabric, GatewayAddress::new(address, 24), routes);
}

#[test]
fn hosts_of_a_subnet_that_goes_are_forgotten_and_the_others_stay() {
    let mut w = World::new();
    change(&mut w, GATEWAY, routes(&[FAR], None));
    w.know_ethernet(E1_MAC, E1);
    w.know_ethernet(FAR_MAC, FAR);
    let far = Ipv4Addr::from_bits(FAR.to_bits() + 1);
    w.know_infiniband(1, I1);
    w.know_infiniband(2, far);
    change(&mut w, GATEWAY, routes(&[], Some(E1)));
    let known = |ip: Ipv4Addr| w.fabric.neighbours.contains_key(&ip.into());
    assert!(known(I1) && !known(far), "what comes from it now comes by a router of any side");
    assert_eq!(w.outputs(), [Output::RemoveHost { ip: FAR.into() }]);
    assert_eq!(w.segment.hosts().map(|h| h.ip).collect::<Vec<_>>(), [IpAddr::V4(E1)]);
    // It is a host of another network now: its claims here have no effect.
    w.ethernet(ArpOperation::Request, FAR_MAC, FAR, GATEWAY);
    assert!(w.outputs().iter().all(|o| !matches!(o, Output::SetHost { .. })));
}

#[test]
fn waiting_packets_are_looked_up_again_and_none_is_lost() {
    let mut w = World::new();
    let to_ethernet = packet(Side::InfiniBand, I1, E2, 100);
    let to_infiniband = packet(Side::Ethernet, E1, I2, 100);
    for (side, to, packet) in [(Side::InfiniBand, E2, &to_ethernet), (Side::Ethernet, I2, &to_infiniband)] {
        let (to, arrival) = (IpAddr::V4(to), arrival(side, None));
        w.segment.handle_unresolved(w.now, &mut w.fabric, to, arrival, packet.clone(), false);
    }
    w.outputs();
    change(&mut w, GATEWAY, routes(&[], Some(E1)));
    let outputs = w.outputs();
    let released: Vec<_> = outputs
        .iter()
        .filter_map(|o| match o {
            Output::Release { side, packet, .. } => Some((*side, packet.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(released.len(), 2, "{outputs:?}");
    assert!(released.contains(&(Side::InfiniBand, to_ethernet)));
    assert!(released.contains(&(Side::Ethernet, to_infiniband)));
    assert!(!outputs.iter().any(|o| matches!(o, Output::Drop(..) | Output::Discard { .. })));
    w.pass(secs(10));
    assert!(
        !w.outputs().iter().any(|o| matches!(o, Output::Drop(..) | Output::Discard { .. })),
        "no packet waits any more"
    );
}

#[test]
fn a_new_own_address_is_answered_for_and_announced_and_the_old_one_is_not() {
    let new = Ipv4Addr::new(10, 77, 0, 253);
    let mut w = World::new();
    w.know_ethernet(E1_MAC, E1);
    w.calls();
    change(&mut w, new, Routes::default());
    w.pass(secs(1));
    let queried = w.calls();
    assert!(
        queried.contains(&Call::Announce(new.into())) && !queried.contains(&Call::Announce(GATEWAY.into()))
    );
    w.outputs();
    w.ethernet(ArpOperation::Request, E1_MAC, E1, new);
    assert_eq!(World::frames(&w.outputs())[0].sender_ip, new);
    w.ethernet(ArpOperation::Request, E1_MAC, E1, GATEWAY);
    assert!(World::frames(&w.outputs()).iter().all(|f| f.sender_ip != GATEWAY));
}

/// The names in which Ethernet hosts were queried for an address.
fn names(outputs: &Outputs, target: Ipv4Addr) -> Vec<Ipv4Addr> {
    let frames = World::frames(outputs);
    let queried = frames.iter().filter(|f| f.operation == ArpOperation::Request && f.target_ip == target);
    queried.map(|f| f.sender_ip).collect()
}

#[test]
fn a_host_of_another_subnet_is_queried_in_a_name_of_that_subnet_or_without_a_sender_address() {
    let mut w = World::new();
    change(&mut w, GATEWAY, routes(&[FAR], None));
    let near = Ipv4Addr::from_bits(FAR.to_bits() + 1);
    let send = |w: &mut World, from: Ipv4Addr| {
        let arrival = arrival(Side::InfiniBand, Some(Origin::Datagram(super::from(1))));
        let message = packet(Side::InfiniBand, from, FAR, 100);
        w.segment.handle_unresolved(w.now, &mut w.fabric, FAR.into(), arrival, message, false);
        names(&w.outputs(), FAR)
    };
    // Its sender is not known. The gateway's own address is of another subnet, which Linux does not answer
    // with `rp_filter`.
    assert_eq!(send(&mut w, near), [NONE]);
    w.pass(secs(5));
    w.outputs();
    // Known, and of that subnet.
    w.know_infiniband(1, near);
    assert_eq!(send(&mut w, near), [near]);
    w.pass(secs(5));
    w.outputs();
    // Known, and of another one.
    w.know_infiniband(2, I1);
    assert_eq!(send(&mut w, I1), [NONE]);
}

#[test]
fn without_an_address_hosts_are_queried_in_the_requesters_name() {
    let mut w = World::new();
    w.segment.own.settings.address = None;
    w.infiniband(InfiniBandOperation::Request, 1, I1, E1);
    // The requester is proven first: that query is about the requester.
    let first = w.outputs();
    assert_eq!((names(&first, E1), names(&first, I1)), (vec![], vec![NONE]));
    w.pass(secs(2));
    assert_eq!(names(&w.outputs(), E1), [I1; 2]);
    // A host boots there and probes: a query without a sender address would look like a conflict to it.
    w.fabric.neighbours.clear();
    w.pass(secs(5));
    w.outputs();
    w.ethernet(ArpOperation::Request, E2_MAC, NONE, E1);
    let arrival = arrival(Side::InfiniBand, None);
    let message = packet(Side::InfiniBand, I1, E1, 100);
    w.segment.handle_unresolved(w.now, &mut w.fabric, E1.into(), arrival, message, false);
    w.pass(secs(5));
    assert_eq!(names(&w.outputs(), E1), [NONE; 0]);
}

#[test]
fn a_claim_to_an_address_that_is_not_of_the_segment_any_more_comes_to_nothing() {
    // Its subnet is gone, or it is the gateway's own by now.
    for (claimed, address) in [(FAR, GATEWAY), (E1, E1)] {
        let mut w = World::new();
        change(&mut w, GATEWAY, routes(&[FAR], None));
        w.ethernet(ArpOperation::Request, FAR_MAC, claimed, claimed);
        w.ethernet(ArpOperation::Request, FAR_MAC, claimed, GATEWAY);
        w.calls();
        change(&mut w, address, routes(&[], None));
        w.pass(ms(400));
        assert!(!w.calls().iter().any(|a| matches!(a, Call::Request { .. })), "{claimed}");
        assert!(w.outputs().iter().all(|o| !matches!(o, Output::SetHost { .. })), "{claimed}");
        assert!(!w.segment.owners.is_queried(claimed.into()));
    }
}

#[test]
fn a_refused_claim_to_an_address_whose_subnet_goes_is_not_queried_again() {
    let mut w = World::new();
    change(&mut w, GATEWAY, routes(&[FAR], None));
    w.know_infiniband(1, FAR);
    w.ethernet(ArpOperation::Request, FAR_MAC, FAR, FAR);
    w.infiniband(InfiniBandOperation::Reply, 1, FAR, GATEWAY);
    assert!(w.segment.owners.claimed(FAR.into()).is_some(), "its owner will be queried again");
    change(&mut w, GATEWAY, routes(&[], None));
    w.calls();
    w.pass(secs(5));
    assert_eq!(w.calls(), []);
    assert!(w.segment.owners.claimed(FAR.into()).is_none());
    // Nor does it move when the subnet is back.
    change(&mut w, GATEWAY, routes(&[FAR], None));
    w.know_infiniband(1, FAR);
    w.pass(secs(5));
    assert_eq!(w.segment.counters().moves, 0);
}
