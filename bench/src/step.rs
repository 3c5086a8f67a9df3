//! The forwarding step on one worker lcore: the gateway's own worker between an Ethernet port of DPDK's and the mlx5
//! driver, at the other end of whose rings a sink takes sends and fills receives.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::latency::{Summary, empty};
use dataplane::ring;
use dataplane::table::Publisher;
use dataplane::usage::Marks;
use dataplane::worker::{Handle, IdlePolicy, Worker, run as run_worker};
use endpoint::LinkWorker;
use ib_wire::{Lid, QKey, Qpn, Rate, ServiceLevel};
use ipoib::link::RcPath;
use ipoib::net::ethernet::MacAddress;
use ipoib_fwd::counter::{Totals, Traffic, WorkerCounterReader};
use ipoib_fwd::forward::{
    Draft, EndpointIndex, EthNeighbour, EthernetIndex, GatewayAddress, IbNeighbour, MAX_NEIGHBOURS, RcPaths,
    SegmentIndex, Settings, Tables,
};
use ipoib_fwd::gateway::{GatewayWorker, WorkerParts};
use pmd::eal::{self, Eal};
use pmd::eth::{EthConfig, EthPort};
use pmd::hca::{AddressVector, Queues, RcSlot, UdDestination};
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::mlx5::av::Destination;
use pmd::mlx5::queues::MlxQueues;
use sink::{Made, Sink, SinkConfig, SinkStats};

use crate::frames;
use crate::machine;
use crate::sample::{Figure, Sample, times};

/// Which way packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// From the Ethernet port to connections.
    EthernetToInfiniBand,
    /// From connections to the Ethernet port.
    InfiniBandToEthernet,
}

/// What the packets go by, or come by, on the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    /// A connection to each peer.
    Connections,
    /// One queue pair's datagrams to all of them.
    Datagrams,
}

/// A forwarding step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    way: Way,
    transport: Transport,
}

impl Step {
    pub(crate) const ETH_IB_RC: Self =
        Self { way: Way::EthernetToInfiniBand, transport: Transport::Connections };
    pub(crate) const ETH_IB_UD: Self =
        Self { way: Way::EthernetToInfiniBand, transport: Transport::Datagrams };
    pub(crate) const IB_ETH_RC: Self =
        Self { way: Way::InfiniBandToEthernet, transport: Transport::Connections };

    /// What its packets are counted as.
    const fn path(self) -> Traffic {
        match (self.way, self.transport) {
            (Way::EthernetToInfiniBand, Transport::Connections) => Traffic::IbRcTransmit,
            (Way::EthernetToInfiniBand, Transport::Datagrams) => Traffic::IbUdUnicastTransmit,
            (Way::InfiniBandToEthernet, _) => Traffic::EthTransmit,
        }
    }
}

/// Connections that the packets go to or come from.
pub(crate) const PEERS: u16 = 8;

// As the gateway's configuration has them where it says nothing.
const CACHE: u16 = 256;
const DATA_ROOM: u16 = 4096;
const DESCRIPTORS: u16 = 1024;
const LARGEST_MESSAGE: usize = 65_524;
const SEND_DEPTH: u32 = 64;
const SIGNAL_EVERY: u32 = 16;
const SRQ_DEPTH: u32 = 512;
const SRQ_LOW: u32 = 128;
/// One receive entry has 17 buffers.
const BUFFERS: u32 = SRQ_DEPTH * 17 + 8 * 1024;

/// Before anything is measured.
const WARM_UP: Duration = Duration::from_millis(400);

type TestTables = Tables<Destination>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A datagram destination at this LID.
pub(crate) fn destination(lid: u16) -> Destination {
    Destination::new(&UdDestination {
        av: AddressVector {
            dlid: Lid(lid),
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::default(),
            grh: None,
        },
        qpn: Qpn::new(0x123),
        qkey: Some(QKey(0x0b1b)),
    })
}

/// Tables as the control lcore would publish them: everybody is known, connections are up where there are any.
fn tables(peers: u16, transport: Transport) -> Result<TestTables, String> {
    let mut settings = Settings::new(MacAddress(frames::GATEWAY_MAC));
    settings.address = GatewayAddress::new([10, 0, 0, 1].into(), 16);
    settings.broadcast = Some(destination(0xc000));
    let mut segment = Draft::new(0x5eed, settings, MAX_NEIGHBOURS, 1);
    for n in 0..peers {
        let path = RcPath { slot: RcSlot(n), mtu: LARGEST_MESSAGE as u32 };
        let rc = RcPaths::new(&[(transport == Transport::Connections).then_some(path)]);
        let neighbour = IbNeighbour { ud: Some(destination(n + 1)), rc, dial: true };
        segment.set_ib(frames::infiniband_host(n), neighbour).map_err(text)?;
    }
    for n in 0..frames::FLOWS {
        let mac = MacAddress(frames::ethernet_mac(n));
        segment.set_eth(frames::ethernet_host(n), EthNeighbour { mac }).map_err(text)?;
    }
    let mut tables = Tables::default();
    tables.set_segment(SegmentIndex(0), Some(segment.table().clone()));
    tables.join_vlan(EthernetIndex(0), 0, Some(SegmentIndex(0)));
    tables.join_link(EndpointIndex(0), 0, Some(SegmentIndex(0)));
    Ok(tables)
}

fn start_eal(way: Way, pcap: &Path, lcores: String, memory: Vec<String>) -> Result<Eal, String> {
    let port = match way {
        Way::EthernetToInfiniBand => format!("net_pcap0,rx_pcap={},infinite_rx=1", pcap.display()),
        Way::InfiniBandToEthernet => "net_null0,no-rx=1".to_owned(),
    };
    let fixed = ["bench", "--no-pci", "--no-telemetry", "--log-level=error", "--lcores"];
    let arguments = fixed.into_iter().map(str::to_owned);
    let rest = [lcores, "--vdev".to_owned(), port];
    Eal::init(arguments.chain(rest).chain(memory)).map_err(text)
}

/// A worker between its devices.
struct Rig {
    worker: GatewayWorker<MlxQueues<Sink, Mbuf>>,
    reader: WorkerCounterReader,
    stats: Arc<SinkStats>,
    port: EthPort,
    pool: Pool,
    _publisher: Publisher<TestTables>,
}

impl Rig {
    /// EAL runs.
    fn build(Step { way, transport }: Step) -> Result<Self, String> {
        let pool_config = PoolConfig { count: BUFFERS, data_room: DATA_ROOM, cache: CACHE, socket: -1 };
        let pool = Pool::create("packets", &pool_config).map_err(text)?;
        let eth_config = EthConfig {
            queues: 1,
            rx_descriptors: DESCRIPTORS,
            tx_descriptors: DESCRIPTORS,
            mtu: 1500,
            promiscuous: false,
            offloads: true,
        };
        let (port, mut eth_queues) = EthPort::start(None, &eth_config, &pool).map_err(text)?;
        let eth = eth_queues.pop().ok_or("the port has no queue")?;

        let messages = match way {
            Way::EthernetToInfiniBand => Vec::new(),
            Way::InfiniBandToEthernet => frames::messages(PEERS),
        };
        let config = SinkConfig {
            connections: PEERS,
            send_depth: SEND_DEPTH,
            srq_depth: SRQ_DEPTH,
            srq_message: LARGEST_MESSAGE,
            signal_every: SIGNAL_EVERY,
            messages,
            datagrams: false,
            receives_per_turn: pmd::hca::BURST,
        };
        let Made { mut queues, connections, stats } = Sink::create(&config, &pool).map_err(text)?;
        for (slot, rc) in connections.into_iter().enumerate() {
            queues.insert_rc(RcSlot(slot as u16), rc).map_err(|_| "a slot is taken")?;
        }
        let (_commands, inbox) = ring::channel(64);
        let (notes, _notes) = ring::channel(4096);
        let mut publisher = Publisher::new(tables(PEERS, transport)?);
        let link = LinkWorker::new(0, queues, inbox, notes, Marks::new(1 << 16));
        let worker = GatewayWorker::new(WorkerParts {
            links: vec![link],
            ethernets: vec![eth],
            tables: publisher.reader(),
            pool: pool.clone(),
            srq_low: SRQ_LOW,
            seed: 1,
            period: Arc::default(),
            tap: None,
        });
        let reader = worker.counters().reader();
        Ok(Self { worker, reader, stats, port, pool, _publisher: publisher })
    }
}

/// What was counted, if that is all that should have been: a figure of packets that were dropped, or that a device would not have
/// taken, is none.
fn clean(totals: Totals, stats: &SinkStats) -> Result<Totals, String> {
    let drops = totals.drops_json();
    let clean = drops.as_object().is_some_and(serde_json::Map::is_empty);
    if !clean || stats.bad() != 0 || totals.packets(Traffic::Punt) != 0 {
        return Err(format!("packets went astray: drops {drops}, refused by the sink {}", stats.bad()));
    }
    Ok(totals)
}

/// Has the worker take so many turns, on this thread and without a clock, and tells how many packets it forwarded: for counts of
/// instructions, of which those of start and end are the same whatever the number of turns.
pub(crate) fn take_turns(step: Step, pcap: &Path, turns: u64) -> Result<Sample, String> {
    // Memory that instruments can follow; no file that others who count would wait for.
    let mut memory = machine::plain_memory();
    memory.push("--no-shconf".to_owned());
    let _eal = start_eal(step.way, pcap, machine::one_lcore(), memory)?;
    let Rig { mut worker, reader, stats, port, pool: _pool, _publisher } = Rig::build(step)?;
    for _ in 0..turns {
        worker.turn();
    }
    let totals = clean(Totals::of([&reader]), &stats)?;
    drop(worker.into_parts());
    drop(port);
    let packets = totals.packets(step.path());
    if packets == 0 {
        return Err(format!("no packet came through in {turns} turns"));
    }
    Ok(Sample { figures: vec![Figure::new("forwarded", "packets", packets as f64)], notes: Vec::new() })
}

/// What was counted at a moment.
struct Reading {
    at: Instant,
    tsc: u64,
    packets: u64,
    sink_cycles: u64,
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(step: Step, pcap: &Path, seconds: f64) -> Result<Sample, String> {
    let eal = start_eal(step.way, pcap, machine::lcores(), machine::memory_arguments())?;
    let Rig { worker, reader, stats, port, pool, _publisher } = Rig::build(step)?;
    let path = step.path();
    let handle = Handle::new();
    handle.set_idle(IdlePolicy::Poll);
    let lcore = *eal.worker_lcores().first().ok_or("there is no worker lcore")?;
    let on_lcore = Arc::clone(&handle);
    let job = eal.launch(lcore, move || run_worker(worker, &on_lcore)).map_err(text)?;
    let read = || Reading {
        at: Instant::now(),
        tsc: eal::tsc(),
        packets: Totals::of([&reader]).packets(path),
        sink_cycles: stats.cycles(),
    };
    std::thread::sleep(WARM_UP);
    let begin = read();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let end = read();
    handle.stop();
    let worker = job.join().map_err(text)?;

    let (queues, ethernets, mut recorder) = worker.into_parts();
    let summary = Summary::of(&recorder.swap(empty()));
    clean(Totals::of([&reader]), &stats)?;
    drop((queues, ethernets));
    let port_stats = port.stats();
    drop(port);

    let packets = (end.packets - begin.packets) as f64;
    if packets <= 0.0 {
        return Err(format!("no packet came through; the port says {port_stats:?}"));
    }
    let seconds = (end.at - begin.at).as_secs_f64();
    let cycles = (end.tsc - begin.tsc) as f64 / packets;
    let hz = eal::tsc_hz() as f64;
    let sink = (end.sink_cycles - begin.sink_cycles) as f64 / packets;
    let ns = |cycles: f64| cycles * 1e9 / hz;
    let mut notes = vec![times("service time of a turn", &summary)];
    if step.way == Way::EthernetToInfiniBand {
        notes.push(format!(
            "{:.2} packets a doorbell, {:.1} a completion",
            stats.sends() as f64 / stats.doorbells().max(1) as f64,
            stats.sends() as f64 / stats.completions().max(1) as f64
        ));
    }
    let outstanding = pool.in_use();
    if outstanding != 0 {
        notes.push(format!("{outstanding} buffers are not home"));
    }
    Ok(Sample {
        figures: vec![
            Figure::with_peer("", "Mpps", packets / seconds / 1e6),
            Figure::with_peer("without-sink", "Mpps", hz / (cycles - sink) / 1e6),
            Figure::new("time", "ns/packet", ns(cycles)),
            Figure::new("sink-time", "ns/packet", ns(sink)),
            Figure::new("cycles", "TSC cycles/packet", cycles),
            Figure::new("sink-cycles", "TSC cycles/packet", sink),
            Figure::new("turn-50", "ns/turn", summary.p50 as f64),
            Figure::new("turn-99", "ns/turn", summary.p99 as f64),
        ],
        notes,
    })
}
