//! Two ends of a fabric, each an endpoint with links on a device of its own, all on the test's thread.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use connectx::cable::CableEnd;
use dataplane::latency::Recorder;
use dataplane::quiescence::{Grace, Quiescence, Quiescent};
use endpoint::{Board, Endpoint, EndpointConfig, EndpointPlace, LinkUpdate, LinkWorker};
use ib_wire::ipoib::{Arp, decapsulate};
use ib_wire::{PKey, Qpn};
use ibfab::config::{FabricConfig, Place};
use ibfab::fabric::{Fabric, Management};
use ipoib::link::{ArpResponder, Event, LinkIndex, LinkSettings, LinkState, WorkerIndex};
use pmd::hca::{Queues, RxBurst, Source};
use pmd::mem::{Pool, PoolConfig};

use crate::device::{Destination, Device, PORT, SIZES, SoftQueues};

pub(crate) const WORKERS: u8 = 2;
/// Limit for any wait, on a machine that may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// The last published state of each link.
#[derive(Default)]
pub(crate) struct States(pub(crate) Vec<Option<Arc<LinkState>>>, Quiescence);

impl Board<Destination> for States {
    fn publish(&mut self, update: LinkUpdate<Destination>) -> Grace {
        let at = usize::from(update.link.0);
        self.0.resize((at + 1).max(self.0.len()), None);
        self.0[at] = Some(update.state);
        self.1.begin()
    }

    fn passed(&self, grace: Grace) -> bool {
        self.1.passed(grace)
    }
}

pub(crate) struct End {
    pub(crate) n: u8,
    pub(crate) endpoint: Endpoint<Device, (), ()>,
    pub(crate) workers: Vec<LinkWorker<SoftQueues, (), ()>>,
    pub(crate) quiescents: Vec<Quiescent>,
    pub(crate) board: States,
    pub(crate) times: Recorder,
    pub(crate) removed: Vec<LinkIndex>,
    /// Addresses whose queries were not sent.
    pub(crate) unsent: Vec<IpAddr>,
}

/// Returns the address of an end on a link: each link has its own subnet.
pub(crate) fn ip(link: LinkIndex, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, link.0 as u8, 0, n)
}

impl End {
    pub(crate) fn new(n: u8, cable: CableEnd, pool: &Pool, now: Instant) -> Self {
        let mut device = Device::new(n);
        device.hca.set_cable(PORT, Some(cable)).unwrap();
        let link = LinkSettings::new(PKey::DEFAULT, Qpn::default(), 5 + u64::from(n));
        let config = EndpointConfig {
            place: EndpointPlace::ONLY,
            port: PORT,
            workers: WORKERS,
            links: 2,
            sizes: SIZES,
            link,
        };
        let (endpoint, workers) = Endpoint::new(device, config, pool, now).unwrap();
        let (mut board, times) = (States::default(), Recorder::default());
        let quiescents = workers.iter().map(|_| board.1.join()).collect();
        Self { n, endpoint, workers, quiescents, board, times, removed: Vec::new(), unsent: Vec::new() }
    }

    pub(crate) fn turn(&mut self, now: Instant) {
        for (index, worker) in (0u8..).zip(&mut self.workers) {
            worker.commands(&mut self.times, |(), _| {});
            // A device that is gone completes nothing.
            if !self.endpoint.hca().gone {
                worker.queues().turn();
            }
            let mut burst = RxBurst::new();
            worker.receive(&mut burst);
            for received in burst.drain(..) {
                let Source::Ud(from) = received.source else { continue };
                let link = LinkIndex(u16::from(received.ud.expect("in the table").0));
                let arp = Arp::parse(decapsulate(received.buf.data()).unwrap().1).unwrap();
                // A link that is being removed has left the groups, but some senders do not know yet.
                if let Some(link) = self.endpoint.link_at(link) {
                    link.handle_arp(now, WorkerIndex(index), &from, arp);
                }
            }
            worker.finish();
        }
        self.quiescents.iter_mut().for_each(|quiescent| quiescent.pass(|| {}));
        self.endpoint.tick(now, &mut self.board, |_| {});
        while let Some((index, event)) = self.endpoint.poll_link_event() {
            let responder = ArpResponder::new([(ip(index, self.n), WorkerIndex(0))]);
            if let Event::QueryUnsent { ip } = event {
                self.unsent.push(ip);
            }
            if let (Some(link), Event::Arp(_)) = (self.endpoint.link_at(index), &event) {
                responder.handle_event(now, link, &event);
            }
        }
        self.removed.extend(std::iter::from_fn(|| self.endpoint.poll_removed()));
    }

    pub(crate) fn add(&mut self, now: Instant, pkey: u16) -> LinkIndex {
        let settings = LinkSettings::new(PKey(pkey), Qpn::default(), 50);
        self.endpoint.add_link(now, settings).unwrap()
    }

    pub(crate) fn is_up(&self, link: LinkIndex) -> bool {
        self.board.0.get(usize::from(link.0)).and_then(Option::as_ref).is_some_and(|state| state.up)
    }

    pub(crate) fn live(&mut self, now: Instant, link: LinkIndex) -> Vec<Qpn> {
        let list = self.endpoint.link_at(link).map(|l| l.connections(now)).unwrap_or_default();
        list.iter().filter(|c| c.state == "live").filter_map(|c| c.qpn).collect()
    }

    pub(crate) fn datagrams(&mut self, link: LinkIndex) -> Vec<Qpn> {
        self.endpoint.link_at(link).unwrap().settings().workers.iter().map(|w| w.ud_qpn).collect()
    }
}

pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) ends: [End; 2],
    /// Difference of the world's clock from the real one.
    pub(crate) ahead: Duration,
}

impl World {
    /// Returns the time of the world's clock.
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }

    /// Runs for `span` by the world's clock, a millisecond an iteration.
    pub(crate) fn run_for(&mut self, span: Duration, mut see: impl FnMut(&mut Self)) {
        let end = self.now() + span;
        self.run("some iterations", |w, now| {
            w.ahead += Duration::from_millis(1);
            see(w);
            now > end
        });
    }

    pub(crate) fn run(&mut self, what: &str, mut done: impl FnMut(&mut Self, Instant) -> bool) {
        let begin = Instant::now();
        loop {
            let now = self.now();
            self.fabric.step(now);
            self.ends.iter_mut().for_each(|end| end.turn(now));
            if done(self, now) {
                return;
            }
            assert!(begin.elapsed() < DEADLINE, "{what}: not done in {DEADLINE:?}");
        }
    }

    /// Both ends open a connection to each other from each worker.
    pub(crate) fn connect(&mut self, link: LinkIndex) {
        let mut last = self.now() - Duration::from_secs(1);
        self.run("connections", |w, now| {
            if now - last > Duration::from_millis(200) {
                last = now;
                for (from, to) in [(0, 1), (1, 0)] {
                    let (own, other) = (ip(link, w.ends[from].n), ip(link, w.ends[to].n));
                    let machine = w.ends[from].endpoint.link_at(link).unwrap();
                    for worker in (0..WORKERS).map(WorkerIndex) {
                        machine.resolve(now, worker, own, other);
                        machine.handle_used(now, worker, &[], &[other.into()]);
                    }
                }
            }
            // Two that each has opened, and two that the other has.
            w.ends.iter_mut().all(|end| end.live(now, link).len() == 4)
        });
    }
}

/// Returns the configuration of one switch, with these lines for the default partition and further
/// partitions.
fn fabric_config(partitions: &str) -> FabricConfig {
    let text = format!("[[switch]]\nname = \"s\"\nports = 2\n[[partition]]\npkey = 0xffff\n{partitions}");
    FabricConfig::parse(FilePath::new("test.toml"), &text).unwrap()
}

impl World {
    /// Changes the partitions of the subnet manager.
    pub(crate) fn set_partitions(&mut self, partitions: &str) {
        let now = self.now();
        self.fabric.set_partitions(now, fabric_config(partitions).effective_partitions());
    }

    /// Creates two ends on one switch, with these partitions in addition to the default one; and their pools.
    pub(crate) fn new(partitions: &str) -> (Self, [Pool; 2]) {
        let start = Instant::now();
        let config = fabric_config(partitions);
        let mut fabric = Fabric::new(start, &config, 1, Management::Embedded);
        let pool = |name| {
            Pool::create(name, &PoolConfig { count: 8192, data_room: 4096, cache: 0, socket: -1 }).unwrap()
        };
        let pools = [pool("one"), pool("two")];
        let ends = [0u8, 1].map(|n| {
            let (near, far) = CableEnd::pair().unwrap();
            let place = Place { switch: 0, port: n + 1 };
            fabric.plug(place, "end", near).unwrap();
            End::new(n + 1, far, &pools[usize::from(n)], start)
        });
        (Self { fabric, ends, ahead: Duration::ZERO }, pools)
    }
}
