//! Stalled ports, their backlogs, and the order of ports.

use super::*;
use crate::counter::Totals;
use dataplane::table::Publisher;
use ipoib::net::arp::ArpOperation;
use ipoib::net::ethernet::MacAddress;
use pmd::eal::Eal;
use pmd::eth::{EthConfig, EthPort};
use pmd::mem::{Pool, PoolConfig};
use std::net::Ipv4Addr;

#[test]
fn frames_that_a_port_does_not_take_are_of_the_segment_of_their_tag() {
    let words = "test --no-huge --no-shconf --no-pci -m 64 --no-telemetry --log-level=error --lcores 0@0";
    let _eal = Eal::init(words.split_whitespace().map(str::to_owned)).expect("EAL");
    let config = PoolConfig { count: 64, data_room: 2048, cache: 0, socket: -1 };
    let pool = Pool::create("faces", &config).expect("a pool");
    let mut tables = Tables::<()>::default();
    tables.join_vlan(EthernetIndex(0), 0, Some(SegmentIndex(0)));
    tables.join_vlan(EthernetIndex(0), 7, Some(SegmentIndex(1)));
    let frame = |vid: Option<u16>, is_wish: bool| {
        let mut frame = pool.copy_from_slice(&[[2; 12].as_slice(), &[8, 0], &[0; 46]].concat()).unwrap();
        match vid {
            Some(vid) if is_wish => frame.wish_tag(vid),
            Some(vid) => assert!(tag::insert(&mut frame, vid)),
            None => {}
        }
        let vid = front_of(&frame).unwrap().vid;
        tables.vlan(EthernetIndex(0), vid).map(|segment| segment.0)
    };
    assert_eq!(frame(None, false), Some(0));
    assert_eq!([true, false].map(|is_wish| frame(Some(7), is_wish)), [Some(1); 2]);
    assert_eq!([true, false].map(|is_wish| frame(Some(8), is_wish)), [None; 2]);
}

/// A port that returns its own frames, up to the size of its ring, and a pool of this name.
fn port_on_a_ring(name: &str) -> (Eal, Pool, EthPort, EthernetFace) {
    let words = "test --no-huge --no-shconf --no-pci -m 128 --no-telemetry --log-level=error --lcores 0@0 --vdev net_ring0";
    let eal = Eal::init(words.split_whitespace().map(str::to_owned)).expect("EAL");
    let pool =
        Pool::create(name, &PoolConfig { count: 8192, data_room: 2048, cache: 0, socket: -1 }).unwrap();
    let config = EthConfig {
        queues: 1,
        rx_descriptors: 256,
        tx_descriptors: 256,
        mtu: 1500,
        promiscuous: true,
        offloads: false,
    };
    let (port, mut queues) = EthPort::start(Some("net_ring0"), &config, &pool).expect("a port");
    let face = EthernetFace::new(queues.remove(0));
    (eal, pool, port, face)
}

#[test]
fn a_port_that_was_stuck_is_offered_frames_of_the_gateways_own_alone() {
    let (_eal, pool, _port, mut face) = port_on_a_ring("stuck");
    let mut counters = WorkerCounters::default();
    let frame = || pool.copy_from_slice(&[2; 60]).unwrap();
    // Nothing receives from the port until it accepts no more.
    while !face.is_blocked() {
        assert!(face.push(frame(), &mut counters));
        face.flush(&mut counters);
    }
    face.burst.clear();
    (face.is_blocked, face.patience) = (false, Patience::Stuck);
    for _ in 0..3 {
        assert!(face.push_own(frame(), &mut counters).is_err(), "it takes none");
        assert!(!face.holds() && !face.is_blocked && face.patience == Patience::Stuck);
    }
    let mut received = Burst::new();
    assert!(face.queue.rx_burst(&mut received) > 0);
    assert!(face.push_own(frame(), &mut counters).is_ok(), "it takes frames again");
    assert!(!face.holds() && face.patience == Patience::Open);
}

#[test]
fn queries_that_waited_for_a_stuck_port_are_handed_back_without_their_tag() {
    let (_eal, pool, _port, mut face) = port_on_a_ring("unsent");
    let mut counters = WorkerCounters::default();
    let mut tables = Tables::<()>::default();
    tables.join_vlan(EthernetIndex(0), 0, Some(SegmentIndex(0)));
    tables.join_vlan(EthernetIndex(0), 7, Some(SegmentIndex(1)));
    let mut reader = Publisher::new(tables).reader();
    let arp = |operation, sender_ip| {
        let (mac, target_ip) = (MacAddress([2; 6]), [10, 0, 0, 7].into());
        let sender_ip = Ipv4Addr::from(sender_ip);
        let arp = EthernetArp { operation, sender_mac: mac, sender_ip, target_mac: mac, target_ip };
        arp.to_frame(mac)
    };
    let query = arp(ArpOperation::Request, [10, 0, 0, 1]);
    let others = [arp(ArpOperation::Reply, [10, 0, 0, 1]), arp(ArpOperation::Request, [10, 0, 0, 7])];
    let packet = [[2; 12].as_slice(), &[8, 0], &[0; 46]].concat();
    let frame = |bytes: &[u8]| pool.copy_from_slice(bytes).unwrap();
    while !face.is_blocked() {
        assert!(face.push(frame(&packet), &mut counters));
        face.flush(&mut counters);
    }
    let waiting = face.burst.len();
    // A host triggers many replies of the gateway, which are queued before its queries.
    let behind = MOST_UNSENT.min(WAITING - waiting - 3);
    for other in others.iter().cycle().take(behind) {
        face.push_own(frame(other), &mut counters).unwrap();
    }
    let mut tagged = frame(&query);
    assert!(tag::insert(&mut tagged, 7));
    face.push_own(tagged, &mut counters).unwrap();
    face.push_own(frame(&query), &mut counters).unwrap();
    face.push_own(frame(&packet), &mut counters).unwrap();
    assert!(face.begin_turn(EthernetIndex(0), &mut counters, &mut reader));
    assert!(!face.has_unsent(), "they wait");
    face.patience = Patience::Blocked(Instant::now().checked_sub(PATIENCE).unwrap());
    assert!(!face.begin_turn(EthernetIndex(0), &mut counters, &mut reader));
    assert!(face.has_unsent());
    let unsent: Vec<_> = std::iter::from_fn(|| face.take_unsent()).collect();
    let mut segments: Vec<_> = unsent.iter().map(|(segment, _)| segment.0).collect();
    segments.sort_unstable();
    assert_eq!(segments, [0, 1]);
    assert!(unsent.iter().all(|(_, frame)| frame.data() == query));
    let drops = Totals::of([&counters.reader()]).drops(DropReason::EthQueueFull);
    assert_eq!(drops, (waiting + behind) as u64 + 3, "each is a drop");
}

#[test]
fn a_port_is_waited_for_while_it_takes_something() {
    let began = Instant::now();
    let at = |part: u32| began + PATIENCE * part / 4;
    let mut port = Patience::Open.offered(32, 0, began);
    assert_eq!(port, Patience::Open);
    for part in 0..40 {
        // Some frames from time to time: slow, but not stalled.
        port = port.offered(usize::from(part % 3 == 0), 31, at(part));
        assert!(!port.ends(at(part)), "{part}");
    }
    port = port.offered(0, 32, at(42));
    assert!(!port.ends(at(42)));
    port = port.offered(0, 32, at(43));
    assert!(port.ends(at(43)), "since 39");
    port = port.offered(0, 1, at(44));
    assert!(port.ends(at(44)), "nothing waits for it any more");
    port = port.offered(1, 1, at(45));
    assert_eq!(port, Patience::Blocked(at(45)));
    assert_eq!(port.offered(1, 0, at(46)), Patience::Open);
    assert_eq!(Patience::Stuck.offered(1, 0, at(46)), Patience::Open);
}

#[test]
fn frames_of_the_gateways_own_have_places_that_traffic_leaves_and_wait_for_no_port_that_is_stuck() {
    let blocked = Patience::Blocked(Instant::now());
    for port in [Patience::Open, blocked] {
        assert_eq!(own_room(port, false, 0), OwnRoom::Burst);
        // The whole share of traffic.
        assert_eq!(own_room(port, true, WAITING - OWN), OwnRoom::Behind);
        assert_eq!(own_room(port, true, WAITING), OwnRoom::None);
    }
    assert_eq!(own_room(Patience::Stuck, false, 0), OwnRoom::None);
}

/// A port that always has frames must not keep the others from being polled.
#[test]
fn ports_have_their_turn_when_there_is_time_for_one_only() {
    let mut rota = Rota::new(3);
    let mut served = Vec::new();
    for busy in [&[0, 1, 2][..], &[0, 1, 2], &[0, 1, 2], &[0, 2], &[0, 2], &[0, 2], &[1], &[1], &[0, 1, 2]] {
        let port = rota.turn().find(|port| busy.contains(&port.0)).unwrap();
        rota.served(port);
        served.push(port.0);
    }
    assert_eq!(served, [0, 1, 2, 0, 2, 0, 1, 1, 2]);
    assert_eq!(rota.turn().map(|port| port.0).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn the_pieces_of_the_largest_packet_have_room() {
    let (payload, piece) = (usize::from(u16::MAX) - 20, (576 - 60) / 8 * 8);
    assert!(payload.div_ceil(piece) <= PIECES);
}
