//! A thousand peers connect to one endpoint: all are up at once, each costs little memory, and all are gone
//! after they have idled out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod adapter;

use std::collections::HashMap;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adapter::adapter;
use cm::Path;
use cm::connection::{Config, ConnId, ConnectRequest, ConnectionTable, Event as CmEvent};
use connectx::cable::CableEnd;
use dataplane::latency::Recorder;
use dataplane::table::Reader;
use endpoint::{Endpoint, EndpointConfig, EndpointPlace, LinkView, LinkWorker, UD, ViewBoard, WorkerSizes};
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::cm::{AttributeId, FlowLabel};
use ib_wire::sa::LifeTime;
use ib_wire::{Mtu, PKey, Qpn, ServiceLevel};
use ibfab::config::{FabricConfig, Place};
use ibfab::fabric::{Fabric, Management};
use ipoib::link::LinkSettings;
use pmd::eal::Eal;
use pmd::hca::{
    AddressVector, Backend, Control, PortNumber, QpTransition, Queues, QueuesConfig, QueuesId, RcConfig,
    RcSlot, RcToReceive, RcToSend, RxBurst, Source,
};
use pmd::mem::{Pool, PoolConfig};
use pmd::soft::SoftHca;

/// Limit for any wait, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time of an iteration by the world's clock, however long it takes.
const TURN: Duration = Duration::from_micros(100);
const PORT: PortNumber = PortNumber(1);
/// Peers that continue to carry packets.
const KEPT: std::ops::Range<u16> = 100..110;
const PEERS: usize = 1000;
/// Most connection requests in progress.
const WINDOW: usize = 32;
/// Peers that are up before the measurement starts: the first ones allocate tables.
const WARM: usize = 100;

type SoftQueues = <SoftHca as Backend>::Queues;
type Destination = <SoftQueues as Queues>::Destination;

/// Resident memory of this process, KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The peers: one adapter with many queue pairs, each of which is a host of its own to the endpoint.
struct Dialler {
    hca: SoftHca,
    queues: SoftQueues,
    table: ConnectionTable,
    qpns: Vec<Qpn>,
    /// The endpoint's queue pairs.
    accepted: Vec<Qpn>,
    dialled: usize,
    up: usize,
    ended: usize,
    peer: HashMap<ConnId, usize>,
}

struct World {
    start: Instant,
    /// Iterations so far; each takes [`TURN`] by the world's clock.
    turns: u32,
    /// Time that was skipped.
    skipped: Duration,
    fabric: Fabric,
    endpoint: Endpoint<SoftHca, (), ()>,
    worker: LinkWorker<SoftQueues, (), ()>,
    board: ViewBoard<Destination>,
    view: Reader<LinkView<Destination>>,
    times: Recorder,
    received: usize,
    dialler: Dialler,
}

impl World {
    fn now(&self) -> Instant {
        self.start + self.turns * TURN + self.skipped
    }

    fn turn(&mut self) {
        self.turns += 1;
        let now = self.now();
        self.fabric.step(now);
        self.worker.commands(&mut self.times, |(), _| {});
        self.worker.queues().turn();
        let mut burst = RxBurst::new();
        self.worker.receive(&mut burst);
        self.received += burst.iter().filter(|r| matches!(r.source, Source::Rc)).count();
        drop(burst);
        self.worker.finish();
        self.view.refresh();
        self.endpoint.tick(now, &mut self.board, |_| {});
        while self.endpoint.poll_event().is_some() {}
        self.dialler.turn(now);
    }

    fn run(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < PATIENCE, "{what}: not done in {PATIENCE:?}");
            self.turn();
        }
    }

    fn live(&mut self) -> usize {
        let now = self.now();
        self.endpoint.link().connections(now).iter().filter(|c| c.passive && c.state == "live").count()
    }

    fn states(&mut self) -> impl Iterator<Item = &'static str> {
        let now = self.now();
        self.endpoint.link().connections(now).into_iter().map(|c| c.state)
    }

    fn path(&mut self) -> Path {
        let (from, to) = (self.dialler.hca.port(PORT).unwrap(), self.endpoint.hca().port(PORT).unwrap());
        Path {
            sgid: self.dialler.hca.gid(PORT, 0).unwrap(),
            dgid: self.endpoint.hca().gid(PORT, 0).unwrap(),
            slid: from.lid,
            dlid: to.lid,
            pkey: PKey::DEFAULT,
            sl: ServiceLevel::new(0),
            mtu: Mtu::B4096,
            rate: ib_wire::Rate::default(),
            life_time: LifeTime::new(18),
            flow_label: FlowLabel::new(0),
            hop_limit: 0,
            traffic_class: 0,
        }
    }

    /// Opens connections until `count` are up.
    fn dial_up_to(&mut self, count: usize) {
        let (path, ud_qpn) = (self.path(), self.worker.queues().ud_qpn(UD).unwrap());
        self.run("connections up", |w| {
            let now = w.now();
            while w.dialler.dialled < count && w.dialler.dialled - w.dialler.up < WINDOW {
                let n = w.dialler.dialled;
                w.dialler.dialled += 1;
                // Each has a datagram queue pair of its own, and is so a host of its own.
                let private =
                    PrivateData { ud_qpn: Qpn::new(0x10_0000 + n as u32), receive_mtu: 65_524 }.to_bytes();
                let service = ServiceIdForm::Linux.service_id(ud_qpn);
                let request = ConnectRequest::ipoib(service, w.dialler.qpns[n], path, &private);
                let id = w.dialler.table.connect(now, request).unwrap();
                w.dialler.peer.insert(id, n);
            }
            w.dialler.up == count && w.live() == count
        });
    }
}

impl Dialler {
    fn turn(&mut self, now: Instant) {
        self.queues.turn();
        self.queues.ring();
        self.hca.engine().lock().step(now);
        self.queues.poll_send(&mut arrayvec::ArrayVec::new());
        while let Some(mad) = self.hca.receive_mad(PORT).unwrap() {
            self.table.handle_mad(now, &mad);
        }
        if self.table.poll_timeout().is_some_and(|at| at <= now) {
            self.table.handle_timeout(now);
        }
        while let Some(event) = self.table.poll_event() {
            match event {
                CmEvent::Replied { id, reply } => {
                    let a = reply.attributes;
                    let qpn = self.qpns[self.peer[&id]];
                    let av = AddressVector {
                        dlid: a.path.dlid,
                        sl: a.path.sl,
                        src_path_bits: 0,
                        rate: a.path.rate,
                        grh: None,
                    };
                    let receive = RcToReceive {
                        av,
                        dest_qpn: a.dest_qpn,
                        rq_psn: a.rq_psn,
                        path_mtu: a.path_mtu,
                        min_rnr_timer: 12,
                    };
                    let send = RcToSend { sq_psn: a.sq_psn, timeout: 18, retry_count: 3, rnr_retry: 7 };
                    self.hca.modify_qp(qpn, &QpTransition::RcToReceive(receive)).unwrap();
                    self.hca.modify_qp(qpn, &QpTransition::RcToSend(send)).unwrap();
                    self.table.ready(now, id).unwrap();
                    self.accepted.push(a.dest_qpn);
                    self.up += 1;
                }
                CmEvent::Disconnected { .. } => self.ended += 1,
                CmEvent::Released { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        while let Some(mad) = self.table.poll_transmit() {
            self.hca.send_mad(PORT, &mad).unwrap();
        }
    }
}

fn dialler(mut hca: SoftHca, pool: &Pool) -> Dialler {
    hca.register_pool(pool).unwrap();
    let id = QueuesId(0);
    let mut queues = hca
        .create_queues(
            &QueuesConfig {
                id,
                ud_recv_depth: 16,
                ud_recv_most: u32::MAX,
                srq_depth: 15,
                srq_message: 2048,
                srq_limit: 0,
                max_ud: 0,
                likely_ud: 1,
                max_rc: PEERS as u32,
                max_sends: 1024,
                signal_every: 1,
            },
            pool,
        )
        .unwrap();
    let mut qpns = Vec::new();
    for n in 0..PEERS {
        let rc = hca
            .create_rc(&RcConfig {
                queues: id,
                port: PortNumber(1),
                beside: UD,
                send_depth: 1,
                passive: false,
            })
            .unwrap();
        let qpn = SoftHca::rc_qpn(&rc);
        hca.modify_qp(qpn, &QpTransition::RcToInit { pkey_index: 0 }).unwrap();
        queues.insert_rc(RcSlot(n as u16), rc).unwrap();
        qpns.push(qpn);
    }
    let guid = hca.device().node_guid;
    let table = ConnectionTable::new(Config::new(77, guid));
    Dialler {
        hca,
        queues,
        table,
        qpns,
        accepted: Vec::new(),
        dialled: 0,
        up: 0,
        ended: 0,
        peer: HashMap::new(),
    }
}

#[test]
fn a_thousand_passive_connections_cost_little_and_leave_nothing() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let start = Instant::now();
    let config =
        FabricConfig::parse(FilePath::new("test.toml"), "[[switch]]\nname = \"s\"\nports = 2").unwrap();
    let mut fabric = Fabric::new(start, &config, 1, Management::Embedded);
    let mut attach = |port, name| {
        let (near, far) = CableEnd::pair().unwrap();
        fabric.plug(Place { switch: 0, port }, name, near).unwrap();
        far
    };
    let (one, two) = (attach(1, "endpoint"), attach(2, "dialler"));
    let pool = |name, count| {
        Pool::create(name, &PoolConfig { count, data_room: 4096, cache: 0, socket: -1 }).unwrap()
    };
    let (pool, far_pool) = (pool("endpoint", 8192), pool("dialler", 2048));

    let hca = adapter(1, Some(one));
    let mut link = LinkSettings::new(PKey::DEFAULT, Qpn::default(), 5);
    link.max_passive = PEERS;
    link.max_passive_from_lid = PEERS;
    let sizes = WorkerSizes {
        ud_send_depth: 256,
        ud_recv_depth: 256,
        srq_depth: 255,
        srq_limit: 32,
        send_buffers: 1,
        rc_send_depth: 64,
        // All peers have one LID, which may have a quarter of the handshakes that peers may start.
        max_rc: 4096,
        signal_every: 16,
        send_segments: None,
        long_messages: endpoint::LongMessages::Copy,
    };
    let (mut endpoint, mut workers) = Endpoint::new(
        hca,
        EndpointConfig { place: EndpointPlace::ONLY, port: PORT, workers: 1, links: 1, sizes, link },
        &pool,
        start,
    )
    .unwrap();
    let mut board = ViewBoard::new(Arc::clone(endpoint.link().state()));
    let mut world = World {
        start,
        turns: 0,
        skipped: Duration::ZERO,
        fabric,
        endpoint,
        worker: workers.pop().unwrap(),
        view: board.reader(),
        board,
        times: Recorder::default(),
        received: 0,
        dialler: dialler(adapter(2, Some(two)), &far_pool),
    };
    world.run("link up", |w| w.endpoint.link().state().up && w.dialler.hca.port(PORT).unwrap().lid.0 != 0);
    world.run("receives posted", |w| w.worker.queues().receives_posted().1 >= 255);
    let in_use = pool.in_use();

    world.dial_up_to(WARM);
    let (before, begin) = (resident(), Instant::now());
    world.dial_up_to(PEERS);
    let grown = (resident() - before) * 1024;
    let each = grown / (PEERS - WARM) as u64;
    println!(
        "{PEERS} passive connections up at once; {each} bytes of resident memory each, the opener's state among them; \
         {:.1} ms a connection",
        begin.elapsed().as_secs_f64() * 1e3 / (PEERS - WARM) as f64
    );
    assert!(each < 8192, "{each} bytes for an idle connection");
    assert_eq!(world.endpoint.device_errors().0, 0, "{:?}", world.endpoint.device_errors());
    // An idle connection holds no buffers.
    assert_eq!(pool.in_use(), in_use);

    // All of them carry data.
    for n in 0..PEERS {
        let packet = far_pool.copy_from_slice(&[0x08, 0, 0, 0, 0x45, 0, 0, 20]).unwrap();
        world.dialler.queues.send_rc(RcSlot(n as u16), packet).unwrap();
        if n % WINDOW == 0 {
            world.turn();
        }
    }
    world.run("messages received", |w| w.received == PEERS);
    world.run("sends done", |w| (0..PEERS).all(|n| w.dialler.queues.rc_outstanding(RcSlot(n as u16)) == 0));

    // Connections that carry more packets stay while the others idle out: the worker marks them by slot.
    world.skipped = Duration::from_secs(300);
    for n in KEPT {
        let packet = far_pool.copy_from_slice(&[0x08, 0, 0, 0, 0x45, 0, 0, 20]).unwrap();
        world.dialler.queues.send_rc(RcSlot(n), packet).unwrap();
    }
    world.run("more messages received", |w| w.received == PEERS + KEPT.len());
    world.skipped += Duration::from_secs(2);
    world.turn();
    world.skipped = Duration::from_secs(600);
    world.run("all but those idled out", |w| {
        w.skipped += Duration::from_millis(5);
        w.dialler.ended == PEERS - KEPT.len()
            && w.states().filter(|s| *s == "await_release").count() == PEERS - KEPT.len()
    });
    let now = world.now();
    let list = world.endpoint.link().connections(now).into_iter().filter(|c| c.state == "live");
    let mut live: Vec<u32> = list.map(|c| c.peer.qpn.get() - 0x10_0000).collect();
    live.sort_unstable();
    assert_eq!(live, KEPT.map(u32::from).collect::<Vec<_>>());

    // The last DREPs arrive before the clock is advanced: unanswered requests would be repeated.
    (0..16).for_each(|_| world.turn());

    // They all idle out, longest idle first, and none is left.
    world.skipped = Duration::from_secs(1200);
    // The clock advances meanwhile: a lost DREQ would be repeated.
    world.run("idled out", |w| {
        w.skipped += Duration::from_millis(5);
        w.dialler.ended == PEERS && w.states().all(|s| s == "await_release")
    });
    assert_eq!(world.endpoint.device_errors().0, 0, "{:?}", world.endpoint.device_errors());
    // TIMEWAIT.
    world.skipped += Duration::from_secs(60);
    world.run("released", |w| w.states().next().is_none());
    let counters = *world.endpoint.link().counters();
    assert_eq!((counters.passive_expired, counters.teardown_timeouts), (PEERS as u64, 0), "{counters:?}");
    world.run("receives posted again", |w| w.worker.queues().receives_posted().1 >= 255);
    // Short messages leave some entries partly used; the driver uses them up first.
    let left = pool.in_use().saturating_sub(in_use);
    assert!(left < WINDOW as u32, "{left} buffers more than before");
    let again = world.endpoint.cm_counters().retransmitted(AttributeId::DisconnectRequest);
    assert_eq!(again, 0, "a thousand DREQs at once find room");
    let gone = world.dialler.accepted.iter().all(|qpn| world.endpoint.hca().qp_state(*qpn).is_err());
    assert!(gone && world.dialler.accepted.len() == PEERS, "queue pairs are left");

    let World { endpoint, worker, mut dialler, .. } = world;
    drop(endpoint.close(vec![worker.into_queues()]).unwrap());
    for n in 0..PEERS {
        let rc = dialler.queues.remove_rc(RcSlot(n as u16)).unwrap();
        dialler.hca.destroy_rc(rc).unwrap();
    }
    dialler.hca.destroy_queues(dialler.queues).unwrap();
    assert_eq!((pool.in_use(), far_pool.in_use()), (0, 0));
}
