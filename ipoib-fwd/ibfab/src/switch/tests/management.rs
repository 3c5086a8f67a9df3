//! Answers of a switch to subnet and performance management.

use std::time::Duration;

use ib_wire::mad::{MadHeader, MgmtClass};
use ib_wire::perf::{self, PortCounters, PortCountersExtended};
use ib_wire::sa::Notice;
use ib_wire::smp::{
    ArbitrationEntry, ArbitrationTables, Attribute as _, Capabilities, LaneMap, Lmc, MAX_HOPS,
    VlArbitrationBlock,
};
use proptest::prelude::*;

use super::*;

#[test]
fn m_key_protects_settings() {
    let mut bench = Bench::active(1);
    let own: PortInfo = bench.get(attribute::PORT_INFO, 0);
    let own = PortInfo { state: PortState::NoChange, ..own };
    assert!(bench.set(0, &PortInfo { mkey: 42, ..own }).is_ok());
    let wrong = Smp::directed(Method::Set, Tid(9), attribute::PORT_INFO, 0, &DirectedPath::LOCAL).with(&own);
    bench.switch.send_mad(&wrong.to_mad(Lid::PERMISSIVE));
    assert!(bench.switch.next_mad().is_none());
    assert_eq!(bench.switch.own_counters().dropped(DropReason::MKey), 1);
    assert!(bench.query(Smp { mkey: 42, ..wrong }).status().is_ok());
}

/// Queries from behind port 1, as any host can; `None` if there is no answer.
fn query(bench: &mut Bench, request: Smp) -> Option<Smp> {
    bench.send(1, &smp(&request, Lid(11), Lid(1)));
    let packets = bench.received(1);
    let answer = Packet::parse(packets.first()?).unwrap();
    Some(Smp::from_mad(answer.payload().try_into().unwrap()).unwrap())
}

#[test]
fn a_key_whose_owner_is_gone_protects_until_its_lease_is_over() {
    let mut bench = Bench::active(1);
    let own = PortInfo { state: PortState::NoChange, ..bench.get(attribute::PORT_INFO, 0) };
    let mut data = [0; 64];
    PortInfo { mkey: 42, mkey_lease: 5, ..own }.to_data(&mut data);
    // Protection 2: without the key, nothing can be read.
    data[34] |= 0b1000_0000;
    assert!(bench.set(0, &PortInfo::from_data(&data)).is_ok());
    let get = Smp::lid_routed(Method::Get, Tid(5), attribute::PORT_INFO, 0);
    assert!(query(&mut bench, get).is_none());
    assert!(query(&mut bench, Smp { mkey: 42, ..get }).is_some());
    bench.now += Duration::from_secs(6);
    assert!(query(&mut bench, get).is_none(), "its owner was there");
    bench.now += Duration::from_secs(4);
    assert!(query(&mut bench, get).is_none());
    bench.now += Duration::from_secs(2);
    let shown = query(&mut bench, get).unwrap().attribute::<PortInfo>().unwrap();
    assert_eq!((shown.mkey, shown.mkey_violations), (42, 3));
    let stolen = Smp::lid_routed(Method::Set, Tid(5), attribute::PORT_INFO, 0).with(&own);
    assert!(query(&mut bench, stolen).is_none(), "without the key, only a read is allowed now");
    assert!(query(&mut bench, Smp { mkey: 42, ..stolen }).is_some());
    assert!(query(&mut bench, get).is_some());
    assert_eq!(bench.dropped(1, DropReason::MKey), 4);
}

#[test]
fn a_trap_is_repressed_only_with_the_key() {
    let mut bench = Bench::active(2);
    let own = PortInfo { state: PortState::NoChange, ..bench.get(attribute::PORT_INFO, 0) };
    assert!(bench.set(0, &PortInfo { mkey: 42, sm_lid: Lid(11), ..own }).is_ok());
    bench.ends.remove(1);
    bench.step();
    let trap = |bench: &mut Bench| {
        let packets = bench.received(1);
        let packet = Packet::parse(packets.first()?).unwrap();
        Some(Smp::from_mad(packet.payload().try_into().unwrap()).unwrap())
    };
    let reported = trap(&mut bench).unwrap();
    let mut acknowledged = reported;
    acknowledged.header.method = Method::TrapRepress;
    for (mkey, again) in [(41, true), (42, false)] {
        bench.send(1, &smp(&Smp { mkey, ..acknowledged }, Lid(11), Lid(1)));
        bench.now += INTERVAL;
        bench.step();
        assert_eq!(trap(&mut bench).is_some(), again, "{mkey}");
    }
    assert_eq!(bench.dropped(1, DropReason::MKey), 1);
}

/// Returns the traps behind port 1, each with its packet's source.
fn traps(bench: &mut Bench) -> Vec<(Lid, Smp)> {
    bench.step();
    let packets = bench.received(1);
    let smps = packets.iter().map(|bytes| {
        let packet = Packet::parse(bytes).unwrap();
        (packet.lrh().slid, Smp::from_mad(packet.payload().try_into().unwrap()).unwrap())
    });
    smps.filter(|(_, smp)| smp.header.method == Method::Trap).collect()
}

#[test]
fn a_wrong_key_is_reported() {
    let mut bench = Bench::active(2);
    let own = PortInfo { state: PortState::NoChange, ..bench.get(attribute::PORT_INFO, 0) };
    let stolen = Smp::lid_routed(Method::Set, Tid(5), attribute::PORT_INFO, 0).with(&own);
    // The manager behind port 0 needs no traps.
    assert!(bench.set(0, &PortInfo { mkey: 42, ..own }).is_ok());
    bench.send(2, &smp(&stolen, Lid(12), Lid(1)));
    assert_eq!(traps(&mut bench), []);
    let moved = Smp { mkey: 42, ..stolen.with(&PortInfo { mkey: 42, sm_lid: Lid(11), ..own }) };
    assert!(query(&mut bench, moved).unwrap().status().is_ok());
    assert_eq!(traps(&mut bench), []);
    // From elsewhere, without success, and repeated while unacknowledged.
    for mkey in [41, 40] {
        bench.send(2, &smp(&Smp { mkey, ..stolen }, Lid(12), Lid(1)));
    }
    let [(from, reported)] = traps(&mut bench)[..] else { panic!("one trap") };
    let notice = Notice::bad_mkey(NodeType::Switch, Lid(1), Lid(12), &Smp { mkey: 41, ..stolen });
    assert_eq!((from, reported.attribute()), (Lid(1), Some(notice)));
    // A change of its links is reported as well.
    bench.ends.truncate(1);
    let [(_, change)] = traps(&mut bench)[..] else { panic!("another one") };
    assert_eq!(change.attribute::<Notice>().unwrap().trap_number, 128);
    let mut acknowledged = reported;
    acknowledged.header.method = Method::TrapRepress;
    bench.send(1, &smp(&Smp { mkey: 42, ..acknowledged }, Lid(11), Lid(1)));
    bench.now += INTERVAL;
    assert_eq!(traps(&mut bench), [(Lid(1), change)]);
    // A wrong key at the end of a directed route is reported, too.
    let path = DirectedPath::LOCAL.then(1).unwrap();
    let mut set = Smp::directed(Method::Set, Tid(6), attribute::PORT_INFO, 0, &path).with(&own);
    set.set_hop_pointer(1);
    bench.send(1, &smp(&set, Lid::PERMISSIVE, Lid::PERMISSIVE));
    let reported: Vec<_> =
        traps(&mut bench).iter().map(|(_, smp)| smp.attribute::<Notice>().unwrap()).collect();
    assert_eq!(
        reported.iter().map(|n| (n.trap_number, n.producer)).collect::<Vec<_>>(),
        [(256, Qpn::new(2))]
    );
    assert_eq!(reported[0].details[22..25], [0, 0x81, 1], "the return path: a hop, by port 1");
}

#[test]
fn a_service_level_without_a_lane_does_not_pass() {
    let mut bench = Bench::active(3);
    let own: PortInfo = bench.get(attribute::PORT_INFO, 0);
    assert!(own.capabilities.contains(Capabilities::SL_MAPPING | Capabilities::TRAP));
    let mut map = LaneMap::default();
    map.lanes[0] = VirtualLane::MANAGEMENT;
    assert!(bench.set(LaneMap::modifier(1, 3), &map).is_ok());
    assert_eq!(bench.get::<LaneMap>(attribute::SL_TO_VL, LaneMap::modifier(1, 3)), map);
    for other in [LaneMap::modifier(2, 3), LaneMap::modifier(1, 2), LaneMap::modifier(0, 0)] {
        assert_eq!(bench.get::<LaneMap>(attribute::SL_TO_VL, other), LaneMap::default());
    }
    for beyond in [LaneMap::modifier(4, 1), LaneMap::modifier(1, 4)] {
        assert_eq!(bench.set(beyond, &map), Err(MadStatus::INVALID_FIELD));
    }
    let mut sent = |from: usize, to: usize| {
        bench.send(from, &data(10 + from as u16, 10 + to as u16, 64));
        bench.received(to).len()
    };
    assert_eq!((sent(1, 3), sent(2, 3), sent(1, 2)), (0, 1, 1));
    assert_eq!(bench.dropped(1, DropReason::ServiceLevel), 1);
    let mut block = VlArbitrationBlock::default();
    block.entries[31] = ArbitrationEntry { lane: VirtualLane::new(0), weight: 3 };
    let at = VlArbitrationBlock::modifier(2, 3);
    assert!(bench.set(at, &block).is_ok());
    assert_eq!(bench.get::<VlArbitrationBlock>(attribute::VL_ARBITRATION, at), block);
    assert_eq!(bench.get::<PortInfo>(attribute::PORT_INFO, 3).vl_arb_low_cap, ArbitrationTables::CAP);
    for beyond in [VlArbitrationBlock::modifier(5, 3), VlArbitrationBlock::modifier(1, 4)] {
        assert_eq!(bench.set(beyond, &block), Err(MadStatus::INVALID_FIELD));
    }
}

/// Queries the performance management agent by the cable behind port 1; returns its answer.
fn performance(bench: &mut Bench, method: Method, id: u16, port: u8) -> (MadStatus, [u8; perf::DATA_LEN]) {
    let mut mad = [0; 256];
    MadHeader::new(MgmtClass::Perf, perf::CLASS_VERSION, method, Tid(8), id).put(&mut mad);
    mad[perf::DATA + 1] = port;
    mad[perf::DATA + 2..perf::DATA + 4].fill(0xff);
    bench.send(1, &packet(0, 11, Lid(1), Qpn::GSI, QKey::GSI, &mad));
    let packets = bench.received(1);
    let answer = Packet::parse(&packets[0]).unwrap();
    assert_eq!((answer.bth().dest_qpn, answer.lrh().dlid), (Qpn::new(77), Lid(11)));
    let bytes: &[u8; 256] = answer.payload().try_into().unwrap();
    let header = MadHeader::of(bytes);
    assert_eq!((header.method, header.tid), (Method::GetResp, Tid(8)));
    (header.status, *bytes[perf::DATA..].first_chunk().unwrap())
}

#[test]
fn ports_report_their_counters() {
    use perf::attribute::{PORT_COUNTERS, PORT_COUNTERS_EXTENDED};
    let mut bench = Bench::active(3);
    for port in 1..=3 {
        performance(&mut bench, Method::Set, PORT_COUNTERS, port);
    }
    let p = data(12, 13, 256);
    for _ in 0..5 {
        bench.send(2, &p);
    }
    bench.send(2, &data(12, 40, 64));
    assert!(bench.set(3, &PortInfo { neighbor_mtu: Mtu::B256.into(), ..port_info() }).is_ok());
    bench.send(2, &data(12, 13, 1024));
    let counters = |bench: &mut Bench, port| {
        let (status, bytes) = performance(bench, Method::Get, PORT_COUNTERS, port);
        (status.is_ok()).then(|| PortCounters::parse(&bytes))
    };
    let two = counters(&mut bench, 2).unwrap();
    assert_eq!((two.receive_packets, two.relay_errors, two.send_discards, two.send_packets), (7, 1, 0, 0));
    let three = counters(&mut bench, 3).unwrap();
    assert_eq!((three.send_packets, three.send_discards, three.receive_packets), (5, 1, 0));
    let (_, bytes) = performance(&mut bench, Method::Get, PORT_COUNTERS_EXTENDED, 3);
    assert_eq!(PortCountersExtended::parse(&bytes).send_data, 5 * p.len() as u64 / 4);
    // The port that the query arrives by, too.
    let one = counters(&mut bench, 1).unwrap();
    let again = counters(&mut bench, 1).unwrap();
    assert_eq!(again.receive_packets, one.receive_packets + 1);
    assert_eq!(again.send_packets, one.send_packets + 1);
    assert_eq!(counters(&mut bench, 0).unwrap().receive_packets, 0);
    assert!(counters(&mut bench, 4).is_none());
    performance(&mut bench, Method::Set, PORT_COUNTERS, 3);
    let three = counters(&mut bench, 3).unwrap();
    assert_eq!((three.send_packets, three.send_discards), (0, 0));
}

proptest! {
    /// A directed route can have any content. The result is exactly one of: an answer, a packet that is
    /// forwarded, or a counted drop. An impossible route is dropped.
    #[test]
    fn a_hostile_route_is_dropped_and_counted(
        pointer: u8, count: u8, returning: bool, path in proptest::collection::vec(0u8..6, 64),
        entry in 0u8..6, set: bool, local in 1u8..=3,
    ) {
        let mut bench = Bench::active(3);
        let method = if set { Method::Set } else { Method::Get };
        let mut request = Smp::directed(method, Tid(3), attribute::NODE_INFO, 0, &DirectedPath::LOCAL);
        request.header.class_specific = u16::from(pointer) << 8 | u16::from(count);
        request.header.status = MadStatus(if returning { 0x8000 } else { 0 });
        request.initial_path.copy_from_slice(&path);
        request.return_path = [entry; 64];
        bench.send(local.into(), &smp(&request, Lid::PERMISSIVE, Lid::PERMISSIVE));
        let out: Vec<(usize, Vec<u8>)> =
            (1..=3).flat_map(|port| bench.received(port).into_iter().map(move |p| (port, p))).collect();
        let up = usize::from(bench.switch.next_mad().is_some());
        let dropped: u64 = DropReason::ALL.into_iter().map(|r| bench.dropped(local.into(), r)).sum();
        prop_assert_eq!(out.len() + up + dropped as usize, 1);
        if count > MAX_HOPS || pointer > count + 1 || (!returning && (pointer == 0 || pointer > count)) {
            prop_assert_eq!(bench.dropped(local.into(), DropReason::BadRoute), 1);
        }
        for (port, bytes) in out {
            let packet = Packet::parse(&bytes).unwrap();
            let smp = Smp::from_mad(packet.payload().try_into().unwrap()).unwrap();
            // By the port that the route names, one hop on; or the answer, by the ingress of the query.
            let (at, egress) = match (returning, smp.is_returning()) {
                (false, false) => (pointer + 1, path[usize::from(pointer) + 1]),
                (false, true) => (pointer, local),
                (true, _) => (pointer - 1, entry),
            };
            prop_assert_eq!((smp.hop_pointer(), port), (at, usize::from(egress)));
        }
    }
}

#[test]
fn a_port_with_a_channel_adapter_admits_its_lid_only() {
    let mut bench = Bench::active(3);
    // Port 3 leads to a switch.
    let own = |base| LidBlock { base, lmc: Lmc::new(0) };
    bench.switch.set_sources(|port| (port.0 < 3).then_some(own(Lid(10 + u16::from(port.0)))));
    bench.send(1, &data(11, 12, 64));
    assert_eq!(bench.received(2).len(), 1);
    bench.send(3, &data(11, 12, 64));
    assert_eq!(bench.received(2).len(), 1, "a switch forwards packets of others");
    let join = packet(0, 12, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]);
    let get = Smp::lid_routed(Method::Get, Tid(4), attribute::NODE_INFO, 0);
    for forged in [data(12, 12, 64), join.clone(), smp(&get, Lid(12), Lid(1)), smp(&get, Lid(13), Lid(12))] {
        let before = bench.dropped(1, DropReason::SourceLid);
        bench.send(1, &forged);
        assert_eq!(bench.dropped(1, DropReason::SourceLid), before + 1);
    }
    assert!(bench.received(2).is_empty() && bench.switch.next_mad().is_none());
    bench.send(2, &join);
    assert!(bench.switch.next_mad().is_some());
    assert!(query(&mut bench, get).is_some(), "its own LID");
    let path = DirectedPath::LOCAL.then(1).unwrap();
    let mut directed = Smp::directed(Method::Get, Tid(3), attribute::NODE_INFO, 0, &path);
    directed.set_hop_pointer(1);
    bench.send(1, &smp(&directed, Lid::PERMISSIVE, Lid::PERMISSIVE));
    assert_eq!(bench.received(1).len(), 1, "a directed route needs no LID");
    // The next link that is plugged in may have another LID.
    let (near, far) = CableEnd::pair().unwrap();
    bench.ends[0] = far;
    bench.switch.plug(SwitchPort(1), "p0", near).unwrap();
    bench.switch.unplug(SwitchPort(2));
    bench.step();
    assert_eq!(bench.switch.ports[1].source, None);
}

#[test]
fn an_answer_comes_back_by_the_port_that_its_request_left_by() {
    let mut bench = Bench::active(3);
    let request =
        Smp::directed(Method::Get, Tid(7), attribute::NODE_INFO, 0, &DirectedPath::LOCAL.then(2).unwrap());
    bench.switch.send_mad(&request.to_mad(Lid::PERMISSIVE));
    let asked = bench.received(2);
    let asked = Packet::parse(&asked[0]).unwrap();
    let mut answer = Smp::from_mad(asked.payload().try_into().unwrap()).unwrap().answer(MadStatus::OK);
    // As the queried node sends it.
    answer.set_hop_pointer(1);
    let packet = smp(&answer, Lid::PERMISSIVE, Lid::PERMISSIVE);
    for forger in [1, 3] {
        bench.send(forger, &packet);
        assert!(bench.switch.next_mad().is_none());
        assert_eq!(bench.dropped(forger, DropReason::BadRoute), 1);
    }
    bench.send(2, &packet);
    let arrived = Smp::from_mad(&bench.switch.next_mad().expect("the true answer").bytes).unwrap();
    assert_eq!((arrived.header.tid, arrived.hop_pointer()), (Tid(7), 0));
}

#[test]
fn an_answer_off_its_way_back_is_dropped_wherever_it_goes() {
    let mut bench = Bench::active(3);
    let path = DirectedPath::LOCAL.then(2).unwrap();
    let answer = |path: &DirectedPath, pointer| {
        let request = Smp::directed(Method::Get, Tid(7), attribute::NODE_INFO, 0, path);
        let mut answer = request.answer(MadStatus::OK);
        answer.set_hop_pointer(pointer);
        answer
    };
    // A host behind port 1 answers for the node behind port 2. The answer has the outward direction:
    let mut outward = answer(&path, 1);
    outward.header.status = MadStatus::OK;
    // For the switch itself:
    let mut local = answer(&DirectedPath::LOCAL, 1);
    local.initial_path[1] = 1;
    // By LID, past the switches that check hops: to this switch, and through it to another one:
    let by_lid = answer(&DirectedPath::LOCAL.then(1).unwrap(), 1);
    let permissive = Lid::PERMISSIVE;
    for (forged, slid, dlid) in [
        (outward, permissive, permissive),
        (outward, Lid(11), permissive),
        (local, permissive, permissive),
        (by_lid, Lid(11), Lid(1)),
        (by_lid, Lid(11), Lid(13)),
    ] {
        let before = bench.dropped(1, DropReason::BadRoute);
        bench.send(1, &smp(&forged, slid, dlid));
        assert_eq!(bench.dropped(1, DropReason::BadRoute), before + 1, "{slid} to {dlid}: {forged:?}");
        assert!(bench.switch.next_mad().is_none() && bench.received(3).is_empty());
    }
    // The LID-routed parts of a route pass.
    for pointer in [0, 2] {
        let packet = smp(&answer(&path, pointer), Lid(11), Lid(13));
        bench.send(1, &packet);
        assert_eq!(bench.received(3), [packet], "{pointer}");
    }
}

#[test]
fn a_packet_that_goes_by_lid_has_a_source_lid() {
    let mut bench = Bench::active(3);
    let get = Smp::lid_routed(Method::Get, Tid(4), attribute::NODE_INFO, 0);
    let directed = Smp::directed(Method::Get, Tid(4), attribute::NODE_INFO, 0, &DirectedPath::LOCAL);
    // With a known channel adapter, and without.
    for sources in [None, Some(LidBlock { base: Lid(11), lmc: Lmc::new(0) })] {
        bench.switch.set_sources(|port| sources.filter(|_| port.0 == 1));
        for (forged, dlid) in [(get, Lid(1)), (get, Lid(13)), (directed, Lid(13))] {
            let before = bench.dropped(1, DropReason::SourceLid);
            bench.send(1, &smp(&forged, Lid::PERMISSIVE, dlid));
            assert_eq!(bench.dropped(1, DropReason::SourceLid), before + 1, "to {dlid}");
            assert!(bench.received(3).is_empty() && bench.received(1).is_empty());
        }
    }
}

#[test]
fn the_lids_that_a_port_refuses_stay_while_its_other_end_is_not_known() {
    let mut bench = Bench::active(3);
    let refused = |bench: &mut Bench| {
        let before = bench.dropped(1, DropReason::SourceLid);
        bench.send(1, &packet(0, 13, Lid(13), Qpn::new(5), QKey(1), &[3; 64]));
        bench.dropped(1, DropReason::SourceLid) > before
    };
    assert!(!refused(&mut bench));
    bench.switch.set_elsewhere(|port| (port.0 == 1).then(|| [Lid(13)].into()));
    assert!(refused(&mut bench));
    bench.switch.set_elsewhere(|_| None);
    assert!(refused(&mut bench), "nothing is known of it now");
    bench.switch.set_elsewhere(|_| Some([].into()));
    assert!(!refused(&mut bench));
}

#[test]
fn a_flood_from_one_port_loses_no_datagrams_of_others() {
    let mut bench = Bench::active(4);
    let trap = Smp::lid_routed(Method::Trap, Tid(1), attribute::NOTICE, 0);
    let flood = |bench: &mut Bench| {
        for _ in 0..2000 {
            bench.send(1, &smp(&trap, Lid(11), Lid(1)));
            bench.send(1, &packet(0, 11, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
        }
    };
    flood(&mut bench);
    assert!(bench.dropped(1, DropReason::InboxFull) > 1000);
    // The answer to a request of the subnet manager, a request to administration, and one of the flood's own
    // port.
    let answer = Smp::lid_routed(Method::GetResp, Tid(2), attribute::NODE_INFO, 0);
    bench.send(2, &smp(&answer, Lid(12), Lid(1)));
    bench.send(3, &packet(0, 13, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
    let first: Vec<Lid> = (0..6).map(|_| bench.switch.next_mad().unwrap().peer.lid).collect();
    assert!(first.contains(&Lid(12)) && first.contains(&Lid(13)), "{first:?}");
    assert_eq!(bench.dropped(2, DropReason::InboxFull) + bench.dropped(3, DropReason::InboxFull), 0);
    // A port that sends many datagrams of one kind loses none of the other kind.
    while bench.switch.next_mad().is_some() {}
    for _ in 0..2000 {
        bench.send(1, &packet(0, 11, Lid(1), Qpn::GSI, QKey::GSI, &[3; 256]));
    }
    bench.send(1, &smp(&answer, Lid(11), Lid(1)));
    let first = [(); 2].map(|()| bench.switch.next_mad().unwrap().header().class);
    assert!(first.contains(&MgmtClass::SubnLid), "{first:?}");
}
