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
use pmd::hca::{Backend as _, Queues as _, UdSlot};

const LINK: LinkIndex = LinkIndex(0);
const SLOT: UdSlot = UdSlot(0);

/// If the queue accepted the query as soon as it has room, it would leave behind all of the traffic, and its
/// answer would be too late.
#[test]
fn a_query_is_not_posted_before_traffic_that_waits_for_the_queue() {
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
    // The device has sent the first ones: there is room.
    w.run("room", |w, _| {
        w.ends[0].workers[0].queues().turn();
        w.ends[0].workers[0].finish()
    });

    // Datagrams without a deadline are posted; the query is reported as not sent.
    let deliver = |w: &mut World, message: &[u8]| {
        let End { endpoint, workers, times, .. } = &mut w.ends[0];
        endpoint.send_ud_by(LINK, WorkerIndex(0), &to, message);
        while workers[0].commands(times, |(), _| {}) > 0 {}
    };
    deliver(&mut w, &announcement);
    deliver(&mut w, &query);
    w.run("a note", |w, _| !w.ends[0].unsent.is_empty());
    assert_eq!(w.ends[0].unsent, [other]);

    // Nothing waits any more: the next one leaves.
    w.run("the traffic to leave", |w, _| {
        w.ends[0].workers[0].retry(|_, _| {});
        w.ends[0].workers[0].waiting() == 0
    });
    w.ends[0].unsent.clear();
    deliver(&mut w, &query);
    w.run_for(Duration::from_millis(10), |_| ());
    assert!(w.ends[0].unsent.is_empty(), "{:?}", w.ends[0].unsent);
}
