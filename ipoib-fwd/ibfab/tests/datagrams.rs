//! Failed datagram queue pairs are reset and reopened, and take part in ARP as before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;
mod ends;

use std::net::IpAddr;
use std::time::Duration;

use device::{PORT, SIZES};
use ends::{End, WORKERS, World, ip};
use ib_wire::ipoib::{Arp, EtherType, HardwareAddress, encapsulation};
use ipoib::link::{LinkIndex, WorkerIndex};
use pmd::eal::Eal;
use pmd::hca::{AsyncEvent, Control, PortState, QpState, QpTransition};

const LINK: LinkIndex = LinkIndex(0);

/// Each worker of an end queries the other end by broadcast until it has an answer on its own datagram queue
/// pair.
fn query_by_broadcast(w: &mut World, from: usize) {
    for worker in (0..WORKERS).map(WorkerIndex) {
        let received = |w: &mut World| w.ends[from].endpoint.link_at(LINK).unwrap().counters().arp_received;
        let before = received(w);
        let (own, other) = (ip(LINK, w.ends[from].n), ip(LINK, w.ends[1 - from].n));
        let mut last = w.now() - Duration::from_secs(1);
        w.run("an answer", |w, now| {
            if now - last > Duration::from_millis(200) {
                last = now;
                w.ends[from].endpoint.link_at(LINK).unwrap().request(now, worker, own, other);
            }
            received(w) > before
        });
    }
}

#[test]
fn a_datagram_queue_pair_that_fails_is_opened_again() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let (mut w, _pools) = World::new("");
    w.run("the links", |w, _| w.ends.iter().all(|end| end.is_up(LINK)));
    query_by_broadcast(&mut w, 0);

    // The device reports one of them and not the other, as with some providers.
    let failed = w.ends[0].datagrams(LINK);
    let device = w.ends[0].endpoint.hca();
    for qpn in &failed {
        device.hca.modify_qp(*qpn, &QpTransition::ToError).unwrap();
    }
    device.events.push_back(AsyncEvent::QpFatal(failed[0]));
    w.run("both open again", |w, _| {
        w.ahead += Duration::from_millis(1);
        let device = w.ends[0].endpoint.hca();
        failed.iter().all(|qpn| device.qp_state(*qpn).unwrap() == QpState::Rts)
    });
    assert_eq!(w.ends[0].endpoint.datagram_reopens(), 2, "counted");

    // They send and receive, including broadcasts, and nothing else was affected.
    query_by_broadcast(&mut w, 0);
    query_by_broadcast(&mut w, 1);
    assert!(w.ends.iter().all(|end| end.is_up(LINK)));
    assert_eq!(w.ends[0].datagrams(LINK), failed);
    assert_eq!(w.ends[0].endpoint.hca().port(PORT).unwrap().state, PortState::Active);
    assert_eq!(w.ends[0].endpoint.datagram_reopens(), 2);
}

#[test]
fn a_query_for_which_there_is_no_room_is_reported() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let (mut w, pools) = World::new("");
    w.run("the links", |w, _| w.ends.iter().all(|end| end.is_up(LINK)));
    let (own, other) = (ip(LINK, w.ends[0].n), ip(LINK, w.ends[1].n));
    let to = w.ends[0].endpoint.link_at(LINK).unwrap().broadcast_destination().unwrap();
    let arp = Arp::request(HardwareAddress::default(), own, other);
    let query = [&encapsulation(EtherType::Arp)[..], &arp.to_bytes()].concat();

    // Queries that a queue accepted are not among them.
    w.ends[0].endpoint.send_ud_by(LINK, WorkerIndex(0), &to, &query);
    w.run_for(Duration::from_millis(10), |_| ());
    assert_eq!(w.ends[0].unsent, [IpAddr::V4(own); 0]);

    // The device accepts nothing, and the worker's queue is full.
    for _ in 0..=SIZES.ud_send_depth {
        w.ends[0].endpoint.send_ud_by(LINK, WorkerIndex(0), &to, &query);
    }
    let End { workers, times, .. } = &mut w.ends[0];
    while workers[0].commands(times, |(), _| {}) > 0 {}
    w.run("a note", |w, _| !w.ends[0].unsent.is_empty());
    assert!(w.ends[0].unsent.iter().all(|ip| *ip == other), "{:?}", w.ends[0].unsent);

    // There is no buffer.
    w.ends[0].unsent.clear();
    let taken: Vec<_> = std::iter::from_fn(|| pools[0].copy_from_slice(&[0])).collect();
    w.ends[0].endpoint.send_ud_by(LINK, WorkerIndex(0), &to, &query);
    drop(taken);
    w.run("the note", |w, _| !w.ends[0].unsent.is_empty());
    assert_eq!(w.ends[0].unsent, [IpAddr::V4(other)]);
}
