//! Links come and go on endpoints at work: each in its partition, with datagram queue pairs of its own on every worker.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use connectx::cable::CableEnd;
use dataplane::latency::Recorder;
use dataplane::quiescence::{Grace, Quiescence, Quiescent};
use endpoint::{Board, Endpoint, EndpointConfig, EndpointPlace, LinkUpdate, LinkWorker, WorkerSizes};
use ib_wire::ipoib::{Arp, decapsulate};
use ib_wire::{Guid, Mtu, PKey, Qpn};
use ibfab::config::{FabricConfig, Place};
use ibfab::fabric::Fabric;
use ipoib::link::{ArpResponder, Event, LinkIndex, LinkSettings, LinkState, WorkerIndex};
use pmd::eal::Eal;
use pmd::hca::{Backend, Control, PortNumber, Queues, RxBurst, Source, UdSlot};
use pmd::mem::{Pool, PoolConfig};
use pmd::soft::{SoftConfig, SoftHca};

const PORT: PortNumber = PortNumber(1);
const WORKERS: u8 = 2;

type SoftQueues = <SoftHca as Backend>::Queues;
type Destination = <SoftQueues as Queues>::Destination;

/// The last state of each link that was published.
#[derive(Default)]
struct States(Vec<Option<Arc<LinkState>>>, Quiescence);

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

struct End {
    n: u8,
    endpoint: Endpoint<SoftHca, (), ()>,
    workers: Vec<LinkWorker<SoftQueues, (), ()>>,
    quiescents: Vec<Quiescent>,
    board: States,
    times: Recorder,
    removed: Vec<LinkIndex>,
}

/// Address of an end on a link: each link has its own subnet.
fn ip(link: LinkIndex, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, link.0 as u8, 0, n)
}

impl End {
    fn new(n: u8, cable: CableEnd, pool: &Pool, now: Instant) -> Self {
        let guid = 0x0200_0000_0000_0000 + 16 * u64::from(n);
        let mut hca = SoftHca::new(&SoftConfig {
            name: format!("hca{n}"),
            node_guid: Guid(guid),
            port_guids: vec![Guid(guid + 1)],
            max_mtu: Mtu::B4096,
            gid_table: 8,
            seed: n.into(),
        })
        .unwrap();
        hca.set_cable(PORT, Some(cable)).unwrap();
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
        let link = LinkSettings::new(PKey::DEFAULT, Qpn::default(), 5 + u64::from(n));
        let config = EndpointConfig {
            place: EndpointPlace::ONLY,
            port: PORT,
            workers: WORKERS,
            links: 2,
            sizes,
            link,
        };
        let (endpoint, workers) = Endpoint::new(hca, config, pool, now).unwrap();
        let (mut board, times) = (States::default(), Recorder::default());
        let quiescents = workers.iter().map(|_| board.1.join()).collect();
        Self { n, endpoint, workers, quiescents, board, times, removed: Vec::new() }
    }

    fn turn(&mut self, now: Instant) {
        for (index, worker) in (0u8..).zip(&mut self.workers) {
            worker.commands(&mut self.times, |(), _| {});
            worker.queues().turn();
            let mut burst = RxBurst::new();
            worker.receive(&mut burst);
            for received in burst.drain(..) {
                let Source::Ud(from) = received.source else { continue };
                let link = LinkIndex(u16::from(received.ud.expect("in the table").0));
                let arp = Arp::parse(decapsulate(received.buf.data()).unwrap().1).unwrap();
                // A link that is going has left the groups, but not all senders know.
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
            if let (Some(link), Event::Arp(_)) = (self.endpoint.link_at(index), &event) {
                responder.handle_event(now, link, &event);
            }
        }
        self.removed.extend(std::iter::from_fn(|| self.endpoint.poll_removed()));
    }

    fn add(&mut self, now: Instant, pkey: u16) -> LinkIndex {
        let settings = LinkSettings::new(PKey(pkey), Qpn::default(), 50);
        self.endpoint.add_link(now, settings).unwrap()
    }

    fn is_up(&self, link: LinkIndex) -> bool {
        self.board.0.get(usize::from(link.0)).and_then(Option::as_ref).is_some_and(|state| state.up)
    }

    fn live(&mut self, now: Instant, link: LinkIndex) -> Vec<Qpn> {
        let list = self.endpoint.link_at(link).map(|l| l.connections(now)).unwrap_or_default();
        list.iter().filter(|c| c.state == "live").filter_map(|c| c.qpn).collect()
    }

    fn datagrams(&mut self, link: LinkIndex) -> Vec<Qpn> {
        self.endpoint.link_at(link).unwrap().settings().workers.iter().map(|w| w.ud_qpn).collect()
    }
}

struct World {
    fabric: Fabric,
    ends: [End; 2],
}

impl World {
    fn run(&mut self, what: &str, mut done: impl FnMut(&mut Self, Instant) -> bool) {
        let begin = Instant::now();
        loop {
            let now = Instant::now();
            self.fabric.step(now);
            self.ends.iter_mut().for_each(|end| end.turn(now));
            if done(self, now) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(40), "{what}: not done in 40 s");
        }
    }

    /// Both ends open a connection to each other from each worker.
    fn connect(&mut self, link: LinkIndex) {
        let mut last = Instant::now() - Duration::from_secs(1);
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

#[test]
fn links_come_and_go_while_others_are_at_work() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let start = Instant::now();
    let text = "[[switch]]\nname = \"s\"\nports = 2\n[[partition]]\npkey = 0xffff\n\
                [[partition]]\npkey = 0x8001\n[[partition]]\npkey = 0x8002\nmtu = 2048";
    let config = FabricConfig::parse(FilePath::new("test.toml"), text).unwrap();
    let mut fabric = Fabric::new(start, &config, 1);
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
    let mut w = World { fabric, ends };
    let (first, second) = (LinkIndex(0), LinkIndex(1));
    w.run("the first link", |w, _| w.ends.iter().all(|end| end.is_up(first)));
    w.connect(first);
    let now = Instant::now();
    let kept = w.ends[0].live(now, first);

    // A second one, in another partition.
    for end in &mut w.ends {
        assert_eq!(end.add(now, 0x8001), second);
    }
    w.run("the second link", |w, _| w.ends.iter().all(|end| end.is_up(second)));
    w.connect(second);
    for end in &mut w.ends {
        let all: Vec<_> = [first, second].iter().flat_map(|link| end.datagrams(*link)).collect();
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|qpn| all.iter().filter(|other| *other == qpn).count() == 1), "{all:?}");
        let table = end.endpoint.link_at(second).unwrap().table();
        let second = |ip| matches!(ip, std::net::IpAddr::V4(ip) if ip.octets()[1] == 1);
        assert!(table.len() == 1 && table.iter().all(|n| second(n.ip)));
        assert_eq!(end.endpoint.device_errors().0, 0, "{:?}", end.endpoint.device_errors());
    }
    assert_eq!(w.ends[0].live(now, first), kept);

    // It goes again, on one end. While its queue pairs come back another one finds a place, and goes, too.
    let gone = w.ends[0].datagrams(second);
    assert!(w.ends[0].endpoint.remove_link(Instant::now(), second));
    w.run("its end in the port", |w, _| w.ends[0].endpoint.link_at(second).is_none());
    assert_eq!(w.ends[0].removed, [], "its place is not free yet");
    let beside = w.ends[0].add(Instant::now(), 0x8007);
    assert_eq!(beside, LinkIndex(2));
    assert!(w.ends[0].endpoint.remove_link(Instant::now(), beside));
    w.run("both ends", |w, _| w.ends[0].removed.len() == 2);
    w.ends[0].removed.retain(|link| *link != beside);
    assert_eq!(w.ends[0].removed, [second]);
    assert!(w.ends[0].endpoint.link_at(second).is_none());
    for qpn in gone {
        assert!(w.ends[0].endpoint.hca().qp_state(qpn).is_err(), "{qpn} is left");
    }
    for worker in &mut w.ends[0].workers {
        assert_eq!(worker.queues().ud_qpn(UdSlot(1)), None);
        assert!(worker.queues().ud_qpn(UdSlot(0)).is_some());
    }
    assert_eq!(w.ends[0].live(Instant::now(), first), kept, "the first link's connections live on");
    assert!(!w.ends[0].endpoint.remove_link(Instant::now(), second), "there is none");
    assert_eq!(w.ends[0].endpoint.device_errors().0, 0, "{:?}", w.ends[0].endpoint.device_errors());

    // Its place is taken by one in a third partition, with another MTU.
    let now = Instant::now();
    assert_eq!(w.ends[0].add(now, 0x8002), second);
    assert!(w.ends[0].endpoint.add_link(now, LinkSettings::new(PKey(0x8002), Qpn::default(), 1)).is_err());
    w.run("a third link", |w, _| w.ends[0].is_up(second));
    assert_eq!(w.ends[0].endpoint.link_at(second).unwrap().state().ud_mtu, 2048);
    // One whose partition is not there waits, and goes without having been up.
    let third = w.ends[0].add(now, 0x8007);
    let begin = Instant::now();
    w.run("some turns", |_, now| now - begin > Duration::from_millis(300));
    assert!(!w.ends[0].is_up(third));
    assert!(w.ends[0].endpoint.remove_link(Instant::now(), third));
    w.run("its end", |w, _| w.ends[0].removed == [second, third]);
    assert_eq!(w.ends[0].live(Instant::now(), first), kept);

    let World { ends, .. } = w;
    for end in ends {
        let queues = end.workers.into_iter().map(LinkWorker::into_queues).collect();
        drop(end.endpoint.close(queues).unwrap());
    }
    assert!(pools.iter().all(|pool| pool.in_use() == 0));
}
