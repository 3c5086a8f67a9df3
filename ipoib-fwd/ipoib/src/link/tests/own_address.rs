//! Changes of GIDs: ours, a peer's, a whole subnet's.

use hca::{AsyncEvent, PortNumber, PortState, UdSource};
use ib_wire::cm::Message;
use ib_wire::sa::attribute;
use ib_wire::{Gid, Guid, ServiceLevel};

use super::fabric::{Fabric, ms, secs};
use crate::link::{
    Arp, ArpOperation, CloseReason, Event, HardwareAddress, LEFT_GRACE, Mode, PortEvent, PortFacts,
    WorkerIndex,
};

const PREFIX: u64 = 0xfec0_0000_0000_0001;

/// Two nodes, connected in both directions.
fn busy() -> Fabric {
    let mut f = Fabric::new(3);
    f.add(1, |_| {});
    f.add(1, |_| {});
    f.run(ms(100));
    f.connect();
    f.forget_past();
    f
}

/// Gives a node another GID, and reports it by the device's event.
fn readdress(f: &mut Fabric, n: usize, gid: Gid) {
    f.nodes[n].facts.gid = gid;
    let (_, event) = PortEvent::from_async(&AsyncEvent::GidChange(PortNumber(1))).expect("a port's");
    let (facts, now) = (f.nodes[n].facts, f.now);
    f.nodes[n].link.handle_port_event(now, event, facts);
}

/// Does what a link's owner must do when another address is reported.
fn announce(f: &mut Fabric, n: usize) {
    let reported = |e: &Event| matches!(e, Event::Readdressed { .. });
    assert!(f.nodes[n].events.iter().any(reported), "{:?}", f.nodes[n].events);
    let (ip, now) = (f.nodes[n].ip, f.now);
    f.nodes[n].link.announce(now, WorkerIndex(0), ip);
}

fn new_gid(n: usize) -> Gid {
    Gid::new(PREFIX, Guid(0x1000 + n as u64))
}

fn closed(events: &[Event], want: CloseReason) -> [bool; 2] {
    [false, true].map(|side| {
        let down = |e: &Event| matches!(e, Event::ConnectionDown { passive, reason, .. } if *passive == side && *reason == want);
        events.iter().any(down)
    })
}

/// Connections of a node to or from this GID.
fn with(f: &Fabric, n: usize, gid: Gid) -> usize {
    f.nodes[n].link.connections(f.now).iter().filter(|c| c.peer.gid == gid).count()
}

#[test]
fn another_own_gid_is_another_address_and_no_state_of_the_old_one_stays() {
    let mut f = busy();
    let old = f.nodes[0].facts.gid;
    let created = f.nodes[0].created.clone();
    f.cm_mads.clear();
    readdress(&mut f, 0, new_gid(0));
    // A packet that finds no connection requests one immediately.
    f.use_by(0, 0, 1);
    f.run(ms(100));
    assert!(f.nodes[0].link.state().up, "datagrams continue");
    assert_eq!(f.nodes[0].link.state().addresses[0].gid, new_gid(0));
    assert_eq!(closed(&f.nodes[0].events, CloseReason::OwnAddressChanged), [true, true]);
    // The group is joined by the new GID before peers are notified, and paths are queried from it.
    assert!(f.members.iter().any(|(_, port)| *port == new_gid(0)));
    assert!(f.requests[&(attribute::PATH_RECORD, 1)] >= 1);
    announce(&mut f, 0);
    f.run(ms(500));
    let (address, ip) = (f.address(0, 0), f.nodes[0].ip);
    assert_eq!(f.nodes[1].table.get(ip).expect("known").hardware.gid, address.gid);
    assert_eq!(with(&f, 1, old), 0, "the peer has closed them as well");
    f.use_by(0, 0, 1);
    f.use_by(1, 0, 0);
    f.run(secs(2));
    f.assert_connected(0, 0, 1);
    f.assert_connected(1, 0, 0);
    assert!(created.is_subset(&f.nodes[0].destroyed));
    let names_old = |mad: &ib_wire::mad::Mad| match Message::parse(&mad.bytes) {
        Ok((_, Message::Request(request))) => request.primary.local_gid == old,
        _ => false,
    };
    assert!(!f.cm_mads.iter().any(names_old), "a dial from the old address");
    assert_eq!((f.nodes[0].link.counters().gid_changes, f.nodes[1].link.counters().gid_changes), (1, 0));
    // The new address is reported once.
    let reports = f.nodes[0].events.iter().filter(|e| matches!(e, Event::Readdressed { .. })).count();
    readdress(&mut f, 0, new_gid(0));
    f.run(secs(1));
    assert_eq!((reports, f.nodes[0].link.counters().gid_changes), (1, 1));
    f.assert_connected(0, 0, 1);
}

#[test]
fn a_whole_subnet_gets_another_prefix() {
    let mut f = busy();
    let old = [0, 1].map(|n: usize| f.nodes[n].facts.gid);
    // The subnet manager reaches one port after the other; in between both use old and new addresses.
    readdress(&mut f, 0, new_gid(0));
    f.run(ms(3));
    readdress(&mut f, 1, new_gid(1));
    f.run(ms(100));
    announce(&mut f, 0);
    announce(&mut f, 1);
    for _ in 0..4 {
        f.run(secs(1));
        f.use_by(0, 0, 1);
        f.use_by(1, 0, 0);
    }
    for n in [0, 1] {
        let (other, ip) = (1 - n, f.nodes[1 - n].ip);
        assert_eq!(f.nodes[n].table.get(ip).expect("known").hardware.gid, new_gid(other));
        assert_eq!(with(&f, n, old[other]), 0);
        f.assert_connected(n, 0, other);
        assert_eq!((f.nodes[n].live(false), f.nodes[n].live(true)), (1, 1));
    }
}

#[test]
fn silent_peer_is_queried() {
    let mut f = Fabric::new(5);
    for _ in 0..2 {
        // Without connections nothing else shows that the peer moved.
        f.add(1, |s| s.mode = Mode::Datagram);
    }
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(ms(200));
    // As a kernel's ib_ipoib does: no announcement. In addition its event came late.
    readdress(&mut f, 0, new_gid(0));
    f.run(ms(200));
    readdress(&mut f, 1, new_gid(1));
    f.run(secs(3));
    let ip = f.nodes[1].ip;
    assert_eq!(f.nodes[0].table.get(ip).expect("known").hardware.gid, new_gid(1));
}

#[test]
fn a_peer_with_another_gid_is_moved() {
    let mut f = busy();
    let old = f.nodes[1].facts.gid;
    readdress(&mut f, 1, new_gid(1));
    f.run(ms(100));
    announce(&mut f, 1);
    f.run(ms(20));
    let moved = |e: &Event| matches!(e, Event::NeighbourChanged { old: from, new: to, .. } if from.gid == old && to.gid == new_gid(1));
    assert!(f.nodes[0].events.iter().any(moved));
    f.run(ms(500));
    assert_eq!(with(&f, 0, old), 0);
    f.use_by(0, 0, 1);
    f.use_by(1, 0, 0);
    f.run(secs(2));
    f.assert_connected(0, 0, 1);
    f.assert_connected(1, 0, 0);
}

#[test]
fn peers_under_the_old_prefix_are_reached_until_they_have_announced_themselves() {
    let mut f = Fabric::new(6);
    for _ in 0..2 {
        f.add(1, |s| s.mode = Mode::Datagram);
    }
    // Not the default prefix, to which every port always answers.
    for n in [0, 1] {
        f.change_port(n, |p| p.gid = Gid::new(PREFIX + 1, Guid(0x1000 + n as u64)));
    }
    f.run(secs(1));
    f.resolve(0, 1);
    f.run(secs(1));
    let ip = f.nodes[1].ip;
    assert!(f.nodes[0].table.get(ip).is_some());
    // The subnet administration still answers for the old GID of the peer, which has dropped it.
    f.by_guid = true;
    readdress(&mut f, 0, new_gid(0));
    readdress(&mut f, 1, new_gid(1));
    f.run(ms(400));
    let neighbour = f.nodes[0].table.get(ip).expect("known").clone();
    assert_eq!(neighbour.hardware.gid.prefix(), PREFIX + 1, "not announced yet");
    assert_eq!(neighbour.ud.expect("a way").av.grh, None);
    f.run(secs(2));
    assert_eq!(f.nodes[0].table.get(ip).expect("known").hardware.gid, new_gid(1));
}

#[test]
fn connections_that_a_moved_peer_opened_are_closed_though_it_keeps_them() {
    let mut f = busy();
    let old = f.address(1, 0);
    // ib_ipoib keeps connections that it opened under its old GID.
    let sender = HardwareAddress { gid: new_gid(1), ..old };
    let (ip, own, now) = (f.nodes[1].ip, f.address(0, 0), f.now);
    let arp =
        Arp { operation: ArpOperation::Reply, sender, sender_ip: ip, target: own, target_ip: f.nodes[0].ip };
    let from = UdSource {
        qpn: old.qpn,
        slid: f.nodes[1].facts.lid,
        sl: ServiceLevel::new(0),
        dlid_path_bits: 0,
        pkey_index: 0,
        has_grh: false,
        multicast: false,
    };
    f.nodes[0].link.handle_arp(now, WorkerIndex(0), &from, arp);
    // Another host might have announced it: the peer has time to contradict.
    f.run(ms(400));
    assert_eq!(closed(&f.nodes[0].events, CloseReason::AddressChanged), [false, false]);
    f.run(LEFT_GRACE);
    assert_eq!(closed(&f.nodes[0].events, CloseReason::AddressChanged), [true, true]);
    let reported = |e: &Event| matches!(e, Event::ConnectionDown { passive: false, .. });
    assert!(f.nodes[1].events.iter().any(reported));
}

#[test]
fn an_address_that_another_port_took_leaves_the_old_ones_connection_alone() {
    let mut f = Fabric::new(4);
    for _ in 0..3 {
        f.add(1, |_| {});
    }
    f.run(ms(100));
    f.connect();
    let old = f.nodes[1].facts.gid;
    // Node 2 claims to be node 1 (a service that fails over); node 1 still has its connection to us, perhaps
    // for others.
    let (ip, now) = (f.nodes[1].ip, f.now);
    f.nodes[2].link.announce(now, WorkerIndex(0), ip);
    f.run(LEFT_GRACE + ms(500));
    let new = f.nodes[2].facts.gid;
    assert_eq!(f.nodes[0].table.get(ip).expect("known").hardware.gid, new);
    let left: Vec<_> = f.nodes[0].link.connections(f.now).iter().map(|c| (c.passive, c.peer.gid)).collect();
    assert!(left.contains(&(true, old)) && !left.contains(&(false, old)), "{left:?}");
}

#[test]
fn another_gid_while_the_port_is_down_is_reported_with_the_link() {
    let mut f = busy();
    f.change_port(0, |p| p.state = PortState::Down);
    f.run(ms(100));
    f.change_port(0, |p| p.gid = new_gid(0));
    f.run(secs(1));
    f.nodes[0].take_events();
    assert_eq!(f.nodes[0].live(true), 0, "no host can use the connection that the peer opened");
    f.change_port(0, |p| p.state = PortState::Active);
    f.run(secs(1));
    let events = f.nodes[0].take_events();
    assert!(events.contains(&Event::Up));
    assert!(!events.iter().any(|e| matches!(e, Event::Readdressed { .. })), "{events:?}");
}

#[test]
fn port_that_cannot_be_queried_keeps_its_address() {
    let mut f = busy();
    let facts = f.nodes[0].facts;
    f.change_port(0, |p| *p = PortFacts::DOWN);
    f.run(ms(100));
    f.change_port(0, |p| *p = facts);
    f.run(secs(1));
    assert_eq!(f.nodes[0].link.counters().gid_changes, 0);
    assert!(f.nodes[0].link.state().up);
}

#[test]
fn our_own_broadcast_from_the_old_address_is_ours() {
    let mut f = busy();
    let (ip, now) = (f.nodes[1].ip, f.now);
    // It comes back when the port already has its new GID, and names a neighbour: a gateway represents
    // others.
    f.nodes[0].link.announce(now, WorkerIndex(0), ip);
    f.settle();
    readdress(&mut f, 0, new_gid(0));
    f.run(ms(50));
    let own = f.address(0, 0).qpn;
    let ours = |e: &Event| matches!(e, Event::NeighbourChanged { new, .. } if new.qpn == own);
    assert!(!f.nodes[0].events.iter().any(ours), "{:?}", f.nodes[0].events);
}
