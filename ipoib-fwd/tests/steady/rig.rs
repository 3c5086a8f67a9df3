//! The gateway's worker between a DPDK port and the mlx5 driver, whose rings are served by a sink.

use std::sync::Arc;
use std::time::Instant;

use dataplane::ring;
use dataplane::table::Publisher;
use dataplane::usage::Marks;
use dataplane::worker::{Handle, IdlePolicy, Turn, Worker, run};
use endpoint::LinkWorker;
use ib_wire::{Lid, QKey, Qpn, Rate, ServiceLevel};
use ipoib::link::RcPath;
use ipoib::net::ethernet::MacAddress;
use ipoib_fwd::counter::{Totals, Traffic};
use ipoib_fwd::forward::{
    Draft, EndpointIndex, EthNeighbour, EthernetIndex, GatewayAddress, IbNeighbour, RcPaths, SegmentIndex,
    Settings, Tables,
};
use ipoib_fwd::gateway::{GatewayWorker, Leases, WorkerParts};
use pmd::eal::Eal;
use pmd::eth::{EthConfig, EthPort};
use pmd::hca::{AddressVector, Queues as _, RcSlot, UdDestination};
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::mlx5::av::Destination;
use pmd::mlx5::queues::MlxQueues;
use sink::{Made, Sink, SinkConfig};

use crate::packets;

/// Iterations before the test: every buffer of the pool has then been in every queue, and nothing grows any
/// more.
const WARM_UP: u64 = 2_000;
/// Iterations of the test.
pub(crate) const TURNS: u64 = 10_000;

const LARGEST_MESSAGE: usize = 65_524;
const SRQ_DEPTH: u32 = 64;
const BUFFERS: u32 = SRQ_DEPTH * 17 + 4096;

/// The direction of packets, and their transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) to_infiniband: bool,
    pub(crate) connected: bool,
    /// True if frames have a VLAN tag.
    pub(crate) tagged: bool,
}

/// All cases.
pub(crate) const CASES: [(&str, Case); 6] = [
    ("to-infiniband-connected", Case { to_infiniband: true, connected: true, tagged: false }),
    ("to-infiniband-datagram", Case { to_infiniband: true, connected: false, tagged: false }),
    ("to-infiniband-tagged", Case { to_infiniband: true, connected: true, tagged: true }),
    ("to-ethernet-connected", Case { to_infiniband: false, connected: true, tagged: false }),
    ("to-ethernet-datagram", Case { to_infiniband: false, connected: false, tagged: false }),
    ("to-ethernet-tagged", Case { to_infiniband: false, connected: true, tagged: true }),
];
const VLAN: u16 = 100;

impl Case {
    const fn traffic(self) -> Traffic {
        match self {
            Self { to_infiniband: true, connected: true, .. } => Traffic::IbRcTransmit,
            Self { to_infiniband: true, connected: false, .. } => Traffic::IbUdUnicastTransmit,
            Self { to_infiniband: false, .. } => Traffic::EthTransmit,
        }
    }
}

type Inner = GatewayWorker<MlxQueues<Sink, Mbuf>>;

/// The worker, with a hook after the warm-up. Everything between its iterations is the loop itself.
struct Watched<F> {
    worker: Inner,
    turns: u64,
    busy: u64,
    /// Called before the first iteration of the test.
    begin: F,
    handle: Arc<Handle>,
}

impl<F: FnMut()> Worker for Watched<F> {
    fn begin_turn(&mut self, now: Instant) {
        self.worker.begin_turn(now);
    }

    fn turn(&mut self) -> Turn {
        if self.turns == WARM_UP {
            (self.begin)();
        }
        self.turns += 1;
        if self.turns == WARM_UP + TURNS {
            self.handle.stop();
        }
        let turn = self.worker.turn();
        self.busy += u64::from(turn == Turn::Busy);
        turn
    }

    fn record_service_time(&mut self, ns: u64) {
        self.worker.record_service_time(ns);
    }
}

/// The result of a run.
pub(crate) struct Outcome {
    /// Forwarded packets, including those of the warm-up.
    pub(crate) packets: u64,
    /// Busy iterations.
    pub(crate) busy_turns: u64,
}

/// Runs the worker's loop on this thread, which becomes EAL's main lcore. `begin` is called after the
/// warm-up, and `end` immediately after the loop.
pub(crate) fn forward(case: Case, begin: impl FnMut(), end: impl FnOnce()) -> Outcome {
    let pcap = std::env::temp_dir().join(format!("steady-{}.pcap", std::process::id()));
    packets::write_pcap(&pcap, &packets::frames(case.tagged.then_some(VLAN)));
    // Endless frames from memory, or a port that accepts all frames and delivers none.
    let port = if case.to_infiniband {
        format!("net_pcap0,rx_pcap={},infinite_rx=1", pcap.display())
    } else {
        "net_null0,no-rx=1".to_owned()
    };
    let words =
        "steady --no-huge --no-shconf --no-pci -m 256 --no-telemetry --log-level=error --lcores 0@0 --vdev";
    let eal = Eal::init(words.split(' ').map(str::to_owned).chain([port])).unwrap();
    let config = PoolConfig { count: BUFFERS, data_room: 4096, cache: 256, socket: -1 };
    let pool = Pool::create("packets", &config).unwrap();
    let config = EthConfig {
        queues: 1,
        rx_descriptors: 512,
        tx_descriptors: 512,
        mtu: 1500,
        promiscuous: false,
        offloads: true,
    };
    let (ethernet, mut eth_queues) = EthPort::start(None, &config, &pool).unwrap();
    std::fs::remove_file(&pcap).unwrap();

    let config = SinkConfig {
        connections: packets::HOSTS.into(),
        links: 1,
        send_depth: 64,
        srq_depth: SRQ_DEPTH,
        srq_message: LARGEST_MESSAGE,
        signal_every: 16,
        max_sends: u32::MAX,
        messages: if case.to_infiniband { Vec::new() } else { packets::messages() },
        datagrams: !case.connected,
        receives_per_turn: pmd::hca::BURST,
        inspector: None,
    };
    let Made { mut queues, connections, stats } = Sink::create(&config, &pool).unwrap();
    for (slot, rc) in connections.into_iter().enumerate() {
        queues.insert_rc(RcSlot(slot as u16), rc).unwrap();
    }
    let (_commands, inbox) = ring::channel(64);
    let (notes, _notes) = ring::channel(4096);
    let mut publisher = Publisher::new(tables(case));
    let worker = GatewayWorker::new(WorkerParts {
        links: vec![LinkWorker::new(0, queues, inbox, notes, Marks::new(1 << 16))],
        ethernets: vec![eth_queues.pop().unwrap()],
        tables: publisher.reader(),
        pool: pool.clone(),
        srq_low: 16,
        seed: 1,
        storm: Arc::default(),
        leases: Arc::new(Leases::new(Instant::now())),
        tap: None,
    });
    let reader = worker.counters().reader();
    let handle = Handle::new();
    handle.set_idle(IdlePolicy::Poll);
    let watched = Watched { worker, turns: 0, busy: 0, begin, handle: Arc::clone(&handle) };
    let Watched { worker, busy, .. } = run(watched, &handle);
    end();

    // The test forwarded packets and did nothing else.
    let totals = Totals::of([&reader]);
    assert!(
        totals.drops_json().as_object().is_some_and(serde_json::Map::is_empty),
        "{}",
        totals.drops_json()
    );
    assert_eq!((stats.bad(), totals.packets(Traffic::Punt)), (0, 0));
    drop(worker.into_parts());
    drop((ethernet, pool, eal));
    Outcome { packets: totals.packets(case.traffic()), busy_turns: busy }
}

fn destination(lid: u16) -> Destination {
    let sl = ServiceLevel::new(0);
    let av = AddressVector { dlid: Lid(lid), sl, src_path_bits: 0, rate: Rate::default(), grh: None };
    Destination::new(&UdDestination { av, qpn: Qpn::new(0x123), qkey: Some(QKey(0x0b1b)) })
}

/// Tables as the control lcore would publish them: all hosts are known, and connections are up or not wanted.
fn tables(case: Case) -> Tables<Destination> {
    let vlan = case.tagged.then_some(VLAN);
    let mut settings = Settings::new(MacAddress(packets::GATEWAY_MAC));
    settings.address = GatewayAddress::new([10, 0, 0, 1].into(), 16);
    settings.broadcast = Some(destination(0xc000));
    settings.vlan = vlan;
    let mut segment = Draft::new(0x5eed, settings, 1024, 1);
    for n in 0..packets::HOSTS {
        let path = case.connected.then_some(RcPath { slot: RcSlot(n.into()), mtu: LARGEST_MESSAGE as u32 });
        let ud = Some(destination(u16::from(n) + 1));
        let neighbour = IbNeighbour { ud, rc: RcPaths::new(&[path]), dial: false };
        segment.set_ib(packets::infiniband_host(n), neighbour).unwrap();
        let mac = MacAddress(packets::ethernet_mac(n));
        segment.set_eth(packets::ethernet_host(n), EthNeighbour { mac }).unwrap();
    }
    let mut tables = Tables::default();
    tables.set_segment(SegmentIndex(0), Some(segment.table().clone()));
    tables.join_vlan(EthernetIndex(0), vlan.unwrap_or_default(), Some(SegmentIndex(0)));
    tables.join_link(EndpointIndex(0), 0, Some(SegmentIndex(0)));
    tables
}
