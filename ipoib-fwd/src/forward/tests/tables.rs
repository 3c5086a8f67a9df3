//! What is published: bounded, shared, and the right segment for each packet.

use super::*;
use ipoib::drop_reason::DropReason;
use ipoib::link::{Neighbour, NeighbourChange};

fn host() -> IbNeighbour<()> {
    IbNeighbour { ud: Some(()), rc: rc(None), dial: false }
}

#[test]
fn tables_are_bounded_and_indices_last() {
    let mut t: Draft<()> = Draft::new(3, Settings::new(GATEWAY_MAC), MAX_NEIGHBOURS, 1);
    for i in 0..MAX_NEIGHBOURS as u32 {
        t.set_ib(i.into(), host()).unwrap();
    }
    assert_eq!(t.set_ib(9999.into(), host()), Err(TableFull(MAX_NEIGHBOURS)));
    let (seven, _) = t.table().ib(7.into()).unwrap();
    let (nine, _) = t.table().ib(9.into()).unwrap();
    assert!(t.remove_ib(9.into()) && !t.remove_ib(9.into()));
    assert_eq!(t.ib_at(nine), None);
    assert_eq!(t.set_ib(9999.into(), host()), Ok(nine));
    assert_eq!((t.ib_at(seven), t.ib_at(nine)), (Some(7.into()), Some(9999.into())));
    assert!(t.table().ib(9.into()).is_none());
    let before = t.table().clone();
    t.remove_ib(7.into());
    assert!(before.ib(7.into()).is_some(), "a published table does not change");
    // More than 16 bits can count.
    let mut many: Draft<()> = Draft::new(3, Settings::new(GATEWAY_MAC), 70_000, 1);
    let last = (0..70_000u32).map(|i| many.set_eth(i.into(), EthNeighbour { mac: ETH_MAC }).unwrap()).last();
    assert_eq!(many.eth_at(last.unwrap()), Some(69_999.into()));
    assert!(many.table().used(WORKER).is_some_and(|used| used.ethernet.mark(69_999)));
}

/// At a full table who comes is in the list before who goes.
#[test]
fn who_goes_makes_room_for_who_comes() {
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
fn each_worker_has_its_connection_however_many_workers_there_are() {
    let path = |n| RcPath { slot: RcSlot(n), mtu: 2000 + u32::from(n) };
    let by_worker: Vec<_> = (0..7).map(|n| (n != 2 && n != 5).then(|| path(n))).collect();
    let paths = RcPaths::new(&by_worker);
    for (worker, expected) in by_worker.iter().chain([&None]).enumerate() {
        assert_eq!(paths.of(WorkerIndex(worker as u8)), expected.as_ref());
    }
    let mut t = tables();
    t.set_ib(IB_UD, IbNeighbour { ud: Some("ud-host"), rc: paths, dial: true }).unwrap();
    let f = frame(GATEWAY_MAC, 0x0800, &ip(ETH, IB_UD, 60));
    let front = FrameHead::parse(&f, FrameFacts::default()).unwrap();
    for (worker, way, wanted) in
        [(1, Via::Rc(RcSlot(1)), None), (2, Via::Ud(&"ud-host"), Some(IB_UD)), (6, Via::Rc(RcSlot(6)), None)]
    {
        let EthVerdict::Forward { via, dial, .. } =
            eth_to_ib(&f, &front, f.len(), t.table(), WorkerIndex(worker))
        else {
            panic!("forwards");
        };
        assert_eq!((via, dial), (way, wanted), "worker {worker}");
    }
}

#[test]
fn a_frame_is_of_the_segment_of_its_vlan_and_port() {
    let mut t: Tables<()> = Tables::default();
    for n in 0..3 {
        let mut settings = Settings::new(GATEWAY_MAC);
        settings.eth_mtu = 1000 + u16::from(n);
        let draft = Draft::new(1, settings, 16, 1);
        t.set_segment(SegmentIndex(n), Some(draft.table().clone()));
    }
    t.join_vlan(0, 0, Some(SegmentIndex(0)));
    t.join_vlan(0, 100, Some(SegmentIndex(1)));
    t.join_vlan(1, 100, Some(SegmentIndex(2)));
    t.join_link(3, Some(SegmentIndex(1)));
    let of = |port, vid| t.of_vlan(port, vid).map(|(index, table)| (index.0, table.settings.eth_mtu));
    assert_eq!([of(0, 0), of(0, 100), of(1, 100)], [Some((0, 1000)), Some((1, 1001)), Some((2, 1002))]);
    assert_eq!([of(1, 0), of(0, 101), of(2, 0), of(0, 4095), of(0, 4096)], [None; 5]);
    assert_eq!(
        (t.of_link(3).map(|(i, _)| i.0), t.of_link(2).is_some(), t.of_link(4).is_some()),
        (Some(1), false, false)
    );
    t.set_segment(SegmentIndex(1), None);
    assert!(t.of_vlan(0, 100).is_none() && t.of_link(3).is_none());
    t.join_vlan(0, 0, None);
    assert!(t.of_vlan(0, 0).is_none());
}

#[test]
fn tags_are_read_wherever_they_are() {
    let packet = ip(ETH, IB_UD, 60);
    let tagged = |tag: [u8; 2]| frame(GATEWAY_MAC, 0x8100, &[&tag[..], &[8, 0], &packet].concat());
    let plain = frame(GATEWAY_MAC, 0x0800, &packet);
    let read = |f: &[u8], tag| {
        let facts = FrameFacts { tag, checksum: Checksum::Good };
        FrameHead::parse(f, facts).map(|h| (h.vid, h.len, h.ethernet.ethertype))
    };
    let in_frame = FrameTag::InFrame;
    assert_eq!(read(&plain, in_frame), Ok((0, 14, 0x0800)));
    assert_eq!(read(&plain, FrameTag::Taken(0x6005)), Ok((5, 14, 0x0800)));
    assert_eq!(read(&tagged([0x60, 0x05]), in_frame), Ok((5, 18, 0x0800)));
    // A priority and no VLAN: as good as untagged.
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
fn what_the_port_says_of_a_header_is_believed() {
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
    assert_eq!((verdict(&good, Checksum::Bad), verdict(&wrong, Checksum::Bad)), (bad, bad));
    assert_eq!(
        (verdict(&good, Checksum::Good), verdict(&wrong, Checksum::Good)),
        (None, None),
        "not looked at"
    );
    // Nothing but IPv4 has such a checksum.
    let arp = frame(GATEWAY_MAC, 0x0806, &[0; 28]);
    let front =
        FrameHead::parse(&arp, FrameFacts { checksum: Checksum::Bad, ..FrameFacts::default() }).unwrap();
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
    let dropped = ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Bad, t.table());
    assert_eq!(dropped, IbVerdict::Drop(DropReason::BadIpv4Checksum));
}
