use proptest::prelude::*;

use super::*;
use crate::packet::VirtualLane;
use crate::sa::{Notice, trap};
use crate::{Guid, Mtu, PKey};

/// Checks that any 64 bytes survive a round trip through an attribute: reading drops reserved bits, writing
/// does not change them.
fn survives<A: Attribute>(data: [u8; 64]) {
    let smp = Smp { data, ..Smp::lid_routed(Method::Get, Tid(1), A::ID, 0) };
    let mut again = smp;
    again.set_attribute(&smp.attribute::<A>().unwrap());
    assert_eq!(again, smp);
}

proptest! {
    #[test]
    fn attributes_keep_every_bit(data in proptest::collection::vec(any::<u8>(), 64)) {
        let data: [u8; 64] = data.try_into().unwrap();
        survives::<NodeInfo>(data);
        survives::<NodeDescription>(data);
        survives::<PortInfo>(data);
        survives::<SwitchInfo>(data);
        survives::<GuidBlock>(data);
        survives::<PKeyBlock>(data);
        survives::<LinearForwardingBlock>(data);
        survives::<MulticastForwardingBlock>(data);
        survives::<SmInfo>(data);
        survives::<LaneMap>(data);
        survives::<VlArbitrationBlock>(data);
        survives::<Notice>(data);
    }

    #[test]
    fn a_packet_is_read_back(bytes in proptest::collection::vec(any::<u8>(), 256), directed in any::<bool>()) {
        let mut bytes: [u8; 256] = bytes.try_into().unwrap();
        bytes[..3].copy_from_slice(&[1, if directed { 0x81 } else { 1 }, 1]);
        let smp = Smp::from_mad(&bytes).unwrap();
        let mut again = bytes;
        smp.write(&mut again);
        prop_assert_eq!(again, bytes);
        prop_assert_eq!(Smp::from_mad(&smp.to_bytes()), Ok(smp));
    }

    #[test]
    fn no_directed_packet_does_harm(bytes in proptest::collection::vec(any::<u8>(), 256), from in 0u8..4, ca in any::<bool>()) {
        let bytes: [u8; 256] = bytes.try_into().unwrap();
        let mut smp = Smp::parse(&bytes);
        let origin = if from == 0 { Origin::Local } else { Origin::Port(from) };
        let node = if ca { NodeType::ChannelAdapter } else { NodeType::Switch };
        let before = smp.hop_pointer();
        match step(&mut smp, node, origin) {
            DirectedStep::Discard => prop_assert_eq!(smp.hop_pointer(), before),
            _ => prop_assert_eq!(smp.hop_pointer().abs_diff(before), 1),
        }
    }
}

#[test]
fn port_info_places() {
    let mut smp = Smp::lid_routed(Method::Set, Tid(7), attribute::PORT_INFO, 1);
    let info = PortInfo {
        gid_prefix: 0xfe80_0000_0000_0000,
        lid: Lid(4),
        sm_lid: Lid(1),
        state: PortState::Armed,
        physical_state: PortPhysicalState::LinkUp,
        neighbor_mtu: Mtu::B4096.into(),
        mtu_cap: Mtu::B2048.into(),
        client_reregister: true,
        subnet_timeout: crate::TimeoutCode::new(18),
        ..PortInfo::default()
    };
    smp.set_attribute(&info);
    assert_eq!(smp.data[8], 0xfe);
    assert_eq!(smp.data[16..20], [0, 4, 0, 1]);
    assert_eq!(smp.data[32..34], [0x03, 0x50]);
    assert_eq!(smp.data[36], 0x50);
    assert_eq!(smp.data[41], 0x04);
    assert_eq!(smp.data[51], 0x92);
    assert_eq!(smp.attribute::<PortInfo>(), Some(info));
    assert_eq!(smp.attribute::<NodeInfo>(), None);
}

#[test]
fn other_classes_and_versions_are_refused() {
    let good = Smp::lid_routed(Method::Get, Tid(1), attribute::NODE_INFO, 0).to_bytes();
    assert!(Smp::from_mad(&good).is_ok());
    let broken = |at: usize, v: u8| {
        let mut b = good.clone();
        b[at] = v;
        Smp::from_mad(&b).unwrap_err()
    };
    assert_eq!(broken(0, 2), SmpError::BaseVersion(2));
    assert_eq!(broken(1, 3), SmpError::Class(3));
    assert_eq!(broken(2, 2), SmpError::ClassVersion(2));
}

/// The manager is behind switch A. The route leaves A by port 3, enters B by port 1, leaves B by port 2,
/// enters an adapter by port 1, and returns.
#[test]
fn two_hops_out_and_back() {
    let path = DirectedPath::LOCAL.then(3).unwrap().then(2).unwrap();
    let mut smp = Smp::directed(Method::Get, Tid(1), attribute::NODE_INFO, 0, &path);
    assert_eq!(step(&mut smp, NodeType::Switch, Origin::Local), DirectedStep::Send(3));
    assert_eq!(step(&mut smp, NodeType::Switch, Origin::Port(1)), DirectedStep::Send(2));
    assert_eq!(step(&mut smp, NodeType::ChannelAdapter, Origin::Port(1)), DirectedStep::Deliver);
    assert_eq!(smp.return_path[..3], [0, 1, 1]);
    let mut smp = smp.answer(MadStatus::OK);
    assert!(smp.is_returning() && smp.status().is_ok());
    assert_eq!(step(&mut smp, NodeType::ChannelAdapter, Origin::Local), DirectedStep::Send(1));
    assert_eq!(step(&mut smp, NodeType::Switch, Origin::Port(2)), DirectedStep::Send(1));
    assert_eq!(step(&mut smp, NodeType::Switch, Origin::Port(3)), DirectedStep::Deliver);
    assert_eq!(smp.hop_pointer(), 0);
}

#[test]
fn zero_hops_ask_the_node_itself() {
    let mut smp = Smp::directed(Method::Get, Tid(1), attribute::NODE_INFO, 0, &DirectedPath::LOCAL);
    assert_eq!(step(&mut smp, NodeType::Switch, Origin::Local), DirectedStep::Deliver);
    let answer = smp.answer(MadStatus::OK);
    assert_eq!(step(&mut { answer }, NodeType::Switch, Origin::Local), DirectedStep::Deliver);
    for node in [NodeType::Switch, NodeType::ChannelAdapter] {
        assert_eq!(step(&mut { answer }, node, Origin::Port(1)), DirectedStep::Discard, "not through a link");
    }
}

#[test]
fn adapters_do_not_forward() {
    let path = DirectedPath::LOCAL.then(3).unwrap().then(2).unwrap();
    let mut smp = Smp::directed(Method::Get, Tid(1), attribute::NODE_INFO, 0, &path);
    smp.set_hop_pointer(1);
    assert_eq!(step(&mut smp, NodeType::ChannelAdapter, Origin::Port(1)), DirectedStep::Discard);
    smp.set_hop_pointer(4);
    assert_eq!(step(&mut smp, NodeType::Switch, Origin::Port(1)), DirectedStep::Discard);
}

#[test]
fn a_path_has_at_most_63_hops() {
    let mut path = DirectedPath::LOCAL;
    for i in 0..63 {
        path = path.then(i).unwrap();
    }
    assert_eq!(path.hops(), 63);
    assert_eq!(path.then(1), None);
}

#[test]
fn tables_and_modifiers() {
    assert_eq!(MulticastForwardingBlock::place(MulticastForwardingBlock::modifier(0x1ff, 15)), (0x1ff, 15));
    assert_eq!(PKeyBlock::place(PKeyBlock::modifier(3, 36)), (3, 36));
    let mut block = PKeyBlock::default();
    block.keys[1] = PKey(0x8001);
    let smp = Smp::lid_routed(Method::Set, Tid(1), attribute::PKEY_TABLE, 0).with(&block);
    assert_eq!(smp.data[..4], [0, 0, 0x80, 1]);
    let guids = GuidBlock { guids: [Guid(5); 8] };
    let smp = Smp::lid_routed(Method::Set, Tid(1), attribute::GUID_INFO, 0).with(&guids);
    assert_eq!(smp.data[63], 5);
    assert_eq!(NodeDescription::new("ibfab").name(), "ibfab");
    assert_eq!(NodeDescription::new(&"ä".repeat(40)).name(), "ä".repeat(32));
}

#[test]
fn traps() {
    let notice = Notice::link_state_change(Lid(2));
    let smp = notice.to_trap(Tid(9));
    assert_eq!(smp.data[..12], [0x81, 0, 0, 2, 0, 128, 0, 2, 0, 0, 0, 2]);
    assert_eq!(smp.attribute::<Notice>(), Some(notice));
    let notice = Notice::capability_change(Lid(3), Capabilities::SM);
    assert_eq!(notice.trap_number, trap::CAPABILITY_CHANGE);
    assert_eq!(notice.to_trap(Tid(9)).data[10..20], [0, 0, 0, 3, 0, 0, 0, 0, 0, 2]);
    let notice = Notice::description_change(Lid(3), Capabilities::SM);
    assert_eq!(notice.to_trap(Tid(9)).data[10..22], [0, 0, 0, 3, 0, 1, 0, 0, 0, 2, 0, 1]);
    let mut smp = Smp::lid_routed(Method::Set, Tid(1), attribute::PORT_INFO, 0x0102_0304);
    smp.mkey = 0x1122_3344_5566_7788;
    let by_lid =
        [0, 0, 0, 9, 0, 0, 2, 0, 0, 0x15, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
    let notice = Notice::bad_mkey(NodeType::ChannelAdapter, Lid(3), Lid(9), &smp);
    assert_eq!(
        (notice.trap_number, notice.kind.get(), notice.producer, notice.issuer_lid),
        (trap::BAD_MKEY, 2, Qpn::new(1), Lid(3))
    );
    assert_eq!((&notice.details[..22], &notice.details[22..]), (&by_lid[..], &[0; 32][..]));
    // The notice has up to 30 hops of a directed-route packet's return path.
    let mut path = DirectedPath::LOCAL;
    for hops in 1..=31u8 {
        path = path.then(hops).unwrap();
        smp = Smp::directed(Method::Set, Tid(1), attribute::PORT_INFO, 0, &path);
        smp.return_path = std::array::from_fn(|at| 100 + at as u8);
        let notice = Notice::bad_mkey(NodeType::ChannelAdapter, Lid(3), Lid(9), &smp);
        assert_eq!(notice.details[4..6], [0xff, 0xff]);
        let shown = usize::from(hops.min(30));
        assert_eq!(notice.details[23], if hops > 30 { 0xc0 | 30 } else { 0x80 | hops });
        let way = &notice.details[24..];
        assert!(
            (1..).zip(&way[..shown]).all(|(at, port)| *port == 100 + at) && way[shown..] == [0; 30][shown..]
        );
    }
}

#[test]
fn lanes() {
    let lane = VirtualLane::new;
    let mut map = LaneMap::default();
    map.lanes[0] = lane(1);
    map.lanes[15] = lane(15);
    let smp = Smp::lid_routed(Method::Set, Tid(1), attribute::SL_TO_VL, 0).with(&map);
    assert_eq!(smp.data[..9], [0x10, 0, 0, 0, 0, 0, 0, 0x0f, 0]);
    assert_eq!(smp.attribute::<LaneMap>(), Some(map));
    assert_eq!((map.lane(ServiceLevel::new(15)), map.lane(ServiceLevel::new(1))), (lane(15), lane(0)));
    assert_eq!(LaneMap::place(LaneMap::modifier(3, 254)), (3, 254));
    let mut block = VlArbitrationBlock::default();
    block.entries[31] = ArbitrationEntry { lane: lane(14), weight: 255 };
    let smp = Smp::lid_routed(Method::Set, Tid(1), attribute::VL_ARBITRATION, 0).with(&block);
    assert_eq!(smp.data[61..], [0, 14, 255]);
    assert_eq!(smp.attribute::<VlArbitrationBlock>(), Some(block));
    assert_eq!(VlArbitrationBlock::place(VlArbitrationBlock::modifier(4, 36)), (4, 36));
    let mut tables = ArbitrationTables::default();
    *tables.block(4).unwrap() = block;
    assert_eq!(tables.block(4).copied(), Some(block));
    assert!(tables.block(0).is_none() && tables.block(5).is_none());
}
