//! One test for each rule, in both directions, and hostile packets.

use proptest::prelude::*;

use super::*;
use ipoib::drop_reason::DropReason;
use ipoib::net::{IPOIB_IPV4_HEADER, ethernet::ETHERNET_HEADER_LEN};

const BROADCAST: Ipv4Addr = Ipv4Addr::BROADCAST;
const SUBNET_BROADCAST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 255);
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

fn unicast(packet: &[u8]) -> Vec<u8> {
    frame(GATEWAY_MAC, 0x0800, packet)
}

#[test]
fn a_connection_is_preferred() {
    let t = tables();
    let EthVerdict::Forward { via, ip_len, neighbour, dial } = eth(&t, &unicast(&ip(ETH, IB_RC, 1500)))
    else {
        panic!("forwards");
    };
    assert_eq!((via, ip_len, dial), (Via::Rc(RcSlot(5)), 1500, None));
    assert_eq!(neighbour.and_then(|n| t.ib_at(n)), Some(IB_RC));
}

#[test]
fn without_a_connection_a_datagram_is_sent_and_one_is_requested() {
    let t = tables();
    let EthVerdict::Forward { via, ip_len, dial, .. } = eth(&t, &unicast(&ip(ETH, IB_UD, 100))) else {
        panic!("forwards");
    };
    assert_eq!((via, ip_len, dial), (Via::Ud(&"ud-host"), 100, Some(IB_UD.into())));
}

#[test]
fn padding_of_short_frames_is_not_sent() {
    let mut f = unicast(&ip(ETH, IB_UD, 28));
    f.resize(60, 0xaa);
    assert!(matches!(eth(&tables(), &f), EthVerdict::Forward { ip_len: 28, .. }));
}

#[test]
fn a_packet_above_the_connection_mtu_is_sent_as_a_datagram() {
    let mut t = tables();
    let rc = rc(Some(RcPath { slot: RcSlot(1), mtu: 1004 }));
    t.set_ib(IB_RC, IbNeighbour { ud: Some("rc-host"), rc, dial: false }).unwrap();
    let via = |len| match eth(&t, &unicast(&ip(ETH, IB_RC, len))) {
        EthVerdict::Forward { via, .. } => via,
        other => panic!("{other:?}"),
    };
    assert_eq!(via(1000), Via::Rc(RcSlot(1)));
    assert_eq!(via(1001), Via::Ud(&"rc-host"));
}

#[test]
fn too_big_for_datagrams_is_reported_or_fragmented_with_the_true_mtu() {
    let t = tables();
    assert!(matches!(eth(&t, &unicast(&ip(ETH, IB_UD, 2044))), EthVerdict::Forward { .. }));
    let big = ip(ETH, IB_UD, 2045);
    assert!(matches!(
        eth(&t, &unicast(&big)),
        EthVerdict::Fragment { via: Via::Ud(_), mtu: 2044, ip_len: 2045, .. }
    ));
    assert!(matches!(
        eth(&t, &unicast(&dont_fragment(big))),
        EthVerdict::TooBig { mtu: 2044, dial: Some(hop) } if hop == IB_UD.into()
    ));
    assert!(matches!(eth(&t, &unicast(&dont_fragment(ip(ETH, IB_RC, 9000)))), EthVerdict::Forward { .. }));
}

#[test]
fn unknown_and_own_destinations_and_arp_are_punted() {
    let t = tables();
    assert_eq!(
        eth(&t, &unicast(&ip(ETH, UNKNOWN_HOST, 60))),
        EthVerdict::Punt(Punt::Neighbour(UNKNOWN_HOST))
    );
    assert_eq!(eth(&t, &unicast(&ip(ETH, IB_PATHLESS, 60))), EthVerdict::Punt(Punt::Neighbour(IB_PATHLESS)));
    assert_eq!(eth(&t, &unicast(&ip(ETH, GATEWAY, 60))), EthVerdict::Punt(Punt::Local));
    assert_eq!(eth(&t, &frame(MacAddress::BROADCAST, 0x0806, &[0; 28])), EthVerdict::Punt(Punt::Arp));
}

#[test]
fn broadcast_and_groups_to_infiniband() {
    let t = tables();
    let group = |destination: Ipv4Addr, mac| match eth(&t, &frame(mac, 0x0800, &ip(ETH, destination, 60))) {
        EthVerdict::Forward { via: Via::Group(group), neighbour: None, .. } => Ok(*group),
        EthVerdict::Drop(reason) => Err(reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(group(BROADCAST, MacAddress::BROADCAST), Ok("broadcast"));
    assert_eq!(group(SUBNET_BROADCAST, MacAddress::BROADCAST), Ok("broadcast"));
    assert_eq!(group(ALL_HOSTS, MacAddress([1, 0, 0x5e, 0, 0, 1])), Ok("broadcast"));
    let by_group = |g: [u8; 4]| group(g.into(), MacAddress::of_group(g.into()));
    assert_eq!(by_group([224, 0, 0, 251]), Ok("mdns"));
    assert_eq!(by_group([239, 1, 1, 1]), Ok("joined"));
    assert_eq!(by_group([239, 1, 1, 2]), Err(DropReason::GroupUnknown));
    assert_eq!(group(ALL_HOSTS, MacAddress([1, 0, 0x5e, 0, 0, 2])), Err(DropReason::NotForUs));
    assert_eq!(group(IB_RC, MacAddress::BROADCAST), Err(DropReason::LinkBroadcastOfUnicast));
}

#[test]
fn broadcast_and_groups_to_ethernet() {
    let t = tables();
    for (destination, mac) in [
        (BROADCAST, MacAddress::BROADCAST),
        (SUBNET_BROADCAST, MacAddress::BROADCAST),
        (ALL_HOSTS, MacAddress([1, 0, 0x5e, 0, 0, 1])),
    ] {
        let m = message(&ip(IB_RC, destination, 60));
        let IbVerdict::Forward { to, neighbour: None, .. } =
            ib_to_eth(&m, m.len(), &ud(true), Checksum::Unknown, t.table())
        else {
            panic!("{destination}");
        };
        assert_eq!(to, mac);
    }
}

#[test]
fn own_multicast_that_comes_back_is_dropped() {
    let m = message(&ip(IB_RC, BROADCAST, 60));
    let Source::Ud(mut own) = ud(true) else { unreachable!() };
    (own.slid, own.qpn) = (Lid(7), Qpn::new(0x48));
    assert_eq!(
        ib_to_eth(&m, m.len(), &Source::Ud(own), Checksum::Unknown, tables().table()),
        IbVerdict::Drop(DropReason::LoopSelf)
    );
    own.qpn = Qpn::new(0x49);
    assert!(matches!(
        ib_to_eth(&m, m.len(), &Source::Ud(own), Checksum::Unknown, tables().table()),
        IbVerdict::Forward { .. }
    ));
}

#[test]
fn infiniband_to_ethernet_unicast_is_forwarded_fragmented_or_reported() {
    let t = tables();
    let verdict = |packet: &[u8]| {
        ib_to_eth(&message(packet), packet.len() + 4, &Source::Rc, Checksum::Unknown, t.table())
    };
    let IbVerdict::Forward { to, ip_len: 1500, neighbour } = verdict(&ip(IB_RC, ETH, 1500)) else {
        panic!("forwards");
    };
    assert_eq!(to, ETH_MAC);
    assert_eq!(neighbour.and_then(|n| t.eth_at(n)), Some(ETH));
    assert!(matches!(
        verdict(&ip(IB_RC, ETH, 65_520)),
        IbVerdict::Fragment { mtu: 1500, ip_len: 65_520, .. }
    ));
    assert_eq!(verdict(&dont_fragment(ip(IB_RC, ETH, 1501))), IbVerdict::TooBig { mtu: 1500 });
    assert_eq!(verdict(&ip(IB_RC, GATEWAY, 60)), IbVerdict::Punt(Punt::Local));
    assert_eq!(verdict(&ip(IB_RC, UNKNOWN_HOST, 60)), IbVerdict::Punt(Punt::Neighbour(UNKNOWN_HOST)));
}

#[test]
fn hostile_frames_are_dropped_with_their_reason() {
    let good = ip(ETH, IB_RC, 60);
    let edit = |at: usize, value: u8| with(good.clone(), |p| p[at] = value);
    let mut bad_sum = good.clone();
    bad_sum[10] ^= 1;
    let own_source = [&GATEWAY_MAC.0[..], &GATEWAY_MAC.0, &[8, 0], &good].concat();
    let group_source = [&GATEWAY_MAC.0[..], &[1; 6], &[8, 0], &good].concat();
    for (frame, reason) in [
        (vec![], DropReason::Truncated),
        (unicast(&[])[..13].to_vec(), DropReason::Truncated),
        (unicast(&good[..19]), DropReason::Truncated),
        (unicast(&good[..59]), DropReason::Truncated),
        (unicast(&edit(0, 0x65)), DropReason::BadIpv4Version),
        (unicast(&edit(0, 0x44)), DropReason::BadLength),
        (unicast(&edit(3, 19)), DropReason::BadLength),
        (unicast(&with(good.clone(), |p| p[6..8].copy_from_slice(&[0x1f, 0xff]))), DropReason::BadLength),
        (unicast(&bad_sum), DropReason::BadIpv4Checksum),
        (unicast(&edit(8, 0)), DropReason::TtlExceeded),
        (own_source, DropReason::LoopSelf),
        (group_source, DropReason::Martian),
        (frame(MacAddress([2, 9, 9, 9, 9, 9]), 0x0800, &good), DropReason::NotForUs),
        (frame(GATEWAY_MAC, 0x8100, &[0]), DropReason::Truncated),
        (
            frame(GATEWAY_MAC, 0x8100, &[&[0, 5, 0x81, 0, 0, 6, 8, 0], &good[..]].concat()),
            DropReason::VlanStacked,
        ),
        (
            frame(GATEWAY_MAC, 0x8100, &[&[0, 5, 0x88, 0xa8, 0, 6, 8, 0], &good[..]].concat()),
            DropReason::VlanStacked,
        ),
        (frame(GATEWAY_MAC, 0x88a8, &[&[0, 5, 8, 0], &good[..]].concat()), DropReason::VlanStacked),
        (frame(GATEWAY_MAC, 0x86dd, &good), DropReason::Ipv6),
        (frame(GATEWAY_MAC, 0x0026, &good), DropReason::UnknownEthertype),
        (unicast(&ip(GATEWAY, IB_RC, 60)), DropReason::Martian),
        (unicast(&ip(IB_UD, IB_RC, 60)), DropReason::Martian),
        (unicast(&ip(Ipv4Addr::LOCALHOST, IB_RC, 60)), DropReason::Martian),
        (unicast(&ip(ALL_HOSTS, IB_RC, 60)), DropReason::Martian),
        (unicast(&ip(SUBNET_BROADCAST, IB_RC, 60)), DropReason::Martian),
        (unicast(&ip(Ipv4Addr::UNSPECIFIED, IB_RC, 60)), DropReason::Martian),
        (unicast(&ip(ETH, Ipv4Addr::LOCALHOST, 60)), DropReason::Martian),
        (unicast(&ip(ETH, Ipv4Addr::new(10, 77, 0, 0), 60)), DropReason::Martian),
        (unicast(&ip(ETH, Ipv4Addr::new(8, 8, 8, 8), 60)), DropReason::OffSubnet),
        (unicast(&ip(UNKNOWN_HOST, ETH, 60)), DropReason::SameSide),
    ] {
        assert_eq!(eth(&tables(), &frame), EthVerdict::Drop(reason), "{frame:02x?}");
    }
}

#[test]
fn hostile_messages_are_dropped_with_their_reason() {
    let good = ip(IB_RC, ETH, 60);
    let typed = |kind: [u8; 2]| [&kind[..], &[0, 0], &good].concat();
    for (message, source, reason) in [
        (vec![], Source::Rc, DropReason::Truncated),
        (vec![8, 0, 0], ud(false), DropReason::Truncated),
        (message(&good[..59]), Source::Rc, DropReason::Truncated),
        (typed([0x45, 0]), Source::Rc, DropReason::UnknownEthertype),
        (typed([0, 5]), Source::Rc, DropReason::NotIpoib),
        (typed([0x86, 0xdd]), Source::Rc, DropReason::Ipv6),
        (typed([8, 6]), Source::Rc, DropReason::BadArp),
        (message(&good), ud(true), DropReason::LinkBroadcastOfUnicast),
        (message(&ip(ETH, UNKNOWN_HOST, 60)), Source::Rc, DropReason::Martian),
        (message(&ip(IB_RC, IB_UD, 60)), Source::Rc, DropReason::SameSide),
    ] {
        assert_eq!(
            ib_to_eth(&message, message.len(), &source, Checksum::Unknown, tables().table()),
            IbVerdict::Drop(reason),
            "{message:02x?}"
        );
    }
    assert_eq!(
        ib_to_eth(&typed([8, 6]), 64, &ud(true), Checksum::Unknown, tables().table()),
        IbVerdict::Punt(Punt::Arp)
    );
}

#[test]
fn nothing_is_sent_to_a_side_that_is_down() {
    let mut t = tables();
    t.settings().broadcast = None;
    t.settings().eth_up = false;
    assert_eq!(eth(&t, &unicast(&ip(ETH, IB_RC, 60))), EthVerdict::Drop(DropReason::LinkDown));
    let m = message(&ip(IB_RC, ETH, 60));
    assert_eq!(
        ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Unknown, t.table()),
        IbVerdict::Drop(DropReason::LinkDown)
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), claimed in 0usize..70_000) {
        let t = tables();
        let mut framed = unicast(&bytes);
        let _ = eth_of(&t, &bytes, claimed);
        let _ = eth_of(&t, &framed, claimed);
        let _ = ib_to_eth(&bytes, claimed, &ud(true), Checksum::Unknown, t.table());
        let _ = ib_to_eth(&message(&bytes), claimed, &Source::Rc, Checksum::Unknown, t.table());
        framed[12..14].copy_from_slice(&[8, 6]);
        let _ = ipoib::net::arp::EthernetArp::parse(&framed);
        let _ = icmp::may_answer(&bytes, claimed);
        let _ = icmp::fragmentation_needed(&mut [0; 576], &bytes, GATEWAY, 1500);
        let mut copy = bytes.clone();
        if icmp::echo_reply(&mut copy).is_err() {
            prop_assert_eq!(copy, bytes);
        }
    }

    #[test]
    fn mutated_packets_never_panic_and_verdicts_stay_in_bounds(
        len in 28usize..200,
        edits in prop::collection::vec((0usize..60, any::<u8>()), 0..6),
    ) {
        let packet = with(ip(ETH, IB_RC, len), |p| {
            for (at, value) in edits {
                if at > 0 && at < p.len() {
                    p[at] = value;
                }
            }
        });
        let t = tables();
        if let EthVerdict::Forward { ip_len, .. } | EthVerdict::Fragment { ip_len, .. } = eth(&t, &unicast(&packet)) {
            prop_assert!(usize::from(ip_len) <= packet.len());
        }
    }

    #[test]
    fn a_packet_is_unchanged_after_a_round_trip(len in 28usize..1500) {
        let t = tables();
        let packet = ip(ETH, IB_RC, len);
        let f = unicast(&packet);
        let EthVerdict::Forward { ip_len, .. } = eth(&t, &f) else { panic!("forwards") };
        let m = [&IPOIB_IPV4_HEADER[..], &f[ETHERNET_HEADER_LEN..][..usize::from(ip_len)]].concat();
        // The other gateway of the subnet has the two sides reversed.
        let mut other: Draft<()> = Draft::new(2, Settings::new(GATEWAY_MAC), 16, 1);
        other.set_eth(IB_RC, EthNeighbour { mac: ETH_MAC }).unwrap();
        let IbVerdict::Forward { to, ip_len, .. } = ib_to_eth(&m, m.len(), &Source::Rc, Checksum::Unknown, other.table()) else {
            panic!("forwards")
        };
        let out = [&frame(to, 0x0800, &[])[..], &m[4..][..usize::from(ip_len)]].concat();
        prop_assert_eq!(&out[14..], &packet[..]);
        prop_assert!(etherparse::SlicedPacket::from_ethernet(&out).is_ok());
    }
}

#[test]
fn the_gateways_own_packets_use_the_transport_that_fits() {
    let t = tables();
    let own = |to, ip: &[u8]| {
        let framed = [&[0; 14][..], ip].concat();
        match own_to_ib(&framed, framed.len(), to, t.table(), WORKER) {
            EthVerdict::Forward { via: Via::Rc(_), .. } => "connection",
            EthVerdict::Forward { via: Via::Ud(_), .. } => "datagram",
            EthVerdict::Fragment { via: Via::Ud(_), mtu, .. } if mtu <= t.table().settings.ud_ip_mtu() => {
                "pieces"
            }
            EthVerdict::Drop(reason) => reason.name(),
            _ => "else",
        }
    };
    let (short, long) = (ip(GATEWAY, IB_UD, 500), ip(GATEWAY, IB_UD, 8000));
    assert_eq!(own(IB_RC, &long), "connection");
    assert_eq!((own(IB_UD, &short), own(IB_UD, &long)), ("datagram", "pieces"));
    assert_eq!(own(IB_UD, &dont_fragment(long.clone())), "too-big");
    assert_eq!(
        (own(IB_PATHLESS, &short), own(UNKNOWN_HOST, &short)),
        ("neighbour-unresolved", "neighbour-unresolved")
    );
    assert_eq!(own(IB_RC, &short[..19]), "truncated");
}
