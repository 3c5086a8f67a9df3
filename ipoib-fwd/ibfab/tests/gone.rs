//! A device is gone, although its driver still reports a state of its port: its links go down at once and
//! stay down, and other links do not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;
mod ends;

use std::time::Duration;

use device::PORT;
use ends::World;
use ipoib::link::{LinkIndex, WorkerIndex};
use pmd::eal::Eal;
use pmd::hca::{AsyncEvent, Control, PortState};

const LINK: LinkIndex = LinkIndex(0);

/// Returns the number of iterations until the loss is known.
fn iterations_until_down(w: &mut World, end: usize) -> u32 {
    let mut turns = 0;
    w.run("the link's end", |w, _| {
        turns += 1;
        !w.ends[end].is_up(LINK)
    });
    turns
}

#[test]
fn a_device_that_is_gone_takes_its_links_down_at_once_and_no_others() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let (mut w, _pools) = World::new("");
    w.run("the links", |w, _| w.ends.iter().all(|end| end.is_up(LINK)));
    w.connect(LINK);

    // One of its completion queues has failed; its port would be usable.
    w.ends[0].endpoint.hca().events.push_back(AsyncEvent::Fatal);
    assert_eq!(iterations_until_down(&mut w, 0), 1, "known in the iteration in which it is reported");
    assert!(w.ends[0].endpoint.take_gone().is_some());
    assert_eq!(w.ends[0].endpoint.hca().port(PORT).unwrap().state, PortState::Active);
    let told =
        [AsyncEvent::PortActive(PORT), AsyncEvent::PKeyChange(PORT), AsyncEvent::ClientReregister(PORT)];
    w.ends[0].endpoint.hca().events.extend(told);
    w.run_for(Duration::from_millis(500), |w| {
        assert!(!w.ends[0].is_up(LINK), "it is gone for good");
        assert!(w.ends[1].is_up(LINK), "the other device still works");
        assert!(w.ends[0].endpoint.take_gone().is_none(), "told once");
    });
    let facts = w.ends[0].endpoint.links().facts().unwrap().clone();
    assert_eq!(facts, ipoib::port::Facts::default());
    let now = w.now();
    assert_eq!(w.ends[0].live(now, LINK), []);

    // The other one no longer answers, and completes nothing.
    let to = w.ends[1].endpoint.link_at(LINK).unwrap().broadcast_destination().unwrap();
    w.ends[1].endpoint.send_ud_by(LINK, WorkerIndex(0), &to, &[0; 64]);
    w.ends[1].endpoint.hca().gone = true;
    assert_eq!(iterations_until_down(&mut w, 1), 1);
    assert!(w.ends[1].endpoint.take_gone().is_some());
    let mut errors = 0;
    w.run_for(Duration::from_secs(3), |_| ());
    w.ends.iter_mut().for_each(|end| errors += end.endpoint.device_errors().0);
    w.run_for(Duration::from_secs(2), |_| ());
    let after: u64 = w.ends.iter_mut().map(|end| end.endpoint.device_errors().0).sum();
    assert_eq!(after, errors, "a device that is gone gets no further requests");
    assert!(w.ends[1].endpoint.take_gone().is_none(), "told once");

    // Its link still shuts down in order, and can be removed.
    let now = w.now();
    w.ends[0].endpoint.link_at(LINK).unwrap().shutdown(now);
    assert!(w.ends[1].endpoint.remove_link(now, LINK));
    w.run("the end of the link", |w, _| w.ends[0].endpoint.link_at(LINK).unwrap().is_stopped());
    // Although a datagram never completes.
    w.run("the link's removal", |w, _| w.ends[1].removed == [LINK]);
}
