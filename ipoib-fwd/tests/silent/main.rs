//! A worker stops forwarding before the other gateway starts, if its control lcore does not run any more. The
//! worker is the real one, between a DPDK port and the mlx5 driver. The test controls the time.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../steady/packets.rs"]
mod packets;
mod pair;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::ring;
use dataplane::table::Publisher;
use dataplane::usage::Marks;
use dataplane::worker::Worker as _;
use endpoint::{Command, LinkWorker};
use ib_wire::{Lid, QKey, Qpn, Rate, ServiceLevel};
use ipoib::drop_reason::DropReason;
use ipoib::net::ethernet::MacAddress;
use ipoib_fwd::counter::{Totals, Traffic};
use ipoib_fwd::forward::{
    Draft, EndpointIndex, EthNeighbour, EthernetIndex, GatewayAddress, IbNeighbour, RcPaths, SegmentIndex,
    Settings, Tables,
};
use ipoib_fwd::gateway::{GatewayCommand, GatewayWorker, Leases, WorkerParts};
use ipoib_fwd::segment::pair::Role;
use pmd::eal::Eal;
use pmd::eth::{EthConfig, EthPort};
use pmd::hca::{AddressVector, UdDestination};
use pmd::mem::{Pool, PoolConfig};
use pmd::mlx5::av::Destination;
use sink::{Made, Sink, SinkConfig};

use pair::Gateway;

const SRQ_DEPTH: u32 = 64;
const SEGMENT: SegmentIndex = SegmentIndex(0);

fn destination(lid: u16) -> Destination {
    let sl = ServiceLevel::new(0);
    let av = AddressVector { dlid: Lid(lid), sl, src_path_bits: 0, rate: Rate::default(), grh: None };
    Destination::new(&UdDestination { av, qpn: Qpn::new(0x123), qkey: Some(QKey(0x0b1b)) })
}

/// Tables of a gateway that forwards and knows all hosts, as its control lcore published them last.
fn tables() -> Tables<Destination> {
    let mut settings = Settings::new(MacAddress(packets::GATEWAY_MAC));
    settings.address = GatewayAddress::new([10, 0, 0, 1].into(), 16);
    settings.broadcast = Some(destination(0xc000));
    let mut segment = Draft::new(0x5eed, settings, 1024, 1);
    for n in 0..packets::HOSTS {
        let ud = Some(destination(u16::from(n) + 1));
        let neighbour = IbNeighbour { ud, rc: RcPaths::new(&[None]), dial: false };
        segment.set_ib(packets::infiniband_host(n), neighbour).unwrap();
        let mac = MacAddress(packets::ethernet_mac(n));
        segment.set_eth(packets::ethernet_host(n), EthNeighbour { mac }).unwrap();
    }
    let mut tables = Tables::default();
    tables.set_segment(SEGMENT, Some(segment.table().clone()));
    tables.join_vlan(EthernetIndex(0), 0, Some(SEGMENT));
    tables.join_link(EndpointIndex(0), 0, Some(SEGMENT));
    tables
}

#[test]
fn a_worker_of_a_silent_control_lcore_stops_before_the_other_gateway_forwards() {
    let pcap = std::env::temp_dir().join(format!("silent-{}.pcap", std::process::id()));
    packets::write_pcap(&pcap, &packets::frames(None));
    let words =
        "silent --no-huge --no-shconf --no-pci -m 256 --no-telemetry --log-level=error --lcores 0@0 --vdev";
    // Endless frames from one side, endless messages from the other.
    let port = format!("net_pcap0,rx_pcap={},infinite_rx=1", pcap.display());
    let _eal = Eal::init(words.split(' ').map(str::to_owned).chain([port])).unwrap();
    let config = PoolConfig { count: 8192, data_room: 4096, cache: 256, socket: -1 };
    let pool = Pool::create("packets", &config).unwrap();
    let config = EthConfig {
        queues: 1,
        rx_descriptors: 512,
        tx_descriptors: 512,
        mtu: 1500,
        promiscuous: false,
        offloads: true,
    };
    let (_ethernet, mut eth_queues) = EthPort::start(None, &config, &pool).unwrap();
    std::fs::remove_file(&pcap).unwrap();
    let config = SinkConfig {
        connections: 1,
        links: 1,
        send_depth: 64,
        srq_depth: SRQ_DEPTH,
        srq_message: 4096,
        signal_every: 16,
        max_sends: u32::MAX,
        messages: packets::messages(),
        datagrams: true,
        receives_per_turn: pmd::hca::BURST,
        inspector: None,
    };
    let Made { queues, .. } = Sink::create(&config, &pool).unwrap();
    let (mut commands, inbox) = ring::channel(64);
    let (notes, _notes) = ring::channel(4096);
    let mut publisher = Publisher::new(tables());
    let start = Instant::now();
    let mut worker = GatewayWorker::new(WorkerParts {
        links: vec![LinkWorker::new(0, queues, inbox, notes, Marks::new(64))],
        ethernets: vec![eth_queues.pop().unwrap()],
        tables: publisher.reader(),
        pool: pool.clone(),
        srq_low: 1,
        seed: 1,
        storm: Arc::default(),
        leases: Arc::new(Leases::new(start)),
        tap: None,
    });
    let reader = worker.counters().reader();
    let counted = || {
        let totals = Totals::of([&reader]);
        [
            totals.packets(Traffic::IbUdUnicastTransmit),
            totals.packets(Traffic::EthTransmit),
            totals.drops(DropReason::LeaseOver),
        ]
    };
    // The worker's behavior at a time: it forwards in both directions, or drops.
    let mut forwarding_at = |now: Instant| {
        let before = counted();
        for _ in 0..8 {
            worker.begin_turn(now);
            worker.turn();
        }
        let [after, before] = [counted(), before];
        [0, 1, 2].map(|n| after[n] > before[n])
    };
    const FORWARDS: [bool; 3] = [true, true, false];
    const DROPS: [bool; 3] = [false, false, true];

    assert_eq!(forwarding_at(start + Duration::from_secs(1_000_000)), FORWARDS, "no other gateway is there");
    let (mut first, mut second, mut now) = (Gateway::new(start, 1), Gateway::new(start, 2), start);
    while now < start + Duration::from_secs(4) {
        now = first.due().min(second.due());
        pair::step(now, &mut [&mut first, &mut second]);
    }
    assert_eq!([first.role(), second.role()], [Role::Forwarding, Role::Standby]);
    let end = first.pair.lease_end().unwrap();
    let renew = |end| Command::App(GatewayCommand::Renew(SEGMENT, end));
    commands.send(renew(Some(end))).unwrap();
    assert_eq!(forwarding_at(now), FORWARDS);

    // From here on, the first gateway's control lcore does not run.
    while second.role() != Role::Forwarding {
        assert!(now < end + Duration::from_secs(1), "the second gateway takes over");
        assert_eq!(forwarding_at(now), if now < end { FORWARDS } else { DROPS });
        now = second.due();
        pair::step(now, &mut [&mut second]);
    }
    assert_eq!(forwarding_at(end - Duration::from_nanos(1)), FORWARDS, "until the end of its lease");
    assert_eq!(forwarding_at(now), DROPS, "the second gateway forwards");
    assert_eq!(forwarding_at(end), DROPS);
    // After the lease is renewed, the worker uses the tables again.
    commands.send(renew(Some(now + Duration::from_secs(1)))).unwrap();
    forwarding_at(now);
    assert_eq!(forwarding_at(now), FORWARDS);
    commands.send(renew(None)).unwrap();
    forwarding_at(now);
    assert_eq!(forwarding_at(now + Duration::from_secs(1_000_000)), FORWARDS);
    drop(worker.into_parts());
}
