//! Removal of a link on a device that misses requests in a flush: the flush is repeated until all have come
//! back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;

use std::time::{Duration, Instant};

use dataplane::latency::Recorder;
use dataplane::quiescence::{Grace, Quiescence};
use device::{Destination, Device, PORT, SIZES, SoftQueues};
use endpoint::{Board, Endpoint, EndpointConfig, EndpointPlace, LinkUpdate};
use ib_wire::{PKey, Qpn};
use ipoib::link::LinkSettings;
use pmd::eal::Eal;
use pmd::hca::{Control, QpTransition, Queues, RxBurst};
use pmd::mem::{Pool, PoolConfig};

/// Publishes nothing; each grace period passes when the readers report it.
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
    let link = LinkSettings::new(PKey::DEFAULT, Qpn::default(), 5);
    let mut board = Nothing(Quiescence::new());
    let mut quiescent = board.0.join();
    let config =
        EndpointConfig { place: EndpointPlace::ONLY, port: PORT, workers: 1, links: 1, sizes: SIZES, link };
    let mut now = Instant::now();
    let (mut endpoint, mut workers) =
        Endpoint::<Device, (), ()>::new(Device::new(1), config, &pool, now).unwrap();
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
    let mut tick = |endpoint: &mut Endpoint<Device, (), ()>| {
        now += Duration::from_millis(60);
        endpoint.tick(now, &mut board, |_| {});
        now
    };
    for _ in 0..10 {
        turn(&mut workers);
        tick(&mut endpoint);
    }
    // In INIT there are requests to flush, although the port is down.
    let qpn = endpoint.links().link(index).unwrap().settings().workers[0].ud_qpn;
    let to_init = QpTransition::UdToInit { pkey_index: 0, qkey: ib_wire::QKey(0xb1b) };
    endpoint.hca().modify_qp(qpn, &to_init).unwrap();
    let now = tick(&mut endpoint);
    assert!(endpoint.remove_link(now, index));
    let flushed = |endpoint: &mut Endpoint<Device, (), ()>| {
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
    // Its worker does not run.
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
        "a removed queue pair is not flushed"
    );

    // Links that are removed together are handled one in each tick: the control lcore has other work in
    // between.
    let now = tick(&mut endpoint);
    let links = [0x8001, 0x8002, 0x8003]
        .map(|pkey| endpoint.add_link(now, LinkSettings::new(PKey(pkey), Qpn::default(), 50)).unwrap());
    for _ in 0..10 {
        turn(&mut workers);
        tick(&mut endpoint);
    }
    let now = tick(&mut endpoint);
    assert!(links.iter().all(|link| endpoint.remove_link(now, *link)));
    let mut left = links.len();
    for _ in 0..100 {
        turn(&mut workers);
        tick(&mut endpoint);
        let before = left;
        left = links.iter().filter(|link| endpoint.link_at(**link).is_some()).count();
        assert!(before - left <= 1, "{} links in one tick", before - left);
    }
    assert_eq!(left, 0);
    let mut removed: Vec<_> = std::iter::from_fn(|| endpoint.poll_removed()).collect();
    removed.sort_unstable();
    assert_eq!(removed, links);
}
