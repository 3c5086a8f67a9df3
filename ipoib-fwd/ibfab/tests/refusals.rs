//! A device that refuses a step of opening a datagram queue pair is retried, for each of the steps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;
mod ends;

use std::time::Duration;

use device::Choice;
use ends::{WORKERS, World};
use ipoib::link::LinkIndex;
use pmd::eal::Eal;
use pmd::hca::{Control, QpState, QpTransition};

type Step = (&'static str, u16, Choice);

/// Each for a link of its own.
const STEPS: [Step; 3] = [
    ("INIT", 0x8001, |to| matches!(to, QpTransition::UdToInit { .. })),
    ("RTR", 0x8002, |to| matches!(to, QpTransition::UdToReceive)),
    ("RTS", 0x8003, |to| matches!(to, QpTransition::UdToSend { .. })),
];

/// P_Key of the link whose groups are not attached.
const DEAF: u16 = 0x8004;

#[test]
fn an_opening_that_stopped_half_way_is_tried_again() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let partitions: String =
        STEPS.iter().map(|(_, pkey, _)| format!("[[partition]]\npkey = {pkey:#x}\n")).collect();
    let partitions = format!("{partitions}[[partition]]\npkey = {DEAF:#x}\n");
    let (mut w, _pools) = World::new(&partitions);
    w.run("the first links", |w, _| w.ends.iter().all(|end| end.is_up(LinkIndex(0))));
    for (name, pkey, is_refused) in STEPS {
        w.ends[0].endpoint.hca().refused = Some((is_refused, 0));
        let now = w.now();
        let link = w.ends[0].add(now, pkey);
        assert_eq!(w.ends[1].add(now, pkey), link);
        // Retries become less frequent: the third failure is at least two seconds after the second.
        let begin = w.now();
        let failures = |w: &mut World| w.ends[0].endpoint.refusal(link).map_or(0, |(_, failures)| failures);
        w.run("three failures", |w, _| {
            w.ahead += Duration::from_millis(1);
            failures(w) >= 3
        });
        let took = w.now() - begin;
        assert!(took >= Duration::from_secs(2), "{name}: {took:?}");
        let (why, failures) = w.ends[0].endpoint.refusal(link).expect("the device refuses");
        assert!(why.contains("what a test takes away"), "{name}: {why}");
        let (_, tries) = w.ends[0].endpoint.hca().refused.take().unwrap();
        assert!(failures == 3 && tries <= 6, "{name}: two workers, {failures} failures, {tries} tries");
        let qpns = w.ends[0].datagrams(link);
        w.run(name, |w, _| {
            w.ends[0].endpoint.refusal(link).is_none()
                && qpns.iter().all(|q| matches!(w.ends[0].endpoint.hca().qp_state(*q), Ok(QpState::Rts)))
        });
        // They carry packets from the start.
        w.connect(link);
        assert!(w.ends.iter_mut().all(|end| end.is_up(link)));
    }
    a_group_is_attached_again(&mut w);
    queue_pairs_are_opened_again_with_a_qkey_that_was_refused(&mut w, &partitions);
}

/// The subnet manager changes the Q_Key of the default partition, and the device refuses it for open queue
/// pairs.
fn queue_pairs_are_opened_again_with_a_qkey_that_was_refused(w: &mut World, partitions: &str) {
    let link = LinkIndex(0);
    w.ends[0].endpoint.hca().refused = Some((|to| matches!(to, QpTransition::UdQKey(_)), 0));
    w.set_partitions(&format!("qkey = 0x0b1c\n{partitions}"));
    w.run("both workers' queue pairs to be refused the key", |w, _| {
        w.ahead += Duration::from_millis(1);
        w.ends[0].endpoint.hca().refused.is_some_and(|(_, tries)| tries >= u32::from(WORKERS))
    });
    // Only the other end has the new key: both ends query each other by the broadcast group.
    w.connect(link);
}

/// A link whose groups the device does not attach receives no multicasts, until the device has room.
fn a_group_is_attached_again(w: &mut World) {
    w.ends[0].endpoint.hca().attach_refused = Some(0);
    let now = w.now();
    let link = w.ends[0].add(now, DEAF);
    assert_eq!(w.ends[1].add(now, DEAF), link);
    w.run("some tries", |w, _| {
        w.ahead += Duration::from_millis(1);
        w.ends[0].endpoint.hca().attach_refused.is_some_and(|tries| tries >= 3)
    });
    let failures = w.ends[0].endpoint.link_at(link).unwrap().counters().attach_failures;
    assert!(failures >= 3, "{failures}");
    w.ends[0].endpoint.hca().attach_refused = None;
    // Both ends query each other by the broadcast group.
    w.connect(link);
}
