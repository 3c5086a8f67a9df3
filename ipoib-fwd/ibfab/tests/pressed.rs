//! Datagrams of the control lcore while traffic fills the datagram queue.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;
mod ends;

use std::time::Duration;

use device::{Destination, SIZES};
use endpoint::{Tag, Taken, Waited};
use ends::{End, World, ip};
use ib_wire::ipoib::{Arp, EtherType, HardwareAddress, encapsulation};
use ipoib::link::{LinkIndex, WorkerIndex};
use pmd::eal::Eal;
use pmd::hca::{Backend as _, PostError, Queues as _, UdDestination, UdSlot};
use pmd::mem::Pool;

const LINK: LinkIndex = LinkIndex(0);
const SLOT: UdSlot = UdSlot(0);

/// Two ends whose link is up. The first worker of the first end sends by its datagram queue, as the data path
/// and as the control lcore do.
struct Fixture {
    w: World,
    pool: Pool,
    to: UdDestination,
    prepared: Destination,
    query: Vec<u8>,
    announcement: Vec<u8>,
    _eal: Eal,
}

impl Fixture {
    fn new() -> Self {
        let words =
            ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
        let eal = Eal::init(words.map(str::to_owned)).unwrap();
        let (mut w, [pool, _]) = World::new("");
        w.run("the link", |w, _| w.ends.iter().all(|end| end.is_up(LINK)));
        let (own, other) = (ip(LINK, w.ends[0].n), ip(LINK, w.ends[1].n));
        let to = w.ends[0].endpoint.link_at(LINK).unwrap().broadcast_destination().unwrap();
        let prepared = w.ends[0].endpoint.hca().destination(device::PORT, &to).unwrap();
        let message = |arp: Arp| [&encapsulation(EtherType::Arp)[..], &arp.to_bytes()].concat();
        let query = message(Arp::request(HardwareAddress::default(), own, other));
        let announcement = message(Arp::request(HardwareAddress::default(), own, own));
        let mut fixture = Self { w, pool, to, prepared, query, announcement, _eal: eal };
        let Self { w, pool, prepared, announcement, .. } = &mut fixture;
        w.run("the queue to be open", |w, _| {
            let buf = pool.copy_from_slice(announcement).unwrap();
            w.ends[0].workers[0].send_ud(SLOT, prepared, Tag(0), buf).is_ok()
        });
        fixture
    }

    /// Sends a datagram as the data path does.
    fn send(&mut self) -> Result<Taken, PostError> {
        let buf = self.pool.copy_from_slice(&self.announcement).unwrap();
        let worker = &mut self.w.ends[0].workers[0];
        worker.send_ud(SLOT, &self.prepared, Tag(0), buf).map_err(|refused| refused.error)
    }

    /// Fills the queue, until a datagram waits.
    fn fill(&mut self) {
        let last = (0..=SIZES.ud_send_depth).map(|_| self.send().unwrap()).last();
        assert_eq!(last, Some(Taken::Later));
    }

    /// Sends a datagram as the control lcore does.
    fn deliver(&mut self, message: &[u8]) {
        let End { endpoint, workers, times, .. } = &mut self.w.ends[0];
        endpoint.send_ud_by(LINK, WorkerIndex(0), &self.to, message);
        while workers[0].commands(times, |(), _| {}) > 0 {}
    }
}

/// One query overtakes the traffic, so that hosts are found while it lasts. The other queries would leave
/// late: they are reported as not sent.
#[test]
fn one_query_overtakes_traffic_that_waits_for_the_queue_and_others_are_reported() {
    let mut f = Fixture::new();
    let (query, other) = (f.query.clone(), ip(LINK, f.w.ends[1].n));
    f.fill();

    // The first query waits for room, and the second one has to be sent later.
    let held = f.w.ends[0].workers[0].waiting();
    f.deliver(&query);
    assert_eq!(f.w.ends[0].workers[0].waiting(), held + 1, "the query");
    f.deliver(&query);
    f.w.run("a note", |w, _| !w.ends[0].unsent.is_empty());
    assert_eq!(f.w.ends[0].unsent, [other]);

    f.w.run("the traffic and the query to leave", |w, _| {
        w.ends[0].workers[0].retry(|_, _| {});
        w.ends[0].workers[0].waiting() == 0
    });
    assert_eq!(f.w.ends[0].unsent, [other], "the first query left");

    // Nothing waits any more: the next one leaves.
    f.w.ends[0].unsent.clear();
    f.deliver(&query);
    f.w.run_for(Duration::from_millis(10), |_| ());
    assert!(f.w.ends[0].unsent.is_empty(), "{:?}", f.w.ends[0].unsent);
}

/// A stuck queue that accepts a datagram of the control lcore is no longer stuck: traffic waits for it again.
#[test]
fn a_datagram_of_the_control_lcore_ends_the_stuck_state_of_its_queue() {
    let mut f = Fixture::new();
    f.fill();
    // The device does not work here, so that the queue accepts nothing.
    let mut lost = 0;
    while f.w.ends[0].workers[0].waiting() > 0 {
        f.w.ends[0].workers[0].retry(|_, waited| {
            assert_eq!(waited, Waited::Lost(PostError::Full));
            lost += 1;
        });
    }
    assert!(lost > 0);
    assert_eq!(f.send(), Err(PostError::Full), "stuck");

    f.w.run("the queue to be empty", |w, _| w.ends[0].workers[0].queues().ud_sends(SLOT) == 0);
    let announcement = f.announcement.clone();
    f.deliver(&announcement);
    let queues = f.w.ends[0].workers[0].queues();
    assert_eq!(queues.ud_sends(SLOT), 1);
    // Not by the data path, whose datagrams end the state as well.
    let fill = || queues.send_ud(SLOT, &f.prepared, f.pool.copy_from_slice(&announcement).unwrap());
    let refused = std::iter::repeat_with(fill).find_map(Result::err);
    assert_eq!(refused.map(|refused| refused.error), Some(PostError::Full));
    assert_eq!(f.send(), Ok(Taken::Later));
}
