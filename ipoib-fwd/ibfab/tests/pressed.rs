//! Queries of the control lcore while traffic fills the datagram queue.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;
mod ends;

use std::time::Duration;

use device::SIZES;
use endpoint::{Tag, Taken};
use ends::{End, World, ip};
use ib_wire::ipoib::{Arp, EtherType, HardwareAddress, encapsulation};
use ipoib::link::{LinkIndex, WorkerIndex};
use pmd::eal::Eal;
use pmd::hca::{Backend as _, UdSlot};

const LINK: LinkIndex = LinkIndex(0);
const SLOT: UdSlot = UdSlot(0);

/// One query overtakes the traffic, so that hosts are found while it lasts. The other queries would leave late:
/// they are reported as not sent.
#[test]
fn one_query_overtakes_traffic_that_waits_for_the_queue_and_others_are_reported() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let (mut w, pools) = World::new("");
    w.run("the link", |w, _| w.ends.iter().all(|end| end.is_up(LINK)));
    let (own, other) = (ip(LINK, w.ends[0].n), ip(LINK, w.ends[1].n));
    let to = w.ends[0].endpoint.link_at(LINK).unwrap().broadcast_destination().unwrap();
    let message = |arp: Arp| [&encapsulation(EtherType::Arp)[..], &arp.to_bytes()].concat();
    let query = message(Arp::request(HardwareAddress::default(), own, other));
    let announcement = message(Arp::request(HardwareAddress::default(), own, own));

    // Traffic fills the queue, and some of it waits.
    let prepared = w.ends[0].endpoint.hca().destination(device::PORT, &to).unwrap();
    let traffic = || pools[0].copy_from_slice(&announcement).unwrap();
    w.run("the queue to be open", |w, _| {
        w.ends[0].workers[0].send_ud(SLOT, &prepared, Tag(0), traffic()).is_ok()
    });
    let worker = &mut w.ends[0].workers[0];
    let sent = (0..=SIZES.ud_send_depth).map(|_| worker.send_ud(SLOT, &prepared, Tag(0), traffic()).unwrap());
    assert_eq!(sent.last(), Some(Taken::Later));

    // The first query waits for room, and the second one has to be sent later.
    let deliver = |w: &mut World, message: &[u8]| {
        let End { endpoint, workers, times, .. } = &mut w.ends[0];
        endpoint.send_ud_by(LINK, WorkerIndex(0), &to, message);
        while workers[0].commands(times, |(), _| {}) > 0 {}
    };
    let held = w.ends[0].workers[0].waiting();
    deliver(&mut w, &query);
    assert_eq!(w.ends[0].workers[0].waiting(), held + 1, "the query");
    deliver(&mut w, &query);
    w.run("a note", |w, _| !w.ends[0].unsent.is_empty());
    assert_eq!(w.ends[0].unsent, [other]);

    w.run("the traffic and the query to leave", |w, _| {
        w.ends[0].workers[0].retry(|_, _| {});
        w.ends[0].workers[0].waiting() == 0
    });
    assert_eq!(w.ends[0].unsent, [other], "the first query left");

    // Nothing waits any more: the next one leaves.
    w.ends[0].unsent.clear();
    deliver(&mut w, &query);
    w.run_for(Duration::from_millis(10), |_| ());
    assert!(w.ends[0].unsent.is_empty(), "{:?}", w.ends[0].unsent);
}
