//! Requests that port 0 answers, and packets that pass through to it.

use super::*;

#[test]
fn the_agent_describes_the_switch() {
    let mut bench = Bench::new(2);
    let info: NodeInfo = bench.get(attribute::NODE_INFO, 0);
    assert_eq!(
        (info.node_type, info.num_ports, info.node_guid, info.local_port),
        (NodeType::Switch, 2, GUID, 0)
    );
    let name: ib_wire::smp::NodeDescription = bench.get(attribute::NODE_DESCRIPTION, 0);
    assert_eq!(name.name(), "test switch");
    let guids: ib_wire::smp::GuidBlock = bench.get(attribute::GUID_INFO, 0);
    assert_eq!(guids.guids[0], GUID);
    assert_eq!(bench.get::<PortInfo>(attribute::PORT_INFO, 1).state, PortState::Init);
    let mut keys: PKeyBlock = bench.get(attribute::PKEY_TABLE, 0);
    assert_eq!(keys.keys[0], PKey::DEFAULT);
    keys.keys[1] = PKey(0x8005);
    assert!(bench.set(0, &keys).is_ok());
    assert_eq!(bench.get::<PKeyBlock>(attribute::PKEY_TABLE, 0), keys);
    let switch: SwitchInfo = bench.get(attribute::SWITCH_INFO, 0);
    assert!(switch.port_state_change, "links came up");
    assert!(bench.set(0, &SwitchInfo { linear_top: 100, ..switch }).is_ok());
    let switch: SwitchInfo = bench.get(attribute::SWITCH_INFO, 0);
    assert_eq!((switch.linear_top, switch.port_state_change), (100, false));
}

#[test]
fn bad_requests_get_a_status() {
    let mut bench = Bench::new(1);
    let cases = [
        (Method::Get, attribute::PORT_INFO, 2, MadStatus::INVALID_FIELD),
        (Method::Get, attribute::LINEAR_FORWARDING, 768, MadStatus::INVALID_FIELD),
        (Method::Get, attribute::MULTICAST_FORWARDING, 511, MadStatus::INVALID_FIELD),
        (Method::Get, attribute::VL_ARBITRATION, 0, MadStatus::INVALID_FIELD),
        (Method::Get, 0x7777, 0, MadStatus::UNSUPPORTED_ATTRIBUTE),
        (Method::Set, attribute::NODE_INFO, 0, MadStatus::UNSUPPORTED_ATTRIBUTE),
        (Method::Set, attribute::PORT_INFO, 1, MadStatus::INVALID_FIELD),
    ];
    for (method, id, modifier, status) in cases {
        let answer = bench.query(Smp::directed(method, Tid(1), id, modifier, &DirectedPath::LOCAL));
        assert_eq!(answer.status(), status, "{method:?} {id:#x} {modifier}");
    }
    let jump = PortInfo { state: PortState::Active, ..port_info() };
    assert_eq!(bench.set(1, &jump), Err(MadStatus::INVALID_FIELD), "Init to Active skips Armed");
    let multicast = PortInfo { lid: Lid(0xc000), ..PortInfo::default() };
    assert_eq!(bench.set(0, &multicast), Err(MadStatus::INVALID_FIELD));
}

#[test]
fn directed_routes_pass_through_and_back() {
    let mut bench = Bench::new(2);
    // From the host behind port 1 through the switch to the one behind port 2.
    let path = DirectedPath::LOCAL.then(1).unwrap().then(2).unwrap();
    let mut request = Smp::directed(Method::Get, Tid(3), attribute::NODE_INFO, 0, &path);
    request.set_hop_pointer(1);
    bench.send(1, &smp(&request, Lid::PERMISSIVE, Lid::PERMISSIVE));
    let out = bench.received(2);
    let arrived = Packet::parse(&out[0]).unwrap();
    assert!(arrived.vcrc_is_right() && arrived.icrc_is_right());
    assert_eq!(arrived.lrh().vl, VirtualLane::MANAGEMENT);
    let mut request = Smp::from_mad(arrived.payload().try_into().unwrap()).unwrap();
    assert_eq!((request.hop_pointer(), request.return_path[1]), (2, 1));
    // The host behind port 2 answers as a channel adapter does.
    let end = ib_wire::smp::step(&mut request, NodeType::ChannelAdapter, ib_wire::smp::Origin::Port(1));
    assert_eq!(end, ib_wire::smp::DirectedStep::Deliver);
    let mut answer = request.answer(MadStatus::OK);
    let out = ib_wire::smp::step(&mut answer, NodeType::ChannelAdapter, ib_wire::smp::Origin::Local);
    assert_eq!(out, ib_wire::smp::DirectedStep::Send(1));
    bench.send(2, &smp(&answer, Lid::PERMISSIVE, Lid::PERMISSIVE));
    let back = bench.received(1);
    let answer = Smp::from_mad(Packet::parse(&back[0]).unwrap().payload().try_into().unwrap()).unwrap();
    assert_eq!((answer.hop_pointer(), answer.is_returning()), (1, true));
    // A port that does not exist.
    let path = DirectedPath::LOCAL.then(1).unwrap().then(9).unwrap();
    let mut request = Smp::directed(Method::Get, Tid(3), attribute::NODE_INFO, 0, &path);
    request.set_hop_pointer(1);
    bench.send(1, &smp(&request, Lid::PERMISSIVE, Lid::PERMISSIVE));
    assert_eq!(bench.dropped(1, DropReason::BadRoute), 1);
}

#[test]
fn a_host_queries_the_switch_by_directed_route_and_by_lid() {
    let mut bench = Bench::active(2);
    let path = DirectedPath::LOCAL.then(1).unwrap();
    let mut request = Smp::directed(Method::Get, Tid(3), attribute::NODE_INFO, 0, &path);
    request.set_hop_pointer(1);
    bench.send(1, &smp(&request, Lid::PERMISSIVE, Lid::PERMISSIVE));
    let request = Smp::lid_routed(Method::Get, Tid(4), attribute::NODE_INFO, 0);
    bench.send(1, &smp(&request, Lid(11), Lid(1)));
    let answers = bench.received(1);
    assert_eq!(answers.len(), 2);
    for bytes in &answers {
        let packet = Packet::parse(bytes).unwrap();
        let answer = Smp::from_mad(packet.payload().try_into().unwrap()).unwrap();
        assert_eq!(answer.attribute::<NodeInfo>().unwrap().local_port, 1);
    }
    let by_lid = *Packet::parse(&answers[1]).unwrap().lrh();
    assert_eq!((by_lid.slid, by_lid.dlid), (Lid(1), Lid(11)));
}

#[test]
fn datagrams_for_qp1_go_up_and_answers_go_out() {
    let mut bench = Bench::active(2);
    bench.send(2, &packet(0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
    let mad = bench.switch.next_mad().expect("for QP1");
    assert_eq!(
        mad.peer,
        MadAddress { qpn: Qpn::new(77), qkey: QKey(0), ..MadAddress::gsi(Lid(12), ServiceLevel::new(0)) }
    );
    assert_eq!(*mad.bytes, [3; 256]);
    bench.switch.send_mad(&Mad { peer: MadAddress::gsi(Lid(12), ServiceLevel::new(0)), bytes: mad.bytes });
    let out = bench.received(2);
    let answer = Packet::parse(&out[0]).unwrap();
    assert_eq!((answer.bth().dest_qpn, answer.lrh().dlid, answer.lrh().slid), (Qpn::GSI, Lid(12), Lid(1)));
    assert_eq!(answer.payload(), [3; 256]);
}

/// The port of the subnet manager has two GIDs; a datagram to any other is not for it (IBA 8.3.3).
#[test]
fn datagrams_with_a_grh_are_for_the_switch_or_for_subnet_administration() {
    let mut bench = Bench::active(2);
    let to = |id, prefix| Grh {
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
        sgid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x77)),
        dgid: Gid::new(prefix, id),
    };
    let own = Gid::DEFAULT_PREFIX;
    let port: PortInfo = bench.get(attribute::PORT_INFO, 0);
    assert!(bench.set(0, &PortInfo { gid_prefix: own, state: PortState::NoChange, ..port }).is_ok());
    for (grh, ours) in [
        (to(GUID, own), true),
        (to(Gid::SUBNET_ADMINISTRATION, own), true),
        (to(Guid(0x99), own), false),
        (to(GUID, own + 1), false),
        (to(Gid::SUBNET_ADMINISTRATION, own + 1), false),
    ] {
        bench.send(2, &routed(Some(grh), 0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
        let arrived = bench.switch.next_mad();
        assert_eq!(arrived.is_some(), ours, "{}", grh.dgid);
        let Some(mad) = arrived else { continue };
        assert_eq!(mad.peer.route.map(|route| route.gid), Some(grh.sgid));
        bench.switch.send_mad(&Mad { peer: mad.peer.reply(), bytes: mad.bytes });
        let answer = bench.received(2);
        let answer = Packet::parse(&answer[0]).unwrap();
        assert_eq!(answer.grh().map(|g| (g.sgid, g.dgid)), Some((Gid::new(own, GUID), grh.sgid)));
    }
    assert_eq!(bench.dropped(2, DropReason::NotForUs), 3);
    // With the subnet manager elsewhere, its GUID is not here.
    let port: PortInfo = bench.get(attribute::PORT_INFO, 0);
    assert!(bench.set(0, &PortInfo { sm_lid: Lid(12), state: PortState::NoChange, ..port }).is_ok());
    let to_sa = to(Gid::SUBNET_ADMINISTRATION, own);
    bench.send(2, &routed(Some(to_sa), 0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
    assert!(bench.switch.next_mad().is_none());
}
