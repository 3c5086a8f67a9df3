//! Packets from and to hosts beyond the link, by routers of either side, and the roles of a gateway that does
//! not forward.

use super::*;
use ipoib::drop_reason::DropReason;

/// Beyond a router on Ethernet, which is [`ETH`].
const BEYOND_ETH: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// Beyond a router on InfiniBand, which is [`IB_RC`].
const BEYOND_IB: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// Beyond an unknown router.
const BEYOND_UNKNOWN: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const NOWHERE: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);
/// In the segment's second subnet, on Ethernet.
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 1);

fn routed() -> Draft<&'static str> {
    let prefix = |ip: Ipv4Addr| Prefix::of(ip, 24).unwrap();
    let route = |to, via| Route { to: prefix(to), via };
    let mut tables = tables();
    let routes = [route(BEYOND_ETH, ETH), route(BEYOND_IB, IB_RC), route(BEYOND_UNKNOWN, UNKNOWN_HOST)];
    tables.settings().routes = Routes::new(&[prefix(SECOND)], &routes).unwrap();
    tables.set_eth(SECOND, EthNeighbour { mac: ETH_MAC }).unwrap();
    tables
}

fn from_ethernet<'t>(t: &'t Draft<&'static str>, packet: &[u8]) -> EthVerdict<'t, &'static str> {
    eth(t, &frame(GATEWAY_MAC, 0x0800, packet))
}

fn from_infiniband(t: &Draft<&'static str>, packet: &[u8]) -> IbVerdict {
    let m = message(packet);
    ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Unknown, t.table())
}

#[test]
fn packets_go_to_the_router_whichever_side_it_is_on() {
    let t = routed();
    let EthVerdict::Forward { via, neighbour, .. } = from_ethernet(&t, &ip(ETH, BEYOND_IB, 60)) else {
        panic!("forwards");
    };
    assert_eq!((via, neighbour.and_then(|n| t.ib_at(n))), (Via::Rc(RcSlot(5)), Some(IB_RC)));
    let IbVerdict::Forward { to, neighbour, .. } = from_infiniband(&t, &ip(IB_RC, BEYOND_ETH, 60)) else {
        panic!("forwards");
    };
    assert_eq!((to, neighbour.and_then(|n| t.eth_at(n))), (ETH_MAC, Some(ETH)));
}

#[test]
fn packets_from_beyond_are_accepted_from_either_side() {
    let t = routed();
    assert!(matches!(from_ethernet(&t, &ip(NOWHERE, IB_RC, 60)), EthVerdict::Forward { .. }));
    assert!(matches!(from_ethernet(&t, &ip(BEYOND_ETH, BEYOND_IB, 60)), EthVerdict::Forward { .. }));
    assert!(matches!(from_infiniband(&t, &ip(NOWHERE, ETH, 60)), IbVerdict::Forward { .. }));
    assert!(matches!(from_infiniband(&t, &ip(BEYOND_IB, SECOND, 60)), IbVerdict::Forward { .. }));
}

#[test]
fn a_router_is_resolved_and_nothing_goes_back_to_the_side_it_came_from() {
    let t = routed();
    let unknown = Punt::Neighbour(UNKNOWN_HOST);
    assert_eq!(from_ethernet(&t, &ip(ETH, BEYOND_UNKNOWN, 60)), EthVerdict::Punt(unknown));
    assert_eq!(from_infiniband(&t, &ip(IB_RC, BEYOND_UNKNOWN, 60)), IbVerdict::Punt(unknown));
    let same_side = DropReason::SameSide;
    assert_eq!(from_ethernet(&t, &ip(SECOND, BEYOND_ETH, 60)), EthVerdict::Drop(same_side));
    assert_eq!(from_infiniband(&t, &ip(IB_UD, BEYOND_IB, 60)), IbVerdict::Drop(same_side));
    assert_eq!(from_ethernet(&t, &ip(ETH, NOWHERE, 60)), EthVerdict::Drop(DropReason::OffSubnet));
    assert_eq!(from_infiniband(&t, &ip(IB_RC, NOWHERE, 60)), IbVerdict::Drop(DropReason::OffSubnet));
    // A router whose path is being resolved.
    let mut t = routed();
    t.set_ib(IB_RC, IbNeighbour { ud: None, rc: rc(None), dial: false }).unwrap();
    let pathless = Punt::Neighbour(IB_RC);
    assert_eq!(from_ethernet(&t, &ip(ETH, BEYOND_IB, 60)), EthVerdict::Punt(pathless));
}

#[test]
fn second_subnets_have_hosts_and_broadcast_and_network_addresses() {
    let t = routed();
    let at = |last| Ipv4Addr::new(10, 78, 1, last);
    assert!(matches!(from_infiniband(&t, &ip(IB_RC, SECOND, 60)), IbVerdict::Forward { .. }));
    assert!(matches!(
        from_infiniband(&t, &ip(IB_RC, at(255), 60)),
        IbVerdict::Forward { neighbour: None, to: MacAddress::BROADCAST, .. }
    ));
    assert_eq!(from_infiniband(&t, &ip(IB_RC, at(0), 60)), IbVerdict::Drop(DropReason::Martian));
    assert_eq!(from_infiniband(&t, &ip(at(255), ETH, 60)), IbVerdict::Drop(DropReason::Martian));
    assert_eq!(from_ethernet(&t, &ip(at(255), IB_RC, 60)), EthVerdict::Drop(DropReason::Martian));
    let of = |ip: Ipv4Addr| (t.table().settings.is_on_link(ip), t.table().settings.next_hop(ip));
    assert_eq!(of(at(7)), (true, Some(at(7))));
    assert_eq!(of(at(255)), (false, Some(at(255))));
    assert_eq!(of(BEYOND_IB), (false, Some(IB_RC)));
    assert_eq!(of(NOWHERE), (false, None));
}

#[test]
fn without_a_subnet_every_host_is_on_the_link() {
    let mut t = tables();
    t.settings().address = None;
    assert_eq!(from_ethernet(&t, &ip(ETH, NOWHERE, 60)), EthVerdict::Punt(Punt::Neighbour(NOWHERE)));
    assert!(t.table().settings.is_on_link(NOWHERE));
    assert_eq!(t.table().settings.next_hop(NOWHERE), Some(NOWHERE));
}

#[test]
fn standby_and_blocked_gateways_drop_packets_and_punt_arp_and_hellos() {
    for (role, reason) in [(Role::Standby, DropReason::Standby), (Role::Blocked, DropReason::SegmentBlocked)]
    {
        let mut t = routed();
        t.settings().role = role;
        for destination in [IB_RC, BEYOND_IB, UNKNOWN_HOST, Ipv4Addr::BROADCAST] {
            assert_eq!(from_ethernet(&t, &ip(ETH, destination, 60)), EthVerdict::Drop(reason));
        }
        for destination in [ETH, BEYOND_ETH, UNKNOWN_HOST, Ipv4Addr::new(224, 0, 0, 1)] {
            assert_eq!(from_infiniband(&t, &ip(IB_RC, destination, 60)), IbVerdict::Drop(reason));
        }
        let arp = frame(MacAddress::BROADCAST, 0x0806, &[0; 46]);
        assert_eq!(eth(&t, &arp), EthVerdict::Punt(Punt::Arp));
        let hello = frame(PAIR_GROUP, ETHERTYPE_HELLO, &[0; 46]);
        assert_eq!(eth(&t, &hello), EthVerdict::Punt(Punt::Hello));
        assert_eq!(
            ib_to_eth(&[8, 6, 0, 0], 60, &ud(true), Checksum::Unknown, t.table()),
            IbVerdict::Punt(Punt::Arp)
        );
        assert_eq!(
            ib_to_eth(&[0x88, 0xb5, 0, 0], 60, &ud(true), Checksum::Unknown, t.table()),
            IbVerdict::Punt(Punt::Hello)
        );
    }
}

#[test]
fn own_hellos_that_come_back_are_punted_and_connections_carry_none() {
    let t = tables();
    let mut own = frame(PAIR_GROUP, ETHERTYPE_HELLO, &[0; 46]);
    own[6..12].copy_from_slice(&GATEWAY_MAC.0);
    assert_eq!(eth(&t, &own), EthVerdict::Punt(Punt::Hello));
    let hello = [0x88, 0xb5, 0, 0];
    assert_eq!(
        ib_to_eth(&hello, 60, &Source::Rc, Checksum::Unknown, t.table()),
        IbVerdict::Drop(DropReason::UnknownEthertype)
    );
    // The fabric delivers multicasts to their sender, too: this is no loop.
    let Source::Ud(mut back) = ud(true) else { unreachable!() };
    (back.slid, back.qpn) = (Lid(7), Qpn::new(0x48));
    assert_eq!(
        ib_to_eth(&hello, 60, &Source::Ud(back), Checksum::Unknown, t.table()),
        IbVerdict::Drop(DropReason::LoopSelf)
    );
}

#[test]
fn hellos_for_other_destinations_are_dropped() {
    let t = tables();
    let unknown = DropReason::UnknownEthertype;
    for destination in [GATEWAY_MAC, MacAddress::BROADCAST, MacAddress([1, 0, 0x5e, 0, 0, 1])] {
        let mut hello = frame(destination, ETHERTYPE_HELLO, &[0; 46]);
        assert_eq!(eth(&t, &hello), EthVerdict::Drop(unknown));
        hello[6..12].copy_from_slice(&GATEWAY_MAC.0);
        assert_eq!(eth(&t, &hello), EthVerdict::Drop(DropReason::LoopSelf));
    }
    let hello = [0x88, 0xb5, 0, 0];
    assert_eq!(ib_to_eth(&hello, 60, &ud(false), Checksum::Unknown, t.table()), IbVerdict::Drop(unknown));
}

#[test]
fn handing_over_forwards_only_unicast() {
    let mut t = routed();
    t.settings().role = Role::HandingOver;
    assert!(matches!(from_ethernet(&t, &ip(ETH, IB_RC, 60)), EthVerdict::Forward { .. }));
    assert!(matches!(from_infiniband(&t, &ip(IB_RC, ETH, 60)), IbVerdict::Forward { .. }));
    for many in [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        assert_eq!(from_ethernet(&t, &ip(ETH, many, 60)), EthVerdict::Drop(DropReason::Standby));
        assert_eq!(from_infiniband(&t, &ip(IB_RC, many, 60)), IbVerdict::Drop(DropReason::Standby));
    }
}

#[test]
fn probes_are_punted_in_every_role() {
    let probe = ipoib::net::probe::probe_packet(ipoib::net::probe::Nonce(7));
    for role in [Role::Forwarding, Role::Standby, Role::Blocked] {
        let mut t = tables();
        t.settings().role = role;
        assert_eq!(
            eth_of(&t, &frame(MacAddress::BROADCAST, 0x0800, &probe), 62),
            EthVerdict::Punt(Punt::Hello)
        );
        let m = message(&probe);
        assert_eq!(
            ib_to_eth(&m, m.len(), &ud(true), Checksum::Unknown, t.table()),
            IbVerdict::Punt(Punt::Hello)
        );
    }
}

#[test]
fn group_packets_of_another_gateway_are_not_forwarded_again() {
    let mut t = tables();
    let dhcp = ip(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, 60);
    let frame = frame(MacAddress::BROADCAST, 0x0800, &dhcp);
    let m = message(&dhcp);
    assert!(matches!(eth(&t, &frame), EthVerdict::Forward { .. }));
    assert!(matches!(
        ib_to_eth(&m, m.len(), &ud(true), Checksum::Unknown, t.table()),
        IbVerdict::Forward { .. }
    ));
    // The frame's source and the datagram's sender are another gateway's.
    t.settings().gateways =
        vec![PeerGateway { mac: ETH_MAC, lid: Lid(9), gid: ib_wire::Gid::ZERO, qpns: vec![Qpn::new(0x99)] }];
    assert_eq!(eth(&t, &frame), EthVerdict::Drop(DropReason::PeerGateway));
    assert_eq!(
        ib_to_eth(&m, m.len(), &ud(true), Checksum::Unknown, t.table()),
        IbVerdict::Drop(DropReason::PeerGateway)
    );
    t.settings().gateways[0].lid = Lid(8);
    assert!(
        matches!(ib_to_eth(&m, m.len(), &ud(true), Checksum::Unknown, t.table()), IbVerdict::Forward { .. }),
        "another port"
    );
}

#[test]
fn standby_gateways_punt_packets_for_their_own_address() {
    let mut t = tables();
    t.settings().role = Role::Standby;
    assert_eq!(from_ethernet(&t, &ip(ETH, GATEWAY, 60)), EthVerdict::Punt(Punt::Local));
    assert_eq!(from_infiniband(&t, &ip(IB_RC, GATEWAY, 60)), IbVerdict::Punt(Punt::Local));
}
