//! Published tables: bounded, shared, and with the right segment for each packet.

use super::*;
use ipoib::drop_reason::DropReason;
use ipoib::link::{Neighbour, NeighbourChange};

fn host() -> IbNeighbour<()> {
    IbNeighbour { ud: Some(()), rc: rc(None), dial: false }
}

#[test]
fn tables_are_bounded_and_indices_are_stable() {
    let mut t: Draft<()> = Draft::new(3, Settings::new(GATEWAY_MAC), MAX_NEIGHBOURS, 1);
    for i in 0..MAX_NEIGHBOURS as u32 {
        t.set_ib(i.into(), host()).unwrap();
    }
    assert_eq!(t.set_ib(9999.into(), host()), Err(TableFull(MAX_NEIGHBOURS)));
    let (seven, _) = t.table().ib(7.into()).unwrap();
    let (nine, _) = t.table().ib(9.into()).unwrap();
    assert!(t.remove_ib(9.into()) && !t.remove_ib(9.into()));
    assert_eq!(t.ib_at(nine), None);
    let next = t.set_ib(9999.into(), host()).unwrap();
    assert_eq!((t.ib_at(seven), t.ib_at(nine), t.ib_at(next)), (Some(7.into()), None, Some(9999.into())));
    assert!(t.table().ib(9.into()).is_none());
    let before = t.table().clone();
    t.remove_ib(7.into());
    assert!(before.ib(7.into()).is_some(), "a published table does not change");
    // A worker with the older table still marks the removed neighbor, and not the new one.
    before.mark_ib(WORKER, nine);
    assert!(t.table().mark_ib(WORKER, next));
    assert_eq!(t.take_used(WORKER), (vec![9999.into()], vec![]));
    // More indices than 16 bits can hold.
    let mut many: Draft<()> = Draft::new(3, Settings::new(GATEWAY_MAC), 70_000, 1);
    let last = (0..70_000u32).map(|i| many.set_eth(i.into(), EthNeighbour { mac: ETH_MAC }).unwrap()).last();
    assert_eq!(many.eth_at(last.unwrap()), Some(69_999.into()));
    assert!(many.table().mark_eth(WORKER, last.unwrap()) && !many.table().mark_eth(WORKER, last.unwrap()));
    assert_eq!(many.take_used(WORKER), (vec![], vec![69_999.into()]));
}

/// In the changes of a full table, additions may precede removals.
#[test]
fn removed_neighbours_make_room_for_new_ones() {
    let mut t: Draft<()> = Draft::new(3, Settings::new(GATEWAY_MAC), 2, 1);
    let set = |n: u32| {
        NeighbourChange::Set(Neighbour {
            ip: Ipv4Addr::from(n).into(),
            hardware: ib_wire::ipoib::HardwareAddress::default(),
            ud: Some(()),
            rc: Vec::new(),
            dial: false,
        })
    };
    assert_eq!(t.apply(&[set(5), set(9)]), 0);
    assert_eq!(t.apply(&[set(1), NeighbourChange::Remove(Ipv4Addr::from_bits(9).into())]), 0);
    assert!(t.table().ib(1.into()).is_some() && t.table().ib(9.into()).is_none());
    assert_eq!(t.apply(&[set(2), set(3)]), 2);
}

#[test]
fn each_of_many_workers_has_its_connection() {
    let path = |n| RcPath { slot: RcSlot(n), mtu: 2000 + u32::from(n) };
    let by_worker: Vec<_> = (0..7).map(|n| (n != 2 && n != 5).then(|| path(n))).collect();
    let paths = RcPaths::new(&by_worker);
    for (worker, expected) in by_worker.iter().chain([&None]).enumerate() {
        assert_eq!(paths.of(WorkerIndex(worker as u8)), *expected);
    }
    let mut t = tables();
    t.set_ib(IB_UD, IbNeighbour { ud: Some("ud-host"), rc: paths, dial: true }).unwrap();
    let f = frame(GATEWAY_MAC, 0x0800, &ip(ETH, IB_UD, 60));
    let front = FrameHead::parse(&f, FrameFacts::default()).unwrap();
    for (worker, path, wanted) in
        [(1, Via::Rc(RcSlot(1)), None), (2, Via::Ud(&"ud-host"), Some(IB_UD)), (6, Via::Rc(RcSlot(6)), None)]
    {
        let EthVerdict::Forward { via, dial, .. } =
            eth_to_ib(&f, &front, f.len(), t.table(), WorkerIndex(worker))
        else {
            panic!("forwards");
        };
        assert_eq!((via, dial), (path, wanted.map(NextHop::from)), "worker {worker}");
    }
}

#[test]
fn a_frame_belongs_to_the_segment_of_its_vlan_and_port() {
    let mut t: Tables<()> = Tables::default();
    for n in 0..3 {
        let mut settings = Settings::new(GATEWAY_MAC);
        settings.eth_mtu = 1000 + u16::from(n);
        let draft = Draft::new(1, settings, 16, 1);
        t.set_segment(SegmentIndex(n), Some(draft.table().clone()));
    }
    let [first, second, third] = [0, 1, 2].map(EthernetIndex);
    t.join_vlan(first, 0, Some(SegmentIndex(0)));
    t.join_vlan(first, 100, Some(SegmentIndex(1)));
    t.join_vlan(second, 100, Some(SegmentIndex(2)));
    let of = |port, vid| t.of_vlan(port, vid).map(|(index, table)| (index.0, table.settings.eth_mtu));
    assert_eq!(
        [of(first, 0), of(first, 100), of(second, 100)],
        [Some((0, 1000)), Some((1, 1001)), Some((2, 1002))]
    );
    let nowhere = [(second, 0), (first, 101), (third, 0), (first, 4095), (first, 4096)];
    assert_eq!(nowhere.map(|(port, vid)| of(port, vid)), [None; 5]);
    let several = |t: &Tables<()>| [first, second, third].map(|port| t.has_several_vlans(port));
    assert_eq!(several(&t), [true, false, false]);
    t.set_segment(SegmentIndex(1), None);
    assert!(t.of_vlan(first, 100).is_none());
    t.join_vlan(first, 0, None);
    assert!(t.of_vlan(first, 0).is_none());
    assert_eq!(several(&t), [false; 3]);
    t.join_vlan(second, 7, Some(SegmentIndex(0)));
    assert_eq!(several(&t), [false, true, false]);
}

/// Entries are prefetched where it pays, and prefetches of unknown hosts are harmless.
#[test]
fn a_side_with_thousands_of_hosts_is_large_whatever_their_segments() {
    let with = |ib: u32, eth: u32| {
        let mut draft: Draft<()> = Draft::new(3, Settings::new(GATEWAY_MAC), 20_000, 1);
        for n in 0..ib {
            draft.set_ib(n.into(), host()).unwrap();
        }
        for n in 0..eth {
            draft.set_eth(n.into(), EthNeighbour { mac: ETH_MAC }).unwrap();
        }
        draft.table().clone()
    };
    let mut tables: Tables<()> = Tables::default();
    let large = |t: &Tables<()>| (t.are_large(Side::InfiniBand), t.are_large(Side::Ethernet));
    assert_eq!(large(&tables), (false, false));
    tables.set_segment(SegmentIndex(0), Some(with(2000, 2000)));
    assert_eq!(large(&tables), (false, false));
    tables.set_segment(SegmentIndex(1), Some(with(49, 100)));
    assert_eq!(large(&tables), (true, false));
    tables.set_segment(SegmentIndex(0), Some(with(8, 17_000)));
    assert_eq!(large(&tables), (false, true));
    tables.set_segment(SegmentIndex(0), None);
    assert_eq!(large(&tables), (false, false));
    // The directly indexed table may hold more hosts.
    let near = |ib: u32| {
        let mut settings = Settings::new(GATEWAY_MAC);
        settings.address = GatewayAddress::new([0, 0, 0, 1].into(), 8);
        let mut draft: Draft<()> = Draft::new(3, settings, 20_000, 1);
        for n in 1..=ib {
            draft.set_ib(n.into(), host()).unwrap();
        }
        draft.table().clone()
    };
    tables.set_segment(SegmentIndex(1), Some(near(8192)));
    assert_eq!(large(&tables), (false, false));
    tables.set_segment(SegmentIndex(1), Some(near(8193)));
    assert_eq!(large(&tables), (true, false));
    let table = with(9, 9);
    // The segment has no subnet, so all hosts are in the hash map.
    for address in [0, 8, 9, u32::MAX] {
        assert!(!table.fetch_ib([3, address]) && !table.fetch_eth([u32::MAX, address]));
        table.fetch_far_ib(address);
        table.fetch_far_eth(address);
    }
}

#[test]
fn a_message_belongs_to_the_segment_of_its_link_and_port() {
    let mut t: Tables<()> = Tables::default();
    for n in 0..2 {
        let draft = Draft::new(1, Settings::new(GATEWAY_MAC), 16, 1);
        t.set_segment(SegmentIndex(n), Some(draft.table().clone()));
    }
    let [first, second, third] = [0, 1, 2].map(EndpointIndex);
    t.join_link(first, 3, Some(SegmentIndex(1)));
    t.join_link(second, 3, Some(SegmentIndex(0)));
    let of = |t: &Tables<()>, port, link| t.of_link(port, link).map(|(index, _)| index.0);
    assert_eq!([of(&t, first, 3), of(&t, second, 3)], [Some(1), Some(0)]);
    assert_eq!([(first, 2), (second, 4), (third, 3)].map(|(port, link)| of(&t, port, link)), [None; 3]);
    // A link number beyond the maximum is not taken for a link of the next port.
    t.join_link(first, MAX_SEGMENTS as u8 + 3, Some(SegmentIndex(1)));
    assert_eq!([of(&t, second, 3), of(&t, first, MAX_SEGMENTS as u8 + 3)], [Some(0), None]);
    t.set_segment(SegmentIndex(1), None);
    assert!(of(&t, first, 3).is_none());
}

#[test]
fn tags_are_read_from_the_frame_and_from_metadata() {
    let packet = ip(ETH, IB_UD, 60);
    let tagged = |tag: [u8; 2]| frame(GATEWAY_MAC, 0x8100, &[&tag[..], &[8, 0], &packet].concat());
    let plain = frame(GATEWAY_MAC, 0x0800, &packet);
    let read = |f: &[u8], tag| {
        let facts = FrameFacts { tag, checksum: Checksum::Good };
        FrameHead::parse(f, facts).map(|h| (h.vid, h.len, h.ethertype))
    };
    let in_frame = FrameTag::InFrame;
    assert_eq!(read(&plain, in_frame), Ok((0, 14, 0x0800)));
    assert_eq!(read(&plain, FrameTag::Taken(0x6005)), Ok((5, 14, 0x0800)));
    assert_eq!(read(&tagged([0x60, 0x05]), in_frame), Ok((5, 18, 0x0800)));
    // A priority tag without a VLAN: as untagged.
    assert_eq!(read(&tagged([0xe0, 0]), in_frame), Ok((0, 18, 0x0800)));
    assert_eq!(read(&plain, FrameTag::Taken(0xe000)), Ok((0, 14, 0x0800)));
    assert_eq!(read(&tagged([0, 5]), FrameTag::Taken(7)), Err(DropReason::VlanStacked));
    assert_eq!(read(&plain, FrameTag::Stacked), Err(DropReason::VlanStacked));
    let t = tables();
    assert!(matches!(eth(&t, &tagged([0xe0, 0])), EthVerdict::Forward { ip_len: 60, .. }));
    let short = &tagged([0, 5])[..17 + 60];
    assert_eq!(eth(&t, short), EthVerdict::Drop(DropReason::Truncated));
}

#[test]
fn the_ports_checksum_status_is_trusted() {
    let t = tables();
    let good = frame(GATEWAY_MAC, 0x0800, &ip(ETH, IB_UD, 60));
    let mut wrong = good.clone();
    wrong[24] ^= 1;
    let verdict = |f: &[u8], checksum| {
        let front = FrameHead::parse(f, FrameFacts { checksum, ..FrameFacts::default() }).unwrap();
        match eth_to_ib(f, &front, f.len(), t.table(), WorkerIndex(0)) {
            EthVerdict::Forward { .. } => None,
            EthVerdict::Drop(reason) => Some(reason),
            other => panic!("{other:?}"),
        }
    };
    let bad = Some(DropReason::BadIpv4Checksum);
    assert_eq!((verdict(&good, Checksum::Unknown), verdict(&wrong, Checksum::Unknown)), (None, bad));
    assert_eq!(
        (verdict(&good, Checksum::Good), verdict(&wrong, Checksum::Good)),
        (None, None),
        "not checked"
    );
    // Only IPv4 has such a checksum.
    let arp = frame(GATEWAY_MAC, 0x0806, &[0; 28]);
    let front =
        FrameHead::parse(&arp, FrameFacts { checksum: Checksum::Missing, ..FrameFacts::default() }).unwrap();
    assert!(matches!(
        eth_to_ib(&arp, &front, arp.len(), t.table(), WorkerIndex(0)),
        EthVerdict::Punt(Punt::Arp)
    ));
    let mut m = message(&ip(IB_UD, ETH, 60));
    assert!(matches!(
        ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Good, t.table()),
        IbVerdict::Forward { .. }
    ));
    m[14] ^= 1;
    assert!(matches!(
        ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Good, t.table()),
        IbVerdict::Forward { .. }
    ));
    let dropped = ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Unknown, t.table());
    assert_eq!(dropped, IbVerdict::Drop(DropReason::BadIpv4Checksum));
}
