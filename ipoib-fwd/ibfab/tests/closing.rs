//! A link goes on a device that does not see at once what it has to flush: it is asked again until all has come back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dataplane::latency::Recorder;
use dataplane::quiescence::{Grace, Quiescence};
use endpoint::{Board, Endpoint, EndpointConfig, EndpointPlace, LinkUpdate, WorkerSizes};
use gidcache::Entry;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, Qpn};
use ipoib::link::LinkSettings;
use pmd::eal::Eal;
use pmd::hca::{
    AsyncEvent, Backend, Control, DeviceAttributes, HcaError, PortAttributes, PortNumber, QpState,
    QpTransition, Queues, QueuesConfig, RcConfig, RxBurst, UdConfig, UdDestination,
};
use pmd::mem::{Pool, PoolConfig};
use pmd::soft::{SoftConfig, SoftHca};

const PORT: PortNumber = PortNumber(1);

type SoftQueues = <SoftHca as Backend>::Queues;
type Ud = <SoftQueues as Queues>::Ud;
type Rc = <SoftQueues as Queues>::Rc;
type Destination = <SoftQueues as Queues>::Destination;

/// A device that counts how often each queue pair is told to flush.
struct Counting {
    hca: SoftHca,
    flushes: HashMap<Qpn, u32>,
}

impl Control for Counting {
    fn device(&self) -> DeviceAttributes {
        self.hca.device()
    }
    fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        self.hca.port(port)
    }
    fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        self.hca.gid(port, index)
    }
    fn gids(&self) -> Result<Vec<Entry>, HcaError> {
        self.hca.gids()
    }
    fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError> {
        self.hca.gid_entry(port, index)
    }
    fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        self.hca.pkey(port, index)
    }
    fn register_pool(&mut self, pool: &Pool) -> Result<(), HcaError> {
        self.hca.register_pool(pool)
    }
    fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        if *to == QpTransition::ToError {
            *self.flushes.entry(qpn).or_default() += 1;
        }
        self.hca.modify_qp(qpn, to)
    }
    fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        self.hca.qp_state(qpn)
    }
    fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.hca.attach_multicast(qpn, mgid, mlid)
    }
    fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.hca.detach_multicast(qpn, mgid, mlid)
    }
    fn send_mad(&mut self, port: PortNumber, mad: &Mad) -> Result<(), HcaError> {
        self.hca.send_mad(port, mad)
    }
    fn receive_mad(&mut self, port: PortNumber) -> Result<Option<Mad>, HcaError> {
        self.hca.receive_mad(port)
    }
    fn next_event(&mut self) -> Option<AsyncEvent> {
        self.hca.next_event()
    }
}

impl Backend for Counting {
    type Queues = SoftQueues;

    fn create_queues(&mut self, config: &QueuesConfig, pool: &Pool) -> Result<SoftQueues, HcaError> {
        self.hca.create_queues(config, pool)
    }
    fn destroy_queues(&mut self, queues: SoftQueues) -> Result<(), HcaError> {
        self.hca.destroy_queues(queues)
    }
    fn create_ud(&mut self, config: &UdConfig) -> Result<Ud, HcaError> {
        self.hca.create_ud(config)
    }
    fn destroy_ud(&mut self, ud: Ud) -> Result<(), HcaError> {
        self.hca.destroy_ud(ud)
    }
    fn ud_qpn(ud: &Ud) -> Qpn {
        SoftHca::ud_qpn(ud)
    }
    fn create_rc(&mut self, config: &RcConfig) -> Result<Rc, HcaError> {
        self.hca.create_rc(config)
    }
    fn destroy_rc(&mut self, rc: Rc) -> Result<(), HcaError> {
        self.hca.destroy_rc(rc)
    }
    fn rc_qpn(rc: &Rc) -> Qpn {
        SoftHca::rc_qpn(rc)
    }
    fn destination(&mut self, port: PortNumber, to: &UdDestination) -> Result<Destination, HcaError> {
        self.hca.destination(port, to)
    }
}

/// Publishes nothing, and knows when everybody has seen that.
struct Nothing(Quiescence);

impl Board<Destination> for Nothing {
    fn publish(&mut self, _: LinkUpdate<Destination>) -> Grace {
        self.0.begin()
    }

    fn passed(&self, grace: Grace) -> bool {
        self.0.passed(grace)
    }
}

#[test]
fn a_link_that_goes_is_flushed_until_everything_is_back() {
    let words = "test --no-huge --no-shconf --no-pci -m 64 --no-telemetry --log-level=error --lcores 0@0";
    let _eal = Eal::init(words.split_whitespace().map(str::to_owned)).unwrap();
    let pool =
        Pool::create("closing", &PoolConfig { count: 1024, data_room: 4096, cache: 0, socket: -1 }).unwrap();
    let hca = SoftHca::new(&SoftConfig {
        name: "hca".to_owned(),
        node_guid: Guid(0x0200_0000_0000_0010),
        port_guids: vec![Guid(0x0200_0000_0000_0011)],
        max_mtu: Mtu::B4096,
        gid_table: 8,
        seed: 1,
    })
    .unwrap();
    let sizes = WorkerSizes {
        ud_send_depth: 64,
        ud_recv_depth: 64,
        srq_depth: 31,
        srq_limit: 0,
        send_buffers: 1,
        rc_send_depth: 16,
        max_rc: 64,
        signal_every: 4,
    };
    let link = LinkSettings::new(PKey::DEFAULT, Qpn::default(), 5);
    let mut board = Nothing(Quiescence::new());
    let mut quiescent = board.0.join();
    let config = EndpointConfig { place: EndpointPlace::ONLY, port: PORT, workers: 1, links: 1, sizes, link };
    let mut now = Instant::now();
    let device = Counting { hca, flushes: HashMap::new() };
    let (mut endpoint, mut workers) = Endpoint::<Counting, (), ()>::new(device, config, &pool, now).unwrap();
    let (mut times, mut burst) = (Recorder::default(), RxBurst::new());
    let mut turn = |workers: &mut Vec<endpoint::LinkWorker<SoftQueues, (), ()>>| {
        for worker in workers {
            worker.commands(&mut times, |(), _| {});
            worker.queues().turn();
            worker.receive(&mut burst);
            burst.clear();
            worker.finish();
        }
        quiescent.pass(|| {});
    };
    let index = endpoint.add_link(now, LinkSettings::new(PKey(0x8001), Qpn::default(), 50)).unwrap();
    let mut tick = |endpoint: &mut Endpoint<Counting, (), ()>| {
        now += Duration::from_millis(60);
        endpoint.tick(now, &mut board, |_| {});
        now
    };
    for _ in 0..10 {
        turn(&mut workers);
        tick(&mut endpoint);
    }
    // In INIT there is something to flush, though the port is down.
    let qpn = endpoint.links().link(index).unwrap().settings().workers[0].ud_qpn;
    let to_init = QpTransition::UdToInit { pkey_index: 0, qkey: ib_wire::QKey(0xb1b) };
    endpoint.hca().modify_qp(qpn, &to_init).unwrap();
    let now = tick(&mut endpoint);
    assert!(endpoint.remove_link(now, index));
    let flushed = |endpoint: &mut Endpoint<Counting, (), ()>| {
        endpoint.hca().flushes.get(&qpn).copied().unwrap_or_default()
    };
    for _ in 0..100 {
        if flushed(&mut endpoint) > 0 {
            break;
        }
        turn(&mut workers);
        tick(&mut endpoint);
    }
    let before = flushed(&mut endpoint);
    assert_eq!(before, 1, "the link's queue pair is flushed");
    // Its worker does not get to it.
    for _ in 0..40 {
        tick(&mut endpoint);
    }
    assert!(flushed(&mut endpoint) > before + 1, "and again");
    for _ in 0..10 {
        turn(&mut workers);
        tick(&mut endpoint);
    }
    assert_eq!(endpoint.poll_removed(), Some(index));
    let after = flushed(&mut endpoint);
    for _ in 0..40 {
        turn(&mut workers);
        tick(&mut endpoint);
    }
    assert_eq!(
        (flushed(&mut endpoint), endpoint.device_errors()),
        (after, (0, None)),
        "nobody touches what is gone"
    );
}
