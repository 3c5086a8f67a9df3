//! The gateway's own worker between a DPDK Ethernet port and the mlx5 driver. A sink at the other end of the
//! driver's rings takes sends and fills receives.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::ring;
use dataplane::table::Publisher;
use dataplane::usage::Marks;
use dataplane::worker::Worker as _;
use endpoint::LinkWorker;
use ib_wire::{Lid, QKey, Qpn, Rate, ServiceLevel};
use ipoib::link::RcPath;
use ipoib::net::ethernet::MacAddress;
use ipoib_fwd::counter::{Totals, Traffic, WorkerCounterReader};
use ipoib_fwd::forward::{
    Draft, EndpointIndex, EthNeighbour, EthernetIndex, GatewayAddress, IbNeighbour, MAX_NEIGHBOURS, RcPaths,
    SegmentIndex, Settings, Tables,
};
use ipoib_fwd::gateway::{GatewayWorker, Leases, WorkerParts};
use pmd::eal::Eal;
use pmd::eth::{EthConfig, EthPort, EthQueue};
use pmd::hca::{AddressVector, Queues, RcSlot, UdDestination};
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::mlx5::av::Destination;
use pmd::mlx5::queues::MlxQueues;
use sink::{Made, SAMPLE_EVERY, Sink, SinkConfig, SinkStats};

use crate::expected::Expected;
use crate::frames::{self, Load};
use crate::sample::{Figure, Sample};

/// Direction of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the Ethernet port to InfiniBand.
    EthernetToInfiniBand,
    /// From InfiniBand to the Ethernet port.
    InfiniBandToEthernet,
    /// Both at once.
    Both,
}

/// Transport of the packets on the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    /// A connection to each peer.
    Connections,
    /// Datagrams of one queue pair to all of them.
    Datagrams,
}

/// A forwarding step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) way: Way,
    pub(crate) transport: Transport,
}

impl Step {
    pub(crate) const ETH_IB_RC: Self =
        Self { way: Way::EthernetToInfiniBand, transport: Transport::Connections };
    pub(crate) const ETH_IB_UD: Self =
        Self { way: Way::EthernetToInfiniBand, transport: Transport::Datagrams };
    pub(crate) const IB_ETH_RC: Self =
        Self { way: Way::InfiniBandToEthernet, transport: Transport::Connections };
    pub(crate) const IB_ETH_UD: Self =
        Self { way: Way::InfiniBandToEthernet, transport: Transport::Datagrams };
    pub(crate) const BOTH_RC: Self = Self { way: Way::Both, transport: Transport::Connections };
    pub(crate) const BOTH_UD: Self = Self { way: Way::Both, transport: Transport::Datagrams };

    /// Packets of it that have been forwarded.
    pub(crate) fn packets(self, totals: &Totals) -> u64 {
        let sent = match self.transport {
            Transport::Connections => Traffic::IbRcTransmit,
            Transport::Datagrams => Traffic::IbUdUnicastTransmit,
        };
        let to_infiniband = if self.way == Way::InfiniBandToEthernet { 0 } else { totals.packets(sent) };
        let to_ethernet =
            if self.way == Way::EthernetToInfiniBand { 0 } else { totals.packets(Traffic::EthTransmit) };
        to_infiniband + to_ethernet
    }

    /// EAL's argument for its Ethernet port: number `n` of this process, with the frames of the file.
    pub(crate) fn vdev(self, n: usize, pcap: &Path) -> String {
        match self.way {
            Way::EthernetToInfiniBand | Way::Both => {
                format!("{},rx_pcap={},infinite_rx=1", self.port(n), pcap.display())
            }
            Way::InfiniBandToEthernet => format!("{},no-rx=1", self.port(n)),
        }
    }

    /// The name of that port.
    pub(crate) fn port(self, n: usize) -> String {
        match self.way {
            Way::EthernetToInfiniBand | Way::Both => format!("net_pcap{n}"),
            Way::InfiniBandToEthernet => format!("net_null{n}"),
        }
    }
}

// The gateway's defaults.
const CACHE: u16 = 256;
const DESCRIPTORS: u16 = 1024;
pub(crate) const LARGEST_MESSAGE: usize = 65_524;
const SIGNAL_EVERY: u32 = 16;
/// Queue pair and key of hosts without a connection.
pub(crate) const REMOTE_QPN: u32 = 0x123;
pub(crate) const REMOTE_QKEY: u32 = 0x0b1b;
/// Bytes that the driver and ethdev add to a packet: headers, tag, frame check sequence, rounded up.
const AROUND: usize = 64;

/// Sizes of a worker's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    pub(crate) buffers: u32,
    pub(crate) data_room: u16,
    pub(crate) mtu: u16,
    pub(crate) srq_depth: u32,
    pub(crate) srq_message: usize,
    pub(crate) srq_low: u32,
    pub(crate) send_depth: u32,
    pub(crate) max_sends: u32,
}

impl Sizes {
    /// The gateway's defaults: a receive has 17 buffers.
    pub(crate) const GATEWAY: Self = Self {
        buffers: 512 * 17 + 8 * 1024,
        data_room: 4096,
        mtu: 1500,
        srq_depth: 512,
        srq_message: LARGEST_MESSAGE,
        srq_low: 128,
        send_depth: 64,
        max_sends: u32::MAX,
    };

    /// Sizes for one direction only, so that a machine can hold many workers: towards InfiniBand nothing is
    /// received there, and buffers have the size of frames. The port keeps a buffer per flow; sends have the
    /// gateway's number of buffers.
    pub(crate) fn lean(way: Way, load: &Load) -> Self {
        if way != Way::EthernetToInfiniBand {
            return Self::GATEWAY;
        }
        let room = load.packet + AROUND;
        Self {
            buffers: load.flows + 8 * 1024,
            data_room: (room + AROUND).next_multiple_of(64) as u16,
            mtu: load.packet.max(128) as u16,
            srq_depth: 16,
            srq_message: room,
            srq_low: 1,
            // A burst to one host, another one in flight, and sends without a completion.
            send_depth: if load.hosts < 4 { 256 } else { Self::GATEWAY.send_depth },
            max_sends: 4096,
        }
    }
}

type TestTables = Tables<Destination>;

pub(crate) fn text(error: impl std::fmt::Display) -> String {
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
        qpn: Qpn::new(REMOTE_QPN),
        qkey: Some(QKey(REMOTE_QKEY)),
    })
}

/// The LID of a host without a connection, in the unicast range.
pub(crate) fn lid(host: u32) -> u16 {
    (host % 0xbfff) as u16 + 1
}

/// Tables as published by the control lcore: all hosts are known, and all connections are established.
pub(crate) fn tables(load: &Load, transport: Transport, workers: u8) -> Result<TestTables, String> {
    let mut settings = Settings::new(MacAddress(frames::GATEWAY_MAC));
    settings.address = GatewayAddress::new([10, 0, 0, 1].into(), 8);
    settings.broadcast = Some(destination(0xc000));
    let most = MAX_NEIGHBOURS.max(load.hosts as usize).max(load.flows as usize);
    let mut tables = Tables::default();
    for n in 0..load.segments.max(1) {
        let vlan = load.vlan(n.into());
        settings.vlan = (vlan != 0).then_some(vlan);
        let mut segment = Draft::new(0x5eed, settings.clone(), most, workers);
        for host in 0..load.hosts {
            let slot = RcSlot(load.slot(host));
            let path = RcPath { slot, mtu: LARGEST_MESSAGE as u32 };
            let path = (transport == Transport::Connections).then_some(path);
            let rc = RcPaths::new(&vec![path; workers.into()]);
            let ud = Some(destination(lid(host)));
            let neighbour = IbNeighbour { ud, rc, dial: true };
            segment.set_ib(frames::infiniband_host(host), neighbour).map_err(text)?;
        }
        for host in 0..load.flows {
            let mac = MacAddress(frames::ethernet_mac(host));
            segment.set_eth(frames::ethernet_host(host), EthNeighbour { mac }).map_err(text)?;
        }
        let index = SegmentIndex(n);
        tables.set_segment(index, Some(segment.table().clone()));
        tables.join_vlan(EthernetIndex(0), vlan, Some(index));
        // Messages of connections rotate over the links of their datagram queue pair; datagrams belong to the
        // first link.
        tables.join_link(EndpointIndex(0), n, Some(index));
    }
    Ok(tables)
}

/// Starts EAL with these ports.
pub(crate) fn start_eal(vdevs: &[String], lcores: String, memory: Vec<String>) -> Result<Eal, String> {
    let fixed = ["bench", "--no-pci", "--no-telemetry", "--log-level=error", "--lcores"];
    let arguments = fixed.into_iter().map(str::to_owned).chain([lcores]);
    let ports = vdevs.iter().flat_map(|vdev| ["--vdev".to_owned(), vdev.clone()]);
    Eal::init(arguments.chain(ports).chain(memory)).map_err(text)
}

/// A worker between its devices.
pub(crate) struct Rig {
    pub(crate) step: Step,
    pub(crate) worker: Worker,
    pub(crate) reader: WorkerCounterReader,
    pub(crate) stats: Arc<SinkStats>,
    pub(crate) port: EthPort,
    pub(crate) pool: Pool,
    /// Bytes of its queue pairs and of its tables.
    pub(crate) memory: Memory,
    /// The publisher of the worker's tables, which must live as long as the worker.
    pub(crate) publisher: Publisher<TestTables>,
}

/// A step's worker.
pub(crate) type Worker = GatewayWorker<MlxQueues<Sink, Mbuf>>;

/// A worker, and its statistics.
pub(crate) struct Hand {
    pub(crate) worker: Worker,
    pub(crate) reader: WorkerCounterReader,
    pub(crate) stats: Arc<SinkStats>,
    /// Bytes of its queue pairs.
    queue_pairs: f64,
}

/// Resources that workers share, and the workers.
pub(crate) struct Ground {
    pub(crate) pool: Pool,
    pub(crate) port: EthPort,
    pub(crate) publisher: Publisher<TestTables>,
    pub(crate) hands: Vec<Hand>,
    /// Bytes of the tables.
    tables: f64,
}

/// Growth of the process, bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Memory {
    pub(crate) queue_pairs: f64,
    pub(crate) tables: f64,
}

/// Resident bytes of this process. Counted page by page: the kernel's own counter lags by some hundred pages.
fn resident() -> f64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) * 1024.0
}

impl Hand {
    /// Worker `index`, whose queue on the port is `eth`.
    fn new(
        index: u8,
        (step, load): (Step, &Load),
        eth: EthQueue,
        (pool, publisher): (&Pool, &mut Publisher<TestTables>),
        sizes: Sizes,
    ) -> Result<Self, String> {
        let Sizes { srq_depth, srq_message, srq_low, send_depth, max_sends, .. } = sizes;
        let messages = match step.way {
            Way::EthernetToInfiniBand => Vec::new(),
            Way::InfiniBandToEthernet | Way::Both => frames::messages(load),
        };
        let before = resident();
        let config = SinkConfig {
            connections: load.connections,
            links: load.segments,
            send_depth,
            srq_depth,
            srq_message,
            signal_every: SIGNAL_EVERY,
            max_sends,
            messages,
            datagrams: step.transport == Transport::Datagrams,
            receives_per_turn: pmd::hca::BURST,
            inspector: Some(Arc::new(Expected { load: *load, transport: step.transport })),
        };
        let Made { mut queues, connections, stats } = Sink::create(&config, pool).map_err(text)?;
        for (slot, rc) in connections.into_iter().enumerate() {
            queues.insert_rc(RcSlot(slot as u16), rc).map_err(|_| "a slot is taken")?;
        }
        let queue_pairs = resident() - before;
        let (_commands, inbox) = ring::channel(64);
        let (notes, _notes) = ring::channel(4096);
        let worker = GatewayWorker::new(WorkerParts {
            links: vec![LinkWorker::new(index, queues, inbox, notes, Marks::new(1 << 16))],
            ethernets: vec![eth],
            tables: publisher.reader(),
            pool: pool.clone(),
            srq_low,
            seed: 1,
            storm: Arc::default(),
            leases: Arc::new(Leases::new(Instant::now())),
            tap: None,
        });
        let reader = worker.counters().reader();
        Ok(Self { worker, reader, stats, queue_pairs })
    }
}

impl Ground {
    /// EAL must run, and have the port.
    pub(crate) fn new(
        step: Step,
        load: &Load,
        port: &str,
        sizes: Sizes,
        workers: u8,
    ) -> Result<Self, String> {
        let Sizes { buffers, data_room, mtu, .. } = sizes;
        let count = buffers * u32::from(workers);
        let pool = Pool::create(port, &PoolConfig { count, data_room, cache: CACHE, socket: -1 });
        let pool = pool.map_err(text)?;
        let eth_config = EthConfig {
            queues: workers.into(),
            rx_descriptors: DESCRIPTORS,
            tx_descriptors: DESCRIPTORS,
            mtu,
            promiscuous: false,
            offloads: true,
        };
        let (port, queues) = EthPort::start(Some(port), &eth_config, &pool).map_err(text)?;
        if queues.len() != usize::from(workers) {
            return Err(format!("the port has {} queues for {workers} workers", queues.len()));
        }
        let before = resident();
        let mut publisher = Publisher::new(tables(load, step.transport, workers)?);
        let tables = resident() - before;
        let hand = |(index, eth)| Hand::new(index, (step, load), eth, (&pool, &mut publisher), sizes);
        let hands = (0..workers).zip(queues).map(hand).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { pool, port, publisher, hands, tables })
    }
}

impl Rig {
    /// EAL must run, and have the port.
    pub(crate) fn build(step: Step, load: &Load, port: &str, sizes: Sizes) -> Result<Self, String> {
        let Ground { pool, port, publisher, mut hands, tables } = Ground::new(step, load, port, sizes, 1)?;
        let Hand { worker, reader, stats, queue_pairs } = hands.pop().ok_or("there is no worker")?;
        let memory = Memory { queue_pairs, tables };
        Ok(Self { step, worker, reader, stats, port, pool, memory, publisher })
    }

    /// Runs the worker on this thread for `time`, and until `packets` have been forwarded, unless that takes
    /// much longer.
    pub(crate) fn come_round(&mut self, packets: u64, time: Duration) {
        const MOST: Duration = Duration::from_millis(50);
        let forwarded = |rig: &Self| rig.step.packets(&Totals::of([&rig.reader]));
        let (until, begin) = (forwarded(self) + packets, Instant::now());
        loop {
            for _ in 0..8 {
                self.worker.turn();
            }
            let passed = begin.elapsed();
            if passed >= MOST || passed >= time && forwarded(self) >= until {
                return;
            }
        }
    }

    /// Runs the worker on this thread for a while. Returns the forwarded packets and the duration.
    pub(crate) fn slice(&mut self, duration: Duration) -> (u64, Duration) {
        let packets = |rig: &Self| rig.step.packets(&Totals::of([&rig.reader]));
        let before = packets(self);
        let begin = Instant::now();
        loop {
            for _ in 0..8 {
                self.worker.turn();
            }
            let passed = begin.elapsed();
            if passed >= duration {
                return (packets(self) - before, passed);
            }
        }
    }

    /// Runs a fixed number of iterations on this thread and without a clock; returns the number of forwarded
    /// packets.
    pub(crate) fn take_turns(mut self, turns: u64) -> Result<Sample, String> {
        let step = self.step;
        for _ in 0..turns {
            self.worker.turn();
        }
        let packets = step.packets(&self.end()?);
        if packets == 0 {
            return Err(format!("no packet came through in {turns} turns"));
        }
        let figures = vec![Figure::new("forwarded", "packets", packets as f64)];
        Ok(Sample { figures, ..Sample::default() })
    }

    /// Stops the worker; returns its counters if they are [`clean`].
    pub(crate) fn end(self) -> Result<Totals, String> {
        let Self { worker, reader, stats, port, publisher, .. } = self;
        let totals = clean(Totals::of([&reader]), &stats)?;
        drop((worker.into_parts(), port, publisher));
        Ok(totals)
    }
}

/// The counters, unless packets were dropped, a device would have rejected them, or their content is wrong:
/// such a result does not count.
pub(crate) fn clean(totals: Totals, stats: &SinkStats) -> Result<Totals, String> {
    let drops = totals.drops_json();
    let clean = drops.as_object().is_some_and(serde_json::Map::is_empty);
    if !clean || stats.bad() != 0 || totals.packets(Traffic::Punt) != 0 {
        return Err(format!("packets went astray: drops {drops}, refused by the sink {}", stats.bad()));
    }
    let (wrong, compared) = (stats.wrong(), stats.compared());
    if wrong > 0 {
        return Err(format!(
            "of {compared} packets that the sink compared {wrong} were not what they should be"
        ));
    }
    // One sampled packet may wait to be forwarded; one may have been the driver's own.
    if compared == 0 && stats.sends().max(stats.receives()) > 4 * u64::from(SAMPLE_EVERY) {
        return Err("the sink compared no packet with what it should be".to_owned());
    }
    Ok(totals)
}
